//! Replays a request trace through caches of several sizes: which policy finds how much, and how far is
//! that from the best possible.
//!
//! ```text
//!   JSON lines ──► Trace ──► each policy, each capacity ──► Outcome ──► table, plot
//!                        └─► optimal: knows the future  ──► Outcome ──┘
//! ```
//!
//! A request finds the longest prefix of its blocks that is cached, computes the others, and releases all of
//! them at once, the last one first: so the ends of chains are evicted before the blocks that they need.
//! Requests run one after the other; what runs at the same time on a real machine would hold blocks longer.
//!
//! What must stay true: a replay of the same trace gives the same numbers on every machine: it reads no clock, and
//! random choices come from a fixed seed. A found block counts only if all blocks before it were found.

mod bare;
mod density;
mod loads;
mod optimal;
mod plot;
mod ranks;
mod real;
mod trace;

#[cfg(test)]
mod tests;

pub use loads::{Load, UnknownLoad};
pub use optimal::optimal;
pub use plot::{Plot, Series};
pub use trace::{Broken, Request, Trace, TraceBlock, TraceError};

use crate::policy::Policy;

/// Tokens of a block in the traces that Mooncake publishes.
pub const BLOCK_TOKENS: u32 = 512;

/// Bytes that the KV cache of Llama 3 8B takes per token: keys and values of 32 layers, 8 heads of 128
/// numbers each, two bytes per number.
pub const BYTES_PER_TOKEN: u64 = 2 * 32 * 8 * 128 * 2;

/// Sizes that are tried unless the caller names some.
const CAPACITIES: u32 = 8;

/// What a trace is replayed through. The seam between a replay and a cache; it has no other methods, so that
/// a real block pool can stand where the simulated one does.
trait Cache {
    /// Serves one request: finds the longest prefix of its blocks that is present, takes the others as new
    /// ones, and releases all of them, tail first. Returns the blocks found.
    fn serve(&mut self, blocks: &[TraceBlock]) -> usize;
}

/// What a cache found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Blocks that were asked for.
    pub blocks: u64,
    /// Blocks that were found.
    pub hits: u64,
    /// Tokens of the blocks that were found: they need not be computed.
    pub saved_tokens: u64,
}

impl Outcome {
    fn none_of(trace: &Trace) -> Self {
        Self { blocks: trace.blocks().len() as u64, hits: 0, saved_tokens: 0 }
    }

    /// Blocks found, as a part of those that were asked for, from 0 to 1.
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    pub fn hit_rate(&self) -> f64 {
        if self.blocks == 0 { 0.0 } else { self.hits as f64 / self.blocks as f64 }
    }

    /// Bytes of KV cache that need not be computed.
    pub const fn saved_bytes(&self, bytes_per_token: u64) -> u64 {
        self.saved_tokens.saturating_mul(bytes_per_token)
    }
}

/// Replays a trace through an empty cache of so many blocks.
pub fn replay(trace: &Trace, policy: Policy, capacity: u32) -> Outcome {
    assert!(capacity > 0, "a cache has at least one block");
    let (capacity, distinct) = (capacity as usize, trace.distinct());
    match policy.build() {
        Some(order) => drive(trace, &mut bare::Bare::new(order, policy, capacity, distinct)),
        None => drive(trace, &mut density::ByDensity::new(capacity, distinct)),
    }
}

/// Replays a trace through an empty block manager of so many blocks: the code that engines use.
pub fn replay_pool(trace: &Trace, policy: Policy, capacity: u32) -> Outcome {
    drive(trace, &mut real::Real::new(policy, capacity, trace.distinct()))
}

fn drive(trace: &Trace, cache: &mut impl Cache) -> Outcome {
    let mut outcome = Outcome::none_of(trace);
    for request in trace.requests() {
        let found = cache.serve(request.blocks);
        outcome.hits += found as u64;
        let tokens = found as u64 * u64::from(trace.block_tokens());
        outcome.saved_tokens += tokens.min(request.tokens.into());
    }
    outcome
}

/// Sizes worth a look: eight powers of two, the largest of which holds every block of the trace.
pub fn capacities(trace: &Trace) -> Vec<u32> {
    let most = trace.distinct().clamp(1, 1 << 31).next_power_of_two();
    let least = most.trailing_zeros().saturating_sub(CAPACITIES - 1);
    (least..=most.trailing_zeros()).map(|power| 1 << power).collect()
}
