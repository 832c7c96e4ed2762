//! Nodes that restart, fall silent and leave, leaders that follow each other, with and without the state of the last
//! one, and readers who keep what they once mapped. What must stay true (C2, R10): while any start of any node, dead
//! or alive, can still be read with a key in it, no leader lets that key be put again. Clocks differ by up to half a
//! percent. While no leader is there, nodes extend the leases that they have.

#![expect(clippy::unwrap_used, reason = "a test")]

use mooncrate_core::catalog::{Catalog, Config, Start, Trusted};
use mooncrate_core::plan::{
    Announced, AnnouncedLife, AnnouncedObject, Evidence, Notice, Order, OrderResult, SegmentOffer,
};
use mooncrate_core::rng::Rng;
use mooncrate_core::{
    Generation, HostId, Incarnation, Label, LeaderEpoch, Locator, Medium, NodeId, Now, ObjectId,
    PutConfig, Seal, SegmentId, Slot, ZoneId, lease,
};
use std::collections::BTreeMap;
use std::time::Duration;

const NODES: u64 = 2;
const KEYS: u8 = 3;
const REGISTRATION: Duration = Duration::from_millis(600);
const LEASE: Duration = Duration::from_millis(100);
const LEN: u64 = 100;

/// One start of a node: its memory outlives it in the mappings of readers.
#[derive(Default)]
struct Memory {
    /// On the clock of its machine.
    serve_until: Now,
    /// Where slots stand that were used before.
    freed: BTreeMap<u32, Generation>,
    held: BTreeMap<u8, (Locator, ObjectId)>,
}

/// A node as it is now.
struct Node {
    id: u64,
    /// Parts per thousand of true time that its machine counts.
    rate: u64,
    incarnation: u64,
    /// All its starts; the last one lives.
    starts: Vec<Memory>,
    /// Until when an earlier start may be readable, by a leader's word.
    fence: Option<Now>,
    /// When its lease was last granted or extended, and when a leader last granted it.
    current: Now,
    granted: Now,
    stopped_until_ms: u64,
    mounted: bool,
}

impl Node {
    fn clock(&self, true_ms: u64) -> Now {
        Now(true_ms * self.rate * 1_000)
    }

    /// A new process; what the last one held stays readable for as long as it may.
    fn restart(&mut self, now_ms: u64) {
        self.incarnation += 1;
        self.starts.push(Memory::default());
        (self.fence, self.mounted) = (None, false);
        self.current = self.clock(now_ms);
    }

    /// The process lives and drops everything: nobody reads it any more.
    fn start_over(&mut self, now_ms: u64) {
        self.starts.last_mut().unwrap().serve_until = Now(0);
        self.restart(now_ms);
    }

    /// A leader has granted a lease.
    fn heard(&mut self, sent_ms: u64) {
        let sent = self.clock(sent_ms);
        (self.current, self.granted) = (self.current.max(sent), self.granted.max(sent));
        self.starts.last_mut().unwrap().serve_until = self.granted.plus(LEASE);
    }

    /// No leader is there.
    fn extend(&mut self, now_ms: u64) -> bool {
        let now = self.clock(now_ms);
        let until = now.plus(LEASE).min(self.granted.plus(REGISTRATION / 2));
        let memory = self.starts.last_mut().unwrap();
        let extends = now < memory.serve_until && memory.serve_until < until;
        if extends {
            (memory.serve_until, self.current) = (until, now);
        }
        extends
    }

    /// Drops what it is told to drop.
    fn obey(&mut self, order: &Order) -> Notice {
        let &Order { segment, incarnation, slot, generation, .. } = order;
        let memory = self.starts.last_mut().unwrap();
        memory.held.retain(|_, (at, _)| (at.slot, at.generation) != (slot, generation));
        let next = Generation(generation.0 + 1);
        memory.freed.insert(slot.0, next);
        Notice { segment, incarnation, slot, generation, result: OrderResult::Freed { next } }
    }

    fn offer(&self, now_ms: u64) -> SegmentOffer {
        let lapsed = self.clock(now_ms).since(self.current) >= LEASE;
        SegmentOffer {
            segment: SegmentId(self.id),
            incarnation: Incarnation(self.incarnation),
            node: NodeId(self.id),
            medium: Medium::Dram,
            bytes: 4096,
            slots: 16,
            host: HostId(self.id),
            zone: ZoneId(0),
            tenant: None,
            evidence: Evidence { lapsed, ..Evidence::default() },
        }
    }

