//! How a directory is kept, and opening one.

use crate::KEEPERS;
use crate::backend::{Backend, OpenError, Progress, Record, Recovery};
use crate::bucket::Buckets;
use crate::disk::Disk;
use crate::offset::OneFile;
use crate::per_key::PerKey;
use crate::record::Kind;
use std::sync::Arc;

/// Which bucket goes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Evict {
    /// The oldest.
    #[default]
    Fifo,
    /// The one that was read least recently; of those that nobody read since the start, the oldest.
    Lru,
}

/// The settings of a backend.
#[derive(Clone, Debug)]
pub struct Config {
    /// Which one.
    pub kind: Kind,
    /// Bytes that files may take, everything counted.
    pub limit_bytes: u64,
    /// A bucket is closed at so many bytes; one larger record has a bucket of its own.
    pub bucket_bytes_max: u64,
    /// A bucket is closed at so many records.
    pub bucket_records_max: u32,
    /// Buckets that are written at the same time. More let more threads write at once.
    pub open_buckets_max: usize,
    /// Files that are held open for reading.
    pub handles_max: usize,
    /// Which records go first. The other backends evict the oldest.
    pub evict: Evict,
    /// Bytes of the file system that files of records that are gone leave to others; with less they are deleted.
    pub spare_room: u64,
    /// Whether every value is read and verified at the start. Else heads are, and values when they are
    /// loaded or scrubbed; what a crash may have torn is read in any case.
    pub verify_values: bool,
    /// The token of a new directory, for runs that must repeat; `None` draws one.
    pub token: Option<u64>,
}

impl Config {
    /// The usual settings.
    pub fn new(kind: Kind, limit_bytes: u64) -> Self {
        Self {
            kind,
            limit_bytes,
            // A disk has room for some of them, or an eviction would empty it.
            bucket_bytes_max: (limit_bytes / 32).clamp(1 << 20, 256 << 20),
            bucket_records_max: 500,
            open_buckets_max: KEEPERS,
            handles_max: 256,
            evict: Evict::Fifo,
            spare_room: limit_bytes / 32,
            verify_values: false,
            token: None,
        }
    }
}

/// Opens a directory with the backend that the settings name, and tells each record that verified (S3). What
/// is not told is gone for good, also if the disk just could not read it: nobody could remove it (G6).
/// `progress` is told now and then how far that is.
pub fn open(
    disk: Arc<dyn Disk>,
    config: &Config,
    found: &mut dyn FnMut(Record),
    progress: &mut dyn FnMut(Progress),
) -> Result<(Arc<dyn Backend>, Recovery), OpenError> {
    match config.kind {
        Kind::Bucket => {
            let (backend, recovery) = Buckets::open(disk, config, found, progress)?;
            Ok((Arc::new(backend), recovery))
        }
        Kind::PerKey => {
            let (backend, recovery) = PerKey::open(disk, config, found, progress)?;
            Ok((Arc::new(backend), recovery))
        }
        Kind::Offset => {
            let (backend, recovery) = OneFile::open(disk, config, found, progress)?;
            Ok((Arc::new(backend), recovery))
        }
    }
}
