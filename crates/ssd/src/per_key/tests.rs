//! What is special to a file for each record: files that get another name while they are read.

use super::PerKey;
use crate::disk::sim::{Rates, SimDisk};
use crate::{Backend, Config, Disk, Kind, NewRecord, RecordId};
use mooncrate_core::{LeaderEpoch, ObjectId};
use mooncrate_mem::sums::seal_of;
use std::sync::Arc;
use std::time::Duration;

fn open(disk: &Arc<SimDisk>) -> (PerKey, u64) {
    let disk = Arc::clone(disk) as Arc<dyn Disk>;
    let config = Config::new(Kind::PerKey, 32 << 20);
    let (backend, recovery) = PerKey::open(disk, &config, &mut |_| {}, &mut |_| {}).unwrap();
    (backend, recovery.records)
}

fn id(sequence: u64) -> RecordId {
    RecordId { object: ObjectId { epoch: LeaderEpoch(1), sequence }, stripe: 0 }
}

fn keep(backend: &PerKey, sequence: u64) {
    let value = vec![7; 9000];
    let record = NewRecord { id: id(sequence), label: b"l", seal: seal_of(&value), value: &value };
    backend.keep(&[record]).remove(0).unwrap();
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
    assert_eq!(backend.usage().on_disk, backend.0.identity.bytes());
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
