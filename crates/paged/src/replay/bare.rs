//! A cache that is nothing but a policy: exact, and as fast as a policy can be simulated.
//!
//! Blocks have no bytes here and every block is its own slot, so what is measured is the policy alone. It
//! obeys the rules of the real thing all the same: blocks of the running request are not evicted, new blocks
//! are released tail first, and a block behind a gap is computed again although it is still there.

use super::Cache;
use super::ranks::Ranks;
use super::trace::TraceBlock;
use crate::policy::Policy;
use mooncrate_core::Slot;
use mooncrate_core::evict::EvictPolicy;

/// What is known about a block of the trace.
#[derive(Clone, Copy, Debug, Default)]
struct Block {
    /// It is in the cache.
    cached: bool,
    /// The policy has it as a candidate. A cached block that is no candidate belongs to the running request.
    candidate: bool,
    /// The last request that used it, counted from 1. Blocks of the running request are not evicted.
    used_by: u32,
}

/// A cache of so many blocks under one policy.
#[derive(Debug)]
pub(super) struct Bare {
    ranks: Ranks,
    policy: Box<dyn EvictPolicy>,
    capacity: usize,
    /// Blocks in the cache.
    cached: usize,
    /// By number of the block.
    blocks: Vec<Block>,
    /// The number of the running request, from 1.
    request: u32,
}

impl Bare {
    /// An empty cache under a policy of this kind, for a trace of so many distinct blocks.
    pub(super) fn new(
        policy: Box<dyn EvictPolicy>,
        kind: Policy,
        capacity: usize,
        distinct: u32,
    ) -> Self {
        let blocks = vec![Block::default(); distinct as usize];
        let ranks = Ranks::new(kind, distinct);
        Self { ranks, policy, capacity, cached: 0, blocks, request: 0 }
    }

    /// Evicts one block that the running request does not use. Candidates that it does use are taken out of
    /// the policy; the request puts them back when it releases them.
    fn evict(&mut self) {
        loop {
            let Slot(victim) = self.policy.victim().expect("a request fits into the cache");
            let block = &mut self.blocks[victim as usize];
            block.candidate = false;
            if block.used_by != self.request {
                block.cached = false;
                self.cached -= 1;
                return;
            }
        }
    }

    fn release(&mut self, block: TraceBlock, depth: usize) {
        let (slot, rank) = (Slot(block.0), self.ranks.rank(block, depth));
        let known = &mut self.blocks[block.0 as usize];
        if std::mem::replace(&mut known.candidate, true) {
            self.policy.touch_as(slot, rank);
        } else {
            self.policy.insert_as(slot, rank);
        }
    }
}

impl Cache for Bare {
    fn serve(&mut self, blocks: &[TraceBlock]) -> usize {
        self.request += 1;
        let found = blocks.iter().take_while(|block| self.blocks[block.0 as usize].cached).count();
        // A request that is longer than the cache computes its tail without keeping it.
        let kept = &blocks[..blocks.len().min(self.capacity)];
        self.ranks.ask(kept);
        for block in kept {
            self.blocks[block.0 as usize].used_by = self.request;
        }
        for block in kept {
            if std::mem::replace(&mut self.blocks[block.0 as usize].cached, true) {
                continue;
            }
            if self.cached == self.capacity {
                self.evict();
            }
            self.cached += 1;
        }
        for (depth, block) in kept.iter().enumerate().rev() {
            self.release(*block, depth);
        }
        found
    }
}
