//! Sessions: values that are written or read layer by layer.

use crate::ranges::each;
use crate::{Error, Opened, PutConfig, Ranges, Store, Wishes};
use mooncrate_client::{RangeInto, SessionParts};
use std::time::Duration;

impl Store {
    /// Reserves room for a value of `len` bytes that is written in parts and appears at the end. A key that
    /// has a value, or a put under way, is an error. The session must end within the master's
    /// `put_timeout` (30 s unless set otherwise).
    pub fn put_session(
        &self,
        key: &[u8],
        len: u64,
        config: &PutConfig,
    ) -> Result<PutSession, Error> {
        let session = self.client().put_session(key, len, config)?;
        Ok(PutSession { store: self.clone(), session })
    }

    /// The same for many values, by key and length: the master is asked once for all of them. One result each.
    pub fn put_sessions<'w>(
        &self,
        items: &[(&[u8], u64)],
        wishes: impl Into<Wishes<'w>>,
    ) -> Vec<Result<PutSession, Error>> {
        let sessions = self.client().put_sessions(items, wishes).into_iter();
        sessions.map(|one| Ok(PutSession { store: self.clone(), session: one? })).collect()
    }

    /// Looks a value up once and leases it for `lease`, 10 s at most, to read ranges of it; `None` if there
    /// is no value.
    pub fn get_session(&self, key: &[u8], lease: Duration) -> Result<Option<GetSession>, Error> {
        let session = self.client().get_session(key, lease)?;
        Ok(session.map(|session| GetSession { store: self.clone(), session }))
    }

    /// The same for many values: the master is asked once for all of them. One result each.
    pub fn get_sessions(
        &self,
        keys: &[&[u8]],
        lease: Duration,
    ) -> Vec<Result<Opened<GetSession>, Error>> {
        let opened = self.client().get_sessions(keys, lease).into_iter().map(|one| {
            Ok(match one? {
                Opened::Session(session) => {
                    Opened::Session(GetSession { store: self.clone(), session })
                }
                Opened::Writing => Opened::Writing,
                Opened::Missing => Opened::Missing,
            })
        });
        opened.collect()
    }
}

/// A value that is being written. May be shared by threads. Dropping it without [`PutSession::end`] gives
/// everything back.
#[derive(Debug)]
pub struct PutSession {
    store: Store,
    session: mooncrate_client::PutSession,
}

impl PutSession {
    /// Writes the part of the value that starts at `offset`. Parts come in any order, and each byte once.
    pub fn write(&self, offset: u64, part: &[u8]) -> Result<(), Error> {
        Ok(self.store.client().session_write(&self.session, offset, part)?)
    }

    /// [`PutSession::write`] for parts of many sessions of one store, all within the time of one call; one result
    /// each. Parts of a session that do not make sense together leave it as it was.
    pub fn write_all(items: &[SessionParts<'_, Self>]) -> Vec<Result<(), Error>> {
        let Some((first, _)) = items.first() else { return Vec::new() };
        let inner: Vec<_> = items.iter().map(|(one, parts)| (&one.session, *parts)).collect();
        let written = first.store.client().sessions_write(&inner).into_iter();
        written.map(|one| one.map_err(Error::from)).collect()
    }

    /// Waits for writes on their way, then makes the value visible. A gap is an error that says where, and
    /// leaves the session open; any other error ends it.
    pub fn end(&self) -> Result<(), Error> {
        Ok(self.store.client().session_end(&self.session)?)
    }

    /// Gives up: nothing of the value is left. Whether the session was open.
    pub fn revoke(&self) -> bool {
        self.store.client().session_revoke(&self.session)
    }

    /// [`PutSession::end`] for many sessions of one store: the master is asked once for all of them. One result
    /// each.
    pub fn end_all(sessions: &[&Self]) -> Vec<Result<(), Error>> {
        let Some(first) = sessions.first() else { return Vec::new() };
        let inner: Vec<_> = sessions.iter().map(|one| &one.session).collect();
        let ended = first.store.client().sessions_end(&inner).into_iter();
        ended.map(|one| one.map_err(Error::from)).collect()
    }

    /// [`PutSession::revoke`] for many sessions of one store.
    pub fn revoke_all(sessions: &[&Self]) -> Vec<bool> {
        let Some(first) = sessions.first() else { return Vec::new() };
        let inner: Vec<_> = sessions.iter().map(|one| &one.session).collect();
        first.store.client().sessions_revoke(&inner)
    }
}

impl Drop for PutSession {
    fn drop(&mut self) {
        self.revoke();
    }
}

/// A value that is held by a lease while it is read. May be shared by threads. Reading in the second half
/// of the lease renews it, for 10 minutes at most; dropping it renews it no more.
#[derive(Debug)]
pub struct GetSession {
    store: Store,
    session: mooncrate_client::GetSession,
}

impl GetSession {
    /// Copies the part of the value that starts at `start` into all of `into`, verified.
    pub fn read(&self, start: u64, into: &mut [u8]) -> Result<usize, Error> {
        self.read_ranges(&mut [RangeInto { start, into }])?.pop().expect("one result per range")
    }

    /// Copies several parts. A range that reaches past the end of the value spoils no other.
    pub fn read_ranges(&self, ranges: &mut [RangeInto<'_>]) -> Result<Ranges, Error> {
        Ok(each(self.store.client().session_ranges(&self.session, ranges)?))
    }

    /// [`GetSession::read_ranges`] for many sessions of one store, whose leases are renewed together. One result
    /// each.
    pub fn read_all(items: &mut [(&Self, &mut [RangeInto<'_>])]) -> Vec<Result<Ranges, Error>> {
        let Some((first, _)) = items.first() else { return Vec::new() };
        let store = first.store.clone();
        let mut inner: Vec<(&mooncrate_client::GetSession, &mut [RangeInto<'_>])> =
            items.iter_mut().map(|(one, ranges)| (&one.session, &mut **ranges)).collect();
        let read = store.client().sessions_ranges(&mut inner).into_iter();
        read.map(|one| Ok(each(one?))).collect()
    }

    /// Bytes of the value.
    pub fn value_len(&self) -> u64 {
        self.session.value_len()
    }

    /// What is left of the lease.
    pub fn lease_left(&self) -> Duration {
        self.session.lease_left()
    }
}
