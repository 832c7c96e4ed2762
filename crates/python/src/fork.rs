//! What a forked child inherits: memory without the threads that look after it.
//!
//! A store in a child has locks that nobody will open, threads that do not exist and pins that belong
//! to its parent. So a child may neither use nor drop it: dropping would wait for dead threads, and
//! give pins back that the parent still counts on. The kernel takes the memory when the child ends.

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many forks lie between the process that loaded this module and this one.
static FORKS: AtomicU64 = AtomicU64::new(0);
static WATCHED: OnceLock<i32> = OnceLock::new();

/// Runs in every child, between `fork` and whatever comes next.
extern "C" fn in_child() {
    // Relaxed: a child has one thread when this runs, and only forks change the number.
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Begins to count forks.
pub(crate) fn watch() -> PyResult<()> {
    let code = *WATCHED.get_or_init(|| {
        // SAFETY: the handler only adds to an atomic, which a child of a process with threads may do,
        // and Python never unloads an extension, so its address stays good.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) }
    });
    if code == 0 {
        return Ok(());
    }
    Err(PyOSError::new_err((code, "mooncrate cannot watch for forks (pthread_atfork)")))
}

/// See [`FORKS`].
pub(crate) fn forks() -> u64 {
    FORKS.load(Ordering::Relaxed)
}

/// Something that only the process that made it may use or drop.
#[derive(Debug)]
pub(crate) struct Own<T> {
    /// Taken by `take` and `drop` only.
    value: Option<T>,
    made_after: u64,
}

impl<T> Own<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: Some(value), made_after: forks() }
    }

    /// The value, unless this process is a child of the one that made it.
    pub(crate) fn get(&self) -> Option<&T> {
        if self.made_after == forks() { self.value.as_ref() } else { None }
    }

    /// Takes the value out, under the same condition: for those who drop it elsewhere.
    pub(crate) fn take(&mut self) -> Option<T> {
        if self.made_after == forks() { self.value.take() } else { None }
    }
}

impl<T> Drop for Own<T> {
    fn drop(&mut self) {
        let value = self.value.take();
        if self.made_after != forks() {
            std::mem::forget(value);
        }
    }
}

/// Drops something that may take its time, without the GIL.
pub(crate) fn drop_detached<T: Send>(value: T) {
    let mut value = Some(value);
    // Without an interpreter that takes us there is no GIL to give back either.
    Python::try_attach(|py| {
        let value = value.take();
        py.detach(|| drop(value));
    });
}
