//! What a master measures. Requests are noted while they are handled: two additions each. All else
//! is read off the catalog when somebody asks.
//!
//! What must stay true: no key and no part of one is ever a label; `docs/metrics.md` lists every
//! family; whatever has one value per segment is labelled by segment, node and medium.

use crate::service::Master;
use mooncrate_admin::{Collector, DescriptorEncoder, Page, Shown};
use mooncrate_core::Now;
use mooncrate_core::catalog::Counters;
use mooncrate_core::plan::Medium;
use mooncrate_core::tally::Spread;
use mooncrate_wire::clock::boottime;
use mooncrate_wire::message::{ClusterStat, SegmentRow};
use mooncrate_wire::{Kind, LinkKind};
use std::fmt;
use std::sync::Arc;

/// Codes of control requests start here (`wire::Kind`).
const FIRST_CODE: usize = 0x10;
/// Codes of control requests end before this.
const CODES_END: usize = 0x40;

/// How long requests took, by kind.
#[derive(Debug)]
pub(crate) struct Requests([Spread; CODES_END - FIRST_CODE]);

impl Default for Requests {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Spread::default()))
    }
}

impl Requests {
    /// A request that arrived then has been handled now.
    pub(crate) fn note(&self, kind: Kind, arrived: Now) {
        if let Some(spread) = self.of(kind) {
            spread.note(boottime().since(arrived));
        }
    }

    /// How many requests of a kind were handled.
    pub(crate) fn count(&self, kind: Kind) -> u64 {
        self.of(kind).map_or(0, |spread| spread.now().count)
    }

    fn of(&self, kind: Kind) -> Option<&Spread> {
        self.0.get((kind as usize).checked_sub(FIRST_CODE)?)
    }
}

/// The numbers of a master, for a registry.
#[derive(Debug)]
pub struct MasterMetrics(pub Arc<Master>);

impl Collector for MasterMetrics {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut page = Page(encoder);
        let stat = self.0.cluster_stat();
        requests(&mut page, &self.0.requests)?;
        counters(&mut page, &stat.counters)?;
        levels(&mut page, &stat)?;
        segments(&mut page, &self.0, &stat.segments)
    }
}

fn requests(page: &mut Page<'_>, requests: &Requests) -> fmt::Result {
    let control = Kind::ALL.iter().filter(|kind| kind.link() == Some(LinkKind::Control));
    let rows: Vec<_> = control
        .filter_map(|kind| {
            Some(([("kind", kind.name())], Shown::Spread(requests.of(*kind)?.now())))
        })
        .collect();
    let help = "Time from the arrival of a request to its answer, waiting included, by kind.";
    page.many("mooncrate_master_request_seconds", help, &rows)
}

fn counters(page: &mut Page<'_>, counters: &Counters) -> fmt::Result {
    let Counters {
        puts,
        hits,
        misses,
        removed,
        evicted,
        evicted_bytes,
        evict_skipped,
        busy,
        expired,
        replaced,
        replanned,
        puts_expired,
        stale_tokens,
        nodes_lost,
        announced_dropped,
        copied,
        copied_bytes,
        copies_failed,
        ..
    } = *counters;
    for (name, help, value) in [
        ("mooncrate_master_puts", "Puts that ended well.", puts),
        ("mooncrate_master_hits", "Keys that were asked for and found.", hits),
        ("mooncrate_master_misses", "Keys that were asked for and not there.", misses),
        ("mooncrate_master_removed_objects", "Objects removed by clients.", removed),
        ("mooncrate_master_evicted_replicas", "Replicas evicted.", evicted),
        ("mooncrate_master_evicted_bytes", "Bytes of evicted replicas.", evicted_bytes),
        (
            "mooncrate_master_evict_skips",
            "Victims that were pinned or leased and stayed.",
            evict_skipped,
        ),
        ("mooncrate_master_busy_puts", "Puts refused because room was short.", busy),
        (
            "mooncrate_master_expired_objects",
            "Objects removed because their time after the first get was over.",
            expired,
        ),
        ("mooncrate_master_replaced_objects", "Values that an upsert replaced.", replaced),
        (
            "mooncrate_master_replanned_replicas",
            "Copies planned anew because their owner failed the writer.",
            replanned,
        ),
        ("mooncrate_master_expired_puts", "Puts that nobody ended in time.", puts_expired),
        (
            "mooncrate_master_stale_tokens",
            "Put ends and revokes whose token was over.",
            stale_tokens,
        ),
        ("mooncrate_master_lost_nodes", "Nodes that were counted as gone.", nodes_lost),
        (
            "mooncrate_master_dropped_announcements",
            "Announced objects whose key had another value already.",
            announced_dropped,
        ),
        ("mooncrate_master_copied_replicas", "Replicas that a node fetched from another.", copied),
        ("mooncrate_master_copied_bytes", "Bytes of fetched replicas.", copied_bytes),
        ("mooncrate_master_failed_copies", "Copies that were begun and failed.", copies_failed),
    ] {
        page.one(name, help, &Shown::Count(value))?;
    }
    disks(page, counters)
}

