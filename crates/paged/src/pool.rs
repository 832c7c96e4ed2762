//! The blocks of one arena, shared by all sequences: taken, published under names, found again, evicted.
//!
//! ```text
//! take ─► private ─ register ─► named, pinned ─ release ─► cached ─ match ─► pinned again
//!   ▲                                                        │
//!   └──── free ◄─────────────────── evict ◄──────────────────┘
//! ```
//!
//! Every step is a few atomic operations on memory of the block, except for the order of eviction, which has
//! locks ([`crate::lists`]). A match takes no lock at all.

use crate::alloc::{Bits, InUse, Tally, seat};
use crate::arena::ArenaError;
use crate::hash::BlockHash;
use crate::lists::Lists;
use crate::records::{Reclaimed, Records};
use crate::{BLOCKS_MAX, BlockId, Policy, Registered, ResizeError};
use mooncrate_core::Generation;
use mooncrate_lock::Mutex;

#[cfg(test)]
#[path = "pool_tests.rs"]
mod tests;

/// Names that are looked up before the first of them is pinned: their cache misses overlap.
const AHEAD: usize = 8;
/// How often a call looks again for blocks that others have freed meanwhile.
const ROUNDS: u32 = 16;

/// The blocks of one arena.
#[derive(Debug)]
pub struct Pool {
    bits: Bits,
    records: Records,
    lists: Lists,
    /// Named blocks without pins. The lists hold more: a block that was found again stays in its list.
    idle: Tally,
    max: u32,
    /// One thread at a time grows or shrinks.
    resizing: Mutex<()>,
}

/// Not enough blocks are free or can be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{wanted} blocks were asked for; {free} of {total} are free and {cached} could be evicted")]
pub struct Full {
    /// Blocks asked for.
    pub wanted: u32,
    /// Blocks free at the time.
    pub free: u32,
    /// Blocks that nobody uses, kept for their names.
    pub cached: u32,
    /// Blocks there are.
    pub total: u32,
}

/// Why blocks were not taken. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum TakeError {
    /// Not enough blocks.
    #[error(transparent)]
    Full(#[from] Full),
    /// Blocks of another tenant could not be zeroed.
    #[error("blocks of another tenant could not be zeroed: {0}")]
    Arena(#[from] ArenaError),
}

/// Why references to blocks are given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Released {
    /// A request ends that used them.
    Used,
    /// They were loaded for a request that comes later, or runs.
    Loaded,
    /// The caller only looked at them, or was refused.
    Unused,
}

impl Pool {
    /// `total` free blocks, with room for `max` later.
    pub fn new(total: u32, max: u32, policy: Policy) -> Result<Self, ResizeError> {
        let max = max.max(total);
        if total == 0 {
            return Err(ResizeError::Empty);
        }
        if max > BLOCKS_MAX {
            return Err(ResizeError::TooLarge { wanted: max, max: BLOCKS_MAX });
        }
        Ok(Self {
            bits: Bits::new(total, max),
            records: Records::new(max),
            idle: Tally::new(),
            lists: Lists::new(max, policy),
            max,
            resizing: Mutex::new(()),
        })
    }

    /// Fills `table` with private blocks, evicting cached ones if it has to: all of it, or none. `clean` zeroes
    /// blocks that hold bytes of another tenant; if it fails, the blocks go back as they were.
    pub fn take(
        &self,
        tenant: u32,
        table: &mut [BlockId],
        clean: impl FnMut(&[BlockId]) -> Result<(), ArenaError>,
    ) -> Result<(), TakeError> {
        let (seat, wanted) = (seat(), table.len());
        if !self.fill(seat, table, false) {
            let evictable = || self.cached_blocks();
            let again = |seat, thorough| self.fill(seat, table, thorough);
            if !self.bits.settle(wanted, evictable, again) {
                return Err(self.full(wanted).into());
            }
        }
        self.begin(tenant, table, clean)
    }

