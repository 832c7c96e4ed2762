//! What is special about memory of a device: its door for GPU processes of the same host, copies that fail
//! while bytes are on their way, rooms that are all in use.

use crate::rig::{MOUNT, Rig, SEGMENT, SEGMENT_BYTES, VRAM, Value, soon};
use crate::suite::expect;
use mooncrate_core::plan::{Action, OrderResult};
use mooncrate_core::seal::extent_bytes;
use mooncrate_core::time::Deadline;
use mooncrate_core::{Incarnation, NodeId, SegmentId};
use mooncrate_mem::Room;
use mooncrate_mem::clock::boottime;
use mooncrate_mem::sums::copy_value;
use mooncrate_transfer::{
    DeviceDoor, Directory, Engine, EngineConfig, Path, Route, Segments, TransferError,
};
use mooncrate_wire::auth::ClusterSecret;
use mooncrate_wire::message::{self, BeginWrite, DataReply, DataRequest};
use mooncrate_wire::{Access, CallError, DataError, Gate, LinkConfig, Role};
use std::sync::Arc;
use std::time::Duration;

/// Knows the one owner there is.
#[derive(Debug)]
struct One(Route);

impl Directory for One {
    fn route(
        &self,
        _segment: SegmentId,
        _incarnation: Incarnation,
        _deadline: Deadline,
    ) -> Result<Option<Route>, CallError> {
        Ok(Some(self.0.clone()))
    }
}

/// An engine in another process than the owner, or in the same.
pub(crate) fn engine(rig: &Rig, here: bool) -> Engine {
    let segments = if here { Arc::clone(&rig.segments) } else { Arc::<Segments>::default() };
    engine_over(rig, EngineConfig::default(), segments)
}

/// One in another process, with settings of its own.
pub(crate) fn engine_with(rig: &Rig, config: EngineConfig) -> Engine {
    engine_over(rig, config, Arc::default())
}

fn engine_over(rig: &Rig, config: EngineConfig, segments: Arc<Segments>) -> Engine {
    let (tcp, unix) = (Some(rig.tcp.clone()), Some(rig.unix.clone()));
    let route = Route { node: NodeId(1), host: config.host, tcp, unix };
    Engine::new(config, segments, Arc::new(One(route)))
}

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

/// What a GPU process would do on its GPU: value and table, stored behind the owner's back.
fn store_on_device(rig: &Rig, value: &Value) {
    let mut extent = vec![0; extent_bytes(value.bytes.len() as u64) as usize];
    // SAFETY: the vector has the bytes of the extent.
    unsafe { copy_value(extent.as_mut_ptr(), &value.bytes) };
    rig.device.as_ref().unwrap().poke(value.locator.extent.offset() as usize, &extent);
}

fn doors(rig: &Rig) -> Vec<DeviceDoor> {
    let value = rig.value(1);
    let door = |here| engine(rig, here).device_door(&value.locator, soon()).unwrap().unwrap();
    vec![door(false), door(true)]
}

#[test]
fn a_gpu_process_of_the_host_is_lent_the_memory() {
    let rig = Rig::far(Path::Stream);
    for door in doors(&rig) {
        let lent = door.lend(VRAM, soon()).unwrap();
        assert_eq!((lent.segment, lent.incarnation, lent.bytes), (VRAM, MOUNT, SEGMENT_BYTES));
        assert_eq!((lent.memory_bytes, lent.device), (SEGMENT_BYTES, [7; 16]));
        expect(door.lend(SegmentId(9), soon()), DataError::UnknownSegment);
    }
    // Host memory has no such door, and none is looked for.
    let host = Rig::new(Path::Stream);
    let value = host.stored(100);
    for here in [false, true] {
        assert!(engine(&host, here).device_door(&value.locator, soon()).unwrap().is_none());
        let door = doors(&rig).remove(usize::from(here));
        expect(door.pin(&value.locator, soon()), DataError::Unsupported);
    }
    assert_eq!(value.locator.segment, SEGMENT);
}

