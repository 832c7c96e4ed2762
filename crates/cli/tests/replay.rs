//! `mooncrate replay` on the first requests of a published trace and on generated loads: the table, JSON, the
//! picture, and what it says about files that are no traces.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail where they stand")]

#[expect(dead_code, reason = "each test binary uses a part of it")]
mod support;

use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use support::{mooncrate, run};

const SAMPLE: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../paged/tests/data/conversation_300.jsonl");

fn rows_of<'a>(told: &'a Value, policy: &str) -> Vec<&'a Value> {
    told["rows"].as_array().unwrap().iter().filter(|row| row["policy"] == policy).collect()
}

#[test]
fn every_policy_is_shown_beside_the_bound() {
    let folder = tempfile::tempdir().unwrap();
    let svg = folder.path().join("plot.svg");
    let told = run(folder.path(), &["replay", SAMPLE, "--json", "--svg", svg.to_str().unwrap()]);
    let told = told.json();
    assert_eq!((&told["requests"], &told["blocks"]), (&300.into(), &8490.into()), "{told}");
    assert_eq!(told["skipped_lines"], 0);
    let bound = rows_of(&told, "optimal");
    assert_eq!(bound.len(), 8, "powers of two up to 8192, which holds all of it");
    assert_eq!(bound[7]["capacity_blocks"], 8192);
    assert_eq!(bound[7]["hits"], 676, "all but first uses");
    assert_eq!(bound[7]["capacity_bytes"], 8192u64 * 512 * 131_072);
    for policy in ["fifo", "lru", "priority", "importance", "density"] {
        let rows = rows_of(&told, policy);
        assert_eq!(rows.len(), 8, "{policy}");
        assert_eq!(rows[7]["hits"], bound[7]["hits"], "{policy} has room for everything");
        for (row, bound) in rows.iter().zip(&bound) {
            assert!(row["hits"].as_u64() <= bound["hits"].as_u64(), "{row} beats {bound}");
            assert_eq!(
                row["saved_bytes"].as_u64().unwrap(),
                row["saved_tokens"].as_u64().unwrap() * 131_072
            );
        }
    }
    let drawn = std::fs::read_to_string(svg).unwrap();
    assert_eq!(drawn.matches("<polyline").count(), 6, "five policies and the bound");
    assert!(drawn.contains("conversation_300.jsonl: 300 requests"), "{drawn}");
}

#[test]
fn sizes_policies_and_geometry_are_chosen_by_flags() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--policy", "lru,fifo", "--capacity", "4096,1024", "--bytes-per-token", "1KiB"];
    let text = run(folder.path(), &[&["replay", SAMPLE][..], &flags].concat()).good();
    assert!(text.starts_with("300 requests, 8490 blocks of 512 tokens, 7814 distinct"), "{text}");
    let small = text.find("\n  1024  512.0 MiB").expect(&text);
    let large = text.find("\n  4096    2.0 GiB").expect(&text);
    assert!(small < large && !text.contains("FIFO  LRU"), "{text}");
    assert!(
        text.contains(" 5.24 ") && text.contains(" 7.96"),
        "445 and 676 of 8490 blocks: {text}"
    );
    assert!(text.contains("LRU  FIFO  OPTIMAL"), "{text}");
}

