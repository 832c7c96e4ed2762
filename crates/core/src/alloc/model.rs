//! The naive oracle of the allocator tests: a sorted list of what is taken.
//!
//! It judges answers and predicts none, so one oracle serves allocators that place differently. It
//! is slow on purpose: every question is answered from the list alone. Public, so that model tests,
//! fuzz targets and the simulator's audit judge by the same rules; no product code calls it.

use super::Allocation;
use crate::extent::Extent;
use crate::limits::EXTENT_ALIGN;

/// What a correct allocator of this capacity has handed out.
#[derive(Clone, Debug)]
pub struct IntervalSet {
    capacity: u64,
    /// Allocation and the bytes that it takes, which may reach behind its extent; by offset.
    taken: Vec<(Allocation, Extent)>,
}

impl IntervalSet {
    /// Nothing is taken of `capacity` bytes.
    pub const fn new(capacity: u64) -> Self {
        Self { capacity, taken: Vec::new() }
    }

    /// Judges the answer to a request of `len` bytes. `footprint` is what the allocator's rule says
    /// that such a request takes (buddies take whole blocks).
    ///
    /// # Errors
    /// Says which rule the answer broke.
    pub fn allocated(&mut self, len: u64, it: Allocation, footprint: u64) -> Result<(), String> {
        let extent = it.extent;
        let rounded = len.next_multiple_of(EXTENT_ALIGN);
        if extent.len() != rounded {
            return Err(format!("{len} bytes asked, {rounded} wanted, {extent} given"));
        }
        if !extent.offset().is_multiple_of(EXTENT_ALIGN) {
            return Err(format!("{extent} is not aligned"));
        }
        let whole = Extent::new(extent.offset(), footprint).ok_or("the footprint overflows")?;
        if !whole.fits(self.capacity) {
            return Err(format!("{whole} reaches behind {}", self.capacity));
        }
        if let Some((other, _)) = self.taken.iter().find(|(_, other)| other.overlaps(whole)) {
            return Err(format!("{extent} overlaps {other:?}"));
        }
        if let Some((other, _)) = self.taken.iter().find(|(other, _)| other.handle == it.handle) {
            return Err(format!("{it:?} has the handle of {other:?}"));
        }
        let at = self.taken.partition_point(|(_, other)| other.offset() < extent.offset());
        self.taken.insert(at, (it, whole));
        Ok(())
    }

    /// Notes that the `index`-th live allocation, by offset, is freed, and says which it was.
    pub fn free(&mut self, index: usize) -> Allocation {
        self.taken.remove(index).0
    }

    /// Live allocations by offset.
    pub fn live(&self) -> impl ExactSizeIterator<Item = Allocation> {
        self.taken.iter().map(|(it, _)| *it)
    }

    /// The free runs by offset, each as long as it can be.
    pub fn free_runs(&self) -> Vec<Extent> {
        let ends = std::iter::once(0).chain(self.taken.iter().map(|(_, whole)| whole.end()));
        let starts = self.taken.iter().map(|(_, whole)| whole.offset()).chain([self.capacity]);
        ends.zip(starts)
            .filter(|(end, start)| end < start)
            .filter_map(|(end, start)| Extent::new(end, start - end))
            .collect()
    }

    /// Bytes that are not taken.
    pub fn free_bytes(&self) -> u64 {
        self.free_runs().iter().map(|run| run.len()).sum()
    }

    /// Bytes of the longest free run.
    pub fn largest_free_run(&self) -> u64 {
        self.free_runs().iter().map(|run| run.len()).max().unwrap_or(0)
    }
}
