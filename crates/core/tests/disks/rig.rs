//! Owners of memory and disks that do as they are told.

use mooncrate_core::catalog::{Catalog, Config, Offload, Start, Trusted};
use mooncrate_core::copy::{CopyDone, CopyOrder};
use mooncrate_core::error::{GetError, MountError, PutError};
use mooncrate_core::plan::{
    Announced, AnnouncedLife, AnnouncedObject, Evidence, Notice, Order, OrderResult, SegmentOffer,
};
use mooncrate_core::{
    Extent, Generation, HostId, Incarnation, LeaderEpoch, Locator, Medium, NodeId, Now, ObjectId,
    PutConfig, Seal, SegmentId, Slot, Stamp, ZoneId,
};
use std::collections::BTreeMap;
use std::time::Duration;

pub(crate) const KIB: u64 = 1024;
pub(crate) const MEMORY: u64 = 16 * KIB;
pub(crate) const DISK: u64 = 64 * KIB;
pub(crate) const VRAM: u64 = 8 * KIB;

pub(crate) fn ms(ms: u64) -> Now {
    Now(1_000_000_000).plus(Duration::from_millis(ms))
}

pub(crate) fn offer(node: u64, medium: Medium, incarnation: u64) -> SegmentOffer {
    SegmentOffer {
        segment: SegmentId::on(medium, NodeId(node), 0),
        incarnation: Incarnation(incarnation),
        node: NodeId(node),
        medium,
        bytes: match medium {
            Medium::Vram => VRAM,
            Medium::Dram => MEMORY,
            Medium::Ssd => DISK,
        },
        slots: 256,
        host: HostId(node),
        zone: ZoneId(0),
        tenant: None,
        evidence: Evidence { stamp: Stamp(7), ..Evidence::default() },
    }
}

pub(crate) fn memory(node: u64) -> SegmentId {
    SegmentId::on(Medium::Dram, NodeId(node), 0)
}

pub(crate) fn vram(node: u64) -> SegmentId {
    SegmentId::on(Medium::Vram, NodeId(node), 0)
}

pub(crate) fn disk(node: u64) -> SegmentId {
    SegmentId::on(Medium::Ssd, NodeId(node), 0)
}

/// The disk of a node, as a list names it.
pub(crate) fn trusted(node: u64) -> Trusted {
    Trusted::of(&offer(node, Medium::Ssd, 1))
}

pub(crate) fn config(offload: Offload) -> Config {
    let order_retry = Duration::from_millis(100);
    Config { offload, order_retry, ..Config::default() }
}

/// A record of a disk, as its owner knows it.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) order: CopyOrder,
}

/// Owners that do as they are told, as far as the story does not say otherwise.
pub(crate) struct Rig {
    pub(crate) catalog: Catalog,
    /// Records of each disk by slot, with the generation they live in.
    pub(crate) disks: BTreeMap<(SegmentId, Slot), Record>,
    /// Copies that were ordered and not carried out.
    pub(crate) copies: Vec<CopyOrder>,
    pub(crate) orders: Vec<Order>,
}

impl Rig {
    pub(crate) fn new(offload: Offload, nodes: u64) -> Self {
        Self::with(config(offload), nodes)
    }

    pub(crate) fn with(config: Config, nodes: u64) -> Self {
        let all = [Medium::Dram, Medium::Ssd];
        let lent: Vec<(u64, Medium)> =
            (1..=nodes).flat_map(|node| all.map(|medium| (node, medium))).collect();
        Self::of(config, &lent)
    }

    /// A cluster of nodes that lend these media.
    pub(crate) fn of(config: Config, lent: &[(u64, Medium)]) -> Self {
        let catalog = Catalog::new(config, LeaderEpoch(1), Start::New, ms(0));
        let (disks, copies, orders) = (BTreeMap::new(), Vec::new(), Vec::new());
        let mut rig = Self { catalog, disks, copies, orders };
        for (node, medium) in lent {
            rig.mount(ms(0), *node, *medium, 1, &[]).unwrap();
        }
        rig.keep();
        rig
    }

    pub(crate) fn mount(
        &mut self,
        now: Now,
        node: u64,
        medium: Medium,
        incarnation: u64,
        page: &[Announced],
    ) -> Result<(), MountError> {
        let offer = offer(node, medium, incarnation);
        self.catalog.mount(now, NodeId(node), std::slice::from_ref(&offer))?;
        self.catalog.announce(now, offer.segment, offer.incarnation, page, true)
    }

    /// The master writes its list down.
    pub(crate) fn keep(&mut self) {
        let list = self.catalog.trusted();
        self.catalog.trust_writing(&list);
        self.catalog.trust_written(&list);
    }

    /// Disks that the next leader may believe.
    pub(crate) fn believed(&self) -> Vec<SegmentId> {
        let all = self.catalog.trusted().into_iter().map(|trusted| trusted.segment);
        all.filter(|segment| segment.medium() == Medium::Ssd).collect()
    }

