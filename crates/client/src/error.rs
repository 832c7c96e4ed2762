//! What can go wrong for a program that uses the store, and what it does next.

use mooncrate_core::error::{Advice, GetError, PutError, RemoveError};
use mooncrate_transfer::TransferError;
use mooncrate_wire::CallError;

/// Why a call gave no result. A missing key is not an error.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The put was refused.
    #[error("put: {0}")]
    Put(#[from] PutError),
    /// The key was not located.
    #[error("get: {0}")]
    Get(#[from] GetError),
    /// The key was not removed.
    #[error("remove: {0}")]
    Remove(#[from] RemoveError),
    /// The master did not answer.
    #[error("master: {0}")]
    Master(#[from] CallError),
    /// The bytes did not move.
    #[error("transfer: {0}")]
    Transfer(#[from] TransferError),
    /// The buffer is too small for the value.
    #[error("the value has {need} bytes, the buffer {have}")]
    BufferTooSmall {
        /// Bytes of the value.
        need: u64,
        /// Bytes of the buffer.
        have: u64,
    },
    /// A range reaches past the end of the value.
    #[error(
        "a range of {bytes} bytes from {start} reaches past the end of the value: it has {len}"
    )]
    OutOfRange {
        /// First byte that was wanted.
        start: u64,
        /// How many were.
        bytes: u64,
        /// Bytes of the value.
        len: u64,
    },
    /// The object moved or vanished again and again while it was being read.
    #[error("the object changed its place {tries} times while it was read; try again")]
    Restless {
        /// How often it was looked for.
        tries: u32,
    },
}

impl Error {
    /// What the caller does next.
    pub const fn advice(&self) -> Advice {
        match self {
            Self::Put(error) => error.advice(),
            Self::Get(error) => error.advice(),
            Self::Remove(error) => error.advice(),
            Self::Master(error) => error.advice(),
            Self::Transfer(error) => error.advice(),
            Self::BufferTooSmall { .. } | Self::OutOfRange { .. } => Advice::GiveUp,
            Self::Restless { .. } => Advice::Retry { after_ms: 1 },
        }
    }
}
