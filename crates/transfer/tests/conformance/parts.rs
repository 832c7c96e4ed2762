//! Puts in parts, in any order: what was sealed is published, nothing else, on every path.

use crate::rig::{EPOCH, HANG_UP, MOUNT, Rig, SLOTS, Value, soon};
use crate::suite::expect;
use mooncrate_core::plan::{Action, Locator, OrderResult};
use mooncrate_core::{Extent, Generation, Incarnation, LeaderEpoch, SegmentId, Slot};
use mooncrate_mem::clock::boottime;
use mooncrate_transfer::{DataServerConfig, OpenPut, Path, Stream, TransferError, Transport};
use mooncrate_wire::message::{BeginWrite, DataReply, DataRequest, Verify};
use mooncrate_wire::{DataError, PoolConfig};
use std::time::Duration;

fn begin(value: &Value) -> BeginWrite<'_> {
    let write = value.write(&[]);
    BeginWrite {
        locator: write.locator,
        token: write.token,
        object: write.object,
        epoch: write.epoch,
        len: value.bytes.len() as u64,
        label: write.label,
    }
}

fn open(rig: &Rig, value: &Value) -> Result<Box<dyn OpenPut>, TransferError> {
    rig.transport.open(&begin(value), soon())
}

/// Writes `from..to` of a value.
fn write(put: &mut dyn OpenPut, value: &Value, from: usize, to: usize) {
    put.write(from as u64, &value.bytes[from..to], soon()).unwrap();
}

pub(crate) fn parts_in_any_order_are_one_value(rig: &mut Rig) {
    for len in [0, 1, 5000, 70_001, (1 << 20) + 5, 3 << 20] {
        let value = rig.value(len);
        let mut put = open(rig, &value).unwrap();
        let len = len as usize;
        let cuts = [0, len / 7, len / 3, len / 2, len];
        for at in [2, 0, 3, 1] {
            expect(rig.read(value.locator, len as u64, value.seal), DataError::Stale);
            write(&mut *put, &value, cuts[at], cuts[at + 1]);
        }
        expect(rig.read(value.locator, len as u64, value.seal), DataError::Stale);
        put.signal(value.seal, soon()).unwrap();
        rig.read_value(&value).unwrap();
        // The slice table is right as well.
        let mut into = vec![0; len / 2];
        let mut reads = [mooncrate_transfer::Read::part(
            value.locator,
            len as u64,
            value.seal,
            len as u64 / 3,
            &mut into,
        )];
        rig.transport.read(&mut reads, soon());
        let [read] = reads;
        read.result.unwrap();
        assert!(into[..] == value.bytes[len / 3..][..len / 2]);
    }
    let stats = rig.segment.stats();
    assert_eq!((stats.writing, stats.ready), (0, 6));
}

/// A part that is missing, or is not what was sealed: nothing appears, and the range comes back.
pub(crate) fn only_what_was_sealed_is_published(rig: &mut Rig) {
    for len in [5000, (1 << 20) + 700] {
        let value = rig.value(len);
        let mut put = open(rig, &value).unwrap();
        write(&mut *put, &value, 1, len as usize);
        expect(put.signal(value.seal, soon()), DataError::Corrupt);
        let next = value.next(rig.freed_within(&value.locator, HANG_UP));
        let mut put = open(rig, &next).unwrap();
        write(&mut *put, &next, 0, len as usize);
        put.write(len - 1, &[!next.bytes[len as usize - 1]], soon()).unwrap();
        expect(put.signal(next.seal, soon()), DataError::Corrupt);
        rig.freed_within(&next.locator, HANG_UP);
        assert!(rig.read_value(&value).unwrap_err().is_stale());
        assert!(rig.read_value(&next).unwrap_err().is_stale());
    }
    assert_eq!(rig.segment.stats().ready, 0);
}

pub(crate) fn a_part_past_the_end_is_refused_and_the_put_goes_on(rig: &mut Rig) {
    let value = rig.value(100_000);
    let mut put = open(rig, &value).unwrap();
    for (offset, bytes) in [(0, 100_001), (100_000, 1), (u64::MAX, 1), (99_000, 70_000)] {
        expect(put.write(offset, &vec![9; bytes], soon()), DataError::OutOfBounds);
    }
    write(&mut *put, &value, 50_000, 100_000);
    write(&mut *put, &value, 0, 50_000);
    put.signal(value.seal, soon()).unwrap();
    rig.read_value(&value).unwrap();
}

pub(crate) fn a_dropped_open_put_gives_its_range_back(rig: &mut Rig) {
    let value = rig.value(100_000);
    let mut put = open(rig, &value).unwrap();
    write(&mut *put, &value, 0, 60_000);
    drop(put);
    let next = value.next(rig.freed_within(&value.locator, HANG_UP));
    rig.put(&next).unwrap();
    rig.read_value(&next).unwrap();
}

