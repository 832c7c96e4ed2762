//! Who judges the calls of a run: the oracle of `check`, and what fibers find wrong. All fibers of a run are on one
//! thread, so what they tell is a thread-local.

use super::{Plan, tenants};
use crate::fibers::{self, ProcessId};
use crate::judge::Failure;
use mooncrate_check::oracle::Counts;
use mooncrate_check::{Event, Got, OpId, Oracle, OracleConfig, PutId, What};
use mooncrate_core::{KeyHash, Name, Now};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

/// A key of the run.
#[derive(Clone, Debug)]
pub(super) struct Key {
    pub(super) bytes: Vec<u8>,
    pub(super) hash: KeyHash,
}

/// A call under way, and how it ends if its process is killed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Call {
    Put(PutId),
    Get(OpId),
    Remove(OpId),
}

struct Judge {
    oracle: Oracle,
    keys: Vec<Key>,
    ops: u64,
    ops_max: u64,
    next: u64,
    open: BTreeMap<u64, (ProcessId, usize, Call)>,
    failure: Option<Failure>,
}

thread_local! {
    static JUDGE: RefCell<Option<Judge>> = const { RefCell::new(None) };
}

fn with<T>(work: impl FnOnce(&mut Judge) -> T) -> T {
    JUDGE.with_borrow_mut(|judge| work(judge.as_mut().expect("a run has begun")))
}

pub(super) fn begin(plan: &Plan) {
    let key = |number| {
        let (tenant, number) = plan.tenants.of_key(number);
        let bytes = format!("key-{number}").into_bytes();
        let hash = Name::new(tenants::id(tenant), &bytes).hash();
        Key { bytes, hash }
    };
    // The master's thread may be suspended before it aborts the put, the owner's before it frees the range.
    let late = Duration::from_nanos(plan.late.nanos_max) * 3;
    let settles = plan.catalog.put_timeout * 3 + plan.call_time + late;
    let config = OracleConfig {
        unknown_settles_after: Some(settles),
        remove_settles_after: Some(settles),
        no_loss: plan.calm,
    };
    JUDGE.set(Some(Judge {
        oracle: Oracle::new(config),
        keys: (0..plan.keys).map(key).collect(),
        ops: 0,
        ops_max: plan.ops,
        next: 0,
        open: BTreeMap::new(),
        failure: None,
    }));
}

/// Ends the run. `other`: what was wrong beside the calls.
pub(super) fn end(other: Option<Failure>) -> (u64, Counts, Option<Failure>) {
    let judge = JUDGE.take().expect("a run has begun");
    (judge.ops, judge.oracle.counts(), judge.failure.or(other))
}

pub(super) fn ops() -> u64 {
    with(|judge| judge.ops)
}

pub(super) fn has_failed() -> bool {
    with(|judge| judge.failure.is_some())
}

/// A rule is broken.
pub(super) fn fail(rule: &str, text: String) {
    fibers::note(9, 0, || format!("FAILED {rule}: {text}"));
    with(|judge| {
        let op = judge.ops;
        judge.failure.get_or_insert(Failure { rule: rule.to_owned(), text, key: None, op });
    });
}

/// Whether another operation may begin; counts it.
pub(super) fn may_begin() -> bool {
    with(|judge| {
        let goes_on = judge.ops < judge.ops_max && judge.failure.is_none();
        judge.ops += u64::from(goes_on);
        goes_on
    })
}

/// Whether no further operation begins.
pub(super) fn is_over() -> bool {
    with(|judge| judge.ops >= judge.ops_max || judge.failure.is_some())
}

pub(super) fn key(at: usize) -> Key {
    with(|judge| judge.keys[at].clone())
}

fn observe(key: usize, what: What) {
    let at = fibers::true_time();
    let event = with(|judge| Event { at: Now(at), key: judge.keys[key].hash, what });
    fibers::note(5, key as u64, || format!("k{key} {event}"));
    let broken = with(|judge| judge.oracle.observe(&event).err());
    if let Some(violation) = broken {
        fail(&format!("{:?}", violation.rule), violation.to_string());
    }
}

/// A node ended with all that it held, in a run where nothing else is lost.
pub(super) fn node_ended() {
    let keys = with(|judge| judge.keys.len());
    (0..keys).for_each(|key| observe(key, What::MayVanish));
}

/// A number that no other call of the run has.
fn number() -> u64 {
    with(|judge| {
        judge.next += 1;
        judge.next
    })
}

fn open(process: ProcessId, key: usize, call: Call) -> u64 {
    let number = number();
    with(|judge| judge.open.insert(number, (process, key, call)));
    number
}

/// A put is about to be called: its id, and the number of the call.
pub(super) fn put_begins(process: ProcessId, key: usize, len: u64, upsert: bool) -> (PutId, u64) {
    let put = PutId::from_bits(number());
    observe(key, What::PutBegan { put, len });
    if upsert {
        observe(key, What::PutReplaces { put });
    }
    (put, open(process, key, Call::Put(put)))
}

pub(super) fn put_ended(number: u64, done: bool) {
    let Some((_, key, Call::Put(put))) = with(|judge| judge.open.remove(&number)) else { return };
    observe(key, if done { What::PutEnded { put } } else { What::PutUnknown { put } });
}

pub(super) fn get_begins(process: ProcessId, key: usize) -> u64 {
    let get = OpId(number());
    observe(key, What::GetBegan { get });
    open(process, key, Call::Get(get))
}

pub(super) fn get_ended(number: u64, got: Got) {
    let Some((_, key, Call::Get(get))) = with(|judge| judge.open.remove(&number)) else { return };
    observe(key, What::GetEnded { get, got });
}

pub(super) fn remove_begins(process: ProcessId, key: usize) -> u64 {
    let remove = OpId(number());
    observe(key, What::RemoveBegan { remove });
    open(process, key, Call::Remove(remove))
}

pub(super) fn remove_ended(number: u64, done: bool) {
    let Some((_, key, Call::Remove(remove))) = with(|judge| judge.open.remove(&number)) else {
        return;
    };
    observe(key, if done { What::RemoveEnded { remove } } else { What::RemoveUnknown { remove } });
}

/// The process was killed: what it had under way is of unknown outcome.
pub(super) fn killed(process: ProcessId) {
    let open: Vec<(u64, Call)> = with(|judge| {
        let of = judge.open.iter().filter(|(_, (of, ..))| *of == process);
        of.map(|(number, (_, _, call))| (*number, *call)).collect()
    });
    for (number, call) in open {
        match call {
            Call::Put(_) => put_ended(number, false),
            Call::Get(_) => get_ended(number, Got::Failed),
            Call::Remove(_) => remove_ended(number, false),
        }
    }
}
