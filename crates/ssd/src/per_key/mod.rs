//! A file for each record: easy to look at, slow for millions.
//!
//! ```text
//!   a/b/<hash of tenant and key>-<object>-<stripe>-<serial>          hash: BLAKE3; ab: by the serial
//! ```
//!
//! Written as a temporary file, or over a spare one (`spare.rs`), synced, renamed, its directory synced. What is kept
//! together lies together, in a directory by the hash of a block of serials, so a call syncs one or two of them. A
//! removal is a name that is gone, synced. The serial is never used again, so a file that waits to be deleted and the
//! same record kept anew are two files.
//!
//! What must stay true: a file that has its name is complete. Records are evicted in the order of their
//! serials. The lock of the state is never held over I/O.

mod evict;
mod recover;
mod spare;
#[cfg(test)]
mod tests;
mod write;

use crate::backend::{Backend, KeepError, Load, LoadError, NewRecord, RecordId, Ticket, Usage};
use crate::config::Config;
use crate::disk::{Disk, Open};
use crate::identity::{self, Identity};
use crate::points::point;
use crate::reading::{self, Found, Reader};
use crate::record::{Kind, Shape, Site};
use crate::spare::Spares;
use mooncrate_core::label::Label;
use mooncrate_lock::{Condvar, Mutex};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Serials in a row whose files share a directory.
const BLOCK: u64 = 64;
/// The golden ratio: blocks that follow each other are far from each other, and all directories fill alike.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
/// Records that one call of `scrub` looks at.
const SCRUB_RECORDS: usize = 1024;

/// See the file's head.
#[derive(Debug)]
pub struct PerKey(Arc<Shared>);

/// What tickets hold on to.
#[derive(Debug)]
struct Shared {
    disk: Arc<dyn Disk>,
    config: Config,
    identity: Identity,
    reader: Reader,
    state: Mutex<State>,
    /// For waits that are bounded.
    pause: Condvar,
}

/// A file. Who reads it holds a count of it beside that of the state.
#[derive(Debug)]
struct Held {
    id: RecordId,
    serial: u64,
    hash: [u8; 32],
    shape: Shape,
}

/// A file that is not served.
#[derive(Debug)]
struct Copy {
    held: Arc<Held>,
    /// It is being removed, or is bad, which cannot be taken back.
    stays: bool,
    /// Where it lies the disk may be bad, too: nothing is written over it.
    bad: bool,
    place: Place,
}

/// What is left of a file that is not served, and who counts its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// All of it; with the data.
    Named,
    /// It may become a spare; with the spares.
    Spare,
    /// Nothing, but not for good yet: a crash may bring it back, so they stay reserved.
    Gone,
}

#[derive(Debug, Default)]
struct State {
    index: HashMap<RecordId, Arc<Held>>,
    /// Which record a serial is, of those in the index.
    order: BTreeMap<u64, RecordId>,
    /// Files that are not served.
    hidden: BTreeMap<(RecordId, u64), Copy>,
    pending: HashSet<RecordId>,
    /// Directories that are there, and whether that is durable. One that may vanish is not used.
    tops: HashMap<u8, bool>,
    dirs: HashMap<[u8; 2], bool>,
    /// Files that shall go and could not yet.
    leaving: Vec<(PathBuf, u64, Option<Arc<Held>>)>,
    /// Hidden files whose deletion did not become durable. By name: a count of them would pass for a reader.
    redo: Vec<(RecordId, u64)>,
    spares: Spares,
    /// Bytes of files, without spares.
    data: u64,
    reserved: u64,
    value_bytes: u64,
}

impl Held {
    fn new(id: RecordId, serial: u64, label: &[u8], len: u64) -> Self {
        Self { id, serial, hash: hash(label), shape: Shape::new(label.len(), len) }
    }

    /// Bytes of the file.
    fn bytes(&self) -> u64 {
        crate::laying::rounded(self.shape.bytes())
    }

