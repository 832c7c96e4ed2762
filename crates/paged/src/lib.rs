//! page: the KV cache of running sequences, in blocks.

mod ids;
pub mod kernels;

pub use ids::BlockId;
