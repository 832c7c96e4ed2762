//! Reading without a pin (R3): word, copy, word again, the owner's fence in time, checksum. The
//! steps are public one by one, because the simulator puts other events between them; the whole read
//! is made of the same steps and ends with the same [`judge`].
//!
//! ```text
//! word (Acquire) ─► opaque copy ─► Acquire fence ─► word (Relaxed) ─► serve_until, clock ─► seal
//! ```
//!
//! What must stay true: nothing is said to be read unless `judge` agreed, and `judge` saw the clock
//! after the last byte was copied.

use crate::crc::Crc;
use crate::life::Life;
use crate::region::{OutOfBounds, Region};
use crate::sums;
use crate::table::Table;
use crate::word::{AtomicWord, readable};
use mooncrate_core::canary::{self, Canary};
use mooncrate_core::limits::VALUE_BYTES_MAX;
use mooncrate_core::seal::extent_bytes;
use mooncrate_core::word::Word;
use mooncrate_core::{Advice, Extent, Generation, Locator, Now, Seal, Slot};

/// Why bytes were not handed out. Whatever was copied is to be thrown away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The slot lives another life: the object was evicted or removed.
    #[error("the locator is stale; ask the master where the object is now")]
    Stale,
    /// The owner may not serve now: it is dead, stopped or cut off from the master.
    #[error("the owner's leave to serve has run out; ask the master where the object is now")]
    Fenced,
    /// The right life, but not the bytes that were sealed.
    #[error("the bytes do not add up to the seal of the object")]
    Corrupt,
    /// The locator reaches outside of the segment, or does not fit the length.
    #[error("the locator reaches outside of the segment or does not fit the length asked for")]
    OutOfBounds,
    /// Too many readers are inside.
    #[error("too many readers hold the object, or are at its GPU; try again in a moment")]
    Busy,
    /// The device that the bytes lie on did not copy them.
    #[error("the GPU that the bytes lie on did not copy them; its owner's log says why")]
    Device,
}

impl ReadError {
    /// What the caller does next.
    pub const fn advice(&self) -> Advice {
        match self {
            Self::Stale | Self::Fenced => Advice::Retry { after_ms: 0 },
            Self::Busy => Advice::Retry { after_ms: 1 },
            Self::Device => Advice::Retry { after_ms: 100 },
            Self::Corrupt => Advice::TreatAsMiss,
            Self::OutOfBounds => Advice::GiveUp,
        }
    }
}

impl From<OutOfBounds> for ReadError {
    fn from(_: OutOfBounds) -> Self {
        Self::OutOfBounds
    }
}

/// What a reader without a pin saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The word before the first byte was copied.
    pub before: Word,
    /// The word after the last one.
    pub after: Word,
    /// The owner's leave to serve, seen after the last byte.
    pub serve_until: Now,
    /// The clock, read after that.
    pub now: Now,
    /// Whether the copied bytes add up to the seal.
    pub sealed: bool,
}

/// Whether what was copied under a locator of this generation is the object (R3, R10, R11).
pub fn judge(generation: Generation, reading: &Reading) -> Result<(), ReadError> {
    if !readable(reading.before, generation) || !readable(reading.after, generation) {
        return Err(ReadError::Stale);
    }
    serving(reading.serve_until, reading.now)?;
    if reading.sealed { Ok(()) } else { Err(ReadError::Corrupt) }
}

/// Whether an owner with this leave may serve now (R10).
pub(crate) fn serving(serve_until: Now, now: Now) -> Result<(), ReadError> {
    if now < serve_until || canary::on(Canary::NoServeUntil) {
        Ok(())
    } else {
        Err(ReadError::Fenced)
    }
}

/// The first byte of a locator's extent, if it fits a value of `len` bytes.
pub(crate) fn check_extent(
    payload: &Region,
    extent: Extent,
    len: u64,
) -> Result<*mut u8, ReadError> {
    if len > VALUE_BYTES_MAX || extent_bytes(len) != extent.len() {
        return Err(ReadError::OutOfBounds);
    }
    Ok(payload.check(extent)?.as_ptr())
}

/// A segment as a reader without pins sees it, here or in another process.
#[derive(Clone, Copy, Debug)]
pub struct OneSided<'a> {
    table: &'a Table,
    /// `None`: the bytes are not in memory.
    payload: Option<&'a Region>,
    life: Option<&'a Life>,
}

impl<'a> OneSided<'a> {
    pub(crate) fn new(table: &'a Table, payload: Option<&'a Region>) -> Self {
        Self { table, payload, life: None }
    }

    /// The same; nothing is served once the owner is known to be dead.
    pub(crate) fn watching(self, life: Option<&'a Life>) -> Self {
        Self { life, ..self }
    }

    /// First step: the word of a slot.
    pub fn word(&self, slot: Slot) -> Result<Word, ReadError> {
        self.atomic(slot).map(AtomicWord::load)
    }

