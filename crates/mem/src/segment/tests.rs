//! Each step and each refusal of a segment; steps at random are in `tests/model.rs`, threads in `stress.rs`.

use super::*;
use crate::life::Life;
use crate::mapping::{Mapping, StoreError};
use crate::read::ReadError;
use crate::sums::seal_of;
use mooncrate_core::limits::{LEASE_MS_MAX, PINS_MAX, VALUE_BYTES_MAX};
use mooncrate_core::plan::{Action, Order, OrderResult};
use mooncrate_core::seal::{extent_bytes, table};
use mooncrate_core::{ObjectId, PutToken};

mod bad;
mod mapped;

const SEGMENT: SegmentId = SegmentId(5);
const INCARNATION: Incarnation = Incarnation(2);
const TOKEN: PutToken = PutToken(77);
const EPOCH: LeaderEpoch = LeaderEpoch(3);
const T: Now = Now(1_000_000_000);
const FOREVER: Now = Now(u64::MAX);

fn segment(shared: bool) -> Arc<Segment> {
    let spec = SegmentSpec {
        segment: SEGMENT,
        incarnation: INCARNATION,
        bytes: 8 << 20,
        slots: 2000,
        shared,
        huge: false,
    };
    let segment = Segment::create(spec).unwrap();
    segment.set_serve_until(FOREVER);
    segment
}

fn locator(slot: u32, generation: u32, len: u64) -> Locator {
    Locator {
        segment: SEGMENT,
        incarnation: INCARNATION,
        slot: Slot(slot),
        generation: Generation(generation),
        extent: Extent::new(u64::from(slot % 2) * (4 << 20), extent_bytes(len)).unwrap(),
        stripe: 0,
        grant: None,
    }
}

fn wanted(locator: Locator, len: u64) -> BeginWrite<'static> {
    BeginWrite {
        locator,
        token: TOKEN,
        object: ObjectId { epoch: EPOCH, sequence: 40 },
        epoch: EPOCH,
        len,
        label: b"\0\0\0\0\0a key",
        hash: LabelHash::of(b"\0\0\0\0\0a key"),
    }
}

fn begin(segment: &Arc<Segment>, at: Locator, len: u64) -> WriteGuard {
    segment.begin(T, &wanted(at, len)).unwrap()
}

fn put(segment: &Arc<Segment>, slot: u32, generation: u32, value: &[u8]) -> (Locator, Seal) {
    let at = locator(slot, generation, value.len() as u64);
    let mut guard = begin(segment, at, value.len() as u64);
    guard.write(0, value).unwrap();
    let seal = guard.seal();
    assert_eq!(seal, seal_of(value));
    guard.publish(T, TOKEN, seal).unwrap();
    (at, seal)
}

fn order(at: &Locator, action: Action) -> Order {
    let Locator { segment, incarnation, slot, generation, .. } = *at;
    Order { segment, incarnation, slot, generation, action }
}

fn execute(segment: &Segment, now: Now, at: &Locator, action: Action) -> OrderResult {
    segment.execute(now, EPOCH, &order(at, action)).unwrap().result
}

fn tick(segment: &Segment, now: Now) -> Vec<Notice> {
    let mut news = Vec::new();
    segment.tick(now, &mut news);
    news
}

fn value(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i ^ (i >> 8) ^ (i >> 16)) as u8).collect()
}

fn freed(next: u32) -> OrderResult {
    OrderResult::Freed { next: Generation(next) }
}

const RETIRE: Action = Action::Retire { free_after_ms: LEASE_MS_MAX };

