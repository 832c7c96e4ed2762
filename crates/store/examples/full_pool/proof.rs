//! Proves M13, fault row 23: a pool that is full all the time, under mixed load.
//!
//! ```text
//!   load     8 threads put, get, view, remove, ask; watermarks at 100 %, so only puts make room
//!   pinned   everything is looked at: every put says Busy, and soon
//!   drain    views dropped, all removed: not one byte, slot or pin is left
//! ```
//!
//! Every value is stamped and every answer judged. Times are measured and never asserted here: the
//! command checks its bound, the test of the same code does not.

use crate::judge::Judge;
use crate::report::{BUSY_MS_MAX, Report, Times};
use crate::worker::{Held, SIZE_MAX, SIZE_MIN, Tally, Worker, is_busy};
use mooncrate::{CatalogConfig, EmbeddedOptions, Error, Store};
use mooncrate_wire::clock::boottime;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// How often the pinned pool is asked, if its answers come late.
const PINNED_ROUNDS_MAX: usize = 3;
/// How long the pool may take to empty.
const DRAIN_TIME: Duration = Duration::from_secs(20);

/// How long and how large.
#[derive(Clone, Debug)]
pub(crate) struct Proof {
    pub(crate) load_time: Duration,
    pub(crate) pinned_time: Duration,
    pub(crate) segment_bytes: u64,
    pub(crate) threads: u64,
    /// Of all values under load. Values of one size fill every byte; of mixed sizes they leave gaps,
    /// because each needs one run.
    pub(crate) one_size: Option<usize>,
}

impl Default for Proof {
    fn default() -> Self {
        Self {
            load_time: Duration::from_mins(1),
            pinned_time: Duration::from_secs(3),
            segment_bytes: 256 << 20,
            threads: 8,
            one_size: None,
        }
    }
}

impl Proof {
    /// The whole proof. An error means that the store could not even be asked.
    pub(crate) fn run(&self) -> Result<Report, Error> {
        let catalog =
            CatalogConfig { high_permille: 1000, low_permille: 1000, ..CatalogConfig::default() };
        let store = Store::embedded(EmbeddedOptions {
            segment_bytes: self.segment_bytes,
            catalog,
            ..EmbeddedOptions::default()
        })?;
        let judge = Judge::default();
        let mut report = Report {
            threads: self.threads,
            load_time: self.load_time,
            capacity: store.stat()?.capacity_bytes,
            ..Report::default()
        };
        self.fill(&store, &judge)?;
        self.load(&store, &judge, &mut report)?;
        self.pinned(&store, &judge, &mut report)?;
        drain(&store, &judge, &mut report)?;
        report.breaches.extend(judge.violations());
        let counts = judge.counts();
        (report.puts, report.gets_verified) = (counts.puts, counts.hits);
        report.get_errors = counts.gets_failed;
        if store.counts().corrupt > 0 {
            report.breaches.push(format!("{} values were corrupt", store.counts().corrupt));
        }
        Ok(report)
    }

    /// Puts until the pool has begun to evict.
    fn fill(&self, store: &Store, judge: &Judge) -> Result<(), Error> {
        let mut worker = Worker::new(store, judge, u64::MAX, self.one_size);
        while store.stat()?.counters.evicted < 10 {
            let name = worker.some_key();
            worker.put(&name);
        }
        Ok(())
    }

    fn load(&self, store: &Store, judge: &Judge, report: &mut Report) -> Result<(), Error> {
        let stop = &AtomicBool::new(false);
        let evicted = store.stat()?.counters.evicted_bytes;
        let mut tallies = Vec::new();
        std::thread::scope(|scope| -> Result<(), Error> {
            let threads: Vec<_> = (0..self.threads)
                .map(|seed| {
                    let worker = Worker::new(store, judge, seed, self.one_size);
                    scope.spawn(move || worker.work(stop))
                })
                .collect();
            let watched = watch(store, self.load_time, report);
            stop.store(true, Ordering::Relaxed);
            for thread in threads {
                tallies.push(thread.join().expect("a worker ends by itself"));
            }
            watched
        })?;
        let (mut put_micros, mut busy_micros) = (Vec::new(), Vec::new());
        for tally in tallies {
            report.operations += tally.operations;
            report.views_verified += tally.views_verified;
            report.breaches.extend(tally.wrong);
            put_micros.extend(tally.put_micros);
            busy_micros.extend(tally.busy_micros);
        }
        report.busy = busy_micros.len() as u64;
        report.put_times = Times::of(put_micros);
        report.busy_times = Times::of(busy_micros);
        let stat = store.stat()?;
        report.evicted_bytes = stat.counters.evicted_bytes - evicted;
        report.evicted_objects = stat.counters.evicted;
        if report.evicted_bytes == 0 {
            report.breaches.push("nothing was evicted: the pool was not full".into());
        }
        Ok(())
    }

    /// Everything is looked at, and everybody wants room.
    fn pinned(&self, store: &Store, judge: &Judge, report: &mut Report) -> Result<(), Error> {
        let held = pin_all(store, judge)?;
        report.pinned_objects = held.len() as u64;
        report.pinned_bytes = held.iter().map(|held| held.view.len() as u64).sum();
        for _ in 0..PINNED_ROUNDS_MAX {
            self.pinned_round(store, judge, report);
            report.pinned_slowest.push(report.pinned_times.max);
            if report.pinned_times.max <= Duration::from_millis(BUSY_MS_MAX) {
                break;
            }
        }
        report.breaches.extend(held.iter().filter_map(|held| held.sound().err()));
        report.views_verified += held.len() as u64;
        drop(held);
        // Fault row 23: and then it goes on.
        if !eventually(Duration::from_secs(1), || {
            judge.put(b"after", SIZE_MAX as usize, |value| store.put(b"after", value)).is_ok()
        }) {
            report.breaches.push("no put succeeded within 1 s after the views were gone".into());
        }
        Ok(())
    }

