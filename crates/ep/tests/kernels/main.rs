//! Every kernel beside its oracle, on a real GPU or the emulator of one: equal in every byte of every heap, in
//! good steps and in failed ones.
//!
//! All ranks are in this process. Where they share a stream, the calls of a phase are made for all ranks before
//! those of the next one. Without a GPU each test says `SKIPPED`, with its name and the reason; the oracles have
//! tests of their own that run everywhere.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail where they stand")]

mod emulator;
mod replays;
mod rig;
mod safety;

use mooncrate_core::rng::Rng;
use mooncrate_ep::barrier::{Cause, Fault, Kind, Look, Op, Signal, Tag, give_up};
use mooncrate_ep::heaps::Heaps;
use mooncrate_ep::kernels::{
    dispatch_oracle, expert_oracle, experts_oracle, fail, failed, look_oracle, next_phase, pass,
};
use mooncrate_ep::layout::ctl;
use mooncrate_ep::oracle::dense_of;
use mooncrate_ep::workload::{Drawn, DrawnWeights, Routing};
use mooncrate_ep::{
    CudaBatch, CudaEp, CudaWeights, EpConfig, EpError, EpKernels, Payload, Scratch, Tuning,
};
use mooncrate_gpu::{DeviceBuffer, Event, Gpu, Graph};
use mooncrate_heap::{Ranks, Watch};
use rig::{POISON, Rig, SEED, Seat, bytes_of, halves, small};
use std::sync::Arc;

#[test]
fn every_step_of_every_routing_is_that_of_the_oracle() {
    let large = EpConfig { hidden: 520, top_k: 8, tokens_max: 7, ..small(8) };
    let one = EpConfig { hidden: 8, top_k: 1, tokens_max: 1, ..small(2) };
    let fp8 = EpConfig { hidden: 384, payload: Payload::Fp8, ..small(4) };
    // Blocks with one slot, with some, and with more than they look at together.
    for (config, parts, blocks) in
        [(small(3), 1, 20), (large, 1, 2), (one, 1, 7), (small(4), 3, 21), (fp8, 2, 14)]
    {
        let Some(mut rig) = Rig::new("every_step", &config) else { return };
        rig.tune(Tuning { parts, blocks, early: parts == 1 });
        for (step, routing) in Routing::ALL.into_iter().enumerate() {
            rig.layer(step as u16, &rig.draw(routing, step as u64));
        }
        // The phase is a number of 32 bits that wraps.
        rig.clear(1);
        for rank in 0..config.world {
            rig.set_word(rank, ctl::PHASE, u64::from(u32::MAX) - 1);
            for source in 0..config.world as u32 {
                for phase in 0..2 {
                    let tag = Tag::new(0, Op::Return, 0).in_epoch(1);
                    let old = Signal::at(tag, u32::MAX - 1 - phase).0;
                    rig.set_word(rank, rig.layout().signal(phase, source), old);
                }
            }
        }
        rig.layer(1, &rig.draw(Routing::Full, 100));
        rig.layer(2, &rig.draw(Routing::Random, 101));
    }
}

