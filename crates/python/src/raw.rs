//! The raw door, for packages that bring a calling convention of their own: values in pieces at addresses.
//!
//! It is internal and may change with any version ([`crate::raw_store`]). What must stay
//! true: the caller promises that every piece is memory of this process that stays, and that nobody else
//! writes to it (or, for a get, uses it at all) until the call returns. What can be checked is checked: no
//! null address, no piece that is longer than memory can be, as many sizes as addresses.

use crate::batch::{Keys, put_all, result};
use crate::error::invalid;
use crate::store::Store;
use mooncrate::{Error, PutConfig, RangeInto, Ranges};
use mooncrate_core::limits::BATCH_ITEMS_MAX;
use pyo3::prelude::*;
use pyo3::types::PyList;

/// Numbers of each key: addresses, sizes, starts.
pub(crate) type Numbers = Vec<Vec<usize>>;

/// A piece of memory that the caller vouches for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    address: usize,
    size: usize,
}

impl Piece {
    pub(crate) fn bytes<'a>(self) -> &'a [u8] {
        if self.size == 0 {
            return &[];
        }
        let first = std::ptr::with_exposed_provenance(self.address);
        // SAFETY: `pieces` refused null and impossible sizes; that the memory is there, and is left alone
        // until the call returns, is the caller's promise (see the head of this file), and no slice
        // outlives the call.
        unsafe { std::slice::from_raw_parts(first, self.size) }
    }

    pub(crate) fn bytes_mut<'a>(self) -> &'a mut [u8] {
        if self.size == 0 {
            return &mut [];
        }
        let first = std::ptr::with_exposed_provenance_mut(self.address);
        // SAFETY: as in `bytes`; that pieces do not overlap is a part of the same promise.
        unsafe { std::slice::from_raw_parts_mut(first, self.size) }
    }
}

/// What one key asks for, or why it makes no sense.
type Asked = Result<Vec<Piece>, &'static str>;

/// The pieces of each key.
fn pieces(
    py: Python<'_>,
    keys: &Keys,
    addresses: &Numbers,
    sizes: &Numbers,
) -> PyResult<Vec<Asked>> {
    let (keys, lists) = (keys.0.len(), (addresses.len(), sizes.len()));
    if lists != (keys, keys) {
        let words = format!(
            "{keys} keys need as many lists of addresses and of sizes; there are {} and {}",
            lists.0, lists.1
        );
        return Err(invalid(py, &words));
    }
    Ok(addresses.iter().zip(sizes).map(|(addresses, sizes)| of_one(addresses, sizes)).collect())
}

fn of_one(addresses: &[usize], sizes: &[usize]) -> Asked {
    if addresses.len() != sizes.len() {
        return Err("a key has as many sizes as addresses");
    }
    addresses.iter().zip(sizes).map(|(&address, &size)| piece(address, size)).collect()
}

/// A piece, or why it cannot be one.
pub(crate) fn piece(address: usize, size: usize) -> Result<Piece, &'static str> {
    let end = isize::try_from(size).ok().and_then(|_| address.checked_add(size));
    match end {
        _ if size == 0 => Ok(Piece { address, size }),
        _ if address == 0 => Err("a piece has the address 0"),
        None => Err("a piece reaches past the end of memory"),
        Some(_) => Ok(Piece { address, size }),
    }
}

/// A list of results: those of the keys that made sense, at their places, and an error for the others.
fn merged<'py, T, O>(
    py: Python<'py>,
    asked: &[Result<T, &'static str>],
    done: Vec<O>,
    object: impl Fn(O) -> PyResult<Py<PyAny>>,
) -> PyResult<Bound<'py, PyList>> {
    let mut done = done.into_iter();
    let all = asked.iter().map(|one| match one {
        Ok(_) => object(done.next().expect("one result per key that made sense")),
        Err(words) => Ok(invalid(py, words).into_value(py).into_any()),
    });
    PyList::new(py, all.collect::<PyResult<Vec<_>>>()?)
}

/// Stores values that lie in pieces.
pub(crate) fn put<'py>(
    store: &Store,
    py: Python<'py>,
    keys: &Keys,
    addresses: &Numbers,
    sizes: &Numbers,
    config: &PutConfig,
) -> PyResult<Bound<'py, PyList>> {
    let asked = pieces(py, keys, addresses, sizes)?;
    let good = keys.0.iter().zip(&asked).filter_map(|(key, one)| Some((key, one.as_ref().ok()?)));
    let (keys, values): (Vec<&[u8]>, Vec<Vec<&[u8]>>) = good
        .map(|(key, pieces)| (key.bytes(), pieces.iter().map(|piece| piece.bytes()).collect()))
        .unzip();
    let items: Vec<(&[u8], &[&[u8]])> =
        keys.into_iter().zip(values.iter().map(|value| &value[..])).collect();
    let stored = store.detached(py, |live| put_all(live.store(), &items, config))?;
    merged(py, &asked, stored, |one| result(py, one))
}

/// What became of one get.
enum Got {
    /// Bytes, or no value.
    Read(Option<usize>),
    Failed(Error),
    /// The pieces do not fit the value.
    Misfit {
        need: usize,
        have: usize,
    },
}

