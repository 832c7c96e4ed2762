//! `--prefault`: a node has all pages of its memory before it joins, says how far it is, and can be stopped meanwhile.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail where they stand")]

#[expect(dead_code, reason = "each test binary uses a part of it")]
mod support;

use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use support::{Server, mooncrate, wait};

const ANY: &str = "127.0.0.1:0";
const MIB: u64 = 1 << 20;

/// Bytes of shared memory that are in the page tables of a process.
fn shared_bytes(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let row = status.lines().find_map(|line| line.strip_prefix("RssShmem:")).unwrap();
    row.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
}

fn log(folder: &Path, role: &str) -> String {
    std::fs::read_to_string(folder.join(format!("{role}.log"))).unwrap()
}

#[test]
fn a_node_that_is_asked_to_has_all_pages_when_it_is_ready() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let size = ["--segment-size", "80MiB"];
    let serve = ["serve", "--master", ANY, "--admin", "off", "--data", ANY];
    let plain = Server::start(here, &[&serve[..], &size].concat());
    let taken = shared_bytes(plain.pid());
    assert!(taken < 20 * MIB, "{taken} bytes are taken unasked");
    assert!(!log(here, "serve").contains("touched"), "{}", log(here, "serve"));
    drop(plain);
    let whole = Server::start(here, &[&serve[..], &size, &["--prefault"]].concat());
    let taken = shared_bytes(whole.pid());
    assert!(taken >= 80 * MIB, "{taken} bytes");
    assert!(log(here, "serve").contains("touched 80.0 MiB of 80.0 MiB"), "{}", log(here, "serve"));
    let master = whole.address("master");
    let node = ["node", "--master", master, "--data", ANY, "--unix", "off", "--node-name", "b"];
    let node = Server::start_with(here, &[&node[..], &size].concat(), |command| {
        command.env("MOONCRATE_PREFAULT", "true");
    });
    let taken = shared_bytes(node.pid());
    assert!(taken >= 80 * MIB, "{taken} bytes");
}

/// It must not take minutes to stop a node that was started with too much memory.
#[test]
fn a_node_that_touches_its_memory_can_be_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = mooncrate(folder.path());
    command.args(["serve", "--master", ANY, "--admin", "off", "--data", ANY, "--prefault"]);
    // Small enough for most machines; the signal comes long before all of it is taken.
    command.args(["--segment-size", "4GiB", "--memory-overcommit"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let first = lines.find(|line| line.as_ref().unwrap().contains("touching 4.0 GiB"));
    assert!(first.is_some(), "it says what it does");
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let status = wait(&mut child, Duration::from_secs(20));
    assert!(status.success(), "{status:?}");
    let rest: Vec<String> = lines.map_while(Result::ok).collect();
    assert!(!rest.iter().any(|line| line.contains("touched 4.0 GiB of")), "{rest:?}");
    let mut ready = String::new();
    child.stdout.take().unwrap().read_to_string(&mut ready).unwrap();
    assert_eq!(ready, "", "it was never ready");
}
