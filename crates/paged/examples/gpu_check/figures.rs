//! The figures: each kernel beside a plain copy of the same bytes, hot and rotating.

use crate::report::{Figure, Report};
use crate::timer::{ROUNDS, Time, time};
use mooncrate_core::rng::Rng;
use mooncrate_gpu::{DeviceBuffer, Gpu, PinnedBuffer, Span, Stream};
use mooncrate_paged::kernels::{
    BlockPair, BlockRows, BlockSpace, DeviceList, Entries, Entry, KernelError, Kernels, NewRows,
    RowMove, Shape, Slot, TargetBlock,
};
use mooncrate_paged::{Axis, BlockId};

/// 32 layers, 8 KV heads of 128 bf16, 16 tokens: a block has 2 MiB.
const SHAPE: Shape = Shape { layers: 32, halves: 2, block_tokens: 16, heads: 8, row_bytes: 256 };
const NHD: [Axis; 5] = [Axis::Layer, Axis::Block, Axis::Half, Axis::Token, Axis::Head];
const HND: [Axis; 5] = [Axis::Layer, Axis::Block, Axis::Half, Axis::Head, Axis::Token];
const SPILL: [Axis; 5] = [Axis::Block, Axis::Layer, Axis::Half, Axis::Token, Axis::Head];
/// Blocks of the arena, 2.25 GiB: also room for the sources and targets of plain copies.
const BLOCKS: u32 = 1_152;
/// What rotating sets add up to, at least: far more than any L2 cache.
const ROTATING_BYTES: u64 = 400_000_000;
/// Slabs that are compared after a figure.
const SAMPLES: usize = 64;

/// Everything that the figures share.
struct Bench<'a> {
    gpu: &'a Gpu,
    kernels: Kernels,
    stream: Stream,
    arena: DeviceBuffer,
    /// As large as the arena: what is gathered goes here.
    buffer: DeviceBuffer,
}

/// Measures everything, and goes on where something fails.
pub(crate) fn all(gpu: &Gpu, report: &mut Report) {
    let bench = match Bench::new(gpu) {
        Ok(bench) => bench,
        Err(error) => return report.add("set-up", Err(error.to_string())),
    };
    for (blocks, mode) in [(8, "hot"), (8, "rotating"), (64, "rotating")] {
        let sets = Sets::of(mode, blocks);
        report.add("plain device copy", bench.plain_figure(sets));
        report.add("copy_blocks", bench.copy_blocks(sets));
        report.add("gather", bench.gather("gather", NHD, sets));
        report.add("gather, HND to NHD", bench.gather("gather, HND to NHD", HND, sets));
        report.add("scatter", bench.scatter(sets));
        report.add("compact, every second token", bench.compact(sets));
    }
    for tokens in [64, 4_096] {
        report.add("append", bench.append(tokens));
    }
    for bytes in [64 << 10, 1 << 20, 8 << 20, 64 << 20] {
        report.add("pinned host to device", bench.pinned(bytes, true));
        report.add("device to pinned host", bench.pinned(bytes, false));
    }
}

/// How many sets of buffers the rounds take turns with.
#[derive(Clone, Copy)]
struct Sets {
    mode: &'static str,
    /// Blocks that a round copies.
    blocks: u32,
    count: u32,
}

impl Sets {
    fn of(mode: &'static str, blocks: u32) -> Self {
        // A set has sources and targets.
        let bytes = 2 * u64::from(blocks) * SHAPE.block_bytes();
        let needed = ROTATING_BYTES.div_ceil(bytes).max(6) as u32;
        Self { mode, blocks, count: if mode == "hot" { 1 } else { needed } }
    }

    fn bytes(self) -> u64 {
        u64::from(self.blocks) * SHAPE.block_bytes()
    }

    /// The set of a round.
    fn at(self, round: usize) -> usize {
        round % self.count as usize
    }

