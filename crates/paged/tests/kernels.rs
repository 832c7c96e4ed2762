//! Every kernel beside its oracle, on a real GPU: equal in every byte, of what it writes and of what it
//! must not touch.
//!
//! Without a GPU each test says `SKIPPED`, with its name and the reason; the oracles have tests of their
//! own that run everywhere. `./dev gpu` runs these on a machine with a GPU and fails if one was skipped.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail where they stand")]

use mooncrate_core::rng::Rng;
use mooncrate_gpu::{DeviceBuffer, Gpu, Graph, Span, Stream};
use mooncrate_paged::kernels::{
    BlockPair, BlockRows, BlockSpace, DeviceList, Entries, HostRows, KernelError, Kernels, NewRows,
    RowMove, Shape, Slot, TargetBlock, append_oracle, compact_oracle, copy_blocks_oracle,
    gather_oracle, scatter_oracle,
};
use mooncrate_paged::{Axis, BlockId};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// NHD and HND of `FlashInfer`, K and V apart as in vLLM, and whole blocks as they are spilled.
const ORDERS: [[Axis; 5]; 4] = [
    [Axis::Layer, Axis::Block, Axis::Half, Axis::Token, Axis::Head],
    [Axis::Layer, Axis::Block, Axis::Half, Axis::Head, Axis::Token],
    [Axis::Layer, Axis::Half, Axis::Block, Axis::Token, Axis::Head],
    [Axis::Block, Axis::Layer, Axis::Half, Axis::Token, Axis::Head],
];
/// An odd number, so that nothing divides evenly.
const BLOCKS: u32 = 13;

const fn shape(layers: u32, halves: u32, block_tokens: u32, heads: u32, row_bytes: u32) -> Shape {
    Shape { layers, halves, block_tokens, heads, row_bytes }
}

/// Eight heads of 128 bf16; one row for K and V; the smallest; odd in every way; rows of many tiles.
const SHAPES: [Shape; 5] = [
    shape(3, 2, 16, 8, 256),
    shape(2, 1, 16, 1, 1_152),
    shape(1, 2, 1, 1, 16),
    shape(5, 2, 7, 3, 48),
    shape(2, 2, 32, 4, 512),
];

struct Rig {
    kernels: Kernels,
    stream: Stream,
    gpu: Gpu,
    rng: Rng,
    /// One test at a time: what one test frees must not meet what another one records.
    _turn: MutexGuard<'static, ()>,
}

impl Rig {
    /// GPU number 0 with its kernels, or the word that the test was skipped.
    fn new(test: &str) -> Option<Self> {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        match Gpu::open(0) {
            Ok(gpu) => Some(Self {
                kernels: Kernels::load(&gpu).unwrap(),
                stream: Stream::new(&gpu).unwrap(),
                gpu,
                rng: Rng::stream(1, test),
                _turn: turn,
            }),
            Err(error) if error.is_absent() => {
                eprintln!("SKIPPED {test}: {error}");
                None
            }
            Err(error) => panic!("{test}: {error}"),
        }
    }

    fn random(&mut self, len: u64) -> Vec<u8> {
        let words = len.div_ceil(8);
        let mut bytes: Vec<u8> = (0..words).flat_map(|_| self.rng.next().to_le_bytes()).collect();
        bytes.truncate(len as usize);
        bytes
    }

    fn upload(&self, bytes: &[u8]) -> DeviceBuffer {
        let buffer = DeviceBuffer::new(&self.gpu, bytes.len() as u64).unwrap();
        buffer.span().write(bytes, &self.stream).unwrap();
        buffer
    }

    /// `count` different numbers below `below`, in any order.
    fn choose(&mut self, count: usize, below: u32) -> Vec<u32> {
        let mut all: Vec<u32> = (0..below).collect();
        for at in 0..count {
            let other = at + self.rng.below((all.len() - at) as u64) as usize;
            all.swap(at, other);
        }
        all.truncate(count);
        all
    }

    fn refused(&self) -> u32 {
        self.kernels.refused(&self.stream).unwrap()
    }

    /// Compares device memory with what the oracle made, and says where they differ.
    fn compare(&self, what: &str, device: Span<'_>, oracle: &[u8]) {
        let seen = device.to_vec(&self.stream).unwrap();
        let wrong = seen.iter().zip(oracle).filter(|(seen, oracle)| seen != oracle).count();
        let first = seen.iter().zip(oracle).position(|(seen, oracle)| seen != oracle);
        assert_eq!(
            first,
            None,
            "{what}: {wrong} of {} bytes differ; first place above",
            seen.len()
        );
    }
}

