//! How long an elected master may lead, by its own reckoning.
//!
//! What must stay true: this ends before the election lease can have lapsed in etcd (G7). So it is
//! counted from *before sending* the keep-alive that was acknowledged, and shortened by a guard for
//! clocks whose rates differ. A process that was stopped and wakes finds its term over, because the
//! clock went on; it looks again after each step, so what it did in between is not answered.

use mooncrate_core::Now;
use mooncrate_core::time::nanos;
use mooncrate_wire::clock::boottime;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Fixed part of the guard; the rest is one fiftieth of the lease.
const GUARD: Duration = Duration::from_millis(50);

/// The time of one leader.
#[derive(Debug)]
pub(crate) struct Term {
    until: AtomicU64,
}

impl Term {
    pub(crate) fn new(until: Now) -> Self {
        Self { until: AtomicU64::new(until.0) }
    }

    /// Until when a lease of `ttl` lets its holder lead, if etcd acknowledged what was sent at `sent`.
    pub(crate) fn end(sent: Now, ttl: Duration) -> Now {
        let guard = ttl / 50 + GUARD;
        Now(sent.0.saturating_add(nanos(ttl.saturating_sub(guard))))
    }

    /// The lease was acknowledged once more.
    pub(crate) fn extend(&self, until: Now) {
        // Release: pairs with the Acquire in `lasts`.
        self.until.fetch_max(until.0, Ordering::Release);
    }

    /// It is over, whatever the lease says.
    pub(crate) fn close(&self) {
        // Release: pairs with the Acquire in `lasts`.
        self.until.store(0, Ordering::Release);
    }

    /// Whether it lasts now. Asked before and after every step.
    pub(crate) fn lasts(&self) -> bool {
        // Acquire: pairs with the Release in `extend` and `close`.
        boottime().0 < self.until.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves G7 for clocks up to 2 % apart: the leader stops before etcd may count its lease as over.
    #[test]
    fn a_term_ends_before_its_lease() {
        for ttl_s in [1, 2, 5, 60] {
            let ttl = Duration::from_secs(ttl_s);
            let end = Term::end(Now(7), ttl).0 - 7;
            // The leader's clock runs 2 % slow.
            assert!(end * 100 / 98 < nanos(ttl), "{ttl_s} s");
        }
        assert_eq!(Term::end(Now(7), Duration::ZERO), Now(7));
    }

    #[test]
    fn a_closed_term_stays_closed() {
        let term = Term::new(boottime().plus(Duration::from_mins(1)));
        assert!(term.lasts());
        term.close();
        assert!(!term.lasts());
        let over = Term::new(boottime());
        assert!(!over.lasts());
        over.extend(boottime().plus(Duration::from_mins(1)));
        assert!(over.lasts(), "the lease was alive all the time, so nobody else led");
    }
}
