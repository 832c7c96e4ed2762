//! Get sessions: one lookup with a lease, then many range reads that ask nobody. For values that are
//! read layer by layer.
//!
//! What must stay true: all reads of a session are of one object (G17), and a session whose lease has
//! run out reads nothing: a caller that counts on the lease must learn that it is over.

use crate::client::Client;
use crate::error::{Error, SessionError};
use crate::get::share;
use crate::ranges::{RangeInto, Ranges};
use mooncrate_core::error::GetError;
use mooncrate_core::key;
use mooncrate_core::lease;
use mooncrate_core::limits::LEASE_MS_MAX;
use mooncrate_core::plan::Located;
use mooncrate_core::time::{Deadline, Now};
use mooncrate_lock::Mutex;
use mooncrate_mem::clock::boottime;
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
}

impl Client {
    /// Looks a value up and leases it for `lease`, 10 s at most; `None` if there is none.
    pub fn get_session(&self, key: &[u8], lease: Duration) -> Result<Option<GetSession>, Error> {
        key::check(key).map_err(GetError::from)?;
        let wish = u32::try_from(lease.as_millis()).unwrap_or(u32::MAX);
        let lease_ms = wish.min(LEASE_MS_MAX);
        let began = boottime();
        let Some(held) = self.hold(key, lease_ms, self.deadline())? else { return Ok(None) };
        let lease_ms = held.located.lease_ms;
        let renew_until = began.plus(SESSION_TIME_MAX);
        Ok(Some(GetSession { key: key.into(), lease_ms, renew_until, held: Mutex::new(held) }))
    }

    /// Reads parts of the value of a session. A range that reaches past the end spoils no other. In the
    /// second half of the lease a read renews it.
    pub fn session_ranges(
        &self,
        session: &GetSession,
        ranges: &mut [RangeInto<'_>],
    ) -> Result<Ranges, Error> {
        let deadline = self.deadline();
        let located = self.held(session, deadline)?;
        Ok(self.read_ranges(&session.key, &located, ranges, deadline)?)
    }

    /// The object of a session, under a lease that is valid now.
    fn held(&self, session: &GetSession, deadline: Deadline) -> Result<Arc<Located>, Error> {
        let Held { located, until } = session.held.lock().clone();
        let now = boottime();
        if now >= until {
            return Err(SessionError::LeaseOver.into());
        }
        let half = Duration::from_millis(u64::from(session.lease_ms / 2));
        if until.since(now) >= half || now >= session.renew_until {
            return Ok(located);
        }
        // What is left of the lease is still good, so a master that does not answer is no error yet;
        // it must leave time to read.
        let renewed = self.hold(&session.key, session.lease_ms, share(deadline, 2));
        match renewed {
            Ok(Some(renewed)) if renewed.located.object == located.object => {
                let mut held = session.held.lock();
                if renewed.until > held.until {
                    *held = renewed;
                }
                Ok(Arc::clone(&held.located))
            }
            _ => Ok(located),
        }
    }

    fn hold(&self, key: &[u8], lease_ms: u32, deadline: Deadline) -> Result<Option<Held>, Error> {
        let before_sending = boottime();
        // A client that holds what it reads has the time that its master gives it.
        let mut found = if self.config.holds {
            self.ask_places(&[key], deadline)?
        } else {
            self.master.locate(lease_ms, &[key], deadline)?
        };
        match found.pop().expect("one result per item") {
            Ok(located) => {
                let until = lease::holder_end(before_sending, located.lease_ms);
                let located = self.remember(key::hash(key), key, located, before_sending, deadline);
                Ok(Some(Held { located: Arc::new(located), until }))
            }
            Err(GetError::NotFound) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}
