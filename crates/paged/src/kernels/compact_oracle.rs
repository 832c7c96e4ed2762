//! `compact` on host memory: what the kernel must do, byte for byte.

use super::{BlockRows, RowMove};

/// Copies each move's source slot to its target slot, in all layers. Gives how many were refused.
pub fn compact_oracle(
    arena: &mut [u8],
    strides: &BlockRows,
    blocks: u32,
    moves: &[RowMove],
) -> u32 {
    let len = strides.row_bytes as usize;
    let mut refused = 0;
    for step in moves {
        let source = step.source.split(blocks, strides.block_tokens);
        let target = step.target.split(blocks, strides.block_tokens);
        let (Some((here, from_token)), Some((there, to_token))) = (source, target) else {
            refused += 1;
            continue;
        };
        for layer in 0..strides.layers {
            for kind in 0..strides.halves {
                for head in 0..strides.heads {
                    let from = strides.offset(here, layer, kind, from_token, head) as usize;
                    let to = strides.offset(there, layer, kind, to_token, head) as usize;
                    arena.copy_within(from..from + len, to);
                }
            }
        }
    }
    refused
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::{Entry, Shape, Slot};
    use crate::layout::Axis;

    #[test]
    fn kept_tokens_lie_together_in_new_blocks() {
        let shape = Shape { layers: 2, halves: 1, block_tokens: 4, heads: 1, row_bytes: 16 };
        let order = [Axis::Layer, Axis::Block, Axis::Half, Axis::Token, Axis::Head];
        let strides = BlockRows::packed(shape, 3, order).unwrap();
        // A byte names its layer and slot; blocks 0 and 1 are the sequence, block 2 is new.
        let old: Vec<u8> =
            (0..2u8).flat_map(|l| (0..12u8).flat_map(move |slot| [100 * l + slot; 16])).collect();
        let step = |source, target| RowMove { source: Slot(source), target: Slot(target) };
        let moves = [step(1, 8), step(3, 9), step(6, 10)];
        RowMove::check(&moves, 3, 4).unwrap();
        let mut arena = old.clone();
        assert_eq!(compact_oracle(&mut arena, &strides, 3, &moves), 0);
        for layer in 0..2 {
            let base = 192 * layer;
            let add = 100 * layer as u8;
            assert_eq!(arena[base..base + 128], old[base..base + 128], "old blocks do not change");
            let kept: Vec<u8> = arena[base + 128..base + 192].iter().step_by(16).copied().collect();
            assert_eq!(kept, [1, 3, 6, 11].map(|slot| slot + add));
        }
        // The order of the moves does not matter.
        let mut other = old;
        let backwards: Vec<RowMove> = moves.iter().rev().copied().collect();
        compact_oracle(&mut other, &strides, 3, &backwards);
        assert_eq!(other, arena);
        assert_eq!(compact_oracle(&mut other, &strides, 3, &[step(-1, 8), step(0, 12)]), 2);
        assert_eq!(other, arena);
    }
}
