//! A bump allocator: a pointer that moves up, and the runs that were given back.
//!
//! For heaps that are filled and emptied in about the same order. A request takes the smallest free
//! run below the pointer that holds it, and only then moves the pointer, so the space above stays
//! whole as long as possible. It never refuses while a run of the rounded length is free.
//!
//! ```text
//!   0 [ live ][ free ][ live ][ free ][ live ] top ............................ capacity
//! ```
//!
//! What must stay true: free runs below `top` do not touch each other and do not touch `top` (one
//! that would is joined, or moves `top` down), so when everything is free, `top` is 0.

use super::{Allocation, Allocator, extent, rounded, usable};
use crate::chunked::Chunked;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// No entry.
const NONE: u32 = u32::MAX;

/// What a handle stands for.
enum Entry {
    Live {
        offset: u64,
        len: u64,
    },
    /// Waits to be used again; leads to the next such entry.
    Vacant {
        next: u32,
    },
}

/// See the file's head.
pub struct Bump {
    /// Everything from here on is free.
    top: u64,
    /// Length of each free run below `top`, by its offset: finds the neighbours of a freed one.
    by_offset: BTreeMap<u64, u64>,
    /// The same runs by length, then offset: finds the smallest that fits.
    by_len: BTreeSet<(u64, u64)>,
    /// Proves that what is freed was allocated.
    entries: Chunked<Entry>,
    vacant: u32,
    capacity: u64,
    free: u64,
    live: u64,
}

impl Bump {
    /// An allocator of one free run; of `capacity`, whole multiples of 64 bytes are used.
    pub const fn new(capacity: u64) -> Self {
        Self {
            top: 0,
            by_offset: BTreeMap::new(),
            by_len: BTreeSet::new(),
            entries: Chunked::new(),
            vacant: NONE,
            capacity: usable(capacity),
            free: usable(capacity),
            live: 0,
        }
    }

    fn add_run(&mut self, offset: u64, len: u64) {
        self.by_offset.insert(offset, len);
        self.by_len.insert((len, offset));
    }

    fn remove_run(&mut self, offset: u64, len: u64) {
        self.by_offset.remove(&offset);
        self.by_len.remove(&(len, offset));
    }

    /// Takes `len` bytes from the smallest run that has them, else from the top.
    fn take(&mut self, len: u64) -> Option<u64> {
        if let Some(&(run_len, offset)) = self.by_len.range((len, 0)..).next() {
            self.remove_run(offset, run_len);
            if run_len > len {
                self.add_run(offset + len, run_len - len);
            }
            return Some(offset);
        }
        if len > self.capacity - self.top {
            return None;
        }
        self.top += len;
        Some(self.top - len)
    }

    fn name(&mut self, offset: u64, len: u64) -> u32 {
        let entry = Entry::Live { offset, len };
        match self.entries.get_mut(self.vacant) {
            Some(waiting) => {
                let Entry::Vacant { next } = std::mem::replace(waiting, entry) else {
                    unreachable!("only vacant entries are in the list of vacant ones");
                };
                std::mem::replace(&mut self.vacant, next)
            }
            None => self.entries.push(entry),
        }
    }
}

impl Allocator for Bump {
    fn allocate(&mut self, len: u64) -> Option<Allocation> {
        let len = rounded(len)?;
        let offset = self.take(len)?;
        self.free -= len;
        self.live += 1;
        Some(Allocation { extent: extent(offset, len), handle: self.name(offset, len) })
    }

    fn free(&mut self, allocation: Allocation) {
        let Allocation { extent, handle } = allocation;
        let entry = self.entries.get_mut(handle).filter(|entry| {
            matches!(**entry, Entry::Live { offset, len }
                if offset == extent.offset() && len == extent.len())
        });
        let entry = entry.unwrap_or_else(|| panic!("{allocation:?} is not live here"));
        *entry = Entry::Vacant { next: std::mem::replace(&mut self.vacant, handle) };
        self.free += extent.len();
        self.live -= 1;

        let (mut offset, mut end) = (extent.offset(), extent.end());
        let before = self.by_offset.range(..offset).next_back().map(|(&at, &len)| (at, len));
        if let Some((at, len)) = before
            && at + len == offset
        {
            self.remove_run(at, len);
            offset = at;
        }
        if let Some(len) = self.by_offset.get(&end).copied() {
            self.remove_run(end, len);
            end += len;
        }
        if end == self.top {
            self.top = offset;
        } else {
            self.add_run(offset, end - offset);
        }
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn free_bytes(&self) -> u64 {
        self.free
    }

    /// Exact.
    fn largest_free_run(&self) -> u64 {
        let below = self.by_len.last().map_or(0, |&(len, _)| len);
        below.max(self.capacity - self.top)
    }

    fn live(&self) -> u64 {
        self.live
    }

    /// An estimate: the trees do not say what they hold. Their nodes are between half and wholly
    /// full, so two entries' room is counted for each.
    fn heap_bytes(&self) -> usize {
        let run = size_of::<(u64, u64)>();
        self.entries.heap_bytes() + 2 * run * (self.by_offset.len() + self.by_len.len())
    }
}

impl fmt::Debug for Bump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bump")
            .field("capacity", &self.capacity)
            .field("top", &self.top)
            .field("free", &self.free)
            .field("live", &self.live)
            .finish_non_exhaustive()
    }
}
