//! A file system that is full, under a real server: small ones, mounted in a namespace of their own so that
//! nothing of this machine changes. That needs root.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail where they stand")]

#[expect(dead_code, reason = "each test binary uses a part of it")]
mod support;

use mooncrate::{Address, ConnectOptions, Store};
use mooncrate_check::{PutId, payload};
use mooncrate_core::{Advice, key};
use mooncrate_wire::clock::boottime;
use rustix::process::Signal;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use support::{Server, fetch, finish, mooncrate, wait};

/// Small file systems, and what makes them in the folder where it is started: memory, and one as servers have
/// it, with direct I/O, a journal, and space that names and directories take as well.
const FILE_SYSTEMS: [(&str, &str); 2] = [
    (
        "tmpfs",
        "mkdir small && mount -t tmpfs -o size=88m,mode=700 tmpfs small && \
         fallocate -l 64m small/others",
    ),
    (
        "ext4",
        "truncate -s 94m image && mkfs.ext4 -q -F -b 4096 -m 0 image && mkdir small && \
         mount -o loop image small && chmod 700 small && fallocate -l 64m small/others",
    ),
];
/// The rest of the words say which test goes on in there.
const GO_ON: &str = "exec \"$0\" \"$1\" --exact --ignored --nocapture";
/// Generous: the machine may be busy, and nothing is measured.
const PATIENCE: Duration = Duration::from_mins(2);
const LEN: usize = 64 << 10;

/// Runs an ignored test of this file where `small` is a file system of each kind in which others have left about
/// 24 MiB.
fn in_small_file_system(name: &str) {
    std::thread::scope(|scope| {
        for (kind, setup) in FILE_SYSTEMS {
            scope.spawn(move || in_one(kind, setup, name));
        }
    });
}

fn in_one(kind: &str, setup: &str, name: &str) {
    let run = |script: &str| {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script]).arg(std::env::current_exe().unwrap());
        command.arg(name).current_dir(folder.path()).output()
    };
    if !run(setup).is_ok_and(|output| output.status.success()) {
        eprintln!("SKIPPED {name} on {kind}: namespaces and `{setup}` are needed");
        return;
    }
    let ran = run(&format!("{setup} && {GO_ON}")).unwrap();
    let (said, err) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success() && said.contains("1 passed"), "on {kind}: {said}{err}");
}

fn name(n: u32) -> Vec<u8> {
    format!("block/{n}").into_bytes()
}

fn value(n: u32) -> Vec<u8> {
    let mut value = vec![0; LEN];
    payload::fill(&mut value, PutId::new(1, 1, n + 1), key::hash(&name(n)));
    value
}

