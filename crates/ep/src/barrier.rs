//! The words by which ranks tell each other how far they are, and what a rank makes of them. Pure functions:
//! the CPU backend, the kernels' oracles and the model test all use these.
//!
//! ```text
//! signal   63 ─── tag ─── 32 31 ─── phase ─── 0      tag: layer 16 | operation 4 | epoch 8 | shape 4
//! poison   ones but epoch 8  kind 5 | origin 3 | ranks 8 | next 1 | passed 15
//! ```
//!
//! A layer has two phases: in odd ones tokens go out, in even ones results come back. A rank that has done its
//! part of phase p stores `tag, p` in its own word at every rank, and passes p once every rank's word at its
//! own heap says p or more. The phase lives in the heap and only grows (E1); graphs replay it.
//!
//! What must stay true: a word has one writer. Phases of one parity share a word, so a value is overwritten
//! only after everybody has seen it, and the tag can be compared exactly. Poison is never overwritten: its
//! writer signals nothing more until a reset. It may hide a signal that a slow rank has not seen yet, so it
//! says which phase its writer has passed: up to there the writer was there, with the tags of all others.
//!
//! A word of another epoch says nothing: whoever wrote it belongs to before the last reset.

use mooncrate_heap::{Rank, Ranks, World};
use std::fmt;

/// What a phase is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Op {
    /// Tokens go to the ranks of their experts: odd phases.
    Dispatch = 1,
    /// Results come back: even phases.
    Return = 2,
    /// Nothing comes back: the even phases of an exchange without results of its own. Ranks that do this and
    /// ranks that return results are not in the same layer.
    Short = 3,
}

impl Op {
    /// What a phase is for.
    pub const fn of(phase: u32) -> Self {
        if phase & 1 == 1 { Self::Dispatch } else { Self::Return }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dispatch => "dispatch",
            Self::Return => "return",
            Self::Short => "short round",
        })
    }
}

/// What a rank thinks that a phase is about. It is baked into a graph, while the phase is not; the epoch is put
/// in when the work is done, so that graphs outlive a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag(pub u32);

impl Tag {
    /// No operation has this one, in whichever epoch.
    pub const POISON: Self = Self(u32::MAX);
    const EPOCH_BITS: u32 = 0xff0;

    /// The tag of one phase of a layer, for a shape with that hash, in epoch 0.
    pub const fn new(layer: u16, op: Op, shape: u64) -> Self {
        Self((layer as u32) << 16 | (op as u32) << 12 | (shape as u32 & 0xf))
    }

    /// The same in another epoch.
    #[must_use]
    pub const fn in_epoch(self, epoch: u64) -> Self {
        Self(self.0 & !Self::EPOCH_BITS | (epoch as u32) << 4 & Self::EPOCH_BITS)
    }

    /// The low bits of the epoch.
    pub const fn epoch(self) -> u8 {
        (self.0 >> 4) as u8
    }

    const fn is_poison(self) -> bool {
        self.0 | Self::EPOCH_BITS == Self::POISON.0
    }

    /// Whether its operation belongs to such a phase. Work of a graph that holds a part of a layer, or that runs
    /// in the middle of one, does not.
    pub const fn fits(self, phase: u32) -> bool {
        (self.0 >> 12 & 15 == Op::Dispatch as u32) == (phase & 1 == 1)
    }

    /// Which layer.
    pub const fn layer(self) -> u16 {
        (self.0 >> 16) as u16
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let op = match self.0 >> 12 & 15 {
            1 => "dispatch",
            2 => "return",
            3 => "short round",
            _ => return f.write_str("no operation"),
        };
        let (layer, epoch) = (self.layer(), self.epoch());
        write!(f, "{op} of layer {layer}, epoch {epoch}, shape {:x}", self.0 & 0xf)
    }
}

