#![cfg(not(loom))]
//! Segments whose bytes lie in memory of a device: what was put is read back by every way; a copy that
//! fails or tears is never served; rooms come back; no lock is held over a copy.
#![expect(clippy::unwrap_used, reason = "a test may fail")]

#[path = "far/double.rs"]
mod double;

use double::{Device, Memory};
use mooncrate_core::plan::{Action, Notice, Order, OrderResult};
use mooncrate_core::seal::{extent_bytes, table};
use mooncrate_core::{
    Extent, Generation, Incarnation, LeaderEpoch, Locator, Now, ObjectId, PutToken, Seal,
    SegmentId, Slot,
};
use mooncrate_mem::sums::{copy_value, seal_of};
use mooncrate_mem::{
    BeginWrite, LabelHash, PublishError, ReadError, Segment, SegmentError, SegmentSpec, WriteError,
    WriteGuard,
};
use std::sync::Arc;
use std::thread;

const MIB: usize = 1 << 20;
const T: Now = Now(1_000_000_000);
const TOKEN: PutToken = PutToken(77);
const EPOCH: LeaderEpoch = LeaderEpoch(3);
/// No multiple of a slice, nor of anything else.
const ROOM: usize = 2 * MIB + 777;
const BYTES: usize = 32 * MIB;

fn segment(rooms: usize, wipes: bool) -> (Arc<Device>, Arc<Segment>) {
    let device = Device::new(BYTES, rooms, ROOM);
    let spec = SegmentSpec {
        segment: SegmentId(5),
        incarnation: Incarnation(2),
        bytes: BYTES as u64,
        slots: 100,
        shared: true,
        huge: true,
    };
    let far = Arc::new(Memory(Arc::clone(&device)));
    let segment = Segment::create_far(spec, far, wipes).unwrap();
    segment.set_serve_until(Now(u64::MAX));
    (device, segment)
}

fn locator(slot: u32, generation: u32, len: usize) -> Locator {
    Locator {
        segment: SegmentId(5),
        incarnation: Incarnation(2),
        slot: Slot(slot),
        generation: Generation(generation),
        extent: Extent::new(u64::from(slot) * 8 * MIB as u64, extent_bytes(len as u64)).unwrap(),
        stripe: 0,
        grant: None,
    }
}

fn begin(segment: &Arc<Segment>, at: Locator, len: usize) -> WriteGuard {
    let wanted = BeginWrite {
        locator: at,
        token: TOKEN,
        object: ObjectId { epoch: EPOCH, sequence: 40 },
        epoch: EPOCH,
        len: len as u64,
        label: b"\0\0\0\0\0a key",
        hash: LabelHash::of(b"\0\0\0\0\0a key"),
    };
    segment.begin(T, &wanted).unwrap()
}

fn value(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i ^ (i >> 8) ^ (i >> 16)) as u8).collect()
}

fn put(segment: &Arc<Segment>, at: Locator, value: &[u8]) -> Seal {
    let mut guard = begin(segment, at, value.len());
    guard.write(0, value).unwrap();
    let seal = guard.seal();
    guard.publish(T, TOKEN, seal).unwrap();
    seal
}

fn execute(segment: &Segment, at: &Locator, action: Action) -> OrderResult {
    let Locator { segment: id, incarnation, slot, generation, .. } = *at;
    let order = Order { segment: id, incarnation, slot, generation, action };
    segment.execute(T, EPOCH, &order).unwrap().result
}

fn tick(segment: &Segment) -> Vec<Notice> {
    let mut news = Vec::new();
    segment.tick(T, &mut news);
    news
}

/// Reads a value by every way there is, and compares.
fn check(segment: &Arc<Segment>, at: &Locator, seal: Seal, value: &[u8]) {
    let len = value.len();
    let pin = segment.pin(T, at).unwrap();
    assert_eq!((pin.seal(), pin.value_len()), (seal, len as u64));
    pin.verify().unwrap();
    let mut copy = vec![1; len];
    pin.read_into(seal, &mut copy).unwrap();
    assert!(copy == value, "{len} bytes");
    for (start, end) in [(0, len), (len / 3, len / 2), (len / 2, len), (len.saturating_sub(9), len)]
    {
        let mut part = vec![1; end - start];
        pin.read_part_into(seal, start as u64, &mut part).unwrap();
        assert!(part == value[start..end], "{start}..{end} of {len}");
    }
    assert_eq!(pin.read_part_into(seal, len as u64, &mut [0]), Err(ReadError::OutOfBounds));
    // What goes over a socket: the extent as a writer into shared memory would have left it.
    let mut extent = vec![0; extent_bytes(len as u64) as usize];
    // SAFETY: the vector has the bytes of the extent.
    unsafe { copy_value(extent.as_mut_ptr(), value) };
    let mut room = pin.room().unwrap().unwrap();
    let mut start = 0;
    while start < pin.sealed_len() as usize {
        let count = ROOM.min(pin.sealed_len() as usize - start);
        pin.load(&mut *room, start as u64, count).unwrap();
        assert!(room.bytes()[..count] == extent[start..][..count], "{start} of {len}");
        start += count;
    }
    assert_eq!(pin.load(&mut *room, start as u64, 1), Err(ReadError::OutOfBounds));
    assert!(pin.bytes().is_empty() && pin.sealed_bytes().is_empty(), "nothing lies here");
    let read = segment.one_sided().read_into(at, seal, &mut copy, || T);
    assert_eq!(read, Err(ReadError::OutOfBounds), "nobody reads it without its owner");
}

