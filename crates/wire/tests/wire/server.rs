//! What a server does with peers that lie, stall, vanish or come at the wrong time; and how links
//! and pools live through it.

use crate::toy::*;
use mooncrate_core::door::Limits;
use mooncrate_core::ids::{HostId, NodeId, name_hash};
use mooncrate_lock::interrupt;
use mooncrate_wire::auth::{ClusterSecret, Token};
use mooncrate_wire::clock::boottime;
use mooncrate_wire::door::Keeper;
use mooncrate_wire::frame::*;
use mooncrate_wire::host::this_host;
use mooncrate_wire::message::*;
use mooncrate_wire::{
    Access, Address, CallError, Gate, Kind, Link, LinkConfig, LinkKind, LinkPool, MasterApi,
    PoolConfig, RefusalCode, ServerConfig,
};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

fn stamp(version: u8, kind: Kind) -> Stamp {
    Stamp { version, kind, reply: false, request: RequestId(3), deadline_ms: 1000 }
}

fn framed(stamp: Stamp, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    encode_frame(&mut out, stamp, |out| out.extend_from_slice(body)).unwrap();
    out
}

/// A peer that sends what it likes.
fn raw(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.address.to_string()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
    stream
}

/// The same, after a proper hello.
fn raw_greeted(server: &Server) -> TcpStream {
    let mut stream = raw(server);
    let mut body = Vec::new();
    hello().encode(&mut body);
    stream.write_all(&framed(stamp(VERSION_HELLO, Kind::Hello), &body)).unwrap();
    let mut bytes = [0; 1024];
    let count = stream.read(&mut bytes).unwrap();
    let frame = decode_frame(&bytes[..count]).unwrap().unwrap();
    assert_eq!(frame.header.kind(), Kind::Hello);
    let ack = HelloAck::decode(&bytes[frame.body]).unwrap();
    assert_eq!((ack.version, ack.epoch), (VERSION_MAX, EPOCH));
    stream
}

/// Everything until the server hangs up: the refusals, and nothing else.
fn refusals(stream: &mut TcpStream) -> Vec<(u64, RefusalCode, String)> {
    let mut bytes = Vec::new();
    // A reset instead of an end still leaves what was read.
    let _ = stream.read_to_end(&mut bytes);
    let mut found = Vec::new();
    let mut rest = &bytes[..];
    while let Some(frame) = decode_frame(rest).unwrap() {
        let Reply::Refuse(refusal) = Reply::decode(frame.header.kind(), &rest[frame.body]).unwrap()
        else {
            panic!("{:?}", frame.header)
        };
        found.push((frame.header.request().0, refusal.code, refusal.message));
        rest = &rest[frame.consumed..];
    }
    assert!(rest.is_empty());
    found
}

#[test]
fn versions_that_do_not_meet_are_named() {
    let server = Server::start();
    let mut hello = hello();
    (hello.version_min, hello.version_max) = (9, 10);
    let refused = Link::connect(&server.address, &hello, &LinkConfig::default(), within(1000));
    let error = refused.unwrap_err();
    assert!(matches!(error, CallError::Refused { code: RefusalCode::Version, .. }), "{error}");
    let words = error.to_string();
    assert!(words.contains("9 to 10") && words.contains("8 to 8"), "{words}");
}

#[test]
fn a_data_link_is_refused_by_a_control_server() {
    let server = Server::start();
    let hello = Hello::new(Role::Client, LinkKind::Data, "test");
    let refused = Link::connect(&server.address, &hello, &LinkConfig::default(), within(1000));
    let error = refused.unwrap_err();
    assert!(matches!(error, CallError::Refused { code: RefusalCode::WrongLink, .. }), "{error}");
}

#[test]
fn another_protocol_is_told_so() {
    let server = Server::start();
    let mut stream = raw(&server);
    stream.write_all(b"GET / HTTP/1.1\r\nHost: mooncrate.example\r\n\r\n").unwrap();
    let said = refusals(&mut stream);
    assert_eq!(said[0].1, RefusalCode::Protocol);
    assert!(said[0].2.contains("does not speak Mooncrate"), "{}", said[0].2);
}

