//! Memory that was without a master for long, and masters that know nothing. What must stay true: what was
//! removed, replaced or given up stays gone; what can be proved current comes back.

#![expect(clippy::unwrap_used, reason = "a test")]

use mooncrate_core::catalog::{Catalog, Config, Removal, Start, Trusted};
use mooncrate_core::error::{GetError, MountError, PutError, RemoveError};
use mooncrate_core::label::StripeOf;
use mooncrate_core::plan::{
    Action, Announced, AnnouncedLife, AnnouncedObject, Evidence, Notice, Order, OrderResult,
    SegmentOffer,
};
use mooncrate_core::{
    Extent, Generation, HostId, Incarnation, Label, LeaderEpoch, Medium, NodeId, Now, ObjectId,
    PutConfig, Seal, SegmentId, Slot, Stamp, Striping, ZoneId,
};
use std::time::Duration;

fn ms(ms: u64) -> Now {
    Now(1_000_000_000).plus(Duration::from_millis(ms))
}

/// The memory of a node, whose serving lease has ended if it has `lapsed`.
fn offer(node: u64, incarnation: u64, lapsed: bool) -> SegmentOffer {
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
        evidence: Evidence { lapsed, ..Evidence::default() },
    }
}

/// An object of the first leader, in a slot of its number.
fn held(slot: u32, key: &[u8]) -> Announced {
    let object = ObjectId { epoch: LeaderEpoch(1), sequence: u64::from(slot) + 1 };
    let label = Label::plain(key.into()).unwrap();
    let extent = Extent::new(u64::from(slot) * 128, 128).unwrap();
    let object = Some(AnnouncedObject { label, object, len: 100, seal: Seal(7) });
    let life = Some(AnnouncedLife { extent, object });
    Announced { slot: Slot(slot), generation: Generation(3), life }
}

fn mount(
    catalog: &mut Catalog,
    now: Now,
    offer: &SegmentOffer,
    page: &[Announced],
) -> Result<(), MountError> {
    catalog.mount(now, offer.node, std::slice::from_ref(offer))?;
    catalog.announce(now, offer.segment, offer.incarnation, page, true)
}

fn stale(last: u64) -> MountError {
    MountError::StaleIncarnation { last: Incarnation(last), over: true }
}

fn write_list(catalog: &mut Catalog) {
    let list = catalog.trusted();
    catalog.trust_writing(&list);
    catalog.trust_written(&list);
}

/// A leader that follows another one, with a list of memory by node and incarnation.
fn takeover(nodes: &[u64], list: &[(u64, u64)]) -> Catalog {
    let expected = nodes.iter().map(|node| NodeId(*node)).collect();
    let trusted = list.iter().map(|(node, incarnation)| Trusted {
        segment: SegmentId(*node),
        stamp: Stamp(*incarnation),
    });
    let start = Start::Takeover { expected, trusted: trusted.collect() };
    Catalog::new(Config::default(), LeaderEpoch(2), start, ms(0))
}

/// These nodes are there, another one has not told all in time, and the list does not name it any more.
fn give_up_waiting(catalog: &mut Catalog, here: &[u64]) {
    for at in (0..25_000).step_by(500) {
        for node in here {
            catalog.heartbeat(ms(at), NodeId(*node)).unwrap();
        }
        catalog.tick(ms(at));
    }
    let refused = catalog.remove(ms(25_000), b"gone", false);
    assert!(matches!(refused, Err(RemoveError::Rebuilding { .. })), "still listed: {refused:?}");
    write_list(catalog);
    catalog.tick(ms(25_001));
}

fn put(catalog: &mut Catalog, now: Now, key: &[u8]) -> Result<(), PutError> {
    let plan = catalog.put_start(now, key, 100, &PutConfig::default())?;
    catalog.put_end(now, key, plan.token, &[Seal(9)]).map(drop)
}

