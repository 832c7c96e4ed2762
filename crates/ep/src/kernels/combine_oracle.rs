//! `combine` on host memory: what came back for each token is added up.

use super::wait_oracle::begin;
use crate::barrier::Tag;
use crate::bf16;
use crate::heaps::Heaps;
use crate::layout::EpLayout;
use mooncrate_heap::Rank;

/// Adds up, for each token of this rank, what came from the ranks that it went to: from +0 in f32 in the order
/// of ranks, and one rounding (E7). `out` is `[tokens, hidden]`; rows after the last token stay as they are.
///
/// What the heap says is not believed to be in range: neither the number of tokens, nor the ranks of a mask.
pub fn combine_oracle(heaps: &impl Heaps, layout: &EpLayout, me: Rank, tag: Tag, out: &mut [u16]) {
    let (shape, rank) = (layout.shape(), u32::from(me.number()));
    if begin(heaps, layout, me, tag, 0).is_none() {
        return;
    }
    let word = |offset| {
        let mut bytes = [0; 4];
        heaps.load(rank, offset, &mut bytes);
        u32::from_le_bytes(bytes)
    };
    let hidden = shape.hidden() as usize;
    let (mut sum, mut bytes) = (vec![0f32; hidden], vec![0; 2 * hidden]);
    for token in 0..word(layout.sent()).min(shape.tokens_max()) {
        sum.fill(0.0);
        let mask = word(layout.sent_mask(token));
        for from in (0..shape.ranks()).filter(|from| mask >> from & 1 == 1) {
            heaps.load(rank, layout.ret(from, token), &mut bytes);
            for (sum, two) in sum.iter_mut().zip(bytes.chunks_exact(2)) {
                *sum += bf16::to_f32(u16::from_le_bytes([two[0], two[1]]));
            }
        }
        let target = &mut out[token as usize * hidden..][..hidden];
        for (place, sum) in target.iter_mut().zip(&sum) {
            *place = bf16::from_f32(*sum);
        }
    }
}
