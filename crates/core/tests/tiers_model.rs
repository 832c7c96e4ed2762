//! Three media against plain owners: puts that ask for VRAM and puts that do not, victims that move down,
//! nodes that are drained or die, leaders that follow each other. After every step every byte is accounted for
//! (G8), what is located holds the right object, and nothing lies in VRAM that nobody asked there (M14). Where
//! memory and disks have room, nothing is lost for want of it.

#![expect(clippy::unwrap_used, reason = "a test")]

use mooncrate_core::catalog::{Catalog, Config, InBatch, Offload, Start, Writer};
use mooncrate_core::copy::{CopyDone, CopyOrder, DrainMode};
use mooncrate_core::evict::PolicyKind;
use mooncrate_core::label::Label;
use mooncrate_core::plan::{
    Action, Announced, AnnouncedLife, AnnouncedObject, Evidence, Keep, Notice, Order, OrderResult,
    SegmentOffer,
};
use mooncrate_core::{
    Extent, Generation, HostId, Incarnation, Key, LeaderEpoch, Locator, Medium, NodeId, Now,
    ObjectId, PutConfig, Seal, SegmentId, Slot, Stamp, TenantId, ZoneId,
};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use Medium::{Dram, Ssd, Vram};

const KEYS: u8 = 24;
/// What each node lends: all three media, two of them, one.
const LENT: [&[Medium]; 5] = [&[Dram, Vram, Ssd], &[Dram, Vram], &[Dram, Ssd], &[Vram], &[Dram]];

#[derive(Clone, Debug)]
enum Op {
    Put { key: u8, len: u64, replicas: u8, vram: u8, keep: Keep },
    Remove { key: u8 },
    Lease { key: u8, ms: u16 },
    Copy { key: u8, to: u8, from: Option<u8> },
    Drain { node: u8, medium: u8 },
    Undrain { node: u8 },
    Kill { node: u8 },
    Lead,
    Owners { pinned: u8 },
    Copies { fail: bool },
    Pass { ms: u16 },
}

fn any_op() -> impl Strategy<Value = Op> {
    let node = 0..LENT.len() as u8;
    let keep = prop_oneof![
        8 => Just(Keep::Normal),
        2 => (1..2000_u32).prop_map(|ttl_ms| Keep::Soft { ttl_ms }),
        1 => Just(Keep::Hard),
    ];
    prop_oneof![
        16 => (0..KEYS, 0..2500_u64, 1..4_u8, 0..3_u8, keep)
            .prop_map(|(key, len, replicas, vram, keep)| Op::Put { key, len, replicas, vram, keep }),
        2 => (0..KEYS).prop_map(|key| Op::Remove { key }),
        3 => (0..KEYS, 0..3000_u16).prop_map(|(key, ms)| Op::Lease { key, ms }),
        2 => (0..KEYS, 0..20_u8, proptest::option::of(0..20_u8))
            .prop_map(|(key, to, from)| Op::Copy { key, to, from }),
        1 => (node.clone(), 0..3_u8).prop_map(|(node, medium)| Op::Drain { node, medium }),
        1 => node.clone().prop_map(|node| Op::Undrain { node }),
        1 => node.prop_map(|node| Op::Kill { node }),
        1 => Just(Op::Lead),
        6 => any::<u8>().prop_map(|pinned| Op::Owners { pinned }),
        6 => any::<bool>().prop_map(|fail| Op::Copies { fail }),
        4 => (0..1500_u16).prop_map(|ms| Op::Pass { ms }),
    ]
}

/// A published life, as its owner knows it.
#[derive(Clone, Debug)]
struct Life {
    object: ObjectId,
    label: Label,
    len: u64,
    extent: Extent,
    seal: Seal,
}

type Place = (SegmentId, Incarnation, Slot);