/// A master that remembers nothing, while the owner of the key is stopped: an unknown key may still be read
/// there until the owner's serving lease ends, so it cannot be put or removed yet, and not longer.
#[test]
fn a_master_that_knows_nothing_takes_no_key_for_absent() {
    let mut catalog = Catalog::new(Config::default(), LeaderEpoch(2), Start::Unknown, ms(0));
    mount(&mut catalog, ms(1), &offer(2, 1, false), &[]).unwrap();
    for at in [2, 500, 1_500, 2_500] {
        catalog.heartbeat(ms(at), NodeId(2)).unwrap();
        catalog.tick(ms(at));
        // The error says how long, for callers whose deadline is earlier.
        let left = 2_575 - u32::try_from(at).unwrap();
        let refused = put(&mut catalog, ms(at), b"key");
        assert_eq!(refused, Err(PutError::Rebuilding { after_ms: left }), "{at}");
        let refused = catalog.remove(ms(at), b"key", false);
        assert_eq!(refused, Err(RemoveError::Rebuilding { after_ms: left }), "{at}");
        // A master that comes meanwhile must not know more than this one.
        assert!(catalog.waits_for_anybody(), "{at}: nothing is written down yet");
    }
    catalog.heartbeat(ms(2_576), NodeId(2)).unwrap();
    catalog.tick(ms(2_576));
    assert!(!catalog.waits_for_anybody());
    put(&mut catalog, ms(2_577), b"key").unwrap();
    // The owner wakes up. What it holds was replaced meanwhile, so it starts over.
    let back = mount(&mut catalog, ms(2_600), &offer(1, 1, true), &[held(0, b"key")]);
    assert_eq!(back, Err(stale(1)));
}

/// A node that has come in time and has much to tell is waited for beyond the end of the leases.
#[test]
fn a_node_that_is_telling_is_waited_for() {
    let mut catalog = Catalog::new(Config::default(), LeaderEpoch(2), Start::Unknown, ms(0));
    let (long, page) = (offer(1, 1, false), [held(0, b"first")]);
    catalog.mount(ms(1), long.node, std::slice::from_ref(&long)).unwrap();
    catalog.announce(ms(1), long.segment, long.incarnation, &page, false).unwrap();
    mount(&mut catalog, ms(1), &offer(2, 1, false), &[]).unwrap();
    catalog.tick(ms(9_000));
    let refused = put(&mut catalog, ms(9_000), b"second");
    assert!(matches!(refused, Err(PutError::Rebuilding { .. })), "{refused:?}");
    catalog
        .announce(ms(9_001), long.segment, long.incarnation, &[held(1, b"second")], true)
        .unwrap();
    assert!(!catalog.rebuilding());
    assert_eq!(put(&mut catalog, ms(9_002), b"second"), Err(PutError::Exists));
}

/// It is telling when the leases end, and dies, or leaves. Was: unknown keys waited for it for 20 s all the same.
#[test]
fn a_node_that_stops_telling_is_not_waited_for() {
    for leaves in [false, true] {
        let mut catalog = takeover(&[1, 2], &[]);
        let long = offer(1, 1, false);
        catalog.mount(ms(1), long.node, std::slice::from_ref(&long)).unwrap();
        mount(&mut catalog, ms(1), &offer(2, 1, false), &[]).unwrap();
        let until = |catalog: &mut Catalog, from: u64, until: u64, telling: bool| {
            for at in (from..=until).step_by(100) {
                catalog.heartbeat(ms(at), NodeId(2)).unwrap();
                if telling {
                    // Pages without a heartbeat between them.
                    catalog.announce(ms(at), long.segment, long.incarnation, &[], false).unwrap();
                }
                catalog.tick(ms(at));
            }
        };
        until(&mut catalog, 100, 4_000, true);
        assert!(catalog.rebuilding(), "it is telling");
        if leaves {
            catalog.unmount(NodeId(1), &[long.segment]);
            until(&mut catalog, 4_100, 4_100, false);
        } else {
            until(&mut catalog, 4_100, 6_500, false);
            assert!(catalog.rebuilding(), "it may be about to tell");
            until(&mut catalog, 6_600, 6_600, false);
        }
        assert!(!catalog.rebuilding(), "leaves: {leaves}");
        put(&mut catalog, ms(6_601), b"key").unwrap();
    }
}

/// A node that the last leader did not know brings a disk that takes long to tell of. Was: it was waited for, as if
/// keys of the last leader could be there.
#[test]
fn a_node_that_nobody_expected_is_not_waited_for() {
    let mut catalog = takeover(&[1, 2], &[]);
    mount(&mut catalog, ms(1), &offer(2, 1, false), &[]).unwrap();
    let fresh = offer(3, 1, false);
    catalog.mount(ms(1), fresh.node, std::slice::from_ref(&fresh)).unwrap();
    for at in (100..=2_600).step_by(100) {
        for node in [2, 3] {
            catalog.heartbeat(ms(at), NodeId(node)).unwrap();
        }
        catalog.tick(ms(at));
    }
    put(&mut catalog, ms(2_601), b"key").unwrap();
}

