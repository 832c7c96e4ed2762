//! Finds a block of little worth without a list in the order of worth: among some blocks that are chosen at random,
//! and the worst ones that were seen before.

use super::mix;
use crate::evict::WALK_MAX;
use crate::ids::Slot;

/// Rows that an eviction looks at, of so many leaves each: leaves of a row share a cache line.
const ROWS: usize = 2;
const ROW: usize = 4;
/// The worst leaves of earlier evictions that are kept for the next one.
const REMEMBERED: usize = 16;

/// Chooses which leaf is evicted.
#[derive(Debug)]
pub struct LeafSampler {
    random: u64,
    /// The worst first. Each may have been evicted, or used, meanwhile.
    worst: [Slot; REMEMBERED],
    len: usize,
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

impl LeafSampler {
    /// The same seed gives the same choices.
    pub const fn new(seed: u64) -> Self {
        Self { random: seed, worst: [Slot(0); REMEMBERED], len: 0 }
    }

    /// A block became a leaf because the last block behind it was evicted. It is as old, and likely to be next.
    pub fn remember(&mut self, slot: Slot) {
        let place = self.len.min(REMEMBERED - 1);
        self.worst[place] = slot;
        self.len = place + 1;
    }

    /// The leaf to evict. `worth` answers `None` for a block that is no leaf, not resident, or in use. `None`: no
    /// leaf of those that were looked at can be evicted.
    pub fn victim(&mut self, leaves: &[Slot], worth: impl Fn(Slot) -> Option<u64>) -> Option<Slot> {
        let mut ranking = Ranking { found: [(0, Slot(0)); REMEMBERED + 1], len: 0 };
        for slot in &self.worst[..self.len] {
            ranking.offer(*slot, worth(*slot));
        }
        let rows = leaves.len().div_ceil(ROW);
        for _ in 0..ROWS {
            self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
            for slot in leaves.iter().skip(below(mix(self.random), rows) * ROW).take(ROW) {
                ranking.offer(*slot, worth(*slot));
            }
        }
        if ranking.len == 0 {
            // All of these are in use. The leaves behind them come next, up to a bound.
            let from = below(mix(self.random), rows) * ROW;
            let round = leaves[from.min(leaves.len())..].iter().chain(leaves);
            return round.take(WALK_MAX).copied().find(|slot| worth(*slot).is_some());
        }
        self.len = ranking.len - 1;
        for (place, (_, slot)) in self.worst.iter_mut().zip(&ranking.found[1..ranking.len]) {
            *place = *slot;
        }
        Some(ranking.found[0].1)
    }
}

/// A number below `end` from a random one; 0 if there is none.
fn below(random: u64, end: usize) -> usize {
    ((u128::from(random) * end as u128) >> 64) as usize
}
