//! The free blocks of an arena as bits: taken and given back without a lock, singly, in batches and in
//! contiguous runs.
//!
//! ```text
//! hints   8                       one byte per node: no window of 2^h free blocks below, for any h >= hint
//!         7           7           (a window is aligned to its size; 7 = the whole word is free)
//!         7     2     7     0
//! words   1…1   0110  1…1   0…0   one bit per block: 1 = free
//! ```
//!
//! The words are the truth. A block is claimed by clearing its bit with one `fetch_and`: whoever saw the bit
//! set owns the block, so there is no ABA and no lost block. The hints only say where to look: each is an
//! upper bound for what lies below it. Giving blocks back raises the hints that are too low; taking blocks
//! leaves them too high, and a search that finds nothing where a hint promised something lowers it. So a
//! batch that is taken and given back again writes no hint at all, and each step of a search that leads
//! nowhere is paid for by an earlier claim.
//!
//! Lowering a hint and raising it can race, and the hint may then stay too low. Nothing depends on it: before
//! a call answers that there is no room, it scans the words.
//!
//! Blocks that were given back one at a time are in the [pockets](super::pockets) of the threads that did so;
//! they are free, though their bits are not set.
//!
//! **A refusal is true** (B8). A call takes all of its blocks or none, and so holds some for a moment that it gives back
//! if there are too few. Meanwhile a call that needs fewer could find none. So a call for several blocks announces how
//! many it may hold, in a counter of its seat, before it takes the first, and a call that found too few is
//! [settled](Bits::settle): one at a time, it tries again until nobody held blocks in that way while it looked. Only
//! calls that are about to be refused wait for each other. They share a seat for that time, so that none takes its own
//! announcements for those of another call.
//!
//! Counters are kept per seat ([`super::seats`]): who takes blocks writes only memory of its own.

use super::pockets::Pockets;
use super::seats::{PARTS, SETTLING, Tally};
use super::word::{WHOLE, WORD, masks, of_word, order_hint, windows};
use crate::BlockId;
use crate::atomic::{AtomicU8, AtomicU32, AtomicU64, Mutex, Ordering, fence, yield_now};
use std::time::Duration;

/// How often a contiguous run is claimed where a hint promises it, before the words are scanned.
const TRIES: u32 = 64;

/// How often a call that is about to be refused looks again while others may give blocks back: each of the others can
/// be in the way once, and then waits for this call.
const SETTLES: u32 = if cfg!(loom) { 4 } else { 1256 };
/// After so many looks it sleeps between two: the other call has lost its core, and comes back when the system gives
/// it one. A thousand sleeps take a second at least.
const AWAKE: u32 = 256;
const SLEEP: Duration = Duration::from_millis(1);
/// Of so many looks one is thorough while others are in the way all the time.
const THOROUGH: u32 = 64;

/// The word that the last batch of a seat came from. On cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Home(AtomicU32);

/// The set of free blocks.
#[derive(Debug)]
pub(crate) struct Bits {
    words: Box<[AtomicU64]>,
    /// A binary tree: the root at 1, the children of `n` at `2n` and `2n + 1`, word `w` at `leaves + w`.
    hints: Box<[AtomicU8]>,
    leaves: usize,
    /// Blocks there are; more can come, up to the bits of the words.
    total: AtomicU32,
    /// Where each seat looks first.
    homes: Box<[Home]>,
    /// Single blocks that were given back.
    pockets: Pockets,
    /// Blocks taken minus blocks given back.
    taken: Tally,
    /// Blocks that calls have announced which may give them back, and those of such calls that are over. Both only
    /// grow, so that a reader sees whether one was there between two looks.
    began: Tally,
    ended: Tally,
    /// Held by the call that is being settled.
    settling: Mutex<()>,
}

/// A call that may give back what it takes, until this is dropped.
#[derive(Debug)]
pub(crate) struct Gathering<'a> {
    bits: &'a Bits,
    seat: usize,
    blocks: i64,
}

impl Drop for Gathering<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: who reads that this call is over also sees the blocks that it gave back.
        fence(Ordering::Release);
        self.bits.ended.add(self.seat, self.blocks);
    }
}