/// The last leader knew two nodes with a stripe each, and one of them does not come. When nobody waits for it any more,
/// whoever puts the key may have it. Was: refused for 20 s, with the word that another put is under way.
#[test]
fn a_key_that_lacks_a_stripe_is_free_after_the_wait() {
    let mut half = held(0, b"key");
    let object = half.life.as_mut().unwrap().object.as_mut().unwrap();
    let striping = Striping { len: 200, stripe_bytes: 100 };
    object.label.stripe = Some(StripeOf { stripe: 0, striping });
    let mut catalog = takeover(&[1, 2], &[]);
    mount(&mut catalog, ms(1), &offer(2, 1, false), &[half]).unwrap();
    catalog.heartbeat(ms(1_000), NodeId(2)).unwrap();
    catalog.tick(ms(1_000));
    let early = put(&mut catalog, ms(1_000), b"key");
    assert!(matches!(early, Err(PutError::Rebuilding { .. })), "{early:?}");
    catalog.heartbeat(ms(2_600), NodeId(2)).unwrap();
    catalog.tick(ms(2_600));
    let held = put(&mut catalog, ms(2_601), b"key");
    assert!(matches!(held, Err(PutError::Held { .. })), "{held:?}");
    for (_, order) in catalog.take_orders() {
        let Order { segment, incarnation, slot, generation, .. } = order;
        let result = OrderResult::Waiting;
        catalog.notice(ms(2_602), &Notice { segment, incarnation, slot, generation, result });
    }
    put(&mut catalog, ms(2_603), b"key").unwrap();
    catalog.audit().unwrap();
}

/// Within that time everybody who cannot have been given up is welcome, and is served at once.
#[test]
fn a_master_that_knows_nothing_hears_everybody() {
    let mut catalog = Catalog::new(Config::default(), LeaderEpoch(2), Start::Unknown, ms(0));
    mount(&mut catalog, ms(1_000), &offer(1, 1, false), &[held(0, b"key")]).unwrap();
    catalog.locate(ms(1_001), b"key", 0).unwrap();
    assert!(catalog.may_serve(NodeId(1)));
    // An earlier master may have given this one up, and nobody remembers.
    let lapsed = mount(&mut catalog, ms(2_000), &offer(3, 1, true), &[held(0, b"other")]);
    assert_eq!(lapsed, Err(stale(1)));
}

/// A cluster that was said to be new is not slowed down, and believes nobody.
#[test]
fn a_new_cluster_starts_at_once() {
    let mut catalog = Catalog::new(Config::default(), LeaderEpoch(2), Start::New, ms(0));
    mount(&mut catalog, ms(1), &offer(2, 1, false), &[]).unwrap();
    put(&mut catalog, ms(2), b"key").unwrap();
    let old = mount(&mut catalog, ms(3), &offer(1, 1, false), &[held(0, b"key")]);
    assert_eq!(old, Err(stale(1)));
}

/// It meets a node that an earlier leader knew: others of that leader may be stopped and still serve, so unknown keys
/// wait for the end of their leases from then on. It believes nobody, because it took keys for absent before.
#[test]
fn a_new_cluster_that_is_not_new_waits_for_leases() {
    let mut catalog = Catalog::new(Config::default(), LeaderEpoch(2), Start::New, ms(0));
    mount(&mut catalog, ms(1), &offer(2, 1, false), &[]).unwrap();
    put(&mut catalog, ms(2), b"early").unwrap();
    catalog.meet(ms(100), NodeId(1), LeaderEpoch(1));
    let old = mount(&mut catalog, ms(100), &offer(1, 1, false), &[held(0, b"key")]);
    assert_eq!(old, Err(stale(1)));
    assert_eq!(put(&mut catalog, ms(101), b"key"), Err(PutError::Rebuilding { after_ms: 2_474 }));
    assert!(catalog.waits_for_anybody(), "nothing is written down yet");
    catalog.heartbeat(ms(2_576), NodeId(2)).unwrap();
    catalog.tick(ms(2_576));
    put(&mut catalog, ms(2_577), b"key").unwrap();
    // Later such a node proves nothing: the leases have ended.
    let mut catalog = Catalog::new(Config::default(), LeaderEpoch(2), Start::New, ms(0));
    catalog.meet(ms(2_576), NodeId(1), LeaderEpoch(1));
    assert!(!catalog.rebuilding());
}

