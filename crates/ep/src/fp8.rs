//! Tokens in fp8 on their way to the experts: e4m3, with a scale for each 128 elements. Half of the bytes of bf16,
//! and results come back in bf16.
//!
//! ```text
//! a token: [hidden] e4m3 bytes │ [hidden / 128] f32 scales │ zeros up to a multiple of 16 bytes
//! e4m3: sign 1 │ exponent 4, bias 7 │ fraction 3; no infinity, 0x7f is NaN, 448 is the largest
//! ```
//!
//! The exchange moves such a row as it is. On a GPU the kernel before the exchange makes it; here is what it must
//! make, and what it means.

use crate::bf16;

/// Elements that share a scale.
pub const BLOCK: usize = 128;
/// The largest number of e4m3.
const MOST: f32 = 448.0;

/// Bytes of a token of so many elements.
pub const fn token_bytes(hidden: u32) -> u64 {
    (hidden as u64 + hidden as u64 / BLOCK as u64 * 4).next_multiple_of(16)
}

/// The nearest e4m3; of two equally near the one whose last bit is 0. Beyond 448 it is 448; a NaN stays one.
pub fn encode(value: f32) -> u8 {
    let sign = (value.to_bits() >> 24) as u8 & 0x80;
    if value.is_nan() {
        return sign | 0x7f;
    }
    let size = value.abs().min(MOST);
    // Below 2^-6 numbers have a fixed distance of 2^-9.
    if size < 0.015_625 {
        #[expect(clippy::cast_sign_loss, reason = "a size is not negative")]
        return sign | (size * 512.0).round_ties_even() as u8;
    }
    let bits = size.to_bits();
    let rounded = (bits + 0x7_ffff + (bits >> 20 & 1)) >> 20;
    // The exponent of f32 has the bias 127, that of e4m3 has 7.
    sign | (rounded - (120 << 3)).min(0x7e) as u8
}

/// The f32 with the same value.
pub fn decode(byte: u8) -> f32 {
    let (exponent, fraction) = (u32::from(byte >> 3 & 15), u32::from(byte & 7));
    let sign = u32::from(byte & 0x80) << 24;
    let size = match (exponent, fraction) {
        (15, 7) => f32::NAN,
        (0, _) => f32::from(byte & 7) / 512.0,
        _ => f32::from_bits((exponent + 120) << 23 | fraction << 20),
    };
    f32::from_bits(size.to_bits() | sign)
}

/// A token of bf16 elements as an fp8 row, as pairs of bytes. Each block is scaled so that its largest element
/// is 448.
pub fn quantize(token: &[u16]) -> Vec<u16> {
    let (mut bytes, mut scales) = (Vec::with_capacity(2 * token.len()), Vec::new());
    for block in token.chunks(BLOCK) {
        let most = block.iter().fold(0f32, |most, bits| most.max(bf16::to_f32(*bits).abs()));
        let scale = if most > 0.0 { most / MOST } else { 1.0 };
        bytes.extend(block.iter().map(|bits| encode(bf16::to_f32(*bits) / scale)));
        scales.extend(scale.to_le_bytes());
    }
    bytes.extend(scales);
    bytes.resize(bytes.len().next_multiple_of(16), 0);
    bytes.chunks_exact(2).map(|two| u16::from_le_bytes([two[0], two[1]])).collect()
}

/// What a row of fp8 stands for: each element times its scale in f32, rounded to bf16.
pub fn dequantize(row: &[u16], token: &mut [u16]) {
    let byte = |at: usize| row[at / 2].to_le_bytes()[at % 2];
    let hidden = token.len();
    for (at, place) in token.iter_mut().enumerate() {
        let from = hidden / 2 + at / BLOCK * 2;
        let scale = f32::from_bits(u32::from(row[from]) | u32::from(row[from + 1]) << 16);
        *place = bf16::from_f32(decode(byte(at)) * scale);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_e4m3_survives_the_way_there_and_back() {
        for byte in 0..=255 {
            let value = decode(byte);
            if byte & 0x7f == 0x7f {
                assert!(value.is_nan() && decode(encode(value)).is_nan());
            } else {
                assert_eq!(encode(value), byte, "{value}");
            }
        }
        assert_eq!((decode(0x7e), decode(0x01), decode(0x08)), (448.0, 1.0 / 512.0, 1.0 / 64.0));
    }

    #[test]
    fn rounding_is_to_nearest_then_to_even_and_stops_at_448() {
        for (value, expected) in [
            (1.0625, 1.0),
            (1.187_5, 1.25),
            (1.07, 1.125),
            (460.0, 448.0),
            (1e30, 448.0),
            (-1e30, -448.0),
            (1.0 / 1024.0, 0.0),
            (3.0 / 1024.0, 1.0 / 256.0),
            (0.015_6, 0.015_625),
        ] {
            assert_eq!(decode(encode(value)).to_bits(), f32::to_bits(expected), "{value}");
        }
    }

    #[test]
    fn a_token_keeps_its_values_within_a_sixteenth() {
        let token: Vec<u16> = (0..384u16)
            .map(|at| if at < 128 { 0 } else { bf16::from_f32(0.01 * f32::from(at) - 2.0) })
            .collect();
        let row = quantize(&token);
        assert_eq!(row.len() as u64 * 2, token_bytes(384));
        let mut back = vec![7; 384];
        dequantize(&row, &mut back);
        for (back, token) in back.iter().zip(&token) {
            let (back, token) = (bf16::to_f32(*back), bf16::to_f32(*token));
            // Half a step of 3 bits, one of bf16, and small numbers beside large ones.
            assert!((back - token).abs() <= token.abs() / 15.0 + 0.005, "{token}: {back}");
        }
    }
}
