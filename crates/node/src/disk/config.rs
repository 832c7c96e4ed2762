//! How a node's disks are set up. Plain data.

use super::open::OnProgress;
use mooncrate_ssd::{Evict, Kind};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How files are read and written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Io {
    /// Rings where the kernel gives them, else posix.
    #[default]
    Auto,
    /// `pread` and `pwrite`.
    Posix,
    /// Rings, with the staging memory registered: all of it is taken from the system at once.
    Uring,
    /// Not files of the system: a disk that exists already, such as a simulated one.
    Given(Given),
}

/// A disk that exists already. Two are equal if they are the same disk.
#[derive(Clone, Debug)]
pub struct Given(pub Arc<dyn mooncrate_ssd::Disk>);

impl PartialEq for Given {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Given {}

/// One disk of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SsdConfig {
    /// The directory that its files are in. Nobody else may use it.
    pub path: PathBuf,
    /// Bytes that the files may take.
    pub bytes: u64,
    /// How records are laid out.
    pub backend: Kind,
    /// How files are read and written.
    pub io: Io,
    /// Which records go first when it is full.
    pub evict: Evict,
    /// Bytes after which a bucket is closed; `None`: 256 MiB, or less on a small disk.
    pub bucket_bytes: Option<u64>,
    /// Records after which a bucket is closed; `None`: the backend's own.
    pub bucket_records: Option<u32>,
    /// Whether the start reads every value. Otherwise each is verified when it is read.
    pub verify_values: bool,
}

impl SsdConfig {
    /// The usual disk.
    pub fn new(path: impl Into<PathBuf>, bytes: u64) -> Self {
        Self {
            path: path.into(),
            bytes,
            backend: Kind::default(),
            io: Io::default(),
            evict: Evict::default(),
            bucket_bytes: None,
            bucket_records: None,
            verify_values: false,
        }
    }
}

/// Somebody who is told how far recovery is, disk by disk.
#[derive(Clone)]
pub struct Listener(pub Arc<OnProgress>);

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Listener")
    }
}

/// All disks of a node, and what they share.
#[derive(Clone, Debug)]
pub struct Tier {
    /// The disks.
    pub disks: Vec<SsdConfig>,
    /// Memory that values are loaded into for readers elsewhere; taken from the system as it is used.
    pub staging_bytes: u64,
    /// How long a loaded value waits for its reader.
    pub staging_lease: Duration,
    /// Bytes that each disk may be written per day; `None`: as many as there are.
    pub write_bytes_per_day: Option<u64>,
    /// Bytes per second that each disk is read for records that nobody reads; 0: not.
    pub scrub_bytes_per_second: u64,
    /// Who is told how far recovery is.
    pub on_progress: Option<Listener>,
}

impl Default for Tier {
    fn default() -> Self {
        Self {
            disks: Vec::new(),
            staging_bytes: 256 << 20,
            staging_lease: Duration::from_secs(5),
            write_bytes_per_day: None,
            scrub_bytes_per_second: 8 << 20,
            on_progress: None,
        }
    }
}
