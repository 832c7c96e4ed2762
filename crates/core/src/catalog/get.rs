//! get: where a key lives. Asking protects nothing; a lease does, and only when it is asked for
//! (M12).

use super::Catalog;
use super::chains::Batch;
use super::objects::{Entry, EntryId, Part, PartState, Stage};
use crate::error::GetError;
use crate::ids::{ObjectId, TenantId};
use crate::key::{self, Key, Name};
use crate::lease;
use crate::plan::{Located, Medium};
use crate::time::Now;
use std::ops::ControlFlow;

/// Slab positions that one `list` call walks.
const LIST_WALK_MAX: u32 = 8192;
/// Slab positions that one slice of a listing walks, and bytes of keys that it copies: some 50 µs.
const SLICE_WALK_MAX: u32 = 512;
const SLICE_KEY_BYTES_MAX: usize = 64 << 10;
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

/// A slice of a listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListSlice {
    /// What was found, each with where to go on behind it.
    pub entries: Vec<(u64, Listed)>,
    /// Where to go on; `None` at the end.
    pub next: Option<u64>,
}

impl Catalog {
    /// Where the readable copies of a key are. `lease_ms` > 0 asks that none of them is freed for
    /// that long.
    pub fn locate<'a>(
        &mut self,
        now: Now,
        name: impl Into<Name<'a>>,
        lease_ms: u32,
    ) -> Result<Located, GetError> {
        let name = name.into();
        key::check(name.key)?;
        let found = [self.objects.find(name)];
        self.count_request();
        self.locate_found(now, found[0], lease_ms, &mut Batch::new(&found))
    }

    /// The same for many keys, at less than the sum of their prices.
    pub fn locate_many(
        &mut self,
        now: Now,
        tenant: TenantId,
        keys: &[&[u8]],
        lease_ms: u32,
    ) -> Vec<Result<Located, GetError>> {
        let found = self.objects.find_many(tenant, keys);
        self.count_request();
        let (mut batch, keys) = (Batch::new(&found), keys.iter().enumerate());
        keys.map(|(at, key)| {
            key::check(key)?;
            batch.at = at;
            let located = self.locate_found(now, found[at], lease_ms, &mut batch);
            if located.is_err() {
                self.chain_missed(Name::new(tenant, key), &mut batch);
            }
            located
        })
        .collect()
    }

    pub(super) fn locate_found(
        &mut self,
        now: Now,
        found: Option<EntryId>,
        lease_ms: u32,
        batch: &mut Batch<'_>,
    ) -> Result<Located, GetError> {
        let found = found.and_then(|id| Some((id, self.located(id)?)));
        let Some((id, mut located)) = found else { return Err(self.absent(now)) };
        let lease_ms = lease::granted_ms(lease_ms);
        located.lease_ms = lease_ms;
        self.touch_parts(id);
        self.chain_read(id, batch);
        if lease_ms > 0 {
            let entry = self.objects.entry_mut(id);
            entry.lease_end = entry.lease_end.max(lease::grantor_end(now, lease_ms));
            self.chain_leased(id);
        }
        if self.objects.entry(id).extra.is_some() {
            self.was_read(now, id);
        }
        self.counters.hits += 1;
        if self.only_on_disk(self.objects.entry(id)) {
            self.counters.hits_disk += 1;
            self.read_from_disk(now, id, 1);
        } else if self.all_in_vram(self.objects.entry(id)) {
            self.counters.hits_vram += 1;
        }
        Ok(located)
    }

    fn all_in_vram(&self, entry: &Entry) -> bool {
        let here = |part: &Part| {
            self.segments.medium(part.segment) == Medium::Vram && self.part_readable(part)
        };
        !self.segments.open_on(Medium::Vram).segments.is_empty() && entry.complete(here)
    }

    /// Where the readable copies of a key are, for somebody who only looks: grants nothing, touches
    /// nothing, counts nothing.
    pub fn peek<'a>(&self, name: impl Into<Name<'a>>) -> Option<Located> {
        self.located(self.objects.find(name.into())?)
    }

    /// A finished object with a readable copy of all of it; no lease.
    pub(super) fn located(&self, id: EntryId) -> Option<Located> {
        let entry = self.objects.entry(id);
        if entry.stage != Stage::Ready {
            return None;
        }
        let mut replicas: Vec<_> = entry
            .parts
            .as_slice()
            .iter()
            .filter(|part| self.part_readable(part))
            .map(|part| entry.locator(part, self.segments.book(part.segment)))
            .collect();
        if replicas.is_empty() || entry.extra.is_some() && !self.readable(entry) {
            return None;
        }
        if replicas.len() > 1 {
            // Copies of one stripe stand together: first memory, those on silent nodes last. Memory of a host
            // before VRAM, which most readers cannot map: one with a GPU chooses for itself.
            replicas.sort_by_key(|locator| {
                let index = self.segments.find(locator.segment);
                let open = index.is_some_and(|index| self.segments.loads[index as usize].open);
                let medium = locator.segment.medium();
                (locator.stripe, medium == Medium::Ssd, !open, medium == Medium::Vram)
            });
        }
        let more_seals = entry.extra.as_ref().map_or(Vec::new(), |extra| extra.more_seals.to_vec());
        Some(Located {
            object: entry.object,
            striping: entry.striping(),
            seal: entry.seal,
            more_seals,
            lease_ms: 0,
            replicas,
        })
    }

    /// Moves an object back in the eviction order.
    pub(super) fn touch_parts(&mut self, id: EntryId) {
        for part in self.objects.entry(id).parts.as_slice() {
            self.segments.book_mut(part.segment).touch(part.slot);
        }
    }

    /// Whether a key has a readable copy. Grants nothing and touches nothing.
    pub fn exist<'a>(&self, now: Now, name: impl Into<Name<'a>>) -> Result<bool, GetError> {
        let name = name.into();
        key::check(name.key)?;
        self.exist_found(now, self.objects.find(name))
    }

    /// The same for many keys.
    pub fn exist_many(
        &self,
        now: Now,
        tenant: TenantId,
        keys: &[&[u8]],
    ) -> Vec<Result<bool, GetError>> {
        let found = self.objects.find_many(tenant, keys);
        let keys = keys.iter().zip(found);
        keys.map(|(key, found)| {
            key::check(key)?;
            self.exist_found(now, found)
        })
        .collect()
    }

    pub(super) fn exist_found(&self, now: Now, found: Option<EntryId>) -> Result<bool, GetError> {
        let found = found.is_some_and(|id| {
            let entry = self.objects.entry(id);
            entry.stage == Stage::Ready && self.readable(entry)
        });
        match &self.rebuild {
            Some(rebuild) if !found => Err(GetError::Rebuilding { after_ms: rebuild.left_ms(now) }),
            _ => Ok(found),
        }
    }

    /// A page of a tenant's finished objects whose keys match; bounded work per call.
    pub fn list(
        &self,
        tenant: TenantId,
        matches: impl Fn(&[u8]) -> bool,
        cursor: u64,
        limit: u32,
    ) -> ListPage {
        let mut entries = Vec::new();
        let mut key_bytes = 0;
        let next = self.walk(cursor, LIST_WALK_MAX, |_, entry| {
            if entry.tenant != tenant || entry.stage != Stage::Ready || !matches(&entry.key) {
                return ControlFlow::Continue(());
            }
            key_bytes += entry.key.len();
            entries.push(self.listed(entry));
            let full = entries.len() >= limit.max(1) as usize || key_bytes >= LIST_KEY_BYTES_MAX;
            if full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        ListPage { entries, next }
    }

    /// A few finished objects of a tenant whose keys begin so, each with the cursor behind it: what a caller
    /// looks at when it has given the lock back, because a pattern of its own may take long for one key. `removing`: also
    /// those that are being removed.
    pub fn list_slice(
        &self,
        tenant: TenantId,
        prefix: &[u8],
        cursor: u64,
        removing: bool,
    ) -> ListSlice {
        let mut entries = Vec::new();
        let mut key_bytes = 0;
        let next = self.walk(cursor, SLICE_WALK_MAX, |id, entry| {
            let listed = match entry.stage {
                Stage::Ready => true,
                Stage::Removing(_) => removing,
                Stage::Writing => false,
            };
            if listed && entry.tenant == tenant && entry.key.starts_with(prefix) {
                key_bytes += entry.key.len();
                entries.push((u64::from(id) + 1, self.listed(entry)));
            }
            let full = key_bytes >= SLICE_KEY_BYTES_MAX;
            if full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        ListSlice { entries, next }
    }

    fn listed(&self, entry: &Entry) -> Listed {
        let replicas = entry.parts.as_slice().iter().filter(|part| self.part_readable(part));
        Listed {
            key: Key::new(&entry.key).expect("indexed keys are valid"),
            len: entry.len,
            object: entry.object,
            replicas: (replicas.count() / entry.stripes()) as u8,
        }
    }

    /// Visits entries from a cursor on, so many positions at most; where to go on, if there is more.
    fn walk(
        &self,
        cursor: u64,
        positions: u32,
        mut visit: impl FnMut(EntryId, &Entry) -> ControlFlow<()>,
    ) -> Option<u64> {
        let first = u32::try_from(cursor).unwrap_or(u32::MAX);
        let end = self.objects.positions();
        let last = first.saturating_add(positions).min(end);
        for id in first..last {
            let Some(entry) = self.objects.get(id) else { continue };
            if visit(id, entry).is_break() && id + 1 < end {
                return Some(u64::from(id) + 1);
            }
        }
        (last < end).then_some(last.into())
    }

    pub(super) fn readable(&self, entry: &Entry) -> bool {
        entry.complete(|part| self.part_readable(part))
    }

    pub(super) fn part_readable(&self, part: &Part) -> bool {
        part.state == PartState::Here && self.segments.book(part.segment).is_readable()
    }

    fn absent(&mut self, now: Now) -> GetError {
        self.counters.misses += 1;
        match &self.rebuild {
            Some(rebuild) => GetError::Rebuilding { after_ms: rebuild.left_ms(now) },
            None => GetError::NotFound,
        }
    }
}
