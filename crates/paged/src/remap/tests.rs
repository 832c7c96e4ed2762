//! Two mappings of the same pages see each other's writes, and what cannot be mapped is refused.

use super::*;
use crate::cache::{Cache, CacheConfig, Prompt};
use crate::dtype::DType;
use crate::geometry::{AttentionSpec, Geometry};
use crate::layout::Layout;
use crate::part::{BlockRun, Order, Part};
use crate::policy::Policy;
use crate::pool::Pool;
use crate::sequence::{Sequence, Start};
use mooncrate_mem::Pages;

/// One head and half of a block has 16 tokens x 256 bytes: one page.
const SPEC: AttentionSpec =
    AttentionSpec { layers: 2, kv_heads: 4, head_dim: 64, block_tokens: 16, dtype: DType::F32 };
const PIECE: Piece = Piece { layer: 0, half: Half::Key, head: 0 };

fn shape(layout: Layout) -> ArenaShape {
    ArenaShape::new(Geometry::attention(SPEC).unwrap(), layout, 20).unwrap()
}

fn arena(layout: Layout) -> HostArena {
    HostArena::memfd(shape(layout), 20, Pages::Small).unwrap()
}

fn ids(blocks: &[u32]) -> Vec<BlockId> {
    blocks.iter().copied().map(BlockId).collect()
}

/// For every layout: each vector of the sequence, written through the arena, is at the address that the
/// tensor of the mapping names.
#[test]
fn the_mapping_sees_writes_of_the_arena() {
    let blocks = ids(&[7, 2, 3, 4, 19, 0]);
    for layout in Layout::ALL.into_iter().filter(|layout| *layout != Layout::Mla) {
        let arena = arena(layout);
        let outside = |axis| arena.shape().outside_block().any(|one| one == axis);
        let piece = Piece {
            layer: u32::from(outside(Axis::Layer)),
            half: if outside(Axis::Half) { Half::Value } else { Half::Key },
            head: if outside(Axis::Head) { 3 } else { 0 },
        };
        let mapped = Contiguous::map(&arena, Unheld(&blocks), piece).unwrap();
        assert_eq!(mapped.bytes(), 6 * arena.shape().strides().block);
        for (place, block) in blocks.iter().enumerate() {
            let part = Part::block(*block).layer(1).half(Half::Value).tokens(5..6);
            // Each head of this token gets its own byte.
            let bytes: Vec<u8> =
                (0..4).flat_map(|head| [(place * 10 + head + 1) as u8; 256]).collect();
            arena.write(&part, Order::Tokens, &bytes).unwrap();
        }
        let tensor = mapped.blocks_view(1, Half::Value).unwrap();
        let heads = usize::try_from(tensor.shape()[0]).unwrap();
        for place in 0..blocks.len() {
            for head in 0..heads {
                let offset = tensor.offset_of(&[head as u64, place as u64, 5]).unwrap();
                let mut row = [0; 256];
                mapped.read(offset, &mut row).unwrap();
                let head = if heads == 1 { 3 } else { head };
                assert_eq!(row, [(place * 10 + head + 1) as u8; 256], "{layout}");
            }
        }
    }
}

