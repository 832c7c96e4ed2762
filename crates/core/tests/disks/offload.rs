//! Values go to disks, come back from there, and leave them.

use crate::rig::{KIB, Rig, config, disk, key, memory, ms, offer};
use mooncrate_core::catalog::{Config, Offload, Removal};
use mooncrate_core::copy::DrainMode;
use mooncrate_core::error::{MountError, PutError};
use mooncrate_core::plan::{OrderResult, SegmentOffer};
use mooncrate_core::{Generation, Medium, NodeId, PutConfig, Seal, TenantId};

/// Four times as much as memory holds: everything is found, and what is gone from memory is on the disk.
#[test]
fn whatever_the_policy_nothing_is_lost_while_the_disk_has_room() {
    for offload in [Offload::Evict, Offload::Watermark, Offload::Eager] {
        let mut rig = Rig::new(offload, 1);
        for n in 0..48 {
            rig.put(ms(1), &key(n));
            rig.catalog.tick(ms(1));
            rig.settle(ms(1));
        }
        for n in 0..48 {
            assert_ne!(rig.located(ms(2), &key(n)), [], "{offload}: {n}");
            assert!(rig.catalog.exist(ms(2), &key(n)).unwrap());
        }
        let counters = rig.catalog.counters();
        assert_eq!(counters.evicted_unsaved, 0, "{offload}");
        assert!(counters.offloaded >= 32, "{offload}: {counters:?}");
        assert_eq!(counters.offloaded_bytes, counters.offloaded * KIB);
        let listed = rig.catalog.list(TenantId::DEFAULT, |_| true, 0, 100);
        assert_eq!(listed.entries.len(), 48);
    }
}

/// A victim whose copy is still on its way waits for that copy: it is not dropped for want of another disk.
#[test]
fn a_victim_waits_for_the_copy_that_was_begun_ahead() {
    for offload in [Offload::Watermark, Offload::Eager] {
        let mut rig = Rig::new(offload, 1);
        for n in 0..48 {
            // The disk has the orders and carries them out only when a put waits for room.
            rig.put(ms(1), &key(n));
            rig.catalog.tick(ms(1));
            rig.obey(ms(1));
        }
        rig.settle(ms(1));
        let counters = rig.catalog.counters();
        assert_eq!((counters.evicted_unsaved, counters.copies_failed), (0, 0), "{offload}");
        for n in 0..48 {
            assert_ne!(rig.located(ms(2), &key(n)), [], "{offload}: {n}");
        }
    }
}

#[test]
fn without_offload_what_is_evicted_is_gone() {
    let mut rig = Rig::new(Offload::Off, 1);
    for n in 0..48 {
        rig.put(ms(1), &key(n));
    }
    rig.settle(ms(1));
    assert_eq!(rig.catalog.counters().offloaded, 0);
    assert_eq!(rig.located(ms(2), &key(0)), []);
}

/// Every key that is asked for is found in memory, or on a disk, or not at all.
#[test]
fn memory_stands_before_disks_and_hits_are_counted_by_tier() {
    let mut rig = Rig::new(Offload::Eager, 1);
    rig.put(ms(1), b"both");
    rig.settle(ms(1));
    assert_eq!(rig.located(ms(2), b"both"), [Medium::Dram, Medium::Ssd]);
    for n in 0..30 {
        rig.put(ms(2), &key(n));
        rig.settle(ms(2));
    }
    assert_eq!(rig.located(ms(3), &key(0)), [Medium::Ssd]);
    assert_eq!(rig.located(ms(3), b"nobody"), []);
    let counters = rig.catalog.counters();
    assert_eq!((counters.hits, counters.hits_disk, counters.misses), (2, 1, 1));
}

/// A put never gets a place on a disk; a wish for one is a copy that follows.
#[test]
fn copies_on_disks_follow_a_put_that_wishes_them() {
    for media in [[0, 0, 1], [0, 1, 1]] {
        let mut rig = Rig::new(Offload::Off, 1);
        let wish = PutConfig { media, ..PutConfig::default() };
        let plan = rig.catalog.put_start(ms(1), b"wish", KIB, &wish).unwrap();
        assert_eq!(plan.replicas.len(), 1);
        assert_eq!(plan.replicas[0].segment, memory(1));
        rig.catalog.put_end(ms(1), b"wish", plan.token, &[Seal(1)]).unwrap();
        rig.settle(ms(1));
        assert_eq!(rig.located(ms(2), b"wish"), [Medium::Dram, Medium::Ssd]);
        // A tenant pays for memory only.
        assert_eq!(rig.catalog.tenant(TenantId::DEFAULT).used, KIB);
    }
}

