//! Taking more than one's share.

use crate::cluster::{Guarded, SEGMENT_BYTES, ask, within};
use mooncrate_wire::DataError;
use mooncrate_wire::message::{BeginWrite, DataReply, DataRequest, Pin, Write};
use std::borrow::Cow;
use std::io::IoSlice;

#[test]
fn security_pins_of_one_connection_are_bounded() {
    let cluster = Guarded::start(None);
    let store = cluster.store("acme", false);
    let mut link = cluster.data("acme");
    let (mut pinned, mut refused) = (0, false);
    for n in 0..10_u8 {
        store.put(&[n + 1], &vec![n; 1 << 20]).unwrap();
        let locator = cluster.locate("acme", &[n + 1]).unwrap();
        let pin = DataRequest::Pin(Pin { locators: Cow::Owned(vec![locator]) });
        match ask(&mut link, &pin) {
            Ok(()) => pinned += locator.extent.len(),
            Err(error) => {
                assert!(matches!(error, DataError::Busy { .. }), "{error}");
                refused = true;
            }
        }
    }
    assert!(refused && pinned <= SEGMENT_BYTES / 4, "{pinned}");
}

#[test]
fn security_unfinished_puts_of_one_connection_are_bounded() {
    let cluster = Guarded::start(None);
    let mut link = cluster.data("acme");
    let value = vec![1; 700_000];
    let mut outcomes = Vec::new();
    for n in 0..4_u8 {
        let key = [n + 1];
        let plan = cluster.plan("acme", &key, value.len() as u64);
        let label = [&[0; 5][..], &key[..]].concat();
        let put = BeginWrite {
            locator: plan.replicas[0],
            token: plan.token,
            object: plan.object,
            epoch: plan.epoch,
            len: value.len() as u64,
            label: &label,
        };
        let request = DataRequest::Write(Write { put });
        match link.call_data(&request, &[IoSlice::new(&value)], within(10_000)).unwrap() {
            DataReply::Write(result) => outcomes.push(result),
            other => panic!("{other:?}"),
        }
    }
    // A tenth of 16 MiB holds two of them.
    assert_eq!(outcomes[..2], [Ok(()), Ok(())]);
    for outcome in &outcomes[2..] {
        assert!(matches!(outcome, Err(DataError::Busy { .. })), "{outcome:?}");
    }
}
