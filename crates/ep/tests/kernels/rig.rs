//! All ranks of an exchange in this process, on one GPU, and the steps of a layer with their oracles beside them.

use mooncrate_ep::barrier::{Look, Op, Tag};
use mooncrate_ep::heaps::Copies;
use mooncrate_ep::kernels::{
    combine_oracle, dispatch_oracle, fail, give_back_oracle, look_oracle, pack_oracle, pass,
};
use mooncrate_ep::oracle::{dense_of, test_expert};
use mooncrate_ep::workload::{Drawn, Routing};
use mooncrate_ep::{
    CudaBatch, CudaEp, EpConfig, EpError, EpKernels, EpLayout, Packed, Shape, TOP_K_MAX, Tuning,
};
use mooncrate_gpu::{DeviceBuffer, Gpu, Span, Stream};
use mooncrate_heap::{Heap, Rank, Watch};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub(crate) const SEED: u64 = 3;
/// A NaN of bf16, so that what was not written shows up in every sum.
pub(crate) const POISON: u8 = 0xff;

/// A rank and its memory on the GPU.
pub(crate) struct Seat {
    pub(crate) ep: CudaEp,
    pub(crate) tokens: DeviceBuffer,
    pub(crate) x: DeviceBuffer,
    pub(crate) experts: DeviceBuffer,
    pub(crate) weights: DeviceBuffer,
    pub(crate) packed: DeviceBuffer,
    pub(crate) counts: DeviceBuffer,
    pub(crate) y: DeviceBuffer,
    pub(crate) out: DeviceBuffer,
    pub(crate) stream: Stream,
}

/// What a rank's experts made of its tokens, and the places of those.
pub(crate) type Results = (Vec<u16>, Vec<i32>);

pub(crate) struct Rig {
    pub(crate) seats: Vec<Seat>,
    pub(crate) stream: Stream,
    pub(crate) shape: Shape,
    pub(crate) gpu: Gpu,
    pub(crate) heaps: Vec<Arc<Heap>>,
    pub(crate) config: EpConfig,
    /// One test at a time: the emulator has one set of threads.
    _turn: MutexGuard<'static, ()>,
}

pub(crate) fn small(world: usize) -> EpConfig {
    EpConfig {
        world,
        tokens_max: 5,
        top_k: 3,
        hidden: 72,
        experts: 4 * world,
        timeout: Duration::from_millis(40),
        first_timeout: Duration::from_millis(80),
        ..EpConfig::default()
    }
}

pub(crate) fn bytes_of<const N: usize, T: Copy>(
    values: &[T],
    to: impl Fn(T) -> [u8; N],
) -> Vec<u8> {
    values.iter().flat_map(|value| to(*value)).collect()
}

pub(crate) fn halves(bytes: &[u8]) -> Vec<u16> {
    bytes.chunks_exact(2).map(|two| u16::from_le_bytes([two[0], two[1]])).collect()
}

impl Rig {
    pub(crate) fn new(test: &str, config: &EpConfig) -> Option<Self> {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let gpu = match Gpu::open(0) {
            Ok(gpu) => gpu,
            Err(error) if error.is_absent() => {
                eprintln!("SKIPPED {test}: {error}");
                return None;
            }
            Err(error) => panic!("{test}: {error}"),
        };
        let shape = config.shape().unwrap();
        let layout = EpLayout::new(shape);
        let heaps = Heap::cuda_ranks(&gpu, shape.world(), layout.bytes()).unwrap();
        let heaps: Vec<Arc<Heap>> = heaps.into_iter().map(Arc::new).collect();
        let kernels = EpKernels::load(&gpu).unwrap();
        let seat = |heap: &Arc<Heap>| {
            let (heap, watch) = (Arc::clone(heap), Watch::default());
            let ep = CudaEp::over(&gpu, heap, watch, kernels.clone(), config).unwrap();
            let room = |bytes| DeviceBuffer::new(&gpu, bytes).unwrap();
            let routes = u64::from(shape.tokens_max() * shape.top_k()) * 4;
            Seat {
                ep,
                tokens: room(4),
                x: room(shape.batch_bytes()),
                experts: room(routes),
                weights: room(routes),
                packed: room(shape.packed_bytes()),
                counts: room(u64::from(shape.local_experts()) * 4),
                y: room(shape.results_bytes()),
                out: room(shape.output_bytes()),
                stream: Stream::new(&gpu).unwrap(),
            }
        };
        let seats = heaps.iter().map(seat).collect();
        let stream = Stream::new(&gpu).unwrap();
        Some(Self { seats, stream, shape, gpu, heaps, config: config.clone(), _turn: turn })
    }

    pub(crate) fn tune(&mut self, tuning: Tuning) {
        for seat in &mut self.seats {
            seat.ep.tune(tuning).unwrap();
        }
    }

