//! The master's mind: `(state, command, now) → outcome`, cut by verb.
//!
//! The catalog indexes objects, places and reserves ranges, grants leases, chooses victims and
//! watches puts and nodes. It never sees a byte of a value. What owners must do leaves through
//! [`Catalog::take_orders`]; what they did comes back through [`Catalog::notice`]. A range returns
//! to its allocator only when its owner has said `Freed`, naming the bumped generation (R1).
//!
//! ```text
//!  put.rs      put_start put_replan put_end put_revoke evict.rs    victims, watermarks
//!  reserve.rs  ranges for replicas, all or none         open.rs     open puts, their bounds and writers
//!  get.rs      locate  exist  list                     orders.rs   notices of owners, re-issued orders
//!  look.rs     look: found, not yet, not at all; holds
//!  reads.rs    reads that asked nobody, told later
//!  remove.rs   remove                                  members.rs  mount announce unmount heartbeat
//!  objects.rs  slab and sharded index                  tick.rs     watchdog, silent nodes, sweeps
//!  segments.rs the book of each segment                audit.rs    every byte accounted for
//!  life.rs     quotas, pins, groups, expiry, stripes that are missing
//!  asked.rs    copies and moves by name
//!  copy.rs     copies from owner to owner           drain.rs    segments that empty themselves
//!  repair.rs   copies that are missing                 hot.rs      copies for what many read
//!  rebuild.rs  whom a new leader waits for, and fences
//!  lapse.rs    keys of nodes whose serving lease has ended
//!  offload.rs  copies on disks                      promote.rs  back into memory
//!  trust.rs    disks that come back                 room.rs     ranges of memory, bytes of disks
//!  demote.rs   what VRAM lets go of
//!  chains.rs   which entry follows which, follow.rs    and how that changes
//! ```
//!
//! Cost: every call is O(1) in the number of objects; sweeps run in bounded slices from `tick`.

mod asked;
mod audit;
mod chains;
mod copy;
mod demote;
mod drain;
mod evict;
mod follow;
mod get;
mod hot;
mod lapse;
mod life;
mod look;
mod members;
mod objects;
mod offload;
mod open;
mod orders;
mod promote;
mod put;
mod reads;
mod rebuild;
mod remove;
mod repair;
mod reserve;
mod retell;
mod room;
mod segments;
mod tick;
mod trust;

pub use audit::AuditError;
pub use evict::InUse;
pub use follow::InBatch;
pub use get::{ListPage, ListSlice, Listed};
pub use life::Tenant;
pub use look::LookFor;
pub use members::{AllTold, Mounted, Opening};
pub use offload::{Offload, UnknownOffload};
pub use open::{OpenOf, Writer};
pub use put::{Ended, replacing};
pub use reads::PAUSE_MIN as REPORT_PAUSE_MIN;
pub use remove::{Removal, RemovedPage};
pub use segments::SegmentStat;
pub use trust::Trusted;

use crate::canary::{self, Canary};
use crate::copy::CopyOrder;
use crate::evict::PolicyKind;
use crate::ids::{LeaderEpoch, NodeId, ObjectId, PutToken};
use crate::lease;
use crate::place::{Placement, PlacementKind};
use crate::plan::Order;
use crate::time::Now;
use crate::token::TokenKey;
use objects::Objects;
use open::OpenPuts;
use segments::Segments;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The serving lease that a master alone grants: five heartbeats.
pub const SERVE_LEASE: Duration = Duration::from_millis(2500);

