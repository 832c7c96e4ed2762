//! get: where a key lives. Asking protects nothing; a lease does, and only when it is asked for
//! (M12).

use super::Catalog;
use super::objects::{Entry, EntryId, Part, Stage};
use crate::error::GetError;
use crate::ids::ObjectId;
use crate::key::{self, Key};
use crate::lease;
use crate::plan::Located;
use crate::time::Now;

/// Slab positions that one `list` call walks.
const LIST_WALK_MAX: u32 = 8192;
/// Bytes of keys on one page: it must fit into a frame.
const LIST_KEY_BYTES_MAX: usize = 4 << 20;

/// One object of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its key.
    pub key: Key,
    /// Bytes of the value.
    pub len: u64,
    /// The put that stored it.
    pub object: ObjectId,
    /// Readable copies.
    pub replicas: u8,
}

/// A page of a listing, in no particular order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListPage {
    /// What was found; may be empty though more follows.
    pub entries: Vec<Listed>,
    /// Where to go on; `None` at the end.
    pub next: Option<u64>,
}

impl Catalog {
    /// Where the readable copies of a key are. `lease_ms` > 0 asks that none of them is freed for
    /// that long.
    pub fn locate(&mut self, now: Now, key: &[u8], lease_ms: u32) -> Result<Located, GetError> {
        key::check(key)?;
        let found = self.objects.find(key::hash(key), key);
        self.locate_found(now, found, lease_ms)
    }

    /// The same for many keys, at less than the sum of their prices.
    pub fn locate_many(
        &mut self,
        now: Now,
        keys: &[&[u8]],
        lease_ms: u32,
    ) -> Vec<Result<Located, GetError>> {
        let found = self.objects.find_many(keys);
        let keys = keys.iter().zip(found);
        keys.map(|(key, found)| {
            key::check(key)?;
            self.locate_found(now, found, lease_ms)
        })
        .collect()
    }

    fn locate_found(
        &mut self,
        now: Now,
        found: Option<EntryId>,
        lease_ms: u32,
    ) -> Result<Located, GetError> {
        let Some(id) = found else { return Err(self.absent(now)) };
        let entry = self.objects.entry(id);
        if entry.stage != Stage::Ready {
            return Err(self.absent(now));
        }
        let replicas: Vec<_> = entry
            .parts
            .as_slice()
            .iter()
            .filter(|part| self.part_readable(part))
            .map(|part| entry.locator(part, self.segments.book(part.segment)))
            .collect();
        if replicas.is_empty() {
            return Err(self.absent(now));
        }
        let lease_ms = lease::granted_ms(lease_ms);
        let located =
            Located { object: entry.object, len: entry.len, seal: entry.seal, lease_ms, replicas };
        for part in entry.parts.as_slice() {
            self.segments.book_mut(part.segment).policy.touch(part.slot);
        }
        if lease_ms > 0 {
            let entry = self.objects.entry_mut(id);
            entry.lease_end = entry.lease_end.max(lease::grantor_end(now, lease_ms));
        }
        self.counters.hits += 1;
        Ok(located)
    }

    /// Whether a key has a readable copy. Grants nothing and touches nothing.
    pub fn exist(&self, now: Now, key: &[u8]) -> Result<bool, GetError> {
        key::check(key)?;
        self.exist_found(now, self.objects.find(key::hash(key), key))
    }

    /// The same for many keys.
    pub fn exist_many(&self, now: Now, keys: &[&[u8]]) -> Vec<Result<bool, GetError>> {
        let found = self.objects.find_many(keys);
        let keys = keys.iter().zip(found);
        keys.map(|(key, found)| {
            key::check(key)?;
            self.exist_found(now, found)
        })
        .collect()
    }

    fn exist_found(&self, now: Now, found: Option<EntryId>) -> Result<bool, GetError> {
        let found = found.is_some_and(|id| {
            let entry = self.objects.entry(id);
            entry.stage == Stage::Ready && self.readable(entry)
        });
        match &self.rebuild {
            Some(rebuild) if !found => Err(GetError::Rebuilding { after_ms: rebuild.hint_ms(now) }),
            _ => Ok(found),
        }
    }

    /// A page of the finished objects whose key starts with `prefix`; bounded work per call.
    pub fn list(&self, prefix: &[u8], cursor: u64, limit: u32) -> ListPage {
        let mut page = ListPage::default();
        let first = u32::try_from(cursor).unwrap_or(u32::MAX);
        let end = self.objects.positions();
        let limit = limit.max(1) as usize;
        let mut key_bytes = 0;
        for id in first..end {
            let full = page.entries.len() >= limit || key_bytes >= LIST_KEY_BYTES_MAX;
            if full || id - first >= LIST_WALK_MAX {
                page.next = Some(id.into());
                break;
            }
            let Some(entry) = self.objects.get(id) else { continue };
            if entry.stage == Stage::Ready && entry.key.starts_with(prefix) {
                let replicas = entry.parts.as_slice().iter().filter(|p| self.part_readable(p));
                key_bytes += entry.key.len();
                page.entries.push(Listed {
                    key: Key::new(&entry.key).expect("indexed keys are valid"),
                    len: entry.len,
                    object: entry.object,
                    replicas: replicas.count() as u8,
                });
            }
        }
        page
    }

    pub(super) fn readable(&self, entry: &Entry) -> bool {
        entry.parts.as_slice().iter().any(|part| self.part_readable(part))
    }

    fn part_readable(&self, part: &Part) -> bool {
        !part.evicting && self.segments.book(part.segment).is_readable()
    }

    fn absent(&mut self, now: Now) -> GetError {
        self.counters.misses += 1;
        match &self.rebuild {
            Some(rebuild) => GetError::Rebuilding { after_ms: rebuild.hint_ms(now) },
            None => GetError::NotFound,
        }
    }
}
