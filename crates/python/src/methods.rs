//! The methods of `Store`, as Python sees them: arguments in, one call, results out.
#![expect(clippy::needless_pass_by_value, reason = "arguments of Python arrive as values")]

use crate::batch::{Goals, Items, Keys};
use crate::buffer::Key;
use crate::calls;
use crate::device::{Goal, Value, all_host};
use crate::list::Listing;
use crate::options::{Disks, Opening, Size, Wishes, span};
use crate::raw_session::{GetSession, PutSession};
use crate::store::Store;
use crate::wait::look_at_handler;
use mooncrate::TlsFiles;
use pyo3::prelude::*;
use std::path::PathBuf;

/// What a call gives.
type Answer = PyResult<Py<PyAny>>;

#[pymethods]
impl Store {
    #[new]
    #[pyo3(signature = (*, master=None, segment_size=None, ssd=None, replicas=1, tenant="",
        token_file=None, tls_cert=None, tls_key=None, tls_ca=None, timeout=5.0, shared_memory=true,
        host=None, zone="", listen=None, memory_overcommit=false, _holds=false))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    #[expect(clippy::used_underscore_binding, reason = "it marks an internal keyword argument")]
    fn new(
        py: Python<'_>,
        master: Option<String>,
        segment_size: Option<Size>,
        ssd: Option<Disks>,
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
        memory_overcommit: bool,
        _holds: bool,
    ) -> PyResult<Self> {
        let tls = TlsFiles { cert: tls_cert, key: tls_key, ca: tls_ca };
        let opening = Opening {
            master,
            segment_size,
            ssd,
            replicas,
            tenant: tenant.to_owned(),
            token_file,
            tls,
            timeout,
            shared_memory,
            host,
            zone: zone.to_owned(),
            listen,
            memory_overcommit,
            holds: _holds,
        };
        Self::open(py, opening)
    }

    /// Stores a value; False if the key has one already, which stays, unless `upsert`.
    #[pyo3(signature = (key, value, *, replicas=None, soft_pin=None, hard_pin=false, group=None,
        expire=None, upsert=false, medium=None, stream=None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn put(
        &self,
        py: Python<'_>,
        key: Key,
        value: Value,
        replicas: Option<u8>,
        soft_pin: Option<f64>,
        hard_pin: bool,
        group: Option<String>,
        expire: Option<f64>,
        upsert: bool,
        medium: Option<String>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> Answer {
        let wishes = Wishes { replicas, soft_pin, hard_pin, group, expire, upsert, medium };
        match value {
            Value::Host(source) => self.run(py, calls::put(py, self, key, vec![source], &wishes)?),
            array @ Value::Array(_) => {
                self.run(py, calls::put_arrays(py, self, key, vec![array], stream, &wishes)?)
            }
        }
    }

    /// The same for a value that lies in parts, one after the other.
    #[pyo3(signature = (key, parts, *, replicas=None, soft_pin=None, hard_pin=false, group=None,
        expire=None, upsert=false, medium=None, stream=None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn put_parts(
        &self,
        py: Python<'_>,
        key: Key,
        parts: Vec<Value>,
        replicas: Option<u8>,
        soft_pin: Option<f64>,
        hard_pin: bool,
        group: Option<String>,
        expire: Option<f64>,
        upsert: bool,
        medium: Option<String>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> Answer {
        let wishes = Wishes { replicas, soft_pin, hard_pin, group, expire, upsert, medium };
        match all_host(parts) {
            Ok(parts) => self.run(py, calls::put(py, self, key, parts, &wishes)?),
            Err(parts) => self.run(py, calls::put_arrays(py, self, key, parts, stream, &wishes)?),
        }
    }

    /// The value, verified; None if there is none.
    fn get(&self, py: Python<'_>, key: Key) -> Answer {
        self.run(py, calls::Get(key))
    }

    /// Copies the value to the front of a writable buffer, or of memory of a GPU; its length, or None if
    /// there is none.
    #[pyo3(signature = (key, target, *, stream=None))]
    fn get_into(
        &self,
        py: Python<'_>,
        key: Key,
        target: Goal,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> Answer {
        match target {
            Goal::Host(target) => self.run(py, calls::GetInto { key, target }),
            array @ Goal::Array(_) => self.run(py, calls::get_into_array(py, key, array, stream)?),
        }
    }

    /// Copies many values at once: for each what `get_into` gives, or its error as an object.
    #[pyo3(signature = (items, *, stream=None))]
    fn get_into_batch(
        &self,
        py: Python<'_>,
        items: Goals,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> Answer {
        self.run(py, calls::get_into_batch(py, items, stream)?)
    }

    /// A part of the value, verified; None if there is no value.
    #[pyo3(signature = (key, start, length))]
    fn get_range(&self, py: Python<'_>, key: Key, start: u64, length: usize) -> Answer {
        self.run(py, calls::get_range(key, start, length))
    }

    /// The value in place, pinned; a copy where its owner is on another machine.
    fn view(&self, py: Python<'_>, key: Key) -> Answer {
        look_at_handler(py)?;
        self.run(py, calls::view(key))
    }

    /// Bytes of the value; None if there is none.
    fn size(&self, py: Python<'_>, key: Key) -> Answer {
        self.run(py, calls::Size(key))
    }

    /// Whether the key has a value. Asking protects nothing from eviction.
    fn exists(&self, py: Python<'_>, key: Key) -> Answer {
        self.run(py, calls::Exists(key))
    }

    fn __contains__(&self, py: Python<'_>, key: Key) -> PyResult<bool> {
        self.call(py, |store| store.exists(key.bytes()))
    }

    /// Removes the value; whether there was one. Views keep their bytes.
    #[pyo3(signature = (key, *, force=false))]
    fn remove(&self, py: Python<'_>, key: Key, force: bool) -> Answer {
        self.run(py, calls::remove(key, force))
    }

    /// Removes the values of all keys with this prefix; how many. Leased ones stay unless `force`.
    #[pyo3(signature = (prefix, *, force=false))]
    fn remove_prefix(&self, py: Python<'_>, prefix: Key, force: bool) -> Answer {
        self.run(py, calls::remove_prefix(prefix, force))
    }

    /// Removes the values of all keys in which the expression finds a match; how many.
    #[pyo3(signature = (regex, *, force=false))]
    fn remove_regex(&self, py: Python<'_>, regex: String, force: bool) -> Answer {
        self.run(py, calls::remove_regex(regex, force))
    }

    /// Reserves room for a value that is written in parts and appears at the end.
    #[pyo3(signature = (key, size, *, replicas=None, soft_pin=None, hard_pin=false, group=None,
        expire=None, medium=None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn put_session(
        &self,
        py: Python<'_>,
        key: Key,
        size: u64,
        replicas: Option<u8>,
        soft_pin: Option<f64>,
        hard_pin: bool,
        group: Option<String>,
        expire: Option<f64>,
        medium: Option<String>,
    ) -> PyResult<PutSession> {
        let upsert = false;
        let wishes = Wishes { replicas, soft_pin, hard_pin, group, expire, upsert, medium };
        let config = wishes.onto(py, self.live(py)?.store().put_config())?;
        // For the deallocator of the session, which cannot look.
        look_at_handler(py)?;
        let opened = self.call(py, |store| store.put_session(key.bytes(), size, &config))?;
        Ok(PutSession::new(opened))
    }

    /// Looks a value up once and leases it for some seconds, to read parts of it; None if there is none.
    #[pyo3(signature = (key, *, lease=10.0))]
    fn get_session(&self, py: Python<'_>, key: Key, lease: f64) -> PyResult<Option<GetSession>> {
        let lease = span(py, "lease", lease)?;
        let opened = self.call(py, |store| store.get_session(key.bytes(), lease))?;
        Ok(opened.map(GetSession::new))
    }

    /// The keys with this prefix, in no particular order.
    #[pyo3(signature = (prefix=None))]
    fn list(slf: Bound<'_, Self>, prefix: Option<Key>) -> PyResult<Listing> {
        slf.get().live(slf.py())?;
        let prefix = prefix.map_or_else(Vec::new, |prefix| prefix.bytes().to_vec());
        Ok(Listing::new(slf.unbind(), prefix))
    }

    /// The cluster, and this client, in numbers.
    fn stats(&self, py: Python<'_>) -> Answer {
        self.run(py, calls::stats())
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
        expire=None, upsert=false, medium=None, stream=None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn put_batch(
        &self,
        py: Python<'_>,
        items: Items,
        replicas: Option<u8>,
        soft_pin: Option<f64>,
        hard_pin: bool,
        group: Option<String>,
        expire: Option<f64>,
        upsert: bool,
        medium: Option<String>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> Answer {
        let wishes = Wishes { replicas, soft_pin, hard_pin, group, expire, upsert, medium };
        self.run(py, calls::put_batch(py, self, items, stream, &wishes)?)
    }

    /// Many values at once: for each what `get` gives, or its error as an object.
    fn get_batch(&self, py: Python<'_>, keys: Keys) -> Answer {
        self.run(py, calls::get_batch(keys))
    }

    /// For each key what `exists` gives, or its error as an object.
    fn exists_batch(&self, py: Python<'_>, keys: Keys) -> Answer {
        self.run(py, calls::ExistsBatch(keys))
    }

    /// For each key what `remove` gives, or its error as an object.
    #[pyo3(signature = (keys, *, force=false))]
    fn remove_batch(&self, py: Python<'_>, keys: Keys, force: bool) -> Answer {
        self.run(py, calls::remove_batch(keys, force))
    }
}
