//! Why a call of an exchange failed, and what the caller does next.

use crate::barrier::Fault;
use crate::config::ConfigError;
use mooncrate_core::Advice;
use mooncrate_gpu::GpuError;
use mooncrate_heap::{GroupError, HeapError, Ranks};

/// Why a call of an exchange failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EpError {
    /// The configuration makes no exchange.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// There are no heaps.
    #[error(transparent)]
    Heap(#[from] HeapError),
    /// The ranks did not get together.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// The GPU refused something.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// Ranks were configured differently. Nothing was shared.
    #[error(
        "the configuration of {0} differs from that of rank 0; start all ranks with the same EpConfig and program"
    )]
    OtherShape(Ranks),
    /// Another communicator has this heap.
    #[error(
        "a communicator has used this heap before; a heap serves one: make another heap, or reset the \
         communicator that has it"
    )]
    InUse,
    /// The heap is in the wrong memory, of another world, or too short.
    #[error("{0}")]
    WrongHeap(String),
    /// Memory of the caller does not have the length or place that it must have. Nothing was sent.
    #[error("{0}")]
    Shape(String),
    /// Calls in another order than that of a layer. Nothing was sent.
    #[error(
        "{called} after {before}; a layer is dispatch, await_rows, pack, give_back, await_results, combine; where a \
         call failed in the middle of one, all ranks reset"
    )]
    Order {
        /// The call that was refused.
        called: &'static str,
        /// The call before it.
        before: &'static str,
    },
    /// A call on another stream than that of the layer's dispatch. Nothing was sent.
    #[error(
        "{called} on another stream than the dispatch of this layer; only one stream keeps their order: make all \
         calls of a layer on it"
    )]
    OtherStream {
        /// The call that was refused.
        called: &'static str,
    },
    /// A call in another recording than the layer's dispatch, or outside of it. Nothing was sent.
    #[error(
        "{called} in another recording than the dispatch of this layer, or outside of it; record whole layers. If \
         the recording failed, begin again with dispatch: nothing of it was done"
    )]
    OtherRecording {
        /// The call that was refused.
        called: &'static str,
    },
    /// The step failed, on all ranks.
    #[error("{0}")]
    Fault(Fault),
}

impl EpError {
    /// What the caller does next. A failed step is repeated after a reset of all ranks.
    pub fn advice(&self) -> Advice {
        match self {
            Self::Fault(_) => Advice::Retry { after_ms: 0 },
            _ => Advice::GiveUp,
        }
    }

    /// The failed step, if that is what it is.
    pub fn fault(&self) -> Option<&Fault> {
        match self {
            Self::Fault(fault) => Some(fault),
            _ => None,
        }
    }
}
