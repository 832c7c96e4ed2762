//! Runs seeds, several at a time on threads that share nothing, and adds up what they found.
//!
//! Which seeds run depends only on the first seed and the number of operations wanted, never on the
//! threads: so the combined hash repeats too.

use crate::ctx::Stats;
use crate::faults::Fault;
use crate::judge::Failure;
use crate::marks::Marks;
use crate::swarm::Swarm;
use crate::world::{Outcome, Watch, World};
use mooncrate_check::oracle::Counts;
use mooncrate_core::Now;
use mooncrate_core::rng::Rng;
use mooncrate_mem::clock::boottime;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

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

/// What several runs came to.
#[derive(Clone, Debug, Default)]
pub struct Sum {
    /// Seeds that ran.
    pub seeds: u64,
    /// Counters.
    pub stats: Stats,
    /// What the oracles judged.
    pub judged: Counts,
    /// Rare situations reached.
    pub marks: Marks,
    /// Hash over the traces of all seeds, whatever their order.
    pub hash: u64,
    /// The failure of the lowest seed that failed.
    pub failed: Option<(u64, Failure)>,
    /// Real time.
    pub took: Duration,
}

impl Sum {
    fn add(&mut self, outcome: &Outcome) {
        self.seeds += 1;
        self.stats.ops += outcome.stats.ops;
        self.stats.events += outcome.stats.events;
        self.stats.virtual_ns += outcome.stats.virtual_ns;
        for fault in 0..Fault::ALL.len() {
            self.stats.faults[fault] += outcome.stats.faults[fault];
        }
        let (mine, theirs) = (&mut self.judged, outcome.judged);
        mine.puts += theirs.puts;
        mine.puts_unknown += theirs.puts_unknown;
        mine.puts_refused += theirs.puts_refused;
        mine.removes += theirs.removes;
        mine.hits += theirs.hits;
        mine.misses += theirs.misses;
        mine.gets_failed += theirs.gets_failed;
        self.marks.add(&outcome.marks);
        let mixed =
            (outcome.seed ^ outcome.hash.rotate_left(17)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.hash = self.hash.wrapping_add(mixed ^ (mixed >> 31));
        if let Some(failure) = &outcome.failure
            && self.failed.as_ref().is_none_or(|(seed, _)| *seed > outcome.seed)
        {
            self.failed = Some((outcome.seed, failure.clone()));
        }
    }
}

/// Runs one seed. A panic in the code under test is a failure like any other.
pub fn run_seed(seed: u64, ops: Option<u64>, watch: Watch) -> Outcome {
    let run = || World::run(Swarm::draw(seed, ops), watch);
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        let text = text.unwrap_or_else(|| "a panic without words".to_owned());
        Outcome {
            seed,
            hash: 0,
            stats: Stats::default(),
            judged: Counts::default(),
            marks: Marks::default(),
            failure: Some(Failure { rule: "panic".to_owned(), text, key: None, op: 0 }),
            lines: Vec::new(),
        }
    })
}

/// Runs seeds until enough operations are done or a rule is broken; tells `progress` now and then.
pub fn run(job: &Job, progress: impl Fn(&Sum) + Sync) -> Sum {
    let started = boottime();
    let seeds = if job.span.is_some() { u64::MAX } else { seeds_for(job) };
    let next = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let sum = Mutex::new((Sum::default(), started));
    let over = || job.span.is_some_and(|span| boottime().since(started) >= span);
    let work = || {
        while !stop.load(Ordering::Relaxed) && !over() {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= seeds {
                return;
            }
            let seed = seed_at(job.seed, at);
            let outcome = run_seed(seed, job.ops_per_seed, Watch::default());
            if outcome.failure.is_some() {
                stop.store(true, Ordering::Relaxed);
            }
            let mut sum = sum.lock().expect("no run panics while it holds the lock");
            sum.0.add(&outcome);
            tell(&mut sum, started, &progress);
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

fn tell(sum: &mut (Sum, Now), started: Now, progress: &impl Fn(&Sum)) {
    let now = boottime();
    if now.since(sum.1) >= Duration::from_secs(3) {
        sum.1 = now;
        sum.0.took = now.since(started);
        progress(&sum.0);
    }
}

/// The seeds of a run: the given one, then others that no other run begins with.
pub(crate) fn seed_at(first: u64, at: u64) -> u64 {
    if at == 0 { first } else { Rng::new(first ^ at.rotate_right(20)).next() }
}

/// How many seeds it takes to do that many operations.
fn seeds_for(job: &Job) -> u64 {
    let mut ops = 0;
    let mut seeds = 0;
    while ops < job.ops {
        ops += Swarm::draw(seed_at(job.seed, seeds), job.ops_per_seed).ops.max(1);
        seeds += 1;
    }
    seeds
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: Job =
        Job { seed: 500, ops: 6_000, ops_per_seed: Some(1_500), threads: 1, span: None };

    #[test]
    fn threads_change_nothing() {
        let one = run(&JOB, |_| {});
        let two = run(&Job { threads: 2, ..JOB }, |_| {});
        assert_eq!(one.failed, None);
        assert_eq!((one.seeds, one.hash), (4, two.hash));
        assert_eq!(one.stats.ops, two.stats.ops);
    }
}
