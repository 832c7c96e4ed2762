//! answer: the master's public door. The calls of `proto/mooncrate/v1/master.proto`, which are
//! those of `MasterService` in the Mooncake Store preview, with health and reflection, for clients in any
//! language.
//!
//! ```text
//!   any client ── gRPC ──► Door ── MasterApi ──► master        here: who, where, when
//!        ╚════ data frames (docs/formats/frame.md) ════► node  never here: a byte of a value
//! ```
//!
//! From the bottom up: [`status`](mod@status) turns every error into one number, one sentence and
//! one advice; `convert` checks what comes in and shows plans and locators; `puts` remembers the
//! puts that began here, because `MasterService` ends them by their key alone; `guard` finds out who calls;
//! `door` is the six calls; `answers` bounds what callers do not read; `serve` and `accept` are the sockets and threads.
//!
//! What must stay true: no address travels; a put is not published without a seal that readers can
//! compare; every call and every unread answer has a deadline, and the number of calls, connections, remembered puts,
//! bytes of a message and bytes of unread answers is bounded; whose objects a caller sees is decided by its credential alone.
//!
//! Deliberately absent: decisions (the master's), values, a way to memory or transfer code. It is
//! the slow door: programs that count microseconds speak frames.
#![forbid(unsafe_code)]

mod accept;
mod answers;
mod convert;
mod deadline;
mod door;
mod guard;
mod places;
mod puts;
mod segments;
mod serve;
pub mod status;

/// Messages, server and client as generated from the proto file.
#[expect(
    clippy::all,
    clippy::pedantic,
    clippy::allow_attributes,
    missing_docs,
    reason = "generated"
)]
pub mod pb {
    tonic::include_proto!("mooncrate.v1");
}

/// The proto file, compiled, as reflection shows it.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/master.bin"));

pub use door::{Parts, View};
pub use mooncrate_wire::door::Times;
pub use segments::SegmentError;
pub use serve::{GrpcConfig, GrpcServing, serve_grpc};
pub use tonic::Status;
