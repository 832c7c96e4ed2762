//! repair: objects that lost a copy with a node get another one, as many as their put asked for.
//!
//! A walk over all objects, a slice per tick, begins when a segment leaves or comes. It stops where
//! enough copies are under way and goes on from there, and takes only room that nobody misses.

use super::Catalog;
use super::copy::{NoCopy, Purpose, Way};
use super::objects::{EntryId, PartState, Stage};
use crate::time::Now;
use std::time::Duration;

/// Slab positions looked at in one tick.
const SLICE_MAX: u32 = 2048;
/// Pause before objects that had no room are looked at again.
const PAUSE: Duration = Duration::from_secs(1);

/// Where the walk is.
#[derive(Debug, Default)]
pub(super) struct Repairs {
    /// The position to go on from; `None`: nothing to look for.
    next: Option<EntryId>,
    /// Something was left over: walk again then.
    again_at: Option<Now>,
}

impl Catalog {
    /// Segments came or went: copies may be missing, or possible now.
    pub(super) fn look_for_missing_copies(&mut self) {
        self.repairs.next = Some(0);
    }

    /// The same, after a pause.
    pub(super) fn look_again_for_missing_copies(&mut self, now: Now) {
        self.repairs.again_at.get_or_insert(now.plus(PAUSE));
    }

    /// One slice of the walk.
    pub(super) fn repair(&mut self, now: Now) {
        if self.rebuild.is_some() || self.config.copies_max == 0 {
            return;
        }
        if self.repairs.next.is_none() && self.repairs.again_at.is_some_and(|at| at <= now) {
            self.repairs.again_at = None;
            self.repairs.next = Some(0);
        }
        let Some(first) = self.repairs.next else { return };
        let end = self.objects.positions();
        let last = first.saturating_add(SLICE_MAX).min(end);
        for id in first..last {
            if let Err(NoCopy::Later) = self.repair_one(now, id) {
                self.repairs.next = Some(id);
                return;
            }
        }
        self.repairs.next = (last < end).then_some(last);
    }

    /// One object has lost a copy: it gets another one at once where that is possible, and from the next
    /// walk where it is not. The walk itself would look at every object.
    pub(super) fn repair_entry(&mut self, now: Now, id: EntryId) {
        let rests = self.rebuild.is_some() || self.config.copies_max == 0;
        if rests || self.repair_one(now, id).is_err() {
            self.look_again_for_missing_copies(now);
        }
    }

    /// Nodes that have a copy of a stripe, in memory or on a disk, and whether some memory has. A node
    /// counts once: what is in its memory and on its disk goes with it. Not counted: what is evicted,
    /// what leaves, and what is on a segment that empties itself.
    fn staying(&self, id: EntryId, stripe: u8) -> (usize, bool) {
        let mut nodes = Vec::new();
        let mut memory = false;
        for part in self.objects.entry(id).parts.as_slice() {
            let book = self.segments.book(part.segment);
            let stays = book.is_open() && book.drain.is_none();
            if part.stripe != stripe || !stays || part.state == PartState::Evicting {
                continue;
            }
            memory |= !book.is_disk();
            if !nodes.contains(&book.offer.node) {
                nodes.push(book.offer.node);
            }
        }
        (nodes.len(), memory)
    }

    /// Starts the copies that an object lacks.
    fn repair_one(&mut self, now: Now, id: EntryId) -> Result<(), NoCopy> {
        let Some(entry) = self.objects.get(id) else { return Ok(()) };
        if entry.stage != Stage::Ready || entry.hidden {
            return Ok(());
        }
        let wished = entry.copies().min(self.segments.open_nodes as usize);
        if entry.on_disk() > 0 {
            self.offload_ended(id);
        }
        if wished <= 1 {
            return Ok(());
        }
        for stripe in 0..self.objects.entry(id).stripes() as u8 {
            let (have, memory) = self.staying(id, stripe);
            for _ in have..wished {
                // What is on disks only stays there: it is not repaired into memory.
                let way = if memory { Way::Memory } else { Way::Down };
                let purpose = Purpose { spare_room: true, way, ..Purpose::default() };
                match self.copy_start(now, id, stripe, purpose) {
                    Ok(()) => {}
                    Err(NoCopy::Later) => return Err(NoCopy::Later),
                    Err(NoCopy::NoRoom) => self.look_again_for_missing_copies(now),
                    Err(NoCopy::Impossible) => break,
                }
            }
        }
        Ok(())
    }
}
