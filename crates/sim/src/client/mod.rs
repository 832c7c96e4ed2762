//! A client: lanes of operations, a cache of locators, mapped segments, and a process that may be
//! paused or killed in the middle of everything.
//!
//! Each operation is a small state machine. It ends by its deadline, whatever happens (G9); the tick
//! sees to that, and to calls that got no answer.

mod get;
mod op;
mod put;
mod write;

pub use op::{Kind, Outcome};

use crate::ctx::Ctx;
use crate::marks::Mark;
use crate::message::{
    Actor, Answer, Ask, Call, Event, OpRef, Seals, ToClient, ToMaster, ToNode, writer,
};
use crate::node::Store;
use crate::swarm::between;
use crate::{MS, Nanos, US};
use mooncrate_check::{Got, What};
use mooncrate_core::error::RemoveError;
use mooncrate_core::plan::ReadMark;
use mooncrate_core::rng::Rng;
use mooncrate_core::{Located, PutToken};
use op::{Body, Flow, Op};
use std::collections::VecDeque;
use std::sync::Arc;
use write::Zombie;

/// How often a client looks at its deadlines.
const TICK: Nanos = 4 * MS;
/// How much later than its deadline a call may end: a tick and some.
const DEADLINE_SLACK: Nanos = 3 * TICK;
/// How long a client without links may come back before its puts are given back.
const COMES_BACK: Nanos = 10 * MS;
/// Older puts that a client remembers, to repeat what it said about them.
const OLD_MAX: usize = 16;

/// A put that is over, as far as the client is concerned.
#[derive(Clone, Copy, Debug)]
struct OldPut {
    key: u16,
    token: PutToken,
    seals: Seals,
    /// Every copy was published, so that ending it is honest.
    complete: bool,
    /// The master said OK.
    ended: bool,
}

/// A process that asks.
#[derive(Debug)]
pub struct Client {
    /// Which one.
    pub ix: u8,
    /// Where it runs.
    pub host: u8,
    /// Which life of the process.
    pub boot: u32,
    /// Whether the process runs.
    pub up: bool,
    /// It handles nothing until then.
    pub paused_until: Nanos,
    /// What became of the last operation that the finale asked for.
    pub last_outcome: Option<Outcome>,
    /// The end of the last pause or restart: deadlines before it could not be kept.
    excused_until: Nanos,
    lanes: Vec<Option<Op>>,
    /// The key that the last get of a lane did not find: a cache's user puts it next.
    missed: Vec<Option<u16>>,
    next_op: u32,
    puts: u32,
    leader: u8,
    cache: Vec<Option<Located>>,
    /// Reads that asked nobody, by key, since the last tick.
    reads: Vec<(u16, ReadMark)>,
    maps: Vec<Arc<Store>>,
    zombies: Vec<Zombie>,
    old: VecDeque<OldPut>,
    rng: Rng,
}

impl Client {
    /// A process with idle lanes.
    pub fn new(ctx: &Ctx, ix: u8) -> Self {
        Self {
            ix,
            host: ix % ctx.swarm.hosts,
            boot: 0,
            up: true,
            paused_until: 0,
            last_outcome: None,
            excused_until: 0,
            lanes: (0..ctx.swarm.lanes).map(|_| None).collect(),
            missed: vec![None; ctx.swarm.lanes.into()],
            next_op: 0,
            puts: 0,
            leader: 0,
            cache: vec![None; ctx.keys.len()],
            reads: Vec::new(),
            maps: Vec::new(),
            zombies: Vec::new(),
            old: VecDeque::new(),
            rng: Rng::stream(ctx.swarm.seed, &format!("client-{ix}")),
        }
    }

    /// Sets the timers of a process that runs.
    pub fn wind_up(&mut self, ctx: &mut Ctx) {
        ctx.after(self.rng.below(TICK), Event::ClientTick(self.ix, self.boot));
        for lane in 0..self.lanes.len() as u8 {
            let start = self.rng.below(MS);
            ctx.after(start, Event::Lane(self.ix, self.boot, lane));
        }
    }

    /// Stands still until then.
    pub fn pause(&mut self, until: Nanos) {
        self.paused_until = self.paused_until.max(until);
        self.excused_until = self.paused_until;
    }