/// The ways in which a step fails. Mirrors `ep.cuh`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Ranks did not come in time.
    Timeout = 1,
    /// Their processes have ended.
    Lost = 2,
    /// They came to another layer or operation.
    Desync = 3,
    /// They did not write a metadata row of this step.
    StaleRow = 4,
    /// More tokens than there is room for.
    TooManyTokens = 5,
    /// An expert that does not exist.
    BadExpert = 6,
    /// One expert twice for one token.
    TwiceExpert = 7,
    /// A weight that is no finite number.
    BadWeight = 8,
    /// More rows for an expert than it has room for.
    Overflow = 9,
    /// A rank gave its communicator up.
    Left = 10,
    /// Work of a layer was done where something else comes next: a graph that holds a part of a layer, or that
    /// ran in the middle of one.
    OutOfOrder = 11,
    /// A row of the packed tokens that does not exist: somebody has overwritten what `pack` found out.
    BadPlace = 12,
}

impl Kind {
    const ALL: [Self; 12] = [
        Self::Timeout,
        Self::Lost,
        Self::Desync,
        Self::StaleRow,
        Self::TooManyTokens,
        Self::BadExpert,
        Self::TwiceExpert,
        Self::BadWeight,
        Self::Overflow,
        Self::Left,
        Self::OutOfOrder,
        Self::BadPlace,
    ];

    /// What a word says; `None`: nothing that this version knows.
    pub fn from_code(code: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u64 == code)
    }
}

/// Why a group is poisoned: what every rank is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cause {
    /// What happened.
    pub kind: Kind,
    /// The rank that found it.
    pub origin: u8,
    /// Whose fault it is.
    pub ranks: Ranks,
    /// The phase that `origin` was in.
    pub phase: u32,
}

impl Cause {
    /// A rank fails in the phase that it has passed, or in the next one.
    const fn pack(self, passed: u32) -> u32 {
        let next = if self.phase == passed { 0 } else { 1 << 15 };
        (self.kind as u32) << 27
            | (self.origin as u32) << 24
            | (self.ranks.bits() as u32) << 16
            | next
            | passed & 0x7fff
    }

    /// The cause, and the phase that its writer has passed. Ranks are at most one phase apart, so the low
    /// bits of a phase tell all of it.
    fn unpack(word: u32, near: u32) -> (Self, u32) {
        // The difference of 15 bits, with its sign.
        let behind = (near.wrapping_sub(word) << 17).cast_signed() >> 17;
        let passed = near.wrapping_sub(behind.cast_unsigned());
        let kind = Kind::from_code(u64::from(word >> 27)).unwrap_or(Kind::Left);
        let cause = Self {
            kind,
            origin: (word >> 24 & 7) as u8,
            ranks: Ranks::from_bits((word >> 16) as u8),
            phase: passed.wrapping_add(word >> 15 & 1),
        };
        (cause, passed)
    }
}

/// A word of `sig`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Signal(pub u64);

/// What a waiting rank sees in a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The rank has not come to the phase.
    NotYet,
    /// It has.
    Here,
    /// It has come to the phase, but thinks that it is about something else.
    Other(Tag),
    /// The group is over.
    Poison(Cause),
}

impl Signal {
    /// A rank has done its part of a phase.
    pub const fn at(tag: Tag, phase: u32) -> Self {
        Self((tag.0 as u64) << 32 | phase as u64)
    }

    /// A rank that has passed phase `passed` of that epoch has failed.
    pub const fn poison(cause: Cause, passed: u32, epoch: u64) -> Self {
        Self((Tag::POISON.in_epoch(epoch).0 as u64) << 32 | cause.pack(passed) as u64)
    }

    /// What it says to a rank that waits for `phase`. Phases are compared by their signed difference, so
    /// that they may wrap, and a rank that is ahead is there (E1). A word of another epoch is of before the
    /// last reset, however far its writer had come: all ranks clear their words before anybody signals again.
    pub fn judge(self, tag: Tag, phase: u32) -> Seen {
        let (found, at) = (Tag((self.0 >> 32) as u32), self.0 as u32);
        if found.epoch() != tag.epoch() {
            return Seen::NotYet;
        }
        if found.is_poison() {
            let (cause, passed) = Cause::unpack(at, phase);
            let was_here = passed.wrapping_sub(phase).cast_signed() >= 0;
            return if was_here { Seen::Here } else { Seen::Poison(cause) };
        }
        if at.wrapping_sub(phase).cast_signed() < 0 {
            return Seen::NotYet;
        }
        if found == tag { Seen::Here } else { Seen::Other(found) }
    }
}

