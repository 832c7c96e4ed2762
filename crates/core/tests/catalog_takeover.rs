//! Stories of takeovers and repeated orders, each of a bug that the simulator found. What must stay
//! true: a key has one value, a removed one stays removed, and no range leaves under a lease.

#![expect(clippy::unwrap_used, reason = "a test")]

use mooncrate_core::catalog::{Catalog, Config, Ended, Mounted, Removal, Start};
use mooncrate_core::copy::{CopyDone, DrainMode};
use mooncrate_core::error::{GetError, MountError, PutError, RemoveError};
use mooncrate_core::plan::{
    Action, Announced, AnnouncedLife, AnnouncedObject, Evidence, Notice, Order, OrderResult,
    SegmentOffer,
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
        evidence: Evidence::default(),
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
    let mut catalog = Catalog::new(config(), LeaderEpoch(1), Start::New, ms(0));
    mount(&mut catalog, ms(0), A);
    catalog
}

fn takeover(nodes: &[u64]) -> Catalog {
    let expected = nodes.iter().map(|node| NodeId(*node)).collect();
    Catalog::new(config(), LeaderEpoch(2), Start::Takeover { expected, trusted: Vec::new() }, ms(0))
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
    let mut catalog = Catalog::new(config, LeaderEpoch(1), Start::New, ms(0));
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

/// The same, with an owner that never answers: its key is free when its serving lease has ended.
#[test]
fn a_dead_owner_holds_the_key_of_a_put_until_its_lease_ends() {
    let mut catalog = fresh();
    let plan = catalog.put_start(ms(0), KEY, 100, &PutConfig::default()).unwrap();
    catalog.put_revoke(ms(0), KEY, plan.token).unwrap();
    mount(&mut catalog, ms(0), B);
    let lapsed = fenced_ms();
    pass(&mut catalog, 0, lapsed - 100, &[B]);
    let again = |catalog: &mut Catalog, at| catalog.put_start(at, KEY, 100, &PutConfig::default());
    assert!(matches!(again(&mut catalog, ms(lapsed - 100)), Err(PutError::InProgress { .. })));
    pass(&mut catalog, lapsed, lapsed + 200, &[B]);
    again(&mut catalog, ms(lapsed + 200)).unwrap();
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

/// A lease was granted on what was announced; then the node told all anew. The lease stays with the entry.
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

/// When a serving lease that was granted at 0 has surely ended, in milliseconds.
fn fenced_ms() -> u64 {
    lease::guarded(config().serve_lease).as_millis() as u64
}

/// A node that mounts and says how long an earlier start of it may be readable; what it is answered.
fn mount_fenced(catalog: &mut Catalog, now: Now, offer: &SegmentOffer, left: Fence) -> Duration {
    catalog.mount(now, offer.node, std::slice::from_ref(offer)).unwrap();
    let fence = catalog.fence(now, offer.node, left);
    catalog.announce(now, offer.segment, offer.incarnation, &[], true).unwrap();
    fence
}

/// What a node knows of its earlier starts.
type Fence = Option<Duration>;

fn put_start(catalog: &mut Catalog, at: Now) -> Result<WritePlan, PutError> {
    catalog.put_start(at, KEY, 100, &PutConfig::default())
}

/// A node died and came back, empty, just before the takeover. Its announcement says nothing about
/// the keys that readers still find in the memory of the dead process (R10).
#[test]
fn a_node_new_to_all_does_not_end_the_rebuild_before_its_predecessor_is_fenced() {
    let mut catalog = takeover(&[A]);
    mount_fenced(&mut catalog, ms(0), &offer(A, 1), Some(Duration::ZERO));
    assert!(!catalog.rebuilding(), "a node without a readable predecessor ends it");

    let mut catalog = takeover(&[A]);
    let fence = mount_fenced(&mut catalog, ms(0), &offer(A, 1), None);
    let fenced = fenced_ms();
    assert_eq!(fence, Duration::from_millis(fenced));
    pass(&mut catalog, 50, fenced - 50, &[A]);
    assert!(matches!(put_start(&mut catalog, ms(fenced - 50)), Err(PutError::Rebuilding { .. })));
    pass(&mut catalog, fenced, fenced + 50, &[A]);
    put_start(&mut catalog, ms(fenced + 50)).unwrap();
}

/// Nodes of a young cluster never had a predecessor, and their first leader tells them so: the next
/// one waits for their announcements and for nothing else.
#[test]
fn a_takeover_in_a_fresh_cluster_waits_for_no_fence() {
    let mut first = Catalog::new(config(), LeaderEpoch(1), Start::New, ms(0));
    let told = mount_fenced(&mut first, ms(0), &offer(A, 1), None);
    assert_eq!(told, Duration::ZERO);
    let mut second = takeover(&[A]);
    assert_eq!(mount_fenced(&mut second, ms(1), &offer(A, 1), Some(told)), Duration::ZERO);
    put_start(&mut second, ms(2)).unwrap();
}

/// A node restarts, and the leader that saw both starts is lost. The node passes on for how long its
/// first start can be read; the new leader waits for that long, and no longer.
#[test]
fn a_node_passes_on_when_its_predecessor_is_fenced() {
    let mut first = fresh();
    pass(&mut first, 0, 1_000, &[A]);
    let left = mount_fenced(&mut first, ms(2_000), &offer(A, 2), None);
    // Last heard at 1,000: a serving lease from then on, less the 1,000 that have passed.
    assert_eq!(left, Duration::from_millis(fenced_ms() - 1_000));
    // The takeover is at 0 of another clock, half a second later.
    let left = left.saturating_sub(Duration::from_millis(500));
    let mut second = takeover(&[A]);
    let fence = mount_fenced(&mut second, ms(0), &offer(A, 2), Some(left));
    assert_eq!(fence, lease::guarded(left));
    let over = fence.as_millis() as u64;
    pass(&mut second, 50, over - 50, &[A]);
    let refused = put_start(&mut second, ms(over - 50));
    assert!(matches!(refused, Err(PutError::Rebuilding { .. })), "{refused:?}");
    // It asks again: what it was told stays as it was, and is not counted anew.
    assert!(second.fence(ms(over - 50), NodeId(A), Some(Duration::from_millis(50))) < fence);
    pass(&mut second, over, over + 200, &[A]);
    put_start(&mut second, ms(over + 200)).unwrap();
}

/// A node restarts and leaves for good. Its first start can still be read, so a leader that comes now
/// must know of it although nobody is mounted.
#[test]
fn a_mount_that_can_still_be_read_is_passed_on_after_its_node_has_left() {
    let mut catalog = fresh();
    pass(&mut catalog, 0, 1_000, &[A]);
    mount_fenced(&mut catalog, ms(1_000), &offer(A, 2), None);
    catalog.unmount(NodeId(A), &[SegmentId(A)]);
    catalog.tick(ms(1_200));
    assert_eq!(catalog.nodes().count(), 0);
    assert_eq!(catalog.holders(), [NodeId(A)]);
    catalog.tick(ms(1_000 + fenced_ms()));
    assert_eq!(catalog.holders(), []);
}

/// A segment that was added has a later number than the first one. Was: only the first one was named, and the added
/// segment of the last start counted as one of the next.
#[test]
fn a_refusal_names_the_last_number_of_all_segments() {
    let mut catalog = fresh();
    let added = SegmentOffer { segment: SegmentId(3), ..offer(A, 9) };
    catalog.mount(ms(5), NodeId(A), &[offer(A, 8), added]).unwrap();
    let refused = catalog.mount(ms(6), NodeId(A), &[offer(A, 7)]);
    assert_eq!(refused, Err(MountError::StaleIncarnation { last: Incarnation(9), over: false }));
}

/// Two processes of one name: the one that mounted last is the node, the other is not heard.
#[test]
fn an_earlier_start_is_not_current() {
    let mut catalog = fresh();
    assert_eq!(catalog.check_current(NodeId(A), Incarnation(1)), Ok(()));
    catalog.mount(ms(5), NodeId(A), &[offer(A, 2)]).unwrap();
    let refused = MountError::StaleIncarnation { last: Incarnation(2), over: false };
    assert_eq!(catalog.check_current(NodeId(A), Incarnation(1)), Err(refused));
    assert_eq!(catalog.check_current(NodeId(A), Incarnation(2)), Ok(()));
    assert_eq!(catalog.check_current(NodeId(B), Incarnation(1)), Ok(()), "an unknown node");
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
    assert_eq!(late, Err(MountError::StaleIncarnation { last: Incarnation(1), over: true }));
    assert_eq!(catalog.heartbeat(ms(over + 72), NodeId(B)), Err(MountError::UnknownNode));
    let again = catalog.mount(ms(over + 73), NodeId(B), &[offer(B, 1)]);
    assert_eq!(again, Err(MountError::StaleIncarnation { last: Incarnation(1), over: true }));
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

/// A drain outlives its master: the node says at the next one what was being drained.
#[test]
fn a_drain_goes_on_at_the_next_leader() {
    let mut first = fresh();
    put(&mut first, ms(0), 1);
    first.drain(NodeId(A), None, DrainMode::Move).unwrap();
    let drains = first.drains(NodeId(A));
    assert_eq!(drains, [(SegmentId(A), DrainMode::Move)]);

    let mut second = takeover(&[A, B]);
    mount(&mut second, ms(0), B);
    for at in [1, 2] {
        // Twice, as a node does whose announcement was cut short.
        second.mount(ms(at), NodeId(A), &[offer(A, 1)]).unwrap();
        second.resume_drains(NodeId(A), &drains);
        second.resume_drains(NodeId(B), &drains);
        second.announce(ms(at), SegmentId(A), Incarnation(1), &[], false).unwrap();
    }
    let stat = second.drain_stat(NodeId(A), None).unwrap();
    assert!(stat.draining == 1 && !stat.drained(), "not begun is not over: {stat:?}");
    second.announce(ms(3), SegmentId(A), Incarnation(1), &[held(5)], true).unwrap();
    assert_eq!(second.drains(NodeId(A)), drains);
    assert_eq!(second.drains(NodeId(B)), [], "whose segment it is not, drains nothing");
    second.tick(ms(4));
    let copies = second.take_copies();
    assert_eq!(copies.len(), 1);
    let (node, order) = &copies[0];
    assert_eq!((*node, order.target.segment), (NodeId(B), SegmentId(B)));
    second.copied(ms(5), &CopyDone::of(&order.target, true));
    let order = only_order(&mut second);
    answer(&mut second, ms(6), &order, OrderResult::Freed { next: Generation(4) });
    assert!(second.drain_stat(NodeId(A), None).unwrap().drained());

    // What this leader knows to be over stays over, whatever an old message says.
    second.undrain(NodeId(A), None).unwrap();
    second.resume_drains(NodeId(A), &drains);
    assert_eq!(second.drains(NodeId(A)), []);
    second.audit().unwrap();
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
