//! Whole clusters of real processes: what is put comes back, in every shape, over every path.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail where they stand")]

#[expect(dead_code, reason = "each test binary uses a part of it")]
mod support;

use rustix::process::Signal;
use serde_json::json;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;
use support::{Cluster, Server, ask, wait};

#[test]
fn one_server_serves_every_command() {
    let mut cluster = Cluster::start(&["--segment-size", "64MiB"]);
    assert_eq!(cluster.server.started["event"], "started");
    assert_eq!(cluster.server.started["segment_bytes"], 64 << 20);

    let said = cluster.ask(&["put", "hello", "--value", "world"], b"").good();
    assert_eq!(said, "stored hello, 5 B\n");
    assert_eq!(cluster.ask(&["get", "hello"], b"").good(), "world", "raw, nothing added");
    let again = cluster.ask(&["put", "hello", "--value", "other"], b"").good();
    assert!(again.contains("already there"), "{again}");
    assert_eq!(cluster.ask(&["get", "hello"], b"").good(), "world");
    let twice = cluster.ask(&["put", "hello", "--value", "other", "--json"], b"").json();
    assert_eq!(twice["state"], "already there");

    cluster.ask(&["put", "other", "-"], b"from stdin").good();
    let listed = cluster.ask(&["ls"], b"").good();
    assert!(listed.starts_with("2 keys, 15 B\n"), "{listed}");
    let listed = cluster.ask(&["ls", "he", "--json"], b"").json();
    assert_eq!(listed["keys"][0]["key"], "hello");
    assert_eq!((&listed["keys"][1], &listed["more"]), (&json!(null), &json!(false)));
    assert_eq!(cluster.ask(&["ls", "--limit", "1", "--json"], b"").json()["more"], true);
    assert_eq!(cluster.ask(&["ls", "zzz"], b"").good(), "no keys\n");

    let stat = cluster.ask(&["stat"], b"").good();
    assert!(stat.starts_with("1 node, 2 values; "), "{stat}");
    let stat = cluster.ask(&["stat", "--json"], b"").json();
    assert_eq!((&stat["objects"], &stat["capacity_bytes"]), (&json!(2), &json!(64 << 20)));
    let one = cluster.ask(&["stat", "hello"], b"").good();
    assert!(one.starts_with("hello, 5 B, object "), "{one}");
    let one = cluster.ask(&["stat", "hello", "--json"], b"").json();
    assert_eq!((&one["state"], &one["bytes"]), (&json!("stored"), &json!(5)));
    let name = &cluster.server.started["node_name"];
    assert_eq!(
        (&one["replicas"][0]["node_name"], &one["replicas"][0]["medium"]),
        (name, &json!("dram"))
    );
    assert_eq!(cluster.ask(&["stat", "nobody"], b"").code, Some(3));
    assert_eq!(cluster.http("/v1/usage")["segments"][0]["objects"], 2);
    assert_eq!(cluster.http("/healthz")["status"], "ok");
    assert_eq!(cluster.http("/v1/keys?prefix=oth")["keys"][0]["key"], "other");

    let gone = cluster.ask(&["rm", "hello", "nobody"], b"");
    assert_eq!((gone.code, gone.text().as_str()), (Some(3), "removed hello\n"));
    assert!(gone.err.contains("no such key: nobody"), "{}", gone.err);
    assert_eq!(cluster.ask(&["get", "hello"], b"").code, Some(3));
    assert_eq!(cluster.ask(&["rm", "other", "--json"], b"").json()["keys"][0]["state"], "removed");

    cluster.server.signal(Signal::TERM);
    assert_eq!(wait(&mut cluster.server.child, Duration::from_secs(10)).code(), Some(0));
}

#[test]
fn a_missing_key_exits_with_3_and_writes_nothing() {
    let cluster = Cluster::start(&[]);
    let missing = cluster.ask(&["get", "nobody", "-o", "out"], b"");
    assert_eq!((missing.code, missing.out.len()), (Some(3), 0));
    assert!(missing.err.contains("no such key: nobody"), "{}", missing.err);
    assert!(!cluster.folder.path().join("out").exists());
    let missing = cluster.ask(&["get", "nobody", "--json", "-o", "out"], b"");
    let error: serde_json::Value = serde_json::from_str(&missing.err).unwrap();
    assert_eq!(error["exit"], 3);
}