    /// Which directory it is in. There are 256, because each of them costs as much as a file when it is made, and a
    /// sync at each start; file systems find a name among many.
    fn pair(&self) -> [u8; 2] {
        let [hash, ..] = (self.serial / BLOCK).wrapping_mul(GOLDEN).to_be_bytes();
        [hash >> 4, hash & 15]
    }

    fn dir(&self) -> PathBuf {
        dir(self.pair())
    }

    fn path(&self) -> PathBuf {
        self.named("")
    }

    fn named(&self, ending: &str) -> PathBuf {
        let RecordId { object, stripe } = self.id;
        let mut name = String::with_capacity(140);
        // One for each record of a start: a formatter for each byte would be most of the work.
        let digits = self.hash.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        name.extend(digits.map(|digit| char::from(b"0123456789abcdef"[usize::from(digit)])));
        let (epoch, object) = (object.epoch.0, object.sequence);
        let _ = write!(name, "-{epoch:x}.{object:x}-{stripe:x}-{:016x}{ending}", self.serial);
        self.dir().join(name)
    }

    fn site(&self, token: u64) -> Site {
        Site { kind: Kind::PerKey, token, serial: self.serial, offset: 0 }
    }
}

fn dir([first, second]: [u8; 2]) -> PathBuf {
    format!("{first:x}/{second:x}").into()
}

/// Of tenant and key; the wishes in a label are no part of a name.
fn hash(label: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    match Label::decode(label) {
        Some(label) => {
            hasher.update(&label.tenant.0.to_le_bytes());
            hasher.update(label.key.as_bytes());
        }
        None => drop(hasher.update(label)),
    }
    *hasher.finalize().as_bytes()
}

impl State {
    /// What counts against the limit when a record is kept. Spares give way.
    fn taken(&self) -> u64 {
        self.data + self.reserved + self.spares.moving_bytes() + identity::BYTES_MAX
    }

    fn link(&mut self, held: Arc<Held>) {
        self.value_bytes += held.shape.value;
        self.order.insert(held.serial, held.id);
        self.index.insert(held.id, held);
    }

    /// Whether the record is served, being kept, or not gone for good.
    fn is_there(&self, id: RecordId) -> bool {
        let mut copies = self.hidden.range((id, 0)..=(id, u64::MAX));
        self.index.contains_key(&id) || self.pending.contains(&id) || copies.next().is_some()
    }

    fn hide(&mut self, id: RecordId, stays: bool) -> Option<u64> {
        let held = self.index.remove(&id)?;
        let serial = held.serial;
        self.value_bytes -= held.shape.value;
        self.order.remove(&serial);
        self.hidden.insert((id, serial), Copy { held, stays, bad: false, place: Place::Named });
        Some(serial)
    }
}

impl Shared {
    /// What is bad is not served again, nor if it is hidden now and that is taken back. Says whether it was
    /// served: what is hidden may be deleted once more, and be an empty file for a moment.
    fn quarantine(&self, id: RecordId, serial: u64) -> bool {
        let mut state = self.state.lock();
        let was_served = state.index.get(&id).is_some_and(|held| held.serial == serial);
        if was_served {
            state.hide(id, true);
        }
        if let Some(copy) = state.hidden.get_mut(&(id, serial)) {
            (copy.stays, copy.bad) = (true, true);
        }
        drop(state);
        if was_served {
            tracing::warn!(object = %id.object, stripe = id.stripe, "a record on the disk is bad");
        }
        was_served
    }

    /// Makes it durable that files are gone or there.
    fn sync_dirs(&self, dirs: BTreeSet<PathBuf>, before: u64) -> io::Result<()> {
        self.sync_names(dirs, before).into_values().fold(Ok(()), io::Result::and)
    }