/// A fragmented sequence is a true tensor of tokens at contiguous addresses, and writes there reach the arena.
#[test]
fn the_arena_sees_writes_of_the_mapping() {
    let arena = Arc::new(arena(Layout::TokenMajor));
    let blocks = ids(&[11, 3, 12]);
    let mapped = Contiguous::map(Arc::clone(&arena), Unheld(&blocks), PIECE).unwrap();
    let tensor = mapped.tokens_view(40).unwrap();
    assert_eq!(tensor.shape(), [4, 40, 64]);
    assert_eq!(tensor.strides(), [64, 256, 1]);
    // Token 20 is slot 4 of the second block, b3. The write spans two tokens.
    let offset = tensor.offset_of(&[0, 20]).unwrap();
    mapped.write(offset, &[9; 2048]).unwrap();
    let mut bytes = [0; 2048];
    let part = Part::block(BlockId(3)).layer(0).half(Half::Key).tokens(4..6);
    arena.read(&part, Order::Tokens, &mut bytes).unwrap();
    assert_eq!(bytes, [9; 2048]);
    // Across the border of two blocks that are no neighbours in the arena.
    mapped.write(16 * 1024 - 4, &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
    let mut token = [0; 1024];
    arena
        .read(
            &Part::block(BlockId(11)).layer(0).half(Half::Key).tokens(15..16),
            Order::Tokens,
            &mut token,
        )
        .unwrap();
    assert_eq!(token[1020..], [1, 2, 3, 4]);
    arena
        .read(
            &Part::block(BlockId(3)).layer(0).half(Half::Key).tokens(0..1),
            Order::Tokens,
            &mut token,
        )
        .unwrap();
    assert_eq!(token[..4], [5, 6, 7, 8]);
}

#[test]
fn accesses_are_checked_and_claimed() {
    let arena = arena(Layout::TokenMajor);
    let blocks = ids(&[11, 3]);
    let mapped = Contiguous::map(&arena, Unheld(&blocks), PIECE).unwrap();
    let long = mapped.read(32 * 1024 - 1, &mut [0; 2]).unwrap_err();
    assert!(matches!(long, ArenaError::WrongLength { part_bytes: 1, buffer_bytes: 2 }));
    assert!(mapped.write(u64::MAX, &[0]).is_err());
    mapped.read(32 * 1024, &mut []).unwrap();
    let run = BlockRun { first: BlockId(3), count: 1 };
    let descriptor = arena.shape().blocks_view(run, 0, Half::Key).unwrap();
    let view = arena.view(&descriptor).unwrap();
    let busy = mapped.write(16 * 1024 - 1, &[1, 2]).unwrap_err();
    assert!(matches!(busy, ArenaError::Busy { block: BlockId(3) }));
    mapped.read(16 * 1024, &mut [0; 8]).unwrap();
    mapped.write(0, &[1]).unwrap();
    drop(view);
    mapped.write(16 * 1024 - 1, &[1, 2]).unwrap();
    // A block that the arena gave up reads as absent, and its pages do not fault.
    arena.resize(5).unwrap();
    assert!(matches!(mapped.read(0, &mut [0]), Err(ArenaError::Absent { block: BlockId(11), .. })));
    // SAFETY: the byte lies in the mapping, and nobody else is in this test.
    assert_eq!(unsafe { mapped.base().read_volatile() }, 0);
}

#[test]
fn what_cannot_be_mapped_names_the_way_out() {
    let blocks = ids(&[1, 2]);
    let anonymous = HostArena::anonymous(shape(Layout::Nhd), 20, Pages::Small).unwrap();
    let error = Contiguous::map(&anonymous, Unheld(&blocks), PIECE).unwrap_err();
    assert!(matches!(error, RemapError::NotShared { .. }));
    assert!(error.to_string().ends_with("make it with HostArena::memfd"), "{error}");
    let nhd = arena(Layout::Nhd);
    assert!(matches!(Contiguous::map(&nhd, Unheld(&[]), PIECE), Err(RemapError::NoBlocks)));
    let error = Contiguous::map(&nhd, Unheld(&ids(&[1, 20])), PIECE).unwrap_err();
    assert!(matches!(error, RemapError::Outside(CoordinateError { value: 20, .. })));
    let error = Contiguous::map(&nhd, Unheld(&blocks), Piece { layer: 2, ..PIECE }).unwrap_err();
    assert!(matches!(error, RemapError::Outside(CoordinateError { axis: Axis::Layer, .. })));
    let error =
        Contiguous::map(&nhd, Unheld(&blocks), Piece { half: Half::Value, ..PIECE }).unwrap_err();
    assert!(matches!(error, RemapError::Inside { axis: Axis::Half }));
    let mapped = Contiguous::map(&nhd, Unheld(&blocks), PIECE).unwrap();
    assert!(matches!(mapped.tokens_view(32), Err(ViewError::NotUniform { .. })));
    assert!(matches!(mapped.tokens_view(33), Err(ViewError::TooFewBlocks { .. })));
    assert!(mapped.blocks_view(0, Half::Value).is_ok());
}

/// Blocks of 12 tokens have 3 KiB per head and half. The size that the error names works.
#[test]
fn the_block_size_in_the_error_would_do() {
    let map = |block_tokens| {
        let spec = AttentionSpec { block_tokens, ..SPEC };
        let shape =
            ArenaShape::new(Geometry::attention(spec).unwrap(), Layout::HeadMajor, 4).unwrap();
        let arena = HostArena::memfd(shape, 4, Pages::Small).unwrap();
        Contiguous::map(&arena, Unheld(&ids(&[2, 0])), PIECE).map(|mapped| mapped.bytes())
    };
    let page = rustix::param::page_size() as u64;
    let error = map(12).unwrap_err();
    let RemapError::NotPageSized { piece_bytes, page_bytes, block_tokens_fit } = error else {
        panic!("{error}");
    };
    assert_eq!((piece_bytes, page_bytes), (3072, page));
    assert_eq!(block_tokens_fit, page / 256);
    assert_eq!(map(block_tokens_fit as u32).unwrap(), 2 * page);
}

/// Dropping unmaps: the kernel's list of mappings no longer has the range.
#[test]
fn dropping_unmaps() {
    let arena = arena(Layout::Nhd);
    let blocks = ids(&[5, 1, 3]);
    let mapped = Contiguous::map(&arena, Unheld(&blocks), PIECE).unwrap();
    let first = format!("{:x}-", mapped.base().as_ptr() as usize);
    let listed = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().any(|line| line.starts_with(&first) && line.contains("mooncrate-paged"))
    };
    assert!(listed());
    drop(mapped);
    assert!(!listed());
}

