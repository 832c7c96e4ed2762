//! Where the rows of a block lie: strides as data, so that no kernel knows a layout. Axes and strides are those
//! of the arena ([`crate::layout`]).

use super::KernelError;
use crate::layout::{ArenaShape, Axis, Strides};
use mooncrate_gpu::Plain;

/// Bytes that a thread moves at once.
pub(super) const UNIT: u64 = 16;
/// More 16-byte pieces than this in one block do not fit the 32-bit counters inside of a kernel.
const PIECES_MAX: u64 = 1 << 31;

/// What a block holds, without a word about where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Layers of the model.
    pub layers: u32,
    /// 2 where K and V are kept apart, 1 where one row serves as both.
    pub halves: u32,
    /// Tokens of a block.
    pub block_tokens: u32,
    /// KV heads of a token.
    pub heads: u32,
    /// Bytes of one head of one token: the head's dimension times the size of an element.
    pub row_bytes: u32,
}

impl Shape {
    /// Bytes of a block, all layers.
    pub fn block_bytes(&self) -> u64 {
        [self.layers, self.halves, self.block_tokens, self.heads, self.row_bytes]
            .iter()
            .fold(1, |product: u64, count| product.saturating_mul(u64::from(*count)))
    }
}

/// The rows of a block: the steps from one to the next, in bytes, and how many there are. It is passed to kernels
/// as it is: `Strides` in `copy.cuh` has the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct BlockRows {
    /// From one block, layer, half, token or head to the next.
    pub strides: Strides,
    /// The length of a row, which is contiguous.
    pub row_bytes: u64,
    /// Layers.
    pub layers: u32,
    /// K and V, or one for both.
    pub halves: u32,
    /// Tokens of a block.
    pub block_tokens: u32,
    /// Heads of a token.
    pub heads: u32,
}

const _: () = assert!(size_of::<BlockRows>() == 64 && align_of::<BlockRows>() == 8);

// SAFETY: `repr(C)`, numbers only, 6 × 8 + 4 × 4 bytes without padding; `copy.cuh` mirrors it.
unsafe impl Plain for BlockRows {}

impl BlockRows {
    /// The rows of an arena.
    pub fn of(shape: &ArenaShape) -> Self {
        let geometry = shape.geometry();
        Self {
            strides: *shape.strides(),
            row_bytes: geometry.row_bytes(),
            layers: geometry.layers(),
            halves: geometry.halves(),
            block_tokens: geometry.block_tokens(),
            heads: geometry.kv_heads(),
        }
    }

    /// The rows of memory without gaps, its axes named from the outermost to the innermost. Rows are
    /// innermost always.
    ///
    /// The layout of `FlashInfer` called NHD is `[Layer, Block, Half, Token, Head]`; HND swaps the last two; a
    /// spilled block is `[Block, Layer, Half, Token, Head]`.
    pub fn packed(shape: Shape, blocks: u32, order: [Axis; 5]) -> Result<Self, KernelError> {
        let mut rows = Self {
            strides: Strides::default(),
            row_bytes: u64::from(shape.row_bytes),
            layers: shape.layers,
            halves: shape.halves,
            block_tokens: shape.block_tokens,
            heads: shape.heads,
        };
        let too_large =
            || KernelError::Shape(format!("{blocks} blocks of {shape:?} are too large"));
        let mut step = rows.row_bytes;
        for (place, axis) in order.into_iter().enumerate().rev() {
            if order[..place].contains(&axis) {
                return Err(KernelError::Shape(format!("{axis:?} stands twice in {order:?}")));
            }
            let count = match axis {
                Axis::Block => blocks,
                Axis::Layer => shape.layers,
                Axis::Half => shape.halves,
                Axis::Token => shape.block_tokens,
                Axis::Head => shape.heads,
            };
            rows.strides.set(axis, step);
            step = step.checked_mul(u64::from(count)).ok_or_else(too_large)?;
        }
        rows.check(blocks)?;
        Ok(rows)
    }

