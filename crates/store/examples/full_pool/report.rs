//! What the proof of the full pool saw, and how it is shown.

use std::fmt;
use std::time::Duration;

/// How soon a put must say Busy when everything is in use.
pub(crate) const BUSY_MS_MAX: u64 = 50;

/// What was seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    pub(crate) threads: u64,
    pub(crate) load_time: Duration,
    pub(crate) capacity: u64,
    pub(crate) operations: u64,
    pub(crate) puts: u64,
    pub(crate) gets_verified: u64,
    pub(crate) views_verified: u64,
    pub(crate) get_errors: u64,
    pub(crate) put_times: Times,
    pub(crate) busy: u64,
    pub(crate) busy_times: Times,
    pub(crate) fill_lowest_permille: u64,
    pub(crate) fill_mean_permille: u64,
    pub(crate) audits: u64,
    pub(crate) evicted_bytes: u64,
    pub(crate) evicted_objects: u64,
    pub(crate) pinned_objects: u64,
    pub(crate) pinned_bytes: u64,
    pub(crate) pinned_busy: u64,
    pub(crate) pinned_times: Times,
    /// The slowest answer of each round; a further round follows one that was too slow.
    pub(crate) pinned_slowest: Vec<Duration>,
    pub(crate) leaked_bytes: u64,
    /// Whatever breaks a promise, in words. Empty: the proof holds.
    pub(crate) breaches: Vec<String>,
}

/// Latencies, summed up.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Times {
    pub p50: Duration,
    pub p99: Duration,
    pub(crate) max: Duration,
}

impl Times {
    pub(crate) fn of(mut micros: Vec<u32>) -> Self {
        micros.sort_unstable();
        let at = |permille: usize| {
            let index = (micros.len() * permille / 1000).min(micros.len().saturating_sub(1));
            Duration::from_micros(micros.get(index).copied().unwrap_or(0).into())
        };
        Self { p50: at(500), p99: at(990), max: at(1000) }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes >> 20;
        let percent = |permille: u64| format!("{}.{} %", permille / 10, permille % 10);
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let (seconds, put) = (self.load_time.as_secs_f64(), &self.put_times);
        writeln!(
            f,
            "load:   {} threads, {seconds:.0} s, pool of {} MiB, {} full, never below {}",
            self.threads,
            mib(self.capacity),
            percent(self.fill_mean_permille),
            percent(self.fill_lowest_permille)
        )?;
        writeln!(
            f,
            "        {} operations, {} puts, {} gets and {} views verified, wrong {}",
            self.operations,
            self.puts,
            self.gets_verified,
            self.views_verified,
            self.breaches.len()
        )?;
        writeln!(
            f,
            "        put p50 {:.3} ms, p99 {:.3} ms, slowest {:.1} ms; Busy {}, slowest {:.1} ms",
            ms(put.p50),
            ms(put.p99),
            ms(put.max),
            self.busy,
            ms(self.busy_times.max)
        )?;
        writeln!(
            f,
            "        evicted {} MiB in {} objects; {} audits of the books; {} gets without answer",
            mib(self.evicted_bytes),
            self.evicted_objects,
            self.audits,
            self.get_errors
        )?;
        writeln!(
            f,
            "pinned: {} MiB in {} views; {} puts, all Busy, p50 {:.3} ms, p99 {:.3} ms, \
             slowest by round {:.1?}",
            mib(self.pinned_bytes),
            self.pinned_objects,
            self.pinned_busy,
            ms(self.pinned_times.p50),
            ms(self.pinned_times.p99),
            self.pinned_slowest
        )?;
        writeln!(f, "drain:  leaked {} bytes", self.leaked_bytes)
    }
}
