//! prove: what every ring of tests judges with, from a unit test to a cluster of processes.
//!
//! ```text
//!   payload ── stamps each 64-byte line of a value with its put, its key and its place
//!      │ examine: whose bytes are these?
//!      ▼
//!   history ── who asked for what, when, and what came back (JSONL)
//!      │ observe
//!      ▼
//!   oracle ─── was that answer legal? Per key, online, without storing any value
//!   audit ──── is every byte free, used or quarantined, and none of them twice?
//!   model ──── a store so small that it is surely right, and one that is surely wrong
//!   certs ──── certificates that are good, expired, or signed by somebody else
//! ```
//!
//! A get must return the complete bytes of one finished put of its key, or a miss. Values may
//! vanish, so no search over possible orders is needed: each answer is judged when it arrives.
//!
//! Deliberately absent: clocks, randomness (keys of certificates aside), I/O other than a `Write` handed in, unsafe code, and
//! every crate of ours but `core`. Shipped crates use this one only in their tests.
#![forbid(unsafe_code)]

pub mod audit;
pub mod certs;
pub mod history;
pub mod model;
pub mod oracle;
pub mod payload;

pub use audit::{Audit, AuditError};
pub use history::{Event, Got, History, OpId, What};
pub use oracle::{Oracle, OracleConfig, Rule, Violation};
pub use payload::{BadLine, Blame, PutId};
