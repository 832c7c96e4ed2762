//! The files of [`Posix`], read and written through `io_uring`: many operations per system call, so that
//! the device is busy with several at once.
//!
//! Each thread has a ring of its own for each disk that it uses, made when it is first needed. Threads
//! share nothing but the files, so that they never wait for each other. Where the kernel refuses a ring,
//! that thread does what [`Posix`] does, and a line in the log says so once.
//!
//! Memory that is read into often can be registered ([`Disk::register`]). Each ring registers it by itself,
//! lazily; transfers to and from it then spare the kernel the search for its pages.
//!
//! Many syncs at once go through the ring: the kernel hands each to a thread of its own, and a file system
//! with a journal serves those that wait at the same time by one commit. A sync alone is a plain call.
//!
//! What must stay true: the same answers as [`Posix`]; a ring that failed is thrown away (S10, see `ring`).

use super::file::{PosixFile, read_spans, write_spans};
use super::posix::Posix;
use super::ring::{DEPTH, Job, Ring, Syncing, Work, copy};
use super::span::Cutter;
use super::tamper::Tamper;
use super::{Counts, Disk, Entry, File, LANES, Open, ReadAt, WriteAt};
use mooncrate_lock::RwLock;
use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Most bytes of one entry, as a rule. A little under a MiB: memory of small pages has a segment for each of
/// them, virtual disks take 254 segments at once, and an entry that must be split is handed to another thread
/// of the kernel first (4 MiB values were kept at 84 % of fio with 1 MiB here, and at 95 % with this).
const CUT: usize = 1008 << 10;

thread_local! {
    /// This thread's rings, one for each disk that it uses.
    static RINGS: RefCell<Vec<(Weak<Shared>, Ring)>> = const { RefCell::new(Vec::new()) };
}

/// A directory, read and written through rings.
pub struct Uring {
    posix: Posix,
    cutter: Cutter,
    shared: Arc<Shared>,
}

/// What the rings of one disk share.
#[derive(Default)]
struct Shared {
    /// Registered memory, and what keeps it where it is.
    regions: RwLock<Vec<Region>>,
    rings: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    unregistered: AtomicU64,
    tamper: Tamper,
}

struct Region {
    bytes: Range<usize>,
    _owner: Arc<dyn Any + Send + Sync>,
}

impl Uring {
    /// Opens a directory as [`Posix::open`] does. Whether rings can be had shows when they are needed.
    pub fn open(directory: &Path) -> io::Result<Self> {
        Ok(Self::over(Posix::open(directory)?))
    }

    /// Rings for a disk that is open.
    pub fn over(posix: Posix) -> Self {
        Self { posix, cutter: Cutter::new(CUT, DEPTH), shared: Arc::default() }
    }

    /// Carries jobs out in this thread's ring. `false`: there is none, nothing was done.
    fn run(&self, jobs: &mut [Job<'_>]) -> bool {
        let Some(mut ring) = self.take_ring() else { return false };
        // A panic in here drops the ring; `Flight` waits for the kernel first.
        match ring.run(jobs, &self.cutter, &self.shared.tamper) {
            Ok(()) => give_back(Arc::downgrade(&self.shared), ring),
            Err(error) => {
                self.shared.failed.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(%error, "a ring failed; the next operation gets a new one");
            }
        }
        true
    }

    /// Syncs what can be, side by side. `None`: there is no ring, or it is not worth it.
    fn sync_all(
        &self,
        fds: Vec<io::Result<BorrowedFd<'_>>>,
        data: bool,
    ) -> Option<Vec<io::Result<()>>> {
        if fds.len() < 2 {
            return None;
        }
        let mut results = Vec::with_capacity(fds.len());
        let mut works = Vec::with_capacity(fds.len());
        for fd in fds {
            works.push(fd.as_ref().ok().map(|&fd| Syncing { fd, data }));
            results.push(fd.map(drop));
        }
        let jobs = works.into_iter().zip(&mut results).filter(|(work, _)| work.is_some());
        let mut jobs: Vec<_> =
            jobs.map(|(sync, result)| Job { work: Work::Sync(sync), result }).collect();
        self.run(&mut jobs).then_some(results)
    }

    /// This thread's ring, with all memory registered that can be.
    fn take_ring(&self) -> Option<Ring> {
        let mut ring = match take(&self.shared) {
            Some(ring) => ring,
            None => match Ring::new() {
                Ok(ring) => {
                    self.shared.rings.fetch_add(1, Ordering::Relaxed);
                    ring
                }
                Err(error) => {
                    if self.shared.refused.fetch_add(1, Ordering::Relaxed) == 0 {
                        tracing::warn!(%error, "no io_uring here; reading and writing by plain calls");
                    }
                    return None;
                }
            },
        };
        let regions = self.shared.regions.read();
        if ring.regions != regions.len() {
            let bytes: Vec<_> = regions.iter().map(|region| region.bytes.clone()).collect();
            if let Err(error) = ring.register(&bytes)
                && self.shared.unregistered.fetch_add(1, Ordering::Relaxed) == 0
            {
                tracing::info!(%error, "memory is not registered with io_uring; reads work without");
            }
        }
        Some(ring)
    }
}

/// Takes this thread's ring of a disk. Rings of disks that are gone go with it.
fn take(shared: &Arc<Shared>) -> Option<Ring> {
    let taken = RINGS.try_with(|rings| {
        let mut rings = rings.borrow_mut();
        rings.retain(|(owner, _)| owner.strong_count() > 0);
        let mine = |(owner, _): &(Weak<Shared>, Ring)| owner.as_ptr() == Arc::as_ptr(shared);
        let index = rings.iter().position(mine)?;
        Some(rings.swap_remove(index).1)
    });
    // A thread that is ending has no place for rings any more.
    taken.ok().flatten()
}

fn give_back(owner: Weak<Shared>, ring: Ring) {
    let _ = RINGS.try_with(|rings| rings.borrow_mut().push((owner, ring)));
}

impl Disk for Uring {
    fn name(&self) -> &'static str {
        "uring"
    }

