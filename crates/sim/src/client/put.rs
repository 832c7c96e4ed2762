//! put: ask for a plan, move the bytes to every copy, let their owners publish, then say so.

use super::op::{Body, Flow, Op, Outcome};
use super::{Client, OldPut};
use crate::ctx::{Ctx, Link};
use crate::marks::Mark;
use crate::message::{Ask, Begin, CallId, DataError, Event, Path, ToNode, Wishes};
use crate::node::Store;
use crate::swarm::between;
use crate::{MS, Nanos, US};
use mooncrate_check::{PutId, What, payload};
use mooncrate_core::canary::{self, Canary};
use mooncrate_core::error::PutError;
use mooncrate_core::{Locator, Seal, WritePlan};
use mooncrate_mem::sums::seal_of;
use std::sync::Arc;

/// A put under way.
#[derive(Debug)]
pub(super) struct PutOp {
    pub(super) id: PutId,
    /// Some owner was told to publish: from here on the value may be seen.
    pub(super) signalled: bool,
    wishes: Wishes,
    len: u64,
    seal: Seal,
    plan: Option<WritePlan>,
    copies: Vec<Copying>,
}

/// The way of the bytes to one replica.
#[derive(Debug)]
struct Copying {
    path: Path,
    node: u8,
    call: CallId,
    link: Link,
    locator: Locator,
    /// Bytes sent or stored so far.
    next: u64,
    /// Bytes per step.
    chunk: u64,
    slow: bool,
    store: Option<Arc<Store>>,
    progress: Progress,
}

/// How far the owner of a replica is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// It takes bytes, or will.
    Open,
    /// It was told to publish.
    Told,
    /// It said no, for good.
    Refused,
    /// The copy can be read.
    Published,
}

/// A direct put that was given up while its copy loop was running: the loop goes on, and only its end
/// tells the owner that nobody will store any more (R7).
#[derive(Debug)]
pub(super) struct Zombie {
    id: u32,
    put: PutId,
    key: u16,
    len: u64,
    copy: Copying,
}

impl Client {
    pub(super) fn put_begin(&mut self, ctx: &mut Ctx, op: &mut Op) -> Flow {
        self.puts += 1;
        let run = ctx.swarm.seed as u16;
        let id = PutId::new(run, u16::from(self.ix) | (self.boot as u16) << 8, self.puts);
        let len = ctx.swarm.value_len(&mut self.rng);
        let replicas = match self.rng.below(100) {
            0..50 => 1,
            50..85 => 2,
            _ => 3,
        };
        let wishes = Wishes { replicas, best_effort: self.rng.chance(500) };
        ctx.observe(op.key, What::PutBegan { put: id, len });
        op.body = Body::Put(Box::new(PutOp {
            id,
            signalled: false,
            wishes,
            len,
            seal: Seal::default(),
            plan: None,
            copies: Vec::new(),
        }));
        self.ask(ctx, op, Ask::PutStart { len, wishes });
        Flow::Goes
    }

    pub(super) fn put_planned(
        &mut self,
        ctx: &mut Ctx,
        op: &mut Op,
        result: Result<WritePlan, PutError>,
    ) -> Flow {
        let plan = match result {
            Ok(plan) => plan,
            Err(error) => {
                match error {
                    PutError::Rebuilding { .. } => ctx.mark(Mark::Rebuilding),
                    PutError::TooFewNodes { .. } => ctx.mark(Mark::TooFewNodes),
                    _ => {}
                }
                ctx.say(|| format!("k{} put refused: {error}", op.key));
                let put = op.put().id;
                ctx.observe(op.key, What::PutRefused { put });
                return Flow::Ends(Outcome::Failed);
            }
        };
        let (me, key) = (op.me, op.key);
        ctx.say(|| format!("k{key} plan {:?} {:?}", plan.object, plan.replicas));
        let put = op.put();
        if plan.replicas.len() < usize::from(put.wishes.replicas) {
            ctx.mark(Mark::FewerCopies);
        }
        put.seal = value_seal(ctx, put, key);
        for (part, locator) in plan.replicas.iter().enumerate() {
            put.copies.push(self.copying(ctx, me, part as u8, *locator, put.len));
        }
        put.plan = Some(plan);
        for part in 0..put.copies.len() {
            self.put_open(ctx, op, part);
        }
        Flow::Goes
    }

    fn copying(
        &mut self,
        ctx: &Ctx,
        op: crate::message::OpRef,
        part: u8,
        locator: Locator,
        len: u64,
    ) -> Copying {
        let node = ctx.owner(locator.segment);
        let same_host = node % ctx.swarm.hosts == self.host;
        let path = if same_host && self.rng.chance(ctx.swarm.load.direct) {
            Path::Direct
        } else if self.rng.chance(600) {
            Path::Whole
        } else {
            Path::Stream
        };
        let steps = between(&mut self.rng, 1, 5);
        Copying {
            path,
            node,
            call: CallId { op, part, boot: self.boot },
            link: Link::new(same_host),
            locator,
            next: 0,
            chunk: len.div_ceil(steps).next_multiple_of(64).max(64),
            slow: self.rng.chance(ctx.swarm.load.slow),
            store: None,
            progress: Progress::Open,
        }
    }

