//! An exchange in the memory of GPUs. Calls queue kernels on a stream and return at once: no count comes to the
//! host, nothing is allocated, and everything can be recorded into a graph and replayed. The phase lives in
//! device memory, so several graphs and plain calls share one communicator.
//!
//! Whether a step failed is in [`CudaEp::status`], which looks at host memory and waits for nobody. Outputs of a
//! failed step are unspecified.

mod ending;

pub use ending::Replays;

use crate::barrier::{Op, Tag};
use crate::config::{EpConfig, Shape, TOP_K_MAX};
use crate::error::EpError;
use crate::host::{agree, check_heap, check_products};
use crate::kernels::{EpKernels, RawBatch, RawExperts, RawStep, Tuning};
use crate::layout::EpLayout;
use crate::memory::{claim, device, on_gpu};
use crate::stage::{Course, Stage};
use mooncrate_core::time::nanos;
use mooncrate_gpu::{DeviceBuffer, Event, Gpu, PinnedBuffer, Span, Stream};
use mooncrate_heap::{Group, Heap, Rank, Watch};
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

/// Offsets in the host memory that the GPU tells errors in, and reads which ranks are gone.
const REPORT: u64 = 0;
const ABORT: u64 = 32;
const STATUS_BYTES: usize = 64;
/// In the word of aborts, after a bit for each rank: this rank gives its communicator up. Mirrors `ep.cuh`.
const LEAVES: u64 = 1 << 8;
/// The caller was interrupted: waits end as if their time were over.
const OVER: u64 = 1 << 9;

/// The tokens of a rank in device memory, with room for `tokens_max` of them. Their number is read on the
/// device, too.
#[derive(Clone, Copy, Debug)]
pub struct CudaBatch<'a> {
    /// u32: how many tokens there are.
    pub tokens: Span<'a>,
    /// `[tokens_max]` tokens of bf16, or of fp8 with scales ([`crate::fp8`]); aligned to 16 bytes.
    pub x: Span<'a>,
    /// `[tokens_max, top_k]`, i32, or i64 if they are `wide`; -1 for a position that is not routed.
    pub experts: Span<'a>,
    /// Whether experts are numbers of 64 bits, as torch's `topk` gives them.
    pub wide: bool,
    /// `[tokens_max, top_k]`, f32.
    pub weights: Span<'a>,
}

/// The weights of a rank's experts in device memory, bf16, aligned to 16 bytes.
#[derive(Clone, Copy, Debug)]
pub struct CudaWeights<'a> {
    /// Elements between the two products of an expert, a multiple of 8.
    pub inter: u32,
    /// `[local_experts, 2, inter, hidden]`: the gate, then what it is multiplied with.
    pub w13: Span<'a>,
    /// `[local_experts, hidden, inter]`.
    pub w2: Span<'a>,
}

/// Memory that a layer needs between its kernels. Ranks of one stream may use the same for all layers.
#[derive(Clone, Copy, Debug)]
pub struct Scratch<'a> {
    /// `[local_experts, rows_max]`: packed tokens.
    pub x: Span<'a>,
    /// `[local_experts]`, u32: tokens of each expert.
    pub counts: Span<'a>,
    /// `[local_experts, rows_max, inter]`, bf16: between the two products.
    pub act: Span<'a>,
    /// `[local_experts, rows_max, hidden]`, bf16: results.
    pub y: Span<'a>,
}

/// One rank of an exchange on a GPU. It belongs to one stream at a time: calls, and replays of graphs that
/// were recorded from calls, follow each other in it, in the order of layers.
#[derive(Debug)]
pub struct CudaEp {
    kernels: EpKernels,
    layout: EpLayout,
    step: RawStep,
    tuning: Tuning,
    /// Nanoseconds: of every phase, and of the first.
    timeouts: [u64; 2],
    course: Course,
    layer: Cell<u16>,
    watch: Watch,
    /// Ranks that waits are to give up, and [`LEAVES`].
    aborted: Cell<u64>,
    /// What `pack` tells `give_back`, `[slots, 8]` i32.
    places: DeviceBuffer,
    /// The end of what `finish` waits for.
    done: Event,
    /// The end of the last layer that was queued, and of the last one that was recorded.
    ends: [Event; 2],
    /// Whether somebody has asked, and heard that this rank has failed.
    told: Cell<bool>,
    /// Whether this rank has given the communicator up.
    left: Cell<bool>,
    status: PinnedBuffer,
    /// For what the host does itself.
    side: Stream,
    /// After what points into them: their owners wait for the device before they free.
    heap: Arc<Heap>,
}