    fn page(&self) -> Vec<Announced> {
        let memory = self.starts.last().unwrap();
        let empty = |slot| {
            let generation = memory.freed.get(&slot).copied().unwrap_or(Generation(0));
            Announced { slot: Slot(slot), generation, life: None }
        };
        let mut page: Vec<Announced> = (0..16).map(empty).collect();
        for (key, (locator, object)) in &memory.held {
            let label = Label::plain((&[*key][..]).into()).unwrap();
            let told = AnnouncedObject { label, object: *object, len: LEN, seal: Seal(7) };
            let life = AnnouncedLife { extent: locator.extent, object: Some(told) };
            let (slot, generation) = (locator.slot, locator.generation);
            page[slot.0 as usize] = Announced { slot, generation, life: Some(life) };
        }
        page
    }
}

struct World {
    rng: Rng,
    now_ms: u64,
    leader_rate: u64,
    catalog: Catalog,
    /// Whether a leader is there.
    led: bool,
    /// The durable list.
    list: Vec<Trusted>,
    nodes: Vec<Node>,
    /// Puts of keys that a dead start had held, takeovers that nothing held up, leases that were extended, and
    /// keys that were given up while their node was silent.
    put_again: u64,
    at_once: u64,
    extended: u64,
    struck: u64,
}

