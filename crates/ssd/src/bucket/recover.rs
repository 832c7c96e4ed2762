//! Finding records again after a restart (S3).
//!
//! Lanes look into the buckets (`look.rs`); what they found is taken over one bucket after the other.
//!
//! What must stay true: a record that is not told is gone for good, although the disk may read it another
//! time. Else it could come back after a removal that did not know of it (G6). So a record that is bad, or
//! the older one of two, goes to the log of removed records, what lies behind the end of a scan is cut off,
//! and a bucket for which neither can be done is deleted.

use super::handles::Handles;
use super::look::{Listed, Looked, Looker, Scanned};
use super::meta::{self, Meta, Seen};
use super::removed::{self, Place, Removed};
use super::state::{Bin, Slot, State};
use super::write::Writer;
use super::{Buckets, Shared, data_path, meta_path};
use crate::backend::{OpenError, Progress, Record, Recovery};
use crate::config::Config;
use crate::disk::{Disk, Open, missing_is_fine};
use crate::identity::{self, Identity};
use crate::lanes::{decoding, in_order};
use crate::laying;
use crate::reading::Reader;
use crate::record::Kind;
use crate::spare::HasSpares;
use mooncrate_lock::{Condvar, Mutex};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Files of metadata that are read at a time, and bytes of them.
const BATCH_FILES: usize = 32;
const BATCH_BYTES: u64 = 4 << 20;
/// The smallest limit that leaves room for anything.
const LIMIT_BYTES_MIN: u64 = 256 << 10;

/// What lies in the directory.
#[derive(Default)]
struct Listing {
    data: BTreeMap<u64, u64>,
    meta: BTreeMap<u64, u64>,
    logs: Vec<(String, u64)>,
    orphans: Vec<String>,
    spares: Vec<(u64, u64)>,
}

impl Listing {
    fn read(disk: &dyn Disk) -> io::Result<Self> {
        let (mut this, mut buckets) = (Self::default(), HashSet::new());
        let mut entries = disk.list(Path::new(""))?;
        // Buckets before spares.
        entries.sort_by_key(|entry| numbered(&entry.name).is_some_and(|(_, is)| is == "free"));
        for entry in entries {
            let (name, len) = (entry.name, entry.len);
            if entry.is_dir || identity::is_identity(&name) {
                continue;
            }
            if removed::serial_of(&name).is_some() {
                this.logs.push((name, len));
                continue;
            }
            match numbered(&name) {
                Some((id, "bucket")) => {
                    buckets.insert(entry.file);
                    this.data.insert(id, len);
                }
                // A power cut may leave a file two names where renames are not written as one. It is a bucket, then.
                Some((_, "free")) if buckets.contains(&entry.file) => this.orphans.push(name),
                Some((id, "meta")) => drop(this.meta.insert(id, len)),
                Some((id, "free")) if Shared::path(id) == Path::new(&name) => {
                    this.spares.push((id, len));
                }
                // An earlier version wrote metadata to the former first.
                Some((_, "tmp" | "dead")) => this.orphans.push(name),
                _ if name == "removed.tmp" => this.orphans.push(name),
                // Not ours.
                _ => {}
            }
        }
        let lonely: Vec<u64> =
            this.meta.keys().copied().filter(|id| !this.data.contains_key(id)).collect();
        for id in lonely {
            this.meta.remove(&id);
            this.orphans.push(meta_path(id).to_string_lossy().into_owned());
        }
        Ok(this)
    }

    /// Deletes the spares if others need the room, or this start: for its log.
    fn give_room(&mut self, disk: &dyn Disk, config: &Config) -> io::Result<()> {
        if !disk.free_bytes().is_ok_and(|free| free >= config.spare_room) {
            for (id, _) in self.spares.drain(..) {
                disk.remove(&Shared::path(id))?;
            }
        }
        Ok(())
    }
}

/// The number and the ending of a file of ours.
fn numbered(name: &str) -> Option<(u64, &str)> {
    let (number, ending) = name.split_once('.')?;
    (number.len() == 16).then_some(())?;
    Some((u64::from_str_radix(number, 16).ok()?, ending))
}

