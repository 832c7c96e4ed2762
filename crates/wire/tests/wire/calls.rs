//! A real server on loopback and a master link: every call, batches, splitting, deadlines,
//! pipelining.

use crate::toy::*;
use mooncrate_core::catalog::InUse;
use mooncrate_core::copy::DrainMode;
use mooncrate_core::error::{CopyError, GetError, MountError, PutError, RemoveError};
use mooncrate_core::ids::*;
use mooncrate_core::key::KeyError;
use mooncrate_core::plan::{Announced, AnnouncedLife, AnnouncedObject, Looked, PutConfig};
use mooncrate_core::seal::Seal;
use mooncrate_wire::clock::boottime;
use mooncrate_wire::message::*;
use mooncrate_wire::{CallError, MasterApi, RefusalCode, ServerConfig};
use std::borrow::Cow;
use std::sync::atomic::Ordering;
use std::time::Duration;

fn every_call(master: &impl MasterApi) {
    let t = within(2000);
    assert_eq!(master.ping(t).unwrap(), EPOCH);
    let config = PutConfig { replicas: 2, ..PutConfig::default() };
    let items = [PutItem::new(b"a", 10), PutItem::new(b"", 1)];
    let plans = master.put_start(&config, &items, t).unwrap();
    assert_eq!(plans[0].as_ref().unwrap().replicas, [locator(); 2]);
    assert_eq!(plans[1], Err(PutError::Key(KeyError::Empty)));
    let seals = SealList::encode(&[Seal(1)]);
    let end = |token| {
        let seals = SealList::of(&seals);
        PutEndItem { key: b"a", token: PutToken(token), seals }
    };
    assert_eq!(master.put_end(&[end(0), end(1)], t).unwrap(), [Err(PutError::NoSuchPut), Ok(())]);
    let revoke = PutRevokeItem { key: b"a", token: PutToken(1) };
    assert_eq!(master.put_revoke(&[revoke], t).unwrap(), [Ok(())]);
    let (config, failed) = (Cow::Owned(config), vec![SegmentId(1), SegmentId(2)]);
    let replan = PutReplan { config, key: b"a", token: PutToken(4), failed };
    let plan = master.put_replan(&replan, t).unwrap().unwrap();
    assert_eq!((plan.token, plan.replicas.len()), (PutToken(4), 2));
    let clear = RemoveMatching { pattern: Pattern::Regex("^a"), force: true, cursor: 0 };
    let cleared = master.remove_matching(&clear, t).unwrap().unwrap();
    assert_eq!((cleared.removed, cleared.leased, cleared.next), (3, 1, Some(7)));
    master.set_quota(&SetQuota { tenant: TenantId(9), quota: Some(1) }, t).unwrap();
    let found = master.locate(5, &[b"four", b"no"], t).unwrap();
    let there = found[0].as_ref().unwrap();
    assert_eq!((there.len(), there.lease_ms), (4, 5));
    assert_eq!(found[1], Err(GetError::NotFound));
    assert_eq!(master.exist(&[b"yes", b"x"], t).unwrap(), [Ok(true), Ok(false)]);
    let keys: [&[u8]; 2] = [b"four", b""];
    let look = Look { hold: true, places: false, reads: false, keys: Cow::Borrowed(&keys) };
    let looked =
        [Ok(Looked::Here { len: 4, group: GroupId(3) }), Err(GetError::Key(KeyError::Empty))];
    assert_eq!(master.look(&look, t).unwrap(), looked);
    let gone = DropCopy { key: b"k", segment: SegmentId(2) };
    assert_eq!(master.drop_copy(&gone, t).unwrap(), Err(CopyError::NoSource));
    let room = |segment| Evict { segment: SegmentId(segment), used_max: 5 };
    let left = InUse { used_bytes: 5, ending_bytes: 1 };
    assert_eq!(master.evict(&room(2), t).unwrap(), Some(left));
    assert_eq!(master.evict(&room(3), t).unwrap(), None);
    let leased = Err(RemoveError::Leased { left_ms: 9 });
    assert_eq!(master.remove(false, &[b"k"], t).unwrap(), [leased]);
    assert_eq!(master.remove(true, &[b"k"], t).unwrap(), [Ok(())]);
    let page =
        master.list(&List { pattern: Pattern::Prefix(b""), cursor: 4, limit: 3 }, t).unwrap();
    assert_eq!((page.entries.len(), page.next), (3, Some(5)));
    assert_eq!(master.stat(t).unwrap().segments.len(), 5000);
    assert_eq!(master.nodes(t).unwrap()[0].info, info());
    let mut mount = Mount {
        info: info(),
        seen: EPOCH,
        offers: vec![offer()],
        fence_ms: Some(7),
        draining: vec![(SegmentId(1), DrainMode::Move)],
    };
    assert_eq!(master.mount(&mount, t).unwrap().unwrap().registration_ms, 20_000);
    mount.offers.clear();
    let bad = MountError::BadOffer { bytes: 0, slots: 0 };
    assert_eq!(master.mount(&mount, t).unwrap(), Err(bad));
    let unmount = Unmount { node: NodeId(1), segments: vec![(SegmentId(1), Incarnation(1))] };
    assert_eq!(master.unmount(&unmount, t).unwrap(), Err(MountError::UnknownNode));
    let beat = Heartbeat { node: NodeId(1), incarnation: Incarnation(1) };
    let pulse = master.heartbeat(&beat, t).unwrap();
    assert_eq!(pulse.unwrap().epoch, EPOCH);
    let poll = Orders { node: NodeId(1), notices: Vec::new(), copied: Vec::new(), wait_ms: 20 };
    assert_eq!(master.orders(&poll, t).unwrap().unwrap().orders.len(), 1);
}

