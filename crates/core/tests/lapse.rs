//! Nodes that are silent for longer than their serving lease, and are not given up yet. What must stay true: a key has
//! one value (C2), what was removed stays gone (G6), and what nobody touched is there when the node is back.

#![expect(clippy::unwrap_used, reason = "a test")]

use mooncrate_core::catalog::{Catalog, Config, Removal, Start};
use mooncrate_core::error::{GetError, MountError, PutError};
use mooncrate_core::plan::{
    Announced, AnnouncedLife, AnnouncedObject, Evidence, Notice, Order, OrderResult, SegmentOffer,
};
use mooncrate_core::{
    Extent, Generation, HostId, Incarnation, Label, LeaderEpoch, Medium, NodeId, Now, ObjectId,
    PutConfig, Seal, SegmentId, Slot, ZoneId,
};
use std::time::Duration;

/// When the serving lease of a node that was last heard at 0 has surely ended.
const LAPSED: u64 = 2_576;

fn ms(ms: u64) -> Now {
    Now(1_000_000_000).plus(Duration::from_millis(ms))
}

fn offer(node: u64, lapsed: bool) -> SegmentOffer {
    SegmentOffer {
        segment: SegmentId(node),
        incarnation: Incarnation(5),
        node: NodeId(node),
        medium: Medium::Dram,
        bytes: 1 << 20,
        slots: 8,
        host: HostId(node),
        zone: ZoneId(0),
        tenant: None,
        evidence: Evidence { lapsed, ..Evidence::default() },
    }
}

fn mount(catalog: &mut Catalog, now: Now, node: u64) {
    let offer = offer(node, false);
    catalog.mount(now, offer.node, std::slice::from_ref(&offer)).unwrap();
    catalog.announce(now, offer.segment, offer.incarnation, &[], true).unwrap();
}

fn put(catalog: &mut Catalog, now: Now, key: &[u8]) -> Result<(), PutError> {
    let plan = catalog.put_start(now, key, 100, &PutConfig::default())?;
    catalog.put_end(now, key, plan.token, &[Seal(9)]).map(drop)
}

fn write_list(catalog: &mut Catalog) {
    let list = catalog.trusted();
    catalog.trust_writing(&list);
    catalog.trust_written(&list);
}

fn lists(catalog: &Catalog, node: u64) -> bool {
    catalog.trusted().iter().any(|trusted| trusted.segment == SegmentId(node))
}

/// Where a key can be read.
fn place(catalog: &mut Catalog, now: Now, key: &[u8]) -> Result<SegmentId, GetError> {
    catalog.locate(now, key, 0).map(|found| found.replicas[0].segment)
}

/// Node 1 holds three keys; node 2 is there and empty. Node 1 falls silent at 0.
fn silent() -> Catalog {
    let mut catalog = Catalog::new(Config::default(), LeaderEpoch(1), Start::New, ms(0));
    mount(&mut catalog, ms(0), 1);
    for key in [&b"put"[..], b"removed", b"kept"] {
        put(&mut catalog, ms(0), key).unwrap();
    }
    mount(&mut catalog, ms(0), 2);
    catalog
}

/// Time passes, and node 2 is heard.
fn pass(catalog: &mut Catalog, from: u64, until: u64) {
    for at in (from..until).step_by(100).chain([until]) {
        catalog.heartbeat(ms(at), NodeId(2)).unwrap();
        catalog.tick(ms(at));
    }
}

/// Owners carry out the orders that wait for them.
fn obey(catalog: &mut Catalog, now: Now) {
    for (_, order) in catalog.take_orders() {
        freed(catalog, now, &order);
    }
}

/// An owner has carried out an order.
fn freed(catalog: &mut Catalog, now: Now, order: &Order) {
    let Order { segment, incarnation, slot, generation, .. } = *order;
    let result = OrderResult::Freed { next: Generation(generation.0 + 1) };
    catalog.notice(now, &Notice { segment, incarnation, slot, generation, result });
}

