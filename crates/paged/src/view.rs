//! Views of blocks as tensors, without copies.
//!
//! What a strided tensor can describe depends on the layout. From the last token of a block to the first of
//! the next one the step must be the token stride, or no `[heads, tokens, dim]` tensor exists:
//!
//! ```text
//!   layer-block-head, 2 heads:   b0: h0 t0 t1 │ h1 t0 t1 ║ b1: h0 t2 t3 │ h1 t2 t3
//!                                       └──── not the token stride ────┘
//!   head-major:                  h0: t0 t1 ║ t2 t3        h1: t0 t1 ║ t2 t3          one stride
//! ```
//!
//! deviates: the seed returns a `[heads, tokens, dim]` tensor from its layer-block-head arena, which is
//! wrong from the second block on unless there is one head. [`ArenaShape::tokens_view`] refuses that and
//! names the layouts that allow it; [`ArenaShape::blocks_view`] gives the 4-D tensor that always exists.
//!
//! Descriptors ([`BlockView`]) hold no pointer. [`View`] is one bound to memory: it borrows the arena and the
//! descriptor, and holds a read claim on its blocks. So it cannot outlive the arena, nor the sequence that the
//! descriptor belongs to, and no arena call can write below it.

use crate::claims::ReadClaim;
use crate::dtype::DType;
use crate::geometry::Half;
use crate::host::HostArena;
use crate::ids::BlockId;
use crate::layout::{ArenaShape, Axis, Coordinate, CoordinateError, Layout};
use crate::part::BlockRun;
use crate::tensor::{Dimension, Tensor};

/// The order of the dimensions inside a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageOrder {
    /// `[pages, 2, page, heads, dim]`.
    Nhd,
    /// `[pages, 2, heads, page, dim]`.
    Hnd,
}

/// Why there is no such view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ViewError {
    /// A coordinate lies outside.
    #[error(transparent)]
    Outside(#[from] CoordinateError),
    /// A run of no blocks.
    #[error("a view needs at least 1 block")]
    NoBlocks,
    /// The tokens need more blocks than the run has.
    #[error("{tokens} tokens were asked for, the blocks hold {held}")]
    TooFewBlocks {
        /// Tokens asked for.
        tokens: u64,
        /// Tokens that the run holds.
        held: u64,
    },
    /// The tokens of neighbouring blocks have no common stride.
    #[error(
        "the {layout} layout with {kv_heads} heads has no [heads, tokens, dim] tensor over more than one \
         block; use the head-major or the token-major layout, the 4-D view, or a block table"
    )]
    NotUniform {
        /// The layout of the arena.
        layout: Layout,
        /// Heads of the arena.
        kv_heads: u32,
    },
    /// Pages with K and V of a cache without V.
    #[error("an MLA cache has no V; use latent_pages_view, whose pages are [pages, page, dim]")]
    NoValues,
    /// Latent pages of a cache with K and V.
    #[error("this cache has K and V; use pages_view, whose pages are [pages, 2, page, heads, dim]")]
    NotLatent,
}

/// A tensor over neighbouring blocks of arenas of one shape.
///
/// It is no `Copy`, and a [`View`] of memory borrows it: so what a sequence lends out
/// ([`SequenceView::view`](crate::SequenceView::view)) cannot be used after the sequence's blocks were given
/// back.
///
/// ```compile_fail,E0505
/// use mooncrate_paged::{HostArena, SequenceView};
///
/// fn too_late(arena: &HostArena, guard: SequenceView) {
///     let view = arena.view(guard.view()).unwrap();
///     drop(guard);
///     view.f32_at(&[0, 0, 0, 0]);
/// }
/// ```
///
/// ```compile_fail,E0507
/// # use mooncrate_paged::{BlockView, SequenceView};
/// fn kept(guard: SequenceView) -> BlockView {
///     *guard.view()
/// }
/// ```
#[derive(Debug, PartialEq, Eq)]
pub struct BlockView {
    tensor: Tensor,
    /// All blocks whose bytes the tensor can reach; a [`View`] claims them.
    run: BlockRun,
    /// The arena's shape: in an arena of another shape the same offsets are bytes of other blocks.
    shape: ArenaShape,
}

impl BlockView {
    /// The descriptor for exporters.
    pub const fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    /// The blocks that it covers.
    pub const fn run(&self) -> BlockRun {
        self.run
    }

    /// The shape of the arenas that it fits.
    pub const fn shape(&self) -> &ArenaShape {
        &self.shape
    }
}

impl ArenaShape {
    /// `[heads, blocks, block tokens, dim]` of one layer's K or V. It exists in every layout.
    pub fn blocks_view(
        &self,
        run: BlockRun,
        layer: u32,
        half: Half,
    ) -> Result<BlockView, ViewError> {
        let offset = self.start_of(run, layer, half)?;
        let dimensions = [
            self.dimension(Axis::Head),
            Dimension { count: u64::from(run.count), ..self.dimension(Axis::Block) },
            self.dimension(Axis::Token),
            self.vector(),
        ];
        Ok(self.view_of(run, offset, &dimensions))
    }

    /// `[heads, tokens, dim]` of one layer's K or V: the first `tokens` tokens of the run. It exists within one
    /// block, and over several where [`ArenaShape::tokens_are_uniform`].
    pub fn tokens_view(
        &self,
        run: BlockRun,
        tokens: u64,
        layer: u32,
        half: Half,
    ) -> Result<BlockView, ViewError> {
        let offset = self.start_of(run, layer, half)?;
        self.tokens_fit(u64::from(run.count), tokens)?;
        let dimensions = [
            self.dimension(Axis::Head),
            Dimension { count: tokens, ..self.dimension(Axis::Token) },
            self.vector(),
        ];
        Ok(self.view_of(run, offset, &dimensions))
    }

