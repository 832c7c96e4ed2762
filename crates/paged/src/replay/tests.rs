//! Replays against caches so naive that they can be checked by eye, and the bound against all futures.

use super::*;
use mooncrate_core::rng::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

const SAMPLE: &str = include_str!("../../tests/data/conversation_300.jsonl");

fn trace_of(requests: &[Vec<u32>]) -> Trace {
    let mut text = String::new();
    for blocks in requests {
        let tokens = blocks.len() * 512;
        writeln!(
            text,
            r#"{{"timestamp": 0, "input_length": {tokens}, "output_length": 1, "hash_ids": {blocks:?}}}"#,
        )
        .unwrap();
    }
    Trace::read(text.as_bytes(), 512, Broken::Refuse).unwrap()
}

/// Requests that walk down a tree of prefixes: some branches are taken often, and some leaves are new.
fn tree(seed: u64, requests: usize, depth: u64) -> Vec<Vec<u32>> {
    let mut rng = Rng::new(seed);
    let mut children: BTreeMap<(u32, u64), u32> = BTreeMap::new();
    (0..requests)
        .map(|_| {
            let mut at = 0;
            (0..=rng.below(depth))
                .map(|_| {
                    let branch = rng.below(4) * rng.below(4) / 3;
                    let next = children.len() as u32 + 1;
                    at = *children.entry((at, branch)).or_insert(next);
                    at
                })
                .collect()
        })
        .collect()
}

/// FIFO or LRU in a vector, the next victim first.
struct Naive {
    order: Vec<TraceBlock>,
    capacity: usize,
    moves: bool,
}

impl Cache for Naive {
    fn serve(&mut self, blocks: &[TraceBlock]) -> usize {
        let found = blocks.iter().take_while(|block| self.order.contains(block)).count();
        let kept = &blocks[..blocks.len().min(self.capacity)];
        let missing: Vec<_> = kept.iter().filter(|block| !self.order.contains(block)).collect();
        let mut skipped = Vec::new();
        while self.order.len() + skipped.len() + missing.len() > self.capacity {
            let victim = self.order.remove(0);
            if kept.contains(&victim) {
                skipped.push(victim);
            }
        }
        for block in kept.iter().rev() {
            if self.moves {
                self.order.retain(|other| other != block);
            }
            if !self.order.contains(block) {
                self.order.push(*block);
            }
        }
        found
    }
}

#[test]
fn fifo_and_lru_find_what_the_naive_caches_find() {
    for seed in 0..20 {
        let trace = trace_of(&tree(seed, 300, 12));
        for capacity in [1, 2, 3, 7, 12, 40, 100] {
            for (policy, moves) in [(Policy::Fifo, false), (Policy::Lru, true)] {
                let mut naive = Naive { order: Vec::new(), capacity: capacity as usize, moves };
                let wanted = drive(&trace, &mut naive);
                let found = replay(&trace, policy, capacity);
                assert_eq!(found, wanted, "{policy}, {capacity} blocks, seed {seed}");
            }
        }
    }
}

/// Whatever the policy, nobody finds more than the bound; and where everything fits, all find the same.
#[test]
fn no_policy_beats_the_bound() {
    for seed in 0..20 {
        let trace = trace_of(&tree(seed, 300, 12));
        let all = optimal(&trace, trace.distinct());
        assert_eq!(all.hits, all.blocks - u64::from(trace.distinct()), "only first uses miss");
        let mut below = 0;
        for policy in Policy::ALL {
            assert_eq!(replay(&trace, policy, trace.distinct()), all, "{policy}");
            for capacity in [1, 5, 12, 30, 80] {
                let (bound, found) = (optimal(&trace, capacity), replay(&trace, policy, capacity));
                assert!(found.hits <= bound.hits, "{policy}, {capacity}: {found:?}, {bound:?}");
                below += u32::from(found.hits < bound.hits);
            }
        }
        assert!(below > 0, "a bound that everybody reaches shows nothing");
    }
}

/// The most hits that any choice of evictions can reach, by trying all of them. A block that was used may
/// stay or go; so may all others.
fn best(blocks: &[TraceBlock], capacity: usize) -> u64 {
    let mut reached: BTreeMap<BTreeSet<u32>, u64> = BTreeMap::from([(BTreeSet::new(), 0)]);
    for block in blocks {
        let mut after: BTreeMap<BTreeSet<u32>, u64> = BTreeMap::new();
        for (mut held, mut hits) in reached {
            hits += u64::from(!held.insert(block.0));
            let gone = held.iter().copied().filter(|_| held.len() > capacity);
            let next: Vec<BTreeSet<u32>> = if held.len() > capacity {
                gone.map(|gone| held.iter().copied().filter(|one| *one != gone).collect()).collect()
            } else {
                vec![held]
            };
            for held in next {
                let most = after.entry(held).or_default();
                *most = hits.max(*most);
            }
        }
        reached = after;
    }
    reached.into_values().max().unwrap()
}

#[test]
fn the_bound_is_the_best_of_all_futures() {
    for seed in 0..20 {
        let trace = trace_of(&tree(seed, 10, 4));
        for capacity in 1..5 {
            let wanted = best(trace.blocks(), capacity as usize);
            assert_eq!(optimal(&trace, capacity).hits, wanted, "seed {seed}, {capacity} blocks");
        }
    }
}

/// A request that is longer than the cache finds what fits, and the cache stays whole.
#[test]
fn a_request_may_be_longer_than_the_cache() {
    let trace = trace_of(&[vec![1, 2, 3, 4, 5], vec![1, 2, 3, 4, 5], vec![1, 9]]);
    for policy in Policy::ALL {
        let found = replay(&trace, policy, 3);
        assert_eq!((found.hits, found.saved_tokens), (3 + 1, 4 * 512), "{policy}");
    }
}

