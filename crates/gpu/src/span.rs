//! A run of device memory, borrowed from whatever owns it. All copies and fills are here.
//!
//! What must stay true: a span lies inside of memory that is mapped while its owner lives; every
//! copy is checked against both ends before the driver sees an address.

use crate::bound::Bound;
use crate::device::Gpu;
use crate::error::{GpuError, check};
use crate::pinned::{Pending, PinnedBuffer};
use crate::stream::Stream;
use cudarc::driver::sys;
use std::ops::Range;

/// A run of device memory. Rust never reads or writes it directly.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    gpu: &'a Gpu,
    address: u64,
    bytes: u64,
}

impl<'a> Span<'a> {
    /// The owner's promise: these addresses stay mapped for `'a`.
    pub(crate) fn new(gpu: &'a Gpu, address: u64, bytes: u64) -> Self {
        Self { gpu, address, bytes }
    }

    /// Device memory that another library of this process has allocated, such as a tensor of torch.
    ///
    /// # Safety
    ///
    /// The addresses are device memory that this GPU can use, and stay allocated for `'a`.
    pub unsafe fn of_others(gpu: &'a Gpu, address: u64, bytes: u64) -> Self {
        Self::new(gpu, address, bytes)
    }

    /// The GPU that can use it.
    pub fn gpu(&self) -> &'a Gpu {
        self.gpu
    }

    /// The address of its first byte, for kernels and other libraries. Valid while the owner lives.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// How long it is.
    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// A part of it.
    pub fn part(&self, range: Range<u64>) -> Result<Self, GpuError> {
        let len = range.end.wrapping_sub(range.start);
        if range.start > range.end || range.end > self.bytes {
            let (offset, size) = (range.start, self.bytes);
            return Err(GpuError::OutOfBounds {
                what: "a part of device memory",
                offset,
                len,
                size,
            });
        }
        Ok(Self { gpu: self.gpu, address: self.address + range.start, bytes: len })
    }

    /// Whether the two have a byte in common.
    pub fn overlaps(&self, other: &Span<'_>) -> bool {
        self.address < other.address + other.bytes && other.address < self.address + self.bytes
    }

    /// Copies host bytes here and waits until they have arrived.
    pub fn write(&self, source: &[u8], stream: &Stream) -> Result<(), GpuError> {
        const DOING: &str = "copy from host to device";
        let target = self.part(0..source.len() as u64)?;
        let _bound = target.usable(stream)?;
        stream.not_recording(DOING)?;
        let (from, handle) = (source.as_ptr().cast(), stream.handle());
        // SAFETY: both ranges were checked; `source` is borrowed until the wait below has ended.
        let queued =
            unsafe { sys::cuMemcpyHtoDAsync_v2(target.address, from, source.len(), handle) };
        settle(DOING, queued, stream)
    }

    /// Copies these bytes to host memory and waits until they have arrived.
    pub fn read(&self, target: &mut [u8], stream: &Stream) -> Result<(), GpuError> {
        const DOING: &str = "copy from device to host";
        let source = self.part(0..target.len() as u64)?;
        let _bound = source.usable(stream)?;
        stream.not_recording(DOING)?;
        let (to, handle) = (target.as_mut_ptr().cast(), stream.handle());
        // SAFETY: both ranges were checked; `target` is borrowed until the wait below has ended.
        let queued = unsafe { sys::cuMemcpyDtoHAsync_v2(to, source.address, target.len(), handle) };
        settle(DOING, queued, stream)
    }

    /// The first bytes, as a vector: for tests and small results.
    pub fn to_vec(&self, stream: &Stream) -> Result<Vec<u8>, GpuError> {
        let mut bytes = vec![0; self.bytes as usize];
        self.read(&mut bytes, stream)?;
        Ok(bytes)
    }

    /// Copies a whole pinned buffer here in the background. The buffer comes back from
    /// [`Pending::wait`].
    pub fn upload(&self, source: PinnedBuffer, stream: &Stream) -> Result<Pending, GpuError> {
        stream.not_recording("copy from pinned host memory")?;
        let pending = Pending::new(source)?;
        // SAFETY: the pending copy owns the buffer and gives it back only after the copy has ended.
        unsafe { self.enqueue_upload(pending.buffer(), stream) }?;
        pending.mark(stream)
    }

    /// Fills a whole pinned buffer from here in the background. The buffer comes back from
    /// [`Pending::wait`].
    pub fn download(&self, target: PinnedBuffer, stream: &Stream) -> Result<Pending, GpuError> {
        stream.not_recording("copy to pinned host memory")?;
        let mut pending = Pending::new(target)?;
        // SAFETY: the pending copy owns the buffer and gives it back only after the copy has ended.
        unsafe { self.enqueue_download(pending.buffer_mut(), stream) }?;
        pending.mark(stream)
    }

    /// Queues a copy of host bytes to here and returns at once. Only from pinned memory does the copy go
    /// on in the background, at the speed of the link; of other memory the driver makes a copy first.
    ///
    /// # Safety
    ///
    /// Until the copy has ended, `source` stays alive and nobody writes to it. In a recording that
    /// is: whenever the graph is launched.
    pub unsafe fn enqueue_upload(&self, source: &[u8], stream: &Stream) -> Result<(), GpuError> {
        let target = self.part(0..source.len() as u64)?;
        let _bound = target.usable(stream)?;
        let (from, handle) = (source.as_ptr().cast(), stream.handle());
        // SAFETY: both ranges were checked; the caller keeps the host side as it is.
        let queued =
            unsafe { sys::cuMemcpyHtoDAsync_v2(target.address, from, source.len(), handle) };
        check("copy from pinned host memory", queued)
    }

    /// Queues a copy from here to host bytes and returns at once, as [`Span::enqueue_upload`] does.
    ///
    /// # Safety
    ///
    /// Until the copy has ended, `target` stays alive and nobody reads or writes it. In a recording
    /// that is: whenever the graph is launched.
    pub unsafe fn enqueue_download(
        &self,
        target: &mut [u8],
        stream: &Stream,
    ) -> Result<(), GpuError> {
        let source = self.part(0..target.len() as u64)?;
        let _bound = source.usable(stream)?;
        let (to, handle) = (target.as_mut_ptr().cast(), stream.handle());
        // SAFETY: both ranges were checked; the caller leaves the host side alone.
        let queued = unsafe { sys::cuMemcpyDtoHAsync_v2(to, source.address, target.len(), handle) };
        check("copy to pinned host memory", queued)
    }

    /// Queues a copy of `source` to here. The two may not overlap.
    pub fn copy_from(&self, source: Span<'_>, stream: &Stream) -> Result<(), GpuError> {
        let target = self.part(0..source.bytes)?;
        let _bound = target.usable(stream)?;
        let _bound = source.usable(stream)?;
        if target.overlaps(&source) {
            return Err(GpuError::Invalid(format!(
                "a copy of {} bytes on the device whose source and target overlap",
                source.bytes
            )));
        }
        let (bytes, handle) = (source.bytes as usize, stream.handle());
        // SAFETY: both ranges lie in device memory whose owners wait for the device before they free.
        let queued =
            unsafe { sys::cuMemcpyDtoDAsync_v2(target.address, source.address, bytes, handle) };
        check("copy on the device", queued)
    }

    /// Queues a fill of the whole span.
    pub fn fill(&self, byte: u8, stream: &Stream) -> Result<(), GpuError> {
        let _bound = self.usable(stream)?;
        let (bytes, handle) = (self.bytes as usize, stream.handle());
        // SAFETY: the range lies in device memory whose owner waits for the device before it frees.
        let queued = unsafe { sys::cuMemsetD8Async(self.address, byte, bytes, handle) };
        check("fill device memory", queued)
    }

    /// Makes the context current, once it is clear that both belong to the same GPU.
    fn usable(&self, stream: &Stream) -> Result<Bound, GpuError> {
        if !self.gpu.is(stream.gpu()) {
            let (here, there) = (self.gpu.ordinal(), stream.gpu().ordinal());
            return Err(GpuError::Invalid(format!(
                "memory of GPU {here} on a stream of GPU {there}; use a stream of the same GPU"
            )));
        }
        self.gpu.bind()
    }
}

/// Waits for a copy that borrows host memory. The wait also happens where queueing failed: the
/// driver may report an earlier error from a call that did queue the copy.
fn settle(doing: &'static str, queued: sys::CUresult, stream: &Stream) -> Result<(), GpuError> {
    // SAFETY: the stream lives as long as its owner.
    let waited = unsafe { sys::cuStreamSynchronize(stream.handle()) };
    check(doing, queued)?;
    check(doing, waited)
}
