//! What a policy by rank is told of the blocks of a trace, which says nothing about priorities and scores.
//!
//! They are derived: the priority falls with the depth, because a block is useless without those before it; the
//! importance is how often the block was asked for so far.

use super::trace::TraceBlock;
use crate::policy::Policy;
use mooncrate_core::evict::{RANKS, rank_of};

/// How often each block was asked for.
#[derive(Debug)]
pub(super) struct Ranks {
    kind: Policy,
    /// By number of the block.
    asked: Vec<u32>,
}

impl Ranks {
    /// For a trace of so many distinct blocks.
    pub(super) fn new(kind: Policy, distinct: u32) -> Self {
        Self { kind, asked: vec![0; distinct as usize] }
    }

    /// A request asks for these blocks.
    pub(super) fn ask(&mut self, blocks: &[TraceBlock]) {
        for block in blocks {
            self.asked[block.0 as usize] += 1;
        }
    }

    /// The rank of the block at `depth` of a request.
    #[expect(clippy::cast_precision_loss, reason = "a bucket is half a power of two wide")]
    pub(super) fn rank(&self, block: TraceBlock, depth: usize) -> u32 {
        match self.kind {
            Policy::Priority => (RANKS - 1).saturating_sub(depth as u32),
            Policy::Importance => {
                let asked = self.asked[block.0 as usize] as f32;
                rank_of(asked).expect("a count is finite and not negative")
            }
            Policy::Fifo | Policy::Lru | Policy::Density => 0,
        }
    }
}
