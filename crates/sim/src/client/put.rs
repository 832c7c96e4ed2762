//! put: ask for a plan, move the bytes to every copy, let their owners publish, then say so. An owner
//! that fails is replaced by another one, a few times.

use super::op::{Body, Flow, Op, Outcome};
use super::write::{Copying, Progress, value_seals};
use super::{Client, OldPut};
use crate::ctx::{Ctx, Link};
use crate::marks::Mark;
use crate::message::{Ask, Begin, CallId, DataError, Event, Path, Seals, ToNode, Wishes};
use crate::node::Store;
use crate::swarm::between;
use crate::{MS, Nanos, US};
use mooncrate_check::{PutId, What};
use mooncrate_core::canary::{self, Canary};
use mooncrate_core::error::PutError;
use mooncrate_core::{LeaderEpoch, Locator, WritePlan};
use std::sync::Arc;

/// Owners that may fail one after the other before a put fails.
const REPLANS_MAX: u8 = 2;

/// A put under way.
#[derive(Debug)]
pub(super) struct PutOp {
    pub(super) id: PutId,
    /// Some owner was told to publish: from here on the value may be seen.
    pub(super) signalled: bool,
    wishes: Wishes,
    seals: Seals,
    plan: Option<WritePlan>,
    copies: Vec<Copying>,
    /// Counts the ways that were opened.
    parts: u8,
    /// Owners that failed.
    replans: u8,
}

impl Client {
    pub(super) fn put_begin(&mut self, ctx: &mut Ctx, op: &mut Op) -> Flow {
        self.puts += 1;
        let run = ctx.swarm.seed as u16;
        let id = PutId::new(run, u16::from(self.ix) | (self.boot as u16) << 8, self.puts);
        let len = ctx.swarm.value_len(&mut self.rng);
        let wishes = self.wishes(ctx);
        ctx.observe(op.key, What::PutBegan { put: id, len });
        op.body = Body::Put(Box::new(PutOp {
            id,
            signalled: false,
            wishes,
            seals: Seals::default(),
            plan: None,
            copies: Vec::new(),
            parts: 0,
            replans: 0,
        }));
        self.ask(ctx, op, Ask::PutStart { len, wishes });
        Flow::Goes
    }

    fn wishes(&mut self, ctx: &Ctx) -> Wishes {
        let replicas = match self.rng.below(100) {
            0..50 => 1,
            50..85 => 2,
            _ => 3,
        };
        let best_effort = self.rng.chance(500);
        let (upsert, expires) =
            (self.rng.chance(ctx.swarm.load.upsert), self.rng.chance(ctx.swarm.load.expire));
        let expire_ms =
            if expires && !ctx.calm { between(&mut self.rng, 1, 400) as u32 } else { 0 };
        let vram = match ctx.swarm.vram {
            Some(vram) if self.rng.chance(vram.asked) => {
                between(&mut self.rng, 1, u64::from(replicas)) as u8
            }
            _ => 0,
        };
        Wishes { replicas, best_effort, upsert: upsert && !ctx.calm, expire_ms, vram }
    }

    pub(super) fn put_planned(
        &mut self,
        ctx: &mut Ctx,
        op: &mut Op,
        result: Result<WritePlan, PutError>,
    ) -> Flow {
        let key = op.key;
        let again = op.put().plan.is_some();
        let plan = match result {
            Ok(plan) => plan,
            Err(error) => {
                match error {
                    PutError::Rebuilding { .. } => ctx.mark(Mark::Rebuilding),
                    PutError::TooFewNodes { .. } => ctx.mark(Mark::TooFewNodes),
                    PutError::NoMedium { .. } => ctx.mark(Mark::NoVram),
                    _ => {}
                }
                ctx.say(|| format!("k{key} put refused: {error}"));
                if again {
                    return self.put_failed(ctx, op);
                }
                let put = op.put().id;
                ctx.observe(key, What::PutRefused { put });
                return Flow::Ends(Outcome::Failed);
            }
        };
        ctx.say(|| format!("k{key} plan {:?} {:?}, again: {again}", plan.object, plan.replicas));
        let (replicas, epoch) = (plan.replicas.clone(), plan.epoch);
        if !again {
            first_plan(ctx, op, plan);
        }
        for locator in replicas {
            self.put_open(ctx, op, locator, epoch);
        }
        self.put_end_if_whole(ctx, op);
        Flow::Goes
    }

