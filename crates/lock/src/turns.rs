//! Turns: lets a test decide which of its threads runs, so that one seed is one order of events.
//!
//! A thread that takes turns says so with [`take`]. From then on its `hook` is called wherever it would sleep
//! in a lock or a condvar, and at each [`step`]; the hook lets another thread run and comes back when it is
//! this one's turn again. Threads that never said so, which is every thread outside of tests, pay one look
//! at a thread-local word before they sleep, and nothing where they do not.
//!
//! What must stay true: the word is memory of the thread and has no destructor, so a forked child is not
//! concerned.

use std::cell::Cell;
use std::time::Duration;

/// Why a turn ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The thread could go on.
    Step,
    /// Somebody else has the lock that it wants.
    Taken,
    /// It waits for a change, for so long at most.
    Waits(Option<Duration>),
}

/// Ends a turn, and comes back with the next one. Says whether the time of a bounded wait is over.
pub type Hook = fn(Why) -> bool;

thread_local! {
    static HOOK: Cell<Option<Hook>> = const { Cell::new(None) };
}

/// From now on this thread takes turns, or with `None` no longer.
pub fn take(hook: Option<Hook>) {
    HOOK.with(|cell| cell.set(hook));
}

/// A place where another thread may have its turn.
pub fn step() {
    if let Some(hook) = hook() {
        hook(Why::Step);
    }
}

pub(crate) fn hook() -> Option<Hook> {
    HOOK.with(Cell::get)
}

/// Tries until it works, one turn each; `None`: this thread takes no turns.
pub(crate) fn try_until<T>(mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
    let hook = hook()?;
    loop {
        if let Some(value) = attempt() {
            return Some(value);
        }
        hook(Why::Taken);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Condvar, Mutex, RwLock};
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;

    static TURNS: AtomicU32 = AtomicU32::new(0);

    /// Lets the others run in real time, and says after some turns that the time is over.
    fn count(why: Why) -> bool {
        thread::yield_now();
        let turns = TURNS.fetch_add(1, Ordering::Relaxed);
        matches!(why, Why::Waits(Some(_))) && turns >= 20
    }

    #[test]
    fn who_takes_turns_never_sleeps() {
        let (mutex, rwlock, told) = (Mutex::new(0), RwLock::new(0), Condvar::new());
        let (held, written) = (mutex.lock(), rwlock.write());
        thread::scope(|scope| {
            let taker = scope.spawn(|| {
                take(Some(count));
                step();
                let mut guard = mutex.lock();
                while !told.wait_for(&mut guard, Duration::from_hours(1)).timed_out() {}
                told.wait(&mut guard);
                drop(guard);
                *rwlock.write() += 1;
                let seen = *rwlock.read();
                take(None);
                step();
                seen
            });
            while TURNS.load(Ordering::Relaxed) < 5 {
                thread::yield_now();
            }
            drop(held);
            while TURNS.load(Ordering::Relaxed) < 30 {
                thread::yield_now();
            }
            drop(written);
            assert_eq!(taker.join().unwrap(), 1);
        });
    }
}
