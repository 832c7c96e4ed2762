//! A node mounts again before it has told everything. What must stay true: what one call does under the lock is
//! bounded by its page, what was told stays readable, and in the end the index is what the last round said.

#![expect(clippy::unwrap_used, reason = "a test")]

use mooncrate_core::catalog::{Catalog, Config, Mounted, Start, Trusted};
use mooncrate_core::error::MountError;
use mooncrate_core::plan::{
    Action, Announced, AnnouncedLife, AnnouncedObject, Evidence, Notice, Order, OrderResult,
    SegmentOffer,
};
use mooncrate_core::{
    Extent, Generation, HostId, Incarnation, Label, LeaderEpoch, Medium, NodeId, Now, ObjectId,
    PutConfig, Seal, SegmentId, Slot, Stamp, ZoneId,
};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::time::Duration;

const NODE: NodeId = NodeId(1);
const SEGMENT: SegmentId = SegmentId(1);
const MOUNT: Incarnation = Incarnation(1);
/// As many as the master takes in under one lock.
const SLICE: usize = 64;

fn ms(ms: u64) -> Now {
    Now(1_000_000_000).plus(Duration::from_millis(ms))
}

fn offer(slots: u32) -> SegmentOffer {
    SegmentOffer {
        segment: SEGMENT,
        incarnation: MOUNT,
        node: NODE,
        medium: Medium::Dram,
        bytes: u64::from(slots) * 128,
        slots,
        host: HostId(1),
        zone: ZoneId(0),
        tenant: None,
        evidence: Evidence::default(),
    }
}

fn takeover() -> Catalog {
    let config = Config { order_retry: Duration::from_millis(100), ..Config::default() };
    let start = Start::Takeover { expected: vec![NODE], trusted: Vec::new() };
    Catalog::new(config, LeaderEpoch(2), start, ms(0))
}

fn key(slot: u32) -> Vec<u8> {
    format!("key {slot}").into_bytes()
}

/// What is in a slot of the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Free,
    /// A finished object.
    Ready,
    /// Being written, or on its way out.
    Blocked,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    life: Life,
    generation: u32,
}

fn told(slot: u32, State { life, generation }: State) -> Announced {
    let object = || AnnouncedObject {
        label: Label::plain(key(slot).as_slice().into()).unwrap(),
        object: ObjectId { epoch: LeaderEpoch(1), sequence: u64::from(slot + generation * 1000) },
        len: 100,
        seal: Seal(7),
    };
    let life = (life != Life::Free).then(|| AnnouncedLife {
        extent: Extent::new(u64::from(slot) * 128, 128).unwrap(),
        object: (life == Life::Ready).then(object),
    });
    Announced { slot: Slot(slot), generation: Generation(generation), life }
}

/// All slots hold an object.
fn full(slots: u32, generation: u32) -> Vec<Announced> {
    (0..slots).map(|slot| told(slot, State { life: Life::Ready, generation })).collect()
}

/// One slice under one lock: how many slots it took out of the index.
fn tell(catalog: &mut Catalog, now: Now, slice: &[Announced]) -> Result<u64, MountError> {
    let before = catalog.detached();
    catalog.announce_page(now, SEGMENT, MOUNT, slice)?;
    Ok(catalog.detached() - before)
}

/// Was: the second mount took all that was told out of the index in one call, 4096 slots here, while everybody
/// waited for the lock; and until it was told again, nobody found it.
#[test]
fn a_mount_takes_nothing_out_of_the_index() {
    const SLOTS: u32 = 4096;
    let mut catalog = takeover();
    catalog.mount(ms(0), NODE, &[offer(SLOTS)]).unwrap();
    for slice in full(SLOTS, 3).chunks(SLICE) {
        assert_eq!(tell(&mut catalog, ms(1), slice), Ok(0));
    }
    let again = catalog.mount(ms(2), NODE, &[offer(SLOTS)]).unwrap();
    assert_eq!(again, [Mounted::Announce]);
    assert_eq!(
        (catalog.detached(), catalog.len()),
        (0, SLOTS as usize),
        "in the call of the mount"
    );
    for slot in [0, SLOTS - 1] {
        catalog.locate(ms(3), key(slot).as_slice(), 0).unwrap();
    }
    // Nothing has changed: nothing is taken out.
    for slice in full(SLOTS, 3).chunks(SLICE) {
        assert_eq!(tell(&mut catalog, ms(4), slice), Ok(0));
    }
    assert_eq!(catalog.len(), SLOTS as usize);
    // All has changed: each slice takes out its own slots.
    catalog.mount(ms(5), NODE, &[offer(SLOTS)]).unwrap();
    let changed = full(SLOTS, 4);
    let most = changed.chunks(SLICE).map(|slice| tell(&mut catalog, ms(6), slice).unwrap());
    assert_eq!(most.max(), Some(SLICE as u64));
    catalog.announce(ms(7), SEGMENT, MOUNT, &[], true).unwrap();
    assert_eq!(catalog.len(), SLOTS as usize);
    catalog.audit().unwrap();
}

