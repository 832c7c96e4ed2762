//! A disk that hangs: nobody waits for it beyond his deadline.

use super::super::Tier;
use super::rig::{LEN, Rig, value};
use mooncrate_core::time::Deadline;
use mooncrate_core::{Incarnation, NodeId, Now, SegmentId};
use mooncrate_mem::clock::boottime;
use mooncrate_mem::sums::seal_of;
use mooncrate_mem::{Segment, SegmentSpec};
use mooncrate_ssd::Kind;
use mooncrate_transfer::{Read, Segments, Stager, Staging, TransferError};
use mooncrate_wire::DataError;
use mooncrate_wire::message::StageItem;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const SOON: Duration = Duration::from_millis(300);
/// Generous: the machine may be busy. The disk hangs for longer.
const PATIENCE: Duration = Duration::from_secs(20);

fn soon() -> Deadline {
    boottime().deadline_in(SOON)
}

fn tier(rig: &Rig) -> (Tier, Arc<Segments>) {
    let segments = Arc::new(Segments::default());
    segments.insert(rig.segment());
    let spec = SegmentSpec {
        segment: SegmentId::staging(NodeId(7)),
        incarnation: Incarnation(1),
        bytes: 1 << 20,
        slots: 64,
        shared: false,
        huge: false,
    };
    let memory = Segment::create(spec).unwrap();
    memory.set_serve_until(Now(u64::MAX));
    let staging = Staging::new(memory, Duration::from_secs(5));
    let tier = Tier::new(vec![Arc::clone(&rig.disk)], staging, Arc::downgrade(&segments));
    (tier, segments)
}

/// What a read of a slot gives, and how long that takes.
fn load(tier: &Tier, rig: &Rig, deadline: Deadline) -> (Result<Vec<u8>, TransferError>, Duration) {
    let began = boottime();
    let mut into = vec![0; LEN as usize];
    let mut read = Read::new(rig.locator(0), LEN, seal_of(&value(1)), &mut into);
    tier.load(&mut [&mut read], deadline);
    let result = read.result;
    (result.map(|()| into), boottime().since(began))
}

fn is_busy<T>(result: &Result<T, TransferError>) -> bool {
    matches!(result, Err(TransferError::Data(DataError::Busy { .. })))
}

/// Proves C1 and G9 for reads from a disk: they end by their deadline although the disk does not answer, a disk that
/// is known to hang is not waited for, and nothing is left behind when it works again.
#[test]
fn a_read_ends_by_its_deadline_although_its_disk_hangs() {
    let rig = Rig::new(Kind::Bucket);
    assert!(rig.keep(1, 0));
    let (tier, _segments) = tier(&rig);
    let (read, _) = load(&tier, &rig, boottime().deadline_in(PATIENCE));
    assert_eq!(read.unwrap(), value(1), "a disk that works");

    rig.gate.hangs.store(true, Ordering::Release);
    let (read, took) = load(&tier, &rig, soon());
    assert!(is_busy(&read), "{read:?}");
    assert!(took >= SOON && took < PATIENCE, "{took:?}");
    let item = StageItem { locator: rig.locator(0), start: 0, len: LEN };
    let staged = tier.stage(&[item], soon());
    assert!(matches!(staged[..], [Err(DataError::Busy { .. })]), "{staged:?}");
    assert!(tier.staging.used() > 0, "the read that hangs has its room");
    // Its oldest read is a second old before long: from then on it takes none.
    let end = boottime().deadline_in(PATIENCE);
    loop {
        let (read, took) = load(&tier, &rig, soon());
        assert!(is_busy(&read), "{read:?}");
        if took < SOON / 2 {
            break;
        }
        assert!(!end.passed(boottime()), "it hangs, and is waited for each time");
    }
    let stuck = format!("{:?}", rig.disk.loaders);

    rig.gate.hangs.store(false, Ordering::Release);
    let end = boottime().deadline_in(PATIENCE);
    loop {
        let (read, _) = load(&tier, &rig, boottime().deadline_in(PATIENCE));
        if let Ok(bytes) = read {
            assert_eq!(bytes, value(1));
            break;
        }
        assert!(is_busy(&read) && !end.passed(boottime()), "{read:?} after {stuck}");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(rig.disk.stop_loading(boottime().deadline_in(PATIENCE)), "all threads end");
    tier.staging.sweep(boottime());
    assert_eq!(tier.staging.used(), 0, "nothing is left of what nobody waited for");
    let (read, _) = load(&tier, &rig, soon());
    assert!(is_busy(&read), "a node that has stopped");
}
