//! Memory that somebody else has written, calls in another order, resets, and ranks that leave: a step fails with a
//! name, or goes on as if nothing had been.

use crate::emulator;
use crate::rig::{POISON, Rig, Seat, bytes_of, halves, small};
use mooncrate_ep::barrier::{Fault, Kind, Op, Signal, Tag};
use mooncrate_ep::heaps::{Copies, Heaps};
use mooncrate_ep::kernels::{
    begin, combine_oracle, dispatch_oracle, failed, give_back_oracle, leave_oracle, pack_oracle,
};
use mooncrate_ep::layout::{ctl, row};
use mooncrate_ep::workload::{Drawn, DrawnWeights, Routing};
use mooncrate_ep::{CudaBatch, CudaWeights, EpConfig, EpError, Packed, Replays, Scratch, Tuning};
use mooncrate_gpu::{DeviceBuffer, Event, Graph, Stream};
use mooncrate_heap::{Group, GroupSpec, Ranks};
use mooncrate_lock::interrupt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Writes to a heap behind the back of the exchange, and to the copy of it.
fn damage(rig: &Rig, copies: &Copies, rank: usize, offset: u64, bytes: &[u8]) {
    copies.store(rank as u32, offset, bytes);
    let place = rig.span(rank).part(offset..offset + bytes.len() as u64).unwrap();
    place.write(bytes, &rig.stream).unwrap();
}

/// What the ranks say is what their copies say.
fn said_as(rig: &Rig, copies: &Copies) -> Vec<Option<String>> {
    let said = rig.said();
    for (rank, said) in said.iter().enumerate() {
        let record = failed(copies, rank as u32);
        let text = record.map(|record| Fault { rank: rig.rank(rank), record }.to_string());
        assert_eq!(*said, text);
    }
    said
}

/// A row that changes between pack and return ends the step: nothing of it goes back.
#[test]
fn a_row_that_changes_after_pack_ends_the_step() {
    let Some(mut rig) = Rig::new("a_row_that_changes", &small(3)) else { return };
    // Several slots for each block.
    rig.tune(Tuning { blocks: 2, ..Tuning::default() });
    let hash = rig.shape.hash();
    let (there, back) = (Tag::new(2, Op::Dispatch, hash), Tag::new(2, Op::Return, hash));
    let copies = rig.dispatched(2, &rig.draw(Routing::Full, 1));
    rig.all(|seat| seat.ep.await_rows(&rig.stream));
    let copies = rig.waited(copies, there, "wait");
    let (copies, results) = rig.packed(copies, 2);
    // Slot 7 is token 2 of rank 1. Rank 0 got it, or at least the row that says that it did not.
    let stamp = rig.layout().meta(7) + row::STAMP as u64;
    damage(&rig, &copies, 0, stamp, &77u32.to_le_bytes());
    rig.all(|seat| seat.ep.give_back(&rig.stream, seat.y.span()));
    for (rank, (y, rows)) in results.iter().enumerate() {
        give_back_oracle(&copies, &rig.layout(), rig.rank(rank), back, y, rows);
    }
    let copies = rig.compare(copies, "give back");
    let said = said_as(&rig, &copies);
    let words = "phase 2 (return), layer 2: rank 1 did not write row 7 of this step";
    assert!(said[0].as_ref().unwrap().contains(words), "{said:?}");
    rig.clear(1);
    rig.layer(2, &rig.draw(Routing::Full, 9));
}

/// What `pack` found out, overwritten: the oracle reads no row that does not exist. Beside it stands the kernel, in
/// `cuda.rs`, because nobody else can write there.
#[test]
fn a_packed_row_that_does_not_exist_is_named() {
    let Some(rig) = Rig::new("a_packed_row", &small(2)) else { return };
    let copies = rig.dispatched(2, &rig.draw(Routing::OneRank, 1));
    rig.all(|seat| seat.ep.await_rows(&rig.stream));
    let copies = rig.waited(copies, Tag::new(2, Op::Dispatch, rig.shape.hash()), "wait");
    let (copies, results) = rig.packed(copies, 2);
    let heaps = copies.into_inner();
    let busy = results.iter().position(|(_, rows)| rows[0] >= 0).expect("slot 0 went somewhere");
    for row in [rig.shape.packed_rows() as i32, i32::MAX, -2, i32::MIN] {
        let (y, mut rows) = results[busy].clone();
        rows[1] = row;
        let copies = Copies::new(heaps.clone());
        let tag = Tag::new(2, Op::Return, rig.shape.hash());
        give_back_oracle(&copies, &rig.layout(), rig.rank(busy), tag, &y, &rows);
        let record = failed(&copies, busy as u32).expect("it is seen");
        let text = Fault { rank: rig.rank(busy), record }.to_string();
        let words = format!("rank {busy} has row {row} for slot 0 in place 1: there is none");
        assert!(text.contains(&words), "{text}");
    }
}

