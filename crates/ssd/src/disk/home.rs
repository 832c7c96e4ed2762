//! The directory of a disk: opened once, owned by us, locked against other processes.
//!
//! Names are walked component by component without following links, so that nothing outside of the
//! directory is ever opened, whatever somebody put there. One file in it belongs to the disk itself: `lock`
//! says who uses the directory, and its one block was written by direct I/O where that works, which is how
//! it is found out.

use super::span::Lie;
use crate::ALIGN;
use crate::room::Room;
use rustix::fs::{self, AtFlags, FlockOperation, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::DirBuilder;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// The disk's own file.
pub(super) const LOCK: &str = "lock";

/// How directories are opened on the way to a file.
const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// An open, locked directory.
#[derive(Debug)]
pub(super) struct Home {
    /// As the operator wrote it, for messages.
    path: PathBuf,
    root: OwnedFd,
    /// Holds the lock until it is closed.
    _lock: OwnedFd,
    /// How memory must lie for direct I/O; `None` where the file system takes none.
    pub lie: Option<Lie>,
    /// The kernel does not walk for us.
    walks: AtomicBool,
}

impl Home {
    /// Opens a directory, makes it if it is not there, and locks it.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|e| at(path, &e))?;
        // The operator may name the directory through links; below it there are none.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = fs::open(path, flags, Mode::empty()).map_err(|e| at(path, &e.into()))?;
        check_owner(path, &root)?;
        let lock = lock(path, &root)?;
        let lie = sign(&root, &lock).map_err(|e| at(path, &e))?;
        Ok(Self { path: path.to_owned(), root, _lock: lock, lie, walks: AtomicBool::new(false) })
    }

    /// The directory, as the operator wrote it.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The directory itself.
    pub(super) fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// Opens a directory beneath this one; the empty path is this one.
    pub(super) fn dir(&self, path: &Path) -> io::Result<OwnedFd> {
        if let Some(opened) = self.below(path, DIRECTORY) {
            return opened;
        }
        let mut here = rustix::io::fcntl_dupfd_cloexec(&self.root, 0)?;
        for component in path.components() {
            let Component::Normal(name) = component else { return Err(outside(path)) };
            here = fs::openat(&here, name, DIRECTORY, Mode::empty()).map_err(about(path))?;
        }
        Ok(here)
    }

    /// Opens a name in a directory beneath this one by one call, where the kernel walks as we do: beneath this
    /// directory, and over no link. `None`: it does not, or the name is in this directory itself.
    pub(super) fn below(&self, path: &Path, flags: OFlags) -> Option<io::Result<OwnedFd>> {
        let normal = |component| matches!(component, Component::Normal(_));
        let plain = path.components().count() > 1 && path.components().all(normal);
        if !plain || self.walks.load(Ordering::Relaxed) {
            return None;
        }
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        match fs::openat2(&self.root, path, flags, Mode::empty(), how) {
            // An old kernel, or one that refuses this call to us.
            Err(Errno::NOSYS | Errno::PERM | Errno::INVAL | Errno::TOOBIG) => {
                self.walks.store(true, Ordering::Relaxed);
                None
            }
            // A file system where names change meanwhile.
            Err(Errno::AGAIN) => None,
            opened => Some(opened.map_err(about(path))),
        }
    }

    /// The directory of a name, open, and the name in it.
    pub(super) fn parent<'p>(&self, path: &'p Path) -> io::Result<(Parent<'_>, &'p OsStr)> {
        let mut components = path.components();
        let Some(Component::Normal(name)) = components.next_back() else {
            return Err(outside(path));
        };
        let parent = components.as_path();
        if !parent.as_os_str().is_empty() {
            return Ok((Parent::Below(self.dir(parent)?), name));
        }
        if name == LOCK {
            let text = format!("{LOCK} is the disk's own file");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        Ok((Parent::Top(self.root()), name))
    }
}

/// The open directory that a name is in.
#[derive(Debug)]
pub(super) enum Parent<'a> {
    Top(BorrowedFd<'a>),
    Below(OwnedFd),
}

impl AsFd for Parent<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Top(fd) => *fd,
            Self::Below(fd) => fd.as_fd(),
        }
    }
}

/// Says which name an error is about.
pub(super) fn about(path: &Path) -> impl Fn(Errno) -> io::Error {
    move |error| at(path, &link(error))
}

