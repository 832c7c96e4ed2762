//! Fuzz targets as plain functions: `fuzz/` drives them with coverage, a stable test drives them
//! with mutated seeds. Each takes any bytes and may only return; a panic is a find.

use crate::frame::{FRAME_HEADER_BYTES, Stamp, decode_frame, encode_frame};
use crate::inbox::Inbox;
use crate::kind::{Kind, LinkKind};
use crate::message::{
    Challenge, Claim, DataReply, DataRequest, Hello, HelloAck, Proof, Reply, Request, agree,
};

/// A stream of frames. What is accepted is encoded to the same bytes again, and an inbox that gets
/// the bytes in pieces finds the same frames.
pub fn frame(bytes: &[u8]) {
    let mut at = 0;
    let mut found = Vec::new();
    while let Ok(Some(frame)) = decode_frame(&bytes[at..]) {
        let header = &frame.header;
        let stamp = Stamp {
            version: header.version(),
            kind: header.kind(),
            reply: header.is_reply(),
            request: header.request(),
            deadline_ms: header.deadline_ms(),
        };
        let body = &bytes[at..][frame.body.clone()];
        let mut again = Vec::new();
        encode_frame(&mut again, stamp, |out| out.extend_from_slice(body))
            .expect("what was accepted is small enough to be sent");
        assert_eq!(again, bytes[at..at + frame.consumed], "two encodings of one frame");
        found.push(frame.consumed - FRAME_HEADER_BYTES);
        at += frame.consumed;
    }
    let mut inbox = Inbox::default();
    let mut again = Vec::new();
    for piece in bytes.chunks(1 + bytes.len() / 7) {
        let mut rest = piece;
        while !rest.is_empty() {
            let space = inbox.space();
            let count = space.len().min(rest.len());
            space[..count].copy_from_slice(&rest[..count]);
            inbox.filled(count);
            rest = &rest[count..];
            loop {
                match inbox.next_frame() {
                    Ok(Some(frame)) => again.push(frame.body.len()),
                    Ok(None) => break,
                    Err(_) => {
                        assert_eq!(again, found, "the inbox lost its step earlier");
                        return;
                    }
                }
            }
        }
    }
    assert_eq!(again, found, "the inbox found other frames");
}

/// Any message: the first byte is its kind, the second its direction and link. What decodes encodes
/// to the same bytes.
pub fn message(bytes: &[u8]) {
    let [kind, way, body @ ..] = bytes else { return };
    let Some(kind) = Kind::from_code(*kind) else { return };
    let mut again = Vec::new();
    match way % 4 {
        0 => match Request::decode(kind, body) {
            Ok(message) => message.encode(&mut again),
            Err(_) => return,
        },
        1 => match Reply::decode(kind, body) {
            Ok(message) => message.encode(&mut again),
            Err(_) => return,
        },
        2 => match DataRequest::decode(kind, body) {
            Ok(message) => message.encode(&mut again),
            Err(_) => return,
        },
        _ => match DataReply::decode(kind, body) {
            Ok(message) => message.encode(&mut again),
            Err(_) => return,
        },
    }
    assert_eq!(again, body, "two encodings of one {kind}");
}

/// A hello, an answer to one, the proofs between them, and what a server makes of it.
pub fn hello(bytes: &[u8]) {
    if let Ok(hello) = Hello::decode(bytes) {
        let mut again = Vec::new();
        hello.encode(&mut again);
        assert_eq!(again, bytes, "two encodings of one hello");
        for serves in [LinkKind::Control, LinkKind::Data] {
            if let Ok(version) = agree(&hello, serves) {
                assert!((hello.version_min..=hello.version_max).contains(&version));
                assert_eq!(hello.link, serves);
            }
        }
    }
    if let Ok(proof) = Proof::decode(bytes) {
        let mut again = Vec::new();
        proof.encode(&mut again);
        assert_eq!(again, bytes, "two encodings of one proof");
    }
    assert_eq!(Challenge::decode(bytes).is_ok(), bytes.len() == 32);
    assert_eq!(Claim::decode(bytes).is_ok(), bytes.len() == 4);
    if let Ok(ack) = HelloAck::decode(bytes) {
        let mut again = Vec::new();
        ack.encode(&mut again);
        assert_eq!(again, bytes, "two encodings of one answer to hello");
    }
}
