//! Bytes that change in the memory of an owner: found, retired, replaced.

use crate::fleet::{Fleet, REGISTRATION, connect, judge, patiently, segment, stamped, until};
use mooncrate::{PutConfig, Store, Stored};

/// Large enough for a table of slices, so that parts are judged by it.
const LENS: [usize; 3] = [500, 50_000, 2_500_000];

fn held(store: &Store, prefix: &[u8]) -> Vec<u8> {
    store.list(prefix, 0, 100).unwrap().entries.iter().map(|entry| entry.replicas).collect()
}

/// The only copy of a value goes bad: whoever reads it hears a miss, by every call, and the key can be
/// put again at once. It was an error for ever: get refused, put said that the key is there.
#[test]
fn a_key_whose_only_copy_went_bad_can_be_put_again() {
    let fleet = Fleet::start(&["a"]);
    for (round, shared) in [true, false].into_iter().enumerate() {
        let store = connect(&fleet.address, shared);
        for (n, len) in (0_u32..).zip(LENS) {
            let name = format!("k/{round}/{len}").into_bytes();
            let value = stamped(&name, n, len);
            let part = &mut [0; 100];
            let reads: [&mut dyn FnMut() -> bool; 4] = [
                &mut || store.get(&name).unwrap().is_none(),
                &mut || store.view(&name).unwrap().is_none(),
                &mut || store.get_range(&name, len as u64 / 2, part).unwrap().is_none(),
                &mut || matches!(store.get_batch(&[&name])[..], [Ok(None)]),
            ];
            for (which, missed) in reads.into_iter().enumerate() {
                assert_eq!(patiently(|| store.put(&name, &value)), Stored::New);
                judge(&name, n, len, &store.get(&name).unwrap().unwrap());
                fleet.nodes[0].flip(&value, len / 2 + 10);
                assert!(missed(), "{len} bytes, shared {shared}, read {which}");
                assert!(!store.exists(&name).unwrap());
            }
            assert_eq!(store.put(&name, b"next").unwrap(), Stored::New);
            assert_eq!(store.get(&name).unwrap().unwrap(), b"next");
        }
    }
    let found = connect(&fleet.address, true).stat().unwrap().counters.bad_replicas;
    assert_eq!(found, 2 * 4 * LENS.len() as u64);
    fleet.audit();
}

/// One of two copies goes bad: the other one answers, and a new one is made of it.
#[test]
fn a_bad_copy_is_replaced_by_a_good_one() {
    let fleet = Fleet::start(&["a", "b", "c"]);
    for (shared, alone) in [(true, true), (true, false), (false, true), (false, false)] {
        let store = connect(&fleet.address, shared);
        let wish = |preferred| PutConfig { replicas: 2, preferred, ..store.put_config() };
        for (n, len) in (0_u32..).zip(LENS) {
            let name = format!("two/{shared}/{alone}/{len}").into_bytes();
            let value = stamped(&name, n, len);
            let both = wish(vec![segment("a"), segment("b")]);
            assert_eq!(store.put_parts(&name, &[&value], &both).unwrap(), Stored::New);
            fleet.nodes[0].flip(&value, len - 1);
            // Some of the reads begin with the other copy; all of them are good.
            let mut bad = false;
            until("the bad copy was met", 3 * REGISTRATION, || {
                let fresh = connect(&fleet.address, shared);
                let got =
                    if alone { fresh.get(&name) } else { fresh.get_batch(&[&name]).remove(0) };
                judge(&name, n, len, &got.unwrap().unwrap());
                bad |= fresh.counts().corrupt > 0;
                bad
            });
            until("there are two again", 3 * REGISTRATION, || held(&store, &name) == [2]);
            for _ in 0..5 {
                let fresh = connect(&fleet.address, shared);
                judge(&name, n, len, &fresh.get(&name).unwrap().unwrap());
                assert_eq!(fresh.counts().corrupt, 0);
            }
        }
    }
    fleet.audit();
}
