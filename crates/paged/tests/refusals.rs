//! Refusals: they are true, they cost nothing, and they leave everything as it was.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail where they stand")]

use mooncrate_paged::{
    Admission, Allocator, ArenaError, ArenaShape, AttentionSpec, BlockId, BlockRun, Cache,
    CacheConfig, CacheError, Contiguity, DType, Geometry, Half, HostArena, Layout, Pages, Policy,
    Pool, Prompt,
};
use std::alloc::{GlobalAlloc, Layout as MemoryLayout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The largest allocation since it was set to 0.
static LARGEST: AtomicUsize = AtomicUsize::new(0);

struct Watched;

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: MemoryLayout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: MemoryLayout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static WATCHED: Watched = Watched;

fn cache(policy: Policy, blocks: u32) -> Cache {
    let spec =
        AttentionSpec { layers: 1, kv_heads: 1, head_dim: 4, block_tokens: 4, dtype: DType::F32 };
    let shape = ArenaShape::new(Geometry::attention(spec).unwrap(), Layout::Nhd, blocks).unwrap();
    let arena = HostArena::anonymous(shape, blocks, Pages::Small).unwrap();
    Cache::new(CacheConfig { policy, ..CacheConfig::new("test") }, Arc::new(arena)).unwrap()
}

/// Threads that ask for one block more than there is, over and over, while others take and give back single blocks
/// and small batches of which there are always enough. The pool is half free, half cached.
#[test]
fn requests_that_cannot_succeed_make_no_other_one_fail() {
    [Policy::Lru, Policy::Density].into_iter().for_each(small_requests_beside_impossible_ones);
}

fn small_requests_beside_impossible_ones(policy: Policy) {
    const BLOCKS: usize = 4_000;
    let pool = Pool::new(BLOCKS as u32, BLOCKS as u32, policy).unwrap();
    let allocator = Allocator::new(BLOCKS as u32).unwrap();
    let mut held = [BlockId::default(); 2];
    pool.take(0, &mut held, |_| Ok(())).unwrap();
    let _handle = allocator.allocate(&mut held, Contiguity::None).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let large = |count: usize| {
            let mut table = vec![BlockId::default(); count];
            while !done.load(Ordering::Relaxed) {
                assert!(pool.take(0, &mut table, |_| Ok(())).is_err());
                assert!(allocator.allocate(&mut table, Contiguity::None).is_err());
            }
        };
        let small = |count: usize| {
            let mut table = vec![BlockId::default(); count];
            for n in 0..30_000 {
                pool.take(0, &mut table, |_| Ok(())).unwrap_or_else(|full| panic!("{n}: {full}"));
                pool.abandon(&table);
                let handle = allocator.allocate(&mut table, Contiguity::Preferred);
                let handle = handle.unwrap_or_else(|full| panic!("{n}: {full}"));
                allocator.free(handle, &table).unwrap();
            }
        };
        let large = [BLOCKS - 1, BLOCKS].map(|count| scope.spawn(move || large(count)));
        let small = [1, 1, 7].map(|count| scope.spawn(move || small(count)));
        let ended: Vec<_> = small.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        done.store(true, Ordering::Relaxed);
        for thread in large {
            thread.join().unwrap();
        }
        for thread in ended {
            thread.unwrap();
        }
    });
    assert_eq!((pool.free_blocks(), allocator.free_blocks()), (3_998, 3_998));
}

/// What cannot fit takes no memory for its table.
#[test]
fn a_request_beyond_the_pool_allocates_nothing() {
    let cache = cache(Policy::Lru, 64);
    cache.allocate_for("a", Prompt::Tokens(&[1; 100])).unwrap();
    LARGEST.store(0, Ordering::Relaxed);
    let huge = i32::MAX as u64;
    let full = cache.allocate_for("b", Prompt::Count(huge)).unwrap_err();
    assert!(matches!(full, CacheError::Full(_)), "{full}");
    let full = cache.append_count("a", huge - 100).unwrap_err();
    assert!(matches!(full, CacheError::Full(_)), "{full}");
    // Other tests of this program may run beside it.
    assert!(LARGEST.load(Ordering::Relaxed) < 1 << 20, "{LARGEST:?}");
}

