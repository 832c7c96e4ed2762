//! Copies from node to node in a real cluster: drains while readers run, nodes that die in the middle
//! of them, copies that outlive their first owner, segments that come and go.

use crate::fleet::{
    CALL_TIME, Fleet, Process, REGISTRATION, SLACK, catalog, connect, judge, master, node,
    patiently, segment, stamped, until,
};
use mooncrate::{
    CatalogConfig, DrainMode, MasterOptions, NodeOptions, PutConfig, Store, run_master, run_node,
};
use mooncrate_core::NodeId;
use mooncrate_wire::clock::boottime;
use rustix::process::Signal;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const LEN: usize = 200_000;

fn name(n: u32) -> String {
    format!("copy/{n}")
}

/// Stores values on one node.
fn fill(store: &Store, node: &str, count: u32) {
    let config = PutConfig { preferred: vec![segment(node)], ..store.put_config() };
    for n in 0..count {
        let value = stamped(name(n).as_bytes(), n, LEN);
        store.put_parts(name(n).as_bytes(), &[&value], &config).unwrap();
    }
}

/// Whether the value is there; if so, it is the right one.
fn is_there(store: &Store, n: u32) -> bool {
    let found = patiently(|| store.get(name(n).as_bytes()));
    if let Some(found) = &found {
        judge(name(n).as_bytes(), n, LEN, found);
    }
    found.is_some()
}

fn on_node(store: &Store, node: &str) -> u64 {
    let stat = patiently(|| store.stat());
    let rows = stat.segments.iter().filter(|row| row.offer.node == NodeId::named(node));
    rows.map(|row| row.objects).sum()
}