    /// Makes names durable that were changed since `before`; one result for each directory.
    fn sync_names(
        &self,
        dirs: BTreeSet<PathBuf>,
        before: u64,
    ) -> BTreeMap<PathBuf, io::Result<()>> {
        let paths: Vec<&Path> = dirs.iter().map(PathBuf::as_path).collect();
        let synced = self.identity.sync_all_names(&paths, before);
        dirs.into_iter().zip(synced).collect()
    }
}

impl Backend for PerKey {
    fn keep(&self, records: &[NewRecord<'_>]) -> Vec<Result<(), KeepError>> {
        self.0.keep_all(records)
    }

    fn load(&self, loads: &mut [Load<'_>]) {
        let this = &*self.0;
        let state = this.state.lock();
        let found = loads.iter().map(|load| state.index.get(&load.id).cloned());
        let held: Vec<Option<Arc<Held>>> = found.collect();
        drop(state);
        let mut found = Vec::with_capacity(loads.len());
        for (load, held) in loads.iter_mut().zip(&held) {
            let Some(held) = held else {
                load.result = Err(LoadError::Missing);
                continue;
            };
            if let Err(error) = reading::admit(load, held.shape) {
                load.result = Err(error);
                continue;
            }
            let site = held.site(this.identity.token);
            match this.disk.open(&held.path(), Open::Read) {
                Ok(file) => found.push(Found { site, file, load }),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    load.result = Err(LoadError::Missing);
                    this.quarantine(load.id, held.serial);
                }
                Err(error) => load.result = Err(error.into()),
            }
        }
        this.reader.load(this.disk.as_ref(), &mut found);
        for Found { site, load, .. } in found {
            let corrupt = matches!(load.result, Err(LoadError::Corrupt));
            if corrupt && !this.quarantine(load.id, site.serial) {
                // It went while it was read.
                load.result = Err(LoadError::Missing);
            }
        }
    }

    fn remove(&self, ids: &[RecordId]) -> io::Result<()> {
        let this = &*self.0;
        let mut going = Vec::new();
        let mut state = this.state.lock();
        for &id in ids {
            state.hide(id, true);
            for (_, copy) in state.hidden.range_mut((id, 0)..=(id, u64::MAX)) {
                copy.stays = true;
                going.push(Arc::clone(&copy.held));
            }
        }
        drop(state);
        point("removed.hidden");
        this.delete(&going)
    }

    fn unlink(&self, bytes: u64) -> Option<Box<dyn Ticket>> {
        crate::backend::canary_deletes(self.0.unlink_some(bytes))
    }

    fn scrub(&self, cursor: u64, bytes: u64) -> (Vec<RecordId>, u64) {
        let this = &*self.0;
        let (mut some, mut seen, mut next) = (Vec::new(), 0, 0);
        let state = this.state.lock();
        for (serial, id) in state.order.range(cursor..) {
            if seen >= bytes || some.len() >= SCRUB_RECORDS {
                next = *serial;
                break;
            }
            let held = Arc::clone(&state.index[id]);
            seen += held.bytes();
            some.push(held);
        }
        drop(state);
        let mut bad = Vec::new();
        for held in some {
            let checked = this.disk.open(&held.path(), Open::Read).and_then(|file| {
                let site = held.site(this.identity.token);
                this.reader.check(this.disk.as_ref(), &file, site, held.id, held.shape)
            });
            if reading::is_bad(&checked) && this.quarantine(held.id, held.serial) {
                bad.push(held.id);
            }
        }
        (bad, next)
    }

    fn token(&self) -> u64 {
        self.0.identity.token
    }

    fn usage(&self) -> Usage {
        let this = &*self.0;
        let state = this.state.lock();
        let used = state.data + this.identity.bytes();
        Usage {
            records: state.index.len() as u64,
            value_bytes: state.value_bytes,
            used,
            limit: this.config.limit_bytes,
            on_disk: used + state.spares.bytes(),
            written: this.identity.written(),
        }
    }
}

/// The directory of a file.
fn parent(path: &Path) -> PathBuf {
    path.parent().map(Path::to_path_buf).unwrap_or_default()
}