/// How a catalog behaves. Plain data; defaults in one place.
#[derive(Clone, Debug)]
pub struct Config {
    /// Eviction starts when a segment is fuller than this, in parts per thousand.
    pub high_permille: u32,
    /// It ends when the segment is no fuller than this.
    pub low_permille: u32,
    /// An open put older than this gives its key back.
    pub put_timeout: Duration,
    /// Puts that a tenant may have open; more are refused as Busy.
    pub open_puts_max: usize,
    /// What they may take of all memory, in parts per thousand, while other tenants have something there or
    /// a quota. One put always has room.
    pub open_permille: u32,
    /// A node not heard for this long, plus the guard, is gone.
    pub registration: Duration,
    /// The serving lease: an acknowledged heartbeat lets its node serve for this long. A successor has no longer
    /// to wait, and neither has a key whose owner is silent.
    pub serve_lease: Duration,
    /// A node not heard for this long gets no new objects.
    pub silent_after: Duration,
    /// How long a lookup that asked for it holds what it found: a remove without force is refused.
    pub lease_ttl: Duration,
    /// Orders that an owner has not settled are sent again after this long.
    pub order_retry: Duration,
    /// Which objects go first.
    pub policy: PolicyKind,
    /// Where objects go.
    pub placement: PlacementKind,
    /// Values longer than this are cut into stripes, where there are several segments.
    pub stripe_bytes: u64,
    /// Hard pins may hold this much of the pool, in parts per thousand.
    pub hard_permille: u32,
    /// Copies from owner to owner that may be under way at a time; 0: none are made.
    pub copies_max: usize,
    /// How many of them one node fetches …
    pub copies_per_node_max: u32,
    /// … and their bytes; one copy may be larger.
    pub copy_bytes_per_node_max: u64,
    /// Samples within about a second that make an object hot; of the reads that clients tell, one in 64 is one.
    pub hot_samples: u32,
    /// Copies that a hot object may have beyond those its put asked for; 0: none.
    pub hot_replicas_max: u8,
    /// Objects that may have such copies at a time.
    pub hot_objects_max: usize,
    /// When copies on disks are made, and whether victims move down rather than go.
    pub offload: Offload,
    /// They are made ahead of evictions in segments fuller than this, in parts per thousand.
    pub offload_permille: u32,
    /// Copies that one disk takes at a time, or one segment of memory from VRAM …
    pub offloads_per_disk_max: u32,
    /// … and their bytes; one copy may be larger.
    pub offload_bytes_per_disk_max: u64,
    /// Whether what is read from disks repeatedly comes back into memory.
    pub promote: bool,
    /// Reads of a value on disks, each within a minute of the one before, that bring it back; 1: the first.
    pub promote_reads: u32,
    /// Seeds placement.
    pub seed: u64,
    /// What put tokens are made from. A master draws it when it starts; here it is all zeros, for tests.
    pub token_key: TokenKey,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            high_permille: 950,
            low_permille: 900,
            put_timeout: Duration::from_secs(30),
            open_puts_max: 16_384,
            open_permille: 500,
            registration: Duration::from_secs(20),
            serve_lease: SERVE_LEASE,
            silent_after: Duration::from_secs(2),
            lease_ttl: Duration::from_secs(10),
            order_retry: Duration::from_secs(1),
            policy: PolicyKind::Lru,
            placement: PlacementKind::Random,
            stripe_bytes: 64 << 20,
            hard_permille: 500,
            copies_max: 1024,
            copies_per_node_max: 128,
            copy_bytes_per_node_max: 256 << 20,
            hot_samples: 64,
            hot_replicas_max: 2,
            hot_objects_max: 1024,
            offload: Offload::Watermark,
            offload_permille: 700,
            offloads_per_disk_max: 128,
            offload_bytes_per_disk_max: 64 << 20,
            promote: true,
            promote_reads: 2,
            seed: 0,
            token_key: TokenKey::default(),
        }
    }
}

