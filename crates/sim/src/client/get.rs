//! get: a locator from the cache or the master, then the bytes: in frames from the owner, or copied
//! out of mapped memory in steps, with other events between them.

use super::Client;
use super::op::{Body, Flow, Op, Outcome};
use crate::ctx::{Ctx, Link};
use crate::marks::Mark;
use crate::message::{Actor, Ask, CallId, DataError, Event, ToNode};
use crate::node::Store;
use crate::swarm::between;
use crate::{MS, Nanos, US};
use mooncrate_check::{Got, OpId, What};
use mooncrate_core::error::GetError;
use mooncrate_core::word::Word;
use mooncrate_core::{Extent, Generation, Located, Locator, Medium, Now, ReplicaState, lease};
use mooncrate_mem::read::{self, Reading};
use mooncrate_mem::sums::seal_of;
use mooncrate_mem::{OneSided, ReadError};
use std::sync::Arc;

/// Reads that one read of a simulated client stands for: a master takes one sample of 64, and a run is short.
const READS: u32 = 20;

/// What a reader does to be sure (R11).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Word, leave to serve, checksum.
    Full,
    /// Word and leave to serve, or a pin of the owner; no checksum.
    Pinned,
    /// Nothing but its own lease and the leave to serve.
    LeaseOnly,
}

/// What a get waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waits {
    Master,
    Mapping,
    Pin,
    Frames,
    Copy,
}

/// A get under way.
#[derive(Debug)]
pub(super) struct GetOp {
    pub(super) id: OpId,
    pub(super) buffer: Vec<u8>,
    mode: Mode,
    waits: Waits,
    located: Option<Located>,
    /// How often the master has said where.
    asked: u8,
    /// End of the lease, on the client's clock.
    lease_end: Now,
    /// The stripe that is read; those before it are in the buffer.
    stripe: u8,
    /// Where it starts in the value, and its bytes.
    base: u64,
    len: u64,
    /// Replicas that were tried, as bits.
    tried: u32,
    locator: Option<Locator>,
    call: CallId,
    link: Link,
    node: u8,
    store: Option<Arc<Store>>,
    /// The owner holds a pin for this read.
    pinned: bool,
    before: Word,
    copied: u64,
    chunk: u64,
    gap: Nanos,
}

impl Client {
    pub(super) fn get_begin(&mut self, ctx: &mut Ctx, op: &mut Op) -> Flow {
        let id = ctx.op_id();
        ctx.observe(op.key, What::GetBegan { get: id });
        let load = ctx.swarm.load;
        let mode = match self.rng.below(1000) as u32 {
            _ if ctx.calm => Mode::Full,
            n if n < load.lease_only => Mode::LeaseOnly,
            n if n < load.lease_only + load.pinned => Mode::Pinned,
            _ => Mode::Full,
        };
        let cached = self.cache[usize::from(op.key)].clone();
        let use_cache = mode != Mode::LeaseOnly && cached.is_some() && self.rng.chance(load.cached);
        op.body = Body::Get(Box::new(GetOp {
            id,
            buffer: Vec::new(),
            mode,
            waits: Waits::Master,
            located: None,
            asked: 0,
            lease_end: Now(0),
            stripe: 0,
            base: 0,
            len: 0,
            tried: 0,
            locator: None,
            call: CallId { op: op.me, part: 0, boot: self.boot },
            link: Link::new(true),
            node: 0,
            store: None,
            pinned: false,
            before: Word::default(),
            copied: 0,
            chunk: 64,
            gap: 0,
        }));
        if use_cache {
            ctx.mark(Mark::CachedRead);
            self.note_read(op.key, cached.as_ref());
            op.get().located = cached;
            return self.get_choose(ctx, op);
        }
        self.get_locate(ctx, op);
        Flow::Goes
    }

    /// Marks a read that asks nobody; the tick tells it.
    fn note_read(&mut self, key: u16, located: Option<&Located>) {
        if let Some((_, mark)) = self.reads.iter_mut().find(|(marked, _)| *marked == key) {
            mark.reads += READS;
        } else if let Some(mark) = located.and_then(|at| at.read_mark(READS, key.into())) {
            self.reads.push((key, mark));
        }
    }