#[test]
fn a_link_starts_with_a_hello() {
    let server = Server::start();
    let mut stream = raw(&server);
    stream.write_all(&framed(stamp(VERSION_MIN, Kind::Ping), &[])).unwrap();
    let said = refusals(&mut stream);
    assert_eq!((said[0].0, said[0].1), (3, RefusalCode::Protocol));
}

#[test]
fn a_silent_peer_does_not_keep_its_connection() {
    let handshake_time = Duration::from_millis(200);
    let config = ServerConfig { handshake_time, ..ServerConfig::default() };
    let server = Server::start_with("127.0.0.1:0", config);
    let start = boottime();
    assert!(refusals(&mut raw(&server)).is_empty());
    assert!(since(start) < Duration::from_secs(1));
}

#[test]
fn a_data_frame_on_a_control_link_ends_it() {
    let mut server = Server::start();
    let mut stream = raw_greeted(&server);
    stream.write_all(&framed(stamp(VERSION_MIN, Kind::Unpin), &0_u32.to_le_bytes())).unwrap();
    let said = refusals(&mut stream);
    assert_eq!((said[0].0, said[0].1), (3, RefusalCode::WrongLink));
    // The handler heard of this peer, so it hears that it is gone.
    server.end();
    assert_eq!(server.toy.gone.load(Ordering::SeqCst), 1);
}

/// A panic of a handler that answers at once takes its connection along, and nobody else's.
#[test]
fn a_panic_ends_one_connection() {
    let mut server = Server::start();
    let (mut doomed, mut other) = (server.link(), server.link());
    let doom = Request::List(List { pattern: Pattern::Prefix(DOOM), cursor: 0, limit: 0 });
    let error = doomed.call(&doom, within(1000)).unwrap_err();
    assert!(matches!(error, CallError::Closed { awaited: "the reply to list", .. }), "{error}");
    assert!(other.call(&Request::Ping(Ping {}), within(1000)).is_ok());
    server.end();
    assert_eq!(server.toy.gone.load(Ordering::SeqCst), 2);
}

#[test]
fn damaged_and_meaningless_frames_end_the_link_in_words() {
    let server = Server::start();
    let good = framed(stamp(VERSION_MIN, Kind::Heartbeat), &[1; 16]);
    let mut flipped = good.clone();
    flipped[34] ^= 1;
    let cases = [
        (flipped, "body checksum"),
        (framed(stamp(VERSION_MIN, Kind::Heartbeat), &[1, 2, 3]), "the body ends 5 bytes before"),
        (framed(stamp(VERSION_MIN, Kind::Ping), &[0]), "1 bytes follow"),
        (framed(stamp(VERSION_MIN - 1, Kind::Ping), &[]), "version 7"),
        (framed(stamp(VERSION_MAX + 1, Kind::Ping), &[]), "version 9"),
        (framed(Stamp { reply: true, ..stamp(VERSION_MIN, Kind::Ping) }, &[]), "no place here"),
    ];
    for (bytes, words) in cases {
        let mut stream = raw_greeted(&server);
        // A good request before it is still answered by a pong, so ask for nothing before.
        stream.write_all(&bytes).unwrap();
        let said = refusals(&mut stream);
        assert!(said[0].2.contains(words), "{said:?} lacks `{words}`");
    }
}

#[test]
fn an_oversized_frame_is_refused_by_its_header() {
    let server = Server::start();
    let mut stream = raw_greeted(&server);
    let mut bytes = framed(stamp(VERSION_MIN, Kind::Exist), &[]);
    bytes[16..20].copy_from_slice(&u32::MAX.to_le_bytes());
    let crc = crc32c::crc32c(&bytes[..28]).to_le_bytes();
    bytes[28..32].copy_from_slice(&crc);
    stream.write_all(&bytes).unwrap();
    let said = refusals(&mut stream);
    assert!(said[0].2.contains("over the limit"), "{said:?}");
}

