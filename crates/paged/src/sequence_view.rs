//! Tensor views of sequences whose blocks lie in a row. A view keeps the blocks that it shows, whatever becomes
//! of its sequence (B4).

use crate::BlockId;
use crate::arena::{Arena, ArenaError};
use crate::cache::{Cache, Shared};
use crate::error::CacheError;
use crate::geometry::Half;
use crate::layout::ArenaShape;
use crate::live::Live;
use crate::part::BlockRun;
use crate::view::{BlockView, View, ViewError};
use std::sync::Arc;

impl Cache {
    /// A view `[heads, blocks, block tokens, dim]` of a sequence whose blocks lie in a row.
    pub fn blocks_view(
        &self,
        id: &str,
        layer: u32,
        half: Half,
    ) -> Result<SequenceView, CacheError> {
        self.view(id, |shape, run, _| shape.blocks_view(run, layer, half))
    }

    /// A view `[heads, tokens, dim]` of a sequence whose blocks lie in a row, where the layout has one.
    pub fn tokens_view(
        &self,
        id: &str,
        layer: u32,
        half: Half,
    ) -> Result<SequenceView, CacheError> {
        self.view(id, |shape, run, tokens| shape.tokens_view(run, tokens, layer, half))
    }

    /// The same two of the blocks that are not published, as far as those lie in a row: what this sequence
    /// alone has, and may write to. Their first token is the first one after the published blocks.
    pub fn own_blocks_view(
        &self,
        id: &str,
        layer: u32,
        half: Half,
    ) -> Result<SequenceView, CacheError> {
        self.own_view(id, |shape, run, _| shape.blocks_view(run, layer, half))
    }

    /// See [`Cache::own_blocks_view`].
    pub fn own_tokens_view(
        &self,
        id: &str,
        layer: u32,
        half: Half,
    ) -> Result<SequenceView, CacheError> {
        self.own_view(id, |shape, run, tokens| shape.tokens_view(run, tokens, layer, half))
    }

    fn view(&self, id: &str, make: impl MakeView) -> Result<SequenceView, CacheError> {
        let (live, run, tokens) = self.with_live(id, |live, sequence| {
            (Arc::clone(live), sequence.run(), sequence.tokens())
        })?;
        self.view_of(live, id, run, tokens, make)
    }

    fn own_view(&self, id: &str, make: impl MakeView) -> Result<SequenceView, CacheError> {
        let (live, run, tokens, has_own) = self.with_live(id, |live, sequence| {
            let tokens = sequence.tokens() - sequence.published_tokens();
            let has_own = sequence.published() < sequence.table().len();
            (Arc::clone(live), sequence.own_run(), tokens, has_own)
        })?;
        if !has_own {
            return Err(CacheError::NoneOwn { id: id.to_owned() });
        }
        self.view_of(live, id, run, tokens, make)
    }

    fn view_of(
        &self,
        live: Arc<Live>,
        id: &str,
        run: Option<(BlockId, u32)>,
        tokens: u64,
        make: impl MakeView,
    ) -> Result<SequenceView, CacheError> {
        let (first, count) = run.ok_or_else(|| CacheError::Paged { id: id.to_owned() })?;
        let view = make(self.shared.arena.shape(), BlockRun { first, count }, tokens)?;
        Ok(SequenceView { _live: live, cache: Arc::clone(&self.shared), view })
    }
}

/// A view of a sequence. Its blocks stay while it lives, also after the sequence was freed.
#[derive(Debug)]
pub struct SequenceView {
    /// Keeps the blocks.
    _live: Arc<Live>,
    /// Keeps the memory; dropped after `_live`, which gives the blocks back to it.
    cache: Arc<Shared>,
    view: BlockView,
}

impl SequenceView {
    /// Shape, strides and place in the arena.
    pub const fn view(&self) -> &BlockView {
        &self.view
    }

    /// The bytes, where the processor can address them; `None` for memory of a device. Until the result is
    /// dropped, the blocks of the view cannot be written.
    pub fn bind(&self) -> Result<Option<View<'_>>, ArenaError> {
        self.cache.arena.host().map(|host| host.view(&self.view)).transpose()
    }

    /// The arena that it is in.
    pub fn arena(&self) -> &Arc<dyn Arena> {
        &self.cache.arena
    }
}

/// Makes the descriptor of a run of blocks that holds so many tokens.
trait MakeView: FnOnce(&ArenaShape, BlockRun, u64) -> Result<BlockView, ViewError> {}
impl<F: FnOnce(&ArenaShape, BlockRun, u64) -> Result<BlockView, ViewError>> MakeView for F {}