    /// For each set, `per_set` blocks of the arena that no other set has, far apart from each other.
    fn draw(self, per_set: u32, seed: u64) -> Vec<Vec<u32>> {
        let mut rng = Rng::new(seed);
        let mut all: Vec<u32> = (0..BLOCKS).collect();
        for at in (1..all.len()).rev() {
            all.swap(at, rng.below(at as u64 + 1) as usize);
        }
        all.chunks(per_set as usize).take(self.count as usize).map(<[u32]>::to_vec).collect()
    }
}

/// A place in the arena or the buffer that must hold the same bytes as another one.
type Same<'a> = (Span<'a>, Span<'a>);

impl<'a> Bench<'a> {
    fn new(gpu: &'a Gpu) -> Result<Self, KernelError> {
        let bytes = u64::from(BLOCKS) * SHAPE.block_bytes();
        let bench = Self {
            gpu,
            kernels: Kernels::load(gpu)?,
            stream: Stream::new(gpu)?,
            arena: DeviceBuffer::new(gpu, bytes)?,
            buffer: DeviceBuffer::new(gpu, bytes)?,
        };
        bench.fill(&bench.arena)?;
        bench.fill(&bench.buffer)?;
        Ok(bench)
    }

    /// Random bytes, in pieces that are each turned by another amount, so that no two places are alike.
    fn fill(&self, buffer: &DeviceBuffer) -> Result<(), KernelError> {
        const PIECE: usize = 64 << 20;
        let mut rng = Rng::new(buffer.span().address());
        let words = (0..PIECE / 8).map(|_| rng.next());
        let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        let len = buffer.span().len();
        for from in (0..len).step_by(PIECE) {
            let to = len.min(from + PIECE as u64);
            let part = buffer.span().part(from..to)?;
            part.write(&bytes[..(to - from) as usize], &self.stream)?;
            bytes.rotate_left(4_099 * 16);
        }
        Ok(())
    }

    fn lists<T: Entry>(
        &self,
        space: &BlockSpace<'_>,
        lists: impl Iterator<Item = Vec<T>>,
    ) -> Result<Vec<DeviceList<T>>, KernelError> {
        lists.map(|list| DeviceList::upload(&list, space, &self.stream)).collect()
    }

    /// A plain copy on the device, of the same bytes and as many sets.
    fn plain(&self, sets: Sets) -> Result<Time, KernelError> {
        let (arena, buffer) = (self.arena.span(), self.buffer.span());
        let bytes = sets.bytes();
        let work = |stream: &Stream, round: usize| -> Result<(), KernelError> {
            let at = sets.at(round) as u64 * bytes;
            let source = arena.part(at..at + bytes)?;
            Ok(buffer.part(at..at + bytes)?.copy_from(source, stream)?)
        };
        // SAFETY: arena and buffer outlive the call, and no host memory is reached.
        unsafe { time(self.gpu, work) }
    }

    fn plain_figure(&self, sets: Sets) -> Result<Figure, String> {
        let (name, time) = ("plain device copy".to_owned(), self.plain(sets).map_err(text)?);
        Ok(Figure { name, mode: sets.mode, bytes: sets.bytes(), passes: 2, time, plain: None })
    }

