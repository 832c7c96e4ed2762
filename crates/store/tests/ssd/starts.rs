//! Starts that are refused, and what they leave behind: nothing.

use crate::rig::{KIB, MIB, count, disk, embedded, offloaded, put, until};
use mooncrate::{
    Address, EmbeddedOptions, Error, MasterOptions, NodeOptions, Running, Store, TierConfig,
    run_both,
};
use mooncrate_core::catalog::Offload;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

fn serve(folder: &Path) -> Result<Running, Error> {
    let any_port = || Address::Tcp("127.0.0.1:0".into());
    let master = MasterOptions { listen: any_port(), ..MasterOptions::default() };
    let node = NodeOptions {
        listen: Some(any_port()),
        segment_bytes: 8 << 20,
        tier: TierConfig { disks: vec![disk(folder, 64)], ..TierConfig::default() },
        ..NodeOptions::default()
    };
    run_both(master, node)
}

fn embed(folder: &Path) -> Result<Store, Error> {
    Store::embedded(EmbeddedOptions {
        ssd: vec![disk(folder, 64)],
        segment_bytes: 8 << 20,
        ..EmbeddedOptions::default()
    })
}

fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
    let read = |entry: fs::DirEntry| {
        (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())
    };
    entries.map(read).collect()
}

/// A start that does not get the directory must not touch the state of the master that has it: the next leader
/// would wait for the wrong nodes, and believe the wrong disks.
#[test]
fn a_refused_start_leaves_the_running_state_alone() {
    let folder = tempfile::tempdir().unwrap();
    let store = embedded(vec![disk(folder.path(), 64)], 8 * MIB, Offload::Eager);
    for n in 0..10 {
        put(&store, n, 64 * KIB);
    }
    until("all are on the disk", || offloaded(&store) == 10);
    let state = folder.path().join("ssd/master.state");
    let before = fs::read(&state).unwrap();
    let refusals = [serve(folder.path()).unwrap_err(), embed(folder.path()).unwrap_err()];
    for refused in refusals.map(|error| error.to_string()) {
        assert!(refused.contains("is in use by process"), "{refused}");
        assert_eq!(fs::read(&state).unwrap(), before, "{refused}");
    }
    drop(store);
    let store = embedded(vec![disk(folder.path(), 64)], 8 * MIB, Offload::Eager);
    assert_eq!(count(&store, 10), 10, "its disk is believed");
}

/// The next master does not wait for the memory of a node that stopped in order with the last one: nothing of it is
/// readable. It believes the disk.
#[test]
fn a_stop_in_order_leaves_the_disk_on_the_list_and_no_node() {
    let folder = tempfile::tempdir().unwrap();
    let listed = || {
        let state = fs::read_to_string(folder.path().join("ssd/master.state")).unwrap();
        let count = |word| state.lines().filter(|line| line.starts_with(word)).count();
        (count("node "), count("segment "))
    };
    for start in 0..3 {
        let running = serve(folder.path()).unwrap();
        until("memory and the disk are listed", || listed() == (1, 2));
        running.stop();
        assert_eq!(listed(), (0, 1), "start {start}");
    }
}

/// A directory that is not ours, or not a disk of ours, is left as it was.
#[test]
fn a_refused_directory_is_left_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let ssd = folder.path().join("ssd");
    fs::create_dir(&ssd).unwrap();
    fs::write(ssd.join("notes.txt"), "of somebody else").unwrap();
    fs::set_permissions(&ssd, fs::Permissions::from_mode(0o777)).unwrap();
    let before = files(&ssd);
    for error in [serve(folder.path()).unwrap_err(), embed(folder.path()).unwrap_err()] {
        assert!(error.to_string().contains("chmod 700"), "{error}");
        assert_eq!(files(&ssd), before);
    }
}

/// Where new directories are writable for the group by default, the first start works, and the second.
#[test]
fn a_loose_umask_is_no_trouble() {
    let folder = tempfile::tempdir().unwrap();
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o002));
    for _ in 0..2 {
        serve(folder.path()).unwrap().stop();
    }
    let mode = fs::metadata(folder.path().join("ssd")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}
