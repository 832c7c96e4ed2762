//! Saves and loads that end early, and bounds that are reached: nothing is lost, and no pin stays.

use crate::rig::{
    BLOCK_TOKENS, LONG, block_bytes, cache, compute, done, embedded, empty, prompt, save, spill,
    stamp,
};
use mooncrate::paged::{Ended, Spill, SpillConfig, SpillError};
use mooncrate::{Advice, EmbeddedOptions, PutConfig, Store};
use mooncrate_core::rng::Rng;
use mooncrate_paged::{Admission, Layout};
use mooncrate_wire::clock::boottime;

/// Batches of one block, so that a save of many blocks has many ends.
fn slow(store: &Store, cache: &mooncrate_paged::Cache, queue_bytes_max: u64) -> Spill {
    let bytes_in_flight_max = block_bytes() as u64;
    let config = SpillConfig { bytes_in_flight_max, queue_bytes_max, ..SpillConfig::default() };
    Spill::new(store, cache, &config).unwrap()
}

#[test]
fn a_cancelled_save_leaves_what_it_stored_and_no_pin() {
    let (store, cache, plain) = (embedded(), cache(Layout::Nhd, 600), Admission::default());
    let spill = slow(&store, &cache, 1 << 30);
    let prompt = prompt(1, 500 * BLOCK_TOKENS as u32 + 1);
    compute(&cache, "a", &prompt, &plain);
    let savings: Vec<_> = (0..8).map(|_| spill.save("a").unwrap()).collect();
    // The blocks of saves that wait cannot be evicted.
    cache.free_for("a").unwrap();
    for saving in &savings {
        saving.cancel();
    }
    for saving in savings {
        let saved = done(saving);
        assert_eq!(saved.blocks, 500);
        assert_eq!(saved.cancelled, !saved.is_whole(), "{saved:?}");
        assert!(saved.failed.is_none(), "{saved:?}");
    }
    assert_eq!(cache.stats().used_blocks, 0);
    // Whatever was stored is right, and the rest can be saved later.
    assert_eq!(compute(&cache, "b", &prompt, &plain).cached_tokens, 8000);
    assert_eq!(save(&spill, "b").blocks, 500);
    cache.free_for("b").unwrap();
    empty(&cache);
    assert_eq!(spill.load(&prompt, &plain).tokens(), 8000);
    assert_eq!(compute(&cache, "c", &prompt, &plain).cached_tokens, 8000);
}

#[test]
fn dropping_the_spill_ends_its_saves() {
    let (store, cache, plain) = (embedded(), cache(Layout::Nhd, 600), Admission::default());
    let prompt = prompt(2, 500 * BLOCK_TOKENS as u32 + 1);
    compute(&cache, "a", &prompt, &plain);
    let spill = slow(&store, &cache, 1 << 30);
    let savings: Vec<_> = (0..4).map(|_| spill.save("a").unwrap()).collect();
    // A handle that nobody keeps does not end its save.
    drop(spill.save("a").unwrap());
    cache.free_for("a").unwrap();
    drop(spill);
    empty(&cache);
    for saving in savings {
        assert!(saving.is_done());
        let saved = done(saving);
        assert_eq!(saved.cancelled, !saved.is_whole(), "{saved:?}");
    }
}

#[test]
fn a_wait_that_is_over_gives_the_handle_back() {
    let (store, cache, plain) = (embedded(), cache(Layout::Nhd, 600), Admission::default());
    compute(&cache, "a", &prompt(3, 8001), &plain);
    let spill = slow(&store, &cache, 1 << 30);
    let mut handle = spill.save("a").unwrap();
    let saved = loop {
        match handle.wait(std::time::Duration::ZERO) {
            Ok(saved) => break saved,
            Err(unfinished) => handle = unfinished,
        }
    };
    assert_eq!((saved.stored, saved.blocks), (500, 500));
}

