//! The power fails: what was answered with `Ok` is there, what was removed stays removed, and nothing that
//! is found is wrong. The simulated disk keeps any subset of what was not synced.

use super::rig::{Rig, SimHome, Thing, files};
use super::simulated;
use crate::disk::sim::{Rates, SimDisk};
use crate::{Config, Disk, KeepError, Kind, LoadError, Record};
use mooncrate_core::rng::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

#[test]
fn what_was_kept_survives_and_what_was_removed_does_not() {
    for seed in 0..20 {
        simulated(seed, |rig| {
            let sizes = [0, 100, 5000, 40_000, 1 << 20, 70_000];
            let things: Vec<Thing> =
                (0..).zip(sizes).map(|(number, len)| Thing::new(number, len)).collect();
            rig.keep_all(&things);
            rig.crash();
            rig.found_exactly(&things);
            rig.has_all(&things);
            rig.backend().remove(&[things[0].id, things[3].id, things[4].id]).unwrap();
            rig.crash();
            let left = [things[1].clone(), things[2].clone(), things[5].clone()];
            rig.found_exactly(&left);
            rig.has_all(&left);
            rig.balanced();
            let ticket = rig.backend().unlink(1).unwrap();
            ticket.finish(Duration::from_secs(10)).unwrap();
            rig.backend().settle().unwrap();
            rig.crash();
            rig.balanced();
            rig.has_none(&[things[0].clone(), things[3].clone(), things[4].clone()]);
        });
    }
}

/// A keep that failed, at whatever, may be found by the next start; but not once its removal has ended well, though
/// nobody could load it (G6).
#[test]
fn what_was_not_kept_and_was_removed_does_not_come_back() {
    for kind in Kind::ALL {
        let mut told = [0; 2];
        for (seed, removes) in (0..200).flat_map(|seed| [(seed, false), (seed, true)]) {
            let disk = Arc::new(SimDisk::new(seed, 64 << 20, Rates::default()));
            let open = |disk: &Arc<SimDisk>| {
                let mut found = BTreeSet::new();
                let mut tell = |record: Record| found.extend([record.id]);
                let disk = Arc::clone(disk) as Arc<dyn Disk>;
                let config = Config::new(kind, 8 << 20);
                let (backend, _) = crate::open(disk, &config, &mut tell, &mut drop).unwrap();
                (backend, found)
            };
            let (backend, _) = open(&disk);
            let (old, new) = (Thing::new(0, 9000), Thing::new(1, 9000));
            backend.keep(&[old.record()]).remove(0).unwrap();
            disk.set_rates(Rates { write_error: 200_000, sync_error: 400_000, ..Rates::default() });
            let kept = backend.keep(&[new.record()]).remove(0);
            disk.set_rates(Rates::default());
            // A file that is lost with its sync removes nothing either, and says so.
            if kept.is_ok() || (removes && backend.remove(&[new.id]).is_err()) {
                continue;
            }
            let (_, found) = open(&Arc::new(disk.kill()));
            assert!(found.contains(&old.id), "{kind:?}, seed {seed}");
            told[usize::from(removes)] += u32::from(found.contains(&new.id));
            assert_eq!(told[1], 0, "{kind:?}, seed {seed}: removed, and back");
        }
        // The one that takes its name away when a step fails leaves nothing that has one.
        assert!(told[0] > 0 || kind == Kind::PerKey, "{kind:?}: the test shows nothing");
    }
}

/// What is known of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// Kept for sure.
    There,
    /// A call about it was cut: either.
    Either,
    /// Evicted, durably or not: it may come back.
    Evicted,
    /// Removed for sure.
    Gone,
}

struct Run {
    rig: Rig,
    rng: Rng,
    things: BTreeMap<u32, (Thing, Known)>,
    next: u32,
}

impl Run {
    fn new(kind: Kind, seed: u64) -> Self {
        Self::with(kind, seed, Box::new(SimHome::new(seed)))
    }

    fn with(kind: Kind, seed: u64, home: Box<SimHome>) -> Self {
        let mut config = Config::new(kind, 3 << 20);
        config.bucket_bytes_max = 256 << 10;
        config.bucket_records_max = 6;
        config.token = Some(seed);
        let rig = Rig::with(config, home);
        Self { rig, rng: Rng::new(seed), things: BTreeMap::new(), next: 0 }
    }

    fn step(&mut self) {
        match self.rng.below(10) {
            0..5 => self.keep(),
            5..7 => self.remove(),
            7 => self.evict(),
            8 => drop(self.rig.backend().settle()),
            _ => self.read_some(),
        }
    }

