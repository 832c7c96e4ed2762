//! The state file of a master alone: what it keeps ([`Kept`]), replaced as a whole: written beside,
//! synced, renamed, directory synced.

use crate::kept::Kept;
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
}

impl StateFile {
    /// Reads the file; `None` in place of what was kept if there is none yet.
    pub(crate) fn open(path: &Path) -> io::Result<(Self, Option<Kept>)> {
        let kept = match read_small(path, STATE_BYTES_MAX) {
            Ok(text) => Some(Kept::parse(&text).ok_or_else(|| {
                let name = path.display();
                let fix = "it is damaged; move it away to start without it (values on disks are lost then)";
                io::Error::new(io::ErrorKind::InvalidData, format!("{name}: {fix}"))
            })?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                let text = format!("{}: {error}", path.display());
                return Err(io::Error::new(error.kind(), text));
            }
        };
        let known = Some(kept.clone().unwrap_or_default());
        Ok((Self { path: path.into(), kept: known }, kept))
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
        let parent = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        if let Some(parent) = parent {
            // Ours alone, whatever the umask: others could replace the file in it.
            fs::DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
        }
        let beside = self.path.with_extension("new");
        let mut file = fs::File::create(&beside)?;
        file.write_all(kept.render().as_bytes())?;
        file.sync_all()?;
        fs::rename(&beside, &self.path)?;
        if let Some(parent) = parent {
            fs::File::open(parent)?.sync_all()?;
        }
        Ok(())
    }
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
