//! Values and targets that are arrays of other libraries: on a GPU, or on the host without a buffer of Python.
//!
//! ```text
//!   array ──mooncrate.devices.found──► address, length, stream ──mark──► Device   in the caller's thread
//!                                                                  │
//!   the call, in any thread ◄──────────────────────────────────────┘
//! ```
//!
//! Which object has which memory is found out in Python (`mooncrate/devices.py`), where the libraries are. The
//! driver is asked about every address before it is used.
//!
//! What must stay true: the array is held until the call is over, so its memory stays allocated. The context
//! that was current to the caller's thread is current again when a call returns: torch shares the thread.

use crate::buffer::{Source, Target};
use crate::error::exception;
use mooncrate::{DeviceMemory, Landed, Part};
use mooncrate_gpu::{Event, ForeignStream, Gpu, GpuError, Span, device_of};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyString;
use std::fmt;

/// A value to store, as it was given.
pub(crate) enum Value {
    /// Memory with a buffer of Python.
    Host(Source),
    /// Something that says where its memory is.
    Array(Py<PyAny>),
}

impl<'py> FromPyObject<'_, 'py> for Value {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if is_array(&object)? {
            return Ok(Self::Array(object.to_owned().unbind()));
        }
        Ok(Self::Host(object.extract()?))
    }
}

/// All of the values, if they are host memory; otherwise as they were given.
pub(crate) fn all_host(values: Vec<Value>) -> Result<Vec<Source>, Vec<Value>> {
    if values.iter().any(|value| matches!(value, Value::Array(_))) {
        return Err(values);
    }
    let sources = values.into_iter().filter_map(|value| match value {
        Value::Host(source) => Some(source),
        Value::Array(_) => None,
    });
    Ok(sources.collect())
}

/// Memory that a value goes to, as it was given.
pub(crate) enum Goal {
    /// Memory with a buffer of Python.
    Host(Target),
    /// Something that says where its memory is.
    Array(Py<PyAny>),
}

impl<'py> FromPyObject<'_, 'py> for Goal {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if is_array(&object)? {
            return Ok(Self::Array(object.to_owned().unbind()));
        }
        Ok(Self::Host(object.extract()?))
    }
}

/// Whether an object has no buffer of Python, but says where its memory is.
fn is_array(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    // SAFETY: asks the type of a live object, with the GIL held.
    if unsafe { pyo3::ffi::PyObject_CheckBuffer(object.as_ptr()) } != 0 {
        return Ok(false);
    }
    if object.is_instance_of::<PyString>() {
        return Ok(false);
    }
    // Of the type: an array that has none of its own may still be of a class that has.
    let kind = object.get_type();
    Ok(kind.hasattr("__cuda_array_interface__")? || kind.hasattr("__dlpack__")?)
}

/// What `mooncrate.devices.found` says of an array.
#[derive(FromPyObject)]
struct Found {
    address: usize,
    size: usize,
    /// The stream that the memory is ready in; `None`: it is memory of the host.
    stream: Option<u64>,
    /// Whatever keeps the memory.
    owner: Py<PyAny>,
}

fn found(
    py: Python<'_>,
    array: &Py<PyAny>,
    stream: Option<&Bound<'_, PyAny>>,
    written: bool,
) -> PyResult<Found> {
    static FIND: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let find = FIND.get_or_try_init(py, || -> PyResult<_> {
        Ok(py.import("mooncrate.devices")?.getattr("found")?.unbind())
    })?;
    find.bind(py).call1((array, stream, written))?.extract()
}

/// Memory of the host that an array lends.
pub(crate) struct Lent {
    address: usize,
    size: usize,
    _owner: Py<PyAny>,
}

impl Lent {
    fn bytes(&self) -> &[u8] {
        if self.size == 0 {
            return &[];
        }
        let first = std::ptr::with_exposed_provenance(self.address);
        // SAFETY: the array said that it has so many bytes there, in C order, and `_owner` keeps them. That
        // nobody writes to them during the call is its caller's promise, as for `Source::bytes`.
        unsafe { std::slice::from_raw_parts(first, self.size) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        if self.size == 0 {
            return &mut [];
        }
        let first = std::ptr::with_exposed_provenance_mut(self.address);
        // SAFETY: as in `bytes`; the array also said that they may be written.
        unsafe { std::slice::from_raw_parts_mut(first, self.size) }
    }
}

/// Memory of a GPU, ready after a mark in the caller's stream.
pub(crate) struct Device {
    address: u64,
    size: u64,
    /// `None` only while it is dropped.
    ready: Option<Ready>,
    /// `None`: the caller vouches for the memory, as of raw addresses.
    _owner: Option<Py<PyAny>>,
}

struct Ready {
    gpu: Gpu,
    stream: ForeignStream,
    mark: Event,
}

impl Device {
    /// Memory at an address that the driver knows, in the order of a stream.
    pub(crate) fn new(
        address: u64,
        size: u64,
        handle: u64,
        owner: Option<Py<PyAny>>,
    ) -> Result<Self, GpuError> {
        let gpu = Gpu::shared(device_of(address, size)?)?;
        // SAFETY: 0, 1 and 2 are the default streams; any other handle is of a stream that its caller, who
        // named it, keeps until the call is over.
        let stream = unsafe { ForeignStream::of_others(&gpu, handle) };
        let mark = stream.mark()?;
        Ok(Self { address, size, ready: Some(Ready { gpu, stream, mark }), _owner: owner })
    }

