//! Everything that a simulated disk is, behind one lock: files, names, faults and counts.

use super::content::Content;
use super::faults::{Counts, Failed, Fault, Harm, Rates, Span};
use super::names::{Names, Node};
use super::{BLOCK, SECTOR};
use crate::disk::{Entry, Open};
use mooncrate_core::rng::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::thread::ThreadId;

/// What an operation takes, and a byte, and how long a slow operation takes at most.
const OPERATION_NANOS: u64 = 20_000;
const BYTE_NANOS_PER_KIB: u64 = 500;
const SLOW_NANOS_MAX: u64 = 3_000_000_000;
/// The error number of a device that failed, of a full one, and of a quota that is used up.
const EIO: i32 = 5;
const ENOSPC: i32 = 28;
const EDQUOT: i32 = 122;

#[derive(Debug)]
struct Inode {
    content: Content,
    /// The last name that a program gave it.
    path: PathBuf,
    /// Names, as programs see them: one, or none after a removal.
    named: bool,
    open: u32,
}

impl Inode {
    fn new(path: PathBuf) -> Self {
        Self { content: Content::new(), path, named: true, open: 0 }
    }

    fn blocks(&self) -> u64 {
        self.content.len().next_multiple_of(BLOCK)
    }

    /// It takes up room: it has a name, or somebody has it open.
    fn takes_room(&self) -> bool {
        self.named || self.open > 0
    }
}

#[derive(Debug)]
pub(super) struct State {
    rng: Rng,
    pub(super) rates: Rates,
    pub(super) counts: Counts,
    pub(super) operations: u64,
    pub(super) nanos: u64,
    pub(super) cut_in: Option<u64>,
    pub(super) off: bool,
    pub(super) harm: Vec<Harm>,
    pub(super) failures: Vec<Failed>,
    pub(super) written: Vec<(ThreadId, Span)>,
    capacity: u64,
    /// What is said when there is no room: the disk is full for some seeds, a quota is for the others.
    no_room: i32,
    /// Bytes of blocks that files take up.
    used: u64,
    names: Names,
    files: BTreeMap<u64, Inode>,
    next_file: u64,
    /// Files are swept when there are more than this.
    sweep_at: usize,
}

/// What an operation that was under way when the power failed does.
enum Power {
    On,
    /// It fails, and may have happened.
    Fails,
}

impl State {
    pub(super) fn new(seed: u64, capacity: u64, rates: Rates) -> Self {
        Self {
            rng: Rng::stream(seed, "disk"),
            rates,
            counts: Counts::default(),
            operations: 0,
            nanos: 0,
            cut_in: None,
            off: false,
            harm: Vec::new(),
            failures: Vec::new(),
            written: Vec::new(),
            capacity,
            no_room: if seed.is_multiple_of(2) { EDQUOT } else { ENOSPC },
            used: 0,
            names: Names::default(),
            files: BTreeMap::new(),
            next_file: 1,
            sweep_at: 64,
        }
    }

    pub(super) fn crash(&mut self) -> Self {
        self.off = true;
        let mut next = Self::new(self.rng.next(), self.capacity, self.rates);
        let (names, lost) = std::mem::take(&mut self.names).crash(&mut self.rng);
        self.hit_times(Fault::TornName, lost);
        let mut files = std::mem::take(&mut self.files);
        for file in names.files().collect::<BTreeSet<u64>>() {
            let inode = files.remove(&file).expect("a file that can come back is remembered");
            let (content, torn) = inode.content.crash(&mut self.rng);
            self.hit_times(Fault::TornSector, torn.sectors);
            self.hit_times(Fault::TornLength, u64::from(torn.length));
            let inode = Inode { content, ..Inode::new(inode.path) };
            next.used += inode.blocks();
            next.files.insert(file, inode);
        }
        next.names = names;
        next.next_file = self.next_file;
        self.hand_over(next)
    }

