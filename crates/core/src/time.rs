//! Time as values. `Now` is nanoseconds of a clock that never steps and does not stand still while
//! the machine sleeps (`CLOCK_BOOTTIME`); core never reads it.

use std::time::Duration;

/// A reading of the monotonic clock, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Now(pub u64);

/// A point in time after which nobody waits any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Deadline(pub u64);

impl Now {
    /// This reading plus `span`, at the end of time if that overflows.
    #[must_use]
    pub fn plus(self, span: Duration) -> Self {
        Self(self.0.saturating_add(nanos(span)))
    }

    /// Time since `earlier`; zero if that lies ahead.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The deadline `span` from now.
    pub fn deadline_in(self, span: Duration) -> Deadline {
        Deadline(self.plus(span).0)
    }
}

impl Deadline {
    /// No end: for callers that hold no clock, such as tests.
    pub const NEVER: Self = Self(u64::MAX);

    /// Whether it is over.
    pub fn passed(self, now: Now) -> bool {
        now.0 >= self.0
    }

    /// What is left, zero when it is over.
    pub fn left(self, now: Now) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(now.0))
    }
}

/// A span in nanoseconds, saturating after 584 years.
pub fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
