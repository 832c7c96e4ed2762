//! A catalog that evicts by density, with owners that do what they are told at once.

use mooncrate_core::catalog::{Catalog, Config, InBatch, Mounted, Start, Writer};
use mooncrate_core::error::PutError;
use mooncrate_core::evict::PolicyKind;
use mooncrate_core::plan::{Action, Evidence, Notice, Order, OrderResult, SegmentOffer};
use mooncrate_core::{
    Generation, HostId, Incarnation, LeaderEpoch, Locator, Medium, NodeId, Now, PutConfig,
    PutToken, Seal, SegmentId, Slot, TenantId, ZoneId, seal,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

pub(crate) const BLOCK: u64 = 1000;

/// For so long after an eviction met readers, a catalog may choose other values, or none.
const REST: Duration = Duration::from_millis(10);

type Life = (SegmentId, Slot, Generation);

pub(crate) struct Rig {
    pub(crate) catalog: Catalog,
    pub(crate) now: Now,
    nodes: u64,
    slots: u32,
    incarnation: u64,
    /// What is published, where, and not ordered to go.
    pub(crate) held: BTreeMap<Life, Vec<u8>>,
    /// Keys in the order of their evictions.
    pub(crate) evicted: Vec<Vec<u8>>,
    /// Which key follows which, as the batches said, while both are there.
    pub(crate) follows: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Keys whose puts are open.
    open: BTreeSet<Vec<u8>>,
    /// The key before the one that is put.
    pub(crate) kept: Option<Vec<u8>>,
    /// Keys that a node had when it left: their values may be read until the node is fenced.
    left: BTreeSet<Vec<u8>>,
    /// Until then a value may stay because an eviction met its readers.
    readers_until: Now,
    /// Keys whose readers keep them.
    pub(crate) pinned: BTreeSet<Vec<u8>>,
}

impl Rig {
    /// Each node has room for so many blocks.
    pub(crate) fn new(seed: u64, nodes: u64, slots: u32) -> Self {
        Self::with(PolicyKind::Density, seed, nodes, slots)
    }

    pub(crate) fn with(policy: PolicyKind, seed: u64, nodes: u64, slots: u32) -> Self {
        let now = Now(1_000_000_000);
        let (high_permille, low_permille) = (1000, 1000);
        let config = Config { seed, policy, high_permille, low_permille, ..Config::default() };
        let catalog = Catalog::new(config, LeaderEpoch(1), Start::New, now);
        let (held, evicted, pinned) = (BTreeMap::new(), Vec::new(), BTreeSet::new());
        let mut rig = Self {
            catalog,
            now,
            nodes,
            slots,
            incarnation: 0,
            held,
            evicted,
            follows: BTreeMap::new(),
            open: BTreeSet::new(),
            kept: None,
            left: BTreeSet::new(),
            readers_until: Now(0),
            pinned,
        };
        (0..nodes).for_each(|node| rig.mount(node));
        rig
    }

    fn mount(&mut self, node: u64) {
        self.incarnation += 1;
        let offer = SegmentOffer {
            segment: SegmentId(node),
            incarnation: Incarnation(self.incarnation),
            node: NodeId(node),
            medium: Medium::Dram,
            bytes: u64::from(self.slots) * seal::extent_bytes(BLOCK),
            slots: 2 * self.slots,
            host: HostId(node),
            zone: ZoneId(0),
            tenant: None,
            evidence: Evidence::default(),
        };
        let mounted = self.catalog.mount(self.now, NodeId(node), std::slice::from_ref(&offer));
        assert_eq!(mounted.unwrap(), [Mounted::Announce]);
        self.catalog.announce(self.now, offer.segment, offer.incarnation, &[], true).unwrap();
    }

    /// A node goes with all it has, and comes back empty.
    pub(crate) fn kill(&mut self, node: u64) {
        self.catalog.unmount(NodeId(node), &[SegmentId(node)]);
        let on_node = self.held.iter().filter(|((segment, ..), _)| *segment == SegmentId(node));
        self.left.extend(on_node.map(|(_, key)| key.clone()));
        self.held.retain(|(segment, ..), _| *segment != SegmentId(node));
        self.mount(node);
    }

    pub(crate) fn pass(&mut self, ms: u64) {
        for _ in 0..ms.div_ceil(500) {
            self.now = self.now.plus(Duration::from_millis(ms.min(500)));
            for node in 0..self.nodes {
                self.catalog.heartbeat(self.now, NodeId(node)).unwrap();
            }
            self.catalog.tick(self.now);
            self.obey(|_, _| {});
        }
    }

    /// Owners carry their orders out; `sees` each life that is to be evicted, before it goes.
    pub(crate) fn obey(&mut self, sees: impl Fn(&Self, &Life)) {
        for (_, order) in self.catalog.take_orders() {
            let Order { segment, incarnation, slot, generation, action } = order;
            let life = (segment, slot, generation);
            let key = self.held.get(&life).cloned();
            let pinned = key.as_ref().is_some_and(|key| self.pinned.contains(key));
            let result = if action == Action::Evict && pinned {
                self.readers_until = self.now.plus(REST);
                OrderResult::Pinned
            } else {
                if action == Action::Evict {
                    sees(self, &life);
                    self.evicted.extend(key.clone());
                }
                self.held.remove(&life);
                if let Some(key) = key {
                    self.follows.remove(&key);
                    self.follows.retain(|_, before| *before != key);
                }
                OrderResult::Freed { next: Generation(generation.0 + 1) }
            };
            let notice = Notice { segment, incarnation, slot, generation, result };
            self.catalog.notice(self.now, &notice);
        }
    }

    /// Starts one put; `None` if its key has a value, or there is no room.
    fn start(
        &mut self,
        batch: InBatch<'_>,
        key: &[u8],
        (len, config): (u64, &PutConfig),
        sees: &impl Fn(&Self, &Life),
    ) -> Result<Option<(Locator, PutToken)>, PutError> {
        let writer = Writer::UNSEEN;
        self.kept = batch.after.map(<[u8]>::to_vec);
        let started = loop {
            match self.catalog.put_start_in(self.now, writer, batch, key, len, config) {
                Ok(plan) => break Some((plan.replicas[0], plan.token)),
                Err(PutError::Reclaiming { .. }) => self.obey(sees),
                Err(PutError::Exists) => break None,
                Err(refused) => return Err(refused),
            }
        };
        if started.is_some() {
            self.open.insert(key.to_vec());
        }
        if let Some(before) = self.kept.take() {
            self.follow(key, &before);
        }
        Ok(started)
    }

    /// A batch has a key behind another one.
    fn follow(&mut self, key: &[u8], before: &[u8]) {
        let there = |key: &[u8]| self.open.contains(key) || self.held.values().any(|k| k == key);
        if there(key) && there(before) {
            self.follows.entry(key.to_vec()).or_insert_with(|| before.to_vec());
        }
    }

    /// Whether a put may be refused like that: another put of its key is open, its old value may still be read, or
    /// there is no value that can be evicted.
    fn expects(&self, key: &[u8], refused: &PutError) -> bool {
        match refused {
            PutError::InProgress { .. } => self.open.contains(key) || self.left.contains(key),
            PutError::Held { .. } => self.left.contains(key),
            PutError::Busy { .. } => self.held.is_empty() || self.now < self.readers_until,
            _ => false,
        }
    }

    /// Starts the puts of some keys of a batch, up to the first one that is refused, and ends them.
    fn put_some(
        &mut self,
        (keys, some): (&[Vec<u8>], Range<usize>),
        of: (u64, &PutConfig),
        sees: &impl Fn(&Self, &Life),
    ) {
        let mut open = Vec::new();
        for at in some {
            match self.start(InBatch::of(keys, at), &keys[at], of, sees) {
                Ok(started) => open.extend(started.map(|started| (at, started))),
                Err(refused) => {
                    let (key, held) = (&keys[at], &self.held);
                    assert!(self.expects(key, &refused), "{key:?}: {refused:?}; held: {held:?}");
                    break;
                }
            }
        }
        for (at, (place, token)) in open {
            self.catalog.put_end(self.now, &keys[at][..], token, &[Seal(1)]).unwrap();
            self.held.insert((place.segment, place.slot, place.generation), keys[at].clone());
        }
        self.open.clear();
    }

    /// Puts a batch, up to the first key for which there is no room.
    pub(crate) fn put_seen(&mut self, keys: &[Vec<u8>], len: u64, sees: impl Fn(&Self, &Life)) {
        self.put_some((keys, 0..keys.len()), (len, &PutConfig::default()), &sees);
    }

    /// Puts a batch, each key after the put before it has ended.
    pub(crate) fn put_in_turn(&mut self, keys: &[Vec<u8>], sees: impl Fn(&Self, &Life)) {
        for at in 0..keys.len() {
            self.put_some((keys, at..at + 1), (BLOCK, &PutConfig::default()), &sees);
        }
    }

    pub(crate) fn put_with(&mut self, keys: &[Vec<u8>], config: &PutConfig) {
        self.put_some((keys, 0..keys.len()), (BLOCK, config), &|_, _| {});
    }

    pub(crate) fn put(&mut self, keys: &[Vec<u8>]) {
        self.put_seen(keys, BLOCK, |_, _| {});
    }

    pub(crate) fn locate(&mut self, keys: &[Vec<u8>]) -> Vec<bool> {
        for pair in keys.windows(2) {
            self.follow(&pair[1], &pair[0]);
        }
        let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        let found = self.catalog.locate_many(self.now, TenantId::DEFAULT, &keys, 0);
        found.iter().map(Result::is_ok).collect()
    }

    pub(crate) fn has(&self, key: &[u8]) -> bool {
        self.catalog.peek(key).is_some()
    }

    /// Everything that nobody holds can be evicted, and leaves nothing behind.
    pub(crate) fn empty(&mut self) {
        self.pinned.clear();
        self.pass(60_000);
        let mut rounds = 0;
        while self.catalog.segments().iter().any(|stat| stat.replicas > 0) {
            for node in 0..self.nodes {
                self.catalog.evict_below(self.now, SegmentId(node), 0);
            }
            self.obey(|_, _| {});
            self.pass(20);
            rounds += 1;
            assert!(rounds < 1000, "{:?} stay", self.held.values());
        }
        self.catalog.audit().unwrap();
        assert_eq!(self.catalog.len(), 0);
    }
}

/// A key of one byte.
pub(crate) fn key(n: u8) -> Vec<u8> {
    vec![b'k', n]
}

pub(crate) fn keys(all: impl IntoIterator<Item = u8>) -> Vec<Vec<u8>> {
    all.into_iter().map(key).collect()
}