struct Rig {
    catalog: Catalog,
    config: Config,
    now: Now,
    incarnation: u64,
    offers: BTreeMap<SegmentId, SegmentOffer>,
    /// Owners as plain maps: where each slot stands, and what was published there.
    slots: BTreeMap<Place, (Generation, Option<Life>)>,
    waiting: Vec<Order>,
    copies: Vec<CopyOrder>,
    index: BTreeMap<u8, ObjectId>,
    /// Objects that somebody asked VRAM for.
    asked: BTreeSet<ObjectId>,
    /// Keys that may be gone: evicted, or their node is dead.
    may_vanish: BTreeSet<u8>,
    /// There is room below for everything, so nothing may go for want of it.
    roomy: bool,
}

fn key(k: u8) -> [u8; 2] {
    [b'k', k]
}

fn place(at: &Locator) -> Place {
    (at.segment, at.incarnation, at.slot)
}

impl Rig {
    fn new(seed: u64, policy: PolicyKind, offload: Offload, roomy: bool) -> Self {
        let config = Config {
            seed,
            policy,
            offload,
            put_timeout: Duration::from_secs(5),
            registration: Duration::from_secs(2),
            offloads_per_disk_max: if roomy { 64 } else { 2 },
            copies_per_node_max: 3,
            ..Config::default()
        };
        let now = Now(1_000_000_000);
        let mut rig = Self {
            catalog: Catalog::new(config.clone(), LeaderEpoch(1), Start::New, now),
            config,
            now,
            incarnation: 0,
            offers: BTreeMap::new(),
            slots: BTreeMap::new(),
            waiting: Vec::new(),
            copies: Vec::new(),
            index: BTreeMap::new(),
            asked: BTreeSet::new(),
            may_vanish: BTreeSet::new(),
            roomy,
        };
        for node in 0..LENT.len() {
            rig.start(node);
        }
        rig
    }

    /// A node starts empty.
    fn start(&mut self, node: usize) {
        self.incarnation += 1;
        for medium in LENT[node] {
            let offer = SegmentOffer {
                segment: SegmentId::on(*medium, NodeId(node as u64), 0),
                incarnation: Incarnation(self.incarnation),
                node: NodeId(node as u64),
                medium: *medium,
                bytes: match medium {
                    Vram => 6 << 10,
                    Dram if self.roomy => 256 << 10,
                    Dram => 10 << 10,
                    Ssd => 512 << 10,
                },
                slots: 256,
                host: HostId(node as u64),
                zone: ZoneId(0),
                tenant: None,
                evidence: Evidence { stamp: Stamp(self.incarnation), ..Evidence::default() },
            };
            self.offers.insert(offer.segment, offer);
        }
        self.mount(node as u64);
    }

    /// A node offers what it has, and tells what it holds.
    fn mount(&mut self, node: u64) {
        let own = self.offers.values().filter(|offer| offer.node == NodeId(node));
        let own: Vec<SegmentOffer> = own.cloned().collect();
        self.catalog.mount(self.now, NodeId(node), &own).unwrap();
        for offer in own {
            let mount = (offer.segment, offer.incarnation);
            let slots =
                self.slots.range((mount.0, mount.1, Slot(0))..=(mount.0, mount.1, Slot(u32::MAX)));
            let page: Vec<Announced> = slots
                .map(|((_, _, slot), (generation, life))| {
                    let life = life.clone().map(|life| AnnouncedLife {
                        extent: life.extent,
                        object: Some(AnnouncedObject {
                            label: life.label,
                            object: life.object,
                            len: life.len,
                            seal: life.seal,
                        }),
                    });
                    Announced { slot: *slot, generation: *generation, life }
                })
                .collect();
            self.catalog.announce(self.now, mount.0, mount.1, &page, true).unwrap();
        }
    }

    /// The master writes the list of disks down.
    fn keep(&mut self) {
        let list = self.catalog.trusted();
        self.catalog.trust_writing(&list);
        self.catalog.trust_written(&list);
    }

    fn mounted(&self, segment: SegmentId, incarnation: Incarnation) -> bool {
        self.offers.get(&segment).is_some_and(|offer| offer.incarnation == incarnation)
    }

