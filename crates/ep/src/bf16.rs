//! bfloat16 as its 16 bits: the upper half of an f32. Kernels and oracles round the same way, so that their
//! results agree bit for bit.

/// Bytes of an element.
pub const BF16_BYTES: u64 = 2;

/// The f32 with the same value.
pub fn to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// The nearest bf16; of two equally near the one whose last bit is 0. A NaN stays one.
pub fn from_f32(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bf16_survives_the_way_there_and_back() {
        for bits in 0..=u16::MAX {
            let value = to_f32(bits);
            if !value.is_nan() {
                assert_eq!(from_f32(value), bits);
            }
        }
    }

    #[test]
    fn rounding_is_to_nearest_and_then_to_even() {
        for (value, bits) in [
            (0x3f80_7fff, 0x3f80),
            (0x3f80_8000, 0x3f80),
            (0x3f80_8001, 0x3f81),
            (0x3f81_8000, 0x3f82),
            (0x7f7f_ffff, 0x7f80),
            (0xff7f_ffff, 0xff80),
            (0x8000_0000, 0x8000),
            (0x0000_8001, 0x0001),
        ] {
            assert_eq!(from_f32(f32::from_bits(value)), bits, "{value:#x}");
        }
        assert!(to_f32(from_f32(f32::from_bits(0x7f80_0001))).is_nan());
    }
}
