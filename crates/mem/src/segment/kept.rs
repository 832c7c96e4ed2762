//! Segments whose payload lies elsewhere, on a disk: headers, words, labels, orders and announcements as
//! ever, and no bytes. What an extent says there is how many bytes count, not where they are.
//!
//! ```text
//! begin ─► WriteGuard ─ record is durable ─ publish_kept ─► Ready
//! a record that was found after a restart ─────── adopt ──► Ready ─ retire_unasked ─► Retiring ─ settle ─► tick
//! ```
//!
//! What must stay true: nothing here is Ready that is not durable (S2); whoever asks such a segment for
//! bytes gets an error or none, never a crash.

use super::lives::Life;
use super::write::{BeginWrite, LabelHash, Unpublished};
use super::{Payload, PinGuard, PublishError, Segment, SegmentError, SegmentSpec, WriteGuard};
use crate::region::{Pages, Region};
use crate::table::Table;
use mooncrate_core::plan::{Notice, OrderResult};
use mooncrate_core::state::Event;
use mooncrate_core::{
    Extent, Generation, Label, Locator, Now, ObjectId, PutToken, ReplicaState, Seal, Slot,
};
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

/// A record that was found on a disk, and the place that it gets.
#[derive(Clone, Copy, Debug)]
pub struct Adopt<'a> {
    /// Which slot, unused so far.
    pub slot: Slot,
    /// The bytes that it counts for.
    pub extent: Extent,
    /// Bytes of the value.
    pub len: u64,
    /// Its label.
    pub label: &'a [u8],
    /// The put that stored it.
    pub object: ObjectId,
    /// What its bytes add up to.
    pub seal: Seal,
}

impl Segment {
    /// A segment of headers alone: its bytes are kept on a disk.
    pub fn create_kept(spec: SegmentSpec) -> io::Result<Arc<Self>> {
        spec.check()?;
        let spec = SegmentSpec { shared: false, huge: false, ..spec };
        let identity = spec.identity();
        let headers = Region::anonymous(identity.table_bytes(), Pages::Small)?;
        Ok(Arc::new(Self::with(spec, Table::create(headers, &identity), Payload::Kept, false)))
    }

    /// Whether its bytes are kept on a disk.
    pub fn is_kept(&self) -> bool {
        matches!(self.payload, Payload::Kept)
    }

    /// Whether its bytes lie in memory of this process, where they can be looked at in place.
    pub fn is_in_place(&self) -> bool {
        self.payload.region().is_some()
    }

    /// The first byte of an extent that fits; of no meaning where the bytes are elsewhere.
    pub(super) fn first_byte(&self, extent: Extent) -> Result<*mut u8, SegmentError> {
        if let Some(payload) = self.payload.region() {
            return Ok(payload.check(extent)?.as_ptr());
        }
        if extent.fits(self.spec.bytes) {
            return Ok(NonNull::dangling().as_ptr());
        }
        Err(crate::region::OutOfBounds { extent, len: self.spec.bytes }.into())
    }

    /// Makes a Ready life of a record that recovery found and verified (S3). Before the mount: nobody can
    /// have planned a life in this slot.
    pub fn adopt(self: &Arc<Self>, now: Now, record: &Adopt<'_>) -> Result<Locator, SegmentError> {
        let locator = Locator {
            segment: self.spec.segment,
            incarnation: self.spec.incarnation,
            slot: record.slot,
            generation: Generation(0),
            extent: record.extent,
            stripe: Label::decode(record.label)
                .and_then(|label| label.stripe)
                .map_or(0, |stripe| stripe.stripe),
            grant: None,
        };
        let wanted = BeginWrite {
            locator,
            token: PutToken(0),
            object: record.object,
            epoch: self.epoch(),
            len: record.len,
            label: record.label,
            hash: LabelHash::of(record.label),
        };
        let guard = self.begin(now, &wanted)?;
        guard.publish_kept(now, PutToken(0), record.seal).map_err(|_| SegmentError::Stale {
            wanted: locator.generation,
            found: self.load(record.slot),
        })?;
        Ok(locator)
    }

    /// The owner ends a life by itself: Ready → Retiring. The notice is `Waiting`; the slot stays so until
    /// [`Segment::settle`] says that its record is gone for good.
    pub fn retire_unasked(
        &self,
        now: Now,
        slot: Slot,
        generation: Generation,
    ) -> Result<Notice, SegmentError> {
        let SegmentSpec { segment, incarnation, .. } = self.spec;
        self.check_mount(segment, incarnation, slot)?;
        self.unlink(now, slot, generation, |life| life.free_after = Now(u64::MAX))?;
        Ok(self.notice(slot, generation, OrderResult::Waiting))
    }

    /// Ends a life that can be read, and notes that in it; stale if somebody else was first.
    pub(super) fn unlink(
        &self,
        now: Now,
        slot: Slot,
        generation: Generation,
        note: impl FnOnce(&mut Life),
    ) -> Result<(), SegmentError> {
        let mut life = self.lives.lock(slot);
        let word = self.load(slot);
        if word.generation() != generation || word.state() != ReplicaState::Ready {
            return Err(SegmentError::Stale { wanted: generation, found: word });
        }
        self.step(Some(now), slot, generation, Event::Unlink)?;
        if let Some(life) = life.as_mut() {
            note(life);
        }
        Ok(())
    }

