//! What clients do: one lane is one thread that makes calls, one after the other.

use super::{Plan, judge};
use crate::MS;
use crate::fibers::{self, ProcessId};
use mooncrate_check::{Got, payload};
use mooncrate_client::{Client, Error, Stored};
use mooncrate_core::plan::PutConfig;
use mooncrate_core::rng::Rng;
use mooncrate_core::{NodeId, SegmentId};
use mooncrate_rt as rt;
use mooncrate_transfer::TransferError;
use mooncrate_wire::DataError;
use std::sync::Arc;
use std::time::Duration;

/// Keys of a batch.
const BATCH_MAX: u64 = 5;
/// How long a client keeps a view at most.
const VIEW_NANOS_MAX: u64 = 20 * MS;

pub(super) struct Lane {
    pub(super) client: Arc<Client>,
    pub(super) process: ProcessId,
    pub(super) rng: Rng,
    pub(super) plan: Arc<Plan>,
}

impl Lane {
    /// Makes calls until the run has had enough.
    pub(super) fn work(mut self) {
        while judge::may_begin() {
            let shares = self.plan.shares;
            let mut draw = self.rng.below(shares.iter().sum());
            let what = shares.iter().position(|share| {
                let here = draw < *share;
                draw = draw.saturating_sub(*share);
                here
            });
            let key = self.rng.below(self.plan.keys) as usize;
            match what {
                Some(0) => self.put(&[key], false),
                Some(1) => self.get(key),
                Some(2) => self.remove(key),
                Some(3) => self.exists(key),
                Some(4) => self.batch(),
                Some(5) => self.put(&[key], true),
                Some(6) => self.view(key),
                _ => self.copy(key),
            }
            if self.plan.pause > 0 {
                rt::sleep(Duration::from_nanos(self.rng.below(2 * self.plan.pause)));
            }
        }
    }

    /// Removes every key, until none is left or the time is over.
    pub(super) fn remove_all(mut self) {
        for key in 0..self.plan.keys as usize {
            self.remove(key);
        }
    }

    /// Puts one value, or several in one call; `upsert`: also where there is a value.
    fn put(&mut self, keys: &[usize], upsert: bool) {
        let mut calls = Vec::new();
        for at in keys {
            let key = judge::key(*at);
            let most = self.plan.value_bytes_max;
            let len = if self.rng.chance(800) { most.min(600) } else { most };
            let len = 1 + self.rng.below(len);
            let (put, number) = judge::put_begins(self.process, *at, len, upsert);
            let mut value = vec![0; len as usize];
            payload::fill(&mut value, put, key.hash);
            calls.push((number, key, value));
        }
        let done = if let [(_, key, value)] = &calls[..] {
            let config = PutConfig { upsert, ..self.client.put_config().clone() };
            vec![self.client.put_parts(&key.bytes, &[value], &config)]
        } else {
            let items: Vec<(&[u8], &[u8])> =
                calls.iter().map(|(_, key, value)| (&key.bytes[..], &value[..])).collect();
            self.client.put_batch(&items)
        };
        for ((number, ..), done) in calls.iter().zip(done) {
            say(0, &done);
            // A value that is there already may be this one: the answer to its first attempt may be lost.
            judge::put_ended(*number, matches!(done, Ok(Stored::New)));
        }
    }

    fn get(&mut self, at: usize) {
        let key = judge::key(at);
        let number = judge::get_begins(self.process, at);
        let got = self.client.get(&key.bytes);
        say(at, &got);
        judge::get_ended(number, judged(got, &key));
    }

    fn batch(&mut self) {
        let many = (1 + self.rng.below(BATCH_MAX)).min(self.plan.keys);
        let first = self.rng.below(self.plan.keys);
        let keys: Vec<usize> =
            (first..first + many).map(|key| (key % self.plan.keys) as usize).collect();
        if self.rng.chance(400) {
            return self.put(&keys, false);
        }
        let numbers: Vec<u64> =
            keys.iter().map(|key| judge::get_begins(self.process, *key)).collect();
        let keys: Vec<judge::Key> = keys.into_iter().map(judge::key).collect();
        let asked: Vec<&[u8]> = keys.iter().map(|key| &key.bytes[..]).collect();
        let got = self.client.get_batch(&asked);
        for ((number, key), got) in numbers.into_iter().zip(&keys).zip(got) {
            judge::get_ended(number, judged(got, key));
        }
    }

    fn remove(&mut self, at: usize) {
        let key = judge::key(at);
        let number = judge::remove_begins(self.process, at);
        let force = self.rng.chance(500);
        // That nothing was there proves as much as a removal.
        let done = self.client.remove(&key.bytes, force);
        say(at, &done);
        judge::remove_ended(number, done.is_ok());
    }

    /// Looks at a value in place, for a while.
    fn view(&mut self, at: usize) {
        let key = judge::key(at);
        let number = judge::get_begins(self.process, at);
        let viewed = self.client.view(&key.bytes);
        say(at, &viewed);
        let Ok(Some(view)) = viewed else {
            let missed = if viewed.is_ok() { Got::Miss } else { Got::Failed };
            return judge::get_ended(number, missed);
        };
        let seen = Got::of(&view, key.hash);
        judge::get_ended(number, seen);
        rt::sleep(Duration::from_nanos(self.rng.below(VIEW_NANOS_MAX)));
        let again = Got::of(&view, key.hash);
        if again != seen {
            judge::fail("C1", format!("a view of k{at} showed {seen:?}, and then {again:?}"));
        }
    }

    /// Asks for a copy somewhere.
    fn copy(&mut self, at: usize) {
        let node = NodeId::named(&format!("node-{}", self.rng.below(self.plan.nodes as u64)));
        let copied = self.client.copy(&judge::key(at).bytes, None, SegmentId::of(node, 0));
        say(at, &copied);
    }

    fn exists(&mut self, at: usize) {
        // Nothing can be judged: a value may vanish at any time.
        let _ = self.client.exists(&judge::key(at).bytes);
    }
}

/// Adds the error of a call to the trace.
fn say<T>(key: usize, done: &Result<T, Error>) {
    if let Err(error) = done {
        fibers::note(10, key as u64, || format!("k{key} error: {error}"));
    }
}

/// The result of a get, for the oracle. No fault flips bytes here, so a corrupt value is a bug.
fn judged(got: Result<Option<Vec<u8>>, Error>, key: &judge::Key) -> Got {
    match got {
        Ok(Some(value)) => Got::of(&value, key.hash),
        Ok(None) => Got::Miss,
        Err(error) => {
            if let Error::Transfer(TransferError::Data(DataError::Corrupt)) = &error {
                judge::fail(
                    "C1",
                    format!("a get was refused as corrupt, and no byte was: {error}"),
                );
            }
            Got::Failed
        }
    }
}
