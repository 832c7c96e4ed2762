//! Saved, evicted, loaded, over a store in this process.

use crate::rig::{
    BLOCK_TOKENS, MODEL, SPEC, block_bytes, cache, cache_of, compute, done, embedded, empty,
    prompt, save, spill,
};
use mooncrate::Advice;
use mooncrate::paged::{Ended, Spill, SpillConfig, SpillError};
use mooncrate_paged::{
    Admission, AttentionSpec, Cache, CacheConfig, CacheError, DType, Extra, HostArena, Layout,
    Pages, Prompt, Shard,
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
    let names = cache.block_names(&prompt, &Admission::default());
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
        Admission { salt: b"salt".to_vec(), ..Admission::default() },
        Admission { extras: vec![Extra::new(0, b"image")], ..Admission::default() },
    ];
    for how in hows {
        assert_eq!(spill.load(&prompt, &how).tokens(), 0, "{how:?}");
    }
}

fn shard_of(shard: Option<Shard>) -> Cache {
    let shape = *cache(Layout::Nhd, 40).arena().shape();
    let arena = HostArena::anonymous(shape, 40, Pages::Small).unwrap();
    Cache::new(CacheConfig { shard, ..CacheConfig::new(MODEL) }, Arc::new(arena)).unwrap()
}

/// Four ranks of one model, two stages by two parts of the heads, and one more whose stage begins elsewhere: the same
/// tokens and the same geometry, and other bytes. None finds a block of another.
#[test]
fn shards_of_one_model_share_no_block() {
    let (store, plain, prompt) = (embedded(), Admission::default(), prompt(11, 100));
    let mut shards: Vec<Shard> = Vec::new();
    for (tensor_rank, stage) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
        let first_layer = 3 * stage;
        shards.push(Shard { tensor_rank, tensor_ranks: 2, stage, stages: 2, first_layer });
    }
    shards.push(Shard { first_layer: 4, ..shards[3] });
    let caches: Vec<Cache> = shards.iter().map(|shard| shard_of(Some(*shard))).collect();
    let spills: Vec<_> = caches.iter().map(|cache| spill(&store, cache)).collect();
    for (n, (spill, cache)) in spills.iter().zip(&caches).enumerate() {
        let loaded = spill.load(&prompt, &plain);
        assert_eq!(loaded.tokens(), 0, "{:?} has the blocks of another one", shards[n]);
        assert!(matches!(loaded.ended, Ended::Missing), "{loaded:?}");
        drop(loaded);
        compute(cache, "a", &prompt, &plain);
        assert_eq!(save(spill, "a").stored, 6, "{:?}", shards[n]);
        cache.free_for("a").unwrap();
        empty(cache);
    }
    // Each finds its own. The bytes follow from the names, which the shard is a part of.
    for (spill, cache) in spills.iter().zip(&caches) {
        let loaded = spill.load(&prompt, &plain);
        assert_eq!((loaded.tokens(), loaded.fetched), (96, 6));
        assert_eq!(compute(cache, "b", &prompt, &plain).cached_tokens, 96);
    }
}

/// Alone in a store of its own an engine needs no shard. A second cache of the model needs it, and so does the first
/// one then; who is refused can be attached when the other one is gone.
#[test]
fn a_cache_that_does_not_say_its_shard_is_alone() {
    let (store, config) = (embedded(), SpillConfig::default());
    let attach = |cache: &Cache| Spill::new(&store, cache, &config);
    let refused = |cache: &Cache| {
        let error = attach(cache).unwrap_err();
        assert!(matches!(error, SpillError::ShardUnknown { .. }), "{error}");
        assert!(error.to_string().contains("Shard::WHOLE"), "{error}");
        assert_eq!(error.advice(), Advice::GiveUp);
    };
    let (silent, also_silent, told) =
        (shard_of(None), shard_of(None), shard_of(Some(Shard::WHOLE)));
    let first = attach(&silent).unwrap();
    refused(&also_silent);
    refused(&told);
    // The same cache again, and one of another model.
    drop(attach(&silent).unwrap());
    refused(&told);
    drop(attach(&cache_of("another", SPEC, Layout::Nhd, 40)).unwrap());
    drop(first);
    let second = attach(&told).unwrap();
    refused(&silent);
    let third = attach(&shard_of(Some(Shard { tensor_ranks: 2, ..Shard::WHOLE }))).unwrap();
    drop((second, third));
    // The engine that is alone finds what it stored before it was started again, and so does one that says that it
    // is whole.
    let plain = Admission::default();
    let prompt = prompt(12, 100);
    compute(&silent, "a", &prompt, &plain);
    assert_eq!(save(&attach(&silent).unwrap(), "a").stored, 6);
    for other in [&also_silent, &told] {
        assert_eq!(attach(other).unwrap().load(&prompt, &plain).tokens(), 96);
    }
}

