//! `Listing`: the keys of a store, a page at a time.

use crate::calls::PAGE;
use crate::store::Store;
use mooncrate::Listed;
use mooncrate_lock::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::collections::VecDeque;

/// An iterator over keys that start with a prefix, in no particular order.
#[pyclass(module = "mooncrate", frozen)]
pub(crate) struct Listing {
    store: Py<Store>,
    prefix: Vec<u8>,
    place: Mutex<Place>,
}

#[derive(Default)]
struct Place {
    found: VecDeque<Listed>,
    /// Where the next page starts; `None`: there is none.
    next: Option<u64>,
}

impl Listing {
    pub(crate) fn new(store: Py<Store>, prefix: Vec<u8>) -> Self {
        let place = Place { found: VecDeque::new(), next: Some(0) };
        Self { store, prefix, place: Mutex::new(place) }
    }
}

#[pymethods]
impl Listing {
    const fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        loop {
            let (listed, cursor) = {
                let mut place = self.place.lock();
                match place.found.pop_front() {
                    Some(listed) => (Some(listed), None),
                    None => (None, place.next.take()),
                }
            };
            if let Some(listed) = listed {
                return Ok(Some(PyBytes::new(py, listed.key.as_bytes())));
            }
            let Some(cursor) = cursor else { return Ok(None) };
            let ask = |store: &mooncrate::Store| store.list(&self.prefix, cursor, PAGE);
            let page = self.store.get().call(py, ask);
            let mut place = self.place.lock();
            match page {
                Ok(page) => {
                    place.found.extend(page.entries);
                    place.next = page.next;
                }
                Err(error) => {
                    // Whoever asks again goes on where this failed.
                    place.next = Some(cursor);
                    return Err(error);
                }
            }
        }
    }
}
