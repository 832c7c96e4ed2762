//! What clients do: one lane is one thread that makes calls, one after the other.

mod asks;
mod many;

use super::{Plan, judge, vram};
use crate::MS;
use crate::fibers::{self, ProcessId};
use crate::swarm::pick;
use mooncrate_check::{Got, payload};
use mooncrate_client::{Client, Error, RangeInto, Stored};
use mooncrate_core::error::PutError;
use mooncrate_core::plan::{Looked, Medium, PutConfig};
use mooncrate_core::rng::Rng;
use mooncrate_core::{NodeId, SegmentId};
use mooncrate_rt as rt;
use mooncrate_transfer::TransferError;
use mooncrate_wire::message::Pattern;
use mooncrate_wire::{CallError, DataError};
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

/// Keys of a batch.
const BATCH_MAX: u64 = 5;
/// The longest pause of a client in the middle of a view or a session.
const PAUSE_NANOS_MAX: u64 = 20 * MS;
/// The longest lease that a client asks for.
const LEASE_MS_MAX: u64 = 2_000;

/// How long after its deadline a call may end: a put that has failed gives its room back for 100 ms more, and clocks
/// differ by 0.4 %.
const LATE_MAX: Duration = Duration::from_millis(160);

/// What a lane may do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deed {
    Put,
    Get,
    Remove,
    Batch,
    Upsert,
    View,
    Copy,
    Ranges,
    ReadSession,
    WriteSession,
    Lease,
    RemoveMatching,
    DropCopy,
    WriteSessions,
    ReadSessions,
    PutWithConfig,
    Ask,
    Near,
    List,
}

impl Deed {
    pub(super) const ALL: [Self; 19] = [
        Self::Put,
        Self::Get,
        Self::Remove,
        Self::Batch,
        Self::Upsert,
        Self::View,
        Self::Copy,
        Self::Ranges,
        Self::ReadSession,
        Self::WriteSession,
        Self::Lease,
        Self::RemoveMatching,
        Self::DropCopy,
        Self::WriteSessions,
        Self::ReadSessions,
        Self::PutWithConfig,
        Self::Ask,
        Self::Near,
        Self::List,
    ];

    /// How often it happens in a run, among all: one of these is drawn.
    pub(super) fn shares(self) -> &'static [u64] {
        match self {
            Self::Put => &[20, 40, 60],
            Self::Get => &[20, 50, 100],
            Self::Remove => &[2, 15, 30],
            Self::Ask | Self::Near => &[0, 10],
            Self::Batch => &[0, 10, 20],
            Self::Upsert => &[0, 0, 10, 60],
            Self::View | Self::Ranges => &[0, 10, 30],
            Self::ReadSession | Self::WriteSession => &[0, 0, 10, 40],
            Self::ReadSessions | Self::WriteSessions | Self::PutWithConfig => &[0, 0, 10],
            Self::Copy => &[0, 0, 5],
            Self::Lease | Self::RemoveMatching | Self::List => &[0, 0, 3],
            Self::DropCopy => &[0, 0, 3, 20],
        }
    }
}

pub(super) struct Lane {
    pub(super) client: Arc<Client>,
    pub(super) process: ProcessId,
    /// The tenant of its client.
    pub(super) tenant: u64,
    pub(super) rng: Rng,
    pub(super) plan: Arc<Plan>,
    /// The last call found no master or no memory.
    pub(super) in_vain: Cell<bool>,
}

impl Lane {
    /// The keys of its tenant.
    pub(super) fn keys(&self) -> impl Iterator<Item = usize> + use<> {
        self.plan.tenants.keys(self.tenant, self.plan.keys)
    }

    /// Adds the error of a call to the trace.
    pub(super) fn say<T>(&self, key: usize, done: &Result<T, Error>) {
        let Err(error) = done else { return };
        fibers::note(10, key as u64, || format!("k{key} error: {error}"));
        let in_vain = matches!(
            error,
            Error::Master(CallError::Away { .. }) | Error::Put(PutError::NoSegments)
        );
        self.in_vain.set(self.in_vain.get() || in_vain);
    }

