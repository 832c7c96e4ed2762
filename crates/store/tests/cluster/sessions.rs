//! Sessions: a value written layer by layer appears at its end, whole or not at all; a value read layer
//! by layer is held by a lease.

use crate::fleet::{
    Fleet, LONG_REGISTRATION, Process, REGISTRATION, catalog, connect, judge, patiently, segment,
    stamped, until,
};
use crate::ranges::striped;
use mooncrate::{
    CatalogConfig, ClientConfig, ConnectOptions, EmbeddedOptions, Error, GetSession, Opened,
    PutConfig, PutSession, RangeInto, SessionError, SessionParts, Store, Stored,
};
use mooncrate_core::NodeId;
use mooncrate_core::copy::DrainMode;
use mooncrate_core::error::PutError;
use mooncrate_core::rng::Rng;
use rustix::process::Signal;
use std::time::Duration;

const LEN: usize = 3_400_000;
const LAYERS: usize = 40;

fn session_error(error: &Error) -> SessionError {
    match error {
        Error::Client(mooncrate_client::Error::Session(error)) => *error,
        other => panic!("{other}"),
    }
}

fn put_error(error: &Error) -> PutError {
    match error {
        Error::Client(mooncrate_client::Error::Put(error)) => *error,
        other => panic!("{other}"),
    }
}

/// Starts and ends of layers, in an order of their own.
fn layers(seed: u64) -> Vec<(usize, usize)> {
    let step = LEN.div_ceil(LAYERS);
    let mut layers: Vec<(usize, usize)> =
        (0..LAYERS).map(|n| (n * step, LEN.min((n + 1) * step))).collect();
    let mut rng = Rng::new(seed);
    for at in (1..layers.len()).rev() {
        layers.swap(at, rng.below(at as u64 + 1) as usize);
    }
    layers
}

fn whole_life(store: &Store, config: &PutConfig) {
    let value = stamped(b"s", 1, LEN);
    let session = store.put_session(b"s", LEN as u64, config).unwrap();
    let second = store.put_session(b"s", 10, config).unwrap_err();
    assert!(matches!(put_error(&second), PutError::InProgress { .. }), "{second}");
    // Four threads, each with its own layers.
    let layers = layers(3);
    std::thread::scope(|scope| {
        for mine in layers[1..].chunks(10) {
            let (session, value) = (&session, &value);
            scope.spawn(move || {
                for &(from, to) in mine {
                    session.write(from as u64, &value[from..to]).unwrap();
                }
            });
        }
    });
    let (from, to) = layers[0];
    let gap = session_error(&session.end().unwrap_err());
    assert_eq!(gap, SessionError::Gap { start: from as u64, end: to as u64 });
    assert!(!store.exists(b"s").unwrap());
    assert_eq!((store.get(b"s").unwrap(), store.size(b"s").unwrap()), (None, None));
    let (a, b) = layers[1];
    let twice = session_error(&session.write(a as u64, &value[a..b]).unwrap_err());
    assert_eq!(twice, SessionError::Overlap { start: a as u64, end: b as u64 });
    let past = session_error(&session.write(LEN as u64 - 1, b"xx").unwrap_err());
    assert!(matches!(past, SessionError::OutOfRange { .. }));
    session.write(from as u64, &value[from..to]).unwrap();
    session.end().unwrap();
    judge(b"s", 1, LEN, &store.get(b"s").unwrap().unwrap());
    assert_eq!(session_error(&session.end().unwrap_err()), SessionError::Over);
    assert_eq!(session_error(&session.write(0, b"x").unwrap_err()), SessionError::Over);
    assert!(!session.revoke(), "what is published stays");
    drop(session);
    judge(b"s", 1, LEN, &store.get(b"s").unwrap().unwrap());
    let there = store.put_session(b"s", 10, config).unwrap_err();
    assert_eq!(put_error(&there), PutError::Exists);
    given_back(store, config);
    read_by_layers(store, &value);
    assert_eq!(store.stat().unwrap().open_puts, 0);
}

