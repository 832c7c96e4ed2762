//! `copy_blocks`: whole blocks of one arena, all layers in one launch.

use super::launch::cover;
use super::rows::merge;
use super::space::on_gpu_of;
use super::{BlockPair, BlockSpace, Entries, KernelError, Kernels};
use mooncrate_gpu::Stream;

/// Compiled from `copy_blocks.cu` by `./dev kernels`.
pub(super) const PTX: &str = include_str!("copy_blocks.ptx");

impl Kernels {
    /// Queues the copy of each pair's source to its target.
    ///
    /// No block is both read and written in one launch, so the order of the pairs does not matter.
    /// A pair that names a block that does not exist is refused and counted.
    pub fn copy_blocks(
        &self,
        stream: &Stream,
        arena: &BlockSpace<'_>,
        pairs: Entries<'_, BlockPair>,
    ) -> Result<(), KernelError> {
        on_gpu_of(stream, &[arena.memory(), pairs.memory()])?;
        let (mut strides, mut same) = (*arena.rows(), *arena.rows());
        merge(&mut strides, &mut same);
        let Some((launch, tiles)) = cover(u64::from(pairs.count()), &strides)? else {
            return Ok(());
        };
        let at = arena.memory().address();
        let (list, refused) = (pairs.memory().address(), self.refused.span().address());
        let block_count = arena.blocks();
        let params = [
            (&at).into(),
            (&strides).into(),
            (&block_count).into(),
            (&list).into(),
            (&tiles).into(),
            (&refused).into(),
        ];
        // SAFETY: the parameters are those of `copy_blocks`. It follows `count` entries to blocks that
        // exist in the arena. All of it is device memory, whose owners wait for the device before they
        // free.
        Ok(unsafe { self.copy_blocks.launch(stream, launch, &params) }?)
    }
}