    /// One layer's pages with K and V, all blocks: what `FlashInfer` takes as its paged KV cache. In the layout
    /// of the same name the tensor is contiguous; in others it is strided.
    pub fn pages_view(&self, layer: u32, order: PageOrder) -> Result<BlockView, ViewError> {
        if self.geometry().is_mla() {
            return Err(ViewError::NoValues);
        }
        let run = BlockRun { first: BlockId(0), count: self.blocks() };
        let offset = self.start_of(run, layer, Half::Key)?;
        let (token, head) = (self.dimension(Axis::Token), self.dimension(Axis::Head));
        let (outer, inner) = match order {
            PageOrder::Nhd => (token, head),
            PageOrder::Hnd => (head, token),
        };
        let (block, half) = (self.dimension(Axis::Block), self.dimension(Axis::Half));
        Ok(self.view_of(run, offset, &[block, half, outer, inner, self.vector()]))
    }

    /// One layer's pages of an MLA cache, all blocks: `[pages, page, dim]`.
    pub fn latent_pages_view(&self, layer: u32) -> Result<BlockView, ViewError> {
        if !self.geometry().is_mla() {
            return Err(ViewError::NotLatent);
        }
        let run = BlockRun { first: BlockId(0), count: self.blocks() };
        let offset = self.start_of(run, layer, Half::Key)?;
        let (block, token) = (self.dimension(Axis::Block), self.dimension(Axis::Token));
        Ok(self.view_of(run, offset, &[block, token, self.vector()]))
    }

    /// Refuses tokens that `blocks` neighbouring blocks do not hold, or hold at no common stride.
    pub(crate) fn tokens_fit(&self, blocks: u64, tokens: u64) -> Result<(), ViewError> {
        let block_tokens = u64::from(self.geometry().block_tokens());
        let held = blocks * block_tokens;
        if tokens > held {
            return Err(ViewError::TooFewBlocks { tokens, held });
        }
        if tokens > block_tokens && !self.tokens_are_uniform() {
            let kv_heads = self.geometry().kv_heads();
            return Err(ViewError::NotUniform { layout: self.layout(), kv_heads });
        }
        Ok(())
    }

    pub(crate) fn dimension(&self, axis: Axis) -> Dimension {
        Dimension { count: u64::from(self.count(axis)), stride: self.strides().of(axis) }
    }

    /// The elements of one vector.
    pub(crate) fn vector(&self) -> Dimension {
        let count = u64::from(self.geometry().head_dim());
        Dimension { count, stride: u64::from(self.geometry().dtype().bytes()) }
    }

    fn start_of(&self, run: BlockRun, layer: u32, half: Half) -> Result<u64, ViewError> {
        let extra = run.count.checked_sub(1).ok_or(ViewError::NoBlocks)?;
        self.check(Axis::Block, u64::from(run.first.0) + u64::from(extra))?;
        Ok(self.offset(Coordinate { block: run.first, layer, half, head: 0, token: 0 })?)
    }

    fn view_of(&self, run: BlockRun, offset: u64, dimensions: &[Dimension]) -> BlockView {
        let tensor = Tensor::new(offset, self.geometry().dtype(), dimensions);
        BlockView { tensor, run, shape: *self }
    }
}

/// A view of an arena's memory. While it lives, no arena call writes to its blocks: it holds a read claim, and
/// a write is refused as busy.
#[derive(Debug)]
pub struct View<'a> {
    arena: &'a HostArena,
    tensor: Tensor,
    /// Ends with the view; the rows below are borrowed from the view, so they end before.
    _claim: ReadClaim<'a>,
}

impl<'a> View<'a> {
    /// A view whose claim covers all blocks that the tensor reaches.
    pub(crate) fn new(arena: &'a HostArena, tensor: Tensor, claim: ReadClaim<'a>) -> Self {
        Self { arena, tensor, _claim: claim }
    }

    /// The descriptor.
    pub const fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    /// The vector at `index`, which names all dimensions but the last; `None` outside.
    pub fn row(&self, index: &[u64]) -> Option<&[u8]> {
        if index.len() + 1 != self.tensor.shape().len() {
            return None;
        }
        let offset = self.tensor.offset_of(index)?;
        let bytes = u64::from(self.arena.shape_ref().geometry().head_dim())
            * u64::from(self.tensor.dtype().bytes());
        let first = self.arena.at(offset, bytes);
        // SAFETY: `at` checked that the row lies in the mapping, which lives as long as the arena that `self`
        // borrows. The tensor reaches only bytes of blocks that `_claim` covers, and while a block has a
        // read claim nothing writes to it: arena calls are refused, and whoever writes through a raw pointer
        // promised not to.
        Some(unsafe { std::slice::from_raw_parts(first.as_ptr(), bytes as usize) })
    }

    /// One element of an `f32` view; `None` outside, or if the elements have another type.
    pub fn f32_at(&self, index: &[u64]) -> Option<f32> {
        let (last, row) = index.split_last()?;
        if self.tensor.dtype() != DType::F32 {
            return None;
        }
        let row = self.row(row)?;
        let start = usize::try_from(*last).ok()?.checked_mul(4)?;
        let bytes = row.get(start..start.checked_add(4)?)?;
        Some(f32::from_le_bytes(bytes.try_into().ok()?))
    }
}

#[cfg(test)]
#[path = "view_tests.rs"]
mod tests;
