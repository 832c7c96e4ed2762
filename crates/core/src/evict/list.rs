//! Lists of slots whose links lie in one array by slot, and the queue that two policies need.
//!
//! A policy with several lists (ranks) shares one array of links among them: a slot is in one
//! list at a time. What must stay true: the links of a list's members form one chain from `oldest` to
//! `youngest`, and the links of every slot in no list are [`ABSENT`].

use crate::chunked::Chunked;
use crate::ids::Slot;
use std::fmt;

/// No slot.
pub(super) const NONE: u32 = u32::MAX;
/// In `older`: the slot is in no list.
const ABSENT: u32 = u32::MAX - 1;

/// The neighbours of a slot in its list.
#[derive(Clone, Copy)]
pub(super) struct Link {
    pub(super) older: u32,
    pub(super) younger: u32,
}

const GONE: Link = Link { older: ABSENT, younger: NONE };

const _: () = assert!(size_of::<Link>() <= 12, "the budget per slot");

/// The links of all slots, by slot.
pub(super) struct Links(Chunked<Link>);

impl Links {
    pub(super) const fn new() -> Self {
        Self(Chunked::new())
    }

    /// Whether the slot is in a list.
    pub(super) fn contains(&self, slot: u32) -> bool {
        self.0.get(slot).is_some_and(|link| link.older != ABSENT)
    }

    /// The neighbour towards the young end; [`NONE`] for the youngest and for [`NONE`] itself.
    pub(super) fn younger(&self, slot: u32) -> u32 {
        self.0.get(slot).map_or(NONE, |link| link.younger)
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.0.heap_bytes()
    }
}

/// The two ends of one list. Its members are chained in a [`Links`] that the caller passes in.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    pub(super) oldest: u32,
    pub(super) youngest: u32,
    pub(super) len: usize,
}

impl List {
    pub(super) const EMPTY: Self = Self { oldest: NONE, youngest: NONE, len: 0 };

    /// Adds a slot at the young end. Panics if it is in a list already.
    pub(super) fn push(&mut self, links: &mut Links, slot: u32) {
        assert!(slot < ABSENT, "slot {slot} has no link");
        links.0.grow(slot + 1, &GONE);
        let place = &mut links.0[slot];
        assert!(place.older == ABSENT, "slot {slot} can be evicted already");
        let older = std::mem::replace(&mut self.youngest, slot);
        *place = Link { older, younger: NONE };
        match links.0.get_mut(older) {
            Some(link) => link.younger = slot,
            None => self.oldest = slot,
        }
        self.len += 1;
    }

    /// Moves a member to the young end and says who was next to it; `None` if it is there already, or the slot
    /// is in no list. One step instead of `take` and `push`: a cache does this for every read.
    pub(super) fn renew(&mut self, links: &mut Links, slot: u32) -> Option<Link> {
        let youngest = self.youngest;
        let place =
            links.0.get_mut(slot).filter(|link| link.older != ABSENT && slot != youngest)?;
        let link = std::mem::replace(place, Link { older: youngest, younger: NONE });
        match links.0.get_mut(link.older) {
            Some(older) => older.younger = link.younger,
            None => self.oldest = link.younger,
        }
        links.0[link.younger].older = link.older;
        links.0[youngest].younger = slot;
        self.youngest = slot;
        Some(link)
    }

    /// Takes a member out and says who was next to it; `None` if the slot is in no list.
    pub(super) fn take(&mut self, links: &mut Links, slot: u32) -> Option<Link> {
        let place = links.0.get_mut(slot).filter(|link| link.older != ABSENT)?;
        let link = std::mem::replace(place, GONE);
        match links.0.get_mut(link.older) {
            Some(older) => older.younger = link.younger,
            None => self.oldest = link.younger,
        }
        match links.0.get_mut(link.younger) {
            Some(younger) => younger.older = link.older,
            None => self.youngest = link.older,
        }
        self.len -= 1;
        Some(link)
    }
}

/// One list with its own links, and a walk ahead over it.
pub(super) struct Queue {
    links: Links,
    list: List,
    /// Whether the walk ahead has begun, and which slot it meets next; none: it is at the young end.
    walking: bool,
    ahead: u32,
}

impl Queue {
    pub(super) const fn new() -> Self {
        Self { links: Links::new(), list: List::EMPTY, walking: false, ahead: NONE }
    }

    pub(super) fn push(&mut self, slot: Slot) {
        self.list.push(&mut self.links, slot.0);
    }

    /// Takes a slot out; false if it was absent.
    pub(super) fn take(&mut self, slot: Slot) -> bool {
        let Some(link) = self.list.take(&mut self.links, slot.0) else { return false };
        if self.ahead == slot.0 {
            self.ahead = link.younger;
        }
        true
    }

    /// Moves a slot to the young end, if it is in the queue.
    pub(super) fn renew(&mut self, slot: Slot) {
        if let Some(link) = self.list.renew(&mut self.links, slot.0)
            && self.ahead == slot.0
        {
            self.ahead = link.younger;
        }
    }

    pub(super) const fn len(&self) -> usize {
        self.list.len
    }

    pub(super) fn oldest(&self) -> Option<Slot> {
        some(self.list.oldest)
    }

    /// One step of the walk ahead, from the oldest to the youngest.
    pub(super) fn ahead(&mut self) -> Option<Slot> {
        let walking = std::mem::replace(&mut self.walking, true);
        let at = if walking { self.ahead } else { self.list.oldest };
        if at == NONE {
            self.walking = false;
            return None;
        }
        self.ahead = self.links.younger(at);
        Some(Slot(at))
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.links.heap_bytes()
    }
}

/// The slot, unless it is [`NONE`].
pub(super) fn some(slot: u32) -> Option<Slot> {
    (slot != NONE).then_some(Slot(slot))
}

impl fmt::Debug for Links {
    /// In short: the slots may be millions.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Links").field("slots", &self.0.len()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Queue {
    /// In short: the slots may be millions.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("list", &self.list).finish_non_exhaustive()
    }
}
