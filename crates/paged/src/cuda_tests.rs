//! What needs a GPU, or the emulator of one: the suite of all arenas on device memory and on pinned memory, and
//! the copies between the two. Without a GPU each test says that it was skipped.

use super::*;
use crate::conformance::{check, read, shape, write};
use crate::dtype::DType;
use crate::geometry::{AttentionSpec, Geometry, Half};
use crate::kernels::Slot;
use crate::layout::Layout;
use mooncrate_mem::Pages;
use std::ops::Deref;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A GPU for one test at a time: the emulator has no locks, and what one test frees must not meet what another
/// one does.
pub(crate) struct Alone {
    gpu: Gpu,
    _turn: MutexGuard<'static, ()>,
}

impl Deref for Alone {
    type Target = Gpu;

    fn deref(&self) -> &Gpu {
        &self.gpu
    }
}

/// GPU number 0, or the word that the test was skipped.
pub(crate) fn gpu(test: &str) -> Option<Alone> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    match Gpu::open(0) {
        Ok(gpu) => Some(Alone { gpu, _turn: turn }),
        Err(error) if error.is_absent() => {
            eprintln!("SKIPPED {test}: {error}");
            None
        }
        Err(error) => panic!("{test}: {error}"),
    }
}

#[test]
fn device_memory_conforms() {
    let Some(gpu) = gpu("device_memory_conforms") else { return };
    check(&|shape, blocks| Box::new(CudaArena::new(&gpu, shape, blocks).unwrap()));
}

/// Staging buffers that are shorter than a run, and no multiple of one: every copy is cut somewhere.
#[test]
fn device_memory_conforms_through_short_buffers() {
    let Some(gpu) = gpu("device_memory_conforms_through_short_buffers") else { return };
    check(&|shape, blocks| Box::new(CudaArena::with_staging(&gpu, shape, blocks, 1000).unwrap()));
}

#[test]
fn pinned_memory_conforms() {
    let Some(gpu) = gpu("pinned_memory_conforms") else { return };
    check(&|shape, blocks| {
        let arena = HostArena::anonymous(shape, blocks, Pages::Small).unwrap();
        Box::new(arena.pinned(&gpu).unwrap())
    });
    check(&|shape, blocks| {
        let arena = HostArena::memfd(shape, blocks, Pages::Small).unwrap();
        Box::new(arena.pinned(&gpu).unwrap())
    });
}

/// What the GPU reads from pinned memory after a shrink is what the processor sees there: had the pages been
/// given back, the GPU would read the old ones.
#[test]
fn pinned_memory_is_the_gpus_after_a_shrink() {
    let Some(gpu) = gpu("pinned_memory_is_the_gpus_after_a_shrink") else { return };
    let (pageable, shape) = (Pages::Small, shape(Layout::BlockFirst, 16));
    let arena = HostArena::anonymous(shape, 16, pageable).unwrap().pinned(&gpu).unwrap();
    assert!(arena.pinned_for().is_some_and(|of| of.is(&gpu)));
    (0..16).for_each(|block| write(&arena, block, 1));
    arena.resize(4).unwrap();
    arena.resize(16).unwrap();
    write(&arena, 9, 2);
    let run = BlockRun { first: BlockId(8), count: 2 };
    let bound = shape.blocks_view(run, 0, Half::Key).unwrap();
    let view = arena.view(&bound).unwrap();
    let seen = view.row(&[0, 1, 0]).unwrap();
    assert!(gpu.is_pinned(seen));
    assert!(seen.iter().any(|byte| *byte != 0));
    // A copy straight from these pages, by the GPU.
    let (device, stream) = (DeviceBuffer::new(&gpu, 16).unwrap(), Stream::new(&gpu).unwrap());
    device.span().write(seen, &stream).unwrap();
    assert_eq!(device.span().to_vec(&stream).unwrap(), seen);
}

