//! Layouts as data: the order of the axes of an arena, and the byte strides that follow from it.
//!
//! ```text
//!   slowest ───────────────────────────────────────► fastest, dim always last
//!   LayerBlockHead  [2, layer, block, head, token, dim]   the order of the seed, K and V apart
//!   HeadMajor       [2, layer, head, block, token, dim]   one head's tokens lie in one run
//!   TokenMajor      [layer, 2, block, token, head, dim]   what vLLM's FlashAttention backend uses
//!   Nhd             [layer, block, 2, token, head, dim]   what FlashInfer calls NHD
//!   Hnd             [layer, block, 2, head, token, dim]   what FlashInfer calls HND
//!   Mla             [layer, block, token, dim]            one latent vector per token
//!   BlockFirst      [block, layer, 2, token, head, dim]   a whole block lies in one run: best for spilling
//! ```
//!
//! Nothing outside this file knows these orders. Copies, views and kernels get [`Strides`] and multiply.
//!
//! What must stay true: two different coordinates never share a byte, and every byte of the arena has a
//! coordinate. The strides are those of the **reserved** number of blocks, so an arena that grows or
//! shrinks moves no byte.

use crate::geometry::{Geometry, GeometryError, Half};
use crate::ids::BlockId;
use std::fmt;

/// A direction in which an arena extends. The elements of a vector are not an axis: they always lie
/// together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// Layers of the model.
    Layer,
    /// K and V.
    Half,
    /// Blocks of the arena.
    Block,
    /// Heads.
    Head,
    /// Token slots of a block.
    Token,
}

impl fmt::Display for Axis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Layer => "layer",
            Self::Half => "half",
            Self::Block => "block",
            Self::Head => "head",
            Self::Token => "token",
        })
    }
}

/// The order of the axes. See the picture above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// `[2, layer, block, head, token, dim]`: the seed's.
    LayerBlockHead,
    /// `[2, layer, head, block, token, dim]`.
    HeadMajor,
    /// `[layer, 2, block, token, head, dim]`.
    TokenMajor,
    /// `[layer, block, 2, token, head, dim]`.
    Nhd,
    /// `[layer, block, 2, head, token, dim]`.
    Hnd,
    /// `[layer, block, token, dim]`, for MLA only.
    Mla,
    /// `[block, layer, 2, token, head, dim]`.
    BlockFirst,
}

impl Layout {
    /// All of them, in the order of [`Layout::code`].
    pub const ALL: [Self; 7] = [
        Self::LayerBlockHead,
        Self::HeadMajor,
        Self::TokenMajor,
        Self::Nhd,
        Self::Hnd,
        Self::Mla,
        Self::BlockFirst,
    ];

    /// The axes, slowest first.
    pub const fn axes(self) -> [Axis; 5] {
        use Axis::{Block, Half, Head, Layer, Token};
        match self {
            Self::LayerBlockHead => [Half, Layer, Block, Head, Token],
            Self::HeadMajor => [Half, Layer, Head, Block, Token],
            Self::TokenMajor => [Layer, Half, Block, Token, Head],
            // An MLA cache has one half and one head, so these two axes take no room.
            Self::Nhd | Self::Mla => [Layer, Block, Half, Token, Head],
            Self::Hnd => [Layer, Block, Half, Head, Token],
            Self::BlockFirst => [Block, Layer, Half, Token, Head],
        }
    }

    /// The number that stands for this layout in the identity of a cache. It never changes.
    pub const fn code(self) -> u8 {
        match self {
            Self::LayerBlockHead => 0,
            Self::HeadMajor => 1,
            Self::TokenMajor => 2,
            Self::Nhd => 3,
            Self::Hnd => 4,
            Self::Mla => 5,
            Self::BlockFirst => 6,
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LayerBlockHead => "layer-block-head",
            Self::HeadMajor => "head-major",
            Self::TokenMajor => "token-major",
            Self::Nhd => "NHD",
            Self::Hnd => "HND",
            Self::Mla => "MLA",
            Self::BlockFirst => "block-first",
        })
    }
}

/// Bytes from one coordinate to the next on each axis. The fields stand in this order, each as 64 bits, so that
/// a kernel can take the struct as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Strides {
    /// From block to block.
    pub block: u64,
    /// From layer to layer.
    pub layer: u64,
    /// From K to V.
    pub half: u64,
    /// From token slot to token slot of one block.
    pub token: u64,
    /// From head to head.
    pub head: u64,
}

const _: () = assert!(size_of::<Strides>() == 40);

impl Strides {
    /// The stride of an axis.
    pub const fn of(&self, axis: Axis) -> u64 {
        match axis {
            Axis::Layer => self.layer,
            Axis::Half => self.half,
            Axis::Block => self.block,
            Axis::Head => self.head,
            Axis::Token => self.token,
        }
    }

    pub(crate) const fn set(&mut self, axis: Axis, stride: u64) {
        *match axis {
            Axis::Layer => &mut self.layer,
            Axis::Half => &mut self.half,
            Axis::Block => &mut self.block,
            Axis::Head => &mut self.head,
            Axis::Token => &mut self.token,
        } = stride;
    }
}

