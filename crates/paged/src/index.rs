//! The prefix index: which block has this name. Looked up, filled and emptied without a lock.
//!
//! ```text
//! bucket   64 bytes: eight entries { tag:32 | block + 1:32 }, 0 = empty        a name has two buckets
//! ```
//!
//! An entry is a hint: it names a block whose own record tells its full name and whether it can still be
//! pinned ([`crate::pool`]). So an entry that is gone, or about a block that lives another life by now, costs
//! a miss and nothing else, and one word per entry is enough.
//!
//! The table has at least twice as many entries as there are blocks, and a name goes into the emptier one of
//! its two buckets. If both are full the block stays without an entry: it is not found, and not wrong.

use crate::BlockId;
use crate::atomic::{AtomicU64, Ordering};
use crate::hash::BlockHash;

const ENTRIES: usize = 8;

#[derive(Debug)]
#[repr(align(64))]
struct Bucket([AtomicU64; ENTRIES]);

/// Names of blocks.
#[derive(Debug)]
pub(crate) struct Index {
    buckets: Box<[Bucket]>,
}

impl Index {
    /// An empty index for up to `blocks` names.
    pub(crate) fn new(blocks: u32) -> Self {
        let buckets = (blocks as usize * 2).div_ceil(ENTRIES).next_power_of_two();
        let empty = || Bucket(std::array::from_fn(|_| AtomicU64::new(0)));
        Self { buckets: (0..buckets).map(|_| empty()).collect() }
    }

    /// Blocks that may have this name; the caller asks each.
    pub(crate) fn candidates(&self, hash: BlockHash) -> impl Iterator<Item = BlockId> {
        let tag = tag(hash);
        self.places(hash).into_iter().flat_map(|bucket| &bucket.0).filter_map(move |entry| {
            // Acquire: pairs with the Release in `insert`, so the block's record is there.
            let entry = entry.load(Ordering::Acquire);
            (entry & TAG == tag && entry != 0).then(|| BlockId(entry as u32 - 1))
        })
    }

    /// Adds a name; false if there is no room for it.
    pub(crate) fn insert(&self, hash: BlockHash, block: BlockId) -> bool {
        let places = self.places(hash);
        let full = |bucket: &Bucket| {
            bucket.0.iter().filter(|entry| entry.load(Ordering::Relaxed) != 0).count()
        };
        let order = if full(places[0]) <= full(places[1]) { [0, 1] } else { [1, 0] };
        let entry = entry(hash, block);
        let mut free = order.into_iter().flat_map(|at| &places[at].0);
        // Release: pairs with the Acquire in `candidates`.
        free.any(|place| {
            place.load(Ordering::Relaxed) == 0
                && place.compare_exchange(0, entry, Ordering::Release, Ordering::Relaxed).is_ok()
        })
    }

    /// Removes the entry of a block, if it has one.
    pub(crate) fn remove(&self, hash: BlockHash, block: BlockId) {
        let gone = entry(hash, block);
        for place in self.places(hash).into_iter().flat_map(|bucket| &bucket.0) {
            let found = place.load(Ordering::Relaxed) == gone
                && place.compare_exchange(gone, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok();
            if found {
                return;
            }
        }
    }

    fn places(&self, hash: BlockHash) -> [&Bucket; 2] {
        let mask = self.buckets.len() - 1;
        let (one, other) = (hash.0[0] as usize & mask, (hash.0[0] >> 32) as usize & mask);
        // The same bucket twice would show an entry twice.
        let other = if one == other { other ^ usize::from(mask > 0) } else { other };
        [&self.buckets[one], &self.buckets[other]]
    }
}

/// The upper half of an entry.
const TAG: u64 = !(u32::MAX as u64);

const fn tag(hash: BlockHash) -> u64 {
    hash.0[1] & TAG
}

const fn entry(hash: BlockHash, block: BlockId) -> u64 {
    tag(hash) | (block.0 as u64 + 1)
}