/// The story: a mapping held no reference to its sequence. After `free_for` it showed the bytes of whoever got
/// the blocks next.
#[test]
fn a_mapping_keeps_the_blocks_of_its_sequence() {
    let arena = Arc::new(arena(Layout::TokenMajor));
    let cache = Cache::new(CacheConfig::new("tiny"), Arc::clone(&arena) as Arc<dyn Arena>).unwrap();
    cache.allocate_for("a", Prompt::Count(40)).unwrap();
    let mapped = Contiguous::map(Arc::clone(&arena), cache.hold("a").unwrap(), PIECE).unwrap();
    assert_eq!(mapped.hold().arena().blocks(), 20);
    mapped.write(0, &[5; 64]).unwrap();
    cache.free_for("a").unwrap();
    // All that is left goes to another sequence, which writes.
    cache.allocate_for("b", Prompt::Count(17 * 16)).unwrap();
    let mut table = Vec::new();
    cache.block_table("b", &mut table).unwrap();
    for block in &table {
        assert!(!mapped.blocks().contains(block), "{block:?}");
        let part = Part::block(*block).layer(0).half(Half::Key);
        arena.write(&part, Order::Stored, &[7; 16 * 1024]).unwrap();
    }
    let mut bytes = [0; 64];
    mapped.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [5; 64]);
    drop(mapped);
    assert_eq!(cache.stats().used_blocks, 17);
}

/// A sequence that an engine keeps itself lends its blocks, and is freed after the mapping.
#[test]
fn a_sequence_lends_its_blocks() {
    let arena = arena(Layout::TokenMajor);
    let pool = Pool::new(20, 20, Policy::Lru).unwrap();
    let start = Start { block_tokens: 16, tenant: 0, rank: 0, contiguous: false };
    let clean = |blocks: &[BlockId]| arena.zero_blocks(blocks);
    let sequence = Sequence::of_count(&pool, &start, 40, clean).unwrap();
    let mapped = Contiguous::map(&arena, &sequence, PIECE).unwrap();
    assert_eq!(mapped.blocks(), sequence.table());
    drop(mapped);
    sequence.free(&pool);
    assert_eq!(pool.free_blocks(), 20);
}
