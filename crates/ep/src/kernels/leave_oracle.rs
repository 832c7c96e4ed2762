//! `leave` on host memory: a rank gives its communicator up.

use super::wait_oracle::{fail, failed, next_phase, tag_now};
use crate::barrier::{Kind, Op, Tag, give_up};
use crate::heaps::Heaps;
use crate::layout::EpLayout;
use mooncrate_heap::{Rank, Ranks};

/// Tells all ranks that this one does not come any more, unless it has failed: then they know. Poison says how far
/// the rank has come, so it hides no phase that it has passed. `layer` is the last one that it was in.
pub fn leave_oracle(heaps: &impl Heaps, layout: &EpLayout, me: Rank, layer: u16) {
    let rank = u32::from(me.number());
    if failed(heaps, rank).is_some() {
        return;
    }
    let phase = next_phase(heaps, rank);
    let tag = tag_now(heaps, rank, Tag::new(layer, Op::of(phase), layout.shape().hash()));
    let record = give_up(Kind::Left, Ranks::only(me), me.number(), tag, phase);
    fail(heaps, layout, rank, &record);
}