    fn open(&self, path: &Path, how: Open) -> io::Result<Arc<dyn File>> {
        self.posix.open_file(path, how)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.posix.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.posix.remove(path)
    }

    fn make_dir(&self, path: &Path) -> io::Result<()> {
        self.posix.make_dir(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        self.posix.list(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.posix.sync_dir(dir)
    }

    fn sync_files(&self, files: &[&Arc<dyn File>]) -> Vec<io::Result<()>> {
        let fds = files.iter().map(|file| PosixFile::of(file)?.to_sync()).collect();
        let Some(results) = self.sync_all(fds, true) else { return self.posix.sync_files(files) };
        let ended = files.iter().zip(results).map(|(file, result)| match PosixFile::of(file) {
            Ok(file) => file.synced(result),
            Err(_) => result,
        });
        ended.collect()
    }

    fn sync_dirs(&self, dirs: &[&Path]) -> Vec<io::Result<()>> {
        let opened: Vec<_> = dirs.iter().map(|dir| self.posix.open_dir(dir)).collect();
        let fds = opened.iter().map(|dir| match dir {
            Ok(dir) => Ok(dir.as_fd()),
            Err(error) => Err(copy(error)),
        });
        self.sync_all(fds.collect(), false).unwrap_or_else(|| self.posix.sync_dirs(dirs))
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.posix.free_bytes()
    }

    fn lanes(&self) -> usize {
        LANES
    }

    fn read(&self, reads: &mut [ReadAt<'_>]) {
        let mut jobs = Vec::with_capacity(reads.len());
        for read in &mut *reads {
            let ReadAt { file, offset, into, result } = read;
            match read_spans(file, *offset, into) {
                Ok(spans) => {
                    *result = Ok(());
                    jobs.push(Job { work: Work::Read(spans), result });
                }
                Err(error) => *result = Err(error),
            }
        }
        if !self.run(&mut jobs) {
            self.posix.read(reads);
        }
    }

    fn write(&self, writes: &mut [WriteAt<'_>]) {
        extend(writes);
        let mut jobs = Vec::with_capacity(writes.len());
        for write in &mut *writes {
            match write_spans(write) {
                Ok(spans) => {
                    write.result = Ok(());
                    jobs.push(Job { work: Work::Write(spans), result: &mut write.result });
                }
                Err(error) => write.result = Err(error),
            }
        }
        if !self.run(&mut jobs) {
            self.posix.write(writes);
        }
    }

    fn register(&self, owner: Arc<dyn Any + Send + Sync>, start: usize, len: usize) {
        let bytes = start..start + len;
        keep_small_pages(&bytes);
        self.shared.regions.write().push(Region { bytes, _owner: owner });
    }

    fn counts(&self) -> Counts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Shared { rings, refused, failed, unregistered, .. } = &*self.shared;
        Counts {
            rings: of(rings),
            refused: of(refused),
            failed: of(failed),
            unregistered: of(unregistered),
        }
    }
}

impl fmt::Debug for Uring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut uring = f.debug_struct("Uring");
        uring.field("posix", &self.posix).field("counts", &self.counts()).finish_non_exhaustive()
    }
}

/// Makes files as long as a batch of writes will make them, where it is worth a call.
fn extend(writes: &[WriteAt<'_>]) {
    let end = |write: &WriteAt<'_>| {
        let bytes: usize = write.pieces.iter().map(|piece| piece.len()).sum();
        write.offset.saturating_add(bytes as u64)
    };
    // Writes to one file follow each other in a batch.
    for same in writes.chunk_by(|one, next| Arc::ptr_eq(one.file, next.file)) {
        let first = same.iter().map(|write| write.offset).min().unwrap_or(0);
        let last = same.iter().map(end).max().unwrap_or(0);
        if last - first > 2 * CUT as u64
            && let Ok(file) = PosixFile::of(same[0].file)
        {
            file.extend(last);
        }
    }
}

/// Asks the kernel to leave pages as they are: pinning many huge pages at once can fail where they are
/// being put together or moved. A refusal changes nothing.
fn keep_small_pages(bytes: &Range<usize>) {
    let start = bytes.start.next_multiple_of(crate::ALIGN);
    let len = bytes.end.saturating_sub(start) / crate::ALIGN * crate::ALIGN;
    let start = std::ptr::without_provenance_mut(start);
    // SAFETY: this advice changes no byte of any memory, wherever the range lies; a range that is not
    // mapped is refused.
    let advised = unsafe { rustix::mm::madvise(start, len, rustix::mm::Advice::LinuxNoHugepage) };
    if let Err(error) = advised {
        tracing::debug!(%error, "registered memory may have huge pages");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::suite;
    use crate::room::Room;
    use mooncrate_core::rng::Rng;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    fn disk() -> (tempfile::TempDir, Uring) {
        let directory = tempfile::tempdir().unwrap();
        let disk = Uring::open(directory.path()).unwrap();
        (directory, disk)
    }

    /// A file of 4 MiB, and whether this host has rings at all; without, there is nothing to test.
    fn filled(disk: &Uring) -> Option<(Arc<dyn File>, Vec<u8>)> {
        let file = disk.open(Path::new("file"), Open::Create).unwrap();
        let mut rng = Rng::new(9);
        let bytes: Vec<u8> = (0..1 << 19).flat_map(|_| rng.next().to_le_bytes()).collect();
        suite::write(&file, disk, 0, &[&bytes]).unwrap();
        if disk.counts().rings == 0 {
            eprintln!("skipped: the kernel refuses rings here");
            return None;
        }
        Some((file, bytes))
    }

    #[test]
    fn does_what_a_disk_does() {
        let (_directory, disk) = disk();
        suite::all(&disk);
        let counts = disk.counts();
        assert_eq!((counts.failed, counts.unregistered), (0, 0));
        assert!(counts.rings > 0 || counts.refused > 0);
    }

    /// proves S10: what the kernel leaves out is asked for again.
    #[test]
    fn short_transfers_are_resumed() {
        let (_directory, disk) = disk();
        *disk.shared.tamper.shorts.lock() = Some(Rng::new(10));
        suite::all(&disk);
        let cuts = *disk.shared.tamper.cuts.lock();
        assert!(cuts > 1000 || disk.counts().rings == 0, "only {cuts} were short");
    }

    /// Blocks of which the kernel gets many together, and such of which it gets one or two.
    const BLOCKS: [usize; 2] = [16 << 10, 1 << 20];

    fn read_blocks<'a>(
        file: &'a Arc<dyn File>,
        memory: &'a mut [u8],
        block: usize,
    ) -> Vec<ReadAt<'a>> {
        let blocks = memory.chunks_mut(block).enumerate();
        blocks
            .map(|(i, into)| ReadAt { file, offset: (i * block) as u64, into, result: Ok(()) })
            .collect()
    }