/// While a disk is busy, puts wait; when it refuses, they go on and victims are dropped.
#[test]
fn a_slow_disk_holds_puts_back_and_one_that_refuses_does_not() {
    let mut rig = Rig::with(Config { offloads_per_disk_max: 2, ..config(Offload::Evict) }, 1);
    for n in 0..16 {
        rig.start(ms(1), &key(n), &PutConfig::default()).unwrap();
    }
    let plain = PutConfig::default();
    for again in 0..20 {
        let refused = rig.start(ms(2 + again), b"more", &plain);
        assert!(matches!(refused, Err(PutError::Reclaiming { .. })), "{refused:?}");
        rig.obey(ms(2 + again));
    }
    // Two victims are on their way, however often somebody asked; nothing was dropped.
    assert_eq!(rig.copies.len(), 2);
    assert_eq!(rig.catalog.copies_under_way(), 2);
    rig.copy(ms(30), false);
    assert_eq!(rig.catalog.counters().offloads_refused, 2);
    let put = loop {
        let put = rig.start(ms(31), b"more", &plain);
        rig.obey(ms(31));
        if !matches!(put, Err(PutError::Reclaiming { .. })) {
            break put;
        }
        assert_eq!(rig.catalog.copies_under_way(), 0, "a disk that refused is left alone");
    };
    put.unwrap();
    assert!(rig.catalog.counters().evicted_unsaved > 0);
    // After the pause it is asked again.
    rig.catalog.tick(ms(140));
    for n in 20..40 {
        let _ = rig.start(ms(140), &key(n), &plain);
    }
    rig.collect();
    assert!(!rig.copies.is_empty());
}

/// A disk that has its budget and moves nothing does not stop the cluster.
#[test]
fn a_disk_that_hangs_is_given_up() {
    let mut rig = Rig::with(Config { offloads_per_disk_max: 2, ..config(Offload::Evict) }, 1);
    for n in 0..16 {
        rig.start(ms(1), &key(n), &PutConfig::default()).unwrap();
    }
    let plain = PutConfig::default();
    assert!(matches!(rig.start(ms(2), b"more", &plain), Err(PutError::Reclaiming { .. })));
    rig.collect();
    for at in (100..6000).step_by(100) {
        rig.catalog.heartbeat(ms(at), NodeId(1)).unwrap();
        let _ = rig.start(ms(at), b"more", &plain);
        rig.obey(ms(at));
    }
    assert!(rig.catalog.exist(ms(6001), b"more").unwrap());
}

/// A victim that waits for its copy is readable all the time, and a candidate again if that fails.
#[test]
fn a_victim_is_readable_until_it_is_on_the_disk() {
    let mut rig = Rig::new(Offload::Evict, 1);
    for n in 0..16 {
        rig.start(ms(1), &key(n), &PutConfig::default()).unwrap();
    }
    let _ = rig.start(ms(2), b"more", &PutConfig::default());
    rig.collect();
    let moving: Vec<_> = rig.copies.iter().map(|copy| copy.label.key.clone()).collect();
    assert!(!moving.is_empty());
    for key in &moving {
        assert_eq!(rig.located(ms(3), key.as_bytes()), [Medium::Dram]);
    }
    rig.copy(ms(4), true);
    for key in &moving {
        assert_eq!(rig.located(ms(5), key.as_bytes()), [Medium::Ssd]);
    }
    rig.obey(ms(6));
    rig.start(ms(7), b"more", &PutConfig::default()).unwrap();
}

/// S1: the owner hides first, and the key waits until the record is gone.
#[test]
fn the_owner_evicts_from_its_disk() {
    let mut rig = Rig::new(Offload::Eager, 1);
    rig.put(ms(1), b"key");
    rig.settle(ms(1));
    // From memory at once, because the disk has it.
    rig.catalog.drop_copy(ms(2), b"key", memory(1)).unwrap();
    rig.obey(ms(2));
    assert_eq!(rig.located(ms(3), b"key"), [Medium::Ssd]);
    let at = rig.place(b"key", Medium::Ssd);
    for _ in 0..2 {
        rig.notice(ms(4), &at, OrderResult::Waiting);
        assert_eq!(rig.located(ms(5), b"key"), []);
        rig.catalog.audit().unwrap();
    }
    let put = rig.start(ms(6), b"key", &PutConfig::default());
    assert!(matches!(put, Err(PutError::InProgress { .. })), "{put:?}");
    for _ in 0..2 {
        rig.notice(ms(7), &at, OrderResult::Freed { next: Generation(at.generation.0 + 1) });
        rig.catalog.audit().unwrap();
    }
    assert_eq!(rig.catalog.counters().disk_evicted, 1);
    assert_eq!(rig.catalog.counters().disk_lost, 0);
    rig.start(ms(8), b"key", &PutConfig::default()).unwrap();
    // A late word about the life that is over changes nothing.
    rig.notice(ms(9), &at, OrderResult::Waiting);
    assert_eq!(rig.located(ms(9), b"key"), [Medium::Dram]);
}

