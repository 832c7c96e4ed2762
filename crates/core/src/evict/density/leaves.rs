//! The candidates of a list: cached blocks without a cached block behind them. One of little worth is found without
//! a list in the order of worth: among some that are chosen at random, and the worst ones that were seen before.
//!
//! Blocks with a cached block behind them may be told as well. They are *covered*: no candidates, unless no leaf can go.

use super::mix;
use crate::chunked::Chunked;
use crate::evict::WALK_MAX;
use crate::ids::Slot;

/// Rows that an eviction looks at, of so many leaves each: leaves of a row share a cache line.
const ROWS: usize = 2;
const ROW: usize = 4;
/// The worst leaves of earlier evictions that are kept for the next one.
pub(super) const REMEMBERED: usize = 16;

/// In `places`: not among the leaves.
const COVERED: u32 = 1 << 31;
/// No slot.
const NONE: Slot = Slot(u32::MAX);

/// Leaves in no order, and how one is chosen.
#[derive(Debug)]
pub struct Leaves {
    ends: Vec<Slot>,
    covered: Vec<Slot>,
    /// By slot: its place among the leaves, counted from 1; 0 for none. With [`COVERED`]: among those. In chunks: it
    /// has an element for each slot of the cache, and grows under the lock of its caller.
    places: Chunked<u32>,
    random: u64,
    /// Where the search among the covered ones goes on.
    hand: usize,
    /// The worst first. Each may have gone, or have been used, meanwhile.
    worst: [Slot; REMEMBERED + 1],
    remembered: usize,
    /// The walk ahead of the evictions has the leaves before this place to go. From the end to the begin: what takes
    /// the place of a leaf that goes was met already, so none is missed.
    ahead: usize,
    /// Those of the worst leaves that this round of the walk has met.
    met: [Slot; REMEMBERED + 1],
}

/// Candidates in the order of their worth.
struct Ranking {
    found: [(u64, Slot); REMEMBERED + 1],
    len: usize,
}

impl Ranking {
    fn offer(&mut self, slot: Slot, worth: Option<u64>) {
        let Some(worth) = worth else { return };
        let found = &mut self.found[..(self.len + 1).min(REMEMBERED + 1)];
        if found[..self.len.min(found.len())].iter().any(|(_, other)| *other == slot) {
            return;
        }
        let at = found[..self.len].partition_point(|(other, _)| *other <= worth);
        if at == found.len() {
            return;
        }
        found.copy_within(at..found.len() - 1, at + 1);
        found[at] = (worth, slot);
        self.len = found.len();
    }
}

impl Leaves {
    /// None yet. The same seed gives the same choices.
    pub const fn new(seed: u64) -> Self {
        Self {
            ends: Vec::new(),
            covered: Vec::new(),
            places: Chunked::new(),
            random: seed,
            hand: 0,
            worst: [Slot(0); REMEMBERED + 1],
            remembered: 0,
            ahead: usize::MAX,
            met: [NONE; REMEMBERED + 1],
        }
    }

    /// The slot is a leaf from now on. Panics if it was there already.
    pub fn insert(&mut self, slot: Slot) {
        self.add(slot, false);
    }

    /// The slot is there, but not a leaf: a cached block is behind it. Panics if it was there already.
    pub fn insert_covered(&mut self, slot: Slot) {
        self.add(slot, true);
    }

    fn add(&mut self, slot: Slot, covered: bool) {
        assert!(slot < NONE, "{slot:?} has no place");
        self.places.grow(slot.0 + 1, &0);
        assert_eq!(self.places[slot.0], 0, "{slot:?} can be evicted already");
        let (list, mark) = self.list(covered);
        list.push(slot);
        self.places[slot.0] = mark | list.len() as u32;
    }

    /// The same for a slot that became a leaf because the last block behind it was evicted. It is as old as that one,
    /// and likely to be next.
    pub fn uncover(&mut self, slot: Slot) {
        self.remove(slot);
        self.insert(slot);
        let place = self.remembered.min(REMEMBERED);
        self.worst[place] = slot;
        self.remembered = place + 1;
    }

