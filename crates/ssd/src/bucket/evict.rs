//! Making room: buckets are hidden, and deleted when the master has forgotten them and the last reader has
//! left (S1, S6).
//!
//! What must stay true: a file is deleted under no reader; the cached handle goes first. A bucket that could
//! not be deleted is renamed, so that the next start knows it as an orphan.

use super::state::{Bin, Slot, State};
use super::{Shared, data_path, dead_path, meta_path};
use crate::backend::{RecordId, Ticket};
use crate::config::Evict;
use crate::disk::{Open, missing_is_fine};
use crate::points::point;
use crate::spare::HasSpares;
use mooncrate_mem::clock::boottime;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How often a ticket looks whether the last reader has left.
const LOOK: Duration = Duration::from_millis(2);

/// What became of the data of a bucket.
enum Taken {
    Deleted,
    /// It has a name as a spare, and is one when that is durable.
    Spared,
    /// Somebody reads it.
    Read,
}

/// Buckets that are hidden.
pub(super) struct Hidden {
    all: Arc<Shared>,
    bins: Vec<Bin>,
    /// What the ticket hid, with its bucket.
    slots: Vec<(u64, Slot)>,
    records: Vec<RecordId>,
    bytes: u64,
}

impl std::fmt::Debug for Hidden {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { bins, records, bytes, .. } = self;
        write!(f, "Hidden({} buckets, {} records, {bytes} bytes)", bins.len(), records.len())
    }
}

impl Shared {
    pub(super) fn unlink_some(self: &Arc<Self>, bytes: u64) -> Option<Box<dyn Ticket>> {
        self.reclaim();
        let mut state = self.state.lock();
        let mut hidden = Hidden {
            all: Arc::clone(self),
            bins: Vec::new(),
            slots: Vec::new(),
            records: Vec::new(),
            bytes: 0,
        };
        while hidden.bins.is_empty() || hidden.bytes < bytes {
            let Some(id) = candidate(&state, self.config.evict) else { break };
            hidden.take(&mut state, id);
        }
        drop(state);
        self.changed.notify_all();
        point("evict.unlinked");
        (!hidden.bins.is_empty()).then(|| Box::new(hidden) as Box<dyn Ticket>)
    }
}

/// The bucket that goes next: closed ones first, then open ones that nobody writes to.
fn candidate(state: &State, evict: Evict) -> Option<u64> {
    let free = |open| {
        let bins = state.bins.iter();
        bins.filter(move |(_, bin)| !bin.busy && bin.open == open)
    };
    let read = |bin: &Bin| bin.bucket.last_read.load(Ordering::Relaxed);
    let first = |open| match evict {
        Evict::Fifo => free(open).next(),
        Evict::Lru => free(open).min_by_key(|(_, bin)| read(bin)),
    };
    first(false).or_else(|| first(true)).map(|(id, _)| *id)
}

impl Hidden {
    fn take(&mut self, state: &mut State, id: u64) {
        let mut bin = state.bins.remove(&id).expect("the candidate is there");
        state.drop_writer(&mut bin);
        for slot in &bin.slots {
            if state.is_served(id, slot) {
                state.hide(slot.id, false);
                self.slots.push((id, *slot));
                self.records.push(slot.id);
            }
        }
        self.bytes += bin.bytes();
        self.bins.push(bin);
    }

    /// Waits until nobody reads any of them, or the time is over.
    fn drain(&self, wait: Duration) {
        let deadline = boottime().deadline_in(wait);
        let mut state = self.all.state.lock();
        while self.bins.iter().any(|bin| bin.bucket.is_read()) {
            let left = deadline.left(boottime());
            if left.is_zero() {
                return;
            }
            self.all.changed.wait_for(&mut state, left.min(LOOK));
        }
    }
}

