//! Parts of values over every path: in this process, in shared memory, over TCP, in stripes, and of
//! keys whose values are replaced meanwhile.

use crate::fleet::{catalog, connect, master, node, patiently, stamped};
use mooncrate::{
    CatalogConfig, EmbeddedOptions, Error, MasterOptions, Path, PutConfig, RangeInto, Running,
    Store, Stored, run_master, run_node,
};
use mooncrate_check::{PutId, payload};
use mooncrate_core::key;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const LENGTHS: [usize; 6] = [0, 1, 5000, 1 << 20, (1 << 20) + 1, 5_000_001];

/// Three nodes; values of more than 1 MiB are cut into stripes.
pub(crate) fn striped() -> (Running, Vec<Running>, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    // A busy machine may take its time over a session.
    let put_timeout = Duration::from_mins(1);
    let catalog = CatalogConfig { stripe_bytes: 1 << 20, put_timeout, ..catalog() };
    let master = run_master(MasterOptions { catalog, ..master() }).unwrap();
    let address = master.master_address().unwrap();
    let nodes = ["a", "b", "c"].map(|name| run_node(node(name, &address, folder.path())).unwrap());
    (master, nodes.into(), folder)
}

/// Ranges around the borders of slices and stripes, some of them past the end.
fn starts_and_lens(len: usize) -> Vec<(usize, usize)> {
    let mut all =
        vec![(0, len), (0, 0), (len, 0), (len / 2, len - len / 2), (0, len + 1), (len, 1)];
    for at in [1 << 20, 2 << 20, 3 << 20, len / 3, len] {
        all.extend([(at.saturating_sub(1), 2), (at, 100), (at.saturating_sub(700), 700)]);
    }
    all
}

fn every_range(store: &Store) {
    for (n, len) in LENGTHS.into_iter().enumerate() {
        let name = format!("range/{len}");
        let name = name.as_bytes();
        let value = stamped(name, n as u32, len);
        assert_eq!(store.get_range(name, 0, &mut []).unwrap(), None);
        assert_eq!(store.put(name, &value).unwrap(), Stored::New);
        let asked = starts_and_lens(len);
        let mut buffers: Vec<Vec<u8>> = asked.iter().map(|(_, bytes)| vec![0xee; *bytes]).collect();
        let mut ranges: Vec<RangeInto<'_>> = asked
            .iter()
            .zip(&mut buffers)
            .map(|((start, _), into)| RangeInto { start: *start as u64, into })
            .collect();
        let found = store.get_ranges(name, &mut ranges).unwrap().unwrap();
        for (((start, bytes), found), into) in asked.iter().zip(found).zip(&buffers) {
            if start + bytes <= len {
                assert_eq!(found.unwrap(), *bytes);
                assert!(into[..] == value[*start..][..*bytes], "{start}+{bytes} of {len}");
                let mut alone = vec![0; *bytes];
                let count = store.get_range(name, *start as u64, &mut alone).unwrap();
                assert!(count == Some(*bytes) && alone == *into);
            } else {
                out_of_range(&found.unwrap_err(), len);
                let mut alone = vec![0; *bytes];
                let alone = store.get_range(name, *start as u64, &mut alone);
                out_of_range(&alone.unwrap_err(), len);
            }
        }
        let hits = store.counts().hits();
        store.get_range(name, 0, &mut []).unwrap().unwrap();
        assert_eq!(store.counts().hits(), hits + 1);
    }
    several_keys(store);
    gone(store);
}

fn out_of_range(error: &Error, len: usize) {
    let Error::Client(mooncrate_client::Error::OutOfRange { len: told, .. }) = error else {
        panic!("{error}");
    };
    assert_eq!(*told, len as u64);
    assert!(error.to_string().contains("past the end"), "{error}");
}