    /// Second step, as often as wanted: copies a part of the payload. What arrives may be a mixture
    /// of several lives; only [`judge`] can tell.
    pub fn copy(&self, part: Extent, target: &mut [u8]) -> Result<(), ReadError> {
        if part.len() != target.len() as u64 {
            return Err(ReadError::OutOfBounds);
        }
        let source = self.payload()?.check(part)?.as_ptr();
        // SAFETY: `check` proved the source; the target is a slice of the same length, and private.
        // The copy is opaque, so the owner may write to the source meanwhile.
        let _ = unsafe { Crc::new().copy(target.as_mut_ptr(), source, target.len()) };
        Ok(())
    }

    /// Third step: the word once more, after the last byte.
    pub fn word_again(&self, slot: Slot, before: Word) -> Result<Word, ReadError> {
        Ok(self.atomic(slot)?.load_again(before))
    }

    /// Fourth step: until when the owner may serve. The clock is read after this.
    pub fn serve_until(&self) -> Now {
        if self.life.is_some_and(Life::is_over) { Now(0) } else { self.table.serve_until() }
    }

    /// The whole read: fills `target` with the value, or says why not.
    pub fn read_into(
        &self,
        locator: &Locator,
        seal: Seal,
        target: &mut [u8],
        clock: impl FnOnce() -> Now,
    ) -> Result<(), ReadError> {
        let source = check_extent(self.payload()?, locator.extent, target.len() as u64)?;
        // SAFETY: the extent lies inside of the payload and holds a value of this length; the
        // target is private. The copy is opaque, so the owner may write meanwhile.
        self.read(locator, clock, || unsafe { sums::read_value(target, source) } == seal)
    }

    /// As [`OneSided::read_into`] for the part of a value of `len` bytes that starts at `start`.
    pub fn read_part_into(
        &self,
        locator: &Locator,
        sealed: (u64, Seal),
        start: u64,
        target: &mut [u8],
        clock: impl FnOnce() -> Now,
    ) -> Result<(), ReadError> {
        let (len, seal) = sealed;
        let source = check_extent(self.payload()?, locator.extent, len)?;
        check_part(len, start, target)?;
        self.read(locator, clock, || {
            // SAFETY: as in `read_into`, and the part lies inside of the value.
            unsafe { sums::read_part(target, source, len, start, seal) }
        })
    }

    /// Of each life whether it goes on; none does if the owner may not serve. One look at its leave and one at the
    /// clock, after all words, count for all of them.
    pub fn living(
        &self,
        lives: impl IntoIterator<Item = (Slot, Generation)>,
        clock: impl FnOnce() -> Now,
    ) -> Vec<bool> {
        let goes_on =
            |(slot, generation)| self.word(slot).is_ok_and(|word| readable(word, generation));
        let mut living: Vec<bool> = lives.into_iter().map(goes_on).collect();
        let serve_until = self.serve_until();
        if serving(serve_until, clock()).is_err() {
            living.fill(false);
        }
        living
    }

    /// The frame of every unpinned read; `copy` says whether what it copied adds up.
    pub(crate) fn read(
        &self,
        locator: &Locator,
        clock: impl FnOnce() -> Now,
        copy: impl FnOnce() -> bool,
    ) -> Result<(), ReadError> {
        let word = self.atomic(locator.slot)?;
        let before = word.load();
        if !readable(before, locator.generation) {
            return Err(ReadError::Stale);
        }
        let sealed = copy();
        let after = word.load_again(before);
        let serve_until = self.serve_until();
        let reading = Reading { before, after, serve_until, now: clock(), sealed };
        judge(locator.generation, &reading)
    }

    fn payload(&self) -> Result<&'a Region, ReadError> {
        self.payload.ok_or(ReadError::OutOfBounds)
    }

    fn atomic(&self, slot: Slot) -> Result<&'a AtomicWord, ReadError> {
        self.table.word(slot).ok_or(ReadError::OutOfBounds)
    }
}

/// Whether a part lies inside of a value.
pub(crate) fn check_part(len: u64, start: u64, target: &[u8]) -> Result<(), ReadError> {
    match start.checked_add(target.len() as u64) {
        Some(end) if end <= len => Ok(()),
        _ => Err(ReadError::OutOfBounds),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mooncrate_core::ReplicaState as S;

    /// Each reason to refuse, alone, and in the order that helps the caller most.
    #[test]
    fn the_judge_refuses_for_each_reason() {
        let g = Generation(4);
        let ready = Word::new(g, S::Ready, 0);
        let good = Reading {
            before: ready,
            after: ready,
            serve_until: Now(10),
            now: Now(9),
            sealed: true,
        };
        assert_eq!(judge(g, &good), Ok(()));
        let pinned = Word::new(g, S::Ready, 3);
        assert_eq!(judge(g, &Reading { after: pinned, ..good }), Ok(()), "pins come and go");
        let stale = Err(ReadError::Stale);
        assert_eq!(judge(Generation(3), &good), stale);
        for other in [Word::new(g, S::Retiring, 0), Word::new(Generation(5), S::Ready, 0)] {
            assert_eq!(judge(g, &Reading { before: other, ..good }), stale);
            assert_eq!(judge(g, &Reading { after: other, sealed: false, ..good }), stale);
        }
        assert_eq!(judge(g, &Reading { now: Now(10), ..good }), Err(ReadError::Fenced));
        assert_eq!(judge(g, &Reading { sealed: false, ..good }), Err(ReadError::Corrupt));
    }
}
