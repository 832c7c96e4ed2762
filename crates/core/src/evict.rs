//! Eviction policies: which object of a segment goes next when room is needed.
//!
//! One policy per segment, keyed by header slot. Slots are dense, so the order is a list whose
//! links lie in an array by slot: no map, no allocation per object, eight bytes per slot (SIEVE:
//! and one bit). Every call is O(1); the walk of SIEVE's hand is bounded by [`WALK_MAX`].
//!
//! A policy knows only candidates. Whether one is pinned or leased, the caller finds out when it
//! has the victim in hand; it then `insert`s it again, which makes it the youngest: what is in use
//! now is a poor candidate for some time.

use crate::chunked::Chunked;
use crate::ids::Slot;
use std::fmt;
use std::str::FromStr;

/// Steps of SIEVE's hand in one call. If it met only objects that were read, the one that it has
/// reached goes: a whole turn over ten million slots would hold the master's lock far too long.
pub const WALK_MAX: usize = 256;

/// The order in which the slots of one segment are evicted.
pub trait EvictPolicy: Send + fmt::Debug {
    /// The slot may be evicted from now on. Panics if it could be already.
    fn insert(&mut self, slot: Slot);

    /// The slot was read. Nothing happens if it is absent.
    fn touch(&mut self, slot: Slot);

    /// The slot may no longer be evicted; false if it was absent.
    fn remove(&mut self, slot: Slot) -> bool;

    /// The next candidate. It stays in place: the caller `remove`s it when it goes, and asks again
    /// later if it has to wait for something.
    fn next(&mut self) -> Option<Slot>;

    /// Takes the next candidate out. The caller evicts it, or `insert`s it again if it is in use.
    fn victim(&mut self) -> Option<Slot> {
        let slot = self.next()?;
        self.remove(slot);
        Some(slot)
    }

    /// One step of a walk ahead of the evictions, in their order and over and over: a candidate, and
    /// whether it would be spared now because it was read. `None`: the walk is at its end, and the next
    /// step starts over. Whatever comes and goes, the walk never misses its place.
    fn ahead(&mut self) -> Option<(Slot, bool)>;

    /// Number of candidates.
    fn len(&self) -> usize;

    /// Whether nothing can be evicted.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory that the book-keeping takes.
    fn heap_bytes(&self) -> usize;
}

/// The policies that there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyKind {
    /// Oldest first, as Mooncake Store evicts.
    Fifo,
    /// The one that was not read for the longest time first.
    Lru,
    /// Oldest first, but one that was read since the hand last passed is spared once.
    Sieve,
}

impl PolicyKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Fifo, Self::Lru, Self::Sieve];

    /// Its name in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fifo => "fifo",
            Self::Lru => "lru",
            Self::Sieve => "sieve",
        }
    }

    /// A policy of this kind without candidates.
    pub fn build(self) -> Box<dyn EvictPolicy> {
        match self {
            Self::Fifo => Box::new(Fifo(Queue::new())),
            Self::Lru => Box::new(Lru(Queue::new())),
            Self::Sieve => {
                let (queue, read) = (Queue::new(), Chunked::new());
                Box::new(Sieve { queue, read, hand: NONE, from_oldest: false })
            }
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
#[error("there is no eviction policy {0:?}; choose fifo, lru or sieve")]
pub struct UnknownPolicy(pub String);

impl FromStr for PolicyKind {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| UnknownPolicy(name.to_owned()))
    }
}

/// No slot.
const NONE: u32 = u32::MAX;
/// In `older`: the slot is not in the queue.
const ABSENT: u32 = u32::MAX - 1;

/// The neighbours of a slot in the queue.
#[derive(Clone, Copy)]
struct Link {
    older: u32,
    younger: u32,
}

const _: () = assert!(size_of::<Link>() <= 12, "the budget per slot");

/// A queue of slots that any member can leave. What must stay true: the links of the members form
/// one chain from `oldest` to `youngest`, and all others are [`ABSENT`].
struct Queue {
    links: Chunked<Link>,
    oldest: u32,
    youngest: u32,
    len: usize,
    /// Whether the walk ahead has begun, and whom it meets next; none: it is at the young end.
    walking: bool,
    ahead: u32,
}

impl Queue {
    const fn new() -> Self {
        let links = Chunked::new();
        Self { links, oldest: NONE, youngest: NONE, len: 0, walking: false, ahead: NONE }
    }

    fn contains(&self, slot: u32) -> bool {
        self.links.get(slot).is_some_and(|link| link.older != ABSENT)
    }

    fn push(&mut self, slot: Slot) {
        let Slot(slot) = slot;
        assert!(slot < ABSENT, "slot {slot} has no link");
        assert!(!self.contains(slot), "slot {slot} can be evicted already");
        self.links.grow(slot + 1, &Link { older: ABSENT, younger: NONE });
        let older = std::mem::replace(&mut self.youngest, slot);
        self.links[slot] = Link { older, younger: NONE };
        match self.links.get_mut(older) {
            Some(link) => link.younger = slot,
            None => self.oldest = slot,
        }
        self.len += 1;
    }

