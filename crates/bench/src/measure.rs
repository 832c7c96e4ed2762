//! Rounds, taken in turn. The figure of a round is the mean time per call; the figure of a row is the
//! median of its rounds, with their span beside it; percentiles are over single calls of all rounds.
//! A ratio is taken round by round, so that a disturbance that lasts longer than a round hits both
//! sides of it.

use crate::effort::Effort;
use anyhow::{Result, ensure};
use hdrhistogram::Histogram;
use mooncrate_core::time::nanos;
use mooncrate_mem::clock::boottime;
use serde_json::{Value, json};
use std::time::Duration;

/// Why a histogram takes every value: it was made without an upper bound.
const GROWS: &str = "it grows as it must";

/// One round of one contender.
#[derive(Debug)]
pub(crate) struct Lap {
    calls: u64,
    /// Time inside calls, of all threads.
    busy: Duration,
    /// Of single calls.
    latency: Histogram<u64>,
    threads: u32,
    budget: Duration,
    calls_min: u64,
}

impl Lap {
    fn new(budget: Duration, calls_min: u64) -> Self {
        let latency = Histogram::new(3).expect("three digits are possible");
        Self { calls: 0, busy: Duration::ZERO, latency, threads: 1, budget, calls_min }
    }

    /// A round of the same length, for another thread.
    pub(crate) fn like(&self) -> Self {
        Self::new(self.budget, self.calls_min)
    }

    /// Whether the round is not over yet.
    pub(crate) fn going(&self) -> bool {
        self.busy < self.budget || self.calls < self.calls_min
    }

    /// Times one call. What the caller does between calls does not count.
    pub(crate) fn time<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let before = boottime();
        let result = call();
        let took = boottime().since(before);
        self.busy += took;
        self.calls += 1;
        self.latency.record(nanos(took)).expect(GROWS);
        result
    }

    /// Times `calls` calls that are too short for a clock reading each.
    pub(crate) fn time_many<T>(&mut self, calls: u64, work: impl FnOnce() -> T) -> T {
        let before = boottime();
        let result = work();
        let took = boottime().since(before);
        self.busy += took;
        self.calls += calls;
        self.latency.record(nanos(took) / calls.max(1)).expect(GROWS);
        result
    }

    /// Adds the rounds of threads that ran side by side.
    pub(crate) fn join(&mut self, laps: &[Self]) {
        self.threads = laps.len() as u32;
        for lap in laps {
            self.calls += lap.calls;
            self.busy += lap.busy;
            self.latency.add(&lap.latency).expect(GROWS);
        }
    }

    /// Nanoseconds from one finished call to the next, all threads together.
    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    fn per_call(&self) -> f64 {
        self.busy.as_secs_f64() * 1e9 / f64::from(self.threads) / self.calls as f64
    }
}

/// Somebody who runs laps.
pub(crate) type Contender<'a> = &'a mut dyn FnMut(&mut Lap) -> Result<()>;

/// All laps of one contender.
#[derive(Debug)]
pub(crate) struct Series {
    per_call: Vec<f64>,
    latency: Histogram<u64>,
    calls: u64,
}

/// Median and span of rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    pub(crate) fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let last = values.len() - 1;
        // The mean of the two middle ones, which are the same one if there is a middle.
        let median = f64::midpoint(values[last / 2], values[last.div_ceil(2)]);
        Self { median, min: values[0], max: values[last] }
    }

    /// The spread of `f(value)`, for an `f` that only grows or only falls.
    pub(crate) fn map(self, f: impl Fn(f64) -> f64) -> Self {
        let (a, b) = (f(self.min), f(self.max));
        Self { median: f(self.median), min: a.min(b), max: a.max(b) }
    }

    pub(crate) fn json(self) -> Value {
        json!({ "median": self.median, "min": self.min, "max": self.max })
    }
}

impl Series {
    fn new() -> Self {
        let latency = Histogram::new(3).expect("three digits are possible");
        Self { per_call: Vec::new(), latency, calls: 0 }
    }

