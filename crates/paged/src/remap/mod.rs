//! Contiguous addresses for a sequence whose blocks lie anywhere: the pages of its blocks are mapped a second
//! time, one after the other. Host memory does it with a memfd (`host.rs`), device memory with the driver's
//! virtual memory management (`cuda.rs`).
//!
//! ```text
//!   arena:           … b7 … b2 … b9 …          the same pages, seen twice
//!                       │    │    │
//!   reserved range:   ┌─▼──┬─▼──┬─▼──┐
//!                     │ b7 │ b2 │ b9 │         one run of addresses, no copy
//!                     └────┴────┴────┘
//! ```
//!
//! What is mapped of each block is the part that lies in one run: a **piece**. Axes slower than the blocks
//! are fixed by the caller, the others are inside the piece. In the NHD layout a piece is K and V of one
//! layer, in the head-major layout the tokens of one head, in the block-first layout the whole block. Pieces
//! must be whole pages: 4 KiB on most hosts, 2 MiB on GPUs.
//!
//! What must stay true: the range stays mapped as long as the [`Contiguous`] lives, and so do its blocks, by
//! whatever holds them ([`BlockHold`]); the memory behind it cannot shrink, so no access can fault; reads and
//! writes take the same claims as calls of the arena, because the bytes are the same.

mod cuda;
mod hold;
mod host;

pub(crate) use cuda::PieceMemory;
pub use hold::{BlockHold, HeldSequence, Unheld};

use crate::arena::{Arena, ArenaError};
use crate::cuda::CudaArena;
use crate::geometry::Half;
use crate::host::HostArena;
use crate::ids::BlockId;
use crate::layout::{ArenaShape, Axis, Coordinate, CoordinateError};
use crate::tensor::{Dimension, Tensor};
use crate::view::ViewError;
use sealed::Mapper as _;
use std::io;
use std::ops::Deref;
use std::sync::Arc;

/// Which piece of each block: one coordinate for each axis slower than the blocks, and zero (or K) for the
/// others, which are inside the piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The layer; 0 in the block-first layout.
    pub layer: u32,
    /// K or V; `Half::Key` where a piece has both.
    pub half: Half,
    /// The head; 0 but in the head-major layout.
    pub head: u32,
}

/// Why a sequence cannot be mapped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemapError {
    /// The arena's memory has no second mapping.
    #[error("the blocks of this arena cannot be mapped again; make it with {instead}")]
    NotShared {
        /// What makes an arena whose blocks can.
        instead: &'static str,
    },
    /// A piece ends inside a page.
    #[error(
        "a piece of a block has {piece_bytes} bytes, which is no multiple of the page of {page_bytes}; \
         use blocks of {block_tokens_fit} tokens, or the block-first layout, whose pieces are longest"
    )]
    NotPageSized {
        /// Bytes of the piece.
        piece_bytes: u64,
        /// Bytes of a page.
        page_bytes: u64,
        /// The next larger block size that would do.
        block_tokens_fit: u64,
    },
    /// Nothing to map.
    #[error("a sequence without blocks has no addresses")]
    NoBlocks,
    /// A coordinate outside, of a block or of the piece.
    #[error(transparent)]
    Outside(#[from] CoordinateError),
    /// The piece fixes an axis that the layout stores inside the block.
    #[error("a piece contains every {axis} in this layout; leave its {axis} at 0")]
    Inside {
        /// Which axis.
        axis: Axis,
    },
    /// The arena or the GPU refused.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// The system refused, for instance because the process has too many mappings (`vm.max_map_count`).
    #[error("mapping {blocks} blocks one after the other failed: {error}")]
    Map {
        /// How many blocks.
        blocks: usize,
        /// What the system said.
        error: io::Error,
    },
}

/// An arena whose blocks can be mapped a second time: a [`HostArena`] or a [`CudaArena`].
pub trait Remap: Arena + sealed::Mapper {}

impl Remap for HostArena {}
impl Remap for CudaArena {}

/// What keeps an arena: a reference, or an `Arc`. No other type can be one: a `Deref` that named another arena
/// from call to call would take the claims of one and touch the bytes of the other.
pub trait ArenaRef: Deref<Target: Remap> + sealed::Reference {}

