//! A store in this process with a disk: dropped, and opened again.

use crate::rig::{
    KIB, MIB, count, disk, embedded, judge, name, offloaded, on_disks, put, until, value,
};
use mooncrate_core::catalog::Offload;

/// More than memory holds, all of it readable and verified, and each get counted by tier.
#[test]
fn more_than_memory_holds_is_readable() {
    let folder = tempfile::tempdir().unwrap();
    let values = 300;
    for offload in [Offload::Eager, Offload::Watermark, Offload::Evict] {
        let path = folder.path().join(offload.to_string());
        let store = embedded(vec![disk(&path, 512)], 16 * MIB, offload);
        for n in 0..values {
            put(&store, n, 256 * KIB);
        }
        let found = count(&store, values);
        assert_eq!(found, values, "{offload}: {:?}", store.stat().unwrap().counters);
        let counts = store.counts();
        assert!(counts.disk > 0 && counts.memory() > 0, "{offload}: {counts:?}");
        assert_eq!(counts.memory() + counts.disk + counts.misses, u64::from(values));
        assert!(store.get(b"nobody").unwrap().is_none());
        assert_eq!(store.counts().misses, counts.misses + 1);
    }
}

/// Restarts are warm, and what was removed stays removed.
#[test]
fn a_restart_is_warm_and_remembers_removals() {
    let folder = tempfile::tempdir().unwrap();
    let values = 100;
    let open = || embedded(vec![disk(folder.path(), 256)], 64 * MIB, Offload::Eager);
    let store = open();
    for n in 0..values {
        put(&store, n, 64 * KIB);
    }
    until("all are on the disk", || offloaded(&store) == u64::from(values));
    for n in 0..10 {
        assert!(store.remove(&name(n), true).unwrap());
    }
    drop(store);
    for turn in 0..3 {
        let store = open();
        assert_eq!(on_disks(&store), u64::from(values) - 10 - turn, "turn {turn}");
        for n in 0..10 {
            assert!(store.get(&name(n)).unwrap().is_none(), "{n} was removed");
        }
        for n in 11 + turn as u32..values {
            judge(n, &store.get(&name(n)).unwrap().unwrap());
        }
        assert!(store.remove(&name(10 + turn as u32), true).unwrap());
        // A key that was removed can be put again, and its new value is the one that comes back.
        drop(store);
    }
    let store = open();
    store.put(&name(0), b"another value").unwrap();
    until("it is on the disk", || offloaded(&store) == 1);
    drop(store);
    assert_eq!(open().get(&name(0)).unwrap().unwrap(), b"another value");
}

/// Whole values, batches, ranges, sessions and views of what is on a disk only.
#[test]
fn every_call_reads_from_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let lens = [0, 1, 5000, MIB, 3 * MIB + 77, 20 * MIB + 1];
    let open = || embedded(vec![disk(folder.path(), 256)], 64 * MIB, Offload::Eager);
    let store = open();
    for (n, len) in (0..).zip(lens) {
        put(&store, n, len);
    }
    until("all are on the disk", || offloaded(&store) == lens.len() as u64);
    drop(store);
    let store = open();
    crate::paths::read_all_ways(&store, &lens);
    assert!(store.counts().disk > 0);
}

/// A disk that is full makes room by itself: the oldest go, and what is found is right.
#[test]
fn a_full_disk_makes_room() {
    let folder = tempfile::tempdir().unwrap();
    let store = embedded(vec![disk(folder.path(), 32)], 8 * MIB, Offload::Eager);
    // It holds 128 at most.
    let mut values = 0;
    until("more has passed through the disk than it holds", || {
        put(&store, values, 256 * KIB);
        values += 1;
        offloaded(&store) > 250
    });
    let evicted = store.stat().unwrap().counters.disk_evicted;
    assert!(evicted > 100, "{evicted} evicted");
    let found = count(&store, values);
    assert!(found > 20 && found < values, "{found} of {values}");
    drop(store);
    let store = embedded(vec![disk(folder.path(), 32)], 8 * MIB, Offload::Eager);
    let found = count(&store, values);
    assert!(found > 10 && found < values, "{found} of {values} after a restart");
    assert_eq!(count(&store, 50), 0, "the oldest");
}

/// Two disks share what is offloaded.
#[test]
fn several_disks_share_the_load() {
    let folder = tempfile::tempdir().unwrap();
    let disks = || {
        let mut disks =
            vec![disk(&folder.path().join("a"), 64), disk(&folder.path().join("b"), 64)];
        disks[1].io = mooncrate::Io::Posix;
        disks
    };
    let store = embedded(disks(), 32 * MIB, Offload::Eager);
    for n in 0..100 {
        put(&store, n, 64 * KIB);
    }
    until("all are on disks", || offloaded(&store) == 100);
    let stat = store.stat().unwrap();
    let disk = |row: &&mooncrate::SegmentRow| row.offer.medium == mooncrate_core::plan::Medium::Ssd;
    let shares: Vec<u64> = stat.segments.iter().filter(disk).map(|row| row.objects).collect();
    assert!(shares.len() == 2 && shares.iter().all(|share| *share > 10), "{shares:?}");
    drop(store);
    assert_eq!(count(&embedded(disks(), 32 * MIB, Offload::Eager), 100), 100);
}

/// Two processes never share a directory: the second is told who has it.
#[test]
fn a_directory_has_one_owner() {
    let folder = tempfile::tempdir().unwrap();
    let store = embedded(vec![disk(folder.path(), 64)], 8 * MIB, Offload::Eager);
    let options = mooncrate::EmbeddedOptions {
        ssd: vec![disk(folder.path(), 64)],
        ..mooncrate::EmbeddedOptions::default()
    };
    let refused = mooncrate::Store::embedded(options).unwrap_err().to_string();
    assert!(refused.contains("ssd"), "{refused}");
    store.put(&name(0), &value(0, 100)).unwrap();
    assert_eq!(count(&store, 1), 1);
}
