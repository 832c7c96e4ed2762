//! What the oracle excuses, and what it does not: each excuse by hand, on a disk that does what the test says.

use super::entry::Facts;
use super::harm::{Role, Weak};
use super::oracle::{Loaded, Opening, Oracle, Told};
use crate::judge::Failure;
use mooncrate_check::PutId;
use mooncrate_core::{KeyHash, LeaderEpoch, ObjectId, Seal};
use mooncrate_ssd::disk::sim::{Rates, SimDisk};
use mooncrate_ssd::disk::{Disk, Open};
use mooncrate_ssd::{ReadAt, Record, RecordId, WriteAt};
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
    drop(disk.open(Path::new(path), Open::Create).unwrap());
    write_at(disk, path, 0);
}

fn write_at(disk: &SimDisk, path: &str, offset: u64) {
    let file = disk.open(Path::new(path), Open::Write).unwrap();
    let pieces = [&[7; 4096][..]];
    let mut writes = [WriteAt { file: &file, offset, pieces: &pieces, result: Ok(()) }];
    disk.write(&mut writes);
    file.sync_data().unwrap();
}

/// A record can be loaded, scrubbed and evicted before its keep has returned, and bits can flip then.
#[test]
fn harm_counts_while_a_keep_is_under_way() {
    let (disk, mut oracle) = (disk(), Oracle::new(Weak::default()));
    oracle.keep_begins(&[(id(1), facts())]);
    write(&disk, "a");
    oracle.absorb(&disk);
    oracle.scrubbed(id(1), oracle.now()).unwrap_err();
    disk.flip(Path::new("a"), 100, 1).unwrap();
    oracle.absorb(&disk);
    oracle.scrubbed(id(1), oracle.now()).unwrap();
}

/// That record, as an opening tells it.
fn found() -> [Record; 1] {
    let Facts { len, seal, label, .. } = facts();
    [Record { id: id(1), label: label.into(), len, seal }]
}

/// An oracle that knows of one record, which was kept in the file `a`.
fn kept(disk: &SimDisk, weak: Weak) -> Oracle {
    let mut oracle = Oracle::new(weak);
    let keep = oracle.keep_begins(&[(id(1), facts())]);
    write(disk, "a");
    oracle.absorb(disk);
    oracle.kept(keep, id(1), Told::Kept);
    oracle.keep_ends(keep);
    oracle
}

/// What an eviction hides while it chooses is in its answer, or a record was missing for no reason.
#[test]
fn a_miss_needs_an_eviction_that_hid_the_record() {
    for hides in [true, false] {
        let mut oracle = kept(&disk(), Weak::default());
        let (first, second) = (oracle.unlink_begins(), oracle.unlink_begins());
        let began = oracle.begins(id(1));
        oracle.loaded(id(1), began, Loaded::Missing).unwrap();
        oracle.unlinked(first, &[]).unwrap();
        let hidden = if hides { &[id(1)][..] } else { &[] };
        assert_eq!(oracle.unlinked(second, hidden).is_ok(), hides);
    }
    let mut oracle = kept(&disk(), Weak::default());
    let eviction = oracle.unlink_begins();
    let began = oracle.begins(id(1));
    oracle.unlinked(eviction, &[]).unwrap();
    oracle.loaded(id(1), began, Loaded::Missing).unwrap_err();
}

/// Removing once more what is removed does not excuse that it is found.
#[test]
fn what_is_gone_stays_gone_whatever_happens_to_it() {
    let mut oracle = kept(&disk(), Weak::default());
    oracle.go_begins(&[id(1)]);
    let early = oracle.begins(id(1));
    oracle.removed(&[id(1)], true);
    let late = oracle.begins(id(1));
    oracle.go_begins(&[id(1)]);
    oracle.removed(&[id(1)], true);
    oracle.loaded(id(1), early, Loaded::Right).unwrap();
    oracle.loaded(id(1), late, Loaded::Right).unwrap_err();
}

