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

use crate::atomic::{AtomicU64, Ordering};
use crate::hash::BlockHash;
use crate::{BlockId, large};

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
        Self { buckets: large::table(buckets, empty) }
    }

    /// The buckets of a name.
    #[inline]
    pub(crate) fn scan(&self, hash: BlockHash) -> Scan<'_> {
        Scan { places: self.places(hash), tag: tag(hash) }
    }

    /// Tells the processor that a name will be looked up soon.
    pub(crate) fn prefetch(&self, hash: BlockHash) {
        for bucket in self.places(hash) {
            prefetch(bucket);
        }
    }

    /// Tells the processor that the entry of a name will be removed soon.
    pub(crate) fn prefetch_place(&self, hash: BlockHash, place: Place) {
        prefetch(self.places(hash)[place.bucket()]);
    }

    /// Empties the place of an entry. The caller has ended the one life of the block that the entry names,
    /// so no other thread writes to this place: inserts only write to empty ones.
    pub(crate) fn remove(&self, hash: BlockHash, place: Place) {
        self.places(hash)[place.bucket()].0[place.entry()].store(0, Ordering::Relaxed);
    }

    fn places(&self, hash: BlockHash) -> [&Bucket; 2] {
        let mask = self.buckets.len() - 1;
        let (one, other) = (hash.0[0] as usize & mask, (hash.0[0] >> 32) as usize & mask);
        // The same bucket twice would show an entry twice.
        let other = if one == other { other ^ usize::from(mask > 0) } else { other };
        [&self.buckets[one], &self.buckets[other]]
    }
}

/// The two buckets of a name.
#[derive(Debug)]
pub(crate) struct Scan<'a> {
    places: [&'a Bucket; 2],
    tag: u64,
}

/// Which entry of the two buckets of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(u8);

impl Place {
    /// As a byte that is not 0.
    pub(crate) const fn to_byte(self) -> u8 {
        self.0 + 1
    }

    /// The place of such a byte; none of 0.
    pub(crate) const fn from_byte(byte: u8) -> Option<Self> {
        match byte.checked_sub(1) {
            Some(place) => Some(Self(place)),
            None => None,
        }
    }

    const fn bucket(self) -> usize {
        (self.0 as usize / ENTRIES) & 1
    }

    const fn entry(self) -> usize {
        self.0 as usize % ENTRIES
    }
}

impl Scan<'_> {
    /// Blocks that may have the name; the caller asks each.
    pub(crate) fn candidates(&self) -> impl Iterator<Item = BlockId> {
        let tagged = |bucket| bits(which(bucket, |entry| entry & TAG == self.tag));
        self.places.into_iter().flat_map(move |bucket| {
            tagged(bucket).filter_map(move |n| {
                // Acquire: pairs with the Release in `insert`, so the block's record is there.
                let entry = bucket.0[n].load(Ordering::Acquire);
                (entry & TAG == self.tag && entry != 0).then(|| BlockId(entry as u32 - 1))
            })
        })
    }

    /// Adds an entry of a block under this name to the emptier bucket. `note` is told the place before the
    /// entry can be found there; it may be told several, of which the last one holds. False: no room.
    pub(crate) fn insert(&self, block: BlockId, note: impl Fn(Place)) -> bool {
        let empty = |entry: u64| entry == 0;
        let free = self.places.map(|bucket| which(bucket, empty));
        let order = if free[0].count_ones() >= free[1].count_ones() { [0, 1] } else { [1, 0] };
        let entry = self.tag | (u64::from(block.0) + 1);
        order.into_iter().any(|bucket| {
            bits(free[bucket]).any(|n| {
                note(Place((bucket * ENTRIES + n) as u8));
                // Release: pairs with the Acquire in `candidates`.
                let place = &self.places[bucket].0[n];
                place.compare_exchange(0, entry, Ordering::Release, Ordering::Relaxed).is_ok()
            })
        })
    }
}

/// The entries of a bucket for which a condition holds, as bits. Without a branch per entry: where a name lies
/// in its bucket is random, so a branch would be predicted wrongly for most names, which costs more than
/// to look at all entries.
#[inline]
fn which(bucket: &Bucket, holds: impl Fn(u64) -> bool) -> u32 {
    let at = |n: usize| u32::from(holds(bucket.0[n].load(Ordering::Relaxed))) << n;
    at(0) | at(1) | at(2) | at(3) | at(4) | at(5) | at(6) | at(7)
}

/// The numbers of the bits that are set.
fn bits(mut set: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lowest = (set != 0).then(|| set.trailing_zeros() as usize % ENTRIES);
        set &= set.wrapping_sub(1);
        lowest
    })
}

/// Tells the processor that a value will be read or written soon.
pub(crate) fn prefetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let line = std::ptr::from_ref(value).cast::<i8>();
        // SAFETY: a prefetch reads nothing and cannot fault; every x86-64 processor has it.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}

/// The upper half of an entry.
const TAG: u64 = !(u32::MAX as u64);

const fn tag(hash: BlockHash) -> u64 {
    hash.0[1] & TAG
}