fn lengths() -> [usize; 9] {
    [0, 1, 4096, MIB, MIB + 1, ROOM, ROOM + 5, 3 * MIB, 5 * MIB + 12_345]
}

#[test]
fn what_was_put_is_read_back() {
    let (device, segment) = segment(2, false);
    assert!(segment.fds().is_none() && segment.writable_fd().is_none());
    assert!(segment.payload_at().is_none() && !segment.is_kept() && !segment.is_in_place());
    for (generation, len) in (0..).zip(lengths()) {
        let (at, value) = (locator(1, generation, len), value(len));
        let seal = put(&segment, at, &value);
        assert_eq!(seal, seal_of(&value));
        assert_eq!(device.free_rooms(), 2, "an open put holds no room");
        check(&segment, &at, seal, &value);
        assert_eq!(device.free_rooms(), 2);
        let freed = OrderResult::Freed { next: Generation(generation + 1) };
        assert_eq!(execute(&segment, &at, Action::Evict), freed);
    }
}

#[test]
fn a_receiver_fills_rooms_and_parts_come_in_any_order() {
    let (device, segment) = segment(1, false);
    let value = value(5 * MIB + 3);
    let at = locator(0, 0, value.len());
    let mut guard = begin(&segment, at, value.len());
    while guard.seen() < guard.value_len() {
        let seen = guard.seen() as usize;
        let buffer = guard.buffer(300_007).unwrap();
        let len = buffer.len();
        buffer.copy_from_slice(&value[seen..][..len]);
        guard.filled(len).unwrap();
    }
    assert!(guard.buffer(9).unwrap().is_empty());
    assert!(matches!(guard.filled(1), Err(WriteError::TooLong { .. })));
    let seal = guard.seal();
    guard.publish(T, TOKEN, seal).unwrap();
    check(&segment, &at, seal, &value);

    let at = locator(1, 0, value.len());
    let mut guard = begin(&segment, at, value.len());
    let cuts = [3 * MIB, 0, value.len() - 10, 100];
    for (cut, end) in cuts.into_iter().zip([value.len() - 10, 100, value.len(), 3 * MIB]) {
        guard.write_part(cut as u64, &value[cut..end]).unwrap();
        assert_eq!(device.free_rooms(), 1, "a put that waits for its next part holds no room");
    }
    guard.write_part(5, &[]).unwrap();
    assert!(matches!(guard.place(value.len() as u64, 1), Err(WriteError::TooLong { .. })));
    assert_eq!(guard.room().map(|_| ()), Err(WriteError::Elsewhere));
    // Bytes that are missing, or not those that were sealed, are found where they lie.
    device.poke(at.extent.offset() as usize + 4 * MIB, &[1, 2, 3]);
    let refused = guard.publish_placed(T, TOKEN, seal).unwrap_err();
    assert!(matches!(refused.error, PublishError::Corrupt { .. }));
    let mut guard = refused.guard;
    guard.write_part(4 * MIB as u64, &value[4 * MIB..][..3]).unwrap();
    guard.publish_placed(T, TOKEN, seal).unwrap();
    check(&segment, &at, seal, &value);
    assert_eq!(device.free_rooms(), 1);
}

