//! Why a call of the cache failed, and what the caller does next.

use crate::kernels::KernelError;
use mooncrate_core::error::{GetError, MountError, PutError, RemoveError};
use mooncrate_core::word::WordError;
use mooncrate_core::{Advice, Medium};
use mooncrate_gpu::GpuError;
use mooncrate_heap::{HeapError, Rank};
use mooncrate_mem::region::OutOfBounds;
use mooncrate_wire::CallError;

/// Why a call of the cache failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NanoError {
    /// There is no heap.
    #[error(transparent)]
    Heap(#[from] HeapError),
    /// GPUs that cannot compare and swap in each other's memory.
    #[error(
        "the GPU of this rank has no native atomics in the memory of the GPU of {0}: readers and owners could not \
         agree on a word; use GPUs that are joined by NVLink"
    )]
    NoAtomics(Rank),
    /// The GPU, or a launch on it, failed.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// A kernel was not launched.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// A kernel came to nothing: others kept changing the word, or it never ran.
    #[error("a step on a header came to nothing; try again")]
    Unsettled,
    /// The master on rank 0 did not answer.
    #[error("the master on rank 0 did not answer: {0}")]
    Call(#[from] CallError),
    /// The master refused this rank's segment.
    #[error("the master refused this rank: {0}")]
    Mount(#[from] MountError),
    /// A put was refused.
    #[error(transparent)]
    Put(#[from] PutError),
    /// A get was refused.
    #[error(transparent)]
    Get(#[from] GetError),
    /// A remove was refused.
    #[error(transparent)]
    Remove(#[from] RemoveError),
    /// Pages that kernels cannot move.
    #[error(
        "pages of {page_bytes} bytes; a page is a multiple of 16 bytes, at most 64 MiB, and 256 KiB is a \
         good one"
    )]
    BadPage {
        /// Asked for.
        page_bytes: u32,
    },
    /// Heaps without room for headers and a byte.
    #[error("heaps of {bytes} bytes have no room for {slots} headers of 128 bytes and a value")]
    BadHeap {
        /// Bytes of a heap.
        bytes: u64,
        /// Headers.
        slots: u32,
    },
    /// There is no such rank.
    #[error("{wanted} is no rank of a world of {world}; ranks are counted from 0")]
    BadRank {
        /// Asked for.
        wanted: usize,
        /// How many there are.
        world: usize,
    },
    /// No share of a heap.
    #[error("a ratio of {ratio}; give one from 0.0, nothing in use, to 1.0")]
    BadRatio {
        /// Asked for.
        ratio: f64,
    },
    /// What could be evicted was not enough.
    #[error(
        "the heap of {rank} has {used_bytes} bytes in use and {ending_bytes} that wait for their readers, \
         {used_max} were wanted; what is left is pinned or being written, try again"
    )]
    InUse {
        /// Whose heap.
        rank: Rank,
        /// In use.
        used_bytes: u64,
        /// Evicted, and not free yet.
        ending_bytes: u64,
        /// Wanted.
        used_max: u64,
    },
    /// This process has no plan for that key, or has committed it.
    #[error("no plan of this process is open for that key; open_for_write makes one")]
    NoPlan,
    /// The plan is dead: its put took longer than the put timeout, or was given up.
    #[error(
        "the plan is dead: its put was given up or took longer than the put timeout; start it again"
    )]
    Gone,
    /// The value is being written.
    #[error("the value is being written; try again")]
    NotReady,
    /// What was queued before it on the caller's stream did not end in time, or Ctrl-C ended the wait.
    #[error(
        "what was queued before on the stream did not end in time, or the wait was interrupted; wait for the stream, or join \
         with a longer timeout"
    )]
    Late,
    /// This rank holds as many pins on the object as it may.
    #[error("{0} holds 7 pins on this object, the most; unpin one first")]
    TooManyPins(Rank),
    /// The caller's memory does not have the length of the value.
    #[error("the value has {value} bytes, the memory given {given}")]
    WrongLength {
        /// Bytes of the value.
        value: u64,
        /// Bytes given.
        given: u64,
    },
    /// The bytes do not add up to what was sealed: they are not handed out.
    #[error("the value is damaged; it was not handed out")]
    Damaged,
    /// Memory of one kind where the cache has the other.
    #[error("the cache holds its values in {cache}; give it memory of that kind", cache = .0.name())]
    OtherMemory(Medium),
    /// A range outside of a heap: our own mistake, or a plan that was tampered with.
    #[error(transparent)]
    Outside(#[from] OutOfBounds),
    /// The system refused a thread.
    #[error("a thread could not be started: {0}")]
    Thread(std::io::Error),
}

impl NanoError {
    /// What the caller does next.
    pub fn advice(&self) -> Advice {
        match self {
            Self::Put(error) => error.advice(),
            Self::Get(error) => error.advice(),
            Self::Remove(error) => error.advice(),
            Self::NotReady
            | Self::Unsettled
            | Self::Late
            | Self::TooManyPins(_)
            | Self::InUse { .. } => Advice::Retry { after_ms: 1 },
            _ => Advice::GiveUp,
        }
    }

    /// What a refused pin of that rank means.
    pub(crate) fn of_pin(refused: WordError, rank: Rank) -> Self {
        use mooncrate_core::ReplicaState::{Reserved, Writing};
        match refused {
            WordError::Pinned { .. } => Self::TooManyPins(rank),
            WordError::Stale { wanted, found }
                if found.generation() == wanted && matches!(found.state(), Reserved | Writing) =>
            {
                Self::NotReady
            }
            WordError::Stale { .. } => Self::Gone,
        }
    }
}