impl CudaEp {
    /// Makes heaps for the processes of a group, and an exchange on them. All ranks call it together.
    pub fn join(
        group: &mut Group,
        gpu: &Gpu,
        config: &EpConfig,
        within: Duration,
    ) -> Result<Self, EpError> {
        let layout = agree(group, config, within)?;
        let gpus = group.gather("tell which GPU a rank has", &gpu.uuid(), None, within)?;
        let sharing = gpus.iter().filter(|shared| shared.body == gpu.uuid()).count() as u32;
        let heap = Heap::cuda(group, gpu, layout.bytes(), within)?;
        let kernels = EpKernels::load(gpu);
        let ep = kernels.map_err(EpError::from).and_then(|kernels| {
            let mut ep = Self::over(gpu, Arc::new(heap), group.watch(), kernels, config)?;
            ep.tuning = Tuning::shared(gpu.sm_count(), sharing);
            Ok(ep)
        });
        group.barrier("start the exchange", within)?;
        ep
    }

    /// An exchange on heaps that are there, all zero, on this GPU, which all ranks share. A heap serves one
    /// communicator.
    pub fn over(
        gpu: &Gpu,
        heap: Arc<Heap>,
        watch: Watch,
        kernels: EpKernels,
        config: &EpConfig,
    ) -> Result<Self, EpError> {
        let shape = config.shape()?;
        let layout = EpLayout::new(shape);
        check_heap(&heap, &layout)?;
        // Each rank has one block that waits and holds its place; if all ranks are on this GPU, all of them
        // must find one. A multiprocessor has room for more than one block of 32 threads.
        if shape.ranks() > gpu.sm_count() {
            let (ranks, places) = (shape.ranks(), gpu.sm_count());
            let text = format!("{ranks} ranks need as many multiprocessors; this GPU has {places}");
            return Err(EpError::WrongHeap(text));
        }
        // Everything that can fail comes before the claim, which nobody takes back.
        let side = Stream::new(gpu)?;
        let done = Event::untimed(gpu)?;
        let ends = [Event::untimed(gpu)?, Event::untimed(gpu)?];
        let status = PinnedBuffer::new(gpu, STATUS_BYTES)?;
        let address = status.device_address();
        let (bases, me) = (heap.bases(), heap.rank());
        let step = RawStep::new(&layout, bases, me, address + REPORT, address + ABORT);
        let places = DeviceBuffer::new(gpu, u64::from(shape.slots() * TOP_K_MAX) * 4)?;
        claim(&heap, &side)?;
        Ok(Self {
            kernels,
            layout,
            step,
            tuning: Tuning::shared(gpu.sm_count(), shape.ranks()),
            timeouts: [nanos(config.timeout), nanos(config.first_timeout)],
            course: Course::default(),
            layer: Cell::new(0),
            watch,
            aborted: Cell::new(0),
            places,
            done,
            ends,
            told: Cell::new(false),
            left: Cell::new(false),
            status,
            side,
            heap,
        })
    }

    /// How launches are made.
    pub fn tuning(&self) -> Tuning {
        self.tuning
    }

    /// How launches are made from now on. Graphs keep what they were recorded with.
    pub fn tune(&mut self, tuning: Tuning) -> Result<(), EpError> {
        if tuning.parts == 0 || tuning.parts > 16 {
            let parts = tuning.parts;
            return Err(EpError::Shape(format!("{parts} blocks for a row; choose 1 to 16")));
        }
        if tuning.blocks == 0 {
            return Err(EpError::Shape(
                "0 blocks for the rows of all ranks; choose 1 or more".into(),
            ));
        }
        self.tuning = tuning;
        Ok(())
    }

    /// Who this is.
    pub fn rank(&self) -> Rank {
        self.heap.rank()
    }

    /// What the exchange is made for.
    pub fn shape(&self) -> &Shape {
        self.layout.shape()
    }

    /// Where everything lies in the heaps.
    pub fn layout(&self) -> &EpLayout {
        &self.layout
    }

    /// The heaps, as this rank sees them.
    pub fn heap(&self) -> &Heap {
        &self.heap
    }

    /// For tests. The row of the packed tokens that each slot has at each top-k position, `[slots, 8]`; -1: none.
    /// It waits for the stream.
    pub fn places(&self, stream: &Stream) -> Result<Vec<i32>, EpError> {
        let bytes = self.places.span().to_vec(stream)?;
        let number = |four: &[u8]| i32::from_le_bytes([four[0], four[1], four[2], four[3]]);
        Ok(bytes.chunks_exact(4).map(number).collect())
    }

