//! Three masters on a real etcd, as processes: the leader is killed, stopped and cut off from etcd.
//! Proves G7, M9 and M11 with real parts, and fault rows 5, 6 and 9 for one etcd member.
//!
//! No time decides here: every wait is generous, and what is judged is who may do what.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail where they stand")]

#[path = "support/etcd.rs"]
mod etcd;
#[expect(dead_code, reason = "shared with tests that need other parts of it")]
mod support;

use etcd::{Etcd, free_port, installed, url};
use mooncrate::{ClientConfig, ConnectOptions, Masters, Store, Stored};
use mooncrate_core::plan::PutConfig;
use mooncrate_core::{Incarnation, NodeId, PutToken, TenantId};
use mooncrate_wire::clock::boottime;
use mooncrate_wire::message::{
    Heartbeat, Locate, PutEnd, PutEndItem, PutItem, PutStart, Remove, Reply, Request, SealList,
};
use mooncrate_wire::{Address, Hello, Link, LinkConfig, LinkKind, RefusalCode, Role};
use rustix::process::Signal;
use std::borrow::Cow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use support::{Server, ask, finish, mooncrate};
use tempfile::TempDir;

const KEYS: u32 = 60;
/// Somebody with a quota.
const TENANT: TenantId = TenantId(77);
const QUOTA: u64 = 123_456;
/// Longest wait for anything, on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(90);

struct Cluster {
    folder: TempDir,
    etcd: Etcd,
    etcd_port: u16,
    masters: Vec<Server>,
    _nodes: Vec<Server>,
    addresses: Masters,
}

impl Cluster {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let etcd_port = free_port();
        // The first one starts without etcd: it says so and waits for it.
        let first = master(folder.path(), "m1", "127.0.0.1:0", etcd_port);
        let etcd = Etcd::start(folder.path(), etcd_port);
        let mut masters = vec![first];
        for name in ["m2", "m3"] {
            masters.push(master(folder.path(), name, "127.0.0.1:0", etcd_port));
        }
        let all: Vec<&str> = masters.iter().map(|master| master.address("master")).collect();
        let addresses: Masters = all.join(",").parse().unwrap();
        let node = |name: &str| {
            let here = folder.path().join(name);
            std::fs::create_dir(&here).unwrap();
            let args = ["--data", "127.0.0.1:0", "--node-name", name, "--segment-size", "16MiB"];
            let all = addresses.to_string();
            Server::start(&here, &[&["node", "--master", &all], &args[..]].concat())
        };
        let nodes = ["a", "b", "c"].map(node).into();
        Self { folder, etcd, etcd_port, masters, _nodes: nodes, addresses }
    }

    fn connect(&self, shared_memory: bool) -> Store {
        let client = ClientConfig { call_time: Duration::from_secs(5), ..ClientConfig::default() };
        let master = self.addresses.clone();
        // As an admin: others see their own account only.
        let default = ConnectOptions::default();
        let options = ConnectOptions { master, shared_memory, client, admin: true, ..default };
        patiently("a client connects", || Store::connect(options.clone()))
    }

    /// Which master leads, as the cluster itself says.
    fn leader(&self, store: &Store) -> usize {
        let stat = patiently("the leader answers", || store.stat());
        let all = self.addresses.all();
        let leads = |address: &Address| stat.leader.ends_with(&format!(" at {address}"));
        all.iter().position(leads).unwrap_or_else(|| panic!("{:?} in {all:?}", stat.leader))
    }

    fn restart(&mut self, index: usize) {
        let at = self.addresses.all()[index].to_string();
        let name = format!("m{}", index + 1);
        self.masters[index] = master(self.folder.path(), &name, &at, self.etcd_port);
    }
}

fn master(folder: &Path, name: &str, at: &str, etcd: u16) -> Server {
    let here = folder.join(name);
    let _ = std::fs::create_dir(&here);
    let args = ["master", "--master", at, "--admin", "off", "--name", name, "--etcd", &url(etcd)];
    Server::start(&here, &args)
}

