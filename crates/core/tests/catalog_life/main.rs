//! The life of objects in the catalog: tenants and quotas, pins, groups, expiry, upserts, stripes,
//! copies that are planned anew. Owners obey at once, unless a test holds their answers back.
#![expect(clippy::unwrap_used, reason = "a test's helpers may panic as its tests do")]

mod bad;
mod quota;
mod stripes;

use mooncrate_core::catalog::{Catalog, Config, Ended, Removal, Start};
use mooncrate_core::error::{CopyError, GetError, PutError, RemoveError};
use mooncrate_core::ids::{GroupId, TenantId};
use mooncrate_core::label::Label;
use mooncrate_core::plan::{
    Action, Announced, AnnouncedLife, AnnouncedObject, Evidence, Keep, Locator, Notice, Order,
    OrderResult, SegmentOffer,
};
use mooncrate_core::{
    Generation, HostId, Incarnation, LeaderEpoch, Medium, Name, NodeId, Now, PutConfig, Seal,
    SegmentId, Slot, Striping, WritePlan, ZoneId,
};
use std::collections::BTreeMap;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const ACME: TenantId = TenantId(7);

fn ms(ms: u64) -> Now {
    Now(1_000_000_000).plus(Duration::from_millis(ms))
}

fn offer(node: u64, bytes: u64) -> SegmentOffer {
    SegmentOffer {
        segment: SegmentId(node),
        incarnation: Incarnation(1),
        node: NodeId(node),
        medium: Medium::Dram,
        bytes,
        slots: 1024,
        host: HostId(node),
        zone: ZoneId(0),
        tenant: None,
        evidence: Evidence::default(),
    }
}

struct Rig {
    catalog: Catalog,
    /// Orders that were not carried out yet.
    held: Vec<Order>,
}

impl Rig {
    fn new(nodes: u64, bytes: u64) -> Self {
        Self::with(nodes, bytes, Config::default())
    }

    fn with(nodes: u64, bytes: u64, config: Config) -> Self {
        let mut catalog = Catalog::new(config, LeaderEpoch(1), Start::New, ms(0));
        for node in 1..=nodes {
            let offer = offer(node, bytes);
            catalog.mount(ms(0), NodeId(node), std::slice::from_ref(&offer)).unwrap();
            catalog.announce(ms(0), offer.segment, offer.incarnation, &[], true).unwrap();
        }
        Self { catalog, held: Vec::new() }
    }

    /// Owners carry out what they were told; the catalog still adds up.
    fn obey(&mut self, now: Now) {
        let mut orders = std::mem::take(&mut self.held);
        orders.extend(self.catalog.take_orders().into_iter().map(|(_, order)| order));
        while !orders.is_empty() {
            for order in orders.drain(..) {
                let Order { segment, incarnation, slot, generation, .. } = order;
                let result = OrderResult::Freed { next: Generation(generation.0 + 1) };
                let notice = Notice { segment, incarnation, slot, generation, result };
                self.catalog.notice(now, &notice);
            }
            orders.extend(self.catalog.take_orders().into_iter().map(|(_, order)| order));
        }
        self.catalog.audit().unwrap();
    }

    fn tick(&mut self, now: Now) {
        for node in 1..=8 {
            let _ = self.catalog.heartbeat(now, NodeId(node));
        }
        self.catalog.tick(now);
        self.obey(now);
    }

    fn start(
        &mut self,
        name: Name<'_>,
        len: u64,
        config: &PutConfig,
    ) -> Result<WritePlan, PutError> {
        for _ in 0..64 {
            match self.catalog.put_start(ms(1), name, len, config) {
                Err(PutError::Reclaiming { .. }) => self.obey(ms(1)),
                decided => return decided,
            }
        }
        panic!("room never came");
    }

    fn put(&mut self, name: Name<'_>, len: u64, config: &PutConfig) -> Result<WritePlan, PutError> {
        let plan = self.start(name, len, config)?;
        let seals = vec![Seal(plan.object.sequence); plan.striping.stripes()];
        self.catalog.put_end(ms(1), name, plan.token, &seals)?;
        self.catalog.audit().unwrap();
        Ok(plan)
    }

