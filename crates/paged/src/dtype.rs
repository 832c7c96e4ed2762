//! Element types of a KV cache, and how `DLPack` spells them.

use std::fmt;

/// The type of one element. The names are those of `PyTorch`, without its prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of a single.
    Bf16,
    /// Eight bits: 4 exponent, 3 mantissa, no infinities (`float8_e4m3fn`).
    Fp8E4m3,
    /// Eight bits: 5 exponent, 2 mantissa (`float8_e5m2`).
    Fp8E5m2,
    /// Signed bytes, whose scales lie outside the arena.
    I8,
}

/// A type as `DLPack` describes it: `DLDataType`, field by field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DlpackType {
    /// The kind of number.
    pub code: u8,
    /// Bits of one lane.
    pub bits: u8,
    /// Lanes of one element; always 1 here.
    pub lanes: u16,
}

impl DType {
    /// All of them, in the order of [`DType::code`].
    pub const ALL: [Self; 6] =
        [Self::F32, Self::F16, Self::Bf16, Self::Fp8E4m3, Self::Fp8E5m2, Self::I8];

    /// Bytes of one element.
    pub const fn bytes(self) -> u32 {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Fp8E4m3 | Self::Fp8E5m2 | Self::I8 => 1,
        }
    }

    /// The number that stands for this type in the identity of a cache and in kernels. It never changes.
    pub const fn code(self) -> u8 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Bf16 => 2,
            Self::Fp8E4m3 => 3,
            Self::Fp8E5m2 => 4,
            Self::I8 => 5,
        }
    }

    /// The type in `DLPack`'s words. The two types of eight-bit floats have codes since `DLPack` 1.1. For an
    /// older consumer export bytes (code 1, 8 bits), and let it reinterpret them.
    pub const fn dlpack(self) -> DlpackType {
        let (code, bits) = match self {
            Self::F32 => (2, 32),
            Self::F16 => (2, 16),
            Self::Bf16 => (4, 16),
            Self::Fp8E4m3 => (10, 8),
            Self::Fp8E5m2 => (12, 8),
            Self::I8 => (0, 8),
        };
        DlpackType { code, bits, lanes: 1 }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Fp8E4m3 => "fp8_e4m3",
            Self::Fp8E5m2 => "fp8_e5m2",
            Self::I8 => "i8",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dlpack_agrees_with_the_size_and_codes_are_distinct() {
        for (place, dtype) in DType::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(dtype.code()), place);
            let dlpack = dtype.dlpack();
            assert_eq!(u32::from(dlpack.bits), dtype.bytes() * 8, "{dtype}");
            assert_eq!(dlpack.lanes, 1);
        }
    }

    /// The numbers of `dlpack.h`, version 1.1, typed in by hand.
    #[test]
    fn dlpack_codes_are_those_of_the_header() {
        let codes = DType::ALL.map(|dtype| dtype.dlpack().code);
        assert_eq!(codes, [2, 2, 4, 10, 12, 0]);
    }
}
