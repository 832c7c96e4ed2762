//! Reading a directory by several threads at a start. Each **lane** is a thread that reads and decodes parts
//! of it; the calling thread takes over what they found, in the order of the parts: of two copies of a
//! record the order decides which one counts.
//!
//! ```text
//!   parts   0 1 2 3 4 5 6 7 …
//!   lane    └─┐ reads, decodes, verifies         a few parts ahead of the taker, not more
//!   lane      └─┐
//!   caller  ◄─0─◄─1─◄─ takes over                files are changed, records are told
//! ```
//!
//! What must stay true: what is taken over does not depend on how many lanes there are. With one lane there
//! is no thread, so that a simulation can repeat what it saw. Lanes end with the call, also when it fails.

use crate::disk::Disk;
use mooncrate_lock::{Condvar, Mutex};
use mooncrate_rt as rt;
use std::collections::VecDeque;
use std::thread::{Builder, scope};
use std::time::Duration;

/// Lanes that decode and take checksums: more would wait for the one that takes over.
const DECODING_MAX: usize = 8;
/// Parts that may be done and wait to be taken, beside those that lanes work on.
const AHEAD: usize = 4;
/// Nobody waits longer without looking.
const LOOK: Duration = Duration::from_secs(1);

/// Lanes for work that a core is busy with.
pub(crate) fn decoding(disk: &dyn Disk) -> usize {
    disk.lanes().min(rt::cores()).clamp(1, DECODING_MAX)
}

/// Lanes for work that mostly waits for the disk.
pub(crate) fn waiting(disk: &dyn Disk) -> usize {
    disk.lanes().max(1)
}

/// What the lanes and the taker share.
struct Line<I, R> {
    parts: I,
    /// All parts were given out.
    over: bool,
    /// Nobody wants more.
    stop: bool,
    /// The number of the part that is taken next.
    taken: usize,
    /// What became of that part and of those behind it that were given out.
    done: VecDeque<Option<R>>,
}

/// Works on parts by so many lanes, and takes the results over in order. The first error ends it.
pub(crate) fn in_order<T, R, E>(
    lanes: usize,
    parts: impl Iterator<Item = T> + Send,
    work: impl Fn(T) -> R + Sync,
    mut take: impl FnMut(R) -> Result<(), E>,
) -> Result<(), E>
where
    R: Send,
{
    if lanes.min(rt::helpers()) <= 1 {
        let mut parts = parts;
        return parts.try_for_each(|part| take(work(part)));
    }
    let line = Line { parts, over: false, stop: false, taken: 0, done: VecDeque::new() };
    let shared = Shared {
        line: Mutex::new(line),
        ahead: lanes + AHEAD,
        ready: Condvar::new(),
        room: Condvar::new(),
    };
    scope(|scope| {
        // A taker that panics must not leave lanes that wait for it.
        let _end = Stop(&shared);
        let mut started = 0;
        for _ in 0..lanes {
            let thread = Builder::new().name("ssd-lane".into());
            match thread.spawn_scoped(scope, || shared.lane(&work)) {
                Ok(_) => started += 1,
                // Fewer do it, too.
                Err(error) => {
                    tracing::warn!(%error, "fewer threads read the directory");
                    break;
                }
            }
        }
        if started == 0 {
            let mut line = shared.line.lock();
            return line.parts.try_for_each(|part| take(work(part)));
        }
        while let Some(result) = shared.next() {
            take(result)?;
        }
        Ok(())
    })
}

struct Shared<I, R> {
    line: Mutex<Line<I, R>>,
    ahead: usize,
    /// The next part is done.
    ready: Condvar,
    /// There is room for another one.
    room: Condvar,
}

impl<I: Iterator, R> Shared<I, R> {
    fn lane(&self, work: impl Fn(I::Item) -> R) {
        // A lane that panics ends all; the scope passes the panic on.
        let end = Stop(self);
        while let Some((number, part)) = self.give() {
            let result = work(part);
            let mut line = self.line.lock();
            // It was not taken yet, because it was not done.
            let at = number - line.taken;
            line.done[at] = Some(result);
            if at == 0 {
                self.ready.notify_one();
            }
        }
        std::mem::forget(end);
    }

    /// The next part to work on, as soon as it is not too far ahead.
    fn give(&self) -> Option<(usize, I::Item)> {
        let mut line = self.line.lock();
        loop {
            if line.stop || line.over {
                return None;
            }
            if line.done.len() < self.ahead {
                let Some(part) = line.parts.next() else {
                    line.over = true;
                    self.ready.notify_one();
                    return None;
                };
                let number = line.taken + line.done.len();
                line.done.push_back(None);
                return Some((number, part));
            }
            self.room.wait_for(&mut line, LOOK);
        }
    }

    /// What became of the next part; `None` after the last one.
    fn next(&self) -> Option<R> {
        let mut line = self.line.lock();
        loop {
            if let Some(result) = line.done.front_mut().and_then(Option::take) {
                line.done.pop_front();
                line.taken += 1;
                self.room.notify_one();
                return Some(result);
            }
            if line.stop || (line.over && line.done.is_empty()) {
                return None;
            }
            self.ready.wait_for(&mut line, LOOK);
        }
    }
}

/// Ends all lanes when it is dropped.
struct Stop<'a, I, R>(&'a Shared<I, R>);

impl<I, R> Drop for Stop<'_, I, R> {
    fn drop(&mut self) {
        self.0.line.lock().stop = true;
        self.0.ready.notify_all();
        self.0.room.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn all_parts_are_taken_in_order_by_any_number_of_lanes() {
        for lanes in [0, 1, 2, 3, 16] {
            for parts in [0, 1, 2, 7, 500] {
                let mut taken = Vec::new();
                let slow_at_times = |part: u64| {
                    if part.is_multiple_of(7) {
                        std::thread::yield_now();
                    }
                    part * part
                };
                let take = |result| {
                    taken.push(result);
                    Ok::<(), Infallible>(())
                };
                in_order(lanes, 0..parts, slow_at_times, take).unwrap();
                assert!(taken.iter().copied().eq((0..parts).map(|part| part * part)), "{lanes}");
            }
        }
    }

    #[test]
    fn the_first_error_ends_it_and_lanes_do_not_run_far_ahead() {
        for lanes in [1, 4] {
            let begun = AtomicUsize::new(0);
            let work = |part: usize| {
                begun.fetch_add(1, Ordering::Relaxed);
                part
            };
            let ended =
                in_order(lanes, 0..1000, work, |part| if part < 20 { Ok(()) } else { Err(part) });
            assert_eq!(ended, Err(20));
            assert!(begun.into_inner() <= 21 + lanes + AHEAD);
        }
    }

    #[test]
    fn a_panic_of_a_lane_or_of_the_taker_ends_all() {
        let take = |()| Ok::<(), Infallible>(());
        let work = |part: usize| assert!(part != 50, "as asked");
        let died = catch_unwind(AssertUnwindSafe(|| in_order(4, 0..1000, work, take)));
        assert!(died.is_err());
        let take = |part| {
            assert!(part != 50, "as asked");
            Ok::<(), Infallible>(())
        };
        let died = catch_unwind(AssertUnwindSafe(|| in_order(4, 0..1000, |part| part, take)));
        assert!(died.is_err());
    }
}
