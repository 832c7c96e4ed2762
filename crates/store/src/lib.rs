//! Mooncrate in a program: a store in this process, or a client of a cluster.
//!
//! ```
//! use mooncrate::{EmbeddedOptions, Store, Stored};
//!
//! let store = Store::embedded(EmbeddedOptions::default())?;
//! assert_eq!(store.put(b"prompt/42", b"kv pages")?, Stored::New);
//! assert_eq!(store.get(b"prompt/42")?.as_deref(), Some(&b"kv pages"[..]));
//!
//! let view = store.view(b"prompt/42")?.expect("just stored"); // no copy, pinned
//! assert_eq!(&*view, b"kv pages");
//! drop(view);
//!
//! assert!(store.remove(b"prompt/42", false)?);
//! assert_eq!(store.get(b"prompt/42")?, None);
//! # Ok::<(), mooncrate::Error>(())
//! ```
//!
//! This crate composes the roles: [`Store`] is a client with all that it needs around it, and [`run_master`], [`run_node`]
//! and [`run_both`] are the server processes. It also holds what needs several of them at once: values between GPUs and
//! the store (`docs/devices.md`), the spill of paged blocks ([`paged`]), and the ranks of the GPU-resident cache
//! ([`nano`]).
#![forbid(unsafe_code)]

mod device;
mod device_error;
mod device_get;
mod direct;
mod error;
mod host;
pub mod nano;
pub mod paged;
mod ranges;
mod security;
mod server;
mod session;
mod ssd;
mod staging;
mod store;

pub use device::{Arriving, DeviceMemory, Part, PartsItem};
pub use device_error::DeviceError;
pub use device_get::{Landed, LandedItem, Lengths};
pub use direct::DeviceCounts;
pub use error::Error;
pub use host::this_host;
pub use mooncrate_client::{
    ClientConfig, Counts, Opened, RangeInto, SessionError, SessionParts, Stored, View, Wishes,
};
pub use mooncrate_core::catalog::Config as CatalogConfig;
pub use mooncrate_core::copy::{DrainMode, DrainStat};
pub use mooncrate_core::error::Advice;
pub use mooncrate_core::plan::{Looked, PutConfig};
pub use mooncrate_master::{ElectionConfig, Master, Seat};
pub use mooncrate_node::{
    BackendKind, Evict, GuardCommand, Io, Listener, Progress, SsdConfig, TierConfig, VramConfig,
};
pub use mooncrate_transfer::{Lanes, MappedMemory, Path};
pub use mooncrate_wire::auth::{ClusterSecret, Token};
pub use mooncrate_wire::message::{ClusterStat, Listed, Listing, NodeEntry, SegmentRow};
pub use mooncrate_wire::tls::TlsFiles;
pub use mooncrate_wire::{Address, Masters};
pub use ranges::Ranges;
pub use security::{Credentials, Security};
pub use server::{
    MasterOptions, NodeOptions, Running, guard_node, run_both, run_master, run_node,
    workers_by_cores,
};
pub use session::{GetSession, PutSession};
pub use ssd::{parse_ssd, parse_ssds};
pub use staging::StagingConfig;
pub use store::{ConnectOptions, EmbeddedOptions, Store};

/// The Rust program of the front page, compiled and run as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
