//! Locators that were used before. A stale one costs a failed check, never a wrong byte, so the
//! cache needs no leases and no invalidation. Bounded by the bytes it takes, keys and tables included; the
//! hand of a clock makes room, a few steps for each entry that goes. One goes for each that comes, and more where
//! a long one comes or a table has just grown.
//!
//! Of a client that holds what it reads, an entry also says for how long its place may be used without asking: the
//! master must hear of each read, or hold the value long enough (`look.rs`).
//!
//! It also holds the marks of reads that are not told yet (`reads.rs`), one per object. They lie beside the
//! locators because a read has that shard's lock anyway: marking takes no lock of its own.

use crate::packed::{First, Packed};
use hashbrown::HashTable;
use mooncrate_core::key::KeyHash;
use mooncrate_core::limits::BATCH_ITEMS_MAX;
use mooncrate_core::plan::{Located, ReadMark};
use mooncrate_core::time::Now;
use mooncrate_lock::Mutex;

const SHARDS: usize = 64;
/// Marks that one report takes from a shard. Beyond, an object is not marked until the next report.
const MARKS_PER_SHARD: usize = 64;
/// Entries that the hand passes at most before it takes one, used lately or not: an insert must not go once
/// around under the lock.
const STEPS_MAX: usize = 16;
/// Marks of one report.
pub(crate) const MARKS_MAX: usize = SHARDS * MARKS_PER_SHARD;

const _: () = assert!(MARKS_MAX <= BATCH_ITEMS_MAX, "a report is one frame");
const _: () = assert!(MARKS_PER_SHARD <= u16::MAX as usize, "see Entry::mark");
const _: () = assert!(size_of::<Entry>() == 40, "there are hundreds of thousands of them");

/// Locators by key.
#[derive(Debug)]
pub(crate) struct Cache {
    shards: Vec<Mutex<Shard>>,
    /// Of each shard.
    bytes_max: usize,
}

#[derive(Debug, Default)]
struct Shard {
    index: HashTable<u32>,
    entries: Vec<Entry>,
    /// Of what the entries point to.
    heap_bytes: usize,
    hand: usize,
    /// Reads since the last report.
    marks: Vec<ReadMark>,
    /// Counts reports, so that the marks of the last one need not be cleared from the entries.
    round: u32,
}

/// How a read was marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Noted {
    /// Its object had a mark already, or there is no room for one.
    Again,
    /// By a new mark; `first`: the first one of its shard since the last report.
    New { first: bool },
}

#[derive(Debug)]
struct Entry {
    hash: u64,
    packed: Packed,
    /// Until when a client that holds what it reads need not ask.
    held: Now,
    /// Used since the hand passed.
    used: bool,
    /// Which of the shard's marks is its own, if it was made in the shard's round.
    mark: u16,
    round: u32,
}

