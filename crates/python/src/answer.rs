//! `Answer`: what a call of an asyncio loop gives at once, and what its result will be found in.
//!
//! ```text
//!   store.get(key) ──► Answer, pending ──┬─ settle (the call is done) ──► a value, or an error
//!        the call begins at once         └─ cancel ─────────────────────► cancelled
//! ```
//!
//! It is a future for everything in asyncio that knows futures by what they can do (`gather`, `wait_for`,
//! `as_completed`, `shield`, `await`), so no task is made for a call; and it is a coroutine for everything
//! that insists on one (`create_task`, `TaskGroup`). It tells its callbacks from within the turn of the loop
//! in which calls are answered, without a handle for each.
//!
//! What must stay true: Python's garbage collector does not look at these objects. It walks over all objects
//! of the program when those that it looks at have become a quarter more, and the loop stops meanwhile. So no
//! cycle of references may go through an answer for ever:
//!
//! * Callbacks, which lead to tasks and their frames, are let go of when the answer is settled or cancelled.
//!   Every call ends by its timeout, and what a loop left behind is settled when its threads end
//!   ([`Answer::leave`]).
//! * An exception leads to the frames that it was raised through, and these may hold the answer. So the
//!   error that is kept here is never raised or given away: everybody gets a copy.
//! * Values are bytes, numbers, views and lists of them, which lead nowhere; the loop does not hold what it
//!   has told.
//!
//! No lock is held while Python may run.

use mooncrate_lock::Mutex;
use pyo3::exceptions::{PyKeyboardInterrupt, PySystemExit};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use std::sync::Arc;

/// What the answers of one loop need of Python, again and again. Not in statics: a fork while one of them
/// is being made would leave the child with one that is never done.
pub(crate) struct Home {
    /// The loop.
    pub(crate) on: Py<PyAny>,
    /// Its method.
    pub(crate) call_soon: Py<PyAny>,
    copy_context: Py<PyAny>,
    new_context: Py<PyAny>,
    copy: Py<PyAny>,
    cancelled_error: Py<PyAny>,
    invalid_state: Py<PyAny>,
    run: Py<PyString>,
}

impl Home {
    pub(crate) fn of(on: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = on.py();
        let (asyncio, contextvars) = (py.import("asyncio")?, py.import("contextvars")?);
        Ok(Self {
            on: on.clone().unbind(),
            call_soon: on.getattr("call_soon")?.unbind(),
            copy_context: contextvars.getattr("copy_context")?.unbind(),
            new_context: contextvars.getattr("Context")?.unbind(),
            copy: py.import("copy")?.getattr("copy")?.unbind(),
            cancelled_error: asyncio.getattr("CancelledError")?.unbind(),
            invalid_state: asyncio.getattr("InvalidStateError")?.unbind(),
            run: PyString::intern(py, "run").unbind(),
        })
    }

    /// Has a callback run by the loop, in its next turn.
    fn soon(&self, answer: &Bound<'_, Answer>, callback: &Callback, how: &str) -> PyResult<()> {
        let py = answer.py();
        let more = PyDict::new(py);
        more.set_item("context", callback.context(py, self)?)?;
        let schedule = self.on.bind(py).getattr(how)?;
        schedule.call((&callback.call, answer), Some(&more)).map(drop)
    }

    /// Tells the loop of an error that nobody else will see.
    fn report(&self, py: Python<'_>, words: &str, error: Bound<'_, PyAny>) {
        let tell = || -> PyResult<()> {
            let context = PyDict::new(py);
            context.set_item("message", words)?;
            context.set_item("exception", error)?;
            self.on.bind(py).call_method1("call_exception_handler", (context,)).map(drop)
        };
        if let Err(error) = tell() {
            error.write_unraisable(py, None);
        }
    }

    pub(crate) fn cancelled(&self, py: Python<'_>, words: Option<&Py<PyAny>>) -> PyErr {
        let class = self.cancelled_error.bind(py);
        let made = words.map_or_else(|| class.call0(), |words| class.call1((words,)));
        made.map_or_else(|error| error, PyErr::from_value)
    }