    /// proves S10: a failed wait fails what was under way, frees nothing early, and costs one ring.
    #[test]
    fn a_failed_ring_is_replaced() {
        let (_directory, disk) = disk();
        let Some((file, bytes)) = filled(&disk) else { return };
        for (block, fail_in) in BLOCKS.into_iter().flat_map(|block| [(block, 0), (block, 2)]) {
            let failed = disk.counts().failed;
            let mut memory = vec![0; bytes.len()];
            *disk.shared.tamper.fail_in.lock() = Some(fail_in);
            let mut reads = read_blocks(&file, &mut memory, block);
            disk.read(&mut reads);
            let mut errors = 0;
            for (i, read) in reads.iter().enumerate() {
                match &read.result {
                    Ok(()) => assert!(*read.into == bytes[i * block..][..block], "{i}"),
                    Err(error) => {
                        assert_eq!(error.to_string(), "as asked");
                        errors += 1;
                    }
                }
            }
            // What was not yet handed over failed too: not all fit into one flight, or are handed over by then.
            let handed = if block == BLOCKS[0] { 32 * (fail_in + 1) } else { fail_in };
            assert!(errors + handed as usize >= bytes.len() / block, "{errors} after {fail_in}");
            assert_eq!(disk.counts().failed, failed + 1);
            drop(reads);
            // Nothing writes into the memory any more.
            memory.fill(0x55);
            assert!(suite::read(&file, &disk, 0, bytes.len()).unwrap() == bytes);
            assert!(memory.iter().all(|&byte| byte == 0x55));
        }
        assert_eq!(disk.counts().rings, 5);
    }

