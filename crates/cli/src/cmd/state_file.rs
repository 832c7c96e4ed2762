//! Where a master keeps its state if nobody says where: in the place that the platform has for state, named by the
//! machine and the address where it listens. So a master that is started again knows its nodes, without any setting.

use crate::config::Settings;
use mooncrate::Address;
use mooncrate_wire::files::read_small;
use std::path::{Path, PathBuf};

/// Where the system keeps the name that a machine has for ever.
const MACHINE_ID: &str = "/etc/machine-id";

/// The files to try in turn of a master alone that listens there. None: masters that are elected keep it in etcd, and
/// no later master can be started at a port that the system chooses.
pub(crate) fn usual(settings: &Settings, listen: &Address) -> Vec<PathBuf> {
    if listen.is_any_port() || !settings.etcd.is_empty() {
        return Vec::new();
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
    let name = name(&machine(Path::new(MACHINE_ID)), listen);
    folders.into_iter().flatten().map(|folder| folder.join(&name)).collect()
}

fn name(machine: &str, listen: &Address) -> String {
    format!("master-{machine}-{listen}.state").replace('/', "_")
}

/// This machine: homes are shared between machines, whose masters all listen at the same address of their own. In
/// images of containers the id is empty, and the name of the container counts.
fn machine(id: &Path) -> String {
    let id = read_small(id, 256).unwrap_or_default().trim().to_owned();
    if id.is_empty() || id == "uninitialized" {
        return rustix::system::uname().nodename().to_string_lossy().into_owned();
    }
    id
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Was: by its address alone, so masters of two machines with one home wrote over each other's state.
    #[test]
    fn a_state_file_is_named_by_machine_and_address() {
        let folder = tempfile::tempdir().unwrap();
        let at = |id: &str| {
            let path = folder.path().join("machine-id");
            std::fs::write(&path, id).unwrap();
            name(&machine(&path), &"127.0.0.1:7411".parse().unwrap())
        };
        assert_eq!(at("5eaf\n"), "master-5eaf-127.0.0.1:7411.state");
        assert_ne!(at("5eaf\n"), at("5eb0\n"));
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        for none in ["", "uninitialized\n"] {
            assert_eq!(at(none), format!("master-{host}-127.0.0.1:7411.state"));
        }
        assert_eq!(name("a", &"unix:/run/m".parse().unwrap()), "master-a-unix:_run_m.state");
    }
}
