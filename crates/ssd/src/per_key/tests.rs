//! What is special to a file for each record: files that get another name while they are read, and spare ones.

use super::PerKey;
use crate::disk::WriteAt;
use crate::disk::sim::{Rates, SimDisk};
use crate::spare::HasSpares;
use crate::{
    ALIGN, Backend, Config, Disk, KeepError, Kind, Load, NewRecord, Open, OpenError, RecordId,
};
use mooncrate_core::{LeaderEpoch, ObjectId};
use mooncrate_mem::crc::crc;
use mooncrate_mem::sums::seal_of;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const LIMIT: u64 = 32 << 20;
/// Bytes of the values here, and of their files.
const LEN: usize = 9000;
const FILE: u64 = 12 << 10;

fn open(disk: &Arc<SimDisk>) -> (PerKey, u64) {
    let disk = Arc::clone(disk) as Arc<dyn Disk>;
    let config = Config::new(Kind::PerKey, LIMIT);
    let (backend, recovery) = PerKey::open(disk, &config, &mut |_| {}, &mut |_| {}).unwrap();
    (backend, recovery.records)
}

fn id(sequence: u64) -> RecordId {
    RecordId { object: ObjectId { epoch: LeaderEpoch(1), sequence }, stripe: 0 }
}

fn keep(backend: &PerKey, sequence: u64) {
    try_keep(backend, sequence, LEN).unwrap();
}

fn value(sequence: u64, len: usize) -> Vec<u8> {
    sequence.to_le_bytes().into_iter().cycle().take(len).collect()
}

fn try_keep(backend: &PerKey, sequence: u64, len: usize) -> Result<(), KeepError> {
    let value = value(sequence, len);
    let record = NewRecord { id: id(sequence), label: b"l", seal: seal_of(&value), value: &value };
    backend.keep(&[record]).remove(0)
}

fn is_right(backend: &PerKey, sequence: u64) -> bool {
    let mut into = vec![0; LEN];
    let seal = seal_of(&value(sequence, LEN));
    let mut loads = [Load {
        id: id(sequence),
        label: b"l",
        len: LEN as u64,
        seal,
        start: 0,
        want: LEN as u64,
        into: &mut into,
        sums: None,
        result: Ok(()),
    }];
    backend.load(&mut loads);
    let [load] = loads;
    load.result.is_ok() && into == value(sequence, LEN)
}

fn spare_bytes(backend: &PerKey) -> u64 {
    backend.0.state.lock().spares.bytes()
}

/// A file that is read gets another name, and the sync of that fails: the books follow the file, a removal still
/// reaches the record, and nothing is left of either name (S7, G6).
#[test]
fn an_orphan_whose_name_is_not_durable_is_counted_and_goes() {
    let mut disk = Arc::new(SimDisk::new(1, 64 << 20, Rates::default()));
    let (backend, _) = open(&disk);
    keep(&backend, 1);
    let reader = Arc::clone(&backend.0.state.lock().index[&id(1)]);
    let ticket = backend.unlink(1).unwrap();
    disk.set_rates(Rates { sync_error: 1_000_000, ..Rates::default() });
    ticket.finish(Duration::ZERO).unwrap_err();
    disk.set_rates(Rates::default());
    assert_eq!(backend.usage().on_disk, disk.file_bytes(), "renamed");
    backend.remove(&[id(1)]).unwrap();
    assert_eq!(backend.usage().on_disk, disk.file_bytes(), "removed, and still read");
    drop(reader);
    keep(&backend, 2);
    assert_eq!(backend.usage().on_disk, disk.file_bytes(), "nobody reads it");
    backend.remove(&[id(2)]).unwrap();
    assert_eq!(backend.usage().used, backend.0.identity.bytes());
    assert_eq!(backend.usage().on_disk, disk.file_bytes(), "a spare");
    assert_eq!(backend.0.state.lock().reserved, 0);
    disk = Arc::new(disk.crash());
    assert_eq!(open(&disk).1, 0);
}

/// A deletion that is repeated makes an empty file for a moment. Who opens that has found nothing: it is not bad (S10).
#[test]
fn what_is_deleted_while_it_is_looked_for_is_missing() {
    let disk = Arc::new(SimDisk::new(1, 64 << 20, Rates::default()));
    let (backend, _) = open(&disk);
    keep(&backend, 1);
    let held = Arc::clone(&backend.0.state.lock().index[&id(1)]);
    disk.set_rates(Rates { sync_error: 1_000_000, ..Rates::default() });
    backend.remove(&[id(1)]).unwrap_err();
    disk.set_rates(Rates::default());
    assert!(!backend.0.quarantine(held.id, held.serial), "it is on its way out");
    keep(&backend, 2);
    let held = Arc::clone(&backend.0.state.lock().index[&id(2)]);
    assert!(backend.0.quarantine(held.id, held.serial), "it was served");
    assert!(!backend.0.quarantine(held.id, held.serial), "once");
}