/// A missing key and a bad one spoil only their own results.
fn several_keys(store: &Store) {
    let (mut a, mut b, mut c, mut d) = ([0; 10], [0; 20], [0; 30], [0; 40]);
    let mut first = [RangeInto { start: 4000, into: &mut a }, RangeInto { start: 0, into: &mut b }];
    let mut none = [RangeInto { start: 0, into: &mut c }];
    let mut last = [RangeInto { start: 3_000_000, into: &mut d }];
    let mut items: [(&[u8], &mut [RangeInto<'_>]); 4] = [
        (b"range/5000", &mut first),
        (b"nobody", &mut none),
        (b"", &mut []),
        (b"range/5000001", &mut last),
    ];
    let found = store.get_ranges_batch(&mut items);
    let [one, two, three, four] = &found[..] else { panic!("{found:?}") };
    let bytes: Vec<usize> =
        one.as_ref().unwrap().iter().flatten().map(|one| *one.as_ref().unwrap()).collect();
    assert_eq!(bytes, [10, 20]);
    assert!(two.as_ref().unwrap().is_none() && three.is_err());
    assert_eq!(four.as_ref().unwrap().as_ref().unwrap().len(), 1);
    let (small, large) = (stamped(b"range/5000", 2, 5000), stamped(b"range/5000001", 5, 5_000_001));
    assert_eq!((&a[..], &b[..]), (&small[4000..4010], &small[..20]));
    assert_eq!(d[..], large[3_000_000..3_000_040]);
}

/// A remembered place tells no lie: not of a value that is gone, nor of a longer one in its place.
fn gone(store: &Store) {
    for len in [5000, 5_000_001] {
        let name = format!("range/{len}");
        let name = name.as_bytes();
        let mut into = [0; 10];
        assert_eq!(store.get_range(name, 0, &mut into).unwrap(), Some(10));
        let other = stamped(name, 77, len + 100);
        let upsert = PutConfig { upsert: true, ..store.put_config() };
        store.put_parts(name, &[&other], &upsert).unwrap();
        assert_eq!(store.get_range(name, len as u64 + 90, &mut into).unwrap(), Some(10));
        assert_eq!(into[..], other[len + 90..]);
        assert!(patiently(|| store.remove(name, true)));
        assert_eq!(store.get_range(name, 0, &mut into).unwrap(), None);
        assert_eq!(store.get_range(name, 0, &mut []).unwrap(), None);
        assert_eq!(store.get_range(name, u64::MAX, &mut into).unwrap(), None);
    }
}

#[test]
fn ranges_in_this_process() {
    let store = Store::embedded(EmbeddedOptions::default()).unwrap();
    every_range(&store);
    store.master().unwrap().audit().unwrap();
}

#[test]
fn ranges_over_shared_memory_in_stripes() {
    let (master, _nodes, _folder) = striped();
    let store = connect(&master.master_address().unwrap(), true);
    every_range(&store);
    assert!(store.counts().shared > 0 && store.counts().stream == 0);
    master.master().unwrap().audit().unwrap();
}

#[test]
fn ranges_over_tcp_in_stripes() {
    let (master, _nodes, _folder) = striped();
    let store = connect(&master.master_address().unwrap(), false);
    every_range(&store);
    assert!(store.counts().stream > 0 && store.counts().shared == 0);
    master.master().unwrap().audit().unwrap();
}

/// A client that remembers the place of a value which another client replaced by a longer one.
#[test]
fn a_remembered_length_is_not_the_last_word() {
    let (master, _nodes, _folder) = striped();
    let address = master.master_address().unwrap();
    let (reader, writer) = (connect(&address, true), connect(&address, false));
    writer.put(b"k", &stamped(b"k", 1, 1000)).unwrap();
    let mut into = [0; 100];
    assert_eq!(reader.get_range(b"k", 900, &mut into).unwrap(), Some(100));
    let upsert = PutConfig { upsert: true, ..writer.put_config() };
    let longer = stamped(b"k", 2, 2000);
    writer.put_parts(b"k", &[&longer], &upsert).unwrap();
    assert_eq!(reader.get_range(b"k", 1900, &mut into).unwrap(), Some(100));
    assert_eq!(into[..], longer[1900..]);
}

/// Proves G17: a value is replaced again and again while its first, middle and last lines are read.
fn parts_are_of_one_put(shared_memory: bool) {
    const LEN: usize = 3_300_032;
    let (master, _nodes, _folder) = striped();
    let address = master.master_address().unwrap();
    let (reader, writer) = (connect(&address, shared_memory), connect(&address, true));
    assert_eq!(reader.path(b"nothing").unwrap(), None::<Path>);
    writer.put(b"k", &stamped(b"k", 0, LEN)).unwrap();
    let done = AtomicBool::new(false);
    let seen = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut seen = std::collections::BTreeSet::new();
            while !done.load(Ordering::Acquire) {
                let (mut first, mut middle, mut last) = ([0; 64], vec![0; 200_064], [0; 64]);
                let mut ranges = [
                    RangeInto { start: 0, into: &mut first },
                    RangeInto { start: 2_000_000, into: &mut middle },
                    RangeInto { start: LEN as u64 - 64, into: &mut last },
                ];
                // Replaced too often while it was read is an answer, too.
                let Ok(found) = reader.get_ranges(b"k", &mut ranges) else { continue };
                assert!(found.unwrap().iter().all(Result::is_ok));
                let put = payload::examine(&first, key::hash(b"k")).unwrap().unwrap();
                let n = put.sequence();
                assert_eq!(put, PutId::new(1, 1, n));
                let whole = stamped(b"k", n, LEN);
                assert!(middle[..] == whole[2_000_000..2_200_064], "of another put than {put}");
                assert!(last[..] == whole[LEN - 64..], "of another put than {put}");
                seen.insert(n);
            }
            seen
        });
        let upsert = PutConfig { upsert: true, ..writer.put_config() };
        for n in 1..40 {
            let value = stamped(b"k", n, LEN);
            patiently(|| writer.put_parts(b"k", &[&value], &upsert));
        }
        done.store(true, Ordering::Release);
        reader.join().unwrap()
    });
    assert!(!seen.is_empty());
}

#[test]
fn parts_are_of_one_put_over_shared_memory() {
    parts_are_of_one_put(true);
}

#[test]
fn parts_are_of_one_put_over_tcp() {
    parts_are_of_one_put(false);
}
