//! The lock-free parts under weak memory: loom tries every order that the memory model allows, with a bounded
//! number of preemptions.
//!
//! Run with `./dev test loom`.

use crate::BlockId;
use crate::alloc::Bits;
use crate::hash::BlockHash;
use crate::records::{Records, Registered};
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
        assert_eq!(bits.largest_run(), 3);
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
        let release =
            |records: &Records| records.unpin(BlockId(0)) && records.reclaim(BlockId(0)).is_some();
        let thread = thread::spawn(move || release(&other));
        let freed = [release(&records), thread.join().unwrap()];
        assert_eq!(freed.iter().filter(|freed| **freed).count(), 1);
    });
}
