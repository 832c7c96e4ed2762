//! `EpRank`: one rank of the expert exchange, and how its calls leave Python.
//!
//! ```text
//!   dispatch(x, ids, weights) ─► x to the experts' ranks, wait, pack ─► rows, counts     memory of the rank
//!   combine(y)                ─► y to the tokens' ranks, wait, sum   ─► out
//!   on the host all of it happens in the call; on a GPU it is queued on the caller's stream
//! ```
//!
//! What must stay true: the lock around the rank is waited for without the GIL only. On a GPU a call neither
//! allocates nor waits, and the memory of the rank stays where it is, so that calls can be recorded into a graph.
//! The context that was current to the caller's thread is current again when a call returns: torch shares the
//! thread.

use crate::ep_error::{closed, exception, forked};
use crate::ep_room::Rooms;
use crate::fork::{Own, drop_detached};
use crate::wait::{waiting, waiting_locked};
use mooncrate_ep::{CudaEp, Ep, EpConfig, EpError, Replays, Shape, Tuning};
use mooncrate_gpu::{Gpu, Stream};
use mooncrate_heap::{Group, GroupSpec, Layout, Part, Ranks};
use mooncrate_lock::{Mutex, interrupt};
use pyo3::prelude::*;
use std::path::PathBuf;
use std::time::Duration;

/// How long a rank may take from the end of its longest wait to a reset that others are in already.
const COMING: Duration = Duration::from_secs(10);

/// How a rank joins.
pub(crate) struct Joining {
    pub(crate) path: PathBuf,
    pub(crate) rank: usize,
    /// The number of the GPU; `None`: host memory.
    pub(crate) device: Option<u32>,
    pub(crate) config: EpConfig,
    /// Elements between the products of the experts; `None`: there is no memory for experts here.
    pub(crate) inter: Option<u32>,
    /// Blocks of the kernels that go over the rows of all ranks; `None`: what was measured to be good.
    pub(crate) blocks: Option<u32>,
    pub(crate) within: Duration,
}

impl Joining {
    /// What all ranks must agree on beside the shape, which the exchange compares itself.
    fn agreement(&self) -> u64 {
        let part = |name, bytes| Part { name, bytes, align: 1 };
        let parts = [part("exchange", 1), part("backend", 1 + u64::from(self.device.is_some()))];
        Layout::new(parts).map_or(0, |layout| layout.hash())
    }

    fn join(&self) -> Result<Live, EpError> {
        let Self { path, rank, config, inter, within, .. } = self;
        let shape = config.shape()?;
        // First the driver: who has no GPU does not keep the others waiting for longer than it must.
        let gpu = self.device.map(Gpu::shared).transpose()?;
        let (path, layout) = (path.clone(), self.agreement());
        let (rank, world, within) = (*rank, config.world, *within);
        let mut group = Group::join(&GroupSpec { path, rank, world, layout, within })?;
        let side = match gpu {
            None => Side::Host(Box::new(Ep::host(&mut group, config, within)?)),
            Some(gpu) => {
                let mut ep = CudaEp::join(&mut group, &gpu, config, within)?;
                if let Some(blocks) = self.blocks {
                    ep.tune(Tuning { blocks, ..ep.tuning() })?;
                }
                let own = Stream::new(&gpu)?;
                Side::Cuda(Box::new(OnGpu { ep, under_way: None, shown: [None; 2], own, gpu }))
            }
        };
        let rooms = Rooms::new(&shape, *inter, side.gpu())?;
        let longest = config.first_timeout.max(config.timeout);
        let reset_within = within.max(longest.saturating_add(COMING));
        Ok(Live { side, rooms, group, within, reset_within, shape, tokens: 0 })
    }
}

/// A rank at work. What it is made of goes before the group, which the others see.
pub(crate) struct Live {
    pub(crate) side: Side,
    pub(crate) rooms: Rooms,
    group: Group,
    within: Duration,
    /// Others may come to a reset when a wait of theirs has ended, so this is longer than any of them.
    reset_within: Duration,
    pub(crate) shape: Shape,
    /// Tokens of the last dispatch, or as many as fit if only the GPU knows.
    pub(crate) tokens: u32,
}

pub(crate) enum Side {
    Host(Box<Ep>),
    Cuda(Box<OnGpu>),
}

pub(crate) struct OnGpu {
    pub(crate) ep: CudaEp,
    /// The layer whose dispatch was queued and whose combine was not; copies to the rooms of its batch wait for it.
    pub(crate) under_way: Option<UnderWay>,
    /// The last layer that was queued, and the last one that was recorded, if its result is in the room of this rank: the
    /// caller reads it there.
    pub(crate) shown: [Option<UnderWay>; 2],
    /// For what is not done in the caller's stream.
    pub(crate) own: Stream,
    pub(crate) gpu: Gpu,
}

/// A layer that was begun.
#[derive(Clone, Copy)]
pub(crate) struct UnderWay {
    /// The stream of its dispatch, which lives until the next layer begins: one that is queued if this one was, and one of
    /// the same recording if this one was recorded.
    pub(crate) stream: u64,
    /// The recording that its dispatch is part of.
    pub(crate) recording: Option<u64>,
}

impl Side {
    pub(crate) fn gpu(&self) -> Option<&Gpu> {
        match self {
            Self::Host(_) => None,
            Self::Cuda(cuda) => Some(&cuda.gpu),
        }
    }