/// A peer that goes on sending after its mistake still learns why it was cut off, if it sends for less than the 100 ms
/// for which the server reads on.
#[test]
fn the_last_words_arrive() {
    let server = Server::start();
    for _ in 0..50 {
        let mut stream = raw_greeted(&server);
        let start = boottime();
        stream.write_all(&framed(stamp(VERSION_MIN, Kind::Ping), &[0])).unwrap();
        let sent = (0..3).try_for_each(|_| {
            std::thread::sleep(Duration::from_millis(10));
            // A server that closed at once would answer this with a reset.
            stream.write_all(&vec![0; 100_000])
        });
        // On a busy machine this thread may have been late; then it tries again.
        if since(start) < Duration::from_millis(80) {
            sent.unwrap();
            assert_eq!(refusals(&mut stream)[0].1, RefusalCode::Protocol);
            return;
        }
    }
    panic!("this machine never sent 300 KB in 80 ms");
}

#[test]
fn a_slow_sender_is_cut_off_and_a_resting_one_is_not() {
    let frame_time = Duration::from_millis(200);
    let config = ServerConfig { frame_time, ..ServerConfig::default() };
    let server = Server::start_with("127.0.0.1:0", config);
    let mut resting = server.link();
    let mut stream = raw_greeted(&server);
    let start = boottime();
    let frame = framed(stamp(VERSION_MIN, Kind::Ping), &[]);
    // A byte now and then: the time counts from the first, not from the last.
    for byte in &frame[..10] {
        if stream.write_all(&[*byte]).is_err() {
            break;
        }
        std::thread::sleep(Duration::from_millis(40));
    }
    assert!(refusals(&mut stream).is_empty());
    assert!(since(start) < Duration::from_millis(1500));
    assert!(resting.call(&Request::Ping(Ping {}), within(1000)).is_ok());
}

#[test]
fn idle_connections_are_dropped_only_if_configured() {
    let idle_time = Some(Duration::from_millis(150));
    let config = ServerConfig { idle_time, ..ServerConfig::default() };
    let server = Server::start_with("127.0.0.1:0", config);
    let mut link = server.link();
    // A wait is no rest.
    assert!(link.call(&orders(NodeId(1), 400), within(2000)).is_ok());
    assert!(link.is_idle());
    std::thread::sleep(Duration::from_millis(400));
    assert!(!link.is_idle());
    let gone = link.call(&Request::Ping(Ping {}), within(1000));
    assert!(matches!(gone, Err(CallError::Closed { .. })), "{gone:?}");
}

#[test]
fn a_shutdown_finishes_what_is_being_handled_and_refuses_the_rest() {
    let drain_time = Duration::from_millis(800);
    let config = ServerConfig { drain_time, ..ServerConfig::default() };
    let mut server = Server::start_with("127.0.0.1:0", config);
    let mut link = server.link();
    let soon = link.send(&orders(NodeId(1), 300), within(5000)).unwrap();
    let never = link.send(&orders(SILENT, 0), within(5000)).unwrap();
    assert!(link.recv(within(100)).is_err(), "both wait; this also breaks the link");

    let mut link = server.link();
    let (soon2, never2) = (
        link.send(&orders(NodeId(1), 300), within(5000)).unwrap(),
        link.send(&orders(SILENT, 0), within(5000)).unwrap(),
    );
    assert_eq!((soon, never), (soon2, never2), "numbers are per link");
    std::thread::sleep(Duration::from_millis(50));
    let start = boottime();
    server.stop.send_replace(true);
    std::thread::sleep(Duration::from_millis(50));
    // Too late: nobody accepts, and what comes over the old link is refused.
    let late = link.send(&Request::Ping(Ping {}), within(5000)).unwrap();
    assert!(Link::connect(&server.address, &hello(), &LinkConfig::default(), within(300)).is_err());

    let mut answers = std::collections::BTreeMap::new();
    while let Ok((id, reply)) = link.recv(within(3000)) {
        let words = match reply {
            Reply::Orders(Ok(_)) => "orders".to_owned(),
            Reply::Refuse(refusal) => refusal.message,
            other => panic!("{other:?}"),
        };
        answers.insert(id, words);
    }
    assert_eq!(answers[&soon], "orders");
    assert_eq!(answers[&never], "the server is shutting down");
    assert_eq!(answers[&late], "the server is shutting down");
    server.end();
    assert!(since(start) < Duration::from_millis(2500), "{:?}", since(start));
}