    pub(super) fn kill(&mut self) -> Self {
        self.off = true;
        let mut next = Self::new(self.rng.next(), self.capacity, self.rates);
        next.names = std::mem::take(&mut self.names);
        next.next_file = self.next_file;
        for (file, mut inode) in std::mem::take(&mut self.files) {
            inode.open = 0;
            if inode.takes_room() {
                next.used += inode.blocks();
            }
            next.files.insert(file, inode);
        }
        self.hand_over(next)
    }

    pub(super) fn replaced(&mut self, seed: u64, capacity: u64) -> Self {
        self.off = true;
        let mut next = Self::new(seed, capacity, self.rates);
        next.next_file = self.next_file;
        self.hand_over(next)
    }

    /// The same files a second time. `as_files`: files that were copied have other numbers; blocks keep them.
    pub(super) fn copy(&mut self, as_files: bool) -> Self {
        let mut next = Self::new(self.rng.next(), self.capacity, self.rates);
        let shift = if as_files { self.next_file } else { 0 };
        next.names = self.names.renumbered(shift);
        next.next_file = self.next_file + shift;
        for (file, inode) in self.files.iter().filter(|(_, inode)| inode.named) {
            let mut content = inode.content.clone();
            content.sync();
            next.used += inode.blocks();
            next.files.insert(file + shift, Inode { content, ..Inode::new(inode.path.clone()) });
        }
        next
    }

    fn hand_over(&mut self, mut next: Self) -> Self {
        (next.counts, next.operations, next.nanos) = (self.counts, self.operations, self.nanos);
        next.harm = std::mem::take(&mut self.harm);
        next.failures = std::mem::take(&mut self.failures);
        next
    }

    pub(super) fn draws_direct(&mut self) -> bool {
        self.rng.chance(700)
    }

    fn hit(&mut self, fault: Fault) {
        self.hit_times(fault, 1);
    }

    /// An operation fails, on these bytes or on names.
    fn fail(&mut self, fault: Fault, span: Option<Span>) -> io::Error {
        self.hit(fault);
        let at = span.and_then(|span| Some((span, self.path_of(span.file)?)));
        self.failures.push(Failed { fault, at });
        io::Error::from_raw_os_error(if fault == Fault::NoSpace { self.no_room } else { EIO })
    }

    fn hit_times(&mut self, fault: Fault, times: u64) {
        self.counts[fault as usize] += times;
    }

    fn roll(&mut self, per_million: u32) -> bool {
        per_million > 0 && self.rng.below(1_000_000) < u64::from(per_million)
    }

    /// Begins an operation that moves so many bytes.
    fn begin(&mut self, bytes: usize) -> io::Result<Power> {
        if self.off {
            return Err(power_is_off());
        }
        self.operations += 1;
        self.nanos += OPERATION_NANOS + bytes as u64 * BYTE_NANOS_PER_KIB / 1024;
        if self.roll(self.rates.slow) {
            self.hit(Fault::Slow);
            self.nanos += self.rng.below(SLOW_NANOS_MAX);
        }
        if self.roll(self.rates.flip) {
            self.flip_somewhere();
        }
        match &mut self.cut_in {
            Some(0) => {
                self.hit(Fault::Cut);
                if self.rng.chance(700) {
                    return Ok(Power::Fails);
                }
                self.off = true;
                Err(power_is_off())
            }
            Some(left) => {
                *left -= 1;
                Ok(Power::On)
            }
            None => Ok(Power::On),
        }
    }

    fn end(&mut self, power: &Power) -> io::Result<()> {
        match power {
            Power::On => Ok(()),
            Power::Fails => {
                self.off = true;
                Err(power_is_off())
            }
        }
    }

    fn flip_somewhere(&mut self) {
        let named = |inode: &&Inode| inode.named;
        let total: u64 = self.files.values().filter(named).map(|inode| inode.content.len()).sum();
        if total == 0 {
            return;
        }
        let (mut byte, bit) = (self.rng.below(total), self.rng.below(8) as u32);
        for (file, inode) in self.files.iter_mut().filter(|(_, inode)| inode.named) {
            let len = inode.content.len();
            if byte < len {
                inode.content.flip(byte, bit);
                let span = Span { file: *file, start: byte, end: byte + 1 };
                self.harm.push(Harm { fault: Fault::Flip, span });
                self.hit(Fault::Flip);
                return;
            }
            byte -= len;
        }
    }