impl Buckets {
    /// Opens a directory and tells each record that verified.
    pub fn open(
        disk: Arc<dyn Disk>,
        config: &Config,
        found: &mut dyn FnMut(Record),
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(Self, Recovery), OpenError> {
        if config.limit_bytes < LIMIT_BYTES_MIN {
            let limit = config.limit_bytes;
            return Err(OpenError::TooSmall { limit, least: LIMIT_BYTES_MIN });
        }
        let is_ours = |name: &str| {
            numbered(name).is_some_and(|(_, ending)| matches!(ending, "bucket" | "meta" | "free"))
        };
        let identity = Identity::open(&disk, Kind::Bucket, config.token, 1024, is_ours)?;
        let identity = Arc::new(identity);
        // What a process before this one deleted or renamed is so for good before anything relies on it.
        disk.sync_dir(Path::new(""))?;
        let mut listing = Listing::read(disk.as_ref())?;
        let mut recovery = Recovery::default();
        for name in &listing.orphans {
            disk.remove(Path::new(name))?;
            recovery.orphans += 1;
        }
        listing.give_room(disk.as_ref(), config)?;
        let mut places = Vec::new();
        for (name, len) in &listing.logs {
            let bad = removed::read(disk.as_ref(), name, *len, identity.token, &mut places)?;
            recovery.dropped += bad;
        }
        places.retain(|place| listing.data.contains_key(&place.bucket));
        let log = Removed::open(&disk, &identity, &places, std::mem::take(&mut listing.logs));
        let mut removed: HashMap<u64, HashSet<u64>> = HashMap::new();
        for place in &places {
            removed.entry(place.bucket).or_default().insert(place.offset);
        }
        let reader = Reader::default();
        let looker = Looker {
            disk: disk.as_ref(),
            token: identity.token,
            verify_values: config.verify_values,
            reader: &reader,
            spare: Mutex::default(),
        };
        let scan = Scan {
            log: &log,
            disk: disk.as_ref(),
            removed,
            state: State::default(),
            recovery,
            found,
            progress,
            done: Progress { total: listing.data.values().sum(), ..Progress::default() },
            meta_bytes: 0,
        };
        let Scan { mut state, recovery, .. } = scan.run(&looker, &listing)?;
        drop(looker);
        adopt_spares(disk.as_ref(), config, &mut state, &listing)?;
        // What was deleted, by this start or before it, must not come back beside what is kept from now on.
        disk.sync_dir(Path::new(""))?;
        let gone = listing.data.into_keys().filter(|id| !state.bins.contains_key(id));
        log.forget(&gone.collect::<Vec<u64>>());
        let shared = Shared {
            disk,
            config: config.clone(),
            identity,
            reader,
            handles: Handles::new(config.handles_max),
            removed: log,
            state: Mutex::new(state),
            changed: Condvar::new(),
            loads: AtomicU64::new(0),
        };
        shared.seal_recovered();
        shared.reclaim();
        Ok((Self(Arc::new(shared)), recovery))
    }
}

impl Shared {
    /// Closes what was open at the end, so that the next start need not scan it.
    fn seal_recovered(&self) {
        let unsealed = self.state.lock().unsealed.len();
        for _ in 0..unsealed {
            if self.has_room_to_seal() {
                self.seal_leftover();
            }
        }
    }
}

/// Takes over the files of buckets that are gone, as far as there is room for them.
fn adopt_spares(
    disk: &dyn Disk,
    config: &Config,
    state: &mut State,
    listing: &Listing,
) -> io::Result<()> {
    state.spares.usable = true;
    for &(id, len) in &listing.spares {
        let fits = state.promised(0) + state.spares.bytes() + len <= config.limit_bytes;
        if len > 0 && fits && state.may_spare(len, config) {
            state.spares.add(len, id);
        } else {
            disk.remove(&Shared::path(id))?;
        }
    }
    Ok(())
}

/// A recovery under way: takes over what lanes found.
struct Scan<'a> {
    disk: &'a dyn Disk,
    log: &'a Removed,
    /// Offsets of removed records, by bucket.
    removed: HashMap<u64, HashSet<u64>>,
    state: State,
    recovery: Recovery,
    found: &'a mut dyn FnMut(Record),
    progress: &'a mut dyn FnMut(Progress),
    done: Progress,
    /// Bytes of all metadata, until the first of them say how many records that are.
    meta_bytes: u64,
}

