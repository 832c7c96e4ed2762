//! Backends: groups of records that are kept, and loaded again, with all that is verified on the way.
//! Several hands work side by side on one backend, as the threads of a node do.

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
use std::thread::Builder;
use std::time::Duration;

/// As long as a label in use is.
const LABEL_BYTES: usize = 85;
/// Beside the bytes of values; a bucket goes as a whole.
const SLACK: u64 = 768 << 20;
/// Loads under way are none of ours: nothing is waited for.
const WAIT: Duration = Duration::from_secs(10);

/// A backend, and who works on it.
pub(crate) struct Kept {
    backend: Arc<dyn Backend>,
    hands: Vec<Hand>,
    /// Bytes that a lap keeps.
    lap_bytes: u64,
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
    /// Values of `size` in groups of `group`, `bytes` in a lap. Loads find as much to load.
    pub(crate) fn new(
        disk: &Arc<dyn Disk>,
        kind: Kind,
        way: Way,
        (size, group, bytes): (u64, usize, u64),
    ) -> Result<Self> {
        // Room for a lap, for the one that goes, and for what is rounded up.
        let config = Config::new(kind, 2 * bytes + bytes / 2 + SLACK);
        let (backend, _) = mooncrate_ssd::open(Arc::clone(disk), &config, &mut drop, &mut drop)?;
        let mut hands: Vec<Hand> =
            (0..HANDS).map(|number| Hand::new(number, size, group)).collect();
        if way == Way::Read {
            let groups = bytes / HANDS / (size * group as u64);
            for hand in &mut hands {
                hand.make_room(disk);
                (0..groups).try_for_each(|_| hand.keep(&*backend))?;
            }
        }
        Ok(Self { backend, hands, lap_bytes: bytes, way })
    }

    /// Makes room for a lap, which does not count.
    fn evict(&self) -> Result<()> {
        loop {
            let usage = self.backend.usage();
            let need = self.lap_bytes + self.lap_bytes / 4 + SLACK / 2;
            if usage.limit - usage.used >= need {
                return Ok(());
            }
            let ticket = self.backend.unlink(need).context("nothing can be evicted")?;
            ticket.finish(WAIT)?;
        }
    }

    /// One lap, of so many groups for each hand.
    pub(crate) fn lap(&mut self, groups: u64, watch: &mut Watch) -> Result<()> {
        if self.way == Way::Write {
            self.evict()?;
        }
        let (backend, way, hands) = (&*self.backend, self.way, &mut self.hands);
        watch.together(|| {
            std::thread::scope(|scope| {
                let work = hands.iter_mut().map(|hand| {
                    let work = move || hand.work(backend, way, groups);
                    Builder::new().spawn_scoped(scope, work)
                });
                let work: Vec<_> = work.collect::<std::io::Result<_>>()?;
                let took = work.into_iter().map(|hand| hand.join().expect("a hand panicked"));
                let took: Vec<Vec<Duration>> = took.collect::<Result<_>>()?;
                Ok(took.concat())
            })
        })
    }

    /// That what was loaded last is what was kept.
    pub(crate) fn check(&self) -> Result<()> {
        self.hands.iter().try_for_each(Hand::check)
    }
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

    fn keep(&mut self, backend: &dyn Backend) -> Result<()> {
        let stride = extent_bytes(self.size as u64) as usize;
        let labels = self.labels(self.records);
        let records: Vec<_> = (self.seals.iter().zip(&labels).enumerate())
            .map(|(i, (&seal, label))| NewRecord {
                id: self.id(self.records + i as u64),
                label,
                seal,
                value: &self.values[i * stride..][..self.size],
            })
            .collect();
        let kept: Result<Vec<()>, KeepError> = backend.keep(&records).into_iter().collect();
        self.records += records.len() as u64;
        kept.context("a record was not kept").map(drop)
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
