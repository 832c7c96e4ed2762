//! The general allocator: segregated fits over offsets, constant time in both directions.
//!
//! Free runs are kept in bins by size. A bin is named like a small float, exponent and five bits
//! of mantissa, so the runs of one bin differ by less than 1/32 in size, and below 4 KiB not at
//! all. Two levels of bitmasks find the next bin that is not empty in a few instructions. All runs,
//! live or free, are linked in the order of their offsets, so a freed one joins its neighbours at
//! once, without a search.
//!
//! ```text
//!   offsets:  [ live ][ free ][ live ][ live ][ free ............ ]  linked by `before`, `after`
//!                        │                        │
//!   bins:     …   [3]──► ●           …      [57]──► ●                linked by `up`, `down`
//! ```
//!
//! What must stay true: the runs tile `[0, capacity)` without gap; no two free runs are neighbours;
//! a run is in the bin of its length if and only if it is free.
//!
//! **Slack.** A request looks first at [`LOOK`] runs of the bin of its own length, where some may
//! be too short, and then takes any run of the next bin that is not empty, where all fit. So it is
//! refused wrongly only if every run that fits lies in that one bin, is less than 1/32 longer than
//! asked, and hides behind [`LOOK`] shorter ones. [`OffsetAllocator::largest_free_run`] looks at
//! the same [`LOOK`] runs of the topmost bin: exact if the bin holds no more, otherwise a run that
//! exists and is short of the largest by less than 1/32; allocating that length always succeeds.

use super::{Allocation, Allocator, extent, rounded, usable};
use crate::chunked::Chunked;
use crate::extent::Extent;
use crate::limits::EXTENT_ALIGN;
use std::fmt;

/// Runs that a search looks at in a bin where not all of them fit.
pub const LOOK: usize = 8;

/// Mantissa bits of a bin.
const FINE_BITS: u32 = 5;
/// Bins of one exponent.
const FINE: u64 = 1 << FINE_BITS;
/// Exponents: a length has at most 58 bits when counted in grains of 64 bytes.
const COARSE: usize = 64 - EXTENT_ALIGN.trailing_zeros() as usize - FINE_BITS as usize + 1;
const BINS: usize = COARSE * FINE as usize;
const _: () = assert!(COARSE <= 64, "one word holds the upper mask");

/// No run.
const NONE: u32 = u32::MAX;
/// In `up`: the run is live, so in no bin.
const LIVE: u32 = u32::MAX - 1;
/// In `up`: the node describes no run; `down` leads to the next such node.
const VACANT: u32 = u32::MAX - 2;

/// A run of bytes, live or free, or a node that waits to describe one.
#[derive(Clone, Copy)]
struct Run {
    offset: u64,
    len: u64,
    /// The run that ends where this one starts.
    before: u32,
    /// The run that starts where this one ends.
    after: u32,
    /// The bin's list towards its head, or [`LIVE`], or [`VACANT`]: one field for both, because a
    /// fifth link would cost eight bytes in each of ten million nodes.
    up: u32,
    /// The bin's list away from its head.
    down: u32,
}

const _: () = assert!(size_of::<Run>() == 32);

impl Run {
    const fn is_free(&self) -> bool {
        self.up != LIVE && self.up != VACANT
    }
}

/// See the file's head.
pub struct OffsetAllocator {
    runs: Chunked<Run>,
    /// First node that waits for a run.
    vacant: u32,
    /// First run of each bin.
    heads: Box<[u32]>,
    /// Which bins of an exponent have runs.
    fine: [u32; COARSE],
    /// Which exponents have runs.
    coarse: u64,
    capacity: u64,
    free: u64,
    live: u64,
}

impl OffsetAllocator {
    /// An allocator of one free run; of `capacity`, whole multiples of 64 bytes are used.
    pub fn new(capacity: u64) -> Self {
        Self::with_live(capacity, &[]).expect("no extents contradict nothing").0
    }

