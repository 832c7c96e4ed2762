//! Put sessions: a value that is written in parts, in any order, from several threads, and appears
//! at the end.
//!
//! ```text
//!   put_sessions ─► put_start, open every replica      the keys are taken, nobody sees a value
//!   write        ─► claim the bytes, move them, note their checksums
//!   end          ─► no gap? signal every replica (each owner sums what it has) ─► put_end
//!   revoke, drop, death of the writer ─► the links hang up, owners and master give everything back
//! ```
//!
//! What must stay true: each byte is written once, so the seal that the writer reckons from its parts
//! is that of the value; an owner publishes nothing else. A session must end within the master's
//! `put_timeout`, as every put. However many sessions a call begins, ends or gives up, the master is asked once;
//! owners are asked side by side, so that one which stands still takes the time of no other.

use crate::client::Client;
use crate::error::{Error, SessionError};
use crate::get::share;
use crate::put::{Stored, Written};
use crate::runs::{self, Runs};
use crate::stripes::in_parallel;
use crate::wishes::Wishes;
use mooncrate_core::error::PutError;
use mooncrate_core::key::Key;
use mooncrate_core::plan::{Locator, PutConfig, WritePlan};
use mooncrate_core::time::Deadline;
use mooncrate_core::{Seal, SegmentId};
use mooncrate_lock::{Mutex, RwLock, interrupt};
use mooncrate_transfer::{OpenPut, TransferError};
use mooncrate_wire::message::{BeginWrite, PutItem, PutRevokeItem};
use mooncrate_wire::{CallError, DataError};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// The part of a call's time for which an owner may stand still.
const SILENCE_SHARE: u32 = 4;

/// What an interrupted start waited for.
const START: &str = "the start of put sessions";

/// A value that is being written. Dropping it gives everything back.
#[derive(Debug)]
pub struct PutSession {
    key: Vec<u8>,
    /// Whether its place is remembered once it is stored.
    remember: bool,
    /// Writers share it, the end has it alone: so the end waits for writes that are on their way.
    /// `None`: the session is over.
    open: RwLock<Option<Open>>,
}

/// Parts of the value of one session, by where they start in it.
pub type SessionParts<'a, S = PutSession> = (&'a S, &'a [(u64, &'a [u8])]);

#[derive(Debug)]
struct Open {
    plan: WritePlan,
    runs: Mutex<Runs>,
    /// One per replica of the plan. A replica takes one part at a time.
    replicas: Vec<Mutex<Box<dyn OpenPut>>>,
    /// A part did not arrive: the value can never be whole.
    broken: AtomicBool,
}

impl Client {
    /// Reserves room for a value that comes in parts. A key that has a value, or a put under way, is an
    /// error.
    pub fn put_session(
        &self,
        key: &[u8],
        len: u64,
        config: &PutConfig,
    ) -> Result<PutSession, Error> {
        self.put_sessions(&[(key, len)], config).pop().expect("one result per item")
    }

