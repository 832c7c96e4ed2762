//! Objects: a slab of entries and an index from key to entry.
//!
//! The index is cut into shards so that a growing table is rehashed a thousandth at a time, and the
//! slab grows in chunks: no call pays for ten million objects.

use crate::alloc::Allocation;
use crate::chunked::Chunked;
use crate::extent::Extent;
use crate::ids::{Generation, GroupId, ObjectId, Slot, TenantId};
use crate::key::{KeyHash, Name};
use crate::limits::STRIPES_MAX;
use crate::plan::{Keep, Locator, Striping};
use crate::seal::{self, Seal};
use crate::time::Now;
use hashbrown::HashTable;

const SHARDS: usize = 1024;

/// Number of an entry in the slab.
pub(super) type EntryId = u32;

/// Index of a segment in the catalog's table.
pub(super) type SegmentIndex = u16;

/// Where an object stands in the master's mind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// `put_start` was answered, `put_end` not yet.
    Writing,
    /// Visible.
    Ready,
    /// Removed or given up: hidden; this many owners have not yet said that nobody can read or
    /// publish it any more.
    Removing(u16),
}

/// One replica of an object.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub offset: u64,
    pub slot: Slot,
    pub generation: Generation,
    /// The allocator's name for the range.
    pub handle: u32,
    pub segment: SegmentIndex,
    /// Which stripe of the value it holds.
    pub stripe: u8,
    /// Whether it can be read.
    pub state: PartState,
}

/// What the master does with a replica at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PartState {
    /// Nothing: it is readable when its object is.
    Here,
    /// An evict order is out: hidden until the owner answers.
    Evicting,
    /// Its owner is fetching the bytes from another one: neither readable nor evictable.
    Copying,
}

impl Part {
    /// A replica that its owner is about to fetch.
    pub(super) fn copying(
        segment: SegmentIndex,
        slot: Slot,
        generation: Generation,
        allocation: Allocation,
        stripe: u8,
    ) -> Self {
        let (offset, handle) = (allocation.extent.offset(), allocation.handle);
        Self { offset, slot, generation, handle, segment, stripe, state: PartState::Copying }
    }

    /// Which slot of which segment.
    pub(super) fn slot_of(&self) -> (SegmentIndex, Slot) {
        (self.segment, self.slot)
    }
}

/// One object.
#[derive(Debug)]
pub(super) struct Entry {
    pub key: Box<[u8]>,
    pub hash: u64,
    pub object: ObjectId,
    pub len: u64,
    pub seal: Seal,
    /// No owner may free its bytes before then.
    pub lease_end: Now,
    /// A remove without force is refused before then; nothing else waits for it.
    pub held_until: Now,
    pub parts: Parts,
    pub tenant: TenantId,
    pub stage: Stage,
    /// Not in the index: an upsert that is being written, or a value that one has replaced.
    pub hidden: bool,
    /// Its copies on disks were begun ahead of its eviction: once is enough. A disk that lets go of them
    /// again is smaller than what it is asked to hold, and would be written for ever.
    pub saved: bool,
    /// What most objects have not.
    pub extra: Option<Box<Extra>>,
}

/// What most objects have not: stripes, pins, a group, an expiry, copies that were given up.
#[derive(Debug)]
pub(super) struct Extra {
    pub stripe_bytes: u64,
    /// Seals of all stripes but the first.
    pub more_seals: Box<[Seal]>,
    pub keep: Keep,
    /// A soft pin counts until then.
    pub soft_until: Now,
    pub group: GroupId,
    /// Neighbours in the group.
    pub next: EntryId,
    pub previous: EntryId,
    pub expire_ms: u32,
    /// When it expires, by its first get; the catalog's list of ends has the same.
    pub expire_at: Option<Now>,
    /// Copies that a replan gave up and values that an upsert replaced, whose owners have not confirmed
    /// it: until they have, the key cannot be free, or an old copy could come back after a remove (G6).
    pub orphans: u16,
    /// The object that an upsert replaced, until its owners have confirmed that it is gone.
    pub replaces: Option<ObjectId>,
    /// The entry that took the key over from this one, and whose key is not free before this one is gone.
    pub replaced_by: EntryId,
    /// Its value was cut off, and its key is wanted: the owners that are heard have not all answered.
    pub given_up: bool,
    /// Copies in memory that its put asked for.
    pub copies: u8,
    /// How many of them in VRAM. A new leader does not know of this wish, nor of the next one, any more.
    pub in_vram: Option<u8>,
    /// Copies on disks that its put asked for.
    pub on_disk: u8,
}

