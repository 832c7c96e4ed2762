//! A directory of a real file system, one `pread` or `pwrite` after the other.
//!
//! Files are open for direct I/O where the file system takes it, so that values pass the page cache by: it
//! would hold a second copy of what memory just gave up. Writers keep to whole blocks: an offset and a total
//! length that are multiples of [`crate::ALIGN`], in pieces that may lie anywhere (pieces that are aligned go
//! straight, the others through a room). Other writes work as well, through the page cache and slower; they
//! are for small files, and must not share a block with a write that is under way. Reads may start and
//! end anywhere.
//!
//! What must stay true: names stay beneath the directory and follow no links; short transfers are resumed
//! or failed (S10); a file whose sync failed once is never written or synced again, under any handle (S12).

use super::file::{BadFiles, PosixFile, carry_out, read_spans, read_together, write_spans};
use super::home::{Home, LOCK, about};
use super::span::Cutter;
use super::{Disk, Entry, File, LANES, Open, ReadAt, WriteAt};
use rustix::fs::{self, AtFlags, FileType, Mode, StatxFlags, StatxTimestamp};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

/// Most bytes of one system call, as a rule: nothing else of the call is under way meanwhile, so the kernel
/// gets as much as it may cut up and keep the device busy with.
const STRAIGHT: usize = 16 << 20;
/// Of those that go through a room.
const CUT: usize = 1 << 20;
/// Rooms that are kept for transfers that are not aligned.
const ROOMS: usize = 8;

/// A directory, read and written by plain system calls.
#[derive(Debug)]
pub struct Posix {
    home: Arc<Home>,
    cutter: Cutter,
    bad: Arc<BadFiles>,
}

impl Posix {
    /// Opens a directory, makes it if it is not there, and locks it against other processes. Errors name
    /// what to do: the directory is in use, belongs to somebody else, or others may write to it.
    pub fn open(directory: &Path) -> io::Result<Self> {
        let home = Arc::new(Home::open(directory)?);
        if home.lie.is_none() {
            tracing::warn!(
                directory = %directory.display(),
                "the file system takes no direct I/O; records go through the page cache"
            );
        }
        Ok(Self { home, cutter: Cutter::new(CUT, ROOMS).straight(STRAIGHT), bad: Arc::default() })
    }

    /// Whether files are read and written past the page cache.
    pub fn is_direct(&self) -> bool {
        self.home.lie.is_some()
    }

    /// Opens a file; other disks over this one do the same.
    pub(super) fn open_file(&self, path: &Path, how: Open) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(PosixFile::open(&self.home, &self.bad, path, how)?))
    }

    /// Opens a directory, to sync it by other means.
    pub(super) fn open_dir(&self, dir: &Path) -> io::Result<OwnedFd> {
        self.home.dir(dir)
    }

    /// The directory, as it was named.
    pub fn directory(&self) -> &Path {
        self.home.path()
    }
}

/// 0 where the file system does not say.
fn nanoseconds(time: &StatxTimestamp) -> u64 {
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::from(time.tv_nsec)
}

impl Disk for Posix {
    fn name(&self) -> &'static str {
        "posix"
    }

    fn open(&self, path: &Path, how: Open) -> io::Result<Arc<dyn File>> {
        self.open_file(path, how)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (old_dir, old) = self.home.parent(from)?;
        let (new_dir, new) = self.home.parent(to)?;
        fs::renameat(old_dir, old, new_dir, new).map_err(about(from))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let (parent, name) = self.home.parent(path)?;
        fs::unlinkat(parent, name, AtFlags::empty()).map_err(about(path))
    }

    fn make_dir(&self, path: &Path) -> io::Result<()> {
        let (parent, name) = self.home.parent(path)?;
        match fs::mkdirat(&parent, name, Mode::RWXU) {
            // Made earlier, if it is a directory and no link to one.
            Err(Errno::EXIST) => self.home.dir(path).map(drop),
            made => made.map_err(about(path)),
        }
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        let top = dir.as_os_str().is_empty();
        let opened = self.home.dir(dir)?;
        let mut entries = Vec::new();
        for entry in fs::Dir::read_from(&opened)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if name == "." || name == ".." || (top && name == LOCK) {
                continue;
            }
            let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
            let stat = match fs::statx(&opened, name, AtFlags::SYMLINK_NOFOLLOW, wanted) {
                Ok(stat) => stat,
                Err(Errno::NOENT) => continue,
                Err(error) => return Err(error.into()),
            };
            let is_dir = FileType::from_raw_mode(stat.stx_mode.into()) == FileType::Directory;
            let len = if is_dir { 0 } else { stat.stx_size };
            let (file, born) = (stat.stx_ino, nanoseconds(&stat.stx_btime));
            entries.push(Entry { name: name.to_owned(), len, file, born, is_dir });
        }
        Ok(entries)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let dir = self.home.dir(dir)?;
        Ok(rustix::io::retry_on_intr(|| fs::fsync(&dir))?)
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let stat = fs::fstatvfs(self.home.root())?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    fn lanes(&self) -> usize {
        LANES
    }

    fn read(&self, mut reads: &mut [ReadAt<'_>]) {
        while let [read, more @ ..] = reads {
            if let Some(next) = more.first_mut()
                && read_together(read, next, STRAIGHT)
            {
                reads = &mut more[1..];
                continue;
            }
            read.result = read_spans(read.file, read.offset, read.into).and_then(|mut spans| {
                while let Some(span) = spans.next(&self.cutter) {
                    carry_out(span)?;
                }
                Ok(())
            });
            reads = more;
        }
    }

    fn write(&self, writes: &mut [WriteAt<'_>]) {
        for write in writes {
            write.result = write_spans(write).and_then(|mut spans| {
                while let Some(span) = spans.next(&self.cutter) {
                    carry_out(span)?;
                }
                Ok(())
            });
        }
    }
}

#[cfg(test)]
#[path = "posix_tests.rs"]
mod tests;
