//! What only the inside of a pool shows: what counts as a request.

use super::*;
use crate::{
    Admission, ArenaShape, AttentionSpec, Cache, CacheConfig, CacheError, DType, Geometry,
    HostArena, Layout, Pages, Prompt,
};
use std::sync::Arc;

/// A cache of blocks of four tokens.
fn cache(policy: Policy, blocks: u32) -> Cache {
    let spec =
        AttentionSpec { layers: 1, kv_heads: 1, head_dim: 4, block_tokens: 4, dtype: DType::F32 };
    let shape = ArenaShape::new(Geometry::attention(spec).unwrap(), Layout::Nhd, blocks).unwrap();
    let arena = HostArena::anonymous(shape, blocks, Pages::Small).unwrap();
    Cache::new(CacheConfig { policy, ..CacheConfig::new("test") }, Arc::new(arena)).unwrap()
}

/// A request that computes a prompt.
fn serve(cache: &Cache, id: &str, prompt: &[u32]) -> u64 {
    let admitted = cache.allocate_for(id, Prompt::Tokens(prompt)).unwrap();
    cache.publish(id, prompt.len() as u64).unwrap();
    cache.free_for(id).unwrap();
    admitted.cached_tokens
}

/// The story: a request that was refused counted as a use of all that it had found. A scheduler that tried it again and
/// again taught the policy uses that never were.
#[test]
fn a_refused_admission_is_no_request() {
    let cache = cache(Policy::Density, 10);
    let prompt: Vec<u32> = (0..40).collect();
    serve(&cache, "first", &prompt[..9]);
    cache.allocate_for("lives", Prompt::Count(28)).unwrap();
    let before = cache.pool().lists.requests();
    for _ in 0..5 {
        let full = cache.allocate_for("waits", Prompt::Tokens(&prompt)).unwrap_err();
        assert!(matches!(full, CacheError::Full(_)), "{full}");
    }
    assert_eq!(cache.pool().lists.requests(), before);
}

/// A fetch and the admission after it are one request, in whichever order their references are given up.
#[test]
fn a_fetch_is_no_request_of_its_own() {
    let cache = cache(Policy::Density, 10);
    let prompt: Vec<u32> = (0..9).collect();
    let payload = vec![7; cache.geometry().block_bytes() as usize];
    for drop_first in [true, false] {
        let before = cache.pool().lists.requests();
        let mut fetch = cache.fetch(&prompt, &Admission::default());
        while !fetch.wanted(1).is_empty() {
            assert!(fetch.accept(&payload).unwrap());
        }
        let mut fetch = Some(fetch).filter(|_| !drop_first);
        assert_eq!(serve(&cache, "one", &prompt), 8);
        drop(fetch.take());
        assert_eq!(cache.pool().lists.requests(), before + 1);
        assert_eq!(cache.pool().evict(10), 2);
    }
}

/// Blocks that were fetched and not used yet are as young as if they had been: the oldest request goes before them.
#[test]
fn fetched_blocks_are_not_the_first_to_go() {
    let cache = cache(Policy::Density, 10);
    let prompts: [Vec<u32>; 2] = [(0..9).collect(), (100..109).collect()];
    let payload = vec![7; cache.geometry().block_bytes() as usize];
    serve(&cache, "old", &prompts[0]);
    for n in 0..20 {
        serve(&cache, "other", &[1000 + n; 3]);
    }
    let mut fetch = cache.fetch(&prompts[1], &Admission::default());
    while !fetch.wanted(1).is_empty() {
        assert!(fetch.accept(&payload).unwrap());
    }
    drop(fetch);
    assert_eq!(cache.pool().evict(2), 2);
    assert_eq!(serve(&cache, "fetched", &prompts[1]), 8);
    assert_eq!(cache.stats().cached_blocks, 2, "the old ones were evicted");
}