/// The next record of its length is written over the file of one that is gone.
#[test]
fn a_file_is_used_again() {
    let mut disk = Arc::new(SimDisk::new(1, 64 << 20, Rates::default()));
    let (backend, _) = open(&disk);
    (1..=4).for_each(|sequence| keep(&backend, sequence));
    let full = disk.file_bytes();
    backend.remove(&[id(1), id(2)]).unwrap();
    backend.unlink(1).unwrap().finish(Duration::ZERO).unwrap();
    assert_eq!(spare_bytes(&backend), 3 * FILE);
    assert_eq!((backend.usage().on_disk, disk.file_bytes()), (full, full), "kept as spares");
    assert_eq!(backend.usage().used, full - 3 * FILE, "and free for records");
    try_keep(&backend, 5, 2 * LEN).unwrap();
    assert_eq!(spare_bytes(&backend), 3 * FILE, "of another length");
    keep(&backend, 6);
    assert_eq!(spare_bytes(&backend), 2 * FILE);
    disk = Arc::new(disk.crash());
    let (backend, records) = open(&disk);
    assert_eq!(records, 3);
    assert_eq!(spare_bytes(&backend), 2 * FILE, "a start finds them");
    assert_eq!(backend.usage().on_disk, disk.file_bytes());
    keep(&backend, 7);
    assert_eq!(spare_bytes(&backend), FILE);
    assert!([4, 6, 7].into_iter().all(|sequence| is_right(&backend, sequence)));
    assert_eq!(backend.usage().on_disk, disk.file_bytes());
}

/// Nothing is written over a file that somebody reads, or whose record may come back (G6).
#[test]
fn a_file_that_is_not_gone_for_good_is_no_spare() {
    let disk = Arc::new(SimDisk::new(1, 64 << 20, Rates::default()));
    let (backend, _) = open(&disk);
    keep(&backend, 1);
    keep(&backend, 2);
    let reader = Arc::clone(&backend.0.state.lock().index[&id(1)]);
    backend.remove(&[id(1)]).unwrap();
    assert_eq!(spare_bytes(&backend), 0, "it is read");
    drop(reader);
    disk.set_rates(Rates { sync_error: 1_000_000, ..Rates::default() });
    backend.remove(&[id(2)]).unwrap_err();
    disk.set_rates(Rates::default());
    assert_eq!(spare_bytes(&backend), 0, "its removal is not durable");
    assert_eq!(backend.usage().on_disk, disk.file_bytes());
    keep(&backend, 3);
    let held = Arc::clone(&backend.0.state.lock().index[&id(3)]);
    assert!(backend.0.quarantine(held.id, held.serial));
    drop(held);
    backend.remove(&[id(3)]).unwrap();
    assert_eq!(spare_bytes(&backend), 0, "it was found bad");
    assert_eq!(backend.usage().on_disk, disk.file_bytes());
}

/// A spare that somebody deleted is a file that is not there yet.
#[test]
fn a_spare_that_is_missing_is_made() {
    let disk = Arc::new(SimDisk::new(1, 64 << 20, Rates::default()));
    let (backend, _) = open(&disk);
    keep(&backend, 1);
    let serial = backend.0.state.lock().index[&id(1)].serial;
    backend.remove(&[id(1)]).unwrap();
    disk.remove(&super::Shared::path(serial)).unwrap();
    keep(&backend, 2);
    assert!(is_right(&backend, 2));
    assert_eq!(backend.usage().on_disk, disk.file_bytes());
}

