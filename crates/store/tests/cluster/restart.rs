//! Masters and nodes that come back.

use crate::fleet::{Fleet, REGISTRATION, connect, judge, master, node, patiently, stamped, until};
use mooncrate::{
    Advice, ClientConfig, ConnectOptions, MasterOptions, NodeOptions, PutConfig, Store, Stored,
    run_master, run_node,
};
use mooncrate_core::LeaderEpoch;
use mooncrate_core::plan::{Evidence, Medium, SegmentOffer};
use mooncrate_wire::clock::boottime;
use mooncrate_wire::message::Mount;
use mooncrate_wire::{
    Hello, LinkKind, MasterApi as _, MasterLink, MasterPools, Masters, PoolConfig, Role,
};
use rustix::process::Signal;

const COUNT: u32 = 200;

fn name(n: u32) -> Vec<u8> {
    format!("m/{n}").into_bytes()
}

fn len(n: u32) -> usize {
    n as usize * 401
}

fn put_all(store: &Store) {
    for n in 0..COUNT {
        let replicas = 1 + (n % 2) as u8;
        let config = PutConfig { replicas, ..store.put_config() };
        store.put_parts(&name(n), &[&stamped(&name(n), n, len(n))], &config).unwrap();
    }
}

fn all_there(store: &Store) {
    for n in 0..COUNT {
        judge(&name(n), n, len(n), &store.get(&name(n)).unwrap().unwrap());
    }
}

/// M11: losing the master loses no byte; G6 in small: what was removed stays removed.
fn everything_comes_back(with_state: bool) {
    let mut fleet = Fleet::start(&["a", "b"]);
    // The first one is at a port that the system chose, where it leaves no trace.
    fleet.restart_master(true);
    let old = connect(&fleet.address, true);
    put_all(&old);
    all_there(&old);
    for n in [3, 4, 5] {
        assert!(old.remove(&name(n), false).unwrap());
        assert_eq!(old.put(&name(n), &stamped(&name(n), n, len(n))).unwrap(), Stored::New);
    }
    old.put(b"gone", b"x").unwrap();
    assert!(old.remove(b"gone", false).unwrap());
    let epoch = old.stat().unwrap().epoch;

    fleet.restart_master(with_state);
    // Locators that were handed out go on working, whatever the master does.
    all_there(&old);
    let fresh = [connect(&fleet.address, true), connect(&fleet.address, false)];
    // Without its state a master waits for nodes that it cannot know, for a serving lease.
    until("both nodes are back", 2 * REGISTRATION, || {
        let stat = fresh[0].stat().unwrap();
        stat.nodes == 2 && !stat.rebuilding && stat.objects >= u64::from(COUNT)
    });
    for store in &fresh {
        for n in 0..COUNT {
            judge(&name(n), n, len(n), &patiently(|| store.get(&name(n))).unwrap());
        }
        assert_eq!(patiently(|| store.get(b"gone")), None);
    }
    let stat = fresh[0].stat().unwrap();
    assert!(stat.epoch > epoch, "{stat:?}");
    assert_eq!((stat.objects, stat.open_puts), (COUNT.into(), 0));
    let page = fresh[0].list(b"m/", 0, 1000).unwrap();
    let twice = page.entries.iter().filter(|entry| entry.replicas == 2).count();
    assert_eq!((page.entries.len(), twice), (COUNT as usize, 100 - 2));
    // One value per key, across leaders.
    assert_eq!(patiently(|| fresh[0].put(&name(1), b"other")), Stored::AlreadyThere);
    assert_eq!(patiently(|| fresh[0].put(b"gone", b"y")), Stored::New);
    assert!(patiently(|| fresh[1].remove(&name(1), true)));
    assert_eq!(old.get(&name(1)).unwrap(), None);
    assert_eq!(old.get(b"gone").unwrap().unwrap(), b"y");
    fleet.audit();
}

#[test]
fn a_master_with_its_state_comes_back() {
    everything_comes_back(true);
}

#[test]
fn a_master_without_its_state_comes_back() {
    everything_comes_back(false);
}

