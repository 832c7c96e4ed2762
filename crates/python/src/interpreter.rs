//! Which interpreter loads this crate: the main one of the process, and no other.
//!
//! Classes, exceptions and the count of forks are one for the process, and `PyO3` keeps them so. An interpreter that
//! ends takes objects with it that the others use, and waits for threads of stores that wait for it.
//! `mooncrate/_interpreter.py` refuses in words before anything native is loaded; this is for whoever loads
//! the native half alone.

use pyo3::exceptions::PyImportError;
use pyo3::ffi;
use pyo3::prelude::*;

/// An error in a subinterpreter.
pub(crate) fn is_main(_py: Python<'_>) -> PyResult<()> {
    // SAFETY: `_py` says that this thread is attached to an interpreter.
    let interpreter = unsafe { ffi::PyInterpreterState_Get() };
    // SAFETY: it is the interpreter of this thread, so it is alive.
    if unsafe { ffi::PyInterpreterState_GetID(interpreter) } == 0 {
        return Ok(());
    }
    Err(PyImportError::new_err("mooncrate cannot be loaded in a subinterpreter"))
}