    /// Fills `table` with blocks, or takes none, by one attempt: it may find too few because others hold blocks that
    /// they will give back. A thorough one evicts blocks although others follow them.
    #[inline]
    fn fill(&self, seat: usize, table: &mut [BlockId], thorough: bool) -> bool {
        let wanted = table.len();
        let _gathering = if wanted > 1 { Some(self.bits.gather(seat, wanted)) } else { None };
        let free = self.bits.take_some(seat, table);
        free == wanted || self.fill_evicting(seat, table, free, thorough)
    }

    #[cold]
    fn full(&self, wanted: usize) -> Full {
        let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
        let (free, cached, total) = (self.free_blocks(), self.cached_blocks(), self.total_blocks());
        Full { wanted, free, cached, total }
    }

    /// The same with blocks in a row, if the hints know such a run; else any blocks.
    pub fn take_run(
        &self,
        tenant: u32,
        table: &mut [BlockId],
        clean: impl FnMut(&[BlockId]) -> Result<(), ArenaError>,
    ) -> Result<(), TakeError> {
        let count = u32::try_from(table.len()).unwrap_or(u32::MAX);
        let run = if count > 0 { self.bits.take_run(seat(), count, false) } else { None };
        let Some(first) = run else { return self.take(tenant, table, clean) };
        for (block, place) in (first.0..).zip(table.iter_mut()) {
            *place = BlockId(block);
        }
        self.begin(tenant, table, clean)
    }

    /// Makes blocks that were taken private ones of a tenant.
    fn begin(
        &self,
        tenant: u32,
        table: &[BlockId],
        mut clean: impl FnMut(&[BlockId]) -> Result<(), ArenaError>,
    ) -> Result<(), TakeError> {
        let mut foreign = 0;
        for block in table {
            self.records.begin(*block);
            foreign += u32::from(self.records.tenant(*block) != tenant);
        }
        if foreign == 0 { Ok(()) } else { self.clean(tenant, table, &mut clean) }
    }

    /// Lets the caller zero the blocks that hold bytes of another tenant, some at a time.
    #[cold]
    fn clean(
        &self,
        tenant: u32,
        table: &[BlockId],
        clean: &mut dyn FnMut(&[BlockId]) -> Result<(), ArenaError>,
    ) -> Result<(), TakeError> {
        let mut foreign = [BlockId::default(); 64];
        let mut rest = table.iter().filter(|block| self.records.tenant(**block) != tenant);
        loop {
            let mut count = 0;
            for (place, block) in foreign.iter_mut().zip(rest.by_ref()) {
                *place = *block;
                count += 1;
            }
            if count == 0 {
                return Ok(());
            }
            if let Err(error) = clean(&foreign[..count]) {
                self.abandon(table);
                return Err(error.into());
            }
            for block in &foreign[..count] {
                self.records.set_tenant(*block, tenant);
            }
        }
    }

    /// Fills the rest of a table, of which the first `filled` blocks are there, with evicted blocks; or gives the
    /// others back.
    #[cold]
    fn fill_evicting(
        &self,
        seat: usize,
        table: &mut [BlockId],
        mut filled: usize,
        thorough: bool,
    ) -> bool {
        // What is free comes first: blocks in pockets of other threads, too.
        if self.bits.empty_pockets(seat) {
            filled += self.bits.take_some(seat, &mut table[filled..]);
        }
        for _ in 0..ROUNDS {
            // Nothing is evicted in vain; a single block cannot be.
            let missing = table.len() - filled;
            if missing == 0 || (missing > 1 && (self.cached_blocks() as usize) < missing) {
                break;
            }
            let before = filled;
            filled += self.evict_into(seat, &mut table[filled..]);
            filled += self.bits.take_some(seat, &mut table[filled..]);
            if filled == before {
                break;
            }
        }
        if filled < table.len() {
            filled += self.bits.take_hidden(seat, &mut table[filled..]);
        }
        let missing = table.len() - filled;
        if thorough && missing > 0 && self.cached_blocks() as usize >= missing {
            filled += self.evict_followed(seat, &mut table[filled..]);
        }
        if filled < table.len() {
            self.bits.give(seat, &table[..filled]);
        }
        filled == table.len()
    }

    /// Ends private blocks.
    pub fn abandon(&self, table: &[BlockId]) {
        for block in table {
            self.records.abandon(*block);
        }
        self.bits.give(seat(), table);
    }

