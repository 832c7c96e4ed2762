//! Graphs: the work of a stream, recorded once and launched many times.

use crate::device::Gpu;
use crate::error::{GpuError, check};
use crate::stream::Stream;
use cudarc::driver::sys::{self, CUgraph, CUgraphExec, CUstreamCaptureMode};
use std::cell::Cell;
use std::marker::PhantomData;

/// Recorded work, ready to be launched.
#[derive(Debug)]
pub struct Graph {
    ready: CUgraphExec,
    nodes: usize,
    /// Held so that the context outlives the graph.
    gpu: Gpu,
    /// The driver does not lock graphs: not shared between threads.
    alone: PhantomData<Cell<()>>,
}

// SAFETY: the driver takes a graph from any thread; `alone` keeps it to one at a time.
unsafe impl Send for Graph {}

impl Graph {
    /// Records what `work` queues on `stream`, instead of doing it. Calls that wait for the stream are refused
    /// inside. An error of `work` ends the recording and is returned.
    pub fn record<E: From<GpuError>>(
        stream: &Stream,
        work: impl FnOnce(&Stream) -> Result<(), E>,
    ) -> Result<Self, E> {
        let bound = stream.gpu().bind()?;
        stream.not_recording("record a graph")?;
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives as long as its owner and is not being recorded.
        let begun = unsafe { sys::cuStreamBeginCapture_v2(stream.handle(), mode) };
        check("record a graph", begun)?;
        // Ends the recording also when `work` panics.
        let recording = Recording { stream };
        // The thread is in the mode of its own while the caller's code runs.
        drop(bound);
        let worked = work(stream);
        let recorded = recording.end();
        worked?;
        let recorded = recorded?;
        let _bound = stream.gpu().bind()?;
        Ok(recorded.instantiate(stream.gpu())?)
    }

    /// How many operations it holds.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// Queues the whole recorded work on `stream`, as one.
    ///
    /// # Safety
    ///
    /// Everything that the recorded work reaches (buffers, pinned memory, kernels) is still alive, and
    /// stays so until this launch has ended. What was said at the recorded launches holds now, too.
    pub unsafe fn launch(&self, stream: &Stream) -> Result<(), GpuError> {
        let _bound = self.gpu.bind()?;
        // SAFETY: graph and stream live as long as their owners; the rest is the caller's promise.
        check("launch a graph", unsafe { sys::cuGraphLaunch(self.ready, stream.handle()) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if let Ok(_bound) = self.gpu.bind() {
            // SAFETY: nobody else has the handle; the driver keeps what a running launch needs.
            let _ = unsafe { sys::cuGraphExecDestroy(self.ready) };
        }
    }
}

/// A stream that is being recorded.
struct Recording<'a> {
    stream: &'a Stream,
}

impl Recording<'_> {
    fn end(self) -> Result<Recorded, GpuError> {
        let _bound = self.stream.gpu().bind()?;
        let stream = self.stream.handle();
        // The recording ends here, once.
        std::mem::forget(self);
        let mut raw: CUgraph = std::ptr::null_mut();
        // SAFETY: the stream lives as long as its owner, and `raw` is a place for one pointer.
        let ended = unsafe { sys::cuStreamEndCapture(stream, &raw mut raw) };
        check("end the recording of a graph", ended)?;
        if raw.is_null() {
            return Err(GpuError::Invalid("the recording of a graph was broken off".into()));
        }
        Ok(Recorded { raw })
    }
}

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        let Ok(_bound) = self.stream.gpu().bind() else { return };
        let mut raw: CUgraph = std::ptr::null_mut();
        // SAFETY: as in `end`.
        let ended = unsafe { sys::cuStreamEndCapture(self.stream.handle(), &raw mut raw) };
        if check("end the recording of a graph", ended).is_ok() && !raw.is_null() {
            drop(Recorded { raw });
        }
    }
}

/// A recorded graph, before it is made ready.
struct Recorded {
    raw: CUgraph,
}

impl Recorded {
    fn instantiate(self, gpu: &Gpu) -> Result<Graph, GpuError> {
        let mut nodes = 0;
        // SAFETY: a null list asks for the number only.
        let counted =
            unsafe { sys::cuGraphGetNodes(self.raw, std::ptr::null_mut(), &raw mut nodes) };
        check("count the nodes of a graph", counted)?;
        let mut ready: CUgraphExec = std::ptr::null_mut();
        // SAFETY: the graph lives until the end of this call, and `ready` is a place for one pointer.
        let made = unsafe { sys::cuGraphInstantiateWithFlags(&raw mut ready, self.raw, 0) };
        check("make a graph ready", made)?;
        Ok(Graph { ready, nodes, gpu: gpu.clone(), alone: PhantomData })
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        // SAFETY: nobody else has the handle; a graph made ready from it does not need it.
        let _ = unsafe { sys::cuGraphDestroy(self.raw) };
    }
}
