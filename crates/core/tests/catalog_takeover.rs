//! Stories of takeovers and repeated orders, each of a bug that the simulator found. What must stay
//! true: a key has one value, a removed one stays removed, and no range leaves under a lease.

#![expect(clippy::unwrap_used, reason = "a test")]

use mooncrate_core::catalog::{Catalog, Config, Ended, Mounted, Removal, Start};
use mooncrate_core::error::{GetError, MountError, PutError, RemoveError};
use mooncrate_core::plan::{
    Action, Announced, AnnouncedLife, AnnouncedObject, Notice, Order, OrderResult, SegmentOffer,
};
use mooncrate_core::{
    Extent, Generation, HostId, Incarnation, Label, LeaderEpoch, Medium, NodeId, Now, ObjectId,
    PutConfig, Seal, SegmentId, Slot, WritePlan, ZoneId, lease,
};
use std::time::Duration;

const KEY: &[u8] = b"key";
const A: u64 = 1;
const B: u64 = 2;

fn config() -> Config {
    Config { order_retry: Duration::from_millis(100), ..Config::default() }
}

fn ms(ms: u64) -> Now {
    Now(1_000_000_000).plus(Duration::from_millis(ms))
}

fn offer(node: u64, incarnation: u64) -> SegmentOffer {
    SegmentOffer {
        segment: SegmentId(node),
        incarnation: Incarnation(incarnation),
        node: NodeId(node),
        medium: Medium::Dram,
        bytes: 4096,
        slots: 8,
        host: HostId(node),
        zone: ZoneId(0),
        tenant: None,
    }
}

/// A node mounts and has nothing to tell.
fn mount(catalog: &mut Catalog, now: Now, node: u64) {
    let offer = offer(node, 1);
    let mounted = catalog.mount(now, NodeId(node), std::slice::from_ref(&offer)).unwrap();
    assert_eq!(mounted, [Mounted::Announce]);
    catalog.announce(now, offer.segment, offer.incarnation, &[], true).unwrap();
}

fn fresh() -> Catalog {
    let mut catalog = Catalog::new(config(), LeaderEpoch(1), Start::Fresh, ms(0));
    mount(&mut catalog, ms(0), A);
    catalog
}

fn takeover(nodes: &[u64]) -> Catalog {
    let expected = nodes.iter().map(|node| NodeId(*node)).collect();
    Catalog::new(config(), LeaderEpoch(2), Start::Takeover { expected }, ms(0))
}

fn put(catalog: &mut Catalog, now: Now, replicas: u8) -> WritePlan {
    let config = PutConfig { replicas, ..PutConfig::default() };
    let plan = catalog.put_start(now, KEY, 100, &config).unwrap();
    catalog.put_end(now, KEY, plan.token, &[Seal(7)]).unwrap();
    plan
}

/// An object of the last leader in slot 0.
fn held(sequence: u64) -> Announced {
    let object = ObjectId { epoch: LeaderEpoch(1), sequence };
    let label = Label::plain(KEY.into()).unwrap();
    Announced {
        slot: Slot(0),
        generation: Generation(3),
        life: Some(AnnouncedLife {
            extent: Extent::new(0, 128).unwrap(),
            object: Some(AnnouncedObject { label, object, len: 100, seal: Seal(7) }),
        }),
    }
}

fn answer(catalog: &mut Catalog, now: Now, order: &Order, result: OrderResult) {
    let Order { segment, incarnation, slot, generation, .. } = *order;
    catalog.notice(now, &Notice { segment, incarnation, slot, generation, result });
}

fn only_order(catalog: &mut Catalog) -> Order {
    let orders = catalog.take_orders();
    assert_eq!(orders.len(), 1, "{orders:?}");
    orders[0].1
}

/// Time passes as in a live cluster: with heartbeats and ticks.
fn pass(catalog: &mut Catalog, from: u64, to: u64, nodes: &[u64]) {
    for at in (from..=to).step_by(50) {
        for node in nodes {
            let _ = catalog.heartbeat(ms(at), NodeId(*node));
        }
        catalog.tick(ms(at));
    }
}

