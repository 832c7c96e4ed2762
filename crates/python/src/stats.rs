//! `stats()`: the numbers of a cluster and of this client, or of a paged cache, as plain dictionaries.

use mooncrate::{ClusterStat, Counts};
use mooncrate_paged::CacheStats;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// A dictionary of these fields of a structure, under their own names.
macro_rules! fields {
    ($py:expr, $of:expr, $($name:ident),+ $(,)?) => {{
        let dict = PyDict::new($py);
        $( dict.set_item(stringify!($name), $of.$name)?; )+
        dict
    }};
}

pub(crate) fn dict<'py>(
    py: Python<'py>,
    stat: &ClusterStat,
    counts: &Counts,
) -> PyResult<Bound<'py, PyDict>> {
    let dict = fields!(
        py,
        stat,
        rebuilding,
        nodes,
        objects,
        open_puts,
        capacity_bytes,
        used_bytes,
        quarantined_bytes,
        largest_free_run,
        index_bytes,
    );
    dict.set_item("leader", &stat.leader)?;
    let leader = &stat.counters;
    let counted = fields!(
        py,
        leader,
        puts,
        hits,
        misses,
        removed,
        evicted,
        evicted_bytes,
        busy,
        expired,
        replaced,
    );
    dict.set_item("counted", counted)?;
    let client = fields!(
        py,
        counts,
        cached,
        stale,
        corrupt,
        misses,
        fallbacks,
        local,
        shared,
        stream,
        disk,
        bytes_read,
        puts,
        bytes_written,
    );
    dict.set_item("client", client)?;
    Ok(dict)
}

/// The numbers of a paged cache.
pub(crate) fn paged<'py>(py: Python<'py>, stats: &CacheStats) -> PyResult<Bound<'py, PyDict>> {
    Ok(fields!(
        py,
        stats,
        sequences,
        total_blocks,
        free_blocks,
        cached_blocks,
        used_blocks,
        evicted_blocks,
        block_bytes,
    ))
}
