//! Page-locked host memory: plain bytes to Rust, and the only host memory that the GPU copies
//! from and to in the background.

use crate::device::Gpu;
use crate::error::{GpuError, check};
use crate::stream::{Event, Stream};
use cudarc::driver::sys;
use std::ffi::c_void;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Page-locked host memory, zeroed at first.
#[derive(Debug)]
pub struct PinnedBuffer {
    base: NonNull<u8>,
    len: usize,
    /// Held so that the context outlives the memory.
    gpu: Gpu,
}

// SAFETY: the buffer owns its memory, which is not bound to a thread.
unsafe impl Send for PinnedBuffer {}
// SAFETY: `&PinnedBuffer` gives out shared slices only.
unsafe impl Sync for PinnedBuffer {}

impl PinnedBuffer {
    /// Locks `len` bytes. This is slow (page by page): allocate at start.
    pub fn new(gpu: &Gpu, len: usize) -> Result<Self, GpuError> {
        if len == 0 {
            return Err(GpuError::Invalid("a pinned buffer has at least one byte".into()));
        }
        gpu.bind()?;
        let mut base: *mut c_void = std::ptr::null_mut();
        // Portable: every context of this process treats it as page-locked.
        // SAFETY: a context is current, and `base` is a place for one pointer.
        let made =
            unsafe { sys::cuMemHostAlloc(&raw mut base, len, sys::CU_MEMHOSTALLOC_PORTABLE) };
        check("allocate pinned host memory", made)?;
        let base: NonNull<u8> = NonNull::new(base.cast())
            .ok_or_else(|| GpuError::Invalid("the driver gave no pinned memory".into()))?;
        // SAFETY: the allocation has `len` bytes, and nobody else knows them.
        unsafe { base.as_ptr().write_bytes(0, len) };
        Ok(Self { base, len, gpu: gpu.clone() })
    }

    /// The address under which kernels of any GPU of this process reach the same bytes.
    pub fn device_address(&self) -> u64 {
        self.base.as_ptr() as u64
    }
}

impl Deref for PinnedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the allocation has `len` initialised bytes, and copies that write to it in the
        // background own the buffer or are the caller's promise.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl DerefMut for PinnedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` is the only way in.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        // As for device memory: freeing does not promise to wait for copies.
        if self.gpu.synchronize().is_ok() {
            // SAFETY: the address came from the allocation in `new`, and nobody else frees it.
            let _ = unsafe { sys::cuMemFreeHost(self.base.as_ptr().cast()) };
        }
    }
}

/// A copy from or to pinned memory that may still be going on. It owns the buffer until then.
///
/// Dropping it waits. Forgetting it leaks the buffer, so that the copy never meets freed memory.
#[derive(Debug)]
#[must_use = "the buffer comes back from `wait`"]
pub struct Pending {
    /// `None` only after `wait` has taken it.
    buffer: Option<PinnedBuffer>,
    done: Event,
}

impl Pending {
    pub(crate) fn new(buffer: PinnedBuffer) -> Result<Self, GpuError> {
        let done = Event::new(&buffer.gpu)?;
        Ok(Self { buffer: Some(buffer), done })
    }

    pub(crate) fn buffer(&self) -> &PinnedBuffer {
        self.buffer.as_ref().expect("only `wait` takes the buffer, and it consumes `self`")
    }

    pub(crate) fn buffer_mut(&mut self) -> &mut PinnedBuffer {
        self.buffer.as_mut().expect("only `wait` takes the buffer, and it consumes `self`")
    }

    /// Notes where in the stream the copy ends.
    pub(crate) fn mark(self, stream: &Stream) -> Result<Self, GpuError> {
        // On an error `self` is dropped, and dropping a pinned buffer waits for the whole device.
        self.done.record(stream)?;
        Ok(self)
    }

    /// Waits until the copy has ended and gives the buffer back.
    pub fn wait(mut self) -> Result<PinnedBuffer, GpuError> {
        self.done.synchronize()?;
        Ok(self.buffer.take().expect("only `wait` takes the buffer, and it consumes `self`"))
    }
}
