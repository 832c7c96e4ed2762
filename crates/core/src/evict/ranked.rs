//! Ranks: the slots of the lowest rank go first, and within a rank the one that was not read for the
//! longest time.
//!
//! There are 64 ranks with a list each, and one word says which lists have members: the lowest is found by
//! counting zeros. A rank is given with the slot and stays until the slot is read with another one. What the rank means is the caller's choice: a priority as it is, or a score through
//! [`rank_of`].

use super::EvictPolicy;
use super::list::{Links, List, NONE, some};
use crate::chunked::Chunked;
use crate::ids::Slot;

/// Number of ranks: bits of the word that says which of them have candidates.
pub const RANKS: u32 = u64::BITS;

/// [`Ranked`]'s scores: the binary exponent and the highest bit of the fraction of the smallest score
/// above the lowest rank, 2^-16. Two ranks per power of two then end at 2^16.
const LOWEST: u32 = (127 - 16) << 1;

/// Not a score.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("{0} is no importance score; give a finite number that is not negative")]
pub struct BadScore(pub f32);

/// The rank of a score, in buckets that grow with it: two per power of two, from 2^-16 to 2^16. Smaller
/// scores (and zero) have the lowest rank, larger ones the highest. A higher score never has a lower rank.
pub fn rank_of(score: f32) -> Result<u32, BadScore> {
    if !score.is_finite() || score < 0.0 {
        return Err(BadScore(score));
    }
    // The bits of floats that are not negative are in the order of the floats; abs makes -0 one of them.
    let power = score.abs().to_bits() >> (f32::MANTISSA_DIGITS - 2);
    Ok(power.saturating_sub(LOWEST).min(RANKS - 1))
}

/// Lowest rank first, then least recently used.
#[derive(Debug)]
pub struct Ranked {
    links: Links,
    lists: Box<[List]>,
    /// Bit `r`: rank `r` has candidates.
    present: u64,
    /// The rank of each slot.
    ranks: Chunked<u8>,
    len: usize,
    /// The walk ahead: whether it has begun, in which rank it is, and which slot it meets next.
    walking: bool,
    walks: u32,
    ahead: u32,
}

impl Ranked {
    /// A policy without candidates.
    pub fn new() -> Self {
        Self {
            links: Links::new(),
            lists: vec![List::EMPTY; RANKS as usize].into_boxed_slice(),
            present: 0,
            ranks: Chunked::new(),
            len: 0,
            walking: false,
            walks: 0,
            ahead: NONE,
        }
    }

    /// The lowest rank with candidates that is at least `rank`.
    fn rank_from(&self, rank: u32) -> Option<u32> {
        let above = self.present & u64::MAX.checked_shl(rank)?;
        (above != 0).then(|| above.trailing_zeros())
    }
}

impl Default for Ranked {
    fn default() -> Self {
        Self::new()
    }
}

impl EvictPolicy for Ranked {
    /// With the lowest rank.
    fn insert(&mut self, slot: Slot) {
        self.insert_as(slot, 0);
    }

    /// Ranks above the highest are the highest.
    fn insert_as(&mut self, slot: Slot, rank: u32) {
        let (Slot(slot), rank) = (slot, rank.min(RANKS - 1));
        self.lists[rank as usize].push(&mut self.links, slot);
        self.present |= 1 << rank;
        self.ranks.grow(slot + 1, &0);
        self.ranks[slot] = rank as u8;
        self.len += 1;
    }

    fn touch(&mut self, slot: Slot) {
        let Slot(slot) = slot;
        if !self.links.contains(slot) {
            return;
        }
        let list = &mut self.lists[usize::from(self.ranks[slot])];
        if let Some(link) = list.renew(&mut self.links, slot)
            && self.ahead == slot
        {
            self.ahead = link.younger;
        }
    }

    /// A slot whose rank has changed becomes the youngest of its new rank.
    fn touch_as(&mut self, slot: Slot, rank: u32) {
        let rank = rank.min(RANKS - 1);
        if !self.links.contains(slot.0) || u32::from(self.ranks[slot.0]) == rank {
            return self.touch(slot);
        }
        self.remove(slot);
        self.insert_as(slot, rank);
    }

    fn remove(&mut self, slot: Slot) -> bool {
        let Slot(slot) = slot;
        if !self.links.contains(slot) {
            return false;
        }
        let rank = self.ranks[slot];
        let list = &mut self.lists[usize::from(rank)];
        let link = list.take(&mut self.links, slot).expect("the slot is in a list");
        if list.len == 0 {
            self.present &= !(1 << rank);
        }
        if self.ahead == slot {
            self.ahead = link.younger;
        }
        self.len -= 1;
        true
    }

    fn next(&mut self) -> Option<Slot> {
        let rank = self.rank_from(0)?;
        some(self.lists[rank as usize].oldest)
    }

    fn ahead(&mut self) -> Option<Slot> {
        let mut from = self.walks + 1;
        if !std::mem::replace(&mut self.walking, true) {
            (from, self.ahead) = (0, NONE);
        }
        if self.ahead == NONE {
            let Some(rank) = self.rank_from(from) else {
                self.walking = false;
                return None;
            };
            (self.walks, self.ahead) = (rank, self.lists[rank as usize].oldest);
        }
        let slot = self.ahead;
        self.ahead = self.links.younger(slot);
        Some(Slot(slot))
    }

    fn len(&self) -> usize {
        self.len
    }

    fn heap_bytes(&self) -> usize {
        self.links.heap_bytes() + self.ranks.heap_bytes() + size_of_val(&*self.lists)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_score_that_cannot_be_compared_is_refused() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -1.0, -f32::MIN_POSITIVE] {
            let error = rank_of(bad).unwrap_err();
            assert!(error.to_string().contains("finite number that is not negative"), "{error}");
        }
        assert_eq!(rank_of(-0.0), Ok(0), "minus zero is zero");
    }

    #[test]
    fn ranks_are_half_powers_of_two() {
        let smallest = 2f32.powi(-16);
        for (score, rank) in [
            (0.0, 0),
            (f32::MIN_POSITIVE, 0),
            (smallest, 0),
            (smallest * 1.5, 1),
            (smallest * 2.0, 2),
            (0.999, 31),
            (1.0, 32),
            (1.499, 32),
            (1.5, 33),
            (2.0, 34),
            (2f32.powi(15), 62),
            (2f32.powi(15) * 1.5, 63),
            (f32::MAX, 63),
        ] {
            assert_eq!(rank_of(score), Ok(rank), "{score}");
        }
    }

    /// All floats in steps of 997 of their bits, in the order of the numbers.
    #[test]
    fn a_higher_score_never_has_a_lower_rank() {
        let mut before = 0;
        for bits in (0..f32::INFINITY.to_bits()).step_by(997) {
            let rank = rank_of(f32::from_bits(bits)).unwrap();
            assert!(before <= rank && rank < RANKS, "{}", f32::from_bits(bits));
            before = rank;
        }
        assert_eq!(before, RANKS - 1);
    }
}
