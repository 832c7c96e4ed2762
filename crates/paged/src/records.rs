//! What is known of each block: its life, its references and its name. 32 bytes, half a cache line.
//!
//! ```text
//!            begin             publish                unpin, last one
//!   Dead ──────────► Writing ──────────► Ready, pins ─────────────────► Ready, 0 pins
//!    ▲                  │ abandon          ▲    │ reclaim, without a name    │ find: pinned again
//!    │◄─────────────────┘                  └────│────────────────────────────┘
//!    │◄─────────────────────────────────────────┴──── reclaim (evict) ───────┘
//! ```
//!
//! The word is the one of the store's headers ([`AtomicWord`]): generation, state and pins change in one step.
//! A block is *private* while it is written: one sequence owns it, nobody can pin it, and its word changes by
//! plain stores. A full block is *published*: immutable, pinned once for each sequence that uses it (B5). If it
//! also has a name, it stays readable without pins, as a cached block, until it is reclaimed.
//!
//! Finding a name: read the word, compare the name in the record, pin the generation that was read. If the pin
//! succeeds the block has been in that one life all the time, so the name was its own. No pin is ever taken on
//! a block of another name, not even for a moment.
//!
//! A reclaim bumps the generation, then removes the index entry, then the block can be taken again. A reader
//! that still holds the old entry finds another generation or another name.

use crate::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use crate::hash::BlockHash;
use crate::index::{Index, Place, prefetch};
use crate::{BlockId, large};
use mooncrate_core::state::Event;
use mooncrate_core::word::Word;
use mooncrate_core::{Generation, ReplicaState};
use mooncrate_mem::word::AtomicWord;

/// One block.
#[derive(Debug)]
#[repr(align(32))]
struct Record {
    word: AtomicWord,
    /// Its name; none while it has no published life.
    hash: [AtomicU64; 2],
    /// Whose bytes it holds or held last.
    tenant: AtomicU32,
    /// What its eviction policy is told of it.
    rank: AtomicU8,
    /// Where in its buckets the index names it; 0: it does not. Written by the owner that registers and by the
    /// thread that reclaims.
    place: AtomicU8,
    /// The eviction list that it is in; see [`crate::pool`].
    list: AtomicU8,
}

const _: () = assert!(cfg!(loom) || size_of::<Record>() == 32);

/// All blocks, and the index of their names.
#[derive(Debug)]
pub(crate) struct Records {
    blocks: Box<[Record]>,
    index: Index,
}

/// A published block that was ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reclaimed {
    /// The index named it.
    pub(crate) named: bool,
    /// The name of its bytes, which are still there.
    pub(crate) name: BlockHash,
    /// It can be handed out again.
    pub(crate) usable: bool,
}

/// What became of a block that was registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registered {
    /// Others find it by its name from now on.
    Named,
    /// Another block has this name already. This one stays as it is, for its own sequence alone: a kernel
    /// may be reading the table that names it.
    Duplicate,
    /// The index has no room for it; this one stays for its own sequence alone.
    NoRoom,
}

impl Records {
    pub(crate) fn new(max: u32) -> Self {
        let dead = || Record {
            word: AtomicWord::store_new(Word::new(Generation(0), ReplicaState::Dead, 0)),
            hash: [AtomicU64::new(0), AtomicU64::new(0)],
            tenant: AtomicU32::new(0),
            rank: AtomicU8::new(0),
            place: AtomicU8::new(0),
            list: AtomicU8::new(0),
        };
        Self { blocks: large::table(max as usize, dead), index: Index::new(max) }
    }

    /// The caller took the block from the free ones: it is private from now on.
    pub(crate) fn begin(&self, block: BlockId) {
        let record = self.record(block);
        let word = record.word.load();
        debug_assert_eq!(word.state(), ReplicaState::Dead, "{block:?}");
        record.word.own(Word::new(word.generation(), ReplicaState::Writing, 1));
    }

    /// Whose bytes a private block may hold.
    pub(crate) fn tenant(&self, block: BlockId) -> u32 {
        self.record(block).tenant.load(Ordering::Relaxed)
    }

    /// A private block holds no bytes of other tenants any more (B6).
    pub(crate) fn set_tenant(&self, block: BlockId, tenant: u32) {
        self.record(block).tenant.store(tenant, Ordering::Relaxed);
    }

