//! page: the KV cache of running sequences, in blocks.

mod ids;
mod policy;
pub mod replay;

pub use ids::BlockId;
pub use policy::{Policy, UnknownPolicy};