#[test]
fn what_was_put_is_read_back() {
    let segment = segment(false);
    for len in [0, 1, 63, 4096, 1 << 20, (1 << 20) + 1, (3 << 20) + 9] {
        let value = value(len);
        let generation = segment.load(Slot(0)).generation().0;
        let (at, seal) = put(&segment, 0, generation, &value);
        let pin = segment.pin(T, &at).unwrap();
        assert_eq!(pin.bytes(), value);
        assert_eq!((pin.seal(), pin.value_len(), pin.object().sequence), (seal, len as u64, 40));
        assert_eq!(
            pin.table_bytes().len(),
            if len > 1 << 20 { len.div_ceil(1 << 20) * 8 } else { 0 }
        );
        pin.verify().unwrap();
        let mut copy = vec![0; len];
        pin.read_into(seal, &mut copy).unwrap();
        assert_eq!(copy, value);
        let mut part = vec![0; len / 2];
        pin.read_part_into(seal, (len / 3) as u64, &mut part).unwrap();
        assert_eq!(part, value[len / 3..][..len / 2]);
        copy.fill(0);
        segment.one_sided().read_into(&at, seal, &mut copy, || T).unwrap();
        assert_eq!(copy, value);
        drop(pin);
        assert_eq!(execute(&segment, T, &at, Action::Evict), freed(generation + 1));
    }
    assert_eq!(segment.stats(), SegmentStats { high_water: 1, ..SegmentStats::default() });
}

#[test]
fn a_receiver_fills_the_buffer_in_place() {
    let segment = segment(false);
    let value = value((1 << 20) + 500);
    let at = locator(0, 0, value.len() as u64);
    let mut guard = begin(&segment, at, value.len() as u64);
    while guard.seen() < value.len() as u64 {
        let seen = guard.seen() as usize;
        let buffer = guard.buffer(70_001).unwrap();
        let len = buffer.len();
        buffer.copy_from_slice(&value[seen..][..len]);
        guard.filled(len).unwrap();
    }
    assert!(guard.buffer(9).unwrap().is_empty());
    assert!(matches!(guard.filled(1), Err(WriteError::TooLong { .. })));
    guard.publish(T, TOKEN, seal_of(&value)).unwrap();
    assert_eq!(segment.pin(T, &at).unwrap().bytes(), value);
}

/// Proves G2: nothing is READY before the last byte, and only under its token and its seal.
#[test]
fn publishing_needs_token_bytes_and_seal() {
    let segment = segment(false);
    let at = locator(0, 0, 100);
    let mut guard = begin(&segment, at, 100);
    let value = value(100);
    let seal = seal_of(&value);
    guard.write(0, &value[..60]).unwrap();
    let refuse = |guard: WriteGuard, token, seal, error| {
        let refused = guard.publish(T, token, seal).unwrap_err();
        assert_eq!(refused.error, error);
        assert!(segment.pin(T, &at).is_err(), "half a value can be read");
        refused.guard
    };
    guard = refuse(guard, TOKEN, seal, PublishError::Incomplete { seen: 60, len: 100 });
    assert_eq!(
        guard.write(61, &value[61..]),
        Err(WriteError::OutOfOrder { offset: 61, expected: 60 })
    );
    assert_eq!(guard.write(60, &value), Err(WriteError::TooLong { end: 160, len: 100 }));
    guard.write(60, &value[60..]).unwrap();
    guard = refuse(guard, PutToken(1), seal, PublishError::BadToken);
    let wrong = Seal(1);
    guard = refuse(guard, TOKEN, wrong, PublishError::Corrupt { found: seal, wanted: wrong });
    guard.publish(T, TOKEN, seal).unwrap();
    assert!(segment.pin(T, &at).is_ok());
}

