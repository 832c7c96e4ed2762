//! The methods of `Store`, as Python sees them: arguments in, one call, results out.
#![expect(clippy::needless_pass_by_value, reason = "arguments of Python arrive as values")]

use crate::batch::{self, Items, Keys};
use crate::buffer::{FreshBytes, Key, Source, Target};
use crate::error::exception;
use crate::list::Listing;
use crate::options::{Opening, Size, Wishes};
use crate::raw::{self, Numbers};
use crate::stats;
use crate::store::Store;
use crate::view::View;
use mooncrate::{Stored, TlsFiles};
use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use std::path::PathBuf;

#[pymethods]
impl Store {
    #[new]
    #[pyo3(signature = (*, master=None, segment_size=None, replicas=1, tenant="",
        token_file=None, tls_cert=None, tls_key=None, tls_ca=None, timeout=5.0, shared_memory=true,
        host=None, zone="", listen=None, _holds=false))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn new(
        py: Python<'_>,
        master: Option<String>,
        segment_size: Option<Size>,
        replicas: u8,
        tenant: &str,
        token_file: Option<PathBuf>,
        tls_cert: Option<PathBuf>,
        tls_key: Option<PathBuf>,
        tls_ca: Option<PathBuf>,
        timeout: f64,
        shared_memory: bool,
        host: Option<String>,
        zone: &str,
        listen: Option<String>,
        _holds: bool,
    ) -> PyResult<Self> {
        let tls = TlsFiles { cert: tls_cert, key: tls_key, ca: tls_ca };
        let opening = Opening {
            master,
            segment_size,
            replicas,
            tenant: tenant.to_owned(),
            token_file,
            tls,
            timeout,
            shared_memory,
            host,
            zone: zone.to_owned(),
            listen,
            holds: _holds,
        };
        Self::open(py, opening)
    }

    /// Stores a value; False if the key has one already, which stays, unless `upsert`.
    #[pyo3(signature = (key, value, *, replicas=None, soft_pin=None, hard_pin=false, group=None,
        expire=None, upsert=false))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn put(
        &self,
        py: Python<'_>,
        key: Key,
        value: Source,
        replicas: Option<u8>,
        soft_pin: Option<f64>,
        hard_pin: bool,
        group: Option<String>,
        expire: Option<f64>,
        upsert: bool,
    ) -> PyResult<bool> {
        let wishes = Wishes { replicas, soft_pin, hard_pin, group, expire, upsert };
        let config = wishes.onto(py, self.live(py)?.store().put_config())?;
        let (key, value) = (key.bytes(), value.bytes());
        let stored = self.call(py, |store| store.put_parts(key, &[value], &config))?;
        Ok(stored == Stored::New)
    }

    /// The value, verified; None if there is none.
    fn get(&self, py: Python<'_>, key: Key) -> PyResult<Option<Py<PyBytes>>> {
        let mut filled = true;
        let found = self.call(py, |store| {
            store.get_with(key.bytes(), |len| {
                let fresh = FreshBytes::new(len);
                filled = fresh.is_made();
                fresh
            })
        });
        if !filled {
            return Err(PyMemoryError::new_err("no memory for the value"));
        }
        Ok(found?.map(FreshBytes::finish))
    }

    /// Copies the value to the front of a writable buffer; its length, or None if there is none.
    fn get_into(&self, py: Python<'_>, key: Key, target: Target) -> PyResult<Option<usize>> {
        let mut target = target;
        let into = target.bytes();
        self.call(py, |store| store.get_into(key.bytes(), into))
    }

    /// A part of the value, verified; None if there is no value.
    #[pyo3(signature = (key, start, length))]
    fn get_range(
        &self,
        py: Python<'_>,
        key: Key,
        start: u64,
        length: usize,
    ) -> PyResult<Option<Py<PyBytes>>> {
        let read = self.call(py, |store| {
            // Nothing is allocated for a range that the value does not have.
            let Some(have) = store.size(key.bytes())? else { return Ok(None) };
            let fits = start.checked_add(length as u64).is_some_and(|end| end <= have);
            let mut fresh = FreshBytes::new(if fits { length } else { 0 });
            if !fits {
                let (bytes, len) = (length as u64, have);
                return Err(mooncrate_client::Error::OutOfRange { start, bytes, len }.into());
            }
            if fresh.is_made() {
                let found = store.get_range(key.bytes(), start, fresh.as_mut())?;
                return Ok(found.map(|_| Some(fresh)));
            }
            Ok(Some(None))
        })?;
        match read {
            None => Ok(None),
            Some(Some(fresh)) => Ok(Some(fresh.finish())),
            Some(None) => Err(PyMemoryError::new_err("no memory for the range")),
        }
    }

    /// The value in place, pinned; a copy where its owner is on another machine.
    fn view(&self, py: Python<'_>, key: Key) -> PyResult<Option<View>> {
        let found = self.detached(py, |live| {
            let found = live.store().view(key.bytes());
            found.map(|view| view.map(|view| View::new(view, live.clone())))
        })?;
        found.map_err(|error| exception(py, error))
    }

    /// Bytes of the value; None if there is none.
    fn size(&self, py: Python<'_>, key: Key) -> PyResult<Option<u64>> {
        self.call(py, |store| store.size(key.bytes()))
    }

    /// Whether the key has a value. Asking protects nothing from eviction.
    fn exists(&self, py: Python<'_>, key: Key) -> PyResult<bool> {
        self.call(py, |store| store.exists(key.bytes()))
    }

    fn __contains__(&self, py: Python<'_>, key: Key) -> PyResult<bool> {
        self.exists(py, key)
    }

    /// Removes the value; whether there was one. Views keep their bytes.
    #[pyo3(signature = (key, *, force=false))]
    fn remove(&self, py: Python<'_>, key: Key, force: bool) -> PyResult<bool> {
        self.call(py, |store| store.remove(key.bytes(), force))
    }

    /// Removes the values of all keys with this prefix; how many. Leased ones stay unless `force`.
    #[pyo3(signature = (prefix, *, force=false))]
    fn remove_prefix(&self, py: Python<'_>, prefix: Key, force: bool) -> PyResult<u64> {
        let done = self.call(py, |store| store.remove_prefix(prefix.bytes(), force))?;
        Ok(done.removed + done.deferred)
    }

    /// Removes the values of all keys in which the expression finds a match; how many.
    #[pyo3(signature = (regex, *, force=false))]
    fn remove_regex(&self, py: Python<'_>, regex: &str, force: bool) -> PyResult<u64> {
        let done = self.call(py, |store| store.remove_regex(regex, force))?;
        Ok(done.removed + done.deferred)
    }

    /// The keys with this prefix, in no particular order.
    #[pyo3(signature = (prefix=None))]
    fn list(slf: Bound<'_, Self>, prefix: Option<Key>) -> PyResult<Listing> {
        slf.get().live(slf.py())?;
        let prefix = prefix.map_or_else(Vec::new, |prefix| prefix.bytes().to_vec());
        Ok(Listing::new(slf.unbind(), prefix))
    }

    /// The cluster, and this client, in numbers.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (stat, counts) = self.call(py, |store| Ok((store.stat()?, store.counts())))?;
        stats::dict(py, &stat, &counts)
    }

    /// Closes the store; its views live on. More than once is fine.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.shut(py)
    }

    /// Whether it was closed, or belongs to another process.
    #[getter]
    fn closed(&self) -> bool {
        self.is_closed()
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        slf.get().live(slf.py())?;
        Ok(slf)
    }

    #[pyo3(signature = (*_why))]
    fn __exit__(&self, py: Python<'_>, _why: &Bound<'_, PyAny>) -> PyResult<()> {
        self.shut(py)
    }

    fn __repr__(&self) -> String {
        format!("<mooncrate.Store, {}>", self.words())
    }

    /// Stores many values at once: for each what `put` gives, or its error as an object.
    #[pyo3(signature = (items, *, replicas=None, soft_pin=None, hard_pin=false, group=None,
        expire=None, upsert=false))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn put_batch<'py>(
        &self,
        py: Python<'py>,
        items: Items,
        replicas: Option<u8>,
        soft_pin: Option<f64>,
        hard_pin: bool,
        group: Option<String>,
        expire: Option<f64>,
        upsert: bool,
    ) -> PyResult<Bound<'py, PyList>> {
        let wishes = Wishes { replicas, soft_pin, hard_pin, group, expire, upsert };
        batch::put(self, py, &items, &wishes)
    }

    /// Many values at once: for each what `get` gives, or its error as an object.
    fn get_batch<'py>(&self, py: Python<'py>, keys: Keys) -> PyResult<Bound<'py, PyList>> {
        batch::get(self, py, &keys)
    }

    /// For each key what `exists` gives, or its error as an object.
    fn exists_batch<'py>(&self, py: Python<'py>, keys: Keys) -> PyResult<Bound<'py, PyList>> {
        batch::exists(self, py, &keys)
    }

    /// For each key what `remove` gives, or its error as an object.
    #[pyo3(signature = (keys, *, force=false))]
    fn remove_batch<'py>(
        &self,
        py: Python<'py>,
        keys: Keys,
        force: bool,
    ) -> PyResult<Bound<'py, PyList>> {
        batch::remove(self, py, &keys, force)
    }

    /// Internal: stores values that lie in pieces at addresses.
    #[pyo3(signature = (keys, addresses, sizes, *, replicas=None, soft_pin=None, hard_pin=false,
        group=None, expire=None, upsert=false))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn _put_at<'py>(
        &self,
        py: Python<'py>,
        keys: Keys,
        addresses: Numbers,
        sizes: Numbers,
        replicas: Option<u8>,
        soft_pin: Option<f64>,
        hard_pin: bool,
        group: Option<String>,
        expire: Option<f64>,
        upsert: bool,
    ) -> PyResult<Bound<'py, PyList>> {
        let wishes = Wishes { replicas, soft_pin, hard_pin, group, expire, upsert };
        raw::put(self, py, &keys, &addresses, &sizes, &wishes)
    }

    /// Internal: copies values into pieces at addresses; their lengths.
    #[pyo3(signature = (keys, addresses, sizes, *, exact=false))]
    fn _get_at<'py>(
        &self,
        py: Python<'py>,
        keys: Keys,
        addresses: Numbers,
        sizes: Numbers,
        exact: bool,
    ) -> PyResult<Bound<'py, PyList>> {
        raw::get(self, py, &keys, &addresses, &sizes, exact)
    }

    /// Internal: copies ranges of values to addresses.
    fn _get_ranges_at<'py>(
        &self,
        py: Python<'py>,
        keys: Keys,
        starts: Numbers,
        addresses: Numbers,
        sizes: Numbers,
    ) -> PyResult<Bound<'py, PyList>> {
        raw::get_ranges(self, py, &keys, &starts, &addresses, &sizes)
    }
}
