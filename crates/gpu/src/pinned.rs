//! Page-locked host memory: plain bytes to Rust, and the only host memory that the GPU copies
//! from and to in the background.
//!
//! The driver allocates it ([`PinnedBuffer`]), or locks pages that somebody else mapped ([`Pinned`]).
//! [`Gpu::is_pinned`] tells whether bytes of unknown origin are page-locked.

use crate::device::Gpu;
use crate::error::{GpuError, check};
use crate::stream::{Event, Stream};
use cudarc::driver::sys;
use std::ffi::c_void;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

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
        let _bound = gpu.bind()?;
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

    /// The 64-bit word at `index`, which kernels may change while the processor looks at it.
    ///
    /// # Panics
    ///
    /// Beyond the end of the buffer.
    pub fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.len / 8, "word {index} of a buffer of {} bytes", self.len);
        #[expect(clippy::cast_ptr_alignment, reason = "the driver aligns pinned memory to a page")]
        let words = self.base.as_ptr().cast::<u64>();
        // SAFETY: the word is inside of the allocation, as was checked above.
        let word = unsafe { words.add(index) };
        // SAFETY: the word is aligned and lives as long as `self`. Kernels change it in one access.
        unsafe { AtomicU64::from_ptr(word) }
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
        // Freeing does not promise to wait for copies.
        let Ok(_bound) = self.gpu.bind() else { return };
        if self.gpu.synchronize().is_ok() {
            // SAFETY: the address came from the allocation in `new`, and nobody else frees it.
            let _ = unsafe { sys::cuMemFreeHost(self.base.as_ptr().cast()) };
        }
    }
}

/// Page-locks host memory that somebody else mapped, until this is dropped.
#[derive(Debug)]
pub struct Pinned {
    base: NonNull<u8>,
    /// Held so that the context outlives the lock.
    gpu: Gpu,
}

// SAFETY: the driver unlocks memory from any thread.
unsafe impl Send for Pinned {}
// SAFETY: `&Pinned` gives out nothing but the GPU.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Locks `len` bytes from `base` on. Every page gets memory now, which is slow: at start.
    ///
    /// # Safety
    ///
    /// The bytes stay mapped until this is dropped, and their pages are not exchanged: no `munmap`, and no
    /// `madvise` that gives them back. The GPU would go on using the pages that were there before.
    pub unsafe fn new(gpu: &Gpu, base: NonNull<u8>, len: usize) -> Result<Self, GpuError> {
        let _bound = gpu.bind()?;
        // Portable: every context of this process treats it as page-locked.
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE;
        // SAFETY: a context is current; that the bytes are mapped is the caller's promise.
        let locked = unsafe { sys::cuMemHostRegister_v2(base.as_ptr().cast(), len, flags) };
        check("page-lock host memory", locked)?;
        Ok(Self { base, gpu: gpu.clone() })
    }

    /// The GPU whose driver locked the memory.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // Copies from or to the memory must have ended. If the wait fails, the context is broken, and its
        // end unlocks everything.
        let Ok(_bound) = self.gpu.bind() else { return };
        if self.gpu.synchronize().is_ok() {
            // SAFETY: it was locked by `new`, exactly so, and nobody else unlocks it.
            let _ = unsafe { sys::cuMemHostUnregister(self.base.as_ptr().cast()) };
        }
    }
}

impl Gpu {
    /// Whether the driver knows these host bytes as page-locked, whoever locked them.
    ///
    /// It looks at the first and the last byte. A copy from or to bytes with a gap of ordinary memory
    /// between them is slower, or refused by the driver.
    pub fn is_pinned(&self, bytes: &[u8]) -> bool {
        let ends = [bytes.first(), bytes.last()];
        let Ok(_bound) = self.bind() else { return false };
        ends.into_iter().flatten().all(is_pinned_at)
    }
}

/// A context is current to this thread.
fn is_pinned_at(byte: &u8) -> bool {
    let mut kind: u32 = 0;
    let which = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    let address = std::ptr::from_ref(byte) as u64;
    // SAFETY: the driver takes any address and answers with an error for memory that it does not know;
    // `kind` is a place for one C enum.
    let asked = unsafe { sys::cuPointerGetAttribute((&raw mut kind).cast(), which, address) };
    asked == sys::CUresult::CUDA_SUCCESS && kind == sys::CUmemorytype::CU_MEMORYTYPE_HOST as u32
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
