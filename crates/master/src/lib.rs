//! index: gives the catalog a clock, a lock and a socket.
//!
//! [`Scope`], a [`Master`] as one tenant sees it, answers the calls of `MasterApi`, in the same process
//! or behind [`serve`]. It holds
//! the catalog under one short lock, carries orders to owners (a node in the same process at once,
//! others through their order poll), and lets calls that need an owner's word wait for it with a
//! deadline. Where several masters run, one of them leads: [`election`] gives the winner the
//! [`Seat`] of its process.
//!
//! Deliberately absent: values, memory, mappings. This crate cannot link `mem` or `transfer`, so no
//! byte of a value can pass through a master, not even by mistake.
#![forbid(unsafe_code)]

pub mod admin;
pub mod audit;
mod changes;
mod config;
mod copies;
mod copies_of_state;
pub mod election;
mod grants;
mod handler;
mod intake;
mod keeper;
mod keeping;
mod kept;
mod listing;
mod mail;
mod members;
mod metrics;
pub mod mooncake;
mod news;
mod pattern;
mod query;
mod seat;
mod serve;
mod service;
pub mod standby;
mod state_file;
mod state_lock;
mod term;
pub mod trace;
mod turns;
mod usual_state;
mod writers;

pub use config::{MasterConfig, StateDisk};
pub use election::{Election, ElectionConfig, ElectionError};
pub use handler::{MasterHandler, Scope};
pub use metrics::MasterMetrics;
pub use seat::Seat;
pub use serve::{Serving, serve, serve_seat};
pub use service::Master;