    pub(crate) fn collect(&mut self) {
        self.copies.extend(self.catalog.take_copies().into_iter().map(|(_, copy)| copy));
        self.orders.extend(self.catalog.take_orders().into_iter().map(|(_, order)| order));
    }

    pub(crate) fn notice(&mut self, now: Now, at: &Locator, result: OrderResult) {
        let Locator { segment, incarnation, slot, generation, .. } = *at;
        self.catalog.notice(now, &Notice { segment, incarnation, slot, generation, result });
    }

    /// Owners carry out their orders.
    pub(crate) fn obey(&mut self, now: Now) {
        self.collect();
        while !self.orders.is_empty() {
            for order in std::mem::take(&mut self.orders) {
                let Order { segment, incarnation, slot, generation, .. } = order;
                self.disks.remove(&(segment, slot));
                let result = OrderResult::Freed { next: Generation(generation.0 + 1) };
                let notice = Notice { segment, incarnation, slot, generation, result };
                self.catalog.notice(now, &notice);
            }
            self.collect();
        }
        self.catalog.audit().unwrap();
    }

    /// Owners make the copies that were ordered; how many.
    pub(crate) fn copy(&mut self, now: Now, ok: bool) -> usize {
        self.collect();
        let copies = std::mem::take(&mut self.copies);
        for order in &copies {
            if ok && order.target.segment.medium() == Medium::Ssd {
                let place = (order.target.segment, order.target.slot);
                self.disks.insert(place, Record { order: order.clone() });
            }
            self.catalog.copied(now, &CopyDone::of(&order.target, ok));
        }
        self.catalog.audit().unwrap();
        copies.len()
    }

    /// Everything that is under way comes to its end.
    pub(crate) fn settle(&mut self, now: Now) {
        for _ in 0..100 {
            self.catalog.go_on(now);
            self.obey(now);
            if self.copy(now, true) == 0 {
                return;
            }
        }
        panic!("it never comes to rest");
    }

    pub(crate) fn start(
        &mut self,
        now: Now,
        key: &[u8],
        config: &PutConfig,
    ) -> Result<(ObjectId, Locator), PutError> {
        let plan = self.catalog.put_start(now, key, KIB, config)?;
        self.catalog.put_end(now, key, plan.token, &[Seal(plan.object.sequence)])?;
        Ok((plan.object, plan.replicas[0]))
    }

    /// A put that waits for room as a master lets it wait.
    pub(crate) fn put(&mut self, now: Now, key: &[u8]) -> ObjectId {
        self.put_as(now, key, &PutConfig::default())
    }

    /// The same, with wishes.
    pub(crate) fn put_as(&mut self, now: Now, key: &[u8], config: &PutConfig) -> ObjectId {
        for _ in 0..100 {
            match self.start(now, key, config) {
                Err(PutError::Reclaiming { .. }) => {
                    self.obey(now);
                    self.copy(now, true);
                    self.obey(now);
                }
                put => return put.unwrap().0,
            }
        }
        panic!("room never came");
    }

    pub(crate) fn located(&mut self, now: Now, key: &[u8]) -> Vec<Medium> {
        match self.catalog.locate(now, key, 0) {
            Ok(located) => located.replicas.iter().map(|at| at.segment.medium()).collect(),
            Err(GetError::NotFound) => Vec::new(),
            Err(error) => panic!("{error}"),
        }
    }

    pub(crate) fn place(&mut self, key: &[u8], medium: Medium) -> Locator {
        let located = self.catalog.peek(key).unwrap();
        *located.replicas.iter().find(|at| at.segment.medium() == medium).unwrap()
    }

    /// What a disk tells after a restart: its records, from slot 0 on.
    pub(crate) fn recovered(&self, segment: SegmentId) -> Vec<Announced> {
        let own = self.disks.iter().filter(|((disk, _), _)| *disk == segment);
        let told = own.enumerate().map(|(slot, (_, record))| {
            let order = &record.order;
            let CopyOrder { label, object, len, seal, .. } = order.clone();
            let extent = Extent::new(0, order.target.extent.len()).unwrap();
            let object = Some(AnnouncedObject { label, object, len, seal });
            let life = Some(AnnouncedLife { extent, object });
            Announced { slot: Slot(slot as u32), generation: Generation(0), life }
        });
        told.collect()
    }

    /// A node is not heard until it is counted as gone, and its mount can be read by nobody.
    pub(crate) fn lose(&mut self, from: u64, gone: u64, others: &[u64]) -> u64 {
        let to = from + 40_000;
        for at in (from..=to).step_by(100) {
            for node in others {
                self.catalog.heartbeat(ms(at), NodeId(*node)).unwrap();
            }
            self.catalog.tick(ms(at));
            self.obey(ms(at));
            self.keep();
        }
        assert!(!self.catalog.knows(NodeId(gone)));
        to
    }
}

pub(crate) fn key(n: u8) -> [u8; 2] {
    [b'k', n]
}
