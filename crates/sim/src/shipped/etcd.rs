//! etcd, as a process of the world: keys and leases that are never lost.
//!
//! ```text
//!   election of a master ── request, on its way ──► [due] ── done in order ── answer, on its way ──►
//!                             lost, late                       lost
//! ```
//!
//! A request that nobody waits for any more still takes effect when it is due. While etcd has no leader it answers
//! nobody and ends no lease.

use crate::fibers;
use crate::{MS, Nanos};
use mooncrate_core::rng::Rng;
use mooncrate_lock::{Condvar, Mutex};
use mooncrate_master::election::calls::{
    Answer, Asked, Compare, Done, Entry, Member, Members, Op, Txn, Watch,
};
use mooncrate_rt as rt;
use mooncrate_wire::task::sleep;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, oneshot};

/// How often it looks whether leases have ended.
const LOOK: Duration = Duration::from_millis(20);
/// How long a request or an answer travels, at most; and when it is late.
const TRAVEL: (Nanos, Nanos) = (2 * MS, 1_500 * MS);
/// How long etcd may be without a leader.
const LEADERLESS_MAX: Nanos = 4_000 * MS;

/// etcd, and who is cut off from it.
pub(super) struct Etcd {
    state: Mutex<State>,
    came: Condvar,
    changed: Notify,
}

type Request = Box<dyn FnOnce(&mut Store) + Send>;

struct State {
    rng: Rng,
    /// Whether requests and answers are lost or late.
    fails: bool,
    store: Store,
    requests: BTreeMap<(Nanos, u64), Request>,
    requests_made: u64,
    cut_off: BTreeSet<usize>,
    leaderless_until: Nanos,
}

#[derive(Default)]
struct Store {
    keys: BTreeMap<String, Entry>,
    /// How long each lasts, and when it ends by the clock of etcd.
    leases: BTreeMap<i64, (Duration, Nanos)>,
    leases_made: i64,
    revision: i64,
    /// How often each key changed.
    changes: BTreeMap<String, u64>,
}

impl Etcd {
    pub(super) fn new(seed: u64, fails: bool) -> Arc<Self> {
        let state = State {
            rng: Rng::stream(seed, "etcd"),
            fails,
            store: Store::default(),
            requests: BTreeMap::new(),
            requests_made: 0,
            cut_off: BTreeSet::new(),
            leaderless_until: 0,
        };
        let (state, came, changed) = (Mutex::new(state), Condvar::new(), Notify::new());
        Arc::new(Self { state, came, changed })
    }

    /// Works until the run ends.
    pub(super) fn serve(&self) {
        loop {
            let mut state = self.state.lock();
            let before = state.store.revision;
            let now = fibers::true_time();
            let mut next = now + LOOK.as_nanos() as u64;
            if state.leaderless_until <= now {
                state.store.expire(rt::boottime());
                while let Some(first) = state.requests.first_entry() {
                    if first.key().0 > now {
                        next = next.min(first.key().0);
                        break;
                    }
                    let request = first.remove();
                    request(&mut state.store);
                }
            } else {
                // A new leader begins all leases anew.
                state.store.renew_all(rt::boottime());
                next = next.min(state.leaderless_until);
            }
            if state.store.revision != before {
                drop(state);
                self.changed.notify_waiters();
                continue;
            }
            let pause = Duration::from_nanos(next - now);
            self.came.wait_for(&mut state, pause);
        }
    }

    /// What is at a key; empty: nothing.
    pub(super) fn value(&self, key: &str) -> String {
        let state = self.state.lock();
        state.store.keys.get(key).map(|entry| entry.value.clone()).unwrap_or_default()
    }

    /// From now on it loses and delays nothing, and keeps its leader.
    pub(super) fn heal(&self) {
        self.state.lock().fails = false;
    }

    /// From now on nothing comes from this master or gets there, or everything does again.
    pub(super) fn cut_off(&self, master: usize, is_cut: bool) {
        let mut state = self.state.lock();
        if is_cut {
            state.cut_off.insert(master)
        } else {
            state.cut_off.remove(&master)
        };
    }

    /// Asks for something: what it came to, if both the request and the answer arrive.
    async fn ask<T: Send + 'static>(
        &self,
        master: usize,
        what: impl FnOnce(&mut Store) -> T + Send + 'static,
    ) -> T {
        let (done, told) = oneshot::channel();
        let (arrives, back) = {
            let mut state = self.state.lock();
            let (there, back) = (state.travel(), state.travel());
            state.may_fail();
            let lost = |state: &mut State| state.fails && state.rng.chance(10);
            let arrives = !state.cut_off.contains(&master) && !lost(&mut state);
            if arrives {
                let at = (fibers::true_time() + there, state.requests_made);
                state.requests_made += 1;
                let request = move |store: &mut Store| drop(done.send(what(store)));
                state.requests.insert(at, Box::new(request));
            }
            (arrives, (!lost(&mut state)).then_some(back))
        };
        self.came.notify_all();
        if arrives && let Some(back) = back {
            let told = told.await.expect("every request is done");
            sleep(Duration::from_nanos(back)).await;
            if !self.state.lock().cut_off.contains(&master) {
                return told;
            }
        }
        std::future::pending().await
    }
}

impl State {
    fn travel(&mut self) -> Nanos {
        let late = self.fails && self.rng.chance(20);
        self.rng.below(if late { TRAVEL.1 } else { TRAVEL.0 })
    }

    /// Now and then etcd loses its leader.
    fn may_fail(&mut self) {
        if self.fails && self.rng.chance(3) {
            self.leaderless_until = fibers::true_time() + self.rng.below(LEADERLESS_MAX);
        }
    }
}

