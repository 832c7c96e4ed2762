//! The control word of a header: `{ generation:32 | state:4 | pins:28 }` in one `u64`, pins in the
//! low bits. Pure arithmetic here; `mem` applies it with compare-and-swap.

use crate::ids::Generation;
use crate::limits::PINS_MAX;
use crate::state::{Event, ReplicaState};
use std::fmt;

const PIN_BITS: u32 = 28;
const STATE_BITS: u32 = 4;
const PIN_MASK: u64 = (1 << PIN_BITS) - 1;
const STATE_MASK: u64 = (1 << STATE_BITS) - 1;
const _: () = assert!((PINS_MAX as u64) <= PIN_MASK);
/// Where readers pin by themselves, as GPUs do, the pins are counted for each of 8 ranks: 3 bits each,
/// from the lowest on. A rank that is gone is taken out by a mask, whatever it held.
const RANK_BITS: u32 = 3;
const RANK_MASK: u64 = (1 << RANK_BITS) - 1;
/// Most ranks that can be told apart.
pub const PIN_RANKS: u8 = 8;
/// Most pins of one rank on one object.
pub const RANK_PINS_MAX: u32 = RANK_MASK as u32;
const _: () = assert!(RANK_BITS * (PIN_RANKS as u32) <= PIN_BITS);

/// A reading of the control word.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Word(pub u64);

/// Why a step on the word was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WordError {
    /// The slot lives another life, or is not in a state that allows the step.
    #[error("the slot is {found:?}, not generation {wanted:?}")]
    Stale {
        /// What the caller asked for.
        wanted: Generation,
        /// What the word says.
        found: Word,
    },
    /// Too many readers at once, or readers where none may be.
    #[error("the slot has {pins} pins")]
    Pinned {
        /// How many.
        pins: u32,
    },
}

impl Word {
    /// A word from its parts.
    pub const fn new(generation: Generation, state: ReplicaState, pins: u32) -> Self {
        Self(
            ((generation.0 as u64) << (PIN_BITS + STATE_BITS))
                | ((state as u64) << PIN_BITS)
                | (pins as u64 & PIN_MASK),
        )
    }

    /// Which life.
    pub const fn generation(self) -> Generation {
        Generation((self.0 >> (PIN_BITS + STATE_BITS)) as u32)
    }

    /// Its state; a code outside the table reads as `Failed`, which allows nothing but fencing.
    pub const fn state(self) -> ReplicaState {
        match ReplicaState::from_code(((self.0 >> PIN_BITS) & STATE_MASK) as u8) {
            Some(state) => state,
            None => ReplicaState::Failed,
        }
    }

    /// Readers inside.
    pub const fn pins(self) -> u32 {
        (self.0 & PIN_MASK) as u32
    }

    /// Whether a reader that holds a locator of `generation` may read.
    pub const fn readable(self, generation: Generation) -> bool {
        self.generation().0 == generation.0 && matches!(self.state(), ReplicaState::Ready)
    }

    /// One more reader (N1: generation and READY are checked in the same step).
    pub fn pinned(self, generation: Generation) -> Result<Self, WordError> {
        if !self.readable(generation) {
            return Err(WordError::Stale { wanted: generation, found: self });
        }
        if self.pins() >= PINS_MAX {
            return Err(WordError::Pinned { pins: self.pins() });
        }
        Ok(Self(self.0 + 1))
    }

    /// One more pin of that rank.
    pub fn pinned_by(self, generation: Generation, rank: u8) -> Result<Self, WordError> {
        if !self.readable(generation) {
            return Err(WordError::Stale { wanted: generation, found: self });
        }
        if self.pins_of(rank) >= RANK_PINS_MAX {
            return Err(WordError::Pinned { pins: self.pins_of(rank) });
        }
        Ok(Self(self.0 + Self::pin_of(rank)))
    }