fn patiently<T, E: std::fmt::Display>(what: &str, mut call: impl FnMut() -> Result<T, E>) -> T {
    let end = boottime().deadline_in(PATIENCE);
    loop {
        match call() {
            Ok(answer) => return answer,
            Err(error) => {
                assert!(!end.passed(boottime()), "{what}: still {error}");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

fn key(n: u32) -> Vec<u8> {
    format!("f/{n}").into_bytes()
}

fn value(n: u32) -> Vec<u8> {
    (0..2000 + 37 * n).map(|at| (at ^ n.wrapping_mul(0x9e37)) as u8).collect()
}

fn all_readable(store: &Store) {
    for n in 0..KEYS {
        let found = patiently("a key comes back", || store.get(&key(n)));
        assert!(found.as_deref() == Some(&value(n)[..]), "key {n}");
    }
}

/// Reads what it knows the place of, until it is told to stop.
struct Reader {
    stop: AtomicBool,
    good: AtomicU64,
    failed: AtomicU64,
}

/// Ends the readers also when the test fails: a scope waits for its threads.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Reader {
    fn read(&self, store: &Store) {
        // Relaxed: counters and a flag that order nothing.
        for n in (0..KEYS).cycle() {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            match store.get(&key(n)) {
                Ok(found) => {
                    assert!(found.as_deref() == Some(&value(n)[..]), "wrong bytes or a miss: {n}");
                    self.good.fetch_add(1, Ordering::Relaxed);
                }
                Err(_) => drop(self.failed.fetch_add(1, Ordering::Relaxed)),
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Everything that changes something, or grants something.
fn mutations() -> Vec<Request<'static>> {
    let end = PutEndItem { key: b"zombie", token: PutToken(1), seals: SealList::of(&[0; 8]) };
    vec![
        Request::PutStart(PutStart {
            config: Cow::Owned(PutConfig::default()),
            items: Cow::Owned(vec![PutItem::new(b"zombie", 10)]),
        }),
        Request::PutEnd(PutEnd { items: Cow::Owned(vec![end]) }),
        Request::Remove(Remove { force: true, keys: Cow::Owned(vec![&b"f/0"[..]]) }),
        Request::Locate(Locate { lease_ms: 5000, keys: Cow::Owned(vec![&b"f/1"[..]]) }),
        Request::Heartbeat(Heartbeat {
            node: NodeId::named("a"),
            incarnation: Incarnation(u64::MAX),
        }),
    ]
}

fn link(address: &Address) -> Link {
    let hello = Hello::new(Role::Client, LinkKind::Control, "test");
    patiently("a link", || {
        let deadline = boottime().deadline_in(Duration::from_secs(5));
        Link::connect(address, &hello, &LinkConfig::default(), deadline)
    })
}

fn is_not_leader(reply: &Reply) -> bool {
    matches!(reply, Reply::Refuse(refusal) if refusal.code == RefusalCode::NotLeader)
}

/// A put that succeeds under whoever leads.
fn put_somewhere(store: &Store, name: &str) {
    let stored = patiently("a put under the new leader", || store.put(name.as_bytes(), b"new"));
    assert!(matches!(stored, Stored::New | Stored::AlreadyThere));
}

#[test]
fn three_masters_on_etcd_survive_their_leader() {
    if !installed() {
        eprintln!("SKIPPED three_masters_on_etcd_survive_their_leader: etcd is not installed");
        return;
    }
    let mut cluster = Cluster::start();
    let stores = [cluster.connect(true), cluster.connect(false)];
    for n in 0..KEYS {
        patiently("a put", || stores[0].put(&key(n), &value(n)));
    }
    for store in &stores {
        all_readable(store);
    }
    let new = || AtomicU64::new(0);
    let reader = Reader { stop: AtomicBool::new(false), good: new(), failed: new() };
    std::thread::scope(|scope| {
        for store in &stores {
            scope.spawn(|| reader.read(store));
        }
        let _stop = Stop(&reader.stop);
        let asked = cluster.connect(true);
        names_are_unique(&cluster, &asked);
        patiently("a quota is set", || asked.set_quota(TENANT, Some(QUOTA)));
        kill_the_leader(&mut cluster, &asked);
        quota_is_known(&asked);
        stop_the_leader(&cluster, &asked);
        quota_is_known(&asked);
        stop_etcd(&cluster, &asked);
    });
    let (good, failed) = (reader.good.into_inner(), reader.failed.into_inner());
    eprintln!("reads with remembered locators: {good} good, {failed} failed, 0 wrong");
    assert!(good > 0);
}

/// What one leader was told, the next one knows.
fn quota_is_known(store: &Store) {
    let tenants = patiently("the leader answers", || store.stat()).tenants;
    let quota = tenants.iter().find(|row| row.tenant == TENANT).and_then(|row| row.quota);
    assert_eq!(quota, Some(QUOTA));
}

fn names_are_unique(cluster: &Cluster, store: &Store) {
    let taken = format!("m{}", cluster.leader(store) + 1);
    let mut second = mooncrate(cluster.folder.path());
    second.args(["master", "--master", "127.0.0.1:0", "--admin", "off", "--name", &taken]);
    second.args(["--etcd", &url(cluster.etcd_port)]);
    let said = support::answer(&finish(&mut second, b""));
    assert_eq!(said.code, Some(1), "{}", said.err);
    assert!(
        said.err.contains(&format!("a master named {taken} is running already")),
        "{}",
        said.err
    );
}

fn kill_the_leader(cluster: &mut Cluster, store: &Store) {
    let old = cluster.leader(store);
    let epoch = store.stat().map(|stat| stat.epoch);
    cluster.masters[old].child.kill().unwrap();
    cluster.masters[old].child.wait().unwrap();
    put_somewhere(store, "after the kill");
    let now = patiently("the leader answers", || store.stat());
    assert!(epoch.is_err() || now.epoch > epoch.unwrap());
    all_readable(&cluster.connect(false));
    cluster.restart(old);
    // A command that names all masters finds the leader, one that names a standby is told where.
    let (here, all) = (cluster.folder.path(), cluster.addresses.to_string());
    let found = patiently("the command finds the leader", || {
        let said = ask(here, &all, &["get", "f/7"], b"");
        if said.code == Some(0) { Ok(said.out) } else { Err(said.err) }
    });
    assert!(found == value(7));
}

/// Fault row 6. Requests that wait in the sockets of the stopped leader are the first thing it meets
/// when it wakes; none of them may be carried out.
fn stop_the_leader(cluster: &Cluster, store: &Store) {
    let old = cluster.leader(store);
    let address = &cluster.addresses.all()[old];
    let mut links: Vec<Link> = mutations().iter().map(|_| link(address)).collect();
    let epoch = patiently("the leader answers", || store.stat()).epoch;
    cluster.masters[old].signal(Signal::STOP);
    let soon = boottime().deadline_in(PATIENCE);
    // Only when its term is over by everybody's reckoning: another one leads.
    let other = patiently("another one leads", || match store.stat() {
        Ok(stat) if stat.epoch > epoch => Ok(stat.epoch),
        Ok(stat) => Err(format!("epoch {}", stat.epoch.0)),
        Err(error) => Err(error.to_string()),
    });
    put_somewhere(store, "after the stop");
    for (link, request) in links.iter_mut().zip(&mutations()) {
        link.send(request, soon).unwrap();
    }
    cluster.masters[old].signal(Signal::CONT);
    for (link, request) in links.iter_mut().zip(&mutations()) {
        let (_, reply) = link.recv(soon).unwrap();
        assert!(is_not_leader(&reply), "{:?} was answered by {reply:?}", request.kind());
    }
    assert!(other > epoch);
    all_readable(&cluster.connect(true));
    let gone = patiently("the zombie stored nothing", || store.get(b"zombie"));
    assert_eq!(gone, None);
}

/// A leader that etcd does not answer steps down, and comes back when etcd does.
fn stop_etcd(cluster: &Cluster, store: &Store) {
    let old = cluster.leader(store);
    let mut link = link(&cluster.addresses.all()[old]);
    cluster.etcd.signal(Signal::STOP);
    patiently("the leader steps down by itself", || {
        let deadline = boottime().deadline_in(Duration::from_secs(5));
        let request = &mutations()[3];
        link.send(request, deadline).unwrap();
        let (_, reply) = link.recv(deadline).unwrap();
        if is_not_leader(&reply) { Ok(()) } else { Err(format!("{reply:?}")) }
    });
    cluster.etcd.signal(Signal::CONT);
    put_somewhere(store, "after etcd came back");
    all_readable(&cluster.connect(true));
}