/// Harm to the bytes of a record does not bring it back, unless its removal is bytes over it; harm to a table does
/// not lose it; harm to a log does, if it hits a block and its copy.
#[test]
fn harm_excuses_what_it_can_do() {
    let how = Opening { calm: true, volatile: false, unsynced: false, doubt: false };
    let role = |path: &Path| match path.to_str() {
        Some("log") => Role::Log,
        Some("table") => Role::Table,
        _ => Role::Records,
    };
    let comes_back = |overwrites, flips: &[(&str, u64)]| {
        let disk = disk();
        let mut oracle = kept(&disk, Weak { role, shadows: false, overwrites });
        for path in ["log", "table"] {
            write(&disk, path);
            write_at(&disk, path, 4096);
        }
        oracle.absorb(&disk);
        oracle.go_begins(&[id(1)]);
        oracle.removed(&[id(1)], true);
        for (path, byte) in flips {
            disk.flip(Path::new(path), *byte, 1).unwrap();
        }
        oracle.absorb(&disk);
        oracle.opening_begins();
        oracle.reopened(&found(), how).is_ok()
    };
    assert!(!comes_back(false, &[]));
    assert!(!comes_back(false, &[("a", 0), ("table", 0), ("log", 0), ("log", 1)]));
    assert!(comes_back(false, &[("log", 0), ("log", 4096)]));
    assert!(!comes_back(true, &[("table", 0)]));
    assert!(comes_back(true, &[("a", 0)]));
    let lost = |path| {
        let disk = disk();
        let mut oracle = kept(&disk, Weak { role, shadows: false, overwrites: false });
        write(&disk, "log");
        write(&disk, "table");
        disk.flip(Path::new(path), 0, 1).unwrap();
        oracle.absorb(&disk);
        oracle.opening_begins();
        oracle.reopened(&[], how).is_ok()
    };
    assert!(lost("a") && !lost("log") && !lost("table"));
}

/// An eviction that failed with a sync: the record is gone for the next start, and back after a power cut, perhaps
/// with the bytes of what got its space; and what got it may be hidden by the head that is back.
#[test]
fn what_a_failed_sync_brings_back_may_be_bad_and_hide_others() {
    let disk = disk();
    let mut oracle = kept(&disk, Weak { overwrites: true, ..Weak::default() });
    let mut how = Opening { calm: true, volatile: true, unsynced: true, doubt: false };
    oracle.go_begins(&[id(1)]);
    oracle.evicted(&[id(1)], false);
    oracle.opening_begins();
    oracle.reopened(&[], how).unwrap();
    let keep = oracle.keep_begins(&[(id(2), facts())]);
    write_at(&disk, "a", 0);
    oracle.absorb(&disk);
    oracle.kept(keep, id(2), Told::Kept);
    oracle.keep_ends(keep);
    (how.volatile, how.unsynced) = (false, false);
    oracle.opening_begins();
    oracle.reopened(&found(), how).unwrap();
    let began = oracle.begins(id(1));
    oracle.loaded(id(1), began, Loaded::Corrupt).unwrap();
    // When that goes the other is there again, once.
    oracle.go_begins(&[id(1), id(2)]);
    oracle.removed(&[id(1), id(2)], true);
    let other = found().map(|record| Record { id: id(2), ..record });
    oracle.opening_begins();
    oracle.reopened(&other, how).unwrap();
    oracle.go_begins(&[id(2)]);
    oracle.removed(&[id(2)], true);
    oracle.opening_begins();
    oracle.reopened(&other, how).unwrap_err();
    // Once more nothing failed, so nothing is excused.
    let keep = oracle.keep_begins(&[(id(3), facts())]);
    write(&disk, "b");
    oracle.absorb(&disk);
    oracle.kept(keep, id(3), Told::Kept);
    oracle.opening_begins();
    oracle.reopened(&[], how).unwrap_err();
}

/// A stale read hides a record from an opening: for the backend it is free space. It may be back at a later one,
/// after a removal that found nothing and with other bytes at its end, and only if its removal is bytes over it.
#[test]
fn what_a_stale_read_hid_may_come_back() {
    let how = Opening { calm: true, volatile: false, unsynced: false, doubt: false };
    let comes_back = |overwrites, stale, between| {
        let disk = disk();
        let mut oracle = kept(&disk, Weak { overwrites, ..Weak::default() });
        oracle.opening_begins();
        disk.set_rates(Rates { stale, ..Rates::default() });
        let file = disk.open(Path::new("a"), Open::Read).unwrap();
        let mut into = [0; 4096];
        let mut reads = [ReadAt { file: &file, offset: 0, into: &mut into, result: Ok(()) }];
        disk.read(&mut reads);
        disk.set_rates(Rates::default());
        oracle.absorb(&disk);
        oracle.reopened(&[], how)?;
        oracle.go_begins(&[id(1)]);
        oracle.removed(&[id(1)], true);
        for _ in 0..2 {
            oracle.opening_begins();
            oracle.reopened(&[], between)?;
        }
        oracle.opening_begins();
        oracle.reopened(&found(), how)?;
        let began = oracle.begins(id(1));
        oracle.loaded(id(1), began, Loaded::Corrupt)?;
        // It is known again, and so is its removal.
        oracle.go_begins(&[id(1)]);
        oracle.removed(&[id(1)], true);
        oracle.opening_begins();
        oracle.reopened(&found(), how).unwrap_err();
        Ok::<(), Failure>(())
    };
    let other = Opening { volatile: true, ..how };
    assert!(comes_back(true, 1_000_000, other).is_ok());
    assert_eq!(comes_back(true, 0, other).unwrap_err().rule, "S2");
    assert_eq!(comes_back(false, 1_000_000, other).unwrap_err().rule, "G6");
    assert_eq!(comes_back(true, 1_000_000, how).unwrap_err().rule, "G6", "an opening saw all");
}

