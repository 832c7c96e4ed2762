//! The metrics that dashboards of Mooncake's look for, in front of our own; in the older text format,
//! which they ask for.
//!
//! What must stay true: every number here is counted by us. What that API has and we do not count is
//! left out, not shown as zero; `docs/mooncake-http.md` lists both.

use super::standing::{disks, memory};
use crate::metrics::Requests;
use crate::service::Master;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use mooncrate_admin::Registry;
use mooncrate_wire::Kind;
use mooncrate_wire::message::ClusterStat;
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// The format that these dashboards read.
const FORMAT: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

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
    let mut text = theirs(&master.cluster_stat(), &master.requests);
    text.push_str(&older(&mooncrate_admin::metrics_text(registry)));
    ([(header::CONTENT_TYPE, FORMAT)], text).into_response()
}

fn theirs(stat: &ClusterStat, requests: &Requests) -> String {
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

/// Our own page in the older format: there the name of a counter's family ends as its samples do.
fn older(text: &str) -> String {
    let counters: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"))
        .collect();
    let mut page = String::with_capacity(text.len());
    for line in text.lines().filter(|line| *line != "# EOF" && !line.starts_with("# UNIT ")) {
        let family = ["# HELP ", "# TYPE "].iter().find_map(|head| {
            let (name, rest) = line.strip_prefix(head)?.split_once(' ')?;
            counters.contains(name).then(|| format!("{head}{name}_total {rest}"))
        });
        page.push_str(family.as_deref().unwrap_or(line));
        page.push('\n');
    }
    page
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn counters_are_named_as_their_samples() {
        let newer = "# HELP a_things Things.\n# TYPE a_things counter\na_things_total 7\n\
                     # HELP a_level Now.\n# TYPE a_level gauge\na_level 3\n# EOF\n";
        let expected = "# HELP a_things_total Things.\n# TYPE a_things_total counter\n\
                        a_things_total 7\n# HELP a_level Now.\n# TYPE a_level gauge\na_level 3\n";
        assert_eq!(older(newer), expected);
    }
}
