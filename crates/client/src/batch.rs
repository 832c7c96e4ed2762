//! Batches: one call for many keys, one result per key at its own index (G11).

use crate::client::Client;
use crate::error::Error;
use crate::get::{Source, doubt, patience, share};
use crate::put::{Stored, spread};
use crate::reads::Remembered;
use crate::stripes::{PARALLEL_BYTES_MIN, in_parallel};
use crate::wishes::Wishes;
use mooncrate_core::SegmentId;
use mooncrate_core::error::GetError;
use mooncrate_core::key;
use mooncrate_core::plan::{Located, Locator, Medium};
use mooncrate_core::time::{Deadline, Now};
use mooncrate_lock::Mutex;
use mooncrate_mem::clock::boottime;
use mooncrate_rt as rt;
use mooncrate_transfer::{Path, Read, TransferError};
use mooncrate_wire::DataError;
use mooncrate_wire::master_link::frames;
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// Where keys are, as far as that is known.
type Places = Vec<Option<Located>>;

/// What became of a key that has no place: no value, or an error. `None`: look again.
type Decided = Option<Result<(), Error>>;

/// The copies of a value, and in which order they are tried.
struct Copies<'a> {
    copies: &'a [Locator],
    /// `None`: as they stand.
    order: Option<Vec<usize>>,
}

impl Copies<'_> {
    fn count(&self) -> usize {
        self.order.as_ref().map_or(self.copies.len(), Vec::len)
    }

    /// The copy that is tried in this round.
    fn copy(&self, round: usize) -> Option<usize> {
        match &self.order {
            None => (round < self.copies.len()).then_some(round),
            Some(order) => order.get(round).copied(),
        }
    }

    /// Orders those that were not tried before this round as `newer` says; which may leave some out.
    fn reorder(&mut self, round: usize, newer: Option<Vec<usize>>) {
        let Some(newer) = newer else { return };
        let tried: Vec<usize> = (0..round).filter_map(|round| self.copy(round)).collect();
        let rest = newer.into_iter().filter(|copy| !tried.contains(copy));
        self.order = Some(tried.iter().copied().chain(rest).collect());
    }
}

/// Reads from one owner.
struct Group<'a> {
    first: Locator,
    /// Whether all of them can be read elsewhere.
    elsewhere: bool,
    /// Which value of the batch, and which copy of it.
    items: Vec<(usize, usize)>,
    reads: Mutex<Vec<Read<'a>>>,
}

/// Threads that copy the values of one batch out of mapped memory: one core copies a third of what memory gives,
/// and half of the cores are left to others.
fn copiers() -> usize {
    static CORES: LazyLock<usize> = LazyLock::new(rt::cores);
    (*CORES / 2).clamp(1, 4)
}

/// Deals reads out of mapped memory to so many copiers, as far as each has enough to do for a thread to pay; to how
/// many.
fn dealt(groups: Vec<Group<'_>>, copiers: usize) -> (Vec<Group<'_>>, usize) {
    let bytes = |group: &Group<'_>| group.reads.lock().iter().map(|read| read.len).sum::<u64>();
    let all: u64 = groups.iter().map(bytes).sum();
    let lanes = usize::try_from(all / PARALLEL_BYTES_MIN).unwrap_or(copiers).min(copiers);
    if lanes <= 1 {
        return (groups, 1);
    }
    let mut dealt = Vec::new();
    for group in groups {
        let Group { first, elsewhere, items, reads } = group;
        let each = items.len().div_ceil(lanes);
        let (mut items, mut reads) = (items.into_iter(), reads.into_inner().into_iter());
        while items.len() > 0 {
            let some = items.by_ref().take(each).collect();
            let reads = Mutex::new(reads.by_ref().take(each).collect());
            dealt.push(Group { first, elsewhere, items: some, reads });
        }
    }
    (dealt, lanes)
}

