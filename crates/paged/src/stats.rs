//! How full a cache is and what it did so far, in numbers and in words.

use crate::cache::{Admitted, Cache};
use crate::sequence::Sequence;
use mooncrate_core::tally::Count;
use std::fmt::Write;

/// How full a cache is, and what it did so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheStats {
    /// Sequences in it.
    pub sequences: usize,
    /// Blocks there are.
    pub total_blocks: u32,
    /// Blocks that hold nothing.
    pub free_blocks: u32,
    /// Blocks that nobody uses, kept for their names.
    pub cached_blocks: u32,
    /// Blocks of sequences; one that several share counts once.
    pub used_blocks: u32,
    /// Blocks that were evicted so far.
    pub evicted_blocks: u64,
    /// Bytes of a block, keys and values.
    pub block_bytes: u64,
    /// Tokens of admitted prompts whose KV was in the cache.
    pub hit_tokens: u64,
    /// Tokens of admitted prompts that had to be computed.
    pub miss_tokens: u64,
    /// Blocks of admitted prompts that were found.
    pub hit_blocks: u64,
    /// Blocks of admitted prompts that were taken anew.
    pub miss_blocks: u64,
    /// Sequences that were forked off others.
    pub forks: u64,
    /// Blocks that forks copied, because they could not be shared.
    pub copied_blocks: u64,
    /// Tokens that sequences dropped as the least important ones.
    pub dropped_tokens: u64,
    /// Blocks that were read to be stored elsewhere.
    pub spilled_blocks: u64,
    /// Bytes of those.
    pub spilled_bytes: u64,
    /// Blocks that came from elsewhere.
    pub fetched_blocks: u64,
    /// Bytes of those.
    pub fetched_bytes: u64,
    /// Sequences that were suspended.
    pub suspended_sequences: u64,
    /// Sequences that came back whole.
    pub resumed_sequences: u64,
}

/// What a cache counts. Calls that fail count nothing.
#[derive(Debug, Default)]
pub(crate) struct CacheTally {
    pub(crate) hit_tokens: Count,
    pub(crate) miss_tokens: Count,
    pub(crate) hit_blocks: Count,
    pub(crate) miss_blocks: Count,
    pub(crate) forks: Count,
    pub(crate) copied_blocks: Count,
    pub(crate) dropped_tokens: Count,
    pub(crate) spilled_blocks: Count,
    pub(crate) spilled_bytes: Count,
    pub(crate) fetched_blocks: Count,
    pub(crate) fetched_bytes: Count,
    pub(crate) suspended_sequences: Count,
    pub(crate) resumed_sequences: Count,
}

impl CacheTally {
    /// A prompt was admitted, of whose tokens and blocks the first ones were found.
    pub(crate) fn admitted(&self, tokens: u64, admitted: &Admitted, hit_blocks: u64) {
        self.hit_tokens.add(admitted.cached_tokens);
        self.miss_tokens.add(tokens - admitted.cached_tokens);
        self.hit_blocks.add(hit_blocks);
        self.miss_blocks.add(admitted.blocks as u64 - hit_blocks);
    }

    /// A block was read to be stored elsewhere.
    pub(crate) fn spilled(&self, bytes: u64) {
        self.spilled_blocks.one();
        self.spilled_bytes.add(bytes);
    }

    /// A block came from elsewhere.
    pub(crate) fn fetched(&self, bytes: u64) {
        self.fetched_blocks.one();
        self.fetched_bytes.add(bytes);
    }
}

impl CacheStats {
    /// Whether no sequence can get a block.
    pub const fn is_full(&self) -> bool {
        self.free_blocks == 0 && self.cached_blocks == 0
    }
}

impl Cache {
    /// How full it is, and what it did so far. No call waits for this one, and it waits for none.
    pub fn stats(&self) -> CacheStats {
        let (pool, tally) = (&self.shared.pool, &self.shared.tally);
        let (total, free, cached) = (pool.total_blocks(), pool.free_blocks(), pool.cached_blocks());
        CacheStats {
            sequences: self.shared.sequences.len(),
            total_blocks: total,
            free_blocks: free,
            cached_blocks: cached,
            used_blocks: total.saturating_sub(free).saturating_sub(cached),
            evicted_blocks: pool.evicted_blocks(),
            block_bytes: self.geometry().block_bytes(),
            hit_tokens: tally.hit_tokens.value(),
            miss_tokens: tally.miss_tokens.value(),
            hit_blocks: tally.hit_blocks.value(),
            miss_blocks: tally.miss_blocks.value(),
            forks: tally.forks.value(),
            copied_blocks: tally.copied_blocks.value(),
            dropped_tokens: tally.dropped_tokens.value(),
            spilled_blocks: tally.spilled_blocks.value(),
            spilled_bytes: tally.spilled_bytes.value(),
            fetched_blocks: tally.fetched_blocks.value(),
            fetched_bytes: tally.fetched_bytes.value(),
            suspended_sequences: tally.suspended_sequences.value(),
            resumed_sequences: tally.resumed_sequences.value(),
        }
    }

    /// The cache in words, one line for each sequence.
    pub fn dump(&self) -> String {
        let (geometry, stats) = (self.geometry(), self.stats());
        // Hundredths of a MiB, rounded, in integers. An arena has at most 2^46 bytes, so nothing overflows.
        let mib = |blocks: u32| {
            let bytes = u64::from(blocks) * stats.block_bytes;
            let hundredths = (bytes * 100 + (1 << 19)) >> 20;
            format!("{}.{:02}", hundredths / 100, hundredths % 100)
        };
        let mut text = format!(
            "=== KV cache of {} ===\n\
             Configuration:\n  Layers: {}, KV heads: {}, Head dim: {}\n  Block: {} tokens, {} bytes (K and V), {} blocks\n\n\
             Allocation:\n  Sequences: {}\n  Used: {} MiB\n  Cached: {} MiB\n  Free: {} MiB\n  Evicted so far: {} blocks\n\n\
             Sequences:\n",
            self.shared.config.model,
            geometry.layers(),
            geometry.kv_heads(),
            geometry.head_dim(),
            geometry.block_tokens(),
            stats.block_bytes,
            stats.total_blocks,
            stats.sequences,
            mib(stats.used_blocks),
            mib(stats.cached_blocks),
            mib(stats.free_blocks),
            stats.evicted_blocks,
        );
        for (id, live) in self.shared.sequences.all() {
            // A sequence whose copy waits for a GPU is not waited for: this call is for looking.
            let line = live.try_with(describe).unwrap_or_else(|| "busy".into());
            let _ = writeln!(text, "  {id}: {line}");
        }
        text
    }
}

fn describe(sequence: &Sequence) -> String {
    let place = match sequence.run() {
        Some((first, count)) => format!("blocks [{}, +{count}]", first.0),
        None => format!("{} blocks, paged", sequence.table().len()),
    };
    let (tokens, capacity) = (sequence.tokens(), sequence.capacity());
    format!("{tokens}/{capacity} tokens, {place}, {} published", sequence.published())
}