/// All shapes in all orders, and once more with gaps between the blocks.
fn cases() -> Vec<(String, BlockRows)> {
    let mut cases = Vec::new();
    for shape in SHAPES {
        for order in ORDERS {
            let strides = BlockRows::packed(shape, BLOCKS, order).unwrap();
            cases.push((format!("{shape:?} in {order:?}"), strides));
        }
        let packed = BlockRows::packed(shape, BLOCKS, ORDERS[3]).unwrap();
        let mut gaps = packed;
        gaps.strides.block += 80;
        cases.push((format!("{shape:?} with gaps"), gaps));
    }
    cases
}

fn bytes_of(strides: &BlockRows, blocks: u32) -> u64 {
    strides.check(blocks).unwrap()
}

#[test]
fn append_does_what_its_oracle_does() {
    let Some(mut rig) = Rig::new("append_does_what_its_oracle_does") else { return };
    for (name, strides) in cases() {
        let mut host = rig.random(bytes_of(&strides, BLOCKS));
        let device = rig.upload(&host);
        let arena = BlockSpace::new(device.span(), strides, BLOCKS).unwrap();
        let token = strides.row_bytes * u64::from(strides.heads);
        // Without gaps, and as a part of a wider tensor.
        for (layer, token_bytes) in [(0, token), (strides.layers - 1, 3 * token + 16)] {
            let all = BLOCKS * strides.block_tokens;
            let count = (all as usize).min(77);
            let mut slots: Vec<Slot> =
                rig.choose(count, all).into_iter().map(|slot| Slot(i64::from(slot))).collect();
            slots.iter_mut().step_by(5).skip(1).for_each(|slot| *slot = Slot::SKIP);
            let len = token_bytes * count as u64;
            let (keys, values) = (rig.random(len), rig.random(len));
            let (on_keys, on_values) = (rig.upload(&keys), rig.upload(&values));
            let rows =
                NewRows { layer, keys: on_keys.span(), values: on_values.span(), token_bytes };
            let list = DeviceList::upload(&slots, &arena, &rig.stream).unwrap();
            rig.kernels.append(&rig.stream, &arena, &rows, list.entries()).unwrap();
            let rows = HostRows { layer, keys: &keys, values: &values, token_bytes };
            assert_eq!(append_oracle(&mut host, &strides, BLOCKS, &rows, &slots), 0);
            rig.compare(&name, device.span(), &host);
        }
    }
    assert_eq!(rig.refused(), 0);
}

#[test]
fn gather_does_what_its_oracle_does() {
    let Some(mut rig) = Rig::new("gather_does_what_its_oracle_does") else { return };
    for (name, from) in cases() {
        let host = rig.random(bytes_of(&from, BLOCKS));
        let device = rig.upload(&host);
        let arena = BlockSpace::new(device.span(), from, BLOCKS).unwrap();
        for (order, count) in ORDERS.into_iter().zip([1, 7, 13, 17]) {
            let to = BlockRows::packed(from.shape(), 17, order).unwrap();
            let mut dense = vec![0xa5; bytes_of(&to, 17) as usize];
            let target = rig.upload(&dense);
            let buffer = BlockSpace::new(target.span(), to, 17).unwrap();
            // Blocks may stand more than once in a table that is only read.
            let table: Vec<BlockId> =
                (0..count).map(|_| BlockId(rig.rng.below(u64::from(BLOCKS)) as u32)).collect();
            let list = DeviceList::upload(&table, &arena, &rig.stream).unwrap();
            rig.kernels.gather(&rig.stream, &buffer, &arena, list.entries()).unwrap();
            assert_eq!(gather_oracle(&mut dense, &to, &host, &from, BLOCKS, &table), 0);
            rig.compare(&format!("{name} to {order:?}"), target.span(), &dense);
        }
        rig.compare("the arena is only read", device.span(), &host);
    }
    assert_eq!(rig.refused(), 0);
}