    /// The same for many values, by key and length; one result each.
    pub fn put_sessions<'w>(
        &self,
        items: &[(&[u8], u64)],
        wishes: impl Into<Wishes<'w>>,
    ) -> Vec<Result<PutSession, Error>> {
        let wishes: Wishes<'w> = wishes.into();
        let deadline = self.deadline();
        let asks = items.iter().enumerate();
        let asks: Vec<PutItem<'_>> = asks
            .map(|(at, (key, len))| PutItem { key, len: *len, group: wishes.own(at) })
            .collect();
        let plans = self.plan(wishes.config(), &asks, deadline);
        // An owner that stands still leaves time to give its puts back.
        let until = share(deadline, 2);
        let mut jobs = Vec::new();
        for (at, plan) in plans.iter().enumerate() {
            let replicas = plan.iter().flat_map(|plan| plan.replicas.iter().enumerate());
            jobs.extend(replicas.map(|(copy, locator)| (*locator, (at, copy))));
        }
        let mut opened: Vec<Vec<_>> = plans.iter().map(|_| Vec::new()).collect();
        for ((at, copy), one) in self.by_owner(jobs, |locator, (at, copy)| {
            let plan = plans[at].as_ref().expect("it has replicas");
            ((at, copy), self.open(items[at].0, plan, &wishes.of(at), locator, until))
        }) {
            opened[at].push((copy, one));
        }
        // Whoever does not wait for its sessions gets none.
        let interrupted = interrupt::ended();
        let mut lost = Vec::new();
        let each = plans.into_iter().zip(opened).enumerate().map(|(at, (plan, mut replicas))| {
            let plan = plan?;
            let (key, len) = items[at];
            replicas.sort_by_key(|(copy, _)| *copy);
            let replicas: Result<Vec<_>, Error> =
                replicas.into_iter().map(|(_, one)| Ok(Mutex::new(one?))).collect();
            let replicas = match replicas {
                Ok(_) if interrupted => {
                    Err(Error::Master(CallError::Interrupted { awaited: START }))
                }
                replicas => replicas,
            };
            let replicas = replicas.inspect_err(|_| {
                lost.push(PutRevokeItem { key, token: plan.token });
            })?;
            let (runs, broken) = (Mutex::new(Runs::new(len)), AtomicBool::new(false));
            let open = RwLock::new(Some(Open { plan, runs, replicas, broken }));
            Ok(PutSession { key: key.into(), remember: wishes.config().expire_ms == 0, open })
        });
        let sessions = each.collect();
        self.revoke_all(&lost, deadline);
        sessions
    }

    /// Works on replicas, those of one owner one after the other, owners side by side.
    fn by_owner<T: Send, R: Send>(
        &self,
        jobs: Vec<(Locator, T)>,
        work: impl Fn(&Locator, T) -> R + Sync,
    ) -> Vec<R> {
        let mut owners: BTreeMap<SegmentId, Mutex<Vec<(Locator, T)>>> = BTreeMap::new();
        for (locator, job) in jobs {
            owners.entry(locator.segment).or_default().get_mut().push((locator, job));
        }
        let owners: Vec<_> = owners.into_values().collect();
        let done = in_parallel(&owners, self.config.parallel_max, |jobs| {
            // Nobody else has this owner: the lock only says so to the compiler.
            let jobs = std::mem::take(&mut *jobs.lock());
            jobs.into_iter().map(|(locator, job)| work(&locator, job)).collect::<Vec<R>>()
        });
        done.into_iter().flatten().collect()
    }

    fn open(
        &self,
        key: &[u8],
        plan: &WritePlan,
        config: &PutConfig,
        locator: &Locator,
        deadline: Deadline,
    ) -> Result<Box<dyn OpenPut>, TransferError> {
        let key = Key::new(key).expect("the master planned it, so it is a key");
        let label = config.label(self.config.tenant, key, plan.striping, locator.stripe).encode();
        let put = BeginWrite {
            locator: *locator,
            token: plan.token,
            object: plan.object,
            epoch: plan.epoch,
            len: plan.striping.stripe_len(locator.stripe),
            label: &label,
        };
        // One that stands still later must leave time for the others.
        let way = self.engine.hasty(locator, self.config.call_time / SILENCE_SHARE, deadline);
        let opened = way.and_then(|transport| transport.open(&put, deadline));
        self.owners.note(locator, opened.as_ref().err());
        opened.inspect_err(|_| self.engine.forget(locator.segment))
    }

    /// Writes a part of the value of a session, to all its replicas. Each byte may be written once. After
    /// a part that did not arrive the session can only be revoked.
    pub fn session_write(
        &self,
        session: &PutSession,
        offset: u64,
        part: &[u8],
    ) -> Result<(), Error> {
        let parts: SessionParts<'_> = (session, &[(offset, part)]);
        self.sessions_write(&[parts]).pop().expect("one result per session")
    }

    /// The same for many sessions and parts; one result each, all within the time of one call, of which large ones have
    /// more. Parts of a session that do not make sense together leave it as it was.
    pub fn sessions_write(&self, items: &[SessionParts<'_>]) -> Vec<Result<(), Error>> {
        let bytes = items.iter().flat_map(|(_, parts)| *parts).map(|(_, part)| part.len() as u64);
        let deadline = self.deadline_for(bytes.sum());
        let mut silent = Vec::new();
        let one = |(session, parts): &SessionParts<'_>| {
            if interrupt::ended() {
                // A session that was not written to is not broken.
                return Err(Error::Master(CallError::Interrupted { awaited: "the parts before" }));
            }
            self.write_parts(session, parts, &mut silent, deadline)
        };
        items.iter().map(one).collect()
    }

    /// The same for one. Owners in `silent` are not waited for again.
    fn write_parts(
        &self,
        session: &PutSession,
        parts: &[(u64, &[u8])],
        silent: &mut Vec<SegmentId>,
        deadline: Deadline,
    ) -> Result<(), Error> {
        let _held = interrupt::hold();
        let open = session.open.read();
        let open = open.as_ref().ok_or(SessionError::Over)?;
        if open.broken.load(Ordering::Relaxed) {
            return Err(SessionError::Broken.into());
        }
        if open.plan.replicas.iter().any(|locator| silent.contains(&locator.segment)) {
            return Err(TransferError::Silent.into());
        }
        open.runs.lock().claim_all(parts.iter().map(|(at, part)| (*at, part.len() as u64)))?;
        for (offset, part) in parts.iter().filter(|(_, part)| !part.is_empty()) {
            let sums = runs::sums(*offset, part);
            if let Err((at, error)) = open.write(*offset, part, deadline) {
                let owner = &open.plan.replicas[at];
                // Relaxed: whoever ends the session has the lock after us.
                open.broken.store(true, Ordering::Relaxed);
                self.owners.note(owner, Some(&error));
                if error.silence().is_some() {
                    silent.push(owner.segment);
                }
                return Err(in_words(error));
            }
            open.runs.lock().done(*offset, &sums);
        }
        Ok(())
    }

    /// Publishes the value of a session, once every byte was written. A gap is an error that says where,
    /// and leaves the session open; any other error ends it, and nothing is left.
    pub fn session_end(&self, session: &PutSession) -> Result<(), Error> {
        self.sessions_end(&[session]).pop().expect("one result per session")
    }

    /// The same for many sessions; one result each. A call that is interrupted gives up those that it would have
    /// ended.
    pub fn sessions_end(&self, sessions: &[&PutSession]) -> Vec<Result<(), Error>> {
        let deadline = self.deadline();
        let mut results: Vec<Option<Result<Stored, Error>>> =
            sessions.iter().map(|_| None).collect();
        let (mut whole, mut jobs) = (Vec::new(), Vec::new());
        for (index, session) in sessions.iter().enumerate() {
            match session.close() {
                Ok((Open { plan, replicas, .. }, seals)) => {
                    for (locator, replica) in plan.replicas.iter().zip(replicas) {
                        let seal = seals[usize::from(locator.stripe)];
                        jobs.push((*locator, (index, replica.into_inner(), seal)));
                    }
                    let remember = session.remember;
                    whole.push(Written { index, plan, seals, remember });
                }
                Err(error) => results[index] = Some(Err(error.into())),
            }
        }
        // An owner that stands still leaves time to end the others.
        let until = share(deadline, 2);
        let signalled =
            self.by_owner(jobs, |_, (index, replica, seal)| (index, replica.signal(seal, until)));
        for (index, signalled) in signalled {
            if let Err(error) = signalled {
                results[index].get_or_insert_with(|| Err(in_words(error)));
            }
        }
        let (lost, ends): (Vec<Written>, Vec<Written>) =
            whole.into_iter().partition(|one| results[one.index].is_some());
        let lost: Vec<PutRevokeItem<'_>> = lost
            .iter()
            .map(|one| PutRevokeItem { key: &sessions[one.index].key, token: one.plan.token })
            .collect();
        self.revoke_all(&lost, deadline);
        let items: Vec<(&[u8], &[&[u8]])> =
            sessions.iter().map(|session| (&session.key[..], &[][..])).collect();
        self.end(&items, ends, &mut results, deadline);
        let results = results.into_iter().map(|one| one.expect("every session was decided"));
        let in_words = |one| match one {
            Err(Error::Put(PutError::NoSuchPut)) => Err(SessionError::TimedOut.into()),
            one => one.map(|_: Stored| ()),
        };
        results.map(in_words).collect()
    }

    /// Gives a session up: nothing of it is left, and the key can be put again. Whether it was open.
    pub fn session_revoke(&self, session: &PutSession) -> bool {
        self.sessions_revoke(&[session]).pop().expect("one result per session")
    }

    /// The same for many sessions.
    pub fn sessions_revoke(&self, sessions: &[&PutSession]) -> Vec<bool> {
        let mut lost = Vec::new();
        let each = sessions.iter().map(|session| {
            let Some(open) = session.open.write().take() else { return false };
            // The links first: an owner frees at once what nobody can store into.
            drop(open.replicas);
            lost.push(PutRevokeItem { key: &session.key, token: open.plan.token });
            true
        });
        let open = each.collect();
        self.revoke_all(&lost, self.deadline());
        open
    }
}

