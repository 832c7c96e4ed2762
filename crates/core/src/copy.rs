//! Copies from owner to owner, as they are ordered and told. Owners pull: the master names the life
//! to fill and the lives to fetch from, and never sees a byte.

use crate::ids::{Generation, Incarnation, LeaderEpoch, ObjectId, PutToken, SegmentId, Slot};
use crate::label::Label;
use crate::plan::Locator;
use crate::seal::Seal;

/// Leave for an owner to fill one of its own slots with a replica that others have. It reads and
/// verifies as every reader does, and publishes as every writer does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyOrder {
    /// The life to fill.
    pub target: Locator,
    /// Where the same bytes are, best first.
    pub sources: Vec<Locator>,
    /// The right to write the target.
    pub token: PutToken,
    /// The put that stored the value: a copy is the same object.
    pub object: ObjectId,
    /// Who orders; owners refuse a lower one than they know (G7).
    pub epoch: LeaderEpoch,
    /// Bytes of the value, or of the stripe of it.
    pub len: u64,
    /// What they must add up to.
    pub seal: Seal,
    /// Kept by the owner beside the header.
    pub label: Label,
    /// The master gives the copy up after this long, counted from receipt.
    pub time_ms: u32,
}

/// What became of a copy. Late and repeated ones change nothing (G10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyDone {
    /// Which segment.
    pub segment: SegmentId,
    /// Which mount.
    pub incarnation: Incarnation,
    /// Which header.
    pub slot: Slot,
    /// Which life.
    pub generation: Generation,
    /// Whether it is published. Otherwise nothing of it can be read, now or later.
    pub ok: bool,
}

impl CopyDone {
    /// The answer to an order for this life.
    pub const fn of(target: &Locator, ok: bool) -> Self {
        let Locator { segment, incarnation, slot, generation, .. } = *target;
        Self { segment, incarnation, slot, generation, ok }
    }
}

/// What becomes of the objects of a segment that is emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainMode {
    /// Each is copied elsewhere first, if it is not there already.
    Move,
    /// They go; only hard pins are moved.
    Drop,
}

/// How far a drain is. Sums over the segments that were asked about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DrainStat {
    /// Segments that are being emptied, or are empty and closed.
    pub draining: u32,
    /// Bytes in use when it began.
    pub start_bytes: u64,
    /// Replicas when it began.
    pub start_replicas: u64,
    /// Bytes still in use.
    pub left_bytes: u64,
    /// Replicas that are still there.
    pub left_replicas: u64,
    /// Replicas that were copied elsewhere.
    pub moved: u64,
    /// Objects that went without a copy, because the mode says so.
    pub dropped: u64,
    /// Replicas that had no room elsewhere, or a lease that must end first, when last looked at.
    pub stuck: u64,
}

impl DrainStat {
    /// Whether nothing is left: its node may stop without loss.
    pub const fn drained(&self) -> bool {
        self.draining > 0 && self.left_bytes == 0 && self.left_replicas == 0
    }
}