#[test]
fn a_full_queue_refuses() {
    let (store, cache, plain) = (embedded(), cache(Layout::Nhd, 600), Admission::default());
    compute(&cache, "a", &prompt(4, 8001), &plain);
    let spill = slow(&store, &cache, 500 * block_bytes() as u64);
    let mut savings = Vec::new();
    // One save fills the queue; the worker may be faster than this thread, but not again and again.
    let error = (0..1000)
        .find_map(|_| match spill.save("a") {
            Ok(saving) => {
                savings.push(saving);
                None
            }
            Err(error) => Some(error),
        })
        .expect("a queue with a bound");
    let SpillError::QueueFull { queued_bytes, more_bytes, max } = error else { panic!("{error}") };
    assert_eq!((queued_bytes, more_bytes), (max, max));
    assert!(matches!(error.advice(), Advice::Retry { .. }));
    for saving in savings {
        assert!(done(saving).is_whole());
    }
    assert!(spill.save("a").unwrap().wait(LONG).unwrap().is_whole());
    cache.free_for("a").unwrap();
    empty(&cache);
}

#[test]
fn a_cancelled_load_keeps_the_prefix_that_it_has() {
    let (store, plain) = (embedded(), Admission::default());
    let (full, cache) = (cache(Layout::Nhd, 40), cache(Layout::Nhd, 40));
    let prompt = prompt(5, 205);
    compute(&full, "a", &prompt, &plain);
    assert_eq!(save(&spill(&store, &full), "a").stored, 12);
    let spill = spill(&store, &cache);
    let mut asked = Vec::new();
    let loaded = spill.load_while(&prompt, &plain, |tokens| {
        asked.push(tokens);
        tokens < 96
    });
    assert!(matches!(loaded.ended, Ended::Cancelled), "{loaded:?}");
    assert_eq!(asked, [0, 48, 96]);
    assert_eq!((loaded.tokens(), cache.stats().used_blocks), (96, 6));
    drop(loaded);
    assert_eq!(compute(&cache, "b", &prompt, &plain).cached_tokens, 96);
    cache.free_for("b").unwrap();
    empty(&cache);
}

#[test]
fn a_store_without_room_fails_a_save_and_a_suspension() {
    let options =
        EmbeddedOptions { segment_bytes: 64 << 10, slots: Some(64), ..EmbeddedOptions::default() };
    let (store, plain) = (Store::embedded(options).unwrap(), Admission::default());
    let cache = cache(Layout::Nhd, 40);
    let spill = spill(&store, &cache);
    let prompt = prompt(6, 205);
    // Pinned: nothing can be evicted.
    let mut views = Vec::new();
    for n in 0..64_u32 {
        if store.put(&n.to_le_bytes(), &vec![0; 4096]).is_err() {
            break;
        }
        views.extend(store.view(&n.to_le_bytes()).unwrap());
    }
    compute(&cache, "a", &prompt, &plain);
    let saved = done(spill.save("a").unwrap());
    assert!(!saved.is_whole() && saved.failed.is_some(), "{saved:?}");
    let error = spill.suspend("a", 205).unwrap_err();
    assert!(matches!(error, SpillError::Store(_)), "{error}");
    // The sequence is as it was.
    assert_eq!(cache.used_tokens("a").unwrap(), 205);
    cache.free_for("a").unwrap();
    empty(&cache);
}