    /// The process is killed. Its connections end, and nodes notice after a while.
    pub fn crash(&mut self, ctx: &mut Ctx) {
        ctx.say(|| format!("c{} is killed", self.ix));
        for lane in 0..self.lanes.len() {
            if let Some(op) = self.lanes[lane].take() {
                op.abandon_history(ctx);
            }
        }
        for node in 0..ctx.swarm.nodes {
            let delay = ctx.net.hang_up();
            let gone = ToNode::Gone { client: self.ix, boot: self.boot };
            ctx.after(delay, Event::Node(node, gone));
        }
        self.cut_off(ctx);
        self.up = false;
        self.boot += 1;
        self.zombies.clear();
        self.maps.clear();
        self.old.clear();
        self.cache.fill(None);
        self.reads.clear();
    }

    /// Its links to masters end. The leader counts it as gone a while later, whether or not it still lives.
    pub fn cut_off(&mut self, ctx: &mut Ctx) {
        let gone = writer(self.ix, self.boot);
        let leader = ctx.election.leader.unwrap_or(0);
        let delay = ctx.net.hang_up() + COMES_BACK;
        ctx.after(delay, Event::Master(leader, ToMaster::WriterGone(gone)));
    }

    /// The process starts again.
    pub fn restart(&mut self, ctx: &mut Ctx) {
        self.up = true;
        self.wind_up(ctx);
    }

    /// Whether nothing is under way.
    pub fn idle(&self) -> bool {
        self.lanes.iter().all(Option::is_none) && self.zombies.is_empty()
    }

    /// A lane is free: start the next operation, unless the faults are over.
    pub fn next_in_lane(&mut self, ctx: &mut Ctx, lane: u8) {
        if ctx.calm || self.lanes[usize::from(lane)].is_some() {
            return;
        }
        if let Some(key) = self.missed[usize::from(lane)].take()
            && self.rng.chance(700)
        {
            self.start(ctx, lane, Kind::Put, key);
            return;
        }
        let key = self.rng.below(ctx.keys.len() as u64) as u16;
        let load = ctx.swarm.load;
        let draw = self.rng.below(1000) as u32;
        let kind = if draw < load.put {
            Kind::Put
        } else if draw < load.put + load.remove {
            Kind::Remove { force: self.rng.chance(500) }
        } else if draw < load.put + load.remove + load.exist {
            Kind::Exist
        } else if draw < load.put + load.remove + load.exist + load.late {
            self.repeat_old(ctx);
            self.rest(ctx, lane);
            return;
        } else {
            Kind::Get
        };
        self.start(ctx, lane, kind, key);
    }

    /// Starts an operation in an idle lane.
    pub fn start(&mut self, ctx: &mut Ctx, lane: u8, kind: Kind, key: u16) {
        ctx.stats.ops += 1;
        self.next_op += 1;
        let me = OpRef { client: self.ix, lane, id: self.next_op };
        let budget = if ctx.calm { 800 } else { between(&mut self.rng, 60, 500) };
        let mut op = Op::new(me, key, ctx.now, ctx.now + budget * MS);
        let flow = match kind {
            Kind::Put => self.put_begin(ctx, &mut op),
            Kind::Get => self.get_begin(ctx, &mut op),
            Kind::Remove { force } => {
                let remove = ctx.op_id();
                op.body = Body::Remove { remove };
                ctx.observe(key, What::RemoveBegan { remove });
                self.ask(ctx, &mut op, Ask::Remove { force });
                Flow::Goes
            }
            Kind::Exist => {
                self.ask(ctx, &mut op, Ask::Exist);
                Flow::Goes
            }
        };
        self.settle(ctx, op, flow);
    }

    /// Puts an operation back into its lane, or frees the lane.
    fn settle(&mut self, ctx: &mut Ctx, op: Op, flow: Flow) {
        let lane = op.me.lane;
        match flow {
            Flow::Goes => self.lanes[usize::from(lane)] = Some(op),
            Flow::Ends(outcome) => {
                let fair = op.began >= self.excused_until;
                if fair && ctx.now > op.deadline + DEADLINE_SLACK {
                    let over = (ctx.now - op.deadline) / US;
                    let text = format!("an operation ended {over} us after its deadline");
                    ctx.fail("G9", Some(op.key), text);
                }
                self.last_outcome = Some(outcome);
                if let Body::Get(get) = op.body {
                    if outcome == Outcome::Missed {
                        self.missed[usize::from(lane)] = Some(op.key);
                    }
                    ctx.recycle(get.buffer);
                }
                self.rest(ctx, lane);
            }
        }
    }