/// The first thing that is wrong with the input of a step: the lowest token, and its lowest top-k position.
///
/// ```text
/// 63 ─ token, slot or expert ─ 48 47 ─ position ─ 40 39 ─ kind ─ 32 31 ─ the value that was found ─ 0
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation(pub u64);

impl Violation {
    /// Nothing is wrong. Kernels take the minimum, and so does the oracle.
    pub const NONE: Self = Self(u64::MAX);

    /// `at` is a token, for a row its slot, for an overflow the local expert.
    pub const fn new(kind: Kind, at: u32, position: u32, value: u32) -> Self {
        let place = (at as u64 & 0xffff) << 48 | (position as u64 & 0xff) << 40;
        Self(place | (kind as u64) << 32 | value as u64)
    }

    /// What is wrong; `None`: nothing.
    pub fn kind(self) -> Option<Kind> {
        Kind::from_code(self.0 >> 32 & 0xff)
    }

    /// Which token, slot or local expert.
    pub const fn at(self) -> u32 {
        (self.0 >> 48) as u32
    }

    /// Which of its top-k positions.
    pub const fn position(self) -> u32 {
        (self.0 >> 40) as u32 & 0xff
    }

    /// What was found there.
    pub const fn value(self) -> u32 {
        self.0 as u32
    }
}

/// Why one rank has failed, as its heap keeps it: three words, of which the first is written last.
///
/// ```text
/// 0  phase 32 | told by + 1, 8 | ranks 8 | origin 8 | kind 8
/// 8  tag found 32 | tag expected 32
/// 16 the violation
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// What happened.
    pub cause: Cause,
    /// The rank whose poison this rank read; `None`: it found out by itself.
    pub told_by: Option<u8>,
    /// What this rank was doing.
    pub expected: Tag,
    /// What the other rank was doing, where the two differ.
    pub found: Tag,
    /// What was wrong with the input.
    pub violation: Violation,
}

impl Record {
    /// Something that this rank found in its own input.
    pub fn of(violation: Violation, me: u8, guilty: Ranks, phase: u32, tag: Tag) -> Self {
        let kind = violation.kind().expect("something is wrong");
        let cause = Cause { kind, origin: me, ranks: guilty, phase };
        Self { cause, told_by: None, expected: tag, found: tag, violation }
    }

    /// As it lies in the heap.
    pub fn to_words(self) -> [u64; 3] {
        let Cause { kind, origin, ranks, phase } = self.cause;
        let told = self.told_by.map_or(0, |rank| u64::from(rank) + 1);
        let first = kind as u64
            | u64::from(origin) << 8
            | u64::from(ranks.bits()) << 16
            | told << 24
            | u64::from(phase) << 32;
        let tags = u64::from(self.expected.0) | u64::from(self.found.0) << 32;
        [first, tags, self.violation.0]
    }

    /// What the words say; `None`: the rank has not failed. Whoever has failed for a reason that this version does not
    /// know is taken for one that left: kernels of that rank do nothing more, so its outputs are not good.
    pub fn from_words([first, tags, violation]: [u64; 3]) -> Option<Self> {
        if first == 0 {
            return None;
        }
        let byte = |at: u32| (first >> at) as u8;
        let kind = Kind::from_code(first & 0xff).unwrap_or(Kind::Left);
        let (ranks, phase) = (Ranks::from_bits(byte(16)), (first >> 32) as u32);
        Some(Self {
            cause: Cause { kind, origin: byte(8), ranks, phase },
            told_by: byte(24).checked_sub(1),
            expected: Tag(tags as u32),
            found: Tag((tags >> 32) as u32),
            violation: Violation(violation),
        })
    }
}

/// What a waiting rank knows after one look at all signals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Everybody is there.
    All,
    /// These are not.
    Missing(Ranks),
    /// The group is over.
    Failed(Record),
}