    /// Opens one replica for writing.
    fn put_open(&mut self, ctx: &mut Ctx, op: &mut Op, part: usize) {
        let (me, key) = (op.me, op.key);
        let put = op.put();
        let plan = put.plan.as_ref().expect("it was set before the first copy");
        let copy = &mut put.copies[part];
        let begin = Begin {
            call: copy.call,
            path: copy.path,
            locator: copy.locator,
            token: plan.token,
            object: plan.object,
            epoch: plan.epoch,
            len: put.len,
            key,
            wishes: put.wishes,
            put: put.id,
            seal: put.seal,
        };
        match copy.path {
            Path::Whole => {
                // The owner publishes by itself.
                put.signalled = true;
                copy.progress = Progress::Told;
            }
            Path::Stream => {
                ctx.after(self.gap(copy.slow), Event::Step(me, part as u8));
            }
            // Waits for `Begun`.
            Path::Direct => {}
        }
        ctx.call_node(&mut copy.link, copy.node, copy.call, ToNode::Begin(Box::new(begin)));
    }

    fn gap(&mut self, slow: bool) -> Nanos {
        match self.rng.below(100) {
            _ if !slow => US + self.rng.below(60 * US),
            0..70 => self.rng.below(20 * MS),
            _ => self.rng.below(300 * MS),
        }
    }

    pub(super) fn put_begun(
        &mut self,
        ctx: &mut Ctx,
        op: &mut Op,
        call: CallId,
        result: Result<Arc<Store>, DataError>,
    ) -> Flow {
        let me = op.me;
        let Body::Put(put) = &mut op.body else { return Flow::Goes };
        let Some(copy) = put.copies.iter_mut().find(|copy| copy.call == call) else {
            return Flow::Goes;
        };
        if let Ok(store) = result {
            copy.store = Some(store);
            let slow = copy.slow;
            ctx.after(self.gap(slow), Event::Step(me, call.part));
            return Flow::Goes;
        }
        // Nothing was opened, so nothing needs to be closed.
        copy.progress = Progress::Refused;
        self.put_failed(ctx, op)
    }

    /// Sends or stores the next bytes of one replica; after the last ones, the signal.
    pub(super) fn put_step(&mut self, ctx: &mut Ctx, op: &mut Op, part: u8) -> Flow {
        let (me, key) = (op.me, op.key);
        let put = op.put();
        let Some(plan) = &put.plan else { return Flow::Goes };
        let (token, seal, len, id) = (plan.token, put.seal, put.len, put.id);
        let copy = &mut put.copies[usize::from(part)];
        if copy.closed() || copy.link.broken {
            return Flow::Goes;
        }
        let last = copy.next + copy.chunk >= len;
        let early = canary::on(Canary::EarlyPublish) && last;
        if (copy.next >= len || early) && copy.progress == Progress::Open {
            copy.progress = Progress::Told;
            put.signalled = true;
            let signal = ToNode::Signal { call: copy.call, token, seal };
            ctx.call_node(&mut copy.link, copy.node, copy.call, signal);
        } else {
            copy.advance(ctx, id, key, len);
        }
        if copy.next < len || copy.progress == Progress::Open {
            let slow = copy.slow;
            ctx.after(self.gap(slow), Event::Step(me, part));
        }
        Flow::Goes
    }

    pub(super) fn put_written(
        &mut self,
        ctx: &mut Ctx,
        op: &mut Op,
        call: CallId,
        result: Result<(), DataError>,
    ) -> Flow {
        let Body::Put(put) = &mut op.body else { return Flow::Goes };
        let Some(copy) = put.copies.iter_mut().find(|copy| copy.call == call) else {
            return Flow::Goes;
        };
        copy.progress = if result.is_ok() { Progress::Published } else { Progress::Refused };
        if result.is_err() {
            return self.put_failed(ctx, op);
        }
        if put.copies.iter().all(Copying::published) {
            let plan = put.plan.as_ref().expect("it was written by its plan");
            let ask = Ask::PutEnd { token: plan.token, seal: put.seal };
            self.ask(ctx, op, ask);
        }
        Flow::Goes
    }

    pub(super) fn put_broken(&mut self, ctx: &mut Ctx, op: &mut Op, call: CallId) -> Flow {
        let put = op.put();
        match put.copies.iter().find(|copy| copy.call == call) {
            Some(copy) if !copy.closed() => self.put_failed(ctx, op),
            _ => Flow::Goes,
        }
    }

