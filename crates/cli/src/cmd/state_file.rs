//! Where a master keeps its state if nobody says where: in the place that the platform has for state, named by the
//! address where it listens. So a master that is started again knows its nodes, without any setting.

use crate::config::Settings;
use mooncrate::Address;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

/// The file of a master alone that listens there. `None`: masters that are elected keep it in etcd, no later master
/// can be started at a port that the system chooses, or no folder can be written.
pub(crate) fn usual(settings: &Settings, listen: &Address) -> Option<PathBuf> {
    let ephemeral = matches!(listen, Address::Tcp(name) if name.ends_with(":0"));
    if ephemeral || !settings.etcd.is_empty() {
        return None;
    }
    let below = |variable: &str, rest: &str| {
        let folder = PathBuf::from(std::env::var_os(variable)?);
        folder.is_absolute().then(|| folder.join(rest))
    };
    let folders = [
        below("XDG_STATE_HOME", "mooncrate"),
        below("HOME", ".local/state/mooncrate"),
        Some("/var/lib/mooncrate".into()),
    ];
    let name = format!("master-{}.state", listen.to_string().replace('/', "_"));
    let mut refused = Vec::new();
    for folder in folders.into_iter().flatten() {
        match try_write(&folder) {
            Ok(()) => return Some(folder.join(name)),
            Err(error) => refused.push(format!("{}: {error}", folder.display())),
        }
    }
    let refused = refused.join("; ");
    tracing::warn!(
        "no state is kept, because no folder can be written ({refused}): after a restart nodes that were away for \
         some seconds start over empty, and quotas are forgotten; --state-file names a place"
    );
    None
}

/// Makes the folder, and tries whether files can be made in it.
fn try_write(folder: &Path) -> io::Result<()> {
    // Ours alone, whatever the umask: others could replace the file in it.
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let probe = folder.join(format!(".probe-{}", std::process::id()));
    fs::write(&probe, b"")?;
    fs::remove_file(&probe)
}
