//! What is special to buckets: orphans, numbers, handles, spare files, the log of removed records.

use super::state::Pin;
use super::{Buckets, data_path, dead_path, meta_path};
use crate::disk::sim::{Rates, SimDisk};
use crate::spare::HasSpares;
use crate::{
    Backend, Config, Disk, Evict, KeepError, Kind, Load, LoadError, NewRecord, Open, RecordId,
    Recovery,
};
use mooncrate_core::{LeaderEpoch, ObjectId};
use mooncrate_mem::sums::seal_of;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

pub(super) fn config() -> Config {
    let mut config = Config::new(Kind::Bucket, 32 << 20);
    config.bucket_records_max = 4;
    config.handles_max = 3;
    config
}

pub(super) fn open(disk: &Arc<SimDisk>, config: &Config) -> (Buckets, Recovery) {
    let disk = Arc::clone(disk) as Arc<dyn Disk>;
    Buckets::open(disk, config, &mut |_| {}, &mut |_| {}).unwrap()
}

pub(super) fn disk() -> Arc<SimDisk> {
    Arc::new(SimDisk::new(1, 64 << 20, Rates::default()))
}

pub(super) fn id(number: u64) -> RecordId {
    RecordId { object: ObjectId { epoch: LeaderEpoch(1), sequence: number }, stripe: 0 }
}

fn try_keep(buckets: &Buckets, number: u64) -> Result<(), KeepError> {
    let value = vec![number as u8; 9000];
    let record = NewRecord { id: id(number), label: b"l", seal: seal_of(&value), value: &value };
    buckets.keep(&[record]).remove(0)
}

pub(super) fn keep(buckets: &Buckets, numbers: std::ops::Range<u64>) {
    numbers.for_each(|number| try_keep(buckets, number).unwrap());
}

/// Keeps 0 and 1; a keep of 9 into the same bucket fails with the disk.
fn keep_and_fail(disk: &SimDisk, buckets: &Buckets) {
    keep(buckets, 0..2);
    disk.set_rates(Rates { sync_error: 1_000_000, ..Rates::default() });
    try_keep(buckets, 9).unwrap_err();
    disk.set_rates(Rates::default());
    buckets.settle().unwrap();
}

/// Ten buckets whose metadata a power cut took.
fn fill_without_metadata(disk: &Arc<SimDisk>, config: &Config) {
    keep(&open(disk, config).0, 0..40);
    for bucket in 1..=10 {
        disk.remove(&meta_path(bucket)).unwrap();
    }
}

pub(super) fn load(buckets: &Buckets, number: u64) -> Result<(), LoadError> {
    let value = vec![number as u8; 9000];
    let (len, mut into) = (9000, vec![0; 9000]);
    let (label, seal, sums) = (&b"l"[..], seal_of(&value), None);
    let (id, start, want, into_) = (id(number), 0, len, &mut into[..]);
    let mut loads = [Load { id, label, len, seal, start, want, into: into_, sums, result: Ok(()) }];
    buckets.load(&mut loads);
    let [Load { result, .. }] = loads;
    result.inspect(|()| assert_eq!(into, value))
}

/// Bytes of a record of these tests, and of a bucket full of them.
pub(super) const RECORD: u64 = 12 << 10;
pub(super) const FULL: u64 = 4 * RECORD;

pub(super) fn evict(buckets: &Buckets) {
    buckets.unlink(1).unwrap().finish(Duration::ZERO).unwrap();
}

fn exists(disk: &SimDisk, path: &Path) -> bool {
    let entries = disk.list(Path::new("")).unwrap();
    entries.iter().any(|entry| Path::new(&entry.name) == path)
}

/// A reader that stays longer than an eviction waits keeps its file; the next start removes it (S1).
#[test]
fn what_is_read_for_too_long_becomes_an_orphan() {
    let (disk, config) = (disk(), config());
    let (buckets, _) = open(&disk, &config);
    keep(&buckets, 0..4);
    let bucket = Arc::clone(&buckets.0.state.lock().index[&id(0)].bucket);
    let pin = Pin::new(&bucket);
    let ticket = buckets.unlink(1).unwrap();
    ticket.finish(Duration::from_millis(20)).unwrap();
    assert!(exists(&disk, &dead_path(bucket.id)) && !exists(&disk, &data_path(bucket.id)));
    assert_eq!(buckets.usage().on_disk, disk.file_bytes(), "it still counts");
    // Nothing in an orphan comes back, so its records may be kept again.
    keep(&buckets, 0..1);
    buckets.remove(&[id(0)]).unwrap();
    let crashed = Arc::new(disk.crash());
    let (_, recovery) = open(&crashed, &config);
    assert_eq!((recovery.records, recovery.orphans), (0, 1));
    drop(pin);
}

