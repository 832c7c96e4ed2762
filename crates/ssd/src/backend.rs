//! The seam between a node and what it keeps on disks. Three implementations, one conformance suite.

use mooncrate_core::canary::{self, Canary};
use mooncrate_core::{ObjectId, Seal};
use std::fmt;
use std::io;
use std::time::Duration;

/// Names a record: the put that stored the value, and the stripe of it. Unique for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordId {
    /// The put.
    pub object: ObjectId,
    /// The stripe; 0 for a value that is not striped.
    pub stripe: u8,
}

/// A record that is kept, without its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its name.
    pub id: RecordId,
    /// Whose value, under which key, with which wishes (`core::label`, encoded).
    pub label: Box<[u8]>,
    /// Bytes of the value.
    pub len: u64,
    /// What they add up to.
    pub seal: Seal,
}

/// A record to keep. The caller holds the bytes still until the call returns (S9).
#[derive(Clone, Copy, Debug)]
pub struct NewRecord<'a> {
    /// Its name.
    pub id: RecordId,
    /// Its label.
    pub label: &'a [u8],
    /// What the value adds up to. Bytes that add up to something else are not kept.
    pub seal: Seal,
    /// The value.
    pub value: &'a [u8],
}

/// Why a directory was not opened. Nothing in it was changed, but by a disk that failed on the way.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// A later version wrote it.
    #[error(
        "the directory has format or layout {version}, which this program does not know; use the newer program, or \
         give it an empty directory"
    )]
    Newer {
        /// What was found.
        version: u64,
    },
    /// An earlier version laid it out.
    #[error(
        "the directory was laid out by an earlier version; use that, or give this program an empty directory"
    )]
    Older,
    /// It belongs to another backend.
    #[error(
        "the directory belongs to the {is} backend, not to {asked}; use that, or an empty directory"
    )]
    Kind {
        /// Whose it is.
        is: &'static str,
        /// Who asked.
        asked: &'static str,
    },
    /// What says what it is cannot be read; its records cannot be told from rubbish.
    #[error(
        "the files `format` and `format.copy` are missing or damaged; delete the directory's files"
    )]
    Damaged,
    /// The limit is below what the backend needs for itself.
    #[error("a limit of {limit} bytes is too small; give the backend at least {least}")]
    TooSmall {
        /// What was given.
        limit: u64,
        /// What is needed.
        least: u64,
    },
    /// The disk.
    #[error("the disk failed: {0}")]
    Disk(#[from] io::Error),
}

/// Why a record was not kept. Nothing of it will be found, now or after a restart; but where the disk failed,
/// what it had written may be found by the next start, whole and verified, unless [`Backend::remove`] has
/// ended well for it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeepError {
    /// There is no room; evict, then try again.
    #[error("{need} bytes do not fit: {used} of {limit} are in use")]
    Full {
        /// Bytes that the record takes on the disk.
        need: u64,
        /// Bytes in use.
        used: u64,
        /// Bytes that may be.
        limit: u64,
    },
    /// The bytes are not those that were sealed.
    #[error("the bytes in memory are not those that were put")]
    Corrupt,
    /// A record of this name is on the disk: served, being kept, found bad, or on its way out. It may be kept
    /// again as soon as its removal or its eviction has ended well, and not before: of two copies of a record
    /// one could come back when the other is gone.
    #[error("this record is kept already, or is not gone yet")]
    Exists,
    /// The disk.
    #[error("the disk failed: {0}")]
    Disk(#[from] io::Error),
}

/// Why a record was not loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// It is not here, or not any more.
    #[error("there is no such record")]
    Missing,
    /// What the disk gave is not the record: header, label or bytes differ. It is not served again.
    #[error("the disk returned other bytes than were kept")]
    Corrupt,
    /// The part lies outside of the value, or the target is too small.
    #[error("the part lies outside of the value")]
    OutOfBounds,
    /// The disk.
    #[error("the disk failed: {0}")]
    Disk(#[from] io::Error),
}

/// One value to load, or a part of it. Verified before `result` is `Ok` (S11).
#[derive(Debug)]
pub struct Load<'a> {
    /// Which record.
    pub id: RecordId,
    /// The label that it must have.
    pub label: &'a [u8],
    /// Bytes of the value.
    pub len: u64,
    /// What they must add up to.
    pub seal: Seal,
    /// Where the part starts; the whole value starts at 0.
    pub start: u64,
    /// Bytes that are wanted.
    pub want: u64,
    /// Where they go: at least `want` bytes. Room (aligned, and long enough to be filled up to a multiple
    /// of [`crate::ALIGN`]) lets the disk write into it directly; what lies behind `want` is rubbish then.
    pub into: &'a mut [u8],
    /// Where the sums of all slices of the value go (`core::seal`), if they are wanted: with them a reader
    /// elsewhere verifies a part by the seal of the whole (R11). Cleared first.
    pub sums: Option<&'a mut Vec<u64>>,
    /// What became of it.
    pub result: Result<(), LoadError>,
}

