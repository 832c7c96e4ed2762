//! The geometry of a KV cache: what one token stores, and how many tokens make a block.
//!
//! ```text
//!   attention:  layers x {K, V} x kv heads x head dim       2 halves
//!   MLA:        layers x  1     x    1     x latent + rope  1 half: K and V are computed from one vector
//! ```
//!
//! A [`Geometry`] that exists is valid: no size is zero, and the bytes of a block fit
//! [`BLOCK_BYTES_MAX`]. All sizes are derived here, as 64-bit numbers with checked products, because the
//! K half of an ordinary model already has 2^31 elements.
//!
//! [`CacheIdentity`] names geometry, layout, model and shard in 128 bits. Blocks that were written under one
//! identity must never be read under another: the bytes would be taken for tokens that they are not.

use crate::BLOCKS_MAX;
use crate::dtype::DType;
use crate::layout::Layout;
use crate::shard::Shard;
use std::fmt;

/// Bytes of the largest block: 64 GiB. A block over this is a mistake in the numbers.
pub const BLOCK_BYTES_MAX: u64 = 1 << 36;
/// Tokens of the largest block. Usual sizes are 16 to 256.
pub const BLOCK_TOKENS_MAX: u32 = 1 << 20;
/// Bytes of the largest arena: 64 TiB, half of the address space that Linux gives a process.
pub const ARENA_BYTES_MAX: u64 = 1 << 46;

/// What a model with ordinary attention (MHA, GQA, MQA) stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionSpec {
    /// Layers that have a cache.
    pub layers: u32,
    /// Heads of K and of V, after the split over tensor-parallel ranks.
    pub kv_heads: u32,
    /// Elements of one head's vector.
    pub head_dim: u32,
    /// Tokens of a block; engines call a block a page.
    pub block_tokens: u32,
    /// Type of the elements.
    pub dtype: DType,
}

/// What a model with multi-head latent attention stores: one vector per token and layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MlaSpec {
    /// Layers that have a cache.
    pub layers: u32,
    /// Elements of the compressed part, often 512.
    pub latent_dim: u32,
    /// Elements of the part with rotary positions, often 64; 0 if there is none.
    pub rope_dim: u32,
    /// Tokens of a block.
    pub block_tokens: u32,
    /// Type of the elements.
    pub dtype: DType,
}

/// Which of the two vectors of a token. An MLA cache has the first only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Half {
    /// K; or the latent vector of MLA.
    Key,
    /// V.
    Value,
}

impl Half {
    /// 0 for K, 1 for V: the coordinate on the half axis.
    pub const fn index(self) -> u32 {
        match self {
            Self::Key => 0,
            Self::Value => 1,
        }
    }
}

impl fmt::Display for Half {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Key => "K",
            Self::Value => "V",
        })
    }
}

/// Why numbers do not describe a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GeometryError {
    /// A size is zero.
    #[error("{field} is 0; it must be at least 1")]
    Zero {
        /// Which number.
        field: &'static str,
    },
    /// The bytes of a block do not fit 64 bits.
    #[error(
        "a block of {block_tokens} tokens, {layers} layers, {kv_heads} heads of {head_dim} x {dtype} \
         has more bytes than 64 bits count; check the units of these numbers"
    )]
    Overflow {
        /// Layers asked for.
        layers: u32,
        /// Heads asked for.
        kv_heads: u32,
        /// Elements of a head.
        head_dim: u64,
        /// Tokens of a block.
        block_tokens: u32,
        /// Type of the elements.
        dtype: DType,
    },
    /// A block is larger than any block should be.
    #[error(
        "a block would have {block_bytes} bytes, the limit is {BLOCK_BYTES_MAX}; \
         use at most {block_tokens_max} tokens per block"
    )]
    BlockTooLarge {
        /// Bytes of the block.
        block_bytes: u64,
        /// Tokens per block that would fit; 0 if not even one does.
        block_tokens_max: u64,
    },
    /// More tokens than a block may have.
    #[error(
        "{block_tokens} tokens per block are over the limit of {BLOCK_TOKENS_MAX}; use 16 to 256"
    )]
    TooManyTokens {
        /// Tokens asked for.
        block_tokens: u32,
    },
    /// An arena of no blocks.
    #[error("an arena has at least 1 block; raise the number of blocks")]
    NoBlocks,
    /// More blocks than block ids.
    #[error("{blocks} blocks are over the limit of {BLOCKS_MAX}; use larger blocks")]
    TooManyBlocks {
        /// Blocks asked for.
        blocks: u32,
    },
    /// The arena does not fit an address space.
    #[error(
        "{blocks} blocks of {block_bytes} bytes are over the limit of {ARENA_BYTES_MAX} bytes; \
         use at most {blocks_max} blocks"
    )]
    ArenaTooLarge {
        /// Blocks asked for.
        blocks: u32,
        /// Bytes of one block.
        block_bytes: u64,
        /// Blocks that would fit.
        blocks_max: u64,
    },
}