    fn has(&self, name: Name<'_>) -> bool {
        self.catalog.exist(ms(2), name).unwrap()
    }
}

fn key(key: &[u8]) -> Name<'_> {
    Name::from(key)
}

fn with(change: impl FnOnce(&mut PutConfig)) -> PutConfig {
    let mut config = PutConfig::default();
    change(&mut config);
    config
}

/// Proves G16: equal keys of two tenants are two objects, and neither can name the other's.
#[test]
fn tenants_do_not_see_each_other() {
    let mut rig = Rig::new(1, MIB);
    let (ours, theirs) = (key(b"k"), Name::new(ACME, b"k"));
    let first = rig.put(ours, 100, &PutConfig::default()).unwrap();
    assert!(!rig.has(theirs));
    let second = rig.put(theirs, 200, &PutConfig::default()).unwrap();
    assert_eq!(rig.catalog.locate(ms(2), ours, 0).unwrap().object, first.object);
    assert_eq!(rig.catalog.locate(ms(2), theirs, 0).unwrap().object, second.object);
    let page = rig.catalog.list(ACME, |_| true, 0, 10);
    assert_eq!(page.entries.len(), 1);
    rig.catalog.remove(ms(2), theirs, false).unwrap();
    rig.obey(ms(2));
    assert!(rig.has(ours) && !rig.has(theirs));
    // The end of another tenant's put is refused, token or not.
    let plan = rig.start(Name::new(ACME, b"x"), 10, &PutConfig::default()).unwrap();
    let stolen = rig.catalog.put_end(ms(2), key(b"x"), plan.token, &[Seal(1)]);
    assert_eq!(stolen, Err(PutError::NoSuchPut));
}

#[test]
fn a_quota_counts_all_copies_and_is_given_back() {
    let mut rig = Rig::new(2, MIB);
    rig.catalog.set_quota(ACME, Some(2048));
    let two = with(|config| config.replicas = 2);
    rig.put(Name::new(ACME, b"a"), 512, &two).unwrap();
    assert_eq!(rig.catalog.tenant(ACME).used, 1024);
    let refused = rig.put(Name::new(ACME, b"b"), 600, &two);
    assert_eq!(refused, Err(PutError::Quota { quota: 2048, total: 1024 + 2 * 640 }));
    // Others are not bothered.
    rig.put(key(b"b"), 600, &two).unwrap();
    rig.catalog.remove(ms(2), Name::new(ACME, b"a"), false).unwrap();
    assert_eq!(rig.catalog.tenant(ACME).used, 1024, "what is hidden is not free yet");
    rig.obey(ms(2));
    assert_eq!(rig.catalog.tenant(ACME).used, 0);
    rig.put(Name::new(ACME, b"b"), 1000, &two).unwrap();
    // A put that is given up is charged until its owner has said that its range is free.
    let plan = rig.start(Name::new(ACME, b"c"), 1, &PutConfig::default());
    assert!(matches!(plan, Err(PutError::Quota { .. })));
    rig.catalog.set_quota(ACME, None);
    let plan = rig.start(Name::new(ACME, b"c"), 1, &PutConfig::default()).unwrap();
    rig.catalog.put_revoke(ms(3), Name::new(ACME, b"c"), plan.token).unwrap();
    assert_eq!(rig.catalog.tenant(ACME).used, 2048 + 64);
    rig.obey(ms(3));
    assert_eq!(rig.catalog.tenant(ACME).used, 2048);
}

#[test]
fn a_dedicated_segment_takes_only_its_tenant() {
    let mut catalog = Catalog::new(Config::default(), LeaderEpoch(1), Start::New, ms(0));
    let offer = SegmentOffer { tenant: Some(ACME), ..offer(1, MIB) };
    catalog.mount(ms(0), NodeId(1), std::slice::from_ref(&offer)).unwrap();
    catalog.announce(ms(0), offer.segment, offer.incarnation, &[], true).unwrap();
    let mut rig = Rig { catalog, held: Vec::new() };
    assert_eq!(rig.put(key(b"k"), 1, &PutConfig::default()), Err(PutError::NoSegments));
    rig.put(Name::new(ACME, b"k"), 1, &PutConfig::default()).unwrap();
}