/// Blocks of 6 MiB take several turns of both staging buffers, or none from pinned memory; either way they
/// come back as they were.
#[test]
fn long_blocks_travel_through_staging_and_from_pinned_memory() {
    let Some(gpu) = gpu("long_blocks_travel_through_staging_and_from_pinned_memory") else {
        return;
    };
    let spec = AttentionSpec {
        layers: 3,
        kv_heads: 8,
        head_dim: 128,
        block_tokens: 512,
        dtype: DType::F16,
    };
    let geometry = Geometry::attention(spec).unwrap();
    let long = ArenaShape::new(geometry, Layout::Nhd, 3).unwrap();
    let device = CudaArena::with_staging(&gpu, long, 3, 1 << 20).unwrap();
    write(&device, 1, 5);
    let bytes = read(&device, 1, Order::Tokens);
    assert_eq!(read(&device, 2, Order::Tokens), vec![0; bytes.len()]);
    let mut pinned = mooncrate_gpu::PinnedBuffer::new(&gpu, bytes.len()).unwrap();
    pinned.copy_from_slice(&bytes);
    device.write(&Part::block(BlockId(2)), Order::Tokens, &pinned).unwrap();
    assert_eq!(read(&device, 2, Order::Stored), read(&device, 1, Order::Stored));
    pinned.fill(0);
    device.read(&Part::block(BlockId(2)), Order::Tokens, &mut pinned).unwrap();
    assert_eq!(pinned[..], bytes[..]);
}

/// More blocks than one launch has a list for, copied, moved and zeroed, in a layout with many runs per block. The lists
/// stay where they are, so no call allocates or frees memory of the device.
#[test]
fn long_lists_take_several_launches_and_no_memory() {
    let Some(gpu) = gpu("long_lists_take_several_launches_and_no_memory") else { return };
    let blocks = 2 * LIST_MAX as u32 + 20;
    let arena = CudaArena::new(&gpu, shape(Layout::Nhd, blocks), blocks).unwrap();
    let places = || {
        let work = arena.work.lock();
        let lists = [work.pairs.entries().address(), work.moves.entries().address()];
        (lists, work.targets.entries().address(), work.zeros.span().address())
    };
    let (before, half) = (places(), blocks / 2);
    for block in 0..half {
        write(&arena, block, block.into());
    }
    let copies: Vec<BlockCopy> = (0..half)
        .map(|block| BlockCopy { source: BlockId(block), target: BlockId(half + block) })
        .collect();
    arena.copy_blocks(&copies).unwrap();
    for block in [0, 1, half - 1] {
        let wanted = read(&arena, block, Order::Tokens);
        assert!(wanted.iter().any(|byte| *byte != 0));
        assert_eq!(read(&arena, half + block, Order::Tokens), wanted, "{block}");
    }
    let all: Vec<BlockId> = (half..blocks).map(BlockId).collect();
    arena.zero_blocks(&all).unwrap();
    let tokens = arena.shape().geometry().block_tokens();
    let steps: Vec<RowMove> = (0..2 * LIST_MAX as u32 + 3 * tokens)
        .map(|n| RowMove {
            source: Slot::new(BlockId(n / tokens), n % tokens, tokens),
            target: Slot::new(BlockId(half + n / tokens), n % tokens, tokens),
        })
        .collect();
    for block in [half, half + 1, blocks - 1] {
        assert!(read(&arena, block, Order::Tokens).iter().all(|byte| *byte == 0), "{block}");
    }
    assert!(read(&arena, half - 1, Order::Tokens).iter().any(|byte| *byte != 0), "others stay");
    arena.compact(&steps).unwrap();
    for block in [0, 1, steps.len() as u32 / tokens - 1] {
        let moved = read(&arena, half + block, Order::Tokens);
        assert_eq!(moved, read(&arena, block, Order::Tokens), "{block}");
    }
    arena.zero_blocks(&[]).unwrap();
    assert_eq!(places(), before);
}