impl Extra {
    /// Whether an object with this has nothing that others have not.
    fn is_plain(&self) -> bool {
        self.more_seals.is_empty()
            && self.keep == Keep::Normal
            && self.group == GroupId(0)
            && self.expire_ms == 0
            && self.orphans == 0
            && self.replaces.is_none()
            && self.replaced_by == EntryId::MAX
            && self.copies <= 1
            && self.on_disk == 0
    }
}

impl Default for Extra {
    fn default() -> Self {
        Self {
            stripe_bytes: 0,
            more_seals: Box::default(),
            keep: Keep::Normal,
            soft_until: Now(0),
            group: GroupId(0),
            next: EntryId::MAX,
            previous: EntryId::MAX,
            expire_ms: 0,
            expire_at: None,
            orphans: 0,
            replaces: None,
            replaced_by: EntryId::MAX,
            given_up: false,
            copies: 1,
            in_vram: None,
            on_disk: 0,
        }
    }
}

/// Replicas: nearly always one, so that one is stored in place.
#[derive(Debug)]
pub(super) enum Parts {
    One(Part),
    Many(Box<[Part]>),
}

impl Parts {
    pub(super) fn new(parts: Vec<Part>) -> Self {
        match <[Part; 1]>::try_from(parts) {
            Ok([part]) => Self::One(part),
            Err(parts) => Self::Many(parts.into()),
        }
    }

    pub(super) fn as_slice(&self) -> &[Part] {
        match self {
            Self::One(part) => std::slice::from_ref(part),
            Self::Many(parts) => parts,
        }
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [Part] {
        match self {
            Self::One(part) => std::slice::from_mut(part),
            Self::Many(parts) => parts,
        }
    }

    /// Takes one part out; whether any is left.
    pub(super) fn drop_part(&mut self, segment: SegmentIndex, slot: Slot) -> bool {
        let left: Vec<Part> = self
            .as_slice()
            .iter()
            .filter(|part| !(part.segment == segment && part.slot == slot))
            .copied()
            .collect();
        let any = !left.is_empty();
        *self = Self::new(left);
        any
    }

    pub(super) fn add(&mut self, part: Part) {
        let mut parts = self.as_slice().to_vec();
        parts.push(part);
        *self = Self::new(parts);
    }
}

impl Entry {
    /// The value and how it is cut.
    pub(super) fn striping(&self) -> Striping {
        match &self.extra {
            Some(extra) if !extra.more_seals.is_empty() => {
                Striping { len: self.len, stripe_bytes: extra.stripe_bytes }
            }
            _ => Striping::whole(self.len),
        }
    }

    pub(super) fn stripes(&self) -> usize {
        1 + self.extra.as_ref().map_or(0, |extra| extra.more_seals.len())
    }

    /// What the bytes of a stripe add up to, as their writer said.
    pub(super) fn seal_of(&self, stripe: u8) -> Seal {
        let more = self.extra.as_ref().map_or(&[][..], |extra| &extra.more_seals);
        match stripe {
            0 => self.seal,
            stripe => more[usize::from(stripe) - 1],
        }
    }

    /// Bytes that a replica of a stripe takes.
    pub(super) fn extent_bytes(&self, stripe: u8) -> u64 {
        match &self.extra {
            None => seal::extent_bytes(self.len),
            Some(_) => seal::extent_bytes(self.striping().stripe_len(stripe)),
        }
    }

    pub(super) fn extent(&self, part: &Part) -> Extent {
        let bytes = self.extent_bytes(part.stripe);
        Extent::new(part.offset, bytes).expect("the allocator handed it out")
    }

    pub(super) fn part(&self, segment: SegmentIndex, slot: Slot) -> Part {
        let mut parts = self.parts.as_slice().iter();
        let found = parts.find(|part| part.segment == segment && part.slot == slot);
        *found.expect("a slot's entry has a part there")
    }

    /// Whether every stripe has a part that `counts`.
    pub(super) fn complete(&self, counts: impl Fn(&Part) -> bool) -> bool {
        let mut parts = self.parts.as_slice().iter().filter(|part| counts(part));
        if self.extra.is_none() {
            return parts.next().is_some();
        }
        let have = parts.fold(0_u64, |have, part| have | 1 << part.stripe);
        have == (1 << self.stripes()) - 1
    }

