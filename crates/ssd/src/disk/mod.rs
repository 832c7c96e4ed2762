//! Where files live, and how they are read and written. Blocking calls; many operations per call, so that
//! an implementation can keep the device busy. Everything above is ordinary code over this seam, which
//! is why a simulated disk can stand in for a real one.
//!
//! What must stay true: an operation that answers `Ok` moved all of its bytes; a short result is an error
//! or was resumed, never accepted (S10). Paths are relative to the disk's directory and stay beneath it.

mod bad;
mod file;
mod home;
mod posix;
mod ring;
pub mod sim;
mod span;
#[cfg(test)]
mod suite;
mod tamper;
mod uring;

pub use posix::Posix;
pub use uring::Uring;

use std::any::Any;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Lanes of a real disk: a device answers many reads in the time of one, and names are looked up one by one.
const LANES: usize = 32;

/// Whether there is no room: the disk is full, or what its owner may use of it is. Neither is a broken disk.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// A file that is not there is as good as deleted.
pub(crate) fn missing_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Open {
    /// For reading.
    Read,
    /// For reading and writing.
    Write,
    /// For reading and writing; it must not exist yet.
    Create,
}

/// An open file.
pub trait File: fmt::Debug + Send + Sync + Any {
    /// Bytes of it.
    fn len(&self) -> io::Result<u64>;

    /// Whether it has none.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// The first byte from `offset` on that may be something else than zero; the file's length if there is none.
    /// Where a file was extended and not written to, this spares reading it.
    fn data_from(&self, offset: u64) -> io::Result<u64> {
        Ok(offset)
    }

    /// Cuts it, or extends it with zeros; extended space is allocated, so that writes into it cannot fail
    /// for want of room where the file system can promise that.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Its data, and what is needed to find them, are on the disk when this returns. An error is final for
    /// the file: the kernel may have dropped what it could not write (S12).
    fn sync_data(&self) -> io::Result<()>;

    /// For the implementation that opened it.
    fn as_any(&self) -> &dyn Any;
}

/// One read. Direct where offset, length and address are multiples of [`crate::ALIGN`] and the disk can
/// do it; through memory of the disk's own otherwise.
#[derive(Debug)]
pub struct ReadAt<'a> {
    /// From which file.
    pub file: &'a Arc<dyn File>,
    /// From where.
    pub offset: u64,
    /// Where the bytes go: all of it is filled, or the read failed. Beyond the end of the file is an error.
    pub into: &'a mut [u8],
    /// What became of it.
    pub result: io::Result<()>,
}

/// One write.
#[derive(Debug)]
pub struct WriteAt<'a> {
    /// To which file.
    pub file: &'a Arc<dyn File>,
    /// To where.
    pub offset: u64,
    /// The bytes, in pieces, one after the other.
    pub pieces: &'a [&'a [u8]],
    /// What became of it.
    pub result: io::Result<()>,
}

/// What a directory holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name in the directory. Names that are no UTF-8 are not listed: they are not ours.
    pub name: String,
    /// Bytes of a file.
    pub len: u64,
    /// Which file it is: all names of one file say the same.
    pub file: u64,
    /// When the file was made, in nanoseconds of wall time; 0 where that is not known. A copy is younger.
    pub born: u64,
    /// Whether it is a directory.
    pub is_dir: bool,
}

/// What became of the means of a disk; all grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Rings that were made.
    pub rings: u64,
    /// Times that the kernel refused one, and plain calls did the work.
    pub refused: u64,
    /// Rings that failed and were thrown away.
    pub failed: u64,
    /// Times that memory could not be registered with a ring.
    pub unregistered: u64,
}

/// A directory on some disk.
pub trait Disk: fmt::Debug + Send + Sync {
    /// `posix`, `uring` or `sim`.
    fn name(&self) -> &'static str;

    /// Opens a file. A name that is new is durable after [`Disk::sync_dir`].
    fn open(&self, path: &Path, how: Open) -> io::Result<Arc<dyn File>>;

    /// Gives a file another name, in place of what has it.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Deletes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes a directory, if it is not there.
    fn make_dir(&self, path: &Path) -> io::Result<()>;

    /// What is in a directory, in no order. The directory of the disk itself is the empty path.
    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>>;

    /// Names in the directory are on the disk when this returns.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// Many [`File::sync_data`], side by side where the disk can; one result each.
    fn sync_files(&self, files: &[&Arc<dyn File>]) -> Vec<io::Result<()>> {
        files.iter().map(|file| file.sync_data()).collect()
    }

    /// Many [`Disk::sync_dir`], side by side where the disk can; one result each.
    fn sync_dirs(&self, dirs: &[&Path]) -> Vec<io::Result<()>> {
        dirs.iter().map(|dir| self.sync_dir(dir)).collect()
    }

    /// Bytes that can still be written.
    fn free_bytes(&self) -> io::Result<u64>;

    /// Reads; one result each, in any order, a failed one spoils no other.
    fn read(&self, reads: &mut [ReadAt<'_>]);

    /// Writes; one result each. Durable after [`File::sync_data`].
    fn write(&self, writes: &mut [WriteAt<'_>]);

    /// Names memory that is read into or written from often, so that a disk that can prepare for it does.
    /// It starts at the address `start` and stays there as long as `owner` lives, which the disk holds.
    fn register(&self, owner: Arc<dyn Any + Send + Sync>, start: usize, len: usize) {
        drop((owner, start, len));
    }

    /// How many threads may read a directory side by side while it is opened. One: calls come one after the
    /// other, in the same order each time, which a simulated disk needs.
    fn lanes(&self) -> usize {
        1
    }

    /// What became of its means.
    fn counts(&self) -> Counts {
        Counts::default()
    }
}