    /// Marks the end of a layer on this stream. An event of a recording means nothing outside of it.
    fn end_on(&self, stream: &Stream) -> Result<&Event, EpError> {
        Ok(&self.ends[usize::from(stream.recording()?.is_some())])
    }

    fn tag(&self, op: Op) -> Tag {
        Tag::new(self.layer.get(), op, self.shape().hash())
    }

    /// Lets a stream wait for the end of the layer before, where that was on another one. [`CudaEp::dispatch`] does
    /// so; a caller that queues copies to memory which layers share does it before them.
    pub fn follow(&self, stream: &Stream) -> Result<(), EpError> {
        if self.course.ended_elsewhere(stream)? {
            stream.wait(self.end_on(stream)?)?;
        }
        Ok(())
    }

    /// What was queued on the stream of the last layer since its combine is part of that layer, too: the next one on
    /// another stream waits for it. On any other stream, or in another recording, it does nothing.
    pub fn extend(&self, stream: &Stream) -> Result<(), EpError> {
        if self.course.ended_here(stream)? {
            self.end_on(stream)?.record(stream)?;
        }
        Ok(())
    }

    /// Queues the sending of this rank's tokens.
    pub fn dispatch(
        &self,
        stream: &Stream,
        layer: u16,
        batch: &CudaBatch<'_>,
    ) -> Result<(), EpError> {
        self.course.may(Stage::Dispatched, stream)?;
        self.check_batch(stream, batch)?;
        let raw = RawBatch {
            x: batch.x.address(),
            experts: batch.experts.address(),
            weights: batch.weights.address(),
            tokens: batch.tokens.address(),
            wide: batch.wide,
            again: self.course.is_aside(),
        };
        self.follow(stream)?;
        self.layer.set(layer);
        let tag = self.tag(Op::Dispatch);
        // SAFETY: the heaps are of the layout, and live as long as `self`; the status is host memory of
        // `self`; the batch was checked to be as long as the kernel takes it for, on this GPU. Owners of
        // device and pinned memory wait for the device before they free.
        unsafe { self.kernels.dispatch(stream, self.step, tag, self.tuning, raw) }?;
        self.course.came(Stage::Dispatched, stream)
    }

    fn check_batch(&self, stream: &Stream, batch: &CudaBatch<'_>) -> Result<(), EpError> {
        let shape = self.shape();
        let routes = u64::from(shape.tokens_max() * shape.top_k());
        let id = if batch.wide { 8 } else { 4 };
        device("the number of tokens", stream, batch.tokens, 4, 4)?;
        device("the tokens", stream, batch.x, shape.batch_bytes(), 16)?;
        device("the experts", stream, batch.experts, routes * id, id)?;
        device("the weights", stream, batch.weights, routes * 4, 4)
    }

    fn wait(&self, stream: &Stream, tag: Tag, then: Option<Tag>) -> Result<(), EpError> {
        on_gpu(stream, self.places.span())?;
        // SAFETY: as in `dispatch`.
        unsafe { self.kernels.wait(stream, self.step, tag, then, self.tuning, self.timeouts) }?;
        Ok(())
    }

    /// Queues the wait for the tokens of all ranks.
    pub fn await_rows(&self, stream: &Stream) -> Result<(), EpError> {
        self.course.may(Stage::Arrived, stream)?;
        self.wait(stream, self.tag(Op::Dispatch), None)?;
        self.course.came(Stage::Arrived, stream)
    }

    /// Queues both waits of a layer in which this rank computes nothing: what lies in the return buffers is
    /// combined next. That is the exchange alone, for figures.
    pub fn await_both(&self, stream: &Stream) -> Result<(), EpError> {
        self.course.may(Stage::Arrived, stream)?;
        self.wait(stream, self.tag(Op::Dispatch), Some(self.tag(Op::Short)))?;
        self.course.came(Stage::Returned, stream)
    }

    /// Queues the packing of what came: `x` is `[local_experts, rows_max]` tokens, `counts` has a u32 for each
    /// local expert.
    pub fn pack(&self, stream: &Stream, x: Span<'_>, counts: Span<'_>) -> Result<(), EpError> {
        self.course.may(Stage::Packed, stream)?;
        self.check_packed(stream, x, counts)?;
        let to = (x.address(), counts.address(), self.places.span().address());
        // SAFETY: as in `dispatch`; the kernel writes to rows below `rows_max` of local experts only.
        unsafe { self.kernels.pack(stream, self.step, self.tag(Op::Dispatch), self.tuning, to) }?;
        self.course.came(Stage::Packed, stream)
    }

    fn check_packed(&self, stream: &Stream, x: Span<'_>, counts: Span<'_>) -> Result<(), EpError> {
        let shape = self.shape();
        device("the packed tokens", stream, x, shape.packed_bytes(), 16)?;
        device("the counts", stream, counts, u64::from(shape.local_experts()) * 4, 4)
    }

