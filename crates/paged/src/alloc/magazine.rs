//! A magazine: blocks that one thread has taken in advance, to hand out one at a time.
//!
//! A locked instruction takes about 10 ns on the machines that this was measured on, and a single block needs
//! two, to take it and to give it back. A magazine takes up to 64 blocks of one word at once and needs none
//! in between. The blocks in it are in use for everybody else, so it is something that a thread asks for: a
//! scheduler that adds one block to one sequence after the other does, most code does not.

use super::{AllocError, Allocator, FreeError, Handle, seat};
use crate::BlockId;

/// Most blocks of a magazine.
const ROUNDS: usize = 64;

/// Blocks taken in advance. Dropping it gives them back.
#[derive(Debug)]
pub struct Magazine<'a> {
    allocator: &'a Allocator,
    blocks: [BlockId; ROUNDS],
    len: usize,
    /// The last stamp that was used, and the first one that must not be.
    stamp: u64,
    end: u64,
}

impl Allocator {
    /// A magazine for the calling thread; empty until the first block is asked for.
    pub fn magazine(&self) -> Magazine<'_> {
        let blocks = [BlockId::default(); ROUNDS];
        Magazine { allocator: self, blocks, len: 0, stamp: 0, end: 0 }
    }
}

impl Magazine<'_> {
    /// Takes a single block.
    #[inline]
    pub fn allocate(&mut self) -> Result<Handle, AllocError> {
        if self.len == 0 {
            self.load()?;
        }
        if self.stamp == self.end {
            (self.stamp, self.end) = self.allocator.stamps();
        }
        self.len -= 1;
        let (block, stamp) = (self.blocks[self.len], self.stamp);
        self.stamp += 1;
        self.allocator.sign(&[block], stamp);
        Ok(Handle { allocator: self.allocator.id, count: 1, stamp, first: Some(block) })
    }

    /// Takes a single block back, whoever allocated it.
    #[inline]
    pub fn free(&mut self, handle: Handle) -> Result<(), FreeError> {
        let first = match handle.first {
            Some(first) if handle.count == 1 && handle.allocator == self.allocator.id => first,
            _ => return self.allocator.free_run(handle),
        };
        if self.allocator.owner(first) != handle.stamp {
            return Err(FreeError::NotOwned { handle, block: first });
        }
        self.allocator.sign(&[first], 0);
        if self.len == ROUNDS {
            self.unload(ROUNDS / 2);
        }
        self.blocks[self.len] = first;
        self.len += 1;
        Ok(())
    }

    /// Blocks in it.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether the next block has to be fetched.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[cold]
    fn load(&mut self) -> Result<(), AllocError> {
        let bits = &self.allocator.bits;
        self.len = bits.take_some(seat(), &mut self.blocks);
        if self.len == 0 {
            self.len = usize::from(bits.take(seat(), &mut self.blocks[..1]));
        }
        if self.len == 0 { Err(self.allocator.refused(1, super::Contiguity::None)) } else { Ok(()) }
    }

    /// Gives all but the first `keep` blocks back.
    #[cold]
    fn unload(&mut self, keep: usize) {
        self.allocator.bits.give(seat(), &self.blocks[keep..self.len]);
        self.len = keep;
    }
}

impl Drop for Magazine<'_> {
    fn drop(&mut self) {
        self.unload(0);
    }
}
