//! An owner tells what it holds once more: it mounted again before it had told everything, because a link broke
//! or a call took too long.
//!
//! What it told so far stays in the index and stays readable. Each slot is compared with its book when its page
//! comes, so a round that begins anew costs nothing per slot, and each page as much as its slots (G13). What
//! must stay true: when the last page is in, books and index are what they would be had the owner told all of
//! it for the first time, but for leases, which are kept.

use super::Catalog;
use super::objects::{EntryId, SegmentIndex};
use super::segments::NOBODY;
use crate::error::MountError;
use crate::extent::Extent;
use crate::ids::{Generation, Slot};
use crate::plan::Announced;
use crate::time::Now;

impl Catalog {
    /// A disk tells of a slot again: what it has let go of since the first time is gone, even where its word
    /// of that was lost.
    pub(super) fn disk_told_again(&mut self, now: Now, index: SegmentIndex, told: &Announced) {
        let known = self.segments.book(index).slots[told.slot.0];
        if known.entry == NOBODY {
            return;
        }
        let life = told.life.as_ref().filter(|_| told.generation == known.generation);
        match life {
            Some(life) if life.object.is_some() => {}
            Some(_) => self.hidden_by_owner(now, index, told.slot, known.generation),
            // An old page may come late.
            None if told.generation > known.generation => {
                self.freed_unasked(now, index, told.slot, known.generation, told.generation);
            }
            None => {}
        }
    }

    /// The owner of memory tells of a slot again. Whether that is all: otherwise the slot has changed since,
    /// nothing is known of it any more, and it is told as for the first time.
    pub(super) fn memory_told_again(
        &mut self,
        now: Now,
        index: SegmentIndex,
        told: &Announced,
    ) -> Result<bool, MountError> {
        let bad = MountError::BadAnnouncement { slot: told.slot.0 };
        let book = self.segments.book(index);
        let known = book.slots[told.slot.0];
        if told.generation < known.generation {
            // A page of an earlier round that was on its way for long.
            return Err(bad);
        }
        let same = |generation: Generation| generation == told.generation;
        let ending = book.ending.get(&told.slot).filter(|ending| same(ending.generation));
        let entry = (known.entry != NOBODY && same(known.generation)).then_some(known.entry);
        let is_ending = ending.is_some();
        let extent = match (ending, entry) {
            (Some(ending), _) => Some(ending.allocation.extent),
            (None, Some(id)) => {
                let entry = self.objects.entry(id);
                Some(entry.extent(&entry.part(index, told.slot)))
            }
            (None, None) => None,
        };
        let (Some(life), Some(extent)) = (&told.life, extent) else {
            if known.entry != NOBODY || book.ending.contains_key(&told.slot) {
                self.untell(now, index, told.slot);
            }
            return Ok(false);
        };
        if let (Some(id), Some(object)) = (entry, &life.object)
            && self.objects.entry(id).object != object.object
        {
            return Err(bad);
        }
        if life.extent != extent {
            return Err(bad);
        }
        self.take_handle(index, told.slot, extent, entry)?;
        if life.object.is_some() && is_ending {
            // It was told to go while its segment was waited for, and is still readable there. The wait may have
            // ended since.
            self.unwanted_at(index, told.slot);
        }
        if life.object.is_none() && entry.is_some() {
            // Its owner has found it bad since. Leases are out, so its range waits for them.
            self.found_bad(now, index, told.slot, told.generation);
        }
        Ok(true)
    }

    /// A slot that is what it was: its range has another handle in this round.
    fn take_handle(
        &mut self,
        index: SegmentIndex,
        slot: Slot,
        extent: Extent,
        entry: Option<EntryId>,
    ) -> Result<(), MountError> {
        let bad = MountError::BadAnnouncement { slot: slot.0 };
        let book = self.segments.book_mut(index);
        let handle = book.told.as_mut().and_then(|told| told.add(extent)).ok_or(bad)?;
        book.told_slots += 1;
        if let Some(ending) = book.ending.get_mut(&slot) {
            ending.allocation.handle = handle;
        }
        if let Some(id) = entry {
            let parts = self.objects.entry_mut(id).parts.as_mut_slice().iter_mut();
            for part in parts.filter(|part| part.segment == index && part.slot == slot) {
                part.handle = handle;
            }
        }
        Ok(())
    }

    /// The life that a slot was told with is over: nothing in the index names it any more.
    fn untell(&mut self, now: Now, index: SegmentIndex, slot: Slot) {
        let book = self.segments.book_mut(index);
        book.spare(slot);
        if let Some(ending) = book.ending.get(&slot) {
            book.ending_bytes -= ending.allocation.extent.len();
            book.unwanted -= u64::from(ending.unwanted);
            book.struck -= u64::from(ending.struck);
        }
        self.detach(now, index, slot);
    }
}
