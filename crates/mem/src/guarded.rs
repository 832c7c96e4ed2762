//! The payload of another process's segment, mapped once for all puts of this process. A protection key keeps every
//! thread out that is not just storing a value.

use crate::pkey::Key;
use crate::region::{Access, Region};
use mooncrate_core::Extent;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};

/// Pages come into our tables by blocks of this size, or by larger pages: a fault for each small one would cost more
/// than its copy.
const BLOCK_BYTES: u64 = 256 << 10;

/// Memory of another process that a put can store to, and nobody else.
#[derive(Debug)]
pub(crate) struct Guarded {
    region: Region,
    key: &'static Key,
    block: u64,
    /// A bit for each block whose pages are in our tables. A hint: what is not there faults.
    present: Box<[AtomicU64]>,
}

impl Guarded {
    /// Maps a memfd that was handed over for a put.
    pub(crate) fn map(
        fd: BorrowedFd<'_>,
        len: usize,
        page: u64,
        key: &'static Key,
    ) -> io::Result<Self> {
        let region = Region::map(fd, len, Access::ReadOnly)?;
        region.guard(key)?;
        let block = BLOCK_BYTES.max(page);
        let words = region.len().div_ceil(block).div_ceil(64);
        let present = (0..words).map(|_| AtomicU64::new(0)).collect();
        Ok(Self { region, key, block, present })
    }

    /// Has `work` store to an extent, of which it gets the first byte.
    pub(crate) fn store<R>(
        &self,
        extent: Extent,
        work: impl FnOnce(*mut u8) -> R,
    ) -> io::Result<R> {
        let first = self.region.check(extent).map_err(io::Error::other)?;
        let _open = self.key.open();
        self.populate(extent)?;
        Ok(work(first.as_ptr()))
    }

    /// Brings the blocks of an extent into our tables. By a thread that may touch them: the kernel asks, too.
    fn populate(&self, extent: Extent) -> io::Result<()> {
        let end = extent.offset() + extent.len();
        for block in extent.offset() / self.block..end.div_ceil(self.block) {
            let (word, bit) = (&self.present[(block / 64) as usize], 1 << (block % 64));
            if word.load(Ordering::Relaxed) & bit != 0 {
                continue;
            }
            let start = block * self.block;
            let len = self.block.min(self.region.len() - start);
            let pages = Extent::new(start, len).expect("a part of the region");
            self.region.populate(pages)?;
            word.fetch_or(bit, Ordering::Relaxed);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::Pages;
    use std::os::fd::{AsFd, AsRawFd};
    use std::sync::mpsc::channel;

    fn extent(offset: u64, len: u64) -> Extent {
        Extent::new(offset, len).unwrap()
    }

    /// Has the kernel store a byte there: it answers where a store of ours would fault.
    fn store_by_kernel(to: *mut u8) -> bool {
        let (read, write) = rustix::pipe::pipe().unwrap();
        rustix::io::write(&write, &[7]).unwrap();
        // SAFETY: the kernel checks the address; nobody else looks at that byte of the mapping.
        let stored = unsafe { libc::read(read.as_raw_fd(), to.cast(), 1) };
        let refused = std::io::Error::last_os_error().raw_os_error();
        assert!(stored == 1 || refused == Some(libc::EFAULT), "{stored}: {refused:?}");
        stored == 1
    }

    /// While one thread stores, another one cannot; nor can itself before and after.
    #[test]
    fn only_who_stores_can_store() {
        let Some(key) = Key::of_process() else {
            println!("skipped: this machine has no protection keys");
            return;
        };
        let bytes = 3 * BLOCK_BYTES as usize - 4096;
        let owner = Region::memfd("test", bytes, Pages::Small).unwrap();
        let guarded = Guarded::map(owner.fd().unwrap(), bytes, 4096, key).unwrap();
        let (tell, told) = channel::<usize>();
        let (answer, answered) = channel();
        let serve = || {
            for to in told {
                answer.send(store_by_kernel(to as *mut u8)).unwrap();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(serve);
            // Ends with what it asks.
            let tell = tell;
            let by_other = |to: *mut u8| {
                tell.send(to as usize).unwrap();
                answered.recv().unwrap()
            };
            let at = extent(BLOCK_BYTES - 1, 2);
            let place = guarded.region.check(at).unwrap().as_ptr();
            assert!(!store_by_kernel(place), "before");
            let both = guarded.store(at, |to| (by_other(to), store_by_kernel(to))).unwrap();
            assert_eq!(both, (false, true));
            assert!(!store_by_kernel(place) && !by_other(place), "after");
            let mut seen = [0; 1];
            owner.load(at.offset(), &mut seen).unwrap();
            assert_eq!(seen, [7]);
        });
        assert!(guarded.store(extent(bytes as u64 - 1, 1), store_by_kernel).unwrap());
        assert!(guarded.store(extent(bytes as u64, 1), |_| ()).is_err());
    }

    #[test]
    fn who_may_only_read_cannot_map_it() {
        let Some(key) = Key::of_process() else { return };
        let owner = Region::memfd("test", 4096, Pages::Small).unwrap();
        let readers = owner.read_only_fd().unwrap().unwrap();
        assert!(Guarded::map(readers.as_fd(), 4096, 4096, key).is_err());
    }
}
