//! A node as the owner of bytes: writers and readers on connections of their own.

use super::Node;
use crate::ctx::{Ctx, Link};
use crate::marks::Mark;
use crate::message::{Begin, CallId, DataError, Event, Path, ToClient, ToNode};
use crate::{MS, US};
use mooncrate_check::{PutId, payload};
use mooncrate_core::{Key, Locator, Medium, PutToken, Seal};
use mooncrate_mem::{BeginWrite, LabelHash, PinGuard, PublishError, SegmentError, WriteGuard};

/// Of a thousand begins of direct puts, at how many the owner's own work on the client's links fails.
const OWNER_FAILS: u32 = 10;

/// A put under way on a connection.
#[derive(Debug)]
pub struct WriteSession {
    call: CallId,
    link: Link,
    guard: WriteGuard,
    path: Path,
    put: PutId,
    key: u16,
    /// Where the stripe starts in the value.
    base: u64,
    /// The owner answers nothing more there, and waits for the writer's end.
    failed: bool,
}

/// A value on its way to a client.
#[derive(Debug)]
pub struct ReadSession {
    call: CallId,
    link: Link,
    pin: PinGuard,
    sent: u64,
    frame: u64,
}

/// A pin that the owner holds for a client.
#[derive(Debug)]
pub struct PinSession {
    call: CallId,
    _pin: PinGuard,
}

impl From<SegmentError> for DataError {
    fn from(error: SegmentError) -> Self {
        match error {
            SegmentError::OldEpoch { .. } => Self::OldEpoch,
            SegmentError::Fenced => Self::Fenced,
            SegmentError::Stale { .. } | SegmentError::OtherMount { .. } => Self::Stale,
            _ => Self::Refused,
        }
    }
}

impl Node {
    fn link(&self, ctx: &Ctx, call: CallId) -> Link {
        Link::new(call.op.client % ctx.swarm.hosts == self.host)
    }

    pub(super) fn handle_data(&mut self, ctx: &mut Ctx, message: ToNode) {
        match message {
            ToNode::Begin(begin) => self.begin(ctx, &begin),
            ToNode::Chunk { call, offset, len } => self.chunk(ctx, call, offset, len),
            ToNode::Signal { call, token, seal } => self.signal(ctx, call, token, seal),
            ToNode::HangUp { call } => self.hang_up(ctx, false, |other| *other == call),
            ToNode::Gone { client, boot } => {
                self.gone[usize::from(client)] = boot + 1;
                self.hang_up(ctx, true, |call| call.op.client == client && call.boot <= boot);
            }
            ToNode::Read { call, locator, len, frames } => {
                self.read(ctx, call, &locator, len, frames);
            }
            ToNode::Pin { call, locator } => {
                let mut link = self.link(ctx, call);
                let result = self.pin(ctx, call, &locator).map(|pin| {
                    self.pins.push(PinSession { call, _pin: pin });
                });
                ctx.call_client(&mut link, self.ix, call, ToClient::Pinned { call, result });
            }
            ToNode::Verify { locator, seal } => {
                let now = ctx.mono(self.host);
                let store = self.store(locator.segment, locator.incarnation);
                let sound = store.map(|store| store.segment.verify(now, &locator, seal));
                ctx.say(|| format!("n{} verifies {locator:?}: {sound:?}", self.ix));
                if let Some(Ok(false)) = sound {
                    ctx.mark(Mark::BadRetired);
                    ctx.ledger.found_bad(&locator);
                }
            }
            ToNode::Attach { call, segment, incarnation } => {
                let mut link = self.link(ctx, call);
                let store = self.store(segment, incarnation).cloned();
                ctx.call_client(&mut link, self.ix, call, ToClient::Attached { call, store });
            }
            _ => unreachable!("the control messages are handled before"),
        }
    }

    /// A connection of a process that is gone says nothing more.
    fn over(&self, call: CallId) -> bool {
        call.boot < self.gone[usize::from(call.op.client)]
    }

