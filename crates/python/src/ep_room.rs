//! Memory that a rank of the exchange owns, and how Python sees it.
//!
//! ```text
//!   Rooms   rows, counts, out     what calls leave for the caller: shown as EpView, never copied
//!           act, y                between the products of the experts
//!           x, ids, weights       on a GPU: a batch of fewer tokens than fit; the kernels read whole rooms
//!           numbers               on a GPU: 0, 1, 2 … tokens_max, so that a count need not be written
//! ```
//!
//! What must stay true: a room stays where it is until nobody shows it any more, also after its rank has left.
//! Rust writes to host memory of a room during a call of its rank only, and never holds a reference into it
//! between two calls. That nobody else uses an array of it meanwhile is the caller's promise, as everywhere
//! in `NumPy`.

use crate::dlpack::{self, Form, Kept, Place, Wish};
use crate::ep_error::forked;
use crate::fork::{Own, drop_detached};
use mooncrate_core::Extent;
use mooncrate_ep::{EpError, Payload, Shape};
use mooncrate_gpu::{DeviceBuffer, Gpu, Span, Stream};
use mooncrate_heap::HeapError;
use mooncrate_mem::{Pages, Region};
use mooncrate_paged::{DlpackType, RANK_MAX};
use pyo3::exceptions::{PyAttributeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::sync::Arc;

/// The element types that rooms have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    Bf16,
    U8,
    I32,
    F32,
}

impl Element {
    const fn bytes(self) -> u64 {
        match self {
            Self::U8 => 1,
            Self::Bf16 => 2,
            Self::I32 | Self::F32 => 4,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bfloat16",
            Self::U8 => "uint8",
            Self::I32 => "int32",
            Self::F32 => "float32",
        }
    }

    /// `NumPy` has no name for bf16: two bytes without a meaning.
    const fn typestr(self) -> &'static str {
        match self {
            Self::Bf16 => "|V2",
            Self::U8 => "|u1",
            Self::I32 => "<i4",
            Self::F32 => "<f4",
        }
    }

    const fn dlpack(self) -> DlpackType {
        let (code, bits) = match self {
            Self::I32 => (0, 32),
            Self::U8 => (1, 8),
            Self::F32 => (2, 32),
            Self::Bf16 => (4, 16),
        };
        DlpackType { code, bits, lanes: 1 }
    }
}

enum Memory {
    Host(Region),
    Device(DeviceBuffer),
}

/// A run of memory with a shape.
pub(crate) struct Room {
    /// `None` only while it is dropped.
    memory: Option<Memory>,
    element: Element,
    shape: Vec<u64>,
}

impl Room {
    /// A room of zeros; on the host if there is no GPU.
    fn new(gpu: Option<&Gpu>, element: Element, shape: &[u64]) -> Result<Self, EpError> {
        let bytes = shape.iter().product::<u64>() * element.bytes();
        let memory = if let Some(gpu) = gpu {
            let buffer = DeviceBuffer::new(gpu, bytes)?;
            let stream = Stream::new(gpu)?;
            buffer.span().fill(0, &stream)?;
            stream.synchronize()?;
            Memory::Device(buffer)
        } else {
            let made = Region::anonymous(bytes as usize, Pages::Small);
            Memory::Host(made.map_err(|error| HeapError::Memory { bytes, error })?)
        };
        Ok(Self { memory: Some(memory), element, shape: shape.to_vec() })
    }

    fn memory(&self) -> &Memory {
        self.memory.as_ref().expect("it has it until it is dropped")
    }

    fn bytes(&self) -> u64 {
        self.shape.iter().product::<u64>() * self.element.bytes()
    }

