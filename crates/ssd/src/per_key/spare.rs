//! Files whose records are gone, for the next records of their length. Writing over a file costs a file system
//! nothing; a new one costs it an inode and blocks, and the one that goes costs the same again, on some also a
//! word to the device about every block.
//!
//! ```text
//!   ab/cd/<a record> ──delete──► free/<serial> ──keep──► ef/01/<another record>
//! ```
//!
//! What must stay true: a file is written over only when nobody reads it and it is durable that its record is gone
//! (G6). What lies in `free` is never a record, whatever its bytes say. Spares give way to records, and to whoever
//! else needs room on the file system.

use super::{Shared, missing_is_fine};
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

/// Where they lie.
pub(super) const DIR: &str = "free";
/// So many at most; what goes beyond is deleted.
const FILES_MAX: usize = 16 << 10;
/// Part of the limit that must be free on the file system for everybody else, or there are none.
const SHARE: u64 = 32;

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
    /// Bytes of those that are on their way here, or away: nobody may have their room yet.
    moving: u64,
}

impl Spares {
    /// All that is theirs on the disk.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes + self.moving
    }

    pub(super) fn moving(&self) -> u64 {
        self.moving
    }

    /// A file gets a name here.
    pub(super) fn comes(&mut self, len: u64) {
        self.moving += len;
    }

    /// It is gone again.
    pub(super) fn goes(&mut self, len: u64) {
        self.moving -= len;
    }

    /// It may be used.
    pub(super) fn stays(&mut self, len: u64, serial: u64) {
        self.moving -= len;
        self.add(len, serial);
    }

    pub(super) fn is_full(&self) -> bool {
        self.files >= FILES_MAX
    }

    pub(super) fn add(&mut self, len: u64, serial: u64) {
        self.by_len.entry(len).or_default().push(serial);
        self.files += 1;
        self.bytes += len;
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

    /// One of the longest, to be deleted.
    fn pop(&mut self) -> Option<(u64, u64)> {
        let len = *self.by_len.last_key_value()?.0;
        self.take(len).map(|serial| (len, serial))
    }

    /// Takes those out that leave at most so many bytes.
    fn beyond(&mut self, bytes: u64) -> Vec<(u64, u64)> {
        let mut some = Vec::new();
        while self.bytes > bytes {
            let Some((len, serial)) = self.pop() else { break };
            self.moving += len;
            some.push((len, serial));
        }
        some
    }
}

impl Shared {
    /// Whether files that are deleted now may stay as spares. If others need the room, those that are there
    /// go, too.
    pub(super) fn has_room_for_spares(&self) -> bool {
        match self.disk.free_bytes() {
            Ok(free) if free < self.config.limit_bytes / SHARE => {
                self.delete_spares(0);
                false
            }
            free => free.is_ok() && self.state.lock().spares.usable,
        }
    }

    /// Deletes spares until they have at most so many bytes, or cannot be deleted.
    pub(super) fn delete_spares(&self, bytes: u64) {
        let some = self.state.lock().spares.beyond(bytes);
        for (len, serial) in some {
            let removed = self.remove_spare(serial);
            let mut state = self.state.lock();
            match removed {
                Ok(()) => state.spares.goes(len),
                Err(_) => state.spares.stays(len, serial),
            }
        }
    }

    pub(super) fn remove_spare(&self, serial: u64) -> io::Result<()> {
        missing_is_fine(self.disk.remove(&path(serial)))
    }
}
