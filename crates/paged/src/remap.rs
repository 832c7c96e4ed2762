//! Contiguous addresses for a sequence whose blocks lie anywhere: the pages of its blocks are mapped a second
//! time, one after the other.
//!
//! ```text
//!   arena (memfd):   … b7 … b2 … b9 …          the same pages, seen twice
//!                       │    │    │
//!   reserved range:   ┌─▼──┬─▼──┬─▼──┐
//!                     │ b7 │ b2 │ b9 │         one run of addresses, no copy
//!                     └────┴────┴────┘
//! ```
//!
//! What is mapped of each block is the part that lies in one run: a **piece**. Axes slower than the blocks
//! are fixed by the caller, the others are inside the piece. In the NHD layout a piece is K and V of one
//! layer, in the head-major layout the tokens of one head. Pieces must be whole pages.
//!
//! What must stay true: the range stays mapped as long as the [`Contiguous`] lives; the file behind it cannot
//! shrink, so no access can fault; reads and writes take the same claims as calls of the arena, because the
//! bytes are the same.

use crate::arena::ArenaError;
use crate::geometry::Half;
use crate::host::HostArena;
use crate::ids::BlockId;
use crate::layout::{ArenaShape, Axis, Coordinate, CoordinateError};
use crate::tensor::{Dimension, Tensor};
use crate::view::ViewError;
use rustix::mm::{MapFlags, ProtFlags};
use std::io;
use std::ops::{Deref, Range};
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
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
    /// Anonymous memory has no second mapping.
    #[error("the arena is anonymous memory; make it with HostArena::memfd to map its blocks again")]
    NotShared,
    /// A piece ends inside a page.
    #[error(
        "a block has {piece_bytes} bytes here, which is no multiple of the page of {page_bytes}; \
         use blocks of {block_tokens_fit} tokens"
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
    /// The system refused, for instance because the process has too many mappings (`vm.max_map_count`).
    #[error("mapping {blocks} blocks one after the other failed: {error}")]
    Map {
        /// How many blocks.
        blocks: usize,
        /// What the system said.
        error: io::Error,
    },
}

/// What keeps an arena: a reference, or an `Arc`. No other type can be one: a `Deref` that named another arena
/// from call to call would take the claims of one and touch the bytes of the other.
pub trait ArenaRef: Deref<Target = HostArena> + sealed::Sealed {}

impl ArenaRef for &HostArena {}
impl ArenaRef for Arc<HostArena> {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for &super::HostArena {}
    impl Sealed for std::sync::Arc<super::HostArena> {}
}

/// The blocks of a sequence at contiguous addresses, until it is dropped. `A` is what keeps the arena.
///
/// ```
/// use mooncrate_mem::Pages;
/// use mooncrate_paged::{Arena, ArenaShape, AttentionSpec, BlockId, Contiguous, DType, Geometry};
/// use mooncrate_paged::{Half, HostArena, Layout, Order, Part, Piece};
///
/// let spec = AttentionSpec { layers: 2, kv_heads: 4, head_dim: 64, block_tokens: 16, dtype: DType::F16 };
/// let shape = ArenaShape::new(Geometry::attention(spec)?, Layout::TokenMajor, 100)?;
/// let arena = HostArena::memfd(shape, 100, Pages::Small)?;
///
/// let blocks = [BlockId(7), BlockId(2), BlockId(9)];
/// let piece = Piece { layer: 1, half: Half::Key, head: 0 };
/// let sequence = Contiguous::map(&arena, &blocks, piece)?;
/// assert_eq!(sequence.tokens_view(40)?.shape(), [4, 40, 64]);
///
/// let part = Part::block(BlockId(2)).layer(1).half(Half::Key);
/// arena.write(&part, Order::Stored, &[5; 8192])?;
/// let mut bytes = [0; 8192];
/// sequence.read(8192, &mut bytes)?;
/// assert_eq!(bytes, [5; 8192]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Contiguous<A: ArenaRef> {
    /// Unmapped first; the arena below is only needed for claims.
    range: Reserved,
    blocks: Box<[BlockId]>,
    piece_bytes: u64,
    arena: A,
}

impl<A: ArenaRef> Contiguous<A> {
    /// Maps one piece of each block, in the order of the list.
    pub fn map(arena: A, blocks: &[BlockId], piece: Piece) -> Result<Self, RemapError> {
        let shape = *arena.shape_ref();
        let fd = arena.own_fd().ok_or(RemapError::NotShared)?;
        let start = piece_start(&shape, piece)?;
        let piece_bytes = check_pages(&shape, arena.page_bytes())?;
        for block in blocks {
            shape.check(Axis::Block, u64::from(block.0))?;
        }
        let failed = |error| RemapError::Map { blocks: blocks.len(), error };
        let bytes = (blocks.len() as u64).saturating_mul(piece_bytes);
        if bytes == 0 {
            return Err(RemapError::NoBlocks);
        }
        let len = usize::try_from(bytes).map_err(|error| failed(io::Error::other(error)))?;
        let range = Reserved::new(len).map_err(failed)?;
        let mut done = 0;
        for run in neighbours(blocks) {
            let first = start + u64::from(run[0].0) * piece_bytes;
            let len = run.len() as u64 * piece_bytes;
            range.place(fd, done..done + len, first).map_err(failed)?;
            done += len;
        }
        Ok(Self { range, blocks: blocks.into(), piece_bytes, arena })
    }

