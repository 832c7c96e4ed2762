//! The physical half: which blocks of an arena are in use. It knows nothing of sequences, tokens or bytes.
//!
//! ```
//! use mooncrate_paged::{Allocator, BlockId, Contiguity};
//!
//! let blocks = Allocator::new(2048)?;
//! let mut table = [BlockId::default(); 32];
//! let mut handle = blocks.allocate(&mut table, Contiguity::Preferred)?;
//! assert_eq!(handle.first(), Some(table[0]));
//! assert_eq!(blocks.free_blocks(), 2016);
//!
//! // A block more, wherever there is one: the run is now a paged table.
//! let mut more = [BlockId::default()];
//! blocks.extend(&mut handle, &mut more)?;
//! let table = [&table[..], &more].concat();
//! blocks.free(handle, &table)?;
//! assert_eq!(blocks.free_blocks(), 2048);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What must stay true: live handles share no block; used plus free is the total; a call takes all the
//! blocks that it was asked for or none (B1). Blocks are taken and given back without a lock, a single one in
//! constant time, a run in the logarithm of the number of words; see [`bits`].
//!
//! A [`Handle`] is the right to free. It cannot be copied, so safe code cannot free twice. Each allocation
//! stamps its blocks with a number that is never used again; a call that names blocks of another stamp, of
//! another allocator or that are free is refused, and changes nothing (B2).

mod bits;
mod magazine;
mod map;
mod pockets;
mod seats;
mod word;

pub use magazine::Magazine;

pub(crate) use bits::Bits;
#[cfg(not(loom))]
pub(crate) use bits::InUse;
pub(crate) use seats::{SEATS, SHARED, Tally, seat};

use crate::BlockId;
use crate::atomic::{AtomicU64, Ordering};
use mooncrate_lock::Mutex;
use std::sync::atomic::AtomicU32;

/// Most blocks of one allocator: their numbers must fit the tables of engines, which are `i32`.
pub const BLOCKS_MAX: u32 = i32::MAX as u32 - 63;

/// Hands out the blocks of one arena.
#[derive(Debug)]
pub struct Allocator {
    bits: Bits,
    /// The stamp of the allocation that each block belongs to; 0: it is free.
    owners: Box<[AtomicU64]>,
    /// The next stamp of each seat.
    stamps: Box<[Stamp]>,
    /// One thread at a time grows or shrinks.
    resizing: Mutex<()>,
    id: u32,
}

#[derive(Debug)]
#[repr(align(128))]
struct Stamp(AtomicU64);

/// Whether the blocks of an allocation lie in a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Contiguity {
    /// Any blocks: the fastest.
    #[default]
    None,
    /// A contiguous run if one is found in logarithmic time, else any blocks.
    Preferred,
    /// A contiguous run, or nothing.
    Required,
}

/// The right to free some blocks, and to add to them.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the blocks stay in use until the handle is freed"]
pub struct Handle {
    allocator: u32,
    count: u32,
    stamp: u64,
    /// The first block, if all lie in a row.
    first: Option<BlockId>,
}

impl Handle {
    /// How many blocks.
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// The first block, if all of them lie in a row.
    pub const fn first(&self) -> Option<BlockId> {
        self.first
    }
}

/// Why blocks were not handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocError {
    /// An allocation of nothing.
    #[error("an allocation needs at least one block")]
    Nothing,
    /// Not that many are free.
    #[error(
        "{wanted} blocks were asked for, {free} of {total} are free; free some, or grow the arena"
    )]
    Full {
        /// Blocks asked for.
        wanted: u32,
        /// Blocks free at the time.
        free: u32,
        /// Blocks there are.
        total: u32,
    },
    /// Enough are free, but not in a row.
    #[error(
        "no {wanted} free blocks lie in a row (the longest run has {longest}); allow a paged table, or compact"
    )]
    Fragmented {
        /// Blocks asked for.
        wanted: u32,
        /// Blocks of the longest run.
        longest: u32,
    },
    /// The handle belongs to another allocator.
    #[error("the handle belongs to another allocator")]
    Foreign,
}

/// Why blocks were not taken back. Nothing was changed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum FreeError {
    /// The handle belongs to another allocator.
    #[error("the handle belongs to another allocator")]
    Foreign(Handle),
    /// The blocks of the handle do not lie in a row.
    #[error("the blocks of the handle do not lie in a row; free them by their table")]
    Paged(Handle),
    /// The table does not have as many blocks as the handle.
    #[error("the handle has {} blocks, the table {found}", handle.count)]
    Length {
        /// The handle, still good.
        handle: Handle,
        /// Blocks in the table.
        found: usize,
    },
    /// A block of the table is not of this handle: freed before, named twice, or somebody else's.
    #[error(
        "{block:?} does not belong to the handle: freed before, named twice, or of another one"
    )]
    NotOwned {
        /// The handle, still good.
        handle: Handle,
        /// The block.
        block: BlockId,
    },
}