/// The master gave the put up: the writer learns it, and its range waits until it has let go (R7).
pub(crate) fn an_aborted_open_put_waits_for_its_writer(rig: &mut Rig) {
    for signal in [false, true] {
        let value = rig.value(100_000);
        let mut put = open(rig, &value).unwrap();
        write(&mut *put, &value, 0, 100_000);
        assert_eq!(rig.order(&value.locator, Action::Abort), OrderResult::Waiting);
        if signal {
            expect(put.signal(value.seal, soon()), DataError::BadToken);
        } else {
            let late = put.write(0, &value.bytes[..10], soon());
            expect(late, DataError::BadToken);
            assert_eq!(rig.segment.stats().failed, 1);
            drop(put);
        }
        rig.freed_within(&value.locator, HANG_UP);
        assert!(rig.read_value(&value).unwrap_err().is_stale());
    }
}

pub(crate) fn opening_what_is_not_ours_is_refused(rig: &mut Rig) {
    use DataError as E;
    let (taken, free) = (rig.stored(5000), rig.value(5000));
    let here = free.locator;
    let cases = [
        (taken.locator, E::Stale),
        (Locator { generation: Generation(1), ..here }, E::Stale),
        (Locator { incarnation: Incarnation(MOUNT.0 + 1), ..here }, E::Stale),
        (Locator { segment: SegmentId(1), ..here }, E::UnknownSegment),
        (Locator { slot: Slot(SLOTS), ..here }, E::OutOfBounds),
        (Locator { extent: Extent::new(0, 64).unwrap(), ..here }, E::OutOfBounds),
    ];
    for (locator, error) in cases {
        expect(open(rig, &free.elsewhere(locator)), error);
    }
    let old = BeginWrite { epoch: LeaderEpoch(EPOCH.0 - 1), ..begin(&free) };
    expect(rig.transport.open(&old, soon()), E::OldEpoch);
    rig.read_value(&taken).unwrap();
    rig.put(&free).unwrap();
}

/// Each put in parts has a connection of its own. They leave half of them to others: 191 such puts of one client shut
/// the data port of a node with 1024 descriptors.
#[test]
fn puts_in_parts_leave_connections_to_others() {
    let rig = Rig::new(Path::Local);
    let config = DataServerConfig { connections_max: 8, ..DataServerConfig::default() };
    let (_server, unix) = rig.serve_with(config);
    let stream = Stream::new(unix, &PoolConfig::default());
    let open = || stream.open(&begin(&rig.value(100)), soon());
    let mut puts: Vec<_> = (0..4).map(|_| open().unwrap()).collect();
    let refused = open().unwrap_err();
    assert!(matches!(refused, TransferError::Data(DataError::Busy { .. })), "{refused}");
    let value = rig.value(5000);
    let pieces = [&value.bytes[..]];
    stream.send(&[value.write(&pieces)], soon()).finish(soon()).pop().unwrap().unwrap();
    drop(puts.pop());
    rig.until("one place is free again", HANG_UP * 20, |_| open().is_ok());
}

/// A peer that forgot a put which the master gave up does not keep its connection for it; one whose put is open does.
#[test]
fn a_forgotten_put_keeps_no_connection() {
    let rig = Rig::new(Path::Local);
    let idle_time = Duration::from_millis(30);
    let (server, unix) =
        rig.serve_with(DataServerConfig { idle_time, ..DataServerConfig::default() });
    let stream = Stream::new(unix, &PoolConfig::default());
    let (given_up, kept) = (rig.value(100), rig.value(100));
    let forgotten = stream.open(&begin(&given_up), soon()).unwrap();
    let mut put = stream.open(&begin(&kept), soon()).unwrap();
    std::thread::sleep(idle_time * 4);
    assert_eq!(server.connections(), 2);
    assert_eq!(rig.order(&given_up.locator, Action::Abort), OrderResult::Waiting);
    rig.until("its connection is closed", HANG_UP * 20, |_| server.connections() == 1);
    write(&mut *put, &kept, 0, 100);
    put.signal(kept.seal, soon()).unwrap();
    rig.read_value(&kept).unwrap();
    drop(forgotten);
}

/// An answer that is queued is not lost because the next caller on the link gives up at once.
#[test]
fn nobody_loses_an_answer_to_a_caller_in_a_hurry() {
    let rig = Rig::new(Path::Shared);
    let value = rig.stored(5000);
    let mut link = rig.unix_link();
    let read = mooncrate_wire::message::Read { locator: value.locator, start: 0, len: 5000 };
    link.queue_data(&DataRequest::Read(read), &[], soon()).unwrap();
    let verify = Verify { locator: value.locator, seal: value.seal };
    link.queue_data(&DataRequest::Verify(verify), &[], boottime().deadline_in(Duration::ZERO))
        .unwrap();
    link.flush(soon()).unwrap();
    let mut bytes = vec![0; 5000];
    assert!(matches!(link.recv_data(soon()).unwrap().1, DataReply::Read(_)));
    link.recv_attachment(&mut bytes, |_| (), soon()).unwrap();
    value.judge(&bytes).unwrap();
    assert_eq!(link.recv_data(soon()).unwrap().1, DataReply::Verify(Ok(true)));
}
