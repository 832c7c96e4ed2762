//! Errors of the GPU-resident cache as exceptions.

use crate::error::{Class, by_advice, make, of_call};
use mooncrate::Advice;
use mooncrate::nano::JoinError;
use mooncrate_core::error::{GetError, PutError, RemoveError};
use mooncrate_gpu::GpuError;
use mooncrate_nano::NanoError;
use pyo3::prelude::*;

/// The class of an error, and its kind in words for programs.
fn sorted(error: &NanoError) -> (Class, &'static str) {
    match error {
        NanoError::Put(PutError::TooLarge { .. } | PutError::LargerThanAnySegment { .. }) => {
            (Class::TooLarge, "too large")
        }
        NanoError::Put(PutError::Exists) => (Class::Error, "exists"),
        NanoError::Put(PutError::Key(_))
        | NanoError::Get(GetError::Key(_))
        | NanoError::Remove(RemoveError::Key(_)) => (Class::Invalid, "bad key"),
        NanoError::BadPage { .. }
        | NanoError::BadHeap { .. }
        | NanoError::BadRank { .. }
        | NanoError::BadRatio { .. } => (Class::Invalid, "invalid"),
        NanoError::NoPlan => (Class::Invalid, "no plan"),
        NanoError::WrongLength { .. } => (Class::Invalid, "wrong length"),
        NanoError::OtherMemory(_) => (Class::Invalid, "other memory"),
        NanoError::Gone => (Class::Error, "gone"),
        NanoError::NotReady => (Class::Busy, "not ready"),
        NanoError::Late => (Class::Busy, "late stream"),
        NanoError::TooManyPins(_) | NanoError::InUse { .. } => (Class::Busy, "pinned"),
        NanoError::Damaged => (Class::Error, "damaged"),
        NanoError::Gpu(GpuError::Recording { .. }) => (Class::Invalid, "recording"),
        NanoError::Heap(_) | NanoError::Gpu(_) | NanoError::NoAtomics(_) => {
            (Class::Unavailable, "no heap")
        }
        NanoError::Call(error) => (of_call(error), "unreachable"),
        other => (by_advice(other.advice()), ""),
    }
}

fn made(py: Python<'_>, class: Class, words: &str, advice: Advice, kind: &str) -> PyErr {
    let made = make(py, class, words, advice);
    // A class that takes no attributes has no kind: nothing else depends on it.
    let _ = made.value(py).setattr("kind", kind);
    made
}

/// A failed call as an exception.
#[expect(clippy::needless_pass_by_value, reason = "it is what `map_err` hands over")]
pub(crate) fn exception(py: Python<'_>, error: NanoError) -> PyErr {
    let (class, kind) = sorted(&error);
    made(py, class, &error.to_string(), error.advice(), kind)
}

/// A rank that did not join, or did not leave in order.
pub(crate) fn join_exception(py: Python<'_>, error: JoinError) -> PyErr {
    match error {
        JoinError::Nano(error) => exception(py, error),
        other => {
            made(py, Class::Unavailable, &other.to_string(), Advice::GiveUp, "ranks did not meet")
        }
    }
}

/// What a call gets after `close`.
pub(crate) fn closed(py: Python<'_>) -> PyErr {
    make(py, Class::Closed, "this rank has left the cache; join again", Advice::GiveUp)
}

/// What a call gets in a child of the process that joined.
pub(crate) fn forked(py: Python<'_>) -> PyErr {
    let words = "this rank joined before a fork, and its threads stayed in the parent process; start \
                 the processes of ranks first, and join in each";
    make(py, Class::Closed, words, Advice::GiveUp)
}
