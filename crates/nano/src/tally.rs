//! What a rank counts.

use crate::owner::Owner;
use mooncrate_core::tally::{Count, Spread, SpreadNow};
use std::time::Duration;

/// Counters that calls add to.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) plan: Spread,
    pub(crate) push: Spread,
    pub(crate) commit: Spread,
    pub(crate) get: Spread,
    pub(crate) refused: Count,
    pub(crate) bytes_tx: Count,
    pub(crate) bytes_rx: Count,
}

/// What a rank has done since it started. Integers only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Plans made.
    pub plans: u64,
    /// Mean time to make one, in microseconds.
    pub t_plan_us: u64,
    /// Plans that were refused for want of room, or for another reason.
    pub oom_count: u64,
    /// Bytes pushed into heaps.
    pub bytes_tx: u64,
    /// Bytes read out of heaps.
    pub bytes_rx: u64,
    /// Lives that ended in this rank's heap: evicted, removed or given up.
    pub freed_count: u64,
    /// Values of this rank's heap that were evicted to make room.
    pub evict_count: u64,
    /// Victims that were pinned, and stayed.
    pub evict_in_use_retry: u64,
    /// Puts that the watchdog ended in this rank's heap; not those that their own process gave up.
    pub stuck_put_reclaimed: u64,
    /// Lives that wait for a reader, or in quarantine for their producer.
    pub waiting: u64,
}

/// How long calls that succeeded took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timings {
    /// Plans made.
    pub plan: SpreadNow,
    /// Parts of values written by [`crate::Nano::push`]; what kernels of the caller push is not seen here.
    pub push: SpreadNow,
    /// Plans committed.
    pub commit: SpreadNow,
    /// Values copied out.
    pub get: SpreadNow,
}

impl Tally {
    pub(crate) fn timings(&self) -> Timings {
        Timings {
            plan: self.plan.now(),
            push: self.push.now(),
            commit: self.commit.now(),
            get: self.get.now(),
        }
    }

    pub(crate) fn read(&self, owner: &Owner) -> Stats {
        let plan = self.plan.now();
        let mean = Duration::from_nanos(plan.sum_ns.checked_div(plan.count).unwrap_or(0));
        Stats {
            plans: plan.count,
            t_plan_us: u64::try_from(mean.as_micros()).unwrap_or(u64::MAX),
            oom_count: self.refused.value(),
            bytes_tx: self.bytes_tx.value(),
            bytes_rx: self.bytes_rx.value(),
            freed_count: owner.counts.freed.value(),
            evict_count: owner.counts.evicted.value(),
            evict_in_use_retry: owner.counts.in_use.value(),
            stuck_put_reclaimed: owner.counts.rescued.value(),
            waiting: owner.waiting() as u64,
        }
    }
}
