//! page: the KV cache of running sequences, in blocks.

mod ids;

pub use ids::BlockId;