    /// Why this rank has failed, if it has; of a GPU, what it has told so far.
    pub(crate) fn status(&self) -> Result<(), EpError> {
        match self {
            Self::Host(ep) => ep.status(),
            Self::Cuda(cuda) => cuda.ep.status(),
        }
    }
}

impl Live {
    /// Waits until what was queued on streams has ended, and tells whether the rank has failed.
    pub(crate) fn finish(&self, streams: &[u64]) -> Result<(), EpError> {
        match &self.side {
            Side::Host(ep) => ep.status(),
            Side::Cuda(cuda) => {
                let mut ended = Ok(());
                for handle in streams {
                    // SAFETY: the caller of Python keeps the streams that it names until the call is over, and
                    // that of a layer until the next one.
                    let stream = unsafe { Stream::of_others(&cuda.gpu, *handle) };
                    stream.not_recording("wait for a stream")?;
                    // Also after a failure: what is queued behind it has ended when this returns.
                    ended = ended.and(cuda.ep.finish(&stream));
                }
                ended
            }
        }
    }

    /// Ranks whose processes have ended; waits for them end.
    pub(crate) fn notice(&self) -> Ranks {
        match &self.side {
            Side::Host(_) => self.group.watch().gone(),
            Side::Cuda(cuda) => cuda.ep.notice(),
        }
    }

    /// All ranks begin again. With `replays` all graphs that hold layers have ended, or are on that stream.
    pub(crate) fn reset(&mut self, replays: Option<u64>) -> Result<(), EpError> {
        let Self { side, group, reset_within: within, .. } = self;
        match side {
            Side::Host(ep) => ep.reset(group, *within),
            Side::Cuda(cuda) => {
                let plain = cuda.under_way.as_ref().filter(|layer| layer.recording.is_none());
                let handles = replays.into_iter().chain(plain.map(|layer| layer.stream));
                // SAFETY: the caller keeps the stream that it names until the call is over, and that of a layer until
                // the next one begins.
                let of = |handle| unsafe { Stream::of_others(&cuda.gpu, handle) };
                let streams: Vec<Stream> = handles.map(of).collect();
                let streams: Vec<&Stream> = streams.iter().collect();
                let replays = if replays.is_some() { Replays::Named } else { Replays::Anywhere };
                cuda.ep.reset(group, &streams, replays, *within)?;
                (cuda.under_way, cuda.shown) = (None, [None; 2]);
                Ok(())
            }
        }
    }

    /// How often the group was reset.
    pub(crate) fn epoch(&self) -> Result<u64, EpError> {
        match &self.side {
            Side::Host(ep) => Ok(ep.epoch()),
            Side::Cuda(cuda) => cuda.ep.epoch(&cuda.own),
        }
    }

    /// Leaves with the others. They are told first, so that whoever waits for this rank comes, too; nobody gives
    /// a heap back that another one may still store to. What is queued is done before; a failure of it that no call has
    /// raised is raised here.
    fn leave(self) -> Result<(), EpError> {
        let Self { side, rooms, mut group, within, .. } = self;
        let closed = match side {
            Side::Host(ep) => ep.close(&mut group, within),
            Side::Cuda(cuda) => cuda.ep.close(&mut group, within),
        };
        let left = group.leave(within);
        // Kernels read and wrote them until now.
        drop(rooms);
        closed?;
        Ok(left?)
    }
}

/// A rank of an exchange of tokens.
#[pyclass(module = "mooncrate.ep", frozen, weakref)]
pub(crate) struct EpRank {
    /// `None` after `close`. The guard stands outside of the lock: in a forked child nobody may ever
    /// open it.
    held: Own<Mutex<Option<Live>>>,
}

impl EpRank {
    /// Waits for the other ranks.
    pub(crate) fn join(py: Python<'_>, joining: &Joining) -> PyResult<Self> {
        let joined = waiting(py, || joining.join())?;
        let live = joined.map_err(|error| exception(py, error))?;
        Ok(Self { held: Own::new(Mutex::new(Some(live))) })
    }

    /// Does something with the rank, without the GIL.
    pub(crate) fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Live) -> Result<T, EpError> + Send,
    ) -> PyResult<T> {
        let held = self.held.get().ok_or_else(|| forked(py))?;
        let done = waiting_locked(py, || {
            let _held = interrupt::hold();
            held.lock().as_mut().map(work)
        })?;
        done.ok_or_else(|| closed(py))?.map_err(|error| exception(py, error))
    }

    /// Leaves: `together` waits for the others to do the same, otherwise they see that this rank is gone.
    pub(crate) fn shut(&self, py: Python<'_>, together: bool) -> PyResult<()> {
        let held = self.held.get().ok_or_else(|| forked(py))?;
        let left = waiting(py, || {
            let Some(live) = held.lock().take() else { return Ok(()) };
            if together { live.leave() } else { Ok(()) }
        })?;
        left.map_err(|error| exception(py, error))
    }

    /// Whether it has left, or belongs to another process. It waits for nobody: what another thread is using has
    /// not left.
    pub(crate) fn is_closed(&self) -> bool {
        let Some(held) = self.held.get() else { return true };
        held.try_lock().is_some_and(|live| live.is_none())
    }
}

impl Drop for EpRank {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            drop_detached(held);
        }
    }
}