#[test]
fn begin_refuses_what_does_not_fit() {
    let segment = segment(false);
    let good = wanted(locator(1, 0, 100), 100);
    let refuse = |bad: BeginWrite<'_>| segment.begin(T, &bad).unwrap_err();
    let with = |change: fn(&mut Locator)| {
        let mut bad = good;
        change(&mut bad.locator);
        refuse(bad)
    };
    assert!(matches!(with(|l| l.segment = SegmentId(6)), SegmentError::OtherSegment { .. }));
    assert!(matches!(with(|l| l.incarnation.0 = 1), SegmentError::OtherMount { .. }));
    assert!(matches!(with(|l| l.slot = Slot(2000)), SegmentError::NoSuchSlot { .. }));
    let at = |offset, len| Extent::new(offset, len).unwrap();
    assert!(matches!(
        with(|l| l.extent = Extent::new(8 << 20, 128).unwrap()),
        SegmentError::OutOfBounds(_)
    ));
    for extent in [at(0, 64), at(0, 192), at(32, 128)] {
        let bad = BeginWrite { locator: Locator { extent, ..good.locator }, ..good };
        assert!(matches!(refuse(bad), SegmentError::BadExtent { .. }), "{extent}");
    }
    let bad = BeginWrite { len: VALUE_BYTES_MAX + 1, ..good };
    assert!(matches!(refuse(bad), SegmentError::BadExtent { .. }));
    assert_eq!(refuse(BeginWrite { label: b"", ..good }), SegmentError::BadLabel { bytes: 0 });
    assert!(matches!(with(|l| l.generation.0 = 1), SegmentError::Stale { .. }));
    assert_eq!(with(|l| l.generation = Generation::MAX), SegmentError::UsedUp { slot: Slot(1) });
    let guard = segment.begin(T, &good).unwrap();
    assert!(matches!(refuse(good), SegmentError::Stale { .. }), "one writer per life");
    drop(guard);
}

/// A new leader heard that the slot is being written and may have given its key away: what the old one
/// planned must not appear any more (C2).
#[test]
fn a_put_of_an_old_leader_is_not_published() {
    let segment = segment(false);
    let at = locator(0, 0, 1);
    let mut guard = begin(&segment, at, 1);
    guard.write(0, b"x").unwrap();
    segment.witness(LeaderEpoch(9)).unwrap();
    let (token, seal) = (guard.token(), guard.seal());
    let refused = guard.publish(T, token, seal).unwrap_err();
    assert_eq!(refused.error, PublishError::Aborted);
    drop(refused);
    assert_eq!(tick(&segment, T)[0].result, freed(1));
}

/// Proves G7 at the owner.
#[test]
fn an_old_leader_is_refused() {
    let segment = segment(false);
    let (at, _) = put(&segment, 0, 0, b"x");
    segment.witness(LeaderEpoch(9)).unwrap();
    let old = SegmentError::OldEpoch { known: LeaderEpoch(9), asked: EPOCH };
    assert_eq!(segment.witness(EPOCH), Err(old));
    assert_eq!(segment.execute(T, EPOCH, &order(&at, Action::Evict)), Err(old));
    assert_eq!(segment.begin(T, &wanted(locator(1, 0, 1), 1)).unwrap_err(), old);
    assert_eq!(segment.epoch(), LeaderEpoch(9));
    assert!(segment.execute(T, LeaderEpoch(9), &order(&at, Action::Evict)).is_ok());
}

#[test]
fn a_pin_needs_life_extent_and_leave() {
    let segment = segment(false);
    let (at, _) = put(&segment, 0, 0, &value(1000));
    let refuse = |at: &Locator| segment.pin(T, at).unwrap_err();
    let next = Locator { generation: Generation(1), ..at };
    assert!(matches!(refuse(&next), SegmentError::Stale { .. }));
    let other = Locator { extent: Extent::new(64, at.extent.len()).unwrap(), ..at };
    assert!(matches!(refuse(&other), SegmentError::BadExtent { .. }));
    segment.set_serve_until(T);
    assert_eq!(refuse(&at), SegmentError::Fenced);
    assert_eq!(segment.pins(), 0, "a refused pin leaves none behind");
    segment.set_serve_until(Now(T.0 + 1));
    let pins: Vec<_> = (0..3).map(|_| segment.pin(T, &at).unwrap()).collect();
    assert_eq!(segment.pins(), 3);
    drop(pins);
    assert_eq!(segment.pins(), 0);
}