    /// Makes calls until the run has had enough.
    pub(super) fn work(mut self) {
        while judge::may_begin() {
            let keys: Vec<usize> = self.keys().collect();
            let key = *pick(&mut self.rng, &keys);
            match self.plan.deed(&mut self.rng) {
                Deed::Put => self.put(&[key], false),
                Deed::Get => self.get(key),
                Deed::Remove => self.remove(key),
                Deed::Batch => self.batch(),
                Deed::Upsert => self.put(&[key], true),
                Deed::View => self.view(key),
                Deed::Copy => self.copy(key),
                Deed::Ranges => self.ranges(key),
                Deed::ReadSession => self.read_session(key),
                Deed::WriteSession => self.write_session(key),
                Deed::Lease => self.lease(key),
                Deed::RemoveMatching => self.remove_matching(key),
                Deed::DropCopy => self.drop_copy(key),
                Deed::WriteSessions => self.write_sessions(),
                Deed::ReadSessions => self.read_sessions(),
                Deed::PutWithConfig => self.put_with_config(key),
                Deed::Ask => self.ask(key),
                Deed::Near => self.near(key),
                Deed::List => self.list(key),
            }
            self.look_for_corruption();
            if self.plan.pause > 0 {
                self.rest(2 * self.plan.pause);
            }
            if self.in_vain.take() {
                self.rest(self.plan.catalog.serve_lease.as_nanos() as u64 / 4);
            }
        }
    }

    fn rest(&mut self, nanos_max: u64) {
        rt::sleep(Duration::from_nanos(self.rng.below(nanos_max)));
    }

    /// A call ends by its deadline (G9), unless its process was stopped; where threads run late they say nothing.
    fn in_time<T>(&self, call: impl FnOnce() -> T) -> T {
        let began = fibers::running_time(self.process);
        let done = call();
        let took = Duration::from_nanos(fibers::running_time(self.process) - began);
        if took > self.plan.call_time + LATE_MAX && self.plan.late.permille == 0 {
            judge::fail("G9", format!("a call of {:?} took {took:?}", self.plan.call_time));
        }
        done
    }

    /// A read meets bytes that do not match their seal only where somebody changed them.
    fn look_for_corruption(&self) {
        let met = self.client.counts().corrupt;
        if met > 0 && !self.plan.flips {
            judge::fail("C1", format!("{met} reads met wrong bytes, and nobody changed any"));
        }
    }

    /// Removes every key, until none is left or the time is over.
    pub(super) fn remove_all(mut self) {
        for key in self.keys() {
            self.remove(key);
        }
    }

    /// Puts one value, or several in one call; `upsert`: also where there is a value.
    fn put(&mut self, keys: &[usize], upsert: bool) {
        let mut calls = Vec::new();
        for at in keys {
            let (number, value) = self.value(*at, upsert);
            calls.push((number, judge::key(*at), value));
        }
        let done = if let [(_, key, value)] = &calls[..] {
            let config = PutConfig { upsert, ..self.wishes(keys[0]) };
            vec![self.in_time(|| self.client.put_parts(&key.bytes, &[value], &config))]
        } else {
            let items: Vec<(&[u8], &[u8])> =
                calls.iter().map(|(_, key, value)| (&key.bytes[..], &value[..])).collect();
            self.client.put_batch(&items)
        };
        for ((number, ..), done) in calls.iter().zip(done) {
            self.say(0, &done);
            // A value that is there already may be this one: the answer to its first attempt may be lost.
            judge::put_ended(*number, matches!(done, Ok(Stored::New)));
        }
    }

    /// Settings of a put: as usual, or with some of its replicas in VRAM.
    fn wishes(&mut self, key: usize) -> PutConfig {
        let mut config = self.client.put_config().clone();
        let asks = |load: &vram::Load| vram::may_ask(key) && self.rng.chance(load.asked);
        if self.plan.vram.as_ref().is_some_and(asks) {
            config.media[Medium::Vram as usize] = 1 + self.rng.below(config.replicas.into()) as u8;
        }
        config
    }

    /// A value for a put that begins now: the number of the call, and its bytes.
    fn value(&mut self, at: usize, upsert: bool) -> (u64, Vec<u8>) {
        let most = self.plan.value_bytes_max;
        let len = if self.rng.chance(800) { most.min(600) } else { most };
        let len = 1 + self.rng.below(len);
        let (put, number) = judge::put_begins(self.process, at, len, upsert);
        let mut value = vec![0; len as usize];
        payload::fill(&mut value, put, judge::key(at).hash);
        (number, value)
    }