/// Spares take no room from records, nor from others on the file system.
#[test]
fn spares_give_way() {
    let disk = Arc::new(SimDisk::new(1, LIMIT + LIMIT / 16, Rates::default()));
    let (backend, _) = open(&disk);
    let fits = |at: &u64| try_keep(&backend, *at, 1 << 20).is_ok();
    let ids: Vec<RecordId> = (0..100).take_while(fits).map(id).collect();
    backend.remove(&ids).unwrap();
    let spares = spare_bytes(&backend);
    assert!(spares > LIMIT / 2, "{spares}");
    for at in 1000..2000 {
        keep(&backend, at);
        let usage = backend.usage();
        assert!(usage.on_disk <= usage.limit, "{usage:?}");
        assert_eq!(usage.on_disk, disk.file_bytes());
    }
    assert!(spare_bytes(&backend) < spares);
    // Somebody else takes what is left.
    let other = disk.open(Path::new("other"), Open::Create).unwrap();
    other.set_len(disk.free_bytes().unwrap() - LIMIT / 64).unwrap();
    other.sync_data().unwrap();
    disk.sync_dir(Path::new("")).unwrap();
    let spares = spare_bytes(&backend);
    let next = Arc::new(disk.crash());
    assert_eq!(spare_bytes(&open(&next).0), 0, "a start deletes them");
    let (backend, _) = open(&next);
    assert!(spares > 0 && (1000..2000).all(|sequence| is_right(&backend, sequence)));
    backend.remove(&[id(1000)]).unwrap();
    assert_eq!(spare_bytes(&backend), FILE, "now there is room");
    let other = next.open(Path::new("another"), Open::Create).unwrap();
    other.set_len(next.free_bytes().unwrap() - LIMIT / 64).unwrap();
    backend.remove(&[id(1001)]).unwrap();
    assert_eq!(spare_bytes(&backend), 0, "a removal does, too");
    assert!((1002..2000).all(|sequence| is_right(&backend, sequence)));
}

/// What failed before it had a file leaves nothing that would have to be synced: a directory that is not there would
/// pass for one whose sync failed, which fails everybody else.
#[test]
fn what_was_not_begun_is_not_undone() {
    let disk = Arc::new(SimDisk::new(1, 64 << 20, Rates::default()));
    let (backend, _) = open(&disk);
    keep(&backend, 1);
    backend.remove(&[id(1)]).unwrap();
    assert_eq!(spare_bytes(&backend), FILE);
    backend.0.state.lock().tops.extend((0..16).map(|top| (top, false)));
    // To those of a directory that is not there.
    backend.0.identity.take(super::BLOCK).unwrap();
    for sequence in [2, 3] {
        try_keep(&backend, sequence, LEN).unwrap_err();
        assert_eq!(backend.usage().on_disk, disk.file_bytes());
    }
    assert_eq!(backend.0.identity.names(), 0, "no sync failed");
}

/// A file that has two names, after a power cut on a file system without a journal, is a record.
#[test]
fn a_record_that_is_also_named_as_a_spare_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config::new(Kind::PerKey, LIMIT);
    let open = || {
        let disk = Arc::new(crate::disk::Posix::open(folder.path()).unwrap()) as Arc<dyn Disk>;
        PerKey::open(disk, &config, &mut |_| {}, &mut |_| {}).unwrap()
    };
    let (backend, _) = open();
    keep(&backend, 1);
    let held = Arc::clone(&backend.0.state.lock().index[&id(1)]);
    drop(backend);
    // Of the record itself, which a removal gave it; of an older one, over which the record was written.
    for serial in [held.serial, held.serial - 1] {
        let also = folder.path().join(super::Shared::path(serial));
        std::fs::hard_link(folder.path().join(held.path()), &also).unwrap();
        let (backend, recovery) = open();
        assert_eq!(recovery.records, 1);
        assert_eq!(spare_bytes(&backend), 0);
        assert!(!also.exists());
        keep(&backend, 2);
        assert!(is_right(&backend, 1));
        backend.remove(&[id(2)]).unwrap();
        let spare = backend.0.state.lock().spares.take(FILE);
        std::fs::remove_file(folder.path().join(super::Shared::path(spare.unwrap()))).unwrap();
    }
}

/// Nothing is touched in a directory that another version laid out: its records would be counted by nobody.
#[test]
fn another_layout_is_refused() {
    for (layout, older) in [("", true), (" 1", true), (" 3", false)] {
        let disk = Arc::new(SimDisk::new(1, 64 << 20, Rates::default()));
        let mut text = format!("mooncrate-ssd 1\nbackend per_key{layout}\ntoken 1\nids 1\n");
        let sum = crc(text.as_bytes());
        let _ = writeln!(text, "crc {sum:016x}");
        let mut block = text.into_bytes();
        block.resize(ALIGN, 0);
        let file = disk.open(Path::new("format"), Open::Create).unwrap();
        let write = WriteAt { file: &file, offset: 0, pieces: &[&block], result: Ok(()) };
        disk.write(&mut [write]);
        let config = Config::new(Kind::PerKey, LIMIT);
        let opened = PerKey::open(Arc::clone(&disk) as _, &config, &mut |_| {}, &mut |_| {});
        match opened {
            Err(OpenError::Older) => assert!(older),
            Err(OpenError::Newer { version: 3 }) => assert!(!older),
            other => panic!("{other:?}"),
        }
        assert_eq!(disk.list(Path::new("")).unwrap().len(), 1);
    }
}
