//! Orders that meet values on their way to the disk.

use super::rig::{EPOCH, Rig, id};
use mooncrate_core::plan::{Action, Notice, OrderResult};
use mooncrate_core::{LeaderEpoch, Slot};
use mooncrate_mem::clock::boottime;
use mooncrate_ssd::Kind;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

const RETIRE: Action = Action::Retire { free_after_ms: 0 };

fn freed(notices: &[Notice], slot: u32) -> bool {
    let freed = |notice: &Notice| matches!(notice.result, OrderResult::Freed { .. });
    notices.iter().any(|notice| notice.slot == Slot(slot) && freed(notice))
}

/// Proves G6 where a value gets readable while the removal that its order waits for is under way: `Freed` is
/// not told before the record is gone.
#[test]
fn an_order_that_overtakes_a_value_does_not_tell_it_freed() {
    for action in [RETIRE, Action::Abort, Action::Evict] {
        let rig = Arc::new(Rig::new(Kind::Bucket));
        assert!(rig.keep(1, 0));
        // The second value is on its way when both are ordered to go, and is kept while the first goes.
        let (going, disk) = (rig.going(2, 1).unwrap(), Arc::clone(&rig.disk));
        let hook = move || {
            let mut done = Vec::new();
            disk.keep_group(vec![going], &mut done);
            assert!(done[0].ok, "it was kept and can be read");
        };
        rig.gate.before_remove.lock().push_back(Box::new(hook));
        let orders = [rig.order(0, RETIRE), rig.order(1, action)];
        let told = rig.end(&orders);
        assert!(freed(&told, 0), "{told:?}");
        assert!(!freed(&told, 1), "{action:?}: it is still on the disk: {told:?}");
        // The master repeats what was not answered.
        let told = rig.end(&orders[1..]);
        assert!(freed(&told, 1), "{told:?}");
        assert!(
            !rig.disk.places.lock().holds(&id(2)),
            "nothing keeps it from being offloaded anew"
        );
        let rig = Arc::into_inner(rig).unwrap();
        assert!(rig.on_disk().is_empty(), "{action:?}: a start finds it again");
    }
}

/// A new leader takes over during a removal, and the node announces the record to it. Before: the slot stayed READY
/// for ever, with no record on the disk.
#[test]
fn a_record_that_was_removed_for_an_earlier_leader_is_not_served() {
    let rig = Arc::new(Rig::new(Kind::Bucket));
    assert!(rig.keep(1, 0) && rig.keep(2, 1));
    let segment = rig.segment();
    let hook = move || segment.witness(LeaderEpoch(EPOCH.0 + 1)).unwrap();
    rig.gate.before_remove.lock().push_back(Box::new(hook));
    let told = rig.end(&[rig.order(0, RETIRE)]);
    assert!(matches!(told[..], [Notice { slot: Slot(0), .. }]), "{told:?}");
    assert_eq!(rig.announced().0, BTreeSet::from([id(2)]));
    rig.end(&rig.disk.next_ends());
    let mut news = Vec::new();
    rig.segment().tick(boottime(), &mut news);
    assert!(freed(&news, 0), "{news:?}");
    assert!(!rig.disk.places.lock().holds(&id(1)));
}

/// The record of an order is gone before its slot is looked at. So a reader who is inside does not spare the slot: it
/// would stay, with nothing behind it.
#[test]
fn an_eviction_by_order_spares_no_reader() {
    let rig = Rig::new(Kind::Bucket);
    assert!(rig.keep(1, 0));
    let pin = rig.segment().pin(boottime(), &rig.locator(0)).unwrap();
    let told = rig.end(&[rig.order(0, Action::Evict)]);
    assert!(matches!(told[..], [Notice { result: OrderResult::Waiting, .. }]), "{told:?}");
    assert!(rig.segment().pin(boottime(), &rig.locator(0)).is_err(), "nobody new comes in");
    drop(pin);
    let mut news = Vec::new();
    // It looks again now and then.
    rig.segment().tick(boottime().plus(Duration::from_mins(1)), &mut news);
    assert!(freed(&news, 0), "{news:?}");
    assert!(rig.on_disk().is_empty());
}
