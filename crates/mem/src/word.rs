//! The control word as an atomic: [`Word`] says what a step means, this file applies it with one
//! compare-and-swap. State, pins and generation change together or not at all, so a reader can
//! never pin what has just been freed (N1), and freeing bumps in the same step (R1).
//!
//! Who may call what:
//!
//! ```text
//! reader in the owner's process   pin, unpin                 (R2)
//! reader in another process       load, then load_again      (R3, maps the table read-only)
//! owner                           apply: everything else; own: where nobody else can
//! ```
//!
//! Every ordering names its partner. All steps but `load` are read-modify-writes of one location,
//! so each continues the release sequence of the ones before it: an Acquire of a later word also
//! sees what an earlier `publish` or `unpin` released.

use crate::atomic::{AtomicU64, Ordering, fence, spin_loop};
use mooncrate_core::Generation;
#[cfg(not(loom))]
use mooncrate_core::ReplicaState;
use mooncrate_core::canary::{self, Canary};
use mooncrate_core::state::Event;
use mooncrate_core::word::{Word, WordError};

/// Longest pause between two attempts, in spins. A lost compare-and-swap means that somebody else
/// got on, so the pause is only there to keep a hot line from bouncing.
const SPINS_MAX: u32 = 64;

/// The control word of one header slot.
#[derive(Debug)]
#[repr(transparent)]
pub struct AtomicWord(AtomicU64);

impl AtomicWord {
    /// A word that nobody shares yet. Live slots change by `apply` only; a mapped table starts as
    /// zeros, which reads as Dead in generation 0.
    pub fn store_new(word: Word) -> Self {
        Self(AtomicU64::new(word.0))
    }

    /// Eight shared bytes, as the word that they are.
    #[cfg(not(loom))]
    pub fn of(atomic: &AtomicU64) -> &Self {
        // SAFETY: the two have the same representation.
        unsafe { &*std::ptr::from_ref(atomic).cast() }
    }

    /// What the word says.
    pub fn load(&self) -> Word {
        // Acquire: pairs with the Release of `apply` that published, so the bytes are there.
        Word(self.0.load(Ordering::Acquire))
    }

    /// What the word says after an unpinned copy; `before` is what [`AtomicWord::load`] said before
    /// it (R3).
    pub fn load_again(&self, before: Word) -> Word {
        if canary::on(Canary::MissingFence) {
            // Without the fence the processor may take this load before the copy. Play the worst.
            return before;
        }
        // Acquire fence: pairs with the Release fence in `before_first_byte`. If the copy saw one
        // byte of the next object, the load below sees the bump that came before that byte.
        fence(Ordering::Acquire);
        Word(self.0.load(Ordering::Relaxed))
    }

    /// One more reader, if the slot is READY in this generation (R2, N1).
    pub fn pin(&self, generation: Generation) -> Result<Word, WordError> {
        self.pin_as(generation, 1, Word::pinned)
    }

    /// The same, booked to a rank (N6): for headers that readers of other processes pin by themselves.
    pub fn pin_by(&self, generation: Generation, rank: u8) -> Result<Word, WordError> {
        self.pin_as(generation, Word::pin_of(rank), |word, generation| {
            word.pinned_by(generation, rank)
        })
    }

    fn pin_as(
        &self,
        generation: Generation,
        pin: u64,
        step: impl Fn(Word, Generation) -> Result<Word, WordError>,
    ) -> Result<Word, WordError> {
        if canary::on(Canary::SeparateReaderCount) {
            self.load().pinned(generation)?;
            return Ok(self.pin_blindly(pin));
        }
        let mut seen = self.load();
        let mut spins = 1;
        loop {
            let wanted = generation_or_any(generation, seen);
            let next = step(seen, wanted)?;
            // Acquire: pairs with the Release of the publish, so the bytes are there. Nothing is
            // released: the reader has written nothing.
            match self.0.compare_exchange_weak(seen.0, next.0, Ordering::Acquire, Ordering::Acquire)
            {
                Ok(_) => return Ok(next),
                Err(found) => seen = Word(found),
            }
            back_off(&mut spins);
        }
    }

    /// Counts a reader without looking at the state: the second step of a reader count that is kept apart
    /// from the state. Only bugs on purpose do this.
    fn pin_blindly(&self, pin: u64) -> Word {
        Word(self.0.fetch_add(pin, Ordering::Acquire) + pin)
    }

    /// The second half of canary 8, for a rig that puts something between look and count.
    #[cfg(canary)]
    pub fn pin_without_look(&self) -> Word {
        self.pin_blindly(1)
    }

    /// Sets the word of a slot that nobody but the caller can change: it is not READY, so no pin succeeds,
    /// and no other thread applies events to it. One plain store instead of a compare-and-swap for each
    /// step on the way. The generation must not shrink: a reader of an earlier life may still be about to
    /// pin, and must find another word than it saw.
    pub fn own(&self, word: Word) {
        // Release: a publish pairs with the Acquire of `pin` and `load`, so the bytes are there.
        self.0.store(word.0, Ordering::Release);
    }

