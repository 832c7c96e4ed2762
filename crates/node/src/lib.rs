//! own: a node holds segments, serves their bytes to clients, and carries out its master's orders.
//!
//! ```text
//!   clients ══ data server ══► Segments ◄── orders, tick ── duty threads ── master
//!                                  ▲                             │
//!                                  └────────── serve_until ──────┘ heartbeats
//! ```
//!
//! The header table of a segment is the truth about its objects. When the master does not know the
//! node any more, the node mounts again and announces its headers. When its serving lease has ended,
//! because no heartbeat was answered, it serves nobody and keeps what it holds; the next answer says
//! what of it must go. A master that has given it up refuses its mount: then it drops everything and
//! comes back as a new incarnation.
//!
//! A node that is killed cannot say farewell. Its guard, a process of its own, does that for it at once
//! (`guard`); a node that is stopped or cut off keeps what it holds.
//!
//! Deliberately absent: decisions about placement and eviction, what other nodes do (copies are
//! fetched where the master says), freeing bytes outside the two phases (`mem::Segment` has no such
//! call).
#![forbid(unsafe_code)]

pub mod admin;
mod config;
mod copy;
mod disk;
mod duty;
mod guard;
mod memory;
mod metrics;
pub mod mooncake;
mod orders;
mod registration;
mod resize;
mod vram;

pub use config::NodeConfig;
pub use disk::{Given, Io, Listener, OnProgress, OpenDisks, SsdConfig, TierConfig};
pub use duty::{Node, NodeError};
pub use guard::{GuardCommand, GuardStart, Watcher, keep_watch, report_death};
pub use memory::OpenMemory;
pub use metrics::NodeMetrics;
pub use mooncrate_ssd::{Evict, Kind as BackendKind, Progress};
pub use vram::{Gpus, OpenVram, VramConfig, VramMemory};
