//! Sequences that drop their least important tokens: what they share, what they keep, and what is refused.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail where they stand")]

use mooncrate_paged::{
    Admission, ArenaError, ArenaShape, AttentionSpec, BlockId, Cache, CacheConfig, CacheError,
    DType, Geometry, Half, HostArena, Kept, Layout, PageOrder, Pages, Prompt,
};
use std::collections::HashMap;
use std::sync::Arc;
use std::thread::scope;

const TOKEN_BYTES: usize = 4;

/// Blocks of four tokens, of which each has one number as K and one as V.
fn cache(blocks: u32) -> Cache {
    let spec =
        AttentionSpec { layers: 1, kv_heads: 1, head_dim: 1, block_tokens: 4, dtype: DType::F32 };
    let shape = ArenaShape::new(Geometry::attention(spec).unwrap(), Layout::TokenMajor, blocks);
    let arena = HostArena::anonymous(shape.unwrap(), blocks, Pages::Small).unwrap();
    Cache::new(CacheConfig::new("test"), Arc::new(arena)).unwrap()
}

/// Writes numbers as the KV of tokens from `start` on.
fn write(cache: &Cache, id: &str, start: u64, numbers: &[u32]) {
    for half in [Half::Key, Half::Value] {
        let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
        cache.write_tokens(id, 0, half, start, &bytes).unwrap();
    }
}

fn read(cache: &Cache, id: &str) -> Vec<u32> {
    let mut bytes = vec![0; cache.used_tokens(id).unwrap() as usize * TOKEN_BYTES];
    cache.read_tokens(id, 0, Half::Value, 0, &mut bytes).unwrap();
    bytes.as_chunks().0.iter().map(|n| u32::from_le_bytes(*n)).collect()
}

fn table(cache: &Cache, id: &str) -> Vec<BlockId> {
    let mut table = Vec::new();
    cache.block_table(id, &mut table).unwrap();
    table
}

/// A sequence of ten tokens, 100 to 109, whose KV are these numbers, two blocks of it published.
fn ten(cache: &Cache, id: &str) -> Vec<u32> {
    let tokens: Vec<u32> = (100..110).collect();
    let cached = cache.allocate_for(id, Prompt::Tokens(&tokens)).unwrap().cached_tokens;
    write(cache, id, cached, &tokens[cached as usize..]);
    cache.publish(id, 10).unwrap();
    tokens
}

/// One where a token is kept.
fn scores(text: &str) -> Vec<f32> {
    text.chars().map(|c| if c == 'x' { 1.0 } else { 0.5 }).collect()
}

#[test]
fn survivors_move_together_and_their_blocks_are_their_own() {
    let cache = cache(16);
    let tokens = ten(&cache, "a");
    ten(&cache, "b");
    let (shared, used) = (table(&cache, "a"), cache.stats().used_blocks);
    assert_eq!(shared[..2], table(&cache, "b")[..2]);
    let kept = cache.keep_important("a", &scores("xxxxx..x.x"), 7).unwrap();
    assert_eq!(kept, Kept { tokens: 7, dropped: 3, blocks: 2 });
    assert_eq!(read(&cache, "a"), [100, 101, 102, 103, 104, 107, 109]);
    assert_eq!(table(&cache, "a")[0], shared[0], "a block that loses no token stays shared");
    assert!(!shared.contains(&table(&cache, "a")[1]));
    assert_eq!((read(&cache, "b"), &table(&cache, "b")[..2]), (tokens.clone(), &shared[..2]));
    // The old last block of "a" went back, its second one is still used by "b".
    assert_eq!(cache.stats().used_blocks, used);

    let mut positions = Vec::new();
    assert_eq!(cache.positions("a", &mut positions).unwrap(), 10);
    assert_eq!(positions, [0, 1, 2, 3, 4, 7, 9]);
    cache.append_tokens("a", &[110, 111]).unwrap();
    write(&cache, "a", 7, &[110, 111]);
    assert_eq!(cache.next_position("a").unwrap(), 12);
    // Once more, with the positions of the first time.
    cache.keep_important("a", &scores("...x.x..x"), 3).unwrap();
    assert_eq!(read(&cache, "a"), [103, 107, 111]);
    assert_eq!(cache.positions("a", &mut positions).unwrap(), 12);
    assert_eq!(positions, [3, 7, 11]);
    for id in ["a", "b"] {
        cache.free_for(id).unwrap();
    }
    assert_eq!(cache.stats().used_blocks, 0);
}