    pub(crate) fn layout(&self) -> EpLayout {
        *self.seats[0].ep.layout()
    }

    pub(crate) fn span(&self, rank: usize) -> Span<'_> {
        self.heaps[0].span(self.rank(rank)).unwrap()
    }

    pub(crate) fn rank(&self, rank: usize) -> Rank {
        self.shape.world().rank(rank).unwrap()
    }

    /// What is in the heaps of all ranks that are there now.
    pub(crate) fn copies(&self) -> Copies {
        self.copies_of(self.seats.len())
    }

    /// The same, also of ranks that have left.
    pub(crate) fn all_copies(&self) -> Copies {
        self.copies_of(self.heaps.len())
    }

    fn copies_of(&self, ranks: usize) -> Copies {
        self.stream.synchronize().unwrap();
        // Heaps are whole pages of 2 MiB; nobody uses what comes after the layout.
        let used = 0..self.layout().bytes();
        let part = |rank| self.span(rank).part(used.clone()).unwrap();
        let heap = |rank| part(rank).to_vec(&self.stream).unwrap();
        Copies::new((0..ranks).map(heap).collect())
    }

    /// The heaps are as the oracle left them.
    pub(crate) fn compare(&self, expected: Copies, what: &str) -> Copies {
        let (found, expected) = (self.copies().into_inner(), expected.into_inner());
        for (rank, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let differs = found.iter().zip(expected).position(|(a, b)| a != b);
            let layout = self.layout();
            assert_eq!(differs, None, "{what}: heap of rank {rank}, parts at {layout:?}");
        }
        Copies::new(expected)
    }

    /// Puts the batches of a step into the memory of the ranks.
    pub(crate) fn upload(&self, drawn: &[Drawn]) {
        for (seat, drawn) in self.seats.iter().zip(drawn) {
            let drawn = drawn.clone().padded(&self.shape);
            let write = |to: &DeviceBuffer, bytes: Vec<u8>| {
                to.span().write(&bytes, &self.stream).unwrap();
            };
            write(&seat.tokens, drawn.tokens.to_le_bytes().to_vec());
            write(&seat.x, bytes_of(&drawn.x, u16::to_le_bytes));
            write(&seat.experts, bytes_of(&drawn.experts, i32::to_le_bytes));
            write(&seat.weights, bytes_of(&drawn.weights, f32::to_le_bytes));
            for buffer in [&seat.packed, &seat.y, &seat.out] {
                buffer.span().fill(POISON, &self.stream).unwrap();
            }
        }
        self.stream.synchronize().unwrap();
    }

    pub(crate) fn draw(&self, routing: Routing, step: u64) -> Vec<Drawn> {
        let ranks = 0..self.seats.len() as u32;
        ranks.map(|rank| Drawn::new(&self.shape, routing, SEED, rank, step)).collect()
    }

    pub(crate) fn all(&self, call: impl Fn(&Seat) -> Result<(), EpError>) {
        self.seats.iter().for_each(|seat| call(seat).unwrap());
    }

    /// What each rank says of itself.
    pub(crate) fn said(&self) -> Vec<Option<String>> {
        self.stream.synchronize().unwrap();
        self.seats.iter().map(|seat| seat.ep.status().err().map(|e| e.to_string())).collect()
    }

    /// The experts of a rank, on the host: the packed tokens as they are there, and what becomes of them.
    pub(crate) fn experts(&self, seat: &Seat, rank: usize) -> (Vec<u16>, Vec<u32>, Vec<u16>) {
        let x = halves(&seat.packed.span().to_vec(&self.stream).unwrap());
        let counts = seat.counts.span().to_vec(&self.stream).unwrap();
        let counts: Vec<u32> = counts
            .chunks_exact(4)
            .map(|four| u32::from_le_bytes(four.try_into().unwrap()))
            .collect();
        let (hidden, local) = (self.shape.hidden() as usize, self.shape.local_experts());
        let (words, compute) = (self.shape.token_words(), test_expert(&self.shape));
        let mut y = vec![0xffff; (self.shape.results_bytes() / 2) as usize];
        for (expert, count) in counts.iter().enumerate() {
            for row in 0..*count as usize {
                let at = expert * self.shape.rows_max() as usize + row;
                let number = rank as u32 * local + expert as u32;
                compute(number, &x[at * words..][..words], &mut y[at * hidden..][..hidden]);
            }
        }
        (x, counts, y)
    }

    /// The first half of a layer on one stream: kernels and oracles side by side.
    pub(crate) fn dispatched(&self, layer: u16, drawn: &[Drawn]) -> Copies {
        let (layout, tag) = (self.layout(), Tag::new(layer, Op::Dispatch, self.shape.hash()));
        self.upload(drawn);
        let copies = self.copies();
        self.all(|seat| seat.ep.dispatch(&self.stream, layer, &seat.batch()));
        for (rank, drawn) in drawn.iter().enumerate() {
            let drawn = drawn.clone().padded(&self.shape);
            dispatch_oracle(&copies, &layout, self.rank(rank), tag, &drawn.batch());
        }
        self.compare(copies, "dispatch")
    }

    pub(crate) fn waited(&self, copies: Copies, tag: Tag, what: &str) -> Copies {
        for rank in 0..self.seats.len() as u32 {
            match look_oracle(&copies, &self.layout(), rank, tag) {
                Look::All => pass(&copies, rank),
                Look::Failed(record) => fail(&copies, &self.layout(), rank, &record),
                Look::Missing(ranks) => panic!("{what}: rank {rank} misses {ranks}"),
            }
        }
        self.compare(copies, what)
    }

    /// Packing, and what the pack oracle makes of the same heaps. Gives each rank's results.
    pub(crate) fn packed(&self, copies: Copies, layer: u16) -> (Copies, Vec<Results>) {
        let (shape, tag) = (self.shape, Tag::new(layer, Op::Dispatch, self.shape.hash()));
        self.all(|seat| seat.ep.pack(&self.stream, seat.packed.span(), seat.counts.span()));
        let mut results = Vec::new();
        for (rank, seat) in self.seats.iter().enumerate() {
            let mut x = vec![0xffff; (shape.packed_bytes() / 2) as usize];
            let mut counts = vec![0; shape.local_experts() as usize];
            let mut rows = vec![7; (shape.slots() * TOP_K_MAX) as usize];
            let mut packed = Packed { x: &mut x, counts: &mut counts, rows: &mut rows };
            pack_oracle(&copies, &self.layout(), self.rank(rank), tag, &mut packed);
            let (found, found_counts, y) = self.experts(seat, rank);
            assert_eq!(found_counts, counts, "counts of rank {rank}");
            assert_eq!(found, x, "packed tokens of rank {rank}");
            let places = seat.ep.places(&self.stream).unwrap();
            assert_eq!(places, rows, "places of rank {rank}");
            seat.y.span().write(&bytes_of(&y, u16::to_le_bytes), &self.stream).unwrap();
            results.push((y, rows));
        }
        (self.compare(copies, "pack"), results)
    }

    /// A whole layer, kernels and oracles side by side.
    pub(crate) fn layer(&self, layer: u16, drawn: &[Drawn]) {
        let (layout, hash) = (self.layout(), self.shape.hash());
        let copies = self.dispatched(layer, drawn);
        self.all(|seat| seat.ep.await_rows(&self.stream));
        let copies = self.waited(copies, Tag::new(layer, Op::Dispatch, hash), "wait for rows");
        let (copies, results) = self.packed(copies, layer);
        let tag = Tag::new(layer, Op::Return, hash);
        self.all(|seat| seat.ep.give_back(&self.stream, seat.y.span()));
        for (rank, (y, rows)) in results.iter().enumerate() {
            give_back_oracle(&copies, &layout, self.rank(rank), tag, y, rows);
        }
        let copies = self.compare(copies, "give back");
        self.all(|seat| seat.ep.await_results(&self.stream));
        let copies = self.waited(copies, tag, "wait for results");
        self.all(|seat| seat.ep.combine(&self.stream, seat.out.span()));
        for (rank, seat) in self.seats.iter().enumerate() {
            let mut out = vec![0xffff; (self.shape.output_bytes() / 2) as usize];
            combine_oracle(&copies, &layout, self.rank(rank), tag, &mut out);
            let found = halves(&seat.out.span().to_vec(&self.stream).unwrap());
            assert_eq!(found, out, "output of rank {rank}");
            let dense = dense_of(&self.shape, &drawn[rank].batch(), &test_expert(&self.shape));
            assert_eq!(found[..dense.len()], dense, "dense reference of rank {rank}");
        }
        self.compare(copies, "combine");
        assert_eq!(self.said(), vec![None; self.seats.len()]);
    }

    pub(crate) fn set_word(&self, rank: usize, offset: u64, value: u64) {
        let place = self.span(rank).part(offset..offset + 8).unwrap();
        place.write(&value.to_le_bytes(), &self.stream).unwrap();
    }

    pub(crate) fn clear(&self, epoch: u64) {
        self.gpu.synchronize().unwrap();
        self.all(|seat| seat.ep.clear(&self.stream, epoch));
        assert_eq!(self.seats[0].ep.epoch(&self.stream).unwrap(), epoch);
    }
}

impl Seat {
    pub(crate) fn batch(&self) -> CudaBatch<'_> {
        CudaBatch {
            tokens: self.tokens.span(),
            x: self.x.span(),
            experts: self.experts.span(),
            wide: false,
            weights: self.weights.span(),
        }
    }
}