    /// One reader less. Only the holder of a pin may call this, once.
    pub fn unpin(&self) -> Word {
        // Release: pairs with the Acquire of the `apply` that reclaims, so the reader's last load
        // happens before the range is handed out.
        let before = Word(self.0.fetch_sub(1, Ordering::Release));
        assert!(before.pins() > 0, "unpinned more often than pinned: {before:?}");
        Word(before.0 - 1)
    }

    /// One pin of that rank less. Only the holder of such a pin may call this, once.
    pub fn unpin_by(&self, rank: u8) -> Word {
        let seen = self.load();
        // Before the step: a borrow would take the pin of another rank. The pin that is given back is in there.
        assert!(seen.pins_of(rank) > 0, "unpinned more often than pinned: {seen:?}");
        // Release: as in `unpin`.
        let before = self.0.fetch_sub(Word::pin_of(rank), Ordering::Release);
        Word(before - Word::pin_of(rank))
    }

    /// Takes back all pins of a rank whose process is gone (N6).
    pub fn reap(&self, rank: u8) -> Word {
        // Release: the rank's last load was before its end, which the caller has seen; whoever reclaims
        // sees it, too.
        let before = self.0.fetch_and(!Word::mask_of(rank), Ordering::AcqRel);
        Word(before & !Word::mask_of(rank))
    }

    /// The owner's step in the life `generation`. A reclaim fails while readers are inside, whatever
    /// the event says of them: the word knows better.
    pub fn apply(&self, generation: Generation, event: Event) -> Result<Word, WordError> {
        let mut seen = self.load();
        let mut spins = 1;
        loop {
            let next = seen.after(generation, event)?;
            // Release: a publish pairs with the Acquire of `pin` and `load`; a bump is what
            // `before_first_byte` and `load_again` order the next bytes after.
            // Acquire: a reclaim pairs with the Release of `unpin`.
            match self.0.compare_exchange_weak(seen.0, next.0, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return Ok(next),
                Err(found) => seen = Word(found),
            }
            back_off(&mut spins);
        }
    }
}

/// To be called by whoever stores bytes into a range, before the first one (R1). Without it a store
/// could become visible before the bump that ended the life before, and a reader of that life
/// would find its word unchanged.
pub fn before_first_byte() {
    if canary::on(Canary::MissingFence) {
        return;
    }
    // Release fence: pairs with the Acquire fence in `AtomicWord::load_again`.
    fence(Ordering::Release);
}

/// What the reader asks for; with canary 1, whatever is there.
fn generation_or_any(generation: Generation, seen: Word) -> Generation {
    if canary::on(Canary::NoGenerationCheck) { seen.generation() } else { generation }
}

/// Whether a locator of `generation` may read under this word.
#[cfg(not(loom))]
pub(crate) fn readable(word: Word, generation: Generation) -> bool {
    if canary::on(Canary::NoGenerationCheck) {
        return word.state() == ReplicaState::Ready;
    }
    word.readable(generation)
}

fn back_off(spins: &mut u32) {
    for _ in 0..*spins {
        spin_loop();
    }
    *spins = (*spins * 2).min(SPINS_MAX);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use ReplicaState as S;
    use mooncrate_core::limits::PINS_MAX;

    const G: Generation = Generation(3);
    const RECLAIM: Event = Event::Reclaim { pins: 0 };

    #[test]
    fn a_life_from_reserve_to_reclaim() {
        let word = AtomicWord::store_new(Word::new(G, S::Dead, 0));
        assert!(word.pin(G).is_err());
        for event in [Event::Reserve, Event::Begin, Event::Publish] {
            word.apply(G, event).unwrap();
        }
        assert_eq!(word.pin(G).unwrap().pins(), 1);
        assert_eq!(word.apply(G, RECLAIM), Err(WordError::Pinned { pins: 1 }));
        word.apply(G, Event::Unlink).unwrap();
        assert!(word.pin(G).is_err(), "no new reader of a retiring slot");
        assert_eq!(word.unpin().pins(), 0);
        assert_eq!(word.apply(G, RECLAIM).unwrap(), Word::new(Generation(4), S::Dead, 0));
        assert!(matches!(word.apply(G, RECLAIM), Err(WordError::Stale { .. })));
    }

    #[test]
    fn pins_have_a_limit() {
        let word = AtomicWord::store_new(Word::new(G, S::Ready, PINS_MAX));
        assert_eq!(word.pin(G), Err(WordError::Pinned { pins: PINS_MAX }));
    }

    #[test]
    #[should_panic(expected = "unpinned more often")]
    fn a_second_unpin_is_our_bug() {
        AtomicWord::store_new(Word::new(G, S::Ready, 0)).unpin();
    }
}
