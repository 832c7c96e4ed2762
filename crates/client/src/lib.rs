//! ask: what a program does with the store.
//!
//! ```text
//!   put    put_start ─► write every replica ─► signal every replica ─► put_end
//!   get    cached locator, or locate ─► read and verify ─► (stale: locate once more)
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
mod directory;
mod error;
mod get;
mod put;
mod ranges;
mod stripes;

pub use client::Client;
pub use config::ClientConfig;
pub use counts::Counts;
pub use error::Error;
pub use mooncrate_transfer::View;
pub use put::Stored;
pub use ranges::{RangeInto, Ranges};
