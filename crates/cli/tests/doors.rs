//! The windows of real servers: every metric is documented and every documented one is there, the
//! dashboard asks for nothing else, numbers follow what was done, and nothing tells a key.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail where they stand")]
#![expect(clippy::float_cmp, reason = "counts are whole numbers, which floats hold exactly")]

#[path = "support/metrics.rs"]
mod metrics;
#[expect(dead_code, reason = "each test binary uses a part of it")]
mod support;

use metrics::{Scrape, documented};
use mooncrate::nano::{NanoBackend, NanoOptions, NanoRank};
use mooncrate_paged::{
    ArenaShape, AttentionSpec, Cache, CacheConfig, DType, Geometry, HostArena, Layout, Pages,
};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use support::{Cluster, Server, ask, fetch, mooncrate};

const SECRET: &str = "a-key-that-nobody-shall-see";

fn file(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::fs::read_to_string(root.join(path)).unwrap()
}

/// A paged cache as an engine has it; no server shows its numbers.
fn paged_cache() -> Cache {
    let spec =
        AttentionSpec { layers: 1, kv_heads: 1, head_dim: 8, block_tokens: 16, dtype: DType::F16 };
    let shape = ArenaShape::new(Geometry::attention(spec).unwrap(), Layout::Nhd, 4).unwrap();
    let arena = HostArena::anonymous(shape, 4, Pages::Small).unwrap();
    Cache::new(CacheConfig::new("doors"), Arc::new(arena)).unwrap()
}

#[test]
fn the_page_of_metrics_lists_exactly_what_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    let disk = format!("{}=64MiB", folder.path().join("ssd").display());
    let cluster = Cluster::start(&["--segment-size", "16MiB", "--ssd", &disk]);
    let mut shown = Scrape::read(&cluster.page("/metrics"));
    shown.families.extend(Scrape::read(&mooncrate::paged::metrics_text(&paged_cache())).families);
    shown.families.extend(Scrape::read(&nano_page(folder.path())).families);
    let documented = documented();
    for (name, family) in &shown.families {
        assert_eq!(Some(family), documented.get(name), "docs/metrics.md about {name}");
    }
    // Those of a GPU are compared where there is one, in `vram.rs`.
    let here = documented.keys().filter(|name| !name.starts_with("mooncrate_node_vram_"));
    let missing: Vec<_> = here.filter(|name| !shown.families.contains_key(*name)).collect();
    assert!(missing.is_empty(), "in docs/metrics.md, and not shown: {missing:?}");
    assert!(documented.len() > 30, "the tables were found");
}

/// The page of a rank that is alone.
fn nano_page(folder: &Path) -> String {
    let options = NanoOptions::new(folder.join("meet"), 0, 1, NanoBackend::Host);
    let rank = NanoRank::join(&options).unwrap();
    let page = mooncrate::nano::metrics_text(rank.nano());
    rank.leave().unwrap();
    page
}

#[test]
fn the_dashboard_asks_only_for_what_is_documented() {
    let dashboard: Value = serde_json::from_str(&file("dashboards/mooncrate.json")).unwrap();
    let documented = documented();
    let known: BTreeSet<String> = documented
        .iter()
        .flat_map(|(name, family)| match family.kind.as_str() {
            "counter" => vec![format!("{name}_total")],
            "histogram" => ["bucket", "sum", "count"].map(|end| format!("{name}_{end}")).into(),
            _ => vec![name.clone()],
        })
        .collect();
    let text = dashboard.to_string();
    let word = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
    let asked: BTreeSet<&str> =
        text.split(word).filter(|word| word.starts_with("mooncrate_")).collect();
    assert!(asked.len() > 20, "{asked:?}");
    for name in asked {
        assert!(known.contains(name), "the dashboard asks for {name}, which nobody shows");
    }
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<u64> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len(), "every panel has an id of its own");
}

#[test]
fn numbers_follow_what_was_done_and_tell_no_key() {
    let cluster = Cluster::start(&["--segment-size", "16MiB"]);
    let value = vec![7; 100_000];
    cluster.ask(&["put", SECRET, "--no-shared-memory"], &value).good();
    cluster.ask(&["get", SECRET, "--no-shared-memory"], b"").good();
    assert_eq!(cluster.ask(&["get", "absent-key"], b"").code, Some(3));
    cluster.ask(&["rm", SECRET], b"").good();
    let page = cluster.page("/metrics");
    let scrape = Scrape::read(&page);
    for (sample, value) in [
        ("mooncrate_master_puts_total", 1.0),
        ("mooncrate_master_hits_total", 1.0),
        ("mooncrate_master_misses_total", 1.0),
        ("mooncrate_master_removed_objects_total", 1.0),
        ("mooncrate_master_objects", 0.0),
        ("mooncrate_master_nodes", 1.0),
        ("mooncrate_master_request_seconds_count{kind=\"put_start\"}", 1.0),
        ("mooncrate_master_request_seconds_count{kind=\"locate\"}", 2.0),
        ("mooncrate_master_request_seconds_count{kind=\"remove\"}", 1.0),
        ("mooncrate_node_read_seconds_count", 1.0),
        ("mooncrate_node_read_bytes_total", 100_000.0),
        ("mooncrate_node_write_seconds_count", 1.0),
        ("mooncrate_node_published_replicas_total", 1.0),
        ("mooncrate_node_published_bytes_total", 100_000.0),
        ("mooncrate_node_refusals_total{reason=\"checksum\"}", 0.0),
        ("mooncrate_node_mounted", 1.0),
    ] {
        assert_eq!(scrape.value(sample), value, "{sample} in\n{page}");
    }
    assert!(scrape.value("mooncrate_node_serve_left_seconds") > 0.0);
    for key in [SECRET, "absent-key"] {
        assert!(!page.contains(key), "{key} is in\n{page}");
    }
}

