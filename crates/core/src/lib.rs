//! decide: the truth that every other crate obeys, as pure functions and plain values.
//!
//! Ten nouns: [`Key`], [`Object`](plan::Located), replica, segment, [`Extent`], [`Locator`], plan,
//! [lease](lease), epoch ([`Generation`], [`Incarnation`], [`LeaderEpoch`]), [`Medium`].
//! Five verbs: reserve, publish, lease, move, evict.
//!
//! ```text
//!            reserve            begin             publish            unlink
//!   Dead g ──────────► Reserved g ────► Writing g ────────► Ready g ────────► Retiring g
//!     ▲                    │                │                  │                  │
//!     │                    └── abort ───────┤                  │ evict, pins = 0  │ last pin left
//!     │                                     ▼                  ▼                  ▼
//!     └───────────── fenced ────────── Failed g+1           Dead g+1           Dead g+1
//! ```
//!
//! Deliberately absent: I/O, clocks, threads, randomness, unsafe code, maps that iterate in a random
//! order. Time, seeds and ids arrive as arguments; effects leave as values. So the simulator can
//! drive years of this code in seconds and one seed is one run.
#![forbid(unsafe_code)]

pub mod alloc;
pub mod canary;
pub mod catalog;
pub mod chunked;
pub mod copy;
pub mod door;
pub mod error;
pub mod evict;
pub mod extent;
pub mod header;
pub mod health;
pub mod ids;
pub mod key;
pub mod label;
pub mod lease;
pub mod limits;
pub mod place;
pub mod plan;
pub mod rng;
pub mod seal;
pub mod shown;
pub mod state;
pub mod tally;
pub mod time;
pub mod token;
pub mod word;

pub use error::Advice;
pub use extent::Extent;
pub use ids::{
    Generation, GroupId, HostId, Incarnation, LeaderEpoch, NodeId, ObjectId, PutToken, SegmentId,
    Slot, Stamp, TenantId, ZoneId,
};
pub use key::{Key, KeyHash, Name};
pub use label::Label;
pub use plan::{Grant, Keep, Located, Locator, Medium, PutConfig, Striping, WritePlan};
pub use seal::Seal;
pub use state::ReplicaState;
pub use time::{Deadline, Now};

const _: () = assert!(usize::BITS == 64, "Mooncrate needs a 64-bit target");