#[test]
fn scatter_does_what_its_oracle_does() {
    let Some(mut rig) = Rig::new("scatter_does_what_its_oracle_does") else { return };
    for (name, to) in cases() {
        let mut host = vec![0xa5; bytes_of(&to, BLOCKS) as usize];
        let device = rig.upload(&host);
        let arena = BlockSpace::new(device.span(), to, BLOCKS).unwrap();
        for (order, count) in ORDERS.into_iter().zip([1, 7, 13, 5]) {
            let from = BlockRows::packed(to.shape(), BLOCKS, order).unwrap();
            let dense = rig.random(bytes_of(&from, BLOCKS));
            let source = rig.upload(&dense);
            let buffer = BlockSpace::new(source.span(), from, BLOCKS).unwrap();
            let chosen = rig.choose(count, BLOCKS);
            let table: Vec<TargetBlock> =
                chosen.into_iter().map(|block| TargetBlock(BlockId(block))).collect();
            let list = DeviceList::upload(&table, &arena, &rig.stream).unwrap();
            rig.kernels.scatter(&rig.stream, &arena, &buffer, list.entries()).unwrap();
            assert_eq!(scatter_oracle(&mut host, &to, BLOCKS, &dense, &from, &table), 0);
            rig.compare(&format!("{name} from {order:?}"), device.span(), &host);
        }
    }
    assert_eq!(rig.refused(), 0);
}

#[test]
fn copy_blocks_does_what_its_oracle_does() {
    let Some(mut rig) = Rig::new("copy_blocks_does_what_its_oracle_does") else { return };
    for (name, strides) in cases() {
        let mut host = rig.random(bytes_of(&strides, BLOCKS));
        let device = rig.upload(&host);
        let arena = BlockSpace::new(device.span(), strides, BLOCKS).unwrap();
        for count in [0, 1, 5, 6] {
            let blocks = rig.choose(2 * count, BLOCKS);
            let (sources, targets) = blocks.split_at(count);
            let mut pairs: Vec<BlockPair> = sources
                .iter()
                .zip(targets)
                .map(|(a, b)| BlockPair { source: BlockId(*a), target: BlockId(*b) })
                .collect();
            // One source, several targets: a fork of a fork.
            if count == 6 {
                pairs[3].source = pairs[0].source;
            }
            let list = DeviceList::upload(&pairs, &arena, &rig.stream).unwrap();
            rig.kernels.copy_blocks(&rig.stream, &arena, list.entries()).unwrap();
            assert_eq!(copy_blocks_oracle(&mut host, &strides, BLOCKS, &pairs), 0);
            rig.compare(&name, device.span(), &host);
        }
    }
    assert_eq!(rig.refused(), 0);
}

#[test]
fn compact_does_what_its_oracle_does() {
    let Some(mut rig) = Rig::new("compact_does_what_its_oracle_does") else { return };
    for (name, strides) in cases() {
        let mut host = rig.random(bytes_of(&strides, BLOCKS));
        let device = rig.upload(&host);
        let arena = BlockSpace::new(device.span(), strides, BLOCKS).unwrap();
        // Blocks 0 to 8 are read, the last four are written.
        let tokens = strides.block_tokens;
        let mut kept = rig.choose((4 * tokens) as usize, 9 * tokens);
        kept.sort_unstable();
        let moves: Vec<RowMove> = (9 * tokens..)
            .zip(kept)
            .map(|(to, from)| RowMove { source: Slot(from.into()), target: Slot(to.into()) })
            .collect();
        let list = DeviceList::upload(&moves, &arena, &rig.stream).unwrap();
        rig.kernels.compact(&rig.stream, &arena, list.entries()).unwrap();
        assert_eq!(compact_oracle(&mut host, &strides, BLOCKS, &moves), 0);
        rig.compare(&name, device.span(), &host);
    }
    assert_eq!(rig.refused(), 0);
}