/// Input that is wrong: kernels and oracles fail the same way, and a reset brings everybody back.
#[test]
fn failed_steps_are_those_of_the_oracle() {
    type Spoil = fn(&mut Drawn);
    let Some(rig) = Rig::new("failed_steps", &small(4)) else { return };
    let cases: [(Spoil, &str); 6] = [
        (|drawn| drawn.experts[4] = 16, "rank 2 routes token 1 to expert 16 in place 1"),
        (|drawn| drawn.experts[5] = -7, "rank 2 routes token 1 to expert -7 in place 2"),
        (|drawn| drawn.experts[5] = drawn.experts[3], "twice, again in place 2"),
        (|drawn| drawn.weights[3] = f32::NAN, "token 1 the weight NaN in place 0"),
        (|drawn| drawn.weights[7] = f32::INFINITY, "token 2 the weight inf in place 1"),
        (|drawn| drawn.tokens = 6, "rank 2 has 6 tokens, more than tokens_max"),
    ];
    for (epoch, (spoil, words)) in (1..).zip(cases) {
        let mut drawn = rig.draw(Routing::Full, epoch);
        spoil(&mut drawn[2]);
        // Two mistakes: the lower one is named.
        drawn[2].experts.extend([0; 3]);
        drawn[2].weights.extend([f32::NAN; 3]);
        let copies = rig.dispatched(9, &drawn);
        let record = failed(&copies, 2).unwrap();
        let expected = Fault { rank: rig.rank(2), record }.to_string();
        assert!(expected.contains(words), "{expected}");
        assert_eq!(rig.said(), [None, None, Some(expected), None]);
        rig.all(|seat| seat.ep.await_rows(&rig.stream));
        let tag = Tag::new(9, Op::Dispatch, rig.shape.hash());
        // The rank that has failed leaves its kernels at once.
        for rank in [0, 1, 3] {
            let Look::Failed(record) = look_oracle(&copies, &rig.layout(), rank, tag) else {
                panic!("rank {rank} does not see it")
            };
            fail(&copies, &rig.layout(), rank, &record);
        }
        let copies = rig.compare(copies, "wait of a failed step");
        // What follows in a graph touches nothing.
        rig.all(|seat| seat.ep.pack(&rig.stream, seat.packed.span(), seat.counts.span()));
        rig.all(|seat| seat.ep.give_back(&rig.stream, seat.y.span()));
        rig.all(|seat| seat.ep.await_results(&rig.stream));
        rig.all(|seat| seat.ep.combine(&rig.stream, seat.out.span()));
        rig.compare(copies, "the rest of a failed step");
        for seat in &rig.seats {
            let out = seat.out.span().to_vec(&rig.stream).unwrap();
            assert!(out.iter().all(|byte| *byte == POISON));
        }
        assert!(rig.said()[0].as_ref().unwrap().contains("found by rank 2, heard from rank"));
        rig.clear(epoch);
        rig.layer(9, &rig.draw(Routing::Full, 50 + epoch));
    }
}

/// Ids of 64 bits: the heaps are those of the same ids in 32, and what no 32 bits hold is no expert.
#[test]
fn experts_of_64_bits_are_those_of_32() {
    let Some(rig) = Rig::new("experts_of_64_bits", &small(3)) else { return };
    let tag = Tag::new(3, Op::Dispatch, rig.shape.hash());
    let cases = [
        (Routing::Full, 0),
        (Routing::Padded, 0),
        (Routing::Full, 1 << 32),
        (Routing::Full, -1 << 40),
    ];
    for (epoch, (routing, beyond)) in (1..).zip(cases) {
        let mut drawn: Vec<Drawn> =
            rig.draw(routing, epoch).into_iter().map(|drawn| drawn.padded(&rig.shape)).collect();
        rig.upload(&drawn);
        let copies = rig.copies();
        let wide = |rank: usize, drawn: &Drawn| {
            let mut ids: Vec<i64> = drawn.experts.iter().map(|id| i64::from(*id)).collect();
            ids[4] += if rank == 1 { beyond } else { 0 };
            let room = DeviceBuffer::new(&rig.gpu, ids.len() as u64 * 8).unwrap();
            room.span().write(&bytes_of(&ids, i64::to_le_bytes), &rig.stream).unwrap();
            room
        };
        let ids: Vec<DeviceBuffer> =
            drawn.iter().enumerate().map(|(rank, drawn)| wide(rank, drawn)).collect();
        for (seat, ids) in rig.seats.iter().zip(&ids) {
            let short = CudaBatch { wide: true, ..seat.batch() };
            let refused = seat.ep.dispatch(&rig.stream, 3, &short).unwrap_err().to_string();
            assert!(refused.starts_with("the experts: 120 bytes are needed"), "{refused}");
            let batch = CudaBatch { experts: ids.span(), wide: true, ..seat.batch() };
            seat.ep.dispatch(&rig.stream, 3, &batch).unwrap();
        }
        if beyond != 0 {
            drawn[1].experts[4] = if beyond > 0 { i32::MAX } else { i32::MIN };
        }
        for (rank, drawn) in drawn.iter().enumerate() {
            dispatch_oracle(&copies, &rig.layout(), rig.rank(rank), tag, &drawn.batch());
        }
        rig.compare(copies, "dispatch of wide ids");
        rig.clear(epoch);
    }
}

