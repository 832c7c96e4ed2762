//! The SSD tier: saved seeds on the simulated disk, and a process killed at each point on real ones.

use mooncrate_sim::disk::Real;
use mooncrate_sim::disk::runner::run_seed;
use mooncrate_sim::world::Watch;
use std::process::Command;

/// A few seeds of each backend, and what nothing but the seed decides.
#[test]
fn seeds_are_clean_and_repeat() {
    for seed in 0..40 {
        let run = |words| run_seed(seed, Some(250), &Real, Watch { words, ..Watch::default() });
        let (outcome, again) = (run(true), run(false));
        if let Some(failure) = &outcome.failure {
            panic!("seed {seed}: {failure}\n{}", outcome.lines.join("\n"));
        }
        assert_eq!((outcome.hash, outcome.tally), (again.hash, again.tally), "seed {seed}");
    }
}

fn killed_at(point: &str) {
    let child = Command::new(env!("CARGO_BIN_EXE_mooncrate-sim"))
        .args(["disk-crash", "--rounds", "1", "--point", point])
        .output()
        .expect("the simulator starts");
    let told = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success(), "{told}\n{}", String::from_utf8_lossy(&child.stderr));
}

/// Proves S2, S3, S7 on real disks, posix and uring.
#[test]
fn killed_while_the_directory_gets_its_identity() {
    killed_at("format.");
}

#[test]
fn killed_while_a_bucket_is_written() {
    killed_at("bucket.");
}

#[test]
fn killed_while_a_bucket_is_closed() {
    killed_at("meta.");
}

#[test]
fn killed_while_records_are_removed() {
    killed_at("removed.");
}

#[test]
fn killed_while_a_bucket_is_evicted() {
    killed_at("evict.");
}

#[test]
fn killed_in_the_backend_with_a_file_for_each_record() {
    killed_at("per_key.");
}

#[test]
fn killed_in_the_backend_with_one_file() {
    killed_at("offset.");
}