/// Was: 20 s, as long as the node stays registered.
#[test]
fn keys_of_a_silent_node_are_free_when_its_lease_has_ended() {
    let mut catalog = silent();
    for (from, at) in [(100, 1_000), (1_100, 2_000), (2_100, 2_500), (2_500, 2_574)] {
        pass(&mut catalog, from, at);
        // It may still serve.
        assert_eq!(put(&mut catalog, ms(at), b"put"), Err(PutError::Exists), "{at}");
        place(&mut catalog, ms(at), b"kept").unwrap();
    }
    pass(&mut catalog, 2_574, LAPSED);
    assert_eq!(place(&mut catalog, ms(LAPSED), b"kept"), Err(GetError::NotFound));
    put(&mut catalog, ms(LAPSED), b"put").unwrap();
    assert_eq!(place(&mut catalog, ms(LAPSED), b"put"), Ok(SegmentId(2)));
    assert_eq!(catalog.remove(ms(LAPSED), b"removed", false), Ok(Removal::Done));
    catalog.audit().unwrap();

    // It goes on. What was given up is still in its memory, so it serves nobody before that is gone.
    catalog.heartbeat(ms(5_000), NodeId(1)).unwrap();
    assert!(!catalog.may_serve(NodeId(1)), "two values could be read");
    assert_eq!(place(&mut catalog, ms(5_000), b"put"), Ok(SegmentId(2)));
    obey(&mut catalog, ms(5_001));
    assert!(catalog.may_serve(NodeId(1)));
    assert_eq!(place(&mut catalog, ms(5_002), b"kept"), Ok(SegmentId(1)), "nobody touched it");
    assert_eq!(place(&mut catalog, ms(5_002), b"removed"), Err(GetError::NotFound));
    catalog.audit().unwrap();
}

/// A remove that began while the node could still serve is not answered before it cannot.
#[test]
fn a_remove_that_waits_for_a_silent_node_ends_with_its_lease() {
    let mut catalog = silent();
    let Ok(Removal::Waiting(object)) = catalog.remove(ms(100), b"removed", false) else { panic!() };
    for (from, at) in [(200, 1_000), (1_100, 2_574)] {
        pass(&mut catalog, from, at);
        assert!(!catalog.removed(object), "{at}: a reader may see it");
    }
    pass(&mut catalog, 2_574, LAPSED);
    assert!(catalog.removed(object));
    put(&mut catalog, ms(LAPSED), b"removed").unwrap();
    catalog.heartbeat(ms(5_000), NodeId(1)).unwrap();
    assert!(!catalog.may_serve(NodeId(1)));
    obey(&mut catalog, ms(5_001));
    assert!(catalog.may_serve(NodeId(1)));
    catalog.audit().unwrap();
}

/// A later leader must not believe a node whose keys were given up, so it leaves the durable list first.
#[test]
fn a_node_leaves_the_list_before_its_keys_are_given_up() {
    let mut catalog = silent();
    write_list(&mut catalog);
    assert!(lists(&catalog, 1));
    pass(&mut catalog, 100, LAPSED);
    let held = put(&mut catalog, ms(LAPSED), b"put");
    assert!(matches!(held, Err(PutError::Held { .. })), "{held:?}");
    let Ok(Removal::Waiting(object)) = catalog.remove(ms(LAPSED), b"removed", false) else {
        panic!("the list may still name the node")
    };
    pass(&mut catalog, LAPSED, LAPSED + 200);
    assert!(!catalog.removed(object));
    assert!(!lists(&catalog, 1));
    write_list(&mut catalog);
    pass(&mut catalog, LAPSED + 200, LAPSED + 400);
    assert!(catalog.removed(object));
    put(&mut catalog, ms(LAPSED + 400), b"put").unwrap();
    // It is back, and has dropped what was given up: it may be believed again.
    catalog.heartbeat(ms(5_000), NodeId(1)).unwrap();
    assert!(!lists(&catalog, 1));
    obey(&mut catalog, ms(5_001));
    assert!(lists(&catalog, 1));
    catalog.audit().unwrap();
}

/// Its lease ended under a leader that is gone, and the next one has no list: keys may have been given up.
#[test]
fn a_node_whose_lease_has_ended_brings_nothing_to_a_leader_without_a_list() {
    let stale = MountError::StaleIncarnation { last: Incarnation(5), over: true };
    for (lapsed, believed) in [(false, Ok(())), (true, Err(stale))] {
        let mut catalog = Catalog::new(Config::default(), LeaderEpoch(2), Start::Unknown, ms(0));
        let offer = offer(1, lapsed);
        catalog.mount(ms(1), offer.node, std::slice::from_ref(&offer)).unwrap();
        let label = Label::plain(b"key"[..].into()).unwrap();
        let object = ObjectId { epoch: LeaderEpoch(1), sequence: 1 };
        let object = Some(AnnouncedObject { label, object, len: 100, seal: Seal(7) });
        let life = Some(AnnouncedLife { extent: Extent::new(0, 128).unwrap(), object });
        let page = [Announced { slot: Slot(0), generation: Generation(3), life }];
        let told = catalog.announce(ms(2), offer.segment, offer.incarnation, &page, true);
        assert_eq!(told, believed);
    }
}

/// Two nodes, and a copy of `key` on each.
fn with_two_copies() -> Catalog {
    let mut catalog = Catalog::new(Config::default(), LeaderEpoch(1), Start::New, ms(0));
    mount(&mut catalog, ms(0), 1);
    mount(&mut catalog, ms(0), 2);
    let both = PutConfig { replicas: 2, ..PutConfig::default() };
    let plan = catalog.put_start(ms(0), b"key", 100, &both).unwrap();
    catalog.put_end(ms(0), b"key", plan.token, &[Seal(9)]).unwrap();
    catalog
}

