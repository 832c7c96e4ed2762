//! The roles as they ship, in a world: nothing but the seed decides what happens.

use mooncrate_sim::shipped::run_seed;
use mooncrate_sim::world::Watch;

/// Different address spaces, descriptors and map orders: each run of a seed is made in the state that the one before
/// has left behind.
#[test]
fn seeds_are_clean_and_repeat() {
    let (mut hits, mut faults) = (0, 0);
    for seed in 0..12 {
        let run = |words| run_seed(seed, Some(800), Watch { words, ..Watch::default() });
        let (outcome, again) = (run(true), run(false));
        if let Some(failure) = &outcome.failure {
            panic!("seed {seed}: {failure}\n{}", outcome.lines.join("\n"));
        }
        assert_eq!((outcome.hash, &outcome.tally), (again.hash, &again.tally), "seed {seed}");
        hits += outcome.tally.judged.hits;
        faults += outcome.tally.faults.iter().sum::<u64>();
    }
    assert!(hits > 500 && faults > 0, "{hits} values verified, {faults} faults");
}
