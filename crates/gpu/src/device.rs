//! One GPU and its primary context, which every other object of this crate keeps alive.

use crate::bound::{Bound, Relaxed};
use crate::driver;
use crate::error::{GpuError, check};
use cudarc::driver::sys::{self, CUcontext, CUdevice, CUdevice_attribute as Attribute, CUresult};
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A GPU. Clones are the same GPU; the context is released when the last of them is gone.
#[derive(Clone, Debug)]
pub struct Gpu {
    inner: Arc<Context>,
}

#[derive(Debug)]
struct Context {
    ordinal: u32,
    device: CUdevice,
    /// The primary context: shared with every other user of CUDA in this process, such as torch.
    raw: CUcontext,
    name: String,
    memory_bytes: u64,
    sm_count: u32,
    compute: (u32, u32),
    driver: u32,
    uuid: [u8; 16],
}

// SAFETY: a context may be current to several threads at once; the driver locks inside.
unsafe impl Send for Context {}
// SAFETY: as above; the fields never change.
unsafe impl Sync for Context {}

impl Gpu {
    /// Opens GPU number `ordinal`, counted from 0 among those that this process may see.
    pub fn open(ordinal: u32) -> Result<Self, GpuError> {
        let driver = driver::start()?;
        // To make a context is unsafe beside a recording, too.
        let _relaxed = Relaxed::new()?;
        let device = device(ordinal)?;
        let (name, memory_bytes) = (name(device)?, memory_bytes(device)?);
        let sm_count = attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let major = attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let uuid = uuid(device)?;
        let mut raw: CUcontext = std::ptr::null_mut();
        // SAFETY: `device` came from the driver, and `raw` is a place for one pointer.
        let retained = unsafe { sys::cuDevicePrimaryCtxRetain(&raw mut raw, device) };
        check("make the context of the GPU", retained)?;
        let compute = (major, minor);
        let inner =
            Context { ordinal, device, raw, name, memory_bytes, sm_count, compute, driver, uuid };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The same, or the one that somebody in this process has open: for callers that come often.
    pub fn shared(ordinal: u32) -> Result<Self, GpuError> {
        static OPEN: Mutex<BTreeMap<u32, Weak<Context>>> = Mutex::new(BTreeMap::new());
        let table = || OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let open = table().get(&ordinal).and_then(Weak::upgrade);
        if let Some(inner) = open {
            return Ok(Self { inner });
        }
        // Out of the lock: the first use of a GPU takes long. Two who open it have the same context.
        let gpu = Self::open(ordinal)?;
        table().insert(ordinal, Arc::downgrade(&gpu.inner));
        Ok(gpu)
    }

    /// Its number among the GPUs that this process may see.
    pub fn ordinal(&self) -> u32 {
        self.inner.ordinal
    }

    /// What the maker calls it.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// What tells it from every other GPU, in every process; numbers differ from process to process.
    pub fn uuid(&self) -> [u8; 16] {
        self.inner.uuid
    }

    /// Bytes of device memory in all.
    pub fn memory_bytes(&self) -> u64 {
        self.inner.memory_bytes
    }

    /// Streaming multiprocessors: how many thread blocks run at once, at least.
    pub fn sm_count(&self) -> u32 {
        self.inner.sm_count
    }

    /// Compute capability, major and minor; 9.0 on an H200.
    pub fn compute_capability(&self) -> (u32, u32) {
        self.inner.compute
    }

    /// The CUDA version that the driver supports, as 1000 × major + 10 × minor.
    pub fn driver_version(&self) -> u32 {
        self.inner.driver
    }

    /// Whether kernels of several processes run side by side on it, by MPS; otherwise processes take turns of milliseconds.
    pub fn has_mps(&self) -> Result<bool, GpuError> {
        Ok(attribute(self.inner.device, Attribute::CU_DEVICE_ATTRIBUTE_MPS_ENABLED)? != 0)
    }

    /// How kernels of this GPU reach the memory of another one.
    pub fn peer(&self, uuid: [u8; 16]) -> Result<Peer, GpuError> {
        if uuid == self.inner.uuid {
            return Ok(Peer::Same);
        }
        for ordinal in 0..count()? {
            let other = device(ordinal)?;
            if self::uuid(other)? == uuid {
                return peer(self.inner.device, other);
            }
        }
        Ok(Peer::Hidden)
    }

    /// Bytes of device memory that are free now, in all processes together.
    pub fn free_bytes(&self) -> Result<u64, GpuError> {
        let _bound = self.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: a context is current, and both are places for one number.
        let asked = unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) };
        check("ask for free device memory", asked)?;
        Ok(free as u64)
    }

    /// Waits until all work of this context has ended, on every stream, also work of other libraries. For the end of
    /// memory that they may use; what is queued here is waited for by its stream or its event.
    ///
    /// A context in which anybody records a graph cannot be waited for as a whole: the driver refuses, and ends the
    /// recording. To free memory waits for the same work, and is allowed.
    pub fn synchronize(&self) -> Result<(), GpuError> {
        const DOING: &str = "wait for the GPU";
        let _bound = self.bind()?;
        let mut address = 0;
        // SAFETY: a context is current, and `address` is a place for one address.
        let made = unsafe { sys::cuMemAlloc_v2(&raw mut address, 1) };
        if made == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            // Not even a byte is left. That the work has ended comes first.
            // SAFETY: a context is current.
            return check(DOING, unsafe { sys::cuCtxSynchronize() });
        }
        check(DOING, made)?;
        // SAFETY: the address was allocated above, and nobody else knows it.
        check(DOING, unsafe { sys::cuMemFree_v2(address) })
    }

    /// Whether both are the same GPU of this process.
    pub fn is(&self, other: &Self) -> bool {
        self.inner.device == other.inner.device
    }

    /// Makes the context current to this thread until the guard is dropped, as nearly every call of the driver wants
    /// it. `self` lives longer than the guard: callers keep it for the time of one call.
    pub(crate) fn bind(&self) -> Result<Bound, GpuError> {
        Bound::new(self.inner.raw)
    }

    /// The number in the driver's own counting, for places in memory.
    pub(crate) fn device(&self) -> CUdevice {
        self.inner.device
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // A failure here means that the driver is shutting down, so there is nothing left to release.
        let _relaxed = Relaxed::new();
        // SAFETY: it was retained once, in `open`, and everything made in it is gone.
        let _ = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

/// How the kernels of one GPU reach the memory of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// It is the same GPU.
    Same,
    /// They load, store, and compare and swap, as in their own memory.
    Whole,
    /// They load and store. What looks like a compare-and-swap is none, for whoever changes the word from elsewhere.
    NoAtomics,
    /// Not at all.
    Unreachable,
    /// This process does not see the other GPU.
    Hidden,
}

