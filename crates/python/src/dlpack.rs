//! `DLPack`: memory as a tensor of another library, without a copy.
//!
//! ```text
//!   view.__dlpack__() ──► capsule ──consumed──► array of NumPy, torch, …
//!                           │ holds the pin       │ the deleter gives it back, once, from any thread
//! ```
//!
//! The structures are those of `DLPack` 1.0 and of its older form. What must stay true: the memory stays
//! pinned until the deleter has run; read-only memory is handed out only where its consumer can be told
//! that it is, which the older form cannot.

use crate::fork::{Own, drop_detached};
use mooncrate_paged::{DlpackType, RANK_MAX};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::{CStr, c_void};
use std::mem::offset_of;

/// Memory of the host, as `DLPack` numbers it.
pub(crate) const HOST: (i32, i32) = (1, 0);
/// Memory of the host that is page-locked for GPUs.
const PINNED: (i32, i32) = (3, 0);
/// Nothing newer is used but the numbers of the eight-bit floats, which only those are given who ask for 1.1.
const VERSION: [u32; 2] = [1, 0];
const READ_ONLY: u64 = 1;
const IS_COPIED: u64 = 2;

#[repr(C)]
struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device_kind: i32,
    device: i32,
    dimensions: i32,
    kind: DataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}
const _: () = assert!(size_of::<Tensor>() == 48 && offset_of!(Tensor, shape) == 24);

/// What the older form hands out.
#[repr(C)]
struct Managed {
    tensor: Tensor,
    context: *mut c_void,
    deleter: unsafe extern "C" fn(*mut Managed),
}
const _: () = assert!(size_of::<Managed>() == 64 && offset_of!(Managed, context) == 48);

#[repr(C)]
struct ManagedVersioned {
    version: [u32; 2],
    context: *mut c_void,
    deleter: unsafe extern "C" fn(*mut ManagedVersioned),
    flags: u64,
    tensor: Tensor,
}
const _: () = assert!(size_of::<ManagedVersioned>() == 80);
const _: () = assert!(offset_of!(ManagedVersioned, tensor) == 32);

/// What the two forms have in common.
trait Head: Sized + 'static {
    /// What a capsule is called until somebody has taken the tensor out of it.
    const NAME: &'static CStr;
    fn new(tensor: Tensor, flags: u64, deleter: unsafe extern "C" fn(*mut Self)) -> Self;
    fn parts(&mut self) -> (&mut Tensor, &mut *mut c_void);
    fn context(&self) -> *mut c_void;
}

impl Head for Managed {
    const NAME: &'static CStr = c"dltensor";

    fn new(tensor: Tensor, _flags: u64, deleter: unsafe extern "C" fn(*mut Self)) -> Self {
        Self { tensor, context: std::ptr::null_mut(), deleter }
    }

    fn parts(&mut self) -> (&mut Tensor, &mut *mut c_void) {
        (&mut self.tensor, &mut self.context)
    }

    fn context(&self) -> *mut c_void {
        self.context
    }
}

impl Head for ManagedVersioned {
    const NAME: &'static CStr = c"dltensor_versioned";

    fn new(tensor: Tensor, flags: u64, deleter: unsafe extern "C" fn(*mut Self)) -> Self {
        Self { version: VERSION, context: std::ptr::null_mut(), deleter, flags, tensor }
    }

    fn parts(&mut self) -> (&mut Tensor, &mut *mut c_void) {
        (&mut self.tensor, &mut self.context)
    }

    fn context(&self) -> *mut c_void {
        self.context
    }
}

/// A head, and all that it points to.
struct Export<H, O: Send + 'static> {
    head: H,
    shape: [i64; RANK_MAX],
    strides: [i64; RANK_MAX],
    owner: Own<O>,
}

/// Where memory lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Host,
    /// The host, page-locked.
    Pinned,
    /// The GPU of this number.
    Cuda(i32),
}