/// How the catalog comes to power.
#[derive(Clone, Debug)]
pub enum Start {
    /// The cluster is new, which somebody said or proved: no node holds anything, there is nothing to wait
    /// for. A node that brings objects all the same starts over empty.
    New,
    /// There was an earlier leader, and nothing else is known of it. Any node may hold and serve objects, so
    /// until the serving leases that it granted have ended, an unknown key is not known to be absent.
    Unknown,
    /// After another leader, or after a restart. Leases may be out, and the named nodes may hold
    /// objects; until all of them have announced, or their serving leases have ended, an unknown key is
    /// not known to be absent.
    Takeover {
        /// Nodes that the last leader knew.
        expected: Vec<NodeId>,
        /// Segments that it believed: [`Catalog::trusted`]. What others hold must go.
        trusted: Vec<Trusted>,
    },
}

/// What the catalog counted since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Finished puts.
    pub puts: u64,
    /// Located keys.
    pub hits: u64,
    /// Keys asked for and not there.
    pub misses: u64,
    /// Removed objects.
    pub removed: u64,
    /// Evicted replicas.
    pub evicted: u64,
    /// Their bytes.
    pub evicted_bytes: u64,
    /// Victims that were pinned or leased.
    pub evict_skipped: u64,
    /// Puts refused with Busy.
    pub busy: u64,
    /// Objects removed because their time after the first get was over.
    pub expired: u64,
    /// Values that an upsert replaced.
    pub replaced: u64,
    /// Copies of open puts that were planned anew, because their owner failed the writer.
    pub replanned: u64,
    /// Open puts that the watchdog ended, or whose writer was gone.
    pub puts_expired: u64,
    /// `put_end`s and revokes with an old token.
    pub stale_tokens: u64,
    /// Nodes that were counted as gone.
    pub nodes_lost: u64,
    /// Announced objects that were told to go, because their key has another value.
    pub announced_dropped: u64,
    /// Replicas that an owner fetched from another one.
    pub copied: u64,
    /// Their bytes.
    pub copied_bytes: u64,
    /// Copies that were begun and came to nothing.
    pub copies_failed: u64,
    /// Located keys of which some part is on disks only.
    pub hits_disk: u64,
    /// Replicas that were copied to disks.
    pub offloaded: u64,
    /// Their bytes.
    pub offloaded_bytes: u64,
    /// Copies that a disk, or memory below VRAM, refused or did not finish in time.
    pub offloads_refused: u64,
    /// Evicted replicas that were the last ones and that nothing below took.
    pub evicted_unsaved: u64,
    /// Replicas that were copied from disks into memory because they were read.
    pub promoted: u64,
    /// Their bytes.
    pub promoted_bytes: u64,
    /// Replicas that owners evicted from their disks.
    pub disk_evicted: u64,
    /// Replicas on disks that their owners found damaged.
    pub disk_lost: u64,
    /// Disks that came back with what they held.
    pub disks_returned: u64,
    /// Records of disks that came back and were told to let them go.
    pub disk_dropped: u64,
    /// Values of disks that were away and are not true any more.
    pub ledger_struck: u64,
    /// Copies whose key was given up while their node was lapsed.
    pub lapsed_struck: u64,
    /// Values in memory whose node came back late and was told to drop them.
    pub late_dropped: u64,
    /// Replicas in memory whose owners found that their bytes are not those that were sealed.
    pub bad_replicas: u64,
    /// Located keys of which VRAM has all.
    pub hits_vram: u64,
    /// Replicas that moved from VRAM to memory of hosts, because VRAM needed the room.
    pub demoted: u64,
    /// Their bytes.
    pub demoted_bytes: u64,
}

