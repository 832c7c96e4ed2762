//! index: gives the catalog a clock, a lock and a socket.
//!
//! [`Scope`], a [`Master`] as one tenant sees it, answers the calls of `MasterApi`, in the same process
//! or behind [`serve`]. It holds
//! the catalog under one short lock, carries orders to owners (a node in the same process at once,
//! others through their order poll), and lets calls that need an owner's word wait for it with a
//! deadline.
//!
//! Deliberately absent: values, memory, mappings. This crate cannot link `mem` or `transfer`, so no
//! byte of a value can pass through a master, not even by mistake.
#![forbid(unsafe_code)]

pub mod admin;
pub mod audit;
mod config;
mod copies;
mod grants;
mod handler;
mod members;
mod metrics;
mod news;
mod pattern;
mod query;
mod serve;
mod service;
mod state_file;

pub use config::MasterConfig;
pub use handler::{MasterHandler, Scope};
pub use metrics::MasterMetrics;
pub use serve::{Serving, serve};
pub use service::Master;
