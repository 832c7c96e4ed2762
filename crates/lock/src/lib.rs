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
//! Threads of a simulation take turns at these locks ([`turns`]), and a call that blocks can be ended by its
//! caller ([`interrupt`]).
//!
//! Deliberately absent: what `std` has and nobody here needs, and any table.
#![forbid(unsafe_code)]

mod condvar;
pub mod interrupt;
mod mutex;
mod rwlock;
pub mod turns;

pub use condvar::{Condvar, Waited};
pub use mutex::{Mutex, MutexGuard};
pub use rwlock::RwLock;