/// Fills a pool of 16 KiB with objects of 1 KiB; what is left of the first ones.
fn survivors(keep: Keep) -> usize {
    let mut rig = Rig::new(1, 16 << 10);
    let dear = with(|config| config.keep = keep);
    for n in 0..4_u8 {
        rig.put(key(&[n]), 1024, &dear).unwrap();
    }
    for n in 10..60_u8 {
        rig.put(key(&[n]), 1024, &PutConfig::default()).unwrap();
        rig.tick(ms(3));
    }
    (0..4_u8).filter(|n| rig.has(key(&[*n]))).count()
}

#[test]
fn pins_outlive_ordinary_objects() {
    assert_eq!(survivors(Keep::Normal), 0);
    assert_eq!(survivors(Keep::Soft { ttl_ms: 1000 }), 4);
    assert_eq!(survivors(Keep::Hard), 4);
}

#[test]
fn soft_pins_go_when_nothing_else_can_and_hard_ones_never() {
    for (keep, room) in [(Keep::Soft { ttl_ms: 100_000 }, true), (Keep::Hard, false)] {
        let config = Config { hard_permille: 1000, ..Config::default() };
        let mut rig = Rig::with(1, 16 << 10, config);
        let dear = with(|config| config.keep = keep);
        for n in 0..16_u8 {
            rig.put(key(&[n]), 1024, &dear).unwrap();
        }
        let one_more = rig.put(key(b"more"), 1024, &PutConfig::default());
        assert_eq!(one_more.is_ok(), room, "{keep:?}");
        if !room {
            assert!(matches!(one_more, Err(PutError::Busy { .. })), "{one_more:?}");
            rig.catalog.remove(ms(2), key(&[3]), false).unwrap();
            rig.obey(ms(2));
            rig.put(key(b"more"), 1024, &PutConfig::default()).unwrap();
        }
    }
}

#[test]
fn hard_pins_are_bounded() {
    let mut rig = Rig::new(1, 16 << 10);
    let hard = with(|config| config.keep = Keep::Hard);
    for n in 0..8_u8 {
        rig.put(key(&[n]), 1024, &hard).unwrap();
    }
    let refused = rig.put(key(b"more"), 1024, &hard);
    assert_eq!(refused, Err(PutError::HardFull { limit: 8 << 10, total: 9 << 10 }));
}

#[test]
fn a_soft_pin_ends_unless_it_is_read() {
    let mut rig = Rig::new(1, 16 << 10);
    let soft = with(|config| config.keep = Keep::Soft { ttl_ms: 100 });
    rig.put(key(b"read"), 1024, &soft).unwrap();
    rig.put(key(b"not read"), 1024, &soft).unwrap();
    for at in [50, 90, 130, 170] {
        rig.catalog.locate(ms(at), key(b"read"), 0).unwrap();
        rig.tick(ms(at));
    }
    for n in 10..60_u8 {
        rig.put(key(&[n]), 1024, &PutConfig::default()).unwrap();
        rig.tick(ms(180));
    }
    assert!(rig.has(key(b"read")));
    assert!(!rig.has(key(b"not read")));
}

/// A segment above its high watermark passes soft pins over, and they stay candidates for puts.
#[test]
fn a_soft_pin_that_was_passed_over_can_still_go() {
    let mut rig = Rig::new(1, 16 << 10);
    let soft = with(|config| config.keep = Keep::Soft { ttl_ms: 100_000 });
    rig.put(key(b"soft"), 1024, &soft).unwrap();
    for n in 0..15_u8 {
        // Open puts: nothing else can go.
        rig.start(key(&[n]), 1024, &PutConfig::default()).unwrap();
    }
    rig.tick(ms(20));
    assert!(rig.has(key(b"soft")));
    rig.start(key(b"more"), 1024, &PutConfig::default()).unwrap();
    assert!(!rig.has(key(b"soft")));
}

