//! Eviction policies: which object of a segment, or which block of a paged cache, goes next when room
//! is needed.
//!
//! One policy per segment, keyed by header slot. Slots are dense, so the order is a list whose
//! links lie in an array by slot: no map, no allocation per object. Every call is O(1); a search among leaves in use is
//! bounded by [`WALK_MAX`].
//!
//! | policy | evicted first | bytes per slot |
//! |---|---|---|
//! | FIFO | the oldest | 8 |
//! | LRU | the one not read for the longest time | 8 |
//! | [`Ranked`] | the lowest rank, least recently used first | 9 |
//! | density | one of little worth without a successor in the cache | 8, and 16 for what the caller knows |
//!
//! Density needs to know which block follows which, and how each was used. Both belong to a block and not to a slot,
//! so the caller keeps them: [`Density`] learns from the uses what a block is worth, and [`Leaves`] find one of little
//! worth among the slots that are not covered by a successor ([`EvictPolicy::next_by`], [`EvictPolicy::cover`]).
//!
//! A policy knows only candidates. Whether one is pinned or leased, the caller finds out when it
//! has the victim in hand; it then `insert`s it again, which makes it the youngest: what is in use
//! now is a poor candidate for some time.

mod density;
mod fifo;
mod list;
mod lru;
mod ranked;

pub use density::{AGE_END, Density, Learned, Leaves, Usage, Use, requests_per_step};
pub use ranked::{BadScore, RANKS, Ranked, rank_of};

use crate::ids::Slot;
use std::fmt;
use std::str::FromStr;

/// Slots that one call of `next` passes over at most: a whole turn over ten million slots would hold the master's lock
/// far too long.
pub const WALK_MAX: usize = 256;

/// Seeds the choice of leaves: the same calls give the same evictions.
const LEAVES_SEED: u64 = 1;

/// The order in which the slots of one segment are evicted.
pub trait EvictPolicy: Send + fmt::Debug {
    /// The slot may be evicted from now on. Panics if it could be already.
    fn insert(&mut self, slot: Slot);

    /// The same, with a rank. Only [`Ranked`] looks at it.
    fn insert_as(&mut self, slot: Slot, rank: u32) {
        let _ = rank;
        self.insert(slot);
    }

    /// The slot was read. Nothing happens if it is absent.
    fn touch(&mut self, slot: Slot);

    /// The same, with the rank that the slot has from now on. Only [`Ranked`] looks at it.
    fn touch_as(&mut self, slot: Slot, rank: u32) {
        let _ = rank;
        self.touch(slot);
    }

    /// The slot may no longer be evicted; false if it was absent.
    fn remove(&mut self, slot: Slot) -> bool;

    /// The next candidate. It stays in place: the caller `remove`s it when it goes, and asks again
    /// later if it has to wait for something.
    fn next(&mut self) -> Option<Slot>;

    /// The same for a policy that has to be told what a slot is worth at this moment; the others know it, and do not
    /// ask. `None` from `worth`: the slot cannot go now.
    fn next_by(&mut self, worth: &dyn Fn(Slot) -> Option<u64>) -> Option<Slot> {
        let _ = worth;
        self.next()
    }

    /// From now on something in the cache follows what the slot holds, which is of no use without it and should go
    /// first; or nothing does any more. Nothing happens if the slot is absent. Most do not care.
    fn cover(&mut self, slot: Slot, covered: bool) {
        let _ = (slot, covered);
    }

    /// Whether a candidate was said to be covered; `None` if the slot is absent, or the policy does not care.
    fn covers(&self, slot: Slot) -> Option<bool> {
        let _ = slot;
        None
    }

    /// Takes the next candidate out. The caller evicts it, or `insert`s it again if it is in use.
    fn victim(&mut self) -> Option<Slot> {
        let slot = self.next()?;
        self.remove(slot);
        Some(slot)
    }

    /// Takes several candidates out, as [`EvictPolicy::victim`] does; how many there were. Who evicts many can
    /// have the memory of all of them fetched at once.
    fn victims(&mut self, out: &mut [Slot]) -> usize {
        let mut taken = 0;
        while taken < out.len() {
            let Some(slot) = self.victim() else { break };
            out[taken] = slot;
            taken += 1;
        }
        taken
    }

    /// One step of a walk ahead of the evictions, over and over: a candidate. `None`: the walk is at its end, and the
    /// next step starts over. The walk keeps its place while slots come and go. It meets candidates in the order of the
    /// evictions; [`Leaves`] have no such order, and meet the worst ones that they remember before all others.
    fn ahead(&mut self) -> Option<Slot>;

    /// Number of candidates.
    fn len(&self) -> usize;

    /// Whether nothing can be evicted.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory that the book-keeping takes.
    fn heap_bytes(&self) -> usize;
}

/// The policies of a store. A paged cache has more of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyKind {
    /// Oldest first, as Mooncake Store evicts.
    Fifo,
    /// The one that was not read for the longest time first.
    Lru,
    /// What has no successor in the cache and is worth the least per byte, as learned from the load.
    Density,
}

impl PolicyKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Fifo, Self::Lru, Self::Density];

    /// Its name in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fifo => "fifo",
            Self::Lru => "lru",
            Self::Density => "density",
        }
    }

    /// A policy of this kind without candidates.
    pub fn build(self) -> Box<dyn EvictPolicy> {
        match self {
            Self::Fifo => Box::new(fifo::Fifo::new()),
            Self::Lru => Box::new(lru::Lru::new()),
            Self::Density => Box::new(Leaves::new(LEAVES_SEED)),
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// No policy has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no eviction policy {0:?}; choose density, lru or fifo")]
pub struct UnknownPolicy(pub String);

impl FromStr for PolicyKind {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| UnknownPolicy(name.to_owned()))
    }
}
