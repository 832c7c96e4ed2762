//! Signals on host memory: how a rank says that it is there, looks for the others, and fails.

use crate::barrier::{Look, Record, Signal, Tag, Violation, look};
use crate::heaps::Heaps;
use crate::layout::{EpLayout, ctl};

/// The phase that comes next for a rank.
pub fn next_phase(heaps: &impl Heaps, me: u32) -> u32 {
    (heaps.word(me, ctl::PHASE) as u32).wrapping_add(1)
}

/// Why a rank has failed; `None`: it has not.
pub fn failed(heaps: &impl Heaps, me: u32) -> Option<Record> {
    let word = |at: u64| heaps.word(me, ctl::ERROR + at);
    // The first word is written last.
    let first = word(0);
    Record::from_words([first, word(8), word(16)])
}

/// Tells every rank that this one has done its part of a phase.
pub(super) fn signal(heaps: &impl Heaps, layout: &EpLayout, me: u32, tag: Tag, phase: u32) {
    for target in 0..layout.shape().ranks() {
        heaps.set_word(target, layout.signal(phase, me), Signal::at(tag, phase).0);
    }
}

/// Keeps the record and tells every rank that the group is over. The first failure of a rank stays.
pub fn fail(heaps: &impl Heaps, layout: &EpLayout, me: u32, record: &Record) {
    let (words, passed) = (record.to_words(), heaps.word(me, ctl::PHASE) as u32);
    let poison = Signal::poison(record.cause, passed);
    if record.violation != Violation::NONE {
        heaps.set_word(me, ctl::BAD, record.violation.0);
    }
    for at in [2, 1, 0] {
        heaps.set_word(me, ctl::ERROR + 8 * at, words[at as usize]);
    }
    for target in 0..layout.shape().ranks() {
        for parity in 0..2 {
            heaps.set_word(target, layout.signal(parity, me), poison.0);
        }
    }
}

/// One look at all signals of the phase that comes next.
pub fn look_oracle(heaps: &impl Heaps, layout: &EpLayout, me: u32, tag: Tag) -> Look {
    let phase = next_phase(heaps, me);
    let mut signals = [Signal::default(); mooncrate_heap::RANKS_MAX];
    let signals = &mut signals[..layout.shape().world().len()];
    for (source, place) in (0..).zip(signals.iter_mut()) {
        *place = Signal(heaps.word(me, layout.signal(phase, source)));
    }
    look(signals, me as u8, tag, phase)
}

/// Passes the phase that comes next.
pub fn pass(heaps: &impl Heaps, me: u32) {
    heaps.set_word(me, ctl::PHASE, u64::from(next_phase(heaps, me)));
}
