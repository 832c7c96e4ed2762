//! `Store`: what stands behind the class, and how its calls leave Python.

use crate::error::{closed, exception, forked};
use crate::fork::{Own, drop_detached};
use crate::options::Opening;
use crate::wait::waiting;
use mooncrate::{Error, Running};
use mooncrate_lock::Mutex;
use pyo3::prelude::*;
use std::sync::Arc;

/// An open store, shared by the calls and views that are under way. The last one closes it.
#[derive(Clone)]
pub(crate) struct Live(Arc<Parts>);

struct Parts {
    store: mooncrate::Store,
    /// What lends memory to the cluster; it says farewell when it is dropped.
    _node: Option<Running>,
}

impl Live {
    pub(crate) fn store(&self) -> &mooncrate::Store {
        &self.0.store
    }
}

/// A store of KV cache: in this process, or in a cluster.
#[pyclass(module = "mooncrate", frozen, subclass, weakref)]
pub(crate) struct Store {
    /// `None` after `close`. The guard stands outside of the lock: in a forked child nobody may ever
    /// open it.
    held: Own<Mutex<Option<Live>>>,
}

impl Store {
    pub(crate) fn open(py: Python<'_>, opening: Opening) -> PyResult<Self> {
        let (store, node) = opening.open(py)?;
        let live = Live(Arc::new(Parts { store, _node: node }));
        Ok(Self { held: Own::new(Mutex::new(Some(live))) })
    }

    pub(crate) fn live(&self, py: Python<'_>) -> PyResult<Live> {
        let held = self.held.get().ok_or_else(|| forked(py))?;
        // In a statement of its own: making the exception runs Python, which may pass the GIL on to
        // somebody who waits for this lock.
        let live = held.lock().clone();
        live.ok_or_else(|| closed(py))
    }

    /// Does something with the store, without the GIL. Whatever was closed meanwhile also ends there. An error
    /// if a signal handler ended it by raising one.
    pub(crate) fn detached<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&Live) -> T + Send,
    ) -> PyResult<T> {
        let live = self.live(py)?;
        waiting(py, move || {
            let live = live;
            work(&live)
        })
    }

    /// The same for a call that can fail.
    pub(crate) fn call<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mooncrate::Store) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        self.detached(py, |live| work(live.store()))?.map_err(|error| exception(py, error))
    }

    /// Whether it was closed, or belongs to another process.
    pub(crate) fn is_closed(&self) -> bool {
        self.held.get().is_none_or(|held| held.lock().is_none())
    }

    /// What it is, in words.
    pub(crate) fn words(&self) -> &'static str {
        let Some(held) = self.held.get() else { return "of another process" };
        match &*held.lock() {
            None => "closed",
            Some(live) if live.store().master().is_some() => "embedded",
            Some(_) => "connected",
        }
    }

    pub(crate) fn shut(&self, py: Python<'_>) -> PyResult<()> {
        let held = self.held.get().ok_or_else(|| forked(py))?;
        let live = held.lock().take();
        py.detach(|| drop(live));
        Ok(())
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if let Some(live) = self.held.get().and_then(|held| held.lock().take()) {
            drop_detached(live);
        }
    }
}
