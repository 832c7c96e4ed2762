//! `Mutex`: one holder at a time.

use mooncrate_rt as rt;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{PoisonError, TryLockError};

/// How often a fair unlock looks whether who waited has the lock: some hundred microseconds.
const HANDOVER_LOOKS: u32 = 500;

/// Something that one thread at a time has.
#[derive(Default)]
pub struct Mutex<T: ?Sized> {
    /// Threads that found it taken and wait.
    waiting: AtomicU32,
    /// How often one of them got it; wraps.
    waited: AtomicU32,
    inner: std::sync::Mutex<T>,
}

impl<T> Mutex<T> {
    /// A free one.
    pub const fn new(value: T) -> Self {
        let (waiting, waited) = (AtomicU32::new(0), AtomicU32::new(0));
        Self { waiting, waited, inner: std::sync::Mutex::new(value) }
    }

    /// The value, of a lock that nobody else has.
    pub fn into_inner(self) -> T {
        self.inner.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits for it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        crate::before_lock();
        if let Some(guard) = self.try_lock() {
            return guard;
        }
        if let Some(guard) = crate::try_in_world(|| self.try_lock()) {
            return guard;
        }
        // Relaxed, here and below: the counts only tell a fair holder when to stop looking; the inner lock
        // orders the memory.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let held = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        self.waited.fetch_add(1, Ordering::Relaxed);
        MutexGuard { lock: self, held: Some(held) }
    }

    /// Takes it if it is free.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let held = match self.inner.try_lock() {
            Ok(held) => held,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(MutexGuard { lock: self, held: Some(held) })
    }

    /// The value, of a lock that nobody else can reach.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.try_lock() {
            Some(guard) => f.debug_tuple("Mutex").field(&&*guard).finish(),
            None => f.write_str("Mutex(taken)"),
        }
    }
}

/// A mutex that is held.
#[must_use = "a lock that is not kept is free at once"]
pub struct MutexGuard<'a, T: ?Sized> {
    pub(crate) lock: &'a Mutex<T>,
    /// `None` only inside of `Condvar`, while it waits.
    pub(crate) held: Option<std::sync::MutexGuard<'a, T>>,
}

impl<T: ?Sized> MutexGuard<'_, T> {
    /// Lets go, and gives way until one of those who wait has it; not for long, should it not come.
    pub fn unlock_fair(guard: Self) {
        let lock = guard.lock;
        let before = lock.waited.load(Ordering::Relaxed);
        drop(guard);
        // In a world the count of waiting threads stays 0: other threads run here.
        rt::step();
        for _ in 0..HANDOVER_LOOKS {
            let nobody = lock.waiting.load(Ordering::Relaxed) == 0;
            if nobody || lock.waited.load(Ordering::Relaxed) != before {
                return;
            }
            std::thread::yield_now();
        }
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.held.as_deref().expect("held, except while a condvar has the guard")
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.held.as_deref_mut().expect("held, except while a condvar has the guard")
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::thread;
    use std::time::Duration;

    #[test]
    fn every_change_counts() {
        let (sum, threads) = (Mutex::new(0_u64), 8);
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| (0..10_000).for_each(|_| *sum.lock() += 1));
            }
        });
        assert_eq!(*sum.lock(), threads * 10_000);
        assert_eq!(sum.waiting.load(Ordering::Relaxed), 0);
        assert_eq!(sum.into_inner(), threads * 10_000);
    }

    #[test]
    fn a_panic_of_the_holder_spoils_nothing() {
        let mut value = Mutex::new(1);
        thread::scope(|scope| {
            let died = scope.spawn(|| {
                let _held = value.lock();
                panic!("on purpose");
            });
            assert!(died.join().is_err());
        });
        assert_eq!(*value.lock(), 1);
        assert!(value.try_lock().is_some());
        assert_eq!(*value.get_mut(), 1);
    }

    #[test]
    fn a_taken_one_is_not_taken_again() {
        let value = Mutex::new(1);
        let held = value.lock();
        assert!(value.try_lock().is_none());
        assert_eq!(format!("{value:?} {held:?}"), "Mutex(taken) 1");
        drop(held);
        assert_eq!(format!("{value:?}"), "Mutex(1)");
    }

    /// A thread that locks again and again lets another one in at each fair unlock.
    #[test]
    fn a_fair_unlock_lets_the_waiting_in() {
        let (turns, over) = (Mutex::new(0_u32), AtomicBool::new(false));
        let rounds = thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..100 {
                    *turns.lock() += 1;
                }
                over.store(true, Ordering::Relaxed);
            });
            let mut rounds = 0_u32;
            while !over.load(Ordering::Relaxed) {
                let held = turns.lock();
                thread::sleep(Duration::from_micros(50));
                MutexGuard::unlock_fair(held);
                rounds += 1;
            }
            rounds
        });
        // Unfair, the holder would often be back first; the bound is wide because a machine may be busy.
        assert!(rounds < 5_000, "100 turns took {rounds} rounds");
    }
}
