//! `append`: the K and V rows of new tokens of one layer go to their slots.

use super::launch::cover;
use super::rows::merge;
use super::space::{aligned, on_gpu_of};
use super::{BlockRows, BlockSpace, Entries, KernelError, Kernels, Slot};
use crate::layout::Strides;
use mooncrate_gpu::{Span, Stream};

/// Compiled from `append.cu` by `./dev kernels`.
pub(super) const PTX: &str = include_str!("append.ptx");

/// New rows of one layer, as the model made them: `[tokens, heads, row]`, without gaps between heads.
#[derive(Clone, Copy, Debug)]
pub struct NewRows<'a> {
    /// Which layer they belong to.
    pub layer: u32,
    /// K rows.
    pub keys: Span<'a>,
    /// V rows; not looked at where the arena has one kind only.
    pub values: Span<'a>,
    /// From a token to the next, the same for K and V: more than the rows of a token where both lie in
    /// one tensor.
    pub token_bytes: u64,
}

impl NewRows<'_> {
    /// The rows of one token, of K or of V.
    fn rows(&self, to: &BlockRows) -> BlockRows {
        let strides = Strides { head: to.row_bytes, token: self.token_bytes, ..to.strides };
        BlockRows { strides, ..*to }
    }

    fn check(&self, arena: &BlockSpace<'_>, tokens: u32) -> Result<(), KernelError> {
        let strides = arena.rows();
        if self.layer >= strides.layers {
            let (index, count) = (i64::from(self.layer), u64::from(strides.layers));
            return Err(KernelError::OutOfRange { what: "layer", index, count });
        }
        let token = strides.row_bytes * u64::from(strides.heads);
        let last = u64::from(tokens).saturating_sub(1).saturating_mul(self.token_bytes);
        let needed = if tokens == 0 { 0 } else { last.saturating_add(token) };
        aligned("the stride of new tokens", self.token_bytes)?;
        let both = [("the new K rows", self.keys), ("the new V rows", self.values)];
        for (what, rows) in both.into_iter().take(strides.halves as usize) {
            aligned(what, rows.address())?;
            if needed > rows.len() {
                return Err(KernelError::TooShort { what, needed, given: rows.len() });
            }
            if rows.overlaps(&arena.memory()) {
                return Err(KernelError::Shape(format!("{what} lie inside of the arena")));
            }
        }
        Ok(())
    }
}

impl Kernels {
    /// Queues the copy of one new token per entry of `slots` into the arena.
    ///
    /// Token `i` of `rows` goes to `slots[i]`; a negative slot skips it. A slot that does not exist is
    /// refused and counted once per kind.
    pub fn append(
        &self,
        stream: &Stream,
        arena: &BlockSpace<'_>,
        rows: &NewRows<'_>,
        slots: Entries<'_, Slot>,
    ) -> Result<(), KernelError> {
        on_gpu_of(stream, &[arena.memory(), rows.keys, rows.values, slots.memory()])?;
        rows.check(arena, slots.count())?;
        let whole = arena.rows();
        if whole.halves > 2 {
            return Err(KernelError::Shape(format!("{} halves; there are K and V", whole.halves)));
        }
        let mut to = BlockRows { layers: 1, halves: 1, ..whole.one_token() };
        let mut from = rows.rows(&to);
        merge(&mut to, &mut from);
        let items = u64::from(slots.count()) * u64::from(whole.halves);
        let Some((launch, tiles)) = cover(items, &to)? else { return Ok(()) };
        let layer = arena.memory().address() + u64::from(rows.layer) * whole.strides.layer;
        let (keys, values) = (rows.keys.address(), rows.values.address());
        let (list, refused) = (slots.memory().address(), self.refused.span().address());
        let slot_count = arena.slots();
        let params = [
            (&layer).into(),
            (&to).into(),
            (&whole.strides.half).into(),
            (&slot_count).into(),
            (&whole.block_tokens).into(),
            (&whole.halves).into(),
            (&keys).into(),
            (&values).into(),
            (&from).into(),
            (&list).into(),
            (&tiles).into(),
            (&refused).into(),
        ];
        // SAFETY: the parameters are those of `append_rows`. It reads `count` slots and as many rows,
        // which were checked to be there, and writes to slots below `arena.slots()` only, which lie in
        // the arena. All of it is device memory, whose owners wait for the device before they free.
        Ok(unsafe { self.append.launch(stream, launch, &params) }?)
    }
}
