//! Copies between device memory and pinned host memory: by kernel below 1 MiB, where starting the copy
//! engine takes longer than the copy, and by the copy engine from there on.
//!
//! There is no oracle: the target has the bytes of the source.

use super::launch::cover;
use super::value::{aligned, on_gpu_of};
use super::{KernelError, Kernels};
use mooncrate_gpu::{PinnedBuffer, Span, Stream};

/// Compiled from `host.cu` by `./dev kernels`.
pub(super) const PTX: &str = include_str!("host.ptx");
/// From this length on the copy engine is at least as fast.
const ENGINE_BYTES: u64 = 1 << 20;
/// More blocks do not make the link to the host any faster.
const BLOCKS: u64 = 32;

impl Kernels {
    /// Queues a copy of a whole pinned buffer to the start of `target`, and returns at once.
    ///
    /// # Safety
    ///
    /// As [`Span::enqueue_upload`]: until the copy has ended, `source` stays alive and nobody writes to
    /// it. In a recording that is: whenever the graph is launched.
    pub unsafe fn upload(
        &self,
        stream: &Stream,
        target: Span<'_>,
        source: &PinnedBuffer,
    ) -> Result<(), KernelError> {
        let target = target.part(0..source.len() as u64)?;
        if target.len() >= ENGINE_BYTES {
            // SAFETY: the caller's promise.
            return Ok(unsafe { target.enqueue_upload(source, stream) }?);
        }
        // SAFETY: the target was cut to the length of the source, and the rest is the caller's promise.
        unsafe { self.across(stream, target, target.address(), source.device_address()) }
    }

    /// Queues a copy from the start of `source` to a whole pinned buffer, and returns at once.
    ///
    /// # Safety
    ///
    /// As [`Span::enqueue_download`]: until the copy has ended, `target` stays alive and nobody reads or
    /// writes it. In a recording that is: whenever the graph is launched.
    pub unsafe fn download(
        &self,
        stream: &Stream,
        target: &mut PinnedBuffer,
        source: Span<'_>,
    ) -> Result<(), KernelError> {
        let source = source.part(0..target.len() as u64)?;
        if source.len() >= ENGINE_BYTES {
            // SAFETY: the caller's promise.
            return Ok(unsafe { source.enqueue_download(target, stream) }?);
        }
        // SAFETY: the source was cut to the length of the target, and the rest is the caller's promise.
        unsafe { self.across(stream, source, target.device_address(), source.address()) }
    }

    /// Copies as many bytes as `device` has, between it and pinned memory.
    ///
    /// # Safety
    ///
    /// One of the addresses is that of `device`, the other one is of as many bytes of pinned memory, for
    /// which the promises of `upload` or `download` hold.
    unsafe fn across(
        &self,
        stream: &Stream,
        device: Span<'_>,
        target: u64,
        source: u64,
    ) -> Result<(), KernelError> {
        on_gpu_of(stream, &[device])?;
        aligned("the address of the target", target)?;
        aligned("the address of the source", source)?;
        let bytes = device.len();
        let (launch, share) = cover(bytes, BLOCKS);
        let params = [(&target).into(), (&source).into(), (&bytes).into(), (&share).into()];
        // SAFETY: the parameters are those of `copy_bytes`; both addresses have `bytes` bytes. Kernels
        // reach pinned memory by the address that the host uses.
        Ok(unsafe { self.copy.launch(stream, launch, &params) }?)
    }
}