/// The master's mind.
#[derive(Debug)]
pub struct Catalog {
    config: Config,
    epoch: LeaderEpoch,
    /// Counts puts; with the epoch it is the object id.
    sequence: u64,
    objects: Objects,
    segments: Segments,
    open: OpenPuts,
    nodes: BTreeMap<NodeId, members::Member>,
    tenants: life::Tenants,
    groups: life::Groups,
    /// Which entry follows which, where the policy asks for that.
    chains: Option<Box<chains::Chains>>,
    ends: life::Ends,
    /// Objects that are hidden and whose owners have not all confirmed it.
    removing: BTreeSet<ObjectId>,
    /// Open upserts by the hash of their key: one at a time.
    upserts: BTreeMap<u64, objects::EntryId>,
    copies: copy::Copies,
    repairs: repair::Repairs,
    hot: hot::Hot,
    reports: reads::ReportRate,
    offloads: offload::Offloads,
    promotions: promote::Promotions,
    ledger: trust::Ledger,
    placement: Box<dyn Placement>,
    /// Orders to hand out, in order.
    outbox: Vec<(NodeId, Order)>,
    /// Objects of earlier leaders count as leased until then (R9).
    grace_until: Now,
    /// While `Some`, an unknown key may still be announced.
    rebuild: Option<rebuild::Rebuild>,
    /// Of a leader that began as the first one: when serving leases of an earlier one, if there was one after
    /// all, have ended.
    first_until: Option<Now>,
    last_tick: Now,
    /// Counts announcements that began, so that one that was given up is not taken for the next.
    announcements: u64,
    /// Counts entries that only keep their key.
    placeholders: u64,
    /// Counts slots that were taken out of their objects without a word of their owner.
    detached: u64,
    /// Counts looks at orders of lapsed segments.
    lapse_looks: u64,
    counters: Counters,
}

impl Catalog {
    /// A catalog that leads under `epoch` from `now` on.
    pub fn new(config: Config, epoch: LeaderEpoch, start: Start, now: Now) -> Self {
        let mut ledger = trust::Ledger::default();
        // A lease that the last leader granted began before now.
        let fenced_at = now.plus(lease::guarded(config.serve_lease));
        let until = now.plus(lease::guarded(config.registration));
        let rebuild = match &start {
            Start::New => None,
            Start::Unknown if canary::on(Canary::NewnessAssumed) => None,
            Start::Unknown => Some(rebuild::Rebuild::of_anybody(fenced_at, until)),
            Start::Takeover { expected, trusted } => {
                let listed = !trusted.is_empty();
                rebuild::Rebuild::new(expected.clone(), listed, fenced_at, until)
            }
        };
        let first_until = matches!(start, Start::New).then_some(fenced_at);
        let grace_until =
            if matches!(start, Start::New) { now } else { now.plus(lease::takeover_grace()) };
        if let Start::Takeover { trusted, .. } = start {
            ledger = trust::Ledger::new(now, trusted);
        }
        let offloads = offload::Offloads::new(config.seed);
        let hot = hot::Hot::new(config.seed);
        let chains = || Box::new(chains::Chains::new());
        Self {
            chains: (config.policy == PolicyKind::Density).then(chains),
            placement: config.placement.build(config.seed),
            config,
            epoch,
            sequence: 0,
            objects: Objects::default(),
            segments: Segments::default(),
            open: OpenPuts::default(),
            nodes: BTreeMap::new(),
            tenants: life::Tenants::default(),
            groups: life::Groups::default(),
            ends: life::Ends::default(),
            removing: BTreeSet::new(),
            upserts: BTreeMap::new(),
            copies: copy::Copies::default(),
            repairs: repair::Repairs::default(),
            hot,
            reports: reads::ReportRate::default(),
            offloads,
            promotions: promote::Promotions::default(),
            ledger,
            outbox: Vec::new(),
            grace_until,
            rebuild,
            first_until,
            last_tick: now,
            announcements: 0,
            placeholders: 0,
            detached: 0,
            lapse_looks: 0,
            counters: Counters::default(),
        }
    }

    /// The epoch it leads under.
    pub fn epoch(&self) -> LeaderEpoch {
        self.epoch
    }

