//! Blocks that would be evicted next are in the store before they are.

use crate::rig::{BLOCK_TOKENS, LONG, cache, compute, embedded, empty, prompt, save, spill};
use mooncrate::paged::{Ended, Spill, SpillConfig, metrics_text};
use mooncrate::{EmbeddedOptions, Store};
use mooncrate_paged::{Admission, Cache, Layout, Prompt};
use mooncrate_wire::clock::boottime;
use std::time::Duration;

fn cold(store: &Store, cache: &Cache, free_blocks_low: u32) -> Spill {
    let bytes_in_flight_max = 4 * 3 * cache.geometry().block_bytes();
    let config = SpillConfig { bytes_in_flight_max, free_blocks_low, ..SpillConfig::default() };
    Spill::new(store, cache, &config).unwrap()
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = boottime().deadline_in(LONG);
    while !done() {
        assert!(!end.passed(boottime()), "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Nobody saves anything: what an allocation evicts comes back from the store all the same.
#[test]
fn what_is_evicted_was_saved_before() {
    let (store, cache, plain) = (embedded(), cache(Layout::Nhd, 41), Admission::default());
    let spill = cold(&store, &cache, 31);
    let prompts: Vec<Vec<u32>> = (0..4).map(|seed| prompt(seed, 161)).collect();
    for (n, prompt) in (0..).zip(&prompts) {
        // 11 blocks, of which 10 stay cached.
        compute(&cache, "a", prompt, &plain);
        cache.free_for("a").unwrap();
        // The first ten leave the mark alone: 31 blocks are free.
        let saved = if n == 0 { 0 } else { (n + 1) * 10 };
        until("cold blocks are saved", || spill.cold().saved_blocks >= saved);
    }
    assert_eq!(spill.cold().saved_blocks, 40);
    assert_eq!((cache.stats().spilled_blocks, cache.stats().cached_blocks), (40, 40));
    // Nothing is saved twice, and looking does not warm anything.
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(cache.stats().spilled_blocks, 40);
    cache.allocate_for("big", Prompt::Count(20 * BLOCK_TOKENS as u64)).unwrap();
    for (prompt, left) in prompts.iter().zip([0, 1, 10, 10]) {
        let names = cache.block_names(prompt, &Admission::default());
        assert_eq!(cache.pool().count_prefix(&names), left, "the coldest were evicted");
    }
    cache.free_for("big").unwrap();
    for prompt in &prompts {
        let loaded = spill.load(prompt, &plain);
        assert!(matches!(loaded.ended, Ended::Whole), "{loaded:?}");
        assert_eq!(compute(&cache, "b", prompt, &plain).cached_tokens, 160);
        cache.free_for("b").unwrap();
    }
    assert_eq!(cache.stats().fetched_blocks, 19, "those that the big one drove out");
    assert!(metrics_text(&cache).contains("mooncrate_paged_spilled_blocks_total "));
}

#[test]
fn with_blocks_to_spare_nothing_is_saved() {
    let (store, cache, plain) = (embedded(), cache(Layout::Nhd, 40), Admission::default());
    let spill = cold(&store, &cache, 30);
    compute(&cache, "a", &prompt(1, 161), &plain);
    cache.free_for("a").unwrap();
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!((spill.cold().saved_blocks, cache.stats().spilled_blocks), (0, 0));
    // Below the mark the thread begins by itself; blocks that are in the store already are not put again.
    let other = crate::rig::cache(Layout::Hnd, 40);
    compute(&other, "a", &prompt(1, 161), &plain);
    assert_eq!(save(&crate::rig::spill(&store, &other), "a").stored, 10);
    cache.allocate_for("b", Prompt::Count(16)).unwrap();
    until("cold blocks are found in the store", || spill.cold().saved_blocks == 10);
    assert_eq!(cache.stats().spilled_blocks, 0);
}

/// A store that cannot take them: counted, tried again, and the cache goes on evicting.
#[test]
fn a_store_without_room_does_not_stop_the_cache() {
    let options = EmbeddedOptions { segment_bytes: 64 << 10, ..EmbeddedOptions::default() };
    let store = Store::embedded(options).unwrap();
    let (cache, plain) = (cache(Layout::Nhd, 40), Admission::default());
    let spill = cold(&store, &cache, u32::MAX);
    for seed in 0..20 {
        compute(&cache, "a", &prompt(seed, 161), &plain);
        cache.free_for("a").unwrap();
    }
    drop(spill);
    empty(&cache);
}

/// Threads end with the spill, in the middle of whatever they do, and leave no pin.
#[test]
fn dropping_the_spill_ends_it() {
    let (store, plain) = (embedded(), Admission::default());
    for round in 0..20 {
        let cache = cache(Layout::Nhd, 200);
        let spill = cold(&store, &cache, u32::MAX);
        for seed in 0..4 {
            compute(&cache, "a", &prompt(100 + 4 * round + seed, 161), &plain);
            cache.free_for("a").unwrap();
        }
        drop(spill);
        empty(&cache);
    }
    let cache = cache(Layout::Nhd, 200);
    let spill = spill(&store, &cache);
    assert_eq!(spill.cold(), mooncrate::paged::ColdCounts::default(), "off unless asked for");
}
