//! The calls of Mooncrate that are timed.

use crate::{PREFIX, Work};
use mooncrate_paged::{Allocator, BlockHash, BlockId, Contiguity, Identity, Policy, Pool};
use std::sync::Arc;

const BLOCK: usize = 16;

pub fn allocator(blocks: u32) -> Arc<Allocator> {
    Arc::new(Allocator::new(blocks).expect("a size"))
}

pub fn pool(blocks: u32) -> Arc<Pool> {
    pool_by(Policy::Lru, blocks)
}

pub fn pool_by(policy: Policy, blocks: u32) -> Arc<Pool> {
    Arc::new(Pool::new(blocks, blocks, policy).expect("a size"))
}

pub fn allocate(allocator: &Arc<Allocator>, count: usize) -> Work<'static> {
    let (allocator, mut table) = (Arc::clone(allocator), vec![BlockId::default(); count]);
    Box::new(move || {
        let handle = allocator.allocate(&mut table, Contiguity::None).expect("room");
        allocator.free(handle, &table).expect("ours");
        count
    })
}

/// One at a time from a magazine.
pub fn single(allocator: &Arc<Allocator>) -> Work<'_> {
    let mut magazine = allocator.magazine();
    Box::new(move || {
        let handle = magazine.allocate().expect("room");
        magazine.free(handle).expect("ours");
        1
    })
}

pub fn run(allocator: &Arc<Allocator>, count: usize) -> Work<'static> {
    let (allocator, mut table) = (Arc::clone(allocator), vec![BlockId::default(); count]);
    Box::new(move || {
        let handle = allocator.allocate(&mut table, Contiguity::Required).expect("room");
        allocator.free_run(handle).expect("ours");
        count
    })
}

pub fn take(pool: &Arc<Pool>, count: usize) -> Work<'static> {
    let (pool, mut table) = (Arc::clone(pool), vec![BlockId::default(); count]);
    Box::new(move || {
        pool.take(1, &mut table, |_| Ok(())).expect("room");
        pool.abandon(&table);
        count
    })
}

/// Names that no other call of the bench uses.
fn names(thread: u32, blocks: usize) -> Vec<BlockHash> {
    let identity = Identity::new("bench", "", b"", thread, b"");
    let tokens: Vec<u32> = (0..(blocks * BLOCK) as u32).collect();
    let mut hashes = Vec::new();
    identity.chain(&tokens, &[], BLOCK, &mut hashes);
    hashes
}

fn fill(pool: &Pool, hashes: &[BlockHash]) {
    let mut table = vec![BlockId::default(); hashes.len()];
    if pool.count_prefix(hashes) == hashes.len() {
        return;
    }
    pool.take(1, &mut table, |_| Ok(())).expect("room");
    pool.register_all(&table, hashes, 0);
    pool.release(&mut table);
}

pub fn matched(pool: &Arc<Pool>, chain: u32) -> Work<'static> {
    let (pool, hashes) = (Arc::clone(pool), names(chain, PREFIX));
    fill(&pool, &hashes);
    let mut table = vec![BlockId::default(); PREFIX];
    Box::new(move || {
        assert_eq!(pool.match_prefix(&hashes, &mut table), PREFIX);
        pool.release(&mut table);
        PREFIX
    })
}

/// One prefix after the other, until all blocks of the pool were touched: no cache holds them.
pub fn matched_any(pool: &Arc<Pool>) -> Work<'static> {
    let pool = Arc::clone(pool);
    let chains = pool.total_blocks() as usize / PREFIX;
    let all: Vec<Vec<BlockHash>> = (0..chains).map(|chain| names(chain as u32, PREFIX)).collect();
    for hashes in &all {
        fill(&pool, hashes);
    }
    let (mut table, mut turn) = (vec![BlockId::default(); PREFIX], 0);
    Box::new(move || {
        // A step that visits all and is far from its neighbours.
        turn = (turn + 7_919) % chains;
        assert_eq!(pool.match_prefix(&all[turn], &mut table), PREFIX);
        pool.release(&mut table);
        PREFIX
    })
}

/// New names all the time: after the first round of the pool each block that is taken is evicted first.
pub fn register(pool: &Arc<Pool>, thread: u32, count: usize) -> Work<'static> {
    let (pool, mut table) = (Arc::clone(pool), vec![BlockId::default(); count]);
    let (mut next, mut hashes) = (u64::from(thread) << 40, vec![BlockHash::NONE; count]);
    Box::new(move || {
        for hash in &mut hashes {
            next += 1;
            let mixed = next.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            *hash = BlockHash([mixed, mixed.rotate_left(32) ^ next]);
        }
        pool.take(1, &mut table, |_| Ok(())).expect("room");
        pool.register_all(&table, &hashes, 0);
        pool.release(&mut table);
        count
    })
}

pub fn naming() -> Work<'static> {
    let identity = Identity::new("bench", "", b"", 0, b"");
    let tokens: Vec<u32> = (0..BLOCK as u32).collect();
    let mut parent = BlockHash::NONE;
    Box::new(move || {
        parent = identity.child(parent, &tokens, &[]);
        1
    })
}
