//! What every arena must do, whatever its memory: one suite for all implementations of [`Arena`].
//!
//! An implementation passes a function that makes an arena of a shape, with so many blocks at first, to
//! [`check`]. Contents are compared in the order of tokens, so that the layouts are judged too.

use crate::arena::{Arena, ArenaError};
use crate::dtype::DType;
use crate::geometry::{AttentionSpec, Geometry};
use crate::ids::BlockId;
use crate::kernels::{RowMove, Slot};
use crate::layout::tests::small_shapes;
use crate::layout::{ArenaShape, Axis, Layout};
use crate::part::{BlockCopy, Order, Part};
use mooncrate_core::Advice;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

/// Makes an arena of a shape that has so many blocks.
pub(crate) type Make<'a> = &'a dyn Fn(ArenaShape, u32) -> Box<dyn Arena>;

/// The whole suite.
pub(crate) fn check(make: Make) {
    blocks_travel_between_layouts(make);
    wrong_calls_change_nothing_and_say_why(make);
    sizes_outside_are_refused(make);
    shrinking_keeps_the_rest_and_growing_gives_zeros(make);
    distinct_blocks_from_several_threads(make);
    any_calls_satisfy_the_model(make);
}

/// A block of this has 2 layers x 2 halves x 4 heads x 16 tokens x 16 bytes: 4 KiB.
pub(crate) fn shape(layout: Layout, blocks: u32) -> ArenaShape {
    let spec =
        AttentionSpec { layers: 2, kv_heads: 4, head_dim: 8, block_tokens: 16, dtype: DType::F16 };
    ArenaShape::new(Geometry::attention(spec).unwrap(), layout, blocks).unwrap()
}

/// Bytes that name their block and their place.
fn stamped(shape: &ArenaShape, block: u32, salt: u64) -> Vec<u8> {
    let word = |at: u64| (at ^ u64::from(block) << 20 ^ salt).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..shape.geometry().block_bytes()).map(|at| (word(at) >> 56) as u8).collect()
}

pub(crate) fn read(arena: &dyn Arena, block: u32, order: Order) -> Vec<u8> {
    let mut bytes = vec![0xaa; arena.shape().geometry().block_bytes() as usize];
    arena.read(&Part::block(BlockId(block)), order, &mut bytes).unwrap();
    bytes
}

pub(crate) fn write(arena: &dyn Arena, block: u32, salt: u64) {
    let bytes = stamped(arena.shape(), block, salt);
    arena.write(&Part::block(BlockId(block)), Order::Tokens, &bytes).unwrap();
}

/// What was written in the order of tokens by one layout is the same bytes for another one.
fn blocks_travel_between_layouts(make: Make) {
    for layout in Layout::ALL.into_iter().filter(|layout| *layout != Layout::Mla) {
        let arena = make(shape(layout, 5), 5);
        (0..5).for_each(|block| write(&*arena, block, 0));
        let target = make(shape(Layout::Hnd, 3), 3);
        let bytes = read(&*arena, 4, Order::Tokens);
        target.write(&Part::block(BlockId(1)), Order::Tokens, &bytes).unwrap();
        assert_eq!(read(&*target, 1, Order::Tokens), stamped(arena.shape(), 4, 0), "{layout}");
    }
}

fn wrong_calls_change_nothing_and_say_why(make: Make) {
    let arena = make(shape(Layout::Nhd, 8), 4);
    write(&*arena, 1, 0);
    let before = read(&*arena, 1, Order::Stored);
    let part = Part::block(BlockId(1));
    let short = arena.write(&part, Order::Tokens, &before[1..]).unwrap_err();
    assert!(matches!(short, ArenaError::WrongLength { part_bytes: 4096, buffer_bytes: 4095 }));
    let absent = arena.zero_blocks(&[BlockId(1), BlockId(4)]).unwrap_err();
    assert!(matches!(absent, ArenaError::Absent { block: BlockId(4), blocks: 4 }));
    assert_eq!(absent.advice(), Advice::GiveUp);
    let outside = arena.write(&Part::block(BlockId(8)), Order::Tokens, &before).unwrap_err();
    assert!(matches!(outside, ArenaError::Outside(_)));
    let copy = |source, target| BlockCopy { source: BlockId(source), target: BlockId(target) };
    for copies in [
        [copy(0, 1), copy(2, 1)],   // one target twice
        [copy(0, 1), copy(1, 2)],   // a target that is also a source
        [copy(0, 1), copy(3, 3)],   // a block over itself
        [copy(0, 1), copy(3, 100)], // a block that does not exist
    ] {
        assert!(arena.copy_blocks(&copies).is_err(), "{copies:?}");
    }
    let step = |source, target| RowMove { source: Slot(source), target: Slot(target) };
    for moves in [
        [step(0, 16), step(2, 16)],  // one slot twice
        [step(0, 16), step(17, 32)], // a block that is read and written
        [step(0, 16), step(1, 2)],   // the same block
        [step(0, 16), step(-1, 17)], // no slot
        [step(0, 16), step(64, 17)], // a block that is not there now
        [step(0, 16), step(1, 128)], // a block that can never be there
    ] {
        assert!(arena.compact(&moves).is_err(), "{moves:?}");
    }
    arena.compact(&[]).unwrap();
    assert_eq!(read(&*arena, 1, Order::Stored), before);
    // No claim was left behind.
    arena.zero_blocks(&[BlockId(0), BlockId(1), BlockId(2), BlockId(3)]).unwrap();
    assert!(read(&*arena, 1, Order::Stored).iter().all(|byte| *byte == 0));
}

