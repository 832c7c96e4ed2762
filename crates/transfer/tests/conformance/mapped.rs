//! Memory of owners on this host: mapped once per mount, and let go of when its owner serves it no more.
//! What was mapped is counted; what is mapped now, the kernel says.

use crate::far::engine;
use crate::rig::{EPOCH, MOUNT, Rig, SEGMENT, SEGMENT_BYTES, SLOTS, Value, soon};
use crate::suite::expect;
use mooncrate_core::plan::{Action, Locator, OrderResult};
use mooncrate_core::time::Now;
use mooncrate_core::{Incarnation, PutToken};
use mooncrate_mem::clock::boottime;
use mooncrate_mem::{Life, Segment, SegmentSpec};
use mooncrate_transfer::{Engine, Path, Read, TransferError, Transport};
use mooncrate_wire::DataError;
use std::sync::Arc;
use std::time::Duration;

/// How long memory is kept after the leave to serve it, in nanoseconds.
const KEPT: u64 = 10_000_000_000;

fn read(transport: &dyn Transport, value: &Value) -> Result<(), TransferError> {
    let mut into = vec![0; value.bytes.len()];
    let len = into.len() as u64;
    let mut reads = [Read::new(value.locator, len, value.seal, &mut into)];
    transport.read(&mut reads, soon());
    let [done] = reads;
    done.result?;
    value.judge(&into).expect("a read that says Ok is the value");
    Ok(())
}

fn read_by(engine: &Engine, value: &Value) -> Result<(), TransferError> {
    read(&*engine.transport(&value.locator, soon())?, value)
}

/// How often this process maps the payload of a segment: once as its owner, and as its readers do.
fn times_mapped(segment: &Segment) -> usize {
    let inode = rustix::fs::fstat(segment.writable_fd().unwrap()).unwrap().st_ino.to_string();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.split_whitespace().nth(4) == Some(&inode)).count()
}

/// Unmapping is done elsewhere, so it is waited for.
fn wait_until_mapped(segment: &Segment, times: usize) {
    let end = boottime().deadline_in(Duration::from_mins(1));
    while times_mapped(segment) != times {
        assert!(!end.passed(boottime()), "mapped {} times", times_mapped(segment));
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Each stale read forgets how its segment is reached, and mapped all of it again: 50 maps here.
#[test]
fn stale_reads_map_nothing() {
    let rig = Rig::new(Path::Local);
    let alone = times_mapped(&rig.segment);
    let engine = engine(&rig, false);
    for _ in 0..50 {
        let value = rig.stored(5000);
        read_by(&engine, &value).unwrap();
        assert!(matches!(rig.order(&value.locator, Action::Evict), OrderResult::Freed { .. }));
        expect(read_by(&engine, &value), DataError::Stale);
        engine.forget(SEGMENT);
    }
    let mapped = engine.mapped();
    assert_eq!((mapped.maps, mapped.mounts, mapped.bytes), (1, 1, SEGMENT_BYTES));
    assert_eq!(times_mapped(&rig.segment), alone + 1);
}

/// Whoever comes at the same time, and whoever asks the owner once more, finds what is mapped.
#[test]
fn callers_at_the_same_time_map_once() {
    let rig = Rig::new(Path::Local);
    let engine = engine(&rig, false);
    let value = rig.stored(5000);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..20 {
                    read_by(&engine, &value).unwrap();
                    engine.forget(SEGMENT);
                }
            });
        }
    });
    assert_eq!(engine.mapped().maps, 1);
    let shared = crate::rig::attached(&rig.unix);
    shared.attach(SEGMENT, soon()).unwrap();
    assert_eq!(shared.mapped().maps, 1);
}

