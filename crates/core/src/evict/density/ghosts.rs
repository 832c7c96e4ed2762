//! The sampled keys, resident or not: a bounded table in buckets of one cache line.

use super::{Usage, mix};
use std::ops::{Index, IndexMut};

/// Ghosts of a bucket: one cache line.
const WAYS: usize = 8;
/// 192 KiB. With its tables a policy takes less than 256 KiB.
const BUCKETS: usize = 3072;
/// The share of sampled keys is such that the ghosts cover so many times the blocks of the cache.
const COVER: u64 = 4;
/// A ghost without a second use goes before one with, unless that one is so many times as old: keys with many uses
/// are few, and their counts would be lost.
const UNUSED_FIRST: u32 = 8;
const TAG_MASK: u64 = 0x7f_ffff;

/// A sampled key: usage:32 | tag:23 | bins that are counted:7 | 1, two bits spare. The rest of the hash is the bucket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ghost(u64);

impl Ghost {
    const NONE: Self = Self(0);

    pub(super) const fn new(hash: u64, usage: Usage) -> Self {
        Self((usage.0 as u64) << 32 | (hash & TAG_MASK) << 8 | 1)
    }

    pub(super) const fn is_none(self) -> bool {
        self.0 == 0
    }

    pub(super) const fn usage(self) -> Usage {
        Usage((self.0 >> 32) as u32)
    }

    /// All bins before this one are counted.
    pub(super) const fn counted(self) -> usize {
        ((self.0 >> 1) & 127) as usize
    }

    pub(super) fn set_counted(&mut self, bin: usize) {
        self.0 = self.0 & !(127 << 1) | (bin as u64) << 1;
    }

    /// Its last use counts as one at this time.
    pub(super) const fn set_last(&mut self, last: u32) {
        self.0 = self.0 & u32::MAX as u64 | (self.usage().used_at(last).0 as u64) << 32;
    }

    const fn has(self, hash: u64) -> bool {
        !self.is_none() && (self.0 >> 8) & TAG_MASK == hash & TAG_MASK
    }
}

#[derive(Debug)]
pub(super) struct Ghosts {
    ways: Box<[Ghost]>,
}

/// The highest hash in the sample, for a cache of so many blocks.
pub(super) fn highest(blocks: u64) -> u64 {
    let (room, wanted) = (Ghosts::COUNT as u64, blocks.max(1).saturating_mul(COVER));
    if wanted <= room { u64::MAX } else { u64::MAX / wanted * room }
}

impl Ghosts {
    pub(super) const COUNT: usize = BUCKETS * WAYS;

    /// None yet.
    pub(super) fn new() -> Self {
        Self { ways: vec![Ghost::NONE; Self::COUNT].into_boxed_slice() }
    }

    pub(super) fn find(&self, hash: u64) -> Option<usize> {
        let first = bucket(hash);
        let way = self.ways[first..first + WAYS].iter().position(|ghost| ghost.has(hash))?;
        Some(first + way)
    }

    /// The place of a new key: one that is free, or that of the oldest.
    pub(super) fn room(&self, hash: u64, now: u32) -> usize {
        let age = |way: &usize| {
            let ghost = self.ways[*way];
            if ghost.is_none() {
                return u32::MAX;
            }
            ghost.usage().age(now) * if ghost.usage().uses() == 0 { UNUSED_FIRST } else { 1 }
        };
        let first = bucket(hash);
        (first..first + WAYS).max_by_key(age).expect("a bucket has ways")
    }

    pub(super) fn heap_bytes(&self) -> usize {
        size_of_val(&*self.ways)
    }
}

impl Index<usize> for Ghosts {
    type Output = Ghost;

    fn index(&self, way: usize) -> &Ghost {
        &self.ways[way]
    }
}

impl IndexMut<usize> for Ghosts {
    fn index_mut(&mut self, way: usize) -> &mut Ghost {
        &mut self.ways[way]
    }
}

/// The first way of the bucket of a hash, which is mixed again: the hashes of a small sample are all small.
fn bucket(hash: u64) -> usize {
    (((mix(hash) >> 32) * BUCKETS as u64) >> 32) as usize * WAYS
}
