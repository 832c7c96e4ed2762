//! What only the inside of a pool shows: how often a refused call looked for blocks, and what counts as a request.

use super::*;
use crate::alloc::SHARED;
use crate::{
    Admission, ArenaShape, AttentionSpec, Cache, CacheConfig, CacheError, DType, Geometry,
    HostArena, Layout, Pages, Prompt,
};
use std::sync::{Arc, Barrier};

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

/// The story: a thread that shares its seat took its own announcement for that of another call, and looked 1,256 times
/// for over a second before it was refused.
#[test]
fn a_thread_that_shares_its_seat_is_refused_at_once() {
    const PARKED: usize = 70;
    let pool = Pool::new(100, 100, Policy::Density).unwrap();
    let (used, refused) = (Barrier::new(PARKED + 1), Barrier::new(PARKED + 1));
    std::thread::scope(|scope| {
        for _ in 0..PARKED {
            scope.spawn(|| {
                let mut table = [BlockId::default()];
                pool.take(0, &mut table, |_| Ok(())).unwrap();
                pool.abandon(&table);
                used.wait();
                refused.wait();
            });
        }
        used.wait();
        let refusals = scope.spawn(|| {
            assert_eq!(seat(), SHARED);
            pool.take(0, &mut [BlockId::default(); 100], |_| Ok(())).unwrap();
            let before = pool.bits.announced();
            for wanted in [1, 3] {
                let mut table = vec![BlockId::default(); wanted];
                pool.take(0, &mut table, |_| Ok(())).unwrap_err();
            }
            pool.bits.announced() - before
        });
        let announced = refusals.join();
        refused.wait();
        // Each attempt announces the blocks that it asks for, and one for each time that it empties the pockets.
        let announced = announced.unwrap();
        assert!(announced < 30, "{announced} blocks were announced for 1 and 3");
    });
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