/// Blocks that stand in the way of a smaller arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InUse {
    pub(crate) blocks: u32,
    pub(crate) highest: BlockId,
}

impl Bits {
    /// All of `total` blocks are free; there can be `max` later.
    pub(crate) fn new(total: u32, max: u32) -> Self {
        let count = max.max(total).div_ceil(WORD).max(1) as usize;
        let leaves = count.next_power_of_two();
        let bits = Self {
            words: (0..count).map(|_| AtomicU64::new(0)).collect(),
            hints: (0..2 * leaves).map(|_| AtomicU8::new(0)).collect(),
            leaves,
            total: AtomicU32::new(0),
            homes: (0..PARTS).map(|seat| Home(AtomicU32::new(first_home(seat, count)))).collect(),
            pockets: Pockets::new(),
            taken: Tally::new(),
            began: Tally::new(),
            ended: Tally::new(),
            settling: Mutex::new(()),
        };
        bits.grow(total);
        bits
    }

    /// Blocks there are, free or not.
    pub(crate) fn total(&self) -> u32 {
        // Acquire: pairs with the Release in `grow` and `shrink`.
        self.total.load(Ordering::Acquire)
    }

    /// Blocks that nobody has taken. While others take and give it is an estimate: blocks that one thread takes and
    /// another gives back between two reads below are counted at one of them only.
    pub(crate) fn free(&self) -> u32 {
        let total = i64::from(self.total());
        u32::try_from((total - self.taken.sum()).clamp(0, total)).expect("at most the total")
    }

    /// Sets the bits of the blocks in pockets; whether there were any. For calls that would otherwise fail,
    /// evict, or not see them.
    pub(crate) fn empty_pockets(&self, seat: usize) -> bool {
        // A block on its way is in no pocket, and its bit is not set.
        let _gathering = self.gather(seat, 1);
        let mut any = false;
        for block in self.pockets.drain() {
            self.release(&[block]);
            any = true;
        }
        any
    }

