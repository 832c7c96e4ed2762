//! Lease arithmetic (R8): the grantor's end is never before the holder's.
//!
//! The holder counts from *before sending* the request; the grantor from the moment of the grant,
//! with one percent and 50 ms on top, which covers clocks whose rates differ.

use crate::limits::LEASE_MS_MAX;
use crate::time::{Now, nanos};
use std::time::Duration;

/// Fixed part of the guard.
const GUARD: Duration = Duration::from_millis(50);

/// Cuts a wish to what may be granted.
pub const fn granted_ms(wish_ms: u32) -> u32 {
    if wish_ms > LEASE_MS_MAX { LEASE_MS_MAX } else { wish_ms }
}

/// Until when the holder may use what it leased.
pub fn holder_end(before_sending: Now, lease_ms: u32) -> Now {
    before_sending.plus(Duration::from_millis(u64::from(lease_ms)))
}

/// Until when the grantor keeps its promise.
pub fn grantor_end(granted: Now, lease_ms: u32) -> Now {
    granted.plus(guarded(Duration::from_millis(u64::from(lease_ms))))
}

/// A span with its guard: 1.01 times, plus 50 ms.
pub fn guarded(span: Duration) -> Duration {
    Duration::from_nanos(nanos(span).saturating_add(nanos(span) / 100)).saturating_add(GUARD)
}

/// How long a new leader, who knows no leases, lets every owner wait before it frees (R9).
pub fn takeover_grace() -> Duration {
    guarded(Duration::from_millis(u64::from(LEASE_MS_MAX)))
}

/// Rest of a span that ends at `end`, in whole milliseconds, rounded up.
pub fn left_ms(now: Now, end: Now) -> u32 {
    u32::try_from(end.since(now).as_nanos().div_ceil(1_000_000)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves G5 for clocks up to 1 % apart: whatever the delay of the request, the holder stops
    /// first in true time.
    #[test]
    fn the_holder_stops_first() {
        for lease_ms in [1, 5, 100, 5_000, LEASE_MS_MAX] {
            for delay_ms in [0_u64, 1, 400] {
                // The holder's clock runs 0.5 % slow, the grantor's 0.5 % fast.
                let holder_true_ns = holder_end(Now(0), lease_ms).0 * 1000 / 995;
                let grantor_true_ns =
                    delay_ms * 1_000_000 + grantor_end(Now(0), lease_ms).0 * 1000 / 1005;
                assert!(grantor_true_ns > holder_true_ns, "{lease_ms} ms, delay {delay_ms} ms");
            }
        }
    }

    #[test]
    fn the_rest_is_rounded_up() {
        assert_eq!(left_ms(Now(0), Now(1)), 1);
        assert_eq!(left_ms(Now(5), Now(5)), 0);
        assert_eq!(left_ms(Now(9), Now(5)), 0);
    }
}
