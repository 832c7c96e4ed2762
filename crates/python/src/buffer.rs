//! Arguments and results that are bytes: keys, values, targets, and `bytes` objects that a value is
//! read into directly.
//!
//! What must stay true: a slice made here is used only while the Python object that owns its memory is
//! held, and that object cannot be resized meanwhile: an exported buffer forbids it.

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyMemoryError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::{PyBytes, PyMemoryView, PyString};
use std::fmt;

/// A key: text stands for its UTF-8 bytes.
#[derive(Debug)]
pub(crate) enum Key {
    Text(PyBackedStr),
    Bytes(PyBackedBytes),
}

impl Key {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Bytes(bytes) => bytes,
        }
    }
}

impl<'py> FromPyObject<'_, 'py> for Key {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(text) = object.cast::<PyString>() {
            return Ok(Self::Text(PyBackedStr::try_from(text.to_owned())?));
        }
        if let Ok(bytes) = object.cast::<PyBytes>() {
            return Ok(Self::Bytes(bytes.to_owned().into()));
        }
        let kind = object.get_type().name()?;
        Err(PyTypeError::new_err(format!("a key is str or bytes, not {kind}")))
    }
}

/// Keys as slices.
pub(crate) fn slices(keys: &[Key]) -> Vec<&[u8]> {
    keys.iter().map(Key::bytes).collect()
}

/// A value to store: any object with the buffer protocol whose bytes lie in C order.
pub(crate) struct Source(PyUntypedBuffer);

impl Source {
    /// Its bytes. The caller of the store promises to leave them alone during the call, as with every
    /// function of Python that reads a buffer without the GIL; if it does not, the value is a mix of
    /// what it wrote, or the put fails because two copies differ.
    pub(crate) fn bytes(&self) -> &[u8] {
        let (first, len) = (self.0.buf_ptr().cast::<u8>(), self.0.len_bytes());
        if len == 0 {
            return &[];
        }
        // SAFETY: the exporter vouches for `len` contiguous bytes from `first` (checked to be in C order)
        // until the buffer is released, which is when `self` is dropped.
        unsafe { std::slice::from_raw_parts(first, len) }
    }
}

impl<'py> FromPyObject<'_, 'py> for Source {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let buffer = buffer(&object, "a value")?;
        Ok(Self(buffer))
    }
}

/// Memory that a value is copied into.
pub(crate) struct Target(PyUntypedBuffer);

impl Target {
    /// Its bytes; the promise is the same as for [`Source::bytes`].
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        let (first, len) = (self.0.buf_ptr().cast::<u8>(), self.0.len_bytes());
        if len == 0 {
            return &mut [];
        }
        // SAFETY: as in `Source::bytes`; the exporter also said that the bytes may be written.
        unsafe { std::slice::from_raw_parts_mut(first, len) }
    }
}

impl<'py> FromPyObject<'_, 'py> for Target {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let buffer = buffer(&object, "a target")?;
        if buffer.readonly() {
            let words =
                "the target is read-only; give a bytearray, or an array that may be written";
            return Err(PyTypeError::new_err(words));
        }
        Ok(Self(buffer))
    }
}

/// The buffer of an object, if all its bytes lie in C order.
fn buffer(object: &Bound<'_, PyAny>, what: &str) -> PyResult<PyUntypedBuffer> {
    if object.is_instance_of::<PyString>() {
        let words = format!("{what} is bytes, not str; encode the text, as in text.encode()");
        return Err(PyTypeError::new_err(words));
    }
    // SAFETY: asks the type of a live object, with the GIL held.
    if unsafe { pyo3::ffi::PyObject_CheckBuffer(object.as_ptr()) } == 0 {
        let kind = object.get_type().name()?;
        let words = format!(
            "{what} is an object with the buffer protocol, as bytes, bytearray or a \
                             NumPy array; {kind} has none"
        );
        return Err(PyTypeError::new_err(words));
    }
    let buffer = match PyUntypedBuffer::get(object) {
        // A single number has no shape, which PyO3 takes for a mistake; seen as bytes it has one.
        Err(error) if error.is_instance_of::<PyBufferError>(object.py()) => {
            let shown = PyMemoryView::from(object)?;
            if shown.getattr("ndim")?.extract::<usize>()? > 0 {
                return Err(error);
            }
            PyUntypedBuffer::get(&shown.call_method1("cast", ("B",))?)?
        }
        other => other?,
    };
    if holds_objects(buffer.format().to_bytes()) {
        let words = format!(
            "{what} is numbers or bytes; an array of objects holds their addresses, which mean nothing \
             to others"
        );
        return Err(PyTypeError::new_err(words));
    }
    if !buffer.is_c_contiguous() {
        let words = format!(
            "{what} must lie in one run of memory, in C order; \
                             numpy.ascontiguousarray makes such a copy"
        );
        return Err(PyValueError::new_err(words));
    }
    Ok(buffer)
}

