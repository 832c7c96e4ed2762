//! Get sessions: one lookup with a lease, then many range reads that ask nobody. For values that are
//! read layer by layer.
//!
//! What must stay true: all reads of a session are of one object (G17), and a session whose lease has
//! run out reads nothing: a caller that counts on the lease must learn that it is over.

use crate::client::Client;
use crate::error::{Error, SessionError};
use crate::get::share;
use crate::put::spread;
use crate::ranges::{RangeInto, Ranges, range_bytes};
use mooncrate_core::error::GetError;
use mooncrate_core::key;
use mooncrate_core::lease;
use mooncrate_core::limits::LEASE_MS_MAX;
use mooncrate_core::plan::{Located, Looked};
use mooncrate_core::time::{Deadline, Now};
use mooncrate_lock::{Mutex, interrupt};
use mooncrate_mem::clock::boottime;
use mooncrate_wire::CallError;
use mooncrate_wire::api::Batch;
use mooncrate_wire::master_link::frames;
use mooncrate_wire::message::Look;
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

/// How long a session may go on by being used; then its lease is renewed no more.
const SESSION_TIME_MAX: Duration = Duration::from_mins(10);

/// An object that is held by a lease while it is read. Dropping it ends it: the lease is not renewed.
#[derive(Debug)]
pub struct GetSession {
    key: Vec<u8>,
    lease_ms: u32,
    /// When it is renewed no more.
    renew_until: Now,
    held: Mutex<Held>,
}

#[derive(Clone, Debug)]
struct Held {
    located: Arc<Located>,
    /// The end of the lease, as its holder counts.
    until: Now,
}

impl GetSession {
    /// Bytes of the value.
    pub fn value_len(&self) -> u64 {
        self.held.lock().located.len()
    }

    /// What is left of the lease.
    pub fn lease_left(&self) -> Duration {
        self.held.lock().until.since(boottime())
    }

    /// The object, under a lease that is valid now.
    fn valid(&self) -> Result<Arc<Located>, Error> {
        let Held { located, until } = self.held.lock().clone();
        if boottime() >= until { Err(SessionError::LeaseOver.into()) } else { Ok(located) }
    }

    /// Whether a read shall renew the lease: in its second half, unless the session is too old for that.
    fn is_due(&self) -> bool {
        let (now, until) = (boottime(), self.held.lock().until);
        let half = Duration::from_millis(u64::from(self.lease_ms / 2));
        now < until && until.since(now) < half && now < self.renew_until
    }
}

/// What became of a get session that was asked for.
#[derive(Debug)]
pub enum Opened<S = GetSession> {
    /// The value is held.
    Session(S),
    /// It is being written. Only clients that hold what they read are told; others find it missing.
    Writing,
    /// There is no value.
    Missing,
}

/// The same, before there is a session.
enum Found {
    Held(Held),
    Writing,
    Missing,
}

impl Client {
    /// Looks a value up and leases it for `lease`, 10 s at most; `None` if there is none.
    pub fn get_session(&self, key: &[u8], lease: Duration) -> Result<Option<GetSession>, Error> {
        let opened = self.get_sessions(&[key], lease).pop().expect("one result per key")?;
        Ok(match opened {
            Opened::Session(session) => Some(session),
            Opened::Writing | Opened::Missing => None,
        })
    }

    /// The same for many values, which are looked up together; one result each.
    pub fn get_sessions(&self, keys: &[&[u8]], lease: Duration) -> Vec<Result<Opened, Error>> {
        let wish = u32::try_from(lease.as_millis()).unwrap_or(u32::MAX);
        let renew_until = boottime().plus(SESSION_TIME_MAX);
        let found = self.hold(keys, wish.min(LEASE_MS_MAX), self.deadline());
        let opened = keys.iter().zip(found).map(|(key, found)| {
            Ok(match found? {
                Found::Held(held) => Opened::Session(GetSession {
                    key: (*key).into(),
                    lease_ms: held.located.lease_ms,
                    renew_until,
                    held: Mutex::new(held),
                }),
                Found::Writing => Opened::Writing,
                Found::Missing => Opened::Missing,
            })
        });
        opened.collect()
    }

