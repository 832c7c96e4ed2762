//! Endurance: how many bytes a disk may be written per day. A token bucket that holds an hour's worth, so
//! that a burst passes and a day of bursts does not.

use mooncrate_core::Now;

const DAY_SECONDS: u64 = 24 * 3600;

/// What may still be written.
#[derive(Debug)]
pub(crate) struct Budget {
    per_day: Option<u64>,
    left: f64,
    filled: Now,
    /// The disk's own count of bytes written, when last looked at.
    written: u64,
}

impl Budget {
    pub(crate) fn new(per_day: Option<u64>, now: Now) -> Self {
        Self { per_day, left: Self::hour(per_day), filled: now, written: 0 }
    }

    fn hour(per_day: Option<u64>) -> f64 {
        per_day.map_or(0.0, |bytes| float(bytes / 24))
    }

    /// Whether something may be written now. `written` is the disk's own count, which knows what the
    /// backend writes beside the values.
    pub(crate) fn allows(&mut self, now: Now, written: u64) -> bool {
        let Some(per_day) = self.per_day else { return true };
        let spent = written.saturating_sub(self.written);
        let rate = float(per_day) / float(DAY_SECONDS);
        self.left += now.since(self.filled).as_secs_f64() * rate - float(spent);
        self.left = self.left.min(Self::hour(self.per_day));
        (self.filled, self.written) = (now, written);
        self.left > 0.0
    }
}

#[expect(clippy::cast_precision_loss, reason = "bytes per day: 53 bits are plenty")]
fn float(bytes: u64) -> f64 {
    bytes as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn an_hour_may_be_written_at_once_and_a_day_in_a_day() {
        let start = Now(1_000_000_000);
        let mut budget = Budget::new(Some(24_000), start);
        assert!(budget.allows(start, 0));
        assert!(budget.allows(start, 900));
        assert!(!budget.allows(start, 1000), "the hour's share is used up");
        assert!(budget.allows(start.plus(Duration::from_mins(6)), 1000), "a tenth is back");
        let day = start.plus(Duration::from_hours(24));
        assert!(budget.allows(day, 1000));
        assert!(!budget.allows(day, 2100), "rest does not add up to more than an hour");
        let mut free = Budget::new(None, start);
        assert!(free.allows(start, u64::MAX));
    }
}
