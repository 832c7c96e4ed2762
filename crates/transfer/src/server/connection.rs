//! One connection: requests in, replies out, and everything it has begun or pinned.

use super::Inner;
use mooncrate_core::plan::Locator;
use mooncrate_core::time::Deadline;
use mooncrate_core::{Generation, PutToken, Seal, SegmentId, Slot};
use mooncrate_mem::clock::boottime;
use mooncrate_mem::{BeginWrite, LabelHash, PinGuard, Segment, WriteGuard};
use mooncrate_wire::message::{self, Attached, DataReply, DataRequest, PinId, ReadReply};
use mooncrate_wire::{CallError, DataError, Link, RequestId};
use std::collections::BTreeMap;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Bytes received at a time, summed while they are in cache.
const CHUNK_BYTES: u64 = 256 << 10;
/// Puts that one connection may have open.
const OPEN_PUTS_MAX: usize = 1024;
/// A peer that takes this long over one request is cut off.
const REQUEST_TIME_MAX: Duration = Duration::from_mins(1);
/// Hint when a connection holds too much.
const BUSY_MS: u32 = 5;

type Life = (SegmentId, Slot, Generation);

/// A put that this connection has begun.
struct OpenPut {
    guard: WriteGuard,
    /// The bytes are stored by the peer itself, into shared memory.
    direct: bool,
}

pub(super) struct Connection<'a> {
    server: &'a Inner,
    link: Link,
    unix: bool,
    busy: Arc<AtomicBool>,
    puts: BTreeMap<Life, OpenPut>,
    pins: BTreeMap<u64, PinGuard>,
    pinned_bytes: BTreeMap<SegmentId, u64>,
    next_pin: u64,
}

/// A request without the buffer it arrived in.
enum Asked {
    Attach(SegmentId),
    Begin(Put),
    Write(Put),
    Signal(message::Signal),
    Read(message::Read),
    Pin(Vec<Locator>),
    Unpin(Vec<PinId>),
    Abandon(message::Abandon),
}

/// The start of a put.
struct Put {
    locator: Locator,
    len: u64,
    begun: Result<WriteGuard, DataError>,
}

impl<'a> Connection<'a> {
    pub(super) fn new(server: &'a Inner, link: Link, unix: bool, busy: Arc<AtomicBool>) -> Self {
        Self {
            server,
            link,
            unix,
            busy,
            puts: BTreeMap::new(),
            pins: BTreeMap::new(),
            pinned_bytes: BTreeMap::new(),
            next_pin: 0,
        }
    }

    /// Answers requests until the peer hangs up or the server stops.
    pub(super) fn run(mut self) -> Result<(), CallError> {
        while !self.server.stopping() {
            // Whoever holds pins or an open put may take its time: closing would take them away.
            let waits = if self.pins.is_empty() && self.puts.is_empty() {
                boottime().deadline_in(self.server.config.idle_time)
            } else {
                Deadline::NEVER
            };
            let server = self.server;
            let asked = self.link.recv_request(waits)?;
            // Release: pairs with the Acquire in `stop`.
            self.busy.store(true, Ordering::Release);
            let deadline = asked.deadline.min(boottime().deadline_in(REQUEST_TIME_MAX));
            let id = asked.id;
            let asked = take(server, asked.request);
            self.answer(id, asked, deadline)?;
            self.busy.store(false, Ordering::Release);
        }
        Ok(())
    }