    /// An allocator in which exactly these extents are live, as after a restart of the master, and
    /// their allocations in the same order. `None` if they overlap, are empty or unaligned, or reach
    /// outside.
    pub fn with_live(capacity: u64, live: &[Extent]) -> Option<(Self, Vec<Allocation>)> {
        let mut told = LiveRuns::new(capacity);
        let named = live
            .iter()
            .map(|&extent| Some(Allocation { extent, handle: told.add(extent)? }))
            .collect::<Option<Vec<_>>>()?;
        Some((told.build().ok()?, named))
    }

    /// The slack in numbers: while a run of this many bytes is free, a request of `len` bytes is
    /// never refused. Less than 1/32 above `len`, once that is rounded to 64.
    pub fn sure_bytes(len: u64) -> u64 {
        let Some(len) = rounded(len) else { return u64::MAX };
        let bin = bin_of(len);
        if floor_of(bin) * EXTENT_ALIGN == len {
            return len;
        }
        floor_of(bin + 1).saturating_mul(EXTENT_ALIGN)
    }

    fn append_free(&mut self, offset: u64, len: u64, last: u32) -> u32 {
        let index = self.insert_after(last, offset, len);
        self.free += len;
        self.link(index);
        index
    }

    /// A new live run behind `before` in the order of offsets.
    fn insert_after(&mut self, before: u32, offset: u64, len: u64) -> u32 {
        let after = self.runs.get(before).map_or(NONE, |run| run.after);
        let run = Run { offset, len, before, after, up: LIVE, down: NONE };
        let index = if self.vacant == NONE {
            assert!(self.runs.len() < VACANT, "a segment has fewer than 2^32 - 3 runs");
            self.runs.push(run)
        } else {
            let index = self.vacant;
            self.vacant = self.runs[index].down;
            self.runs[index] = run;
            index
        };
        if let Some(run) = self.runs.get_mut(before) {
            run.after = index;
        }
        if let Some(run) = self.runs.get_mut(after) {
            run.before = index;
        }
        index
    }

    /// Joins `index` with the run behind it, which is in no bin, and gives that node up.
    fn join_after(&mut self, index: u32) {
        let gone = self.runs[index].after;
        let Run { len, after, .. } = self.runs[gone];
        self.runs[index].len += len;
        self.runs[index].after = after;
        if let Some(run) = self.runs.get_mut(after) {
            run.before = index;
        }
        let next = std::mem::replace(&mut self.vacant, gone);
        self.runs[gone] =
            Run { offset: 0, len: 0, before: NONE, after: NONE, up: VACANT, down: next };
    }

    /// Puts a run at the head of its bin.
    fn link(&mut self, index: u32) {
        let bin = bin_of(self.runs[index].len);
        let down = std::mem::replace(&mut self.heads[bin], index);
        self.runs[index].up = NONE;
        self.runs[index].down = down;
        if let Some(run) = self.runs.get_mut(down) {
            run.up = index;
        }
        let (coarse, fine) = halves(bin);
        self.fine[coarse] |= 1 << fine;
        self.coarse |= 1 << coarse;
    }

    /// Takes a free run out of its bin; it counts as live from here on.
    fn unlink(&mut self, index: u32) {
        let Run { len, up, down, .. } = self.runs[index];
        if let Some(run) = self.runs.get_mut(down) {
            run.up = up;
        }
        if let Some(run) = self.runs.get_mut(up) {
            run.down = down;
        } else {
            let bin = bin_of(len);
            self.heads[bin] = down;
            if down == NONE {
                let (coarse, fine) = halves(bin);
                self.fine[coarse] &= !(1 << fine);
                if self.fine[coarse] == 0 {
                    self.coarse &= !(1 << coarse);
                }
            }
        }
        self.runs[index].up = LIVE;
        self.runs[index].down = NONE;
    }

    /// The first [`LOOK`] runs of a bin.
    fn first_of(&self, bin: usize) -> impl Iterator<Item = (u32, &Run)> {
        let mut next = self.heads[bin];
        std::iter::from_fn(move || {
            let index = next;
            let run = self.runs.get(index)?;
            next = run.down;
            Some((index, run))
        })
        .take(LOOK)
    }

