//! An arena in the memory of a GPU.
//!
//! Room for all reserved blocks is taken at once: device memory has no overcommit, and blocks never move, so
//! that tables and captured graphs stay valid. Resizing changes which blocks there are.
//!
//! Each call runs on a stream of the arena and is complete when it returns, as the trait asks. Bytes of a caller
//! travel through pinned buffers, or straight if the caller's memory is pinned ([`crate::staging`]). The claims
//! ([`crate::claims`]) keep calls on one block apart; kernels of an engine that touch the same memory by its
//! address are ordered by the engine: it publishes a block after the kernel that wrote it has ended, and
//! frees a sequence after the last kernel that read it.
//!
//! Memory for lists of blocks is taken once, when the arena is made: to allocate and free at each call would make
//! the whole context wait, and with it every kernel of the engine.

use crate::arena::{Arena, ArenaError, moved_blocks, runs_for, token_runs};
use crate::claims::Claims;
use crate::host::HostArena;
use crate::ids::BlockId;
use crate::kernels::{
    BlockPair, BlockRows, BlockSpace, DeviceList, Entry, KernelError, Kernels, RowMove, TargetBlock,
};
use crate::layout::{ArenaShape, Axis};
use crate::part::{BlockCopy, BlockRun, Order, Part, Runs};
use crate::remap::{PieceMemory, RemapError, check_pages};
use crate::staging::{STAGING_BYTES, Staging};
use mooncrate_core::{Extent, Medium};
use mooncrate_gpu::{DeviceBuffer, Gpu, SharedMemory, Span, Stream};
use mooncrate_lock::Mutex;
use std::iter;
use std::sync::atomic::{AtomicU32, Ordering};

/// Entries of a list in one launch; longer lists take several.
const LIST_MAX: usize = 4096;

/// An arena that a GPU can address.
#[derive(Debug)]
pub struct CudaArena {
    shape: ArenaShape,
    memory: Memory,
    claims: Claims,
    /// How many blocks there are; changed by `resize` only, under the lock below.
    present: AtomicU32,
    /// Held over a whole change of size.
    resizing: Mutex<()>,
    /// One call at a time uses the stream of the arena. Engines have streams of their own.
    work: Mutex<Work>,
}

/// Where the blocks lie.
#[derive(Debug)]
enum Memory {
    /// One allocation.
    Whole(DeviceBuffer),
    /// One allocation per piece, so that pieces can be mapped again.
    Pieces(PieceMemory),
}

#[derive(Debug)]
struct Work {
    stream: Stream,
    kernels: Kernels,
    staging: Staging,
    /// What kernels follow; written anew for each launch, at the same address.
    pairs: DeviceList<BlockPair>,
    moves: DeviceList<RowMove>,
    targets: DeviceList<TargetBlock>,
    /// A block of zeros.
    zeros: DeviceBuffer,
}

impl CudaArena {
    /// An arena of this shape on a GPU, of which the first `blocks` blocks exist. All of them are zero.
    pub fn new(gpu: &Gpu, shape: ArenaShape, blocks: u32) -> Result<Self, ArenaError> {
        Self::with_staging(gpu, shape, blocks, STAGING_BYTES)
    }

    /// The same with pinned buffers of so many bytes.
    fn with_staging(
        gpu: &Gpu,
        shape: ArenaShape,
        blocks: u32,
        staging_bytes: usize,
    ) -> Result<Self, ArenaError> {
        check_size(&shape, blocks)?;
        let memory = Memory::Whole(DeviceBuffer::new(gpu, shape.bytes())?);
        Self::over(gpu, memory, shape, blocks, staging_bytes)
    }

    /// The same in memory whose blocks can be mapped to contiguous addresses ([`Contiguous`]).
    ///
    /// A piece of a block must be a multiple of the driver's page, 2 MiB on the GPUs we know; the error names
    /// the block size that is. In the block-first layout a piece is the whole block.
    ///
    /// [`Contiguous`]: crate::Contiguous
    pub fn remappable(gpu: &Gpu, shape: ArenaShape, blocks: u32) -> Result<Self, RemapError> {
        check_size(&shape, blocks)?;
        let page_bytes = SharedMemory::granularity(gpu).map_err(ArenaError::from)?;
        let piece_bytes = check_pages(&shape, page_bytes)?;
        let memory = PieceMemory::new(gpu, shape.bytes(), piece_bytes).map_err(ArenaError::from)?;
        Ok(Self::over(gpu, Memory::Pieces(memory), shape, blocks, STAGING_BYTES)?)
    }