    /// Publishes a private block without a name, so that forks can share it.
    pub fn publish(&self, block: BlockId) {
        self.records.publish(block);
    }

    /// Publishes a private block under a name. `rank` is what a policy by rank goes by.
    pub fn register(&self, block: BlockId, hash: BlockHash, rank: u8) -> Registered {
        self.records.register(block, hash, rank)
    }

    /// The same for several private blocks, each under the name at its place: faster than one after the other.
    /// How many got their names.
    pub fn register_all(&self, blocks: &[BlockId], hashes: &[BlockHash], rank: u8) -> usize {
        assert_eq!(blocks.len(), hashes.len(), "a name for each block");
        let mut named = 0;
        for name in hashes.iter().take(AHEAD) {
            self.records.prefetch(*name);
        }
        for (n, (block, name)) in blocks.iter().zip(hashes).enumerate() {
            if let Some(later) = hashes.get(n + AHEAD) {
                self.records.prefetch(*later);
            }
            named += usize::from(self.register(*block, *name, rank) == Registered::Named);
        }
        named
    }

    /// What a policy by rank goes by from the next release of these blocks on. The caller holds references to them.
    pub fn set_rank(&self, blocks: &[BlockId], rank: u8) {
        for block in blocks {
            self.records.set_rank(*block, rank);
        }
    }

