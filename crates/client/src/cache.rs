//! Locators that were used before. A stale one costs a failed check, never a wrong byte, so the
//! cache needs no leases and no invalidation. Bounded; the hand of a clock makes room.
//!
//! It also holds the marks of reads that are not told yet (`reads.rs`), one per object. They lie beside the
//! locators because a read has that shard's lock anyway: marking takes no lock of its own.

use hashbrown::HashTable;
use mooncrate_core::key::KeyHash;
use mooncrate_core::limits::BATCH_ITEMS_MAX;
use mooncrate_core::plan::{Located, ReadMark};
use mooncrate_lock::Mutex;
use std::sync::Arc;

const SHARDS: usize = 64;
/// Marks that one report takes from a shard. Beyond, an object is not marked until the next report.
const MARKS_PER_SHARD: usize = 64;
/// Marks of one report.
pub(crate) const MARKS_MAX: usize = SHARDS * MARKS_PER_SHARD;

const _: () = assert!(MARKS_MAX <= BATCH_ITEMS_MAX, "a report is one frame");
const _: () = assert!(MARKS_PER_SHARD <= u16::MAX as usize, "see Entry::mark");

/// Locators by key.
#[derive(Debug)]
pub(crate) struct Cache {
    shards: Vec<Mutex<Shard>>,
    entries_max: usize,
}

#[derive(Debug, Default)]
struct Shard {
    index: HashTable<u32>,
    entries: Vec<Entry>,
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
    key: Box<[u8]>,
    located: Arc<Located>,
    /// Used since the hand passed.
    used: bool,
    /// Which of the shard's marks is its own, if it was made in the shard's round.
    mark: u16,
    round: u32,
}