#[test]
fn idle_connections_do_not_delay_a_shutdown() {
    let mut server = Server::start();
    let mut links: Vec<Link> = (0..20).map(|_| server.link()).collect();
    assert!(links[0].call(&Request::Ping(Ping {}), within(1000)).is_ok());
    let start = boottime();
    server.end();
    assert!(since(start) < Duration::from_millis(500), "{:?}", since(start));
    assert!(links.iter().all(|link| !link.is_idle()));
}

fn kept(limits: Limits) -> ServerConfig {
    let keeper = Keeper::new("a test", limits, |_| ());
    let gate = Gate::new(Some(ClusterSecret::from_bytes([5; 32])), None);
    ServerConfig { keeper, gate, ..ServerConfig::default() }
}

/// A link that has proved who it is.
fn known(server: &Server) -> Result<Link, CallError> {
    let token = Some(Arc::new(Token::Cluster(ClusterSecret::from_bytes([5; 32]))));
    let access = Access { token, ..Access::default() };
    let config = LinkConfig { access, ..LinkConfig::default() };
    Link::connect(&server.address, &hello(), &config, within(60_000))
}

#[test]
fn beyond_the_limit_callers_are_hung_up_on_until_one_leaves() {
    let limits = Limits { all: 1, strangers: 1, per_origin: 1 };
    let server = Server::start_with("127.0.0.1:0", kept(limits));
    let first = known(&server).unwrap();
    let error = known(&server).unwrap_err();
    assert!(matches!(error, CallError::Closed { .. } | CallError::Io { .. }), "{error}");
    drop(first);
    // Its place is free as soon as the server has noticed.
    let until = boottime().deadline_in(Duration::from_mins(1));
    while let Err(error) = known(&server) {
        assert!(!until.passed(boottime()), "{error}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A connection on which nothing is ever said.
struct Silent(socket2::Socket);

impl Silent {
    fn new(address: &Address) -> Self {
        let at = address.resolve().unwrap().swap_remove(0);
        let socket = socket2::Socket::new(at.domain(), socket2::Type::STREAM, None).unwrap();
        socket.connect(&at).unwrap();
        socket.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
        Self(socket)
    }

    /// Waits until the server hangs up.
    fn read_end(&self) {
        match (&self.0).read(&mut [0; 1]) {
            Ok(0) => {}
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
            other => panic!("{other:?}"),
        }
    }
}

/// As many as may be here, and they say nothing: the next ones come in all the same, and whoever has said
/// hello stays.
#[test]
fn security_silent_callers_do_not_keep_others_out() {
    let limits = Limits { all: 16, strangers: 8, per_origin: 8 };
    let config = ServerConfig { handshake_time: Duration::from_hours(1), ..kept(limits) };
    for path in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let unix = format!("unix:{}", folder.path().join("s").display());
        let at = if path { &unix } else { "127.0.0.1:0" };
        let server = Server::start_with(at, config.clone());
        let mut early = known(&server).unwrap();
        let silent: Vec<Silent> = (0..100).map(|_| Silent::new(&server.address)).collect();
        let mut late = known(&server).unwrap();
        assert!(late.call(&Request::Ping(Ping {}), within(60_000)).is_ok());
        assert!(early.call(&Request::Ping(Ping {}), within(60_000)).is_ok());
        assert_eq!(config.keeper.guests().0 - config.keeper.guests().1, 2);
        // The first of them was hung up on: its read ends, and not by the hour of its hello.
        silent[0].read_end();
        drop((silent, early, late));
    }
}

/// The same where nobody has anything to prove: a hello is what a flood does not say.
#[test]
fn security_links_of_an_open_gate_outlive_a_flood() {
    let limits = Limits { all: 16, strangers: 8, per_origin: 8 };
    let time = Duration::from_hours(1);
    let config = ServerConfig { handshake_time: time, gate: Gate::default(), ..kept(limits) };
    let server = Server::start_with("127.0.0.1:0", config);
    let mut early = server.link();
    let silent: Vec<Silent> = (0..100).map(|_| Silent::new(&server.address)).collect();
    // The server has met all of them but the last eight.
    silent[91].read_end();
    assert!(early.call(&Request::Ping(Ping {}), within(60_000)).is_ok());
    assert!(server.link().call(&Request::Ping(Ping {}), within(60_000)).is_ok());
}

#[test]
fn a_pool_keeps_a_few_links_and_bounds_the_rest() {
    let server = Server::start();
    let pool = server.pool(PoolConfig { idle_max: 2, links_max: 3, ..PoolConfig::default() });
    let held: Vec<_> = (0..3).map(|_| pool.checkout(within(1000)).unwrap()).collect();
    let beyond = pool.checkout(within(50)).unwrap_err();
    assert!(matches!(beyond, CallError::Busy { links: 3, .. }), "{beyond}");
    assert_eq!((pool.in_use(), pool.idle()), (3, 0));
    drop(held);
    assert_eq!((pool.in_use(), pool.idle()), (0, 2));
    assert!(pool.checkout(within(1000)).unwrap().is_reused());
    // A link that met an error, or still expects an answer, does not come back.
    let mut busy = pool.checkout(within(1000)).unwrap();
    busy.send(&Request::Ping(Ping {}), within(1000)).unwrap();
    drop(busy);
    assert_eq!((pool.in_use(), pool.idle()), (0, 1));
    let mut late = pool.checkout(within(1000)).unwrap();
    let stall = Request::List(List { pattern: Pattern::Prefix(STALL), cursor: 0, limit: 0 });
    assert!(matches!(late.call(&stall, within(20)), Err(CallError::Deadline { .. })));
    drop(late);
    assert_eq!((pool.in_use(), pool.idle()), (0, 0));
}

/// One more than may be in use waits for one that comes back, also where a lost peer is not waited for.
#[test]
fn a_caller_waits_for_a_link_that_others_use() {
    let server = Server::start();
    let reconnect_time = Duration::ZERO;
    let pool = server.pool(PoolConfig { links_max: 1, reconnect_time, ..PoolConfig::default() });
    let held = pool.checkout(within(60_000)).unwrap();
    std::thread::scope(|scope| {
        let next = scope.spawn(|| pool.checkout(within(60_000)).map(|link| link.is_reused()));
        // Before or while it waits: it must come through either way.
        std::thread::yield_now();
        drop(held);
        assert!(next.join().unwrap().unwrap(), "the very link that came back");
    });
    let _held = pool.checkout(within(60_000)).unwrap();
    assert!(matches!(pool.checkout(within(50)).unwrap_err(), CallError::Busy { .. }));
    assert_eq!((pool.in_use(), pool.waiting()), (1, 0));
}

/// Those who wait are served in the order they came; one whose time is over leaves the line, and one who comes
/// later, or does not want to wait, overtakes nobody.
#[test]
fn callers_wait_in_line() {
    let server = Server::start();
    let pool = server.pool(PoolConfig { links_max: 1, ..PoolConfig::default() });
    let held = pool.checkout(within(60_000)).unwrap();
    let order = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for n in 0..6 {
            let (pool, order) = (&pool, &order);
            let caller = scope.spawn(move || {
                let time = if n == 2 { 1 } else { 60_000 };
                match pool.checkout(within(time)) {
                    Ok(_link) => order.lock().unwrap().push(n),
                    Err(error) => assert!(n == 2 && matches!(error, CallError::Busy { .. })),
                }
            });
            // The next one comes when this one stands in line, or has left it.
            if n == 2 {
                caller.join().unwrap();
            }
            let end = boottime().deadline_in(Duration::from_mins(1));
            let stands = if n < 2 { n + 1 } else { n };
            while pool.waiting() != stands {
                assert!(!end.passed(boottime()), "{n} does not wait");
                std::thread::yield_now();
            }
        }
        assert!(pool.checkout_free(within(60_000)).unwrap().is_none());
        drop(held);
    });
    assert_eq!(*order.lock().unwrap(), [0, 1, 3, 4, 5]);
    assert_eq!((pool.in_use(), pool.idle(), pool.waiting()), (0, 1, 0));
}

