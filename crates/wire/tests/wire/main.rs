//! The crate from outside: messages there and back, damaged bytes, links and servers on loopback.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod calls;
mod data_link;
mod guard;
mod masters;
mod messages;
mod mutated;
mod reports;
mod samples;
mod security;
mod server;
mod toy;
