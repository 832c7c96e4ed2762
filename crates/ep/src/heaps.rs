//! The heaps of all ranks as the oracles see them: the CPU backend runs the oracles on memory that it shares
//! with other processes, and the tests of kernels on copies of it.

use mooncrate_heap::Heap;
use mooncrate_mem::Region;
use mooncrate_mem::atomic::Ordering;
use std::cell::RefCell;

/// Memory of every rank. Offsets come from an [`crate::EpLayout`] that fits the heaps.
pub trait Heaps {
    /// Copies bytes out of the heap of a rank.
    fn load(&self, rank: u32, offset: u64, target: &mut [u8]);
    /// Copies bytes into the heap of a rank.
    fn store(&self, rank: u32, offset: u64, bytes: &[u8]);
    /// A word that others may store to; what its writer stored before it is visible after this.
    fn word(&self, rank: u32, offset: u64) -> u64;
    /// Stores a word, after everything that this rank has stored before.
    fn set_word(&self, rank: u32, offset: u64, value: u64);
}

fn region(heap: &Heap, rank: u32) -> &Region {
    let rank = heap.world().rank(rank as usize);
    rank.and_then(|rank| heap.region(rank)).expect("the heaps of an exchange are in host memory")
}

const FITS: &str = "offsets of the layout lie in the heap";

impl Heaps for Heap {
    fn load(&self, rank: u32, offset: u64, target: &mut [u8]) {
        region(self, rank).load(offset, target).expect(FITS);
    }

    fn store(&self, rank: u32, offset: u64, bytes: &[u8]) {
        region(self, rank).store(offset, bytes).expect(FITS);
    }

    fn word(&self, rank: u32, offset: u64) -> u64 {
        // Acquire: pairs with the Release in `set_word` of the word's only writer.
        region(self, rank).atomic(offset).expect(FITS).load(Ordering::Acquire)
    }

    fn set_word(&self, rank: u32, offset: u64, value: u64) {
        // Release: pairs with the Acquire in `word`.
        region(self, rank).atomic(offset).expect(FITS).store(value, Ordering::Release);
    }
}

/// Copies of heaps, for tests: nobody else stores to them.
#[derive(Debug)]
pub struct Copies(RefCell<Vec<Vec<u8>>>);

impl Copies {
    /// Heaps with these bytes, by rank.
    pub fn new(heaps: Vec<Vec<u8>>) -> Self {
        Self(RefCell::new(heaps))
    }

    /// What is in them now.
    pub fn into_inner(self) -> Vec<Vec<u8>> {
        self.0.into_inner()
    }
}

impl Heaps for Copies {
    fn load(&self, rank: u32, offset: u64, target: &mut [u8]) {
        let (heaps, at) = (self.0.borrow(), offset as usize);
        target.copy_from_slice(&heaps[rank as usize][at..at + target.len()]);
    }

    fn store(&self, rank: u32, offset: u64, bytes: &[u8]) {
        let at = offset as usize;
        self.0.borrow_mut()[rank as usize][at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn word(&self, rank: u32, offset: u64) -> u64 {
        let mut bytes = [0; 8];
        self.load(rank, offset, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    fn set_word(&self, rank: u32, offset: u64, value: u64) {
        self.store(rank, offset, &value.to_le_bytes());
    }
}