/// A list that was made on the device cannot be checked by the host.
#[test]
fn indices_that_do_not_exist_are_counted_and_write_nothing() {
    let name = "indices_that_do_not_exist_are_counted_and_write_nothing";
    let Some(mut rig) = Rig::new(name) else { return };
    let strides = BlockRows::packed(SHAPES[3], BLOCKS, ORDERS[0]).unwrap();
    let host = rig.random(bytes_of(&strides, BLOCKS));
    let device = rig.upload(&host);
    let arena = BlockSpace::new(device.span(), strides, BLOCKS).unwrap();
    let dense = BlockRows::packed(SHAPES[3], 4, ORDERS[3]).unwrap();
    let other = vec![0xa5; bytes_of(&dense, 4) as usize];
    let buffer = rig.upload(&other);
    let buffer_space = BlockSpace::new(buffer.span(), dense, 4).unwrap();
    let slots = i64::from(BLOCKS) * i64::from(strides.block_tokens);
    let wide =
        |values: &[i64]| -> Vec<u8> { values.iter().flat_map(|v| v.to_le_bytes()).collect() };
    let narrow =
        |values: &[u32]| -> Vec<u8> { values.iter().flat_map(|v| v.to_le_bytes()).collect() };

    let list = rig.upload(&narrow(&[BLOCKS, u32::MAX, BLOCKS + 1]));
    let table = Entries::on_device(list.span(), 3).unwrap();
    rig.kernels.gather(&rig.stream, &buffer_space, &arena, table).unwrap();
    assert_eq!(rig.refused(), 3);
    let table = Entries::on_device(list.span(), 3).unwrap();
    rig.kernels.scatter(&rig.stream, &arena, &buffer_space, table).unwrap();
    assert_eq!(rig.refused(), 6);
    let list = rig.upload(&narrow(&[0, BLOCKS, u32::MAX, 1]));
    let pairs = Entries::on_device(list.span(), 2).unwrap();
    rig.kernels.copy_blocks(&rig.stream, &arena, pairs).unwrap();
    assert_eq!(rig.refused(), 8);
    let list = rig.upload(&wide(&[0, slots, -1, 0, i64::MIN, 7]));
    let moves = Entries::on_device(list.span(), 3).unwrap();
    rig.kernels.compact(&rig.stream, &arena, moves).unwrap();
    assert_eq!(rig.refused(), 11);
    let list = rig.upload(&wide(&[slots, -1, i64::MAX, i64::MIN]));
    let entries = Entries::on_device(list.span(), 4).unwrap();
    let token_bytes = strides.row_bytes * u64::from(strides.heads);
    let rows = rig.upload(&rig.rng.clone().next().to_le_bytes().repeat(token_bytes as usize));
    let rows = NewRows { layer: 0, keys: rows.span(), values: rows.span(), token_bytes };
    rig.kernels.append(&rig.stream, &arena, &rows, entries).unwrap();
    // Two slots do not exist, each for K and for V; negative ones are skipped.
    assert_eq!(rig.refused(), 15);
    rig.compare("the arena", device.span(), &host);
    rig.compare("the buffer", buffer.span(), &other);
}

#[test]
fn wrong_arguments_are_refused_before_the_launch() {
    let name = "wrong_arguments_are_refused_before_the_launch";
    let Some(rig) = Rig::new(name) else { return };
    let strides = BlockRows::packed(SHAPES[2], BLOCKS, ORDERS[3]).unwrap();
    let len = bytes_of(&strides, BLOCKS);
    let device = DeviceBuffer::new(&rig.gpu, 2 * len + 16).unwrap();
    let part = |from: u64, to: u64| device.span().part(from..to).unwrap();
    let error = BlockSpace::new(part(0, len - 1), strides, BLOCKS).unwrap_err();
    assert!(matches!(error, KernelError::TooShort { .. }), "{error}");
    let error = BlockSpace::new(part(8, len + 8), strides, BLOCKS).unwrap_err();
    assert!(matches!(error, KernelError::Misaligned { .. }), "{error}");
    let arena = BlockSpace::new(part(0, len), strides, BLOCKS).unwrap();
    let over = BlockSpace::new(part(len - 16, 2 * len), strides, BLOCKS).unwrap();
    let table = DeviceList::upload(&[BlockId(0)], &arena, &rig.stream).unwrap();
    let error = rig.kernels.gather(&rig.stream, &over, &arena, table.entries()).unwrap_err();
    assert!(error.to_string().contains("lies inside of the arena"), "{error}");
    let other = BlockRows::packed(SHAPES[1], 1, ORDERS[3]).unwrap();
    let memory = DeviceBuffer::new(&rig.gpu, bytes_of(&other, 1)).unwrap();
    let unlike = BlockSpace::new(memory.span(), other, 1).unwrap();
    let error = rig.kernels.gather(&rig.stream, &unlike, &arena, table.entries()).unwrap_err();
    assert!(error.to_string().contains("do not fit"), "{error}");
    let one = BlockRows::packed(SHAPES[2], 1, ORDERS[3]).unwrap();
    let small = BlockSpace::new(part(len, 2 * len), one, 1).unwrap();
    let table = DeviceList::upload(&[BlockId(0); 2], &arena, &rig.stream).unwrap();
    let error = rig.kernels.gather(&rig.stream, &small, &arena, table.entries()).unwrap_err();
    assert!(matches!(error, KernelError::TooShort { .. }), "{error}");
    let error = DeviceList::upload(&[BlockId(BLOCKS)], &arena, &rig.stream).unwrap_err();
    assert!(matches!(error, KernelError::OutOfRange { .. }), "{error}");
    let rows =
        NewRows { layer: 1, keys: part(len, 2 * len), values: part(len, 2 * len), token_bytes: 16 };
    let slots = DeviceList::upload(&[Slot(0)], &arena, &rig.stream).unwrap();
    let error = rig.kernels.append(&rig.stream, &arena, &rows, slots.entries()).unwrap_err();
    assert_eq!(error.to_string(), "layer 1 does not exist: there are 1");
    let rows = NewRows { layer: 0, keys: part(16, 32), ..rows };
    let error = rig.kernels.append(&rig.stream, &arena, &rows, slots.entries()).unwrap_err();
    assert!(error.to_string().contains("lie inside of the arena"), "{error}");
    assert_eq!(rig.refused(), 0);
}

