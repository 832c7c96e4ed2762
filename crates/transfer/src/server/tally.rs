//! What a data server counted. Readers and writers in shared memory and in the owner's own process
//! do their work without the server, so they show here only where they ask it: a put begins and is
//! signalled, a pin is taken; a copy out of shared memory is nobody's but the reader's.

use mooncrate_core::tally::{Count, Level, Spread};
use mooncrate_mem::{PublishError, SegmentError};
use mooncrate_wire::DataError;

/// Numbers of a data server. Passed in, so that their owner can read them.
#[derive(Debug, Default)]
pub struct DataTally {
    /// Connections that are open.
    pub connections: Level,
    /// Reads that were answered with bytes: how long they took, the sending included.
    pub reads: Spread,
    /// Bytes sent.
    pub read_bytes: Count,
    /// Values taken off a socket: how long that took.
    pub writes: Spread,
    /// Values published, over a socket or in shared memory.
    pub published: Count,
    /// Their bytes.
    pub published_bytes: Count,
    /// Pins that connections hold now.
    pub pins: Level,
    /// Values staged from disks for connections.
    pub staged: Count,
    /// Bytes that are staged for connections now.
    pub staged_bytes: Level,
    /// Why requests were refused.
    pub refused: Refusals,
}

/// Requests that were refused, by reason.
#[derive(Debug, Default)]
pub struct Refusals {
    /// Planned by a leader that has been replaced (G7).
    pub epoch: Count,
    /// For a life, a mount or a segment that is over.
    pub stale: Count,
    /// The bytes did not add up, or not all of them came.
    pub checksum: Count,
    /// The owner is cut off from its master and may not serve (R10).
    pub fenced: Count,
    /// Too much is open, pinned or in the way.
    pub busy: Count,
    /// Everything else: bad extents, bad tokens, what this link cannot do.
    pub other: Count,
}

impl Refusals {
    /// Counts a refusal by its words on the wire, and hands it on.
    pub(super) fn wire(&self, error: DataError) -> DataError {
        let count = match error {
            DataError::OldEpoch => &self.epoch,
            DataError::Stale | DataError::UnknownSegment | DataError::Expired => &self.stale,
            DataError::Corrupt => &self.checksum,
            DataError::Busy { .. } => &self.busy,
            _ => &self.other,
        };
        count.one();
        error
    }

    /// Counts what the memory said. On the wire a fenced owner is as good as a stale place; here the
    /// two are told apart.
    pub(super) fn memory(&self, error: &SegmentError) -> DataError {
        let refusal = crate::error::refusal(error);
        if matches!(error, SegmentError::Fenced) {
            self.fenced.one();
            return refusal;
        }
        self.wire(refusal)
    }

    /// Counts a put that was not published.
    pub(super) fn unpublished(&self, error: &PublishError) -> DataError {
        self.wire(crate::error::unpublished(error))
    }
}
