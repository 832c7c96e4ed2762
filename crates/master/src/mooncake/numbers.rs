//! The metrics that dashboards of Mooncake's look for, in front of our own; in the older text format,
//! which they ask for.
//!
//! What must stay true: every number here is counted by us. What that API has and we do not count is
//! left out, not shown as zero; `docs/mooncake-http.md` lists both.

use super::standing::{disks, memory};
use crate::metrics::Requests;
use crate::service::Master;
use axum::response::Response;
use mooncrate_admin::Registry;
use mooncrate_wire::Kind;
use mooncrate_wire::message::ClusterStat;
use std::fmt::Write as _;

/// Which of our requests is which of theirs. One of ours may carry many keys, so their batches are
/// among them.
const REQUESTS: [(&str, Kind); 10] = [
    ("put_start", Kind::PutStart),
    ("put_end", Kind::PutEnd),
    ("put_revoke", Kind::PutRevoke),
    ("get_replica_list", Kind::Locate),
    ("exist_key", Kind::Exist),
    ("remove", Kind::Remove),
    ("remove_by_regex", Kind::RemoveMatching),
    ("mount_segment", Kind::Mount),
    ("unmount_segment", Kind::Unmount),
    ("ping", Kind::Heartbeat),
];

/// The page.
pub(crate) fn metrics(master: &Master, registry: &Registry) -> Response {
    let soft = master.mind().catalog.soft_pinned() as u64;
    let page = theirs(&master.cluster_stat(), soft, &master.requests);
    mooncrate_admin::metrics_older(page, registry)
}

fn theirs(stat: &ClusterStat, soft: u64, requests: &Requests) -> String {
    let mut page = String::new();
    let mut one = |name: &str, kind: &str, help: &str, value: u64| {
        writeln!(page, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}")
            .expect("a String takes it");
    };
    let ((used, capacity), (file_used, file_capacity)) = (memory(stat), disks(stat));
    let counters = &stat.counters;
    let keys = stat.objects.saturating_sub(stat.open_puts);
    for (name, help, value) in [
        ("master_key_count", "Finished objects.", keys),
        ("master_soft_pin_key_count", "Replicas that are pinned softly.", soft),
        ("master_active_clients", "Nodes that are registered.", stat.nodes.into()),
        ("master_allocated_bytes", "Bytes of memory in use.", used),
        ("master_total_capacity_bytes", "Bytes of memory.", capacity),
        ("master_allocated_file_size_bytes", "Bytes on disks in use.", file_used),
        ("master_total_file_capacity_bytes", "Bytes on disks.", file_capacity),
    ] {
        one(name, "gauge", help, value);
    }
    let attempted = counters.evicted + counters.evict_skipped;
    for (name, help, value) in [
        ("master_evicted_key_count", "Replicas evicted.", counters.evicted),
        ("master_evicted_size_bytes", "Bytes of evicted replicas.", counters.evicted_bytes),
        ("master_attempted_evictions_total", "Victims that were chosen.", attempted),
        ("master_successful_evictions_total", "Victims that went.", counters.evicted),
        ("master_put_start_alloc_failures_total", "Puts without room.", counters.busy),
        ("master_put_start_discard_cnt", "Puts that nobody ended.", counters.puts_expired),
    ] {
        one(name, "counter", help, value);
    }
    for (name, kind) in REQUESTS {
        let name = format!("master_{name}_requests_total");
        one(&name, "counter", "Requests that were answered.", requests.count(kind));
    }
    page
}
