//! Saved, evicted, loaded, over a store in this process.

use crate::rig::{
    BLOCK_TOKENS, MODEL, SPEC, block_bytes, cache, cache_of, compute, done, embedded, empty,
    prompt, save, spill,
};
use mooncrate::Advice;
use mooncrate::paged::{Ended, SpillError};
use mooncrate_paged::{
    Admission, AttentionSpec, CacheConfig, CacheError, DType, HostArena, Layout, Pages, Prompt,
};
use std::sync::Arc;

const LAYOUTS: [Layout; 6] = [
    Layout::LayerBlockHead,
    Layout::HeadMajor,
    Layout::TokenMajor,
    Layout::Nhd,
    Layout::Hnd,
    Layout::BlockFirst,
];

#[test]
fn what_was_saved_and_evicted_comes_back_bit_for_bit() {
    let (store, plain) = (embedded(), Admission::default());
    let prompt = prompt(1, 205);
    for (n, layout) in LAYOUTS.into_iter().enumerate() {
        let cache = cache(layout, 40);
        let spill = spill(&store, &cache);
        // The first one computes and stores; all others, whatever their layout, load what it stored.
        let loaded = spill.load(&prompt, &plain);
        assert_eq!(loaded.tokens(), if n == 0 { 0 } else { 192 });
        let admitted = compute(&cache, "a", &prompt, &plain);
        assert_eq!(admitted.cached_tokens, loaded.tokens());
        drop(loaded);
        let saved = save(&spill, "a");
        let stored = if n == 0 { (12, 0) } else { (0, 12) };
        assert_eq!((saved.stored, saved.there), stored, "no block is put twice");
        cache.free_for("a").unwrap();
        empty(&cache);

        let loaded = spill.load(&prompt, &plain);
        assert!(matches!(loaded.ended, Ended::Whole), "{loaded:?}");
        assert_eq!((loaded.tokens(), loaded.fetched), (192, 12));
        drop(loaded);
        // In the cache without anybody: found by its names, and nothing more is fetched.
        assert_eq!(cache.stats().used_blocks, 0);
        assert_eq!(spill.load(&prompt, &plain).fetched, 0);
        assert_eq!(compute(&cache, "b", &prompt, &plain).cached_tokens, 192);
        cache.free_for("b").unwrap();
        empty(&cache);
    }
}

/// The block of the last token is not fetched: no sequence would find it.
#[test]
fn a_prompt_of_full_blocks_loads_all_but_the_last() {
    let (store, cache, plain) = (embedded(), cache(Layout::Nhd, 40), Admission::default());
    let (spill, prompt) = (spill(&store, &cache), prompt(2, 64));
    compute(&cache, "a", &prompt, &plain);
    assert_eq!(save(&spill, "a").stored, 4);
    cache.free_for("a").unwrap();
    empty(&cache);
    assert_eq!(spill.load(&prompt, &plain).tokens(), 48);
    assert_eq!(spill.load(&prompt[..3], &plain).tokens(), 0);
    assert_eq!(spill.load(&[], &plain).tokens(), 0);
}

#[test]
fn a_gap_in_the_store_ends_the_prefix() {
    let (store, cache, plain) = (embedded(), cache(Layout::Nhd, 40), Admission::default());
    let (spill, prompt) = (spill(&store, &cache), prompt(3, 205));
    compute(&cache, "a", &prompt, &plain);
    let names = cache.block_names(&prompt, 0, "");
    assert_eq!(done(spill.save_prefix(&names).unwrap()).stored, 12);
    cache.free_for("a").unwrap();
    empty(&cache);
    assert!(store.remove(cache.block_key(names[7]).as_bytes(), false).unwrap());
    let loaded = spill.load(&prompt, &plain);
    assert!(matches!(loaded.ended, Ended::Missing), "{loaded:?}");
    assert_eq!(loaded.tokens(), 7 * 16);
    assert_eq!(cache.stats().used_blocks, 7, "nothing after the gap was admitted");
    assert_eq!(compute(&cache, "b", &prompt, &plain).cached_tokens, 7 * 16);
    drop(loaded);
    // What is computed now closes the gap.
    let saved = save(&spill, "b");
    assert_eq!((saved.stored, saved.there), (1, 11));
}

/// Blocks in the middle that are in the cache already are not fetched again.
#[test]
fn only_what_is_not_in_the_cache_is_fetched() {
    let (store, plain) = (embedded(), Admission::default());
    let (full, cache) = (cache(Layout::Nhd, 40), cache(Layout::Nhd, 40));
    let prompt = prompt(4, 161);
    compute(&full, "a", &prompt, &plain);
    assert_eq!(save(&spill(&store, &full), "a").stored, 10);
    compute(&cache, "a", &prompt[..65], &plain);
    let spill = spill(&store, &cache);
    let loaded = spill.load(&prompt, &plain);
    assert_eq!((loaded.tokens(), loaded.fetched), (160, 6));
    assert_eq!(compute(&cache, "b", &prompt, &plain).cached_tokens, 160);
}