    fn begin(&mut self, ctx: &mut Ctx, begin: &Begin) {
        let call = begin.call;
        if self.over(call) {
            return;
        }
        let mut link = self.link(ctx, call);
        let result = self.open(ctx, begin);
        ctx.say(|| {
            let what = result.as_ref().map(|_| ()).map_err(ToString::to_string);
            format!(
                "k{} n{} begins {:?} {:?}: {what:?}",
                begin.key, self.ix, begin.locator, begin.path
            )
        });
        let guard = match result {
            Ok(guard) => guard,
            Err(error) => {
                if let SegmentError::OldEpoch { .. } = error {
                    ctx.mark(Mark::OldEpochRefused);
                }
                let reply = if begin.path == Path::Direct {
                    ToClient::Begun { call, result: Err(error.into()) }
                } else {
                    ToClient::Written { call, result: Err(error.into()) }
                };
                ctx.call_client(&mut link, self.ix, call, reply);
                return;
            }
        };
        let fails = begin.path == Path::Direct && self.rng.chance(OWNER_FAILS);
        if begin.path == Path::Direct && !fails {
            let Locator { segment, incarnation, .. } = begin.locator;
            let store = self.store(segment, incarnation).expect("it was opened").clone();
            let reply = ToClient::Begun { call, result: Ok(store) };
            ctx.call_client(&mut link, self.ix, call, reply);
        }
        let Begin { path, put, key, token, seal, .. } = *begin;
        let (base, len) = (begin.striping.start(begin.locator.stripe), guard.value_len());
        self.writes.push(WriteSession { call, link, guard, path, put, key, base, failed: false });
        if fails {
            self.fail_links(ctx, call);
        }
        if path == Path::Whole {
            self.chunk(ctx, call, 0, len as u32);
            self.signal(ctx, call, token, seal);
        }
    }

    /// The owner's own work on the links of a client ends, at whichever begin: nothing more is answered there. Their ranges
    /// stay until the writer has hung up (R7).
    fn fail_links(&mut self, ctx: &mut Ctx, call: CallId) {
        let of_client =
            |other: &CallId| other.op.client == call.op.client && other.boot == call.boot;
        let mut open = 0;
        for write in &mut self.writes {
            if write.path == Path::Direct && of_client(&write.call) {
                write.failed = true;
                open += 1;
            }
        }
        ctx.say(|| format!("n{} fails on the links of c{}: {open} puts", self.ix, call.op.client));
        if open > 1 {
            ctx.mark(Mark::OwnerFailed);
        }
    }

    fn open(&self, ctx: &Ctx, begin: &Begin) -> Result<WriteGuard, SegmentError> {
        let Locator { segment, incarnation, .. } = begin.locator;
        let stale = SegmentError::OtherMount {
            here: self.stores[0].segment.spec().incarnation,
            asked: incarnation,
        };
        let store = self.store(segment, incarnation).ok_or(stale)?;
        let key = &ctx.keys[usize::from(begin.key)];
        let stripe = begin.locator.stripe;
        let named = Key::new(&key.bytes).expect("a valid key");
        let wishes = begin.wishes.config();
        let label = wishes.label(key.tenant, named, begin.striping, stripe).encode();
        let wanted = BeginWrite {
            locator: begin.locator,
            token: begin.token,
            object: begin.object,
            epoch: begin.epoch,
            len: begin.striping.stripe_len(stripe),
            label: &label,
            hash: LabelHash { hash: key.hash.0, fingerprint: 0 },
        };
        store.segment.begin(ctx.mono(self.host), &wanted)
    }

    fn chunk(&mut self, ctx: &mut Ctx, call: CallId, offset: u64, len: u32) {
        let Some(at) = self.writes.iter().position(|write| write.call == call) else { return };
        let session = &mut self.writes[at];
        let mut bytes = std::mem::take(&mut ctx.scratch);
        bytes.resize(len as usize, 0);
        let key = ctx.keys[usize::from(session.key)].hash;
        payload::fill_range(&mut bytes, session.base + offset, session.put, key);
        // A refused chunk shows at the signal.
        let _ = session.guard.write(offset, &bytes);
        ctx.scratch = bytes;
    }

    fn signal(&mut self, ctx: &mut Ctx, call: CallId, token: PutToken, seal: Seal) {
        let answers = |write: &WriteSession| write.call == call && !write.failed;
        let Some(at) = self.writes.iter().position(answers) else { return };
        let WriteSession { mut link, guard, path, key, .. } = self.writes.swap_remove(at);
        let (locator, now) = (*guard.locator(), ctx.mono(self.host));
        let published = match path {
            Path::Direct => guard.publish_direct(now, token, seal),
            Path::Stream | Path::Whole => guard.publish(now, token, seal),
        };
        // The refused guard is dropped here, which fences the slot: on a direct path the signal
        // comes after the client's last store.
        let result = published.map_err(|unpublished| match unpublished.error {
            PublishError::Aborted => DataError::Aborted,
            PublishError::BadToken
            | PublishError::Incomplete { .. }
            | PublishError::Corrupt { .. }
            | PublishError::Elsewhere
            | PublishError::Busy
            | PublishError::Device => DataError::Refused,
        });
        ctx.say(|| format!("k{key} n{} publishes {locator:?}: {result:?}", self.ix));
        ctx.call_client(&mut link, self.ix, call, ToClient::Written { call, result });
    }

