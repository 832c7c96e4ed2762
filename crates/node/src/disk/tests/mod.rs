//! What a disk owes its master, told step by step: threads are left out, so that each race is staged.

mod failures;
mod hangs;
mod mounts;
mod orders;
mod rig;
