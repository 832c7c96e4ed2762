//! The clock: the only place in the product that reads one. `CLOCK_BOOTTIME` never steps, goes on
//! while the machine sleeps, and is the same for all processes of a host, so that a reader can
//! compare it with the `serve_until` that the owner of a segment wrote (R8, R10).

use mooncrate_core::Now;
use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since the machine was started.
pub fn boottime() -> Now {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).expect("the machine was started in the past");
    let nanos = u64::try_from(time.tv_nsec).expect("the kernel gives 0 to 999,999,999");
    Now(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_moves_forward() {
        let first = boottime();
        std::thread::sleep(std::time::Duration::from_millis(2));
        let span = boottime().since(first);
        assert!((2..2_000).contains(&span.as_millis()), "{span:?}");
    }
}