/// Copies values into pieces, which together are at least as long as the value, or with `exact` as long.
pub(crate) fn get<'py>(
    store: &Store,
    py: Python<'py>,
    keys: &Keys,
    addresses: &Numbers,
    sizes: &Numbers,
    exact: bool,
) -> PyResult<Bound<'py, PyList>> {
    let asked = pieces(py, keys, addresses, sizes)?;
    let good = keys.0.iter().zip(&asked).filter_map(|(key, one)| Some((key, one.as_ref().ok()?)));
    let good: Vec<(&[u8], &[Piece])> = good.map(|(key, one)| (key.bytes(), &one[..])).collect();
    let got = store.detached(py, |live| -> Vec<Got> {
        let chunks = good.chunks(BATCH_ITEMS_MAX);
        chunks.flat_map(|some| get_some(live.store(), some, exact)).collect()
    })?;
    merged(py, &asked, got, |one| match one {
        Got::Read(len) => result(py, Ok(len)),
        Got::Failed(error) => result::<bool>(py, Err(error)),
        Got::Misfit { need, have } => {
            let words = format!("the value has {need} bytes, the pieces have {have}");
            let class = crate::error::Class::TooLarge;
            let error = crate::error::make(py, class, &words, mooncrate::Advice::GiveUp);
            Ok(error.into_value(py).into_any())
        }
    })
}

/// Keys with one piece each are read straight into it. The others are read whole and cut: a value is
/// verified as one, and its cuts lie anywhere.
fn get_some(store: &mooncrate::Store, items: &[(&[u8], &[Piece])], exact: bool) -> Vec<Got> {
    if items.iter().all(|(_, pieces)| pieces.len() == 1) {
        let mut targets: Vec<(&[u8], &mut [u8])> =
            items.iter().map(|(key, pieces)| (*key, pieces[0].bytes_mut())).collect();
        let found = store.get_into_batch(&mut targets);
        let sized = found.into_iter().zip(items);
        return sized
            .map(|(found, (_, pieces))| match found {
                Ok(Some(need)) if exact && need != pieces[0].size => {
                    Got::Misfit { need, have: pieces[0].size }
                }
                Ok(len) => Got::Read(len),
                Err(error) => Got::Failed(error),
            })
            .collect();
    }
    let keys: Vec<&[u8]> = items.iter().map(|(key, _)| *key).collect();
    let found = store.get_batch(&keys).into_iter().zip(items);
    found
        .map(|(found, (_, pieces))| match found {
            Ok(Some(value)) => cut(&value, pieces, exact),
            Ok(None) => Got::Read(None),
            Err(error) => Got::Failed(error),
        })
        .collect()
}

/// Copies a value into pieces, one after the other.
fn cut(value: &[u8], pieces: &[Piece], exact: bool) -> Got {
    let (need, have) = (value.len(), pieces.iter().map(|piece| piece.size).sum::<usize>());
    if need > have || (exact && need != have) {
        return Got::Misfit { need, have };
    }
    let mut rest = value;
    for piece in pieces {
        let (now, later) = rest.split_at(piece.size.min(rest.len()));
        piece.bytes_mut()[..now.len()].copy_from_slice(now);
        rest = later;
    }
    Got::Read(Some(need))
}

/// Copies ranges of values into pieces: one piece per range, as long as the range.
pub(crate) fn get_ranges<'py>(
    store: &Store,
    py: Python<'py>,
    keys: &Keys,
    starts: &Numbers,
    addresses: &Numbers,
    sizes: &Numbers,
) -> PyResult<Bound<'py, PyList>> {
    let mut asked = pieces(py, keys, addresses, sizes)?;
    if starts.len() != asked.len() {
        let words =
            format!("{} keys need as many lists of starts, not {}", asked.len(), starts.len());
        return Err(invalid(py, &words));
    }
    for (one, starts) in asked.iter_mut().zip(starts) {
        if one.as_ref().is_ok_and(|pieces| pieces.len() != starts.len()) {
            *one = Err("a key has as many starts as addresses");
        }
    }
    let each = keys.0.iter().zip(starts).zip(&asked);
    let (keys, mut ranges): (Vec<&[u8]>, Vec<Vec<RangeInto<'_>>>) = each
        .filter_map(|((key, starts), one)| {
            let pieces = starts.iter().zip(one.as_ref().ok()?);
            let range = |(start, piece): (&usize, &Piece)| RangeInto {
                start: *start as u64,
                into: piece.bytes_mut(),
            };
            Some((key.bytes(), pieces.map(range).collect()))
        })
        .unzip();
    let mut items: Vec<(&[u8], &mut [RangeInto<'_>])> =
        keys.into_iter().zip(ranges.iter_mut().map(|ranges| &mut ranges[..])).collect();
    let got = store.detached(py, |live| -> Vec<Result<Option<Ranges>, Error>> {
        let chunks = items.chunks_mut(BATCH_ITEMS_MAX);
        chunks.flat_map(|some| live.store().get_ranges_batch(some)).collect()
    })?;
    merged(py, &asked, got, |one| match one {
        Ok(Some(ranges)) => {
            let ranges = ranges.into_iter().map(|range| result(py, range));
            let list = PyList::new(py, ranges.collect::<PyResult<Vec<_>>>()?)?;
            Ok(list.into_any().unbind())
        }
        Ok(None) => Ok(py.None()),
        Err(error) => result::<bool>(py, Err(error)),
    })
}
