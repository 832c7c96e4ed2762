//! Sizes computed by hand, numbers that must be refused, identities that must differ.

use super::*;

const SEED: AttentionSpec =
    AttentionSpec { layers: 32, kv_heads: 32, head_dim: 64, block_tokens: 16, dtype: DType::F32 };

/// The seed's example. deviates: its "8 GB" are K alone; with V the arena has 16 GiB, and the 60 blocks
/// of its sample dump have 480 MiB, not 2048 MB.
#[test]
fn sizes_of_the_seeds_example() {
    let geometry = Geometry::attention(SEED).unwrap();
    assert_eq!(geometry.layer_block_bytes(), 32 * 16 * 64 * 4);
    assert_eq!(geometry.layer_block_bytes() * 2048, 256 << 20);
    assert_eq!(geometry.half_block_bytes() * 2048, 8 << 30);
    assert_eq!(geometry.arena_bytes(2048).unwrap(), 16 << 30);
    assert_eq!(geometry.arena_bytes(60).unwrap(), 480 << 20);
    assert_eq!(geometry.token_bytes(), 512 << 10);
    assert_eq!(geometry.half_block_bytes() / 4 * 2048, 1 << 31, "more than i32 counts");
}

#[test]
fn an_mla_token_is_one_vector() {
    let spec =
        MlaSpec { layers: 61, latent_dim: 512, rope_dim: 64, block_tokens: 64, dtype: DType::Bf16 };
    let geometry = Geometry::mla(spec).unwrap();
    assert!(geometry.is_mla());
    assert_eq!(geometry.token_bytes(), 61 * 576 * 2);
    assert_eq!(geometry.block_bytes(), geometry.half_block_bytes());
    let none = MlaSpec { latent_dim: 0, ..spec };
    assert_eq!(Geometry::mla(none), Err(GeometryError::Zero { field: "latent_dim" }));
    let endless = MlaSpec { latent_dim: u32::MAX, rope_dim: 1, ..spec };
    assert!(matches!(Geometry::mla(endless), Err(GeometryError::Overflow { .. })));
}

#[test]
fn wrong_numbers_are_refused_by_name() {
    for (field, spec) in [
        ("layers", AttentionSpec { layers: 0, ..SEED }),
        ("kv_heads", AttentionSpec { kv_heads: 0, ..SEED }),
        ("head_dim", AttentionSpec { head_dim: 0, ..SEED }),
        ("block_tokens", AttentionSpec { block_tokens: 0, ..SEED }),
    ] {
        assert_eq!(Geometry::attention(spec), Err(GeometryError::Zero { field }));
    }
    let big = u32::MAX;
    let spec = AttentionSpec { block_tokens: big, ..SEED };
    let error = Geometry::attention(spec).unwrap_err();
    assert_eq!(error, GeometryError::TooManyTokens { block_tokens: big });
    let spec = AttentionSpec { layers: big, kv_heads: big, ..SEED };
    let error = Geometry::attention(spec).unwrap_err();
    assert!(matches!(error, GeometryError::Overflow { layers, .. } if layers == big));
    // The token alone fits 64 bits, the block does not.
    let spec = AttentionSpec { layers: big, kv_heads: 1 << 20, block_tokens: 1 << 20, ..SEED };
    assert!(matches!(Geometry::attention(spec), Err(GeometryError::Overflow { .. })));
}

#[test]
fn a_block_that_is_too_large_names_the_size_that_fits() {
    let spec = AttentionSpec { block_tokens: 1 << 20, ..SEED };
    let error = Geometry::attention(spec).unwrap_err();
    let GeometryError::BlockTooLarge { block_tokens_max, .. } = error else {
        panic!("{error}");
    };
    let fits = AttentionSpec { block_tokens: block_tokens_max as u32, ..SEED };
    assert!(Geometry::attention(fits).is_ok());
    let over = AttentionSpec { block_tokens: block_tokens_max as u32 + 1, ..SEED };
    assert!(Geometry::attention(over).is_err());
}

#[test]
fn an_arena_that_is_too_large_names_the_blocks_that_fit() {
    let geometry = Geometry::attention(SEED).unwrap();
    assert_eq!(geometry.arena_bytes(0), Err(GeometryError::NoBlocks));
    let many = BLOCKS_MAX + 1;
    assert_eq!(geometry.arena_bytes(many), Err(GeometryError::TooManyBlocks { blocks: many }));
    let error = geometry.arena_bytes(BLOCKS_MAX).unwrap_err();
    let GeometryError::ArenaTooLarge { blocks_max, .. } = error else { panic!("{error}") };
    assert_eq!(blocks_max, (64 << 40) / (8 << 20));
    assert_eq!(geometry.arena_bytes(blocks_max as u32).unwrap(), ARENA_BYTES_MAX);
    assert!(geometry.arena_bytes(blocks_max as u32 + 1).is_err());
}

#[test]
fn token_512_is_the_first_of_logical_block_32() {
    let geometry = Geometry::attention(SEED).unwrap();
    assert_eq!(geometry.token_place(512), TokenPlace { logical_block: 32, slot: 0 });
    assert_eq!(geometry.token_place(511), TokenPlace { logical_block: 31, slot: 15 });
    assert_eq!(geometry.blocks_for(512), 32);
    assert_eq!(geometry.blocks_for(513), 33);
    assert_eq!(geometry.blocks_for(0), 0);
}

/// Every number that changes the meaning of the bytes changes the identity.
#[test]
fn identities_differ_by_each_part() {
    const WHOLE: Shard = Shard::WHOLE;
    let base = Geometry::attention(SEED).unwrap();
    let of =
        |spec| CacheIdentity::new(&Geometry::attention(spec).unwrap(), Layout::Nhd, "m", &WHOLE);
    let part = |shard| CacheIdentity::of_tokens(&base, "m", &shard);
    let mla =
        MlaSpec { layers: 32, latent_dim: 64, rope_dim: 0, block_tokens: 16, dtype: DType::F32 };
    let all = [
        CacheIdentity::new(&base, Layout::Nhd, "m", &WHOLE),
        CacheIdentity::new(&base, Layout::Hnd, "m", &WHOLE),
        CacheIdentity::new(&base, Layout::Nhd, "n", &WHOLE),
        CacheIdentity::new(&base, Layout::Nhd, "", &WHOLE),
        CacheIdentity::of_tokens(&base, "m", &WHOLE),
        CacheIdentity::of_tokens(&base, "n", &WHOLE),
        CacheIdentity::new(&Geometry::mla(mla).unwrap(), Layout::Nhd, "m", &WHOLE),
        of(AttentionSpec { kv_heads: 1, ..SEED }),
        of(AttentionSpec { layers: 33, ..SEED }),
        of(AttentionSpec { kv_heads: 64, head_dim: 32, ..SEED }),
        of(AttentionSpec { block_tokens: 32, ..SEED }),
        of(AttentionSpec { dtype: DType::Bf16, ..SEED }),
        part(Shard { tensor_ranks: 2, ..WHOLE }),
        part(Shard { tensor_rank: 1, tensor_ranks: 2, ..WHOLE }),
        part(Shard { stages: 2, ..WHOLE }),
        part(Shard { stage: 1, stages: 2, ..WHOLE }),
        part(Shard { first_layer: 1, ..WHOLE }),
    ];
    let distinct: std::collections::BTreeSet<_> = all.iter().map(CacheIdentity::bytes).collect();
    assert_eq!(distinct.len(), all.len());
    assert_eq!(all[0], of(SEED));
    assert_eq!(all[0].to_string().len(), 32);
}