fn peer(from: CUdevice, to: CUdevice) -> Result<Peer, GpuError> {
    use sys::CUdevice_P2PAttribute as P2p;
    let ask = |which| {
        let mut value = 0;
        // SAFETY: both came from the driver, and `value` is a place for one number.
        let asked = unsafe { sys::cuDeviceGetP2PAttribute(&raw mut value, which, from, to) };
        check("ask how a GPU reaches another one", asked).map(|()| value != 0)
    };
    if !ask(P2p::CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED)? {
        return Ok(Peer::Unreachable);
    }
    let whole = ask(P2p::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED)?;
    Ok(if whole { Peer::Whole } else { Peer::NoAtomics })
}

/// How many GPUs this process may see. The driver was started.
pub(crate) fn count() -> Result<u32, GpuError> {
    let mut count = 0;
    // SAFETY: the driver has been started, and `count` is a place for one number.
    check("count the GPUs", unsafe { sys::cuDeviceGetCount(&raw mut count) })?;
    Ok(u32::try_from(count).unwrap_or(0))
}

/// The GPU of that number.
pub(crate) fn device(ordinal: u32) -> Result<CUdevice, GpuError> {
    let count = count()?;
    let number = i32::try_from(ordinal).ok().filter(|_| ordinal < count);
    let number = number.ok_or(GpuError::NoDevice { ordinal, count })?;
    let mut device = 0;
    // SAFETY: the driver has been started, and `device` is a place for one number.
    check("find the GPU", unsafe { sys::cuDeviceGet(&raw mut device, number) })?;
    Ok(device)
}

fn name(device: CUdevice) -> Result<String, GpuError> {
    let mut text = [0u8; 256];
    // SAFETY: the driver writes at most 256 bytes, with a zero at the end.
    let asked = unsafe { sys::cuDeviceGetName(text.as_mut_ptr().cast(), 256, device) };
    check("ask for the name of the GPU", asked)?;
    let text = CStr::from_bytes_until_nul(&text).unwrap_or_default();
    Ok(text.to_string_lossy().into_owned())
}

fn uuid(device: CUdevice) -> Result<[u8; 16], GpuError> {
    let mut uuid = sys::CUuuid { bytes: [0; 16] };
    // SAFETY: `uuid` is a place for one.
    let asked = unsafe { sys::cuDeviceGetUuid_v2(&raw mut uuid, device) };
    check("ask for the UUID of the GPU", asked)?;
    Ok(uuid.bytes.map(i8::cast_unsigned))
}

fn memory_bytes(device: CUdevice) -> Result<u64, GpuError> {
    let mut bytes = 0;
    // SAFETY: `bytes` is a place for one number.
    let asked = unsafe { sys::cuDeviceTotalMem_v2(&raw mut bytes, device) };
    check("ask for the memory of the GPU", asked)?;
    Ok(bytes as u64)
}

fn attribute(device: CUdevice, which: Attribute) -> Result<u32, GpuError> {
    let mut value = 0;
    // SAFETY: `value` is a place for one number.
    let asked = unsafe { sys::cuDeviceGetAttribute(&raw mut value, which, device) };
    check("ask for an attribute of the GPU", asked)?;
    Ok(u32::try_from(value).unwrap_or(0))
}