    fn get_locate(&mut self, ctx: &mut Ctx, op: &mut Op) {
        let lease_ms = match (op.get().mode, self.rng.below(100)) {
            (Mode::LeaseOnly, 0..70) => between(&mut self.rng, 5, 200),
            (Mode::LeaseOnly, 70..95) => between(&mut self.rng, 200, 1000),
            (Mode::LeaseOnly, _) => between(&mut self.rng, 1000, 5000),
            (_, 0..5) => between(&mut self.rng, 5, 100),
            _ => 0,
        };
        op.get().waits = Waits::Master;
        self.ask(ctx, op, Ask::Locate { lease_ms: lease_ms as u32 });
    }

    pub(super) fn get_located(
        &mut self,
        ctx: &mut Ctx,
        op: &mut Op,
        result: Result<Located, GetError>,
    ) -> Flow {
        let (key, sent) = (op.key, op.sent);
        ctx.say(|| format!("k{key} located: {result:?}"));
        match result {
            Ok(located) => {
                if located.object.epoch < ctx.election.epoch {
                    ctx.mark(Mark::RebuildServed);
                }
                self.cache[usize::from(key)] = Some(located.clone());
                let get = op.get();
                get.asked += 1;
                (get.tried, get.stripe) = (0, 0);
                get.lease_end = lease::holder_end(sent, located.lease_ms);
                get.located = Some(located);
                self.get_choose(ctx, op)
            }
            Err(error) => {
                self.cache[usize::from(key)] = None;
                let got = match error {
                    GetError::Rebuilding { .. } => {
                        ctx.mark(Mark::Rebuilding);
                        Got::Failed
                    }
                    _ => Got::Miss,
                };
                get_ended(ctx, op, got)
            }
        }
    }

    /// Takes the next replica and a way to read it; without one, asks the master once more.
    fn get_choose(&mut self, ctx: &mut Ctx, op: &mut Op) -> Flow {
        let me = op.me;
        let get = op.get();
        let located = get.located.as_ref().expect("somebody said where");
        let owners: &[_] = &ctx.owners;
        let (hosts, host) = (ctx.swarm.hosts, self.host);
        let near = |locator: &Locator| {
            owners.iter().any(|(id, node)| *id == locator.segment && node % hosts == host)
        };
        let left =
            |at: &usize| get.tried & 1 << at == 0 && located.replicas[*at].stripe == get.stripe;
        let all = 0..located.replicas.len();
        let choice = all
            .clone()
            .filter(left)
            .find(|at| near(&located.replicas[*at]))
            .or_else(|| all.clone().find(left));
        let Some(at) = choice else {
            self.cache[usize::from(op.key)] = None;
            if op.get().asked < 2 {
                self.get_locate(ctx, op);
                return Flow::Goes;
            }
            // Somebody has it, and nobody could be read: that is no miss.
            return get_ended(ctx, op, Got::Failed);
        };
        let locator = located.replicas[at];
        let (whole, striping) = (located.len(), located.striping);
        let mut others = all.filter(|other| located.replicas[*other].stripe == get.stripe);
        let again = others.any(|other| get.tried & 1 << other != 0);
        let here = near(&locator);
        (get.base, get.len) = (striping.start(get.stripe), striping.stripe_len(get.stripe));
        let len = get.len;
        if again {
            ctx.mark(Mark::ReplicaFallback);
        }
        get.tried |= 1 << at;
        get.locator = Some(locator);
        get.node = ctx.owner(locator.segment);
        let part = get.call.part + 1;
        get.call = CallId { op: me, part, boot: self.boot };
        get.link = Link::new(here);
        get.pinned = false;
        get.copied = 0;
        if get.stripe == 0 {
            let old = std::mem::take(&mut get.buffer);
            ctx.recycle(old);
            get.buffer = ctx.buffer(whole as usize);
        }
        let maps = match locator.segment.medium() {
            Medium::Dram => true,
            // Under a pin of its owner, and not otherwise.
            Medium::Vram => get.mode == Mode::Pinned,
            Medium::Ssd => false,
        };
        let one_sided = maps
            && here
            && (get.mode == Mode::LeaseOnly || self.rng.chance(ctx.swarm.load.one_sided));
        if one_sided {
            return self.get_map(ctx, op, &locator);
        }
        if get.mode == Mode::LeaseOnly {
            // Only mapped memory can be read by a lease.
            get.mode = Mode::Full;
        }
        get.waits = Waits::Frames;
        let frames = if self.rng.chance(600) { 1 } else { between(&mut self.rng, 2, 4) as u8 };
        let read = ToNode::Read { call: get.call, locator, len, frames };
        ctx.call_node(&mut get.link, get.node, get.call, read);
        op.wait_until = ctx.now + between(&mut self.rng, 40, 120) * MS;
        Flow::Goes
    }

