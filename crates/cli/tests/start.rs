//! The real binary, started as users start it: a fresh master takes puts at once, and one that lost its state waits no
//! longer than an owner may serve. Neither refuses a put that can wait.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail where they stand")]

#[expect(dead_code, reason = "each test binary uses a part of it")]
mod support;

use mooncrate::{ConnectOptions, PutConfig, Store, Stored};
use mooncrate_core::{NodeId, SegmentId};
use rustix::process::Signal;
use std::net::TcpListener;
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
