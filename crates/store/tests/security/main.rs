//! Each rule of a guarded cluster, tried by a tenant that would like to break it. The servers and the
//! sockets are the real ones; the attacker speaks frames of its own.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod cluster;
mod copies;
mod data;
mod disks;
mod lies;
mod limits;
mod serving;
