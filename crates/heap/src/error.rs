//! Why a group or a heap failed, in words that name ranks.

use crate::rank::{Rank, Ranks};
use mooncrate_gpu::GpuError;
use std::fmt;
use std::io;
use std::time::Duration;

/// What ended a group. All ranks that are left learn the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What happened.
    pub kind: FailureKind,
    /// Whose fault it is.
    pub ranks: Ranks,
    /// During which call.
    pub doing: String,
}

/// The ways in which a group ends before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FailureKind {
    /// The ranks did not come in time.
    Late = 0,
    /// Their processes ended, or left.
    Lost = 1,
    /// They made another call than the others.
    Differs = 2,
    /// They have another idea of how many ranks there are.
    OtherWorld = 3,
    /// They have another layout, or another program.
    OtherLayout = 4,
    /// Two processes say that they are this rank.
    Taken = 5,
}

impl FailureKind {
    const ALL: [Self; 6] =
        [Self::Late, Self::Lost, Self::Differs, Self::OtherWorld, Self::OtherLayout, Self::Taken];
}

impl Failure {
    pub(crate) fn new(kind: FailureKind, ranks: Ranks, doing: &str) -> Self {
        Self { kind, ranks, doing: doing.to_owned() }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![self.kind as u8, self.ranks.bits()];
        bytes.extend_from_slice(self.doing.as_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (&[kind, ranks], doing) = bytes.split_first_chunk()?;
        let kind = *FailureKind::ALL.get(usize::from(kind))?;
        let doing = std::str::from_utf8(doing).ok()?.to_owned();
        Some(Self { kind, ranks: Ranks::from_bits(ranks), doing })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, ranks, doing } = self;
        match kind {
            FailureKind::Late => write!(f, "{doing}: {ranks} did not come in time"),
            FailureKind::Lost => write!(f, "{doing}: {ranks} ended or left"),
            FailureKind::Differs => write!(
                f,
                "{doing}: {ranks} made another call; all ranks make the same calls in the same order"
            ),
            FailureKind::OtherWorld => {
                write!(f, "{doing}: {ranks} and rank 0 disagree about the number of ranks")
            }
            FailureKind::OtherLayout => write!(
                f,
                "{doing}: {ranks} and rank 0 disagree about the layout; start all ranks from the same \
                 program and configuration"
            ),
            FailureKind::Taken => write!(f, "{doing}: two processes say that they are {ranks}"),
        }
    }
}

/// Why a call of a group failed. The group is over.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// The group failed, now or in an earlier call.
    #[error("{0}")]
    Failed(Failure),
    /// A rank that the group does not have, or a world that cannot be.
    #[error("rank {rank} of a world of {world}; a world has 1 to {max} ranks, counted from 0", max = crate::RANKS_MAX)]
    BadRank {
        /// What was asked for.
        rank: usize,
        /// Of how many.
        world: usize,
    },
    /// More than one message carries.
    #[error("{bytes} bytes to share; {max} are the most", max = crate::frame::BODY_MAX)]
    TooLong {
        /// How many.
        bytes: usize,
    },
    /// The place where the ranks meet cannot be used.
    #[error("the ranks cannot meet at {path}: {error}")]
    Meet {
        /// Where.
        path: String,
        /// Why not.
        error: io::Error,
    },
    /// The hub did not answer in time: it was not started, or it meets its ranks elsewhere.
    #[error(
        "rank 0 did not answer at {path} within {within:?}; is it started, with the same path?"
    )]
    NoHub {
        /// Where it was looked for.
        path: String,
        /// For how long.
        within: Duration,
    },
}

/// Why there is no heap.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HeapError {
    /// The ranks did not get together.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// The GPU refused.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// The system gave no memory.
    #[error("no memory for a heap of {bytes} bytes: {error}")]
    Memory {
        /// Bytes asked for.
        bytes: u64,
        /// What the system said.
        error: io::Error,
    },
    /// Another rank could not do its part.
    #[error("{rank}: {text}")]
    Peer {
        /// Which.
        rank: Rank,
        /// What it said.
        text: String,
    },
    /// A heap without bytes, or ranks that were asked for heaps of different lengths.
    #[error(
        "a heap of {ours} bytes here and of {theirs} bytes at {rank}; all have the same, at least one"
    )]
    Uneven {
        /// Which rank has another length.
        rank: Rank,
        /// Its length.
        theirs: u64,
        /// Ours.
        ours: u64,
    },
}