    fn pin(&self, ctx: &mut Ctx, call: CallId, locator: &Locator) -> Result<PinGuard, DataError> {
        if self.over(call) {
            return Err(DataError::Refused);
        }
        let Some(store) = self.store(locator.segment, locator.incarnation) else {
            ctx.mark(Mark::OldMountRefused);
            return Err(DataError::Stale);
        };
        let result = store.segment.pin(ctx.mono(self.host), locator);
        match result {
            Err(SegmentError::Fenced) => ctx.mark(Mark::FencedRead),
            Err(SegmentError::Stale { .. }) => ctx.mark(Mark::GenMismatch),
            Ok(_) if locator.segment.medium() == Medium::Vram => ctx.mark(Mark::VramRead),
            _ => {}
        }
        result.map_err(DataError::from)
    }

    fn read(&mut self, ctx: &mut Ctx, call: CallId, locator: &Locator, len: u64, frames: u8) {
        let mut link = self.link(ctx, call);
        if locator.segment.medium() == Medium::Ssd {
            self.read_disk(ctx, call, link, locator);
            return;
        }
        match self.pin(ctx, call, locator) {
            Err(error) => {
                let reply = ToClient::Pinned { call, result: Err(error) };
                ctx.call_client(&mut link, self.ix, call, reply);
            }
            Ok(pin) => {
                let frame = len.div_ceil(frames.max(1).into()).max(1);
                self.reads.push(ReadSession { call, link, pin, sent: 0, frame });
                self.frame(ctx, call);
            }
        }
    }

    /// Loads a record and sends it: what was loaded stays good, whatever becomes of the record.
    fn read_disk(&mut self, ctx: &mut Ctx, call: CallId, mut link: Link, locator: &Locator) {
        if self.over(call) {
            return;
        }
        let now = ctx.mono(self.host);
        let disk = self.disk_at(locator.segment, locator.incarnation);
        let message = match disk.and_then(|disk| disk.read(now, locator)) {
            Some(bytes) => {
                ctx.mark(Mark::DiskRead);
                ToClient::Frame { call, offset: 0, bytes, last: true }
            }
            None => ToClient::Pinned { call, result: Err(DataError::Stale) },
        };
        link.last += self.rng.below(3 * MS);
        ctx.call_client(&mut link, self.ix, call, message);
    }

    /// Sends the next frame of a read, and the one after it later.
    pub fn frame(&mut self, ctx: &mut Ctx, call: CallId) {
        let Some(at) = self.reads.iter().position(|read| read.call == call) else { return };
        let session = &mut self.reads[at];
        let value = session.pin.bytes();
        let start = session.sent.min(value.len() as u64);
        let end = (start + session.frame).min(value.len() as u64);
        let last = end == value.len() as u64;
        let mut bytes = ctx.buffer(0);
        bytes.extend_from_slice(&value[start as usize..end as usize]);
        session.sent = end;
        let message = ToClient::Frame { call, offset: start, bytes, last };
        let sent = ctx.call_client(&mut session.link, self.ix, call, message);
        if last || !sent {
            self.reads.swap_remove(at);
            return;
        }
        let gap = if self.rng.chance(ctx.swarm.load.slow) {
            self.rng.below(30 * MS)
        } else {
            self.rng.below(60 * US)
        };
        ctx.after(gap, Event::NodeFrame(self.ix, self.boot, call));
    }

    /// A connection is over: its writer can store no more, its pins are taken back.
    fn hang_up(&mut self, ctx: &mut Ctx, died: bool, ended: impl Fn(&CallId) -> bool) {
        let (writes, pins) = (self.writes.len(), self.pins.len() + self.reads.len());
        self.writes.retain(|write| !ended(&write.call));
        self.pins.retain(|pin| !ended(&pin.call));
        self.reads.retain(|read| !ended(&read.call));
        if self.writes.len() < writes {
            ctx.mark(Mark::WriterHungUp);
        }
        if died && self.pins.len() + self.reads.len() < pins {
            ctx.mark(Mark::PinReaped);
        }
    }
}