impl Cache {
    /// A cache that takes about `bytes_max` bytes at most.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            bytes_max: bytes_max / SHARDS,
        }
    }

    /// Locators that it holds, and the bytes that it takes.
    pub(crate) fn size(&self) -> (usize, usize) {
        let each = self.shards.iter().map(|shard| shard.lock());
        let each = each.map(|shard| (shard.entries.len(), shard.bytes()));
        each.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    fn shard(&self, hash: KeyHash) -> &Mutex<Shard> {
        &self.shards[(hash.0 >> 48) as usize % SHARDS]
    }

    /// The locator of a key, for a read, which is marked. With `held` only if it may be used then.
    pub(crate) fn get(
        &self,
        hash: KeyHash,
        key: &[u8],
        held: Option<Now>,
    ) -> Option<(Located, Noted)> {
        self.read(hash, key, held, |packed| Some(packed.unpack()))
    }

    /// The same for the first copy of a value in one stripe.
    pub(crate) fn first(
        &self,
        hash: KeyHash,
        key: &[u8],
        held: Option<Now>,
    ) -> Option<(First, Noted)> {
        self.read(hash, key, held, Packed::first)
    }

    fn read<T>(
        &self,
        hash: KeyHash,
        key: &[u8],
        held: Option<Now>,
        place: impl FnOnce(&Packed) -> Option<T>,
    ) -> Option<(T, Noted)> {
        let shard = &mut *self.shard(hash).lock();
        let at = shard.find(hash, key)?;
        let entry = &mut shard.entries[at];
        if held.is_some_and(|now| now >= entry.held) {
            return None;
        }
        let found = place(&entry.packed)?;
        entry.used = true;
        Some((found, entry.note(&mut shard.marks, shard.round)))
    }

    /// The locator of a key, without a mark: the master hears of the read, or cannot hear of it.
    pub(crate) fn peek(&self, hash: KeyHash, key: &[u8]) -> Option<Located> {
        let shard = &*self.shard(hash).lock();
        Some(shard.entries[shard.find(hash, key)?].packed.unpack())
    }

    /// The same for the first copy of a value in one stripe, of a client that holds nothing.
    pub(crate) fn peek_first(&self, hash: KeyHash, key: &[u8]) -> Option<First> {
        let shard = &*self.shard(hash).lock();
        shard.entries[shard.find(hash, key)?].packed.first()
    }

    /// Moves all marks to the end of `into`, as far as a report has room for them.
    pub(crate) fn take_marks(&self, into: &mut Vec<ReadMark>) {
        for shard in &self.shards {
            let shard = &mut *shard.lock();
            if !shard.marks.is_empty() {
                shard.round = shard.round.wrapping_add(1);
                into.append(&mut shard.marks);
            }
        }
        into.truncate(MARKS_MAX);
    }

    /// Forgets the locator that a mark was made from, if it is still the same.
    pub(crate) fn forget_marked(&self, mark: &ReadMark) {
        let shard = &mut *self.shard(KeyHash(mark.tag)).lock();
        let entries = &shard.entries;
        let found = shard.index.find(mark.tag, |&at| {
            let entry = &entries[at as usize];
            let same = entry.packed.read_mark(mark.reads, mark.tag).as_ref() == Some(mark);
            entry.hash == mark.tag && same
        });
        if let Some(&at) = found {
            shard.drop_entry(at as usize);
        }
    }

    pub(crate) fn insert(&self, hash: KeyHash, key: &[u8], located: &Located, held: Now) {
        if !Packed::fits(key, located) {
            return;
        }
        let packed = Packed::new(key, located);
        let new_bytes = packed.heap_bytes();
        let shard = &mut *self.shard(hash).lock();
        if new_bytes > self.bytes_max / 2 {
            // Too long to be remembered, and what is remembered of the key is older.
            if let Some(at) = shard.find(hash, key) {
                shard.drop_entry(at);
            }
            return;
        }
        if let Some(at) = shard.find(hash, key) {
            let old = std::mem::replace(&mut shard.entries[at].packed, packed);
            shard.entries[at].held = held;
            shard.heap_bytes = shard.heap_bytes + new_bytes - old.heap_bytes();
            shard.keep_within(self.bytes_max);
            return;
        }
        // Before the new one is in, so that it is not the one that goes.
        shard.keep_within(self.bytes_max.saturating_sub(new_bytes));
        // No mark: one round behind the shard's.
        let round = shard.round.wrapping_sub(1);
        if shard.entries.len() == shard.entries.capacity() {
            // Not by doubling: half of a large table would stay empty.
            shard.entries.reserve_exact((shard.entries.len() / 8).max(4));
        }
        let at = shard.entries.len() as u32;
        shard.entries.push(Entry { hash: hash.0, packed, held, used: true, mark: 0, round });
        shard.heap_bytes += new_bytes;
        let entries = &shard.entries;
        shard.index.insert_unique(hash.0, at, |&at| entries[at as usize].hash);
        // The tables may have grown.
        shard.keep_within(self.bytes_max);
    }

    /// Forgets a locator, unless somebody has replaced it by a newer one meanwhile.
    pub(crate) fn forget(&self, hash: KeyHash, key: &[u8], stale: &Located) {
        if !Packed::fits(key, stale) {
            return;
        }
        // Before the lock: it allocates.
        let stale = Packed::new(key, stale);
        let shard = &mut *self.shard(hash).lock();
        if let Some(at) = shard.find(hash, key)
            && shard.entries[at].packed == stale
        {
            shard.drop_entry(at);
        }
    }
}