    /// The memory, if it is on a GPU.
    pub(crate) fn span(&self) -> Span<'_> {
        match self.memory() {
            Memory::Device(buffer) => buffer.span(),
            Memory::Host(_) => unreachable!("a rank on a GPU has its rooms there"),
        }
    }

    /// The first element, if it is on the host, and how many bytes there are.
    pub(crate) fn host(&self) -> (*mut u8, usize) {
        match self.memory() {
            Memory::Host(region) => {
                let all = Extent::new(0, self.bytes()).expect("a room is shorter than memory");
                let first = region.check(all).expect("it was mapped in this length");
                (first.as_ptr(), self.bytes() as usize)
            }
            Memory::Device(_) => unreachable!("a rank on the host has its rooms there"),
        }
    }

    fn place(&self) -> Place {
        match self.memory() {
            Memory::Host(_) => Place::Host,
            Memory::Device(buffer) => Place::Cuda(buffer.span().gpu().ordinal().cast_signed()),
        }
    }

    fn first(&self) -> *mut u8 {
        match self.memory() {
            Memory::Host(_) => self.host().0,
            Memory::Device(buffer) => {
                std::ptr::without_provenance_mut(buffer.span().address() as usize)
            }
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.memory = None;
    }
}

/// Memory for the experts that are here.
pub(crate) struct ExpertRooms {
    pub(crate) inter: u32,
    pub(crate) act: Room,
    pub(crate) y: Room,
}

/// What a batch of few tokens is copied to.
pub(crate) struct BatchRooms {
    pub(crate) x: Room,
    pub(crate) ids: Room,
    pub(crate) weights: Room,
    numbers: Room,
}

impl BatchRooms {
    /// Device memory that says so many tokens.
    pub(crate) fn number(&self, tokens: u32) -> Result<Span<'_>, EpError> {
        let at = u64::from(tokens) * 4;
        Ok(self.numbers.span().part(at..at + 4)?)
    }
}

/// All memory of a rank beside its heap.
pub(crate) struct Rooms {
    pub(crate) rows: Arc<Room>,
    pub(crate) counts: Arc<Room>,
    pub(crate) out: Arc<Room>,
    pub(crate) experts: Option<ExpertRooms>,
    /// On a GPU.
    pub(crate) batch: Option<BatchRooms>,
}

impl Rooms {
    pub(crate) fn new(
        shape: &Shape,
        inter: Option<u32>,
        gpu: Option<&Gpu>,
    ) -> Result<Self, EpError> {
        let (local, rows) = (u64::from(shape.local_experts()), u64::from(shape.rows_max()));
        let (tokens, hidden) = (u64::from(shape.tokens_max()), u64::from(shape.hidden()));
        let top_k = u64::from(shape.top_k());
        let room = |element, shape: &[u64]| Room::new(gpu, element, shape);
        let (element, width) = match shape.payload() {
            Payload::Bf16 => (Element::Bf16, hidden),
            Payload::Fp8 => (Element::U8, shape.token_bytes()),
        };
        let experts = inter.map(|inter| {
            Ok::<_, EpError>(ExpertRooms {
                inter,
                act: room(Element::Bf16, &[local, rows, inter.into()])?,
                y: room(Element::Bf16, &[local, rows, hidden])?,
            })
        });
        let batch = gpu.map(|gpu| {
            let numbers = room(Element::I32, &[tokens + 1])?;
            let all: Vec<u8> = (0..=shape.tokens_max()).flat_map(u32::to_le_bytes).collect();
            numbers.span().write(&all, &Stream::new(gpu)?)?;
            Ok::<_, EpError>(BatchRooms {
                x: room(element, &[tokens, width])?,
                // Ids of 64 bits fit, too.
                ids: room(Element::U8, &[tokens, top_k * 8])?,
                weights: room(Element::F32, &[tokens, top_k])?,
                numbers,
            })
        });
        Ok(Self {
            rows: Arc::new(room(element, &[local, rows, width])?),
            counts: Arc::new(room(Element::I32, &[local])?),
            out: Arc::new(room(Element::Bf16, &[tokens, hidden])?),
            experts: experts.transpose()?,
            batch: batch.transpose()?,
        })
    }
}

/// Memory of a rank as a tensor.
#[pyclass(module = "mooncrate.ep", frozen, weakref)]
pub(crate) struct EpView {
    held: Own<Arc<Room>>,
}

