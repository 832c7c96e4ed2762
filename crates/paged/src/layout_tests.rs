//! Golden offsets, computed by hand, and the property that a layout is a bijection.

use super::*;
use crate::dtype::DType;
use crate::geometry::{AttentionSpec, MlaSpec};
use proptest::prelude::*;

const SEED: AttentionSpec =
    AttentionSpec { layers: 32, kv_heads: 32, head_dim: 64, block_tokens: 16, dtype: DType::F32 };

fn shape(layout: Layout) -> ArenaShape {
    ArenaShape::new(Geometry::attention(SEED).unwrap(), layout, 2048).unwrap()
}

fn at(block: u32, layer: u32, half: Half, head: u32, token: u32) -> Coordinate {
    Coordinate { block: BlockId(block), layer, half, head, token }
}

/// deviates: the seed computes 101 * 32768 as 207,208; it is 3,309,568.
#[test]
fn the_seeds_example_with_the_right_product() {
    let element = shape(Layout::LayerBlockHead).offset(at(101, 0, Half::Key, 0, 1)).unwrap() / 4;
    assert_eq!(element, 3_309_632);
}

/// Each number was multiplied out on paper from the pictures in the head of the file. Elements, not bytes.
#[test]
fn golden_offsets_of_every_layout() {
    let cases = [
        // K has 2^31 elements, a layer 67,108,864, a block 32,768, a head 1,024, a token 64.
        (Layout::LayerBlockHead, 2_147_483_648 + 201_326_592 + 163_840 + 7_168 + 128),
        // Layer as above; a head has 2048 blocks of 1,024.
        (Layout::HeadMajor, 2_147_483_648 + 201_326_592 + 14_680_064 + 5_120 + 128),
        // A layer has K and V: 134,217,728; V after 67,108,864; a token 2,048, a head 64.
        (Layout::TokenMajor, 402_653_184 + 67_108_864 + 163_840 + 4_096 + 448),
        // A block has K and V: 65,536; V after 32,768.
        (Layout::Nhd, 402_653_184 + 327_680 + 32_768 + 4_096 + 448),
        (Layout::Hnd, 402_653_184 + 327_680 + 32_768 + 7_168 + 128),
        // A block has all layers: 2,097,152; a layer of it 65,536.
        (Layout::BlockFirst, 10_485_760 + 196_608 + 32_768 + 4_096 + 448),
    ];
    for (layout, element) in cases {
        let offset = shape(layout).offset(at(5, 3, Half::Value, 7, 2)).unwrap();
        assert_eq!(offset, element * 4, "{layout}");
    }
    let mla =
        MlaSpec { layers: 61, latent_dim: 512, rope_dim: 64, block_tokens: 64, dtype: DType::Bf16 };
    let mla = ArenaShape::new(Geometry::mla(mla).unwrap(), Layout::Mla, 1000).unwrap();
    // A layer has 36,864,000 elements, a block 36,864, a token 576.
    let element = 110_592_000 + 184_320 + 1_152;
    assert_eq!(mla.offset(at(5, 3, Half::Key, 0, 2)).unwrap(), element * 2);
}

#[test]
fn coordinates_outside_are_refused_by_axis() {
    let shape = shape(Layout::Nhd);
    for (axis, limit, bad) in [
        (Axis::Block, 2048, at(2048, 0, Half::Key, 0, 0)),
        (Axis::Layer, 32, at(0, 32, Half::Key, 0, 0)),
        (Axis::Head, 32, at(0, 0, Half::Key, 32, 0)),
        (Axis::Token, 16, at(0, 0, Half::Key, 0, 16)),
    ] {
        assert_eq!(shape.offset(bad), Err(CoordinateError { axis, value: limit, limit }));
    }
    let mla = MlaSpec { layers: 1, latent_dim: 8, rope_dim: 0, block_tokens: 4, dtype: DType::F16 };
    let mla = ArenaShape::new(Geometry::mla(mla).unwrap(), Layout::Mla, 2).unwrap();
    let error = mla.offset(at(0, 0, Half::Value, 0, 0)).unwrap_err();
    assert_eq!(error.to_string(), "half 1 is outside of 0..1");
}

