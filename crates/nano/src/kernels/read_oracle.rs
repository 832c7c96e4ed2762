//! `read` on host memory: what the kernel must do, byte for byte.

use super::words_oracle::step_oracle;
use super::{Action, Outcome, Step, Value};
use mooncrate_heap::Rank;
use std::ops::Range;

/// Copies a part of a value to `target` if it was pinned in its generation, and takes the pin of `unpin`
/// back. Gives what became of that; without a pin it is the refusal.
pub fn read_oracle(
    heap: &mut [u8],
    value: &Value,
    bytes: Range<u64>,
    target: &mut [u8],
    pin: Outcome,
    unpin: Option<Rank>,
) -> Outcome {
    let word = match pin {
        Outcome::Done(word) if word.readable(value.generation) => word,
        Outcome::Done(word) | Outcome::Refused(word) | Outcome::Busy(word) => {
            return Outcome::Refused(word);
        }
        Outcome::Missing => return Outcome::Refused(mooncrate_core::word::Word(0)),
    };
    let at = |offset: u64| (value.payload + offset) as usize;
    let source = &heap[at(bytes.start)..at(bytes.end)];
    target[..source.len()].copy_from_slice(source);
    let Some(rank) = unpin else { return Outcome::Done(word) };
    let (slot, generation) = (value.slot, value.generation);
    step_oracle(heap, Step { slot, generation, action: Action::Unpin(rank) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pages;
    use mooncrate_core::word::Word;
    use mooncrate_core::{Generation, ReplicaState};
    use mooncrate_heap::World;

    #[test]
    fn without_a_pin_nothing_is_read() {
        let owner = World::new(1).and_then(|world| world.rank(0)).unwrap();
        let pages = Pages::new(40, 16).unwrap();
        let value = Value { owner, slot: 0, generation: Generation(2), payload: 128, pages };
        let mut heap = vec![7; 256];
        let ready = Word::new(Generation(2), ReplicaState::Ready, 1);
        heap[56..64].copy_from_slice(&ready.0.to_le_bytes());
        let mut target = [0; 8];
        let old = Word::new(Generation(1), ReplicaState::Ready, 1);
        for pin in [Outcome::Refused(ready), Outcome::Busy(ready), Outcome::Done(old)] {
            let read = read_oracle(&mut heap, &value, 16..24, &mut target, pin, Some(owner));
            assert!(matches!(read, Outcome::Refused(_)));
        }
        assert_eq!(target, [0; 8]);
        let pin = Outcome::Done(ready);
        let read = read_oracle(&mut heap, &value, 16..24, &mut target, pin, Some(owner));
        let left = Word::new(Generation(2), ReplicaState::Ready, 0);
        assert_eq!((target, read), ([7; 8], Outcome::Done(left)));
    }
}
