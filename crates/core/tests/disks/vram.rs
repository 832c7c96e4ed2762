//! VRAM beside memory and disks: who gets there, and where what it lets go of goes.

use crate::rig::{KIB, MEMORY, Rig, VRAM, config, key, memory, ms, offer, vram};
use mooncrate_core::catalog::{Catalog, Config, Offload, Start};
use mooncrate_core::copy::DrainMode;
use mooncrate_core::error::{Advice, PutError};
use mooncrate_core::plan::{Announced, AnnouncedLife, AnnouncedObject, Keep};
use mooncrate_core::{
    LeaderEpoch, Medium, NodeId, Now, PutConfig, Seal, SegmentId, Striping, TenantId,
};
use std::time::Duration;

use Medium::{Dram, Ssd, Vram};

fn in_vram() -> PutConfig {
    PutConfig::default().on(Vram)
}

fn copies(media: [u8; 3]) -> PutConfig {
    PutConfig { media, ..PutConfig::default() }
}

/// Every part of every plan, without writing anything.
fn planned(rig: &mut Rig, now: Now, key: &[u8], config: &PutConfig) -> Vec<SegmentId> {
    let plan = rig.catalog.put_start(now, key, KIB, config).unwrap();
    plan.replicas.iter().map(|at| at.segment).collect()
}

/// The tenant fills memory and goes on: room is made there, and VRAM stays empty, however it is asked.
#[test]
fn nobody_lands_in_vram_who_did_not_ask_for_it() {
    for offload in Offload::ALL {
        let lent = [(1, Dram), (1, Vram), (1, Ssd), (2, Vram), (3, Vram)];
        let mut rig = Rig::of(config(offload), &lent);
        let near = PutConfig { preferred: vec![vram(1), vram(2)], ..PutConfig::default() };
        let (plain, host) = (PutConfig::default(), PutConfig::default().on(Dram));
        for n in 0..60 {
            let wishes = [&plain, &near, &host][usize::from(n) % 3];
            rig.put_as(ms(1), &key(n), wishes);
            rig.catalog.tick(ms(1));
            rig.settle(ms(1));
        }
        for n in 0..60 {
            assert!(!rig.located(ms(2), &key(n)).contains(&Vram), "{offload}: {n}");
        }
        assert_eq!(rig.catalog.counters().demoted, 0);
    }
}

/// A value that only the other medium could hold is refused by its own, with its own numbers.
#[test]
fn each_medium_is_judged_by_its_own_segments() {
    let mut rig = Rig::of(config(Offload::Evict), &[(1, Dram), (1, Vram)]);
    let put = |rig: &mut Rig, key: &[u8], len, wish: &PutConfig| {
        rig.catalog.put_start(ms(1), key, len, wish).map(|plan| plan.replicas[0].segment)
    };
    let large = VRAM + KIB;
    assert_eq!(put(&mut rig, b"host", large, &PutConfig::default()), Ok(memory(1)));
    let refused = put(&mut rig, b"gpu", large, &in_vram()).unwrap_err();
    assert_eq!(refused, PutError::LargerThanAnySegment { wanted: large, largest: VRAM });
    let refused = put(&mut rig, b"both", large, &copies([1, 1, 0])).unwrap_err();
    assert!(matches!(refused, PutError::LargerThanAnySegment { largest: VRAM, .. }), "{refused}");
    let refused = put(&mut rig, b"more", MEMORY + KIB, &PutConfig::default()).unwrap_err();
    assert!(matches!(refused, PutError::LargerThanAnySegment { largest: MEMORY, .. }));
    assert_eq!(put(&mut rig, b"gpu", KIB, &in_vram()), Ok(vram(1)));
}