    /// Finds or makes a mapping of the segment.
    fn get_map(&mut self, ctx: &mut Ctx, op: &mut Op, locator: &Locator) -> Flow {
        let known = self.mapped(locator).cloned();
        let get = op.get();
        get.store = known;
        if get.store.is_some() {
            return self.get_mapped(ctx, op);
        }
        get.waits = Waits::Mapping;
        let Locator { segment, incarnation, .. } = *locator;
        let attach = ToNode::Attach { call: get.call, segment, incarnation };
        ctx.call_node(&mut get.link, get.node, get.call, attach);
        op.wait_until = ctx.now + 30 * MS;
        Flow::Goes
    }

    pub(super) fn get_attached(
        &mut self,
        ctx: &mut Ctx,
        op: &mut Op,
        call: CallId,
        store: Option<Arc<Store>>,
    ) -> Flow {
        let Body::Get(get) = &mut op.body else { return Flow::Goes };
        if get.call != call || get.waits != Waits::Mapping {
            return Flow::Goes;
        }
        let Some(store) = store else {
            return self.get_stale(ctx, op);
        };
        // A later mount replaces an earlier one; what is being read stays mapped by its reader.
        if self.maps.len() >= 16 {
            self.maps.remove(0);
        }
        self.maps.push(store.clone());
        get.store = Some(store);
        self.get_mapped(ctx, op)
    }

    /// The segment is mapped: pin through the owner, or copy at once.
    fn get_mapped(&mut self, ctx: &mut Ctx, op: &mut Op) -> Flow {
        let locator = op.get().locator.expect("a replica was chosen");
        let vram = locator.segment.medium() == Medium::Vram;
        if op.get().mode == Mode::Pinned && (vram || self.rng.chance(500)) {
            let get = op.get();
            get.waits = Waits::Pin;
            let pin = ToNode::Pin { call: get.call, locator };
            ctx.call_node(&mut get.link, get.node, get.call, pin);
            op.wait_until = ctx.now + 60 * MS;
            return Flow::Goes;
        }
        self.get_first(ctx, op)
    }

    pub(super) fn get_pinned(
        &mut self,
        ctx: &mut Ctx,
        op: &mut Op,
        call: CallId,
        result: Result<(), DataError>,
    ) -> Flow {
        let Body::Get(get) = &mut op.body else { return Flow::Goes };
        if get.call != call {
            return Flow::Goes;
        }
        match result {
            Ok(()) if get.waits == Waits::Pin => {
                get.pinned = true;
                self.get_first(ctx, op)
            }
            Ok(()) => Flow::Goes,
            Err(_) => self.get_stale(ctx, op),
        }
    }

    /// The first look at the word, then the first bytes.
    fn get_first(&mut self, ctx: &mut Ctx, op: &mut Op) -> Flow {
        let slow = self.rng.chance(ctx.swarm.load.slow);
        let steps = if self.rng.chance(500) { 1 } else { between(&mut self.rng, 2, 6) };
        let get = op.get();
        let len = get.len;
        get.waits = Waits::Copy;
        get.chunk = len.div_ceil(steps).next_multiple_of(64).max(64);
        let lease_ms = get.located.as_ref().expect("a replica was chosen").lease_ms;
        get.gap = match get.mode {
            // A view that is looked at for a while.
            Mode::Pinned if get.pinned && self.rng.chance(300) => self.rng.below(20 * MS),
            Mode::LeaseOnly if self.rng.chance(200) => {
                // Uses most of its lease, or more.
                Nanos::from(lease_ms) * MS * self.rng.below(1200) / 1000 / steps
            }
            _ if slow => self.rng.below(40 * MS),
            _ => self.rng.below(60 * US),
        };
        let gap = get.gap;
        if gap > MS {
            op.deadline = op.deadline.max(ctx.now + 10 * gap + 20 * MS);
        }
        op.wait_until = op.deadline;
        let get = op.get();
        let header = get.locator.expect("a replica was chosen").slot;
        let word = get.store.as_ref().expect("it is mapped").segment.one_sided().word(header);
        match word {
            Ok(word) => {
                get.before = word;
                self.get_copy(ctx, op)
            }
            Err(_) => self.get_stale(ctx, op),
        }
    }

