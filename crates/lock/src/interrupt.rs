//! Interrupts: the caller of a blocking call does not want its answer any more, as a Python program at Ctrl-C.
//!
//! ```text
//!   a door        under(hook, call) ──► the call waits, 64 ms at a time ──► hook: go on? ─┬─ yes: the next 64 ms
//!                                                                                         └─ no:  the call ends
//! ```
//!
//! The thread that calls is the one that waits, so nobody else can wake it; Python runs signal handlers in its
//! main thread only. Therefore a thread that can be interrupted waits in slices and asks its hook between two
//! of them. A thread without a hook (every thread of a server, every Rust program) pays one look at a
//! thread-local word for each wait, and a call that does not wait pays nothing.
//!
//! What must stay true: once the hook has said no, every further wait of the same call fails at once, so that a
//! call ends by its ordinary error paths, whatever it would have tried next. The hook may run code of others
//! (signal handlers) only where this thread holds no lock of ours ([`hold`]). Threads that help a call
//! ([`Team`]) end before the call does: nobody writes to the caller's memory afterwards.
//!
//! There is no clock here: whoever has read one passes it in.

use crate::{Condvar, Mutex};
use mooncrate_rt as rt;
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The longest wait of a thread that can be interrupted, before it asks again.
pub const SLICE: Duration = Duration::from_millis(64);

/// Where a hook is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The thread holds no lock: the hook may run anything, also calls of the same store.
    Open,
    /// The thread holds a lock: the hook may look, and run nothing of others.
    Locked,
}

/// Whether the call shall end.
pub type Hook = fn(Place) -> bool;

/// What this thread knows of the call that it makes. No destructor, so a forked child is not concerned.
#[derive(Clone, Copy)]
struct Call {
    hook: Option<Hook>,
    /// It works for the call of another thread, whose word is in `TEAM`.
    helps: bool,
    /// The hook has said that the call shall end.
    ended: bool,
    /// The clock when the hook was asked last, in nanoseconds; 0: never.
    asked_at: u64,
    /// What was slept since then.
    slept: Duration,
}

const NOBODY: Call =
    Call { hook: None, helps: false, ended: false, asked_at: 0, slept: Duration::ZERO };

thread_local! {
    static CALL: Cell<Call> = const { Cell::new(NOBODY) };
    static LOCKS: Cell<u32> = const { Cell::new(0) };
    static TEAM: RefCell<Option<Arc<Shared>>> = const { RefCell::new(None) };
}

/// Puts back what a scope has replaced, also when the work in it panics.
struct Restore(Call);

impl Drop for Restore {
    fn drop(&mut self) {
        CALL.set(self.0);
    }
}

/// Makes a call that the hook can end; its result, and whether the hook has ended it.
pub fn under<T>(hook: Hook, call: impl FnOnce() -> T) -> (T, bool) {
    let _restore = Restore(CALL.replace(Call { hook: Some(hook), ..NOBODY }));
    let result = call();
    (result, CALL.get().ended)
}

/// Does what must be done although the call is over, such as telling an owner that a put is given up. The work
/// brings a short deadline of its own: nothing here ends it.
pub fn finally<T>(work: impl FnOnce() -> T) -> T {
    let _restore = Restore(CALL.replace(NOBODY));
    work()
}

/// Whether the call of this thread can be interrupted.
pub fn is_on() -> bool {
    let call = CALL.get();
    call.hook.is_some() || call.helps
}

/// How long this thread may wait before it asks: all of `time`, or a slice of it.
pub fn slice(time: Duration) -> Duration {
    if is_on() { time.min(SLICE) } else { time }
}

/// Whether the call of this thread shall end, as far as that is known. Asks nobody.
pub fn ended() -> bool {
    let call = CALL.get();
    call.ended || (call.helps && is_told())
}

/// Asks whether the call of this thread shall end; after a wait that a signal cut short, or that was a slice.
pub fn ask() -> bool {
    let call = CALL.get();
    if call.ended || call.hook.is_none() {
        return ended();
    }
    ask_hook(call)
}

