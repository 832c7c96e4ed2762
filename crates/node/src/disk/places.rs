//! Which record is in which slot of the mounted segment, both ways round.

use mooncrate_core::{Generation, Incarnation, Slot};
use mooncrate_ssd::RecordId;
use std::collections::HashMap;

/// A life of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) slot: Slot,
    pub(crate) generation: Generation,
}

/// Records of one mount.
#[derive(Debug)]
pub(crate) struct Places {
    mount: Incarnation,
    by_record: HashMap<RecordId, Place>,
    by_slot: HashMap<Slot, (Generation, RecordId)>,
}

impl Places {
    pub(crate) fn new(mount: Incarnation) -> Self {
        Self { mount, by_record: HashMap::new(), by_slot: HashMap::new() }
    }

    /// Notes a record of a mount; false: that mount is over, or the record has a place.
    pub(crate) fn insert(&mut self, mount: Incarnation, id: RecordId, place: Place) -> bool {
        if mount != self.mount || self.by_record.contains_key(&id) {
            return false;
        }
        self.by_record.insert(id, place);
        self.by_slot.insert(place.slot, (place.generation, id));
        true
    }

    pub(crate) fn holds(&self, id: &RecordId) -> bool {
        self.by_record.contains_key(id)
    }

    pub(crate) fn remove(&mut self, id: &RecordId) -> Option<Place> {
        let place = self.by_record.remove(id)?;
        if self.by_slot.get(&place.slot).is_some_and(|(_, known)| known == id) {
            self.by_slot.remove(&place.slot);
        }
        Some(place)
    }

    /// The record of a life.
    pub(crate) fn at(&self, slot: Slot, generation: Generation) -> Option<RecordId> {
        let (known, id) = self.by_slot.get(&slot)?;
        (*known == generation).then_some(*id)
    }
}
