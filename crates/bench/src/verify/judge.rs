//! Calls of the store, each told to an oracle before it is made and after it has answered.
//!
//! Own keys are judged by the whole rule book of `check`, because this process knows every put and
//! remove of them. Keys of other processes are judged by their stamps and by what their owner wrote
//! down (`bounds`): whole bytes of one put of that key, begun, and not over before the get began.

use crate::verify::bounds::Bounds;
use mooncrate::{Error, Stored};
use mooncrate_check::oracle::Counts;
use mooncrate_check::{Event, Got, OpId, Oracle, OracleConfig, PutId, What, payload};
use mooncrate_client::Error as ClientError;
use mooncrate_core::error::PutError;
use mooncrate_core::time::Now;
use mooncrate_core::{KeyHash, key};
use mooncrate_wire::clock::boottime;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

const SHARDS: u64 = 64;
/// When a put of unknown outcome has taken effect or never will: longer than a put may stay open, a
/// silent node may stay registered and a master may take to come back, together.
const UNKNOWN_SETTLES_AFTER: Duration = Duration::from_secs(90);
/// Violations kept in words; all are counted.
const TOLD_MAX: usize = 20;

/// A process of a run: its number is in the names and in the bytes of all it puts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Author {
    pub(crate) run: u16,
    pub(crate) client: u16,
}

/// The name of a key, from which everybody sees whose it is.
pub(crate) fn key_name(run: u16, client: u16, number: u64) -> Vec<u8> {
    format!("v/{run}/{client}/{number}").into_bytes()
}

/// What is known of the puts of one own key.
#[derive(Debug, Default)]
struct Puts {
    begun: u32,
    over: u32,
    /// Open, or of unknown outcome since.
    unsettled: Vec<(u32, Option<Now>)>,
}

impl Puts {
    /// The highest put up to which all have settled by now.
    fn settled(&mut self, now: Now) -> u32 {
        self.unsettled.retain(|(_, since)| {
            since.is_none_or(|since| now.since(since) < UNKNOWN_SETTLES_AFTER)
        });
        self.unsettled.iter().map(|(sequence, _)| sequence - 1).min().unwrap_or(self.begun)
    }
}

/// The judge of one process.
#[derive(Debug)]
pub(crate) struct Judge {
    author: Author,
    bounds: Bounds,
    puts: Vec<Mutex<Puts>>,
    oracles: Vec<Mutex<Oracle>>,
    wrong: AtomicU64,
    told: Mutex<Vec<String>>,
    next_op: AtomicU64,
    next_put: AtomicU32,
    foreign: AtomicU64,
}

/// One value that is about to be put.
#[derive(Debug)]
pub(crate) struct Stamped {
    put: PutId,
    number: u64,
    key: KeyHash,
    pub(crate) name: Vec<u8>,
    pub(crate) value: Vec<u8>,
}

impl Judge {
    pub(crate) fn new(author: Author, bounds: Bounds) -> Self {
        let config = OracleConfig {
            unknown_settles_after: Some(UNKNOWN_SETTLES_AFTER),
            ..Default::default()
        };
        Self {
            author,
            puts: (0..bounds.keys()).map(|_| Mutex::default()).collect(),
            bounds,
            oracles: (0..SHARDS).map(|_| Mutex::new(Oracle::new(config))).collect(),
            wrong: AtomicU64::new(0),
            told: Mutex::default(),
            next_op: AtomicU64::new(0),
            next_put: AtomicU32::new(1),
            foreign: AtomicU64::new(0),
        }
    }

    /// Keys of this process.
    pub(crate) fn keys(&self) -> u64 {
        self.bounds.keys()
    }

    pub(crate) fn name(&self, number: u64) -> Vec<u8> {
        key_name(self.author.run, self.author.client, number)
    }

    /// Stamps a value for an own key. From here on the put has begun.
    pub(crate) fn begin_put(&self, number: u64, len: usize) -> Stamped {
        let name = self.name(number);
        let key = key::hash(&name);
        let put = {
            let mut puts = lock(&self.puts[number as usize]);
            // Under the lock, so that the sequence of each key only grows.
            let sequence = self.next_put.fetch_add(1, Ordering::Relaxed);
            puts.begun = sequence;
            puts.unsettled.push((sequence, None));
            self.bounds.set_begun(number, sequence);
            PutId::new(self.author.run, self.author.client, sequence)
        };
        let mut value = vec![0; len];
        payload::fill(&mut value, put, key);
        self.tell(key, What::PutBegan { put, len: len as u64 });
        Stamped { put, number, key, name, value }
    }

