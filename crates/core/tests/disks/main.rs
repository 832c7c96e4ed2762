//! Stories of disks: what is evicted from memory stays on them, their owners evict there, and disks that
//! come back bring nothing that was removed. The simulator does the same at random.

#![expect(clippy::unwrap_used, reason = "a test")]

mod offload;
mod returns;
mod rig;
mod tells;
mod vram;