/// One segment of VRAM is no reason to cut a value for memory, nor are two of memory one for VRAM.
#[test]
fn values_are_cut_by_the_segments_of_their_medium() {
    let stripes = |rig: &mut Rig, key: &[u8], wish: &PutConfig| {
        rig.catalog.put_start(ms(1), key, 4 * KIB, wish).unwrap().striping
    };
    let config = Config { stripe_bytes: 2 * KIB, ..config(Offload::Evict) };
    let mut rig = Rig::of(config.clone(), &[(1, Dram), (1, Vram), (2, Vram)]);
    assert_eq!(stripes(&mut rig, b"host", &PutConfig::default()), Striping::whole(4 * KIB));
    assert_eq!(stripes(&mut rig, b"gpu", &in_vram()).stripes(), 2);
    let mut rig = Rig::of(config, &[(1, Dram), (2, Dram), (1, Vram)]);
    assert_eq!(stripes(&mut rig, b"host", &PutConfig::default()).stripes(), 2);
    assert_eq!(stripes(&mut rig, b"gpu", &in_vram()), Striping::whole(4 * KIB));
}

#[test]
fn a_medium_that_nobody_lends_is_named_with_the_way_out() {
    let mut rig = Rig::of(config(Offload::Evict), &[(1, Dram)]);
    for wish in [in_vram(), copies([1, 1, 0]), PutConfig { best_effort: true, ..in_vram() }] {
        let refused = rig.catalog.put_start(ms(1), b"k", KIB, &wish).unwrap_err();
        assert_eq!(refused, PutError::NoMedium { medium: Vram });
        assert_eq!(refused.advice(), Advice::GiveUp);
        let words = "no node lends VRAM; start one with --vram, or put without a medium";
        assert_eq!(refused.to_string(), words);
    }
    // A put without a wish waits for nodes, as ever.
    let mut rig = Rig::of(config(Offload::Evict), &[(1, Vram)]);
    let refused = rig.catalog.put_start(ms(1), b"k", KIB, &PutConfig::default()).unwrap_err();
    assert_eq!(refused, PutError::NoSegments);
    assert!(matches!(refused.advice(), Advice::Retry { .. }));
}

#[test]
fn copies_are_spread_over_the_nodes_of_their_media() {
    // Only node 1 has memory: VRAM must leave it to the other copy.
    for seed in 0..20 {
        let config = Config { seed, ..config(Offload::Evict) };
        let mut rig = Rig::of(config, &[(1, Dram), (1, Vram), (2, Vram)]);
        let mut both = planned(&mut rig, ms(1), b"both", &copies([1, 1, 0]));
        both.sort_unstable();
        let mut expected = [memory(1), vram(2)];
        expected.sort_unstable();
        assert_eq!(both, expected);
    }
    let lent = [(1, Dram), (1, Vram), (2, Dram)];
    let mut rig = Rig::of(config(Offload::Evict), &lent);
    let two = PutConfig { replicas: 2, ..PutConfig::default() }.on(Vram);
    let refused = rig.catalog.put_start(ms(1), b"k", KIB, &two).unwrap_err();
    assert_eq!(refused, PutError::TooFewNodes { wanted: 2, nodes: 1 });
    let fewer = PutConfig { best_effort: true, ..two };
    assert_eq!(planned(&mut rig, ms(1), b"fewer", &fewer), [vram(1)]);
    let three = PutConfig { best_effort: true, ..copies([1, 2, 0]) };
    assert_eq!(planned(&mut rig, ms(1), b"three", &three), [vram(1), memory(2)]);
}

/// Six times as much as VRAM holds, and more than memory does: all of it is found, each on its medium.
#[test]
fn what_vram_lets_go_of_moves_to_memory_and_from_there_to_disks() {
    for offload in [Offload::Evict, Offload::Watermark, Offload::Eager] {
        let mut rig = Rig::of(config(offload), &[(1, Dram), (1, Vram), (1, Ssd)]);
        for n in 0..48 {
            rig.put_as(ms(1), &key(n), &in_vram());
            rig.catalog.tick(ms(1));
            rig.settle(ms(1));
        }
        for n in 0..48 {
            assert_ne!(rig.located(ms(2), &key(n)), [], "{offload}: {n}");
        }
        let counters = rig.catalog.counters();
        assert_eq!((counters.evicted_unsaved, counters.copies_failed), (0, 0), "{offload}");
        assert_eq!(
            rig.located(ms(2), &key(47))[0],
            Vram,
            "{offload}: the last is where it was put"
        );
        assert_eq!(rig.located(ms(2), &key(0)), [Ssd], "{offload}");
        if offload == Offload::Eager {
            // It is on a disk already: VRAM just lets go of it.
            continue;
        }
        assert_eq!(rig.located(ms(2), &key(35))[0], Dram, "{offload}: not long ago");
        assert!(counters.demoted >= 40, "{offload}: {counters:?}");
        assert_eq!(counters.demoted_bytes, counters.demoted * KIB);
    }
}

