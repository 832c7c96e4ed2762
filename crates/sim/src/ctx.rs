//! What all actors share: the heap of events, the network, the clocks, the judge and the counters.
//! Actors change each other only by events.

use crate::Nanos;
use crate::clock::Clock;
use crate::judge::Failure;
use crate::ledger::Ledger;
use crate::marks::{Mark, Marks};
use crate::message::{Actor, CallId, Event, ToClient, ToMaster, ToNode};
use crate::network::{Network, Route};
use crate::swarm::Swarm;
use crate::trace::Trace;
use mooncrate_check::{OpId, Oracle, OracleConfig};
use mooncrate_core::catalog::Trusted;
use mooncrate_core::rng::Rng;
use mooncrate_core::{KeyHash, LeaderEpoch, Name, NodeId, Now, ObjectId, SegmentId, TenantId};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashSet};
use std::time::Duration;

/// After this long a put without an answer has taken effect or never will: put timeout, registration
/// and several takeovers.
const UNKNOWN_SETTLES: Duration = Duration::from_secs(20);
/// After this long no message of a remove without an answer is on its way any more: pauses and delays.
const REMOVE_SETTLES: Duration = Duration::from_secs(3);
/// Buffers that are kept for the next read.
const POOL_MAX: usize = 64;

/// A key of the run.
#[derive(Clone, Debug)]
pub struct KeyInfo {
    /// Whose it is.
    pub tenant: TenantId,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Hash of both.
    pub hash: KeyHash,
}

impl KeyInfo {
    /// The key of this number. Tenants have keys of the same bytes.
    fn numbered(number: u16, tenants: u16) -> Self {
        let bytes = format!("key-{}", number / tenants).into_bytes();
        let tenant = TenantId(u32::from(number % tenants));
        Self { tenant, hash: Name::new(tenant, &bytes).hash(), bytes }
    }

    /// Whose and which.
    pub fn name(&self) -> Name<'_> {
        Name::new(self.tenant, &self.bytes)
    }
}

/// What the election service keeps, and all that a master keeps when it dies.
#[derive(Clone, Debug, Default)]
pub struct Election {
    /// Who leads.
    pub leader: Option<u8>,
    /// Whether its process runs, paused or not.
    pub up: bool,
    /// Under which epoch.
    pub epoch: LeaderEpoch,
    /// Until when, in true time: the service has a clock of its own.
    pub until: Nanos,
    /// Nodes that may hold objects.
    pub nodes: BTreeSet<NodeId>,
    /// Disks that the next leader may believe.
    pub trusted: Vec<Trusted>,
    /// Those that this leader believes, from the list that it began with.
    pub believed: Vec<Trusted>,
    /// What the last leader wrote down is lost.
    pub forgotten: bool,
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Operations begun.
    pub ops: u64,
    /// Events handled.
    pub events: u64,
    /// Faults, by kind.
    pub faults: [u64; crate::faults::Fault::ALL.len()],
}

/// What all actors share.
#[derive(Debug)]
pub struct Ctx {
    /// True time.
    pub now: Nanos,
    /// The choices of the seed.
    pub swarm: Swarm,
    /// Clocks by host; the last host is that of the masters.
    pub clocks: Vec<Clock>,
    /// The network.
    pub net: Network,
    /// Rare situations reached.
    pub marks: Marks,
    /// What happened.
    pub trace: Trace,
    /// Counters.
    pub stats: Stats,
    /// The judge of gets.
    pub oracle: Oracle,
    /// Keys by number.
    pub keys: Vec<KeyInfo>,
    /// Who leads.
    pub election: Election,
    /// The first rule that was broken.
    pub failure: Option<Failure>,
    /// No more faults: everything must come right.
    pub calm: bool,
    /// Puts that were told to have finished. Looked up, never walked.
    pub finished: HashSet<ObjectId>,
    /// Objects that somebody asked VRAM for. Looked up, never walked.
    pub in_vram: HashSet<ObjectId>,
    /// Which keys may vanish with which mount.
    pub ledger: Ledger,
    /// Which node owns which segment.
    pub owners: Vec<(SegmentId, u8)>,
    /// A buffer for bytes on their way.
    pub scratch: Vec<u8>,
    pool: Vec<Vec<u8>>,
    heap: BinaryHeap<Reverse<(Nanos, u64, u32)>>,
    events: Vec<Option<Event>>,
    free: Vec<u32>,
    sequence: u64,
    op_ids: u64,
}

