//! Reports of reads: nobody waits for their answers, and they find their way after a restart.

use crate::toy::*;
use mooncrate_core::ids::{Generation, SegmentId, Slot};
use mooncrate_core::plan::ReadMark;
use mooncrate_wire::message::MarksHeard;
use mooncrate_wire::{CallError, MasterApi, ServerConfig};
use std::time::Duration;

fn mark(tag: u64, copies: u16) -> ReadMark {
    let (segment, slot, generation) = (SegmentId(1), Slot(2), Generation(3));
    ReadMark { segment, slot, generation, reads: 4, copies, tag }
}

/// Reports until the answer to an earlier one has come, and gives that back.
fn heard_later(master: &impl MasterApi) -> MarksHeard {
    loop {
        match master.tell_reads(&[mark(9, 1)], within(2000)) {
            Ok(heard) if heard.pause_ms > 0 => return heard,
            Ok(_) | Err(CallError::Busy { .. }) => std::thread::sleep(Duration::from_millis(1)),
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn answers_to_reports_come_with_later_ones() {
    let server = Server::start();
    let master = server.master();
    // The first one has no link yet: it is an ordinary call.
    let first = master.tell_reads(&[mark(1, 2), mark(2, 1)], within(2000)).unwrap();
    assert_eq!((first.pause_ms, &first.outdated[..]), (10, &[mark(1, 2)][..]));
    let sent = master.tell_reads(&[mark(3, 2)], within(2000)).unwrap();
    assert!(sent.outdated.is_empty() || sent.outdated == [mark(3, 2)], "{sent:?}");
    let mut outdated = sent.outdated;
    while outdated.is_empty() {
        outdated = heard_later(&master).outdated;
    }
    assert_eq!(outdated, [mark(3, 2)], "an earlier report");
    assert_eq!(server.toy.batches.lock().unwrap()[..2], [2, 1]);
}

#[test]
fn reports_survive_a_restart_of_the_master() {
    let mut server = Server::start();
    let master = server.master();
    for _ in 0..2 {
        master.tell_reads(&[mark(1, 1)], within(2000)).unwrap();
    }
    let address = server.address.to_string();
    server.end();
    assert!(master.tell_reads(&[mark(1, 1)], within(50)).is_err(), "nobody is there");
    let server = Server::start_with(&address, ServerConfig::default());
    let heard = master.tell_reads(&[mark(5, 2)], within(5000)).unwrap();
    assert_eq!(heard.outdated, [mark(5, 2)]);
    assert_eq!(server.toy.batches.lock().unwrap()[..], [1]);
}
