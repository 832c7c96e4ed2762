//! A rank with memory for a batch, for tests and figures: the same calls on every backend, with the experts of
//! [`crate::oracle::test_expert`].

use crate::cuda::{CudaBatch, CudaEp, CudaWeights, Scratch};
use crate::error::EpError;
use crate::heaps::Heaps;
use crate::host::Ep;
use crate::kernels::Batch;
use crate::oracle::test_expert;
use crate::stage::Stage;
use crate::workload::Drawn;
use mooncrate_gpu::{DeviceBuffer, Event, Gpu, Graph, Span, Stream};
use std::rc::Rc;

/// A NaN of bf16, so that what was not written shows up in every sum.
const POISON: u16 = 0xffff;

/// A rank in host memory.
#[derive(Debug)]
pub struct HostSeat {
    /// The communicator.
    pub ep: Ep,
    x: Vec<u16>,
    y: Vec<u16>,
    counts: Vec<u32>,
    out: Vec<u16>,
}

impl HostSeat {
    /// Memory for the shape of `ep`.
    pub fn new(ep: Ep) -> Self {
        let shape = *ep.shape();
        Self {
            ep,
            x: vec![POISON; (shape.packed_bytes() / 2) as usize],
            y: vec![POISON; (shape.results_bytes() / 2) as usize],
            counts: vec![0; shape.local_experts() as usize],
            out: vec![POISON; (shape.output_bytes() / 2) as usize],
        }
    }

    /// Packs what came. Memory that nobody uses at the moment is poisoned.
    pub fn pack(&mut self) -> Result<(), EpError> {
        self.x.fill(POISON);
        self.ep.pack(&mut self.x, &mut self.counts)?;
        let layout = *self.ep.layout();
        self.poison(layout.recv(0), self.ep.shape().token_bytes());
        Ok(())
    }

    /// What this rank's experts make of the packed tokens goes back.
    pub fn give_back(&mut self) -> Result<(), EpError> {
        let shape = *self.ep.shape();
        let (hidden, words, compute) =
            (shape.hidden() as usize, shape.token_words(), test_expert(&shape));
        let first = u32::from(self.ep.rank().number()) * shape.local_experts();
        self.y.fill(POISON);
        for (expert, count) in self.counts.iter().enumerate() {
            for row in 0..*count as usize {
                let at = expert * shape.rows_max() as usize + row;
                let (x, y) = (&self.x[at * words..][..words], &mut self.y[at * hidden..][..hidden]);
                compute(first + expert as u32, x, y);
            }
        }
        self.ep.give_back(&self.y)
    }

    /// The output of the layer; rows after the last token are poisoned.
    pub fn combine(&mut self) -> Result<&[u16], EpError> {
        self.out.fill(POISON);
        self.ep.combine(&mut self.out)?;
        let layout = *self.ep.layout();
        self.poison(layout.ret(0, 0), self.ep.shape().row_bytes());
        Ok(&self.out)
    }

    /// One whole layer.
    pub fn layer(&mut self, layer: u16, batch: &Batch<'_>) -> Result<&[u16], EpError> {
        self.ep.dispatch(layer, batch)?;
        self.ep.await_rows()?;
        self.pack()?;
        self.give_back()?;
        self.ep.await_results()?;
        self.combine()
    }

    /// Rows of this rank's heap, one for each slot, from that offset on.
    fn poison(&self, from: u64, row_bytes: u64) {
        let (bytes, me) = (vec![0xff; row_bytes as usize], self.ep.rank().number());
        for slot in 0..u64::from(self.ep.shape().slots()) {
            self.ep.heap().store(me.into(), from + slot * row_bytes, &bytes);
        }
    }
}

/// A rank on a GPU, with a stream of its own. Calls queue work, but for those that copy from or to the host.
#[derive(Debug)]
pub struct CudaSeat {
    /// The communicator.
    pub ep: CudaEp,
    /// Where its work is queued. Seats of one rank in several exchanges may share it: then they take turns.
    pub stream: Rc<Stream>,
    tokens: DeviceBuffer,
    x: DeviceBuffer,
    experts: DeviceBuffer,
    weights: DeviceBuffer,
    packed: DeviceBuffer,
    counts: DeviceBuffer,
    y: DeviceBuffer,
    out: DeviceBuffer,
}

