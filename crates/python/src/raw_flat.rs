//! The raw door's calls for one piece of memory per key, which engines make most: all that a call says is
//! converted here, at one crossing into native code and one back.
//!
//! What must stay true: as for [`crate::raw`], no piece is touched that was not looked at, or that lies in none
//! of the ranges that the caller has looked at before ([`Ranges`]). A small value that waits for nobody is copied
//! without giving the GIL up: eight threads that hand it to each other take ten times as long as the copy.

use crate::batch::Keys;
use crate::buffer::slices;
use crate::error::{exception, listed};
use crate::raw::{Got, Item, Piece, Refused, got, piece, place, put_pieces};
use crate::raw_ranges::Ranges;
use crate::store::Store;
use mooncrate::{Error, Wishes};
use mooncrate_core::limits::BATCH_ITEMS_MAX;
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

/// Values up to this many bytes are copied with the GIL in hand, where that waits for nobody.
pub(crate) const NEAR_BYTES_MAX: usize = 16 << 10;
/// So are answers for so many keys.
pub(crate) const NEAR_KEYS_MAX: usize = 256;

/// The first page is nobody's, and no machine has more than 57 bits of addresses.
const ADDRESS_MIN: usize = 4096;
const ADDRESS_MAX: usize = (1 << 57) - 1;

/// An address or a size; `None`: a number that can be neither.
pub(crate) struct Number(pub(crate) Option<usize>);

impl<'py> FromPyObject<'_, 'py> for Number {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        match object.extract::<usize>() {
            Ok(number) => Ok(Self(Some(number))),
            Err(error) if error.is_instance_of::<PyOverflowError>(object.py()) => Ok(Self(None)),
            Err(error) => Err(error),
        }
    }
}

/// Numbers of one key.
pub(crate) struct Row(pub(crate) Vec<Number>);

impl<'py> FromPyObject<'_, 'py> for Row {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let numbers = object.try_iter()?.map(|number| number?.extract());
        Ok(Self(numbers.collect::<PyResult<_>>()?))
    }
}

/// One piece for each key; `None`: what its numbers name cannot be memory, or is empty.
type Flat = Vec<Option<Piece>>;

/// The pieces of keys; `None`: there are not as many addresses and sizes as keys.
pub(crate) fn flat(keys: &Keys, addresses: &[Number], sizes: &[Number]) -> Option<Flat> {
    let fit = addresses.len() == keys.0.len() && sizes.len() == keys.0.len();
    let pieces = addresses.iter().zip(sizes).map(|(address, size)| memory(address, size));
    fit.then(|| pieces.collect())
}

/// A piece; `None`: there cannot be memory of this size at this address, or the size is 0.
pub(crate) fn memory(address: &Number, size: &Number) -> Option<Piece> {
    let (address, size) = (address.0?, size.0?);
    let is_memory = (ADDRESS_MIN..=ADDRESS_MAX).contains(&address) && size > 0;
    let ends = is_memory && size <= ADDRESS_MAX - address;
    if ends { piece(address, size).ok() } else { None }
}

/// What a call has to say beside its numbers: errors by the places of their keys. `None`: there are none.
pub(crate) type Failed<'py> = Option<Bound<'py, PyDict>>;

