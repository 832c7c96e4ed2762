//! Runs seeds of the disk rig, and what they count.

use super::counts::Counts;
use super::rig::{self, Opens};
use super::swarm::Swarm;
use crate::runner::{self, Job, Rig, seed_at};
use crate::world::Watch;
use mooncrate_ssd::disk::sim::{self, Fault};

/// What a run counts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tally {
    /// Operations of disks.
    pub disk_ops: u64,
    /// What was judged.
    pub counts: Counts,
    /// Faults of the disks.
    pub faults: sim::Counts,
}

/// What became of a seed.
pub type Outcome = runner::Outcome<Tally>;
/// What became of several.
pub type Sum = runner::Sum<Tally>;

impl runner::Tally for Tally {
    const ALL_MET_FROM_OPS: u64 = 500_000;

    fn add(&mut self, other: &Self) {
        self.disk_ops += other.disk_ops;
        self.counts.add(&other.counts);
        for (mine, theirs) in self.faults.iter_mut().zip(other.faults) {
            *mine += theirs;
        }
    }

    fn verified(&self) -> u64 {
        self.counts.loads
    }

    fn rows(&self) -> Vec<(String, u64)> {
        let faults = Fault::ALL.iter().map(|fault| (fault.name(), self.faults[*fault as usize]));
        let counts = self.counts.rows().map(|(name, count)| (name.to_owned(), count));
        let faults = faults.map(|(name, count)| (format!("fault: {name}"), count));
        let disk = [("operations of the disk".to_owned(), self.disk_ops)];
        disk.into_iter().chain(counts).chain(faults).collect()
    }

    fn missing(&self) -> Vec<&'static str> {
        let faults = Fault::ALL.iter().filter(|fault| self.faults[**fault as usize] == 0);
        let counts = self.counts.rows().into_iter().filter(|(_, count)| *count == 0);
        faults.map(|fault| fault.name()).chain(counts.map(|(name, _)| name)).collect()
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

/// Runs seeds until enough operations are done or a rule is broken; calls `progress` every three seconds.
pub fn run(job: &Job, opens: &dyn Opens, progress: impl Fn(&Sum) + Sync) -> Sum {
    let (first, ops) = (job.seed, job.ops_per_seed);
    let rig = Rig {
        seeds_each: 1,
        ops_of: &|seed| swarm(seed, ops, opens).ops,
        run: &|numbers| {
            numbers.map(|at| run_seed(seed_at(first, at), ops, opens, Watch::default())).collect()
        },
    };
    runner::run(job, &rig, progress)
}
