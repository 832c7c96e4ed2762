//! Finding records again after a restart (S3).
//!
//! A closed bucket tells its records by its metadata, many buckets per read. A bucket without good metadata
//! is scanned, head by head, and its values are read as well: a crash may have torn what was not synced. A
//! scan ends at the first thing that is no head. It does not look for further ones behind it: bytes that
//! somebody put are there, too.
//!
//! What must stay true: a record that is not told is gone for good, although the disk may read it another
//! time. Else it could come back after a removal that did not know of it (G6). So a record that is bad, or
//! the older one of two, goes to the log of removed records, what lies behind the end of a scan is cut off,
//! and a bucket for which neither can be done is deleted.

use super::handles::Handles;
use super::removed::{self, Place, Removed};
use super::state::{Bin, Bucket, Slot, State};
use super::write::Writer;
use super::{Buckets, Shared, data_path, meta, meta_path};
use crate::backend::{OpenError, Progress, Record, Recovery};
use crate::config::Config;
use crate::disk::{Disk, File, Open, ReadAt};
use crate::identity::{self, Identity};
use crate::laying;
use crate::reading::Reader;
use crate::record::{Head, Kind, Site};
use crate::room::Room;
use mooncrate_lock::{Condvar, Mutex};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Files of metadata that are read at a time, and bytes of them.
const BATCH_FILES: usize = 32;
const BATCH_BYTES: u64 = 16 << 20;
/// The smallest limit that leaves room for anything.
const LIMIT_BYTES_MIN: u64 = 256 << 10;

/// What lies in the directory.
#[derive(Default)]
struct Listing {
    data: BTreeMap<u64, u64>,
    meta: BTreeMap<u64, u64>,
    logs: Vec<(String, u64)>,
    orphans: Vec<String>,
}

impl Listing {
    fn read(disk: &dyn Disk) -> io::Result<Self> {
        let mut this = Self::default();
        for entry in disk.list(Path::new(""))? {
            let (name, len) = (entry.name, entry.len);
            if entry.is_dir || identity::is_identity(&name) {
                continue;
            }
            if removed::serial_of(&name).is_some() {
                this.logs.push((name, len));
                continue;
            }
            match numbered(&name) {
                Some((id, "bucket")) => drop(this.data.insert(id, len)),
                Some((id, "meta")) => drop(this.meta.insert(id, len)),
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
            numbered(name).is_some_and(|(_, ending)| ending == "bucket" || ending == "meta")
        };
        let identity = Identity::open(&disk, Kind::Bucket, config.token, 1024, is_ours)?;
        let identity = Arc::new(identity);
        let mut listing = Listing::read(disk.as_ref())?;
        let mut recovery = Recovery::default();
        for name in &listing.orphans {
            disk.remove(Path::new(name))?;
            recovery.orphans += 1;
        }
        let mut places = Vec::new();
        for (name, len) in &listing.logs {
            let bad = removed::read(disk.as_ref(), name, *len, identity.token, &mut places)?;
            recovery.dropped += bad;
        }
        places.retain(|place| listing.data.contains_key(&place.bucket));
        let log = Removed::open(&disk, &identity, &places, std::mem::take(&mut listing.logs));
        let scan = Scan {
            log: &log,
            disk: disk.as_ref(),
            token: identity.token,
            config,
            reader: Reader::default(),
            removed: places.iter().map(|place| (place.bucket, place.offset)).collect(),
            state: State::default(),
            recovery,
            found,
            progress,
            done: Progress { total: listing.data.values().sum(), ..Progress::default() },
        };
        let Scan { state, recovery, reader, .. } = scan.run(&listing)?;
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
            if self.state.lock().books.promised(0) <= self.config.limit_bytes {
                self.seal_leftovers();
            }
        }
    }
}

/// A recovery under way.
struct Scan<'a> {
    disk: &'a dyn Disk,
    token: u64,
    config: &'a Config,
    reader: Reader,
    log: &'a Removed,
    removed: BTreeSet<(u64, u64)>,
    state: State,
    recovery: Recovery,
    found: &'a mut dyn FnMut(Record),
    progress: &'a mut dyn FnMut(Progress),
    done: Progress,
}

/// A record of a bucket, as it was read.
struct Seen {
    slot: Slot,
    record: Record,
    good: bool,
}

/// What a scan found in a bucket.
#[derive(Default)]
struct Scanned {
    seen: Vec<Seen>,
    /// The heads of those that are good, and how many that are.
    heads: Vec<u8>,
    good: u32,
    /// Where the last one ends.
    end: u64,
}

