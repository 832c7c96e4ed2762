//! prove: what is kept on disks, from one seed. The real backends of `mooncrate-ssd` on its simulated disk.
//!
//! ```text
//!   swarm ── draws from the seed: which backend, how small, which faults, what is done
//!     ▼
//!   rig ──── a life: open, actors that keep, load, remove, evict, scrub; then a close, a kill or a power
//!     │      cut in the middle of anything; the next life begins with what the disk still has
//!   baton ── actors are threads, one of them runs; who is next follows from the seed
//!     ▼
//!   oracle ─ which record must be found, may be found, must not; whose bytes they are
//! ```
//!
//! Local words: a **life** is the time between two openings of the directory; **harm** is a fault that can
//! cost data although every call succeeded; a record is **sure** when nothing can excuse its loss.
//!
//! Real disks are in `crash` only. Deliberately absent: nodes and masters: whoever evicts here plays the
//! master that was told, or was not.

mod actor;
pub mod baton;
pub mod counts;
pub mod crash;
pub mod entry;
pub mod harm;
#[cfg(test)]
mod model;
pub mod oracle;
#[cfg(test)]
mod oracle_tests;
mod real;
mod rig;
pub mod runner;
pub mod swarm;

pub use counts::Counts;
pub use real::Real;
pub use rig::{Opens, run};
pub use runner::Outcome;