    /// The longest run of names from the first on that have blocks: these are pinned and written to `table`.
    /// Their number.
    pub fn match_prefix(&self, hashes: &[BlockHash], table: &mut [BlockId]) -> usize {
        let (mut matched, mut woken) = (0, 0);
        let chunk = |n: usize| hashes.chunks(AHEAD).nth(n).unwrap_or_default();
        // Three steps, each a cache miss ahead of the next: buckets, records, pins.
        for name in hashes.iter().take(2 * AHEAD) {
            self.records.prefetch(*name);
        }
        let mut next = self.guess(chunk(0));
        'names: for (n, places) in table.chunks_mut(AHEAD).enumerate() {
            let names = chunk(n);
            for name in chunk(n + 2) {
                self.records.prefetch(*name);
            }
            let guesses = std::mem::replace(&mut next, self.guess(chunk(n + 1)));
            for ((name, guess), place) in names.iter().zip(guesses).zip(places) {
                let pinned = guess.and_then(|block| self.records.pin_named(block, *name));
                let Some((block, was_idle)) = pinned.or_else(|| self.records.find(*name)) else {
                    break 'names;
                };
                woken += i64::from(was_idle);
                *place = block;
                matched += 1;
            }
        }
        if woken > 0 {
            self.idle.add(seat(), -woken);
        }
        matched
    }

    /// Blocks that probably have these names.
    fn guess(&self, names: &[BlockHash]) -> [Option<BlockId>; AHEAD] {
        let mut guesses = [None; AHEAD];
        for (guess, name) in guesses.iter_mut().zip(names) {
            *guess = self.records.guess(*name);
        }
        guesses
    }

    /// How many of these names have blocks, from the first on. Pins nothing.
    pub fn count_prefix(&self, hashes: &[BlockHash]) -> usize {
        hashes.iter().take_while(|hash| self.records.is_known(**hash)).count()
    }

    /// One more reference to each of these published blocks, of which the caller holds one.
    pub fn share(&self, blocks: &[BlockId]) {
        for block in blocks {
            assert!(self.records.share(*block), "{block:?} has as many references as fit");
        }
    }

    /// Gives up one reference to each of these published blocks, the last one of the table first: so a chain
    /// is evicted from its end, and what is left of it can be found. The table holds nothing of use after it.
    ///
    /// Each call counts as a request that used these blocks. With [`Policy::Density`] the table must be a chain from its
    /// head: each named block is taken to follow the one before it, and how deep it lies is learned from its place.
    pub fn release(&self, table: &mut [BlockId]) {
        self.release_as(table, Released::Used);
    }

    /// The same for a caller that loaded the blocks, which are a chain from its head, and is no request itself: policies
    /// that go by the last use take it for one, and density learns nothing.
    pub(crate) fn release_loaded(&self, table: &mut [BlockId]) {
        self.release_as(table, Released::Loaded);
    }

    /// The same for a caller that only looked at the blocks, as one that saves them: those that are in an eviction
    /// list keep their places there. The table is blocks in any order.
    pub fn put_back(&self, table: &mut [BlockId]) {
        self.release_as(table, Released::Unused);
    }

    fn release_as(&self, table: &mut [BlockId], released: Released) {
        let seat = seat();
        let mut open = self.lists.open(seat);
        match released {
            Released::Used => self.lists.used(&self.records, table, &mut open),
            Released::Loaded => self.lists.loaded(&self.records, table, &mut open),
            Released::Unused => {}
        }
        let (mut freed, mut idle) = (table.len(), 0);
        for at in (0..table.len()).rev() {
            let block = table[at];
            if let Some(later) = at.checked_sub(AHEAD) {
                self.records.prefetch_block(table[later]);
            }
            // Asked while it is pinned: afterwards the block may be evicted and live another life.
            let named = self.records.named(block);
            let Some(life) = self.records.unpin(block) else { continue };
            if named {
                idle += 1;
                if released == Released::Unused {
                    self.lists.put_back(&self.records, block, &mut open);
                } else {
                    self.lists.keep(&self.records, block, &mut open);
                }
            } else if self.records.reclaim_life(block, life).is_some_and(|ended| ended.usable) {
                // Without a name it was not counted as idle, and is linked to no other block.
                freed -= 1;
                table[freed] = block;
            }
        }
        drop(open);
        if idle > 0 {
            self.idle.add(seat, idle);
        }
        if freed < table.len() {
            self.bits.give(seat, &table[freed..]);
        }
    }

    /// The names of cached blocks in the order in which they would be evicted, at most about `most`. Each call goes
    /// on where the last one ended, and at the end of the order the next one starts over. Pins nothing.
    ///
    /// [`Policy::Density`] has no such order. There the blocks come first that the next evictions will compare, as far
    /// as they are known, each with the blocks before it that would go after it; then all others, in no order.
    pub fn ahead(&self, most: usize, names: &mut Vec<BlockHash>) {
        self.lists.ahead(most, |block| {
            // A block in use may still be in its list. It leaves it when an eviction meets it.
            if self.records.references(block) == 0 {
                names.extend(self.hash(block));
            }
        });
    }

    /// Evicts up to `count` cached blocks; how many were.
    pub fn evict(&self, count: u32) -> u32 {
        let mut freed = [BlockId::default(); 64];
        let mut evicted = 0;
        while evicted < count {
            let most = freed.len().min((count - evicted) as usize);
            let got = self.evict_into(seat(), &mut freed[..most]);
            if got == 0 {
                break;
            }
            self.bits.give(seat(), &freed[..got]);
            evicted += got as u32;
        }
        evicted
    }

    /// Evicts cached blocks into the front of `out`; how many. They belong to the caller, and are not free.
    fn evict_into(&self, seat: usize, out: &mut [BlockId]) -> usize {
        let evicted = self.lists.evict(&self.records, seat, out);
        self.idle.add(seat, -i64::from(evicted.named));
        evicted.blocks
    }

    /// Evicts blocks although others follow them, into the front of `out`; how many. For a call that would be refused:
    /// of the idle blocks that others follow, each is before one in use, or it would have been evicted like any other.
    /// What follows an evicted block cannot be found any more. So this begins next to the blocks in use and goes towards
    /// the heads of their chains, and what is left can be found. It looks at each block of the pool once.
    #[cold]
    fn evict_followed(&self, seat: usize, out: &mut [BlockId]) -> usize {
        let mut evicted = 0;
        let blocks = (0..self.total_blocks()).map(BlockId);
        for used in blocks.filter(|block| self.records.references(*block) > 0) {
            let mut next = self.lists.before(used);
            while evicted < out.len()
                && let Some((block, life)) = next
            {
                next = self.lists.before(block);
                let Some(ended) = self.end(seat, block, life) else { break };
                // Afterwards: as long as others could use it, this would take it out of a list for good.
                self.lists.remove(&self.records, block);
                if ended.usable {
                    out[evicted] = block;
                    evicted += 1;
                }
            }
            if evicted == out.len() {
                break;
            }
        }
        self.lists.count_evicted(evicted);
        evicted
    }

    /// Ends one life of a published block that nobody uses.
    fn end(&self, seat: usize, block: BlockId, life: Generation) -> Option<Reclaimed> {
        let reclaimed = self.records.reclaim_life(block, life)?;
        if reclaimed.named {
            self.idle.add(seat, -1);
        }
        if let Some(before) = self.lists.ended(&self.records, block) {
            self.lists.keep(&self.records, before, &mut self.lists.open(seat));
        }
        Some(reclaimed)
    }

    /// Changes the number of blocks while others are in use. Cached blocks beyond the new end are evicted; if
    /// one there is in use, nothing is changed.
    pub fn resize(&self, total: u32) -> Result<(), ResizeError> {
        self.resize_with(total, || Ok(()))
    }

    /// The same with what has to be done beside a shrink, while the blocks that end are nobody's. If that fails, the
    /// pool is as it was.
    pub fn resize_with<E: From<ResizeError>>(
        &self,
        total: u32,
        shrink: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let _alone = self.resizing.lock();
        if total == 0 {
            return Err(ResizeError::Empty.into());
        }
        if total > self.max {
            return Err(ResizeError::TooLarge { wanted: total, max: self.max }.into());
        }
        let before = self.total_blocks();
        if total >= before {
            self.bits.grow(total);
            return Ok(());
        }
        let ending = (total..before).map(BlockId);
        // Before anything is evicted. A block that gets into use from here on is found below.
        let used = ending.clone().filter(|block| self.records.references(*block) > 0);
        let (blocks, highest) = used.fold((0, None), |(count, _), block| (count + 1, Some(block)));
        if let Some(highest) = highest {
            return Err(ResizeError::InUse { wanted: total, blocks, highest }.into());
        }
        let (mut ended, mut names) = (Vec::new(), Vec::new());
        for block in ending {
            self.lists.remove(&self.records, block);
            let life = self.records.generation(block);
            if let Some(end) = self.end(seat(), block, life).filter(|end| end.usable) {
                ended.push(block);
                names.push(end.name);
            }
        }
        let done = match self.bits.shrink(seat(), total, &ended) {
            Ok(()) => shrink().inspect_err(|_| self.bits.grow_but(seat(), before, &ended)),
            Err(in_use) => {
                let InUse { blocks, highest } = in_use;
                Err(ResizeError::InUse { wanted: total, blocks, highest }.into())
            }
        };
        done.inspect_err(|_| self.restore(&mut ended, &names))
    }

    /// Makes blocks that were ended a moment ago, and that nobody has taken since, cached again: their bytes are
    /// still there.
    #[cold]
    fn restore(&self, blocks: &mut [BlockId], names: &[BlockHash]) {
        for (block, name) in blocks.iter().zip(names) {
            self.records.begin(*block);
            self.records.register(*block, *name, self.records.rank(*block));
        }
        // They are no request: one may have nothing to do with the next.
        self.put_back(blocks);
    }

    /// Blocks that hold nothing.
    pub fn free_blocks(&self) -> u32 {
        self.bits.free()
    }

    /// Blocks that nobody uses, kept for their names; while others work, an estimate.
    pub fn cached_blocks(&self) -> u32 {
        let total = i64::from(self.total_blocks());
        u32::try_from(self.idle.sum().clamp(0, total)).expect("at most the total")
    }

    /// Blocks there are.
    pub fn total_blocks(&self) -> u32 {
        self.bits.total()
    }

    /// Blocks that were evicted so far.
    pub fn evicted_blocks(&self) -> u64 {
        self.lists.evicted()
    }

    /// Sequences that use a block.
    pub fn references(&self, block: BlockId) -> u32 {
        self.records.references(block)
    }

    /// Whether one sequence owns the block and may write into it.
    pub fn is_private(&self, block: BlockId) -> bool {
        self.records.is_private(block)
    }

    /// The name of a block, if it was published under one.
    pub fn hash(&self, block: BlockId) -> Option<BlockHash> {
        Some(self.records.hash(block)).filter(|hash| *hash != BlockHash::NONE)
    }
}
