//! Leaves as a policy of a segment. What a slot is worth, and whether a successor covers it, its caller says.

use super::Leaves;
use crate::evict::EvictPolicy;
use crate::ids::Slot;

impl EvictPolicy for Leaves {
    fn insert(&mut self, slot: Slot) {
        Self::insert(self, slot);
    }

    /// A use belongs to the block and not to its slot.
    fn touch(&mut self, _slot: Slot) {}

    fn remove(&mut self, slot: Slot) -> bool {
        Self::remove(self, slot)
    }

    fn next(&mut self) -> Option<Slot> {
        self.next_by(&|_| Some(0))
    }

    fn next_by(&mut self, worth: &dyn Fn(Slot) -> Option<u64>) -> Option<Slot> {
        Self::next(self, worth).or_else(|| self.next_covered(worth))
    }

    fn cover(&mut self, slot: Slot, covered: bool) {
        if covered && self.contains(slot) {
            Self::remove(self, slot);
            self.insert_covered(slot);
        } else if !covered && self.is_covered(slot) {
            self.uncover(slot);
        }
    }

    fn covers(&self, slot: Slot) -> Option<bool> {
        (self.contains(slot) || self.is_covered(slot)).then(|| self.is_covered(slot))
    }

    /// Leaves only: the caller knows what they cover.
    fn ahead(&mut self) -> Option<Slot> {
        Self::ahead(self)
    }

    fn len(&self) -> usize {
        self.all()
    }

    fn heap_bytes(&self) -> usize {
        Self::heap_bytes(self)
    }
}
