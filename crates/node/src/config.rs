//! How a node is set up. Plain data; live parts enter by constructor.

use crate::disk::TierConfig;
use crate::duty::NodeError;
use crate::guard::GuardStart;
use crate::vram::{Gpus, OfSystem, VramConfig};
use mooncrate_core::ids::name_hash;
use mooncrate_core::{HostId, Incarnation, NodeId, SegmentId, TenantId, ZoneId};
use mooncrate_mem::memory::Claim;
use mooncrate_mem::{Segment, SegmentSpec};
use mooncrate_rt as rt;
use mooncrate_wire::{Address, Gate, PoolConfig};
use std::sync::Arc;
use std::time::Duration;

/// Bytes per slot that the default number of slots assumes; smaller objects run out of slots
/// before they run out of bytes. A header takes 128 bytes, and none before its slot is first used.
const BYTES_PER_SLOT: u64 = 2048;

/// Less could not hold what one reader stages at once.
const STAGING_BYTES_MIN: u64 = 32 << 20;

/// Settings of a node.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch that somebody can set")]
pub struct NodeConfig {
    /// Its name: the same across restarts, unlike that of any other node.
    pub name: String,
    /// The machine it runs on; clients with an equal label map its memory.
    pub host: String,
    /// Its failure zone.
    pub zone: String,
    /// Bytes of its segment, rounded down to a multiple of 4096.
    pub segment_bytes: u64,
    /// Headers; `None`: one per 2 KiB.
    pub slots: Option<u32>,
    /// Whether other processes of the machine may map the segment.
    pub shared: bool,
    /// Whether to take huge pages.
    pub huge_pages: bool,
    /// Whether segments may be larger than the memory of the machine, or than a cgroup allows.
    pub memory_overcommit: bool,
    /// Whether all pages of the segment are taken from the system at the start.
    pub prefault: bool,
    /// Where the data server is reached over the network.
    pub tcp: Option<Address>,
    /// Where it is reached on the same machine.
    pub unix: Option<Address>,
    /// Which start of the node this is: later starts have larger numbers.
    pub incarnation: Incarnation,
    /// Its disks.
    pub tier: TierConfig,
    /// GPUs whose memory it lends.
    pub vram: Vec<VramConfig>,
    /// Where it gets that memory.
    pub gpus: Arc<dyn Gpus>,
    /// Time between heartbeats.
    pub heartbeat: Duration,
    /// Shortest time between two looks at what waits to be freed; nobody looks while nothing waits.
    pub tick: Duration,
    /// Threads that fetch copies from other nodes.
    pub copy_threads: usize,
    /// How other nodes are reached.
    pub links: PoolConfig,
    /// What callers of its data server must show.
    pub gate: Gate,
    /// The one tenant it is dedicated to; `None`: it holds values of all.
    pub tenant: Option<TenantId>,
    /// Users, besides our own and root, whose processes may map the segment.
    pub share_users: Vec<u32>,
    /// Who knows at once when this process is dead; `None`: its master finds out when the registration has lapsed.
    pub guard: Option<GuardStart>,
}

impl Default for NodeConfig {
    fn default() -> Self {
        Self {
            name: "node".into(),
            host: String::new(),
            zone: String::new(),
            segment_bytes: 256 << 20,
            slots: None,
            shared: true,
            huge_pages: false,
            memory_overcommit: false,
            prefault: false,
            tcp: None,
            unix: None,
            incarnation: Incarnation(1),
            tier: TierConfig::default(),
            vram: Vec::new(),
            gpus: Arc::new(OfSystem),
            heartbeat: Duration::from_millis(500),
            tick: Duration::from_millis(5),
            copy_threads: copy_threads(),
            links: PoolConfig::default(),
            gate: Gate::default(),
            tenant: None,
            share_users: Vec::new(),
            guard: None,
        }
    }
}

/// A quarter of the cores may fetch copies, two threads at least and eight at most: new pages are cleared
/// before they are filled, so one thread alone is slower than memory.
fn copy_threads() -> usize {
    (rt::cores() / 4).clamp(2, 8)
}