    /// proves S12: a sync whose end nobody saw has failed, and its file is bad for good.
    #[test]
    fn syncs_of_a_failed_ring_have_failed() {
        let (_directory, disk) = disk();
        let Some((file, _)) = filled(&disk) else { return };
        let other = disk.open(Path::new("other"), Open::Create).unwrap();
        *disk.shared.tamper.fail_in.lock() = Some(0);
        let synced = disk.sync_files(&[&file, &other]);
        assert!(synced.iter().all(Result::is_err), "{synced:?}");
        for file in [&file, &other] {
            assert!(suite::write(file, &disk, 0, &[&[1; 4096]]).is_err());
            assert!(file.sync_data().is_err());
        }
        let again = disk.sync_files(&[&file, &other]);
        assert!(again.iter().all(Result::is_err), "a second sync would lie: {again:?}");
    }

    /// proves S10: buffers outlive their operations, also when our own code panics.
    #[test]
    fn a_panic_lands_first() {
        let (_directory, disk) = disk();
        let Some((file, bytes)) = filled(&disk) else { return };
        for (block, panic_in) in BLOCKS.into_iter().flat_map(|block| [(block, 0), (block, 2)]) {
            let mut memory = vec![0; bytes.len()];
            *disk.shared.tamper.panic_in.lock() = Some(panic_in);
            let mut reads = read_blocks(&file, &mut memory, block);
            let caught = catch_unwind(AssertUnwindSafe(|| disk.read(&mut reads)));
            assert!(caught.is_err());
            drop(reads);
            memory.fill(0x55);
            assert!(suite::read(&file, &disk, 0, bytes.len()).unwrap() == bytes);
            assert!(memory.iter().all(|&byte| byte == 0x55));
        }
        assert_eq!(disk.counts().rings, 5, "a ring that a panic went through is not used again");
    }

    #[test]
    fn registered_memory_is_read_into() {
        let (_directory, disk) = disk();
        let Some((file, bytes)) = filled(&disk) else { return };
        let mut memory = Room::new(bytes.len());
        memory.set_len(bytes.len());
        disk.register(Arc::new(()), memory.as_ptr().addr(), memory.len());
        for _ in 0..2 {
            memory.fill(0);
            let mut reads = [ReadAt { file: &file, offset: 0, into: &mut memory, result: Ok(()) }];
            disk.read(&mut reads);
            assert!(reads[0].result.is_ok());
            assert!(memory[..] == bytes);
        }
        suite::write(&file, &disk, 0, &[&memory[4096..]]).unwrap();
        assert!(suite::read(&file, &disk, 0, 1 << 20).unwrap() == bytes[4096..][..1 << 20]);
        let counts = disk.counts();
        assert_eq!(counts.rings, 1);
        if counts.unregistered > 0 {
            eprintln!("skipped: the kernel does not register memory here");
        }
    }

    /// Memory that cannot be registered is read into all the same, and counted.
    #[test]
    fn a_refused_registration_is_counted() {
        let (_directory, disk) = disk();
        let Some((file, bytes)) = filled(&disk) else { return };
        disk.register(Arc::new(()), 4096, 8192);
        assert!(suite::read(&file, &disk, 0, bytes.len()).unwrap() == bytes);
        assert!(suite::read(&file, &disk, 0, bytes.len()).unwrap() == bytes);
        assert_eq!(disk.counts().unregistered, 1, "asked once, not at every read");
    }

    #[test]
    fn rings_go_with_their_disk() {
        for _ in 0..3 {
            let (_directory, disk) = disk();
            if filled(&disk).is_none() {
                return;
            }
        }
        let (_directory, disk) = disk();
        filled(&disk).unwrap();
        assert_eq!(RINGS.with(|rings| rings.borrow().len()), 1);
    }
}
