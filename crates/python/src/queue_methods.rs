//! The methods of `Calls`, as Python sees them: those of `Store`, each with an answer that comes later.

use crate::answer::Answer;
use crate::batch::{Goals, Items, Keys};
use crate::buffer::Key;
use crate::calls;
use crate::device::{Goal, Value, all_host};
use crate::options::Wishes;
use crate::queue::Calls;
use crate::store::Store;
use pyo3::prelude::*;
use std::os::fd::RawFd;

/// What a call gives at once.
type Later<'py> = PyResult<Bound<'py, Answer>>;

#[pymethods]
impl Calls {
    #[new]
    #[pyo3(signature = (store, on, threads, /))]
    fn new(store: Py<Store>, on: &Bound<'_, PyAny>, threads: usize) -> PyResult<Self> {
        Self::start(on.py(), store, on, threads)
    }

    /// The loop whose calls these are.
    #[getter]
    fn r#loop(&self) -> &Py<PyAny> {
        self.on()
    }

    /// Hands the calls of the last turn to the threads.
    fn _send(&self, py: Python<'_>) -> PyResult<()> {
        self.send(py)
    }

    /// Answers calls that are done.
    fn _answer(&self, py: Python<'_>) -> PyResult<()> {
        self.answer(py)
    }

    /// A descriptor that can be read when calls are done.
    fn fileno(&self, py: Python<'_>) -> PyResult<RawFd> {
        self.bell(py)
    }

    /// An answer that comes when no call is under way.
    fn over<'py>(&self, py: Python<'py>) -> Later<'py> {
        self.when_over(py)
    }

    /// Ends the threads, after the calls that they are busy with.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        self.join(py)
    }

    #[pyo3(signature = (key, parts, *, replicas=None, soft_pin=None, hard_pin=false, group=None,
        expire=None, upsert=false, medium=None, stream=None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn put_parts<'py>(
        slf: &Bound<'py, Self>,
        key: Key,
        parts: Vec<Value>,
        replicas: Option<u8>,
        soft_pin: Option<f64>,
        hard_pin: bool,
        group: Option<String>,
        expire: Option<f64>,
        upsert: bool,
        medium: Option<String>,
        stream: Option<&Bound<'py, PyAny>>,
    ) -> Later<'py> {
        let wishes = Wishes { replicas, soft_pin, hard_pin, group, expire, upsert, medium };
        let (py, store) = (slf.py(), slf.get().store());
        match all_host(parts) {
            Ok(parts) => Self::submit(slf, calls::put(py, store, key, parts, &wishes)?),
            Err(parts) => {
                let call = calls::put_arrays(py, store, key, parts, stream, &wishes)?;
                Self::submit(slf, call)
            }
        }
    }

    #[pyo3(signature = (items, *, replicas=None, soft_pin=None, hard_pin=false, group=None,
        expire=None, upsert=false, medium=None, stream=None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn put_batch<'py>(
        slf: &Bound<'py, Self>,
        items: Items,
        replicas: Option<u8>,
        soft_pin: Option<f64>,
        hard_pin: bool,
        group: Option<String>,
        expire: Option<f64>,
        upsert: bool,
        medium: Option<String>,
        stream: Option<&Bound<'py, PyAny>>,
    ) -> Later<'py> {
        let wishes = Wishes { replicas, soft_pin, hard_pin, group, expire, upsert, medium };
        let (py, store) = (slf.py(), slf.get().store());
        Self::submit(slf, calls::put_batch(py, store, items, stream, &wishes)?)
    }

    fn get<'py>(slf: &Bound<'py, Self>, key: Key) -> Later<'py> {
        Self::submit(slf, calls::Get(key))
    }

    #[pyo3(signature = (key, target, *, stream=None))]
    fn get_into<'py>(
        slf: &Bound<'py, Self>,
        key: Key,
        target: Goal,
        stream: Option<&Bound<'py, PyAny>>,
    ) -> Later<'py> {
        match target {
            Goal::Host(target) => Self::submit(slf, calls::GetInto { key, target }),
            array @ Goal::Array(_) => {
                Self::submit(slf, calls::get_into_array(slf.py(), key, array, stream)?)
            }
        }
    }

    #[pyo3(signature = (items, *, stream=None))]
    fn get_into_batch<'py>(
        slf: &Bound<'py, Self>,
        items: Goals,
        stream: Option<&Bound<'py, PyAny>>,
    ) -> Later<'py> {
        Self::submit(slf, calls::get_into_batch(slf.py(), items, stream)?)
    }

    fn get_range<'py>(slf: &Bound<'py, Self>, key: Key, start: u64, length: usize) -> Later<'py> {
        Self::submit(slf, calls::get_range(key, start, length))
    }

    fn view<'py>(slf: &Bound<'py, Self>, key: Key) -> Later<'py> {
        Self::submit(slf, calls::view(key))
    }

    fn size<'py>(slf: &Bound<'py, Self>, key: Key) -> Later<'py> {
        Self::submit(slf, calls::Size(key))
    }

    fn exists<'py>(slf: &Bound<'py, Self>, key: Key) -> Later<'py> {
        Self::submit(slf, calls::Exists(key))
    }

    #[pyo3(signature = (key, *, force=false))]
    fn remove<'py>(slf: &Bound<'py, Self>, key: Key, force: bool) -> Later<'py> {
        Self::submit(slf, calls::remove(key, force))
    }

    #[pyo3(signature = (prefix, *, force=false))]
    fn remove_prefix<'py>(slf: &Bound<'py, Self>, prefix: Key, force: bool) -> Later<'py> {
        Self::submit(slf, calls::remove_prefix(prefix, force))
    }

    #[pyo3(signature = (regex, *, force=false))]
    fn remove_regex<'py>(slf: &Bound<'py, Self>, regex: String, force: bool) -> Later<'py> {
        Self::submit(slf, calls::remove_regex(regex, force))
    }

    /// One page of keys, and where the next one starts.
    fn page<'py>(slf: &Bound<'py, Self>, prefix: Option<Key>, cursor: u64) -> Later<'py> {
        Self::submit(slf, calls::page(prefix, cursor))
    }

    fn stats<'py>(slf: &Bound<'py, Self>) -> Later<'py> {
        Self::submit(slf, calls::stats())
    }

    fn get_batch<'py>(slf: &Bound<'py, Self>, keys: Keys) -> Later<'py> {
        Self::submit(slf, calls::get_batch(keys))
    }

    fn exists_batch<'py>(slf: &Bound<'py, Self>, keys: Keys) -> Later<'py> {
        Self::submit(slf, calls::ExistsBatch(keys))
    }

    #[pyo3(signature = (keys, *, force=false))]
    fn remove_batch<'py>(slf: &Bound<'py, Self>, keys: Keys, force: bool) -> Later<'py> {
        Self::submit(slf, calls::remove_batch(keys, force))
    }
}
