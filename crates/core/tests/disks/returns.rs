//! Disks that were away, and leaders that never saw them.

use crate::rig::{KIB, Rig, config, disk, key, memory, ms, offer};
use mooncrate_core::catalog::{Catalog, Ended, Offload, Removal, Start, Trusted};
use mooncrate_core::copy::CopyOrder;
use mooncrate_core::error::{PutError, RemoveError};
use mooncrate_core::plan::{
    Announced, AnnouncedLife, AnnouncedObject, Evidence, OrderResult, SegmentOffer,
};
use mooncrate_core::{
    Extent, Generation, LeaderEpoch, Medium, NodeId, PutConfig, Seal, Slot, Stamp,
};
use std::time::Duration;

/// G6: a disk that was away keeps what is still true, and nothing else.
#[test]
fn a_disk_that_returns_keeps_what_is_still_true() {
    let mut rig = Rig::new(Offload::Eager, 2);
    let keys = [b"kept", b"gone", b"anew", b"redo"];
    let near = PutConfig { preferred: vec![memory(1)], ..PutConfig::default() };
    for key in keys {
        rig.start(ms(1), key, &near).unwrap();
    }
    rig.settle(ms(1));
    assert_eq!(rig.recovered(disk(1)).len(), 4);
    let now = rig.lose(2, 1, &[2]);
    assert_eq!(rig.catalog.away(), (1, 4));
    for key in keys {
        assert_eq!(rig.located(ms(now), key), []);
    }
    assert_eq!(rig.catalog.remove(ms(now), b"gone", false), Err(RemoveError::NotFound));
    rig.put(ms(now), b"anew");
    rig.put(ms(now), b"redo");
    rig.settle(ms(now));
    assert!(matches!(rig.catalog.remove(ms(now), b"redo", false), Ok(Removal::Waiting(_))));
    rig.settle(ms(now));
    assert_eq!(rig.catalog.counters().ledger_struck, 3);

    let page = rig.recovered(disk(1));
    rig.mount(ms(now), 1, Medium::Ssd, 2, &page).unwrap();
    assert_eq!(rig.located(ms(now), b"kept"), [Medium::Ssd]);
    assert_eq!(rig.located(ms(now), b"gone"), []);
    assert_eq!(rig.located(ms(now), b"redo"), []);
    assert_eq!(rig.located(ms(now), b"anew"), [Medium::Dram, Medium::Ssd]);
    // Their keys wait until the records are gone, and the next leader believes the disk only then.
    let put = rig.start(ms(now), b"gone", &PutConfig::default());
    assert!(matches!(put, Err(PutError::InProgress { .. })), "{put:?}");
    assert!(!rig.believed().contains(&disk(1)));
    rig.settle(ms(now));
    rig.start(ms(now), b"gone", &PutConfig::default()).unwrap();
    assert!(rig.believed().contains(&disk(1)));
    let counters = rig.catalog.counters();
    assert_eq!((counters.disks_returned, counters.disk_dropped), (1, 3));
    assert_eq!(rig.catalog.away(), (0, 0));
}

/// A restart that nobody noticed as a loss: the new mount takes over what the old one had.
#[test]
fn a_quick_restart_of_a_disk_keeps_everything() {
    let mut rig = Rig::new(Offload::Eager, 1);
    for n in 0..8 {
        rig.put(ms(1), &key(n));
    }
    rig.settle(ms(1));
    let page = rig.recovered(disk(1));
    rig.mount(ms(100), 1, Medium::Dram, 2, &[]).unwrap();
    rig.mount(ms(100), 1, Medium::Ssd, 2, &page).unwrap();
    for n in 0..8 {
        assert_eq!(rig.located(ms(101), &key(n)), [Medium::Ssd]);
    }
    // The old mounts are swept out, and the new ones stay.
    for at in (200..40_000).step_by(100) {
        rig.catalog.heartbeat(ms(at), NodeId(1)).unwrap();
        rig.catalog.tick(ms(at));
        rig.obey(ms(at));
        rig.keep();
    }
    for n in 0..8 {
        assert_eq!(rig.located(ms(40_000), &key(n)), [Medium::Ssd]);
    }
    assert!(matches!(rig.catalog.remove(ms(40_000), &key(0), false), Ok(Removal::Waiting(_))));
    rig.obey(ms(40_000));
    assert_eq!(rig.catalog.remove(ms(40_000), &key(0), false), Err(RemoveError::NotFound));
}

/// A process that takes a node's name over and has no disk: the disk went with the one before, though its
/// node is heard as ever.
#[test]
fn a_node_that_comes_back_without_its_disk_leaves_it_behind() {
    comes_back_without_its_disk(false);
}

