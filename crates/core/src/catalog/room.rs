//! Room of a segment: ranges of memory, or bytes of a disk that are only counted.
//!
//! On a disk its owner decides where a record lies, so an extent there names no place: all of them start
//! at 0, and the master counts. What a disk announces may be more than it offers now, because somebody
//! has made it smaller: then nothing fits until its owner has evicted enough.

use crate::alloc::offset::{LiveRuns, OffsetAllocator};
use crate::alloc::{Allocation, Allocator};
use crate::extent::Extent;
use crate::limits::EXTENT_ALIGN;

/// The handle of bytes that are only counted.
const COUNTED: u32 = 0;

/// Bytes that can be taken.
#[derive(Debug)]
pub(super) enum Room {
    /// Of memory.
    Ranges(Box<OffsetAllocator>),
    /// Of a disk.
    Bytes {
        /// What there is.
        capacity: u64,
        /// What is taken.
        used: u64,
    },
}

/// What an owner has told so far.
#[derive(Debug)]
pub(super) enum Told {
    /// Ranges, not yet in order.
    Ranges(LiveRuns),
    /// Nothing that needs an order: the room has counted it already.
    Bytes,
}

impl Room {
    /// Empty room of memory, or of a disk.
    pub(super) fn new(capacity: u64, disk: bool) -> Self {
        if disk {
            return Self::Bytes { capacity, used: 0 };
        }
        Self::Ranges(Box::new(OffsetAllocator::new(capacity)))
    }

    pub(super) fn allocate(&mut self, bytes: u64) -> Option<Allocation> {
        match self {
            Self::Ranges(ranges) => ranges.allocate(bytes),
            Self::Bytes { capacity, used } => {
                let bytes = bytes.checked_next_multiple_of(EXTENT_ALIGN)?;
                let sum = used.checked_add(bytes).filter(|sum| sum <= capacity)?;
                *used = sum;
                Some(Allocation { extent: Extent::new(0, bytes)?, handle: COUNTED })
            }
        }
    }

    pub(super) fn free(&mut self, allocation: Allocation) {
        match self {
            Self::Ranges(ranges) => ranges.free(allocation),
            Self::Bytes { used, .. } => *used -= allocation.extent.len(),
        }
    }

    pub(super) fn free_bytes(&self) -> u64 {
        match self {
            Self::Ranges(ranges) => ranges.free_bytes(),
            Self::Bytes { capacity, used } => capacity.saturating_sub(*used),
        }
    }

    pub(super) fn used_bytes(&self) -> u64 {
        match self {
            Self::Ranges(ranges) => ranges.capacity() - ranges.free_bytes(),
            Self::Bytes { used, .. } => *used,
        }
    }

    pub(super) fn largest_free_run(&self) -> u64 {
        match self {
            Self::Ranges(ranges) => ranges.largest_free_run(),
            Self::Bytes { .. } => self.free_bytes(),
        }
    }

    pub(super) fn fragmentation(&self) -> f64 {
        match self {
            Self::Ranges(ranges) => ranges.fragmentation(),
            Self::Bytes { .. } => 0.0,
        }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        match self {
            Self::Ranges(ranges) => ranges.heap_bytes(),
            Self::Bytes { .. } => 0,
        }
    }

    /// Counts what a disk has told.
    pub(super) fn count(&mut self, extent: Extent) {
        if let Self::Bytes { used, .. } = self {
            *used = used.saturating_add(extent.len());
        }
    }
}

impl Told {
    /// Nothing told yet.
    pub(super) fn new(capacity: u64, disk: bool) -> Self {
        if disk { Self::Bytes } else { Self::Ranges(LiveRuns::new(capacity)) }
    }

    /// This extent is taken. Its handle, or `None` if there cannot be such a one.
    pub(super) fn add(&mut self, extent: Extent) -> Option<u32> {
        match self {
            Self::Ranges(runs) => runs.add(extent),
            Self::Bytes => {
                let aligned = extent.len().is_multiple_of(EXTENT_ALIGN);
                (aligned && !extent.is_empty()).then_some(COUNTED)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_a_disk_are_counted() {
        let mut room = Room::new(256, true);
        let taken = room.allocate(100).unwrap();
        assert_eq!((taken.extent.len(), room.used_bytes(), room.free_bytes()), (128, 128, 128));
        assert!(room.allocate(129).is_none());
        let more = room.allocate(128).unwrap();
        room.free(taken);
        room.count(Extent::new(0, 640).unwrap());
        // Told more than there is: nothing fits, and nothing is negative.
        assert_eq!((room.used_bytes(), room.free_bytes()), (768, 0));
        assert!(room.allocate(64).is_none());
        room.free(more);
        assert_eq!(room.used_bytes(), 640);
    }
}
