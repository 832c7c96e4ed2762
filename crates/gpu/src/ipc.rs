//! Legacy CUDA IPC: memory of another process, by a handle of 64 bytes.
//!
//! [`SharedMemory`](crate::SharedMemory) is the better way: it crosses containers and is counted. This
//! one is for memory that was allocated in the ordinary way. The importer must drop its [`IpcBuffer`]
//! before the owner frees; the driver does not check that.

use crate::device::Gpu;
use crate::error::{GpuError, check};
use crate::span::Span;
use cudarc::driver::sys;
use std::ffi::c_char;

/// Bytes of a handle.
pub const IPC_HANDLE_BYTES: usize = 64;
/// The driver shares memory by whole pages of this size.
const PAGE_BYTES: u64 = 2 << 20;

/// Names device memory of one process to the others of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpcHandle([u8; IPC_HANDLE_BYTES]);

impl IpcHandle {
    pub(crate) fn of(gpu: &Gpu, address: u64, bytes: u64) -> Result<Self, GpuError> {
        if !bytes.is_multiple_of(PAGE_BYTES) {
            return Err(GpuError::Invalid(format!(
                "a buffer of {bytes} bytes shares its page with others; \
                 only multiples of {PAGE_BYTES} bytes get an IPC handle"
            )));
        }
        let _bound = gpu.bind()?;
        let mut handle = sys::CUipcMemHandle { reserved: [0; IPC_HANDLE_BYTES] };
        // SAFETY: the address is the first of an allocation, and there is a place for the handle.
        let made = unsafe { sys::cuIpcGetMemHandle(&raw mut handle, address) };
        check("make an IPC handle", made)?;
        Ok(Self(handle.reserved.map(c_char::cast_unsigned)))
    }

    /// The handle, to be sent.
    pub fn to_bytes(self) -> [u8; IPC_HANDLE_BYTES] {
        self.0
    }

    /// A handle that was received.
    pub fn from_bytes(bytes: [u8; IPC_HANDLE_BYTES]) -> Self {
        Self(bytes)
    }
}

/// Device memory of another process.
#[derive(Debug)]
pub struct IpcBuffer {
    address: u64,
    bytes: u64,
    /// Held so that the context outlives the mapping.
    gpu: Gpu,
}

impl IpcBuffer {
    /// Opens memory of another process; its own process is refused by the driver.
    ///
    /// # Safety
    ///
    /// The buffer behind `handle` has at least `bytes` bytes, and its owner frees it only after this
    /// mapping is gone.
    pub unsafe fn open(gpu: &Gpu, handle: IpcHandle, bytes: u64) -> Result<Self, GpuError> {
        let _bound = gpu.bind()?;
        let raw = sys::CUipcMemHandle { reserved: handle.0.map(u8::cast_signed) };
        let flags = sys::CUipcMem_flags_enum::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
        let mut address = 0;
        // SAFETY: a context is current, and `address` is a place for one address.
        let opened = unsafe { sys::cuIpcOpenMemHandle_v2(&raw mut address, raw, flags) };
        check("open an IPC handle", opened)?;
        Ok(Self { address, bytes, gpu: gpu.clone() })
    }

    /// All of it.
    pub fn span(&self) -> Span<'_> {
        Span::new(&self.gpu, self.address, self.bytes)
    }
}

impl Drop for IpcBuffer {
    fn drop(&mut self) {
        // Work that was queued with this address must have ended.
        let Ok(_bound) = self.gpu.bind() else { return };
        if self.gpu.synchronize().is_ok() {
            // SAFETY: the address came from `open`, and nobody else closes it.
            let _ = unsafe { sys::cuIpcCloseMemHandle(self.address) };
        }
    }
}
