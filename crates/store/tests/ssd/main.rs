//! Stores with a real directory on a disk: more than memory holds, restarts, every path, damage.
//!
//! ```text
//!   embedded   a store in this process that is dropped and opened again
//!   paths      a server with a disk, read over shared memory and over TCP
//!   damage     files that were changed, cut or taken away
//!   starts     starts that are refused
//!   crash      a node that is killed and started again
//! ```
#![expect(clippy::unwrap_used, reason = "helpers of tests; a failed step is a failed test")]

mod crash;
mod damage;
mod embedded;
mod paths;
mod rig;
mod starts;