/// Why an arena cannot have a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShapeError {
    /// The numbers do not fit.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// A layout without a V half, for a cache that has one.
    #[error("the MLA layout stores no V, this geometry has K and V; use the NHD layout")]
    MlaLayout,
}

/// A coordinate or a count lies outside its axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{axis} {value} is outside of 0..{limit}")]
pub struct CoordinateError {
    /// Which axis.
    pub axis: Axis,
    /// What was asked for.
    pub value: u64,
    /// How many there are.
    pub limit: u64,
}

/// Names the vector of one head and one token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coordinate {
    /// The block in the arena: the physical one.
    pub block: BlockId,
    /// The layer of the model.
    pub layer: u32,
    /// K or V.
    pub half: Half,
    /// The head.
    pub head: u32,
    /// The token's slot in its block.
    pub token: u32,
}

/// The shape of an arena: a geometry, a layout, and the number of blocks that room is reserved for.
///
/// ```
/// use mooncrate_paged::{ArenaShape, AttentionSpec, BlockId, Coordinate, DType, Geometry, Half, Layout};
///
/// let spec = AttentionSpec {
///     layers: 32, kv_heads: 32, head_dim: 64, block_tokens: 16, dtype: DType::F32,
/// };
/// let shape = ArenaShape::new(Geometry::attention(spec)?, Layout::LayerBlockHead, 2048)?;
/// let at = Coordinate { block: BlockId(101), layer: 0, half: Half::Key, head: 0, token: 1 };
/// assert_eq!(shape.offset(at)? / 4, 3_309_632);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaShape {
    geometry: Geometry,
    layout: Layout,
    blocks: u32,
    strides: Strides,
    bytes: u64,
}

impl ArenaShape {
    /// The shape of an arena that can hold up to `blocks` blocks.
    pub fn new(geometry: Geometry, layout: Layout, blocks: u32) -> Result<Self, ShapeError> {
        if layout == Layout::Mla && !geometry.is_mla() {
            return Err(ShapeError::MlaLayout);
        }
        let bytes = geometry.arena_bytes(blocks)?;
        let mut shape = Self { geometry, layout, blocks, strides: Strides::default(), bytes };
        // From the fastest axis to the slowest: each step is as long as all that lies inside. The last
        // product is `bytes`, so none of them overflows.
        let mut inside = geometry.row_bytes();
        for axis in layout.axes().into_iter().rev() {
            shape.strides.set(axis, inside);
            inside *= u64::from(shape.count(axis));
        }
        assert_eq!(inside, bytes, "the axes cover the arena");
        Ok(shape)
    }

    /// What a token stores.
    pub const fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The order of the axes.
    pub const fn layout(&self) -> Layout {
        self.layout
    }

    /// Blocks that room is reserved for.
    pub const fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Bytes of the arena when all of its blocks are in use.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The strides, for kernels and copies.
    pub const fn strides(&self) -> &Strides {
        &self.strides
    }

    /// How many coordinates an axis has.
    pub const fn count(&self, axis: Axis) -> u32 {
        match axis {
            Axis::Layer => self.geometry.layers(),
            Axis::Half => self.geometry.halves(),
            Axis::Block => self.blocks,
            Axis::Head => self.geometry.kv_heads(),
            Axis::Token => self.geometry.block_tokens(),
        }
    }

    /// The first byte of a vector.
    pub fn offset(&self, at: Coordinate) -> Result<u64, CoordinateError> {
        let Coordinate { block, layer, half, head, token } = at;
        let steps = [
            (Axis::Block, block.0),
            (Axis::Layer, layer),
            (Axis::Half, half.index()),
            (Axis::Head, head),
            (Axis::Token, token),
        ];
        steps.into_iter().try_fold(0, |sum, (axis, value)| {
            self.check(axis, u64::from(value))?;
            // Every coordinate is inside, so the sum is below `bytes`.
            Ok(sum + u64::from(value) * self.strides.of(axis))
        })
    }

    /// Refuses a coordinate outside its axis.
    pub(crate) fn check(&self, axis: Axis, value: u64) -> Result<(), CoordinateError> {
        let limit = u64::from(self.count(axis));
        if value < limit { Ok(()) } else { Err(CoordinateError { axis, value, limit }) }
    }

    /// The axes slower than the block axis. With one coordinate on each of them chosen, the part of a block
    /// that remains lies in one run of `strides().block` bytes.
    pub(crate) fn outside_block(&self) -> impl Iterator<Item = Axis> + use<> {
        self.layout.axes().into_iter().take_while(|axis| *axis != Axis::Block)
    }

    /// Whether token follows token at one distance across neighbouring blocks. Then a run of blocks is one
    /// strided tensor of tokens.
    pub const fn tokens_are_uniform(&self) -> bool {
        self.strides.block == self.strides.token * self.geometry.block_tokens() as u64
    }
}

#[cfg(test)]
#[path = "layout_tests.rs"]
pub(crate) mod tests;
