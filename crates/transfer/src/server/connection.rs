//! One connection: requests in, replies out, and everything it has begun or pinned.

use super::Inner;
use super::far::{bytes_deadline, publish_parts, stores_directly, wait_for_room};
use super::overdue::Overdue;
use super::staging::Booked;
use crate::error::unwritten;
use crate::local::in_memory;
use mooncrate_core::canary::{self, Canary};
use mooncrate_core::plan::{Locator, Right};
use mooncrate_core::time::Deadline;
use mooncrate_core::{Generation, Now, SegmentId, Slot, label};
use mooncrate_mem::clock::boottime;
use mooncrate_mem::{BeginWrite, LabelHash, PinGuard, Segment, WriteGuard};
use mooncrate_wire::auth::GrantError;
use mooncrate_wire::clock::wall_seconds;
use mooncrate_wire::message::{
    self, Attached, DataReply, DataRequest, PinId, ReadReply, Role, StageItem, Staged,
};
use mooncrate_wire::{CallError, Credential, DataError, Link, RequestId};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Bytes received at a time, summed while they are in cache.
const CHUNK_BYTES: u64 = 256 << 10;
/// Puts that one connection may have open.
const OPEN_PUTS_MAX: usize = 1024;
/// A peer that takes this long over one request is cut off.
const REQUEST_TIME_MAX: Duration = Duration::from_mins(1);
/// How long the end of a peer is waited for before the owner looks whether it should end itself.
const END_LOOK: Duration = Duration::from_secs(1);
/// Hint when a connection holds too much.
pub(super) const BUSY_MS: u32 = 5;

pub(super) type Life = (SegmentId, Slot, Generation);

/// A put that this connection has begun.
struct OpenPut {
    guard: WriteGuard,
    how: How,
}

/// How the bytes of a put come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// They came through us, in order.
    Streamed,
    /// The peer itself stores them, into shared memory.
    Direct,
    /// In parts, in any order.
    Parts,
}

/// A pin that this connection has, and since when.
struct Pinned {
    guard: PinGuard,
    since: Now,
    /// What its tenant was booked for it.
    weight: u64,
}

pub(super) struct Connection<'a> {
    pub(super) server: &'a Inner,
    pub(super) link: Link,
    /// Who is at the other end.
    peer: Credential,
    unix: bool,
    busy: Arc<AtomicBool>,
    puts: Puts,
    /// While it has a put in parts.
    session: Option<SessionSeat<'a>>,
    /// When the callers give up whose answers are queued.
    answers_until: Option<Deadline>,
    pins: BTreeMap<u64, Pinned>,
    overdue: Overdue,
    pinned_bytes: BTreeMap<SegmentId, u64>,
    next_pin: u64,
    /// What was staged for it.
    booked: Booked,
}

/// A request without the buffer it arrived in.
enum Asked {
    Attach(message::Attach),
    Begin(Put),
    Write(Put),
    Signal(message::Signal),
    Read(message::Read),
    Pin(Vec<Locator>),
    Unpin(Vec<PinId>),
    Abandon(message::Abandon),
    Open(Put),
    WritePart(message::WritePart),
    Stage(Vec<StageItem>),
    Release(Vec<Locator>),
    Verify(message::Verify),
    Lend(SegmentId),
}

/// A place among the connections that have puts in parts.
struct SessionSeat<'a>(&'a AtomicUsize);

impl<'a> SessionSeat<'a> {
    /// `None`: half of all connections have such puts.
    fn take(server: &'a Inner) -> Option<Self> {
        let most = (server.config.connections_max / 2).max(1);
        // Relaxed: a count that orders nothing.
        let taken = server.sessions.fetch_add(1, Ordering::Relaxed);
        let seat = Self(&server.sessions);
        (taken < most).then_some(seat)
    }
}

impl Drop for SessionSeat<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Puts of a connection that are begun.
type Puts = BTreeMap<Life, OpenPut>;

/// The start of a put.
struct Put {
    locator: Locator,
    len: u64,
    begun: Result<WriteGuard, DataError>,
}