/// Revoked, dropped and empty sessions.
fn given_back(store: &Store, config: &PutConfig) {
    for revoke in [true, false] {
        let session = store.put_session(b"r", LEN as u64, config).unwrap();
        session.write(1_500_000, &vec![1; 100_000]).unwrap();
        if revoke {
            assert!(session.revoke() && !session.revoke());
            assert_eq!(session_error(&session.write(0, b"x").unwrap_err()), SessionError::Over);
        }
        drop(session);
        assert!(!store.exists(b"r").unwrap());
        let value = stamped(b"r", 2, 5000);
        assert_eq!(patiently(|| store.put(b"r", &value)), Stored::New);
        judge(b"r", 2, 5000, &store.get(b"r").unwrap().unwrap());
        assert!(store.remove(b"r", false).unwrap());
    }
    let empty = patiently(|| store.put_session(b"e", 0, config));
    empty.write(0, &[]).unwrap();
    empty.end().unwrap();
    assert_eq!(store.get(b"e").unwrap().as_deref(), Some(&[][..]));
}

fn read_by_layers(store: &Store, value: &[u8]) {
    let second = Duration::from_secs(1);
    assert!(store.get_session(b"nobody", second).unwrap().is_none());
    let session = store.get_session(b"s", 10 * second).unwrap().unwrap();
    assert_eq!(session.value_len(), LEN as u64);
    assert!(store.remove(b"s", false).is_err(), "it is leased");
    for (from, to) in layers(9) {
        let mut layer = vec![0; to - from];
        assert_eq!(session.read(from as u64, &mut layer).unwrap(), layer.len());
        assert!(layer[..] == value[from..to]);
    }
    let (mut good, mut bad) = ([0; 10], [0; 10]);
    let mut ranges = [
        RangeInto { start: LEN as u64 - 9, into: &mut bad },
        RangeInto { start: LEN as u64 - 10, into: &mut good },
    ];
    let read = session.read_ranges(&mut ranges).unwrap();
    assert!(read[0].is_err() && *read[1].as_ref().unwrap() == 10);
    assert_eq!(good[..], value[LEN - 10..]);
}

#[test]
fn sessions_in_this_process() {
    let store = Store::embedded(EmbeddedOptions::default()).unwrap();
    whole_life(&store, &store.put_config());
    store.master().unwrap().audit().unwrap();
}

/// In stripes of 1 MiB, two copies of each, over either path.
fn sessions_in_a_cluster(shared_memory: bool) {
    let (master, _nodes, _folder) = striped();
    let store = connect(&master.master_address().unwrap(), shared_memory);
    whole_life(&store, &PutConfig { replicas: 2, ..store.put_config() });
    master.master().unwrap().audit().unwrap();
}

#[test]
fn sessions_over_shared_memory() {
    sessions_in_a_cluster(true);
}

#[test]
fn sessions_over_tcp() {
    sessions_in_a_cluster(false);
}

#[test]
fn a_session_reads_until_its_lease_is_over() {
    let store = Store::embedded(EmbeddedOptions::default()).unwrap();
    store.put(b"k", &stamped(b"k", 1, 5000)).unwrap();
    let mut into = [0; 100];
    let session = store.get_session(b"k", Duration::from_millis(100)).unwrap().unwrap();
    until("the lease ends", Duration::from_secs(5), || session.lease_left().is_zero());
    let over = session.read(0, &mut into).unwrap_err();
    assert_eq!(session_error(&over), SessionError::LeaseOver);
    // In its second half a lease is renewed by a read.
    let session = store.get_session(b"k", Duration::from_secs(6)).unwrap().unwrap();
    let half = Duration::from_secs(3);
    until("half of the lease is over", 2 * half, || session.lease_left() < half);
    session.read(0, &mut into).unwrap();
    assert!(session.lease_left() > half);
}