/// The same where time may have passed without a wait: asks once in a slice. `now` is the clock in nanoseconds.
pub fn ask_at(now: u64) -> bool {
    let mut call = CALL.get();
    if call.ended || call.hook.is_none() {
        return ended();
    }
    if call.asked_at == 0 {
        call.asked_at = now;
        CALL.set(call);
        return false;
    }
    if u128::from(now.saturating_sub(call.asked_at)) < SLICE.as_nanos() {
        return false;
    }
    call.asked_at = now;
    ask_hook(call)
}

/// Sleeps, unless the call shall end; whether it shall.
pub fn sleep(time: Duration) -> bool {
    if !is_on() {
        rt::sleep(time);
        return false;
    }
    let mut left = time;
    loop {
        if ended() {
            return true;
        }
        if left.is_zero() {
            return false;
        }
        let step = left.min(SLICE);
        rt::sleep(step);
        left -= step;
        let mut call = CALL.get();
        call.slept += step;
        CALL.set(call);
        // Many short sleeps are one long one: asking costs more than some of them.
        if call.slept >= SLICE {
            ask();
        }
    }
}

fn ask_hook(mut call: Call) -> bool {
    let Some(hook) = call.hook else { return false };
    call.slept = Duration::ZERO;
    CALL.set(call);
    let place = if LOCKS.get() == 0 { Place::Open } else { Place::Locked };
    // The hook may make calls of its own; `under` leaves ours as it was.
    call.ended = hook(place);
    CALL.set(call);
    call.ended
}

fn is_told() -> bool {
    // Relaxed: a flag that orders nothing.
    let told = |shared: &Arc<Shared>| shared.stop.load(Ordering::Relaxed);
    TEAM.with_borrow(|team| team.as_ref().is_some_and(told))
}

/// Says that this thread holds a lock of ours while it waits for a peer, as long as this lives.
#[derive(Debug)]
#[must_use = "it counts as long as it lives"]
pub struct Held(());

/// See [`Held`].
pub fn hold() -> Held {
    LOCKS.set(LOCKS.get() + 1);
    Held(())
}

impl Drop for Held {
    fn drop(&mut self) {
        LOCKS.set(LOCKS.get() - 1);
    }
}

/// Threads that help the call of this one: they are told when it shall end, and waited for.
#[derive(Debug)]
pub struct Team(Option<Arc<Shared>>);

/// The place of one thread in a team, from before it starts until it has ended.
#[derive(Debug)]
pub struct Helper(Option<Arc<Shared>>);

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    working: Mutex<usize>,
    /// Somebody has ended.
    ended: Condvar,
}

impl Team {
    /// A team for the call of this thread; one without a word where nobody can interrupt it.
    pub fn new() -> Self {
        Self(is_on().then(Arc::default))
    }

    /// A place for one more thread.
    pub fn helper(&self) -> Helper {
        if let Some(shared) = &self.0 {
            *shared.working.lock() += 1;
        }
        Helper(self.0.clone())
    }

    /// Waits until all threads have ended, and tells them when the call shall. They are joined afterwards.
    pub fn wait(&self) {
        let Some(shared) = &self.0 else { return };
        loop {
            if ended() {
                // Relaxed, as in `is_told`.
                shared.stop.store(true, Ordering::Relaxed);
            }
            let mut working = shared.working.lock();
            if *working == 0 {
                return;
            }
            let waited = shared.ended.wait_for(&mut working, SLICE);
            // The hook is asked without the lock.
            drop(working);
            if waited.timed_out() {
                ask();
            }
        }
    }
}

impl Default for Team {
    fn default() -> Self {
        Self::new()
    }
}