    fn add(&mut self, lap: &Lap) {
        self.per_call.push(lap.per_call());
        self.latency.add(&lap.latency).expect(GROWS);
        self.calls += lap.calls;
    }

    /// Nanoseconds per call.
    pub(crate) fn per_call(&self) -> Spread {
        Spread::of(self.per_call.clone())
    }

    /// This series' time per call as a multiple of the other's, round by round.
    pub(crate) fn over(&self, other: &Self) -> Spread {
        Spread::of(self.per_call.iter().zip(&other.per_call).map(|(a, b)| a / b).collect())
    }

    /// Nanoseconds that this many per cent of the single calls took at most.
    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    pub(crate) fn percentile(&self, percent: f64) -> f64 {
        self.latency.value_at_percentile(percent) as f64
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "ns_per_call": self.per_call().json(),
            "p50_ns": self.percentile(50.0),
            "p99_ns": self.percentile(99.0),
            "calls": self.calls,
            "rounds": self.per_call.len(),
        })
    }
}

/// Lets contenders run in turn, after a short lap each to warm up.
pub(crate) fn take_turns<const N: usize>(
    effort: &Effort,
    mut contenders: [Contender<'_>; N],
) -> Result<[Series; N]> {
    let mut series = std::array::from_fn(|_| Series::new());
    for contender in &mut contenders {
        contender(&mut Lap::new(effort.lap / 4, 1))?;
    }
    for _ in 0..effort.rounds {
        for (contender, series) in contenders.iter_mut().zip(&mut series) {
            let mut lap = Lap::new(effort.lap, effort.calls_min);
            contender(&mut lap)?;
            ensure!(lap.calls > 0, "a round without a call");
            series.add(&lap);
        }
    }
    Ok(series)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        let spread = Spread::of(vec![5.0, 1.0, 3.0]);
        assert_eq!(spread, Spread { median: 3.0, min: 1.0, max: 5.0 });
        assert!((Spread::of(vec![1.0, 2.0, 4.0, 9.0]).median - 3.0).abs() < 1e-12);
        let inverse = spread.map(|value| 15.0 / value);
        assert_eq!(inverse, Spread { median: 5.0, min: 3.0, max: 15.0 });
    }

    #[test]
    fn contenders_take_turns_and_only_calls_count() {
        let mut order = String::new();
        let turns = std::cell::RefCell::new(&mut order);
        let run = |name: char, millis: u64, lap: &mut Lap| {
            turns.borrow_mut().push(name);
            while lap.going() {
                lap.time(|| std::thread::sleep(Duration::from_millis(millis)));
                std::thread::sleep(Duration::from_millis(30));
            }
            Ok(())
        };
        let effort = Effort { rounds: 2, calls_min: 2, ..Effort::smoke() };
        let [a, b] = take_turns(
            &effort,
            [&mut |lap: &mut Lap| run('a', 1, lap), &mut |lap: &mut Lap| run('b', 20, lap)],
        )
        .unwrap();
        assert_eq!(order, "ababab");
        assert!(b.over(&a).median > 1.5, "{a:?} {b:?}");
        assert!(a.per_call().median < 25e6, "the rests between calls do not count: {a:?}");
        assert!(b.percentile(50.0) >= 19.9e6);
    }

    #[test]
    fn threads_side_by_side_share_the_time() {
        let mut laps: Vec<Lap> = (0..4).map(|_| Lap::new(Duration::ZERO, 0)).collect();
        for lap in &mut laps {
            (lap.calls, lap.busy) = (10, Duration::from_millis(10));
        }
        let mut all = laps[0].like();
        all.join(&laps);
        assert!((all.per_call() - 250_000.0).abs() < 1e-6, "40 calls in 10 ms");
    }

    #[test]
    fn many_short_calls_share_a_reading() {
        let mut lap = Lap::new(Duration::ZERO, 0);
        lap.time_many(1000, || std::thread::sleep(Duration::from_millis(2)));
        assert!(lap.per_call() >= 2000.0 && lap.per_call() < 1e6);
        assert!(!lap.going());
    }
}
