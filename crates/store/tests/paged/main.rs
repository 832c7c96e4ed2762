//! Paged caches over a store: blocks saved, loaded, shared and verified.
//!
//! ```text
//!   cancel    saves and loads that end early; bounds; many threads at once
//!   cold      blocks that are saved because they would be evicted next
//!   embedded  saved, evicted, loaded: bit-identical, in order, as far as they match
//!   rig       caches with stamped blocks, and what started processes do
//!   share     one process computes, another one loads; owners killed in between
//!   suspend   whole sequences with their last, partial block
//! ```
#![expect(clippy::unwrap_used, reason = "helpers of tests; a failed step is a failed test")]

mod cancel;
mod cold;
mod embedded;
#[path = "../shared/processes.rs"]
mod processes;
mod rig;
mod share;
mod suspend;

/// The test that a started process runs.
const CHILD_TEST: &str = "rig::as_a_child";