/// Over the network nobody is lent anything, nor may store what he cannot have been lent; nor does a cluster
/// with credentials lend memory of several tenants to anybody.
#[test]
fn security_the_memory_is_lent_to_whom_memory_is_shared_with() {
    let rig = Rig::far(Path::Stream);
    let value = rig.value(100);
    let lend = DataRequest::Lend(message::Lend { segment: VRAM });
    let begun = DataRequest::Begin(message::Begin { put: begin(&value) });
    let mut far = Rig::link(&rig.tcp, &LinkConfig::default());
    let answer = far.call_data(&lend, &[], soon()).unwrap();
    assert_eq!(answer, DataReply::Lend(Err(DataError::Unsupported)));
    assert!(far.take_fds().is_empty());
    let answer = far.call_data(&begun, &[], soon()).unwrap();
    assert_eq!(answer, DataReply::Begin(Err(DataError::Unsupported)));
    rig.freed_within(&value.locator, crate::rig::HANG_UP);
    let mut near = rig.unix_link();
    let answer = near.call_data(&lend, &[], soon()).unwrap();
    assert!(matches!(answer, DataReply::Lend(Ok(_))) && near.take_fds().len() == 1, "{answer:?}");

    let secret = || ClusterSecret::from_bytes([7; 32]);
    let (guarded, unix) = rig.serve_guarded(Gate::new(Some(secret()), None));
    let token = Some(Arc::new(secret().derive(Role::Client, "acme").unwrap()));
    let access = Access { token, ..Access::default() };
    let mut link = Rig::link(&unix, &LinkConfig { access, ..LinkConfig::default() });
    let answer = link.call_data(&lend, &[], soon()).unwrap();
    assert_eq!(answer, DataReply::Lend(Err(DataError::Unsupported)));
    guarded.stop(Duration::ZERO);
}

#[test]
fn what_a_gpu_process_stored_is_read_by_everybody() {
    let rig = Rig::far(Path::Stream);
    for door in doors(&rig) {
        for len in [0, 5000, (1 << 20) + 9, 3 << 20] {
            let value = rig.value(len);
            let put = door.begin(&begin(&value), soon()).unwrap();
            assert_eq!(put.extent(), value.locator.extent);
            expect(rig.read_value(&value), DataError::Stale);
            store_on_device(&rig, &value);
            put.signal(value.seal, soon()).unwrap();
            rig.read_value(&value).unwrap();
            rig.no_pins();
            // A pin keeps it in place for a copy on the GPU.
            let pin = door.pin(&value.locator, soon()).unwrap();
            assert_eq!((pin.extent(), rig.segment.pins()), (value.locator.extent, 1));
            assert_eq!(rig.order(&value.locator, Action::Evict), OrderResult::Pinned);
            drop(pin);
            assert!(matches!(rig.order(&value.locator, Action::Evict), OrderResult::Freed { .. }));
            expect(door.pin(&value.locator, soon()), DataError::Stale);
        }
        // One that gives up gives its range back; one that lies is found out by every reader.
        let value = rig.value(5000);
        drop(door.begin(&begin(&value), soon()).unwrap());
        let value = value.next(rig.freed_within(&value.locator, crate::rig::HANG_UP));
        let put = door.begin(&begin(&value), soon()).unwrap();
        put.signal(value.seal, soon()).unwrap();
        expect(rig.read_value(&value), DataError::Corrupt);
        assert!(
            !rig.transport.verify(&value.locator, value.seal, soon()).unwrap(),
            "it is retired"
        );
        rig.order(&value.locator, Action::Retire { free_after_ms: 0 });
    }
    rig.no_pins();
}

/// A dead process stores nothing any more, but its GPU may: the range of its put is kept for a while.
#[test]
fn the_range_of_a_gpu_process_that_died_is_kept_for_a_while() {
    let rig = Rig::far(Path::Stream);
    let value = rig.value(5000);
    let mut link = rig.unix_link();
    let begin = DataRequest::Begin(message::Begin { put: begin(&value) });
    assert_eq!(link.call_data(&begin, &[], soon()).unwrap(), DataReply::Begin(Ok(())));
    let hung_up = boottime();
    drop(link);
    rig.freed_within(&value.locator, Duration::from_secs(20));
    let kept = boottime().since(hung_up);
    assert!(kept >= crate::rig::DEVICE_GRACE, "freed after {kept:?}");
    // One that came through the socket is over at once: nobody else stores there.
    let value = rig.value(5000);
    let mut link = rig.unix_link();
    let open = DataRequest::Open(message::Open { put: self::begin(&value) });
    assert_eq!(link.call_data(&open, &[], soon()).unwrap(), DataReply::Open(Ok(())));
    drop(link);
    rig.freed_within(&value.locator, crate::rig::HANG_UP);
}

/// The engine finds the socket where there is no memory to map, and knows that the owner is near.
#[test]
fn a_process_of_the_host_without_a_gpu_reads_over_the_socket() {
    let rig = Rig::far(Path::Local);
    let value = rig.stored((2 << 20) + 5);
    let near = engine(&rig, false);
    let transport = near.transport(&value.locator, soon()).unwrap();
    assert_eq!(transport.path(), Path::Stream);
    assert_eq!(near.distance(&value.locator, soon()), 1);
    assert_eq!(engine(&rig, true).distance(&value.locator, soon()), 0);
    let mut rig = rig;
    rig.transport = transport;
    rig.read_value(&value).unwrap();
    rig.stored(3 << 20);
}

