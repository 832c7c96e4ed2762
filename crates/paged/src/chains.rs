//! Which block follows which, and how each was used: what a pool needs to evict by learned density
//! ([`mooncrate_core::evict::Density`]). Other policies have none of this.
//!
//! ```text
//! request   b7 ◄── b3 ◄── b9        each named block of a table follows the one before it
//!                    ▲
//! another            └── b4         b3 has two followers; b9 and b4 have none: these two can be evicted
//! ```
//!
//! Only blocks without followers are in an eviction list ([`crate::lists`]). A block with followers enters one when
//! the last of them goes: whoever takes its number of followers to 0 puts it there, used or not.
//!
//! What must stay true: links are made while both blocks are pinned, so the block that is followed cannot end
//! meanwhile. A link names the generation of the block that it follows. Where a reclaim and a new follower meet, the
//! block may end although it has that follower, whose link is then of an earlier life and says nothing any more: the
//! follower is evicted like any other block, and a prefix that is asked for ends before it. The same happens where a
//! call would be refused because the only followers of idle blocks are in use ([`crate::Pool`]).

use crate::BlockId;
use crate::atomic::{AtomicU32, AtomicU64, Mutex, Ordering};
use crate::large;
use crate::records::Records;
use mooncrate_core::evict::{Density, EvictPolicy, Learned, Leaves, Usage, Use, requests_per_step};
use mooncrate_core::{Generation, Slot};
use std::sync::Arc;

/// Blocks of a request for which the lock of what is learned is taken once.
const CHUNK: usize = 64;

/// One block. All of it is empty between two lives.
#[derive(Debug)]
#[repr(align(16))]
struct Link {
    /// The bits of its [`Usage`]; 0: not used yet.
    usage: AtomicU32,
    /// Blocks that follow it.
    followers: AtomicU32,
    /// The block that it follows: generation:32 | block + 1:32; 0: none.
    before: AtomicU64,
}

impl Link {
    /// How it was used, unless it was not yet.
    fn usage(&self) -> Option<Usage> {
        let bits = self.usage.load(Ordering::Relaxed);
        (bits != 0).then(|| Usage::from_bits(bits))
    }
}

/// All blocks of a pool.
#[derive(Debug)]
pub(crate) struct Chains {
    links: Box<[Link]>,
    learned: Arc<Learned>,
    density: Mutex<Density>,
    /// Requests that have ended, and how many of them are one step of the clock, as a power of two.
    requests: AtomicU64,
    step: u32,
}

impl Chains {
    /// For up to so many blocks.
    pub(crate) fn new(blocks: u32) -> Self {
        let link = || Link {
            usage: AtomicU32::new(0),
            followers: AtomicU32::new(0),
            before: AtomicU64::new(0),
        };
        let density = Density::new(blocks.into());
        Self {
            links: large::table(blocks as usize, link),
            learned: Arc::clone(density.learned()),
            density: Mutex::new(density),
            requests: AtomicU64::new(0),
            step: requests_per_step(blocks.into()).trailing_zeros(),
        }
    }

    fn link(&self, block: BlockId) -> &Link {
        &self.links[block.0 as usize]
    }

    /// The time at which so many requests had ended, in steps. The first request ends at 1, so that no usage is 0.
    fn clock(&self, requests: u64) -> u32 {
        (requests >> self.step) as u32 + 1
    }

    /// The time of the request that ends next.
    fn now(&self) -> u32 {
        self.clock(self.requests.load(Ordering::Relaxed))
    }

    /// The time of the request that ended last.
    fn latest(&self) -> u32 {
        self.clock(self.requests.load(Ordering::Relaxed).saturating_sub(1))
    }

    /// Whether another block follows this one, a moment ago at least.
    #[inline]
    pub(crate) fn is_followed(&self, block: BlockId) -> bool {
        self.link(block).followers.load(Ordering::Relaxed) > 0
    }

