//! The embedded store end to end: every call, and every bad input through the public door.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::time::Duration;

use mooncrate::{Advice, CatalogConfig, EmbeddedOptions, Path, Store, Stored};

fn small() -> Store {
    let options = EmbeddedOptions { segment_bytes: 8 << 20, ..EmbeddedOptions::default() };
    Store::embedded(options).unwrap()
}

#[test]
fn put_get_view_remove() {
    let store = small();
    for len in [0, 1, 63, 64, 65, 4096, 1 << 20, (1 << 20) + 1, 3_000_001] {
        let key = format!("k{len}");
        let value: Vec<u8> = (0..len).map(|i| (i * 7 + len) as u8).collect();
        assert_eq!(store.put(key.as_bytes(), &value).unwrap(), Stored::New);
        assert_eq!(store.put(key.as_bytes(), b"other").unwrap(), Stored::AlreadyThere);
        assert_eq!(store.get(key.as_bytes()).unwrap().unwrap(), value);
        let mut buffer = vec![1; len + 10];
        assert_eq!(store.get_into(key.as_bytes(), &mut buffer).unwrap(), Some(len));
        assert_eq!(&buffer[..len], &value[..]);
        let view = store.view(key.as_bytes()).unwrap().unwrap();
        assert!(view.is_in_place());
        assert_eq!(&*view, &value[..]);
        assert_eq!(store.size(key.as_bytes()).unwrap(), Some(len as u64));
        assert_eq!(store.path(key.as_bytes()).unwrap(), Some(Path::Local));
        drop(view);
        assert!(store.remove(key.as_bytes(), false).unwrap());
        assert!(!store.remove(key.as_bytes(), false).unwrap());
        assert_eq!(store.get(key.as_bytes()).unwrap(), None);
    }
}

#[test]
fn a_view_outlives_the_remove_of_its_object() {
    let store = small();
    let value = vec![42; 100_000];
    store.put(b"k", &value).unwrap();
    let view = store.view(b"k").unwrap().unwrap();
    assert!(store.remove(b"k", false).unwrap());
    assert_eq!(store.get(b"k").unwrap(), None);
    // The key can be put again, elsewhere, while the old bytes are still looked at.
    store.put(b"k", &vec![7; 100_000]).unwrap();
    for n in 0..200_u32 {
        store.put(&n.to_le_bytes(), &vec![n as u8; 100_000]).unwrap();
    }
    assert!(view.iter().all(|byte| *byte == 42));
}

#[test]
fn a_full_pool_makes_room() {
    let store = small();
    for n in 0..500_u32 {
        assert_eq!(store.put(&n.to_le_bytes(), &vec![n as u8; 200_000]).unwrap(), Stored::New);
        assert_eq!(store.get(&n.to_le_bytes()).unwrap().unwrap(), vec![n as u8; 200_000]);
    }
    let stat = store.stat().unwrap();
    assert!(stat.counters.evicted > 400, "{stat:?}");
    assert!(stat.used_bytes <= 8 << 20);
}

#[test]
fn everything_pinned_is_busy_and_recovers() {
    let store = small();
    let mut views = Vec::new();
    for n in 0..40_u32 {
        if store.put(&n.to_le_bytes(), &vec![n as u8; 200_000]).is_err() {
            break;
        }
        views.extend(store.view(&n.to_le_bytes()).unwrap());
    }
    let error = store.put(b"one more", &vec![0; 1_000_000]).unwrap_err();
    assert!(matches!(error.advice(), Advice::Retry { .. }), "{error}");
    assert!(error.to_string().contains("in use"), "{error}");
    for (n, view) in views.iter().enumerate() {
        assert!(view.iter().all(|byte| *byte == n as u8));
    }
    drop(views);
    // The pause after a streak of pinned victims is 10 ms.
    std::thread::sleep(std::time::Duration::from_millis(30));
    assert_eq!(store.put(b"one more", &vec![0; 1_000_000]).unwrap(), Stored::New);
}

