//! `give_back` on host memory: results of experts go to the ranks that own the tokens.

use super::dispatch_oracle::MetaRow;
use super::pack_oracle::guilty_of;
use super::wait_oracle::{begin_once, fail, signal};
use crate::barrier::{Kind, Record, Tag, Violation};
use crate::bf16;
use crate::config::{Shape, TOP_K_MAX};
use crate::heaps::Heaps;
use crate::layout::EpLayout;
use mooncrate_heap::Rank;

/// Adds up, for each token that came, what this rank's experts made of it, and stores the sum at the token's
/// rank; then signals. `y` is `[local_experts, rows_max, hidden]`, `rows` is what `pack` has written. What is
/// wrong there goes nowhere: then all ranks are told that the step failed.
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
    let Some((tag, phase)) = begin_once(heaps, layout, me, tag) else { return };
    let mut violation = Violation::NONE;
    let hidden = shape.hidden() as usize;
    let (mut sum, mut bytes) = (vec![0f32; hidden], Vec::with_capacity(2 * hidden));
    for slot in 0..shape.slots() {
        let meta = MetaRow::load(heaps, layout, rank, slot);
        let places = &rows[(slot * TOP_K_MAX) as usize..][..TOP_K_MAX as usize];
        let bad = violation_of(shape, slot, &meta, phase.wrapping_sub(1), places);
        violation = violation.min(bad);
        if meta.count == 0 || bad != Violation::NONE {
            continue;
        }
        sum.fill(0.0);
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
    if violation == Violation::NONE {
        signal(heaps, layout, rank, tag, phase);
    } else {
        let guilty = guilty_of(shape, me, violation);
        fail(heaps, layout, rank, &Record::of(violation, me.number(), guilty, phase, tag));
    }
}

/// What is wrong with a slot since `pack` has looked at it: a row that is not of this step, or a place that the
/// packed tokens do not have.
fn violation_of(
    shape: &Shape,
    slot: u32,
    meta: &MetaRow,
    passed: u32,
    places: &[i32],
) -> Violation {
    if meta.stamp != passed {
        return Violation::new(Kind::StaleRow, slot, 0, meta.stamp);
    }
    let none = |row: i32| u64::from(row.cast_unsigned()) >= shape.packed_rows() && row != -1;
    match (0..).zip(places).find(|(_, row)| none(**row)) {
        Some((k, row)) if meta.count > 0 => {
            Violation::new(Kind::BadPlace, slot, k, row.cast_unsigned())
        }
        _ => Violation::NONE,
    }
}