    /// The same for a thread that has just given up its pin of the block. If it is told of a follower, the thread that
    /// ends that one sees that the pin is gone.
    #[inline]
    pub(crate) fn is_still_followed(&self, block: BlockId) -> bool {
        // An exchange, not a load: it comes before the one in `unfollow`, which then acquires what we did before; or
        // after it, and reads what that one left.
        self.link(block).followers.fetch_add(0, Ordering::AcqRel) > 0
    }

    /// A request ends, which used these published blocks, each behind the one before it. The caller still holds all
    /// of them. `uncovered` is told of blocks that are not followed any more.
    pub(crate) fn used(
        &self,
        records: &Records,
        table: &[BlockId],
        mut uncovered: impl FnMut(BlockId),
    ) {
        let now = self.clock(self.requests.fetch_add(1, Ordering::Relaxed));
        let mut before = 0;
        for (chunk, blocks) in table.chunks(CHUNK).enumerate() {
            // A bit for each block whose key is in the sample.
            let mut sampled = 0_u64;
            let of = |at: usize, now: u32| {
                let key = records.hash(blocks[at]).0[0];
                Use { key, depth: chunk * CHUNK + at, blocks: table.len(), now }
            };
            for (at, block) in blocks.iter().enumerate() {
                let Some(link) = self.join(records, *block, &mut before, &mut uncovered) else {
                    continue;
                };
                // Of two requests that end at the same time one may be lost.
                match self.learned.touch(&of(at, now), link.usage()) {
                    Some(usage) => link.usage.store(usage.to_bits(), Ordering::Relaxed),
                    None => sampled |= 1 << at,
                }
            }
            if sampled > 0 {
                let mut density = self.density.lock();
                // Read under the lock: the requests of other threads that were learned before this one are not later.
                let now = self.latest();
                while sampled > 0 {
                    let at = sampled.trailing_zeros() as usize;
                    let link = self.link(blocks[at]);
                    let usage = density.touch(of(at, now), link.usage());
                    link.usage.store(usage.to_bits(), Ordering::Relaxed);
                    sampled &= sampled - 1;
                }
            }
        }
    }

    /// A caller that holds these published blocks, each behind the one before it, gives them up before a request has
    /// used them: they follow each other, and nothing is learned. Blocks that no request has used are as young as if one
    /// just had, unless another caller holds them, whose request ends later.
    pub(crate) fn loaded(
        &self,
        records: &Records,
        table: &[BlockId],
        mut uncovered: impl FnMut(BlockId),
    ) {
        let (unused, mut before) = (Usage::unused(self.latest()).to_bits(), 0);
        for block in table {
            if let Some(link) = self.join(records, *block, &mut before, &mut uncovered)
                && records.references(*block) == 1
                && link.usage().is_none()
            {
                // Of this and a request that ends at the same time one may be lost.
                link.usage.store(unused, Ordering::Relaxed);
            }
        }
    }

    /// Makes a block of a table follow the one before it, and is then the one before the next. `None` for a block
    /// without a name, which is one sequence's alone: nobody finds what is behind it by way of it.
    fn join(
        &self,
        records: &Records,
        block: BlockId,
        before: &mut u64,
        uncovered: impl FnMut(BlockId),
    ) -> Option<&Link> {
        if !records.named(block) {
            *before = 0;
            return None;
        }
        let link = self.link(block);
        if link.before.load(Ordering::Relaxed) != *before {
            self.follow(records, block, *before).into_iter().for_each(uncovered);
        }
        *before = u64::from(records.generation(block).0) << 32 | u64::from(block.0 + 1);
        Some(link)
    }

    /// Makes a block follow another one. Whether the one that it followed before is not followed any more.
    fn follow(&self, records: &Records, block: BlockId, before: u64) -> Option<BlockId> {
        if let Some((other, _)) = parts(before) {
            self.link(other).followers.fetch_add(1, Ordering::AcqRel);
        }
        // Of two threads that do the same each counts, and the second takes one of the two back.
        self.unfollow(records, self.link(block).before.swap(before, Ordering::AcqRel))
    }

