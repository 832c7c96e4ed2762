//! One thread of a verified workload. It believes nothing: every value is examined, every answer is
//! told to the judge, every call is timed against its deadline.

use crate::verify::bounds::Peers;
use crate::verify::judge::{Judge, Stamped};
use crate::verify::tally::Tally;
use mooncrate::{Error, Store, Stored, View};
use mooncrate_check::payload;
use mooncrate_core::key;
use mooncrate_core::rng::Rng;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Bytes of values: how many of a thousand, from, to.
const SIZES: &[(u64, u64, u64)] = &[
    (700, 100, 4 << 10),
    (230, 4 << 10, 64 << 10),
    (55, 64 << 10, 512 << 10),
    (15, 512 << 10, 4 << 20),
];
/// Keys of a batch.
const GET_BATCH: u64 = 16;
const PUT_BATCH: u64 = 6;
/// Views that one thread holds at a time.
const VIEWS_MAX: usize = 4;
/// Calls between two looks for new peers.
const LOOK_EVERY: u64 = 2000;
/// After a call that failed: a cluster in trouble is not hammered by a loop that errs at once.
const PAUSE: Duration = Duration::from_millis(2);

/// What a thread mostly does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Gets, views, batches, asks; own keys and those of other processes.
    Reader,
    /// Puts and removes own keys, alone and in batches.
    Writer,
}

/// What all threads share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) store: Store,
    pub(crate) judge: Judge,
    pub(crate) tally: Tally,
    pub(crate) stop: AtomicBool,
    /// Copies of those keys that get more than one.
    pub(crate) replicas: u8,
    /// Least time between two calls of one thread.
    pub(crate) pace: Duration,
}

impl Shared {
    /// Copies of a key: every third has one only, so that the death of its owner loses it.
    pub(crate) fn copies(&self, number: u64) -> u8 {
        if number.is_multiple_of(3) { 1 } else { self.replicas }
    }

    /// Times a call.
    fn timed<T>(&self, what: &str, call: impl FnOnce(&Store) -> T) -> T {
        let began = self.tally.begin();
        let result = call(&self.store);
        self.tally.end(began, what);
        result
    }
}

/// A value in place, and whose bytes it must keep showing.
struct Held {
    name: Vec<u8>,
    view: View,
}

/// One thread.
pub(crate) struct Worker<'a> {
    shared: &'a Shared,
    rng: Rng,
    peers: Peers,
    held: Vec<Held>,
}

impl<'a> Worker<'a> {
    pub(crate) fn new(shared: &'a Shared, seed: u64, peers: Peers) -> Self {
        Self { shared, rng: Rng::new(seed), peers, held: Vec::new() }
    }

    /// Works until told to stop.
    pub(crate) fn work(mut self, role: Role) {
        let mut calls = 0_u64;
        while !self.shared.stop.load(Ordering::Relaxed) {
            if calls.is_multiple_of(LOOK_EVERY) {
                self.peers.look();
            }
            calls += 1;
            let well = match role {
                Role::Reader => self.read(),
                Role::Writer => self.write(),
            };
            std::thread::sleep(if well { self.shared.pace } else { PAUSE });
        }
        while !self.held.is_empty() {
            self.release();
        }
    }

    /// One call of a reader; whether it went well.
    fn read(&mut self) -> bool {
        let number = self.some_key();
        match self.rng.below(100) {
            0..35 => self.get(number),
            35..65 => self.get_foreign(),
            65..80 => self.get_batch(number),
            80..92 => self.view(number),
            _ => self.exists(number),
        }
    }

    /// One call of a writer; whether it went well.
    fn write(&mut self) -> bool {
        let number = self.some_key();
        match self.rng.below(100) {
            0..50 => self.put(number),
            50..62 => self.put_batch(number),
            62..87 => self.remove(number),
            87..98 => self.get(number),
            _ => self.lease(number),
        }
    }

    fn some_key(&mut self) -> u64 {
        self.rng.below(self.shared.judge.keys())
    }

    fn some_size(&mut self) -> usize {
        let mut draw = self.rng.below(1000);
        for (share, from, to) in SIZES {
            match draw.checked_sub(*share) {
                Some(rest) => draw = rest,
                None => return (from + self.rng.below(to - from + 1)) as usize,
            }
        }
        unreachable!("the shares are a thousand")
    }

    pub(crate) fn put(&mut self, number: u64) -> bool {
        let Shared { judge, tally, .. } = self.shared;
        let stamped = judge.begin_put(number, self.some_size());
        let stored = self.shared.timed("put", |store| {
            let mut config = store.put_config();
            config.replicas = self.shared.copies(number);
            store.put_parts(&stamped.name, &[&stamped.value], &config)
        });
        judge.end_put(&stamped, &stored);
        tally.answer(&stored);
        stored.is_ok()
    }