impl NodeConfig {
    /// The node's id.
    pub fn node(&self) -> NodeId {
        NodeId::named(&self.name)
    }

    /// The machine's id.
    pub fn host_id(&self) -> HostId {
        HostId(name_hash(&self.host))
    }

    /// The zone's id.
    pub fn zone_id(&self) -> ZoneId {
        ZoneId(name_hash(&self.zone))
    }

    /// A segment as wanted, if the system has that much memory. Where several tenants meet, ranges are zeroed
    /// between lives.
    pub(crate) fn create(&self, spec: SegmentSpec) -> Result<Arc<Segment>, NodeError> {
        let any = self.memory_overcommit;
        let claim =
            if any { Claim::new(spec.bytes) } else { Claim::checked(spec.bytes, spec.huge)? };
        let made = Segment::create_claimed(spec, self.wipes(), claim);
        made.map_err(|source| NodeError::Io { doing: "reserving memory for a segment", source })
    }

    /// The same for a segment that takes the place of another, which may live on for a moment: nobody is asked
    /// for more memory than before.
    pub(crate) fn create_anew(&self, spec: SegmentSpec) -> Result<Arc<Segment>, NodeError> {
        let made = Segment::create_claimed(spec, self.wipes(), Claim::new(spec.bytes));
        made.map_err(|source| NodeError::Io { doing: "reserving memory for a segment", source })
    }

    /// Whether ranges are zeroed between lives.
    pub(crate) fn wipes(&self) -> bool {
        self.gate.is_guarded() && self.tenant.is_none()
    }

    /// The memory that its disks load into.
    pub(crate) fn staging_spec(&self, incarnation: Incarnation) -> SegmentSpec {
        let bytes = (self.tier.staging_bytes / 4096 * 4096).max(STAGING_BYTES_MIN);
        let staging = self.spec_of(0, bytes, incarnation);
        SegmentSpec { segment: SegmentId::staging(self.node()), huge: false, ..staging }
    }

    /// What its first segment is to be in this incarnation.
    pub(crate) fn spec(&self, incarnation: Incarnation) -> SegmentSpec {
        let first = self.spec_of(0, self.segment_bytes, incarnation);
        SegmentSpec { slots: self.slots.unwrap_or(first.slots), ..first }
    }

    /// What one of its segments is to be.
    pub(crate) fn spec_of(&self, index: u16, bytes: u64, incarnation: Incarnation) -> SegmentSpec {
        let bytes = bytes / 4096 * 4096;
        SegmentSpec {
            segment: SegmentId::of(self.node(), index),
            incarnation,
            bytes,
            slots: u32::try_from(bytes / BYTES_PER_SLOT).unwrap_or(u32::MAX).max(1024),
            shared: self.shared,
            huge: self.huge_pages,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Was: half as many, fewer than Mooncake Store holds in the same memory.
    #[test]
    fn two_gib_hold_a_million_small_values() {
        let config = NodeConfig { segment_bytes: 2 << 30, ..NodeConfig::default() };
        assert_eq!(config.spec(Incarnation(1)).slots, 1 << 20);
    }

    /// Was: accepted without a word, and the kernel killed the node when its pages ran out.
    #[test]
    fn a_segment_larger_than_the_machine_is_refused_with_the_way_out() {
        let config = NodeConfig { shared: false, slots: Some(1024), ..NodeConfig::default() };
        let spec = |bytes| SegmentSpec { bytes, slots: 1024, ..config.spec(Incarnation(1)) };
        let Err(NodeError::Memory(refused)) = config.create(spec(1 << 46)) else {
            panic!("64 TiB fit into no machine");
        };
        let words = NodeError::Memory(refused).to_string();
        assert!(words.starts_with("a segment of 64.0 TiB"), "{words}");
        assert!(words.contains("raise the limit"), "{words}");
        assert!(words.contains("--memory-overcommit"), "{words}");
    }
}
