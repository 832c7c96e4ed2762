//! What the owner counts: bytes that moved, pins that are held, and refusals by their reason.

use crate::life::{link, put_frame};
use crate::rig::{EPOCH, HANG_UP, Rig, Value, soon};
use mooncrate_core::time::Now;
use mooncrate_core::{Generation, LeaderEpoch, Seal};
use mooncrate_transfer::Path;
use mooncrate_wire::DataError;
use mooncrate_wire::message::{self, DataReply, DataRequest};
use std::io::IoSlice;

#[test]
fn bytes_are_counted_where_they_pass_the_owner() {
    let rig = Rig::new(Path::Stream);
    let value = rig.stored(100_000);
    rig.read_value(&value).unwrap();
    rig.read_value(&value).unwrap();
    let moved = || (rig.tally.reads.now().count, rig.tally.read_bytes.value());
    // The owner notes a read after its last byte has left, so the reader may be here before.
    rig.until("both reads are noted", HANG_UP, |_| moved().0 == 2);
    assert_eq!(moved(), (2, 200_000));
    assert_eq!(rig.tally.writes.now().count, 1);
    let published = || (rig.tally.published.value(), rig.tally.published_bytes.value());
    assert_eq!(published(), (1, 100_000));
    assert!(rig.tally.connections.value() > 0);

    // A put in shared memory passes nobody's socket, but is published by the owner.
    let rig = Rig::new(Path::Shared);
    rig.stored(1 << 20);
    let tally = &rig.tally;
    assert_eq!((tally.published.value(), tally.published_bytes.value()), (1, 1 << 20));
    assert_eq!(tally.writes.now().count, 0);
}

#[test]
fn refusals_are_counted_by_their_reason() {
    let rig = Rig::new(Path::Stream);
    let refused = &rig.tally.refused;
    let value = rig.stored(5000);

    let mut over = value.locator;
    over.generation = Generation(9);
    rig.read(over, 5000, value.seal).unwrap_err();
    assert_eq!(refused.stale.value(), 1);

    replaced_leader(&rig, &rig.value(5000));
    assert_eq!(refused.epoch.value(), 1);

    wrong_seal(&rig, &rig.value(5000));
    assert_eq!(refused.checksum.value(), 1);

    rig.segment.set_serve_until(Now(0));
    rig.read_value(&value).unwrap_err();
    assert_eq!((refused.fenced.value(), refused.stale.value()), (1, 1), "told apart from stale");
    assert_eq!((refused.busy.value(), refused.other.value()), (0, 0));
}

/// A writer whose plan comes from the leader before.
fn replaced_leader(rig: &Rig, value: &Value) {
    let put = message::BeginWrite { epoch: LeaderEpoch(EPOCH.0 - 1), ..put_frame(value) };
    let write = DataRequest::Write(message::Write { put });
    let answer = link(&rig.tcp).call_data(&write, &[IoSlice::new(&value.bytes)], soon()).unwrap();
    assert_eq!(answer, DataReply::Write(Err(DataError::OldEpoch)));
}

/// A writer whose bytes do not add up to what it claims.
fn wrong_seal(rig: &Rig, value: &Value) {
    let mut link = link(&rig.tcp);
    let write = DataRequest::Write(message::Write { put: put_frame(value) });
    link.call_data(&write, &[IoSlice::new(&value.bytes)], soon()).unwrap();
    let seal = Seal(value.seal.0 ^ 1);
    let signal = message::Signal { locator: value.locator, token: value.token, seal };
    let answer = link.call_data(&DataRequest::Signal(signal), &[], soon()).unwrap();
    assert_eq!(answer, DataReply::Signal(Err(DataError::Corrupt)));
}

#[test]
fn pins_are_counted_while_they_are_held() {
    let rig = Rig::new(Path::Shared);
    let values: Vec<Value> = (0..3).map(|_| rig.stored(100_000)).collect();
    let view = |value: &Value| {
        rig.transport.view(&value.locator, value.bytes.len() as u64, value.seal, soon())
    };
    let views: Vec<_> = values.iter().map(|value| view(value).unwrap().unwrap()).collect();
    assert_eq!(rig.tally.pins.value(), 3);
    drop(views);
    rig.until("no pin is counted", HANG_UP, |_| rig.tally.pins.value() == 0);
}
