//! Paged caches over a store: blocks saved, loaded, shared and verified.
//!
//! ```text
//!   cancel    saves and loads that end early; bounds; many threads at once
//!   embedded  saved, evicted, loaded: bit-identical, in order, as far as they match
//!   rig       caches with stamped blocks, and processes
//!   share     one process computes, another one loads; owners killed in between
//!   suspend   whole sequences with their last, partial block
//! ```
#![expect(clippy::unwrap_used, reason = "helpers of tests; a failed step is a failed test")]

mod cancel;
mod embedded;
mod rig;
mod share;
mod suspend;
