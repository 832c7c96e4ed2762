//! What a single call promises, with all ranks in this thread.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail where they stand")]

use mooncrate_ep::heaps::Heaps;
use mooncrate_ep::layout::ctl;
use mooncrate_ep::workload::{Drawn, DrawnWeights, Routing};
use mooncrate_ep::{Batch, Ep, EpConfig, EpLayout, Weights};
use mooncrate_heap::{Heap, Watch, World};
use std::sync::Arc;
use std::time::Duration;

fn config() -> EpConfig {
    EpConfig {
        world: 2,
        tokens_max: 4,
        top_k: 2,
        hidden: 16,
        experts: 8,
        timeout: Duration::from_millis(50),
        first_timeout: Duration::from_millis(50),
        ..EpConfig::default()
    }
}

fn heaps() -> Vec<Arc<Heap>> {
    let layout = EpLayout::new(config().shape().unwrap());
    let heaps = Heap::host_ranks(World::new(2).unwrap(), layout.bytes()).unwrap();
    heaps.into_iter().map(Arc::new).collect()
}

fn open(heap: &Arc<Heap>) -> Ep {
    Ep::over(Arc::clone(heap), Watch::default(), &config()).unwrap()
}

fn said<T>(answer: Result<T, mooncrate_ep::EpError>) -> String {
    answer.err().expect("it is refused").to_string()
}

#[test]
fn a_second_communicator_on_the_same_heap_is_refused() {
    let heaps = heaps();
    let first = open(&heaps[0]);
    let second = Ep::over(Arc::clone(&heaps[0]), Watch::default(), &config());
    assert!(said(second).starts_with("a communicator has used this heap before"));
    drop(first);
    // Its signals are still there.
    let third = Ep::over(Arc::clone(&heaps[0]), Watch::default(), &config());
    assert!(said(third).contains("a heap serves one"));
    drop(open(&heaps[1]));
}

#[test]
fn heaps_that_do_not_fit_are_refused() {
    let heaps = heaps();
    let with = |config| said(Ep::over(Arc::clone(&heaps[0]), Watch::default(), &config));
    let long = EpConfig { hidden: 1024, ..config() };
    assert!(with(long).starts_with("the exchange needs heaps of"));
    let four = EpConfig { world: 4, ..config() };
    assert_eq!(with(four), "the configuration has 4 ranks, the heap 2");
    let bad = EpConfig { tokens_max: 0, ..config() };
    assert_eq!(with(bad), "tokens_max is 0; choose 1 to 4096");
}

#[test]
fn calls_out_of_order_and_wrong_lengths_send_nothing() {
    let heaps = heaps();
    let mut ranks: Vec<Ep> = heaps.iter().map(open).collect();
    let shape = *ranks[0].shape();
    let (mut x, mut counts) = (vec![0; (shape.packed_bytes() / 2) as usize], vec![0; 4]);
    let drawn: Vec<Drawn> =
        (0..2).map(|rank| Drawn::new(&shape, Routing::Full, 1, rank, 0)).collect();
    let batch = drawn[0].batch();
    assert!(said(ranks[0].await_rows()).starts_with("await_rows after combine; a layer is"));
    assert!(said(ranks[0].combine(&mut [])).starts_with("combine after combine"));
    let short = Batch { x: &batch.x[1..], ..batch };
    assert_eq!(
        said(ranks[0].dispatch(0, &short)),
        "the tokens: 64 elements are needed, 63 are given"
    );
    let short = Batch { experts: &batch.experts[1..], ..batch };
    assert_eq!(
        said(ranks[0].dispatch(0, &short)),
        "the experts: 8 elements are needed, 7 are given"
    );
    let short = Batch { weights: &[], ..batch };
    assert_eq!(
        said(ranks[0].dispatch(0, &short)),
        "the weights: 8 elements are needed, 0 are given"
    );
    // Nothing of it reached anybody: the layer goes on as if nothing had been asked.
    for (rank, drawn) in ranks.iter_mut().zip(&drawn) {
        rank.dispatch(0, &drawn.batch()).unwrap();
    }
    assert!(said(ranks[0].dispatch(0, &batch)).starts_with("dispatch after dispatch"));
    assert!(said(ranks[0].pack(&mut x, &mut counts)).starts_with("pack after dispatch"));
    for rank in &mut ranks {
        rank.await_rows().unwrap();
        assert!(
            said(rank.pack(&mut x[1..], &mut counts)).starts_with("the packed tokens: exactly")
        );
        assert!(
            said(rank.pack(&mut x, &mut [0]))
                .starts_with("the counts: exactly 4 elements are needed, 1")
        );
        rank.pack(&mut x, &mut counts).unwrap();
        assert!(said(rank.give_back(&x[1..])).starts_with("the results: exactly"));
        rank.give_back(&x).unwrap();
    }
    let mut out = vec![0; 64];
    for rank in &mut ranks {
        rank.await_results().unwrap();
        let text = said(rank.combine(&mut out[1..]));
        assert_eq!(text, "the output: 64 elements are needed, 63 are given");
        rank.combine(&mut out).unwrap();
    }
}

