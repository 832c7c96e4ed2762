//! Runs seeds in worker processes, several at a time, and sums up their results.

use super::worker::Task;
use super::{FAULTS, Outcome, Plan};
use crate::judge::Failure;
use crate::runner::{Job, seed_at};
use mooncrate_check::oracle::Counts;
use mooncrate_core::Now;
use mooncrate_core::canary::Canary;
use mooncrate_mem::clock::boottime;
use std::fmt::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Seeds of one worker process.
const SEEDS_EACH: u64 = 8;
/// Between two lines about how far it is.
const TELL: Duration = Duration::from_secs(3);

/// The sum of several runs.
#[derive(Clone, Debug, Default)]
pub struct Sum {
    /// Seeds that ran.
    pub seeds: u64,
    /// Operations begun.
    pub ops: u64,
    /// What the oracles judged.
    pub judged: Counts,
    /// Faults of each kind.
    pub faults: [u64; FAULTS.len()],
    /// Virtual time.
    pub virtual_ns: u64,
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
        self.ops += outcome.ops;
        self.judged = [self.judged, outcome.judged].into_iter().sum();
        self.virtual_ns += outcome.virtual_ns;
        for (all, new) in self.faults.iter_mut().zip(outcome.faults) {
            *all += new;
        }
        let mixed =
            (outcome.seed ^ outcome.hash.rotate_left(17)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.hash = self.hash.wrapping_add(mixed ^ (mixed >> 31));
        if let Some(failure) = &outcome.failure
            && self.failed.as_ref().is_none_or(|(seed, _)| *seed > outcome.seed)
        {
            self.failed = Some((outcome.seed, failure.clone()));
        }
    }

    fn per_second(&self) -> u64 {
        let ms = u64::try_from(self.took.as_millis()).unwrap_or(u64::MAX).max(1);
        self.ops * 1000 / ms
    }

    /// One line while seeds run.
    pub fn progress(&self, wanted: u64) -> String {
        format!(
            "{:>11} of {wanted} operations, {} seeds, {} gets verified, {} operations/s",
            self.ops,
            self.seeds,
            self.judged.hits,
            self.per_second()
        )
    }

    /// The table at the end.
    pub fn table(&self) -> String {
        let mut text = String::new();
        let mut row = |name: &str, value: String| {
            writeln!(text, "  {name:<28} {value:>14}").expect("a String takes everything");
        };
        row("seeds", self.seeds.to_string());
        row("operations", self.ops.to_string());
        row("gets verified (hits)", self.judged.hits.to_string());
        row("misses", self.judged.misses.to_string());
        row("gets failed", self.judged.gets_failed.to_string());
        row("puts finished", self.judged.puts.to_string());
        row("puts of unknown outcome", self.judged.puts_unknown.to_string());
        row("removes finished", self.judged.removes.to_string());
        row("virtual seconds", (self.virtual_ns / 1_000_000_000).to_string());
        for (name, count) in FAULTS.iter().zip(self.faults) {
            row(&format!("fault: {name}"), count.to_string());
        }
        row("violations", u8::from(self.failed.is_some()).to_string());
        row("operations/s", self.per_second().to_string());
        row("combined trace hash", format!("{:016x}", self.hash));
        text
    }
}

/// The result of one seed, in a line.
pub fn line(outcome: &Outcome) -> String {
    format!(
        "seed 0x{:x}: {} operations, {} gets verified, {} virtual ms, trace hash {:016x}",
        outcome.seed,
        outcome.ops,
        outcome.judged.hits,
        outcome.virtual_ns / crate::MS,
        outcome.hash
    )
}

/// Everything about a failure, and the command that repeats it.
pub fn failure(outcome: &Outcome, ops: Option<u64>) -> String {
    let Some(failure) = &outcome.failure else {
        return "the seed does not fail again: what it does is not fixed by the seed\n".to_owned();
    };
    let ops = ops.map_or_else(String::new, |ops| format!(" --ops-per-seed {ops}"));
    format!(
        "{}\n{failure}\nREPRO: ./dev sim shipped --replay --seed 0x{:x}{ops}\n",
        outcome.lines.join("\n"),
        outcome.seed
    )
}

/// Runs seeds in worker processes until enough operations are done or a rule is broken.
pub fn run(job: &Job, canary: Option<Canary>, progress: impl Fn(&Sum) + Sync) -> Sum {
    let started = boottime();
    let seeds = if job.span.is_some() { u64::MAX } else { seeds_for(job) };
    let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let sum = Mutex::new((Sum::default(), started));
    let over = || job.span.is_some_and(|span| boottime().since(started) >= span);
    let work = || {
        while !stop.load(Ordering::Relaxed) && !over() {
            let from = next.fetch_add(SEEDS_EACH, Ordering::Relaxed);
            if from >= seeds {
                return;
            }
            let (first, count) = (job.seed, SEEDS_EACH.min(seeds - from));
            let task = Task { first, from, count, ops: job.ops_per_seed, canary };
            let outcomes = task.run().expect("the system starts processes");
            let failed = outcomes.iter().any(|outcome| outcome.failure.is_some());
            stop.fetch_or(failed, Ordering::Relaxed);
            let mut sum = sum.lock().expect("no run panics while it holds the lock");
            for outcome in &outcomes {
                sum.0.add(outcome);
            }
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
    if now.since(sum.1) >= TELL {
        sum.1 = now;
        sum.0.took = now.since(started);
        progress(&sum.0);
    }
}

/// How many seeds it takes to do that many operations.
fn seeds_for(job: &Job) -> u64 {
    let (mut ops, mut seeds) = (0, 0);
    while ops < job.ops {
        ops += Plan::draw(seed_at(job.seed, seeds), job.ops_per_seed).ops.max(1);
        seeds += 1;
    }
    seeds
}