#[test]
fn rows_of_other_steps_and_experts_without_room_end_the_step() {
    let config = EpConfig { rows_max: Some(3), ..small(3) };
    let Some(mut rig) = Rig::new("rows_of_other_steps", &config) else { return };
    // Several slots for each block.
    rig.tune(Tuning { blocks: 2, ..Tuning::default() });
    let tag = Tag::new(1, Op::Dispatch, rig.shape.hash());
    for epoch in 1..4 {
        let routing = if epoch == 2 { Routing::OneExpert } else { Routing::Empty };
        let copies = rig.dispatched(1, &rig.draw(routing, epoch));
        rig.all(|seat| seat.ep.await_rows(&rig.stream));
        let copies = rig.waited(copies, tag, "wait");
        if epoch != 2 {
            // Somebody has changed the stamps of two rows, or an expert.
            let stamp = if epoch == 1 { 52 } else { 0 };
            for slot in [8, 11] {
                let at = rig.layout().meta(slot) + stamp;
                copies.store(0, at, &77u32.to_le_bytes());
                rig.span(0)
                    .part(at..at + 4)
                    .unwrap()
                    .write(&77u32.to_le_bytes(), &rig.stream)
                    .unwrap();
            }
        }
        let (copies, _) = rig.packed(copies, 1);
        let said = rig.said();
        assert!(said.iter().any(Option::is_some), "{said:?}");
        for rank in 0..3 {
            let record = failed(&copies, rank);
            let text =
                record.map(|record| Fault { rank: rig.rank(rank as usize), record }.to_string());
            assert_eq!(said[rank as usize], text);
        }
        let words = if epoch == 2 {
            "more than rows_max"
        } else {
            "rank 1 did not write row 8 of this step"
        };
        assert!(said.iter().flatten().any(|text| text.contains(words)), "{said:?}");
        rig.clear(epoch);
    }
}

/// The same poison with another number for its kind.
fn of_kind(poison: Signal, kind: u64) -> Signal {
    Signal(poison.0 & !(31 << 27) | kind << 27)
}