impl<T: Remap> ArenaRef for &T {}
impl<T: Remap> ArenaRef for Arc<T> {}

mod sealed {
    use super::{ArenaError, BlockId, RemapError};
    use crate::claims::Claims;
    use std::fmt::Debug;
    use std::sync::Arc;

    pub trait Reference {}
    impl<T: super::Remap> Reference for &T {}
    impl<T: super::Remap> Reference for Arc<T> {}

    /// What an arena does for [`super::Contiguous`], which checks the arguments and takes the claims. Users of
    /// the crate can reach these methods through the bounds of generic code, so what needs claims is unsafe.
    pub trait Mapper {
        /// Owns the second mapping and unmaps it.
        type Mapping: Debug + Send + Sync;

        /// Bytes that pieces are multiples of; refused where the memory has no second mapping.
        fn remap_page_bytes(&self) -> Result<u64, RemapError>;

        /// Maps `piece_bytes` bytes of each block, of which there is at least one. In block 0 they begin
        /// at `start`.
        fn map_pieces(
            &self,
            blocks: &[BlockId],
            start: u64,
            piece_bytes: u64,
        ) -> Result<Self::Mapping, RemapError>;

        /// Copies bytes out of the mapping.
        ///
        /// # Safety
        /// The mapping is one of this arena, the bytes lie inside, and their blocks are claimed for reading.
        unsafe fn copy_out(
            &self,
            mapping: &Self::Mapping,
            offset: u64,
            target: &mut [u8],
        ) -> Result<(), ArenaError>;

        /// Copies bytes into the mapping.
        ///
        /// # Safety
        /// The mapping is one of this arena, the bytes lie inside, and their blocks are claimed for writing.
        unsafe fn copy_in(
            &self,
            mapping: &Self::Mapping,
            offset: u64,
            source: &[u8],
        ) -> Result<(), ArenaError>;

        fn remap_claims(&self) -> &Claims;
    }
}

/// The blocks of a sequence at contiguous addresses, until it is dropped. `A` is what keeps the arena, `B` what
/// keeps the blocks.
///
/// ```
/// use mooncrate_mem::Pages;
/// use mooncrate_paged::{Arena, ArenaShape, AttentionSpec, BlockId, Contiguous, DType, Geometry};
/// use mooncrate_paged::{BlockHold, Cache, CacheConfig, Half, HostArena, Layout, Order, Part, Piece, Prompt};
/// use std::sync::Arc;
///
/// let spec = AttentionSpec { layers: 2, kv_heads: 4, head_dim: 64, block_tokens: 16, dtype: DType::F16 };
/// let shape = ArenaShape::new(Geometry::attention(spec)?, Layout::TokenMajor, 100)?;
/// let arena = Arc::new(HostArena::memfd(shape, 100, Pages::Small)?);
/// let cache = Cache::new(CacheConfig::new("tiny"), arena.clone())?;
/// cache.allocate_for("a", Prompt::Count(40))?;
///
/// let piece = Piece { layer: 1, half: Half::Key, head: 0 };
/// let sequence = Contiguous::map(arena.clone(), cache.hold("a")?, piece)?;
/// assert_eq!(sequence.tokens_view(40)?.shape(), [4, 40, 64]);
///
/// // The sequence ends; its blocks stay until the mapping is dropped.
/// let second: BlockId = sequence.blocks()[1];
/// cache.free_for("a")?;
/// assert_eq!(cache.stats().used_blocks, 3);
/// let part = Part::block(second).layer(1).half(Half::Key);
/// arena.write(&part, Order::Stored, &[5; 8192])?;
/// let mut bytes = [0; 8192];
/// sequence.read(8192, &mut bytes)?;
/// assert_eq!(bytes, [5; 8192]);
/// drop(sequence);
/// assert_eq!(cache.stats().used_blocks, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A mapping of borrowed blocks cannot outlive their sequence:
///
/// ```compile_fail,E0505
/// use mooncrate_paged::{Contiguous, HostArena, Piece, Pool, Sequence};
///
/// fn too_late(arena: &HostArena, sequence: Sequence, pool: &Pool, piece: Piece) {
///     let mapped = Contiguous::map(arena, &sequence, piece).unwrap();
///     sequence.free(pool);
///     mapped.read(0, &mut [0; 16]).unwrap();
/// }
/// ```
#[derive(Debug)]
pub struct Contiguous<A: ArenaRef, B: BlockHold> {
    /// Unmapped before the blocks below are given back.
    mapping: <A::Target as sealed::Mapper>::Mapping,
    /// What `hold` named when they were mapped; claims are taken on these.
    blocks: Box<[BlockId]>,
    piece_bytes: u64,
    /// Keeps the blocks from being given to another sequence.
    hold: B,
    arena: A,
}

