//! Numbers that threads add to while they work and that somebody reads now and then: what metrics
//! are made of. Adding takes no lock and allocates nothing.
//!
//! What must stay true: a number orders nothing. Every access is relaxed, so a reader sees each
//! number right for itself and never a consistent picture of several.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How often something happened, or how much of it. It only grows.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Once more.
    pub fn one(&self) {
        self.add(1);
    }

    /// This much more.
    pub fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    /// How much so far.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How many there are now. Whoever raises it lowers it again.
#[derive(Debug, Default)]
pub struct Level(AtomicU64);

impl Level {
    /// This many more.
    pub fn raise(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    /// This many fewer.
    pub fn lower(&self, amount: u64) {
        self.0.fetch_sub(amount, Ordering::Relaxed);
    }

    /// How many.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The bound of the first bucket is this power of two, in nanoseconds: about a microsecond.
const FIRST_POWER: u32 = 10;
/// Buckets with a bound. The last one ends at 2^33 ns, between eight and nine seconds.
const BOUNDED: usize = 24;

/// How long something took, in buckets that double: 1.024 µs, 2.048 µs, … 8.6 s, and beyond. Powers
/// of two, because the bucket is then found by counting zeros.
#[derive(Debug, Default)]
pub struct Spread {
    buckets: [AtomicU64; BOUNDED + 1],
    sum_ns: AtomicU64,
}

/// What a spread held when somebody looked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpreadNow {
    /// The upper bound in nanoseconds (`None`: no bound) and how many fell into it alone.
    pub buckets: Vec<(Option<u64>, u64)>,
    /// All of them.
    pub count: u64,
    /// Their sum in nanoseconds.
    pub sum_ns: u64,
}

impl Spread {
    /// One took this long.
    pub fn note(&self, took: Duration) {
        let ns = crate::time::nanos(took);
        self.buckets[Self::bucket(ns)].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// The first bucket whose bound is not below `ns`.
    fn bucket(ns: u64) -> usize {
        let bits = u64::BITS - ns.saturating_sub(1).leading_zeros();
        (bits.saturating_sub(FIRST_POWER) as usize).min(BOUNDED)
    }

    /// What it holds.
    pub fn now(&self) -> SpreadNow {
        let bound = |index: usize| (index < BOUNDED).then(|| 1_u64 << (index as u32 + FIRST_POWER));
        let buckets: Vec<(Option<u64>, u64)> = self
            .buckets
            .iter()
            .enumerate()
            .map(|(index, bucket)| (bound(index), bucket.load(Ordering::Relaxed)))
            .collect();
        SpreadNow {
            // Summed here and not counted apart, so that the two can never disagree.
            count: buckets.iter().map(|(_, count)| count).sum(),
            buckets,
            sum_ns: self.sum_ns.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_falls_into_the_first_bucket_that_reaches_it() {
        for (ns, bucket) in [
            (0, 0),
            (1, 0),
            (1024, 0),
            (1025, 1),
            (2048, 1),
            (2049, 2),
            (1 << 33, 23),
            ((1 << 33) + 1, 24),
            (u64::MAX, 24),
        ] {
            assert_eq!(Spread::bucket(ns), bucket, "{ns} ns");
        }
    }

    #[test]
    fn a_spread_counts_what_it_was_told() {
        let spread = Spread::default();
        for ns in [500, 1500, 1600, 20_000_000_000] {
            spread.note(Duration::from_nanos(ns));
        }
        let now = spread.now();
        assert_eq!((now.count, now.sum_ns), (4, 20_000_003_600));
        let full: Vec<_> = now.buckets.iter().filter(|(_, count)| *count > 0).collect();
        assert_eq!(full, [&(Some(1024), 1), &(Some(2048), 2), &(None, 1)]);
        assert_eq!(now.buckets.len(), 25);
    }

    #[test]
    fn counts_grow_and_levels_come_back() {
        let (count, level) = (Count::default(), Level::default());
        count.one();
        count.add(4);
        level.raise(3);
        level.lower(2);
        assert_eq!((count.value(), level.value()), (5, 1));
    }
}