    fn over(
        gpu: &Gpu,
        memory: Memory,
        shape: ArenaShape,
        blocks: u32,
        staging_bytes: usize,
    ) -> Result<Self, ArenaError> {
        let (stream, kernels) = (Stream::new(gpu)?, Kernels::load(gpu)?);
        let staging = Staging::new(gpu, staging_bytes)?;
        let work = Work {
            stream,
            kernels,
            staging,
            pairs: DeviceList::with_capacity(gpu, LIST_MAX as u32)?,
            moves: DeviceList::with_capacity(gpu, LIST_MAX as u32)?,
            targets: DeviceList::with_capacity(gpu, LIST_MAX as u32)?,
            zeros: DeviceBuffer::new(gpu, shape.geometry().block_bytes())?,
        };
        let arena = Self {
            shape,
            memory,
            claims: Claims::new(shape.blocks(), blocks),
            present: AtomicU32::new(blocks),
            resizing: Mutex::new(()),
            work: Mutex::new(work),
        };
        let work = arena.work.lock();
        arena.span().fill(0, &work.stream)?;
        work.zeros.span().fill(0, &work.stream)?;
        work.stream.synchronize()?;
        drop(work);
        Ok(arena)
    }

    /// Its memory, for kernels and exporters. The address never changes.
    pub fn span(&self) -> Span<'_> {
        match &self.memory {
            Memory::Whole(buffer) => buffer.span(),
            Memory::Pieces(pieces) => pieces.span(),
        }
    }

    /// The memory by pieces, if it was made so.
    pub(crate) const fn pieces(&self) -> Option<&PieceMemory> {
        match &self.memory {
            Memory::Whole(_) => None,
            Memory::Pieces(pieces) => Some(pieces),
        }
    }

    pub(crate) const fn claims(&self) -> &Claims {
        &self.claims
    }

    /// Copies runs of device memory, whose blocks are claimed for reading, to the host.
    pub(crate) fn copy_to(
        &self,
        device: Span<'_>,
        runs: impl Iterator<Item = Extent>,
        target: &mut [u8],
    ) -> Result<(), ArenaError> {
        let Work { stream, staging, .. } = &mut *self.work.lock();
        Ok(staging.read(device, runs, target, stream)?)
    }

    /// Copies bytes of the host to runs of device memory, whose blocks are claimed for writing.
    pub(crate) fn copy_from(
        &self,
        device: Span<'_>,
        runs: impl Iterator<Item = Extent>,
        source: &[u8],
    ) -> Result<(), ArenaError> {
        let Work { stream, staging, .. } = &mut *self.work.lock();
        Ok(staging.write(device, runs, source, stream)?)
    }

    /// The memory with its strides, for [`Kernels`]; refused if a row is no multiple of 16 bytes.
    pub fn space(&self) -> Result<BlockSpace<'_>, ArenaError> {
        Ok(BlockSpace::new(self.span(), BlockRows::of(&self.shape), self.shape.blocks())?)
    }

    /// The runs of a whole block that the caller has claimed.
    fn block_runs(&self, block: BlockId) -> Runs {
        let runs = self.shape.runs(&Part::block(block), Order::Stored);
        runs.expect("a claimed block is inside the shape")
    }

    fn copy_claimed(&self, copies: &[BlockCopy]) -> Result<(), ArenaError> {
        self.run(|work| {
            let Work { stream, kernels, pairs, .. } = work;
            let Ok(space) = self.space() else { return self.queue_copies(stream, copies) };
            let listed = copies
                .iter()
                .map(|copy| BlockPair { source: copy.source, target: copy.target })
                .collect::<Vec<_>>();
            each_list(&listed, pairs, &space, stream, |list| {
                kernels.copy_blocks(stream, &space, list.entries())
            })
        })
    }

    /// Rows that a thread cannot move 16 bytes at a time: the copy engine takes any.
    fn queue_copies(&self, stream: &Stream, copies: &[BlockCopy]) -> Result<(), ArenaError> {
        for copy in copies {
            let target = self.block_runs(copy.target);
            for (from, to) in iter::zip(self.block_runs(copy.source), target) {
                let source = self.span().part(from.offset()..from.end())?;
                self.span().part(to.offset()..to.end())?.copy_from(source, stream)?;
            }
        }
        Ok(())
    }

    fn move_claimed(&self, steps: &[RowMove]) -> Result<(), ArenaError> {
        self.run(|work| {
            let Work { stream, kernels, moves, .. } = work;
            let Ok(space) = self.space() else { return self.queue_moves(stream, steps) };
            each_list(steps, moves, &space, stream, |list| {
                kernels.compact(stream, &space, list.entries())
            })
        })
    }

    fn queue_moves(&self, stream: &Stream, steps: &[RowMove]) -> Result<(), ArenaError> {
        let runs = |slot| token_runs(&self.shape, slot, 1);
        for step in steps {
            for (from, to) in iter::zip(runs(step.source), runs(step.target)) {
                let source = self.span().part(from.offset()..from.end())?;
                self.span().part(to.offset()..to.end())?.copy_from(source, stream)?;
            }
        }
        Ok(())
    }

    /// One launch for up to [`LIST_MAX`] blocks. A block has a run for each layer and half in most layouts, and a
    /// call of the driver for each of them would keep all other calls of the arena waiting.
    fn zero_claimed(&self, blocks: &[BlockId]) -> Result<(), ArenaError> {
        self.run(|work| {
            let Work { stream, kernels, targets, zeros, .. } = work;
            let Ok(space) = self.space() else { return self.queue_zeros(stream, blocks) };
            let order = [Axis::Block, Axis::Layer, Axis::Half, Axis::Token, Axis::Head];
            let rows = BlockRows::packed(space.rows().shape(), 1, order)?;
            let zero = BlockSpace::repeated(zeros.span(), rows)?;
            let listed = blocks.iter().copied().map(TargetBlock).collect::<Vec<_>>();
            each_list(&listed, targets, &space, stream, |list| {
                kernels.scatter(stream, &space, &zero, list.entries())
            })
        })
    }

    fn queue_zeros(&self, stream: &Stream, blocks: &[BlockId]) -> Result<(), ArenaError> {
        for run in blocks.iter().flat_map(|block| self.block_runs(*block)) {
            self.span().part(run.offset()..run.end())?.fill(0, stream)?;
        }
        Ok(())
    }

    /// Queues work on the stream of the arena and waits for its end.
    fn run(
        &self,
        queue: impl FnOnce(&mut Work) -> Result<(), ArenaError>,
    ) -> Result<(), ArenaError> {
        let mut work = self.work.lock();
        let queued = queue(&mut work);
        // Also after an error: what was queued must not run when the claims have ended.
        let ended = work.stream.synchronize();
        queued.and(Ok(ended?))
    }
}

