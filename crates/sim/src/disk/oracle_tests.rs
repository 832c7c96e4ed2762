//! What the oracle excuses, and what it does not: each excuse by hand, on a disk that does what the test says.

use super::oracle::{Facts, Oracle};
use mooncrate_check::PutId;
use mooncrate_core::{KeyHash, LeaderEpoch, ObjectId, Seal};
use mooncrate_ssd::disk::sim::{Rates, SimDisk};
use mooncrate_ssd::disk::{Disk, Open};
use mooncrate_ssd::{RecordId, WriteAt};
use std::path::Path;

fn id(sequence: u64) -> RecordId {
    RecordId { object: ObjectId { epoch: LeaderEpoch(1), sequence }, stripe: 0 }
}

fn facts() -> Facts {
    let put = PutId::new(1, 1, 1);
    Facts { put, key: KeyHash(1), len: 4096, seal: Seal(1), label: b"l".to_vec() }
}

fn disk() -> SimDisk {
    SimDisk::new(1, 1 << 20, Rates::default())
}

/// What the keep of a record does to the disk.
fn write(disk: &SimDisk, path: &str) {
    let file = disk.open(Path::new(path), Open::Create).unwrap();
    let pieces = [&[7; 4096][..]];
    let mut writes = [WriteAt { file: &file, offset: 0, pieces: &pieces, result: Ok(()) }];
    disk.write(&mut writes);
    file.sync_data().unwrap();
}

/// A record can be loaded, scrubbed and evicted before its keep has returned, and bits can flip then.
#[test]
fn harm_counts_while_a_keep_is_under_way() {
    let (disk, mut oracle) = (disk(), Oracle::new(false));
    oracle.keep_begins(&[(id(1), facts())]);
    write(&disk, "a");
    oracle.absorb(&disk);
    oracle.scrubbed(id(1), false).unwrap_err();
    disk.flip(Path::new("a"), 100, 1).unwrap();
    oracle.absorb(&disk);
    oracle.scrubbed(id(1), false).unwrap();
}
