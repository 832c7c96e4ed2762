//! The policies once more, so naive that they can be checked by eye: vectors, searched from end to end.

use mooncrate_core::Slot;
use mooncrate_core::evict::{EvictPolicy, PolicyKind, RANKS, Ranked};
use std::fmt::Debug;

/// What the oracles can do; the meaning is that of `EvictPolicy`.
pub(crate) trait Naive: Debug {
    fn insert(&mut self, slot: Slot, rank: u32);
    fn touch(&mut self, slot: Slot);
    fn remove(&mut self, slot: Slot) -> bool;
    fn next(&mut self) -> Option<Slot>;
    fn slots(&self) -> Vec<Slot>;
}

/// A policy to be judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judged {
    Kind(PolicyKind),
    Ranked,
}

impl Judged {
    /// Density decides by what its caller knows; it is judged elsewhere.
    pub(crate) const ALL: [Self; 3] =
        [Self::Kind(PolicyKind::Fifo), Self::Kind(PolicyKind::Lru), Self::Ranked];

    pub(crate) fn build(self) -> Box<dyn EvictPolicy> {
        match self {
            Self::Kind(kind) => kind.build(),
            Self::Ranked => Box::new(Ranked::new()),
        }
    }

    pub(crate) fn naive(self) -> Box<dyn Naive> {
        match self {
            Self::Kind(kind) => {
                Box::new(OneQueue { moves: kind == PolicyKind::Lru, queue: Vec::new() })
            }
            Self::Ranked => Box::new(Sorted::default()),
        }
    }
}

/// Slots from the oldest to the youngest.
#[derive(Debug)]
struct OneQueue {
    /// A read makes a slot the youngest.
    moves: bool,
    queue: Vec<Slot>,
}

impl Naive for OneQueue {
    fn insert(&mut self, slot: Slot, _rank: u32) {
        self.queue.push(slot);
    }

    fn touch(&mut self, slot: Slot) {
        if self.moves && self.remove(slot) {
            self.queue.push(slot);
        }
    }

    fn remove(&mut self, slot: Slot) -> bool {
        let before = self.queue.len();
        self.queue.retain(|other| *other != slot);
        self.queue.len() < before
    }

    fn next(&mut self) -> Option<Slot> {
        self.queue.first().copied()
    }

    fn slots(&self) -> Vec<Slot> {
        self.queue.clone()
    }
}

/// Ranks: every slot with its rank and the time of its last use; the smallest pair goes.
#[derive(Debug, Default)]
struct Sorted {
    slots: Vec<(u32, u64, Slot)>,
    now: u64,
}

impl Naive for Sorted {
    fn insert(&mut self, slot: Slot, rank: u32) {
        self.now += 1;
        self.slots.push((rank.min(RANKS - 1), self.now, slot));
    }

    fn touch(&mut self, slot: Slot) {
        self.now += 1;
        if let Some(entry) = self.slots.iter_mut().find(|entry| entry.2 == slot) {
            entry.1 = self.now;
        }
    }

    fn remove(&mut self, slot: Slot) -> bool {
        let before = self.slots.len();
        self.slots.retain(|entry| entry.2 != slot);
        self.slots.len() < before
    }

    fn next(&mut self) -> Option<Slot> {
        self.slots.iter().min().map(|entry| entry.2)
    }

    fn slots(&self) -> Vec<Slot> {
        self.slots.iter().map(|entry| entry.2).collect()
    }
}
