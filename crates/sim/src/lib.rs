//! prove: a whole cluster from one seed.
//!
//! ```text
//!   swarm ── draws from the seed: how many nodes, how small, which faults, how often
//!     ▼
//!   world ── one heap of events in virtual time ──► master   the real core::catalog
//!     │                                        ──► node     the real mem::Segment
//!     │      network: delay, loss, repetition  ──► client   put, get, exist, remove, in steps
//!     │      faults: crash, pause, partition, clock, zombie leader, bit flip
//!     ▼
//!   judge ── oracle per get, audit of every byte, liveness after the faults stop
//!   trace ── a hash of everything that happened: one seed is one run
//! ```
//!
//! Local words: a **lane** is one of the operations that a client has under way; a **zombie** is a
//! process that was counted out and goes on; a **mark** says that a rare situation was reached; the
//! **finale** is the phase without faults, in which everything must come right.
//!
//! Deliberately absent: real time, sockets, threads inside a run, unsafe code, and any randomness
//! that the seed does not fix. Runs of different seeds share nothing.
#![forbid(unsafe_code)]

pub mod canaries;
pub mod client;
pub mod clock;
pub mod ctx;
pub mod disk;
pub mod faults;
pub mod fibers;
pub mod finale;
pub mod judge;
pub mod ledger;
pub mod marks;
pub mod master;
pub mod message;
pub mod network;
pub mod node;
pub mod operator;
pub mod report;
pub mod runner;
pub mod shipped;
pub mod swarm;
pub mod trace;
pub mod twin;
pub mod world;

pub use judge::Failure;
pub use marks::Mark;
pub use world::World;

/// Virtual nanoseconds since the run began: true time, which no actor can see.
pub type Nanos = u64;

/// A microsecond of virtual time.
pub const US: Nanos = 1_000;
/// A millisecond of virtual time.
pub const MS: Nanos = 1_000_000;