#[test]
fn a_group_goes_together() {
    let mut rig = Rig::new(2, 16 << 10);
    let group = GroupId::named(b"request 1");
    let grouped = with(|config| config.group = group);
    for n in 0..4_u8 {
        rig.put(key(&[n]), 1024, &grouped).unwrap();
    }
    let pinned = with(|config| {
        config.group = group;
        config.keep = Keep::Hard;
    });
    rig.put(key(b"hard"), 64, &pinned).unwrap();
    assert_eq!(rig.catalog.group_len(TenantId::DEFAULT, group), 5);
    // Removed ones leave; the others stay.
    rig.catalog.remove(ms(2), key(&[1]), false).unwrap();
    rig.obey(ms(2));
    assert_eq!(rig.catalog.group_len(TenantId::DEFAULT, group), 4);
    assert!(rig.has(key(&[0])));
    let mut n = 10_u8;
    while rig.has(key(&[0])) && rig.has(key(&[2])) && rig.has(key(&[3])) {
        rig.put(key(&[n]), 1024, &PutConfig::default()).unwrap();
        n += 1;
    }
    // The first victim leaves when its owner has freed it, the others after that.
    rig.tick(ms(3));
    rig.tick(ms(4));
    let left = [0, 2, 3].iter().filter(|n| rig.has(key(&[**n]))).count();
    assert_eq!(left, 0, "the group follows its first victim");
    assert!(rig.has(key(b"hard")));
    assert_eq!(rig.catalog.group_len(TenantId::DEFAULT, group), 0);
}

#[test]
fn an_object_expires_after_its_first_get_but_not_under_a_lease() {
    let mut rig = Rig::new(1, MIB);
    let once = with(|config| config.expire_ms = 100);
    rig.put(key(b"once"), 10, &once).unwrap();
    rig.put(key(b"leased"), 10, &once).unwrap();
    rig.tick(ms(1000));
    assert!(rig.has(key(b"once")), "nobody has read it");
    assert!(rig.has(key(b"once")), "asking whether it is there is no get");
    rig.catalog.locate(ms(1000), key(b"once"), 0).unwrap();
    rig.catalog.locate(ms(1000), key(b"leased"), 500).unwrap();
    rig.tick(ms(1099));
    assert!(rig.has(key(b"once")));
    rig.tick(ms(1101));
    assert!(!rig.has(key(b"once")));
    assert!(rig.has(key(b"leased")));
    rig.tick(ms(1400));
    assert!(rig.has(key(b"leased")));
    rig.tick(ms(1700));
    assert!(!rig.has(key(b"leased")));
}

/// What is gone before its time costs nothing until then.
#[test]
fn an_expiry_goes_with_its_object() {
    let mut rig = Rig::new(1, MIB);
    let once = with(|config| {
        config.expire_ms = 3_600_000;
        config.upsert = true;
    });
    for n in 0..20_u8 {
        rig.put(key(&[n]), 10, &once).unwrap();
        rig.catalog.locate(ms(2), key(&[n]), 0).unwrap();
    }
    assert_eq!(rig.catalog.expiring(), 20);
    for n in 0..10_u8 {
        rig.catalog.remove(ms(3), key(&[n]), false).unwrap();
    }
    rig.obey(ms(3));
    assert_eq!(rig.catalog.expiring(), 10);
    // A new value under an old key has not been read.
    for n in 10..20_u8 {
        rig.put(key(&[n]), 20, &once).unwrap();
    }
    rig.tick(ms(4));
    assert_eq!(rig.catalog.expiring(), 0);
    assert_eq!(rig.catalog.len(), 10);
}

