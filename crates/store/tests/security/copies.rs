//! Copies in a cluster with credentials: owners fetch them from each other with proofs of their own, and
//! a client reads a copy with the grant it gets for it.

use crate::cluster::{access, any_port, security};
use mooncrate::{
    Address, CatalogConfig, ConnectOptions, DrainMode, MasterOptions, NodeOptions, PutConfig,
    Running, Store, run_master, run_node,
};
use mooncrate_core::NodeId;
use mooncrate_wire::clock::boottime;
use mooncrate_wire::message::Role;
use mooncrate_wire::{LinkConfig, PoolConfig};
use std::time::Duration;

const COUNT: u8 = 10;
const LEN: usize = 100_000;
/// Longest wait for anything, on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_mins(1);

fn node(name: &str, master: &Address) -> Running {
    let options = NodeOptions {
        name: name.into(),
        master: master.clone().into(),
        listen: Some(any_port()),
        segment_bytes: 16 << 20,
        security: security(),
        ..NodeOptions::default()
    };
    run_node(options).unwrap()
}

fn connect(master: &Address, role: Role, tenant: &str) -> Store {
    let link = LinkConfig { access: access(role, tenant), ..LinkConfig::default() };
    let links = PoolConfig { link, ..PoolConfig::default() };
    let options =
        ConnectOptions { master: master.clone().into(), links, ..ConnectOptions::default() };
    Store::connect(options).unwrap()
}

fn until(what: &str, mut so: impl FnMut() -> bool) {
    let end = boottime().deadline_in(PATIENCE);
    while !so() {
        assert!(!end.passed(boottime()), "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn all_there(store: &Store) {
    for n in 0..COUNT {
        assert_eq!(store.get(&[b'k', n]).unwrap(), Some(vec![n; LEN]), "{n}");
    }
}

#[test]
fn security_lost_copies_are_made_anew_between_nodes_that_prove_themselves() {
    let catalog =
        CatalogConfig { registration: Duration::from_secs(4), ..CatalogConfig::default() };
    let options =
        MasterOptions { listen: any_port(), catalog, security: security(), ..Default::default() };
    let master = run_master(options).unwrap();
    let at = master.master_address().unwrap();
    let (a, b) = (node("a", &at), node("b", &at));
    let acme = connect(&at, Role::Client, "acme");
    let config = PutConfig { replicas: 2, ..acme.put_config() };
    for n in 0..COUNT {
        acme.put_parts(&[b'k', n], &[&vec![n; LEN]], &config).unwrap();
    }
    let copies = |wanted: u8| {
        let page = acme.list(b"k", 0, 100).unwrap();
        assert_eq!(page.entries.len(), usize::from(COUNT));
        page.entries.iter().all(|entry| entry.replicas == wanted)
    };
    assert!(copies(2));

    // One owner goes. Its copies are made anew on the third node, which proves itself to the second.
    let c = node("c", &at);
    a.stop();
    until("all have two copies again", || copies(2));
    b.stop();
    all_there(&connect(&at, Role::Client, "acme"));
    assert!(connect(&at, Role::Client, "zeta").get(&[b'k', 0]).unwrap().is_none());

    // A drain is an admin's to ask for, and moves everything as well.
    let d = node("d", &at);
    let third = NodeId::named("c");
    let refused = acme.drain(third, None, DrainMode::Move).unwrap_err();
    assert!(refused.is_denied(), "{refused}");
    let admin = connect(&at, Role::Admin, "");
    admin.drain(third, None, DrainMode::Move).unwrap().unwrap();
    let pause = Duration::from_millis(20);
    let last = admin.drain_progress(third, None, pause).last().unwrap().unwrap();
    assert!(last.drained(), "{last:?}");
    c.stop();
    all_there(&connect(&at, Role::Client, "acme"));
    d.stop();
}
