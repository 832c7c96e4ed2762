//! The blocks of one arena, shared by all sequences: taken, published under names, found again, evicted.
//!
//! ```text
//! take ─► private ─ register ─► named, pinned ─ release ─► cached ─ match ─► pinned again
//!   ▲                                                        │
//!   └──── free ◄─────────────────── evict ◄──────────────────┘
//! ```
//!
//! Every step is a few atomic operations on memory of the block, except for the order of eviction, which has a
//! lock. Released blocks go into the list of the thread that released them (one of a few), so that threads
//! rarely meet; a match takes no lock at all. It leaves the block in its list, and whoever evicts meets a
//! block in use there, drops it from the list, and goes on: its next release puts it back.
//!
//! A block can be in one list at most; which one is in its record, in one byte: 1 + the list, 0 for none, and
//! a bit that says that the block was used since. The list of another thread that is locked just now is not
//! waited for: the bit is set, and whoever evicts puts the block at the young end instead. An entry for a block
//! that lives another life by now does no harm: a reclaim asks the word, not the list.

use crate::alloc::{Bits, Tally, seat};
use crate::arena::ArenaError;
use crate::hash::BlockHash;
use crate::records::Records;
use crate::{BLOCKS_MAX, BlockId, Policy, Registered, ResizeError};
use mooncrate_core::Slot;
use mooncrate_core::evict::{EvictPolicy, Worth};
use mooncrate_lock::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Most lists. Each may need 8 bytes for every block.
const LISTS_MAX: usize = 8;
/// Blocks for each further list: a small pool has one list, and its order is exact.
const BLOCKS_PER_LIST: usize = 4096;
/// Names that are looked up before the first of them is pinned: their cache misses overlap.
const AHEAD: usize = 8;
/// How often a call looks again for blocks that others have freed meanwhile.
const ROUNDS: u32 = 16;
/// How often evictions from a list happen before it is compared with the others.
const LOOK_AROUND: u32 = 32;
/// In the list byte of a block: it was used since its list was told so.
const USED: u8 = 0x80;

type Order = Box<dyn EvictPolicy>;

/// Cached blocks in the order of their eviction.
#[derive(Debug)]
#[repr(align(128))]
struct List {
    policy: Mutex<Order>,
    /// Blocks in it, for those who look without the lock.
    len: AtomicU32,
    evicted: AtomicU64,
    /// Evictions from this list by its own threads.
    turn: AtomicU32,
}

impl List {
    fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed) as usize
    }
}

/// The blocks of one arena.
#[derive(Debug)]
pub struct Pool {
    bits: Bits,
    records: Records,
    lists: Box<[List]>,
    /// Named blocks without pins. The lists hold more: a block that was found again stays in its list.
    idle: Tally,
    max: u32,
    /// One thread at a time grows or shrinks.
    resizing: Mutex<()>,
}

