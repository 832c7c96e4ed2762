//! Sessions: values that are written or read part by part.
//!
//! What must stay true: a session is used without the GIL, by any number of threads, and what a forked
//! child inherits of it is neither used nor dropped.
#![expect(clippy::needless_pass_by_value, reason = "arguments of Python arrive as values")]

use crate::buffer::{Source, Target};
use crate::error::{Class, exception, forked, make};
use crate::fork::{Own, drop_detached};
use crate::probe::Use;
use crate::raw::{Piece, Refused, piece};
use crate::wait::{waiting, waiting_locked};
use mooncrate::{Advice, Error, RangeInto};
use mooncrate_lock::{Mutex, interrupt};
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use std::sync::Arc;

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

/// The pieces of a call at their places in the value, looked at unless the caller knows them.
fn placed(
    py: Python<'_>,
    starts: &[u64],
    addresses: &[usize],
    sizes: &[usize],
    known: bool,
    wanted: Use,
) -> PyResult<Vec<(u64, Piece)>> {
    if starts.len() != addresses.len() || starts.len() != sizes.len() {
        return Err(crate::error::invalid(py, "as many starts, addresses and sizes are needed"));
    }
    let placed = py.detach(|| {
        let all = starts.iter().zip(addresses.iter().zip(sizes));
        all.map(|(start, (address, size))| {
            let piece = piece(*address, *size)?;
            if !known {
                piece.look_all(wanted)?;
            }
            Ok((*start, piece))
        })
        .collect::<Result<Vec<_>, _>>()
    });
    placed.map_err(|refused: Refused| refused.exception(py))
}

/// A value that is being written. Dropping it gives everything back.
#[pyclass(module = "mooncrate._native", frozen)]
pub(crate) struct PutSession(Shared<mooncrate::PutSession>);

impl PutSession {
    pub(crate) fn new(session: mooncrate::PutSession) -> Self {
        Self(Shared::new(session))
    }
}

#[pymethods]
impl PutSession {
    /// Writes parts that lie at addresses to their places in the value; the bytes written.
    #[pyo3(signature = (starts, addresses, sizes, *, known=false))]
    fn write_at(
        &self,
        py: Python<'_>,
        starts: Vec<u64>,
        addresses: Vec<usize>,
        sizes: Vec<usize>,
        known: bool,
    ) -> PyResult<usize> {
        let session = self.0.get(py)?;
        let parts = placed(py, &starts, &addresses, &sizes, known, Use::Read)?;
        let written = waiting_locked(py, || -> Result<usize, Error> {
            let mut bytes = 0;
            for (start, piece) in parts {
                session.write(start, piece.bytes())?;
                bytes += piece.bytes().len();
            }
            Ok(bytes)
        })?;
        written.map_err(|error| exception(py, error))
    }

    /// Writes a part to its place in the value. Parts come in any order, from any thread, each byte once.
    #[expect(clippy::needless_pass_by_value, reason = "arguments of Python arrive as values")]
    fn write(&self, py: Python<'_>, start: u64, part: Source) -> PyResult<()> {
        let session = self.0.get(py)?;
        let part = part.bytes();
        waiting_locked(py, || session.write(start, part))?.map_err(|error| exception(py, error))
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        slf.get().0.get(slf.py())?;
        Ok(slf)
    }

    /// Ends the session, or after an exception gives it up; neither where that was done already.
    #[pyo3(signature = (kind=None, _error=None, _trace=None, /))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: Option<&Bound<'_, PyAny>>,
        _error: Option<&Bound<'_, PyAny>>,
        _trace: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        if self.0.is_over() {
            return Ok(());
        }
        let Some(kind) = kind else { return self.end(py) };
        if kind.is(py.get_type::<PyKeyboardInterrupt>()) {
            return self.abandon(py);
        }
        self.revoke(py).map(drop)
    }

    /// Makes the value visible, after the writes that are on their way.
    fn end(&self, py: Python<'_>) -> PyResult<()> {
        let session = self.0.get(py)?;
        waiting_locked(py, || session.end())?.map_err(|error| exception(py, error))?;
        self.0.take();
        Ok(())
    }

    /// Gives up; whether it was open.
    fn revoke(&self, py: Python<'_>) -> PyResult<bool> {
        let session = self.0.get(py)?;
        let open = waiting_locked(py, || session.revoke())?;
        self.0.take();
        Ok(open)
    }
}

impl PutSession {
    /// Gives up after Ctrl-C: whoever pressed it does not wait for a master that does not answer.
    fn abandon(&self, py: Python<'_>) -> PyResult<()> {
        let session = self.0.get(py)?;
        py.detach(|| {
            interrupt::under(
                |_| true,
                || {
                    interrupt::ask();
                    session.revoke()
                },
            )
        });
        self.0.take();
        Ok(())
    }
}

impl Drop for PutSession {
    fn drop(&mut self) {
        if let Some(session) = self.0.take() {
            drop_detached(session);
        }
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

    /// Copies parts of the value to addresses; the bytes read.
    #[pyo3(signature = (starts, addresses, sizes, *, known=false))]
    fn read_at(
        &self,
        py: Python<'_>,
        starts: Vec<u64>,
        addresses: Vec<usize>,
        sizes: Vec<usize>,
        known: bool,
    ) -> PyResult<usize> {
        let session = self.0.get(py)?;
        let parts = placed(py, &starts, &addresses, &sizes, known, Use::Write)?;
        let read = waiting(py, || -> Result<usize, Error> {
            let mut ranges: Vec<RangeInto<'_>> = parts
                .iter()
                .map(|(start, piece)| RangeInto { start: *start, into: piece.bytes_mut() })
                .collect();
            session.read_ranges(&mut ranges)?.into_iter().sum()
        })?;
        read.map_err(|error| exception(py, error))
    }
}

impl Drop for GetSession {
    fn drop(&mut self) {
        if let Some(session) = self.0.take() {
            drop_detached(session);
        }
    }
}
