//! What keeps blocks from being given to another sequence while somebody looks at them.

use crate::arena::Arena;
use crate::cache::Cache;
use crate::error::CacheError;
use crate::ids::BlockId;
use crate::live::Live;
use crate::sequence::Sequence;
use std::sync::Arc;

/// Blocks that stay with their sequence as long as this lives. A borrowed hold is one too: `&Sequence`, whose
/// owner cannot free it meanwhile.
pub trait BlockHold {
    /// Which blocks, in the order of the tokens.
    fn blocks(&self) -> &[BlockId];
}

impl<T: BlockHold + ?Sized> BlockHold for &T {
    fn blocks(&self) -> &[BlockId] {
        (**self).blocks()
    }
}

impl BlockHold for Sequence {
    fn blocks(&self) -> &[BlockId] {
        self.table()
    }
}

/// The blocks that a sequence of a [`Cache`] had when it was held. They go back when the sequence was freed and
/// its last hold and view are gone.
#[derive(Debug)]
pub struct HeldSequence {
    blocks: Box<[BlockId]>,
    /// Keeps the blocks.
    _live: Arc<Live>,
    cache: Cache,
}

impl HeldSequence {
    /// The arena that the blocks are in.
    pub fn arena(&self) -> &Arc<dyn Arena> {
        self.cache.arena()
    }
}

impl BlockHold for HeldSequence {
    fn blocks(&self) -> &[BlockId] {
        &self.blocks
    }
}

impl Cache {
    /// Keeps the blocks that a sequence has now, until the result is dropped, also after
    /// [`Cache::free_for`].
    pub fn hold(&self, id: &str) -> Result<HeldSequence, CacheError> {
        self.with_live(id, |live, sequence| HeldSequence {
            blocks: sequence.table().into(),
            _live: Arc::clone(live),
            cache: self.clone(),
        })
    }
}

/// Ids that nothing here keeps, for engines that keep their blocks by means of their own. If one of these blocks
/// is given to another sequence, its bytes are seen here: never torn, but wrong.
#[derive(Clone, Copy, Debug)]
pub struct Unheld<'a>(pub &'a [BlockId]);

impl BlockHold for Unheld<'_> {
    fn blocks(&self) -> &[BlockId] {
        self.0
    }
}
