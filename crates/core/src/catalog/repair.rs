//! repair: objects that lost a copy with a node get another one, as many as their put asked for.
//!
//! A walk over all objects, a slice per tick, begins when a segment leaves or comes. It stops where
//! enough copies are under way and goes on from there, and takes only room that nobody misses.

use super::Catalog;
use super::copy::{NoCopy, Purpose};
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

    /// Starts the copies that an object lacks.
    fn repair_one(&mut self, now: Now, id: EntryId) -> Result<(), NoCopy> {
        let Some(entry) = self.objects.get(id) else { return Ok(()) };
        let wished = entry.copies().min(self.segments.open_nodes as usize);
        if wished <= 1 || entry.stage != Stage::Ready || entry.hidden {
            return Ok(());
        }
        for stripe in 0..entry.stripes() as u8 {
            // Not counted: what is evicted, what leaves, and what is on a segment that empties itself.
            let counts = self.objects.entry(id).parts.as_slice().iter().filter(|part| {
                let book = self.segments.book(part.segment);
                let stays = book.is_open() && book.drain.is_none();
                part.stripe == stripe && stays && part.state != PartState::Evicting
            });
            for _ in counts.count()..wished {
                let purpose = Purpose { spare_room: true, ..Purpose::default() };
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