/// A copy with a node that is heard is enough: nothing is given up.
#[test]
fn a_key_with_another_copy_keeps_its_value() {
    let mut catalog = with_two_copies();
    pass(&mut catalog, 100, LAPSED);
    assert_eq!(put(&mut catalog, ms(LAPSED), b"key"), Err(PutError::Exists));
    let located = catalog.locate(ms(LAPSED), b"key", 0).unwrap();
    assert_eq!(located.replicas.iter().map(|one| one.segment).collect::<Vec<_>>(), [SegmentId(2)]);
}

/// One value in two stripes, one on each node. Node 1 falls silent at 0.
fn striped(catalog: &mut Catalog) {
    let plan = catalog.put_start(ms(0), b"striped", 128 << 10, &PutConfig::default()).unwrap();
    let mut places: Vec<u64> = plan.replicas.iter().map(|part| part.segment.0).collect();
    places.sort_unstable();
    assert_eq!(places, [1, 2]);
    catalog.put_end(ms(0), b"striped", plan.token, &[Seal(8), Seal(9)]).unwrap();
}

/// Half of a value is with a node that is heard, and nobody can read it. Was: a put was told for 20 s that another one
/// is under way. The node that is heard lets go of its half first, which takes it a moment: until then the key is held.
#[test]
fn a_striped_key_is_free_when_one_of_its_owners_is_dead() {
    let config = Config { stripe_bytes: 64 << 10, ..Config::default() };
    for listed in [false, true] {
        let mut catalog = Catalog::new(config.clone(), LeaderEpoch(1), Start::New, ms(0));
        mount(&mut catalog, ms(0), 1);
        mount(&mut catalog, ms(0), 2);
        striped(&mut catalog);
        if listed {
            write_list(&mut catalog);
        }
        pass(&mut catalog, 100, LAPSED);
        let held = put(&mut catalog, ms(LAPSED), b"striped");
        assert!(matches!(held, Err(PutError::Held { .. })), "{held:?}");
        if listed {
            assert!(catalog.take_orders().is_empty(), "the list may still name node 1");
            write_list(&mut catalog);
            let held = put(&mut catalog, ms(LAPSED + 1), b"striped");
            assert!(matches!(held, Err(PutError::Held { .. })), "{held:?}");
        }
        let (dead, heard): (Vec<_>, Vec<_>) =
            catalog.take_orders().into_iter().partition(|(node, _)| *node == NodeId(1));
        assert_eq!((dead.len(), heard.len()), (1, 1));
        let held = put(&mut catalog, ms(LAPSED + 2), b"striped");
        assert!(matches!(held, Err(PutError::Held { .. })), "node 2 has not answered: {held:?}");
        freed(&mut catalog, ms(LAPSED + 3), &heard[0].1);
        put(&mut catalog, ms(LAPSED + 4), b"striped").unwrap();
        assert_eq!(place(&mut catalog, ms(LAPSED + 4), b"striped"), Ok(SegmentId(2)));
        catalog.heartbeat(ms(5_000), NodeId(1)).unwrap();
        assert!(!catalog.may_serve(NodeId(1)), "its half can still be read");
        freed(&mut catalog, ms(5_001), &dead[0].1);
        assert!(catalog.may_serve(NodeId(1)));
        catalog.audit().unwrap();
    }
}

/// Such a key can be removed, too, and its node may be back before anybody asked for it.
#[test]
fn a_striped_key_of_a_silent_node_is_removed_or_comes_back() {
    let config = Config { stripe_bytes: 64 << 10, ..Config::default() };
    let mut catalog = Catalog::new(config, LeaderEpoch(1), Start::New, ms(0));
    mount(&mut catalog, ms(0), 1);
    mount(&mut catalog, ms(0), 2);
    striped(&mut catalog);
    pass(&mut catalog, 100, LAPSED);
    assert_eq!(place(&mut catalog, ms(LAPSED), b"striped"), Err(GetError::NotFound));
    catalog.heartbeat(ms(LAPSED + 1), NodeId(1)).unwrap();
    place(&mut catalog, ms(LAPSED + 1), b"striped").unwrap();
    pass(&mut catalog, LAPSED + 1, 2 * LAPSED + 1);
    let removal = catalog.remove(ms(2 * LAPSED + 1), b"striped", false);
    let Ok(Removal::Waiting(object)) = removal else { panic!("node 2 can be read: {removal:?}") };
    obey(&mut catalog, ms(2 * LAPSED + 2));
    assert!(catalog.removed(object));
    catalog.audit().unwrap();
}

