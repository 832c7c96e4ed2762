//! Writing in any order: parts of a value go to their places, and only publishing sums them. A session
//! that stores a value layer by layer writes this way.
//!
//! What must stay true: nothing is published but the bytes that the writer sealed. The owner sums what
//! lies in the extent at the end, so a part that is missing, doubled or damaged is found there.

use super::{PublishError, Unpublished, WriteError, WriteGuard};
use crate::sums::SliceSums;
use crate::word::before_first_byte;
use mooncrate_core::{Now, PutToken, Seal};

impl WriteGuard {
    /// The place of `len` bytes from `offset` on, for a receiver that fills it and then says so by
    /// [`WriteGuard::placed`]. On the way to a device it may be the place of the first of them only.
    pub fn place(&mut self, offset: u64, len: usize) -> Result<&mut [u8], WriteError> {
        let end = offset.saturating_add(len as u64);
        if end > self.len {
            return Err(WriteError::TooLong { end, len: self.len });
        }
        if self.segment().is_kept() {
            return Err(WriteError::Elsewhere);
        }
        if self.aborted() {
            return Err(WriteError::Aborted);
        }
        if !self.segment().is_in_place() {
            return self.far_place(offset, len);
        }
        before_first_byte();
        let start = self.start.wrapping_add(offset as usize);
        // SAFETY: a part of the extent, which is ours until the guard ends; `&mut self` keeps it the
        // only slice. Readers of an earlier life copy opaquely and discard what they got.
        Ok(unsafe { std::slice::from_raw_parts_mut(start, len) })
    }

    /// All of the last place is filled.
    pub fn placed(&mut self) -> Result<(), WriteError> {
        self.far_placed()
    }

    /// Copies a part to its place.
    pub fn write_part(&mut self, mut offset: u64, mut part: &[u8]) -> Result<(), WriteError> {
        loop {
            let place = self.place(offset, part.len())?;
            let (now, later) = part.split_at(place.len());
            place.copy_from_slice(now);
            self.placed()?;
            if later.is_empty() {
                return Ok(());
            }
            offset += now.len() as u64;
            part = later;
        }
    }

    /// The place of the value and all the room behind it, for a disk that reads whole blocks. What is
    /// published are the first bytes of it, as many as the value has.
    pub fn room(&mut self) -> Result<&mut [u8], WriteError> {
        if !self.segment().is_in_place() {
            return Err(WriteError::Elsewhere);
        }
        before_first_byte();
        // SAFETY: the room lies inside of the payload, and `begin_in` was promised that nobody else uses
        // it; otherwise as in `place`.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.start, self.room as usize) })
    }

    /// Makes a value readable whose parts were placed: they are what the writer sealed. Sums them first,
    /// as if they had come in order.
    pub fn publish_placed(
        mut self,
        now: Now,
        token: PutToken,
        seal: Seal,
    ) -> Result<(), Box<Unpublished>> {
        if self.segment().is_kept() {
            return self.publish(now, token, seal);
        }
        if !self.segment().is_in_place() {
            return match self.far_sum() {
                Ok(()) => self.publish(now, token, seal),
                Err(WriteError::Busy) => {
                    Err(Box::new(Unpublished { error: PublishError::Busy, guard: self }))
                }
                Err(_) => Err(Box::new(Unpublished { error: PublishError::Device, guard: self })),
            };
        }
        // SAFETY: the value is `len` bytes of the extent, which is ours; they are initialised, because
        // mappings start as zeros, and nobody else stores here while the guard lives.
        let value = unsafe { std::slice::from_raw_parts(self.start, self.len as usize) };
        self.sums = SliceSums::new();
        self.sums.update(value);
        self.publish(now, token, seal)
    }
}
