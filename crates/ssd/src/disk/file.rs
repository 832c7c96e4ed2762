//! An open file of a real disk, and how operations on it become spans.
//!
//! What must stay true: a file whose sync failed is bad for good (S12), by inode: under other handles, too.

use super::home::{Home, about};
use super::span::{Lie, ReadSpans, Rest, Span, WriteSpans};
use super::{File, Open, ReadAt, WriteAt};
use crate::ALIGN;
use rustix::fs::{self, FallocateFlags, FileType, Mode, OFlags, SeekFrom};
use rustix::io::{Errno, retry_on_intr};
use std::any::Any;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

/// Files whose sync failed, by device and inode.
pub(super) type BadFiles = super::bad::BadFiles<(u64, u64)>;

/// An open file.
#[derive(Debug)]
pub(super) struct PosixFile {
    /// Direct, where the disk is.
    fd: OwnedFd,
    /// The same file through the page cache, for writes of parts of blocks.
    plain: Option<OwnedFd>,
    /// How memory must lie, where the disk is direct.
    lie: Option<Lie>,
    id: (u64, u64),
    bad_files: Arc<BadFiles>,
    /// The directory stays locked while a file of it is open.
    _home: Arc<Home>,
}

impl PosixFile {
    /// Opens a file beneath a directory.
    pub(super) fn open(
        home: &Arc<Home>,
        bad_files: &Arc<BadFiles>,
        path: &Path,
        how: Open,
    ) -> io::Result<Self> {
        let access = match how {
            Open::Read => OFlags::RDONLY,
            Open::Write | Open::Create => OFlags::RDWR,
        } | OFlags::NOFOLLOW
            | OFlags::CLOEXEC;
        let new = if how == Open::Create { OFlags::CREATE | OFlags::EXCL } else { OFlags::empty() };
        let direct = if home.lie.is_some() { OFlags::DIRECT } else { OFlags::empty() };
        let below = if how == Open::Read { home.below(path, access | direct) } else { None };
        let (fd, parent) = if let Some(opened) = below {
            (opened?, None)
        } else {
            let (parent, name) = home.parent(path)?;
            let mode = Mode::RUSR | Mode::WUSR;
            let opened = fs::openat(&parent, name, access | new | direct, mode);
            (opened.map_err(about(path))?, Some((parent, name)))
        };
        let stat = fs::fstat(&fd)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            let text = format!("{} is not a file", path.display());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let plain = parent
            .filter(|_| home.lie.is_some() && how != Open::Read)
            .map(|(parent, name)| fs::openat(&parent, name, access, Mode::empty()))
            .transpose()
            .map_err(about(path))?;
        let id = (stat.st_dev, stat.st_ino);
        if how == Open::Create {
            // A new file, which got the number of one that is gone.
            bad_files.forget(id);
        }
        let (lie, bad_files, home) = (home.lie, Arc::clone(bad_files), Arc::clone(home));
        Ok(Self { fd, plain, lie, id, bad_files, _home: home })
    }

    /// The file behind a handle, if a real disk opened it.
    pub(super) fn of(file: &Arc<dyn File>) -> io::Result<&Self> {
        file.as_any().downcast_ref().ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, "the file was opened by another disk")
        })
    }

    /// Refuses changes of a bad file.
    pub(super) fn check(&self) -> io::Result<()> {
        self.bad_files.check(self.id)
    }

    /// Syncs by `sync`, and takes the outcome down.
    pub(super) fn sync_by(&self, sync: impl Fn() -> io::Result<()>) -> io::Result<()> {
        self.bad_files.sync(self.id, sync)
    }

    /// The file, for a sync by other means, whose end is told to [`PosixFile::synced`].
    pub(super) fn to_sync(&self) -> io::Result<BorrowedFd<'_>> {
        self.check()?;
        Ok(self.fd.as_fd())
    }

    /// Takes down how a sync ended.
    pub(super) fn synced(&self, outcome: io::Result<()>) -> io::Result<()> {
        self.bad_files.synced(self.id, outcome)
    }

    /// Makes the file at least so long, if that works. Writes behind its end wait for each other in the
    /// kernel, which extends a file for one of them at a time; within it they run side by side. Where this
    /// fails the writes extend it, and tell what is wrong.
    pub(super) fn extend(&self, end: u64) {
        if let Ok(len) = self.len()
            && self.lie.is_some()
            && end > len
            && self.check().is_ok()
        {
            let room = end - len;
            let _ = retry_on_intr(|| fs::fallocate(&self.fd, FallocateFlags::empty(), len, room));
        }
    }
}

impl File for PosixFile {
    fn len(&self) -> io::Result<u64> {
        Ok(u64::try_from(fs::fstat(&self.fd)?.st_size).unwrap_or(0))
    }

