//! An arena in the memory of a GPU.
//!
//! Room for all reserved blocks is taken at once: device memory has no overcommit, and blocks never move, so
//! that tables and captured graphs stay valid. Resizing changes which blocks there are.
//!
//! Each call runs on a stream of the arena and is complete when it returns, as the trait asks. The claims
//! ([`crate::claims`]) keep calls on one block apart; kernels of an engine that touch the same memory by its
//! address are ordered by the engine: it publishes a block after the kernel that wrote it has ended, and
//! frees a sequence after the last kernel that read it.

use crate::arena::{Arena, ArenaError, runs_for};
use crate::claims::Claims;
use crate::host::HostArena;
use crate::ids::BlockId;
use crate::kernels::{BlockPair, BlockSpace, DeviceList, Kernels, Strides};
use crate::layout::ArenaShape;
use crate::part::{BlockCopy, BlockRun, Order, Part, Runs};
use mooncrate_core::Medium;
use mooncrate_gpu::{DeviceBuffer, Gpu, Span, Stream};
use mooncrate_lock::Mutex;
use std::iter;
use std::sync::atomic::{AtomicU32, Ordering};

/// An arena that a GPU can address.
#[derive(Debug)]
pub struct CudaArena {
    shape: ArenaShape,
    memory: DeviceBuffer,
    claims: Claims,
    /// How many blocks there are; changed by `resize` only, under the lock below.
    present: AtomicU32,
    /// Held over a whole change of size.
    resizing: Mutex<()>,
    /// One call at a time uses the stream of the arena. Engines have streams of their own.
    work: Mutex<Work>,
}

#[derive(Debug)]
struct Work {
    stream: Stream,
    kernels: Kernels,
}

impl CudaArena {
    /// An arena of this shape on a GPU, of which the first `blocks` blocks exist. All of them are zero.
    pub fn new(gpu: &Gpu, shape: ArenaShape, blocks: u32) -> Result<Self, ArenaError> {
        let reserved = shape.blocks();
        if blocks == 0 || blocks > reserved {
            return Err(ArenaError::BadSize { blocks, reserved });
        }
        let memory = DeviceBuffer::new(gpu, shape.bytes())?;
        let stream = Stream::new(gpu)?;
        memory.span().fill(0, &stream)?;
        stream.synchronize()?;
        Ok(Self {
            shape,
            memory,
            claims: Claims::new(reserved, blocks),
            present: AtomicU32::new(blocks),
            resizing: Mutex::new(()),
            work: Mutex::new(Work { stream, kernels: Kernels::load(gpu)? }),
        })
    }

    /// Its memory, for kernels and exporters. The address never changes.
    pub fn span(&self) -> Span<'_> {
        self.memory.span()
    }

    /// The memory with its strides, for [`Kernels`]; refused if a row is no multiple of 16 bytes.
    pub fn space(&self) -> Result<BlockSpace<'_>, ArenaError> {
        Ok(BlockSpace::new(self.span(), Strides::of(&self.shape), self.shape.blocks())?)
    }

    /// The runs of a whole block that the caller has claimed.
    fn block_runs(&self, block: BlockId) -> Runs {
        let runs = self.shape.runs(&Part::block(block), Order::Stored);
        runs.expect("a claimed block is inside the shape")
    }

    fn copy_claimed(&self, copies: &[BlockCopy]) -> Result<(), ArenaError> {
        let work = self.work.lock();
        let queued = self.queue_copies(&work, copies);
        // Also after an error: what was queued must not run when the claims have ended.
        let ended = work.stream.synchronize();
        queued.and(Ok(ended?))
    }

    fn queue_copies(&self, work: &Work, copies: &[BlockCopy]) -> Result<(), ArenaError> {
        let Work { stream, kernels } = work;
        if let Ok(space) = self.space() {
            let pairs: Vec<BlockPair> = copies
                .iter()
                .map(|copy| BlockPair { source: copy.source, target: copy.target })
                .collect();
            let list = DeviceList::upload(&pairs, &space, stream)?;
            kernels.copy_blocks(stream, &space, list.entries())?;
        } else {
            // Rows that a thread cannot move 16 bytes at a time: the copy engine takes any.
            for copy in copies {
                let target = self.block_runs(copy.target);
                for (from, to) in iter::zip(self.block_runs(copy.source), target) {
                    let source = self.span().part(from.offset()..from.end())?;
                    self.span().part(to.offset()..to.end())?.copy_from(source, stream)?;
                }
            }
        }
        Ok(())
    }

    fn zero_claimed(&self, blocks: &[BlockId]) -> Result<(), ArenaError> {
        let work = self.work.lock();
        let runs = blocks.iter().flat_map(|block| self.block_runs(*block));
        let queued = runs
            .into_iter()
            .try_for_each(|run| self.span().part(run.offset()..run.end())?.fill(0, &work.stream));
        // Also after an error: what was queued must not run when the claims have ended.
        let ended = work.stream.synchronize();
        Ok(queued.and(ended)?)
    }
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
        let reserved = self.shape.blocks();
        if blocks == 0 || blocks > reserved {
            return Err(ArenaError::BadSize { blocks, reserved });
        }
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
        let bytes = runs.run_bytes().max(1) as usize;
        let Work { stream, .. } = &*self.work.lock();
        for (run, target) in iter::zip(runs, target.chunks_exact_mut(bytes)) {
            self.span().part(run.offset()..run.end())?.read(target, stream)?;
        }
        Ok(())
    }

    fn write(&self, part: &Part, order: Order, source: &[u8]) -> Result<(), ArenaError> {
        let runs = runs_for(&self.shape, part, order, source.len())?;
        let refused = |refusal| ArenaError::refused(refusal, self.blocks());
        let _claim = self.claims.write(part.id()).map_err(refused)?;
        let bytes = runs.run_bytes().max(1) as usize;
        let Work { stream, .. } = &*self.work.lock();
        for (run, source) in iter::zip(runs, source.chunks_exact(bytes)) {
            self.span().part(run.offset()..run.end())?.write(source, stream)?;
        }
        Ok(())
    }

    fn copy_blocks(&self, copies: &[BlockCopy]) -> Result<(), ArenaError> {
        let begun = self.claims.begin_copies(copies);
        begun.map_err(|refusal| ArenaError::refused(refusal, self.blocks()))?;
        let result = if copies.is_empty() { Ok(()) } else { self.copy_claimed(copies) };
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

    fn host(&self) -> Option<&HostArena> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance;

    /// The suite of all arenas. Without a GPU it says that it was skipped.
    #[test]
    fn a_cuda_arena_is_an_arena() {
        let gpu = match Gpu::open(0) {
            Ok(gpu) => gpu,
            Err(error) if error.is_absent() => {
                eprintln!("SKIPPED a_cuda_arena_is_an_arena: {error}");
                return;
            }
            Err(error) => panic!("{error}"),
        };
        conformance::check(&|shape, blocks| Box::new(CudaArena::new(&gpu, shape, blocks).unwrap()));
    }
}