/// The same after the guard of the earlier process has reported that its memory is gone.
#[test]
fn a_node_whose_death_was_reported_leaves_its_disk_behind() {
    comes_back_without_its_disk(true);
}

fn comes_back_without_its_disk(reported: bool) {
    let mut rig = Rig::new(Offload::Eager, 2);
    let near = PutConfig { preferred: vec![memory(1)], ..PutConfig::default() };
    for n in 0..4 {
        rig.start(ms(1), &key(n), &near).unwrap();
    }
    rig.settle(ms(1));
    assert_eq!(rig.recovered(disk(1)).len(), 4);
    if reported {
        rig.catalog.unmount(NodeId(1), &[memory(1)]);
    }
    rig.mount(ms(100), 1, Medium::Dram, 2, &[]).unwrap();
    for at in (200..30_000).step_by(100) {
        rig.catalog.heartbeat(ms(at), NodeId(1)).unwrap();
        rig.catalog.heartbeat(ms(at), NodeId(2)).unwrap();
        rig.catalog.tick(ms(at));
        rig.obey(ms(at));
        rig.keep();
    }
    for n in 0..4 {
        assert_eq!(rig.located(ms(30_000), &key(n)), []);
        rig.put(ms(30_000), &key(n));
    }
}

fn takeover(rig: &Rig, nodes: &[u64], trusted: &[Trusted]) -> Rig {
    let expected = nodes.iter().map(|node| NodeId(*node)).collect();
    let start = Start::Takeover { expected, trusted: trusted.to_vec() };
    let catalog = Catalog::new(config(Offload::Eager), LeaderEpoch(2), start, ms(0));
    Rig { catalog, disks: rig.disks.clone(), copies: Vec::new(), orders: Vec::new() }
}

/// A new leader believes the disks on its list; another disk starts over empty.
#[test]
fn a_new_leader_believes_the_disks_on_its_list() {
    let mut first = Rig::new(Offload::Eager, 1);
    for n in 0..4 {
        first.put(ms(1), &key(n));
    }
    first.settle(ms(1));
    assert_eq!(first.believed(), [disk(1)]);
    let list = first.catalog.trusted();
    for believed in [true, false] {
        let list = if believed { &list[..] } else { &[] };
        let mut next = takeover(&first, &[1], list);
        let page = next.recovered(disk(1));
        next.mount(ms(1), 1, Medium::Dram, 2, &[]).unwrap();
        next.mount(ms(1), 1, Medium::Ssd, 2, &page).unwrap();
        next.catalog.tick(ms(2));
        next.keep();
        next.settle(ms(2));
        for n in 0..4 {
            let found = next.catalog.locate(ms(30_000), &key(n), 0).is_ok();
            assert_eq!(found, believed);
        }
        assert_eq!(next.catalog.counters().disk_dropped, if believed { 0 } else { 4 });
        assert_eq!(next.believed(), [disk(1)]);
    }
}

/// The trap: a disk on the list does not come, its keys are given up, and the leader after the next one
/// must not believe it. So the wait ends only when it is off the list.
#[test]
fn a_rebuild_ends_when_the_disks_that_are_missing_are_off_the_list() {
    let mut first = Rig::new(Offload::Eager, 1);
    first.put(ms(1), b"key");
    first.settle(ms(1));
    let mut next = takeover(&first, &[1], &first.catalog.trusted());
    for at in (0..40_000).step_by(100) {
        next.catalog.tick(ms(at));
    }
    assert!(matches!(
        next.catalog.remove(ms(40_000), b"key", false),
        Err(RemoveError::Rebuilding { .. })
    ));
    assert!(next.catalog.trust_changed());
    assert_eq!(next.believed(), []);
    next.keep();
    next.catalog.tick(ms(40_001));
    assert_eq!(next.catalog.remove(ms(40_002), b"key", false), Err(RemoveError::NotFound));
    // It comes late: its other records are believed, the one that was removed is not.
    let page = next.recovered(disk(1));
    next.mount(ms(40_003), 1, Medium::Dram, 2, &[]).unwrap();
    next.mount(ms(40_003), 1, Medium::Ssd, 2, &page).unwrap();
    next.settle(ms(40_003));
    assert_eq!(next.located(ms(40_004), b"key"), []);
    assert_eq!(next.believed(), [disk(1)]);
}

