//! Memory and streams that another library of this process made, such as torch.
//!
//! Nothing here is taken on trust that the driver can tell: an address is looked up in its book, with the
//! GPU and the length of what was allocated there. What the driver cannot tell, that the memory stays
//! allocated and the stream alive, is the caller's promise.

use crate::bound::{Bound, Relaxed, current};
use crate::device::{Gpu, count, device};
use crate::driver;
use crate::error::{GpuError, check, check_recording};
use crate::stream::Event;
use cudarc::driver::sys::{self, CUpointer_attribute as Attribute, CUstream};
use std::ffi::{c_uint, c_void};

/// Ranges that one look may cross: memory that was mapped page by page has many, next to each other.
const RANGES_MAX: usize = 1 << 16;

/// What the driver knows of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing: ordinary memory of the host, freed memory, or none at all.
    Unknown,
    /// Memory of the host that is page-locked.
    Host,
    /// Managed memory, which host and GPUs can address.
    Managed,
    /// Memory of a GPU.
    Device {
        /// The number of the GPU.
        ordinal: u32,
        /// Where the allocation begins, or the piece of it that the driver tells apart.
        start: u64,
        /// How long that is.
        bytes: u64,
    },
}

/// Whether the driver was loaded by this crate, or by another library of this process. Costs no load.
pub fn driver_is_loaded() -> bool {
    driver::is_loaded()
}

/// Looks an address up. Where no library of this process uses a GPU, nothing is started on one, and the
/// answer is [`Found::Unknown`].
pub fn look(address: u64) -> Result<Found, GpuError> {
    let Some(_any) = Any::context()? else { return Ok(Found::Unknown) };
    Ok(ask(address))
}

/// A context for questions that any context answers: the one of this thread, or of a GPU that is in use.
struct Any {
    /// Before the GPU, whose context it is.
    _bound: Option<Bound>,
    _gpu: Option<Gpu>,
    _relaxed: Relaxed,
}

impl Any {
    /// `None`: nothing in this process uses a GPU.
    fn context() -> Result<Option<Self>, GpuError> {
        driver::start()?;
        let relaxed = Relaxed::new()?;
        if !current()?.is_null() {
            return Ok(Some(Self { _bound: None, _gpu: None, _relaxed: relaxed }));
        }
        let Some(gpu) = active()? else { return Ok(None) };
        Ok(Some(Self { _bound: Some(gpu.bind()?), _gpu: Some(gpu), _relaxed: relaxed }))
    }
}

/// The GPU that has all of these bytes, or why they cannot be used.
pub fn device_of(address: u64, bytes: u64) -> Result<u32, GpuError> {
    let end = address.checked_add(bytes);
    let end = end.ok_or_else(|| GpuError::Invalid("memory that reaches past the end".into()))?;
    let _any = Any::context()?;
    let Found::Device { ordinal, start, bytes: have } = look(address)? else {
        return Err(GpuError::Invalid(format!(
            "the {bytes} bytes at {address:#x} are not memory of a GPU that this process uses: they were \
             freed, never allocated, or are host memory"
        )));
    };
    // An allocation that was mapped in pieces is told piece by piece.
    let mut covered = start.saturating_add(have);
    for _ in 0..RANGES_MAX {
        if covered >= end {
            return Ok(ordinal);
        }
        match ask(covered) {
            Found::Device { ordinal: other, start, bytes }
                if other == ordinal && start.saturating_add(bytes) > covered =>
            {
                covered = start.saturating_add(bytes);
            }
            _ => break,
        }
    }
    if covered >= end {
        return Ok(ordinal);
    }
    let have = covered.saturating_sub(address);
    Err(GpuError::Invalid(format!(
        "only {have} bytes are allocated on GPU {ordinal} from {address:#x} on, and {bytes} are named; give \
         the length of the array"
    )))
}