#[test]
fn a_wait_ends_in_time_and_every_later_call_repeats_why() {
    let heaps = heaps();
    let mut ranks: Vec<Ep> = heaps.iter().map(open).collect();
    let empty = Batch { tokens: 0, x: &[], experts: &[], weights: &[] };
    ranks[0].dispatch(3, &empty).unwrap();
    let text = said(ranks[0].await_rows());
    assert!(
        text.starts_with("rank 0: phase 1 (dispatch), layer 3: rank 1 did not come in time"),
        "{text}"
    );
    assert_eq!(said(ranks[0].status()), text);
    assert_eq!(said(ranks[0].dispatch(4, &empty)), text);
    // The other one comes late, and hears of it.
    ranks[1].dispatch(3, &empty).unwrap();
    let told = said(ranks[1].await_rows());
    assert!(
        told.contains("rank 1 did not come in time; found by rank 0, heard from rank 0"),
        "{told}"
    );
}

#[test]
fn weights_that_do_not_fit_send_nothing() {
    let heaps = heaps();
    let mut ep = open(&heaps[0]);
    let (shape, empty) = (*ep.shape(), Batch { tokens: 0, x: &[], experts: &[], weights: &[] });
    let drawn = DrawnWeights::new(&shape, 24, 1, 0);
    let good = drawn.weights();
    for (weights, said) in [
        (Weights { inter: 0, ..good }, "inter is 0; choose a multiple of 8, at most 65536"),
        (Weights { inter: 20, ..good }, "inter is 20; choose a multiple of 8"),
        (Weights { inter: 16, ..good }, "the weights of the first product: exactly 2048 elements"),
        (
            Weights { w2: &good.w2[1..], ..good },
            "the weights of the second product: exactly 1536 elements are needed, 1535",
        ),
    ] {
        let text = ep.forward(0, &empty, &weights, &mut []).unwrap_err().to_string();
        assert!(text.starts_with(said), "{text}");
    }
    let full = Drawn::new(&shape, Routing::Full, 1, 0, 0);
    let text = said(ep.forward(0, &full.batch(), &good, &mut [0; 63]));
    assert_eq!(text, "the output: 64 elements are needed, 63 are given");
    // Nothing was sent, so the rank may still begin a layer.
    ep.dispatch(0, &empty).unwrap();
}

/// One layer of all ranks, without tokens.
fn empty_layer(ranks: &mut [Ep], layer: u16) {
    let empty = Batch { tokens: 0, x: &[], experts: &[], weights: &[] };
    let shape = *ranks[0].shape();
    let (mut x, mut counts) = (vec![0; (shape.packed_bytes() / 2) as usize], vec![0; 4]);
    ranks.iter_mut().try_for_each(|rank| rank.dispatch(layer, &empty)).unwrap();
    for rank in ranks.iter_mut() {
        rank.await_rows().unwrap();
        rank.pack(&mut x, &mut counts).unwrap();
        rank.give_back(&x).unwrap();
    }
    for rank in ranks {
        rank.await_results().unwrap();
        rank.combine(&mut []).unwrap();
    }
}

/// Between two layers as well: nobody waits for a rank that does not come any more.
#[test]
fn a_rank_that_leaves_between_layers_is_named_at_once() {
    let heaps = heaps();
    let long = Duration::from_hours(1);
    let config = EpConfig { timeout: long, first_timeout: long, ..config() };
    let open = |heap| Ep::over(Arc::clone(heap), Watch::default(), &config).unwrap();
    let mut ranks: Vec<Ep> = heaps.iter().map(open).collect();
    empty_layer(&mut ranks, 0);
    drop(ranks.pop());
    let empty = Batch { tokens: 0, x: &[], experts: &[], weights: &[] };
    ranks[0].dispatch(1, &empty).unwrap();
    let text = said(ranks[0].await_rows());
    assert!(text.contains("phase 3 (dispatch), layer 1: rank 1 closed its communicator"), "{text}");
}

/// A row of another step that comes between pack and return, and a phase that is not that of the call.
#[test]
fn a_heap_that_somebody_else_writes_ends_the_step() {
    let empty = Batch { tokens: 0, x: &[], experts: &[], weights: &[] };
    for case in 0..3 {
        let heaps = heaps();
        let mut ranks: Vec<Ep> = heaps.iter().map(open).collect();
        let shape = *ranks[0].shape();
        let (mut x, mut counts) = (vec![0; (shape.packed_bytes() / 2) as usize], vec![0; 4]);
        ranks.iter_mut().try_for_each(|rank| rank.dispatch(0, &empty)).unwrap();
        ranks.iter_mut().try_for_each(Ep::await_rows).unwrap();
        let layout = *ranks[0].layout();
        ranks[0].pack(&mut x, &mut counts).unwrap();
        let text = match case {
            0 => {
                heaps[0].store(0, layout.meta(5) + 52, &9u32.to_le_bytes());
                said(ranks[0].give_back(&x))
            }
            1 => {
                heaps[0].set_word(0, ctl::PHASE, 2);
                said(ranks[0].give_back(&x))
            }
            _ => {
                ranks[0].give_back(&x).unwrap();
                heaps[0].set_word(0, ctl::PHASE, 2);
                said(ranks[0].await_results())
            }
        };
        let words = match case {
            0 => "rank 1 did not write row 5 of this step (it is of phase 9)",
            _ => "rank 0 ran return of layer 0, epoch 0, shape",
        };
        assert!(text.contains(words), "case {case}: {text}");
    }
}