/// Blocks of the running request are not evicted for its own tail, even if they are the next victims.
#[test]
fn a_running_request_keeps_its_prefix() {
    let trace = trace_of(&[vec![1, 2], vec![7, 8], vec![1, 2, 3, 4], vec![1, 2, 3, 4]]);
    for policy in Policy::ALL {
        assert_eq!(replay(&trace, policy, 4).hits, 2 + 4, "{policy}");
    }
}

#[test]
fn a_found_block_behind_a_gap_does_not_count() {
    // FIFO holds 1, 2, 4, 3 in this order when 5 comes, so 1 goes and 2 stays without it.
    let trace = trace_of(&[vec![1], vec![1, 2], vec![3, 4], vec![5], vec![1, 2]]);
    assert_eq!(replay(&trace, Policy::Fifo, 4).hits, 1, "1 was found by the second request");
}

/// A trace names no ranks. Priority keeps heads of chains, importance keeps what was asked for often.
#[test]
fn ranks_are_derived_from_depth_and_from_counts() {
    let trace = trace_of(&[vec![1, 2, 3], vec![4, 5], vec![1], vec![4]]);
    // Six blocks would be needed; the deepest, block 3, goes, and both heads stay.
    assert_eq!(replay(&trace, Policy::Priority, 4).hits, 2);
    let often = [vec![1], vec![1], vec![1], vec![2], vec![3], vec![4], vec![1]];
    let trace = trace_of(&often);
    assert_eq!(replay(&trace, Policy::Importance, 2).hits, 3);
    assert_eq!(replay(&trace, Policy::Lru, 2).hits, 2, "LRU has forgotten it");
}

#[test]
fn capacities_are_powers_of_two_up_to_the_whole_trace() {
    let long = trace_of(&[(0..1000).collect()]);
    assert_eq!(capacities(&long), [8, 16, 32, 64, 128, 256, 512, 1024]);
    assert_eq!(capacities(&trace_of(&[vec![1, 2, 3]])), [1, 2, 4]);
    assert_eq!(capacities(&trace_of(&[vec![1]])), [1]);
}

/// The published trace: numbers that were checked once by the naive caches stay what they are.
#[test]
fn the_sample_gives_the_same_numbers_for_ever() {
    let trace = Trace::read(SAMPLE.as_bytes(), BLOCK_TOKENS, Broken::Refuse).unwrap();
    assert_eq!((trace.len(), trace.blocks().len(), trace.distinct()), (300, 8490, 7814));
    let mut naive = Naive { order: Vec::new(), capacity: 4096, moves: true };
    assert_eq!(drive(&trace, &mut naive), replay(&trace, Policy::Lru, 4096));
    let hits = Policy::ALL.map(|policy| replay(&trace, policy, 4096).hits);
    assert_eq!((hits, optimal(&trace, 4096).hits), ([441, 445, 602, 445, 634], 676));
}

/// The block manager finds what the policy alone finds, but for blocks behind gaps.
#[test]
fn the_block_manager_finds_what_its_policy_does() {
    let trace = Trace::read(SAMPLE.as_bytes(), BLOCK_TOKENS, Broken::Refuse).unwrap();
    for policy in Policy::ALL {
        for capacity in [200, 1_000, 4_096, 8_191] {
            let bare = replay(&trace, policy, capacity).hits;
            let real = replay_pool(&trace, policy, capacity).hits;
            assert!(
                bare.abs_diff(real) * 50 <= bare.max(20),
                "{policy}, {capacity}: {bare}, {real}"
            );
        }
    }
    // One list, and no gaps: a head is never worth less than what follows it.
    for policy in [Policy::Lru, Policy::Priority, Policy::Importance] {
        for capacity in [300, 1_000, 4_096] {
            let (real, bare) =
                (replay_pool(&trace, policy, capacity), replay(&trace, policy, capacity));
            assert_eq!(real, bare, "{policy}, {capacity}");
        }
    }
}

/// A block has the rank of its last use, not of its first one.
#[test]
fn the_block_manager_goes_by_what_a_block_is_worth_now() {
    let often = [vec![1], vec![1], vec![1], vec![2], vec![3], vec![4], vec![1]];
    let trace = trace_of(&often);
    assert_eq!(replay_pool(&trace, Policy::Importance, 2).hits, 3);
    assert_eq!(replay_pool(&trace, Policy::Lru, 2).hits, 2);
}

/// After a shift of the load density learned on the old one; within requests of twice the capacity it finds what LRU
/// does, and more from then on.
#[test]
fn after_a_shift_density_soon_finds_what_lru_does() {
    let trace = Load::Shift.trace(1, 512);
    let third = trace.len() / 3;
    for capacity in [1000, 2000] {
        let order = Policy::Lru.build().expect("a list");
        let mut lru = bare::Bare::new(order, Policy::Lru, capacity, trace.distinct());
        let mut density = density::ByDensity::new(capacity, trace.distinct());
        let (mut soon, mut late) = ([0, 0], [0, 0]);
        for (at, request) in trace.requests().enumerate().take(2 * third) {
            let hits = [lru.serve(request.blocks), density.serve(request.blocks)];
            let Some(since) = at.checked_sub(third) else { continue };
            let window = if since < 2 * capacity { &mut soon } else { &mut late };
            for (side, hits) in hits.into_iter().enumerate() {
                window[side] += hits;
            }
        }
        println!("{capacity} blocks, LRU and density: {soon:?}, then {late:?}");
        assert!(soon[1] >= soon[0] && late[1] >= late[0]);
    }
}