    /// The address of the first byte, for exporters and engines; valid until this is dropped. Whoever follows
    /// it keeps the rule that [`HostArena::base`] states.
    pub fn base(&self) -> NonNull<u8> {
        self.range.base
    }

    /// Bytes from the first block to the last.
    pub fn bytes(&self) -> u64 {
        self.range.len as u64
    }

    /// The blocks, in the order of their addresses.
    pub fn blocks(&self) -> &[BlockId] {
        &self.blocks
    }

    /// `[heads, tokens, dim]` from [`Contiguous::base`]: the tensor of the whole sequence, where one block
    /// follows the other at the token stride. In the head-major layout it has the one head of the piece.
    pub fn tokens_view(&self, tokens: u64) -> Result<Tensor, ViewError> {
        let shape = self.arena.shape_ref();
        shape.tokens_fit(self.blocks.len() as u64, tokens)?;
        let token = Dimension { count: tokens, ..shape.dimension(Axis::Token) };
        Ok(self.tensor(0, &[self.heads(), token, shape.vector()]))
    }

    /// `[heads, blocks, block tokens, dim]` from [`Contiguous::base`], of one layer and half inside the piece.
    /// For axes outside the piece the coordinate is ignored: the piece has one.
    pub fn blocks_view(&self, layer: u32, half: Half) -> Result<Tensor, ViewError> {
        let shape = self.arena.shape_ref();
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
        let claims = self.arena.claims();
        let _claims =
            Held::begin(touched, |block| claims.begin_read(block), |b| claims.end_read(b))
                .map_err(|refusal| self.arena.refused(refusal))?;
        let first = self.range.base.as_ptr().wrapping_add(offset as usize);
        // SAFETY: `touched` checked that the bytes lie in the range, which is mapped as long as `self`. All
        // blocks that they belong to have read claims, so nobody writes them.
        unsafe { ptr::copy_nonoverlapping(first, target.as_mut_ptr(), target.len()) };
        Ok(())
    }

    /// Copies bytes in, from `offset` on. The arena has them at once: the pages are the same.
    pub fn write(&self, offset: u64, source: &[u8]) -> Result<(), ArenaError> {
        let touched = self.touched(offset, source.len())?;
        let claims = self.arena.claims();
        let _claims =
            Held::begin(touched, |block| claims.begin_write(block), |b| claims.end_write(b))
                .map_err(|refusal| self.arena.refused(refusal))?;
        let first = self.range.base.as_ptr().wrapping_add(offset as usize);
        // SAFETY: as in `read`, with write claims: nobody else touches these blocks, here or in the arena.
        // The source cannot be one of them: a slice into the arena comes from a view with a read claim.
        unsafe { ptr::copy_nonoverlapping(source.as_ptr(), first, source.len()) };
        Ok(())
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
        let shape = self.arena.shape_ref();
        let heads = shape.dimension(Axis::Head);
        let fixed = shape.outside_block().any(|axis| axis == Axis::Head);
        if fixed { Dimension { count: 1, ..heads } } else { heads }
    }

    fn tensor(&self, offset: u64, dimensions: &[Dimension]) -> Tensor {
        Tensor::new(offset, self.arena.shape_ref().geometry().dtype(), dimensions)
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
fn check_pages(shape: &ArenaShape, page_bytes: u64) -> Result<u64, RemapError> {
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

/// Maximal runs of ascending neighbours: one mapping each, because a process may not have many.
fn neighbours(blocks: &[BlockId]) -> impl Iterator<Item = &[BlockId]> {
    blocks.chunk_by(|one, next| one.0.checked_add(1) == Some(next.0))
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

/// A range of addresses that belongs to us, at first without memory.
#[derive(Debug)]
struct Reserved {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: it owns its mapping, which is not bound to a thread.
unsafe impl Send for Reserved {}
// SAFETY: `&Reserved` gives out a raw pointer only; whoever follows it proves that access himself.
unsafe impl Sync for Reserved {}

impl Reserved {
    fn new(len: usize) -> io::Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let at = ptr::null_mut();
        // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
        let base = unsafe { rustix::mm::mmap_anonymous(at, len, ProtFlags::empty(), flags) }?;
        let base = NonNull::new(base.cast()).expect("the kernel does not map address 0");
        Ok(Self { base, len })
    }

    /// Maps the file from `first` on over a part of the range.
    fn place(&self, fd: BorrowedFd<'_>, part: Range<u64>, first: u64) -> io::Result<()> {
        assert!(part.start <= part.end && part.end <= self.len as u64, "inside the range");
        let at = self.base.as_ptr().wrapping_add(part.start as usize).cast();
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: the part lies in our own reservation, to which nobody has a pointer yet.
        unsafe { rustix::mm::mmap(at, (part.end - part.start) as usize, prot, flags, fd, first) }?;
        Ok(())
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        // SAFETY: the range is our mapping; whoever followed a pointer into it did so while it lived.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "our own mapping can be unmapped: {unmapped:?}");
    }
}

#[cfg(test)]
#[path = "remap_tests.rs"]
mod tests;