    /// Takes a slot out and says who was next to it; `None` if it was absent.
    fn take(&mut self, slot: u32) -> Option<Link> {
        if !self.contains(slot) {
            return None;
        }
        let gone = Link { older: ABSENT, younger: NONE };
        let link = std::mem::replace(&mut self.links[slot], gone);
        match self.links.get_mut(link.older) {
            Some(older) => older.younger = link.younger,
            None => self.oldest = link.younger,
        }
        match self.links.get_mut(link.younger) {
            Some(younger) => younger.older = link.older,
            None => self.youngest = link.older,
        }
        if self.ahead == slot {
            self.ahead = link.younger;
        }
        self.len -= 1;
        Some(link)
    }

    fn oldest(&self) -> Option<Slot> {
        (self.oldest != NONE).then_some(Slot(self.oldest))
    }

    /// One step of the walk ahead, which begins at `start` and ends at the young end.
    fn ahead(&mut self, start: u32) -> Option<Slot> {
        let walking = std::mem::replace(&mut self.walking, true);
        let at = if walking { self.ahead } else { start };
        let Some(link) = self.links.get(at) else {
            self.walking = false;
            return None;
        };
        self.ahead = link.younger;
        Some(Slot(at))
    }
}

impl fmt::Debug for Queue {
    /// In short: the slots may be millions.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("len", &self.len)
            .field("oldest", &self.oldest)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Fifo(Queue);

impl EvictPolicy for Fifo {
    fn insert(&mut self, slot: Slot) {
        self.0.push(slot);
    }

    fn touch(&mut self, _slot: Slot) {}

    fn remove(&mut self, slot: Slot) -> bool {
        self.0.take(slot.0).is_some()
    }

    fn next(&mut self) -> Option<Slot> {
        self.0.oldest()
    }

    fn ahead(&mut self) -> Option<(Slot, bool)> {
        self.0.ahead(self.0.oldest).map(|slot| (slot, false))
    }

    fn len(&self) -> usize {
        self.0.len
    }

    fn heap_bytes(&self) -> usize {
        self.0.links.heap_bytes()
    }
}

#[derive(Debug)]
struct Lru(Queue);

impl EvictPolicy for Lru {
    fn insert(&mut self, slot: Slot) {
        self.0.push(slot);
    }

    fn touch(&mut self, slot: Slot) {
        // Reads come in bursts; the one that is youngest already need not move.
        if self.0.youngest != slot.0 && self.0.take(slot.0).is_some() {
            self.0.push(slot);
        }
    }

    fn remove(&mut self, slot: Slot) -> bool {
        self.0.take(slot.0).is_some()
    }

    fn next(&mut self) -> Option<Slot> {
        self.0.oldest()
    }

    fn ahead(&mut self) -> Option<(Slot, bool)> {
        self.0.ahead(self.0.oldest).map(|slot| (slot, false))
    }

    fn len(&self) -> usize {
        self.0.len
    }

    fn heap_bytes(&self) -> usize {
        self.0.links.heap_bytes()
    }
}

/// SIEVE: a hand walks from the oldest to the youngest. Whoever was read since it last passed is
/// spared and unmarked, the first other one goes; at the young end it starts over. Amortised O(1):
/// each step over a marked slot uses up one touch.
#[derive(Debug)]
struct Sieve {
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
        let Some(link) = self.queue.take(slot.0) else { return false };
        if self.hand == slot.0 {
            self.hand = link.younger;
        }
        true
    }

    fn next(&mut self) -> Option<Slot> {
        let mut at = self.hand;
        for _ in 0..WALK_MAX {
            if at == NONE {
                at = self.queue.oldest;
            }
            let (word, bit) = mark(at);
            match self.read.get_mut(word) {
                Some(read) if *read & bit != 0 => *read &= !bit,
                _ => break,
            }
            at = self.queue.links[at].younger;
        }
        if at == NONE {
            at = self.queue.oldest;
        }
        self.hand = at;
        (at != NONE).then_some(Slot(at))
    }

    fn ahead(&mut self) -> Option<(Slot, bool)> {
        let oldest = self.from_oldest || self.hand == NONE;
        let start = if oldest { self.queue.oldest } else { self.hand };
        let Some(slot) = self.queue.ahead(start) else {
            self.from_oldest = !self.from_oldest;
            return None;
        };
        let (word, bit) = mark(slot.0);
        Some((slot, self.read.get(word).is_some_and(|read| read & bit != 0)))
    }

    fn len(&self) -> usize {
        self.queue.len
    }

    fn heap_bytes(&self) -> usize {
        self.queue.links.heap_bytes() + self.read.heap_bytes()
    }
}
