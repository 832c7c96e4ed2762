//! page: the KV cache of running sequences, in blocks.

mod alloc;
#[cfg(not(loom))]
mod arena;
mod atomic;
#[cfg(not(loom))]
mod cache;
mod claims;
#[cfg(test)]
#[cfg(not(loom))]
mod conformance;
mod dtype;
mod geometry;
mod hash;
#[cfg(not(loom))]
mod host;
mod ids;
mod index;
mod layout;
#[cfg(all(test, loom))]
mod loom;
#[cfg(not(loom))]
mod manifest;
mod part;
mod policy;
mod pool;
mod records;
#[cfg(not(loom))]
mod remap;
pub mod replay;
mod sequence;
#[cfg(not(loom))]
mod spill;
#[cfg(not(loom))]
mod suspend;
mod tables;
mod tensor;
#[cfg(not(loom))]
mod view;

pub use alloc::{
    AllocError, Allocator, BLOCKS_MAX, Contiguity, FreeError, Handle, Magazine, ResizeError,
};
#[cfg(not(loom))]
pub use arena::{Arena, ArenaError, BlockCopy};
#[cfg(not(loom))]
pub use cache::{
    Admission, Admitted, Cache, CacheConfig, CacheError, CacheStats, Prompt, SequenceView,
    TOKENS_MAX,
};
pub use dtype::{DType, DlpackType};
pub use geometry::{
    ARENA_BYTES_MAX, AttentionSpec, BLOCK_BYTES_MAX, BLOCK_TOKENS_MAX, CacheIdentity, Geometry,
    GeometryError, Half, MlaSpec, TokenPlace,
};
pub use hash::{BlockHash, Identity};
#[cfg(not(loom))]
pub use host::HostArena;
pub use ids::BlockId;
pub use layout::{ArenaShape, Axis, Coordinate, CoordinateError, Layout, ShapeError, Strides};
#[cfg(not(loom))]
pub use manifest::{ResumeError, Ticket};
#[cfg(not(loom))]
pub use mooncrate_mem::Pages;
pub use part::{BlockRun, Order, Part, Runs, Step};
pub use policy::{Policy, UnknownPolicy};
pub use pool::{Full, Pool};
pub use records::Registered;
#[cfg(not(loom))]
pub use remap::{ArenaRef, Contiguous, Piece, RemapError};
pub use sequence::{Sequence, Start};
#[cfg(not(loom))]
pub use spill::{Fetch, PinnedBlocks, SpillKey};
#[cfg(not(loom))]
pub use suspend::{OwnBlock, Resuming, Suspension};
pub use tables::{
    BlockTable, CsrChange, CsrTable, NO_SLOT, NewTokens, SequenceBlocks, TableError, fill_slots,
};
pub use tensor::{RANK_MAX, Tensor};
#[cfg(not(loom))]
pub use view::{BlockView, PageOrder, View, ViewError};
