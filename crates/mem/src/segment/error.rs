//! Why a segment said no, and what the caller does next.

use crate::region::OutOfBounds;
use mooncrate_core::word::{Word, WordError};
use mooncrate_core::{Advice, Generation, Incarnation, LeaderEpoch, Seal, SegmentId, Slot};

/// Why an order, a put or a pin was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SegmentError {
    /// A newer leader is known.
    #[error("the leader of epoch {asked} was replaced by that of epoch {known}")]
    OldEpoch {
        /// The highest epoch seen.
        known: LeaderEpoch,
        /// The epoch of the request.
        asked: LeaderEpoch,
    },
    /// The request is about another segment.
    #[error("this is segment {here}, not {asked}")]
    OtherSegment {
        /// This one.
        here: SegmentId,
        /// The one asked for.
        asked: SegmentId,
    },
    /// The request is about another mount.
    #[error("this is incarnation {here}, not {asked}")]
    OtherMount {
        /// This one.
        here: Incarnation,
        /// The one asked for.
        asked: Incarnation,
    },
    /// No such slot.
    #[error("slot {slot} is not one of {slots}")]
    NoSuchSlot {
        /// Asked for.
        slot: Slot,
        /// How many there are.
        slots: u32,
    },
    /// The extent reaches outside.
    #[error(transparent)]
    OutOfBounds(#[from] OutOfBounds),
    /// The extent is not the one of a value of this length, or not aligned, or not the slot's.
    #[error("the extent does not fit: {extent_bytes} bytes at {offset} for a value of {len}")]
    BadExtent {
        /// Start of the extent.
        offset: u64,
        /// Its length.
        extent_bytes: u64,
        /// Bytes of the value.
        len: u64,
    },
    /// The label is empty or too long.
    #[error("{bytes} bytes that are no label")]
    BadLabel {
        /// How long it is.
        bytes: usize,
    },
    /// The slot lives another life, or is not in a state that allows the step.
    #[error("the slot is {found:?}, not generation {wanted:?}")]
    Stale {
        /// Asked for.
        wanted: Generation,
        /// What is there.
        found: Word,
    },
    /// The slot's generations are used up (G4).
    #[error("slot {slot} has had all its lives")]
    UsedUp {
        /// Which one.
        slot: Slot,
    },
    /// Too many readers at once.
    #[error("{pins} readers hold the slot; try again in a moment")]
    Busy {
        /// How many.
        pins: u32,
    },
    /// This owner may not serve now (R10).
    #[error("this owner's leave to serve has run out")]
    Fenced,
    /// All rooms of a device are in use.
    #[error("all rooms for copies from and to the GPU are in use; try again in a moment")]
    NoRoom,
    /// A device did not copy.
    #[error("the GPU that the bytes lie on did not copy them; its owner's log says why")]
    Device,
}

impl SegmentError {
    /// What the caller does next.
    pub const fn advice(&self) -> Advice {
        match self {
            // Ask the master once more: it knows better now.
            Self::Stale { .. } | Self::OtherMount { .. } | Self::Fenced | Self::OldEpoch { .. } => {
                Advice::Retry { after_ms: 0 }
            }
            Self::Busy { .. } => Advice::Retry { after_ms: 1 },
            Self::NoRoom => Advice::Retry { after_ms: 5 },
            Self::Device => Advice::Retry { after_ms: 100 },
            Self::OtherSegment { .. }
            | Self::NoSuchSlot { .. }
            | Self::OutOfBounds(_)
            | Self::BadExtent { .. }
            | Self::BadLabel { .. }
            | Self::UsedUp { .. } => Advice::GiveUp,
        }
    }
}

impl From<WordError> for SegmentError {
    fn from(error: WordError) -> Self {
        match error {
            WordError::Stale { wanted, found } => Self::Stale { wanted, found },
            WordError::Pinned { pins } => Self::Busy { pins },
        }
    }
}

/// Why bytes were not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// Bytes come in order, without gaps.
    #[error("byte {expected} is next, not {offset}")]
    OutOfOrder {
        /// Where the bytes were to go.
        offset: u64,
        /// Where the value ends so far.
        expected: u64,
    },
    /// More bytes than the put was begun with.
    #[error("{end} bytes do not fit a value of {len}")]
    TooLong {
        /// Where the bytes would end.
        end: u64,
        /// Bytes of the value.
        len: u64,
    },
    /// The put was aborted by the master.
    #[error("the put was aborted")]
    Aborted,
    /// The bytes of this segment are on a disk.
    #[error("the bytes of this segment are not in memory")]
    Elsewhere,
    /// All rooms of a device are in use.
    #[error("all rooms for copies to the GPU are in use; try again in a moment")]
    Busy,
    /// A device did not copy: this put is over.
    #[error("the GPU did not take the bytes; its owner's log says why")]
    Device,
}

/// Why a value was not published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// Another put's token.
    #[error("the token is not that of this put")]
    BadToken,
    /// Bytes are missing.
    #[error("{seen} of {len} bytes have arrived")]
    Incomplete {
        /// How many came.
        seen: u64,
        /// How many were announced.
        len: u64,
    },
    /// The bytes are not those that the writer sealed.
    #[error("the bytes add up to {found:?}, the writer says {wanted:?}")]
    Corrupt {
        /// The seal of what arrived.
        found: Seal,
        /// The seal of what was sent.
        wanted: Seal,
    },
    /// The put was aborted by the master.
    #[error("the put was aborted")]
    Aborted,
    /// The bytes of this segment are on a disk, or those of another one are not.
    #[error("a value is published where its bytes are, in memory or on a disk")]
    Elsewhere,
    /// All rooms of a device are in use.
    #[error("all rooms for copies from the GPU are in use; try again in a moment")]
    Busy,
    /// A device did not copy: this put is over.
    #[error("the GPU did not take the bytes; its owner's log says why")]
    Device,
}

impl PublishError {
    /// What the writer does next.
    pub const fn advice(&self) -> Advice {
        match self {
            Self::BadToken | Self::Aborted | Self::Elsewhere => Advice::GiveUp,
            Self::Incomplete { .. } | Self::Corrupt { .. } => Advice::Retry { after_ms: 0 },
            Self::Busy => Advice::Retry { after_ms: 5 },
            Self::Device => Advice::Retry { after_ms: 100 },
        }
    }
}
