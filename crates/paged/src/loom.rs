//! The lock-free parts under weak memory: loom tries every order that the memory model allows, with a bounded
//! number of preemptions.
//!
//! Run with `./dev test loom`.

use crate::alloc::Bits;
use crate::hash::BlockHash;
use crate::lists::{Evicted, Lists, Open};
use crate::records::{Records, Registered};
use crate::{BlockId, Policy};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

/// Plain memory of a block: loom reports any access that the atomics do not order.
struct Bytes(UnsafeCell<u64>);

// SAFETY: this is what the models check; loom finds any race on it.
unsafe impl Sync for Bytes {}

impl Bytes {
    fn new() -> Self {
        Self(UnsafeCell::new(0))
    }

    fn write(&self, value: u64) {
        self.0.with_mut(|bytes| {
            // SAFETY: loom has just checked that nobody else is here.
            unsafe { *bytes = value }
        });
    }

    fn read(&self) -> u64 {
        self.0.with(|bytes| {
            // SAFETY: loom has just checked that nobody writes.
            unsafe { *bytes }
        })
    }
}

/// Two threads take the same block one after the other: each has it alone, and sees what the other is done
/// with.
#[test]
fn a_block_has_one_owner_at_a_time() {
    loom::model(|| {
        let shared = Arc::new((Bits::new(1, 1), Bytes::new()));
        let work = |shared: &(Bits, Bytes), seat: usize| {
            let mut table = [BlockId::default()];
            if shared.0.take(seat, &mut table) {
                shared.1.write(seat as u64);
                assert_eq!(shared.1.read(), seat as u64);
                shared.0.give(seat, &table);
            }
        };
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || work(&other, 1));
        work(&shared, 0);
        thread.join().unwrap();
        assert_eq!(shared.0.free(), 1);
        assert!(shared.0.take_run(0, 1, true).is_some());
    });
}

/// Batches that cannot both succeed: none is left with a part, and nothing is lost.
#[test]
fn batches_are_all_or_nothing() {
    loom::model(|| {
        let bits = Arc::new(Bits::new(3, 3));
        let other = Arc::clone(&bits);
        let thread = thread::spawn(move || {
            let mut table = [BlockId::default(); 2];
            other.take(1, &mut table).then_some(table)
        });
        let run = bits.take_run(0, 2, true);
        let table = thread.join().unwrap();
        if let (Some(first), Some(table)) = (run, table) {
            panic!("four of three blocks: {first:?} and {table:?}");
        }
        if let Some(first) = run {
            bits.give_run(0, first, 2);
        }
        if let Some(table) = table {
            bits.give(1, &table);
        }
        assert_eq!(bits.free(), 3);
        assert_eq!(bits.largest_run(0), 3);
    });
}

/// One of two blocks is taken for good. A call for two cannot succeed; beside it a call for one does, in every order.
#[test]
fn a_call_that_cannot_succeed_makes_no_other_fail() {
    loom::model(|| {
        let bits = Arc::new(Bits::new(2, 2));
        assert!(bits.take(0, &mut [BlockId::default()]));
        let other = Arc::clone(&bits);
        let large = thread::spawn(move || other.take(1, &mut [BlockId::default(); 2]));
        assert!(bits.take(0, &mut [BlockId::default()]), "one block is free all the time");
        assert!(!large.join().unwrap(), "there are never two");
        assert_eq!(bits.free(), 0);
    });
}