/// How full a backend is. At rest `on_disk` is what its files take on the disk (S7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Records that can be loaded.
    pub records: u64,
    /// Bytes of their values.
    pub value_bytes: u64,
    /// Bytes that cannot be had without an eviction, those included whose records are gone.
    pub used: u64,
    /// Bytes that files may take.
    pub limit: u64,
    /// Bytes that the files take: `used`, and what of them is free for records: a file in its full length, spares.
    pub on_disk: u64,
    /// Bytes written to the disk since it was opened: values, headers, padding, books. Beside the bytes
    /// of values that were kept it tells the write amplification.
    pub written: u64,
}

/// What recovery found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Records that verified.
    pub records: u64,
    /// Bytes of their values.
    pub value_bytes: u64,
    /// Records that did not: torn, flipped, misplaced.
    pub dropped: u64,
    /// Files that belong to nothing, and were removed.
    pub orphans: u64,
    /// Records that had been removed before.
    pub removed: u64,
}

/// How far recovery is: bytes of files that were looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// So many.
    pub done: u64,
    /// Of so many.
    pub total: u64,
    /// Records that were found in them.
    pub records: u64,
}

/// Records on disks. All calls block; all may be made from many threads.
pub trait Backend: fmt::Debug + Send + Sync {
    /// Keeps records. What is `Ok` is durable, and found again after a crash; the rest is not there.
    fn keep(&self, records: &[NewRecord<'_>]) -> Vec<Result<(), KeepError>>;

    /// Loads values or parts of them, and verifies them.
    fn load(&self, loads: &mut [Load<'_>]);

    /// Removes records: they are not found by later loads, nor after a crash (G6). Loads that are under
    /// way end well. Unknown records are fine. Space may come back later.
    fn remove(&self, ids: &[RecordId]) -> io::Result<()>;

    /// First step of an eviction: hides the records that go next, until at least `bytes` are promised.
    /// Nobody can load them any more; nothing is deleted yet. `None`: nothing can be evicted.
    fn unlink(&self, bytes: u64) -> Option<Box<dyn Ticket>>;

    /// Reads records from the cursor on and compares them with their seals, about `bytes` of them. Gives
    /// the records that are bad (no longer served), and the cursor to go on with; 0 starts over.
    fn scrub(&self, cursor: u64, bytes: u64) -> (Vec<RecordId>, u64);

    /// Writes what makes the next start fast. Nothing is lost without it; for the end of a process.
    fn settle(&self) -> io::Result<()> {
        Ok(())
    }

    /// The identity of its directory: drawn once, and kept for as long as the directory has records.
    fn token(&self) -> u64;

    /// How full it is.
    fn usage(&self) -> Usage;

    /// Bytes that count against the limit: those in use, and those that must stay free for what is there, as
    /// for its removal. What is kept next fits below the limit beside these, or not at all.
    fn promised(&self) -> u64 {
        self.usage().used
    }
}

/// Records that are hidden and still on the disk. Dropped, they can be loaded again: the master was not
/// told (S1).
pub trait Ticket: Send + fmt::Debug {
    /// Which ones.
    fn records(&self) -> &[RecordId];

    /// Bytes that are free for records then.
    fn bytes(&self) -> u64;

    /// Second step, after the master has forgotten them: waits for loads that are under way, then deletes.
    /// What is still being read after `wait` stays as an orphan that the next start removes. Once this ends
    /// well, no crash brings them back, and they may be kept again.
    fn finish(self: Box<Self>, wait: Duration) -> io::Result<()>;
}

/// With a bug on purpose: deletes before the master was told (S1). Else what it gets.
pub(crate) fn canary_deletes(ticket: Option<Box<dyn Ticket>>) -> Option<Box<dyn Ticket>> {
    if !canary::on(Canary::DeletedBeforeAnswer) {
        return ticket;
    }
    let ticket = ticket?;
    let gone = Gone { records: ticket.records().to_vec(), bytes: ticket.bytes() };
    let _ = ticket.finish(Duration::from_secs(1));
    Some(Box::new(gone))
}

/// Records that a bug on purpose has deleted.
#[derive(Debug)]
struct Gone {
    records: Vec<RecordId>,
    bytes: u64,
}

impl Ticket for Gone {
    fn records(&self) -> &[RecordId] {
        &self.records
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn finish(self: Box<Self>, _wait: Duration) -> io::Result<()> {
        Ok(())
    }
}