/// The valid geometry of a cache.
///
/// ```
/// use mooncrate_paged::{AttentionSpec, DType, Geometry};
///
/// let spec = AttentionSpec {
///     layers: 32, kv_heads: 32, head_dim: 64, block_tokens: 16, dtype: DType::F32,
/// };
/// let geometry = Geometry::attention(spec)?;
/// assert_eq!(geometry.half_block_bytes(), 4 << 20); // K of one block, all layers
/// assert_eq!(geometry.arena_bytes(2048)?, 16 << 30); // K and V
/// # Ok::<(), mooncrate_paged::GeometryError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    layers: u32,
    halves: u32,
    kv_heads: u32,
    head_dim: u32,
    block_tokens: u32,
    dtype: DType,
}

/// Where a token of a sequence lies: which of its blocks, and which slot in it. Both count from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenPlace {
    /// The index into the sequence's own list of blocks.
    pub logical_block: u64,
    /// The token's slot in that block.
    pub slot: u32,
}

impl Geometry {
    /// The geometry of ordinary attention.
    pub fn attention(spec: AttentionSpec) -> Result<Self, GeometryError> {
        let AttentionSpec { layers, kv_heads, head_dim, block_tokens, dtype } = spec;
        refuse_zeros(&[
            ("layers", layers),
            ("kv_heads", kv_heads),
            ("head_dim", head_dim),
            ("block_tokens", block_tokens),
        ])?;
        Self { layers, halves: 2, kv_heads, head_dim, block_tokens, dtype }.check()
    }

    /// The geometry of multi-head latent attention: one half and one head, whose vector is the latent part
    /// followed by the rotary part.
    pub fn mla(spec: MlaSpec) -> Result<Self, GeometryError> {
        let MlaSpec { layers, latent_dim, rope_dim, block_tokens, dtype } = spec;
        refuse_zeros(&[
            ("layers", layers),
            ("latent_dim", latent_dim),
            ("block_tokens", block_tokens),
        ])?;
        let dim = latent_dim.checked_add(rope_dim).ok_or(GeometryError::Overflow {
            layers,
            kv_heads: 1,
            head_dim: u64::from(latent_dim) + u64::from(rope_dim),
            block_tokens,
            dtype,
        })?;
        Self { layers, halves: 1, kv_heads: 1, head_dim: dim, block_tokens, dtype }.check()
    }

    /// Layers that have a cache.
    pub const fn layers(&self) -> u32 {
        self.layers
    }

    /// 2 where K and V are stored, 1 for MLA.
    pub const fn halves(&self) -> u32 {
        self.halves
    }

    /// Whether this is an MLA cache: one vector per token and layer, no V.
    pub const fn is_mla(&self) -> bool {
        self.halves == 1
    }

    /// Heads of K, and as many of V.
    pub const fn kv_heads(&self) -> u32 {
        self.kv_heads
    }

    /// Elements of the vector of one head; for MLA of the whole latent vector.
    pub const fn head_dim(&self) -> u32 {
        self.head_dim
    }

    /// Tokens of a block.
    pub const fn block_tokens(&self) -> u32 {
        self.block_tokens
    }

    /// Type of the elements.
    pub const fn dtype(&self) -> DType {
        self.dtype
    }

    /// Bytes of the vector of one head and one token.
    pub const fn row_bytes(&self) -> u64 {
        self.head_dim as u64 * self.dtype.bytes() as u64
    }

    /// Bytes of one token: all layers, all heads, K and V.
    pub const fn token_bytes(&self) -> u64 {
        self.block_bytes() / self.block_tokens as u64
    }

    /// Bytes of one block: all layers, K and V. `check` proved that this product does not overflow.
    pub const fn block_bytes(&self) -> u64 {
        self.half_block_bytes() * self.halves as u64
    }

    /// Bytes of K of one block, in all layers. V has as many; for MLA this is the whole block.
    pub const fn half_block_bytes(&self) -> u64 {
        self.layer_block_bytes() * self.layers as u64
    }

    /// Bytes of K of one block in one layer.
    pub const fn layer_block_bytes(&self) -> u64 {
        self.row_bytes() * self.kv_heads as u64 * self.block_tokens as u64
    }