    /// The way to one replica.
    fn copying(&mut self, ctx: &Ctx, op: &mut Op, locator: Locator, epoch: LeaderEpoch) -> Copying {
        let me = op.me;
        let put = op.put();
        put.parts += 1;
        let part = put.parts;
        let striping = put.plan.as_ref().expect("it was set before the first copy").striping;
        let len = striping.stripe_len(locator.stripe);
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
            call: CallId { op: me, part, boot: self.boot },
            link: Link::new(same_host),
            locator,
            epoch,
            base: striping.start(locator.stripe),
            len,
            next: 0,
            chunk: len.div_ceil(steps).next_multiple_of(64).max(64),
            slow: self.rng.chance(ctx.swarm.load.slow),
            store: None,
            progress: Progress::Open,
        }
    }

    /// Opens one replica for writing.
    fn put_open(&mut self, ctx: &mut Ctx, op: &mut Op, locator: Locator, epoch: LeaderEpoch) {
        let mut copy = self.copying(ctx, op, locator, epoch);
        let (me, key) = (op.me, op.key);
        let put = op.put();
        let plan = put.plan.as_ref().expect("it was set before the first copy");
        let begin = Begin {
            call: copy.call,
            path: copy.path,
            locator: copy.locator,
            token: plan.token,
            object: plan.object,
            epoch: copy.epoch,
            striping: plan.striping,
            key,
            wishes: put.wishes,
            put: put.id,
            seal: put.seals.all()[usize::from(locator.stripe)],
        };
        match copy.path {
            Path::Whole => {
                // The owner publishes by itself.
                put.signalled = true;
                copy.progress = Progress::Told;
            }
            Path::Stream => {
                ctx.after(self.gap(copy.slow), Event::Step(me, copy.call.part));
            }
            // Waits for `Begun`.
            Path::Direct => {}
        }
        ctx.call_node(&mut copy.link, copy.node, copy.call, ToNode::Begin(Box::new(begin)));
        op.put().copies.push(copy);
    }

    pub(super) fn gap(&mut self, slow: bool) -> Nanos {
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
        self.put_lost(ctx, op, call)
    }

    /// Sends or stores the next bytes of one replica; after the last ones, the signal.
    pub(super) fn put_step(&mut self, ctx: &mut Ctx, op: &mut Op, part: u8) -> Flow {
        let (me, key) = (op.me, op.key);
        let put = op.put();
        let Some(plan) = &put.plan else { return Flow::Goes };
        let (token, id) = (plan.token, put.id);
        let copy = put.copies.iter_mut().find(|copy| copy.call.part == part);
        let Some(copy) = copy else { return Flow::Goes };
        let (len, seal) = (copy.len, put.seals.all()[usize::from(copy.locator.stripe)]);
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
            copy.advance(ctx, id, key);
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
            return self.put_lost(ctx, op, call);
        }
        self.put_end_if_whole(ctx, op);
        Flow::Goes
    }

    /// Every copy is published: says so, unless an answer is awaited that may name more of them.
    fn put_end_if_whole(&mut self, ctx: &mut Ctx, op: &mut Op) {
        let asking = op.asking.is_some();
        let put = op.put();
        if !asking && !put.copies.is_empty() && put.copies.iter().all(Copying::published) {
            let plan = put.plan.as_ref().expect("it was written by its plan");
            let ask = Ask::PutEnd { token: plan.token, seals: put.seals };
            self.ask(ctx, op, ask);
        }
    }

    pub(super) fn put_broken(&mut self, ctx: &mut Ctx, op: &mut Op, call: CallId) -> Flow {
        let put = op.put();
        match put.copies.iter().find(|copy| copy.call == call) {
            Some(copy) if !copy.closed() => self.put_lost(ctx, op, call),
            _ => Flow::Goes,
        }
    }

    /// An owner failed: another one, or the put fails with it.
    fn put_lost(&mut self, ctx: &mut Ctx, op: &mut Op, call: CallId) -> Flow {
        let (key, asking) = (op.key, op.asking.is_some());
        let put = op.put();
        let lost = put.copies.iter().find(|copy| copy.call == call);
        let failed = lost.expect("the caller found it").locator.segment;
        if asking || put.replans >= REPLANS_MAX || self.rng.chance(250) {
            return self.put_failed(ctx, op);
        }
        put.replans += 1;
        let (id, wishes) = (put.id, put.wishes);
        let token = put.plan.as_ref().expect("it was written by its plan").token;
        // Everything in that segment is planned anew.
        let gone: Vec<Copying> =
            put.copies.extract_if(.., |copy| copy.locator.segment == failed).collect();
        for copy in gone {
            self.give_up(ctx, id, key, copy);
        }
        self.ask(ctx, op, Ask::Replan { token, failed, wishes });
        Flow::Goes
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
        let old = OldPut { key, token: plan.token, seals: put.seals, complete: true, ended: true };
        if put.replans > 0 {
            ctx.mark(Mark::ReplanEnded);
        }
        ctx.finished.insert(plan.object);
        ctx.observe(key, What::PutEnded { put: put.id });
        self.remember(old);
        Flow::Ends(Outcome::Done)
    }

    /// Gives a put up: closes what is open, tells the master or lets the watchdog find out.
    pub(super) fn put_failed(&mut self, ctx: &mut Ctx, op: &mut Op) -> Flow {
        let key = op.key;
        let put = op.put();
        let (id, seals, signalled) = (put.id, put.seals, put.signalled);
        // Not while a plan may be on its way: a copy that it names is not written.
        let complete =
            put.replans == 0 && !put.copies.is_empty() && put.copies.iter().all(Copying::published);
        let token = put.plan.as_ref().map(|plan| plan.token);
        for copy in std::mem::take(&mut put.copies) {
            self.give_up(ctx, id, key, copy);
        }
        if let Some(token) = token {
            self.remember(OldPut { key, token, seals, complete, ended: false });
            if self.rng.chance(700) {
                self.tell(ctx, key, Ask::Revoke { token });
            }
        }
        let what =
            if signalled { What::PutUnknown { put: id } } else { What::PutRefused { put: id } };
        ctx.observe(key, what);
        Flow::Ends(Outcome::Failed)
    }
}

/// The first plan of a put: what it means for the oracle, and what the writer seals.
fn first_plan(ctx: &mut Ctx, op: &mut Op, plan: WritePlan) {
    let key = op.key;
    let put = op.put();
    let stripes = plan.striping.stripes();
    if plan.replicas.len() < usize::from(put.wishes.replicas) * stripes {
        ctx.mark(Mark::FewerCopies);
    }
    if put.wishes.upsert {
        ctx.observe(key, What::PutReplaces { put: put.id });
    }
    if put.wishes.expire_ms > 0 {
        ctx.observe(key, What::MayVanish);
    }
    put.seals = value_seals(ctx, put.id, key, plan.striping);
    put.plan = Some(plan);
}
