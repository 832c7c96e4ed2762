//! The cluster of hand-written processes over the real catalog and the real segments: one seed, and many.

use crate::Nanos;
use crate::ctx::Stats;
use crate::faults::Fault;
use crate::judge::Failure;
use crate::marks::{Mark, Marks};
use crate::runner::{self, Job, Rig, judged_rows, seconds_row, seed_at};
use crate::swarm::Swarm;
use crate::world::{Watch, World};
use mooncrate_check::oracle::Counts;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a run counts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tally {
    /// Events, and faults of each kind.
    pub stats: Stats,
    /// What the oracle judged.
    pub judged: Counts,
    /// Rare situations reached.
    pub marks: Marks,
    /// Virtual time.
    pub virtual_ns: Nanos,
}

/// What became of a seed.
pub type Outcome = runner::Outcome<Tally>;
/// What became of several.
pub type Sum = runner::Sum<Tally>;

impl runner::Tally for Tally {
    const ALL_MET_FROM_OPS: u64 = 1_000_000;

    fn add(&mut self, other: &Self) {
        self.stats.events += other.stats.events;
        for (mine, theirs) in self.stats.faults.iter_mut().zip(other.stats.faults) {
            *mine += theirs;
        }
        self.judged = [self.judged, other.judged].into_iter().sum();
        self.marks.add(&other.marks);
        self.virtual_ns += other.virtual_ns;
    }

    fn verified(&self) -> u64 {
        self.judged.hits
    }

    fn rows(&self) -> Vec<(String, u64)> {
        let mut rows = judged_rows(&self.judged);
        rows.push(("events".to_owned(), self.stats.events));
        rows.push(seconds_row(self.virtual_ns));
        let faults =
            Fault::ALL.iter().map(|fault| (fault.name(), self.stats.faults[*fault as usize]));
        rows.extend(faults.map(|(name, count)| (format!("fault: {name}"), count)));
        let marks = Mark::ALL.iter().map(|mark| (mark.name(), self.marks.count(*mark)));
        rows.extend(marks.map(|(name, count)| (format!("mark: {name}"), count)));
        rows
    }

    fn missing(&self) -> Vec<&'static str> {
        self.marks.missing().map(Mark::name).collect()
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
        let failure = Failure { rule: "panic".to_owned(), text, key: None, op: 0 };
        Outcome { seed, failure: Some(failure), ..Outcome::default() }
    })
}

/// Runs seeds until enough operations are done or a rule is broken; calls `progress` every three seconds.
pub fn run(job: &Job, progress: impl Fn(&Sum) + Sync) -> Sum {
    let (first, ops) = (job.seed, job.ops_per_seed);
    let rig = Rig {
        seeds_each: 1,
        ops_of: &|seed| Swarm::draw(seed, ops).ops,
        run: &|numbers| {
            numbers.map(|at| run_seed(seed_at(first, at), ops, Watch::default())).collect()
        },
    };
    runner::run(job, &rig, progress)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report;

    const JOB: Job =
        Job { seed: 500, ops: 6_000, ops_per_seed: Some(1_500), threads: 1, span: None };

    #[test]
    fn threads_change_nothing() {
        let one = run(&JOB, |_| {});
        let two = run(&Job { threads: 2, ..JOB }, |_| {});
        assert_eq!(one.failed, None);
        assert_eq!((one.seeds, one.hash), (4, two.hash));
        assert_eq!(one.ops, two.ops);
    }

    #[test]
    fn the_table_has_a_row_per_mark() {
        let text = report::table(&Sum::default());
        assert!(Mark::ALL.iter().all(|mark| text.contains(mark.name())));
    }
}
