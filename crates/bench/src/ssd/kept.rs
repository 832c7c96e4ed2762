//! Backends: groups of records that are kept, and loaded again, with all that is verified on the way.
//! Several hands work side by side on one backend, as the threads of a node do: who is done takes the next group.
//! Who keeps finds a full disk; a thread evicts meanwhile, between the marks of a node, without a master to tell.

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
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Builder;
use std::time::Duration;

/// As long as a label in use is.
const LABEL_BYTES: usize = 85;
/// Laps that a disk has room for.
const LAPS: u64 = 6;
/// How often all of a disk is written before the first round: files come and go until there are as many as it takes.
const FILLS: u64 = 2;
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
    /// What each hand keeps.
    values: Vec<Values>,
    hands: Vec<Hand>,
    way: Way,
}

/// Values of a group, in memory that lies as in a segment.
struct Values {
    size: usize,
    room: Room,
    seals: Vec<Seal>,
}

/// Of a record, with its label.
type Name = (RecordId, [u8; LABEL_BYTES]);

/// One thread's part.
struct Hand {
    number: usize,
    /// Groups that it kept so far: each has new names.
    groups: u64,
    /// Memory to load into.
    into: Vec<Room>,
    /// Whose values were loaded last, if any were.
    from: Option<usize>,
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
        let values: Vec<Values> =
            (0..HANDS).map(|number| Values::new(number, size, group)).collect();
        let mut hands: Vec<Hand> = (0..values.len()).map(Hand::new).collect();
        let groups = bytes / (size * group as u64);
        if way == Way::Read {
            for (hand, values) in hands.iter_mut().zip(&values) {
                hand.make_room(values);
                (0..groups / HANDS).try_for_each(|_| hand.keep(&*backend, values))?;
            }
        }
        let mut this = Self { backend, values, hands, way };
        if way == Way::Write {
            (0..FILLS * LAPS).try_for_each(|_| this.together(groups).map(drop))?;
        }
        Ok(this)
    }

    /// One lap, of so many groups.
    pub(crate) fn lap(&mut self, groups: u64, watch: &mut Watch) -> Result<()> {
        watch.together(|| self.together(groups))
    }

    /// What each group took. Somebody makes room meanwhile.
    fn together(&mut self, groups: u64) -> Result<Vec<Duration>> {
        let (backend, way) = (&*self.backend, self.way);
        let (hands, values) = (&mut self.hands, self.values.as_slice());
        let done = AtomicBool::new(way == Way::Read);
        let next = AtomicU64::new(0);
        // Relaxed: a count.
        let take = || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|group| *group < groups);
        std::thread::scope(|scope| {
            let evictor = Builder::new().spawn_scoped(scope, || evict(backend, &done))?;
            let ends = Ends(&done);
            let work = hands.iter_mut().map(|hand| {
                let work = move || hand.work(backend, way, values, take);
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
        let mut loaded = self.hands.iter().filter_map(|hand| Some((hand, hand.from?)));
        loaded.try_for_each(|(hand, from)| hand.check(&self.values[from]))
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

impl Values {
    fn new(number: u64, size: u64, group: usize) -> Self {
        let stride = extent_bytes(size) as usize;
        let size = size as usize;
        let mut room = Room::new(stride * group);
        room.set_len(stride * group);
        for (i, line) in room.chunks_mut(64).enumerate() {
            line.fill(i as u8 | 1);
            line[..8].copy_from_slice(&(i as u64 + (number << 32)).to_le_bytes());
        }
        let seals = (0..group).map(|i| seal_of(&room[i * stride..][..size])).collect();
        Self { size, room, seals }
    }

    fn value(&self, number: usize) -> &[u8] {
        let stride = extent_bytes(self.size as u64) as usize;
        &self.room[number * stride..][..self.size]
    }

    /// Names of the values of a group that a hand kept: each has its own, as each has its own key.
    fn names(&self, hand: usize, group: u64) -> Vec<Name> {
        let count = self.seals.len() as u64;
        let name = |number| {
            let sequence = (group * count + number) * HANDS + hand as u64;
            let object = ObjectId { epoch: LeaderEpoch(1), sequence };
            let mut label = [b'-'; LABEL_BYTES];
            label[..8].copy_from_slice(&sequence.to_le_bytes());
            (RecordId { object, stripe: 0 }, label)
        };
        (0..count).map(name).collect()
    }
}

impl Hand {
    fn new(number: usize) -> Self {
        Self { number, groups: 0, into: Vec::new(), from: None }
    }

    fn make_room(&mut self, values: &Values) {
        self.into = values.seals.iter().map(|_| Room::new(values.size)).collect();
        self.into.iter_mut().for_each(|room| room.set_len(values.size));
    }

    /// Works as long as there are groups to take. What each of them took.
    fn work(
        &mut self,
        backend: &dyn Backend,
        way: Way,
        values: &[Values],
        take: impl Fn() -> Option<u64>,
    ) -> Result<Vec<Duration>> {
        let mut took = Vec::new();
        while let Some(group) = take() {
            let before = boottime();
            match way {
                Way::Write => self.keep(backend, &values[self.number])?,
                Way::Read => {
                    let from = (group % HANDS) as usize;
                    self.from = Some(from);
                    let names = values[from].names(from, group / HANDS);
                    self.load(backend, &values[from], &names)?;
                }
            }
            took.push(boottime().since(before));
        }
        Ok(took)
    }

    /// Keeps a group; what finds no room is kept when there is some.
    fn keep(&mut self, backend: &dyn Backend, values: &Values) -> Result<()> {
        let names = values.names(self.number, self.groups);
        self.groups += 1;
        let mut records: Vec<_> = (names.iter().zip(&values.seals).enumerate())
            .map(|(i, ((id, label), &seal))| {
                let (id, value) = (*id, values.value(i));
                NewRecord { id, label, seal, value }
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

    fn load(&mut self, backend: &dyn Backend, values: &Values, names: &[Name]) -> Result<()> {
        let len = values.size as u64;
        let mut loads: Vec<_> = (self.into.iter_mut().zip(&values.seals).zip(names))
            .map(|((into, &seal), (id, label))| Load {
                id: *id,
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

    fn check(&self, values: &Values) -> Result<()> {
        for (i, into) in self.into.iter().enumerate() {
            ensure!(into[..] == *values.value(i), "WRONG BYTES in value {i}");
        }
        Ok(())
    }
}
