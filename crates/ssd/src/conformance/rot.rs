//! Bytes change at rest, in every file: a record is whole or it is not there.

use super::rig::{Rig, SimHome, Thing, files};
use super::{everywhere, simulated};
use crate::disk::Open;
use crate::{Config, Kind, LoadError, OpenError};
use mooncrate_core::rng::Rng;
use std::path::Path;

fn some_things() -> Vec<Thing> {
    let sizes = [0, 100, 4096, 5000, 40_000, 1 << 20, (2 << 20) + 7, 70_000, 9, 33_000];
    (0..).zip(sizes).map(|(number, len)| Thing::new(number, len)).collect()
}

/// Several flips of each file of a directory that has everything: closed and open buckets, removed records.
#[test]
fn a_flipped_bit_in_any_file_never_gives_wrong_bytes() {
    for kind in Kind::ALL {
        let (mut good, mut bad, mut lost) = (0, 0, 0);
        for seed in 0..150 {
            println!("{} seed {seed}", kind.name());
            let mut rng = Rng::new(seed);
            let mut config = Config::new(kind, 1 << 20);
            config.token = Some(seed);
            let mut rig = Rig::with(config, Box::new(SimHome::new(seed)));
            let sizes = [0, 100, 4096, 5000, 40_000, 33_000, 9, 70_000];
            let things: Vec<Thing> =
                (0..).zip(sizes).map(|(number, len)| Thing::new(number, len)).collect();
            rig.keep_all(&things[..6]);
            rig.backend().settle().unwrap();
            rig.keep_all(&things[6..]);
            rig.backend().remove(&[things[1].id]).unwrap();
            let mut files = files(rig.home.disk().as_ref(), Path::new(""));
            for _ in 0..=rng.below(2) {
                // Once each: the log and the identity bear one rotten copy, not two.
                let (path, len) = &files.swap_remove(rng.below(files.len() as u64) as usize);
                // Mostly where something is.
                let len = if rng.chance(500) { *len } else { (*len).min(3 * 4096) };
                let byte = rng.below(len);
                rig.home.sim().unwrap().flip(path, byte, (seed % 8) as u32).unwrap();
            }
            let mut judge = |rig: &Rig| {
                for thing in &things {
                    match rig.load(thing) {
                        Ok(()) => good += 1,
                        Err(LoadError::Corrupt) => bad += 1,
                        Err(LoadError::Missing) => lost += 1,
                        Err(error) => panic!("{error}"),
                    }
                }
            };
            judge(&rig);
            match rig.open() {
                Ok(()) => {}
                // Both copies were hit.
                Err(OpenError::Damaged) => continue,
                Err(error) => panic!("{error}"),
            }
            assert!(!rig.found.contains_key(&things[1].id), "it was removed");
            judge(&rig);
            rig.balanced();
        }
        println!("{}: {good} good, {bad} bad, {lost} lost", kind.name());
        assert!(good > 1000 && bad > 10 && lost > 0);
    }
}

#[test]
fn scrubbing_finds_what_is_bad_and_nothing_else() {
    simulated(6, |rig| {
        let things = some_things();
        rig.keep_all(&things);
        rig.backend().settle().unwrap();
        let scrub = |rig: &Rig| {
            let (mut bad, mut cursor, mut calls) = (Vec::new(), 0, 0);
            loop {
                let (more, next) = rig.backend().scrub(cursor, 100_000);
                bad.extend(more);
                (cursor, calls) = (next, calls + 1);
                if cursor == 0 {
                    return (bad, calls);
                }
            }
        };
        let (bad, calls) = scrub(rig);
        assert!(bad.is_empty() && calls >= 3, "{bad:?} in {calls} calls");
        // The largest value is hit for sure: its file, or the middle of the only one.
        let stamp = things[6].value[(1 << 20) + 1000..][..64].to_vec();
        let (path, at) = find(rig, &stamp);
        rig.home.sim().unwrap().flip(&path, at, 3).unwrap();
        assert_eq!(scrub(rig).0, [things[6].id]);
        assert!(matches!(rig.load(&things[6]), Err(LoadError::Missing)), "no longer served");
        assert!(scrub(rig).0.is_empty());
        let rest: Vec<Thing> = things.iter().filter(|t| t.id != things[6].id).cloned().collect();
        rig.has_all(&rest);
        // Bad or not, it can be removed for good.
        rig.backend().remove(&[things[6].id]).unwrap();
        rig.reopen();
        rig.found_exactly(&rest);
    });
}

