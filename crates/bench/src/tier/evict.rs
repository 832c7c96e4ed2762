//! Readers ask for what the disk is about to evict, for as long as is wanted.

use super::{Got, Home, Tier, get, put};
use crate::render;
use anyhow::{Result, ensure};
use mooncrate::Store;
use mooncrate_core::rng::Rng;
use mooncrate_wire::clock::boottime;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// How long, and by how many.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Evict {
    /// Seconds of it
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    seconds: u64,
    /// Threads that read
    #[arg(long, value_name = "COUNT", default_value_t = 4)]
    readers: u64,
}

#[derive(Debug, Default)]
struct Tally {
    right: AtomicU64,
    wrong: AtomicU64,
    missed: AtomicU64,
    failed: Mutex<BTreeMap<String, u64>>,
}

pub(super) fn run(wanted: &Tier, evict: &Evict) -> Result<bool> {
    let home = Home::new(wanted)?;
    let (_server, store) = home.serve(wanted)?;
    let (next, stop, tally) = (AtomicU64::new(0), AtomicBool::new(false), Tally::default());
    // The values that the disk holds, about; a reader asks around its far end.
    let held = (wanted.disk.0 + wanted.memory.0) / wanted.value.0;
    let put_failed = std::thread::scope(|scope| {
        for reader in 0..evict.readers {
            let (store, next, stop, tally) = (&store, &next, &stop, &tally);
            scope.spawn(move || {
                let mut rng = Rng::new(reader + 1);
                while !stop.load(Relaxed) {
                    let newest = next.load(Relaxed);
                    if newest < 16 {
                        std::thread::sleep(Duration::from_millis(5));
                        continue;
                    }
                    // Most of the time from the oldest that can be there, and a little before.
                    let oldest = newest.saturating_sub(held + held / 8);
                    let span = if rng.below(4) == 0 { newest - oldest } else { held / 3 };
                    let number = (oldest + rng.below(span.max(1))).min(newest - 1);
                    tell(tally, get(store, number, wanted.value.0));
                }
            });
        }
        let written = write(&store, wanted, evict, &next);
        stop.store(true, Relaxed);
        written
    });
    report(wanted, evict, &store, next.load(Relaxed), held, &tally, put_failed)
}

/// Puts one value after the other; how many were refused.
fn write(store: &Store, wanted: &Tier, evict: &Evict, next: &AtomicU64) -> u64 {
    let began = boottime();
    let mut value = vec![0; wanted.value.0 as usize];
    let mut refused = 0;
    while boottime().since(began) < Duration::from_secs(evict.seconds) {
        let number = next.load(Relaxed);
        match put(store, number, &mut value) {
            Ok(()) => next.store(number + 1, Relaxed),
            Err(error) => {
                refused += 1;
                if refused < 5 {
                    render::note(&format!("put of value {number}: {error}"));
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
    refused
}

fn tell(tally: &Tally, got: Result<Got, mooncrate::Error>) {
    match got {
        Ok(Got::Right) => tally.right.fetch_add(1, Relaxed),
        Ok(Got::Wrong) => tally.wrong.fetch_add(1, Relaxed),
        Ok(Got::Miss) => tally.missed.fetch_add(1, Relaxed),
        Err(error) => {
            let mut failed = tally.failed.lock().expect("no reader has panicked");
            let count = failed.entry(error.to_string()).or_default();
            *count += 1;
            *count
        }
    };
}

fn report(
    wanted: &Tier,
    evict: &Evict,
    store: &Store,
    written: u64,
    held: u64,
    tally: &Tally,
    refused: u64,
) -> Result<bool> {
    let (right, wrong) = (tally.right.load(Relaxed), tally.wrong.load(Relaxed));
    let missed = tally.missed.load(Relaxed);
    render::say(&format!(
        "{} s: {written} values of {} put through a disk of {} ({}), which holds about {held}; {refused} puts refused",
        evict.seconds, wanted.value, wanted.disk, wanted.backend
    ))?;
    render::say(&format!(
        "{} readers: {right} right, {wrong} wrong, {missed} missed",
        evict.readers
    ))?;
    let failed = tally.failed.lock().expect("no reader has panicked").clone();
    for (error, count) in &failed {
        render::say(&format!("FAILED: {count} gets: {error}"))?;
    }
    render::say(&format!("the master counts: {:?}", store.stat()?.counters))?;
    ensure!(written > held, "the disk was never full: give it less, or run for longer");
    Ok(wrong == 0 && failed.is_empty() && right > 0 && missed > 0)
}
