//! The catalog against a naive oracle: random calls, owners that answer late, twice, never or with
//! "pinned", and after every step every byte is accounted for (G8), no two lives share a byte (G3)
//! and the index says what a plain map says (M1, M2, G10).

#![expect(clippy::unwrap_used, reason = "a test")]

use mooncrate_core::catalog::{Catalog, Config, InBatch, Mounted, Removal, Start, Tenant, Writer};
use mooncrate_core::error::{GetError, PutError, RemoveError};
use mooncrate_core::evict::PolicyKind;
use mooncrate_core::lease;
use mooncrate_core::plan::{Action, Evidence, Locator, Notice, Order, OrderResult, SegmentOffer};
use mooncrate_core::state::{Event, ReplicaState};
use mooncrate_core::word::Word;
use mooncrate_core::{
    Generation, HostId, Incarnation, LeaderEpoch, Medium, NodeId, Now, ObjectId, PutConfig, Seal,
    SegmentId, Slot, TenantId, WritePlan, ZoneId,
};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const NODES: u64 = 3;
const BYTES: u64 = 8 * 1024;
const KEYS: u8 = 12;

#[derive(Clone, Debug)]
enum Op {
    /// `after`: the key before this one in its batch; too high for a key that stands alone.
    PutStart {
        key: u8,
        len: u64,
        replicas: u8,
        writer: u64,
        after: u8,
    },
    WriterGone {
        writer: u64,
    },
    PutEnd {
        nth: u8,
    },
    PutEndTwice {
        nth: u8,
    },
    Revoke {
        nth: u8,
    },
    Locate {
        key: u8,
        lease_ms: u32,
    },
    Remove {
        key: u8,
        force: bool,
    },
    Pin {
        key: u8,
    },
    UnpinAll,
    Owners {
        lose: u8,
        twice: bool,
    },
    Pass {
        ms: u16,
    },
}

fn any_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..KEYS, 0..4000_u64, 1..3_u8, 0..4_u64, 0..KEYS + 4).prop_map(
            |(key, len, replicas, writer, after)| {
                Op::PutStart { key, len, replicas, writer, after }
            }
        ),
        1 => (1..4_u64).prop_map(|writer| Op::WriterGone { writer }),
        5 => any::<u8>().prop_map(|nth| Op::PutEnd { nth }),
        1 => any::<u8>().prop_map(|nth| Op::PutEndTwice { nth }),
        1 => any::<u8>().prop_map(|nth| Op::Revoke { nth }),
        3 => (0..KEYS, prop_oneof![Just(0), 1..100_u32])
            .prop_map(|(key, lease_ms)| Op::Locate { key, lease_ms }),
        2 => (0..KEYS, any::<bool>()).prop_map(|(key, force)| Op::Remove { key, force }),
        1 => (0..KEYS).prop_map(|key| Op::Pin { key }),
        1 => Just(Op::UnpinAll),
        6 => (any::<u8>(), any::<bool>()).prop_map(|(lose, twice)| Op::Owners { lose, twice }),
        2 => (0..2000_u16).prop_map(|ms| Op::Pass { ms }),
    ]
}

/// Owners as plain maps of words.
#[derive(Default)]
struct Owners {
    words: BTreeMap<(SegmentId, Slot), Word>,
    retiring: Vec<Order>,
    /// Lives that somebody leased: no order may end them before the holder's end (G5).
    leases: BTreeMap<(SegmentId, Slot, Generation), Now>,
    /// Lives whose end was ordered: only the first order tells how long to wait.
    told: BTreeSet<(SegmentId, Slot, Generation)>,
}

impl Owners {
    fn word(&mut self, locator: &Locator) -> &mut Word {
        let dead = Word::new(locator.generation, ReplicaState::Dead, 0);
        self.words.entry((locator.segment, locator.slot)).or_insert(dead)
    }

    /// The writer writes and publishes one replica; false if the life is over.
    fn write(&mut self, locator: &Locator) -> bool {
        let g = locator.generation;
        let word = self.word(locator);
        let steps = [Event::Reserve, Event::Begin, Event::Publish];
        steps.iter().all(|step| word.after(g, *step).map(|next| *word = next).is_ok())
    }