#[test]
fn keys_are_removed_over_http_and_the_log_names_them_by_hash() {
    let cluster = Cluster::start(&["--log", "error"]);
    cluster.ask(&["put", SECRET, "--value", "v"], b"").good();
    let address = cluster.server.address("admin").strip_prefix("http://").unwrap();
    let (status, body) = fetch(address, "DELETE", &format!("/v1/keys/{SECRET}"));
    assert_eq!((status, body.contains("removed")), (200, true), "{body}");
    assert_eq!(cluster.ask(&["get", SECRET], b"").code, Some(3));
    let (status, _) = fetch(address, "DELETE", &format!("/v1/keys/{SECRET}"));
    assert_eq!(status, 404);
    let log = std::fs::read_to_string(cluster.folder.path().join("serve.log")).unwrap();
    let hash = format!("{:016x}", mooncrate_core::key::hash(SECRET.as_bytes()).0);
    let lines: Vec<&str> = log.lines().filter(|line| line.contains(&hash)).collect();
    assert_eq!(lines.len(), 2, "one line per change, however quiet the log is: {log}");
    assert!(lines[0].contains("who=127.0.0.1:") && lines[0].contains("removed"), "{log}");
    assert!(!log.contains(SECRET), "{log}");
}

#[test]
fn a_node_alone_has_a_window_when_asked_and_says_when_it_is_cut_off() {
    let folder = tempfile::tempdir().unwrap();
    let (here, any) = (folder.path(), "127.0.0.1:0");
    let master = Server::start(here, &["master", "--master", any, "--admin", "off"]);
    let at = master.address("master").to_owned();
    let args = ["node", "--master", &at, "--data", any, "--segment-size", "16MiB"];
    let quiet = Server::start(here, &[&args[..], &["--node-name", "quiet"]].concat());
    assert!(quiet.started["admin"].is_null(), "off unless asked for");
    drop(quiet);
    let more = ["--node-name", "seen", "--node-admin", any];
    let node = Server::start(here, &[&args[..], &more].concat());
    let address = node.address("admin").strip_prefix("http://").unwrap();
    let (status, health) = fetch(address, "GET", "/healthz");
    assert_eq!(status, 200, "{health}");
    let shown = Scrape::read(&fetch(address, "GET", "/metrics").1);
    assert!(shown.families.keys().all(|name| name.starts_with("mooncrate_node_")));
    assert_eq!(shown.value("mooncrate_node_failed_heartbeats_total"), 0.0);
    assert_eq!(fetch(address, "GET", "/v1/keys").0, 404, "a node shows no keys");

    drop(master);
    // A node may serve for ten seconds without a master on its own machine.
    for _ in 0..600 {
        let (status, health) = fetch(address, "GET", "/healthz");
        if status == 503 {
            assert!(health.contains("no heartbeat was answered"), "{health}");
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("the node never noticed that its master is gone");
}

#[test]
fn top_prints_one_picture_where_nobody_watches() {
    let cluster = Cluster::start(&["--segment-size", "16MiB", "--node-name", "alpha"]);
    cluster.ask(&["put", "k", "--value", "v"], b"").good();
    let picture = cluster.ask(&["top", "--every", "50ms"], b"").good();
    for part in ["1 node", "1 value, 0 open puts", "alpha", "0 lookups"] {
        assert!(picture.contains(part), "{part} in\n{picture}");
    }
    assert!(!picture.contains('\u{1b}'), "no escapes: {picture:?}");
    let told = cluster.ask(&["top", "--every", "50ms", "--json"], b"").json();
    assert_eq!(told["stat"]["counters"]["puts"], json!(1));
    assert_eq!(told["rates"]["puts_per_second"], json!(0.0));
    let nobody = ask(cluster.folder.path(), "127.0.0.1:1", &["top"], b"");
    assert_eq!(nobody.code, Some(1));
    assert!(nobody.err.contains("cannot reach the master"), "{}", nobody.err);
}

#[test]
fn the_doctor_looks_at_this_machine_and_harms_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let said = support::answer(&support::finish(mooncrate(folder.path()).arg("doctor"), b""));
    let text = said.good();
    for part in ["cores", "memfd", "io_uring", "checksum", "GB/s", "open files"] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    let mut command = mooncrate(folder.path());
    let told = support::answer(&support::finish(command.args(["doctor", "--json"]), b"")).json();
    assert_eq!(told["fit"], json!(true));
    for finding in told["findings"].as_array().unwrap() {
        let fine = finding["grade"] == "ok";
        assert_eq!(finding["fix"].is_null(), fine, "a worry has a remedy: {finding}");
    }
}
