//! Where the rows of a block lie: strides as data, so that no kernel knows a layout.

use super::KernelError;
use crate::layout::ArenaShape;
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
    pub kinds: u32,
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
        [self.layers, self.kinds, self.block_tokens, self.heads, self.row_bytes]
            .iter()
            .fold(1, |product: u64, count| product.saturating_mul(u64::from(*count)))
    }
}

/// A dimension of the memory that holds blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the words are those of `Shape`")]
pub enum Axis {
    Block,
    Layer,
    Kind,
    Token,
    Head,
}

/// The steps, in bytes, from one block, layer, kind, token or head to the next, and how many there are.
/// It is passed to kernels as it is: `Strides` in `copy.cuh` has the same fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Strides {
    /// From a block to the next.
    pub block_bytes: u64,
    /// From a layer to the next.
    pub layer_bytes: u64,
    /// From K to V.
    pub kind_bytes: u64,
    /// From a token to the next.
    pub token_bytes: u64,
    /// From a head to the next.
    pub head_bytes: u64,
    /// The length of a row, which is contiguous.
    pub row_bytes: u64,
    /// Layers.
    pub layers: u32,
    /// Kinds: K and V, or one for both.
    pub kinds: u32,
    /// Tokens of a block.
    pub block_tokens: u32,
    /// Heads of a token.
    pub heads: u32,
}

const _: () = assert!(size_of::<Strides>() == 64 && align_of::<Strides>() == 8);

// SAFETY: `repr(C)`, numbers only, 6 × 8 + 4 × 4 bytes without padding; `copy.cuh` mirrors it.
unsafe impl Plain for Strides {}

impl Strides {
    /// The strides of an arena.
    pub fn of(shape: &ArenaShape) -> Self {
        let (geometry, strides) = (shape.geometry(), shape.strides());
        Self {
            block_bytes: strides.block,
            layer_bytes: strides.layer,
            kind_bytes: strides.half,
            token_bytes: strides.token,
            head_bytes: strides.head,
            row_bytes: geometry.row_bytes(),
            layers: geometry.layers(),
            kinds: geometry.halves(),
            block_tokens: geometry.block_tokens(),
            heads: geometry.kv_heads(),
        }
    }

    /// The strides of memory without gaps, its axes named from the outermost to the innermost. Rows are
    /// innermost always.
    ///
    /// The layout of `FlashInfer` called NHD is `[Layer, Block, Kind, Token, Head]`; HND swaps the last two; a
    /// spilled block is `[Block, Layer, Kind, Token, Head]`.
    pub fn packed(shape: Shape, blocks: u32, order: [Axis; 5]) -> Result<Self, KernelError> {
        let mut strides = Self {
            block_bytes: 0,
            layer_bytes: 0,
            kind_bytes: 0,
            token_bytes: 0,
            head_bytes: 0,
            row_bytes: u64::from(shape.row_bytes),
            layers: shape.layers,
            kinds: shape.kinds,
            block_tokens: shape.block_tokens,
            heads: shape.heads,
        };
        let too_large =
            || KernelError::Shape(format!("{blocks} blocks of {shape:?} are too large"));
        let mut step = strides.row_bytes;
        for axis in order.into_iter().rev() {
            let (place, count) = match axis {
                Axis::Block => (&mut strides.block_bytes, blocks),
                Axis::Layer => (&mut strides.layer_bytes, shape.layers),
                Axis::Kind => (&mut strides.kind_bytes, shape.kinds),
                Axis::Token => (&mut strides.token_bytes, shape.block_tokens),
                Axis::Head => (&mut strides.head_bytes, shape.heads),
            };
            if *place != 0 {
                return Err(KernelError::Shape(format!("{axis:?} stands twice in {order:?}")));
            }
            *place = step;
            step = step.checked_mul(u64::from(count)).ok_or_else(too_large)?;
        }
        strides.check(blocks)?;
        Ok(strides)
    }

    /// What a block holds.
    pub fn shape(&self) -> Shape {
        Shape {
            layers: self.layers,
            kinds: self.kinds,
            block_tokens: self.block_tokens,
            heads: self.heads,
            row_bytes: self.row_bytes as u32,
        }
    }

    /// Where a row begins.
    pub fn offset(&self, block: u32, layer: u32, kind: u32, token: u32, head: u32) -> u64 {
        u64::from(block) * self.block_bytes
            + u64::from(layer) * self.layer_bytes
            + u64::from(kind) * self.kind_bytes
            + u64::from(token) * self.token_bytes
            + u64::from(head) * self.head_bytes
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
            ("the stride of blocks", blocks, self.block_bytes),
            ("the stride of layers", self.layers, self.layer_bytes),
            ("the stride from K to V", self.kinds, self.kind_bytes),
            ("the stride of tokens", self.block_tokens, self.token_bytes),
            ("the stride of heads", self.heads, self.head_bytes),
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
            * u64::from(self.kinds)
            * u64::from(self.block_tokens)
            * u64::from(self.heads);
        rows * (self.row_bytes / UNIT)
    }
}

