//! Finding files again after a restart (S3). Names are looked up and heads are read by many lanes
//! (`lanes.rs`), because each of them waits for the disk; files are deleted and records are told by the
//! caller, the newest first.

use super::{Held, PerKey, Shared, State, dir, parent, spare};
use crate::ALIGN;
use crate::backend::{OpenError, Progress, Record, Recovery};
use crate::config::Config;
use crate::disk::{Disk, Entry, File, Open, ReadAt};
use crate::identity::Identity;
use crate::lanes::{in_order, waiting};
use crate::reading::Reader;
use crate::record::{Head, Kind, Site};
use crate::room::Room;
use crate::spare::HasSpares;
use mooncrate_lock::{Condvar, Mutex};
use std::collections::{BTreeSet, HashSet, hash_map};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The smallest limit that leaves room for anything.
const LIMIT_BYTES_MIN: u64 = 64 << 10;
/// Files that a lane opens, and whose heads it reads at once. All lanes together stay far below the usual limit
/// of 1024 open files.
const PART_FILES: usize = 8;
/// Directories that a lane lists at a time.
const PART_DIRS: usize = 4;

/// A file in a directory of ours.
struct Listed {
    path: PathBuf,
    /// As in an [`Entry`].
    file: u64,
    len: u64,
    /// `None`: never a record, or one no more.
    serial: Option<u64>,
}

impl PerKey {
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
        // Of the layout before, too: names of two digits.
        let is_ours = |name: &str| {
            name == spare::DIR || name.len() <= 2 && name.chars().all(|c| digit(c).is_some())
        };
        let identity = Identity::open(&disk, Kind::PerKey, config.token, 1 << 16, is_ours)?;
        let mut state = State::default();
        let files = list(disk.as_ref(), &mut state)?;
        let reader = Reader::default();
        let (disk_, token, verify_values) = (disk.as_ref(), identity.token, config.verify_values);
        let looker = Looker { disk: disk_, token, verify_values, reader: &reader };
        let total = files.iter().map(|file| file.len).sum();
        let mut take = Take {
            disk: disk_,
            state,
            recovery: Recovery::default(),
            deleted: BTreeSet::new(),
            done: Progress { total, ..Progress::default() },
            found,
        };
        take.state.index.reserve(files.len());
        // The newest first: of two copies of a record it is the one that counts.
        let parts = files.rchunks(PART_FILES);
        let look = |files| (files, looker.look(files));
        in_order(waiting(disk_), parts, look, |(files, looked)| {
            for (file, looked) in files.iter().rev().zip(looked?.into_iter().rev()) {
                take.file(file, looked)?;
            }
            progress(take.done);
            io::Result::Ok(())
        })?;
        let Take { mut state, recovery, mut deleted, done, .. } = take;
        progress(done);
        state.order = state.index.values().map(|held| (held.serial, held.id)).collect();
        adopt_spares(disk_, config, &files, &mut state, &mut deleted)?;
        for dir in deleted {
            disk.sync_dir(&dir)?;
        }
        let shared = Shared {
            disk,
            config: config.clone(),
            identity,
            reader,
            state: Mutex::new(state),
            pause: Condvar::new(),
        };
        Ok((Self(Arc::new(shared)), recovery))
    }
}

/// A digit, as we write them.
fn digit(digit: char) -> Option<u8> {
    let value = digit.to_digit(16).filter(|_| !digit.is_ascii_uppercase())?;
    u8::try_from(value).ok()
}

/// The number of a directory.
fn numbered(name: &str) -> Option<u8> {
    let mut all = name.chars();
    let first = all.next().and_then(digit)?;
    all.next().is_none().then_some(first)
}

/// All files, the oldest first.
fn list(disk: &dyn Disk, state: &mut State) -> io::Result<Vec<Listed>> {
    // What is seen is not durable yet: whoever made or deleted it may have been killed before it was. A power
    // cut would lose a directory with what is put into it from now on, and bring back a file whose removal
    // is answered from now on (G6).
    let synced = |dir: PathBuf| {
        disk.sync_dir(&dir)?;
        disk.list(&dir)
    };
    let lanes = waiting(disk);
    let (mut tops, mut subs, mut files) = (Vec::new(), Vec::new(), Vec::new());
    for top in synced(PathBuf::new())?.into_iter().filter(|entry| entry.is_dir) {
        let Some(first) = numbered(&top.name) else { continue };
        state.tops.insert(first, true);
        tops.push(first);
    }
    let list_top = |first: u8| (first, synced(format!("{first:x}").into()));
    in_order(lanes, tops.into_iter(), list_top, |(first, entries)| {
        for sub in entries?.into_iter().filter(|entry| entry.is_dir) {
            let Some(second) = numbered(&sub.name) else { continue };
            state.dirs.insert([first, second], true);
            subs.push([first, second]);
        }
        io::Result::Ok(())
    })?;
    let list_subs = |subs: &[[u8; 2]]| {
        let listed = subs.iter().map(|sub| synced(dir(*sub)).map(|entries| (*sub, entries)));
        listed.collect::<io::Result<Vec<_>>>()
    };
    in_order(lanes, subs.chunks(PART_DIRS), list_subs, |listed| {
        for (sub, entries) in listed? {
            let dir = dir(sub);
            for file in entries.into_iter().filter(|entry| !entry.is_dir) {
                let serial = file.name.rsplit('-').next().filter(|serial| serial.len() == 16);
                let serial = serial.and_then(|serial| u64::from_str_radix(serial, 16).ok());
                let Entry { name, len, file, .. } = file;
                files.push(Listed { path: dir.join(name), file, len, serial });
            }
        }
        io::Result::Ok(())
    })?;
    files.sort_by_key(|file| file.serial);
    Ok(files)
}

