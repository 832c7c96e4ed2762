//! A call in two parts: one that waits and copies, without the GIL, and one that makes the result of it.
//!
//! ```text
//!   arguments ──► Call ──work──► Done ──finish──► object        Store: one after the other
//!                         no GIL        GIL                     AsyncStore: a thread, then the loop
//! ```
//!
//! What must stay true: what a call holds of Python (keys, buffers) is let go of by `finish`, or with the
//! GIL; the part without it only looks at their bytes.

use crate::error::exception;
use crate::store::{Live, Store};
use crate::wait::interrupted;
use mooncrate::Error;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use std::marker::PhantomData;

/// One call of a store.
pub(crate) trait Call: Send + 'static {
    /// What the store answered.
    type Done: Send + 'static;
    /// What the store answered, if that waits for nobody and is soon done; with the GIL, which takes longer to
    /// give up and to get again.
    fn near(&mut self, _live: &Live) -> Option<Self::Done> {
        None
    }
    /// The part that waits and copies; without the GIL.
    fn work(&mut self, live: &Live) -> Self::Done;
    /// The answer as an object.
    fn finish(self, py: Python<'_>, done: Self::Done) -> PyResult<Py<PyAny>>;
}

/// A call of two closures.
pub(crate) struct Closures<W, F, T> {
    work: W,
    finish: F,
    done: PhantomData<fn() -> T>,
}

impl<W, F, T> Call for Closures<W, F, T>
where
    W: FnMut(&Live) -> T + Send + 'static,
    F: FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    T: Send + 'static,
{
    type Done = T;

    fn work(&mut self, live: &Live) -> T {
        (self.work)(live)
    }

    fn finish(self, py: Python<'_>, done: T) -> PyResult<Py<PyAny>> {
        (self.finish)(py, done)
    }
}

/// A call that does `work` and then makes an object with `finish`.
pub(crate) fn call<T: Send + 'static>(
    work: impl FnMut(&Live) -> T + Send + 'static,
    finish: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
) -> impl Call {
    Closures { work, finish, done: PhantomData }
}

/// A call whose answer Python understands as it is, or an error.
pub(crate) fn ask<T>(
    mut work: impl FnMut(&mooncrate::Store) -> Result<T, Error> + Send + 'static,
) -> impl Call
where
    T: for<'py> IntoPyObjectExt<'py> + Send + 'static,
{
    call(
        move |live| work(live.store()),
        |py, done| done.map_err(|error| exception(py, error))?.into_py_any(py),
    )
}

impl Store {
    /// Makes a call, here and now.
    pub(crate) fn run(&self, py: Python<'_>, mut call: impl Call) -> PyResult<Py<PyAny>> {
        let live = self.live(py)?;
        if let Some(done) = call.near(&live) {
            return call.finish(py, done);
        }
        let work = &mut call;
        let (done, raised) = interrupted(py, move || {
            let live = live;
            work.work(&live)
        })?;
        // Also where a signal handler ended the call: this lets go of what the call holds.
        let made = call.finish(py, done);
        raised.map_or(made, Err)
    }
}