    /// A figure whose result was compared, and whose kernels refused nothing.
    fn judged<'b>(
        &self,
        name: &str,
        sets: Sets,
        time: Time,
        same: impl Iterator<Item = Result<Same<'b>, KernelError>>,
    ) -> Result<Figure, String> {
        let refused = self.kernels.refused(&self.stream).map_err(text)?;
        if refused != 0 {
            return Err(format!("the kernels refused {refused} entries"));
        }
        let mut compared = 0;
        for pair in same.take(SAMPLES) {
            let (one, other) = pair.map_err(text)?;
            let one = one.to_vec(&self.stream).map_err(text)?;
            if one != other.to_vec(&self.stream).map_err(text)? {
                return Err(format!("sample {compared}: the copy has other bytes than its source"));
            }
            compared += 1;
        }
        if compared == 0 {
            return Err("nothing was compared".into());
        }
        let plain = Some(self.plain(sets).map_err(text)?);
        let (name, mode, bytes) = (name.to_owned(), sets.mode, sets.bytes());
        Ok(Figure { name, mode, bytes, passes: 2, time, plain })
    }

    fn copy_blocks(&self, sets: Sets) -> Result<Figure, String> {
        let arena = blocks_of(&self.arena, NHD).map_err(text)?;
        let drawn = sets.draw(2 * sets.blocks, 1);
        let pair = |pair: &[u32]| BlockPair { source: BlockId(pair[0]), target: BlockId(pair[1]) };
        let pairs: Vec<Vec<BlockPair>> =
            drawn.iter().map(|set| set.chunks_exact(2).map(pair).collect()).collect();
        let lists = self.lists(&arena, pairs.iter().cloned()).map_err(text)?;
        let work = |stream: &Stream, round: usize| {
            self.kernels.copy_blocks(stream, &arena, lists[sets.at(round)].entries())
        };
        // SAFETY: lists, arena and kernels outlive the call, and no host memory is reached.
        let time = unsafe { time(self.gpu, work) }.map_err(text)?;
        let same = pairs.iter().flatten().zip((0..SHAPE.layers).cycle()).map(|(pair, layer)| {
            Ok((slab(&arena, pair.source.0, layer)?, slab(&arena, pair.target.0, layer)?))
        });
        self.judged("copy_blocks", sets, time, same)
    }

    fn gather(&self, name: &str, order: [Axis; 5], sets: Sets) -> Result<Figure, String> {
        let arena = blocks_of(&self.arena, order).map_err(text)?;
        let tables = sets.draw(sets.blocks, 2);
        let ids = |set: &Vec<u32>| set.iter().copied().map(BlockId).collect();
        let lists: Vec<DeviceList<BlockId>> =
            self.lists(&arena, tables.iter().map(ids)).map_err(text)?;
        let places = self.places(sets).map_err(text)?;
        let work = |stream: &Stream, round: usize| {
            let set = sets.at(round);
            self.kernels.gather(stream, &places[set], &arena, lists[set].entries())
        };
        // SAFETY: lists, arena, buffer and kernels outlive the call, and no host memory is reached.
        let time = unsafe { time(self.gpu, work) }.map_err(text)?;
        let rows = samples(&tables).map(|(set, place, block, at)| {
            Ok((row(&places[set], place, at)?, row(&arena, block, at)?))
        });
        self.judged(name, sets, time, rows)
    }

    fn scatter(&self, sets: Sets) -> Result<Figure, String> {
        let arena = blocks_of(&self.arena, NHD).map_err(text)?;
        let tables = sets.draw(sets.blocks, 3);
        let ids = |set: &Vec<u32>| set.iter().map(|id| TargetBlock(BlockId(*id))).collect();
        let lists: Vec<DeviceList<TargetBlock>> =
            self.lists(&arena, tables.iter().map(ids)).map_err(text)?;
        let places = self.places(sets).map_err(text)?;
        let work = |stream: &Stream, round: usize| {
            let set = sets.at(round);
            self.kernels.scatter(stream, &arena, &places[set], lists[set].entries())
        };
        // SAFETY: lists, arena, buffer and kernels outlive the call, and no host memory is reached.
        let time = unsafe { time(self.gpu, work) }.map_err(text)?;
        let rows = samples(&tables).map(|(set, place, block, at)| {
            Ok((row(&places[set], place, at)?, row(&arena, block, at)?))
        });
        self.judged("scatter", sets, time, rows)
    }

    /// Every second token of twice as many blocks is kept.
    fn compact(&self, sets: Sets) -> Result<Figure, String> {
        let arena = blocks_of(&self.arena, NHD).map_err(text)?;
        let count = sets.blocks as usize;
        // Three blocks for each one that is written: two are read.
        let drawn = sets.draw(3 * sets.blocks, 4);
        let slot = |blocks: &[u32], token: usize| {
            Slot::new(BlockId(blocks[token / 16]), (token % 16) as u32, SHAPE.block_tokens)
        };
        let moves: Vec<Vec<RowMove>> = drawn
            .iter()
            .map(|set| {
                let (old, new) = set.split_at(2 * count);
                let step = |token: usize| RowMove {
                    source: slot(old, 2 * token),
                    target: slot(new, token),
                };
                (0..16 * count).map(step).collect()
            })
            .collect();
        let lists = self.lists(&arena, moves.iter().cloned()).map_err(text)?;
        let work = |stream: &Stream, round: usize| {
            self.kernels.compact(stream, &arena, lists[sets.at(round)].entries())
        };
        // SAFETY: lists, arena and kernels outlive the call, and no host memory is reached.
        let time = unsafe { time(self.gpu, work) }.map_err(text)?;
        let rows = moves.iter().flatten().step_by(7).zip(0..).map(|(step, n): (_, u32)| {
            let at = [n % 32, n % 2, n % 8];
            Ok((row_of(&arena, step.source, at)?, row_of(&arena, step.target, at)?))
        });
        self.judged("compact, every second token", sets, time, rows)
    }

    /// One layer's rows of `tokens` new tokens; each round takes the next layer.
    fn append(&self, tokens: u32) -> Result<Figure, String> {
        let arena = blocks_of(&self.arena, NHD).map_err(text)?;
        let mut rng = Rng::new(5);
        let all = u64::from(BLOCKS * SHAPE.block_tokens);
        // A step that has no divisor in common with the number of slots visits each slot once.
        let first = rng.below(all);
        let slots: Vec<Slot> = (0..u64::from(tokens))
            .map(|token| Slot(((first + token * 1_003) % all).cast_signed()))
            .collect();
        let list = DeviceList::upload(&slots, &arena, &self.stream).map_err(text)?;
        let token_bytes = u64::from(SHAPE.heads * SHAPE.row_bytes);
        let len = u64::from(tokens) * token_bytes;
        let keys = self.buffer.span().part(0..len).map_err(text)?;
        let values = self.buffer.span().part(len..2 * len).map_err(text)?;
        let work = |stream: &Stream, round: usize| {
            let layer = (round % SHAPE.layers as usize) as u32;
            let rows = NewRows { layer, keys, values, token_bytes };
            let slots: Entries<'_, Slot> = list.entries();
            self.kernels.append(stream, &arena, &rows, slots)
        };
        // SAFETY: list, arena, buffer and kernels outlive the call, and no host memory is reached.
        let time = unsafe { time(self.gpu, work) }.map_err(text)?;
        let name = format!("append, {tokens} tokens of one layer");
        let refused = self.kernels.refused(&self.stream).map_err(text)?;
        let written = ROUNDS.min(SHAPE.layers as usize) as u64;
        for (token, slot) in (0u64..).zip(&slots).step_by(7).take(SAMPLES) {
            let at = token * token_bytes;
            for (kind, rows) in [(0, keys), (1, values)] {
                let from = rows.part(at..at + 256).and_then(|row| row.to_vec(&self.stream));
                let layer = (token % written) as u32;
                let to = row_of(&arena, *slot, [layer, kind, 0]).map_err(text)?;
                if from.map_err(text)? != to.to_vec(&self.stream).map_err(text)? || refused != 0 {
                    return Err(format!("token {token} has other bytes; {refused} were refused"));
                }
            }
        }
        Ok(Figure { name, mode: "layers in turn", bytes: 2 * len, passes: 2, time, plain: None })
    }

    fn pinned(&self, bytes: usize, up: bool) -> Result<Figure, String> {
        let device = self.buffer.span().part(0..bytes as u64).map_err(text)?;
        let mut host = PinnedBuffer::new(self.gpu, bytes).map_err(text)?;
        let mut rng = Rng::new(bytes as u64);
        host.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&rng.next().to_le_bytes()));
        let cell = std::cell::RefCell::new(host);
        let work = |stream: &Stream, _: usize| -> Result<(), KernelError> {
            let mut host = cell.borrow_mut();
            if up {
                // SAFETY: nobody looks at the buffer before the replays have ended, below.
                unsafe { device.enqueue_upload(&host, stream) }?;
            } else {
                // SAFETY: as above.
                unsafe { device.enqueue_download(&mut host, stream) }?;
            }
            Ok(())
        };
        // SAFETY: the pinned buffer outlives the call, and nobody looks at it before it has returned.
        let time = unsafe { time(self.gpu, work) }.map_err(text)?;
        let seen = device.to_vec(&self.stream).map_err(text)?;
        if seen[..] != cell.borrow()[..] {
            return Err("the copy has other bytes than its source".into());
        }
        let name = if up { "pinned host to device" } else { "device to pinned host" };
        let (name, bytes) = (name.to_owned(), bytes as u64);
        Ok(Figure { name, mode: "one buffer", bytes, passes: 1, time, plain: None })
    }

    /// For each set a contiguous run of blocks in the buffer, as blocks are spilled.
    fn places(&self, sets: Sets) -> Result<Vec<BlockSpace<'_>>, KernelError> {
        let strides = BlockRows::packed(SHAPE, sets.blocks, SPILL)?;
        (0..u64::from(sets.count))
            .map(|set| {
                let memory =
                    self.buffer.span().part(set * sets.bytes()..(set + 1) * sets.bytes())?;
                BlockSpace::new(memory, strides, sets.blocks)
            })
            .collect()
    }
}

