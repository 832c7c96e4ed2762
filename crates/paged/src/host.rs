//! An arena in host memory: anonymous, or a memfd that can be shared and remapped; pageable, or page-locked
//! for a GPU.
//!
//! Room for all reserved blocks is mapped at once and costs nothing until it is touched. Shrinking gives the
//! pages of the blocks that end back to the system. In most layouts the blocks that end are not one run but
//! one per layer and half:
//!
//! ```text
//!   layer 0: b0 b1 b2 ░░ ░░ │ layer 1: b0 b1 b2 ░░ ░░ │ …      ░ given back; b0 of layer 1 did not move
//! ```
//!
//! Page-locked ("pinned") memory is what a GPU copies from and to at the speed of the link. The driver locks all
//! reserved blocks at once, so they take memory from the start. Shrinking then zeroes blocks and gives nothing
//! back: the GPU would go on using the old pages while the processor gets new ones.
//!
//! **Why the safe calls are safe.** The mapping is never exposed as a slice of its own. Each call claims its
//! blocks (`claims.rs`), then copies through raw pointers, then ends the claims. The layout is a bijection, so
//! bytes of distinct blocks are disjoint: two calls that run at once either touch disjoint bytes, or both
//! only read. A caller's buffer cannot overlap bytes that are being written: a slice into the mapping comes
//! from a `View` only, and a view's read claim keeps writers away. What remains are raw pointers
//! ([`HostArena::base`]) and other processes ([`HostArena::fd`]), whose users promise the same.

use crate::arena::{Arena, ArenaError, moved_blocks, runs_for, token_runs};
use crate::claims::{Claims, Refusal};
use crate::ids::BlockId;
use crate::kernels::{RowMove, Slot};
use crate::layout::{ArenaShape, Axis};
use crate::part::{BlockCopy, BlockRun, Order, Part};
use crate::view::{BlockView, View};
use mooncrate_core::{Extent, Medium};
use mooncrate_gpu::{Gpu, Pinned};
use mooncrate_lock::Mutex;
use mooncrate_mem::{Backing, Pages, Region};
use rustix::mm::Advice as PageAdvice;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::{io, iter, ptr};

/// Bytes of a page of the huge-page pool that `mem` takes pages from.
const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// An arena that the processor can address.
///
/// ```
/// use mooncrate_mem::Pages;
/// use mooncrate_paged::{Arena, ArenaShape, AttentionSpec, BlockCopy, BlockId, DType, Geometry};
/// use mooncrate_paged::{HostArena, Layout, Order, Part};
///
/// let spec = AttentionSpec { layers: 2, kv_heads: 4, head_dim: 8, block_tokens: 16, dtype: DType::F16 };
/// let shape = ArenaShape::new(Geometry::attention(spec)?, Layout::Nhd, 100)?;
/// let arena = HostArena::anonymous(shape, 10, Pages::Small)?;
///
/// let bytes = vec![7; shape.geometry().block_bytes() as usize];
/// arena.write(&Part::block(BlockId(3)), Order::Tokens, &bytes)?;
/// arena.copy_blocks(&[BlockCopy { source: BlockId(3), target: BlockId(4) }])?;
/// let mut copy = vec![0; bytes.len()];
/// arena.read(&Part::block(BlockId(4)), Order::Tokens, &mut copy)?;
/// assert_eq!(copy, bytes);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct HostArena {
    /// Unlocked before the region below is unmapped. `None`: pageable memory.
    pinned: Option<Pinned>,
    shape: ArenaShape,
    region: Region,
    /// Bytes by which the system takes memory back and maps parts of a memfd.
    page_bytes: u64,
    claims: Claims,
    /// How many blocks there are; changed by `resize` only, under the lock below.
    present: AtomicU32,
    /// Held over a whole change of size: between the claims and the count nobody else may change it.
    resizing: Mutex<()>,
}

impl HostArena {
    /// Memory of this process alone.
    pub fn anonymous(shape: ArenaShape, blocks: u32, pages: Pages) -> Result<Self, ArenaError> {
        let len = checked_len(&shape, blocks)?;
        Self::new(shape, blocks, Region::anonymous(len, pages))
    }