/// A removed object that is still viewed keeps its bytes. A put once answered Busy because those bytes
/// counted as room on its way, although plenty could have been evicted (M13): only a pool kept full,
/// with views that outlive a remove, showed it.
#[test]
fn a_removed_object_that_is_looked_at_blocks_nobody_else() {
    let catalog =
        CatalogConfig { high_permille: 1000, low_permille: 1000, ..CatalogConfig::default() };
    let options = EmbeddedOptions { segment_bytes: 8 << 20, catalog, ..EmbeddedOptions::default() };
    let store = Store::embedded(options).unwrap();
    store.put(b"looked at", &vec![1; 1 << 20]).unwrap();
    let view = store.view(b"looked at").unwrap().unwrap();
    for n in 0..40_u32 {
        store.put(&n.to_le_bytes(), &vec![2; 200_000]).unwrap();
    }
    assert!(store.remove(b"looked at", false).unwrap());
    for n in 100..140_u32 {
        assert_eq!(store.put(&n.to_le_bytes(), &vec![3; 200_000]).unwrap(), Stored::New);
    }
    assert!(view.iter().all(|byte| *byte == 1));
}

#[test]
fn a_lease_keeps_a_value_from_eviction_and_removal() {
    let store = small();
    assert_eq!(store.lease(b"leased", Duration::from_secs(1)).unwrap(), None);
    store.put(b"leased", &vec![9; 100_000]).unwrap();
    let left = store.lease(b"leased", Duration::from_mins(1)).unwrap().unwrap();
    assert!(left > Duration::from_secs(5) && left <= Duration::from_secs(10), "{left:?}");
    let refused = store.remove(b"leased", false).unwrap_err();
    assert!(refused.to_string().contains("leased"), "{refused}");
    assert!(matches!(refused.advice(), Advice::Retry { .. }));
    for n in 0..200_u32 {
        store.put(&n.to_le_bytes(), &vec![1; 200_000]).unwrap();
    }
    assert_eq!(store.get(b"leased").unwrap().unwrap(), vec![9; 100_000]);
    assert_eq!(store.get(&0_u32.to_le_bytes()).unwrap(), None);
    assert!(store.remove(b"leased", true).unwrap());
    assert_eq!(store.get(b"leased").unwrap(), None);
}

#[test]
fn bad_input_gets_a_clear_error() {
    let store = small();
    let says = |error: mooncrate::Error, words: &str| {
        assert_eq!(error.advice(), Advice::GiveUp, "{error}");
        assert!(error.to_string().contains(words), "{error}");
    };
    says(store.put(b"", b"v").unwrap_err(), "key is empty");
    says(store.put(&[1; 8193], b"v").unwrap_err(), "8193 bytes");
    says(store.get(b"").unwrap_err(), "key is empty");
    says(store.remove(b"", false).unwrap_err(), "key is empty");
    says(store.put(b"k", &vec![0; 9 << 20]).unwrap_err(), "largest segment");
    let mut config = store.put_config();
    config.replicas = 0;
    says(store.put_parts(b"k", &[b"v"], &config).unwrap_err(), "0 replicas");
    config.replicas = 2;
    says(store.put_parts(b"k", &[b"v"], &config).unwrap_err(), "1 nodes");
    store.put(b"k", &[1; 100]).unwrap();
    says(store.get_into(b"k", &mut [0; 99]).unwrap_err(), "100 bytes, the buffer 99");
    // Nothing of that left a trace.
    assert_eq!(store.get(b"k").unwrap().unwrap(), [1; 100]);
    assert_eq!(store.stat().unwrap().objects, 1);
}

