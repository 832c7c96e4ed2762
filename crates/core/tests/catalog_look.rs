//! Looks at keys: what they tell, what a hold refuses, and what it does not. Owners obey at once.
#![expect(clippy::unwrap_used, reason = "a test's helpers may panic as its tests do")]

use mooncrate_core::catalog::{Catalog, Config, LookFor, Start};
use mooncrate_core::error::{CopyError, GetError, PutError, RemoveError};
use mooncrate_core::ids::{GroupId, TenantId};
use mooncrate_core::plan::{Evidence, Looked, Notice, Order, OrderResult, SegmentOffer};
use mooncrate_core::{
    Generation, HostId, Incarnation, LeaderEpoch, Medium, Name, NodeId, Now, PutConfig, Seal,
    SegmentId, ZoneId,
};
use std::time::Duration;

const HOLD: LookFor = LookFor { hold: true, places: false, reads: false };
const READ: LookFor = LookFor { hold: true, places: true, reads: true };
const GLANCE: LookFor = LookFor { hold: false, places: false, reads: false };

fn ms(ms: u64) -> Now {
    Now(1_000_000_000).plus(Duration::from_millis(ms))
}

struct Rig(Catalog);

impl Rig {
    fn new(nodes: u64, bytes: u64) -> Self {
        let config = Config { lease_ttl: Duration::from_millis(500), ..Config::default() };
        let mut catalog = Catalog::new(config, LeaderEpoch(1), Start::New, ms(0));
        for node in 1..=nodes {
            let offer = SegmentOffer {
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
            };
            catalog.mount(ms(0), NodeId(node), std::slice::from_ref(&offer)).unwrap();
            catalog.announce(ms(0), offer.segment, offer.incarnation, &[], true).unwrap();
        }
        Self(catalog)
    }

    fn obey(&mut self, now: Now) {
        loop {
            let orders = self.0.take_orders();
            if orders.is_empty() {
                break;
            }
            for (_, order) in orders {
                let Order { segment, incarnation, slot, generation, .. } = order;
                let result = OrderResult::Freed { next: Generation(generation.0 + 1) };
                let notice = Notice { segment, incarnation, slot, generation, result };
                self.0.notice(now, &notice);
            }
        }
        self.0.audit().unwrap();
    }

    fn put(&mut self, now: Now, key: &[u8], config: &PutConfig) -> Result<(), PutError> {
        for _ in 0..64 {
            match self.0.put_start(now, key, 1024, config) {
                Err(PutError::Reclaiming { .. }) => self.obey(now),
                Err(error) => return Err(error),
                Ok(plan) => {
                    self.0.put_end(now, key, plan.token, &[Seal(1)])?;
                    self.obey(now);
                    return Ok(());
                }
            }
        }
        panic!("room never came");
    }

    fn look(&mut self, now: Now, key: &[u8], ask: LookFor) -> Result<Looked, GetError> {
        self.0.look(now, TenantId::DEFAULT, &[key], ask).pop().unwrap()
    }
}

#[test]
fn a_look_tells_missing_from_unfinished() {
    let mut rig = Rig::new(1, 1 << 20);
    assert_eq!(rig.look(ms(1), b"k", HOLD), Ok(Looked::Missing));
    assert!(matches!(rig.look(ms(1), b"", HOLD), Err(GetError::Key(_))));
    let plan = rig.0.put_start(ms(1), b"k", 10, &PutConfig::default()).unwrap();
    for ask in [HOLD, READ, GLANCE] {
        assert_eq!(rig.look(ms(1), b"k", ask), Ok(Looked::Writing));
    }
    rig.0.put_end(ms(1), b"k", plan.token, &[Seal(7)]).unwrap();
    let here = Looked::Here { len: 10, group: GroupId(0) };
    for ask in [GLANCE, HOLD] {
        assert_eq!(rig.look(ms(1), b"k", ask), Ok(here.clone()));
    }
    let Ok(Looked::At(located)) = rig.look(ms(1), b"k", READ) else { panic!("it is there") };
    assert_eq!((located.len(), located.seal, located.lease_ms), (10, Seal(7), 500));
    // What is given up is missing at once, though its owner has not answered.
    let plan = rig.0.put_start(ms(1), b"other", 10, &PutConfig::default()).unwrap();
    rig.0.put_revoke(ms(1), b"other", plan.token).unwrap();
    assert_eq!(rig.look(ms(1), b"other", HOLD), Ok(Looked::Missing));
}

/// A caller that asks whether a key exists learns where its value is. That is no read: nothing is counted, and
/// the value keeps its position in the eviction order.
#[test]
fn a_place_that_is_not_read_counts_for_nothing() {
    let mut rig = Rig::new(1, 64 << 10);
    for key in [b"a", b"b"] {
        rig.put(ms(1), key, &PutConfig::default()).unwrap();
    }
    let before = rig.0.counters();
    let place = LookFor { hold: false, places: true, reads: false };
    let Ok(Looked::At(located)) = rig.look(ms(2), b"a", place) else { panic!("it is there") };
    assert_eq!((located.len(), located.lease_ms), (1024, 0));
    assert_eq!(rig.look(ms(2), b"absent", place), Ok(Looked::Missing));
    let after = rig.0.counters();
    assert_eq!((after.hits, after.misses), (before.hits, before.misses));
    let is_gone = |rig: &mut Rig, key: &[u8]| rig.look(ms(3), key, GLANCE) == Ok(Looked::Missing);
    let mut others = 0_u32;
    while !is_gone(&mut rig, b"a") {
        assert!(!is_gone(&mut rig, b"b"), "the older of the two is evicted first");
        rig.put(ms(3), &others.to_le_bytes(), &PutConfig::default()).unwrap();
        others += 1;
        assert!(others < 1000, "nothing is evicted");
    }
}

