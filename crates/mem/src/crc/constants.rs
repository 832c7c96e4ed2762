//! The numbers that fold a CRC-64/NVME, worked out by the compiler from the polynomial.
//!
//! Bits are reflected: bit `j` of a 64-bit half stands for `x^(63-j)`, and in a block of 16 bytes
//! the first 8 bytes are the high half. A carry-less product of two reflected halves comes out one
//! `x` too low, so a multiplication by `x^n` uses the constant for `x^(n-1)`.

/// The polynomial without its `x^64`, `x^63` in the top bit.
const NORMAL: u64 = 0xad93_d235_94c9_3659;
/// The same, reflected.
pub(super) const POLY: u64 = NORMAL.reverse_bits();

/// `x^n` modulo the polynomial, reflected.
const fn x_to(n: u32) -> u64 {
    let mut value = 1_u64 << 63;
    let mut i = 0;
    while i < n {
        value = if value & 1 == 1 { (value >> 1) ^ POLY } else { value >> 1 };
        i += 1;
    }
    value
}

/// The two factors that move a 16-byte block `bits` further from the end: for its high half (the
/// first 8 bytes) and for its low half.
pub(super) const fn fold(bits: u32) -> [u64; 2] {
    [x_to(bits + 63), x_to(bits - 1)]
}

/// Turns the high half of the last block into its share of the remainder: `x^128`.
pub(super) const LAST: u64 = x_to(127);

/// `x^128` divided by the polynomial, without its `x^64`, reflected: Barrett's factor.
pub(super) const QUOTIENT: u64 = {
    let (mut rest, mut quotient, mut i) = (1_u128, 0_u128, 0);
    while i < 128 {
        rest <<= 1;
        quotient <<= 1;
        if rest >> 64 == 1 {
            rest ^= (1 << 64) | NORMAL as u128;
            quotient |= 1;
        }
        i += 1;
    }
    (quotient as u64).reverse_bits()
};