/// A write that went astray hides a record from an opening. If it was not synced a power cut takes it, and the record
/// is back; only if its removal is bytes over it.
#[test]
fn what_was_covered_may_come_back_with_a_power_cut() {
    let comes_back = |overwrites, volatile, astray| {
        let disk = disk();
        let mut oracle = kept(&disk, Weak { overwrites, ..Weak::default() });
        if astray {
            // There is one place only that it can hit.
            disk.set_rates(Rates { misdirected: 1_000_000, ..Rates::default() });
            write(&disk, "b");
        } else {
            disk.flip(Path::new("a"), 0, 1).unwrap();
        }
        oracle.absorb(&disk);
        let mut how = Opening { calm: true, volatile, unsynced: false, doubt: false };
        oracle.opening_begins();
        oracle.reopened(&[], how).unwrap();
        how.volatile = false;
        oracle.opening_begins();
        oracle.reopened(&found(), how).is_ok()
    };
    assert!(comes_back(true, true, true));
    assert!(!comes_back(true, false, true) && !comes_back(false, true, true));
    assert!(!comes_back(true, true, false), "a power cut does not take a flipped bit back");
}

/// A record is evicted, its death is lost, and it is kept again at another place: its removal there does not reach the
/// first one. Only if a removal is bytes over the record, and harm hit those.
#[test]
fn the_lost_death_of_an_earlier_copy_may_bring_it_back() {
    let how = Opening { calm: true, volatile: false, unsynced: false, doubt: false };
    let comes_back = |overwrites, before, after| {
        let disk = disk();
        let mut oracle = kept(&disk, Weak { overwrites, ..Weak::default() });
        let hit = |oracle: &mut Oracle| {
            disk.flip(Path::new("a"), 0, 1).unwrap();
            oracle.absorb(&disk);
        };
        if before {
            hit(&mut oracle);
        }
        oracle.go_begins(&[id(1)]);
        if after {
            hit(&mut oracle);
        }
        oracle.evicted(&[id(1)], true);
        let keep = oracle.keep_begins(&[(id(1), facts())]);
        write(&disk, "b");
        oracle.absorb(&disk);
        oracle.kept(keep, id(1), Told::Kept);
        oracle.keep_ends(keep);
        oracle.go_begins(&[id(1)]);
        oracle.removed(&[id(1)], true);
        oracle.opening_begins();
        oracle.reopened(&found(), how).is_ok()
    };
    assert!(comes_back(true, false, true));
    assert!(!comes_back(true, false, false) && !comes_back(true, true, false));
    assert!(!comes_back(false, false, true));
}

/// A bucket goes as a whole if its bad records do not get into the log, which may be gone again when somebody asks
/// what failed.
#[test]
fn a_file_that_is_gone_is_still_what_failed() {
    let role = |path: &Path| match path.to_str() {
        Some("log") => Role::Log,
        _ => Role::Records,
    };
    let how = Opening { calm: false, volatile: false, unsynced: false, doubt: false };
    let lost = |path| {
        let disk = disk();
        let mut oracle = kept(&disk, Weak { role, shadows: true, overwrites: false });
        oracle.opening_begins();
        let file = disk.open(Path::new(path), Open::Create).unwrap();
        disk.set_rates(Rates { write_error: 1_000_000, ..Rates::default() });
        file.set_len(1).unwrap_err();
        disk.set_rates(Rates::default());
        drop(file);
        disk.remove(Path::new(path)).unwrap();
        disk.sync_dir(Path::new("")).unwrap();
        oracle.absorb(&disk.crash());
        oracle.reopened(&[], how).is_ok()
    };
    assert!(lost("log") && !lost("another"));
}
