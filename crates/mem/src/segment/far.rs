//! Segments whose payload lies in memory of a device ([`Far`]): headers, words, labels, orders and
//! announcements as ever, and bytes that are copied through rooms.
//!
//! ```text
//! begin ─► WriteGuard ─ room full: store ─ last byte: store, table ─ publish ─► Ready
//! pin ───► PinGuard ─── room: load a few slices ─ sum, copy ─ load the next …
//! ```
//!
//! What must stay true: nothing is Ready before the copy of its last byte has ended well; no slot's lock
//! is held over a copy; a room is held while bytes come or go, not while a put is open.

use super::{Payload, PinGuard, Segment, SegmentSpec, WriteError, WriteGuard};
use crate::far::{Far, Room};
use crate::read::{ReadError, check_part};
use crate::region::{Pages, Region};
use crate::sums::{SliceSums, seal_of};
use crate::table::Table;
use crate::word::before_first_byte;
use mooncrate_core::limits::SLICE_BYTES;
use mooncrate_core::seal::{slices, table};
use mooncrate_core::{Extent, Seal};
use std::io;
use std::sync::Arc;

/// A room in use.
type Held = Box<dyn Room>;

/// What a guard of far memory has under way.
#[derive(Debug, Default)]
pub(super) struct Bounce {
    /// Held from the first byte that is not stored to the last one.
    room: Option<Held>,
    /// Bytes at its start that are the value's next and not stored yet.
    fill: usize,
    /// The part that [`WriteGuard::place`] handed out: where it goes, and its bytes.
    part: Option<(u64, usize)>,
    /// A copy failed: what lies there is nobody's value.
    failed: bool,
}

impl Segment {
    /// A segment of headers in host memory and of payload in memory of a device. `wipes`: every range is
    /// zeroed when its life is over, as in [`Segment::create_wiping`].
    pub fn create_far(spec: SegmentSpec, far: Arc<dyn Far>, wipes: bool) -> io::Result<Arc<Self>> {
        spec.check()?;
        let spec = SegmentSpec { shared: false, huge: false, ..spec };
        let identity = spec.identity();
        let headers = Region::anonymous(identity.table_bytes(), Pages::Small)?;
        let table = Table::create(headers, &identity);
        Ok(Arc::new(Self::with(spec, table, Payload::Far(far), wipes)))
    }

    /// The device's memory that its bytes lie in; `None`: they lie elsewhere.
    pub fn far(&self) -> Option<&Arc<dyn Far>> {
        match &self.payload {
            Payload::Far(far) => Some(far),
            Payload::Host { .. } | Payload::Kept => None,
        }
    }

    /// Far memory whose ranges are zeroed between lives: that is a copy, which waits.
    pub(super) fn wipes_far(&self) -> Option<&Arc<dyn Far>> {
        self.far().filter(|_| self.wipes)
    }
}

impl WriteGuard {
    /// A room, from the pool if this guard holds none.
    fn bounce(&mut self) -> Result<&mut Held, WriteError> {
        if self.far_failed() {
            return Err(WriteError::Device);
        }
        let held = self.far_state().room.take();
        let held = if let Some(held) = held {
            held
        } else {
            let far = self.segment().far().ok_or(WriteError::Elsewhere)?;
            far.room().ok_or(WriteError::Busy)?
        };
        Ok(self.far_state().room.insert(held))
    }

    fn far_state(&mut self) -> &mut Bounce {
        self.bounce.get_or_insert_default()
    }

    /// Whether a copy of its bytes has failed.
    pub(super) fn far_failed(&self) -> bool {
        self.bounce.as_ref().is_some_and(|bounce| bounce.failed)
    }

    /// As [`WriteGuard::buffer`]: the rest of a room.
    pub(super) fn far_buffer(&mut self, max: usize) -> Result<&mut [u8], WriteError> {
        let rest = self.len - self.seen();
        let max = u64::try_from(max).unwrap_or(u64::MAX).min(rest) as usize;
        if max == 0 {
            return Ok(&mut []);
        }
        let fill = self.far_state().fill;
        let free = &mut self.bounce()?.bytes()[fill..];
        let len = max.min(free.len());
        Ok(&mut free[..len])
    }

    /// As [`WriteGuard::filled`]. A full room is stored; after the last byte the room goes back.
    pub(super) fn far_filled(&mut self, len: usize) -> Result<(), WriteError> {
        if len == 0 {
            return if self.far_failed() { Err(WriteError::Device) } else { Ok(()) };
        }
        self.bounce()?;
        let bounce = self.bounce.as_mut().expect("it was just made sure of");
        let bytes = bounce.room.as_mut().expect("it was just made sure of").bytes();
        let (capacity, end) = (bytes.len(), bounce.fill + len);
        if end > capacity {
            return Err(WriteError::TooLong { end: end as u64, len: capacity as u64 });
        }
        self.sums.update(&bytes[bounce.fill..end]);
        bounce.fill = end;
        let whole = self.seen() == self.len;
        if end == capacity || whole {
            let stored = self.seen() - end as u64;
            self.far_store(stored, end)?;
            self.far_state().fill = 0;
        }
        if whole {
            self.far_table()?;
            self.far_state().room = None;
        }
        Ok(())
    }

