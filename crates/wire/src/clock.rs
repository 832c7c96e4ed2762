//! The clock of everything that waits on a socket. `CLOCK_BOOTTIME`: it never steps, and it goes on
//! while the machine sleeps, as leases need it. It stands here as well as in `mem`, because the
//! master speaks but may not link memory code; both read the same kernel clock, so readings of one
//! host compare.

use mooncrate_core::time::{Deadline, Now, nanos};
use mooncrate_rt as rt;
use std::time::Duration;

/// The longest that a caller waits beyond what it allows its peer.
const ON_ITS_WAY: Duration = Duration::from_millis(250);

/// The clock now.
pub fn boottime() -> Now {
    Now(rt::boottime())
}

/// Seconds of wall time since 1970, for the end of grants, which two machines compare. No lease and
/// no deadline hangs on it.
pub fn wall_seconds() -> u32 {
    u32::try_from(rt::wall_time() / 1_000_000_000).unwrap_or(u32::MAX)
}

/// In a frame: the caller has no deadline.
pub const NO_DEADLINE_MS: u32 = u32::MAX;

/// What is left until `deadline`, as a frame carries it: whole milliseconds, rounded up, so that a
/// peer never gives up while the caller would still take the answer.
pub fn budget_ms(deadline: Deadline, now: Now) -> u32 {
    if deadline == Deadline::NEVER {
        return NO_DEADLINE_MS;
    }
    let left = deadline.left(now).as_nanos().div_ceil(1_000_000);
    u32::try_from(left).unwrap_or(NO_DEADLINE_MS)
}

/// When a peer must be done for a caller that waits until `deadline`: an eighth of the time earlier, or
/// 250 ms. If both gave up at the same moment it would be a race who notices first, and a caller that
/// wins it does not know whether its peer is slow or gone.
pub fn answer_by(deadline: Deadline, now: Now) -> Deadline {
    if deadline == Deadline::NEVER {
        return deadline;
    }
    let way = (deadline.left(now) / 8).min(ON_ITS_WAY);
    Deadline(deadline.0.saturating_sub(nanos(way)))
}

/// The deadline of a frame that arrived `now` with this budget.
pub fn deadline_of(budget_ms: u32, now: Now) -> Deadline {
    if budget_ms == NO_DEADLINE_MS {
        return Deadline::NEVER;
    }
    now.deadline_in(Duration::from_millis(u64::from(budget_ms)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_advances() {
        let before = boottime();
        assert!(before.0 > 0);
        assert!(boottime() >= before);
    }

    #[test]
    fn a_peer_is_done_before_its_caller_gives_up() {
        let second = 1_000_000_000;
        assert_eq!(answer_by(Deadline(second), Now(0)), Deadline(second / 8 * 7));
        assert_eq!(
            answer_by(Deadline(60 * second), Now(0)),
            Deadline(59 * second + second / 4 * 3)
        );
        assert_eq!(answer_by(Deadline(5), Now(9)), Deadline(5));
        assert_eq!(answer_by(Deadline::NEVER, Now(9)), Deadline::NEVER);
    }

    #[test]
    fn a_budget_is_rounded_up_and_never_stays_never() {
        assert_eq!(budget_ms(Deadline::NEVER, Now(5)), NO_DEADLINE_MS);
        assert_eq!(deadline_of(NO_DEADLINE_MS, Now(5)), Deadline::NEVER);
        assert_eq!(budget_ms(Deadline(1_000_001), Now(0)), 2);
        assert_eq!(budget_ms(Deadline(5), Now(9)), 0);
        assert_eq!(deadline_of(2, Now(7)), Deadline(2_000_007));
    }
}