    fn check_results(&self, stream: &Stream, y: Span<'_>) -> Result<(), EpError> {
        device("the results", stream, y, self.shape().results_bytes(), 16)
    }

    fn check_output(&self, stream: &Stream, out: Span<'_>) -> Result<(), EpError> {
        device("the output", stream, out, self.shape().output_bytes(), 16)
    }

    /// Queues the sending of what the experts made of the packed tokens: `y` is `[local_experts, rows_max,
    /// hidden]`, bf16.
    pub fn give_back(&self, stream: &Stream, y: Span<'_>) -> Result<(), EpError> {
        self.course.may(Stage::GivenBack, stream)?;
        self.check_results(stream, y)?;
        let from = (y.address(), self.places.span().address());
        // SAFETY: as in `dispatch`; rows that the packed tokens do not have are not read.
        unsafe {
            self.kernels.give_back(stream, self.step, self.tag(Op::Return), self.tuning, from)
        }?;
        self.course.came(Stage::GivenBack, stream)
    }

    /// Queues a dispatch, or a combine, that does not count: the layer stays where it is, so that a figure can
    /// repeat one kernel. What it stores is what it stored before.
    pub(crate) fn alone(
        &self,
        call: impl FnOnce(&Self) -> Result<(), EpError>,
        before: Stage,
    ) -> Result<(), EpError> {
        self.course.aside(before, || call(self))
    }

    /// Queues the wait for the results of all ranks.
    pub fn await_results(&self, stream: &Stream) -> Result<(), EpError> {
        self.course.may(Stage::Returned, stream)?;
        self.wait(stream, self.tag(Op::Return), None)?;
        self.course.came(Stage::Returned, stream)
    }

    /// Queues the sums of what came back: `out` is `[tokens_max, hidden]` bf16; rows after the last token
    /// stay as they are.
    pub fn combine(&self, stream: &Stream, out: Span<'_>) -> Result<(), EpError> {
        self.course.may(Stage::Combined, stream)?;
        self.check_output(stream, out)?;
        let tag = self.tag(Op::Return);
        // SAFETY: as in `dispatch`.
        unsafe { self.kernels.combine(stream, self.step, tag, self.tuning, out.address()) }?;
        if !self.course.is_aside() {
            self.end_on(stream)?.record(stream)?;
        }
        self.course.came(Stage::Combined, stream)
    }

    /// Queues the experts on packed tokens: `y = w2 · (silu(gate · x) × (up · x))`. Sums have a fixed order.
    pub fn experts(
        &self,
        stream: &Stream,
        weights: &CudaWeights<'_>,
        scratch: &Scratch<'_>,
    ) -> Result<(), EpError> {
        self.course.between("experts", stream)?;
        self.check_experts(stream, weights, scratch)?;
        let raw = RawExperts {
            inter: weights.inter,
            x: scratch.x.address(),
            counts: scratch.counts.address(),
            w13: weights.w13.address(),
            w2: weights.w2.address(),
            act: scratch.act.address(),
            y: scratch.y.address(),
        };
        // SAFETY: as in `dispatch`; counts are at most `rows_max`, whatever the memory says.
        unsafe { self.kernels.experts(stream, self.step, self.tuning, raw) }?;
        Ok(())
    }

    fn check_experts(
        &self,
        stream: &Stream,
        weights: &CudaWeights<'_>,
        scratch: &Scratch<'_>,
    ) -> Result<(), EpError> {
        let (shape, inter) = (self.shape(), weights.inter);
        check_products(shape, inter)?;
        let local = u64::from(shape.local_experts());
        let matrix = local * u64::from(inter) * shape.row_bytes();
        let act = local * u64::from(shape.rows_max()) * u64::from(inter) * 2;
        device("the weights of the first product", stream, weights.w13, 2 * matrix, 16)?;
        device("the weights of the second product", stream, weights.w2, matrix, 16)?;
        self.check_packed(stream, scratch.x, scratch.counts)?;
        device("the memory between the products", stream, scratch.act, act, 16)?;
        self.check_results(stream, scratch.y)
    }

