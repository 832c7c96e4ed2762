//! Where the bytes of the blocks lie, behind one trait: host memory, or the memory of a GPU.
//!
//! A caller names blocks and parts of blocks; the arena knows the strides. Calls are complete when they
//! return. They may come from several threads at once, for distinct blocks; two calls that touch one block
//! at once, one of them writing, get [`ArenaError::Busy`] and never mixed bytes.
//!
//! An arena reserves room for the blocks of its [`ArenaShape`] and has the first [`Arena::blocks`] of them.
//! [`Arena::resize`] changes that number in place: no block moves, pages of blocks that end go back to the
//! system, and blocks that begin are zero.

use crate::claims::Refusal;
use crate::cuda::CudaArena;
use crate::host::HostArena;
use crate::ids::BlockId;
use crate::kernels::{KernelError, RowMove, Slot};
use crate::layout::{ArenaShape, Axis, CoordinateError};
use crate::part::{BlockCopy, Order, Part, Runs};
use mooncrate_core::{Advice, Medium};
use mooncrate_gpu::GpuError;
use std::fmt;
use std::io;

/// Why an arena refused a call. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArenaError {
    /// A coordinate lies outside the shape.
    #[error(transparent)]
    Outside(#[from] CoordinateError),
    /// The block is beyond the current size.
    #[error("{block:?} is not in the arena now, which has {blocks} blocks; grow it first")]
    Absent {
        /// Which block.
        block: BlockId,
        /// How many there are.
        blocks: u32,
    },
    /// The block is being touched by another call or a view, or named twice in this call.
    #[error("{block:?} is in use by another call or view, or named twice in this one")]
    Busy {
        /// Which block.
        block: BlockId,
    },
    /// The caller's buffer does not have the length of the part.
    #[error("the part has {part_bytes} bytes, the buffer {buffer_bytes}")]
    WrongLength {
        /// Bytes of the part.
        part_bytes: u64,
        /// Bytes of the buffer.
        buffer_bytes: u64,
    },
    /// More blocks than room was reserved for, or none.
    #[error("{blocks} blocks were asked for; this arena can have 1 to {reserved}")]
    BadSize {
        /// Asked for.
        blocks: u32,
        /// Reserved when the arena was made.
        reserved: u32,
    },
    /// A view of an arena of another shape.
    #[error("the view was made for an arena of another shape; make it from this arena's shape")]
    ForeignView,
    /// The GPU, or a launch on it, failed.
    #[error(transparent)]
    Gpu(#[from] KernelError),
    /// The system gave no memory.
    #[error("no memory for an arena of {bytes} bytes: {error}")]
    Map {
        /// Bytes asked for.
        bytes: u64,
        /// What the system said.
        error: io::Error,
    },
}

impl From<GpuError> for ArenaError {
    fn from(error: GpuError) -> Self {
        Self::Gpu(error.into())
    }
}

impl ArenaError {
    /// What the caller does next.
    pub const fn advice(&self) -> Advice {
        match self {
            Self::Busy { .. } => Advice::Retry { after_ms: 1 },
            _ => Advice::GiveUp,
        }
    }

    pub(crate) fn refused(refusal: Refusal, blocks: u32) -> Self {
        match refusal {
            Refusal::Absent(block) => Self::Absent { block, blocks },
            Refusal::Busy(block) => Self::Busy { block },
        }
    }
}

/// The memory of a cache.
pub trait Arena: Send + Sync + fmt::Debug {
    /// Geometry, layout and reserved blocks.
    fn shape(&self) -> &ArenaShape;

    /// What the memory is.
    fn medium(&self) -> Medium;

    /// Blocks that it has now: ids `0..blocks()`.
    fn blocks(&self) -> u32;

    /// Changes the number of blocks. To shrink needs that nobody touches the blocks that end.
    fn resize(&self, blocks: u32) -> Result<(), ArenaError>;

    /// Copies a part into `target`, which has exactly its length.
    fn read(&self, part: &Part, order: Order, target: &mut [u8]) -> Result<(), ArenaError>;

    /// Copies `source`, which has exactly its length, into a part.
    fn write(&self, part: &Part, order: Order, source: &[u8]) -> Result<(), ArenaError>;

    /// Copies whole blocks: all, or none. No target may be named twice or be a source: the result would
    /// depend on the order of copying.
    fn copy_blocks(&self, copies: &[BlockCopy]) -> Result<(), ArenaError>;

    /// Fills blocks with zeros: all, or none. The cache calls this before a block changes its tenant, so that
    /// no tenant sees the bytes of another.
    fn zero_blocks(&self, blocks: &[BlockId]) -> Result<(), ArenaError>;

    /// Copies single tokens, in all layers, from their source slots to their target slots: all, or none. No slot
    /// may be written twice, and no block be read and written: the result would depend on the order.
    fn compact(&self, moves: &[RowMove]) -> Result<(), ArenaError>;

    /// The arena as host memory, for views; `None` where the processor cannot address the bytes.
    fn host(&self) -> Option<&HostArena>;

    /// The arena as memory of a GPU, for kernels and exporters; `None` for memory of the host.
    fn cuda(&self) -> Option<&CudaArena> {
        None
    }
}

/// The runs of a part, if the caller's buffer has exactly its length.
pub(crate) fn runs_for(
    shape: &ArenaShape,
    part: &Part,
    order: Order,
    buffer: usize,
) -> Result<Runs, ArenaError> {
    let runs = shape.runs(part, order)?;
    let (part_bytes, buffer_bytes) = (runs.bytes(), buffer as u64);
    if part_bytes == buffer_bytes {
        Ok(runs)
    } else {
        Err(ArenaError::WrongLength { part_bytes, buffer_bytes })
    }
}

/// The blocks that moves of tokens read, and those that they write, each named once. Refuses slots outside of the
/// shape, and slots that are written twice.
pub(crate) fn moved_blocks(
    shape: &ArenaShape,
    moves: &[RowMove],
) -> Result<(Vec<BlockId>, Vec<BlockId>), ArenaError> {
    let block_tokens = shape.geometry().block_tokens();
    let block = |slot: Slot| {
        let inside = slot.split(shape.blocks(), block_tokens);
        inside.map(|(block, _)| BlockId(block)).ok_or_else(|| {
            let value = slot.0.cast_unsigned() / u64::from(block_tokens);
            CoordinateError { axis: Axis::Block, value, limit: u64::from(shape.blocks()) }
        })
    };
    let mut written: Vec<Slot> = moves.iter().map(|step| step.target).collect();
    written.sort_unstable();
    if let Some(twice) = written.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(ArenaError::Busy { block: block(twice[0])? });
    }
    let blocks = |slots: &mut dyn Iterator<Item = Slot>| {
        let mut blocks = slots.map(block).collect::<Result<Vec<_>, _>>()?;
        blocks.sort_unstable();
        blocks.dedup();
        Ok::<_, CoordinateError>(blocks)
    };
    let sources = blocks(&mut moves.iter().map(|step| step.source))?;
    Ok((sources, blocks(&mut written.into_iter())?))
}

/// The runs of so many tokens from a slot on, in one block that the caller has claimed.
pub(crate) fn token_runs(shape: &ArenaShape, slot: Slot, count: u32) -> Runs {
    let place = slot.split(shape.blocks(), shape.geometry().block_tokens());
    let (block, token) = place.expect("a claimed block is inside the shape");
    let part = Part::block(BlockId(block)).tokens(token..token + count);
    shape.runs(&part, Order::Stored).expect("a claimed block is inside the shape")
}