    fn execute(&mut self, order: &Order, now: Now) -> OrderResult {
        let g = order.generation;
        let lease = self.leases.get(&(order.segment, order.slot, g)).copied().unwrap_or_default();
        match order.action {
            Action::Evict => assert!(lease <= now, "{order:?} evicts a leased life"),
            Action::Retire { free_after_ms } => {
                let free_at = now.plus(Duration::from_millis(free_after_ms.into()));
                let first = self.told.insert((order.segment, order.slot, g));
                assert!(!first || free_at >= lease, "{order:?} cuts a lease short");
            }
            Action::Abort => {}
        }
        let dead = Word::new(g, ReplicaState::Dead, 0);
        let word = self.words.entry((order.segment, order.slot)).or_insert(dead);
        if word.generation() > g {
            return OrderResult::Freed { next: word.generation() };
        }
        let pins = word.pins();
        let (first, then) = match (order.action, word.state()) {
            (Action::Evict, _) if pins > 0 => return OrderResult::Pinned,
            (Action::Abort, ReplicaState::Dead) => {
                *word = Word::new(g.next().unwrap(), ReplicaState::Dead, 0);
                return OrderResult::Freed { next: word.generation() };
            }
            (Action::Abort, ReplicaState::Ready) | (Action::Retire { .. }, _) => {
                (Event::Unlink, Some(Event::Reclaim { pins }))
            }
            (Action::Evict, _) => (Event::Reclaim { pins }, None),
            (Action::Abort, _) => (Event::Abort, Some(Event::Fence)),
        };
        if let Ok(next) = word.after(g, first) {
            *word = next;
        }
        let now_at = word.generation();
        if let Some(Ok(next)) = then.map(|event| word.after(now_at, event)) {
            *word = next;
        }
        if word.state() == ReplicaState::Dead {
            OrderResult::Freed { next: word.generation() }
        } else {
            self.retiring.push(*order);
            OrderResult::Waiting
        }
    }
}

struct Rig {
    catalog: Catalog,
    owners: Owners,
    now: Now,
    open: Vec<(u8, WritePlan)>,
    ended: Vec<(u8, WritePlan)>,
    /// What a plain map would say: key → the object that was ended.
    index: BTreeMap<u8, ObjectId>,
    pins: Vec<Locator>,
}

fn key(k: u8) -> [u8; 4] {
    [b'k', b'e', b'y', k]
}

fn seal_of(object: ObjectId) -> Seal {
    Seal(object.sequence.wrapping_mul(77))
}

impl Rig {
    fn new(seed: u64, policy: PolicyKind) -> Self {
        let now = Now(1_000_000_000);
        let config =
            Config { seed, policy, put_timeout: Duration::from_secs(5), ..Config::default() };
        let mut catalog = Catalog::new(config, LeaderEpoch(1), Start::New, now);
        for n in 0..NODES {
            let offer = SegmentOffer {
                segment: SegmentId(100 + n),
                incarnation: Incarnation(1),
                node: NodeId(n),
                medium: Medium::Dram,
                bytes: BYTES,
                slots: 24,
                host: HostId(n),
                zone: ZoneId(0),
                tenant: None,
                evidence: Evidence::default(),
            };
            let mounted = catalog.mount(now, NodeId(n), std::slice::from_ref(&offer)).unwrap();
            assert_eq!(mounted, [Mounted::Announce]);
            catalog.announce(now, offer.segment, offer.incarnation, &[], true).unwrap();
        }
        Self {
            catalog,
            owners: Owners::default(),
            now,
            open: Vec::new(),
            ended: Vec::new(),
            index: BTreeMap::new(),
            pins: Vec::new(),
        }
    }

    fn notice(&mut self, order: &Order, result: OrderResult) {
        let notice = Notice {
            segment: order.segment,
            incarnation: order.incarnation,
            slot: order.slot,
            generation: order.generation,
            result,
        };
        self.catalog.notice(self.now, &notice);
    }

    fn run_owners(&mut self, lose: u8, twice: bool) {
        for (n, (_, order)) in self.catalog.take_orders().into_iter().enumerate() {
            if lose > 0 && n as u8 % 5 == lose % 5 && lose.is_multiple_of(3) {
                continue;
            }
            let result = self.owners.execute(&order, self.now);
            self.notice(&order, result);
            if twice {
                let result = self.owners.execute(&order, self.now);
                self.notice(&order, result);
            }
        }
        for order in std::mem::take(&mut self.owners.retiring) {
            let result = self.owners.execute(&order, self.now);
            self.notice(&order, result);
        }
    }

    fn pass(&mut self, ms: u64) {
        // In steps below the stall limit, with heartbeats, as a live cluster has them.
        for _ in 0..ms.div_ceil(500).max(1) {
            self.now = self.now.plus(Duration::from_millis(ms.min(500)));
            for n in 0..NODES {
                self.catalog.heartbeat(self.now, NodeId(n)).unwrap();
            }
            self.catalog.tick(self.now);
        }
    }