    pub(crate) fn not_done(&self, py: Python<'_>) -> PyErr {
        let made = self.invalid_state.bind(py).call1(("the call is not done",));
        made.map_or_else(|error| error, PyErr::from_value)
    }

    /// An error to give away.
    pub(crate) fn copied(&self, py: Python<'_>, kept: &Py<PyAny>) -> PyErr {
        let made = self.copy.bind(py).call1((kept,));
        made.map_or_else(|error| error, PyErr::from_value)
    }
}

/// What became of a call.
#[derive(Default)]
pub(crate) enum Outcome {
    #[default]
    Pending,
    Value(Py<PyAny>),
    /// An exception, for copies only.
    Failed(Py<PyAny>),
    /// With the words of who cancelled it.
    Cancelled(Option<Py<PyAny>>),
}

impl Outcome {
    pub(crate) const fn is_pending(&self) -> bool {
        matches!(self, Self::Pending)
    }

    pub(crate) fn clone_ref(&self, py: Python<'_>) -> Self {
        match self {
            Self::Pending => Self::Pending,
            Self::Value(value) => Self::Value(value.clone_ref(py)),
            Self::Failed(error) => Self::Failed(error.clone_ref(py)),
            Self::Cancelled(words) => Self::Cancelled(words.as_ref().map(|it| it.clone_ref(py))),
        }
    }
}

/// Somebody to tell, and the context to do it in.
pub(crate) struct Callback {
    pub(crate) call: Py<PyAny>,
    /// `None`: one without variables. It is made when it is needed, because the collector looks at contexts.
    context: Option<Py<PyAny>>,
}

impl Callback {
    /// In this context, or in a copy of the one that is there now.
    fn new(
        py: Python<'_>,
        home: &Home,
        call: Py<PyAny>,
        context: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        if let Some(given) = context {
            return Ok(Self { call, context: Some(given.unbind()) });
        }
        let now = home.copy_context.bind(py).call0()?;
        let context = if now.len()? == 0 { None } else { Some(now.unbind()) };
        Ok(Self { call, context })
    }

    fn context<'py>(&self, py: Python<'py>, home: &Home) -> PyResult<Bound<'py, PyAny>> {
        self.context.as_ref().map_or_else(
            || home.new_context.bind(py).call0(),
            |context| Ok(context.bind(py).clone()),
        )
    }
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) outcome: Outcome,
    /// What asyncio calls so: a task was told to wait for this, and has not looked yet.
    pub(crate) blocking: bool,
    /// Whoever wants to know about a failure knows, or was told something else.
    pub(crate) quiet: bool,
    /// Only while it is pending.
    pub(crate) callbacks: Vec<Callback>,
}

/// Answers whose memory is kept for others: the collector counts what is allocated, even if it will not look
/// at it. Half a megabyte, where that many calls were under way.
const KEPT: usize = 4096;

/// The answer to a call, which comes later.
#[pyclass(module = "mooncrate", frozen, weakref, freelist = KEPT)]
pub(crate) struct Answer {
    pub(crate) home: Arc<Home>,
    pub(crate) state: Mutex<State>,
}