/// A block after a dropped token holds KV that depends on the whole text: nobody may find it by the tokens left.
#[test]
fn what_is_left_is_no_prefix() {
    let cache = cache(16);
    let tokens = ten(&cache, "a");
    cache.keep_important("a", &scores("xxxx..xxxx"), 8).unwrap();
    assert_eq!(cache.publish("a", 8).unwrap(), 1, "published for forks, without a name");
    let left = [&tokens[..4], &tokens[6..10]].concat();
    for id in ["b", "c"] {
        let prompt = [&left[..], &[1]].concat();
        let found = cache.allocate_for(id, Prompt::Tokens(&prompt)).unwrap();
        assert_eq!(found.cached_tokens, 4, "the first block only, which is as it was");
    }
    // The tokens as they were are still found, in the blocks that had them.
    let found = cache.allocate_for("d", Prompt::Tokens(&tokens)).unwrap();
    assert_eq!(found.cached_tokens, 8);
    cache.fork("a", "e").unwrap();
    assert_eq!(table(&cache, "a"), table(&cache, "e"));
    assert_eq!((read(&cache, "e"), cache.next_position("e").unwrap()), (left, 10));
    assert_eq!(cache.pin_sequence("a").unwrap().len(), 1, "what is saved are blocks with names");
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let cache = cache(3);
    let tokens = ten(&cache, "a");
    let (before, blocks) = (cache.stats(), table(&cache, "a"));
    let mut scores = scores("x.xxxxxxxx");
    let refused = |scores: &[f32], keep| cache.keep_important("a", scores, keep).unwrap_err();
    assert!(matches!(refused(&scores, 0), CacheError::NoTokens));
    let short = refused(&scores[1..], 9);
    assert!(matches!(short, CacheError::WrongScores { given: 9, tokens: 10, .. }), "{short}");
    assert!(matches!(refused(&[], 9), CacheError::WrongScores { given: 0, .. }));
    assert!(matches!(cache.keep_important("b", &scores, 9), Err(CacheError::Unknown { .. })));
    // Survivors of all three blocks need three others.
    assert!(matches!(refused(&scores, 9), CacheError::Full(full) if full.wanted == 3));
    scores[6] = f32::NAN;
    let nan = refused(&scores, 9);
    assert_eq!(
        nan.to_string(),
        "the score of token 6 of \"a\" is NaN; give a number, or an infinity"
    );
    assert!(matches!(refused(&scores, 100), CacheError::NotANumber { token: 6, .. }));
    scores[6] = f32::NEG_INFINITY;
    let all = Kept { tokens: 10, dropped: 0, blocks: 3 };
    assert_eq!(cache.keep_important("a", &scores, 10).unwrap(), all);
    assert_eq!(cache.keep_important("a", &scores, u64::MAX).unwrap(), all);
    assert_eq!((cache.stats(), table(&cache, "a")), (before, blocks));
    assert_eq!((read(&cache, "a"), cache.next_position("a").unwrap()), (tokens, 10));
}

#[test]
fn an_arena_that_refuses_leaves_the_sequence_as_it_was() {
    let cache = cache(8);
    let tokens = ten(&cache, "a");
    let (before, blocks) = (cache.stats(), table(&cache, "a"));
    let pages = cache.arena().shape().pages_view(0, PageOrder::Nhd).unwrap();
    let bound = cache.arena().host().unwrap().view(&pages).unwrap();
    let busy = cache.keep_important("a", &scores("x.xxxxxxxx"), 9).unwrap_err();
    assert!(matches!(busy, CacheError::Arena(ArenaError::Busy { .. })), "{busy}");
    drop(bound);
    assert_eq!((cache.stats(), table(&cache, "a")), (before, blocks));
    assert_eq!(read(&cache, "a"), tokens);
    cache.keep_important("a", &scores("x.xxxxxxxx"), 9).unwrap();
}