    /// The record of a life that [`Segment::retire_unasked`] ended is gone, and no crash brings it back:
    /// `Freed` follows from [`Segment::tick`] when the last reader has left (G6).
    pub fn settle(&self, now: Now, slot: Slot, generation: Generation) {
        if slot.0 >= self.spec.slots {
            return;
        }
        let mut life = self.lives.lock(slot);
        let word = self.load(slot);
        if word.generation() == generation
            && word.state() == ReplicaState::Retiring
            && let Some(life) = life.as_mut()
        {
            life.free_after = now;
            life.queued = true;
            self.look_at(now, slot, generation);
        }
    }
}

impl WriteGuard {
    /// Makes a value readable that is durable on a disk, sealed so. The backend compared the bytes.
    pub fn publish_kept(
        self,
        now: Now,
        token: PutToken,
        seal: Seal,
    ) -> Result<(), Box<Unpublished>> {
        let error = match token == self.token {
            true if self.segment().is_kept() => return self.flip(now, seal),
            true => PublishError::Elsewhere,
            false => PublishError::BadToken,
        };
        Err(Box::new(Unpublished { error, guard: self }))
    }
}

impl PinGuard {
    /// The label that the owner keeps beside the header.
    pub fn label(&self) -> Box<[u8]> {
        let life = self.segment().lives.lock(self.locator().slot);
        life.as_ref().map_or_else(Box::default, |life| life.label.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::ReadError;
    use crate::segment::WriteError;
    use mooncrate_core::limits::EXTENT_ALIGN;
    use mooncrate_core::plan::{Action, Order};
    use mooncrate_core::seal::extent_bytes;
    use mooncrate_core::{Incarnation, LeaderEpoch, SegmentId};

    const T: Now = Now(1_000_000_000);
    const LABEL: &[u8] = b"\0\0\0\0\0a key";
    const EPOCH: LeaderEpoch = LeaderEpoch(3);
    const SEAL: Seal = Seal(77);

    fn disk() -> Arc<Segment> {
        let spec = SegmentSpec {
            segment: SegmentId(5),
            incarnation: Incarnation(2),
            bytes: 1 << 50,
            slots: 100,
            shared: true,
            huge: true,
        };
        let segment = Segment::create_kept(spec).unwrap();
        segment.set_serve_until(Now(u64::MAX));
        segment
    }

    fn wanted(slot: u32, len: u64) -> BeginWrite<'static> {
        let extent = Extent::new(1 << 40, extent_bytes(len)).unwrap();
        BeginWrite {
            locator: Locator {
                segment: SegmentId(5),
                incarnation: Incarnation(2),
                slot: Slot(slot),
                generation: Generation(0),
                extent,
                stripe: 0,
                grant: None,
            },
            token: PutToken(9),
            object: ObjectId { epoch: EPOCH, sequence: 40 },
            epoch: EPOCH,
            len,
            label: LABEL,
            hash: LabelHash::of(LABEL),
        }
    }

    /// Petabytes cost no memory, and whoever asks for bytes is told that there are none.
    #[test]
    fn a_kept_life_is_read_by_nobody_here() {
        let segment = disk();
        assert!(segment.fds().is_none() && segment.is_kept());
        for len in [0, 5, 3 << 20] {
            let slot = len as u32 % 100;
            let begin = wanted(slot, len);
            let mut guard = segment.begin(T, &begin).unwrap();
            assert_eq!(guard.write(0, b""), Err(WriteError::Elsewhere));
            assert_eq!(guard.place(0, 0).map(|_| ()), Err(WriteError::Elsewhere));
            assert_eq!(guard.room().map(|_| ()), Err(WriteError::Elsewhere));
            assert_eq!(guard.filled(0), Err(WriteError::Elsewhere));
            assert_eq!(guard.buffer(10).map(|_| ()), Err(WriteError::Elsewhere));
            let mut refused = guard.publish(T, PutToken(9), SEAL).unwrap_err();
            assert_eq!(refused.error, PublishError::Elsewhere);
            refused = refused.guard.publish_direct(T, PutToken(9), SEAL).unwrap_err();
            refused = refused.guard.publish_placed(T, PutToken(9), SEAL).unwrap_err();
            assert_eq!(refused.error, PublishError::Elsewhere);
            refused = refused.guard.publish_kept(T, PutToken(8), SEAL).unwrap_err();
            assert_eq!(refused.error, PublishError::BadToken);
            refused.guard.publish_kept(T, PutToken(9), SEAL).unwrap();

            let pin = segment.pin(T, &begin.locator).unwrap();
            assert_eq!((pin.value_len(), pin.seal(), &*pin.label()), (len, SEAL, LABEL));
            assert_eq!(pin.object().sequence, 40);
            assert!(pin.bytes().is_empty() && pin.table_bytes().is_empty());
            assert!(pin.sealed_bytes().is_empty());
            let mut target = vec![0; len as usize];
            assert_eq!(pin.read_into(SEAL, &mut target), Err(ReadError::OutOfBounds));
            assert_eq!(pin.read_part_into(SEAL, 0, &mut target), Err(ReadError::OutOfBounds));
            assert_eq!(pin.verify(), Err(ReadError::OutOfBounds));
            let view = segment.one_sided();
            let read = view.read_into(&begin.locator, SEAL, &mut target, || T);
            assert_eq!(read, Err(ReadError::OutOfBounds));
        }
    }

    #[test]
    fn memory_takes_no_kept_value() {
        let spec = *disk().spec();
        let memory = Segment::create(SegmentSpec { bytes: 4096, ..spec }).unwrap();
        let mut begin = wanted(0, 5);
        begin.locator.extent = Extent::new(0, EXTENT_ALIGN).unwrap();
        let guard = memory.begin(T, &begin).unwrap();
        let refused = guard.publish_kept(T, PutToken(9), SEAL).unwrap_err();
        assert_eq!(refused.error, PublishError::Elsewhere);
    }

    /// A record that recovery found is announced with everything that a master needs (S3, S4).
    #[test]
    fn an_adopted_record_is_announced() {
        let segment = disk();
        let object = ObjectId { epoch: LeaderEpoch(1), sequence: 4 };
        let extent = Extent::new(128, extent_bytes(9)).unwrap();
        let record = Adopt { slot: Slot(1), extent, len: 9, label: LABEL, object, seal: SEAL };
        let locator = segment.adopt(T, &record).unwrap();
        assert!(segment.adopt(T, &record).is_err(), "a slot is used once");
        let (page, next) = segment.announce(Slot(0), 100);
        assert_eq!((page.len(), next), (2, None));
        let life = page[1].life.as_ref().unwrap();
        let told = life.object.as_ref().unwrap();
        assert_eq!((life.extent, told.object, told.len, told.seal), (extent, object, 9, SEAL));
        assert_eq!(told.label.encode(), LABEL);
        assert!(segment.pin(T, &locator).is_ok());
    }

    /// The owner's own eviction: hidden at once, freed when the last reader has left, told both times.
    #[test]
    fn an_owner_retires_by_itself() {
        let segment = disk();
        let at = wanted(3, 8);
        let guard = segment.begin(T, &at).unwrap();
        assert!(segment.retire_unasked(T, Slot(3), Generation(0)).is_err(), "being written");
        guard.publish_kept(T, PutToken(9), SEAL).unwrap();
        let pin = segment.pin(T, &at.locator).unwrap();
        assert!(segment.retire_unasked(T, Slot(3), Generation(1)).is_err(), "another life");
        let notice = segment.retire_unasked(T, Slot(3), Generation(0)).unwrap();
        assert_eq!(notice.result, OrderResult::Waiting);
        assert!(segment.retire_unasked(T, Slot(3), Generation(0)).is_err(), "once is enough");
        assert!(segment.pin(T, &at.locator).is_err());
        let mut news = Vec::new();
        // The master may order the same life to go: it is on its way already.
        let Locator { segment: id, incarnation, slot, generation, .. } = at.locator;
        let action = Action::Retire { free_after_ms: 0 };
        let order = Order { segment: id, incarnation, slot, generation, action };
        let told = segment.execute(T, EPOCH, &order).unwrap();
        assert_eq!(told.result, OrderResult::Waiting);
        let later = T.plus(std::time::Duration::from_millis(5));
        drop(pin);
        segment.tick(later, &mut news);
        assert!(news.is_empty(), "its record is still there");
        segment.settle(later, Slot(3), Generation(0));
        segment.settle(later, Slot(3), Generation(1));
        segment.tick(later, &mut news);
        assert_eq!(news.len(), 1);
        assert_eq!(news[0].result, OrderResult::Freed { next: Generation(1) });
    }

    /// A disk reads whole blocks: the room behind the extent is the guard's, the value is its front.
    #[test]
    fn a_guard_can_have_more_room_than_its_extent() {
        let spec = *disk().spec();
        let memory = Segment::create(SegmentSpec { bytes: 8192, ..spec }).unwrap();
        memory.set_serve_until(Now(u64::MAX));
        let mut begin = wanted(0, 5);
        begin.locator.extent = Extent::new(4096, EXTENT_ALIGN).unwrap();
        let room = |start, len| Extent::new(start, len).unwrap();
        for bad in [room(0, 4096), room(4096, 0), room(4096, 4097)] {
            assert!(memory.begin_in(T, &begin, bad).is_err(), "{bad:?}");
        }
        let mut guard = memory.begin_in(T, &begin, room(4096, 4096)).unwrap();
        let place = guard.room().unwrap();
        assert_eq!((place.len(), place.as_ptr().addr() % 4096), (4096, 0));
        place.fill(7);
        let seal = crate::sums::seal_of(&[7; 5]);
        guard.publish_placed(T, PutToken(9), seal).unwrap();
        assert_eq!(memory.pin(T, &begin.locator).unwrap().sealed_bytes(), [7; 5]);
    }
}