impl<'a> Connection<'a> {
    pub(super) fn new(
        server: &'a Inner,
        link: Link,
        peer: Credential,
        unix: bool,
        busy: Arc<AtomicBool>,
    ) -> Self {
        Self {
            server,
            link,
            peer,
            unix,
            busy,
            puts: BTreeMap::new(),
            session: None,
            answers_until: None,
            pins: BTreeMap::new(),
            overdue: Overdue::default(),
            pinned_bytes: BTreeMap::new(),
            next_pin: 0,
            booked: Booked::default(),
        }
    }

    /// Answers requests until the peer hangs up or the server stops.
    pub(super) fn run(mut self) -> Result<(), CallError> {
        while !self.server.stopping() {
            // Whoever holds pins or an open put may take its time: closing would take them away.
            let waits = if self.pins.is_empty() {
                boottime().deadline_in(self.server.config.idle_time)
            } else {
                Deadline::NEVER
            };
            let (server, peer) = (self.server, self.peer);
            let (busy, puts) = (&self.busy, &self.puts);
            let asked = self.link.recv_request(waits).map(|asked| {
                // Release: pairs with the Acquire in `stop`.
                busy.store(true, Ordering::Release);
                (asked.id, asked.deadline, take(server, peer, puts, asked.request))
            });
            let (id, deadline, asked) = match asked {
                Err(CallError::Deadline { .. }) if self.link.is_open() && self.has_puts() => {
                    continue;
                }
                asked => asked?,
            };
            let deadline = deadline.min(boottime().deadline_in(REQUEST_TIME_MAX));
            // Answers that are queued are not lost by a caller in a hurry.
            let deadline = self.answers_until.map_or(deadline, |until| until.max(deadline));
            self.answers_until = Some(deadline);
            self.answer(id, asked, deadline)?;
            if !self.link.has_request() {
                self.link.flush(deadline)?;
                self.answers_until = None;
                self.busy.store(false, Ordering::Release);
            }
        }
        self.link.flush(boottime().deadline_in(REQUEST_TIME_MAX))
    }

    /// Whether a put is under way. Those that the master gave up are not any more, so a peer that forgot them does not
    /// keep its connection for ever. Where the peer itself stores, only its hanging up tells that it has let go (R7).
    fn has_puts(&mut self) -> bool {
        self.puts.retain(|_, put| put.how == How::Direct || !put.guard.aborted());
        self.give_session_back();
        !self.puts.is_empty()
    }

    /// A connection without a put in parts has no session.
    fn give_session_back(&mut self) {
        if self.puts.values().all(|put| put.how != How::Parts) {
            self.session = None;
        }
    }

    /// Answers. What small puts are told, one after the other, leaves together; nobody's answer waits for
    /// a request that may take long.
    fn answer(&mut self, id: RequestId, asked: Asked, deadline: Deadline) -> Result<(), CallError> {
        if !self.is_quick(&asked) {
            self.link.flush(deadline)?;
        }
        let reply = match asked {
            Asked::Read(read) => return self.read(id, &read, deadline),
            Asked::Attach(attach) => return self.attach(id, &attach, deadline),
            Asked::Lend(segment) => return self.lend(id, segment, deadline),
            Asked::Write(put) => DataReply::Write(self.write(put, deadline)?),
            Asked::Begin(put) => DataReply::Begin(self.begin(put)),
            Asked::Open(put) => DataReply::Open(self.open(put)),
            Asked::WritePart(part) => DataReply::WritePart(self.write_part(&part, deadline)?),
            Asked::Stage(items) => DataReply::Stage(self.stage(&items, deadline)),
            Asked::Release(locators) => {
                self.release(&locators);
                DataReply::Release(())
            }
            Asked::Verify(ask) => DataReply::Verify(self.verify(&ask)),
            Asked::Signal(signal) => DataReply::Signal(self.signal(&signal, deadline)),
            Asked::Pin(locators) => {
                DataReply::Pin(locators.iter().map(|locator| self.pin(locator)).collect())
            }
            Asked::Unpin(ids) => {
                for id in ids {
                    self.unpin(id);
                }
                DataReply::Unpin(())
            }
            Asked::Abandon(abandon) => {
                let leave = granted(self.server, self.peer, &abandon.locator, Right::Write);
                DataReply::Abandon(leave.map(|()| {
                    self.puts.remove(&life(&abandon.locator));
                    self.give_session_back();
                }))
            }
        };
        self.link.queue_reply(id, &reply, &[], deadline)
    }

