//! All ranks of an exchange in this process, in one set of buffers or in several that take turns.

use mooncrate_ep::oracle::{dense_of, test_expert};
use mooncrate_ep::seat::{Cases, CudaSeat, Replay};
use mooncrate_ep::workload::{Drawn, Routing};
use mooncrate_ep::{CudaEp, EpConfig, EpError, EpKernels, EpLayout, Payload, Shape, Tuning};
use mooncrate_gpu::{Gpu, Stream};
use mooncrate_heap::{Heap, Watch};
use std::rc::Rc;
use std::sync::Arc;

/// The seed of all batches.
const SEED: u64 = 22;

/// Sets of ranks: each set is an exchange of its own, with its own heaps.
pub(crate) struct Team {
    pub(crate) sets: Vec<Vec<Rc<CudaSeat>>>,
    pub(crate) shape: Shape,
    pub(crate) stream: Rc<Stream>,
    /// By set and rank.
    drawn: Vec<Vec<Drawn>>,
}

impl Team {
    /// So many sets, with `tokens` tokens on each rank.
    pub(crate) fn new(
        gpu: &Gpu,
        config: &EpConfig,
        sets: usize,
        tokens: u32,
        tuning: Tuning,
    ) -> Result<Self, EpError> {
        let shape = config.shape()?;
        let (layout, kernels) = (EpLayout::new(shape), EpKernels::load(gpu)?);
        let mut team =
            Self { sets: Vec::new(), shape, stream: Rc::new(Stream::new(gpu)?), drawn: Vec::new() };
        for set in 0..sets as u64 {
            let mut ranks = Vec::new();
            let mut drawn = Vec::new();
            for heap in Heap::cuda_ranks(gpu, shape.world(), layout.bytes())? {
                let rank = u32::from(heap.rank().number());
                let (heap, watch) = (Arc::new(heap), Watch::default());
                let mut ep = CudaEp::over(gpu, heap, watch, kernels.clone(), config)?;
                ep.tune(tuning)?;
                // Ranks of the same number share a stream, so that sets follow each other.
                let stream = team.sets.first().map(|first| Rc::clone(&first[rank as usize].stream));
                let stream = stream.map_or_else(|| Stream::new(gpu).map(Rc::new), Ok)?;
                let seat = CudaSeat::on(gpu, ep, stream)?;
                let mut batch = Drawn::new(&shape, Routing::Full, SEED, rank, set);
                batch.tokens = tokens;
                seat.upload(&batch)?;
                ranks.push(Rc::new(seat));
                drawn.push(batch);
            }
            team.sets.push(ranks);
            team.drawn.push(drawn);
        }
        Ok(team)
    }

    /// Records so many rounds; the sets take turns. `round` makes the calls of one, for all ranks.
    pub(crate) fn record<'w>(
        &self,
        rounds: usize,
        round: impl Fn(&[Rc<CudaSeat>], u16) -> Result<(), EpError> + 'w,
    ) -> Result<Replay<'w>, EpError> {
        let all: Vec<Rc<CudaSeat>> = self.sets.iter().flatten().cloned().collect();
        let world = self.shape.world().len();
        Replay::record(&self.stream, &all, move |all| {
            let sets: Vec<&[Rc<CudaSeat>]> = all.chunks_exact(world).collect();
            (0..rounds).try_for_each(|at| round(sets[at % sets.len()], (at % 61) as u16))
        })
    }

    /// Distinct ranks that tokens go to, of all tokens of a set together.
    pub(crate) fn copies(&self) -> u64 {
        let local = self.shape.local_experts();
        let k = self.shape.top_k() as usize;
        let ranks = |token: &[i32]| {
            let mask = token.iter().fold(0u32, |mask, e| mask | 1 << (e.cast_unsigned() / local));
            u64::from(mask.count_ones())
        };
        let tokens = |drawn: &Drawn| -> u64 {
            drawn.experts.chunks_exact(k).take(drawn.tokens as usize).map(ranks).sum()
        };
        self.drawn[0].iter().map(tokens).sum()
    }

    /// All tokens of a set.
    pub(crate) fn tokens(&self) -> u64 {
        self.drawn[0].iter().map(|drawn| u64::from(drawn.tokens)).sum()
    }

    /// For each rank of the first set, inputs of all routings with their outputs, ready on the GPU.
    pub(crate) fn cases(&self, gpu: &Gpu, count: u64) -> Result<Vec<Cases>, EpError> {
        let case = |rank: u32, number: u64| {
            let routing = Routing::ALL[number as usize % Routing::ALL.len()];
            let drawn = Drawn::new(&self.shape, routing, SEED + 1, rank, number);
            let out = dense_of(&self.shape, &drawn.batch(), &same);
            (drawn, out)
        };
        let of = |seat: &Rc<CudaSeat>| {
            let rank = u32::from(seat.ep.rank().number());
            let all: Vec<_> = (0..count).map(|number| case(rank, number)).collect();
            Cases::new(gpu, seat, &all)
        };
        self.sets[0].iter().map(of).collect()
    }

    /// Overwrites all outputs.
    pub(crate) fn spoil(&self) -> Result<(), EpError> {
        self.sets.iter().flatten().try_for_each(|seat| seat.spoil_output())
    }

    /// No rank has failed, and the outputs of the first set are those of experts that change nothing, or of the
    /// experts of tests where tokens are fp8.
    pub(crate) fn check(&self) -> Result<(), String> {
        for (at, seats) in self.sets.iter().enumerate() {
            for (seat, drawn) in seats.iter().zip(&self.drawn[at]) {
                let out = seat.output().map_err(|error| error.to_string())?;
                if at > 0 {
                    continue;
                }
                let expected = match self.shape.payload() {
                    Payload::Bf16 => dense_of(&self.shape, &drawn.batch(), &same),
                    Payload::Fp8 => {
                        dense_of(&self.shape, &drawn.batch(), &test_expert(&self.shape))
                    }
                };
                let differs = out.iter().zip(&expected).position(|(a, b)| a != b);
                if let Some(element) = differs {
                    return Err(format!("{}: WRONG BITS in element {element}", seat.ep.rank()));
                }
            }
        }
        Ok(())
    }
}

fn same(_: u32, x: &[u16], y: &mut [u16]) {
    y.copy_from_slice(x);
}