/// Two images with the same placeholder tokens.
#[test]
fn images_with_equal_placeholders_share_what_comes_before_them() {
    let (store, cache) = (embedded(), cache(Layout::Nhd, 80));
    let (spill, prompt) = (spill(&store, &cache), prompt(13, 100));
    let with =
        |image: &[u8]| Admission { extras: vec![Extra::new(40, image)], ..Admission::default() };
    compute(&cache, "cat", &prompt, &with(b"cat"));
    assert_eq!(save(&spill, "cat").stored, 6);
    let dog = compute(&cache, "dog", &prompt, &with(b"dog"));
    assert_eq!(dog.cached_tokens, 32, "two blocks end before the image");
    assert_eq!(save(&spill, "dog").stored, 4);
    for id in ["cat", "dog"] {
        cache.free_for(id).unwrap();
    }
    empty(&cache);
    for image in [&b"cat"[..], b"dog"] {
        let loaded = spill.load(&prompt, &with(image));
        assert_eq!(loaded.tokens(), 96);
        assert_eq!(compute(&cache, "again", &prompt, &with(image)).cached_tokens, 96);
        cache.free_for("again").unwrap();
    }
    // What a turn of a conversation adds has its images, too.
    compute(&cache, "cat", &prompt[..48], &with(b"cat"));
    cache.append_with("cat", &prompt[48..], &[Extra::new(60, b"bird")]).unwrap();
    cache.publish("cat", 100).unwrap();
    let both = vec![Extra::new(60, b"bird"), Extra::new(40, b"cat")];
    let names = cache.block_names(&prompt, &Admission { extras: both, ..Admission::default() });
    assert_eq!(cache.pool().count_prefix(&names), 6);
    // A token that the call does not have.
    let outside = cache.append_with("cat", &[1], &[Extra::new(99, b"late")]).unwrap_err();
    assert!(
        matches!(outside, CacheError::ExtraOutside { token: 99, start: 100, end: 101 }),
        "{outside}"
    );
    let how = Admission { extras: vec![Extra::new(100, b"")], ..Admission::default() };
    let outside = cache.allocate("long", Prompt::Tokens(&prompt), &how).unwrap_err();
    assert!(matches!(outside, CacheError::ExtraOutside { token: 100, .. }), "{outside}");
    let how = Admission { extras: vec![Extra::new(0, &[7; 1025])], ..Admission::default() };
    let long = cache.allocate("long", Prompt::Tokens(&prompt), &how).unwrap_err();
    assert!(matches!(long, CacheError::ExtraTooLong { token: 0, bytes: 1025 }), "{long}");
}

/// A value that is no block of this geometry, under the key of one: nobody takes it for KV.
#[test]
fn a_value_of_another_length_is_refused() {
    for len in [0, 1, block_bytes() - 1, block_bytes() + 1, 2 * block_bytes()] {
        let (store, cache, plain) = (embedded(), cache(Layout::Nhd, 40), Admission::default());
        let (spill, prompt) = (spill(&store, &cache), prompt(7, 100));
        let names = cache.block_names(&prompt, &Admission::default());
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
    let cache = Cache::new(config, Arc::new(arena)).unwrap();
    assert_eq!(spill(&store, &cache).load(&prompt, &plain).tokens(), 0);
}