/// Two engines save one prefix at the same moment: blocks that the other one is storing are waited for. One of them
/// comes, the other engine gives the second one up, and it is stored here.
#[test]
fn a_block_that_another_engine_is_storing_is_no_failure() {
    let (store, cache, plain) = (embedded(), cache(Layout::Nhd, 40), Admission::default());
    let spill = spill(&store, &cache);
    let prompt = prompt(7, 205);
    compute(&cache, "a", &prompt, &plain);
    let names = cache.block_names(&prompt, &plain);
    let other = |at: usize| {
        let key = cache.block_key(names[at]);
        store.put_session(key.as_bytes(), block_bytes() as u64, &PutConfig::default()).unwrap()
    };
    let (comes, fails) = (other(1), other(2));
    let saving = spill.save("a").unwrap();
    // The three are one batch: once the first is there, the save was told of the other two.
    let deadline = boottime().deadline_in(LONG);
    while !store.exists(cache.block_key(names[0]).as_bytes()).unwrap() {
        assert!(!deadline.passed(boottime()), "the first block was not stored");
        std::thread::yield_now();
    }
    comes.write(0, &stamp(names[1])).unwrap();
    comes.end().unwrap();
    fails.revoke();
    let saved = done(saving);
    assert!(saved.failed.is_none(), "{saved:?}");
    assert_eq!((saved.blocks, saved.stored, saved.there), (12, 11, 1));
    cache.free_for("a").unwrap();
    empty(&cache);
    assert_eq!(spill.load(&prompt, &plain).tokens(), 192);
    assert_eq!(compute(&cache, "b", &prompt, &plain).cached_tokens, 192);
}

#[test]
fn a_block_that_another_engine_never_finishes_fails_the_save() {
    let (store, cache, plain) = (embedded(), cache(Layout::Nhd, 40), Admission::default());
    let config = SpillConfig { wait_max: std::time::Duration::ZERO, ..SpillConfig::default() };
    let spill = Spill::new(&store, &cache, &config).unwrap();
    let prompt = prompt(8, 205);
    compute(&cache, "a", &prompt, &plain);
    let key = cache.block_key(cache.block_names(&prompt, &plain)[3]);
    let len = block_bytes() as u64;
    let other = store.put_session(key.as_bytes(), len, &PutConfig::default()).unwrap();
    let saved = done(spill.save("a").unwrap());
    assert_eq!((saved.blocks, saved.stored), (12, 11), "{saved:?}");
    let error = saved.failed.expect("a block that cannot be stored now");
    assert!(matches!(error.advice(), Advice::Retry { .. }), "{error}");
    drop(other);
    assert_eq!(save(&spill, "a").stored, 1);
}

/// Engines in several threads over two caches and one store, all of them too small: blocks are evicted in the
/// caches and in the store while others load and save them. `compute` judges every block that was found.
#[test]
fn many_at_once_never_see_a_wrong_block() {
    let options = EmbeddedOptions { segment_bytes: 1 << 20, ..EmbeddedOptions::default() };
    let store = Store::embedded(options).unwrap();
    let caches = [cache(Layout::Nhd, 64), cache(Layout::Hnd, 64)];
    let spills = [spill(&store, &caches[0]), spill(&store, &caches[1])];
    let fetched = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4_usize {
            let (cache, spill, fetched) = (&caches[thread % 2], &spills[thread % 2], &fetched);
            scope.spawn(move || {
                let mut rng = Rng::new(thread as u64);
                for n in 0..300 {
                    let how = Admission { tenant: rng.below(2) as u32, ..Admission::default() };
                    // 24 prompts, prefixes of each other in groups of eight: up to 15 blocks.
                    let tokens = prompt(rng.below(3) as u32, 30 * (1 + rng.below(8) as u32));
                    let loaded = spill.load(&tokens, &how);
                    fetched.fetch_add(loaded.fetched, std::sync::atomic::Ordering::Relaxed);
                    let id = format!("{thread}/{n}");
                    let admitted = compute(cache, &id, &tokens, &how);
                    assert!(admitted.cached_tokens >= loaded.tokens());
                    drop(loaded);
                    if rng.below(3) == 0 {
                        let saved = done(spill.save(&id).unwrap());
                        assert!(saved.failed.is_none(), "{saved:?}");
                    }
                    cache.free_for(&id).unwrap();
                    if rng.below(8) == 0 {
                        cache.pool().evict(20);
                    }
                }
            });
        }
    });
    assert!(fetched.into_inner() > 0, "something came back from the store");
    caches.iter().for_each(empty);
}
