//! Why a call of a cache failed.

use crate::ResizeError;
use crate::arena::ArenaError;
use crate::cache::TOKENS_MAX;
use crate::hash::EXTRA_BYTES_MAX;
use crate::pool::{Full, TakeError};
use crate::shard::Shard;
use crate::view::ViewError;

/// Why a call of a cache failed. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// No sequence has this id.
    #[error("there is no sequence {id:?}; it was never allocated, or freed")]
    Unknown {
        /// The id.
        id: String,
    },
    /// A sequence has this id already.
    #[error("there is a sequence {id:?} already; free it first, or choose another id")]
    Duplicate {
        /// The id.
        id: String,
    },
    /// A sequence of no tokens.
    #[error("a sequence needs at least one token")]
    NoTokens,
    /// More tokens than fit the tables of engines.
    #[error("a sequence of {tokens} tokens is too long; at most {TOKENS_MAX} fit")]
    TooManyTokens {
        /// Tokens that it would have.
        tokens: u64,
    },
    /// No room, even after evicting what nobody uses.
    #[error(transparent)]
    Full(#[from] Full),
    /// The arena refused.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// The layout has no such view.
    #[error(transparent)]
    View(#[from] ViewError),
    /// The blocks of the sequence do not lie in a row.
    #[error("the blocks of {id:?} do not lie in a row; use its block table, or map them in a row")]
    Paged {
        /// The id.
        id: String,
    },
    /// All blocks of the sequence are published, so it has none of its own.
    #[error("all blocks of {id:?} are published and never change; append tokens, and write those")]
    NoneOwn {
        /// The id.
        id: String,
    },
    /// A write to a published block.
    #[error(
        "token {token} of {id:?} is in a published block, which never changes; write from token {own} on"
    )]
    Published {
        /// The id.
        id: String,
        /// The first token of the write.
        token: u64,
        /// The first token that may be written.
        own: u64,
    },
    /// Tokens that the sequence does not have.
    #[error("tokens {start} to {end} of {id:?} were asked for, it has {tokens}; append them first")]
    Outside {
        /// The id.
        id: String,
        /// The first token asked for.
        start: u64,
        /// The token after the last one.
        end: u64,
        /// Tokens that there are.
        tokens: u64,
    },
    /// Scores for another number of tokens.
    #[error("{given} scores were given for {id:?}, which has {tokens} tokens; give one for each")]
    WrongScores {
        /// The id.
        id: String,
        /// Scores that were given.
        given: u64,
        /// Tokens that there are.
        tokens: u64,
    },
    /// A score that is no number: it has no place in an order.
    #[error("the score of token {token} of {id:?} is NaN; give a number, or an infinity")]
    NotANumber {
        /// The id.
        id: String,
        /// The first token with such a score.
        token: u64,
    },
    /// Extra bytes for a token that is not there.
    #[error(
        "extra bytes were given for token {token}; the tokens of this call are {start} to {end}"
    )]
    ExtraOutside {
        /// The token that they name.
        token: u64,
        /// The first token of the call.
        start: u64,
        /// The token after its last one.
        end: u64,
    },
    /// More extra bytes for one token than fit.
    #[error(
        "{bytes} extra bytes were given for token {token}, at most {EXTRA_BYTES_MAX} fit; hash them"
    )]
    ExtraTooLong {
        /// The token that they name.
        token: u64,
        /// How many there are.
        bytes: usize,
    },
    /// A shard whose rank or stage is not below their number.
    #[error(
        "tensor rank {} of {} and stage {} of {} are no shard; both count from 0",
        shard.tensor_rank, shard.tensor_ranks, shard.stage, shard.stages
    )]
    BadShard {
        /// The shard.
        shard: Shard,
    },
    /// The sequence got or lost tokens, or was freed, while it was being suspended.
    #[error("the sequence {id:?} changed while it was suspended, and goes on; suspend it again")]
    Changed {
        /// The id.
        id: String,
    },
    /// The cache did not change its size.
    #[error(transparent)]
    Resize(#[from] ResizeError),
}

impl From<TakeError> for CacheError {
    fn from(error: TakeError) -> Self {
        match error {
            TakeError::Full(full) => Self::Full(full),
            TakeError::Arena(error) => Self::Arena(error),
        }
    }
}
