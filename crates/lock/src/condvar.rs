//! `Condvar`: waiting for a change of what a mutex guards.

use crate::MutexGuard;
use mooncrate_rt as rt;
use std::sync::PoisonError;
use std::time::Duration;

/// Where threads wait until somebody tells them to look again.
#[derive(Debug, Default)]
pub struct Condvar(std::sync::Condvar);

/// How a bounded wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waited(bool);

impl Waited {
    /// Whether the time was over. The change may have come all the same.
    pub const fn timed_out(self) -> bool {
        self.0
    }
}

impl Condvar {
    /// Nobody waits.
    pub const fn new() -> Self {
        Self(std::sync::Condvar::new())
    }

    /// Gives the lock up, waits to be woken, and has it again. Also wakes for no reason: look again.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        if self.wait_in_world(guard, None).is_some() {
            return;
        }
        let held = guard.held.take().expect("a guard holds its lock");
        guard.held = Some(self.0.wait(held).unwrap_or_else(PoisonError::into_inner));
    }

    /// The same, for so long at most.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, time: Duration) -> Waited {
        if let Some(over) = self.wait_in_world(guard, Some(time)) {
            return Waited(over);
        }
        let held = guard.held.take().expect("a guard holds its lock");
        let woken = self.0.wait_timeout(held, time);
        let (held, ended) = woken.unwrap_or_else(PoisonError::into_inner);
        guard.held = Some(held);
        Waited(ended.timed_out())
    }

    /// Waits in the world of this thread; whether the time is over. `None`: it is in no world.
    fn wait_in_world<T>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        time: Option<Duration>,
    ) -> Option<bool> {
        let world = rt::world()?;
        // No wake-up is lost in between: in a world another thread runs only where this one calls the world.
        drop(guard.held.take());
        let over = world.wait(self.queue(), time);
        guard.held = crate::try_in_world(|| guard.lock.try_lock())?.held.take();
        Some(over)
    }

    /// Names this in a world.
    fn queue(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Wakes one thread that waits.
    pub fn notify_one(&self) {
        if let Some(world) = rt::world() {
            world.wake(self.queue(), false);
        }
        self.0.notify_one();
    }

    /// Wakes all.
    pub fn notify_all(&self) {
        if let Some(world) = rt::world() {
            world.wake(self.queue(), true);
        }
        self.0.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mutex;
    use std::thread;

    #[test]
    fn who_waits_is_woken_and_has_the_lock() {
        let (ready, told) = (Mutex::new(0), Condvar::new());
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut seen = ready.lock();
                    while *seen == 0 {
                        told.wait(&mut seen);
                    }
                    *seen += 1;
                });
            }
            *ready.lock() = 1;
            told.notify_all();
        });
        assert_eq!(*ready.lock(), 5);
    }

    #[test]
    fn a_bounded_wait_ends() {
        let (nothing, never) = (Mutex::new(()), Condvar::new());
        let mut guard = nothing.lock();
        while !never.wait_for(&mut guard, Duration::from_millis(1)).timed_out() {}
        assert!(nothing.try_lock().is_none(), "it has the lock again");
    }
}
