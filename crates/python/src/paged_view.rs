//! `PagedView`: KV of a sequence, or the pages of a whole layer, as a strided tensor in place.
//!
//! ```text
//!   cache.view(id, layer, "k") ──► PagedView ──► numpy, torch, …   each keeps a share
//!                                     └── the blocks stay with the sequence until the last share is gone
//! ```
//!
//! Memory of the host is shown by `NumPy`'s `__array_interface__` and by `DLPack`; memory of a GPU by
//! `__cuda_array_interface__` and by `DLPack`. Calls of a cache have ended when they return, so a consumer's
//! stream has nothing to wait for. The other way, whoever wrote by kernels of his own waits for them before he
//! calls the cache.
//!
//! What must stay true: the memory stays mapped while anything here shows it. `NumPy` keeps the view itself
//! (`__array_interface__`), so a view has no `release`: it ends when nobody has it.
//!
//! Published blocks are shared and never change, so a view that has one is exported read-only: by the flag of
//! `DLPack` 1.0, and by the one of `NumPy`. A view of private blocks may be written. This is asked at each
//! export: blocks that were published meanwhile count.

use crate::dlpack::{self, Form, Kept, Place, Wish};
use crate::fork::{Own, drop_detached};
use crate::paged_error::forked;
use crate::paged_geometry::dtype_name;
use crate::paged_memory::{base, place};
use mooncrate_paged::{BlockId, BlockView, Cache, DType, RANK_MAX, SequenceView, Tensor};
use pyo3::exceptions::{PyAttributeError, PyBufferError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::sync::Arc;

/// Memory of a paged cache as a tensor.
#[pyclass(module = "mooncrate.paged", frozen, weakref)]
pub(crate) struct PagedView {
    held: Own<Arc<Shown>>,
}

/// What a view and each of its exports have a share of.
struct Shown {
    /// Keeps the blocks with their sequence; `None` for the pages of all.
    sequence: Option<SequenceView>,
    pages: Option<BlockView>,
    cache: Cache,
}

impl Shown {
    fn view(&self) -> &BlockView {
        match (&self.sequence, &self.pages) {
            (Some(sequence), _) => sequence.view(),
            (None, Some(pages)) => pages,
            (None, None) => unreachable!("a view is of a sequence or of pages"),
        }
    }

    fn tensor(&self) -> &Tensor {
        self.view().tensor()
    }

    fn place(&self) -> Place {
        place(&**self.cache.arena())
    }

    /// The address of the first element; on a GPU, if the memory lies there.
    fn first(&self) -> *mut u8 {
        base(&**self.cache.arena()).wrapping_add(self.tensor().byte_offset() as usize)
    }

    /// Whether it has blocks that others may share. Of the pages of all blocks the engine knows which.
    fn is_read_only(&self) -> bool {
        if self.sequence.is_none() {
            return false;
        }
        let (run, pool) = (self.view().run(), self.cache.pool());
        (0..run.count).any(|step| !pool.is_private(BlockId(run.first.0 + step)))
    }

    fn form(&self) -> Form {
        let tensor = self.tensor();
        let (mut shape, mut strides) = ([0; RANK_MAX], [0; RANK_MAX]);
        let rank = tensor.shape().len();
        shape[..rank].copy_from_slice(tensor.shape());
        strides[..rank].copy_from_slice(tensor.strides());
        Form { kind: tensor.dtype().dlpack(), rank: rank as u8, shape, strides }
    }

    /// The elements without gaps, in memory that any element type is aligned in. Of host memory only.
    fn dense(&self) -> Vec<u64> {
        let host = self.cache.arena().host().expect("memory of a GPU was refused by `Wish::check`");
        let (tensor, base) = (self.tensor(), host.base().as_ptr());
        let shape: Vec<u64> = tensor.shape().iter().map(|count| count.cast_unsigned()).collect();
        let Some((row, outer)) = shape.split_last() else { return Vec::new() };
        let row = (*row * u64::from(tensor.dtype().bytes())) as usize;
        let rows = outer.iter().product::<u64>() as usize;
        let mut dense = vec![0_u64; (rows * row).div_ceil(8)];
        let target = dense.as_mut_ptr().cast::<u8>();
        let mut index = vec![0; outer.len()];
        for number in 0..rows {
            let offset = tensor.offset_of(&index).expect("the index counts inside of the shape");
            let source = base.wrapping_add(offset as usize);
            let to = target.wrapping_add(number * row);
            // SAFETY: the vectors of a tensor of an arena lie in its mapping, which `self` keeps, and their
            // elements are neighbours; `dense` has room for all rows. It is new, so they do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(source, to, row) };
            // Like an odometer: the last place turns, and where it is full the one before.
            for (at, count) in index.iter_mut().zip(outer).rev() {
                *at += 1;
                if *at < *count {
                    break;
                }
                *at = 0;
            }
        }
        dense
    }
}

impl PagedView {
    pub(crate) fn of_sequence(sequence: SequenceView, cache: &Cache) -> Self {
        let shown = Shown { sequence: Some(sequence), pages: None, cache: cache.clone() };
        Self { held: Own::new(Arc::new(shown)) }
    }

    pub(crate) fn of_pages(pages: BlockView, cache: &Cache) -> Self {
        let shown = Shown { sequence: None, pages: Some(pages), cache: cache.clone() };
        Self { held: Own::new(Arc::new(shown)) }
    }

    fn shown(&self, py: Python<'_>) -> PyResult<&Arc<Shown>> {
        self.held.get().ok_or_else(|| forked(py))
    }

    /// Refuses what only memory of the host can do.
    fn check_host(&self, py: Python<'_>) -> PyResult<()> {
        let Place::Cuda(ordinal) = self.shown(py)?.place() else { return Ok(()) };
        let words = format!(
            "this view is memory of GPU {ordinal}, which NumPy cannot address; use \
             torch.from_dlpack(view), or cache.read_tokens(...) for a copy on the host"
        );
        Err(PyTypeError::new_err(words))
    }

    /// What the two interfaces by dictionary have in common.
    fn interface<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (shown, read_only) = (self.shown(py)?, self.readonly(py)?);
        let tensor = shown.tensor();
        let bytes = i64::from(tensor.dtype().bytes());
        let strides = tensor.strides().iter().map(|stride| stride * bytes);
        let dict = PyDict::new(py);
        dict.set_item("version", 3)?;
        dict.set_item("typestr", typestr(tensor.dtype()))?;
        dict.set_item("shape", PyTuple::new(py, tensor.shape())?)?;
        dict.set_item("strides", PyTuple::new(py, strides.collect::<Vec<i64>>())?)?;
        dict.set_item("data", (shown.first() as usize, read_only))?;
        Ok(dict)
    }
}

