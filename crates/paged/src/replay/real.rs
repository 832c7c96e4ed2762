//! The block manager under a trace: the same requests through a [`Pool`], as an engine makes them.
//!
//! It differs from the bare policy in one thing: a block behind a gap is computed again as a duplicate, which
//! is freed with its request, and the older copy of it is not touched.

use super::Cache;
use super::ranks::Ranks;
use super::trace::TraceBlock;
use crate::policy::Policy;
use crate::{BlockHash, BlockId, Pool};

/// A pool and room for the tables of one request.
#[derive(Debug)]
pub(super) struct Real {
    pool: Pool,
    ranks: Ranks,
    hashes: Vec<BlockHash>,
    table: Vec<BlockId>,
}

impl Real {
    /// An empty pool of so many blocks, for a trace of so many distinct ones.
    pub(super) fn new(policy: Policy, capacity: u32, distinct: u32) -> Self {
        let pool = Pool::new(capacity, capacity, policy).expect("a cache has at least one block");
        let ranks = Ranks::new(policy, distinct);
        Self { pool, ranks, hashes: Vec::new(), table: Vec::new() }
    }
}

/// The name of a block: a trace has numbers, the pool wants hashes.
fn name(block: TraceBlock) -> BlockHash {
    let mixed = (u64::from(block.0) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    BlockHash([mixed, mixed.rotate_left(32) ^ u64::from(block.0)])
}

impl Cache for Real {
    fn serve(&mut self, blocks: &[TraceBlock]) -> usize {
        // A request that is longer than the cache computes its tail without keeping it.
        let kept = blocks.len().min(self.pool.total_blocks() as usize);
        self.hashes.clear();
        self.hashes.extend(blocks[..kept].iter().map(|block| name(*block)));
        self.table.clear();
        self.table.resize(kept, BlockId::default());
        let found = self.pool.match_prefix(&self.hashes, &mut self.table);
        let taken = self.pool.take(0, &mut self.table[found..], |_| Ok(()));
        taken.expect("nothing else is in use, and the request fits");
        for (block, hash) in self.table.iter().zip(&self.hashes).skip(found) {
            self.pool.register(*block, *hash, 0);
        }
        self.ranks.ask(&blocks[..kept]);
        for (depth, (block, asked)) in self.table.iter().zip(blocks).enumerate() {
            self.pool.set_rank(&[*block], self.ranks.rank(*asked, depth) as u8);
        }
        self.pool.release(&mut self.table);
        found
    }
}
