//! `bench`: puts and gets as fast as they go, every value verified with a checksum of its own.
//!
//! Only the time inside calls counts: making and checking values is not the store's work. What a
//! thread put it reads back; the oldest values are removed to keep the working set, and all of them
//! when the bench ends.

use super::{connect, failed};
use crate::args::Bench;
use crate::config::Settings;
use crate::failure::Failure;
use crate::progress;
use crate::render::{Output, bytes, counted};
use hdrhistogram::Histogram;
use mooncrate::{Advice, Store, Stored};
use mooncrate_core::key;
use mooncrate_core::limits::VALUE_BYTES_MAX;
use mooncrate_core::rng::Rng;
use mooncrate_core::time::{Deadline, nanos};
use mooncrate_wire::clock::boottime;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::thread;
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64;

/// Most values of one thread in the cluster: more would measure the bench's own bookkeeping.
const VALUES_MAX: u64 = 100_000;
/// The longest call that is told from longer ones.
const LATENCY_MAX: Duration = Duration::from_hours(1);
/// Bytes that carry one stamp.
const LINE: usize = 64;
/// Between two looks at the clock by the progress bar.
const LOOK: Duration = Duration::from_millis(100);
/// Longest rest after a put that found no room.
const REST_MAX: Duration = Duration::from_millis(50);

/// What was measured for one kind of call and one size.
#[derive(Debug)]
pub(crate) struct Row {
    what: &'static str,
    size: u64,
    threads: u32,
    tally: Tally,
}

/// What threads counted.
#[derive(Debug)]
struct Tally {
    /// Calls that moved a value.
    calls: u64,
    /// Puts that found no room, gets that found no value.
    missed: u64,
    /// Nanoseconds of each call that moved a value.
    latency: Histogram<u64>,
    /// Time inside all calls.
    busy: Duration,
}

impl Tally {
    fn new() -> Self {
        // Bounds are fixed: a histogram that grows does not do so for saturating records.
        let latency = Histogram::new_with_bounds(1, nanos(LATENCY_MAX), 3)
            .expect("an hour in nanoseconds with three digits is possible");
        Self { calls: 0, missed: 0, latency, busy: Duration::ZERO }
    }

    fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.missed += other.missed;
        self.busy += other.busy;
        self.latency.add(&other.latency).expect("both have the same bounds");
    }

    /// Times one call; whether it moved a value is known afterwards.
    fn time<T>(&mut self, call: impl FnOnce() -> T, moved: impl FnOnce(&T) -> bool) -> T {
        let before = boottime();
        let result = call();
        let took = boottime().since(before);
        self.busy += took;
        if moved(&result) {
            self.calls += 1;
            self.latency.saturating_record(nanos(took));
        } else {
            self.missed += 1;
        }
        result
    }
}

impl Row {
    /// Calls that moved a value, per second, of all threads together.
    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    fn rate(&self) -> f64 {
        let seconds = self.tally.busy.as_secs_f64() / f64::from(self.threads);
        if seconds > 0.0 { self.tally.calls as f64 / seconds } else { 0.0 }
    }

    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    fn gigabytes_per_second(&self) -> f64 {
        self.rate() * self.size as f64 / 1e9
    }

    fn percentile(&self, percent: f64) -> Duration {
        Duration::from_nanos(self.tally.latency.value_at_percentile(percent))
    }

    /// For programs.
    pub(crate) fn json(&self) -> Value {
        json!({
            "call": self.what,
            "value_bytes": self.size,
            "threads": self.threads,
            "calls": self.tally.calls,
            "missed": self.tally.missed,
            "gigabytes_per_second": self.gigabytes_per_second(),
            "calls_per_second": self.rate(),
            "p50_ns": nanos(self.percentile(50.0)),
            "p99_ns": nanos(self.percentile(99.0)),
        })
    }

    /// For people.
    pub(crate) fn cells(&self) -> Vec<String> {
        vec![
            self.what.to_owned(),
            bytes(self.size),
            self.tally.calls.to_string(),
            self.tally.missed.to_string(),
            format!("{:.2}", self.gigabytes_per_second()),
            format!("{:.0}", self.rate()),
            format!("{:.1?}", self.percentile(50.0)),
            format!("{:.1?}", self.percentile(99.0)),
        ]
    }
}

/// The names of the columns of [`Row::cells`].
pub(crate) const COLUMNS: [&str; 8] =
    ["CALL", "SIZE", "CALLS", "MISSED", "GB/s", "CALLS/s", "P50", "P99"];