/// Joins the dimensions that are contiguous on both sides into longer rows. The bytes that an item
/// consists of, and their order within a row, stay the same; kernels then divide less.
pub(super) fn merge(one: &mut Strides, other: &mut Strides) {
    loop {
        let axes = [
            (one.head_bytes, other.head_bytes, one.heads),
            (one.token_bytes, other.token_bytes, one.block_tokens),
            (one.kind_bytes, other.kind_bytes, one.kinds),
            (one.layer_bytes, other.layer_bytes, one.layers),
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
                2 => &mut side.kinds,
                _ => &mut side.layers,
            };
            *count = 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Axis::{Block, Head, Kind, Layer, Token};

    const SHAPE: Shape = Shape { layers: 3, kinds: 2, block_tokens: 4, heads: 2, row_bytes: 32 };

    #[test]
    fn packed_strides_follow_the_order_of_the_axes() {
        let nhd = Strides::packed(SHAPE, 5, [Layer, Block, Kind, Token, Head]).unwrap();
        assert_eq!((nhd.head_bytes, nhd.token_bytes, nhd.kind_bytes), (32, 64, 256));
        assert_eq!((nhd.block_bytes, nhd.layer_bytes), (512, 2_560));
        assert_eq!(nhd.offset(4, 2, 1, 3, 1) + 32, 7_680);
        assert_eq!(nhd.check(5).unwrap(), 7_680);
        assert_eq!(nhd.shape(), SHAPE);
        let twice = Strides::packed(SHAPE, 5, [Layer, Block, Kind, Token, Token]);
        assert!(twice.unwrap_err().to_string().contains("Token stands twice"));
    }

    #[test]
    fn strides_that_overlap_or_are_not_aligned_are_refused() {
        let good = Strides::packed(SHAPE, 5, [Block, Layer, Kind, Token, Head]).unwrap();
        let error = Strides { token_bytes: 48, ..good }.check(5).unwrap_err().to_string();
        assert_eq!(error, "the stride of tokens is 48, but what it steps over has 64 bytes");
        let error = Strides { head_bytes: 40, ..good }.check(5).unwrap_err();
        let what = "the stride of heads";
        assert_eq!(error, KernelError::Misaligned { what, value: 40, unit: 16 });
        assert!(Strides { layers: 0, ..good }.check(5).is_err());
        assert!(good.check(0).is_err());
        assert!(Strides { block_bytes: u64::MAX - 15, ..good }.check(5).is_err());
        assert!(Strides { row_bytes: 1 << 33, ..good }.check(5).is_err());
        // Gaps between blocks are allowed, and a stride that nothing follows does not matter.
        assert!(Strides { block_bytes: 1 << 20, ..good }.check(5).is_ok());
        assert!(Strides { kinds: 1, kind_bytes: 0, ..good }.check(5).is_ok());
        let odd = Shape { row_bytes: 24, ..SHAPE };
        assert!(Strides::packed(odd, 5, [Block, Layer, Kind, Token, Head]).is_err());
    }

    #[test]
    fn contiguous_dimensions_become_one_row() {
        let mut nhd = Strides::packed(SHAPE, 5, [Layer, Block, Kind, Token, Head]).unwrap();
        let mut spill = Strides::packed(SHAPE, 7, [Block, Layer, Kind, Token, Head]).unwrap();
        merge(&mut nhd, &mut spill);
        // K and V of all tokens and heads; layers lie apart on one side.
        assert_eq!((nhd.row_bytes, nhd.layers, nhd.kinds), (512, 3, 1));
        assert_eq!((nhd.block_tokens, nhd.heads, nhd.pieces()), (1, 1, 96));
        assert_eq!(spill.row_bytes, 512);
        let mut hnd = Strides::packed(SHAPE, 5, [Layer, Block, Kind, Head, Token]).unwrap();
        let mut other = hnd;
        merge(&mut hnd, &mut other);
        assert_eq!((hnd.row_bytes, hnd.pieces()), (512, 96));
        // Heads inside of tokens on one side, tokens inside of heads on the other: nothing joins.
        let mut nhd = Strides::packed(SHAPE, 5, [Layer, Block, Kind, Token, Head]).unwrap();
        let mut hnd = Strides::packed(SHAPE, 5, [Layer, Block, Kind, Head, Token]).unwrap();
        merge(&mut nhd, &mut hnd);
        assert_eq!((nhd.row_bytes, nhd.pieces()), (32, 96));
    }
}
