//! Views against the offsets of the layout, and their bytes against what was written.

use super::*;
use crate::arena::Arena;
use crate::geometry::{AttentionSpec, Geometry, MlaSpec};
use crate::layout::tests::small_shapes;
use crate::part::{Order, Part};
use mooncrate_mem::Pages;
use proptest::prelude::*;

const SEED: AttentionSpec =
    AttentionSpec { layers: 32, kv_heads: 32, head_dim: 64, block_tokens: 16, dtype: DType::F32 };

fn shape(layout: Layout) -> ArenaShape {
    ArenaShape::new(Geometry::attention(SEED).unwrap(), layout, 2048).unwrap()
}

fn run(first: u32, count: u32) -> BlockRun {
    BlockRun { first: BlockId(first), count }
}

/// The seed's sequence of 512 tokens in blocks 100 to 131. deviates: it is no `[32, 512, 64]` tensor.
#[test]
fn the_seeds_view_is_refused_and_the_way_out_named() {
    let shape = shape(Layout::LayerBlockHead);
    let error = shape.tokens_view(run(100, 32), 512, 0, Half::Key).unwrap_err();
    assert_eq!(error, ViewError::NotUniform { layout: Layout::LayerBlockHead, kv_heads: 32 });
    assert!(error.to_string().contains("head-major or the token-major"), "{error}");
    let blocks = shape.blocks_view(run(100, 32), 0, Half::Key).unwrap();
    assert_eq!(blocks.tensor().shape(), [32, 32, 16, 64]);
    assert_eq!(blocks.tensor().strides(), [1024, 32_768, 64, 1]);
    assert_eq!(blocks.tensor().byte_offset(), 100 * 32_768 * 4);
    // Within one block there is no border to cross.
    assert!(shape.tokens_view(run(100, 1), 16, 0, Half::Key).is_ok());
}

#[test]
fn true_views_where_the_layout_allows_them() {
    let view = |layout| shape(layout).tokens_view(run(100, 33), 513, 2, Half::Value);
    let head_major = *view(Layout::HeadMajor).unwrap().tensor();
    assert_eq!(head_major.shape(), [32, 513, 64]);
    assert_eq!(head_major.strides(), [2048 * 1024, 64, 1]);
    let token_major = *view(Layout::TokenMajor).unwrap().tensor();
    assert_eq!(token_major.strides(), [64, 2048, 1]);
    for layout in [Layout::Nhd, Layout::Hnd, Layout::BlockFirst] {
        assert!(matches!(view(layout), Err(ViewError::NotUniform { .. })), "{layout}");
    }
    let one_head = AttentionSpec { kv_heads: 1, ..SEED };
    let one_head = Geometry::attention(one_head).unwrap();
    let one_head = ArenaShape::new(one_head, Layout::LayerBlockHead, 2048).unwrap();
    assert!(one_head.tokens_view(run(100, 33), 513, 2, Half::Value).is_ok());
}

#[test]
fn views_outside_are_refused() {
    let shape = shape(Layout::HeadMajor);
    assert_eq!(shape.blocks_view(run(5, 0), 0, Half::Key), Err(ViewError::NoBlocks));
    let beyond = shape.blocks_view(run(2040, 9), 0, Half::Key).unwrap_err();
    assert!(matches!(beyond, ViewError::Outside(CoordinateError { value: 2048, .. })));
    assert!(shape.blocks_view(run(u32::MAX, u32::MAX), 0, Half::Key).is_err());
    assert!(shape.blocks_view(run(0, 1), 32, Half::Key).is_err());
    let error = shape.tokens_view(run(0, 2), 33, 0, Half::Key).unwrap_err();
    assert_eq!(error, ViewError::TooFewBlocks { tokens: 33, held: 32 });
}

#[test]
fn pages_are_contiguous_in_the_layout_of_their_name() {
    for (layout, order, inner) in
        [(Layout::Nhd, PageOrder::Nhd, [16, 32]), (Layout::Hnd, PageOrder::Hnd, [32, 16])]
    {
        let pages = *shape(layout).pages_view(3, order).unwrap().tensor();
        assert_eq!(pages.shape(), [2048, 2, inner[0], inner[1], 64]);
        assert_eq!(pages.strides(), [65_536, 32_768, inner[1] * 64, 64, 1]);
        assert_eq!(pages.byte_offset(), 3 * 2048 * 65_536 * 4);
        assert!(pages.is_contiguous());
    }
    let strided = *shape(Layout::BlockFirst).pages_view(3, PageOrder::Nhd).unwrap().tensor();
    assert_eq!(strided.strides(), [32 * 65_536, 32_768, 2048, 64, 1]);
    assert!(!strided.is_contiguous());
    assert_eq!(shape(Layout::Nhd).latent_pages_view(0), Err(ViewError::NotLatent));
}