/// Memory that is about full leaves it to memory of other nodes: nothing is evicted while one has room.
#[test]
fn victims_of_vram_go_where_nobody_misses_the_room() {
    let mut rig = Rig::of(config(Offload::Evict), &[(1, Dram), (1, Vram), (2, Dram)]);
    for n in 0..34 {
        rig.put_as(ms(1), &key(n), &in_vram());
        rig.catalog.tick(ms(1));
        rig.settle(ms(1));
    }
    assert_eq!(rig.catalog.counters().evicted, 0);
    for n in 0..34 {
        assert_eq!(rig.located(ms(2), &key(n)).len(), 1, "{n}");
    }
    let first = rig.place(&key(0), Dram).segment;
    assert_eq!(first, memory(1), "its own node has come first");
}

/// With memory alone below, memory drops what it has no room for; VRAM does not.
#[test]
fn without_disks_vram_moves_to_memory_all_the_same() {
    let mut rig = Rig::of(config(Offload::Watermark), &[(1, Dram), (1, Vram)]);
    for n in 0..20 {
        rig.put_as(ms(1), &key(n), &in_vram());
        rig.catalog.tick(ms(1));
        rig.settle(ms(1));
    }
    let counters = rig.catalog.counters();
    assert_eq!((counters.evicted_unsaved, counters.evicted), (0, 0), "both have room for twenty");
    for n in 0..20 {
        assert_eq!(rig.located(ms(2), &key(n)).len(), 1, "{n}");
    }
    assert!(counters.demoted > 0);
}

#[test]
fn without_offload_vram_drops_its_victims() {
    let mut rig = Rig::of(config(Offload::Off), &[(1, Dram), (1, Vram), (1, Ssd)]);
    for n in 0..20 {
        rig.put_as(ms(1), &key(n), &in_vram());
    }
    rig.settle(ms(1));
    let counters = rig.catalog.counters();
    assert_eq!((counters.demoted, counters.offloaded, counters.evicted_unsaved), (0, 0, 0));
    assert_eq!(rig.located(ms(2), &key(0)), []);
}

/// VRAM at its brim: memory that is half full evicts nothing for it, and gets nothing that fits above.
#[test]
fn a_full_vram_does_not_make_memory_evict() {
    let mut rig = Rig::of(config(Offload::Watermark), &[(1, Dram), (1, Vram)]);
    for n in 0..6 {
        rig.put(ms(1), &key(n));
    }
    for n in 10..14 {
        rig.put_as(ms(1), &key(n), &in_vram());
    }
    for at in 2..50 {
        rig.catalog.heartbeat(ms(at), NodeId(1)).unwrap();
        rig.catalog.tick(ms(at));
        rig.settle(ms(at));
    }
    for n in 14..20 {
        rig.put_as(ms(60), &key(n), &in_vram());
        rig.settle(ms(60));
    }
    for n in 0..6 {
        assert_eq!(rig.located(ms(61), &key(n)), [Dram], "{n}");
    }
    assert_eq!(rig.catalog.counters().evicted, 0);
}

/// Memory that is full and in use, with nothing below it: puts into VRAM wait for a moment, then go on.
#[test]
fn memory_that_is_in_use_does_not_stop_vram() {
    let mut rig = Rig::of(config(Offload::Evict), &[(1, Dram), (1, Vram)]);
    for n in 0..16 {
        rig.put(ms(1), &key(n));
        rig.catalog.locate(ms(1), &key(n), 60_000).unwrap();
    }
    for n in 20..40 {
        rig.put_as(ms(2), &key(n), &in_vram());
    }
    let counters = rig.catalog.counters();
    assert!(counters.evicted >= 11 && counters.evicted_unsaved > 0, "{counters:?}");
    for n in 0..16 {
        assert_eq!(rig.located(ms(3), &key(n)), [Dram], "{n}");
    }
}

