//! page: the KV cache of running sequences, in blocks.

mod alloc;
mod atomic;
mod hash;
mod ids;
mod index;
#[cfg(all(test, loom))]
mod loom;
mod pool;
mod records;

pub use alloc::{
    AllocError, Allocator, BLOCKS_MAX, Contiguity, FreeError, Handle, Magazine, ResizeError,
};
pub use hash::{BlockHash, Identity};
pub use ids::BlockId;
pub use pool::{Full, Pool};
pub use records::Registered;
