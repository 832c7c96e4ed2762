//! Atomics under one name: `std`'s, or loom's in a build with `--cfg loom`, so that the code that
//! ships is the code that the model checker explores. Nothing here is ever `SeqCst`: loom treats
//! such accesses as `AcqRel`, so no rule may need them.

#[cfg(not(loom))]
pub use std::hint::spin_loop;
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicU64, Ordering, fence};

#[cfg(loom)]
pub use loom::hint::spin_loop;
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU64, Ordering, fence};
