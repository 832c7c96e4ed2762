//! The child: works, tells, and kills itself at a point.

use super::{LIMIT, config, open_disk, record_and_value};
use mooncrate_core::rng::Rng;
use mooncrate_core::{LeaderEpoch, ObjectId};
use mooncrate_ssd::disk::{Disk, Entry, File, Open, ReadAt, WriteAt};
use mooncrate_ssd::{Backend, Kind, Load, LoadError, NewRecord, RecordId, open, points};
use std::cell::Cell;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Operations after which a child ends, if it never came to its point.
const OPS_MAX: u64 = 150;
/// Threads that work.
const THREADS: u64 = 2;
/// How long a load waits for an eviction.
const WAIT_STEPS: u32 = 500;
const WAIT_STEP: Duration = Duration::from_millis(1);

/// What a child is to do.
#[derive(Clone, Debug)]
pub struct Task {
    /// Where.
    pub directory: PathBuf,
    /// By which disk: `posix` or `uring`.
    pub disk: String,
    /// With which backend, by its place in `Kind::ALL`.
    pub kind: usize,
    /// The point at which it ends, by its place in the list of points.
    pub point: usize,
    /// After having passed it so often.
    pub hits: u64,
    /// What it keeps.
    pub seed: u64,
    /// The first number that was never used.
    pub from: u64,
}

/// What all threads share.
struct Work<'a> {
    task: &'a Task,
    backend: &'a dyn Backend,
    pipe: Mutex<io::Stdout>,
    next: AtomicU64,
    /// Evictions take everything and wait for no reader.
    orphans: bool,
    /// How many have ended.
    evictions: Arc<AtomicU64>,
}

thread_local! {
    /// Whether this thread loads a value.
    static LOADS: Cell<bool> = const { Cell::new(false) };
}

/// Works until it is dead or done.
pub fn work(task: &Task) -> Result<(), String> {
    let (point, hits) = (points::POINTS[task.point], AtomicU64::new(0));
    let wanted = task.hits;
    points::set_hook(Box::new(move |name| {
        if name == point && hits.fetch_add(1, Ordering::Relaxed) == wanted {
            let _ = rustix::process::kill_process(
                rustix::process::getpid(),
                rustix::process::Signal::KILL,
            );
            // The signal is on its way; nothing more may happen here.
            loop {
                std::thread::park();
            }
        }
    }));
    let mut disk = open_disk(&task.disk, &task.directory).map_err(|error| error.to_string())?;
    let orphans = point == "evict.orphan_marked";
    let evictions = Arc::new(AtomicU64::new(0));
    if orphans {
        disk = Arc::new(Slow { disk, evictions: Arc::clone(&evictions), awaited: Mutex::new(()) });
    }
    let config = config(Kind::ALL[task.kind], task.seed);
    let mut found = Vec::new();
    let (backend, _) = open(disk, &config, &mut |record| found.push(record.id), &mut |_| {})
        .map_err(|error| error.to_string())?;
    let work = Work {
        task,
        backend: &*backend,
        pipe: Mutex::new(io::stdout()),
        next: AtomicU64::new(task.from),
        orphans,
        evictions,
    };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (work, found) = (&work, &found);
            scope.spawn(move || work.thread(thread, found));
        }
    });
    if task.seed.is_multiple_of(2) {
        backend.settle().map_err(|error| error.to_string())?;
    }
    Ok(())
}