/// Bits of ranks that do not exist, and a number of tokens that does not fit, in this rank's own heap.
#[test]
fn masks_of_ranks_that_do_not_exist_are_not_believed() {
    let Some(rig) = Rig::new("masks", &small(3)) else { return };
    let drawn = rig.draw(Routing::Full, 4);
    let copies = rig.dispatched(1, &drawn);
    rig.all(|seat| seat.ep.await_rows(&rig.stream));
    let copies = rig.waited(copies, Tag::new(1, Op::Dispatch, rig.shape.hash()), "wait");
    let (copies, results) = rig.packed(copies, 1);
    rig.all(|seat| seat.ep.give_back(&rig.stream, seat.y.span()));
    let tag = Tag::new(1, Op::Return, rig.shape.hash());
    for (rank, (y, rows)) in results.iter().enumerate() {
        give_back_oracle(&copies, &rig.layout(), rig.rank(rank), tag, y, rows);
    }
    rig.all(|seat| seat.ep.await_results(&rig.stream));
    let copies = rig.waited(copies, tag, "wait for results");
    let layout = rig.layout();
    // Behind the last part of the heap there is nothing but NaNs, which would show in every sum.
    let behind = rig.span(0).part(layout.bytes()..rig.heaps[0].bytes()).unwrap();
    behind.fill(POISON, &rig.stream).unwrap();
    damage(&rig, &copies, 0, layout.sent(), &u32::MAX.to_le_bytes());
    for token in 0..rig.shape.tokens_max() {
        let mut mask = [0; 4];
        copies.load(0, layout.sent_mask(token), &mut mask);
        let mask = u32::from_le_bytes(mask) | !0b111;
        damage(&rig, &copies, 0, layout.sent_mask(token), &mask.to_le_bytes());
    }
    let seat = &rig.seats[0];
    seat.ep.combine(&rig.stream, seat.out.span()).unwrap();
    let mut out = vec![0xffff; (rig.shape.output_bytes() / 2) as usize];
    combine_oracle(&copies, &layout, rig.rank(0), tag, &mut out);
    assert_eq!(halves(&seat.out.span().to_vec(&rig.stream).unwrap()), out);
}

/// Each kernel where another one comes next: as after a graph that holds a part of a layer.
#[test]
fn work_in_the_wrong_phase_fails_and_touches_nothing() {
    type Call<'a> = &'a dyn Fn(&Seat) -> Result<(), EpError>;
    let Some(rig) = Rig::new("wrong_phase", &small(2)) else { return };
    let calls = ["dispatch", "wait", "pack", "give back", "combine"];
    for (epoch, (at, call)) in (1..).zip(calls.into_iter().enumerate()) {
        rig.clear(epoch);
        let drawn = rig.draw(Routing::Full, epoch);
        rig.upload(&drawn);
        // Up to the call that is looked at; the host has its own idea of where the layer is.
        let (stream, seat) = (&rig.stream, &rig.seats[0]);
        let before: [Call<'_>; 5] = [
            &|seat| seat.ep.dispatch(stream, 3, &seat.batch()),
            &|seat| seat.ep.await_rows(stream),
            &|seat| seat.ep.pack(stream, seat.packed.span(), seat.counts.span()),
            &|seat| seat.ep.give_back(stream, seat.packed.span()),
            &|seat| seat.ep.await_results(stream),
        ];
        let made = [0, 1, 2, 3, 5][at];
        before[..made].iter().for_each(|call| rig.all(call));
        let copies = rig.copies();
        // One phase more than there was.
        let phase = copies.word(0, ctl::PHASE) + 1;
        copies.set_word(0, ctl::PHASE, phase);
        rig.set_word(0, ctl::PHASE, phase);
        if call == "combine" {
            seat.ep.combine(stream, seat.out.span()).unwrap();
        } else {
            before[made](seat).unwrap();
        }
        oracle_alone(&rig, &copies, call, &drawn[0]);
        let copies = rig.compare(copies, call);
        let said = said_as(&rig, &copies)[0].clone().unwrap_or_else(|| panic!("{call} goes on"));
        assert!(said.contains("out of order; record and replay whole layers"), "{call}: {said}");
        let out = seat.out.span().to_vec(stream).unwrap();
        assert!(out.iter().all(|byte| *byte == POISON), "{call}: nothing was written");
    }
    rig.clear(9);
    rig.layer(3, &rig.draw(Routing::Full, 9));
}