    /// Reads parts of the value of a session. A range that reaches past the end spoils no other. In the
    /// second half of the lease a read renews it.
    pub fn session_ranges(
        &self,
        session: &GetSession,
        ranges: &mut [RangeInto<'_>],
    ) -> Result<Ranges, Error> {
        self.sessions_ranges(&mut [(session, ranges)]).pop().expect("one result per session")
    }

    /// The same for many sessions; one result each, and the time of a call for each. Leases are renewed together.
    pub fn sessions_ranges(
        &self,
        items: &mut [(&GetSession, &mut [RangeInto<'_>])],
    ) -> Vec<Result<Ranges, Error>> {
        let sessions: Vec<&GetSession> = items.iter().map(|(session, _)| *session).collect();
        // A lease that could not be renewed is good for what is left of it; it is tried once.
        let mut in_vain = vec![false; items.len()];
        let mut results = Vec::with_capacity(items.len());
        for (at, (session, ranges)) in items.iter_mut().enumerate() {
            let deadline = self.deadline_for(range_bytes(ranges));
            if session.is_due() && !in_vain[at] {
                let due = (at..sessions.len()).filter(|at| sessions[*at].is_due() && !in_vain[*at]);
                let due: Vec<usize> = due.collect();
                // A master that does not answer is no error yet; it must leave time to read.
                let some: Vec<&GetSession> = due.iter().map(|at| sessions[*at]).collect();
                for (at, renewed) in due.into_iter().zip(self.renew(&some, share(deadline, 2))) {
                    in_vain[at] = !renewed;
                }
            }
            results.push(if interrupt::ended() {
                Err(Error::Master(CallError::Interrupted { awaited: "a read of a session" }))
            } else {
                self.session_read(session, ranges, deadline)
            });
        }
        results
    }

    /// Reads parts of the value of one session. An object that moved is looked up again: the lease keeps it, not
    /// its place.
    fn session_read(
        &self,
        session: &GetSession,
        ranges: &mut [RangeInto<'_>],
        deadline: Deadline,
    ) -> Result<Ranges, Error> {
        let read = self.read_ranges(&session.key, &*session.valid()?, ranges, deadline);
        match read {
            Err(error) if error.is_stale() && self.renew(&[session], deadline) == [true] => {
                Ok(self.read_ranges(&session.key, &*session.valid()?, ranges, deadline)?)
            }
            read => Ok(read?),
        }
    }

    /// Renews leases; which of them.
    fn renew(&self, sessions: &[&GetSession], deadline: Deadline) -> Vec<bool> {
        let keys: Vec<&[u8]> = sessions.iter().map(|session| &session.key[..]).collect();
        // They may differ only where a caller asks for different ones: the longest is good for all.
        let lease_ms = sessions.iter().map(|session| session.lease_ms).max().unwrap_or(0);
        let found = self.hold(&keys, lease_ms, deadline);
        let each = sessions.iter().zip(found).map(|(session, found)| match found {
            Ok(Found::Held(renewed)) => {
                let mut held = session.held.lock();
                let same = renewed.located.object == held.located.object;
                if same && renewed.until >= held.until {
                    *held = renewed;
                }
                same
            }
            _ => false,
        });
        each.collect()
    }

    /// Looks keys up, with a lease on what is found.
    fn hold(&self, keys: &[&[u8]], lease_ms: u32, deadline: Deadline) -> Vec<Result<Found, Error>> {
        let mut all = Vec::with_capacity(keys.len());
        for part in frames(keys, |key| *key) {
            let before_sending = boottime();
            let looked = match self.ask_leases(part, lease_ms, deadline) {
                Ok(looked) => looked,
                Err(error) => {
                    all.extend(spread(error, part.len()));
                    continue;
                }
            };
            all.extend(part.iter().zip(looked).map(|(key, looked)| {
                Ok(match looked? {
                    Looked::At(located) => {
                        let until = lease::holder_end(before_sending, located.lease_ms);
                        let hash = key::hash(key);
                        let located = self.remember(hash, key, located, before_sending, deadline);
                        Found::Held(Held { located: Arc::new(located), until })
                    }
                    Looked::Writing => Found::Writing,
                    Looked::Missing | Looked::Here { .. } => Found::Missing,
                })
            }));
        }
        all
    }

    /// One frame of that. A client that holds what it reads has the time that its master gives it.
    fn ask_leases(
        &self,
        keys: &[&[u8]],
        lease_ms: u32,
        deadline: Deadline,
    ) -> Batch<Looked, GetError> {
        if self.config.holds {
            let ask = Look { hold: true, places: true, reads: true, keys: Cow::Borrowed(keys) };
            return self.master.look(&ask, deadline);
        }
        let found = self.master.locate(lease_ms, keys, deadline)?;
        let looked = found.into_iter().map(|one| match one {
            Ok(located) => Ok(Looked::At(located)),
            Err(GetError::NotFound) => Ok(Looked::Missing),
            Err(error) => Err(error),
        });
        Ok(looked.collect())
    }
}
