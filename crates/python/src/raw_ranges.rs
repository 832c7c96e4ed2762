//! `Ranges`: memory that a caller by address has looked at and keeps mapped. Calls within it need no look.

use mooncrate_lock::Mutex;
use pyo3::prelude::*;
use std::collections::BTreeMap;

/// A range that is known.
#[derive(Clone, Copy, Debug)]
struct Range {
    size: usize,
    /// It is known to be readable.
    read: bool,
    /// It is known to be writable.
    write: bool,
}

/// Ranges of memory that do not overlap, by their first addresses. The lock is taken with the GIL in hand and
/// nothing is waited for under it, so a forked child never finds it locked.
#[pyclass(module = "mooncrate._native", frozen, subclass)]
pub(crate) struct Ranges(Mutex<BTreeMap<usize, Range>>);

#[pymethods]
impl Ranges {
    #[new]
    fn new() -> Self {
        Self(Mutex::default())
    }

    /// Takes a range in; False if it overlaps with another one.
    #[pyo3(signature = (address, size, *, read, write))]
    fn insert(&self, address: usize, size: usize, read: bool, write: bool) -> bool {
        let mut ranges = self.0.lock();
        let end = address.saturating_add(size);
        let before = ranges.range(..end).next_back();
        if before.is_some_and(|(start, range)| start.saturating_add(range.size) > address) {
            return false;
        }
        ranges.insert(address, Range { size, read, write });
        true
    }

    /// Forgets the range that begins there; False if none does.
    fn remove(&self, address: usize) -> bool {
        self.0.lock().remove(&address).is_some()
    }

    /// Bytes of the range that begins there; 0 if none does.
    fn size_at(&self, address: usize) -> usize {
        self.0.lock().get(&address).map_or(0, |range| range.size)
    }

    /// Bytes that can be written from an address to the end of its range; 0 if it is in none.
    pub(crate) fn left(&self, address: usize) -> usize {
        self.known(address, true)
    }

    /// Whether each address and size lies in a range that can be read, or written.
    #[pyo3(name = "knows", signature = (pieces, *, write))]
    fn all_known(&self, pieces: &Bound<'_, PyAny>, write: bool) -> PyResult<bool> {
        for piece in pieces.try_iter()? {
            let (address, size) = piece?.extract()?;
            if !self.knows(address, size, write) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Ranges {
    /// Whether a piece lies in a range that can be read, or written.
    pub(crate) fn knows(&self, address: usize, size: usize, write: bool) -> bool {
        self.known(address, write) >= size
    }

    fn known(&self, address: usize, write: bool) -> usize {
        let ranges = self.0.lock();
        let Some((start, range)) = ranges.range(..=address).next_back() else { return 0 };
        let usable = if write { range.write } else { range.read };
        if usable { range.size.saturating_sub(address - start) } else { 0 }
    }
}
