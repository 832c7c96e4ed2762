//! The numbers of a node's disks, a row for each. A node without disks shows none of them.

use crate::disk::Disk;
use crate::duty::Node;
use mooncrate_admin::{Page, Shown};
use mooncrate_core::tally::{Count, Spread};
use std::fmt;
use std::sync::Arc;

type Row = ([(&'static str, String); 1], Shown);

/// All families.
pub(super) fn show(page: &mut Page<'_>, node: &Node) -> fmt::Result {
    let disks = node.disks();
    if disks.is_empty() {
        return Ok(());
    }
    let rows = |of: &dyn Fn(&Disk) -> Shown| -> Vec<Row> {
        let row = |disk: &Arc<Disk>| ([("segment", disk.id.to_string())], of(disk));
        disks.iter().map(row).collect()
    };
    work(page, &rows)?;
    space(page, &rows)?;
    refusals(page, disks)
}

type Rows<'a> = dyn Fn(&dyn Fn(&Disk) -> Shown) -> Vec<Row> + 'a;

fn count(count: &Count) -> Shown {
    Shown::Count(count.value())
}

fn spread(spread: &Spread) -> Shown {
    Shown::Spread(spread.now())
}

/// What was done.
fn work(page: &mut Page<'_>, rows: &Rows<'_>) -> fmt::Result {
    let mut family = |name, help, of: &dyn Fn(&Disk) -> Shown| page.many(name, help, &rows(of));
    family("mooncrate_node_disk_keep_seconds", "Groups of records written and synced.", &|d| {
        spread(&d.tally.keeps)
    })?;
    family("mooncrate_node_disk_kept_records", "Records kept.", &|d| count(&d.tally.kept))?;
    family("mooncrate_node_disk_kept_bytes", "Bytes of values kept.", &|d| {
        count(&d.tally.kept_bytes)
    })?;
    family("mooncrate_node_disk_written_bytes", "Bytes written, everything counted.", &|d| {
        Shown::Count(d.backend.usage().written)
    })?;
    family("mooncrate_node_disk_load_seconds", "Batches of records read and verified.", &|d| {
        spread(&d.tally.loads)
    })?;
    family("mooncrate_node_disk_loaded_values", "Values and parts of values loaded.", &|d| {
        count(&d.tally.loaded)
    })?;
    family("mooncrate_node_disk_loaded_bytes", "Bytes of them.", &|d| {
        count(&d.tally.loaded_bytes)
    })?;
    family("mooncrate_node_disk_evicted_records", "Records evicted to make room.", &|d| {
        count(&d.tally.evicted)
    })?;
    family("mooncrate_node_disk_evicted_bytes", "Bytes that came back by that.", &|d| {
        count(&d.tally.evicted_bytes)
    })?;
    family("mooncrate_node_disk_removed_records", "Records removed by order.", &|d| {
        count(&d.tally.removed)
    })?;
    family("mooncrate_node_disk_scrubbed_bytes", "Bytes read for damage.", &|d| {
        count(&d.tally.scrubbed_bytes)
    })?;
    family("mooncrate_node_disk_corrupt_records", "Records that were not what was kept.", &|d| {
        count(&d.tally.corrupt)
    })?;
    family("mooncrate_node_disk_errors", "Calls that the disk failed.", &|d| count(&d.tally.errors))
}

/// What is there, and what the start found.
fn space(page: &mut Page<'_>, rows: &Rows<'_>) -> fmt::Result {
    let mut family = |name, help, of: &dyn Fn(&Disk) -> Shown| page.many(name, help, &rows(of));
    family("mooncrate_node_disk_records", "Records that can be loaded.", &|d| {
        Shown::level(d.backend.usage().records)
    })?;
    family("mooncrate_node_disk_value_bytes", "Bytes of their values.", &|d| {
        Shown::level(d.backend.usage().value_bytes)
    })?;
    family("mooncrate_node_disk_used_bytes", "Bytes that only an eviction gives back.", &|d| {
        Shown::level(d.backend.usage().used)
    })?;
    family("mooncrate_node_disk_limit_bytes", "Bytes that files may take.", &|d| {
        Shown::level(d.backend.usage().limit)
    })?;
    family("mooncrate_node_disk_queue", "Values that wait to be kept.", &|d| {
        Shown::level(d.waiting().0 as u64)
    })?;
    family("mooncrate_node_disk_queue_bytes", "Bytes of them.", &|d| Shown::level(d.waiting().1))?;
    family(
        "mooncrate_node_disk_lost",
        "1 when it was given up: it removes nothing any more.",
        &|d| Shown::level(u64::from(d.is_lost())),
    )?;
    family("mooncrate_node_disk_recovered_records", "Records that the start found.", &|d| {
        Shown::level(d.recovery.records)
    })?;
    family("mooncrate_node_disk_dropped_records", "Records that did not verify then.", &|d| {
        Shown::level(d.recovery.dropped)
    })?;
    family("mooncrate_node_disk_recovery_seconds", "How long the start took.", &|d| {
        Shown::Level(d.recovery_seconds)
    })
}

fn refusals(page: &mut Page<'_>, disks: &[Arc<Disk>]) -> fmt::Result {
    let mut rows = Vec::new();
    for disk in disks {
        let tally = &disk.tally;
        for (reason, refused) in [
            ("queue", &tally.refused_queue),
            ("budget", &tally.refused_budget),
            ("full", &tally.refused_full),
            ("failed", &tally.refused_failed),
            ("other", &tally.refused_other),
        ] {
            let labels = [("segment", disk.id.to_string()), ("reason", reason.to_owned())];
            rows.push((labels, count(refused)));
        }
    }
    page.many("mooncrate_node_disk_refusals", "Values not taken, by reason.", &rows)
}
