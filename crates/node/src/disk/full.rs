//! A file system that is full before its disk has its size: others use it too, or the size was too much.
//! Old records make room, as they do when the limit is reached, one eviction for each refusal; what is kept or
//! removed meanwhile is refused, and tried again.
//!
//! What must stay true: a full file system takes no disk away. A removal gets room from an eviction, and a
//! start makes itself some before anybody counts on what the disk holds.

use super::{Disk, SsdConfig};
use mooncrate_core::Now;
use mooncrate_mem::clock::boottime;
use mooncrate_ssd::{Backend, Kind, Open, Record, RecordId, Room, WriteAt, is_full};
use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::time::Duration;

/// Bytes that a start needs before it can evict as usual: the state of a master beside it, removals, the metadata of
/// some buckets.
pub(super) const START_BYTES: u64 = 1 << 20;
/// A file that is written to see whether there is room, and deleted.
const PROBE: &str = "room.tmp";
/// How often the log tells of a file system that stays full.
const SAY_AGAIN: Duration = Duration::from_mins(10);

/// When the log told of it last.
#[derive(Debug, Default)]
pub(super) struct Said(Option<Now>);

impl Said {
    /// Whether it is to be told now.
    fn due(&mut self, now: Now) -> bool {
        let due = self.0.is_none_or(|last| now.since(last) >= SAY_AGAIN);
        if due {
            self.0 = Some(now);
        }
        due
    }
}

impl Disk {
    /// The file system had no room for something: says so, but not each time, and wakes the evictor.
    pub(super) fn no_room(&self) {
        if self.said_full.lock().due(boottime()) {
            let usage = self.backend.usage();
            tracing::warn!(
                path = %self.config.path.display(),
                used = usage.on_disk,
                size = usage.limit,
                "the file system is full before this disk has its size: old records make room; free some \
                 space there, or give the disk a smaller size"
            );
        }
        if gives_room_back(&self.config) {
            self.make_room();
        }
    }
}

/// Whether an eviction gives room to others, when there is little. One file for all records stays as long as it is.
fn gives_room_back(config: &SsdConfig) -> bool {
    config.backend != Kind::Offset
}

/// Makes the room that a start needs. Nobody has been told of any record yet, so the oldest may just go. Gives
/// those that may come back, because they could not be deleted for good.
pub(super) fn make_room_to_start(
    config: &SsdConfig,
    device: &dyn mooncrate_ssd::Disk,
    backend: &dyn Backend,
    records: &mut Vec<Record>,
) -> Vec<RecordId> {
    // Left over from a start that was killed while it looked.
    let _ = device.remove(Path::new(PROBE));
    while gives_room_back(config) && !has_room(device) {
        let Some(ticket) = backend.unlink(START_BYTES) else { break };
        let gone: HashSet<RecordId> = ticket.records().iter().copied().collect();
        records.retain(|record| !gone.contains(&record.id));
        tracing::warn!(
            path = %config.path.display(),
            records = gone.len(),
            bytes = ticket.bytes(),
            "the file system is full: the oldest records are dropped, or nothing could be written"
        );
        if let Err(error) = ticket.finish(Duration::ZERO) {
            tracing::error!(%error, path = %config.path.display(), "they were not deleted");
            return gone.into_iter().collect();
        }
    }
    Vec::new()
}

/// Whether so much can be written. What a file system says is free may be less than what it gives, so one that
/// seems full is asked by a write.
fn has_room(device: &dyn mooncrate_ssd::Disk) -> bool {
    if device.free_bytes().is_ok_and(|free| free >= START_BYTES) {
        return true;
    }
    let tried = probe(device);
    let _ = device.remove(Path::new(PROBE));
    // What else is wrong, others will find out.
    !tried.is_err_and(|error| is_full(&error))
}

fn probe(device: &dyn mooncrate_ssd::Disk) -> io::Result<()> {
    let file = device.open(Path::new(PROBE), Open::Create)?;
    let mut room = Room::new(START_BYTES as usize);
    room.set_len(START_BYTES as usize);
    room.fill(0);
    let mut writes = [WriteAt { file: &file, offset: 0, pieces: &[&room[..]], result: Ok(()) }];
    device.write(&mut writes);
    let [WriteAt { result, .. }] = writes;
    result
}