    fn rest(&mut self, ctx: &mut Ctx, lane: u8) {
        let think = self.rng.below(ctx.swarm.think);
        ctx.after(think, Event::Lane(self.ix, self.boot, lane));
    }

    /// Takes an operation out of its lane, if it still is the one.
    fn take(&mut self, me: OpRef) -> Option<Op> {
        let lane = &mut self.lanes[usize::from(me.lane)];
        if lane.as_ref().is_some_and(|op| op.me == me) { lane.take() } else { None }
    }

    /// Asks the master; the tick asks again if no answer comes.
    fn ask(&mut self, ctx: &mut Ctx, op: &mut Op, ask: Ask) {
        op.attempt = op.attempt.wrapping_add(1);
        op.asking = Some(ask);
        op.sent = ctx.mono(self.host);
        op.wait_until = ctx.now + between(&mut self.rng, 8, 40) * MS;
        let once = matches!(ask, Ask::Remove { .. } | Ask::Replan { .. });
        if once {
            // The owners must answer first; or a second plan would not know of the first.
            op.wait_until = op.deadline;
        }
        let budget_ms = (op.deadline.saturating_sub(ctx.now) / MS).saturating_sub(2) as u32;
        let boot = self.boot;
        let call = Call { op: op.me, boot, attempt: op.attempt, key: op.key, budget_ms, ask };
        let (from, call) = (Actor::Client(self.ix), ToMaster::Call(call));
        if once {
            // A second remove would strike what was put after the first.
            ctx.to_master_once(from, self.leader, call);
        } else {
            ctx.to_master(from, self.leader, call);
        }
    }

    /// Tells the master something without waiting for an answer.
    fn tell(&mut self, ctx: &mut Ctx, key: u16, ask: Ask) {
        let op = OpRef { client: self.ix, lane: 0, id: 0 };
        let call = Call { op, boot: self.boot, attempt: 0, key, budget_ms: 100, ask };
        ctx.to_master(Actor::Client(self.ix), self.leader, ToMaster::Call(call));
    }

    /// Repeats what was said about an older put: an honest end, or a revoke.
    fn repeat_old(&mut self, ctx: &mut Ctx) {
        if self.old.is_empty() {
            return;
        }
        let old = self.old[self.rng.below(self.old.len() as u64) as usize];
        if old.complete && self.rng.chance(600) {
            if old.ended {
                ctx.mark(Mark::DuplicateEnd);
            }
            self.tell(ctx, old.key, Ask::PutEnd { token: old.token, seals: old.seals });
        } else {
            self.tell(ctx, old.key, Ask::Revoke { token: old.token });
        }
    }

    fn remember(&mut self, old: OldPut) {
        if self.old.len() == OLD_MAX {
            self.old.pop_front();
        }
        self.old.push_back(old);
    }

    /// Looks at deadlines and at calls without an answer, and tells what was read.
    pub fn tick(&mut self, ctx: &mut Ctx) {
        ctx.after(TICK, Event::ClientTick(self.ix, self.boot));
        for (key, mark) in std::mem::take(&mut self.reads) {
            self.tell(ctx, key, Ask::Reads { mark });
        }
        for lane in 0..self.lanes.len() {
            let Some(op) = &self.lanes[lane] else { continue };
            let (late, again) = (op.deadline <= ctx.now, op.wait_until <= ctx.now);
            if !late && !again {
                continue;
            }
            let Some(mut op) = self.lanes[lane].take() else { continue };
            let flow = if late { self.expire(ctx, &mut op) } else { self.again(ctx, &mut op) };
            self.settle(ctx, op, flow);
        }
    }

    /// No answer came: ask again, perhaps somebody else.
    fn again(&mut self, ctx: &mut Ctx, op: &mut Op) -> Flow {
        if let Some(ask) = op.asking {
            self.find_leader(ctx);
            self.ask(ctx, op, ask);
            return Flow::Goes;
        }
        if let Body::Get(_) = op.body {
            return self.get_unanswered(ctx, op);
        }
        op.wait_until = op.deadline;
        Flow::Goes
    }

    fn find_leader(&mut self, ctx: &Ctx) {
        if let Some(leader) = ctx.election.leader {
            self.leader = leader;
        }
    }

