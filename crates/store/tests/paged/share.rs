//! Real processes over a real cluster.

use crate::processes::{CALL_TIME, Fleet, Process, connect};
use crate::rig::{LONG, MODEL, cache, compute, prompt, save, spill};
use mooncrate::Store;
use mooncrate::paged::{Ended, Loaded, Spill, SpillConfig, SpillError};
use mooncrate_paged::{Admission, Cache, CacheConfig, HostArena, Layout, Pages};
use mooncrate_wire::clock::boottime;
use std::sync::Arc;
use std::time::Duration;

/// What a busy machine may add to any time.
const SLACK: Duration = Duration::from_secs(8);

#[test]
fn a_prefix_that_one_process_computed_is_found_by_another() {
    let fleet = Fleet::start(&["a", "b"]);
    let address = fleet.address.clone();
    for (seed, path) in [(1, "shared"), (2, "stream")] {
        let mut computes = Process::start(&format!("computes {address} {path} {seed} 805"));
        assert_eq!(computes.word(), "50");
        // Its memory is gone; what it saved belongs to the nodes.
        computes.kill();
        let mut loads = Process::start(&format!("loads {address} {path} {seed} 805"));
        assert_eq!(loads.word(), "800");
        // Another prompt with the same beginning: as far as they match.
        let mut shorter = Process::start(&format!("loads {address} {path} {seed} 130"));
        assert_eq!(shorter.word(), "128");
        let mut other = Process::start(&format!("loads {address} {path} 99 805"));
        assert_eq!(other.word(), "0");
    }
    fleet.master.as_ref().unwrap().master().unwrap().audit().unwrap();
}

/// Loads into an empty cache and judges every byte of it.
fn load_and_judge(store: &Store, prompt: &[u32]) -> Loaded {
    let cache = cache(Layout::BlockFirst, 64);
    let began = boottime();
    let loaded = spill(store, &cache).load(prompt, &Admission::default());
    let took = boottime().since(began);
    // The first batch that cannot be read ends it: by the deadline of one call, and what a busy machine adds.
    assert!(took < CALL_TIME + SLACK, "{took:?}");
    let admitted = compute(&cache, "judged", prompt, &Admission::default());
    assert_eq!(admitted.cached_tokens, loaded.tokens());
    loaded
}

#[test]
fn a_killed_owner_leaves_a_shorter_prefix_and_no_wrong_byte() {
    let mut fleet = Fleet::start(&["a", "b"]);
    let address = fleet.address.clone();
    let owner = cache(Layout::Nhd, 64);
    let prompt = prompt(3, 805);
    compute(&owner, "a", &prompt, &Admission::default());
    let stores = [connect(&address, false), connect(&address, true)];
    assert_eq!(save(&spill(&stores[0], &owner), "a").stored, 50);
    for store in &stores {
        assert_eq!(load_and_judge(store, &prompt).tokens(), 800);
    }
    fleet.nodes[0].kill();
    // Over TCP nobody answers for its blocks. In its memory, which is still mapped, they can be read until its
    // serving lease ends.
    let loaded = load_and_judge(&stores[0], &prompt);
    assert!(loaded.tokens() < 800, "{loaded:?}");
    assert!(!matches!(loaded.ended, Ended::Whole), "{loaded:?}");
    let end = boottime().deadline_in(LONG);
    for store in &stores {
        while !matches!(load_and_judge(store, &prompt).ended, Ended::Missing) {
            assert!(!end.passed(boottime()), "the master never forgot the dead node");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    // Its keys are free again: who has the blocks saves what is lacking.
    let spill = spill(&stores[0], &owner);
    let saved = loop {
        let saved = spill.save("a").unwrap().wait(LONG).unwrap();
        if saved.failed.is_none() {
            break saved;
        }
        assert!(!end.passed(boottime()), "{saved:?}");
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(saved.is_whole() && saved.there > 0, "{saved:?}");
    for store in &stores {
        assert_eq!(load_and_judge(store, &prompt).tokens(), 800);
    }
}

/// Other engines reach the same store: which part of the model a cache holds cannot be left out.
#[test]
fn in_a_cluster_a_cache_says_its_shard() {
    let fleet = Fleet::start(&["a"]);
    let store = connect(&fleet.address, true);
    let shape = *cache(Layout::Nhd, 8).arena().shape();
    let arena = HostArena::anonymous(shape, 8, Pages::Small).unwrap();
    let silent = Cache::new(CacheConfig::new(MODEL), Arc::new(arena)).unwrap();
    let error = Spill::new(&store, &silent, &SpillConfig::default()).unwrap_err();
    assert!(matches!(error, SpillError::ShardUnknown { .. }), "{error}");
    drop(spill(&store, &cache(Layout::Nhd, 8)));
}
