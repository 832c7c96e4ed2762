//! Keeping records: written beside, synced, renamed, the directory synced (S2).

use super::{Copy, Held, Shared, dir as dir_path, missing_is_fine, parent};
use crate::backend::{KeepError, NewRecord, is_full};
use crate::disk::{File, Open, WriteAt};
use crate::identity;
use crate::laying::{self, Laid, Sealed};
use crate::points::point;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Files that are open at the same time for one call.
const FILES: usize = 64;

/// A record on its way.
struct Item<'a> {
    sealed: Sealed<'a>,
    held: Arc<Held>,
    /// As far as it went well.
    done: io::Result<()>,
    renamed: bool,
}

impl Shared {
    pub(super) fn keep_all(&self, records: &[NewRecord<'_>]) -> Vec<Result<(), KeepError>> {
        let mut results: Vec<Result<(), KeepError>> = records.iter().map(|_| Ok(())).collect();
        self.sweep();
        let sealed = self.admit(Sealed::check_all(records, &mut results), &mut results);
        let mut rest = sealed.into_iter().peekable();
        while rest.peek().is_some() {
            let some: Vec<Sealed<'_>> = rest.by_ref().take(FILES).collect();
            self.keep_some(some, &mut results);
        }
        results
    }

    /// Claims the names and the bytes.
    fn admit<'a>(
        &self,
        sealed: Vec<Sealed<'a>>,
        results: &mut [Result<(), KeepError>],
    ) -> Vec<Sealed<'a>> {
        let mut state = self.state.lock();
        let limit = self.config.limit_bytes;
        let mut good = Vec::with_capacity(sealed.len());
        for sealed in sealed {
            let id = sealed.record.id;
            let need = laying::rounded(sealed.shape().bytes());
            let used = state.data + state.reserved + identity::BYTES_MAX;
            if state.is_there(id) {
                results[sealed.number] = Err(KeepError::Exists);
            } else if used + need > limit {
                results[sealed.number] = Err(KeepError::Full { need, used, limit });
            } else {
                state.pending.insert(id);
                state.reserved += need;
                good.push(sealed);
            }
        }
        good
    }

    fn keep_some(&self, sealed: Vec<Sealed<'_>>, results: &mut [Result<(), KeepError>]) {
        let serials = self.identity.take(sealed.len() as u64);
        let first = *serials.as_ref().unwrap_or(&0);
        let mut items: Vec<Item<'_>> = (first..)
            .zip(sealed)
            .map(|(serial, sealed)| {
                let record = &sealed.record;
                let held = Held::new(record.id, serial, record.label, record.value.len() as u64);
                let done = serials.as_ref().map(|_| ()).map_err(laying::again);
                Item { sealed, held: Arc::new(held), done, renamed: false }
            })
            .collect();
        self.make_dirs(&mut items);
        self.write(&mut items);
        self.name(&mut items);
        self.undo(&items);
        self.commit(items, results);
    }

    /// The directories of new files, made durable once.
    fn make_dirs(&self, items: &mut [Item<'_>]) {
        for item in items.iter_mut().filter(|item| item.done.is_ok()) {
            item.done = self.make_dir([item.held.hash[0], item.held.hash[1]]);
        }
    }

    fn make_dir(&self, key: [u8; 2]) -> io::Result<()> {
        let doubtful = || io::Error::other("a directory could not be made durable; start again");
        let state = self.state.lock();
        let (top, dir) = (state.tops.get(&key[0]).copied(), state.dirs.get(&key).copied());
        drop(state);
        match (top, dir) {
            (Some(true), Some(true)) => return Ok(()),
            (Some(false), _) | (_, Some(false)) => return Err(doubtful()),
            _ => {}
        }
        let path = dir_path(key);
        let above = parent(&path);
        if top.is_none() {
            let before = self.identity.names();
            self.disk.make_dir(&above)?;
            let synced = self.identity.sync_names(Path::new(""), before);
            self.state.lock().tops.insert(key[0], synced.is_ok());
            synced?;
        }
        let before = self.identity.names();
        self.disk.make_dir(&path)?;
        let synced = self.identity.sync_names(&above, before);
        self.state.lock().dirs.insert(key, synced.is_ok());
        synced
    }

    /// Values, in files that have no name yet, and durable.
    fn write(&self, items: &mut [Item<'_>]) {
        let mut files: Vec<(usize, Arc<dyn File>, Laid<'_>)> = Vec::with_capacity(items.len());
        for (at, item) in items.iter_mut().enumerate().filter(|(_, item)| item.done.is_ok()) {
            match self.disk.open(&item.held.named(".tmp"), Open::Create) {
                Ok(file) => {
                    let site = item.held.site(self.identity.token);
                    files.push((at, file, laying::lay(std::slice::from_ref(&item.sealed), site)));
                }
                Err(error) => item.done = Err(error),
            }
        }
        point("per_key.created");
        let pieces: Vec<Vec<&[u8]>> = files.iter().map(|(_, _, laid)| laid.pieces()).collect();
        let writes = files.iter().zip(&pieces).map(|((_, file, _), pieces)| {
            let (offset, result) = (0, Ok(()));
            WriteAt { file, offset, pieces, result }
        });
        let mut writes: Vec<WriteAt<'_>> = writes.collect();
        self.identity.write_many(&mut writes);
        let ended: Vec<io::Result<()>> = writes.into_iter().map(|write| write.result).collect();
        point("per_key.written");
        let synced = files
            .iter()
            .zip(ended)
            .map(|((at, file, _), written)| (*at, written.and_then(|()| file.sync_data())));
        let synced: Vec<(usize, io::Result<()>)> = synced.collect();
        drop(pieces);
        drop(files);
        for (at, result) in synced {
            items[at].done = result;
        }
        point("per_key.synced");
    }

    /// Names, durable.
    fn name(&self, items: &mut [Item<'_>]) {
        let mut dirs: BTreeMap<PathBuf, io::Result<()>> = BTreeMap::new();
        let before = self.identity.names();
        for item in items.iter_mut().filter(|item| item.done.is_ok()) {
            item.done = self.disk.rename(&item.held.named(".tmp"), &item.held.path());
            item.renamed = item.done.is_ok();
            dirs.insert(item.held.dir(), Ok(()));
        }
        point("per_key.renamed");
        for (dir, synced) in &mut dirs {
            *synced = self.identity.sync_names(dir, before);
        }
        for item in items.iter_mut().filter(|item| item.done.is_ok()) {
            if let Some(Err(error)) = dirs.get(&item.held.dir()) {
                item.done = Err(laying::again(error));
            }
        }
        point("per_key.dir_synced");
    }

    /// Nothing is left of what failed.
    fn undo(&self, items: &[Item<'_>]) {
        let mut dirs = BTreeSet::new();
        let before = self.identity.names();
        for item in items.iter().filter(|item| item.done.is_err()) {
            let path = if item.renamed { item.held.path() } else { item.held.named(".tmp") };
            dirs.insert(item.held.dir());
            if missing_is_fine(self.disk.remove(&path)).is_err() {
                let mut state = self.state.lock();
                state.data += item.held.bytes();
                state.leaving.push((path, item.held.bytes(), None));
            }
        }
        if dirs.is_empty() || self.sync_dirs(&dirs, before).is_ok() {
            return;
        }
        let mut state = self.state.lock();
        for item in items.iter().filter(|item| item.done.is_err() && item.renamed) {
            // Deleted, but a crash may bring it back: as a file that is being removed.
            let held = Arc::clone(&item.held);
            state.reserved += held.bytes();
            let key = (held.id, held.serial);
            state.redo.push(key);
            state.hidden.insert(key, Copy { held, stays: true, counted: false });
        }
    }

    fn commit(&self, items: Vec<Item<'_>>, results: &mut [Result<(), KeepError>]) {
        let free = self.disk.free_bytes().unwrap_or(0);
        let mut state = self.state.lock();
        for Item { sealed, held, done, .. } in items {
            let need = held.bytes();
            state.pending.remove(&held.id);
            state.reserved -= need;
            let used = state.data + state.reserved;
            results[sealed.number] = match done {
                Ok(()) => {
                    state.data += need;
                    state.link(held);
                    Ok(())
                }
                Err(error) if is_full(&error) => {
                    Err(KeepError::Full { need, used, limit: used + free })
                }
                Err(error) => Err(error.into()),
            };
        }
    }
}
