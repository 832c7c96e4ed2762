//! The tables that kernels read, made without the GIL and then written to arrays of the caller.
//!
//! They are made in memory of ours first: an error leaves the caller's arrays as they were, and two of
//! them may be the same. What is copied is what is new: [`BlockTables`] remembers for each row which blocks it holds,
//! because the block table of a sequence only grows.

use crate::error::invalid;
use crate::paged::PagedCache;
use crate::paged_error::{exception, table_exception};
use crate::paged_input::{Numbers, Piece, Slots};
use mooncrate_lock::Mutex;
use mooncrate_paged::{
    BlockId, Cache, CacheError, CsrTable, NO_SLOT, SequenceBlocks, TableError, TableMark,
};
use pyo3::prelude::*;

/// Why there is no table.
pub(crate) enum Refused {
    Cache(CacheError),
    Table(TableError),
}

impl From<CacheError> for Refused {
    fn from(error: CacheError) -> Self {
        Self::Cache(error)
    }
}

impl From<TableError> for Refused {
    fn from(error: TableError) -> Self {
        Self::Table(error)
    }
}

impl PagedCache {
    /// Makes a table without the GIL.
    fn table<T: Send>(
        &self,
        py: Python<'_>,
        make: impl FnOnce(&Cache) -> Result<T, Refused> + Send,
    ) -> PyResult<T> {
        let cache = self.cache(py)?;
        py.detach(|| make(cache)).map_err(|refused| match refused {
            Refused::Cache(error) => exception(py, error),
            Refused::Table(error) => table_exception(py, error),
        })
    }
}

struct Blocks {
    table: Vec<BlockId>,
    tokens: u64,
}

fn blocks_of(cache: &Cache, id: &str) -> Result<Blocks, CacheError> {
    let mut table = Vec::new();
    let tokens = cache.block_table(id, &mut table)?;
    Ok(Blocks { table, tokens })
}

/// What a row of a table of block ids holds.
#[derive(Clone, Copy, Default)]
struct Row {
    mark: TableMark,
    /// Numbers at its front that may be something else than the padding.
    filled: usize,
}

/// A table of block ids in an array of the caller, a row for each sequence, kept up to date.
#[pyclass(module = "mooncrate.paged", frozen)]
pub(crate) struct BlockTables {
    cache: Py<PagedCache>,
    out: Numbers<i32>,
    pad: i32,
    /// Held over a whole update: two at once would write the same array.
    rows: Mutex<Vec<Row>>,
}

impl BlockTables {
    pub(crate) fn new(cache: Py<PagedCache>, out: Numbers<i32>, pad: i32) -> Self {
        let rows = Mutex::new(untouched(&out));
        Self { cache, out, pad, rows }
    }
}

#[pymethods]
impl BlockTables {
    /// Makes row `n` that of sequence `ids[n]`, and pads the others; how many numbers were written.
    #[expect(clippy::needless_pass_by_value, reason = "it is what Python hands over")]
    fn update(&self, py: Python<'_>, ids: Vec<String>) -> PyResult<usize> {
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        let Some(mut rows) = self.rows.try_lock() else {
            return Err(invalid(
                py,
                "another thread updates this table now; use one for each thread",
            ));
        };
        update(py, self.cache.get(), &ids, &self.out, &mut rows, self.pad)
    }
}

/// Rows of which nothing is known.
fn untouched(out: &Numbers<i32>) -> Vec<Row> {
    let width = out.shape().last().copied().unwrap_or(0);
    let count = out.room().checked_div(width).unwrap_or(0);
    vec![Row { mark: TableMark::default(), filled: width }; count]
}

/// Rows of block ids, padded; how many blocks the first row has.
pub(crate) fn rows(
    py: Python<'_>,
    cache: &PagedCache,
    ids: &[&str],
    out: &Numbers<i32>,
    pad: i32,
) -> PyResult<usize> {
    let mut rows = untouched(out);
    update(py, cache, ids, out, &mut rows, pad)?;
    Ok(rows.first().map_or(0, |row| row.filled))
}

