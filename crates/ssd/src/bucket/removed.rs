//! The log of removed records: what stands in it is not found again, whatever crashes (G6). A file of blocks
//! that only grows, synced before a removal is answered, and written anew without the records of deleted
//! buckets when it is mostly those.
//!
//! It names places, not only records: an object that was evicted and offloaded again is another record
//! in another place, and must not be hit by what was said about the first one.
//!
//! Each block is written twice, side by side: a block that rots would bring removed records back. Removals
//! that arrive while one is being written share the next write.

use crate::disk::{Disk, File, Open, missing_is_fine};
use crate::identity::Identity;
use crate::points::point;
use crate::reading::read_one;
use crate::record::VERSION;
use crate::room::Room;
use crate::{ALIGN, RecordId};
use mooncrate_core::{LeaderEpoch, ObjectId};
use mooncrate_lock::{Condvar, Mutex};
use mooncrate_mem::crc::Crc;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const MAGIC: [u8; 8] = *b"mooncrem";
const TEMP: &str = "removed.tmp";
const PREFIX: &str = "removed-";
const PLACES_PER_BLOCK: usize = 100;
const PAIR: u64 = 2 * ALIGN as u64;
/// The log is written anew when it is longer than twice what it must hold, and this.
const SLACK_BYTES: u64 = 64 << 10;
/// The largest log that is read: more than any limit lets grow.
const LOG_BYTES_MAX: u64 = 64 << 30;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Opening {
    magic: [u8; 8],
    version: U16,
    count: U16,
    reserved: U32,
    token: U64,
    serial: U64,
    /// Number of the pair in the file.
    pair: U64,
    /// Of all else in the block.
    crc: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Line {
    bucket: U64,
    offset: U64,
    epoch: U64,
    object: U64,
    stripe: U64,
}

const OPENING_BYTES: usize = size_of::<Opening>();
const LINE_BYTES: usize = size_of::<Line>();
const _: () = assert!(OPENING_BYTES == 48 && offset_of!(Opening, crc) == 40 && LINE_BYTES == 40);
const _: () = assert!(OPENING_BYTES + PLACES_PER_BLOCK * LINE_BYTES <= ALIGN);

/// A record in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(super) bucket: u64,
    pub(super) offset: u64,
    pub(super) id: RecordId,
}

/// See the file's head.
#[derive(Debug)]
pub(super) struct Removed {
    disk: Arc<dyn Disk>,
    identity: Arc<Identity>,
    inner: Mutex<Inner>,
    told: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    /// What the next write takes along, and how those who wait for it learn what became of it.
    queue: Vec<Place>,
    forming: Arc<OnceLock<Result<(), (io::ErrorKind, String)>>>,
    /// Somebody writes; the log is theirs meanwhile.
    writing: bool,
    log: Log,
    /// What the log must hold: removed records of buckets that are there.
    live: BTreeMap<u64, BTreeSet<Place>>,
    live_count: u64,
    /// Removals that have chosen their places, or are about to, and buckets that went meanwhile: places in them
    /// would never be forgotten again.
    claims: u32,
    gone: BTreeSet<u64>,
    /// Bytes of the log's files, for the books.
    bytes: u64,
}

#[derive(Debug, Default)]
struct Log {
    file: Option<(Arc<dyn File>, PathBuf, u64)>,
    len: u64,
    /// Files that were replaced and could not be deleted, with their lengths.
    old: Vec<(PathBuf, u64)>,
}

impl Log {
    fn bytes(&self) -> u64 {
        self.len + self.old.iter().map(|(_, len)| len).sum::<u64>()
    }
}