/// The segment comes back as another mount, in other memory, with other bytes under the same slot and range.
fn remount(rig: &Rig, old: &Value) -> Value {
    let (segment, incarnation) = (SEGMENT, Incarnation(MOUNT.0 + 1));
    let (bytes, slots) = (SEGMENT_BYTES, SLOTS);
    let spec = SegmentSpec { segment, incarnation, bytes, slots, shared: true, huge: false };
    let next = Segment::create(spec).unwrap();
    next.witness(EPOCH).unwrap();
    next.set_serve_until(Now(u64::MAX));
    rig.segments.insert(next);
    // The same length, so that nothing but the checks tells the two apart.
    let locator = Locator { incarnation, ..old.locator };
    let mut value = Value::new(locator, old.bytes.len() as u64);
    value.token = PutToken(value.token.0 ^ 1);
    let local = mooncrate_transfer::Local::new(Arc::clone(&rig.segments));
    let pieces = [&value.bytes[..]];
    local.write(&value.write(&pieces), soon()).unwrap().signal(soon()).unwrap();
    value
}

/// A read is planned, then the mount changes, then it copies: from memory that is mapped for good, and whose
/// bytes are as they were. What the owner wrote into it before it went is what refuses the copy; the
/// locator of the next mount never meets it. (`Value` has the same stamps in both mounts, so that a copy from the
/// wrong one could not be told by its bytes.)
#[test]
fn a_mount_that_changes_between_plan_and_copy_is_refused() {
    let rig = Rig::new(Path::Local);
    let alone = times_mapped(&rig.segment);
    let engine = engine(&rig, false);
    let old = rig.stored(5000);
    let planned = engine.transport(&old.locator, soon()).unwrap();
    read(&*planned, &old).unwrap();

    // As a node that drops everything does it: first the leave, then the memory.
    rig.segment.set_serve_until(Now(0));
    assert!(matches!(read(&*planned, &old), Err(TransferError::Fenced)));
    let new = remount(&rig, &old);
    assert!(matches!(read(&*planned, &old), Err(TransferError::Fenced)));
    // The way that was chosen for the old mount has not mapped the new one, and does not take one for the other.
    expect(read(&*planned, &new), DataError::Stale);
    assert_eq!(engine.mapped().maps, 1);

    read_by(&engine, &new).unwrap();
    assert_eq!((engine.mapped().maps, engine.mapped().mounts), (2, 1));
    expect(read(&*planned, &old), DataError::Stale);
    expect(read_by(&engine, &old), DataError::Stale);
    read_by(&engine, &new).unwrap();
    assert_eq!(engine.mapped().maps, 2, "an old locator maps nothing");
    wait_until_mapped(&rig.segment, alone);
}

/// An owner that is dead, stopped or cut off: its memory is let go of when its leave has been over for a while.
/// What it left as it was before: 64 MiB, for ever.
#[test]
fn memory_is_let_go_of_when_its_owner_will_not_serve_it_again() {
    let rig = Rig::new(Path::Local);
    let alone = times_mapped(&rig.segment);
    let engine = engine(&rig, false);
    let value = rig.stored(5000);
    read_by(&engine, &value).unwrap();
    let now = boottime();
    let left = now.plus(Duration::from_secs(3));
    rig.segment.set_serve_until(left);
    engine.let_go(Now(left.0 + KEPT - 1));
    assert_eq!(engine.mapped().bytes, SEGMENT_BYTES, "it may come back");
    // Looked at once a second.
    engine.let_go(Now(left.0 + KEPT));
    assert_eq!(engine.mapped().bytes, SEGMENT_BYTES);
    engine.let_go(Now(left.0 + KEPT + 1_000_000_000));
    assert_eq!((engine.mapped().bytes, engine.mapped().mounts), (0, 0));
    wait_until_mapped(&rig.segment, alone);
    // It serves again, as after a long outage of its master: it is mapped again.
    rig.segment.set_serve_until(Now(u64::MAX));
    read_by(&engine, &value).unwrap();
    assert_eq!((engine.mapped().maps, engine.mapped().bytes), (2, SEGMENT_BYTES));
}