#[test]
fn every_call_over_tcp() {
    let server = Server::start();
    let master = server.master();
    every_call(&master);
    assert_eq!(master.pool().idle(), 1, "all went over one link");
}

#[test]
fn every_call_over_a_unix_socket() {
    let folder = tempfile::tempdir().unwrap();
    let address = format!("unix:{}", folder.path().join("master.sock").display());
    let server = Server::start_with(&address, ServerConfig::default());
    every_call(&server.master());
}

#[test]
fn a_full_batch_is_one_frame_and_a_larger_one_is_split() {
    let server = Server::start();
    let keys: Vec<String> = (0..10_000).map(|n| format!("yes{n}")).collect();
    let mut keys: Vec<&[u8]> = keys.iter().map(String::as_bytes).collect();
    keys[4095] = b"no";
    keys[9999] = b"no";
    let master = server.master();
    let found = master.exist(&keys[..4096], within(5000)).unwrap();
    assert_eq!(found.iter().filter(|there| **there == Ok(true)).count(), 4095);
    let found = master.exist(&keys, within(5000)).unwrap();
    for (at, there) in found.iter().enumerate() {
        assert_eq!(*there, Ok(at != 4095 && at != 9999), "item {at}");
    }
    assert_eq!(*server.toy.batches.lock().unwrap(), [4096, 4096, 4096, 1808]);
    // By bytes: 2000 of the longest keys are 16 MiB.
    let long = vec![7; 8192];
    let found = master.locate(0, &vec![&long[..]; 2000], within(5000)).unwrap();
    assert_eq!(found.len(), 2000);
    assert_eq!(server.toy.batches.lock().unwrap().len(), 4 + 2);
    // No items: no call.
    assert!(master.exist(&[], within(5000)).unwrap().is_empty());
}

#[test]
fn announcements_are_split_and_only_the_last_is_last() {
    let server = Server::start();
    let object = AnnouncedObject {
        label: mooncrate_core::Label::plain((&[1; 4000]).into()).unwrap(),
        object: ObjectId::default(),
        len: 1,
        seal: Seal(1),
    };
    let life = AnnouncedLife { extent: locator().extent, object: Some(object) };
    let one = Announced { slot: Slot(1), generation: Generation(1), life: Some(life) };
    for last in [false, true] {
        let page = Announce {
            epoch: LeaderEpoch(1),
            segment: SegmentId(1),
            incarnation: Incarnation(1),
            page: vec![one.clone(); 5000],
            last,
        };
        server.master().announce(page, within(5000)).unwrap().unwrap();
    }
    let seen = server.toy.announced.lock().unwrap();
    assert_eq!(seen.iter().map(|(count, _)| count).sum::<usize>(), 10_000);
    let last: Vec<bool> = seen.iter().map(|(_, last)| *last).collect();
    assert_eq!(last, [false, false, false, false, false, true]);
}

/// Pages fly at once and still arrive in their order; a refusal ends the announcement early.
#[test]
fn a_whole_announcement_is_told_in_order() {
    let server = Server::start();
    let page = |number: usize, last| Announce {
        epoch: LeaderEpoch(1),
        segment: SegmentId(1),
        incarnation: Incarnation(1),
        page: vec![Announced { slot: Slot(1), generation: Generation(1), life: None }; number],
        last,
    };
    let mut pages = (0..100).map(|number| page(number, number == 99));
    server.master().announce_all(&mut pages, Duration::from_secs(5)).unwrap().unwrap();
    let expected: Vec<(usize, bool)> = (0..100).map(|number| (number, number == 99)).collect();
    assert_eq!(*server.toy.announced.lock().unwrap(), expected);

    let mut made = 0;
    let mut pages = std::iter::from_fn(|| {
        made += 1;
        Some(Announce { segment: UNWANTED, ..page(1, false) })
    });
    let refused = server.master().announce_all(&mut pages, Duration::from_secs(5)).unwrap();
    assert_eq!(refused, Err(MountError::StaleIncarnation { last: Incarnation(7), over: true }));
    assert!(made < 10, "{made} pages were told to a master that refuses them");
}

/// An empty page is a page: a fresh segment that announces nothing is complete.
#[test]
fn an_empty_announcement_is_sent() {
    let server = Server::start();
    let page = Announce {
        epoch: LeaderEpoch(1),
        segment: SegmentId(1),
        incarnation: Incarnation(1),
        page: vec![],
        last: true,
    };
    server.master().announce(page, within(1000)).unwrap().unwrap();
    assert_eq!(*server.toy.announced.lock().unwrap(), [(0, true)]);
}

