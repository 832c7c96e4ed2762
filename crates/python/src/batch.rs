//! The calls for many keys: one result each, at its own index. An error is an object in the list, so that
//! one bad key spoils no other; what concerns the whole call is raised.

use crate::buffer::Key;
use crate::device::{Goal, Value};
use crate::error::{exception, listed};
use mooncrate::{Error, Stored, Wishes};
use mooncrate_core::limits::BATCH_ITEMS_MAX;
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyIterator, PyList, PyString};

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
pub(crate) struct Items(pub(crate) Vec<(Key, Value)>);

impl<'py> FromPyObject<'_, 'py> for Items {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        Ok(Self(pairs(&object)?.map(|item| item?.extract()).collect::<PyResult<_>>()?))
    }
}

/// The items of a get: a dict, or pairs of key and memory for its value.
pub(crate) struct Goals(pub(crate) Vec<(Key, Goal)>);

impl<'py> FromPyObject<'_, 'py> for Goals {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        Ok(Self(pairs(&object)?.map(|item| item?.extract()).collect::<PyResult<_>>()?))
    }
}

fn pairs<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyIterator>> {
    match object.cast::<PyDict>() {
        Ok(dict) => dict.items().into_any().try_iter(),
        Err(_) => object.try_iter(),
    }
}

/// One result of a list.
pub(crate) fn result<'py, T: IntoPyObjectExt<'py>>(
    py: Python<'py>,
    result: Result<T, Error>,
) -> PyResult<Py<PyAny>> {
    match result {
        Ok(value) => value.into_py_any(py),
        Err(error) => listed(py, exception(py, error)),
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
    wishes: Wishes<'_>,
) -> Vec<Result<bool, Error>> {
    let chunks = items.chunks(BATCH_ITEMS_MAX).enumerate();
    let stored = chunks.flat_map(|(chunk, some)| {
        store.put_parts_batch(some, wishes.skip(chunk * BATCH_ITEMS_MAX))
    });
    stored.map(|one| one.map(|stored| stored == Stored::New)).collect()
}