/// The owner counts from the first order; a second full wait would start its time anew.
#[test]
fn a_settled_retire_order_is_repeated_without_its_wait() {
    let mut catalog = fresh();
    put(&mut catalog, ms(0), 1);
    catalog.locate(ms(0), KEY, 5_000).unwrap();
    assert!(matches!(catalog.remove(ms(0), KEY, true), Ok(Removal::Waiting(_))));
    let first = only_order(&mut catalog);
    let Action::Retire { free_after_ms } = first.action else { panic!("{first:?}") };
    assert!(free_after_ms >= 5_000);

    pass(&mut catalog, 0, 100, &[A]);
    assert_eq!(only_order(&mut catalog).action, first.action, "nobody has answered yet");
    answer(&mut catalog, ms(110), &first, OrderResult::Waiting);
    pass(&mut catalog, 150, 250, &[A]);
    assert_eq!(only_order(&mut catalog).action, Action::Retire { free_after_ms: 0 });
}

/// Two copies of an eviction were on their way: the first met a pin, the object was spared and
/// leased, and the second freed it under the lease (G5).
#[test]
fn an_eviction_that_was_repeated_is_carried_through() {
    let config = Config { high_permille: 100, low_permille: 20, ..config() };
    let mut catalog = Catalog::new(config, LeaderEpoch(1), Start::Fresh, ms(0));
    mount(&mut catalog, ms(0), A);
    let config = PutConfig::default();
    let plan = catalog.put_start(ms(0), KEY, 1000, &config).unwrap();
    catalog.put_end(ms(0), KEY, plan.token, &[Seal(7)]).unwrap();
    pass(&mut catalog, 0, 0, &[A]);
    let evict = only_order(&mut catalog);
    assert_eq!(evict.action, Action::Evict);

    // The only copy met a pin: the object stays, and can be leased.
    let mut spared = OrderResult::Pinned;
    answer(&mut catalog, ms(10), &evict, spared);
    catalog.locate(ms(10), KEY, 0).unwrap();
    pass(&mut catalog, 50, 50, &[A]);
    assert_eq!(only_order(&mut catalog).action, Action::Evict, "tried again");

    // No answer: the second copy ends it for good, and a late answer to the first changes nothing.
    pass(&mut catalog, 100, 150, &[A]);
    let again = only_order(&mut catalog);
    assert_eq!(again.action, Action::Retire { free_after_ms: 0 });
    answer(&mut catalog, ms(160), &evict, spared);
    assert_eq!(catalog.locate(ms(160), KEY, 5_000), Err(GetError::NotFound));
    spared = OrderResult::Freed { next: Generation(1) };
    answer(&mut catalog, ms(170), &again, spared);
    assert!(catalog.is_empty());
    catalog.audit().unwrap();
}

/// A put was given up after an owner had published its copy, and its key was put again; a takeover
/// then brought the first value back beside the second (C2).
#[test]
fn a_put_that_was_given_up_keeps_its_key_until_the_owners_know() {
    let mut catalog = fresh();
    mount(&mut catalog, ms(0), B);
    let two = PutConfig { replicas: 2, ..PutConfig::default() };
    let plan = catalog.put_start(ms(0), KEY, 100, &two).unwrap();
    catalog.put_revoke(ms(0), KEY, plan.token).unwrap();
    assert_eq!(catalog.open_puts(), 0);
    let again = |catalog: &mut Catalog| catalog.put_start(ms(1), KEY, 100, &two);
    assert!(matches!(again(&mut catalog), Err(PutError::InProgress { .. })));
    assert_eq!(catalog.put_end(ms(1), KEY, plan.token, &[Seal(7)]), Err(PutError::NoSuchPut));
    let orders = catalog.take_orders();
    assert_eq!(orders.len(), 2);
    // One owner has freed its copy; the other keeps the range, but nothing can be published there.
    let freed = OrderResult::Freed { next: Generation(1) };
    answer(&mut catalog, ms(1), &orders[0].1, freed);
    assert!(matches!(again(&mut catalog), Err(PutError::InProgress { .. })));
    answer(&mut catalog, ms(1), &orders[1].1, OrderResult::Waiting);
    again(&mut catalog).unwrap();
    catalog.audit().unwrap();
}

