//! Writing: `begin` opens a life and gives a guard, the guard takes the bytes and is consumed by
//! publishing. As long as the guard lives, somebody may store into the range; so only its end fences
//! an aborted slot (R7), and dropping it without publishing gives the range back.

use super::far::Bounce;
use super::lives::Life;
use super::{PublishError, Segment, SegmentError, WriteError};
use crate::sums::{SliceSums, write_table};
use crate::word::before_first_byte;
use mooncrate_core::canary::{self, Canary};
use mooncrate_core::header::{HEADER_VERSION, Header};
use mooncrate_core::limits::{EXTENT_ALIGN, VALUE_BYTES_MAX};
use mooncrate_core::plan::OrderResult;
use mooncrate_core::seal::extent_bytes;
use mooncrate_core::state::Event;
use mooncrate_core::{
    Extent, Generation, Label, LeaderEpoch, Locator, Now, ObjectId, PutToken, ReplicaState, Seal,
};
use std::sync::Arc;

/// What a writer presents to open a slot.
#[derive(Clone, Copy, Debug)]
pub struct BeginWrite<'a> {
    /// Where, in which life.
    pub locator: Locator,
    /// The right to write it.
    pub token: PutToken,
    /// The put.
    pub object: ObjectId,
    /// The leader that planned it.
    pub epoch: LeaderEpoch,
    /// Bytes of the value.
    pub len: u64,
    /// Whose value, under which key; opaque here, but it must be a label.
    pub label: &'a [u8],
    /// Its hashes, for the header.
    pub hash: LabelHash,
}

/// Hashes of a label, as the header stores them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LabelHash {
    /// 64 bits to route by.
    pub hash: u64,
    /// 128 bits to tell labels apart by.
    pub fingerprint: u128,
}

impl LabelHash {
    /// The hashes that `core` defines for keys.
    pub fn of(label: &[u8]) -> Self {
        Self {
            hash: mooncrate_core::key::hash(label).0,
            fingerprint: mooncrate_core::key::fingerprint(label).0,
        }
    }
}

/// A life that is being written. Not shared: one writer per life.
#[derive(Debug)]
pub struct WriteGuard {
    segment: Arc<Segment>,
    locator: Locator,
    /// First byte of the extent, inside of the payload that `segment` keeps mapped; never used where
    /// the segment has none.
    pub(super) start: *mut u8,
    /// Bytes from there on that are ours: the extent, and more where [`Segment::begin_in`] was given more.
    pub(super) room: u64,
    pub(super) len: u64,
    pub(super) token: PutToken,
    /// The leader that planned the put.
    epoch: LeaderEpoch,
    /// What went through this guard, in order.
    pub(super) sums: SliceSums,
    /// Bytes on their way to memory of a device; `None`: none yet.
    pub(super) bounce: Option<Box<Bounce>>,
    /// Set by publishing, and by leaving it in quarantine; then dropping changes nothing.
    over: bool,
}

// SAFETY: the pointer leads into memory that `segment` keeps mapped, and no other guard has it.
unsafe impl Send for WriteGuard {}
// SAFETY: `&WriteGuard` reads plain fields only.
unsafe impl Sync for WriteGuard {}

/// A publish that was refused, and the guard, so that the writer can go on or drop it.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Unpublished {
    /// Why.
    pub error: PublishError,
    /// The life, unchanged.
    pub guard: WriteGuard,
}

impl Segment {
    /// Opens a slot for writing: Dead g → Reserved g → Writing g.
    pub fn begin(
        self: &Arc<Self>,
        now: Now,
        wanted: &BeginWrite<'_>,
    ) -> Result<WriteGuard, SegmentError> {
        self.begin_in(now, wanted, wanted.locator.extent)
    }

    /// As [`Segment::begin`], for an owner that has more room for the value than its extent: a disk reads
    /// whole blocks into it. Nobody else may use the room while the guard lives.
    pub fn begin_in(
        self: &Arc<Self>,
        now: Now,
        wanted: &BeginWrite<'_>,
        room: Extent,
    ) -> Result<WriteGuard, SegmentError> {
        let Locator { slot, generation, extent, .. } = wanted.locator;
        self.first_byte(room)?;
        let start = self.check_locator(&wanted.locator)?;
        if wanted.len > VALUE_BYTES_MAX
            || extent_bytes(wanted.len) != extent.len()
            || !extent.offset().is_multiple_of(EXTENT_ALIGN)
            || room.offset() != extent.offset()
            || room.len() < extent.len()
        {
            let (offset, extent_bytes) = (extent.offset(), extent.len());
            return Err(SegmentError::BadExtent { offset, extent_bytes, len: wanted.len });
        }
        if Label::decode(wanted.label).is_none() {
            return Err(SegmentError::BadLabel { bytes: wanted.label.len() });
        }
        if generation == Generation::MAX {
            return Err(SegmentError::UsedUp { slot });
        }
        let mut life = self.lives.lock(slot);
        {
            // Under the slot's lock: either the announcement to a newer leader shows this life, or
            // that leader's epoch is known here and the plan refused.
            let mut front = self.front.lock();
            front.witness(wanted.epoch)?;
            front.high_water = front.high_water.max(slot.0 + 1);
        }
        if canary::on(Canary::FreeBeforeBump) {
            self.bump_late(now, slot, &mut life);
        }
        self.step(Some(now), slot, generation, Event::Reserve)?;
        self.table.write(slot, &header(now, wanted));
        *life = Some(Life::new(wanted.label));
        self.step(Some(now), slot, generation, Event::Begin)
            .expect("a reserved slot can begin: its lock is ours");
        drop(life);
        Ok(WriteGuard {
            segment: Arc::clone(self),
            locator: wanted.locator,
            start,
            room: room.len(),
            len: wanted.len,
            token: wanted.token,
            epoch: wanted.epoch,
            sums: SliceSums::new(),
            bounce: None,
            over: false,
        })
    }
}

