#![cfg(not(loom))]
//! All interleavings of small protocols, sequentially consistent: one reader, one evictor (or zombie, or crash), the next writer, two payload
//! cells. Each test says what must be found, and nothing else may be. The protocols that lose are
//! here on purpose: they show that the explorer sees what it claims to see.

#[path = "explorer/engine.rs"]
mod engine;
#[path = "explorer/protocols.rs"]
mod protocols;

use engine::{Found, explore};
use protocols as p;

/// Explores a protocol and compares what was found with what is known of it.
#[expect(clippy::print_stdout, reason = "the numbers of states are for whoever runs it by hand")]
fn expect(row: &str, protocol: &engine::Protocol, expected: &[Found]) {
    let (states, found) = explore(protocol);
    println!("{row}: {states} states, {found:?}");
    assert_eq!(found.into_iter().collect::<Vec<_>>(), expected, "row {row}");
    assert!(states > 10, "row {row} explores next to nothing");
}

#[test]
fn a_separate_reader_count() {
    expect("A", &p::separate_reader_count(), &[Found::Foreign, Found::Torn, Found::Negative]);
}

#[test]
fn b_increment_then_look_again() {
    expect("B", &p::increment_and_look(false), &[]);
}

#[test]
fn b2_with_a_fresh_header() {
    expect("B with a fresh header", &p::increment_and_look(true), &[Found::Negative]);
}

#[test]
fn c_packed_word() {
    expect("C", &p::packed(true), &[]);
}

#[test]
fn c1_fetch_add_then_look() {
    expect("C'", &p::fetch_add(false), &[]);
}

#[test]
fn c2_fetch_add_with_a_fresh_word() {
    expect("C''", &p::fetch_add(true), &[Found::Negative]);
}

#[test]
fn cg_packed_word_without_generation() {
    expect("Cg", &p::packed(false), &[Found::Foreign]);
}

#[test]
fn ce_range_reusable_before_the_bump() {
    expect("Ce", &p::early_reuse_pinned(), &[Found::Foreign, Found::Torn]);
}

#[test]
fn d1_no_check_after_the_copy() {
    expect("D1", &p::one_sided(false), &[Found::Foreign, Found::Torn]);
}

#[test]
fn d2_word_read_again() {
    expect("D2", &p::one_sided(true), &[]);
}

#[test]
fn d3_read_again_but_reusable_before_the_bump() {
    expect("D3", &p::early_reuse_reread(), &[Found::Foreign, Found::Torn]);
}

#[test]
fn z1_zombie_writer_and_rereading_reader() {
    expect("Z1", &p::zombie(p::ZombieReader::Rereads), &[Found::Torn]);
}

#[test]
fn z2_zombie_writer_and_pinning_reader() {
    expect("Z2", &p::zombie(p::ZombieReader::Pins), &[Found::Torn]);
}

#[test]
fn z3_zombie_writer_and_verifying_reader() {
    expect("Z3", &p::zombie(p::ZombieReader::Verifies), &[]);
}

#[test]
fn f1_client_pins_then_books() {
    expect("F1", &p::ledger(p::Ledger::PinThenBook), &[Found::Leaked]);
}

#[test]
fn f2_client_books_then_pins() {
    expect("F2", &p::ledger(p::Ledger::BookThenPin), &[Found::Negative]);
}

#[test]
fn f3_owner_pins_and_books() {
    expect("F3", &p::ledger(p::Ledger::OwnerDoesBoth), &[]);
}

#[test]
fn p1_late_end_without_token() {
    expect("P1", &p::late_end(false), &[Found::HalfWritten]);
}

#[test]
fn p2_late_end_with_token() {
    expect("P2", &p::late_end(true), &[]);
}

#[test]
fn q1_remove_answers_when_the_index_forgot() {
    expect("Q1", &p::remove(false), &[Found::ReadAfterRemove]);
}

#[test]
fn q2_remove_answers_when_the_owner_retires() {
    expect("Q2", &p::remove(true), &[]);
}
