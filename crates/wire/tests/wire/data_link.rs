//! Both ends of a data link: attachments in pieces, descriptors, refusals, and a peer that stalls.

use crate::toy::{locator, since, within};
use mooncrate_core::ids::*;
use mooncrate_core::seal::Seal;
use mooncrate_wire::address::Bound;
use mooncrate_wire::clock::boottime;
use mooncrate_wire::frame::{
    Stamp, VERSION_HELLO, VERSION_MAX, VERSION_MIN, decode_frame, encode_frame,
};
use mooncrate_wire::message::*;
use mooncrate_wire::{
    Address, CallError, DataError, Gate, Kind, Link, LinkConfig, LinkKind, RefusalCode, RequestId,
};
use std::io::{IoSlice, Read as _, Seek as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Barrier;
use std::time::Duration;

const DATA: Hello = Hello {
    version_min: VERSION_MIN,
    version_max: VERSION_MAX,
    role: Role::Client,
    link: LinkKind::Data,
    name: String::new(),
};

/// Bytes in which every position differs from its neighbours.
fn value(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n ^ (n >> 8) ^ (n >> 16)) as u8).collect()
}

fn put(len: usize) -> BeginWrite<'static> {
    BeginWrite {
        locator: locator(),
        token: PutToken(7),
        object: ObjectId { epoch: LeaderEpoch(1), sequence: 2 },
        epoch: LeaderEpoch(1),
        len: len as u64,
        label: b"key",
    }
}

fn accept(bound: &Bound) -> (Link, Hello) {
    let socket: OwnedFd = loop {
        let accepted = match bound {
            Bound::Tcp(listener) => listener.accept().map(|(stream, _)| stream.into()),
            Bound::Unix(listener) => listener.accept().map(|(stream, _)| stream.into()),
            Bound::World(_) => unreachable!("this is no world"),
        };
        match accepted {
            Ok(socket) => break socket,
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    let answer = |hello: &Hello, version| {
        assert_eq!(hello.link, LinkKind::Data);
        HelloAck { version, name: "node".to_owned(), epoch: LeaderEpoch(1), host: HostId(9) }
    };
    Link::accept(
        socket,
        LinkKind::Data,
        &LinkConfig::default(),
        &Gate::default(),
        within(2000),
        answer,
    )
    .map(|came| (came.link, came.hello))
    .unwrap()
}

fn dial(address: &Address) -> Link {
    Link::connect(address, &DATA, &LinkConfig::default(), within(2000)).unwrap()
}

fn answer(node: &mut Link, id: RequestId, reply: &DataReply, parts: &[IoSlice<'_>]) {
    node.queue_reply(id, reply, parts, within(5000)).unwrap();
    node.flush(within(5000)).unwrap();
}

/// Runs both ends, over TCP and over a Unix socket.
fn both(node: impl Fn(&mut Link) + Sync, client: impl Fn(&mut Link)) {
    let folder = tempfile::tempdir().unwrap();
    let path = Address::Unix(folder.path().join("data.sock"));
    for address in ["127.0.0.1:0".parse().unwrap(), path] {
        let bound = Bound::listen(&address).unwrap();
        let address = bound.address().unwrap();
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| node(&mut accept(&bound).0));
            client(&mut dial(&address));
            thread.join().unwrap();
        });
    }
}

