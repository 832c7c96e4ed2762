//! One file in its full length, space from core's allocator, records at multiples of 4 KiB.
//!
//! A record is written from its end: everything but its first block, sync, the first block, sync. So a
//! head on the disk means a value on the disk, and a start need only look at heads. A record goes by zeros
//! over its first block, synced before its space can be taken again: free space holds no head that could be
//! taken for a record. Value bytes that look like one lack the token of the directory.
//!
//! The index is cut into shards, so that loads of many threads do not wait for each other. A shard's lock is
//! taken before that of the space, never after it, and neither is held over I/O.
//!
//! What must stay true: space is free, or held by one record, or leaving until its last reader has left.

mod evict;
mod look;
mod recover;
mod write;

use crate::backend::{Backend, KeepError, Load, LoadError, NewRecord, RecordId, Ticket, Usage};
use crate::config::Config;
use crate::disk::{Disk, File};
use crate::identity::Identity;
use crate::points::point;
use crate::reading::{self, Found, Reader};
use crate::record::{Kind, Shape, Site};
use mooncrate_core::alloc::{Allocation, Allocator, OffsetAllocator};
use mooncrate_lock::{Condvar, Mutex};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const BLOCK: u64 = crate::ALIGN as u64;
const SHARDS: usize = 64;
/// A part of the index.
type Shard = HashMap<RecordId, Arc<Held>>;
/// The same in every run: which records share a lock decides who waits for whom, and a simulation must be
/// able to repeat that. Names of records come from masters, not from whoever wants to flood a shard.
type ShardHasher = BuildHasherDefault<DefaultHasher>;
/// Records that one call of `scrub` looks at.
const SCRUB_RECORDS: usize = 1024;

/// See the file's head.
#[derive(Debug)]
pub struct OneFile(Arc<Shared>);

/// What tickets hold on to.
#[derive(Debug)]
struct Shared {
    disk: Arc<dyn Disk>,
    config: Config,
    identity: Identity,
    reader: Reader,
    file: Arc<dyn File>,
    file_bytes: u64,
    /// A sync failed: nothing is written any more (S12).
    bad: AtomicBool,
    shards: [Mutex<Shard>; SHARDS],
    hasher: ShardHasher,
    space: Mutex<Space>,
    /// For waits that are bounded; nobody notifies.
    pause: Condvar,
}

/// A record in its place. Who reads it holds a count of it beside that of the index.
#[derive(Debug)]
struct Held {
    id: RecordId,
    /// Grows with each record of the directory; the order of eviction.
    serial: u64,
    shape: Shape,
    place: Allocation,
}

/// A record that is not served.
#[derive(Debug)]
struct Copy {
    held: Arc<Held>,
    /// It is being removed, or is bad, which cannot be taken back.
    stays: bool,
}

#[derive(Debug)]
struct Space {
    free: OffsetAllocator,
    /// Which record a serial is, of those in the index.
    order: BTreeMap<u64, RecordId>,
    hidden: BTreeMap<(RecordId, u64), Copy>,
    pending: HashSet<RecordId>,
    /// Dead on the disk; free when their readers have left.
    leaving: Vec<Arc<Held>>,
    value_bytes: u64,
}

impl Held {
    fn bytes(&self) -> u64 {
        self.place.extent.len()
    }

    fn offset(&self) -> u64 {
        self.place.extent.offset()
    }

    fn site(&self, token: u64) -> Site {
        Site { kind: Kind::Offset, token, serial: self.serial, offset: self.offset() }
    }
}

impl Space {
    /// Whether the record is being kept, or not gone for good.
    fn is_there(&self, id: RecordId) -> bool {
        let mut copies = self.hidden.range((id, 0)..=(id, u64::MAX));
        self.pending.contains(&id) || copies.next().is_some()
    }

    /// Gives back what nobody reads any more.
    fn sweep(&mut self) {
        let Self { leaving, free, .. } = self;
        leaving.retain(|held| {
            let read = Arc::strong_count(held) > 1;
            if !read {
                free.free(held.place);
            }
            read
        });
    }
}

fn shard_of(hasher: &ShardHasher, id: RecordId) -> usize {
    hasher.hash_one(id) as usize % SHARDS
}

impl Shared {
    fn shard(&self, id: RecordId) -> &Mutex<Shard> {
        &self.shards[shard_of(&self.hasher, id)]
    }

    fn link(&self, held: Arc<Held>) {
        let mut shard = self.shard(held.id).lock();
        let mut space = self.space.lock();
        space.value_bytes += held.shape.value;
        space.order.insert(held.serial, held.id);
        shard.insert(held.id, held);
    }

    /// Takes a record out of the index, if it is this one. It is hidden before it is out, so that nobody
    /// can overlook it.
    fn hide(&self, id: RecordId, serial: Option<u64>, stays: bool) -> Option<Arc<Held>> {
        self.hide_in(&mut self.shard(id).lock(), id, serial, stays)
    }

