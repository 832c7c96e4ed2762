//! Sequences over a real arena: the KV of each token follows from all tokens before it, is written once, and
//! is read back through tables, forks, shared prefixes and evictions.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail where they stand")]

use mooncrate_core::rng::Rng;
use mooncrate_paged::{
    Admission, ArenaShape, AttentionSpec, BlockId, Cache, CacheConfig, CacheError, DType, Geometry,
    Half, HostArena, Layout, Order, PageOrder, Pages, Part, Policy, Prompt, ResizeError,
};
use std::collections::BTreeSet;
use std::sync::Arc;

const BLOCK: u32 = 4;

fn cache(blocks: u32, max: u32, policy: Policy, layout: Layout) -> Cache {
    let spec = AttentionSpec {
        layers: 1,
        kv_heads: 2,
        head_dim: 4,
        block_tokens: BLOCK,
        dtype: DType::F32,
    };
    let shape = ArenaShape::new(Geometry::attention(spec).unwrap(), layout, max).unwrap();
    let arena = HostArena::anonymous(shape, blocks, Pages::Small).unwrap();
    Cache::new(CacheConfig { policy, ..CacheConfig::new("test") }, Arc::new(arena)).unwrap()
}

/// The KV of the last of these tokens, as a model would compute it: from all of them, and the tenant.
fn kv(tenant: u32, tokens: &[u32]) -> Vec<u8> {
    let mut state = u64::from(tenant) + 1;
    for token in tokens {
        state = (state ^ u64::from(*token)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
    (0..64u64)
        .map(|n| (state.wrapping_add(n).wrapping_mul(0xff51_afd7_ed55_8ccd) >> 56) as u8)
        .collect()
}

/// Where the KV of a token lies.
fn part(table: &[BlockId], token: usize) -> Part {
    let slot = token as u32 % BLOCK;
    Part::block(table[token / BLOCK as usize]).tokens(slot..slot + 1)
}

/// A sequence, and what must be in it.
struct Model {
    id: String,
    tenant: u32,
    /// All tokens that it ever had.
    text: Vec<u32>,
    /// Those of them that were not dropped.
    positions: Vec<usize>,
}

impl Model {
    fn new(id: &str, tenant: u32, text: Vec<u32>) -> Self {
        let positions = (0..text.len()).collect();
        Self { id: id.into(), tenant, text, positions }
    }

    /// Adds what was appended.
    fn extend(&mut self, more: &[u32]) {
        self.positions.extend(self.text.len()..self.text.len() + more.len());
        self.text.extend(more);
    }

    /// Writes the KV of the tokens from `from` on, and publishes.
    fn write(&self, cache: &Cache, from: usize) {
        let (mut table, tokens) = (Vec::new(), self.positions.len());
        assert_eq!(cache.block_table(&self.id, &mut table).unwrap(), tokens as u64);
        for token in from..tokens {
            let bytes = kv(self.tenant, &self.text[..=self.positions[token]]);
            cache.arena().write(&part(&table, token), Order::Tokens, &bytes).unwrap();
        }
        cache.publish(&self.id, tokens as u64).unwrap();
    }

    fn judge(&self, cache: &Cache) {
        let (mut table, mut positions) = (Vec::new(), Vec::new());
        let tokens = cache.block_table(&self.id, &mut table).unwrap() as usize;
        assert_eq!(tokens, self.positions.len());
        assert_eq!(table.len(), tokens.div_ceil(BLOCK as usize));
        let next = cache.positions(&self.id, &mut positions).unwrap();
        assert!(positions.iter().map(|at| *at as usize).eq(self.positions.iter().copied()));
        assert_eq!(next, self.text.len() as u64);
        let mut found = vec![0; 64];
        for (token, position) in self.positions.iter().enumerate() {
            // Two readers of one block never meet a writer: published blocks are not written.
            cache.arena().read(&part(&table, token), Order::Tokens, &mut found).unwrap();
            let wanted = kv(self.tenant, &self.text[..=*position]);
            assert_eq!(found, wanted, "token {token} of {}", self.id);
        }
    }

    /// Drops tokens by random scores, and says which ones those are in the plainest way.
    fn drop_some(&mut self, cache: &Cache, rng: &mut Rng) {
        let drawn: Vec<u8> = self.positions.iter().map(|_| rng.below(4) as u8).collect();
        let scores: Vec<f32> = drawn.iter().copied().map(f32::from).collect();
        let keep = 1 + rng.below(self.positions.len() as u64 + 2);
        let before = self.positions.len() as u64;
        match cache.keep_important(&self.id, &scores, keep) {
            Ok(kept) => {
                let mut by_score: Vec<usize> = (0..scores.len()).collect();
                by_score.sort_by_key(|token| (drawn[*token], *token));
                let drop = scores.len().saturating_sub(keep as usize);
                let dropped: BTreeSet<usize> = by_score[..drop].iter().copied().collect();
                let mut token = 0;
                self.positions.retain(|_| {
                    token += 1;
                    !dropped.contains(&(token - 1))
                });
                assert_eq!((kept.tokens, kept.dropped), (keep.min(before), drop as u64));
                assert_eq!(kept.blocks, (kept.tokens as usize).div_ceil(BLOCK as usize));
            }
            Err(CacheError::Full(_)) => {}
            Err(error) => panic!("{error}"),
        }
        self.judge(cache);
    }
}

/// One random step of one thread.
fn step(cache: &Cache, rng: &mut Rng, live: &mut Vec<Model>, thread: u64, n: u64) {
    match rng.below(11) {
        0..4 => {
            let (family, shared) = (rng.below(4) as u32, rng.below(40) as usize);
            let tokens: Vec<u32> = (0..=rng.below(60) as usize)
                .map(|at| if at < shared { family } else { rng.below(3) as u32 + 10 })
                .collect();
            let model = Model::new(&format!("{thread}/{n}"), rng.below(2) as u32, tokens);
            let how = Admission {
                tenant: model.tenant,
                contiguous: rng.below(4) == 0,
                rank: rng.below(64) as u8,
                ..Admission::default()
            };
            match cache.allocate(&model.id, Prompt::Tokens(&model.text), &how) {
                Ok(admitted) => {
                    assert!(admitted.cached_tokens < model.text.len() as u64);
                    model.write(cache, admitted.cached_tokens as usize);
                    live.push(model);
                }
                Err(CacheError::Full(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
        4..7 if !live.is_empty() => {
            let at = rng.below(live.len() as u64) as usize;
            let more: Vec<u32> = (0..=rng.below(9)).map(|_| rng.below(5) as u32).collect();
            let model = &mut live[at];
            match cache.append_tokens(&model.id, &more) {
                Ok(_) => {
                    let from = model.positions.len();
                    model.extend(&more);
                    model.write(cache, from);
                }
                Err(CacheError::Full(_)) => model.judge(cache),
                Err(error) => panic!("{error}"),
            }
        }
        7 if !live.is_empty() => {
            let parent = &live[rng.below(live.len() as u64) as usize];
            let child = Model {
                id: format!("{thread}/{n}"),
                tenant: parent.tenant,
                text: parent.text.clone(),
                positions: parent.positions.clone(),
            };
            match cache.fork(&parent.id, &child.id) {
                Ok(()) => live.push(child),
                Err(CacheError::Full(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
        8 if !live.is_empty() => {
            let at = rng.below(live.len() as u64) as usize;
            live[at].drop_some(cache, rng);
        }
        _ if !live.is_empty() => {
            let model = live.swap_remove(rng.below(live.len() as u64) as usize);
            model.judge(cache);
            cache.free_for(&model.id).unwrap();
        }
        _ => {}
    }
}

fn run(cache: &Cache, threads: u64, steps: u64) {
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                let mut rng = Rng::new(thread);
                let mut live = Vec::new();
                for n in 0..steps {
                    step(cache, &mut rng, &mut live, thread, n);
                }
                for model in live {
                    model.judge(cache);
                    cache.free_for(&model.id).unwrap();
                }
            });
        }
    });
    let stats = cache.stats();
    assert_eq!((stats.sequences, stats.used_blocks), (0, 0), "{stats:?}");
    assert!(stats.evicted_blocks > 0);
    cache.pool().evict(stats.total_blocks);
    assert_eq!(cache.stats().free_blocks, stats.total_blocks);
}

#[test]
fn every_token_is_read_as_it_was_written() {
    for policy in Policy::ALL {
        run(&cache(120, 120, policy, Layout::Nhd), 1, 3_000);
    }
}

#[test]
fn eight_threads_read_every_token_as_it_was_written() {
    run(&cache(600, 600, Policy::Lru, Layout::BlockFirst), 8, 1_500);
    run(&cache(600, 600, Policy::Density, Layout::BlockFirst), 8, 1_500);
    run(&cache(10_000, 10_000, Policy::Fifo, Layout::LayerBlockHead), 8, 1_500);
    // Few blocks and several eviction lists.
    run(&cache(600, 10_000, Policy::Density, Layout::LayerBlockHead), 8, 1_500);
}

/// Token 513 of a prompt of 512 gets a block of its own, while one is free.
#[test]
fn a_sequence_grows_past_its_prompt() {
    let cache = cache(129, 129, Policy::Lru, Layout::Nhd);
    cache.allocate_for("a", Prompt::Count(512)).unwrap();
    assert_eq!(cache.token_place("a").unwrap().logical_block, 127);
    assert_eq!(cache.append_count("a", 1).unwrap(), 1);
    let place = cache.token_place("a").unwrap();
    assert_eq!((place.logical_block, place.slot), (128, 0));
    assert_eq!(cache.append_count("a", 3).unwrap(), 0);
    let full = cache.append_count("a", 1).unwrap_err();
    assert!(matches!(full, CacheError::Full(_)), "{full}");
    assert_eq!(cache.used_tokens("a").unwrap(), 516);
    cache.free_for("a").unwrap();
    assert_eq!(cache.stats().free_blocks, 129);
}

/// Names are computed and registered many at a time; where a call ends must not change them.
#[test]
fn names_do_not_depend_on_the_pieces_in_which_they_are_published() {
    let prompt: Vec<u32> = (0..=300 * BLOCK).collect();
    for pieces in [&[300][..], &[1, 0, 63, 64, 65, 107], &[64, 64, 172], &[129, 171]] {
        let cache = cache(700, 700, Policy::Lru, Layout::Nhd);
        cache.allocate_for("writer", Prompt::Tokens(&prompt)).unwrap();
        let mut published = 0;
        for piece in pieces {
            published += piece;
            let written = u64::from(BLOCK) * published as u64 + 1;
            assert_eq!(cache.publish("writer", written).unwrap(), *piece);
            // Fewer than before is nothing new.
            assert_eq!(cache.publish("writer", 3).unwrap(), 0);
        }
        let found = cache.allocate_for("reader", Prompt::Tokens(&prompt)).unwrap();
        assert_eq!(found.cached_tokens, 300 * u64::from(BLOCK), "{pieces:?}");
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        cache.block_table("reader", &mut ours).unwrap();
        cache.block_table("writer", &mut theirs).unwrap();
        assert_eq!(ours[..300], theirs[..300], "in the same order");
        cache.free_for("writer").unwrap();
        cache.free_for("reader").unwrap();
    }
}

#[test]
fn bad_calls_are_refused_and_change_nothing() {
    let cache = cache(8, 16, Policy::Lru, Layout::Nhd);
    cache.allocate_for("a", Prompt::Count(5)).unwrap();
    let before = cache.stats();
    let refused = [
        cache.allocate_for("a", Prompt::Count(1)).unwrap_err(),
        cache.allocate_for("b", Prompt::Count(0)).unwrap_err(),
        cache.allocate_for("b", Prompt::Tokens(&[])).unwrap_err(),
        cache.allocate_for("b", Prompt::Count(u64::MAX)).unwrap_err(),
        cache.allocate_for("b", Prompt::Count(29)).unwrap_err(),
        cache.append_token("b", 1).unwrap_err(),
        cache.append_count("a", u64::MAX).unwrap_err(),
        cache.fork("b", "c").unwrap_err(),
        cache.fork("a", "a").unwrap_err(),
        cache.free_for("b").unwrap_err(),
        cache.blocks_view("b", 0, Half::Key).unwrap_err(),
        cache.blocks_view("a", 1, Half::Key).unwrap_err(),
        cache.resize(0).unwrap_err(),
        cache.resize(17).unwrap_err(),
    ];
    let words: Vec<String> = refused.iter().map(ToString::to_string).collect();
    assert_eq!(words[0], "there is a sequence \"a\" already; free it first, or choose another id");
    assert_eq!(words[1], "a sequence needs at least one token");
    assert_eq!(words[4], "8 blocks were asked for; 6 of 8 are free and 0 could be evicted");
    assert_eq!(words[5], "there is no sequence \"b\"; it was never allocated, or freed");
    assert_eq!(cache.stats(), before);
    cache.free_for("a").unwrap();
    assert!(matches!(cache.free_for("a"), Err(CacheError::Unknown { .. })), "freed twice");
}

/// B4: the blocks of a view stay, also when its sequence is freed.
/// The story: a sequence held its cache, which holds its sequences. A cache that was dropped while sequences ran
/// kept its memory until the process ended.
#[test]
fn a_dropped_cache_gives_its_memory_back() {
    let cache = cache(8, 8, Policy::Lru, Layout::HeadMajor);
    let how = Admission { contiguous: true, ..Admission::default() };
    for id in ["a", "b"] {
        cache.allocate(id, Prompt::Count(10), &how).unwrap();
    }
    let view = cache.tokens_view("a", 0, Half::Key).unwrap();
    let arena = Arc::downgrade(cache.arena());
    drop(cache);
    assert_eq!(view.bind().unwrap().unwrap().f32_at(&[1, 9, 3]), Some(0.0), "the view keeps it");
    drop(view);
    assert!(arena.upgrade().is_none());
}

#[test]
fn a_view_keeps_the_blocks_of_its_sequence() {
    let cache = cache(8, 8, Policy::Lru, Layout::HeadMajor);
    let how = Admission { contiguous: true, ..Admission::default() };
    cache.allocate("a", Prompt::Count(10), &how).unwrap();
    let model = Model::new("a", 0, (0..10).collect());
    model.write(&cache, 0);
    let view = cache.tokens_view("a", 0, Half::Key).unwrap();
    assert_eq!(view.view().tensor().shape(), [2, 10, 4]);
    let blocks = cache.blocks_view("a", 0, Half::Value).unwrap();
    assert_eq!(blocks.view().tensor().shape(), [2, 3, 4, 4]);
    cache.free_for("a").unwrap();
    assert_eq!(cache.stats().used_blocks, 3);
    assert!(matches!(cache.tokens_view("a", 0, Half::Key), Err(CacheError::Unknown { .. })));
    let host = cache.arena().host().unwrap();
    let bytes = host.view(view.view()).unwrap();
    let wanted = kv(0, &model.text[..=9]);
    assert_eq!(bytes.row(&[0, 9]), Some(&wanted[..16]));
    drop(bytes);
    drop(view);
    assert_eq!(cache.stats().used_blocks, 3);
    drop(blocks);
    assert_eq!(cache.stats().used_blocks, 0);
}

#[test]
fn it_grows_and_shrinks_while_in_use() {
    let cache = cache(4, 12, Policy::Lru, Layout::Nhd);
    cache.allocate_for("a", Prompt::Count(16)).unwrap();
    assert!(matches!(cache.append_count("a", 1), Err(CacheError::Full(_))));
    cache.resize(12).unwrap();
    cache.append_count("a", 16).unwrap();
    let error = cache.resize(6).unwrap_err();
    assert!(matches!(error, CacheError::Resize(ResizeError::InUse { blocks: 2, .. })), "{error}");
    cache.free_for("a").unwrap();
    cache.resize(6).unwrap();
    assert_eq!((cache.stats().total_blocks, cache.arena().blocks()), (6, 6));
}

#[test]
fn the_dump_names_sequences_and_sizes() {
    let cache = cache(64, 64, Policy::Lru, Layout::Nhd);
    let how = Admission { contiguous: true, ..Admission::default() };
    cache.allocate("req_001", Prompt::Count(32), &how).unwrap();
    let dump = cache.dump();
    assert!(dump.contains("Layers: 1, KV heads: 2, Head dim: 4"), "{dump}");
    assert!(dump.contains("req_001: 32/32 tokens, blocks [0, +8], 0 published"), "{dump}");
}

/// B6: a block that could not be zeroed stays unclean: its next owner of another tenant gets it zeroed.
#[test]
fn no_tenant_reads_what_another_one_wrote() {
    let cache = cache(2, 2, Policy::Lru, Layout::Nhd);
    let of = |tenant| Admission { tenant, ..Admission::default() };
    cache.allocate("a", Prompt::Count(8), &of(1)).unwrap();
    let secret = vec![9; cache.geometry().block_bytes() as usize];
    for block in [BlockId(0), BlockId(1)] {
        cache.arena().write(&Part::block(block), Order::Tokens, &secret).unwrap();
    }
    cache.free_for("a").unwrap();
    // Somebody looks at the memory, so it cannot be zeroed now.
    let pages = cache.arena().shape().pages_view(0, PageOrder::Nhd).unwrap();
    let bound = cache.arena().host().unwrap().view(&pages).unwrap();
    let refused = cache.allocate("b", Prompt::Count(4), &of(2)).unwrap_err();
    assert!(matches!(refused, CacheError::Arena(_)), "{refused}");
    drop(bound);
    assert_eq!(cache.stats().free_blocks, 2);

    cache.allocate("b", Prompt::Count(4), &of(2)).unwrap();
    let bound = cache.arena().host().unwrap().view(&pages).unwrap();
    cache.append_count("b", 1).unwrap_err();
    assert_eq!(cache.used_tokens("b").unwrap(), 4, "an append that failed changed nothing");
    drop(bound);
    cache.append_count("b", 1).unwrap();
    let mut found = secret.clone();
    for block in [BlockId(0), BlockId(1)] {
        cache.arena().read(&Part::block(block), Order::Tokens, &mut found).unwrap();
        assert!(found.iter().all(|byte| *byte == 0), "{block:?} shows the bytes of tenant 1");
    }
}

/// Blocks that were found again are used, not cached; and what cannot succeed evicts nothing.
#[test]
fn blocks_that_are_found_again_count_as_used() {
    let cache = cache(16, 16, Policy::Lru, Layout::Nhd);
    let (one, other): (Vec<u32>, Vec<u32>) = ((0..32).collect(), (100..120).collect());
    for (id, prompt) in [("a", &one), ("b", &other)] {
        cache.allocate_for(id, Prompt::Tokens(prompt)).unwrap();
        cache.publish(id, prompt.len() as u64).unwrap();
        cache.free_for(id).unwrap();
    }
    assert_eq!(cache.stats().cached_blocks, 8 + 5);
    let again = cache.allocate_for("a", Prompt::Tokens(&one)).unwrap();
    assert_eq!(again.cached_tokens, 28);
    let stats = cache.stats();
    assert_eq!((stats.used_blocks, stats.cached_blocks, stats.free_blocks), (8, 1 + 5, 2));
    // 8 are in use, so 10 do not fit, whatever is evicted.
    assert!(matches!(cache.allocate_for("c", Prompt::Count(40)), Err(CacheError::Full(_))));
    assert_eq!(cache.stats(), stats, "evicted in vain");
    cache.allocate_for("c", Prompt::Count(32)).unwrap();
    assert_eq!(cache.stats().free_blocks + cache.stats().cached_blocks, 0);
}

#[test]
fn a_prompt_that_can_never_fit_is_refused_before_memory_is_taken() {
    let cache = cache(4, 4, Policy::Lru, Layout::Nhd);
    let error = cache.allocate_for("a", Prompt::Count(i32::MAX as u64)).unwrap_err();
    assert!(matches!(error, CacheError::Full(full) if full.wanted == 1 << 29), "{error}");
}