    pub(super) fn flip_at(&mut self, path: &Path, byte: u64, bit: u32) -> io::Result<()> {
        let file = self.names.file(path)?;
        let inode = self.inode(file)?;
        if byte >= inode.content.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        inode.content.flip(byte, bit);
        let span = Span { file, start: byte, end: byte + 1 };
        self.harm.push(Harm { fault: Fault::Flip, span });
        self.hit(Fault::Flip);
        Ok(())
    }

    // ---- names ------------------------------------------------------------------------------

    pub(super) fn open(&mut self, path: &Path, how: Open) -> io::Result<u64> {
        let power = self.begin(0)?;
        let file = if how == Open::Create {
            let file = self.next_file;
            self.names.add(path, Node::File(file))?;
            self.next_file += 1;
            self.files.insert(file, Inode::new(path.to_owned()));
            file
        } else {
            self.names.file(path)?
        };
        self.end(&power)?;
        self.inode(file)?.open += 1;
        Ok(file)
    }

    pub(super) fn close(&mut self, file: u64) {
        // Unknown after a crash.
        if let Some(inode) = self.files.get_mut(&file) {
            inode.open -= 1;
            let gone = !inode.takes_room();
            let blocks = inode.blocks();
            if gone {
                self.used -= blocks;
                self.sweep();
            }
        }
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let power = self.begin(0)?;
        if let Some(replaced) = self.names.rename(from, to)? {
            self.unname(replaced);
        }
        let file = self.names.file(to)?;
        to.clone_into(&mut self.inode(file)?.path);
        self.end(&power)
    }

    pub(super) fn path_of(&self, file: u64) -> Option<PathBuf> {
        self.files.get(&file).map(|inode| inode.path.clone())
    }

    pub(super) fn remove(&mut self, path: &Path) -> io::Result<()> {
        let power = self.begin(0)?;
        let file = self.names.remove(path)?;
        self.unname(file);
        self.end(&power)
    }

    fn unname(&mut self, file: u64) {
        let inode = self.files.get_mut(&file).expect("a name leads to a file");
        inode.named = false;
        let (gone, blocks) = (!inode.takes_room(), inode.blocks());
        if gone {
            self.used -= blocks;
            self.sweep();
        }
    }

    /// Forgets files that neither a program nor a later start can meet. Now and then, because it looks at
    /// all of them.
    fn sweep(&mut self) {
        if self.files.len() < self.sweep_at {
            return;
        }
        let met: BTreeSet<u64> = self.names.files().collect();
        self.files.retain(|file, inode| inode.open > 0 || met.contains(file));
        self.sweep_at = 64 + 2 * self.files.len();
    }

    pub(super) fn make_dir(&mut self, path: &Path) -> io::Result<()> {
        let power = self.begin(0)?;
        if path.as_os_str().is_empty() || self.names.get(path) != Some(Node::Dir) {
            self.names.add(path, Node::Dir)?;
        }
        self.end(&power)
    }

    pub(super) fn list(&mut self, dir: &Path) -> io::Result<Vec<Entry>> {
        let power = self.begin(0)?;
        let mut entries = Vec::new();
        for (name, node) in self.names.list(dir)? {
            entries.push(match node {
                Node::File(file) => Entry {
                    name,
                    len: self.inode(file)?.content.len(),
                    file,
                    born: 0,
                    is_dir: false,
                },
                Node::Dir => Entry { name, len: 0, file: 0, born: 0, is_dir: true },
            });
        }
        for at in (1..entries.len()).rev() {
            entries.swap(at, self.rng.below(at as u64 + 1) as usize);
        }
        self.end(&power)?;
        Ok(entries)
    }

    pub(super) fn sync_dir(&mut self, dir: &Path) -> io::Result<()> {
        let power = self.begin(0)?;
        self.names.dir(dir)?;
        self.end(&power)?;
        if self.roll(self.rates.sync_error) {
            // What is pending stays so: file systems keep names in a journal, not in pages that they forget.
            return Err(self.fail(Fault::DirSyncError, None));
        }
        self.names.sync(dir);
        self.sweep();
        Ok(())
    }

