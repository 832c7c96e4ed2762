//! Streams, in which work happens in order, and events, which mark places in that order.

use crate::device::Gpu;
use crate::error::{GpuError, check, check_recording};
use cudarc::driver::sys::{self, CUevent, CUstream, CUstreamCaptureStatus};
use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr::null_mut;

/// A queue of work on one GPU. One that was made here is never the default stream, so it waits for no other one.
///
/// A stream can move to another thread but is not shared between threads: whether it is being
/// recorded into a graph is then known for the whole of a call.
#[derive(Debug)]
pub struct Stream {
    raw: CUstream,
    /// Held so that the context outlives the stream.
    gpu: Gpu,
    /// Whether another library made it, and ends it.
    borrowed: bool,
    /// Not shared between threads.
    alone: PhantomData<Cell<()>>,
}

// SAFETY: the driver takes a stream from any thread; `alone` keeps it to one at a time.
unsafe impl Send for Stream {}

impl Stream {
    /// A new stream.
    pub fn new(gpu: &Gpu) -> Result<Self, GpuError> {
        let _bound = gpu.bind()?;
        let mut raw: CUstream = std::ptr::null_mut();
        let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: a context is current, and `raw` is a place for one pointer.
        check("make a stream", unsafe { sys::cuStreamCreate(&raw mut raw, flags) })?;
        Ok(Self { raw, gpu: gpu.clone(), borrowed: false, alone: PhantomData })
    }

    /// A stream that another library of this process made, such as torch: work is queued on it as the library
    /// itself would, also while it is recorded into a graph. Handles 0 and 1 are the default stream that all
    /// threads share, 2 the default stream of whichever thread calls.
    ///
    /// # Safety
    ///
    /// The handle is one of these, or a stream of this GPU that lives as long as this.
    pub unsafe fn of_others(gpu: &Gpu, handle: u64) -> Self {
        let raw = std::ptr::with_exposed_provenance_mut(handle as usize);
        Self { raw, gpu: gpu.clone(), borrowed: true, alone: PhantomData }
    }

    /// The GPU that it works on.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Waits until everything queued so far has ended. Errors of kernels show up here.
    pub fn synchronize(&self) -> Result<(), GpuError> {
        let _bound = self.gpu.bind()?;
        self.not_recording("wait for a stream")?;
        // SAFETY: the stream lives as long as `self`.
        check("wait for a stream", unsafe { sys::cuStreamSynchronize(self.raw) })
    }

    /// What is queued from now on begins after the work that `event` marks, on whatever stream.
    pub fn wait(&self, event: &Event) -> Result<(), GpuError> {
        let _bound = self.gpu.bind()?;
        // SAFETY: stream and event live as long as their owners; the driver keeps what it needs.
        let waits = unsafe { sys::cuStreamWaitEvent(self.raw, event.raw, 0) };
        check("let a stream wait for an event", waits)
    }

    /// The number of the recording that this stream is part of, no two of a process alike; `None`: what is
    /// queued is done.
    pub fn recording(&self) -> Result<Option<u64>, GpuError> {
        let _bound = self.gpu.bind()?;
        let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        let mut number = 0;
        // SAFETY: the stream lives as long as `self`, there are places for status and number, and a null
        // pointer asks for nothing.
        let asked = unsafe {
            sys::cuStreamGetCaptureInfo_v3(
                self.raw,
                &raw mut status,
                &raw mut number,
                null_mut(),
                null_mut(),
                null_mut(),
                null_mut(),
            )
        };
        check_recording("ask whether a stream is recorded", asked)?;
        let is = !matches!(status, CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE);
        Ok(is.then_some(number))
    }

    /// The driver's handle, for other libraries of this process. It is valid while `self` lives.
    pub fn raw(&self) -> u64 {
        self.raw as u64
    }

    pub(crate) fn handle(&self) -> CUstream {
        self.raw
    }

