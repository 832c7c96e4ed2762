//! Replicas that their owners found bad, and mounts that are dead.

use super::*;

/// The owner of a replica has found it bad.
fn bad(rig: &mut Rig, now: Now, at: &Locator) {
    let Locator { segment, incarnation, slot, generation, .. } = *at;
    let notice = Notice { segment, incarnation, slot, generation, result: OrderResult::Bad };
    rig.catalog.notice(now, &notice);
    rig.catalog.audit().unwrap();
}

/// G15: the only replica was found bad. Its key is free at the owner's word; its range waits for the lease
/// that somebody holds, and for the owner.
#[test]
fn a_key_whose_only_replica_is_bad_is_free_at_once() {
    let mut rig = Rig::new(1, MIB);
    let name = key(b"k");
    let plan = rig.put(name, 1000, &PutConfig::default()).unwrap();
    rig.catalog.locate(ms(1), name, 5_000).unwrap();
    let at = plan.replicas[0];
    bad(&mut rig, ms(2), &at);
    assert!(!rig.has(name));
    assert_eq!(rig.catalog.locate(ms(2), name, 0), Err(GetError::NotFound));
    assert_eq!(rig.catalog.counters().bad_replicas, 1);
    let next = rig.put(name, 2000, &PutConfig::default()).unwrap();
    assert_ne!(next.replicas[0].extent, at.extent, "the range is not free yet");
    let orders = rig.catalog.take_orders();
    let [(_, order)] = orders[..] else { panic!("{orders:?}") };
    assert_eq!((order.slot, order.generation), (at.slot, at.generation));
    let Action::Retire { free_after_ms } = order.action else { panic!("{order:?}") };
    assert!(free_after_ms >= 4_900, "{free_after_ms}");
    // Told again, because the order was not there yet; and late, when another value lives there.
    bad(&mut rig, ms(3), &at);
    rig.held.push(order);
    rig.obey(ms(4));
    bad(&mut rig, ms(5), &at);
    assert!(rig.has(name));
    assert_eq!(rig.catalog.counters().bad_replicas, 1);
}

/// One of two replicas was found bad: the other one is given out, and a new one is ordered from it.
#[test]
fn a_bad_replica_is_made_anew_from_a_good_one() {
    let mut rig = Rig::new(3, MIB);
    let name = key(b"k");
    let two = PutConfig { replicas: 2, ..PutConfig::default() };
    let plan = rig.put(name, 1000, &two).unwrap();
    let [gone, good] = plan.replicas[..] else { panic!("{plan:?}") };
    bad(&mut rig, ms(2), &gone);
    let found = rig.catalog.locate(ms(2), name, 0).unwrap();
    assert_eq!(found.replicas, [good]);
    let copies = rig.catalog.take_copies();
    let [(_, order)] = &copies[..] else { panic!("{copies:?}") };
    assert_eq!(order.sources, [good]);
    assert_ne!(order.target.segment, good.segment);
    // The copy is found bad before anybody was told that it is there.
    bad(&mut rig, ms(3), &order.target);
    assert_eq!(rig.catalog.locate(ms(3), name, 0).unwrap().replicas, [good]);
    assert_eq!(rig.catalog.take_copies().len(), 1, "another one");
    rig.obey(ms(4));
}

/// The owner of a replica says what it holds.
fn holds(rig: &mut Rig, now: Now, at: &Locator, seal: Option<Seal>) {
    let Locator { segment, incarnation, slot, generation, .. } = *at;
    let result = OrderResult::Holds { seal };
    rig.catalog.notice(now, &Notice { segment, incarnation, slot, generation, result });
    rig.catalog.audit().unwrap();
}

/// G15: the writer ended its put under a seal that the owner does not have, or without a value. Readers hear of a
/// miss at once; the key waits for the owner, which could still give the value out under its own seal (C2).
#[test]
fn a_key_whose_writer_lied_is_free_when_its_owner_has_let_go() {
    for held in [Some(Seal(77)), None] {
        let mut rig = Rig::new(1, MIB);
        let name = key(b"k");
        let plan = rig.put(name, 1000, &PutConfig::default()).unwrap();
        let at = plan.replicas[0];
        // What the index says anyway changes nothing.
        holds(&mut rig, ms(2), &at, Some(Seal(plan.object.sequence)));
        assert_eq!(rig.catalog.locate(ms(2), name, 0).unwrap().replicas, [at]);
        holds(&mut rig, ms(3), &at, held);
        assert_eq!(rig.catalog.locate(ms(3), name, 0), Err(GetError::NotFound));
        let waits = rig.catalog.put_start(ms(3), name, 10, &PutConfig::default());
        assert!(matches!(waits, Err(PutError::InProgress { .. })), "{waits:?}");
        // Told again, and late.
        holds(&mut rig, ms(3), &at, held);
        rig.obey(ms(4));
        rig.put(name, 10, &PutConfig::default()).unwrap();
        holds(&mut rig, ms(5), &at, held);
        assert!(rig.has(name));
        assert_eq!(rig.catalog.counters().bad_replicas, 1);
    }
}

