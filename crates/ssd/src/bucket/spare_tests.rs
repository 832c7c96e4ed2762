//! Spare files of buckets: when there is one, what is written over it, and what is not.

use super::state::Pin;
use super::tests::{FULL, RECORD, config, disk, evict, id, keep, load, open};
use super::{Buckets, Shared, data_path};
use crate::disk::sim::{Rates, SimDisk};
use crate::spare::HasSpares;
use crate::{Backend, Config, Disk, NewRecord, Open};
use mooncrate_mem::clock::boottime;
use mooncrate_mem::sums::seal_of;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of spares, and of open buckets behind their ends.
fn spare_and_slack(buckets: &Buckets) -> (u64, u64) {
    let state = buckets.0.state.lock();
    (state.spares.bytes(), state.books.slack)
}

/// The next bucket is written over the file of one that is gone, and cut off where it ends.
#[test]
fn a_file_is_used_again() {
    let (mut disk, config) = (disk(), config());
    let (buckets, _) = open(&disk, &config);
    keep(&buckets, 0..12);
    evict(&buckets);
    evict(&buckets);
    let (full, used) = (disk.file_bytes(), buckets.usage().used);
    assert_eq!((spare_and_slack(&buckets), full - used), ((2 * FULL, 0), 2 * FULL));
    let promised = buckets.promised();
    keep(&buckets, 12..13);
    assert_eq!(spare_and_slack(&buckets), (FULL, 3 * RECORD));
    assert_eq!((buckets.usage().on_disk, disk.file_bytes()), (full, full), "nothing grew");
    assert!(buckets.promised() >= promised + FULL, "the rest of the file is nobody else's");
    keep(&buckets, 13..16);
    assert_eq!(spare_and_slack(&buckets), (FULL, 0));
    keep(&buckets, 16..17);
    assert_eq!(spare_and_slack(&buckets), (0, 3 * RECORD));
    buckets.settle().unwrap();
    assert_eq!(spare_and_slack(&buckets), (0, 0), "closed");
    assert_eq!(buckets.usage().on_disk, disk.file_bytes());
    evict(&buckets);
    disk = Arc::new(disk.crash());
    let (buckets, recovery) = open(&disk, &config);
    assert_eq!((recovery.records, recovery.dropped), (5, 0));
    assert_eq!(spare_and_slack(&buckets), (FULL, 0), "a start finds them");
    assert_eq!(buckets.usage().on_disk, disk.file_bytes());
    (12..17).for_each(|number| load(&buckets, number).unwrap());
}

/// A process ends while a bucket is open whose file is longer: nothing of what it held before is told, however often
/// the directory is opened, and nothing counts as torn. What is torn does.
#[test]
fn what_lay_in_a_spare_is_no_record() {
    for torn in [false, true] {
        let (disk, config) = (disk(), config());
        let (buckets, _) = open(&disk, &config);
        keep(&buckets, 0..4);
        evict(&buckets);
        keep(&buckets, 4..6);
        let spot = buckets.0.state.lock().index[&id(5)].clone();
        assert_eq!(spare_and_slack(&buckets), (0, 2 * RECORD));
        drop(buckets);
        if torn {
            // In the checksum of its head, which ends the fixed part.
            let byte = spot.offset + crate::record::FIXED_BYTES as u64 - 1;
            disk.flip(&data_path(spot.bucket.id), byte, 1).unwrap();
        }
        let kept = if torn { 1 } else { 2 };
        for start in 0..3 {
            let (buckets, recovery) = open(&disk, &config);
            let dropped = u64::from(torn && start == 0);
            assert_eq!((recovery.records, recovery.dropped), (kept, dropped), "start {start}");
            assert_eq!(buckets.usage().on_disk, disk.file_bytes());
            load(&buckets, 4).unwrap();
            assert_eq!(load(&buckets, 5).is_err(), torn);
        }
    }
}