/// The same call of rank 0 on copies.
fn oracle_alone(rig: &Rig, copies: &Copies, call: &str, drawn: &Drawn) {
    let (layout, hash, me) = (rig.layout(), rig.shape.hash(), rig.rank(0));
    let (there, back) = (Tag::new(3, Op::Dispatch, hash), Tag::new(3, Op::Return, hash));
    match call {
        "dispatch" => {
            let drawn = drawn.clone().padded(&rig.shape);
            dispatch_oracle(copies, &layout, me, there, &drawn.batch());
        }
        "wait" => assert_eq!(begin(copies, &layout, me, there, 1), None),
        "pack" => {
            let mut packed = Packed { x: &mut [], counts: &mut [], rows: &mut [] };
            pack_oracle(copies, &layout, me, there, &mut packed);
        }
        "give back" => give_back_oracle(copies, &layout, me, back, &[], &[]),
        _ => combine_oracle(copies, &layout, me, back, &mut []),
    }
}

/// A graph that holds only the beginning of a layer, launched twice, or in the middle of a plain layer: the phase is
/// that of a dispatch, but this one was done.
#[test]
fn a_phase_is_not_signalled_twice() {
    let Some(rig) = Rig::new("twice", &small(2)) else { return };
    let (seat, stream) = (&rig.seats[0], &rig.stream);
    let part =
        Graph::record::<EpError>(stream, |stream| seat.ep.dispatch(stream, 3, &seat.batch()));
    let part = part.unwrap();
    let tag = Tag::new(3, Op::Dispatch, rig.shape.hash());
    for (epoch, plain) in [(1, false), (2, true)] {
        rig.clear(epoch);
        let drawn = rig.draw(Routing::Full, epoch);
        rig.upload(&drawn);
        if plain {
            seat.ep.dispatch(stream, 3, &seat.batch()).unwrap();
        } else {
            // SAFETY: everything that was recorded belongs to the rig, which lives longer.
            unsafe { part.launch(stream) }.unwrap();
        }
        assert_eq!(rig.said(), [None, None]);
        let copies = rig.copies();
        // Other tokens, which must not be mixed with those that may be on their way through a peer.
        rig.upload(&rig.draw(Routing::OneRank, 9));
        // SAFETY: as above.
        unsafe { part.launch(stream) }.unwrap();
        dispatch_oracle(
            &copies,
            &rig.layout(),
            rig.rank(0),
            tag,
            &drawn[0].clone().padded(&rig.shape).batch(),
        );
        let copies = rig.compare(copies, "a second dispatch");
        let said = said_as(&rig, &copies)[0].clone().expect("it is not done twice");
        assert!(said.contains("rank 0 ran dispatch of layer 3"), "{said}");
    }
    // The return, the same: this rank's own word says that it was done.
    rig.clear(3);
    let copies = rig.dispatched(3, &rig.draw(Routing::Full, 3));
    rig.all(|seat| seat.ep.await_rows(stream));
    let copies = rig.waited(copies, tag, "wait");
    let (copies, results) = rig.packed(copies, 3);
    let back = Tag::new(3, Op::Return, rig.shape.hash());
    let word = Signal::at(back.in_epoch(3), 2).0.to_le_bytes();
    damage(&rig, &copies, 0, rig.layout().signal(2, 0), &word);
    seat.ep.give_back(stream, seat.y.span()).unwrap();
    give_back_oracle(&copies, &rig.layout(), rig.rank(0), back, &results[0].0, &results[0].1);
    let copies = rig.compare(copies, "a second return");
    let said = said_as(&rig, &copies)[0].clone().expect("it is not done twice");
    assert!(said.contains("rank 0 ran return of layer 3"), "{said}");
    rig.clear(4);
    rig.layer(3, &rig.draw(Routing::Full, 4));
}

