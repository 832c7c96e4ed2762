//! The command `mooncrate` inside a Python process, so that one wheel brings library and servers.
//!
//! What must stay true: it runs without the GIL, in the process that was started, so that signals and
//! supervisors find the server under the process id they know.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::ffi::OsString;
use std::sync::atomic::{AtomicBool, Ordering};

/// Internal: runs the command with these arguments, of which the first is the name of the program; its
/// exit code. `mooncrate._cli` looks after Python's signal handlers.
#[pyfunction]
#[pyo3(signature = (arguments, /))]
pub(crate) fn _cli(py: Python<'_>, arguments: Vec<OsString>) -> PyResult<u8> {
    static RAN: AtomicBool = AtomicBool::new(false);
    // Relaxed: only who comes first matters, nothing is handed over.
    if RAN.swap(true, Ordering::Relaxed) {
        let words = "the command runs once in a process: it keeps the log and the signals";
        return Err(PyRuntimeError::new_err(words));
    }
    Ok(py.detach(|| mooncrate_cli::main_from(arguments)))
}