/// A GPU process of the same machine stored value and table by itself.
#[test]
fn what_a_peer_stored_is_published_unseen_and_verified_by_readers() {
    let (device, segment) = segment(1, false);
    let value = value(2 * MIB + 5);
    let at = locator(0, 0, value.len());
    let guard = begin(&segment, at, value.len());
    let mut extent = vec![0; at.extent.len() as usize];
    // SAFETY: the vector has the bytes of the extent.
    let seal = unsafe { copy_value(extent.as_mut_ptr(), &value) };
    device.poke(at.extent.offset() as usize, &extent);
    let copies = device.copies();
    guard.publish_direct(T, TOKEN, seal).unwrap();
    assert_eq!((device.copies(), device.free_rooms()), (copies, 1));
    check(&segment, &at, seal, &value);
    let share = segment.far().unwrap().share().unwrap().unwrap();
    assert_eq!((share.memory_bytes, share.device), (BYTES as u64, [7; 16]));

    // One that lies is found out by every reader, and by the owner when a reader doubts.
    device.poke(at.extent.offset() as usize + MIB, b"x");
    let pin = segment.pin(T, &at).unwrap();
    let mut copy = value.clone();
    assert_eq!(pin.read_into(seal, &mut copy), Err(ReadError::Corrupt));
    assert_eq!(pin.read_part_into(seal, MIB as u64, &mut [0; 3]), Err(ReadError::Corrupt));
    pin.read_part_into(seal, 0, &mut [0; 3]).unwrap();
    device.poke((at.extent.offset() + table(value.len() as u64).0) as usize, &[0; 8]);
    assert_eq!(pin.read_part_into(seal, 0, &mut [0; 3]), Err(ReadError::Corrupt));
    drop(pin);
    assert_eq!(segment.verify(T, &at, seal), Ok(false));
    assert!(segment.pin(T, &at).is_err(), "it is retired");
}

/// Whichever copy of a put fails, nothing is published, the range comes back and so does the room.
#[test]
fn a_store_that_fails_is_never_served() {
    let value = value(5 * MIB);
    // Three rooms of value, then the table.
    for failing in 1..=4 {
        let (device, segment) = segment(1, false);
        let at = locator(0, 0, value.len());
        let mut guard = begin(&segment, at, value.len());
        device.fail_at(failing);
        assert_eq!(guard.write(0, &value), Err(WriteError::Device), "copy {failing}");
        assert_eq!(device.free_rooms(), 1);
        assert_eq!(guard.buffer(1).map(|_| ()).err(), (failing < 3).then_some(WriteError::Device));
        assert_eq!(guard.write_part(0, &value[..9]), Err(WriteError::Device));
        let mut refused = guard.publish(T, TOKEN, seal_of(&value)).unwrap_err();
        assert_eq!(refused.error, PublishError::Device);
        refused = refused.guard.publish_placed(T, TOKEN, seal_of(&value)).unwrap_err();
        assert_eq!(refused.error, PublishError::Device);
        assert!(segment.pin(T, &at).is_err());
        drop(refused);
        let freed = OrderResult::Freed { next: Generation(1) };
        assert_eq!(tick(&segment)[0].result, freed);
        assert_eq!(segment.stats().failed, 0);
        let again = locator(0, 1, value.len());
        let seal = put(&segment, again, &value);
        check(&segment, &again, seal, &value);
    }
}

#[test]
fn a_load_that_fails_is_an_error_and_condemns_nothing() {
    let (device, segment) = segment(1, false);
    let value = value(3 * MIB);
    let at = locator(0, 0, value.len());
    let seal = put(&segment, at, &value);
    let pin = segment.pin(T, &at).unwrap();
    let mut copy = vec![0; value.len()];
    for failing in 1..=2 {
        device.fail_at(failing);
        assert_eq!(pin.read_into(seal, &mut copy), Err(ReadError::Device));
        device.fail_at(failing);
        let part = pin.read_part_into(seal, MIB as u64, &mut copy[..9]);
        assert_eq!(part, Err(ReadError::Device));
        device.fail_at(failing);
        assert_eq!(segment.verify(T, &at, seal), Err(SegmentError::Device));
        assert_eq!(device.free_rooms(), 1);
    }
    assert_eq!(segment.verify(T, &at, seal), Ok(true));
    check(&segment, &at, seal, &value);
}

#[test]
fn without_a_room_everybody_is_told_to_come_again() {
    let (device, segment) = segment(1, false);
    let at = locator(0, 0, 9);
    let seal = put(&segment, at, &value(9));
    let pin = segment.pin(T, &at).unwrap();
    let other = locator(1, 0, 9);
    let mut guard = begin(&segment, other, 9);
    let held = pin.room().unwrap().unwrap();
    assert_eq!(device.free_rooms(), 0);
    assert_eq!(pin.room().map(|_| ()), Err(ReadError::Busy));
    assert_eq!(pin.read_into(seal, &mut [0; 9]), Err(ReadError::Busy));
    assert_eq!(pin.read_part_into(seal, 1, &mut [0; 3]), Err(ReadError::Busy));
    assert_eq!(segment.verify(T, &at, seal), Err(SegmentError::NoRoom));
    assert_eq!(guard.write(0, &value(9)), Err(WriteError::Busy));
    assert_eq!(guard.buffer(9).map(|_| ()), Err(WriteError::Busy));
    assert_eq!(guard.write_part(0, &value(9)), Err(WriteError::Busy));
    let refused = guard.publish_placed(T, TOKEN, seal).unwrap_err();
    assert_eq!(refused.error, PublishError::Busy);
    drop(held);
    let mut guard = refused.guard;
    guard.write_part(0, &value(9)).unwrap();
    guard.publish_placed(T, TOKEN, seal).unwrap();
    check(&segment, &at, seal, &value(9));
    check(&segment, &other, seal, &value(9));
}