impl Answer {
    pub(crate) fn new<'py>(py: Python<'py>, home: &Arc<Home>) -> PyResult<Bound<'py, Self>> {
        let fresh = Self { home: Arc::clone(home), state: Mutex::default() };
        let answer = Bound::new(py, fresh)?;
        // SAFETY: all classes of PyO3 are made for the collector, this object is alive, and the GIL is held.
        // Objects that are not tracked may be freed like all others: freeing begins with this very call.
        unsafe { ffi::PyObject_GC_UnTrack(answer.as_ptr().cast()) };
        Ok(answer)
    }

    /// What became of the call, for somebody who will know it then.
    pub(crate) fn look(&self, py: Python<'_>) -> Outcome {
        let mut state = self.state.lock();
        state.quiet |= !state.outcome.is_pending();
        state.outcome.clone_ref(py)
    }

    /// Takes what the call gave; whom to tell. Nobody is told twice, or after a cancellation.
    fn take_in(&self, py: Python<'_>, gave: PyResult<Py<PyAny>>) -> Vec<Callback> {
        let outcome = match gave {
            Ok(value) => Outcome::Value(value),
            Err(error) => {
                error.set_traceback(py, None);
                Outcome::Failed(error.into_value(py).into_any())
            }
        };
        let mut state = self.state.lock();
        if !state.outcome.is_pending() {
            // In this order: dropping what came too late may run Python.
            drop(state);
            drop(outcome);
            return Vec::new();
        }
        state.outcome = outcome;
        std::mem::take(&mut state.callbacks)
    }

    /// Takes what the call gave, and tells everybody, here and now: in the loop, and in none of its tasks.
    /// An error is one that must stop the loop.
    pub(crate) fn settle(slf: &Bound<'_, Self>, gave: PyResult<Py<PyAny>>) -> PyResult<()> {
        let (py, this) = (slf.py(), slf.get());
        let mut callbacks = this.take_in(py, gave).into_iter();
        while let Some(callback) = callbacks.next() {
            let context = callback.context(py, &this.home)?;
            let told = context.call_method1(&this.home.run, (&callback.call, slf));
            let Err(error) = told else { continue };
            if error.is_instance_of::<PySystemExit>(py)
                || error.is_instance_of::<PyKeyboardInterrupt>(py)
            {
                // As in a loop: the others are told when it runs again.
                for callback in callbacks {
                    this.home.soon(slf, &callback, "call_soon")?;
                }
                return Err(error);
            }
            let words = "a callback of a call of mooncrate failed";
            this.home.report(py, words, error.into_value(py).into_bound(py).into_any());
        }
        Ok(())
    }

    /// Takes what became of the call when nobody answers calls any more, from any thread. Whoever waits
    /// is told if the loop still runs.
    pub(crate) fn leave(slf: &Bound<'_, Self>, gave: PyResult<Py<PyAny>>) {
        let this = slf.get();
        // Who left without an answer does not wait for one.
        this.state.lock().quiet = true;
        for callback in this.take_in(slf.py(), gave) {
            // It fails for a loop that is closed: nobody waits there.
            let _ = this.home.soon(slf, &callback, "call_soon_threadsafe");
        }
    }

    pub(crate) fn call_off(slf: &Bound<'_, Self>, words: Option<Py<PyAny>>) -> PyResult<bool> {
        let this = slf.get();
        let callbacks = {
            let mut state = this.state.lock();
            if !state.outcome.is_pending() {
                return Ok(false);
            }
            state.outcome = Outcome::Cancelled(words);
            std::mem::take(&mut state.callbacks)
        };
        for callback in callbacks {
            this.home.soon(slf, &callback, "call_soon")?;
        }
        Ok(true)
    }

    /// Tells somebody when it is done, in this context, or in a copy of the one that is there now.
    pub(crate) fn tell(
        slf: &Bound<'_, Self>,
        call: Py<PyAny>,
        context: Option<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let this = slf.get();
        let callback = Callback::new(slf.py(), &this.home, call, context)?;
        let mut state = this.state.lock();
        if state.outcome.is_pending() {
            state.callbacks.push(callback);
            return Ok(());
        }
        drop(state);
        this.home.soon(slf, &callback, "call_soon")
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        let state = std::mem::take(&mut *self.state.lock());
        let (false, Outcome::Failed(error)) = (state.quiet, state.outcome) else { return };
        Python::try_attach(|py| {
            // Objects also go while an exception is on its way, which must arrive.
            let on_its_way = PyErr::take(py);
            let words = "a call of mooncrate failed, and its exception was never retrieved";
            self.home.report(py, words, error.into_bound(py));
            if let Some(error) = on_its_way {
                error.restore(py);
            }
        });
    }
}
