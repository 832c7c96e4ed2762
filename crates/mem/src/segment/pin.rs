//! Reading in the owner's process (R2): a pin keeps the range, a guard keeps the pin. Offload, copy
//! and scrub read this way too, and so does the owner on behalf of others, over TCP (R5) or for a
//! view in shared memory (R4).

use super::{Segment, SegmentError};
use crate::read::{ReadError, check_part};
use crate::sums::{self, SliceSums};
use mooncrate_core::canary::{self, Canary};
use mooncrate_core::header::Header;
use mooncrate_core::seal::table;
use mooncrate_core::{LeaderEpoch, Locator, Now, ObjectId, ReplicaState, Seal};
use std::sync::Arc;

/// A pinned value: its bytes stay as they are until the guard is dropped.
#[derive(Debug)]
pub struct PinGuard {
    segment: Arc<Segment>,
    locator: Locator,
    /// First byte of the extent, inside of the payload that `segment` keeps mapped; never used where
    /// the segment has none.
    start: *const u8,
    len: u64,
    /// Nobody takes the pin back.
    left: bool,
}

// SAFETY: the pointer leads into memory that `segment` keeps mapped and the pin keeps unchanged.
unsafe impl Send for PinGuard {}
// SAFETY: as above; all access is by loads.
unsafe impl Sync for PinGuard {}

impl Segment {
    /// Pins what a locator names, if it is READY in that life and this owner may serve (N1, R10).
    pub fn pin(self: &Arc<Self>, now: Now, locator: &Locator) -> Result<PinGuard, SegmentError> {
        let start = self.check_locator(locator)?;
        self.atomic(locator.slot).pin(locator.generation)?;
        let guard = self.guard(locator, start);
        // Stable now: the header changes only after the pin is gone. A locator of this life with
        // another extent was not made by us; the guard's drop takes the pin back.
        let here = self.extent(locator.slot);
        if here != locator.extent && !canary::on(Canary::NoGenerationCheck) {
            let (offset, extent_bytes) = (locator.extent.offset(), locator.extent.len());
            return Err(SegmentError::BadExtent { offset, extent_bytes, len: guard.len });
        }
        self.serving(now)?;
        self.table.set_last_access(locator.slot, now);
        Ok(guard)
    }

    /// Canary 8: counts a reader without looking at the state, as a count apart from the state must.
    #[cfg(canary)]
    pub fn pin_without_look(self: &Arc<Self>, locator: &Locator) -> Result<PinGuard, SegmentError> {
        let start = self.check_locator(locator)?;
        self.atomic(locator.slot).pin_without_look();
        Ok(self.guard(locator, start))
    }

    fn guard(self: &Arc<Self>, locator: &Locator, start: *mut u8) -> PinGuard {
        let (_, len) = self.table.value(locator.slot).expect("the slot was checked");
        // Always true but for canaries, which may hold another life's header.
        let len = len.min(locator.extent.len());
        PinGuard { segment: Arc::clone(self), locator: *locator, start, len, left: false }
    }
}

impl PinGuard {
    /// What is pinned.
    pub fn locator(&self) -> &Locator {
        &self.locator
    }

    /// The segment it is in.
    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// Whether the value was removed: nobody new can find it, and its range waits for this pin and others.
    pub fn is_retired(&self) -> bool {
        self.segment.load(self.locator.slot).state() == ReplicaState::Retiring
    }

    /// Bytes of the value.
    pub fn value_len(&self) -> u64 {
        self.len
    }

    /// The seal that the value was published under.
    pub fn seal(&self) -> Seal {
        Seal(self.segment.table.seal(self.locator.slot).expect("the slot was checked"))
    }

    /// The put that stored the value.
    pub fn object(&self) -> ObjectId {
        let header = self.header();
        ObjectId { epoch: LeaderEpoch(header.object_epoch), sequence: header.object_sequence }
    }

