//! The tables that kernels read, made without the GIL and then written to arrays of the caller.
//!
//! They are made in memory of ours first: an error leaves the caller's arrays as they were, and two of
//! them may be the same.

use crate::paged::PagedCache;
use crate::paged_error::{exception, table_exception};
use crate::paged_input::{Numbers, Slots};
use mooncrate_paged::{
    BlockId, BlockTable, Cache, CacheError, CsrTable, NewTokens, SequenceBlocks, TableError,
    fill_slots,
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

/// Rows of block ids, padded; how many blocks the first row has.
pub(crate) fn rows(
    py: Python<'_>,
    cache: &PagedCache,
    ids: &[&str],
    out: &Numbers<i32>,
    pad: i32,
) -> PyResult<usize> {
    let width = out.shape().last().copied().unwrap_or(0);
    let room = out.room();
    let (array, first) = cache.table(py, |cache| {
        let blocks: Vec<Blocks> =
            ids.iter().map(|id| blocks_of(cache, id)).collect::<Result<_, _>>()?;
        let mut array = vec![pad; room];
        let mut table = BlockTable::new(&mut array, width, pad)?;
        for (row, one) in blocks.iter().enumerate() {
            table.set_row(row, &one.table)?;
        }
        Ok((array, blocks.first().map_or(0, |one| one.table.len())))
    })?;
    out.store(py, &array);
    Ok(first)
}

/// The slots of new tokens, and -1 behind them; how many tokens there are.
pub(crate) fn slots(
    py: Python<'_>,
    cache: &PagedCache,
    items: &[Slots],
    out: &Numbers<i64>,
) -> PyResult<usize> {
    let room = out.room();
    let (array, tokens) = cache.table(py, |cache| {
        let mut found = Vec::with_capacity(items.len());
        for Slots { id, tokens } in items {
            let blocks = blocks_of(cache, id)?;
            let (start, end) = tokens.unwrap_or((0, blocks.tokens));
            if end > blocks.tokens {
                let (id, tokens) = (id.clone(), blocks.tokens);
                return Err(CacheError::Outside { id, start, end, tokens }.into());
            }
            found.push((blocks.table, start..end));
        }
        let new: Vec<NewTokens<'_>> = found
            .iter()
            .map(|(blocks, tokens)| NewTokens { blocks, tokens: tokens.clone() })
            .collect();
        let mut array = vec![0; room];
        let tokens = fill_slots(cache.geometry(), &new, &mut array)?;
        Ok((array, tokens))
    })?;
    out.store(py, &array);
    Ok(tokens)
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
    out.indptr.store(py, &indptr);
    out.indices.store(py, &indices);
    out.last_page_len.store(py, &last);
    Ok(indices.len())
}