/// The same, with an owner that never answers: its key is free when the node is gone.
#[test]
fn a_dead_owner_holds_the_key_of_a_put_until_it_is_gone() {
    let mut catalog = fresh();
    let plan = catalog.put_start(ms(0), KEY, 100, &PutConfig::default()).unwrap();
    catalog.put_revoke(ms(0), KEY, plan.token).unwrap();
    mount(&mut catalog, ms(0), B);
    let gone = lease::guarded(config().registration).as_millis() as u64;
    pass(&mut catalog, 0, gone - 100, &[B]);
    let again = |catalog: &mut Catalog, at| catalog.put_start(at, KEY, 100, &PutConfig::default());
    assert!(matches!(again(&mut catalog, ms(gone - 100)), Err(PutError::InProgress { .. })));
    pass(&mut catalog, gone, gone + 200, &[B]);
    again(&mut catalog, ms(gone + 200)).unwrap();
    catalog.audit().unwrap();
}

/// A copy that was not announced yet brought a removed value back (G6).
#[test]
fn nothing_is_removed_before_all_nodes_have_announced() {
    let mut catalog = takeover(&[A, B]);
    for node in [A, B] {
        catalog.mount(ms(0), NodeId(node), &[offer(node, 1)]).unwrap();
    }
    catalog.announce(ms(1), SegmentId(A), Incarnation(1), &[held(5)], true).unwrap();
    assert_eq!(catalog.locate(ms(2), KEY, 0).unwrap().replicas.len(), 1, "served at once");
    assert!(matches!(catalog.remove(ms(2), KEY, true), Err(RemoveError::Rebuilding { .. })));
    catalog.announce(ms(3), SegmentId(B), Incarnation(1), &[held(5)], true).unwrap();
    assert!(matches!(catalog.remove(ms(4), KEY, true), Ok(Removal::Waiting(_))));
    assert_eq!(catalog.take_orders().len(), 2, "every copy goes");
}

/// An owner answered an abort between two pages; the range was freed before the allocator knew it.
#[test]
fn a_notice_before_the_last_page_waits_for_the_order_to_be_repeated() {
    let mut catalog = takeover(&[A]);
    catalog.mount(ms(0), NodeId(A), &[offer(A, 1)]).unwrap();
    let writing = Announced {
        life: Some(AnnouncedLife { extent: Extent::new(0, 128).unwrap(), object: None }),
        ..held(1)
    };
    catalog.announce(ms(1), SegmentId(A), Incarnation(1), &[writing], false).unwrap();
    let abort = only_order(&mut catalog);
    let freed = OrderResult::Freed { next: Generation(4) };
    answer(&mut catalog, ms(2), &abort, freed);
    catalog.announce(ms(3), SegmentId(A), Incarnation(1), &[], true).unwrap();
    catalog.audit().unwrap();
    assert_eq!(catalog.segments()[0].ending, 128);
    pass(&mut catalog, 50, 150, &[A]);
    let again = only_order(&mut catalog);
    assert_eq!(again, abort);
    answer(&mut catalog, ms(160), &again, freed);
    assert_eq!(catalog.segments()[0].free, 4096);
}

/// What was announced is served before the rest is: a rebuild of ten million objects takes seconds.
#[test]
fn announced_objects_are_found_before_the_last_page() {
    let mut catalog = takeover(&[A]);
    catalog.mount(ms(0), NodeId(A), &[offer(A, 1)]).unwrap();
    catalog.announce(ms(1), SegmentId(A), Incarnation(1), &[held(5)], false).unwrap();
    let found = catalog.locate(ms(2), KEY, 0).unwrap();
    assert_eq!((found.replicas.len(), found.replicas[0].segment), (1, SegmentId(A)));
    assert!(matches!(catalog.locate(ms(2), b"other", 0), Err(GetError::Rebuilding { .. })));
    assert!(catalog.rebuilding());
    catalog.announce(ms(3), SegmentId(A), Incarnation(1), &[], true).unwrap();
    assert!(!catalog.rebuilding());
    catalog.audit().unwrap();
}