impl Cache {
    /// A cache of about `locators_max` entries.
    pub(crate) fn new(locators_max: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            entries_max: locators_max.div_ceil(SHARDS).max(1),
        }
    }

    fn shard(&self, hash: KeyHash) -> &Mutex<Shard> {
        &self.shards[(hash.0 >> 48) as usize % SHARDS]
    }

    /// The locator of a key, for a read, which is marked.
    pub(crate) fn get(&self, hash: KeyHash, key: &[u8]) -> Option<(Arc<Located>, Noted)> {
        let shard = &mut *self.shard(hash).lock();
        let at = shard.find(hash, key)?;
        let entry = &mut shard.entries[at];
        entry.used = true;
        let noted = entry.note(&mut shard.marks, shard.round);
        Some((Arc::clone(&entry.located), noted))
    }

    /// The locator of a key, without a mark: the master hears of the read, or cannot hear of it.
    pub(crate) fn peek(&self, hash: KeyHash, key: &[u8]) -> Option<Arc<Located>> {
        let shard = &*self.shard(hash).lock();
        Some(Arc::clone(&shard.entries[shard.find(hash, key)?].located))
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
            let same = entry.located.read_mark(mark.reads, mark.tag).as_ref() == Some(mark);
            entry.hash == mark.tag && same
        });
        if let Some(&at) = found {
            shard.drop_entry(at as usize);
        }
    }

    pub(crate) fn insert(&self, hash: KeyHash, key: &[u8], located: Arc<Located>) {
        let shard = &mut *self.shard(hash).lock();
        if let Some(at) = shard.find(hash, key) {
            shard.entries[at].located = located;
            return;
        }
        // No mark: one round behind the shard's.
        let round = shard.round.wrapping_sub(1);
        let entry = Entry { hash: hash.0, key: key.into(), located, used: true, mark: 0, round };
        let at = if shard.entries.len() < self.entries_max {
            shard.entries.push(entry);
            shard.entries.len() - 1
        } else {
            let at = shard.make_room();
            shard.entries[at] = entry;
            at
        };
        let entries = &shard.entries;
        shard.index.insert_unique(hash.0, at as u32, |&at| entries[at as usize].hash);
    }

    /// Forgets a locator, unless somebody has replaced it by a newer one meanwhile.
    pub(crate) fn forget(&self, hash: KeyHash, key: &[u8], stale: &Arc<Located>) {
        let shard = &mut *self.shard(hash).lock();
        if let Some(at) = shard.find(hash, key)
            && Arc::ptr_eq(&shard.entries[at].located, stale)
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
        let Some(mark) = self.located.read_mark(1, self.hash) else { return Noted::Again };
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
            entry.hash == hash.0 && *entry.key == *key
        });
        found.map(|&at| at as usize)
    }

    /// Takes the next entry that was not used since the hand passed out of the index.
    fn make_room(&mut self) -> usize {
        loop {
            self.hand = (self.hand + 1) % self.entries.len();
            let at = self.hand;
            if !std::mem::take(&mut self.entries[at].used) {
                self.unlink(at);
                return at;
            }
        }
    }

    fn unlink(&mut self, at: usize) {
        let hash = self.entries[at].hash;
        let found = self.index.find_entry(hash, |&other| other as usize == at);
        found.expect("entries are indexed").remove();
    }

    fn drop_entry(&mut self, at: usize) {
        self.unlink(at);
        self.entries.swap_remove(at);
        let moved = self.entries.len();
        if at < moved {
            let hash = self.entries[at].hash;
            let found = self.index.find_mut(hash, |&other| other as usize == moved);
            *found.expect("entries are indexed") = at as u32;
        }
        self.hand = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mooncrate_core::{ObjectId, Seal, Striping, key};

    fn located(n: u64) -> Arc<Located> {
        let object = ObjectId { sequence: n, ..ObjectId::default() };
        Arc::new(Located {
            object,
            striping: Striping::whole(n),
            seal: Seal(n),
            more_seals: Vec::new(),
            lease_ms: 0,
            replicas: Vec::new(),
        })
    }

    #[test]
    fn what_is_in_comes_out_and_the_bound_holds() {
        let cache = Cache::new(640);
        let key = |n: u64| n.to_le_bytes();
        for n in 0..5000 {
            cache.insert(key::hash(&key(n)), &key(n), located(n));
            if n % 3 == 0 {
                let (held, _) = cache.get(key::hash(&key(n)), &key(n)).unwrap();
                cache.forget(key::hash(&key(n)), &key(n), &held);
                assert!(cache.get(key::hash(&key(n)), &key(n)).is_none());
            }
        }
        let found: Vec<u64> =
            (0..5000).filter(|n| cache.get(key::hash(&key(*n)), &key(*n)).is_some()).collect();
        assert!(found.len() <= 640 && found.len() > 300, "{}", found.len());
        for n in found {
            assert_eq!(cache.get(key::hash(&key(n)), &key(n)).unwrap().0.len(), n);
        }
    }

    #[test]
    fn a_newer_locator_is_not_forgotten_for_an_older_one() {
        let cache = Cache::new(8);
        let (hash, key) = (key::hash(b"k"), b"k");
        let (old, new) = (located(1), located(2));
        cache.insert(hash, key, Arc::clone(&old));
        cache.insert(hash, key, Arc::clone(&new));
        cache.forget(hash, key, &old);
        assert_eq!(cache.get(hash, key).unwrap().0.len(), 2);
        cache.forget(hash, key, &new);
        assert!(cache.get(hash, key).is_none());
    }

    fn placed(n: u64) -> Arc<Located> {
        let mut located = Arc::unwrap_or_clone(located(n));
        located.replicas.push(mooncrate_core::Locator {
            segment: mooncrate_core::SegmentId(1),
            incarnation: mooncrate_core::Incarnation(1),
            slot: mooncrate_core::Slot(n as u32),
            generation: mooncrate_core::Generation(1),
            extent: mooncrate_core::Extent::new(0, n).unwrap(),
            stripe: 0,
            grant: None,
        });
        Arc::new(located)
    }

    /// Reads of one object are one mark until it is taken, and a mark that came back as outdated forgets the
    /// locator it was made from, but no newer one.
    #[test]
    fn reads_are_merged_until_they_are_taken() {
        let cache = Cache::new(1 << 10);
        let key = |n: u64| n.to_le_bytes();
        let read = |n: u64| cache.get(key::hash(&key(n)), &key(n)).map(|(_, noted)| noted);
        for n in 0..3 {
            cache.insert(key::hash(&key(n)), &key(n), placed(n));
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
        cache.insert(key::hash(&key(1)), &key(1), placed(5));
        cache.forget_marked(&mark);
        assert!(read(1).is_some(), "it has another place by now");
        cache.insert(key::hash(&key(1)), &key(1), placed(1));
        cache.forget_marked(&mark);
        assert_eq!(read(1), None);
    }

    #[test]
    fn marks_are_bounded() {
        let cache = Cache::new(1 << 20);
        let key = |n: u64| n.to_le_bytes();
        for n in 0..20_000 {
            cache.insert(key::hash(&key(n)), &key(n), placed(n));
            cache.get(key::hash(&key(n)), &key(n));
        }
        let mut marks = Vec::new();
        cache.take_marks(&mut marks);
        assert_eq!(marks.len(), MARKS_MAX);
    }
}