    /// Whether a request waits for nothing but bytes of its peer.
    fn is_quick(&self, asked: &Asked) -> bool {
        let near = |segment: SegmentId| {
            self.server.segments.get(segment).is_none_or(|segment| segment.far().is_none())
        };
        match asked {
            Asked::Write(put) => near(put.locator.segment),
            Asked::Read(read) => near(read.locator.segment),
            Asked::Begin(_) | Asked::Abandon(_) => true,
            // What came in parts is summed now.
            Asked::Signal(signal) => {
                self.puts.get(&life(&signal.locator)).is_none_or(|put| put.how != How::Parts)
            }
            _ => false,
        }
    }

    /// Sends a value, pinned until its last byte has left its extent (R5): sent, or copied to be sent with others.
    fn read(
        &mut self,
        id: RequestId,
        read: &message::Read,
        deadline: Deadline,
    ) -> Result<(), CallError> {
        let began = boottime();
        let refused = |error| DataReply::Read(ReadReply { result: Err(error) });
        let tally = &self.server.tally;
        let pin = match self.find_pinned(&read.locator) {
            Ok(pin) => pin,
            Err(error) => return self.link.queue_reply(id, &refused(error), &[], deadline),
        };
        if pin.segment().far().is_some() {
            if let Some(sent) = self.read_far(id, read, &pin, deadline)? {
                tally.reads.note(boottime().since(began));
                tally.read_bytes.add(sent);
            }
            return Ok(());
        }
        let bytes = pin.sealed_bytes();
        let part = usize::try_from(read.start)
            .ok()
            .and_then(|start| bytes.get(start..start.checked_add(read.len as usize)?));
        let Some(part) = part else {
            let error = tally.refused.wire(DataError::OutOfBounds);
            return self.link.queue_reply(id, &refused(error), &[], deadline);
        };
        let reply = DataReply::Read(ReadReply { result: Ok(part.len() as u64) });
        self.link.queue_reply(id, &reply, &[IoSlice::new(part)], deadline)?;
        tally.reads.note(boottime().since(began));
        tally.read_bytes.add(part.len() as u64);
        Ok(())
    }

    fn find_pinned(&self, locator: &Locator) -> Result<PinGuard, DataError> {
        let segment = self.readable(locator)?;
        let refused = &self.server.tally.refused;
        segment.pin(boottime(), locator).map_err(|error| refused.memory(&error))
    }

    /// Sums a value that the peer found wrong. It costs what a read of it costs, and is done by the
    /// thread of the connection that asked: whoever asks for more waits for himself.
    fn verify(&self, ask: &message::Verify) -> Result<bool, DataError> {
        let segment = self.readable(&ask.locator)?;
        let refused = &self.server.tally.refused;
        segment.verify(boottime(), &ask.locator, ask.seal).map_err(|error| refused.memory(&error))
    }

    /// The segment of a locator in memory that the peer may read.
    fn readable(&self, locator: &Locator) -> Result<Arc<Segment>, DataError> {
        granted(self.server, self.peer, locator, Right::Read)
            .and_then(|()| self.server.segments.find(locator))
            .and_then(in_memory)
            .map_err(|error| self.server.tally.refused.wire(error))
    }

    /// Whether this peer may map our memory: one memfd never holds values of two tenants, and the
    /// kernel must know the user.
    pub(super) fn may_share(&self) -> bool {
        let config = &self.server.config;
        let own_tenant = !config.gate.is_guarded() || config.dedicated == Some(self.peer.tenant);
        let own = rustix::process::geteuid().as_raw();
        let known = |user| user == own || user == 0 || config.share_users.contains(&user);
        own_tenant && self.unix && self.link.peer_user().is_some_and(known)
    }