/// Memory whose owner never carries a copy out: the put waits while the copies may come, and no longer.
#[test]
fn memory_that_hangs_does_not_stop_vram() {
    let few = Config { offloads_per_disk_max: 2, ..config(Offload::Evict) };
    let mut rig = Rig::of(few, &[(1, Dram), (1, Vram)]);
    for n in 0..8 {
        rig.put_as(ms(1), &key(n), &in_vram());
    }
    let mut at = 1;
    loop {
        assert!(at < 1_500, "it waits for too long");
        match rig.start(ms(at), b"more", &in_vram()) {
            Err(PutError::Reclaiming { .. } | PutError::Busy { .. }) => at += 10,
            put => {
                put.unwrap();
                break;
            }
        }
        assert!(rig.catalog.copies_under_way() <= 2);
        rig.obey(ms(at));
    }
    assert!(at >= 300, "it did not wait at all");
    assert!(rig.catalog.counters().evicted_unsaved > 0);
}

/// One that refuses is left alone for a while, and victims go.
#[test]
fn memory_that_refuses_is_left_alone() {
    let mut rig = Rig::of(config(Offload::Evict), &[(1, Dram), (1, Vram)]);
    for n in 0..8 {
        rig.put_as(ms(1), &key(n), &in_vram());
    }
    while let Err(refused) = rig.start(ms(2), b"more", &in_vram()) {
        assert!(matches!(refused, PutError::Reclaiming { .. }), "{refused}");
        rig.copy(ms(2), false);
        rig.obey(ms(2));
    }
    let counters = rig.catalog.counters();
    assert!(counters.offloads_refused > 0 && counters.evicted_unsaved > 0, "{counters:?}");
    // After the pause it is asked again.
    for n in 20..30 {
        rig.put_as(ms(300), &key(n), &in_vram());
    }
    assert!(rig.catalog.counters().demoted > 0);
}

/// Memory full of soft pins: a victim of VRAM does not push them out.
#[test]
fn soft_pins_in_memory_stay_for_victims_of_vram() {
    let mut rig = Rig::of(config(Offload::Evict), &[(1, Dram), (1, Vram)]);
    let soft = PutConfig { keep: Keep::Soft { ttl_ms: 60_000 }, ..PutConfig::default() };
    for n in 0..15 {
        rig.put_as(ms(1), &key(n), &soft);
    }
    for n in 20..40 {
        rig.put_as(ms(1), &key(n), &in_vram());
    }
    for n in 0..15 {
        assert_eq!(rig.located(ms(2), &key(n)), [Dram], "{n}");
    }
}

/// Where memory has nothing but soft pins, a disk takes the victim.
#[test]
fn a_disk_takes_what_memory_does_not() {
    let mut rig = Rig::of(config(Offload::Evict), &[(1, Dram), (1, Vram), (1, Ssd)]);
    let soft = PutConfig { keep: Keep::Soft { ttl_ms: 60_000 }, ..PutConfig::default() };
    for n in 0..16 {
        rig.put_as(ms(1), &key(n), &soft);
    }
    for n in 20..40 {
        rig.put_as(ms(1), &key(n), &in_vram());
    }
    rig.settle(ms(1));
    assert_eq!(rig.catalog.counters().evicted_unsaved, 0);
    assert_eq!(rig.located(ms(2), &key(20)), [Ssd]);
}

#[test]
fn hard_pins_have_a_share_of_each_medium() {
    let mut rig = Rig::of(config(Offload::Evict), &[(1, Dram), (1, Vram)]);
    let hard = |config: PutConfig| PutConfig { keep: Keep::Hard, ..config };
    for n in 0..4 {
        rig.put_as(ms(1), &key(n), &hard(in_vram()));
    }
    let refused = rig.start(ms(1), b"more", &hard(in_vram())).unwrap_err();
    assert_eq!(refused, PutError::HardFull { limit: 4 * KIB, total: 5 * KIB });
    for n in 10..18 {
        rig.put_as(ms(1), &key(n), &hard(PutConfig::default()));
    }
    let refused = rig.start(ms(1), b"more", &hard(PutConfig::default())).unwrap_err();
    assert_eq!(refused, PutError::HardFull { limit: 8 * KIB, total: 9 * KIB });
    assert_eq!(rig.catalog.tenant(TenantId::DEFAULT).hard, 12 * KIB);
}