impl Removed {
    /// The log as recovery found it; `files` are written anew as one, unless there is nothing to hold.
    pub(super) fn open(
        disk: &Arc<dyn Disk>,
        identity: &Arc<Identity>,
        places: &[Place],
        files: Vec<(String, u64)>,
    ) -> Self {
        let old = files.into_iter().map(|(name, len)| (PathBuf::from(name), len)).collect();
        let mut inner = Inner { log: Log { old, ..Log::default() }, ..Inner::default() };
        inner.add(places);
        let this = Self {
            disk: Arc::clone(disk),
            identity: Arc::clone(identity),
            inner: Mutex::new(inner),
            told: Condvar::new(),
        };
        if !this.inner.lock().log.old.is_empty() {
            let mut log = std::mem::take(&mut this.inner.lock().log);
            if let Err(error) = this.rewrite(&mut log, places) {
                // The old files stay, and say the same.
                tracing::warn!(%error, "the log of removed records could not be written anew");
            }
            let mut inner = this.inner.lock();
            inner.bytes = log.bytes();
            inner.log = log;
        }
        this
    }

    /// Bytes of its files.
    pub(super) fn bytes(&self) -> u64 {
        self.inner.lock().bytes
    }

    /// To be taken before places are chosen, and held until they are appended: their bucket may go in between.
    pub(super) fn claim(&self) -> Claim<'_> {
        self.inner.lock().claims += 1;
        Claim(self)
    }

    /// These records are removed for good when this returns.
    pub(super) fn append(&self, places: &[Place]) -> io::Result<()> {
        let mut inner = self.inner.lock();
        inner.queue.extend_from_slice(places);
        let round = Arc::clone(&inner.forming);
        loop {
            if let Some(ended) = round.get() {
                return ended.clone().map_err(|(kind, what)| io::Error::new(kind, what));
            }
            if inner.writing {
                self.told.wait_for(&mut inner, Duration::from_secs(1));
                continue;
            }
            inner.writing = true;
            inner.forming = Arc::default();
            let mut mine = std::mem::take(&mut inner.queue);
            mine.retain(|place| !inner.gone.contains(&place.bucket));
            let mut log = std::mem::take(&mut inner.log);
            inner.add(&mine);
            let whole = inner.is_due(&log, &mine).then(|| inner.all());
            drop(inner);
            let ended = self.write(&mut log, &mine, whole);
            inner = self.inner.lock();
            inner.bytes = log.bytes();
            inner.log = log;
            inner.writing = false;
            let _ = round.set(ended.map_err(|error| (error.kind(), error.to_string())));
            self.told.notify_all();
        }
    }

    /// Buckets are gone, durably: nothing in them can come back.
    pub(super) fn forget(&self, buckets: &[u64]) {
        let mut inner = self.inner.lock();
        for bucket in buckets {
            let gone = inner.live.remove(bucket).map_or(0, |places| places.len());
            inner.live_count -= gone as u64;
            if inner.claims > 0 {
                inner.gone.insert(*bucket);
            }
        }
        let due = !inner.writing && inner.is_due(&inner.log, &[]);
        drop(inner);
        if due && let Err(error) = self.append(&[]) {
            tracing::warn!(%error, "the log of removed records could not be shortened");
        }
    }

    /// Places that the log must hold.
    #[cfg(test)]
    pub(super) fn live(&self) -> u64 {
        self.inner.lock().live_count
    }

    fn write(&self, log: &mut Log, places: &[Place], whole: Option<Vec<Place>>) -> io::Result<()> {
        if let Some(all) = whole {
            return self.rewrite(log, &all);
        }
        if places.is_empty() {
            return Ok(());
        }
        match self.extend(log, places) {
            Ok(()) => Ok(()),
            Err(error) => {
                // This file is not to be trusted any more (S12): everything goes to a new one.
                tracing::warn!(%error, "the log of removed records failed; it is written anew");
                let mut all = self.inner.lock().all();
                all.extend_from_slice(places);
                self.rewrite(log, &all)
            }
        }
    }

    fn extend(&self, log: &mut Log, places: &[Place]) -> io::Result<()> {
        let (file, _, serial) = log.file.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let room = blocks(places, self.identity.token, *serial, log.len / PAIR);
        point("removed.before_write");
        let written = self.identity.write_blocks(file, log.len, &room);
        let written = written.and_then(|()| {
            point("removed.written");
            file.sync_data()
        });
        // What a failed write left behind counts until the file is replaced.
        let left = || file.len().unwrap_or(log.len + room.len() as u64);
        log.len = if written.is_ok() { log.len + room.len() as u64 } else { left() };
        written?;
        point("removed.synced");
        Ok(())
    }

    /// Puts a new file in the place of all others.
    fn rewrite(&self, log: &mut Log, places: &[Place]) -> io::Result<()> {
        if let Some((file, path, _)) = log.file.take() {
            drop(file);
            log.old.push((path, std::mem::take(&mut log.len)));
        }
        if !places.is_empty() {
            let serial = self.identity.take(1)?;
            let path = PathBuf::from(format!("{PREFIX}{serial:016x}"));
            let room = blocks(places, self.identity.token, serial, 0);
            point("removed.before_write");
            let points =
                ["removed.written", "removed.rewritten", "removed.renamed", "removed.dir_synced"];
            let disk = self.disk.as_ref();
            if let Err(error) = self.identity.replace(Path::new(TEMP), &path, &room, &points) {
                // It may stand there under its name; it says nothing wrong, and it counts.
                if missing_is_fine(disk.remove(&path)).is_err() {
                    log.old.push((path, room.len() as u64));
                }
                return Err(error);
            }
            let file = disk.open(&path, Open::Write)?;
            log.len = room.len() as u64;
            log.file = Some((file, path, serial));
        }
        // A log that is still there after a crash says nothing wrong either.
        log.old.retain(|(path, _)| {
            let deleted = self.disk.remove(path);
            missing_is_fine(deleted).is_err()
        });
        point("removed.old_deleted");
        Ok(())
    }
}