#[test]
fn pins_are_bounded() {
    let segment = segment(false);
    let (at, _) = put(&segment, 0, 0, b"x");
    for _ in 0..PINS_MAX {
        segment.atomic(Slot(0)).pin(Generation(0)).unwrap();
    }
    assert_eq!(segment.pin(T, &at).unwrap_err(), SegmentError::Busy { pins: PINS_MAX });
}

/// Proves R1: `Freed` is said after the bump, and never while somebody reads.
#[test]
fn evict_frees_or_leaves_alone() {
    let segment = segment(false);
    let (at, _) = put(&segment, 0, 0, b"x");
    let pin = segment.pin(T, &at).unwrap();
    assert_eq!(execute(&segment, T, &at, Action::Evict), OrderResult::Pinned);
    assert!(segment.pin(T, &at).is_ok(), "a refused eviction changes nothing");
    drop(pin);
    assert_eq!(execute(&segment, T, &at, Action::Evict), freed(1));
    assert!(segment.pin(T, &at).is_err());
    // Proves G10: an order that comes twice.
    assert_eq!(execute(&segment, T, &at, Action::Evict), freed(1));
    put(&segment, 0, 1, b"y");
    assert_eq!(execute(&segment, T, &at, RETIRE), freed(1), "the next life is left alone");
    assert_eq!(segment.stats().ready, 1);
}

/// Proves M5 at the owner: no new reader at once, freed at pins 0 and after `free_after`.
#[test]
fn retire_waits_for_time_and_readers() {
    let segment = segment(false);
    let (at, _) = put(&segment, 0, 0, b"x");
    let pin = segment.pin(T, &at).unwrap();
    let retire = |ms| Action::Retire { free_after_ms: ms };
    assert_eq!(execute(&segment, T, &at, retire(10)), OrderResult::Waiting);
    assert!(segment.pin(T, &at).is_err());
    assert_eq!(pin.bytes(), b"x");
    let ms = |ms: u64| Now(T.0 + ms * 1_000_000);
    assert_eq!(execute(&segment, T, &at, retire(20)), OrderResult::Waiting);
    assert_eq!(execute(&segment, T, &at, retire(0)), OrderResult::Waiting, "never shortened");
    assert_eq!(tick(&segment, ms(10)), []);
    assert_eq!(tick(&segment, ms(20)), [], "a reader is inside");
    drop(pin);
    assert_eq!(execute(&segment, ms(19), &at, Action::Evict), OrderResult::Waiting);
    let news = tick(&segment, ms(30));
    assert_eq!(news, [segment.notice(Slot(0), Generation(0), freed(1))]);
    assert_eq!(tick(&segment, ms(40)), []);
    assert!(segment.queue.lock().is_empty());
    let (at, _) = put(&segment, 0, 1, b"y");
    assert_eq!(execute(&segment, ms(50), &at, retire(0)), freed(2));
}

/// Proves R7: a timeout alone never frees what a writer may still store into.
#[test]
fn an_aborted_slot_waits_for_its_writer() {
    let segment = segment(false);
    let at = locator(0, 0, 10);
    let mut guard = begin(&segment, at, 10);
    guard.write(0, b"01234").unwrap();
    assert_eq!(execute(&segment, T, &at, Action::Abort), OrderResult::Waiting);
    assert_eq!(execute(&segment, T, &at, Action::Abort), OrderResult::Waiting, "asked again");
    assert!(guard.aborted());
    assert_eq!(guard.write(5, b"56789"), Err(WriteError::Aborted));
    let next = Locator { generation: Generation(1), ..at };
    let refused = segment.begin(T, &wanted(next, 10)).unwrap_err();
    assert!(matches!(refused, SegmentError::Stale { .. }), "the range is in quarantine");
    assert!(segment.execute(T, EPOCH, &order(&next, Action::Abort)).is_err());
    assert_eq!(segment.stats().failed, 1);
    let refused = guard.publish_direct(T, TOKEN, Seal(0)).unwrap_err();
    assert_eq!(refused.error, PublishError::Aborted);
    assert_eq!(tick(&segment, FOREVER), []);
    drop(refused);
    assert_eq!(tick(&segment, T), [segment.notice(Slot(0), Generation(0), freed(1))]);
    drop(segment.begin(T, &wanted(next, 10)).unwrap());
}

