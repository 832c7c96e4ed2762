//! A graph that is recorded once and replayed with other tokens, routes and weights each time: every output is
//! compared on the GPU.

use crate::rig::{Rig, small};
use mooncrate_core::rng::Rng;
use mooncrate_ep::oracle::{dense_of, test_expert};
use mooncrate_ep::seat::{Cases, CudaSeat, Replay};
use mooncrate_ep::workload::{Drawn, Routing};
use mooncrate_ep::{CudaEp, EpKernels};
use mooncrate_gpu::Stream;
use mooncrate_heap::{Heap, Watch};
use std::rc::Rc;
use std::sync::Arc;

const CASES: u64 = 21;

#[test]
fn every_replay_is_compared_and_mistakes_are_counted() {
    let config = small(3);
    let Some(rig) = Rig::new("replays", &config) else { return };
    let (gpu, shape) = (&rig.gpu, rig.shape);
    let kernels = EpKernels::load(gpu).unwrap();
    let heaps = Heap::cuda_ranks(gpu, shape.world(), rig.layout().bytes()).unwrap();
    let sit = |heap: Heap| {
        let (heap, watch) = (Arc::new(heap), Watch::default());
        let ep = CudaEp::over(gpu, heap, watch, kernels.clone(), &config).unwrap();
        Rc::new(CudaSeat::new(gpu, ep).unwrap())
    };
    let seats: Vec<Rc<CudaSeat>> = heaps.into_iter().map(sit).collect();
    let stream = Rc::new(Stream::new(gpu).unwrap());
    let graph = Replay::layer(&stream, &seats, 3).unwrap();
    let case = |rank: u32, number: u64| {
        let routing = Routing::ALL[number as usize % Routing::ALL.len()];
        let drawn = Drawn::new(&shape, routing, 8, rank, number);
        let out = dense_of(&shape, &drawn.batch(), &test_expert(&shape));
        (drawn, out)
    };
    let of = |(rank, seat): (u32, &Rc<CudaSeat>)| {
        let mut all: Vec<_> = (0..CASES).map(|number| case(rank, number)).collect();
        // One more, of which one element of one rank is expected to be another one.
        let mut odd = case(rank, 1);
        odd.1[3] ^= u16::from(rank == 1);
        all.push(odd);
        Cases::new(gpu, seat, &all).unwrap()
    };
    let cases: Vec<Cases> = (0..).zip(&seats).map(of).collect();
    let replay = |number: usize| {
        cases.iter().try_for_each(|rank| rank.load(number, &stream)).unwrap();
        graph.queue().unwrap();
        cases.iter().try_for_each(|rank| rank.compare(number, &stream)).unwrap();
        graph.wait().unwrap();
        seats.iter().try_for_each(|seat| seat.ep.status()).unwrap();
    };
    let differ =
        || -> Vec<u64> { cases.iter().map(|rank| rank.mismatches(&stream).unwrap()).collect() };
    let mut rng = Rng::new(5);
    for number in 0..CASES as usize {
        replay(number);
        replay(rng.below(CASES) as usize);
    }
    assert_eq!(differ(), [0, 0, 0]);
    replay(CASES as usize);
    replay(CASES as usize);
    assert_eq!(differ(), [0, 2, 0], "one piece in each of two replays");
    // An output that nobody has made is poison in every piece that must be something.
    cases[0].load(1, &stream).unwrap();
    cases[0].compare(1, &stream).unwrap();
    assert_eq!(differ()[0], shape.output_bytes() / 16);
}
