//! Every message, there and back: it returns equal, consumes its whole body, and is refused when a
//! byte is missing, added or means nothing.

use crate::samples::Samples;
use mooncrate_core::limits::{BATCH_ITEMS_MAX, REPLICAS_MAX, STRIPES_MAX};
use mooncrate_wire::message::*;
use mooncrate_wire::{DecodeError, Kind};
use proptest::prelude::*;
use std::borrow::Cow;
use std::fmt::Debug;

/// There and back; then cut at every byte, and with a byte too many.
fn check<'a, T: PartialEq + Debug>(
    message: &T,
    body: &'a [u8],
    decode: impl Fn(&'a [u8]) -> Result<T, DecodeError>,
) -> Result<(), TestCaseError> {
    prop_assert_eq!(&decode(body)?, message);
    for cut in 0..body.len() {
        prop_assert!(decode(&body[..cut]).is_err(), "{:?} survives a cut at {}", message, cut);
    }
    let longer: &[u8] = [body, &[0]].concat().leak();
    prop_assert_eq!(decode(longer), Err(DecodeError::TrailingBytes { bytes: 1 }));
    Ok(())
}

fn body(encode: impl FnOnce(&mut Vec<u8>)) -> &'static [u8] {
    let mut out = Vec::new();
    encode(&mut out);
    out.leak()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_message_comes_back(seed in any::<u64>()) {
        let mut samples = Samples::new(seed);
        let mut seen = 0;
        for &kind in Kind::ALL {
            if let Some(message) = samples.request(kind) {
                prop_assert_eq!(message.kind(), kind);
                check(&message, body(|out| message.encode(out)), |b| Request::decode(kind, b))?;
                seen += 1;
            }
            if let Some(message) = samples.reply(kind) {
                prop_assert_eq!(message.kind(), kind);
                check(&message, body(|out| message.encode(out)), |b| Reply::decode(kind, b))?;
                seen += 1;
            }
            if let Some(message) = samples.data_request(kind) {
                prop_assert_eq!(message.kind(), kind);
                check(&message, body(|out| message.encode(out)), |b| DataRequest::decode(kind, b))?;
                seen += 1;
            }
            if let Some(message) = samples.data_reply(kind) {
                prop_assert_eq!(message.kind(), kind);
                check(&message, body(|out| message.encode(out)), |b| DataReply::decode(kind, b))?;
                seen += 1;
            }
        }
        // 25 control and 14 data operations, both ways, and the refusal on both kinds of link.
        prop_assert_eq!(seen, 2 * (25 + 14) + 2);
        let hello = samples.hello();
        check(&hello, body(|out| hello.encode(out)), Hello::decode)?;
        let ack = samples.hello_ack();
        check(&ack, body(|out| ack.encode(out)), HelloAck::decode)?;
    }

    /// Bytes from anywhere: an error or a message, never a panic.
    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        for &kind in Kind::ALL {
            for way in 0..4 {
                let input = [&[kind as u8, way], &bytes[..]].concat();
                mooncrate_wire::fuzzing::message(&input);
            }
        }
        mooncrate_wire::fuzzing::frame(&bytes);
        mooncrate_wire::fuzzing::hello(&bytes);
    }
}

#[test]
fn a_full_batch_comes_back_and_one_more_is_refused() {
    let keys = vec![&b"key"[..]; BATCH_ITEMS_MAX + 1];
    let full = Exist { keys: Cow::Borrowed(&keys[1..]) };
    let bytes = body(|out| full.encode(out));
    assert_eq!(Exist::decode(bytes).unwrap().keys.len(), BATCH_ITEMS_MAX);
    let more = Exist { keys: Cow::Borrowed(&keys) };
    assert_eq!(
        Exist::decode(body(|out| more.encode(out))).unwrap_err(),
        DecodeError::TooMany { count: 4097, limit: BATCH_ITEMS_MAX }
    );
}

#[test]
fn a_plan_has_no_more_replicas_than_allowed() {
    let mut samples = Samples::new(1);
    let plan = loop {
        if let Some(Reply::PutStart(plans)) = samples.reply(Kind::PutStart)
            && let Some(Ok(plan)) =
                plans.into_iter().find(|p| matches!(p, Ok(p) if p.replicas.len() == 7))
        {
            break plan;
        }
    };
    let most = REPLICAS_MAX * STRIPES_MAX;
    for count in [most, most + 1] {
        let mut plan = plan.clone();
        plan.replicas = vec![plan.replicas[0]; count];
        let reply = Reply::PutStart(vec![Ok(plan)]);
        let back = Reply::decode(Kind::PutStart, body(|out| reply.encode(out)));
        assert_eq!(back.is_ok(), count <= most);
    }
}

#[test]
fn a_frame_of_the_other_link_is_no_message_of_this_one() {
    assert_eq!(
        Request::decode(Kind::Write, &[]).unwrap_err(),
        DecodeError::Unexpected { kind: Kind::Write }
    );
    assert_eq!(
        DataRequest::decode(Kind::Ping, &[]).unwrap_err(),
        DecodeError::Unexpected { kind: Kind::Ping }
    );
}

/// An extent that overflows cannot enter.
#[test]
fn an_impossible_extent_is_refused() {
    let mut samples = Samples::new(7);
    let Some(DataRequest::Abandon(abandon)) = samples.data_request(Kind::Abandon) else { panic!() };
    let mut bytes = Vec::new();
    abandon.encode(&mut bytes);
    bytes[24..40].fill(0xff);
    assert!(matches!(
        Abandon::decode(&bytes),
        Err(DecodeError::BadValue { what: "the offset of an extent", .. })
    ));
}
