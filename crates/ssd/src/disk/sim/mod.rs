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
//! survives a crash unless a [`Harm`] was told about it. Each operation is a step of a world of `mooncrate_rt`,
//! so that a simulation can let another thread run there.

mod content;
mod faults;
mod names;
mod state;

pub use faults::{Counts, Failed, Fault, Harm, Rates, Span};

use super::bad::BadFiles;
use super::file::check_end;
use super::span::{Cutter, Lie, ReadSpans, Rest, Span as Transfer, WriteSpans};
use super::{Disk, Entry, File, Open, ReadAt, WriteAt};
use crate::ALIGN;
use mooncrate_lock::Mutex;
use mooncrate_rt as rt;
use state::State;
use std::any::Any;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::ThreadId;

/// Bytes that a disk writes whole or not at all.
pub const SECTOR: u64 = 512;
/// Bytes in which a file takes up room.
pub const BLOCK: u64 = 4096;
/// Most bytes of one transfer: small, so that values are cut.
const CUT: usize = 64 << 10;
/// Rooms that are kept for transfers.
const ROOMS: usize = 4;

/// What operations answer after a power cut.
const POWER_IS_OFF: &str = "the power is off";

/// Whether an operation failed because the power was off, and not with an error of the disk.
pub fn is_power_off(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Other && error.to_string() == POWER_IS_OFF
}

/// A disk in memory.
#[derive(Debug)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
    bad: Arc<BadFiles<u64>>,
    cutter: Cutter,
    /// Whole blocks are read and written past the page cache, which decides how transfers are cut.
    direct: bool,
}

#[derive(Debug)]
struct SimFile {
    state: Arc<Mutex<State>>,
    bad: Arc<BadFiles<u64>>,
    file: u64,
    /// Opened for reading only.
    read_only: bool,
}

impl SimDisk {
    /// An empty disk for so many bytes. What goes wrong follows from the seed.
    pub fn new(seed: u64, capacity: u64, rates: Rates) -> Self {
        Self::of(State::new(seed, capacity, rates))
    }

    fn of(mut state: State) -> Self {
        let direct = state.draws_direct();
        let state = Arc::new(Mutex::new(state));
        Self { state, bad: Arc::default(), cutter: Cutter::new(CUT, ROOMS), direct }
    }

    /// The power fails. This disk is off from now on; the answer is the disk as the next start finds it.
    #[must_use]
    pub fn crash(&self) -> Self {
        let next = self.state.lock().crash();
        Self::of(next)
    }

    /// The process is killed. Its files are closed, and everything that it wrote is still there, synced or
    /// not; this disk is off from now on.
    #[must_use]
    pub fn kill(&self) -> Self {
        let next = self.state.lock().kill();
        Self::of(next)
    }

    /// A copy of its files as programs see them, on a disk of its own. Their numbers differ, as the inodes of a copy
    /// do.
    #[must_use]
    pub fn copy_of_files(&self) -> Self {
        let copy = self.state.lock().copy(true);
        Self::of(copy)
    }

    /// A copy of its blocks: nothing tells it from this one.
    #[must_use]
    pub fn copy_of_blocks(&self) -> Self {
        let copy = self.state.lock().copy(false);
        Self::of(copy)
    }

    /// An empty disk in place of this one, with its counts.
    #[must_use]
    pub fn replaced(&self, seed: u64, capacity: u64) -> Self {
        let next = self.state.lock().replaced(seed, capacity);
        Self::of(next)
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

    /// Operations that failed since the last call.
    pub fn take_failures(&self) -> Vec<Failed> {
        std::mem::take(&mut self.state.lock().failures)
    }

    /// What was written since the last call, and by whom; adjacent writes are one span.
    pub fn take_written(&self) -> Vec<(ThreadId, Span)> {
        std::mem::take(&mut self.state.lock().written)
    }

    /// The name of a file, or the last one that it had; `None`: nobody can meet it any more.
    pub fn path_of(&self, file: u64) -> Option<PathBuf> {
        self.state.lock().path_of(file)
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
        rt::step();
        let file = self.state.lock().open(path, how)?;
        let read_only = how == Open::Read;
        let (state, bad) = (Arc::clone(&self.state), Arc::clone(&self.bad));
        Ok(Arc::new(SimFile { state, bad, file, read_only }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        rt::step();
        self.state.lock().rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        rt::step();
        self.state.lock().remove(path)
    }

    fn make_dir(&self, path: &Path) -> io::Result<()> {
        rt::step();
        self.state.lock().make_dir(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        rt::step();
        self.state.lock().list(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        rt::step();
        self.state.lock().sync_dir(dir)
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.state.lock().free_bytes()
    }

    fn read(&self, reads: &mut [ReadAt<'_>]) {
        for at in self.order(reads.len()) {
            let ReadAt { file, offset, into, result } = &mut reads[at];
            *result = self.own(file).and_then(|file| {
                check_end(*offset, into.len())?;
                let (fd, lie, offset) = (file.file, self.direct.then_some(Lie::BLOCKS), *offset);
                let mut spans = ReadSpans { fd, lie, offset, into };
                while let Some(span) = spans.next(&self.cutter) {
                    self.carry_out(span)?;
                }
                Ok(())
            });
        }
    }

    fn write(&self, writes: &mut [WriteAt<'_>]) {
        for at in self.order(writes.len()) {
            let WriteAt { file, offset, pieces, result } = &mut writes[at];
            *result = self.own(file).and_then(|file| {
                file.may_write()?;
                let left: usize = pieces.iter().map(|piece| piece.len()).sum();
                check_end(*offset, left)?;
                let whole = offset.is_multiple_of(ALIGN as u64) && left.is_multiple_of(ALIGN);
                let lie = (self.direct && whole).then_some(Lie::BLOCKS);
                let (fd, offset) = (file.file, *offset);
                let mut spans = WriteSpans { fd, lie, offset, pieces, used: 0, left };
                while let Some(span) = spans.next(&self.cutter) {
                    self.carry_out(span)?;
                }
                Ok(())
            });
        }
    }
}

impl SimDisk {
    /// Operations of one call happen in any order.
    fn order(&self, count: usize) -> Vec<usize> {
        self.state.lock().order(count)
    }

    /// Moves a span by calls that may move less.
    fn carry_out(&self, mut span: Transfer<'_, u64>) -> io::Result<()> {
        loop {
            rt::step();
            let (file, offset) = (span.fd, span.offset);
            let moved = match span.rest() {
                Rest::In(into) => self.state.lock().read(file, into, offset),
                Rest::Out(first, rest) => {
                    let pieces: Vec<&[u8]> = std::iter::once(first).chain(rest).collect();
                    self.state.lock().write(file, &pieces.concat(), offset)
                }
            };
            match moved {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                moved => {
                    if span.moved(moved?)? {
                        return Ok(());
                    }
                }
            }
        }
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
        rt::step();
        self.may_write()?;
        self.state.lock().set_len(self.file, len)
    }

    fn sync_data(&self) -> io::Result<()> {
        rt::step();
        self.bad.sync(self.file, || self.state.lock().sync_data(self.file))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl SimFile {
    fn may_write(&self) -> io::Result<()> {
        if self.read_only {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        self.bad.check(self.file)
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        self.state.lock().close(self.file);
    }
}

#[cfg(test)]
mod tests;
