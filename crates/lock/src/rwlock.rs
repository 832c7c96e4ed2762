//! `RwLock`: many readers, or one writer.

use std::sync::{PoisonError, RwLockReadGuard, RwLockWriteGuard, TryLockError, TryLockResult};

/// Something that many threads read, or one changes.
#[derive(Debug, Default)]
pub struct RwLock<T: ?Sized>(std::sync::RwLock<T>);

impl<T> RwLock<T> {
    /// A free one.
    pub const fn new(value: T) -> Self {
        Self(std::sync::RwLock::new(value))
    }

    /// The value, of a lock that nobody else has.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits until nobody writes. A thread that reads already must not read again: a writer may be between.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        crate::before_lock();
        if let Some(guard) = free(self.0.try_read()) {
            return guard;
        }
        if let Some(guard) = crate::try_in_world(|| free(self.0.try_read())) {
            return guard;
        }
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until nobody else has it.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        crate::before_lock();
        if let Some(guard) = free(self.0.try_write()) {
            return guard;
        }
        if let Some(guard) = crate::try_in_world(|| free(self.0.try_write())) {
            return guard;
        }
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value, of a lock that nobody else can reach.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

fn free<G>(tried: TryLockResult<G>) -> Option<G> {
    match tried {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn readers_see_whole_writes() {
        let pair = RwLock::new((0, 0));
        thread::scope(|scope| {
            scope.spawn(|| (1..5_000).for_each(|n| *pair.write() = (n, n)));
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..5_000 {
                        let (left, right) = *pair.read();
                        assert_eq!(left, right);
                    }
                });
            }
        });
        assert_eq!(pair.into_inner(), (4_999, 4_999));
    }

    #[test]
    fn a_panic_of_the_writer_spoils_nothing() {
        let value = RwLock::new(1);
        thread::scope(|scope| {
            let died = scope.spawn(|| {
                let _held = value.write();
                panic!("on purpose");
            });
            assert!(died.join().is_err());
        });
        *value.write() += 1;
        assert_eq!(*value.read(), 2);
    }
}
