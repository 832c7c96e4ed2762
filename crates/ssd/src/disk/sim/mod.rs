//! A disk in memory that fails as disks do, and does so again from the same seed.
//!
//! ```text
//!   Disk ── state ──┬── names    what is not synced may be lost, renames and removals too
//!                   ├── content  per file; tears by sectors of 512 bytes
//!                   └── faults   errors, short results, flips, lost, misdirected and stale bytes, slowness
//! ```
//!
//! [`SimDisk::crash`] gives the disk as the next start finds it: any subset of what was not synced has
//! happened. The old one is off from then on, so nothing can write to both. [`SimDisk::cut_after`] makes the
//! power fail in the middle of whatever the code under test does.
//!
//! What must stay true: calls from one thread at a time with one seed give one outcome; what was synced
//! survives a crash unless a [`Harm`] was told about it. Each operation is a step of `mooncrate_lock::turns`,
//! so that a simulation can let another thread run there.

mod content;
mod faults;
mod names;
mod state;

pub use faults::{Counts, Fault, Harm, Rates, Span};

use super::{Disk, Entry, File, Open, ReadAt, WriteAt, resume};
use mooncrate_lock::{Mutex, turns};
use state::State;
use std::any::Any;
use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;

/// Bytes that a disk writes whole or not at all.
pub const SECTOR: u64 = 512;
/// Bytes in which a file takes up room.
pub const BLOCK: u64 = 4096;

/// A disk in memory.
#[derive(Debug)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct SimFile {
    state: Arc<Mutex<State>>,
    file: u64,
    /// Opened for reading only.
    read_only: bool,
}

impl SimDisk {
    /// An empty disk for so many bytes. What goes wrong follows from the seed.
    pub fn new(seed: u64, capacity: u64, rates: Rates) -> Self {
        Self { state: Arc::new(Mutex::new(State::new(seed, capacity, rates))) }
    }

    /// The power fails. This disk is off from now on; the answer is the disk as the next start finds it.
    #[must_use]
    pub fn crash(&self) -> Self {
        let next = self.state.lock().crash();
        Self { state: Arc::new(Mutex::new(next)) }
    }

    /// The process is killed. Its files are closed, and everything that it wrote is still there, synced or
    /// not; this disk is off from now on.
    #[must_use]
    pub fn kill(&self) -> Self {
        let next = self.state.lock().kill();
        Self { state: Arc::new(Mutex::new(next)) }
    }

    /// An empty disk in place of this one, with its counts.
    #[must_use]
    pub fn replaced(&self, seed: u64, capacity: u64) -> Self {
        let next = self.state.lock().replaced(seed, capacity);
        Self { state: Arc::new(Mutex::new(next)) }
    }

    /// The power will fail in the operation after the next `operations`: it and all later ones fail.
    pub fn cut_after(&self, operations: u64) {
        self.state.lock().cut_in = Some(operations);
    }

    /// The power will not fail after all.
    pub fn no_cut(&self) {
        self.state.lock().cut_in = None;
    }

    /// Whether the power is off.
    pub fn is_off(&self) -> bool {
        self.state.lock().off
    }

    /// Changes how often things go wrong.
    pub fn set_rates(&self, rates: Rates) {
        self.state.lock().rates = rates;
    }

    /// What happened so far, also before crashes.
    pub fn counts(&self) -> Counts {
        self.state.lock().counts
    }

    /// Operations so far, also before crashes.
    pub fn operations(&self) -> u64 {
        self.state.lock().operations
    }

    /// How long they took, in nanoseconds of virtual time.
    pub fn busy_nanos(&self) -> u64 {
        self.state.lock().nanos
    }

    /// Bytes of all files that have a name.
    pub fn file_bytes(&self) -> u64 {
        self.state.lock().file_bytes()
    }

    /// Faults since the last call that can cost data although every call succeeded.
    pub fn take_harm(&self) -> Vec<Harm> {
        std::mem::take(&mut self.state.lock().harm)
    }

    /// What was written since the last call; adjacent writes are one span.
    pub fn take_written(&self) -> Vec<Span> {
        std::mem::take(&mut self.state.lock().written)
    }

    /// Flips a bit of a file, for tests that want it in a certain place.
    pub fn flip(&self, path: &Path, byte: u64, bit: u32) -> io::Result<()> {
        self.state.lock().flip_at(path, byte, bit)
    }
}

impl Disk for SimDisk {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn open(&self, path: &Path, how: Open) -> io::Result<Arc<dyn File>> {
        turns::step();
        let file = self.state.lock().open(path, how)?;
        let read_only = how == Open::Read;
        Ok(Arc::new(SimFile { state: Arc::clone(&self.state), file, read_only }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        turns::step();
        self.state.lock().rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        turns::step();
        self.state.lock().remove(path)
    }

    fn make_dir(&self, path: &Path) -> io::Result<()> {
        turns::step();
        self.state.lock().make_dir(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        turns::step();
        self.state.lock().list(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        turns::step();
        self.state.lock().sync_dir(dir)
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.state.lock().free_bytes()
    }

    fn read(&self, reads: &mut [ReadAt<'_>]) {
        for at in self.order(reads.len()) {
            let read = &mut reads[at];
            let once = |into: &mut [u8], offset| {
                turns::step();
                self.state.lock().read(self.own(read.file)?.file, into, offset)
            };
            read.result = resume::read_all(read.into, read.offset, once);
        }
    }

    fn write(&self, writes: &mut [WriteAt<'_>]) {
        for at in self.order(writes.len()) {
            let write = &mut writes[at];
            let once = |pieces: &[IoSlice<'_>], offset| {
                turns::step();
                let file = self.own(write.file)?;
                if file.read_only {
                    return Err(io::ErrorKind::PermissionDenied.into());
                }
                self.state.lock().write(file.file, pieces, offset)
            };
            let mut pieces: Vec<IoSlice<'_>> =
                write.pieces.iter().map(|piece| IoSlice::new(piece)).collect();
            write.result = resume::write_all(&mut pieces, write.offset, once);
        }
    }
}

impl SimDisk {
    /// Operations of one call happen in any order.
    fn order(&self, count: usize) -> Vec<usize> {
        self.state.lock().order(count)
    }

    fn own<'a>(&self, file: &'a Arc<dyn File>) -> io::Result<&'a SimFile> {
        let file = file.as_any().downcast_ref::<SimFile>();
        file.filter(|file| Arc::ptr_eq(&file.state, &self.state))
            .ok_or_else(|| io::Error::other("this file was opened by another disk"))
    }
}

impl File for SimFile {
    fn len(&self) -> io::Result<u64> {
        self.state.lock().len(self.file)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        turns::step();
        if self.read_only {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        self.state.lock().set_len(self.file, len)
    }

    fn sync_data(&self) -> io::Result<()> {
        turns::step();
        self.state.lock().sync_data(self.file)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        self.state.lock().close(self.file);
    }
}

#[cfg(test)]
mod tests;