/// Looks at the signals of all ranks, in their order. Poison comes before everything else: it says more than
/// the absence that follows from it.
pub fn look(signals: &[Signal], me: u8, tag: Tag, phase: u32) -> Look {
    let (mut missing, mut other) = (0, None);
    for (rank, signal) in (0u8..).zip(signals) {
        match signal.judge(tag, phase) {
            Seen::Here => {}
            Seen::NotYet => missing |= 1 << rank,
            Seen::Other(found) => other = other.or(Some((rank, found))),
            Seen::Poison(cause) => {
                let violation = Violation::NONE;
                let told_by = Some(rank);
                return Look::Failed(Record {
                    cause,
                    told_by,
                    expected: tag,
                    found: tag,
                    violation,
                });
            }
        }
    }
    if let Some((rank, found)) = other {
        let ranks = Ranks::from_bits(1 << rank);
        let cause = Cause { kind: Kind::Desync, origin: me, ranks, phase };
        let violation = Violation::NONE;
        return Look::Failed(Record { cause, told_by: None, expected: tag, found, violation });
    }
    if missing == 0 { Look::All } else { Look::Missing(Ranks::from_bits(missing)) }
}

/// What a rank records that gives up waiting for `ranks`.
pub fn give_up(kind: Kind, ranks: Ranks, me: u8, tag: Tag, phase: u32) -> Record {
    let cause = Cause { kind, origin: me, ranks, phase };
    Record { cause, told_by: None, expected: tag, found: tag, violation: Violation::NONE }
}

/// A failed step, for people: who, where, why, and whose fault it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The rank that says so.
    pub rank: Rank,
    /// What it has recorded.
    pub record: Record,
}

impl Fault {
    /// What is in the heap of a rank; `None`: it has not failed.
    pub fn read(rank: Rank, words: [u64; 3]) -> Option<Self> {
        Record::from_words(words).map(|record| Self { rank, record })
    }

    /// The ranks to look after: those that are missing, differ, or gave bad input.
    pub fn ranks(&self) -> Ranks {
        self.record.cause.ranks
    }

    /// Whether that rank has given its communicator up, and nothing else has happened to it.
    pub(crate) fn is_leave_of(&self, rank: Rank) -> bool {
        let own = self.record.told_by.is_none() && self.ranks() == Ranks::only(rank);
        own && self.record.cause.kind == Kind::Left
    }

    /// The phase of the rank that found it.
    pub fn phase(&self) -> u32 {
        self.record.cause.phase
    }

    /// What that phase was for.
    pub fn op(&self) -> Op {
        Op::of(self.phase())
    }