/// Calls `launch` for a list, as often as it takes, with what fits into `list`.
fn each_list<T: Entry>(
    entries: &[T],
    list: &mut DeviceList<T>,
    space: &BlockSpace<'_>,
    stream: &Stream,
    launch: impl Fn(&DeviceList<T>) -> Result<(), KernelError>,
) -> Result<(), ArenaError> {
    for some in entries.chunks(LIST_MAX) {
        // Waits for the launch before it, which reads the list.
        list.set(some, space, stream)?;
        launch(list)?;
    }
    Ok(())
}

impl Arena for CudaArena {
    fn shape(&self) -> &ArenaShape {
        &self.shape
    }

    fn medium(&self) -> Medium {
        Medium::Vram
    }

    fn blocks(&self) -> u32 {
        // Relaxed: a number for messages; what may be touched is decided by the claims.
        self.present.load(Ordering::Relaxed)
    }

    fn resize(&self, blocks: u32) -> Result<(), ArenaError> {
        check_size(&self.shape, blocks)?;
        let _resizing = self.resizing.lock();
        let now = self.blocks();
        let retired = self.claims.retire_all(blocks..now);
        retired.map_err(|refusal| ArenaError::refused(refusal, now))?;
        if blocks > now {
            // Zeroed when they begin: nobody touches an absent block.
            let begin: Vec<BlockId> = (now..blocks).map(BlockId).collect();
            self.zero_claimed(&begin)?;
        }
        self.claims.admit_all(now..blocks);
        self.present.store(blocks, Ordering::Relaxed);
        Ok(())
    }

    fn read(&self, part: &Part, order: Order, target: &mut [u8]) -> Result<(), ArenaError> {
        let runs = runs_for(&self.shape, part, order, target.len())?;
        let run = BlockRun { first: part.id(), count: 1 };
        let refused = |refusal| ArenaError::refused(refusal, self.blocks());
        let _claim = self.claims.read(run).map_err(refused)?;
        self.copy_to(self.span(), runs, target)
    }

    fn write(&self, part: &Part, order: Order, source: &[u8]) -> Result<(), ArenaError> {
        let runs = runs_for(&self.shape, part, order, source.len())?;
        let refused = |refusal| ArenaError::refused(refusal, self.blocks());
        let _claim = self.claims.write(part.id()).map_err(refused)?;
        self.copy_from(self.span(), runs, source)
    }

    fn copy_blocks(&self, copies: &[BlockCopy]) -> Result<(), ArenaError> {
        let begun = self.claims.begin_copies(copies);
        begun.map_err(|refusal| ArenaError::refused(refusal, self.blocks()))?;
        let result = self.copy_claimed(copies);
        self.claims.end_copies(copies);
        result
    }

    fn zero_blocks(&self, blocks: &[BlockId]) -> Result<(), ArenaError> {
        let begun = self.claims.begin_writes(blocks);
        begun.map_err(|refusal| ArenaError::refused(refusal, self.blocks()))?;
        let zeroed = self.zero_claimed(blocks);
        self.claims.end_writes(blocks);
        zeroed
    }

    fn compact(&self, moves: &[RowMove]) -> Result<(), ArenaError> {
        let (sources, targets) = moved_blocks(&self.shape, moves)?;
        let begun = self.claims.begin_moves(&sources, &targets);
        begun.map_err(|refusal| ArenaError::refused(refusal, self.blocks()))?;
        let result = self.move_claimed(moves);
        self.claims.end_moves(&sources, &targets);
        result
    }

    fn host(&self) -> Option<&HostArena> {
        None
    }

    fn cuda(&self) -> Option<&CudaArena> {
        Some(self)
    }
}

fn check_size(shape: &ArenaShape, blocks: u32) -> Result<(), ArenaError> {
    let reserved = shape.blocks();
    if blocks == 0 || blocks > reserved {
        return Err(ArenaError::BadSize { blocks, reserved });
    }
    Ok(())
}

#[cfg(test)]
#[path = "cuda_tests.rs"]
pub(crate) mod tests;