    fn attach(
        &mut self,
        id: RequestId,
        attach: &message::Attach,
        deadline: Deadline,
    ) -> Result<(), CallError> {
        let found = self.server.segments.get(attach.segment).ok_or(DataError::UnknownSegment);
        let shareable = found.and_then(|segment| {
            if segment.fds().is_some() && self.may_share() {
                Ok(segment)
            } else {
                Err(DataError::Unsupported)
            }
        });
        match shareable {
            Ok(segment) => {
                let identity = segment.spec().identity();
                let reply = DataReply::Attach(Ok(Attached {
                    incarnation: identity.incarnation,
                    slots: identity.slots,
                    bytes: identity.bytes,
                }));
                let (headers, payload) = segment.fds().expect("checked above");
                let life = self.server.segments.life();
                let mut fds = vec![headers, payload];
                fds.extend(life.as_ref().and_then(|life| life.fd()));
                if attach.stores {
                    // Whoever only reads never has it writable.
                    fds = segment.writable_fd().into_iter().collect();
                }
                self.link.send_reply_with_fds(id, &reply, &fds, deadline)
            }
            Err(error) => self.link.queue_reply(id, &DataReply::Attach(Err(error)), &[], deadline),
        }
    }

    /// Takes a value off the socket, straight into its extent.
    fn write(&mut self, put: Put, deadline: Deadline) -> Result<Result<(), DataError>, CallError> {
        let began = boottime();
        let mut guard = match put.begun {
            Ok(guard) => guard,
            Err(error) => {
                self.link.skip_attachment(deadline)?;
                return Ok(Err(error));
            }
        };
        let mut at = 0;
        while at < put.len {
            let len = (put.len - at).min(CHUNK_BYTES) as usize;
            wait_for_room(&mut guard, deadline, |guard| guard.buffer(len).map(|_| ()));
            let soon = bytes_deadline(&guard, deadline);
            let taken = match guard.buffer(len) {
                Ok(buffer) => {
                    self.link.recv_attachment(buffer, |_| (), soon)?;
                    let len = buffer.len();
                    guard.filled(len).map(|()| len as u64)
                }
                Err(error) => Err(error),
            };
            match taken {
                Ok(len) => at += len,
                Err(error) => {
                    self.link.skip_attachment(deadline)?;
                    return Ok(Err(self.server.tally.refused.wire(unwritten(&error))));
                }
            }
        }
        self.puts.insert(life(&put.locator), OpenPut { guard, how: How::Streamed });
        self.server.tally.writes.note(boottime().since(began));
        Ok(Ok(()))
    }

    /// Opens a put that the peer stores into our memory itself.
    fn begin(&mut self, put: Put) -> Result<(), DataError> {
        let segment = self.server.segments.find(&put.locator)?;
        // Whoever cannot map the memory cannot have stored anything in it.
        if !self.may_share() || !stores_directly(&segment) {
            return Err(self.server.tally.refused.wire(DataError::Unsupported));
        }
        self.puts.insert(life(&put.locator), OpenPut { guard: put.begun?, how: How::Direct });
        Ok(())
    }

    /// Opens a put in parts. It may stay open for long, and has a connection of its own: so that others find one,
    /// such puts have half of them.
    fn open(&mut self, put: Put) -> Result<(), DataError> {
        let guard = put.begun?;
        if self.session.is_none() {
            let seat = SessionSeat::take(self.server);
            let busy = || self.server.tally.refused.wire(DataError::Busy { after_ms: BUSY_MS });
            self.session = Some(seat.ok_or_else(busy)?);
        }
        self.puts.insert(life(&put.locator), OpenPut { guard, how: How::Parts });
        Ok(())
    }

