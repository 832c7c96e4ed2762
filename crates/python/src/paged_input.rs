//! Arguments of a paged cache: numbers, tokens, names of halves, and arrays that tables are written to.
//!
//! What must stay true: an array of the caller is written through its address only, never as a slice of
//! ours: the caller may have given the same one twice.

use crate::error::invalid;
use mooncrate_paged::{Extra, Half, TOKENS_MAX};
use pyo3::buffer::{Element, PyBuffer};
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyInt, PyString, PyTuple};

/// A whole number from 0 to `MAX`. Others are an `Invalid`, which is a `ValueError`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Whole<const MAX: u64>(pub(crate) u64);

/// One that fits 32 bits.
pub(crate) type Word = Whole<{ u32::MAX as u64 }>;
/// A number of tokens, or the index of one.
pub(crate) type Index = Whole<{ i64::MAX as u64 }>;

impl Word {
    pub(crate) const fn get(self) -> u32 {
        self.0 as u32
    }
}

impl<'py, const MAX: u64> FromPyObject<'_, 'py> for Whole<MAX> {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let py = object.py();
        let wrong = || match object.repr() {
            Ok(shown) => invalid(py, &format!("{shown} is out of range; use 0 to {MAX}")),
            Err(error) => error,
        };
        match object.extract::<u64>() {
            Ok(number) if number <= MAX => Ok(Self(number)),
            Ok(_) => Err(wrong()),
            Err(error) if error.is_instance_of::<PyOverflowError>(py) => Err(wrong()),
            Err(error) => Err(error),
        }
    }
}

/// Tokens, or how many there are.
pub(crate) enum Tokens {
    Ids(Vec<u32>),
    Count(u64),
}

impl Tokens {
    /// From the two arguments, exactly one of which is given.
    pub(crate) fn of(
        py: Python<'_>,
        tokens: Option<&Bound<'_, PyAny>>,
        count: Option<Index>,
    ) -> PyResult<Self> {
        match (tokens, count) {
            (Some(tokens), None) => Ok(Self::Ids(ids(tokens)?)),
            (None, Some(count)) => Ok(Self::Count(count.0)),
            _ => Err(invalid(py, "give either tokens, the ids, or count, how many there are")),
        }
    }
}

/// The ids of tokens, of a list or an array.
pub(crate) fn ids(tokens: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
    let py = tokens.py();
    if tokens.is_instance_of::<PyInt>() {
        let words = format!(
            "tokens are a list or an array of ids: write [{tokens}] for one token, or count={tokens} for so \
             many that are not told"
        );
        return Err(PyTypeError::new_err(words));
    }
    let is_bytes = tokens.is_instance_of::<PyBytes>() || tokens.is_instance_of::<PyByteArray>();
    if is_bytes || tokens.is_instance_of::<PyString>() {
        let words = "tokens are a list or an array of ids, not text or bytes; tokenize it first";
        return Err(PyTypeError::new_err(words));
    }
    // SAFETY: asks the type of a live object, with the GIL held.
    if unsafe { pyo3::ffi::PyObject_CheckBuffer(tokens.as_ptr()) } == 1 {
        return array_ids(tokens);
    }
    let mut ids = Vec::new();
    for token in tokens.try_iter()? {
        let Whole(id): Word = token?.extract()?;
        if ids.len() as u64 == TOKENS_MAX {
            return Err(invalid(py, &format!("at most {TOKENS_MAX} tokens fit a sequence")));
        }
        ids.push(id as u32);
    }
    Ok(ids)
}

fn array_ids(tokens: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
    if let Some(ids) = typed::<u32>(tokens)? {
        return Ok(ids);
    }
    if let Some(ids) = typed::<i32>(tokens)? {
        return checked(tokens.py(), &ids);
    }
    if let Some(ids) = typed::<i64>(tokens)? {
        return checked(tokens.py(), &ids);
    }
    if let Some(ids) = typed::<u64>(tokens)? {
        return checked(tokens.py(), &ids);
    }
    let words = "an array of tokens has integers of 32 or 64 bits; convert it, as in \
                 tokens.astype('int32')";
    Err(PyTypeError::new_err(words))
}

