//! The state file of a master alone: what it keeps ([`Kept`]), replaced as a whole: written beside,
//! synced, renamed, directory synced.

use crate::kept::Kept;
use crate::state_lock::{HANDOVER, StateLock};
use mooncrate_core::time::Deadline;
use mooncrate_rt as rt;
use mooncrate_wire::clock::boottime;
use mooncrate_wire::files::read_small;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

/// Far more than the lines of all nodes and segments of a cluster take.
const STATE_BYTES_MAX: u64 = 64 << 20;

/// The file, and what it says now.
#[derive(Debug)]
pub(crate) struct StateFile {
    path: PathBuf,
    /// `None`: nobody knows, because a write failed.
    kept: Option<Kept>,
    /// `None` on a disk, which has a lock of its own.
    lock: Option<StateLock>,
}

/// What a file says; `None` if there is none.
pub(crate) fn read(path: &Path) -> io::Result<Option<Kept>> {
    match read_small(path, STATE_BYTES_MAX) {
        Ok(text) => Ok(Some(Kept::parse(&text).ok_or_else(|| {
            let name = path.display();
            let fix =
                "it is damaged; move it away to start without it (values on disks are lost then)";
            io::Error::new(io::ErrorKind::InvalidData, format!("{name}: {fix}"))
        })?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => {
            let text = format!("{}: {error}", path.display());
            Err(io::Error::new(error.kind(), text))
        }
    }
}

impl StateFile {
    /// Reads a file on a disk; `None` in place of what was kept if there is none yet.
    pub(crate) fn open(path: &Path) -> io::Result<(Self, Option<Kept>)> {
        let kept = read(path)?;
        let known = Some(kept.clone().unwrap_or_default());
        Ok((Self { path: path.into(), kept: known, lock: None }, kept))
    }

    /// The same for the file that an operator named, which no other master may use.
    pub(crate) fn named(path: &Path) -> io::Result<(Self, Option<Kept>)> {
        let locked = Self::locked(path, boottime().deadline_in(HANDOVER));
        let lock = locked.map_err(|error| match error.kind() {
            io::ErrorKind::ResourceBusy => {
                let text = format!("{error}; stop it, or name another file");
                io::Error::new(error.kind(), text)
            }
            _ => error,
        })?;
        let (file, kept) = Self::open(path)?;
        Ok((Self { lock: lock.lock, ..file }, kept))
    }

    /// A file that no other master uses, in a folder that is made if need be. Nobody knows yet what it says.
    pub(crate) fn locked(path: &Path, until: Deadline) -> io::Result<Self> {
        make_folder(path)?;
        let lock = StateLock::take(path, until)?;
        Ok(Self { path: path.into(), kept: None, lock: Some(lock) })
    }

    /// Tries whether the place takes a block: many say only then that they are full.
    pub(crate) fn probe(&self) -> io::Result<()> {
        let beside = self.path.with_extension("new");
        let written = write_synced(&beside, &[0; 4096]);
        let removed = fs::remove_file(&beside);
        written.and(removed)
    }

    /// Deletes the file, so that the next leader finds none.
    pub(crate) fn forget(&mut self) -> io::Result<()> {
        let gone = |kind| matches!(kind, io::ErrorKind::NotFound | io::ErrorKind::NotADirectory);
        self.kept = None;
        let removed = fs::remove_file(&self.path).or_else(|error| match error.kind() {
            kind if gone(kind) => Ok(()),
            _ => Err(error),
        });
        let synced = removed.and_then(|()| match folder(&self.path).map(fs::File::open) {
            Some(Ok(folder)) => folder.sync_all(),
            Some(Err(error)) if !gone(error.kind()) => Err(error),
            _ => Ok(()),
        });
        synced.map_err(|error| {
            let text = format!("{} cannot be deleted: {error}", self.path.display());
            io::Error::new(error.kind(), text)
        })
    }

    /// Makes the file say `kept`; a no-op if it does.
    pub(crate) fn keep(&mut self, kept: Kept) -> io::Result<()> {
        if self.says(&kept) {
            return Ok(());
        }
        // A write that failed may have come through: its name, if not its sync.
        self.kept = None;
        self.write(&kept).map_err(|error| {
            let fix = match error.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                    "; free some space there, or keep it elsewhere"
                }
                _ => "",
            };
            let text = format!("{} cannot be written: {error}{fix}", self.path.display());
            io::Error::new(error.kind(), text)
        })?;
        self.kept = Some(kept);
        Ok(())
    }

    /// Whether the file says this.
    pub(crate) fn says(&self, kept: &Kept) -> bool {
        self.kept.as_ref() == Some(kept)
    }

    fn write(&self, kept: &Kept) -> io::Result<()> {
        make_folder(&self.path)?;
        let beside = self.path.with_extension("new");
        if let Err(error) = write_synced(&beside, kept.render().as_bytes()) {
            // What there is of it takes room.
            let _gone = fs::remove_file(&beside);
            return Err(error);
        }
        rt::step();
        fs::rename(&beside, &self.path)?;
        rt::step();
        folder(&self.path).map_or(Ok(()), |folder| fs::File::open(folder)?.sync_all())
    }
}

fn folder(path: &Path) -> Option<&Path> {
    path.parent().filter(|parent| !parent.as_os_str().is_empty())
}

fn make_folder(path: &Path) -> io::Result<()> {
    let Some(folder) = folder(path) else { return Ok(()) };
    // Ours alone, whatever the umask: others could replace the file in it.
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(|error| {
        let text = format!("{} cannot be made: {error}", folder.display());
        io::Error::new(error.kind(), text)
    })
}

fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = fs::File::create(path)?;
    rt::step();
    file.write_all(bytes)?;
    rt::step();
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use mooncrate_core::{LeaderEpoch, NodeId, TenantId};
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn what_was_kept_comes_back_and_a_cut_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/master.state");
        let (mut file, none) = StateFile::open(&path).unwrap();
        assert_eq!(none, None);
        let quotas = vec![(TenantId(5), 6)];
        let kept =
            Kept { epoch: LeaderEpoch(7), nodes: vec![NodeId(1)], quotas, ..Kept::default() };
        file.keep(kept.clone()).unwrap();
        assert_eq!(StateFile::open(&path).unwrap().1, Some(kept.clone()));
        let mode = fs::metadata(path.parent().unwrap()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "others have no business there");
        // A write that failed may have come through, so the next one is none that can be left out.
        let other = Kept { epoch: LeaderEpoch(8), ..kept.clone() };
        fs::create_dir(path.with_extension("new")).unwrap();
        file.keep(other.clone()).unwrap_err();
        fs::remove_dir(path.with_extension("new")).unwrap();
        fs::write(&path, other.render()).unwrap();
        file.keep(kept.clone()).unwrap();
        assert_eq!(StateFile::open(&path).unwrap().1, Some(kept.clone()));
        fs::write(&path, &kept.render()[..20]).unwrap();
        assert!(StateFile::open(&path).unwrap_err().to_string().contains("damaged"));
    }
}
