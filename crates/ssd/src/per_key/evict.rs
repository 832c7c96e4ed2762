//! Deleting files: for removals at once, for evictions in two steps (S1, S6).

use super::{Held, Place, Shared, spare};
use crate::backend::{RecordId, Ticket};
use crate::disk::{Open, missing_is_fine};
use crate::points::point;
use crate::spare::HasSpares;
use mooncrate_mem::clock::boottime;
use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How often somebody who waits looks again.
const LOOK: Duration = Duration::from_millis(2);

/// What became of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Taken {
    Deleted,
    /// Somebody else took it away.
    Missing,
    /// It has a name as a spare, and is one when that is durable.
    Spared,
}

/// Files that are hidden.
struct Hidden {
    all: Arc<Shared>,
    held: Vec<Arc<Held>>,
    records: Vec<RecordId>,
    bytes: u64,
}

impl std::fmt::Debug for Hidden {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Hidden({} records, {} bytes)", self.records.len(), self.bytes)
    }
}

/// Whether somebody else than the state and the caller has a hold of it.
fn is_read(held: &Arc<Held>) -> bool {
    Arc::strong_count(held) > 2
}

impl Shared {
    pub(super) fn unlink_some(self: &Arc<Self>, bytes: u64) -> Option<Box<dyn Ticket>> {
        self.sweep();
        let (held, records) = (Vec::new(), Vec::new());
        let mut hidden = Hidden { all: Arc::clone(self), held, records, bytes: 0 };
        let mut state = self.state.lock();
        while hidden.records.is_empty() || hidden.bytes < bytes {
            let Some((_, &id)) = state.order.first_key_value() else { break };
            let serial = state.hide(id, false).expect("what has an order is in the index");
            let held = Arc::clone(&state.hidden[&(id, serial)].held);
            hidden.bytes += held.bytes();
            hidden.records.push(id);
            hidden.held.push(held);
        }
        drop(state);
        point("evict.unlinked");
        (!hidden.records.is_empty()).then(|| Box::new(hidden) as Box<dyn Ticket>)
    }

    /// Deletes hidden files for good. Who has one open reads on; those that nobody reads may stay as spares.
    pub(super) fn delete(&self, going: &[Arc<Held>]) -> io::Result<()> {
        if going.is_empty() {
            return Ok(());
        }
        let mut result = Ok(());
        let (mut gone, mut spared, mut dirs) = (Vec::new(), Vec::new(), BTreeSet::new());
        let spare_some = self.has_room_for_spares();
        let before = self.identity.names();
        for held in going {
            let taken = self.take_away(held, spare_some);
            match taken {
                Ok(taken) => {
                    dirs.insert(held.dir());
                    gone.push(held);
                    if taken == Taken::Spared {
                        spared.push(held);
                    }
                    if taken != Taken::Deleted {
                        // A file that is missing here may be there.
                        dirs.insert(spare::DIR.into());
                    }
                }
                Err(error) => result = Err(error),
            }
        }
        if !self.state.lock().spares.usable {
            dirs.remove(Path::new(spare::DIR));
        }
        point("per_key.deleted");
        let synced = self.sync_dirs(dirs, before);
        point("per_key.delete_synced");
        // Without it they may be records again after a crash, so nothing is written over them.
        let keep = |held: &&Arc<Held>| synced.is_ok() || self.remove_spare(held.serial).is_err();
        let (left, removed): (Vec<_>, Vec<_>) = spared.into_iter().partition(keep);
        let mut state = self.state.lock();
        for held in left {
            let (len, serial) = (held.bytes(), held.serial);
            state.spares.moved(len, synced.is_ok().then_some(serial));
            if synced.is_err() {
                state.data += len;
                state.leaving.push((Self::path(serial), len, None));
            }
        }
        for held in removed {
            state.spares.moved(held.bytes(), None);
        }
        for held in gone {
            let (key, bytes) = ((held.id, held.serial), held.bytes());
            let Some(copy) = state.hidden.get_mut(&key) else { continue };
            let place = std::mem::replace(&mut copy.place, Place::Gone);
            if place == Place::Named {
                state.data -= bytes;
            }
            if place != Place::Gone {
                state.reserved += bytes;
            }
            // It may come back with a crash if the sync failed.
            if synced.is_ok() {
                state.hidden.remove(&key);
                state.reserved -= bytes;
            } else {
                state.redo.push(key);
            }
        }
        result.and(synced)
    }