/// A round that tells less than an earlier one leaves slots of which nobody knows whether they live.
#[test]
fn a_shorter_round_opens_nothing() {
    let mut catalog = takeover();
    catalog.mount(ms(0), NODE, &[offer(8)]).unwrap();
    catalog.announce(ms(1), SEGMENT, MOUNT, &full(8, 3), false).unwrap();
    catalog.mount(ms(2), NODE, &[offer(8)]).unwrap();
    let short = catalog.announce(ms(3), SEGMENT, MOUNT, &full(7, 3), true);
    assert_eq!(short, Err(MountError::BadAnnouncement { slot: 7 }));
    // Neither does one that goes back in time, or names another object under the same life.
    let older = catalog.announce(ms(4), SEGMENT, MOUNT, &[told(7, ready(2))], true);
    assert_eq!(older, Err(MountError::BadAnnouncement { slot: 7 }));
    let mut other = told(7, ready(3));
    other.life.as_mut().unwrap().object.as_mut().unwrap().object.sequence += 1;
    let other = catalog.announce(ms(4), SEGMENT, MOUNT, &[other], true);
    assert_eq!(other, Err(MountError::BadAnnouncement { slot: 7 }));
    catalog.announce(ms(5), SEGMENT, MOUNT, &[told(7, ready(3))], true).unwrap();
    catalog.audit().unwrap();
}

fn ready(generation: u32) -> State {
    State { life: Life::Ready, generation }
}

/// A replica that its owner found bad between two rounds: leases are out, so its range waits for them.
#[test]
fn a_replica_that_went_bad_between_two_rounds_waits_for_its_leases() {
    let mut catalog = takeover();
    catalog.mount(ms(0), NODE, &[offer(8)]).unwrap();
    catalog.announce(ms(1), SEGMENT, MOUNT, &[told(0, ready(3))], false).unwrap();
    assert_eq!(catalog.locate(ms(20_000), key(0).as_slice(), 10_000).unwrap().lease_ms, 10_000);
    catalog.mount(ms(20_001), NODE, &[offer(8)]).unwrap();
    let bad = State { life: Life::Blocked, generation: 3 };
    catalog.announce(ms(20_002), SEGMENT, MOUNT, &[told(0, bad)], true).unwrap();
    assert_eq!(catalog.counters().bad_replicas, 1);
    let orders = catalog.take_orders();
    assert_eq!(orders.len(), 1, "{orders:?}");
    assert!(matches!(orders[0].1.action, Action::Retire { free_after_ms: 9_998.. }), "{orders:?}");
    catalog.audit().unwrap();
}

/// Slots of the owner in the model.
const SLOTS: u32 = 12;

/// What happens to a slot without a word of this leader.
fn change(state: &mut State, kind: u8) {
    *state = match (state.life, kind) {
        // Found bad.
        (Life::Ready, 0) => State { life: Life::Blocked, ..*state },
        // Published late.
        (Life::Blocked, 0) => State { life: Life::Ready, ..*state },
        // Over.
        (Life::Ready | Life::Blocked, _) => {
            State { life: Life::Free, generation: state.generation + 1 }
        }
        (Life::Free, _) => *state,
    };
}

