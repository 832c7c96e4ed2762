//! Ranges of values into registered buffers, named by buffer, key and range; the answers are nested in the same way.
//! All keys of a call are looked up together.
//!
//! What must stay true: no byte is written that does not lie in one range of memory that the caller has looked at
//! before and found writable ([`Ranges`]).

use crate::batch::Keys;
use crate::error::{exception, listed};
use crate::raw::{Piece, piece};
use crate::raw_flat::{Number, Row};
use crate::raw_ranges::Ranges;
use crate::store::Store;
use mooncrate::{Error, RangeInto, Ranges as Read};
use mooncrate_core::limits::BATCH_ITEMS_MAX;
use pyo3::prelude::*;

/// Numbers by buffer, key and range.
pub(crate) type Nested = Vec<Vec<Row>>;

/// What failed: the buffer, the key, which of its ranges, and why.
type Failed = Vec<(usize, usize, Vec<usize>, Py<PyAny>)>;

/// The columns of a call: places in buffers, places in values, and sizes.
pub(crate) struct Columns {
    pub(crate) targets: Nested,
    pub(crate) starts: Nested,
    pub(crate) sizes: Nested,
}

/// What is read for one key into one buffer.
struct Job<'a> {
    buffer: usize,
    place: usize,
    key: &'a [u8],
    /// Which ranges, from where in the value, to where.
    wanted: Vec<(usize, u64, Piece)>,
}

/// Of each range the bytes that were read, or one of the two codes for a key without a value and for numbers that
/// make no sense; and what failed.
pub(crate) fn get(
    store: &Store,
    py: Python<'_>,
    buffers: &[Number],
    keys: &[Keys],
    columns: &Columns,
    ranges: &Ranges,
    (missing, senseless): (i64, i64),
) -> PyResult<(Vec<Vec<Vec<i64>>>, Failed)> {
    let (mut codes, jobs) = sorted(buffers, keys, columns, ranges, senseless);
    let mut into: Vec<Vec<RangeInto<'_>>> = jobs
        .iter()
        .map(|job| {
            let range = |(_, start, piece): &(usize, u64, Piece)| RangeInto {
                start: *start,
                into: piece.bytes_mut(),
            };
            job.wanted.iter().map(range).collect()
        })
        .collect();
    let mut items: Vec<(&[u8], &mut [RangeInto<'_>])> =
        jobs.iter().zip(&mut into).map(|(job, into)| (job.key, &mut into[..])).collect();
    let got = store.detached(py, |live| -> Vec<Result<Option<Read>, Error>> {
        let chunks = items.chunks_mut(BATCH_ITEMS_MAX);
        chunks.flat_map(|some| live.store().get_ranges_batch(some)).collect()
    })?;
    let mut failed = Failed::new();
    for (job, got) in jobs.iter().zip(got) {
        let row = &mut codes[job.buffer][job.place];
        let numbers = job.wanted.iter().map(|(number, _, _)| *number);
        match got {
            Ok(Some(read)) => {
                for (number, read) in numbers.zip(read) {
                    match read {
                        Ok(bytes) => row[number] = i64::try_from(bytes).unwrap_or(i64::MAX),
                        Err(error) => {
                            let error = listed(py, exception(py, error))?;
                            failed.push((job.buffer, job.place, vec![number], error));
                        }
                    }
                }
            }
            Ok(None) => numbers.for_each(|number| row[number] = missing),
            Err(error) => {
                let error = listed(py, exception(py, error))?;
                failed.push((job.buffer, job.place, numbers.collect(), error));
            }
        }
    }
    Ok((codes, failed))
}

/// A code for each range, and what is to be read. There is a row for each buffer and key; one whose columns do not fit
/// has at least one code.
fn sorted<'a>(
    buffers: &[Number],
    keys: &'a [Keys],
    columns: &Columns,
    ranges: &Ranges,
    senseless: i64,
) -> (Vec<Vec<Vec<i64>>>, Vec<Job<'a>>) {
    let (mut codes, mut jobs) = (Vec::new(), Vec::new());
    let Columns { targets, starts, sizes } = columns;
    let fits = [keys.len(), targets.len(), starts.len(), sizes.len()] == [buffers.len(); 4];
    for (buffer, address) in buffers.iter().enumerate() {
        let keys = keys.get(buffer).map_or(&[][..], |keys| &keys.0);
        let columns = [targets, starts, sizes]
            .map(|column| column.get(buffer).map_or(&[][..], Vec::as_slice));
        if !fits || columns.iter().any(|rows| rows.len() != keys.len()) {
            codes.push(vec![vec![senseless]; keys.len().max(1)]);
            continue;
        }
        let [targets, starts, sizes] = columns;
        let mut rows = Vec::with_capacity(keys.len());
        for (place, key) in keys.iter().enumerate() {
            let [targets, starts, sizes] = [targets, starts, sizes].map(|column| &column[place].0);
            if [starts.len(), sizes.len()] != [targets.len(); 2] {
                rows.push(vec![senseless; targets.len().max(1)]);
                continue;
            }
            let mut wanted = Vec::new();
            let each = targets.iter().zip(starts).zip(sizes).enumerate();
            let row = each.map(|(number, ((target, start), size))| {
                match within(address, target, size, ranges).zip(start.0) {
                    Some((piece, start)) => {
                        wanted.push((number, start as u64, piece));
                        senseless
                    }
                    None => senseless,
                }
            });
            rows.push(row.collect());
            if !wanted.is_empty() {
                jobs.push(Job { buffer, place, key: key.bytes(), wanted });
            }
        }
        codes.push(rows);
    }
    (codes, jobs)
}

/// The piece of a buffer that is written; `None`: it is not all in registered memory.
fn within(buffer: &Number, target: &Number, size: &Number, ranges: &Ranges) -> Option<Piece> {
    let (buffer, target, size) = (buffer.0?, target.0?, size.0?);
    let room = ranges.left(buffer);
    if room == 0 || target.checked_add(size)? > room {
        return None;
    }
    piece(buffer + target, size).ok()
}
