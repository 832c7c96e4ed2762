//! The raw door's calls for one key. Threads that make small calls share the interpreter by turns, and what a call
//! does in Python is what the others wait for: lists of one are not made for these.

use crate::batch::{Keys, put_all};
use crate::buffer::{Key, Source};
use crate::error::{exception, listed};
use crate::raw_flat::{self, Number, flat};
use crate::raw_ranges::Ranges;
use crate::raw_wishes::Wished;
use crate::store::Store;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;

/// The error of a call for one key; `None`: it did what was asked.
pub(crate) type Failure = Option<Py<PyAny>>;

/// Stores the bytes at an address.
pub(crate) fn put(
    store: &Store,
    py: Python<'_>,
    key: Key,
    (address, size): (Number, Number),
    wished: &Wished,
    ranges: &Ranges,
) -> PyResult<Failure> {
    let keys = Keys(vec![key]);
    let pieces = flat(&keys, &[address], &[size]).expect("one of each");
    match raw_flat::put(store, py, &keys, pieces, ranges, wished.all())? {
        None => Ok(None),
        Some(failed) => Ok(failed.get_item(0)?.map(Bound::unbind)),
    }
}

/// Stores the bytes of a buffer.
pub(crate) fn put_value(
    store: &Store,
    py: Python<'_>,
    key: &Key,
    value: &Source,
    wished: &Wished,
) -> PyResult<Failure> {
    let item: [(&[u8], &[&[u8]]); 1] = [(key.bytes(), &[value.bytes()])];
    let mut stored = store.detached(py, |live| put_all(live.store(), &item, wished.all()))?;
    match stored.pop().expect("one result per item") {
        Ok(_) => Ok(None),
        Err(error) => listed(py, exception(py, error)).map(Some),
    }
}

/// Copies a value to an address: the bytes of it, one of the two codes, or an error as an object.
pub(crate) fn get(
    store: &Store,
    py: Python<'_>,
    key: Key,
    (address, size): (Number, Number),
    ranges: &Ranges,
    codes: (i64, i64),
) -> PyResult<Py<PyAny>> {
    let keys = Keys(vec![key]);
    let pieces = flat(&keys, &[address], &[size]).expect("one of each");
    let (mut codes, failed) = raw_flat::get(store, py, &keys, &pieces, ranges, codes)?;
    match failed.map(|failed| failed.get_item(0)).transpose()?.flatten() {
        Some(error) => Ok(error.unbind()),
        None => codes.pop().expect("one code per key").into_py_any(py),
    }
}