/// A disk that is smaller than memory evicts what was copied ahead: it is copied once, not for ever.
#[test]
fn a_small_disk_is_not_written_for_ever() {
    for offload in [Offload::Watermark, Offload::Eager] {
        let mut rig = Rig::new(offload, 1);
        for n in 0..12 {
            rig.put(ms(1), &key(n));
        }
        rig.settle(ms(1));
        let offloaded = rig.catalog.counters().offloaded;
        assert!(offloaded > 0, "{offload}");
        for round in 1..10 {
            for n in 0..12 {
                // Not `locate`: what was read since is spared by the walk.
                let replicas = rig.catalog.peek(&key(n)).unwrap().replicas;
                let on_disk = replicas.iter().find(|at| at.segment == disk(1));
                let Some(at) = on_disk.copied() else { continue };
                rig.notice(ms(round * 2000), &at, OrderResult::Waiting);
                let next = Generation(at.generation.0 + 1);
                rig.notice(ms(round * 2000), &at, OrderResult::Freed { next });
            }
            rig.catalog.heartbeat(ms(round * 2000 + 1000), NodeId(1)).unwrap();
            rig.catalog.tick(ms(round * 2000 + 1000));
            rig.settle(ms(round * 2000 + 1000));
        }
        assert_eq!(rig.catalog.counters().offloaded, offloaded, "{offload}");
        assert!((0..12).all(|n| rig.located(ms(30_000), &key(n)) == [Medium::Dram]));
    }
}

/// A remove is answered when the record is gone, not when the owner says that it waits: a crash could
/// bring it back until then.
#[test]
fn a_remove_waits_for_the_end_of_the_record() {
    let mut rig = Rig::new(Offload::Eager, 1);
    let object = rig.put(ms(1), b"key");
    rig.settle(ms(1));
    let at = rig.place(b"key", Medium::Ssd);
    assert_eq!(rig.catalog.remove(ms(2), b"key", false), Ok(Removal::Waiting(object)));
    rig.collect();
    let (disk_orders, others): (Vec<_>, Vec<_>) =
        rig.orders.drain(..).partition(|order| order.segment == disk(1));
    assert_eq!(disk_orders.len(), 1);
    rig.orders = others;
    rig.obey(ms(3));
    rig.notice(ms(4), &at, OrderResult::Waiting);
    assert!(!rig.catalog.removed(object));
    rig.notice(ms(5), &at, OrderResult::Freed { next: Generation(at.generation.0 + 1) });
    assert!(rig.catalog.removed(object));
}

/// A record that was found damaged is gone at once; the object with it, if that was all.
#[test]
fn a_damaged_record_is_a_loss() {
    let mut rig = Rig::new(Offload::Eager, 1);
    rig.put(ms(1), b"both");
    rig.put(ms(1), b"alone");
    rig.settle(ms(1));
    rig.catalog.drop_copy(ms(2), b"alone", memory(1)).unwrap();
    rig.obey(ms(2));
    for key in [b"both".as_slice(), b"alone"] {
        let at = rig.place(key, Medium::Ssd);
        rig.notice(ms(3), &at, OrderResult::Freed { next: Generation(at.generation.0 + 1) });
    }
    rig.catalog.audit().unwrap();
    assert_eq!(rig.located(ms(4), b"both"), [Medium::Dram]);
    assert_eq!(rig.located(ms(4), b"alone"), []);
    assert_eq!(rig.catalog.counters().disk_lost, 2);
}

/// The second read within a while brings a value back into memory, where there is room.
#[test]
fn what_is_read_twice_comes_back_into_memory() {
    for promote in [true, false] {
        let mut rig = Rig::with(Config { promote, ..config(Offload::Eager) }, 1);
        rig.put(ms(1), b"key");
        rig.settle(ms(1));
        rig.catalog.drop_copy(ms(2), b"key", memory(1)).unwrap();
        rig.obey(ms(2));
        assert_eq!(rig.located(ms(3), b"key"), [Medium::Ssd]);
        rig.settle(ms(3));
        assert_eq!(rig.catalog.counters().promoted, 0);
        assert_eq!(rig.located(ms(4), b"key"), [Medium::Ssd]);
        rig.settle(ms(4));
        let expected: &[Medium] =
            if promote { &[Medium::Dram, Medium::Ssd] } else { &[Medium::Ssd] };
        assert_eq!(rig.located(ms(5), b"key"), expected);
        assert_eq!(rig.catalog.counters().promoted, u64::from(promote));
    }
}