    fn keep(&mut self) {
        let count = 1 + self.rng.below(4);
        let sizes = [0, 10, 4000, 4096, 20_000, 32_768, 50_000, 120_000];
        let mut things = Vec::new();
        for _ in 0..count {
            things.push(Thing::new(self.next, sizes[self.rng.below(8) as usize]));
            self.next += 1;
        }
        let results = self.rig.keep(&things);
        let mut full = false;
        for (thing, result) in things.into_iter().zip(results) {
            let known = match result {
                Ok(()) => Known::There,
                Err(KeepError::Full { .. }) => {
                    full = true;
                    Known::Gone
                }
                Err(_) => Known::Either,
            };
            self.things.insert(thing.id.object.sequence as u32, (thing, known));
        }
        if full {
            self.evict();
        }
    }

    fn remove(&mut self) {
        let Some(number) = self.some() else { return };
        let (thing, known) = self.things.get_mut(&number).unwrap();
        *known = match self.rig.backend().remove(&[thing.id]) {
            // What was evicted is unknown to the backend, and may still be deleted on its disk.
            Ok(()) if *known == Known::Evicted => Known::Evicted,
            Ok(()) => Known::Gone,
            Err(_) if *known == Known::Gone => Known::Gone,
            Err(_) => Known::Either,
        };
    }

    fn evict(&mut self) {
        let wanted = self.rng.below(200_000);
        let Some(ticket) = self.rig.backend().unlink(wanted) else { return };
        if self.rng.chance(300) {
            return;
        }
        for id in ticket.records() {
            let (_, known) = self.things.get_mut(&(id.object.sequence as u32)).unwrap();
            if *known != Known::Gone {
                *known = Known::Evicted;
            }
        }
        drop(ticket.finish(Duration::ZERO));
    }

    fn some(&mut self) -> Option<u32> {
        let count = self.things.len() as u64;
        (count > 0).then(|| *self.things.keys().nth(self.rng.below(count) as usize).unwrap())
    }

    fn read_some(&mut self) {
        if let Some(number) = self.some() {
            let (thing, known) = &self.things[&number];
            let loaded = self.rig.load(thing);
            match (known, loaded) {
                (Known::There | Known::Either, Ok(())) | (_, Err(LoadError::Missing)) => {}
                (_, Err(LoadError::Disk(_))) if self.rig.home.sim().unwrap().is_off() => {}
                (known, loaded) => panic!("{:?} is {known:?}: {loaded:?}", thing.id),
            }
        }
    }

    /// After a crash: what is known is so, and from now on everything is known.
    fn judge(&mut self) {
        for (thing, known) in self.things.values_mut() {
            let found = self.rig.found.get(&thing.id);
            if let Some(record) = found {
                assert!(thing.is(record), "{:?}: {record:?}", thing.id);
            }
            match (*known, found.is_some()) {
                (Known::There, false) => panic!("{:?} was kept and is lost", thing.id),
                (Known::Gone, true) => panic!("{:?} was removed and is back", thing.id),
                (_, true) => {
                    let loaded = self.rig.load(thing);
                    assert!(loaded.is_ok(), "{:?} was found: {loaded:?}", thing.id);
                    *known = Known::There;
                }
                (_, false) => *known = Known::Gone,
            }
        }
        self.rig.balanced();
    }
}

/// A power cut in the middle of anything, again and again. `PROPTEST_CASES` does not matter here; the
/// number of seeds is fixed and each is short.
#[test]
fn power_cuts_anywhere() {
    for kind in Kind::ALL {
        for seed in 0..60 {
            println!("{} seed {seed}", kind.name());
            let mut run = Run::new(kind, seed);
            for _ in 0..6 {
                let cut = 1 + run.rng.below(80);
                let sim = run.rig.home.sim().unwrap();
                sim.cut_after(cut);
                for _ in 0..40 {
                    run.step();
                    if run.rig.home.sim().unwrap().is_off() {
                        break;
                    }
                }
                run.rig.crash();
                run.judge();
            }
        }
    }
}

/// The disk, or a quota of it, is smaller than the limit: what does not fit is refused, and the books stay
/// right (S7).
#[test]
fn a_disk_without_room_refuses() {
    // An odd seed is a full disk, an even one is a quota.
    for (kind, seed) in [(Kind::Bucket, 1), (Kind::Bucket, 2), (Kind::PerKey, 1), (Kind::PerKey, 2)]
    {
        println!("{} seed {seed}", kind.name());
        let home = Box::new(SimHome::with_capacity(seed, 2 << 20));
        let mut run = Run::with(kind, seed, home);
        let mut refused = 0;
        for number in 0..60 {
            let thing = Thing::new(number, 60_000);
            match run.rig.keep(std::slice::from_ref(&thing)).remove(0) {
                Ok(()) => drop(run.things.insert(number, (thing, Known::There))),
                Err(KeepError::Full { .. }) => refused += 1,
                Err(error) => panic!("{error}"),
            }
            let usage = run.rig.backend().usage();
            assert_eq!(usage.on_disk, run.rig.home.sim().unwrap().file_bytes(), "{usage:?}");
        }
        assert!(refused > 10 && run.things.len() > 10);
        run.rig.crash();
        run.judge();
        run.next = 100;
        while let Some(ticket) = run.rig.backend().unlink(200_000) {
            ticket.finish(Duration::ZERO).unwrap();
        }
        run.things.clear();
        run.keep();
        assert!(run.things.values().all(|(_, known)| *known == Known::There), "room again");
    }
}

