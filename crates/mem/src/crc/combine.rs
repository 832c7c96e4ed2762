//! The checksum of two runs that lie side by side, from theirs: a CRC is linear, so the first one is
//! moved over the bytes of the second, by a multiplication with `x^(8·bytes)`, and added.
//!
//! Bits are reflected, as everywhere here: bit 63 stands for `x^0`.

/// The polynomial without its `x^64`, reflected.
const POLY: u64 = 0xad93_d235_94c9_3659_u64.reverse_bits();
/// `x^0` and `x^8`.
const ONE: u64 = 1 << 63;
const X8: u64 = 1 << 55;

/// The checksum of a run of bytes that has the checksum `first`, followed by `bytes` bytes that have the
/// checksum `second`.
pub fn combine(first: u64, second: u64, mut bytes: u64) -> u64 {
    let (mut shift, mut square) = (ONE, X8);
    while bytes > 0 {
        if bytes & 1 == 1 {
            shift = multiply(shift, square);
        }
        square = multiply(square, square);
        bytes >>= 1;
    }
    multiply(first, shift) ^ second
}

/// The product of two polynomials, modulo ours. Bit 63 stands for `x^0`.
pub const fn multiply(a: u64, mut b: u64) -> u64 {
    let (mut product, mut bit) = (0, ONE);
    while bit > 0 {
        if a & bit != 0 {
            product ^= b;
        }
        b = if b & 1 == 1 { (b >> 1) ^ POLY } else { b >> 1 };
        bit >>= 1;
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crc::crc;
    use proptest::prelude::*;

    #[test]
    fn nothing_changes_nothing() {
        let sum = crc(b"some bytes");
        assert_eq!(combine(sum, crc(b""), 0), sum);
        assert_eq!(combine(crc(b""), sum, 10), sum);
    }

    proptest! {
        /// Against the sum of the whole, however it is cut.
        #[test]
        fn two_runs_have_the_sum_of_the_whole(bytes: Vec<u8>, cut in 0.0..=1.0_f64, zeros in 0..70_000_usize) {
            let mut bytes = bytes;
            bytes.resize(bytes.len() + zeros, 0);
            #[expect(clippy::cast_precision_loss, clippy::cast_sign_loss, reason = "any cut will do")]
            let cut = (bytes.len() as f64 * cut) as usize;
            let (first, second) = bytes.split_at(cut);
            prop_assert_eq!(combine(crc(first), crc(second), second.len() as u64), crc(&bytes));
        }
    }
}