impl Helper {
    /// Works for the call of the team; in the helping thread.
    pub fn work<T>(self, work: impl FnOnce() -> T) -> T {
        let Some(shared) = &self.0 else { return work() };
        TEAM.set(Some(Arc::clone(shared)));
        CALL.set(Call { helps: true, ..NOBODY });
        work()
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        if let Some(shared) = &self.0 {
            *shared.working.lock() -= 1;
            shared.ended.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    thread_local! {
        static ASKED: Cell<u32> = const { Cell::new(0) };
        static PLACES: Cell<Option<Place>> = const { Cell::new(None) };
    }

    fn asked(place: Place) -> u32 {
        PLACES.set(Some(place));
        ASKED.set(ASKED.get() + 1);
        ASKED.get()
    }

    fn never(place: Place) -> bool {
        asked(place);
        false
    }

    fn at_the_second(place: Place) -> bool {
        asked(place) >= 2
    }

    #[test]
    fn a_sleep_ends_when_the_hook_says_so_and_so_does_every_later_one() {
        let hour = Duration::from_hours(1);
        let (slept, ended) = under(at_the_second, || (sleep(hour), sleep(hour), ask_at(7)));
        assert_eq!((slept, ended), ((true, true, true), true));
        assert_eq!(ASKED.get(), 2, "a call that is over asks no more");
        assert!(!ended_outside(), "the next call begins anew");
    }

    fn ended_outside() -> bool {
        is_on() || ended() || ask()
    }

    #[test]
    fn short_sleeps_ask_as_rarely_as_long_ones() {
        let ms = Duration::from_millis(1);
        let ((), ended) = under(never, || (0..130).for_each(|_| assert!(!sleep(ms))));
        assert!(!ended);
        assert_eq!(ASKED.get(), 2);
    }

    #[test]
    fn the_clock_asks_once_in_a_slice() {
        let slice = u64::try_from(SLICE.as_nanos()).unwrap();
        let times = [5, 5 + slice - 1, 5 + slice, 6 + slice, 5 + 2 * slice];
        under(never, || times.iter().for_each(|now| assert!(!ask_at(*now))));
        assert_eq!(ASKED.get(), 2);
    }

    #[test]
    fn what_must_be_done_is_done_although_the_call_is_over() {
        let (done, _) = under(at_the_second, || {
            assert!(sleep(Duration::from_hours(1)));
            finally(|| (is_on(), ask(), sleep(Duration::from_millis(1))))
        });
        assert_eq!(done, (false, false, false));
    }

    #[test]
    fn a_hook_knows_whether_a_lock_is_held() {
        under(never, || {
            let held = (hold(), hold());
            ask();
            assert_eq!(PLACES.get(), Some(Place::Locked));
            drop(held);
            ask();
            assert_eq!(PLACES.get(), Some(Place::Open));
        });
    }

    /// A signal handler may use the store: its call is one of its own.
    #[test]
    fn a_hook_may_make_calls() {
        fn calls(_: Place) -> bool {
            let (slept, ended) = under(at_the_second, || sleep(Duration::from_hours(1)));
            assert!(slept && ended);
            false
        }
        let (over, ended) = under(calls, || ask() || ended());
        assert!(!over && !ended);
    }

    /// The caller has done its own share and waits for the others, who sleep; also those who help a helper.
    #[test]
    fn helpers_are_told_and_waited_for() {
        let ((), ended) = under(at_the_second, || {
            let team = Team::new();
            thread::scope(|scope| {
                let helper = team.helper();
                let other = scope.spawn(move || {
                    helper.work(|| {
                        let nested = Team::new();
                        thread::scope(|scope| {
                            let helper = nested.helper();
                            scope.spawn(move || {
                                assert!(helper.work(|| sleep(Duration::from_hours(1))));
                            });
                            nested.wait();
                        });
                        sleep(Duration::from_hours(1))
                    })
                });
                team.wait();
                assert!(other.join().unwrap());
            });
        });
        assert!(ended);
    }

    #[test]
    fn a_team_without_a_hook_and_a_helper_that_never_started_hold_nobody_up() {
        Team::new().wait();
        under(never, || {
            let team = Team::new();
            drop(team.helper());
            team.wait();
        });
        assert_eq!(ASKED.get(), 0);
    }
}
