//! Which cached block is evicted next: up to eight lists, each with a lock.
//!
//! Released blocks go into the list of the thread that released them, so that threads rarely meet. A match
//! takes no lock: it leaves the block in its list, and whoever evicts meets a block in use there, drops it
//! from the list, and goes on: its next release puts it back.
//!
//! A block can be in one list at most; which one is in its record, in one byte: 1 + the list, 0 for none, and
//! a bit that says that the block was used since. Who may change the byte:
//!
//! ```text
//! none ─► list    whoever holds the lock of that list, by an exchange: two threads may try at once
//! list ─► none    whoever holds the lock of that list
//! used            set by anybody whose block is in a list that another thread has locked just now: that
//!                 list is not waited for. Cleared by who evicts, who then puts the block at the young end
//! ```
//!
//! A pool that evicts by density keeps only blocks in its lists that no other block follows ([`crate::chains`]).
//!
//! What must stay true: a cached block is in a list, or the thread that released it is about to put it there, or it
//! is followed by another one, and the thread that ends the last of those is to put it there.
//! An entry for a block that lives another life by now does no harm: a reclaim asks the word, not the list.

use crate::atomic::{Mutex, MutexGuard, Ordering};
use crate::chains::{ByDensity, Chains};
use crate::records::{Reclaimed, Records};
use crate::{BlockId, Policy};
use mooncrate_core::evict::EvictPolicy;
use mooncrate_core::{Generation, Slot};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Most lists. Each may need 8 bytes for every block.
const LISTS_MAX: usize = 8;
/// Blocks for each further list: a small pool has one list, and its order is exact.
const BLOCKS_PER_LIST: usize = 4096;
/// Blocks that are taken out of a list before the first of them is ended: their cache misses overlap.
const AHEAD: usize = 16;
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
    /// Blocks that were evicted from it; changed under the lock.
    evicted: AtomicU64,
    /// Evictions from this list by its own threads.
    turn: AtomicU32,
}

/// The lists of one pool.
#[derive(Debug)]
pub(crate) struct Lists {
    all: Box<[List]>,
    /// Of a pool that evicts by density.
    chains: Option<Arc<Chains>>,
}

/// What an eviction did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Evicted {
    /// Blocks that belong to the caller now.
    pub(crate) blocks: usize,
    /// Blocks that lost a name, those included that can never be used again.
    pub(crate) named: u32,
}

/// A list that is locked.
#[derive(Debug)]
struct Locked<'a> {
    at: usize,
    list: &'a List,
    policy: MutexGuard<'a, Order>,
}

impl Locked<'_> {
    /// Whether a list byte names this list.
    fn names(&self, byte: u8) -> bool {
        usize::from(byte & !USED) == self.at + 1
    }
}

impl Locked<'_> {
    /// Puts a block into this list, unless it is in one.
    fn enter(&mut self, records: &Records, block: BlockId) {
        let (place, mine) = (records.list(block), self.at as u8 + 1);
        loop {
            let seen = place.load(Ordering::Relaxed);
            if self.names(seen) {
                return;
            }
            // Both as in [`Lists::enter`].
            if seen & !USED != 0 {
                if place.fetch_or(USED, Ordering::AcqRel) & !USED != 0 {
                    return;
                }
            } else if place
                .compare_exchange(seen, mine, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
            {
                self.policy.insert_as(Slot(block.0), records.rank(block).into());
                return;
            }
        }
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.list.len.store(self.policy.len() as u32, Ordering::Relaxed);
    }
}

/// The list that a release has locked.
#[derive(Debug)]
pub(crate) struct Open<'a> {
    /// Where blocks go that are in no list.
    own: usize,
    list: Option<Locked<'a>>,
    /// A list that another thread had locked; it is not tried again for each block.
    busy: usize,
}

impl Lists {
    /// Empty lists for up to `blocks` blocks.
    pub(crate) fn new(blocks: u32, policy: Policy) -> Self {
        Self::with((blocks as usize / BLOCKS_PER_LIST).clamp(1, LISTS_MAX), blocks, policy)
    }

    /// So many empty lists.
    pub(crate) fn with(lists: usize, blocks: u32, policy: Policy) -> Self {
        let chains = (policy == Policy::Density).then(|| Arc::new(Chains::new(blocks)));
        let order = |seed: usize| match &chains {
            Some(chains) => Box::new(ByDensity::new(Arc::clone(chains), seed as u64)),
            None => policy.build().expect("all but density are built from nothing"),
        };
        let list = |seed| List {
            policy: Mutex::new(order(seed)),
            len: AtomicU32::new(0),
            evicted: AtomicU64::new(0),
            turn: AtomicU32::new(0),
        };
        Self { all: (1..=lists).map(list).collect(), chains }
    }

