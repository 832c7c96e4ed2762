//! The shipped master, nodes and clients in one world: what a seed draws, runs and judges.
//!
//! ```text
//!   plan ── drawn from the seed: how many of each, how small, which faults, how often
//!     ▼
//!   cluster ── processes of the world: Masters, Nodes, Clients as they ship, over sockets of the world
//!     │      faults: kill, stop, cut, wall clock, vanish, leave, reset, garble, flip
//!     ▼
//!   judge ── the oracle of `check` for every get; audits of the master; everything comes right at the end
//! ```
//!
//! Deliberately absent: GPU processes that map VRAM.

mod bare;
mod cluster;
mod disks;
mod etcd;
mod guards;
mod hurts;
mod judge;
mod last;
mod load;
mod met;
mod operator;
mod plan;
mod processes;
pub mod runner;
mod state;
mod tenants;
mod tripwire;
mod vram;
pub mod worker;

pub use disks::Load;
pub use plan::Plan;

use crate::fibers;
use crate::trace::Trace;
use crate::world::Watch;
use crate::{MS, Nanos};
use runner::{Outcome, Tally};

/// What the faults are called.
pub const FAULTS: [&str; 9] =
    ["kill", "stop", "cut", "wall clock", "vanish", "leave", "reset", "garble", "flip"];

/// Virtual time after the faults have stopped, by which everything must be right.
const FINALE: Nanos = 120_000 * MS;

/// Runs a seed.
pub fn run_seed(seed: u64, ops: Option<u64>, watch: Watch) -> Outcome {
    let plan = Plan::draw(seed, ops);
    judge::begin(&plan);
    state::begin(&plan);
    fibers::begin(seed, plan.late, Trace::new(watch.words, watch.aloud));
    let mut cluster = cluster::Cluster::new(plan);
    let ran = cluster.run().and_then(|()| cluster.finale(FINALE));
    let virtual_ns = fibers::true_time();
    let faults = cluster.faults();
    // Not dropped: what is left of it lies on stacks that never run again.
    std::mem::forget(cluster);
    let trace = fibers::end();
    state::end();
    let (ops, judged, failure) = judge::end(ran.err());
    let lines = if failure.is_some() { trace.last_lines(&[], 60) } else { Vec::new() };
    let tally = Tally { judged, faults, met: met::end(), virtual_ns };
    Outcome { seed, hash: trace.hash(), ops, tally, failure, lines }
}
