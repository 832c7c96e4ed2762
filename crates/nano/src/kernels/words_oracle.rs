//! `words` on host memory: what the kernel must do, step by step.

use super::words::header_bytes;
use super::{Action, Outcome, Step};
use mooncrate_core::Generation;
use mooncrate_core::header::{HEADER_BYTES, WORD_OFFSET};
use mooncrate_core::state::Event;
use mooncrate_core::word::Word;
use mooncrate_heap::Rank;
use std::ops::Range;

/// The control word of a slot in a heap that lies in host memory.
pub fn word_oracle(heap: &[u8], slot: u32) -> Word {
    let at = slot as usize * HEADER_BYTES + WORD_OFFSET;
    Word(heap[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)))
}

fn set_word(heap: &mut [u8], slot: u32, word: Word) {
    let at = slot as usize * HEADER_BYTES + WORD_OFFSET;
    heap[at..at + 8].copy_from_slice(&word.0.to_le_bytes());
}

/// The word after an action that is one step, by the words of `core`; `None`: refused.
fn after(word: Word, generation: Generation, action: Action) -> Option<Word> {
    match action {
        Action::Event(Event::Reclaim { .. }) => {
            word.after(generation, Event::Reclaim { pins: 0 }).ok()
        }
        Action::Event(event) => word.after(generation, event).ok(),
        Action::Open(_) => word.after(generation, Event::Reserve).ok(),
        Action::Pin(rank) => word.pinned_by(generation, rank.number()).ok(),
        Action::Unpin(rank) => {
            let held = word.generation() == generation && word.pins_of(rank.number()) > 0;
            held.then(|| Word(word.0 - Word::pin_of(rank.number())))
        }
    }
}

/// One step in a heap that lies in host memory.
pub(super) fn step_oracle(heap: &mut [u8], step: Step) -> Outcome {
    let found = word_oracle(heap, step.slot);
    let Some(mut next) = after(found, step.generation, step.action) else {
        return Outcome::Refused(found);
    };
    if let Action::Open(header) = step.action {
        let at = step.slot as usize * HEADER_BYTES;
        heap[at..at + HEADER_BYTES].copy_from_slice(&header_bytes(&header));
        next = next.after(step.generation, Event::Begin).unwrap_or(next);
    }
    set_word(heap, step.slot, next);
    Outcome::Done(next)
}

/// All steps, one after the other.
pub fn words_oracle(heap: &mut [u8], steps: &[Step]) -> Vec<Outcome> {
    steps.iter().map(|step| step_oracle(heap, *step)).collect()
}

/// Takes back the pins of a rank; gives how many there were.
pub fn reap_oracle(heap: &mut [u8], slots: Range<u32>, gone: Rank) -> u64 {
    let mut reaped = 0;
    for slot in slots {
        let word = word_oracle(heap, slot);
        reaped += u64::from(word.pins_of(gone.number()));
        set_word(heap, slot, Word(word.0 & !Word::mask_of(gone.number())));
    }
    reaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use mooncrate_core::ReplicaState;
    use mooncrate_core::header::Header;
    use mooncrate_heap::World;

    #[test]
    fn a_life_from_open_to_reclaim() {
        let reader = World::new(4).and_then(|world| world.rank(3)).unwrap();
        let mut heap = vec![0; 2 * HEADER_BYTES];
        let mut act =
            |action| step_oracle(&mut heap, Step { slot: 1, generation: Generation(0), action });
        let ready = Word::new(Generation(0), ReplicaState::Ready, 0);
        let header = Header { key_hash: 7, word: u64::MAX, ..Header::default() };
        let writing = Word::new(Generation(0), ReplicaState::Writing, 0);
        assert_eq!(act(Action::Pin(reader)), Outcome::Refused(Word(0)));
        assert_eq!(act(Action::Open(header)), Outcome::Done(writing));
        assert_eq!(act(Action::Event(Event::Publish)), Outcome::Done(ready));
        let pinned = Word(ready.0 + (1 << 9));
        assert_eq!(act(Action::Pin(reader)), Outcome::Done(pinned));
        let free = Action::Event(Event::Reclaim { pins: 0 });
        assert_eq!(act(free), Outcome::Refused(pinned));
        assert_eq!(act(Action::Unpin(reader)), Outcome::Done(ready));
        assert_eq!(act(Action::Unpin(reader)), Outcome::Refused(ready));
        assert_eq!(act(free), Outcome::Done(Word::new(Generation(1), ReplicaState::Dead, 0)));
        assert_eq!(heap[HEADER_BYTES], 7);
        assert_eq!(heap[..HEADER_BYTES], [0; HEADER_BYTES]);
    }

    #[test]
    fn a_rank_that_is_gone_leaves_the_pins_of_others() {
        let world = World::new(8).unwrap();
        let mut heap = vec![0; 2 * HEADER_BYTES];
        let pins = 3 * Word::pin_of(5) + Word::pin_of(6) + 7 * Word::pin_of(4);
        set_word(&mut heap, 1, Word(pins));
        assert_eq!(reap_oracle(&mut heap, 0..2, world.rank(5).unwrap()), 3);
        assert_eq!(word_oracle(&heap, 1), Word(pins & !Word::mask_of(5)));
    }
}
