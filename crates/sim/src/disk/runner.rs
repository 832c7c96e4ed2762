//! Runs seeds of the disk rig, several at a time, and adds up what they found. Which seeds run follows from
//! the first one and from the operations wanted, not from the threads.

use super::counts::Counts;
use super::rig::{self, Opens, Outcome};
use super::swarm::Swarm;
use crate::judge::Failure;
use crate::runner::{Job, seed_at};
use crate::world::Watch;
use mooncrate_core::Now;
use mooncrate_mem::clock::boottime;
use mooncrate_ssd::disk::sim::{self, Fault};
use std::fmt::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Operations from which on every fault and every count must have been met.
pub const MARKS_FROM_OPS: u64 = 500_000;

/// What several runs came to.
#[derive(Clone, Debug, Default)]
pub struct Sum {
    /// Seeds that ran.
    pub seeds: u64,
    /// Operations of backends.
    pub ops: u64,
    /// Operations of disks.
    pub disk_ops: u64,
    /// What was judged.
    pub counts: Counts,
    /// Faults of the disks.
    pub faults: sim::Counts,
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
        self.disk_ops += outcome.disk_ops;
        self.counts.add(&outcome.counts);
        for (mine, theirs) in self.faults.iter_mut().zip(outcome.faults) {
            *mine += theirs;
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

    /// What was never met.
    pub fn missing(&self) -> Vec<&'static str> {
        let faults = Fault::ALL.iter().filter(|fault| self.faults[**fault as usize] == 0);
        let counts = self.counts.rows().into_iter().filter(|(_, count)| *count == 0);
        faults.map(|fault| fault.name()).chain(counts.map(|(name, _)| name)).collect()
    }

    fn per_second(&self) -> u64 {
        let ms = u64::try_from(self.took.as_millis()).unwrap_or(u64::MAX).max(1);
        self.ops * 1000 / ms
    }

    /// One line while seeds run.
    pub fn progress(&self, wanted: u64) -> String {
        let (ops, seeds, loads) = (self.ops, self.seeds, self.counts.loads);
        let rate = self.per_second();
        format!("{ops:>11} of {wanted} operations, {seeds} seeds, {loads} loads verified, {rate}/s")
    }

    /// The table at the end.
    pub fn table(&self) -> String {
        let mut text = String::new();
        let mut row = |name: &str, value: String| {
            writeln!(text, "  {name:<28} {value:>14}").expect("a String takes everything");
        };
        row("seeds", self.seeds.to_string());
        row("operations", self.ops.to_string());
        row("operations of the disk", self.disk_ops.to_string());
        for (name, count) in self.counts.rows() {
            row(name, count.to_string());
        }
        for fault in Fault::ALL {
            row(&format!("fault: {}", fault.name()), self.faults[fault as usize].to_string());
        }
        row("violations", u8::from(self.failed.is_some()).to_string());
        row("operations/s", self.per_second().to_string());
        row("combined trace hash", format!("{:016x}", self.hash));
        text
    }
}

/// What a seed chooses.
pub fn swarm(seed: u64, ops: Option<u64>, opens: &dyn Opens) -> Swarm {
    Swarm::draw(seed, ops, opens.backends())
}

/// Runs one seed.
pub fn run_seed(seed: u64, ops: Option<u64>, opens: &dyn Opens, watch: Watch) -> Outcome {
    rig::run(swarm(seed, ops, opens), opens, watch)
}

/// Everything about a failure, and the command that repeats it.
pub fn failure(outcome: &Outcome, ops: Option<u64>) -> String {
    let mut text = outcome.lines.join("\n");
    if let Some(failure) = &outcome.failure {
        write!(text, "\n\nVIOLATION of {failure}").expect("a String takes everything");
    }
    let ops = ops.map(|ops| format!(" --ops-per-seed {ops}")).unwrap_or_default();
    let (hash, seed) = (outcome.hash, outcome.seed);
    writeln!(
        text,
        "\ntrace hash {hash:016x}\nREPRO: ./dev sim disk --replay --seed 0x{seed:x}{ops}"
    )
    .expect("a String takes everything");
    text
}

/// Runs seeds until enough operations are done or a rule is broken; tells `progress` now and then.
pub fn run(job: &Job, opens: &dyn Opens, progress: impl Fn(&Sum) + Sync) -> Sum {
    let started = boottime();
    let seeds = if job.span.is_some() { u64::MAX } else { seeds_for(job, opens) };
    let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let sum = Mutex::new((Sum::default(), started));
    let over = || job.span.is_some_and(|span| boottime().since(started) >= span);
    let work = || {
        while !stop.load(Ordering::Relaxed) && !over() {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= seeds {
                return;
            }
            let seed = seed_at(job.seed, at);
            let outcome = run_seed(seed, job.ops_per_seed, opens, Watch::default());
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

/// How many seeds it takes to do that many operations.
fn seeds_for(job: &Job, opens: &dyn Opens) -> u64 {
    let (mut ops, mut seeds) = (0, 0);
    while ops < job.ops {
        let swarm = Swarm::draw(seed_at(job.seed, seeds), job.ops_per_seed, opens.backends());
        ops += swarm.ops.max(1);
        seeds += 1;
    }
    seeds
}
