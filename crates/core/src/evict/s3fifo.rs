//! S3-FIFO: most slots are read once or never, so a small queue finds those out quickly and keeps the
//! main queue for the others.
//!
//! ```text
//!   insert ──► small (10 %) ── read twice or more ──► main (90 %) ◄─┐ read since: once more,
//!                 │                                     │           │ with one read less
//!                 └─ otherwise: evicted, key noted      └───────────┘ otherwise: evicted
//!                        ▼
//!                      ghost ── the key is inserted again ──► main
//! ```
//!
//! As published by Yang, Zhang, Qiu, Yue and Rashmi (SOSP 2023): a small queue of a tenth of the cache,
//! reads counted up to three, a ghost queue of as many keys as main holds. Here the cache is the number of
//! candidates at the time, and the ghost queue is sized by the most that there ever were.
//!
//! A slot counts as evicted if it is removed after `next` named it. A caller that finds it in use and
//! inserts it again therefore meets its own ghost, and the slot goes to main: it is in use, so it has earned
//! that. Slots inserted without a key leave no ghost.

use super::ghost::{self, Ghost};
use super::list::{Links, List, NONE, some};
use super::{EvictPolicy, WALK_MAX, Worth};
use crate::chunked::Chunked;
use crate::ids::Slot;

/// The small queue is one of so many parts of all candidates.
const SMALL_PART: usize = 10;
/// In a slot's byte: its reads since it came or was moved, at most three.
const READS: u8 = 0b11;
/// In a slot's byte: it is in main.
const MAIN: u8 = 0b100;
/// In a slot's byte: its print is known.
const KEYED: u8 = 0b1000;
/// Reads with which a slot leaves the small queue for main.
const READS_TO_STAY: u8 = 2;

#[derive(Debug)]
pub(super) struct S3Fifo {
    links: Links,
    small: List,
    main: List,
    /// [`READS`], [`MAIN`] and [`KEYED`] by slot. Those of an absent slot mean nothing, because `insert`
    /// sets them anew; so `touch` need not look at the links.
    bits: Chunked<u8>,
    /// The print of a slot's key, for the ghost.
    prints: Chunked<u32>,
    ghost: Ghost,
    /// Most candidates at a time, ever: what the ghost is sized by.
    peak: usize,
    /// Whom `next` named last. Removed, it was evicted.
    named: u32,
    /// The walk ahead: whether it has begun, whether it is in main, and which slot it meets next.
    walking: bool,
    walks_main: bool,
    ahead: u32,
}

impl S3Fifo {
    pub(super) const fn new() -> Self {
        Self {
            links: Links::new(),
            small: List::EMPTY,
            main: List::EMPTY,
            bits: Chunked::new(),
            prints: Chunked::new(),
            ghost: Ghost::new(),
            peak: 0,
            named: NONE,
            walking: false,
            walks_main: false,
            ahead: NONE,
        }
    }

    /// Keys that the ghost remembers: as many as main holds when the cache is full.
    const fn window(&self) -> usize {
        self.peak - self.peak / SMALL_PART
    }

    fn enter(&mut self, slot: u32, bits: u8) {
        let list = if bits & MAIN == 0 { &mut self.small } else { &mut self.main };
        list.push(&mut self.links, slot);
        self.bits.grow(slot + 1, &0);
        self.bits[slot] = bits;
        self.peak = self.peak.max(self.len());
    }

    /// Takes a candidate out of its queue. The walk ahead goes on with the one after it.
    fn leave(&mut self, slot: u32) {
        let list = if self.bits[slot] & MAIN == 0 { &mut self.small } else { &mut self.main };
        let link = list.take(&mut self.links, slot).expect("the slot is in a list");
        if self.ahead == slot {
            self.ahead = link.younger;
        }
    }

    /// The oldest of the queue that has to give one up.
    fn oldest(&self) -> u32 {
        let small = self.small.len * SMALL_PART >= self.len() || self.main.len == 0;
        if small { self.small.oldest } else { self.main.oldest }
    }

    /// Moves the oldest slot of a queue to the young end of main, if its reads have earned that.
    fn spare(&mut self, slot: u32) -> bool {
        let bits = self.bits[slot];
        let reads = bits & READS;
        let kept = if bits & MAIN == 0 {
            if reads < READS_TO_STAY {
                return false;
            }
            0
        } else {
            if reads == 0 {
                return false;
            }
            reads - 1
        };
        let moved = bits & KEYED | MAIN | kept;
        if slot == self.main.youngest {
            // The only one of main. Taking it out would make the walk ahead miss it.
            self.bits[slot] = moved;
        } else {
            self.leave(slot);
            self.enter(slot, moved);
        }
        true
    }
}

impl EvictPolicy for S3Fifo {
    fn insert(&mut self, slot: Slot) {
        self.enter(slot.0, 0);
    }

    fn insert_as(&mut self, slot: Slot, worth: Worth) {
        let (Slot(slot), print) = (slot, ghost::print(worth.key));
        assert!(!self.links.contains(slot), "slot {slot} can be evicted already");
        let queue = if self.ghost.take(print, self.window()) { MAIN } else { 0 };
        self.enter(slot, KEYED | queue);
        self.prints.grow(slot + 1, &0);
        self.prints[slot] = print;
    }

    fn touch(&mut self, slot: Slot) {
        if let Some(bits) = self.bits.get_mut(slot.0)
            && *bits & READS < READS
        {
            *bits += 1;
        }
    }

    fn remove(&mut self, slot: Slot) -> bool {
        let Slot(slot) = slot;
        if !self.links.contains(slot) {
            return false;
        }
        self.leave(slot);
        if self.named == slot {
            self.named = NONE;
            if self.bits[slot] & (KEYED | MAIN) == KEYED {
                let window = self.window();
                self.ghost.note(self.prints[slot], window);
            }
        }
        true
    }

    fn next(&mut self) -> Option<Slot> {
        for _ in 0..WALK_MAX {
            let slot = self.oldest();
            if slot == NONE || !self.spare(slot) {
                break;
            }
        }
        // After so many spared ones the next goes, whatever it has earned.
        self.named = self.oldest();
        some(self.named)
    }

    /// Small first, then main. A slot that moves to main before the walk met it is met there.
    fn ahead(&mut self) -> Option<(Slot, bool)> {
        if !std::mem::replace(&mut self.walking, true) {
            self.walks_main = false;
            self.ahead = self.small.oldest;
        }
        if self.ahead == NONE && !std::mem::replace(&mut self.walks_main, true) {
            self.ahead = self.main.oldest;
        }
        let slot = self.ahead;
        if slot == NONE {
            self.walking = false;
            return None;
        }
        self.ahead = self.links.younger(slot);
        let bits = self.bits[slot];
        let enough = if bits & MAIN == 0 { READS_TO_STAY } else { 1 };
        Some((Slot(slot), bits & READS >= enough))
    }

    fn len(&self) -> usize {
        self.small.len + self.main.len
    }

    fn heap_bytes(&self) -> usize {
        self.links.heap_bytes()
            + self.bits.heap_bytes()
            + self.prints.heap_bytes()
            + self.ghost.heap_bytes()
    }
}