impl Entry {
    /// Marks a read.
    fn note(&mut self, marks: &mut Vec<ReadMark>, round: u32) -> Noted {
        if self.round == round {
            // An entry that was not read for 2^32 reports may meet a mark of another object here.
            if let Some(mark) = marks.get_mut(usize::from(self.mark)) {
                mark.reads = mark.reads.saturating_add(1);
                return Noted::Again;
            }
        }
        if marks.len() >= MARKS_PER_SHARD {
            return Noted::Again;
        }
        let Some(mark) = self.packed.read_mark(1, self.hash) else { return Noted::Again };
        (self.mark, self.round) = (marks.len() as u16, round);
        marks.push(mark);
        Noted::New { first: marks.len() == 1 }
    }
}

impl Shard {
    fn find(&self, hash: KeyHash, key: &[u8]) -> Option<usize> {
        let entries = &self.entries;
        let found = self.index.find(hash.0, |&at| {
            let entry = &entries[at as usize];
            entry.hash == hash.0 && entry.packed.key() == key
        });
        found.map(|&at| at as usize)
    }

    /// Bytes that it takes.
    fn bytes(&self) -> usize {
        let entries = self.entries.capacity() * size_of::<Entry>();
        self.heap_bytes + entries + self.index.allocation_size()
    }

    /// Makes room until it takes so many bytes at most.
    fn keep_within(&mut self, bytes_max: usize) {
        while self.bytes() > bytes_max && !self.entries.is_empty() {
            self.evict();
        }
    }

    /// Drops the next entry that was not used since the hand passed, or one close by.
    fn evict(&mut self) {
        for _ in 0..STEPS_MAX {
            self.hand = (self.hand + 1) % self.entries.len();
            if !std::mem::take(&mut self.entries[self.hand].used) {
                break;
            }
        }
        self.drop_entry(self.hand);
    }

    fn unlink(&mut self, at: usize) {
        let hash = self.entries[at].hash;
        let found = self.index.find_entry(hash, |&other| other as usize == at);
        found.expect("entries are indexed").remove();
    }

