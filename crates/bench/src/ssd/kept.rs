//! Backends: groups of records that are kept, and loaded again, with all that is verified on the way.
//! Several hands work side by side on one backend, as the threads of a node do. Who keeps finds a full disk; a
//! thread evicts meanwhile, between the marks of a node, without a master to tell.

use super::HANDS;
use super::fio::Way;
use super::watch::Watch;
use anyhow::{Context, Result, ensure};
use mooncrate_core::seal::extent_bytes;
use mooncrate_core::{LeaderEpoch, ObjectId, Seal};
use mooncrate_mem::clock::boottime;
use mooncrate_mem::sums::seal_of;
use mooncrate_ssd::disk::Disk;
use mooncrate_ssd::{Backend, Config, KeepError, Kind, Load, NewRecord, RecordId, Room};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Builder;
use std::time::Duration;

/// As long as a label in use is.
const LABEL_BYTES: usize = 85;
/// Laps that a disk has room for.
const LAPS: u64 = 6;
/// Room is made from one share of the limit down to the other, in percent, as a node does it.
const MARKS: [u64; 2] = [95, 90];
/// Nobody loads what is evicted, so this is not used up.
const WAIT: Duration = Duration::from_secs(10);
/// How often who waits for room, or for need of it, looks again.
const LOOK: Duration = Duration::from_micros(200);
/// How long a disk may take to make room.
const ROOM_TIME: Duration = Duration::from_secs(30);

/// A backend, and who works on it.
pub(crate) struct Kept {
    backend: Arc<dyn Backend>,
    hands: Vec<Hand>,
    way: Way,
}

/// One thread's part: values in memory that lie as in a segment, and memory to load into.
struct Hand {
    number: u64,
    size: usize,
    values: Room,
    seals: Vec<Seal>,
    into: Vec<Room>,
    /// Records so far: each group has new names.
    records: u64,
}

impl Kept {
    /// Values of `size` in groups of `group`, `bytes` in a lap. Loads find as much to load; who keeps finds a disk
    /// that is full.
    pub(crate) fn new(
        disk: &Arc<dyn Disk>,
        kind: Kind,
        way: Way,
        (size, group, bytes): (u64, usize, u64),
    ) -> Result<Self> {
        let config = Config::new(kind, LAPS * bytes);
        let (backend, _) = mooncrate_ssd::open(Arc::clone(disk), &config, &mut drop, &mut drop)?;
        let mut hands: Vec<Hand> =
            (0..HANDS).map(|number| Hand::new(number, size, group)).collect();
        let groups = bytes / HANDS / (size * group as u64);
        if way == Way::Read {
            for hand in &mut hands {
                hand.make_room(disk);
                (0..groups).try_for_each(|_| hand.keep(&*backend))?;
            }
        }
        let mut this = Self { backend, hands, way };
        if way == Way::Write {
            (0..LAPS).try_for_each(|_| this.together(groups).map(drop))?;
        }
        Ok(this)
    }

    /// One lap, of so many groups for each hand.
    pub(crate) fn lap(&mut self, groups: u64, watch: &mut Watch) -> Result<()> {
        watch.together(|| self.together(groups))
    }

    /// What each group took. Somebody makes room meanwhile.
    fn together(&mut self, groups: u64) -> Result<Vec<Duration>> {
        let (backend, way, hands) = (&*self.backend, self.way, &mut self.hands);
        let done = AtomicBool::new(way == Way::Read);
        std::thread::scope(|scope| {
            let evictor = Builder::new().spawn_scoped(scope, || evict(backend, &done))?;
            let ends = Ends(&done);
            let work = hands.iter_mut().map(|hand| {
                let work = move || hand.work(backend, way, groups);
                Builder::new().spawn_scoped(scope, work)
            });
            let work: Vec<_> = work.collect::<std::io::Result<_>>()?;
            let took = work.into_iter().map(|hand| hand.join().expect("a hand panicked"));
            let took: Vec<Result<Vec<Duration>>> = took.collect();
            drop(ends);
            evictor.join().expect("the evictor panicked")?;
            Ok(took.into_iter().collect::<Result<Vec<_>>>()?.concat())
        })
    }

    /// That what was loaded last is what was kept.
    pub(crate) fn check(&self) -> Result<()> {
        self.hands.iter().try_for_each(Hand::check)
    }
}

