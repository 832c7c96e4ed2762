//! The default backend: records are appended to data files of up to 256 MB, **buckets**, and evicted bucket
//! by bucket.
//!
//! ```text
//!   0000000000000001.bucket   records, batch behind batch            write.rs
//!   0000000000000001.meta     the heads of a closed bucket           meta.rs
//!   removed-0000000000000009  places of removed records              removed.rs
//!   0000000000000002.dead     deleted while somebody read it         evict.rs
//!   0000000000000003.free     of a bucket that is gone, for another  spare.rs
//!   format, format.copy       what the directory is                  identity.rs
//! ```
//!
//! What must stay true: bucket numbers only grow (S6). A record is in the index after it is durable (S2) and
//! until it is hidden. The lock of the state is never held over I/O.

mod evict;
mod handles;
mod look;
pub(crate) mod meta;
mod recover;
pub(crate) mod removed;
mod spare;
#[cfg(test)]
mod spare_tests;
mod state;
#[cfg(test)]
mod tests;
mod write;

use crate::backend::{Backend, KeepError, Load, LoadError, NewRecord, RecordId, Ticket, Usage};
use crate::config::Config;
use crate::disk::{Disk, is_full};
use crate::identity::Identity;
use crate::points::point;
use crate::reading::{Found, Reader};
use crate::record::{Kind, Site};
use crate::spare::HasSpares;
use handles::Handles;
use mooncrate_lock::{Condvar, Mutex};
use removed::{Place, Removed};
use state::{Pin, Slot, State};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Slots of a bucket that a scrubber's cursor can name.
const CURSOR_SLOTS: u64 = 1 << 16;

/// See the file's head.
#[derive(Debug)]
pub struct Buckets(Arc<Shared>);

/// What tickets hold on to.
#[derive(Debug)]
struct Shared {
    disk: Arc<dyn Disk>,
    config: Config,
    identity: Arc<Identity>,
    reader: Reader,
    handles: Handles,
    removed: Removed,
    state: Mutex<State>,
    /// An open bucket came back, or a bucket or a spare went.
    changed: Condvar,
    /// Counts calls of `load`: the clock of the LRU.
    loads: AtomicU64,
}

fn data_path(id: u64) -> PathBuf {
    format!("{id:016x}.bucket").into()
}

fn meta_path(id: u64) -> PathBuf {
    format!("{id:016x}.meta").into()
}

fn dead_path(id: u64) -> PathBuf {
    format!("{id:016x}.dead").into()
}

impl Shared {
    fn site(&self, bucket: u64, offset: u64) -> Site {
        Site { kind: Kind::Bucket, token: self.identity.token, serial: bucket, offset }
    }