/// An owner that no longer knows the put was told by the master to give it up.
fn in_words(error: TransferError) -> Error {
    match error {
        TransferError::Data(DataError::BadToken | DataError::Stale) => {
            SessionError::TimedOut.into()
        }
        other => other.into(),
    }
}

impl PutSession {
    /// Ends the writing: what was open, and the seals of its stripes. A gap leaves it open.
    fn close(&self) -> Result<(Open, Vec<Seal>), SessionError> {
        let mut place = self.open.write();
        let open = place.as_ref().ok_or(SessionError::Over)?;
        if open.broken.load(Ordering::Relaxed) {
            return Err(SessionError::Broken);
        }
        let seals = open.runs.lock().seals(open.plan.striping)?;
        Ok((place.take().expect("looked at above"), seals))
    }
}

impl Open {
    /// Moves a part to every copy of every stripe that it touches; at which of them that failed, and why.
    fn write(
        &self,
        offset: u64,
        part: &[u8],
        deadline: Deadline,
    ) -> Result<(), (usize, TransferError)> {
        let end = offset + part.len() as u64;
        let replicas = self.plan.replicas.iter().zip(&self.replicas);
        for (at, (locator, replica)) in replicas.enumerate() {
            let first = self.plan.striping.start(locator.stripe);
            let last = first + self.plan.striping.stripe_len(locator.stripe);
            let (from, to) = (offset.max(first), end.min(last));
            if from < to {
                let part = &part[(from - offset) as usize..(to - offset) as usize];
                let written = replica.lock().write(from - first, part, deadline);
                written.map_err(|error| (at, error))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClientConfig;
    use mooncrate_core::plan::Striping;
    use mooncrate_core::{
        Extent, Generation, HostId, Incarnation, LeaderEpoch, ObjectId, PutToken, Slot,
    };
    use mooncrate_mem::clock::boottime;
    use mooncrate_transfer::EngineConfig;
    use mooncrate_wire::{Hello, LinkKind, MasterLink, MasterPools, PoolConfig, Role};
    use std::sync::Arc;
    use std::time::Duration;

    /// An owner that tells how much time it was given.
    #[derive(Debug)]
    struct Timed(Arc<Mutex<Duration>>);

    impl OpenPut for Timed {
        fn write(&mut self, _: u64, _: &[u8], deadline: Deadline) -> Result<(), TransferError> {
            *self.0.lock() = deadline.left(boottime());
            Ok(())
        }

        fn signal(self: Box<Self>, _: Seal, _: Deadline) -> Result<(), TransferError> {
            Ok(())
        }
    }

    /// Was: 15 s for all parts of a call, where documents promise 120 s for large ones.
    #[test]
    fn a_write_of_many_bytes_has_more_time() {
        let masters = "127.0.0.1:1".parse().unwrap();
        let hello = Hello::new(Role::Client, LinkKind::Control, "a test");
        let pools = MasterPools::new(&masters, &hello, &PoolConfig::default());
        let config = ClientConfig { call_time: Duration::from_mins(10), ..ClientConfig::default() };
        let client = Client::new(
            config.clone(),
            EngineConfig { host: HostId(1), ..EngineConfig::default() },
            Arc::new(MasterLink::new(pools)),
            Arc::default(),
        );
        let bytes = vec![0; 256 << 20];
        for (len, least) in [(1, Duration::ZERO), (bytes.len(), config.call_time)] {
            let left = Arc::<Mutex<Duration>>::default();
            let locator = Locator {
                segment: SegmentId(1),
                incarnation: Incarnation(1),
                slot: Slot(0),
                generation: Generation(0),
                extent: Extent::new(0, len as u64).unwrap(),
                stripe: 0,
                grant: None,
            };
            let plan = WritePlan {
                token: PutToken(1),
                object: ObjectId::default(),
                epoch: LeaderEpoch(1),
                striping: Striping { len: len as u64, stripe_bytes: len as u64 },
                replicas: vec![locator],
            };
            let replica: Box<dyn OpenPut> = Box::new(Timed(Arc::clone(&left)));
            let session = PutSession {
                key: b"key".to_vec(),
                remember: false,
                open: RwLock::new(Some(Open {
                    plan,
                    runs: Mutex::new(Runs::new(len as u64)),
                    replicas: vec![Mutex::new(replica)],
                    broken: AtomicBool::new(false),
                })),
            };
            client.session_write(&session, 0, &bytes[..len]).unwrap();
            let left = *left.lock();
            assert!(left > least && left <= config.call_time * 8, "{len}: {left:?}");
        }
    }
}