    /// Notes how a put ended.
    pub(crate) fn end_put(&self, stamped: &Stamped, stored: &Result<Stored, Error>) {
        let Stamped { put, number, key, .. } = *stamped;
        let (what, unknown) = match stored {
            Ok(Stored::New) => (What::PutEnded { put }, None),
            Ok(Stored::AlreadyThere) => (What::PutRefused { put }, None),
            Err(error) if surely_refused(error) => (What::PutRefused { put }, None),
            Err(_) => (What::PutUnknown { put }, Some(boottime())),
        };
        self.tell(key, what);
        let mut puts = lock(&self.puts[number as usize]);
        if unknown.is_some() {
            let open = puts.unsettled.iter_mut().find(|(s, _)| *s == put.sequence());
            open.expect("it had begun").1 = unknown;
        } else {
            puts.unsettled.retain(|(sequence, _)| *sequence != put.sequence());
        }
    }

    /// A get of an own key is about to be called.
    pub(crate) fn begin_get(&self, name: &[u8]) -> (OpId, KeyHash) {
        let (get, key) = (self.op(), key::hash(name));
        self.tell(key, What::GetBegan { get });
        (get, key)
    }

    /// Judges what a get of an own key came back with.
    pub(crate) fn end_get<V: Deref<Target = [u8]>>(
        &self,
        (get, key): (OpId, KeyHash),
        found: &Result<Option<V>, Error>,
    ) {
        let got = match found {
            Ok(Some(value)) => Got::of(value, key),
            Ok(None) => Got::Miss,
            Err(_) => Got::Failed,
        };
        self.tell(key, What::GetEnded { get, got });
    }

    /// Judges a remove of an own key: once it has said that nothing is there, nothing may be found.
    pub(crate) fn remove(
        &self,
        number: u64,
        call: impl FnOnce(&[u8]) -> Result<bool, Error>,
    ) -> Result<bool, Error> {
        let name = self.name(number);
        let (remove, key) = (self.op(), key::hash(&name));
        let settled = lock(&self.puts[number as usize]).settled(boottime());
        self.tell(key, What::RemoveBegan { remove });
        let removed = call(&name);
        let what = match &removed {
            Ok(_) => What::RemoveEnded { remove },
            Err(_) => What::RemoveUnknown { remove },
        };
        self.tell(key, what);
        if removed.is_ok() {
            let mut puts = lock(&self.puts[number as usize]);
            puts.over = puts.over.max(settled);
            self.bounds.set_over(number, puts.over);
        }
        removed
    }

    /// Judges what `call` finds under a key of another process.
    pub(crate) fn foreign<V: Deref<Target = [u8]>>(
        &self,
        client: u16,
        bounds: &Bounds,
        number: u64,
        call: impl FnOnce(&[u8]) -> Result<Option<V>, Error>,
    ) -> Result<Option<V>, Error> {
        let name = key_name(self.author.run, client, number);
        let over = bounds.over(number);
        let found = call(&name);
        let Ok(Some(value)) = &found else { return found };
        self.foreign.fetch_add(1, Ordering::Relaxed);
        let begun = bounds.begun(number);
        let shown = name.escape_ascii();
        match payload::examine(value, key::hash(&name)) {
            Err(bad) => self.blame(format!("C1 broken for {shown}: {bad}")),
            Ok(None) => self.blame(format!("C1 broken for {shown}: too short to have been put")),
            Ok(Some(put)) if (put.run(), put.client()) != (self.author.run, client) => {
                self.blame(format!("C1 broken for {shown}: put {put} is of somebody else"));
            }
            Ok(Some(put)) if put.sequence() > begun => {
                self.blame(format!("C1 broken for {shown}: put {put} has not begun ({begun} has)"));
            }
            Ok(Some(put)) if put.sequence() <= over => self.blame(format!(
                "C4 broken for {shown}: put {put} was removed before the get began ({over} is over)"
            )),
            Ok(Some(_)) => {}
        }
        found
    }

    /// Something that must not be was seen.
    pub(crate) fn blame(&self, what: String) {
        self.wrong.fetch_add(1, Ordering::Relaxed);
        let mut told = lock(&self.told);
        if told.len() < TOLD_MAX {
            told.push(what);
        }
    }

