//! Code that the simulator runs asks `rt` for time, sleep, threads and randomness, and `lock` for locks: a call
//! past them would take real time inside of virtual time, or another order in each run.

use crate::tree::File;

/// The crates that the simulator runs.
const SIMULATED: &[&str] = &["lock", "mem", "wire", "transfer", "ssd", "master", "node", "client"];

/// What they call elsewhere, and what to call in its place.
const INSTEAD: &[(&str, &str)] = &[
    ("thread::sleep(", "rt::sleep"),
    ("available_parallelism", "rt::cores"),
    ("getrandom(", "rt::random"),
    ("clock_gettime(", "rt::boottime"),
    ("thread::JoinHandle", "rt::spawn and rt::Thread"),
];

/// Locks of `std`, in one of its paths or behind its braces.
const LOCKS: &[&str] = &["Mutex", "Condvar", "RwLock"];

/// Folders and files of tests that stand among the code.
const TESTS: &[&str] = &["/tests/", "_tests.rs", "/conformance/", "/suite.rs"];

pub(crate) fn check(file: &File, findings: &mut Vec<String>) {
    let Some(folder) = file.crate_folder() else { return };
    let shipped = file.path.contains("/src/") && !TESTS.iter().any(|part| file.path.contains(part));
    if !SIMULATED.contains(&folder) || !shipped {
        return;
    }
    let code = file.text.lines().take_while(|line| !line.contains("#[cfg(test)]"));
    for (number, line) in (1..).zip(code) {
        let line = line.split_once("//").map_or(line, |(code, _)| code);
        for (call, instead) in INSTEAD {
            if line.contains(call) {
                findings.push(finding(file, number, call.trim_end_matches('('), instead));
            }
        }
        let locks = folder != "lock" && line.contains("std::sync::");
        if let Some(lock) = LOCKS.iter().find(|lock| locks && line.contains(**lock)) {
            findings.push(finding(file, number, lock, &format!("mooncrate_lock::{lock}")));
        }
    }
}

fn finding(file: &File, number: usize, call: &str, instead: &str) -> String {
    format!(
        "{}:{number}: `{call}` of the system; the simulator runs this code, so call {instead}",
        file.path
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::fixture::tree;

    fn found(path: &str, line: &str) -> usize {
        let dir = tree(&[(path, &format!("//! x\n{line}\n"))]);
        let mut findings = Vec::new();
        for file in crate::tree::files(dir.path()).unwrap() {
            check(&file, &mut findings);
        }
        findings.len()
    }

    #[test]
    fn calls_past_rt_are_found_in_simulated_code_only() {
        for line in [
            "std::thread::sleep(x);",
            "let x = available_parallelism();",
            "rustix::rand::getrandom(x, y)",
            "use std::thread::JoinHandle;",
            "use std::sync::{Arc, Mutex};",
        ] {
            assert_eq!(found("crates/node/src/x.rs", line), 1, "{line}");
            assert_eq!(found("crates/node/src/x.rs", &format!("#[cfg(test)]\n{line}")), 0);
            assert_eq!(found("crates/node/src/x.rs", &format!("// {line}")), 0);
            for free in [
                "node/tests/x.rs",
                "node/src/disk/tests/x.rs",
                "node/src/x_tests.rs",
                "bench/src/x.rs",
            ] {
                assert_eq!(found(&format!("crates/{free}"), line), 0, "{free}");
            }
        }
        assert_eq!(found("crates/node/src/x.rs", "use std::sync::{Arc, OnceLock};"), 0);
        assert_eq!(found("crates/lock/src/x.rs", "inner: std::sync::Mutex<T>,"), 0);
    }
}
