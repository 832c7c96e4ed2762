//! The world: all actors of one run and the loop that lets one thing happen after the other.

use crate::client::Client;
use crate::ctx::Ctx;
use crate::finale::Finale;
use crate::judge;
use crate::master::Master;
use crate::message::{Actor, Event};
use crate::node::Node;
use crate::operator::Draining;
use crate::swarm::Swarm;
use crate::trace::Trace;
use crate::twin::{Outcome, Tally};
use crate::{MS, Nanos};
use mooncrate_core::rng::Rng;
use std::collections::VecDeque;

/// Processes that may lead.
const MASTERS: u8 = 3;
/// Time between two looks at who leads.
const ELECTION: Nanos = 7 * MS;
/// Time between two audits.
const AUDIT: Nanos = 60 * MS;

/// All actors of one run.
#[derive(Debug)]
pub struct World {
    /// What they share.
    pub ctx: Ctx,
    /// Processes that may lead.
    pub masters: Vec<Master>,
    /// Processes that own segments.
    pub nodes: Vec<Node>,
    /// Processes that ask.
    pub clients: Vec<Client>,
    /// Faults are drawn from this.
    pub rng: Rng,
    /// Draws what is lost with a leader.
    pub losses: Rng,
    /// The phase without faults, once it has begun.
    pub finale: Option<Finale>,
    /// A node that the operator empties.
    pub drain: Option<Draining>,
    /// What waits for actors that stand still, in order.
    waiting: Vec<(Actor, VecDeque<Event>)>,
}

/// How a run is watched.
#[derive(Clone, Copy, Debug, Default)]
pub struct Watch {
    /// Keep the last lines in words.
    pub words: bool,
    /// Print every line to standard error.
    pub aloud: bool,
    /// Stop when this many operations have begun.
    pub until_op: Option<u64>,
}

impl World {
    /// The cluster of a seed, before its first event.
    pub fn new(swarm: Swarm, watch: Watch) -> Self {
        let seed = swarm.seed;
        let mut ctx = Ctx::new(swarm, Trace::new(watch.words, watch.aloud));
        let swarm = ctx.swarm.clone();
        ctx.trace.say(0, || format!("{swarm:?}"));
        let masters = (0..MASTERS).map(|ix| Master::new(ix, seed)).collect();
        let nodes = (0..swarm.nodes).map(|ix| Node::new(&mut ctx, ix)).collect();
        let clients = (0..swarm.clients).map(|ix| Client::new(&ctx, ix)).collect();
        let rng = Rng::stream(seed, "faults");
        let losses = Rng::stream(seed, "losses-of-leaders");
        let waiting = Vec::new();
        let mut world =
            Self { ctx, masters, nodes, clients, rng, losses, finale: None, drain: None, waiting };
        world.ctx.at(0, Event::Election);
        world.ctx.at(AUDIT, Event::Audit);
        world.ctx.at(MS, Event::Operator);
        for master in 0..MASTERS {
            world.ctx.at(MS, Event::MasterTick(master, 0));
        }
        for node in &mut world.nodes {
            node.wind_up(&mut world.ctx);
        }
        for client in &mut world.clients {
            client.wind_up(&mut world.ctx);
        }
        world.plan_faults();
        world.plan_absence();
        world
    }

    /// Runs one seed to its end.
    pub fn run(swarm: Swarm, watch: Watch) -> Outcome {
        let seed = swarm.seed;
        let mut world = Self::new(swarm, watch);
        while world.step(watch.until_op) {}
        let Self { ctx, .. } = world;
        let mut lines = Vec::new();
        if let Some(failure) = &ctx.failure {
            let words: Vec<String> = failure.key.iter().map(|key| format!("k{key}")).collect();
            lines = ctx.trace.last_lines(&words, 80);
        }
        Outcome {
            seed,
            hash: ctx.trace.hash(),
            ops: ctx.stats.ops,
            tally: Tally {
                stats: ctx.stats,
                judged: ctx.oracle.counts(),
                marks: ctx.marks,
                virtual_ns: ctx.now,
            },
            failure: ctx.failure,
            lines,
        }
    }

    /// One event. False: the run is over.
    fn step(&mut self, until_op: Option<u64>) -> bool {
        let Some(event) = self.ctx.pop() else { return false };
        self.ctx.stats.events += 1;
        self.dispatch(event);
        let ops = self.ctx.stats.ops;
        if !self.ctx.calm && ops >= self.ctx.swarm.ops {
            self.begin_finale();
        }
        let done = self.finale.as_ref().is_some_and(Finale::done);
        self.ctx.failure.is_none() && !done && until_op.is_none_or(|until| ops < until)
    }

    fn dispatch(&mut self, event: Event) {
        if let Some(actor) = target(&event)
            && self.paused_until(actor) > self.ctx.now
        {
            self.put_off(actor, event);
        } else {
            self.happen(event);
        }
    }