/// The hook finds the pool unlocked: a signal handler may make calls over it.
#[test]
fn a_caller_that_waits_for_a_link_can_be_interrupted() {
    thread_local! {
        static POOL: std::cell::Cell<Option<&'static LinkPool>> = const { std::cell::Cell::new(None) };
    }
    let server = Server::start();
    let reconnect_time = Duration::from_hours(1);
    let config = PoolConfig { links_max: 1, reconnect_time, ..PoolConfig::default() };
    let pool: &'static LinkPool = Box::leak(Box::new(server.pool(config)));
    POOL.set(Some(pool));
    let _held = pool.checkout(within(60_000)).unwrap();
    let ask = |_| POOL.get().is_some_and(|pool| pool.in_use() == 1);
    let (ended, over) = interrupt::under(ask, || pool.checkout(within(3_600_000)).map(drop));
    assert!(matches!(ended, Err(CallError::Interrupted { .. })), "{ended:?}");
    assert!(over);
}

#[test]
fn a_pool_survives_a_restart() {
    let mut server = Server::start();
    let address = server.address.to_string();
    let pool = server.pool(PoolConfig::default());
    let ping = Request::Ping(Ping {});
    assert!(pool.call(&ping, within(1000)).is_ok());
    server.end();
    let server = Server::start_with(&address, ServerConfig::default());
    // The resting link is dead, and it rested too short a time to be asked for its health.
    assert_eq!(pool.idle(), 1);
    assert!(pool.call(&ping, within(1000)).is_ok());
    drop(server);
    std::thread::sleep(Duration::from_millis(150));
    let _server = Server::start_with(&address, ServerConfig::default());
    // This one rested long enough: even a request that must not be repeated goes through.
    let items = [PutItem::new(b"k", 1)];
    let put = Request::PutStart(PutStart {
        config: std::borrow::Cow::default(),
        items: (&items[..]).into(),
    });
    assert!(pool.call(&put, within(1000)).is_ok());
}

