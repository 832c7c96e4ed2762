//! The methods of `NanoRank`: arguments in, one call of the cache, the result out.
#![expect(clippy::needless_pass_by_value, reason = "arguments of Python arrive as values")]

use crate::buffer::Key;
use crate::error::invalid;
use crate::nano::NanoRank;
use crate::nano_error::join_exception;
use crate::nano_memory::{GivenSource, GivenTarget, gpu};
use crate::nano_plan::{ObjMeta, WritePlan};
use crate::options::span;
use crate::paged_input::{Whole, Word};
use mooncrate::nano::{NanoBackend, NanoOptions};
use mooncrate_core::key;
use mooncrate_nano::{Held, NanoConfig, NanoError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::path::PathBuf;

/// A number of bytes, a rank, or how many there are.
type Number = Whole<{ i64::MAX as u64 }>;

fn number(given: Option<Number>) -> Option<usize> {
    given.map(|Whole(number)| number as usize)
}

#[pymethods]
impl NanoRank {
    /// Joins, and returns when all ranks have.
    #[new]
    #[pyo3(signature = (heap_bytes, *, path, rank, world, page_bytes, slots, backend, device, checksums,
        timeout, put_timeout, join_timeout))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn new(
        py: Python<'_>,
        heap_bytes: Number,
        path: PathBuf,
        rank: Number,
        world: Number,
        page_bytes: Word,
        slots: Word,
        backend: &str,
        device: Word,
        checksums: bool,
        timeout: f64,
        put_timeout: f64,
        join_timeout: f64,
    ) -> PyResult<Self> {
        let backend = match backend {
            "host" => NanoBackend::Host,
            "cuda" => NanoBackend::Cuda { ordinal: device.get() },
            other => {
                let words = format!("backend is \"cuda\" or \"host\", not {other:?}");
                return Err(invalid(py, &words));
            }
        };
        let mut options = NanoOptions::new(path, rank.0 as usize, world.0 as usize, backend);
        options.heap_bytes = heap_bytes.0;
        options.put_timeout = span(py, "put_timeout", put_timeout)?;
        options.within = span(py, "join_timeout", join_timeout)?;
        options.config = NanoConfig {
            page_bytes: page_bytes.get(),
            slots: slots.get(),
            checksums,
            timeout: span(py, "timeout", timeout)?,
            ..NanoConfig::default()
        };
        Self::join(py, &options)
    }

    #[getter]
    fn rank(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |rank| rank.nano().rank().index())
    }

    #[getter]
    fn world(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |rank| rank.nano().world().len())
    }

    /// The number of the GPU that has this rank's heap; `None`: the heap is on the host.
    #[getter]
    fn device(&self, py: Python<'_>) -> PyResult<Option<u32>> {
        self.with(py, |rank| gpu(rank.nano()).map(mooncrate_gpu::Gpu::ordinal))
    }

    /// What ranks that share a GPU without MPS are told; `None`: this one need not be.
    #[getter]
    fn advice(&self, py: Python<'_>) -> PyResult<Option<&'static str>> {
        self.with(py, |rank| rank.lacks_mps().then_some(mooncrate::nano::WITHOUT_MPS))
    }

    #[getter]
    fn closed(&self, py: Python<'_>) -> bool {
        self.is_closed(py)
    }

    /// Where this process has mapped the heap of each rank.
    #[getter]
    fn heap_bases<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let (bases, world) = self.with(py, |rank| {
            let heap = rank.nano().reach().heap();
            (heap.bases(), heap.world().len())
        })?;
        PyTuple::new(py, &bases.0[..world])
    }

    /// Waits until all work of this process on the GPU has ended.
    fn synchronize(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, |nano| Ok(gpu(nano).map_or(Ok(()), mooncrate_gpu::Gpu::synchronize)?))
    }

    #[pyo3(signature = (key, value, *, preferred_segment=None))]
    fn put(
        &self,
        py: Python<'_>,
        key: Key,
        value: GivenSource,
        preferred_segment: Option<Number>,
    ) -> PyResult<()> {
        let (rank, mut owner) = (number(preferred_segment), value.owner(py));
        self.call(py, |nano| {
            let mut hold = || -> Held { Box::new(owner.take()) };
            nano.put_held(key.bytes(), value.source(nano)?, rank, value.stream(), &mut hold)
        })
    }

    /// Copies a value; `False`: the key has none.
    fn get_into(&self, py: Python<'_>, key: Key, target: GivenTarget) -> PyResult<bool> {
        let (stream, mut owner, mut target) = (target.stream(), target.owner(py), target);
        self.call(py, |nano| {
            let mut hold = || -> Held { Box::new(owner.take()) };
            nano.get_into_held(key.bytes(), target.target(nano)?, stream, &mut hold)
        })
    }

    fn remove(&self, py: Python<'_>, key: Key) -> PyResult<bool> {
        self.call(py, |nano| nano.remove(key.bytes()))
    }

    fn touch(&self, py: Python<'_>, key: Key) -> PyResult<bool> {
        self.call(py, |nano| nano.touch(key.bytes()))
    }

    #[pyo3(signature = (key, bytes_total, *, preferred_segment=None))]
    fn open_for_write(
        &self,
        py: Python<'_>,
        key: Key,
        bytes_total: Number,
        preferred_segment: Option<Number>,
    ) -> PyResult<WritePlan> {
        let owner = number(preferred_segment);
        self.call(py, |nano| nano.open_for_write(key.bytes(), bytes_total.0, owner)).map(WritePlan)
    }

    /// Writes a part of the value of a plan, from byte `start` on.
    #[pyo3(signature = (plan, value, start=Whole(0)), text_signature = "($self, plan, value, start=0)")]
    fn push(
        &self,
        py: Python<'_>,
        plan: &WritePlan,
        value: GivenSource,
        start: Number,
    ) -> PyResult<()> {
        self.call(py, |nano| nano.push(&plan.0, start.0, value.source(nano)?, value.stream()))
    }

    /// `stream`: the handle of the stream that the value is pushed on.
    #[pyo3(signature = (key, *, stream=None))]
    fn commit(&self, py: Python<'_>, key: Key, stream: Option<u64>) -> PyResult<()> {
        self.call(py, |nano| nano.commit(key.bytes(), stream))
    }

    fn abandon(&self, py: Python<'_>, key: Key) -> PyResult<()> {
        self.call(py, |nano| nano.abandon(key.bytes()))
    }

    /// Where a value is; `None`: the key has none; `False`: it is being written.
    fn get_location(&self, py: Python<'_>, key: Key) -> PyResult<Option<Py<PyAny>>> {
        let key_hash = key::hash(key.bytes()).0;
        let found = self.call(py, |nano| match nano.get_location(key.bytes()) {
            Err(NanoError::NotReady) => Ok(None),
            found => found.map(Some),
        })?;
        Ok(match found {
            None => Some(false.into_pyobject(py)?.to_owned().into_any().unbind()),
            Some(None) => None,
            Some(Some(place)) => Some(Py::new(py, ObjMeta { key_hash, place })?.into_any()),
        })
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (stats, usage) = self.call(py, |nano| {
            let me = nano.reach().heap().rank().index();
            Ok((nano.stats(), nano.usage()?[me]))
        })?;
        crate::stats::nano(py, &stats, &usage)
    }

    fn metrics(&self, py: Python<'_>) -> PyResult<String> {
        self.call(py, |nano| Ok(mooncrate::nano::metrics_text(nano)))
    }

    #[pyo3(signature = (usage_ratio, *, rank=None))]
    fn evict_until_below(
        &self,
        py: Python<'_>,
        usage_ratio: f64,
        rank: Option<usize>,
    ) -> PyResult<()> {
        self.call(py, |nano| nano.evict_until_below(usage_ratio, rank))
    }

    /// Waits for all ranks.
    fn barrier(&self, py: Python<'_>) -> PyResult<()> {
        let met = self.with(py, |rank| rank.barrier("barrier"))?;
        met.map_err(|error| join_exception(py, error.into()))
    }

    /// Leaves the cache; with the others, or without waiting for them. Again, it does nothing.
    #[pyo3(signature = (together=true))]
    fn close(&self, py: Python<'_>, together: bool) -> PyResult<()> {
        self.shut(py, together)
    }
}