    /// What a block holds.
    pub fn shape(&self) -> Shape {
        Shape {
            layers: self.layers,
            halves: self.halves,
            block_tokens: self.block_tokens,
            heads: self.heads,
            row_bytes: self.row_bytes as u32,
        }
    }

    /// Where a row begins.
    pub fn offset(&self, block: u32, layer: u32, half: u32, token: u32, head: u32) -> u64 {
        u64::from(block) * self.strides.block
            + u64::from(layer) * self.strides.layer
            + u64::from(half) * self.strides.half
            + u64::from(token) * self.strides.token
            + u64::from(head) * self.strides.head
    }

    /// Refuses strides that no kernel can follow, or by which two rows would overlap. Gives the bytes
    /// that `blocks` blocks reach over.
    pub fn check(&self, blocks: u32) -> Result<u64, KernelError> {
        let shape = self.shape();
        if u64::from(shape.row_bytes) != self.row_bytes {
            return Err(KernelError::Shape(format!(
                "a row of {} bytes is too long",
                self.row_bytes
            )));
        }
        let pieces = shape.block_bytes() / UNIT;
        if blocks == 0 || pieces == 0 || pieces > PIECES_MAX {
            return Err(KernelError::Shape(format!(
                "{blocks} blocks of {shape:?}: every count is at least 1, and a block has at most {} bytes",
                PIECES_MAX * UNIT
            )));
        }
        let row = ("the length of a row", 1, self.row_bytes);
        let mut axes = [
            ("the stride of blocks", blocks, self.strides.block),
            ("the stride of layers", self.layers, self.strides.layer),
            ("the stride from K to V", self.halves, self.strides.half),
            ("the stride of tokens", self.block_tokens, self.strides.token),
            ("the stride of heads", self.heads, self.strides.head),
        ];
        for (what, _, value) in axes.into_iter().chain([row]) {
            if !value.is_multiple_of(UNIT) {
                return Err(KernelError::Misaligned { what, value, unit: UNIT });
            }
        }
        // From the smallest step to the largest, each must step over all that lies below it.
        axes.sort_by_key(|(_, _, stride)| *stride);
        let mut reach = self.row_bytes;
        for (what, count, stride) in axes.into_iter().filter(|(_, count, _)| *count > 1) {
            if stride < reach {
                let text = format!("{what} is {stride}, but what it steps over has {reach} bytes");
                return Err(KernelError::Shape(text));
            }
            let more = stride.checked_mul(u64::from(count - 1));
            let sum = more.and_then(|more| more.checked_add(reach));
            reach =
                sum.ok_or_else(|| KernelError::Shape(format!("{what} of {stride} is too large")))?;
        }
        Ok(reach)
    }

    /// The same for one token instead of a block of them.
    pub(super) fn one_token(self) -> Self {
        Self { block_tokens: 1, ..self }
    }

    /// 16-byte pieces of an item.
    pub(super) fn pieces(&self) -> u64 {
        let rows = u64::from(self.layers)
            * u64::from(self.halves)
            * u64::from(self.block_tokens)
            * u64::from(self.heads);
        rows * (self.row_bytes / UNIT)
    }
}