/// Drains: to other VRAM that has room, else to memory, else to a disk.
#[test]
fn a_drain_of_vram_goes_to_vram_then_to_memory() {
    let lent = [(1, Vram), (2, Vram), (2, Dram), (2, Ssd)];
    let mut rig = Rig::of(config(Offload::Off), &lent);
    for n in 0..6 {
        let wish = PutConfig { preferred: vec![vram(1)], ..in_vram() };
        rig.put_as(ms(1), &key(n), &wish);
    }
    for n in 10..15 {
        let wish = PutConfig { preferred: vec![vram(2)], ..in_vram() };
        rig.put_as(ms(1), &key(n), &wish);
    }
    rig.catalog.drain(NodeId(1), None, DrainMode::Move).unwrap();
    for _ in 0..4 {
        rig.settle(ms(2));
    }
    assert!(rig.catalog.drain_stat(NodeId(1), None).unwrap().drained());
    let found: Vec<Medium> = (0..6).flat_map(|n| rig.located(ms(3), &key(n))).collect();
    assert_eq!(found.len(), 6);
    let in_vram = found.iter().filter(|medium| **medium == Vram).count();
    assert_eq!(in_vram, 2, "as many as fit below its watermark: {found:?}");
    assert_eq!(found.iter().filter(|medium| **medium == Dram).count(), 4);
    // Nothing was evicted for it.
    for n in 10..15 {
        assert_eq!(rig.located(ms(3), &key(n)), [Vram], "{n}");
    }
}

/// A drain of memory does not go to VRAM, even where nothing else has room.
#[test]
fn a_drain_of_memory_never_goes_to_vram() {
    let mut rig = Rig::of(config(Offload::Off), &[(1, Dram), (1, Vram), (2, Vram)]);
    for n in 0..6 {
        rig.put(ms(1), &key(n));
    }
    rig.catalog.drain(NodeId(1), Some(memory(1)), DrainMode::Move).unwrap();
    rig.settle(ms(2));
    let stat = rig.catalog.drain_stat(NodeId(1), None).unwrap();
    assert_eq!((stat.left_replicas, stat.moved), (6, 0));
    rig.mount(ms(3), 3, Dram, 1, &[]).unwrap();
    rig.settle(ms(3));
    rig.catalog.tick(ms(3));
    rig.settle(ms(3));
    for n in 0..6 {
        assert_eq!(rig.located(ms(4), &key(n)), [Dram], "{n}");
    }
}

fn lose(rig: &mut Rig, node: u64, segments: &[SegmentId]) {
    rig.catalog.unmount(NodeId(node), segments);
    for at in 11..40 {
        rig.catalog.tick(ms(at));
        rig.settle(ms(at));
    }
}

/// What is lost in VRAM is made anew in VRAM where there is room, else in memory; what is lost in memory
/// never is.
#[test]
fn repairs_follow_the_wish_of_the_put() {
    let lent = [(1, Vram), (2, Vram), (3, Vram), (4, Dram), (5, Dram)];
    let story = |wish: [u8; 3], lost: Medium, lent: &[(u64, Medium)]| {
        let mut rig = Rig::of(config(Offload::Off), lent);
        rig.put_as(ms(1), b"k", &copies(wish));
        let node = rig.place(b"k", lost).segment;
        let node = lent.iter().find(|(n, m)| SegmentId::on(*m, NodeId(*n), 0) == node).unwrap().0;
        lose(&mut rig, node, &[SegmentId::on(lost, NodeId(node), 0)]);
        rig.located(ms(50), b"k")
    };
    assert_eq!(story([2, 0, 0], Vram, &lent), [Vram, Vram]);
    assert_eq!(story([2, 0, 0], Vram, &[(1, Vram), (2, Vram), (4, Dram)]), [Dram, Vram]);
    assert_eq!(story([2, 0, 0], Vram, &[(1, Vram), (2, Vram)]), [Vram]);
    assert_eq!(story([1, 1, 0], Vram, &lent), [Dram, Vram]);
    assert_eq!(story([1, 1, 0], Dram, &lent), [Dram, Vram]);
    assert_eq!(story([0, 2, 0], Dram, &lent), [Dram]);
    assert_eq!(story([0, 2, 0], Dram, &[&lent[..], &[(6, Dram)]].concat()), [Dram, Dram]);
}

