//! Cold blocks: cached blocks that would be evicted next are saved before that happens, so that a later load finds
//! them in the store.
//!
//! ```text
//! every 20 ms: fewer free blocks than the mark? ─► names ahead of the evictions, less those that were saved
//!              ─► pinned, queued, stored as every save ─► put back where they were in the order of eviction
//! ```
//!
//! The thread looks by itself, so that an allocation that evicts does nothing more than before. A block that is
//! evicted before its turn is lost, as without this. What must stay true: saving a block is no use of it, it stays
//! as cold as it was; and at most one batch of cold blocks is pinned at a time, within the bound of the queue.

use super::Link;
use super::save::Queue;
use mooncrate_core::tally::Count;
use mooncrate_paged::BlockHash;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

/// How long the thread rests when there was nothing to save.
const REST: Duration = Duration::from_millis(20);
/// Blocks that it looks at between two rests, at least, so 50,000 in a second.
const LOOK_BLOCKS: usize = 1024;

/// What became of cold blocks so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ColdCounts {
    /// Blocks that the store has because of this, or had already.
    pub saved_blocks: u64,
    /// Batches that failed. Their blocks are tried again if they are still cached when the walk comes by.
    pub failed_batches: u64,
}

#[derive(Debug, Default)]
pub(super) struct ColdTally {
    saved_blocks: Count,
    failed_batches: Count,
}

impl ColdTally {
    pub(super) fn now(&self) -> ColdCounts {
        ColdCounts {
            saved_blocks: self.saved_blocks.value(),
            failed_batches: self.failed_batches.value(),
        }
    }
}

/// The thread: saves cold blocks while fewer than `free_blocks_low` blocks are free, until the queue is stopped.
pub(super) fn work(link: &Link, queue: &Queue, tally: &ColdTally, free_blocks_low: u32) {
    // Names that the store has. It may evict them later, and then they are lost with the cache's copy: a load is
    // no promise. So this forgets all of them now and then.
    let mut known: HashSet<BlockHash> = HashSet::new();
    let pool = link.cache.pool();
    loop {
        let short = pool.free_blocks() < free_blocks_low;
        let found = if short { save_batch(link, queue, tally, &mut known) } else { 0 };
        if known.len() > 2 * pool.total_blocks() as usize {
            known.clear();
        }
        if queue.is_stopped(if found > 0 { Duration::ZERO } else { REST }) {
            return;
        }
    }
}

/// Saves the next cold blocks; how many. None: there are none, or it did not work.
fn save_batch(
    link: &Link,
    queue: &Queue,
    tally: &ColdTally,
    known: &mut HashSet<BlockHash>,
) -> usize {
    // The walk passes blocks that are known, up to one that is not, and goes on there after a rest.
    let cold = (0..LOOK_BLOCKS.div_ceil(link.batch_blocks))
        .map(|_| link.cache.cold_blocks(link.batch_blocks, |name| !known.contains(name)))
        .find(|cold| !cold.is_empty());
    let Some(cold) = cold else { return 0 };
    let names = cold.names().to_vec();
    let Ok(saving) = queue.push(cold, link.block_bytes()) else { return 0 };
    let saved = saving.until_done();
    if saved.failed.is_some() {
        tally.failed_batches.one();
    }
    if !saved.is_whole() {
        return 0;
    }
    let count = names.len();
    tally.saved_blocks.add(count as u64);
    known.extend(names);
    count
}

/// Starts the thread.
pub(super) fn start(
    link: &Link,
    queue: &Arc<Queue>,
    tally: &Arc<ColdTally>,
    free_blocks_low: u32,
) -> std::io::Result<std::thread::JoinHandle<()>> {
    let (link, queue, tally) = (link.clone(), Arc::clone(queue), Arc::clone(tally));
    std::thread::Builder::new()
        .name("paged-cold".into())
        .spawn(move || work(&link, &queue, &tally, free_blocks_low))
}