    /// Takes a part of a value off the socket, straight to its place.
    fn write_part(
        &mut self,
        part: &message::WritePart,
        deadline: Deadline,
    ) -> Result<Result<(), DataError>, CallError> {
        let refused = &self.server.tally.refused;
        let leave = granted(self.server, self.peer, &part.locator, Right::Write);
        let open = self.puts.get_mut(&life(&part.locator));
        let ours = open.filter(|put| put.how == How::Parts && put.guard.token() == part.token);
        let guard = match leave.and(ours.ok_or(DataError::BadToken)) {
            Ok(put) => &mut put.guard,
            Err(error) => {
                self.link.skip_attachment(deadline)?;
                return Ok(Err(refused.wire(error)));
            }
        };
        let mut at = 0;
        loop {
            let (offset, left) = (part.offset.saturating_add(at), (part.len - at) as usize);
            wait_for_room(guard, deadline, |guard| guard.place(offset, left).map(|_| ()));
            let soon = bytes_deadline(guard, deadline);
            let taken = match guard.place(offset, left) {
                Ok(place) => {
                    self.link.recv_attachment(place, |_| (), soon)?;
                    let len = place.len();
                    guard.placed().map(|()| len as u64)
                }
                Err(error) => Err(error),
            };
            match taken {
                Ok(len) => at += len,
                Err(error) => {
                    self.link.skip_attachment(deadline)?;
                    return Ok(Err(refused.wire(unwritten(&error))));
                }
            }
            if at >= part.len {
                return Ok(Ok(()));
            }
        }
    }

    /// Publishes, after the last byte; a put that cannot be published is over.
    fn signal(&mut self, signal: &message::Signal, deadline: Deadline) -> Result<(), DataError> {
        let message::Signal { ref locator, token, seal } = *signal;
        let tally = &self.server.tally;
        granted(self.server, self.peer, locator, Right::Write)
            .map_err(|error| tally.refused.wire(error))?;
        let open = self.puts.remove(&life(locator));
        let OpenPut { guard, how } = open.ok_or_else(|| tally.refused.wire(DataError::BadToken))?;
        self.give_session_back();
        let (now, len) = (boottime(), guard.value_len());
        let published = match how {
            How::Streamed => guard.publish(now, token, seal),
            How::Direct => guard.publish_direct(now, token, seal),
            How::Parts => publish_parts(guard, token, seal, deadline),
        };
        published.map_err(|refused| tally.refused.unpublished(&refused.error))?;
        tally.published.one();
        tally.published_bytes.add(len);
        Ok(())
    }

    fn pin(&mut self, locator: &Locator) -> Result<PinId, DataError> {
        let tally = &self.server.tally;
        let segment = granted(self.server, self.peer, locator, Right::Read)
            .and_then(|()| self.server.segments.find(locator))
            .and_then(in_memory)
            .map_err(|error| tally.refused.wire(error))?;
        // Whoever cannot map the memory has nothing to keep in place.
        if !self.may_share() {
            return Err(tally.refused.wire(DataError::Unsupported));
        }
        let (now, bytes, config) = (boottime(), locator.extent.len(), &self.server.config);
        let identity = segment.spec().identity();
        let percent = identity.bytes / 100;
        // A slot counts as the bytes that stand behind each, or pins of empty values would take them all.
        let weight = bytes.max(identity.bytes / u64::from(identity.slots.max(1)));
        let held = self.pinned_bytes.get(&locator.segment).copied().unwrap_or(0);
        let too_many = held.saturating_add(bytes) > percent * config.pinned_percent_max;
        // A tenant that has the segment for itself takes nothing from others.
        let alone = config.dedicated == Some(self.peer.tenant);
        let share = if alone { u64::MAX } else { percent * config.tenant_pinned_percent_max };
        let overdue = self.is_overdue(now);
        let booked = || self.server.pinned.book(self.peer.tenant, locator.segment, weight, share);
        if too_many || overdue || !booked() {
            return Err(tally.refused.wire(DataError::Busy { after_ms: BUSY_MS }));
        }
        let guard = segment.pin(now, locator).map_err(|error| {
            self.server.pinned.give_back(self.peer.tenant, locator.segment, weight);
            tally.refused.memory(&error)
        })?;
        tally.pins.raise(1);
        *self.pinned_bytes.entry(locator.segment).or_default() += bytes;
        self.next_pin += 1;
        self.pins.insert(self.next_pin, Pinned { guard, since: now, weight });
        Ok(PinId(self.next_pin))
    }