    /// Takes the name of a hidden file away.
    fn take_away(&self, held: &Arc<Held>, spare_some: bool) -> io::Result<Taken> {
        let (key, path, bytes) = ((held.id, held.serial), held.path(), held.bytes());
        if spare_some {
            self.make_place(bytes);
        }
        let mut state = self.state.lock();
        let may = spare_some && !is_read(held) && !state.spares.is_full();
        let place = state.hidden.get(&key).map(|copy| copy.place);
        if let Some(copy) = state.hidden.get_mut(&key)
            && may
            && copy.place == Place::Named
            && !copy.bad
        {
            copy.place = Place::Spare;
            state.data -= bytes;
            state.spares.moves(bytes);
            drop(state);
            if self.disk.rename(&path, &Self::path(held.serial)).is_ok() {
                return Ok(Taken::Spared);
            }
            state = self.state.lock();
            state.spares.moved(bytes, None);
            // Unless somebody else deleted it meanwhile.
            if let Some(copy) = state.hidden.get_mut(&key)
                && copy.place == Place::Spare
            {
                copy.place = Place::Named;
                state.data += bytes;
            }
        }
        drop(state);
        if matches!(place, Some(Place::Gone | Place::Spare)) {
            // A sync failed, or may fail: the name is given and taken once more, so that there is something to sync.
            drop(self.disk.open(&path, Open::Create));
        }
        match self.disk.remove(&path) {
            Ok(()) if place == Some(Place::Spare) => Ok(Taken::Missing),
            Ok(()) => Ok(Taken::Deleted),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Taken::Missing),
            Err(error) => Err(error),
        }
    }

    /// Deletes what could not be deleted before.
    pub(super) fn sweep(&self) {
        let mut state = self.state.lock();
        if state.leaving.is_empty() && state.redo.is_empty() {
            return;
        }
        let leaving = std::mem::take(&mut state.leaving);
        let redo = std::mem::take(&mut state.redo);
        let copies = redo.iter().filter_map(|key| state.hidden.get(key));
        let redo: Vec<Arc<Held>> = copies.map(|copy| Arc::clone(&copy.held)).collect();
        drop(state);
        if !redo.is_empty() {
            // What fails again is listed again.
            let _ = self.delete(&redo);
        }
        for (path, bytes, held) in leaving {
            let read = held.as_ref().is_some_and(|held| Arc::strong_count(held) > 1);
            let gone = !read && missing_is_fine(self.disk.remove(&path)).is_ok();
            let mut state = self.state.lock();
            if gone {
                state.data -= bytes;
            } else {
                state.leaving.push((path, bytes, held));
            }
        }
    }

    /// What is still read after the wait: renamed, so that the next start knows it as an orphan. Somebody else
    /// may delete it at the same time: whoever comes second finds no file, and the books follow the file.
    fn orphan(&self, held: &Arc<Held>) -> io::Result<()> {
        let path = held.named(".dead");
        let before = self.identity.names();
        let renamed = match self.disk.rename(&held.path(), &path) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(error),
        };
        point("evict.orphan_marked");
        let synced = self.identity.sync_names(&held.dir(), before);
        let (key, bytes) = ((held.id, held.serial), held.bytes());
        // A deletion that is repeated makes an empty file for a moment.
        let len = || self.disk.open(&path, Open::Read).and_then(|file| file.len());
        let len = if renamed { len().unwrap_or(bytes) } else { 0 };
        let mut state = self.state.lock();
        if !renamed {
            if state.hidden.contains_key(&key) {
                state.redo.push(key);
            }
            return synced;
        }
        // Its bytes are still there, under the other name; somebody else may have counted them as deleted.
        if state.hidden.get(&key).is_none_or(|copy| copy.place != Place::Named) {
            state.data += len;
        }
        state.leaving.push((path, len, Some(Arc::clone(held))));
        if synced.is_ok() {
            if state.hidden.remove(&key).is_some_and(|copy| copy.place == Place::Gone) {
                state.reserved -= bytes;
            }
        } else if let Some(copy) = state.hidden.get_mut(&key) {
            // A crash may bring its own name back: as after a deletion whose sync failed.
            if std::mem::replace(&mut copy.place, Place::Gone) != Place::Gone {
                state.reserved += bytes;
            }
            state.redo.push(key);
        }
        synced
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
        let held = std::mem::take(&mut self.held);
        let deadline = boottime().deadline_in(wait);
        while held.iter().any(is_read) {
            let left = deadline.left(boottime());
            if left.is_zero() {
                break;
            }
            let mut state = self.all.state.lock();
            self.all.pause.wait_for(&mut state, left.min(LOOK));
        }
        point("evict.drained");
        let (read, free): (Vec<_>, Vec<_>) = held.into_iter().partition(is_read);
        let orphaned = read.iter().map(|held| self.all.orphan(held));
        let orphaned = orphaned.fold(Ok(()), io::Result::and);
        self.all.delete(&free).and(orphaned)
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        let mut state = self.all.state.lock();
        for held in self.held.drain(..) {
            let key = (held.id, held.serial);
            // Being removed, or a newer copy is served: it stays hidden.
            let back = state
                .hidden
                .get(&key)
                .is_some_and(|copy| !copy.stays && copy.place == Place::Named);
            if back && !state.index.contains_key(&held.id) {
                state.hidden.remove(&key);
                state.link(held);
            }
        }
    }
}
