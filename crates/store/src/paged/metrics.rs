//! The numbers of a paged cache for Prometheus. The cache counts while it works; everything is read off when
//! somebody asks.
//!
//! What must stay true: no token, no id of a sequence and no name of a block is ever a label; `docs/metrics.md` lists
//! every family.

use mooncrate_admin::{Collector, DescriptorEncoder, Page, Registry, Shown};
use mooncrate_paged::{Cache, CacheStats};
use std::fmt;

/// The numbers of a paged cache, for a registry.
#[derive(Debug)]
pub struct CacheMetrics(pub Cache);

impl Collector for CacheMetrics {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (mut page, stats) = (Page(encoder), self.0.stats());
        for (name, help, value) in levels(&stats) {
            page.one(&format!("mooncrate_paged_{name}"), help, &Shown::level(value))?;
        }
        for (name, help, value) in counts(&stats) {
            page.one(&format!("mooncrate_paged_{name}"), help, &Shown::Count(value))?;
        }
        Ok(())
    }
}

/// The numbers of one cache as a page that Prometheus reads, in the format of [the servers' pages](crate).
pub fn metrics_text(cache: &Cache) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(CacheMetrics(cache.clone())));
    mooncrate_admin::metrics_text(&registry)
}

fn levels(stats: &CacheStats) -> [(&'static str, &'static str, u64); 6] {
    [
        ("sequences", "Sequences in the cache.", stats.sequences as u64),
        ("total_blocks", "Blocks that there are.", stats.total_blocks.into()),
        ("used_blocks", "Blocks of sequences, shared ones once.", stats.used_blocks.into()),
        ("cached_blocks", "Blocks without sequences, kept by name.", stats.cached_blocks.into()),
        ("free_blocks", "Blocks that hold nothing.", stats.free_blocks.into()),
        ("block_bytes", "Bytes of a block, keys and values.", stats.block_bytes),
    ]
}

fn counts(stats: &CacheStats) -> [(&'static str, &'static str, u64); 14] {
    [
        ("hit_tokens", "Tokens of prompts whose KV was in the cache.", stats.hit_tokens),
        ("miss_tokens", "Tokens of prompts that had to be computed.", stats.miss_tokens),
        ("hit_blocks", "Blocks of prompts that were found.", stats.hit_blocks),
        ("miss_blocks", "Blocks of prompts that were taken anew.", stats.miss_blocks),
        ("evicted_blocks", "Cached blocks that were evicted.", stats.evicted_blocks),
        ("forks", "Sequences that were forked off others.", stats.forks),
        ("copied_blocks", "Blocks that forks copied.", stats.copied_blocks),
        ("dropped_tokens", "Tokens dropped as the least important.", stats.dropped_tokens),
        ("spilled_blocks", "Blocks read to be stored elsewhere.", stats.spilled_blocks),
        ("spilled_bytes", "Bytes of those.", stats.spilled_bytes),
        ("fetched_blocks", "Blocks that came from elsewhere.", stats.fetched_blocks),
        ("fetched_bytes", "Bytes of those.", stats.fetched_bytes),
        ("suspended_sequences", "Sequences that were suspended.", stats.suspended_sequences),
        ("resumed_sequences", "Sequences that came back whole.", stats.resumed_sequences),
    ]
}