/// The owner obeys: the life is over, now or since long.
fn obey(owner: &mut [State], catalog: &mut Catalog, now: Now, order: &Order) {
    let state = &mut owner[order.slot.0 as usize];
    if state.generation == order.generation.0 {
        *state = State { life: Life::Free, generation: state.generation + 1 };
    }
    let result = OrderResult::Freed { next: Generation(state.generation) };
    let Order { segment, incarnation, slot, generation, .. } = *order;
    catalog.notice(now, &Notice { segment, incarnation, slot, generation, result });
}

/// One round: slots told before it ends, slots per slice, and what changes behind it.
type Round = (u32, usize, Vec<(u32, u8)>);

fn round() -> impl Strategy<Value = Round> {
    (0..=SLOTS, 1..5_usize, prop::collection::vec((0..SLOTS, 0..2_u8), 0..6))
}

fn life() -> impl Strategy<Value = State> {
    let life = prop_oneof![Just(Life::Free), Just(Life::Ready), Just(Life::Blocked)];
    (life, 0..3_u32).prop_map(|(life, generation)| State { life, generation })
}

const OTHER: SegmentId = SegmentId(2);

/// A leader that expects two nodes, and has both on its list.
fn takeover_of_two() -> Catalog {
    let config = Config { order_retry: Duration::from_millis(100), ..Config::default() };
    let trusted = [SEGMENT, OTHER].map(|segment| Trusted { segment, stamp: Stamp(MOUNT.0) });
    let expected = vec![NODE, NodeId(2)];
    let start = Start::Takeover { expected, trusted: trusted.to_vec() };
    Catalog::new(config, LeaderEpoch(2), start, ms(0))
}

/// The other node has a later value of these keys.
fn newer_state(newer: &BTreeSet<u32>, slot: u32) -> State {
    let life = if newer.contains(&slot) { Life::Ready } else { Life::Free };
    State { life, generation: 100 }
}

fn tell_round(catalog: &mut Catalog, now: Now, owner: &mut [State], round: &Round) {
    let (until, slice, changes) = round;
    catalog.mount(now, NODE, &[offer(SLOTS)]).unwrap();
    let page: Vec<Announced> = (0..*until).map(|slot| told(slot, owner[slot as usize])).collect();
    for slice in page.chunks(*slice) {
        tell(catalog, now, slice).unwrap();
    }
    for (slot, kind) in changes {
        change(&mut owner[*slot as usize], *kind);
    }
}

/// Both nodes are heard, and the first has not told all in time.
fn end_wait(catalog: &mut Catalog) {
    for at in (0..25_000).step_by(500) {
        for node in [NODE, NodeId(2)] {
            catalog.heartbeat(ms(at), node).unwrap();
        }
        catalog.tick(ms(at));
    }
    let list = catalog.trusted();
    catalog.trust_writing(&list);
    catalog.trust_written(&list);
    catalog.tick(ms(25_001));
    assert!(!catalog.rebuilding());
}

