//! Copies, drains, repairs and lost nodes against plain owners: copies that are lost, refused, told
//! twice or too late, drains begun and ended at any time. After every step every byte is accounted
//! for (G8), what is located holds the right object, and nothing is lost that had a copy elsewhere.

#![expect(clippy::unwrap_used, reason = "a test")]

use mooncrate_core::catalog::{Catalog, Config, InBatch, Start, Writer};
use mooncrate_core::copy::{CopyDone, CopyOrder, DrainMode};
use mooncrate_core::error::CopyError;
use mooncrate_core::evict::PolicyKind;
use mooncrate_core::plan::{
    Action, Evidence, Keep, Locator, Notice, Order, OrderResult, SegmentOffer,
};
use mooncrate_core::state::{Event, ReplicaState};
use mooncrate_core::word::Word;
use mooncrate_core::{
    HostId, Incarnation, LeaderEpoch, Medium, NodeId, Now, ObjectId, PutConfig, Seal, SegmentId,
    Slot, TenantId, ZoneId,
};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const NODES: u64 = 4;
/// Room for everything on one node: nothing is ever evicted, so nothing may be missing for that.
const BYTES: u64 = 256 * 1024;
const KEYS: u8 = 10;

#[derive(Clone, Debug)]
enum Op {
    Put { key: u8, len: u64, replicas: u8, hard: bool },
    Remove { key: u8 },
    Copy { key: u8, to: u8, from: Option<u8> },
    Reads { key: u8, reads: u16 },
    Drain { node: u8, drop: bool },
    Undrain { node: u8 },
    Kill { node: u8 },
    Owners { lose: u8 },
    Copies { how: Fate, nth: u8 },
    Pass { ms: u16 },
}

/// What becomes of copies that were ordered.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Done,
    Twice,
    /// Every other one is lost on its way, or its answer is.
    Lost,
    Failed,
    /// Published, but told only later.
    Late,
}

fn any_op() -> impl Strategy<Value = Op> {
    let node = 0..NODES as u8;
    let fate = prop_oneof![
        4 => Just(Fate::Done),
        1 => Just(Fate::Twice),
        1 => Just(Fate::Lost),
        1 => Just(Fate::Failed),
        1 => Just(Fate::Late),
    ];
    prop_oneof![
        6 => (0..KEYS, 0..2000_u64, 1..4_u8, any::<bool>())
            .prop_map(|(key, len, replicas, hard)| Op::Put { key, len, replicas, hard }),
        2 => (0..KEYS).prop_map(|key| Op::Remove { key }),
        3 => (0..KEYS, node.clone(), proptest::option::of(node.clone()))
            .prop_map(|(key, to, from)| Op::Copy { key, to, from }),
        1 => (0..KEYS, any::<u16>()).prop_map(|(key, reads)| Op::Reads { key, reads }),
        2 => (node.clone(), proptest::bool::weighted(0.3))
            .prop_map(|(node, drop)| Op::Drain { node, drop }),
        2 => node.clone().prop_map(|node| Op::Undrain { node }),
        1 => node.prop_map(|node| Op::Kill { node }),
        6 => any::<u8>().prop_map(|lose| Op::Owners { lose }),
        8 => (fate, any::<u8>()).prop_map(|(how, nth)| Op::Copies { how, nth }),
        4 => (0..3000_u16).prop_map(|ms| Op::Pass { ms }),
    ]
}

type Place = (SegmentId, Incarnation, Slot);

struct Rig {
    catalog: Catalog,
    now: Now,
    incarnation: u64,
    /// Owners as plain maps: the word of a slot, and the object that was published in it.
    words: BTreeMap<Place, Word>,
    holds: BTreeMap<Place, ObjectId>,
    mounts: BTreeMap<SegmentId, Incarnation>,
    waiting: Vec<Order>,
    copies: Vec<CopyOrder>,
    late: Vec<CopyDone>,
    index: BTreeMap<u8, (ObjectId, bool)>,
    /// Keys whose value may be gone: a node went with its only copy, or a drain may drop it.
    may_vanish: BTreeSet<u8>,
}

