//! `gather` and `scatter`: the blocks of a sequence to and from a contiguous buffer.

use super::launch::cover;
use super::rows::merge;
use super::space::on_gpu_of;
use super::{BlockSpace, Entries, Entry, KernelError, Kernels, TargetBlock};
use crate::BlockId;
use mooncrate_gpu::{Kernel, Stream};

/// Compiled from `gather.cu` by `./dev kernels`.
pub(super) const PTX: &str = include_str!("gather.ptx");

impl Kernels {
    /// Queues the copy of block `table[i]` of the arena to place `i` of `buffer`, for all entries.
    ///
    /// The two sides may have different strides, but the same shape. Places of blocks that do not exist
    /// keep their bytes; such blocks are counted as refused.
    pub fn gather(
        &self,
        stream: &Stream,
        buffer: &BlockSpace<'_>,
        arena: &BlockSpace<'_>,
        table: Entries<'_, BlockId>,
    ) -> Result<(), KernelError> {
        let sides = Sides { target: buffer, source: arena, arena, buffer };
        self.move_blocks(&self.gather, stream, &sides, table)
    }

    /// Queues the copy of place `i` of `buffer` to block `table[i]` of the arena, for all entries.
    pub fn scatter(
        &self,
        stream: &Stream,
        arena: &BlockSpace<'_>,
        buffer: &BlockSpace<'_>,
        table: Entries<'_, TargetBlock>,
    ) -> Result<(), KernelError> {
        let sides = Sides { target: arena, source: buffer, arena, buffer };
        self.move_blocks(&self.scatter, stream, &sides, table)
    }

    fn move_blocks<T: Entry>(
        &self,
        kernel: &Kernel,
        stream: &Stream,
        sides: &Sides<'_>,
        table: Entries<'_, T>,
    ) -> Result<(), KernelError> {
        let Sides { target, source, arena, buffer } = sides;
        on_gpu_of(stream, &[target.memory(), source.memory(), table.memory()])?;
        let (mut to, mut from) = (*target.rows(), *source.rows());
        if to.shape() != from.shape() {
            let (to, from) = (to.shape(), from.shape());
            return Err(KernelError::Shape(format!("blocks of {from:?} do not fit {to:?}")));
        }
        if table.count() > buffer.blocks() {
            return Err(KernelError::TooShort {
                what: "the contiguous buffer",
                needed: u64::from(table.count()) * to.shape().block_bytes(),
                given: u64::from(buffer.blocks()) * to.shape().block_bytes(),
            });
        }
        if target.memory().overlaps(&source.memory()) {
            return Err(KernelError::Shape(
                "the contiguous buffer lies inside of the arena".into(),
            ));
        }
        merge(&mut to, &mut from);
        let Some((launch, tiles)) = cover(u64::from(table.count()), &to)? else { return Ok(()) };
        let (at, rows) = (target.memory().address(), source.memory().address());
        let (list, refused) = (table.memory().address(), self.refused.span().address());
        let block_count = arena.blocks();
        let params = [
            (&at).into(),
            (&to).into(),
            (&rows).into(),
            (&from).into(),
            (&block_count).into(),
            (&list).into(),
            (&tiles).into(),
            (&refused).into(),
        ];
        // SAFETY: the parameters are those of `gather_blocks` and `scatter_blocks`. The kernel follows
        // `count` entries to blocks that exist in the arena, and to as many places of the buffer, which was
        // checked to have them. All of it is device memory, whose owners wait for the device before they free.
        Ok(unsafe { kernel.launch(stream, launch, &params) }?)
    }
}

/// Both sides of a copy, by what they are and by what happens to them.
struct Sides<'a> {
    target: &'a BlockSpace<'a>,
    source: &'a BlockSpace<'a>,
    arena: &'a BlockSpace<'a>,
    buffer: &'a BlockSpace<'a>,
}