    /// As [`WriteGuard::write`], once it is known to fit.
    pub(super) fn far_write(&mut self, mut bytes: &[u8]) -> Result<(), WriteError> {
        while !bytes.is_empty() {
            let room = self.far_buffer(bytes.len())?;
            let (now, later) = bytes.split_at(room.len());
            room.copy_from_slice(now);
            self.far_filled(now.len())?;
            bytes = later;
        }
        Ok(())
    }

    /// As [`WriteGuard::place`]: as much as a room holds.
    pub(super) fn far_place(&mut self, offset: u64, len: usize) -> Result<&mut [u8], WriteError> {
        self.far_state().part = None;
        let capacity = self.bounce()?.bytes().len();
        let len = len.min(capacity);
        self.far_state().part = Some((offset, len));
        Ok(&mut self.bounce()?.bytes()[..len])
    }

    /// As [`WriteGuard::placed`]: the part is stored, and the room goes back.
    pub(super) fn far_placed(&mut self) -> Result<(), WriteError> {
        let part = self.bounce.as_mut().and_then(|bounce| bounce.part.take());
        let Some((offset, len)) = part else { return Ok(()) };
        let stored = self.far_store(offset, len);
        self.far_state().room = None;
        stored
    }

    /// Sums what lies in the far memory, as if it had come in order, and writes the table of its slices.
    pub(super) fn far_sum(&mut self) -> Result<(), WriteError> {
        let (base, len) = (self.locator().extent.offset(), self.len);
        let mut sums = SliceSums::new();
        while sums.seen() < len {
            let at = sums.seen();
            let room = self.bounce()?;
            let count = room.bytes().len().min(usize::try_from(len - at).unwrap_or(usize::MAX));
            if room.load(base + at, count).is_err() {
                return Err(self.far_fault());
            }
            sums.update(&self.bounce()?.bytes()[..count]);
        }
        self.sums = sums;
        self.far_table()?;
        self.far_state().room = None;
        Ok(())
    }

    /// Stores the sums of the slices behind the value, and zeros between the two.
    fn far_table(&mut self) -> Result<(), WriteError> {
        let (start, bytes) = table(self.len);
        if bytes == 0 {
            return Ok(());
        }
        let gap = (start - self.len) as usize;
        let sums: Vec<u64> = self.sums.sums().collect();
        let place = &mut self.bounce()?.bytes()[..gap + bytes as usize];
        let (zeros, entries) = place.split_at_mut(gap);
        zeros.fill(0);
        for (entry, sum) in entries.chunks_exact_mut(8).zip(sums) {
            entry.copy_from_slice(&sum.to_le_bytes());
        }
        self.far_store(self.len, gap + bytes as usize)
    }

    /// Stores the first `len` bytes of the room at `at` of the extent.
    fn far_store(&mut self, at: u64, len: usize) -> Result<(), WriteError> {
        let offset = self.locator().extent.offset() + at;
        before_first_byte();
        match self.bounce()?.store(offset, len) {
            Ok(()) => Ok(()),
            Err(_) => Err(self.far_fault()),
        }
    }

    /// A copy failed: this guard takes nothing more and publishes nothing.
    fn far_fault(&mut self) -> WriteError {
        *self.far_state() = Bounce { failed: true, ..Bounce::default() };
        WriteError::Device
    }
}

impl PinGuard {
    /// A room to load into, where the value lies in far memory; `None`: it lies elsewhere.
    pub fn room(&self) -> Result<Option<Held>, ReadError> {
        let Some(far) = self.segment().far() else { return Ok(None) };
        far.room().map(Some).ok_or(ReadError::Busy)
    }

    /// Loads `len` bytes from `start` of the extent to the front of a room: of the value, the padding and
    /// the table behind it. Not verified, as [`PinGuard::sealed_bytes`].
    pub fn load(&self, room: &mut dyn Room, start: u64, len: usize) -> Result<(), ReadError> {
        let inside = start.checked_add(len as u64).is_some_and(|end| end <= self.sealed_len());
        if !inside || len > room.bytes().len() {
            return Err(ReadError::OutOfBounds);
        }
        let at = self.locator().extent.offset() + start;
        room.load(at, len).map_err(|_| ReadError::Device)
    }

