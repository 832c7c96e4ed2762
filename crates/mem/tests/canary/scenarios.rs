//! The scenarios, and the test that plays each with and without its canary.
#![expect(clippy::unwrap_used, reason = "a test may fail")]

use mooncrate_core::canary::{self, Canary};
use mooncrate_core::plan::{Action, Order, OrderResult};
use mooncrate_core::seal::extent_bytes;
use mooncrate_core::{
    Extent, Generation, Incarnation, LeaderEpoch, Locator, Now, ObjectId, PutToken, Seal,
    SegmentId, Slot,
};
use mooncrate_mem::read::{Reading, judge};
use mooncrate_mem::sums::seal_of;
use mooncrate_mem::{BeginWrite, LabelHash, Segment, SegmentSpec, WriteGuard};
use std::sync::Arc;

const T: Now = Now(100);
const TOKEN: PutToken = PutToken(1);
const LEN: u64 = 128;

fn segment() -> Arc<Segment> {
    let (segment, incarnation) = (SegmentId(1), Incarnation(1));
    let spec =
        SegmentSpec { segment, incarnation, bytes: 1024, slots: 2, shared: false, huge: false };
    let segment = Segment::create(spec).unwrap();
    segment.set_serve_until(Now(u64::MAX));
    segment
}

/// All objects of these scenarios share one range.
fn locator(slot: u32, generation: u32) -> Locator {
    Locator {
        segment: SegmentId(1),
        incarnation: Incarnation(1),
        slot: Slot(slot),
        generation: Generation(generation),
        extent: Extent::new(0, extent_bytes(LEN)).unwrap(),
        grant: None,
    }
}

fn begin(segment: &Arc<Segment>, locator: Locator, epoch: u64) -> Option<WriteGuard> {
    let begin = BeginWrite {
        locator,
        token: TOKEN,
        object: ObjectId::default(),
        epoch: LeaderEpoch(epoch),
        len: LEN,
        label: b"\0\0\0\0\0label",
        hash: LabelHash::default(),
    };
    segment.begin(T, &begin).ok()
}

fn put(segment: &Arc<Segment>, locator: Locator, byte: u8) -> Seal {
    let mut guard = begin(segment, locator, 1).unwrap();
    guard.write(0, &[byte; LEN as usize]).unwrap();
    let seal = guard.seal();
    guard.publish(T, TOKEN, seal).unwrap();
    seal
}

fn evict(segment: &Segment, at: Locator) -> OrderResult {
    let Locator { segment: id, incarnation, slot, generation, .. } = at;
    let order = Order { segment: id, incarnation, slot, generation, action: Action::Evict };
    segment.execute(T, LeaderEpoch(1), &order).unwrap().result
}

/// 1: an old locator pins the next life.
fn old_locator_pins() -> bool {
    let segment = segment();
    put(&segment, locator(0, 0), 1);
    evict(&segment, locator(0, 0));
    put(&segment, locator(0, 1), 2);
    segment.pin(T, &locator(0, 0)).is_ok()
}

/// 2: after "freed", the old locator still pins while another slot writes the range.
fn freed_range_is_readable() -> bool {
    let segment = segment();
    put(&segment, locator(0, 0), 1);
    assert!(matches!(evict(&segment, locator(0, 0)), OrderResult::Freed { .. }));
    put(&segment, locator(1, 0), 2);
    segment.pin(T, &locator(0, 0)).is_ok_and(|pin| pin.bytes()[0] == 2)
}

/// 4: half a value is published.
fn half_a_value_is_readable() -> bool {
    let segment = segment();
    let mut guard = begin(&segment, locator(0, 0), 1).unwrap();
    guard.write(0, &[1; 64]).unwrap();
    if canary::on(Canary::EarlyPublish) {
        guard.publish_early(T, Seal(0)).unwrap();
        let early = segment.pin(T, &locator(0, 0)).is_ok();
        guard.write(64, &[1; 64]).unwrap();
        guard.publish(T, TOKEN, Seal(0)).unwrap();
        return early;
    }
    guard.publish(T, TOKEN, seal_of(&[1; 64])).is_ok()
}

/// 8: look, then count; the slot is reused between.
fn a_reader_comes_into_the_next_life() -> bool {
    let segment = segment();
    put(&segment, locator(0, 0), 1);
    assert!(segment.one_sided().word(Slot(0)).unwrap().readable(Generation(0)));
    evict(&segment, locator(0, 0));
    put(&segment, locator(0, 1), 2);
    let pin = match canary::on(Canary::SeparateReaderCount) {
        true => segment.pin_without_look(&locator(0, 0)),
        false => segment.pin(T, &locator(0, 0)),
    };
    pin.is_ok_and(|pin| pin.bytes()[0] == 2)
}

/// 15 and 18: what a reader without a pin accepts, after the range was reused or the time was over.
fn accepts(reuse: bool, now: Now) -> bool {
    let segment = segment();
    segment.set_serve_until(Now(T.0 + 1));
    put(&segment, locator(0, 0), 1);
    let view = segment.one_sided();
    let before = view.word(Slot(0)).unwrap();
    if reuse {
        evict(&segment, locator(0, 0));
        put(&segment, locator(0, 1), 2);
    }
    let after = view.word_again(Slot(0), before).unwrap();
    let serve_until = view.serve_until();
    // Word and time alone: the seal is another line of defence.
    judge(Generation(0), &Reading { before, after, serve_until, now, sealed: true }).is_ok()
}

/// 17: a plan of a replaced leader is carried out.
fn old_leader_is_obeyed() -> bool {
    let segment = segment();
    segment.witness(LeaderEpoch(2)).unwrap();
    begin(&segment, locator(0, 0), 1).is_some()
}

/// One test, because the choice is one per process.
#[test]
fn each_canary_shows_its_bug() {
    let scenarios: [(Canary, fn() -> bool); 7] = [
        (Canary::NoGenerationCheck, old_locator_pins),
        (Canary::FreeBeforeBump, freed_range_is_readable),
        (Canary::EarlyPublish, half_a_value_is_readable),
        (Canary::SeparateReaderCount, a_reader_comes_into_the_next_life),
        (Canary::MissingFence, || accepts(true, T)),
        (Canary::OldEpochAccepted, old_leader_is_obeyed),
        (Canary::NoServeUntil, || accepts(false, Now(T.0 + 1))),
    ];
    for (canary, bug) in scenarios {
        canary::choose(None);
        assert!(!bug(), "{canary:?} is off, and the bug is there");
        canary::choose(Some(canary));
        assert!(bug(), "{canary:?} is on, and nothing happens");
    }
}