/// Finds spare files, or makes a place for them; without one there are none.
fn adopt_spares(
    disk: &dyn Disk,
    config: &Config,
    files: &[Listed],
    state: &mut State,
    deleted: &mut BTreeSet<PathBuf>,
) -> io::Result<()> {
    let (dir, above) = (Path::new(spare::DIR), Path::new(""));
    let there = disk.list(above)?.iter().any(|entry| entry.is_dir && entry.name == spare::DIR);
    state.spares.usable = there || disk.make_dir(dir).and_then(|()| disk.sync_dir(above)).is_ok();
    if !there {
        return Ok(());
    }
    // As with records: what is seen here must not be elsewhere after a power cut.
    disk.sync_dir(dir)?;
    let others_have_room = disk.free_bytes().is_ok_and(|free| free >= config.spare_room);
    let most = config.limit_bytes.saturating_sub(state.taken());
    let most = if others_have_room { most } else { 0 };
    let mut entries = disk.list(dir)?;
    entries.retain(|entry| !entry.is_dir);
    // A power cut may leave a file two names where renames are not written as one. It is a record, then.
    let spares: HashSet<u64> = entries.iter().map(|entry| entry.file).collect();
    let both = files.iter().map(|file| file.file).filter(|file| spares.contains(file));
    let both: HashSet<u64> = both.collect();
    for Entry { name, len, file, .. } in entries {
        let path = dir.join(&name);
        let serial = u64::from_str_radix(&name, 16).ok();
        let serial = serial.filter(|serial| Shared::path(*serial) == path);
        let serial = serial.filter(|_| !both.contains(&file));
        let fits = len > 0 && !state.spares.is_full() && state.spares.bytes() + len <= most;
        if let Some(serial) = serial.filter(|_| fits) {
            state.spares.add(len, serial);
        } else {
            disk.remove(&path)?;
            deleted.insert(dir.to_owned());
        }
    }
    Ok(())
}

/// Takes over what lanes found.
struct Take<'a> {
    disk: &'a dyn Disk,
    state: State,
    recovery: Recovery,
    /// Directories that files were deleted from.
    deleted: BTreeSet<PathBuf>,
    done: Progress,
    found: &'a mut dyn FnMut(Record),
}

impl Take<'_> {
    fn file(&mut self, file: &Listed, looked: Option<(Held, Record)>) -> io::Result<()> {
        self.done.done += file.len;
        let is_record = looked.is_some();
        if let Some((held, record)) = looked
            && let hash_map::Entry::Vacant(vacant) = self.state.index.entry(held.id)
        {
            self.state.data += held.bytes();
            self.state.value_bytes += held.shape.value;
            vacant.insert(Arc::new(held));
            self.recovery.records += 1;
            self.recovery.value_bytes += record.len;
            self.done.records += 1;
            (self.found)(record);
            return Ok(());
        }
        let was_record = file.serial.is_some() && !is_record;
        self.recovery.dropped += u64::from(was_record);
        self.recovery.orphans += u64::from(!was_record);
        self.disk.remove(&file.path)?;
        self.deleted.insert(parent(&file.path));
        Ok(())
    }
}

/// Looks into files.
struct Looker<'a> {
    disk: &'a dyn Disk,
    token: u64,
    verify_values: bool,
    reader: &'a Reader,
}

impl Looker<'_> {
    /// The records in some files: the first blocks are read at once.
    fn look(&self, files: &[Listed]) -> io::Result<Vec<Option<(Held, Record)>>> {
        let mut room = Room::new(files.len() * ALIGN);
        room.set_len(files.len() * ALIGN);
        // A record takes whole blocks, and has a serial.
        let opened = files.iter().map(|file| match file.serial {
            Some(serial) if file.len >= ALIGN as u64 => {
                Ok(Some((serial, self.disk.open(&file.path, Open::Read)?)))
            }
            _ => Ok(None),
        });
        let opened: Vec<Option<(u64, Arc<dyn File>)>> = opened.collect::<io::Result<_>>()?;
        let reads = opened.iter().zip(room.chunks_mut(ALIGN)).filter_map(|(opened, into)| {
            let (_, file) = opened.as_ref()?;
            Some(ReadAt { file, offset: 0, into, result: Ok(()) })
        });
        let mut reads: Vec<ReadAt<'_>> = reads.collect();
        self.disk.read(&mut reads);
        let mut reads = reads.into_iter();
        let records = files.iter().zip(&opened).map(|(file, opened)| {
            let (serial, open) = opened.as_ref()?;
            let read = reads.next()?;
            // What cannot be read is dropped, as what is bad.
            read.result.ok()?;
            self.record(file, *serial, open, read.into)
        });
        Ok(records.collect())
    }

    /// The record in a file, if it is one and has the name that it should have.
    fn record(
        &self,
        file: &Listed,
        serial: u64,
        open: &Arc<dyn File>,
        near: &[u8],
    ) -> Option<(Held, Record)> {
        let site = Site { kind: Kind::PerKey, token: self.token, serial, offset: 0 };
        let shape = Head::peek(near, site)?;
        let read = if shape.head() <= near.len() {
            None
        } else {
            Some(self.reader.head(self.disk, open, file.len, site).ok()??)
        };
        let head = Head::decode(read.as_ref().map_or(near, |(read, at)| &read[*at..]), site)?;
        let named = Held::new(head.id, serial, head.label, head.len);
        if named.bytes() != file.len || named.path() != file.path {
            return None;
        }
        let good = !self.verify_values
            || self.reader.check_value(self.disk, open, 0, &head).unwrap_or(false);
        good.then(|| (named, head.record()))
    }
}