/// A node stopped in order with its leader: the next one does not wait for its memory, and does not give its disk up.
#[test]
fn a_leader_waits_for_the_disk_of_a_node_that_stopped_with_the_last_one() {
    let mut first = Rig::new(Offload::Eager, 1);
    first.put(ms(1), b"key");
    first.settle(ms(1));
    first.keep();
    first.catalog.unmount(NodeId(1), &[memory(1), disk(1)]);
    assert_eq!(first.catalog.holders(), []);
    let list = first.catalog.trusted();
    assert!(list.iter().all(|listed| listed.segment == disk(1)) && list.len() == 1, "{list:?}");
    let mut next = takeover(&first, &[], &list);
    next.catalog.tick(ms(1));
    // Another node is all that comes at first.
    next.mount(ms(2), 2, Medium::Dram, 2, &[]).unwrap();
    next.keep();
    next.catalog.tick(ms(3));
    let put = next.start(ms(3), b"other", &PutConfig::default());
    assert!(matches!(put, Err(PutError::Rebuilding { .. })), "{put:?}");
    assert_eq!(next.catalog.fence(ms(4), NodeId(1), None), Duration::ZERO);
    let page = next.recovered(disk(1));
    next.mount(ms(4), 1, Medium::Ssd, 2, &page).unwrap();
    assert_eq!(next.located(ms(5), b"key"), [Medium::Ssd]);
    next.start(ms(5), b"other", &PutConfig::default()).unwrap();
}

/// The same trap while a leader lives: the replicas of a disk that left hold their keys until the disk
/// is off the list.
#[test]
fn a_disk_that_left_holds_its_keys_until_it_is_off_the_list() {
    let mut rig = Rig::new(Offload::Eager, 1);
    rig.put(ms(1), b"key");
    rig.settle(ms(1));
    rig.catalog.unmount(NodeId(1), &[memory(1), disk(1)]);
    for at in (10..30_000).step_by(100) {
        rig.catalog.tick(ms(at));
    }
    rig.mount(ms(30_000), 2, Medium::Dram, 1, &[]).unwrap();
    let put = rig.start(ms(30_001), b"key", &PutConfig::default());
    assert!(matches!(put, Err(PutError::Held { .. })), "{put:?}");
    rig.keep();
    rig.catalog.tick(ms(30_002));
    rig.start(ms(30_003), b"key", &PutConfig::default()).unwrap();
}

/// What a node tells of its memory: one object, in slot 0.
fn in_memory(order: &CopyOrder) -> Announced {
    let CopyOrder { label, object, len, seal, .. } = order.clone();
    let extent = Extent::new(0, order.target.extent.len()).unwrap();
    let life = AnnouncedLife { extent, object: Some(AnnouncedObject { label, object, len, seal }) };
    Announced { slot: Slot(0), generation: Generation(0), life: Some(life) }
}

/// One object on the disk of node 1 and in the memory of node 2, under the last leader.
fn on_both() -> (Rig, CopyOrder) {
    let mut first = Rig::new(Offload::Eager, 1);
    first.put(ms(1), b"key");
    first.settle(ms(1));
    let order = first.disks.values().next().unwrap().order.clone();
    (first, order)
}

/// A record that is turned away keeps its key only from others: a good copy of it is welcome, and a
/// remove still waits for the record.
#[test]
fn a_record_that_is_turned_away_keeps_no_good_copy_out() {
    let (first, order) = on_both();
    let mut next = takeover(&first, &[1, 2], &[]);
    let page = next.recovered(disk(1));
    next.mount(ms(1), 1, Medium::Ssd, 2, &page).unwrap();
    next.mount(ms(1), 2, Medium::Dram, 1, &[in_memory(&order)]).unwrap();
    next.catalog.tick(ms(40_000));
    assert_eq!(next.located(ms(40_001), b"key"), [Medium::Dram]);
    assert_eq!(next.catalog.counters().announced_dropped, 0);
    assert_eq!(next.catalog.remove(ms(40_002), b"key", true), Ok(Removal::Waiting(order.object)));
    next.collect();
    let (record, others): (Vec<_>, Vec<_>) =
        next.orders.drain(..).partition(|order| order.segment == disk(1));
    next.orders = others;
    next.obey(ms(40_003));
    assert!(!next.catalog.removed(order.object), "the record is still there");
    next.orders = record;
    next.obey(ms(40_004));
    assert!(next.catalog.removed(order.object));
    next.catalog.audit().unwrap();
}

/// A new leader that has heard the disk of node 1, and not the memory of node 2.
fn disk_has_told() -> (Rig, CopyOrder) {
    let (first, order) = on_both();
    let mut next = takeover(&first, &[1, 2], &first.catalog.trusted());
    let page = next.recovered(disk(1));
    next.mount(ms(1), 1, Medium::Ssd, 2, &page).unwrap();
    (next, order)
}