#[test]
fn the_mla_layout_is_for_mla_only() {
    let geometry = Geometry::attention(SEED).unwrap();
    assert_eq!(ArenaShape::new(geometry, Layout::Mla, 1), Err(ShapeError::MlaLayout));
    let error = ArenaShape::new(geometry, Layout::Nhd, 0).unwrap_err();
    assert_eq!(error, ShapeError::Geometry(GeometryError::NoBlocks));
}

#[test]
fn axes_are_permutations_and_codes_are_distinct() {
    for (place, layout) in Layout::ALL.into_iter().enumerate() {
        assert_eq!(usize::from(layout.code()), place);
        for axis in [Axis::Layer, Axis::Half, Axis::Block, Axis::Head, Axis::Token] {
            assert_eq!(layout.axes().iter().filter(|one| **one == axis).count(), 1, "{layout}");
        }
    }
}

/// Shapes small enough to walk every byte.
pub(crate) fn small_shapes() -> impl Strategy<Value = ArenaShape> {
    let sizes = (1..4_u32, 1..4_u32, 1..6_u32, 1..6_u32, 1..6_u32);
    (sizes, 0..DType::ALL.len(), 0..Layout::ALL.len(), any::<bool>()).prop_map(
        |((layers, kv_heads, head_dim, block_tokens, blocks), dtype, layout, mla)| {
            let dtype = DType::ALL[dtype];
            let layout = Layout::ALL[layout];
            let geometry = if mla || layout == Layout::Mla {
                let (latent_dim, rope_dim) = (head_dim, kv_heads - 1);
                Geometry::mla(MlaSpec { layers, latent_dim, rope_dim, block_tokens, dtype })
            } else {
                let spec = AttentionSpec { layers, kv_heads, head_dim, block_tokens, dtype };
                Geometry::attention(spec)
            };
            ArenaShape::new(geometry.unwrap(), layout, blocks).unwrap()
        },
    )
}

/// Every coordinate of a shape.
pub(crate) fn coordinates(shape: &ArenaShape) -> Vec<Coordinate> {
    let mut all = Vec::new();
    let halves = [Half::Key, Half::Value];
    for block in 0..shape.blocks() {
        for layer in 0..shape.count(Axis::Layer) {
            for half in &halves[..shape.count(Axis::Half) as usize] {
                for head in 0..shape.count(Axis::Head) {
                    for token in 0..shape.count(Axis::Token) {
                        all.push(at(block, layer, *half, head, token));
                    }
                }
            }
        }
    }
    all
}

proptest! {
    /// No two coordinates share a byte, and together they cover the arena exactly once.
    #[test]
    fn a_layout_is_a_bijection(shape in small_shapes()) {
        let row = shape.geometry().row_bytes() as usize;
        let mut owners = vec![0_u32; shape.bytes() as usize];
        for at in coordinates(&shape) {
            let first = shape.offset(at).unwrap() as usize;
            prop_assert!(first + row <= owners.len(), "{at:?} reaches outside");
            owners[first..first + row].iter_mut().for_each(|owner| *owner += 1);
        }
        prop_assert!(owners.iter().all(|owner| *owner == 1), "{shape:?}");
    }

    /// Where the tokens are said to be uniform, they are: across all blocks, by measuring.
    #[test]
    fn uniform_tokens_have_one_distance(shape in small_shapes()) {
        let mut offsets = Vec::new();
        for block in 0..shape.blocks() {
            for token in 0..shape.count(Axis::Token) {
                offsets.push(shape.offset(at(block, 0, Half::Key, 0, token)).unwrap());
            }
        }
        let uniform = offsets.windows(3).all(|w| w[1].wrapping_sub(w[0]) == w[2].wrapping_sub(w[1]));
        if shape.tokens_are_uniform() {
            prop_assert!(uniform, "{shape:?}");
        } else if shape.blocks() > 1 && shape.count(Axis::Token) > 1 {
            prop_assert!(!uniform, "{shape:?}");
        }
    }
}
