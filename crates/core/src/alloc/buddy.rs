//! The buddy allocator: blocks of a power of two, each aligned to its own size.
//!
//! For arenas whose readers want alignment (pages that are mapped, DMA) rather than the last byte.
//! A block of order `k` has `min_block << k` bytes; its buddy differs in one bit of its number. Any
//! capacity will do: it is cut into the largest aligned blocks that fit, and a buddy that would
//! reach outside is never free, so nothing ever joins with it.
//!
//! What must stay true: the free and the live blocks of all orders tile `[0, capacity)`; no two
//! buddies are both free. An extent has the length that was asked for, rounded to 64 bytes; the
//! rest of its block is taken too, and [`Allocator::free_bytes`] counts it as taken.

use super::bitmap::Bitmap;
use super::{Allocation, Allocator, extent, rounded};
use crate::limits::EXTENT_ALIGN;
use std::fmt;

/// See the file's head.
pub struct Buddy {
    /// Bytes of a block of order 0.
    min_block: u64,
    /// Free blocks by order, numbered from the start of the segment.
    free_blocks: Vec<Bitmap>,
    /// Live blocks by order: proves that what is freed was allocated, with that size.
    live_blocks: Vec<Bitmap>,
    /// Orders that have a free block.
    orders: u64,
    capacity: u64,
    free: u64,
    live: u64,
}

impl Buddy {
    /// An allocator of blocks of `min_block` bytes and more; of `capacity`, whole blocks are used.
    /// Panics unless `min_block` is a power of two, at least 64, and gives fewer than 2^32 blocks.
    pub fn new(capacity: u64, min_block: u64) -> Self {
        assert!(min_block.is_power_of_two(), "a buddy differs in one bit: {min_block}");
        assert!(
            min_block >= EXTENT_ALIGN,
            "extents are aligned to 64 bytes, blocks to {min_block}"
        );
        let blocks = capacity / min_block;
        assert!(blocks < u64::from(u32::MAX), "{blocks} blocks have no handles; use larger ones");
        let orders = blocks.checked_ilog2().map_or(0, |top| top + 1);
        let maps = || (0..orders).map(|order| Bitmap::new(blocks >> order)).collect();
        let mut this = Self {
            min_block,
            free_blocks: maps(),
            live_blocks: maps(),
            orders: 0,
            capacity: blocks * min_block,
            free: 0,
            live: 0,
        };
        let mut at = 0;
        for order in (0..orders).rev() {
            // From the largest down, so `at` is always a multiple of the block size.
            if blocks >> order & 1 == 1 {
                this.insert(order, at >> order);
                at += 1 << order;
            }
        }
        this.free = this.capacity;
        this
    }

    /// Bytes of the block that an extent of `len` bytes takes; `None` if no block is that large.
    pub fn block_bytes(&self, len: u64) -> Option<u64> {
        rounded(len)?.max(self.min_block).checked_next_power_of_two()
    }

    fn order_of(&self, block_bytes: u64) -> u32 {
        (block_bytes / self.min_block).ilog2()
    }

    fn insert(&mut self, order: u32, number: u64) {
        self.free_blocks[order as usize].insert(number);
        self.orders |= 1 << order;
    }

    fn remove(&mut self, order: u32, number: u64) {
        let blocks = &mut self.free_blocks[order as usize];
        blocks.remove(number);
        if blocks.first().is_none() {
            self.orders &= !(1 << order);
        }
    }
}

impl Allocator for Buddy {
    fn allocate(&mut self, len: u64) -> Option<Allocation> {
        let block_bytes = self.block_bytes(len)?;
        let wanted = self.order_of(block_bytes);
        let fitting = self.orders & u64::MAX.checked_shl(wanted).unwrap_or(0);
        if fitting == 0 {
            return None;
        }
        let mut order = fitting.trailing_zeros();
        let mut number =
            self.free_blocks[order as usize].first().expect("an order with its bit has a block");
        self.remove(order, number);
        while order > wanted {
            // Keep the lower half: low addresses first leaves the high ones whole.
            order -= 1;
            number *= 2;
            self.insert(order, number + 1);
        }
        self.live_blocks[wanted as usize].insert(number);
        self.free -= block_bytes;
        self.live += 1;
        let len = rounded(len).expect("it has a block");
        let extent = extent((number << wanted) * self.min_block, len);
        Some(Allocation { extent, handle: (number << wanted) as u32 })
    }

    fn free(&mut self, allocation: Allocation) {
        let Allocation { extent, handle } = allocation;
        let block_bytes = self.block_bytes(extent.len()).filter(|bytes| *bytes <= self.capacity);
        let mut order = block_bytes.map_or(0, |bytes| self.order_of(bytes));
        let mut number = u64::from(handle) >> order;
        let ours = block_bytes.is_some()
            && extent.offset() == u64::from(handle) * self.min_block
            && number << order == u64::from(handle)
            && self.live_blocks.get(order as usize).is_some_and(|map| map.contains(number));
        assert!(ours, "{allocation:?} is not live here");
        self.live_blocks[order as usize].remove(number);
        self.free += self.min_block << order;
        self.live -= 1;
        while self.free_blocks[order as usize].contains(number ^ 1) {
            self.remove(order, number ^ 1);
            order += 1;
            number /= 2;
        }
        self.insert(order, number);
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn free_bytes(&self) -> u64 {
        self.free
    }

    /// Bytes of the largest free block. Free neighbours that are no buddies may form longer runs,
    /// but no `allocate` can have them.
    fn largest_free_run(&self) -> u64 {
        self.orders.checked_ilog2().map_or(0, |order| self.min_block << order)
    }

    fn live(&self) -> u64 {
        self.live
    }

    fn heap_bytes(&self) -> usize {
        let maps = self.free_blocks.iter().chain(&self.live_blocks);
        maps.map(Bitmap::heap_bytes).sum::<usize>()
            + (self.free_blocks.capacity() + self.live_blocks.capacity()) * size_of::<Bitmap>()
    }
}

impl fmt::Debug for Buddy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buddy")
            .field("capacity", &self.capacity)
            .field("min_block", &self.min_block)
            .field("free", &self.free)
            .field("live", &self.live)
            .finish_non_exhaustive()
    }
}
