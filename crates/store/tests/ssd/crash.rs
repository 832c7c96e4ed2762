//! A node with a disk in a process of its own, killed and started again.

use crate::rig::{KIB, catalog, count, disk, judge, name, offloaded, on_disks, put, until, value};
use mooncrate::{
    Address, CatalogConfig, ClientConfig, ConnectOptions, MasterOptions, NodeOptions, Running,
    Store, TierConfig, run_master, run_node,
};
use mooncrate_core::catalog::Offload;
use mooncrate_core::rng::Rng;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

const CHILD: &str = "MOONCRATE_TEST_DISK_NODE";
const REGISTRATION: Duration = Duration::from_secs(3);

struct Process {
    child: Child,
    _hears: ChildStdin,
    says: BufReader<ChildStdout>,
}

impl Process {
    fn start(master: &Address, folder: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["crash::as_a_child", "--exact", "--ignored", "--nocapture"])
            .env(CHILD, format!("{master} {}", folder.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let says = BufReader::new(child.stdout.take().unwrap());
        let hears = child.stdin.take().unwrap();
        // From here on its drop ends it.
        let mut this = Self { child, _hears: hears, says };
        let mut line = String::new();
        while !line.contains("@@ready") {
            line.clear();
            assert!(this.says.read_line(&mut line).unwrap() > 0, "the child ended");
        }
        this
    }

    /// SIGKILL, and gone when this returns.
    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Not a test of its own: what the started processes do.
#[test]
#[ignore = "started by the tests of this program"]
#[expect(clippy::disallowed_methods, reason = "a started process is told its part this way")]
fn as_a_child() {
    let Ok(part) = std::env::var(CHILD) else { return };
    let (master, folder) = part.split_once(' ').unwrap();
    let folder = Path::new(folder);
    let _running = run_node(NodeOptions {
        name: "disk".into(),
        master: master.parse::<Address>().unwrap().into(),
        listen: Some(Address::Tcp("127.0.0.1:0".into())),
        unix: Some(folder.join("node.sock")),
        segment_bytes: 16 << 20,
        tier: TierConfig { disks: vec![disk(folder, 256)], ..TierConfig::default() },
        ..NodeOptions::default()
    })
    .unwrap();
    println!("@@ready");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}

struct Cluster {
    folder: tempfile::TempDir,
    master: Running,
    address: Address,
}

impl Cluster {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let catalog = CatalogConfig {
            registration: REGISTRATION,
            silent_after: Duration::from_secs(1),
            order_retry: Duration::from_millis(200),
            put_timeout: Duration::from_secs(1),
            ..catalog(Offload::Eager)
        };
        let master = run_master(MasterOptions {
            listen: Address::Tcp("127.0.0.1:0".into()),
            state_file: Some(folder.path().join("state")),
            catalog,
            ..MasterOptions::default()
        })
        .unwrap();
        let address = master.master_address().unwrap();
        Self { folder, master, address }
    }

    fn node(&self) -> Process {
        Process::start(&self.address, self.folder.path())
    }

    fn connect(&self) -> Store {
        let client = ClientConfig { call_time: Duration::from_secs(10), ..ClientConfig::default() };
        let master = self.address.clone().into();
        Store::connect(ConnectOptions { master, client, ..ConnectOptions::default() }).unwrap()
    }
}

/// kill -9 and back: everything that was durable is there again, what was removed is not.
#[test]
fn a_killed_node_comes_back_warm() {
    let cluster = Cluster::start();
    let node = cluster.node();
    let store = cluster.connect();
    for n in 0..100 {
        put(&store, n, 64 * KIB);
    }
    until("all are on the disk", || offloaded(&store) >= 100);
    for n in 0..10 {
        assert!(store.remove(&name(n), true).unwrap());
    }
    until("they are gone", || on_disks(&store) == 90);
    node.kill();
    let _node = cluster.node();
    let store = cluster.connect();
    until("its records are back", || on_disks(&store) == 90);
    assert_eq!(count(&store, 100), 90);
    for n in 0..10 {
        assert!(store.get(&name(n)).unwrap().is_none(), "{n} was removed");
    }
    cluster.master.master().unwrap().audit().unwrap();
}

/// Killed at any moment, with puts and removals under way: no wrong byte, and no removed value comes back.
#[test]
fn a_node_may_be_killed_at_any_moment() {
    let cluster = Cluster::start();
    let seed = 5;
    let mut rng = Rng::new(seed);
    let offloaded = |store: &Store| store.stat().unwrap().counters.offloaded;
    let mut removed = Vec::new();
    let mut next = 0;
    for round in 0..6 {
        let node = cluster.node();
        let store = cluster.connect();
        until("the node is known", || store.stat().unwrap().nodes == 1);
        let before = offloaded(&store);
        let before_kill = 20 + rng.below(120);
        for _ in 0..before_kill {
            // Errors are fine: the node may just have come.
            let _ = store.put(&name(next), &value(next, 20 * KIB));
            next += 1;
            if rng.below(4) == 0 {
                let gone = rng.below(u64::from(next)) as u32;
                if let Ok(true) = store.remove(&name(gone), true) {
                    removed.push(gone);
                }
            }
        }
        // The disk takes its time; a kill before anything is there shows nothing.
        until("something is on the disk", || offloaded(&store) > before);
        node.kill();
        let node = cluster.node();
        let store = cluster.connect();
        until("the node is known", || store.stat().unwrap().nodes == 1);
        // It may be known before it has told what its disk holds.
        let some = |n: u32| matches!(store.get(&name(n)), Ok(Some(_)));
        until("something came back", || (0..next).any(some));
        for n in 0..next {
            if let Ok(Some(value)) = store.get(&name(n)) {
                judge(n, &value);
                assert!(!removed.contains(&n), "seed {seed}, round {round}: {n} was removed");
            }
        }
        node.kill();
    }
}
