//! `push` on host memory: what the kernel must do, byte for byte.

use super::words_oracle::step_oracle;
use super::{Action, Outcome, Step, Value};
use mooncrate_core::state::Event;
use std::ops::Range;

/// Copies pages of a value from `source` into its heap; nothing else is written.
pub fn push_oracle(heap: &mut [u8], value: &Value, pages: Range<u32>, source: &[u8]) {
    let mut read = 0;
    for page in pages {
        let Some(place) = value.pages.page(page) else { return };
        let (at, len) = ((value.payload + place.offset()) as usize, place.len() as usize);
        heap[at..at + len].copy_from_slice(&source[read..read + len]);
        read += len;
    }
}

/// Makes a value ready.
pub fn commit_oracle(heap: &mut [u8], value: &Value) -> Outcome {
    let (slot, generation) = (value.slot, value.generation);
    step_oracle(heap, Step { slot, generation, action: Action::Event(Event::Publish) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pages;
    use mooncrate_core::{Generation, word::Word};
    use mooncrate_heap::World;

    #[test]
    fn only_the_pages_that_were_given_are_written() {
        let owner = World::new(1).and_then(|world| world.rank(0)).unwrap();
        let pages = Pages::new(40, 16).unwrap();
        let value = Value { owner, slot: 0, generation: Generation(0), payload: 128, pages };
        let mut heap = vec![0; 256];
        push_oracle(&mut heap, &value, 1..3, &[9; 24]);
        let expected = |at: usize| if (144..168).contains(&at) { 9 } else { 0 };
        assert!(heap.iter().enumerate().all(|(at, byte)| *byte == expected(at)));
        assert_eq!(commit_oracle(&mut heap, &value), Outcome::Refused(Word(0)));
    }
}