#[test]
fn a_writer_that_hangs_up_gives_the_range_back() {
    let segment = segment(false);
    let at = locator(0, 0, 10);
    drop(begin(&segment, at, 10));
    assert_eq!(segment.stats().news, 1);
    assert_eq!(tick(&segment, T), [segment.notice(Slot(0), Generation(0), freed(1))]);
    assert_eq!(execute(&segment, T, &at, Action::Abort), freed(1));
}

#[test]
fn an_abort_before_the_writer_comes_keeps_it_out() {
    let segment = segment(false);
    let at = locator(7, 0, 10);
    assert_eq!(execute(&segment, T, &at, Action::Abort), freed(1));
    assert!(matches!(segment.begin(T, &wanted(at, 10)), Err(SegmentError::Stale { .. })));
    let (page, _) = segment.announce(Slot(7), 1);
    assert_eq!((page[0].generation, &page[0].life), (Generation(1), &None));
    let unknown = locator(7, 5, 10);
    assert!(segment.execute(T, EPOCH, &order(&unknown, Action::Abort)).is_err());
}

#[test]
fn an_abort_after_publishing_retires() {
    let segment = segment(false);
    let (at, _) = put(&segment, 0, 0, b"x");
    let pin = segment.pin(T, &at).unwrap();
    assert_eq!(execute(&segment, T, &at, Action::Abort), OrderResult::Waiting);
    drop(pin);
    assert_eq!(execute(&segment, T, &at, Action::Abort), freed(1));
}

/// Proves G4: after its last generation a slot is not used again.
#[test]
fn a_slot_can_be_used_up() {
    let segment = segment(false);
    let last = Generation(u32::MAX - 1);
    let word = segment.atomic(Slot(0));
    // Walks there by the only road that exists, in one stride: as if it had lived that often.
    let region = segment.table.region();
    let at = Extent::new(4096 + 56, 8).unwrap();
    let raw = region.check(at).unwrap().cast::<AtomicU64>();
    // SAFETY: the control word of slot 0, as an atomic.
    let raw = unsafe { raw.as_ref() };
    raw.store(Word::new(last, ReplicaState::Dead, 0).0, Ordering::Relaxed);
    let (at, _) = put(&segment, 0, last.0, b"x");
    assert_eq!(execute(&segment, T, &at, Action::Evict), freed(u32::MAX));
    assert_eq!(word.load(), Word::new(Generation::MAX, ReplicaState::Dead, 0));
    let refused = segment.begin(T, &wanted(locator(0, u32::MAX, 1), 1)).unwrap_err();
    assert_eq!(refused, SegmentError::UsedUp { slot: Slot(0) });
}

/// Proves M11 at the owner: pages of headers tell everything, in every state.
#[test]
fn announcing_tells_every_slot() {
    let segment = segment(false);
    let (ready, seal) = put(&segment, 0, 0, b"ready");
    let (retiring, _) = put(&segment, 1, 0, b"retiring");
    execute(&segment, T, &retiring, RETIRE);
    let writing = begin(&segment, locator(2, 0, 8), 8);
    let failed = begin(&segment, locator(3, 0, 8), 8);
    execute(&segment, T, failed.locator(), Action::Abort);
    drop(begin(&segment, locator(5, 0, 8), 8));
    let (mut page, next) = segment.announce(Slot(0), 4);
    assert_eq!(next, Some(Slot(4)));
    let (rest, end) = segment.announce(Slot(4), 100);
    assert_eq!(end, None);
    page.extend(rest);
    let object = page[0].life.as_ref().unwrap().object.clone().unwrap();
    assert_eq!((object.label.key.as_bytes(), object.len), (b"a key".as_slice(), 5));
    assert_eq!((object.seal, object.object.sequence), (seal, 40));
    assert_eq!(page[0].life.as_ref().unwrap().extent, ready.extent);
    for (slot, guarded) in [(1, true), (2, true), (3, true), (4, false), (5, false)] {
        let life = page[slot].life.as_ref();
        assert_eq!(life.is_some(), guarded, "slot {slot}");
        assert!(life.is_none_or(|life| life.object.is_none()), "slot {slot}");
    }
    let generations: Vec<u32> = page.iter().map(|told| told.generation.0).collect();
    // The slot in quarantine is announced under the life that failed.
    assert_eq!(generations, [0, 0, 0, 0, 0, 1]);
    let stats = segment.stats();
    assert_eq!((stats.ready, stats.retiring, stats.writing, stats.failed), (1, 1, 1, 1));
    assert_eq!(stats.high_water, 6);
    drop((writing, failed));
}