    /// The deadline is over.
    fn expire(&mut self, ctx: &mut Ctx, op: &mut Op) -> Flow {
        match op.body {
            Body::Put(_) => self.put_failed(ctx, op),
            Body::Get(_) => get::get_ended(ctx, op, Got::Failed),
            Body::Remove { remove } => {
                ctx.observe(op.key, What::RemoveUnknown { remove });
                Flow::Ends(Outcome::Failed)
            }
            Body::Exist => Flow::Ends(Outcome::Failed),
        }
    }

    /// Takes in a message.
    pub fn handle(&mut self, ctx: &mut Ctx, message: ToClient) {
        let me = match &message {
            ToClient::Answer { op, .. } => *op,
            ToClient::Begun { call, .. }
            | ToClient::Written { call, .. }
            | ToClient::Frame { call, .. }
            | ToClient::Pinned { call, .. }
            | ToClient::Attached { call, .. }
            | ToClient::Broken { call } => call.op,
        };
        let Some(mut op) = self.take(me) else { return };
        let flow = match message {
            ToClient::Answer { attempt, answer, .. } => {
                if attempt != op.attempt || op.asking.is_none() {
                    Flow::Goes
                } else {
                    self.answered(ctx, &mut op, answer)
                }
            }
            ToClient::Begun { call, result } => self.put_begun(ctx, &mut op, call, result),
            ToClient::Written { call, result } => self.put_written(ctx, &mut op, call, result),
            ToClient::Frame { call, offset, bytes, last } => {
                self.get_frame(ctx, &mut op, call, (offset, bytes, last))
            }
            ToClient::Pinned { call, result } => self.get_pinned(ctx, &mut op, call, result),
            ToClient::Attached { call, store } => self.get_attached(ctx, &mut op, call, store),
            ToClient::Broken { call } => match op.body {
                Body::Put(_) => self.put_broken(ctx, &mut op, call),
                _ => self.get_broken(ctx, &mut op, call),
            },
        };
        self.settle(ctx, op, flow);
    }

    fn answered(&mut self, ctx: &mut Ctx, op: &mut Op, answer: Answer) -> Flow {
        if let Answer::NotLeader = answer {
            // Some ask the old one again: it may still believe, and plan.
            if self.rng.chance(600) {
                self.find_leader(ctx);
            }
            // Not at once: an election takes a while.
            op.wait_until = ctx.now + between(&mut self.rng, 1, 10) * MS;
            return Flow::Goes;
        }
        op.asking = None;
        op.wait_until = op.deadline;
        match (answer, &op.body) {
            (Answer::Plan(result), Body::Put(_)) => self.put_planned(ctx, op, result),
            (Answer::Ended(result), Body::Put(_)) => self.put_answered(ctx, op, result),
            (Answer::Located(result), Body::Get(_)) => self.get_located(ctx, op, result),
            (Answer::Removed(result), Body::Remove { remove }) => {
                let remove = *remove;
                match result {
                    Err(RemoveError::Deferred { .. }) => ctx.mark(Mark::DeferredRemove),
                    Err(RemoveError::Leased { .. }) => ctx.mark(Mark::RemoveLeased),
                    Err(RemoveError::Rebuilding { .. }) => ctx.mark(Mark::Rebuilding),
                    _ => {}
                }
                // Nothing to remove is as good as removed: nobody may see it from now on.
                let done = matches!(result, Ok(()) | Err(RemoveError::NotFound));
                let (what, outcome) = if done {
                    (What::RemoveEnded { remove }, Outcome::Done)
                } else {
                    (What::RemoveUnknown { remove }, Outcome::Failed)
                };
                ctx.say(|| format!("k{} remove: {result:?}", op.key));
                ctx.observe(op.key, what);
                Flow::Ends(outcome)
            }
            (Answer::Exists(_), Body::Exist) => Flow::Ends(Outcome::Done),
            _ => Flow::Goes,
        }
    }

    /// An operation takes its next step.
    pub fn step(&mut self, ctx: &mut Ctx, me: OpRef, part: u8) {
        let Some(mut op) = self.take(me) else { return };
        let flow = match op.body {
            Body::Put(_) => self.put_step(ctx, &mut op, part),
            Body::Get(_) => self.get_copy(ctx, &mut op),
            _ => Flow::Goes,
        };
        self.settle(ctx, op, flow);
    }

    /// A mapped segment, if this process has mapped it.
    fn mapped(&self, locator: &mooncrate_core::Locator) -> Option<&Arc<Store>> {
        self.maps.iter().find(|store| store.is(locator.segment, locator.incarnation))
    }
}