/// The master was away for a minute; the last list names the node, so nothing of it was struck.
#[test]
fn memory_on_the_list_comes_back_after_any_time() {
    let mut catalog = takeover(&[1], &[(1, 5)]);
    mount(&mut catalog, ms(100), &offer(1, 5, true), &[held(0, b"key")]).unwrap();
    assert!(!catalog.rebuilding());
    catalog.locate(ms(101), b"key", 0).unwrap();
    assert!(catalog.may_serve(NodeId(1)));
    // Another start of the node is not the one that the list names.
    let mut catalog = takeover(&[1], &[(1, 5)]);
    let other = mount(&mut catalog, ms(100), &offer(1, 6, true), &[held(0, b"key")]);
    assert_eq!(other, Err(stale(6)));
}

/// The serving lease ends after the first offer and before the first page: nothing proves any more that no leader
/// in between has given keys up.
#[test]
fn memory_whose_lease_ends_before_it_tells_is_not_believed() {
    let mut catalog = takeover(&[1, 2], &[]);
    for lapsed in [false, true] {
        catalog.mount(ms(1), NodeId(1), &[offer(1, 5, lapsed)]).unwrap();
    }
    let told = catalog.announce(ms(2), SegmentId(1), Incarnation(5), &[held(0, b"key")], true);
    assert_eq!(told, Err(stale(5)));
}

/// An owner announces a bad value without its object. Readers hold leases of the earlier leader, so the owner frees the
/// range when those have ended (G5). Before: at once.
#[test]
fn what_was_found_bad_waits_for_leases_of_the_earlier_leader() {
    let mut bad = held(0, b"key");
    bad.life.as_mut().unwrap().object = None;
    let mut catalog = takeover(&[1], &[]);
    mount(&mut catalog, ms(1_000), &offer(1, 1, false), &[bad]).unwrap();
    let orders: Vec<Action> =
        catalog.take_orders().into_iter().map(|(_, order)| order.action).collect();
    let free_after_ms = u32::try_from(Config::default().lease_ttl.as_millis()).unwrap();
    let waits = |action: &Action| match action {
        Action::Retire { free_after_ms: left } => *left > 0 && *left <= 2 * free_after_ms,
        _ => false,
    };
    assert!(orders.len() == 1 && orders.iter().all(waits), "{orders:?}");
}

/// It comes after the wait for it has ended: what this leader has struck meanwhile must go, and until it has,
/// the node serves nobody, because readers kept locators.
#[test]
fn late_memory_drops_what_was_struck_before_it_serves() {
    let mut catalog = takeover(&[1, 2], &[(1, 5), (2, 5)]);
    mount(&mut catalog, ms(1), &offer(2, 5, false), &[]).unwrap();
    give_up_waiting(&mut catalog, &[2]);
    assert_eq!(catalog.remove(ms(25_002), b"gone", false), Err(RemoveError::NotFound));
    put(&mut catalog, ms(25_002), b"anew").unwrap();

    let page = [held(0, b"gone"), held(1, b"anew"), held(2, b"kept")];
    mount(&mut catalog, ms(60_000), &offer(1, 5, true), &page).unwrap();
    catalog.locate(ms(60_001), b"kept", 0).unwrap();
    assert_eq!(catalog.locate(ms(60_001), b"gone", 0).unwrap_err(), GetError::NotFound);
    assert_eq!(catalog.locate(ms(60_001), b"anew", 0).unwrap().replicas[0].segment, SegmentId(2));
    assert!(!catalog.may_serve(NodeId(1)), "two values can still be read there");
    assert!(!catalog.trusted().iter().any(|trusted| trusted.segment == SegmentId(1)));
    for (_, order) in catalog.take_orders() {
        let Order { segment, incarnation, slot, generation, .. } = order;
        let result = OrderResult::Freed { next: Generation(generation.0 + 1) };
        catalog.notice(ms(60_002), &Notice { segment, incarnation, slot, generation, result });
    }
    assert!(catalog.may_serve(NodeId(1)));
    assert!(catalog.trusted().iter().any(|trusted| trusted.segment == SegmentId(1)));
    put(&mut catalog, ms(60_003), b"gone").unwrap();
    catalog.audit().unwrap();
}