    /// Puts a value in parts, with pauses, and ends it, gives it up, or forgets it.
    fn write_session(&mut self, at: usize) {
        // Much may become of the value that is there before it is replaced.
        let upsert = self.rng.chance(300);
        let (number, value) = self.value(at, upsert);
        let key = judge::key(at);
        let config = PutConfig { upsert, ..self.wishes(at) };
        let opened = self.client.put_session(&key.bytes, value.len() as u64, &config);
        self.say(at, &opened);
        let done = opened.is_ok_and(|session| {
            let cut = self.rng.below(value.len() as u64 + 1);
            let (first, rest) = value.split_at(cut as usize);
            let parts = [(0, first), (cut, rest)];
            for (offset, part) in if self.rng.chance(500) { parts } else { [parts[1], parts[0]] } {
                let written = self.client.session_write(&session, offset, part);
                self.say(at, &written);
                if written.is_err() {
                    break;
                }
                self.rest(PAUSE_NANOS_MAX);
            }
            if self.rng.chance(100) {
                // Its time may be over then, and another put of the key under way.
                self.rest(2 * self.plan.catalog.put_timeout.as_nanos() as u64);
            }
            if self.rng.chance(100) {
                self.client.session_revoke(&session);
                return false;
            }
            if self.rng.chance(50) {
                return false;
            }
            let ended = self.client.session_end(&session);
            self.say(at, &ended);
            ended.is_ok()
        });
        judge::put_ended(number, done);
    }

    fn get(&mut self, at: usize) {
        let key = judge::key(at);
        let number = judge::get_begins(self.process, at);
        let got = self.in_time(|| self.client.get(&key.bytes));
        self.say(at, &got);
        judge::get_ended(number, judged(self.plan.flips, got, &key));
    }

    /// Reads a value in two parts, in one call. Its length is asked for before, and one more byte shows that it is so
    /// long and no longer.
    fn ranges(&mut self, at: usize) {
        let key = judge::key(at);
        let number = judge::get_begins(self.process, at);
        let size = self.client.size(&key.bytes);
        self.say(at, &size);
        let Ok(Some(size)) = size else {
            return judge::get_ended(number, if size.is_ok() { Got::Miss } else { Got::Failed });
        };
        let cut = self.rng.below(size + 1);
        let (mut value, mut more) = (vec![0; size as usize], [0]);
        let (first, rest) = value.split_at_mut(cut as usize);
        let mut ranges = [
            RangeInto { start: cut, into: rest },
            RangeInto { start: size, into: &mut more },
            RangeInto { start: 0, into: first },
        ];
        let got = self.client.get_ranges(&key.bytes, &mut ranges);
        self.say(at, &got);
        let got = match got {
            Ok(None) => Ok(None),
            Err(error) => Err(error),
            Ok(Some(read)) => match read[..] {
                [Ok(_), Err(_), Ok(_)] => Ok(Some(value)),
                // Another value than the one whose length was asked for.
                _ => return judge::get_ended(number, Got::Failed),
            },
        };
        judge::get_ended(number, judged(self.plan.flips, got, &key));
    }

    /// Reads a value in two calls, with a pause between: all of it is of one object (G17).
    fn read_session(&mut self, at: usize) {
        let key = judge::key(at);
        let number = judge::get_begins(self.process, at);
        let lease = Duration::from_millis(1 + self.rng.below(LEASE_MS_MAX));
        let opened = self.client.get_session(&key.bytes, lease);
        self.say(at, &opened);
        let Ok(Some(session)) = opened else {
            return judge::get_ended(number, if opened.is_ok() { Got::Miss } else { Got::Failed });
        };
        let mut value = vec![0; session.value_len() as usize];
        let cut = self.rng.below(value.len() as u64 + 1);
        let (first, rest) = value.split_at_mut(cut as usize);
        let mut read = Ok(());
        for (start, into) in [(0, first), (cut, rest)] {
            let part = self.client.session_ranges(&session, &mut [RangeInto { start, into }]);
            self.say(at, &part);
            read = match part.map(|mut one| one.pop().expect("one result per range")) {
                Ok(Ok(_)) => read,
                Ok(Err(error)) => {
                    let text = format!("k{at}: a session reads {cut} of its own value: {error}");
                    return judge::fail("G17", text);
                }
                Err(error) => Err(error),
            };
            if read.is_err() {
                break;
            }
            self.rest(PAUSE_NANOS_MAX);
        }
        judge::get_ended(number, judged(self.plan.flips, read.map(|()| Some(value)), &key));
    }

    fn remove(&mut self, at: usize) {
        let key = judge::key(at);
        let number = judge::remove_begins(self.process, at);
        let force = self.rng.chance(500);
        // That nothing was there proves as much as a removal.
        let done = self.in_time(|| self.client.remove(&key.bytes, force));
        self.say(at, &done);
        judge::remove_ended(number, done.is_ok());
    }

