//! A node that starts over while its disk works.

use super::rig::{Rig, id};
use mooncrate_core::plan::{Action, OrderResult};
use mooncrate_mem::clock::boottime;
use mooncrate_ssd::Kind;
use std::collections::BTreeSet;
use std::time::Duration;

const RETIRE: Action = Action::Retire { free_after_ms: 0 };

/// Proves G6 over a new mount: whatever a keeper is at when the mount ends, the record is told by the new one, or
/// it is gone.
#[test]
fn nothing_is_kept_behind_the_back_of_a_new_mount() {
    for round in 0..30 {
        let rig = Rig::new(Kind::Bucket);
        let (values, keepers) = (60, 3);
        std::thread::scope(|scope| {
            for keeper in 0..keepers {
                let rig = &rig;
                scope.spawn(move || {
                    for n in (0..values).filter(|n| n % keepers == keeper) {
                        // Each where no other value ever is, so that a refusal means a mount that ended.
                        let told = || rig.announced().0.contains(&id(n));
                        let mut tries = 0..100;
                        while !rig.keep(n, 1000 + n as u32) && !told() {
                            tries.next().expect("each mount refuses a value once");
                        }
                    }
                });
            }
            for _ in 0..5 {
                std::thread::yield_now();
                rig.remount();
            }
        });
        rig.end(&[]);
        let (told, _) = rig.announced();
        assert_eq!(told.len() as u64, values, "round {round}");
        assert_eq!(rig.on_disk(), told, "round {round}: on the disk, and told");
    }
}

/// A record that is being evicted when the mount ends is on the disk and not told: a slot of the new mount stands
/// for it, so that the master does not list the disk, until it is gone (0022).
#[test]
fn what_is_on_its_way_out_is_carried_over() {
    let rig = Rig::new(Kind::PerKey);
    for n in 1..=3 {
        assert!(rig.keep(n, n as u32));
    }
    let ticket = rig.disk.backend.unlink(1).unwrap();
    let gone: BTreeSet<_> = ticket.records().iter().copied().collect();
    let retired = rig.disk.retire(ticket.records());
    assert_eq!(retired.notices.len(), 1);
    // And one that is on its way in.
    let coming = rig.going(4, 4).unwrap();
    rig.remount();
    let (told, others) = rig.announced();
    assert_eq!(told.len(), 2);
    assert_eq!(others, 2, "one goes, one comes");
    rig.disk.let_carried_go();
    assert_eq!(rig.announced().1, 2, "nothing has ended");

    ticket.finish(Duration::from_secs(1)).unwrap();
    for (_, place) in retired.records {
        retired.segment.settle(boottime(), place.slot, place.generation);
    }
    rig.disk.let_carried_go();
    assert_eq!(rig.announced().1, 1, "evicted for good");
    let mut done = Vec::new();
    rig.disk.keep_group(vec![coming], &mut done);
    assert!(!done[0].ok, "its mount is over");
    rig.disk.let_carried_go();
    assert_eq!(rig.announced().1, 0);
    let mut news = Vec::new();
    rig.segment().tick(boottime(), &mut news);
    let freed = news.iter().filter(|notice| matches!(notice.result, OrderResult::Freed { .. }));
    assert_eq!(freed.count(), 2, "the master is told: {news:?}");
    let left = rig.on_disk();
    assert_eq!(left.len(), 2);
    assert!(left.is_disjoint(&gone) && !left.contains(&id(4)));
}

/// Slots are given anew with each mount: an order for the one before must not hit who has the slot now.
#[test]
fn an_order_for_the_mount_before_removes_nothing() {
    let rig = Rig::new(Kind::Bucket);
    assert!(rig.keep(1, 5) && rig.keep(2, 0));
    let late = rig.order(0, RETIRE);
    rig.remount();
    assert!(rig.end(&[late]).is_empty());
    assert_eq!(rig.announced().0.len(), 2);
    assert_eq!(rig.on_disk().len(), 2);
}

/// The mount ends while a removal is under way: the order was for the mount before, and the record is gone.
#[test]
fn what_is_removed_while_the_mount_ends_is_not_served() {
    let rig = std::sync::Arc::new(Rig::new(Kind::Bucket));
    assert!(rig.keep(1, 0) && rig.keep(2, 1));
    let hook = {
        let rig = std::sync::Arc::clone(&rig);
        move || rig.remount()
    };
    rig.gate.before_remove.lock().push_back(Box::new(hook));
    assert!(rig.end(&[rig.order(0, RETIRE)]).is_empty(), "of a mount that is over");
    let ends = rig.disk.next_ends();
    let told = rig.end(&ends);
    assert_eq!(told.len(), 1, "the new mount had it: {told:?}");
    assert_eq!(rig.announced().0, BTreeSet::from([id(2)]));
    let mut news = Vec::new();
    rig.segment().tick(boottime(), &mut news);
    assert_eq!(news.len(), 1, "and it is free there: {news:?}");
}
