//! A writable mapping of the pages around one extent of another process's memory, for the time of one
//! put. What lies outside of these pages cannot be stored to by mistake.

use mooncrate_core::Extent;
use rustix::fs::SealFlags;
use rustix::mm::{MapFlags, ProtFlags};
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

/// Some mapped pages of a memfd.
#[derive(Debug)]
pub(crate) struct Window {
    base: NonNull<u8>,
    mapped: usize,
    /// Where the extent starts in it.
    start: usize,
}

impl Window {
    /// Maps the pages of `extent`. They are present at once: a fault for each would cost more than the
    /// copy. A file that is too short, or could still shrink, is refused: then any store might fault.
    pub(crate) fn map(fd: BorrowedFd<'_>, extent: Extent, page: u64) -> io::Result<Self> {
        let size = u64::try_from(rustix::fs::fstat(fd)?.st_size).map_err(io::Error::other)?;
        let sealed = rustix::fs::fcntl_get_seals(fd)?.contains(SealFlags::SHRINK);
        if !extent.fits(size) || !sealed {
            let text = format!("{extent} does not lie in a sealed file of {size} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let first = extent.offset() / page * page;
        let end = (extent.offset() + extent.len()).next_multiple_of(page);
        let mapped = usize::try_from(end - first).map_err(io::Error::other)?;
        let start = (extent.offset() - first) as usize;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        let at = std::ptr::null_mut();
        // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
        let base = unsafe { rustix::mm::mmap(at, mapped, prot, flags, fd, first) }?;
        let base = NonNull::new(base.cast()).expect("the kernel does not map address 0");
        Ok(Self { base, mapped, start })
    }

    /// The first byte of the extent.
    pub(crate) fn first_byte(&self) -> *mut u8 {
        self.base.as_ptr().wrapping_add(self.start)
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: the range is our mapping, and whoever held a pointer borrowed the window.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.mapped) };
        debug_assert!(unmapped.is_ok(), "our own mapping can be unmapped: {unmapped:?}");
    }
}