    /// The master has answered `put_end`.
    pub(super) fn put_answered(
        &mut self,
        ctx: &mut Ctx,
        op: &mut Op,
        result: Result<(), PutError>,
    ) -> Flow {
        let key = op.key;
        ctx.say(|| format!("k{key} put_end: {result:?}"));
        if result.is_err() {
            return self.put_failed(ctx, op);
        }
        let put = op.put();
        let plan = put.plan.as_ref().expect("it was written by its plan");
        let old = OldPut { key, token: plan.token, seal: put.seal, complete: true, ended: true };
        ctx.finished.insert(plan.object);
        ctx.observe(key, What::PutEnded { put: put.id });
        self.remember(old);
        Flow::Ends(Outcome::Done)
    }

    /// Gives a put up: closes what is open, tells the master or lets the watchdog find out.
    pub(super) fn put_failed(&mut self, ctx: &mut Ctx, op: &mut Op) -> Flow {
        let key = op.key;
        let put = op.put();
        let (id, len, seal, signalled) = (put.id, put.len, put.seal, put.signalled);
        let complete = !put.copies.is_empty() && put.copies.iter().all(Copying::published);
        let token = put.plan.as_ref().map(|plan| plan.token);
        for mut copy in std::mem::take(&mut put.copies) {
            let storing = copy.path == Path::Direct && copy.store.is_some();
            if storing && copy.progress == Progress::Open && copy.next < len {
                self.haunt(ctx, Zombie { id: 0, put: id, key, len, copy });
            } else if !copy.closed() {
                ctx.hang_up(&mut copy.link, copy.node, copy.call);
            }
        }
        if let Some(token) = token {
            self.remember(OldPut { key, token, seal, complete, ended: false });
            if self.rng.chance(700) {
                self.tell(ctx, key, Ask::Revoke { token });
            }
        }
        let what =
            if signalled { What::PutUnknown { put: id } } else { What::PutRefused { put: id } };
        ctx.observe(key, what);
        Flow::Ends(Outcome::Failed)
    }

    /// The copy loop of a put that was given up goes on.
    fn haunt(&mut self, ctx: &mut Ctx, mut zombie: Zombie) {
        self.next_op += 1;
        zombie.id = self.next_op;
        let gap = self.gap(zombie.copy.slow);
        ctx.after(gap, Event::Zombie(self.ix, self.boot, zombie.id));
        self.zombies.push(zombie);
    }

    /// The next step of such a loop; after the last one the owner is told.
    pub fn zombie(&mut self, ctx: &mut Ctx, id: u32) {
        let Some(at) = self.zombies.iter().position(|zombie| zombie.id == id) else { return };
        let zombie = &mut self.zombies[at];
        let store = zombie.copy.store.as_ref().expect("only direct puts become zombies");
        let word = store.segment.one_sided().word(zombie.copy.locator.slot);
        if word.is_ok_and(|word| word.generation() != zombie.copy.locator.generation) {
            ctx.mark(Mark::ZombieWriterQuarantined);
        }
        zombie.copy.advance(ctx, zombie.put, zombie.key, zombie.len);
        if zombie.copy.next < zombie.len {
            let slow = zombie.copy.slow;
            let gap = self.gap(slow);
            ctx.after(gap, Event::Zombie(self.ix, self.boot, id));
        } else {
            let mut copy = self.zombies.swap_remove(at).copy;
            ctx.hang_up(&mut copy.link, copy.node, copy.call);
        }
    }
}

impl Copying {
    fn published(&self) -> bool {
        self.progress == Progress::Published
    }

    /// The owner has answered for the last time.
    fn closed(&self) -> bool {
        matches!(self.progress, Progress::Published | Progress::Refused)
    }

    /// The next bytes, as a frame or straight into the mapping.
    fn advance(&mut self, ctx: &mut Ctx, put: PutId, key: u16, len: u64) {
        let take = self.chunk.min(len - self.next);
        if take == 0 {
            return;
        }
        if let Some(store) = &self.store {
            let mut bytes = std::mem::take(&mut ctx.scratch);
            bytes.resize(take as usize, 0);
            payload::fill_range(&mut bytes, self.next, put, ctx.keys[usize::from(key)].hash);
            store.poke(self.locator.extent.offset() + self.next, &bytes);
            ctx.scratch = bytes;
        } else {
            let chunk = ToNode::Chunk { call: self.call, offset: self.next, len: take as u32 };
            ctx.call_node(&mut self.link, self.node, self.call, chunk);
        }
        self.next += take;
    }
}

/// What the writer seals, before the first byte leaves.
fn value_seal(ctx: &mut Ctx, put: &PutOp, key: u16) -> Seal {
    let mut bytes = std::mem::take(&mut ctx.scratch);
    bytes.resize(put.len as usize, 0);
    payload::fill(&mut bytes, put.id, ctx.keys[usize::from(key)].hash);
    let seal = seal_of(&bytes);
    ctx.scratch = bytes;
    seal
}