impl Scan<'_> {
    fn run(mut self, looker: &Looker<'_>, listing: &Listing) -> Result<Self, OpenError> {
        // The newest first: of two copies of a record it is the one that counts.
        let buckets: Vec<Listed> = (listing.data.iter().rev())
            .map(|(&id, &data)| Listed {
                id,
                data,
                meta: listing.meta.get(&id).copied().unwrap_or(0),
            })
            .collect();
        let bytes = |bucket: &Listed| bucket.meta_bytes().unwrap_or(0) as u64;
        self.meta_bytes = buckets.iter().map(bytes).sum();
        let look = |part| (part, looker.look(part));
        in_order(decoding(self.disk), Parts(&buckets), look, |(part, looked)| {
            for (bucket, looked) in part.iter().zip(looked?) {
                self.take(looker, *bucket, looked)?;
            }
            Ok::<(), OpenError>(())
        })?;
        (self.progress)(self.done);
        Ok(self)
    }

    fn take(&mut self, looker: &Looker<'_>, bucket: Listed, found: Looked) -> io::Result<()> {
        match found {
            Looked::Told(meta, room) => {
                self.told(bucket, meta, &room)?;
                looker.spare.lock().push(room);
            }
            Looked::Scanned(scanned, read) => {
                if bucket.meta > 0 {
                    // Nothing is lost. They are not synced, so this is what a power cut may leave.
                    tracing::warn!(bucket = bucket.id, "bad metadata; the bucket was scanned");
                    self.disk.remove(&meta_path(bucket.id))?;
                }
                self.scanned(bucket, scanned, &read)?;
            }
        }
        self.done.done += bucket.data;
        self.done.records = self.recovery.records;
        (self.progress)(self.done);
        Ok(())
    }

    /// A bucket whose metadata are good.
    fn told(&mut self, bucket: Listed, meta: Meta, bytes: &[u8]) -> io::Result<()> {
        let Listed { id, data, meta: meta_len } = bucket;
        // A keep that failed may have left a record behind the end. It is told now or never, also if the metadata
        // are lost one day and the bucket is scanned.
        if meta.data_bytes < data && self.cut(id, meta.data_bytes).is_err() {
            self.recovery.dropped += meta.len() as u64;
            return self.delete(id);
        }
        if meta.len() > 0 {
            // About as many bytes each as in this one. An index that grows by and by is moved many times.
            let each = (bytes.len() / meta.len()) as u64;
            self.state.index.reserve((std::mem::take(&mut self.meta_bytes) / each) as usize);
        }
        let mut bin = Bin::new(id, meta.data_bytes, meta_len);
        if self.register(&mut bin, meta.seen, bytes)? {
            self.add(bin, None);
        }
        Ok(())
    }

    /// A bucket that has none.
    fn scanned(&mut self, bucket: Listed, all: Scanned, read: &io::Result<()>) -> io::Result<()> {
        let Listed { id, data: len, .. } = bucket;
        let Scanned { seen, heads, good: records, end: last, torn } = all;
        let end = laying::rounded(last);
        if let Err(error) = read {
            tracing::warn!(bucket = id, %error, "a bucket could not be read to its end; the rest is lost");
        }
        if torn || read.is_err() {
            self.recovery.dropped += 1;
        }
        if seen.len() == 0 {
            self.recovery.orphans += 1;
            return self.delete(id);
        }
        // A file may also end inside of its last block: a cut was cut off. Loads read whole blocks.
        if (end != len || read.is_err()) && self.cut(id, last).is_err() {
            self.recovery.dropped += seen.len() as u64;
            return self.delete(id);
        }
        let mut bin = Bin::new(id, end, 0);
        if self.register(&mut bin, seen, &heads)? {
            let meta_reserved = meta::file_bytes(heads.len());
            let writer = Writer { end, records, heads, meta_reserved, ..Writer::new(id) };
            self.add(bin, Some(writer));
        }
        Ok(())
    }

    /// What lies behind the end of a bucket is gone for good; also in its last block, which stays whole.
    fn cut(&self, id: u64, end: u64) -> io::Result<()> {
        let file = self.disk.open(&data_path(id), Open::Write)?;
        file.set_len(end)?;
        file.set_len(laying::rounded(end))?;
        file.sync_data()
    }

    /// A bucket goes as a whole. Durable when the directory is synced.
    fn delete(&self, id: u64) -> io::Result<()> {
        let paths = [data_path(id), meta_path(id)];
        paths.iter().try_for_each(|path| missing_is_fine(self.disk.remove(path)))
    }

    /// The records of a bucket: those that are served are told, the others are gone for good. Says whether the
    /// bucket stays.
    fn register(&mut self, bin: &mut Bin, mut seen: Seen, bytes: &[u8]) -> io::Result<bool> {
        let id = bin.bucket.id;
        let removed = self.removed.get(&id);
        let is_removed = |slot: &Slot| removed.is_some_and(|some| some.contains(&slot.offset));
        let mut stale = Vec::new();
        // The last one first: of two copies of a record it is the one that counts, because the first was removed,
        // or the keep of it failed.
        for (slot, note) in seen.slots.iter().zip(&mut seen.notes).rev() {
            if is_removed(slot) {
                continue;
            }
            note.served = note.good && self.state.link_if_new(&bin.bucket, slot);
            if !note.served {
                stale.push(Place { bucket: id, offset: slot.offset, id: slot.id });
            }
        }
        if !stale.is_empty()
            && let Err(error) = self.log.append(&stale)
        {
            tracing::warn!(bucket = id, %error, "a bucket with bad records had to be deleted");
            self.recovery.dropped += seen.len() as u64;
            for (slot, _) in seen.iter().filter(|(_, note)| note.served) {
                self.state.unlink(slot);
            }
            self.delete(id)?;
            return Ok(false);
        }
        for (slot, note) in seen.iter() {
            if note.served {
                bin.live += 1;
                self.recovery.records += 1;
                self.recovery.value_bytes += slot.shape.value;
                (self.found)(meta::record(slot, note, bytes));
            } else if is_removed(slot) {
                self.recovery.removed += 1;
            } else {
                self.recovery.dropped += u64::from(!note.good);
                if !note.good {
                    self.state.bad.insert(id);
                }
            }
        }
        bin.slots = seen.slots;
        Ok(true)
    }

    fn add(&mut self, bin: Bin, writer: Option<Writer>) {
        let state = &mut self.state;
        state.books.data += bin.data;
        state.books.meta += bin.meta;
        state.books.slots += bin.slots.len() as u64;
        if let Some(writer) = writer {
            state.books.reserved += writer.meta_reserved;
            state.unsealed.push_back(writer);
        }
        if bin.live == 0 {
            state.emptied.push(bin.bucket.id);
        }
        state.bins.insert(bin.bucket.id, bin);
    }
}

/// Cuts a list of buckets into parts whose metadata are read at once.
struct Parts<'a>(&'a [Listed]);

impl<'a> Iterator for Parts<'a> {
    type Item = &'a [Listed];

    fn next(&mut self) -> Option<&'a [Listed]> {
        let mut bytes = 0;
        let fits = |bucket: &&Listed| {
            bytes += bucket.meta;
            bytes <= BATCH_BYTES
        };
        let count = self.0.iter().take(BATCH_FILES).take_while(fits).count().max(1);
        let (now, later) = self.0.split_at_checked(count)?;
        self.0 = later;
        Some(now)
    }
}