/// Its node is dead, and another one was told to fetch a copy from there. Was: refused until the copy was given up.
#[test]
fn a_key_that_is_being_copied_from_a_dead_node_is_free() {
    let mut catalog = Catalog::new(Config::default(), LeaderEpoch(1), Start::New, ms(0));
    mount(&mut catalog, ms(0), 1);
    let two = PutConfig { replicas: 2, best_effort: true, ..PutConfig::default() };
    let plan = catalog.put_start(ms(0), b"key", 100, &two).unwrap();
    catalog.put_end(ms(0), b"key", plan.token, &[Seal(9)]).unwrap();
    mount(&mut catalog, ms(0), 2);
    catalog.tick(ms(1));
    assert_eq!(catalog.take_copies().len(), 1);
    pass(&mut catalog, 100, LAPSED);
    let held = put(&mut catalog, ms(LAPSED), b"key");
    assert!(matches!(held, Err(PutError::Held { .. })), "{held:?}");
    obey(&mut catalog, ms(LAPSED + 1));
    put(&mut catalog, ms(LAPSED + 2), b"key").unwrap();
    catalog.audit().unwrap();
}

/// A copy of it was dropped at a node that is heard and has not answered yet. Was: the remove was confirmed while
/// readers that kept the locator could still read that copy (C4).
#[test]
fn a_remove_waits_for_a_copy_that_is_on_its_way_out() {
    let mut catalog = with_two_copies();
    pass(&mut catalog, 100, LAPSED - 1);
    catalog.drop_copy(ms(LAPSED - 1), b"key", SegmentId(2)).unwrap();
    pass(&mut catalog, LAPSED, LAPSED);
    let removal = catalog.remove(ms(LAPSED), b"key", false);
    let Ok(Removal::Waiting(object)) = removal else { panic!("node 2 can be read: {removal:?}") };
    let orders = catalog.take_orders();
    assert!(!catalog.removed(object));
    for (_, order) in orders.iter().filter(|(node, _)| *node == NodeId(2)) {
        freed(&mut catalog, ms(LAPSED + 1), order);
    }
    assert!(catalog.removed(object));
    catalog.audit().unwrap();
}

/// G13: a lapsed node held many values that were removed. Was: all its orders were looked at ten times a second for as
/// long as it was registered, and struck in one go, while everybody waited for the lock.
#[test]
fn orders_of_a_lapsed_node_are_struck_in_slices_and_looked_at_once() {
    const VALUES: u32 = 10_000;
    let mut catalog = Catalog::new(Config::default(), LeaderEpoch(1), Start::New, ms(0));
    let large = SegmentOffer { bytes: 4 << 20, slots: VALUES, ..offer(1, false) };
    catalog.mount(ms(0), large.node, std::slice::from_ref(&large)).unwrap();
    catalog.announce(ms(0), large.segment, large.incarnation, &[], true).unwrap();
    let key = |one: u32| one.to_be_bytes();
    for one in 0..VALUES {
        put(&mut catalog, ms(0), &key(one)).unwrap();
    }
    mount(&mut catalog, ms(0), 2);
    for one in 0..VALUES {
        catalog.remove(ms(1), &key(one), false).unwrap();
    }
    let (mut most, mut looks) = (0, catalog.lapse_looks());
    let mut step = |catalog: &mut Catalog, at: u64| {
        catalog.heartbeat(ms(at), NodeId(2)).unwrap();
        catalog.tick(ms(at));
        most = most.max(catalog.lapse_looks() - looks);
        looks = catalog.lapse_looks();
    };
    for at in (100..LAPSED).step_by(100).chain(LAPSED..LAPSED + 40) {
        step(&mut catalog, at);
    }
    assert_eq!(catalog.counters().lapsed_struck, u64::from(VALUES));
    put(&mut catalog, ms(LAPSED + 40), &key(7)).unwrap();
    for at in (LAPSED + 100..20_000).step_by(100) {
        step(&mut catalog, at);
    }
    assert!(most <= 4096, "{most} in one tick");
    assert_eq!(looks, u64::from(VALUES), "each once");
    catalog.audit().unwrap();
}

/// The master stood still for a while, in which it heard node 1 and did not tick. Was: the node counted as heard in
/// the future, and its keys waited for as long again.
#[test]
fn nobody_is_heard_in_the_future() {
    let mut catalog = silent();
    catalog.tick(ms(0));
    catalog.heartbeat(ms(9_000), NodeId(1)).unwrap();
    catalog.tick(ms(9_500));
    assert_eq!(catalog.last_heard(NodeId(1)), Some(ms(9_500)));
    pass(&mut catalog, 9_600, 9_500 + LAPSED);
    put(&mut catalog, ms(9_500 + LAPSED), b"put").unwrap();
}