    fn put_end(&mut self, k: u8, plan: &WritePlan) -> Result<(), TestCaseError> {
        let written = plan.replicas.iter().all(|locator| self.owners.write(locator));
        if !written {
            prop_assert!(self.catalog.put_revoke(self.now, &key(k), plan.token).is_err());
            return Ok(());
        }
        let seal = seal_of(plan.object);
        let ended = self.catalog.put_end(self.now, &key(k), plan.token, &[seal]);
        if ended.is_ok() {
            self.index.insert(k, plan.object);
            self.ended.push((k, plan.clone()));
        } else {
            prop_assert_eq!(ended, Err(PutError::NoSuchPut));
        }
        Ok(())
    }

    fn locate(&mut self, k: u8, lease_ms: u32) -> Result<Option<Locator>, TestCaseError> {
        match self.catalog.locate(self.now, &key(k), lease_ms) {
            Ok(found) => {
                prop_assert_eq!(Some(&found.object), self.index.get(&k), "foreign object");
                prop_assert_eq!(found.seal, seal_of(found.object));
                for locator in &found.replicas {
                    let word = *self.owners.word(locator);
                    prop_assert!(word.readable(locator.generation), "{locator:?} is {word:?}");
                    let life = (locator.segment, locator.slot, locator.generation);
                    let end = self.owners.leases.entry(life).or_default();
                    *end = (*end).max(lease::holder_end(self.now, lease_ms));
                }
                Ok(found.replicas.first().copied())
            }
            Err(error) => {
                prop_assert_eq!(error, GetError::NotFound);
                Ok(None)
            }
        }
    }

    /// A lease that is still on refuses a plain remove; afterwards nobody finds the key.
    fn remove(&mut self, k: u8, force: bool) -> Result<(), TestCaseError> {
        let leased = self.index.get(&k).copied().filter(|_| !force).and_then(|_| {
            let found = self.catalog.locate(self.now, &key(k), 0).ok()?;
            let l = found.replicas.first()?;
            self.owners.leases.get(&(l.segment, l.slot, l.generation)).copied()
        });
        if leased.is_some_and(|end| end > self.now) {
            let refused = self.catalog.remove(self.now, &key(k), false);
            prop_assert!(matches!(refused, Err(RemoveError::Leased { .. })), "{refused:?}");
            return Ok(());
        }
        if let Ok(Removal::Waiting(object)) = self.catalog.remove(self.now, &key(k), force) {
            prop_assert_eq!(self.index.remove(&k), Some(object));
            prop_assert_eq!(self.locate(k, 0)?, None);
        }
        Ok(())
    }

    fn apply(&mut self, op: &Op) -> Result<(), TestCaseError> {
        match *op {
            Op::PutStart { key: k, len, replicas, writer, after } => {
                let before = key(after);
                let chained = InBatch { after: Some(&before), at: 1, len: 2 };
                let batch = if after < KEYS { chained } else { InBatch::ALONE };
                let config = PutConfig { replicas, ..PutConfig::default() };
                let writer = Writer(writer);
                match self.catalog.put_start_in(self.now, writer, batch, &key(k), len, &config) {
                    Ok(plan) => {
                        let Tenant { used, quota, .. } = self.catalog.tenant(TenantId::DEFAULT);
                        prop_assert!(quota.is_none_or(|quota| used <= quota), "{used} bytes");
                        prop_assert_eq!(plan.replicas.len(), usize::from(replicas));
                        self.index.remove(&k);
                        self.open.push((k, plan));
                    }
                    Err(PutError::Exists) => prop_assert!(self.index.contains_key(&k)),
                    Err(PutError::Quota { quota, total }) => prop_assert!(total > quota),
                    Err(
                        PutError::InProgress { .. }
                        | PutError::Reclaiming { .. }
                        | PutError::Busy { .. }
                        // The source of a repair was evicted before the copy was there.
                        | PutError::Held { .. },
                    ) => {}
                    Err(other) => prop_assert!(false, "{other}"),
                }
            }
            Op::PutEnd { nth } if !self.open.is_empty() => {
                let (k, plan) = self.open.remove(nth as usize % self.open.len());
                self.put_end(k, &plan)?;
            }
            Op::PutEndTwice { nth } if !self.ended.is_empty() => {
                // A repeated end is harmless; an end of an older put is refused.
                let (k, plan) = self.ended[nth as usize % self.ended.len()].clone();
                let again =
                    self.catalog.put_end(self.now, &key(k), plan.token, &[seal_of(plan.object)]);
                if again.is_ok() {
                    prop_assert_eq!(self.index.get(&k), Some(&plan.object));
                }
            }
            Op::Revoke { nth } if !self.open.is_empty() => {
                let (k, plan) = self.open.remove(nth as usize % self.open.len());
                let _ = self.catalog.put_revoke(self.now, &key(k), plan.token);
            }
            Op::Locate { key: k, lease_ms } => {
                self.locate(k, lease_ms)?;
            }
            Op::Remove { key: k, force } => self.remove(k, force)?,
            Op::Pin { key: k } => {
                if let Some(locator) = self.locate(k, 0)? {
                    let word = self.owners.word(&locator);
                    *word = word.pinned(locator.generation).unwrap();
                    self.pins.push(locator);
                }
            }
            Op::UnpinAll => {
                for locator in std::mem::take(&mut self.pins) {
                    self.owners.word(&locator).0 -= 1;
                }
            }
            Op::WriterGone { writer } => {
                self.catalog.writer_gone(self.now, Writer(writer), usize::MAX);
            }
            Op::Owners { lose, twice } => self.run_owners(lose, twice),
            Op::Pass { ms } => self.pass(ms.into()),
            _ => {}
        }
        Ok(())
    }

