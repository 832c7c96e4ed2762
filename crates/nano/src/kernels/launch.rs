//! How many threads a copy gets.

use mooncrate_gpu::Launch;

/// Threads of a block.
pub(super) const THREADS: u32 = 256;
/// Blocks of a long copy for each multiprocessor: enough bytes in flight, and few blocks to count.
const BLOCKS_PER_SM: u64 = 4;

/// The launch that copies `bytes` bytes with at most `blocks` blocks, but for the last one, and how many
/// 16-byte pieces each of them gets. Short copies have a piece for each thread; nothing is one block.
pub(super) fn cover(bytes: u64, blocks: u64) -> (Launch, u32) {
    let pieces = bytes / 16;
    let threads = u64::from(THREADS);
    let share = pieces.div_ceil(blocks.max(1)).next_multiple_of(threads).max(threads);
    // A share that does not fit in 32 bits would be a copy of many terabytes.
    let share = share.min(u64::from(u32::MAX - THREADS + 1));
    let grid = pieces.div_ceil(share).max(1);
    (early(Launch::linear(grid as u32, THREADS)), share as u32)
}

/// The launch of a kernel that waits for the one before it by itself, first of all.
pub(super) fn early(launch: Launch) -> Launch {
    Launch { dependent: true, ..launch }
}

/// Blocks for a copy on the device.
pub(super) fn device_blocks(sm_count: u32) -> u64 {
    BLOCKS_PER_SM * u64::from(sm_count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_piece_has_a_block() {
        for (bytes, grid, share) in [
            (0, 1, 256),
            (15, 1, 256),
            (64 << 10, 16, 256),
            (256 << 10, 64, 256),
            (1 << 20, 256, 256),
            (8 << 20, 512, 1024),
            (256 << 20, 528, 31_744 + 256),
        ] {
            let (launch, found) = cover(bytes, device_blocks(132));
            assert_eq!((found, launch.block), (share, [THREADS, 1, 1]), "{bytes}");
            assert!(u64::from(launch.grid[0]) * u64::from(share) >= bytes / 16, "{bytes}");
            assert!(launch.grid[0] <= grid && grid - launch.grid[0] < 8, "{bytes}: {launch:?}");
        }
    }
}
