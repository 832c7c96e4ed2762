//! `pack` on host memory: the tokens that came, in the order of experts.

use super::dispatch_oracle::MetaRow;
use super::wait_oracle::{begin, fail};
use crate::barrier::{Kind, Record, Tag, Violation, rank_of};
use crate::config::{Shape, TOP_K_MAX};
use crate::heaps::Heaps;
use crate::layout::EpLayout;
use mooncrate_heap::{Rank, Ranks};

/// Where packed tokens go, and what is known about them.
#[derive(Debug)]
pub struct Packed<'a> {
    /// `[local_experts, rows_max, token_words]`: the tokens of each expert, by ascending slot.
    pub x: &'a mut [u16],
    /// `[local_experts]`: how many tokens each expert has (`masked_m`).
    pub counts: &'a mut [u32],
    /// `[slots, 8]`: the row of `x` that a token has at each of its top-k positions; -1: none.
    pub rows: &'a mut [i32],
}

/// Packs what came in this step. A row that was not written in this step, or an expert without room, ends it.
pub fn pack_oracle(
    heaps: &impl Heaps,
    layout: &EpLayout,
    me: Rank,
    tag: Tag,
    packed: &mut Packed<'_>,
) {
    let (shape, rank) = (layout.shape(), u32::from(me.number()));
    let Some((tag, phase)) = begin(heaps, layout, me, tag, 0) else { return };
    let (experts, words) = (shape.local_experts(), shape.token_words());
    let mut counts = vec![0u32; experts as usize];
    let (mut violation, mut bytes) = (Violation::NONE, vec![0; shape.token_bytes() as usize]);
    packed.rows.fill(-1);
    for slot in 0..shape.slots() {
        let row = MetaRow::load(heaps, layout, rank, slot);
        if row.stamp != phase || !row.experts.iter().all(|e| i32::from(*e) < experts.cast_signed())
        {
            violation = violation.min(Violation::new(Kind::StaleRow, slot, 0, row.stamp));
            continue;
        }
        if row.count > 0 {
            heaps.load(rank, layout.recv(slot), &mut bytes);
        }
        for (k, expert) in row.experts.into_iter().enumerate().filter(|(_, expert)| *expert >= 0) {
            let expert = u32::from(expert.cast_unsigned());
            let count = &mut counts[expert as usize];
            *count += 1;
            if *count > shape.rows_max() {
                continue;
            }
            let at = expert * shape.rows_max() + *count - 1;
            packed.rows[(slot * TOP_K_MAX) as usize + k] = at.cast_signed();
            let target = &mut packed.x[at as usize * words..][..words];
            for (place, two) in target.iter_mut().zip(bytes.chunks_exact(2)) {
                *place = u16::from_le_bytes([two[0], two[1]]);
            }
        }
    }
    for (expert, count) in (0..).zip(&counts) {
        packed.counts[expert as usize] = (*count).min(shape.rows_max());
        if *count > shape.rows_max() {
            violation = violation.min(Violation::new(Kind::Overflow, expert, 0, *count));
        }
    }
    if violation == Violation::NONE {
        return;
    }
    let guilty = guilty_of(shape, me, violation);
    let record = Record::of(violation, me.number(), guilty, phase, tag);
    fail(heaps, layout, rank, &record);
}

/// Whose fault a violation is: a row that is not of this step is its writer's.
pub(super) fn guilty_of(shape: &Shape, me: Rank, violation: Violation) -> Ranks {
    let source = rank_of(shape.world(), violation.at() / shape.tokens_max());
    match violation.kind() {
        Some(Kind::StaleRow) => source.map_or(Ranks::default(), Ranks::only),
        _ => Ranks::only(me),
    }
}