    fn answer(&mut self, id: RequestId, asked: Asked, deadline: Deadline) -> Result<(), CallError> {
        let reply = match asked {
            Asked::Read(read) => return self.read(id, &read, deadline),
            Asked::Attach(segment) => return self.attach(id, segment, deadline),
            Asked::Write(put) => DataReply::Write(self.write(put, deadline)?),
            Asked::Begin(put) => DataReply::Begin(self.begin(put)),
            Asked::Signal(signal) => {
                DataReply::Signal(self.signal(&signal.locator, signal.token, signal.seal))
            }
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
                self.puts.remove(&life(&abandon.locator));
                DataReply::Abandon(Ok(()))
            }
        };
        self.link.send_reply(id, &reply, &[], deadline)
    }

    /// Sends a value, pinned until its last byte has left (R5).
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
            Err(error) => return self.link.send_reply(id, &refused(error), &[], deadline),
        };
        let bytes = pin.bytes();
        let part = usize::try_from(read.start)
            .ok()
            .and_then(|start| bytes.get(start..start.checked_add(read.len as usize)?));
        let Some(part) = part else {
            let error = tally.refused.wire(DataError::OutOfBounds);
            return self.link.send_reply(id, &refused(error), &[], deadline);
        };
        let reply = DataReply::Read(ReadReply { result: Ok(part.len() as u64) });
        self.link.send_reply(id, &reply, &[IoSlice::new(part)], deadline)?;
        tally.reads.note(boottime().since(began));
        tally.read_bytes.add(part.len() as u64);
        Ok(())
    }

    fn find_pinned(&self, locator: &Locator) -> Result<PinGuard, DataError> {
        let refused = &self.server.tally.refused;
        let segment = self.server.segments.find(locator).map_err(|error| refused.wire(error))?;
        segment.pin(boottime(), locator).map_err(|error| refused.memory(&error))
    }

    fn attach(
        &mut self,
        id: RequestId,
        segment: SegmentId,
        deadline: Deadline,
    ) -> Result<(), CallError> {
        let found = self.server.segments.get(segment).ok_or(DataError::UnknownSegment);
        let shareable = found.and_then(|segment| {
            if self.unix && segment.fds().is_some() {
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
                self.link.send_reply_with_fds(id, &reply, &[headers, payload], deadline)
            }
            Err(error) => self.link.send_reply(id, &DataReply::Attach(Err(error)), &[], deadline),
        }
    }

    /// Takes a value off the socket, straight into its extent.
    fn write(&mut self, put: Put, deadline: Deadline) -> Result<Result<(), DataError>, CallError> {
        let began = boottime();
        let accepted = self.room_for_put().and(put.begun);
        let mut guard = match accepted {
            Ok(guard) => guard,
            Err(error) => {
                self.link.skip_attachment(deadline)?;
                return Ok(Err(error));
            }
        };
        let mut at = 0;
        while at < put.len {
            let len = (put.len - at).min(CHUNK_BYTES) as usize;
            self.link.recv_attachment(guard.buffer(len), |_| (), deadline)?;
            guard.filled(len).expect("the buffer was cut to the value");
            at += len as u64;
        }
        self.puts.insert(life(&put.locator), OpenPut { guard, direct: false });
        self.server.tally.writes.note(boottime().since(began));
        Ok(Ok(()))
    }

    fn begin(&mut self, put: Put) -> Result<(), DataError> {
        self.room_for_put()?;
        if !self.unix {
            return Err(self.server.tally.refused.wire(DataError::Unsupported));
        }
        self.puts.insert(life(&put.locator), OpenPut { guard: put.begun?, direct: true });
        Ok(())
    }

    fn room_for_put(&self) -> Result<(), DataError> {
        if self.puts.len() < OPEN_PUTS_MAX {
            Ok(())
        } else {
            Err(self.server.tally.refused.wire(DataError::Busy { after_ms: BUSY_MS }))
        }
    }

    /// Publishes, after the last byte; a put that cannot be published is over.
    fn signal(&mut self, locator: &Locator, token: PutToken, seal: Seal) -> Result<(), DataError> {
        let tally = &self.server.tally;
        let open = self.puts.remove(&life(locator));
        let OpenPut { guard, direct } =
            open.ok_or_else(|| tally.refused.wire(DataError::BadToken))?;
        let (now, len) = (boottime(), guard.value_len());
        let published = if direct {
            guard.publish_direct(now, token, seal)
        } else {
            guard.publish(now, token, seal)
        };
        published.map_err(|refused| tally.refused.unpublished(&refused.error))?;
        tally.published.one();
        tally.published_bytes.add(len);
        Ok(())
    }

    fn pin(&mut self, locator: &Locator) -> Result<PinId, DataError> {
        let tally = &self.server.tally;
        let segment =
            self.server.segments.find(locator).map_err(|error| tally.refused.wire(error))?;
        let limit = segment.spec().identity().bytes / 100 * self.server.config.pinned_percent_max;
        let held = self.pinned_bytes.entry(locator.segment).or_default();
        if *held + locator.extent.len() > limit {
            return Err(tally.refused.wire(DataError::Busy { after_ms: BUSY_MS }));
        }
        let pin = segment.pin(boottime(), locator).map_err(|error| tally.refused.memory(&error))?;
        tally.pins.raise(1);
        *held += locator.extent.len();
        self.next_pin += 1;
        self.pins.insert(self.next_pin, pin);
        Ok(PinId(self.next_pin))
    }

    fn unpin(&mut self, id: PinId) {
        if let Some(pin) = self.pins.remove(&id.0) {
            let locator = pin.locator();
            let held = self.pinned_bytes.entry(locator.segment).or_default();
            *held = held.saturating_sub(locator.extent.len());
            self.server.tally.pins.lower(1);
        }
    }
}

impl Drop for Connection<'_> {
    /// Its pins end with it.
    fn drop(&mut self) {
        self.server.tally.pins.lower(self.pins.len() as u64);
    }
}

fn life(locator: &Locator) -> Life {
    (locator.segment, locator.slot, locator.generation)
}

/// Takes a request out of the buffer it arrived in; a put begins here, while its key is at hand.
fn take(server: &Inner, request: DataRequest<'_>) -> Asked {
    match request {
        DataRequest::Attach(attach) => Asked::Attach(attach.segment),
        DataRequest::Begin(begin) => Asked::Begin(start(server, &begin.put)),
        DataRequest::Write(write) => Asked::Write(start(server, &write.put)),
        DataRequest::Signal(signal) => Asked::Signal(signal),
        DataRequest::Read(read) => Asked::Read(read),
        DataRequest::Pin(pin) => Asked::Pin(pin.locators.into_owned()),
        DataRequest::Unpin(unpin) => Asked::Unpin(unpin.ids.into_owned()),
        DataRequest::Abandon(abandon) => Asked::Abandon(abandon),
    }
}

fn start(server: &Inner, put: &message::BeginWrite<'_>) -> Put {
    let open = |segment: Arc<Segment>| {
        let begin = BeginWrite {
            locator: put.locator,
            token: put.token,
            object: put.object,
            epoch: put.epoch,
            len: put.len,
            label: put.label,
            hash: LabelHash::of(put.label),
        };
        segment.begin(boottime(), &begin).map_err(|error| server.tally.refused.memory(&error))
    };
    let found = server.segments.find(&put.locator);
    let begun = found.map_err(|error| server.tally.refused.wire(error)).and_then(open);
    Put { locator: put.locator, len: put.len, begun }
}
