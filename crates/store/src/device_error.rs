//! Why a value did not move between a GPU and the store.

use mooncrate_core::error::Advice;
use mooncrate_gpu::GpuError;
use std::time::Duration;

/// What went wrong on the way between the memory of a GPU and the store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// The driver, the GPU, or what it was asked for.
    #[error("gpu: {0}")]
    Gpu(#[from] GpuError),
    /// The caller's stream did not come to its end.
    #[error(
        "the work that was queued on the stream before this call did not end within {} ms; nothing was \
         stored. Wait for the stream first, or give the store a longer timeout",
        waited.as_millis()
    )]
    Late {
        /// How long it was waited for.
        waited: Duration,
    },
    /// All pinned rooms are in use.
    #[error(
        "no pinned room of {bytes} bytes was free in time, of {most} bytes in all: copies of earlier \
         calls still wait for their streams; try again, or have fewer calls under way"
    )]
    NoRoom {
        /// What was wanted.
        bytes: usize,
        /// Bytes of all rooms.
        most: usize,
    },
}

impl DeviceError {
    /// What the caller does next.
    pub const fn advice(&self) -> Advice {
        match self {
            Self::Gpu(_) => Advice::GiveUp,
            Self::Late { .. } | Self::NoRoom { .. } => Advice::Retry { after_ms: 10 },
        }
    }
}