    pub(super) fn keep(&self, now: Now) -> Keep {
        match &self.extra {
            Some(extra) => match extra.keep {
                Keep::Soft { .. } if extra.soft_until <= now => Keep::Normal,
                keep => keep,
            },
            None => Keep::Normal,
        }
    }

    pub(super) fn is_hard(&self) -> bool {
        self.extra.as_ref().is_some_and(|extra| extra.keep == Keep::Hard)
    }

    pub(super) fn group(&self) -> GroupId {
        self.extra.as_ref().map_or(GroupId(0), |extra| extra.group)
    }

    pub(super) fn orphans(&self) -> u16 {
        self.extra.as_ref().map_or(0, |extra| extra.orphans)
    }

    /// The entry that took its key over and waits for its end.
    pub(super) fn replaced_by(&self) -> Option<EntryId> {
        let id = self.extra.as_ref().map_or(EntryId::MAX, |extra| extra.replaced_by);
        (id != EntryId::MAX).then_some(id)
    }

    /// Copies that its put asked for.
    pub(super) fn copies(&self) -> usize {
        self.extra.as_ref().map_or(1, |extra| usize::from(extra.copies))
    }

    /// Copies in VRAM that its put asked for; `None`: nobody knows.
    pub(super) fn in_vram(&self) -> Option<usize> {
        self.extra.as_ref().and_then(|extra| extra.in_vram).map(usize::from)
    }

    /// Copies on disks that its put asked for.
    pub(super) fn on_disk(&self) -> usize {
        self.extra.as_ref().map_or(0, |extra| usize::from(extra.on_disk))
    }

    /// Sets what the master does with one replica.
    pub(super) fn set_part(&mut self, segment: SegmentIndex, slot: Slot, state: PartState) {
        for part in self.parts.as_mut_slice() {
            if part.segment == segment && part.slot == slot {
                part.state = state;
            }
        }
    }

    /// Gives memory back that only an orphan needed.
    pub(super) fn trim_extra(&mut self) {
        if self.extra.as_ref().is_some_and(|extra| extra.is_plain()) {
            self.extra = None;
        }
    }

    pub(super) fn name(&self) -> Name<'_> {
        Name::new(self.tenant, &self.key)
    }

    pub(super) fn extra_mut(&mut self) -> &mut Extra {
        self.extra.get_or_insert_default()
    }

    pub(super) fn locator(&self, part: &Part, book: &super::segments::Book) -> Locator {
        Locator {
            segment: book.offer.segment,
            incarnation: book.offer.incarnation,
            slot: part.slot,
            generation: part.generation,
            extent: self.extent(part),
            stripe: part.stripe,
            grant: None,
        }
    }
}

/// A word has a bit for each stripe.
const _: () = assert!(STRIPES_MAX < 64);

/// The slab and its index.
#[derive(Debug)]
pub(super) struct Objects {
    slab: Chunked<Option<Entry>>,
    free: Vec<EntryId>,
    index: Vec<HashTable<Indexed>>,
    len: usize,
}

/// What the index says of a key: where its entry is, and enough of its hash to be nearly sure of that
/// without a look at the entry, which is a cache miss away.
#[derive(Clone, Copy, Debug)]
struct Indexed {
    id: EntryId,
    tag: u32,
}

/// Bits of a hash that the shards do not use.
fn tag(hash: u64) -> u32 {
    hash as u32
}

