//! `compact`: the tokens of a sequence that are kept move together, into new blocks.
//!
//! The blocks that are read and the blocks that are written in one launch are different ones. So the
//! moves can run in any order, and a reader of the old blocks, or another sequence that shares them as
//! a prefix, never sees them change: the sequence gets a new block table and releases the old blocks
//! afterwards. Compacting in place would need two passes over the same bytes and would break sharing.

use super::launch::cover;
use super::rows::merge;
use super::space::on_gpu_of;
use super::{BlockSpace, Entries, KernelError, Kernels, RowMove};
use mooncrate_gpu::Stream;

/// Compiled from `compact.cu` by `./dev kernels`.
pub(super) const PTX: &str = include_str!("compact.ptx");

impl Kernels {
    /// Queues the copy of each move's source slot to its target slot, in all layers.
    ///
    /// A move that names a slot that does not exist is refused and counted.
    pub fn compact(
        &self,
        stream: &Stream,
        arena: &BlockSpace<'_>,
        moves: Entries<'_, RowMove>,
    ) -> Result<(), KernelError> {
        on_gpu_of(stream, &[arena.memory(), moves.memory()])?;
        let mut strides = arena.rows().one_token();
        let mut same = strides;
        merge(&mut strides, &mut same);
        let Some((launch, tiles)) = cover(u64::from(moves.count()), &strides)? else {
            return Ok(());
        };
        let at = arena.memory().address();
        let (list, refused) = (moves.memory().address(), self.refused.span().address());
        let slot_count = arena.slots();
        let params = [
            (&at).into(),
            (&strides).into(),
            (&slot_count).into(),
            (&arena.rows().block_tokens).into(),
            (&list).into(),
            (&tiles).into(),
            (&refused).into(),
        ];
        // SAFETY: the parameters are those of `compact_rows`. It follows `count` entries to slots that
        // exist in the arena. All of it is device memory, whose owners wait for the device before they
        // free.
        Ok(unsafe { self.compact.launch(stream, launch, &params) }?)
    }
}