    /// A private block ends. The caller gives it back to the free ones.
    pub(crate) fn abandon(&self, block: BlockId) {
        let record = self.record(block);
        let word = record.word.load();
        assert_eq!(word.state(), ReplicaState::Writing, "{block:?} is not private");
        // Nobody could pin this life: the next one may have its generation.
        record.word.own(Word::new(word.generation(), ReplicaState::Dead, 0));
    }

    /// A private block is full: it can be shared, and never changes again. It keeps its one pin.
    pub(crate) fn publish(&self, block: BlockId) {
        let record = self.record(block);
        let word = record.word.load();
        assert_eq!(word.state(), ReplicaState::Writing, "{block:?} is not private");
        record.word.own(Word::new(word.generation(), ReplicaState::Ready, 1));
    }

    /// The same under a name. `rank` is what the eviction policy is told.
    pub(crate) fn register(&self, block: BlockId, hash: BlockHash, rank: u8) -> Registered {
        let record = self.record(block);
        // Relaxed: `publish` releases both, and `find` acquires the word first.
        record.hash[0].store(hash.0[0], Ordering::Relaxed);
        record.hash[1].store(hash.0[1], Ordering::Relaxed);
        record.rank.store(rank, Ordering::Relaxed);
        self.publish(block);
        let scan = self.index.scan(hash);
        if scan.candidates().any(|other| self.is_named(other, hash).is_some()) {
            return Registered::Duplicate;
        }
        // The place is noted before the block can be found there: who finds and releases it must see that it
        // has a name.
        let note = |place: Place| record.place.store(place.to_byte(), Ordering::Relaxed);
        if scan.insert(block, note) {
            return Registered::Named;
        }
        record.place.store(0, Ordering::Relaxed);
        Registered::NoRoom
    }

    /// The generation of a block that has this name and can be pinned.
    fn is_named(&self, block: BlockId, hash: BlockHash) -> Option<Generation> {
        let record = self.record(block);
        let word = record.word.load();
        let same = word.state() == ReplicaState::Ready
            && record.hash[0].load(Ordering::Relaxed) == hash.0[0]
            && record.hash[1].load(Ordering::Relaxed) == hash.0[1];
        same.then(|| word.generation())
    }

    /// Tells the processor that a name will be looked up soon.
    pub(crate) fn prefetch(&self, hash: BlockHash) {
        self.index.prefetch(hash);
    }

    /// Tells the processor that the record of a block will be needed soon.
    pub(crate) fn prefetch_block(&self, block: BlockId) {
        prefetch(self.record(block));
    }

    /// Tells the processor that a block will be ended soon, and its entry removed.
    pub(crate) fn prefetch_entry(&self, block: BlockId) {
        // If the block has another life by now, the wrong line is fetched.
        let place = self.record(block).place.load(Ordering::Relaxed);
        if let Some(place) = Place::from_byte(place) {
            self.index.prefetch_place(self.hash(block), place);
        }
    }

    /// A block that probably has this name. Its record will be needed soon.
    pub(crate) fn guess(&self, hash: BlockHash) -> Option<BlockId> {
        let block = self.index.scan(hash).candidates().next()?;
        self.prefetch_block(block);
        Some(block)
    }

    /// Whether a block of this name could be pinned a moment ago.
    pub(crate) fn is_known(&self, hash: BlockHash) -> bool {
        self.index.scan(hash).candidates().any(|block| self.is_named(block, hash).is_some())
    }

    /// Pins a block if it has this name; the block, and whether nobody used it before.
    pub(crate) fn pin_named(&self, block: BlockId, hash: BlockHash) -> Option<(BlockId, bool)> {
        let generation = self.is_named(block, hash)?;
        let word = self.record(block).word.pin(generation).ok()?;
        Some((block, word.pins() == 1))
    }

    /// Finds a block by its name and pins it; also whether nobody used it before.
    pub(crate) fn find(&self, hash: BlockHash) -> Option<(BlockId, bool)> {
        self.index.scan(hash).candidates().find_map(|block| self.pin_named(block, hash))
    }

    /// One more reference to a published block of which the caller holds one.
    pub(crate) fn share(&self, block: BlockId) -> bool {
        let generation = self.record(block).word.load().generation();
        self.record(block).word.pin(generation).is_ok()
    }

