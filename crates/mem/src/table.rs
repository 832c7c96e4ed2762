//! The header table of a segment: a preamble of one page, then one 128-byte header per slot
//! (`docs/formats/segment.md`). The owner maps it for writing; clients can only read it.
//!
//! What must stay true: a slot's place never holds anything but a header (type-stable), every access
//! is one aligned 64-bit atomic, and the control word is touched through [`AtomicWord`] only. So
//! there is no data race, whatever other processes and threads do.

use crate::atomic::{AtomicU64, Ordering};
use crate::region::Region;
use crate::word::AtomicWord;
use mooncrate_core::header::{HEADER_BYTES, Header, WORD_OFFSET};
use mooncrate_core::{Extent, Incarnation, Now, SegmentId, Slot};
use std::io;

/// Bytes in front of the first header.
pub const PREAMBLE_BYTES: usize = 4096;
/// "mooncseg", read as a little-endian number.
const MAGIC: u64 = u64::from_le_bytes(*b"mooncseg");
/// Version of preamble and table.
const VERSION: u64 = 2;

/// Words of the preamble, by index.
mod word_at {
    pub(super) const MAGIC: usize = 0;
    pub(super) const VERSION: usize = 1;
    pub(super) const SEGMENT: usize = 2;
    pub(super) const INCARNATION: usize = 3;
    pub(super) const BYTES: usize = 4;
    pub(super) const SLOTS: usize = 5;
    /// On a cache line of its own: it is the only word of the preamble that changes.
    pub(super) const SERVE_UNTIL: usize = 8;
}

/// Words of a header.
const HEADER_WORDS: usize = HEADER_BYTES / 8;
/// Which of them is the control word.
const CONTROL: usize = WORD_OFFSET / 8;
/// Which of them is the start of the extent.
const PAYLOAD_BASE: usize = 3;
/// Which of them is the length of the value.
const BYTES_TOTAL: usize = 4;
/// Which of them is the time of the last change of state.
const STATE_TS: usize = 8;
/// Which of them is the time of the last access.
const LAST_ACCESS: usize = 9;
/// Which of them is the seal.
const SEAL: usize = 11;

const _: () = {
    use std::mem::offset_of;
    assert!(cfg!(target_endian = "little"), "shared tables are little-endian");
    assert!(size_of::<AtomicWord>() == 8 && align_of::<AtomicWord>() == 8);
    assert!(offset_of!(Header, payload_base) == 8 * PAYLOAD_BASE);
    assert!(offset_of!(Header, bytes_total) == 8 * BYTES_TOTAL);
    assert!(offset_of!(Header, state_ts) == 8 * STATE_TS);
    assert!(offset_of!(Header, last_access) == 8 * LAST_ACCESS);
    assert!(offset_of!(Header, seal) == 8 * SEAL);
};

/// What a table is about, as its preamble says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Which segment.
    pub segment: SegmentId,
    /// Which mount of it.
    pub incarnation: Incarnation,
    /// Bytes of payload.
    pub bytes: u64,
    /// Headers in the table.
    pub slots: u32,
}

impl Identity {
    /// Bytes of the whole table.
    pub fn table_bytes(&self) -> usize {
        PREAMBLE_BYTES + self.slots as usize * HEADER_BYTES
    }
}

/// A header table in a region.
#[derive(Debug)]
pub(crate) struct Table {
    region: Region,
    slots: u32,
}

impl Table {
    /// Writes the preamble of a fresh region, whose zeros are dead slots in generation 0.
    pub(crate) fn create(region: Region, identity: &Identity) -> Self {
        let table = Self { region, slots: identity.slots };
        for (at, value) in preamble(identity) {
            table.preamble_word(at).store(value, Ordering::Relaxed);
        }
        table
    }