/// A rank that exchanges without results is not in the layer of one that returns them.
#[test]
fn an_exchange_without_results_is_an_operation_of_its_own() {
    let Some(rig) = Rig::new("without_results", &small(2)) else { return };
    rig.upload(&rig.draw(Routing::Full, 1));
    let seats = &rig.seats;
    rig.all(|seat| seat.ep.dispatch(&rig.stream, 4, &seat.batch()));
    // Rank 1 returns results, so its word says so; rank 0 does not.
    seats[1].ep.await_rows(&rig.stream).unwrap();
    seats[1].ep.pack(&rig.stream, seats[1].packed.span(), seats[1].counts.span()).unwrap();
    seats[1].ep.give_back(&rig.stream, seats[1].packed.span()).unwrap();
    seats[0].ep.await_both(&rig.stream).unwrap();
    let said = rig.said()[0].clone().expect("it is not taken for the same");
    assert!(said.contains("rank 1 came to return of layer 4"), "{said}");
    assert!(said.contains("but this rank to short round of layer 4"), "{said}");
}

/// A rank whose signal arrives while the host says that it has ended was there.
#[test]
fn a_rank_that_arrived_before_it_ended_is_not_missing() {
    let Some(rig) = Rig::new("arrived", &small(2)) else { return };
    if !emulator::needed("arrived", &rig.stream) {
        return;
    }
    rig.upload(&rig.draw(Routing::Empty, 0));
    let seat = &rig.seats[0];
    seat.ep.dispatch(&rig.stream, 6, &seat.batch()).unwrap();
    seat.ep.abort(Ranks::from_bits(0b10));
    let tag = Tag::new(6, Op::Dispatch, rig.shape.hash());
    let word = rig.span(0).address() + rig.layout().signal(1, 1);
    emulator::arrive(word, Signal::at(tag, 1).0);
    seat.ep.await_rows(&rig.stream).unwrap();
    assert_eq!(rig.said()[0], None, "it was there");
    assert_eq!(rig.copies().word(0, ctl::PHASE), 1);
}

/// Calls of a layer on another stream than its dispatch, plain and recorded.
#[test]
fn a_layer_stays_on_its_stream() {
    let Some(rig) = Rig::new("one_stream", &small(2)) else { return };
    rig.upload(&rig.draw(Routing::Full, 0));
    let (seat, stream, other) = (&rig.seats[0], &rig.stream, &rig.seats[1].stream);
    let said = |answer: Result<(), EpError>| answer.unwrap_err().to_string();
    let apart = "on another stream than the dispatch of this layer";
    rig.all(|seat| seat.ep.dispatch(stream, 0, &seat.batch()));
    assert!(said(seat.ep.await_rows(other)).starts_with(&format!("await_rows {apart}")));
    assert!(said(seat.ep.await_both(other)).starts_with(&format!("await_rows {apart}")));
    rig.all(|seat| seat.ep.await_rows(stream));
    let (x, counts, y) = (seat.packed.span(), seat.counts.span(), seat.y.span());
    assert!(said(seat.ep.pack(other, x, counts)).starts_with(&format!("pack {apart}")));
    rig.all(|seat| seat.ep.pack(stream, seat.packed.span(), seat.counts.span()));
    assert!(said(seat.ep.scale(other, x, counts, y)).starts_with(&format!("scale {apart}")));
    assert!(said(seat.ep.give_back(other, y)).starts_with(&format!("give_back {apart}")));
    let recorded =
        Graph::record::<EpError>(stream, |stream| seat.ep.give_back(stream, y)).unwrap_err();
    assert!(recorded.to_string().starts_with("give_back in another recording"), "{recorded}");
    rig.all(|seat| seat.ep.give_back(stream, seat.y.span()));
    assert!(said(seat.ep.await_results(other)).starts_with(&format!("await_results {apart}")));
    rig.all(|seat| seat.ep.await_results(stream));
    assert!(said(seat.ep.combine(other, seat.out.span())).starts_with(&format!("combine {apart}")));
    rig.all(|seat| seat.ep.combine(stream, seat.out.span()));
    // Nothing of what was refused was done, and the next layer may be elsewhere.
    assert_eq!(rig.said(), [None, None]);
    rig.layer(1, &rig.draw(Routing::Full, 1));
}