/// A reader that finds a name while the block is evicted and gets another life: it reads the bytes of that
/// name, or misses.
#[test]
fn what_is_found_is_of_the_name() {
    const OLD: BlockHash = BlockHash([7, 7]);
    const NEW: BlockHash = BlockHash([8, 8]);
    const BLOCK: BlockId = BlockId(0);
    loom::model(|| {
        let shared = Arc::new((Records::new(1), Bytes::new()));
        let (records, bytes) = &*shared;
        records.begin(BLOCK);
        bytes.write(7);
        assert_eq!(records.register(BLOCK, OLD, 0), Registered::Named);
        records.unpin(BLOCK);

        let reader = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            let (records, bytes) = &*reader;
            for name in [OLD, NEW] {
                if records.find(name).is_some() {
                    assert_eq!(bytes.read(), name.0[0]);
                    records.unpin(BLOCK);
                }
            }
        });
        if records.reclaim(BLOCK).is_some() {
            records.begin(BLOCK);
            bytes.write(8);
            records.register(BLOCK, NEW, 0);
            records.unpin(BLOCK);
        }
        thread.join().unwrap();
        assert_eq!(records.references(BLOCK), 0);
    });
}

/// Two sequences give up a block without a name at once: one of them frees it.
#[test]
fn the_last_of_two_references_frees_once() {
    loom::model(|| {
        let records = Arc::new(Records::new(1));
        records.begin(BlockId(0));
        records.publish(BlockId(0));
        assert!(records.share(BlockId(0)));
        let other = Arc::clone(&records);
        let release = |records: &Records| {
            records
                .unpin(BlockId(0))
                .is_some_and(|life| records.reclaim_life(BlockId(0), life).is_some())
        };
        let thread = thread::spawn(move || release(&other));
        let freed = [release(&records), thread.join().unwrap()];
        assert_eq!(freed.iter().filter(|freed| **freed).count(), 1);
    });
}

const NAME: BlockHash = BlockHash([7, 7]);

/// A block and two eviction lists.
struct Kept {
    records: Records,
    lists: Lists,
}

impl Kept {
    /// The block has a name and one pin, and is in no list.
    fn new() -> Self {
        let kept = Self { records: Records::new(1), lists: Lists::with(2, 1, Policy::Lru) };
        kept.records.begin(BlockId(0));
        assert_eq!(kept.records.register(BlockId(0), NAME, 0), Registered::Named);
        kept
    }

    /// Gives up a pin, as the pool does.
    fn release(&self, list: usize) {
        if self.records.unpin(BlockId(0)).is_some() {
            let mut open = self.lists.open(list);
            self.lists.keep(&self.records, BlockId(0), &mut open);
        }
    }

    /// How many blocks an eviction gets from a list.
    fn evict(&self, list: usize) -> usize {
        let (mut out, mut evicted) = ([BlockId::default(); 2], Evicted::default());
        self.lists.evict_from(&self.records, list, &mut out, &mut evicted);
        evicted.blocks
    }
}

/// A cached block is found and released by one thread while another evicts: it is evicted, or it is in a list
/// from which it can be.
#[test]
fn a_block_that_is_released_while_others_evict_stays_in_a_list() {
    loom::model(|| {
        let kept = Arc::new(Kept::new());
        kept.release(0);
        let other = Arc::clone(&kept);
        let thread = thread::spawn(move || {
            if other.records.find(NAME).is_some() {
                other.release(1);
            }
        });
        let evicted = kept.evict(0);
        thread.join().unwrap();
        assert_eq!(evicted + kept.evict(0) + kept.evict(1), 1);
    });
}

/// Two threads release a block, and one of them finds and releases it again: each may be the last for a moment.
/// It is in one list.
#[test]
fn a_block_that_two_threads_release_is_in_one_list() {
    loom::model(|| {
        let kept = Arc::new(Kept::new());
        assert!(kept.records.share(BlockId(0)));
        let other = Arc::clone(&kept);
        let thread = thread::spawn(move || other.release(1));
        kept.release(0);
        if kept.records.find(NAME).is_some() {
            kept.release(0);
        }
        thread.join().unwrap();
        assert_eq!([kept.evict(0), kept.evict(1)].iter().sum::<usize>(), 1);
    });
}

/// Blocks of a chain and two eviction lists, in a pool that evicts by density.
struct Chain {
    records: Records,
    lists: Lists,
}

impl Chain {
    const NAMES: [BlockHash; 3] = [BlockHash([7, 7]), BlockHash([8, 8]), BlockHash([9, 9])];