    fn pinned_round(&self, store: &Store, judge: &Judge, report: &mut Report) {
        let end = boottime().deadline_in(self.pinned_time);
        let tallies: Vec<Tally> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.threads)
                .map(|seed| {
                    scope.spawn(move || {
                        let mut worker = Worker::new(store, judge, 1000 + seed, None);
                        while !end.passed(boottime()) {
                            let name = format!("late/{seed}/{}", worker.tally.operations);
                            worker.put(name.as_bytes());
                            // The answer says to wait longer; without any pause the threads would
                            // measure how they keep each other from running.
                            std::thread::sleep(Duration::from_millis(1));
                        }
                        worker.tally
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("ends by itself")).collect()
        });
        let mut busy_micros = Vec::new();
        for tally in tallies {
            report.breaches.extend(tally.wrong);
            let stored = tally.operations - tally.busy_micros.len() as u64;
            busy_micros.extend(tally.busy_micros);
            if stored > 0 {
                let what = format!("{stored} puts found room though everything was pinned");
                report.breaches.push(what);
            }
        }
        report.pinned_busy += busy_micros.len() as u64;
        report.pinned_times = Times::of(busy_micros);
    }
}

/// Looks at the pool from outside while the others work: is it full, do the books balance?
fn watch(store: &Store, load_time: Duration, report: &mut Report) -> Result<(), Error> {
    let master = store.master().expect("the store is embedded");
    let end = boottime().deadline_in(load_time);
    report.fill_lowest_permille = 1000;
    let (mut looks, mut sum) = (0_u64, 0);
    while !end.passed(boottime()) {
        let stat = store.stat()?;
        let held = stat.used_bytes + stat.quarantined_bytes;
        let permille = held * 1000 / stat.capacity_bytes;
        report.fill_lowest_permille = report.fill_lowest_permille.min(permille);
        sum += permille;
        if looks.is_multiple_of(8) {
            report.audits += 1;
            if let Err(error) = master.audit() {
                report.breaches.push(format!("the books do not balance: {error}"));
                return Ok(());
            }
        }
        looks += 1;
        std::thread::sleep(Duration::from_millis(25));
    }
    report.fill_mean_permille = sum / looks.max(1);
    Ok(())
}

/// Views of everything there is, and of more until nothing fits any more.
fn pin_all(store: &Store, judge: &Judge) -> Result<Vec<Held>, Error> {
    let mut held = Vec::new();
    for name in all_keys(store)? {
        if let Some(view) = judge.get(&name, || store.view(&name))? {
            held.push(Held { name, view });
        }
    }
    let mut count = 0_u64;
    for len in [SIZE_MAX, 64 << 10, SIZE_MIN] {
        // Busy thrice, with pauses in which the master looks again: then it is true.
        let mut refused = 0;
        while refused < 3 {
            count += 1;
            let name = format!("fill/{count}").into_bytes();
            match judge.put(&name, len as usize, |value| store.put(&name, value)) {
                Ok(_) => {
                    refused = 0;
                    if let Some(view) = judge.get(&name, || store.view(&name))? {
                        held.push(Held { name, view });
                    }
                }
                Err(error) if is_busy(&error) => {
                    refused += 1;
                    std::thread::sleep(Duration::from_millis(25));
                }
                Err(error) => return Err(error),
            }
        }
    }
    Ok(held)
}

fn all_keys(store: &Store) -> Result<Vec<Vec<u8>>, Error> {
    let (mut names, mut cursor) = (Vec::new(), 0);
    loop {
        let page = store.list(b"", cursor, 1024)?;
        names.extend(page.entries.iter().map(|entry| entry.key.as_bytes().to_vec()));
        match page.next {
            Some(next) => cursor = next,
            None => return Ok(names),
        }
    }
}

/// Removes everything, and looks for what is left: in the master's books and in the node's.
fn drain(store: &Store, judge: &Judge, report: &mut Report) -> Result<(), Error> {
    let empty = AtomicU64::new(u64::MAX);
    eventually(DRAIN_TIME, || {
        for name in all_keys(store).unwrap_or_default() {
            // What is in the middle of something is asked again in the next round.
            let _ = judge.remove(&name, || store.remove(&name, true));
        }
        store.stat().is_ok_and(|stat| {
            let left = stat.used_bytes + stat.quarantined_bytes;
            empty.store(left, Ordering::Relaxed);
            left == 0 && stat.objects == 0 && stat.open_puts == 0
        })
    });
    report.leaked_bytes = empty.into_inner();
    let mut wrong = |what: String| report.breaches.push(what);
    if report.leaked_bytes > 0 {
        wrong(format!("{} bytes leaked", report.leaked_bytes));
    }
    let stat = store.stat()?;
    if stat.largest_free_run != stat.capacity_bytes {
        wrong(format!(
            "{} of {} bytes free in one run",
            stat.largest_free_run, stat.capacity_bytes
        ));
    }
    if let Err(error) = store.master().expect("the store is embedded").audit() {
        wrong(format!("the books do not balance: {error}"));
    }
    for segment in store.node().expect("the store is embedded").segments().all() {
        let stats = segment.stats();
        let left = stats.ready + stats.writing + stats.retiring + stats.failed;
        if left > 0 || segment.pins() > 0 {
            wrong(format!("the node holds {stats:?} and {} pins", segment.pins()));
        }
    }
    Ok(())
}

fn eventually(most: Duration, done: impl Fn() -> bool) -> bool {
    let end = boottime().deadline_in(most);
    while !done() {
        if end.passed(boottime()) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}