impl CudaSeat {
    /// Memory for the shape of `ep`, and a stream of its own.
    pub fn new(gpu: &Gpu, ep: CudaEp) -> Result<Self, EpError> {
        Self::on(gpu, ep, Rc::new(Stream::new(gpu)?))
    }

    /// The same on a stream that is there.
    pub fn on(gpu: &Gpu, ep: CudaEp, stream: Rc<Stream>) -> Result<Self, EpError> {
        let shape = *ep.shape();
        let room = |bytes| DeviceBuffer::new(gpu, bytes);
        let routes = u64::from(shape.tokens_max() * shape.top_k()) * 4;
        Ok(Self {
            ep,
            stream,
            tokens: room(4)?,
            x: room(shape.batch_bytes())?,
            experts: room(routes)?,
            weights: room(routes)?,
            packed: room(shape.packed_bytes())?,
            counts: room(u64::from(shape.local_experts()) * 4)?,
            y: room(shape.results_bytes())?,
            out: room(shape.output_bytes())?,
        })
    }

    /// Puts a batch into the memory of this rank and poisons its output. It waits until that has happened.
    pub fn upload(&self, drawn: &Drawn) -> Result<(), EpError> {
        let drawn = drawn.clone().padded(self.ep.shape());
        let bytes =
            |values: &[u16]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>();
        self.tokens.span().write(&drawn.tokens.to_le_bytes(), &self.stream)?;
        self.x.span().write(&bytes(&drawn.x), &self.stream)?;
        let experts: Vec<u8> = drawn.experts.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.experts.span().write(&experts, &self.stream)?;
        let weights: Vec<u8> = drawn.weights.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.weights.span().write(&weights, &self.stream)?;
        self.out.span().fill(0xff, &self.stream)?;
        Ok(self.stream.synchronize()?)
    }

    /// The batch that was uploaded last.
    pub fn batch(&self) -> CudaBatch<'_> {
        CudaBatch {
            tokens: self.tokens.span(),
            x: self.x.span(),
            experts: self.experts.span(),
            wide: false,
            weights: self.weights.span(),
        }
    }

    /// Queues the dispatch.
    pub fn dispatch(&self, layer: u16) -> Result<(), EpError> {
        self.ep.dispatch(&self.stream, layer, &self.batch())
    }

    /// Queues the wait for tokens.
    pub fn await_rows(&self) -> Result<(), EpError> {
        self.ep.await_rows(&self.stream)
    }

    /// Queues both waits, for an exchange without results of its own.
    pub fn await_both(&self) -> Result<(), EpError> {
        self.ep.await_both(&self.stream)
    }

    /// Queues the packing.
    pub fn pack(&self) -> Result<(), EpError> {
        self.ep.pack(&self.stream, self.packed.span(), self.counts.span())
    }

    /// Queues the experts of tests.
    pub fn experts(&self) -> Result<(), EpError> {
        let (x, counts, y) = (self.packed.span(), self.counts.span(), self.y.span());
        self.ep.scale(&self.stream, x, counts, y)
    }

    /// Queues real experts on the packed tokens; `act` is memory for `[local_experts, rows_max, inter]` bf16.
    pub fn products(&self, weights: &CudaWeights<'_>, act: Span<'_>) -> Result<(), EpError> {
        let (x, counts, y) = (self.packed.span(), self.counts.span(), self.y.span());
        self.ep.experts(&self.stream, weights, &Scratch { x, counts, act, y })
    }

    /// How many tokens each local expert has. It waits for the stream.
    pub fn counts(&self) -> Result<Vec<u32>, EpError> {
        let bytes = self.counts.span().to_vec(&self.stream)?;
        let number = |four: &[u8]| u32::from_le_bytes([four[0], four[1], four[2], four[3]]);
        Ok(bytes.chunks_exact(4).map(number).collect())
    }

    /// Queues the return of what the experts of tests have made.
    pub fn give_back(&self) -> Result<(), EpError> {
        self.ep.give_back(&self.stream, self.y.span())
    }

    /// Queues the return of the packed tokens as they are, bf16, so that no expert is in a figure.
    pub fn give_back_packed(&self) -> Result<(), EpError> {
        self.ep.give_back(&self.stream, self.packed.span())
    }

    /// Queues the wait for results.
    pub fn await_results(&self) -> Result<(), EpError> {
        self.ep.await_results(&self.stream)
    }

    /// Queues the sums.
    pub fn combine(&self) -> Result<(), EpError> {
        self.ep.combine(&self.stream, self.out.span())
    }

    /// Queues a dispatch that does not count, for figures of it alone. Only between layers, and no layer comes after it.
    pub fn dispatch_alone(&self, layer: u16) -> Result<(), EpError> {
        let queue = |ep: &CudaEp| ep.dispatch(&self.stream, layer, &self.batch());
        self.ep.alone(queue, Stage::Combined)
    }

    /// Queues a pack that does not count, for figures of it alone. Only where a pack comes next.
    pub fn pack_alone(&self) -> Result<(), EpError> {
        let queue = |ep: &CudaEp| ep.pack(&self.stream, self.packed.span(), self.counts.span());
        self.ep.alone(queue, Stage::Arrived)
    }

    /// Queues a combine that does not count, for figures of it alone. Only between layers.
    pub fn combine_alone(&self) -> Result<(), EpError> {
        let queue = |ep: &CudaEp| ep.combine(&self.stream, self.out.span());
        self.ep.alone(queue, Stage::Returned)
    }

    /// Changes how many of the uploaded tokens are sent from now on; it waits until that has happened.
    pub fn set_tokens(&self, tokens: u32) -> Result<(), EpError> {
        Ok(self.tokens.span().write(&tokens.to_le_bytes(), &self.stream)?)
    }

    /// Waits for the stream and gives the output; rows after the last token are as `upload` left them.
    pub fn output(&self) -> Result<Vec<u16>, EpError> {
        self.ep.finish(&self.stream)?;
        let bytes = self.out.span().to_vec(&self.stream)?;
        Ok(bytes.chunks_exact(2).map(|two| u16::from_le_bytes([two[0], two[1]])).collect())
    }

    /// Overwrites the output, so that whoever compares it later sees that it was made anew.
    pub fn spoil_output(&self) -> Result<(), EpError> {
        self.out.span().fill(0xff, &self.stream)?;
        Ok(self.stream.synchronize()?)
    }
}