    /// Memory behind a file descriptor: it can be handed to other processes, and sequences can be mapped to
    /// contiguous addresses.
    pub fn memfd(shape: ArenaShape, blocks: u32, pages: Pages) -> Result<Self, ArenaError> {
        let len = checked_len(&shape, blocks)?;
        Self::new(shape, blocks, Region::memfd("mooncrate-paged", len, pages))
    }

    fn new(shape: ArenaShape, blocks: u32, region: io::Result<Region>) -> Result<Self, ArenaError> {
        let region = region.map_err(|error| ArenaError::Map { bytes: shape.bytes(), error })?;
        let page_bytes = match region.backing() {
            Backing::HugeTlb => HUGE_PAGE_BYTES,
            Backing::Small | Backing::TransparentHuge => rustix::param::page_size() as u64,
        };
        let claims = Claims::new(shape.blocks(), blocks);
        let present = AtomicU32::new(blocks);
        let resizing = Mutex::new(());
        Ok(Self { pinned: None, shape, region, page_bytes, claims, present, resizing })
    }

    /// The same arena, page-locked: GPUs copy from and to it at the speed of the link. All reserved blocks take
    /// memory from now on.
    ///
    /// Without a driver there is no [`Gpu`] to pass: `Gpu::open` says so
    /// ([`GpuError::NoDriver`](mooncrate_gpu::GpuError::NoDriver)).
    pub fn pinned(mut self, gpu: &Gpu) -> Result<Self, ArenaError> {
        if self.pinned.is_none() {
            let len = self.region.len() as usize;
            // SAFETY: the region is unmapped after `pinned` is dropped, because it is the later field.
            // Nothing gives pages of it back while `pinned` is set: see `discard`.
            self.pinned = Some(unsafe { Pinned::new(gpu, self.base(), len) }?);
        }
        Ok(self)
    }

    /// The GPU whose driver page-locked the memory; `None` for pageable memory.
    pub fn pinned_for(&self) -> Option<&Gpu> {
        self.pinned.as_ref().map(Pinned::gpu)
    }

    /// The address of the first byte, for exporters and engines. It never changes, whatever the size.
    ///
    /// Whoever follows it keeps the rule of the claims by other means: nobody writes a block while another
    /// thread reads or writes it, be it through this pointer, a view or a call.
    pub fn base(&self) -> NonNull<u8> {
        self.at(0, 0)
    }

