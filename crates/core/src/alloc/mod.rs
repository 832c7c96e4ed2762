//! Allocators: they cut a segment's bytes into extents and take them back.
//!
//! Three of one contract, because the media ask for different things: [`OffsetAllocator`] serves
//! objects of all sizes in constant time (the pool), [`Buddy`] keeps blocks naturally aligned
//! (arenas that map pages), [`Bump`] writes in order (heaps of a GPU-resident cache). They keep books
//! only; no allocator ever sees a byte of a segment.
//!
//! What must stay true, and what [`model::IntervalSet`] judges in the tests: live extents never
//! overlap, lie inside the segment and start and end at multiples of 64; the free bytes are known
//! exactly; when everything is free again, no seam of earlier use is left.

pub mod bitmap;
pub mod buddy;
pub mod bump;
pub mod model;
pub mod offset;

pub use buddy::Buddy;
pub use bump::Bump;
pub use offset::{LiveRuns, OffsetAllocator};

use crate::extent::Extent;
use crate::limits::EXTENT_ALIGN;

/// An extent that is in use, and what its allocator calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// The bytes.
    pub extent: Extent,
    /// The allocator's own name for it, so that `free` need not search.
    pub handle: u32,
}

/// Cuts extents out of `[0, capacity)`.
pub trait Allocator: Send + std::fmt::Debug {
    /// Takes `len` bytes, rounded up to a multiple of [`EXTENT_ALIGN`], or says that no run of free
    /// bytes was found for them. The extent has the rounded length. Panics if `len` is zero.
    fn allocate(&mut self, len: u64) -> Option<Allocation>;

    /// Takes an allocation back. Panics if it is not live here: a double free would hand the same
    /// bytes to two objects later, which is worse than to stop.
    fn free(&mut self, allocation: Allocation);

    /// Bytes that can be handed out in all.
    fn capacity(&self) -> u64;

    /// Bytes that are not taken.
    fn free_bytes(&self) -> u64;

    /// Bytes of the largest run that one `allocate` would get; never more than there is.
    fn largest_free_run(&self) -> u64;

    /// Number of live allocations.
    fn live(&self) -> u64;

    /// Part of the free bytes that the largest run does not hold: 0 is one run, near 1 is dust.
    #[expect(clippy::cast_precision_loss, reason = "a ratio for people; 53 bits are plenty")]
    fn fragmentation(&self) -> f64 {
        if self.free_bytes() == 0 {
            return 0.0;
        }
        1.0 - self.largest_free_run() as f64 / self.free_bytes() as f64
    }

    /// Bytes of memory that the book-keeping takes.
    fn heap_bytes(&self) -> usize;
}

/// The length that is taken for `len` bytes; `None` if it exceeds every segment.
fn rounded(len: u64) -> Option<u64> {
    assert!(len > 0, "an extent of no bytes has no place");
    len.checked_next_multiple_of(EXTENT_ALIGN)
}

/// The part of a capacity that whole extents can fill.
const fn usable(capacity: u64) -> u64 {
    capacity - capacity % EXTENT_ALIGN
}

/// An extent inside a segment.
fn extent(offset: u64, len: u64) -> Extent {
    Extent::new(offset, len).expect("runs lie inside the capacity, which is a u64")
}