/// A tenant's bytes are gone before anybody hears that their range is free.
#[test]
fn ranges_are_zeroed_between_lives() {
    let (device, segment) = segment(1, true);
    let len = MIB + 100;
    let zeros = |at: &Locator| {
        let range = device.peek(at.extent.offset() as usize, at.extent.len() as usize);
        range.iter().all(|byte| *byte == 0)
    };
    let freed = |next| OrderResult::Freed { next: Generation(next) };
    let at = locator(0, 0, len);
    put(&segment, at, &value(len));
    let pin = segment.pin(T, &at).unwrap();
    assert_eq!(execute(&segment, &at, Action::Evict), OrderResult::Pinned);
    drop(pin);
    assert_eq!(execute(&segment, &at, Action::Evict), OrderResult::Waiting);
    assert!(segment.pin(T, &at).is_err() && !zeros(&at));
    device.fail_at(1);
    assert!(tick(&segment).is_empty(), "a range that is not clean is not free");
    let mut news = Vec::new();
    segment.tick(T.plus(std::time::Duration::from_secs(2)), &mut news);
    assert_eq!(news[0].result, freed(1));
    assert!(zeros(&at));

    // A put that was given up.
    let at = locator(0, 1, len);
    let mut guard = begin(&segment, at, len);
    guard.write(0, &value(len)).unwrap();
    drop(guard);
    assert!(zeros(&at));
    assert_eq!(tick(&segment)[0].result, freed(2));

    // Retired while it is read: zeroed when the reader has left.
    let at = locator(0, 2, len);
    put(&segment, at, &value(len));
    let pin = segment.pin(T, &at).unwrap();
    let retire = Action::Retire { free_after_ms: 0 };
    assert_eq!(execute(&segment, &at, retire), OrderResult::Waiting);
    assert!(tick(&segment).is_empty() && !zeros(&at));
    drop(pin);
    news.clear();
    segment.tick(T.plus(std::time::Duration::from_secs(1)), &mut news);
    assert_eq!((news[0].result, zeros(&at)), (freed(3), true));
}

/// While copies stand still, the slots they are for can be asked and ordered: no lock is held over them.
#[test]
fn no_lock_is_held_over_a_copy() {
    let (device, segment) = segment(4, true);
    let value = value(9);
    // Reading: the life under the reader is ended.
    let at = locator(0, 0, 9);
    let seal = put(&segment, at, &value);
    device.hold(true);
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut copy = [0; 9];
            let pin = segment.pin(T, &at).unwrap();
            pin.read_into(seal, &mut copy).map(|()| copy)
        });
        device.wait_until_held();
        assert_eq!(segment.announce(Slot(0), 10).0.len(), 1);
        let retire = Action::Retire { free_after_ms: 0 };
        assert_eq!(execute(&segment, &at, retire), OrderResult::Waiting);
        assert!(tick(&segment).is_empty(), "pinned");
        device.hold(false);
        assert_eq!(reader.join().unwrap().unwrap(), value[..]);
    });
    // Writing: the put is aborted while its bytes are on their way, and cannot be published.
    let at = locator(1, 0, 9);
    let mut guard = begin(&segment, at, 9);
    device.hold(true);
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            guard.write(0, &value).unwrap();
            guard.publish(T, TOKEN, seal).unwrap_err()
        });
        device.wait_until_held();
        assert_eq!(execute(&segment, &at, Action::Abort), OrderResult::Waiting);
        device.hold(false);
        assert_eq!(writer.join().unwrap().error, PublishError::Aborted);
    });
    // Zeroing: the slot is announced and ordered again meanwhile.
    let at = locator(2, 0, 9);
    put(&segment, at, &value);
    assert_eq!(execute(&segment, &at, Action::Evict), OrderResult::Waiting);
    device.hold(true);
    thread::scope(|scope| {
        let wiper = scope.spawn(|| {
            let mut news = Vec::new();
            segment.tick(T.plus(std::time::Duration::from_secs(1)), &mut news);
            news
        });
        device.wait_until_held();
        assert_eq!(segment.announce(Slot(0), 10).0.len(), 3);
        assert_eq!(execute(&segment, &at, Action::Evict), OrderResult::Waiting);
        device.hold(false);
        let news = wiper.join().unwrap();
        assert!(news.iter().any(|notice| notice.slot == Slot(2)), "{news:?}");
    });
    assert_eq!(device.free_rooms(), 4);
}
