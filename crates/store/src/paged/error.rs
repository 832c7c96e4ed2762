//! Why blocks were not moved between a cache and a store.

use crate::Error;
use mooncrate_core::error::Advice;
use mooncrate_core::limits::VALUE_BYTES_MAX;
use mooncrate_paged::{ArenaError, CacheError, ResumeError};

/// Why blocks did not move. What is in the cache and in the store is right all the same.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpillError {
    /// The cache refused.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// The store refused.
    #[error(transparent)]
    Store(#[from] Error),
    /// A suspended sequence cannot come back here.
    #[error(transparent)]
    Resume(#[from] ResumeError),
    /// A value under the key of a block that is not as long as a block.
    #[error("the store has {found} bytes under the key of a block, which has {wanted}")]
    WrongLength {
        /// Bytes of the value.
        found: u64,
        /// Bytes of a block.
        wanted: u64,
    },
    /// Too much waits to be saved.
    #[error(
        "{queued_bytes} bytes wait to be saved, and {more_bytes} more are over the limit of {max}"
    )]
    QueueFull {
        /// Bytes of blocks that wait.
        queued_bytes: u64,
        /// Bytes of blocks to be saved.
        more_bytes: u64,
        /// The limit.
        max: u64,
    },
    /// Other calls have all bytes in flight.
    #[error(
        "{max} bytes are on their way between cache and store; none became free in {waited_ms} ms"
    )]
    Busy {
        /// The limit.
        max: u64,
        /// How long the call waited.
        waited_ms: u64,
    },
    /// A cache that does not say which part of its model it holds, in a store that others use, too.
    #[error(
        "other caches of {model:?} may use this store, so each must say which part of the model's KV it holds: set \
         CacheConfig::shard, to Shard::WHOLE for an engine that is not split"
    )]
    ShardUnknown {
        /// The model.
        model: String,
    },
    /// Blocks that are larger than any value.
    #[error(
        "a block of {block_bytes} bytes is larger than the largest value, {VALUE_BYTES_MAX}; use smaller blocks"
    )]
    BlockTooLarge {
        /// Bytes of a block.
        block_bytes: u64,
    },
}

impl SpillError {
    /// What the caller does next.
    pub const fn advice(&self) -> Advice {
        match self {
            Self::Cache(error) | Self::Resume(ResumeError::Cache(error)) => cache_advice(error),
            Self::Store(error) => error.advice(),
            Self::Resume(ResumeError::Damaged) | Self::WrongLength { .. } => Advice::TreatAsMiss,
            Self::QueueFull { .. } | Self::Busy { .. } => Advice::Retry { after_ms: 10 },
            Self::Resume(_) | Self::ShardUnknown { .. } | Self::BlockTooLarge { .. } => {
                Advice::GiveUp
            }
        }
    }
}

const fn cache_advice(error: &CacheError) -> Advice {
    match error {
        CacheError::Full(_) => Advice::Retry { after_ms: 10 },
        CacheError::Arena(error) => error.advice(),
        _ => Advice::GiveUp,
    }
}

impl From<ArenaError> for SpillError {
    fn from(error: ArenaError) -> Self {
        Self::Cache(error.into())
    }
}

impl From<mooncrate_client::Error> for SpillError {
    fn from(error: mooncrate_client::Error) -> Self {
        Self::Store(error.into())
    }
}