    /// One tenant has everything here: its account is what the segments hold, no more and no less, also of
    /// what was removed and waits for readers, writers or owners (G16).
    fn check_account(&self) -> Result<(), TestCaseError> {
        let stats = self.catalog.segments();
        let held: u64 = stats.iter().map(|stat| stat.used + stat.ending).sum();
        prop_assert_eq!(self.catalog.tenant(TenantId::DEFAULT).used, held);
        Ok(())
    }

    /// Many keys at once say what they say one by one.
    fn check_many(&mut self) -> Result<(), TestCaseError> {
        let keys: Vec<[u8; 4]> = (0..KEYS + 3).map(key).collect();
        let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).chain([&b""[..]]).collect();
        let many = self.catalog.locate_many(self.now, TenantId::DEFAULT, &keys, 0);
        let exist = self.catalog.exist_many(self.now, TenantId::DEFAULT, &keys);
        for ((key, many), exist) in keys.iter().zip(many).zip(exist) {
            prop_assert_eq!(self.catalog.exist(self.now, *key), exist);
            prop_assert_eq!(self.catalog.locate(self.now, *key, 0), many);
        }
        Ok(())
    }

    /// Everything is removed and every order is carried out: nothing may be left.
    fn drain(&mut self) -> Result<(), TestCaseError> {
        self.apply(&Op::UnpinAll)?;
        self.pass(20_000);
        for k in 0..KEYS {
            let _ = self.catalog.remove(self.now, &key(k), true);
        }
        for _ in 0..40 {
            self.run_owners(0, false);
            self.pass(1000);
        }
        self.catalog.audit().map_err(|e| TestCaseError::fail(e.to_string()))?;
        prop_assert_eq!(self.catalog.len(), 0);
        prop_assert_eq!(self.catalog.open_puts(), 0);
        for stat in self.catalog.segments() {
            prop_assert_eq!(stat.free, BYTES);
            prop_assert_eq!(stat.largest_run, BYTES);
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn catalog_agrees_with_a_plain_map(
        seed in any::<u64>(),
        policy in prop_oneof![Just(PolicyKind::Lru), Just(PolicyKind::Density)],
        quota in prop_oneof![Just(None), (4096..3 * BYTES).prop_map(Some)],
        ops in vec(any_op(), 0..200),
    ) {
        let mut rig = Rig::new(seed, policy);
        rig.catalog.set_quota(TenantId::DEFAULT, quota);
        for op in &ops {
            rig.apply(op)?;
            rig.check_many()?;
            rig.check_account()?;
            if let Err(error) = rig.catalog.audit() {
                prop_assert!(false, "after {op:?}: {error}");
            }
        }
        rig.drain()?;
    }
}

/// G4: a slot whose owner says that its generations are used up is never handed out again.
#[test]
fn a_used_up_slot_is_retired() {
    let mut rig = Rig::new(1, PolicyKind::Lru);
    let mut used = Vec::new();
    for round in 0..200_u8 {
        let config = PutConfig::default();
        let Ok(plan) = rig.catalog.put_start(rig.now, &key(round), 64, &config) else { break };
        let locator = plan.replicas[0];
        assert!(!used.contains(&(locator.segment, locator.slot)), "{locator:?} came again");
        used.push((locator.segment, locator.slot));
        rig.catalog.put_revoke(rig.now, &key(round), plan.token).unwrap();
        for (_, order) in rig.catalog.take_orders() {
            rig.notice(&order, OrderResult::Freed { next: Generation::MAX });
        }
    }
    assert_eq!(used.len(), 3 * 24, "every slot of every node lived once");
}