/// Says where an error happened. Errors of the system keep their kind.
fn at(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn outside(path: &Path) -> io::Error {
    let text = format!("{} is not a name beneath the disk's directory", path.display());
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

/// What the kernel says about links does not tell what is wrong.
fn link(error: Errno) -> io::Error {
    match error {
        Errno::LOOP => io::Error::new(
            io::ErrorKind::PermissionDenied,
            "it is a symbolic link; links are not followed in the directory of a disk",
        ),
        other => other.into(),
    }
}

/// A directory of somebody else, or one that others may write, could be changed under us.
fn check_owner(path: &Path, root: &OwnedFd) -> io::Result<()> {
    let stat = fs::fstat(root)?;
    let us = rustix::process::geteuid().as_raw();
    let mode = stat.st_mode & 0o7777;
    let text = if stat.st_uid != us {
        format!(
            "{path} belongs to uid {}, and this process runs as uid {us}; give it to this user \
             (chown {us} {path}) or name a directory of its own",
            stat.st_uid,
            path = path.display()
        )
    } else if mode & 0o022 != 0 {
        format!(
            "others may write to {path} (its mode is {mode:o}); close it (chmod 700 {path}) or name a \
             directory of its own",
            path = path.display()
        )
    } else {
        return Ok(());
    };
    Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
}

/// Takes the lock. It is held by the open file, so it goes with the process, however that ends.
fn lock(path: &Path, root: &OwnedFd) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    let name = path.join(LOCK);
    let lock = fs::openat(root, LOCK, flags, mode).map_err(about(&name))?;
    match fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(lock),
        Err(Errno::WOULDBLOCK) => {
            let holder = holder(&lock).unwrap_or_else(|| "another process".to_owned());
            let text = format!(
                "{} is in use by {holder}; stop it, or name another directory",
                path.display()
            );
            Err(io::Error::new(io::ErrorKind::ResourceBusy, text))
        }
        Err(error) => Err(about(&name)(error)),
    }
}

/// Who holds the lock. It may not have signed yet.
fn holder(lock: &OwnedFd) -> Option<String> {
    let mut text = [0; 32];
    let len = rustix::io::pread(lock, &mut text, 0).ok()?;
    let line = str::from_utf8(&text[..len]).ok()?.lines().next()?;
    let pid: u32 = line.trim().parse().ok()?;
    Some(format!("process {pid}"))
}

/// Writes our process id into the lock, and finds out whether direct I/O works here.
fn sign(root: &OwnedFd, lock: &OwnedFd) -> io::Result<Option<Lie>> {
    let mut block = Room::new(ALIGN);
    let holder = format!("{:<31}\n", std::process::id());
    block.push(holder.as_bytes());
    let rest = vec![b'\n'; block.left()];
    block.push(&rest);
    // What the kernel says of memory is tried out; older kernels say nothing.
    let said = fs::statx(lock, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
    let said = said.map_or(0, |stat| stat.stx_dio_mem_align as usize);
    let finer = Some(said).filter(|align| align.is_power_of_two() && *align < ALIGN);
    for align in finer.into_iter().chain([ALIGN]) {
        let lie = Lie { align };
        if try_direct(root, &block, lie).is_some() {
            return Ok(Some(lie));
        }
    }
    // Plain, for those who ask who holds it. A disk that is full must be opened, or nothing could be evicted.
    match rustix::io::pwrite(lock, &block, 0) {
        Ok(ALIGN) | Err(Errno::NOSPC | Errno::DQUOT) => Ok(None),
        Ok(_) => Err(io::ErrorKind::WriteZero.into()),
        Err(error) => Err(error.into()),
    }
}

/// Some file systems refuse to open a file for direct I/O, others the first transfer, others still move less
/// than was asked.
fn try_direct(root: &OwnedFd, block: &Room, lie: Lie) -> Option<()> {
    let flags = OFlags::RDWR | OFlags::DIRECT | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let direct = fs::openat(root, LOCK, flags, Mode::empty()).ok()?;
    let shift = lie.align % ALIGN;
    let mut memory = Room::new(2 * ALIGN);
    memory.set_len(shift + ALIGN);
    memory[shift..].copy_from_slice(block);
    let wrote = rustix::io::pwrite(&direct, &memory[shift..], 0).ok()?;
    memory.fill(0);
    let read = rustix::io::pread(&direct, &mut memory[shift..], 0).ok()?;
    (wrote == ALIGN && read == ALIGN && memory[shift..] == block[..]).then_some(())
}