/// The next layer on another stream begins after the sums of the last one, plain and recorded.
#[test]
fn the_next_layer_on_another_stream_waits() {
    let Some(rig) = Rig::new("another_stream", &small(2)) else { return };
    if !emulator::needed("another_stream", &rig.stream) {
        return;
    }
    rig.upload(&rig.draw(Routing::Full, 0));
    let (seat, other) = (&rig.seats[0], Stream::new(&rig.gpu).unwrap());
    rig.all(|seat| seat.ep.dispatch(&seat.stream, 0, &seat.batch()));
    rig.all(|seat| seat.ep.await_rows(&seat.stream));
    rig.all(|seat| seat.ep.pack(&seat.stream, seat.packed.span(), seat.counts.span()));
    rig.all(|seat| seat.ep.give_back(&seat.stream, seat.packed.span()));
    rig.all(|seat| seat.ep.await_results(&seat.stream));
    let before = rig.copies();
    // The sums have not begun when the next layer is queued elsewhere.
    emulator::hold(seat.stream.raw(), true);
    seat.ep.combine(&seat.stream, seat.out.span()).unwrap();
    seat.ep.dispatch(&other, 1, &seat.batch()).unwrap();
    let after = rig.copies();
    emulator::hold(seat.stream.raw(), false);
    assert_eq!(after.into_inner(), before.into_inner(), "what the sums read has changed");
    let word = rig.copies().word(1, rig.layout().signal(3, 0));
    assert_eq!(word as u32, 3, "the dispatch was done afterwards");
    // In one recording the same calls are allowed; the emulator has no edges that would show more.
    rig.clear(1);
    let (begin, end) = (Event::new(&rig.gpu).unwrap(), Event::new(&rig.gpu).unwrap());
    Graph::record::<EpError>(&rig.stream, |stream| {
        begin.record(stream)?;
        other.wait(&begin)?;
        for (layer, stream) in [(0, stream), (1, &other)] {
            seat.ep.dispatch(stream, layer, &seat.batch())?;
            seat.ep.await_rows(stream)?;
            seat.ep.pack(stream, seat.packed.span(), seat.counts.span())?;
            seat.ep.give_back(stream, seat.packed.span())?;
            seat.ep.await_results(stream)?;
            seat.ep.combine(stream, seat.out.span())?;
        }
        end.record(&other)?;
        stream.wait(&end).map_err(EpError::from)
    })
    .unwrap();
    rig.layer(2, &rig.draw(Routing::Full, 1));
}

/// A recording that fails, or that holds a part of a layer, leaves nothing behind.
#[test]
fn a_layer_whose_recording_failed_begins_again() {
    let Some(rig) = Rig::new("failed_recording", &small(2)) else { return };
    rig.upload(&rig.draw(Routing::Full, 0));
    let (seat, stream) = (&rig.seats[0], &rig.stream);
    for again in 0..2 {
        let failed = Graph::record::<EpError>(stream, |stream| {
            seat.ep.dispatch(stream, 0, &seat.batch())?;
            // In one recording a layer is not begun twice.
            let twice = seat.ep.dispatch(stream, 0, &seat.batch()).unwrap_err().to_string();
            assert!(twice.starts_with("dispatch after dispatch"), "{twice}");
            seat.ep.await_rows(stream)?;
            seat.ep.pack(stream, seat.packed.span().part(0..16)?, seat.counts.span())
        });
        assert!(failed.unwrap_err().to_string().starts_with("the packed tokens: "), "{again}");
        // Whoever goes on outside of it is told what to do.
        let text = seat.ep.pack(stream, seat.packed.span(), seat.counts.span()).unwrap_err();
        assert!(text.to_string().contains("begin again with dispatch"), "{text}");
    }
    rig.layer(1, &rig.draw(Routing::Full, 1));
}

