//! page: the KV cache of running sequences, cut into blocks of equal size. Sequences grow block by block, share
//! the blocks of equal prefixes, fork, and leave their blocks behind as a cache for later sequences.
//!
//! ```text
//!   scheduler, model backend                            attention kernels
//!        │ ids, tokens                                       ▲ block tables, slots, views
//!        ▼                                                   │
//!   Cache     sequences by id ────────────────────────► tables, view, remap
//!        │                                                   ▲
//!        ▼                                                   │ strides
//!   Sequence  its block table, its tokens, their names  ArenaShape = Geometry (what a token stores)
//!        │                                                   │    + Layout (in which order)
//!        ▼ take, publish, match, release                     ▼
//!   Pool      each block's life, references, name       Arena     the bytes, on the host or a GPU
//!    ├─ bits     which blocks are free, lock-free        └─ claims   many readers or one writer per block
//!    ├─ index    name ─► block, lock-free
//!    └─ lists    cached blocks in the order of their eviction, a lock each
//!
//!   Allocator the bits alone, with handles that prove ownership: for engines with block tables of their own
//! ```
//!
//! Each layer is usable without the ones above it. [`Cache`] keeps sequences under string ids. [`Sequence`] with a
//! [`Pool`] is for engines that keep their own requests. [`Allocator`] hands out blocks and knows nothing of
//! tokens. [`Arena`] holds bytes and knows nothing of sequences. [`kernels`] move blocks on a GPU.
//!
//! ```
//! use mooncrate_paged::{
//!     ArenaShape, AttentionSpec, BlockId, Cache, CacheConfig, DType, Geometry, HostArena, Layout,
//!     Order, Pages, Part, Prompt,
//! };
//! use std::sync::Arc;
//!
//! let geometry = Geometry::attention(AttentionSpec {
//!     layers: 2,
//!     kv_heads: 4,
//!     head_dim: 8,
//!     block_tokens: 16,
//!     dtype: DType::F16,
//! })?;
//! let shape = ArenaShape::new(geometry, Layout::Nhd, 64)?;
//! let arena = HostArena::anonymous(shape, 64, Pages::Small)?;
//! let cache = Cache::new(CacheConfig::new("tiny"), Arc::new(arena))?;
//!
//! // A prompt of 40 tokens: two full blocks and one with 8 tokens.
//! let prompt: Vec<u32> = (0..40).collect();
//! assert_eq!(cache.allocate_for("first", Prompt::Tokens(&prompt))?.blocks, 3);
//! let mut table: Vec<BlockId> = Vec::new();
//! cache.block_table("first", &mut table)?;
//! let kv = vec![7; geometry.block_bytes() as usize];
//! for block in &table {
//!     cache.arena().write(&Part::block(*block), Order::Tokens, &kv)?;
//! }
//! // The KV of all 40 tokens is in place. Only now can others find the two full blocks.
//! assert_eq!(cache.publish("first", 40)?, 2);
//!
//! // The same prefix, another ending: 32 tokens need not be computed.
//! let other: Vec<u32> = (0..32).chain([90, 91]).collect();
//! assert_eq!(cache.allocate_for("second", Prompt::Tokens(&other))?.cached_tokens, 32);
//!
//! // A parallel sample: full blocks are shared, the last one is copied.
//! cache.fork("first", "sample")?;
//! let mut sample = Vec::new();
//! cache.block_table("sample", &mut sample)?;
//! assert_eq!(sample[..2], table[..2]);
//! assert_ne!(sample[2], table[2]);
//!
//! for id in ["first", "second", "sample"] {
//!     cache.free_for(id)?;
//! }
//! // The two named blocks stay, until their room is needed.
//! assert_eq!(cache.stats().cached_blocks, 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! How to put it into an engine, block sizes, limits and errors: `docs/paged.md`.
//!
//! Local words:
//!
//! * A **block** is room for the KV of a fixed number of tokens, in all layers; engines also call it a page.
//!   A [`BlockId`] is its index in the arena.
//! * A **sequence** is a list of tokens and the blocks that hold their KV: token `t` lies in slot
//!   `t % block_tokens` of block `table[t / block_tokens]`.
//! * A **seat** is a small number that a thread holds while it lives. Counters are kept per seat, so that threads
//!   write no memory in common.
//! * A **run** is blocks whose ids follow each other.
//! * A block is **private** from being taken to being **published**: one sequence writes it, nobody else can
//!   reach it. A published block is full and never changes again; sequences hold references to it.
//! * A published block is **named** if the index knows it by the hash of its tokens and all tokens before them.
//!   A named block without references is **cached**: it can be found, and it can be evicted.
//!
//! Deliberately absent: sockets, tokio, threads, clocks, randomness that anything depends on, keys and replicas of
//! the store, and any knowledge of a cluster. A build with `--cfg loom` has the lock-free parts alone: the model
//! checker explores those.

