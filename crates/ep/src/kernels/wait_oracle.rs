//! Signals on host memory: how a rank says that it is there, looks for the others, and fails.

use crate::barrier::{Kind, Look, Record, Seen, Signal, Tag, Violation, look};
use crate::heaps::Heaps;
use crate::layout::{EpLayout, ctl};
use mooncrate_heap::{Rank, Ranks};

/// The phase that comes next for a rank.
pub fn next_phase(heaps: &impl Heaps, me: u32) -> u32 {
    (heaps.word(me, ctl::PHASE) as u32).wrapping_add(1)
}

/// A tag in the epoch that a rank is in.
pub fn tag_now(heaps: &impl Heaps, me: u32, tag: Tag) -> Tag {
    tag.in_epoch(heaps.word(me, ctl::EPOCH))
}

/// What every step does first: the phase that it is about, `ahead` of the passed one, and its tag. `None`: the
/// rank has failed, or fails now, because the operation does not belong to such a phase.
pub fn begin(
    heaps: &impl Heaps,
    layout: &EpLayout,
    me: Rank,
    tag: Tag,
    ahead: u32,
) -> Option<(Tag, u32)> {
    let rank = u32::from(me.number());
    if failed(heaps, rank).is_some() {
        return None;
    }
    let tag = tag_now(heaps, rank, tag);
    let phase = (heaps.word(rank, ctl::PHASE) as u32).wrapping_add(ahead);
    if tag.fits(phase) {
        return Some((tag, phase));
    }
    out_of_order(heaps, layout, me, tag, phase);
    None
}

/// The same for a step that ends with a signal: one that this rank has signalled already is out of order, too.
pub(super) fn begin_once(
    heaps: &impl Heaps,
    layout: &EpLayout,
    me: Rank,
    tag: Tag,
) -> Option<(Tag, u32)> {
    let rank = u32::from(me.number());
    let (tag, phase) = begin(heaps, layout, me, tag, 1)?;
    let own = Signal(heaps.word(rank, layout.signal(phase, rank)));
    if own.judge(tag, phase) == Seen::NotYet {
        return Some((tag, phase));
    }
    out_of_order(heaps, layout, me, tag, phase);
    None
}

fn out_of_order(heaps: &impl Heaps, layout: &EpLayout, me: Rank, tag: Tag, phase: u32) {
    let violation = Violation::new(Kind::OutOfOrder, 0, 0, tag.0);
    let record = Record::of(violation, me.number(), Ranks::only(me), phase, tag);
    fail(heaps, layout, me.number().into(), &record);
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
    let poison = Signal::poison(record.cause, passed, heaps.word(me, ctl::EPOCH));
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
    let (tag, phase) = (tag_now(heaps, me, tag), next_phase(heaps, me));
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