/// A copy that fails is an error that says so, on every way; nothing is served and nothing is stuck.
#[test]
fn a_device_that_fails_is_said_and_never_served() {
    for rig in [crate::rig::far_local(), crate::rig::far_stream(), crate::rig::far_lanes()] {
        let device = rig.device.as_ref().unwrap();
        let good = rig.stored(3 << 20);
        for failing in 1..=3 {
            let value = rig.value(3 << 20);
            device.fail_at(failing);
            let stored = rig.put(&value);
            assert!(matches!(stored, Err(TransferError::Data(DataError::Device))), "{stored:?}");
            assert!(rig.read_value(&value).unwrap_err().is_stale());
            rig.freed_within(&value.locator, crate::rig::HANG_UP);
            device.fail_at(failing);
            // Before the first byte of an answer the owner says why. After it the link ends, and the read
            // may have gone well over another one.
            let again = failing > 1 && rig.transport.path() == Path::Stream;
            match rig.read_value(&good) {
                Err(TransferError::Data(DataError::Device)) => {}
                Err(TransferError::Call(_)) | Ok(()) if again => {}
                read => panic!("{read:?}"),
            }
            device.fail_at(0);
            rig.read_value(&good).unwrap();
        }
        assert!(rig.transport.verify(&good.locator, good.seal, soon()).unwrap());
        rig.no_pins();
        rig.until("rooms are back", crate::rig::HANG_UP, |_| device.free_rooms() == 4);
    }
}

/// A copy may outlast the call that took the pin: giving it back then breaks nothing for the others.
#[test]
fn a_pin_is_given_back_after_its_call() {
    let rig = Rig::far(Path::Stream);
    let value = rig.stored(100);
    rig.no_pins();
    let door = doors(&rig).remove(0);
    let other = door.pin(&value.locator, soon()).unwrap();
    let short = boottime().deadline_in(Duration::from_millis(200));
    let late = door.pin(&value.locator, short).unwrap();
    std::thread::sleep(Duration::from_millis(250));
    assert_eq!((short.passed(boottime()), rig.segment.pins()), (true, 2));
    drop(late);
    assert_eq!(rig.segment.pins(), 1, "the pin stayed with a link that broke");
    drop(other);
    assert_eq!(rig.segment.pins(), 0);
}

/// Peers that stop in the middle of a value lose their link, not the others their rooms.
#[test]
fn a_peer_that_stands_still_keeps_no_room() {
    let rig = Rig::far(Path::Stream);
    let device = rig.device.as_ref().unwrap();
    let value = rig.stored(24 << 20);
    let (locator, len) = (value.locator, value.bytes.len() as u64);
    let ask = DataRequest::Read(message::Read { locator, start: 0, len });
    let mut readers: Vec<_> = (0..2).map(|_| rig.unix_link()).collect();
    for reader in &mut readers {
        // More than any socket takes.
        reader.send_data(&ask, &[], soon()).unwrap();
    }
    let other = rig.value(24 << 20);
    let put = DataRequest::Write(message::Write { put: begin(&other) });
    let mut writer = rig.unix_link();
    let first = [std::io::IoSlice::new(&other.bytes[..5000])];
    writer.send_data(&put, &first, soon()).unwrap();
    rig.until("three of them hold rooms", crate::rig::HANG_UP, |_| device.free_rooms() == 1);
    rig.until("rooms are back", Duration::from_secs(15), |_| device.free_rooms() == 4);
    rig.no_pins();
    rig.freed_within(&other.locator, crate::rig::HANG_UP);
    rig.read_value(&value).unwrap();
}

#[test]
fn without_a_room_a_request_waits_and_is_then_told_to_come_again() {
    let rig = Rig::far(Path::Stream);
    let device = rig.device.as_ref().unwrap();
    let good = rig.stored(5000);
    let far = rig.segment.far().unwrap();
    let held: Vec<Box<dyn Room>> = std::iter::from_fn(|| far.room()).collect();
    assert_eq!((held.len(), device.free_rooms()), (4, 0));
    let busy = |result: Result<(), TransferError>| {
        assert!(matches!(result, Err(TransferError::Data(DataError::Busy { .. }))), "{result:?}");
    };
    busy(rig.read_value(&good));
    busy(rig.put(&rig.value(5000)));
    // What becomes free in time is used.
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| rig.read_value(&good));
        std::thread::sleep(std::time::Duration::from_millis(50));
        drop(held);
        reader.join().unwrap().unwrap();
    });
    rig.stored(5000);
}