/// Waits until `done`, or fails.
fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = boottime().deadline_in(PATIENCE);
    while !done() {
        assert!(!end.passed(boottime()), "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A server whose disk is in the small file system, and a client of it.
struct Rig {
    server: Server,
    store: Store,
    folder: PathBuf,
}

fn words<'a>(disk: &'a str, offload: &'a str) -> Vec<&'a str> {
    let any = "127.0.0.1:0";
    let serve = ["serve", "--master", any, "--admin", any, "--data", any];
    let more = ["--segment-size", "8MiB", "--ssd", disk, "--offload", offload];
    [&serve[..], &more[..]].concat()
}

impl Rig {
    fn start(disk: &str) -> Self {
        Self::with(disk, "eager")
    }

    fn with(disk: &str, offload: &str) -> Self {
        let folder = std::env::current_dir().unwrap();
        let server = Server::start(&folder, &words(disk, offload));
        let master = Address::Tcp(server.address("master").to_owned()).into();
        let store = Store::connect(ConnectOptions { master, ..ConnectOptions::default() }).unwrap();
        until("the index is rebuilt", || !store.stat().unwrap().rebuilding);
        Self { server, store, folder }
    }

    /// Puts a value. Memory that waits for a disk says so, with a hint; nothing else may be said.
    fn put(&self, n: u32) {
        let value = value(n);
        until("a put", || match self.store.put(&name(n), &value) {
            Ok(_) => true,
            Err(error) => {
                assert!(matches!(error.advice(), Advice::Retry { .. }), "value {n}: {error}");
                false
            }
        });
    }

    /// How many of these can be read; wrong bytes end the test.
    fn count(&self, values: impl Iterator<Item = u32>) -> u32 {
        let found = |n: &u32| {
            let mut found = false;
            until("a get", || match self.store.get(&name(*n)) {
                Ok(Some(value)) => {
                    payload::examine_as(&value, PutId::new(1, 1, n + 1), key::hash(&name(*n)))
                        .unwrap_or_else(|bad| panic!("value {n}: {bad:?}"));
                    found = true;
                    true
                }
                Ok(None) => true,
                Err(error) => {
                    assert!(matches!(error.advice(), Advice::Retry { .. }), "value {n}: {error}");
                    false
                }
            });
            found
        };
        values.filter(found).count() as u32
    }

    /// Removes these; how many of them were there.
    fn remove(&self, values: impl Iterator<Item = u32>) -> u32 {
        let mut removed = 0;
        for n in values {
            until("a remove", || match self.store.remove(&name(n), true) {
                Ok(was_there) => {
                    removed += u32::from(was_there);
                    true
                }
                Err(error) => {
                    assert!(matches!(error.advice(), Advice::Retry { .. }), "value {n}: {error}");
                    false
                }
            });
        }
        removed
    }

    /// A number of the disk.
    fn number(&self, family: &str, more: &str) -> u64 {
        let address = self.server.address("admin").strip_prefix("http://").unwrap();
        let (status, page) = fetch(address, "GET", "/metrics");
        assert_eq!(status, 200);
        let head = format!("mooncrate_node_disk_{family}{{");
        let row = page.lines().find(|line| line.starts_with(&head) && line.contains(more));
        let row = row.unwrap_or_else(|| panic!("no {family} {more} in {page}"));
        row.rsplit_once(' ').unwrap().1.trim_end_matches(".0").parse().unwrap()
    }

    fn refused(&self) -> u64 {
        self.number("refusals_total", "reason=\"full\"")
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.join("serve.log")).unwrap()
    }
}

/// Takes all that is left of the small file system.
fn fill(folder: &Path) -> PathBuf {
    let path = folder.join("small/of-somebody-else");
    let mut file = fs::File::create(&path).unwrap();
    for bytes in [1 << 20, 64 << 10, 4096] {
        while file.write_all(&vec![1; bytes]).is_ok() {}
    }
    path
}

/// Fault row of full disks: the disk is smaller than its size says. Values are read or missed and never wrong, no
/// put fails, and the tier works on as space comes and goes.
#[test]
fn more_than_the_file_system_holds() {
    in_small_file_system("more_than_it_holds");
}

#[test]
#[ignore = "started by the other test, in a namespace"]
fn more_than_it_holds() {
    for backend in ["bucket", "per_key"] {
        let rig = Rig::start(&format!("small/{backend}=64MiB,bucket_size=2MiB,backend={backend}"));
        // 64 MiB through a file system of about 24.
        for n in 0..1024 {
            rig.put(n);
        }
        until("the disk has taken what it can", || rig.number("queue", "") == 0);
        let (refused, evicted) = (rig.refused(), rig.number("evicted_records_total", ""));
        assert!(refused > 0 && evicted > 0, "{backend}: {refused} refused, {evicted} evicted");
        // Memory has 128 of them at most.
        let found = rig.count(0..1024);
        assert!(found > 160, "{backend}: {found} values are left");
        let said = rig.log();
        assert_eq!(said.matches("file system is full").count(), 1, "{said}");
        assert!(said.lines().count() < 100, "{said}");

        // Somebody else takes the rest, and gives it back: then it is used.
        let other = fill(&rig.folder);
        rig.remove((0..1024).step_by(3));
        assert_eq!(rig.count((0..1024).step_by(3)), 0, "{backend}: what was removed is gone");
        fs::remove_file(other).unwrap();
        let (kept, mut next) = (rig.number("kept_records_total", ""), 2000);
        // The master leaves a disk that refused alone, for some seconds at most.
        until("the disk takes values again", || {
            rig.put(next);
            next += 1;
            rig.number("kept_records_total", "") > kept
        });
        assert_eq!(rig.count(next - 1..next), 1, "{backend}: what was put last");
        assert_eq!(rig.number("lost", ""), 0, "{backend}");
        drop(rig);
        fs::remove_dir_all(format!("small/{backend}")).unwrap();
    }
}

/// A removal needs a little room to be durable. If there is none, old records make some, although nothing is kept:
/// else the disk would be given up for removing nothing.
#[test]
fn removals_on_a_full_disk_end() {
    in_small_file_system("removals_end");
}

#[test]
#[ignore = "started by the other test, in a namespace"]
fn removals_end() {
    let disk = "small/bucket=64MiB,bucket_size=2MiB";
    let mut rig = Rig::start(disk);
    for n in 0..100 {
        rig.put(n);
    }
    until("all are on the disk", || rig.number("kept_records_total", "") == 100);
    rig.server.signal(Signal::TERM);
    assert_eq!(wait(&mut rig.server.child, PATIENCE).code(), Some(0));

    let rig = Rig::with(disk, "off");
    fill(&rig.folder);
    // Of every bucket some, so that none of them goes by itself.
    let removed = rig.remove((0..100).step_by(2));
    assert!(removed > 20, "{removed} were there to be removed");
    assert_eq!(rig.count((0..100).step_by(2)), 0, "what was removed is gone");
    assert!(rig.count((1..100).step_by(2)) > 20, "the rest is not");
    until("room was made", || rig.number("evicted_records_total", "") > 0);
    assert_eq!(rig.number("lost", ""), 0);
}

/// A server that is killed when its file system is full, of its own values and of others', starts again and has
/// them, but for the oldest, which make room.
#[test]
fn a_full_disk_comes_up_warm() {
    in_small_file_system("comes_up_warm");
}

#[test]
#[ignore = "started by the other test, in a namespace"]
fn comes_up_warm() {
    for backend in ["bucket", "per_key"] {
        let disk = format!("small/{backend}=64MiB,bucket_size=2MiB,backend={backend}");
        let mut rig = Rig::start(&disk);
        for n in 0..200 {
            rig.put(n);
        }
        until("all are on the disk", || rig.number("kept_records_total", "") == 200);
        let other = fill(&rig.folder);
        rig.server.signal(Signal::KILL);
        wait(&mut rig.server.child, PATIENCE);

        let mut rig = Rig::start(&disk);
        // A bucket has 31 of them.
        let found = rig.count(0..200);
        assert!((160..200).contains(&found), "{backend}: {found} of 200 are left");
        rig.put(1000);
        assert_eq!(rig.count(1000..1001), 1);
        rig.server.signal(Signal::TERM);
        assert_eq!(wait(&mut rig.server.child, PATIENCE).code(), Some(0));

        // And after a stop in order, with nothing free.
        let again = fill(&rig.folder);
        let rig = Rig::start(&disk);
        let left = rig.count(0..200);
        assert!(left + 40 >= found, "{backend}: {left} of {found} are left");
        drop(rig);
        for path in [&other, &again] {
            let _ = fs::remove_file(path);
        }
        fs::remove_dir_all(format!("small/{backend}")).unwrap();
    }
}

/// A directory that is new gets nothing on a full file system: the server says what to do, and does not start.
#[test]
fn a_new_disk_without_room_is_refused_with_a_fix() {
    in_small_file_system("without_room");
}

#[test]
#[ignore = "started by the other test, in a namespace"]
fn without_room() {
    let folder = std::env::current_dir().unwrap();
    let refused = |disk: &str| {
        let output = finish(mooncrate(&folder).args(words(disk, "eager")), b"");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_ne!(output.status.code(), Some(0), "{said}");
        assert!(said.contains("small/") && said.contains("free some space there"), "{said}");
    };
    // One file for all is made in its full length.
    refused("small/one=64MiB,backend=offset");
    let other = fill(&folder);
    for backend in ["bucket", "per_key", "offset"] {
        refused(&format!("small/{backend}=16MiB,backend={backend}"));
    }
    fs::remove_file(other).unwrap();
    fs::remove_dir_all("small/one").unwrap();
    for backend in ["bucket", "per_key", "offset"] {
        let rig = Rig::start(&format!("small/{backend}=16MiB,backend={backend}"));
        rig.put(1);
        assert_eq!(rig.count(1..2), 1, "{backend}: nothing is left of the refused start");
        drop(rig);
        fs::remove_dir_all(format!("small/{backend}")).unwrap();
    }
}
