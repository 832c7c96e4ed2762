//! What breaks, when, and for how long.

use crate::ctx::Ctx;
use crate::message::{Actor, Event};
use crate::node::Node;
use crate::swarm::between;
use crate::world::World;
use crate::{MS, Nanos};
use mooncrate_core::rng::Rng;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Fault {
    /// A node is killed and starts again, empty.
    NodeCrash,
    /// A node says farewell and starts again, empty.
    NodeLeave,
    /// A node stands still.
    NodePause,
    /// A client is killed and starts again.
    ClientCrash,
    /// A client stands still, perhaps in the middle of a copy.
    ClientPause,
    /// The leader is killed.
    LeaderCrash,
    /// The leader stands still until another one leads; then it wakes.
    LeaderPause,
    /// The leader loses its election, and goes on with what needs none.
    LeaderCut,
    /// Two actors cannot talk, one way or both.
    Partition,
    /// Somebody sets a wall clock.
    WallStep,
    /// A bit flips in a node's memory.
    BitFlip,
    /// The operator empties a node.
    Drain,
    /// The operator asks for a copy of a key.
    Copy,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::NodeCrash,
        Self::NodeLeave,
        Self::NodePause,
        Self::ClientCrash,
        Self::ClientPause,
        Self::LeaderCrash,
        Self::LeaderPause,
        Self::LeaderCut,
        Self::Partition,
        Self::WallStep,
        Self::BitFlip,
        Self::Drain,
        Self::Copy,
    ];

    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NodeCrash => "node killed",
            Self::NodeLeave => "node left",
            Self::NodePause => "node paused",
            Self::ClientCrash => "client killed",
            Self::ClientPause => "client paused",
            Self::LeaderCrash => "leader killed",
            Self::LeaderPause => "leader paused",
            Self::LeaderCut => "leader deposed",
            Self::Partition => "partition",
            Self::WallStep => "wall clock set",
            Self::BitFlip => "bit flipped",
            Self::Drain => "node drained",
            Self::Copy => "copy asked for",
        }
    }

    /// In how many of 1000 seeds it happens, and the bounds of the mean time between two of them.
    pub const fn rate(self) -> (u32, Nanos, Nanos) {
        match self {
            Self::NodeCrash => (450, 100 * MS, 3_000 * MS),
            Self::NodeLeave => (300, 200 * MS, 3_000 * MS),
            Self::NodePause => (400, 80 * MS, 2_000 * MS),
            Self::ClientCrash => (400, 50 * MS, 1_000 * MS),
            Self::ClientPause => (450, 30 * MS, 800 * MS),
            Self::LeaderCrash | Self::LeaderPause | Self::LeaderCut => (300, 600 * MS, 12_000 * MS),
            Self::Partition => (450, 60 * MS, 1_500 * MS),
            Self::WallStep => (400, 20 * MS, 500 * MS),
            Self::BitFlip => (300, 5 * MS, 200 * MS),
            Self::Drain => (500, 100 * MS, 2_000 * MS),
            Self::Copy => (400, 20 * MS, 400 * MS),
        }
    }
}

impl World {
    /// Plans the first fault of each kind that this seed has.
    pub fn plan_faults(&mut self) {
        for fault in Fault::ALL {
            self.plan_fault(fault);
        }
    }

    fn plan_fault(&mut self, fault: Fault) {
        if let Some(mean) = self.ctx.swarm.faults[fault as usize] {
            let gap = self.rng.below(2 * mean);
            self.ctx.after(gap, Event::Fault(fault));
        }
    }

    /// Something breaks.
    pub fn strike(&mut self, fault: Fault) {
        if self.ctx.calm {
            return;
        }
        self.ctx.stats.faults[fault as usize] += 1;
        match fault {
            Fault::NodeCrash => self.end_node(Node::crash),
            Fault::NodeLeave => self.end_node(Node::leave),
            Fault::NodePause => {
                let until = self.ctx.now + span(&mut self.rng, 10, 1500);
                let node = self.rng.below(self.nodes.len() as u64) as usize;
                // Never shorter: what waits for the first end must not be overtaken.
                let paused = &mut self.nodes[node].paused_until;
                *paused = until.max(*paused);
                self.ctx.say(|| format!("n{node} is paused until {} ms", until / MS));
            }
            Fault::ClientCrash => self.crash_client(),
            Fault::ClientPause => {
                let until = self.ctx.now + span(&mut self.rng, 5, 1000);
                let client = self.rng.below(self.clients.len() as u64) as usize;
                self.clients[client].pause(until);
                // Of half of those that stand still, masters see the links end, although they live.
                if until.is_multiple_of(2) {
                    self.clients[client].cut_off(&mut self.ctx);
                }
                self.ctx.say(|| format!("c{client} is paused until {} ms", until / MS));
            }
            Fault::LeaderCrash | Fault::LeaderPause | Fault::LeaderCut => self.hit_leader(fault),
            Fault::Partition => self.partition(),
            Fault::WallStep => {
                let host = self.rng.below(self.ctx.clocks.len() as u64) as usize;
                let forward = self.rng.chance(650);
                self.ctx.clocks[host].step_wall(forward);
                self.ctx.say(|| format!("the wall clock of host {host} is set by an hour"));
            }
            Fault::BitFlip => self.flip_bit(),
            Fault::Drain => self.begin_drain(),
            Fault::Copy => self.ask_for_copy(),
        }
        self.plan_fault(fault);
    }

