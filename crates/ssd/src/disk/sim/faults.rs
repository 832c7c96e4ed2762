//! What can go wrong on a simulated disk, how often, and how often it did.

use std::path::PathBuf;

/// Something that happened to the disk. Each is counted, so that a run can prove that it met them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Fault {
    /// A read failed.
    ReadError,
    /// A write failed; a part of it may have happened.
    WriteError,
    /// A sync failed, and some of what it should have written is gone at the next crash (S12).
    SyncError,
    /// A sync of a directory failed, and nothing is known about its changes.
    DirSyncError,
    /// There was no room.
    NoSpace,
    /// A read moved fewer bytes than asked.
    ShortRead,
    /// A write moved fewer bytes than asked.
    ShortWrite,
    /// A call was interrupted.
    Interrupted,
    /// A bit was flipped at rest.
    Flip,
    /// A write was acknowledged and never happened.
    Lost,
    /// A write was acknowledged, synced and read back, and is gone at the next crash.
    LostLater,
    /// A write landed elsewhere.
    Misdirected,
    /// A read returned what was there before.
    Stale,
    /// An operation took very long.
    Slow,
    /// The power failed in the middle of an operation.
    Cut,
    /// A crash took back what was written to a sector.
    TornSector,
    /// A crash took back the length of a file.
    TornLength,
    /// A crash took back a new name, a rename or a removal.
    TornName,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 18] = [
        Self::ReadError,
        Self::WriteError,
        Self::SyncError,
        Self::DirSyncError,
        Self::NoSpace,
        Self::ShortRead,
        Self::ShortWrite,
        Self::Interrupted,
        Self::Flip,
        Self::Lost,
        Self::LostLater,
        Self::Misdirected,
        Self::Stale,
        Self::Slow,
        Self::Cut,
        Self::TornSector,
        Self::TornLength,
        Self::TornName,
    ];

    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ReadError => "read_error",
            Self::WriteError => "write_error",
            Self::SyncError => "sync_error",
            Self::DirSyncError => "dir_sync_error",
            Self::NoSpace => "no_space",
            Self::ShortRead => "short_read",
            Self::ShortWrite => "short_write",
            Self::Interrupted => "interrupted",
            Self::Flip => "bit_flip",
            Self::Lost => "lost_write",
            Self::LostLater => "lost_write_later",
            Self::Misdirected => "misdirected_write",
            Self::Stale => "stale_read",
            Self::Slow => "slow",
            Self::Cut => "power_cut",
            Self::TornSector => "torn_sector",
            Self::TornLength => "torn_length",
            Self::TornName => "torn_name",
        }
    }
}

/// How often each fault happened.
pub type Counts = [u64; Fault::ALL.len()];

/// How often things go wrong, in parts per million of the operations that can.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// Reads that fail.
    pub read_error: u32,
    /// Writes that fail.
    pub write_error: u32,
    /// Syncs of files and directories that fail.
    pub sync_error: u32,
    /// Reads and writes that move fewer bytes than asked, or are interrupted.
    pub short: u32,
    /// Operations during which a bit flips somewhere.
    pub flip: u32,
    /// Writes that never happen.
    pub lost: u32,
    /// Writes that land elsewhere.
    pub misdirected: u32,
    /// Reads of what was there before.
    pub stale: u32,
    /// Operations that take very long.
    pub slow: u32,
}

/// A fault that can cost data although every call succeeded, and the bytes that it concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Harm {
    /// What happened.
    pub fault: Fault,
    /// Where.
    pub span: Span,
}

/// An operation that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// How.
    pub fault: Fault,
    /// On which bytes, those of a read or the whole file, and the name that the file had then; `None`: on a
    /// directory.
    pub at: Option<(Span, PathBuf)>,
}

/// Bytes of a file. Files are numbered; a number is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Which file.
    pub file: u64,
    /// The first byte.
    pub start: u64,
    /// Behind the last one.
    pub end: u64,
}

impl Span {
    /// Whether they have bytes in common.
    pub const fn meets(&self, other: &Self) -> bool {
        self.file == other.file && self.start < other.end && other.start < self.end
    }
}
