//! `append` on host memory: what the kernel must do, byte for byte.

use super::{BlockRows, Slot};

/// New rows of one layer in host memory: [`NewRows`](super::NewRows) of the oracle.
#[derive(Clone, Copy, Debug)]
pub struct HostRows<'a> {
    /// Which layer they belong to.
    pub layer: u32,
    /// K rows.
    pub keys: &'a [u8],
    /// V rows; not looked at where the arena has one kind only.
    pub values: &'a [u8],
    /// From a token to the next.
    pub token_bytes: u64,
}

/// Copies token `i` of `rows` to `slots[i]`. Gives how many were refused, counted once per kind.
pub fn append_oracle(
    arena: &mut [u8],
    strides: &BlockRows,
    blocks: u32,
    rows: &HostRows<'_>,
    slots: &[Slot],
) -> u32 {
    let len = strides.row_bytes as usize;
    let mut refused = 0;
    for (token, slot) in (0u64..).zip(slots).filter(|(_, slot)| slot.0 >= 0) {
        let Some((block, place)) = slot.split(blocks, strides.block_tokens) else {
            refused += strides.halves;
            continue;
        };
        for (kind, source) in (0..strides.halves).zip([rows.keys, rows.values]) {
            for head in 0..strides.heads {
                let from =
                    (token * rows.token_bytes + u64::from(head) * strides.row_bytes) as usize;
                let to = strides.offset(block, rows.layer, kind, place, head) as usize;
                arena[to..to + len].copy_from_slice(&source[from..from + len]);
            }
        }
    }
    refused
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::Shape;
    use crate::layout::Axis;

    const SHAPE: Shape = Shape { layers: 2, halves: 2, block_tokens: 2, heads: 2, row_bytes: 16 };

    #[test]
    fn rows_go_to_their_slots_and_nowhere_else() {
        let order = [Axis::Layer, Axis::Block, Axis::Half, Axis::Token, Axis::Head];
        let strides = BlockRows::packed(SHAPE, 3, order).unwrap();
        let mut arena = vec![0xee; 3 * SHAPE.block_bytes() as usize];
        // Three tokens of two heads; token t, head h is filled with 10 t + h, V with 100 more.
        let rows = |base: u8| -> Vec<u8> {
            (0..3u8).flat_map(|t| (0..2u8).flat_map(move |h| [base + 10 * t + h; 16])).collect()
        };
        let (keys, values) = (rows(0), rows(100));
        let rows = HostRows { layer: 1, keys: &keys, values: &values, token_bytes: 32 };
        let slots = [Slot(5), Slot::SKIP, Slot(0)];
        assert_eq!(append_oracle(&mut arena, &strides, 3, &rows, &slots), 0);
        let row = |block, layer, kind, token, head| {
            let at = strides.offset(block, layer, kind, token, head) as usize;
            arena[at]
        };
        // Slot 5 is block 2, token 1; slot 0 is block 0, token 0.
        assert_eq!([row(2, 1, 0, 1, 0), row(2, 1, 0, 1, 1), row(2, 1, 1, 1, 1)], [0, 1, 101]);
        assert_eq!([row(0, 1, 0, 0, 0), row(0, 1, 1, 0, 1)], [20, 121]);
        let touched = arena.iter().filter(|byte| **byte != 0xee).count();
        assert_eq!(touched, 2 * 2 * 2 * 16, "two tokens, two halves, two heads");
    }

    #[test]
    fn slots_that_do_not_exist_are_counted() {
        let order = [Axis::Block, Axis::Layer, Axis::Half, Axis::Head, Axis::Token];
        let strides = BlockRows::packed(SHAPE, 3, order).unwrap();
        let mut arena = vec![0xee; 3 * SHAPE.block_bytes() as usize];
        let bytes = [7; 64];
        let rows = HostRows { layer: 0, keys: &bytes, values: &bytes, token_bytes: 32 };
        let slots = [Slot(6), Slot(i64::MAX)];
        assert_eq!(append_oracle(&mut arena, &strides, 3, &rows, &slots), 4);
        assert!(arena.iter().all(|byte| *byte == 0xee));
    }
}
