//! The conformance suite on both kinds of host memory, and what only host memory has: views and pages.

use super::*;
use crate::conformance::{check, shape, write};
use crate::dtype::DType;
use crate::geometry::{AttentionSpec, Geometry, Half};
use crate::layout::{Coordinate, Layout};
use mooncrate_core::Advice;
use std::os::unix::fs::FileExt;

#[test]
fn anonymous_memory_conforms() {
    check(&|shape, blocks| Box::new(HostArena::anonymous(shape, blocks, Pages::Small).unwrap()));
}

#[test]
fn a_memfd_conforms() {
    check(&|shape, blocks| Box::new(HostArena::memfd(shape, blocks, Pages::Small).unwrap()));
}

fn both(shape: ArenaShape, blocks: u32) -> [HostArena; 2] {
    [
        HostArena::anonymous(shape, blocks, Pages::Small).unwrap(),
        HostArena::memfd(shape, blocks, Pages::Small).unwrap(),
    ]
}

/// A row lies where the layout says, not only where reading finds it again.
#[test]
fn a_written_token_is_at_its_offset() {
    let arena = HostArena::memfd(shape(Layout::Hnd, 4), 4, Pages::Small).unwrap();
    let part = Part::block(BlockId(2)).layer(1).half(Half::Value).tokens(3..4);
    let bytes: Vec<u8> = (0..4 * 16).collect();
    arena.write(&part, Order::Tokens, &bytes).unwrap();
    let at = Coordinate { block: BlockId(2), layer: 1, half: Half::Value, head: 3, token: 3 };
    let offset = arena.shape().offset(at).unwrap();
    // SAFETY: the descriptor stays in this test, which has one thread.
    let fd = unsafe { arena.fd() }.unwrap();
    let mut row = [0_u8; 16];
    assert_eq!(rustix::io::pread(fd, &mut row, offset).unwrap(), 16);
    assert_eq!(row, bytes[48..64]);
}

#[test]
fn sizes_outside_are_refused() {
    let shape = shape(Layout::Nhd, 8);
    for blocks in [0, 9] {
        let error = HostArena::anonymous(shape, blocks, Pages::Small).unwrap_err();
        assert!(matches!(error, ArenaError::BadSize { reserved: 8, .. }), "{error}");
    }
}

/// A process has 2^47 bytes of addresses on x86-64 and 2^48 on aarch64; arenas of 2^46 soon use them up.
#[test]
fn memory_that_cannot_be_had_is_an_error() {
    let spec = AttentionSpec {
        layers: 32,
        kv_heads: 32,
        head_dim: 64,
        block_tokens: 16,
        dtype: DType::F32,
    };
    let geometry = Geometry::attention(spec).unwrap();
    let shape = ArenaShape::new(geometry, Layout::Nhd, 1 << 23).unwrap();
    let arenas: Result<Vec<_>, _> =
        (0..5).map(|_| HostArena::anonymous(shape, 1, Pages::Small)).collect();
    let error = arenas.expect_err("five times 2^46 bytes are over the 2^47 or 2^48 of a process");
    assert!(matches!(error, ArenaError::Map { bytes, .. } if bytes == 1 << 46), "{error}");
}

/// Pages of the arena that have memory, by the kernel's table: a word per page, bit 63 present, bit 62 swapped.
fn pages_in_use(arena: &HostArena) -> usize {
    let table = std::fs::File::open("/proc/self/pagemap").unwrap();
    let page = arena.page_bytes();
    let mut words = vec![0; (arena.shape().bytes() / page) as usize * 8];
    table.read_exact_at(&mut words, arena.base().addr().get() as u64 / page * 8).unwrap();
    words.chunks_exact(8).filter(|word| word[7] & 0xc0 != 0).count()
}

/// The pages are really given back, and the first byte never moves. A block has 2 KiB in each of two layers,
/// and the arena shrinks by one block at a time: no single step ends a whole page.
#[test]
fn shrinking_gives_pages_back() {
    for arena in both(shape(Layout::Nhd, 1024), 1024) {
        let base = arena.base();
        let pages = |blocks: u64| (blocks * 4096 / arena.page_bytes()) as usize;
        (0..1024).for_each(|block| write(&arena, block, 2));
        assert_eq!(pages_in_use(&arena), pages(1024));
        (256..1024).rev().for_each(|blocks| arena.resize(blocks).unwrap());
        assert_eq!(pages_in_use(&arena), pages(256));
        arena.resize(1024).unwrap();
        assert_eq!((arena.base(), pages_in_use(&arena)), (base, pages(256)));
        if let Some(fd) = arena.own_fd() {
            let bytes = rustix::fs::fstat(fd).unwrap().st_blocks * 512;
            assert_eq!(bytes, 256 * 4096, "the file gave them back, not only this mapping");
        }
    }
}

#[test]
fn a_view_keeps_writers_and_shrinking_away() {
    for arena in both(shape(Layout::HeadMajor, 8), 8) {
        write(&arena, 2, 3);
        let run = BlockRun { first: BlockId(2), count: 2 };
        let descriptor = arena.shape().tokens_view(run, 20, 1, Half::Key).unwrap();
        let view = arena.view(&descriptor).unwrap();
        let busy = arena.zero_blocks(&[BlockId(3)]).unwrap_err();
        assert!(matches!(busy, ArenaError::Busy { block: BlockId(3) }));
        assert_eq!(busy.advice(), Advice::Retry { after_ms: 1 });
        assert!(matches!(arena.resize(3), Err(ArenaError::Busy { block: BlockId(3) })));
        assert_eq!(arena.blocks(), 8);
        arena.zero_blocks(&[BlockId(4), BlockId(7)]).unwrap();
        drop(view);
        arena.resize(3).unwrap();
        assert!(matches!(arena.view(&descriptor), Err(ArenaError::Absent { .. })));
        let other = shape(Layout::Hnd, 8).tokens_view(run, 16, 1, Half::Key).unwrap();
        assert!(matches!(arena.view(&other), Err(ArenaError::ForeignView)));
    }
}
