//! A call that waits for the arena (as for a GPU) keeps only calls for its own sequence waiting.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail where they stand")]

use mooncrate_core::Medium;
use mooncrate_paged::kernels::RowMove;
use mooncrate_paged::{
    Admission, Arena, ArenaError, ArenaShape, AttentionSpec, BlockCopy, BlockId, Cache,
    CacheConfig, CacheError, DType, Geometry, HostArena, Layout, Order, Pages, Part, Prompt,
};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::scope;
use std::time::Duration;

/// Longer than anything takes here, so that a test that hangs fails.
const LONG: Duration = Duration::from_secs(30);

/// An arena of which one call, the next one that copies or zeroes, waits until it is let go.
#[derive(Debug)]
struct Slow {
    arena: HostArena,
    /// Taken by the call that waits: it says that it has begun, and waits for the other end.
    next: Mutex<Option<(Sender<()>, Receiver<()>)>>,
}

impl Slow {
    fn pause(&self) {
        let next = self.next.lock().unwrap().take();
        if let Some((begun, end)) = next {
            begun.send(()).unwrap();
            end.recv_timeout(LONG).unwrap();
        }
    }
}

impl Arena for Slow {
    fn shape(&self) -> &ArenaShape {
        self.arena.shape()
    }

    fn medium(&self) -> Medium {
        self.arena.medium()
    }

    fn blocks(&self) -> u32 {
        self.arena.blocks()
    }

    fn resize(&self, blocks: u32) -> Result<(), ArenaError> {
        self.arena.resize(blocks)
    }

    fn read(&self, part: &Part, order: Order, target: &mut [u8]) -> Result<(), ArenaError> {
        self.arena.read(part, order, target)
    }

    fn write(&self, part: &Part, order: Order, source: &[u8]) -> Result<(), ArenaError> {
        self.arena.write(part, order, source)
    }

    fn copy_blocks(&self, copies: &[BlockCopy]) -> Result<(), ArenaError> {
        self.pause();
        self.arena.copy_blocks(copies)
    }

    fn zero_blocks(&self, blocks: &[BlockId]) -> Result<(), ArenaError> {
        self.pause();
        self.arena.zero_blocks(blocks)
    }

    fn compact(&self, moves: &[RowMove]) -> Result<(), ArenaError> {
        self.pause();
        self.arena.compact(moves)
    }

    fn host(&self) -> Option<&HostArena> {
        None
    }
}

const OTHERS: std::ops::Range<u32> = 0..100;

/// A cache with the sequence "busy" and a hundred others, so that some share its part of the table.
fn cache() -> (Arc<Slow>, Cache) {
    let spec =
        AttentionSpec { layers: 1, kv_heads: 1, head_dim: 4, block_tokens: 4, dtype: DType::F32 };
    let shape = ArenaShape::new(Geometry::attention(spec).unwrap(), Layout::Nhd, 1000).unwrap();
    let arena = HostArena::anonymous(shape, 1000, Pages::Small).unwrap();
    let slow = Arc::new(Slow { arena, next: Mutex::new(None) });
    let arena: Arc<dyn Arena> = Arc::<Slow>::clone(&slow);
    let cache = Cache::new(CacheConfig::new("test"), arena).unwrap();
    // All blocks were another tenant's: whoever takes one has to zero it first.
    let how = Admission { tenant: 9, ..Admission::default() };
    cache.allocate("foreign", Prompt::Count(4000), &how).unwrap();
    cache.free_for("foreign").unwrap();
    cache.allocate_for("busy", Prompt::Count(10)).unwrap();
    for id in OTHERS {
        cache.allocate_for(&id.to_string(), Prompt::Tokens(&[id; 10])).unwrap();
    }
    (slow, cache)
}

/// Everything that goes on elsewhere.
fn others(cache: &Cache) {
    assert!(cache.dump().contains("busy: busy\n"), "{}", cache.dump());
    assert_eq!(cache.stats().sequences, 101);
    for id in OTHERS {
        let (id, child) = (id.to_string(), format!("{id}+"));
        cache.append_tokens(&id, &[1, 2, 3]).unwrap();
        cache.publish(&id, 13).unwrap();
        cache.fork(&id, &child).unwrap();
        assert_eq!(cache.block_table(&child, &mut Vec::new()).unwrap(), 13);
        let mut kv = [0; 3 * 16];
        cache.read_tokens(&id, 0, mooncrate_paged::Half::Key, 8, &mut kv).unwrap();
        assert_eq!(cache.pin_sequence(&id).unwrap().len(), 3);
        assert_eq!(cache.suspend(&child, 12).unwrap().own_blocks(), 0);
        cache.free_for(&child).unwrap();
        cache.free_for(&id).unwrap();
    }
    assert!(cache.pool().evict(100) > 0);
    assert_eq!(cache.stats().sequences, 1);
}