/// Brings the rows up to date; how many numbers were written.
fn update(
    py: Python<'_>,
    cache: &PagedCache,
    ids: &[&str],
    out: &Numbers<i32>,
    rows: &mut [Row],
    pad: i32,
) -> PyResult<usize> {
    let (room, width) = (out.room(), out.shape().last().copied().unwrap_or(0));
    let known: &[Row] = rows;
    let (new, changes) = cache.table(py, |cache| {
        let (mut new, mut changes) = (Vec::new(), Vec::with_capacity(ids.len()));
        for (n, id) in ids.iter().enumerate() {
            let mut mark = known.get(n).map_or_else(TableMark::default, |row| row.mark);
            let first = new.len();
            let add =
                |blocks: &[BlockId]| new.extend(blocks.iter().map(|block| block.0.cast_signed()));
            let start = cache.table_since(id, &mut mark, add)?;
            changes.push((mark, start, first..new.len()));
        }
        if width == 0 || room < width {
            return Err(TableError::BadWidth { width, room }.into());
        }
        for (row, (mark, ..)) in changes.iter().enumerate() {
            if row >= known.len() {
                return Err(TableError::NoRow { row, rows: known.len() }.into());
            }
            let (array, needed) = ("a row of the block table", mark.blocks() as u64);
            if needed > width as u64 {
                return Err(TableError::TooSmall { array, room: width, needed }.into());
            }
        }
        Ok((new, changes))
    })?;
    let mut pieces = Vec::with_capacity(rows.len());
    for (n, row) in rows.iter_mut().enumerate() {
        let (mark, start, numbers) = match changes.get(n) {
            Some((mark, start, range)) => (*mark, *start, &new[range.clone()]),
            None => (TableMark::default(), 0, &[][..]),
        };
        let pads = row.filled.saturating_sub(mark.blocks());
        if !numbers.is_empty() || pads > 0 {
            pieces.push(Piece { at: n * width + start, numbers, pads, pad });
        }
        *row = Row { mark, filled: mark.blocks() };
    }
    out.write(py, &pieces);
    Ok(pieces.iter().map(|piece| piece.numbers.len() + piece.pads).sum())
}

/// The slots of new tokens, and -1 behind them; how many tokens there are.
pub(crate) fn slots(
    py: Python<'_>,
    cache: &PagedCache,
    items: &[Slots],
    out: &Numbers<i64>,
) -> PyResult<usize> {
    let room = out.room();
    let found = cache.table(py, |cache| {
        let mut found = Vec::new();
        for Slots { id, tokens } in items {
            cache.slots(id, tokens.map(|(start, end)| start..end), &mut found)?;
            if found.len() > room {
                let (array, needed) = ("the slot mapping", found.len() as u64);
                return Err(TableError::TooSmall { array, room, needed }.into());
            }
        }
        Ok(found)
    })?;
    let pads = room - found.len();
    out.write(py, &[Piece { at: 0, numbers: &found, pads, pad: NO_SLOT }]);
    Ok(found.len())
}

/// The three arrays of `FlashInfer`.
pub(crate) struct CsrOut {
    pub(crate) indptr: Numbers<i32>,
    pub(crate) indices: Numbers<i32>,
    pub(crate) last_page_len: Numbers<i32>,
}

/// Fills the three arrays; how many pages there are.
pub(crate) fn csr(
    py: Python<'_>,
    cache: &PagedCache,
    ids: &[String],
    out: &CsrOut,
) -> PyResult<usize> {
    let rooms = (out.indptr.room(), out.indices.room(), out.last_page_len.room());
    let (indptr, indices, last) = cache.table(py, |cache| {
        let blocks: Vec<Blocks> =
            ids.iter().map(|id| blocks_of(cache, id)).collect::<Result<_, _>>()?;
        let pages: usize = blocks.iter().map(|one| one.table.len()).sum();
        // What lies behind the last page is left alone. Too little room is found by the table itself.
        let mut indptr = vec![0; rooms.0.min(rooms.2 + 1)];
        let (mut indices, mut last) = (vec![0; pages.min(rooms.1)], vec![0; rooms.2]);
        let sequences: Vec<SequenceBlocks<'_>> = blocks
            .iter()
            .map(|one| SequenceBlocks { blocks: &one.table, tokens: one.tokens })
            .collect();
        CsrTable::new(cache.geometry(), &mut indptr, &mut indices, &mut last)?.fill(&sequences)?;
        Ok((indptr, indices, last))
    })?;
    for (array, numbers) in
        [(&out.indptr, &indptr), (&out.indices, &indices), (&out.last_page_len, &last)]
    {
        array.write(py, &[Piece { at: 0, numbers, pads: 0, pad: 0 }]);
    }
    Ok(indices.len())
}
