//! What kernels need to move bytes of one object: ranks and offsets, never addresses.

use crate::layout::{HeapLayout, Pages};
use crate::reach::{Step, Touch};
use mooncrate_core::key::KeyHash;
use mooncrate_core::{Generation, Locator, PutToken, Slot};
use mooncrate_heap::Rank;

/// Where an object is, or will be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Whose heap.
    pub owner: Rank,
    /// Which header.
    pub slot: Slot,
    /// Where that header lies in the owner's heap.
    pub header_offset: u64,
    /// Where the value lies in the owner's heap.
    pub payload_offset: u64,
    /// How the value is cut.
    pub pages: Pages,
    /// Which life of the header; the epoch that kernels compare.
    pub epoch: u32,
}

impl Place {
    /// A step on its header, in its life.
    pub(crate) fn step(&self, touch: Touch) -> Step {
        Step { slot: self.slot, generation: Generation(self.epoch), touch }
    }

    /// The object behind a locator, in heaps of this layout; `None`: it does not fit in there, so it is of
    /// another cache.
    pub(crate) fn of(
        locator: &Locator,
        owner: Rank,
        layout: &HeapLayout,
        pages: Pages,
    ) -> Option<Self> {
        let header = layout.header(locator.slot.0)?;
        let payload = layout.payload().part(locator.extent.offset(), locator.extent.len())?;
        (pages.bytes_total <= payload.len()).then_some(Self {
            owner,
            slot: locator.slot,
            header_offset: header.offset(),
            payload_offset: payload.offset(),
            pages,
            epoch: locator.generation.0,
        })
    }
}

/// Leave to write one object: push its pages, publish, commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WritePlan {
    /// The hash of the key, as headers have it.
    pub key_hash: KeyHash,
    /// Where to write.
    pub place: Place,
    /// The right to end the put.
    pub(crate) token: PutToken,
}