/// Somebody chooses places, or has chosen them; see [`Removed::claim`].
#[derive(Debug)]
pub(super) struct Claim<'a>(&'a Removed);

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut inner = self.0.inner.lock();
        inner.claims -= 1;
        if inner.claims == 0 {
            inner.gone.clear();
        }
    }
}

impl Inner {
    fn add(&mut self, places: &[Place]) {
        for place in places {
            let new = self.live.entry(place.bucket).or_default().insert(*place);
            self.live_count += u64::from(new);
        }
    }

    fn all(&self) -> Vec<Place> {
        self.live.values().flatten().copied().collect()
    }

    /// Whether the log should be written anew rather than be made longer.
    fn is_due(&self, log: &Log, more: &[Place]) -> bool {
        if log.file.is_none() {
            return self.live_count > 0;
        }
        let needed = pairs(self.live_count as usize) * PAIR;
        log.len + pairs(more.len()) * PAIR > 2 * needed + SLACK_BYTES
    }
}

fn pairs(places: usize) -> u64 {
    places.div_ceil(PLACES_PER_BLOCK) as u64
}

/// The blocks of these places, each of them twice, from pair number `first` on.
fn blocks(places: &[Place], token: u64, serial: u64, first: u64) -> Room {
    let mut room = Room::new((pairs(places.len()) * PAIR) as usize);
    for (pair, places) in (first..).zip(places.chunks(PLACES_PER_BLOCK)) {
        let start = room.len();
        let mut opening = Opening {
            magic: MAGIC,
            version: VERSION.into(),
            count: (places.len() as u16).into(),
            reserved: 0.into(),
            token: token.into(),
            serial: serial.into(),
            pair: pair.into(),
            crc: 0.into(),
        };
        room.push(opening.as_bytes());
        for place in places {
            let line = Line {
                bucket: place.bucket.into(),
                offset: place.offset.into(),
                epoch: place.id.object.epoch.0.into(),
                object: place.id.object.sequence.into(),
                stripe: u64::from(place.id.stripe).into(),
            };
            room.push(line.as_bytes());
        }
        room.pad();
        opening.crc = block_sum(&room[start..]).into();
        room[start..start + OPENING_BYTES].copy_from_slice(opening.as_bytes());
        let block: [u8; ALIGN] = room[start..].try_into().expect("padded to a block");
        room.push(&block);
    }
    room
}