/// A node started over while its first announcement was being put in order: what was in order belongs
/// to a book that is gone, and must not open the new one.
#[test]
fn an_announcement_that_was_given_up_opens_nothing() {
    let mut catalog = takeover(&[A]);
    catalog.mount(ms(0), NodeId(A), &[offer(A, 1)]).unwrap();
    catalog.announce(ms(1), SegmentId(A), Incarnation(1), &[held(5)], false).unwrap();
    let told = catalog.all_told(SegmentId(A), Incarnation(1)).unwrap().unwrap();
    assert!(catalog.all_told(SegmentId(A), Incarnation(1)).is_err(), "all was told once");
    catalog.mount(ms(2), NodeId(A), &[offer(A, 1)]).unwrap();
    assert_eq!(catalog.open_segment(told.build().unwrap()), Err(MountError::UnknownNode));
    assert!(catalog.rebuilding());
    catalog.announce(ms(3), SegmentId(A), Incarnation(1), &[held(5)], true).unwrap();
    assert!(!catalog.rebuilding());
    catalog.audit().unwrap();
}

/// A lease was granted on what was announced; then the node told all anew, and the lease was lost with
/// the book. The grace that follows covers it.
#[test]
fn a_lease_outlives_an_announcement_that_starts_over() {
    let mut catalog = takeover(&[A]);
    catalog.mount(ms(0), NodeId(A), &[offer(A, 1)]).unwrap();
    catalog.announce(ms(1), SegmentId(A), Incarnation(1), &[held(5)], false).unwrap();
    assert_eq!(catalog.locate(ms(5000), KEY, 10_000).unwrap().lease_ms, 10_000);
    catalog.mount(ms(6000), NodeId(A), &[offer(A, 1)]).unwrap();
    catalog.announce(ms(6001), SegmentId(A), Incarnation(1), &[held(5)], true).unwrap();
    catalog.remove(ms(6002), KEY, true).unwrap();
    let order = only_order(&mut catalog);
    assert!(
        matches!(order.action, Action::Retire { free_after_ms: 8_998.. }),
        "the lease ends at 15 s: {order:?}"
    );
}

/// Whoever announces is heard: a long announcement does not cost a node its place.
#[test]
fn a_node_that_announces_is_not_gone() {
    let mut catalog = takeover(&[A]);
    catalog.mount(ms(0), NodeId(A), &[offer(A, 1)]).unwrap();
    let gone_after = 21_000;
    for at in (0..3 * gone_after).step_by(100) {
        catalog.announce(ms(at), SegmentId(A), Incarnation(1), &[], false).unwrap();
        catalog.tick(ms(at));
    }
    assert!(catalog.knows(NodeId(A)));
}

/// A node died and came back, empty, just before the takeover. Its announcement says nothing about
/// the keys that readers still find in the memory of the dead process (R10).
#[test]
fn a_young_node_does_not_end_the_rebuild_before_its_predecessor_is_fenced() {
    let mut catalog = takeover(&[A]);
    mount(&mut catalog, ms(0), A);
    assert!(!catalog.rebuilding(), "an old node ends it");

    let mut catalog = takeover(&[A]);
    catalog.mount(ms(0), NodeId(A), &[offer(A, 1)]).unwrap();
    catalog.young(NodeId(A));
    catalog.announce(ms(1), SegmentId(A), Incarnation(1), &[], true).unwrap();
    let put = |catalog: &mut Catalog, at| catalog.put_start(at, KEY, 100, &PutConfig::default());
    let fenced = lease::guarded(config().registration / 2).as_millis() as u64;
    pass(&mut catalog, 50, fenced - 50, &[A]);
    assert!(matches!(put(&mut catalog, ms(fenced - 50)), Err(PutError::Rebuilding { .. })));
    pass(&mut catalog, fenced, fenced + 50, &[A]);
    put(&mut catalog, ms(fenced + 50)).unwrap();
}