impl Store {
    fn expire(&mut self, now: Nanos) {
        let over = self.leases.iter().filter(|(_, (_, until))| *until <= now);
        for lease in over.map(|(lease, _)| *lease).collect::<Vec<_>>() {
            self.end(lease);
        }
    }

    fn renew_all(&mut self, now: Nanos) {
        for (time, until) in self.leases.values_mut() {
            *until = after(now, *time);
        }
    }

    /// Ends a lease, and what is bound to it.
    fn end(&mut self, lease: i64) {
        self.leases.remove(&lease);
        let bound = self.keys.extract_if(.., |_, entry| entry.lease == lease);
        for (key, _) in bound.collect::<Vec<_>>() {
            self.note_change(key);
        }
    }

    fn note_change(&mut self, key: String) {
        self.revision += 1;
        *self.changes.entry(key).or_default() += 1;
    }

    fn holds(&self, compare: &Compare) -> bool {
        match compare {
            Compare::Absent(key) => !self.keys.contains_key(key),
            Compare::Value(key, value) => {
                self.keys.get(key).is_some_and(|entry| entry.value == *value)
            }
            Compare::Lease(key, lease) => {
                self.keys.get(key).is_some_and(|entry| entry.lease == *lease)
            }
            Compare::Revision(key, revision) => {
                self.keys.get(key).map_or(0, |entry| entry.revision) == *revision
            }
        }
    }

    /// `None`: a lease that it names is over.
    fn txn(&mut self, txn: Txn) -> Option<Done> {
        let succeeded = txn.when.iter().all(|compare| self.holds(compare));
        let ops = if succeeded { txn.then } else { txn.otherwise };
        let over = |op: &Op| matches!(op, Op::Put { lease, .. } if *lease != 0 && !self.leases.contains_key(lease));
        if ops.iter().any(over) {
            return None;
        }
        let answers = ops.into_iter().map(|op| self.op(op)).collect::<Option<_>>()?;
        Some(Done { succeeded, answers })
    }

    fn op(&mut self, op: Op) -> Option<Answer> {
        Some(match op {
            Op::Get(key) => Answer::Get(self.keys.get(&key).cloned()),
            Op::Put { key, value, lease } => {
                self.note_change(key.clone());
                self.keys.insert(key, Entry { value, lease, revision: self.revision });
                Answer::Put
            }
            Op::Txn(txn) => Answer::Txn(self.txn(txn)?),
        })
    }
}

fn after(now: Nanos, time: Duration) -> Nanos {
    now + u64::try_from(time.as_nanos()).expect("a lease of seconds")
}

/// How one master reaches it.
#[derive(Clone)]
pub(super) struct Reached {
    pub(super) etcd: Arc<Etcd>,
    pub(super) master: usize,
}

impl fmt::Debug for Reached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "etcd of master {}", self.master)
    }
}

impl Reached {
    fn ask<T: Send + 'static>(
        &self,
        what: impl FnOnce(&mut Store) -> T + Send + 'static,
    ) -> Asked<'_, T> {
        Box::pin(async move { Ok(self.etcd.ask(self.master, what).await) })
    }
}

impl Members for Reached {
    fn connect<'a>(&'a self, _endpoint: &'a str, _time: Duration) -> Asked<'a, Arc<dyn Member>> {
        let member = self.clone();
        self.ask(move |_| Arc::new(member) as Arc<dyn Member>)
    }
}

impl Member for Reached {
    fn grant(&self, seconds: i64) -> Asked<'_, (i64, Duration)> {
        let time = Duration::from_secs(seconds.unsigned_abs());
        self.ask(move |store| {
            store.leases_made += 1;
            store.leases.insert(store.leases_made, (time, after(rt::boottime(), time)));
            (store.leases_made, time)
        })
    }

    fn keep_alive(&self, lease: i64) -> Asked<'_, bool> {
        self.ask(move |store| {
            let kept = store.leases.get_mut(&lease);
            kept.map(|(time, until)| *until = after(rt::boottime(), *time)).is_some()
        })
    }

    fn revoke(&self, lease: i64) -> Asked<'_, ()> {
        self.ask(move |store| store.end(lease))
    }

    fn get(&self, key: &str) -> Asked<'_, Option<Entry>> {
        let key = key.to_owned();
        self.ask(move |store| store.keys.get(&key).cloned())
    }

    fn txn(&self, txn: Txn) -> Asked<'_, Done> {
        Box::pin(async move {
            let done = self.etcd.ask(self.master, move |store| store.txn(txn)).await;
            done.ok_or_else(|| "requested lease not found".into())
        })
    }

    fn watch(&self, key: &str) -> Asked<'_, Box<dyn Watch>> {
        let (member, key) = (self.clone(), key.to_owned());
        self.ask(move |store| {
            let seen = store.changes.get(&key).copied();
            Box::new(Watching { member, key, seen }) as Box<dyn Watch>
        })
    }
}

struct Watching {
    member: Reached,
    key: String,
    /// Changes that were told.
    seen: Option<u64>,
}

impl Watch for Watching {
    fn change(&mut self) -> Asked<'_, bool> {
        Box::pin(async move {
            let Reached { etcd, master } = &self.member;
            loop {
                let news = etcd.changed.notified();
                let pause = {
                    let mut state = etcd.state.lock();
                    let now = state.store.changes.get(&self.key).copied();
                    let tells = now != self.seen && !state.cut_off.contains(master);
                    tells.then(|| (now, state.travel()))
                };
                if let Some((now, pause)) = pause {
                    sleep(Duration::from_nanos(pause)).await;
                    // Not before: whoever waits may have left.
                    self.seen = now;
                    return Ok(true);
                }
                news.await;
            }
        })
    }
}
