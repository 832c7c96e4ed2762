//! Device memory of this process alone.

use crate::device::Gpu;
use crate::error::{GpuError, check};
use crate::ipc::IpcHandle;
use crate::span::Span;
use cudarc::driver::sys;

/// Device memory, aligned to at least 256 bytes. Its contents are unspecified at first.
///
/// Dropping it waits for all work of the GPU and then frees it.
#[derive(Debug)]
pub struct DeviceBuffer {
    address: u64,
    bytes: u64,
    /// Held so that the context outlives the memory.
    gpu: Gpu,
}

impl DeviceBuffer {
    /// Allocates `bytes` bytes. This may wait for the GPU: allocate at start, not per step.
    pub fn new(gpu: &Gpu, bytes: u64) -> Result<Self, GpuError> {
        if bytes == 0 {
            return Err(GpuError::Invalid("a device buffer has at least one byte".into()));
        }
        let _bound = gpu.bind()?;
        let mut address = 0;
        // SAFETY: a context is current, and `address` is a place for one address.
        let made = unsafe { sys::cuMemAlloc_v2(&raw mut address, bytes as usize) };
        check("allocate device memory", made)?;
        Ok(Self { address, bytes, gpu: gpu.clone() })
    }

    /// All of it.
    pub fn span(&self) -> Span<'_> {
        Span::new(&self.gpu, self.address, self.bytes)
    }

    /// A handle by which another process on this machine can open the memory.
    ///
    /// The driver shares whole pages of 2 MiB, so a smaller buffer would show its neighbours to the
    /// other process; that is refused.
    pub fn ipc_handle(&self) -> Result<IpcHandle, GpuError> {
        IpcHandle::of(&self.gpu, self.address, self.bytes)
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        // Work that was queued with this address must have ended, and to free device memory waits for all work.
        // If that fails, the context is broken, and no work goes on.
        if let Ok(_bound) = self.gpu.bind() {
            // SAFETY: the address came from the allocation in `new`, and nobody else frees it.
            let _ = unsafe { sys::cuMemFree_v2(self.address) };
        }
    }
}
