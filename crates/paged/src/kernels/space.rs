//! Device memory that holds blocks, with its rows: checked once, used by every launch.

use super::rows::UNIT;
use super::{BlockRows, KernelError};
use mooncrate_gpu::{Span, Stream};

/// Device memory that holds `blocks` blocks: an arena, or a contiguous buffer.
#[derive(Clone, Copy, Debug)]
pub struct BlockSpace<'a> {
    memory: Span<'a>,
    rows: BlockRows,
    blocks: u32,
}

impl<'a> BlockSpace<'a> {
    /// The blocks in `memory`. Refuses memory that is too short or not aligned to 16 bytes.
    pub fn new(memory: Span<'a>, rows: BlockRows, blocks: u32) -> Result<Self, KernelError> {
        let needed = rows.check(blocks)?;
        if needed > memory.len() {
            let (what, given) = ("the memory of the blocks", memory.len());
            return Err(KernelError::TooShort { what, needed, given });
        }
        aligned("the address of the blocks", memory.address())?;
        Ok(Self { memory, rows, blocks })
    }

    /// One block, at every place of a contiguous buffer: what [`scatter`](super::Kernels::scatter) reads to fill many
    /// blocks with the same bytes.
    pub(crate) fn repeated(memory: Span<'a>, mut rows: BlockRows) -> Result<Self, KernelError> {
        let one = Self::new(memory, rows, 1)?;
        rows.strides.block = 0;
        Ok(Self { rows, blocks: u32::MAX, ..one })
    }

    /// Its memory.
    pub fn memory(&self) -> Span<'a> {
        self.memory
    }

    /// Where the rows lie.
    pub fn rows(&self) -> &BlockRows {
        &self.rows
    }

    /// How many blocks it holds.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// How many token slots it holds.
    pub fn slots(&self) -> u64 {
        u64::from(self.blocks) * u64::from(self.rows.block_tokens)
    }
}

/// Refuses what a thread cannot move 16 bytes at a time.
pub(super) fn aligned(what: &'static str, value: u64) -> Result<(), KernelError> {
    if value.is_multiple_of(UNIT) {
        return Ok(());
    }
    Err(KernelError::Misaligned { what, value, unit: UNIT })
}

/// Refuses memory that the GPU of `stream` may not reach.
pub(super) fn on_gpu_of(stream: &Stream, memory: &[Span<'_>]) -> Result<(), KernelError> {
    match memory.iter().find(|span| !span.gpu().is(stream.gpu())) {
        None => Ok(()),
        Some(span) => Err(KernelError::Shape(format!(
            "memory of GPU {} in a launch on GPU {}",
            span.gpu().ordinal(),
            stream.gpu().ordinal()
        ))),
    }
}