    /// Slots are told from the first on: those that were never used stand at their beginning.
    fn slot(&mut self, at: Place) -> &mut (Generation, Option<Life>) {
        for slot in 0..at.2.0 {
            self.slots.entry((at.0, at.1, Slot(slot))).or_insert((Generation(0), None));
        }
        self.slots.entry(at).or_insert((Generation(0), None))
    }

    /// A writer, or an owner that has fetched a copy, publishes; false if the life is over.
    fn publish(&mut self, at: &Locator, life: Life) -> bool {
        if !self.mounted(at.segment, at.incarnation) {
            return false;
        }
        let (generation, holds) = self.slot(place(at));
        let fits = *generation == at.generation && holds.is_none();
        if fits {
            *holds = Some(life);
        }
        fits
    }

    fn readable(&self, at: &Locator) -> Option<ObjectId> {
        let (generation, life) = self.slots.get(&place(at))?;
        let fine = *generation == at.generation && self.mounted(at.segment, at.incarnation);
        life.as_ref().filter(|_| fine).map(|life| life.object)
    }

    fn key_of(&self, object: ObjectId) -> Option<u8> {
        self.index.iter().find(|(_, known)| **known == object).map(|(k, _)| *k)
    }

    fn execute(&mut self, order: &Order, pinned: bool) {
        let Order { segment, incarnation, slot, generation, action } = *order;
        if !self.mounted(segment, incarnation) {
            return;
        }
        let (stands, life) = self.slot((segment, incarnation, slot));
        let mut result = OrderResult::Freed { next: *stands };
        if *stands == generation {
            if action == Action::Evict && pinned {
                result = OrderResult::Pinned;
            } else {
                *stands = generation.next().unwrap();
                result = OrderResult::Freed { next: *stands };
                *life = None;
            }
        }
        let notice = Notice { segment, incarnation, slot, generation, result };
        self.catalog.notice(self.now, &notice);
    }

    /// Orders leave the leader: what is evicted is hidden from now on, and may be gone.
    fn collect(&mut self) {
        for (_, order) in self.catalog.take_orders() {
            let at = (order.segment, order.incarnation, order.slot);
            let known = self.slots.get(&at).filter(|known| known.0 == order.generation);
            let object = known.and_then(|known| known.1.as_ref()).map(|life| life.object);
            if let (Action::Evict, Some(k)) = (order.action, object.and_then(|o| self.key_of(o))) {
                let other = self.catalog.exist(self.now, &key(k)) == Ok(true);
                assert!(other || !self.roomy, "it has no other copy: {order:?}");
                self.may_vanish.insert(k);
            }
            self.waiting.push(order);
        }
    }

    fn run_owners(&mut self, pinned: u8) {
        self.collect();
        while !self.waiting.is_empty() {
            for (n, order) in std::mem::take(&mut self.waiting).into_iter().enumerate() {
                let unlucky = (n as u8).wrapping_add(pinned).is_multiple_of(3);
                self.execute(&order, pinned > 0 && unlucky);
            }
            self.collect();
        }
    }

    fn run_copies(&mut self, fail: bool) {
        self.copies.extend(self.catalog.take_copies().into_iter().map(|(_, order)| order));
        for (n, order) in std::mem::take(&mut self.copies).into_iter().enumerate() {
            let from = order.sources.iter().find_map(|source| self.readable(source));
            if let Some(found) = from {
                assert_eq!(found, order.object, "a copy of another object");
            }
            let life = Life {
                object: order.object,
                label: order.label.clone(),
                len: order.len,
                extent: order.target.extent,
                seal: order.seal,
            };
            let wanted = from.is_some() && !(fail && n % 2 == 0);
            let ok = wanted && self.publish(&order.target, life);
            self.catalog.copied(self.now, &CopyDone::of(&order.target, ok));
        }
        self.catalog.go_on(self.now);
    }

    fn pass(&mut self, ms: u64) {
        for _ in 0..ms.div_ceil(200).max(1) {
            self.now = self.now.plus(Duration::from_millis(ms.min(200)));
            for node in 0..LENT.len() as u64 {
                self.catalog.heartbeat(self.now, NodeId(node)).unwrap();
            }
            self.catalog.tick(self.now);
            self.keep();
        }
    }