#[test]
fn batches_keep_their_order_and_their_errors_apart() {
    let store = small();
    let items: Vec<(Vec<u8>, Vec<u8>)> =
        (0..300_u32).map(|n| (n.to_be_bytes().to_vec(), vec![n as u8; n as usize * 10])).collect();
    let mut refs: Vec<(&[u8], &[u8])> = items.iter().map(|(k, v)| (&k[..], &v[..])).collect();
    refs.insert(7, (b"", b"bad key"));
    let stored = store.put_batch(&refs);
    assert_eq!(stored.len(), 301);
    for (index, result) in stored.iter().enumerate() {
        assert_eq!(result.is_err(), index == 7, "{index}");
    }
    let mut keys: Vec<&[u8]> = items.iter().map(|(k, _)| &k[..]).collect();
    keys.insert(100, b"missing");
    let found = store.get_batch(&keys);
    for (index, found) in found.into_iter().enumerate() {
        let found = found.unwrap();
        if index == 100 {
            assert_eq!(found, None);
        } else {
            let n = if index < 100 { index } else { index - 1 };
            assert_eq!(found.as_ref(), Some(&items[n].1));
        }
    }
    let there = store.exists_batch(&keys).unwrap();
    assert!(there.iter().enumerate().all(|(i, t)| *t.as_ref().unwrap() == (i != 100)));
    let removed = store.remove_batch(&keys, false).unwrap();
    assert!(removed.iter().enumerate().all(|(i, r)| *r.as_ref().unwrap() == (i != 100)));
    assert_eq!(store.stat().unwrap().objects, 0);
}

#[test]
fn values_in_pieces_go_into_memory_of_the_caller() {
    let store = small();
    let long = vec![7_u8; 100_000];
    let items: [(&[u8], &[&[u8]]); 4] =
        [(b"a", &[b"one", b"", b"two"]), (b"", &[b"bad key"]), (b"b", &[]), (b"c", &[&long])];
    let stored = store.put_parts_batch(&items, &store.put_config());
    let good: Vec<bool> = stored.iter().map(Result::is_ok).collect();
    assert_eq!(good, [true, false, true, true]);

    let (mut a, mut none, mut b, mut short, mut c) =
        ([9_u8; 8], [9_u8; 2], [9_u8; 0], vec![9_u8; 99_999], vec![9_u8; 100_000]);
    let mut targets: [(&[u8], &mut [u8]); 6] = [
        (b"a", &mut a),
        (b"missing", &mut none),
        (b"b", &mut b),
        (b"c", &mut short),
        (b"", &mut []),
        (b"c", &mut c),
    ];
    let read = store.get_into_batch(&mut targets);
    let lens: Vec<Option<Option<usize>>> =
        read.iter().map(|one| one.as_ref().ok().copied()).collect();
    assert_eq!(lens, [Some(Some(6)), Some(None), Some(Some(0)), None, None, Some(Some(100_000))]);
    assert_eq!((&a, &none, &c), (b"onetwo\x09\x09", &[9, 9], &long));
    let refusal = read[3].as_ref().unwrap_err().to_string();
    assert_eq!(refusal, "the value has 100000 bytes, the buffer 99999");

    let mut asked = Vec::new();
    let found = store.get_with(b"c", |len| {
        asked.push(len);
        vec![0; len].into_boxed_slice()
    });
    assert_eq!((found.unwrap().as_deref(), asked), (Some(&long[..]), vec![100_000]));
    // Memory of another length is refused, and nobody writes past its end.
    assert!(store.get_with(b"c", |len| vec![0; len - 1]).is_err());
    let found = store.get_batch_with(&[b"a", b"missing", b"c"], |len| vec![0; len.min(10)]);
    assert_eq!(found[0].as_ref().unwrap().as_deref(), Some(&b"onetwo"[..]));
    assert!(found[1].as_ref().unwrap().is_none() && found[2].is_err());
}

#[test]
fn a_listing_shows_every_key_once() {
    let store = small();
    for n in 0..5000_u32 {
        store.put(format!("a/{n}").as_bytes(), b"x").unwrap();
    }
    store.put(b"b/\xff", b"y").unwrap();
    let mut seen = std::collections::BTreeSet::new();
    let mut cursor = 0;
    loop {
        let page = store.list(b"a/", cursor, 100).unwrap();
        assert!(page.entries.len() <= 100);
        for entry in page.entries {
            assert!(seen.insert(entry.key.as_bytes().to_vec()));
        }
        match page.next {
            Some(next) => cursor = next,
            None => break,
        }
    }
    // The default holds one object per 2 KiB: 4096 slots, so the oldest are gone.
    assert!(seen.len() > 3600 && seen.len() <= 4096, "{}", seen.len());
}