/// The parts of a session are of the object that was there when it began, or it says so.
#[test]
fn a_session_never_reads_another_object() {
    let (master, _nodes, _folder) = striped();
    let address = master.master_address().unwrap();
    let (reader, writer) = (connect(&address, true), connect(&address, false));
    writer.put(b"k", &stamped(b"k", 1, LEN)).unwrap();
    let session = reader.get_session(b"k", Duration::from_secs(5)).unwrap().unwrap();
    let upsert = PutConfig { upsert: true, ..writer.put_config() };
    let _told = writer.put_parts(b"k", &[&stamped(b"k", 2, LEN)], &upsert);
    let (first, mut into) = (stamped(b"k", 1, LEN), vec![0; 1_000_000]);
    match session.read(1_000_000, &mut into) {
        Ok(_) => assert!(into[..] == first[1_000_000..2_000_000]),
        Err(error) => assert!(error.to_string().contains("stale"), "{error}"),
    }
}

/// A writer that is killed in the middle of its session leaves nothing behind, long before the put
/// would time out.
#[test]
fn the_session_of_a_dead_writer_is_given_back() {
    let (master, _nodes, _folder) = striped();
    let address = master.master_address().unwrap();
    let store = connect(&address, true);
    for path in ["shared", "tcp"] {
        let mut writer = Process::start(&format!("session {address} {path}"));
        assert_eq!(writer.word(), "ready");
        assert_eq!(store.stat().unwrap().open_puts, 1);
        let value = stamped(b"layers", 9, 400_000);
        assert!(store.put(b"layers", &value).is_err(), "its put is under way");
        writer.kill();
        assert_eq!(patiently(|| store.put(b"layers", &value)), Stored::New);
        judge(b"layers", 9, 400_000, &store.get(b"layers").unwrap().unwrap());
        assert!(store.remove(b"layers", false).unwrap());
        master.master().unwrap().audit().unwrap();
    }
}

/// A put may stay open for so long only; its writer is told in words, and the key is free again.
#[test]
fn a_session_that_takes_too_long_says_so() {
    let fleet = Fleet::start(&["a"]);
    for shared_memory in [true, false] {
        let store = connect(&fleet.address, shared_memory);
        let session = store.put_session(b"slow", 100_000, &store.put_config()).unwrap();
        let error = session.write(0, &vec![1; 100_000]).and_then(|()| {
            until("the put times out", 3 * REGISTRATION, || store.stat().unwrap().open_puts == 0);
            session.end()
        });
        let error = error.unwrap_err();
        assert_eq!(session_error(&error), SessionError::TimedOut, "{error}");
        drop(session);
        let value = stamped(b"slow", 3, 1000);
        assert_eq!(patiently(|| store.put(b"slow", &value)), Stored::New);
        assert!(store.remove(b"slow", false).unwrap());
    }
    fleet.audit();
}

fn name(n: u32) -> Vec<u8> {
    format!("many/{n}").into_bytes()
}

/// Sessions for values of 5,000 bytes.
fn started(store: &Store, names: &[Vec<u8>], config: &PutConfig) -> Vec<Result<PutSession, Error>> {
    let items: Vec<(&[u8], u64)> = names.iter().map(|name| (&name[..], 5000)).collect();
    store.put_sessions(&items, config)
}