/// A node with objects reached the new leader after that had stopped waiting for it. Its keys may
/// have other values by then, so it must come back empty (C2).
#[test]
fn who_comes_too_late_must_come_back_empty() {
    let mut catalog = takeover(&[A, B]);
    mount(&mut catalog, ms(0), A);
    let over = lease::guarded(config().registration).as_millis() as u64;
    pass(&mut catalog, 50, over + 50, &[A]);
    assert!(!catalog.rebuilding());
    put(&mut catalog, ms(over + 60), 1);
    catalog.mount(ms(over + 70), NodeId(B), &[offer(B, 1)]).unwrap();
    let late = catalog.announce(ms(over + 71), SegmentId(B), Incarnation(1), &[held(5)], true);
    assert_eq!(late, Err(MountError::StaleIncarnation));
    assert_eq!(catalog.heartbeat(ms(over + 72), NodeId(B)), Err(MountError::UnknownNode));
    let again = catalog.mount(ms(over + 73), NodeId(B), &[offer(B, 1)]);
    assert_eq!(again, Err(MountError::StaleIncarnation));
    catalog.mount(ms(over + 74), NodeId(B), &[offer(B, 2)]).unwrap();
    catalog.announce(ms(over + 75), SegmentId(B), Incarnation(2), &[], true).unwrap();
    assert_eq!(catalog.counters().announced_dropped, 0);
    catalog.audit().unwrap();
}

/// Two leaders die in a row. The second one had heard of one node only; what it leaves behind must
/// still name the other, or the third would take that node's keys for absent (M9).
#[test]
fn a_leader_passes_on_whom_it_still_waits_for() {
    let mut second = takeover(&[A, B]);
    mount(&mut second, ms(1), A);
    assert_eq!(second.nodes().collect::<Vec<_>>(), [NodeId(A)]);
    assert_eq!(second.holders(), [NodeId(A), NodeId(B)]);
    // When the wait is over, a node that never came has given everything up.
    let over = ms(1).plus(lease::guarded(config().registration));
    second.tick(ms(2));
    second.heartbeat(over, NodeId(A)).unwrap();
    second.tick(over);
    assert_eq!(second.holders(), [NodeId(A)]);
}

/// A leader died while it ended an upsert, and its successor confirmed the new
/// value at once, while readers that remembered the old one still found it.
#[test]
fn an_upsert_of_the_last_leader_is_confirmed_when_the_old_value_is_gone() {
    let plan = put(&mut fresh(), ms(0), 1);
    let mut catalog = takeover(&[A, B]);
    for node in [A, B] {
        catalog.mount(ms(1), NodeId(node), &[offer(node, 1)]).unwrap();
    }
    let ended = |catalog: &mut Catalog| catalog.put_end(ms(2), KEY, plan.token, &[Seal(7)]);
    let new = held(plan.object.sequence);
    catalog.announce(ms(1), SegmentId(A), Incarnation(1), &[new], true).unwrap();
    assert!(matches!(ended(&mut catalog), Err(PutError::Rebuilding { .. })));
    let old = held(plan.object.sequence - 1);
    catalog.announce(ms(1), SegmentId(B), Incarnation(1), &[old], true).unwrap();
    assert!(matches!(ended(&mut catalog), Err(PutError::Replacing { .. })));
    let order = only_order(&mut catalog);
    assert_eq!(order.segment, SegmentId(B));
    answer(&mut catalog, ms(3), &order, OrderResult::Waiting);
    assert_eq!(ended(&mut catalog), Ok(Ended::Done));
}

/// A master that stood still for longer than the registration has heard nobody, which is its own fault;
/// one that runs and hears nobody counts its nodes out.
#[test]
fn a_master_that_stood_still_forgets_nobody() {
    let mut catalog = fresh();
    let plan = put(&mut catalog, ms(0), 1);
    catalog.tick(ms(60_000));
    assert!(catalog.knows(NodeId(A)));
    assert_eq!(catalog.locate(ms(60_000), KEY, 0).unwrap().object, plan.object);
    pass(&mut catalog, 60_000, 82_000, &[]);
    assert!(!catalog.knows(NodeId(A)));
}