    /// Queues a whole layer: tokens to their experts, the experts, and the results back into `out`. All ranks
    /// queue it; where several of them share a stream, use the single calls, phase by phase. Memory that does not
    /// fit is refused before anything is queued.
    pub fn forward(
        &self,
        stream: &Stream,
        layer: u16,
        batch: &CudaBatch<'_>,
        weights: &CudaWeights<'_>,
        scratch: &Scratch<'_>,
        out: Span<'_>,
    ) -> Result<(), EpError> {
        self.check_experts(stream, weights, scratch)?;
        self.check_output(stream, out)?;
        self.dispatch(stream, layer, batch)?;
        self.await_rows(stream)?;
        self.pack(stream, scratch.x, scratch.counts)?;
        self.experts(stream, weights, scratch)?;
        self.give_back(stream, scratch.y)?;
        self.await_results(stream)?;
        self.combine(stream, out)
    }

    /// Queues the experts of tests: `y` gets each row of `x` times the number of its expert, as
    /// [`crate::oracle::test_expert`] does it. `x` and `counts` are what [`CudaEp::pack`] has written.
    pub fn scale(
        &self,
        stream: &Stream,
        x: Span<'_>,
        counts: Span<'_>,
        y: Span<'_>,
    ) -> Result<(), EpError> {
        self.course.between("scale", stream)?;
        self.check_packed(stream, x, counts)?;
        self.check_results(stream, y)?;
        let all = (x.address(), y.address(), counts.address());
        // SAFETY: as in `dispatch`; counts are at most `rows_max`, whatever the memory says.
        unsafe { self.kernels.scale(stream, self.step, self.tuning, all) }?;
        Ok(())
    }

    /// Queues a comparison: the pieces of 16 bytes of `out` that differ from `expected` are added to `differ`, a u64.
    pub(crate) fn compare(
        &self,
        stream: &Stream,
        out: Span<'_>,
        expected: Span<'_>,
        differ: Span<'_>,
    ) -> Result<(), EpError> {
        self.check_output(stream, out)?;
        self.check_output(stream, expected)?;
        device("the number of differences", stream, differ, 8, 8)?;
        let all = (out.address(), expected.address(), differ.address());
        // SAFETY: as in `dispatch`.
        Ok(unsafe { self.kernels.compare(stream, self.step, self.tuning, all) }?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seat::CudaSeat;
    use crate::workload::{Drawn, Routing};

    /// Only `pack` can write to the places, so this stands here and not beside the other tests of kernels.
    #[test]
    fn places_that_do_not_exist_are_named_and_not_read() {
        let gpu = match Gpu::open(0) {
            Ok(gpu) => gpu,
            Err(error) if error.is_absent() => {
                return eprintln!("SKIPPED places_that_do_not_exist: {error}");
            }
            Err(error) => panic!("{error}"),
        };
        let config = EpConfig {
            world: 2,
            tokens_max: 2,
            top_k: 2,
            hidden: 8,
            experts: 4,
            ..EpConfig::default()
        };
        let shape = config.shape().unwrap();
        let kernels = EpKernels::load(&gpu).unwrap();
        let most = shape.packed_rows() as i32;
        for (bad, place) in [(most, 0), (i32::MAX, 1), (-2, 0), (i32::MIN, 1), (most - 1, 1)] {
            let heaps =
                Heap::cuda_ranks(&gpu, shape.world(), EpLayout::new(shape).bytes()).unwrap();
            let seats: Vec<CudaSeat> = heaps
                .into_iter()
                .map(|heap| {
                    let (heap, watch) = (Arc::new(heap), Watch::default());
                    let ep = CudaEp::over(&gpu, heap, watch, kernels.clone(), &config).unwrap();
                    CudaSeat::new(&gpu, ep).unwrap()
                })
                .collect();
            // All tokens of both ranks go to both experts of one rank.
            for seat in &seats {
                let rank = u32::from(seat.ep.rank().number());
                seat.upload(&Drawn::new(&shape, Routing::OneRank, 1, rank, 0)).unwrap();
                seat.dispatch(0).unwrap();
            }
            seats.iter().try_for_each(CudaSeat::await_rows).unwrap();
            seats.iter().try_for_each(CudaSeat::pack).unwrap();
            seats.iter().try_for_each(CudaSeat::experts).unwrap();
            let first = |seat: &CudaSeat| seat.ep.places(&seat.stream).unwrap()[0];
            let busy = seats.iter().position(|seat| first(seat) >= 0).expect("tokens went there");
            let (seat, at) = (&seats[busy], 4 * place);
            let places = seat.ep.places.span();
            places.part(at..at + 4).unwrap().write(&bad.to_le_bytes(), &seat.stream).unwrap();
            seat.give_back().unwrap();
            let said = seat.ep.finish(&seat.stream).err().map(|error| error.to_string());
            let words =
                format!("rank {busy} has row {bad} for slot 0 in place {place}: there is none");
            assert_eq!(said.is_some_and(|said| said.contains(&words)), bad != most - 1, "{bad}");
        }
    }
}