    fn put(&mut self, k: u8, len: u64, config: &PutConfig) {
        // Any key may follow any other one.
        let before = key(((u64::from(k) + len) % u64::from(KEYS)) as u8);
        let batch = InBatch { after: Some(&before), at: 1, len: 2 };
        let (now, writer) = (self.now, Writer::UNSEEN);
        let started = self.catalog.put_start_in(now, writer, batch, &key(k), len, config);
        let Ok(plan) = started else { return };
        if config.vram_copies() > 0 {
            self.asked.insert(plan.object);
        }
        let in_vram = plan.replicas.iter().filter(|at| at.segment.medium() == Vram).count();
        assert!(in_vram as u32 <= config.vram_copies(), "{plan:?}");
        let nodes: BTreeSet<NodeId> =
            plan.replicas.iter().map(|at| self.offers[&at.segment].node).collect();
        assert_eq!(nodes.len(), plan.replicas.len(), "two copies on a node");
        let seal = Seal(plan.object.sequence);
        for at in &plan.replicas {
            let name = Key::new(key(k)).unwrap();
            let label = config.label(TenantId::DEFAULT, name, plan.striping, 0);
            let life = Life { object: plan.object, label, len, extent: at.extent, seal };
            assert!(self.publish(at, life), "nobody else knows these slots");
        }
        self.catalog.put_end(self.now, &key(k), plan.token, &[seal]).unwrap();
        self.index.insert(k, plan.object);
        self.may_vanish.remove(&k);
    }

    fn kill(&mut self, node: usize) {
        for k in 0..KEYS {
            let found = self.catalog.peek(&key(k));
            let only = |at: &Locator| self.offers[&at.segment].node == NodeId(node as u64);
            if found.is_none_or(|found| found.replicas.iter().all(only)) {
                self.may_vanish.insert(k);
            }
        }
        let own = self.offers.values().filter(|offer| offer.node == NodeId(node as u64));
        let own: Vec<SegmentId> = own.map(|offer| offer.segment).collect();
        self.catalog.unmount(NodeId(node as u64), &own);
        self.start(node);
        if self.roomy {
            // Until they are swept out, old mounts keep their node from getting another copy.
            self.pass(400);
        }
    }

    /// Another leader, that every node tells what it holds.
    fn lead(&mut self) {
        self.run_owners(0);
        let expected = (0..LENT.len() as u64).map(NodeId).collect();
        let start = Start::Takeover { expected, trusted: self.catalog.trusted() };
        let epoch = LeaderEpoch(self.catalog.epoch().0 + 1);
        self.catalog = Catalog::new(self.config.clone(), epoch, start, self.now);
        self.copies.clear();
        for node in 0..LENT.len() as u64 {
            self.mount(node);
        }
        while self.catalog.rebuilding() {
            self.pass(200);
        }
        self.run_owners(0);
    }

    fn apply(&mut self, op: &Op) {
        let segment = |n: u8, rig: &Self| {
            let all: Vec<SegmentId> = rig.offers.keys().copied().collect();
            all[usize::from(n) % all.len()]
        };
        match *op {
            Op::Put { key: k, len, replicas, vram, keep } => {
                let media = [vram.min(replicas), 0, 0];
                let config =
                    PutConfig { replicas, best_effort: true, media, keep, ..PutConfig::default() };
                self.put(k, len, &config);
            }
            Op::Remove { key: k } => {
                if self.catalog.remove(self.now, &key(k), true).is_ok() {
                    self.index.remove(&k);
                }
            }
            Op::Lease { key: k, ms } => {
                let keys = [key((k + ms as u8 % 3) % KEYS), key(k)];
                let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
                self.catalog.locate_many(self.now, TenantId::DEFAULT, &keys, ms.into());
            }
            Op::Copy { key: k, to, from } => {
                let (to, from) = (segment(to, self), from.map(|from| segment(from, self)));
                if to.medium() == Vram {
                    self.asked.extend(self.index.get(&k));
                }
                let _ = self.catalog.copy(self.now, &key(k), from, to);
            }
            Op::Drain { node, medium } => {
                let medium = Medium::ALL[usize::from(medium)];
                let only = SegmentId::on(medium, NodeId(node.into()), 0);
                let only = self.offers.contains_key(&only).then_some(only);
                self.catalog.drain(NodeId(node.into()), only, DrainMode::Move).unwrap();
            }
            Op::Undrain { node } => drop(self.catalog.undrain(NodeId(node.into()), None)),
            Op::Kill { node } => self.kill(node.into()),
            Op::Lead => self.lead(),
            Op::Owners { pinned } => self.run_owners(pinned),
            Op::Copies { fail } => self.run_copies(fail && !self.roomy),
            Op::Pass { ms } => self.pass(ms.into()),
        }
        if self.roomy {
            // Prompt owners: nothing waits for long enough to be dropped.
            for _ in 0..4 {
                self.run_copies(false);
                self.run_owners(0);
            }
        }
    }

