//! Runs seeds in worker processes, and what they count.

use super::met::{self, MET, Met};
use super::worker::Task;
use super::{FAULTS, Plan};
use crate::Nanos;
use crate::runner::{self, Job, Rig, judged_rows, seconds_row};
use mooncrate_check::oracle::Counts;
use mooncrate_core::canary::Canary;

/// Seeds of one worker process.
const SEEDS_EACH: u64 = 4;

/// What a run counts.
#[derive(Clone, Debug, PartialEq)]
pub struct Tally {
    /// What the oracle judged.
    pub judged: Counts,
    /// Faults of each kind of [`FAULTS`].
    pub faults: [u64; FAULTS.len()],
    /// What the roles met, as they count it.
    pub(super) met: Met,
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
        self.judged = [self.judged, other.judged].into_iter().sum();
        met::add(&mut self.faults, &other.faults);
        met::add(&mut self.met, &other.met);
        self.virtual_ns += other.virtual_ns;
    }

    fn verified(&self) -> u64 {
        self.judged.hits
    }

    fn rows(&self) -> Vec<(String, u64)> {
        let mut rows = judged_rows(&self.judged);
        rows.push(seconds_row(self.virtual_ns));
        rows.extend(FAULTS.iter().zip(self.faults).map(|(name, n)| (format!("fault: {name}"), n)));
        rows.extend(MET.iter().zip(self.met).map(|(name, n)| (format!("met: {name}"), n)));
        rows
    }

    fn missing(&self) -> Vec<&'static str> {
        let met = MET.into_iter().zip(self.met);
        met.filter(|(_, times)| *times == 0).map(|(name, _)| name).collect()
    }
}

impl Default for Tally {
    fn default() -> Self {
        let (judged, faults) = (Counts::default(), [0; FAULTS.len()]);
        Self { judged, faults, met: [0; MET.len()], virtual_ns: 0 }
    }
}

/// Runs seeds in worker processes until enough operations are done or a rule is broken.
pub fn run(job: &Job, canary: Option<Canary>, progress: impl Fn(&Sum) + Sync) -> Sum {
    let (first, ops) = (job.seed, job.ops_per_seed);
    let rig = Rig {
        seeds_each: SEEDS_EACH,
        ops_of: &|seed| Plan::draw(seed, ops).ops,
        run: &|numbers| {
            let (from, count) = (numbers.start, numbers.end - numbers.start);
            let task = Task { first, from, count, ops, canary };
            task.run().expect("the system starts processes")
        },
    };
    runner::run(job, &rig, progress)
}