    /// Checks the preamble of a table that another process made.
    pub(crate) fn open(region: Region, identity: &Identity) -> io::Result<Self> {
        let table = Self { region, slots: identity.slots };
        for (at, wanted) in preamble(identity) {
            let found = table.preamble_word(at).load(Ordering::Relaxed);
            if found != wanted {
                let text = format!("word {at} of the preamble is {found:x}, expected {wanted:x}");
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
        }
        Ok(table)
    }

    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    /// The control word of a slot, if the slot is in the table.
    pub(crate) fn word(&self, slot: Slot) -> Option<&AtomicWord> {
        let word = self.header_word(slot, CONTROL)?;
        // SAFETY: `AtomicWord` is a transparent wrapper of the atomic that is there.
        Some(unsafe { &*std::ptr::from_ref(word).cast::<AtomicWord>() })
    }

    /// Until when the owner may serve (R10).
    pub(crate) fn serve_until(&self) -> Now {
        // Relaxed: it orders nothing, it is compared with a clock.
        Now(self.preamble_word(word_at::SERVE_UNTIL).load(Ordering::Relaxed))
    }

    pub(crate) fn set_serve_until(&self, until: Now) {
        // Relaxed: as above.
        self.preamble_word(word_at::SERVE_UNTIL).store(until.0, Ordering::Relaxed);
    }

    /// Where the value of a slot starts and how long it is.
    pub(crate) fn value(&self, slot: Slot) -> Option<(u64, u64)> {
        // Relaxed: whoever asks holds a pin or the slot's lock, which ordered the stores before.
        let base = self.header_word(slot, PAYLOAD_BASE)?.load(Ordering::Relaxed);
        Some((base, self.header_word(slot, BYTES_TOTAL)?.load(Ordering::Relaxed)))
    }

    /// The seal of a slot's value.
    pub(crate) fn seal(&self, slot: Slot) -> Option<u64> {
        // Relaxed: as above.
        Some(self.header_word(slot, SEAL)?.load(Ordering::Relaxed))
    }

    /// Before a publish; its Release orders the store.
    pub(crate) fn set_seal(&self, slot: Slot, seal: u64) {
        self.set(slot, SEAL, seal);
    }

    pub(crate) fn set_state_ts(&self, slot: Slot, now: Now) {
        self.set(slot, STATE_TS, now.0);
    }

    pub(crate) fn set_last_access(&self, slot: Slot, now: Now) {
        self.set(slot, LAST_ACCESS, now.0);
    }

    /// Writes a whole header, all but its control word.
    pub(crate) fn write(&self, slot: Slot, header: &Header) {
        for (at, value) in header.to_words().into_iter().enumerate() {
            if at != CONTROL {
                self.set(slot, at, value);
            }
        }
    }

    /// Reads a whole header. The caller holds the slot's lock, so it is one life's.
    pub(crate) fn read(&self, slot: Slot) -> Option<Header> {
        let mut words = [0; HEADER_WORDS];
        for (at, word) in words.iter_mut().enumerate() {
            // Relaxed: as in `value`.
            *word = self.header_word(slot, at)?.load(Ordering::Relaxed);
        }
        Some(Header::from_words(&words))
    }

    fn set(&self, slot: Slot, at: usize, value: u64) {
        if let Some(word) = self.header_word(slot, at) {
            // Relaxed: the control word's Release orders it.
            word.store(value, Ordering::Relaxed);
        }
    }

    fn header_word(&self, slot: Slot, at: usize) -> Option<&AtomicU64> {
        (slot.0 < self.slots)
            .then(|| self.atomic(PREAMBLE_BYTES + slot.0 as usize * HEADER_BYTES + 8 * at))
    }

    fn preamble_word(&self, at: usize) -> &AtomicU64 {
        self.atomic(8 * at)
    }

    fn atomic(&self, offset: usize) -> &AtomicU64 {
        let extent = Extent::new(offset as u64, 8).expect("offsets are far below the maximum");
        let at = self.region.check(extent).expect("the region was made for this many slots");
        // SAFETY: inside of the mapping, which lives as long as `self`; aligned, because offsets are
        // multiples of 8 from a page; only ever accessed as an atomic.
        unsafe { at.cast::<AtomicU64>().as_ref() }
    }
}

fn preamble(identity: &Identity) -> [(usize, u64); 6] {
    [
        (word_at::MAGIC, MAGIC),
        (word_at::VERSION, VERSION),
        (word_at::SEGMENT, identity.segment.0),
        (word_at::INCARNATION, identity.incarnation.0),
        (word_at::BYTES, identity.bytes),
        (word_at::SLOTS, u64::from(identity.slots)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::Pages;

    const IDENTITY: Identity =
        Identity { segment: SegmentId(7), incarnation: Incarnation(9), bytes: 1 << 20, slots: 3 };

    fn table() -> Table {
        let region = Region::memfd("table", IDENTITY.table_bytes(), Pages::Small).unwrap();
        Table::create(region, &IDENTITY)
    }

    fn numbered() -> Header {
        let mut words = [0; HEADER_WORDS];
        for (at, word) in words.iter_mut().enumerate() {
            *word = (at as u64 + 100) | (at as u64 + 200) << 32;
        }
        Header::from_words(&words)
    }

    /// The words must stand where the layout of `core` puts the fields.
    #[test]
    fn words_and_fields_agree() {
        let header = numbered();
        let words = Header::to_words(&header);
        // SAFETY: the header is 128 bytes without padding, as `core` asserts by its offsets.
        let bytes: [u64; HEADER_WORDS] = unsafe { std::mem::transmute(header) };
        assert_eq!(words, bytes);
        assert_eq!(Header::from_words(&words), header);
    }

    #[test]
    fn a_header_is_written_around_its_word() {
        let table = table();
        table.write(Slot(1), &numbered());
        let read = table.read(Slot(1)).unwrap();
        assert_eq!(read, Header { word: 0, ..numbered() });
        assert_eq!(table.read(Slot(0)).unwrap(), Header::default());
        assert_eq!(table.read(Slot(2)).unwrap(), Header::default());
        assert!(table.read(Slot(3)).is_none() && table.word(Slot(3)).is_none());
    }

    #[test]
    fn a_foreign_preamble_is_refused() {
        use crate::region::Access;
        let table = table();
        let open = |identity: &Identity| {
            let fd = table.region().fd().unwrap();
            let region = Region::map(fd, IDENTITY.table_bytes(), Access::ReadOnly).unwrap();
            Table::open(region, identity)
        };
        assert!(open(&IDENTITY).is_ok());
        for other in [
            Identity { segment: SegmentId(8), ..IDENTITY },
            Identity { incarnation: Incarnation(8), ..IDENTITY },
            Identity { bytes: 8, ..IDENTITY },
            Identity { slots: 2, ..IDENTITY },
        ] {
            assert!(open(&other).is_err(), "{other:?}");
        }
        table.preamble_word(word_at::VERSION).store(VERSION + 1, Ordering::Relaxed);
        assert!(open(&IDENTITY).is_err());
    }
}