fn block_sum(block: &[u8]) -> u64 {
    let at = offset_of!(Opening, crc);
    Crc::new().update(&block[..at]).update(&block[OPENING_BYTES..]).value()
}

/// The places in one block; `None` if it is not that block.
pub(crate) fn decode_block(
    block: &[u8],
    token: u64,
    serial: u64,
    pair: u64,
    places: &mut Vec<Place>,
) -> Option<()> {
    let (opening, rest) = Opening::ref_from_prefix(block).ok()?;
    let good = block.len() == ALIGN
        && opening.magic == MAGIC
        && opening.version.get() == VERSION
        && opening.token.get() == token
        && opening.serial.get() == serial
        && opening.pair.get() == pair
        && usize::from(opening.count.get()) <= PLACES_PER_BLOCK
        && opening.crc.get() == block_sum(block);
    if !good {
        return None;
    }
    let lines = &rest[..usize::from(opening.count.get()) * LINE_BYTES];
    for line in <[Line]>::ref_from_bytes(lines).ok()? {
        let epoch = LeaderEpoch(line.epoch.get());
        let object = ObjectId { epoch, sequence: line.object.get() };
        let id = RecordId { object, stripe: u8::try_from(line.stripe.get()).ok()? };
        places.push(Place { bucket: line.bucket.get(), offset: line.offset.get(), id });
    }
    Some(())
}

/// Which log a file is.
pub(super) fn serial_of(name: &str) -> Option<u64> {
    let serial = name.strip_prefix(PREFIX).filter(|serial| serial.len() == 16)?;
    u64::from_str_radix(serial, 16).ok()
}

/// Reads a log. Pairs of which neither block is good are skipped and counted: at the end they were torn.
pub(super) fn read(
    disk: &dyn Disk,
    name: &str,
    len: u64,
    token: u64,
    places: &mut Vec<Place>,
) -> io::Result<u64> {
    let Some(serial) = serial_of(name) else { return Ok(0) };
    let file = disk.open(Path::new(name), Open::Read)?;
    let mut room = Room::new(1 << 20);
    let mut bad = 0;
    let mut at = 0;
    let len = len.min(LOG_BYTES_MAX);
    while at < len {
        let take = (len - at).min(room.capacity() as u64);
        room.set_len(take as usize);
        read_one(disk, &file, at, &mut room)?;
        for (pair, blocks) in (at / PAIR..).zip(room.chunks(PAIR as usize)) {
            let mut copies = blocks.chunks(ALIGN);
            if !copies.any(|block| decode_block(block, token, serial, pair, places).is_some()) {
                bad += 1;
            }
        }
        at += take;
    }
    Ok(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(count: u64) -> Vec<Place> {
        let object = |sequence| ObjectId { epoch: LeaderEpoch(1), sequence };
        (0..count)
            .map(|n| {
                let id = RecordId { object: object(n), stripe: (n % 3) as u8 };
                Place { bucket: n % 7, offset: n * 8, id }
            })
            .collect()
    }

    #[test]
    fn one_rotten_block_of_a_pair_loses_nothing_and_two_are_noticed() {
        let all = places(250);
        let room = blocks(&all, 1, 2, 5);
        assert_eq!(room.len(), 6 * ALIGN);
        for rotten in 0..6 {
            let mut bytes = room.to_vec();
            bytes[rotten * ALIGN + 100] ^= 1;
            let mut found = Vec::new();
            for (pair, blocks) in (5..).zip(bytes.chunks(2 * ALIGN)) {
                let mut copies = blocks.chunks(ALIGN);
                assert!(copies.any(|block| decode_block(block, 1, 2, pair, &mut found).is_some()));
            }
            assert_eq!(found, all);
        }
        let mut found = Vec::new();
        assert_eq!(decode_block(&room[..ALIGN], 1, 2, 6, &mut found), None, "another place");
        assert_eq!(decode_block(&room[..ALIGN], 1, 3, 5, &mut found), None, "another file");
        assert_eq!(decode_block(&room[..ALIGN], 9, 2, 5, &mut found), None, "another directory");
        assert!(found.is_empty());
    }
}