    fn ready(&self) -> &Ready {
        self.ready.as_ref().expect("it has them until it is dropped")
    }

    /// The memory, for a call.
    pub(crate) fn memory(&self) -> DeviceMemory<'_> {
        let ready = self.ready();
        // SAFETY: the driver knows the range as memory of this GPU (`device_of`), and `_owner`, or the
        // caller of the raw door, keeps it until the call is over.
        let span = unsafe { Span::of_others(&ready.gpu, self.address, self.size) };
        DeviceMemory { span, after: &ready.mark }
    }

    pub(crate) fn stream(&self) -> &ForeignStream {
        &self.ready().stream
    }

    /// What has to be over before the memory is used.
    pub(crate) fn mark(&self) -> &Event {
        &self.ready().mark
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.ready = None;
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({:#x}, {})", self.address, self.size)
    }
}

/// A value to store, whose memory is known.
pub(crate) enum Given {
    Host(Source),
    Lent(Lent),
    Device(Device),
}

impl Given {
    /// Finds the memory of a value; of a GPU, in the order of `stream`, or of the one the array names.
    pub(crate) fn of(
        py: Python<'_>,
        value: Value,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        Ok(match value {
            Value::Host(source) => Self::Host(source),
            Value::Array(array) => match placed(py, found(py, &array, stream, false)?)? {
                Placed::Lent(lent) => Self::Lent(lent),
                Placed::Device(device) => Self::Device(device),
            },
        })
    }

    /// Its bytes, if it is memory of the host.
    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Host(source) => Some(source.bytes()),
            Self::Lent(lent) => Some(lent.bytes()),
            Self::Device(_) => None,
        }
    }

    pub(crate) fn part(&self) -> Part<'_> {
        match self {
            Self::Host(source) => Part::Host(source.bytes()),
            Self::Lent(lent) => Part::Host(lent.bytes()),
            Self::Device(device) => Part::Device(device.memory()),
        }
    }
}

/// A target whose memory is known.
pub(crate) enum Reached {
    Host(Target),
    Lent(Lent),
    Device(Device),
}

impl Reached {
    /// As [`Given::of`].
    pub(crate) fn of(
        py: Python<'_>,
        goal: Goal,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        Ok(match goal {
            Goal::Host(target) => Self::Host(target),
            Goal::Array(array) => match placed(py, found(py, &array, stream, true)?)? {
                Placed::Lent(lent) => Self::Lent(lent),
                Placed::Device(device) => Self::Device(device),
            },
        })
    }

    /// Its bytes, if it is memory of the host.
    pub(crate) fn bytes(&mut self) -> Option<&mut [u8]> {
        match self {
            Self::Host(target) => Some(target.bytes()),
            Self::Lent(lent) => Some(lent.bytes_mut()),
            Self::Device(_) => None,
        }
    }

    pub(crate) fn device(&self) -> Option<&Device> {
        match self {
            Self::Device(device) => Some(device),
            Self::Host(_) | Self::Lent(_) => None,
        }
    }

    pub(crate) fn landed(&mut self) -> Landed<'_> {
        match self {
            Self::Host(target) => Landed::Host(target.bytes()),
            Self::Lent(lent) => Landed::Host(lent.bytes_mut()),
            Self::Device(device) => Landed::Device(device.memory()),
        }
    }
}

enum Placed {
    Lent(Lent),
    Device(Device),
}

fn placed(py: Python<'_>, found: Found) -> PyResult<Placed> {
    let Found { address, size, stream, owner } = found;
    if isize::try_from(size).is_err() || address.checked_add(size).is_none() {
        return Err(PyTypeError::new_err("the array says that it is longer than memory can be"));
    }
    let Some(stream) = stream.filter(|_| size > 0) else {
        return Ok(Placed::Lent(Lent { address, size, _owner: owner }));
    };
    let (address, size) = (address as u64, size as u64);
    // Without the GIL: whoever comes first may wait for the driver's start.
    let made = py.detach(move || Device::new(address, size, stream, Some(owner)));
    let device = made.map_err(|error| exception(py, error.into()))?;
    Ok(Placed::Device(device))
}