impl Client {
    /// Stores values.
    pub fn put_batch(&self, items: &[(&[u8], &[u8])]) -> Vec<Result<Stored, Error>> {
        let values: Vec<[&[u8]; 1]> = items.iter().map(|(_, value)| [*value]).collect();
        let parts: Vec<(&[u8], &[&[u8]])> =
            items.iter().zip(&values).map(|((key, _), value)| (*key, &value[..])).collect();
        self.put_many(&parts, (&self.put_config).into())
    }

    /// Stores values that lie in pieces, all with the same wishes but for their groups. However many groups there
    /// are, the master is asked as often as without any.
    pub fn put_parts_batch<'w>(
        &self,
        items: &[(&[u8], &[&[u8]])],
        wishes: impl Into<Wishes<'w>>,
    ) -> Vec<Result<Stored, Error>> {
        self.put_many(items, wishes.into())
    }

    /// The values of many keys. All unknown places are asked for in one call, and reads from one
    /// node travel together.
    pub fn get_batch(&self, keys: &[&[u8]]) -> Vec<Result<Option<Vec<u8>>, Error>> {
        self.get_batch_with(keys, |len| vec![0; len])
    }

    /// The same in memory that `make` gives once a length is known: as long as it is asked to be, or
    /// that read fails.
    pub fn get_batch_with<B: AsMut<[u8]>>(
        &self,
        keys: &[&[u8]],
        mut make: impl FnMut(usize) -> B,
    ) -> Vec<Result<Option<B>, Error>> {
        let deadline = self.deadline();
        let (located, mut decided) = self.places(keys, deadline);
        let mut values: Vec<Option<B>> =
            located.iter().map(|l| Some(make(l.as_ref()?.len() as usize))).collect();
        let done = self.read_copies(keys, &located, &mut values, deadline);
        let patience = patience(deadline);
        keys.iter()
            .zip(values)
            .zip(done)
            .enumerate()
            .map(|(at, ((key, value), done))| match (value, done, decided[at].take()) {
                (Some(value), true, _) => Ok(Some(value)),
                (_, _, Some(decided)) => decided.map(|()| None),
                // Whatever went wrong, alone and with all its retries it is decided properly, but
                // within the time of the whole.
                _ => self.get_by(key, deadline, Some(patience), &mut make),
            })
            .collect()
    }

    /// Copies the values of many keys into the fronts of their targets; their lengths.
    pub fn get_into_batch(
        &self,
        items: &mut [(&[u8], &mut [u8])],
    ) -> Vec<Result<Option<usize>, Error>> {
        let deadline = self.deadline();
        let keys: Vec<&[u8]> = items.iter().map(|(key, _)| *key).collect();
        let (mut located, mut decided) = self.places(&keys, deadline);
        for (place, (_, target)) in located.iter_mut().zip(items.iter()) {
            // What does not fit is decided alone: the length may come from an old locator.
            place.take_if(|found| found.len() > target.len() as u64);
        }
        let lens: Vec<usize> =
            located.iter().map(|l| l.as_ref().map_or(0, |l| l.len() as usize)).collect();
        let mut fronts: Vec<Option<&mut [u8]>> = items
            .iter_mut()
            .zip(&located)
            .zip(&lens)
            .map(|(((_, target), found), len)| found.as_ref().map(|_| &mut target[..*len]))
            .collect();
        let done = self.read_copies(&keys, &located, &mut fronts, deadline);
        let patience = patience(deadline);
        let each = items.iter_mut().zip(lens).zip(done).enumerate();
        each.map(|(at, (((key, target), len), done))| {
            if done {
                return Ok(Some(len));
            }
            if let Some(decided) = decided[at].take() {
                return decided.map(|()| None);
            }
            self.get_into_by(key, target, deadline, Some(patience))
        })
        .collect()
    }

    /// Reads what was located, from its first copies, then from the second ones, and so on; which of
    /// them worked.
    fn read_copies<B: AsMut<[u8]>>(
        &self,
        keys: &[&[u8]],
        located: &[Option<Located>],
        values: &mut [Option<B>],
        deadline: Deadline,
    ) -> Vec<bool> {
        let mut done = vec![false; keys.len()];
        // A striped value is read alone: its stripes travel at the same time.
        let whole = |located: &&Located| located.striping.stripes() == 1;
        let mut plans: Vec<Copies<'_>> = located
            .iter()
            .map(|located| {
                let copies = located.as_ref().filter(whole).map_or(&[][..], |l| &l.replicas);
                Copies { copies, order: self.order(copies, false) }
            })
            .collect();
        let rounds = plans.iter().map(Copies::count).max().unwrap_or(0);
        for round in 0..rounds {
            // One more share than there are copies: for those whose places are stale.
            let deadline = share(deadline, rounds + 1 - round);
            for index in self.read_round(located, &plans, round, values, &mut done, deadline) {
                let located = located[index].as_ref().expect("it was read from there");
                let copy = plans[index].copy(round).expect("it was read from there");
                self.prefer(keys[index], located, 0, copy);
            }
            // What this round has learnt about owners counts for the next one.
            for (plan, done) in plans.iter_mut().zip(&done) {
                if !done {
                    plan.reorder(round + 1, self.order(plan.copies, false));
                }
            }
        }
        done
    }

    /// Places of keys, from the cache or from the master. What has none may be decided all the same: there
    /// is no value (`Ok`), or there is no master to ask.
    pub(crate) fn places(&self, keys: &[&[u8]], deadline: Deadline) -> (Places, Vec<Decided>) {
        let mut decided: Vec<Decided> = keys.iter().map(|_| None).collect();
        let mut reads = Remembered::default();
        let mut located: Places =
            keys.iter().map(|key| self.remembered(key::hash(key), key, &mut reads)).collect();
        self.tell_reads(reads);
        let unknown: Vec<usize> = (0..keys.len()).filter(|i| located[*i].is_none()).collect();
        // A client that may fall back on what it knows leaves time for it.
        let until = if self.config.holds { share(deadline, 2) } else { deadline };
        // One frame that is not answered takes no answer away from the others.
        for unknown in frames(&unknown, |index| keys[*index]) {
            let ask: Vec<&[u8]> = unknown.iter().map(|index| keys[*index]).collect();
            let asked = boottime();
            match self.ask_places(&ask, until) {
                Ok(found) => {
                    for (&index, found) in unknown.iter().zip(found) {
                        let place = (&mut located[index], &mut decided[index]);
                        self.place_found(keys[index], found, place, (asked, deadline));
                    }
                }
                Err(error) => {
                    for &index in unknown {
                        let hash = key::hash(keys[index]);
                        located[index] = self.known_anyway(hash, keys[index], &error);
                    }
                    // Asking for each alone would wait for the same master as often as there are keys.
                    let lost = unknown.iter().filter(|index| located[**index].is_none());
                    let lost: Vec<usize> = lost.copied().collect();
                    for (index, error) in lost.iter().zip(spread(error, lost.len())) {
                        decided[*index] = Some(error);
                    }
                }
            }
        }
        (located, decided)
    }

    /// Takes the master's word on where a key is.
    fn place_found(
        &self,
        key: &[u8],
        found: Result<Located, GetError>,
        (located, decided): (&mut Option<Located>, &mut Decided),
        (asked, deadline): (Now, Deadline),
    ) {
        match found {
            Ok(found) => {
                *located = Some(self.remember(key::hash(key), key, found, asked, deadline));
            }
            Err(GetError::NotFound) => {
                self.counters.at(key::hash(key).0).misses.one();
                *decided = Some(Ok(()));
            }
            // With its retries it is decided alone.
            Err(_) => {}
        }
    }

    /// Reads one copy of each that is not done, and notes and says which of them worked. Those of one owner
    /// travel together; owners are asked side by side, so one that stands still takes the time of nobody else.
    fn read_round<B: AsMut<[u8]>>(
        &self,
        located: &[Option<Located>],
        plans: &[Copies<'_>],
        round: usize,
        values: &mut [Option<B>],
        done: &mut [bool],
        deadline: Deadline,
    ) -> Vec<usize> {
        let mut groups: BTreeMap<(SegmentId, bool), Group<'_>> = BTreeMap::new();
        for (index, value) in values.iter_mut().enumerate().filter(|(index, _)| !done[*index]) {
            let Some(copy) = plans[index].copy(round) else { continue };
            let whole = located[index].as_ref().expect("it has copies");
            let at = whole.replicas[copy];
            let elsewhere = round + 1 < plans[index].count();
            let into = value.as_mut().expect("made for every place").as_mut();
            let group = groups.entry((at.segment, elsewhere)).or_insert_with(|| Group {
                first: at,
                elsewhere,
                items: Vec::new(),
                reads: Mutex::default(),
            });
            group.items.push((index, copy));
            group.reads.get_mut().push(Read::new(at, whole.len(), whole.seal, into));
        }
        let groups = groups.into_values().collect::<Vec<_>>();
        let (waiting, at_once): (Vec<_>, Vec<_>) =
            groups.into_iter().partition(|group| self.engine.waits(&group.first));
        let (at_once, threads) = dealt(at_once, copiers());
        let mut paths = in_parallel(&at_once, threads, |group| self.read_group(group, deadline));
        let most = self.config.parallel_max;
        paths.extend(in_parallel(&waiting, most, |group| self.read_group(group, deadline)));
        let mut all_worked = Vec::new();
        for (group, path) in at_once.into_iter().chain(waiting).zip(paths) {
            let Some(path) = path else { continue };
            let disk = group.first.segment.medium() == Medium::Ssd;
            for ((index, copy), read) in group.items.into_iter().zip(group.reads.into_inner()) {
                if read.result.is_ok() {
                    done[index] = true;
                    let located = located[index].as_ref().expect("it was read from there");
                    self.count(located, Source { path, copy, disk });
                    all_worked.push(index);
                }
            }
        }
        all_worked
    }

    /// One exchange with one owner; over which path, unless there was none.
    fn read_group(&self, group: &Group<'_>, deadline: Deadline) -> Option<Path> {
        let transport = match self.way(&group.first, group.elsewhere, false, deadline) {
            Ok(transport) => transport,
            Err(error) => {
                self.owners.note(&group.first, Some(&error));
                return None;
            }
        };
        // Nobody else has this group: the lock only says so to the compiler.
        let reads = &mut *group.reads.lock();
        transport.read(reads, deadline);
        if transport.path().waits(&group.first) {
            let errors = reads.iter().filter_map(|read| read.result.as_ref().err());
            // One item's silence is the owner's; what was not tried behind it says nothing.
            let silence = errors.clone().find(|error| error.silence().is_some());
            self.owners.note(&group.first, silence.or(errors.clone().next()));
        }
        let corrupt = |read: &&mut Read<'_>| {
            matches!(read.result, Err(TransferError::Data(DataError::Corrupt)))
        };
        for read in reads.iter_mut().filter(corrupt) {
            self.counters.at(read.locator.slot.0.into()).corrupt.one();
            // Whatever comes of it: the value is read elsewhere, or alone.
            let _ = doubt(&*transport, &read.locator, read.seal, deadline);
        }
        Some(transport.path())
    }

    /// How the owner of a key is reached, for tools.
    pub fn path(&self, key: &[u8]) -> Result<Option<Path>, Error> {
        let deadline = self.deadline();
        self.find(key, deadline, |located| {
            let first = located.replicas.first();
            let locator = first.ok_or(TransferError::NoRoute)?;
            Ok(self.engine.transport(locator, deadline)?.path())
        })
    }
}