    /// How much was wrong.
    pub(crate) fn wrong(&self) -> u64 {
        self.wrong.load(Ordering::Relaxed)
    }

    /// The first of it, in words.
    pub(crate) fn told(&self) -> Vec<String> {
        lock(&self.told).clone()
    }

    /// Values of other processes that were judged.
    pub(crate) fn foreign_values(&self) -> u64 {
        self.foreign.load(Ordering::Relaxed)
    }

    /// What the oracles judged.
    pub(crate) fn counts(&self) -> Counts {
        self.oracles.iter().map(|shard| lock(shard).counts()).sum()
    }

    fn op(&self) -> OpId {
        OpId(self.next_op.fetch_add(1, Ordering::Relaxed))
    }

    fn tell(&self, key: KeyHash, what: What) {
        let mut oracle = lock(&self.oracles[(key.0 % SHARDS) as usize]);
        // Read under the lock: the order in which events are told is the order that counts.
        let event = Event { at: boottime(), key, what };
        if let Err(violation) = oracle.observe(&event) {
            drop(oracle);
            self.blame(violation.to_string());
        }
    }
}

/// Refused before any byte moved: what a put's start may answer and its end may not.
fn surely_refused(error: &Error) -> bool {
    let Error::Client(ClientError::Put(refused)) = error else { return false };
    !matches!(refused, PutError::NoSuchPut | PutError::Rebuilding { .. })
}

/// No code of ours panics under these locks; if an oracle does, the run is over anyway.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no judge has panicked")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(client: u16) -> Judge {
        Judge::new(Author { run: 1, client }, Bounds::create(None, client, 4).unwrap())
    }

    /// A store of one process lies to the readers of another in every way there is; each is seen.
    #[test]
    fn foreign_values_are_judged_by_stamps_and_bounds() {
        let (owner, reader) = (judge(1), judge(2));
        let get = |value: Option<&[u8]>| {
            let before = reader.wrong();
            let value = value.map(<[u8]>::to_vec);
            reader.foreign(1, &owner.bounds, 3, |_| Ok(value)).unwrap();
            reader.wrong() - before
        };
        assert_eq!(get(None), 0, "a miss is legal");
        let first = owner.begin_put(3, 500);
        assert_eq!(get(Some(&first.value)), 0, "an open put may be seen");
        owner.end_put(&first, &Ok(Stored::New));
        assert_eq!(get(Some(&first.value)), 0);
        let mut torn = first.value.clone();
        torn[100] ^= 1;
        assert_eq!(get(Some(&torn)), 1, "a flipped bit");
        let other = owner.begin_put(2, 500);
        owner.end_put(&other, &Ok(Stored::New));
        assert_eq!(get(Some(&other.value)), 1, "the value of another key");
        owner.remove(3, |_| Ok(true)).unwrap();
        assert_eq!(get(Some(&first.value)), 1, "a removed value");
        let mut early = vec![0; 100];
        payload::fill(&mut early, PutId::new(1, 1, 77), key::hash(&first.name));
        assert_eq!(get(Some(&early)), 1, "a put that has not begun");
        assert!(reader.told()[2].starts_with("C4 broken for v/1/1/3"), "{:?}", reader.told());
    }

    /// A put whose end nobody knows may come back after a remove, so it is not over.
    #[test]
    fn a_put_of_unknown_outcome_stays_legal() {
        let (owner, reader) = (judge(1), judge(2));
        let lost = owner.begin_put(0, 64);
        let why = mooncrate_transfer::TransferError::NoRoute;
        let failed = Error::Client(mooncrate_client::Error::Restless { tries: 1, last: why });
        owner.end_put(&lost, &Err(failed));
        owner.remove(0, |_| Ok(false)).unwrap();
        reader.foreign(1, &owner.bounds, 0, |_| Ok(Some(lost.value.clone()))).unwrap();
        assert_eq!(reader.wrong(), 0, "{:?}", reader.told());
    }

    #[test]
    fn own_values_are_judged_by_the_oracle() {
        let judge = judge(1);
        let first = judge.begin_put(1, 64);
        judge.end_put(&first, &Ok(Stored::New));
        judge.remove(1, |_| Ok(true)).unwrap();
        let get = judge.begin_get(&first.name);
        judge.end_get(get, &Ok(Some(first.value.clone())));
        assert_eq!(judge.wrong(), 1, "it had been removed");
        assert_eq!(judge.counts().hits, 1);
    }
}