    /// Refuses what would wait, or leave an address of the caller behind, in a graph.
    pub fn not_recording(&self, operation: &'static str) -> Result<(), GpuError> {
        let _bound = self.gpu.bind()?;
        let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the stream lives as long as `self`, and `status` is a place for its answer.
        let asked = unsafe { sys::cuStreamIsCapturing(self.raw, &raw mut status) };
        check_recording(operation, asked)?;
        match status {
            CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE => Ok(()),
            _ => Err(GpuError::Recording { operation }),
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.borrowed {
            return;
        }
        if let Ok(_bound) = self.gpu.bind() {
            // SAFETY: nobody else has the handle. Queued work goes on; the driver cleans up after it.
            let _ = unsafe { sys::cuStreamDestroy_v2(self.raw) };
        }
    }
}

/// A place in the order of a stream, with the time at which the GPU passed it.
#[derive(Debug)]
pub struct Event {
    raw: CUevent,
    /// Held so that the context outlives the event.
    gpu: Gpu,
}

// SAFETY: the driver takes an event from any thread, and locks inside.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// An event that has not been recorded.
    pub fn new(gpu: &Gpu) -> Result<Self, GpuError> {
        let _bound = gpu.bind()?;
        let mut raw: CUevent = std::ptr::null_mut();
        // SAFETY: a context is current, and `raw` is a place for one pointer; 0 asks for times.
        check("make an event", unsafe { sys::cuEventCreate(&raw mut raw, 0) })?;
        Ok(Self { raw, gpu: gpu.clone() })
    }

    /// The same without times, which costs the GPU less.
    pub fn untimed(gpu: &Gpu) -> Result<Self, GpuError> {
        let _bound = gpu.bind()?;
        let mut raw: CUevent = std::ptr::null_mut();
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: a context is current, and `raw` is a place for one pointer.
        check("make an event", unsafe { sys::cuEventCreate(&raw mut raw, flags) })?;
        Ok(Self { raw, gpu: gpu.clone() })
    }

    /// Marks the end of what `stream` has queued so far.
    pub fn record(&self, stream: &Stream) -> Result<(), GpuError> {
        self.record_raw(stream.handle())
    }

    /// The same for a stream whose owner keeps it alive during the call.
    pub(crate) fn record_raw(&self, stream: CUstream) -> Result<(), GpuError> {
        let _bound = self.gpu.bind()?;
        // SAFETY: both handles live as long as their owners.
        check("record an event", unsafe { sys::cuEventRecord(self.raw, stream) })
    }

    pub(crate) fn handle(&self) -> CUevent {
        self.raw
    }

    /// Whether the GPU has passed the event; also if it was never recorded.
    pub fn is_passed(&self) -> Result<bool, GpuError> {
        let _bound = self.gpu.bind()?;
        // SAFETY: the event lives as long as `self`.
        match unsafe { sys::cuEventQuery(self.raw) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            answer => check("ask for an event", answer).map(|()| true),
        }
    }

    /// Waits until the GPU has passed the event.
    pub fn synchronize(&self) -> Result<(), GpuError> {
        let _bound = self.gpu.bind()?;
        // SAFETY: the event lives as long as `self`.
        check("wait for an event", unsafe { sys::cuEventSynchronize(self.raw) })
    }

    /// Microseconds from `earlier` to this one; both must have been passed.
    pub fn micros_since(&self, earlier: &Self) -> Result<f64, GpuError> {
        let _bound = self.gpu.bind()?;
        let mut milliseconds = 0.0;
        // SAFETY: both events live as long as their owners, and there is a place for the answer.
        let asked =
            unsafe { sys::cuEventElapsedTime_v2(&raw mut milliseconds, earlier.raw, self.raw) };
        check("take the time between two events", asked)?;
        Ok(f64::from(milliseconds) * 1000.0)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(_bound) = self.gpu.bind() {
            // SAFETY: nobody else has the handle; the driver keeps what pending work needs.
            let _ = unsafe { sys::cuEventDestroy_v2(self.raw) };
        }
    }
}