/// Signals that are not there, of another layer, or poison: what a wait makes of them is what `look` says.
#[test]
fn waits_see_what_the_oracle_sees() {
    let Some(rig) = Rig::new("waits", &small(3)) else { return };
    let (layout, hash) = (rig.layout(), rig.shape.hash());
    let tag = Tag::new(6, Op::Dispatch, hash);
    let cause = Cause { kind: Kind::Overflow, origin: 2, ranks: Ranks::from_bits(5), phase: 7 };
    let here = Signal::at(tag, 7);
    let cases = [
        [here, here, Signal::at(tag, 5)],
        // Of before a reset: they say nothing, however far their writers had come.
        [here, here, Signal::at(tag.in_epoch(77), 7)],
        [here, here, Signal::poison(cause, 7, 77)],
        [here, Signal::default(), Signal::at(tag, 6)],
        [here, here, Signal::at(Tag::new(7, Op::Dispatch, hash), 7)],
        [here, Signal::at(tag, 5), Signal::poison(cause, 6, 0)],
        [here, here, Signal::poison(cause, 7, 0)],
        [here, Signal::poison(cause, 5, 0), Signal::poison(cause, 6, 0)],
        [here, Signal::at(tag, 9), here],
        [here, Signal::at(tag, 7 + (1 << 31)), here],
        // Poison of no kind that this version knows is poison all the same.
        [here, here, of_kind(Signal::poison(cause, 6, 0), 0)],
        [here, here, of_kind(Signal::poison(cause, 6, 0), 13)],
        [here, here, of_kind(Signal::poison(cause, 6, 0), 31)],
    ];
    for (epoch, signals) in (1..).zip(cases) {
        let seat = wait_alone(&rig, epoch, 6);
        for (source, signal) in (0..).zip(signals) {
            // The epoch is put in where a case has none.
            let now = Tag((signal.0 >> 32) as u32).epoch() == 0;
            let word = if now { signal.0 | epoch << 36 } else { signal.0 };
            rig.set_word(0, layout.signal(7, source), word);
        }
        let copies = rig.copies();
        let expected = look_oracle(&copies, &layout, 0, tag);
        match expected {
            Look::All => pass(&copies, 0),
            Look::Failed(record) => fail(&copies, &layout, 0, &record),
            Look::Missing(ranks) => {
                let tag = tag.in_epoch(epoch);
                let record = give_up(Kind::Timeout, ranks, 0, tag, next_phase(&copies, 0));
                fail(&copies, &layout, 0, &record);
            }
        }
        seat.ep.await_rows(&rig.stream).unwrap();
        let copies = rig.compare(copies, &format!("case {epoch}: {expected:?}"));
        let record = failed(&copies, 0);
        let text = record.map(|record| Fault { rank: rig.rank(0), record }.to_string());
        assert_eq!(rig.said()[0], text, "case {epoch}");
    }
    // The host knows better than the timeout, and what it has said once stays.
    let seat = wait_alone(&rig, 100, 0);
    seat.ep.abort(Ranks::from_bits(0b10));
    seat.ep.abort(Ranks::from_bits(0b100));
    seat.ep.await_rows(&rig.stream).unwrap();
    let said = rig.said()[0].clone().unwrap();
    assert!(said.contains("phase 1 (dispatch), layer 6: ranks 1, 2 ended"), "{said}");
}

/// A rank that has passed a phase of that epoch and dispatched layer 6, alone.
fn wait_alone(rig: &Rig, epoch: u64, passed: u64) -> &Seat {
    rig.clear(epoch);
    rig.upload(&rig.draw(Routing::Empty, 0));
    rig.set_word(0, ctl::PHASE, passed);
    let seat = &rig.seats[0];
    seat.ep.dispatch(&rig.stream, 6, &seat.batch()).unwrap();
    rig.stream.synchronize().unwrap();
    seat
}

/// Records a layer of all ranks, each on its stream, into one graph that begins and ends on the common one. The
/// experts are those of the host, from the step before: `y` is what it is when the graph runs.
fn record(rig: &Rig, layer: u16) -> Graph {
    let event = || Event::new(&rig.gpu).unwrap();
    let (begin, ends): (Event, Vec<Event>) = (event(), rig.seats.iter().map(|_| event()).collect());
    Graph::record::<EpError>(&rig.stream, |stream| {
        begin.record(stream)?;
        rig.seats.iter().try_for_each(|seat| seat.stream.wait(&begin))?;
        rig.seats
            .iter()
            .try_for_each(|seat| seat.ep.dispatch(&seat.stream, layer, &seat.batch()))?;
        rig.seats.iter().try_for_each(|seat| seat.ep.await_rows(&seat.stream))?;
        rig.seats.iter().try_for_each(|seat| {
            seat.ep.pack(&seat.stream, seat.packed.span(), seat.counts.span())
        })?;
        // An expert that changes nothing: what was packed goes back.
        rig.seats
            .iter()
            .try_for_each(|seat| seat.ep.give_back(&seat.stream, seat.packed.span()))?;
        rig.seats.iter().try_for_each(|seat| seat.ep.await_results(&seat.stream))?;
        rig.seats.iter().try_for_each(|seat| seat.ep.combine(&seat.stream, seat.out.span()))?;
        for (seat, end) in rig.seats.iter().zip(&ends) {
            end.record(&seat.stream)?;
            stream.wait(end)?;
        }
        Ok(())
    })
    .unwrap()
}

