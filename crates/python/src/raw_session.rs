//! Sessions: values that are written or read part by part.
//!
//! What must stay true: a session is used without the GIL, by any number of threads, and what a forked
//! child inherits of it is neither used nor dropped.

use crate::buffer::{Source, Target};
use crate::error::{Class, exception, forked, make};
use crate::fork::{Own, drop_detached};
use crate::wait::{in_deallocator, waiting, waiting_locked};
use mooncrate::{Advice, Error};
use mooncrate_lock::{Mutex, interrupt};
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::PyType;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Something that can be shared by calls and is gone after the end.
struct Shared<T>(Own<Mutex<Option<Arc<T>>>>);

impl<T: Send + Sync> Shared<T> {
    fn new(value: T) -> Self {
        Self(Own::new(Mutex::new(Some(Arc::new(value)))))
    }

    fn get(&self, py: Python<'_>) -> PyResult<Arc<T>> {
        let held = self.0.get().ok_or_else(|| forked(py))?;
        // Apart from each other, as in `Store::live`.
        let value = held.lock().clone();
        value.ok_or_else(|| {
            let words = "the session is over; start another one";
            make(py, Class::Closed, words, Advice::GiveUp)
        })
    }

    fn is_over(&self) -> bool {
        self.0.get().is_some_and(|held| held.lock().is_none())
    }

    fn take(&self) -> Option<Arc<T>> {
        self.0.get()?.lock().take()
    }
}

/// A value that is being written. Dropping it gives everything back.
#[pyclass(module = "mooncrate._native", frozen)]
pub(crate) struct PutSession {
    session: Shared<mooncrate::PutSession>,
    /// A call of it was interrupted: whoever did that does not wait when it is dropped either.
    interrupted: AtomicBool,
}

impl PutSession {
    pub(crate) fn new(session: mooncrate::PutSession) -> Self {
        Self { session: Shared::new(session), interrupted: AtomicBool::new(false) }
    }

    /// Does something with the session that may wait for a peer.
    fn waiting<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mooncrate::PutSession) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        let session = self.session.get(py)?;
        let done = waiting_locked(py, || work(&session)).inspect_err(|_| {
            // Relaxed: a hint, for whoever drops it after us.
            self.interrupted.store(true, Ordering::Relaxed);
        });
        done?.map_err(|error| exception(py, error))
    }
}

#[pymethods]
impl PutSession {
    /// Writes a part to its place in the value. Parts come in any order, from any thread, each byte once.
    #[expect(clippy::needless_pass_by_value, reason = "arguments of Python arrive as values")]
    fn write(&self, py: Python<'_>, start: u64, part: Source) -> PyResult<()> {
        let part = part.bytes();
        self.waiting(py, |session| session.write(start, part))
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        slf.get().session.get(slf.py())?;
        Ok(slf)
    }

    /// Ends the session, or after an exception gives it up; neither where that was done already. After one that
    /// ends a program (`KeyboardInterrupt`, `SystemExit`) it does not wait for a master that does not answer.
    #[pyo3(signature = (kind=None, _error=None, _trace=None, /))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: Option<&Bound<'_, PyType>>,
        _error: Option<&Bound<'_, PyAny>>,
        _trace: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        if self.session.is_over() {
            return Ok(());
        }
        let Some(kind) = kind else { return self.end(py) };
        if !kind.is_subclass_of::<PyException>()? {
            let session = self.session.get(py)?;
            py.detach(|| abandon(&session));
            self.session.take();
            return Ok(());
        }
        self.revoke(py).map(drop)
    }

    /// Makes the value visible, after the writes that are on their way.
    fn end(&self, py: Python<'_>) -> PyResult<()> {
        self.waiting(py, mooncrate::PutSession::end)?;
        self.session.take();
        Ok(())
    }

    /// Gives up; whether it was open.
    fn revoke(&self, py: Python<'_>) -> PyResult<bool> {
        let open = self.waiting(py, |session| Ok(session.revoke()))?;
        self.session.take();
        Ok(open)
    }
}

/// Gives up after Ctrl-C: whoever pressed it does not wait for a master that does not answer.
fn abandon(session: &mooncrate::PutSession) {
    let revoke = || {
        interrupt::ask();
        session.revoke();
    };
    interrupt::under(|_| true, revoke);
}

impl Drop for PutSession {
    fn drop(&mut self) {
        let Some(session) = self.session.take() else { return };
        let interrupted = self.interrupted.load(Ordering::Relaxed);
        // Without an interpreter that takes us there is no GIL to give back either.
        Python::try_attach(|py| {
            in_deallocator(py, || {
                if interrupted {
                    abandon(&session);
                }
                drop(session);
            });
        });
    }
}

/// A value that is held while it is read.
#[pyclass(module = "mooncrate._native", frozen)]
pub(crate) struct GetSession(Shared<mooncrate::GetSession>);

impl GetSession {
    pub(crate) fn new(session: mooncrate::GetSession) -> Self {
        Self(Shared::new(session))
    }
}

#[pymethods]
impl GetSession {
    /// Bytes of the value.
    #[getter]
    fn nbytes(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.0.get(py)?.value_len())
    }

    /// Seconds that are left of the lease; reading in its second half renews it.
    #[getter]
    fn lease_left(&self, py: Python<'_>) -> PyResult<f64> {
        Ok(self.0.get(py)?.lease_left().as_secs_f64())
    }

    /// Copies the part of the value that starts at `start` into all of a writable buffer, verified.
    fn read_into(&self, py: Python<'_>, start: u64, target: Target) -> PyResult<usize> {
        let session = self.0.get(py)?;
        let mut target = target;
        let into = target.bytes();
        waiting(py, || session.read(start, into))?.map_err(|error| exception(py, error))
    }

    /// Lets go of the value; its lease is renewed no more. More than once is fine.
    fn close(&self, py: Python<'_>) {
        let session = self.0.take();
        py.detach(|| drop(session));
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        slf.get().0.get(slf.py())?;
        Ok(slf)
    }

    #[pyo3(signature = (*_why))]
    fn __exit__(&self, py: Python<'_>, _why: &Bound<'_, PyAny>) {
        self.close(py);
    }
}

impl Drop for GetSession {
    fn drop(&mut self) {
        if let Some(session) = self.0.take() {
            drop_detached(session);
        }
    }
}
