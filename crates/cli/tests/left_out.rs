//! Disks that are left out of a start and put back, listed in another order, copied, and restored from a backup,
//! under real servers. What must stay true: what was removed stays removed (G6).
#![expect(clippy::unwrap_used, reason = "helpers of tests fail where they stand")]

#[expect(dead_code, reason = "each test binary uses a part of it")]
mod support;

use mooncrate::{Address, ConnectOptions, Store};
use mooncrate_wire::clock::boottime;
use rustix::process::Signal;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use support::Server;

const KEYS: u32 = 20;
/// Generous: the machine may be busy, and nothing is measured.
const PATIENCE: Duration = Duration::from_mins(2);

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = boottime().deadline_in(PATIENCE);
    while !done() {
        assert!(!end.passed(boottime()), "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn name(n: u32) -> Vec<u8> {
    format!("block/{n}").into_bytes()
}

/// A server with these disks; ends in order when `work` is done.
fn with(folder: &Path, disks: &[&str], work: impl FnOnce(&Store)) {
    let any = "127.0.0.1:0";
    let mut words = vec!["serve", "--master", any, "--admin", any, "--data", any];
    words.extend(["--segment-size", "8MiB", "--offload", "eager"]);
    let disks: Vec<String> = disks.iter().map(|disk| format!("{disk}=64MiB")).collect();
    for disk in &disks {
        words.extend(["--ssd", disk]);
    }
    let mut server = Server::start(folder, &words);
    let master = Address::Tcp(server.address("master").to_owned()).into();
    let store = Store::connect(ConnectOptions { master, ..ConnectOptions::default() }).unwrap();
    until("the index is rebuilt", || !store.stat().unwrap().rebuilding);
    work(&store);
    drop(store);
    server.signal(Signal::TERM);
    assert!(server.child.wait().unwrap().success());
}

/// Puts all keys, and waits until each is on a disk.
fn fill(store: &Store, value: &[u8]) {
    for n in 0..KEYS {
        until("a put", || store.put(&name(n), value).is_ok());
    }
    let on_disk = || store.stat().unwrap().counters.offloaded;
    until("all values are on disks", || on_disk() >= u64::from(KEYS));
}

fn remove_all(store: &Store) {
    for n in 0..KEYS {
        until("a remove", || store.remove(&name(n), true).is_ok());
    }
}

/// How many keys have a value.
fn count(store: &Store) -> usize {
    (0..KEYS).filter(|n| store.get(&name(*n)).unwrap().is_some()).count()
}

/// The story: a start without disk A, which replaced and removed everything, was forgotten when A came back.
#[test]
fn removed_values_stay_removed_when_a_disk_is_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    with(here, &["a", "b"], |store| fill(store, b"first"));
    with(here, &["b"], |store| {
        fill(store, b"second");
        remove_all(store);
    });
    with(here, &["a", "b"], |store| assert_eq!(count(store), 0, "removed values came back"));
}

#[test]
fn disks_may_change_their_order() {
    let folder = tempfile::tempdir().unwrap();
    with(folder.path(), &["a", "b"], |store| fill(store, b"value"));
    with(folder.path(), &["b", "a"], |store| assert_eq!(count(store), KEYS as usize));
}

fn shell(folder: &Path, script: &str) {
    let ran = Command::new("sh").args(["-ec", script]).current_dir(folder).status();
    assert!(ran.unwrap().success(), "{script}");
}

/// A backup is older than what happened since, whether it was made between two starts or in the midst of one.
#[test]
fn a_directory_from_a_backup_is_not_believed() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    with(here, &["a"], |store| {
        fill(store, b"first");
        shell(here, "cp -a a live");
    });
    shell(here, "cp -a a between");
    with(here, &["a"], remove_all);
    for backup in ["live", "between"] {
        shell(here, &format!("rm -rf a && cp -a {backup} a"));
        with(here, &["a"], |store| assert_eq!(count(store), 0, "{backup}: came back"));
    }
}
