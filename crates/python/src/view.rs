//! `View`: a value in place, as a read-only buffer.
//!
//! ```text
//!   store.view(key) ──► View ──► memoryview, numpy.frombuffer, numpy.from_dlpack, …   (exports)
//!                        │ release(), or nobody holds it
//!                        ▼
//!                  the pin ends when the last export is gone
//! ```
//!
//! What must stay true: the bytes that Python can reach stay pinned, so they never change under it, and
//! the client that holds the pin lives as long as the pin: an owner takes back pins of clients that went.

use crate::dlpack::{self, Form, HOST, Kept, Place, Wish};
use crate::error::{forked, make};
use crate::fork::{Own, drop_detached};
use crate::store::Live;
use mooncrate::Advice;
use mooncrate_lock::Mutex;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_int;
use std::sync::Arc;

/// The bytes of a value, read-only, pinned until this is released and everything that shows them is gone.
#[pyclass(module = "mooncrate", frozen, weakref)]
pub(crate) struct View {
    /// `None` after `release`: nothing new is given out. Each export has a share of the pin.
    held: Own<Mutex<Option<Arc<Pin>>>>,
    /// Whether they are where their owner keeps them.
    in_place: bool,
}

/// Dropped in this order: the pin goes while its client is there.
struct Pin {
    bytes: mooncrate::View,
    _live: Live,
}

impl View {
    pub(crate) fn new(bytes: mooncrate::View, live: Live) -> Self {
        let in_place = bytes.is_in_place();
        let pin = Arc::new(Pin { bytes, _live: live });
        Self { held: Own::new(Mutex::new(Some(pin))), in_place }
    }

    /// A share of the pin.
    fn pin(&self, py: Python<'_>) -> PyResult<Arc<Pin>> {
        let held = self.held.get().ok_or_else(|| forked(py))?;
        // Apart from each other, as in `Store::live`.
        let pin = held.lock().clone();
        pin.ok_or_else(|| released(py))
    }
}

fn released(py: Python<'_>) -> PyErr {
    let words = "the view was released; ask the store for another one";
    make(py, crate::error::Class::Closed, words, Advice::GiveUp)
}

impl Drop for View {
    fn drop(&mut self) {
        if let Some(pin) = self.held.get().and_then(|held| held.lock().take()) {
            drop_detached(pin);
        }
    }
}

#[pymethods]
impl View {
    /// Gives nothing out any more; the pin ends with the last array that shows the bytes.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        let held = self.held.get().ok_or_else(|| forked(py))?;
        let pin = held.lock().take();
        py.detach(|| drop(pin));
        Ok(())
    }

    /// Bytes of the value.
    #[getter]
    fn nbytes(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.pin(py)?.bytes.len())
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
        match &*held.lock() {
            None => "<mooncrate.View, released>".into(),
            Some(pin) => {
                let place = if self.in_place { "in place" } else { "a copy" };
                format!("<mooncrate.View, {} bytes, {place}>", pin.bytes.len())
            }
        }
    }

    /// Where the bytes are, for consumers of `DLPack`: the host.
    #[expect(clippy::unused_self, reason = "a method by protocol")]
    const fn __dlpack_device__(&self) -> (i32, i32) {
        HOST
    }

    /// The bytes as a read-only tensor of another library, pinned until it is gone; with `copy=True` a
    /// copy that may be written.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let stream = stream.is_some();
        let wish = Wish { version: max_version, device: dl_device, stream, copy };
        let instead = Some("the buffer protocol, as in numpy.frombuffer(view, dtype)");
        let device = wish.check(Place::Host, instead)?;
        let pin = self.pin(py)?;
        if copy == Some(true) {
            let mut own = py.detach(|| pin.bytes.to_vec());
            let (first, form) = (own.as_mut_ptr(), Form::bytes(own.len()));
            let kept = Kept { first, device, form, read_only: false, owner: own };
            return dlpack::capsule(py, kept, &wish);
        }
        let (first, form) = (pin.bytes.as_ptr().cast_mut(), Form::bytes(pin.bytes.len()));
        dlpack::capsule(py, Kept { first, device, form, read_only: true, owner: pin }, &wish)
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
        let pin = slf.get().pin(py)?;
        let (first, len) = (pin.bytes.as_ptr().cast_mut().cast(), pin.bytes.len().cast_signed());
        // SAFETY: `buffer` is Python's; the bytes stay where they are while it has a share of the pin, and
        // the structure keeps a reference to this object. It is marked read-only.
        let code = unsafe { ffi::PyBuffer_FillInfo(buffer, slf.as_ptr(), first, len, 1, flags) };
        if code != 0 {
            return Err(PyErr::fetch(py));
        }
        // SAFETY: as above; the field is for whoever fills the structure.
        unsafe { (*buffer).internal = Arc::into_raw(pin).cast_mut().cast() };
        Ok(())
    }

    /// # Safety
    /// Python calls it once for each buffer that `__getbuffer__` filled.
    unsafe fn __releasebuffer__(&self, buffer: *mut ffi::Py_buffer) {
        // In a forked child the share is the parent's.
        if self.held.get().is_none() {
            return;
        }
        // SAFETY: `buffer` is the structure that `__getbuffer__` filled.
        let share = unsafe { (*buffer).internal };
        // SAFETY: `__getbuffer__` put a share of the pin there, and this takes it back, once.
        let pin = unsafe { Arc::from_raw(share.cast::<Pin>().cast_const()) };
        drop_detached(pin);
    }
}