#[test]
fn an_orphan_goes_when_its_reader_has_left() {
    let (disk, config) = (disk(), config());
    let (buckets, _) = open(&disk, &config);
    keep(&buckets, 0..8);
    let bucket = Arc::clone(&buckets.0.state.lock().index[&id(0)].bucket);
    let pin = Pin::new(&bucket);
    buckets.unlink(1).unwrap().finish(Duration::ZERO).unwrap();
    drop(pin);
    drop(buckets.unlink(1));
    assert!(!exists(&disk, &dead_path(bucket.id)));
    assert_eq!(buckets.usage().on_disk, disk.file_bytes());
}

/// A power cut took the metadata of many buckets, and at the start the limit left nothing to write them with: who keeps
/// is told that the disk is full, not that it failed, and makes room.
#[test]
fn many_buckets_without_metadata_are_no_failure() {
    let (disk, mut config) = (disk(), config());
    fill_without_metadata(&disk, &config);
    config.limit_bytes = 40 * RECORD;
    let (buckets, recovery) = open(&disk, &config);
    assert_eq!((recovery.records, buckets.0.state.lock().unsealed.len()), (40, 10));
    let kept = try_keep(&buckets, 40);
    assert!(matches!(kept, Err(KeepError::Full { .. })), "{kept:?}");
    while buckets.promised() + FULL > config.limit_bytes {
        evict(&buckets);
    }
    keep(&buckets, 40..41);
    assert_eq!(buckets.usage().on_disk, disk.file_bytes());
}

/// The same on a disk that has no room for them.
#[test]
fn many_buckets_without_metadata_are_no_failure_on_a_full_disk() {
    let (disk, config) = (disk(), config());
    fill_without_metadata(&disk, &config);
    let other = disk.open(Path::new("other"), Open::Create).unwrap();
    other.set_len(disk.free_bytes().unwrap()).unwrap();
    let (buckets, recovery) = open(&disk, &config);
    assert_eq!((recovery.records, buckets.0.state.lock().unsealed.len()), (40, 10));
    let kept = try_keep(&buckets, 40);
    assert!(matches!(kept, Err(KeepError::Full { .. })), "{kept:?}");
    // Spares are of no use here, so evictions give room.
    for _ in 0..3 {
        evict(&buckets);
        buckets.0.delete_spares();
    }
    keep(&buckets, 40..41);
    assert_eq!(buckets.0.state.lock().unsealed.len(), 0);
}

/// A record is evicted from the bucket that it was kept in after a first try had failed. What that left in another
/// bucket does not come back with a power cut (S12, G6).
#[test]
fn what_a_failed_keep_left_does_not_come_back_after_an_eviction() {
    let mut left = 0;
    for seed in 0..100 {
        let mut config = config();
        config.evict = Evict::Lru;
        let disk = Arc::new(SimDisk::new(seed, 64 << 20, Rates::default()));
        let (buckets, _) = open(&disk, &config);
        keep_and_fail(&disk, &buckets);
        keep(&buckets, 9..13);
        load(&buckets, 0).unwrap();
        evict(&buckets);
        assert!(load(&buckets, 0).is_ok() && load(&buckets, 9).is_err());
        drop(buckets);
        let disk = Arc::new(disk.crash());
        let file = disk.open(&data_path(1), Open::Read).unwrap();
        left += u64::from(file.len().unwrap() > 2 * RECORD);
        let (mut found, disk) = (Vec::new(), disk as Arc<dyn Disk>);
        Buckets::open(disk, &config, &mut |record| found.push(record.id), &mut drop).unwrap();
        found.sort();
        assert_eq!(found, [id(0), id(1)], "seed {seed}");
    }
    assert!(left > 0, "a keep that fails leaves nothing: the test shows nothing");
}

/// A scrub, or a load that began before, finds a record bad that is hidden meanwhile: taking that back does
/// not serve it again.
#[test]
fn what_is_found_bad_while_it_is_hidden_stays_hidden() {
    let (disk, config) = (disk(), config());
    let (buckets, _) = open(&disk, &config);
    keep(&buckets, 0..4);
    let spot = buckets.0.state.lock().index[&id(1)].clone();
    let ticket = buckets.unlink(1).unwrap();
    assert!(buckets.0.quarantine(id(1), spot.bucket.id, spot.offset));
    drop(ticket);
    assert!(matches!(load(&buckets, 1), Err(LoadError::Missing)));
    load(&buckets, 0).unwrap();
    assert_eq!(buckets.usage().records, 3);
    buckets.remove(&[id(1)]).unwrap();
    assert!(!buckets.0.quarantine(id(1), spot.bucket.id, spot.offset), "it is gone");
}