/// A generated load needs no file; the same seed gives the same figures.
#[test]
fn a_load_is_generated_from_its_name_and_seed() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let flags = ["--policy", "lru", "--capacity", "4000,8000"];
    let replay = |more: &[&str]| run(here, &[&["replay", "--load"], more, &flags].concat());
    let told = replay(&["loop", "--seed", "2", "--json"]).json();
    assert_eq!((&told["trace"], &told["seed"]), (&"loop".into(), &2.into()));
    let hits: Vec<_> = rows_of(&told, "lru").iter().map(|row| row["hits"].as_u64()).collect();
    assert_eq!(hits, [Some(0), Some(144_000 - 5_040)], "all or nothing of 5,040 blocks");
    let text = replay(&["loop"]).good();
    assert!(text.starts_with("loop, seed 1: 12000 requests, 144000 blocks"), "{text}");

    let lines = replay(&["all", "--json"]).good();
    let names = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let names: Vec<String> = names.map(|told| told["trace"].as_str().unwrap().into()).collect();
    let all = ["scans", "loop", "shift", "flood", "zipf", "turns", "agents", "rag", "mixed"];
    assert_eq!(names, all);

    for (args, words) in [
        (&["replay", "--load", "burst"][..], &["scans, loop", "rag or mixed, or all"][..]),
        (&["replay", "--load", "all", "--svg", "plot.svg"], &["one load", "--load NAME"]),
        (&["replay"], &["<TRACE|--load <NAME>>"]),
        (&["replay", SAMPLE, "--load", "loop"], &["cannot be used with", "--load"]),
    ] {
        let said = run(here, args);
        assert_eq!((said.code, said.text().as_str()), (Some(2), ""), "{args:?}: {}", said.err);
        for word in words {
            assert!(said.err.contains(word), "{word} is not in {}", said.err);
        }
    }
}

/// What a real store finds is near what its policy alone does, and every value that is read was checked.
#[test]
fn a_real_store_finds_about_what_its_policy_does() {
    let folder = tempfile::tempdir().unwrap();
    let replay = |policy: &str| {
        let args = ["replay", SAMPLE, "--store", "--capacity", "4096,10000", "--json", "--policy"];
        run(folder.path(), &[&args[..], &[policy]].concat())
    };
    for policy in ["lru", "density"] {
        let told = replay(policy).json();
        let hits = |name: &str| -> Vec<u64> {
            rows_of(&told, name).iter().map(|row| row["hits"].as_u64().unwrap()).collect()
        };
        let (alone, store) = (hits(policy), hits("store"));
        // Requests that run at the same time find less of each other.
        assert!(store[0].abs_diff(alone[0]) < 150, "{policy}: {store:?} and {alone:?}");
        assert!(store[1].abs_diff(alone[1]) < 100, "{policy}: {store:?} and {alone:?}");
    }
    let args = ["replay", SAMPLE, "--store", "--disk", "256MiB", "--capacity", "4096", "--json"];
    let told = run(folder.path(), &args).json();
    let row = &rows_of(&told, "store")[0];
    // Memory holds some thousand of the 7,814 blocks; what it gives up is found on the disk.
    assert!(row["hits"].as_u64() > Some(620) && row["hits"].as_u64() <= Some(676), "{row}");
    assert!(row["disk_written_bytes"].as_u64() > Some(1_000_000), "{row}");
    let said = replay("priority");
    assert_eq!((said.code, said.text().as_str()), (Some(2), ""));
    assert!(said.err.contains("density, lru or fifo"), "{}", said.err);
}

/// A cache of few blocks is as small through a store as alone: LRU finds nothing of a loop that is longer than the cache.
#[test]
fn a_small_store_is_as_small_as_it_was_asked_to_be() {
    let folder = tempfile::tempdir().unwrap();
    let request = |id: u32| {
        format!(
            "{{\"timestamp\": 0, \"input_length\": 512, \"output_length\": 1, \"hash_ids\": [{id}]}}\n"
        )
    };
    let trace: String = (0..3).flat_map(|_| (0..200).map(request)).collect();
    std::fs::write(folder.path().join("loop"), trace).unwrap();
    let args = ["replay", "loop", "--capacity", "1,100,400", "--policy", "lru", "--store"];
    let told = run(folder.path(), &[&args[..], &["--clients", "1", "--json"]].concat()).json();
    for name in ["lru", "store"] {
        let hits: Vec<_> = rows_of(&told, name).iter().map(|row| row["hits"].as_u64()).collect();
        assert_eq!(hits, [Some(0), Some(0), Some(400)], "{name}");
    }
}

