//! What clients notice while a master rebuilds its index: four of them ask, each in a thread of its
//! own, and each until it got what it wants.

use super::{PATIENCE, Task, peers};
use crate::growth::{master_at, soon};
use crate::workload::key;
use anyhow::{Context, Result, bail, ensure};
use hdrhistogram::Histogram;
use mooncrate::{Store, Stored};
use mooncrate_core::Now;
use mooncrate_core::time::nanos;
use mooncrate_mem::clock::boottime;
use mooncrate_wire::MasterApi;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(2);
/// Between two looks at the whole.
const LOOK: Duration = Duration::from_millis(5);
/// Numbers of keys that nobody filled in.
const FRESH: u64 = 1 << 40;
/// Announced keys that the locates go round; those of the first pages.
const KNOWN: u64 = 512;

/// Times since the start of the new master, and what locates took, in nanoseconds.
pub(super) struct Watched {
    pub(super) up: Duration,
    /// When the first headers were seen in the index.
    pub(super) begun: Duration,
    pub(super) first_get: Duration,
    pub(super) first_put: Duration,
    pub(super) full: Duration,
    pub(super) locate_p99: f64,
    pub(super) locate_max: f64,
}

/// Watches a rebuild that began at `start`; the `round`-th, so that its put has a key of its own.
pub(super) fn watch(
    store: &Store,
    master: &str,
    start: Now,
    task: Task,
    round: u64,
) -> Result<Watched> {
    let full = AtomicBool::new(false);
    thread::scope(|scope| {
        let put = scope.spawn(|| {
            until(start, || matches!(store.put(&key(FRESH + round), &[7; 64]), Ok(Stored::New)))
        });
        let get = scope.spawn(|| {
            let expected = peers::value(0);
            until(start, || matches!(store.get(&key(0)), Ok(Some(value)) if value == expected))
        });
        let locates = scope.spawn(|| locates(master, &full));
        let all = all_indexed(master, start, task.objects + round + 1);
        // Release: pairs with the Acquire in `locates`, which ends by it, whatever came of this.
        full.store(true, Ordering::Release);
        let [up, begun, all] = all?;
        let latency = locates.join().expect("it does not panic")?;
        Ok(Watched {
            up,
            begun,
            first_get: get.join().expect("it does not panic")?,
            first_put: put.join().expect("it does not panic")?,
            full: all,
            locate_p99: p99(&latency),
            locate_max: p100(&latency),
        })
    })
}

/// The p99 of the same locates, for as long, on a master that has nothing else to do.
pub(super) fn idle_p99(master: &str, time: Duration) -> Result<f64> {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let asking = scope.spawn(|| locates(master, &over));
        thread::sleep(time);
        // Release: pairs with the Acquire in `locates`.
        over.store(true, Ordering::Release);
        let latency = asking.join().expect("it does not panic")?;
        Ok(p99(&latency))
    })
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn p99(latency: &Histogram<u64>) -> f64 {
    latency.value_at_percentile(99.0) as f64
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn p100(latency: &Histogram<u64>) -> f64 {
    latency.max() as f64
}

/// Tries until it works, and says how long after `start` that was.
fn until(start: Now, mut works: impl FnMut() -> bool) -> Result<Duration> {
    loop {
        if works() {
            return Ok(boottime().since(start));
        }
        let waited = boottime().since(start);
        ensure!(waited < PATIENCE, "it does not work after {} s", waited.as_secs());
        thread::sleep(PAUSE);
    }
}

/// When the master answered, when it knew the first object, and when it said that it knows this many.
fn all_indexed(master: &str, start: Now, objects: u64) -> Result<[Duration; 3]> {
    let link = master_at(master)?;
    let (mut up, mut begun) = (None, None);
    loop {
        let answer = link.stat(soon());
        let now = boottime().since(start);
        if let Ok(stat) = &answer {
            up.get_or_insert(now);
            if stat.objects > 0 {
                begun.get_or_insert(now);
            }
            ensure!(stat.objects <= objects, "{} objects in an index of {objects}", stat.objects);
            // The put of this round may come a moment after the last header.
            if !stat.rebuilding && stat.objects + 1 >= objects {
                let begun = begun.context("a rebuild of nothing")?;
                return Ok([up.context("it answered")?, begun, now]);
            }
        }
        if now > PATIENCE {
            bail!("the index is not full after {} s: {answer:?}", now.as_secs());
        }
        thread::sleep(LOOK);
    }
}

/// Locates announced keys, one after the other, until it is told to end; the times of those found.
fn locates(master: &str, end: &AtomicBool) -> Result<Histogram<u64>> {
    let link = master_at(master)?;
    let mut latency = Histogram::new(3).expect("three digits are possible");
    let mut number = 0;
    // Acquire: pairs with the Release of those who end it.
    while !end.load(Ordering::Acquire) {
        let key = key(number % KNOWN);
        let before = boottime();
        let found = link.locate(0, &[&key], soon());
        let took = boottime().since(before);
        match found.as_deref() {
            Ok([Ok(_)]) => {
                latency.record(nanos(took)).expect("it grows as it must");
                number += 1;
            }
            // Not announced yet, or nobody there yet.
            _ => thread::sleep(PAUSE),
        }
    }
    Ok(latency)
}
