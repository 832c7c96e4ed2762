//! Finding files again after a restart (S3).

use super::{Held, PerKey, Shared, State, dir, parent};
use crate::backend::{OpenError, Progress, Record, Recovery};
use crate::config::Config;
use crate::disk::{Disk, Open};
use crate::identity::Identity;
use crate::reading::Reader;
use crate::record::{Head, Kind, Site};
use mooncrate_lock::{Condvar, Mutex};
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The smallest limit that leaves room for anything.
const LIMIT_BYTES_MIN: u64 = 64 << 10;
/// Files after which progress is told.
const TELL: usize = 256;

/// A file in a directory of ours.
struct Listed {
    path: PathBuf,
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
        let is_ours = |name: &str| hex(name).is_some();
        let identity = Identity::open(&disk, Kind::PerKey, config.token, 1 << 16, is_ours)?;
        let mut state = State::default();
        let files = list(disk.as_ref(), &mut state)?;
        let reader = Reader::default();
        let (mut recovery, mut deleted) = (Recovery::default(), BTreeSet::new());
        let total = files.iter().map(|file| file.len).sum();
        let mut done = Progress { total, ..Progress::default() };
        // The newest first: of two copies of a record it is the one that counts.
        for (at, file) in files.into_iter().rev().enumerate() {
            let scan = Scan { disk: disk.as_ref(), token: identity.token, config, reader: &reader };
            done.done += file.len;
            match scan.look(&file)? {
                Some((held, record)) if !state.index.contains_key(&held.id) => {
                    state.data += held.bytes();
                    recovery.records += 1;
                    recovery.value_bytes += record.len;
                    state.link(Arc::new(held));
                    found(record);
                }
                other => {
                    let was_record = file.serial.is_some() && other.is_none();
                    recovery.dropped += u64::from(was_record);
                    recovery.orphans += u64::from(!was_record);
                    disk.remove(&file.path)?;
                    deleted.insert(parent(&file.path));
                }
            }
            done.records = recovery.records;
            if at % TELL == 0 {
                progress(done);
            }
        }
        progress(done);
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

/// A byte in two digits.
fn hex(name: &str) -> Option<u8> {
    let lower = name.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    if name.len() == 2 && lower { u8::from_str_radix(name, 16).ok() } else { None }
}

/// All files, the oldest first.
fn list(disk: &dyn Disk, state: &mut State) -> io::Result<Vec<Listed>> {
    let mut files = Vec::new();
    // What is seen is not durable yet: whoever made or deleted it may have been killed before it was. A power
    // cut would lose a directory with what is put into it from now on, and bring back a file whose removal
    // is answered from now on (G6).
    disk.sync_dir(Path::new(""))?;
    for top in disk.list(Path::new(""))?.into_iter().filter(|entry| entry.is_dir) {
        let Some(first) = hex(&top.name) else { continue };
        state.tops.insert(first, true);
        disk.sync_dir(Path::new(&top.name))?;
        for sub in disk.list(Path::new(&top.name))?.into_iter().filter(|entry| entry.is_dir) {
            let Some(second) = hex(&sub.name) else { continue };
            state.dirs.insert([first, second], true);
            let dir = dir([first, second]);
            disk.sync_dir(&dir)?;
            for file in disk.list(&dir)?.into_iter().filter(|entry| !entry.is_dir) {
                let serial = file.name.rsplit('-').next().filter(|serial| serial.len() == 16);
                let serial = serial.and_then(|serial| u64::from_str_radix(serial, 16).ok());
                files.push(Listed { path: dir.join(&file.name), len: file.len, serial });
            }
        }
    }
    files.sort_by_key(|file| file.serial);
    Ok(files)
}

struct Scan<'a> {
    disk: &'a dyn Disk,
    token: u64,
    config: &'a Config,
    reader: &'a Reader,
}

impl Scan<'_> {
    /// The record in a file, if it is one and has the name that it should have.
    fn look(&self, file: &Listed) -> io::Result<Option<(Held, Record)>> {
        let Some(serial) = file.serial else { return Ok(None) };
        let open = self.disk.open(&file.path, Open::Read)?;
        let site = Site { kind: Kind::PerKey, token: self.token, serial, offset: 0 };
        // What cannot be read is dropped, as what is bad.
        let Ok(Some((near, at))) = self.reader.head(self.disk, &open, file.len, site) else {
            return Ok(None);
        };
        let Some(head) = Head::decode(&near[at..], site) else { return Ok(None) };
        let named = Held::new(head.id, serial, head.label, head.len);
        if named.path() != file.path || named.bytes() != file.len {
            return Ok(None);
        }
        if self.config.verify_values {
            let good = self.reader.check_value(self.disk, &open, 0, &head);
            if !good.unwrap_or(false) {
                return Ok(None);
            }
        }
        Ok(Some((named, head.record())))
    }
}
