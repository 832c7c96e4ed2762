//! get: find, read, verify. A stale locator is looked up once more; a copy that does not verify or
//! does not answer is passed over for the next one.

use crate::client::Client;
use crate::error::Error;
use crate::owners::HASTE;
use crate::reads::Remembered;
use crate::stripes::in_parallel;
use mooncrate_core::error::GetError;
use mooncrate_core::health::Standing;
use mooncrate_core::ids::ObjectId;
use mooncrate_core::key::{self, KeyHash};
use mooncrate_core::lease;
use mooncrate_core::plan::{Located, Locator, Medium};
use mooncrate_core::seal::Seal;
use mooncrate_core::time::{Deadline, Now};
use mooncrate_lock::{Mutex, interrupt};
use mooncrate_mem::clock::boottime;
use mooncrate_transfer::{Path, Read, TransferError, Transport, View};
use mooncrate_wire::DataError;
use std::sync::Arc;
use std::time::Duration;

/// How often an object is looked for at once when it keeps moving.
const TRIES_AT_ONCE: u32 = 4;
/// How long it is looked for after that, with pauses. An owner that came back with new memory is known
/// to its master after some milliseconds, and so is a life that the owner itself has ended; until then
/// the master names a place where nothing is, and what the caller wants to hear is the miss after it.
const RESTLESS_TIME: Duration = Duration::from_millis(500);
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// Where a value came from: over which path, and from the copy at which place in the order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    pub(crate) path: Path,
    pub(crate) copy: usize,
    /// Its owner had to load it.
    pub(crate) disk: bool,
}

impl Source {
    /// Where a value came from whose stripes came from there.
    pub(crate) fn of_stripes(stripes: Vec<Self>) -> Self {
        let disk = stripes.iter().any(|from| from.disk);
        let last = stripes.into_iter().max_by_key(|from| from.copy);
        Self { disk, ..last.expect("a value has a stripe") }
    }
}

/// A stripe that is to be read.
#[derive(Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) located: &'a Located,
    pub(crate) stripe: u8,
    /// Whether its owner is asked also where its memory is mapped.
    pub(crate) asks: bool,
}