/// What disks did, as the master knows it.
fn disks(page: &mut Page<'_>, counters: &Counters) -> fmt::Result {
    for (name, help, value) in [
        (
            "mooncrate_master_offloaded_replicas",
            "Replicas that were copied to disks.",
            counters.offloaded,
        ),
        (
            "mooncrate_master_offloaded_bytes",
            "Bytes of replicas copied to disks.",
            counters.offloaded_bytes,
        ),
        (
            "mooncrate_master_refused_offloads",
            "Copies that a disk, or memory below VRAM, refused or did not finish in time.",
            counters.offloads_refused,
        ),
        (
            "mooncrate_master_unsaved_evictions",
            "Evicted replicas that were the last ones and that nothing below took.",
            counters.evicted_unsaved,
        ),
        (
            "mooncrate_master_demoted_replicas",
            "Replicas moved from VRAM to memory of hosts to make room.",
            counters.demoted,
        ),
        ("mooncrate_master_demoted_bytes", "Bytes of demoted replicas.", counters.demoted_bytes),
        (
            "mooncrate_master_promoted_replicas",
            "Replicas copied from disks into memory because they were read again.",
            counters.promoted,
        ),
        ("mooncrate_master_promoted_bytes", "Bytes of promoted replicas.", counters.promoted_bytes),
        (
            "mooncrate_master_disk_evicted_replicas",
            "Replicas that owners evicted from their disks.",
            counters.disk_evicted,
        ),
        (
            "mooncrate_master_disk_lost_replicas",
            "Replicas on disks that their owners found damaged.",
            counters.disk_lost,
        ),
        (
            "mooncrate_master_returned_disks",
            "Disks that came back with what they held.",
            counters.disks_returned,
        ),
        (
            "mooncrate_master_disk_dropped_records",
            "Records of disks that came back and were told to let them go.",
            counters.disk_dropped,
        ),
        (
            "mooncrate_master_struck_records",
            "Values of disks that were away and that are not true any more.",
            counters.ledger_struck,
        ),
        (
            "mooncrate_master_bad_replicas",
            "Replicas in memory that their owners found bad and retired.",
            counters.bad_replicas,
        ),
    ] {
        page.one(name, help, &Shown::Count(value))?;
    }
    tiers(page, counters)
}

/// Where what was asked for was found.
fn tiers(page: &mut Page<'_>, counters: &Counters) -> fmt::Result {
    // vram + dram + ssd + miss = asked: every key that was asked for is in one of them.
    let elsewhere = counters.hits_disk + counters.hits_vram;
    let tiers = [
        ([("tier", "vram")], Shown::Count(counters.hits_vram)),
        ([("tier", "dram")], Shown::Count(counters.hits.saturating_sub(elsewhere))),
        ([("tier", "ssd")], Shown::Count(counters.hits_disk)),
        ([("tier", "miss")], Shown::Count(counters.misses)),
    ];
    let help = "Keys that were asked for, by the fastest tier that has all of the value.";
    page.many("mooncrate_master_asked", help, &tiers)
}

fn levels(page: &mut Page<'_>, stat: &ClusterStat) -> fmt::Result {
    for (name, help, value) in [
        ("mooncrate_master_leader_epoch", "The epoch this master leads under.", stat.epoch.0),
        (
            "mooncrate_master_rebuilding",
            "1 while nodes are still to announce what they hold.",
            u64::from(stat.rebuilding),
        ),
        ("mooncrate_master_nodes", "Nodes that are registered.", u64::from(stat.nodes)),
        ("mooncrate_master_objects", "Objects in the index, open puts included.", stat.objects),
        ("mooncrate_master_open_puts", "Puts under way.", stat.open_puts),
        ("mooncrate_master_index_bytes", "Memory of the index, keys excluded.", stat.index_bytes),
    ] {
        page.one(name, help, &Shown::level(value))?;
    }
    Ok(())
}

/// A number of a segment.
type Of = fn(&SegmentRow) -> u64;

fn segments(page: &mut Page<'_>, master: &Master, segments: &[SegmentRow]) -> fmt::Result {
    let names = master.node_names();
    let labels = |row: &SegmentRow| {
        let node = names.get(&row.offer.node).cloned();
        [
            ("segment", row.offer.segment.to_string()),
            ("node", node.unwrap_or_else(|| row.offer.node.to_string())),
            ("medium", medium_name(row.offer.medium).to_owned()),
        ]
    };
    let families: [(&str, &str, Of); 6] = [
        ("mooncrate_master_segment_capacity_bytes", "Bytes of a segment.", |row| row.offer.bytes),
        (
            "mooncrate_master_segment_used_bytes",
            "Bytes of a segment in live objects and open puts.",
            |row| row.used_bytes,
        ),
        (
            "mooncrate_master_segment_quarantined_bytes",
            "Bytes of a segment that wait for readers, writers or leases.",
            |row| row.quarantined_bytes,
        ),
        (
            "mooncrate_master_segment_free_run_bytes",
            "Longest run of free bytes of a segment.",
            |row| row.largest_free_run,
        ),
        ("mooncrate_master_segment_replicas", "Replicas on a segment.", |row| row.objects),
        ("mooncrate_master_segment_open", "1 if new objects are placed on a segment.", |row| {
            u64::from(row.open)
        }),
    ];
    for (name, help, of) in families {
        let rows: Vec<_> =
            segments.iter().map(|row| (labels(row), Shown::level(of(row)))).collect();
        page.many(name, help, &rows)?;
    }
    Ok(())
}

/// A medium in words.
pub(crate) const fn medium_name(medium: Medium) -> &'static str {
    match medium {
        Medium::Vram => "vram",
        Medium::Dram => "dram",
        Medium::Ssd => "ssd",
    }
}