#[test]
fn senseless_segments_are_refused() {
    let good = *segment(false).spec();
    for bad in [
        SegmentSpec { bytes: 0, ..good },
        SegmentSpec { bytes: 100, ..good },
        SegmentSpec { slots: 0, ..good },
    ] {
        assert!(Segment::create(bad).is_err());
    }
    assert!(segment(false).fds().is_none());
}

fn map(segment: &Segment) -> Mapping {
    let (headers, payload) = segment.fds().unwrap();
    Mapping::new(headers, payload, None, segment.spec().identity()).unwrap()
}

#[test]
fn a_mapping_reads_what_the_owner_published() {
    let segment = segment(true);
    let mapping = map(&segment);
    let value = value((2 << 20) + 3);
    let (at, seal) = put(&segment, 0, 0, &value);
    let mut copy = vec![0; value.len()];
    mapping.read_into(&at, seal, &mut copy, || T).unwrap();
    assert_eq!(copy, value);
    let mut part = vec![0; 999];
    let sealed = (value.len() as u64, seal);
    mapping.read_part_into(&at, sealed, (1 << 20) - 5, &mut part, || T).unwrap();
    assert_eq!(part, value[(1 << 20) - 5..][..999]);
    let pin = segment.pin(T, &at).unwrap();
    // SAFETY: the owner's pin is held by `pin`.
    let view = unsafe { mapping.pinned_bytes(&at, value.len() as u64) }.unwrap();
    assert_eq!(view, value);
    drop(pin);

    let mut read = |at: &Locator, seal, now| mapping.read_into(at, seal, &mut copy, || now);
    assert_eq!(read(&at, Seal(1), T), Err(ReadError::Corrupt));
    assert_eq!(read(&at, seal, FOREVER), Err(ReadError::Fenced));
    let other = |change: fn(&mut Locator)| {
        let mut at = at;
        change(&mut at);
        at
    };
    for stale in [
        other(|at| at.generation.0 = 1),
        other(|at| at.incarnation.0 = 1),
        other(|at| at.segment.0 = 1),
        other(|at| at.slot.0 = 1),
    ] {
        assert_eq!(read(&stale, seal, T), Err(ReadError::Stale), "{stale:?}");
    }
    for outside in [other(|at| at.slot.0 = 2000), locator(0, 0, 5)] {
        assert_eq!(read(&outside, seal, T), Err(ReadError::OutOfBounds), "{outside:?}");
    }
    execute(&segment, T, &at, RETIRE);
    assert_eq!(read(&at, seal, T), Err(ReadError::Stale));
}

/// Proves C4 and M8 for mappings that outlive their owner.
#[test]
fn a_mapping_is_fenced_when_its_owner_goes() {
    let segment = segment(true);
    let mapping = map(&segment);
    let (at, seal) = put(&segment, 0, 0, b"x");
    drop(segment);
    assert_eq!(mapping.read_into(&at, seal, &mut [0], || T), Err(ReadError::Fenced));
}