#[test]
fn a_cache_without_room_takes_what_fits() {
    let (store, plain) = (embedded(), Admission::default());
    let (full, small) = (cache(Layout::Nhd, 40), cache(Layout::Nhd, 5));
    let prompt = prompt(5, 205);
    compute(&full, "a", &prompt, &plain);
    assert_eq!(save(&spill(&store, &full), "a").stored, 12);
    let spill = spill(&store, &small);
    let loaded = spill.load(&prompt, &plain);
    let Ended::Failed(error) = &loaded.ended else { panic!("{loaded:?}") };
    assert!(matches!(error, SpillError::Cache(CacheError::Full(_))), "{error}");
    assert!(matches!(error.advice(), Advice::Retry { .. }));
    assert_eq!(loaded.tokens(), 5 * 16);
    drop(loaded);
    assert_eq!(compute(&small, "b", &prompt[..70], &plain).cached_tokens, 64);
    small.free_for("b").unwrap();
    empty(&small);
}

#[test]
fn other_models_geometries_tenants_and_adapters_find_nothing() {
    let (store, plain) = (embedded(), Admission::default());
    let (cache, prompt) = (cache(Layout::Nhd, 40), prompt(6, 205));
    compute(&cache, "a", &prompt, &plain);
    assert_eq!(save(&spill(&store, &cache), "a").stored, 12);
    let others = [
        ("another", SPEC),
        (MODEL, AttentionSpec { layers: 4, ..SPEC }),
        (MODEL, AttentionSpec { kv_heads: 1, head_dim: 16, ..SPEC }),
        (MODEL, AttentionSpec { dtype: DType::Bf16, head_dim: 16, ..SPEC }),
        (MODEL, AttentionSpec { block_tokens: 8, ..SPEC }),
    ];
    for (model, spec) in others {
        let other = cache_of(model, spec, Layout::Nhd, 40);
        let loaded = spill(&store, &other).load(&prompt, &plain);
        assert!(matches!(loaded.ended, Ended::Missing), "{loaded:?}");
        assert_eq!(loaded.tokens(), 0, "{spec:?}");
    }
    let spill = spill(&store, &cache);
    let hows = [
        Admission { tenant: 1, ..Admission::default() },
        Admission { adapter: "lora".into(), ..Admission::default() },
    ];
    for how in hows {
        assert_eq!(spill.load(&prompt, &how).tokens(), 0, "{how:?}");
    }
}

/// A value that is no block of this geometry, under the key of one: nobody takes it for KV.
#[test]
fn a_value_of_another_length_is_refused() {
    for len in [0, 1, block_bytes() - 1, block_bytes() + 1, 2 * block_bytes()] {
        let (store, cache, plain) = (embedded(), cache(Layout::Nhd, 40), Admission::default());
        let (spill, prompt) = (spill(&store, &cache), prompt(7, 100));
        let names = cache.block_names(&prompt, 0, "");
        store.put(cache.block_key(names[2]).as_bytes(), &vec![7; len]).unwrap();
        compute(&cache, "a", &prompt, &plain);
        let saved = save(&spill, "a");
        assert_eq!((saved.stored, saved.there), (6, 0), "a save puts the block in its place");
        assert_eq!(save(&spill, "a").there, 6);
        assert_eq!(
            store.size(cache.block_key(names[2]).as_bytes()).unwrap(),
            Some(block_bytes() as u64)
        );

        // Somebody does it again, and nobody saves.
        store.remove(cache.block_key(names[2]).as_bytes(), false).unwrap();
        store.put(cache.block_key(names[2]).as_bytes(), &vec![7; len]).unwrap();
        cache.free_for("a").unwrap();
        empty(&cache);
        let loaded = spill.load(&prompt, &plain);
        assert_eq!(loaded.tokens(), 2 * BLOCK_TOKENS as u64);
        let Ended::Failed(error) = &loaded.ended else { panic!("{loaded:?}") };
        let SpillError::WrongLength { found, wanted } = error else { panic!("{error}") };
        assert_eq!((*found, *wanted), (len as u64, block_bytes() as u64));
        assert_eq!(error.advice(), Advice::TreatAsMiss);
    }
}

#[test]
fn sequences_without_names_have_nothing_to_save_by_name() {
    let (store, cache) = (embedded(), cache(Layout::Nhd, 40));
    let spill = spill(&store, &cache);
    cache.allocate_for("count", Prompt::Count(100)).unwrap();
    cache.publish("count", 100).unwrap();
    assert_eq!(save(&spill, "count").blocks, 0);
    assert!(matches!(spill.save("nobody"), Err(SpillError::Cache(CacheError::Unknown { .. }))));
}

/// A cache that shares no prefixes would not find what it loads.
#[test]
fn a_cache_without_prefixes_fetches_nothing() {
    let (store, full, plain) = (embedded(), cache(Layout::Nhd, 40), Admission::default());
    let prompt = prompt(8, 100);
    compute(&full, "a", &prompt, &plain);
    assert_eq!(save(&spill(&store, &full), "a").stored, 6);
    let config = CacheConfig { prefix_caching: false, ..CacheConfig::new(MODEL) };
    let arena = HostArena::anonymous(*full.arena().shape(), 40, Pages::Small).unwrap();
    let cache = mooncrate_paged::Cache::new(config, Arc::new(arena)).unwrap();
    assert_eq!(spill(&store, &cache).load(&prompt, &plain).tokens(), 0);
}