    /// Whether one of its pins keeps what was removed, and has for long.
    fn is_overdue(&mut self, now: Now) -> bool {
        let age = self.server.config.pin_age_max;
        let is_old = |pin: &Pinned| now.since(pin.since) >= age;
        self.overdue.look(&self.pins, is_old, |pin| pin.guard.is_retired())
    }

    fn stage(&mut self, items: &[StageItem], deadline: Deadline) -> Vec<Result<Staged, DataError>> {
        let (server, peer) = (self.server, self.peer);
        let leave = |item: &StageItem| granted(server, peer, &item.locator, Right::Read);
        let mut staged = self.booked.stage(server, items, leave, deadline);
        if let Some(key) = server.config.gate.grants() {
            // What was staged for this peer is read by it alone, over any of its links.
            for one in staged.iter_mut().flatten() {
                let grant = key.mint(&one.locator, peer.tenant, Right::Read, wall_seconds());
                one.locator.grant = Some(grant);
            }
        }
        staged
    }

    fn release(&mut self, locators: &[Locator]) {
        self.booked.release(self.server, locators);
    }

    fn unpin(&mut self, id: PinId) {
        if let Some(pin) = self.pins.remove(&id.0) {
            let locator = pin.guard.locator();
            self.server.pinned.give_back(self.peer.tenant, locator.segment, pin.weight);
            let held = self.pinned_bytes.entry(locator.segment).or_default();
            *held = held.saturating_sub(locator.extent.len());
            self.server.tally.pins.lower(1);
        }
    }

    /// Waits for the end of a peer that can reach our memory by itself; whether that was seen. Why this side has
    /// stopped answering tells nothing: the peer may be in the middle of a copy, or look at a value (R4, R7).
    fn sees_end(&mut self) -> bool {
        while !self.server.stopping() {
            if self.link.await_end(boottime().deadline_in(END_LOOK)) {
                // Whoever stops the server closes its links: that looks the same from here.
                return !self.server.stopping();
            }
        }
        false
    }
}

impl Drop for Connection<'_> {
    /// What it has begun, pinned or staged ends with it; what the peer can reach by itself when the peer has hung up.
    fn drop(&mut self) {
        self.busy.store(false, Ordering::Release);
        self.puts.retain(|_, put| put.how == How::Direct);
        self.session = None;
        self.booked.release_all(self.server);
        let unused = self.puts.is_empty() && self.pins.is_empty();
        let gone = unused || canary::on(Canary::FailedOwnerFrees) || self.sees_end();
        self.server.tally.pins.lower(self.pins.len() as u64);
        for Pinned { guard, weight, .. } in std::mem::take(&mut self.pins).into_values() {
            self.server.pinned.give_back(self.peer.tenant, guard.locator().segment, weight);
            if gone {
                drop(guard);
            } else {
                guard.leave();
            }
        }
        for OpenPut { guard, .. } in std::mem::take(&mut self.puts).into_values() {
            match guard.segment().far() {
                _ if !gone => guard.leave_in_quarantine(),
                Some(_) => self.server.keep_late(guard),
                None => drop(guard),
            }
        }
    }
}

pub(super) fn life(locator: &Locator) -> Life {
    (locator.segment, locator.slot, locator.generation)
}

