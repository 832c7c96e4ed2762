//! The real binary, started as users start it: a fresh master takes puts at once, and one that lost its state waits no
//! longer than an owner may serve. Neither refuses a put that can wait.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail where they stand")]

#[expect(dead_code, reason = "each test binary uses a part of it")]
mod support;

use mooncrate::{ConnectOptions, PutConfig, Store, Stored};
use mooncrate_core::{NodeId, SegmentId};
use rustix::process::Signal;
use std::ffi::OsString;
use std::io::Write as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use support::Server;

const OLD: &[u8] = &[1; 1000];
const NEW: &[u8] = &[2; 1000];

/// A master at an address of its own, with a home of its own.
struct Place {
    home: tempfile::TempDir,
    address: String,
}

impl Place {
    fn new() -> Self {
        // Free a moment ago, and chosen by nobody else on this machine.
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        Self { home: tempfile::tempdir().unwrap(), address: free.to_string() }
    }

    fn start(&self, args: &[&str]) -> Server {
        let home = self.home.path();
        Server::start_with(home, args, |command| {
            command.env_remove("XDG_STATE_HOME").env("HOME", home);
        })
    }

    fn master(&self) -> Server {
        self.start(&["master", "--master", &self.address, "--admin", "off"])
    }

    fn node(&self, name: &str) -> Server {
        let unix = self.home.path().join(format!("{name}.sock"));
        let args = ["node", "--master", &self.address, "--data", "127.0.0.1:0"];
        let memory = ["--segment-size", "16MiB", "--unix", unix.to_str().unwrap()];
        self.start(&[&args[..], &memory, &["--node-name", name]].concat())
    }

    fn connect(&self) -> Store {
        let master = self.address.parse().unwrap();
        Store::connect(ConnectOptions { master, ..ConnectOptions::default() }).unwrap()
    }
}

fn on(store: &Store, node: &str) -> PutConfig {
    PutConfig { preferred: vec![SegmentId::of(NodeId::named(node), 0)], ..store.put_config() }
}

fn kill(mut server: Server) {
    server.child.kill().unwrap();
    server.child.wait().unwrap();
}

/// Whether it comes to pass within the time of a call.
fn until(done: impl Fn() -> bool) -> bool {
    (0..1500).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        done()
    })
}

/// Was: refused for 20 s, because a node that nobody knows of could hold the key.
#[test]
fn a_fresh_master_takes_the_first_put() {
    let place = Place::new();
    let _master = place.master();
    let _node = place.node("a");
    let store = place.connect();
    assert_eq!(store.put(b"first", NEW).unwrap(), Stored::New);
}

/// The state was deleted by hand and an owner stands still: the put waits for the end of what that owner may serve,
/// and then nobody reads the old value, also when the owner goes on. Was: refused for 20 s.
#[test]
fn a_master_without_its_state_never_shows_two_values() {
    let place = Place::new();
    let master = place.master();
    let owner = place.node("a");
    let store = place.connect();
    assert_eq!(store.put_parts(b"key", &[OLD], &on(&store, "a")).unwrap(), Stored::New);
    let reader = place.connect();
    assert_eq!(reader.get(b"key").unwrap().unwrap(), OLD);
    owner.signal(Signal::STOP);
    kill(master);
    std::fs::remove_dir_all(place.home.path().join(".local")).unwrap();
    let _master = place.master();
    let _other = place.node("b");
    let put = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reads = scope.spawn(|| {
            let mut found = 0;
            while found < 100 {
                // Acquire: pairs with the Release below; a read that begins after the put must not see the old value.
                let replaced = put.load(Ordering::Acquire);
                let value = reader.get(b"key");
                let old = matches!(&value, Ok(Some(value)) if value == OLD);
                assert!(!(replaced && old), "two values of one key");
                found += u32::from(replaced && matches!(value, Ok(Some(_))));
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        assert_eq!(place.connect().put(b"key", NEW).unwrap(), Stored::New);
        put.store(true, Ordering::Release);
        std::thread::sleep(Duration::from_millis(100));
        owner.signal(Signal::CONT);
        reads.join().unwrap();
    });
}

/// The state files in a folder.
fn states(folder: &Path) -> Vec<PathBuf> {
    let Ok(folder) = std::fs::read_dir(folder) else { return vec![] };
    let states = folder.map(|entry| entry.unwrap().path());
    states.filter(|path| path.extension().is_some_and(|name| name == "state")).collect()
}

/// Two masters of two containers with one home and one address. Was: the second one wrote its list over the first one's,
/// whose nodes were given up after a restart.
#[test]
fn a_state_that_another_master_has_is_left_alone() {
    let place = Place::new();
    let first = place.master();
    let [state] = &states(&place.home.path().join(".local/state/mooncrate"))[..] else {
        panic!("one state file")
    };
    let kept = std::fs::read_to_string(state).unwrap();
    // Named: refused, in words that tell whose it is.
    let named = ["master", "--master", "127.0.0.1:0", "--admin", "off", "--state-file"];
    let args = [&named[..], &[state.to_str().unwrap()]].concat();
    let refused = support::run(place.home.path(), &args);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    let holder = format!("is in use by process {} on ", first.pid());
    assert!(refused.err.contains(&holder), "{refused:?}");
    // By itself: it runs, and says that it keeps nothing. The lock of a process elsewhere is as good as that of a master.
    kill(first);
    let lock = std::fs::File::options().write(true).open(format!("{}.lock", state.display()));
    let lock = lock.unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let second = place.master();
    let _node = place.node("a");
    assert_eq!(place.connect().put(b"key", NEW).unwrap(), Stored::New);
    let log = std::fs::read_to_string(place.home.path().join("master.log")).unwrap();
    assert_eq!(log.matches("no state is kept").count(), 1, "{log}");
    assert_eq!(std::fs::read_to_string(state).unwrap(), kept);
    kill(second);
}

/// Was: a home that is full refused the start, and the keys of a dead node were held for ever once it was full.
#[test]
fn a_full_home_holds_nothing_up() {
    let run = |then: &str| {
        let folder = tempfile::tempdir().unwrap();
        let script =
            format!("mkdir full && mount -t tmpfs -o size=64k,mode=700 tmpfs full && {then}");
        let mut command = Command::new("unshare");
        // A namespace of its own, so that nothing of this machine changes.
        command.args(["--mount", "sh", "-c", &script]).arg(std::env::current_exe().unwrap());
        command.current_dir(folder.path()).output()
    };
    if !run("true").is_ok_and(|output| output.status.success()) {
        eprintln!("SKIPPED a_full_home_holds_nothing_up: namespaces and mounts are needed");
        return;
    }
    let ran = run("exec \"$0\" in_a_full_home --exact --ignored --nocapture").unwrap();
    let (said, err) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success() && said.contains("1 passed"), "{said}{err}");
}

