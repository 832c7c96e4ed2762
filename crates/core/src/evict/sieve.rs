//! SIEVE: a hand walks from the oldest to the youngest. A slot that was read since the hand last passed
//! is spared and unmarked, the first other one goes; at the young end the hand starts over. Amortised
//! O(1): each step over a marked slot uses up one touch.

use super::list::{NONE, Queue, some};
use super::{EvictPolicy, WALK_MAX};
use crate::chunked::Chunked;
use crate::ids::Slot;

#[derive(Debug)]
pub(super) struct Sieve {
    queue: Queue,
    /// One bit per slot: read since the hand passed. A mark of an absent slot means nothing, since
    /// `insert` clears it; so `touch` need not look at the links and costs one access.
    read: Chunked<u64>,
    /// Where the hand stands; none: at the oldest.
    hand: u32,
    /// Where the walk ahead starts over: by turns at the hand, and at the oldest, which the hand reaches
    /// last.
    from_oldest: bool,
}

impl Sieve {
    pub(super) const fn new() -> Self {
        Self { queue: Queue::new(), read: Chunked::new(), hand: NONE, from_oldest: false }
    }
}

const fn mark(slot: u32) -> (u32, u64) {
    (slot / 64, 1 << (slot % 64))
}

impl EvictPolicy for Sieve {
    fn insert(&mut self, slot: Slot) {
        self.queue.push(slot);
        let (word, bit) = mark(slot.0);
        self.read.grow(word + 1, &0);
        self.read[word] &= !bit;
    }

    fn touch(&mut self, slot: Slot) {
        let (word, bit) = mark(slot.0);
        if let Some(word) = self.read.get_mut(word) {
            *word |= bit;
        }
    }

    fn remove(&mut self, slot: Slot) -> bool {
        let Some(link) = self.queue.take(slot) else { return false };
        if self.hand == slot.0 {
            self.hand = link.younger;
        }
        true
    }

    fn next(&mut self) -> Option<Slot> {
        let oldest = self.queue.list().oldest;
        let mut at = self.hand;
        for _ in 0..WALK_MAX {
            if at == NONE {
                at = oldest;
            }
            let (word, bit) = mark(at);
            match self.read.get_mut(word) {
                Some(read) if *read & bit != 0 => *read &= !bit,
                _ => break,
            }
            at = self.queue.younger(at);
        }
        if at == NONE {
            at = oldest;
        }
        self.hand = at;
        some(at)
    }

    fn ahead(&mut self) -> Option<(Slot, bool)> {
        let oldest = self.from_oldest || self.hand == NONE;
        let start = if oldest { self.queue.list().oldest } else { self.hand };
        let Some(slot) = self.queue.ahead(start) else {
            self.from_oldest = !self.from_oldest;
            return None;
        };
        let (word, bit) = mark(slot.0);
        Some((slot, self.read.get(word).is_some_and(|read| read & bit != 0)))
    }

    fn len(&self) -> usize {
        self.queue.list().len
    }

    fn heap_bytes(&self) -> usize {
        self.queue.heap_bytes() + self.read.heap_bytes()
    }
}
