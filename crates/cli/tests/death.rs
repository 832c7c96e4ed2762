//! The real binary: a node that is killed, and one that is only stopped.
//!
//! A dead owner's keys are free, or read elsewhere, at once: its guard knows that it is dead and ends
//! every mapping of its memory first. A stopped owner, or a dead one whose guard died with it, gives a key up when its
//! serving lease has ended and somebody puts the key; it keeps the others.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail where they stand")]

#[expect(dead_code, reason = "each test binary uses a part of it")]
mod support;

use mooncrate::{ConnectOptions, PutConfig, Store, Stored};
use mooncrate_core::{NodeId, SegmentId};
use mooncrate_mem::clock::boottime;
use rustix::process::Signal;
use std::path::Path;
use std::time::Duration;
use support::{Server, wait};

const ANY: &str = "127.0.0.1:0";
/// Far more than a guard needs, and far less than a master waits for a node that it does not hear (20 s).
const SOON: Duration = Duration::from_secs(7);
const KEYS: u32 = 20;

/// A master and nodes, each a process.
struct Fleet {
    folder: tempfile::TempDir,
    master: Server,
}

impl Fleet {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let args = ["master", "--master", ANY, "--admin", "off"];
        let master = Server::start(folder.path(), &args);
        Self { folder, master }
    }

    fn node(&self, name: &str, more: &[&str]) -> Server {
        let unix = self.folder.path().join(format!("{name}.sock"));
        let at = self.master.address("master");
        let args = ["node", "--master", at, "--data", ANY, "--node-name", name];
        let memory = ["--segment-size", "16MiB", "--unix", unix.to_str().unwrap()];
        Server::start(self.folder.path(), &[&args[..], &memory, more].concat())
    }

    fn connect(&self) -> Store {
        let master = self.master.address("master").parse().unwrap();
        Store::connect(ConnectOptions { master, ..ConnectOptions::default() }).unwrap()
    }
}

fn on(store: &Store, nodes: &[&str]) -> PutConfig {
    let preferred = nodes.iter().map(|node| SegmentId::of(NodeId::named(node), 0)).collect();
    let replicas = nodes.len() as u8;
    PutConfig { replicas, preferred, ..store.put_config() }
}

fn key(n: u32) -> Vec<u8> {
    format!("k/{n}").into_bytes()
}

fn put_all(store: &Store, value: &[u8], config: &PutConfig) {
    for n in 0..KEYS {
        assert_eq!(store.put_parts(&key(n), &[value], config).unwrap(), Stored::New);
        // So that the memory is mapped and the place remembered.
        assert_eq!(store.get(&key(n)).unwrap().unwrap(), value);
    }
}

