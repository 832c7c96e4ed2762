//! Telling a master what is here, page by page, so that it can rebuild its index from the headers.
//!
//! A slot in quarantine stands one generation on; it is announced under the life that failed, so that
//! the later `Freed` of that life matches.

use super::Segment;
use mooncrate_core::plan::{Announced, AnnouncedLife, AnnouncedObject};
use mooncrate_core::{Generation, Label, LeaderEpoch, ObjectId, ReplicaState, Seal, Slot};

impl Segment {
    /// Up to `max` slots from `from` on, and where the next page starts; `None`: that was the last.
    /// The caller has made this segment witness the epoch of the master that listens, so that no
    /// older plan can come in behind the announcement.
    pub fn announce(&self, from: Slot, max: usize) -> (Vec<Announced>, Option<Slot>) {
        let high_water = self.front.lock().high_water;
        let count = u32::try_from(max.max(1)).unwrap_or(u32::MAX);
        let end = high_water.min(from.0.saturating_add(count));
        let page = (from.0..end).map(|slot| self.announce_slot(Slot(slot))).collect();
        (page, (end < high_water).then_some(Slot(end)))
    }

    fn announce_slot(&self, slot: Slot) -> Announced {
        let life = self.lives.lock(slot);
        let word = self.load(slot);
        let generation = match word.state() {
            ReplicaState::Failed => Generation(word.generation().0.saturating_sub(1)),
            _ => word.generation(),
        };
        let lives = word.state() != ReplicaState::Dead;
        let life = lives.then(|| AnnouncedLife {
            extent: self.extent(slot),
            object: match (word.state(), life.as_ref()) {
                (ReplicaState::Ready, Some(life)) => Some(self.object(slot, &life.label)),
                _ => None,
            },
        });
        Announced { slot, generation, life }
    }

    fn object(&self, slot: Slot, label: &[u8]) -> AnnouncedObject {
        let header = self.table.read(slot).expect("slots below the high-water mark exist");
        AnnouncedObject {
            label: Label::decode(label).expect("`begin` refuses what is no label"),
            object: ObjectId {
                epoch: LeaderEpoch(header.object_epoch),
                sequence: header.object_sequence,
            },
            len: header.bytes_total,
            seal: Seal(header.seal),
        }
    }
}
