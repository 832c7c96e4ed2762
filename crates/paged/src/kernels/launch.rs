//! How many threads a copy gets.

use super::{BlockRows, KernelError};
use mooncrate_gpu::Launch;

/// 16-byte pieces per thread: `PIECES` in `copy.cuh`.
const PIECES: u64 = 4;
/// Threads of a block of threads: enough of them run at once to keep memory busy.
const THREADS_MAX: u64 = 256;
/// Blocks of threads in one launch, by CUDA.
const GRID_MAX: u64 = (1 << 31) - 1;

/// The launch that copies `items` items of these strides, and how many tiles an item is cut into.
/// `None` for nothing to do.
pub(super) fn cover(items: u64, strides: &BlockRows) -> Result<Option<(Launch, u32)>, KernelError> {
    if items == 0 {
        return Ok(None);
    }
    let pieces = strides.pieces();
    let threads = pieces.next_multiple_of(32).min(THREADS_MAX);
    let tiles = pieces.div_ceil(threads * PIECES);
    let grid = items.saturating_mul(tiles);
    if grid > GRID_MAX {
        return Err(KernelError::Shape(format!(
            "{items} items of {} bytes are too many for one launch; split the list",
            pieces * 16
        )));
    }
    // Every kernel here waits for the one before it by itself: `wait_for_earlier_work` in `copy.cuh`.
    let launch = Launch { dependent: true, ..Launch::linear(grid as u32, threads as u32) };
    Ok(Some((launch, tiles as u32)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::Shape;
    use crate::layout::Axis;

    fn strides(row_bytes: u32, heads: u32) -> BlockRows {
        let shape = Shape { layers: 1, halves: 1, block_tokens: 1, heads, row_bytes };
        let order = [Axis::Layer, Axis::Block, Axis::Half, Axis::Token, Axis::Head];
        BlockRows::packed(shape, 1, order).unwrap()
    }

    #[test]
    fn every_piece_has_a_thread() {
        for (bytes, threads, tiles) in
            [(16, 32, 1), (2_048, 128, 1), (4_096, 256, 1), (16_384, 256, 1), (16_400, 256, 2)]
        {
            let (launch, found) = cover(7, &strides(bytes, 1)).unwrap().unwrap();
            assert_eq!((launch.block[0], found), (threads, tiles), "{bytes}");
            assert_eq!(launch.grid, [7 * tiles, 1, 1]);
            assert!(u64::from(threads * tiles) * PIECES * 16 >= u64::from(bytes));
        }
    }

    #[test]
    fn nothing_is_no_launch_and_too_much_is_refused() {
        assert_eq!(cover(0, &strides(16, 1)).unwrap(), None);
        let error = cover(1 << 31, &strides(16, 1)).unwrap_err().to_string();
        assert!(error.contains("too many for one launch"), "{error}");
        assert!(cover(u64::MAX, &strides(1 << 20, 64)).is_err());
    }
}