/// What is read from a disk comes back to memory, also if VRAM is empty and memory is not.
#[test]
fn promotions_never_go_to_vram() {
    let mut rig = Rig::of(config(Offload::Evict), &[(1, Dram), (1, Vram), (1, Ssd), (2, Vram)]);
    for n in 0..40 {
        rig.put_as(ms(1), &key(n), &in_vram());
        rig.settle(ms(1));
    }
    let cold: Vec<u8> = (0..40).filter(|n| rig.located(ms(2), &key(*n)) == [Ssd]).collect();
    assert!(cold.len() > 4, "{cold:?}");
    for n in 30..40 {
        rig.catalog.remove(ms(3), &key(n), true).unwrap();
    }
    rig.settle(ms(3));
    for at in 4..40 {
        for n in cold.iter().take(3) {
            rig.located(ms(at * 30), &key(*n));
        }
        rig.catalog.heartbeat(ms(at * 30), NodeId(1)).unwrap();
        rig.catalog.heartbeat(ms(at * 30), NodeId(2)).unwrap();
        rig.catalog.tick(ms(at * 30));
        rig.settle(ms(at * 30));
    }
    for n in cold.iter().take(3) {
        assert_eq!(rig.located(ms(2000), &key(*n))[0], Dram, "{n}");
    }
    assert!(rig.catalog.counters().promoted >= 3);
}

/// What many read gets more copies, in memory: VRAM is for those that ask.
#[test]
fn copies_for_many_readers_go_to_memory() {
    let hot = Config { hot_samples: 4, ..config(Offload::Off) };
    let lent = [(1, Vram), (2, Vram), (3, Vram), (4, Dram), (5, Dram)];
    let mut rig = Rig::of(hot, &lent);
    rig.put_as(ms(1), b"k", &in_vram());
    for at in 1..5 {
        let mark = rig.catalog.peek(b"k").unwrap().read_mark(64_000, 1).unwrap();
        let now = ms(at * 1100);
        rig.catalog.note_reads(now, TenantId::DEFAULT, &[mark], &mut Vec::new());
        for node in 1..=5 {
            rig.catalog.heartbeat(now, NodeId(node)).unwrap();
        }
        rig.catalog.tick(now);
        rig.settle(now);
    }
    assert_eq!(rig.located(ms(5000), b"k"), [Dram, Dram, Vram]);
}

#[test]
fn a_copy_that_failed_its_writer_is_planned_on_the_same_medium_or_in_memory() {
    let story = |lent: &[(u64, Medium)], wish: PutConfig| {
        let mut rig = Rig::of(config(Offload::Off), lent);
        let plan = rig.catalog.put_start(ms(1), b"k", KIB, &wish).unwrap();
        let failed = [plan.replicas[0].segment];
        let wish = PutConfig { avoid: failed.to_vec(), ..wish };
        let again = rig.catalog.put_replan(ms(2), b"k", plan.token, &failed, &wish);
        again.map(|plan| plan.replicas[0].segment.medium())
    };
    let all = [(1, Vram), (2, Vram), (3, Dram), (4, Dram)];
    assert_eq!(story(&all, in_vram()), Ok(Vram));
    assert_eq!(story(&all[1..], in_vram()), Ok(Dram));
    assert_eq!(story(&all, PutConfig::default()), Ok(Dram));
    assert!(story(&all[..3], PutConfig::default()).is_err());
}

/// Readers without a GPU come first: memory, then VRAM, then disks.
#[test]
fn memory_stands_before_vram_and_hits_are_counted() {
    let mut rig = Rig::of(config(Offload::Off), &[(1, Vram), (2, Dram), (3, Ssd)]);
    rig.put_as(ms(1), b"all", &copies([1, 1, 1]));
    rig.put_as(ms(1), b"gpu", &in_vram());
    rig.put(ms(1), b"host");
    rig.settle(ms(1));
    assert_eq!(rig.located(ms(2), b"all"), [Dram, Vram, Ssd]);
    assert_eq!(rig.located(ms(2), b"gpu"), [Vram]);
    assert_eq!(rig.located(ms(2), b"host"), [Dram]);
    let counters = rig.catalog.counters();
    assert_eq!((counters.hits, counters.hits_vram, counters.hits_disk), (3, 2, 0));
    assert_eq!(rig.catalog.tenant(TenantId::DEFAULT).used, 4 * KIB);
}