/// The rows and columns of the block manager and of the store say which policy they had.
#[test]
fn what_a_policy_is_replayed_through_names_the_policy() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["replay", SAMPLE, "--capacity", "2048", "--policy", "fifo,lru", "--store"];
    let args = [&args[..], &["--block-manager"]].concat();
    let told = run(folder.path(), &[&args[..], &["--json"]].concat()).json();
    let policies = told["rows"].as_array().unwrap().iter();
    let policies: Vec<_> = policies.map(|row| (&row["policy"], &row["evict_policy"])).collect();
    let (fifo, lru) = (Value::from("fifo"), Value::from("lru"));
    let (manager, store, optimal) = ("manager".into(), "store".into(), "optimal".into());
    let expected = [
        (&fifo, &fifo),
        (&lru, &lru),
        (&manager, &fifo),
        (&store, &fifo),
        (&optimal, &Value::Null),
    ];
    assert_eq!(policies, expected);
    let text = run(folder.path(), &args).good();
    assert!(text.contains("MANAGER (FIFO)  STORE (FIFO)  OPTIMAL"), "{text}");
}

/// What cannot be replayed is refused before the trace is read.
#[test]
fn what_cannot_be_replayed_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let large = ["replay", "absent", "--block-manager", "--capacity", "2147483647"];
    for (args, words) in [
        (&["replay", "absent", "--store", "--policy", "priority"][..], "density, lru or fifo"),
        (&large, "a block manager has 2147483584 blocks at most, not 2147483647"),
        (&["replay", "absent", "--store", "--clients", "257"], "257 clients are more than 256"),
    ] {
        let said = run(folder.path(), args);
        assert_eq!((said.code, said.text().as_str()), (Some(2), ""), "{args:?}: {}", said.err);
        assert!(said.err.contains(words), "{words} is not in {}", said.err);
    }
}

/// The figures of a load are there when it is done, and not only when all are.
#[test]
fn loads_are_shown_one_by_one() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["replay", "--load", "all", "--json"];
    let mut child = mooncrate(folder.path()).args(args).stdout(Stdio::piped()).spawn().unwrap();
    let (mut line, mut out) = (String::new(), BufReader::new(child.stdout.take().unwrap()));
    out.read_line(&mut line).unwrap();
    let told: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(told["trace"], "scans");
    std::thread::sleep(Duration::from_millis(500));
    assert!(child.try_wait().unwrap().is_none(), "eight loads are left");
    child.kill().unwrap();
    child.wait().unwrap();
}

/// What cannot be read is named with the next step, nothing is printed, and no picture is drawn.
#[test]
fn a_trace_that_cannot_be_read_is_refused_with_the_next_step() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let good = std::fs::read_to_string(SAMPLE).unwrap();
    let mut lines: Vec<&str> = good.lines().collect();
    lines[4] = "{\"timestamp\": 3";
    std::fs::write(here.join("broken"), lines.join("\n")).unwrap();
    std::fs::write(here.join("empty"), "").unwrap();
    for (args, code, words) in [
        (&["broken"][..], 1, &["broken: line 5 is no request", "--skip-broken"][..]),
        (&["absent"], 1, &["cannot open the trace absent", "JSON lines"]),
        (&["empty"], 1, &["no requests", "hash_ids"]),
        (
            &[SAMPLE, "--block-tokens", "16"],
            1,
            &["line 1", "blocks of 16 tokens", "--block-tokens"],
        ),
        (&[SAMPLE, "--policy", "mru"], 2, &["mru", "lru, fifo, priority or importance"]),
        (&[SAMPLE, "--capacity", "0"], 2, &["at least 1"]),
    ] {
        let said = run(here, &[&["replay", "--svg", "plot.svg"], args].concat());
        assert_eq!((said.code, said.text().as_str()), (Some(code), ""), "{args:?}: {}", said.err);
        for word in words {
            assert!(said.err.contains(word), "{word} is not in {}", said.err);
        }
        assert!(!Path::new(&here.join("plot.svg")).exists(), "{args:?} drew something");
    }
    let told = run(here, &["replay", "broken", "--skip-broken", "--json"]).json();
    assert_eq!((&told["requests"], &told["skipped_lines"]), (&299.into(), &1.into()));
    let said = run(here, &["replay", SAMPLE, "--svg", "no/such/folder.svg"]);
    assert_eq!((said.code, said.text().as_str()), (Some(1), ""));
    assert!(said.err.contains("no/such/folder.svg") && said.err.contains("--svg"), "{}", said.err);
}