impl Scan<'_> {
    fn run(mut self, listing: &Listing) -> Result<Self, OpenError> {
        // The newest first: of two copies of a record it is the one that counts.
        let buckets: Vec<(u64, u64, u64)> = (listing.data.iter().rev())
            .map(|(&id, &len)| (id, len, listing.meta.get(&id).copied().unwrap_or(0)))
            .collect();
        let mut rest = &buckets[..];
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = |(_, _, meta): &&(u64, u64, u64)| {
                bytes += meta;
                bytes <= BATCH_BYTES
            };
            let count = rest.iter().take(BATCH_FILES).take_while(fits).count().max(1);
            let (now, later) = rest.split_at(count);
            self.batch(now)?;
            rest = later;
        }
        (self.progress)(self.done);
        Ok(self)
    }

    /// Reads the metadata of some buckets at once, then takes the buckets one after the other.
    fn batch(&mut self, buckets: &[(u64, u64, u64)]) -> Result<(), OpenError> {
        let metas = self.read_metas(buckets);
        for (&(id, len, meta_len), bytes) in buckets.iter().zip(metas) {
            let meta = bytes.as_ref().and_then(|room| meta::Meta::decode(room, self.token, id));
            match meta {
                Some(meta) if meta.data_bytes <= len => self.told(id, len, meta_len, &meta)?,
                _ => {
                    if meta_len > 0 {
                        tracing::warn!(bucket = id, "bad metadata; the bucket is scanned");
                        self.recovery.dropped += 1;
                        self.disk.remove(&meta_path(id))?;
                    }
                    self.scanned(id, len)?;
                }
            }
            self.done.done += len;
            self.done.records = self.recovery.records;
            (self.progress)(self.done);
        }
        Ok(())
    }

    fn read_metas(&self, buckets: &[(u64, u64, u64)]) -> Vec<Option<Room>> {
        let mut rooms: Vec<Option<(Arc<dyn File>, Room)>> = (buckets.iter())
            .map(|&(id, _, len)| {
                // A larger one than its bucket cannot be good, and must not be believed.
                let len = usize::try_from(len).ok().filter(|&len| 0 < len && len < 1 << 30)?;
                let file = self.disk.open(&meta_path(id), Open::Read).ok()?;
                let mut room = Room::new(len);
                room.set_len(len);
                Some((file, room))
            })
            .collect();
        let reads = rooms.iter_mut().flatten().map(|(file, room)| {
            let (offset, into, result) = (0, &mut room[..], Ok(()));
            ReadAt { file, offset, into, result }
        });
        let mut reads: Vec<ReadAt<'_>> = reads.collect();
        self.disk.read(&mut reads);
        let mut ended =
            reads.into_iter().map(|read| read.result.is_ok()).collect::<Vec<_>>().into_iter();
        rooms
            .into_iter()
            .map(|slot| slot.and_then(|(_, room)| ended.next()?.then_some(room)))
            .collect()
    }

    /// A bucket whose metadata are good.
    fn told(&mut self, id: u64, len: u64, meta_len: u64, meta: &meta::Meta<'_>) -> io::Result<()> {
        // A keep that failed may have left a record behind the end. It is told now or never, also if the metadata
        // are lost one day and the bucket is scanned.
        if meta.data_bytes < len && self.cut(id, meta.data_bytes).is_err() {
            self.recovery.dropped += meta.heads.len() as u64;
            return self.delete(id);
        }
        let verify = self.config.verify_values;
        let file = verify.then(|| self.disk.open(&data_path(id), Open::Read)).transpose()?;
        let seen = meta.heads.iter().map(|(offset, head)| {
            let good = file.as_ref().is_none_or(|file| {
                self.reader.check_value(self.disk, file, *offset, head).unwrap_or(false)
            });
            Seen { slot: meta::slot(*offset, head), record: head.record(), good }
        });
        let seen = seen.collect();
        self.register(new_bin(id, meta.data_bytes, meta_len), seen, None)
    }

    /// A bucket that has none: from head to head.
    fn scanned(&mut self, id: u64, len: u64) -> io::Result<()> {
        let mut all = Scanned::default();
        let read = self.scan(id, len, &mut all);
        let Scanned { seen, heads, good: records, end: last } = all;
        let end = laying::rounded(last);
        if let Err(error) = &read {
            tracing::warn!(bucket = id, %error, "a bucket could not be read to its end; the rest is lost");
        }
        if end < len || read.is_err() {
            self.recovery.dropped += 1;
        }
        if seen.is_empty() {
            self.recovery.orphans += 1;
            return self.delete(id);
        }
        if (end < len || read.is_err()) && self.cut(id, last).is_err() {
            return self.delete(id);
        }
        let meta_reserved = meta::file_bytes(heads.len());
        let writer = Writer { id, file: None, end, records, heads, meta_reserved, no_room: false };
        self.register(new_bin(id, end, 0), seen, Some(writer))
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
        for path in [data_path(id), meta_path(id)] {
            match self.disk.remove(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Goes from head to head, until there is none.
    fn scan(&self, id: u64, len: u64, all: &mut Scanned) -> io::Result<()> {
        let file = self.disk.open(&data_path(id), Open::Write)?;
        // A process that was killed leaves bytes in the memory of the kernel that verify, and that a power
        // cut takes along. What is told is durable.
        file.sync_data()?;
        let mut offset = 0;
        while offset < len {
            let site = Site { kind: Kind::Bucket, token: self.token, serial: id, offset };
            let read = self.reader.head(self.disk, &file, len, site)?;
            let bytes = read.as_ref().map_or(&[][..], |(near, at)| &near[*at..]);
            let head = Head::decode(bytes, site);
            let Some(head) = head.filter(|head| offset + head.shape().bytes() <= len) else {
                // The next write began at a whole block.
                let next = laying::rounded(offset);
                if next == offset {
                    break;
                }
                offset = next;
                continue;
            };
            let good = self.reader.check_value(self.disk, &file, offset, &head).unwrap_or(false);
            if good {
                all.heads.extend_from_slice(&bytes[..head.shape().head()]);
                all.good += 1;
            }
            all.seen.push(Seen { slot: meta::slot(offset, &head), record: head.record(), good });
            offset += head.shape().bytes();
            all.end = offset;
        }
        Ok(())
    }

    /// The records of a bucket: those that are served are told, the others are gone for good.
    fn register(
        &mut self,
        mut bin: Bin,
        seen: Vec<Seen>,
        writer: Option<Writer>,
    ) -> io::Result<()> {
        let id = bin.bucket.id;
        // Of two copies of a record the last one counts: the first was removed, or the keep of it failed.
        let mut newest = BTreeMap::new();
        let is_removed = |slot: &Slot| self.removed.contains(&(id, slot.offset));
        for Seen { slot, good, .. } in &seen {
            if *good && !is_removed(slot) && !self.state.index.contains_key(&slot.id) {
                newest.insert(slot.id, slot.offset);
            }
        }
        let stale = seen
            .iter()
            .map(|seen| seen.slot)
            .filter(|slot| !is_removed(slot) && newest.get(&slot.id) != Some(&slot.offset));
        let stale: Vec<Place> =
            stale.map(|slot| Place { bucket: id, offset: slot.offset, id: slot.id }).collect();
        if !stale.is_empty()
            && let Err(error) = self.log.append(&stale)
        {
            tracing::warn!(bucket = id, %error, "a bucket with bad records had to be deleted");
            self.recovery.dropped += seen.len() as u64;
            return self.delete(id);
        }
        for Seen { slot, record, good } in seen {
            bin.slots.push(slot);
            if newest.get(&slot.id) == Some(&slot.offset) {
                bin.live += 1;
                self.state.link(&bin.bucket, slot);
                self.recovery.records += 1;
                self.recovery.value_bytes += record.len;
                (self.found)(record);
            } else if self.removed.contains(&(id, slot.offset)) {
                self.recovery.removed += 1;
            } else {
                self.recovery.dropped += u64::from(!good);
            }
        }
        self.add(bin, writer);
        Ok(())
    }

    fn add(&mut self, bin: Bin, writer: Option<Writer>) {
        let state = &mut self.state;
        state.books.data += bin.data;
        state.books.meta += bin.meta;
        state.books.slots += bin.slots.len() as u64;
        if let Some(writer) = writer {
            state.books.reserved += writer.meta_reserved;
            state.unsealed.push(writer);
        }
        if bin.live == 0 {
            state.emptied.push(bin.bucket.id);
        }
        state.bins.insert(bin.bucket.id, bin);
    }
}

fn new_bin(id: u64, data: u64, meta: u64) -> Bin {
    let (bucket, slots) = (Bucket::new(id), Vec::new());
    Bin { bucket, slots, live: 0, data, meta, busy: false, open: false, doubtful: 0, redo: false }
}
