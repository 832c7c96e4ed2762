//! ask: what a program does with the store.
//!
//! ```text
//!   put    put_start ─► write every replica ─► signal every replica ─► put_end
//!   get    cached locator, or locate ─► read and verify ─► (stale: locate once more)
//!   sessions   put_start ─► parts in any order ─► end;   locate with a lease ─► many ranges
//! ```
//!
//! Everything blocks and ends by its deadline. Locators are cached without a lease: they are safe
//! because every read checks the life they name, so a repeated get asks nobody.
//!
//! Deliberately absent: bytes that were not verified, in a result or in a cache; retries without an
//! end; threads that outlive a call.
#![forbid(unsafe_code)]

mod batch;
mod cache;
mod client;
mod config;
mod counts;
mod direct;
mod error;
mod frames;
mod get;
mod get_session;
mod look;
mod near;
mod owners;
mod packed;
mod put;
mod put_session;
mod ranges;
mod reads;
mod runs;
mod stripes;
mod wishes;

pub use client::Client;
pub use config::ClientConfig;
pub use counts::Counts;
pub use error::{Error, SessionError};
pub use get_session::{GetSession, Opened};
pub use mooncrate_transfer::View;
pub use put::Stored;
pub use put_session::{PutSession, SessionParts};
pub use ranges::{RangeInto, Ranges};
pub use wishes::Wishes;
