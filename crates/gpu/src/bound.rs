//! Beside others: how a thread calls the driver without disturbing whoever else uses it.
//!
//! While a thread of this process records a graph (torch does by default, in the strictest mode), a call that could
//! disturb the recording ends it, and is refused itself. Almost every call counts as one: to allocate, to ask for an
//! event. A thread in the relaxed mode may make them all. And which context is current to a thread belongs to whoever
//! uses the thread: torch allocates on the GPU that it finds there.
//!
//! What must stay true: each call of the driver stands inside of one of these guards, and no guard outlives the call of
//! this crate that made it. What a guard has changed, it puts back. Nothing here waits for a whole context by
//! `cuCtxSynchronize`, which ends recordings in every mode: see [`crate::Gpu::synchronize`].

use crate::error::{GpuError, check};
use cudarc::driver::sys::{self, CUcontext, CUstreamCaptureMode};
use std::marker::PhantomData;

/// This thread in the relaxed mode.
#[derive(Debug)]
#[must_use = "the mode is put back when it is dropped"]
pub(crate) struct Relaxed {
    before: CUstreamCaptureMode,
    /// The mode is a thread's.
    here: PhantomData<*const ()>,
}

impl Relaxed {
    /// The driver was started.
    pub(crate) fn new() -> Result<Self, GpuError> {
        let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the driver was started, and `mode` is a mode, and a place for the one before.
        let exchanged = unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
        check("call beside recordings of others", exchanged)?;
        Ok(Self { before: mode, here: PhantomData })
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        // SAFETY: as in `new`.
        let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut self.before) };
    }
}

/// A context that is current to this thread, in the relaxed mode.
#[derive(Debug)]
#[must_use = "the context is put back when it is dropped"]
pub(crate) struct Bound {
    /// What was current before; `None`: the same.
    before: Option<CUcontext>,
    /// Put back last.
    _relaxed: Relaxed,
}

impl Bound {
    /// `context` is retained until this is dropped.
    pub(crate) fn new(context: CUcontext) -> Result<Self, GpuError> {
        let relaxed = Relaxed::new()?;
        let before = current()?;
        if before == context {
            return Ok(Self { before: None, _relaxed: relaxed });
        }
        // SAFETY: the context is retained, as the caller says.
        check("use the context of the GPU", unsafe { sys::cuCtxSetCurrent(context) })?;
        Ok(Self { before: Some(before), _relaxed: relaxed })
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // SAFETY: it was current before, so its owner keeps it; null means none, as before.
            let _ = unsafe { sys::cuCtxSetCurrent(before) };
        }
    }
}

/// The context of this thread; null: none. The driver was started.
pub(crate) fn current() -> Result<CUcontext, GpuError> {
    let mut current: CUcontext = std::ptr::null_mut();
    // SAFETY: the driver was started, and `current` is a place for one pointer.
    check("ask for the current context", unsafe { sys::cuCtxGetCurrent(&raw mut current) })?;
    Ok(current)
}