/// A guard ends what its dead owner cannot: the leave to serve has not run out, and nobody reads.
#[test]
fn a_mapping_is_fenced_when_its_owner_is_known_to_be_dead() {
    let segment = segment(true);
    let life = Life::create().unwrap();
    let guard = Life::guard(life.fd().unwrap()).unwrap();
    let (headers, payload) = segment.fds().unwrap();
    let identity = segment.spec().identity();
    let mapping = Mapping::new(headers, payload, life.fd(), identity).unwrap();
    let (at, seal) = put(&segment, 0, 0, b"x");
    assert_eq!(mapping.read_into(&at, seal, &mut [0], || T), Ok(()));
    assert!(mapping.serve_until() > T);
    guard.end();
    assert_eq!(mapping.read_into(&at, seal, &mut [0], || T), Err(ReadError::Fenced));
    assert_eq!(mapping.serve_until(), Now(0));
}

fn flip(segment: &Segment, at: u64) {
    let payload = segment.writable_fd().unwrap();
    let mut byte = [0];
    rustix::io::pread(payload, &mut byte, at).unwrap();
    rustix::io::pwrite(payload, &[byte[0] ^ 1], at).unwrap();
}

/// A bad value is retired by its owner's own sum, told until a master orders its end, and freed then.
#[test]
fn a_bad_value_is_told_until_somebody_orders_its_end() {
    let ms = |ms: u64| T.plus(std::time::Duration::from_millis(ms));
    let segment = segment(true);
    let bytes = value((1 << 20) + 77);
    let (at, seal) = put(&segment, 0, 0, &bytes);
    assert_eq!(segment.verify(T, &at, seal), Ok(true));
    assert_eq!(segment.stats().bad, 0);
    let pin = segment.pin(T, &at).unwrap();
    // In the value first, then in the sums behind it, which only readers of parts need.
    for offset in [at.extent.offset() + 5, at.extent.offset() + table(bytes.len() as u64).0] {
        flip(&segment, offset);
        assert_eq!(pin.verify(), Err(ReadError::Corrupt));
        flip(&segment, offset);
        assert_eq!(pin.verify(), Ok(()));
    }
    flip(&segment, at.extent.offset() + 5);
    assert_eq!(segment.verify(T, &at, seal), Ok(false));
    assert_eq!(segment.stats().bad, 1);
    assert!(segment.pin(T, &at).is_err() && segment.verify(T, &at, seal).is_err());
    let mut copy = vec![0; bytes.len()];
    let read = segment.one_sided().read_into(&at, seal, &mut copy, || T);
    assert_eq!(read, Err(ReadError::Stale));
    let told = |now| tick(&segment, now).iter().map(|notice| notice.result).collect::<Vec<_>>();
    assert_eq!(told(T), [OrderResult::Bad]);
    assert_eq!(told(T), []);
    assert_eq!(told(ms(500)), [OrderResult::Bad], "perhaps nobody has heard it");
    let told_as = segment.announce(Slot(0), 1).0;
    assert!(told_as[0].life.as_ref().unwrap().object.is_none(), "never announced as a value");
    assert_eq!(
        execute(&segment, ms(600), &at, Action::Retire { free_after_ms: 10 }),
        OrderResult::Waiting
    );
    assert_eq!(told(ms(620)), [], "a reader is inside");
    drop(pin);
    assert_eq!(told(ms(640)), [freed(1)]);
    assert_eq!(told(ms(2000)), []);
}

/// The steps of an unpinned read, with a reuse of the range between two lines.
#[test]
fn a_torn_read_is_judged_stale() {
    let segment = segment(false);
    let (at, seal) = put(&segment, 0, 0, &[1; 128]);
    let view = segment.one_sided();
    let before = view.word(at.slot).unwrap();
    let mut copy = [0; 128];
    view.copy(at.extent.part(0, 64).unwrap(), &mut copy[..64]).unwrap();
    execute(&segment, T, &at, Action::Evict);
    put(&segment, 0, 1, &[2; 128]);
    view.copy(at.extent.part(64, 64).unwrap(), &mut copy[64..]).unwrap();
    let after = view.word_again(at.slot, before).unwrap();
    let serve_until = view.serve_until();
    let sealed = seal_of(&copy) == seal;
    assert!(!sealed && copy[0] == 1 && copy[127] == 2, "it is torn");
    let reading = read::Reading { before, after, serve_until, now: T, sealed };
    assert_eq!(read::judge(at.generation, &reading), Err(ReadError::Stale));
    let rotten = read::Reading { after: before, ..reading };
    assert_eq!(read::judge(at.generation, &rotten), Err(ReadError::Corrupt));
}