    /// Copies the next bytes out of mapped memory; after the last ones, judges.
    pub(super) fn get_copy(&mut self, ctx: &mut Ctx, op: &mut Op) -> Flow {
        let me = op.me;
        let get = op.get();
        if get.waits != Waits::Copy {
            return Flow::Goes;
        }
        let locator = get.locator.expect("a replica was chosen");
        let len = get.len;
        let take = get.chunk.min(len - get.copied);
        let store = get.store.clone().expect("it is mapped");
        let memory = store.segment.one_sided();
        if take > 0 {
            let start = get.copied;
            let part = locator.extent.part(start, take);
            let from = (get.base + start) as usize;
            let target = &mut get.buffer[from..from + take as usize];
            if part.is_none_or(|part: Extent| memory.copy(part, target).is_err()) {
                return self.get_stale(ctx, op);
            }
            get.copied += take;
        }
        if get.copied < len {
            let gap = get.gap / 2 + self.rng.below(get.gap + 1);
            ctx.after(gap, Event::Step(me, 0));
            return Flow::Goes;
        }
        self.get_judge(ctx, op, &locator, &memory)
    }

    /// All bytes are copied: may they be used?
    fn get_judge(
        &mut self,
        ctx: &mut Ctx,
        op: &mut Op,
        locator: &Locator,
        memory: &OneSided<'_>,
    ) -> Flow {
        let key = op.key;
        let get = op.get();
        let Ok(after) = memory.word_again(locator.slot, get.before) else {
            return self.get_stale(ctx, op);
        };
        let serve_until = memory.serve_until();
        let now = ctx.mono(self.host);
        let sealed = get.sealed();
        let honest = Reading { before: get.before, after, serve_until, now, sealed };
        let ready = Word::new(locator.generation, ReplicaState::Ready, 0);
        let reading = match get.mode {
            Mode::Full => honest,
            Mode::Pinned if !get.pinned => Reading { sealed: true, ..honest },
            // A pin or a lease stands for the word.
            _ => Reading { before: ready, after: ready, sealed: true, ..honest },
        };
        let verdict = read::judge(locator.generation, &reading);
        let (mode, pinned) = (get.mode, get.pinned);
        ctx.say(|| format!("k{key} read {mode:?} {locator:?} {honest:?}: {verdict:?}"));
        if pinned {
            let get = op.get();
            ctx.hang_up(&mut get.link, get.node, get.call);
        }
        let get = op.get();
        if mode == Mode::LeaseOnly && now >= get.lease_end {
            ctx.mark(Mark::LeaseExpiredMidRead);
            return get_ended(ctx, op, Got::Failed);
        }
        match verdict {
            Ok(()) => {
                if mode == Mode::LeaseOnly && honest.after.generation() != locator.generation {
                    let text = format!("{locator:?} was freed under a lease: {honest:?}");
                    ctx.fail("G5", Some(key), text);
                }
                self.get_stripe_read(ctx, op)
            }
            Err(error) => {
                note_refusal(ctx, error, locator.generation, &honest);
                if error == ReadError::Corrupt {
                    return self.get_corrupt(ctx, op);
                }
                self.get_stale(ctx, op)
            }
        }
    }

    /// A frame of a value.
    pub(super) fn get_frame(
        &mut self,
        ctx: &mut Ctx,
        op: &mut Op,
        call: CallId,
        (offset, bytes, last): (u64, Vec<u8>, bool),
    ) -> Flow {
        let Body::Get(get) = &mut op.body else { return Flow::Goes };
        if get.call != call || get.waits != Waits::Frames {
            return Flow::Goes;
        }
        // What is too long is cut: the seal or the stamps will tell.
        let most = (get.base + get.len) as usize;
        let start = ((get.base + offset) as usize).min(most);
        let end = (start + bytes.len()).min(most);
        get.buffer[start..end].copy_from_slice(&bytes[..end - start]);
        ctx.recycle(bytes);
        if !last {
            return Flow::Goes;
        }
        if get.mode == Mode::Full && !get.sealed() {
            return self.get_corrupt(ctx, op);
        }
        self.get_stripe_read(ctx, op)
    }

    /// A stripe is in the buffer: the next one, or all is read.
    fn get_stripe_read(&mut self, ctx: &mut Ctx, op: &mut Op) -> Flow {
        let get = op.get();
        let stripes = get.located.as_ref().expect("a replica was chosen").striping.stripes();
        if usize::from(get.stripe) + 1 < stripes {
            get.stripe += 1;
            op.wait_until = op.deadline;
            return self.get_choose(ctx, op);
        }
        if stripes > 1 {
            ctx.mark(Mark::StripedRead);
        }
        get_accept(ctx, op)
    }