/// Inputs of a rank with their outputs, made ahead and kept on the GPU. A graph that was recorded once gets another
/// one in each replay, and every output is compared without a wait of the host.
#[derive(Debug)]
pub struct Cases {
    seat: Rc<CudaSeat>,
    /// Memory as in [`CudaSeat`]: tokens, x, experts, weights, output.
    all: Vec<[DeviceBuffer; 5]>,
    /// u64: pieces of all outputs that were not what they must be.
    differ: DeviceBuffer,
}

impl Cases {
    /// Uploads inputs, and what must come out; rows after the last token must stay as they are.
    pub fn new(
        gpu: &Gpu,
        seat: &Rc<CudaSeat>,
        cases: &[(Drawn, Vec<u16>)],
    ) -> Result<Self, EpError> {
        let shape = *seat.ep.shape();
        let upload = |bytes: Vec<u8>| -> Result<DeviceBuffer, EpError> {
            let buffer = DeviceBuffer::new(gpu, bytes.len() as u64)?;
            buffer.span().write(&bytes, &seat.stream)?;
            Ok(buffer)
        };
        let case = |(drawn, out): &(Drawn, Vec<u16>)| -> Result<[DeviceBuffer; 5], EpError> {
            let drawn = drawn.clone().padded(&shape);
            let mut out = out.clone();
            out.resize((shape.output_bytes() / 2) as usize, POISON);
            Ok([
                upload(drawn.tokens.to_le_bytes().to_vec())?,
                upload(drawn.x.iter().flat_map(|v| v.to_le_bytes()).collect())?,
                upload(drawn.experts.iter().flat_map(|v| v.to_le_bytes()).collect())?,
                upload(drawn.weights.iter().flat_map(|v| v.to_le_bytes()).collect())?,
                upload(out.iter().flat_map(|v| v.to_le_bytes()).collect())?,
            ])
        };
        let all = cases.iter().map(case).collect::<Result<_, _>>()?;
        Ok(Self { seat: Rc::clone(seat), all, differ: upload(vec![0; 8])? })
    }

    /// Queues the copies of an input to where the graph finds it, and poisons the output.
    pub fn load(&self, number: usize, stream: &Stream) -> Result<(), EpError> {
        let (seat, [tokens, x, experts, weights, _]) = (&self.seat, &self.all[number]);
        for (to, from) in [
            (&seat.tokens, tokens),
            (&seat.x, x),
            (&seat.experts, experts),
            (&seat.weights, weights),
        ] {
            to.span().copy_from(from.span(), stream)?;
        }
        Ok(seat.out.span().fill(0xff, stream)?)
    }