    /// The slot is no leaf any more, and not covered either; false if it was neither.
    pub fn remove(&mut self, slot: Slot) -> bool {
        let Some(place) = self.places.get_mut(slot.0) else { return false };
        let place = std::mem::take(place);
        let Some(at) = (place & !COVERED).checked_sub(1) else { return false };
        let (list, mark) = self.list(place & COVERED != 0);
        list.swap_remove(at as usize);
        if let Some(moved) = list.get(at as usize).copied() {
            self.places[moved.0] = mark | (at + 1);
        }
        true
    }

    fn list(&mut self, covered: bool) -> (&mut Vec<Slot>, u32) {
        if covered { (&mut self.covered, COVERED) } else { (&mut self.ends, 0) }
    }

    /// Whether the slot is a leaf.
    pub fn contains(&self, slot: Slot) -> bool {
        self.places.get(slot.0).is_some_and(|place| (1..COVERED).contains(place))
    }

    /// Whether the slot is there and covered.
    pub fn is_covered(&self, slot: Slot) -> bool {
        self.places.get(slot.0).is_some_and(|place| *place >= COVERED)
    }

    /// All that are there.
    pub const fn all(&self) -> usize {
        self.ends.len() + self.covered.len()
    }

    /// For when no leaf can go: the next covered slot that can, of so many that are looked at. Each call goes on where
    /// the last one stopped.
    pub fn next_covered(&mut self, worth: impl Fn(Slot) -> Option<u64>) -> Option<Slot> {
        for _ in 0..self.covered.len().min(WALK_MAX) {
            self.hand = if self.hand < self.covered.len() { self.hand } else { 0 };
            let slot = self.covered[self.hand];
            if worth(slot).is_some() {
                return Some(slot);
            }
            self.hand += 1;
        }
        None
    }

    /// The leaf to evict. It stays in place. `worth` answers `None` for one that cannot go. `None`: no leaf of those
    /// that were looked at can be evicted.
    pub fn next(&mut self, worth: impl Fn(Slot) -> Option<u64>) -> Option<Slot> {
        let mut ranking = Ranking { found: [(0, Slot(0)); REMEMBERED + 1], len: 0 };
        for slot in self.worst[..self.remembered].iter().filter(|slot| self.contains(**slot)) {
            ranking.offer(*slot, worth(*slot));
        }
        let rows = self.ends.len().div_ceil(ROW);
        for _ in 0..ROWS {
            self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let first = below(mix(self.random), rows) * ROW;
            for slot in self.ends.iter().skip(first).take(ROW) {
                ranking.offer(*slot, worth(*slot));
            }
        }
        if ranking.len == 0 {
            // All of these are in use. The leaves behind them come next, up to a bound.
            let from = below(mix(self.random), rows) * ROW;
            let round = self.ends[from.min(self.ends.len())..].iter().chain(&self.ends);
            return round.take(WALK_MAX).copied().find(|slot| worth(*slot).is_some());
        }
        // The chosen one as well: it may stay.
        self.worst = ranking.found.map(|(_, slot)| slot);
        self.remembered = ranking.len;
        Some(self.worst[0])
    }

    /// One step of a walk over all leaves, over and over; `None` at its end. It meets the worst leaves that are
    /// remembered first, also those that evictions remember while it goes on. The others follow in no order: their
    /// worth is known only when an eviction looks at them.
    pub fn ahead(&mut self) -> Option<Slot> {
        let worst = &self.worst[..self.remembered];
        let new = worst.iter().find(|slot| self.contains(**slot) && !self.met.contains(slot));
        if let Some(slot) = new.copied() {
            // There is such a place: `met` has room for all of the worst, and this one is not there.
            let old = self.met.iter().position(|met| !worst.contains(met));
            self.met[old.unwrap_or(0)] = slot;
            return Some(slot);
        }
        while let Some(at) = self.ahead.min(self.ends.len()).checked_sub(1) {
            self.ahead = at;
            if !self.met.contains(&self.ends[at]) {
                return Some(self.ends[at]);
            }
        }
        self.ahead = usize::MAX;
        self.met = [NONE; REMEMBERED + 1];
        None
    }

    /// How many leaves there are.
    pub const fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is no leaf.
    pub const fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Bytes of memory.
    pub fn heap_bytes(&self) -> usize {
        (self.ends.capacity() + self.covered.capacity()) * size_of::<Slot>()
            + self.places.heap_bytes()
    }
}

/// A number below `end` from a random one; 0 if there is none.
fn below(random: u64, end: usize) -> usize {
    ((u128::from(random) * end as u128) >> 64) as usize
}