    /// The lowest bin from `bin` on that has a run.
    fn bin_from(&self, bin: usize) -> Option<usize> {
        let (coarse, fine) = halves(bin);
        let here = *self.fine.get(coarse)? & (u32::MAX << fine);
        if here != 0 {
            return Some(coarse * FINE as usize + here.trailing_zeros() as usize);
        }
        let above = self.coarse & u64::MAX.checked_shl(coarse as u32 + 1).unwrap_or(0);
        if above == 0 {
            return None;
        }
        let coarse = above.trailing_zeros() as usize;
        Some(coarse * FINE as usize + self.fine[coarse].trailing_zeros() as usize)
    }

    /// A free run of at least `len` bytes.
    fn find(&self, len: u64) -> Option<u32> {
        let bin = bin_of(len);
        // Its own bin first: objects of one size give back exactly the runs that the next one
        // wants, and cutting a larger run instead would leave those lie idle.
        if let Some((index, _)) = self.first_of(bin).find(|(_, run)| run.len >= len) {
            return Some(index);
        }
        Some(self.heads[self.bin_from(bin + 1)?])
    }
}

/// An allocator to be: what is live in it is told extent by extent, in any order, and each has its
/// handle at once. Only [`LiveRuns::build`] looks at them together; it may take its time, since
/// nobody needs the allocator before it is done.
pub struct LiveRuns {
    capacity: u64,
    runs: Chunked<Run>,
}

impl LiveRuns {
    /// Of an allocator with this capacity.
    pub fn new(capacity: u64) -> Self {
        Self { capacity: usable(capacity), runs: Chunked::new() }
    }

    /// This extent is live. Its handle, or `None` if it is empty, unaligned or outside.
    pub fn add(&mut self, extent: Extent) -> Option<u32> {
        let (offset, len) = (extent.offset(), extent.len());
        let aligned = (offset | len).is_multiple_of(EXTENT_ALIGN);
        if !aligned || extent.is_empty() || !extent.fits(self.capacity) {
            return None;
        }
        assert!(self.runs.len() < VACANT, "a segment has fewer than 2^32 - 3 runs");
        let run = Run { offset, len, before: NONE, after: NONE, up: LIVE, down: NONE };
        Some(self.runs.push(run))
    }

    /// The allocator, or the handle of an extent that overlaps another. Time O(n log n), and O(n) if
    /// the extents came in the order of their offsets, as those of a young segment do.
    pub fn build(self) -> Result<OffsetAllocator, u32> {
        let live = self.runs.len();
        let mut this = OffsetAllocator {
            runs: self.runs,
            vacant: NONE,
            heads: vec![NONE; BINS].into_boxed_slice(),
            fine: [0; COARSE],
            coarse: 0,
            capacity: self.capacity,
            free: 0,
            live: u64::from(live),
        };
        let offsets = this.runs.iter().map(|run| run.offset);
        let mut order: Vec<(u64, u32)> = offsets.zip(0..live).collect();
        order.sort_unstable();
        let (mut last, mut end) = (NONE, 0);
        for (offset, index) in order {
            if offset < end {
                return Err(index);
            }
            if offset > end {
                last = this.append_free(end, offset - end, last);
            }
            if let Some(run) = this.runs.get_mut(last) {
                run.after = index;
            }
            let run = &mut this.runs[index];
            run.before = last;
            (last, end) = (index, offset + run.len);
        }
        if end < this.capacity {
            this.append_free(end, this.capacity - end, last);
        }
        Ok(this)
    }
}

impl fmt::Debug for LiveRuns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LiveRuns").field("live", &self.runs.len()).finish_non_exhaustive()
    }
}

impl Allocator for OffsetAllocator {
    fn allocate(&mut self, len: u64) -> Option<Allocation> {
        let len = rounded(len)?;
        let index = self.find(len)?;
        self.unlink(index);
        let Run { offset, len: whole, .. } = self.runs[index];
        if whole > len {
            self.runs[index].len = len;
            let rest = self.insert_after(index, offset + len, whole - len);
            self.link(rest);
        }
        self.free -= len;
        self.live += 1;
        Some(Allocation { extent: extent(offset, len), handle: index })
    }