/// B4: a view shows the tokens that the sequence had when it was made.
#[test]
fn a_view_keeps_the_tokens_that_were_dropped() {
    let cache = cache(16);
    let how = Admission { contiguous: true, ..Admission::default() };
    cache.allocate("a", Prompt::Count(10), &how).unwrap();
    let numbers: Vec<u32> = (0..10).collect();
    write(&cache, "a", 0, &numbers);
    let view = cache.tokens_view("a", 0, Half::Value).unwrap();
    let suspension = cache.suspend("a", 10).unwrap();
    cache.keep_important("a", &scores("x........x"), 2).unwrap();
    assert_eq!(cache.stats().used_blocks, 3 + 1);
    // Others take what is free, and write.
    cache.allocate_for("b", Prompt::Count(48)).unwrap();
    write(&cache, "b", 0, &[77; 48]);
    let bytes = view.bind().unwrap().unwrap();
    for number in 0..10_u32 {
        assert_eq!(bytes.row(&[0, number.into()]), Some(&number.to_le_bytes()[..]));
    }
    drop(bytes);
    drop(view);
    assert_eq!(cache.stats().used_blocks, 3 + 1 + 12, "the suspension keeps them too");
    assert_eq!(read(&cache, "a"), [0, 9]);
    // As many tokens as before, but others: it is not the sequence that was suspended.
    cache.append_count("a", 8).unwrap_err();
    cache.free_for("b").unwrap();
    cache.append_count("a", 8).unwrap();
    assert!(matches!(suspension.finish(), Err(CacheError::Changed { .. })));
    assert_eq!(cache.used_tokens("a").unwrap(), 10);
    cache.free_for("a").unwrap();
    assert_eq!(cache.stats().used_blocks, 0);
}

/// Tokens that are appended while others are dropped are appended to what is left.
#[test]
fn no_append_is_lost_while_tokens_are_dropped() {
    let cache = cache(512);
    cache.allocate_for("a", Prompt::Count(8)).unwrap();
    scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| (0..300).for_each(|_| _ = cache.append_count("a", 1).unwrap()));
        }
        scope.spawn(|| {
            let mut done = 0;
            while done < 300 {
                let tokens = cache.used_tokens("a").unwrap();
                let scores = vec![1.0; tokens as usize];
                match cache.keep_important("a", &scores, (tokens / 2).max(1)) {
                    Ok(_) => done += 1,
                    Err(CacheError::WrongScores { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        });
    });
    let mut positions = Vec::new();
    let next = cache.positions("a", &mut positions).unwrap();
    assert_eq!(next, 908);
    assert!(positions.is_sorted_by(|one, other| one < other));
    assert_eq!(cache.stats().used_blocks, (positions.len() as u32).div_ceil(4));
}

/// Suspended with a map for a store, and resumed by a cache that never saw it.
#[test]
fn positions_survive_a_suspension() {
    let (here, there) = (cache(16), cache(16));
    ten(&here, "a");
    here.keep_important("a", &scores("xxxxx..xxx"), 8).unwrap();
    here.append_tokens("a", &[110]).unwrap();
    write(&here, "a", 8, &[110]);
    let wanted = read(&here, "a");
    let mut suspension = here.suspend("a", 9).unwrap();
    // The first block has a name. The second one and the last, partial one have none.
    assert_eq!((suspension.named().len(), suspension.own_blocks()), (1, 2));
    let (mut store, mut room) = (HashMap::new(), vec![0; 4 * 8]);
    for at in 0..suspension.named().len() {
        suspension.named().read(at, &mut room).unwrap();
        store.insert(suspension.named().key(at), room.clone());
    }
    for _ in 0..suspension.own_blocks() {
        let own = suspension.read_own(&mut room).unwrap();
        store.insert(own.key, room[..own.bytes as usize].to_vec());
    }
    let (ticket, _, manifest) = suspension.manifest();
    suspension.finish().unwrap();

    let mut resuming = there.resume(&ticket, &manifest, &Admission::default()).unwrap();
    let name = resuming.named().wanted(1)[0];
    let payload = &store[&resuming.named().key(name)];
    assert!(resuming.named().accept(payload).unwrap());
    while let Some(own) = resuming.own_wanted() {
        resuming.accept_own(&store[&own.key]).unwrap();
    }
    resuming.finish("b").unwrap();
    let mut positions = Vec::new();
    assert_eq!(there.positions("b", &mut positions).unwrap(), 11);
    assert_eq!(positions, [0, 1, 2, 3, 4, 7, 8, 9, 10]);
    assert_eq!(read(&there, "b"), wanted);
    // It goes on without names.
    there.append_tokens("b", &[1; 7]).unwrap();
    assert_eq!(there.publish("b", 16).unwrap(), 2);
    assert_eq!(there.pin_sequence("b").unwrap().len(), 1);
}