impl Place {
    /// As `DLPack` numbers it.
    pub(crate) const fn device(self) -> (i32, i32) {
        match self {
            Self::Host => HOST,
            Self::Pinned => PINNED,
            Self::Cuda(ordinal) => (2, ordinal),
        }
    }
}

/// What a consumer asks for.
pub(crate) struct Wish {
    /// The latest version it understands; `None`: the older form only.
    pub(crate) version: Option<(u32, u32)>,
    pub(crate) device: Option<(i32, i32)>,
    pub(crate) stream: bool,
    pub(crate) copy: Option<bool>,
}

impl Wish {
    /// Refuses what memory at this place cannot be. `instead`: the memory is read-only, and this is how to
    /// get it where a consumer cannot be told so. Gives the device that the capsule names.
    pub(crate) fn check(&self, place: Place, instead: Option<&str>) -> PyResult<(i32, i32)> {
        // Every call of ours has ended when it returns, so a stream of the consumer has nothing to wait for.
        if self.stream && place == Place::Host {
            return Err(PyBufferError::new_err("a view is host memory: stream must be None"));
        }
        let device = self.device_for(place)?;
        if self.copy == Some(true) && matches!(place, Place::Cuda(_)) {
            let words = "a view of GPU memory is not copied here; clone the tensor that shows it";
            return Err(PyBufferError::new_err(words));
        }
        let Some(instead) = instead else { return Ok(device) };
        if self.copy != Some(true) && !self.is_versioned() {
            let words = format!(
                "a view is read-only, and this consumer cannot be told: it asked for DLPack without \
                 max_version=(1, 0); ask for a copy with copy=True, or use {instead}"
            );
            return Err(PyBufferError::new_err(words));
        }
        Ok(device)
    }

    /// Pinned memory is memory of the host, too. Unless its consumer asks for the number of pinned memory,
    /// the capsule has the one of the host: torch shows such memory and knows by itself that it is pinned,
    /// but refuses the number.
    fn device_for(&self, place: Place) -> PyResult<(i32, i32)> {
        let fits: &[(i32, i32)] = match place {
            Place::Pinned => &[HOST, PINNED],
            Place::Host | Place::Cuda(_) => &[place.device()],
        };
        let asked = self.device.unwrap_or(fits[0]);
        if fits.contains(&asked) {
            return Ok(asked);
        }
        let (what, (kind, number)) = match place {
            Place::Host | Place::Pinned => ("host memory".to_owned(), HOST),
            Place::Cuda(ordinal) => (format!("memory of GPU {ordinal}"), place.device()),
        };
        let words = format!(
            "a view is {what}, device ({kind}, {number}); copy the array to the other device"
        );
        Err(PyBufferError::new_err(words))
    }

    fn is_versioned(&self) -> bool {
        self.version.is_some_and(|(major, _)| major >= 1)
    }
}

/// What the elements are, how many there are, and how far apart.
#[derive(Clone, Copy)]
pub(crate) struct Form {
    pub(crate) kind: DlpackType,
    /// Dimensions, at most as many as the arrays below have.
    pub(crate) rank: u8,
    pub(crate) shape: [i64; RANK_MAX],
    /// In elements.
    pub(crate) strides: [i64; RANK_MAX],
}

impl Form {
    /// So many bytes that follow each other.
    pub(crate) fn bytes(len: usize) -> Self {
        let kind = DlpackType { code: 1, bits: 8, lanes: 1 };
        let (mut shape, mut strides) = ([0; RANK_MAX], [0; RANK_MAX]);
        (shape[0], strides[0]) = (len.cast_signed() as i64, 1);
        Self { kind, rank: 1, shape, strides }
    }

    /// The same elements without gaps.
    pub(crate) fn dense(mut self) -> Self {
        let mut inside = 1;
        for (count, stride) in self.shape.iter().zip(&mut self.strides).take(self.rank.into()).rev()
        {
            *stride = inside;
            inside *= (*count).max(1);
        }
        self
    }
}

