//! Bugs on purpose, in this crate's part: each scenario is safe without its canary and shows the bug
//! with it. So a rig that switches one on gets what it asked for.
//!
//! Run with `RUSTFLAGS="--cfg canary" cargo test -p mooncrate-mem --test canary`, in a target folder
//! of its own.

#[cfg(canary)]
#[path = "canary/scenarios.rs"]
mod scenarios;