impl<A: ArenaRef, B: BlockHold> Contiguous<A, B> {
    /// Maps one piece of each block, in the order of the list.
    pub fn map(arena: A, hold: B, piece: Piece) -> Result<Self, RemapError> {
        let shape = *arena.shape();
        let page_bytes = arena.remap_page_bytes()?;
        let start = piece_start(&shape, piece)?;
        let piece_bytes = check_pages(&shape, page_bytes)?;
        let blocks: Box<[BlockId]> = hold.blocks().into();
        if blocks.is_empty() {
            return Err(RemapError::NoBlocks);
        }
        for block in &blocks {
            shape.check(Axis::Block, u64::from(block.0))?;
        }
        let mapping = arena.map_pieces(&blocks, start, piece_bytes)?;
        Ok(Self { mapping, blocks, piece_bytes, hold, arena })
    }

    /// Bytes from the first block to the last.
    pub fn bytes(&self) -> u64 {
        // So many bytes were mapped, so they fit an address space: no overflow.
        self.blocks.len() as u64 * self.piece_bytes
    }

    /// The blocks, in the order of their addresses.
    pub fn blocks(&self) -> &[BlockId] {
        &self.blocks
    }

    /// What keeps the blocks.
    pub fn hold(&self) -> &B {
        &self.hold
    }

    /// `[heads, tokens, dim]` from the first byte on: the tensor of the whole sequence, where one block
    /// follows the other at the token stride. In the head-major layout it has the one head of the piece.
    pub fn tokens_view(&self, tokens: u64) -> Result<Tensor, ViewError> {
        let shape = self.arena.shape();
        shape.tokens_fit(self.blocks.len() as u64, tokens)?;
        let token = Dimension { count: tokens, ..shape.dimension(Axis::Token) };
        Ok(self.tensor(0, &[self.heads(), token, shape.vector()]))
    }

    /// `[heads, blocks, block tokens, dim]` from the first byte on, of one layer and half inside the piece.
    /// For axes outside the piece the coordinate is ignored: the piece has one.
    pub fn blocks_view(&self, layer: u32, half: Half) -> Result<Tensor, ViewError> {
        let shape = self.arena.shape();
        let mut offset = 0;
        for (axis, value) in [(Axis::Layer, layer), (Axis::Half, half.index())] {
            if shape.outside_block().all(|outside| outside != axis) {
                shape.check(axis, u64::from(value))?;
                offset += u64::from(value) * shape.strides().of(axis);
            }
        }
        let blocks = Dimension { count: self.blocks.len() as u64, stride: self.piece_bytes };
        let token = shape.dimension(Axis::Token);
        Ok(self.tensor(offset, &[self.heads(), blocks, token, shape.vector()]))
    }

    /// Copies bytes out, from `offset` on.
    pub fn read(&self, offset: u64, target: &mut [u8]) -> Result<(), ArenaError> {
        let touched = self.touched(offset, target.len())?;
        let claims = self.arena.remap_claims();
        let _claims =
            Held::begin(touched, |block| claims.begin_read(block), |b| claims.end_read(b))
                .map_err(|refusal| ArenaError::refused(refusal, self.arena.blocks()))?;
        // SAFETY: the arena made the mapping in `map`; `touched` checked the bytes and named their blocks,
        // which are claimed until `_claims` is dropped.
        unsafe { self.arena.copy_out(&self.mapping, offset, target) }
    }