    /// The memfd, to be handed to other processes; `None` for anonymous memory.
    ///
    /// # Safety
    /// Whoever gets the descriptor keeps the rule of the claims: no block is written while this process reads
    /// or writes it, nor read while this process writes it.
    pub unsafe fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.region.fd()
    }

    /// The memfd for mappings of this process, whose accesses go through the claims.
    pub(crate) fn own_fd(&self) -> Option<BorrowedFd<'_>> {
        self.region.fd()
    }

    /// Bytes of a page: parts of a memfd are mapped in multiples of it.
    pub const fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    /// Binds a view to this memory, until the result is dropped. Until then its blocks cannot be written, and
    /// whatever lent the descriptor, such as a [`SequenceView`](crate::SequenceView), keeps them.
    pub fn view<'a>(&'a self, view: &'a BlockView) -> Result<View<'a>, ArenaError> {
        if *view.shape() != self.shape {
            return Err(ArenaError::ForeignView);
        }
        let claim = self.claims.read(view.run()).map_err(|refusal| self.refused(refusal))?;
        Ok(View::new(self, *view.tensor(), claim))
    }

    pub(crate) fn shape_ref(&self) -> &ArenaShape {
        &self.shape
    }

    pub(crate) fn claims(&self) -> &Claims {
        &self.claims
    }

    pub(crate) fn refused(&self, refusal: Refusal) -> ArenaError {
        ArenaError::refused(refusal, self.blocks())
    }

    /// The address of `bytes` bytes at `offset`, which the caller derived from the shape.
    pub(crate) fn at(&self, offset: u64, bytes: u64) -> NonNull<u8> {
        let extent = Extent::new(offset, bytes).expect("offsets of an arena are below 2^46");
        self.region.check(extent).expect("the shape lies inside the region that was made for it")
    }

    /// Makes the blocks from `first` on zero, and gives their whole pages back. The caller made them absent.
    fn discard_from(&self, first: u32) {
        let stride = self.shape.strides().block;
        let start = u64::from(first) * stride;
        let end = u64::from(self.shape.blocks()) * stride;
        for offset in self.outer_offsets() {
            self.discard(offset + start, offset + end);
        }
    }

    /// The offset of block 0 for each combination of coordinates on the axes slower than the blocks.
    fn outer_offsets(&self) -> impl Iterator<Item = u64> + '_ {
        let total: u64 = self.shape.outside_block().map(|axis| self.count(axis)).product();
        (0..total).map(|mut rest| {
            let mut offset = 0;
            for axis in self.shape.outside_block() {
                offset += rest % self.count(axis) * self.shape.strides().of(axis);
                rest /= self.count(axis);
            }
            offset
        })
    }

    fn count(&self, axis: Axis) -> u64 {
        u64::from(self.shape.count(axis))
    }

    /// Zeroes the bytes from `start` to `end`, which belong to absent blocks only.
    fn discard(&self, start: u64, end: u64) {
        let first_page = start.next_multiple_of(self.page_bytes).min(end);
        let last_page = (end - end % self.page_bytes).max(first_page);
        let bytes = last_page - first_page;
        let advice = match self.region.fd() {
            Some(_) => PageAdvice::LinuxRemove,
            None => PageAdvice::LinuxDontNeed,
        };
        // Locked pages stay: the GPU would go on using them while this process got others.
        let given_back = self.pinned.is_none() && bytes > 0 && {
            let at = self.at(first_page, bytes).as_ptr().cast();
            // SAFETY: whole pages of our mapping, all bytes of which belong to absent blocks. Nobody reads
            // or writes those, and afterwards they read as zero, which is what a block begins with.
            unsafe { rustix::mm::madvise(at, bytes as usize, advice) }.is_ok()
        };
        if given_back {
            self.zero(start, first_page);
            self.zero(last_page, end);
        } else {
            // Pages that stay still have to be zero when their blocks begin again.
            self.zero(start, end);
        }
    }

    /// Zeroes bytes of blocks that the caller has a write claim on, or that are absent.
    fn zero(&self, start: u64, end: u64) {
        let at = self.at(start, end - start);
        // SAFETY: `at` checked the bytes, and nobody else touches them: see the caller.
        unsafe { ptr::write_bytes(at.as_ptr(), 0, (end - start) as usize) };
    }

    fn copy_block(&self, copy: BlockCopy) {
        let stride = self.shape.strides().block;
        let (from, to) = (u64::from(copy.source.0) * stride, u64::from(copy.target.0) * stride);
        let runs = self.shape.runs(&Part::block(copy.source), Order::Stored);
        for run in runs.expect("a claimed block is inside the shape") {
            let bytes = run.len() as usize;
            let source = self.at(run.offset(), run.len());
            let target = self.at(run.offset() - from + to, run.len());
            // SAFETY: `at` checked both. The caller claimed the source for reading and the target for
            // writing, so they are distinct blocks, which share no byte, and no other thread writes either.
            unsafe { ptr::copy_nonoverlapping(source.as_ptr(), target.as_ptr(), bytes) };
        }
    }

    /// Copies so many tokens that follow each other in one block to slots that follow each other in another.
    fn copy_tokens(&self, first: RowMove, count: u32) {
        let runs = |slot| token_runs(&self.shape, slot, count);
        for (source, target) in iter::zip(runs(first.source), runs(first.target)) {
            let bytes = source.len() as usize;
            let source = self.at(source.offset(), source.len());
            let target = self.at(target.offset(), target.len());
            // SAFETY: `at` checked both, and runs of equal parts have equal lengths. The caller claimed the block
            // of the source for reading and that of the target for writing, so they are distinct blocks, which
            // share no byte, and no other thread writes either.
            unsafe { ptr::copy_nonoverlapping(source.as_ptr(), target.as_ptr(), bytes) };
        }
    }
}

impl Arena for HostArena {
    fn shape(&self) -> &ArenaShape {
        &self.shape
    }