/// Proves R3: whatever happens during the copy is noticed after it, even if the bytes add up.
#[test]
fn a_life_that_ends_during_the_copy_is_stale() {
    let segment = segment(false);
    for action in [Action::Evict, RETIRE] {
        let generation = segment.load(Slot(0)).generation().0;
        let (at, _) = put(&segment, 0, generation, b"x");
        let view = segment.one_sided();
        assert_eq!(view.read(&at, || T, || true), Ok(()));
        let ended = view.read(
            &at,
            || T,
            || {
                execute(&segment, T, &at, action);
                true
            },
        );
        assert_eq!(ended, Err(ReadError::Stale), "{action:?}");
    }
    // Proves R10: the owner's leave is tested after the copy, too.
    let (at, _) = put(&segment, 1, 0, b"x");
    let fenced = segment.one_sided().read(
        &at,
        || T,
        || {
            segment.set_serve_until(Now(0));
            true
        },
    );
    assert_eq!(fenced, Err(ReadError::Fenced));
}

/// The bytes of a range, whoever they belong to.
fn raw(segment: &Segment, extent: Extent) -> Vec<u8> {
    let start = segment.payload.region().unwrap().check(extent).unwrap().as_ptr();
    // SAFETY: inside of the payload, and nobody writes in these tests.
    unsafe { std::slice::from_raw_parts(start, extent.len() as usize) }.to_vec()
}

/// However a life ends, nothing of it is left when the range is said to be free.
#[test]
fn security_a_freed_range_is_zeroed_before_it_is_said_to_be_free() {
    let spec = *segment(false).spec();
    for wipes in [true, false] {
        let segment = Segment::create_claimed(spec, wipes, Claim::new(spec.bytes)).unwrap();
        segment.set_serve_until(FOREVER);
        let value = [0xab; 5000];
        let clean = |slot: u32, how: &str| {
            let found = raw(&segment, locator(slot, 0, 5000).extent);
            assert_eq!(found.iter().all(|byte| *byte == 0), wipes, "{how}");
        };
        let put = |slot: u32| {
            let mut guard = begin(&segment, locator(slot, 0, 5000), 5000);
            guard.write(0, &value).unwrap();
            guard
        };
        let order = |slot: u32, action| {
            let at = locator(slot, 0, 5000);
            let order = Order {
                segment: SEGMENT,
                incarnation: INCARNATION,
                slot: at.slot,
                generation: at.generation,
                action,
            };
            segment.execute(T, EPOCH, &order).unwrap().result
        };
        let freed = OrderResult::Freed { next: Generation(1) };

        put(0).publish(T, TOKEN, seal_of(&value)).unwrap();
        assert_eq!(order(0, Action::Evict), freed);
        clean(0, "evicted");

        put(2).publish(T, TOKEN, seal_of(&value)).unwrap();
        assert_eq!(order(2, Action::Retire { free_after_ms: 5 }), OrderResult::Waiting);
        assert_eq!(raw(&segment, locator(2, 0, 5000).extent)[..5000], value, "a lease holds it");
        let mut news = Vec::new();
        segment.tick(T.plus(std::time::Duration::from_millis(9)), &mut news);
        assert_eq!(news[0].result, freed);
        clean(2, "retired");

        drop(put(4));
        clean(4, "given up");
        let guard = put(6);
        assert_eq!(order(6, Action::Abort), OrderResult::Waiting);
        drop(guard);
        clean(6, "aborted");
    }
}