    fn free(&mut self, allocation: Allocation) {
        let Allocation { extent, handle: mut index } = allocation;
        let run = self.runs.get(index).copied();
        assert!(
            run.is_some_and(|run| run.up == LIVE
                && run.offset == extent.offset()
                && run.len == extent.len()),
            "{allocation:?} is not live here"
        );
        let Run { before, after, .. } = self.runs[index];
        if self.runs.get(after).is_some_and(Run::is_free) {
            self.unlink(after);
            self.join_after(index);
        }
        if self.runs.get(before).is_some_and(Run::is_free) {
            self.unlink(before);
            self.join_after(before);
            index = before;
        }
        self.link(index);
        self.free += extent.len();
        self.live -= 1;
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn free_bytes(&self) -> u64 {
        self.free
    }

    fn largest_free_run(&self) -> u64 {
        let Some(coarse) = self.coarse.checked_ilog2() else { return 0 };
        let fine = self.fine[coarse as usize].ilog2();
        let top = (u64::from(coarse) * FINE + u64::from(fine)) as usize;
        self.first_of(top).map(|(_, run)| run.len).max().expect("a bin with its bit set has a run")
    }

    fn live(&self) -> u64 {
        self.live
    }

    fn heap_bytes(&self) -> usize {
        self.runs.heap_bytes() + size_of_val(&*self.heads)
    }
}

impl fmt::Debug for OffsetAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OffsetAllocator")
            .field("capacity", &self.capacity)
            .field("free", &self.free)
            .field("live", &self.live)
            .finish_non_exhaustive()
    }
}

/// The bin of runs of `len` bytes. Up to 2 * [`FINE`] grains each length has a bin of its own.
fn bin_of(len: u64) -> usize {
    let grains = len / EXTENT_ALIGN;
    if grains < FINE {
        return grains as usize;
    }
    let shift = grains.ilog2() - FINE_BITS;
    ((u64::from(shift) + 1) * FINE + (grains >> shift) - FINE) as usize
}

/// The shortest length of a bin, in grains.
fn floor_of(bin: usize) -> u64 {
    let (coarse, fine) = halves(bin);
    match coarse.checked_sub(1) {
        None => u64::from(fine),
        Some(shift) => (FINE + u64::from(fine)).checked_shl(shift as u32).unwrap_or(u64::MAX),
    }
}

/// A bin as exponent and mantissa.
const fn halves(bin: usize) -> (usize, u32) {
    (bin >> FINE_BITS, (bin & (FINE as usize - 1)) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_cover_every_length_in_order() {
        let mut last = 0;
        for grains in (1..5000).chain((13..58).flat_map(|e| [(1 << e) - 1, 1 << e, (1 << e) + 1])) {
            let bin = bin_of(grains * EXTENT_ALIGN);
            assert!(bin >= last && bin < BINS, "{grains} grains: bin {bin} after {last}");
            assert!(floor_of(bin) <= grains && grains < floor_of(bin + 1), "{grains} in {bin}");
            // The width of a bin is the slack that the file's head promises.
            assert!((floor_of(bin + 1) - floor_of(bin)) * FINE <= floor_of(bin).max(FINE));
            last = bin;
        }
        assert!(bin_of(usable(u64::MAX)) < BINS);
    }

    /// The slack that the file's head documents is neither wider nor narrower than it says.
    #[test]
    fn a_fitting_run_behind_short_ones_is_found_up_to_the_documented_bound() {
        for short in [LOOK - 1, LOOK] {
            // 8192 and 8256 bytes share a bin. The longer run is freed first, so it lies last.
            let mut offset = OffsetAllocator::new(1 << 20);
            let long = offset.allocate(8192 + 64).unwrap();
            offset.allocate(64).unwrap();
            let mut shorts = Vec::new();
            for _ in 0..short {
                shorts.push(offset.allocate(8192).unwrap());
                offset.allocate(64).unwrap();
            }
            offset.allocate(offset.largest_free_run()).unwrap();
            offset.free(long);
            for one in shorts {
                offset.free(one);
            }
            assert_eq!(bin_of(8192), bin_of(8192 + 64));
            let found = offset.allocate(8192 + 64).is_some();
            assert_eq!(found, short < LOOK, "{short} shorter runs in front");
        }
    }
}
