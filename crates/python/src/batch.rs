//! The calls for many keys: one result each, at its own index. An error is an object in the list, so that
//! one bad key spoils no other; what concerns the whole call is raised.

use crate::buffer::{FreshBytes, Key, Source, slices};
use crate::error::exception_object;
use crate::options::Wishes;
use crate::store::Store;
use mooncrate::{Error, PutConfig, Stored};
use mooncrate_core::limits::BATCH_ITEMS_MAX;
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString};

/// The keys of a call. A single text or `bytes` is refused: its letters are hardly meant.
pub(crate) struct Keys(pub(crate) Vec<Key>);

impl<'py> FromPyObject<'_, 'py> for Keys {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if object.is_instance_of::<PyString>() || object.is_instance_of::<PyBytes>() {
            return Err(PyTypeError::new_err("keys are a list of keys, not a single one"));
        }
        let keys = object.try_iter()?.map(|key| key?.extract());
        Ok(Self(keys.collect::<PyResult<_>>()?))
    }
}

/// The items of a put: a dict, or pairs of key and value.
pub(crate) struct Items(Vec<(Key, Source)>);

impl<'py> FromPyObject<'_, 'py> for Items {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let items = if let Ok(dict) = object.cast::<PyDict>() {
            dict.items().into_any().try_iter()?
        } else {
            object.try_iter()?
        };
        Ok(Self(items.map(|item| item?.extract()).collect::<PyResult<_>>()?))
    }
}

/// One result of a list.
pub(crate) fn result<'py, T: IntoPyObjectExt<'py>>(
    py: Python<'py>,
    result: Result<T, Error>,
) -> PyResult<Py<PyAny>> {
    match result {
        Ok(value) => value.into_py_any(py),
        Err(error) => Ok(exception_object(py, error)),
    }
}

/// All results of a list.
pub(crate) fn results<'py, T: IntoPyObjectExt<'py>>(
    py: Python<'py>,
    all: Vec<Result<T, Error>>,
) -> PyResult<Bound<'py, PyList>> {
    let all = all.into_iter().map(|one| result(py, one));
    PyList::new(py, all.collect::<PyResult<Vec<_>>>()?)
}

/// Stores items, as many at a time as a call may have.
pub(crate) fn put_all(
    store: &mooncrate::Store,
    items: &[(&[u8], &[&[u8]])],
    config: &PutConfig,
) -> Vec<Result<bool, Error>> {
    let stored = items.chunks(BATCH_ITEMS_MAX).flat_map(|some| store.put_parts_batch(some, config));
    stored.map(|one| one.map(|stored| stored == Stored::New)).collect()
}

/// Stores items.
pub(crate) fn put<'py>(
    store: &Store,
    py: Python<'py>,
    items: &Items,
    wishes: &Wishes,
) -> PyResult<Bound<'py, PyList>> {
    let config = wishes.onto(py, store.live(py)?.store().put_config())?;
    let values: Vec<[&[u8]; 1]> = items.0.iter().map(|(_, value)| [value.bytes()]).collect();
    let keys = items.0.iter().map(|(key, _)| key.bytes());
    let parts: Vec<(&[u8], &[&[u8]])> = keys.zip(values.iter().map(|value| &value[..])).collect();
    let stored = store.detached(py, |live| put_all(live.store(), &parts, &config))?;
    results(py, stored)
}

/// The values of keys.
pub(crate) fn get<'py>(
    store: &Store,
    py: Python<'py>,
    keys: &Keys,
) -> PyResult<Bound<'py, PyList>> {
    let slices = slices(&keys.0);
    let found = store.detached(py, |live| -> Vec<_> {
        let chunks = slices.chunks(BATCH_ITEMS_MAX);
        chunks.flat_map(|some| live.store().get_batch_with(some, FreshBytes::new)).collect()
    })?;
    let found = found.into_iter().map(|one| one.map(|one| one.map(FreshBytes::finish)));
    results(py, found.collect())
}

/// Which keys have values.
pub(crate) fn exists<'py>(
    store: &Store,
    py: Python<'py>,
    keys: &Keys,
) -> PyResult<Bound<'py, PyList>> {
    let slices = slices(&keys.0);
    let found = store.call(py, |store| {
        let chunks = slices.chunks(BATCH_ITEMS_MAX).map(|some| store.exists_batch(some));
        chunks.collect::<Result<Vec<_>, _>>()
    })?;
    results(py, found.into_iter().flatten().collect())
}

/// Removes keys.
pub(crate) fn remove<'py>(
    store: &Store,
    py: Python<'py>,
    keys: &Keys,
    force: bool,
) -> PyResult<Bound<'py, PyList>> {
    let slices = slices(&keys.0);
    let removed = store.call(py, |store| {
        let chunks = slices.chunks(BATCH_ITEMS_MAX).map(|some| store.remove_batch(some, force));
        chunks.collect::<Result<Vec<_>, _>>()
    })?;
    results(py, removed.into_iter().flatten().collect())
}
