//! Files whose records are gone, for the next ones. Writing over a file costs a file system nothing; a new one
//! costs it an inode and blocks, and the one that goes costs the same again, on some also a word to the device
//! about every block.
//!
//! What must stay true: a file is written over only when nobody reads it and it is durable that its records are gone
//! (G6). Under the name of a spare it holds no record, whatever its bytes say. Spares give way to records, and, at
//! the next start or when something goes, to whoever else needs room on the file system.

use crate::config::Config;
use crate::disk::{Disk, missing_is_fine};
use mooncrate_lock::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// So many at most.
const FILES_MAX: usize = 16 << 10;
/// How often somebody who waits for others looks again.
const LOOK: Duration = Duration::from_millis(2);

/// See the file's head.
#[derive(Debug, Default)]
pub(crate) struct Spares {
    /// Whether there is a place for them.
    pub(crate) usable: bool,
    /// Their serials, by their bytes.
    by_len: BTreeMap<u64, Vec<u64>>,
    files: usize,
    bytes: u64,
    /// Files that may become spares, or are being deleted, and their bytes: nobody may have that room yet.
    moving: usize,
    moving_bytes: u64,
    /// Those of them that are being deleted.
    going_bytes: u64,
}

impl Spares {
    /// All that is theirs on the disk.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes + self.moving_bytes
    }

    pub(crate) fn moving_bytes(&self) -> u64 {
        self.moving_bytes
    }

    pub(crate) fn is_full(&self) -> bool {
        self.files + self.moving >= FILES_MAX
    }

    pub(crate) fn add(&mut self, len: u64, serial: u64) {
        self.by_len.entry(len).or_default().push(serial);
        self.files += 1;
        self.bytes += len;
    }

    /// A file is on its way here.
    pub(crate) fn moves(&mut self, len: u64) {
        self.moving += 1;
        self.moving_bytes += len;
    }

    /// It is here, or it is gone.
    pub(crate) fn moved(&mut self, len: u64, here: Option<u64>) {
        self.moving -= 1;
        self.moving_bytes -= len;
        if let Some(serial) = here {
            self.add(len, serial);
        }
    }

    fn goes(&mut self, len: u64) {
        self.moves(len);
        self.going_bytes += len;
    }

    /// It is gone, or it is still here.
    fn went(&mut self, len: u64, here: Option<u64>) {
        self.moved(len, here);
        self.going_bytes -= len;
    }

    /// One of this length.
    pub(crate) fn take(&mut self, len: u64) -> Option<u64> {
        let serials = self.by_len.get_mut(&len)?;
        let serial = serials.pop()?;
        if serials.is_empty() {
            self.by_len.remove(&len);
        }
        self.files -= 1;
        self.bytes -= len;
        Some(serial)
    }

    /// The bytes of the longest.
    pub(crate) fn longest(&self) -> Option<u64> {
        self.by_len.last_key_value().map(|(len, _)| *len)
    }

    /// One to be deleted: the longest, which makes most room.
    fn pop(&mut self) -> Option<(u64, u64)> {
        let len = self.longest()?;
        let serial = self.take(len)?;
        self.goes(len);
        Some((len, serial))
    }

    /// One that makes place for one of this length: the shortest, unless all have it.
    pub(crate) fn pop_for(&mut self, len: u64) -> Option<(u64, u64)> {
        let other = *self.by_len.keys().find(|other| **other != len)?;
        let serial = self.take(other)?;
        self.goes(other);
        Some((other, serial))
    }
}

/// A backend that has some.
pub(crate) trait HasSpares {
    /// What it knows.
    type State;

    fn parts(&self) -> (&dyn Disk, &Config, &Mutex<Self::State>, &Condvar);

    /// Its spares, and what counts against the limit without them.
    fn spares(state: &mut Self::State) -> (&mut Spares, u64);

    /// The name of a spare, by a serial that is never used again.
    fn path(serial: u64) -> PathBuf;

    /// Whether files that are deleted now may stay as spares. If others need the room, those that are there
    /// go, too.
    fn has_room_for_spares(&self) -> bool {
        let (disk, config, state, _) = self.parts();
        match disk.free_bytes() {
            Ok(free) if free < config.spare_room => {
                self.delete_spares();
                false
            }
            free => free.is_ok() && Self::spares(&mut state.lock()).0.usable,
        }
    }

    /// Whether nothing that was promised to records is theirs.
    fn leave_room(state: &mut Self::State, config: &Config) -> bool {
        let (spares, taken) = Self::spares(state);
        taken + spares.bytes <= config.limit_bytes
    }

    /// Deletes spares while they take room from records that were admitted. The room of one that is on its way out
    /// is nobody's, so whoever is admitted waits for those that others delete, and deletes no more than it takes.
    fn trim_spares(&self) {
        let (_, config, state, pause) = self.parts();
        loop {
            let mut state = state.lock();
            let (spares, taken) = Self::spares(&mut state);
            let bytes = taken + spares.bytes;
            if bytes <= config.limit_bytes {
                return;
            }
            let is_enough = bytes - spares.going_bytes <= config.limit_bytes;
            if is_enough {
                pause.wait_for(&mut state, LOOK);
            } else if let Some((len, serial)) = spares.pop() {
                drop(state);
                if !self.delete_spare(len, serial) {
                    return;
                }
            } else if spares.moving == 0 {
                return;
            } else {
                pause.wait_for(&mut state, LOOK);
            }
        }
    }

    fn delete_spares(&self) {
        let (_, _, state, _) = self.parts();
        loop {
            let next = Self::spares(&mut state.lock()).0.pop();
            let Some((len, serial)) = next else { return };
            if !self.delete_spare(len, serial) {
                return;
            }
        }
    }

    /// Deletes one that moves; says whether it is gone.
    fn delete_spare(&self, len: u64, serial: u64) -> bool {
        let (_, _, state, pause) = self.parts();
        let gone = self.remove_spare(serial).is_ok();
        Self::spares(&mut state.lock()).0.went(len, (!gone).then_some(serial));
        pause.notify_all();
        gone
    }

    fn remove_spare(&self, serial: u64) -> io::Result<()> {
        missing_is_fine(self.parts().0.remove(&Self::path(serial)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// There are only so many, and those of a length that is not used any more make place.
    #[test]
    fn spares_are_counted() {
        let mut spares = Spares::default();
        (0..16_383).for_each(|serial| spares.add(4096, serial));
        assert!(!spares.is_full());
        spares.moves(8192);
        assert!(spares.is_full(), "one that is on its way counts");
        assert_eq!(spares.bytes(), 16_383 * 4096 + 8192);
        assert_eq!(spares.pop_for(4096), None);
        assert_eq!(spares.pop_for(8192), Some((4096, 16_382)));
        assert!(spares.is_full(), "until it is deleted");
        spares.went(4096, None);
        assert!(!spares.is_full());
        assert_eq!((spares.moving_bytes(), spares.going_bytes), (8192, 0));
    }
}
