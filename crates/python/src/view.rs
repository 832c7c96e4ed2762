//! `View`: a value in place, as a read-only buffer.
//!
//! ```text
//!   store.view(key) ──► View ──► memoryview, numpy.frombuffer, torch.frombuffer …   (exports)
//!                        │ release(), or nobody holds it
//!                        ▼
//!                  the pin ends when the last export is gone
//! ```
//!
//! What must stay true: the bytes that Python can reach stay pinned, so they never change under it, and
//! the client that holds the pin lives as long as the pin: an owner takes back pins of clients that went.

use crate::error::{forked, make};
use crate::fork::{Own, drop_detached};
use crate::store::Live;
use mooncrate::Advice;
use parking_lot::Mutex;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_int;

/// The bytes of a value, read-only, pinned until this is released and everything that shows them is gone.
#[pyclass(module = "mooncrate", frozen, weakref)]
pub(crate) struct View {
    held: Own<Mutex<Held>>,
    /// Whether they are where their owner keeps them.
    in_place: bool,
}

struct Held {
    pin: Option<Pin>,
    /// Buffers that were given out and not yet given back.
    exports: usize,
    /// Nothing new is given out; the pin ends with the last export.
    released: bool,
}

/// Dropped in this order: the pin goes while its client is there.
struct Pin {
    bytes: mooncrate::View,
    _live: Live,
}

impl Held {
    /// The pin, if nobody needs it any more.
    fn over(&mut self) -> Option<Pin> {
        if self.released && self.exports == 0 { self.pin.take() } else { None }
    }

    fn bytes(&self) -> Option<&[u8]> {
        self.pin.as_ref().filter(|_| !self.released).map(|pin| &*pin.bytes)
    }
}

impl View {
    pub(crate) fn new(bytes: mooncrate::View, live: Live) -> Self {
        let in_place = bytes.is_in_place();
        let held = Held { pin: Some(Pin { bytes, _live: live }), exports: 0, released: false };
        Self { held: Own::new(Mutex::new(held)), in_place }
    }

    fn held(&self, py: Python<'_>) -> PyResult<&Mutex<Held>> {
        self.held.get().ok_or_else(|| forked(py))
    }
}

fn released(py: Python<'_>) -> PyErr {
    let words = "the view was released; ask the store for another one";
    make(py, crate::error::Class::Closed, words, Advice::GiveUp)
}

impl Drop for View {
    fn drop(&mut self) {
        // Every export holds a reference to this object, so there is none left.
        if let Some(pin) = self.held.get().and_then(|held| held.lock().pin.take()) {
            drop_detached(pin);
        }
    }
}

#[pymethods]
impl View {
    /// Gives nothing out any more; the pin ends with the last array that shows the bytes.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        let mut held = self.held(py)?.lock();
        held.released = true;
        let pin = held.over();
        drop(held);
        py.detach(|| drop(pin));
        Ok(())
    }

    /// Bytes of the value.
    #[getter]
    fn nbytes(&self, py: Python<'_>) -> PyResult<usize> {
        let held = self.held(py)?.lock();
        held.bytes().map(<[u8]>::len).ok_or_else(|| released(py))
    }

    /// Whether the bytes are where their owner keeps them; otherwise they are a copy.
    #[getter]
    const fn in_place(&self) -> bool {
        self.in_place
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.nbytes(py)
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        slf.get().nbytes(slf.py())?;
        Ok(slf)
    }

    #[pyo3(signature = (*_why))]
    fn __exit__(&self, py: Python<'_>, _why: &Bound<'_, PyAny>) -> PyResult<()> {
        self.release(py)
    }

    fn __repr__(&self) -> String {
        let Some(held) = self.held.get() else {
            return "<mooncrate.View of another process>".into();
        };
        match held.lock().bytes() {
            None => "<mooncrate.View, released>".into(),
            Some(bytes) => {
                let place = if self.in_place { "in place" } else { "a copy" };
                format!("<mooncrate.View, {} bytes, {place}>", bytes.len())
            }
        }
    }

    /// # Safety
    /// Python calls it, with a buffer structure to fill.
    unsafe fn __getbuffer__(
        slf: &Bound<'_, Self>,
        buffer: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let py = slf.py();
        // What Python wants to see when this fails.
        // SAFETY: `buffer` points to a structure that Python made for this call.
        unsafe { (*buffer).obj = std::ptr::null_mut() };
        if flags & ffi::PyBUF_WRITABLE == ffi::PyBUF_WRITABLE {
            return Err(PyBufferError::new_err("a view is read-only: stored values never change"));
        }
        let this = slf.get();
        let mut held = this.held(py)?.lock();
        let bytes = held.bytes().ok_or_else(|| released(py))?;
        let (first, len) = (bytes.as_ptr().cast_mut().cast(), bytes.len().cast_signed());
        // SAFETY: `buffer` is Python's; the bytes stay where they are while `exports` is above 0, and
        // the structure keeps a reference to this object. It is marked read-only.
        let code = unsafe { ffi::PyBuffer_FillInfo(buffer, slf.as_ptr(), first, len, 1, flags) };
        if code != 0 {
            return Err(PyErr::fetch(py));
        }
        held.exports += 1;
        Ok(())
    }

    /// # Safety
    /// Python calls it once for each buffer that `__getbuffer__` filled.
    unsafe fn __releasebuffer__(&self, _buffer: *mut ffi::Py_buffer) {
        let Some(held) = self.held.get() else { return };
        let pin = {
            let mut held = held.lock();
            held.exports -= 1;
            held.over()
        };
        if let Some(pin) = pin {
            drop_detached(pin);
        }
    }
}
