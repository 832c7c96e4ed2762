//! Blocks of device memory at contiguous addresses; on a GPU, or on the emulator of one.

use super::*;
use crate::arena::Arena;
use crate::cache::{Cache, CacheConfig, Prompt};
use crate::conformance::{read, write};
use crate::cuda::tests::gpu;
use crate::dtype::DType;
use crate::geometry::{AttentionSpec, Geometry, Half};
use crate::layout::{ArenaShape, Layout};
use crate::part::{BlockCopy, Order, Part};
use crate::remap::{Piece, Unheld};
use mooncrate_gpu::Stream;

/// A token of one layer has 16 KiB of K and V, a block of 128 tokens 2 MiB in each of 2 layers.
const SPEC: AttentionSpec =
    AttentionSpec { layers: 2, kv_heads: 32, head_dim: 128, block_tokens: 128, dtype: DType::F16 };
const FIRST: Piece = Piece { layer: 0, half: Half::Key, head: 0 };

fn shape(layout: Layout, block_tokens: u32) -> ArenaShape {
    let geometry = Geometry::attention(AttentionSpec { block_tokens, ..SPEC }).unwrap();
    ArenaShape::new(geometry, layout, 6).unwrap()
}

fn copy(source: u32, target: u32) -> BlockCopy {
    BlockCopy { source: BlockId(source), target: BlockId(target) }
}

/// An arena of pieces does what one of a single allocation does.
#[test]
fn an_arena_of_pieces_is_an_arena() {
    let Some(gpu) = gpu("an_arena_of_pieces_is_an_arena") else { return };
    let arena = CudaArena::remappable(&gpu, shape(Layout::Nhd, 128), 5).unwrap();
    let plain = CudaArena::new(&gpu, shape(Layout::Nhd, 128), 5).unwrap();
    for arena in [&arena, &plain] {
        (0..5).for_each(|block| write(arena, block, 7));
        arena.copy_blocks(&[copy(0, 3), copy(1, 4)]).unwrap();
        arena.zero_blocks(&[BlockId(1)]).unwrap();
        arena.resize(3).unwrap();
        arena.resize(6).unwrap();
    }
    for block in 0..6 {
        let (found, wanted) =
            (read(&arena, block, Order::Stored), read(&plain, block, Order::Stored));
        assert!(found == wanted, "block {block}");
    }
    assert!(arena.space().is_ok());
}

/// Writes of the arena are seen at the contiguous addresses, by calls and by copies of the engine; and the
/// other way. Blocks that are used twice in one mapping are the same bytes, too.
#[test]
fn both_addresses_reach_the_same_device_memory() {
    let Some(gpu) = gpu("both_addresses_reach_the_same_device_memory") else { return };
    let arena = Arc::new(CudaArena::remappable(&gpu, shape(Layout::Nhd, 128), 6).unwrap());
    let ids = [4, 1, 5].map(BlockId);
    let piece = Piece { layer: 1, ..FIRST };
    let mapped = Contiguous::map(Arc::clone(&arena), Unheld(&ids), piece).unwrap();
    assert_eq!((mapped.bytes(), mapped.blocks()), (3 * (2 << 20), &ids[..]));
    (0..6).for_each(|block| write(&*arena, block, 3));
    let stored = |block: BlockId| {
        let mut bytes = vec![0; 2 << 20];
        arena.read(&Part::block(block).layer(1), Order::Stored, &mut bytes).unwrap();
        bytes
    };
    let wanted = ids.map(stored).concat();
    let mut found = vec![0; wanted.len()];
    mapped.read(0, &mut found).unwrap();
    assert!(found == wanted, "by a call");
    let stream = Stream::new(&gpu).unwrap();
    assert!(mapped.span().to_vec(&stream).unwrap() == wanted, "by the address");
    assert_ne!(mapped.span().address(), arena.span().address());
    // Token 200 is slot 72 of the second block, which is block 1 of the arena.
    let tensor = mapped.blocks_view(1, Half::Value).unwrap();
    let offset = tensor.offset_of(&[0, 1, 72]).unwrap();
    mapped.write(offset, &[9; 8192]).unwrap();
    let part = Part::block(BlockId(1)).layer(1).half(Half::Value).tokens(72..73);
    let mut token = [0; 8192];
    arena.read(&part, Order::Tokens, &mut token).unwrap();
    assert_eq!(token, [9; 8192]);
    // Claims are those of the arena.
    arena.resize(5).unwrap();
    let gone = mapped.read(2 * (2 << 20), &mut [0; 4]).unwrap_err();
    assert!(matches!(gone, ArenaError::Absent { block: BlockId(5), .. }), "{gone}");
    mapped.read(0, &mut [0; 4]).unwrap();
}

/// A sequence of a cache becomes one tensor of tokens, and its blocks stay until the mapping is dropped.
#[test]
fn a_mapping_on_the_gpu_keeps_the_blocks_of_its_sequence() {
    let Some(gpu) = gpu("a_mapping_on_the_gpu_keeps_the_blocks_of_its_sequence") else { return };
    // K of one layer alone: 8 KiB per token, so 256 tokens make a page.
    let shape = shape(Layout::TokenMajor, 256);
    let arena = Arc::new(CudaArena::remappable(&gpu, shape, 6).unwrap());
    let cache = Cache::new(CacheConfig::new("tiny"), arena.clone()).unwrap();
    cache.allocate_for("other", Prompt::Count(1)).unwrap();
    cache.allocate_for("a", Prompt::Count(600)).unwrap();
    let mapped = Contiguous::map(&*arena, cache.hold("a").unwrap(), FIRST).unwrap();
    let tensor = mapped.tokens_view(600).unwrap();
    assert_eq!((tensor.shape(), tensor.strides()), (&[32, 600, 128][..], &[128, 4096, 1][..]));
    cache.free_for("a").unwrap();
    cache.free_for("other").unwrap();
    assert_eq!(cache.stats().used_blocks, 3);
    drop(mapped);
    assert_eq!(cache.stats().used_blocks, 0);
}

#[test]
fn what_cannot_be_mapped_on_a_gpu_names_the_way_out() {
    let Some(gpu) = gpu("what_cannot_be_mapped_on_a_gpu_names_the_way_out") else { return };
    let plain = CudaArena::new(&gpu, shape(Layout::Nhd, 128), 6).unwrap();
    let error = Contiguous::map(&plain, Unheld(&[BlockId(1)]), FIRST).unwrap_err();
    assert!(error.to_string().ends_with("make it with CudaArena::remappable"), "{error}");
    let error = CudaArena::remappable(&gpu, shape(Layout::Nhd, 16), 6).unwrap_err();
    let RemapError::NotPageSized { piece_bytes, page_bytes, block_tokens_fit } = error else {
        panic!("{error}");
    };
    assert_eq!((piece_bytes, page_bytes, block_tokens_fit), (16 * 16_384, 2 << 20, 128));
    assert!(CudaArena::remappable(&gpu, shape(Layout::BlockFirst, 64), 6).is_ok());
    let error = CudaArena::remappable(&gpu, shape(Layout::Nhd, 128), 7).unwrap_err();
    let too_many = ArenaError::BadSize { blocks: 7, reserved: 6 };
    assert_eq!(error.to_string(), too_many.to_string());
    let arena = CudaArena::remappable(&gpu, shape(Layout::Nhd, 128), 6).unwrap();
    let error = Contiguous::map(&arena, Unheld(&[BlockId(6)]), FIRST).unwrap_err();
    assert!(matches!(error, RemapError::Outside(_)), "{error}");
}
