//! The accounting auditor: every byte is free, used or quarantined, and nobody's twice (G3, G8).
//!
//! The store counts for itself; this file adds up what it says, after every step of a simulation
//! and after every drain.

use mooncrate_core::Extent;

/// What one segment, or a sum of segments, says about its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    /// Bytes there are.
    pub capacity: u64,
    /// Bytes that can be reserved.
    pub free: u64,
    /// Bytes that a put or an object holds.
    pub used: u64,
    /// Bytes that nobody holds and nobody may have yet.
    pub quarantined: u64,
}

/// What does not add up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuditError {
    /// Bytes were lost or invented (G8).
    #[error(
        "{} free + {} used + {} quarantined is not the capacity of {} bytes",
        .0.free, .0.used, .0.quarantined, .0.capacity
    )]
    Unbalanced(Audit),
    /// Something stayed after everything was removed (G8).
    #[error("after the drain {used} bytes are still used and {pins} pins held")]
    NotDrained {
        /// Bytes.
        used: u64,
        /// Readers.
        pins: u64,
    },
    /// Two owners of one byte (G3).
    #[error("the live extents {first} and {second} overlap")]
    Overlap {
        /// The one that starts earlier.
        first: Extent,
        /// The one that starts inside it.
        second: Extent,
    },
    /// An extent that no segment can hold.
    #[error("the live extent {extent} reaches past the end of its segment at {capacity}")]
    Outside {
        /// Which.
        extent: Extent,
        /// Bytes of the segment.
        capacity: u64,
    },
    /// The extents say one thing, the counter another (G8).
    #[error("the live extents hold {held} bytes, {used} bytes are counted as used")]
    Miscounted {
        /// Sum over the extents.
        held: u64,
        /// The counter.
        used: u64,
    },
}

impl Audit {
    /// free + used + quarantined = capacity.
    pub fn check(&self) -> Result<(), AuditError> {
        let sum = self.free.checked_add(self.used).and_then(|s| s.checked_add(self.quarantined));
        if sum == Some(self.capacity) { Ok(()) } else { Err(AuditError::Unbalanced(*self)) }
    }

    /// As [`check`](Self::check), once everything was removed and every reader has left.
    pub fn check_drained(&self, pins: u64) -> Result<(), AuditError> {
        self.check()?;
        if self.used == 0 && pins == 0 {
            Ok(())
        } else {
            Err(AuditError::NotDrained { used: self.used, pins })
        }
    }

    /// As [`check`](Self::check), and the live extents of this one segment are disjoint, lie
    /// inside it and hold exactly the used bytes.
    pub fn check_extents(&self, live: &[Extent]) -> Result<(), AuditError> {
        self.check()?;
        disjoint(live)?;
        if let Some(&extent) = live.iter().find(|extent| !extent.fits(self.capacity)) {
            return Err(AuditError::Outside { extent, capacity: self.capacity });
        }
        // Disjoint and inside: the sum cannot overflow.
        let held = live.iter().map(|extent| extent.len()).sum();
        if held == self.used {
            Ok(())
        } else {
            Err(AuditError::Miscounted { held, used: self.used })
        }
    }

    /// This and another segment together.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            capacity: self.capacity + other.capacity,
            free: self.free + other.free,
            used: self.used + other.used,
            quarantined: self.quarantined + other.quarantined,
        }
    }
}

/// No two of these extents of one segment share a byte.
pub fn disjoint(live: &[Extent]) -> Result<(), AuditError> {
    let mut sorted: Vec<Extent> = live.iter().copied().filter(|e| !e.is_empty()).collect();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0].overlaps(pair[1])) {
        Some(pair) => Err(AuditError::Overlap { first: pair[0], second: pair[1] }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(offset: u64, len: u64) -> Extent {
        Extent::new(offset, len).unwrap()
    }

    // proves G8
    #[test]
    fn every_byte_is_free_used_or_quarantined() {
        let good = Audit { capacity: 100, free: 50, used: 30, quarantined: 20 };
        assert_eq!(good.check(), Ok(()));
        for bad in [
            Audit { free: 49, ..good },
            Audit { used: 31, ..good },
            Audit { quarantined: 0, ..good },
            Audit { free: u64::MAX, used: 101, quarantined: 0, capacity: 100 },
        ] {
            assert_eq!(bad.check(), Err(AuditError::Unbalanced(bad)));
        }
    }

    // proves G8
    #[test]
    fn a_drain_leaves_neither_bytes_nor_pins() {
        let empty = Audit { capacity: 100, free: 90, used: 0, quarantined: 10 };
        assert_eq!(empty.check_drained(0), Ok(()));
        assert_eq!(empty.check_drained(1), Err(AuditError::NotDrained { used: 0, pins: 1 }));
        let left = Audit { free: 26, used: 64, ..empty };
        assert_eq!(left.check_drained(0), Err(AuditError::NotDrained { used: 64, pins: 0 }));
    }

    // proves G3
    #[test]
    fn no_byte_has_two_owners() {
        let audit = Audit { capacity: 100, free: 70, used: 30, quarantined: 0 };
        let (a, b) = (extent(10, 20), extent(80, 10));
        assert_eq!(audit.check_extents(&[b, extent(30, 0), a]), Ok(()));
        let inside = extent(29, 10);
        let overlap = AuditError::Overlap { first: a, second: inside };
        assert_eq!(audit.check_extents(&[inside, a]), Err(overlap));
        let outside = extent(91, 10);
        assert_eq!(
            audit.check_extents(&[a, outside]),
            Err(AuditError::Outside { extent: outside, capacity: 100 })
        );
        assert_eq!(audit.check_extents(&[a]), Err(AuditError::Miscounted { held: 20, used: 30 }));
    }

    #[test]
    fn segments_add_up() {
        let one = Audit { capacity: 100, free: 50, used: 30, quarantined: 20 };
        assert_eq!(one.plus(&one).check(), Ok(()));
        assert_eq!(one.plus(&one).used, 60);
    }
}
