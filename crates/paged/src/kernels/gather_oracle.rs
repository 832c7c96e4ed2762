//! `gather` and `scatter` on host memory: what the kernels must do, byte for byte.

use super::{BlockRows, TargetBlock};
use crate::BlockId;

/// Copies block `table[i]` of the arena to place `i` of the buffer. Gives how many were refused.
pub fn gather_oracle(
    buffer: &mut [u8],
    to: &BlockRows,
    arena: &[u8],
    from: &BlockRows,
    blocks: u32,
    table: &[BlockId],
) -> u32 {
    let mut refused = 0;
    for (place, block) in (0..).zip(table) {
        if block.0 < blocks {
            copy_block((buffer, to, place), (arena, from, block.0));
        } else {
            refused += 1;
        }
    }
    refused
}

/// Copies place `i` of the buffer to block `table[i]` of the arena. Gives how many were refused.
pub fn scatter_oracle(
    arena: &mut [u8],
    to: &BlockRows,
    blocks: u32,
    buffer: &[u8],
    from: &BlockRows,
    table: &[TargetBlock],
) -> u32 {
    let mut refused = 0;
    for (place, block) in (0..).zip(table) {
        if block.0.0 < blocks {
            copy_block((arena, to, block.0.0), (buffer, from, place));
        } else {
            refused += 1;
        }
    }
    refused
}

/// Row by row, by the strides of each side.
fn copy_block(target: (&mut [u8], &BlockRows, u32), source: (&[u8], &BlockRows, u32)) {
    let ((target, to, there), (source, from, here)) = (target, source);
    let len = from.row_bytes as usize;
    for layer in 0..from.layers {
        for kind in 0..from.halves {
            for token in 0..from.block_tokens {
                for head in 0..from.heads {
                    let at = from.offset(here, layer, kind, token, head) as usize;
                    let row = &source[at..at + len];
                    let at = to.offset(there, layer, kind, token, head) as usize;
                    target[at..at + len].copy_from_slice(row);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::Shape;
    use crate::layout::Axis;
    use mooncrate_core::rng::Rng;

    const SHAPE: Shape = Shape { layers: 3, halves: 2, block_tokens: 4, heads: 3, row_bytes: 32 };
    const HND: [Axis; 5] = [Axis::Layer, Axis::Block, Axis::Half, Axis::Head, Axis::Token];
    const SPILL: [Axis; 5] = [Axis::Block, Axis::Layer, Axis::Half, Axis::Token, Axis::Head];

    #[test]
    fn blocks_lie_in_the_order_of_the_table() {
        let (from, to) = (
            BlockRows::packed(SHAPE, 5, HND).unwrap(),
            BlockRows::packed(SHAPE, 2, SPILL).unwrap(),
        );
        let mut arena = vec![0; 5 * SHAPE.block_bytes() as usize];
        // Each row names its block, layer, kind, token and head.
        let tag =
            |b: u32, l: u32, k: u32, t: u32, h: u32| (b * 48 + l * 16 + k * 8 + t * 2 + h) as u8;
        let all = (0..5).flat_map(|b| (0..3).flat_map(move |l| (0..2).map(move |k| (b, l, k))));
        for (b, l, k) in all {
            for (t, h) in (0..4).flat_map(|t| (0..3).map(move |h| (t, h))) {
                let at = from.offset(b, l, k, t, h) as usize;
                arena[at..at + 32].fill(tag(b, l, k, t, h));
            }
        }
        let mut buffer = vec![0xee; 2 * SHAPE.block_bytes() as usize];
        let table = [BlockId(4), BlockId(1)];
        assert_eq!(gather_oracle(&mut buffer, &to, &arena, &from, 5, &table), 0);
        // The buffer is dense: layer, kind, token, head, row.
        for (place, block) in [(0u32, 4), (1, 1)] {
            let at = (((place * 3 + 2) * 2 + 1) * 4 + 3) * 3 + 1;
            assert_eq!(buffer[at as usize * 32 + 31], tag(block, 2, 1, 3, 1));
        }
    }

    #[test]
    fn scatter_undoes_gather_and_touches_nothing_else() {
        let (from, to) = (
            BlockRows::packed(SHAPE, 5, HND).unwrap(),
            BlockRows::packed(SHAPE, 3, SPILL).unwrap(),
        );
        let mut rng = Rng::new(1);
        let arena: Vec<u8> = (0..5 * SHAPE.block_bytes()).map(|_| rng.below(256) as u8).collect();
        let mut buffer = vec![0; 3 * SHAPE.block_bytes() as usize];
        let table = [BlockId(3), BlockId(5), BlockId(0)];
        assert_eq!(gather_oracle(&mut buffer, &to, &arena, &from, 5, &table), 1);
        let middle = SHAPE.block_bytes() as usize;
        assert!(buffer[middle..2 * middle].iter().all(|byte| *byte == 0), "block 5 does not exist");
        let mut copy = arena.clone();
        for block in [3, 0] {
            for layer in 0..3 {
                let at = from.offset(block, layer, 0, 0, 0) as usize;
                copy[at..at + from.strides.block as usize].fill(0xaa);
            }
        }
        assert_ne!(copy, arena);
        let table = table.map(TargetBlock);
        assert_eq!(scatter_oracle(&mut copy, &from, 5, &buffer, &to, &table), 1);
        assert_eq!(copy, arena);
    }
}