fn key(k: u8) -> [u8; 4] {
    [b'k', b'e', b'y', k]
}

fn segment(node: u64) -> SegmentId {
    SegmentId(100 + node)
}

fn place(l: &Locator) -> Place {
    (l.segment, l.incarnation, l.slot)
}

impl Rig {
    fn new(seed: u64, policy: PolicyKind) -> Self {
        let put_timeout = Duration::from_secs(5);
        Self::with(&Config { seed, policy, put_timeout, ..Config::default() })
    }

    /// A cluster in which copies outlive the segments that they began in: places in the books are given
    /// to others while somebody may still mean the old ones.
    fn with_slow_copies(seed: u64, policy: PolicyKind) -> Self {
        let (put_timeout, registration) = (Duration::from_mins(1), Duration::from_secs(2));
        Self::with(&Config { seed, policy, put_timeout, registration, ..Config::default() })
    }

    fn with(config: &Config) -> Self {
        let now = Now(1_000_000_000);
        let config =
            Config { copies_per_node_max: 3, copies_max: 6, hot_samples: 40, ..config.clone() };
        let mut rig = Self {
            catalog: Catalog::new(config, LeaderEpoch(1), Start::New, now),
            now,
            incarnation: 0,
            words: BTreeMap::new(),
            holds: BTreeMap::new(),
            mounts: BTreeMap::new(),
            waiting: Vec::new(),
            copies: Vec::new(),
            late: Vec::new(),
            index: BTreeMap::new(),
            may_vanish: BTreeSet::new(),
        };
        for node in 0..NODES {
            rig.mount(node);
        }
        rig
    }

    fn mount(&mut self, node: u64) {
        self.incarnation += 1;
        let offer = SegmentOffer {
            segment: segment(node),
            incarnation: Incarnation(self.incarnation),
            node: NodeId(node),
            medium: Medium::Dram,
            bytes: BYTES,
            slots: 64,
            host: HostId(node),
            zone: ZoneId(0),
            tenant: None,
            evidence: Evidence::default(),
        };
        self.catalog.mount(self.now, NodeId(node), std::slice::from_ref(&offer)).unwrap();
        self.catalog.announce(self.now, offer.segment, offer.incarnation, &[], true).unwrap();
        self.mounts.insert(offer.segment, offer.incarnation);
    }

    fn mounted(&self, segment: SegmentId, incarnation: Incarnation) -> bool {
        self.mounts.get(&segment) == Some(&incarnation)
    }

    /// A writer, or an owner that has fetched a copy, publishes; false if the life is over.
    fn publish(&mut self, at: &Locator, object: ObjectId) -> bool {
        if !self.mounted(at.segment, at.incarnation) {
            return false;
        }
        let dead = Word::new(at.generation, ReplicaState::Dead, 0);
        let word = self.words.entry(place(at)).or_insert(dead);
        let steps = [Event::Reserve, Event::Begin, Event::Publish];
        let done =
            steps.iter().all(|s| word.after(at.generation, *s).map(|next| *word = next).is_ok());
        if done {
            self.holds.insert(place(at), object);
        }
        done
    }

    fn readable(&self, at: &Locator) -> Option<ObjectId> {
        let word = self.words.get(&place(at))?;
        let fine = word.readable(at.generation) && self.mounted(at.segment, at.incarnation);
        fine.then(|| self.holds[&place(at)])
    }