    /// Pins of that rank.
    pub const fn pins_of(self, rank: u8) -> u32 {
        ((self.0 >> Self::shift(rank)) & RANK_MASK) as u32
    }

    /// What one pin of that rank adds to the word.
    pub const fn pin_of(rank: u8) -> u64 {
        1 << Self::shift(rank)
    }

    /// The bits of a word in which that rank's pins are.
    pub const fn mask_of(rank: u8) -> u64 {
        RANK_MASK << Self::shift(rank)
    }

    const fn shift(rank: u8) -> u32 {
        assert!(rank < PIN_RANKS, "pins are told apart for 8 ranks");
        rank as u32 * RANK_BITS
    }

    /// The state after `event` in the life `generation`; the pins stay. `Abort` and `Reclaim` bump
    /// the generation in the same step, so every old locator is dead before the range is free (R1).
    pub fn after(self, generation: Generation, event: Event) -> Result<Self, WordError> {
        let refused = WordError::Stale { wanted: generation, found: self };
        if self.generation() != generation {
            return Err(refused);
        }
        if let Event::Reclaim { .. } = event
            && self.pins() > 0
        {
            return Err(WordError::Pinned { pins: self.pins() });
        }
        let state = self.state().after(event).ok_or(refused)?;
        let next = match event {
            // At the maximum the slot stays where it is, Dead and used up: G4.
            Event::Abort | Event::Reclaim { .. } => generation.next().unwrap_or(Generation::MAX),
            _ => generation,
        };
        Ok(Self::new(next, state, self.pins()))
    }
}

impl fmt::Debug for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:?} pins {}", self.generation(), self.state(), self.pins())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ReplicaState as S;

    const G: Generation = Generation(7);

    #[test]
    fn parts_survive_packing() {
        let word = Word::new(Generation(u32::MAX), S::Failed, PINS_MAX);
        assert_eq!(word.generation(), Generation(u32::MAX));
        assert_eq!(word.state(), S::Failed);
        assert_eq!(word.pins(), PINS_MAX);
    }

    #[test]
    fn a_pin_needs_generation_and_ready() {
        let ready = Word::new(G, S::Ready, 0);
        assert_eq!(ready.pinned(G).unwrap().pins(), 1);
        assert!(ready.pinned(Generation(6)).is_err());
        assert!(Word::new(G, S::Retiring, 0).pinned(G).is_err());
        assert!(Word::new(G, S::Ready, PINS_MAX).pinned(G).is_err());
    }

    #[test]
    fn ranks_have_their_own_pins() {
        let mut word = Word::new(G, S::Ready, 0);
        for _ in 0..RANK_PINS_MAX {
            word = word.pinned_by(G, 7).unwrap();
        }
        assert_eq!(word.pinned_by(G, 7), Err(WordError::Pinned { pins: RANK_PINS_MAX }));
        word = word.pinned_by(G, 0).unwrap();
        assert_eq!((word.pins_of(0), word.pins_of(1), word.pins_of(7)), (1, 0, RANK_PINS_MAX));
        let rest = Word(word.0 & !Word::mask_of(7));
        assert_eq!(rest, Word::new(G, S::Ready, 1));
        assert!(word.after(G, Event::Reclaim { pins: 0 }).is_err());
        assert!(word.pinned_by(Generation(6), 1).is_err());
    }

    #[test]
    fn freeing_bumps_and_waits_for_pins() {
        let free = Event::Reclaim { pins: 0 };
        assert_eq!(
            Word::new(G, S::Ready, 0).after(G, free).unwrap(),
            Word::new(Generation(8), S::Dead, 0)
        );
        assert_eq!(
            Word::new(G, S::Retiring, 2).after(G, free).unwrap_err(),
            WordError::Pinned { pins: 2 }
        );
        assert_eq!(
            Word::new(G, S::Writing, 0).after(G, Event::Abort).unwrap(),
            Word::new(Generation(8), S::Failed, 0)
        );
    }
}