fn same(_: u32, x: &[u16], y: &mut [u16]) {
    y.copy_from_slice(x);
}

/// Two graphs and plain calls share one communicator, in any order.
#[test]
fn graphs_and_plain_calls_share_a_communicator() {
    let Some(rig) = Rig::new("graphs", &small(4)) else { return };
    let graphs = [record(&rig, 0), record(&rig, 1)];
    let mut rng = Rng::new(SEED);
    for step in 0..60u64 {
        let drawn = rig.draw(Routing::ALL[step as usize % Routing::ALL.len()], step);
        rig.upload(&drawn);
        match rng.below(3) {
            2 => {
                rig.layer(2, &drawn);
                continue;
            }
            // SAFETY: everything that was recorded belongs to the rig, which lives longer.
            number => unsafe { graphs[number as usize].launch(&rig.stream) }.unwrap(),
        }
        rig.stream.synchronize().unwrap();
        for (seat, drawn) in rig.seats.iter().zip(&drawn) {
            let out = halves(&seat.out.span().to_vec(&rig.stream).unwrap());
            let dense = dense_of(&rig.shape, &drawn.batch(), &same);
            assert_eq!(out[..dense.len()], dense, "step {step}");
            assert!(out[dense.len()..].iter().all(|bits| *bits == 0xffff), "step {step}");
        }
    }
    assert_eq!(rig.said(), vec![None; 4]);
}

/// Whole layers with experts: what the kernels compute is what the oracle computes, and the dense reference.
#[test]
fn layers_with_experts_are_those_of_the_oracle() {
    let large = EpConfig { hidden: 520, top_k: 2, tokens_max: 6, ..small(3) };
    // More tokens for one expert than are multiplied at once.
    let many = EpConfig { tokens_max: 20, ..small(2) };
    // More elements than the warps of a block ask for at once, in both products.
    let long = EpConfig { hidden: 1096, top_k: 2, tokens_max: 2, ..small(2) };
    for (config, inter) in [(small(2), 40), (large, 264), (many, 16), (long, 544)] {
        let Some(rig) = Rig::new("layers_with_experts", &config) else { return };
        let shape = rig.shape;
        let weights: Vec<DrawnWeights> = (0..config.world as u32)
            .map(|rank| DrawnWeights::new(&shape, inter, 9, rank))
            .collect();
        for (step, routing) in [(0, Routing::Random), (1, Routing::OneExpert)] {
            let drawn = rig.draw(routing, step);
            let copies = rig.dispatched(3, &drawn);
            rig.all(|seat| seat.ep.await_rows(&rig.stream));
            let tag = Tag::new(3, Op::Dispatch, shape.hash());
            let copies = rig.waited(copies, tag, "wait for rows");
            let _ = rig.packed(copies, 3);
            for (rank, seat) in rig.seats.iter().enumerate() {
                compare_experts(&rig, seat, rank, &weights[rank]);
            }
            rig.all(|seat| seat.ep.give_back(&rig.stream, seat.y.span()));
            rig.all(|seat| seat.ep.await_results(&rig.stream));
            rig.all(|seat| seat.ep.combine(&rig.stream, seat.out.span()));
            let dense = |expert: u32, x: &[u16], y: &mut [u16]| {
                let local = shape.local_experts();
                let weights = weights[(expert / local) as usize].weights();
                let mut act = vec![0; inter as usize];
                expert_oracle(&weights, (expert % local) as usize, x, &mut act, y);
            };
            for (seat, drawn) in rig.seats.iter().zip(&drawn) {
                let found = halves(&seat.out.span().to_vec(&rig.stream).unwrap());
                let expected = dense_of(&shape, &drawn.batch(), &dense);
                let hidden = shape.hidden() as usize;
                assert_products(&rig.gpu, &found[..expected.len()], &expected, hidden, "a layer");
            }
            assert_eq!(rig.said(), vec![None; config.world]);
        }
    }
}