    fn data_from(&self, offset: u64) -> io::Result<u64> {
        match fs::seek(&self.fd, SeekFrom::Data(offset)) {
            Ok(data) => Ok(data.max(offset)),
            Err(Errno::NXIO) => self.len(),
            // The file system cannot tell.
            Err(_) => Ok(offset),
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.check()?;
        let old = self.len()?;
        if len <= old {
            return Ok(retry_on_intr(|| fs::ftruncate(&self.fd, len))?);
        }
        let grow = || fs::fallocate(&self.fd, FallocateFlags::empty(), old, len - old);
        match retry_on_intr(grow) {
            Ok(()) => Ok(()),
            // The file system cannot promise room; writes may meet a full disk later.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                Ok(retry_on_intr(|| fs::ftruncate(&self.fd, len))?)
            }
            Err(error) => {
                // Part of the room may have been allocated before the disk was full.
                retry_on_intr(|| fs::ftruncate(&self.fd, old))?;
                Err(error.into())
            }
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync_by(|| Ok(retry_on_intr(|| fs::fdatasync(&self.fd))?))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The spans of a read.
pub(super) fn read_spans<'a>(
    file: &'a Arc<dyn File>,
    offset: u64,
    into: &'a mut [u8],
) -> io::Result<ReadSpans<'a>> {
    let file = PosixFile::of(file)?;
    check_end(offset, into.len())?;
    Ok(ReadSpans { fd: file.fd.as_fd(), lie: file.lie, offset, into })
}

/// Reads two neighbours in a file, the head of a record and its value, by one system call of at most so many
/// bytes. `false`: they are none, do not lie as the device wants it, or did not come as a whole; whatever is
/// in their memory, each is to be read by itself.
pub(super) fn read_together(one: &mut ReadAt<'_>, two: &mut ReadAt<'_>, most: usize) -> bool {
    let Ok(file) = PosixFile::of(one.file) else { return false };
    let (first, second) = (one.into.len(), two.into.len());
    let neighbours = Arc::ptr_eq(one.file, two.file)
        && one.offset.checked_add(first as u64) == Some(two.offset)
        && first + second <= most
        && check_end(two.offset, second).is_ok();
    let lies = |read: &ReadAt<'_>| {
        let blocks =
            read.offset.is_multiple_of(ALIGN as u64) && read.into.len().is_multiple_of(ALIGN);
        let fits = |lie: Lie| blocks && read.into.as_ptr().addr().is_multiple_of(lie.align);
        file.lie.is_none_or(fits)
    };
    if !neighbours || !lies(one) || !lies(two) {
        return false;
    }
    let mut both = [IoSliceMut::new(one.into), IoSliceMut::new(two.into)];
    let read = retry_on_intr(|| rustix::io::preadv(&file.fd, &mut both, one.offset));
    let all = read == Ok(first + second);
    if all {
        (one.result, two.result) = (Ok(()), Ok(()));
    }
    all
}

/// The spans of a write.
pub(super) fn write_spans<'a>(write: &WriteAt<'a>) -> io::Result<WriteSpans<'a>> {
    let file = PosixFile::of(write.file)?;
    file.check()?;
    let (offset, pieces) = (write.offset, write.pieces);
    let left = pieces.iter().map(|piece| piece.len()).sum();
    check_end(offset, left)?;
    let (fd, lie) = match &file.plain {
        Some(plain) if !offset.is_multiple_of(ALIGN as u64) || !left.is_multiple_of(ALIGN) => {
            (plain, None)
        }
        _ => (&file.fd, file.lie),
    };
    Ok(WriteSpans { fd: fd.as_fd(), lie, offset, pieces, used: 0, left })
}

/// No file is longer than a signed offset can say.
pub(super) fn check_end(offset: u64, len: usize) -> io::Result<()> {
    match offset.checked_add(len as u64) {
        Some(end) if i64::try_from(end.saturating_add(ALIGN as u64)).is_ok() => Ok(()),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "beyond the largest file")),
    }
}

/// Moves a span by plain system calls.
pub(super) fn carry_out(mut span: Span<'_>) -> io::Result<()> {
    loop {
        let (fd, offset) = (span.fd, span.offset);
        let moved = match span.rest() {
            Rest::In(into) => retry_on_intr(|| rustix::io::pread(fd, &mut *into, offset))?,
            Rest::Out(first, rest) => {
                let pieces: Vec<_> = std::iter::once(first).chain(rest).map(IoSlice::new).collect();
                retry_on_intr(|| rustix::io::pwritev(fd, &pieces, offset))?
            }
        };
        if span.moved(moved)? {
            return Ok(());
        }
    }
}
