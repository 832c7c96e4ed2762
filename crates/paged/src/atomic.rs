//! Atomics under one name: `std`'s, or loom's in a build with `--cfg loom`, so that the code that ships is
//! the code that the model checker explores. Nothing here is `SeqCst`: loom treats such accesses as
//! `AcqRel`, so no rule may need them.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering};