    /// Both blocks have names, and are cached: the second one follows the first.
    fn linked() -> Self {
        let chain = Self::pinned([BlockId(0), BlockId(1)]);
        chain.end_request(&[BlockId(0), BlockId(1)], 0);
        chain
    }

    /// The blocks have names and one pin each, and none follows another.
    fn pinned<const N: usize>(blocks: [BlockId; N]) -> Self {
        let lists = Lists::with(2, N as u32, Policy::Density);
        let chain = Self { records: Records::new(N as u32), lists };
        for (block, name) in blocks.into_iter().zip(Self::NAMES) {
            chain.records.begin(block);
            assert_eq!(chain.records.register(block, name, 0), Registered::Named);
        }
        chain
    }

    /// A request ends that used these blocks: it links them and gives up its pins.
    fn end_request(&self, table: &[BlockId], list: usize) {
        let mut open = self.lists.open(list);
        self.lists.used(&self.records, table, &mut open);
        for block in table.iter().rev() {
            self.release(*block, &mut open);
        }
    }

    /// Gives up a pin, as the pool does.
    fn release<'a>(&'a self, block: BlockId, open: &mut Open<'a>) {
        if self.records.unpin(block).is_some() {
            self.lists.keep(&self.records, block, open);
        }
    }

    /// A request that finds one of the blocks, and uses it no further.
    fn request(&self, name: BlockHash) {
        if let Some((block, _)) = self.records.find(name) {
            self.release(block, &mut self.lists.open(1));
        }
    }

    /// How many blocks an eviction gets from a list.
    fn evict(&self, list: usize) -> usize {
        let (mut out, mut evicted) = ([BlockId::default(); 4], Evicted::default());
        self.lists.evict_from(&self.records, list, &mut out, &mut evicted);
        evicted.blocks
    }
}

/// One of two blocks in a chain is used by a thread while another evicts both: each is evicted, or can be.
#[test]
fn a_chain_that_is_used_while_others_evict_can_be_evicted() {
    for name in [Chain::NAMES[0], Chain::NAMES[1]] {
        loom::model(move || {
            let chain = Arc::new(Chain::linked());
            let other = Arc::clone(&chain);
            let thread = thread::spawn(move || other.request(name));
            let evicted = chain.evict(0);
            thread.join().unwrap();
            assert_eq!(evicted + chain.evict(0) + chain.evict(1) + chain.evict(0), 2);
        });
    }
}

/// A request makes a block follow another one, while a thread evicts the block that followed it before: both that stay
/// can be evicted later.
#[test]
fn blocks_that_are_linked_while_others_evict_can_be_evicted() {
    loom::model(|| {
        let [first, second, third] = [0, 1, 2].map(BlockId);
        let chain = Arc::new(Chain::pinned([first, second, third]));
        assert!(chain.records.share(first));
        chain.end_request(&[first, second], 0);
        let other = Arc::clone(&chain);
        let thread = thread::spawn(move || other.end_request(&[first, third], 1));
        let evicted = chain.evict(0);
        thread.join().unwrap();
        assert_eq!(evicted + [0, 1, 0, 1].map(|list| chain.evict(list)).iter().sum::<usize>(), 3);
    });
}

/// A block in the pocket of a seat that runs while another thread needs it: one of them has it.
#[test]
fn a_block_in_a_pocket_can_be_had_by_others() {
    loom::model(|| {
        let shared = Arc::new((Bits::new(1, 1), Bytes::new()));
        let mut table = [BlockId::default()];
        assert!(shared.0.take(0, &mut table));
        shared.1.write(1);
        shared.0.give(0, &table);
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            let took = other.0.take(1, &mut [BlockId::default()]);
            if took {
                other.1.write(2);
            }
            took
        });
        let took = shared.0.take(0, &mut table);
        if took {
            shared.1.write(3);
        }
        assert_eq!(usize::from(took) + usize::from(thread.join().unwrap()), 1);
        assert_eq!(shared.0.free(), 0);
    });
}