    fn detail(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Record { cause, violation, expected, found, .. } = &self.record;
        let (ranks, at, k) = (cause.ranks, violation.at(), violation.position());
        let value = violation.value();
        // Only the rank that found a violation knows its place.
        let known = *violation != Violation::NONE;
        match cause.kind {
            Kind::Timeout => write!(f, "{ranks} did not come in time"),
            Kind::Lost => write!(f, "{ranks} ended"),
            Kind::Left => write!(f, "{ranks} closed its communicator"),
            Kind::Desync if self.record.told_by.is_none() => {
                write!(f, "{ranks} came to {found}, but this rank to {expected}")
            }
            Kind::Desync => write!(f, "{ranks} came to another layer or operation"),
            Kind::StaleRow if known => {
                write!(f, "{ranks} did not write row {at} of this step (it is of phase {value})")
            }
            Kind::StaleRow => write!(f, "{ranks} did not write a row of this step"),
            Kind::TooManyTokens if known => {
                write!(f, "{ranks} has {value} tokens, more than tokens_max; split the batch")
            }
            Kind::TooManyTokens => write!(f, "{ranks} has more tokens than tokens_max"),
            Kind::BadExpert if known => {
                let value = value.cast_signed();
                write!(f, "{ranks} routes token {at} to expert {value} in place {k}: there is none")
            }
            Kind::BadExpert => write!(f, "{ranks} routes a token to an expert that does not exist"),
            Kind::TwiceExpert if known => {
                write!(f, "{ranks} routes token {at} to expert {value} twice, again in place {k}")
            }
            Kind::TwiceExpert => write!(f, "{ranks} routes a token to one expert twice"),
            Kind::BadWeight if known => {
                let value = f32::from_bits(value);
                write!(f, "{ranks} gives token {at} the weight {value} in place {k}")
            }
            Kind::BadWeight => write!(f, "{ranks} gives a token a weight that is no finite number"),
            Kind::Overflow if known => {
                write!(f, "{ranks} got {value} rows for its expert {at}, more than rows_max")
            }
            Kind::Overflow => write!(f, "{ranks} got more rows for an expert than rows_max"),
            Kind::OutOfOrder if known => {
                let tag = Tag(value);
                write!(f, "{ranks} ran {tag} out of order; record and replay whole layers")
            }
            Kind::OutOfOrder => write!(f, "{ranks} ran a part of a layer out of order"),
            Kind::BadPlace if known => {
                let value = value.cast_signed();
                write!(f, "{ranks} has row {value} for slot {at} in place {k}: there is none")
            }
            Kind::BadPlace => write!(f, "{ranks} has a packed row that does not exist"),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (phase, op, layer) = (self.phase(), self.op(), self.record.expected.layer());
        write!(f, "{}: phase {phase} ({op}), layer {layer}: ", self.rank)?;
        self.detail(f)?;
        if let Some(teller) = self.record.told_by {
            let origin = self.record.cause.origin;
            write!(f, "; found by rank {origin}, heard from rank {teller}")?;
        }
        write!(f, "; the group is over until all ranks reset it")
    }
}

/// The rank of a number that came out of a word; words of others are not believed to be in range.
pub fn rank_of(world: World, number: u32) -> Option<Rank> {
    world.rank(number as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAG: Tag = Tag::new(3, Op::Dispatch, 0xabc);
    const LATE: Cause = Cause {
        kind: Kind::Timeout,
        origin: 5,
        ranks: Ranks::from_bits(0b1000_0010),
        phase: 70_001,
    };

    #[test]
    fn phases_compare_across_the_wrap() {
        for (found, wanted, here) in [
            (0, 1, false),
            (1, 1, true),
            (3, 1, true),
            (u32::MAX, 1, false),
            (1, u32::MAX, true),
            (u32::MAX, u32::MAX, true),
        ] {
            let seen = Signal::at(TAG, found).judge(TAG, wanted);
            assert_eq!(seen, if here { Seen::Here } else { Seen::NotYet }, "{found} {wanted}");
        }
    }

    #[test]
    fn another_tag_is_found_once_the_phase_is_reached() {
        let other = Tag::new(4, Op::Dispatch, 0xabc);
        assert_eq!(Signal::at(other, 7).judge(TAG, 9), Seen::NotYet);
        assert_eq!(Signal::at(other, 9).judge(TAG, 9), Seen::Other(other));
    }

    /// A kernel of before a reset that ends after it: neither its signal nor its poison is taken for one of now.
    #[test]
    fn words_of_another_epoch_say_nothing() {
        let now = TAG.in_epoch(0x102);
        assert_eq!((now.epoch(), now.layer()), (2, 3));
        for epoch in [0, 1, 3, 255] {
            for phase in [9, 10, 1000] {
                let old = Signal::at(TAG.in_epoch(epoch), phase);
                assert_eq!(old.judge(now, 9), Seen::NotYet);
                assert_eq!(Signal::poison(LATE, phase, epoch).judge(now, 9), Seen::NotYet);
            }
        }
        assert_eq!(Signal::at(now, 9).judge(now, 9), Seen::Here);
        let poison = Signal::poison(Cause { phase: 9, ..LATE }, 8, 0x102);
        assert_eq!(poison.judge(now, 9), Seen::Poison(Cause { phase: 9, ..LATE }));
        assert_eq!(poison.judge(now, 8), Seen::Here);
    }

    #[test]
    fn tokens_go_out_in_odd_phases_and_results_come_back_in_even_ones() {
        for (op, odd) in [(Op::Dispatch, true), (Op::Return, false), (Op::Short, false)] {
            let tag = Tag::new(u16::MAX, op, u64::MAX).in_epoch(u64::MAX);
            assert_eq!((tag.fits(7), tag.fits(8)), (odd, !odd), "{tag}");
            assert!(!tag.is_poison(), "{tag}");
        }
    }

    #[test]
    fn poison_says_what_happened_to_those_whom_it_concerns() {
        // The writer has passed 70,000 and failed in 70,001.
        let word = Signal::poison(LATE, LATE.phase - 1, 0);
        assert_eq!(word.judge(TAG, LATE.phase - 1), Seen::Here, "it was there");
        for near in [LATE.phase, LATE.phase + 1] {
            assert_eq!(word.judge(TAG, near), Seen::Poison(LATE));
        }
        // The writer failed in the phase that it had passed, or passes the word of another rank on.
        let word = Signal::poison(LATE, LATE.phase, 0);
        assert_eq!(word.judge(TAG, LATE.phase), Seen::Here);
        assert_eq!(word.judge(TAG, LATE.phase + 1), Seen::Poison(LATE));
        let wrapped = Cause { phase: 0, ..LATE };
        assert_eq!(Signal::poison(wrapped, u32::MAX, 0).judge(TAG, 0), Seen::Poison(wrapped));
        assert_eq!(Signal::poison(wrapped, u32::MAX, 0).judge(TAG, u32::MAX), Seen::Here);
    }

    #[test]
    fn records_survive_the_way_through_a_heap() {
        let violation = Violation::new(Kind::BadExpert, 31, 7, 256);
        for told_by in [None, Some(0), Some(7)] {
            let record =
                Record { cause: LATE, told_by, expected: TAG, found: Tag::POISON, violation };
            assert_eq!(Record::from_words(record.to_words()), Some(record));
        }
        assert_eq!(Record::from_words([0; 3]), None);
    }

    /// A rank that has failed for a reason without a name here has failed: its output is never taken for good.
    #[test]
    fn failures_of_unknown_kinds_are_failures() {
        for kind in [0, 13, 31] {
            let cause = Cause { phase: 9, ..LATE };
            let first = give_up(cause.kind, cause.ranks, 5, TAG, 9).to_words()[0] & !0xff | kind;
            let record = Record::from_words([first, 0, 0]).expect("it has failed");
            assert_eq!(record.cause, Cause { kind: Kind::Left, ..cause }, "{kind}");
            let word = Signal::poison(cause, 8, 0).0 & !(31 << 27) | kind << 27;
            let left = Seen::Poison(Cause { kind: Kind::Left, ..cause });
            assert_eq!(Signal(word).judge(TAG, 9), left, "{kind}");
        }
    }

    #[test]
    fn the_lowest_token_and_position_is_the_least_violation() {
        let at = |token, k| Violation::new(Kind::BadWeight, token, k, 9);
        assert!(at(0, 1) < at(1, 0) && at(1, 0) < at(1, 1) && at(u32::MAX, 9) < Violation::NONE);
        assert_eq!((at(5, 2).at(), at(5, 2).position(), at(5, 2).value()), (5, 2, 9));
    }

    #[test]
    fn a_look_prefers_poison_then_desync_then_the_missing() {
        let (here, late) = (Signal::at(TAG, 9), Signal::at(TAG, 7));
        let other = Signal::at(Tag::new(4, Op::Dispatch, 0xabc), 9);
        assert_eq!(look(&[here, here], 0, TAG, 9), Look::All);
        assert_eq!(look(&[here, late, late], 0, TAG, 9), Look::Missing(Ranks::from_bits(6)));
        let Look::Failed(record) = look(&[late, other, here], 2, TAG, 9) else { panic!("desync") };
        assert_eq!((record.cause.kind, record.cause.ranks.bits()), (Kind::Desync, 2));
        let poisoned = [late, other, Signal::poison(LATE, LATE.phase - 1, 0)];
        let Look::Failed(record) = look(&poisoned, 2, TAG, LATE.phase) else { panic!("poison") };
        assert_eq!((record.cause, record.told_by), (LATE, Some(2)));
    }

    #[test]
    fn faults_name_rank_phase_operation_and_who_is_missing() {
        let rank = World::new(8).unwrap().rank(2).unwrap();
        let record = give_up(Kind::Timeout, Ranks::from_bits(0b10_0000), 2, TAG, 7);
        assert_eq!(
            Fault { rank, record }.to_string(),
            "rank 2: phase 7 (dispatch), layer 3: rank 5 did not come in time; the group is over until all \
             ranks reset it"
        );
        let told = Record { told_by: Some(1), cause: LATE, ..record };
        let text = Fault { rank, record: told }.to_string();
        assert!(
            text.contains("ranks 1, 7 did not come in time; found by rank 5, heard from rank 1")
        );
    }
}