fn sizes_outside_are_refused(make: Make) {
    let arena = make(shape(Layout::Nhd, 8), 8);
    for blocks in [0, 9] {
        let error = arena.resize(blocks).unwrap_err();
        assert!(matches!(error, ArenaError::BadSize { reserved: 8, .. }), "{error}");
    }
    assert_eq!(arena.blocks(), 8);
}

/// Blocks of 1 KiB per layer and half, an odd number of them: at both ends of what is given back a page also
/// holds bytes that stay.
fn shrinking_keeps_the_rest_and_growing_gives_zeros(make: Make) {
    for layout in Layout::ALL.into_iter().filter(|layout| *layout != Layout::Mla) {
        let arena = make(shape(layout, 41), 41);
        (0..41).for_each(|block| write(&*arena, block, 1));
        for blocks in [33, 32, 7] {
            arena.resize(blocks).unwrap();
            assert_eq!(arena.blocks(), blocks);
            assert!(arena.zero_blocks(&[BlockId(blocks)]).is_err());
        }
        arena.resize(41).unwrap();
        for block in 0..41 {
            let wanted = match block {
                0..7 => stamped(arena.shape(), block, 1),
                _ => vec![0; 4096],
            };
            assert_eq!(read(&*arena, block, Order::Tokens), wanted, "{layout}, block {block}");
        }
    }
}

/// Threads with blocks of their own, in one arena whose pages they share, while its end moves.
fn distinct_blocks_from_several_threads(make: Make) {
    let arena = make(shape(Layout::LayerBlockHead, 64), 64);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let arena = &*arena;
            scope.spawn(move || {
                for round in 0..50 {
                    let mine = thread * 8..thread * 8 + 8;
                    mine.clone().for_each(|block| write(arena, block, round));
                    let copy =
                        BlockCopy { source: BlockId(mine.start), target: BlockId(mine.end - 1) };
                    arena.copy_blocks(&[copy]).unwrap();
                    for block in mine.start..mine.end - 1 {
                        let wanted = stamped(arena.shape(), block, round);
                        assert_eq!(read(arena, block, Order::Tokens), wanted);
                    }
                    let copied = read(arena, mine.end - 1, Order::Tokens);
                    assert_eq!(copied, stamped(arena.shape(), mine.start, round));
                }
            });
        }
        for round in 0..50 {
            arena.resize(33 + round % 31).unwrap();
        }
    });
}

#[derive(Clone, Debug)]
enum Op {
    Write {
        block: u32,
        layer: u32,
        tokens: (u32, u32),
        salt: u8,
    },
    Copy {
        source: u32,
        target: u32,
    },
    Zero {
        block: u32,
    },
    /// Places as block and token.
    Compact {
        moves: Vec<[(u32, u32); 2]>,
    },
    Resize {
        blocks: u32,
    },
}

fn any_op() -> impl Strategy<Value = Op> {
    let id = 0..5_u32;
    prop_oneof![
        (id.clone(), 0..3_u32, any::<(u32, u32)>(), any::<u8>())
            .prop_map(|(block, layer, tokens, salt)| Op::Write { block, layer, tokens, salt }),
        (id.clone(), id.clone()).prop_map(|(source, target)| Op::Copy { source, target }),
        id.clone().prop_map(|block| Op::Zero { block }),
        vec(([0..4_u32, 0..4_u32], [id.clone(), id.clone()]), 0..5).prop_map(|picks| {
            let step =
                |(tokens, blocks): ([u32; 2], [u32; 2])| [0, 1].map(|n| (blocks[n], tokens[n]));
            Op::Compact { moves: picks.into_iter().map(step).collect() }
        }),
        id.prop_map(|blocks| Op::Resize { blocks: blocks + 1 }),
    ]
}