/// A shrink that meets a block in use has evicted nothing, and what was cached can still be found.
#[test]
fn a_shrink_that_fails_evicts_nothing() {
    let cache = cache(Policy::Lru, 16);
    let prompt: Vec<u32> = (0..40).collect();
    cache.allocate_for("cached", Prompt::Tokens(&prompt)).unwrap();
    cache.allocate_for("lives", Prompt::Count(20)).unwrap();
    cache.publish("cached", 40).unwrap();
    cache.free_for("cached").unwrap();
    let before = cache.stats();
    assert_eq!((before.cached_blocks, before.used_blocks), (10, 5));
    for blocks in [1, 4, 9, 12] {
        assert!(cache.resize(blocks).is_err());
        let after = cache.stats();
        assert_eq!(after.cached_blocks, before.cached_blocks, "shrunk to {blocks}");
        assert_eq!((after.free_blocks, after.evicted_blocks), (1, 0));
    }
    assert_eq!(cache.allocate_for("again", Prompt::Tokens(&prompt)).unwrap().cached_tokens, 36);
    for id in ["again", "lives"] {
        cache.free_for(id).unwrap();
    }
    // Nobody uses a block, and a view of the engine shows one: the arena refuses.
    let shape = *cache.arena().shape();
    let shown = shape.blocks_view(BlockRun { first: BlockId(7), count: 1 }, 0, Half::Key).unwrap();
    let view = cache.arena().host().unwrap().view(&shown).unwrap();
    let before = cache.stats();
    let busy = cache.resize(4).unwrap_err();
    assert!(matches!(busy, CacheError::Arena(ArenaError::Busy { .. })), "{busy}");
    let after = cache.stats();
    assert_eq!(
        (after.cached_blocks, after.free_blocks),
        (before.cached_blocks, before.free_blocks)
    );
    assert_eq!(cache.allocate_for("again", Prompt::Tokens(&prompt)).unwrap().cached_tokens, 36);
    cache.free_for("again").unwrap();
    drop(view);
    cache.resize(4).unwrap();
    assert_eq!(cache.stats().free_blocks + cache.stats().cached_blocks, 4);
    cache.resize(16).unwrap();
    cache.pool().evict(u32::MAX);
    assert_eq!(cache.stats().free_blocks, 16);
}

/// The pool shrinks while other threads find, release and take blocks: it succeeds or changes nothing, and no block
/// is lost.
#[test]
fn shrinking_beside_others_loses_no_block() {
    [Policy::Lru, Policy::Density].into_iter().for_each(shrink_beside_others);
}

fn shrink_beside_others(policy: Policy) {
    let cache = cache(policy, 64);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let work = |thread: u32| {
            for n in 0..4_000 {
                let (id, prompt) =
                    (format!("{thread}/{n}"), vec![n % 5; 4 * (1 + (n as usize % 7))]);
                if cache.allocate_for(&id, Prompt::Tokens(&prompt)).is_ok() {
                    cache.publish(&id, prompt.len() as u64).unwrap();
                    cache.free_for(&id).unwrap();
                }
            }
        };
        let workers = [0, 1].map(|thread| scope.spawn(move || work(thread)));
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let _ = cache.resize(24);
                cache.resize(64).unwrap();
            }
        });
        let ended: Vec<_> = workers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        done.store(true, Ordering::Relaxed);
        for thread in ended {
            thread.unwrap();
        }
    });
    cache.resize(64).unwrap();
    let stats = cache.stats();
    assert_eq!(stats.free_blocks + stats.cached_blocks, 64, "{stats:?}");
    let mut table = [BlockId::default(); 64];
    cache.pool().take(0, &mut table, |_| Ok(())).unwrap();
    table.sort_unstable();
    assert!(table.iter().zip(0..).all(|(block, n)| block.0 == n), "each block once");
}

/// A refused admission leaves everything as it was, the order of eviction included: what it found is not younger.
#[test]
fn a_refused_admission_is_no_use_of_what_it_found() {
    for policy in Policy::ALL {
        let cache = cache(policy, 10);
        let prompts: [Vec<u32>; 2] = [(0..40).collect(), (100..140).collect()];
        for prompt in &prompts {
            cache.allocate_for("one", Prompt::Tokens(&prompt[..9])).unwrap();
            cache.publish("one", 9).unwrap();
            cache.free_for("one").unwrap();
        }
        cache.allocate_for("lives", Prompt::Count(24)).unwrap();
        for _ in 0..50 {
            cache.allocate_for("waits", Prompt::Tokens(&prompts[0])).unwrap_err();
        }
        assert_eq!(cache.pool().evict(2), 2);
        cache.free_for("lives").unwrap();
        let found = prompts.map(|prompt| {
            let admitted = cache.allocate_for("one", Prompt::Tokens(&prompt[..9])).unwrap();
            cache.free_for("one").unwrap();
            admitted.cached_tokens
        });
        assert_eq!(found, [0, 8], "{policy}: the first one was used before the second");
    }
}

/// A sequence that is admitted with another rank changes the rank of the blocks that it finds.
#[test]
fn a_block_has_the_rank_of_its_last_use() {
    for policy in [Policy::Priority, Policy::Importance] {
        let cache = cache(policy, 3);
        let run = |tokens: u32, rank| {
            let (id, how) = ("one", Admission { rank, ..Admission::default() });
            let admitted = cache.allocate(id, Prompt::Tokens(&[tokens; 5]), &how).unwrap();
            cache.publish(id, 5).unwrap();
            cache.free_for(id).unwrap();
            admitted.cached_tokens
        };
        run(1, 1);
        run(2, 2);
        assert_eq!(run(1, 9), 4, "found, and worth more from now on");
        // Needs two blocks, of which one is free.
        run(3, 3);
        assert_eq!(run(1, 9), 4, "the block of rank 2 was evicted");
        // And the other way: what nobody ranks high any more goes.
        assert_eq!(run(1, 0), 4);
        run(4, 3);
        assert_eq!(run(1, 0), 0);
    }
}