    // ---- bytes ------------------------------------------------------------------------------

    fn inode(&mut self, file: u64) -> io::Result<&mut Inode> {
        if self.off {
            return Err(power_is_off());
        }
        Ok(self.files.get_mut(&file).expect("an open file is remembered"))
    }

    pub(super) fn len(&mut self, file: u64) -> io::Result<u64> {
        Ok(self.inode(file)?.content.len())
    }

    pub(super) fn free_bytes(&mut self) -> io::Result<u64> {
        if self.off { Err(power_is_off()) } else { Ok(self.capacity.saturating_sub(self.used)) }
    }

    pub(super) fn file_bytes(&self) -> u64 {
        self.files.values().filter(|inode| inode.named).map(|inode| inode.content.len()).sum()
    }

    /// Bytes up to which a file can grow.
    fn room(&mut self, file: u64) -> io::Result<u64> {
        // A crash brings back names that were deleted and not synced, and others may have used their space: a
        // disk can be fuller than full.
        let free = self.capacity.saturating_sub(self.used);
        Ok(self.inode(file)?.blocks() + free / BLOCK * BLOCK)
    }

    /// Changes a file, and what it takes up.
    fn change(&mut self, file: u64, change: impl FnOnce(&mut Content)) -> io::Result<()> {
        let inode = self.inode(file)?;
        let before = inode.blocks();
        change(&mut inode.content);
        let after = inode.blocks();
        self.used = self.used - before + after;
        Ok(())
    }

    pub(super) fn set_len(&mut self, file: u64, len: u64) -> io::Result<()> {
        let power = self.begin(0)?;
        if self.roll(self.rates.write_error) {
            return Err(self.fail(Fault::WriteError, Some(whole(file))));
        }
        if len > self.room(file)? {
            return Err(self.fail(Fault::NoSpace, Some(whole(file))));
        }
        self.change(file, |content| content.set_len(len))?;
        self.end(&power)
    }

    pub(super) fn sync_data(&mut self, file: u64) -> io::Result<()> {
        let power = self.begin(0)?;
        self.end(&power)?;
        let fails = self.roll(self.rates.sync_error);
        let Self { rng, files, .. } = self;
        let content = &mut files.get_mut(&file).expect("an open file is remembered").content;
        if fails {
            content.sync_badly(rng);
            return Err(self.fail(Fault::SyncError, Some(whole(file))));
        }
        content.sync();
        Ok(())
    }

    /// As `pread`: may fill less than all.
    pub(super) fn read(&mut self, file: u64, into: &mut [u8], at: u64) -> io::Result<usize> {
        let power = self.begin(into.len())?;
        self.end(&power)?;
        if self.roll(self.rates.read_error) {
            let span = Span { file, start: at, end: at + into.len() as u64 };
            return Err(self.fail(Fault::ReadError, Some(span)));
        }
        let len = self.shorten(into.len(), Fault::ShortRead)?;
        let stale = self.roll(self.rates.stale);
        let content = &self.inode(file)?.content;
        let len = len.min(content.len().saturating_sub(at) as usize);
        let into = &mut into[..len];
        if len > 0 {
            into.copy_from_slice(&content.bytes()[at as usize..at as usize + len]);
        }
        if stale && content.read_stale(at, into) {
            let span = Span { file, start: at, end: at + len as u64 };
            self.harm.push(Harm { fault: Fault::Stale, span });
            self.hit(Fault::Stale);
        }
        Ok(len)
    }

    /// As `pwritev`: may write less than all.
    pub(super) fn write(&mut self, file: u64, from: &[u8], at: u64) -> io::Result<usize> {
        let power = self.begin(from.len())?;
        let fails = self.roll(self.rates.write_error);
        let mut len = self.shorten(from.len(), Fault::ShortWrite)?;
        let room = self.room(file)?;
        if at.saturating_add(len as u64) > room {
            // What fits is written; the next call finds that nothing does.
            len = room.saturating_sub(at) as usize;
            if len == 0 {
                return Err(self.fail(Fault::NoSpace, Some(whole(file))));
            }
        }
        let bytes = &from[..len];
        if fails {
            let happened = self.rng.below(len as u64 + 1) as usize;
            self.store(file, &bytes[..happened], at)?;
            return Err(self.fail(Fault::WriteError, Some(whole(file))));
        }
        self.store_or_harm(file, bytes, at)?;
        self.end(&power)?;
        Ok(len)
    }