    /// Bytes of the value, and of the table of its slices with the padding before it.
    pub fn sealed_len(&self) -> u64 {
        let (start, bytes) = table(self.value_len());
        if bytes > 0 { start + bytes } else { self.value_len() }
    }

    fn held_room(&self) -> Result<Held, ReadError> {
        self.room()?.ok_or(ReadError::OutOfBounds)
    }

    /// Sums the whole value on its way to `target`, if there is one.
    fn far_sums(&self, mut target: Option<&mut [u8]>) -> Result<SliceSums, ReadError> {
        let (len, mut sums) = (self.value_len(), SliceSums::new());
        if len == 0 {
            return Ok(sums);
        }
        let mut room = self.held_room()?;
        while sums.seen() < len {
            let at = sums.seen();
            let count = room.bytes().len().min(usize::try_from(len - at).unwrap_or(usize::MAX));
            self.load(&mut *room, at, count)?;
            let bytes = &room.bytes()[..count];
            match &mut target {
                // One pass over memory for both: the room is larger than a cache.
                Some(target) => {
                    let place = &mut target[at as usize..][..count];
                    // SAFETY: both have `count` bytes, and a room is nobody's slice but ours.
                    unsafe { sums.copy(place.as_mut_ptr(), bytes.as_ptr(), count) };
                }
                None => sums.update(bytes),
            }
        }
        Ok(sums)
    }

    pub(super) fn far_read(&self, seal: Seal, target: &mut [u8]) -> Result<(), ReadError> {
        let found = self.far_sums(Some(target))?.seal();
        if found == seal { Ok(()) } else { Err(ReadError::Corrupt) }
    }

    /// The sums of the slices as they lie behind the value; `room` is used for them.
    fn far_table(&self, room: &mut dyn Room) -> Result<Vec<u64>, ReadError> {
        let (start, bytes) = table(self.value_len());
        self.load(room, start, bytes as usize)?;
        let (entries, _) = room.bytes()[..bytes as usize].as_chunks::<8>();
        Ok(entries.iter().map(|entry| u64::from_le_bytes(*entry)).collect())
    }

    pub(super) fn far_verify(&self) -> Result<(), ReadError> {
        let (seal, sums) = self.far_sums(None)?.finish();
        let tabled = table(self.value_len()).1 > 0;
        let good =
            seal == self.seal() && (!tabled || self.far_table(&mut *self.held_room()?)? == sums);
        if good { Ok(()) } else { Err(ReadError::Corrupt) }
    }

    /// As [`PinGuard::read_part_into`]: only the slices that the part touches are loaded, and the table.
    pub(super) fn far_read_part(
        &self,
        seal: Seal,
        start: u64,
        target: &mut [u8],
    ) -> Result<(), ReadError> {
        let len = self.value_len();
        check_part(len, start, target)?;
        let mut room = self.held_room()?;
        let count = slices(len);
        if count <= 1 {
            self.load(&mut *room, 0, len as usize)?;
            let value = &room.bytes()[..len as usize];
            target.copy_from_slice(&value[start as usize..][..target.len()]);
            return if seal_of(value) == seal { Ok(()) } else { Err(ReadError::Corrupt) };
        }
        let sums = self.far_table(&mut *room)?;
        if Seal::over(len, sums.iter().copied()) != seal {
            return Err(ReadError::Corrupt);
        }
        // Whole slices at a time; a room holds one at least.
        let step = room.bytes().len() as u64 / SLICE_BYTES * SLICE_BYTES;
        let end = start + target.len() as u64;
        let last = end.next_multiple_of(SLICE_BYTES).min(len);
        let mut at = start / SLICE_BYTES * SLICE_BYTES;
        while at < last && start < end {
            let bytes = (last - at).min(step) as usize;
            self.load(&mut *room, at, bytes)?;
            let loaded = &room.bytes()[..bytes];
            let first = (at / SLICE_BYTES) as usize;
            let found = loaded.chunks(SLICE_BYTES as usize).map(crate::crc::crc);
            if !found.eq(sums[first..].iter().copied().take(bytes.div_ceil(SLICE_BYTES as usize))) {
                return Err(ReadError::Corrupt);
            }
            let (from, to) = (start.max(at), end.min(at + bytes as u64));
            target[(from - start) as usize..(to - start) as usize]
                .copy_from_slice(&loaded[(from - at) as usize..(to - at) as usize]);
            at += bytes as u64;
        }
        Ok(())
    }
}

impl Segment {
    /// Zeroes the range of a life that nobody reads or writes any more; no lock is held. False: it could
    /// not be, and the range must not be handed out.
    pub(super) fn wipe_far(&self, extent: Extent) -> bool {
        self.wipes_far().is_none_or(|far| far.zero(extent).is_ok())
    }
}