/// What the tables hash by: made of the tag alone, so that a growing table moves its entries without
/// a look at the objects, each of which would be a cache miss.
fn spread(tag: u32) -> u64 {
    u64::from(tag).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Default for Objects {
    fn default() -> Self {
        Self {
            slab: Chunked::new(),
            free: Vec::new(),
            index: (0..SHARDS).map(|_| HashTable::new()).collect(),
            len: 0,
        }
    }
}

/// The shard of a hash: bits that the tags do not hold.
fn shard(hash: u64) -> usize {
    (hash >> 40) as usize % SHARDS
}

impl Objects {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn find(&self, name: Name<'_>) -> Option<EntryId> {
        self.find_hashed(name.hash(), name)
    }

    fn find_hashed(&self, hash: KeyHash, name: Name<'_>) -> Option<EntryId> {
        let (slab, tag) = (&self.slab, tag(hash.0));
        self.index[shard(hash.0)]
            .find(spread(tag), |&Indexed { id, tag: other }| {
                other == tag && slab[id].as_ref().is_some_and(|entry| entry.name() == name)
            })
            .map(|indexed| indexed.id)
    }

    /// Finds many keys. In steps, each over all keys: a step waits for one cache miss per key, and
    /// those of different keys overlap; one key after the other would add them up.
    pub(super) fn find_many(&self, tenant: TenantId, keys: &[&[u8]]) -> Vec<Option<EntryId>> {
        let name = |key| Name::new(tenant, key);
        let hashes: Vec<KeyHash> = keys.iter().map(|key| name(key).hash()).collect();
        let mut found: Vec<Option<EntryId>> = hashes
            .iter()
            .map(|hash| {
                let tag = tag(hash.0);
                let table = &self.index[shard(hash.0)];
                table.find(spread(tag), |indexed| indexed.tag == tag).map(|indexed| indexed.id)
            })
            .collect();
        let lengths: Vec<usize> = found
            .iter()
            .map(|id| id.and_then(|id| self.get(id)).map_or(0, |entry| entry.key.len()))
            .collect();
        for (at, id) in found.iter_mut().enumerate() {
            let Some(candidate) = *id else { continue };
            let same =
                lengths[at] == keys[at].len() && self.entry(candidate).name() == name(keys[at]);
            if !same {
                // Two keys share a tag: once in some billions.
                *id = self.find_hashed(hashes[at], name(keys[at]));
            }
        }
        found
    }

    /// Adds an entry; its key is not indexed yet, or the entry is hidden.
    pub(super) fn insert(&mut self, entry: Entry) -> EntryId {
        let hidden = entry.hidden;
        let id = if let Some(id) = self.free.pop() {
            self.slab[id] = Some(entry);
            id
        } else {
            self.slab.push(Some(entry))
        };
        self.len += 1;
        if !hidden {
            self.link(id);
        }
        id
    }

    /// Shows a hidden entry under its key, which is not indexed.
    pub(super) fn show(&mut self, id: EntryId) {
        self.entry_mut(id).hidden = false;
        self.link(id);
    }

    /// Takes an entry out of the index; it stays in the slab.
    pub(super) fn hide(&mut self, id: EntryId) {
        self.entry_mut(id).hidden = true;
        self.unlink(id, self.entry(id).hash);
    }

    fn link(&mut self, id: EntryId) {
        let hash = self.entry(id).hash;
        let indexed = Indexed { id, tag: tag(hash) };
        let table = &mut self.index[shard(hash)];
        table.insert_unique(spread(indexed.tag), indexed, |other| spread(other.tag));
    }

    fn unlink(&mut self, id: EntryId, hash: u64) {
        let table = &mut self.index[shard(hash)];
        let found = table.find_entry(spread(tag(hash)), |other| other.id == id);
        found.expect("shown entries are indexed").remove();
    }

    /// Takes an entry out. `reuse`: its number may be that of another entry from now on; if not, the caller says when.
    pub(super) fn remove(&mut self, id: EntryId, reuse: bool) -> Entry {
        let entry = self.slab[id].take().expect("the caller holds a live entry");
        if !entry.hidden {
            self.unlink(id, entry.hash);
        }
        if reuse {
            self.reuse(id);
        }
        self.len -= 1;
        entry
    }

    /// The number of an entry that was taken out may be used again.
    pub(super) fn reuse(&mut self, id: EntryId) {
        self.free.push(id);
    }

    pub(super) fn get(&self, id: EntryId) -> Option<&Entry> {
        self.slab.get(id).and_then(Option::as_ref)
    }

    pub(super) fn entry(&self, id: EntryId) -> &Entry {
        self.slab[id].as_ref().expect("the caller holds a live entry")
    }

    pub(super) fn entry_mut(&mut self, id: EntryId) -> &mut Entry {
        self.slab[id].as_mut().expect("the caller holds a live entry")
    }

    /// Slab positions, for walks in bounded slices.
    pub(super) fn positions(&self) -> u32 {
        self.slab.len()
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.slab.heap_bytes()
            + self.free.capacity() * size_of::<EntryId>()
            + self.index.iter().map(HashTable::allocation_size).sum::<usize>()
    }
}