/// Node 2 tells what it has, and the rebuild ends.
fn keeps_the_copy_in_memory(mut next: Rig, order: &CopyOrder) {
    next.mount(ms(4), 2, Medium::Dram, 1, &[in_memory(order)]).unwrap();
    next.catalog.tick(ms(40_000));
    next.keep();
    next.catalog.tick(ms(40_001));
    assert_eq!(next.located(ms(40_002), b"key"), [Medium::Dram]);
    assert_eq!(next.catalog.counters().announced_dropped, 0);
    next.catalog.audit().unwrap();
}

/// A disk evicts while others still tell: who has the same object in memory keeps it.
#[test]
fn an_eviction_during_a_rebuild_keeps_no_good_copy_out() {
    let (mut next, order) = disk_has_told();
    let at = next.place(b"key", Medium::Ssd);
    next.notice(ms(2), &at, OrderResult::Waiting);
    keeps_the_copy_in_memory(next, &order);
}

/// The same, where a copy into memory was under way, and came to nothing.
#[test]
fn a_failed_copy_during_a_rebuild_keeps_no_good_copy_out() {
    let (mut next, order) = disk_has_told();
    next.mount(ms(1), 1, Medium::Dram, 2, &[]).unwrap();
    assert!(!next.catalog.copy(ms(2), b"key", None, memory(1)).unwrap());
    let at = next.place(b"key", Medium::Ssd);
    next.notice(ms(3), &at, OrderResult::Waiting);
    assert_eq!(next.copy(ms(3), false), 1);
    keeps_the_copy_in_memory(next, &order);
}

/// A disk may tell for minutes: what it has told can be replaced and removed meanwhile.
#[test]
fn a_disk_takes_orders_while_it_still_tells() {
    let mut rig = Rig::new(Offload::Eager, 2);
    let near = PutConfig { preferred: vec![memory(1)], ..PutConfig::default() };
    for key in [b"one", b"two"] {
        rig.start(ms(1), key, &near).unwrap();
    }
    rig.settle(ms(1));
    let page = rig.recovered(disk(1));
    let now = rig.lose(2, 1, &[2]);
    let offer = offer(1, Medium::Ssd, 2);
    rig.catalog.mount(ms(now), NodeId(1), std::slice::from_ref(&offer)).unwrap();
    rig.catalog.announce(ms(now), offer.segment, offer.incarnation, &page, false).unwrap();
    assert_eq!(rig.located(ms(now), b"one"), [Medium::Ssd]);
    let upsert = PutConfig { upsert: true, ..PutConfig::default() };
    let plan = rig.catalog.put_start(ms(now), b"one", KIB, &upsert).unwrap();
    let ended = rig.catalog.put_end(ms(now), b"one", plan.token, &[Seal(9)]).unwrap();
    assert!(matches!(ended, Ended::Replacing(_)), "{ended:?}");
    assert!(matches!(rig.catalog.remove(ms(now), b"two", false), Ok(Removal::Waiting(_))));
    rig.catalog.audit().unwrap();
    rig.obey(ms(now));
    assert_eq!(rig.located(ms(now), b"two"), []);
    rig.catalog.announce(ms(now), offer.segment, offer.incarnation, &[], true).unwrap();
    rig.settle(ms(now));
    assert_eq!(rig.located(ms(now), b"one")[0], Medium::Dram);
    rig.catalog.audit().unwrap();
}

/// A disk is known by its identity and its stamp: another node, or another mount, may bring it; a copy that shows
/// an older stamp is not believed, whoever brings it.
#[test]
fn a_disk_is_believed_by_its_stamp_and_at_any_node() {
    let mut first = Rig::new(Offload::Eager, 1);
    for n in 0..4 {
        first.put(ms(1), &key(n));
    }
    first.settle(ms(1));
    let list = first.catalog.trusted();
    let cases = [
        ("confirmed", Stamp(8), (Stamp(7), Stamp(0)), true),
        ("two starts without a master", Stamp(9), (Stamp(8), Stamp(7)), true),
        ("an older copy", Stamp(9), (Stamp(6), Stamp(5)), false),
        ("no stamp", Stamp(0), (Stamp(0), Stamp(0)), false),
    ];
    for (what, stamp, before, believed) in cases {
        let mut next = takeover(&first, &[1], &list);
        let page = next.recovered(disk(1));
        let evidence = Evidence { stamp, before, lapsed: false };
        let moved = SegmentOffer { node: NodeId(5), evidence, ..offer(1, Medium::Ssd, 2) };
        next.catalog.mount(ms(1), NodeId(5), std::slice::from_ref(&moved)).unwrap();
        next.catalog.announce(ms(1), moved.segment, moved.incarnation, &page, true).unwrap();
        next.settle(ms(2));
        for n in 0..4 {
            assert_eq!(next.catalog.locate(ms(3), &key(n), 0).is_ok(), believed, "{what}");
        }
        next.catalog.audit().unwrap();
    }
}
