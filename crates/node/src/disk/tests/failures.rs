//! Disks that fail.

use super::super::End;
use super::rig::{Rig, id};
use mooncrate_core::Slot;
use mooncrate_core::plan::{Action, Notice, OrderResult};
use mooncrate_mem::clock::boottime;
use mooncrate_ssd::Kind;

fn freed(rig: &Rig) -> usize {
    let mut news = Vec::new();
    rig.segment().tick(boottime(), &mut news);
    let freed = |notice: &&Notice| matches!(notice.result, OrderResult::Freed { .. });
    news.iter().filter(freed).count()
}

/// An eviction whose second step fails does not hold its slots until the next start: the records are removed
/// like all others, and their slots are free then, not before.
#[test]
fn an_eviction_that_fails_is_taken_up_again() {
    for kind in [Kind::Bucket, Kind::PerKey, Kind::Offset] {
        let rig = Rig::new(kind);
        assert!(rig.keep(1, 0));
        *rig.gate.deletions_fail.lock() = 1;
        let ticket = rig.disk.backend.unlink(1).unwrap();
        let retired = rig.disk.retire(ticket.records());
        rig.disk.delete_evicted(ticket, retired);
        assert_eq!(freed(&rig), 0, "it is still on the disk");
        rig.end(&[]);
        assert_eq!(freed(&rig), 1, "{kind:?}");
        assert!(!rig.on_disk().contains(&id(1)), "{kind:?}");
    }
}

/// A removal that fails does not swallow what went bad: its readers are sent elsewhere at once.
#[test]
fn what_went_bad_is_told_even_if_nothing_can_be_removed() {
    let rig = Rig::new(Kind::Bucket);
    assert!(rig.keep(1, 0) && rig.keep(2, 1));
    *rig.gate.removals_fail.lock() = 1;
    let ends = [End::Bad(id(1)), rig.order(1, Action::Retire { free_after_ms: 0 })];
    let (told, removed) = rig.disk.end_together(&ends, &rig.tally);
    assert!(removed.is_err());
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!((told[0].slot, told[0].result), (Slot(0), OrderResult::Waiting));
    assert_eq!(freed(&rig), 0);
    // The order is repeated, the other one is not forgotten.
    assert_eq!(rig.end(&ends[1..]).len(), 1);
    assert_eq!(freed(&rig), 1);
    assert!(rig.on_disk().is_empty());
}

/// What a failed write left behind is not forgotten: the slot is taken, and tells so to the next master, until a
/// removal has ended well.
#[test]
fn a_failed_write_holds_its_slot_until_nothing_is_left() {
    let rig = Rig::new(Kind::Bucket);
    *rig.gate.keeps_fail.lock() = 1;
    *rig.gate.removals_fail.lock() = 2;
    assert!(!rig.keep(1, 0));
    assert_eq!(freed(&rig), 0);
    assert_eq!(rig.announced().1, 1, "the disk holds more than it tells");
    let (_, removed) = rig.disk.end_together(&[], &rig.tally);
    assert!(removed.is_err());
    rig.remount();
    assert_eq!(rig.announced().1, 1, "so does the next mount");
    rig.end(&[]);
    rig.disk.let_carried_go();
    assert_eq!(rig.announced().1, 0);
    assert_eq!(freed(&rig), 1);
    assert!(rig.on_disk().is_empty());
}