#[test]
fn latent_pages_have_three_dimensions() {
    let spec =
        MlaSpec { layers: 61, latent_dim: 512, rope_dim: 64, block_tokens: 64, dtype: DType::Bf16 };
    let shape = ArenaShape::new(Geometry::mla(spec).unwrap(), Layout::Mla, 100).unwrap();
    let pages = *shape.latent_pages_view(2).unwrap().tensor();
    assert_eq!(pages.shape(), [100, 64, 576]);
    assert_eq!(pages.strides(), [64 * 576, 576, 1]);
    assert!(pages.is_contiguous());
    assert_eq!(shape.pages_view(2, PageOrder::Nhd), Err(ViewError::NoValues));
    // The tokens of all blocks are one run: a sequence is a true [1, tokens, 576] tensor.
    let tokens = *shape.tokens_view(run(10, 3), 150, 2, Half::Key).unwrap().tensor();
    assert_eq!(tokens.shape(), [1, 150, 576]);
}

/// Numbers written through the arena, token by token, are found by (head, token, dim) in the view.
#[test]
fn a_view_reads_what_was_written() {
    let spec = AttentionSpec { layers: 2, kv_heads: 3, head_dim: 4, block_tokens: 2, ..SEED };
    let shape = ArenaShape::new(Geometry::attention(spec).unwrap(), Layout::HeadMajor, 8).unwrap();
    let arena = HostArena::anonymous(shape, 8, Pages::Small).unwrap();
    let value = |head: u64, token: u64, dim: u64| f32::from((100 * head + 10 * token + dim) as u16);
    for token in 0..5_u64 {
        let place = shape.geometry().token_place(token);
        let block = BlockId(3 + place.logical_block as u32);
        let part = Part::block(block).layer(1).half(Half::Value).tokens(place.slot..place.slot + 1);
        let numbers = (0..3).flat_map(|head| (0..4).map(move |dim| value(head, token, dim)));
        let bytes: Vec<u8> = numbers.flat_map(f32::to_le_bytes).collect();
        arena.write(&part, Order::Tokens, &bytes).unwrap();
    }
    let tokens = shape.tokens_view(run(3, 3), 5, 1, Half::Value).unwrap();
    let view = arena.view(&tokens).unwrap();
    for (head, token, dim) in [(0, 0, 0), (2, 4, 3), (1, 2, 1), (2, 1, 0)] {
        assert_eq!(view.f32_at(&[head, token, dim]), Some(value(head, token, dim)));
    }
    assert_eq!(view.f32_at(&[0, 5, 0]), None);
    assert_eq!(view.f32_at(&[0, 0, 4]), None);
    assert_eq!(view.row(&[0]), None);
    let blocks = shape.blocks_view(run(3, 3), 1, Half::Value).unwrap();
    let blocks = arena.view(&blocks).unwrap();
    assert_eq!(blocks.f32_at(&[2, 1, 1, 2]), Some(value(2, 3, 2)));
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| view.f32_at(&[1, 1, 1]));
        assert_eq!(reader.join().unwrap(), view.f32_at(&[1, 1, 1]));
    });
}

proptest! {
    /// Each element of each view is where the layout puts that coordinate, in bytes.
    #[test]
    fn views_agree_with_offsets(shape in small_shapes(), picks in any::<[u32; 7]>()) {
        let pick = |place: usize, limit: u32| picks[place] % limit;
        let first = pick(0, shape.blocks());
        let run = run(first, 1 + pick(1, shape.blocks() - first));
        let layer = pick(2, shape.count(Axis::Layer));
        let half = [Half::Key, Half::Value][pick(3, shape.count(Axis::Half)) as usize];
        let (head, token) = (pick(4, shape.count(Axis::Head)), pick(5, shape.count(Axis::Token)));
        let step = pick(6, run.count);
        let block = BlockId(first + step);
        let wanted = Some(shape.offset(Coordinate { block, layer, half, head, token }).unwrap());
        let (head, token, step) = (u64::from(head), u64::from(token), u64::from(step));

        let blocks = *shape.blocks_view(run, layer, half).unwrap().tensor();
        prop_assert_eq!(blocks.offset_of(&[head, step, token]), wanted);
        prop_assert!(blocks.extent().fits(shape.bytes()));
        let slots = u64::from(shape.count(Axis::Token));
        let tokens = u64::from(run.count) * slots;
        match shape.tokens_view(run, tokens, layer, half) {
            Ok(view) => {
                prop_assert_eq!(view.tensor().offset_of(&[head, step * slots + token]), wanted);
                prop_assert!(view.tensor().extent().fits(shape.bytes()));
            }
            Err(_) => prop_assert!(run.count > 1 && !shape.tokens_are_uniform()),
        }
        let (page, half) = (u64::from(block.0), u64::from(half.index()));
        if let Ok(view) = shape.pages_view(layer, PageOrder::Hnd) {
            prop_assert_eq!(view.tensor().offset_of(&[page, half, head, token]), wanted);
        } else {
            let view = shape.latent_pages_view(layer).unwrap();
            prop_assert_eq!(view.tensor().offset_of(&[page, token]), wanted);
        }
    }
}