    /// The same, with its shard locked.
    fn hide_in(
        &self,
        shard: &mut Shard,
        id: RecordId,
        serial: Option<u64>,
        stays: bool,
    ) -> Option<Arc<Held>> {
        let held =
            shard.get(&id).filter(|held| serial.is_none_or(|serial| held.serial == serial))?;
        let held = Arc::clone(held);
        let mut space = self.space.lock();
        space.value_bytes -= held.shape.value;
        space.order.remove(&held.serial);
        let copy = Copy { held: Arc::clone(&held), stays };
        space.hidden.insert((id, held.serial), copy);
        shard.remove(&id);
        Some(held)
    }

    /// What is bad is not served again, nor if it is hidden now and that is taken back. Says whether it was
    /// served: what is hidden may be dying, and have zeros for a head.
    fn quarantine(&self, id: RecordId, serial: u64) -> bool {
        // As in a removal: one look at both.
        let mut shard = self.shard(id).lock();
        let was_served = self.hide_in(&mut shard, id, Some(serial), true).is_some();
        if let Some(copy) = self.space.lock().hidden.get_mut(&(id, serial)) {
            copy.stays = true;
        }
        drop(shard);
        if was_served {
            tracing::warn!(object = %id.object, stripe = id.stripe, "a record on the disk is bad");
        }
        was_served
    }

    fn is_bad(&self) -> bool {
        self.bad.load(Ordering::Relaxed)
    }

    /// Everything written so far is on the disk. The first error is final (S12).
    fn sync(&self) -> io::Result<()> {
        if self.is_bad() {
            return Err(io::Error::other(
                "an earlier sync of the data file failed; start again on a sound disk",
            ));
        }
        self.file.sync_data().inspect_err(|_| self.bad.store(true, Ordering::Relaxed))
    }
}

impl Backend for OneFile {
    fn keep(&self, records: &[NewRecord<'_>]) -> Vec<Result<(), KeepError>> {
        self.0.keep_all(records)
    }

    fn load(&self, loads: &mut [Load<'_>]) {
        let this = &*self.0;
        let found = loads.iter().map(|load| this.shard(load.id).lock().get(&load.id).cloned());
        let held: Vec<Option<Arc<Held>>> = found.collect();
        let mut found = Vec::with_capacity(loads.len());
        for (load, held) in loads.iter_mut().zip(&held) {
            let admitted = match held {
                None => Err(LoadError::Missing),
                Some(held) => reading::admit(load, held.shape).map(|()| held),
            };
            match admitted {
                Ok(held) => {
                    let (site, file) = (held.site(this.identity.token), Arc::clone(&this.file));
                    found.push(Found { site, file, load });
                }
                Err(error) => load.result = Err(error),
            }
        }
        this.reader.load(this.disk.as_ref(), &mut found);
        for Found { site, load, .. } in found {
            let corrupt = matches!(load.result, Err(LoadError::Corrupt));
            if corrupt && !this.quarantine(load.id, site.serial) {
                // It went while it was read: its head is zeros.
                load.result = Err(LoadError::Missing);
            }
        }
    }

    fn remove(&self, ids: &[RecordId]) -> io::Result<()> {
        let this = &*self.0;
        let mut going = Vec::new();
        for &id in ids {
            // Locked until the hidden ones were looked at, too: an eviction that is taken back moves a record from
            // there to here, and it must not pass between two looks.
            let mut shard = this.shard(id).lock();
            this.hide_in(&mut shard, id, None, true);
            let mut space = this.space.lock();
            for (_, copy) in space.hidden.range_mut((id, 0)..=(id, u64::MAX)) {
                copy.stays = true;
                going.push(Arc::clone(&copy.held));
            }
        }
        point("removed.hidden");
        this.kill(going)
    }

    fn unlink(&self, bytes: u64) -> Option<Box<dyn Ticket>> {
        crate::backend::canary_deletes(self.0.unlink_some(bytes))
    }

    fn scrub(&self, cursor: u64, bytes: u64) -> (Vec<RecordId>, u64) {
        let this = &*self.0;
        let (mut some, mut next) = (Vec::new(), 0);
        for (&serial, &id) in this.space.lock().order.range(cursor..) {
            if some.len() >= SCRUB_RECORDS {
                next = serial;
                break;
            }
            some.push((serial, id));
        }
        let (mut bad, mut seen) = (Vec::new(), 0);
        for (serial, id) in some {
            if seen >= bytes {
                return (bad, serial);
            }
            let held = this.shard(id).lock().get(&id).cloned();
            let Some(held) = held.filter(|held| held.serial == serial) else { continue };
            seen += held.bytes();
            let site = held.site(this.identity.token);
            let checked = this.reader.check(this.disk.as_ref(), &this.file, site, id, held.shape);
            if reading::is_bad(&checked) && this.quarantine(id, serial) {
                bad.push(id);
            }
        }
        (bad, next)
    }

    fn token(&self) -> u64 {
        self.0.identity.token
    }

    fn usage(&self) -> Usage {
        let this = &*self.0;
        let space = this.space.lock();
        Usage {
            records: space.order.len() as u64,
            value_bytes: space.value_bytes,
            used: space.free.capacity() - space.free.free_bytes() + this.identity.bytes(),
            limit: this.config.limit_bytes,
            on_disk: this.file_bytes + this.identity.bytes(),
            written: this.identity.written(),
        }
    }
}
