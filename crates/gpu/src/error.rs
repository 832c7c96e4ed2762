//! What can go wrong, in one enum: the operation, CUDA's name and number, and what to do.

use cudarc::driver::sys::{self, CUresult};
use std::ffi::{CStr, c_char};

/// Why a GPU operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// The driver library cannot be loaded.
    #[error(
        "no CUDA driver: libcuda.so.1 cannot be loaded; install NVIDIA's driver (580 or later), or, \
         in a container, start it with access to the GPU"
    )]
    NoDriver,
    /// The driver works, but there is no such GPU.
    #[error("no GPU number {ordinal}: the CUDA driver shows {count}; see CUDA_VISIBLE_DEVICES")]
    NoDevice {
        /// The number that was asked for, from 0.
        ordinal: u32,
        /// How many GPUs the driver shows to this process.
        count: u32,
    },
    /// The driver is older than the functions and the PTX version used here.
    #[error(
        "the CUDA driver supports CUDA {}.{}, but {}.{} is needed; install driver 580 or later",
        found / 1000, found % 1000 / 10, needed / 1000, needed % 1000 / 10
    )]
    OldDriver {
        /// What the driver reports, as 1000 × major + 10 × minor.
        found: u32,
        /// What is needed, in the same form.
        needed: u32,
    },
    /// The driver refused an operation.
    #[error("{operation}: {name} ({code}): {detail}")]
    Cuda {
        /// What was attempted.
        operation: &'static str,
        /// CUDA's name of the error.
        name: String,
        /// CUDA's number of the error.
        code: u32,
        /// CUDA's sentence about it, and the compiler's log where PTX was compiled.
        detail: String,
    },
    /// A range reaches outside of its memory.
    #[error("{what}: {len} bytes at offset {offset} reach outside of {size} bytes")]
    OutOfBounds {
        /// Which memory.
        what: &'static str,
        /// Where the range begins.
        offset: u64,
        /// How long it is.
        len: u64,
        /// How long the memory is.
        size: u64,
    },
    /// An argument that the driver would refuse, or worse, accept.
    #[error("{0}")]
    Invalid(String),
    /// A call that waits, on a stream that is being recorded into a graph.
    #[error(
        "{operation}: the stream is being recorded into a graph; do this outside of the recording"
    )]
    Recording {
        /// What was attempted.
        operation: &'static str,
    },
}

impl GpuError {
    /// Whether this machine simply has no GPU for us: the reason to skip a test, not to fail it.
    pub const fn is_absent(&self) -> bool {
        matches!(self, Self::NoDriver | Self::NoDevice { .. })
    }
}

/// Turns the driver's answer into a result.
pub(crate) fn check(operation: &'static str, answer: CUresult) -> Result<(), GpuError> {
    if answer == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    Err(describe(operation, answer, None))
}

/// The same of a question about the recording of a stream. While another stream is recorded, the driver may refuse to
/// answer for the default stream: what is queued there would be part of that recording.
pub(crate) fn check_recording(operation: &'static str, answer: CUresult) -> Result<(), GpuError> {
    if answer == CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT {
        return Err(GpuError::Recording { operation });
    }
    check(operation, answer)
}

/// The error for an answer that is not success; `log` is what a compiler had to say.
pub(crate) fn describe(operation: &'static str, answer: CUresult, log: Option<&str>) -> GpuError {
    let mut name: *const c_char = std::ptr::null();
    // SAFETY: the driver is loaded (it gave `answer`), and `name` is a place for one pointer.
    let named = unsafe { sys::cuGetErrorName(answer, &raw mut name) };
    let mut text: *const c_char = std::ptr::null();
    // SAFETY: as above.
    let told = unsafe { sys::cuGetErrorString(answer, &raw mut text) };
    let name = if named == CUresult::CUDA_SUCCESS { constant(name) } else { None };
    let text = if told == CUresult::CUDA_SUCCESS { constant(text) } else { None };
    let mut detail = text.unwrap_or_else(|| "no description".into());
    if let Some(log) = log.map(str::trim).filter(|log| !log.is_empty()) {
        detail = format!("{detail}: {log}");
    }
    let name = name.unwrap_or_else(|| "unnamed error".into());
    GpuError::Cuda { operation, name, code: answer as u32, detail }
}

fn constant(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: the driver gives a string constant of its own, ended by a zero byte.
    Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_operation_and_the_way_out() {
        let old = GpuError::OldDriver { found: 12080, needed: 13000 };
        assert_eq!(
            old.to_string(),
            "the CUDA driver supports CUDA 12.8, but 13.0 is needed; install driver 580 or later"
        );
        assert!(!old.is_absent());
        let none = GpuError::NoDevice { ordinal: 2, count: 1 };
        assert!(none.to_string().starts_with("no GPU number 2: the CUDA driver shows 1"));
        assert!(none.is_absent() && GpuError::NoDriver.is_absent());
        assert!(GpuError::NoDriver.to_string().contains("install NVIDIA's driver"));
        let cuda = GpuError::Cuda {
            operation: "allocate device memory",
            name: "CUDA_ERROR_OUT_OF_MEMORY".into(),
            code: 2,
            detail: "out of memory".into(),
        };
        let text = "allocate device memory: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory";
        assert_eq!(cuda.to_string(), text);
    }
}
