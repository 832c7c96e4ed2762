//! Saved seeds: one seed is one run, and runs that once found something stay clean.
//!
//! A seed guards its bug for as long as the draws stay the same; each bug also has a direct test in
//! the crate it was in. To see a seed turn red, take its fix out and run it.

use mooncrate_sim::twin::run_seed;
use mooncrate_sim::world::Watch;

fn clean(seed: u64, ops: Option<u64>) {
    let outcome = run_seed(seed, ops, Watch { words: true, ..Watch::default() });
    if let Some(failure) = &outcome.failure {
        panic!("seed 0x{seed:x}: {failure}\n{}", outcome.lines.join("\n"));
    }
    assert!(outcome.tally.judged.hits > 0, "seed 0x{seed:x} verified nothing");
}

/// Proves that a failure can be repeated: nothing but the seed decides.
#[test]
fn the_same_seed_is_the_same_run() {
    for seed in 0..20 {
        let hash = |words| {
            let watch = Watch { words, ..Watch::default() };
            let outcome = run_seed(seed, Some(600), watch);
            (outcome.hash, outcome.tally, outcome.failure)
        };
        // Listening must not change what happens.
        assert_eq!(hash(false), hash(true), "seed {seed}");
    }
}

/// A shorter run is the beginning of the longer one, so that `--until-op` shows the same events.
#[test]
fn a_run_can_be_cut() {
    let cut = |ops| {
        let watch = Watch { until_op: Some(400), ..Watch::default() };
        run_seed(5, Some(ops), watch).hash
    };
    assert_eq!(cut(2_000), cut(3_000));
}

/// The master repeated a settled retire order with its full wait; the owner began to count anew each
/// time, and the range never came back (G8).
#[test]
fn a_repeated_retire_order_does_not_start_its_wait_anew() {
    clean(0x0, None);
}

/// A key was removed while the index was being rebuilt; the node that announced last brought the
/// value back (G6, C4).
#[test]
fn a_removal_waits_for_the_rebuild() {
    clean(0x0260_28f6_3837_e29d, Some(34_000));
}

/// A node answered an abort before its last page; the master freed a range that its allocator did
/// not know yet.
#[test]
fn a_notice_before_the_last_page_frees_nothing() {
    clean(0x1e76_12fe_336a_c8c8, None);
}

/// A node died and came back just before a takeover. The new leader heard that it was empty and let
/// its keys be put again, while readers still had the dead process's memory mapped (C4).
#[test]
fn a_young_node_does_not_end_the_rebuild() {
    clean(0x8ca0_3e38_fc8d_3fc6, Some(4_000));
}

/// A put was given up after its copy was published, its key was put again, and a takeover brought the
/// first value back beside the second (C2).
#[test]
fn a_put_that_was_given_up_blocks_its_key_until_the_owners_know() {
    clean(0x8d1a_4757_914a_db67, Some(8_500));
}

/// A few more seeds, whatever they hold.
#[test]
fn assorted_seeds_are_clean() {
    for seed in 100..112 {
        clean(seed, Some(3_000));
    }
}