/// Why an arena did not change its size. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResizeError {
    /// More blocks than the allocator was made for.
    #[error("{wanted} blocks were asked for; at most {max} were reserved when the arena was made")]
    TooLarge {
        /// Blocks asked for.
        wanted: u32,
        /// The most there can be.
        max: u32,
    },
    /// Blocks beyond the new end are in use.
    #[error(
        "{blocks} blocks beyond {wanted} are in use, the highest is {highest:?}; free or move them first"
    )]
    InUse {
        /// Blocks asked for.
        wanted: u32,
        /// Blocks in the way.
        blocks: u32,
        /// The highest of them.
        highest: BlockId,
    },
    /// No block would be left.
    #[error("an arena needs at least one block")]
    Empty,
}

impl Allocator {
    /// All of `total` blocks are free.
    pub fn new(total: u32) -> Result<Self, ResizeError> {
        Self::with_max(total, total)
    }

    /// The same, with room to [`Allocator::resize`] to `max` later.
    pub fn with_max(total: u32, max: u32) -> Result<Self, ResizeError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let max = max.max(total);
        check_total(total, BLOCKS_MAX)?;
        check_total(max, BLOCKS_MAX)?;
        Ok(Self {
            bits: Bits::new(total, max),
            owners: (0..max).map(|_| AtomicU64::new(0)).collect(),
            stamps: (0..SEATS).map(|seat| Stamp(AtomicU64::new(first_stamp(seat)))).collect(),
            resizing: Mutex::new(()),
            id: NEXT.fetch_add(1, Ordering::Relaxed),
        })
    }

    /// Fills the caller's table with blocks: all of it, or none.
    #[inline]
    pub fn allocate(&self, table: &mut [BlockId], how: Contiguity) -> Result<Handle, AllocError> {
        let seat = seat();
        // A single block is a run, whatever was asked for.
        let first = if table.len() > 1 {
            self.fill(seat, table, how)?
        } else if self.bits.take(seat, table) {
            Some(*table.first().ok_or(AllocError::Nothing)?)
        } else {
            return Err(self.refused(1, Contiguity::None));
        };
        let stamp = self.stamp(seat);
        self.sign(table, stamp);
        Ok(Handle { allocator: self.id, count: table.len() as u32, stamp, first })
    }

    /// Fills a table of several blocks; the first of them, if they lie in a row.
    fn fill(
        &self,
        seat: usize,
        table: &mut [BlockId],
        how: Contiguity,
    ) -> Result<Option<BlockId>, AllocError> {
        let wanted = u32::try_from(table.len()).unwrap_or(u32::MAX);
        let run = match how {
            Contiguity::None => None,
            Contiguity::Preferred => self.bits.take_run(seat, wanted, false),
            Contiguity::Required => self.bits.take_run(seat, wanted, true),
        };
        if let Some(first) = run {
            for (block, place) in (first.0..).zip(table.iter_mut()) {
                *place = BlockId(block);
            }
        } else if how == Contiguity::Required || !self.bits.take(seat, table) {
            return Err(self.refused(wanted, how));
        }
        Ok(run)
    }

    /// Adds blocks to an allocation: fills the caller's table, or takes none.
    pub fn extend(&self, handle: &mut Handle, table: &mut [BlockId]) -> Result<(), AllocError> {
        let wanted = u32::try_from(table.len()).unwrap_or(u32::MAX);
        if handle.allocator != self.id {
            return Err(AllocError::Foreign);
        }
        if wanted > 0 && !self.bits.take(seat(), table) {
            return Err(self.refused(wanted, Contiguity::None));
        }
        self.sign(table, handle.stamp);
        let follows = |(n, block): (u32, &BlockId)| {
            handle.first.is_some_and(|first| block.0 == first.0 + handle.count + n)
        };
        if !(0..).zip(table.iter()).all(follows) {
            handle.first = None;
        }
        handle.count += wanted;
        Ok(())
    }

    /// Takes the blocks of an allocation back; `table` names all of them, in any order.
    #[inline]
    pub fn free(&self, handle: Handle, table: &[BlockId]) -> Result<(), FreeError> {
        if handle.allocator != self.id {
            return Err(FreeError::Foreign(handle));
        }
        if table.len() != handle.count as usize {
            return Err(FreeError::Length { handle, found: table.len() });
        }
        // Taking the stamps off one by one finds a block that is named twice.
        for (n, block) in table.iter().enumerate() {
            if self.owner(*block) != handle.stamp {
                self.sign(&table[..n], handle.stamp);
                return Err(FreeError::NotOwned { handle, block: *block });
            }
            self.owners[block.0 as usize].store(0, Ordering::Relaxed);
        }
        self.bits.give(seat(), table);
        Ok(())
    }

    /// Takes back an allocation whose blocks lie in a row.
    pub fn free_run(&self, handle: Handle) -> Result<(), FreeError> {
        if handle.allocator != self.id {
            return Err(FreeError::Foreign(handle));
        }
        let Some(first) = handle.first else { return Err(FreeError::Paged(handle)) };
        let blocks = first.0..first.0 + handle.count;
        if let Some(block) =
            blocks.clone().find(|block| self.owner(BlockId(*block)) != handle.stamp)
        {
            return Err(FreeError::NotOwned { handle, block: BlockId(block) });
        }
        for block in blocks {
            self.owners[block as usize].store(0, Ordering::Relaxed);
        }
        self.bits.give_run(seat(), first, handle.count);
        Ok(())
    }

    /// Changes the number of blocks while others are in use. A smaller arena needs its upper end free.
    pub fn resize(&self, total: u32) -> Result<(), ResizeError> {
        let _alone = self.resizing.lock();
        check_total(total, self.owners.len() as u32)?;
        self.bits.grow(total);
        self.bits.shrink(seat(), total, &[]).map_err(|in_use| ResizeError::InUse {
            wanted: total,
            blocks: in_use.blocks,
            highest: in_use.highest,
        })
    }

    /// Blocks that nobody has. While other threads allocate and free it is an estimate, and may exceed the total:
    /// each thread counts for itself, and the counts are read one after the other.
    pub fn free_blocks(&self) -> u32 {
        self.bits.free()
    }

    /// Blocks in use.
    pub fn used_blocks(&self) -> u32 {
        self.total_blocks() - self.free_blocks().min(self.total_blocks())
    }

    /// Blocks there are.
    pub fn total_blocks(&self) -> u32 {
        self.bits.total()
    }

    /// Blocks of the longest run of free blocks. Reads the whole bitmap.
    pub fn largest_run(&self) -> u32 {
        self.bits.largest_run(seat())
    }

    /// The part of the free blocks that the longest run does not hold: 0 is one run, near 1 is dust. Paged
    /// tables do not suffer from it. Reads the whole bitmap.
    pub fn fragmentation(&self) -> f64 {
        let free = self.free_blocks();
        if free == 0 {
            return 0.0;
        }
        1.0 - f64::from(self.largest_run().min(free)) / f64::from(free)
    }

    #[cold]
    fn refused(&self, wanted: u32, how: Contiguity) -> AllocError {
        let (free, total) = (self.free_blocks(), self.total_blocks());
        if how == Contiguity::Required && free >= wanted {
            return AllocError::Fragmented { wanted, longest: self.largest_run() };
        }
        AllocError::Full { wanted, free, total }
    }

    /// A number that no other allocation has or had: the upper bits are the seat's.
    fn stamp(&self, seat: usize) -> u64 {
        self.draw(seat, 1)
    }

    /// Many of them: the first, and the one after the last.
    fn stamps(&self) -> (u64, u64) {
        const MANY: u64 = 1 << 10;
        let first = self.draw(seat(), MANY);
        (first, first + MANY)
    }

    fn draw(&self, seat: usize, count: u64) -> u64 {
        let next = &self.stamps[seat].0;
        if seat == SHARED {
            return next.fetch_add(count, Ordering::Relaxed);
        }
        let stamp = next.load(Ordering::Relaxed);
        next.store(stamp + count, Ordering::Relaxed);
        stamp
    }

    // Relaxed: a block is signed by the thread that claimed its bit, and its stamp is taken off before the
    // bit is given back; the bit orders what one owner and the next one write.
    fn sign(&self, table: &[BlockId], stamp: u64) {
        for block in table {
            self.owners[block.0 as usize].store(stamp, Ordering::Relaxed);
        }
    }

    fn owner(&self, block: BlockId) -> u64 {
        let owner = self.owners.get(block.0 as usize);
        owner.map_or(0, |owner| owner.load(Ordering::Relaxed))
    }
}

/// Where a seat begins to count. 2^57 stamps are enough for 100,000 magazines a second over 40 years; 0 means that
/// a block is free.
const fn first_stamp(seat: usize) -> u64 {
    ((seat as u64) << 57) + 1
}

fn check_total(total: u32, max: u32) -> Result<(), ResizeError> {
    match total {
        0 => Err(ResizeError::Empty),
        _ if total > max => Err(ResizeError::TooLarge { wanted: total, max }),
        _ => Ok(()),
    }
}
