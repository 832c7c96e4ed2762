//! Errors, one enum per family of operations, and what the caller does next.

use crate::ids::Incarnation;
use crate::key::KeyError;
use crate::limits::{REPLICAS_MAX, VALUE_BYTES_MAX};
use crate::plan::Medium;

/// What a caller does about an error. Wire codes, CLI hints and exceptions all come from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// The request itself is wrong; sending it again changes nothing.
    GiveUp,
    /// It is already as the caller wants it.
    TreatAsDone,
    /// Try again after this many milliseconds.
    Retry {
        /// A hint, not a promise.
        after_ms: u32,
    },
    /// The object is not there; compute it again.
    TreatAsMiss,
}

/// Why a put was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PutError {
    /// Not a key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The key has a value, and a published value never changes.
    #[error("the key already has a value, and a published value never changes; remove it first")]
    Exists,
    /// Another put of the key is under way.
    #[error("another put of this key is under way; try again in {after_ms} ms")]
    InProgress {
        /// Hint.
        after_ms: u32,
    },
    /// The value is over the limit.
    #[error("the value has {len} bytes, the limit is {VALUE_BYTES_MAX}; store it in parts")]
    TooLarge {
        /// Bytes asked for.
        len: u64,
    },
    /// No segment could ever hold it.
    #[error(
        "the value needs {wanted} bytes in one run, the largest segment has {largest}; \
         mount a larger segment or store the value in parts"
    )]
    LargerThanAnySegment {
        /// Bytes needed.
        wanted: u64,
        /// Bytes of the largest segment.
        largest: u64,
    },
    /// More copies than allowed, or none.
    #[error("{wanted} replicas were asked for; between 1 and {REPLICAS_MAX} are possible")]
    BadReplicas {
        /// Asked for.
        wanted: u32,
    },
    /// More copies than nodes.
    #[error("{wanted} replicas on distinct nodes were asked for, {nodes} nodes have segments")]
    TooFewNodes {
        /// Asked for.
        wanted: u32,
        /// There are.
        nodes: u32,
    },
    /// No node has mounted a segment.
    #[error("no segment is mounted that could take it; start a node, or wait for it to register")]
    NoSegments,
    /// No node has a segment of the medium that the put asks for.
    #[error("no node lends {}; {}", medium.words(), way_out(*medium))]
    NoMedium {
        /// Asked for.
        medium: Medium,
    },
    /// Everything that could be evicted is pinned, leased or being written.
    #[error("the pool is full and everything in it is in use; try again in {after_ms} ms")]
    Busy {
        /// Hint.
        after_ms: u32,
    },
    /// Room is being made; the same call again may succeed.
    #[error("room is being made; try again in {after_ms} ms")]
    Reclaiming {
        /// Hint.
        after_ms: u32,
    },
    /// The master does not know all nodes yet.
    #[error("the index is being rebuilt; try again in {after_ms} ms")]
    Rebuilding {
        /// Hint.
        after_ms: u32,
    },
    /// The key has a value that cannot be read any more, and a replica of it is not free yet: its node has left or
    /// does not answer, or was still fetching the bytes when their source was evicted.
    #[error(
        "the last value of the key cannot be read any more, and a replica of it is not free yet; \
         try again in {after_ms} ms"
    )]
    Held {
        /// When that replica is free, as far as the master knows.
        after_ms: u32,
    },
    /// The tenant has used its quota up.
    #[error(
        "the tenant's quota is {quota} bytes, and this put would make it use {total}; \
         remove something or ask for a larger quota"
    )]
    Quota {
        /// Its quota.
        quota: u64,
        /// Bytes in use with this put, all copies.
        total: u64,
    },
    /// Hard pins may take only a part of the pool.
    #[error(
        "hard pins may hold {limit} bytes, and this put would make it {total}; \
         remove some, or use a soft pin"
    )]
    HardFull {
        /// Bytes that may be pinned so.
        limit: u64,
        /// Bytes pinned with this put, all copies.
        total: u64,
    },
    /// The new value is visible, but the old one may still be read through an old locator.
    #[error(
        "the new value is in place, but an owner has not confirmed that the old one is gone; \
         end the put again in {after_ms} ms"
    )]
    Replacing {
        /// Hint.
        after_ms: u32,
    },
    /// The seals do not fit the plan.
    #[error("the put has {stripes} stripes, {seals} seals were given")]
    BadSeals {
        /// Stripes of the plan.
        stripes: u32,
        /// Seals given.
        seals: u32,
    },
    /// `put_end` or `put_revoke` without a put, or with the token of an older one.
    #[error("no put of this key is open under this token; it was ended, revoked or timed out")]
    NoSuchPut,
}

/// What to do where nobody has a medium.
const fn way_out(medium: Medium) -> &'static str {
    match medium {
        Medium::Vram => "start one with --vram, or put without a medium",
        Medium::Dram => "start one with --segment-size, or ask for VRAM",
        Medium::Ssd => "start one with --ssd, or put without a medium",
    }
}