/// Proves R12 and C4: the new value appears in one step, and the put is not done before the owners
/// of the old one have said that nobody can begin to read it.
#[test]
fn an_upsert_is_a_new_object_that_takes_the_key_over() {
    let mut rig = Rig::new(1, MIB);
    let upsert = with(|config| config.upsert = true);
    let old = rig.put(key(b"k"), 10, &upsert).unwrap();
    let new = rig.start(key(b"k"), 20, &upsert).unwrap();
    let found = |rig: &mut Rig| rig.catalog.locate(ms(2), key(b"k"), 0).unwrap();
    assert_eq!(found(&mut rig).object, old.object, "until its end the old value is there");
    let again = rig.catalog.put_start(ms(2), key(b"k"), 30, &upsert);
    assert!(matches!(again, Err(PutError::InProgress { .. })));
    let ended = rig.catalog.put_end(ms(2), key(b"k"), new.token, &[Seal(9)]);
    assert_eq!(ended, Ok(Ended::Replacing(old.object)));
    assert_eq!(found(&mut rig).object, new.object);
    let again = rig.catalog.put_end(ms(2), key(b"k"), new.token, &[Seal(9)]);
    assert_eq!(again, Ok(Ended::Replacing(old.object)), "idempotent");
    rig.obey(ms(2));
    assert!(rig.catalog.removed(old.object));
    let done = rig.catalog.put_end(ms(2), key(b"k"), new.token, &[Seal(9)]);
    assert_eq!(done, Ok(Ended::Done));
    assert_eq!(found(&mut rig).len(), 20);
    // Given up, it leaves no trace.
    let third = rig.start(key(b"k"), 30, &upsert).unwrap();
    rig.catalog.put_revoke(ms(3), key(b"k"), third.token).unwrap();
    rig.obey(ms(3));
    assert_eq!(found(&mut rig).object, new.object);
    rig.start(key(b"k"), 30, &upsert).unwrap();
    // The old value is removed meanwhile: the new one still takes the key.
    rig.catalog.remove(ms(4), key(b"k"), false).unwrap();
    rig.obey(ms(4));
    assert_eq!(rig.catalog.locate(ms(4), key(b"k"), 0), Err(GetError::NotFound));
}

/// A key whose second value has replaced the first, and whose third is being written. The owner of the first has
/// not answered yet: its order comes last.
fn replaced_twice() -> (Rig, PutConfig, WritePlan, WritePlan, Order) {
    let mut rig = Rig::new(1, MIB);
    let upsert = with(|config| config.upsert = true);
    rig.put(key(b"k"), 10, &upsert).unwrap();
    let second = rig.start(key(b"k"), 20, &upsert).unwrap();
    rig.catalog.put_end(ms(2), key(b"k"), second.token, &[Seal(9)]).unwrap();
    let first_goes = rig.catalog.take_orders().pop().unwrap().1;
    let third = rig.start(key(b"k"), 30, &upsert).unwrap();
    (rig, upsert, second, third, first_goes)
}

/// The simulator's find: a second upsert waited for the value before it only, so that it was confirmed,
/// and even removed, while the first value of all could still be read.
#[test]
fn an_upsert_answers_for_all_that_was_replaced_before_it() {
    let (mut rig, upsert, second, third, first_goes) = replaced_twice();
    let ended = rig.catalog.put_end(ms(2), key(b"k"), third.token, &[Seal(9)]);
    assert_eq!(ended, Ok(Ended::Replacing(second.object)));
    rig.obey(ms(2));
    assert!(!rig.catalog.removed(second.object), "the first one can still be read");
    let Ok(Removal::Waiting(object)) = rig.catalog.remove(ms(3), key(b"k"), false) else {
        panic!("a remove waits for its owners");
    };
    rig.obey(ms(3));
    assert!(!rig.catalog.removed(object), "the first one can still be read");
    let again = rig.catalog.put_start(ms(3), key(b"k"), 40, &upsert);
    assert!(matches!(again, Err(PutError::InProgress { .. })));
    rig.held.push(first_goes);
    rig.obey(ms(4));
    assert!(rig.catalog.removed(object) && rig.catalog.removed(second.object));
    rig.put(key(b"k"), 50, &upsert).unwrap();
    assert_eq!(rig.catalog.len(), 1);
}

/// The simulator's find: the value that an upsert was to replace went away by itself meanwhile, and with it
/// the wait for the one before, which could still be read.
#[test]
fn an_upsert_answers_for_a_value_whose_successor_is_gone() {
    let (mut rig, _, second, third, first_goes) = replaced_twice();
    rig.catalog.drop_copy(ms(2), key(b"k"), second.replicas[0].segment).unwrap();
    rig.obey(ms(2));
    let ended = rig.catalog.put_end(ms(3), key(b"k"), third.token, &[Seal(9)]);
    let Ok(Ended::Replacing(waits_for)) = ended else { panic!("{ended:?}") };
    rig.obey(ms(3));
    assert!(!rig.catalog.removed(waits_for), "the first one can still be read");
    rig.held.push(first_goes);
    rig.obey(ms(4));
    assert!(rig.catalog.removed(waits_for));
}