/// The model: the bytes of each block in the order of tokens, one vector per block.
fn apply_to_model(model: &mut Vec<Vec<u8>>, shape: &ArenaShape, op: &Op) -> bool {
    let live = |id: &u32| (*id as usize) < model.len();
    match op {
        Op::Write { block, layer, tokens, salt } if live(block) => {
            let slots = shape.count(Axis::Token);
            let layer = layer % shape.count(Axis::Layer);
            let row = shape.geometry().row_bytes() as usize * shape.count(Axis::Head) as usize;
            for half in 0..shape.count(Axis::Half) {
                for token in token_range(*tokens, slots) {
                    let place = ((layer * shape.count(Axis::Half) + half) * slots + token) as usize;
                    model[*block as usize][place * row..(place + 1) * row].fill(*salt);
                }
            }
        }
        Op::Copy { source, target } if live(source) && live(target) && source != target => {
            model[*target as usize] = model[*source as usize].clone();
        }
        Op::Zero { block } if live(block) => model[*block as usize].fill(0),
        Op::Compact { moves } => return compact_model(model, shape, moves),
        Op::Resize { blocks } if *blocks <= shape.blocks() => {
            model.resize(*blocks as usize, vec![0; shape.geometry().block_bytes() as usize]);
        }
        _ => return false,
    }
    true
}

/// A place on an axis of tokens that may be shorter than what was drawn.
fn token_at(shape: &ArenaShape, pick: u32) -> u32 {
    pick % shape.count(Axis::Token)
}

fn compact_model(model: &mut [Vec<u8>], shape: &ArenaShape, moves: &[[(u32, u32); 2]]) -> bool {
    let place = |(block, token)| (block, token_at(shape, token));
    let moves: Vec<_> = moves.iter().map(|step| step.map(place)).collect();
    let fine = moves.iter().enumerate().all(|(n, [_, target])| {
        moves.iter().all(|[source, _]| source.0 != target.0)
            && moves[..n].iter().all(|[_, other]| other != target)
    });
    let live = moves.iter().flatten().all(|(block, _)| (*block as usize) < model.len());
    if !fine || !live {
        return false;
    }
    let row = shape.geometry().row_bytes() as usize * shape.count(Axis::Head) as usize;
    let (slots, outer) =
        (shape.count(Axis::Token), shape.count(Axis::Layer) * shape.count(Axis::Half));
    for [source, target] in moves {
        for layer_half in 0..outer {
            let at = |token: u32| (layer_half * slots + token) as usize * row;
            let kv = model[source.0 as usize][at(source.1)..][..row].to_vec();
            model[target.0 as usize][at(target.1)..][..row].copy_from_slice(&kv);
        }
    }
    true
}

fn token_range(picks: (u32, u32), slots: u32) -> std::ops::Range<u32> {
    let start = picks.0 % (slots + 1);
    start..start + picks.1 % (slots - start + 1)
}

fn apply(arena: &dyn Arena, op: &Op) -> Result<(), ArenaError> {
    match op {
        Op::Write { block, layer, tokens, salt } => {
            let slots = arena.shape().count(Axis::Token);
            let part = Part::block(BlockId(*block))
                .layer(layer % arena.shape().count(Axis::Layer))
                .tokens(token_range(*tokens, slots));
            let bytes = arena.shape().runs(&part, Order::Stored)?.bytes();
            arena.write(&part, Order::Stored, &vec![*salt; bytes as usize])
        }
        Op::Copy { source, target } => {
            let (source, target) = (BlockId(*source), BlockId(*target));
            arena.copy_blocks(&[BlockCopy { source, target }])
        }
        Op::Zero { block } => arena.zero_blocks(&[BlockId(*block)]),
        Op::Compact { moves } => {
            let slot = |(block, token)| {
                let size = arena.shape().count(Axis::Token);
                Slot::new(BlockId(block), token_at(arena.shape(), token), size)
            };
            let step = |step: &[(u32, u32); 2]| {
                let [source, target] = step.map(slot);
                RowMove { source, target }
            };
            arena.compact(&moves.iter().map(step).collect::<Vec<_>>())
        }
        Op::Resize { blocks } => arena.resize(*blocks),
    }
}

/// In any order of calls the blocks have the bytes of the model, and the same calls are refused.
fn any_calls_satisfy_the_model(make: Make) {
    let mut runner = TestRunner::new(ProptestConfig::with_cases(128));
    let calls = (small_shapes(), vec(any_op(), 0..40), 1..6_u32);
    let judged = runner.run(&calls, |(shape, ops, start)| {
        let start = start.min(shape.blocks());
        let arena = make(shape, start);
        let mut model = vec![vec![0; shape.geometry().block_bytes() as usize]; start as usize];
        for op in &ops {
            let taken = apply(&*arena, op).is_ok();
            prop_assert_eq!(taken, apply_to_model(&mut model, &shape, op), "{:?}", op);
            for (block, bytes) in model.iter().enumerate() {
                prop_assert_eq!(&read(&*arena, block as u32, Order::Tokens), bytes, "{:?}", op);
            }
        }
        Ok(())
    });
    judged.unwrap_or_else(|error| panic!("{error}"));
}
