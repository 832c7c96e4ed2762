//! page: the KV cache of running sequences, in blocks.

#[cfg(not(loom))]
mod arena;
mod claims;
#[cfg(test)]
#[cfg(not(loom))]
mod conformance;
mod dtype;
mod geometry;
#[cfg(not(loom))]
mod host;
mod ids;
mod layout;
mod part;
#[cfg(not(loom))]
mod remap;
mod tables;
mod tensor;
#[cfg(not(loom))]
mod view;

#[cfg(not(loom))]
pub use arena::{Arena, ArenaError, BlockCopy};
pub use dtype::{DType, DlpackType};
pub use geometry::{
    ARENA_BLOCKS_MAX, ARENA_BYTES_MAX, AttentionSpec, BLOCK_BYTES_MAX, BLOCK_TOKENS_MAX,
    CacheIdentity, Geometry, GeometryError, Half, MlaSpec, TokenPlace,
};
#[cfg(not(loom))]
pub use host::HostArena;
pub use ids::BlockId;
pub use layout::{ArenaShape, Axis, Coordinate, CoordinateError, Layout, ShapeError, Strides};
pub use part::{BlockRun, Order, Part, Runs, Step};
#[cfg(not(loom))]
pub use remap::{ArenaRef, Contiguous, Piece, RemapError};
pub use tables::{
    BlockTable, CsrChange, CsrTable, NO_SLOT, NewTokens, SequenceBlocks, TableError, fill_slots,
};
pub use tensor::{RANK_MAX, Tensor};
#[cfg(not(loom))]
pub use view::{BlockView, PageOrder, View, ViewError};