/// M9: while nodes are still to announce, an unknown key is not known to be absent. Nobody hears
/// "no such key" of a key that is there, and nobody puts a second value under it.
#[test]
fn a_rebuilding_master_says_so() {
    let mut fleet = Fleet::start(&["a", "b"]);
    let old = connect(&fleet.address, true);
    put_all(&old);
    for node in &fleet.nodes {
        node.signal(Signal::STOP);
    }
    fleet.restart_master(true);
    // Calls that end before the serving leases do: a longer one would wait for the nodes.
    let client = ClientConfig { call_time: REGISTRATION / 20, ..ClientConfig::default() };
    let master = fleet.address.clone().into();
    let fresh =
        Store::connect(ConnectOptions { master, client, ..ConnectOptions::default() }).unwrap();
    let refused = fresh.get(&name(0)).map(|_| ()).unwrap_err();
    assert!(refused.to_string().contains("being rebuilt"), "{refused}");
    assert!(matches!(refused.advice(), Advice::Retry { .. }));
    let refused = fresh.put(&name(0), b"second").unwrap_err();
    assert!(refused.to_string().contains("being rebuilt"), "{refused}");
    for node in &fleet.nodes {
        node.signal(Signal::CONT);
    }
    for n in 0..COUNT {
        let found = patiently(|| fresh.get(&name(n))).expect("not lost");
        judge(&name(n), n, len(n), &found);
    }
    for n in 0..COUNT {
        assert_eq!(patiently(|| fresh.put(&name(n), b"second")), Stored::AlreadyThere);
    }
}

/// Fault row 24: a node of the same name comes back with empty memory, while clients remember what
/// it held. Its old locators are dead, the master forgets them, and the name serves again.
#[test]
fn a_node_that_comes_back_has_new_memory() {
    let mut fleet = Fleet::start(&["a"]);
    let stores = [connect(&fleet.address, true), connect(&fleet.address, false)];
    for life in 0..3_u32 {
        let value = stamped(b"k", life, 70_000);
        assert_eq!(patiently(|| stores[0].put(b"k", &value)), Stored::New);
        for store in &stores {
            judge(b"k", life, 70_000, &store.get(b"k").unwrap().unwrap());
        }
        fleet.nodes[0].kill();
        fleet.nodes.clear();
        fleet.start_node("a");
        for store in &stores {
            // The mapping of the dead process may be served for the rest of its leave.
            if let Ok(Some(found)) = store.get(b"k") {
                judge(b"k", life, 70_000, &found);
            }
        }
        until("the old memory is forgotten", 2 * REGISTRATION, || {
            stores.iter().all(|store| matches!(store.get(b"k"), Ok(None)))
        });
    }
    fleet.audit();
}

/// A mount that its node has given up reaches a later leader. That leader knows the node, and nothing of
/// what it holds: its answer to a heartbeat is no leave to serve.
#[test]
fn a_leader_that_knows_a_node_by_a_late_mount_is_told_everything() {
    let folder = tempfile::tempdir().unwrap();
    let first = run_master(master()).unwrap();
    let state = MasterOptions { state_file: Some(folder.path().join("state")), ..master() };
    run_master(MasterOptions { listen: state.listen.clone(), ..state.clone() }).unwrap().stop();
    let second = run_master(state).unwrap();
    let addresses = [first.master_address().unwrap(), second.master_address().unwrap()];
    let masters: Masters = format!("{},{}", addresses[0], addresses[1]).parse().unwrap();
    let options = NodeOptions { master: masters, ..node("late", &addresses[0], folder.path()) };
    let running = run_node(options).unwrap();
    let old = connect(&addresses[0], false);
    assert_eq!(old.put(b"k", b"old").unwrap(), Stored::New);

    let node = running.node().unwrap();
    let info = node.info().clone();
    let segments = node.segments().all();
    let offers = segments.iter().map(|segment| {
        let spec = segment.spec();
        SegmentOffer {
            segment: spec.segment,
            incarnation: spec.incarnation,
            node: node.id(),
            medium: Medium::Dram,
            bytes: spec.bytes,
            slots: spec.slots,
            host: info.host,
            zone: info.zone,
            tenant: None,
            evidence: Evidence::default(),
        }
    });
    let offers = offers.collect();
    let late = Mount { info, seen: LeaderEpoch(0), offers, fence_ms: None, draining: Vec::new() };
    let hello = Hello::new(Role::Node, LinkKind::Control, "late");
    let pools = MasterPools::new(&addresses[1].clone().into(), &hello, &PoolConfig::default());
    let answer = MasterLink::new(pools).mount(&late, boottime().deadline_in(REGISTRATION));
    assert!(answer.unwrap().unwrap().epoch > LeaderEpoch(1));
    first.stop();

    // The second leader did not wait for this node, so what it held is gone; it takes part, empty.
    let new = connect(&addresses[1], false);
    assert_eq!(patiently(|| new.put(b"k", b"new")), Stored::New);
    assert_eq!(new.get(b"k").unwrap().as_deref(), Some(&b"new"[..]));
    assert!(!old.get(b"k").is_ok_and(|found| found.as_deref() == Some(b"old")));
    second.master().unwrap().audit().unwrap();
}