/// Only what readers were told of is compared: a put that is open, or a copy on its way, is nobody's lie. One
/// replica of two goes and is made anew; the stripe of another seal takes its value with it.
#[test]
fn what_an_owner_holds_is_compared_with_what_readers_were_told() {
    let config = Config { stripe_bytes: 64 << 10, ..Config::default() };
    let mut rig = Rig::with(3, MIB, config);
    let (open, two, striped) = (key(b"open"), key(b"two"), key(b"striped"));
    let begun = rig.start(open, 100, &PutConfig::default()).unwrap();
    holds(&mut rig, ms(2), &begun.replicas[0], None);
    rig.catalog.put_end(ms(2), open, begun.token, &[Seal(1)]).unwrap();
    assert!(rig.has(open));
    let plan = rig.put(two, 1000, &with(|config| config.replicas = 2)).unwrap();
    let [gone, good] = plan.replicas[..] else { panic!("{plan:?}") };
    holds(&mut rig, ms(3), &gone, Some(Seal(77)));
    assert_eq!(rig.catalog.locate(ms(3), two, 0).unwrap().replicas, [good]);
    let copies = rig.catalog.take_copies();
    let [(_, order)] = &copies[..] else { panic!("{copies:?}") };
    holds(&mut rig, ms(3), &order.target, None);
    assert_eq!(rig.catalog.counters().bad_replicas, 1, "the copy is under way");
    let plan = rig.put(striped, 128 << 10, &PutConfig::default()).unwrap();
    holds(&mut rig, ms(4), &plan.replicas[1], Some(Seal(77)));
    rig.tick(ms(10));
    assert!(!rig.has(striped));
    rig.put(striped, 100, &PutConfig::default()).unwrap();
}

/// A stripe that is lost takes the value with it, and a put that was not ended ends.
#[test]
fn a_bad_stripe_or_an_open_put_takes_all_of_it() {
    let config = Config { stripe_bytes: 64 << 10, ..Config::default() };
    let mut rig = Rig::with(2, MIB, config);
    let (striped, open) = (key(b"striped"), key(b"open"));
    let plan = rig.put(striped, 128 << 10, &PutConfig::default()).unwrap();
    assert_eq!(plan.striping.stripes(), 2);
    let begun = rig.start(open, 100, &PutConfig::default()).unwrap();
    bad(&mut rig, ms(2), &plan.replicas[1]);
    bad(&mut rig, ms(2), &begun.replicas[0]);
    assert!(!rig.has(striped));
    rig.tick(ms(10));
    let ended = rig.catalog.put_end(ms(11), open, begun.token, &[Seal(1)]);
    assert!(ended.is_err(), "{ended:?}");
    for name in [striped, open] {
        rig.put(name, 100, &PutConfig::default()).unwrap();
    }
    assert_eq!(rig.catalog.open_puts(), 0);
}

/// A node is killed and started again. Its first process may be readable in mappings that outlived it, so
/// its keys wait; the word that nobody reads there any more ends the wait.
#[test]
fn keys_of_a_dead_mount_are_free_when_nobody_can_read_it() {
    let mut rig = Rig::new(1, MIB);
    let name = key(b"k");
    rig.put(name, 1000, &PutConfig::default()).unwrap();
    let again = SegmentOffer { incarnation: Incarnation(2), ..offer(1, MIB) };
    rig.catalog.mount(ms(100), NodeId(1), std::slice::from_ref(&again)).unwrap();
    rig.catalog.announce(ms(100), again.segment, again.incarnation, &[], true).unwrap();
    rig.tick(ms(200));
    let refused = rig.catalog.put_start(ms(200), name, 10, &PutConfig::default());
    assert!(refused.is_err(), "{refused:?}");
    rig.catalog.unreadable(again.segment, again.incarnation);
    rig.tick(ms(300));
    let refused = rig.catalog.put_start(ms(300), name, 10, &PutConfig::default());
    assert!(refused.is_err(), "that is the mount that lives: {refused:?}");
    rig.catalog.unreadable(again.segment, Incarnation(1));
    rig.tick(ms(400));
    rig.catalog.put_start(ms(400), name, 10, &PutConfig::default()).unwrap();
}