#[test]
fn a_value_goes_over_in_parts_and_comes_back() {
    // Empty, within the first read, over it, and over many chunks.
    for len in [0, 1, 100, 20_000, 5_000_003] {
        let sent = &value(len);
        both(
            |node| {
                let asked = node.recv_request(within(2000)).unwrap();
                let DataRequest::Write(write) = asked.request else { panic!() };
                assert_eq!((write.put.len, write.put.label), (len as u64, &b"key"[..]));
                let id = asked.id;
                assert_eq!(node.attachment_left(), len as u64);
                let mut bytes = vec![0; len];
                let mut seen = Vec::new();
                // In two halves, as an owner with two buffers would.
                let (first, second) = bytes.split_at_mut(len / 3);
                node.recv_attachment(first, |piece| seen.extend_from_slice(piece), within(5000))
                    .unwrap();
                node.recv_attachment(second, |piece| seen.extend_from_slice(piece), within(5000))
                    .unwrap();
                assert!(bytes == *sent && seen == *sent, "{len} bytes");
                answer(node, id, &DataReply::Write(Ok(())), &[]);

                let asked = node.recv_request(within(2000)).unwrap();
                let DataRequest::Signal(signal) = asked.request else { panic!() };
                assert_eq!(signal.seal, Seal(3));
                let id = asked.id;
                answer(node, id, &DataReply::Signal(Ok(())), &[]);

                let asked = node.recv_request(within(2000)).unwrap();
                let DataRequest::Read(read) = asked.request else { panic!() };
                let (id, start) = (asked.id, read.start as usize);
                let part = &bytes[start..start + read.len as usize];
                let reply = DataReply::Read(ReadReply { result: Ok(part.len() as u64) });
                answer(node, id, &reply, &[IoSlice::new(part)]);
            },
            |client| {
                assert_eq!(client.peer().host, HostId(9));
                // Many parts in one call, more than fit one vectored send, some empty; the rest
                // piece by piece.
                let most = len / 2;
                let mut parts: Vec<_> =
                    sent[..most].chunks(most / 40 + 1).map(IoSlice::new).collect();
                parts.insert(parts.len() / 2, IoSlice::new(&[]));
                let write = DataRequest::Write(Write { put: put(len) });
                let id = client.send_data(&write, &parts, within(5000)).unwrap();
                assert_eq!(client.part_left(), (len - most) as u64);
                for piece in sent[most..].chunks(100_000) {
                    client.send_part(piece, within(5000)).unwrap();
                }
                let signal = Signal { locator: locator(), token: PutToken(7), seal: Seal(3) };
                let signal = DataRequest::Signal(signal);
                let signal = client.send_data(&signal, &[], within(2000)).unwrap();
                let replies = [
                    client.recv_data(within(5000)).unwrap(),
                    client.recv_data(within(5000)).unwrap(),
                ];
                let expected =
                    [(id, DataReply::Write(Ok(()))), (signal, DataReply::Signal(Ok(())))];
                assert_eq!(replies, expected);

                let start = (len / 5) as u64;
                let read = Read { locator: locator(), start, len: len as u64 - start };
                let reply = client.call_data(&DataRequest::Read(read), &[], within(5000)).unwrap();
                assert_eq!(reply, DataReply::Read(ReadReply { result: Ok(len as u64 - start) }));
                let mut back = vec![0; len - start as usize];
                client.recv_attachment(&mut back, |_| (), within(5000)).unwrap();
                assert!(back == sent[start as usize..], "{len} bytes");
                assert!(client.at_rest());
            },
        );
    }
}

/// What is queued leaves together: when that is asked for, when it is much, or when its sender waits.
#[test]
fn small_frames_leave_together() {
    const VALUES: usize = 5;
    let sent = &value(1000);
    let (queued, looked) = (&Barrier::new(2), &Barrier::new(2));
    both(
        |node| {
            queued.wait();
            assert!(node.is_idle(), "something left before it was to");
            looked.wait();
            for n in 0..VALUES {
                let id = node.recv_request(within(5000)).unwrap().id;
                let mut bytes = vec![0; sent.len()];
                node.recv_attachment(&mut bytes, |_| (), within(5000)).unwrap();
                assert!(bytes == *sent);
                node.queue_reply(id, &DataReply::Write(Ok(())), &[], within(5000)).unwrap();
                assert_eq!(node.has_request(), n + 1 < VALUES);
                assert!(!node.at_rest(), "an answer left before it was to");
            }
            // Nothing comes; before it waits for that, the answers leave.
            assert!(node.recv_request(within(5000)).is_err());
        },
        |client| {
            let write = DataRequest::Write(Write { put: put(sent.len()) });
            for _ in 0..VALUES {
                client.queue_data(&write, &[IoSlice::new(sent)], within(5000)).unwrap();
            }
            queued.wait();
            looked.wait();
            client.flush(within(5000)).unwrap();
            for _ in 0..VALUES {
                let (_, reply) = client.recv_data(within(5000)).unwrap();
                assert_eq!(reply, DataReply::Write(Ok(())));
            }
        },
    );
}