/// Runs `work`, which is to wait for the arena, and everything else meanwhile.
fn judge(slow: &Slow, cache: &Cache, work: impl FnOnce() + Send) {
    let ((begun, has_begun), (let_go, end)) = (channel(), channel());
    *slow.next.lock().unwrap() = Some((begun, end));
    let suspension = cache.suspend("busy", 0).unwrap();
    scope(|scope| {
        scope.spawn(work);
        has_begun.recv_timeout(LONG).unwrap();
        // This one has to wait for the sequence. It must not keep its part of the table meanwhile.
        let finish = scope.spawn(|| suspension.finish());
        let (done, is_done) = channel();
        scope.spawn(move || {
            others(cache);
            done.send(()).unwrap();
        });
        let went_on = is_done.recv_timeout(LONG);
        assert!(!finish.is_finished(), "a call for the same sequence waits");
        let_go.send(()).unwrap();
        assert!(went_on.is_ok(), "calls for other sequences waited for the arena");
        let _ = finish.join().unwrap();
    });
}

#[test]
fn a_fork_that_waits_for_the_arena_keeps_no_other_sequence_waiting() {
    let (slow, cache) = cache();
    judge(&slow, &cache, || cache.fork("busy", "child").unwrap());
    assert!(matches!(cache.used_tokens("busy"), Err(CacheError::Unknown { .. })), "suspended");
    assert_eq!(cache.used_tokens("child").unwrap(), 10);
}

#[test]
fn an_append_that_waits_for_the_arena_keeps_no_other_sequence_waiting() {
    let (slow, cache) = cache();
    judge(&slow, &cache, || assert_eq!(cache.append_count("busy", 20).unwrap(), 5));
    assert_eq!(cache.used_tokens("busy").unwrap(), 30, "it changed, so it goes on");
}

#[test]
fn dropping_tokens_waits_for_the_arena_alone() {
    let (slow, cache) = cache();
    let scores: [f32; 10] = [1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
    judge(&slow, &cache, || {
        let kept = cache.keep_important("busy", &scores, 9).unwrap();
        assert_eq!((kept.tokens, kept.dropped, kept.blocks), (9, 1, 3));
    });
    assert_eq!(cache.used_tokens("busy").unwrap(), 9, "it changed, so it goes on");
}

/// Calls that waited for a sequence while it dropped tokens work on what is left of it.
#[test]
fn a_call_that_waited_finds_the_sequence_that_is_left() {
    let (slow, cache) = cache();
    let ((begun, has_begun), (let_go, end)) = (channel(), channel());
    *slow.next.lock().unwrap() = Some((begun, end));
    scope(|scope| {
        let drops = scope.spawn(|| cache.keep_important("busy", &[1.0; 10], 4).unwrap());
        has_begun.recv_timeout(LONG).unwrap();
        let append = scope.spawn(|| cache.append_count("busy", 3).unwrap());
        // Time to find the old sequence and to wait for it. A machine that is too busy for that proves nothing.
        std::thread::sleep(Duration::from_millis(200));
        assert!(!append.is_finished(), "it waits");
        let_go.send(()).unwrap();
        assert_eq!(drops.join().unwrap().blocks, 1);
        assert_eq!(append.join().unwrap(), 1);
    });
    assert_eq!((cache.used_tokens("busy").unwrap(), cache.next_position("busy").unwrap()), (7, 13));
}

/// Who frees a sequence while a call works on it is not kept waiting either.
#[test]
fn a_sequence_can_be_freed_while_it_is_copied() {
    let (slow, cache) = cache();
    let ((begun, has_begun), (let_go, end)) = (channel(), channel());
    *slow.next.lock().unwrap() = Some((begun, end));
    let used = cache.stats().used_blocks;
    scope(|scope| {
        let fork = scope.spawn(|| cache.fork("busy", "child"));
        has_begun.recv_timeout(LONG).unwrap();
        cache.free_for("busy").unwrap();
        assert_eq!(cache.stats().used_blocks, used + 3, "its blocks stay until they are copied");
        let_go.send(()).unwrap();
        fork.join().unwrap().unwrap();
    });
    assert_eq!(cache.stats().used_blocks, used);
}
