//! What the bucket backend knows: which record lies where, which buckets there are, and what everything
//! takes. All of it is behind one lock that is never held over I/O.
//!
//! What must stay true: a record is in the index exactly if it may be loaded. A copy that is on the disk and
//! not in the index is in `hidden`, so that a removal finds it (G6). The books add up to the files (S7).

use super::write::Writer;
use crate::RecordId;
use crate::identity;
use crate::record::Shape;
use crate::spare::Spares;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Bytes of log that each record may need when it is removed, rewriting included; see `removed.rs`.
const LOG_BYTES_PER_RECORD: u64 = 256;
/// Bytes of log that are needed in any case.
const LOG_BYTES: u64 = 160 << 10;

/// A data file.
#[derive(Debug)]
pub(super) struct Bucket {
    pub(super) id: u64,
    /// Loads that are under way. Raised under the lock of the state, so that nobody pins what was hidden.
    pins: AtomicU32,
    /// When it was read, in loads of this backend.
    pub(super) last_read: AtomicU64,
}

impl Bucket {
    pub(super) fn new(id: u64) -> Arc<Self> {
        Arc::new(Self { id, pins: AtomicU32::new(0), last_read: AtomicU64::new(0) })
    }

    pub(super) fn is_read(&self) -> bool {
        // Acquire: pairs with the Release of the last reader, who is done with the file then.
        self.pins.load(Ordering::Acquire) > 0
    }
}

/// Keeps a bucket's file while it is read (S6).
#[derive(Debug)]
pub(super) struct Pin(Arc<Bucket>);

impl Pin {
    /// Call it with the state locked.
    pub(super) fn new(bucket: &Arc<Bucket>) -> Self {
        bucket.pins.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(bucket))
    }

    pub(super) fn id(&self) -> u64 {
        self.0.id
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `is_read`.
        self.0.pins.fetch_sub(1, Ordering::Release);
    }
}

/// Where a record lies.
#[derive(Clone, Debug)]
pub(super) struct Spot {
    pub(super) bucket: Arc<Bucket>,
    pub(super) offset: u64,
    pub(super) shape: Shape,
}

/// A record of a bucket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) id: RecordId,
    pub(super) offset: u64,
    pub(super) shape: Shape,
}

/// A bucket and what is in it.
#[derive(Debug)]
pub(super) struct Bin {
    pub(super) bucket: Arc<Bucket>,
    /// All that were written, in order; the index says which of them live.
    pub(super) slots: Vec<Slot>,
    pub(super) live: usize,
    /// Bytes of its files; while it is open, up to its end.
    pub(super) data: u64,
    pub(super) meta: u64,
    /// Somebody writes to it now: it cannot go.
    pub(super) busy: bool,
    /// It may be written to again.
    pub(super) open: bool,
    /// Bytes of its files that are deleted, but not for good yet: a crash may bring them back, so they stay
    /// reserved.
    pub(super) doubtful: u64,
    /// The sync that should have made that last failed.
    pub(super) redo: bool,
}

impl Bin {
    /// A bucket with these bytes of files, and nothing in it.
    pub(super) fn new(id: u64, data: u64, meta: u64) -> Self {
        Self {
            bucket: Bucket::new(id),
            slots: Vec::new(),
            live: 0,
            data,
            meta,
            busy: false,
            open: false,
            doubtful: 0,
            redo: false,
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.data + self.meta
    }
}

/// What everything takes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Books {
    pub(super) data: u64,
    pub(super) meta: u64,
    /// Bytes of open buckets behind their ends, and of spares that open buckets are about to take.
    pub(super) slack: u64,
    /// Bytes that are being written, and those of metadata to be written.
    pub(super) reserved: u64,
    /// Records in all files, the removed ones included: each may need a line in the log.
    pub(super) slots: u64,
    pub(super) records: u64,
    pub(super) value_bytes: u64,
}

impl Books {
    fn promised(&self, more_slots: u64) -> u64 {
        let log = LOG_BYTES + (self.slots + more_slots) * LOG_BYTES_PER_RECORD;
        self.data + self.meta + self.slack + self.reserved + log + identity::BYTES_MAX
    }
}

/// See the file's head.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) index: HashMap<RecordId, Spot>,
    /// Copies on the disk that are not served, by record, bucket and offset, and whether they stay so: being
    /// removed and being bad cannot be taken back.
    pub(super) hidden: BTreeMap<(RecordId, u64, u64), bool>,
    pub(super) bins: BTreeMap<u64, Bin>,
    /// Open buckets that nobody writes to.
    pub(super) idle: Vec<Writer>,
    /// Open buckets in all.
    pub(super) writers: usize,
    /// Closed buckets whose metadata could not be written.
    pub(super) unsealed: VecDeque<Writer>,
    /// Where records may lie whose keep failed, by bucket and offset. A removal must reach them: a start that finds no
    /// good metadata could tell them (G6).
    pub(super) failed: HashMap<RecordId, Vec<(u64, u64)>>,
    /// Records that are being kept.
    pub(super) pending: HashSet<RecordId>,
    /// Buckets that may have no record left that can be loaded.
    pub(super) emptied: Vec<u64>,
    /// Files that shall go and could not yet.
    pub(super) leaving: Vec<Bin>,
    /// Buckets that the disk failed on, or with a bad record: nothing is written over their files.
    pub(super) bad: HashSet<u64>,
    pub(super) spares: Spares,
    /// Files that are about to be spares.
    pub(super) coming: usize,
    pub(super) books: Books,
}

