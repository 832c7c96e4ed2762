//! Keeping records: written beside, synced, renamed, the directory synced, and those above that are new (S2).

use super::{Copy, Held, Place, Shared, State, parent, spare};
use crate::backend::{KeepError, NewRecord};
use crate::disk::{File, Open, WriteAt, is_full, missing_is_fine};
use crate::laying::{self, Laid, Sealed};
use crate::points::point;
use crate::spare::HasSpares;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// Files that are open at the same time for one call.
const FILES: usize = 64;

/// A record that there is room for.
struct Admitted<'a> {
    sealed: Sealed<'a>,
    /// The spare file that it is written over.
    spare: Option<u64>,
}

/// A record on its way.
struct Item<'a> {
    sealed: Sealed<'a>,
    spare: Option<u64>,
    held: Arc<Held>,
    /// As far as it went well.
    done: io::Result<()>,
    /// There may be a file of it.
    begun: bool,
    renamed: bool,
}

impl Item<'_> {
    /// Where it is written, before it has its name.
    fn draft(&self) -> PathBuf {
        self.spare.map_or_else(|| self.held.named(".tmp"), Shared::path)
    }

    /// Where names change when it gets its own.
    fn dirs(&self) -> impl Iterator<Item = PathBuf> + use<> {
        [self.held.dir()].into_iter().chain(self.spare.map(|_| spare::DIR.into()))
    }
}

/// Directories that a call made, and that are not known to be durable.
struct Made {
    /// Names before it.
    before: u64,
    tops: BTreeMap<u8, PathBuf>,
    dirs: BTreeMap<[u8; 2], PathBuf>,
}

impl Made {
    fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        self.tops.values().chain(self.dirs.values())
    }

    /// Those that a record lies below.
    fn above(&self, held: &Held) -> impl Iterator<Item = &PathBuf> {
        let pair = held.pair();
        self.tops.get(&pair[0]).into_iter().chain(self.dirs.get(&pair))
    }
}