/// Everything that `forward` needs is looked at before it queues anything.
#[test]
fn forward_checks_all_memory_first() {
    let Some(rig) = Rig::new("forward", &small(2)) else { return };
    let (shape, inter) = (rig.shape, 16u32);
    let drawn = rig.draw(Routing::Full, 2);
    rig.upload(&drawn);
    let weights = DrawnWeights::new(&shape, inter, 5, 0);
    let upload = |values: &[u16]| {
        let buffer = DeviceBuffer::new(&rig.gpu, values.len() as u64 * 2).unwrap();
        buffer.span().write(&bytes_of(values, u16::to_le_bytes), &rig.stream).unwrap();
        buffer
    };
    let rows = (shape.local_experts() * shape.rows_max()) as usize;
    let (w13, w2) = (upload(&weights.w13), upload(&weights.w2));
    let act = upload(&vec![0; rows * inter as usize]);
    let Seat { ep, packed, counts, y, out, .. } = &rig.seats[0];
    let good = CudaWeights { inter, w13: w13.span(), w2: w2.span() };
    let (x, counts, act, y) = (packed.span(), counts.span(), act.span(), y.span());
    let scratch = Scratch { x, counts, act, y };
    let less = out.span().part(0..16).unwrap();
    let before = rig.copies().into_inner();
    for (weights, scratch, out, words) in [
        (CudaWeights { inter: 12, ..good }, scratch, out.span(), "inter is 12"),
        (CudaWeights { w2: less, ..good }, scratch, out.span(), "the weights of the second"),
        (CudaWeights { w13: less, ..good }, scratch, out.span(), "the weights of the first"),
        (good, Scratch { x: less, ..scratch }, out.span(), "the packed tokens"),
        (good, Scratch { act: less, ..scratch }, out.span(), "the memory between"),
        (good, Scratch { y: less, ..scratch }, out.span(), "the results"),
        (good, scratch, less, "the output"),
    ] {
        let batch = rig.seats[0].batch();
        let text = ep.forward(&rig.stream, 0, &batch, &weights, &scratch, out).unwrap_err();
        assert!(text.to_string().starts_with(words), "{text}");
        assert_eq!(rig.copies().into_inner(), before, "{words}: nothing was sent");
    }
    rig.layer(0, &drawn);
}

/// A rank drops its communicator in the middle of a layer, or between two: the others hear of it at once, and what
/// was complete stays complete.
#[test]
fn ranks_hear_at_once_of_one_that_leaves() {
    let timeout = Duration::from_hours(1);
    let config = EpConfig { timeout, first_timeout: timeout, ..small(3) };
    for dispatched in [false, true] {
        let Some(mut rig) = Rig::new("leaves", &config) else { return };
        let drawn = rig.draw(Routing::Full, 0);
        rig.layer(0, &drawn);
        let gone = rig.seats.pop().unwrap();
        if dispatched {
            gone.ep.dispatch(&rig.stream, 1, &gone.batch()).unwrap();
        }
        drop(gone);
        rig.upload(&drawn);
        rig.all(|seat| seat.ep.dispatch(&rig.stream, 1, &seat.batch()));
        // Without the news these would wait for an hour.
        rig.all(|seat| seat.ep.await_rows(&rig.stream));
        rig.all(|seat| seat.ep.pack(&rig.stream, seat.packed.span(), seat.counts.span()));
        rig.all(|seat| seat.ep.give_back(&rig.stream, seat.y.span()));
        rig.all(|seat| seat.ep.await_results(&rig.stream));
        for said in rig.said() {
            let said = said.expect("the others hear of it");
            assert!(said.contains("phase 3 (dispatch), layer 1: rank 2 closed"), "{said}");
        }
    }
    // A rank that has not looked yet at the last results of the one that leaves finds them.
    let Some(mut rig) = Rig::new("leaves", &config) else { return };
    rig.upload(&rig.draw(Routing::Full, 0));
    rig.all(|seat| seat.ep.dispatch(&rig.stream, 1, &seat.batch()));
    rig.all(|seat| seat.ep.await_rows(&rig.stream));
    rig.all(|seat| seat.ep.pack(&rig.stream, seat.packed.span(), seat.counts.span()));
    rig.all(|seat| seat.ep.give_back(&rig.stream, seat.packed.span()));
    let gone = rig.seats.pop().unwrap();
    gone.ep.await_results(&rig.stream).unwrap();
    gone.ep.combine(&rig.stream, gone.out.span()).unwrap();
    drop(gone);
    rig.all(|seat| seat.ep.await_results(&rig.stream));
    rig.all(|seat| seat.ep.combine(&rig.stream, seat.out.span()));
    assert_eq!(rig.said(), [None, None]);
}

/// What a rank that leaves writes is what the oracle writes, in every phase.
#[test]
fn leaving_is_that_of_the_oracle() {
    for calls in 0..3 {
        let Some(mut rig) = Rig::new("leaving", &small(3)) else { return };
        let drawn = rig.draw(Routing::Full, 0);
        rig.clear(0x1ff);
        rig.layer(4, &drawn);
        rig.upload(&drawn);
        if calls > 0 {
            rig.all(|seat| seat.ep.dispatch(&rig.stream, 5, &seat.batch()));
        }
        if calls > 1 {
            rig.all(|seat| seat.ep.await_rows(&rig.stream));
        }
        let copies = rig.copies();
        let layer = if calls > 0 { 5 } else { 4 };
        leave_oracle(&copies, &rig.layout(), rig.rank(2), layer);
        drop(rig.seats.pop().unwrap().ep);
        let own = rig.span(2).part(0..rig.layout().bytes()).unwrap();
        let own = own.to_vec(&rig.stream).unwrap();
        let mut expected = vec![0; own.len()];
        copies.load(2, 0, &mut expected);
        assert_eq!(own.iter().zip(&expected).position(|(a, b)| a != b), None, "after {calls}");
        rig.compare(copies, "leave");
    }
}