/// Rows that products have made: bit for bit those of the oracle on the emulator. A tensor core adds up in a way of its
/// own, so a GPU's are as near as the roundings to bf16 are coarse. Rows without a token are NaN in both.
fn assert_products(gpu: &Gpu, found: &[u16], expected: &[u16], row: usize, what: &str) {
    if emulator::is(gpu) {
        assert_eq!(found, expected, "{what}");
        return;
    }
    assert_eq!(found.len(), expected.len(), "{what}");
    let number = |bits: &u16| f64::from(f32::from_bits(u32::from(*bits) << 16));
    for (at, (found, expected)) in found.chunks(row).zip(expected.chunks(row)).enumerate() {
        if number(&expected[0]).is_nan() {
            assert_eq!(found, expected, "{what}: row {at} has no token");
            continue;
        }
        let squares = expected.iter().map(|bits| number(bits).powi(2));
        let size = (squares.sum::<f64>() / f64::from(row as u32)).sqrt();
        for (found, expected) in found.iter().zip(expected) {
            let (found, expected) = (number(found), number(expected));
            let error = (found - expected).abs();
            assert!(
                error <= 0.01 * (expected.abs() + size),
                "{what}: {found} for {expected}, row {at}"
            );
        }
    }
}

/// Runs the experts of one rank on its packed tokens, and the oracle on the same.
fn compare_experts(rig: &Rig, seat: &Seat, rank: usize, weights: &DrawnWeights) {
    let (shape, inter) = (rig.shape, weights.inter as usize);
    let upload = |values: &[u16]| {
        let buffer = DeviceBuffer::new(&rig.gpu, values.len() as u64 * 2).unwrap();
        buffer.span().write(&bytes_of(values, u16::to_le_bytes), &rig.stream).unwrap();
        buffer
    };
    let rows = (shape.local_experts() * shape.rows_max()) as usize;
    let mut act = vec![0xffff; rows * inter];
    let (w13, w2, between) = (upload(&weights.w13), upload(&weights.w2), upload(&act));
    seat.y.span().fill(POISON, &rig.stream).unwrap();
    let device = CudaWeights { inter: weights.inter, w13: w13.span(), w2: w2.span() };
    let scratch = Scratch {
        x: seat.packed.span(),
        counts: seat.counts.span(),
        act: between.span(),
        y: seat.y.span(),
    };
    seat.ep.experts(&rig.stream, &device, &scratch).unwrap();
    let (x, counts, _) = rig.experts(seat, rank);
    let mut y = vec![0xffff; x.len()];
    experts_oracle(&shape, &weights.weights(), &x, &counts, &mut act, &mut y);
    let found = halves(&between.span().to_vec(&rig.stream).unwrap());
    assert_products(&rig.gpu, &found, &act, inter, "between the products");
    let found = halves(&seat.y.span().to_vec(&rig.stream).unwrap());
    assert_products(&rig.gpu, &found, &y, shape.hidden() as usize, "results");
    seat.ep.experts(&rig.stream, &device, &scratch).unwrap();
    let again = halves(&seat.y.span().to_vec(&rig.stream).unwrap());
    assert_eq!(found, again, "results of rank {rank} in a second run");
    let odd = CudaWeights { inter: 12, ..device };
    let text = seat.ep.experts(&rig.stream, &odd, &scratch).unwrap_err().to_string();
    assert!(text.starts_with("inter is 12; choose a multiple of 8"), "{text}");
    let short = CudaWeights { w2: w2.span().part(0..16).unwrap(), ..device };
    let text = seat.ep.experts(&rig.stream, &short, &scratch).unwrap_err().to_string();
    assert!(text.starts_with("the weights of the second product: "), "{text}");
}