fn blocks_of(buffer: &DeviceBuffer, order: [Axis; 5]) -> Result<BlockSpace<'_>, KernelError> {
    let strides = BlockRows::packed(SHAPE, BLOCKS, order)?;
    BlockSpace::new(buffer.span(), strides, BLOCKS)
}

/// The row of a slot.
fn row_of<'a>(
    space: &BlockSpace<'a>,
    slot: Slot,
    [layer, kind, head]: [u32; 3],
) -> Result<Span<'a>, KernelError> {
    let place = slot.split(BLOCKS, SHAPE.block_tokens);
    let (block, token) = place.ok_or_else(|| KernelError::Shape(format!("{slot:?}")))?;
    row(space, block, [layer, kind, token, head])
}

/// K and V of all tokens of a block in one layer: contiguous in NHD.
fn slab<'a>(space: &BlockSpace<'a>, block: u32, layer: u32) -> Result<Span<'a>, KernelError> {
    let at = space.rows().offset(block, layer, 0, 0, 0);
    Ok(space.memory().part(at..at + SHAPE.block_bytes() / u64::from(SHAPE.layers))?)
}

/// The row of `[layer, kind, token, head]` of a block.
fn row<'a>(space: &BlockSpace<'a>, block: u32, at: [u32; 4]) -> Result<Span<'a>, KernelError> {
    let at = space.rows().offset(block, at[0], at[1], at[2], at[3]);
    Ok(space.memory().part(at..at + u64::from(SHAPE.row_bytes))?)
}

/// Rows to compare: set, place in the table, block, and the row in it.
fn samples(tables: &[Vec<u32>]) -> impl Iterator<Item = (usize, u32, u32, [u32; 4])> {
    let mut rng = Rng::new(6);
    (0..SAMPLES).map(move |n| {
        let set = n % tables.len();
        let place = rng.below(tables[set].len() as u64) as u32;
        let mut below = |count: u32| rng.below(u64::from(count)) as u32;
        let at = [below(32), below(2), below(16), below(8)];
        (set, place, tables[set][place as usize], at)
    })
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