/// Joins the dimensions that are contiguous on both sides into longer rows. The bytes that an item
/// consists of, and their order within a row, stay the same; kernels then divide less.
pub(super) fn merge(one: &mut BlockRows, other: &mut BlockRows) {
    loop {
        let axes = [
            (one.strides.head, other.strides.head, one.heads),
            (one.strides.token, other.strides.token, one.block_tokens),
            (one.strides.half, other.strides.half, one.halves),
            (one.strides.layer, other.strides.layer, one.layers),
        ];
        let joins = |(a, b, count): &(u64, u64, u32)| {
            *count > 1 && *a == one.row_bytes && *b == other.row_bytes
        };
        let Some(joined) = axes.iter().position(joins) else { return };
        for side in [&mut *one, &mut *other] {
            side.row_bytes *= u64::from(axes[joined].2);
            let count = match joined {
                0 => &mut side.heads,
                1 => &mut side.block_tokens,
                2 => &mut side.halves,
                _ => &mut side.layers,
            };
            *count = 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Axis::{Block, Half, Head, Layer, Token};

    const SHAPE: Shape = Shape { layers: 3, halves: 2, block_tokens: 4, heads: 2, row_bytes: 32 };

    #[test]
    fn packed_strides_follow_the_order_of_the_axes() {
        let nhd = BlockRows::packed(SHAPE, 5, [Layer, Block, Half, Token, Head]).unwrap();
        assert_eq!((nhd.strides.head, nhd.strides.token, nhd.strides.half), (32, 64, 256));
        assert_eq!((nhd.strides.block, nhd.strides.layer), (512, 2_560));
        assert_eq!(nhd.offset(4, 2, 1, 3, 1) + 32, 7_680);
        assert_eq!(nhd.check(5).unwrap(), 7_680);
        assert_eq!(nhd.shape(), SHAPE);
        let twice = BlockRows::packed(SHAPE, 5, [Layer, Block, Half, Token, Token]);
        assert!(twice.unwrap_err().to_string().contains("Token stands twice"));
    }

    #[test]
    fn strides_that_overlap_or_are_not_aligned_are_refused() {
        let good = BlockRows::packed(SHAPE, 5, [Block, Layer, Half, Token, Head]).unwrap();
        let with = |strides| BlockRows { strides, ..good };
        let error = with(Strides { token: 48, ..good.strides }).check(5).unwrap_err().to_string();
        assert_eq!(error, "the stride of tokens is 48, but what it steps over has 64 bytes");
        let error = with(Strides { head: 40, ..good.strides }).check(5).unwrap_err();
        let what = "the stride of heads";
        assert_eq!(error, KernelError::Misaligned { what, value: 40, unit: 16 });
        assert!(BlockRows { layers: 0, ..good }.check(5).is_err());
        assert!(good.check(0).is_err());
        assert!(with(Strides { block: u64::MAX - 15, ..good.strides }).check(5).is_err());
        assert!(BlockRows { row_bytes: 1 << 33, ..good }.check(5).is_err());
        // Gaps between blocks are allowed, and a stride that nothing follows does not matter.
        assert!(with(Strides { block: 1 << 20, ..good.strides }).check(5).is_ok());
        assert!(
            BlockRows { halves: 1, ..with(Strides { half: 0, ..good.strides }) }.check(5).is_ok()
        );
        let odd = Shape { row_bytes: 24, ..SHAPE };
        assert!(BlockRows::packed(odd, 5, [Block, Layer, Half, Token, Head]).is_err());
    }

    #[test]
    fn contiguous_dimensions_become_one_row() {
        let mut nhd = BlockRows::packed(SHAPE, 5, [Layer, Block, Half, Token, Head]).unwrap();
        let mut spill = BlockRows::packed(SHAPE, 7, [Block, Layer, Half, Token, Head]).unwrap();
        merge(&mut nhd, &mut spill);
        // K and V of all tokens and heads; layers lie apart on one side.
        assert_eq!((nhd.row_bytes, nhd.layers, nhd.halves), (512, 3, 1));
        assert_eq!((nhd.block_tokens, nhd.heads, nhd.pieces()), (1, 1, 96));
        assert_eq!(spill.row_bytes, 512);
        let mut hnd = BlockRows::packed(SHAPE, 5, [Layer, Block, Half, Head, Token]).unwrap();
        let mut other = hnd;
        merge(&mut hnd, &mut other);
        assert_eq!((hnd.row_bytes, hnd.pieces()), (512, 96));
        // Heads inside of tokens on one side, tokens inside of heads on the other: nothing joins.
        let mut nhd = BlockRows::packed(SHAPE, 5, [Layer, Block, Half, Token, Head]).unwrap();
        let mut hnd = BlockRows::packed(SHAPE, 5, [Layer, Block, Half, Head, Token]).unwrap();
        merge(&mut nhd, &mut hnd);
        assert_eq!((nhd.row_bytes, nhd.pieces()), (32, 96));
    }
}