/// A master elsewhere behind a forwarder of this machine (ssh -L, a sidecar): the forwarder refuses, and the master is
/// alive and gives keys up. Was: taken for the proof that no master leads, for every address of this machine.
#[test]
fn a_refusal_proves_nothing_of_a_master_on_another_machine() {
    let here = HostId(name_hash(&this_host()));
    for (host, proved) in [(here, true), (HostId(1), false), (HostId(0), false)] {
        let config = ServerConfig { host, ..ServerConfig::default() };
        let mut server = Server::start_with("127.0.0.1:0", config);
        let master = server.master();
        master.ping(within(2000)).unwrap();
        assert!(!master.nobody_listens());
        server.end();
        assert_eq!(master.nobody_listens(), proved, "{host:?}");
        assert!(!server.master().nobody_listens(), "it has answered nobody");
    }
}

#[test]
fn a_pool_waits_for_a_peer_that_is_coming_up() {
    let mut server = Server::start();
    let address = server.address.clone();
    server.end();
    let pool = LinkPool::new(address.clone(), hello(), PoolConfig::default());
    let start = boottime();
    let error = pool.call(&Request::Ping(Ping {}), within(300)).unwrap_err();
    assert!(matches!(error, CallError::Io { .. }), "{error}");
    assert!(error.to_string().contains(&address.to_string()), "{error}");
    assert!(since(start) < Duration::from_millis(400));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| pool.call(&Request::Ping(Ping {}), within(3000)).is_ok());
        std::thread::sleep(Duration::from_millis(300));
        let _server = Server::start_with(&address.to_string(), ServerConfig::default());
        assert!(waiting.join().unwrap());
    });
}