    /// Finds the records, and keeps their files from being deleted.
    fn pin(&self, loads: &mut [Load<'_>]) -> Vec<Option<(Pin, u64)>> {
        let tick = self.loads.fetch_add(1, Ordering::Relaxed) + 1;
        let state = self.state.lock();
        let pins = loads.iter_mut().map(|load| {
            let found = match state.index.get(&load.id) {
                None => Err(LoadError::Missing),
                Some(spot) => crate::reading::admit(load, spot.shape).map(|()| {
                    spot.bucket.last_read.store(tick, Ordering::Relaxed);
                    (Pin::new(&spot.bucket), spot.offset)
                }),
            };
            found.map_err(|error| load.result = Err(error)).ok()
        });
        pins.collect()
    }

    /// What is bad is not served again, nor if it is hidden now and that is taken back. It stays on the disk,
    /// where a removal must find it. Says whether it was still there.
    fn quarantine(&self, id: RecordId, bucket: u64, offset: u64) -> bool {
        let mut state = self.state.lock();
        let spot = state.index.get(&id);
        if spot.is_some_and(|spot| spot.bucket.id == bucket && spot.offset == offset) {
            state.hide(id, true);
            state.bad.insert(bucket);
            drop(state);
            tracing::warn!(object = %id.object, stripe = id.stripe, "a record on the disk is bad");
            return true;
        }
        let Some(stays) = state.hidden.get_mut(&(id, bucket, offset)) else { return false };
        *stays = true;
        state.bad.insert(bucket);
        true
    }

    /// The next records from a cursor on, about so many bytes of them, and the cursor behind them.
    fn next_slots(&self, cursor: u64, bytes: u64) -> (Vec<(Pin, Slot)>, u64) {
        let state = self.state.lock();
        let (mut slots, mut seen) = (Vec::new(), 0);
        let (first, from) = (cursor / CURSOR_SLOTS, (cursor % CURSOR_SLOTS) as usize);
        for (&id, bin) in state.bins.range(first..) {
            let skip = if id == first { from } else { 0 };
            for (at, slot) in bin.slots.iter().enumerate().skip(skip) {
                if seen >= bytes || slots.len() >= 1024 {
                    return (slots, id * CURSOR_SLOTS + at as u64);
                }
                if state.is_served(id, slot) {
                    seen += slot.shape.bytes();
                    slots.push((Pin::new(&bin.bucket), *slot));
                }
            }
        }
        (slots, 0)
    }
}

impl Backend for Buckets {
    fn keep(&self, records: &[NewRecord<'_>]) -> Vec<Result<(), KeepError>> {
        self.0.keep_all(records)
    }

    fn load(&self, loads: &mut [Load<'_>]) {
        let this = &*self.0;
        let pins = this.pin(loads);
        let mut found = Vec::with_capacity(loads.len());
        for (load, pin) in loads.iter_mut().zip(&pins) {
            let Some((pin, offset)) = pin else { continue };
            match this.handles.get(this.disk.as_ref(), pin.id(), &data_path(pin.id())) {
                Ok(file) => found.push(Found { site: this.site(pin.id(), *offset), file, load }),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    load.result = Err(LoadError::Missing);
                    this.quarantine(load.id, pin.id(), *offset);
                }
                Err(error) => load.result = Err(error.into()),
            }
        }
        this.reader.load(this.disk.as_ref(), &mut found);
        for Found { site, load, .. } in found {
            let corrupt = matches!(load.result, Err(LoadError::Corrupt));
            if corrupt && !this.quarantine(load.id, site.serial, site.offset) {
                // It went while it was read.
                load.result = Err(LoadError::Missing);
            }
        }
    }

    fn remove(&self, ids: &[RecordId]) -> io::Result<()> {
        let this = &*self.0;
        let _claim = this.removed.claim();
        let mut places = Vec::new();
        let mut state = this.state.lock();
        for &id in ids {
            state.hide(id, true);
            let all = (id, 0, 0)..=(id, u64::MAX, u64::MAX);
            for (&(id, bucket, offset), stays) in state.hidden.range_mut(all) {
                *stays = true;
                places.push(Place { bucket, offset, id });
            }
            let failed = state.failed.get(&id).into_iter().flatten();
            places.extend(failed.map(|&(bucket, offset)| Place { bucket, offset, id }));
        }
        drop(state);
        point("removed.hidden");
        if places.is_empty() {
            return Ok(());
        }
        this.removed.append(&places).or_else(|error| {
            if !is_full(&error) {
                return Err(error);
            }
            this.delete_spares();
            this.removed.append(&places)
        })?;
        let mut state = this.state.lock();
        for Place { bucket, offset, id } in places {
            state.hidden.remove(&(id, bucket, offset));
            state.forget_failed(id, bucket);
        }
        drop(state);
        this.reclaim();
        Ok(())
    }

    fn unlink(&self, bytes: u64) -> Option<Box<dyn Ticket>> {
        crate::backend::canary_deletes(self.0.unlink_some(bytes))
    }

    fn scrub(&self, cursor: u64, bytes: u64) -> (Vec<RecordId>, u64) {
        let this = &*self.0;
        let (slots, next) = this.next_slots(cursor, bytes);
        let mut bad = Vec::new();
        for (pin, slot) in slots {
            let site = this.site(pin.id(), slot.offset);
            let file = this.handles.get(this.disk.as_ref(), pin.id(), &data_path(pin.id()));
            let good = file.and_then(|file| {
                this.reader.check(this.disk.as_ref(), &file, site, slot.id, slot.shape)
            });
            // A disk that cannot read it now is not a record that is bad.
            if crate::reading::is_bad(&good) && this.quarantine(slot.id, pin.id(), slot.offset) {
                bad.push(slot.id);
            }
        }
        (bad, next)
    }

    fn settle(&self) -> io::Result<()> {
        let this = &*self.0;
        let mut state = this.state.lock();
        let writers = std::mem::take(&mut state.idle);
        for writer in &writers {
            if let Some(bin) = state.bins.get_mut(&writer.id) {
                bin.busy = true;
            }
        }
        drop(state);
        for writer in writers {
            this.put_back(writer, true);
        }
        let unsealed = this.state.lock().unsealed.len();
        for _ in 0..unsealed {
            this.seal_leftover();
        }
        // Without room for them the next start takes longer, and that is all.
        let state = this.state.lock();
        match state.unsealed.iter().filter(|writer| !writer.no_room).count() {
            0 => Ok(()),
            some => {
                Err(io::Error::other(format!("the metadata of {some} buckets were not written")))
            }
        }
    }

    fn token(&self) -> u64 {
        self.0.identity.token
    }

    fn usage(&self) -> Usage {
        let this = &*self.0;
        let log = this.removed.bytes();
        let state = this.state.lock();
        let (books, spares) = (state.books, state.spares.bytes());
        drop(state);
        let used = books.data + books.meta + books.slack + log + this.identity.bytes();
        Usage {
            records: books.records,
            value_bytes: books.value_bytes,
            used,
            limit: this.config.limit_bytes,
            on_disk: used + spares,
            written: this.identity.written(),
        }
    }

    fn promised(&self) -> u64 {
        self.0.state.lock().promised(0)
    }
}