    /// The value; nothing, if it does not lie in memory of this process. Not verified: whoever hands it on verifies, or lets the
    /// receiver do it.
    pub fn bytes(&self) -> &[u8] {
        if !self.segment.is_in_place() {
            return &[];
        }
        // SAFETY: inside of the payload; published bytes are never written again, and the pin keeps
        // the range from being reused for as long as the slice can live.
        unsafe { std::slice::from_raw_parts(self.start, self.len as usize) }
    }

    /// The sums of the slices as they lie behind the value; empty for a value of one slice.
    pub fn table_bytes(&self) -> &[u8] {
        let (start, bytes) = table(self.len);
        if !self.segment.is_in_place() {
            return &[];
        }
        // SAFETY: as in `bytes`; the extent of a value holds its table.
        unsafe {
            std::slice::from_raw_parts(self.start.wrapping_add(start as usize), bytes as usize)
        }
    }

    /// The value and the table of its slices as they lie in the extent, with the padding between them:
    /// what a reader elsewhere needs to verify a part.
    pub fn sealed_bytes(&self) -> &[u8] {
        let (start, bytes) = table(self.len);
        let end = if bytes > 0 { start + bytes } else { self.len };
        if !self.segment.is_in_place() {
            return &[];
        }
        // SAFETY: as in `bytes`; the extent of a value holds its table, and publishing wrote both and
        // cleared what lies between.
        unsafe { std::slice::from_raw_parts(self.start, end as usize) }
    }

    /// Copies the value and verifies it on the way. After an error the target holds rubbish.
    pub fn read_into(&self, seal: Seal, target: &mut [u8]) -> Result<(), ReadError> {
        if target.len() as u64 != self.len || self.segment.is_kept() {
            return Err(ReadError::OutOfBounds);
        }
        if !self.segment.is_in_place() {
            return self.far_read(seal, target);
        }
        // SAFETY: the value is `len` bytes from `start`, pinned.
        let found = unsafe { sums::read_value(target, self.start) };
        if found == seal { Ok(()) } else { Err(ReadError::Corrupt) }
    }

    /// Copies the part that starts at `start`, verified as a part of the sealed value (R11). After an
    /// error the target holds rubbish.
    pub fn read_part_into(
        &self,
        seal: Seal,
        start: u64,
        target: &mut [u8],
    ) -> Result<(), ReadError> {
        check_part(self.len, start, target)?;
        if self.segment.is_kept() {
            return Err(ReadError::OutOfBounds);
        }
        if !self.segment.is_in_place() {
            return self.far_read_part(seal, start, target);
        }
        // SAFETY: the value and its table lie in the extent, pinned, and the part in the value.
        let good = unsafe { sums::read_part(target, self.start, self.len, start, seal) };
        if good { Ok(()) } else { Err(ReadError::Corrupt) }
    }

    /// Whether the bytes, and the sums of their slices behind them, are those that were published under
    /// the seal: a reader of the whole value needs the one, a reader of a part needs both.
    pub fn verify(&self) -> Result<(), ReadError> {
        if self.segment.is_kept() {
            return Err(ReadError::OutOfBounds);
        }
        if !self.segment.is_in_place() {
            return self.far_verify();
        }
        let mut sums = SliceSums::new();
        sums.update(self.bytes());
        let (seal, sums) = sums.finish();
        let mut table = self.table_bytes().chunks_exact(8).zip(&sums);
        let good = seal == self.seal() && table.all(|(entry, sum)| entry == sum.to_le_bytes());
        if good { Ok(()) } else { Err(ReadError::Corrupt) }
    }

    fn header(&self) -> Header {
        self.segment.table.read(self.locator.slot).expect("the slot was checked")
    }
}

impl PinGuard {
    /// Ends the guard and not the pin: nobody knows whether the reader has let go, and nobody will. The range stays as
    /// it is for as long as the segment is there.
    pub fn leave(mut self) {
        self.left = true;
    }
}

impl Drop for PinGuard {
    fn drop(&mut self) {
        if !self.left {
            self.segment.atomic(self.locator.slot).unpin();
        }
    }
}