proptest! {
    /// However often it starts over and whatever changes meanwhile: in the end exactly what the last round told
    /// is known, every byte has its place, and all of it can be freed.
    #[test]
    fn the_last_round_counts(
        mut owner in prop::collection::vec(life(), SLOTS as usize),
        rounds in prop::collection::vec(round(), 0..5),
    ) {
        let mut catalog = takeover();
        // Lives whose end this leader has ordered because they were told unfinished.
        let mut aborted: BTreeSet<(u32, u32)> = BTreeSet::new();
        let mut at = 0;
        let last: Round = (SLOTS, 3, Vec::new());
        for (until, slice, changes) in rounds.iter().chain([&last]) {
            at += 1;
            catalog.mount(ms(at), NODE, &[offer(SLOTS)]).unwrap();
            let page: Vec<Announced> =
                (0..*until).map(|slot| told(slot, owner[slot as usize])).collect();
            for slice in page.chunks(*slice) {
                let out = tell(&mut catalog, ms(at), slice).unwrap();
                prop_assert!(out <= slice.len() as u64);
            }
            aborted.extend((0..*until).filter_map(|slot| {
                let State { life, generation } = owner[slot as usize];
                (life == Life::Blocked).then_some((slot, generation))
            }));
            for (slot, kind) in changes {
                change(&mut owner[*slot as usize], *kind);
            }
        }
        catalog.announce(ms(at), SEGMENT, MOUNT, &[], true).unwrap();
        catalog.audit().unwrap();
        for slot in 0..SLOTS {
            let State { life, generation } = owner[slot as usize];
            let known = life == Life::Ready && !aborted.contains(&(slot, generation));
            let found = catalog.locate(ms(at), key(slot).as_slice(), 0);
            prop_assert_eq!(found.is_ok(), known, "slot {}: {:?}", slot, found);
            if known {
                prop_assert_eq!(found.unwrap().replicas[0].generation, Generation(generation));
                catalog.remove(ms(at), key(slot).as_slice(), true).unwrap();
            }
        }
        for _ in 0..3 {
            at += 200;
            catalog.heartbeat(ms(at), NODE).unwrap();
            catalog.tick(ms(at));
            for (_, order) in catalog.take_orders() {
                obey(&mut owner, &mut catalog, ms(at), &order);
            }
        }
        catalog.audit().unwrap();
        let left = &catalog.segments()[0];
        prop_assert_eq!((left.used, left.ending, left.replicas), (0, 0, 0));
        prop_assert_eq!(left.free, left.offer.bytes);
        // Every slot is of use again.
        for slot in 0..SLOTS {
            let put = catalog.put_start(ms(at), key(slot).as_slice(), 100, &PutConfig::default());
            prop_assert!(put.is_ok(), "{:?}", put);
            // Open puts of one tenant never take all of them.
            let token = put.unwrap().token;
            catalog.put_end(ms(at), key(slot).as_slice(), token, &[Seal(7)]).unwrap();
        }
    }
    /// Another node holds newer values of some keys, and the wait for this one ends between two of its rounds. It
    /// gets no leave to serve while a value can be read there that the index does not name (C2), and gets it
    /// when it has obeyed.
    #[test]
    fn no_leave_while_an_older_value_is_readable(
        mut owner in prop::collection::vec(life(), SLOTS as usize),
        newer in prop::collection::btree_set(0..SLOTS, 0..6),
        awaited in prop::collection::vec(round(), 0..3),
        late in prop::collection::vec(round(), 0..3),
    ) {
        let mut catalog = takeover_of_two();
        let other = SegmentOffer { segment: OTHER, node: NodeId(2), ..offer(SLOTS) };
        catalog.mount(ms(0), NodeId(2), &[other]).unwrap();
        let page: Vec<Announced> = (0..SLOTS).map(|slot| told(slot, newer_state(&newer, slot))).collect();
        catalog.announce(ms(0), OTHER, MOUNT, &page, true).unwrap();
        for round in &awaited {
            tell_round(&mut catalog, ms(1), &mut owner, round);
        }
        catalog.mount(ms(2), NODE, &[offer(SLOTS)]).unwrap();
        end_wait(&mut catalog);
        let mut at = 26_000;
        let last: Round = (SLOTS, 3, Vec::new());
        for round in late.iter().chain([&last]) {
            tell_round(&mut catalog, ms(at), &mut owner, round);
        }
        catalog.announce(ms(at), SEGMENT, MOUNT, &[], true).unwrap();
        catalog.audit().unwrap();
        let named = |catalog: &mut Catalog, slot: u32| {
            let found = catalog.locate(ms(26_000), key(slot).as_slice(), 0);
            found.is_ok_and(|found| found.replicas.iter().any(|one| one.segment == SEGMENT))
        };
        let stale = (0..SLOTS).filter(|slot| owner[*slot as usize].life == Life::Ready);
        let stale: Vec<u32> = stale.filter(|slot| !named(&mut catalog, *slot)).collect();
        prop_assert!(stale.is_empty() || !catalog.may_serve(NODE), "readable: {:?}", stale);
        for _ in 0..3 {
            at += 200;
            for node in [NODE, NodeId(2)] {
                catalog.heartbeat(ms(at), node).unwrap();
            }
            catalog.tick(ms(at));
            for (_, order) in catalog.take_orders() {
                obey(&mut owner, &mut catalog, ms(at), &order);
            }
        }
        catalog.audit().unwrap();
        prop_assert!(catalog.may_serve(NODE));
    }
}