fn header(now: Now, wanted: &BeginWrite<'_>) -> Header {
    let extent = wanted.locator.extent;
    Header {
        key_hash: wanted.hash.hash,
        key_fp_hi: (wanted.hash.fingerprint >> 64) as u64,
        key_fp_lo: wanted.hash.fingerprint as u64,
        key_len: wanted.label.len() as u32,
        header_version: HEADER_VERSION,
        payload_base: extent.offset(),
        bytes_total: wanted.len,
        extent_bytes: extent.len(),
        // One page per object in host memory; both fit, because values end at `VALUE_BYTES_MAX`.
        page_size: extent.len() as u32,
        n_pages: 1,
        last_page_bytes: wanted.len as u32,
        epoch: wanted.epoch.0 as u32,
        state_ts: now.0,
        last_access: now.0,
        object_epoch: wanted.object.epoch.0,
        object_sequence: wanted.object.sequence,
        ..Header::default()
    }
}

impl WriteGuard {
    /// Which life is being written.
    pub fn locator(&self) -> &Locator {
        &self.locator
    }

    /// The segment it is in.
    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// The right that publishing needs.
    pub fn token(&self) -> PutToken {
        self.token
    }

    /// Bytes of the value.
    pub fn value_len(&self) -> u64 {
        self.len
    }

    /// Bytes that have arrived through this guard.
    pub fn seen(&self) -> u64 {
        self.sums.seen()
    }

    /// The seal of the bytes so far: that of the value once all have arrived.
    pub fn seal(&self) -> Seal {
        self.sums.seal()
    }

    /// Whether the master gave the put up. Nothing written from now on will be read.
    pub fn aborted(&self) -> bool {
        let word = self.segment.load(self.locator.slot);
        // With canary 4 the slot may be Ready while its bytes still come.
        let open = word.state() == ReplicaState::Writing
            || (canary::on(Canary::EarlyPublish) && word.state() == ReplicaState::Ready);
        word.generation() != self.locator.generation || !open
    }

