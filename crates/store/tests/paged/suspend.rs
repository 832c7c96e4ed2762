//! Whole sequences that are suspended, and go on: here, or in another cache.

use crate::rig::{
    BLOCK_TOKENS, cache, compute, embedded, empty, judge, prompt, spill, tail_stamp, token_bytes,
};
use mooncrate::paged::{Ended, Resumed, SpillError};
use mooncrate::{Advice, Store};
use mooncrate_paged::{
    Admission, Admitted, Cache, CacheError, Extra, Layout, Order, Part, Prompt, ResumeError, Ticket,
};

fn lora() -> Admission {
    Admission { tenant: 3, adapter: "lora".into(), ..Admission::default() }
}

/// 7 tokens after the last full block.
const TOKENS: u32 = 5 * BLOCK_TOKENS as u32 + 7;

fn tail(cache: &Cache, id: &str, tokens: u32) -> Vec<u8> {
    let mut table = Vec::new();
    cache.block_table(id, &mut table).unwrap();
    let mut found = vec![0; tokens as usize * token_bytes()];
    let part = Part::block(*table.last().unwrap()).tokens(0..tokens);
    cache.arena().read(&part, Order::Tokens, &mut found).unwrap();
    found
}

fn keys(store: &Store, kind: &[u8]) -> Vec<Vec<u8>> {
    let listing = store.list(&[b"paged/2/", kind].concat(), 0, 100).unwrap();
    listing.entries.into_iter().map(|entry| entry.key.as_bytes().to_vec()).collect()
}

