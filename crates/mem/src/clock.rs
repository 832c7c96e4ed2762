//! The clock. `CLOCK_BOOTTIME` never steps, goes on while the machine sleeps, and is the same for all
//! processes of a host, so that a reader can compare it with the `serve_until` that the owner of a segment
//! wrote (R8, R10).

use mooncrate_core::Now;
use mooncrate_rt as rt;

/// Nanoseconds since the machine was started.
pub fn boottime() -> Now {
    Now(rt::boottime())
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
