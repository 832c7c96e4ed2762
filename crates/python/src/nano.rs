//! `NanoRank`: one rank of the GPU-resident cache, and how its calls leave Python.
//!
//! What must stay true: the lock around the rank is waited for without the GIL only. A call holds it for
//! reading, so `close` waits for the calls that are under way.

use crate::fork::{Own, drop_detached};
use crate::nano_error::{closed, exception, forked, join_exception};
use crate::wait::{waiting, waiting_locked};
use mooncrate::nano::NanoOptions;
use mooncrate_heap::GroupError;
use mooncrate_lock::{RwLock, interrupt};
use mooncrate_nano::{Nano, NanoError};
use pyo3::prelude::*;

/// A rank of a cache in the memory of GPUs.
#[pyclass(module = "mooncrate.nano", frozen, weakref)]
pub(crate) struct NanoRank {
    /// `None` after `close`. The guard stands outside of the lock: in a forked child nobody may ever
    /// open it.
    held: Own<RwLock<Option<mooncrate::nano::NanoRank>>>,
}

impl NanoRank {
    /// Waits for the other ranks.
    pub(crate) fn join(py: Python<'_>, options: &NanoOptions) -> PyResult<Self> {
        let joined = waiting(py, || mooncrate::nano::NanoRank::join(options))?;
        let rank = joined.map_err(|error| join_exception(py, error))?;
        Ok(Self { held: Own::new(RwLock::new(Some(rank))) })
    }

    /// Does something with the rank, without the GIL.
    pub(crate) fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mooncrate::nano::NanoRank) -> T + Send,
    ) -> PyResult<T> {
        let held = self.held.get().ok_or_else(|| forked(py))?;
        let done = waiting_locked(py, || {
            let _held = interrupt::hold();
            held.read().as_ref().map(work)
        })?;
        done.ok_or_else(|| closed(py))
    }

    /// The same for a call of the cache.
    pub(crate) fn call<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&Nano) -> Result<T, NanoError> + Send,
    ) -> PyResult<T> {
        self.with(py, |rank| work(rank.nano()))?.map_err(|error| exception(py, error))
    }

    /// Leaves: `together` waits for the others to do the same, otherwise they see that this rank is gone.
    pub(crate) fn shut(&self, py: Python<'_>, together: bool) -> PyResult<()> {
        let held = self.held.get().ok_or_else(|| forked(py))?;
        let left = waiting(py, || {
            let Some(rank) = held.write().take() else { return Ok(()) };
            if together {
                // Others may still use values in this rank's heap; leaving takes them away.
                rank.barrier("close")?;
                rank.leave()?;
            }
            Ok::<_, GroupError>(())
        })?;
        left.map_err(|error| join_exception(py, error.into()))
    }

    /// Whether it has left, or belongs to another process.
    pub(crate) fn is_closed(&self, py: Python<'_>) -> bool {
        self.held.get().is_none_or(|held| py.detach(|| held.read().is_none()))
    }
}

impl Drop for NanoRank {
    fn drop(&mut self) {
        if let Some(rank) = self.held.take() {
            drop_detached(rank);
        }
    }
}
