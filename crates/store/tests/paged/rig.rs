//! Caches whose blocks say whose they are, and what started processes do with them.

use crate::processes::{be_a_node, child_part, connect, say, wait_for_the_end};
use mooncrate::paged::{Saved, Saving, Spill, SpillConfig};
use mooncrate::{EmbeddedOptions, Store};
use mooncrate_check::{PutId, payload};
use mooncrate_core::key;
use mooncrate_paged::{
    Admission, Admitted, ArenaShape, AttentionSpec, BlockHash, Cache, CacheConfig, DType, Geometry,
    HostArena, Layout, Order, Pages, Part, Prompt, Shard,
};
use std::sync::Arc;
use std::time::Duration;

pub(crate) const MODEL: &str = "stamped";
pub(crate) const BLOCK_TOKENS: usize = 16;
pub(crate) const SPEC: AttentionSpec = AttentionSpec {
    layers: 3,
    kv_heads: 2,
    head_dim: 8,
    block_tokens: BLOCK_TOKENS as u32,
    dtype: DType::F32,
};
/// Longer than anything takes here, so that a test that hangs fails.
pub(crate) const LONG: Duration = Duration::from_mins(2);

pub(crate) fn cache_of(model: &str, spec: AttentionSpec, layout: Layout, blocks: u32) -> Cache {
    let shape = ArenaShape::new(Geometry::attention(spec).unwrap(), layout, blocks).unwrap();
    let arena = HostArena::anonymous(shape, blocks, Pages::Small).unwrap();
    let config = CacheConfig { shard: Some(Shard::WHOLE), ..CacheConfig::new(model) };
    Cache::new(config, Arc::new(arena)).unwrap()
}

pub(crate) fn cache(layout: Layout, blocks: u32) -> Cache {
    cache_of(MODEL, SPEC, layout, blocks)
}

pub(crate) fn block_bytes() -> usize {
    Geometry::attention(SPEC).unwrap().block_bytes() as usize
}

pub(crate) fn token_bytes() -> usize {
    block_bytes() / BLOCK_TOKENS
}

pub(crate) fn embedded() -> Store {
    let options = EmbeddedOptions { segment_bytes: 16 << 20, ..EmbeddedOptions::default() };
    Store::embedded(options).unwrap()
}

/// Batches of three blocks: prompts of these tests need several.
pub(crate) fn spill(store: &Store, cache: &Cache) -> Spill {
    let bytes_in_flight_max = 4 * 3 * cache.geometry().block_bytes();
    let config = SpillConfig { bytes_in_flight_max, wait_max: LONG, ..SpillConfig::default() };
    Spill::new(store, cache, &config).unwrap()
}

pub(crate) fn prompt(seed: u32, tokens: u32) -> Vec<u32> {
    (0..tokens).map(|n| n.wrapping_mul(2_654_435_761) ^ seed).collect()
}

/// The KV of a full block. It follows from the name, and so from all tokens up to its end.
pub(crate) fn stamp(name: BlockHash) -> Vec<u8> {
    stamp_bytes(&name.to_bytes(), block_bytes())
}

fn stamp_bytes(name: &[u8], len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    payload::fill(&mut bytes, PutId::new(1, 1, 1), key::hash(name));
    bytes
}

/// The KV of tokens of a block that is not full.
pub(crate) fn tail_stamp(tokens: &[u32]) -> Vec<u8> {
    let name: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    stamp_bytes(&name, tokens.len() * token_bytes())
}

/// Admits a prompt, judges what is cached of it, computes the rest, and publishes.
pub(crate) fn compute(cache: &Cache, id: &str, prompt: &[u32], how: &Admission) -> Admitted {
    let admitted = cache.allocate(id, Prompt::Tokens(prompt), how).unwrap();
    let names = cache.block_names(prompt, how);
    let cached = admitted.cached_tokens as usize / BLOCK_TOKENS;
    judge(cache, id, &names[..cached]);
    let mut table = Vec::new();
    cache.block_table(id, &mut table).unwrap();
    for (block, name) in table.iter().zip(&names).skip(cached) {
        cache.arena().write(&Part::block(*block), Order::Tokens, &stamp(*name)).unwrap();
    }
    let tail = &prompt[names.len() * BLOCK_TOKENS..];
    if !tail.is_empty() {
        let part = Part::block(table[names.len()]).tokens(0..tail.len() as u32);
        cache.arena().write(&part, Order::Tokens, &tail_stamp(tail)).unwrap();
    }
    cache.publish(id, prompt.len() as u64).unwrap();
    admitted
}

/// The first blocks of a sequence are, to the last byte, those with these names.
pub(crate) fn judge(cache: &Cache, id: &str, names: &[BlockHash]) {
    let (mut table, mut found) = (Vec::new(), vec![0; block_bytes()]);
    cache.block_table(id, &mut table).unwrap();
    for (n, name) in names.iter().enumerate() {
        cache.arena().read(&Part::block(table[n]), Order::Tokens, &mut found).unwrap();
        let whose = payload::examine_as(&found, PutId::new(1, 1, 1), key::hash(&name.to_bytes()));
        assert!(whose.is_ok(), "block {n} of {id}: {whose:?}");
        assert_eq!(found, stamp(*name), "block {n} of {id}");
    }
}

/// Nothing is in the cache any more.
pub(crate) fn empty(cache: &Cache) {
    cache.pool().evict(u32::MAX);
    let stats = cache.stats();
    assert_eq!((stats.sequences, stats.used_blocks, stats.cached_blocks), (0, 0, 0), "{stats:?}");
    assert_eq!(stats.free_blocks, stats.total_blocks);
}

pub(crate) fn done(saving: Saving) -> Saved {
    saving.wait(LONG).expect("a save ends")
}

/// Saves a prompt that was computed, all of it.
pub(crate) fn save(spill: &Spill, id: &str) -> Saved {
    let saved = done(spill.save(id).unwrap());
    assert!(saved.is_whole() && saved.failed.is_none() && !saved.cancelled, "{saved:?}");
    saved
}

/// Not a test of its own: what the started processes do.
#[test]
#[ignore = "started by the tests of this program"]
fn as_a_child() {
    let Some(part) = child_part() else { return };
    let words: Vec<&str> = part.split(' ').collect();
    match words[..] {
        ["node", name, master, folder] => be_a_node(name, master, folder),
        ["computes", master, path, seed, tokens] => {
            let store = connect(&master.parse().unwrap(), path == "shared");
            let cache = cache(Layout::Nhd, 128);
            let prompt = prompt(seed.parse().unwrap(), tokens.parse().unwrap());
            compute(&cache, "a", &prompt, &Admission::default());
            say(&save(&spill(&store, &cache), "a").stored.to_string());
            wait_for_the_end();
        }
        ["loads", master, path, seed, tokens] => {
            let store = connect(&master.parse().unwrap(), path == "shared");
            // Another layout than the one that computed.
            let cache = cache(Layout::Hnd, 128);
            let prompt = prompt(seed.parse().unwrap(), tokens.parse().unwrap());
            let loaded = spill(&store, &cache).load(&prompt, &Admission::default());
            let admitted = compute(&cache, "b", &prompt, &Admission::default());
            assert_eq!(admitted.cached_tokens, loaded.tokens());
            say(&loaded.tokens().to_string());
        }
        _ => panic!("no part {part}"),
    }
}