    /// Queues the comparison of the output with that of an input.
    pub fn compare(&self, number: usize, stream: &Stream) -> Result<(), EpError> {
        let (seat, [.., expected]) = (&self.seat, &self.all[number]);
        seat.ep.compare(stream, seat.out.span(), expected.span(), self.differ.span())
    }

    /// How many pieces of 16 bytes were wrong, in all comparisons so far. It waits for the stream.
    pub fn mismatches(&self, stream: &Stream) -> Result<u64, EpError> {
        let mut bytes = [0; 8];
        self.differ.span().read(&mut bytes, stream)?;
        Ok(u64::from_le_bytes(bytes))
    }
}

/// Work of several ranks of one process in one graph: each rank on its own stream, all between the beginning and
/// the end of a common one.
pub struct Replay<'w> {
    graph: Graph,
    stream: Rc<Stream>,
    /// Held so that the memory of the ranks outlives the graph.
    _seats: Vec<Rc<CudaSeat>>,
    /// Held for what it borrows or owns: weights, and other memory that was recorded.
    _work: Work<'w>,
}

/// What is recorded, for all ranks.
type Work<'w> = Box<dyn Fn(&[Rc<CudaSeat>]) -> Result<(), EpError> + 'w>;

impl std::fmt::Debug for Replay<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replay").field("graph", &self.graph).finish_non_exhaustive()
    }
}

impl<'w> Replay<'w> {
    /// Records what `work` queues on the streams of the ranks. Calls of one phase are made for all ranks
    /// before those of the next one.
    pub fn record(
        stream: &Rc<Stream>,
        seats: &[Rc<CudaSeat>],
        work: impl Fn(&[Rc<CudaSeat>]) -> Result<(), EpError> + 'w,
    ) -> Result<Self, EpError> {
        let gpu = stream.gpu();
        let begin = Event::new(gpu)?;
        let ends = seats.iter().map(|_| Event::new(gpu)).collect::<Result<Vec<_>, _>>()?;
        let graph = Graph::record::<EpError>(stream, |stream| {
            begin.record(stream)?;
            seats.iter().try_for_each(|seat| seat.stream.wait(&begin))?;
            work(seats)?;
            for (seat, end) in seats.iter().zip(&ends) {
                end.record(&seat.stream)?;
                stream.wait(end)?;
            }
            Ok(())
        })?;
        let (stream, seats) = (Rc::clone(stream), seats.to_vec());
        Ok(Self { graph, stream, _seats: seats, _work: Box::new(work) })
    }

    /// One layer with the experts of tests.
    pub fn layer(stream: &Rc<Stream>, seats: &[Rc<CudaSeat>], layer: u16) -> Result<Self, EpError> {
        Self::record(stream, seats, move |seats| Self::calls(seats, layer))
    }

    /// Queues such a layer of all ranks.
    pub fn calls(seats: &[Rc<CudaSeat>], layer: u16) -> Result<(), EpError> {
        let each = |call: fn(&CudaSeat) -> Result<(), EpError>| {
            seats.iter().try_for_each(|seat| call(seat))
        };
        seats.iter().try_for_each(|seat| seat.dispatch(layer))?;
        each(CudaSeat::await_rows)?;
        each(CudaSeat::pack)?;
        each(CudaSeat::experts)?;
        each(CudaSeat::give_back)?;
        each(CudaSeat::await_results)?;
        each(CudaSeat::combine)
    }

    /// Queues all of it, on the common stream.
    pub fn queue(&self) -> Result<(), EpError> {
        // SAFETY: what was recorded reaches heaps, buffers and kernels of the ranks, which this object holds,
        // and memory that `work` has, which it holds, too. Whoever owns device or pinned memory waits for the
        // device before it is freed, so a launch that still runs when this is dropped does no harm.
        Ok(unsafe { self.graph.launch(&self.stream) }?)
    }

    /// Waits for the common stream.
    pub fn wait(&self) -> Result<(), EpError> {
        Ok(self.stream.synchronize()?)
    }

    /// Operations of the graph.
    pub fn nodes(&self) -> usize {
        self.graph.nodes()
    }
}
