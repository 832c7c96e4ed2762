//! FIFO: the oldest slot goes first, whether it was read or not.

use super::EvictPolicy;
use super::list::Queue;
use crate::ids::Slot;

#[derive(Debug)]
pub(super) struct Fifo(Queue);

impl Fifo {
    pub(super) const fn new() -> Self {
        Self(Queue::new())
    }
}

impl EvictPolicy for Fifo {
    fn insert(&mut self, slot: Slot) {
        self.0.push(slot);
    }

    fn touch(&mut self, _slot: Slot) {}

    fn remove(&mut self, slot: Slot) -> bool {
        self.0.take(slot)
    }

    fn next(&mut self) -> Option<Slot> {
        self.0.oldest()
    }

    fn ahead(&mut self) -> Option<Slot> {
        self.0.ahead()
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn heap_bytes(&self) -> usize {
        self.0.heap_bytes()
    }
}
