//! A store small enough to be surely right, and a twin that is surely wrong.
//!
//! The model keeps values in a map and moves bytes in chunks, so that calls of several clients can
//! interleave at every chunk. Freed buffers are reused without wiping, as real memory is: whoever
//! reads too early sees somebody else's bytes. With [`Publish::BeforeLastChunk`] it makes the
//! mistake of canary 4, and a rig that does not notice is no rig.

use crate::audit::Audit;
use mooncrate_core::KeyHash;
use mooncrate_core::error::PutError;
use std::collections::BTreeMap;

/// When a value becomes visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Publish {
    /// When `put_end` was called after the last byte: correct.
    AfterLastByte,
    /// When the last chunk is still to come: canary 4.
    BeforeLastChunk,
}

/// The model.
#[derive(Debug)]
pub struct ModelStore {
    publish: Publish,
    /// What each key leads to.
    objects: BTreeMap<KeyHash, Object>,
    /// Buffers of removed values, kept with their bytes.
    freed: Vec<Vec<u8>>,
    puts: u64,
    capacity: u64,
}

#[derive(Debug)]
struct Object {
    token: ModelToken,
    bytes: Vec<u8>,
    written: usize,
    visible: bool,
}

/// The right to write and finish one put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelToken(u64);

impl ModelStore {
    /// An empty store of `capacity` bytes.
    pub fn new(publish: Publish, capacity: u64) -> Self {
        let objects = BTreeMap::new();
        Self { publish, objects, freed: Vec::new(), puts: 0, capacity }
    }

    /// Reserves room for a value.
    pub fn put_start(&mut self, key: KeyHash, len: usize) -> Result<ModelToken, PutError> {
        match self.objects.get(&key) {
            Some(object) if object.visible => return Err(PutError::Exists),
            Some(_) => return Err(PutError::InProgress { after_ms: 0 }),
            None => {}
        }
        if len as u64 > self.audit().free {
            return Err(PutError::Busy { after_ms: 0 });
        }
        let mut bytes = self.freed.pop().unwrap_or_default();
        bytes.resize(len, 0);
        self.puts += 1;
        let token = ModelToken(self.puts);
        self.objects.insert(key, Object { token, bytes, written: 0, visible: false });
        Ok(token)
    }

    /// Writes the next chunk; `false` if the put is over (its key was removed).
    pub fn put_chunk(&mut self, key: KeyHash, token: ModelToken, chunk: &[u8]) -> bool {
        let Some(object) = self.objects.get_mut(&key).filter(|o| o.token == token) else {
            return false;
        };
        let end = object.written + chunk.len();
        object.bytes[object.written..end].copy_from_slice(chunk);
        object.written = end;
        // The mistake, where it is asked for: one more chunk like this one is still missing.
        let nearly = end + chunk.len() >= object.bytes.len();
        if self.publish == Publish::BeforeLastChunk && nearly {
            object.visible = true;
        }
        true
    }

    /// Makes the value visible; `false` if the put is over.
    ///
    /// # Panics
    /// When bytes are missing.
    pub fn put_end(&mut self, key: KeyHash, token: ModelToken) -> bool {
        let Some(object) = self.objects.get_mut(&key).filter(|o| o.token == token) else {
            return false;
        };
        assert_eq!(object.written, object.bytes.len(), "a put ends after its last byte");
        object.visible = true;
        true
    }

    /// A copy of the value.
    pub fn get(&self, key: KeyHash) -> Option<Vec<u8>> {
        self.objects.get(&key).filter(|object| object.visible).map(|object| object.bytes.clone())
    }

    /// Removes a value, or a put under way; `false` if there is none. Eviction is the same.
    pub fn remove(&mut self, key: KeyHash) -> bool {
        let removed = self.objects.remove(&key);
        let found = removed.is_some();
        self.freed.extend(removed.map(|object| object.bytes));
        found
    }

    /// Its accounts.
    pub fn audit(&self) -> Audit {
        let used = self.objects.values().map(|object| object.bytes.len() as u64).sum();
        Audit { capacity: self.capacity, free: self.capacity - used, used, quarantined: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: KeyHash = KeyHash(1);

    #[test]
    fn a_value_is_seen_after_its_end_and_until_its_removal() {
        let mut store = ModelStore::new(Publish::AfterLastByte, 100);
        let token = store.put_start(KEY, 6).unwrap();
        assert!(store.put_chunk(KEY, token, b"moo"));
        assert!(store.put_chunk(KEY, token, b"ncr"));
        assert_eq!(store.get(KEY), None, "not before its end");
        assert!(store.put_end(KEY, token));
        assert_eq!(store.get(KEY).as_deref(), Some(&b"mooncr"[..]));
        assert_eq!(store.put_start(KEY, 1), Err(PutError::Exists));
        assert!(store.remove(KEY) && !store.remove(KEY));
        assert_eq!(store.get(KEY), None);
        assert_eq!(store.audit().check_drained(0), Ok(()));
    }

    #[test]
    fn an_old_token_writes_nothing() {
        let mut store = ModelStore::new(Publish::AfterLastByte, 100);
        let old = store.put_start(KEY, 3).unwrap();
        assert_eq!(store.put_start(KEY, 3), Err(PutError::InProgress { after_ms: 0 }));
        store.remove(KEY);
        let new = store.put_start(KEY, 3).unwrap();
        assert!(!store.put_chunk(KEY, old, b"old"));
        assert!(store.put_chunk(KEY, new, b"new"));
        assert!(!store.put_end(KEY, old));
        assert!(store.put_end(KEY, new));
        assert_eq!(store.get(KEY).as_deref(), Some(&b"new"[..]));
    }

    #[test]
    fn a_full_store_is_busy() {
        let mut store = ModelStore::new(Publish::AfterLastByte, 5);
        assert_eq!(store.put_start(KEY, 6), Err(PutError::Busy { after_ms: 0 }));
        store.put_start(KEY, 5).unwrap();
        assert_eq!(store.audit().check(), Ok(()));
        assert_eq!(store.put_start(KeyHash(2), 1), Err(PutError::Busy { after_ms: 0 }));
    }

    #[test]
    fn the_broken_twin_shows_a_value_too_early() {
        let mut store = ModelStore::new(Publish::BeforeLastChunk, 100);
        let token = store.put_start(KEY, 6).unwrap();
        store.put_chunk(KEY, token, b"moo");
        assert_eq!(store.get(KEY).as_deref(), Some(&b"moo\0\0\0"[..]));
    }
}