impl Work<'_> {
    fn tell(&self, what: &str, numbers: &[u64]) {
        let words: Vec<String> = numbers.iter().map(u64::to_string).collect();
        let mut pipe = self.pipe.lock().expect("nobody panics while telling");
        // A parent that is gone has no use for it.
        let _ = writeln!(pipe, "{what} {}", words.join(" ")).and_then(|()| pipe.flush());
    }

    fn thread(&self, thread: u64, found: &[RecordId]) {
        let mut rng = Rng::new(self.task.seed ^ self.task.from ^ thread << 40);
        // Each thread works on numbers of its own.
        let mut mine: Vec<u64> = found
            .iter()
            .map(|id| id.object.sequence)
            .filter(|number| number % THREADS == thread)
            .collect();
        for _ in 0..OPS_MAX {
            match rng.below(100) {
                0..45 => self.keep(&mut rng, thread, &mut mine),
                45..70 => self.load(&mut rng, &mine),
                70..90 => self.remove(&mut rng, &mut mine),
                _ => self.evict(1 + rng.below(200_000), &mut rng),
            }
        }
    }

    fn keep(&self, rng: &mut Rng, thread: u64, mine: &mut Vec<u64>) {
        let numbers: Vec<u64> = (0..=rng.below(4))
            .map(|_| self.next.fetch_add(1, Ordering::Relaxed) * THREADS + thread)
            .collect();
        let records: Vec<_> =
            numbers.iter().map(|number| record_and_value(self.task.seed, *number)).collect();
        self.tell("keeps", &numbers);
        let asked: Vec<NewRecord<'_>> = records
            .iter()
            .map(|(id, facts, value)| NewRecord {
                id: *id,
                label: &facts.label,
                seal: facts.seal,
                value,
            })
            .collect();
        let results = self.backend.keep(&asked);
        let mut full = false;
        for (number, result) in numbers.iter().zip(results) {
            full |= result.is_err();
            self.tell(if result.is_ok() { "kept" } else { "refused" }, &[*number]);
            mine.push(*number);
        }
        if full {
            self.evict(400_000, rng);
        }
    }

    fn load(&self, rng: &mut Rng, mine: &[u64]) {
        if mine.is_empty() {
            return;
        }
        let number = mine[rng.below(mine.len() as u64) as usize];
        let (id, facts, value) = record_and_value(self.task.seed, number);
        let mut into = vec![0; value.len()];
        let mut loads = [Load {
            id,
            label: &facts.label,
            len: facts.len,
            seal: facts.seal,
            start: 0,
            want: facts.len,
            into: &mut into,
            sums: None,
            result: Err(LoadError::Missing),
        }];
        LOADS.set(true);
        self.backend.load(&mut loads);
        LOADS.set(false);
        let [Load { result, .. }] = loads;
        match result {
            Ok(()) if into == value => {}
            Err(LoadError::Missing) => {}
            Ok(()) => self.tell("WRONG", &[number]),
            Err(_) => self.tell("BAD", &[number]),
        }
    }

    fn remove(&self, rng: &mut Rng, mine: &mut Vec<u64>) {
        let count = (1 + rng.below(3)).min(mine.len() as u64);
        let numbers: Vec<u64> =
            (0..count).map(|_| mine.swap_remove(rng.below(mine.len() as u64) as usize)).collect();
        let ids: Vec<RecordId> = numbers.iter().map(|number| id(*number)).collect();
        self.tell("removes", &numbers);
        if self.backend.remove(&ids).is_ok() {
            self.tell("removed", &numbers);
        }
    }

    fn evict(&self, bytes: u64, rng: &mut Rng) {
        let bytes = if self.orphans { LIMIT } else { bytes };
        let Some(ticket) = self.backend.unlink(bytes) else { return };
        let numbers: Vec<u64> = ticket.records().iter().map(|id| id.object.sequence).collect();
        if rng.chance(200) {
            return;
        }
        self.tell("evicts", &numbers);
        let at_once = self.orphans || rng.chance(600);
        let wait = if at_once { Duration::ZERO } else { Duration::from_secs(10) };
        if ticket.finish(wait).is_ok() {
            self.tell("evicted", &numbers);
        }
        self.evictions.fetch_add(1, Ordering::Relaxed);
    }
}

/// A disk on which one load at a time waits for the end of an eviction, so that the eviction meets a reader.
#[derive(Debug)]
struct Slow {
    disk: Arc<dyn Disk>,
    evictions: Arc<AtomicU64>,
    /// Held by the load that waits.
    awaited: Mutex<()>,
}

impl Slow {
    fn wait(&self) {
        let Ok(_awaited) = self.awaited.try_lock() else { return };
        let before = self.evictions.load(Ordering::Relaxed);
        // For a while only: the other thread may be done.
        for _ in 0..WAIT_STEPS {
            if self.evictions.load(Ordering::Relaxed) != before {
                return;
            }
            std::thread::sleep(WAIT_STEP);
        }
    }
}

impl Disk for Slow {
    fn name(&self) -> &'static str {
        self.disk.name()
    }

    fn open(&self, path: &Path, how: Open) -> io::Result<Arc<dyn File>> {
        self.disk.open(path, how)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk.remove(path)
    }

    fn make_dir(&self, path: &Path) -> io::Result<()> {
        self.disk.make_dir(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        self.disk.list(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.disk.sync_dir(dir)
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.disk.free_bytes()
    }

    fn read(&self, reads: &mut [ReadAt<'_>]) {
        if LOADS.get() {
            self.wait();
        }
        self.disk.read(reads);
    }

    fn write(&self, writes: &mut [WriteAt<'_>]) {
        self.disk.write(writes);
    }
}

/// The name of a record that a number stands for.
fn id(number: u64) -> RecordId {
    RecordId { object: ObjectId { epoch: LeaderEpoch(1), sequence: number }, stripe: 0 }
}