    /// Removes all keys that begin as this one does.
    fn remove_matching(&mut self, at: usize) {
        let prefix = judge::key(at).bytes;
        let removals: Vec<u64> = self
            .keys()
            .filter(|other| judge::key(*other).bytes.starts_with(&prefix))
            .map(|other| judge::remove_begins(self.process, other))
            .collect();
        let force = self.rng.chance(500);
        let text = format!("^{}", String::from_utf8_lossy(&prefix));
        let by_text = self.rng.chance(500);
        let pattern = if by_text { Pattern::Regex(&text) } else { Pattern::Prefix(&prefix) };
        let done = self.client.remove_matching(pattern, force);
        self.say(at, &done);
        let all = done.is_ok_and(|removed| removed.deferred == 0 && removed.leased == 0);
        for number in removals {
            judge::remove_ended(number, all);
        }
    }

    /// Asks that a value stays for a while.
    fn lease(&mut self, at: usize) {
        let time = Duration::from_millis(1 + self.rng.below(LEASE_MS_MAX));
        self.say(at, &self.client.lease(&judge::key(at).bytes, time));
    }

    /// Looks at a value in place, for a while.
    fn view(&mut self, at: usize) {
        let key = judge::key(at);
        let number = judge::get_begins(self.process, at);
        let viewed = self.client.view(&key.bytes);
        self.say(at, &viewed);
        let Ok(Some(view)) = viewed else {
            let missed = if viewed.is_ok() { Got::Miss } else { Got::Failed };
            return judge::get_ended(number, missed);
        };
        let seen = Got::of(&view, key.hash);
        judge::get_ended(number, seen);
        // Some look for so long that calls of others to the same owner fail meanwhile.
        let long = self.rng.chance(100);
        let call_nanos = self.plan.call_time.as_nanos() as u64;
        self.rest(if long { 3 * call_nanos } else { PAUSE_NANOS_MAX });
        let again = Got::of(&view, key.hash);
        // A view shows the memory itself, and so a bit that flips in it.
        if again != seen && !self.plan.flips {
            judge::fail("C1", format!("a view of k{at} showed {seen:?}, and then {again:?}"));
        }
    }

    /// The first segment of some node, in its memory or in VRAM.
    fn segment(&mut self) -> SegmentId {
        let node = NodeId::named(&format!("node-{}", self.rng.below(self.plan.nodes as u64)));
        let vram = self.plan.vram.is_some() && self.rng.chance(300);
        SegmentId::on(if vram { Medium::Vram } else { Medium::Dram }, node, 0)
    }

    /// Asks for a copy somewhere, perhaps instead of another one.
    fn copy(&mut self, at: usize) {
        let (from, to) = (self.replica(at), self.segment());
        if to.medium() == Medium::Vram && !vram::may_ask(at) {
            return;
        }
        let from = from.filter(|_| self.rng.chance(700));
        if self.rng.chance(300) {
            // Meanwhile the same replica shall go elsewhere, or the one that is being made.
            let (from, to) = (if self.rng.chance(500) { from } else { Some(to) }, self.segment());
            let (client, key) = (Arc::clone(&self.client), judge::key(at));
            if to.medium() != Medium::Vram || vram::may_ask(at) {
                let _ = rt::spawn("copy", move || drop(client.copy(&key.bytes, from, to)));
            }
        }
        self.say(at, &self.client.copy(&judge::key(at).bytes, from, to));
    }

    /// Where a replica of a value is; in some cases anywhere.
    fn replica(&mut self, at: usize) -> Option<SegmentId> {
        if self.rng.chance(200) {
            return Some(self.segment());
        }
        let looked = self.client.look(&[&judge::key(at).bytes], false, true).ok()?.pop()?;
        let Ok(Looked::At(located)) = looked else { return None };
        let places: Vec<SegmentId> = located.replicas.iter().map(|place| place.segment).collect();
        (!places.is_empty()).then(|| *pick(&mut self.rng, &places))
    }

    fn drop_copy(&mut self, at: usize) {
        let segment = self.segment();
        self.say(at, &self.client.drop_copy(&judge::key(at).bytes, segment));
    }
}

/// Whether a get was refused because of wrong bytes.
pub(super) fn is_corrupt(error: &Error) -> bool {
    matches!(error, Error::Transfer(TransferError::Data(DataError::Corrupt)))
}

/// The result of a get, for the oracle. Where no fault flips bits a corrupt value is a bug.
pub(super) fn judged(flips: bool, got: Result<Option<Vec<u8>>, Error>, key: &judge::Key) -> Got {
    match got {
        Ok(Some(value)) => Got::of(&value, key.hash),
        Ok(None) => Got::Miss,
        Err(error) => {
            if is_corrupt(&error) && !flips {
                judge::fail(
                    "C1",
                    format!("a get was refused as corrupt, and no byte was: {error}"),
                );
            }
            Got::Failed
        }
    }
}
