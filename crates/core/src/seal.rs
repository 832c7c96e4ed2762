//! Checksums of a value. Each slice of 1 MiB has a CRC-64; a value of several slices carries the
//! table of them right behind its bytes (at the next multiple of 8), and one 64-bit **seal** over
//! length and table stands in header and locator. So a reader verifies slice by slice while the
//! bytes are in cache, a range can be verified alone, and the index holds eight bytes per object.
//!
//! ```text
//! extent:  [ value: len bytes | pad to 8 | crc of slice 0, slice 1, … : 8 bytes each, if len > 1 MiB ]
//! ```
//!
//! The CRC itself is computed where bytes move (`mem::crc`); here is only what it means.

use crate::limits::{BLOCK_BYTES, EXTENT_ALIGN, SLICE_BYTES, VALUE_BYTES_MAX};
use std::fmt;

/// Checksum over the length and the slice checksums of a value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Seal(pub u64);

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Seal({:016x})", self.0)
    }
}

impl Seal {
    /// Seals a value of `len` bytes with these slice checksums (one for an empty value: 0).
    pub fn over(len: u64, slices: impl IntoIterator<Item = u64>) -> Self {
        // A strong mix per word (splitmix64): order and length matter, one changed bit changes half.
        let mut sum = mix(len ^ 0x6d6f_6f6e_6372_6174);
        for crc in slices {
            sum = mix(sum.rotate_left(23) ^ crc);
        }
        Self(sum)
    }
}

fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Number of slices of a value; an empty value has none.
pub const fn slices(len: u64) -> u64 {
    len.div_ceil(SLICE_BYTES)
}

/// Where the slice table starts, relative to the value, and its bytes (zero when the value is one
/// slice or none).
pub const fn table(len: u64) -> (u64, u64) {
    let slices = slices(len);
    let bytes = if slices > 1 { slices * 8 } else { 0 };
    (len.next_multiple_of(8), bytes)
}

/// Bytes to reserve for a value of `len` bytes: value, table, rounded up; never zero, so that even
/// an empty value has a range of its own. A value with a table takes whole blocks: where large values lie
/// side by side, each starts at a block, and goes to disks and comes from them without a copy. `len` is at
/// most the value limit, so nothing overflows.
pub const fn extent_bytes(len: u64) -> u64 {
    match table(len) {
        (_, 0) if len == 0 => EXTENT_ALIGN,
        (_, 0) => len.next_multiple_of(EXTENT_ALIGN),
        (start, bytes) => (start + bytes).next_multiple_of(BLOCK_BYTES),
    }
}

/// A header names an extent with 32 bits.
const _: () = assert!(extent_bytes(VALUE_BYTES_MAX) <= u32::MAX as u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_hold_value_and_table() {
        assert_eq!(extent_bytes(0), 64);
        assert_eq!(extent_bytes(1), 64);
        assert_eq!(extent_bytes(SLICE_BYTES), SLICE_BYTES);
        assert_eq!(table(SLICE_BYTES).1, 0);
        assert_eq!(table(SLICE_BYTES + 1), (SLICE_BYTES + 8, 16));
        assert_eq!(extent_bytes(SLICE_BYTES + 1), SLICE_BYTES + BLOCK_BYTES);
        assert_eq!(extent_bytes(4 * SLICE_BYTES), 4 * SLICE_BYTES + BLOCK_BYTES);
    }

    #[test]
    fn a_seal_knows_length_and_order() {
        assert_ne!(Seal::over(1, [5]), Seal::over(2, [5]));
        assert_ne!(Seal::over(9, [1, 2]), Seal::over(9, [2, 1]));
        assert_ne!(Seal::over(0, []), Seal::over(0, [0]));
    }
}
