//! A strided tensor without a pointer: byte offset, shape, strides, type.
//!
//! This is all that an exporter (`DLPack`, a buffer protocol, a kernel's arguments) needs beside the address
//! of the memory. Shape and strides are kept as `DLPack` wants them: `i64`, strides in elements.

use crate::dtype::DType;
use mooncrate_core::Extent;

/// The most dimensions that any view here has.
pub const RANK_MAX: usize = 5;

/// One dimension: how many, and bytes from one to the next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dimension {
    pub(crate) count: u64,
    pub(crate) stride: u64,
}

/// The description of a strided tensor in some memory.
///
/// ```
/// use mooncrate_paged::{AttentionSpec, ArenaShape, DType, Geometry, Layout, PageOrder};
///
/// let spec =
///     AttentionSpec { layers: 2, kv_heads: 4, head_dim: 8, block_tokens: 16, dtype: DType::Bf16 };
/// let shape = ArenaShape::new(Geometry::attention(spec)?, Layout::Nhd, 10)?;
/// let pages = shape.pages_view(1, PageOrder::Nhd)?;
/// let tensor = pages.tensor();
/// assert_eq!(tensor.shape(), [10, 2, 16, 4, 8]);
/// assert_eq!(tensor.strides(), [1024, 512, 32, 8, 1]);
/// assert_eq!(tensor.byte_offset(), 2 * 10 * 1024); // the second layer, two bytes an element
/// assert!(tensor.is_contiguous());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tensor {
    offset: u64,
    rank: usize,
    shape: [i64; RANK_MAX],
    strides: [i64; RANK_MAX],
    dtype: DType,
}

impl Tensor {
    /// A tensor from dimensions of an arena: their byte strides are multiples of the element, and all sizes
    /// are below the limits of an arena, so they fit `i64`.
    pub(crate) fn new(offset: u64, dtype: DType, dimensions: &[Dimension]) -> Self {
        let (mut shape, mut strides) = ([0; RANK_MAX], [0; RANK_MAX]);
        let element = u64::from(dtype.bytes());
        for (place, dimension) in dimensions.iter().enumerate() {
            assert!(dimension.stride.is_multiple_of(element), "strides are whole elements");
            shape[place] = signed(dimension.count);
            strides[place] = signed(dimension.stride / element);
        }
        Self { offset, rank: dimensions.len(), shape, strides, dtype }
    }

    /// The first byte, from the start of the memory.
    pub const fn byte_offset(&self) -> u64 {
        self.offset
    }

    /// How many along each dimension.
    pub fn shape(&self) -> &[i64] {
        &self.shape[..self.rank]
    }

    /// Elements from one to the next along each dimension.
    pub fn strides(&self) -> &[i64] {
        &self.strides[..self.rank]
    }

    /// Type of the elements; [`DType::dlpack`] has its code, bits and lanes.
    pub const fn dtype(&self) -> DType {
        self.dtype
    }

    /// Whether the elements lie together in the order of the dimensions, so that a consumer without strides
    /// can take them.
    pub fn is_contiguous(&self) -> bool {
        let mut inside = 1;
        self.shape().iter().zip(self.strides()).rev().all(|(count, stride)| {
            let fits = *count == 1 || *stride == inside;
            inside *= count;
            fits || self.is_empty()
        })
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.shape().contains(&0)
    }

    /// The bytes from its first element to its last; others may lie between them.
    pub fn extent(&self) -> Extent {
        let len = if self.is_empty() {
            0
        } else {
            let steps = self.shape().iter().zip(self.strides());
            let last: u64 =
                steps.map(|(count, stride)| unsigned(*count - 1) * unsigned(*stride)).sum();
            (last + 1) * u64::from(self.dtype.bytes())
        };
        Extent::new(self.offset, len).expect("a tensor lies in an arena, far below 64 bits")
    }

    /// The byte offset of the element at `index`, or `None` if the index has the wrong length or lies
    /// outside. A shorter index names the first element of what remains.
    pub fn offset_of(&self, index: &[u64]) -> Option<u64> {
        if index.len() > self.rank {
            return None;
        }
        let mut elements = 0;
        for ((at, count), stride) in index.iter().zip(self.shape()).zip(self.strides()) {
            if *at >= unsigned(*count) {
                return None;
            }
            elements += at * unsigned(*stride);
        }
        Some(self.offset + elements * u64::from(self.dtype.bytes()))
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).expect("sizes of an arena are below 2^46")
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).expect("shapes and strides of an arena are not negative")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(dimensions: &[(u64, u64)]) -> Tensor {
        let dimensions: Vec<_> = dimensions
            .iter()
            .map(|(count, stride)| Dimension { count: *count, stride: *stride })
            .collect();
        Tensor::new(100, DType::F16, &dimensions)
    }

    #[test]
    fn strides_are_in_elements_and_offsets_in_bytes() {
        let tensor = tensor(&[(3, 64), (4, 2)]);
        assert_eq!(tensor.strides(), [32, 1]);
        assert_eq!(tensor.offset_of(&[2, 3]), Some(100 + 128 + 6));
        assert_eq!(tensor.offset_of(&[1]), Some(164));
        assert_eq!(tensor.offset_of(&[3, 0]), None);
        assert_eq!(tensor.offset_of(&[0, 0, 0]), None);
        assert_eq!(tensor.extent(), Extent::new(100, 128 + 8).unwrap());
    }

    #[test]
    fn contiguity_ignores_dimensions_of_one() {
        assert!(tensor(&[(3, 8), (4, 2)]).is_contiguous());
        assert!(tensor(&[(3, 8), (1, 9000), (4, 2)]).is_contiguous());
        assert!(!tensor(&[(3, 64), (4, 2)]).is_contiguous());
        let empty = tensor(&[(0, 64), (4, 2)]);
        assert!(empty.is_empty() && empty.is_contiguous() && empty.extent().is_empty());
    }
}
