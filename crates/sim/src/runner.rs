//! Runs seeds, several at a time on threads that share nothing, and adds up what they found.
//!
//! Which seeds run depends only on the first seed and the number of operations wanted, never on the
//! threads: so the combined hash repeats too.

use crate::Nanos;
use crate::judge::Failure;
use mooncrate_check::oracle::Counts;
use mooncrate_core::Now;
use mooncrate_core::rng::Rng;
use mooncrate_mem::clock::boottime;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Between two lines about how far it is.
const PROGRESS_EVERY: Duration = Duration::from_secs(3);

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// The first seed; the others follow from it.
    pub seed: u64,
    /// Operations in all.
    pub ops: u64,
    /// Operations per seed; `None`: as many as the seed says.
    pub ops_per_seed: Option<u64>,
    /// Threads.
    pub threads: usize,
    /// Run for so long, in real time, whatever `ops` says.
    pub span: Option<Duration>,
}

/// What a rig counts, beside operations.
pub trait Tally: Clone + Default + Send {
    /// What must have been met has been, after so many operations.
    const ALL_MET_FROM_OPS: u64 = u64::MAX;

    /// Adds what another run counted.
    fn add(&mut self, other: &Self);

    /// Values whose bytes were compared.
    fn verified(&self) -> u64;

    /// Rows of the table at the end.
    fn rows(&self) -> Vec<(String, u64)>;

    /// What must be met in a long run, and was not.
    fn missing(&self) -> Vec<&'static str> {
        Vec::new()
    }
}

/// Rows of what an oracle judged.
pub(crate) fn judged_rows(judged: &Counts) -> Vec<(String, u64)> {
    let rows = [
        ("gets verified (hits)", judged.hits),
        ("misses", judged.misses),
        ("gets failed", judged.gets_failed),
        ("puts finished", judged.puts),
        ("puts refused", judged.puts_refused),
        ("puts of unknown outcome", judged.puts_unknown),
        ("removes finished", judged.removes),
    ];
    rows.map(|(name, count)| (name.to_owned(), count)).into()
}

/// The row of virtual time.
pub(crate) fn seconds_row(virtual_ns: Nanos) -> (String, u64) {
    ("virtual seconds".to_owned(), virtual_ns / 1_000_000_000)
}

/// What became of a seed.
#[derive(Clone, Debug, Default)]
pub struct Outcome<T> {
    /// The seed.
    pub seed: u64,
    /// Hash over everything that happened.
    pub hash: u64,
    /// Operations begun.
    pub ops: u64,
    /// What was counted.
    pub tally: T,
    /// The rule that was broken, if one was.
    pub failure: Option<Failure>,
    /// The lines around it, if words were asked for.
    pub lines: Vec<String>,
}

/// What became of several.
#[derive(Clone, Debug, Default)]
pub struct Sum<T> {
    /// Seeds that ran.
    pub seeds: u64,
    /// Operations begun.
    pub ops: u64,
    /// What was counted.
    pub tally: T,
    /// Hash over the traces of all seeds, whatever their order.
    pub hash: u64,
    /// The failure of the lowest seed that failed.
    pub failed: Option<(u64, Failure)>,
    /// Real time.
    pub took: Duration,
}

impl<T: Tally> Sum<T> {
    fn add(&mut self, outcome: Outcome<T>) {
        let Outcome { seed, hash, ops, tally, failure, .. } = outcome;
        self.seeds += 1;
        self.ops += ops;
        self.tally.add(&tally);
        let mixed = (seed ^ hash.rotate_left(17)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.hash = self.hash.wrapping_add(mixed ^ (mixed >> 31));
        if let Some(failure) = failure
            && self.failed.as_ref().is_none_or(|(lowest, _)| *lowest > seed)
        {
            self.failed = Some((seed, failure));
        }
    }
}

/// How a rig runs seeds.
pub struct Rig<'a, T> {
    /// Seeds that one turn of a thread takes.
    pub seeds_each: u64,
    /// The operations that a seed draws.
    pub ops_of: &'a (dyn Fn(u64) -> u64 + Sync),
    /// Runs the seeds of these numbers; fewer if one fails.
    pub run: &'a (dyn Fn(Range<u64>) -> Vec<Outcome<T>> + Sync),
}

/// Runs seeds until enough operations are done or a rule is broken; calls `progress` every three seconds.
pub fn run<T: Tally>(job: &Job, rig: &Rig<'_, T>, progress: impl Fn(&Sum<T>) + Sync) -> Sum<T> {
    let started = boottime();
    let seeds = if job.span.is_some() { u64::MAX } else { seeds_for(job, rig.ops_of) };
    let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let sum: Mutex<(Sum<T>, Now)> = Mutex::new((Sum::default(), started));
    let over = || job.span.is_some_and(|span| boottime().since(started) >= span);
    let work = || {
        while !stop.load(Ordering::Relaxed) && !over() {
            let from = next.fetch_add(rig.seeds_each, Ordering::Relaxed);
            if from >= seeds {
                return;
            }
            let outcomes = (rig.run)(from..seeds.min(from + rig.seeds_each));
            let failed = outcomes.iter().any(|outcome| outcome.failure.is_some());
            stop.fetch_or(failed, Ordering::Relaxed);
            let (sum, told) = &mut *sum.lock().expect("no run panics while it holds the lock");
            for outcome in outcomes {
                sum.add(outcome);
            }
            let now = boottime();
            if now.since(*told) >= PROGRESS_EVERY {
                *told = now;
                sum.took = now.since(started);
                progress(sum);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..job.threads {
            scope.spawn(work);
        }
        work();
    });
    let (mut sum, _) = sum.into_inner().expect("all threads have ended");
    sum.took = boottime().since(started);
    sum
}

/// The seeds of a run: the given one, then others that no other run begins with.
pub(crate) fn seed_at(first: u64, at: u64) -> u64 {
    if at == 0 { first } else { Rng::new(first ^ at.rotate_right(20)).next() }
}

/// How many seeds it takes to do that many operations.
fn seeds_for(job: &Job, ops_of: impl Fn(u64) -> u64) -> u64 {
    let (mut ops, mut seeds) = (0, 0);
    while ops < job.ops {
        ops += ops_of(seed_at(job.seed, seeds)).max(1);
        seeds += 1;
    }
    seeds
}