/// Whole layers that are queued when a rank closes are done; if one fails, the rank that closes hears of it, once.
#[test]
fn close_tells_how_the_last_layers_ended() {
    let within = Duration::from_mins(1);
    for asked in [false, true] {
        let Some(mut rig) = Rig::new("close", &small(2)) else { return };
        if !emulator::needed("close", &rig.stream) {
            return;
        }
        rig.upload(&rig.draw(Routing::Full, 0));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("meet");
        let spec = |rank| GroupSpec { path: path.clone(), rank, world: 2, layout: 0, within };
        let Seat { ep, tokens, x, experts, weights, packed, counts, y, out, stream } =
            rig.seats.remove(0);
        let batch = CudaBatch {
            tokens: tokens.span(),
            x: x.span(),
            experts: experts.span(),
            wide: false,
            weights: weights.span(),
        };
        // A whole layer, to which rank 1 never comes. It has not begun when the rank closes.
        let held = stream.raw();
        emulator::hold(held, true);
        ep.dispatch(&stream, 5, &batch).unwrap();
        ep.await_rows(&stream).unwrap();
        ep.pack(&stream, packed.span(), counts.span()).unwrap();
        ep.give_back(&stream, y.span()).unwrap();
        ep.await_results(&stream).unwrap();
        ep.combine(&stream, out.span()).unwrap();
        ep.status().unwrap();
        let begun = AtomicBool::new(asked);
        let said = std::thread::scope(|threads| {
            threads.spawn(|| {
                let mut group = Group::join(&spec(1)).unwrap();
                group.barrier("close heaps", within).unwrap();
            });
            threads.spawn(|| {
                until(|| begun.load(Ordering::SeqCst));
                // However late this is: what was queued is waited for.
                std::thread::sleep(Duration::from_millis(100));
                emulator::hold(held, false);
            });
            let mut group = Group::join(&spec(0)).unwrap();
            if asked {
                ep.finish(&stream).unwrap_err();
            }
            begun.store(true, Ordering::SeqCst);
            ep.close(&mut group, within)
        });
        let said = said.err().map(|error| error.to_string());
        let words = "phase 1 (dispatch), layer 5: rank 1 did not come in time";
        assert_eq!(said.as_ref().is_some_and(|said| said.contains(words)), !asked, "{said:?}");
        assert_eq!(said.is_none(), asked, "nobody is told twice");
        // The other rank hears why, too.
        let record = failed(&rig.all_copies(), 0).unwrap();
        assert!(Fault { rank: rig.rank(0), record }.to_string().contains(words));
    }
}

/// A rank gives up while a kernel of it is under way: the others are told at once, and the kernel comes to its end as
/// if nothing were. It must not find half-way that its rank has failed.
#[test]
fn a_rank_that_leaves_cuts_no_kernel_short() {
    let Some(mut rig) = Rig::new("cuts_short", &small(2)) else { return };
    if !emulator::needed("cuts_short", &rig.stream) {
        return;
    }
    rig.upload(&rig.draw(Routing::Full, 0));
    let seat = rig.seats.remove(0);
    let held = seat.stream.raw();
    emulator::hold(held, true);
    seat.ep.dispatch(&seat.stream, 5, &seat.batch()).unwrap();
    let word = rig.layout().signal(1, 0);
    let (heap, gpu) = (&rig.heaps[1], &rig.gpu);
    std::thread::scope(|threads| {
        threads.spawn(move || {
            let stream = Stream::new(gpu).unwrap();
            let own = heap.span(heap.rank()).unwrap().part(word..word + 8).unwrap();
            until(|| own.to_vec(&stream).unwrap() != [0; 8]);
            emulator::hold(held, false);
        });
        drop(seat);
    });
    let copies = rig.all_copies();
    for token in 0..rig.shape.tokens_max() {
        let mut stamp = [0; 4];
        let row = rig.layout().meta(rig.shape.slot(0, token));
        copies.load(1, row + row::STAMP as u64, &mut stamp);
        assert_eq!(u32::from_le_bytes(stamp), 1, "token {token}: the dispatch was done");
    }
    let record = failed(&copies, 0).unwrap();
    assert_eq!(record.cause.kind, Kind::Left);
    let poison = Signal::poison(record.cause, 0, 0).0;
    assert_eq!([0, 1].map(|phase| copies.word(1, rig.layout().signal(phase, 0))), [poison; 2]);
}

