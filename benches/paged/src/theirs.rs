//! The same calls of kvbm-logical.

use crate::{PREFIX, Work};
use dynamo_tokens::{PositionalLineageHash, TokenBlockSequence};
use kvbm_logical::manager::FrequencyTrackingCapacity;
use kvbm_logical::{BlockManager, BlockRegistry, KvbmSequenceHashProvider};
use std::sync::Arc;

const BLOCK: u32 = 16;

type Manager = Arc<BlockManager<()>>;

pub fn manager(blocks: usize) -> Manager {
    let registry = BlockRegistry::builder()
        .frequency_tracker(FrequencyTrackingCapacity::default().create_tracker())
        .build();
    let manager = BlockManager::<()>::builder()
        .block_count(blocks)
        .block_size(BLOCK as usize)
        .registry(registry)
        .with_lru_backend()
        .build();
    Arc::new(manager.expect("a manager"))
}

pub fn allocate(manager: &Manager, count: usize) -> Work<'static> {
    let manager = Arc::clone(manager);
    Box::new(move || manager.allocate_blocks(count).expect("room").len())
}

fn names(chain: u32, blocks: usize) -> Vec<PositionalLineageHash> {
    let tokens: Vec<u32> = (0..blocks as u32 * BLOCK).collect();
    let sequence = TokenBlockSequence::from_slice(&tokens, BLOCK, Some(u64::from(chain) + 1));
    sequence.blocks().iter().map(|block| block.kvbm_sequence_hash()).collect()
}

pub fn matched(manager: &Manager, chain: u32) -> Work<'static> {
    let (manager, hashes) = (Arc::clone(manager), names(chain, PREFIX));
    if manager.match_blocks(&hashes).len() < PREFIX {
        let blocks = manager.allocate_blocks(PREFIX).expect("room");
        let staged = blocks.into_iter().zip(&hashes);
        let staged = staged.map(|(block, hash)| block.stage(*hash, BLOCK as usize).ok().expect("staged"));
        drop(manager.register_blocks(staged.collect()));
    }
    Box::new(move || {
        let found = manager.match_blocks(&hashes).len();
        assert_eq!(found, PREFIX);
        found
    })
}

pub fn register(manager: &Manager, thread: u32, count: usize) -> Work<'static> {
    let manager = Arc::clone(manager);
    // Names are computed before; when they are used up, all but the newest were evicted long ago.
    let names: Vec<_> = (0..2048)
        .flat_map(|chain| names(thread * 2048 + chain, PREFIX))
        .collect();
    let mut at = 0;
    Box::new(move || {
        let blocks = manager.allocate_blocks(count).expect("room");
        let staged = blocks.into_iter().map(|block| {
            at = (at + 1) % names.len();
            block.stage(names[at], BLOCK as usize).ok().expect("staged")
        });
        let staged = staged.collect();
        manager.register_blocks(staged).len()
    })
}
