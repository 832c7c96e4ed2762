//! `copy_blocks` on host memory: what the kernel must do, byte for byte.

use super::{BlockPair, BlockRows};

/// Copies each pair's source to its target. Gives how many were refused.
pub fn copy_blocks_oracle(
    arena: &mut [u8],
    strides: &BlockRows,
    blocks: u32,
    pairs: &[BlockPair],
) -> u32 {
    let len = strides.row_bytes as usize;
    let mut refused = 0;
    for pair in pairs {
        if pair.source.0 >= blocks || pair.target.0 >= blocks {
            refused += 1;
            continue;
        }
        for layer in 0..strides.layers {
            for kind in 0..strides.halves {
                for token in 0..strides.block_tokens {
                    for head in 0..strides.heads {
                        let from = strides.offset(pair.source.0, layer, kind, token, head) as usize;
                        let to = strides.offset(pair.target.0, layer, kind, token, head) as usize;
                        arena.copy_within(from..from + len, to);
                    }
                }
            }
        }
    }
    refused
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BlockId;
    use crate::kernels::Shape;
    use crate::layout::Axis;

    #[test]
    fn a_target_becomes_its_source_in_all_layers() {
        let shape = Shape { layers: 2, halves: 2, block_tokens: 2, heads: 1, row_bytes: 16 };
        let order = [Axis::Layer, Axis::Half, Axis::Block, Axis::Token, Axis::Head];
        let strides = BlockRows::packed(shape, 4, order).unwrap();
        // Each layer and kind is a run of four blocks of 32 bytes; a byte names run and block.
        let mut arena: Vec<u8> =
            (0..4u8).flat_map(|run| (0..4u8).flat_map(move |b| [16 * run + b; 32])).collect();
        let pair = |source, target| BlockPair { source: BlockId(source), target: BlockId(target) };
        let pairs = [pair(2, 0), pair(4, 1), pair(1, 4), pair(2, 3)];
        assert_eq!(copy_blocks_oracle(&mut arena, &strides, 4, &pairs), 2);
        let expected: Vec<u8> = (0..4u8)
            .flat_map(|run| [2, 1, 2, 2].into_iter().flat_map(move |b| [16 * run + b; 32]))
            .collect();
        assert_eq!(arena, expected);
    }
}