    fn check(&mut self) -> Result<(), TestCaseError> {
        self.collect();
        if let Err(error) = self.catalog.audit() {
            return Err(TestCaseError::fail(error.to_string()));
        }
        for k in 0..KEYS {
            match (self.catalog.peek(&key(k)), self.index.get(&k)) {
                (Some(found), Some(object)) => {
                    prop_assert_eq!(found.object, *object);
                    for at in &found.replicas {
                        prop_assert_eq!(self.readable(at), Some(*object), "{:?}", at);
                        let vram = at.segment.medium() == Vram;
                        prop_assert!(!vram || self.asked.contains(object), "unasked: {at:?}");
                    }
                }
                (Some(found), None) => prop_assert!(false, "key {k} is back: {:?}", found),
                (None, Some(_)) => {
                    prop_assert!(self.may_vanish.contains(&k), "key {k} is lost");
                }
                (None, None) => {}
            }
        }
        let unsaved = self.catalog.counters().evicted_unsaved;
        prop_assert!(!self.roomy || unsaved == 0, "{unsaved} were dropped");
        Ok(())
    }

    /// Everything works again: after all removes nothing is left, nowhere.
    fn heal(&mut self) -> Result<(), TestCaseError> {
        for node in 0..LENT.len() as u64 {
            self.catalog.undrain(NodeId(node), None).unwrap();
        }
        for _ in 0..20 {
            self.run_owners(0);
            self.run_copies(false);
            self.pass(400);
            self.check()?;
        }
        for k in 0..KEYS {
            let _ = self.catalog.remove(self.now, &key(k), true);
            self.index.remove(&k);
        }
        for _ in 0..20 {
            self.run_owners(0);
            self.run_copies(false);
            self.pass(1000);
        }
        self.check()?;
        prop_assert_eq!((self.catalog.len(), self.catalog.copies_under_way()), (0, 0));
        for stat in self.catalog.segments() {
            prop_assert_eq!(stat.free, stat.offer.bytes);
        }
        Ok(())
    }
}

fn any_policy() -> impl Strategy<Value = PolicyKind> {
    prop_oneof![Just(PolicyKind::Lru), Just(PolicyKind::Density)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn vram_holds_what_asked_for_it_and_moves_it_down(
        seed: u64,
        policy in any_policy(),
        offload in (0..4_usize).prop_map(|n| Offload::ALL[n]),
        ops in vec(any_op(), 1..160),
    ) {
        let mut rig = Rig::new(seed, policy, offload, false);
        for op in &ops {
            rig.apply(op);
            rig.check()?;
        }
        rig.heal()?;
    }

    #[test]
    fn nothing_is_lost_while_there_is_room_below(
        seed: u64,
        policy in any_policy(),
        offload in (1..4_usize).prop_map(|n| Offload::ALL[n]),
        ops in vec(any_op(), 1..160),
    ) {
        let mut rig = Rig::new(seed, policy, offload, true);
        for op in &ops {
            rig.apply(op);
            rig.check()?;
        }
        rig.heal()?;
    }
}
