//! Sessions: values that are written or read part by part.
//!
//! What must stay true: a session is used without the GIL, by any number of threads, and what a forked
//! child inherits of it is neither used nor dropped.

use crate::error::{Class, exception, forked, make};
use crate::fork::{Own, drop_detached};
use crate::raw::{Piece, piece};
use mooncrate::{Advice, Error, RangeInto};
use parking_lot::Mutex;
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
        held.lock().clone().ok_or_else(|| {
            let words = "the session is over; start another one";
            make(py, Class::Closed, words, Advice::GiveUp)
        })
    }

    fn take(&self) -> Option<Arc<T>> {
        self.0.get()?.lock().take()
    }
}

/// The pieces of a call at their places in the value.
fn placed(
    py: Python<'_>,
    starts: &[u64],
    addresses: &[usize],
    sizes: &[usize],
) -> PyResult<Vec<(u64, Piece)>> {
    if starts.len() != addresses.len() || starts.len() != sizes.len() {
        return Err(crate::error::invalid(py, "as many starts, addresses and sizes are needed"));
    }
    let all = starts.iter().zip(addresses.iter().zip(sizes));
    all.map(|(start, (address, size))| {
        let piece = piece(*address, *size).map_err(|words| crate::error::invalid(py, words))?;
        Ok((*start, piece))
    })
    .collect()
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
    fn write_at(
        &self,
        py: Python<'_>,
        starts: Vec<u64>,
        addresses: Vec<usize>,
        sizes: Vec<usize>,
    ) -> PyResult<usize> {
        let session = self.0.get(py)?;
        let parts = placed(py, &starts, &addresses, &sizes)?;
        let written = py.detach(|| -> Result<usize, Error> {
            let mut bytes = 0;
            for (start, piece) in parts {
                session.write(start, piece.bytes())?;
                bytes += piece.bytes().len();
            }
            Ok(bytes)
        });
        written.map_err(|error| exception(py, error))
    }

    /// Makes the value visible, after the writes that are on their way.
    fn end(&self, py: Python<'_>) -> PyResult<()> {
        let session = self.0.get(py)?;
        py.detach(|| session.end()).map_err(|error| exception(py, error))?;
        self.0.take();
        Ok(())
    }

    /// Gives up; whether it was open.
    fn revoke(&self, py: Python<'_>) -> PyResult<bool> {
        let session = self.0.get(py)?;
        let open = py.detach(|| session.revoke());
        self.0.take();
        Ok(open)
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

    /// Copies parts of the value to addresses; the bytes read.
    fn read_at(
        &self,
        py: Python<'_>,
        starts: Vec<u64>,
        addresses: Vec<usize>,
        sizes: Vec<usize>,
    ) -> PyResult<usize> {
        let session = self.0.get(py)?;
        let parts = placed(py, &starts, &addresses, &sizes)?;
        let read = py.detach(|| -> Result<usize, Error> {
            let mut ranges: Vec<RangeInto<'_>> = parts
                .iter()
                .map(|(start, piece)| RangeInto { start: *start, into: piece.bytes_mut() })
                .collect();
            session.read_ranges(&mut ranges)?.into_iter().sum()
        });
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