/// Where some bytes lie.
fn find(rig: &mut Rig, what: &[u8]) -> (std::path::PathBuf, u64) {
    let disk = rig.home.disk();
    for (path, len) in files(disk.as_ref(), Path::new("")) {
        let file = disk.open(&path, crate::Open::Read).unwrap();
        let mut bytes = vec![0; len as usize];
        crate::reading::read_one(disk.as_ref(), &file, 0, &mut bytes).unwrap();
        if let Some(at) = bytes.windows(what.len()).position(|window| window == what) {
            return (path, at as u64);
        }
    }
    panic!("the bytes are nowhere");
}

#[test]
fn one_copy_of_the_identity_is_enough_and_none_is_said() {
    simulated(7, |rig| {
        let things = some_things();
        rig.keep_all(&things);
        for name in ["format", "format.copy"] {
            rig.home.sim().unwrap().flip(Path::new(name), 20, 1).unwrap();
            rig.reopen();
            rig.found_exactly(&things);
        }
        let before = rig.bytes_on_disk();
        for name in ["format", "format.copy"] {
            rig.home.sim().unwrap().flip(Path::new(name), 20, 1).unwrap();
        }
        assert!(matches!(rig.open(), Err(OpenError::Damaged)));
        assert_eq!(rig.bytes_on_disk(), before, "nothing is deleted");
    });
}

#[test]
fn files_that_are_not_ours_stay() {
    everywhere(|rig| {
        let things = some_things();
        rig.keep_all(&things);
        rig.backend = None;
        let disk = rig.home.disk();
        drop(disk.open(Path::new("notes.txt"), crate::Open::Create).unwrap());
        disk.make_dir(Path::new("lost+found")).unwrap();
        drop(disk);
        rig.reopen();
        rig.found_exactly(&things);
        rig.backend = None;
        let entries = rig.home.disk().list(Path::new("")).unwrap();
        let names: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
        assert!(names.contains(&"notes.txt") && names.contains(&"lost+found"), "{names:?}");
    });
}

/// They are not synced: a power cut may leave their file away, empty, short or without its bytes.
#[test]
fn lost_metadata_cost_time_only() {
    for left in [None, Some(0), Some(100), Some(4096)] {
        println!("of their files is left: {left:?}");
        let mut rig = Rig::new(Kind::Bucket, Box::new(SimHome::new(8)));
        let things = some_things();
        rig.keep_all(&things);
        rig.backend().remove(&[things[2].id]).unwrap();
        rig.backend().settle().unwrap();
        let disk = rig.home.disk();
        let metas = || {
            let all = files(disk.as_ref(), Path::new("")).into_iter();
            all.filter(|(path, _)| path.extension().is_some_and(|ending| ending == "meta"))
        };
        let before: Vec<_> = metas().collect();
        for (path, _) in &before {
            disk.remove(path).unwrap();
            if let Some(len) = left {
                disk.open(path, Open::Create).unwrap().set_len(len).unwrap();
            }
        }
        rig.reopen();
        let kept: Vec<Thing> = things.iter().filter(|t| t.id != things[2].id).cloned().collect();
        rig.found_exactly(&kept);
        rig.has_all(&kept);
        assert_eq!(rig.recovery.dropped, 0, "nothing was lost");
        assert!(!before.is_empty() && metas().eq(before), "written again");
        rig.balanced();
    }
}