/// The simulator's find: a repair gave a tenant back the copy that it had lost, and with it more than
/// its quota, if it had used the room.
#[test]
fn a_copy_keeps_to_the_quota() {
    let mut rig = Rig::new(2, MIB);
    let name = Name::new(ACME, b"k");
    rig.catalog.set_quota(ACME, Some(1000));
    let plan = rig.put(name, 900, &PutConfig::default()).unwrap();
    let from = plan.replicas[0].segment;
    let to = SegmentId(3 - from.0);
    let copied = rig.catalog.copy(ms(2), name, None, to);
    assert!(matches!(copied, Err(CopyError::NoRoom { .. })), "{copied:?}");
    assert_eq!(rig.catalog.copy(ms(2), name, Some(from), to), Ok(false), "a move is no more");
}

/// A node fails the writer: the copy is planned anew, and the key is not free before the failed owner
/// has answered for what it may hold.
#[test]
fn a_failed_copy_is_planned_anew() {
    let mut rig = Rig::new(3, MIB);
    let two = with(|config| config.replicas = 2);
    let plan = rig.start(key(b"k"), 100, &two).unwrap();
    let failed = plan.replicas[0].segment;
    let kept = plan.replicas[1].segment;
    let avoiding = with(|config| {
        config.replicas = 2;
        config.avoid = vec![failed];
    });
    let fresh = rig.catalog.put_replan(ms(1), key(b"k"), plan.token, &[failed], &avoiding).unwrap();
    assert_eq!((fresh.object, fresh.replicas.len()), (plan.object, 1));
    assert!(fresh.replicas[0].segment != failed && fresh.replicas[0].segment != kept);
    rig.catalog.put_end(ms(1), key(b"k"), plan.token, &[Seal(1)]).unwrap();
    rig.catalog.audit().unwrap();
    // The abort of the failed copy is still out.
    rig.held.extend(rig.catalog.take_orders().into_iter().map(|(_, order)| order));
    assert_eq!(rig.held.len(), 1);
    assert_eq!(rig.catalog.locate(ms(2), key(b"k"), 0).unwrap().replicas.len(), 2);
    let held = std::mem::take(&mut rig.held);
    rig.catalog.remove(ms(2), key(b"k"), false).unwrap();
    rig.obey(ms(2));
    assert!(!rig.catalog.removed(plan.object), "the failed owner has not answered");
    let early = rig.catalog.put_start(ms(2), key(b"k"), 1, &PutConfig::default());
    assert!(matches!(early, Err(PutError::InProgress { .. })));
    rig.held = held;
    rig.obey(ms(3));
    assert!(rig.catalog.removed(plan.object));
    rig.put(key(b"k"), 1, &PutConfig::default()).unwrap();
}

#[test]
fn without_another_node_a_replan_keeps_what_there_is_or_fails() {
    let mut rig = Rig::new(2, MIB);
    let two = with(|config| config.replicas = 2);
    let plan = rig.start(key(b"k"), 100, &two).unwrap();
    let failed = plan.replicas[0].segment;
    let config = with(|config| config.avoid = vec![failed]);
    let fresh = rig.catalog.put_replan(ms(1), key(b"k"), plan.token, &[failed], &config).unwrap();
    assert_eq!(fresh.replicas, [], "one copy is better than none");
    let both: Vec<SegmentId> = plan.replicas.iter().map(|at| at.segment).collect();
    let config = with(|config| config.avoid.clone_from(&both));
    let none = rig.catalog.put_replan(ms(1), key(b"k"), plan.token, &both, &config);
    assert_eq!(none, Err(PutError::NoSegments));
    rig.obey(ms(1));
}

