//! Puts that are not finished, puts that are given up, and readers that are inside.

use crate::rig::{HANG_UP, Rig, SEGMENT, Value, soon};
use crate::suite::expect;
use mooncrate_core::plan::{Action, OrderResult};
use mooncrate_core::{Generation, PutToken};
use mooncrate_mem::clock::boottime;
use mooncrate_transfer::{Path, TransferError, View};
use mooncrate_wire::message::{self, DataReply, DataRequest, Hello};
use mooncrate_wire::{Address, DataError, Link, LinkConfig, LinkKind, Role};
use std::io::IoSlice;
use std::time::Duration;

/// Through the socket in one piece, in chunks, and through the mapping.
const WRITES: [u64; 4] = [0, 5000, 100_000, (1 << 20) + 1];

/// Proves G2 and R7: bytes that nobody signalled are nobody's value, and their range comes back.
pub(crate) fn without_a_signal_nothing_is_visible(rig: &mut Rig) {
    for len in WRITES {
        let value = rig.value(len);
        let pieces = [&value.bytes[..]];
        let written = rig.transport.write(&value.write(&pieces), soon()).unwrap();
        rig.until("the owner knows of the put", HANG_UP, |s| s.stats().writing == 1);
        expect(rig.read_value(&value), DataError::Stale);
        drop(written);
        let next = rig.freed_within(&value.locator, HANG_UP);
        assert_eq!(next, Generation(1));
        expect(rig.read_value(&value), DataError::Stale);
        // The range has a next life, and the dead one cannot be written any more.
        expect(rig.put(&value), DataError::Stale);
        let again = value.next(next);
        rig.put(&again).unwrap();
        rig.read_value(&again).unwrap();
    }
    let stats = rig.segment.stats();
    assert_eq!((stats.writing, stats.ready, stats.failed), (0, WRITES.len() as u64, 0));
}

/// A late or forged signal publishes nothing. A `Transport` presents one token in all its frames, so
/// the frames are sent by hand here.
pub(crate) fn a_signal_needs_its_token(rig: &mut Rig) {
    let value = rig.value(5000);
    let forged = PutToken(value.token.0 + 1);
    match rig.transport.path() {
        Path::Local => {
            let pieces = [&value.bytes[..]];
            let write = value.write(&pieces);
            let mut guard = rig
                .segment
                .begin(
                    boottime(),
                    &mooncrate_mem::BeginWrite {
                        locator: write.locator,
                        token: write.token,
                        object: write.object,
                        epoch: write.epoch,
                        len: write.len(),
                        label: write.label,
                        hash: mooncrate_mem::LabelHash::of(write.label),
                    },
                )
                .unwrap();
            guard.write(0, &value.bytes).unwrap();
            assert!(guard.publish(boottime(), forged, value.seal).is_err());
        }
        Path::Shared => forged_signal(&rig.unix, &value, forged, true),
        Path::Stream => forged_signal(&rig.tcp, &value, forged, false),
    }
    let next = rig.freed_within(&value.locator, HANG_UP);
    expect(rig.read_value(&value), DataError::Stale);
    let again = value.next(next);
    rig.put(&again).unwrap();
    rig.read_value(&again).unwrap();
}

pub(crate) fn link(address: &Address) -> Link {
    let hello = Hello::new(Role::Client, LinkKind::Data, "by hand");
    Link::connect(address, &hello, &LinkConfig::default(), soon()).unwrap()
}

pub(crate) fn put_frame(value: &Value) -> message::BeginWrite<'_> {
    let write = value.write(&[]);
    message::BeginWrite {
        locator: write.locator,
        token: write.token,
        object: write.object,
        epoch: write.epoch,
        len: value.bytes.len() as u64,
        label: write.label,
    }
}

fn forged_signal(address: &Address, value: &Value, forged: PutToken, direct: bool) {
    let mut link = link(address);
    let put = put_frame(value);
    let begun = if direct {
        link.call_data(&DataRequest::Begin(message::Begin { put }), &[], soon()).unwrap()
    } else {
        let bytes = [IoSlice::new(&value.bytes)];
        link.call_data(&DataRequest::Write(message::Write { put }), &bytes, soon()).unwrap()
    };
    assert!(matches!(begun, DataReply::Begin(Ok(())) | DataReply::Write(Ok(()))), "{begun:?}");
    let (locator, seal) = (value.locator, value.seal);
    // Another connection has no say in this put, even with the right token.
    let mut other = self::link(address);
    let signal = message::Signal { locator, token: value.token, seal };
    let answer = other.call_data(&DataRequest::Signal(signal), &[], soon()).unwrap();
    assert_eq!(answer, DataReply::Signal(Err(DataError::BadToken)));
    let signal = message::Signal { locator, token: forged, seal };
    let answer = link.call_data(&DataRequest::Signal(signal), &[], soon()).unwrap();
    assert_eq!(answer, DataReply::Signal(Err(DataError::BadToken)));
}