/// Many sessions of one call have a result each, at its own place.
#[test]
fn many_sessions_at_once() {
    let (master, _nodes, _folder) = striped();
    let store = connect(&master.master_address().unwrap(), true);
    let config = PutConfig { replicas: 2, ..store.put_config() };
    let mut names: Vec<Vec<u8>> = (0..8).map(name).collect();
    store.put(&names[3], b"there").unwrap();
    // One key twice: the second is in the way of nobody but itself.
    names[5] = name(4);
    let sessions = started(&store, &names, &config);
    let refused: Vec<usize> = (0..8).filter(|at| sessions[*at].is_err()).collect();
    assert_eq!(refused, [3, 5]);
    assert_eq!(put_error(sessions[3].as_ref().unwrap_err()), PutError::Exists);
    assert!(matches!(put_error(sessions[5].as_ref().unwrap_err()), PutError::InProgress { .. }));
    let sessions: Vec<PutSession> = sessions.into_iter().filter_map(Result::ok).collect();
    let numbers = [0, 1, 2, 4, 6, 7];
    for (n, session) in numbers.into_iter().zip(&sessions) {
        let bytes = if n == 2 { 4000 } else { 5000 };
        session.write(0, &stamped(&name(n), n, 5000)[..bytes]).unwrap();
    }
    sessions[5].revoke();
    let all: Vec<&PutSession> = sessions.iter().collect();
    let ended = PutSession::end_all(&all);
    for (n, ended) in numbers.into_iter().zip(&ended) {
        match (n, ended) {
            (2, Err(error)) => {
                let gap = SessionError::Gap { start: 4000, end: 5000 };
                assert_eq!(session_error(error), gap);
            }
            (7, Err(error)) => assert_eq!(session_error(error), SessionError::Over),
            (_, ended) => assert!(ended.is_ok(), "{n}: {ended:?}"),
        }
    }
    sessions[2].write(4000, &stamped(&name(2), 2, 5000)[4000..]).unwrap();
    PutSession::end_all(&[&sessions[2]]).pop().unwrap().unwrap();
    read_many(&store);
    assert_eq!(store.stat().unwrap().open_puts, 0);
    master.master().unwrap().audit().unwrap();
}

