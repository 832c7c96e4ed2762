//! The methods of `Answer`, as asyncio asks for them: those of a future, and those of a coroutine.
//!
//! What must stay true: an answer keeps no place of its own. Whoever drives it as a coroutine is told to
//! wait for it as long as it is pending, and gets the outcome from then on, however often.

use crate::answer::{Answer, Callback, Outcome};
use pyo3::exceptions::PyStopIteration;
use pyo3::prelude::*;
use pyo3::types::{PyTraceback, PyType};

impl Answer {
    fn step(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        let (py, this) = (slf.py(), slf.get());
        {
            let mut state = this.state.lock();
            if state.outcome.is_pending() {
                state.blocking = true;
                drop(state);
                return Ok(slf);
            }
        }
        Err(PyStopIteration::new_err((this.result(py)?,)))
    }
}

#[pymethods]
impl Answer {
    // ---- a future

    #[getter(_asyncio_future_blocking)]
    fn blocking(&self) -> bool {
        self.state.lock().blocking
    }

    #[setter(_asyncio_future_blocking)]
    fn set_blocking(&self, blocking: bool) {
        self.state.lock().blocking = blocking;
    }

    /// The loop that it belongs to.
    fn get_loop(&self) -> &Py<PyAny> {
        &self.home.on
    }

    /// Whether there is an outcome.
    fn done(&self) -> bool {
        !self.state.lock().outcome.is_pending()
    }

    /// Whether it was cancelled.
    fn cancelled(&self) -> bool {
        matches!(self.state.lock().outcome, Outcome::Cancelled(_))
    }

    /// What the call gave; its error is raised.
    fn result(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match self.look(py) {
            Outcome::Pending => Err(self.home.not_done(py)),
            Outcome::Value(value) => Ok(value),
            Outcome::Failed(error) => Err(self.home.copied(py, &error)),
            Outcome::Cancelled(words) => Err(self.home.cancelled(py, words.as_ref())),
        }
    }

    /// The error of the call, or None.
    fn exception(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        match self.look(py) {
            Outcome::Pending => Err(self.home.not_done(py)),
            Outcome::Value(_) => Ok(None),
            Outcome::Failed(error) => {
                Ok(Some(self.home.copied(py, &error).into_value(py).into_any()))
            }
            Outcome::Cancelled(words) => Err(self.home.cancelled(py, words.as_ref())),
        }
    }

    /// Gives it up, unless it is done; the call may still be carried out.
    #[pyo3(signature = (msg=None))]
    fn cancel(slf: &Bound<'_, Self>, msg: Option<Py<PyAny>>) -> PyResult<bool> {
        Self::call_off(slf, msg)
    }

    /// Has this called with the answer when it is done.
    #[pyo3(signature = (callback, /, *, context=None))]
    fn add_done_callback(
        slf: &Bound<'_, Self>,
        callback: Py<PyAny>,
        context: Option<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        Self::tell(slf, callback, context)
    }

    /// Forgets a callback; how many times it was there.
    #[pyo3(signature = (callback, /))]
    fn remove_done_callback(&self, callback: &Bound<'_, PyAny>) -> PyResult<usize> {
        let py = callback.py();
        let all: Vec<Py<PyAny>> = {
            let state = self.state.lock();
            state.callbacks.iter().map(|one| one.call.clone_ref(py)).collect()
        };
        let mut equal = Vec::new();
        for call in all {
            if call.bind(py).eq(callback)? {
                equal.push(call);
            }
        }
        let gone: Vec<Callback> = {
            let mut state = self.state.lock();
            let callbacks = std::mem::take(&mut state.callbacks).into_iter();
            let (gone, left) = callbacks.partition(|one| equal.iter().any(|it| it.is(&one.call)));
            state.callbacks = left;
            gone
        };
        Ok(gone.len())
    }

    /// What `gather` asks of a future that was cancelled.
    fn _make_cancelled_error(&self, py: Python<'_>) -> Py<PyAny> {
        let words = match self.look(py) {
            Outcome::Cancelled(words) => words,
            _ => None,
        };
        self.home.cancelled(py, words.as_ref()).into_value(py).into_any()
    }

    /// The same.
    #[getter(_cancel_message)]
    fn cancel_message(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        match self.state.lock().outcome.clone_ref(py) {
            Outcome::Cancelled(words) => words,
            _ => None,
        }
    }

    // ---- a coroutine

    const fn __await__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        Self::step(slf)
    }

    /// Whatever is sent: nobody has anything to say to a call.
    #[pyo3(signature = (_value, /))]
    fn send<'py>(slf: Bound<'py, Self>, _value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Self>> {
        Self::step(slf)
    }

    /// Raises the exception; the call goes on.
    #[pyo3(signature = (kind, value=None, trace=None, /))]
    fn throw(
        &self,
        kind: Bound<'_, PyAny>,
        value: Option<Bound<'_, PyAny>>,
        trace: Option<Bound<'_, PyTraceback>>,
    ) -> PyResult<Py<PyAny>> {
        let py = kind.py();
        // Whoever drives it was told something else, and will not ask.
        self.state.lock().quiet = true;
        let error = match (value, kind.cast::<PyType>()) {
            (Some(value), Ok(class)) if !value.is_instance(class)? => {
                PyErr::from_value(class.call1((value,))?)
            }
            (Some(value), Ok(_)) => PyErr::from_value(value),
            (None, Ok(class)) => PyErr::from_value(class.call0()?),
            (_, Err(_)) => PyErr::from_value(kind),
        };
        if trace.is_some() {
            error.set_traceback(py, trace);
        }
        Err(error)
    }

    /// Nothing: the call goes on.
    #[expect(clippy::unused_self, reason = "a method of Python")]
    const fn close(&self) {}

    fn __repr__(&self) -> &'static str {
        match self.state.lock().outcome {
            Outcome::Pending => "<mooncrate.Answer, pending>",
            Outcome::Value(_) => "<mooncrate.Answer, done>",
            Outcome::Failed(_) => "<mooncrate.Answer, failed>",
            Outcome::Cancelled(_) => "<mooncrate.Answer, cancelled>",
        }
    }
}
