//! What a disk counts.

use mooncrate_core::tally::{Count, Spread};

/// Numbers of one disk. All else is read off its backend.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Groups of records kept: how long that took.
    pub(crate) keeps: Spread,
    /// Records kept.
    pub(crate) kept: Count,
    /// Bytes of their values.
    pub(crate) kept_bytes: Count,
    /// Batches loaded: how long that took.
    pub(crate) loads: Spread,
    /// Values and parts of values loaded.
    pub(crate) loaded: Count,
    /// Their bytes.
    pub(crate) loaded_bytes: Count,
    /// Offloads refused: the queue was full.
    pub(crate) refused_queue: Count,
    /// The endurance budget was used up.
    pub(crate) refused_budget: Count,
    /// There was no room, or an eviction waited for its master.
    pub(crate) refused_full: Count,
    /// The disk failed.
    pub(crate) refused_failed: Count,
    /// The source was gone, or the master had given the copy up.
    pub(crate) refused_other: Count,
    /// Records evicted.
    pub(crate) evicted: Count,
    /// Bytes that came back by that.
    pub(crate) evicted_bytes: Count,
    /// Records removed by order.
    pub(crate) removed: Count,
    /// Bytes that the scrubber asked for.
    pub(crate) scrubbed_bytes: Count,
    /// Records that were not what was kept.
    pub(crate) corrupt: Count,
    /// Calls that the disk failed.
    pub(crate) errors: Count,
}
