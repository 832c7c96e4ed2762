//! A part of a segment: offset and length, always checked.

use std::fmt;

/// `len` bytes from `offset`. An extent that exists does not overflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    offset: u64,
    len: u64,
}

impl Extent {
    /// The extent, or `None` if its end would overflow.
    pub const fn new(offset: u64, len: u64) -> Option<Self> {
        match offset.checked_add(len) {
            Some(_) => Some(Self { offset, len }),
            None => None,
        }
    }

    /// First byte.
    pub const fn offset(self) -> u64 {
        self.offset
    }

    /// Number of bytes.
    pub const fn len(self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// First byte after it.
    pub const fn end(self) -> u64 {
        self.offset + self.len
    }

    /// Whether it lies inside a segment of `capacity` bytes.
    pub const fn fits(self, capacity: u64) -> bool {
        self.end() <= capacity
    }

    /// Whether the two share a byte.
    pub const fn overlaps(self, other: Self) -> bool {
        self.offset < other.end() && other.offset < self.end() && self.len > 0 && other.len > 0
    }

    /// The part `[start, start + len)` of this extent, or `None` if it reaches outside.
    pub const fn part(self, start: u64, len: u64) -> Option<Self> {
        match start.checked_add(len) {
            Some(end) if end <= self.len => Self::new(self.offset + start, len),
            _ => None,
        }
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, +{})", self.offset, self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extent_never_overflows_and_parts_stay_inside() {
        assert!(Extent::new(u64::MAX, 1).is_none());
        let whole = Extent::new(100, 50).unwrap();
        assert_eq!(whole.part(10, 40), Extent::new(110, 40));
        assert_eq!(whole.part(10, 41), None);
        assert_eq!(whole.part(u64::MAX, 2), None);
        assert!(whole.fits(150) && !whole.fits(149));
    }

    #[test]
    fn overlap_needs_a_shared_byte() {
        let a = Extent::new(0, 10).unwrap();
        assert!(a.overlaps(Extent::new(9, 1).unwrap()));
        assert!(!a.overlaps(Extent::new(10, 1).unwrap()));
        assert!(!a.overlaps(Extent::new(5, 0).unwrap()));
    }
}