/// Memory, and whoever keeps it where it is.
pub(crate) struct Kept<O> {
    /// An address of the device below.
    pub(crate) first: *mut u8,
    pub(crate) device: (i32, i32),
    pub(crate) form: Form,
    /// Whether its consumer may only read. A copy belongs to the consumer and never is.
    pub(crate) read_only: bool,
    pub(crate) owner: O,
}

/// A capsule that shows the memory, which the wish was checked for.
pub(crate) fn capsule<'py, O: Send + 'static>(
    py: Python<'py>,
    kept: Kept<O>,
    wish: &Wish,
) -> PyResult<Bound<'py, PyAny>> {
    let mut flags = if kept.read_only { READ_ONLY } else { 0 };
    if wish.copy == Some(true) {
        flags |= IS_COPIED;
    }
    if wish.is_versioned() {
        wrapped::<ManagedVersioned, O>(py, kept, flags)
    } else {
        wrapped::<Managed, O>(py, kept, flags)
    }
}

fn wrapped<H: Head, O: Send + 'static>(
    py: Python<'_>,
    kept: Kept<O>,
    flags: u64,
) -> PyResult<Bound<'_, PyAny>> {
    let Kept { first, form, owner, device, .. } = kept;
    let DlpackType { code, bits, lanes } = form.kind;
    let tensor = Tensor {
        data: first.cast(),
        device_kind: device.0,
        device: device.1,
        dimensions: i32::from(form.rank),
        kind: DataType { code, bits, lanes },
        // Set below, when the export has its place.
        shape: std::ptr::null_mut(),
        strides: std::ptr::null_mut(),
        byte_offset: 0,
    };
    let head = H::new(tensor, flags, delete::<H, O>);
    let (shape, strides, owner) = (form.shape, form.strides, Own::new(owner));
    let export = Box::into_raw(Box::new(Export { head, shape, strides, owner }));
    // SAFETY: it was made above, and nobody else has it.
    let made = unsafe { &mut *export };
    let (tensor, context) = made.head.parts();
    tensor.shape = made.shape.as_mut_ptr();
    tensor.strides = made.strides.as_mut_ptr();
    *context = export.cast();
    let head: *mut H = &raw mut made.head;
    // SAFETY: the head lives until its deleter is called; the name is static; the destructor fits both.
    let raw = unsafe { ffi::PyCapsule_New(head.cast(), H::NAME.as_ptr(), Some(forsaken::<H, O>)) };
    // SAFETY: a new reference, or null with an exception.
    unsafe { Bound::from_owned_ptr_or_err(py, raw) }.inspect_err(|_| {
        // SAFETY: there is no capsule, so nobody else will call it.
        unsafe { delete::<H, O>(head) };
    })
}

/// What a consumer calls when it needs the tensor no more.
///
/// # Safety
/// Once, with a head that [`wrapped`] made.
unsafe extern "C" fn delete<H: Head, O: Send + 'static>(head: *mut H) {
    if head.is_null() {
        return;
    }
    // SAFETY: the caller passes a head of ours that is alive.
    let context = unsafe { (*head).context() };
    // SAFETY: the context is the export that `wrapped` leaked, and this is the one time it is taken back.
    let export = unsafe { Box::from_raw(context.cast::<Export<H, O>>()) };
    drop_detached(export.owner);
}

/// What Python calls when a capsule goes.
///
/// # Safety
/// With a capsule that [`wrapped`] made.
unsafe extern "C" fn forsaken<H: Head, O: Send + 'static>(capsule: *mut ffi::PyObject) {
    // SAFETY: `capsule` is alive; the question raises nothing.
    if unsafe { ffi::PyCapsule_IsValid(capsule, H::NAME.as_ptr()) } == 0 {
        // Whoever took the tensor out gave the capsule another name, and calls the deleter.
        return;
    }
    // SAFETY: it is valid under this name, as asked above.
    let head = unsafe { ffi::PyCapsule_GetPointer(capsule, H::NAME.as_ptr()) };
    // SAFETY: nobody took the tensor, so the deleter was not called and will not be.
    unsafe { delete::<H, O>(head.cast()) };
}