    fn medium(&self) -> Medium {
        Medium::Dram
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
        self.claims.retire_all(blocks..now).map_err(|refusal| self.refused(refusal))?;
        if blocks < now {
            // From the new end up to the reserved one, not only to the old end: a page that two shrinks
            // share is free after the second.
            self.discard_from(blocks);
        }
        self.claims.admit_all(now..blocks);
        self.present.store(blocks, Ordering::Relaxed);
        Ok(())
    }

    fn read(&self, part: &Part, order: Order, target: &mut [u8]) -> Result<(), ArenaError> {
        let runs = runs_for(&self.shape, part, order, target.len())?;
        let run = BlockRun { first: part.id(), count: 1 };
        let _claim = self.claims.read(run).map_err(|refusal| self.refused(refusal))?;
        let bytes = runs.run_bytes() as usize;
        for (run, target) in iter::zip(runs, target.chunks_exact_mut(bytes.max(1))) {
            let source = self.at(run.offset(), run.len());
            // SAFETY: `at` checked the source, the chunk has the length of a run. The run is a part of the
            // claimed block, so nobody writes it, and an exclusive slice cannot overlap it.
            unsafe { ptr::copy_nonoverlapping(source.as_ptr(), target.as_mut_ptr(), bytes) };
        }
        Ok(())
    }

    fn write(&self, part: &Part, order: Order, source: &[u8]) -> Result<(), ArenaError> {
        let runs = runs_for(&self.shape, part, order, source.len())?;
        let _claim = self.claims.write(part.id()).map_err(|refusal| self.refused(refusal))?;
        let bytes = runs.run_bytes() as usize;
        for (run, source) in iter::zip(runs, source.chunks_exact(bytes.max(1))) {
            let target = self.at(run.offset(), run.len());
            // SAFETY: `at` checked the target, the chunk has the length of a run. The run is a part of the
            // claimed block, so nobody else touches it; a source inside the mapping would come from a view
            // of this block, whose read claim would have refused ours.
            unsafe { ptr::copy_nonoverlapping(source.as_ptr(), target.as_ptr(), bytes) };
        }
        Ok(())
    }

    fn copy_blocks(&self, copies: &[BlockCopy]) -> Result<(), ArenaError> {
        // Claims of the whole list come first: they leave nothing half copied.
        self.claims.begin_copies(copies).map_err(|refusal| self.refused(refusal))?;
        for copy in copies {
            self.copy_block(*copy);
        }
        self.claims.end_copies(copies);
        Ok(())
    }

    fn zero_blocks(&self, blocks: &[BlockId]) -> Result<(), ArenaError> {
        self.claims.begin_writes(blocks).map_err(|refusal| self.refused(refusal))?;
        for block in blocks {
            let runs = self.shape.runs(&Part::block(*block), Order::Stored);
            for run in runs.expect("a claimed block is inside the shape") {
                self.zero(run.offset(), run.end());
            }
        }
        self.claims.end_writes(blocks);
        Ok(())
    }

    fn compact(&self, moves: &[RowMove]) -> Result<(), ArenaError> {
        let (sources, targets) = moved_blocks(&self.shape, moves)?;
        let begun = self.claims.begin_moves(&sources, &targets);
        begun.map_err(|refusal| self.refused(refusal))?;
        let block_tokens = i64::from(self.shape.geometry().block_tokens());
        let follows = |one: Slot, next: Slot| next.0 == one.0 + 1 && next.0 % block_tokens != 0;
        // Kept tokens mostly stand in groups, and a group is one copy per run instead of one per token.
        for group in moves.chunk_by(|one, next| {
            follows(one.source, next.source) && follows(one.target, next.target)
        }) {
            self.copy_tokens(group[0], group.len() as u32);
        }
        self.claims.end_moves(&sources, &targets);
        Ok(())
    }

    fn host(&self) -> Option<&HostArena> {
        Some(self)
    }
}

fn checked_len(shape: &ArenaShape, blocks: u32) -> Result<usize, ArenaError> {
    let reserved = shape.blocks();
    if blocks == 0 || blocks > reserved {
        return Err(ArenaError::BadSize { blocks, reserved });
    }
    let bytes = shape.bytes();
    usize::try_from(bytes)
        .map_err(|error| ArenaError::Map { bytes, error: io::Error::other(error) })
}

#[cfg(test)]
#[path = "host_tests.rs"]
mod tests;