#[test]
fn many_requests_fly_at_once_and_a_slow_one_holds_nobody_up() {
    let server = Server::start();
    let mut link = server.link();
    let slow = link.send(&orders(NodeId(1), 200), within(2000)).unwrap();
    let pings: Vec<_> =
        (0..200).map(|_| link.send(&Request::Ping(Ping {}), within(2000)).unwrap()).collect();
    assert_eq!(link.in_flight(), 201);
    for ping in pings {
        assert_eq!(link.recv(within(150)).unwrap(), (ping, Reply::Ping(Pong { epoch: EPOCH })));
    }
    let (id, reply) = link.recv(within(2000)).unwrap();
    assert_eq!(id, slow);
    assert!(matches!(reply, Reply::Orders(Ok(_))));
    assert_eq!(link.in_flight(), 0);
}

#[test]
fn a_link_bounds_what_is_in_flight() {
    let server = Server::start();
    let mut link = server.link();
    for _ in 0..256 {
        link.send(&Request::Ping(Ping {}), within(2000)).unwrap();
    }
    let beyond = link.send(&Request::Ping(Ping {}), within(2000));
    assert!(matches!(beyond, Err(CallError::Busy { .. })));
    for _ in 0..256 {
        link.recv(within(2000)).unwrap();
    }
    assert!(link.call(&Request::Ping(Ping {}), within(2000)).is_ok(), "and goes on afterwards");
}

/// Proves G9: the server's thread is stuck, and the caller is not.
#[test]
fn a_stalled_server_costs_no_more_than_the_deadline() {
    let server = Server::start();
    for ms in [30, 250] {
        let mut link = server.link();
        let stall = Request::List(List { pattern: Pattern::Prefix(STALL), cursor: 0, limit: 0 });
        let start = boottime();
        let error = link.call(&stall, within(ms)).unwrap_err();
        let took = since(start);
        assert!(
            matches!(error, CallError::Deadline { awaited: "the reply to list", .. }),
            "{error}"
        );
        assert!(took >= Duration::from_millis(ms), "{took:?}");
        assert!(took < Duration::from_millis(ms + 100), "{took:?}");
        // The answer may still come, so the link is gone for good.
        assert!(!link.is_open());
        let again = link.call(&Request::Ping(Ping {}), within(1000));
        assert!(matches!(again, Err(CallError::Closed { .. })));
        std::thread::sleep(Duration::from_millis(1100));
    }
}

#[test]
fn the_server_gives_up_when_the_caller_does() {
    let server = Server::start();
    let mut link = server.link();
    // The caller's frame says 100 ms; the test listens longer, to hear what the server says.
    let id = link.send(&orders(SILENT, 0), within(100)).unwrap();
    let (answered, reply) = link.recv(within(2000)).unwrap();
    assert_eq!(answered, id);
    let Reply::Refuse(refusal) = reply else { panic!("{reply:?}") };
    assert_eq!(refusal.code, RefusalCode::Deadline);
    assert!(refusal.message.contains("orders"), "{refusal}");
    assert!(link.is_open());
    assert!(link.call(&Request::Ping(Ping {}), within(1000)).is_ok());
}

#[test]
fn a_deadline_that_passed_sends_nothing() {
    let server = Server::start();
    let mut link = server.link();
    let late = link.call(&Request::Ping(Ping {}), mooncrate_core::Deadline(1));
    assert!(matches!(late, Err(CallError::Deadline { .. })));
}

#[test]
fn an_answer_that_is_too_large_is_refused_in_words() {
    let server = Server::start();
    let mut link = server.link();
    let huge = Request::List(List { pattern: Pattern::Prefix(HUGE), cursor: 0, limit: 0 });
    let error = link.call(&huge, within(2000)).unwrap_err();
    assert!(matches!(error, CallError::Refused { code: RefusalCode::TooLarge, .. }), "{error}");
    assert!(link.call(&Request::Ping(Ping {}), within(1000)).is_ok(), "the link goes on");
}

#[test]
fn a_handler_that_fails_fails_its_request_only() {
    let server = Server::start();
    let mut link = server.link();
    let error = link.call(&orders(CURSED, 0), within(2000)).unwrap_err();
    assert!(matches!(error, CallError::Refused { code: RefusalCode::Internal, .. }), "{error}");
    assert!(link.call(&Request::Ping(Ping {}), within(1000)).is_ok());
}

#[test]
fn waiting_requests_are_bounded_by_not_reading() {
    let config = ServerConfig { in_flight_max: 4, ..ServerConfig::default() };
    let server = Server::start_with("127.0.0.1:0", config);
    let mut link = server.link();
    for _ in 0..12 {
        link.send(&orders(NodeId(1), 50), within(5000)).unwrap();
    }
    for _ in 0..12 {
        assert!(matches!(link.recv(within(5000)).unwrap().1, Reply::Orders(Ok(_))));
    }
    assert_eq!(server.toy.waiting_most.load(Ordering::SeqCst), 4);
}
