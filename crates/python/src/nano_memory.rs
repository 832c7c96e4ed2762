//! Memory of the caller that values come from and go to: on the host, through the buffer protocol; on a GPU,
//! as the address, the length and the stream that `mooncrate.nano` found in a tensor, and the tensor itself.
//!
//! What must stay true: device memory that Python named stays allocated during the call, because its caller
//! holds the tensor, and as long as work on it is late, because the rank does. Work on it that was queued before is on the
//! stream that is named with it.

use crate::buffer;
use mooncrate_core::Medium;
use mooncrate_gpu::{Gpu, Span};
use mooncrate_nano::{Nano, NanoError, Source, Target};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

/// Device memory by number.
#[derive(Debug)]
pub(crate) struct Device {
    address: u64,
    bytes: u64,
    /// In whose order it is used; `None`: nothing on it is under way.
    stream: Option<u64>,
    /// Whatever keeps it.
    owner: Py<PyAny>,
}

impl Device {
    /// `None`: the object is no tuple of numbers, so it is memory of the host.
    fn of(object: Borrowed<'_, '_, PyAny>) -> PyResult<Option<Self>> {
        if !object.is_instance_of::<PyTuple>() {
            return Ok(None);
        }
        let (address, bytes, stream, owner) = object.extract()?;
        Ok(Some(Self { address, bytes, stream, owner }))
    }

    /// The memory, for a cache whose heaps are on a GPU.
    fn span<'a>(&self, nano: &'a Nano) -> Result<Span<'a>, NanoError> {
        let gpu = gpu(nano).ok_or(NanoError::OtherMemory(Medium::Dram))?;
        // SAFETY: the caller of Python holds a tensor of this GPU with this memory during the call, and the rank
        // does as long as work on it is late, as the head of this file says.
        Ok(unsafe { Span::of_others(gpu, self.address, self.bytes) })
    }
}

/// The GPU of a rank's heap; `None`: the heap is on the host.
pub(crate) fn gpu(nano: &Nano) -> Option<&Gpu> {
    nano.reach().heap().span(nano.rank()).map(|span| span.gpu())
}

/// What a value is read from.
pub(crate) enum GivenSource {
    Host(buffer::Source),
    Device(Device),
}

impl GivenSource {
    /// The stream of the memory.
    pub(crate) fn stream(&self) -> Option<u64> {
        if let Self::Device(device) = self { device.stream } else { None }
    }

    /// What keeps device memory, for a call that may be late. It is let go by any thread, so Python's reference goes when
    /// the next call comes from Python.
    pub(crate) fn owner(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        if let Self::Device(device) = self { Some(device.owner.clone_ref(py)) } else { None }
    }

    pub(crate) fn source<'a>(&'a self, nano: &'a Nano) -> Result<Source<'a>, NanoError> {
        Ok(match self {
            Self::Host(host) => Source::Host(host.bytes()),
            Self::Device(device) => Source::Device(device.span(nano)?),
        })
    }
}

impl<'py> FromPyObject<'_, 'py> for GivenSource {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        Ok(match Device::of(object)? {
            Some(device) => Self::Device(device),
            None => Self::Host(object.extract()?),
        })
    }
}

/// What a value is written to.
pub(crate) enum GivenTarget {
    Host(buffer::Target),
    Device(Device),
}

impl GivenTarget {
    /// The stream of the memory.
    pub(crate) fn stream(&self) -> Option<u64> {
        if let Self::Device(device) = self { device.stream } else { None }
    }

    /// What keeps device memory, for a call that may be late. It is let go by any thread, so Python's reference goes when
    /// the next call comes from Python.
    pub(crate) fn owner(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        if let Self::Device(device) = self { Some(device.owner.clone_ref(py)) } else { None }
    }

    pub(crate) fn target<'a>(&'a mut self, nano: &'a Nano) -> Result<Target<'a>, NanoError> {
        Ok(match self {
            Self::Host(host) => Target::Host(host.bytes()),
            Self::Device(device) => Target::Device(device.span(nano)?),
        })
    }
}

impl<'py> FromPyObject<'_, 'py> for GivenTarget {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        Ok(match Device::of(object)? {
            Some(device) => Self::Device(device),
            None => Self::Host(object.extract()?),
        })
    }
}
