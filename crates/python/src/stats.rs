//! `stats()`: the numbers of a cluster and of this client, of a paged cache, or of a rank, as plain dictionaries.

use mooncrate::{ClusterStat, Counts, DeviceCounts};
use mooncrate_nano::{Stats as NanoStats, Usage};
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
    device: &DeviceCounts,
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
    client.set_item("direct_puts", device.direct_puts)?;
    client.set_item("direct_gets", device.direct_gets)?;
    client.set_item("device_fallbacks", device.fallbacks)?;
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
        hit_tokens,
        miss_tokens,
        hit_blocks,
        miss_blocks,
        forks,
        copied_blocks,
        dropped_tokens,
        spilled_blocks,
        spilled_bytes,
        fetched_blocks,
        fetched_bytes,
        suspended_sequences,
        resumed_sequences,
    ))
}

/// The numbers of a rank of the GPU-resident cache.
pub(crate) fn nano<'py>(
    py: Python<'py>,
    stats: &NanoStats,
    usage: &Usage,
) -> PyResult<Bound<'py, PyDict>> {
    let all = fields!(
        py,
        stats,
        plans,
        t_plan_us,
        oom_count,
        bytes_tx,
        bytes_rx,
        freed_count,
        evict_count,
        evict_in_use_retry,
        stuck_put_reclaimed,
        waiting,
    );
    all.update(fields!(py, usage, bytes_used, bytes_total, ready_count).as_mapping())?;
    Ok(all)
}