#[test]
fn a_hold_refuses_removes_until_it_ends() {
    for ask in [HOLD, READ] {
        let mut rig = Rig::new(1, 1 << 20);
        rig.put(ms(1), b"k", &PutConfig::default()).unwrap();
        rig.look(ms(100), b"k", ask).unwrap();
        assert_eq!(rig.0.remove(ms(400), b"k", false), Err(RemoveError::Leased { left_ms: 200 }));
        let page = rig.0.remove_matching(ms(400), TenantId::DEFAULT, |_| true, 0, false).unwrap();
        assert_eq!((page.waiting.len(), page.leased), (0, 1));
        rig.look(ms(500), b"k", GLANCE).unwrap();
        // To the millisecond: callers sleep for exactly that long.
        rig.0.remove(ms(600), b"k", false).unwrap();
        rig.obey(ms(600));
        assert_eq!(rig.look(ms(600), b"k", HOLD), Ok(Looked::Missing));
    }
}

#[test]
fn force_takes_what_is_held_and_its_bytes_are_free_at_once() {
    let mut rig = Rig::new(1, 1 << 20);
    rig.put(ms(1), b"k", &PutConfig::default()).unwrap();
    rig.look(ms(2), b"k", READ).unwrap();
    rig.0.remove(ms(3), b"k", true).unwrap();
    let (_, order) = rig.0.take_orders().pop().unwrap();
    assert_eq!(order.action, mooncrate_core::plan::Action::Retire { free_after_ms: 0 });
}

/// The pool stays evictable although somebody looks at everything all the time.
#[test]
fn a_hold_delays_no_eviction() {
    let mut rig = Rig::new(1, 16 << 10);
    for n in 0..100_u8 {
        rig.put(ms(1), &[n], &PutConfig::default()).unwrap();
        for looked in 0..=n {
            rig.look(ms(1), &[looked], HOLD).unwrap();
        }
    }
    let there = (0..100_u8).filter(|n| rig.look(ms(1), &[*n], GLANCE) != Ok(Looked::Missing));
    let there: Vec<u8> = there.collect();
    assert!(there.len() <= 16 && there.contains(&99), "{there:?}");
    assert!(matches!(rig.0.remove(ms(1), &[99], false), Err(RemoveError::Leased { .. })));
}

#[test]
fn one_copy_goes_and_is_not_missed() {
    let mut rig = Rig::new(2, 1 << 20);
    let two = PutConfig { replicas: 2, ..PutConfig::default() };
    rig.put(ms(1), b"k", &two).unwrap();
    let name = Name::from(b"k");
    assert_eq!(rig.0.drop_copy(ms(1), name, SegmentId(9)), Err(CopyError::NoSource));
    assert_eq!(rig.0.drop_copy(ms(1), b"none", SegmentId(1)), Err(CopyError::NotFound));
    rig.look(ms(1), b"k", HOLD).unwrap();
    assert_eq!(rig.0.drop_copy(ms(2), name, SegmentId(1)), Err(CopyError::Busy { after_ms: 499 }));
    rig.0.drop_copy(ms(600), name, SegmentId(1)).unwrap();
    rig.obey(ms(600));
    let Ok(Looked::At(located)) = rig.look(ms(600), b"k", READ) else { panic!("one is left") };
    assert_eq!(located.replicas.len(), 1);
    assert_eq!(located.replicas[0].segment, SegmentId(2));
    for at in [700, 1_800, 2_900] {
        for node in [1, 2] {
            rig.0.heartbeat(ms(at), NodeId(node)).unwrap();
        }
        rig.0.tick(ms(at));
        rig.obey(ms(at));
    }
    assert_eq!(rig.0.copies_under_way(), 0, "nobody repairs what was dropped on purpose");
    rig.0.drop_copy(ms(3_000), name, SegmentId(2)).unwrap();
    rig.obey(ms(3_000));
    assert_eq!(rig.look(ms(3_000), b"k", GLANCE), Ok(Looked::Missing));
    rig.put(ms(3_000), b"k", &two).unwrap();
}

/// Oldest first, step by step; what is leased stays, and bytes on their way out are told apart.
#[test]
fn a_segment_is_emptied_to_a_mark() {
    let mut rig = Rig::new(2, 1 << 20);
    let here = PutConfig { preferred: vec![SegmentId(1)], ..PutConfig::default() };
    for n in 0..200_u8 {
        rig.put(ms(1), &[n], &here).unwrap();
    }
    let before = rig.0.evict_below(ms(2), SegmentId(1), u64::MAX).unwrap();
    assert_eq!(before.ending_bytes, 0, "nothing had to go");
    let each = before.used_bytes / 200;
    let mark = 50 * each;
    let mut steps = 0;
    loop {
        let left = rig.0.evict_below(ms(2), SegmentId(1), mark).unwrap();
        steps += 1;
        if left.used_bytes <= mark {
            assert!(left.ending_bytes > 0, "its owner has not obeyed yet");
            break;
        }
    }
    assert!((2..200).contains(&steps), "bounded steps, {steps} of them");
    rig.obey(ms(2));
    let after = rig.0.evict_below(ms(2), SegmentId(1), mark).unwrap();
    assert_eq!((after.used_bytes, after.ending_bytes), (mark, 0));
    assert_eq!(rig.look(ms(2), &[0], GLANCE), Ok(Looked::Missing));
    assert!(matches!(rig.look(ms(2), &[199], GLANCE), Ok(Looked::Here { .. })));
    assert_eq!(rig.0.evict_below(ms(2), SegmentId(9), 0), None);
}
