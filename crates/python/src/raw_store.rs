//! `Raw`: the raw door of a store, for packages that bring a calling convention of their own.
//!
//! It is internal and may change with any version. Pieces of memory are named by address; see
//! [`crate::raw`] for what the caller promises about them. Results are lists with one entry per key, and an
//! error is an object in the list.
#![expect(clippy::needless_pass_by_value, reason = "arguments of Python arrive as values")]

use crate::batch::{Keys, put_all, result, results};
use crate::buffer::{Key, Source, slices};
use crate::error::exception;
use crate::raw::{self, Known, Numbers};
use crate::raw_flat::{self, Number, flat};
use crate::raw_memory::BufferHandle;
use crate::raw_nested::{self, Columns, Nested};
use crate::raw_one;
use crate::raw_ranges::Ranges;
use crate::raw_wishes::{RawWishes, Wished};
use crate::store::Store;
use mooncrate::{Error, Looked};
use mooncrate_core::SegmentId;
use mooncrate_core::ids::GroupId;
use mooncrate_core::limits::BATCH_ITEMS_MAX;
use mooncrate_core::plan::Medium;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

/// A place of one stripe of a value: segment, offset in it, bytes of the stripe, number of the stripe, medium.
type Place = (u64, u64, u64, u8, &'static str);

/// A node: its name, where it serves, its segments of memory, its disks.
type NodeRow = (String, String, Vec<u64>, Vec<u64>);

/// The raw door of a store.
#[pyclass(module = "mooncrate._native", frozen)]
pub(crate) struct Raw {
    store: Py<Store>,
}

#[pymethods]
impl Raw {
    #[new]
    fn new(store: Py<Store>) -> Self {
        Self { store }
    }

    /// The store behind the door.
    #[getter]
    fn store(&self, py: Python<'_>) -> Py<Store> {
        self.store.clone_ref(py)
    }

    /// Stores values that lie in buffers, each value in some of them.
    fn put<'py>(
        &self,
        py: Python<'py>,
        keys: Keys,
        values: Vec<Vec<Source>>,
        wishes: RawWishes,
    ) -> PyResult<Bound<'py, PyList>> {
        if keys.0.len() != values.len() {
            return Err(crate::error::invalid(py, "as many values as keys are needed"));
        }
        let asked = self.asked(py, &wishes, keys.0.len())?;
        let parts: Vec<Vec<&[u8]>> =
            values.iter().map(|value| value.iter().map(Source::bytes).collect()).collect();
        let items: Vec<(&[u8], &[&[u8]])> =
            slices(&keys.0).into_iter().zip(parts.iter().map(|value| &value[..])).collect();
        let stored =
            self.store.get().detached(py, |live| put_all(live.store(), &items, asked.all()))?;
        results(py, stored)
    }

    /// Stores values that lie in pieces at addresses. `known`: of each key, whether its pieces need not be
    /// looked at before they are used.
    #[pyo3(signature = (keys, addresses, sizes, wishes, *, known=None))]
    fn put_at<'py>(
        &self,
        py: Python<'py>,
        keys: Keys,
        addresses: Numbers,
        sizes: Numbers,
        wishes: RawWishes,
        known: Known,
    ) -> PyResult<Bound<'py, PyList>> {
        let asked = self.asked(py, &wishes, keys.0.len())?;
        raw::put(self.store.get(), py, &keys, &addresses, &sizes, &known, asked.all())
    }

    /// Stores values of one piece each; the errors by place, None if there are none. None of them is stored if
    /// the lists differ in length.
    fn put_flat<'py>(
        &self,
        py: Python<'py>,
        keys: Keys,
        addresses: Vec<Number>,
        sizes: Vec<Number>,
        wishes: RawWishes,
        ranges: PyRef<'py, Ranges>,
    ) -> PyResult<Option<Bound<'py, PyDict>>> {
        let pieces = flat(&keys, &addresses, &sizes).ok_or_else(|| lengths_differ(py))?;
        let asked = self.asked(py, &wishes, keys.0.len())?;
        raw_flat::put(self.store.get(), py, &keys, pieces, &ranges, asked.all())
    }

    /// Copies values into one piece each: their lengths, or one of the two codes for a key without a value and
    /// for a piece that makes no sense; and the errors by place.
    fn get_flat<'py>(
        &self,
        py: Python<'py>,
        keys: Keys,
        addresses: Vec<Number>,
        sizes: Vec<Number>,
        ranges: PyRef<'py, Ranges>,
        codes: (i64, i64),
    ) -> PyResult<(Vec<i64>, Option<Bound<'py, PyDict>>)> {
        let pieces = flat(&keys, &addresses, &sizes).ok_or_else(|| lengths_differ(py))?;
        raw_flat::get(self.store.get(), py, &keys, &pieces, &ranges, codes)
    }

    /// As `put_flat` for one key, which keeps a value that it has; the error, None if there is none.
    fn put_one(
        &self,
        py: Python<'_>,
        key: Key,
        address: Number,
        size: Number,
        preferred: Vec<u64>,
        ranges: PyRef<'_, Ranges>,
    ) -> PyResult<raw_one::Failure> {
        let asked = self.asked(py, &RawWishes::plain(preferred), 1)?;
        raw_one::put(self.store.get(), py, key, (address, size), &asked, &ranges)
    }

    /// The same for the bytes of a buffer.
    fn put_value(
        &self,
        py: Python<'_>,
        key: Key,
        value: Source,
        preferred: Vec<u64>,
    ) -> PyResult<raw_one::Failure> {
        let asked = self.asked(py, &RawWishes::plain(preferred), 1)?;
        raw_one::put_value(self.store.get(), py, &key, &value, &asked)
    }

    /// As `get_flat` for one key: a length, a code, or an error.
    fn get_one(
        &self,
        py: Python<'_>,
        key: Key,
        address: Number,
        size: Number,
        ranges: PyRef<'_, Ranges>,
        codes: (i64, i64),
    ) -> PyResult<Py<PyAny>> {
        raw_one::get(self.store.get(), py, key, (address, size), &ranges, codes)
    }

    /// 1 for each key that has a value, else 0; and the errors by place.
    fn exist<'py>(
        &self,
        py: Python<'py>,
        keys: Keys,
    ) -> PyResult<(Bound<'py, PyList>, Option<Bound<'py, PyDict>>)> {
        raw_flat::exist(self.store.get(), py, &keys)
    }

    /// Values as memory of the caller's own.
    fn get<'py>(&self, py: Python<'py>, keys: Keys) -> PyResult<Bound<'py, PyList>> {
        let slices = slices(&keys.0);
        let found = self.store.get().detached(py, |live| -> Vec<_> {
            let chunks = slices.chunks(BATCH_ITEMS_MAX);
            let get = |some| live.store().get_batch_with(some, BufferHandle::zeroed);
            chunks.flat_map(get).collect()
        })?;
        results(py, found)
    }

    /// Copies values into pieces at addresses; their lengths.
    #[pyo3(signature = (keys, addresses, sizes, *, exact=false, known=None))]
    fn get_at<'py>(
        &self,
        py: Python<'py>,
        keys: Keys,
        addresses: Numbers,
        sizes: Numbers,
        exact: bool,
        known: Known,
    ) -> PyResult<Bound<'py, PyList>> {
        raw::get(self.store.get(), py, &keys, &addresses, &sizes, &known, exact)
    }

    /// Copies ranges of values into registered buffers, all by buffer, key and range: the bytes of each, or one of the
    /// two codes for a key without a value and for numbers that make no sense; and what failed: the buffer, the key,
    /// which of its ranges, and why.
    #[expect(clippy::too_many_arguments, reason = "a list per column of the call")]
    #[expect(clippy::type_complexity, reason = "nested as the arguments are")]
    fn get_nested(
        &self,
        py: Python<'_>,
        buffers: Vec<Number>,
        keys: Vec<Keys>,
        targets: Nested,
        starts: Nested,
        sizes: Nested,
        ranges: PyRef<'_, Ranges>,
        codes: (i64, i64),
    ) -> PyResult<(Vec<Vec<Vec<i64>>>, Vec<(usize, usize, Vec<usize>, Py<PyAny>)>)> {
        let columns = Columns { targets, starts, sizes };
        raw_nested::get(self.store.get(), py, &buffers, &keys, &columns, &ranges, codes)
    }

    /// How long the value of a key is: None if there is none, False while it is being written.
    fn size<'py>(&self, py: Python<'py>, key: Key) -> PyResult<Bound<'py, PyAny>> {
        let near = self.store.get().live(py)?.store().lengths_near(&[key.bytes()])[0];
        if let Some(len) = near {
            return len.into_bound_py_any(py);
        }
        // Its place comes along: the next call asks nobody.
        let mut looked =
            self.store.get().call(py, |store| store.look(&[key.bytes()], true, true))?;
        match looked.pop().expect("one answer per key") {
            Ok(Looked::At(located)) => located.len().into_bound_py_any(py),
            Ok(Looked::Here { len, .. }) => len.into_bound_py_any(py),
            Ok(Looked::Writing) => false.into_bound_py_any(py),
            Ok(Looked::Missing) => Ok(py.None().into_bound(py)),
            Err(error) => Err(exception(py, error)),
        }
    }

    /// What is known of each key: None, False while it is being written, or its length.
    #[pyo3(signature = (keys, *, hold))]
    fn look<'py>(&self, py: Python<'py>, keys: Keys, hold: bool) -> PyResult<Bound<'py, PyList>> {
        let looked = self.looked(py, &keys, hold, false)?;
        let object = |looked: Looked| match looked {
            Looked::Missing => Ok(py.None()),
            Looked::Writing => false.into_py_any(py),
            Looked::Here { len, .. } => len.into_py_any(py),
            Looked::At(located) => located.len().into_py_any(py),
        };
        list(py, looked, object)
    }

    /// Whether each key has a value of another group than this one; an empty name: of any group.
    fn other_group<'py>(
        &self,
        py: Python<'py>,
        keys: Keys,
        groups: Vec<String>,
    ) -> PyResult<Bound<'py, PyList>> {
        let looked = self.looked(py, &keys, false, false)?.into_iter().zip(groups);
        let differ = looked.map(|(looked, group)| match looked {
            Ok(Looked::Here { group: has, .. }) if group.is_empty() => has != GroupId(0),
            Ok(Looked::Here { group: has, .. }) => has != GroupId::named(group.as_bytes()),
            _ => false,
        });
        PyList::new(py, differ)
    }

    /// Where each value is: a list of places, None if there is none.
    #[pyo3(signature = (keys, *, hold))]
    fn places<'py>(&self, py: Python<'py>, keys: Keys, hold: bool) -> PyResult<Bound<'py, PyList>> {
        let looked = self.looked(py, &keys, hold, true)?;
        let object = |looked: Looked| match looked {
            Looked::At(located) => {
                let place = |at: &mooncrate_core::plan::Locator| -> Place {
                    let bytes = located.striping.stripe_len(at.stripe);
                    (at.segment.0, at.extent.offset(), bytes, at.stripe, at.segment.medium().name())
                };
                located.replicas.iter().map(place).collect::<Vec<_>>().into_py_any(py)
            }
            _ => Ok(py.None()),
        };
        list(py, looked, object)
    }

    /// The nodes of the cluster.
    fn nodes(&self, py: Python<'_>) -> PyResult<Vec<NodeRow>> {
        let entries = self.store.get().call(py, mooncrate::Store::nodes)?;
        let row = |entry: mooncrate::NodeEntry| {
            let (disks, memory): (Vec<SegmentId>, Vec<SegmentId>) = (entry.segments.iter())
                .map(|(segment, _)| *segment)
                .partition(|segment| segment.medium() == Medium::Ssd);
            let ids = |all: Vec<SegmentId>| all.into_iter().map(|segment| segment.0).collect();
            (entry.info.name, entry.info.tcp, ids(memory), ids(disks))
        };
        Ok(entries.into_iter().map(row).collect())
    }

    /// The directory in which stores keep their disks unless they name one, as the master says; empty: none.
    fn disk_root(&self, py: Python<'_>) -> PyResult<String> {
        let stat = self.store.get().call(py, mooncrate::Store::stat)?;
        Ok(stat.disk_root)
    }

    /// Gives a value a copy in the segment `to`, instead of the one in `from` if that is given.
    #[pyo3(signature = (key, to, *, from_=None))]
    fn copy(&self, py: Python<'_>, key: Key, to: u64, from_: Option<u64>) -> PyResult<()> {
        let (key, to) = (key.bytes(), SegmentId(to));
        self.store.get().call(py, |store| match from_ {
            None => store.copy(key, to),
            Some(from) => store.move_replica(key, SegmentId(from), to),
        })
    }

    /// Ends the copy of a value in one segment.
    fn drop_copy(&self, py: Python<'_>, key: Key, segment: u64) -> PyResult<()> {
        self.store.get().call(py, |store| store.drop_copy(key.bytes(), SegmentId(segment)))
    }
}