    /// The right life, but not the bytes that were sealed: a flipped bit, or the store is broken.
    fn get_corrupt(&mut self, ctx: &mut Ctx, op: &mut Op) -> Flow {
        if ctx.swarm.load.flips {
            ctx.mark(Mark::ChecksumReject);
            let get = op.get();
            let locator = get.locator.expect("a replica was read");
            let located = get.located.as_ref().expect("a replica was chosen");
            let seal = located.seal_of(get.stripe).expect("it has that stripe");
            let (me, owner) = (Actor::Client(self.ix), ctx.owner(locator.segment));
            // Nobody waits for the answer: the next copy is read meanwhile.
            ctx.to_node_once(me, owner, ToNode::Verify { locator, seal });
            return self.get_stale(ctx, op);
        }
        let key = op.key;
        let get = op.get();
        let found = Got::of(&get.buffer, ctx.keys[usize::from(key)].hash);
        let text = format!(
            "{:?} was readable, but its bytes are not those that were sealed: {found:?}",
            get.locator
        );
        ctx.fail("G2", Some(key), text);
        get_ended(ctx, op, Got::Failed)
    }

    /// This replica cannot be read: the next one.
    fn get_stale(&mut self, ctx: &mut Ctx, op: &mut Op) -> Flow {
        self.get_choose(ctx, op)
    }

    /// The owner does not answer: close the connection and try another copy.
    pub(super) fn get_unanswered(&mut self, ctx: &mut Ctx, op: &mut Op) -> Flow {
        let get = op.get();
        if get.waits == Waits::Copy {
            op.wait_until = op.deadline;
            return Flow::Goes;
        }
        ctx.hang_up(&mut get.link, get.node, get.call);
        op.wait_until = op.deadline;
        self.get_choose(ctx, op)
    }

    pub(super) fn get_broken(&mut self, ctx: &mut Ctx, op: &mut Op, call: CallId) -> Flow {
        let Body::Get(get) = &mut op.body else { return Flow::Goes };
        if get.call != call || matches!(get.waits, Waits::Master | Waits::Copy) {
            return Flow::Goes;
        }
        op.wait_until = op.deadline;
        self.get_choose(ctx, op)
    }
}

impl GetOp {
    /// Whether the stripe in the buffer is what its writer sealed.
    fn sealed(&self) -> bool {
        let bytes = &self.buffer[self.base as usize..(self.base + self.len) as usize];
        let located = self.located.as_ref().expect("a replica was chosen");
        located.seal_of(self.stripe) == Some(seal_of(bytes))
    }

    /// Whether more copies were tried than there are stripes.
    fn fell_back(&self) -> bool {
        let stripes = self.located.as_ref().map_or(1, |located| located.striping.stripes());
        self.tried.count_ones() as usize > stripes
    }
}

fn note_refusal(ctx: &mut Ctx, error: ReadError, generation: Generation, reading: &Reading) {
    match error {
        ReadError::Stale => {
            ctx.mark(Mark::GenMismatch);
            if reading.before.readable(generation) && !reading.sealed {
                ctx.mark(Mark::TornReadRejected);
            }
        }
        ReadError::Fenced => ctx.mark(Mark::FencedRead),
        _ => {}
    }
}

/// The get is over: closes what is open and tells the oracle.
pub(super) fn get_ended(ctx: &mut Ctx, op: &mut Op, got: Got) -> Flow {
    let key = op.key;
    let get = op.get();
    let open = matches!(get.waits, Waits::Frames | Waits::Pin | Waits::Mapping);
    if (open || get.pinned) && !get.link.broken {
        ctx.hang_up(&mut get.link, get.node, get.call);
    }
    if let Got::Value { .. } = got
        && let Some(store) = &get.store
        && store.dead()
    {
        ctx.mark(Mark::DeadNodeRead);
    }
    if let Got::Value { .. } = got
        && get.fell_back()
    {
        ctx.mark(Mark::OtherCopyServed);
    }
    let id = get.id;
    ctx.observe(key, What::GetEnded { get: id, got });
    Flow::Ends(match got {
        Got::Value { .. } => Outcome::Done,
        Got::Miss => Outcome::Missed,
        Got::Bad(_) | Got::Failed => Outcome::Failed,
    })
}

/// The bytes are good, says the reader. Now the oracle.
fn get_accept(ctx: &mut Ctx, op: &mut Op) -> Flow {
    let hash = ctx.keys[usize::from(op.key)].hash;
    let got = Got::of(&op.get().buffer, hash);
    get_ended(ctx, op, got)
}
