//! Kernels: PTX text that the driver compiles for its GPU, and functions that can be launched.

use crate::bound::Bound;
use crate::device::Gpu;
use crate::error::{GpuError, check, describe};
use crate::stream::Stream;
use cudarc::driver::sys::{self, CUfunction, CUjit_option, CUlaunchAttribute, CUmodule, CUresult};
use std::ffi::{CString, c_void};
use std::marker::PhantomData;
use std::sync::Arc;

/// Bytes kept of what the driver's compiler has to say about PTX that it refuses.
const LOG_BYTES: usize = 4096;
/// Kernels have at most this many parameters here; CUDA allows far more.
const PARAMS_MAX: usize = 32;

/// Compiled PTX, loaded into the context of one GPU.
#[derive(Clone, Debug)]
pub struct Module {
    inner: Arc<Loaded>,
}

#[derive(Debug)]
struct Loaded {
    raw: CUmodule,
    /// Held so that the context outlives the module.
    gpu: Gpu,
}

// SAFETY: the driver takes a module from any thread.
unsafe impl Send for Loaded {}
// SAFETY: as above; the fields never change.
unsafe impl Sync for Loaded {}

impl Module {
    /// Compiles PTX for this GPU. What the compiler says about a mistake is in the error.
    pub fn load(gpu: &Gpu, ptx: &str) -> Result<Self, GpuError> {
        let _bound = gpu.bind()?;
        let image = CString::new(ptx)
            .map_err(|_| GpuError::Invalid("PTX text with a zero byte in it".into()))?;
        let mut log = vec![0u8; LOG_BYTES];
        let mut options = [
            CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
            CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        ];
        // The driver takes numbers in the place of pointers.
        let mut values = [log.as_mut_ptr().cast::<c_void>(), LOG_BYTES as *mut c_void];
        let (options, values) = (options.as_mut_ptr(), values.as_mut_ptr());
        let mut raw: CUmodule = std::ptr::null_mut();
        // SAFETY: a context is current; the text ends with a zero; there are two options with two
        // values, and the log has as many bytes as it says.
        let loaded = unsafe {
            sys::cuModuleLoadDataEx(&raw mut raw, image.as_ptr().cast(), 2, options, values)
        };
        if loaded != CUresult::CUDA_SUCCESS {
            let said = log.split(|byte| *byte == 0).next().unwrap_or_default();
            let said = String::from_utf8_lossy(said);
            return Err(describe("compile a kernel's PTX", loaded, Some(&said)));
        }
        Ok(Self { inner: Arc::new(Loaded { raw, gpu: gpu.clone() }) })
    }

    /// The kernel of that name, ready to run: its code is on the GPU when this returns, so that the
    /// first launch neither waits nor allocates.
    pub fn kernel(&self, name: &str) -> Result<Kernel, GpuError> {
        let _bound = self.inner.gpu.bind()?;
        let text = CString::new(name)
            .map_err(|_| GpuError::Invalid("the name of a kernel has a zero byte in it".into()))?;
        let mut raw: CUfunction = std::ptr::null_mut();
        // SAFETY: the module is loaded, the name ends with a zero, and `raw` is a place for a pointer.
        let found =
            unsafe { sys::cuModuleGetFunction(&raw mut raw, self.inner.raw, text.as_ptr()) };
        check("find a kernel in its module", found)?;
        // SAFETY: `raw` was just given by the driver.
        check("load a kernel", unsafe { sys::cuFuncLoad(raw) })?;
        let param_bytes = param_bytes(raw)?;
        Ok(Kernel { raw, name: name.to_owned(), param_bytes, module: self.clone() })
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // Code that is running must not be unloaded.
        let Ok(_bound) = self.gpu.bind() else { return };
        if self.gpu.synchronize().is_ok() {
            // SAFETY: no kernel of it is left, because each of them holds the module.
            let _ = unsafe { sys::cuModuleUnload(self.raw) };
        }
    }
}

/// The sizes of a kernel's parameters, as its PTX declares them.
fn param_bytes(kernel: CUfunction) -> Result<Vec<usize>, GpuError> {
    let mut sizes = Vec::new();
    loop {
        let (mut offset, mut bytes) = (0, 0);
        let index = sizes.len();
        // SAFETY: the kernel was given by the driver, and there are places for both numbers.
        let asked =
            unsafe { sys::cuFuncGetParamInfo(kernel, index, &raw mut offset, &raw mut bytes) };
        match asked {
            // The index after the last one.
            CUresult::CUDA_ERROR_INVALID_VALUE => return Ok(sizes),
            answer => check("ask for a kernel's parameters", answer)?,
        }
        sizes.push(bytes);
        if sizes.len() > PARAMS_MAX {
            return Err(GpuError::Invalid(format!(
                "a kernel with more than {PARAMS_MAX} parameters"
            )));
        }
    }
}

/// A function of a module. It keeps its module loaded.
#[derive(Clone, Debug)]
pub struct Kernel {
    raw: CUfunction,
    name: String,
    /// Known from the PTX, so that a launch with other parameters is refused.
    param_bytes: Vec<usize>,
    module: Module,
}