/// A context is current to this thread.
fn ask(address: u64) -> Found {
    let (mut kind, mut ordinal, mut managed): (c_uint, i32, c_uint) = (0, -1, 0);
    let (mut start, mut bytes) = (0_u64, 0_usize);
    let mut which = [
        Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED,
        Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
        Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE,
    ];
    let mut places: [*mut c_void; 5] = [
        (&raw mut kind).cast(),
        (&raw mut ordinal).cast(),
        (&raw mut managed).cast(),
        (&raw mut start).cast(),
        (&raw mut bytes).cast(),
    ];
    let count = which.len() as c_uint;
    // SAFETY: as many attributes as places, each as wide as its attribute is; the driver takes any address,
    // and knows nothing of those that are not its own.
    let asked = unsafe {
        sys::cuPointerGetAttributes(count, which.as_mut_ptr(), places.as_mut_ptr(), address)
    };
    if asked != sys::CUresult::CUDA_SUCCESS {
        return Found::Unknown;
    }
    // A flag of one byte in some versions of the driver.
    if managed & 0xff != 0 {
        return Found::Managed;
    }
    if kind == sys::CUmemorytype::CU_MEMORYTYPE_HOST as c_uint {
        return Found::Host;
    }
    match u32::try_from(ordinal) {
        Ok(ordinal) if kind == sys::CUmemorytype::CU_MEMORYTYPE_DEVICE as c_uint && bytes > 0 => {
            Found::Device { ordinal, start, bytes: bytes as u64 }
        }
        _ => Found::Unknown,
    }
}

/// A GPU whose primary context somebody uses already.
fn active() -> Result<Option<Gpu>, GpuError> {
    for ordinal in 0..count()? {
        let (device, mut flags, mut is_active) = (device(ordinal)?, 0, 0);
        // SAFETY: `device` came from the driver; both are places for one number.
        let asked =
            unsafe { sys::cuDevicePrimaryCtxGetState(device, &raw mut flags, &raw mut is_active) };
        check("ask for the state of a context", asked)?;
        if is_active != 0 {
            return Gpu::shared(ordinal).map(Some);
        }
    }
    Ok(None)
}

/// A stream of another library. It is used to order work against it, and no work is queued on it.
#[derive(Clone, Debug)]
pub struct ForeignStream {
    raw: CUstream,
    gpu: Gpu,
}

// SAFETY: the driver takes a stream from any thread. Handle 2 names another stream in each thread, which is
// unspecified order and no danger.
unsafe impl Send for ForeignStream {}
// SAFETY: as above; nothing here changes.
unsafe impl Sync for ForeignStream {}

impl ForeignStream {
    /// The default stream that all threads share.
    pub fn legacy(gpu: &Gpu) -> Self {
        Self { raw: std::ptr::null_mut(), gpu: gpu.clone() }
    }

    /// A stream by its handle: 0 and 1 are the default stream that all threads share, 2 the default stream
    /// of whichever thread calls.
    ///
    /// # Safety
    ///
    /// The handle is one of these, or a stream that lives as long as this and its clones.
    pub unsafe fn of_others(gpu: &Gpu, handle: u64) -> Self {
        let raw = std::ptr::with_exposed_provenance_mut(handle as usize);
        Self { raw, gpu: gpu.clone() }
    }

    /// Whether both are the same stream, for callers in one thread.
    pub fn is(&self, other: &Self) -> bool {
        self.raw == other.raw && self.gpu.is(&other.gpu)
    }

    /// The GPU it was given for.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// A mark after all that is queued so far. Refused while the stream is recorded into a graph, which
    /// would never pass the mark.
    pub fn mark(&self) -> Result<Event, GpuError> {
        let _bound = self.gpu.bind()?;
        self.not_recording("order a copy after a stream")?;
        let event = Event::untimed(&self.gpu)?;
        event.record_raw(self.raw)?;
        Ok(event)
    }

    /// What is queued from now on begins after the work that `event` marks.
    pub fn wait(&self, event: &Event) -> Result<(), GpuError> {
        let _bound = self.gpu.bind()?;
        self.not_recording("order a stream after a copy")?;
        // SAFETY: the stream lives by the caller's promise; the driver keeps what it needs of the event.
        let waits = unsafe { sys::cuStreamWaitEvent(self.raw, event.handle(), 0) };
        check("let a stream wait for an event", waits)
    }

    /// The context of its GPU is current to this thread.
    fn not_recording(&self, operation: &'static str) -> Result<(), GpuError> {
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the stream lives by the caller's promise, and `status` is a place for the answer.
        let asked = unsafe { sys::cuStreamIsCapturing(self.raw, &raw mut status) };
        check_recording(operation, asked)?;
        match status {
            sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE => Ok(()),
            _ => Err(GpuError::Recording { operation }),
        }
    }
}
