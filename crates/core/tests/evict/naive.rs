//! The policies once more, so naive that they can be checked by eye: vectors, searched from end to end.

use mooncrate_core::Slot;
use mooncrate_core::evict::{EvictPolicy, PolicyKind, RANKS, Ranked, WALK_MAX, Worth};
use std::fmt::Debug;

/// What the oracles can do; the meaning is that of `EvictPolicy`.
pub(crate) trait Naive: Debug {
    fn insert(&mut self, slot: Slot, worth: Option<Worth>);
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
    pub(crate) const ALL: [Self; 5] = [
        Self::Kind(PolicyKind::Fifo),
        Self::Kind(PolicyKind::Lru),
        Self::Kind(PolicyKind::Sieve),
        Self::Kind(PolicyKind::S3Fifo),
        Self::Ranked,
    ];

    pub(crate) fn build(self) -> Box<dyn EvictPolicy> {
        match self {
            Self::Kind(kind) => kind.build(),
            Self::Ranked => Box::new(Ranked::new()),
        }
    }

    pub(crate) fn naive(self) -> Box<dyn Naive> {
        match self {
            Self::Kind(PolicyKind::S3Fifo) => Box::new(TwoQueues::default()),
            Self::Kind(kind) => Box::new(OneQueue { kind, queue: Vec::new(), hand: 0 }),
            Self::Ranked => Box::new(Sorted::default()),
        }
    }
}

/// Slots from the oldest to the youngest, whether each was read, and SIEVE's hand as an index.
#[derive(Debug)]
struct OneQueue {
    kind: PolicyKind,
    queue: Vec<(Slot, bool)>,
    hand: usize,
}

impl OneQueue {
    fn find(&self, slot: Slot) -> Option<usize> {
        self.queue.iter().position(|(other, _)| *other == slot)
    }
}

impl Naive for OneQueue {
    fn insert(&mut self, slot: Slot, _worth: Option<Worth>) {
        if self.hand == self.queue.len() {
            // The hand fell off the young end; it starts over at the oldest, not at the newcomer.
            self.hand = 0;
        }
        self.queue.push((slot, false));
    }

    fn touch(&mut self, slot: Slot) {
        let Some(at) = self.find(slot) else { return };
        match self.kind {
            PolicyKind::Lru => {
                let entry = self.queue.remove(at);
                self.queue.push(entry);
            }
            PolicyKind::Sieve => self.queue[at].1 = true,
            PolicyKind::Fifo | PolicyKind::S3Fifo | PolicyKind::Density => {}
        }
    }

    fn remove(&mut self, slot: Slot) -> bool {
        let Some(at) = self.find(slot) else { return false };
        self.queue.remove(at);
        if self.hand > at {
            self.hand -= 1;
        }
        true
    }

    fn next(&mut self) -> Option<Slot> {
        if self.kind != PolicyKind::Sieve || self.queue.is_empty() {
            return self.queue.first().map(|(slot, _)| *slot);
        }
        let mut at = self.hand % self.queue.len();
        for _ in 0..WALK_MAX {
            if !self.queue[at].1 {
                break;
            }
            self.queue[at].1 = false;
            at = (at + 1) % self.queue.len();
        }
        self.hand = at;
        Some(self.queue[at].0)
    }

    fn slots(&self) -> Vec<Slot> {
        self.queue.iter().map(|(slot, _)| *slot).collect()
    }
}

/// A candidate of S3-FIFO.
#[derive(Clone, Debug)]
struct Guest {
    slot: Slot,
    key: Option<u64>,
    reads: usize,
}

/// S3-FIFO: two queues from the oldest to the youngest, and the key of every eviction ever. A key that came
/// back is crossed out.
#[derive(Debug, Default)]
struct TwoQueues {
    small: Vec<Guest>,
    main: Vec<Guest>,
    evicted: Vec<Option<u64>>,
    peak: usize,
    named: Option<Slot>,
}

impl TwoQueues {
    fn small_gives(&self) -> bool {
        self.main.is_empty() || self.small.len() * 10 >= self.small.len() + self.main.len()
    }
}

impl Naive for TwoQueues {
    fn insert(&mut self, slot: Slot, worth: Option<Worth>) {
        let key = worth.map(|worth| worth.key);
        let guest = Guest { slot, key, reads: 0 };
        let window = self.peak - self.peak / 10;
        let recent = self.evicted.iter_mut().rev().take(window);
        let ghost = recent.into_iter().find(|ghost| key.is_some() && **ghost == key);
        match ghost {
            Some(ghost) => {
                *ghost = None;
                self.main.push(guest);
            }
            None => self.small.push(guest),
        }
        self.peak = self.peak.max(self.small.len() + self.main.len());
    }

    fn touch(&mut self, slot: Slot) {
        let mut all = self.small.iter_mut().chain(&mut self.main);
        if let Some(guest) = all.find(|guest| guest.slot == slot) {
            guest.reads = (guest.reads + 1).min(3);
        }
    }

    fn remove(&mut self, slot: Slot) -> bool {
        if let Some(at) = self.main.iter().position(|guest| guest.slot == slot) {
            self.main.remove(at);
        } else if let Some(at) = self.small.iter().position(|guest| guest.slot == slot) {
            let guest = self.small.remove(at);
            if self.named == Some(slot) && guest.key.is_some() {
                // Two slots may have held the same key; it is remembered once.
                self.evicted
                    .iter_mut()
                    .filter(|old| **old == guest.key)
                    .for_each(|old| *old = None);
                self.evicted.push(guest.key);
            }
        } else {
            return false;
        }
        if self.named == Some(slot) {
            self.named = None;
        }
        true
    }

    fn next(&mut self) -> Option<Slot> {
        for _ in 0..WALK_MAX {
            if self.small_gives() {
                if self.small.first().is_none_or(|guest| guest.reads < 2) {
                    break;
                }
                let guest = self.small.remove(0);
                self.main.push(Guest { reads: 0, ..guest });
            } else {
                if self.main[0].reads == 0 {
                    break;
                }
                let guest = self.main.remove(0);
                self.main.push(Guest { reads: guest.reads - 1, ..guest });
            }
        }
        let queue = if self.small_gives() { &self.small } else { &self.main };
        self.named = queue.first().map(|guest| guest.slot);
        self.named
    }

    fn slots(&self) -> Vec<Slot> {
        self.small.iter().chain(&self.main).map(|guest| guest.slot).collect()
    }
}

/// Ranks: every slot with its rank and the time of its last use; the smallest pair goes.
#[derive(Debug, Default)]
struct Sorted {
    slots: Vec<(u32, u64, Slot)>,
    now: u64,
}

impl Naive for Sorted {
    fn insert(&mut self, slot: Slot, worth: Option<Worth>) {
        self.now += 1;
        let rank = worth.map_or(0, |worth| worth.rank).min(RANKS - 1);
        self.slots.push((rank, self.now, slot));
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