/// Asks until the answer is yes; how long that took.
fn until(what: &str, most: Duration, mut done: impl FnMut() -> bool) -> Duration {
    let began = boottime();
    while !done() {
        assert!(boottime().since(began) < most, "{what}: not within {most:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    boottime().since(began)
}

fn kill(mut node: Server) {
    node.child.kill().unwrap();
    node.child.wait().unwrap();
}

/// The processes that a process has started, by whichever of its threads.
fn children(of: u32) -> Vec<u32> {
    let mut all = Vec::new();
    for thread in std::fs::read_dir(format!("/proc/{of}/task")).unwrap() {
        // A thread may end meanwhile.
        let list = std::fs::read_to_string(thread.unwrap().path().join("children"));
        all.extend(
            list.unwrap_or_default().split_whitespace().map(|pid| pid.parse::<u32>().unwrap()),
        );
    }
    all
}

/// What was red for 20 s: the keys exist, cannot be read and cannot be put.
#[test]
fn the_keys_of_a_killed_node_can_be_put_again_at_once() {
    let fleet = Fleet::start();
    let victim = fleet.node("a", &[]);
    let _other = fleet.node("b", &[]);
    let (writer, reader) = (fleet.connect(), fleet.connect());
    put_all(&writer, &vec![1; 100_000], &on(&writer, &["a"]));
    for n in 0..KEYS {
        reader.get(&key(n)).unwrap().unwrap();
    }
    kill(victim);
    for n in 0..KEYS {
        until("the key can be put", SOON, || {
            matches!(writer.put(&key(n), &[2; 50]), Ok(Stored::New))
        });
        // The reader has a mapping of the dead node's memory, in which the old value still lies.
        assert_eq!(reader.get(&key(n)).unwrap().unwrap(), [2; 50], "key {n}");
    }
}

#[test]
fn what_has_another_copy_is_whole_again_at_once() {
    let fleet = Fleet::start();
    let victim = fleet.node("a", &[]);
    let _others = [fleet.node("b", &[]), fleet.node("c", &[])];
    let store = fleet.connect();
    put_all(&store, &[1; 5000], &on(&store, &["a", "b"]));
    kill(victim);
    for n in 0..KEYS {
        assert_eq!(store.get(&key(n)).unwrap().unwrap(), [1; 5000]);
    }
    until("there are two copies again", SOON, || {
        let listed = store.list(b"k/", 0, 100).unwrap().entries;
        let whole = listed.iter().all(|entry| entry.replicas == 2);
        listed.len() == KEYS as usize && whole && store.stat().unwrap().nodes == 2
    });
}

/// The next process of the node may be known to the master before the death of the last one is.
#[test]
fn the_keys_of_a_node_that_was_killed_and_started_again_are_free_at_once() {
    let fleet = Fleet::start();
    for round in 0..3_u8 {
        let victim = fleet.node("a", &[]);
        let store = fleet.connect();
        let (value, config) = ([round; 1000], on(&store, &["a"]));
        for n in 0..KEYS {
            until("the key can be put", SOON, || {
                matches!(store.put_parts(&key(n), &[&value], &config), Ok(Stored::New))
            });
            assert_eq!(store.get(&key(n)).unwrap().unwrap(), value);
        }
        kill(victim);
    }
}

/// A node that stands still may go on: a key that somebody puts meanwhile, when nobody can read the old value any more,
/// has the new value alone from then on. The node keeps all others, and goes on where it was.
#[test]
fn a_stopped_node_keeps_what_nobody_puts_anew() {
    let fleet = Fleet::start();
    let stopped = fleet.node("a", &[]);
    let _other = fleet.node("b", &[]);
    let (store, reader) = (fleet.connect(), fleet.connect());
    put_all(&store, &[1; 1000], &on(&store, &["a"]));
    for n in 0..KEYS {
        reader.get(&key(n)).unwrap().unwrap();
    }
    stopped.signal(Signal::STOP);
    until("the key can be put", SOON, || matches!(store.put(&key(0), b"new"), Ok(Stored::New)));
    let is_new = || assert_eq!(reader.get(&key(0)).unwrap().unwrap(), b"new");
    is_new();
    stopped.signal(Signal::CONT);
    until("all is there again", Duration::from_secs(30), || {
        is_new();
        (1..KEYS).all(|n| matches!(reader.get(&key(n)), Ok(Some(value)) if value == [1; 1000]))
    });
    is_new();
}

/// A whole control group is killed, or a program that has a node inside of it: nobody says that the node is dead.
/// Was: its keys could be neither read nor put for 20 s.
#[test]
fn the_keys_of_a_node_that_died_with_its_guard_can_be_put_again() {
    let fleet = Fleet::start();
    let victim = fleet.node("a", &[]);
    let _other = fleet.node("b", &[]);
    let (store, reader) = (fleet.connect(), fleet.connect());
    put_all(&store, &[1; 1000], &on(&store, &["a"]));
    reader.get(&key(0)).unwrap().unwrap();
    victim.signal(Signal::STOP);
    for guard in children(victim.child.id()) {
        let guard = rustix::process::Pid::from_raw(i32::try_from(guard).unwrap()).unwrap();
        rustix::process::kill_process(guard, Signal::KILL).unwrap();
    }
    kill(victim);
    for n in 0..KEYS {
        until("the key can be put", SOON, || {
            matches!(store.put(&key(n), &[2; 50]), Ok(Stored::New))
        });
        assert_eq!(reader.get(&key(n)).unwrap().unwrap(), [2; 50], "key {n}");
    }
}

/// A guard goes with its node, however that ends.
#[test]
fn no_guard_is_left_behind() {
    let fleet = Fleet::start();
    let alive = |pid: &u32| Path::new(&format!("/proc/{pid}/exe")).exists();
    for signal in [Signal::TERM, Signal::INT, Signal::KILL] {
        let mut node = fleet.node("a", &[]);
        let guards = children(node.child.id());
        assert_eq!(guards.len(), 1, "one guard");
        assert!(alive(&guards[0]));
        node.signal(signal);
        wait(&mut node.child, Duration::from_secs(30));
        until("the guard has ended", Duration::from_secs(30), || !alive(&guards[0]));
        let store = fleet.connect();
        until("the master has let it go", SOON, || store.stat().unwrap().nodes == 0);
    }
}

/// A disk outlives its node: what it held is there again when the node is, and not before.
#[test]
fn a_killed_node_comes_back_with_its_disk() {
    let fleet = Fleet::start();
    let disk = format!("{}=64MiB", fleet.folder.path().join("disk").display());
    let disk = ["--ssd", &disk];
    let victim = fleet.node("a", &disk);
    let store = fleet.connect();
    let config = PutConfig { media: [0, 1, 1], ..on(&store, &["a"]) };
    put_all(&store, &[7; 5000], &config);
    until("all is on the disk", Duration::from_mins(1), || {
        store.stat().unwrap().counters.offloaded >= u64::from(KEYS)
    });
    kill(victim);
    until("the node is known to be gone", SOON, || store.stat().unwrap().nodes == 0);
    assert_eq!(store.get(&key(0)).unwrap(), None);
    assert!(!store.exists(&key(1)).unwrap());
    let _back = fleet.node("a", &disk);
    until("all is there again", Duration::from_mins(1), || {
        (0..KEYS).all(|n| matches!(store.get(&key(n)), Ok(Some(value)) if value == [7; 5000]))
    });
}
