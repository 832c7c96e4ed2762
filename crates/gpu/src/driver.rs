//! Finding the driver: the only file that decides whether a call into it may be made at all.
//!
//! The binding panics when the library, or one function of it, is missing. So nothing is called
//! before [`start`] has seen that the library loads and that its version has every function used.

use crate::error::{GpuError, check};
use cudarc::driver::sys::{self, CUresult};
use std::sync::OnceLock;

/// CUDA 13.0: the first version whose driver takes the PTX version that our kernels are written in.
pub(crate) const NEEDED: u32 = 13000;

static STARTED: OnceLock<Result<u32, GpuError>> = OnceLock::new();

/// Loads and starts the driver once; the version that it supports.
pub(crate) fn start() -> Result<u32, GpuError> {
    STARTED.get_or_init(load).clone()
}

/// Whether this crate has started it.
pub(crate) fn is_started() -> bool {
    matches!(STARTED.get(), Some(Ok(_)))
}

/// Whether it is in this process, whoever loaded it. A process that uses no GPU gets nothing loaded.
pub(crate) fn is_loaded() -> bool {
    is_started() || {
        let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
        // SAFETY: the name is static; nothing is loaded, so no initialiser runs.
        let found = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), flags) };
        if !found.is_null() {
            // SAFETY: it gives back what was just taken; its first user keeps it.
            unsafe { libc::dlclose(found) };
        }
        !found.is_null()
    }
}

fn load() -> Result<u32, GpuError> {
    // SAFETY: loading NVIDIA's library runs its initialisers, which have no conditions of their own.
    if !unsafe { sys::is_culib_present() } {
        return Err(GpuError::NoDriver);
    }
    let mut version = 0;
    // SAFETY: the library is there, this function exists in every version of it, and `version` is a
    // place for one number.
    let asked = unsafe { sys::cuDriverGetVersion(&raw mut version) };
    // The library that a toolkit brings to link against answers every call with this.
    if asked == CUresult::CUDA_ERROR_STUB_LIBRARY {
        return Err(GpuError::NoDriver);
    }
    check("ask for the driver's version", asked)?;
    let found = u32::try_from(version).unwrap_or(0);
    if found < NEEDED {
        return Err(GpuError::OldDriver { found, needed: NEEDED });
    }
    // SAFETY: the library is there; the call may be made at any time and more than once.
    match unsafe { sys::cuInit(0) } {
        CUresult::CUDA_ERROR_NO_DEVICE => Err(GpuError::NoDevice { ordinal: 0, count: 0 }),
        CUresult::CUDA_ERROR_STUB_LIBRARY => Err(GpuError::NoDriver),
        answer => check("start the driver", answer).map(|()| found),
    }
}