#[test]
fn keys_and_values_may_be_any_bytes() {
    let cluster = Cluster::start(&[]);
    let key = OsStr::from_bytes(b"\xff\xfe/\x01");
    let value: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    let args = |verb: &str| [OsStr::from_bytes(verb.as_bytes()).to_owned(), key.to_owned()];
    let stored = cluster.ask(&args("put"), &value).good();
    assert!(stored.contains("\\xff\\xfe/\\u{1}"), "{stored}");
    let got = cluster.ask(&args("get"), b"");
    assert!(got.code == Some(0) && got.out == value, "{}", got.err);
    let got = cluster.ask(&["get", "--key-hex", "fffe2f01"], b"");
    assert!(got.out == value, "the same key, typed as digits");
    let listed = cluster.ask(&["ls", "--key-hex", "ff", "--json"], b"").json();
    assert_eq!(listed["keys"][0]["key_hex"], "fffe2f01");

    cluster.ask(&["put", "empty", "--value", ""], b"").good();
    let empty = cluster.ask(&["get", "empty"], b"");
    assert_eq!((empty.code, empty.out.len()), (Some(0), 0), "an empty value is a value");
    cluster.ask(&["rm", "--key-hex", "fffe2f01"], b"").good();
    assert_eq!(cluster.ask(&["get", "--key-hex", "fffe2f01"], b"").code, Some(3));
}

#[test]
fn large_files_travel_over_memory_and_over_tcp() {
    let cluster = Cluster::start(&["--segment-size", "128MiB"]);
    let value: Vec<u8> = (0..20_000_003_u32).map(|n| (n ^ (n >> 11)) as u8).collect();
    std::fs::write(cluster.folder.path().join("in"), &value).unwrap();
    cluster.ask(&["put", "shared", "in"], b"").good();
    cluster.ask(&["put", "tcp", "in", "--no-shared-memory"], b"").good();
    for (key, flags) in [("shared", &["--no-shared-memory"][..]), ("tcp", &[])] {
        let args = [&["get", key, "-o", "out"], flags].concat();
        let said = cluster.ask(&args, b"").good();
        assert!(said.starts_with("wrote 19.1 MiB"), "{said}");
        assert!(std::fs::read(cluster.folder.path().join("out")).unwrap() == value, "{key}");
    }
}

#[test]
fn a_master_and_two_nodes_in_processes_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let (here, any) = (folder.path(), "127.0.0.1:0");
    let mut master = Server::start(here, &["master", "--master", any, "--admin", any]);
    let at = master.address("master").to_owned();
    assert!(master.started["data"].is_null() && master.started["segment_bytes"].is_null());
    let alone = ask(here, &at, &["put", "k", "--value", "v", "--deadline", "1s"], b"");
    assert_eq!(alone.code, Some(1));
    assert!(alone.err.contains("no segment is mounted"), "{}", alone.err);

    let node = |name: &str| {
        let size = ["--segment-size", "16MiB", "--node-name", name];
        Server::start(here, &[&["node", "--master", &at, "--data", any], &size[..]].concat())
    };
    let (mut first, second) = (node("first"), node("second"));
    assert_eq!(first.address("joined"), at);
    for n in 0..20 {
        let key = format!("k{n}");
        ask(here, &at, &["put", &key], &vec![n; 10_000]).good();
    }
    let stat = ask(here, &at, &["stat", "--json"], b"").json();
    assert_eq!((&stat["nodes"], &stat["objects"]), (&json!(2), &json!(20)));
    for n in 0..20 {
        let got = ask(here, &at, &["get", &format!("k{n}")], b"");
        assert_eq!(got.out, vec![n; 10_000], "{}", got.err);
    }

    // A node that leaves in peace takes its values with it, and nobody waits for them.
    first.signal(Signal::TERM);
    assert_eq!(wait(&mut first.child, Duration::from_secs(10)).code(), Some(0));
    for n in 0..20 {
        let got = ask(here, &at, &["get", &format!("k{n}")], b"");
        assert!(got.code == Some(3) || got.out == vec![n; 10_000], "{got:?}");
    }
    drop(second);
    master.signal(Signal::INT);
    assert_eq!(wait(&mut master.child, Duration::from_secs(10)).code(), Some(0));
}

#[test]
fn the_bench_measures_verifies_and_cleans_up() {
    let cluster = Cluster::start(&["--segment-size", "64MiB"]);
    let load = ["bench", "--sizes", "1KiB,100KiB", "--time", "200ms", "--working-set", "4MiB"];
    let rows = cluster.ask(&[&load[..], &["--json"]].concat(), b"").json();
    let rows = rows["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 4);
    for row in rows {
        assert!(row["calls"].as_u64().unwrap() > 0, "{row}");
        assert!(row["p99_ns"].as_u64() >= row["p50_ns"].as_u64(), "{row}");
        assert!(row["gigabytes_per_second"].as_f64().unwrap() > 0.0, "{row}");
    }
    let table = cluster.ask(&load, b"").good();
    assert!(table.contains("GB/s") && table.contains("100.0 KiB"), "{table}");
    assert_eq!(cluster.ask(&["ls", "bench/"], b"").good(), "no keys\n");
}
