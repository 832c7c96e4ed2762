//! A client with the right to put that lies to the master about what it stored. It harms its own key; the key must
//! come back by itself (G15).

use crate::cluster::{Guarded, ask, link, within};
use mooncrate_core::Seal;
use mooncrate_core::error::Advice;
use mooncrate_core::plan::WritePlan;
use mooncrate_wire::clock::boottime;
use mooncrate_wire::message::{
    BeginWrite, DataReply, DataRequest, Locate, Open, PutEnd, PutEndItem, Reply, Request, Role,
    SealList, Signal, Write,
};
use mooncrate_wire::{Link, LinkKind};
use std::borrow::Cow;
use std::io::IoSlice;

const KEY: &[u8] = b"lied-about";
const VALUE: &[u8] = b"what was really stored";

fn put(plan: &WritePlan) -> BeginWrite<'_> {
    BeginWrite {
        locator: plan.replicas[0],
        token: plan.token,
        object: plan.object,
        epoch: plan.epoch,
        len: VALUE.len() as u64,
        label: b"\0\0\0\0\0lied-about",
    }
}

/// What the value adds up to, as the master tells whoever put it honestly.
fn right_seal(cluster: &Guarded) -> Seal {
    cluster.store("acme", false).put(b"honest", VALUE).unwrap();
    let mut control = link(LinkKind::Control, &cluster.master(), Role::Client, "acme");
    let ask = Locate { lease_ms: 0, keys: Cow::Owned(vec![&b"honest"[..]]) };
    match control.call(&Request::Locate(ask), within(10_000)).unwrap() {
        Reply::Locate(mut found) => found.remove(0).unwrap().seal,
        other => panic!("{other:?}"),
    }
}

/// Writes and publishes the value, under its right seal: an owner takes no other over TCP.
fn store_it(data: &mut Link, plan: &WritePlan, seal: Seal) {
    let request = DataRequest::Write(Write { put: put(plan) });
    match data.call_data(&request, &[IoSlice::new(VALUE)], within(10_000)).unwrap() {
        DataReply::Write(result) => result.unwrap(),
        other => panic!("{other:?}"),
    }
    let signal = Signal { locator: plan.replicas[0], token: plan.token, seal };
    ask(data, &DataRequest::Signal(signal)).unwrap();
}

/// Tells the master that the value is there, under a seal of the liar's choice.
fn lie(cluster: &Guarded, plan: &WritePlan) {
    let mut control = link(LinkKind::Control, &cluster.master(), Role::Client, "acme");
    let seals = SealList::encode(&[Seal(0x1e)]);
    let item = PutEndItem { key: KEY, token: plan.token, seals: SealList::of(&seals) };
    let end = Request::PutEnd(PutEnd { items: Cow::Owned(vec![item]) });
    match control.call(&end, within(10_000)).unwrap() {
        Reply::PutEnd(results) => assert!(results[0].is_ok(), "{results:?}"),
        other => panic!("{other:?}"),
    }
}

/// Readers of a key that was lied about hear of a miss, and the key takes a value again.
fn comes_back(cluster: &Guarded) {
    for shared_memory in [false, true] {
        let store = cluster.store("acme", shared_memory);
        assert_eq!(store.get(KEY).unwrap(), None, "shared memory: {shared_memory}");
    }
    let store = cluster.store("acme", false);
    // The key waits for the word of its owner, for some milliseconds.
    let until = within(10_000);
    while let Err(refused) = store.put(KEY, b"another value") {
        assert!(matches!(refused.advice(), Advice::Retry { .. }), "{refused}");
        assert!(!until.passed(boottime()), "{refused}");
    }
    assert_eq!(store.get(KEY).unwrap().as_deref(), Some(&b"another value"[..]));
}

/// The story: get said "the bytes are not those that were sealed", put said "already exists", for ever. The owner
/// compared its bytes with its own header, and found them good.
#[test]
fn security_a_put_that_ends_under_a_wrong_seal_blocks_no_key() {
    for dedicated in [None, Some("acme")] {
        let cluster = Guarded::start(dedicated);
        let plan = cluster.plan("acme", KEY, VALUE.len() as u64);
        store_it(&mut cluster.data("acme"), &plan, right_seal(&cluster));
        lie(&cluster, &plan);
        comes_back(&cluster);
    }
}

#[test]
fn security_a_put_that_ends_without_a_value_blocks_no_key() {
    let cluster = Guarded::start(None);
    let plan = cluster.plan("acme", KEY, VALUE.len() as u64);
    lie(&cluster, &plan);
    comes_back(&cluster);
}

/// The same with a put that was begun, over a link that stays: its range waits for the link, its key does not.
#[test]
fn security_a_put_that_ends_before_its_value_is_published_blocks_no_key() {
    let cluster = Guarded::start(None);
    let plan = cluster.plan("acme", KEY, VALUE.len() as u64);
    let mut data = cluster.data("acme");
    ask(&mut data, &DataRequest::Open(Open { put: put(&plan) })).unwrap();
    lie(&cluster, &plan);
    comes_back(&cluster);
    let seal = right_seal(&cluster);
    let signal = Signal { locator: plan.replicas[0], token: plan.token, seal };
    assert!(ask(&mut data, &DataRequest::Signal(signal)).is_err(), "published behind its back");
}