    fn put_batch(&mut self, first: u64) -> bool {
        let Shared { judge, tally, .. } = self.shared;
        let numbers = first..(first + PUT_BATCH).min(judge.keys());
        let stamped: Vec<Stamped> = numbers
            .map(|number| {
                let len = self.some_size().min(64 << 10);
                judge.begin_put(number, len)
            })
            .collect();
        let items: Vec<(&[u8], &[u8])> =
            stamped.iter().map(|one| (&one.name[..], &one.value[..])).collect();
        let stored: Vec<Result<Stored, Error>> =
            self.shared.timed("put_batch", |store| store.put_batch(&items));
        self.check_count("put_batch", items.len(), stored.len());
        for (stamped, stored) in stamped.iter().zip(&stored) {
            judge.end_put(stamped, stored);
            tally.answer(stored);
        }
        stored.iter().all(Result::is_ok)
    }

    fn get(&mut self, number: u64) -> bool {
        let judge = &self.shared.judge;
        let name = judge.name(number);
        let began = judge.begin_get(&name);
        let found = self.shared.timed("get", |store| store.get(&name));
        judge.end_get(began, &found);
        self.note(&found);
        found.is_ok()
    }

    fn get_batch(&mut self, first: u64) -> bool {
        let judge = &self.shared.judge;
        let numbers = first..(first + GET_BATCH).min(judge.keys());
        let names: Vec<Vec<u8>> = numbers.map(|number| judge.name(number)).collect();
        let keys: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
        let began: Vec<_> = keys.iter().map(|key| judge.begin_get(key)).collect();
        let found = self.shared.timed("get_batch", |store| store.get_batch(&keys));
        self.check_count("get_batch", keys.len(), found.len());
        for (began, found) in began.into_iter().zip(&found) {
            judge.end_get(began, found);
            self.note(found);
        }
        found.iter().all(Result::is_ok)
    }

    /// A get of a key that another process puts and removes.
    fn get_foreign(&mut self) -> bool {
        let draw = self.rng.next();
        let Some((client, bounds)) = self.peers.pick(draw >> 32) else { return true };
        let number = (draw & 0xffff_ffff) % bounds.keys();
        let found = self.shared.judge.foreign(client, bounds, number, |name| {
            self.shared.timed("get", |store| store.get(name))
        });
        self.note(&found);
        found.is_ok()
    }

    fn view(&mut self, number: u64) -> bool {
        if self.held.len() >= VIEWS_MAX {
            self.release();
        }
        let judge = &self.shared.judge;
        let name = judge.name(number);
        let began = judge.begin_get(&name);
        let found = self.shared.timed("view", |store| store.view(&name));
        judge.end_get(began, &found);
        self.note(&found);
        match found {
            Ok(Some(view)) => self.held.push(Held { name, view }),
            Ok(None) => {}
            Err(_) => return false,
        }
        true
    }

    /// Looks at the oldest view once more before it goes: others have evicted and removed since.
    fn release(&mut self) {
        let held = self.held.remove(0);
        if let Err(bad) = payload::examine(&held.view, key::hash(&held.name)) {
            let name = held.name.escape_ascii();
            self.shared.judge.blame(format!("C1 broken for {name}: a view changed: {bad}"));
        }
        self.shared.tally.view_released();
    }

    fn exists(&mut self, number: u64) -> bool {
        let name = self.shared.judge.name(number);
        let asked = self.shared.timed("exists", |store| store.exists(&name));
        self.shared.tally.answer(&asked);
        asked.is_ok()
    }

    fn lease(&mut self, number: u64) -> bool {
        let name = self.shared.judge.name(number);
        let time = Duration::from_millis(200);
        let asked = self.shared.timed("lease", |store| store.lease(&name, time));
        self.shared.tally.answer(&asked);
        asked.is_ok()
    }

    fn remove(&mut self, number: u64) -> bool {
        let removed = self
            .shared
            .judge
            .remove(number, |name| self.shared.timed("remove", |store| store.remove(name, false)));
        self.shared.tally.answer(&removed);
        removed.is_ok()
    }

    fn note<V: std::ops::Deref<Target = [u8]>>(&self, found: &Result<Option<V>, Error>) {
        self.shared.tally.answer(found);
        if let Ok(found) = found {
            self.shared.tally.found(found.as_ref().map(|value| &**value));
        }
    }

    /// One result per item (G11).
    fn check_count(&self, what: &str, items: usize, results: usize) {
        if items != results {
            self.shared.judge.blame(format!("{what}: {results} results for {items} items"));
        }
    }
}
