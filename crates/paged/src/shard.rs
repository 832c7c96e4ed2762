//! Which part of a model's KV a cache holds.
//!
//! ```text
//!             tensor rank 0   tensor rank 1
//! stage 0     heads 0..4      heads 4..8       layers 0..16
//! stage 1     heads 0..4      heads 4..8       layers 16..32
//! ```
//!
//! All four caches see the same tokens and have the same geometry, and no two of them hold the same bytes. So the
//! shard is a part of every name: without it rank 1 would find the heads of rank 0, with a length and a checksum
//! that fit.

/// The part of a model's KV that one cache holds. How many layers it holds is in its geometry.
///
/// Count parts of the KV, not processes: ranks that hold copies of the same heads, as all tensor ranks do with MLA,
/// give the same numbers, and then find each other's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shard {
    /// Which part of the KV heads, from 0.
    pub tensor_rank: u32,
    /// Parts that the KV heads are split into.
    pub tensor_ranks: u32,
    /// Which pipeline stage, from 0.
    pub stage: u32,
    /// Pipeline stages.
    pub stages: u32,
    /// The first of its layers, counted from 0 in the whole model.
    pub first_layer: u32,
}

impl Shard {
    /// All heads of all layers: an engine that is not split.
    pub const WHOLE: Self =
        Self { tensor_rank: 0, tensor_ranks: 1, stage: 0, stages: 1, first_layer: 0 };

    /// Whether rank and stage are below their numbers.
    pub(crate) const fn is_valid(&self) -> bool {
        self.tensor_rank < self.tensor_ranks && self.stage < self.stages
    }

    pub(crate) const fn numbers(&self) -> [u32; 5] {
        [self.tensor_rank, self.tensor_ranks, self.stage, self.stages, self.first_layer]
    }
}