    /// Gives a reference to a published block up. The life of the block, if it was the last reference: from here on
    /// others may end this life and begin another.
    pub(crate) fn unpin(&self, block: BlockId) -> Option<Generation> {
        let word = self.record(block).word.unpin();
        (word.pins() == 0).then(|| word.generation())
    }

    /// Ends a published block that nobody uses: its name is gone, and the caller gives it back to the free
    /// ones. `None` if somebody uses it, or it is no published block.
    pub(crate) fn reclaim(&self, block: BlockId) -> Option<Reclaimed> {
        self.reclaim_life(block, self.record(block).word.load().generation())
    }

    /// The same for one life of the block; also `None` if that one has ended.
    pub(crate) fn reclaim_life(&self, block: BlockId, life: Generation) -> Option<Reclaimed> {
        let record = self.record(block);
        let word = record.word.load();
        if word.state() != ReplicaState::Ready || word.pins() > 0 {
            return None;
        }
        let dead = record.word.apply(life, Event::Reclaim { pins: 0 }).ok()?;
        // The block is the caller's from here on: nobody else writes its record.
        let name = self.hash(block);
        let place = Place::from_byte(record.place.load(Ordering::Relaxed));
        if let Some(place) = place {
            record.place.store(0, Ordering::Relaxed);
            self.index.remove(name, place);
        }
        record.hash[0].store(0, Ordering::Relaxed);
        record.hash[1].store(0, Ordering::Relaxed);
        // At the last generation the block is used up (G4): it stays dead and is never handed out again.
        let usable = dead.generation() != Generation::MAX;
        Some(Reclaimed { named: place.is_some(), name, usable })
    }

    /// The name of a published block; none otherwise.
    pub(crate) fn hash(&self, block: BlockId) -> BlockHash {
        let hash = &self.record(block).hash;
        BlockHash([hash[0].load(Ordering::Relaxed), hash[1].load(Ordering::Relaxed)])
    }

    /// Whether the index names it.
    pub(crate) fn named(&self, block: BlockId) -> bool {
        self.record(block).place.load(Ordering::Relaxed) != 0
    }

    /// Whether one sequence owns it, and may write into it.
    pub(crate) fn is_private(&self, block: BlockId) -> bool {
        self.record(block).word.load().state() == ReplicaState::Writing
    }

    /// Sequences that use it.
    pub(crate) fn references(&self, block: BlockId) -> u32 {
        self.record(block).word.load().pins()
    }

    /// The number of its life.
    pub(crate) fn generation(&self, block: BlockId) -> Generation {
        self.record(block).word.load().generation()
    }

    /// What the eviction policy is told of it.
    pub(crate) fn rank(&self, block: BlockId) -> u8 {
        self.record(block).rank.load(Ordering::Relaxed)
    }

    /// Changes it. The caller holds a reference to the block.
    pub(crate) fn set_rank(&self, block: BlockId, rank: u8) {
        let place = &self.record(block).rank;
        // Most blocks keep their rank: then nothing is written to a line that others may read.
        if place.load(Ordering::Relaxed) != rank {
            place.store(rank, Ordering::Relaxed);
        }
    }

    /// The eviction list of a block, as the pool writes it.
    pub(crate) fn list(&self, block: BlockId) -> &AtomicU8 {
        &self.record(block).list
    }

    fn record(&self, block: BlockId) -> &Record {
        &self.blocks[block.0 as usize]
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// The story: a thread gave up the last reference to a block without a name and lost its core. Meanwhile the block
    /// was evicted and cached under a name. Then the thread ended that life, of which it knew nothing.
    #[test]
    fn a_late_reclaim_ends_no_other_life() {
        let (records, block, name) = (Records::new(1), BlockId(0), BlockHash([7, 7]));
        records.begin(block);
        records.publish(block);
        let life = records.unpin(block).expect("the last reference");
        assert!(records.reclaim(block).is_some_and(|ended| ended.usable && !ended.named));
        records.begin(block);
        assert_eq!(records.register(block, name, 0), Registered::Named);
        assert!(records.unpin(block).is_some());
        assert_eq!(records.reclaim_life(block, life), None);
        assert!(records.is_known(name));
        assert!(records.reclaim_life(block, records.generation(block)).is_some());
    }
}