/// An exchange without results of its own: both waits in one kernel.
#[test]
fn both_waits_fit_in_one_kernel() {
    let Some(rig) = Rig::new("both_waits", &small(2)) else { return };
    // Ranks wait for each other inside of one kernel, so each needs a stream that runs at the same time, which
    // the emulator does not have. There the other rank's second signal is put in place before.
    let emulated = rig.gpu.name() == "emulator";
    let drawn = rig.draw(Routing::Full, 1);
    rig.upload(&drawn);
    let tag = Tag::new(4, Op::Short, rig.shape.hash());
    for seat in &rig.seats {
        seat.ep.dispatch(&seat.stream, 4, &seat.batch()).unwrap();
    }
    for (rank, seat) in rig.seats.iter().enumerate() {
        if emulated {
            let other = 1 - rank;
            rig.set_word(rank, rig.layout().signal(2, other as u32), Signal::at(tag, 2).0);
        }
        seat.ep.await_both(&seat.stream).unwrap();
    }
    for seat in &rig.seats {
        seat.ep.combine(&seat.stream, seat.out.span()).unwrap();
    }
    rig.gpu.synchronize().unwrap();
    assert_eq!(rig.said(), [None, None]);
    let copies = rig.copies();
    for rank in 0..2 {
        assert_eq!(copies.word(rank, ctl::PHASE), 2);
        assert_eq!(copies.word(1 - rank, rig.layout().signal(2, rank)), Signal::at(tag, 2).0);
    }
}

#[test]
fn bad_calls_are_refused_before_anything_is_queued() {
    let Some(mut rig) = Rig::new("bad_calls", &small(2)) else { return };
    let said = |answer: Result<(), EpError>| answer.unwrap_err().to_string();
    {
        let (seat, stream) = (&rig.seats[0], &rig.stream);
        let batch = seat.batch();
        assert!(
            said(seat.ep.combine(stream, seat.out.span())).starts_with("combine after combine")
        );
        let short = CudaBatch { x: batch.x.part(0..704).unwrap(), ..batch };
        let text = said(seat.ep.dispatch(stream, 0, &short));
        assert_eq!(text, "the tokens: 720 bytes are needed, 704 are given");
        let askew = DeviceBuffer::new(&rig.gpu, 1024).unwrap();
        let askew = CudaBatch { x: askew.span().part(8..1024).unwrap(), ..batch };
        assert!(said(seat.ep.dispatch(stream, 0, &askew)).contains("no multiple of 16"));
        let none = CudaBatch { tokens: batch.tokens.part(0..0).unwrap(), ..batch };
        assert!(
            said(seat.ep.dispatch(stream, 0, &none)).starts_with("the number of tokens: 4 bytes")
        );
        let short = CudaBatch { weights: batch.tokens, ..batch };
        assert!(said(seat.ep.dispatch(stream, 0, &short)).starts_with("the weights: 60 bytes"));
        let heap = Arc::clone(&rig.heaps[0]);
        let kernels = EpKernels::load(&rig.gpu).unwrap();
        let second = CudaEp::over(&rig.gpu, heap, Watch::default(), kernels, &rig.config);
        assert!(second.unwrap_err().to_string().starts_with("a communicator has used this heap"));
    }
    assert!(
        said(rig.seats[0].ep.tune(Tuning { parts: 0, ..Tuning::default() }))
            .contains("choose 1 to 16")
    );
    let none = Tuning { blocks: 0, ..Tuning::default() };
    assert!(said(rig.seats[0].ep.tune(none)).contains("choose 1 or more"));
    rig.layer(0, &rig.draw(Routing::Full, 0));
}