    /// A link is gone; the block that it named, if that one is not followed any more.
    fn unfollow(&self, records: &Records, before: u64) -> Option<BlockId> {
        let (other, generation) = parts(before)?;
        if records.generation(other) != generation {
            return None;
        }
        let less = |followers: u32| followers.checked_sub(1);
        let followers = &self.link(other).followers;
        let was = followers.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
        (was == Ok(1)).then_some(other)
    }

    /// The caller has ended a block; the one before it, if that is not followed any more.
    pub(crate) fn ended(&self, records: &Records, block: BlockId) -> Option<BlockId> {
        let link = self.link(block);
        link.usage.store(0, Ordering::Relaxed);
        link.followers.store(0, Ordering::Relaxed);
        self.unfollow(records, link.before.swap(0, Ordering::AcqRel))
    }

    /// The block that this one follows, and the life of it. A hint, unless the caller holds this one.
    pub(crate) fn before(&self, block: BlockId) -> Option<(BlockId, Generation)> {
        parts(self.link(block).before.load(Ordering::Relaxed))
    }

    /// The block before this one, if this one is all that follows it. A hint.
    fn alone_behind(&self, block: BlockId) -> Option<BlockId> {
        let (before, _) = self.before(block)?;
        (self.link(before).followers.load(Ordering::Relaxed) == 1).then_some(before)
    }

    /// Requests that ended.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    fn usage(&self, slot: Slot) -> Usage {
        Usage::from_bits(self.link(BlockId(slot.0)).usage.load(Ordering::Relaxed))
    }
}

/// The block of a link, and the life of it.
fn parts(before: u64) -> Option<(BlockId, Generation)> {
    let block = (before as u32).checked_sub(1)?;
    Some((BlockId(block), Generation((before >> 32) as u32)))
}

/// The order of one eviction list: by density.
#[derive(Debug)]
pub(crate) struct ByDensity {
    chains: Arc<Chains>,
    leaves: Leaves,
    /// The last block of the walk ahead.
    told: Option<BlockId>,
}

impl ByDensity {
    /// No blocks yet. The same seed gives the same choices.
    pub(crate) const fn new(chains: Arc<Chains>, seed: u64) -> Self {
        Self { chains, leaves: Leaves::new(seed), told: None }
    }
}

impl EvictPolicy for ByDensity {
    fn insert(&mut self, slot: Slot) {
        if self.chains.usage(slot).age(self.chains.now()) == 0 {
            self.leaves.insert(slot);
        } else {
            // Not used just now: what followed it was evicted.
            self.leaves.uncover(slot);
        }
    }

    fn touch(&mut self, _: Slot) {}

    fn remove(&mut self, slot: Slot) -> bool {
        self.leaves.remove(slot)
    }

    fn next(&mut self) -> Option<Slot> {
        let (chains, now) = (&self.chains, self.chains.now());
        self.leaves.next(|slot| {
            // One that is followed by now comes first: it leaves the list, and stays.
            let followed = chains.is_followed(BlockId(slot.0));
            Some(if followed { 0 } else { chains.learned.worth(chains.usage(slot), now) })
        })
    }

    /// One at a time: with each of them the one before it may become the worst.
    fn victims(&mut self, out: &mut [Slot]) -> usize {
        let Some(place) = out.first_mut() else { return 0 };
        let victim = self.victim();
        *place = victim.unwrap_or(*place);
        usize::from(victim.is_some())
    }

    /// Each leaf, and then what would go after it, back to the first block that others follow, too. The worst leaves
    /// that are known come first.
    fn ahead(&mut self) -> Option<Slot> {
        let before = self.told.and_then(|told| self.chains.alone_behind(told));
        self.told = before.or_else(|| self.leaves.ahead().map(|slot| BlockId(slot.0)));
        Some(Slot(self.told?.0))
    }

    fn len(&self) -> usize {
        self.leaves.len()
    }

    fn heap_bytes(&self) -> usize {
        self.leaves.heap_bytes()
    }
}