fn whole(resumed: Result<Resumed, SpillError>) -> Admitted {
    match resumed {
        Ok(Resumed::Whole(admitted)) => admitted,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_sequence_goes_on_where_it_was() {
    let (store, how) = (embedded(), lora());
    let (here, there) = (cache(Layout::Nhd, 40), cache(Layout::Hnd, 40));
    let mut tokens = prompt(1, TOKENS);
    compute(&here, "a", &tokens, &how);
    // A token was sampled whose KV is not computed yet.
    here.append_token("a", 77).unwrap();
    tokens.push(77);
    let ticket = spill(&store, &here).suspend("a", TOKENS.into()).unwrap();
    assert!(matches!(here.used_tokens("a"), Err(CacheError::Unknown { .. })));
    empty(&here);

    let ticket: Ticket = ticket.to_string().parse().unwrap();
    for cache in [&here, &there] {
        let spill = spill(&store, cache);
        let admitted = whole(spill.resume("b", &ticket, &how));
        assert_eq!(admitted, Admitted { blocks: 6, cached_tokens: TOKENS.into() });
        assert_eq!(cache.used_tokens("b").unwrap(), u64::from(TOKENS) + 1);
        let names = cache.block_names(&tokens, &how);
        judge(cache, "b", &names);
        assert_eq!(tail(cache, "b", 7), tail_stamp(&tokens[80..87]));
        // Its last block becomes full, and gets the name that it would have had.
        let more: Vec<u32> = (100..108).collect();
        cache.append_tokens("b", &more).unwrap();
        assert_eq!(cache.publish("b", 96).unwrap(), 1);
        let names = cache.block_names(&[&tokens[..], &more].concat(), &how);
        assert_eq!((names.len(), cache.pool().count_prefix(&names)), (6, 6));
        cache.free_for("b").unwrap();
        empty(cache);
    }
}

/// An image among the tokens of the last block: the block gets the name that it would have had without the break.
#[test]
fn an_image_in_the_last_block_is_not_forgotten() {
    let (store, tokens) = (embedded(), prompt(1, TOKENS));
    let extras = vec![Extra::new(3, b"first image"), Extra::new(84, b"second image")];
    let how = Admission { extras, salt: b"salt".to_vec(), ..lora() };
    let (here, there) = (cache(Layout::Nhd, 40), cache(Layout::Hnd, 40));
    compute(&here, "a", &tokens, &how);
    let ticket = spill(&store, &here).suspend("a", TOKENS.into()).unwrap();
    let who = Admission { extras: Vec::new(), ..how.clone() };
    whole(spill(&store, &there).resume("b", &ticket, &who));
    let more: Vec<u32> = (100..109).collect();
    let third = Extra::new(95, b"third image");
    there.append_with("b", &more, std::slice::from_ref(&third)).unwrap();
    there.publish("b", 96).unwrap();
    let mut table = Vec::new();
    there.block_table("b", &mut table).unwrap();
    let all = Admission { extras: [&how.extras[..], &[third]].concat(), ..how };
    let names = there.block_names(&[&tokens[..], &more].concat(), &all);
    assert_eq!((names.len(), there.pool().count_prefix(&names)), (6, 6));
}

#[test]
fn a_sequence_whose_tokens_nobody_told_comes_back_too() {
    let (store, cache, plain) = (embedded(), cache(Layout::Nhd, 40), Admission::default());
    let spill = spill(&store, &cache);
    cache.allocate_for("a", Prompt::Count(50)).unwrap();
    let mut table = Vec::new();
    cache.block_table("a", &mut table).unwrap();
    let kv = |n: usize| tail_stamp(&prompt(n as u32, 16));
    for (n, block) in table.iter().enumerate() {
        cache.arena().write(&Part::block(*block), Order::Tokens, &kv(n)).unwrap();
    }
    let ticket = spill.suspend("a", 50).unwrap();
    empty(&cache);
    assert_eq!(keys(&store, b"o").len(), 4);
    // Twice at once: a ticket is no sequence, it names one.
    for id in ["a", "b"] {
        let admitted = whole(spill.resume(id, &ticket, &plain));
        assert_eq!(admitted, Admitted { blocks: 4, cached_tokens: 50 });
        cache.block_table(id, &mut table).unwrap();
        let mut found = vec![0; 16 * token_bytes()];
        for (n, block) in table[..3].iter().enumerate() {
            cache.arena().read(&Part::block(*block), Order::Tokens, &mut found).unwrap();
            assert_eq!(found, kv(n));
        }
    }
    cache.append_count("b", 20).unwrap();
    // Published again: a fork shares them.
    let used = cache.stats().used_blocks;
    cache.fork("a", "c").unwrap();
    assert_eq!(cache.stats().used_blocks, used + 1);
    for id in ["a", "b", "c"] {
        cache.free_for(id).unwrap();
    }
    empty(&cache);
}

#[test]
fn what_is_left_of_a_sequence_is_used() {
    let (store, how) = (embedded(), lora());
    let cache = cache(Layout::Nhd, 40);
    let spill = spill(&store, &cache);
    let tokens = prompt(2, TOKENS);
    compute(&cache, "a", &tokens, &how);
    let ticket = spill.suspend("a", TOKENS.into()).unwrap();
    empty(&cache);

    // Without its last block: all full ones.
    let own = keys(&store, b"o");
    assert_eq!(own.len(), 1);
    store.remove(&own[0], false).unwrap();
    let resumed = spill.resume("a", &ticket, &how).unwrap();
    let Resumed::Prefix { cached_tokens: 80, tokens: 87, ended: Ended::Missing } = resumed else {
        panic!("{resumed:?}")
    };
    assert_eq!(cache.stats().used_blocks, 0);
    assert_eq!(compute(&cache, "a", &tokens, &how).cached_tokens, 80);
    cache.free_for("a").unwrap();
    empty(&cache);

    // Other bytes in its place.
    store.put(&own[0], &vec![7; 7 * token_bytes()]).unwrap();
    let resumed = spill.resume("a", &ticket, &how).unwrap();
    let Resumed::Prefix { cached_tokens: 80, ended: Ended::Failed(error), .. } = resumed else {
        panic!("{resumed:?}")
    };
    assert!(matches!(error, SpillError::Resume(ResumeError::Damaged)), "{error}");
    empty(&cache);

    // Without a block in the middle: what is before it.
    let names = cache.block_names(&tokens, &how);
    store.remove(cache.block_key(names[3]).as_bytes(), false).unwrap();
    let resumed = spill.resume("a", &ticket, &how).unwrap();
    let Resumed::Prefix { cached_tokens: 48, tokens: 87, ended: Ended::Missing } = resumed else {
        panic!("{resumed:?}")
    };
    assert!(matches!(cache.used_tokens("a"), Err(CacheError::Unknown { .. })));
    empty(&cache);

    assert!(spill.forget(&ticket).unwrap());
    assert!(!spill.forget(&ticket).unwrap());
    assert!(matches!(spill.resume("a", &ticket, &how), Ok(Resumed::Miss)));
    assert_eq!(spill.load(&tokens, &how).tokens(), 48, "its blocks are found by their names");
}

#[test]
fn a_ticket_of_others_is_refused() {
    let (store, how) = (embedded(), lora());
    let cache = cache(Layout::Nhd, 40);
    let spill = spill(&store, &cache);
    compute(&cache, "a", &prompt(3, TOKENS), &how);
    let ticket = spill.suspend("a", TOKENS.into()).unwrap();
    empty(&cache);
    let salted = Admission { salt: b"s".to_vec(), ..lora() };
    for other in
        [Admission { tenant: 4, ..lora() }, Admission { adapter: String::new(), ..lora() }, salted]
    {
        let error = spill.resume("a", &ticket, &other).unwrap_err();
        assert!(matches!(error, SpillError::Resume(ResumeError::Foreign)), "{error}");
        assert_eq!(error.advice(), Advice::GiveUp);
    }
    let key = keys(&store, b"s").remove(0);
    let mut manifest = store.get(&key).unwrap().unwrap();
    store.remove(&key, false).unwrap();
    manifest[60] ^= 1;
    store.put(&key, &manifest).unwrap();
    let error = spill.resume("a", &ticket, &how).unwrap_err();
    assert!(matches!(error, SpillError::Resume(ResumeError::Damaged)), "{error}");
    assert!(matches!("no ticket".parse::<Ticket>(), Err(ResumeError::NoTicket)));
    assert!(matches!("+".repeat(32).parse::<Ticket>(), Err(ResumeError::NoTicket)));
    empty(&cache);
}

#[test]
fn a_resume_that_the_cache_refuses_leaks_nothing() {
    let (store, how) = (embedded(), lora());
    let (large, small) = (cache(Layout::Nhd, 40), cache(Layout::Nhd, 5));
    let tokens = prompt(4, TOKENS);
    compute(&large, "a", &tokens, &how);
    let spill_large = spill(&store, &large);
    let ticket = spill_large.suspend("a", TOKENS.into()).unwrap();
    // The id is somebody else's.
    compute(&large, "a", &prompt(5, 20), &how);
    let error = spill_large.resume("a", &ticket, &how).unwrap_err();
    assert!(matches!(error, SpillError::Cache(CacheError::Duplicate { .. })), "{error}");
    large.free_for("a").unwrap();
    empty(&large);
    // Room for five blocks of six.
    let resumed = spill(&store, &small).resume("a", &ticket, &how).unwrap();
    let Resumed::Prefix { cached_tokens: 80, tokens: 87, ended: Ended::Failed(error) } = resumed
    else {
        panic!("{resumed:?}")
    };
    assert!(matches!(error.advice(), Advice::Retry { .. }), "{error}");
    empty(&small);
}

/// The sequence stays as it was until everything is stored, and also if it has changed meanwhile.
#[test]
fn a_suspension_that_is_not_finished_changes_nothing() {
    let (cache, how) = (cache(Layout::Nhd, 40), lora());
    let tokens = prompt(6, TOKENS);
    compute(&cache, "a", &tokens, &how);
    drop(cache.suspend("a", TOKENS.into()).unwrap());
    assert_eq!(cache.used_tokens("a").unwrap(), u64::from(TOKENS));
    let suspension = cache.suspend("a", TOKENS.into()).unwrap();
    cache.append_token("a", 1).unwrap();
    let error = suspension.finish().unwrap_err();
    assert!(matches!(error, CacheError::Changed { .. }), "{error}");
    assert_eq!(cache.used_tokens("a").unwrap(), u64::from(TOKENS) + 1);
    // Another sequence under the same id is not freed in its place.
    let suspension = cache.suspend("a", TOKENS.into()).unwrap();
    cache.free_for("a").unwrap();
    compute(&cache, "a", &tokens, &how);
    assert!(matches!(suspension.finish(), Err(CacheError::Changed { .. })));
    judge(&cache, "a", &cache.block_names(&tokens, &how));
    cache.free_for("a").unwrap();
    empty(&cache);
}
