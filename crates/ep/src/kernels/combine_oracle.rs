//! `combine` on host memory: what came back for each token is added up.

use super::wait_oracle::failed;
use crate::bf16;
use crate::heaps::Heaps;
use crate::layout::EpLayout;
use mooncrate_heap::Rank;

/// Adds up, for each token of this rank, what came from the ranks that it went to: from +0 in f32 in the order
/// of ranks, and one rounding (E7). `out` is `[tokens, hidden]`; rows after the last token stay as they are.
pub fn combine_oracle(heaps: &impl Heaps, layout: &EpLayout, me: Rank, out: &mut [u16]) {
    let (shape, rank) = (layout.shape(), u32::from(me.number()));
    if failed(heaps, rank).is_some() {
        return;
    }
    let word = |offset| {
        let mut bytes = [0; 4];
        heaps.load(rank, offset, &mut bytes);
        u32::from_le_bytes(bytes)
    };
    let hidden = shape.hidden() as usize;
    let (mut sum, mut bytes) = (vec![0f32; hidden], vec![0; 2 * hidden]);
    for token in 0..word(layout.sent()) {
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