fn config() -> Config {
    let silent_after = Duration::from_millis(100);
    let (registration, serve_lease) = (REGISTRATION, LEASE);
    let order_retry = Duration::from_millis(10);
    let config = Config { registration, serve_lease, silent_after, ..Config::default() };
    Config { order_retry, copies_max: 0, ..config }
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let mut rate = || 995 + rng.below(11);
        let node = |id, rate| Node {
            id,
            rate,
            incarnation: 1,
            starts: vec![Memory::default()],
            fence: None,
            current: Now(0),
            granted: Now(0),
            stopped_until_ms: 0,
            mounted: false,
        };
        let nodes = (1..=NODES).map(|id| node(id, rate())).collect();
        let (leader_rate, now_ms) = (rate(), 1_000_000);
        let began = Now(now_ms * leader_rate * 1_000);
        let catalog = Catalog::new(config(), LeaderEpoch(1), Start::New, began);
        Self {
            rng,
            now_ms,
            leader_rate,
            catalog,
            led: true,
            list: Vec::new(),
            nodes,
            put_again: 0,
            at_once: 0,
            extended: 0,
            struck: 0,
        }
    }

    fn leader_clock(&self) -> Now {
        Now(self.now_ms * self.leader_rate * 1_000)
    }

    fn step(&mut self) {
        let node = self.rng.below(NODES) as usize;
        match self.rng.below(40) {
            0 => self.nodes[node].restart(self.now_ms),
            1 if self.led => {
                self.struck += self.catalog.counters().lapsed_struck;
                self.led = false;
            }
            1 | 2 if !self.led => self.replace_leader(),
            2 if self.rng.chance(250) => self.leave(node),
            // It stands still, and can be read on.
            3 => self.nodes[node].stopped_until_ms = self.now_ms + self.rng.below(500),
            4..=20 if self.now_ms < self.nodes[node].stopped_until_ms => {}
            4..=20 if self.led => self.beat(node),
            4..=20 => self.extended += u64::from(self.nodes[node].extend(self.now_ms)),
            21..=30 if self.led => self.put(),
            _ => {
                self.now_ms += 1 + self.rng.below(30);
                if self.led {
                    self.catalog.tick(self.leader_clock());
                    self.write_list();
                }
            }
        }
    }

    fn replace_leader(&mut self) {
        let expected = self.catalog.holders();
        let epoch = LeaderEpoch(self.catalog.epoch().0 + 1);
        self.leader_rate = 995 + self.rng.below(11);
        let now = self.leader_clock();
        // A leader that has not ended its own wait for anybody has written nothing.
        let forgets = self.catalog.waits_for_anybody() || self.rng.chance(300);
        let trusted = std::mem::take(&mut self.list);
        let start = if forgets { Start::Unknown } else { Start::Takeover { expected, trusted } };
        if let Start::Takeover { trusted, .. } = &start {
            self.list.clone_from(trusted);
        }
        self.catalog = Catalog::new(config(), epoch, start, now);
        self.led = true;
    }

    fn write_list(&mut self) {
        if self.catalog.trust_changed() && !self.catalog.waits_for_anybody() {
            let list = self.catalog.trusted();
            self.catalog.trust_writing(&list);
            if self.rng.chance(500) {
                self.catalog.trust_written(&list);
                self.list = list;
            }
        }
    }

    fn leave(&mut self, node: usize) {
        let node = &mut self.nodes[node];
        let (segment, mount) = (SegmentId(node.id), Incarnation(node.incarnation));
        node.start_over(self.now_ms);
        if self.led && self.catalog.mounts(segment, mount) {
            self.catalog.unmount(NodeId(node.id), &[segment]);
        }
    }

    /// A heartbeat, or a mount where that is due; it may take a while to arrive.
    fn beat(&mut self, node: usize) {
        let sent_ms = self.now_ms;
        self.now_ms += self.rng.below(20);
        let now = self.leader_clock();
        let node = &mut self.nodes[node];
        let id = NodeId(node.id);
        let mount = Incarnation(node.incarnation);
        let known = node.mounted && self.catalog.mounts(SegmentId(node.id), mount);
        if known && self.catalog.heartbeat(now, id).is_ok() {
            if self.catalog.may_serve(id) {
                return node.heard(sent_ms);
            }
            // It polls its orders, which were sent again and again while it was silent.
            self.catalog.tick(now);
            let orders = self.catalog.take_orders();
            for (_, order) in orders.iter().filter(|(to, of)| *to == id && of.incarnation == mount)
            {
                let notice = node.obey(order);
                self.catalog.notice(now, &notice);
            }
            return;
        }
        node.mounted = false;
        if self.catalog.mount(now, id, &[node.offer(sent_ms)]).is_err() {
            return node.start_over(self.now_ms);
        }
        let left = node.fence.map(|fence| fence.since(node.clock(sent_ms)));
        let fence = self.catalog.fence(now, id, left);
        let here = node.clock(self.now_ms);
        node.fence = Some(if fence.is_zero() { here } else { here.plus(lease::guarded(fence)) });
        let rebuilding = self.catalog.rebuilding();
        let (segment, mount) = (SegmentId(node.id), Incarnation(node.incarnation));
        if self.catalog.announce(now, segment, mount, &node.page(), true).is_err() {
            return node.start_over(self.now_ms);
        }
        node.mounted = true;
        self.at_once += u64::from(rebuilding && !self.catalog.rebuilding());
    }

    fn put(&mut self) {
        let key = [self.rng.below(KEYS.into()) as u8];
        let now = self.leader_clock();
        let Ok(plan) = self.catalog.put_start(now, &key, LEN, &PutConfig::default()) else {
            return;
        };
        let at = plan.replicas[0];
        for node in &self.nodes {
            for (start, memory) in node.starts.iter().enumerate() {
                let readable = node.clock(self.now_ms) < memory.serve_until;
                let held = memory.held.contains_key(&key[0]);
                assert!(!readable || !held, "node {} start {start} has key {key:?}", node.id);
                self.put_again += u64::from(held);
            }
        }
        let node = self.nodes.iter_mut().find(|node| SegmentId(node.id) == at.segment).unwrap();
        if !node.mounted || Incarnation(node.incarnation) != at.incarnation {
            self.catalog.put_revoke(now, &key, plan.token).unwrap();
            return;
        }
        self.catalog.put_end(now, &key, plan.token, &[Seal(7)]).unwrap();
        node.starts.last_mut().unwrap().held.insert(key[0], (at, plan.object));
    }
}

#[test]
fn no_key_is_put_again_while_an_earlier_start_can_be_read() {
    let (mut put_again, mut at_once, mut extended, mut struck) = (0, 0, 0, 0);
    for seed in 0..120 {
        let mut world = World::new(seed);
        for _ in 0..1_500 {
            world.step();
        }
        put_again += world.put_again;
        at_once += world.at_once;
        extended += world.extended;
        struck += world.struck;
    }
    assert!(put_again > 200, "only {put_again} keys came again: this tests nothing");
    assert!(at_once > 150, "only {at_once} announcements ended a rebuild at once");
    assert!(extended > 200, "only {extended} leases were extended");
    assert!(struck > 50, "only {struck} keys of silent nodes were given up");
}