/// Where the memory of a capsule is, how long it is, whether it lies in one run in C order, and whether it may
/// only be read. The capsule keeps the memory, and is not consumed.
#[pyfunction]
pub(crate) fn dlpack_memory(capsule: &Bound<'_, PyAny>) -> PyResult<(usize, usize, bool, bool)> {
    let (tensor, read_only) = held(capsule)?;
    described(tensor, read_only)
}

/// What the elements of a capsule are, as (code, bits, lanes), and how many there are along each dimension.
#[pyfunction]
pub(crate) fn dlpack_tensor(capsule: &Bound<'_, PyAny>) -> PyResult<((u8, u8, u16), Vec<i64>)> {
    let (tensor, _) = held(capsule)?;
    let DataType { code, bits, lanes } = tensor.kind;
    let rank = usize::try_from(tensor.dimensions).unwrap_or(0);
    // SAFETY: a tensor has as many lengths as dimensions.
    let shape = (0..rank).map(|at| unsafe { tensor.shape.wrapping_add(at).read() });
    Ok(((code, bits, lanes), shape.collect()))
}

/// The tensor in a capsule, and whether it may only be read.
fn held<'a>(capsule: &'a Bound<'_, PyAny>) -> PyResult<(&'a Tensor, bool)> {
    if let Some(head) = pointer::<ManagedVersioned>(capsule) {
        // SAFETY: a capsule of this name has such a head, which lives as long as the capsule.
        let major = unsafe { (*head).version }[0];
        if major != VERSION[0] {
            let words = format!("the capsule has DLPack {major}, and 1 is understood");
            return Err(PyBufferError::new_err(words));
        }
        // SAFETY: as above.
        let flags = unsafe { (*head).flags };
        // SAFETY: as above; its fields are plain numbers and pointers.
        let tensor = unsafe { &(*head).tensor };
        return Ok((tensor, flags & READ_ONLY != 0));
    }
    if let Some(head) = pointer::<Managed>(capsule) {
        // SAFETY: a capsule of this name has such a head, which lives as long as the capsule.
        let tensor = unsafe { &(*head).tensor };
        return Ok((tensor, false));
    }
    Err(PyBufferError::new_err("the capsule holds no tensor, or it was taken out already"))
}

/// The head of a capsule of this form, if it is one.
fn pointer<H: Head>(capsule: &Bound<'_, PyAny>) -> Option<*const H> {
    // SAFETY: the object is alive; the question raises nothing.
    if unsafe { ffi::PyCapsule_IsValid(capsule.as_ptr(), H::NAME.as_ptr()) } == 0 {
        return None;
    }
    // SAFETY: it is valid under this name, as asked above.
    let head = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), H::NAME.as_ptr()) };
    Some(head.cast_const().cast())
}

fn described(tensor: &Tensor, read_only: bool) -> PyResult<(usize, usize, bool, bool)> {
    let senseless = || PyBufferError::new_err("the tensor has a shape that no memory has");
    let rank = usize::try_from(tensor.dimensions).map_err(|_| senseless())?;
    let (mut count, mut dense) = (1_i64, true);
    for at in (0..rank).rev() {
        // SAFETY: a tensor has as many lengths as dimensions.
        let len = unsafe { tensor.shape.wrapping_add(at).read() };
        // Without strides it lies in C order.
        if !tensor.strides.is_null() {
            // SAFETY: and as many strides, if it has any.
            let stride = unsafe { tensor.strides.wrapping_add(at).read() };
            dense &= len == 1 || stride == count;
        }
        count = count.checked_mul(len).filter(|count| *count >= 0).ok_or_else(senseless)?;
    }
    let bits = u64::from(tensor.kind.bits) * u64::from(tensor.kind.lanes);
    let bits = bits.checked_mul(count.cast_unsigned()).ok_or_else(senseless)?;
    let bytes = usize::try_from(bits.div_ceil(8)).map_err(|_| senseless())?;
    let first = (tensor.data as usize).checked_add(tensor.byte_offset as usize);
    Ok((first.ok_or_else(senseless)?, bytes, dense || count == 0, read_only))
}