/// The list has a fixed address, so a graph that was recorded once follows new entries.
#[test]
fn a_recorded_launch_follows_the_list_of_the_day() {
    let name = "a_recorded_launch_follows_the_list_of_the_day";
    let Some(mut rig) = Rig::new(name) else { return };
    let from = BlockRows::packed(SHAPES[0], BLOCKS, ORDERS[0]).unwrap();
    let to = BlockRows::packed(SHAPES[0], 3, ORDERS[3]).unwrap();
    let host = rig.random(bytes_of(&from, BLOCKS));
    let device = rig.upload(&host);
    let arena = BlockSpace::new(device.span(), from, BLOCKS).unwrap();
    let mut dense = vec![0xa5; bytes_of(&to, 3) as usize];
    let target = rig.upload(&dense);
    let buffer = BlockSpace::new(target.span(), to, 3).unwrap();
    let mut list = DeviceList::upload(&[BlockId(0); 3], &arena, &rig.stream).unwrap();
    let graph = Graph::record(&rig.stream, |stream| {
        rig.kernels.gather(stream, &buffer, &arena, list.entries())
    })
    .unwrap();
    for round in 0..3 {
        let table = [5, 11, 2].map(|block| BlockId((block + round) % BLOCKS));
        list.set(&table, &arena, &rig.stream).unwrap();
        // SAFETY: arena, buffer, list and kernels live until the end of this test.
        unsafe { graph.launch(&rig.stream) }.unwrap();
        gather_oracle(&mut dense, &to, &host, &from, BLOCKS, &table);
        rig.compare(&format!("round {round}"), target.span(), &dense);
    }
}