    fn end_node(&mut self, end: fn(&mut Node, &mut Ctx)) {
        let at = self.rng.below(self.nodes.len() as u64) as usize;
        let node = &mut self.nodes[at];
        // Who stands still cannot say farewell.
        if node.up && node.paused_until <= self.ctx.now {
            end(node, &mut self.ctx);
            let down = span(&mut self.rng, 5, 900);
            self.ctx.after(down, Event::Restart(Actor::Node(at as u8)));
        }
    }

    /// Plans the next absence of a node with a disk, if nodes of this seed have disks that are away.
    pub fn plan_absence(&mut self) {
        if let Some(mean) = self.ctx.swarm.disks.and_then(|disks| disks.away) {
            let gap = self.rng.below(2 * mean);
            self.ctx.after(gap, Event::Away);
        }
    }

    /// A node is away until it is counted as gone, or nearly so, and comes back with its disk. What that
    /// leader knew of it may be lost meanwhile.
    pub fn send_away(&mut self) {
        if self.ctx.calm {
            return;
        }
        let leaves = self.rng.chance(500);
        self.end_node(if leaves { Node::leave } else { Node::crash });
        if self.rng.chance(400) {
            let when = span(&mut self.rng, 20, 900);
            self.ctx.after(when, Event::Fault(Fault::LeaderCrash));
        }
        self.plan_absence();
    }

    fn crash_client(&mut self) {
        let at = self.rng.below(self.clients.len() as u64) as usize;
        let client = &mut self.clients[at];
        if client.up {
            client.crash(&mut self.ctx);
            let down = span(&mut self.rng, 1, 200);
            self.ctx.after(down, Event::Restart(Actor::Client(at as u8)));
        }
    }

    fn hit_leader(&mut self, fault: Fault) {
        let Some(leader) = self.ctx.election.leader else { return };
        let now = self.ctx.now;
        let master = &mut self.masters[usize::from(leader)];
        if !master.up || master.catalog.is_none() {
            return;
        }
        self.ctx.say(|| format!("{} (master {leader})", fault.name()));
        match fault {
            Fault::LeaderCrash => {
                master.crash(&mut self.ctx);
                if self.losses.chance(self.ctx.swarm.forgets) {
                    self.ctx.election.forgotten = true;
                    self.ctx.election.trusted.clear();
                }
                let down = span(&mut self.rng, 5, 100);
                self.ctx.after(down, Event::Restart(Actor::Master(leader)));
            }
            Fault::LeaderPause => {
                // Sometimes too short for anybody to take over.
                let until = now + span(&mut self.rng, 20, 1200);
                master.paused_until = until.max(master.paused_until);
            }
            _ => master.cut_until = now + span(&mut self.rng, 80, 800),
        }
    }

    fn partition(&mut self) {
        let (nodes, clients) = (self.nodes.len() as u64, self.clients.len() as u64);
        let leader = Actor::Master(self.ctx.election.leader.unwrap_or(0));
        let node = Actor::Node(self.rng.below(nodes) as u8);
        let client = Actor::Client(self.rng.below(clients) as u8);
        let (a, b) = match self.rng.below(3) {
            0 => (leader, node),
            1 => (leader, client),
            _ => (node, client),
        };
        let until = self.ctx.now + span(&mut self.rng, 10, 1200);
        let ways = self.rng.below(3);
        if ways != 0 {
            self.ctx.net.cut(a, b, until);
        }
        if ways != 1 {
            self.ctx.net.cut(b, a, until);
        }
        self.ctx.say(|| format!("cut {a:?} {b:?} ({ways}) until {} ms", until / MS));
    }

    /// A new leader is weakest while it rebuilds: some nodes reach it late, and it may stand still just
    /// when it stops waiting for them.
    pub fn trouble_leader(&mut self, leader: u8) {
        let cuts = self.ctx.swarm.faults[Fault::Partition as usize].is_some();
        if self.ctx.calm || !cuts || self.rng.chance(400) {
            return;
        }
        let (now, me) = (self.ctx.now, Actor::Master(leader));
        for node in 0..self.nodes.len() as u8 {
            if self.rng.chance(300) {
                let until = now + between(&mut self.rng, 200, 420) * MS;
                self.ctx.net.cut(Actor::Node(node), me, until);
                self.ctx.net.cut(me, Actor::Node(node), until);
            }
        }
        if self.rng.chance(600) {
            let (at, long) = (between(&mut self.rng, 300, 430), between(&mut self.rng, 20, 250));
            self.ctx.after(at * MS, Event::Stall(leader, long * MS));
        }
    }

    fn flip_bit(&mut self) {
        let at = self.rng.below(self.nodes.len() as u64) as usize;
        let Some(store) = self.nodes[at].stores.first() else { return };
        let bytes = store.segment.spec().bytes;
        // Near the start, where the first ranges are.
        let reach = if self.rng.chance(700) { bytes.min(16 << 10) } else { bytes };
        store.flip(self.rng.below(reach), self.rng.below(8) as u8);
    }
}

/// Milliseconds in `low..=high`, small ones more often.
pub fn span(rng: &mut Rng, low: u64, high: u64) -> Nanos {
    let most = between(rng, low, high);
    between(rng, low, most) * MS
}
