//! The bound: what a cache finds that knows the future.
//!
//! Belady's MIN: when room is needed, the block whose next use is farthest away goes; if that is the block
//! that has just come, it is not kept. Blocks are used one after the other in the order of the trace, and
//! each counts for itself.
//!
//! What is bounded. For independent blocks of one size MIN finds as many as any policy can that fetches on
//! demand. Every policy of a replay has less freedom: it keeps the blocks of the running request, and finds
//! a block only if it has all blocks before it. So MIN's hits are an upper bound for all of them, and an
//! estimate from above of the best that a prefix cache could do, not its exact optimum.
//!
//! How near it is: in a trace of prefixes, a block is never used without those before it, so its next use
//! never comes before theirs, and MIN evicts chains from their ends. All that it finds are prefixes, too.
//! What remains is that it may evict the head of a request while its tail is still being used. Tokens
//! are not bounded by it: it counts blocks, and a last block may be a partial one.

use super::Outcome;
use super::trace::{Trace, TraceBlock};
use std::collections::BinaryHeap;

/// Where a block that is never used again is used next.
const NEVER: u32 = u32::MAX;

/// What the best cache of so many blocks finds.
pub fn optimal(trace: &Trace, capacity: u32) -> Outcome {
    let blocks = trace.blocks();
    let next = next_uses(blocks, trace.distinct());
    // For each block where it is used next, if it is cached. An entry of the heap that says otherwise is
    // outdated; there is one entry per use, so the heap stays as small as the trace.
    let mut cached: Vec<Option<u32>> = vec![None; trace.distinct() as usize];
    let mut farthest: BinaryHeap<(u32, TraceBlock)> = BinaryHeap::new();
    let (mut held, mut at) = (0, 0);
    let mut outcome = Outcome::none_of(trace);
    for request in trace.requests() {
        for (index, block) in request.blocks.iter().enumerate() {
            let use_next = next[at];
            at += 1;
            farthest.push((use_next, *block));
            if cached[block.0 as usize].replace(use_next).is_some() {
                outcome.hits += 1;
                outcome.saved_tokens += request.tokens_of(index, trace.block_tokens());
                continue;
            }
            held += 1;
            while held > capacity {
                let (then, victim) = farthest.pop().expect("what is held has an entry");
                let entry = &mut cached[victim.0 as usize];
                if *entry == Some(then) {
                    *entry = None;
                    held -= 1;
                }
            }
        }
    }
    outcome
}

/// For each use of a block the place of the next one.
fn next_uses(blocks: &[TraceBlock], distinct: u32) -> Vec<u32> {
    let mut seen = vec![NEVER; distinct as usize];
    let mut next = vec![NEVER; blocks.len()];
    for (at, block) in blocks.iter().enumerate().rev() {
        next[at] = std::mem::replace(&mut seen[block.0 as usize], at as u32);
    }
    next
}
