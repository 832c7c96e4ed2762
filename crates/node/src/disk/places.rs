//! Which record is in which slot of the mounted segment, both ways round. The mount changes under the same
//! lock as the places: whoever holds it sees one mount and all that is in it.

use mooncrate_core::{Generation, Incarnation, Slot};
use mooncrate_mem::Segment;
use mooncrate_ssd::RecordId;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// A life of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) slot: Slot,
    pub(crate) generation: Generation,
}

/// Records of one mount.
#[derive(Debug)]
pub(crate) struct Places {
    segment: Arc<Segment>,
    by_record: HashMap<RecordId, Place>,
    by_slot: HashMap<Slot, (Generation, RecordId)>,
}

impl Places {
    pub(crate) fn new(segment: Arc<Segment>) -> Self {
        Self { segment, by_record: HashMap::new(), by_slot: HashMap::new() }
    }

    /// So many will be noted: what grows by and by is moved many times.
    pub(crate) fn reserve(&mut self, records: usize) {
        self.by_record.reserve(records);
        self.by_slot.reserve(records);
    }

    /// The mount.
    pub(crate) fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    fn is(&self, mount: Incarnation) -> bool {
        self.segment.spec().incarnation == mount
    }

    /// Notes a record of a mount; false: that mount is over, or the record has a place.
    pub(crate) fn insert(&mut self, mount: Incarnation, id: RecordId, place: Place) -> bool {
        if !self.is(mount) {
            return false;
        }
        let Entry::Vacant(vacant) = self.by_record.entry(id) else { return false };
        vacant.insert(place);
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

    /// The record of a life of a mount.
    pub(crate) fn at(
        &self,
        mount: Incarnation,
        slot: Slot,
        generation: Generation,
    ) -> Option<RecordId> {
        let (known, id) = self.by_slot.get(&slot)?;
        (self.is(mount) && *known == generation).then_some(*id)
    }
}