/// How many reads it takes is a setting: from the first on, or only what is read often.
#[test]
fn the_reads_that_bring_a_value_back_can_be_set() {
    for promote_reads in [1, 4] {
        let mut rig = Rig::with(Config { promote_reads, ..config(Offload::Eager) }, 1);
        rig.put(ms(1), b"key");
        rig.settle(ms(1));
        rig.catalog.drop_copy(ms(2), b"key", memory(1)).unwrap();
        rig.obey(ms(2));
        for read in 1..=promote_reads {
            assert_eq!(rig.catalog.counters().promoted, 0, "before read {read}");
            assert_eq!(rig.located(ms(3), b"key"), [Medium::Ssd]);
            rig.settle(ms(3));
        }
        assert_eq!(rig.catalog.counters().promoted, 1);
        assert_eq!(rig.located(ms(4), b"key"), [Medium::Dram, Medium::Ssd]);
    }
}

/// In full memory the coldest make room, because the disk has them.
#[test]
fn a_promotion_takes_the_place_of_something_colder_and_drops_nothing() {
    let mut rig = Rig::new(Offload::Watermark, 1);
    for n in 0..40 {
        rig.put(ms(1), &key(n));
        rig.settle(ms(1));
    }
    assert_eq!(rig.located(ms(2), &key(0)), [Medium::Ssd]);
    assert_eq!(rig.located(ms(3), &key(0)), [Medium::Ssd]);
    for at in (4..200).step_by(10) {
        rig.catalog.heartbeat(ms(at), NodeId(1)).unwrap();
        rig.catalog.tick(ms(at));
        rig.settle(ms(at));
    }
    assert_eq!(rig.located(ms(201), &key(0)), [Medium::Dram, Medium::Ssd]);
    for n in 0..40 {
        assert_ne!(rig.located(ms(202), &key(n)), [], "{n}");
    }
    assert_eq!(rig.catalog.counters().evicted_unsaved, 0);
}

/// Somebody looked once at everything, which one read brings back, and then read one value again and again.
/// All of it came into memory in turn, and each took the place of the one before: what was read eight times
/// went with the rest.
#[test]
fn a_crowd_that_is_read_once_does_not_drive_out_what_is_read_often() {
    for often in [0, 20] {
        let mut rig = Rig::with(Config { promote_reads: 1, ..config(Offload::Evict) }, 1);
        for n in 0..40 {
            rig.put(ms(1), &key(n));
            rig.settle(ms(1));
        }
        for n in 0..40 {
            rig.located(ms(2), &key(n));
        }
        for _ in 0..8 {
            rig.located(ms(3), &key(often));
        }
        for at in (4..2000).step_by(10) {
            rig.catalog.heartbeat(ms(at), NodeId(1)).unwrap();
            rig.catalog.tick(ms(at));
            rig.settle(ms(at));
        }
        // A few of the crowd came, not all of it.
        let promoted = rig.catalog.counters().promoted;
        assert!((2..10).contains(&promoted), "{promoted}");
        assert_eq!(rig.located(ms(2001), &key(often)), [Medium::Dram, Medium::Ssd], "{often}");
        for n in 0..40 {
            assert_ne!(rig.located(ms(2002), &key(n)), [], "{n}");
        }
    }
}

/// Memory that is drained goes to disks where other memory has no room, and disks go to other disks.
#[test]
fn drains_move_between_memory_and_disks() {
    let mut rig = Rig::new(Offload::Evict, 2);
    for n in 0..28 {
        rig.put(ms(1), &key(n));
        rig.settle(ms(1));
    }
    for at in (0..3000).step_by(10) {
        if at == 10 {
            rig.catalog.drain(NodeId(1), None, DrainMode::Move).unwrap();
        }
        for node in [1, 2] {
            rig.catalog.heartbeat(ms(at), NodeId(node)).unwrap();
        }
        rig.catalog.tick(ms(at));
        rig.settle(ms(at));
    }
    let stat = rig.catalog.drain_stat(NodeId(1), None).unwrap();
    assert!(stat.drained(), "{stat:?}");
    for n in 0..28 {
        let located = rig.catalog.locate(ms(3000), &key(n), 0).unwrap();
        let nodes = [memory(2), disk(2)];
        assert!(located.replicas.iter().all(|at| nodes.contains(&at.segment)), "{n}");
    }
}

#[test]
fn an_offer_whose_medium_is_not_that_of_its_id_is_refused() {
    let mut rig = Rig::new(Offload::Off, 0);
    let wrong = SegmentOffer { medium: Medium::Dram, ..offer(1, Medium::Ssd, 1) };
    let refused = rig.catalog.mount(ms(0), NodeId(1), &[wrong]);
    assert!(matches!(refused, Err(MountError::BadOffer { .. })), "{refused:?}");
}
