//! A cache that evicts by learned density ([`mooncrate_core::evict::Density`]), and only blocks without a cached
//! block behind them: what is cached stays a set of prefixes, and no cached block lies behind a gap.

use super::Cache;
use super::trace::TraceBlock;
use mooncrate_core::Slot;
use mooncrate_core::evict::{Density, Leaves, Usage, Use};

/// The choices are the same in each replay.
const SEED: u64 = 1;

/// What is known about a block of the trace.
#[derive(Clone, Copy, Debug, Default)]
struct Block {
    /// What the policy knows of it; `None` if it is not in the cache.
    usage: Option<Usage>,
    parent: Option<TraceBlock>,
    /// Cached blocks that follow it.
    children: u32,
    /// The last request that used it, counted from 1. Blocks of the running request are not evicted.
    used_by: u32,
}

/// A cache of so many blocks.
#[derive(Debug)]
pub(super) struct ByDensity {
    density: Density,
    capacity: usize,
    cached: usize,
    /// By number of the block.
    blocks: Vec<Block>,
    /// Cached blocks without children.
    leaves: Leaves,
    /// The number of the running request, from 1.
    request: u32,
}

impl ByDensity {
    /// An empty cache for a trace of so many distinct blocks.
    pub(super) fn new(capacity: usize, distinct: u32) -> Self {
        Self {
            density: Density::new(capacity as u64),
            capacity,
            cached: 0,
            blocks: vec![Block::default(); distinct as usize],
            leaves: Leaves::new(SEED),
            request: 0,
        }
    }

    fn block(&mut self, block: TraceBlock) -> &mut Block {
        &mut self.blocks[block.0 as usize]
    }

    /// Evicts a leaf that the running request does not use; false if there is none.
    fn evict(&mut self) -> bool {
        let Self { density, blocks, leaves, request, .. } = self;
        let worth = |slot: Slot| {
            let block = &blocks[slot.0 as usize];
            let usage = block.usage.filter(|_| block.children == 0 && block.used_by != *request)?;
            Some(density.learned().worth(usage, *request))
        };
        // The rest of one round of the walk, its end, and all of the next round.
        let any = |leaves: &mut Leaves| {
            (0..=2 * leaves.len())
                .find_map(|_| leaves.ahead().filter(|slot| worth(*slot).is_some()))
        };
        let Some(slot) = leaves.next(worth).or_else(|| any(leaves)) else { return false };
        leaves.remove(slot);
        let victim = TraceBlock(slot.0);
        self.block(victim).usage = None;
        self.cached -= 1;
        if let Some(parent) = self.block(victim).parent.take() {
            self.block(parent).children -= 1;
            if self.block(parent).children == 0 {
                self.leaves.uncover(Slot(parent.0));
            }
        }
        true
    }

    /// Takes a block that is not cached behind one that is; false if there is no room for it.
    fn take(&mut self, block: TraceBlock, parent: Option<TraceBlock>) -> bool {
        if self.cached == self.capacity && !self.evict() {
            return false;
        }
        self.cached += 1;
        if let Some(parent) = parent {
            self.leaves.remove(Slot(parent.0));
            self.block(parent).children += 1;
        }
        self.block(block).parent = parent;
        self.leaves.insert(Slot(block.0));
        true
    }
}

impl Cache for ByDensity {
    fn serve(&mut self, blocks: &[TraceBlock]) -> usize {
        self.request += 1;
        let request = self.request;
        let is_cached = |block: &&TraceBlock| self.blocks[block.0 as usize].usage.is_some();
        let found = blocks.iter().take_while(is_cached).count();
        // A request that is longer than the cache computes its tail without keeping it.
        let kept = &blocks[..blocks.len().min(self.capacity)];
        for block in kept {
            self.block(*block).used_by = request;
        }
        let mut parent = None;
        for (depth, block) in kept.iter().enumerate() {
            let before = self.block(*block).usage;
            if before.is_none() && !self.take(*block, parent) {
                break;
            }
            let of = Use { key: block.0.into(), depth, blocks: blocks.len(), now: request };
            self.block(*block).usage = Some(self.density.touch(of, before));
            parent = Some(*block);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mooncrate_core::rng::Rng;

    impl ByDensity {
        /// Every count is what a walk over all blocks finds, and no cached block is without its parent.
        fn audit(&self) {
            let cached = |block: &Block| block.usage.is_some();
            assert_eq!(self.blocks.iter().filter(|block| cached(block)).count(), self.cached);
            assert!(self.cached <= self.capacity);
            let mut children = vec![0; self.blocks.len()];
            for parent in
                self.blocks.iter().filter_map(|block| block.parent.filter(|_| cached(block)))
            {
                assert!(
                    cached(&self.blocks[parent.0 as usize]),
                    "the parent of a cached block went first"
                );
                children[parent.0 as usize] += 1;
            }
            let mut leaves = 0;
            for (number, block) in self.blocks.iter().enumerate().filter(|(_, block)| cached(block))
            {
                assert_eq!(block.children, children[number]);
                if block.children == 0 {
                    assert!(self.leaves.contains(Slot(number as u32)));
                    leaves += 1;
                }
            }
            assert_eq!(leaves, self.leaves.len());
        }
    }

    fn blocks(numbers: impl IntoIterator<Item = u64>) -> Vec<TraceBlock> {
        numbers.into_iter().map(|number| TraceBlock(number as u32)).collect()
    }

    /// Also where a trace breaks the rule that a block has one predecessor, and where one asks twice for a block.
    #[test]
    fn what_is_cached_stays_a_set_of_prefixes() {
        for seed in 0..20 {
            let mut rng = Rng::new(seed);
            let mut cache = ByDensity::new(1 + rng.below(40) as usize, 100);
            for _ in 0..400 {
                let (first, len) = (rng.below(90), rng.below(50));
                let odd = rng.below(10) == 0;
                let request =
                    (0..len).map(|step| if odd { rng.below(100) } else { (first + step) % 100 });
                cache.serve(&blocks(request.collect::<Vec<_>>()));
                cache.audit();
            }
        }
    }

    /// A loop of 1,000 blocks through 800: LRU finds none of them.
    #[test]
    fn a_loop_that_is_larger_than_the_cache_is_found_in_part() {
        let mut cache = ByDensity::new(800, 1000);
        let found = (0..20_000).filter(|number| cache.serve(&blocks([number % 1000])) > 0).count();
        assert!(found > 8_000, "{found} of 20,000");
    }

    /// Twenty prompts come back all the time among prompts that come once.
    #[test]
    fn what_comes_once_does_not_displace_what_comes_back() {
        let mut cache = ByDensity::new(300, 40_400);
        let mut found = 0;
        for number in 0..8_000_u64 {
            if number.is_multiple_of(2) {
                let prompt = (number / 2 * 7) % 20 * 10;
                found += cache.serve(&blocks(prompt..prompt + 10));
            } else {
                let once = 400 + number / 2 * 10;
                cache.serve(&blocks(once..once + 10));
            }
        }
        // LRU would need 400 blocks: 19 others, each with a prompt that comes once, lie between two uses.
        assert!(found > 30_000, "{found} of 40,000");
    }
}