/// R7 and fault row 8, without a clock: the master gave the put up while its writer may still store.
/// The range stays in quarantine until the writer has said that it stores no more.
pub(crate) fn an_aborted_put_waits_for_its_writer(rig: &mut Rig) {
    for len in WRITES {
        let value = rig.value(len);
        let pieces = [&value.bytes[..]];
        let written = rig.transport.write(&value.write(&pieces), soon()).unwrap();
        rig.until("the owner knows of the put", HANG_UP, |s| s.stats().writing == 1);
        assert_eq!(rig.order(&value.locator, Action::Abort), OrderResult::Waiting);
        std::thread::sleep(Duration::from_millis(20));
        let mut news = Vec::new();
        rig.segment.tick(boottime(), &mut news);
        assert_eq!(news, [], "freed under a writer that is alive");
        assert_eq!(rig.segment.stats().failed, 1);
        // The late signal is refused, and tells the owner that the writer is done.
        expect(written.signal(soon()), DataError::BadToken);
        let next = rig.freed_within(&value.locator, HANG_UP);
        let again = value.next(next);
        rig.put(&again).unwrap();
        rig.read_value(&again).unwrap();
    }
}

/// R2, R4: what somebody looks at in place stays in place.
pub(crate) fn a_view_keeps_its_bytes(rig: &mut Rig) {
    for len in [1, 5000, (1 << 20) + 1] {
        let value = rig.stored(len);
        let look = || rig.transport.view(&value.locator, len, value.seal, soon()).unwrap();
        let Some(first) = look() else {
            // Over a socket a view is a copy that the caller makes; nobody is pinned.
            assert!(rig.copies());
            let copy = View::owned(rig.read(value.locator, len, value.seal).unwrap());
            assert!(!copy.is_in_place());
            rig.no_pins();
            assert!(matches!(rig.order(&value.locator, Action::Evict), OrderResult::Freed { .. }));
            value.judge(&copy).unwrap();
            continue;
        };
        let second = look().unwrap();
        assert_eq!(rig.segment.pins(), 2);
        assert_eq!(rig.order(&value.locator, Action::Evict), OrderResult::Pinned);
        drop(first);
        assert_eq!(rig.order(&value.locator, Action::Evict), OrderResult::Pinned);
        value.judge(&second).unwrap();
        // Readers of copies are not held up by the view, nor does it need them.
        rig.read_value(&value).unwrap();
        drop(second);
        let freed = rig.order(&value.locator, Action::Evict);
        assert_eq!(freed, OrderResult::Freed { next: Generation(1) });
        expect(rig.read_value(&value), DataError::Stale);
        let gone = rig.transport.view(&value.locator, len, value.seal, soon());
        expect(gone, DataError::Stale);
    }
    rig.no_pins();
}

/// M5: after the owner's answer to a retirement nobody begins to read, whatever he holds.
pub(crate) fn a_removed_value_is_stale_at_once(rig: &mut Rig) {
    let value = rig.stored(100_000);
    let len = value.bytes.len() as u64;
    let view = rig.transport.view(&value.locator, len, value.seal, soon()).unwrap();
    let retire = Action::Retire { free_after_ms: 0 };
    let result = rig.order(&value.locator, retire);
    expect(rig.read_value(&value), DataError::Stale);
    if !rig.copies() {
        let again = rig.transport.view(&value.locator, len, value.seal, soon());
        expect(again, DataError::Stale);
    }
    let Some(view) = view else {
        assert_eq!(result, OrderResult::Freed { next: Generation(1) });
        return;
    };
    assert_eq!(result, OrderResult::Waiting);
    let mut news = Vec::new();
    rig.segment.tick(boottime(), &mut news);
    assert_eq!(news, []);
    value.judge(&view).unwrap();
    drop(view);
    assert_eq!(rig.freed_within(&value.locator, HANG_UP), Generation(1));
}

/// What a client may do to a server by mistake costs it an answer, not the server.
#[test]
fn the_owner_bounds_what_one_connection_pins() {
    let rig = Rig::new(Path::Shared);
    // A quarter of 64 MiB; each value takes a little more than 3 MiB.
    let values: Vec<Value> = (0..6).map(|_| rig.stored(3 << 20)).collect();
    let view = |value: &Value| {
        rig.transport.view(&value.locator, value.bytes.len() as u64, value.seal, soon())
    };
    let mut views: Vec<View> = values[..5].iter().map(|v| view(v).unwrap().unwrap()).collect();
    let refused = view(&values[5]).unwrap_err();
    assert!(
        matches!(refused, TransferError::Data(DataError::Busy { .. })),
        "{refused:?} on {SEGMENT:?}"
    );
    views.pop();
    let again = view(&values[5]).unwrap().unwrap();
    values[5].judge(&again).unwrap();
    drop((views, again));
    rig.no_pins();
}