impl Raw {
    /// The wishes of a put of so many keys.
    fn asked(&self, py: Python<'_>, wishes: &RawWishes, keys: usize) -> PyResult<Wished> {
        wishes.onto(py, self.store.get().live(py)?.store().put_config(), keys)
    }

    fn looked(
        &self,
        py: Python<'_>,
        keys: &Keys,
        hold: bool,
        places: bool,
    ) -> PyResult<Vec<Result<Looked, Error>>> {
        let slices = slices(&keys.0);
        let looked = self.store.get().detached(py, |live| {
            let chunks = slices.chunks(BATCH_ITEMS_MAX);
            let looked = chunks.map(|some| live.store().look(some, hold, places));
            looked.collect::<Result<Vec<_>, _>>()
        })?;
        let looked = looked.map_err(|error| exception(py, error))?;
        Ok(looked.into_iter().flatten().collect())
    }
}

fn lengths_differ(py: Python<'_>) -> PyErr {
    crate::error::invalid(py, "as many addresses and sizes as keys are needed")
}

/// A list of objects, and of errors as objects.
fn list<T>(
    py: Python<'_>,
    all: Vec<Result<T, Error>>,
    object: impl Fn(T) -> PyResult<Py<PyAny>>,
) -> PyResult<Bound<'_, PyList>> {
    let all = all.into_iter().map(|one| match one {
        Ok(value) => object(value),
        Err(error) => result::<bool>(py, Err(error)),
    });
    PyList::new(py, all.collect::<PyResult<Vec<_>>>()?)
}