    /// Gives how much a call moves. What is a multiple of whole blocks stays one, as with direct I/O: a
    /// transfer that ends inside of a block cannot be resumed there.
    fn shorten(&mut self, len: usize, fault: Fault) -> io::Result<usize> {
        let unit = if (len as u64).is_multiple_of(BLOCK) { BLOCK as usize } else { 1 };
        let most = (len / unit) as u64;
        if most < 2 || !self.roll(self.rates.short) {
            return Ok(len);
        }
        if self.rng.chance(200) {
            self.hit(Fault::Interrupted);
            return Err(io::ErrorKind::Interrupted.into());
        }
        self.hit(fault);
        Ok((1 + self.rng.below(most - 1) as usize) * unit)
    }

    fn store(&mut self, file: u64, bytes: &[u8], at: u64) -> io::Result<()> {
        if !bytes.is_empty() {
            self.note_written(file, at, bytes.len());
            self.change(file, |content| content.write(at, bytes))?;
        }
        Ok(())
    }

    fn note_written(&mut self, file: u64, at: u64, len: usize) {
        let (by, end) = (std::thread::current().id(), at + len as u64);
        if let Some((writer, last)) = self.written.last_mut()
            && (*writer, last.file, last.end) == (by, file, at)
        {
            last.end = end;
        } else {
            self.written.push((by, Span { file, start: at, end }));
        }
    }

    fn store_or_harm(&mut self, file: u64, bytes: &[u8], at: u64) -> io::Result<()> {
        let span = Span { file, start: at, end: at + bytes.len() as u64 };
        if self.roll(self.rates.lost) {
            let later = self.rng.chance(500);
            let fault = if later { Fault::LostLater } else { Fault::Lost };
            self.hit(fault);
            self.harm.push(Harm { fault, span });
            self.note_written(file, at, bytes.len());
            if later {
                return self.change(file, |content| content.write_ghost(at, bytes));
            }
            // The file grows all the same: that is the file system's knowledge, not the device's.
            let len = self.len(file)?.max(span.end);
            return self.change(file, |content| content.set_len(len));
        }
        if self.roll(self.rates.misdirected)
            && let Some((other, offset)) = self.elsewhere(bytes.len() as u64)
        {
            self.hit(Fault::Misdirected);
            self.note_written(file, at, bytes.len());
            let hit = Span { file: other, start: offset, end: offset + bytes.len() as u64 };
            self.harm.push(Harm { fault: Fault::Misdirected, span });
            self.harm.push(Harm { fault: Fault::Misdirected, span: hit });
            let len = self.len(file)?.max(span.end);
            self.change(file, |content| content.set_len(len))?;
            return self.change(other, |content| content.write(offset, bytes));
        }
        self.store(file, bytes, at)
    }

    /// A place for so many bytes, at the beginning of a sector of some file.
    fn elsewhere(&mut self, len: u64) -> Option<(u64, u64)> {
        let fits = |inode: &Inode| inode.named && inode.content.len() >= len;
        let files: Vec<u64> =
            self.files.iter().filter(|(_, inode)| fits(inode)).map(|(file, _)| *file).collect();
        let file = *files.get(self.rng.below(files.len().max(1) as u64) as usize)?;
        let most = (self.files[&file].content.len() - len) / SECTOR;
        Some((file, self.rng.below(most + 1) * SECTOR))
    }

    pub(super) fn order(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        for at in (1..count).rev() {
            order.swap(at, self.rng.below(at as u64 + 1) as usize);
        }
        order
    }
}

fn whole(file: u64) -> Span {
    Span { file, start: 0, end: u64::MAX }
}

fn power_is_off() -> io::Error {
    io::Error::other(super::POWER_IS_OFF)
}