    /// Bytes of an arena of `blocks` blocks, K and V.
    pub fn arena_bytes(&self, blocks: u32) -> Result<u64, GeometryError> {
        let block_bytes = self.block_bytes();
        if blocks == 0 {
            return Err(GeometryError::NoBlocks);
        }
        if blocks > BLOCKS_MAX {
            return Err(GeometryError::TooManyBlocks { blocks });
        }
        match block_bytes.checked_mul(u64::from(blocks)) {
            Some(bytes) if bytes <= ARENA_BYTES_MAX => Ok(bytes),
            _ => {
                let blocks_max = ARENA_BYTES_MAX / block_bytes;
                Err(GeometryError::ArenaTooLarge { blocks, block_bytes, blocks_max })
            }
        }
    }

    /// Blocks that hold `tokens` tokens.
    pub const fn blocks_for(&self, tokens: u64) -> u64 {
        tokens.div_ceil(self.block_tokens as u64)
    }

    /// Where the token with this index lies in its sequence.
    // deviates: the seed puts "token 513" into slot 1 of the second block of a sequence of 32 blocks. Indices
    // count from 0: the 513th token has index 512, and 512 / 16 is logical block 32, slot 0, which is the
    // block after the first 32.
    pub const fn token_place(&self, index: u64) -> TokenPlace {
        let tokens = self.block_tokens as u64;
        TokenPlace { logical_block: index / tokens, slot: (index % tokens) as u32 }
    }

    fn check(self) -> Result<Self, GeometryError> {
        if self.block_tokens > BLOCK_TOKENS_MAX {
            return Err(GeometryError::TooManyTokens { block_tokens: self.block_tokens });
        }
        let factors = [self.layers, self.halves, self.kv_heads, self.head_dim, self.dtype.bytes()];
        let token = factors.iter().try_fold(1_u64, |all, one| all.checked_mul(u64::from(*one)));
        let overflow = GeometryError::Overflow {
            layers: self.layers,
            kv_heads: self.kv_heads,
            head_dim: u64::from(self.head_dim),
            block_tokens: self.block_tokens,
            dtype: self.dtype,
        };
        let token = token.ok_or(overflow)?;
        let block_bytes = token.checked_mul(u64::from(self.block_tokens)).ok_or(overflow)?;
        if block_bytes > BLOCK_BYTES_MAX {
            let block_tokens_max = BLOCK_BYTES_MAX / token;
            return Err(GeometryError::BlockTooLarge { block_bytes, block_tokens_max });
        }
        Ok(self)
    }
}

fn refuse_zeros(fields: &[(&'static str, u32)]) -> Result<(), GeometryError> {
    match fields.iter().find(|(_, value)| *value == 0) {
        Some((field, _)) => Err(GeometryError::Zero { field }),
        None => Ok(()),
    }
}

/// Stands for a layout where the bytes do not depend on it. No layout has this code.
const ANY_LAYOUT: u8 = u8::MAX;

/// 128 bits that name a geometry, a layout, a model and its shard. The number of blocks is not part of it: a block
/// means the same in a larger arena.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CacheIdentity([u8; 16]);

impl CacheIdentity {
    /// The identity of blocks of `geometry` in `layout`, of one shard of `model`. Whatever changes the values
    /// (weights, revision, quantisation) belongs into the model's name.
    pub fn new(geometry: &Geometry, layout: Layout, model: &str, shard: &Shard) -> Self {
        Self::of(geometry, layout.code(), model, shard)
    }

    /// The same for bytes in [`Order::Tokens`](crate::Order::Tokens), which mean the same in every layout.
    pub fn of_tokens(geometry: &Geometry, model: &str, shard: &Shard) -> Self {
        Self::of(geometry, ANY_LAYOUT, model, shard)
    }

    fn of(geometry: &Geometry, layout: u8, model: &str, shard: &Shard) -> Self {
        // The context separates these hashes from all others; it names the version of the encoding.
        let mut hasher = blake3::Hasher::new_derive_key("mooncrate paged cache identity v2");
        let Geometry { layers, halves, kv_heads, head_dim, block_tokens, dtype } = *geometry;
        let sizes = [layers, halves, kv_heads, head_dim, block_tokens];
        for number in sizes.into_iter().chain(shard.numbers()) {
            hasher.update(&number.to_le_bytes());
        }
        hasher.update(&[dtype.code(), layout]);
        hasher.update(model.as_bytes());
        let mut bytes = [0; 16];
        hasher.finalize_xof().fill(&mut bytes);
        Self(bytes)
    }

    /// The bits.
    pub const fn bytes(&self) -> [u8; 16] {
        self.0
    }
}

impl fmt::Display for CacheIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for CacheIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CacheIdentity({self})")
    }
}

#[cfg(test)]
#[path = "geometry_tests.rs"]
mod tests;