impl PutError {
    /// What the caller does next.
    pub const fn advice(&self) -> Advice {
        match *self {
            Self::Exists => Advice::TreatAsDone,
            Self::InProgress { after_ms }
            | Self::Busy { after_ms }
            | Self::Reclaiming { after_ms }
            | Self::Held { after_ms }
            | Self::Replacing { after_ms }
            | Self::Rebuilding { after_ms } => Advice::Retry { after_ms },
            Self::NoSegments => Advice::Retry { after_ms: 500 },
            Self::Key(_)
            | Self::TooLarge { .. }
            | Self::LargerThanAnySegment { .. }
            | Self::BadReplicas { .. }
            | Self::TooFewNodes { .. }
            | Self::NoMedium { .. }
            | Self::Quota { .. }
            | Self::HardFull { .. }
            | Self::BadSeals { .. }
            | Self::NoSuchPut => Advice::GiveUp,
        }
    }
}

/// Why a key was not located.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GetError {
    /// Not a key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// No finished object under this key.
    #[error("no such key")]
    NotFound,
    /// The master does not know all nodes yet.
    #[error("the index is being rebuilt; try again in {after_ms} ms")]
    Rebuilding {
        /// Hint.
        after_ms: u32,
    },
}

impl GetError {
    /// What the caller does next.
    pub const fn advice(&self) -> Advice {
        match *self {
            Self::NotFound => Advice::TreatAsMiss,
            Self::Rebuilding { after_ms } => Advice::Retry { after_ms },
            Self::Key(_) => Advice::GiveUp,
        }
    }
}

/// Why a key was not removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RemoveError {
    /// Not a key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// No finished object under this key.
    #[error("no such key")]
    NotFound,
    /// Somebody holds a lease that was asked for.
    #[error("the object is leased for {left_ms} ms more; remove it then, or force its retirement")]
    Leased {
        /// Rest of the longest lease.
        left_ms: u32,
    },
    /// Hidden already, but an owner has not yet confirmed that nobody can read it any more.
    #[error("an owner has not confirmed the removal yet; ask again in {after_ms} ms")]
    Deferred {
        /// Hint.
        after_ms: u32,
    },
    /// The put of this key is not finished.
    #[error("the key is being written; end or revoke the put first")]
    InProgress,
    /// The master does not know all nodes yet.
    #[error("the index is being rebuilt; try again in {after_ms} ms")]
    Rebuilding {
        /// Hint.
        after_ms: u32,
    },
}

impl RemoveError {
    /// What the caller does next.
    pub const fn advice(&self) -> Advice {
        match *self {
            Self::NotFound => Advice::TreatAsDone,
            Self::Leased { left_ms: after_ms }
            | Self::Deferred { after_ms }
            | Self::Rebuilding { after_ms } => Advice::Retry { after_ms },
            Self::InProgress => Advice::Retry { after_ms: 100 },
            Self::Key(_) => Advice::GiveUp,
        }
    }
}

/// Why an object was not copied to where it was wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CopyError {
    /// Not a key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// No finished object under this key.
    #[error("no such key")]
    NotFound,
    /// The object has no copy where it should be taken from.
    #[error(
        "the object has no copy in the segment it should leave; `mooncrate stat` shows segments"
    )]
    NoSource,
    /// The segment to copy to is not there, or takes nothing.
    #[error(
        "the segment to copy to is not mounted, or is being drained; `mooncrate stat` shows segments"
    )]
    NoTarget,
    /// The segment to copy to has no room, or its node has a copy already.
    #[error(
        "the segment to copy to has no room for it, or its node has a copy already; \
         try another one, or this one in {after_ms} ms"
    )]
    NoRoom {
        /// Hint.
        after_ms: u32,
    },
    /// Not done by the deadline, or not possible while nodes announce what they hold.
    #[error("the copy is not there yet; ask again in {after_ms} ms")]
    Busy {
        /// Hint.
        after_ms: u32,
    },
}

impl CopyError {
    /// What the caller does next.
    pub const fn advice(&self) -> Advice {
        match *self {
            Self::NotFound => Advice::TreatAsMiss,
            Self::NoRoom { after_ms } | Self::Busy { after_ms } => Advice::Retry { after_ms },
            Self::Key(_) | Self::NoSource | Self::NoTarget => Advice::GiveUp,
        }
    }
}

/// Why a segment was not mounted or a node not heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MountError {
    /// The same segment was mounted under a later incarnation, or this one was given up.
    #[error(
        "the segment was mounted under incarnation {} already; if another node has this name, rename one",
        .last.0
    )]
    StaleIncarnation {
        /// The last one that the node has mounted, of any segment: the next must be later.
        last: Incarnation,
        /// Whether that mount is over. Otherwise another process of this name may be alive.
        over: bool,
    },
    /// Another node owns a segment of this id.
    #[error("another node owns this segment; give each node a name of its own")]
    ForeignSegment,
    /// The offer makes no sense.
    #[error(
        "the segment offers {bytes} bytes and {slots} slots; both must be at least 1, bytes a multiple of 64"
    )]
    BadOffer {
        /// Bytes offered.
        bytes: u64,
        /// Slots offered.
        slots: u32,
    },
    /// Too many segments.
    #[error("the node has {count} segments already, which is the limit")]
    TooManySegments {
        /// How many.
        count: u32,
    },
    /// The master does not know the node (any more): mount again as a new incarnation.
    #[error("the master does not know this node; mount its segments again")]
    UnknownNode,
    /// Announced slots overlap, or reach outside.
    #[error("the announced slots contradict each other at slot {slot}")]
    BadAnnouncement {
        /// The first wrong one.
        slot: u32,
    },
}

impl MountError {
    /// What the node does next.
    pub const fn advice(&self) -> Advice {
        match self {
            Self::UnknownNode => Advice::Retry { after_ms: 0 },
            _ => Advice::GiveUp,
        }
    }
}