/// Errors of the disk: what is refused is not there, what was kept before is, and the books are right.
#[test]
fn a_failing_disk_is_told_and_the_books_stay_right() {
    for kind in Kind::ALL {
        for seed in 0..40 {
            println!("{} seed {seed}", kind.name());
            let mut run = Run::new(kind, seed);
            let rates = Rates { write_error: 40_000, sync_error: 20_000, ..Rates::default() };
            run.rig.home.sim().unwrap().set_rates(rates);
            for _ in 0..60 {
                run.step();
            }
            run.rig.home.sim().unwrap().set_rates(Rates::default());
            let usage = run.rig.backend().usage();
            let on_disk = run.rig.home.sim().unwrap().file_bytes();
            assert_eq!(usage.on_disk, on_disk, "{usage:?}");
            run.rig.crash();
            for (thing, known) in run.things.values() {
                let found = run.rig.found.get(&thing.id);
                assert!(found.is_none_or(|record| thing.is(record)));
                if *known == Known::There {
                    assert!(found.is_some(), "{:?} was kept and is lost", thing.id);
                    run.rig.load(thing).unwrap();
                }
            }
            run.rig.balanced();
        }
    }
}

/// What a start could not read is gone for good: a removal that did not know of it could not reach it, and
/// its name is free again (G6).
#[test]
fn what_is_not_told_does_not_come_back() {
    for kind in Kind::ALL {
        let mut hidden = 0;
        for seed in 0..40 {
            println!("{} seed {seed}", kind.name());
            let mut run = Run::new(kind, seed);
            run.rig.config.verify_values = seed % 2 == 0;
            for _ in 0..30 {
                run.step();
            }
            let rates = Rates { read_error: 60_000, ..Rates::default() };
            run.rig.home.sim().unwrap().set_rates(rates);
            // It may not be opened at all; at last the disk is well.
            let opened = (0..5).any(|_| run.rig.open().is_ok());
            run.rig.home.sim().unwrap().set_rates(Rates::default());
            if !opened {
                run.rig.reopen();
            }
            let told = run.rig.found.clone();
            let things: Vec<Thing> = run.things.values().map(|(thing, _)| thing.clone()).collect();
            let lost: Vec<&Thing> = things.iter().filter(|t| !told.contains_key(&t.id)).collect();
            hidden += lost.len();
            if seed % 3 == 0 {
                for thing in &lost {
                    let kept = run.rig.keep(std::slice::from_ref(*thing)).remove(0);
                    assert!(matches!(kept, Ok(()) | Err(KeepError::Full { .. })), "{kept:?}");
                    run.rig.backend().remove(&[thing.id]).unwrap();
                }
            }
            for _ in 0..2 {
                run.rig.crash();
                assert_eq!(run.rig.found, told, "{:?}", run.rig.recovery);
                // Nor when metadata are lost that left it out.
                let sim = run.rig.home.sim().unwrap();
                for (path, _) in files(sim, Path::new("")) {
                    if path.extension().is_some_and(|ending| ending == "meta") {
                        sim.remove(&path).unwrap();
                    }
                }
            }
            run.rig.crash();
            assert_eq!(run.rig.found, told, "{:?}", run.rig.recovery);
            run.rig.balanced();
        }
        assert!(hidden > 100, "{hidden}");
    }
}

/// A start that cannot read everything, and is cut short while it lets that go: what the next one tells loads.
#[test]
fn a_start_that_is_cut_short_leaves_whole_records() {
    for kind in Kind::ALL {
        for seed in 0..60 {
            println!("{} seed {seed}", kind.name());
            let mut run = Run::new(kind, seed);
            for _ in 0..12 {
                run.step();
            }
            let sim = run.rig.home.sim().unwrap();
            sim.set_rates(Rates { read_error: 60_000, ..Rates::default() });
            sim.cut_after(20 + seed * 3);
            drop(run.rig.open());
            run.rig.home.sim().unwrap().set_rates(Rates::default());
            run.rig.crash();
            for (thing, _) in run.things.values() {
                if run.rig.found.contains_key(&thing.id) {
                    run.rig.load(thing).unwrap();
                }
            }
        }
    }
}