impl Ticket for Hidden {
    fn records(&self) -> &[RecordId] {
        &self.records
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn finish(mut self: Box<Self>, wait: Duration) -> io::Result<()> {
        self.drain(wait);
        point("evict.drained");
        self.slots.clear();
        let bins = std::mem::take(&mut self.bins);
        self.all.delete(bins, true)
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        if self.bins.is_empty() {
            return;
        }
        let mut state = self.all.state.lock();
        for mut bin in self.bins.drain(..) {
            // It is not written to again: its writer is gone.
            bin.open = false;
            bin.live = 0;
            state.emptied.push(bin.bucket.id);
            state.bins.insert(bin.bucket.id, bin);
        }
        for (bucket, slot) in self.slots.drain(..) {
            let key = (slot.id, bucket, slot.offset);
            // Being removed, or a newer copy is served: it stays hidden.
            if state.hidden.get(&key) != Some(&false) || state.index.contains_key(&slot.id) {
                continue;
            }
            state.hidden.remove(&key);
            let bin = state.bins.get_mut(&bucket).expect("it was just put back");
            bin.live += 1;
            let bucket = Arc::clone(&bin.bucket);
            state.link(&bucket, slot);
        }
    }
}

impl Shared {
    /// Deletes the files of buckets that nobody can find any more, or keeps them for others.
    pub(super) fn delete(&self, bins: Vec<Bin>, spare_some: bool) -> io::Result<()> {
        let mut result = Ok(());
        let (mut gone, mut orphans, mut left) = (Vec::new(), Vec::new(), Vec::new());
        // Files that become spares, and their bytes.
        let mut coming = 0;
        let mut sparing = (spare_some && self.has_room_for_spares()).then_some(0);
        let before = self.identity.names();
        for mut bin in bins {
            match self.delete_files(&mut bin, sparing) {
                Ok(Taken::Read) => orphans.push(bin),
                Ok(Taken::Spared) => {
                    sparing = sparing.map(|bytes| bytes + bin.data);
                    self.state.lock().coming += 1;
                    coming += 1;
                    gone.push(bin);
                }
                Ok(Taken::Deleted) => gone.push(bin),
                Err(error) => {
                    left.push(bin);
                    result = Err(error);
                }
            }
        }
        if let Err(error) = self.identity.sync_names(Path::new(""), before) {
            // Deleted, but perhaps not for good: what was removed must stay in the log.
            result = Err(error);
            left.append(&mut gone);
            left.append(&mut orphans);
            for bin in &mut left {
                bin.redo = true;
            }
        }
        // What could not be taken away once is not used again.
        let unsure: Vec<u64> = left.iter().map(|bin| bin.bucket.id).collect();
        point("evict.dir_synced");
        let ids: Vec<u64> = gone.iter().chain(&orphans).map(|bin| bin.bucket.id).collect();
        let mut state = self.state.lock();
        state.coming -= coming;
        for bin in &mut gone {
            state.books.reserved -= bin.doubtful;
            // Those that are left have another name by now.
            if bin.data > 0 {
                let len = std::mem::take(&mut bin.data);
                state.books.data -= len;
                state.spares.add(len, bin.bucket.id);
            }
        }
        for bin in gone.iter_mut().chain(&mut orphans) {
            state.forget(bin);
        }
        state.bad.extend(unsure);
        state.leaving.append(&mut orphans);
        state.leaving.append(&mut left);
        drop(state);
        self.changed.notify_all();
        self.removed.forget(&ids);
        result
    }

    /// Takes the names of the files away. One that somebody reads is marked as an orphan.
    fn delete_files(&self, bin: &mut Bin, sparing: Option<u64>) -> io::Result<Taken> {
        let id = bin.bucket.id;
        let redo = std::mem::take(&mut bin.redo);
        if redo {
            // The name is given and taken once more, so that there is something to sync.
            drop(self.disk.open(&data_path(id), Open::Create));
        }
        // Asked once: a reader may leave at any time, and nobody can come.
        let is_read = bin.bucket.is_read();
        // Not before that: a reader that leaves in between would leave an open file behind, which holds the space
        // of the deleted one. Where somebody reads, this is done again when the orphan goes.
        self.handles.forget(id);
        let spares = sparing.is_some_and(|others| {
            let state = self.state.lock();
            let fit = bin.data > 0 && !redo && !state.bad.contains(&id);
            fit && state.may_spare(others + bin.data, &self.config)
        });
        let taken = if is_read {
            missing_is_fine(self.disk.rename(&data_path(id), &dead_path(id)))?;
            point("evict.orphan_marked");
            Taken::Read
        } else if spares && self.disk.rename(&data_path(id), &Self::path(id)).is_ok() {
            // It counts as what it was until that is durable.
            point("evict.spared");
            Taken::Spared
        } else {
            for path in [data_path(id), dead_path(id), Self::path(id)] {
                missing_is_fine(self.disk.remove(&path))?;
            }
            let mut state = self.state.lock();
            bin.doubtful += bin.data;
            state.books.reserved += bin.data;
            state.books.data -= std::mem::take(&mut bin.data);
            drop(state);
            point("evict.data_deleted");
            Taken::Deleted
        };
        if bin.meta > 0 {
            missing_is_fine(self.disk.remove(&meta_path(id)))?;
        }
        let mut state = self.state.lock();
        bin.doubtful += bin.meta;
        state.books.reserved += bin.meta;
        state.books.meta -= std::mem::take(&mut bin.meta);
        drop(state);
        point("evict.meta_deleted");
        Ok(taken)
    }

    /// Deletes buckets of which every record was removed, and orphans whose readers have left.
    pub(super) fn reclaim(&self) {
        let mut state = self.state.lock();
        let mut going = Vec::new();
        let mut at = 0;
        while at < state.leaving.len() {
            if state.leaving[at].bucket.is_read() {
                at += 1;
            } else {
                going.push(state.leaving.swap_remove(at));
            }
        }
        let empty = std::mem::take(&mut state.emptied);
        for id in empty {
            let dead = |bin: &Bin| bin.live == 0 && !bin.busy && !bin.open;
            if state.bins.get(&id).is_some_and(dead) {
                let mut bin = state.bins.remove(&id).expect("it was just looked at");
                state.drop_writer(&mut bin);
                going.push(bin);
            }
        }
        drop(state);
        if going.is_empty() {
            return;
        }
        if let Err(error) = self.delete(going, true) {
            tracing::warn!(%error, "buckets without records could not be deleted; tried again later");
        }
    }
}
