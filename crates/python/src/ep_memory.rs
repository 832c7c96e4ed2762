//! Memory of the caller that tokens come from and results go to: on the host, through the buffer protocol; on a
//! GPU, as the address and the length that `mooncrate.ep` found in a tensor.
//!
//! What must stay true: a tensor that Python named stays allocated until the work that this call has queued is
//! over, in a graph whenever it is replayed: its caller holds it, or its allocator goes by the stream.

use crate::buffer;
use mooncrate_ep::EpError;
use mooncrate_gpu::{Gpu, Span, device_of};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

/// Numbers that any bytes are.
///
/// # Safety
///
/// Every pattern of bits is a value of the type, and it has no padding.
pub(crate) unsafe trait Number: Copy {}
// SAFETY: integers and floats are.
unsafe impl Number for u16 {}
// SAFETY: as above.
unsafe impl Number for i32 {}
// SAFETY: as above.
unsafe impl Number for i64 {}
// SAFETY: as above.
unsafe impl Number for u32 {}
// SAFETY: as above.
unsafe impl Number for f32 {}

fn askew<T>() -> EpError {
    let bytes = size_of::<T>();
    EpError::Shape(format!("an array does not begin at a multiple of {bytes} bytes; give a copy"))
}

/// Device memory by number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Device {
    address: u64,
    bytes: u64,
    /// Whether a library that we trust says so; otherwise the driver is asked.
    known: bool,
}

impl Device {
    fn of(object: Borrowed<'_, '_, PyAny>) -> PyResult<Option<Self>> {
        if !object.is_instance_of::<PyTuple>() {
            return Ok(None);
        }
        let (address, bytes, known) = object.extract()?;
        Ok(Some(Self { address, bytes, known }))
    }

    fn span<'a>(&self, gpu: &'a Gpu) -> Result<Span<'a>, EpError> {
        let Self { address, bytes, known } = *self;
        if !known && bytes > 0 {
            let (there, here) = (device_of(address, bytes)?, gpu.ordinal());
            if there != here {
                let text =
                    format!("an array is on GPU {there}, this rank on GPU {here}; move it there");
                return Err(EpError::Shape(text));
            }
        }
        // SAFETY: torch, or the driver, says that it is memory of this GPU; its caller keeps it, as the head
        // of this file says.
        Ok(unsafe { Span::of_others(gpu, address, bytes) })
    }
}

/// What the exchange reads.
pub(crate) enum Given {
    Host(buffer::Source),
    Device(Device),
}

impl Given {
    /// Its elements, for a rank on the host.
    pub(crate) fn numbers<T: Number>(&self) -> Result<&[T], EpError> {
        let Self::Host(source) = self else { return Err(elsewhere()) };
        // SAFETY: any bytes are numbers.
        let (before, numbers, after) = unsafe { source.bytes().align_to::<T>() };
        if before.is_empty() && after.is_empty() { Ok(numbers) } else { Err(askew::<T>()) }
    }

    /// Its memory, for a rank on a GPU.
    pub(crate) fn span<'a>(&self, gpu: &'a Gpu) -> Result<Span<'a>, EpError> {
        let Self::Device(device) = self else { return Err(elsewhere()) };
        device.span(gpu)
    }
}

impl<'py> FromPyObject<'_, 'py> for Given {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        Ok(match Device::of(object)? {
            Some(device) => Self::Device(device),
            None => Self::Host(object.extract()?),
        })
    }
}

/// What results are written to.
pub(crate) enum Goal {
    Host(buffer::Target),
    Device(Device),
}

impl Goal {
    /// As [`Given::numbers`].
    pub(crate) fn numbers<T: Number>(&mut self) -> Result<&mut [T], EpError> {
        let Self::Host(target) = self else { return Err(elsewhere()) };
        // SAFETY: any bytes are numbers, and any numbers are bytes.
        let (before, numbers, after) = unsafe { target.bytes().align_to_mut::<T>() };
        if before.is_empty() && after.is_empty() { Ok(numbers) } else { Err(askew::<T>()) }
    }

    /// As [`Given::span`].
    pub(crate) fn span<'a>(&self, gpu: &'a Gpu) -> Result<Span<'a>, EpError> {
        let Self::Device(device) = self else { return Err(elsewhere()) };
        device.span(gpu)
    }
}

impl<'py> FromPyObject<'_, 'py> for Goal {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        Ok(match Device::of(object)? {
            Some(device) => Self::Device(device),
            None => Self::Host(object.extract()?),
        })
    }
}

fn elsewhere() -> EpError {
    let text = "an array is in other memory than this rank: backend=\"host\" takes arrays on the host, \
                backend=\"cuda\" arrays on its GPU";
    EpError::Shape(text.into())
}