/// It stood still for longer than its serving lease, and not as long as readers may read by leases of the leader before.
/// What was struck stays where it is for them. Nobody can begin to read it, so the node serves the rest at once.
#[test]
fn what_late_memory_drops_stays_for_readers_of_an_earlier_leader() {
    let mut catalog = takeover(&[1, 2], &[(1, 5), (2, 5)]);
    mount(&mut catalog, ms(1), &offer(2, 5, false), &[]).unwrap();
    catalog.heartbeat(ms(2_600), NodeId(2)).unwrap();
    catalog.tick(ms(2_600));
    write_list(&mut catalog);
    catalog.tick(ms(2_601));
    assert_eq!(catalog.remove(ms(2_602), b"gone", false), Err(RemoveError::NotFound));

    mount(&mut catalog, ms(3_000), &offer(1, 5, true), &[held(0, b"gone")]).unwrap();
    assert!(!catalog.may_serve(NodeId(1)), "a reader could begin to read it");
    let orders = catalog.take_orders();
    let [(_, Order { segment, incarnation, slot, generation, action })] = orders[..] else {
        panic!("{orders:?}")
    };
    assert!(matches!(action, Action::Retire { free_after_ms: 7_000.. }), "{action:?}");
    let result = OrderResult::Waiting;
    catalog.notice(ms(3_001), &Notice { segment, incarnation, slot, generation, result });
    assert!(catalog.may_serve(NodeId(1)));
    put(&mut catalog, ms(3_002), b"gone").unwrap();
    let result = OrderResult::Freed { next: Generation(generation.0 + 1) };
    catalog.notice(ms(13_000), &Notice { segment, incarnation, slot, generation, result });
    catalog.audit().unwrap();
}

/// It tells while it is waited for: an older value of a key is told to go, and its owner never hears of it. The link
/// breaks and the wait ends. When it tells again, that value can still be read there. Was: the order was out
/// already, so it did not count.
#[test]
fn what_was_told_to_go_in_an_earlier_round_withholds_leave() {
    let mut catalog = takeover(&[1, 2], &[(1, 5), (2, 5)]);
    let mut newer = held(0, b"key");
    newer.life.as_mut().unwrap().object.as_mut().unwrap().object.sequence = 100;
    mount(&mut catalog, ms(1), &offer(2, 5, false), &[newer]).unwrap();
    let late = offer(1, 5, false);
    let page = [held(0, b"kept"), held(1, b"key")];
    catalog.mount(ms(2), late.node, std::slice::from_ref(&late)).unwrap();
    catalog.announce(ms(2), late.segment, late.incarnation, &page, false).unwrap();
    catalog.take_orders();
    give_up_waiting(&mut catalog, &[1, 2]);

    for at in [26_000, 26_001] {
        // As often as it begins anew: it counts once.
        catalog.mount(ms(at), late.node, std::slice::from_ref(&late)).unwrap();
        catalog.announce(ms(at), late.segment, late.incarnation, &page, false).unwrap();
    }
    catalog.announce(ms(26_002), late.segment, late.incarnation, &[], true).unwrap();
    assert_eq!(catalog.locate(ms(26_003), b"key", 0).unwrap().replicas[0].segment, SegmentId(2));
    assert!(!catalog.may_serve(NodeId(1)), "the older value can still be read there");
    assert!(!catalog.trusted().iter().any(|trusted| trusted.segment == SegmentId(1)));
    catalog.audit().unwrap();
    let (slot, generation) = (Slot(1), Generation(3));
    let result = OrderResult::Freed { next: Generation(4) };
    let Trusted { segment, .. } = Trusted::of(&late);
    let freed = Notice { segment, incarnation: late.incarnation, slot, generation, result };
    catalog.notice(ms(26_004), &freed);
    assert!(catalog.may_serve(NodeId(1)));
    assert!(catalog.trusted().iter().any(|trusted| trusted.segment == SegmentId(1)));
    catalog.audit().unwrap();
}

