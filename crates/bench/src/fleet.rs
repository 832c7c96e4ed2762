//! Segments and a node that exist only in a catalog: an index can be as large as one likes without
//! the memory that it describes.

use mooncrate_core::copy::CopyOrder;
use mooncrate_core::ids::{LeaderEpoch, NodeId, SegmentId};
use mooncrate_core::plan::{Evidence, Medium, Notice, Order, OrderResult, SegmentOffer};
use mooncrate_core::{HostId, Incarnation, ZoneId};
use mooncrate_wire::NodeApi;
use mooncrate_wire::message::NodeCommand;
use mooncrate_wire::message::NodeInfo;

/// Bytes of every value that the index describes.
pub(crate) const VALUE_BYTES: u64 = 64 << 10;
/// Segments that share them.
const SEGMENTS: u16 = 4;

/// A node whose segments hold nothing and obey at once.
#[derive(Clone, Debug)]
pub(crate) struct PaperNode {
    pub(crate) offers: Vec<SegmentOffer>,
}

impl PaperNode {
    /// With room for twice this many objects, so that none is evicted.
    pub(crate) fn new(objects: u64) -> Self {
        let node = NodeId::named("paper");
        let slots = (2 * objects / u64::from(SEGMENTS) + 1024) as u32;
        let offers = (0..SEGMENTS).map(|index| SegmentOffer {
            segment: SegmentId::of(node, index),
            incarnation: Incarnation(1),
            node,
            medium: Medium::Dram,
            bytes: u64::from(slots) * VALUE_BYTES,
            slots,
            host: HostId(0),
            zone: ZoneId(0),
            tenant: None,
            evidence: Evidence::default(),
        });
        Self { offers: offers.collect() }
    }

    pub(crate) fn node(&self) -> NodeId {
        self.offers[0].node
    }

    /// As it registers with a master.
    pub(crate) fn info(&self) -> NodeInfo {
        NodeInfo {
            node: self.node(),
            name: "paper".into(),
            tcp: String::new(),
            unix: String::new(),
            host: HostId(0),
            zone: ZoneId(0),
        }
    }
}

/// What an owner that has no readers answers: the life is over.
pub(crate) fn obey(order: &Order) -> Notice {
    let next = order.generation.next().expect("no slot of a bench lives that often");
    Notice {
        segment: order.segment,
        incarnation: order.incarnation,
        slot: order.slot,
        generation: order.generation,
        result: OrderResult::Freed { next },
    }
}

impl NodeApi for PaperNode {
    fn execute(&self, _epoch: LeaderEpoch, orders: &[Order]) -> Vec<Notice> {
        orders.iter().map(obey).collect()
    }

    /// Paper has no bytes to fetch: the master gives such copies up by itself.
    fn take(&self, _copies: Vec<CopyOrder>, _commands: Vec<NodeCommand>) {}
}