impl Shared {
    pub(super) fn keep_all(&self, records: &[NewRecord<'_>]) -> Vec<Result<(), KeepError>> {
        let mut results: Vec<Result<(), KeepError>> = records.iter().map(|_| Ok(())).collect();
        self.sweep();
        let admitted = self.admit(Sealed::check_all(records, &mut results), &mut results);
        let mut rest = admitted.into_iter().peekable();
        while rest.peek().is_some() {
            let some: Vec<Admitted<'_>> = rest.by_ref().take(FILES).collect();
            self.keep_some(some, &mut results);
        }
        results
    }

    /// Claims the names, the bytes and spare files.
    fn admit<'a>(
        &self,
        sealed: Vec<Sealed<'a>>,
        results: &mut [Result<(), KeepError>],
    ) -> Vec<Admitted<'a>> {
        let mut state = self.state.lock();
        let limit = self.config.limit_bytes;
        let mut good = Vec::with_capacity(sealed.len());
        for sealed in sealed {
            let id = sealed.record.id;
            let need = laying::rounded(sealed.shape().bytes());
            let used = state.taken();
            if state.is_there(id) {
                results[sealed.number] = Err(KeepError::Exists);
            } else if used + need > limit {
                results[sealed.number] = Err(KeepError::Full { need, used, limit });
            } else {
                state.pending.insert(id);
                state.reserved += need;
                good.push(Admitted { sealed, spare: state.spares.take(need) });
            }
        }
        drop(state);
        self.trim_spares();
        good
    }

    fn keep_some(&self, some: Vec<Admitted<'_>>, results: &mut [Result<(), KeepError>]) {
        let serials = self.identity.take(some.len() as u64);
        let first = *serials.as_ref().unwrap_or(&0);
        let mut items: Vec<Item<'_>> = (first..)
            .zip(some)
            .map(|(serial, Admitted { sealed, spare })| {
                let record = &sealed.record;
                let held = Held::new(record.id, serial, record.label, record.value.len() as u64);
                let done = serials.as_ref().map(|_| ()).map_err(laying::again);
                let (held, begun, renamed) = (Arc::new(held), spare.is_some(), false);
                Item { sealed, spare, held, done, begun, renamed }
            })
            .collect();
        let made = self.make_dirs(&mut items);
        self.write(&mut items);
        self.name(&made, &mut items);
        self.undo(&items);
        self.commit(items, results);
    }

    /// The directories of new files.
    fn make_dirs(&self, items: &mut [Item<'_>]) -> Made {
        let before = self.identity.names();
        let top = |held: &Held| held.pair()[0];
        let top_path = |held: &Held| parent(&held.dir());
        let tops = self.make_level(items, top, top_path, |state| &state.tops);
        let dirs = self.make_level(items, Held::pair, Held::dir, |state| &state.dirs);
        Made { before, tops, dirs }
    }

    /// Those of one level that are not `known` by their `key`.
    fn make_level<K: std::marker::Copy + Ord + Hash>(
        &self,
        items: &mut [Item<'_>],
        key: impl Fn(&Held) -> K,
        path: impl Fn(&Held) -> PathBuf,
        known: impl Fn(&State) -> &HashMap<K, bool>,
    ) -> BTreeMap<K, PathBuf> {
        let mut made = BTreeMap::new();
        for item in items.iter_mut().filter(|item| item.done.is_ok()) {
            let key = key(&item.held);
            let durable = known(&self.state.lock()).get(&key).copied();
            match durable {
                Some(true) => {}
                Some(false) => {
                    let what = "a directory could not be made durable; start again";
                    item.done = Err(io::Error::other(what));
                }
                None if made.contains_key(&key) => {}
                None => {
                    let path = path(&item.held);
                    item.done = self.disk.make_dir(&path);
                    if item.done.is_ok() {
                        made.insert(key, path);
                    }
                }
            }
        }
        made
    }

    /// The file that a record is written to.
    fn open_draft(&self, item: &mut Item<'_>) -> io::Result<Arc<dyn File>> {
        if item.spare.is_some() {
            match self.disk.open(&item.draft(), Open::Write) {
                Ok(file) => {
                    // Somebody may have cut it; what is longer than its record is none.
                    let len = item.held.bytes();
                    if file.len()? != len {
                        file.set_len(len)?;
                    }
                    return Ok(file);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => item.spare = None,
                Err(error) => return Err(error),
            }
        }
        self.disk.open(&item.draft(), Open::Create)
    }

    /// Values, in files that have no name yet, and durable.
    fn write(&self, items: &mut [Item<'_>]) {
        let mut files: Vec<(usize, Arc<dyn File>, Laid<'_>)> = Vec::with_capacity(items.len());
        for (at, item) in items.iter_mut().enumerate().filter(|(_, item)| item.done.is_ok()) {
            item.begun = true;
            match self.open_draft(item) {
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
        drop(pieces);
        for ((at, _, _), written) in files.iter().zip(ended) {
            items[*at].done = written;
        }
        files.retain(|(at, _, _)| items[*at].done.is_ok());
        let written: Vec<&Arc<dyn File>> = files.iter().map(|(_, file, _)| file).collect();
        for ((at, _, _), synced) in files.iter().zip(self.disk.sync_files(&written)) {
            items[*at].done = synced;
        }
        point("per_key.synced");
    }

    /// Names, and those of new directories, durable. One round of syncs is enough for both: until its end nobody is
    /// told of a record.
    fn name(&self, made: &Made, items: &mut [Item<'_>]) {
        let mut dirs: BTreeSet<PathBuf> = made.paths().map(|path| parent(path)).collect();
        for item in items.iter_mut().filter(|item| item.done.is_ok()) {
            item.done = self.disk.rename(&item.draft(), &item.held.path());
            item.renamed = item.done.is_ok();
            dirs.extend(item.dirs());
        }
        point("per_key.renamed");
        let synced = self.sync_names(dirs, made.before);
        let is_durable = |path: &PathBuf| synced[&parent(path)].is_ok();
        let mut state = self.state.lock();
        state.tops.extend(made.tops.iter().map(|(top, path)| (*top, is_durable(path))));
        state.dirs.extend(made.dirs.iter().map(|(dir, path)| (*dir, is_durable(path))));
        drop(state);
        for item in items.iter_mut().filter(|item| item.done.is_ok()) {
            let above = made.above(&item.held).map(|path| parent(path));
            let mut all = item.dirs().chain(above);
            if let Some(error) = all.find_map(|dir| synced[&dir].as_ref().err()) {
                item.done = Err(laying::again(error));
            }
        }
        point("per_key.dir_synced");
    }

    /// Nothing is left of what failed. The directory of what was not begun may not be there, and a sync of that would
    /// pass for one that failed.
    fn undo(&self, items: &[Item<'_>]) {
        let mut dirs = BTreeSet::new();
        let before = self.identity.names();
        for item in items.iter().filter(|item| item.done.is_err() && item.begun) {
            let path = if item.renamed { item.held.path() } else { item.draft() };
            dirs.insert(parent(&path));
            dirs.extend(item.spare.map(|_| spare::DIR.into()));
            if missing_is_fine(self.disk.remove(&path)).is_err() {
                let mut state = self.state.lock();
                state.data += item.held.bytes();
                state.leaving.push((path, item.held.bytes(), None));
            }
        }
        if dirs.is_empty() || self.sync_dirs(dirs, before).is_ok() {
            return;
        }
        let mut state = self.state.lock();
        for item in items.iter().filter(|item| item.done.is_err() && item.renamed) {
            // Deleted, but a crash may bring it back: as a file that is being removed.
            let held = Arc::clone(&item.held);
            state.reserved += held.bytes();
            let key = (held.id, held.serial);
            state.redo.push(key);
            state.hidden.insert(key, Copy { held, stays: true, bad: false, place: Place::Gone });
        }
    }

    fn commit(&self, items: Vec<Item<'_>>, results: &mut [Result<(), KeepError>]) {
        if items.iter().any(|item| item.done.as_ref().is_err_and(is_full)) {
            self.delete_spares();
        }
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