/// The list that a release has locked.
struct Open<'a> {
    /// Where blocks go that are in no list.
    own: usize,
    list: Option<(usize, MutexGuard<'a, Order>)>,
    /// A list that another thread had locked; it is not tried again for each block.
    busy: usize,
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
        let lists = (max as usize / BLOCKS_PER_LIST).clamp(1, LISTS_MAX);
        let list = || List {
            policy: Mutex::new(policy.build()),
            len: AtomicU32::new(0),
            evicted: AtomicU64::new(0),
            turn: AtomicU32::new(0),
        };
        Ok(Self {
            bits: Bits::new(total, max),
            records: Records::new(max),
            idle: Tally::new(),
            lists: (0..lists).map(|_| list()).collect(),
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
        let seat = seat();
        let free = self.bits.take_some(seat, table);
        if free < table.len() {
            self.take_evicting(seat, table, free)?;
        }
        self.begin(tenant, table, clean)
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

    /// Fills the rest of a table, of which the first `filled` blocks are there, with evicted blocks.
    #[cold]
    fn take_evicting(
        &self,
        seat: usize,
        table: &mut [BlockId],
        mut filled: usize,
    ) -> Result<(), Full> {
        for _ in 0..ROUNDS {
            // Nothing is evicted in vain; a single block cannot be.
            let missing = table.len() - filled;
            if missing > 1 && (self.cached_blocks() as usize) < missing {
                break;
            }
            let before = filled;
            filled += self.evict_into(seat, &mut table[filled..]);
            filled += self.bits.take_some(seat, &mut table[filled..]);
            if filled == table.len() {
                return Ok(());
            }
            if filled == before {
                break;
            }
        }
        filled += self.bits.take_hidden(seat, &mut table[filled..]);
        if filled == table.len() {
            return Ok(());
        }
        self.bits.give(seat, &table[..filled]);
        let wanted = u32::try_from(table.len()).unwrap_or(u32::MAX);
        let (free, cached, total) = (self.free_blocks(), self.cached_blocks(), self.total_blocks());
        Err(Full { wanted, free, cached, total })
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

    /// The longest run of names from the first on that have blocks: these are pinned and written to `table`.
    /// Their number.
    pub fn match_prefix(&self, hashes: &[BlockHash], table: &mut [BlockId]) -> usize {
        let (mut matched, mut woken) = (0, 0);
        'names: for (names, places) in hashes.chunks(AHEAD).zip(table.chunks_mut(AHEAD)) {
            let mut seen = [None; AHEAD];
            for name in hashes.iter().skip(matched + AHEAD).take(AHEAD) {
                self.records.prefetch(*name);
            }
            for (seen, name) in seen.iter_mut().zip(names) {
                *seen = self.records.look(*name);
            }
            for ((seen, name), place) in seen.iter().zip(names).zip(places) {
                let pinned = seen.and_then(|(block, generation)| {
                    Some((block, self.records.pin(block, generation)?))
                });
                let found = pinned.or_else(|| self.records.find(*name));
                let Some((block, was_idle)) = found else { break 'names };
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

    /// How many of these names have blocks, from the first on. Pins nothing.
    pub fn count_prefix(&self, hashes: &[BlockHash]) -> usize {
        hashes.iter().take_while(|hash| self.records.look(**hash).is_some()).count()
    }

    /// One more reference to each of these published blocks, of which the caller holds one.
    pub fn share(&self, blocks: &[BlockId]) {
        for block in blocks {
            assert!(self.records.share(*block), "{block:?} has as many references as fit");
        }
    }

    /// Gives up one reference to each of these published blocks, the last one of the table first: so a chain
    /// is evicted from its end, and what is left of it can be found. The table holds nothing of use after it.
    pub fn release(&self, table: &mut [BlockId]) {
        let own = seat() % self.lists.len();
        let mut open = Open { own, list: None, busy: usize::MAX };
        let (mut freed, mut idle) = (table.len(), 0);
        for at in (0..table.len()).rev() {
            let block = table[at];
            // Asked while it is pinned: afterwards the block may be evicted and live another life.
            let named = self.records.named(block);
            if !self.records.unpin(block) {
                continue;
            }
            if named {
                idle += 1;
                self.keep(block, &mut open);
            } else if self.ended(block) {
                freed -= 1;
                table[freed] = block;
            }
        }
        drop(open);
        if idle > 0 {
            self.idle.add(seat(), idle);
        }
        self.bits.give(seat(), &table[freed..]);
    }

    /// Puts a block that nobody uses into an eviction list, or tells its list that it was used.
    fn keep<'a>(&'a self, block: BlockId, open: &mut Open<'a>) {
        let place = self.records.list(block);
        loop {
            let seen = place.load(Ordering::Relaxed);
            let list = if seen & !USED == 0 { open.own } else { usize::from(seen & !USED) - 1 };
            if open.list.as_ref().is_none_or(|(at, _)| *at != list) && open.busy != list {
                // One lock at a time: two threads must not wait for each other's.
                open.list = None;
                let lock = &self.lists[list].policy;
                let got = if list == open.own { Some(lock.lock()) } else { lock.try_lock() };
                open.busy = if got.is_none() { list } else { usize::MAX };
                open.list = got.map(|policy| (list, policy));
            }
            let Some((_, policy)) = open.list.as_mut().filter(|(at, _)| *at == list) else {
                // AcqRel: whoever evicts swaps the byte after this, and then sees that the pin is gone; or it
                // has done so before, and this call sees that the block is in no list.
                if place.fetch_or(USED, Ordering::AcqRel) & !USED != 0 {
                    return;
                }
                continue;
            };
            // From here on the byte changes from none to this list by this exchange, and from this list to
            // none by those who hold the lock.
            let mine = list as u8 + 1;
            if seen & !USED == 0 {
                if place.compare_exchange(seen, mine, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                    policy.insert_as(Slot(block.0), self.worth(block));
                    self.lists[list].len.store(policy.len() as u32, Ordering::Relaxed);
                    return;
                }
            } else if place.load(Ordering::Relaxed) & !USED == mine {
                policy.touch(Slot(block.0));
                return;
            }
        }
    }

    /// What the eviction policy is told of a block.
    fn worth(&self, block: BlockId) -> Worth {
        Worth { key: self.records.hash(block).0[0], rank: self.records.rank(block).into() }
    }

    /// Takes a block out of its eviction list, if it is in one.
    fn unlist(&self, block: BlockId) {
        let place = self.records.list(block);
        let list = place.load(Ordering::Relaxed) & !USED;
        let Some(at) = usize::from(list).checked_sub(1) else { return };
        let mut policy = self.lists[at].policy.lock();
        // Whoever evicts may have been faster.
        if place.load(Ordering::Relaxed) & !USED == list {
            place.swap(0, Ordering::AcqRel);
            policy.remove(Slot(block.0));
            self.lists[at].len.store(policy.len() as u32, Ordering::Relaxed);
        }
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
        let own = self.own_list(seat);
        // The own list is nobody else's as a rule; but lists of idle threads must not grow old. Looking at
        // all of them costs a cache miss each, so it is done now and then.
        let turn = own.turn.load(Ordering::Relaxed).wrapping_add(1);
        own.turn.store(turn, Ordering::Relaxed);
        let looks = turn.is_multiple_of(LOOK_AROUND) || own.len() == 0;
        let mut filled = if looks { 0 } else { self.evict_from(own, out) };
        for _ in 0..=self.lists.len() {
            if filled == out.len() {
                break;
            }
            let longest = self.lists.iter().max_by_key(|list| list.len()).expect("a list");
            let list = if own.len() > longest.len() / 2 { own } else { longest };
            filled += self.evict_from(list, &mut out[filled..]);
        }
        filled
    }

    fn own_list(&self, seat: usize) -> &List {
        &self.lists[seat % self.lists.len()]
    }

    fn evict_from(&self, list: &List, out: &mut [BlockId]) -> usize {
        let mut filled = 0;
        let mut policy = list.policy.lock();
        while filled < out.len() {
            let Some(Slot(victim)) = policy.victim() else { break };
            let block = BlockId(victim);
            let place = self.records.list(block);
            let seen = place.load(Ordering::Relaxed);
            // AcqRel: pairs with those who set the bit in `keep`: either they see that the block is in no
            // list, or this exchange fails. The list part of the byte is ours to change: we hold its lock.
            if seen & USED == 0
                && place.compare_exchange(seen, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            {
                if self.ended(block) {
                    out[filled] = block;
                    filled += 1;
                }
            } else {
                place.fetch_and(!USED, Ordering::AcqRel);
                policy.insert_as(Slot(victim), self.worth(block));
            }
        }
        list.len.store(policy.len() as u32, Ordering::Relaxed);
        list.evicted.fetch_add(filled as u64, Ordering::Relaxed);
        filled
    }

    /// Ends a published block that nobody uses; whether the caller has it now.
    fn ended(&self, block: BlockId) -> bool {
        let Some(reclaimed) = self.records.reclaim(block) else { return false };
        if reclaimed.named {
            self.idle.add(seat(), -1);
        }
        reclaimed.usable
    }

    /// Changes the number of blocks while others are in use. Cached blocks beyond the new end are evicted; if
    /// one there is in use, the arena keeps its size.
    pub fn resize(&self, total: u32) -> Result<(), ResizeError> {
        let _alone = self.resizing.lock();
        if total == 0 {
            return Err(ResizeError::Empty);
        }
        if total > self.max {
            return Err(ResizeError::TooLarge { wanted: total, max: self.max });
        }
        self.bits.grow(total);
        for block in (total..self.total_blocks()).map(BlockId) {
            self.unlist(block);
            if self.ended(block) {
                self.bits.give(seat(), &[block]);
            }
        }
        self.bits.shrink(total).map_err(|in_use| ResizeError::InUse {
            wanted: total,
            blocks: in_use.blocks,
            highest: in_use.highest,
        })
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
        self.lists.iter().map(|list| list.evicted.load(Ordering::Relaxed)).sum()
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