pub(super) fn run(args: &Bench, settings: &Settings, out: Output) -> Result<(), Failure> {
    if let Some(size) = args.sizes.iter().find(|size| **size > VALUE_BYTES_MAX) {
        let (size, most) = (bytes(*size), bytes(VALUE_BYTES_MAX));
        return Err(Failure::usage(format!("--sizes: {size} is over the limit of {most}")));
    }
    let store = connect(settings)?;
    let mut rows = Vec::new();
    for &size in &args.sizes {
        let share = args.working_set / u64::from(args.threads);
        let mut workers: Vec<Worker> =
            (0..args.threads).map(|thread| Worker::new(thread, size, share)).collect();
        let puts = phase(&store, &mut workers, "put", size, args.time, Worker::put)?;
        let gets = phase(&store, &mut workers, "get", size, args.time, Worker::get)?;
        for worker in &mut workers {
            worker.clear(&store, 0)?;
        }
        rows.extend([("put", puts), ("get", gets)].map(|(what, tally)| Row {
            what,
            size,
            threads: args.threads,
            tally,
        }));
    }
    let sentence = format!(
        "{} put and then read values for {} per size; every value that came back was verified.",
        counted(u64::from(args.threads), "thread"),
        humantime::format_duration(args.time),
    );
    out.bench(&sentence, &rows)
}

/// Lets all workers do `step` for `time`.
fn phase(
    store: &Store,
    workers: &mut [Worker],
    what: &'static str,
    size: u64,
    time: Duration,
    step: fn(&mut Worker, &Store, &mut Tally) -> Result<(), Failure>,
) -> Result<Tally, Failure> {
    let start = boottime();
    let end = start.deadline_in(time);
    let bar = progress::timer(format!("{what} {}", bytes(size)), time);
    let results: Vec<Result<Tally, Failure>> = thread::scope(|scope| {
        let running: Vec<_> = workers
            .iter_mut()
            .map(|worker| {
                let name = thread::Builder::new().name(format!("bench-{}", worker.thread));
                name.spawn_scoped(scope, move || worker.repeat(store, end, step))
                    .map_err(|error| Failure::failed(format!("cannot start a thread: {error}")))
            })
            .collect();
        while !end.passed(boottime())
            && running.iter().any(|one| one.as_ref().is_ok_and(|one| !one.is_finished()))
        {
            thread::sleep(LOOK.min(end.left(boottime())));
            bar.set_position(boottime().since(start).as_millis() as u64);
        }
        running
            .into_iter()
            .map(|one| one?.join().map_err(|_| Failure::failed("a thread of the bench died"))?)
            .collect()
    });
    bar.finish_and_clear();
    let mut sum = Tally::new();
    for result in results {
        sum.add(&result?);
    }
    Ok(sum)
}

/// One thread of the load, and the values that it has in the cluster.
struct Worker {
    thread: u32,
    prefix: String,
    /// Number and checksum of each value, oldest first.
    held: VecDeque<(u64, u64)>,
    held_max: usize,
    next: u64,
    value: Vec<u8>,
    read: Vec<u8>,
    rng: Rng,
}

impl Worker {
    /// A thread that keeps about `working_set` bytes in the cluster.
    fn new(thread: u32, size: u64, working_set: u64) -> Self {
        // Keys of this run alone: a value of an earlier one must not be met.
        let run = boottime().0 ^ u64::from(std::process::id()) << 40;
        let mut rng = Rng::new(run ^ u64::from(thread));
        let value = std::iter::repeat_with(|| rng.next() as u8).take(size as usize).collect();
        Self {
            thread,
            prefix: format!("bench/{run:x}/{size}/{thread}/"),
            held: VecDeque::new(),
            held_max: (working_set / size).clamp(1, VALUES_MAX) as usize,
            next: 0,
            value,
            read: vec![0; size as usize],
            rng,
        }
    }

    fn repeat(
        &mut self,
        store: &Store,
        end: Deadline,
        step: fn(&mut Self, &Store, &mut Tally) -> Result<(), Failure>,
    ) -> Result<Tally, Failure> {
        let mut tally = Tally::new();
        while !end.passed(boottime()) {
            step(self, store, &mut tally)?;
        }
        Ok(tally)
    }

    fn key(&self, number: u64) -> String {
        format!("{}{number}", self.prefix)
    }

    fn put(&mut self, store: &Store, tally: &mut Tally) -> Result<(), Failure> {
        self.clear(store, self.held_max - 1)?;
        let number = self.next;
        self.next += 1;
        let key = self.key(number);
        stamp(&mut self.value, xxh3_64(key.as_bytes()));
        let stored =
            tally.time(|| store.put(key.as_bytes(), &self.value), |r| matches!(r, Ok(Stored::New)));
        match stored {
            Ok(Stored::New) => self.held.push_back((number, xxh3_64(&self.value))),
            Ok(Stored::AlreadyThere) => {
                return Err(Failure::failed(format!("{key} was there before it was put")));
            }
            Err(error) => match error.advice() {
                Advice::Retry { after_ms } => {
                    thread::sleep(REST_MAX.min(Duration::from_millis(after_ms.into())));
                }
                _ => return Err(failed(error)),
            },
        }
        Ok(())
    }

