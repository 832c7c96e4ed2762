//! Memory that Python owns and others may name by address: `BufferHandle`, a private copy of a value, and
//! `Block`, page-aligned memory that windows are cut from.
//!
//! What must stay true: memory stays where it is while anybody can reach it. A buffer that was given out
//! holds a reference to its object, and a window holds its block.

use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::{CStr, c_int};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of a page; what is mapped is a multiple of it.
const PAGE: usize = 4096;

/// A copy of a value that belongs to the caller alone: writing it changes nothing else.
#[pyclass(module = "mooncake.store", frozen, weakref)]
pub(crate) struct BufferHandle {
    first: *mut u8,
    len: usize,
}

// SAFETY: the pointer is to memory that this object allocated and frees when it is dropped.
unsafe impl Send for BufferHandle {}
// SAFETY: Rust touches the bytes only while it has the object alone; later only Python does, through
// buffers, whose users agree among themselves as with a `bytearray`.
unsafe impl Sync for BufferHandle {}

impl BufferHandle {
    /// Zeroed memory; it has no bytes where there is no memory for them.
    pub(crate) fn zeroed(len: usize) -> Self {
        let mut bytes: Vec<u8> = Vec::new();
        if bytes.try_reserve_exact(len).is_err() {
            return Self { first: std::ptr::null_mut(), len: 0 };
        }
        bytes.resize(len, 0);
        let first = Box::into_raw(bytes.into_boxed_slice());
        Self { first: first.cast(), len }
    }
}

impl AsMut<[u8]> for BufferHandle {
    fn as_mut(&mut self) -> &mut [u8] {
        if self.first.is_null() {
            return &mut [];
        }
        // SAFETY: `zeroed` allocated `len` bytes there, and `&mut self` proves that nobody else has them.
        unsafe { std::slice::from_raw_parts_mut(self.first, self.len) }
    }
}

impl Drop for BufferHandle {
    fn drop(&mut self) {
        if !self.first.is_null() {
            let bytes = std::ptr::slice_from_raw_parts_mut(self.first, self.len);
            // SAFETY: it is the box that `zeroed` gave away; every buffer over it held this object.
            drop(unsafe { Box::from_raw(bytes) });
        }
    }
}

#[pymethods]
impl BufferHandle {
    /// The address of the first byte.
    fn ptr(&self) -> usize {
        self.first as usize
    }

    /// Bytes.
    const fn size(&self) -> usize {
        self.len
    }

    const fn __len__(&self) -> usize {
        self.len
    }

    /// # Safety
    /// Python calls it, with a buffer structure to fill.
    unsafe fn __getbuffer__(
        slf: &Bound<'_, Self>,
        buffer: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let this = slf.get();
        // SAFETY: `buffer` is Python's, and the bytes live as long as this object.
        unsafe { fill(slf.as_any(), buffer, flags, (this.first, this.len), c"b") }
    }

    /// # Safety
    /// Python calls it once for each buffer that `__getbuffer__` filled.
    #[expect(clippy::unused_self, reason = "it is the shape that Python asks for")]
    unsafe fn __releasebuffer__(&self, _buffer: *mut ffi::Py_buffer) {}
}

/// Fills a buffer structure of Python for writable bytes.
///
/// # Safety
/// `buffer` is a structure that Python made for this call; the bytes live as long as `owner` and may be
/// written.
unsafe fn fill(
    owner: &Bound<'_, PyAny>,
    buffer: *mut ffi::Py_buffer,
    flags: c_int,
    (first, len): (*mut u8, usize),
    format: &'static CStr,
) -> PyResult<()> {
    let signed = len.cast_signed();
    // SAFETY: the caller vouches for `buffer` and the bytes; the structure keeps a reference to `owner`.
    let code =
        unsafe { ffi::PyBuffer_FillInfo(buffer, owner.as_ptr(), first.cast(), signed, 0, flags) };
    if code != 0 {
        return Err(PyErr::fetch(owner.py()));
    }
    if flags & ffi::PyBUF_FORMAT == ffi::PyBUF_FORMAT {
        // SAFETY: the structure was just filled; the text is static, and nobody writes to a format.
        unsafe { (*buffer).format = format.as_ptr().cast_mut() };
    }
    Ok(())
}