/// Whether a buffer of this format holds references to objects. Writing to them would be writing pointers.
fn holds_objects(format: &[u8]) -> bool {
    let mut in_name = false;
    format.iter().any(|letter| {
        // The names of fields stand between colons.
        in_name ^= *letter == b':';
        *letter == b'O' && !in_name
    })
}

/// Values up to this many bytes are read into memory of ours and copied into their object at the end: that
/// costs less than taking the GIL in the middle of a read, where others wait for it.
const SMALL: usize = 16 << 10;

/// Room for a value that becomes a `bytes` object.
#[derive(Debug)]
pub(crate) enum Room {
    /// Copied at the end.
    Small(Vec<u8>),
    /// Read into straight.
    Object(FreshBytes),
}

impl Room {
    pub(crate) fn new(len: usize) -> Self {
        if len <= SMALL { Self::Small(vec![0; len]) } else { Self::object(len) }
    }

    /// Room in the object itself, whatever its length. Takes the GIL for a moment.
    pub(crate) fn object(len: usize) -> Self {
        Self::Object(FreshBytes::new(len))
    }

    /// Whether there was memory for it. If not, it has no bytes, and a read into it fails.
    pub(crate) const fn is_made(&self) -> bool {
        match self {
            Self::Small(_) => true,
            Self::Object(fresh) => fresh.object.is_some(),
        }
    }

    /// The object, once the value was read.
    pub(crate) fn finish(self, py: Python<'_>) -> PyResult<Py<PyBytes>> {
        match self {
            Self::Small(bytes) => Ok(PyBytes::new(py, &bytes).unbind()),
            Self::Object(mut fresh) => fresh.object.take().ok_or_else(no_memory),
        }
    }
}

impl AsMut<[u8]> for Room {
    fn as_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Small(bytes) => bytes,
            Self::Object(fresh) => fresh.as_mut(),
        }
    }
}

/// A `bytes` object that nobody else knows yet, to be filled without the GIL.
pub(crate) struct FreshBytes {
    /// `None`: there was no memory for it, or it was given away.
    object: Option<Py<PyBytes>>,
    first: *mut u8,
    len: usize,
}

// SAFETY: the pointer is into the object that the same value owns, whose address never changes, and
// `Py` may be sent itself.
unsafe impl Send for FreshBytes {}

impl FreshBytes {
    /// Makes one, zeroed. Called without the GIL, which it takes for the allocation only.
    pub(crate) fn new(len: usize) -> Self {
        let none = Self { object: None, first: std::ptr::null_mut(), len: 0 };
        let Ok(signed) = isize::try_from(len) else { return none };
        let made = Python::attach(|py| {
            // SAFETY: a null pointer asks for `len` bytes that are not set; the result is a new reference,
            // or null with an exception.
            let raw = unsafe { pyo3::ffi::PyBytes_FromStringAndSize(std::ptr::null(), signed) };
            // SAFETY: that is what the call above gives.
            let object = unsafe { Bound::from_owned_ptr_or_err(py, raw) }.ok()?;
            // SAFETY: `object` is a `bytes` object, as made above.
            let first = unsafe { pyo3::ffi::PyBytes_AsString(object.as_ptr()) };
            Some((object.cast_into::<PyBytes>().ok()?.unbind(), Address(first.cast::<u8>())))
        });
        let Some((object, Address(first))) = made else { return none };
        // SAFETY: the object has `len` bytes from `first`, and nobody else has seen it. Zeroes, because
        // a slice over bytes that were never set would be unsound.
        unsafe { first.write_bytes(0, len) };
        Self { object: Some(object), first, len }
    }
}

impl AsMut<[u8]> for FreshBytes {
    fn as_mut(&mut self) -> &mut [u8] {
        if self.len == 0 {
            // The empty `bytes` object is shared by everybody.
            return &mut [];
        }
        // SAFETY: the object has `len` bytes from `first`, set by `new`; it is ours alone until `finish`
        // gives it away, and that consumes `self`.
        unsafe { std::slice::from_raw_parts_mut(self.first, self.len) }
    }
}

impl Drop for FreshBytes {
    /// With the GIL, although a read that finds nothing has none: what is let go of without it waits behind
    /// a lock of the process, which a child that is forked in that moment never gets.
    fn drop(&mut self) {
        let mut object = self.object.take();
        if object.is_some() {
            Python::try_attach(|_| drop(object.take()));
        }
        // Still there only where no interpreter takes us, which frees it with all its objects.
        std::mem::forget(object);
    }
}

impl fmt::Debug for FreshBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FreshBytes").field("len", &self.len).finish_non_exhaustive()
    }
}

/// What to say where a value does not fit into memory.
pub(crate) fn no_memory() -> PyErr {
    PyMemoryError::new_err("no memory for the value")
}

/// A pointer on its way out of a closure.
struct Address(*mut u8);