/// Scores of tokens: a list of numbers, or an array of floats of 32 or 64 bits.
pub(crate) fn scores(scores: &Bound<'_, PyAny>) -> PyResult<Vec<f32>> {
    // SAFETY: asks the type of a live object, with the GIL held.
    if unsafe { pyo3::ffi::PyObject_CheckBuffer(scores.as_ptr()) } == 1 {
        if let Some(scores) = typed::<f32>(scores)? {
            return Ok(scores);
        }
        if let Some(scores) = typed::<f64>(scores)? {
            return Ok(scores.into_iter().map(|score| score as f32).collect());
        }
        let words = "an array of scores has floats of 32 or 64 bits; convert it, as in \
                     scores.astype('float32')";
        return Err(PyTypeError::new_err(words));
    }
    scores.try_iter()?.map(|score| score?.extract()).collect()
}

/// The elements of an array, if they have this type.
fn typed<T: Element>(array: &Bound<'_, PyAny>) -> PyResult<Option<Vec<T>>> {
    let Ok(buffer) = PyBuffer::<T>::get(array) else { return Ok(None) };
    if buffer.dimensions() != 1 {
        let words = format!("the array has one dimension, not {}", buffer.dimensions());
        return Err(invalid(array.py(), &words));
    }
    buffer.to_vec(array.py()).map(Some)
}

fn checked<T: Copy + TryInto<u32> + std::fmt::Display>(
    py: Python<'_>,
    ids: &[T],
) -> PyResult<Vec<u32>> {
    let id = |id: &T| {
        (*id).try_into().map_err(|_| {
            invalid(py, &format!("{id} is out of range; token ids are 0 to {}", u32::MAX))
        })
    };
    ids.iter().map(id).collect()
}

/// K or V by name.
pub(crate) fn half(py: Python<'_>, name: &str) -> PyResult<Half> {
    match name {
        "k" | "K" | "key" => Ok(Half::Key),
        "v" | "V" | "value" => Ok(Half::Value),
        _ => Err(invalid(py, &format!("{name:?} is neither \"k\" nor \"v\""))),
    }
}

/// Bytes that go into the names of blocks: bytes as they are, or text in UTF-8.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyBytes(pub(crate) Vec<u8>);

impl<'py> FromPyObject<'_, 'py> for KeyBytes {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if object.is_instance_of::<PyString>() {
            return Ok(Self(object.extract::<String>()?.into_bytes()));
        }
        match object.cast::<PyBytes>() {
            Ok(bytes) => Ok(Self(bytes.as_bytes().to_vec())),
            Err(_) => {
                Err(PyTypeError::new_err("a key or a salt is bytes or str; hash other things"))
            }
        }
    }
}

/// What changes the KV of tokens beside their ids: `(token, key)`, where `token` is the first that it changes.
pub(crate) struct ExtraKey(pub(crate) Extra);

impl<'py> FromPyObject<'_, 'py> for ExtraKey {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let wrong = || {
            PyTypeError::new_err(
                "extra_keys are pairs (token, key): the first token of an image, and its hash",
            )
        };
        let tuple = object.cast::<PyTuple>().ok().filter(|tuple| tuple.len() == 2);
        let tuple = tuple.ok_or_else(wrong)?;
        let (token, key): (Index, KeyBytes) = tuple.extract()?;
        Ok(Self(Extra::new(token.0, &key.0)))
    }
}

/// The extras of some pairs.
pub(crate) fn extras(keys: Option<Vec<ExtraKey>>) -> Vec<Extra> {
    keys.unwrap_or_default().into_iter().map(|key| key.0).collect()
}

/// What a slot mapping is asked for: all tokens of a sequence, or some.
pub(crate) struct Slots {
    pub(crate) id: String,
    pub(crate) tokens: Option<(u64, u64)>,
}

