//! Clocks that disagree: each host has a monotonic clock with an offset and a rate of its own, and a
//! wall clock that somebody sets by an hour now and then.

use crate::Nanos;
use mooncrate_core::Now;
use mooncrate_core::canary::{self, Canary};
use mooncrate_core::rng::Rng;

/// Two of these differ by at most 0.8 %, which the guard of one percent covers.
const RATE_PPM_MAX: u64 = 4_000;
/// A step of the wall clock.
pub const WALL_STEP: u64 = 3_600_000_000_000;

/// Far enough from zero to be set back often.
const WALL_START: u64 = 1000 * WALL_STEP;

/// The clocks of one host.
#[derive(Clone, Debug)]
pub struct Clock {
    offset: u64,
    rate_ppm: i64,
    /// Wall clock minus monotonic clock.
    wall: u64,
}

impl Clock {
    /// Clocks with any offset and a rate within ±0.4 %.
    pub fn draw(rng: &mut Rng) -> Self {
        let offset = 1_000_000_000 + rng.below(1 << 40);
        let rate = i64::try_from(rng.below(2 * RATE_PPM_MAX + 1)).expect("a small number");
        let drift = i64::try_from(RATE_PPM_MAX).expect("a small number");
        Self { offset, rate_ppm: rate - drift, wall: WALL_START }
    }

    /// What the monotonic clock says at the true time `at`.
    pub fn mono(&self, at: Nanos) -> Now {
        let at = i64::try_from(at).expect("runs end after hours, not centuries");
        let local = at + at / 1_000_000 * self.rate_ppm;
        Now(self.offset + u64::try_from(local).expect("a rate near one keeps time positive"))
    }

    /// What leases and waits are reckoned with: the monotonic clock, as R8 asks. Canary 3 takes the
    /// wall clock instead.
    pub fn leases(&self, at: Nanos) -> Now {
        let mono = self.mono(at);
        if canary::on(Canary::WallClockLease) { Now(mono.0 + self.wall) } else { mono }
    }

    /// What the wall clock says at the true time `at`, in nanoseconds.
    pub fn wall_time(&self, at: Nanos) -> u64 {
        self.mono(at).0 + self.wall
    }

    /// Sets the wall clock by an hour. Canary 3 sets it forward only: backward steps stop a master's
    /// whole clockwork, which is noticed at once and proves less.
    pub fn step_wall(&mut self, forward: bool) {
        let forward = forward || canary::on(Canary::WallClockLease);
        self.wall = if forward { self.wall + WALL_STEP } else { self.wall - WALL_STEP };
    }

    /// Sets the wall clock right again.
    pub fn right_wall(&mut self) {
        self.wall = WALL_START;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_stay_within_the_guard() {
        for seed in 0..50 {
            let clock = Clock::draw(&mut Rng::new(seed));
            let span = clock.mono(1_000_000_000_000).since(clock.mono(0)).as_nanos();
            assert!((996_000_000_000..=1_004_000_000_000).contains(&span), "{span}");
        }
    }

    #[test]
    fn the_wall_steps_and_the_monotonic_clock_does_not() {
        let mut clock = Clock::draw(&mut Rng::new(1));
        let before = clock.mono(5);
        clock.step_wall(true);
        assert_eq!(clock.mono(5), before);
        assert_eq!(clock.leases(5), before, "no canary is on");
    }
}