/// Takes a request out of the buffer it arrived in; a put begins here, while its key is at hand.
fn take(server: &Inner, peer: Credential, puts: &Puts, request: DataRequest<'_>) -> Asked {
    let start = |put: &message::BeginWrite<'_>| start(server, peer, puts, put);
    match request {
        DataRequest::Attach(attach) => Asked::Attach(attach),
        DataRequest::Begin(begin) => Asked::Begin(start(&begin.put)),
        DataRequest::Write(write) => Asked::Write(start(&write.put)),
        DataRequest::Signal(signal) => Asked::Signal(signal),
        DataRequest::Read(read) => Asked::Read(read),
        DataRequest::Pin(pin) => Asked::Pin(pin.locators.into_owned()),
        DataRequest::Unpin(unpin) => Asked::Unpin(unpin.ids.into_owned()),
        DataRequest::Abandon(abandon) => Asked::Abandon(abandon),
        DataRequest::Open(open) => Asked::Open(start(&open.put)),
        DataRequest::WritePart(part) => Asked::WritePart(part),
        DataRequest::Stage(stage) => Asked::Stage(stage.items.into_owned()),
        DataRequest::Release(release) => Asked::Release(release.locators.into_owned()),
        DataRequest::Verify(ask) => Asked::Verify(ask),
        DataRequest::Lend(lend) => Asked::Lend(lend.segment),
    }
}

/// Whether the master has given this peer leave to use a locator so. Nothing is looked up before:
/// whoever has no grant learns nothing about what is here.
fn granted(
    server: &Inner,
    peer: Credential,
    locator: &Locator,
    right: Right,
) -> Result<(), DataError> {
    let config = &server.config;
    let Some(key) = config.gate.grants() else { return Ok(()) };
    let foreign = config.dedicated.is_some_and(|tenant| tenant != peer.tenant);
    if foreign && !matches!(peer.role, Role::Node | Role::Master) {
        return Err(DataError::Denied);
    }
    key.check(locator, right, peer, wall_seconds()).map_err(|error| match error {
        GrantError::Expired => DataError::Expired,
        GrantError::Denied => DataError::Denied,
    })
}

/// The label as the owner keeps it. A master that lost its index believes it, so in a cluster with
/// credentials the tenant in it is the peer's own, whatever the peer wrote there.
fn own_label<'a>(server: &Inner, peer: Credential, label: &'a [u8]) -> Cow<'a, [u8]> {
    let trusted = matches!(peer.role, Role::Node | Role::Master);
    if trusted || !server.config.gate.is_guarded() || label::tenant(label) == Some(peer.tenant) {
        return Cow::Borrowed(label);
    }
    let mut own = label.to_vec();
    if let Some(tenant) = own.first_chunk_mut() {
        *tenant = peer.tenant.0.to_le_bytes();
    }
    Cow::Owned(own)
}

/// One put always has room; more of them share a part of the segment.
fn has_room(server: &Inner, puts: &Puts, segment: &Segment, locator: &Locator) -> bool {
    let of_segment = puts.iter().filter(|(open, _)| open.0 == locator.segment);
    let open: u64 = of_segment.map(|(_, put)| put.guard.locator().extent.len()).sum();
    let limit = segment.spec().bytes / 100 * server.config.open_percent_max;
    let fits = puts.is_empty() || open.saturating_add(locator.extent.len()) <= limit;
    puts.len() < OPEN_PUTS_MAX && fits
}

/// Begins a put. Who is refused for want of room may ask again: the life of the slot has not begun.
fn start(server: &Inner, peer: Credential, puts: &Puts, put: &message::BeginWrite<'_>) -> Put {
    let open = |segment: Arc<Segment>| {
        let label = own_label(server, peer, put.label);
        let begin = BeginWrite {
            locator: put.locator,
            token: put.token,
            object: put.object,
            epoch: put.epoch,
            len: put.len,
            label: &label,
            hash: LabelHash::of(&label),
        };
        segment.begin(boottime(), &begin).map_err(|error| server.tally.refused.memory(&error))
    };
    let found = granted(server, peer, &put.locator, Right::Write)
        .and_then(|()| server.segments.find(&put.locator))
        .and_then(in_memory)
        .and_then(|segment| {
            let room = has_room(server, puts, &segment, &put.locator);
            if room { Ok(segment) } else { Err(DataError::Busy { after_ms: BUSY_MS }) }
        });
    let begun = found.map_err(|error| server.tally.refused.wire(error)).and_then(open);
    Put { locator: put.locator, len: put.len, begun }
}