#[test]
#[ignore = "where `full` is a file system of 64 KiB: see a_full_home_holds_nothing_up"]
fn in_a_full_home() {
    let (place, full) = (Place::new(), std::env::current_dir().unwrap().join("full"));
    let home = place.home.path();
    let master = || {
        let args = ["master", "--master", &place.address, "--admin", "off"];
        Server::start_with(home, &args, |command| {
            command.env("XDG_STATE_HOME", &full).env("HOME", home);
        })
    };
    let log = || std::fs::read_to_string(home.join("master.log")).unwrap();
    let (first, next) = (full.join("mooncrate"), home.join(".local/state/mooncrate"));
    let count = || (states(&first).len(), states(&next).len());
    let running = master();
    assert_eq!(count(), (1, 0));
    let (owner, store) = (place.node("a"), place.connect());
    assert_eq!(store.put(b"key", OLD).unwrap(), Stored::New);
    // Until not one byte more is taken.
    let mut filler = std::fs::File::create(full.join("filler")).unwrap();
    let mut take_all = || while filler.write_all(&[0; 64]).is_ok() {};
    take_all();
    let _other = place.node("b");
    owner.signal(Signal::STOP);
    std::thread::sleep(Duration::from_secs(3));
    // Its lease is over; its key waits for the list, which is deleted: that needs no room.
    let put = store.put_parts(b"key", &[NEW], &on(&store, "b"));
    assert!(matches!(put, Ok(Stored::New)), "{put:?} {}", log());
    assert_eq!(count(), (0, 0), "{}", log());
    assert_eq!(log().matches("no state is kept").count(), 1, "{}", log());
    kill(running);
    // The next one finds no room there, and goes to the next folder.
    take_all();
    let running = master();
    let _later = place.node("c");
    assert!(until(|| count() == (0, 1)), "{}", log());
    assert_eq!(log().matches("no state is kept").count(), 0, "{}", log());
    kill(running);
}

/// Was: a port that the system chose, and a start that failed, left a trace each.
#[test]
fn traces_are_left_by_masters_that_can_be_followed() {
    let traces = |address: &str| {
        let all = std::fs::read_dir("/dev/shm").unwrap().map(|entry| entry.unwrap().file_name());
        let of = |name: &OsString| {
            let name = name.to_string_lossy();
            name.contains("-master-") && name.ends_with(address)
        };
        all.filter(of).count()
    };
    let place = Place::new();
    let any = place.start(&["master", "--master", "127.0.0.1:0", "--admin", "off"]);
    assert_eq!(traces(any.address("master")), 0);
    let folder = place.home.path().join("folder");
    std::fs::create_dir(&folder).unwrap();
    // A folder stands where the state is written: it fails after everything else was well.
    std::fs::create_dir(folder.join("state.new")).unwrap();
    let args = ["master", "--master", &place.address, "--admin", "off", "--state-file"];
    let state = folder.join("state");
    let failed = support::run(place.home.path(), &[&args[..], &[state.to_str().unwrap()]].concat());
    assert_eq!(failed.code, Some(1), "{failed:?}");
    assert_eq!(traces(&place.address), 0, "{failed:?}");
    let master = place.master();
    assert_eq!(traces(&place.address), 1);
    kill(master);
    assert_eq!(traces(&place.address), 1, "for its successor");
}
