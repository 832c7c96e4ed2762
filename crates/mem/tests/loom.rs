//! The word and its fences under weak memory: loom tries every order that the memory model allows,
//! with a bounded number of preemptions. What must hold is checked on the code that ships
//! ([`AtomicWord`], `before_first_byte`); what must fail is written out here, to prove that the
//! checker would have noticed.
//!
//! Run with `RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 cargo test -p mooncrate-mem --test loom
//! --release`, in a target folder of its own.

#[cfg(loom)]
#[path = "loom/models.rs"]
mod models;
