//! Why bytes did not move, and what the caller does next.

use mooncrate_core::error::Advice;
use mooncrate_mem::{PublishError, ReadError, SegmentError, StoreError, WriteError};
use mooncrate_wire::{CallError, DataError};
use std::time::Duration;

/// Why bytes did not move.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// The owner refused, or what it sent does not add up.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The owner was not reached, or not in time.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The owner may no longer serve (R10): it has not heard from its master for too long.
    #[error("the owner is cut off from its master and may not serve this; ask the master again")]
    Fenced,
    /// The buffer has another length than the value.
    #[error("the buffer has {have} bytes, the value has {need}")]
    Length {
        /// Bytes of the value.
        need: u64,
        /// Bytes of the buffer.
        have: u64,
    },
    /// The master was not heard on where the owner is.
    #[error("where the owner is could not be learnt: {0}")]
    Unrouted(CallError),
    /// Nobody knows where the segment is.
    #[error("no node serves this segment any more; ask the master again")]
    NoRoute,
    /// The owner did not answer lately, and it is not its turn to be tried again.
    #[error("the owner did not answer lately, and is left alone for a while; try again")]
    Silent,
    /// The shared memory of the owner could not be mapped.
    #[error("the owner's memory cannot be mapped: {0}")]
    Map(std::io::Error),
    /// The batch ended before its turn.
    #[error("the batch ended before this one was tried")]
    NotTried,
}

impl TransferError {
    /// What the caller does next.
    pub const fn advice(&self) -> Advice {
        match self {
            Self::Data(error) => error.advice(),
            Self::Call(error) | Self::Unrouted(error) => error.advice(),
            Self::Fenced | Self::NoRoute | Self::NotTried => Advice::Retry { after_ms: 0 },
            Self::Map(_) | Self::Silent => Advice::Retry { after_ms: 100 },
            Self::Length { .. } => Advice::GiveUp,
        }
    }

    /// Whether the owner was asked and gave no answer, and for how long nothing came from it; zero: its socket
    /// refused or closed.
    pub const fn silence(&self) -> Option<Duration> {
        match self {
            Self::Call(CallError::Deadline { silent, .. }) => Some(*silent),
            Self::Call(CallError::Io { .. } | CallError::Closed { .. }) => Some(Duration::ZERO),
            _ => None,
        }
    }

    /// Whether the owner may well hold the value, and nobody could ask it.
    pub const fn is_silent(&self) -> bool {
        matches!(
            self,
            Self::Silent
                | Self::Unrouted(_)
                | Self::Call(CallError::Deadline { .. } | CallError::Interrupted { .. })
        )
    }

    /// The caller does not want the value any more.
    pub(crate) const fn interrupted() -> Self {
        Self::Call(CallError::Interrupted { awaited: "a copy of a value" })
    }

    /// Whether a fresh locator may help: this one names a life that is over, or an owner that is
    /// not there, or its grant has ended.
    pub const fn is_stale(&self) -> bool {
        matches!(
            self,
            Self::Data(
                DataError::Stale
                    | DataError::UnknownSegment
                    | DataError::OldEpoch
                    | DataError::Expired
            ) | Self::Fenced
                | Self::NoRoute
        )
    }
}

impl From<ReadError> for TransferError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Fenced => Self::Fenced,
            ReadError::Stale => DataError::Stale.into(),
            ReadError::Corrupt => DataError::Corrupt.into(),
            ReadError::OutOfBounds => DataError::OutOfBounds.into(),
            ReadError::Busy => DataError::Busy { after_ms: 1 }.into(),
            ReadError::Device => DataError::Device.into(),
        }
    }
}

impl From<SegmentError> for TransferError {
    fn from(error: SegmentError) -> Self {
        match error {
            SegmentError::Fenced => Self::Fenced,
            other => refusal(&other).into(),
        }
    }
}

impl From<WriteError> for TransferError {
    fn from(error: WriteError) -> Self {
        unwritten(&error).into()
    }
}

impl From<PublishError> for TransferError {
    fn from(error: PublishError) -> Self {
        unpublished(&error).into()
    }
}

impl From<StoreError> for TransferError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Stale => DataError::Stale.into(),
            StoreError::OutOfBounds => DataError::OutOfBounds.into(),
            StoreError::Map(error) => Self::Map(error),
        }
    }
}

/// What the owner's memory said, as it travels.
pub(crate) fn refusal(error: &SegmentError) -> DataError {
    match error {
        SegmentError::OldEpoch { .. } => DataError::OldEpoch,
        SegmentError::OtherSegment { .. } => DataError::UnknownSegment,
        SegmentError::OtherMount { .. }
        | SegmentError::Stale { .. }
        | SegmentError::UsedUp { .. }
        | SegmentError::Fenced => DataError::Stale,
        SegmentError::Busy { .. } => DataError::Busy { after_ms: 1 },
        SegmentError::NoRoom => DataError::Busy { after_ms: 5 },
        SegmentError::Device => DataError::Device,
        SegmentError::NoSuchSlot { .. }
        | SegmentError::OutOfBounds(_)
        | SegmentError::BadExtent { .. }
        | SegmentError::BadLabel { .. } => DataError::OutOfBounds,
    }
}

/// Why the owner's memory took no bytes, as it travels.
pub(crate) fn unwritten(error: &WriteError) -> DataError {
    match error {
        WriteError::Aborted => DataError::BadToken,
        WriteError::Elsewhere => DataError::Unsupported,
        WriteError::Busy => DataError::Busy { after_ms: 5 },
        WriteError::Device => DataError::Device,
        WriteError::OutOfOrder { .. } | WriteError::TooLong { .. } => DataError::OutOfBounds,
    }
}

/// Why the owner did not publish, as it travels.
pub(crate) fn unpublished(error: &PublishError) -> DataError {
    match error {
        PublishError::BadToken | PublishError::Aborted => DataError::BadToken,
        PublishError::Elsewhere => DataError::Unsupported,
        PublishError::Busy => DataError::Busy { after_ms: 5 },
        PublishError::Device => DataError::Device,
        PublishError::Incomplete { .. } | PublishError::Corrupt { .. } => DataError::Corrupt,
    }
}