/// Nothing is written over a file that somebody reads, that may come back (G6), or where the disk may be bad.
#[test]
fn a_file_that_is_not_gone_for_good_is_no_spare() {
    let (disk, config) = (disk(), config());
    let (buckets, _) = open(&disk, &config);
    keep(&buckets, 0..20);
    let pin = Pin::new(&buckets.0.state.lock().index[&id(0)].bucket);
    evict(&buckets);
    assert_eq!(spare_and_slack(&buckets), (0, 0), "it is read");
    disk.set_rates(Rates { sync_error: 1_000_000, ..Rates::default() });
    buckets.unlink(1).unwrap().finish(Duration::ZERO).unwrap_err();
    disk.set_rates(Rates::default());
    assert_eq!(spare_and_slack(&buckets), (0, 0), "its eviction is not durable");
    assert_eq!(buckets.0.state.lock().coming, 0, "nor does it come");
    assert_eq!(buckets.usage().on_disk, disk.file_bytes());
    let spot = buckets.0.state.lock().index[&id(8)].clone();
    assert!(buckets.0.quarantine(id(8), spot.bucket.id, spot.offset));
    evict(&buckets);
    assert_eq!(spare_and_slack(&buckets), (0, 0), "a record in it is bad");
    let spot = buckets.0.state.lock().index[&id(12)].clone();
    let ticket = buckets.unlink(1).unwrap();
    assert!(buckets.0.quarantine(id(12), spot.bucket.id, spot.offset));
    ticket.finish(Duration::ZERO).unwrap();
    assert_eq!(spare_and_slack(&buckets), (0, 0), "it was found while it was hidden");
    evict(&buckets);
    assert_eq!(spare_and_slack(&buckets), (FULL, 0), "a good one");
    assert!(buckets.0.state.lock().bad.len() < 3, "what is gone is forgotten");
    drop(pin);
    drop(buckets.unlink(1));
    assert_eq!(buckets.usage().on_disk, disk.file_bytes());
}

/// A spare that somebody deleted or cut is made anew; one that the disk fails on goes.
#[test]
fn a_spare_that_is_not_as_it_was_is_mended() {
    let (disk, config) = (disk(), config());
    let (buckets, _) = open(&disk, &config);
    for how in 0..3 {
        keep(&buckets, 0..4);
        let bucket = buckets.0.state.lock().index[&id(0)].bucket.id;
        evict(&buckets);
        assert_eq!(spare_and_slack(&buckets), (FULL, 0));
        match how {
            0 => disk.remove(&Shared::path(bucket)).unwrap(),
            1 => disk.open(&Shared::path(bucket), Open::Write).unwrap().set_len(RECORD).unwrap(),
            _ => {
                disk.set_rates(Rates { sync_error: 1_000_000, ..Rates::default() });
                let value = vec![9; 9000];
                let seal = seal_of(&value);
                let record = NewRecord { id: id(9), label: b"l", seal, value: &value };
                buckets.keep(&[record]).remove(0).unwrap_err();
                disk.set_rates(Rates::default());
                buckets.0.reclaim();
                assert_eq!(spare_and_slack(&buckets), (0, 0));
                assert_eq!(buckets.usage().on_disk, disk.file_bytes());
                buckets.remove(&[id(9)]).unwrap();
            }
        }
        keep(&buckets, 0..1);
        load(&buckets, 0).unwrap();
        assert_eq!(buckets.usage().on_disk, disk.file_bytes());
        evict(&buckets);
        buckets.0.delete_spares();
    }
    assert_eq!(buckets.usage().on_disk, buckets.usage().used);
}

/// Spares take no room from records, nor from others on the file system.
#[test]
fn spares_give_way() {
    let limit = 16 << 20;
    let mut config = Config { limit_bytes: limit, spare_room: limit / 32, ..config() };
    (config.bucket_records_max, config.open_buckets_max) = (100, 1);
    let disk = Arc::new(SimDisk::new(1, limit + limit / 4, Rates::default()));
    let (buckets, _) = open(&disk, &config);
    let mut number = 0;
    let mut fill = |buckets: &Buckets| {
        while limit - buckets.promised() > 2 * FULL {
            keep(buckets, number..number + 1);
            number += 1;
            let usage = buckets.usage();
            assert!(usage.on_disk <= usage.limit, "{usage:?}");
            assert_eq!(usage.on_disk, disk.file_bytes());
            let state = buckets.0.state.lock();
            let all = state.promised(0) + state.spares.bytes();
            assert!(all <= limit, "spares take room that is promised: {all}");
        }
        number
    };
    fill(&buckets);
    evict(&buckets);
    let (one, _) = spare_and_slack(&buckets);
    assert!(one > 0);
    // The open bucket grows into its room.
    fill(&buckets);
    assert_eq!(spare_and_slack(&buckets), (0, 0));
    (0..6).for_each(|_| evict(&buckets));
    assert_eq!(spare_and_slack(&buckets).0, limit / 8 / one * one, "so many at most");
    let kept = fill(&buckets);
    // Somebody else takes what is left.
    let other = disk.open(Path::new("other"), Open::Create).unwrap();
    let others = || {
        other.set_len(disk.free_bytes().unwrap() - limit / 64).unwrap();
        other.sync_data().unwrap();
        disk.sync_dir(Path::new("")).unwrap();
    };
    evict(&buckets);
    assert!(spare_and_slack(&buckets).0 > 0);
    others();
    evict(&buckets);
    assert_eq!(spare_and_slack(&buckets).0, 0, "an eviction deletes them");
    other.set_len(0).unwrap();
    evict(&buckets);
    assert!(spare_and_slack(&buckets).0 > 0);
    others();
    let next = Arc::new(disk.crash());
    let (buckets, _) = open(&next, &config);
    assert_eq!(spare_and_slack(&buckets), (0, 0), "a start, too");
    load(&buckets, kept - 1).unwrap();
}

