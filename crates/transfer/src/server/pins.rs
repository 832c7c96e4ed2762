//! What tenants have pinned here, over all their links.
//!
//! A pin is asked for by a process that maps our memory and looks at bytes in place. No word there can stop
//! its loads, so a pin is never taken from a living holder: it ends when it is given back, or when the link it
//! is booked to ends, which a holder keeps open until its last view is gone. What can be bounded is how much a
//! tenant may pin: bytes and a number, over all its links. And a link that has kept a value for long after
//! that was removed gets no more pins before it has let go. Whoever cannot map the memory has no use for a pin
//! and gets none.

use mooncrate_core::{SegmentId, TenantId};
use mooncrate_lock::Mutex;
use std::collections::BTreeMap;

/// Pins that a tenant may have here, of all segments.
const PINS_MAX: usize = 65_536;

/// Pins by tenant.
#[derive(Debug, Default)]
pub(crate) struct PinBook(Mutex<BTreeMap<TenantId, Held>>);

#[derive(Debug, Default)]
struct Held {
    pins: usize,
    bytes: BTreeMap<SegmentId, u64>,
}

impl PinBook {
    /// Books a pin, if the tenant may have one more; `limit`: bytes that it may pin in the segment.
    pub(crate) fn book(&self, tenant: TenantId, at: SegmentId, bytes: u64, limit: u64) -> bool {
        let mut book = self.0.lock();
        let held = book.get(&tenant);
        let pinned = held.and_then(|held| held.bytes.get(&at)).copied().unwrap_or(0);
        let sum = pinned.saturating_add(bytes);
        if held.is_some_and(|held| held.pins >= PINS_MAX) || sum > limit {
            // Nothing is left behind of a tenant that has no pin.
            return false;
        }
        let held = book.entry(tenant).or_default();
        held.pins += 1;
        held.bytes.insert(at, sum);
        true
    }

    /// One is over.
    pub(crate) fn give_back(&self, tenant: TenantId, at: SegmentId, bytes: u64) {
        let mut book = self.0.lock();
        let Some(held) = book.get_mut(&tenant) else { return };
        held.pins -= 1;
        if let Some(sum) = held.bytes.get_mut(&at) {
            *sum -= bytes;
            if *sum == 0 {
                held.bytes.remove(&at);
            }
        }
        if held.pins == 0 {
            book.remove(&tenant);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_is_bounded_by_bytes_and_by_number_and_others_are_not_bothered() {
        let (book, at) = (PinBook::default(), SegmentId(1));
        let (ours, theirs) = (TenantId(1), TenantId(2));
        assert!(book.book(ours, at, 60, 100) && !book.book(ours, at, 60, 100));
        assert!(book.book(ours, SegmentId(2), 60, 100) && book.book(theirs, at, 60, 100));
        book.give_back(ours, at, 60);
        assert!(book.book(ours, at, 100, 100));
        book.give_back(ours, at, 100);
        book.give_back(ours, SegmentId(2), 60);
        book.give_back(theirs, at, 60);
        assert!(book.0.lock().is_empty());
        assert!(!book.book(theirs, at, 101, 100));
        assert!(book.0.lock().is_empty(), "who is refused leaves nothing behind");
        for _ in 0..PINS_MAX {
            assert!(book.book(ours, at, 0, 100));
        }
        assert!(!book.book(ours, at, 0, 100));
    }
}