/// Values that are copied, values that are not and what is more than waits keep their order and their bytes.
#[test]
fn queued_values_of_all_sizes_arrive_as_they_are() {
    let sizes = [0, 1, 16 << 10, (16 << 10) + 1, 3, 60_000, 16_000, 16_000, 16_000, 16_000, 5];
    both(
        |node| {
            for size in sizes {
                let id = node.recv_request(within(5000)).unwrap().id;
                let mut bytes = vec![0; size];
                node.recv_attachment(&mut bytes, |_| (), within(5000)).unwrap();
                node.queue_reply(id, &DataReply::Write(Ok(())), &[], within(5000)).unwrap();
                assert!(bytes == value(size), "{size} bytes");
                let id = node.recv_request(within(5000)).unwrap().id;
                let reply = DataReply::Read(ReadReply { result: Ok(size as u64) });
                node.queue_reply(id, &reply, &[IoSlice::new(&bytes)], within(5000)).unwrap();
            }
            node.flush(within(5000)).unwrap();
        },
        |client| {
            for size in sizes {
                let write = DataRequest::Write(Write { put: put(size) });
                client.queue_data(&write, &[IoSlice::new(&value(size))], within(5000)).unwrap();
                let read =
                    DataRequest::Read(Read { locator: locator(), start: 0, len: size as u64 });
                client.queue_data(&read, &[], within(5000)).unwrap();
            }
            for size in sizes {
                client.recv_data(within(5000)).unwrap();
                client.recv_data(within(5000)).unwrap();
                let mut bytes = vec![0; size];
                client.recv_attachment(&mut bytes, |_| (), within(5000)).unwrap();
                assert!(bytes == value(size), "{size} bytes");
            }
        },
    );
}

#[test]
fn a_refused_value_is_skipped_and_the_link_goes_on() {
    let sent = &value(300_000);
    both(
        |node| {
            let id = node.recv_request(within(2000)).unwrap().id;
            node.skip_attachment(within(2000)).unwrap();
            let stale = DataReply::Write(Err(DataError::Stale));
            answer(node, id, &stale, &[]);
            let id = node.recv_request(within(2000)).unwrap().id;
            let busy = DataReply::Read(ReadReply { result: Err(DataError::Busy { after_ms: 4 }) });
            answer(node, id, &busy, &[]);
        },
        |client| {
            let write = DataRequest::Write(Write { put: put(sent.len()) });
            let reply = client.call_data(&write, &[IoSlice::new(sent)], within(2000)).unwrap();
            assert_eq!(reply, DataReply::Write(Err(DataError::Stale)));
            let read = DataRequest::Read(Read { locator: locator(), start: 0, len: 9 });
            let reply = client.call_data(&read, &[], within(2000)).unwrap();
            let busy = ReadReply { result: Err(DataError::Busy { after_ms: 4 }) };
            assert_eq!(reply, DataReply::Read(busy));
        },
    );
}

#[test]
fn descriptors_come_with_the_reply() {
    let folder = tempfile::tempdir().unwrap();
    let bound = Bound::listen(&Address::Unix(folder.path().join("s"))).unwrap();
    let address = bound.address().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut node, _) = accept(&bound);
            let id = node.recv_request(within(2000)).unwrap().id;
            let mut files = [tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap()];
            files[0].write_all(b"headers").unwrap();
            files[1].write_all(b"payload").unwrap();
            let attached = Attached { incarnation: Incarnation(1), slots: 2, bytes: 3 };
            let fds = [files[0].as_fd(), files[1].as_fd()];
            let reply = DataReply::Attach(Ok(attached));
            node.send_reply_with_fds(id, &reply, &fds, within(2000)).unwrap();
        });
        let mut client = dial(&address);
        let attach = DataRequest::Attach(Attach { segment: SegmentId(1), stores: false });
        let reply = client.call_data(&attach, &[], within(2000)).unwrap();
        assert!(matches!(reply, DataReply::Attach(Ok(Attached { slots: 2, bytes: 3, .. }))));
        let texts: Vec<String> = client
            .take_fds()
            .into_iter()
            .map(|fd| {
                let mut file = std::fs::File::from(fd);
                let mut text = String::new();
                file.rewind().unwrap();
                file.read_to_string(&mut text).unwrap();
                text
            })
            .collect();
        assert_eq!(texts, ["headers", "payload"]);
        assert!(client.take_fds().is_empty());
    });
}

