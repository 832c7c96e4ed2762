//! What lies where in a rank's heap: headers first, in a slab that is never used for anything else (N3),
//! then the bytes of the objects.
//!
//! ```text
//! 0                      128 × slots, rounded up            heap.bytes()
//! ├ header ├ header ├ …  ├ payload: extents of objects …    ┤
//! ```

use mooncrate_core::Extent;
use mooncrate_core::header::{HEADER_BYTES, WORD_OFFSET};

/// Bytes of a page, unless a cache is made with others.
pub const PAGE_BYTES: u32 = 256 << 10;
/// Pages may have from this many bytes …
const PAGE_MIN: u32 = 16;
/// … to this many.
pub(crate) const PAGE_MAX: u32 = 64 << 20;
/// Kernels move pieces of this length, so pages begin at multiples of it.
pub(crate) const PIECE: u64 = 16;
/// Payloads begin at multiples of this.
const ALIGN: u64 = 256;

/// How a value is cut: full pages, then one with the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pages {
    /// Bytes of the value.
    pub bytes_total: u64,
    /// Bytes of a full page.
    pub page_bytes: u32,
}

impl Pages {
    /// `None`: a page that is no multiple of 16 bytes, too small or too large, or more than 2^32 of them.
    pub fn new(bytes_total: u64, page_bytes: u32) -> Option<Self> {
        let fits = (PAGE_MIN..=PAGE_MAX).contains(&page_bytes)
            && u64::from(page_bytes).is_multiple_of(PIECE)
            && u32::try_from(bytes_total.div_ceil(page_bytes.into())).is_ok();
        fits.then_some(Self { bytes_total, page_bytes })
    }

    /// How many there are; none for an empty value.
    pub fn count(&self) -> u32 {
        self.bytes_total.div_ceil(self.page_bytes.into()) as u32
    }

    /// Bytes of the last one; 0 for an empty value.
    pub fn last_bytes(&self) -> u32 {
        match (self.bytes_total % u64::from(self.page_bytes)) as u32 {
            0 if self.bytes_total > 0 => self.page_bytes,
            rest => rest,
        }
    }

    /// Where a page lies in the value; `None`: there are fewer.
    pub fn page(&self, index: u32) -> Option<Extent> {
        let offset = u64::from(index) * u64::from(self.page_bytes);
        let len = self.bytes_total.checked_sub(offset)?.min(self.page_bytes.into());
        if len == 0 { None } else { Extent::new(offset, len) }
    }
}

/// Where headers and payload lie in every heap of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapLayout {
    slots: u32,
    bytes: u64,
}

impl HeapLayout {
    /// So many headers in heaps of so many bytes; `None`: no header, or no room for a byte of payload.
    pub fn new(slots: u32, bytes: u64) -> Option<Self> {
        let layout = Self { slots, bytes };
        (slots > 0 && layout.payload_start() < bytes).then_some(layout)
    }

    /// Headers of each heap.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// The header of a slot; `None`: there is none.
    pub fn header(&self, slot: u32) -> Option<Extent> {
        let offset = u64::from(slot) * HEADER_BYTES as u64;
        (slot < self.slots).then(|| Extent::new(offset, HEADER_BYTES as u64)).flatten()
    }

    /// The control word of a slot.
    pub fn word(&self, slot: u32) -> Option<u64> {
        self.header(slot).map(|header| header.offset() + WORD_OFFSET as u64)
    }

    /// All bytes that objects may have.
    pub fn payload(&self) -> Extent {
        let start = self.payload_start();
        Extent::new(start, self.bytes - start).expect("it ends with the heap")
    }

    fn payload_start(&self) -> u64 {
        (u64::from(self.slots) * HEADER_BYTES as u64).next_multiple_of(ALIGN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_page_has_the_rest() {
        let pages = Pages::new(600 << 10, PAGE_BYTES).unwrap();
        assert_eq!((pages.count(), pages.last_bytes()), (3, 88 << 10));
        assert_eq!(pages.page(2), Extent::new(512 << 10, 88 << 10));
        assert_eq!(pages.page(3), None);
        let whole = Pages::new(512 << 10, PAGE_BYTES).unwrap();
        assert_eq!((whole.count(), whole.last_bytes()), (2, PAGE_BYTES));
        assert_eq!(whole.page(2), None);
        let empty = Pages::new(0, PAGE_BYTES).unwrap();
        assert_eq!((empty.count(), empty.last_bytes(), empty.page(0)), (0, 0, None));
    }

    #[test]
    fn pages_are_multiples_of_16_bytes() {
        for bad in [0, 8, 24, (64 << 20) + 16] {
            assert_eq!(Pages::new(1, bad), None, "{bad}");
        }
        assert_eq!(Pages::new(u64::MAX, 16), None);
    }

    #[test]
    fn payload_begins_after_the_headers() {
        let layout = HeapLayout::new(3, 4096).unwrap();
        assert_eq!(layout.payload(), Extent::new(512, 4096 - 512).unwrap());
        assert_eq!(layout.word(2), Some(256 + 56));
        assert_eq!(layout.header(3), None);
        assert_eq!(HeapLayout::new(32, 4096), None);
        assert_eq!(HeapLayout::new(0, 4096), None);
    }
}