/// Each launch reads what the one before wrote, and writes what the one before read. They start early, so one
/// that did not wait would read old bytes.
#[test]
fn launches_in_a_row_see_all_that_came_before() {
    let name = "launches_in_a_row_see_all_that_came_before";
    let Some(mut rig) = Rig::new(name) else { return };
    let strides = BlockRows::packed(shape(8, 2, 16, 8, 256), BLOCKS, ORDERS[0]).unwrap();
    let mut host = rig.random(bytes_of(&strides, BLOCKS));
    let device = rig.upload(&host);
    let arena = BlockSpace::new(device.span(), strides, BLOCKS).unwrap();
    let dense = BlockRows::packed(strides.shape(), 4, ORDERS[3]).unwrap();
    let mut buffer_host = vec![0xa5; bytes_of(&dense, 4) as usize];
    let buffer_device = rig.upload(&buffer_host);
    let buffer = BlockSpace::new(buffer_device.span(), dense, 4).unwrap();
    let upper = [4, 5, 6, 7].map(BlockId);
    let lower = [0, 1, 2, 3].map(|block| TargetBlock(BlockId(block)));
    let pairs = [0, 1, 2, 3].map(|n| BlockPair { source: BlockId(n), target: BlockId(n + 4) });
    // Tokens of the copies go back to the blocks that they were copied from, each to the next place.
    let tokens = i64::from(4 * strides.block_tokens);
    let moves: Vec<RowMove> = (0..tokens)
        .map(|n| RowMove { source: Slot(tokens + n), target: Slot((n + 1) % tokens) })
        .collect();
    let on_pairs = DeviceList::upload(&pairs, &arena, &rig.stream).unwrap();
    let on_moves = DeviceList::upload(&moves, &arena, &rig.stream).unwrap();
    let on_upper = DeviceList::upload(&upper, &arena, &rig.stream).unwrap();
    let on_lower = DeviceList::upload(&lower, &arena, &rig.stream).unwrap();
    let round = |stream: &Stream| {
        rig.kernels.copy_blocks(stream, &arena, on_pairs.entries())?;
        rig.kernels.compact(stream, &arena, on_moves.entries())?;
        rig.kernels.copy_blocks(stream, &arena, on_pairs.entries())?;
        rig.kernels.gather(stream, &buffer, &arena, on_upper.entries())?;
        rig.kernels.compact(stream, &arena, on_moves.entries())?;
        rig.kernels.scatter(stream, &arena, &buffer, on_lower.entries())
    };
    let rounds = |stream: &Stream| (0..20).try_for_each(|_| round(stream));
    rounds(&rig.stream).unwrap();
    let graph = Graph::record(&rig.stream, rounds).unwrap();
    // SAFETY: arena, buffer, lists and kernels live until the end of this test.
    unsafe { graph.launch(&rig.stream) }.unwrap();
    for _ in 0..40 {
        copy_blocks_oracle(&mut host, &strides, BLOCKS, &pairs);
        compact_oracle(&mut host, &strides, BLOCKS, &moves);
        copy_blocks_oracle(&mut host, &strides, BLOCKS, &pairs);
        gather_oracle(&mut buffer_host, &dense, &host, &strides, BLOCKS, &upper);
        compact_oracle(&mut host, &strides, BLOCKS, &moves);
        scatter_oracle(&mut host, &strides, BLOCKS, &buffer_host, &dense, &lower);
    }
    rig.compare("the arena", device.span(), &host);
    rig.compare("the buffer", buffer_device.span(), &buffer_host);
    assert_eq!(rig.refused(), 0);
}

/// Blocks beyond 4 GiB: an offset of 32 bits would wrap around and hit another block.
#[test]
fn offsets_have_64_bits() {
    let Some(mut rig) = Rig::new("offsets_have_64_bits") else { return };
    let shape = shape(32, 2, 16, 8, 256);
    let (blocks, bytes) = (2_100, shape.block_bytes());
    let strides = BlockRows::packed(shape, blocks, ORDERS[3]).unwrap();
    let device = DeviceBuffer::new(&rig.gpu, bytes_of(&strides, blocks)).unwrap();
    device.span().fill(0xa5, &rig.stream).unwrap();
    let arena = BlockSpace::new(device.span(), strides, blocks).unwrap();
    let block = |index: u64| device.span().part(index * bytes..(index + 1) * bytes).unwrap();
    let (host, row) = (rig.random(bytes), rig.random(8 * 256));
    block(1).write(&host, &rig.stream).unwrap();
    let pairs = [BlockPair { source: BlockId(1), target: BlockId(2_099) }];
    let list = DeviceList::upload(&pairs, &arena, &rig.stream).unwrap();
    rig.kernels.copy_blocks(&rig.stream, &arena, list.entries()).unwrap();
    rig.compare("the copy", block(2_099), &host);
    // The last token of the last block, in the last layer.
    let rows = rig.upload(&row);
    let rows = NewRows { layer: 31, keys: rows.span(), values: rows.span(), token_bytes: 8 * 256 };
    let slot = Slot::new(BlockId(2_098), 15, 16);
    let slots = DeviceList::upload(&[slot], &arena, &rig.stream).unwrap();
    rig.kernels.append(&rig.stream, &arena, &rows, slots.entries()).unwrap();
    let tail = device.span().part(2_099 * bytes - 8 * 256..2_099 * bytes).unwrap();
    rig.compare("the last V row", tail, &row);
    let poison = vec![0xa5; bytes as usize];
    // Where 32 bits would have put them, and beside.
    for index in [2_099 % 2_048, 2_098 % 2_048, 2_097, 0, 2] {
        rig.compare(&format!("block {index}"), block(index), &poison);
    }
    assert_eq!(rig.refused(), 0);
}