/// A frame of a control link, forged: the link itself would not send it.
#[test]
fn a_control_frame_on_a_data_link_ends_it() {
    use mooncrate_wire::frame::{RequestId, Stamp, VERSION_HELLO, encode_frame};
    let bound = Bound::listen(&"127.0.0.1:0".parse().unwrap()).unwrap();
    let address = bound.address().unwrap().to_string();
    std::thread::scope(|scope| {
        let node = scope.spawn(|| {
            let (mut node, _) = accept(&bound);
            let error = node.recv_request(within(2000)).unwrap_err();
            assert!(matches!(error, CallError::Protocol(_)), "{error}");
            assert!(!node.is_open());
        });
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        let mut bytes = Vec::new();
        for (version, kind) in [(VERSION_HELLO, Kind::Hello), (VERSION_MIN, Kind::Ping)] {
            let stamp =
                Stamp { version, kind, reply: false, request: RequestId(5), deadline_ms: 9 };
            let encode = |out: &mut Vec<u8>| {
                if kind == Kind::Hello {
                    DATA.encode(out);
                }
            };
            encode_frame(&mut bytes, stamp, encode).unwrap();
        }
        stream.write_all(&bytes).unwrap();
        node.join().unwrap();
        let mut said = Vec::new();
        stream.read_to_end(&mut said).unwrap();
        let ack = mooncrate_wire::frame::decode_frame(&said).unwrap().unwrap();
        let said = &said[ack.consumed..];
        let refuse = mooncrate_wire::frame::decode_frame(said).unwrap().unwrap();
        let reply = DataReply::decode(refuse.header.kind(), &said[refuse.body]).unwrap();
        let DataReply::Refuse(refusal) = reply else { panic!("{reply:?}") };
        assert_eq!(refusal.code, RefusalCode::WrongLink);
    });
}

#[test]
fn a_reply_nobody_asked_for_ends_the_link() {
    let wrong = [
        (RequestId(99), DataReply::Begin(Ok(()))),
        // The right number, but of another kind.
        (RequestId(2), DataReply::Signal(Ok(()))),
    ];
    for (id, reply) in wrong {
        both(
            |node| {
                node.recv_request(within(2000)).unwrap();
                answer(node, id, &reply, &[]);
            },
            |client| {
                let begin = DataRequest::Begin(Begin { put: put(1) });
                let error = client.call_data(&begin, &[], within(2000)).unwrap_err();
                assert!(matches!(error, CallError::Protocol(_)), "{error}");
                assert!(!client.is_open());
            },
        );
    }
}

/// Proves G9 for values: a peer that stops in the middle is noticed at the deadline.
#[test]
fn a_value_that_stops_coming_ends_at_the_deadline() {
    both(
        |node| {
            let id = node.recv_request(within(2000)).unwrap().id;
            let reply = DataReply::Read(ReadReply { result: Ok(1000) });
            answer(node, id, &reply, &[IoSlice::new(&[1; 10])]);
            // Until the reader hangs up.
            assert!(node.recv_request(within(5000)).is_err());
        },
        |client| {
            let read = DataRequest::Read(Read { locator: locator(), start: 0, len: 1000 });
            client.call_data(&read, &[], within(2000)).unwrap();
            let start = boottime();
            let error = client.recv_attachment(&mut [0; 1000], |_| (), within(100)).unwrap_err();
            let words = error.to_string();
            assert!(words.contains("the bytes of a value"), "{words}");
            assert!(since(start) < Duration::from_millis(200));
            assert!(!client.is_open());
            client.closer().unwrap().close();
        },
    );
}