/// Of each key the bytes that were copied, `missing` or `senseless`, and what failed.
pub(crate) fn get<'py>(
    store: &Store,
    py: Python<'py>,
    keys: &Keys,
    pieces: &Flat,
    ranges: &Ranges,
    (missing, senseless): (i64, i64),
) -> PyResult<(Vec<i64>, Failed<'py>)> {
    if let ([key], [Some(piece)]) = (&keys.0[..], &pieces[..])
        && ranges.knows(piece.address, piece.size, true)
    {
        let live = store.live(py)?;
        let read = live.store().get_into_near(key.bytes(), NEAR_BYTES_MAX, piece.bytes_mut());
        if let Some(len) = read {
            return Ok((vec![i64::try_from(len).unwrap_or(i64::MAX)], None));
        }
    }
    let each = keys.0.iter().zip(pieces).filter_map(|(key, piece)| {
        let piece = piece.as_ref()?;
        let item: Item<'_> = (key.bytes(), std::slice::from_ref(piece));
        Some((item, ranges.knows(piece.address, piece.size, true)))
    });
    let good: Vec<(Item<'_>, bool)> = each.collect();
    let mut answers = got(store, py, &good, false)?.into_iter();
    let mut failed = None;
    let mut codes: Vec<i64> = Vec::with_capacity(pieces.len());
    for (at, piece) in pieces.iter().enumerate() {
        if piece.is_none() {
            codes.push(senseless);
            continue;
        }
        let error = match answers.next().expect("one answer per piece") {
            Got::Read(Some(len)) => {
                codes.push(i64::try_from(len).unwrap_or(i64::MAX));
                continue;
            }
            Got::Read(None) => {
                codes.push(missing);
                continue;
            }
            other => other.exception(py),
        };
        codes.push(senseless);
        fail(py, &mut failed, at, error)?;
    }
    Ok((codes, failed))
}

/// Stores the bytes at addresses; what failed.
pub(crate) fn put<'py>(
    store: &Store,
    py: Python<'py>,
    keys: &Keys,
    pieces: Flat,
    ranges: &Ranges,
    wishes: Wishes<'_>,
) -> PyResult<Failed<'py>> {
    let known: Vec<bool> = pieces
        .iter()
        .map(|piece| piece.is_some_and(|piece| ranges.knows(piece.address, piece.size, false)))
        .collect();
    let senseless = Refused::Senseless("the fragments cannot be memory, or hold nothing");
    let mut asked: Vec<Result<Vec<Piece>, Refused>> =
        pieces.into_iter().map(|piece| Ok(vec![piece.ok_or(senseless)?])).collect();
    if known.contains(&false) {
        py.detach(|| place(&mut asked, &known));
    }
    let mut stored = put_pieces(store, py, keys, &asked, wishes)?.into_iter();
    let mut failed = None;
    for (at, one) in asked.iter().enumerate() {
        let error = match one {
            Err(refused) => refused.exception(py),
            Ok(_) => match stored.next().expect("one result per key that made sense") {
                Ok(_) => continue,
                Err(error) => exception(py, error),
            },
        };
        fail(py, &mut failed, at, error)?;
    }
    Ok(failed)
}

/// Of each key 1 if it has a value, else 0, and what failed.
pub(crate) fn exist<'py>(
    store: &Store,
    py: Python<'py>,
    keys: &Keys,
) -> PyResult<(Bound<'py, PyList>, Failed<'py>)> {
    let slices = slices(&keys.0);
    if slices.len() <= NEAR_KEYS_MAX {
        let live = store.live(py)?;
        if !live.store().exists_near(&slices).contains(&false) {
            return Ok((PyList::new(py, vec![1; slices.len()])?, None));
        }
    }
    let there = store.call(py, |store| -> Result<Vec<Result<bool, Error>>, Error> {
        let chunks = slices.chunks(BATCH_ITEMS_MAX);
        let answers = chunks.map(|some| store.exists_batch(some));
        Ok(answers.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
    })?;
    let mut failed = None;
    let mut codes: Vec<u8> = Vec::with_capacity(there.len());
    for (at, one) in there.into_iter().enumerate() {
        match one {
            Ok(there) => codes.push(there.into()),
            Err(error) => {
                codes.push(0);
                fail(py, &mut failed, at, exception(py, error))?;
            }
        }
    }
    Ok((PyList::new(py, codes)?, failed))
}

/// Adds an error to those of a call.
pub(crate) fn fail<'py>(
    py: Python<'py>,
    failed: &mut Failed<'py>,
    at: usize,
    error: PyErr,
) -> PyResult<()> {
    let error = listed(py, error)?;
    failed.get_or_insert_with(|| PyDict::new(py)).set_item(at, error)
}
