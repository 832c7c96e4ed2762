//! A directory tells the same by one lane and by many (`lanes.rs`): the same records in the same order, and
//! what is left on the disk is the same. The directory has everything that a start must decide about: records
//! that are bad, removed, there twice, or only look like some.

use super::rig::{Rig, SimHome, Thing, files};
use crate::disk::sim::SimDisk;
use crate::disk::{Disk, Entry, File, Open, ReadAt, WriteAt};
use crate::identity;
use crate::record::{self, Head, Kind, Site};
use crate::{ALIGN, NewRecord, Record, Recovery, Usage};
use mooncrate_core::rng::Rng;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const TOKEN: u64 = 0x7e57;
const LONG: usize = 8 << 20;

/// A disk that may be read by so many lanes.
#[derive(Debug)]
struct Laned(Arc<SimDisk>, usize);

impl Disk for Laned {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn open(&self, path: &Path, how: Open) -> io::Result<Arc<dyn File>> {
        self.0.open(path, how)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.0.remove(path)
    }

    fn make_dir(&self, path: &Path) -> io::Result<()> {
        self.0.make_dir(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        self.0.list(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.0.sync_dir(dir)
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.0.free_bytes()
    }

    fn read(&self, reads: &mut [ReadAt<'_>]) {
        self.0.read(reads);
    }

    fn write(&self, writes: &mut [WriteAt<'_>]) {
        self.0.write(writes);
    }

    fn lanes(&self) -> usize {
        self.1
    }
}

fn is_log(path: &Path) -> bool {
    path.to_string_lossy().starts_with("removed")
}

fn content(disk: &SimDisk, path: &Path, len: u64) -> Vec<u8> {
    let file = disk.open(path, Open::Read).unwrap();
    let mut bytes = vec![0; len as usize];
    crate::reading::read_one(disk, &file, 0, &mut bytes).unwrap();
    bytes
}

fn put(disk: &SimDisk, path: &Path, offset: u64, bytes: &[u8]) {
    let how = if offset == 0 { Open::Create } else { Open::Write };
    let file = disk.open(path, how).unwrap();
    let mut writes = [WriteAt { file: &file, offset, pieces: &[bytes], result: Ok(()) }];
    disk.write(&mut writes);
    writes.into_iter().try_for_each(|write| write.result).unwrap();
    file.sync_data().unwrap();
}

/// Head and value of a record that was never kept.
fn forged(thing: &Thing, site: Site, value: &[u8]) -> Vec<u8> {
    let (id, label) = (thing.id, &thing.label[..]);
    let seal = mooncrate_mem::sums::seal_of(value);
    let sums = record::checked_sums(value, seal).unwrap();
    let mut bytes = Vec::new();
    record::encode(&mut bytes, site, &NewRecord { id, label, seal, value }, &sums);
    if value.len() < ALIGN {
        bytes.extend_from_slice(value);
    }
    bytes.resize(bytes.len().next_multiple_of(ALIGN), 0);
    bytes
}

/// Where the records of an offset directory begin, with what their heads say.
fn heads(bytes: &[u8]) -> Vec<(u64, u64, crate::RecordId)> {
    let blocks = (0..).step_by(ALIGN).zip(bytes.chunks(ALIGN));
    let site = |offset| Site { kind: Kind::Offset, token: TOKEN, serial: 0, offset };
    let heads = blocks.filter_map(|(offset, block)| {
        let head = Head::decode_any_serial(block, site(offset))?;
        Some((offset, head.serial, head.id))
    });
    heads.collect()
}

/// In the one file: heads inside of a long value, a second copy of a record, and one that ends behind the file.
fn forge(disk: &SimDisk, path: &Path, bytes: &[u8], long: &Thing) {
    let heads = heads(bytes);
    let (start, ..) = *heads.iter().find(|(_, _, id)| *id == long.id).expect("it was kept");
    let site = |serial, offset| Site { kind: Kind::Offset, token: TOKEN, serial, offset };
    let put = |offset, bytes: &[u8]| put(disk, path, offset, bytes);
    for part in 1..7 {
        // Short ones, and some that reach out over the end of the value and over the records behind it.
        let offset = start + part * (1 << 20) + 40 * ALIGN as u64;
        let value = if part % 2 == 0 { vec![7; 100] } else { vec![7; 9 << 20] };
        put(offset, &forged(&Thing::new(7000 + part as u32, 1), site(1 << 40, offset), &value));
    }
    let free = heads.iter().map(|(offset, ..)| *offset).max().unwrap() + (2 << 20);
    let (_, serial, _) = *heads.iter().find(|(_, _, id)| *id == Thing::new(5, 1).id).unwrap();
    put(free, &forged(&Thing::new(5, 1), site(serial + 100_000, free), &[5; 9]));
    let free = free + ALIGN as u64;
    put(free, &forged(&Thing::new(6, 1), site(0, free), &[6; 9]));
    let last = bytes.len() as u64 / ALIGN as u64 * ALIGN as u64 - ALIGN as u64;
    put(last, &forged(&Thing::new(7100, 1), site(1 << 41, last), &vec![8; 100_000]));
}

/// A directory that was used, evicted from, and damaged. The same in every call.
fn damaged(kind: Kind) -> Arc<SimDisk> {
    let mut rig = Rig::new(kind, Box::new(SimHome::new(5)));
    let things: Vec<Thing> = (0..240)
        .map(|n| {
            Thing::new(n, if n % 16 == 3 { 33_000 + n as usize * 911 } else { n as usize * 23 })
        })
        .collect();
    let long = Thing::new(1000, LONG);
    things.chunks(7).for_each(|some| rig.keep_all(some));
    if kind == Kind::Offset {
        rig.keep_all(std::slice::from_ref(&long));
        rig.keep_all(&(300..340).map(|n| Thing::new(n, 3000)).collect::<Vec<_>>());
    }
    let removed: Vec<_> = things.iter().step_by(9).map(|thing| thing.id).collect();
    rig.backend().remove(&removed).unwrap();
    let disk = |rig: &Rig| Arc::new(rig.home.sim().unwrap().kill());
    let saved = files(rig.home.sim().unwrap(), Path::new(""));
    let saved: Vec<(PathBuf, Vec<u8>)> = saved
        .into_iter()
        .filter(|(path, _)| !identity::is_identity(&path.to_string_lossy()))
        .map(|(path, len)| {
            let bytes = content(rig.home.sim().unwrap(), &path, len);
            (path, bytes)
        })
        .collect();
    if kind != Kind::Offset {
        // Evicted, kept anew, and the first copies come back.
        for _ in 0..4 {
            let ticket = rig.backend().unlink(1).unwrap();
            let gone = ticket.records().to_vec();
            ticket.finish(std::time::Duration::ZERO).unwrap();
            let gone: Vec<Thing> =
                things.iter().filter(|thing| gone.contains(&thing.id)).cloned().collect();
            rig.keep_all(&gone);
        }
    }
    rig.backend = None;
    let disk = disk(&rig);
    let now = files(&*disk, Path::new(""));
    for (path, bytes) in &saved {
        if !is_log(path) && !now.iter().any(|(known, _)| known == path) {
            put(&disk, path, 0, bytes);
        }
    }
    if kind == Kind::Offset {
        let (path, bytes) = &saved[0];
        forge(&disk, path, bytes, &long);
    }
    let mut rng = Rng::new(11);
    let now = files(&*disk, Path::new("")).into_iter();
    let now = now.filter(|(path, _)| !identity::is_identity(&path.to_string_lossy()));
    let now: Vec<_> = now.filter(|(path, _)| !is_log(path)).collect();
    for _ in 0..12 {
        let (path, len) = &now[rng.below(now.len() as u64) as usize];
        // Where heads are, and anywhere.
        for byte in [rng.below(80).min(len - 1), rng.below(*len)] {
            disk.flip(path, byte, 3).unwrap();
        }
    }
    for (path, _) in
        now.iter().filter(|(path, _)| path.extension().is_some_and(|e| e == "meta")).step_by(5)
    {
        disk.remove(path).unwrap();
    }
    disk
}

type Told = (Vec<Record>, Recovery, Usage, Vec<(PathBuf, Vec<u8>)>);

/// What opening tells, and what it leaves.
fn told(kind: Kind, lanes: usize, verify_values: bool) -> Told {
    let disk = damaged(kind);
    let mut rig = Rig::new(kind, Box::new(SimHome::new(1)));
    rig.config.verify_values = verify_values;
    let mut records = Vec::new();
    let read_by = Arc::new(Laned(Arc::clone(&disk), lanes));
    let (backend, recovery) =
        crate::open(read_by, &rig.config, &mut |record| records.push(record), &mut |_| {}).unwrap();
    let usage = backend.usage();
    drop(backend);
    let left = files(&*disk, Path::new("")).into_iter().map(|(path, len)| {
        let bytes = content(&disk, &path, len);
        (path, bytes)
    });
    (records, recovery, usage, left.collect())
}

#[test]
fn many_lanes_tell_what_one_tells() {
    for kind in Kind::ALL {
        for verify_values in [false, true] {
            let one = told(kind, 1, verify_values);
            let (records, recovery, ..) = &one;
            println!("{}: {} records, {recovery:?}", kind.name(), records.len());
            // Else this shows little.
            assert!(records.len() > 100 && recovery.dropped > 0, "{recovery:?}");
            let twice = recovery.orphans > 0 || kind == Kind::Bucket;
            assert!(twice && (recovery.removed > 0) == (kind == Kind::Bucket), "{recovery:?}");
            for lanes in [2, 8, 32] {
                let many = told(kind, lanes, verify_values);
                let what = format!("{} by {lanes} lanes", kind.name());
                assert!(many.0 == one.0, "{what}: other records");
                assert_eq!((many.1, many.2), (one.1, one.2), "{what}");
                assert!(many.3 == one.3, "{what}: other files are left");
            }
        }
    }
}