/// Waits until something is so; a test that never sees it has failed.
fn until(so: impl Fn() -> bool) {
    for _ in 0..60_000 {
        if so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("it never came to that");
}

/// Work on another stream than the one that a reset is told ends before it.
#[test]
fn a_reset_waits_for_all_streams() {
    let Some(rig) = Rig::new("reset", &small(2)) else { return };
    if !emulator::needed("reset", &rig.stream) {
        return;
    }
    rig.upload(&rig.draw(Routing::Full, 0));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("meet");
    let within = Duration::from_mins(1);
    let spec = |rank| GroupSpec { path: path.clone(), rank, world: 2, layout: 0, within };
    let held = rig.seats[0].stream.raw();
    let (begun, released) = (AtomicBool::new(false), AtomicBool::new(false));
    // A dispatch of rank 0 that has not begun when the reset does.
    emulator::hold(held, true);
    rig.seats[0].ep.dispatch(&rig.seats[0].stream, 5, &rig.seats[0].batch()).unwrap();
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let mut group = Group::join(&spec(1)).unwrap();
            group.gather("reset the exchange", &0u64.to_le_bytes(), None, within).unwrap();
            group.barrier("start the exchange again", within).unwrap();
        });
        threads.spawn(|| {
            until(|| begun.load(Ordering::SeqCst));
            // However late this is, the reset has to wait for it. A reset that does not has ended by then.
            std::thread::sleep(Duration::from_millis(200));
            released.store(true, Ordering::SeqCst);
            emulator::hold(held, false);
        });
        let mut group = Group::join(&spec(0)).unwrap();
        begun.store(true, Ordering::SeqCst);
        let replays = Replays::Named;
        rig.seats[0].ep.reset(&mut group, &[&rig.stream], replays, within).unwrap();
        assert!(released.load(Ordering::SeqCst), "a kernel of before the reset comes after it");
    });
    rig.seats[1].ep.clear(&rig.stream, 1).unwrap();
    rig.layer(1, &rig.draw(Routing::Full, 1));
}

/// Ctrl-C while ranks that are alive are waited for: the time of the wait is over, and nobody has ended.
#[test]
fn an_interrupted_wait_calls_no_live_rank_ended() {
    static ASKED: AtomicBool = AtomicBool::new(false);
    let long = Duration::from_mins(10);
    let config = EpConfig { timeout: long, first_timeout: long, ..small(3) };
    let Some(rig) = Rig::new("interrupted", &config) else { return };
    if !emulator::needed("interrupted", &rig.stream) {
        return;
    }
    rig.upload(&rig.draw(Routing::Full, 0));
    let (seat, held) = (&rig.seats[0], rig.seats[0].stream.raw());
    emulator::hold(held, true);
    seat.ep.dispatch(&seat.stream, 5, &seat.batch()).unwrap();
    seat.ep.await_rows(&seat.stream).unwrap();
    let (finished, interrupted) = std::thread::scope(|threads| {
        threads.spawn(|| {
            until(|| ASKED.load(Ordering::SeqCst));
            emulator::hold(held, false);
        });
        let hook = |_| {
            ASKED.store(true, Ordering::SeqCst);
            true
        };
        interrupt::under(hook, || seat.ep.finish(&seat.stream))
    });
    let said = finished.unwrap_err().to_string();
    assert!(interrupted && said.contains("ranks 1, 2 did not come"), "{said}");
}

/// Rows keep no stamp over a reset: phases begin anew, and a row of before could pass for one of now.
#[test]
fn a_reset_forgets_the_stamps_of_rows() {
    let Some(rig) = Rig::new("stamps", &small(2)) else { return };
    rig.layer(0, &rig.draw(Routing::Full, 0));
    rig.clear(1);
    let copies = rig.copies();
    for slot in 0..rig.shape.slots() {
        let mut stamp = [0xff; 4];
        copies.load(0, rig.layout().meta(slot) + row::STAMP as u64, &mut stamp);
        assert_eq!(stamp, [0; 4], "slot {slot}");
    }
}
