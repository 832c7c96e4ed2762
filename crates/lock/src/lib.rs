//! guard: locks without poison that a forked child can use.
//!
//! The locks of `std` with two differences: a panic of a holder spoils nothing for others, and a holder may
//! hand a mutex over to who waits ([`MutexGuard::unlock_fair`]).
//!
//! What must stay true: a lock is its own memory and nothing else. Python programs fork with threads
//! running, and the child opens a store of its own. Locks that keep their waiters in a table of the process
//! (as `parking_lot` does) leave the child with a table of threads that do not exist, whose memory new
//! threads then reuse.
//!
//! In a world of `mooncrate_rt` these locks wait in the world's time, and a call that blocks can be ended by
//! its caller ([`interrupt`]).
//!
//! Deliberately absent: what `std` has and nobody here needs, and any table.
#![forbid(unsafe_code)]

mod condvar;
pub mod interrupt;
mod mutex;
mod rwlock;

pub use condvar::{Condvar, Waited};
pub use mutex::{Mutex, MutexGuard};
pub use rwlock::RwLock;

/// In a world another thread may run before this one takes a lock.
fn before_lock() {
    if let Some(world) = mooncrate_rt::world() {
        world.before_lock();
    }
}

/// In a world: tries until the lock is free, while others run. `None`: this thread is in no world.
fn try_in_world<T>(mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
    let world = mooncrate_rt::world()?;
    loop {
        if let Some(value) = attempt() {
            return Some(value);
        }
        world.taken();
    }
}