    /// A request ends that used these published blocks, each behind the one before it, and still holds them.
    pub(crate) fn used<'a>(&'a self, records: &Records, table: &[BlockId], open: &mut Open<'a>) {
        if let Some(chains) = &self.chains {
            chains.used(records, table, |block| self.enter(records, block, open));
        }
    }

    /// The same for a caller that is no request, as one that has loaded the blocks for one.
    pub(crate) fn loaded<'a>(&'a self, records: &Records, table: &[BlockId], open: &mut Open<'a>) {
        if let Some(chains) = &self.chains {
            chains.loaded(records, table, |block| self.enter(records, block, open));
        }
    }

    /// The block that this one follows, and the life of it, where the policy knows.
    pub(crate) fn before(&self, block: BlockId) -> Option<(BlockId, Generation)> {
        self.chains.as_ref()?.before(block)
    }

    /// Begins a release by a thread at `seat`. Nothing is locked before the first block.
    pub(crate) fn open(&self, seat: usize) -> Open<'_> {
        Open { own: seat % self.all.len(), list: None, busy: usize::MAX }
    }

    /// Puts a block that nobody uses into a list, or tells its list that it was used.
    #[inline]
    pub(crate) fn keep<'a>(&'a self, records: &Records, block: BlockId, open: &mut Open<'a>) {
        if self.chains.as_ref().is_none_or(|chains| !chains.is_still_followed(block)) {
            self.enter(records, block, open);
        }
    }

    fn enter<'a>(&'a self, records: &Records, block: BlockId, open: &mut Open<'a>) {
        let place = records.list(block);
        loop {
            let seen = place.load(Ordering::Relaxed);
            if let Some(locked) = open.list.as_mut().filter(|locked| locked.names(seen)) {
                // It stays there while we hold the lock.
                locked.policy.touch_as(Slot(block.0), records.rank(block).into());
                return;
            }
            let list = if seen & !USED == 0 { open.own } else { usize::from(seen & !USED) - 1 };
            if open.list.as_ref().is_none_or(|locked| locked.at != list) && open.busy != list {
                self.change(open, list);
            }
            let Some(locked) = open.list.as_mut().filter(|locked| locked.at == list) else {
                // AcqRel: whoever evicts swaps the byte after this, and then sees that the pin is gone; or it
                // has done so before, and this call sees that the block is in no list.
                if place.fetch_or(USED, Ordering::AcqRel) & !USED != 0 {
                    return;
                }
                continue;
            };
            let mine = list as u8 + 1;
            // A block that was in the list when it was not locked yet is looked at again.
            if seen & !USED == 0
                && place.compare_exchange(seen, mine, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            {
                locked.policy.insert_as(Slot(block.0), records.rank(block).into());
                return;
            }
        }
    }

    /// Leaves a block that nobody uses where it is in its list, and puts one that is in none into one: for those
    /// who only looked at it.
    pub(crate) fn put_back<'a>(&'a self, records: &Records, block: BlockId, open: &mut Open<'a>) {
        let place = records.list(block);
        loop {
            let seen = place.load(Ordering::Relaxed) & !USED;
            let Some(at) = usize::from(seen).checked_sub(1) else {
                return self.keep(records, block, open);
            };
            if open.list.as_ref().is_none_or(|locked| locked.at != at) {
                // One lock at a time, as in `change`; this one is waited for.
                open.list = None;
                open.list = Some(self.lock(at));
            }
            // Whoever evicts from this list does so under its lock: it took the block out before, and that is
            // seen here; or it comes later, and sees that nobody uses the block.
            if place.load(Ordering::Relaxed) & !USED == seen {
                return;
            }
        }
    }

    /// Tells of blocks in the order of their eviction, at most about `most`; by density, of the worst ones that are
    /// known and then of the others. Each call goes on where the last one ended.
    pub(crate) fn ahead(&self, most: usize, mut tell: impl FnMut(BlockId)) {
        let steps = most.div_ceil(self.all.len());
        for list in &self.all {
            let mut policy = list.policy.lock();
            for _ in 0..steps {
                let Some(Slot(slot)) = policy.ahead() else { break };
                tell(BlockId(slot));
            }
        }
    }

    /// Locks another list for a release, unless that one is another thread's and locked.
    fn change<'a>(&'a self, open: &mut Open<'a>, at: usize) {
        // One lock at a time: two threads must not wait for each other's.
        open.list = None;
        let list = &self.all[at];
        let policy = if at == open.own { Some(list.policy.lock()) } else { list.policy.try_lock() };
        open.busy = if policy.is_none() { at } else { usize::MAX };
        open.list = policy.map(|policy| Locked { at, list, policy });
    }

    fn lock(&self, at: usize) -> Locked<'_> {
        let list = &self.all[at];
        Locked { at, list, policy: list.policy.lock() }
    }

    /// Takes a block out of its list, if it is in one.
    pub(crate) fn remove(&self, records: &Records, block: BlockId) {
        let place = records.list(block);
        let list = place.load(Ordering::Relaxed) & !USED;
        let Some(at) = usize::from(list).checked_sub(1) else { return };
        let mut locked = self.lock(at);
        // Whoever evicts may have been faster.
        if place.load(Ordering::Relaxed) & !USED == list {
            place.swap(0, Ordering::AcqRel);
            locked.policy.remove(Slot(block.0));
        }
    }

    /// Evicts cached blocks into the front of `out`, for a thread at `seat`. They belong to the caller, and
    /// are not free.
    pub(crate) fn evict(&self, records: &Records, seat: usize, out: &mut [BlockId]) -> Evicted {
        let own = seat % self.all.len();
        // The own list is nobody else's as a rule; but lists of idle threads must not grow old. Looking at
        // all of them costs a cache miss each, so it is done now and then.
        let turn = self.all[own].turn.load(Ordering::Relaxed).wrapping_add(1);
        self.all[own].turn.store(turn, Ordering::Relaxed);
        let looks = turn.is_multiple_of(LOOK_AROUND) || self.len(own) == 0;
        let mut evicted = Evicted::default();
        if !looks {
            self.evict_from(records, own, out, &mut evicted);
        }
        for _ in 0..=self.all.len() {
            if evicted.blocks == out.len() {
                break;
            }
            let longest = (0..self.all.len()).max_by_key(|at| self.len(*at)).expect("a list");
            let at = if self.len(own) > self.len(longest) / 2 { own } else { longest };
            self.evict_from(records, at, out, &mut evicted);
        }
        evicted
    }

    /// Evicts from one list into the part of `out` that is not filled yet.
    pub(crate) fn evict_from(
        &self,
        records: &Records,
        at: usize,
        out: &mut [BlockId],
        evicted: &mut Evicted,
    ) {
        let mut locked = self.lock(at);
        let (before, mut victims) = (evicted.blocks, [Slot(0); AHEAD]);
        while evicted.blocks < out.len() {
            let most = (out.len() - evicted.blocks).min(AHEAD);
            let got = locked.policy.victims(&mut victims[..most]);
            if got == 0 {
                break;
            }
            let victims = victims[..got].iter().map(|slot| BlockId(slot.0));
            for block in victims.clone().filter(|_| got > 1) {
                records.prefetch_block(block);
            }
            for block in victims.clone().filter(|_| got > 1) {
                records.prefetch_entry(block);
            }
            for block in victims {
                if let Some(reclaimed) = self.end(records, block, &mut locked) {
                    evicted.named += u32::from(reclaimed.named);
                    if reclaimed.usable {
                        out[evicted.blocks] = block;
                        evicted.blocks += 1;
                    }
                }
            }
        }
        let count = &locked.list.evicted;
        let more = (evicted.blocks - before) as u64;
        count.store(count.load(Ordering::Relaxed) + more, Ordering::Relaxed);
    }

    /// Ends a block that was taken out of a list which is still locked. A block that was used since goes to the
    /// young end instead; one that is in use, or followed by another, is in no list afterwards.
    fn end(&self, records: &Records, block: BlockId, locked: &mut Locked<'_>) -> Option<Reclaimed> {
        let place = records.list(block);
        let seen = place.load(Ordering::Relaxed);
        if seen & USED == 0 {
            let followed = self.chains.as_ref().is_some_and(|chains| chains.is_followed(block));
            if !followed && let Some(reclaimed) = records.reclaim(block) {
                // A plain store: while we hold the lock others can only set the bit, and what they say was used
                // has ended.
                place.store(0, Ordering::Relaxed);
                if let Some(before) = self.ended(records, block) {
                    locked.enter(records, before);
                }
                return Some(reclaimed);
            }
            // AcqRel: pairs with those who set the bit in `enter`: either they see that the block is in no list,
            // or this exchange fails.
            if place.compare_exchange(seen, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return None;
            }
        }
        place.fetch_and(!USED, Ordering::AcqRel);
        locked.policy.insert_as(Slot(block.0), records.rank(block).into());
        None
    }

    /// The caller has ended a block. The one before it, if that has to enter a list now.
    pub(crate) fn ended(&self, records: &Records, block: BlockId) -> Option<BlockId> {
        self.chains.as_ref()?.ended(records, block)
    }

    /// So many blocks were evicted that were in no list.
    pub(crate) fn count_evicted(&self, blocks: usize) {
        let locked = self.lock(0);
        let count = &locked.list.evicted;
        count.store(count.load(Ordering::Relaxed) + blocks as u64, Ordering::Relaxed);
    }

    fn len(&self, at: usize) -> usize {
        self.all[at].len.load(Ordering::Relaxed) as usize
    }

    /// Blocks that were evicted so far.
    pub(crate) fn evicted(&self) -> u64 {
        self.all.iter().map(|list| list.evicted.load(Ordering::Relaxed)).sum()
    }

    /// Requests that ended, where the policy counts them.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn requests(&self) -> u64 {
        self.chains.as_ref().map_or(0, |chains| chains.requests())
    }
}