    /// Handled when the actor goes on, in the same order.
    fn put_off(&mut self, actor: Actor, event: Event) {
        if let Some((_, queue)) = self.waiting.iter_mut().find(|(who, _)| *who == actor) {
            queue.push_back(event);
            return;
        }
        self.waiting.push((actor, VecDeque::from([event])));
        self.ctx.at(self.paused_until(actor), Event::Resume(actor));
    }

    /// An actor goes on, unless it was stopped again meanwhile.
    fn resume(&mut self, actor: Actor) {
        let until = self.paused_until(actor);
        if until > self.ctx.now {
            self.ctx.at(until, Event::Resume(actor));
            return;
        }
        let at = self.waiting.iter().position(|(who, _)| *who == actor);
        let (_, queue) = self.waiting.swap_remove(at.expect("somebody waits for it"));
        for event in queue {
            self.happen(event);
        }
    }

    fn happen(&mut self, event: Event) {
        let now = self.ctx.now;
        let (tag, detail) = fingerprint(&event);
        self.ctx.trace.mix(tag, now, detail);
        let ctx = &mut self.ctx;
        match event {
            Event::Master(to, message) => {
                let master = &mut self.masters[usize::from(to)];
                if master.up {
                    master.handle(ctx, message);
                }
            }
            Event::Node(to, message) => {
                let node = &mut self.nodes[usize::from(to)];
                if node.up {
                    node.handle(ctx, message);
                }
            }
            Event::Client(to, message) => self.clients[usize::from(to)].handle(ctx, message),
            Event::MasterTick(to, boot) => {
                let master = &mut self.masters[usize::from(to)];
                if master.boot == boot && master.up {
                    master.tick(ctx);
                }
            }
            Event::NodeTick(to, boot) => {
                self.node_alive(to, boot, Node::tick);
            }
            Event::NodeBeat(to, boot) => {
                self.node_alive(to, boot, Node::beat);
            }
            Event::NodeFrame(to, boot, call) => {
                self.node_alive(to, boot, |node, ctx| node.frame(ctx, call));
            }
            Event::NodeCopy(job, turn) => {
                self.node_alive(job.node, job.boot, |node, ctx| node.copy_step(ctx, job, turn));
            }
            Event::ClientTick(to, boot) => {
                self.client_alive(to, boot, Client::tick);
            }
            Event::Lane(to, boot, lane) => {
                self.client_alive(to, boot, |client, ctx| client.next_in_lane(ctx, lane));
            }
            Event::Step(op, part) => self.clients[usize::from(op.client)].step(ctx, op, part),
            Event::Zombie(to, boot, id) => {
                self.client_alive(to, boot, |client, ctx| client.zombie(ctx, id));
            }
            Event::Election => self.elect(),
            Event::Fault(fault) => self.strike(fault),
            Event::Stall(master, span) if !ctx.calm => {
                let master = &mut self.masters[usize::from(master)];
                master.paused_until = master.paused_until.max(now + span);
            }
            Event::Stall(..) => {}
            Event::Resume(actor) => self.resume(actor),
            Event::Restart(actor) => self.restart(actor),
            Event::Guard(node, boot, attempt) => {
                self.nodes[usize::from(node)].guard(ctx, boot, attempt);
            }
            Event::Operator => self.operate(),
            Event::Away => self.send_away(),
            Event::Audit => {
                ctx.after(AUDIT, Event::Audit);
                judge::audit_all(ctx, &self.masters, &self.nodes);
            }
            Event::Finale => self.step_finale(),
        }
    }

    fn node_alive(&mut self, to: u8, boot: u32, act: impl FnOnce(&mut Node, &mut Ctx)) {
        let node = &mut self.nodes[usize::from(to)];
        if node.boot == boot && node.up {
            act(node, &mut self.ctx);
        }
    }

    fn client_alive(&mut self, to: u8, boot: u32, act: impl FnOnce(&mut Client, &mut Ctx)) {
        let client = &mut self.clients[usize::from(to)];
        if client.boot == boot && client.up {
            act(client, &mut self.ctx);
        }
    }

    fn paused_until(&self, actor: Actor) -> Nanos {
        match actor {
            Actor::Master(at) => self.masters[usize::from(at)].paused_until,
            Actor::Node(at) => self.nodes[usize::from(at)].paused_until,
            Actor::Client(at) => self.clients[usize::from(at)].paused_until,
        }
    }

    /// The first eligible process takes office when the last term is over.
    fn elect(&mut self) {
        self.ctx.after(ELECTION, Event::Election);
        let now = self.ctx.now;
        if self.ctx.election.until > now {
            return;
        }
        let first = self.rng.below(self.masters.len() as u64) as usize;
        let order = (0..self.masters.len()).map(|n| (first + n) % self.masters.len());
        let chosen = { order }.find(|at| self.masters[*at].eligible(now));
        if let Some(at) = chosen {
            self.masters[at].lead(&mut self.ctx);
            self.trouble_leader(at as u8);
        }
    }