mod alloc;
#[cfg(not(loom))]
mod arena;
mod atomic;
#[cfg(not(loom))]
mod cache;
mod chains;
mod claims;
#[cfg(test)]
#[cfg(not(loom))]
mod conformance;
#[cfg(not(loom))]
mod cuda;
mod dtype;
#[cfg(not(loom))]
mod error;
mod geometry;
mod hash;
#[cfg(not(loom))]
mod host;
mod ids;
#[cfg(not(loom))]
mod importance;
mod index;
pub mod kernels;
mod large;
mod layout;
mod lists;
#[cfg(not(loom))]
mod live;
#[cfg(all(test, loom))]
mod loom;
#[cfg(not(loom))]
mod manifest;
mod part;
mod policy;
#[cfg(not(loom))]
mod pool;
#[cfg(not(loom))]
mod positions;
mod records;
#[cfg(not(loom))]
mod remap;
#[cfg(not(loom))]
pub mod replay;
#[cfg(not(loom))]
mod sequence;
#[cfg(not(loom))]
mod sequence_view;
mod shard;
#[cfg(not(loom))]
mod spill;
#[cfg(not(loom))]
mod staging;
#[cfg(not(loom))]
mod stats;
#[cfg(not(loom))]
mod suspend;
mod tables;
mod tensor;
#[cfg(not(loom))]
mod tokens;
#[cfg(not(loom))]
mod view;

pub use alloc::{
    AllocError, Allocator, BLOCKS_MAX, Contiguity, FreeError, Handle, Magazine, ResizeError,
};
#[cfg(not(loom))]
pub use arena::{Arena, ArenaError};
#[cfg(not(loom))]
pub use cache::{Admission, Admitted, Cache, CacheConfig, Prompt, TOKENS_MAX, TableMark};
#[cfg(not(loom))]
pub use cuda::CudaArena;
pub use dtype::{DType, DlpackType};
#[cfg(not(loom))]
pub use error::CacheError;
pub use geometry::{
    ARENA_BYTES_MAX, AttentionSpec, BLOCK_BYTES_MAX, BLOCK_TOKENS_MAX, CacheIdentity, Geometry,
    GeometryError, Half, MlaSpec, TokenPlace,
};
pub use hash::{BlockHash, EXTRA_BYTES_MAX, Extra, Identity};
#[cfg(not(loom))]
pub use host::HostArena;
pub use ids::BlockId;
#[cfg(not(loom))]
pub use importance::Kept;
pub use layout::{ArenaShape, Axis, Coordinate, CoordinateError, Layout, ShapeError, Strides};
#[cfg(not(loom))]
pub use manifest::{ResumeError, Ticket};
#[cfg(not(loom))]
pub use mooncrate_mem::Pages;
pub use part::{BlockCopy, BlockRun, Order, Part, Runs, Step};
pub use policy::{Policy, UnknownPolicy};
#[cfg(not(loom))]
pub use pool::{Full, Pool, TakeError};
pub use records::Registered;
#[cfg(not(loom))]
pub use remap::{ArenaRef, BlockHold, Contiguous, HeldSequence, Piece, Remap, RemapError, Unheld};
#[cfg(not(loom))]
pub use sequence::{Sequence, Start, Text};
#[cfg(not(loom))]
pub use sequence_view::SequenceView;
pub use shard::Shard;
#[cfg(not(loom))]
pub use spill::{Fetch, PinnedBlocks, SpillKey};
#[cfg(not(loom))]
pub use stats::CacheStats;
#[cfg(not(loom))]
pub use suspend::{OwnBlock, Resuming, Suspension};
pub use tables::{
    BlockTable, CsrChange, CsrTable, NO_SLOT, NewTokens, SequenceBlocks, TableError, fill_slots,
};
pub use tensor::{RANK_MAX, Tensor};
#[cfg(not(loom))]
pub use view::{BlockView, PageOrder, View, ViewError};

/// The snippets of the page for engine authors, compiled and run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/paged.md")]
struct EngineAuthors;
