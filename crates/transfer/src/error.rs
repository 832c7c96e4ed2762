//! Why bytes did not move, and what the caller does next.

use mooncrate_core::error::Advice;
use mooncrate_wire::{CallError, DataError};

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
    /// Nobody knows where the segment is.
    #[error("no node serves this segment any more; ask the master again")]
    NoRoute,
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
            Self::Call(error) => error.advice(),
            Self::Fenced | Self::NoRoute | Self::NotTried => Advice::Retry { after_ms: 0 },
            Self::Map(_) => Advice::Retry { after_ms: 100 },
            Self::Length { .. } => Advice::GiveUp,
        }
    }

    /// Whether a fresh locator may help: this one names a life that is over, or an owner that is
    /// not there.
    pub const fn is_stale(&self) -> bool {
        matches!(
            self,
            Self::Data(DataError::Stale | DataError::UnknownSegment | DataError::OldEpoch)
                | Self::Fenced
                | Self::NoRoute
        )
    }
}