#[test]
fn a_drain_fails_no_reader_and_then_the_node_may_go() {
    let mut fleet = Fleet::start(&["a", "b", "c"]);
    let store = connect(&fleet.address, true);
    let count = 100;
    fill(&store, "a", count);
    assert_eq!(on_node(&store, "a"), u64::from(count));
    let (over, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for reader in 0..4 {
            let (over, reads, fleet) = (&over, &reads, &fleet);
            scope.spawn(move || {
                let store = connect(&fleet.address, reader % 2 == 0);
                let mut n = reader;
                while !over.load(Ordering::Relaxed) {
                    n = (n + 7) % count;
                    let found = store.get(name(n).as_bytes()).unwrap();
                    judge(name(n).as_bytes(), n, LEN, &found.expect("it is somewhere"));
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let begun = store.drain(NodeId::named("a"), None, DrainMode::Move).unwrap().unwrap();
        assert_eq!(begun.start_replicas, u64::from(count));
        let pause = Duration::from_millis(20);
        let last = store.drain_progress(NodeId::named("a"), None, pause).last().unwrap().unwrap();
        assert!(last.drained(), "{last:?}");
        assert_eq!((last.moved, last.dropped), (u64::from(count), 0));
        over.store(true, Ordering::Relaxed);
    });
    assert!(reads.load(Ordering::Relaxed) > 0);
    // Nothing new comes, even if somebody asks for it.
    let config = PutConfig { preferred: vec![segment("a")], ..store.put_config() };
    store.put_parts(b"new", &[b"value"], &config).unwrap();
    assert_eq!(on_node(&store, "a"), 0);
    fleet.nodes[0].kill();
    for n in 0..count {
        assert!(is_there(&store, n), "{n}");
    }
    fleet.audit();
}

/// A drain is not forgotten with its master: its node knows of it.
#[test]
fn a_drain_goes_on_after_a_restart_of_the_master() {
    let mut fleet = Fleet::start(&["a"]);
    let store = connect(&fleet.address, true);
    let a = NodeId::named("a");
    fill(&store, "a", 20);
    // There is nowhere to go yet, so nothing of it is done when the master is lost.
    let begun = store.drain(a, None, DrainMode::Move).unwrap().unwrap();
    assert_eq!(begun.left_replicas, 20);
    fleet.restart_master(true);
    fleet.start_node("b");
    // Their ranges are free only when leases of the last master are over, which takes longer.
    until("everything has moved", CALL_TIME * 10, || {
        let stat = store.drain_stat(a, None);
        matches!(stat, Ok(Some(stat)) if stat.moved == 20 && stat.left_replicas == 0)
    });
    assert_eq!((on_node(&store, "a"), on_node(&store, "b")), (0, 20));
    for n in 0..20 {
        assert!(is_there(&store, n), "{n}");
    }
    // Its end is not forgotten either.
    store.undrain(a, None).unwrap().unwrap();
    fleet.restart_master(true);
    until(
        "both nodes are back",
        CALL_TIME * 10,
        || matches!(store.stat(), Ok(stat) if stat.nodes == 2 && !stat.rebuilding),
    );
    assert_eq!(store.drain_stat(a, None).unwrap().unwrap().draining, 0);
    fleet.audit();
}

/// A fetch may take as long as a put may stay open; a node that is told to stop does not wait for it,
/// though the owner it fetches from stands still and never answers.
#[test]
fn a_stopping_node_does_not_wait_for_a_fetch() {
    let folder = tempfile::tempdir().unwrap();
    let long = CatalogConfig { put_timeout: Duration::from_mins(5), ..catalog() };
    let running = run_master(MasterOptions { catalog: long, ..master() }).unwrap();
    let address = running.master_address().unwrap();
    let mut source = Process::start(&format!("node a {address} {}", folder.path().display()));
    assert_eq!(source.word(), "ready");
    // On another machine, as it says: so it fetches over a socket.
    let elsewhere = NodeOptions { host: "elsewhere".into(), ..node("b", &address, folder.path()) };
    let target = run_node(elsewhere).unwrap();
    let store = connect(&address, false);
    fill(&store, "a", 1);
    source.signal(Signal::STOP);
    // Not there when its time is over, but under way.
    assert!(store.copy(name(0).as_bytes(), segment("b")).is_err());
    let began = boottime();
    target.stop();
    let took = boottime().since(began);
    source.signal(Signal::CONT);
    assert!(took < Duration::from_mins(1), "{took:?}");
    running.stop();
}

#[test]
fn undrained_nodes_get_values_again() {
    let fleet = Fleet::start(&["a", "b"]);
    let store = connect(&fleet.address, true);
    let a = NodeId::named("a");
    assert_eq!(store.drain(NodeId::named("nobody"), None, DrainMode::Move).unwrap(), None);
    store.drain(a, None, DrainMode::Drop).unwrap().unwrap();
    fill(&store, "a", 5);
    assert_eq!(on_node(&store, "a"), 0);
    assert_eq!(store.undrain(a, None).unwrap().unwrap().draining, 0);
    store.remove_prefix(b"copy/", true).unwrap();
    fill(&store, "a", 5);
    assert_eq!(on_node(&store, "a"), 5);
    // Dropped, not moved.
    store.drain(a, None, DrainMode::Drop).unwrap().unwrap();
    let last = store.drain_progress(a, None, Duration::from_millis(5)).last().unwrap().unwrap();
    assert_eq!((last.moved, last.dropped), (0, 5));
    assert!(!is_there(&store, 0));
    fleet.audit();
}

#[test]
fn a_copy_outlives_its_first_owner() {
    let mut fleet = Fleet::start(&["a", "b", "c"]);
    let store = connect(&fleet.address, true);
    fill(&store, "a", 3);
    store.copy(name(0).as_bytes(), segment("b")).unwrap();
    store.move_replica(name(1).as_bytes(), segment("a"), segment("c")).unwrap();
    assert_eq!((on_node(&store, "b"), on_node(&store, "c")), (1, 1));
    until("the moved copy is gone", SLACK, || on_node(&store, "a") == 2);
    fleet.nodes[0].kill();
    let other = connect(&fleet.address, false);
    assert!(is_there(&other, 0) && is_there(&other, 1));
    fleet.audit();
}

/// A node that has nothing to do lets go of the memory of another one that is gone, from which it has copied.
#[test]
fn an_idle_node_lets_go_of_the_memory_of_others() {
    let fleet = Fleet::start(&["b"]);
    let a = run_node(node("a", &fleet.address, fleet.folder.path())).unwrap();
    let store = connect(&fleet.address, true);
    fill(&store, "a", 1);
    store.copy(name(0).as_bytes(), segment("b")).unwrap();
    let maps = format!("/proc/{}/maps", fleet.nodes[0].child.id());
    let payloads = || {
        let maps = std::fs::read_to_string(&maps).unwrap();
        let lines = maps.lines().filter(|line| line.contains("mooncrate-payload"));
        let inodes = lines.map(|line| line.split_whitespace().nth(4).unwrap().to_owned());
        inodes.collect::<std::collections::BTreeSet<_>>().len()
    };
    assert_eq!(payloads(), 2, "its own, and what it copied from");
    a.stop();
    until("the memory of the other is gone", 3 * REGISTRATION + 10 * SLACK, || payloads() == 1);
    assert!(is_there(&store, 0));
}

/// The node that copies go to dies: they fail, and go elsewhere.
#[test]
fn a_drain_survives_the_death_of_a_target() {
    let mut fleet = Fleet::start(&["a", "b", "c"]);
    let store = connect(&fleet.address, true);
    fill(&store, "a", 100);
    store.drain(NodeId::named("a"), None, DrainMode::Move).unwrap().unwrap();
    fleet.nodes[1].kill();
    let patience = 3 * REGISTRATION + 10 * SLACK;
    let a = NodeId::named("a");
    until("the drain ends", patience, || {
        patiently(|| store.drain_stat(a, None)).is_some_and(|stat| stat.drained())
    });
    // What had moved to the dead node is gone with it; nothing else is, and nothing is wrong.
    let there = (0..100).filter(|n| is_there(&store, *n)).count() as u64;
    assert_eq!(there, on_node(&store, "c"));
    fleet.audit();
}

/// The node that copies come from dies: they fail, and leave nothing behind.
#[test]
fn a_drain_survives_the_death_of_its_source() {
    let mut fleet = Fleet::start(&["a", "b", "c"]);
    let store = connect(&fleet.address, true);
    fill(&store, "a", 100);
    store.drain(NodeId::named("a"), None, DrainMode::Move).unwrap().unwrap();
    fleet.nodes[0].kill();
    let patience = 3 * REGISTRATION + 10 * SLACK;
    until("the dead node is gone", patience, || on_node(&store, "a") == 0);
    let there = (0..100).filter(|n| is_there(&store, *n)).count() as u64;
    until("only whole copies are left", patience, || {
        on_node(&store, "b") + on_node(&store, "c") == there
    });
    fleet.audit();
}

#[test]
fn a_lost_node_is_made_up_for() {
    let mut fleet = Fleet::start(&["a", "b", "c"]);
    let store = connect(&fleet.address, true);
    let config = PutConfig { replicas: 2, ..store.put_config() };
    for n in 0..40 {
        let value = stamped(name(n).as_bytes(), n, LEN);
        store.put_parts(name(n).as_bytes(), &[&value], &config).unwrap();
    }
    fleet.nodes[0].kill();
    until("all have two copies again", 3 * REGISTRATION + 10 * SLACK, || {
        let page = patiently(|| store.list(b"copy/", 0, 100));
        assert_eq!(page.entries.len(), 40);
        on_node(&store, "a") == 0 && page.entries.iter().all(|entry| entry.replicas == 2)
    });
    fleet.nodes[1].kill();
    for n in 0..40 {
        assert!(is_there(&store, n), "{n}");
    }
    fleet.audit();
}

#[test]
fn segments_come_and_go_while_the_node_serves() {
    let fleet = Fleet::start(&["a", "b"]);
    let store = connect(&fleet.address, true);
    fill(&store, "a", 10);
    let a = NodeId::named("a");
    let count = || patiently(|| store.stat()).segments.iter().filter(|s| s.open).count();
    assert!(store.resize(a, 1, Some(16 << 20)).unwrap());
    until("a third segment is there", SLACK * 4, || count() == 3);
    let second = mooncrate_core::SegmentId::of(a, 1);
    store.move_replica(name(3).as_bytes(), segment("a"), second).unwrap();
    assert!(is_there(&store, 3));
    store.drain(a, Some(second), DrainMode::Move).unwrap().unwrap();
    let pause = Duration::from_millis(5);
    let last = store.drain_progress(a, Some(second), pause).last().unwrap().unwrap();
    assert_eq!((last.drained(), last.moved), (true, 1));
    assert!(store.resize(a, 1, None).unwrap());
    until("it is gone", SLACK * 4, || patiently(|| store.stat()).segments.len() == 2);
    // And again, under a new number.
    assert!(store.resize(a, 1, Some(8 << 20)).unwrap());
    until("it is back", SLACK * 4, || count() == 3);
    assert!(!store.resize(NodeId::named("nobody"), 1, None).unwrap());
    assert!((0..10).all(|n| is_there(&store, n)));
    fleet.audit();
}

/// Readers that remember where a value is tell of it: it gets copies.
#[test]
fn what_is_read_often_gains_a_copy() {
    let fleet = Fleet::start(&["a", "b"]);
    let store = connect(&fleet.address, true);
    store.put(b"hot", b"value").unwrap();
    let end = boottime().deadline_in(20 * SLACK);
    loop {
        for _ in 0..2000 {
            assert_eq!(store.get(b"hot").unwrap().unwrap(), b"value");
        }
        let page = patiently(|| store.list(b"hot", 0, 10));
        if page.entries[0].replicas == 2 {
            break;
        }
        assert!(!end.passed(boottime()), "no second copy");
    }
    fleet.audit();
}
