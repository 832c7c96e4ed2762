//! Locators that were used before. A stale one costs a failed check, never a wrong byte, so the
//! cache needs no leases and no invalidation. Bounded; the hand of a clock makes room.

use hashbrown::HashTable;
use mooncrate_core::key::KeyHash;
use mooncrate_core::plan::Located;
use mooncrate_lock::Mutex;
use std::sync::Arc;

const SHARDS: usize = 64;

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
}

#[derive(Debug)]
struct Entry {
    hash: u64,
    key: Box<[u8]>,
    located: Arc<Located>,
    /// Used since the hand passed.
    used: bool,
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

    pub(crate) fn get(&self, hash: KeyHash, key: &[u8]) -> Option<Arc<Located>> {
        let shard = &mut *self.shard(hash).lock();
        let at = shard.find(hash, key)?;
        let entry = &mut shard.entries[at];
        entry.used = true;
        Some(Arc::clone(&entry.located))
    }

    pub(crate) fn insert(&self, hash: KeyHash, key: &[u8], located: Arc<Located>) {
        let shard = &mut *self.shard(hash).lock();
        if let Some(at) = shard.find(hash, key) {
            shard.entries[at].located = located;
            return;
        }
        let entry = Entry { hash: hash.0, key: key.into(), located, used: true };
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
                let held = cache.get(key::hash(&key(n)), &key(n)).unwrap();
                cache.forget(key::hash(&key(n)), &key(n), &held);
                assert!(cache.get(key::hash(&key(n)), &key(n)).is_none());
            }
        }
        let found: Vec<u64> =
            (0..5000).filter(|n| cache.get(key::hash(&key(*n)), &key(*n)).is_some()).collect();
        assert!(found.len() <= 640 && found.len() > 300, "{}", found.len());
        for n in found {
            assert_eq!(cache.get(key::hash(&key(n)), &key(n)).unwrap().len(), n);
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
        assert_eq!(cache.get(hash, key).unwrap().len(), 2);
        cache.forget(hash, key, &new);
        assert!(cache.get(hash, key).is_none());
    }
}
