//! Calls that wait, and Ctrl-C.
//!
//! Python runs signal handlers in its main thread, between two steps of the interpreter. A call of ours is one
//! step. So a call of the main thread asks from time to time, while it waits, whether a handler has something
//! to run ([`mooncrate_lock::interrupt`]); calls of other threads never get a signal and wait as they are.
//!
//! What must stay true: a call that a handler has ended by an exception raises it when nothing of the call is
//! left, so no byte of the caller's memory changes afterwards; but for device memory that a rank of the GPU-resident cache
//! has yet to write in the order of the caller's stream, and keeps until then. Handlers run only where the call holds no lock of
//! ours: a handler may use the same store, and wherever Python runs, its collector may end a view. Where a lock
//! is held, only Ctrl-C with Python's own handler is looked for, which needs no Python to run.

use crate::fork;
use mooncrate_lock::interrupt::{self, Place};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, Ordering};

thread_local! {
    /// Whether this thread is Python's main thread, as found out after so many forks: the thread that forks is
    /// the main thread of the child.
    static MAIN: Cell<Option<(u64, bool)>> = const { Cell::new(None) };
    /// What a handler has raised, until the call that it ended is over.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Whether Ctrl-C raises `KeyboardInterrupt` by Python's own handler, as far as that was looked at.
static PLAIN: AtomicBool = AtomicBool::new(false);

/// Does something that may wait, without the GIL; an error if a signal handler raised one meanwhile.
pub(crate) fn waiting<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> PyResult<T> {
    let (done, raised) = interrupted(py, work)?;
    match raised {
        None => Ok(done),
        Some(raised) => {
            py.detach(|| drop(done));
            Err(raised)
        }
    }
}

/// The same for work that waits with a lock of ours in its hands, which it says by [`interrupt::hold`].
pub(crate) fn waiting_locked<T: Send>(
    py: Python<'_>,
    work: impl FnOnce() -> T + Send,
) -> PyResult<T> {
    look_at_handler(py)?;
    waiting(py, work)
}

/// Looks who handles Ctrl-C, for a call that may wait with a lock in its hands and cannot look then.
pub(crate) fn look_at_handler(py: Python<'_>) -> PyResult<()> {
    if is_main(py)? {
        // Relaxed: read by the same thread.
        PLAIN.store(is_plain(py)?, Ordering::Relaxed);
    }
    Ok(())
}

/// Finds what is asked later, when the module is loaded, as [`crate::error::load`] does and for the same reason.
pub(crate) fn load(py: Python<'_>) -> PyResult<()> {
    // Before Python 3.13 the thread that imports `threading` first is taken for the main thread.
    py.import("threading")?;
    is_plain(py).map(drop)
}

fn is_plain(py: Python<'_>) -> PyResult<bool> {
    static KNOWN: PyOnceLock<(Py<PyAny>, Py<PyAny>)> = PyOnceLock::new();
    let known = KNOWN.get_or_try_init(py, || {
        // Not `signal`, whose functions are Python: they take 80 times as long, and handlers run in them.
        let signal = py.import("_signal")?;
        let handler = signal.getattr("default_int_handler")?;
        Ok::<_, PyErr>((signal.getattr("getsignal")?.unbind(), handler.unbind()))
    })?;
    let now = known.0.bind(py).call1((libc::SIGINT,))?;
    Ok(now.is(known.1.bind(py)))
}

/// The same with what was done, also if a handler ended it.
pub(crate) fn interrupted<T: Send>(
    py: Python<'_>,
    work: impl FnOnce() -> T + Send,
) -> PyResult<(T, Option<PyErr>)> {
    if !is_main(py)? {
        return Ok((py.detach(work), None));
    }
    let (done, ended) = py.detach(|| interrupt::under(ask, work));
    if !ended {
        return Ok((done, None));
    }
    // Raised by a handler while the call waited, or left for one to raise now that no lock is held.
    let raised = RAISED.take().or_else(|| py.check_signals().err());
    Ok((done, raised))
}

/// Does something that may wait, in a deallocator, which cannot raise: Ctrl-C ends the wait, and Python's own
/// handler raises it in what runs next. Other handlers run then, too.
pub(crate) fn in_deallocator(py: Python<'_>, work: impl FnOnce() + Send) {
    // As far as that is known: an exception may be on its way, so that nothing of Python can be asked.
    if MAIN.get() != Some((fork::forks(), true)) {
        return py.detach(work);
    }
    py.detach(|| {
        interrupt::under(ask, || {
            let _held = interrupt::hold();
            work();
        })
    });
}

/// Whether signal handlers run in this thread. To find out runs Python, where a handler may raise something.
fn is_main(py: Python<'_>) -> PyResult<bool> {
    let forks = fork::forks();
    if let Some((at, main)) = MAIN.get()
        && at == forks
    {
        return Ok(main);
    }
    let main = find_main(py)?;
    MAIN.set(Some((forks, main)));
    Ok(main)
}

fn find_main(py: Python<'_>) -> PyResult<bool> {
    let threading = py.import("threading")?;
    let main = threading.call_method0("main_thread")?.getattr("ident")?;
    main.eq(threading.call_method0("get_ident")?)
}

/// Whether the call that waits in this thread shall end. It has no GIL.
fn ask(place: Place) -> bool {
    match place {
        Place::Open => Python::try_attach(|py| {
            let Err(raised) = py.check_signals() else { return false };
            RAISED.set(Some(raised));
            true
        })
        .unwrap_or(false),
        Place::Locked => PLAIN.load(Ordering::Relaxed) && is_tripped(),
    }
}

/// Whether Ctrl-C came. Runs no Python; the handler finds it as it was.
fn is_tripped() -> bool {
    // SAFETY: the interpreter is there: a call of it waits in this thread, which had given the GIL up.
    let state = unsafe { ffi::PyGILState_Ensure() };
    // SAFETY: this thread has the GIL.
    let tripped = unsafe { ffi::PyOS_InterruptOccurred() } != 0;
    if tripped {
        // SAFETY: as above. Asking took the mark away; this sets it again.
        unsafe { ffi::PyErr_SetInterrupt() };
    }
    // SAFETY: what `Ensure` gave, in the same thread.
    unsafe { ffi::PyGILState_Release(state) };
    tripped
}
