//! One thread of the load: it puts, gets, looks in place, removes and asks, on keys that it shares
//! with all others, and believes nothing.

use crate::judge::Judge;
use mooncrate::{Error, Store, Stored, View};
use mooncrate_check::payload;
use mooncrate_client::Error as ClientError;
use mooncrate_core::error::PutError;
use mooncrate_core::key;
use mooncrate_core::rng::Rng;
use mooncrate_wire::clock::boottime;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Keys that the threads fight over: several times what the pool holds.
const KEYS: u64 = 6000;
/// Bytes of the smallest value.
pub(crate) const SIZE_MIN: u64 = 1 << 10;
/// Bytes of the largest.
pub(crate) const SIZE_MAX: u64 = 2 << 20;
/// Views that one thread holds at a time.
const VIEWS_MAX: usize = 4;

/// What one thread brings home.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) operations: u64,
    pub(crate) put_micros: Vec<u32>,
    pub(crate) views_verified: u64,
    pub(crate) busy_micros: Vec<u32>,
    pub(crate) wrong: Vec<String>,
}

/// A value in place, and whose bytes it must keep showing.
pub(crate) struct Held {
    pub(crate) name: Vec<u8>,
    pub(crate) view: View,
}

impl Held {
    pub(crate) fn sound(&self) -> Result<(), String> {
        match payload::examine(&self.view, key::hash(&self.name)) {
            Ok(_) => Ok(()),
            Err(bad) => Err(format!("a view of {:?} changed: {bad}", self.name.escape_ascii())),
        }
    }
}

pub(crate) fn is_busy(error: &Error) -> bool {
    matches!(error, Error::Client(ClientError::Put(PutError::Busy { .. })))
}

/// One thread of the load.
pub(crate) struct Worker<'a> {
    store: &'a Store,
    judge: &'a Judge,
    rng: Rng,
    /// Of all values, if they are to be alike.
    one_size: Option<usize>,
    held: Vec<Held>,
    pub(crate) tally: Tally,
}

impl<'a> Worker<'a> {
    pub(crate) fn new(
        store: &'a Store,
        judge: &'a Judge,
        seed: u64,
        one_size: Option<usize>,
    ) -> Self {
        let (held, tally) = (Vec::new(), Tally::default());
        Self { store, judge, rng: Rng::new(seed), one_size, held, tally }
    }

    pub(crate) fn work(mut self, stop: &AtomicBool) -> Tally {
        while !stop.load(Ordering::Relaxed) {
            let name = self.some_key();
            match self.rng.below(100) {
                0..45 => self.put(&name),
                45..75 => self.get(&name),
                75..87 => self.view(name),
                87..92 => self.remove(&name),
                _ => {
                    self.tally.operations += 1;
                    let asked = self.store.exists(&name);
                    self.expect(asked.map(|_| ()), "exists");
                }
            }
        }
        while !self.held.is_empty() {
            self.release();
        }
        self.tally
    }

    pub(crate) fn some_key(&mut self) -> Vec<u8> {
        format!("k/{}", self.rng.below(KEYS)).into_bytes()
    }

    /// Sizes of all orders of magnitude, equally often, unless all are to be alike.
    fn some_size(&mut self) -> usize {
        if let Some(size) = self.one_size {
            return size;
        }
        let doublings = (SIZE_MAX / SIZE_MIN).ilog2();
        let floor = SIZE_MIN << self.rng.below(doublings.into());
        (floor + self.rng.below(floor + 1)) as usize
    }

    pub(crate) fn put(&mut self, name: &[u8]) {
        self.tally.operations += 1;
        let len = self.some_size();
        let mut took = Duration::ZERO;
        let stored = self.judge.put(name, len, |value| {
            let began = boottime();
            let stored = self.store.put(name, value);
            took = boottime().since(began);
            stored
        });
        match stored {
            Ok(Stored::New) => self.tally.put_micros.push(micros(took)),
            Err(error) if is_busy(&error) => self.tally.busy_micros.push(micros(took)),
            // Others have the key, or are about to.
            Ok(Stored::AlreadyThere)
            | Err(Error::Client(ClientError::Put(PutError::InProgress { .. }))) => {}
            Err(error) => self.expect(Err(error), "put"),
        }
    }

    fn get(&mut self, name: &[u8]) {
        self.tally.operations += 1;
        let found = self.judge.get(name, || self.store.get(name));
        self.expect(found.map(|_| ()), "get");
    }

    fn view(&mut self, name: Vec<u8>) {
        self.tally.operations += 1;
        if self.held.len() >= VIEWS_MAX {
            self.release();
        }
        match self.judge.get(&name, || self.store.view(&name)) {
            Ok(Some(view)) => self.held.push(Held { name, view }),
            Ok(None) => {}
            Err(error) => self.expect(Err(error), "view"),
        }
    }

    /// Looks at the oldest view once more before it goes: others have evicted and removed since.
    fn release(&mut self) {
        let held = self.held.remove(0);
        match held.sound() {
            Ok(()) => self.tally.views_verified += 1,
            Err(wrong) => self.tally.wrong.push(wrong),
        }
    }

    fn remove(&mut self, name: &[u8]) {
        self.tally.operations += 1;
        // Being written, or being removed by somebody else: both are answers.
        let _ = self.judge.remove(name, || self.store.remove(name, false));
    }

    /// In this process nothing can go wrong but what the contract allows.
    fn expect(&mut self, result: Result<(), Error>, what: &str) {
        match result {
            Ok(()) | Err(Error::Client(ClientError::Restless { .. })) => {}
            Err(error) => self.tally.wrong.push(format!("{what}: {error}")),
        }
    }
}

fn micros(time: Duration) -> u32 {
    time.as_micros().try_into().unwrap_or(u32::MAX)
}
