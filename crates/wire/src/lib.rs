//! speak: how the processes of a cluster talk. One codec for control and data, little-endian, drawn
//! byte by byte in `docs/formats/frame.md`.
//!
//! ```text
//!   client ── Link ──► serve_control ──► Handler        control: who, where, when; never a value
//!   node   ── Link ──► serve_control ──► Handler
//!   client ══ Link ══► Link::accept (node)              data: frames with attachments, descriptors
//! ```
//!
//! From the bottom up: [`frame`] is the 32-byte header, [`inbox`] cuts a stream into frames without
//! doing I/O, [`message`] holds every request and reply as a plain value, [`link`] is one blocking
//! connection, [`pool`] keeps some of them, [`masters`] finds the one that leads, [`master_link`] is
//! a master at the other end, [`server`] is this end of many connections, and [`api`] holds the two seams, `MasterApi` and
//! `NodeApi`.
//!
//! What must stay true: a length that a peer wrote is compared with a limit, and with what is
//! left, before a byte is allocated for it; decoding never recurses, never panics, and consumes
//! the whole body; a value that decodes is encoded to the same bytes again; every wait has a
//! deadline, and when it passes the error names what was awaited; a link that met an error is
//! closed, never used again.
//!
//! Deliberately absent: decisions (the master's mind is `core::catalog`), values in control frames
//! (a control link refuses data frames), raw addresses, background threads in the client's links,
//! logging, unsafe code.
#![forbid(unsafe_code)]

pub mod address;
pub mod api;
pub mod auth;
pub mod clock;
mod codec;
pub mod door;
pub mod error;
pub mod fds;
pub mod files;
pub mod frame;
#[doc(hidden)]
pub mod fuzzing;
mod guard;
pub mod host;
pub mod inbox;
pub mod kind;
pub mod link;
pub mod master_link;
pub mod masters;
pub mod message;
pub mod pool;
mod reports;
pub mod server;
pub mod task;
mod tcp;
pub mod tls;

pub use address::Address;
pub use api::{MasterApi, NodeApi};
pub use auth::{Access, Credential, Gate};
pub use error::{CallError, DataError, DecodeError, FrameError, Refusal, RefusalCode};
pub use frame::{FrameHeader, RequestId};
pub use kind::{Kind, LinkKind};
pub use link::{HangUp, Link, LinkConfig};
pub use master_link::MasterLink;
pub use masters::{MasterPools, Masters};
pub use message::{DataReply, DataRequest, Hello, HelloAck, Reply, Request, Role};
pub use pool::{LinkPool, PoolConfig};
pub use server::{Answer, Caller, Handler, Peer, ServerConfig, serve_control};