    fn restart(&mut self, actor: Actor) {
        let ctx = &mut self.ctx;
        match actor {
            Actor::Master(at) => {
                let master = &mut self.masters[usize::from(at)];
                if !master.up {
                    master.restart(ctx);
                }
            }
            Actor::Node(at) => {
                let node = &mut self.nodes[usize::from(at)];
                if !node.up {
                    node.restart(ctx);
                }
            }
            Actor::Client(at) => {
                let client = &mut self.clients[usize::from(at)];
                if !client.up {
                    client.restart(ctx);
                }
            }
        }
    }
}

/// Who handles an event; `None`: the world itself.
fn target(event: &Event) -> Option<Actor> {
    Some(match event {
        Event::Master(to, _) | Event::MasterTick(to, _) => Actor::Master(*to),
        Event::Node(to, _)
        | Event::NodeTick(to, _)
        | Event::NodeBeat(to, _)
        | Event::NodeFrame(to, ..) => Actor::Node(*to),
        Event::NodeCopy(job, _) => Actor::Node(job.node),
        Event::Client(to, _)
        | Event::ClientTick(to, _)
        | Event::Lane(to, ..)
        | Event::Zombie(to, ..) => Actor::Client(*to),
        Event::Step(op, _) => Actor::Client(op.client),
        _ => return None,
    })
}

/// What an event adds to the trace: its kind, and something of what it says.
fn fingerprint(event: &Event) -> (u64, u64) {
    use crate::message::{ToClient, ToMaster, ToNode};
    match event {
        Event::Master(to, message) => {
            let detail = match message {
                ToMaster::Call(call) => u64::from(call.op.id) << 16 | u64::from(call.key),
                ToMaster::WriterGone(writer) => writer.0,
                ToMaster::Mount { round, .. } => u64::from(*round),
                ToMaster::Announce { page, .. } => u64::from(*page),
                ToMaster::Beat { sent, .. } => sent.0,
                ToMaster::Notices { list } => list.len() as u64,
                ToMaster::Copied { list } => list.len() as u64,
                ToMaster::Unmount { node, .. } => u64::from(*node),
            };
            (1, u64::from(*to) << 56 ^ detail)
        }
        Event::Node(to, message) => {
            let detail = match message {
                ToNode::Orders { epoch, list } => epoch.0 << 32 | list.len() as u64,
                ToNode::Begin(begin) => begin.locator.extent.offset() << 8 | begin.object.sequence,
                ToNode::Read { locator, .. } | ToNode::Pin { locator, .. } => {
                    u64::from(locator.generation.0) << 32 | u64::from(locator.slot.0)
                }
                ToNode::Fetch { locator, .. } | ToNode::Verify { locator, .. } => {
                    u64::from(locator.slot.0)
                }
                ToNode::Chunk { offset, .. } | ToNode::Fetched { offset, .. } => *offset,
                _ => 0,
            };
            (2, u64::from(*to) << 56 ^ detail)
        }
        Event::Client(to, message) => {
            let detail = match message {
                ToClient::Answer { op, attempt, .. } => u64::from(op.id) << 8 | u64::from(*attempt),
                ToClient::Frame { offset, bytes, .. } => offset << 32 | bytes.len() as u64,
                _ => 0,
            };
            (3, u64::from(*to) << 56 ^ detail)
        }
        Event::MasterTick(to, _) => (4, u64::from(*to)),
        Event::NodeTick(to, _) => (5, u64::from(*to)),
        Event::NodeBeat(to, _) => (6, u64::from(*to)),
        Event::NodeFrame(to, _, call) => (7, u64::from(call.op.id) << 8 | u64::from(*to)),
        Event::ClientTick(to, _) => (8, u64::from(*to)),
        Event::Lane(to, _, lane) => (9, u64::from(*lane) << 8 | u64::from(*to)),
        Event::Step(op, part) => (10, u64::from(op.id) << 8 | u64::from(*part)),
        Event::Zombie(to, _, id) => (11, u64::from(*id) << 8 | u64::from(*to)),
        Event::Election => (12, 0),
        Event::Fault(fault) => (13, *fault as u64),
        Event::Restart(actor) => match actor {
            Actor::Master(at) => (14, u64::from(*at)),
            Actor::Node(at) => (15, u64::from(*at)),
            Actor::Client(at) => (16, u64::from(*at)),
        },
        Event::Audit => (17, 0),
        Event::Finale => (18, 0),
        Event::NodeCopy(job, turn) => (23, u64::from(job.number) << 8 | u64::from(*turn)),
        Event::Operator => (24, 0),
        Event::Away => (25, 0),
        Event::Guard(node, _, attempt) => (26, u64::from(*attempt) << 8 | u64::from(*node)),
        Event::Stall(master, _) => (19, u64::from(*master)),
        Event::Resume(actor) => match actor {
            Actor::Master(at) => (20, u64::from(*at)),
            Actor::Node(at) => (21, u64::from(*at)),
            Actor::Client(at) => (22, u64::from(*at)),
        },
    }
}