/// A node that is counted as gone keeps its memory, so its keys are given up only when no later leader can
/// believe it any more.
#[test]
fn a_lost_node_holds_its_keys_until_it_is_off_the_list() {
    let mut catalog = Catalog::new(Config::default(), LeaderEpoch(1), Start::New, ms(0));
    mount(&mut catalog, ms(0), &offer(1, 5, false), &[]).unwrap();
    put(&mut catalog, ms(1), b"key").unwrap();
    write_list(&mut catalog);
    mount(&mut catalog, ms(2), &offer(2, 5, false), &[]).unwrap();
    for at in (0..30_000).step_by(500) {
        catalog.heartbeat(ms(at), NodeId(2)).unwrap();
        catalog.tick(ms(at));
    }
    assert!(!catalog.knows(NodeId(1)));
    let held = put(&mut catalog, ms(30_000), b"key");
    assert!(matches!(held, Err(PutError::Held { .. })), "{held:?}");
    write_list(&mut catalog);
    catalog.tick(ms(30_001));
    put(&mut catalog, ms(30_002), b"key").unwrap();
    assert!(matches!(catalog.remove(ms(30_003), b"key", false), Ok(Removal::Waiting(_))));
}

/// The list is older than what a node has seen: another leader has struck keys that it does not know of.
#[test]
fn a_list_that_is_older_than_its_nodes_is_not_believed() {
    let mut catalog = takeover(&[1, 2], &[(1, 5), (2, 5)]);
    catalog.follow(ms(1), LeaderEpoch(77));
    let back = mount(&mut catalog, ms(2), &offer(1, 5, true), &[held(0, b"key")]);
    assert_eq!(back, Err(stale(5)));
    // The other leader may have had the same number: both followed the same one.
    let mut catalog = takeover(&[1, 2], &[(1, 5), (2, 5)]);
    catalog.meet(ms(1), NodeId(2), LeaderEpoch(2));
    assert_eq!(catalog.epoch(), LeaderEpoch(3));
    let back = mount(&mut catalog, ms(2), &offer(1, 5, true), &[held(0, b"key")]);
    assert_eq!(back, Err(stale(5)));
}

/// A node mounts, the leader drops it, and it mounts again: it has obeyed this leader, not another one of the same
/// epoch. Before: the leader took the next epoch, and the leader after it took the same one (G7).
#[test]
fn a_leader_does_not_take_itself_for_another_one() {
    let mut catalog = takeover(&[1, 2], &[(1, 5), (2, 5)]);
    let (node, epoch) = (NodeId(1), catalog.epoch());
    catalog.meet(ms(1), node, LeaderEpoch(1));
    catalog.mount(ms(1), node, &[offer(1, 5, true)]).unwrap();
    for at in (0..24_000).step_by(500) {
        catalog.tick(ms(at));
    }
    assert!(catalog.rebuilding() && !catalog.knows(node));
    assert!(!catalog.rises_above(node, epoch));
    catalog.meet(ms(24_000), node, epoch);
    assert_eq!(catalog.epoch(), epoch);
    // A node that never mounted here has obeyed another leader.
    assert!(catalog.rises_above(NodeId(3), epoch));
    catalog.meet(ms(24_001), NodeId(3), epoch);
    assert!(catalog.epoch() > epoch);
}

/// Memory that came late is still telling what it holds, so it takes no orders, while its value is replaced.
#[test]
fn a_value_that_is_being_told_is_not_replaced() {
    let upsert = PutConfig { upsert: true, ..PutConfig::default() };
    let mut catalog = takeover(&[1, 2], &[(1, 5), (2, 5)]);
    mount(&mut catalog, ms(1), &offer(2, 5, false), &[held(0, b"both")]).unwrap();
    give_up_waiting(&mut catalog, &[2]);
    let open = catalog.put_start(ms(60_001), b"both", 100, &upsert).unwrap();
    let late = offer(1, 5, true);
    catalog.mount(ms(60_002), NodeId(1), std::slice::from_ref(&late)).unwrap();
    let told = [held(0, b"both"), held(1, b"alone")];
    catalog.announce(ms(60_003), late.segment, late.incarnation, &told, false).unwrap();
    assert!(!catalog.takes_part(late.segment, late.incarnation), "it has not told all");
    let refused = catalog.put_start(ms(60_004), b"alone", 100, &upsert);
    assert!(matches!(refused, Err(PutError::Rebuilding { .. })), "{refused:?}");
    let refused = catalog.put_end(ms(60_004), b"both", open.token, &[Seal(9)]);
    assert!(matches!(refused, Err(PutError::Rebuilding { .. })), "{refused:?}");
    catalog.announce(ms(60_005), late.segment, late.incarnation, &[], true).unwrap();
    catalog.audit().unwrap();
    let plan = catalog.put_start(ms(60_006), b"alone", 100, &upsert).unwrap();
    catalog.put_end(ms(60_007), b"alone", plan.token, &[Seal(9)]).unwrap();
    catalog.audit().unwrap();
}