    fn get(&mut self, store: &Store, tally: &mut Tally) -> Result<(), Failure> {
        if self.held.is_empty() {
            return Err(Failure::failed("nothing could be put, so nothing can be read")
                .hint("`mooncrate stat` shows whether a segment is mounted and has room"));
        }
        let (number, sum) = self.held[self.rng.below(self.held.len() as u64) as usize];
        let key = self.key(number);
        self.read.fill(0);
        let got = tally
            .time(|| store.get_into(key.as_bytes(), &mut self.read), |r| matches!(r, Ok(Some(_))));
        match got.map_err(failed)? {
            Some(len) if len == self.read.len() && xxh3_64(&self.read) == sum => Ok(()),
            Some(len) => {
                let shown = key::show(key.as_bytes());
                let message = format!("WRONG BYTES: {len} bytes of {shown} are not what was put");
                Err(Failure::failed(message).hint("please report this with the logs of all nodes"))
            }
            None => Ok(()),
        }
    }

    /// Removes the oldest values until `most` are left.
    fn clear(&mut self, store: &Store, most: usize) -> Result<(), Failure> {
        while self.held.len() > most {
            let (number, _) = self.held.pop_front().expect("more than `most` are there");
            // Whatever holds it back now, eviction takes it later; only a broken link ends the bench.
            if let Err(error) = store.remove(self.key(number).as_bytes(), true)
                && !matches!(error.advice(), Advice::Retry { .. } | Advice::TreatAsDone)
            {
                return Err(failed(error));
            }
        }
        Ok(())
    }
}

/// Makes a value unlike every other: each line names the value and its place.
fn stamp(value: &mut [u8], name: u64) {
    for (line, place) in value.chunks_mut(LINE).zip(0_u64..) {
        let mark = (name ^ place.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_le_bytes();
        let len = line.len().min(mark.len());
        line[..len].copy_from_slice(&mark[..len]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mooncrate::EmbeddedOptions;

    #[test]
    fn stamped_values_differ_in_every_line() {
        let (mut a, mut b) = (vec![9; 200], vec![9; 200]);
        stamp(&mut a, 1);
        stamp(&mut b, 2);
        for (x, y) in a.chunks(LINE).zip(b.chunks(LINE)) {
            assert_ne!(x, y);
        }
        assert_ne!(a[..64], a[64..128], "places differ too");
        stamp(&mut [], 1);
        stamp(&mut [0; 3], 1);
    }

    /// A get that returns other bytes than were put ends the bench; a value that has gone does not.
    #[test]
    fn wrong_bytes_are_told_from_a_miss() {
        let options = EmbeddedOptions { segment_bytes: 1 << 20, ..EmbeddedOptions::default() };
        let store = Store::embedded(options).unwrap();
        let mut tally = Tally::new();
        let mut worker = Worker::new(0, 1000, 4000);
        for _ in 0..6 {
            worker.put(&store, &mut tally).unwrap();
        }
        assert_eq!((tally.calls, worker.held.len()), (6, 4), "the working set is kept");
        worker.get(&store, &mut tally).unwrap();
        assert_eq!((tally.calls, tally.missed), (7, 0));

        worker.held.truncate(1);
        worker.held[0].1 ^= 1;
        let error = worker.get(&store, &mut tally).unwrap_err();
        assert!(error.to_string().starts_with("WRONG BYTES: 1000 bytes of bench/"), "{error}");

        let key = worker.key(worker.held[0].0);
        store.remove(key.as_bytes(), true).unwrap();
        worker.get(&store, &mut tally).unwrap();
        assert_eq!(tally.missed, 1);
        worker.clear(&store, 0).unwrap();
        assert!(worker.get(&store, &mut tally).unwrap_err().to_string().contains("nothing"));
    }

    #[test]
    fn rows_count_the_time_inside_calls() {
        let mut tally = Tally::new();
        tally.time(|| thread::sleep(Duration::from_millis(2)), |()| true);
        tally.time(|| (), |()| false);
        let mut sum = Tally::new();
        sum.add(&tally);
        sum.add(&tally);
        assert_eq!((sum.calls, sum.missed, sum.latency.len()), (2, 2, 2));
        sum.busy = Duration::from_millis(4);
        let row = Row { what: "put", size: 1000, threads: 2, tally: sum };
        assert!((row.rate() - 1000.0).abs() < 1e-6, "2 calls in 2 ms of wall time");
        assert!((row.gigabytes_per_second() - 0.001).abs() < 1e-9);
        assert!(row.percentile(50.0) >= Duration::from_millis(2));
        assert_eq!(row.cells().len(), COLUMNS.len());
        assert_eq!(row.json()["p99_ns"], json!(nanos(row.percentile(99.0))));
    }
}
