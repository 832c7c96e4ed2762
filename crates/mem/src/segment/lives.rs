//! What the owner knows of a life beyond its header, with one lock per slot. Rooms for 1,024 slots
//! are made when the first of them is used, so an empty segment costs a pointer per room.

use mooncrate_core::{Now, Slot};
use mooncrate_lock::{Mutex, MutexGuard};
use std::sync::OnceLock;

const ROOM_SLOTS: usize = 1024;

/// A life that has begun and is not over.
#[derive(Debug)]
pub(super) struct Life {
    /// The full key, so that announcing headers rebuilds an index; opaque here.
    pub(super) label: Box<[u8]>,
    /// Not before this may a retiring slot be freed.
    pub(super) free_after: Now,
    /// Whether the queue of retiring slots knows it.
    pub(super) queued: bool,
    /// Found bad, and no master has ordered its end yet: until then that is told again and again.
    pub(super) bad: bool,
    /// Canary 2: "freed" was said, but the generation was not bumped.
    pub(super) told_freed: bool,
}

impl Life {
    pub(super) fn new(label: &[u8]) -> Self {
        Self {
            label: label.into(),
            free_after: Now(0),
            queued: false,
            bad: false,
            told_freed: false,
        }
    }
}

type Room = Box<[Mutex<Option<Life>>]>;

/// All lives of a segment.
#[derive(Debug)]
pub(super) struct Lives {
    rooms: Box<[OnceLock<Room>]>,
}

impl Lives {
    pub(super) fn new(slots: u32) -> Self {
        let rooms = (slots as usize).div_ceil(ROOM_SLOTS);
        Self { rooms: (0..rooms).map(|_| OnceLock::new()).collect() }
    }

    /// Locks a slot, which the caller has checked to exist.
    pub(super) fn lock(&self, slot: Slot) -> MutexGuard<'_, Option<Life>> {
        let at = slot.0 as usize;
        let room = self.rooms[at / ROOM_SLOTS]
            .get_or_init(|| (0..ROOM_SLOTS).map(|_| Mutex::new(None)).collect());
        room[at % ROOM_SLOTS].lock()
    }
}
