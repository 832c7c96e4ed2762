//! Objects: a slab of entries and an index from key to entry.
//!
//! The index is cut into shards so that a growing table is rehashed a thousandth at a time, and the
//! slab grows in chunks: no call pays for ten million objects.

use crate::chunked::Chunked;
use crate::extent::Extent;
use crate::ids::{Generation, ObjectId, Slot};
use crate::key::KeyHash;
use crate::plan::Locator;
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
    Removing(u8),
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
    /// An evict order is out: hidden until the owner answers.
    pub evicting: bool,
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
    pub parts: Parts,
    pub stage: Stage,
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
    /// Bytes that each replica takes.
    pub(super) fn extent_bytes(&self) -> u64 {
        seal::extent_bytes(self.len)
    }

    pub(super) fn extent(&self, part: &Part) -> Extent {
        Extent::new(part.offset, self.extent_bytes()).expect("the allocator handed it out")
    }

    pub(super) fn locator(&self, part: &Part, book: &super::segments::Book) -> Locator {
        Locator {
            segment: book.offer.segment,
            incarnation: book.offer.incarnation,
            slot: part.slot,
            generation: part.generation,
            extent: self.extent(part),
        }
    }
}

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

    pub(super) fn find(&self, hash: KeyHash, key: &[u8]) -> Option<EntryId> {
        let (slab, tag) = (&self.slab, tag(hash.0));
        self.index[shard(hash.0)]
            .find(spread(tag), |&Indexed { id, tag: other }| {
                other == tag && slab[id].as_ref().is_some_and(|entry| *entry.key == *key)
            })
            .map(|indexed| indexed.id)
    }

    /// Finds many keys. In steps, each over all keys: a step waits for one cache miss per key, and
    /// those of different keys overlap; one key after the other would add them up.
    pub(super) fn find_many(&self, keys: &[&[u8]]) -> Vec<Option<EntryId>> {
        let hashes: Vec<KeyHash> = keys.iter().map(|key| crate::key::hash(key)).collect();
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
            let same = lengths[at] == keys[at].len() && *self.entry(candidate).key == *keys[at];
            if !same {
                // Two keys share a tag: once in some billions.
                *id = self.find(hashes[at], keys[at]);
            }
        }
        found
    }

    /// Adds an entry whose key is not indexed yet.
    pub(super) fn insert(&mut self, entry: Entry) -> EntryId {
        let hash = entry.hash;
        let id = if let Some(id) = self.free.pop() {
            self.slab[id] = Some(entry);
            id
        } else {
            self.slab.push(Some(entry))
        };
        let indexed = Indexed { id, tag: tag(hash) };
        let table = &mut self.index[shard(hash)];
        table.insert_unique(spread(indexed.tag), indexed, |other| spread(other.tag));
        self.len += 1;
        id
    }

    pub(super) fn remove(&mut self, id: EntryId) -> Entry {
        let entry = self.slab[id].take().expect("the caller holds a live entry");
        let shard = &mut self.index[shard(entry.hash)];
        let found = shard.find_entry(spread(tag(entry.hash)), |other| other.id == id);
        found.expect("filled entries are indexed").remove();
        self.free.push(id);
        self.len -= 1;
        entry
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