/// Names the fix, where a disk was not opened for want of room.
pub(super) fn explain(error: io::Error) -> io::Error {
    if !is_full(&error) {
        return error;
    }
    let text = format!(
        "{error}; its file system is full: free some space there, give the disk a smaller size, or name a \
         directory elsewhere"
    );
    io::Error::new(error.kind(), text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mooncrate_core::{LeaderEpoch, ObjectId};
    use mooncrate_mem::sums::seal_of;
    use mooncrate_ssd::disk::sim::{Rates, SimDisk};
    use mooncrate_ssd::{Config, NewRecord};
    use std::sync::Arc;

    type Opened = (Arc<SimDisk>, Arc<dyn Backend>, Vec<Record>);

    /// A directory on a disk without a free block, opened as a start does.
    fn full(kind: Kind) -> Opened {
        const LIMIT: u64 = 8 << 20;
        let config = Config::new(kind, LIMIT);
        let open = |disk: &Arc<SimDisk>| {
            let mut records = Vec::new();
            let device = Arc::clone(disk) as Arc<dyn mooncrate_ssd::Disk>;
            let found = &mut |record| records.push(record);
            let (backend, _) = mooncrate_ssd::open(device, &config, found, &mut drop).unwrap();
            (backend, records)
        };
        let disk = Arc::new(SimDisk::new(1, LIMIT + (1 << 20), Rates::default()));
        let (backend, _) = open(&disk);
        let value = vec![7; 60_000];
        for sequence in 0..60 {
            let object = ObjectId { epoch: LeaderEpoch(1), sequence };
            let (id, seal) = (RecordId { object, stripe: 0 }, seal_of(&value));
            let kept = backend.keep(&[NewRecord { id, label: b"l", seal, value: &value }]);
            assert!(kept[0].is_ok(), "{kept:?}");
        }
        drop(backend);
        let disk = Arc::new(disk.kill());
        let other = mooncrate_ssd::Disk::open(&*disk, Path::new("other"), Open::Create).unwrap();
        other.set_len(mooncrate_ssd::Disk::free_bytes(&*disk).unwrap()).unwrap();
        let (backend, records) = open(&disk);
        assert_eq!((records.len(), has_room(&*disk)), (60, false));
        (disk, backend, records)
    }

    fn start(kind: Kind, opened: &mut Opened) -> Vec<RecordId> {
        let config = SsdConfig { backend: kind, ..SsdConfig::new("in memory", 0) };
        let (disk, backend, records) = opened;
        make_room_to_start(&config, &**disk, &**backend, records)
    }

    /// The oldest records go until there is room, no more of them, and what is told is what can be read.
    #[test]
    fn a_start_on_a_full_disk_drops_the_oldest() {
        for kind in [Kind::Bucket, Kind::PerKey] {
            let mut opened = full(kind);
            assert!(start(kind, &mut opened).is_empty(), "{kind:?}");
            let (disk, backend, records) = opened;
            assert!(has_room(&*disk), "{kind:?}");
            assert!((30..60).contains(&records.len()), "{kind:?}: {} are left", records.len());
            assert_eq!(backend.usage().records, records.len() as u64, "{kind:?}");
            let dropped = 60 - records.len() as u64;
            let oldest = records.iter().map(|record| record.id.object.sequence).min();
            assert_eq!(oldest, Some(dropped), "{kind:?}");
        }
    }

    /// One file in its full length gives nothing back, so nothing is dropped.
    #[test]
    fn nothing_is_dropped_in_vain() {
        let mut opened = full(Kind::Offset);
        assert!(start(Kind::Offset, &mut opened).is_empty());
        assert_eq!(opened.2.len(), 60);
    }

    /// What could not be deleted for good is not told, and is to be removed.
    #[test]
    fn what_a_start_could_not_delete_is_named() {
        let mut opened = full(Kind::Bucket);
        opened.0.set_rates(Rates { sync_error: 1_000_000, ..Rates::default() });
        let left = start(Kind::Bucket, &mut opened);
        assert!(!left.is_empty());
        assert_eq!(left.len() + opened.2.len(), 60);
        assert!(opened.2.iter().all(|record| !left.contains(&record.id)));
    }

    #[test]
    fn the_log_is_not_flooded() {
        let start = Now(1_000_000_000);
        let mut said = Said::default();
        assert!(said.due(start));
        assert!(!said.due(start.plus(SAY_AGAIN / 2)));
        assert!(said.due(start.plus(SAY_AGAIN)));
        assert!(!said.due(start.plus(SAY_AGAIN)));
    }
}