impl State {
    /// Bytes that must stay within the limit. Spares give way.
    pub(super) fn promised(&self, more_slots: u64) -> u64 {
        self.books.promised(more_slots) + self.spares.moving_bytes()
    }

    /// A record can be loaded from now on.
    pub(super) fn link(&mut self, bucket: &Arc<Bucket>, slot: Slot) {
        let Slot { id, offset, shape } = slot;
        self.index.insert(id, Spot { bucket: Arc::clone(bucket), offset, shape });
        self.books.records += 1;
        self.books.value_bytes += shape.value;
    }

    /// The same, unless another copy of it can be.
    pub(super) fn link_if_new(&mut self, bucket: &Arc<Bucket>, slot: &Slot) -> bool {
        let Entry::Vacant(vacant) = self.index.entry(slot.id) else { return false };
        let Slot { offset, shape, .. } = *slot;
        vacant.insert(Spot { bucket: Arc::clone(bucket), offset, shape });
        self.books.records += 1;
        self.books.value_bytes += shape.value;
        true
    }

    /// Takes that back.
    pub(super) fn unlink(&mut self, slot: &Slot) {
        if self.index.remove(&slot.id).is_some() {
            self.books.records -= 1;
            self.books.value_bytes -= slot.shape.value;
        }
    }

    /// A record cannot be loaded any more; its copy stays on the disk.
    pub(super) fn hide(&mut self, id: RecordId, stays: bool) -> Option<Spot> {
        let spot = self.index.remove(&id)?;
        self.books.records -= 1;
        self.books.value_bytes -= spot.shape.value;
        self.hidden.insert((id, spot.bucket.id, spot.offset), stays);
        if let Some(bin) = self.bins.get_mut(&spot.bucket.id) {
            bin.live -= 1;
            if bin.live == 0 {
                self.emptied.push(spot.bucket.id);
            }
        }
        Some(spot)
    }

    /// Whether the record is served, being kept, or not gone for good. A second copy beside a hidden one would
    /// stay when the first is evicted, and come back after a restart (G6).
    pub(super) fn is_there(&self, id: RecordId) -> bool {
        let mut copies = self.hidden.range((id, 0, 0)..=(id, u64::MAX, u64::MAX));
        self.index.contains_key(&id) || self.pending.contains(&id) || copies.next().is_some()
    }

    /// Whether a slot is the copy that is served.
    pub(super) fn is_served(&self, bucket: u64, slot: &Slot) -> bool {
        let served = self.index.get(&slot.id);
        served.is_some_and(|served| served.bucket.id == bucket && served.offset == slot.offset)
    }

    /// The files of a bucket are gone, or are orphans, and nothing in them comes back.
    pub(super) fn forget(&mut self, bin: &mut Bin) {
        for slot in std::mem::take(&mut bin.slots) {
            self.hidden.remove(&(slot.id, bin.bucket.id, slot.offset));
            self.books.slots -= 1;
        }
        self.forget_all_failed(bin.bucket.id);
        self.bad.remove(&bin.bucket.id);
    }

    /// What a failed keep left of a record in a bucket cannot come back.
    pub(super) fn forget_failed(&mut self, id: RecordId, bucket: u64) {
        if let Some(places) = self.failed.get_mut(&id) {
            places.retain(|(is, _)| *is != bucket);
            if places.is_empty() {
                self.failed.remove(&id);
            }
        }
    }

    /// The same of all records. Few keeps fail, and a bucket is closed by the first one.
    pub(super) fn forget_all_failed(&mut self, bucket: u64) {
        self.failed.retain(|_, places| {
            places.retain(|(is, _)| *is != bucket);
            !places.is_empty()
        });
    }

    /// A bucket that is not written to any more gives back what was reserved for its metadata; its file is its own
    /// as it is.
    pub(super) fn drop_writer(&mut self, bin: &mut Bin) {
        let id = bin.bucket.id;
        if let Some(at) = self.idle.iter().position(|writer| writer.id == id) {
            let writer = self.idle.swap_remove(at);
            self.writers -= 1;
            self.books.reserved -= writer.meta_reserved;
            self.books.slack -= writer.slack;
            self.books.data += writer.slack;
            bin.data += writer.slack;
        }
        if let Some(at) = self.unsealed.iter().position(|writer| writer.id == id) {
            let writer = self.unsealed.remove(at).expect("it was just found");
            self.books.reserved -= writer.meta_reserved;
        }
    }
}