/// A view keeps the memory that it shows, and nothing else does.
#[test]
fn a_view_keeps_its_own_mapping() {
    let rig = Rig::new(Path::Local);
    let alone = times_mapped(&rig.segment);
    let engine = engine(&rig, false);
    let value = rig.stored(100_000);
    let transport = engine.transport(&value.locator, soon()).unwrap();
    let view = transport.view(&value.locator, 100_000, value.seal, soon()).unwrap().unwrap();
    rig.segment.set_serve_until(Now(0));
    engine.let_go(boottime());
    assert_eq!(engine.mapped().bytes, 0);
    value.judge(&view).unwrap();
    expect(read(&*transport, &value), DataError::UnknownSegment);
    assert_eq!(times_mapped(&rig.segment), alone + 1, "the view shows it");
    drop(view);
    wait_until_mapped(&rig.segment, alone);
}

/// The master is away for long: owners live, and serve nobody. Their memory is not mapped for each read and let go
/// of by the next look, over and over.
#[test]
fn memory_that_nobody_serves_is_not_mapped_again() {
    let rig = Rig::new(Path::Local);
    let alone = times_mapped(&rig.segment);
    let engine = engine(&rig, false);
    let value = rig.stored(5000);
    read_by(&engine, &value).unwrap();
    let mut now = boottime();
    for past in [Now(now.0.saturating_sub(KEPT + 1).max(1)), Now(0)] {
        rig.segment.set_serve_until(past);
        for _ in 0..25 {
            now = now.plus(Duration::from_secs(1));
            engine.let_go(now);
            assert_eq!(engine.mapped().mounts, 0);
            expect(read_by(&engine, &value), DataError::Stale);
            assert_eq!((engine.mapped().maps, engine.mapped().mounts), (1, 0));
        }
    }
    wait_until_mapped(&rig.segment, alone);
    // The same mount serves again.
    rig.segment.set_serve_until(Now(u64::MAX));
    read_by(&engine, &value).unwrap();
    assert_eq!((engine.mapped().maps, engine.mapped().mounts), (2, 1));
}

/// The master plans a put as soon as it has heard of memory, its owner learns a moment later that it may serve:
/// puts that came between were refused as cut off, though there was no other owner to go to.
#[test]
fn an_owner_without_leave_to_serve_takes_puts() {
    let rig = Rig::new(Path::Local);
    let engine = engine(&rig, false);
    for (second, len) in [(0, 1), (1, 5000), (2, 300_000)] {
        rig.segment.set_serve_until(Now(0));
        engine.let_go(boottime().plus(Duration::from_secs(2 * second)));
        let value = rig.value(len);
        let pieces = [&value.bytes[..]];
        let way = engine.hasty(&value.locator, Duration::from_secs(5), soon()).unwrap();
        let done = way.send(&[value.write(&pieces)], soon()).finish(soon());
        assert_eq!(done.into_iter().map(Result::unwrap).collect::<Vec<_>>(), [value.seal]);
        expect(read_by(&engine, &value), DataError::Stale);
        rig.segment.set_serve_until(Now(u64::MAX));
        read_by(&engine, &value).unwrap();
        assert_eq!(engine.transport(&value.locator, soon()).unwrap().path(), Path::Shared);
    }
}

/// Who is told of the death by a guard lets go at once, whatever leave the dead left behind.
#[test]
fn a_death_that_is_confirmed_is_not_waited_for() {
    let rig = Rig::new(Path::Local);
    let alone = times_mapped(&rig.segment);
    let life = Arc::new(Life::create().unwrap());
    let guard = Life::guard(life.fd().unwrap()).unwrap();
    life.seal().unwrap();
    rig.segments.set_life(life);
    let engine = engine(&rig, false);
    let value = rig.stored(5000);
    read_by(&engine, &value).unwrap();
    let planned = engine.transport(&value.locator, soon()).unwrap();
    let now = boottime();
    engine.let_go(now);
    assert_eq!(engine.mapped().bytes, SEGMENT_BYTES, "it lives");
    guard.end();
    assert!(matches!(read(&*planned, &value), Err(TransferError::Fenced)));
    engine.let_go(now.plus(Duration::from_secs(1)));
    assert_eq!(engine.mapped().bytes, 0);
    wait_until_mapped(&rig.segment, alone);
}