/// A reader that takes nothing: the writer is not stuck for ever either.
#[test]
fn a_value_that_nobody_takes_ends_at_the_deadline() {
    both(
        |node| {
            node.recv_request(within(2000)).unwrap();
            std::thread::sleep(Duration::from_millis(300));
        },
        |client| {
            let big = value(64 << 20);
            let write = DataRequest::Write(Write { put: put(big.len()) });
            let start = boottime();
            let error = client.send_data(&write, &[IoSlice::new(&big)], within(100)).unwrap_err();
            assert!(
                matches!(error, CallError::Deadline { awaited: "room to send", .. }),
                "{error}"
            );
            assert!(since(start) < Duration::from_millis(250), "{:?}", since(start));
        },
    );
}

#[test]
fn another_thread_can_end_a_wait() {
    both(
        |node| {
            let closer = node.closer().unwrap();
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    std::thread::sleep(Duration::from_millis(50));
                    closer.close();
                });
                let error = node.recv_request(mooncrate_core::Deadline::NEVER).unwrap_err();
                assert!(matches!(error, CallError::Closed { .. }), "{error}");
            });
        },
        |client| assert!(client.recv_data(within(2000)).is_err()),
    );
}

/// A frame as a peer sends it that is none of ours.
fn framed(version: u8, kind: Kind, encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    let (reply, request, deadline_ms) = (false, RequestId(3), 5000);
    encode_frame(&mut out, Stamp { version, kind, reply, request, deadline_ms }, encode).unwrap();
    out
}

/// Junk right behind a good request ends the link, but not before that request has its answer.
#[test]
fn what_was_answered_before_junk_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let address = Address::Unix(folder.path().join("node"));
    let bound = Bound::listen(&address).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut node, _) = accept(&bound);
            let id = node.recv_request(within(5000)).unwrap().id;
            node.queue_reply(id, &DataReply::Signal(Ok(())), &[], within(5000)).unwrap();
            assert!(node.has_request(), "something came with it");
            assert!(node.recv_request(within(5000)).is_err());
        });
        let mut peer = UnixStream::connect(folder.path().join("node")).unwrap();
        peer.write_all(&framed(VERSION_HELLO, Kind::Hello, |out| DATA.encode(out))).unwrap();
        let mut bytes = [0; 1024];
        assert!(peer.read(&mut bytes).unwrap() > 0, "the answer to the hello");
        let signal = Signal { locator: locator(), token: PutToken(7), seal: Seal::default() };
        let signal = DataRequest::Signal(signal);
        let mut sent = framed(VERSION_MIN, signal.kind(), |out| signal.encode(out));
        sent.extend([0xff; 64]);
        peer.write_all(&sent).unwrap();
        let mut came = Vec::new();
        peer.read_to_end(&mut came).unwrap();
        let frame = decode_frame(&came).unwrap().expect("an answer");
        let reply = DataReply::decode(frame.header.kind(), &came[frame.body]).unwrap();
        assert_eq!(reply, DataReply::Signal(Ok(())));
    });
}

/// The called side may look up from its wait; a request that has begun to come must arrive in time.
#[test]
fn a_wait_without_a_request_leaves_the_link_as_it_was() {
    both(
        |node| {
            let waited = node.recv_request(within(20)).unwrap_err();
            assert!(matches!(waited, CallError::Deadline { .. }) && node.is_open(), "{waited}");
            let id = node.recv_request(within(5000)).unwrap().id;
            node.queue_reply(id, &DataReply::Signal(Ok(())), &[], within(5000)).unwrap();
            node.flush(within(5000)).unwrap();
        },
        |client| {
            std::thread::sleep(Duration::from_millis(60));
            let signal = Signal { locator: locator(), token: PutToken(7), seal: Seal::default() };
            let reply = client.call_data(&DataRequest::Signal(signal), &[], within(5000)).unwrap();
            assert_eq!(reply, DataReply::Signal(Ok(())));
        },
    );
}
