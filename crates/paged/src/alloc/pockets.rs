//! Pockets: the few blocks that a thread gave back last, one at a time, for its next calls that take one.
//!
//! A block of the bitmap costs a locked instruction to take and one to give back, about 10 ns each. A pocket
//! costs one for both: only the thread of its seat puts blocks into it, by plain stores, but everybody may
//! take them out again, by an exchange. So blocks in pockets are as free as those of the bitmap: a call
//! that finds too few there empties the pockets into the bitmap before it evicts or refuses.
//!
//! ```text
//! slots   [ 7 | 9 | 0 | 4 | 0 | 0 | … ]     block + 1; 0: empty. A thread that needed a block took the third one
//!                           └ top: nothing from here on. Written by the thread of the seat alone
//! ```
//!
//! What must stay true: a slot changes from 0 to a block by the thread of the seat alone. Threads without a
//! seat of their own therefore have no pocket.

use super::seats::{PARTS, SHARED, ever};
use crate::BlockId;
use crate::atomic::{AtomicU32, Ordering};

/// Blocks that fit into a pocket.
const SLOTS: usize = if cfg!(loom) { 1 } else { 16 };

/// The pocket of one seat, on cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Pocket {
    top: AtomicU32,
    slots: [AtomicU32; SLOTS],
}

/// A pocket for each seat.
#[derive(Debug)]
pub(super) struct Pockets(Box<[Pocket]>);

impl Pockets {
    pub(super) fn new() -> Self {
        let empty = |_| AtomicU32::new(0);
        let pocket = |_| Pocket { top: empty(0), slots: std::array::from_fn(empty) };
        Self((0..PARTS).map(pocket).collect())
    }

    /// The block that a thread at `seat` put in last, unless others took it.
    #[inline]
    pub(super) fn take(&self, seat: usize) -> Option<BlockId> {
        let pocket = &self.0[seat];
        let mut top = pocket.top.load(Ordering::Relaxed) as usize;
        while top > 0 {
            top -= 1;
            pocket.top.store(top as u32, Ordering::Relaxed);
            if let Some(block) = claim(&pocket.slots[top]) {
                return Some(block);
            }
        }
        None
    }

    /// Puts a block into the pocket of `seat`; false if there is no room.
    #[inline]
    pub(super) fn put(&self, seat: usize, block: BlockId) -> bool {
        let pocket = &self.0[seat];
        let top = pocket.top.load(Ordering::Relaxed);
        let Some(slot) = pocket.slots.get(top as usize).filter(|_| seat < SHARED) else {
            return false;
        };
        // Release: pairs with the Acquire in `claim`: who owned the block is done with it.
        slot.store(block.0 + 1, Ordering::Release);
        pocket.top.store(top + 1, Ordering::Relaxed);
        true
    }

    /// Takes what is in all pockets.
    pub(super) fn drain(&self) -> impl Iterator<Item = BlockId> {
        ever().flat_map(|seat| {
            let pocket = &self.0[seat];
            let top = pocket.top.load(Ordering::Relaxed) as usize;
            pocket.slots[..top].iter().filter_map(claim)
        })
    }
}

fn claim(slot: &AtomicU32) -> Option<BlockId> {
    if slot.load(Ordering::Relaxed) == 0 {
        return None;
    }
    // Acquire: pairs with the Release in `put`.
    slot.swap(0, Ordering::Acquire).checked_sub(1).map(BlockId)
}