/// Zeroed memory at an address that is a multiple of the alignment. It costs nothing until it is touched.
#[pyclass(module = "mooncrate._native", frozen)]
pub(crate) struct Block {
    /// What was mapped, for the end.
    mapped: *mut u8,
    mapped_len: usize,
    first: *mut u8,
    #[pyo3(get)]
    size: usize,
}

// SAFETY: the mapping belongs to this object, and is not bound to a thread.
unsafe impl Send for Block {}
// SAFETY: Rust never touches the bytes; see `BufferHandle`.
unsafe impl Sync for Block {}

#[pymethods]
impl Block {
    /// `shared`: other processes can be given the memory, as a file without a name.
    #[new]
    #[pyo3(signature = (size, alignment=4096, *, shared=false))]
    fn new(size: usize, alignment: usize, shared: bool) -> PyResult<Self> {
        if size == 0 || !alignment.is_power_of_two() {
            return Err(PyValueError::new_err(
                "a size of at least 1 and a power of two are needed",
            ));
        }
        let alignment = alignment.max(PAGE);
        let no_memory = || PyMemoryError::new_err(format!("no memory for {size} bytes"));
        let whole = size.checked_next_multiple_of(PAGE).ok_or_else(no_memory)?;
        let mapped_len = whole.checked_add(alignment - PAGE).ok_or_else(no_memory)?;
        let mapped = map(mapped_len, shared).ok_or_else(no_memory)?;
        let skip = mapped.addr().next_multiple_of(alignment) - mapped.addr();
        Ok(Self { mapped, mapped_len, first: mapped.wrapping_add(skip), size })
    }

    /// The address of the first byte.
    #[getter]
    fn ptr(&self) -> usize {
        self.first as usize
    }
}

/// Maps fresh memory, readable and writable.
fn map(len: usize, shared: bool) -> Option<*mut u8> {
    let (mut flags, mut fd) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1);
    if shared {
        let size = i64::try_from(len).ok()?;
        // SAFETY: the name is static; the result is a new descriptor or -1.
        fd = unsafe { libc::memfd_create(c"mooncrate-block".as_ptr(), libc::MFD_CLOEXEC) };
        // SAFETY: a bad descriptor is an error that is looked at.
        if fd < 0 || unsafe { libc::ftruncate(fd, size) } != 0 {
            close(fd);
            return None;
        }
        flags = libc::MAP_SHARED;
    }
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let first = unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, fd, 0) };
    // The mapping keeps the file.
    close(fd);
    (first != libc::MAP_FAILED).then_some(first.cast())
}

fn close(fd: c_int) {
    if fd >= 0 {
        // SAFETY: the descriptor is ours, and nobody uses it any more.
        unsafe { libc::close(fd) };
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: it is what `map` mapped; windows hold this object, so nobody looks at it any more.
        unsafe { libc::munmap(self.mapped.cast(), self.mapped_len) };
    }
}

/// The first bytes of a block, as a writable buffer that knows who looks at it.
#[pyclass(module = "mooncake.store", frozen, weakref, subclass, name = "BufferLeaseView")]
pub(crate) struct Window {
    block: Py<Block>,
    len: usize,
    /// Buffers that were given out and not yet given back.
    exports: AtomicUsize,
}

#[pymethods]
impl Window {
    #[new]
    fn new(block: Py<Block>, size: usize) -> PyResult<Self> {
        if size > block.get().size {
            return Err(PyValueError::new_err("a window is no larger than its block"));
        }
        Ok(Self { block, len: size, exports: AtomicUsize::new(0) })
    }

    /// Buffers that somebody looks at.
    #[getter]
    fn exports(&self) -> usize {
        // Relaxed: it changes under the GIL.
        self.exports.load(Ordering::Relaxed)
    }

    const fn __len__(&self) -> usize {
        self.len
    }

    /// # Safety
    /// Python calls it, with a buffer structure to fill.
    unsafe fn __getbuffer__(
        slf: &Bound<'_, Self>,
        buffer: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let this = slf.get();
        let first = this.block.get().first;
        // SAFETY: `buffer` is Python's; the block lives as long as this window, and has `len` bytes.
        unsafe { fill(slf.as_any(), buffer, flags, (first, this.len), c"B") }?;
        this.exports.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// # Safety
    /// Python calls it once for each buffer that `__getbuffer__` filled.
    unsafe fn __releasebuffer__(&self, _buffer: *mut ffi::Py_buffer) {
        self.exports.fetch_sub(1, Ordering::Relaxed);
    }
}