    fn drop_entry(&mut self, at: usize) {
        self.unlink(at);
        self.heap_bytes -= self.entries.swap_remove(at).packed.heap_bytes();
        let moved = self.entries.len();
        if at < moved {
            let hash = self.entries[at].hash;
            let found = self.index.find_mut(hash, |&other| other as usize == moved);
            *found.expect("entries are indexed") = at as u32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mooncrate_core::{ObjectId, Seal, Striping, key};

    fn located(n: u64) -> Located {
        let object = ObjectId { sequence: n, ..ObjectId::default() };
        Located {
            object,
            striping: Striping::whole(n),
            seal: Seal(n),
            more_seals: Vec::new(),
            lease_ms: 0,
            replicas: Vec::new(),
        }
    }

    /// A key of its own length for each number.
    fn key_of(n: u64) -> Vec<u8> {
        let mut key = n.to_le_bytes().to_vec();
        key.resize(8 + (n * n % 500) as usize, n as u8);
        key
    }

    /// Whatever comes, and goes, and is replaced by longer ones: what the cache takes stays within its bound,
    /// as a sum over all that it holds, and most of the bound is used.
    #[test]
    fn what_is_in_comes_out_and_the_bound_holds() {
        const BYTES_MAX: usize = 1 << 20;
        let cache = Cache::new(BYTES_MAX);
        let read = |n: u64| cache.get(key::hash(&key_of(n)), &key_of(n), None);
        for n in 0..12_000 {
            let (hash, key) = (key::hash(&key_of(n)), key_of(n));
            cache.insert(hash, &key, &located(n), Now(0));
            if n % 3 == 0 {
                let (held, _) = read(n).unwrap();
                cache.forget(hash, &key, &held);
                assert!(read(n).is_none());
            } else if n % 5 == 0 {
                cache.insert(hash, &key, &placed(n), Now(0));
            }
        }
        let found: Vec<u64> = (0..12_000).filter(|n| read(*n).is_some()).collect();
        let (count, bytes) = cache.size();
        assert_eq!(found.len(), count);
        assert!(bytes <= BYTES_MAX && bytes > BYTES_MAX / 10 * 8, "{bytes} bytes");
        let heap = |n: u64| {
            let at = if n.is_multiple_of(5) { placed(n) } else { located(n) };
            Packed::new(&key_of(n), &at).heap_bytes()
        };
        let heap: usize = found.iter().map(|n| heap(*n)).sum();
        let counted: usize = cache.shards.iter().map(|shard| shard.lock().heap_bytes).sum();
        assert_eq!(heap, counted, "every byte that came was counted, and every one that went");
        for n in found {
            assert_eq!(read(n).unwrap().0.len(), n);
        }
    }

    /// What a full cache of usual keys costs: an entry of 40 bytes, 128 for key and place, and its part of the
    /// tables. It was 1,048,576 locators whatever they took.
    #[test]
    fn a_full_cache_of_keys_of_32_bytes_takes_192_bytes_each() {
        const BYTES_MAX: usize = 4 << 20;
        let cache = Cache::new(BYTES_MAX);
        for n in 0..60_000_u64 {
            let mut key = [0x5a; 32];
            key[..8].copy_from_slice(&n.to_le_bytes());
            cache.insert(key::hash(&key), &key, &placed(n), Now(0));
        }
        let (count, bytes) = cache.size();
        assert!(bytes <= BYTES_MAX && bytes / count <= 192, "{bytes} bytes, {count} locators");
    }

    /// The hand goes a few steps per insert, also where everything was used; what was used stays longer.
    #[test]
    fn what_is_read_stays_and_making_room_is_bounded() {
        let cache = Cache::new(5 << 18);
        for n in 0..40_000_u64 {
            let key = n.to_le_bytes();
            cache.insert(key::hash(&key), &key, &placed(n), Now(0));
            if n % 16 == 0 {
                for n in 0..64_u64 {
                    cache.get(key::hash(&n.to_le_bytes()), &n.to_le_bytes(), None);
                }
            }
        }
        let there = |n: &u64| cache.peek(key::hash(&n.to_le_bytes()), &n.to_le_bytes()).is_some();
        let kept = (0..64).filter(there).count();
        assert!(kept >= 48, "{kept} of 64 that were read all the time");
        let mut shard = Shard::default();
        for n in 0..1_000_u64 {
            let packed = Packed::new(&n.to_le_bytes(), &placed(n));
            shard.heap_bytes += packed.heap_bytes();
            shard.entries.push(Entry {
                hash: n,
                packed,
                held: Now(0),
                used: true,
                mark: 0,
                round: 0,
            });
            shard.index.insert_unique(n, n as u32, |at| u64::from(*at));
        }
        shard.evict();
        let passed = shard.entries.iter().filter(|entry| !entry.used).count();
        assert_eq!((shard.entries.len(), passed), (999, STEPS_MAX - 1));
    }

    /// One that would not fit even alone is not kept, and drops no other.
    #[test]
    fn what_is_larger_than_the_bound_is_not_kept() {
        let cache = Cache::new(SHARDS * 2048);
        cache.insert(key::hash(b"k"), b"k", &placed(1), Now(0));
        let long = [7; 4096];
        cache.insert(key::hash(&long), &long, &placed(2), Now(0));
        assert!(cache.peek(key::hash(&long), &long).is_none());
        // Nor is one that was short before, as it was then.
        let mut grown = placed(3);
        while Packed::new(b"k", &grown).heap_bytes() <= 1024 {
            grown.replicas.push(grown.replicas[0]);
        }
        cache.insert(key::hash(b"k"), b"k", &grown, Now(0));
        assert!(cache.peek(key::hash(b"k"), b"k").is_none());
        assert!(cache.size().1 <= SHARDS * 2048);
    }

    #[test]
    fn a_newer_locator_is_not_forgotten_for_an_older_one() {
        let cache = Cache::new(1 << 20);
        let (hash, key) = (key::hash(b"k"), b"k");
        let (old, new) = (located(1), located(2));
        cache.insert(hash, key, &old, Now(0));
        cache.insert(hash, key, &new, Now(0));
        cache.forget(hash, key, &old);
        assert_eq!(cache.get(hash, key, None).unwrap().0.len(), 2);
        cache.forget(hash, key, &new);
        assert!(cache.get(hash, key, None).is_none());
    }

    fn placed(n: u64) -> Located {
        let mut located = located(n);
        located.replicas.push(mooncrate_core::Locator {
            segment: mooncrate_core::SegmentId(1),
            incarnation: mooncrate_core::Incarnation(1),
            slot: mooncrate_core::Slot(n as u32),
            generation: mooncrate_core::Generation(1),
            extent: mooncrate_core::Extent::new(0, n).unwrap(),
            stripe: 0,
            grant: None,
        });
        located
    }

    /// Reads of one object are one mark until it is taken, and a mark that came back as outdated forgets the
    /// locator it was made from, but no newer one.
    #[test]
    fn reads_are_merged_until_they_are_taken() {
        let cache = Cache::new(1 << 20);
        let key = |n: u64| n.to_le_bytes();
        let read = |n: u64| cache.get(key::hash(&key(n)), &key(n), None).map(|(_, noted)| noted);
        for n in 0..3 {
            cache.insert(key::hash(&key(n)), &key(n), &placed(n), Now(0));
        }
        let take = || {
            let mut marks = Vec::new();
            cache.take_marks(&mut marks);
            marks.sort_by_key(|mark| mark.slot);
            marks.into_iter().map(|mark| (mark.slot.0, mark.reads)).collect::<Vec<_>>()
        };
        for round in 0..3 {
            assert!(matches!(read(1), Some(Noted::New { .. })), "round {round}");
            assert_eq!(read(1), Some(Noted::Again));
            assert!(matches!(read(2), Some(Noted::New { .. })), "round {round}");
            assert_eq!(take(), [(1, 2), (2, 1)]);
            assert_eq!(take(), []);
        }
        let mark = placed(1).read_mark(7, key::hash(&key(1)).0).unwrap();
        cache.insert(key::hash(&key(1)), &key(1), &placed(5), Now(0));
        cache.forget_marked(&mark);
        assert!(read(1).is_some(), "it has another place by now");
        cache.insert(key::hash(&key(1)), &key(1), &placed(1), Now(0));
        cache.forget_marked(&mark);
        assert_eq!(read(1), None);
    }

    #[test]
    fn marks_are_bounded() {
        let cache = Cache::new(16 << 20);
        let key = |n: u64| n.to_le_bytes();
        for n in 0..20_000 {
            cache.insert(key::hash(&key(n)), &key(n), &placed(n), Now(0));
            cache.get(key::hash(&key(n)), &key(n), None);
        }
        let mut marks = Vec::new();
        cache.take_marks(&mut marks);
        assert_eq!(marks.len(), MARKS_MAX);
    }
}