    fn execute(&mut self, order: &Order) {
        let Order { segment, incarnation, slot, generation: g, action } = *order;
        if !self.mounted(segment, incarnation) {
            return;
        }
        let dead = Word::new(g, ReplicaState::Dead, 0);
        let word = self.words.entry((segment, incarnation, slot)).or_insert(dead);
        assert_ne!(action, Action::Evict, "there is room for everything");
        if word.generation() == g {
            *word = Word::new(g.next().unwrap(), ReplicaState::Dead, 0);
        }
        let result = OrderResult::Freed { next: word.generation() };
        let notice = Notice { segment, incarnation, slot, generation: g, result };
        self.catalog.notice(self.now, &notice);
    }

    fn run_owners(&mut self, lose: u8) {
        for (n, (_, order)) in self.catalog.take_orders().into_iter().enumerate() {
            if lose > 0 && lose.is_multiple_of(3) && n as u8 % 4 == lose % 4 {
                continue;
            }
            self.waiting.push(order);
        }
        for order in std::mem::take(&mut self.waiting) {
            self.execute(&order);
        }
    }

    fn run_copies(&mut self, how: Fate, nth: u8) {
        for done in std::mem::take(&mut self.late) {
            self.catalog.copied(self.now, &done);
        }
        self.copies.extend(self.catalog.take_copies().into_iter().map(|(_, order)| order));
        for (n, order) in std::mem::take(&mut self.copies).into_iter().enumerate() {
            let unlucky = (n as u8).wrapping_add(nth).is_multiple_of(2);
            if matches!(how, Fate::Lost) && unlucky && nth > 128 {
                continue;
            }
            let from = order.sources.iter().find_map(|source| self.readable(source));
            if let Some(found) = from {
                assert_eq!(found, order.object, "a copy of another object");
            }
            let wanted = !(matches!(how, Fate::Failed) && unlucky) && from.is_some();
            let ok = wanted && self.publish(&order.target, order.object);
            let done = CopyDone::of(&order.target, ok);
            match how {
                Fate::Late => self.late.push(done),
                Fate::Lost if unlucky => {}
                Fate::Twice => {
                    self.catalog.copied(self.now, &done);
                    self.catalog.copied(self.now, &CopyDone { ok: !ok, ..done });
                }
                _ => self.catalog.copied(self.now, &done),
            }
        }
        self.catalog.go_on(self.now);
    }

    fn pass(&mut self, ms: u64) {
        for _ in 0..ms.div_ceil(500).max(1) {
            self.now = self.now.plus(Duration::from_millis(ms.min(500)));
            for node in 0..NODES {
                self.catalog.heartbeat(self.now, NodeId(node)).unwrap();
            }
            self.catalog.tick(self.now);
        }
    }

    /// A client that knows where the object is has read it so often.
    fn read(&mut self, k: u8, reads: u32) {
        let Some(mark) = self.catalog.peek(&key(k)).and_then(|at| at.read_mark(reads, 7)) else {
            return;
        };
        let mut outdated = Vec::new();
        self.catalog.note_reads(self.now, TenantId::DEFAULT, &[mark], &mut outdated);
        assert_eq!(outdated, [], "it knows all copies");
    }

    fn put(&mut self, k: u8, len: u64, replicas: u8, hard: bool) {
        let keep = if hard { Keep::Hard } else { Keep::Normal };
        let config = PutConfig { replicas, best_effort: true, keep, ..PutConfig::default() };
        // Any key may follow any other one.
        let before = key(((u64::from(k) + len) % u64::from(KEYS)) as u8);
        let batch = InBatch { after: Some(&before), at: 1, len: 2 };
        let (now, writer) = (self.now, Writer::UNSEEN);
        let started = self.catalog.put_start_in(now, writer, batch, &key(k), len, &config);
        let Ok(plan) = started else { return };
        let written = plan.replicas.iter().all(|at| self.publish(at, plan.object));
        assert!(written, "nobody else knows these slots");
        let seal = Seal(plan.object.sequence);
        self.catalog.put_end(self.now, &key(k), plan.token, &[seal]).unwrap();
        self.index.insert(k, (plan.object, hard));
        self.may_vanish.remove(&k);
    }