impl EpView {
    pub(crate) fn new(room: &Arc<Room>) -> Self {
        Self { held: Own::new(Arc::clone(room)) }
    }

    fn room(&self, py: Python<'_>) -> PyResult<&Arc<Room>> {
        self.held.get().ok_or_else(|| forked(py))
    }

    /// What the two interfaces by dictionary have in common.
    fn interface<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let room = self.room(py)?;
        let dict = PyDict::new(py);
        dict.set_item("version", 3)?;
        dict.set_item("typestr", room.element.typestr())?;
        dict.set_item("shape", PyTuple::new(py, &room.shape)?)?;
        dict.set_item("strides", py.None())?;
        dict.set_item("data", (room.first() as usize, false))?;
        Ok(dict)
    }
}

impl Drop for EpView {
    fn drop(&mut self) {
        if let Some(room) = self.held.take() {
            drop_detached(room);
        }
    }
}

#[pymethods]
impl EpView {
    /// How many along each dimension.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.room(py)?.shape)
    }

    /// The name of the element type.
    #[getter]
    fn dtype(&self, py: Python<'_>) -> PyResult<&'static str> {
        Ok(self.room(py)?.element.name())
    }

    /// The address of the first element.
    #[getter]
    fn data_ptr(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.room(py)?.first() as usize)
    }

    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        if let Place::Cuda(_) = self.room(py)?.place() {
            return Err(PyAttributeError::new_err("__array_interface__: this is memory of a GPU"));
        }
        self.interface(py)
    }

    /// What `NumPy` calls where there is no `__array_interface__`: it says why there is none.
    #[pyo3(signature = (dtype=None, copy=None))]
    fn __array__<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        if let Place::Cuda(ordinal) = slf.get().room(py)?.place() {
            let words = format!(
                "this is memory of GPU {ordinal}, which NumPy cannot address; use torch.from_dlpack(view)"
            );
            return Err(PyTypeError::new_err(words));
        }
        let more = PyDict::new(py);
        more.set_item("dtype", dtype)?;
        more.set_item("copy", copy)?;
        py.import("numpy")?.call_method("array", (slf,), Some(&more))
    }

    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let Place::Cuda(_) = self.room(py)?.place() else {
            let words = "__cuda_array_interface__: this is memory of the host";
            return Err(PyAttributeError::new_err(words));
        };
        let dict = self.interface(py)?;
        // In the order of the stream that its caller used; there is none to name.
        dict.set_item("stream", py.None())?;
        Ok(dict)
    }

    /// Where the memory is, for consumers of `DLPack`.
    fn __dlpack_device__(&self, py: Python<'_>) -> PyResult<(i32, i32)> {
        Ok(self.room(py)?.place().device())
    }

    /// The memory as a tensor of another library, which keeps it.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let room = self.room(py)?;
        if copy == Some(true) {
            let words = "a view of the exchange is not copied here; clone the tensor that shows it";
            return Err(pyo3::exceptions::PyBufferError::new_err(words));
        }
        let stream = stream.is_some();
        let wish = Wish { version: max_version, device: dl_device, stream, copy };
        let device = wish.check(room.place(), None)?;
        let mut form = Form {
            kind: room.element.dlpack(),
            rank: room.shape.len() as u8,
            shape: [0; RANK_MAX],
            strides: [0; RANK_MAX],
        };
        for (to, count) in form.shape.iter_mut().zip(&room.shape) {
            *to = count.cast_signed();
        }
        let (first, owner) = (room.first(), Arc::clone(room));
        let kept = Kept { first, device, form: form.dense(), read_only: false, owner };
        dlpack::capsule(py, kept, &wish)
    }

    fn __repr__(&self) -> String {
        let Some(room) = self.held.get() else {
            return "<mooncrate.ep.EpView of another process>".into();
        };
        let place = match room.place() {
            Place::Host | Place::Pinned => String::new(),
            Place::Cuda(ordinal) => format!(", GPU {ordinal}"),
        };
        format!("<mooncrate.ep.EpView, {} {:?}{place}>", room.element.name(), room.shape)
    }
}
