//! `give_back` on host memory: results of experts go to the ranks that own the tokens.

use super::dispatch_oracle::MetaRow;
use super::wait_oracle::{failed, next_phase, signal};
use crate::barrier::Tag;
use crate::bf16;
use crate::config::TOP_K_MAX;
use crate::heaps::Heaps;
use crate::layout::EpLayout;
use mooncrate_heap::Rank;

/// Adds up, for each token that came, what this rank's experts made of it, and stores the sum at the token's
/// rank; then signals. `y` is `[local_experts, rows_max, hidden]`, `rows` is what `pack` has written.
///
/// The order is fixed (E7): from +0 in f32 over the top-k positions, `fma(weight, y, sum)`, and one rounding.
pub fn give_back_oracle(
    heaps: &impl Heaps,
    layout: &EpLayout,
    me: Rank,
    tag: Tag,
    y: &[u16],
    rows: &[i32],
) {
    let (shape, rank) = (layout.shape(), u32::from(me.number()));
    if failed(heaps, rank).is_some() {
        return;
    }
    let hidden = shape.hidden() as usize;
    let (mut sum, mut bytes) = (vec![0f32; hidden], Vec::with_capacity(2 * hidden));
    for slot in 0..shape.slots() {
        let meta = MetaRow::load(heaps, layout, rank, slot);
        if meta.count == 0 {
            continue;
        }
        sum.fill(0.0);
        let places = &rows[(slot * TOP_K_MAX) as usize..][..TOP_K_MAX as usize];
        for (row, weight) in places.iter().zip(meta.weights).filter(|(row, _)| **row >= 0) {
            let from = &y[row.cast_unsigned() as usize * hidden..][..hidden];
            for (sum, bits) in sum.iter_mut().zip(from) {
                *sum = weight.mul_add(bf16::to_f32(*bits), *sum);
            }
        }
        bytes.clear();
        bytes.extend(sum.iter().flat_map(|sum| bf16::from_f32(*sum).to_le_bytes()));
        let (owner, token) = (slot / shape.tokens_max(), slot % shape.tokens_max());
        heaps.store(owner, layout.ret(rank, token), &bytes);
    }
    signal(heaps, layout, rank, tag, next_phase(heaps, rank));
}