/// What a record needs and spares or open buckets have, they give back; what is promised to a record is no spare's.
#[test]
fn nothing_is_refused_for_room_that_nobody_needs() {
    let limit = 2 << 20;
    let mut config = Config { limit_bytes: limit, spare_room: 0, ..config() };
    config.bucket_records_max = 20;
    let disk = Arc::new(SimDisk::new(1, 2 * limit, Rates::default()));
    let (buckets, _) = open(&disk, &config);
    let mut rng = mooncrate_core::rng::Rng::new(5);
    let (mut refused, mut slack) = (0, 0);
    for number in 0..3000 {
        let value = vec![number as u8; 1 + rng.below(9000) as usize];
        let record =
            || NewRecord { id: id(number), label: b"l", seal: seal_of(&value), value: &value };
        while buckets.keep(&[record()]).remove(0).is_err() {
            let state = buckets.0.state.lock();
            let (promised, left) = (state.promised(1), state.books.slack);
            drop(state);
            // The record, and metadata that grow by a block.
            let need = (value.len() as u64 + 200).next_multiple_of(4096) + 4096;
            assert_eq!(left, 0);
            assert!(promised + need > limit, "{promised} of {limit}, {} are wanted", value.len());
            refused += 1;
            evict(&buckets);
        }
        let mut state = buckets.0.state.lock();
        slack += u32::from(state.books.slack > 0);
        assert!(Shared::leave_room(&mut state, &config));
    }
    assert!(refused > 20 && slack > 20, "{refused} refused, {slack} times slack");
    buckets.settle().unwrap();
    evict(&buckets);
    let mut state = buckets.0.state.lock();
    let more = limit - state.promised(0) - state.spares.bytes() + 1;
    state.books.reserved += more;
    assert_eq!(state.take_spare(&config), None, "its room is promised");
    state.books.reserved -= more;
    assert!(state.take_spare(&config).is_some());
}

/// A file that has two names, after a power cut on a file system without a journal, is a bucket.
#[test]
fn a_bucket_that_is_also_named_as_a_spare_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let config = config();
    let open = || {
        let disk = Arc::new(crate::disk::Posix::open(folder.path()).unwrap()) as Arc<dyn Disk>;
        Buckets::open(disk, &config, &mut |_| {}, &mut |_| {}).unwrap()
    };
    let (buckets, _) = open();
    keep(&buckets, 0..4);
    evict(&buckets);
    keep(&buckets, 4..8);
    let bucket = buckets.0.state.lock().index[&id(4)].bucket.id;
    drop(buckets);
    let (is, also) = (data_path(bucket), Shared::path(1));
    std::fs::hard_link(folder.path().join(is), folder.path().join(&also)).unwrap();
    let (buckets, recovery) = open();
    assert_eq!((recovery.records, recovery.orphans), (4, 1));
    assert_eq!(spare_and_slack(&buckets), (0, 0));
    assert!(!folder.path().join(also).exists());
    keep(&buckets, 8..16);
    (4..16).for_each(|number| load(&buckets, number).unwrap());
}

/// A bucket that is opened waits for a spare that is about to come, and not for one that does not.
#[test]
fn a_spare_that_is_about_to_come_is_awaited() {
    let (disk, config) = (disk(), config());
    let (buckets, _) = open(&disk, &config);
    let shared = &*buckets.0;
    keep(&buckets, 0..4);
    evict(&buckets);
    assert_eq!(shared.state.lock().coming, 0, "it is here");
    let spare = shared.await_spare();
    assert!(spare.is_some());
    assert_eq!(shared.await_spare(), None);
    let (serial, len) = spare.unwrap();
    // A thread may be late: one of them is not.
    let came = (0..20).any(|_| {
        let mut state = shared.state.lock();
        while state.spares.take(len).is_some() {}
        (state.books.slack, state.coming) = (0, 1);
        drop(state);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(2));
                let mut state = shared.state.lock();
                state.spares.add(len, serial);
                state.coming = 0;
                drop(state);
                shared.changed.notify_all();
            });
            shared.await_spare().is_some()
        })
    });
    assert!(came);
    shared.state.lock().coming = 1;
    let begun = boottime();
    assert_eq!(shared.await_spare(), None, "not for long");
    assert!(boottime().since(begun) >= Duration::from_millis(40), "nobody wakes it");
}