/// A keep that failed with the disk left its record behind the end that the metadata name. It is not told, and
/// it must not be when the metadata are lost later.
#[test]
fn what_a_failed_keep_left_does_not_come_back_without_metadata() {
    let mut kept_bytes = 0;
    for seed in 0..20 {
        let (mut disk, config) =
            (Arc::new(SimDisk::new(seed, 64 << 20, Rates::default())), config());
        let (buckets, _) = open(&disk, &config);
        keep_and_fail(&disk, &buckets);
        let bucket = buckets.0.state.lock().index[&id(0)].bucket.id;
        drop(buckets);
        let bytes = |disk: &SimDisk| {
            let entries = disk.list(Path::new("")).unwrap();
            let data = entries.iter().find(|entry| Path::new(&entry.name) == data_path(bucket));
            data.unwrap().len
        };
        let before = bytes(&disk);
        disk = Arc::new(disk.kill());
        let (buckets, recovery) = open(&disk, &config);
        assert_eq!(recovery.records, 2);
        kept_bytes += u64::from(bytes(&disk) < before);
        assert_eq!(buckets.usage().on_disk, disk.file_bytes());
        drop(buckets);
        disk.remove(&super::meta_path(bucket)).unwrap();
        disk = Arc::new(disk.kill());
        assert_eq!(open(&disk, &config).1.records, 2, "seed {seed}");
    }
    assert!(kept_bytes > 0, "a keep that fails leaves nothing: the test shows nothing");
}

/// A removal reaches what a failed keep left, also when the metadata were written in between: they may be lost (G6).
#[test]
fn what_a_failed_keep_left_is_removed_after_its_bucket_was_closed() {
    let mut told = 0;
    for (removes, seed) in [false, true].into_iter().flat_map(|is| (0..20).map(move |at| (is, at)))
    {
        let (disk, config) = (Arc::new(SimDisk::new(seed, 64 << 20, Rates::default())), config());
        let (buckets, _) = open(&disk, &config);
        keep_and_fail(&disk, &buckets);
        let bucket = buckets.0.state.lock().index[&id(0)].bucket.id;
        if removes {
            buckets.remove(&[id(9)]).unwrap();
        }
        drop(buckets);
        disk.remove(&super::meta_path(bucket)).unwrap();
        let (_, recovery) = open(&Arc::new(disk.kill()), &config);
        assert!(!removes || recovery.records == 2, "seed {seed}");
        told += u64::from(recovery.records == 3);
    }
    assert!(told > 0, "nothing was left: the test shows nothing");
}

/// Two records share a block, and the head of the second goes on in the next block, which cannot be read when
/// the directory is opened: it is not told, and not when the disk reads it again, with or without metadata.
#[test]
fn what_cannot_be_read_in_the_last_block_does_not_come_back() {
    let mut hidden = 0;
    for seed in 0..200 {
        let (mut disk, config) =
            (Arc::new(SimDisk::new(seed, 64 << 20, Rates::default())), config());
        let (buckets, _) = open(&disk, &config);
        let values = [vec![1; 3960], vec![2; 300]];
        let record = |number: usize| {
            let value = &values[number][..];
            NewRecord { id: id(number as u64), label: b"l", seal: seal_of(value), value }
        };
        buckets.keep(&[record(0), record(1)]).into_iter().for_each(Result::unwrap);
        drop(buckets);
        let mut told = None;
        for _ in 0..8 {
            disk = Arc::new(disk.kill());
            let rate = if told.is_none() { 600_000 } else { 0 };
            disk.set_rates(Rates { read_error: rate, ..Rates::default() });
            let seen = Arc::clone(&disk) as Arc<dyn Disk>;
            let opened = Buckets::open(seen, &config, &mut |_| {}, &mut |_| {});
            disk.set_rates(Rates::default());
            let Ok((_, recovery)) = opened else { continue };
            assert_eq!(*told.get_or_insert(recovery.records), recovery.records, "seed {seed}");
            for entry in disk.list(Path::new("")).unwrap() {
                if Path::new(&entry.name).extension().is_some_and(|ending| ending == "meta") {
                    disk.remove(Path::new(&entry.name)).unwrap();
                }
            }
        }
        hidden += u64::from(told == Some(1));
    }
    assert!(hidden > 3, "{hidden}");
}

/// A start cuts a bucket behind its last record and fills the last block up again. The power failed in between:
/// the record is still there, and the books are right.
#[test]
fn a_bucket_that_ends_inside_of_a_block_is_whole_again() {
    let (disk, config) = (disk(), config());
    let (buckets, _) = open(&disk, &config);
    keep(&buckets, 0..1);
    let spot = buckets.0.state.lock().index[&id(0)].clone();
    drop(buckets);
    let file = disk.open(&data_path(spot.bucket.id), Open::Write).unwrap();
    let end = spot.offset + spot.shape.bytes();
    assert!(!end.is_multiple_of(crate::ALIGN as u64), "else this shows nothing");
    file.set_len(end).unwrap();
    drop(file);
    let (buckets, recovery) = open(&disk, &config);
    assert_eq!(recovery.records, 1);
    load(&buckets, 0).unwrap();
    assert_eq!(buckets.usage().on_disk, disk.file_bytes());
}