    /// Announces a call at `seat` that takes so many blocks and may give them back.
    #[inline]
    pub(crate) fn gather(&self, seat: usize, blocks: usize) -> Gathering<'_> {
        let blocks = signed(blocks);
        // Ordered before the claims of this call by their Release.
        self.began.add(seat, blocks);
        Gathering { bits: self, seat, blocks }
    }

    /// Decides about a call for `wanted` blocks that found too few: whether it has got them after all. `attempt` takes
    /// all of them or none, by the seat that it is given. It may spare blocks that are of use to others until it is told
    /// to be thorough. `evictable` is how many could be evicted.
    ///
    /// A refusal is true: while the last attempt looked, no other call held blocks that it gave back later. Beyond
    /// [`SETTLES`] attempts it may be wrong.
    #[cold]
    pub(crate) fn settle(
        &self,
        wanted: usize,
        evictable: impl Fn() -> u32,
        mut attempt: impl FnMut(usize, bool) -> bool,
    ) -> bool {
        let wanted = signed(wanted);
        let _alone = self.settling.lock();
        let mut thorough = false;
        for look in 0..SETTLES {
            // In this order: a call that began and ended in between counts as one that is there.
            let ended = self.ended.sum_of_others();
            fence(Ordering::Acquire);
            let began = self.began.sum_of_others();
            let room = || i64::from(self.free()) + i64::from(evictable());
            // A large request that cannot succeed takes nothing. The sum may be too low for a moment.
            let most = || room() + began - ended;
            if wanted > i64::from(WORD) && (0..3).all(|_| most() < wanted) {
                return false;
            }
            if attempt(SETTLING, thorough) {
                return true;
            }
            // Acquire: pairs with the Release of claims: who took blocks that were not found had announced it.
            fence(Ordering::Acquire);
            let alone = ended == began && self.began.sum_of_others() == began;
            if alone && i64::from(self.free()) < wanted {
                if thorough || room() < wanted {
                    return false;
                }
                thorough = true;
                continue;
            }
            thorough = look % THOROUGH == THOROUGH - 1;
            if look < AWAKE { yield_now() } else { std::thread::sleep(SLEEP) }
        }
        false
    }

    /// Blocks that calls have announced so far.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn announced(&self) -> i64 {
        self.began.sum()
    }

    /// Whether the bit of the block is set; see [`Bits::empty_pockets`].
    pub(crate) fn is_free(&self, block: BlockId) -> bool {
        let word = self.words.get((block.0 / WORD) as usize);
        word.is_some_and(|word| word.load(Ordering::Relaxed) >> (block.0 % WORD) & 1 == 1)
    }

    /// Fills `out` with blocks, or takes none and answers false.
    #[inline]
    pub(crate) fn take(&self, seat: usize, out: &mut [BlockId]) -> bool {
        let wanted = out.len();
        self.fill(seat, out) || self.settle(wanted, || 0, |seat, _| self.fill(seat, out))
    }

    /// The same by one attempt: it may find too few because others hold blocks that they will give back.
    #[inline]
    fn fill(&self, seat: usize, out: &mut [BlockId]) -> bool {
        let _gathering = if out.len() > 1 { Some(self.gather(seat, out.len())) } else { None };
        let filled = self.take_some(seat, out);
        filled == out.len() || self.fill_rest(seat, out, filled)
    }

    /// The rest of [`Bits::fill`] where the hints did not find enough.
    #[cold]
    fn fill_rest(&self, seat: usize, out: &mut [BlockId], mut filled: usize) -> bool {
        filled += self.take_hidden(seat, &mut out[filled..]);
        if filled < out.len() {
            self.give(seat, &out[..filled]);
        }
        filled == out.len()
    }

    /// Fills the front of `out` with blocks where the hints say that some are free; how many.
    #[inline]
    pub(crate) fn take_some(&self, seat: usize, out: &mut [BlockId]) -> usize {
        if let [place] = out
            && let Some(block) = self.pockets.take(seat)
        {
            *place = block;
            self.taken.add(seat, 1);
            return 1;
        }
        self.take_bits(seat, out)
    }

    fn take_bits(&self, seat: usize, out: &mut [BlockId]) -> usize {
        let home = &self.homes[seat].0;
        let at = home.load(Ordering::Relaxed) as usize;
        let mut filled = self.take_from(at, out);
        if filled < out.len() {
            let first = filled == 0;
            let mut at = at;
            while filled < out.len() {
                let Some(next) = self.search(at, 1, 0) else { break };
                at = next;
                let before = filled;
                filled += self.take_from(at, &mut out[filled..]);
                // The next batch begins where this one did: what is freed meanwhile is used again first,
                // while the caches know it.
                if first && before == 0 && filled > 0 {
                    home.store(at as u32, Ordering::Relaxed);
                }
            }
        }
        if filled > 0 {
            self.taken.add(seat, signed(filled));
        }
        filled
    }

    /// The same in pockets and where the hints are wrong: looks at every word. For calls that would otherwise
    /// fail.
    #[cold]
    pub(crate) fn take_hidden(&self, seat: usize, out: &mut [BlockId]) -> usize {
        self.empty_pockets(seat);
        let mut filled = 0;
        for word in 0..self.words.len() {
            filled += self.take_from(word, &mut out[filled..]);
            if filled == out.len() {
                break;
            }
        }
        self.taken.add(seat, signed(filled));
        filled
    }

    /// Takes `count` blocks in a row; the first of them. Without `thorough` only where a hint promises an
    /// aligned window; with it a run is found wherever it begins, at the price of a scan over all words
    /// before the answer is that there is none.
    pub(crate) fn take_run(&self, seat: usize, count: u32, thorough: bool) -> Option<BlockId> {
        // Where another call takes a block of it, the part that was claimed is given back.
        let _gathering = self.gather(seat, count as usize);
        let order = count.max(1).next_power_of_two().trailing_zeros();
        let height = order.saturating_sub(u32::from(WHOLE) - 1);
        let home = self.homes[seat].0.load(Ordering::Relaxed) as usize;
        let mut found = None;
        for _ in 0..TRIES {
            let Some(word) = self.search(home, order as u8 + 1, height) else { break };
            let first = if height > 0 {
                word as u32 * WORD
            } else {
                let windows = windows(self.words[word].load(Ordering::Relaxed), order);
                if windows == 0 {
                    continue;
                }
                word as u32 * WORD + windows.trailing_zeros()
            };
            match self.claim(first, count) {
                Ok(()) => {
                    found = Some(BlockId(first));
                    break;
                }
                Err(taken) => self.lower_above(taken, height),
            }
        }
        let scanned = || {
            if !thorough {
                return None;
            }
            self.empty_pockets(seat);
            self.scan(count)
        };
        let found = found.or_else(scanned)?;
        self.taken.add(seat, i64::from(count));
        Some(found)
    }

    /// Takes blocks back. The caller owned each of them.
    #[inline]
    pub(crate) fn give(&self, seat: usize, blocks: &[BlockId]) {
        match blocks {
            [block] if self.pockets.put(seat, *block) => {}
            _ => self.release(blocks),
        }
        self.taken.add(seat, -signed(blocks.len()));
    }

    /// Takes a contiguous run back. The caller owned all of it.
    pub(crate) fn give_run(&self, seat: usize, first: BlockId, count: u32) {
        if count == 1 {
            return self.give(seat, &[first]);
        }
        self.release_run(first.0, count);
        self.taken.add(seat, -i64::from(count));
    }

    /// Adds blocks, up to `total` in all. One thread at a time grows or shrinks.
    pub(crate) fn grow(&self, total: u32) {
        self.grow_but(0, total, &[]);
    }

    /// The same, but the blocks of `own`, in ascending order, are the caller's.
    pub(crate) fn grow_but(&self, seat: usize, total: u32, own: &[BlockId]) {
        let before = self.total();
        if total <= before {
            return;
        }
        if !own.is_empty() {
            self.taken.add(seat, signed(own.len()));
        }
        // The count comes first: a thread that takes one of the new blocks must not see fewer blocks
        // in all than are taken. Release: pairs with the Acquire in `total`.
        self.total.store(total, Ordering::Release);
        let mut own = own.iter().peekable();
        for (word, mask) in masks(before, total - before) {
            self.put_back(word as usize, mask & !of_word(&mut own, word));
        }
    }

    /// Gives up the blocks from `total` on, if all of them are free or among `own`, which the caller has taken, in
    /// ascending order. One thread at a time grows or shrinks.
    pub(crate) fn shrink(&self, seat: usize, total: u32, own: &[BlockId]) -> Result<(), InUse> {
        let owned = signed(own.len());
        self.empty_pockets(seat);
        let before = self.total();
        let ending = before.saturating_sub(total);
        let _gathering = self.gather(seat, ending as usize);
        let mut kept: Vec<(u32, u64)> = Vec::new();
        let mut in_use = InUse { blocks: 0, highest: BlockId(total) };
        let mut own = own.iter().peekable();
        for (word, mask) in masks(total, ending) {
            let have = of_word(&mut own, word);
            // Acquire: pairs with the Release in `put_back`: who owned the block is done with it. Release: as in
            // `take_from`.
            let free = self.words[word as usize].fetch_and(!mask, Ordering::AcqRel) & mask;
            kept.push((word, free));
            if free | have != mask {
                let missing = mask & !free & !have;
                in_use.blocks += missing.count_ones();
                in_use.highest = BlockId(word * WORD + (WORD - 1 - missing.leading_zeros()));
            }
        }
        if in_use.blocks > 0 {
            for (word, free) in kept {
                self.put_back(word as usize, free);
            }
            return Err(in_use);
        }
        self.total.store(total.min(before), Ordering::Release);
        self.taken.add(seat, -owned);
        Ok(())
    }

    /// Blocks of the longest run of free blocks. Reads all words.
    pub(crate) fn largest_run(&self, seat: usize) -> u32 {
        self.empty_pockets(seat);
        let (mut longest, mut run) = (0, 0);
        for word in &self.words {
            let mut bits = word.load(Ordering::Relaxed);
            if bits == u64::MAX {
                run += WORD;
                continue;
            }
            // Runs inside the word, from the low end.
            let mut left = WORD;
            while left > 0 {
                let ones = bits.trailing_ones().min(left);
                run += ones;
                if ones < left {
                    longest = longest.max(run);
                    run = 0;
                }
                bits = bits.checked_shr(ones).unwrap_or(0);
                left -= ones;
                let zeros = bits.trailing_zeros().min(left);
                bits = bits.checked_shr(zeros).unwrap_or(0);
                left -= zeros;
            }
        }
        longest.max(run)
    }

    /// Takes blocks of one word; how many.
    fn take_from(&self, at: usize, out: &mut [BlockId]) -> usize {
        let word = &self.words[at];
        let mut filled = 0;
        let mut seen = word.load(Ordering::Relaxed);
        while seen != 0 && filled < out.len() {
            let mut rest = seen;
            for _ in 0..(out.len() - filled).min(WORD as usize) {
                rest &= rest.wrapping_sub(1);
            }
            let wanted = seen ^ rest;
            // Acquire: pairs with the Release in `put_back`: who owned the blocks is done with them. Release: who
            // sees that they are taken sees that this call was announced (`gather`).
            seen = word.fetch_and(!wanted, Ordering::AcqRel);
            let mut got = seen & wanted;
            while got != 0 {
                out[filled] = BlockId(at as u32 * WORD + got.trailing_zeros());
                got &= got - 1;
                filled += 1;
            }
            seen &= !wanted;
        }
        filled
    }

    /// Claims a run, or nothing: then the word in which a block was taken.
    fn claim(&self, first: u32, count: u32) -> Result<(), usize> {
        for (word, mask) in masks(first, count) {
            // AcqRel: as in `take_from`.
            let got = self.words[word as usize].fetch_and(!mask, Ordering::AcqRel) & mask;
            if got != mask {
                self.put_back(word as usize, got);
                self.release_run(first, (word * WORD).saturating_sub(first));
                return Err(word as usize);
            }
        }
        Ok(())
    }

    /// Claims the first run of `count` blocks, wherever it begins; its first block.
    fn scan(&self, count: u32) -> Option<BlockId> {
        let (total, mut first, mut run) = (self.total(), 0, 0);
        let mut at = 0;
        while at < total {
            let word = self.words[(at / WORD) as usize].load(Ordering::Relaxed) >> (at % WORD);
            let ones = word.trailing_ones().min(WORD - at % WORD);
            if ones == 0 {
                run = 0;
                // To the next free block of this word, or to the next word.
                at += word.trailing_zeros().min(WORD - at % WORD);
                first = at;
                continue;
            }
            run += ones;
            at += ones;
            if run >= count {
                if self.claim(first, count).is_ok() {
                    return Some(BlockId(first));
                }
                // Somebody took a block of it: look again from the next one on.
                first += 1;
                at = first;
                run = 0;
            } else if at % WORD != 0 {
                run = 0;
                first = at;
            }
        }
        None
    }

    fn release(&self, blocks: &[BlockId]) {
        let mut rest = blocks.iter().peekable();
        while let Some(block) = rest.next() {
            let word = block.0 / WORD;
            let mut mask = 1 << (block.0 % WORD);
            while let Some(next) = rest.next_if(|next| next.0 / WORD == word) {
                mask |= 1 << (next.0 % WORD);
            }
            self.put_back(word as usize, mask);
        }
    }

    fn release_run(&self, first: u32, count: u32) {
        for (word, mask) in masks(first, count) {
            self.put_back(word as usize, mask);
        }
    }

    #[inline]
    fn put_back(&self, word: usize, mask: u64) {
        // Release: pairs with the Acquire of whoever takes these blocks next.
        let before = self.words[word].fetch_or(mask, Ordering::Release);
        assert!(before & mask == 0, "blocks {:#x} of word {word} are free already", before & mask);
        if self.hints[self.leaves + word].load(Ordering::Relaxed) < WHOLE {
            self.raise(word, order_hint(before | mask));
        }
    }

    /// Raises the hints above a word that promises more than they say.
    fn raise(&self, word: usize, mut promise: u8) {
        let mut node = self.leaves + word;
        let mut height = 0;
        while self.hints[node].load(Ordering::Relaxed) < promise {
            self.hints[node].fetch_max(promise, Ordering::AcqRel);
            if node == 1 {
                return;
            }
            promise = self.promise(node / 2, height + 1);
            node /= 2;
            height += 1;
        }
    }

    /// The first word of a subtree of `height` whose hint is at least `need`, looked for from the word
    /// after `at` on and then from the start.
    fn search(&self, at: usize, need: u8, height: u32) -> Option<usize> {
        if self.hints[1].load(Ordering::Relaxed) < need {
            return None;
        }
        let mut node = (self.leaves + at) >> height;
        while node > 1 {
            if node.is_multiple_of(2)
                && self.hints[node + 1].load(Ordering::Relaxed) >= need
                && let Some(word) = self.descend(node + 1, need, height)
            {
                return Some(word);
            }
            node /= 2;
        }
        self.descend(1, need, height)
    }

    /// The same below `top`. Hints on the way that promise too much are lowered.
    fn descend(&self, top: usize, need: u8, height: u32) -> Option<usize> {
        let goal = self.leaves >> height;
        if goal == 0 {
            return None;
        }
        let mut node = top;
        loop {
            let kept = if node >= goal {
                let word = (node << height) - self.leaves;
                if word < self.words.len() && self.promise(node, height) >= need {
                    return Some(word);
                }
                None
            } else {
                let child = [2 * node, 2 * node + 1];
                child.into_iter().find(|at| self.hints[*at].load(Ordering::Relaxed) >= need)
            };
            if let Some(child) = kept {
                node = child;
                continue;
            }
            self.lower(node);
            if node == top {
                return None;
            }
            node /= 2;
        }
    }

    /// What a node can promise by what lies below it.
    fn promise(&self, node: usize, height: u32) -> u8 {
        if node >= self.leaves {
            let word = self.words.get(node - self.leaves);
            return word.map_or(0, |word| order_hint(word.load(Ordering::Relaxed)));
        }
        let left = self.hints[2 * node].load(Ordering::Acquire);
        let right = self.hints[2 * node + 1].load(Ordering::Acquire);
        let whole = WHOLE + height as u8 - 1;
        if left >= whole && right >= whole { whole + 1 } else { left.max(right) }
    }

    /// Lowers the hint of a word, and those above it up to `height`.
    fn lower_above(&self, word: usize, height: u32) {
        for up in 0..=height {
            self.lower((self.leaves + word) >> up);
        }
    }

    /// Lowers the hint of a node to what lies below it.
    fn lower(&self, node: usize) {
        let height = self.leaves.ilog2() - node.ilog2();
        let now = self.hints[node].load(Ordering::Relaxed);
        let promise = self.promise(node, height);
        if promise >= now {
            return;
        }
        let lowered =
            self.hints[node].compare_exchange(now, promise, Ordering::AcqRel, Ordering::Relaxed);
        // Blocks that came back in between may have met the old hint, and left it alone.
        if lowered.is_ok() {
            let promise = self.promise(node, height);
            self.hints[node].fetch_max(promise, Ordering::AcqRel);
        }
    }
}

/// A number of blocks as a change of a balance; block ids are `u32`, so their number fits.
fn signed(blocks: usize) -> i64 {
    i64::from(blocks as u32)
}

/// Where threads of a seat begin to look: neighbours in number begin far apart.
fn first_home(seat: usize, words: usize) -> u32 {
    let spread = (seat as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    ((spread * words as u64) >> 32) as u32
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A call that holds all blocks loses its core before it gives them back. A call for one block meanwhile
    /// waits for it: there is room, so a refusal would not be true.
    #[test]
    fn a_call_waits_for_one_that_lost_its_core_with_all_blocks() {
        let bits = Bits::new(100, 100);
        let mut all = [BlockId::default(); 100];
        let gathering = bits.gather(1, all.len());
        assert_eq!(bits.take_some(1, &mut all), all.len());
        std::thread::scope(|scope| {
            let small = scope.spawn(|| bits.take(0, &mut [BlockId::default()]));
            std::thread::sleep(Duration::from_millis(100));
            bits.give(1, &all);
            drop(gathering);
            assert!(small.join().unwrap(), "one of 100 free blocks was refused");
        });
    }
}