impl<'py> FromPyObject<'_, 'py> for Slots {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if object.is_instance_of::<PyString>() {
            return Ok(Self { id: object.extract()?, tokens: None });
        }
        let wrong =
            || PyTypeError::new_err("an item is the id of a sequence, or (id, start, stop)");
        let tuple = object.cast::<PyTuple>().ok().filter(|tuple| tuple.len() == 3);
        let parts = tuple.ok_or_else(wrong)?.extract::<(String, Index, Index)>();
        let (id, start, stop) = parts.map_err(|error| {
            if error.is_instance_of::<PyTypeError>(object.py()) { wrong() } else { error }
        })?;
        if start.0 > stop.0 {
            let words = format!("tokens {} to {} of {id:?} are none; swap them", start.0, stop.0);
            return Err(invalid(object.py(), &words));
        }
        Ok(Self { id, tokens: Some((start.0, stop.0)) })
    }
}

/// An array of the caller that a table is written to.
pub(crate) struct Numbers<T: Element>(PyBuffer<T>);

impl<T: Element + Sync> Numbers<T> {
    /// The array, if it has elements of this type in C order, so many dimensions, and may be written.
    pub(crate) fn of(
        array: &Bound<'_, PyAny>,
        name: &str,
        kind: &str,
        dimensions: usize,
    ) -> PyResult<Self> {
        let py = array.py();
        let Ok(buffer) = PyBuffer::<T>::get(array) else {
            let words = format!(
                "{name} is an array of {kind} on the host, as numpy.empty({}, '{kind}')",
                if dimensions == 1 { "n" } else { "(rows, width)" }
            );
            return Err(PyTypeError::new_err(words));
        };
        if buffer.readonly() {
            let words = format!("{name} is read-only; give an array that may be written");
            return Err(PyTypeError::new_err(words));
        }
        if buffer.dimensions() != dimensions {
            let has = buffer.dimensions();
            return Err(invalid(py, &format!("{name} has {has} dimensions; use {dimensions}")));
        }
        if !buffer.is_c_contiguous() {
            let words =
                format!("{name} must lie in one run of memory, in C order; give a whole array");
            return Err(invalid(py, &words));
        }
        Ok(Self(buffer))
    }

    /// How many numbers fit.
    pub(crate) fn room(&self) -> usize {
        self.0.item_count()
    }

    /// How many fit along each dimension.
    pub(crate) fn shape(&self) -> &[usize] {
        self.0.shape()
    }

    /// Writes numbers, without the GIL. The caller of the cache promises to leave the array alone meanwhile, as with
    /// every function of Python that writes without the GIL.
    pub(crate) fn write(&self, py: Python<'_>, pieces: &[Piece<'_, T>]) {
        let room = self.room();
        let to = Place(self.0.buf_ptr().cast::<T>());
        py.detach(|| {
            let Place(first) = { to };
            for Piece { at, numbers, pads, pad } in pieces {
                assert!(at + numbers.len() + pads <= room, "tables are made for the room there is");
                let place = first.wrapping_add(*at);
                // SAFETY: `of` checked that the array holds `room` elements of `T` in a row that may be written, and
                // this is a part of them. It stays while `self` holds the buffer; `numbers` is ours.
                unsafe { std::ptr::copy_nonoverlapping(numbers.as_ptr(), place, numbers.len()) };
                for n in numbers.len()..numbers.len() + pads {
                    // SAFETY: as above.
                    unsafe { place.wrapping_add(n).write(*pad) };
                }
            }
        });
    }
}

/// Numbers for a part of an array, and the same one several times behind them.
pub(crate) struct Piece<'a, T> {
    pub(crate) at: usize,
    pub(crate) numbers: &'a [T],
    pub(crate) pads: usize,
    pub(crate) pad: T,
}

/// An address on its way into a closure.
struct Place<T>(*mut T);

// SAFETY: an address alone; whoever follows it has its own reason.
unsafe impl<T> Send for Place<T> {}
