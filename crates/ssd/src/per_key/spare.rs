//! Files whose records are gone, for the next records of their length. Writing over a file costs a file system
//! nothing; a new one costs it an inode and blocks, and the one that goes costs the same again, on some also a
//! word to the device about every block.
//!
//! ```text
//!   ab/cd/<a record> ──delete──► free/<serial> ──keep──► ef/01/<another record>
//! ```
//!
//! What must stay true: a file is written over only when nobody reads it and it is durable that its record is gone
//! (G6). What lies in `free` is never a record, whatever its bytes say. Spares give way to records, and, at the
//! next start, removal or eviction, to whoever else needs room on the file system.

use super::evict::LOOK;
use super::{Shared, missing_is_fine};
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

/// Where they lie.
pub(super) const DIR: &str = "free";
/// So many at most.
const FILES_MAX: usize = 16 << 10;

/// The name of a spare: the serial of the record that it was, which is never used again.
pub(super) fn path(serial: u64) -> PathBuf {
    format!("{DIR}/{serial:016x}").into()
}

#[derive(Debug, Default)]
pub(super) struct Spares {
    /// Whether their directory is there.
    pub(super) usable: bool,
    /// Their serials, by their bytes.
    by_len: BTreeMap<u64, Vec<u64>>,
    files: usize,
    bytes: u64,
    /// Files that may become spares, or are being deleted, and their bytes: nobody may have that room yet.
    moving: usize,
    moving_bytes: u64,
}

impl Spares {
    /// All that is theirs on the disk.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes + self.moving_bytes
    }

    pub(super) fn moving_bytes(&self) -> u64 {
        self.moving_bytes
    }

    pub(super) fn is_full(&self) -> bool {
        self.files + self.moving >= FILES_MAX
    }

    pub(super) fn add(&mut self, len: u64, serial: u64) {
        self.by_len.entry(len).or_default().push(serial);
        self.files += 1;
        self.bytes += len;
    }

    /// A file is on its way here, or away.
    pub(super) fn moves(&mut self, len: u64) {
        self.moving += 1;
        self.moving_bytes += len;
    }

    /// It is here, or it is gone.
    pub(super) fn moved(&mut self, len: u64, here: Option<u64>) {
        self.moving -= 1;
        self.moving_bytes -= len;
        if let Some(serial) = here {
            self.add(len, serial);
        }
    }

    /// One of this length. Another would have to be cut or to grow, which is what a spare saves.
    pub(super) fn take(&mut self, len: u64) -> Option<u64> {
        let serials = self.by_len.get_mut(&len)?;
        let serial = serials.pop()?;
        if serials.is_empty() {
            self.by_len.remove(&len);
        }
        self.files -= 1;
        self.bytes -= len;
        Some(serial)
    }

    /// One to be deleted: the longest, which makes most room.
    fn pop(&mut self) -> Option<(u64, u64)> {
        let len = *self.by_len.last_key_value()?.0;
        let serial = self.take(len)?;
        self.moves(len);
        Some((len, serial))
    }

    /// One that makes place for one of this length: the shortest, unless all have it.
    pub(super) fn pop_for(&mut self, len: u64) -> Option<(u64, u64)> {
        let other = *self.by_len.keys().find(|other| **other != len)?;
        let serial = self.take(other)?;
        self.moves(other);
        Some((other, serial))
    }
}

impl Shared {
    /// Whether files that are deleted now may stay as spares. If others need the room, those that are there
    /// go, too.
    pub(super) fn has_room_for_spares(&self) -> bool {
        match self.disk.free_bytes() {
            Ok(free) if free < self.config.spare_room => {
                self.delete_spares();
                false
            }
            free => free.is_ok() && self.state.lock().spares.usable,
        }
    }

    /// Deletes spares while they take room from records that were admitted. One after the other: the room of one
    /// that is on its way out is nobody's, so whoever is admitted waits for those of others, too.
    pub(super) fn trim_spares(&self) {
        loop {
            let mut state = self.state.lock();
            if state.taken() + state.spares.bytes <= self.config.limit_bytes {
                return;
            }
            if let Some((len, serial)) = state.spares.pop() {
                drop(state);
                if !self.delete_spare(len, serial) {
                    return;
                }
            } else if state.spares.moving == 0 {
                return;
            } else {
                self.pause.wait_for(&mut state, LOOK);
            }
        }
    }

    pub(super) fn delete_spares(&self) {
        loop {
            let next = self.state.lock().spares.pop();
            let Some((len, serial)) = next else { return };
            if !self.delete_spare(len, serial) {
                return;
            }
        }
    }

    /// Makes place for one more, if so many are allowed only.
    pub(super) fn make_place(&self, len: u64) {
        let mut state = self.state.lock();
        let other = if state.spares.is_full() { state.spares.pop_for(len) } else { None };
        drop(state);
        if let Some((len, serial)) = other {
            self.delete_spare(len, serial);
        }
    }

    /// Deletes one that moves; says whether it is gone.
    fn delete_spare(&self, len: u64, serial: u64) -> bool {
        let gone = self.remove_spare(serial).is_ok();
        self.state.lock().spares.moved(len, (!gone).then_some(serial));
        gone
    }

    pub(super) fn remove_spare(&self, serial: u64) -> io::Result<()> {
        missing_is_fine(self.disk.remove(&path(serial)))
    }
}