    /// Copies bytes in, from `offset` on. The arena has them at once: the pages are the same.
    pub fn write(&self, offset: u64, source: &[u8]) -> Result<(), ArenaError> {
        let touched = self.touched(offset, source.len())?;
        let claims = self.arena.remap_claims();
        let _claims =
            Held::begin(touched, |block| claims.begin_write(block), |b| claims.end_write(b))
                .map_err(|refusal| ArenaError::refused(refusal, self.arena.blocks()))?;
        // SAFETY: as in `read`, with claims for writing.
        unsafe { self.arena.copy_in(&self.mapping, offset, source) }
    }

    /// The blocks that `len` bytes from `offset` on belong to.
    fn touched(&self, offset: u64, len: usize) -> Result<&[BlockId], ArenaError> {
        let (part_bytes, buffer_bytes) = (self.bytes().saturating_sub(offset), len as u64);
        if buffer_bytes > part_bytes || offset > self.bytes() {
            return Err(ArenaError::WrongLength { part_bytes, buffer_bytes });
        }
        let end = (offset + buffer_bytes).div_ceil(self.piece_bytes) as usize;
        let first = ((offset / self.piece_bytes) as usize).min(end);
        Ok(&self.blocks[first..end])
    }

    /// The heads that a piece has.
    fn heads(&self) -> Dimension {
        let shape = self.arena.shape();
        let heads = shape.dimension(Axis::Head);
        let fixed = shape.outside_block().any(|axis| axis == Axis::Head);
        if fixed { Dimension { count: 1, ..heads } } else { heads }
    }

    fn tensor(&self, offset: u64, dimensions: &[Dimension]) -> Tensor {
        Tensor::new(offset, self.arena.shape().geometry().dtype(), dimensions)
    }
}

/// The offset of the piece in block 0.
fn piece_start(shape: &ArenaShape, piece: Piece) -> Result<u64, RemapError> {
    let Piece { layer, half, head } = piece;
    for (axis, value) in [(Axis::Layer, layer), (Axis::Half, half.index()), (Axis::Head, head)] {
        if value != 0 && shape.outside_block().all(|outside| outside != axis) {
            return Err(RemapError::Inside { axis });
        }
    }
    Ok(shape.offset(Coordinate { block: BlockId(0), layer, half, head, token: 0 })?)
}

/// Bytes of a piece, if they are whole pages. Strides of slower axes are multiples of it, so every piece
/// then begins at a page.
pub(crate) fn check_pages(shape: &ArenaShape, page_bytes: u64) -> Result<u64, RemapError> {
    let piece_bytes = shape.strides().block;
    if piece_bytes.is_multiple_of(page_bytes) {
        return Ok(piece_bytes);
    }
    let block_tokens = u64::from(shape.geometry().block_tokens());
    // So many tokens are whole pages, and so are their multiples.
    let unit = page_bytes / greatest_common_divisor(page_bytes, piece_bytes / block_tokens);
    let block_tokens_fit = block_tokens.next_multiple_of(unit);
    Err(RemapError::NotPageSized { piece_bytes, page_bytes, block_tokens_fit })
}

fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Claims on a list of blocks, ended when this is dropped.
struct Held<'a, E: Fn(BlockId)> {
    blocks: &'a [BlockId],
    end: E,
}

impl<'a, E: Fn(BlockId)> Held<'a, E> {
    /// Begins a claim on each block. On an error those that were begun are ended again.
    fn begin<R>(
        blocks: &'a [BlockId],
        begin: impl Fn(BlockId) -> Result<(), R>,
        end: E,
    ) -> Result<Self, R> {
        let mut held = Self { blocks: &[], end };
        for (place, block) in blocks.iter().enumerate() {
            begin(*block)?;
            held.blocks = &blocks[..=place];
        }
        Ok(held)
    }
}

impl<E: Fn(BlockId)> Drop for Held<'_, E> {
    fn drop(&mut self) {
        for block in self.blocks {
            (self.end)(*block);
        }
    }
}

#[cfg(test)]
mod tests;