impl Client {
    /// The value of a key, or `None` if there is none.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.get_with(key, |len| vec![0; len])
    }

    /// The same in memory that `make` gives once the length is known: as long as it is asked to be, or
    /// the read fails. It may be asked again, where a value has moved meanwhile.
    pub fn get_with<B: AsMut<[u8]>>(
        &self,
        key: &[u8],
        make: impl FnMut(usize) -> B,
    ) -> Result<Option<B>, Error> {
        self.get_by(key, self.deadline(), None, make)
    }

    pub(crate) fn get_by<B: AsMut<[u8]>>(
        &self,
        key: &[u8],
        end: Deadline,
        patience: Option<Deadline>,
        mut make: impl FnMut(usize) -> B,
    ) -> Result<Option<B>, Error> {
        self.find_by(key, end, patience, |located| {
            let mut value = make(located.len() as usize);
            self.read(key, located, value.as_mut(), end)?;
            Ok(value)
        })
    }

    /// Copies the value into the front of `target`; its length, or `None` if there is no value.
    pub fn get_into(&self, key: &[u8], target: &mut [u8]) -> Result<Option<usize>, Error> {
        self.get_into_by(key, target, self.deadline(), None)
    }

    pub(crate) fn get_into_by(
        &self,
        key: &[u8],
        target: &mut [u8],
        end: Deadline,
        patience: Option<Deadline>,
    ) -> Result<Option<usize>, Error> {
        let have = target.len() as u64;
        let found = self.find_by(key, end, patience, |located| {
            let need = located.len();
            if need > have {
                // Not the last word if the length comes from a locator that we remembered.
                return Err(TransferError::Length { need, have });
            }
            let len = need as usize;
            self.read(key, located, &mut target[..len], end)?;
            Ok(len)
        });
        found.map_err(|error| match error {
            Error::Transfer(TransferError::Length { need, have }) => {
                Error::BufferTooSmall { need, have }
            }
            other => other,
        })
    }

    /// The value in place, without a copy where the owner is in this process or on this host;
    /// `None` if there is no value. The bytes stay while the view lives.
    pub fn view(&self, key: &[u8]) -> Result<Option<View>, Error> {
        let end = self.deadline();
        self.find(key, end, |located| {
            if located.striping.stripes() == 1 {
                // A pin is asked for, also where the memory is mapped.
                let wanted = Wanted { key, located, stripe: 0, asks: true };
                let (shown, from) = self.try_copies(&wanted, end, |transport, at, deadline| {
                    transport.view(at, located.len(), located.seal, deadline)
                })?;
                if let Some(view) = shown {
                    self.count(located, from);
                    return Ok(view);
                }
            }
            // Over the network, or in stripes, there is nothing to look at in place: a copy.
            let mut value = vec![0; located.len() as usize];
            self.read(key, located, &mut value, end)?;
            Ok(View::owned(value))
        })
    }

    /// Bytes of the value, or `None` if there is none.
    pub fn size(&self, key: &[u8]) -> Result<Option<u64>, Error> {
        if let Some(len) = self.lengths_near(&[key])[0] {
            return Ok(Some(len));
        }
        let deadline = self.deadline();
        let located = self.locate(key, deadline)?;
        Ok(located.map(|located| {
            self.map_near(&located, deadline);
            located.len()
        }))
    }

    /// Asks that an object be neither evicted nor removed for `time`; until when that is promised, by
    /// this machine's `CLOCK_BOOTTIME`, or `None` if there is no value. At most 10 s; ask again to go on.
    pub fn lease(&self, key: &[u8], time: Duration) -> Result<Option<Now>, Error> {
        let before_sending = boottime();
        let wish_ms = u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
        let deadline = self.deadline();
        let mut found = self.master.locate(wish_ms, &[key], deadline)?;
        match found.pop().expect("one result per item") {
            Ok(located) => {
                let end = lease::holder_end(before_sending, located.lease_ms);
                self.remember(key::hash(key), key, located, before_sending, deadline);
                Ok(Some(end))
            }
            Err(GetError::NotFound) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Finds an object and does something with it; when its place was stale, finds it again.
    pub(crate) fn find<T>(
        &self,
        key: &[u8],
        deadline: Deadline,
        work: impl FnMut(&Located) -> Result<T, TransferError>,
    ) -> Result<Option<T>, Error> {
        self.find_by(key, deadline, None, work)
    }

    /// The same; an object that is not where the master says is looked for until `patience` ends, which
    /// a batch has once, or one lost node would use up the time of all its keys.
    pub(crate) fn find_by<T>(
        &self,
        key: &[u8],
        deadline: Deadline,
        patience: Option<Deadline>,
        mut work: impl FnMut(&Located) -> Result<T, TransferError>,
    ) -> Result<Option<T>, Error> {
        key::check(key).map_err(GetError::from)?;
        let hash = key::hash(key);
        let mut reads = Remembered::default();
        let mut located = self.remembered(hash, key, &mut reads);
        let mut asked = located.is_none();
        self.tell_reads(reads);
        let mut unrest = Unrest { tries: 0, pause: PAUSE_MIN, end: patience, object: None };
        // What was remembered and did not work, and why the master was not heard of it.
        let (mut tried, mut outage) = (None::<Located>, None);
        loop {
            let known = match located.take() {
                Some(cached) => Some(cached),
                None => match self.locate_hashed(hash, key, self.ask_until(hash, key, deadline)) {
                    Err(Error::Master(error)) => {
                        let cached = self.known_anyway(hash, key, &error);
                        // A place that has just failed proves nothing more.
                        let fresh = cached.filter(|at| {
                            tried.as_ref().is_none_or(|tried| tried.replicas != at.replicas)
                        });
                        let Some(fresh) = fresh else { return Err(error.into()) };
                        asked = true;
                        outage = Some(error);
                        Some(fresh)
                    }
                    found => found?,
                },
            };
            let Some(current) = known else {
                if let Some(tried) = tried {
                    self.cache.forget(hash, key, &tried);
                }
                self.counters.at(hash.0).misses.one();
                return Ok(None);
            };
            match work(&current) {
                Ok(result) => return Ok(Some(result)),
                Err(error) => {
                    // An owner that is only silent may come back, with what it holds.
                    if !error.is_silent() {
                        self.cache.forget(hash, key, &current);
                        for locator in &current.replicas {
                            self.engine.forget(locator.segment);
                        }
                    }
                    if let Some(outage) = outage {
                        return Err(outage.into());
                    }
                    // A fresh locator may help; a fresh one that fails the same way does not.
                    if asked && !error.is_stale() {
                        return Err(error.into());
                    }
                    self.counters.at(hash.0).stale.one();
                    asked = true;
                    let ended = matches!(error, TransferError::Data(DataError::Stale));
                    if ended && unrest.tries + 1 == TRIES_AT_ONCE {
                        self.doubt_place(&current, deadline);
                    }
                    if !unrest.goes_on(current.object, deadline) {
                        return Err(Error::Restless { tries: unrest.tries, last: error });
                    }
                    tried = Some(current);
                }
            }
        }
    }

    /// The master keeps naming a place where nothing is found. Its owners look, and tell the master if nothing
    /// was ever published there: a writer may have ended a put that it never wrote.
    fn doubt_place(&self, located: &Located, deadline: Deadline) {
        for locator in &located.replicas {
            let Some(seal) = located.seal_of(locator.stripe) else { continue };
            let way = self.way(locator, true, true, deadline);
            let _ = way.and_then(|transport| doubt(&*transport, locator, seal, deadline));
        }
    }

    /// Reads a value, each stripe from the first copy of it that verifies; several stripes at a time.
    pub(crate) fn read(
        &self,
        key: &[u8],
        located: &Located,
        into: &mut [u8],
        deadline: Deadline,
    ) -> Result<(), TransferError> {
        let stripes = located.striping.stripes();
        let from = if stripes == 1 {
            self.read_stripe(key, located, 0, into, deadline)?
        } else {
            let parts = into.chunks_mut(located.striping.stripe_bytes as usize);
            let parts: Vec<Mutex<&mut [u8]>> = parts.map(Mutex::new).collect();
            let numbers: Vec<u8> = (0..stripes as u8).collect();
            let read = in_parallel(&numbers, self.config.parallel_max, |&stripe| {
                // Nobody else has this stripe: the lock only says so to the compiler.
                let into = &mut **parts[usize::from(stripe)].lock();
                self.read_stripe(key, located, stripe, into, deadline)
            });
            let read = read.into_iter().collect::<Result<Vec<Source>, _>>()?;
            Source::of_stripes(read)
        };
        self.count(located, from);
        Ok(())
    }

    fn read_stripe(
        &self,
        key: &[u8],
        located: &Located,
        stripe: u8,
        into: &mut [u8],
        deadline: Deadline,
    ) -> Result<Source, TransferError> {
        let len = located.striping.stripe_len(stripe);
        let seal = located.seal_of(stripe).ok_or(DataError::Corrupt)?;
        let wanted = Wanted { key, located, stripe, asks: false };
        let ((), from) = self.try_copies(&wanted, deadline, |transport, locator, deadline| {
            let mut reads = [Read::new(*locator, len, seal, &mut *into)];
            transport.read(&mut reads, deadline);
            let [read] = reads;
            read.result
        })?;
        Ok(from)
    }

    /// Counts a value that was read.
    pub(crate) fn count(&self, located: &Located, from: Source) {
        self.counters.at(located.object.sequence).hit(from, located.len());
    }

    /// Tries the copies of a stripe until one works: those of sound owners in their order, then those of
    /// owners that were slow. One whose owner has not answered for long is not waited for. The copy that
    /// worked is the first to be tried next time.
    pub(crate) fn try_copies<T>(
        &self,
        wanted: &Wanted<'_>,
        deadline: Deadline,
        mut attempt: impl FnMut(&dyn Transport, &Locator, Deadline) -> Result<T, TransferError>,
    ) -> Result<(T, Source), TransferError> {
        let Wanted { key, located, stripe, asks } = *wanted;
        let mut last = TransferError::NotTried;
        let first = located.replicas.partition_point(|locator| locator.stripe < stripe);
        let of_stripe = located.replicas[first..].iter().take_while(|at| at.stripe == stripe);
        let copies = &located.replicas[first..first + of_stripe.count()];
        let order = self.order(copies, asks);
        if order.as_ref().is_some_and(Vec::is_empty) {
            return Err(TransferError::Silent);
        }
        let count = order.as_ref().map_or(copies.len(), Vec::len);
        for turn in 0..count {
            let copy = order.as_ref().map_or(turn, |order| order[turn]);
            let locator = &copies[copy];
            let disk = locator.segment.medium() == Medium::Ssd;
            let deadline = share(deadline, count - turn);
            let mut waits = true;
            let way = self.way(locator, turn + 1 < count, asks, deadline);
            let tried = way.and_then(|transport| {
                let path = transport.path();
                waits = asks || path.waits(locator);
                let mut read = attempt(&*transport, locator, deadline);
                if let Err(TransferError::Data(DataError::Corrupt)) = read {
                    self.counters.at(located.object.sequence).corrupt.one();
                    let seal = located.seal_of(stripe).ok_or(DataError::Corrupt)?;
                    doubt(&*transport, locator, seal, deadline)?;
                    read = attempt(&*transport, locator, deadline);
                }
                Ok((read?, Source { path, copy, disk }))
            });
            if waits {
                self.owners.note(locator, tried.as_ref().err());
            }
            match tried {
                Ok(done) => {
                    self.prefer(key, located, first, first + copy);
                    return Ok(done);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// The way to an owner. Who has somewhere else to go gives up when the owner is silent; but a disk may take
    /// its time, and memory that is mapped is not waited for. With `asks` its owner is.
    pub(crate) fn way(
        &self,
        locator: &Locator,
        elsewhere: bool,
        asks: bool,
        deadline: Deadline,
    ) -> Result<Arc<dyn Transport>, TransferError> {
        if !elsewhere || locator.segment.medium() == Medium::Ssd {
            return self.engine.transport(locator, deadline);
        }
        let soon = deadline.min(boottime().deadline_in(HASTE));
        let transport = self.engine.transport(locator, soon)?;
        let waits = asks || transport.path().waits(locator);
        Ok(if waits { transport.hasty(HASTE) } else { transport })
    }

    /// In which order copies are tried; `None`: as they stand. Copies of owners that are not waited for are
    /// left out. With `asks` an owner is asked also where its memory is mapped.
    pub(crate) fn order(&self, copies: &[Locator], asks: bool) -> Option<Vec<usize>> {
        if !self.owners.any() {
            return None;
        }
        let standing = |at: &Locator| {
            if asks || self.engine.waits(at) { self.owners.standing(at) } else { Standing::Sound }
        };
        let mut order: Vec<(Standing, usize)> =
            copies.iter().enumerate().map(|(copy, at)| (standing(at), copy)).collect();
        order.retain(|(standing, _)| *standing != Standing::Silent);
        order.sort_unstable();
        Some(order.into_iter().map(|(_, copy)| copy).collect())
    }

    /// Remembers that the copy at `worked` worked where those before it, from `first` on, did not.
    pub(crate) fn prefer(&self, key: &[u8], located: &Located, first: usize, worked: usize) {
        if worked > first {
            let mut better = located.clone();
            better.replicas.swap(first, worked);
            self.cache.insert(key::hash(key), key, &better, Now(0));
        }
    }

    /// Keeps a locator for the next get. The nearest copies come first; among equally near ones every
    /// client has an order of its own, so that the copies of a hot object share the load.
    /// `asked`: when the master was asked for it.
    pub(crate) fn remember(
        &self,
        hash: KeyHash,
        key: &[u8],
        mut located: Located,
        asked: Now,
        deadline: Deadline,
    ) -> Located {
        if located.replicas.len() > located.striping.stripes() {
            located.replicas.sort_by_cached_key(|at| {
                let turn = (at.segment.0 ^ self.turn).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                // A copy in memory, however far, is nearer than one on a disk.
                let distance = self.engine.distance(at, deadline);
                let medium = at.segment.medium();
                // The owner copies out of VRAM before it can answer.
                (at.stripe, medium == Medium::Ssd, distance, medium == Medium::Vram, turn)
            });
        }
        self.cache.insert(hash, key, &located, Self::hold_end(asked, located.lease_ms));
        located
    }

    fn locate(&self, key: &[u8], deadline: Deadline) -> Result<Option<Located>, Error> {
        key::check(key).map_err(GetError::from)?;
        self.locate_hashed(key::hash(key), key, deadline)
    }

    fn locate_hashed(
        &self,
        hash: KeyHash,
        key: &[u8],
        deadline: Deadline,
    ) -> Result<Option<Located>, Error> {
        let asked = boottime();
        let mut found = self.ask_places(&[key], deadline)?;
        match found.pop().expect("one result per item") {
            Ok(located) => Ok(Some(self.remember(hash, key, located, asked, deadline))),
            Err(GetError::NotFound) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// Until when one who begins now looks for an object that is not where the master says.
pub(crate) fn patience(deadline: Deadline) -> Deadline {
    boottime().deadline_in(RESTLESS_TIME).min(deadline)
}

/// An object that is not where the master says.
struct Unrest {
    tries: u32,
    pause: Duration,
    /// Set at the first need: a get that finds its value does not ask the clock.
    end: Option<Deadline>,
    /// The last value that was looked for.
    object: Option<ObjectId>,
}

impl Unrest {
    /// Whether it is worth another look; waits until then.
    fn goes_on(&mut self, object: ObjectId, deadline: Deadline) -> bool {
        self.tries += 1;
        if self.object.replace(object) != Some(object) {
            // A writer replaced the value while we read it. The next one is there already, and who
            // waits for a moment of rest beside a busy writer only meets it less often.
            self.pause = PAUSE_MIN;
            return self.tries < TRIES_AT_ONCE || !deadline.passed(boottime());
        }
        if self.tries < TRIES_AT_ONCE {
            return true;
        }
        let end = *self.end.get_or_insert_with(|| patience(deadline));
        if end.left(boottime()) <= self.pause {
            return false;
        }
        if interrupt::sleep(self.pause) {
            return false;
        }
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        true
    }
}

/// What one of `copies` may take of the time that is left: an owner that stands still must not use
/// up what the others need (G12).
pub(crate) fn share(deadline: Deadline, copies: usize) -> Deadline {
    if copies <= 1 {
        return deadline;
    }
    let now = boottime();
    let copies = u32::try_from(copies).unwrap_or(u32::MAX);
    now.deadline_in(deadline.left(now) / copies)
}

/// A copy did not add up here: its owner looks at it. Ok: it is good there, so the bytes went bad
/// on their way, and another read may fare better. Otherwise why not to read there again: stale, if
/// the owner has retired it or holds something else than the master says, so that the master is asked for
/// another copy and says so if there is none.
pub(crate) fn doubt(
    transport: &dyn Transport,
    locator: &Locator,
    seal: Seal,
    deadline: Deadline,
) -> Result<(), TransferError> {
    if locator.segment.medium() == Medium::Ssd {
        // Its owner has verified what it loaded, and retires what is bad without being told.
        return Err(DataError::Corrupt.into());
    }
    match transport.verify(locator, seal, deadline) {
        Ok(true) => Ok(()),
        Ok(false) => Err(DataError::Stale.into()),
        Err(error) if error.is_stale() => Err(error),
        // Nobody could look.
        Err(_) => Err(DataError::Corrupt.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unrest() -> Unrest {
        Unrest { tries: 0, pause: PAUSE_MIN, end: None, object: None }
    }

    fn object(sequence: u64) -> ObjectId {
        ObjectId { sequence, ..ObjectId::default() }
    }

    /// A reader beside a loop of upserts paused longer after each value that it missed, and gave up.
    #[test]
    fn a_value_that_is_replaced_is_looked_for_until_the_deadline() {
        let mut unrest = unrest();
        let deadline = boottime().deadline_in(Duration::from_hours(1));
        for n in 0..1_000 {
            assert!(unrest.goes_on(object(n), deadline));
            assert_eq!(unrest.pause, PAUSE_MIN);
        }
        assert!(!unrest.goes_on(object(1_000), boottime().deadline_in(Duration::ZERO)));
    }

    #[test]
    fn a_value_that_is_not_there_is_given_up() {
        let mut unrest = unrest();
        unrest.end = Some(boottime().deadline_in(Duration::from_millis(20)));
        let deadline = boottime().deadline_in(Duration::from_hours(1));
        let looks = (0..1_000).take_while(|_| unrest.goes_on(object(7), deadline)).count();
        assert!((TRIES_AT_ONCE as usize..1_000).contains(&looks), "{looks}");
    }
}