/// Says that everything is done, whatever happened.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Makes room until everything is done.
fn evict(backend: &dyn Backend, done: &AtomicBool) -> Result<()> {
    let limit = backend.usage().limit;
    let [high, low] = MARKS.map(|percent| limit / 100 * percent);
    while !done.load(Ordering::Relaxed) {
        let promised = backend.promised();
        if promised <= high {
            std::thread::sleep(LOOK);
            continue;
        }
        let ticket = backend.unlink(promised - low).context("nothing can be evicted")?;
        ticket.finish(WAIT)?;
    }
    Ok(())
}

impl Hand {
    fn new(number: u64, size: u64, group: usize) -> Self {
        let stride = extent_bytes(size) as usize;
        let size = size as usize;
        let mut values = Room::new(stride * group);
        values.set_len(stride * group);
        for (i, line) in values.chunks_mut(64).enumerate() {
            line.fill(i as u8 | 1);
            line[..8].copy_from_slice(&(i as u64 + (number << 32)).to_le_bytes());
        }
        let seals = (0..group).map(|i| seal_of(&values[i * stride..][..size])).collect();
        Self { number, size, values, seals, into: Vec::new(), records: 0 }
    }

    fn make_room(&mut self, disk: &Arc<dyn Disk>) {
        self.into = self.seals.iter().map(|_| Room::new(self.size)).collect();
        for room in &mut self.into {
            room.set_len(self.size);
            // Nobody else uses the disk, and it goes together with this memory.
            disk.register(Arc::new(()), room.as_ptr().addr(), room.len());
        }
    }

    /// What each group took.
    fn work(&mut self, backend: &dyn Backend, way: Way, groups: u64) -> Result<Vec<Duration>> {
        let mut took = Vec::with_capacity(groups as usize);
        for group in 0..groups {
            let before = boottime();
            match way {
                Way::Write => self.keep(backend)?,
                Way::Read => self.load(backend, group)?,
            }
            took.push(boottime().since(before));
        }
        Ok(took)
    }

    fn id(&self, sequence: u64) -> RecordId {
        let sequence = sequence * HANDS + self.number;
        RecordId { object: ObjectId { epoch: LeaderEpoch(1), sequence }, stripe: 0 }
    }

    /// Of the records of a group: each has its own, as each has its own key.
    fn labels(&self, first: u64) -> Vec<[u8; LABEL_BYTES]> {
        let label = |sequence| {
            let mut label = [b'-'; LABEL_BYTES];
            label[..8].copy_from_slice(&self.id(sequence).object.sequence.to_le_bytes());
            label
        };
        (first..).take(self.seals.len()).map(label).collect()
    }

    /// Keeps a group; what finds no room is kept when there is some.
    fn keep(&mut self, backend: &dyn Backend) -> Result<()> {
        let stride = extent_bytes(self.size as u64) as usize;
        let first = self.records;
        self.records += self.seals.len() as u64;
        let labels = self.labels(first);
        let mut records: Vec<_> = (self.seals.iter().zip(&labels).enumerate())
            .map(|(i, (&seal, label))| NewRecord {
                id: self.id(first + i as u64),
                label,
                seal,
                value: &self.values[i * stride..][..self.size],
            })
            .collect();
        let deadline = boottime().deadline_in(ROOM_TIME);
        loop {
            let mut kept = backend.keep(&records).into_iter();
            let mut failed = Ok(());
            records.retain(|_| match kept.next() {
                Some(Ok(())) => false,
                Some(Err(error)) => {
                    failed = Err(error);
                    true
                }
                None => true,
            });
            match failed {
                Ok(()) => return Ok(()),
                Err(KeepError::Full { .. }) if !deadline.left(boottime()).is_zero() => {
                    std::thread::sleep(LOOK);
                }
                Err(error) => return Err(error).context("a record was not kept"),
            }
        }
    }

    fn load(&mut self, backend: &dyn Backend, group: u64) -> Result<()> {
        let first = group * self.into.len() as u64;
        let ids: Vec<_> = (0..self.into.len() as u64).map(|i| self.id(first + i)).collect();
        let labels = self.labels(first);
        let len = self.size as u64;
        let mut loads: Vec<_> = (self.into.iter_mut().zip(&self.seals).zip(ids).zip(&labels))
            .map(|(((into, &seal), id), label)| Load {
                id,
                label,
                len,
                seal,
                start: 0,
                want: len,
                into,
                sums: None,
                result: Ok(()),
            })
            .collect();
        backend.load(&mut loads);
        loads.into_iter().try_for_each(|load| load.result).context("a record was not loaded")
    }

    fn check(&self) -> Result<()> {
        let stride = extent_bytes(self.size as u64) as usize;
        for (i, into) in self.into.iter().enumerate() {
            ensure!(into[..] == self.values[i * stride..][..self.size], "WRONG BYTES in value {i}");
        }
        Ok(())
    }
}