impl Ctx {
    /// A world without events.
    pub fn new(swarm: Swarm, trace: Trace) -> Self {
        let seed = swarm.seed;
        let mut clocks = Rng::stream(seed, "clocks");
        let config = OracleConfig {
            no_loss: true,
            unknown_settles_after: Some(UNKNOWN_SETTLES),
            remove_settles_after: Some(REMOVE_SETTLES),
        };
        let keys = (0..swarm.keys).map(|n| KeyInfo::numbered(n, swarm.tenants.into())).collect();
        Self {
            now: 0,
            clocks: (0..=swarm.hosts).map(|_| Clock::draw(&mut clocks)).collect(),
            net: Network::new(Rng::stream(seed, "network"), swarm.quality),
            swarm,
            marks: Marks::default(),
            trace,
            stats: Stats::default(),
            oracle: Oracle::new(config),
            keys,
            election: Election::default(),
            failure: None,
            calm: false,
            finished: HashSet::new(),
            in_vram: HashSet::new(),
            ledger: Ledger::default(),
            owners: Vec::new(),
            scratch: Vec::new(),
            pool: Vec::new(),
            heap: BinaryHeap::new(),
            events: Vec::new(),
            free: Vec::new(),
            sequence: 0,
            op_ids: 0,
        }
    }

    /// The host of the masters: they share a clock with nobody else.
    pub fn master_host(&self) -> u8 {
        self.swarm.hosts
    }

    /// The monotonic clock of a host.
    pub fn mono(&self, host: u8) -> Now {
        self.clocks[usize::from(host)].mono(self.now)
    }

    /// The clock of a host by which leases are reckoned: the same, but for canary 3.
    pub fn lease_clock(&self, host: u8) -> Now {
        self.clocks[usize::from(host)].leases(self.now)
    }

    /// A situation was reached.
    pub fn mark(&mut self, mark: Mark) {
        self.marks.hit(mark);
    }

    /// Says what happens, if anybody listens.
    pub fn say(&mut self, text: impl FnOnce() -> String) {
        self.trace.say(self.now, text);
    }

    /// A name for a get or a remove.
    pub fn op_id(&mut self) -> OpId {
        self.op_ids += 1;
        OpId(self.op_ids)
    }

    /// Which node owns a segment.
    pub fn owner(&self, segment: SegmentId) -> u8 {
        let found = self.owners.iter().find(|(known, _)| *known == segment);
        found.expect("all segments are known from the start").1
    }

    /// A buffer of `len` zeros.
    pub fn buffer(&mut self, len: usize) -> Vec<u8> {
        let mut buffer = self.pool.pop().unwrap_or_default();
        buffer.clear();
        buffer.resize(len, 0);
        buffer
    }

    /// A buffer is not needed any more.
    pub fn recycle(&mut self, buffer: Vec<u8>) {
        if self.pool.len() < POOL_MAX && buffer.capacity() > 0 {
            self.pool.push(buffer);
        }
    }

    /// Something will happen at this time.
    pub fn at(&mut self, at: Nanos, event: Event) {
        self.sequence += 1;
        let slot = if let Some(slot) = self.free.pop() {
            self.events[slot as usize] = Some(event);
            slot
        } else {
            self.events.push(Some(event));
            self.events.len() as u32 - 1
        };
        self.heap.push(Reverse((at.max(self.now), self.sequence, slot)));
    }

    /// Something will happen after this long.
    pub fn after(&mut self, span: Nanos, event: Event) {
        self.at(self.now + span, event);
    }

    /// The next thing to happen; time moves there.
    pub fn pop(&mut self) -> Option<Event> {
        let Reverse((at, _, slot)) = self.heap.pop()?;
        self.now = at;
        self.free.push(slot);
        self.events[slot as usize].take()
    }

    /// A control message to a master.
    pub fn to_master(&mut self, from: Actor, to: u8, message: ToMaster) {
        match self.net.route(self.now, from, Actor::Master(to)) {
            Route::Lost => {}
            Route::After(delay, again) => {
                if let Some(again) = again {
                    self.after(again, Event::Master(to, message.clone()));
                }
                self.after(delay, Event::Master(to, message));
            }
        }
    }

