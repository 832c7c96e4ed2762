//! The whole program, end to end, with so little effort that the figures mean nothing: servers start
//! and end, every row is there, and every row has what its table promises.

#![expect(clippy::unwrap_used, reason = "a test fails where something is missing")]

use serde_json::Value;
use std::process::Command;

/// Runs the bench and gives its tables back.
fn bench(what: &str) -> Vec<Value> {
    bench_with(&[what])
}

fn bench_with(what: &[&str]) -> Vec<Value> {
    let folder = tempfile::tempdir().unwrap();
    let (json, markdown) = (folder.path().join("out.json"), folder.path().join("out.md"));
    let done = Command::new(env!("CARGO_BIN_EXE_mooncrate-bench"))
        .args(what)
        .args(["--smoke", "--json"])
        .arg(&json)
        .arg("--markdown")
        .arg(&markdown)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}");
    let document: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    for fact in ["cpu", "kernel", "commit", "command"] {
        assert!(document["machine"][fact].as_str().is_some_and(|text| !text.is_empty()), "{fact}");
    }
    let tables = document["tables"].as_array().unwrap().clone();
    let text = String::from_utf8(done.stdout).unwrap();
    let page = std::fs::read_to_string(&markdown).unwrap();
    for table in &tables {
        let title = table["title"].as_str().unwrap();
        assert!(text.contains(title) && page.contains(title), "{title}");
    }
    tables
}

fn rows<'a>(tables: &'a [Value], name: &str) -> &'a [Value] {
    let table = tables.iter().find(|table| table["name"] == name);
    table.unwrap_or_else(|| panic!("no table {name}"))["rows"].as_array().unwrap()
}

/// That a series was measured. How fast is not for a test to say.
fn check_series(series: &Value) {
    let figure = |name: &str| series[name].as_f64().unwrap();
    assert!(figure("calls") > 0.0 && figure("rounds") > 0.0, "{series}");
    assert!(0.0 < figure("p50_ns") && figure("p50_ns") <= figure("p99_ns"), "{series}");
}

fn judged(rows: &[Value]) -> usize {
    rows.iter().filter(|row| row["verdict"]["met"].is_boolean()).count()
}

#[test]
fn paths_show_every_call_on_every_path() {
    let tables = bench("paths");
    let rows = rows(&tables, "paths");
    // Two sizes, put and get, three paths; and the hot gets of two of them.
    assert_eq!(rows.len(), 2 * 2 * 3 + 2);
    for row in rows {
        check_series(&row["subject"]);
        check_series(&row["floor"]);
    }
    // Large gets on three paths, and the hot get through shared memory.
    assert_eq!(judged(rows), 4);
}

#[test]
fn control_shows_threads_and_batches() {
    let tables = bench("control");
    let rows = rows(&tables, "control");
    // Ten for each placement that this machine has.
    let placements = if std::thread::available_parallelism().unwrap().get() > 1 { 2 } else { 1 };
    assert_eq!((rows.len(), judged(rows)), (10 * placements, 10 * placements));
    for row in rows {
        check_series(&row["subject"]);
        check_series(&row["floor"]);
        assert!(row["request_bytes"].as_u64() >= Some(32), "{row}");
    }
}

#[test]
fn index_shows_memory_and_growth() {
    let tables = bench("index");
    assert_eq!(rows(&tables, "index_memory").len(), 2);
    for (name, count) in [("index_cost", 3), ("growth", 4)] {
        let rows = rows(&tables, name);
        assert_eq!((rows.len(), judged(rows)), (count, count));
        for size in rows.iter().flat_map(|row| row["sizes"].as_array().unwrap()) {
            check_series(&size["cost"]);
        }
    }
}

#[test]
fn nodes_show_every_call_for_every_number_and_what_idle_ones_take() {
    let tables = bench_with(&["nodes", "--counts", "1,3", "--idle", "0.2"]);
    let (calls, idle) = (rows(&tables, "nodes"), rows(&tables, "nodes_idle"));
    assert_eq!((calls.len(), judged(calls)), (4, 4));
    for size in calls.iter().flat_map(|row| row["sizes"].as_array().unwrap()) {
        check_series(&size["cost"]);
    }
    assert_eq!((idle.len(), judged(idle)), (2, 2));
    for row in idle {
        assert!(row["node_percent"].as_f64().unwrap() >= 0.0, "{row}");
        assert!(row["node_wakes_per_second"].as_f64().unwrap() >= 0.0, "{row}");
    }
}

#[test]
fn a_killed_master_knows_everything_again() {
    let tables = bench_with(&["rebuild", "--objects", "5000", "--nodes", "2", "--rounds", "2"]);
    let rows = rows(&tables, "rebuild");
    assert_eq!((rows.len(), judged(rows)), (12, 1));
    for row in rows {
        assert!(row["value"]["median"].as_f64().is_some_and(|value| value >= 0.0), "{row}");
    }
}

#[test]
fn scale_shows_clients_nodes_and_neighbours() {
    let tables = bench("scale");
    // Two sizes, put and get, three numbers of nodes, four of clients.
    assert_eq!(rows(&tables, "scale").len(), 2 * 2 * 3 * 4);
    assert_eq!(rows(&tables, "lanes").len(), 2 * 4);
    let all = ["scale", "lanes", "beside"].map(|name| rows(&tables, name)).concat();
    for row in all {
        check_series(&row["subject"]);
        check_series(&row["floor"]);
    }
    assert_eq!((rows(&tables, "beside").len(), judged(rows(&tables, "beside"))), (6, 4));
}

#[test]
fn floors_and_copies_stand_alone() {
    let tables = bench("floors");
    let floors = rows(&tables, "floors");
    assert_eq!((floors.len(), judged(floors)), (2 * 4 + 1, 0));
    for row in floors {
        check_series(&row["figures"]);
    }
    let tables = bench("copy");
    assert_eq!(rows(&tables, "copy").len(), 2 * 2);
}

#[test]
fn ssd_shows_every_disk_beside_fio() {
    let folder = tempfile::tempdir().unwrap();
    let tables = bench_with(&["ssd", "--directory", folder.path().to_str().unwrap()]);
    // Two disks, one of them with memory registered, too; three backends on each disk; write and read; three
    // sizes, two of them large.
    assert_eq!((rows(&tables, "ssd").len(), rows(&tables, "ssd_backends").len()), (18, 36));
    let rows = [rows(&tables, "ssd"), rows(&tables, "ssd_backends")].concat();
    let fio = Command::new("fio").arg("--version").output().is_ok();
    for row in &rows {
        let figure = |name: &str| row["subject"][name].as_f64().unwrap();
        assert!(figure("batches") > 0.0 && figure("rounds") > 0.0, "{row}");
        assert!(0.0 < figure("p50_ns") && figure("p50_ns") <= figure("p99_ns"), "{row}");
        assert_eq!(row["floor"].is_object(), fio, "{row}");
        assert!(!fio || row["of_floor"]["median"].as_f64().unwrap() > 0.0, "{row}");
    }
    assert_eq!(judged(&rows), if fio { 12 + 24 } else { 0 });
    assert_eq!(folder.path().read_dir().unwrap().count(), 0, "the bench cleans up");
}

#[test]
fn tls_shows_both_calls_in_every_cluster() {
    let tables = bench("tls");
    let rows = rows(&tables, "tls");
    // Two sizes, put and get, three clusters; and the grant alone.
    assert_eq!(rows.len(), 2 * 2 * 3 + 1);
    for row in &rows[..12] {
        check_series(&row["subject"]);
    }
    assert!(rows[12]["check_ns"].as_f64().unwrap() > 0.0);
}
