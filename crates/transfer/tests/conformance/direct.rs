//! Batches that are stored straight into the owner's memory: ranges are booked ahead, and none stays booked.

use crate::rig::{HANG_UP, Rig, Value, attached, soon};
use crate::silence::greet;
use mooncrate_lock::interrupt;
use mooncrate_transfer::{
    DataServerConfig, EngineConfig, Path, Shared, TransferError, Transport, Write,
};
use mooncrate_wire::address::{Address, Bound};
use mooncrate_wire::message::{Attached, DataReply, DataRequest};
use mooncrate_wire::{CallError, DataError};

/// Values that do not go through the socket.
const LEN: u64 = 100_000;

fn pieces(values: &[Value]) -> Vec<[&[u8]; 1]> {
    values.iter().map(|value| [&value.bytes[..]]).collect()
}

fn writes<'a>(values: &'a [Value], pieces: &'a [[&'a [u8]; 1]]) -> Vec<Write<'a>> {
    values.iter().zip(pieces).map(|(value, pieces)| value.write(pieces)).collect()
}

/// An owner that says nothing until it was asked for sixteen ranges.
fn refuses_sixteen(rig: &Rig, at: &Bound) {
    let Bound::Unix(listener) = at else { unreachable!("it was made so") };
    listener.set_nonblocking(false).unwrap();
    let mut link = greet(listener.accept().unwrap().0.into());
    let mut asked = Vec::new();
    while asked.len() < 16 {
        let request = link.recv_request(soon()).unwrap();
        let id = request.id;
        match request.request {
            DataRequest::Attach(attach) => {
                let identity = rig.segment.spec().identity();
                let (incarnation, slots, bytes) =
                    (identity.incarnation, identity.slots, identity.bytes);
                let reply = DataReply::Attach(Ok(Attached { incarnation, slots, bytes }));
                let (headers, payload) = rig.segment.fds().unwrap();
                let mut fds = vec![headers, payload];
                if attach.stores {
                    fds = vec![rig.segment.writable_fd().unwrap()];
                }
                link.send_reply_with_fds(id, &reply, &fds, soon()).unwrap();
            }
            DataRequest::Begin(_) => asked.push(id),
            other => panic!("{other:?}"),
        }
    }
    for id in asked {
        link.queue_reply(id, &DataReply::Begin(Err(DataError::Stale)), &[], soon()).unwrap();
    }
    link.flush(soon()).unwrap();
}

#[test]
fn ranges_are_asked_for_ahead() {
    let rig = Rig::new(Path::Local);
    let folder = tempfile::tempdir().unwrap();
    let unix = Address::Unix(folder.path().join("owner"));
    let socket = Bound::listen(&unix).unwrap();
    let values: Vec<Value> = (0..16).map(|_| rig.value(LEN)).collect();
    let pieces = pieces(&values);
    std::thread::scope(|scope| {
        let owner = scope.spawn(|| refuses_sixteen(&rig, &socket));
        let shared = attached(&unix);
        let writes = writes(&values, &pieces);
        let results = shared.send(&writes, soon()).finish(soon());
        owner.join().unwrap();
        let stale = |one| matches!(one, Err(TransferError::Data(DataError::Stale)));
        assert!(results.into_iter().all(stale));
    });
}

/// A link may hold a part of the segment open. What does not fit into it has its turn later.
#[test]
fn an_owner_that_leaves_little_room_gets_the_whole_batch() {
    let rig = Rig::new(Path::Local);
    let config = DataServerConfig { open_percent_max: 0, ..DataServerConfig::default() };
    let (_server, unix) = rig.serve_with(config);
    let values: Vec<Value> = (0..40).map(|_| rig.value(LEN)).collect();
    let pieces = pieces(&values);
    let results = attached(&unix).send(&writes(&values, &pieces), soon()).finish(soon());
    for (value, result) in values.iter().zip(results) {
        assert_eq!(result.unwrap(), value.seal);
        rig.read_value(value).unwrap();
    }
    assert!(rig.tally.refused.busy.value() > 0, "it was asked for more than it leaves");
}

/// Whoever is interrupted before a copy leaves no range booked behind it: not the one it was about to store to, nor
/// those of the values behind it.
#[test]
fn a_batch_that_is_interrupted_gives_its_ranges_back() {
    for count in [1, 8] {
        let rig = Rig::new(Path::Shared);
        // So that there is a link, and nothing is waited for before the copy.
        rig.stored(LEN);
        let values: Vec<Value> = (0..count).map(|_| rig.value(1 << 20)).collect();
        let pieces = pieces(&values);
        let (results, ended) = interrupt::under(
            |_| true,
            || {
                // As if the hook had been asked long ago.
                interrupt::ask_at(1);
                rig.transport.send(&writes(&values, &pieces), soon()).finish(soon())
            },
        );
        assert!(ended);
        let interrupted = |one: &&Result<_, _>| {
            matches!(one, Err(TransferError::Call(CallError::Interrupted { .. })))
        };
        assert_eq!(results.iter().filter(interrupted).count(), 1);
        assert!(results.iter().all(Result::is_err));
        rig.until("all ranges are given back", HANG_UP * 20, |segment| {
            let stats = segment.stats();
            (stats.writing, stats.ready) == (0, 1)
        });
    }
}

/// What cannot be stored, because its memory is not mapped here, is not left booked either.
#[test]
fn a_range_that_cannot_be_stored_to_is_given_back() {
    let rig = Rig::new(Path::Local);
    let shared = Shared::new(rig.unix.clone(), &EngineConfig::default());
    let values = [rig.value(LEN), rig.value(LEN)];
    let pieces = pieces(&values);
    let results = shared.send(&writes(&values, &pieces), soon()).finish(soon());
    for result in results {
        assert!(matches!(result, Err(TransferError::Data(DataError::UnknownSegment))));
    }
    assert_eq!(rig.segment.stats().writing, 0);
}