/// Bucket numbers are never used again, also if everything is deleted in between (S6).
#[test]
fn numbers_only_grow() {
    let (disk, config) = (disk(), config());
    let mut last = 0;
    for _ in 0..3 {
        let (buckets, _) = open(&disk, &config);
        keep(&buckets, 0..9);
        let first = *buckets.0.state.lock().bins.keys().next().unwrap();
        assert!(first > last, "{first} after {last}");
        last = *buckets.0.state.lock().bins.keys().last().unwrap();
        while let Some(ticket) = buckets.unlink(1 << 20) {
            ticket.finish(Duration::ZERO).unwrap();
        }
    }
}

#[test]
fn files_that_are_held_open_are_bounded_and_let_go() {
    let (disk, config) = (disk(), config());
    let (buckets, _) = open(&disk, &config);
    keep(&buckets, 0..40);
    for number in 0..40 {
        load(&buckets, number).unwrap();
    }
    assert_eq!(buckets.0.handles.len(), 3);
    while let Some(ticket) = buckets.unlink(1 << 20) {
        ticket.finish(Duration::ZERO).unwrap();
    }
    assert_eq!(buckets.0.handles.len(), 0, "the handle goes before the file");
}

/// Removals of many threads share writes, the log is written anew, and nothing removed comes back.
#[test]
fn the_log_of_removed_records_stays_short() {
    let (disk, mut config) = (disk(), config());
    // Large buckets with few survivors: their removed records must stay in the log.
    config.bucket_records_max = 400;
    let (buckets, _) = open(&disk, &config);
    keep(&buckets, 0..400);
    thread::scope(|scope| {
        for part in 0..4 {
            let buckets = &buckets;
            scope.spawn(move || {
                for number in (part..400).step_by(4).filter(|number| number % 50 != 0) {
                    buckets.remove(&[id(number)]).unwrap();
                }
            });
        }
    });
    let log = buckets.0.removed.bytes();
    assert!(log < 200 << 10, "{log} bytes for 392 removals");
    assert_eq!(buckets.usage().on_disk, disk.file_bytes());
    let crashed = Arc::new(disk.crash());
    let (buckets, recovery) = open(&crashed, &config);
    assert_eq!((recovery.records, recovery.removed), (8, 392));
    load(&buckets, 50).unwrap();
    assert!(matches!(load(&buckets, 51), Err(LoadError::Missing)));
    // With the last record the bucket goes, and the log with it.
    let rest: Vec<RecordId> = (0..400).step_by(50).map(id).collect();
    buckets.remove(&rest).unwrap();
    assert_eq!(buckets.usage().on_disk, crashed.file_bytes());
    assert_eq!(buckets.usage().used, buckets.0.identity.bytes() + buckets.0.removed.bytes());
    let (_, recovery) = open(&crashed, &config);
    assert_eq!((recovery.records, recovery.removed), (0, 0));
}

/// A bucket is evicted while one of its records is being removed: the log holds nothing for a bucket that is
/// gone, or it would for ever.
#[test]
fn a_removal_that_comes_after_its_bucket_went_leaves_nothing() {
    let (disk, config) = (disk(), config());
    let buckets = Arc::new(open(&disk, &config).0);
    keep(&buckets, 0..8);
    let (evicts, me) = (Arc::clone(&buckets), thread::current().id());
    let hook = move |point: &str| {
        // Other tests may pass points at the same time.
        if point == "removed.hidden" && thread::current().id() == me {
            while let Some(ticket) = evicts.unlink(1) {
                ticket.finish(Duration::ZERO).unwrap();
            }
        }
    };
    assert!(crate::points::set_hook(Box::new(hook)), "no other test of this process has a hook");
    buckets.remove(&[id(0), id(5)]).unwrap();
    assert_eq!(buckets.0.removed.live(), 0);
    assert_eq!(buckets.usage().on_disk, disk.file_bytes());
    // Nothing else is forgotten: what is removed stays removed.
    keep(&buckets, 20..22);
    buckets.0.removed.append(&[]).unwrap();
    let bucket = buckets.0.state.lock().index[&id(20)].bucket.id;
    let place = super::removed::Place { bucket, offset: 0, id: id(20) };
    buckets.0.removed.append(&[place]).unwrap();
    assert_eq!(buckets.0.removed.live(), 1);
}
