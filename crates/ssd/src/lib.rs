//! keep: values on disks, so that they outlive memory pressure and restarts, and never come back wrong.
//!
//! ```text
//!   node ── Backend ──┬── bucket    records appended to files of 256 MB, evicted file by file (default)
//!                     ├── per_key   a file for each record
//!                     └── offset    one file, space from core's allocator
//!              │ Disk ─┬── posix    pread, pwrite
//!              │       ├── uring    a ring per thread, many operations per submission
//!              │       └── sim      a disk in memory that tears, loses, misdirects and flips
//! ```
//!
//! A **record** is one stripe of one object (one object, if it is not striped): header, label, value. It
//! is named by the put that stored it, so two values of one key are two records. A backend verifies
//! what it loads: header, label and seal (S11). What it says it kept is on the disk (S2), what it says it
//! removed stays removed after a crash (G6). Eviction takes two steps, so that the caller can tell the
//! master in between (S1): [`Backend::unlink`] hides records, [`Ticket::finish`] deletes them.
//!
//! Local words: a **bucket** is a data file of many records; to **keep** is to write durably; **room** is
//! memory that starts at and extends to a multiple of [`ALIGN`]; a **lane** is a thread that reads a directory
//! while it is being opened.
//!
//! Deliberately absent: the network, the master, keys (a label is opaque but for its comparison), clocks,
//! threads that outlive a call.

pub mod backend;
pub mod bucket;
pub mod config;
#[cfg(test)]
mod conformance;
pub mod disk;
pub mod fuzzing;
mod identity;
mod lanes;
mod laying;
pub mod offset;
pub mod per_key;
pub mod points;
mod reading;
pub mod record;
mod room;
mod spare;
mod window;

pub use backend::{
    Backend, KeepError, Load, LoadError, NewRecord, OpenError, Progress, Record, RecordId,
    Recovery, Ticket, Usage,
};
pub use config::{Config, Evict, open};
pub use disk::{Disk, File, Open, ReadAt, WriteAt, is_full};
pub use record::Kind;
pub use room::{Lent, Room, Rooms};

/// Bytes of records that are best kept by one call: enough to pay for its sync, few enough to be soon done.
pub const GROUP_BYTES: u64 = 8 << 20;

/// Calls that are best made side by side: while some wait for their syncs, others write or verify.
pub const KEEPERS: usize = 4;

/// Offsets, lengths and addresses of direct I/O are multiples of this.
pub const ALIGN: usize = mooncrate_core::limits::BLOCK_BYTES as usize;