    /// Copies the next bytes of the value to their place and sums them on the way.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), WriteError> {
        let expected = self.seen();
        if offset != expected {
            return Err(WriteError::OutOfOrder { offset, expected });
        }
        let room = self.len - expected;
        if bytes.len() as u64 > room {
            return Err(WriteError::TooLong { end: offset + bytes.len() as u64, len: self.len });
        }
        if self.segment.is_kept() {
            return Err(WriteError::Elsewhere);
        }
        if self.aborted() {
            return Err(WriteError::Aborted);
        }
        if !self.segment.is_in_place() {
            return self.far_write(bytes);
        }
        let target = self.start.wrapping_add(expected as usize);
        before_first_byte();
        // SAFETY: the target is a part of the extent, which is ours until the guard ends, and no
        // slice of the caller can lie in it.
        unsafe { self.sums.copy(target, bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// The place of the next bytes, at most `max` and at most the rest, for a receiver that fills it
    /// and then says how much by [`WriteGuard::filled`]. On the way to a device it may be less than that.
    pub fn buffer(&mut self, max: usize) -> Result<&mut [u8], WriteError> {
        let seen = self.seen();
        let len = max.min((self.len - seen) as usize);
        if self.segment.is_kept() {
            return Err(WriteError::Elsewhere);
        }
        if !self.segment.is_in_place() {
            return self.far_buffer(len);
        }
        before_first_byte();
        // SAFETY: a part of the extent, which is ours until the guard ends; `&mut self` keeps it the
        // only slice. Readers of an earlier life copy opaquely and discard what they got.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.start.wrapping_add(seen as usize), len) })
    }

    /// The first `len` bytes of the buffer have arrived; sums them while they are in cache.
    pub fn filled(&mut self, len: usize) -> Result<(), WriteError> {
        let seen = self.seen();
        if len as u64 > self.len - seen {
            return Err(WriteError::TooLong { end: seen + len as u64, len: self.len });
        }
        if self.segment.is_kept() {
            return Err(WriteError::Elsewhere);
        }
        if !self.segment.is_in_place() {
            return self.far_filled(len);
        }
        let start = self.start.wrapping_add(seen as usize);
        // SAFETY: as in `buffer`; the bytes are initialised, because mappings start as zeros.
        let bytes = unsafe { std::slice::from_raw_parts(start, len) };
        self.sums.update(bytes);
        Ok(())
    }

    /// Makes the value readable: all bytes came through this guard, and they are what the writer
    /// sealed. Writes the slice table.
    pub fn publish(self, now: Now, token: PutToken, seal: Seal) -> Result<(), Box<Unpublished>> {
        if let Err(error) = self.check_complete(token, seal) {
            return Err(Box::new(Unpublished { error, guard: self }));
        }
        if !self.segment.is_in_place() {
            // The copy of the last byte brought the table along.
            return self.flip(now, seal);
        }
        // SAFETY: the extent is ours and was made for a value of this length.
        unsafe { write_table(self.start, self.len, self.sums.sums()) };
        self.flip(now, seal)
    }

    /// Makes a value readable whose bytes and slice table a client of this machine stored itself. The
    /// owner has not seen them; every reader verifies the seal.
    pub fn publish_direct(
        self,
        now: Now,
        token: PutToken,
        seal: Seal,
    ) -> Result<(), Box<Unpublished>> {
        let error = match token == self.token {
            true if !self.segment.is_kept() => return self.flip(now, seal),
            true => PublishError::Elsewhere,
            false => PublishError::BadToken,
        };
        Err(Box::new(Unpublished { error, guard: self }))
    }

    /// Canary 4: makes the value readable while bytes are missing. The guard goes on taking them.
    #[cfg(canary)]
    pub fn publish_early(&mut self, now: Now, seal: Seal) -> Result<(), PublishError> {
        self.make_ready(now, seal)
    }

    fn check_complete(&self, token: PutToken, wanted: Seal) -> Result<(), PublishError> {
        if token != self.token {
            return Err(PublishError::BadToken);
        }
        if self.segment.is_kept() {
            return Err(PublishError::Elsewhere);
        }
        if self.far_failed() {
            return Err(PublishError::Device);
        }
        if canary::on(Canary::EarlyPublish) {
            return Ok(());
        }
        if self.seen() != self.len {
            return Err(PublishError::Incomplete { seen: self.seen(), len: self.len });
        }
        let found = self.seal();
        if found != wanted {
            return Err(PublishError::Corrupt { found, wanted });
        }
        Ok(())
    }

    pub(super) fn flip(mut self, now: Now, seal: Seal) -> Result<(), Box<Unpublished>> {
        match self.make_ready(now, seal) {
            Ok(()) => Ok(()),
            Err(error) => Err(Box::new(Unpublished { error, guard: self })),
        }
    }

    fn make_ready(&mut self, now: Now, seal: Seal) -> Result<(), PublishError> {
        if self.over {
            // Canary 4 was here before.
            return Ok(());
        }
        let Locator { slot, generation, .. } = self.locator;
        let _life = self.segment.lives.lock(slot);
        // A newer leader was told that this slot is being written, and may give its key to another put:
        // the value must not appear behind its back (C2).
        if self.segment.front.lock().epoch > self.epoch && !canary::on(Canary::OldEpochAccepted) {
            return Err(PublishError::Aborted);
        }
        self.segment.table.set_seal(slot, seal.0);
        self.segment
            .step(Some(now), slot, generation, Event::Publish)
            .map_err(|_| PublishError::Aborted)?;
        self.over = true;
        Ok(())
    }
}

impl WriteGuard {
    /// Ends the guard and not the quarantine: nobody knows whether the writer has let go, and nobody will. The range
    /// stays out of use for as long as the segment is there.
    pub fn leave_in_quarantine(mut self) {
        let Locator { slot, generation, .. } = self.locator;
        let _life = self.segment.lives.lock(slot);
        // An abort order may have been first.
        let _ = self.segment.step(None, slot, generation, Event::Abort);
        self.over = true;
    }
}

impl Drop for WriteGuard {
    /// The writer is gone: fences the slot and gives the range back.
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let Locator { slot, generation, .. } = self.locator;
        let next = generation.next().expect("`begin` refuses the last generation");
        let mut life = self.segment.lives.lock(slot);
        // An abort order may have been first; then the slot stands at `next` already.
        let _ = self.segment.step(None, slot, generation, Event::Abort);
        if self.segment.wipes_far().is_some() {
            drop(life);
            if !self.segment.wipe_far(self.locator.extent) {
                // It stays in quarantine: nobody gets a range that another tenant's bytes may lie in.
                return;
            }
            life = self.segment.lives.lock(slot);
        }
        self.segment
            .step(None, slot, next, Event::Fence)
            .expect("an unpublished life is Failed, and only its guard fences it");
        self.segment.wipe(self.locator.extent);
        *life = None;
        let freed = self.segment.notice(slot, generation, OrderResult::Freed { next });
        self.segment.news.lock().push(freed);
        self.segment.ring();
    }
}
