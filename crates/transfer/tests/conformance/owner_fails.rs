//! An owner that stops answering by itself, while its peer stores into its memory or looks at it: what the peer can
//! reach stays as it is until the peer has hung up (R4, R7, G3).

use crate::life::put_frame;
use crate::rig::{HANG_UP, Rig, Value, soon};
use mooncrate_core::plan::{Action, OrderResult};
use mooncrate_mem::clock::boottime;
use mooncrate_transfer::Path;
use mooncrate_wire::message::{self, DataReply, DataRequest};
use mooncrate_wire::{CallError, Link, LinkConfig};
use std::borrow::Cow;
use std::time::Duration;

/// Begins that a client sends ahead.
const AHEAD: usize = 16;

fn begin(link: &mut Link, value: &Value) {
    let begin = DataRequest::Begin(message::Begin { put: put_frame(value) });
    let answer = link.call_data(&begin, &[], soon()).unwrap();
    assert!(matches!(answer, DataReply::Begin(Ok(()))), "{answer:?}");
}

/// Has the owner fail at a request: the caller gives it no time at all, as a caller with a millisecond left does whose
/// owner has no core for that long. It answers nothing from there on.
fn fail_at(link: &mut Link, request: &DataRequest<'_>) {
    let over = boottime().deadline_in(Duration::ZERO);
    link.queue_data(request, &[], over).unwrap();
    link.flush(soon()).unwrap();
    let ended = link.recv_data(soon()).unwrap_err();
    assert!(matches!(ended, CallError::Closed { .. }), "{ended}");
}

/// What the owner tells of ranges that it gave back.
fn freed(rig: &Rig) -> usize {
    let mut news = Vec::new();
    rig.segment.tick(boottime(), &mut news);
    news.iter().filter(|one| matches!(one.result, OrderResult::Freed { .. })).count()
}

/// Was: all ranges of the link were told free at once, and the next value was placed where a copy went on.
#[test]
fn an_owner_that_fails_at_begin_n_keeps_what_was_begun() {
    for n in 1..=AHEAD {
        let rig = Rig::new(Path::Local);
        let mut link = rig.unix_link();
        let values: Vec<Value> = (0..n).map(|_| rig.value(100_000)).collect();
        let (last, stored) = values.split_last().unwrap();
        for value in stored {
            begin(&mut link, value);
        }
        let put = put_frame(last);
        fail_at(&mut link, &DataRequest::Begin(message::Begin { put }));
        // The owner is through with the link when its peer has seen the end, so this is not a matter of time.
        assert_eq!((rig.segment.stats().writing, freed(&rig)), (n as u64, 0), "begin {n}");
        // An order to give one up ends no copy either.
        assert_eq!(rig.order(&values[0].locator, Action::Abort), OrderResult::Waiting);
        drop(link);
        rig.until("what was begun ends with its writer", HANG_UP * 10, |segment| {
            let stats = segment.stats();
            stats.writing + stats.failed == 0
        });
        assert_eq!(freed(&rig), n);
    }
}

/// The same for values that somebody looks at in place.
#[test]
fn an_owner_that_fails_keeps_what_is_looked_at() {
    let rig = Rig::new(Path::Local);
    let value = rig.stored(100_000);
    let mut link = rig.unix_link();
    let locators = [value.locator];
    let pin = DataRequest::Pin(message::Pin { locators: Cow::Borrowed(&locators) });
    link.call_data(&pin, &[], soon()).unwrap();
    fail_at(&mut link, &pin);
    assert_eq!(rig.order(&value.locator, Action::Evict), OrderResult::Pinned);
    drop(link);
    rig.until("pins end with their holder", HANG_UP * 10, |segment| segment.pins() == 0);
}

/// The same for memory of a GPU: after the end of the connection it is kept for the driver's sake.
#[test]
fn an_owner_that_fails_keeps_memory_of_a_gpu() {
    let rig = Rig::far(Path::Local);
    let value = rig.value(100_000);
    let mut link = rig.unix_link();
    begin(&mut link, &value);
    let put = put_frame(&value);
    fail_at(&mut link, &DataRequest::Begin(message::Begin { put }));
    std::thread::sleep(crate::rig::DEVICE_GRACE * 2);
    assert_eq!((rig.segment.stats().writing, freed(&rig)), (1, 0));
    drop(link);
    rig.freed_within(&value.locator, Duration::from_secs(30));
}

/// An owner that stops does not wait for its peers, and gives nothing back that they may still store to or look at.
#[test]
fn an_owner_that_stops_gives_nothing_back() {
    let mut rig = Rig::new(Path::Local);
    let (seen, open) = (rig.stored(100_000), rig.value(100_000));
    let mut link = Rig::link(&rig.unix, &LinkConfig::default());
    let locators = [seen.locator];
    let pin = DataRequest::Pin(message::Pin { locators: Cow::Borrowed(&locators) });
    link.call_data(&pin, &[], soon()).unwrap();
    begin(&mut link, &open);
    rig.restart_server();
    assert_eq!(freed(&rig), 0);
    let stats = rig.segment.stats();
    assert_eq!((stats.failed, rig.segment.pins()), (1, 1));
    drop(link);
    assert_eq!((rig.segment.stats().failed, freed(&rig)), (1, 0), "for good");
}