    /// A node has obeyed the leader `seen`. If that was not us, leases of that leader may be out, and
    /// our epoch must be above its own (a master without etcd leads at one more than its nodes
    /// report). No two leaders share an epoch, so an equal one is ours.
    pub fn follow(&mut self, now: Now, seen: LeaderEpoch) {
        if seen == LeaderEpoch(0) || seen == self.epoch {
            return;
        }
        if seen > self.epoch {
            // A leader that this one does not follow: its removals are not on the list.
            self.ledger.forget_list();
        }
        self.epoch = self.epoch.max(LeaderEpoch(seen.0.saturating_add(1)));
        self.grace_until = now.plus(lease::takeover_grace());
        if let Some(until) = self.first_until.take().filter(|until| now < *until)
            && self.rebuild.is_none()
        {
            // There was a leader before: nodes that are silent may serve by its leases.
            self.rebuild = Some(rebuild::Rebuild::of_strangers(until));
        }
    }

    /// A node mounts and reports the highest epoch it has obeyed. If that is this leader's own epoch, the index is being
    /// rebuilt, and the node has not mounted here before, another leader used the same epoch: the durable list that
    /// this leader started from is outdated. The leader discards the list and takes a later epoch.
    pub fn meet(&mut self, now: Now, node: NodeId, seen: LeaderEpoch) {
        if seen == self.epoch && self.rises_above(node, seen) {
            self.ledger.forget_list();
            self.epoch = LeaderEpoch(seen.0.saturating_add(1));
            self.grace_until = now.plus(lease::takeover_grace());
        }
        self.follow(now, seen);
        if let Some(rebuild) = &mut self.rebuild {
            rebuild.met.insert(node);
        }
    }

    /// Whether a node that has obeyed the leader `seen` makes this leader take a later epoch.
    pub fn rises_above(&self, node: NodeId, seen: LeaderEpoch) -> bool {
        let unknown =
            |rebuild: &rebuild::Rebuild| !rebuild.met.contains(&node) && !self.knows(node);
        seen > self.epoch || seen == self.epoch && self.rebuild.as_ref().is_some_and(unknown)
    }

    /// Orders for owners since the last call.
    pub fn take_orders(&mut self) -> Vec<(NodeId, Order)> {
        std::mem::take(&mut self.outbox)
    }

    /// Whether there are orders or copies to take.
    pub fn has_orders(&self) -> bool {
        !self.outbox.is_empty() || self.copies.has_orders()
    }

    /// Copies for owners to fetch, since the last call.
    pub fn take_copies(&mut self) -> Vec<(NodeId, CopyOrder)> {
        self.copies.take_orders()
    }

    /// What was counted.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Slots that were taken out of their objects without a word of their owner, since it leads: those of
    /// segments that left, and those that are told again and have changed. Each costs the same under the lock,
    /// so this bounds what one call may do.
    pub fn detached(&self) -> u64 {
        self.detached
    }

    /// How many orders to lapsed segments were examined since this leader began. Each costs the same under the lock, so
    /// the difference between two ticks bounds the work of one.
    pub fn lapse_looks(&self) -> u64 {
        self.lapse_looks
    }

    /// Objects in the index, open puts included.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Whether nothing is indexed.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Replicas that are pinned softly now.
    pub fn soft_pinned(&self) -> usize {
        self.segments.iter().map(|(_, book)| book.soft.len()).sum()
    }

    /// Memory of index and books, keys excluded.
    pub fn heap_bytes(&self) -> usize {
        let chains = self.chains.as_ref().map_or(0, |chains| chains.heap_bytes());
        self.objects.heap_bytes() + self.segments.heap_bytes() + self.ledger.heap_bytes() + chains
    }

    /// Whether it does not know which nodes there are, and waits for any. What it knows until then is no
    /// state for the next leader: that one must not know either.
    pub fn waits_for_anybody(&self) -> bool {
        self.rebuild.as_ref().is_some_and(rebuild::Rebuild::of_any)
    }

    /// Whether some expected node has not announced yet.
    pub fn rebuilding(&self) -> bool {
        self.rebuild.is_some()
    }

    /// Mints the token of a put.
    fn token(&self, object: ObjectId) -> PutToken {
        self.config.token_key.token(object)
    }
}
