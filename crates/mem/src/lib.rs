//! hold: memory that other threads and processes read while it is being written, freed and reused,
//! without ever getting wrong bytes.
//!
//! ```text
//!   owner (node)                                    client, same machine
//!   Segment ── begin ─► WriteGuard ─ publish        Mapping ── read_into, write_value
//!      │    ── pin ───► PinGuard ── read_into          │
//!      │    ── execute, tick, announce                 │
//!      ▼                                               ▼
//!   Table: preamble, headers ◄── memfd, read-only ── Table      word: the control word, atomically
//!   Region: payload          ◄── memfd, read-only ── Region     crc, sums: copies that add up
//!                            ◄── memfd, for puts ─── Guarded    life: whether the owner is dead
//! ```
//!
//! ```
//! use mooncrate_core::seal::extent_bytes;
//! use mooncrate_core::{Extent, Generation, Incarnation, LeaderEpoch, Locator, ObjectId};
//! use mooncrate_core::{Now, PutToken, SegmentId, Slot};
//! use mooncrate_mem::{BeginWrite, LabelHash, Segment, SegmentSpec, clock::boottime};
//!
//! let (segment, incarnation) = (SegmentId(1), Incarnation(1));
//! let spec =
//!     SegmentSpec { segment, incarnation, bytes: 1 << 20, slots: 16, shared: false, huge: false };
//! let owner = Segment::create(spec)?;
//! owner.set_serve_until(Now(u64::MAX));
//!
//! // A master planned this: five bytes at offset 0, described by slot 0 in its first life.
//! let extent = Extent::new(0, extent_bytes(5)).unwrap();
//! let (slot, generation, stripe, grant) = (Slot(0), Generation(0), 0, None);
//! let locator = Locator { segment, incarnation, slot, generation, extent, stripe, grant };
//! let put = BeginWrite {
//!     locator,
//!     token: PutToken(7),
//!     object: ObjectId::default(),
//!     epoch: LeaderEpoch(1),
//!     len: 5,
//!     label: b"\0\0\0\0\0greeting",
//!     hash: LabelHash::of(b"greeting"),
//! };
//! let mut guard = owner.begin(boottime(), &put)?;
//! guard.write(0, b"hello")?;
//! let seal = guard.seal();
//! guard.publish(boottime(), PutToken(7), seal)?;
//!
//! let mut copy = [0; 5];
//! owner.pin(boottime(), &locator)?.read_into(seal, &mut copy)?;
//! assert_eq!(&copy, b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Local words: a **region** is a mapped run of bytes; the **table** holds a segment's headers; a
//! **label** is the key of an object, which this crate keeps and never looks into; **news** are
//! notices that nobody asked for.
//!
//! Deliberately absent: sockets, tokio, threads of its own, replicas, and any clock but
//! [`clock::boottime`], which only callers read. A build with `--cfg loom` has the word and its
//! fences alone: the model checker explores those, the rest is ordinary code on top.

#[cfg(not(target_os = "linux"))]
compile_error!("memory is shared by memfd: Mooncrate needs Linux");

pub mod atomic;
#[cfg(not(loom))]
pub mod bell;
#[cfg(not(loom))]
pub mod clock;
#[cfg(not(loom))]
pub mod crc;
#[cfg(not(loom))]
pub mod far;
#[cfg(not(loom))]
mod guarded;
#[cfg(not(loom))]
pub mod life;
#[cfg(not(loom))]
pub mod mapping;
#[cfg(not(loom))]
pub mod memory;
#[cfg(not(loom))]
mod pkey;
#[cfg(not(loom))]
pub mod read;
#[cfg(not(loom))]
pub mod region;
#[cfg(not(loom))]
pub mod segment;
#[cfg(not(loom))]
pub mod sums;
#[cfg(not(loom))]
pub mod table;
#[cfg(not(loom))]
mod window;
pub mod word;

#[cfg(not(loom))]
pub use {
    bell::Bell,
    far::{Far, FarShare, Room},
    life::Life,
    mapping::{Mapping, StoreError},
    read::{OneSided, ReadError, Reading},
    region::{Access, Backing, Pages, Region},
    segment::{
        Adopt, BeginWrite, LabelHash, PinGuard, PublishError, Segment, SegmentError, SegmentSpec,
        SegmentStats, TouchError, Unpublished, WriteError, WriteGuard,
    },
    sums::SliceSums,
    table::Identity,
};