impl Drop for PagedView {
    fn drop(&mut self) {
        if let Some(shown) = self.held.take() {
            drop_detached(shown);
        }
    }
}

/// Types that `NumPy` has no name for are shown as so many bytes without a meaning.
const fn typestr(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "<f4",
        DType::F16 => "<f2",
        DType::I8 => "|i1",
        DType::Bf16 => "|V2",
        DType::Fp8E4m3 | DType::Fp8E5m2 => "|V1",
    }
}

/// Eight-bit floats have numbers since `DLPack` 1.1.
fn check_known(dtype: DType, version: Option<(u32, u32)>) -> PyResult<()> {
    let is_new = matches!(dtype, DType::Fp8E4m3 | DType::Fp8E5m2);
    if !is_new || version.is_some_and(|version| version >= (1, 1)) {
        return Ok(());
    }
    let name = dtype_name(dtype);
    let words = format!(
        "DLPack knows {name} since version 1.1, which this consumer does not ask for; use \
         view.numpy(raw=True), whose elements are the bits"
    );
    Err(PyBufferError::new_err(words))
}

#[pymethods]
impl PagedView {
    /// How many along each dimension.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.shown(py)?.tensor().shape())
    }

    /// Elements from one to the next along each dimension.
    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.shown(py)?.tensor().strides())
    }

    /// The name of the element type.
    #[getter]
    fn dtype(&self, py: Python<'_>) -> PyResult<&'static str> {
        Ok(dtype_name(self.shown(py)?.tensor().dtype()))
    }

    /// The address of the first element.
    #[getter]
    fn data_ptr(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.shown(py)?.first() as usize)
    }

    /// Whether an array that is made now may only be read.
    #[getter]
    fn readonly(&self, py: Python<'_>) -> PyResult<bool> {
        let shown = self.shown(py)?;
        Ok(py.detach(|| shown.is_read_only()))
    }

    /// Whether the elements lie together, in C order.
    #[getter]
    fn contiguous(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.shown(py)?.tensor().is_contiguous())
    }

    /// An array of `NumPy` over the same memory, which keeps the view. With `raw` its elements are unsigned
    /// integers, the bits.
    #[pyo3(signature = (*, raw=false))]
    fn numpy<'py>(slf: &Bound<'py, Self>, raw: bool) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        slf.get().check_host(py)?;
        let name = slf.get().dtype(py)?;
        let array = py.import("numpy")?.call_method1("asarray", (slf,))?;
        py.import("mooncrate.paged")?.call_method1("typed", (array, name, raw))
    }

    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        if let Place::Cuda(_) = self.shown(py)?.place() {
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
        slf.get().check_host(py)?;
        let more = PyDict::new(py);
        more.set_item("dtype", dtype)?;
        more.set_item("copy", copy)?;
        py.import("numpy")?.call_method("array", (slf,), Some(&more))
    }

    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let Place::Cuda(_) = self.shown(py)?.place() else {
            let words = "__cuda_array_interface__: this is memory of the host";
            return Err(PyAttributeError::new_err(words));
        };
        let dict = self.interface(py)?;
        // Nothing to wait for: calls of the cache have ended when they return.
        dict.set_item("stream", py.None())?;
        Ok(dict)
    }

    /// Where the memory is, for consumers of `DLPack`.
    fn __dlpack_device__(&self, py: Python<'_>) -> PyResult<(i32, i32)> {
        Ok(self.shown(py)?.place().device())
    }

    /// The memory as a tensor of another library, which keeps the blocks; with `copy=True` a copy.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (shown, read_only) = (self.shown(py)?, self.readonly(py)?);
        let stream = stream.is_some();
        let wish = Wish { version: max_version, device: dl_device, stream, copy };
        let instead = match shown.place() {
            Place::Cuda(_) => "cache.view(…, own=True), which shows no published block",
            Place::Host | Place::Pinned => "view.numpy()",
        };
        let device = wish.check(shown.place(), read_only.then_some(instead))?;
        check_known(shown.tensor().dtype(), max_version)?;
        let form = shown.form();
        if copy == Some(true) {
            let mut own = py.detach(|| shown.dense());
            let (first, form) = (own.as_mut_ptr().cast(), form.dense());
            let kept = Kept { first, device, form, read_only: false, owner: own };
            return dlpack::capsule(py, kept, &wish);
        }
        let (first, owner) = (shown.first(), Arc::clone(shown));
        dlpack::capsule(py, Kept { first, device, form, read_only, owner }, &wish)
    }

    fn __repr__(&self) -> String {
        let Some(shown) = self.held.get() else {
            return "<mooncrate.paged.PagedView of another process>".into();
        };
        let tensor = shown.tensor();
        let access = if shown.is_read_only() { ", read-only" } else { "" };
        let (name, shape) = (dtype_name(tensor.dtype()), tensor.shape());
        let place = match shown.place() {
            Place::Host => String::new(),
            Place::Pinned => ", pinned".into(),
            Place::Cuda(ordinal) => format!(", GPU {ordinal}"),
        };
        format!("<mooncrate.paged.PagedView, {name} {shape:?}{place}{access}>")
    }
}