fn read_many(store: &Store) {
    let names: Vec<Vec<u8>> = [0, 1, 2, 4, 6, 9].map(name).into();
    let asked: Vec<&[u8]> = names.iter().map(|name| &name[..]).collect();
    let opened = store.get_sessions(&asked, Duration::from_secs(10));
    let mut sessions: Vec<GetSession> = Vec::new();
    for (at, opened) in opened.into_iter().enumerate() {
        match opened.unwrap() {
            Opened::Session(session) => sessions.push(session),
            _ => assert_eq!(at, 5),
        }
    }
    let mut values = [(); 5].map(|()| vec![0; 5000]);
    let mut ranges: Vec<[RangeInto<'_>; 1]> =
        values.iter_mut().map(|into| [RangeInto { start: 0, into }]).collect();
    // Reaches past the end, and spoils no other session.
    let mut past = [0; 10];
    ranges[1] = [RangeInto { start: 4995, into: &mut past }];
    let mut items: Vec<(&GetSession, &mut [RangeInto<'_>])> =
        sessions.iter().zip(&mut ranges).map(|(one, ranges)| (one, &mut ranges[..])).collect();
    let read = GetSession::read_all(&mut items);
    assert!(read[1].as_ref().unwrap()[0].is_err());
    for (at, n) in [(0, 0), (2, 2), (3, 4), (4, 6)] {
        assert_eq!(*read[at].as_ref().unwrap()[0].as_ref().unwrap(), 5000);
        judge(&name(n), n, 5000, &values[at]);
    }
}

/// Eight sessions at two owners that nobody gives up soon: those of the first four names at `a`, the others at `b`.
fn at_two_owners(shared_memory: bool) -> (Fleet, Store, Vec<PutSession>) {
    let registration = LONG_REGISTRATION;
    let put_timeout = Duration::from_mins(1);
    let fleet =
        Fleet::start_with(&["a", "b"], CatalogConfig { registration, put_timeout, ..catalog() });
    // Half of it for the owners, and the other half to end what can be ended.
    let client = ClientConfig { call_time: Duration::from_secs(4), ..ClientConfig::default() };
    let master = fleet.address.clone().into();
    let options = ConnectOptions { master, shared_memory, client, ..Default::default() };
    let store = Store::connect(options).unwrap();
    let names: Vec<Vec<u8>> = (0..8).map(name).collect();
    let mut sessions = Vec::new();
    for (names, node) in names.chunks(4).zip(["a", "b"]) {
        let config = PutConfig { preferred: vec![segment(node)], ..store.put_config() };
        sessions.extend(started(&store, names, &config).into_iter().map(Result::unwrap));
    }
    (fleet, store, sessions)
}

/// G12: sessions at two owners, of which one is stopped, end together: the other one's values are stored.
#[test]
fn a_stopped_owner_ruins_no_sessions_of_others() {
    let (fleet, store, sessions) = at_two_owners(false);
    for (n, session) in (0..).zip(&sessions) {
        session.write(0, &stamped(&name(n), n, 5000)).unwrap();
    }
    fleet.nodes[0].stop();
    let ended = PutSession::end_all(&sessions.iter().collect::<Vec<_>>());
    for (n, ended) in ended.iter().enumerate() {
        assert_eq!(ended.is_ok(), n >= 4, "{n}: {ended:?}");
    }
    for n in 4..8 {
        judge(&name(n), n, 5000, &store.get(&name(n)).unwrap().unwrap());
    }
    fleet.nodes[0].signal(Signal::CONT);
    fleet.audit();
}

/// Parts for sessions at two owners, of which one is stopped: it is waited for once, the other one takes all of its
/// own. Eight sessions took eight times the time of a call, and no part after that of the first could be written.
#[test]
fn a_stopped_owner_is_waited_for_once_by_a_batch_of_parts() {
    let (fleet, store, sessions) = at_two_owners(true);
    fleet.nodes[0].stop();
    let values: Vec<Vec<u8>> = (0..8).map(|n| stamped(&name(n), n, 5000)).collect();
    // In two parts each, the second one first.
    let parts: Vec<[(u64, &[u8]); 2]> =
        values.iter().map(|value| [(1000, &value[1000..]), (0, &value[..1000])]).collect();
    let items: Vec<SessionParts<'_, PutSession>> =
        sessions.iter().zip(&parts).map(|(session, parts)| (session, &parts[..])).collect();
    let written = PutSession::write_all(&items);
    for (n, written) in written.iter().enumerate() {
        let words = written.as_ref().err().map(ToString::to_string);
        let left_alone = words.as_deref().is_some_and(|words| words.contains("lately"));
        assert_eq!((written.is_ok(), left_alone), (n >= 4, (1..4).contains(&n)), "{n}: {words:?}");
    }
    fleet.nodes[0].signal(Signal::CONT);
    // Those that were not written to are not broken.
    let written = PutSession::write_all(&items[1..4]);
    assert!(written.iter().all(Result::is_ok), "{written:?}");
    let ended = PutSession::end_all(&sessions[1..].iter().collect::<Vec<_>>());
    assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    for n in 1..8 {
        judge(&name(n), n, 5000, &store.get(&name(n)).unwrap().unwrap());
    }
    drop(sessions);
    fleet.audit();
}

/// A lease keeps an object, not its place: when it moves, the session goes along.
#[test]
fn a_session_follows_its_object() {
    let fleet = Fleet::start(&["a", "b"]);
    let store = connect(&fleet.address, true);
    let config = PutConfig { preferred: vec![segment("a")], ..store.put_config() };
    let value = stamped(b"k", 1, 5000);
    store.put_parts(b"k", &[&value], &config).unwrap();
    let session = store.get_session(b"k", Duration::from_secs(10)).unwrap().unwrap();
    let a = NodeId::named("a");
    store.drain(a, None, DrainMode::Move).unwrap().unwrap();
    let read = || {
        let mut into = vec![0; 4000];
        session.read(1000, &mut into).unwrap();
        assert!(into[..] == value[1000..]);
    };
    for seen in store.drain_progress(a, None, Duration::from_millis(5)) {
        read();
        if seen.unwrap().moved == 1 {
            break;
        }
    }
    read();
    fleet.audit();
}