/// The first owner does not answer, the second leaves: the put has nothing left that could be charged.
#[test]
fn a_put_whose_last_copy_leaves_ends_when_the_one_before_is_gone() {
    let mut rig =
        Rig::with(2, MIB, Config { put_timeout: Duration::from_hours(1), ..Config::default() });
    let name = Name::new(ACME, b"k");
    let plan = rig.start(name, 100, &PutConfig::default()).unwrap();
    let failed = plan.replicas[0].segment;
    let config = with(|config| config.avoid = vec![failed]);
    let fresh = rig.catalog.put_replan(ms(1), name, plan.token, &[failed], &config).unwrap();
    rig.held = rig.catalog.take_orders().into_iter().map(|(_, order)| order).collect();
    let second = fresh.replicas[0].segment;
    rig.catalog.unmount(NodeId(second.0), &[second]);
    for second in 0..60 {
        let _ = rig.catalog.heartbeat(ms(1000 * second), NodeId(failed.0));
        rig.catalog.tick(ms(1000 * second));
    }
    rig.catalog.audit().unwrap();
    let again = rig.catalog.put_start(ms(60_000), name, 100, &PutConfig::default());
    assert!(again.is_err(), "a copy of the first put may still be published: {again:?}");
    rig.obey(ms(60_000));
    rig.catalog.put_start(ms(60_000), name, 100, &PutConfig::default()).unwrap();
}

#[test]
fn more_copies_than_nodes_are_refused_or_fewer_as_configured() {
    let mut rig = Rig::new(2, MIB);
    let three = with(|config| config.replicas = 3);
    let refused = rig.put(key(b"k"), 1, &three);
    assert_eq!(refused, Err(PutError::TooFewNodes { wanted: 3, nodes: 2 }));
    let best = with(|config| {
        config.replicas = 3;
        config.best_effort = true;
    });
    assert_eq!(rig.put(key(b"k"), 1, &best).unwrap().replicas.len(), 2);
    // As in Mooncake Store: the sum over the media counts where it is higher.
    let media = with(|config| config.media = [0, 2, 0]);
    assert_eq!(rig.put(key(b"m"), 1, &media).unwrap().replicas.len(), 2);
    let vram = with(|config| config.media = [1, 0, 0]);
    let refused = rig.put(key(b"v"), 1, &vram);
    assert_eq!(refused, Err(PutError::NoMedium { medium: Medium::Vram }));
}

#[test]
fn keys_are_removed_by_pattern_in_bounded_steps() {
    let mut rig = Rig::new(1, 64 * MIB);
    for n in 0..1000_u32 {
        rig.put(key(format!("a/{n}").as_bytes()), 1, &PutConfig::default()).unwrap();
    }
    rig.put(key(b"b/1"), 1, &PutConfig::default()).unwrap();
    rig.put(Name::new(ACME, b"a/1"), 1, &PutConfig::default()).unwrap();
    rig.catalog.locate(ms(2), key(b"a/7"), 5000).unwrap();
    let matches = |key: &[u8]| key.starts_with(b"a/");
    let (mut cursor, mut gone, mut leased) = (Some(0), 0, 0);
    while let Some(at) = cursor {
        let page =
            rig.catalog.remove_matching(ms(2), TenantId::DEFAULT, matches, at, false).unwrap();
        (gone, leased, cursor) = (gone + page.waiting.len(), leased + page.leased, page.next);
        rig.obey(ms(2));
    }
    assert_eq!((gone, leased), (999, 1));
    assert!(rig.has(key(b"b/1")) && rig.has(Name::new(ACME, b"a/1")) && rig.has(key(b"a/7")));
    assert!(matches!(
        rig.catalog.remove(ms(2), key(b"a/7"), false),
        Err(RemoveError::Leased { .. })
    ));
}

/// Was: nothing matched, so the caller was told that it is done while another caller's remove still waited for the owner,
/// and the value could be read.
#[test]
fn a_remove_by_pattern_waits_for_what_others_remove() {
    let mut rig = Rig::new(1, MIB);
    rig.put(key(b"k"), 1, &PutConfig::default()).unwrap();
    let Ok(Removal::Waiting(object)) = rig.catalog.remove(ms(2), key(b"k"), false) else {
        panic!("its owner has confirmed nothing yet")
    };
    let remove = |rig: &mut Rig| {
        rig.catalog.remove_matching(ms(2), TenantId::DEFAULT, |_| true, 0, false).unwrap().waiting
    };
    assert_eq!(remove(&mut rig), [object]);
    rig.obey(ms(2));
    assert!(rig.catalog.removed(object) && remove(&mut rig).is_empty());
}
