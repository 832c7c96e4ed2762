//! Put sessions: a value that is written in parts, in any order, from several threads, and appears
//! at the end.
//!
//! ```text
//!   put_session ─► put_start, open every replica       the key is taken, nobody sees a value
//!   write       ─► claim the bytes, move them, note their checksums
//!   end         ─► no gap? signal every replica (each owner sums what it has) ─► put_end
//!   revoke, drop, death of the writer ─► the links hang up, owners and master give everything back
//! ```
//!
//! What must stay true: each byte is written once, so the seal that the writer reckons from its parts
//! is that of the value; an owner publishes nothing else. A session must end within the master's
//! `put_timeout`, as every put.

use crate::client::Client;
use crate::error::{Error, SessionError};
use crate::put::Written;
use crate::runs::{self, Runs};
use mooncrate_core::error::PutError;
use mooncrate_core::key::Key;
use mooncrate_core::plan::{Locator, PutConfig, WritePlan};
use mooncrate_core::time::Deadline;
use mooncrate_lock::{Mutex, RwLock, interrupt};
use mooncrate_transfer::{OpenPut, TransferError};
use mooncrate_wire::DataError;
use mooncrate_wire::message::{BeginWrite, PutItem};
use std::sync::atomic::{AtomicBool, Ordering};

/// A value that is being written. Dropping it gives everything back.
#[derive(Debug)]
pub struct PutSession {
    key: Vec<u8>,
    config: PutConfig,
    /// Writers share it, the end has it alone: so the end waits for writes that are on their way.
    /// `None`: the session is over.
    open: RwLock<Option<Open>>,
}

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
        let deadline = self.deadline();
        let plans = self.plan(config, &[PutItem::new(key, len)], deadline);
        let plan = plans.into_iter().next().expect("one result per item")?;
        let opened: Result<Vec<_>, _> =
            plan.replicas.iter().map(|at| self.open(key, &plan, config, at, deadline)).collect();
        let replicas = match opened {
            Ok(opened) => opened.into_iter().map(Mutex::new).collect(),
            Err(error) => {
                self.revoke(key, plan.token, deadline);
                return Err(error.into());
            }
        };
        let (runs, broken) = (Mutex::new(Runs::new(len)), AtomicBool::new(false));
        let open = RwLock::new(Some(Open { plan, runs, replicas, broken }));
        Ok(PutSession { key: key.into(), config: config.clone(), open })
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
        let way = self.engine.transport(locator, deadline);
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
        let _held = interrupt::hold();
        let open = session.open.read();
        let open = open.as_ref().ok_or(SessionError::Over)?;
        if open.broken.load(Ordering::Relaxed) {
            return Err(SessionError::Broken.into());
        }
        open.runs.lock().claim(offset, part.len() as u64)?;
        if part.is_empty() {
            return Ok(());
        }
        let sums = runs::sums(offset, part);
        if let Err(error) = open.write(offset, part, self.deadline()) {
            // Relaxed: whoever ends the session has the lock after us.
            open.broken.store(true, Ordering::Relaxed);
            return Err(in_words(error));
        }
        open.runs.lock().done(offset, &sums);
        Ok(())
    }

    /// Publishes the value of a session, once every byte was written. A gap is an error that says where,
    /// and leaves the session open; any other error ends it, and nothing is left.
    pub fn session_end(&self, session: &PutSession) -> Result<(), Error> {
        let _held = interrupt::hold();
        let mut place = session.open.write();
        let open = place.as_ref().ok_or(SessionError::Over)?;
        if open.broken.load(Ordering::Relaxed) {
            return Err(SessionError::Broken.into());
        }
        let seals = open.runs.lock().seals(open.plan.striping)?;
        let Open { plan, replicas, .. } = place.take().expect("looked at above");
        let deadline = self.deadline();
        for (locator, replica) in plan.replicas.iter().zip(replicas) {
            let seal = seals[usize::from(locator.stripe)];
            if let Err(error) = replica.into_inner().signal(seal, deadline) {
                self.revoke(&session.key, plan.token, deadline);
                return Err(in_words(error));
            }
        }
        let mut results = [None];
        let ends = vec![Written { index: 0, plan, seals }];
        self.end(&[(&session.key, &[])], ends, &session.config, &mut results, deadline);
        let [ended] = results;
        match ended.expect("the one item was decided") {
            Err(Error::Put(PutError::NoSuchPut)) => Err(SessionError::TimedOut.into()),
            ended => ended.map(|_| ()),
        }
    }

    /// Gives a session up: nothing of it is left, and the key can be put again. Whether it was open.
    pub fn session_revoke(&self, session: &PutSession) -> bool {
        let Some(open) = session.open.write().take() else { return false };
        // The links first: an owner frees at once what nobody can store into.
        drop(open.replicas);
        self.revoke(&session.key, open.plan.token, self.deadline());
        true
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

impl Open {
    /// Moves a part to every copy of every stripe that it touches.
    fn write(&self, offset: u64, part: &[u8], deadline: Deadline) -> Result<(), TransferError> {
        let end = offset + part.len() as u64;
        for (locator, replica) in self.plan.replicas.iter().zip(&self.replicas) {
            let first = self.plan.striping.start(locator.stripe);
            let last = first + self.plan.striping.stripe_len(locator.stripe);
            let (from, to) = (offset.max(first), end.min(last));
            if from < to {
                let part = &part[(from - offset) as usize..(to - offset) as usize];
                replica.lock().write(from - first, part, deadline)?;
            }
        }
        Ok(())
    }
}