// SAFETY: the driver takes a function from any thread.
unsafe impl Send for Kernel {}
// SAFETY: as above; the fields never change.
unsafe impl Sync for Kernel {}

/// How many threads a launch starts, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Thread blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y and z; at most 1,024 in all.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
    /// Programmatic dependent launch: the blocks may start while the kernel before them in the stream
    /// still runs. Only for a kernel each of whose threads waits for its predecessor itself
    /// (`griddepcontrol.wait`), before it touches anything that the predecessor or work before that reads
    /// or writes, and before it ends: what is queued later waits for this kernel alone.
    pub dependent: bool,
}

impl Launch {
    /// `blocks` blocks of `threads` threads, after everything before them.
    pub const fn linear(blocks: u32, threads: u32) -> Self {
        Self { grid: [blocks, 1, 1], block: [threads, 1, 1], shared_bytes: 0, dependent: false }
    }
}

/// A type whose bytes are a kernel parameter.
///
/// # Safety
///
/// The type has no padding, no pointers into Rust's own memory, and the same layout in CUDA C++.
pub unsafe trait Plain: Copy {}

// SAFETY: a plain number.
unsafe impl Plain for u32 {}
// SAFETY: a plain number.
unsafe impl Plain for i32 {}
// SAFETY: a plain number.
unsafe impl Plain for u64 {}
// SAFETY: a plain number.
unsafe impl Plain for i64 {}
// SAFETY: a plain number.
unsafe impl Plain for f32 {}

/// One parameter of a launch: a borrowed value of a plain type. Addresses are passed as `u64`.
#[derive(Clone, Copy, Debug)]
pub struct Param<'a> {
    value: *mut c_void,
    bytes: usize,
    borrowed: PhantomData<&'a ()>,
}

impl<'a, T: Plain> From<&'a T> for Param<'a> {
    fn from(value: &'a T) -> Self {
        let pointer = std::ptr::from_ref(value).cast_mut().cast();
        Self { value: pointer, bytes: size_of::<T>(), borrowed: PhantomData }
    }
}

impl Kernel {
    /// What the PTX calls it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Queues a launch. The parameters are copied before this returns; their number and sizes are
    /// compared with the kernel's.
    ///
    /// # Safety
    ///
    /// The parameters mean what the kernel takes them for. Every address that the kernel follows is
    /// valid until it has ended (in a recording: whenever the graph is launched), and nobody else uses
    /// host memory that it reaches.
    pub unsafe fn launch(
        &self,
        stream: &Stream,
        launch: Launch,
        params: &[Param<'_>],
    ) -> Result<(), GpuError> {
        let _bound = self.fits(stream, launch, params)?;
        let mut values = [std::ptr::null_mut::<c_void>(); PARAMS_MAX];
        for (place, param) in values.iter_mut().zip(params) {
            *place = param.value;
        }
        let mut attribute = early_start();
        let config = sys::CUlaunchConfig {
            gridDimX: launch.grid[0],
            gridDimY: launch.grid[1],
            gridDimZ: launch.grid[2],
            blockDimX: launch.block[0],
            blockDimY: launch.block[1],
            blockDimZ: launch.block[2],
            sharedMemBytes: launch.shared_bytes,
            hStream: stream.handle(),
            attrs: &raw mut attribute,
            numAttrs: u32::from(launch.dependent),
        };
        let (values, extra) = (values.as_mut_ptr(), std::ptr::null_mut());
        // SAFETY: number and sizes of the parameters were compared with the kernel's, and they are
        // borrowed until after the call; what they mean is the caller's promise.
        let queued = unsafe { sys::cuLaunchKernelEx(&raw const config, self.raw, values, extra) };
        check("launch a kernel", queued)
    }

    /// The context of the GPU, once it is clear that the launch fits the kernel.
    fn fits(
        &self,
        stream: &Stream,
        launch: Launch,
        params: &[Param<'_>],
    ) -> Result<Bound, GpuError> {
        let name = &self.name;
        if launch.grid.contains(&0) || launch.block.contains(&0) {
            let text =
                format!("{name}: a launch of {:?} blocks of {:?}", launch.grid, launch.block);
            return Err(GpuError::Invalid(text));
        }
        if !self.param_bytes.iter().copied().eq(params.iter().map(|param| param.bytes)) {
            let given: Vec<usize> = params.iter().map(|param| param.bytes).collect();
            return Err(GpuError::Invalid(format!(
                "{name} takes parameters of {:?} bytes, but got {given:?}",
                self.param_bytes
            )));
        }
        if !self.module.inner.gpu.is(stream.gpu()) {
            let text = format!("{name}: its module is loaded on another GPU than the stream's");
            return Err(GpuError::Invalid(text));
        }
        self.module.inner.gpu.bind()
    }
}

fn early_start() -> CUlaunchAttribute {
    // SAFETY: the union is plain data of C, for which all zeros is a value.
    let mut value: sys::CUlaunchAttributeValue = unsafe { std::mem::zeroed() };
    value.programmaticStreamSerializationAllowed = 1;
    CUlaunchAttribute {
        id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        pad: [0; 4],
        value,
    }
}