/// By name a copy may be made in VRAM, and is kept there as if the put had asked for it.
#[test]
fn a_copy_in_vram_can_be_asked_for_by_name() {
    let lent = [(1, Vram), (2, Vram), (3, Dram), (4, Dram)];
    let mut rig = Rig::of(config(Offload::Off), &lent);
    rig.put(ms(1), b"k");
    let mut done = false;
    for _ in 0..4 {
        done = rig.catalog.copy(ms(2), b"k", None, vram(1)).unwrap();
        rig.settle(ms(2));
    }
    assert!(done);
    lose(&mut rig, 1, &[vram(1)]);
    assert_eq!(rig.located(ms(50), b"k"), [Dram, Vram]);
}

/// A new leader learns of VRAM as of other memory, and its victims move down under it, too.
#[test]
fn a_new_leader_demotes_what_it_was_told() {
    let mut rig = Rig::of(config(Offload::Evict), &[(1, Vram), (1, Dram)]);
    let mut page = Vec::new();
    for n in 0..7 {
        let plan = rig.catalog.put_start(ms(1), &key(n), KIB, &in_vram()).unwrap();
        rig.catalog.put_end(ms(1), &key(n), plan.token, &[Seal(1)]).unwrap();
        let at = plan.replicas[0];
        let name = mooncrate_core::Key::new(key(n)).unwrap();
        let label = in_vram().label(TenantId::DEFAULT, name, plan.striping, 0);
        let object = AnnouncedObject { label, object: plan.object, len: KIB, seal: Seal(1) };
        let life = Some(AnnouncedLife { extent: at.extent, object: Some(object) });
        page.push(Announced { slot: at.slot, generation: at.generation, life });
    }
    page.sort_by_key(|announced| announced.slot);
    let expected = vec![NodeId(1)];
    let start = Start::Takeover { expected, trusted: rig.catalog.trusted() };
    let now = ms(100);
    rig.catalog = Catalog::new(config(Offload::Evict), LeaderEpoch(2), start, now);
    let offers = [offer(1, Vram, 1), offer(1, Dram, 1)];
    rig.catalog.mount(now, NodeId(1), &offers).unwrap();
    rig.catalog.announce(now, vram(1), offers[0].incarnation, &page, true).unwrap();
    rig.catalog.announce(now, memory(1), offers[1].incarnation, &[], true).unwrap();
    let mut at = now;
    while rig.catalog.rebuilding() || at < now.plus(Duration::from_secs(12)) {
        at = at.plus(Duration::from_millis(100));
        rig.catalog.heartbeat(at, NodeId(1)).unwrap();
        rig.catalog.tick(at);
        rig.settle(at);
    }
    for n in 0..7 {
        assert_eq!(rig.located(at, &key(n)), [Vram], "{n}");
    }
    for n in 10..16 {
        rig.put_as(at, &key(n), &in_vram());
    }
    rig.settle(at);
    let counters = rig.catalog.counters();
    assert!(counters.demoted >= 5 && counters.evicted_unsaved == 0, "{counters:?}");
    for n in 0..7 {
        assert_ne!(rig.located(at, &key(n)), [], "{n}");
    }
}

/// VRAM goes with its node: a victim that is on its way down goes too, and nothing is left booked.
#[test]
fn a_node_that_dies_takes_its_vram_along() {
    let mut rig = Rig::of(config(Offload::Evict), &[(1, Vram), (2, Dram), (2, Ssd)]);
    for n in 0..7 {
        rig.put_as(ms(1), &key(n), &in_vram());
    }
    let _ = rig.start(ms(1), b"more", &in_vram());
    rig.collect();
    assert!(!rig.copies.is_empty(), "some are on their way");
    lose(&mut rig, 1, &[vram(1)]);
    rig.copy(ms(50), true);
    rig.settle(ms(50));
    assert_eq!(rig.catalog.copies_under_way(), 0);
    rig.catalog.audit().unwrap();
}
