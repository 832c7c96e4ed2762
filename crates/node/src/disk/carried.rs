//! Lives that outlast their mount: records that were on their way in or out when the node started over. Nobody
//! can read them, and they are still on the disk: a crash could bring them back.
//!
//! What must stay true: each has a slot of the new mount that is begun and never published. The master hears
//! of that slot, and counts the disk as one that holds more than it told, until the slot is free (0022).

use super::{Disk, record_of};
use mooncrate_core::seal::extent_bytes;
use mooncrate_core::{
    Extent, Generation, Label, Locator, Name, ObjectId, PutToken, Slot, TenantId,
};
use mooncrate_mem::clock::boottime;
use mooncrate_mem::{BeginWrite, LabelHash, Segment, WriteGuard};
use std::sync::Arc;

/// A life of an earlier mount.
#[derive(Debug)]
pub(super) struct Carried {
    of: Arc<Segment>,
    slot: Slot,
    generation: Generation,
    /// The slot that stands for it; its end says that the life is over.
    _stands: Option<WriteGuard>,
}

impl Carried {
    pub(super) fn new(
        of: &Arc<Segment>,
        (slot, generation): (Slot, Generation),
        stands: Option<WriteGuard>,
    ) -> Self {
        Self { of: Arc::clone(of), slot, generation, _stands: stands }
    }

    fn is_over(&self) -> bool {
        let (page, _) = self.of.announce(self.slot, 1);
        page.first().is_none_or(|now| now.life.is_none() || now.generation != self.generation)
    }
}

impl Disk {
    /// Frees the slots of lives that are over. Nothing else looks after a mount that has ended.
    pub(super) fn let_carried_go(&self) {
        let mut carried = std::mem::take(&mut *self.carried.lock());
        let mut last: Option<&Arc<Segment>> = None;
        for one in &carried {
            if last.is_none_or(|last| !Arc::ptr_eq(last, &one.of)) {
                // Its master is told by the slots of the new mount.
                one.of.tick(boottime(), &mut Vec::new());
                last = Some(&one.of);
            }
        }
        carried.retain(|one| !one.is_over());
        if !carried.is_empty() {
            self.carried.lock().append(&mut carried);
        }
    }
}

/// Begins a slot that nobody will publish. `None`: the segment has no such slot.
pub(super) fn stand_in(segment: &Arc<Segment>, slot: Slot) -> Option<WriteGuard> {
    let label = Label::plain(Name::new(TenantId::DEFAULT, b"-")).ok()?.encode();
    let object = ObjectId { epoch: segment.epoch(), sequence: 0 };
    let begin = BeginWrite {
        locator: Locator {
            segment: segment.spec().segment,
            incarnation: segment.spec().incarnation,
            slot,
            generation: Generation(0),
            extent: Extent::new(0, extent_bytes(0))?,
            stripe: record_of(object, &label).stripe,
            grant: None,
        },
        token: PutToken(0),
        object,
        epoch: segment.epoch(),
        len: 0,
        label: &label,
        hash: LabelHash::of(&label),
    };
    let guard = segment.begin(boottime(), &begin);
    guard.inspect_err(|error| tracing::error!(%error, "no slot for a record that is not gone")).ok()
}
