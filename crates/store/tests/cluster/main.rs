//! Clusters over real sockets, and their processes killed, stopped and started again.
//!
//! ```text
//!   bad       bytes that change in the memory of an owner
//!   calls     every call over shared memory and over TCP; several nodes, several clients, judged
//!   copies    drains, copies from node to node, repairs, segments that come and go
//!   faults    nodes and clients that die or stand still
//!   lent      a store that lends memory, and uses it
//!   ranges    parts of values, over every path, striped and replaced
//!   reads     what is read most stays, though nobody is asked
//!   restart   masters and nodes that come back
//!   sessions  values written and read layer by layer
//!   silence   owners stopped under batches; masters that are dead or stopped while clients go on
//! ```
#![expect(clippy::unwrap_used, reason = "helpers of tests; a failed step is a failed test")]

mod bad;
mod calls;
mod copies;
mod faults;
mod fleet;
#[path = "../../examples/full_pool/judge.rs"]
mod judge;
mod lent;
#[path = "../shared/processes.rs"]
mod processes;
mod ranges;
mod reads;
mod restart;
mod sessions;
mod silence;

/// The test that a started process runs.
const CHILD_TEST: &str = "fleet::as_a_child";