    /// A control message to a master that arrives once or never: notices travel in a call over a
    /// connection, and nobody repeats them.
    pub fn to_master_once(&mut self, from: Actor, to: u8, message: ToMaster) {
        if let Route::After(delay, _) = self.net.route(self.now, from, Actor::Master(to)) {
            self.after(delay, Event::Master(to, message));
        }
    }

    /// A control message to a node that arrives once or never: orders travel in the answer of a call.
    pub fn to_node_once(&mut self, from: Actor, to: u8, message: ToNode) {
        if let Route::After(delay, _) = self.net.route(self.now, from, Actor::Node(to)) {
            self.after(delay, Event::Node(to, message));
        }
    }

    /// A control message to a node.
    pub fn to_node(&mut self, from: Actor, to: u8, message: ToNode) {
        match self.net.route(self.now, from, Actor::Node(to)) {
            Route::Lost => {}
            Route::After(delay, again) => {
                if let Some(again) = again {
                    self.after(again, Event::Node(to, message.clone()));
                }
                self.after(delay, Event::Node(to, message));
            }
        }
    }

    /// An answer of a master to a client.
    pub fn to_client(&mut self, from: Actor, to: u8, message: ToClient) {
        match self.net.route(self.now, from, Actor::Client(to)) {
            Route::Lost => {}
            Route::After(delay, again) => {
                if let Some(again) = again {
                    self.after(again, Event::Client(to, message.clone()));
                }
                self.after(delay, Event::Client(to, message));
            }
        }
    }

    /// A message of a data call to a node; `link.last` is when the one before arrives. False: the
    /// connection broke, and both ends will notice.
    pub fn call_node(&mut self, link: &mut Link, node: u8, call: CallId, message: ToNode) -> bool {
        if link.broken {
            return false;
        }
        let client = Actor::Client(call.op.client);
        if let Some(at) = self.data_delay(link, client, Actor::Node(node)) {
            self.at(at, Event::Node(node, message));
            return true;
        }
        self.break_call(link, node, call);
        false
    }

    /// A message of a data call to a client.
    pub fn call_client(
        &mut self,
        link: &mut Link,
        node: u8,
        call: CallId,
        message: ToClient,
    ) -> bool {
        if link.broken {
            return false;
        }
        let client = call.op.client;
        if let Some(at) = self.data_delay(link, Actor::Node(node), Actor::Client(client)) {
            self.at(at, Event::Client(client, message));
            return true;
        }
        self.break_call(link, node, call);
        false
    }

    /// A message between two nodes; `link.last` is when the one before arrives. False: it is lost, and
    /// so is everything behind it.
    pub fn call_peer(&mut self, link: &mut Link, from: u8, to: u8, message: ToNode) -> bool {
        if let Some(at) = self.data_delay(link, Actor::Node(from), Actor::Node(to)) {
            self.at(at, Event::Node(to, message));
            return true;
        }
        link.broken = true;
        false
    }

    fn data_delay(&mut self, link: &mut Link, from: Actor, to: Actor) -> Option<Nanos> {
        let delay = if link.same_host {
            self.net.local()
        } else {
            match self.net.route(self.now, from, to) {
                // A connection repeats nothing.
                Route::After(delay, _) => delay,
                Route::Lost => return None,
            }
        };
        link.last = (self.now + delay).max(link.last + 1);
        Some(link.last)
    }

    /// Both ends of a connection will notice that it is over.
    pub fn break_call(&mut self, link: &mut Link, node: u8, call: CallId) {
        if link.broken {
            return;
        }
        link.broken = true;
        self.hang_up(link, node, call);
        let delay = self.net.hang_up();
        self.after(delay, Event::Client(call.op.client, ToClient::Broken { call }));
    }

    /// The client closes a connection; the node notices, after everything that was sent on it.
    pub fn hang_up(&mut self, link: &mut Link, node: u8, call: CallId) {
        link.broken = true;
        let delay = if link.same_host { self.net.local() } else { self.net.hang_up() };
        let at = (self.now + delay).max(link.last + 1);
        self.at(at, Event::Node(node, ToNode::HangUp { call }));
    }
}

/// One direction of a data call.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// A Unix socket: nothing is lost on it.
    pub same_host: bool,
    /// When the last message arrives.
    pub last: Nanos,
    /// Nothing more can be sent.
    pub broken: bool,
}

impl Link {
    /// A connection that works.
    pub fn new(same_host: bool) -> Self {
        Self { same_host, last: 0, broken: false }
    }
}
