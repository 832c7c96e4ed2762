//! The second mapping of host memory: parts of a memfd, one after the other.

use super::{ArenaRef, BlockHold, Contiguous, RemapError, sealed};
use crate::arena::ArenaError;
use crate::claims::Claims;
use crate::host::HostArena;
use crate::ids::BlockId;
use rustix::mm::{MapFlags, ProtFlags};
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

impl<A: ArenaRef<Target = HostArena>, B: BlockHold> Contiguous<A, B> {
    /// The address of the first byte, for exporters and engines; valid until this is dropped. Whoever follows
    /// it keeps the rule that [`HostArena::base`] states.
    pub fn base(&self) -> NonNull<u8> {
        self.mapping.base
    }
}

impl sealed::Mapper for HostArena {
    type Mapping = Reserved;

    fn remap_page_bytes(&self) -> Result<u64, RemapError> {
        match self.own_fd() {
            Some(_) => Ok(self.page_bytes()),
            None => Err(RemapError::NotShared { instead: "HostArena::memfd" }),
        }
    }

    fn map_pieces(
        &self,
        blocks: &[BlockId],
        start: u64,
        piece_bytes: u64,
    ) -> Result<Reserved, RemapError> {
        let fd = self.own_fd().ok_or(RemapError::NotShared { instead: "HostArena::memfd" })?;
        let failed = |error| RemapError::Map { blocks: blocks.len(), error };
        let bytes = (blocks.len() as u64).saturating_mul(piece_bytes);
        let len = usize::try_from(bytes).map_err(|error| failed(io::Error::other(error)))?;
        let range = Reserved::new(len).map_err(failed)?;
        let mut done = 0;
        for run in neighbours(blocks) {
            let first = start + u64::from(run[0].0) * piece_bytes;
            let len = run.len() as u64 * piece_bytes;
            range.place(fd, done..done + len, first).map_err(failed)?;
            done += len;
        }
        Ok(range)
    }

    unsafe fn copy_out(
        &self,
        mapping: &Reserved,
        offset: u64,
        target: &mut [u8],
    ) -> Result<(), ArenaError> {
        let first = mapping.at(offset, target.len());
        // SAFETY: `at` checked that the bytes lie in the range, which is mapped as long as `mapping`. The
        // caller has read claims on all blocks that they belong to, so nobody writes them.
        unsafe { ptr::copy_nonoverlapping(first, target.as_mut_ptr(), target.len()) };
        Ok(())
    }

    unsafe fn copy_in(
        &self,
        mapping: &Reserved,
        offset: u64,
        source: &[u8],
    ) -> Result<(), ArenaError> {
        let first = mapping.at(offset, source.len());
        // SAFETY: as in `copy_out`, with write claims: nobody else touches these blocks, here or in the arena.
        // The source cannot be one of them: a slice into the arena comes from a view with a read claim.
        unsafe { ptr::copy_nonoverlapping(source.as_ptr(), first, source.len()) };
        Ok(())
    }

    fn remap_claims(&self) -> &Claims {
        self.claims()
    }
}

/// Maximal runs of ascending neighbours: one mapping each, because a process may not have many.
fn neighbours(blocks: &[BlockId]) -> impl Iterator<Item = &[BlockId]> {
    blocks.chunk_by(|one, next| one.0.checked_add(1) == Some(next.0))
}

/// A range of addresses that belongs to us, at first without memory.
#[derive(Debug)]
pub struct Reserved {
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

    /// The address of `len` bytes at `offset`.
    fn at(&self, offset: u64, len: usize) -> *mut u8 {
        let end = offset.checked_add(len as u64).expect("the caller checked the bytes");
        assert!(end <= self.len as u64, "the caller checked the bytes");
        self.base.as_ptr().wrapping_add(offset as usize)
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