    /// Everything that only this node has goes with it.
    fn kill(&mut self, node: u64) {
        for k in 0..KEYS {
            let found = self.catalog.locate(self.now, &key(k), 0);
            let only = |at: &Locator| at.segment == segment(node);
            if found.is_ok_and(|found| found.replicas.iter().all(only)) {
                self.may_vanish.insert(k);
            }
        }
        self.catalog.unmount(NodeId(node), &[segment(node)]);
        self.mount(node);
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Put { key, len, replicas, hard } => self.put(key, len, replicas, hard),
            Op::Remove { key: k } => {
                if self.catalog.remove(self.now, &key(k), true).is_ok() {
                    self.index.remove(&k);
                }
            }
            Op::Copy { key: k, to, from } => {
                let from = from.map(|from| segment(from.into()));
                let _ = self.catalog.copy(self.now, &key(k), from, segment(to.into()));
            }
            Op::Reads { key: k, reads } => self.read(k, reads.into()),
            Op::Drain { node, drop } => {
                let mode = if drop { DrainMode::Drop } else { DrainMode::Move };
                self.catalog.drain(NodeId(node.into()), None, mode).unwrap();
                if drop {
                    let soft = self.index.iter().filter(|(_, (_, hard))| !hard);
                    self.may_vanish.extend(soft.map(|(k, _)| *k));
                }
            }
            Op::Undrain { node } => {
                self.catalog.undrain(NodeId(node.into()), None).unwrap();
            }
            Op::Kill { node } => self.kill(node.into()),
            Op::Owners { lose } => self.run_owners(lose),
            Op::Copies { how, nth } => self.run_copies(how, nth),
            Op::Pass { ms } => self.pass(ms.into()),
        }
    }

    fn check(&mut self) -> Result<(), TestCaseError> {
        if let Err(error) = self.catalog.audit() {
            return Err(TestCaseError::fail(error.to_string()));
        }
        for k in 0..KEYS {
            match (self.catalog.locate(self.now, &key(k), 0), self.index.get(&k)) {
                (Ok(found), Some((object, _))) => {
                    prop_assert_eq!(found.object, *object);
                    for at in &found.replicas {
                        prop_assert_eq!(self.readable(at), Some(*object), "{:?}", at);
                    }
                    let nodes: BTreeSet<_> = found.replicas.iter().map(|at| at.segment).collect();
                    prop_assert_eq!(nodes.len(), found.replicas.len(), "two copies on a node");
                }
                (Ok(found), None) => prop_assert!(false, "key {k} is back: {:?}", found),
                (Err(_), Some(_)) => {
                    prop_assert!(self.may_vanish.contains(&k), "key {k} is lost");
                }
                (Err(_), None) => {}
            }
        }
        Ok(())
    }

    /// Everything works again: drains end, and after all removes nothing is left.
    fn heal(&mut self) -> Result<(), TestCaseError> {
        self.catalog.undrain(NodeId(0), None).unwrap();
        for _ in 0..60 {
            self.run_owners(0);
            self.run_copies(Fate::Done, 0);
            self.pass(500);
            self.check()?;
        }
        prop_assert_eq!(self.catalog.copies_under_way(), 0);
        for node in 1..NODES {
            let stat = self.catalog.drain_stat(NodeId(node), None).unwrap();
            prop_assert!(stat.draining == 0 || stat.drained(), "node {node}: {stat:?}");
        }
        for k in 0..KEYS {
            let _ = self.catalog.remove(self.now, &key(k), true);
            self.index.remove(&k);
        }
        for _ in 0..10 {
            self.run_owners(0);
            self.pass(1000);
        }
        self.check()?;
        prop_assert_eq!(self.catalog.len(), 0);
        for stat in self.catalog.segments() {
            prop_assert_eq!(stat.free, BYTES);
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_lost_that_has_a_copy_elsewhere(
        seed: u64,
        slow_copies: bool,
        policy in prop_oneof![Just(PolicyKind::Lru), Just(PolicyKind::Density)],
        ops in vec(any_op(), 1..120),
    ) {
        let mut rig = if slow_copies { Rig::with_slow_copies(seed, policy) } else { Rig::new(seed, policy) };
        for op in &ops {
            rig.apply(op);
            rig.check()?;
        }
        rig.heal()?;
    }
}

/// A node that goes leaves objects with a copy too few; they get another one.
#[test]
fn lost_copies_are_made_anew() {
    let mut rig = Rig::new(7, PolicyKind::Lru);
    for k in 0..KEYS {
        rig.put(k, 1000, 2, false);
    }
    rig.kill(1);
    for _ in 0..20 {
        rig.run_owners(0);
        rig.run_copies(Fate::Done, 0);
        rig.pass(100);
        rig.check().unwrap();
    }
    for k in 0..KEYS {
        assert_eq!(rig.catalog.locate(rig.now, &key(k), 0).unwrap().replicas.len(), 2);
    }
    assert!(rig.catalog.counters().copied > 0);
}

/// An order that was lost on its way is given again, for the same life and the rest of its time, until
/// its owner has answered.
#[test]
fn a_lost_copy_is_ordered_again() {
    let mut rig = Rig::new(11, PolicyKind::Lru);
    rig.put(0, 1000, 1, false);
    let holder = rig.catalog.locate(rig.now, &key(0), 0).unwrap().replicas[0].segment;
    let to = (0..NODES).map(segment).find(|to| *to != holder).unwrap();
    assert!(!rig.catalog.copy(rig.now, &key(0), None, to).unwrap());
    let lost = rig.catalog.take_copies();
    rig.pass(500);
    assert!(rig.catalog.take_copies().is_empty(), "it may still be on its way");
    rig.pass(500);
    let again = rig.catalog.take_copies();
    let ([(_, lost)], [(_, again)]) = (&lost[..], &again[..]) else { panic!("{again:?}") };
    assert_eq!((again.target, again.token), (lost.target, lost.token));
    assert_eq!(again.time_ms, lost.time_ms - 1000);
    rig.copies.push(again.clone());
    rig.run_copies(Fate::Done, 0);
    assert!(rig.catalog.copy(rig.now, &key(0), None, to).unwrap(), "it is there");
    rig.pass(3000);
    assert!(rig.catalog.take_copies().is_empty());
    rig.check().unwrap();
}

/// A move outlives the segment that it began in, whose place in the books goes to another one: what lies
/// at the old replica's slot there is not the old replica.
#[test]
fn a_move_ends_no_replica_but_its_own() {
    let mut rig = Rig::with_slow_copies(5, PolicyKind::Lru);
    rig.put(0, 1000, 2, false);
    let replicas = rig.catalog.locate(rig.now, &key(0), 0).unwrap().replicas;
    let held: Vec<SegmentId> = replicas.iter().map(|at| at.segment).collect();
    let mut others = (0..NODES).filter(|node| !held.contains(&segment(*node)));
    let (to, empty) = (others.next().unwrap(), others.next().unwrap());
    let from = (0..NODES).find(|node| segment(*node) == held[0]).unwrap();
    assert!(!rig.catalog.copy(rig.now, &key(0), Some(held[0]), segment(to)).unwrap());
    let moving = rig.catalog.take_copies();
    // The first book is swept out, and the next mount takes its place.
    rig.kill(from);
    rig.pass(3000);
    rig.kill(empty);
    // The owner of the move is slow.
    let _ = rig.catalog.take_copies();
    let _ = rig.catalog.copy(rig.now, &key(0), None, segment(empty));
    rig.run_copies(Fate::Done, 0);
    let has = |rig: &mut Rig, node| {
        let found = rig.catalog.locate(rig.now, &key(0), 0).unwrap().replicas;
        found.iter().any(|at| at.segment == segment(node))
    };
    assert!(has(&mut rig, empty));
    rig.copies.extend(moving.into_iter().map(|(_, order)| order));
    rig.run_copies(Fate::Done, 0);
    rig.run_owners(0);
    rig.check().unwrap();
    assert!(has(&mut rig, to) && has(&mut rig, empty));
    rig.heal().unwrap();
}

/// A replica that is still being fetched has not come, so it cannot go: both would stay.
#[test]
fn a_copy_on_its_way_is_not_moved() {
    let mut rig = Rig::new(9, PolicyKind::Lru);
    rig.put(0, 1000, 1, false);
    let holder = rig.catalog.locate(rig.now, &key(0), 0).unwrap().replicas[0].segment;
    let mut others = (0..NODES).map(segment).filter(|to| *to != holder);
    let (first, second) = (others.next().unwrap(), others.next().unwrap());
    assert!(!rig.catalog.copy(rig.now, &key(0), None, first).unwrap());
    let moved = rig.catalog.copy(rig.now, &key(0), Some(first), second);
    assert!(matches!(moved, Err(CopyError::Busy { .. })), "{moved:?}");
    rig.run_copies(Fate::Done, 0);
    assert!(!rig.catalog.copy(rig.now, &key(0), Some(first), second).unwrap());
    rig.run_copies(Fate::Done, 0);
    rig.run_owners(0);
    let found = rig.catalog.locate(rig.now, &key(0), 0).unwrap().replicas;
    let found: BTreeSet<SegmentId> = found.iter().map(|at| at.segment).collect();
    assert_eq!(found, BTreeSet::from([holder, second]));
    rig.check().unwrap();
}

/// A replica that moves goes to one place: to two at once it would leave one copy more than it was, which
/// nobody had asked the tenant's quota about.
#[test]
fn a_replica_moves_to_one_place_at_a_time() {
    let mut rig = Rig::new(9, PolicyKind::Lru);
    rig.put(0, 1000, 1, false);
    let holder = rig.catalog.locate(rig.now, &key(0), 0).unwrap().replicas[0].segment;
    let mut others = (0..NODES).map(segment).filter(|to| *to != holder);
    let (first, second) = (others.next().unwrap(), others.next().unwrap());
    assert!(!rig.catalog.copy(rig.now, &key(0), Some(holder), first).unwrap());
    let again = rig.catalog.copy(rig.now, &key(0), Some(holder), second);
    assert!(matches!(again, Err(CopyError::Busy { .. })), "{again:?}");
    rig.run_copies(Fate::Done, 0);
    rig.run_owners(0);
    let found = rig.catalog.locate(rig.now, &key(0), 0).unwrap().replicas;
    let found: Vec<SegmentId> = found.iter().map(|at| at.segment).collect();
    assert_eq!(found, [first]);
    rig.check().unwrap();
}

/// What is read often gains copies, and loses them when nobody reads it any more.
#[test]
fn hot_objects_gain_copies_and_lose_them() {
    let mut rig = Rig::new(3, PolicyKind::Lru);
    rig.put(0, 1000, 1, false);
    rig.put(1, 1000, 1, false);
    let mut most = 0;
    for _ in 0..10 {
        rig.read(0, 6400);
        rig.pass(500);
        rig.run_copies(Fate::Done, 0);
        most = most.max(rig.catalog.locate(rig.now, &key(0), 0).unwrap().replicas.len());
        rig.check().unwrap();
    }
    assert_eq!(most, 3, "one, and two more for being hot");
    assert_eq!(rig.catalog.locate(rig.now, &key(1), 0).unwrap().replicas.len(), 1);
    for _ in 0..20 {
        rig.pass(500);
        rig.run_owners(0);
        rig.check().unwrap();
    }
    assert_eq!(rig.catalog.locate(rig.now, &key(0), 0).unwrap().replicas.len(), 1);
    assert_eq!(rig.catalog.hot_objects(), 0);
}
