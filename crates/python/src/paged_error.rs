//! Errors of a paged cache as exceptions.

use crate::error::{Class, invalid, make};
use mooncrate::Advice;
use mooncrate_gpu::GpuError;
use mooncrate_paged::kernels::KernelError;
use mooncrate_paged::{ArenaError, CacheError, ResizeError, TableError};
use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;

/// The class of an error, what to do about it, and its kind in words for programs.
fn sorted(error: &CacheError) -> (Class, Advice, &'static str) {
    let wrong = |kind| (Class::Invalid, Advice::GiveUp, kind);
    let later = Advice::Retry { after_ms: 1 };
    match error {
        CacheError::Unknown { .. } => (Class::UnknownSequence, Advice::GiveUp, "unknown sequence"),
        CacheError::Duplicate { .. } => wrong("duplicate"),
        CacheError::Full(full) if full.wanted > full.total => {
            (Class::TooLarge, Advice::GiveUp, "too large")
        }
        CacheError::Full(_) => (Class::Full, later, "no room"),
        CacheError::Arena(ArenaError::Busy { .. })
        | CacheError::Resize(ResizeError::InUse { .. }) => (Class::Busy, later, "in use"),
        CacheError::Paged { .. } => wrong("paged"),
        CacheError::Published { .. } | CacheError::NoneOwn { .. } => wrong("published"),
        CacheError::WrongScores { .. } | CacheError::NotANumber { .. } => wrong("scores"),
        CacheError::ExtraOutside { .. } | CacheError::ExtraTooLong { .. } => wrong("extra keys"),
        CacheError::View(_) => wrong("no such view"),
        CacheError::Arena(ArenaError::Gpu(KernelError::Gpu(error))) if error.is_absent() => {
            wrong("no gpu")
        }
        _ => wrong("invalid"),
    }
}

/// An error of a cache as an exception.
#[expect(clippy::needless_pass_by_value, reason = "it is what `map_err` hands over")]
pub(crate) fn exception(py: Python<'_>, error: CacheError) -> PyErr {
    if let CacheError::Arena(arena) = &error
        && is_out_of_memory(arena)
    {
        return PyMemoryError::new_err(error.to_string());
    }
    let (class, advice, kind) = sorted(&error);
    let words = match (&error, class) {
        (CacheError::Full(_), Class::Full) => {
            format!("{error}; free a sequence, or resize the cache")
        }
        (CacheError::Full(_), _) => format!("{error}; resize the cache, or use a shorter sequence"),
        _ => error.to_string(),
    };
    let made = make(py, class, &words, advice);
    // A class that takes no attributes has no kind: nothing else depends on it.
    let _ = made.value(py).setattr("kind", kind);
    made
}

/// The system, or the driver of a GPU, has too little memory.
fn is_out_of_memory(error: &ArenaError) -> bool {
    /// `CUDA_ERROR_OUT_OF_MEMORY`.
    const OUT_OF_MEMORY: u32 = 2;
    match error {
        ArenaError::Map { .. } => true,
        ArenaError::Gpu(KernelError::Gpu(GpuError::Cuda { code, .. })) => *code == OUT_OF_MEMORY,
        _ => false,
    }
}

/// A table that was not written.
pub(crate) fn table_exception(py: Python<'_>, error: TableError) -> PyErr {
    invalid(py, &error.to_string())
}

/// What a call gets in a child of the process that made the cache.
pub(crate) fn forked(py: Python<'_>) -> PyErr {
    let words = "this was made before a fork, and its memory is the parent's; make a PagedCache in \
                 this process";
    make(py, Class::Closed, words, Advice::GiveUp)
}
