//! What can go wrong for a program that uses the store, and what it does next.

use mooncrate_core::error::{Advice, CopyError, GetError, PutError, RemoveError};
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
    /// The object was not copied.
    #[error("copy: {0}")]
    Copy(#[from] CopyError),
    /// The master did not answer.
    #[error("master: {0}")]
    Master(#[from] CallError),
    /// The bytes did not move.
    #[error("transfer: {0}")]
    Transfer(#[from] TransferError),
    /// A session does not allow it.
    #[error("session: {0}")]
    Session(#[from] SessionError),
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
    /// The master names places where the object cannot be read (any more), again and again: it moved
    /// or vanished while it was being read, or its owner has just gone and the master does not know.
    #[error("the object was not where the master said, {tries} times; try again: {last}")]
    Restless {
        /// How often it was looked for.
        tries: u32,
        /// What the last place said.
        #[source]
        last: TransferError,
    },
}

impl Error {
    /// What the caller does next.
    pub const fn advice(&self) -> Advice {
        match self {
            Self::Put(error) => error.advice(),
            Self::Get(error) => error.advice(),
            Self::Remove(error) => error.advice(),
            Self::Copy(error) => error.advice(),
            Self::Master(error) => error.advice(),
            Self::Transfer(error) => error.advice(),
            Self::Session(error) => error.advice(),
            Self::BufferTooSmall { .. } | Self::OutOfRange { .. } => Advice::GiveUp,
            Self::Restless { .. } => Advice::Retry { after_ms: 1 },
        }
    }
}

/// Why a session did not do what it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// It was ended or revoked.
    #[error("the session is over; start another one")]
    Over,
    /// A part did not arrive.
    #[error("a part of the value did not arrive, so it can never be whole; revoke the session")]
    Broken,
    /// The master gave the put up.
    #[error(
        "the put is no longer open: it took longer than the master's put_timeout, or a copy was lost \
         with its node; start another session, or raise the master's --put-timeout"
    )]
    TimedOut,
    /// Bytes are written once.
    #[error("bytes {start} to {end} were written before; a session writes each byte once")]
    Overlap {
        /// The first that was.
        start: u64,
        /// The end of them.
        end: u64,
    },
    /// Bytes are missing.
    #[error("bytes {start} to {end} are not all written yet; write them, then end the session")]
    Gap {
        /// The first that is missing.
        start: u64,
        /// Where the next run that is whole begins, or the end of the value.
        end: u64,
    },
    /// A part reaches past the end of the value.
    #[error("a part of {bytes} bytes from {start} reaches past the end of the value: it has {len}")]
    OutOfRange {
        /// First byte.
        start: u64,
        /// How many.
        bytes: u64,
        /// Bytes of the value.
        len: u64,
    },
    /// Too many runs that do not touch.
    #[error("the parts written so far are in {runs} runs that do not touch; write larger parts")]
    Scattered {
        /// The bound.
        runs: usize,
    },
    /// The lease ran out.
    #[error("the lease of the session ran out; start another one, and read before it ends")]
    LeaseOver,
}

impl SessionError {
    /// What the caller does next.
    pub const fn advice(&self) -> Advice {
        Advice::GiveUp
    }
}
