//! repair: objects that lost a copy with a node get another one, as many as their put asked for.
//!
//! A walk over all objects, a slice per tick, begins when a segment leaves or comes. It stops where
//! enough copies are under way and goes on from there, and takes only room that nobody misses.

use super::Catalog;
use super::copy::{NoCopy, Purpose, Way};
use super::objects::{EntryId, PartState, Stage};
use crate::plan::Medium;
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

/// What a stripe has that stays.
#[derive(Clone, Copy, Debug, Default)]
struct Staying {
    /// Nodes that have it, in memory or on a disk.
    nodes: usize,
    /// Copies in VRAM.
    vram: usize,
    /// Whether some memory of a host has it.
    dram: bool,
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

    /// What a stripe has that stays. A node counts once: what is in its memory, its VRAM and on its disk
    /// goes with it. Not counted: what is evicted, what leaves, and what is on a segment that empties itself.
    fn staying(&self, id: EntryId, stripe: u8) -> Staying {
        let mut nodes = Vec::new();
        let mut staying = Staying::default();
        for part in self.objects.entry(id).parts.as_slice() {
            let book = self.segments.book(part.segment);
            let stays = book.is_open() && book.drain.is_none();
            if part.stripe != stripe || !stays || part.state == PartState::Evicting {
                continue;
            }
            match book.offer.medium {
                Medium::Vram => staying.vram += 1,
                Medium::Dram => staying.dram = true,
                Medium::Ssd => {}
            }
            if !nodes.contains(&book.offer.node) {
                nodes.push(book.offer.node);
            }
        }
        staying.nodes = nodes.len();
        staying
    }

    /// Whether the next copy of an object should be in VRAM: because its put asked for more there than it
    /// has, or, where nobody knows that any more, because all that it has in memory is there.
    fn lacks_vram(&self, id: EntryId, staying: &Staying) -> bool {
        let alone = staying.vram > 0 && !staying.dram;
        self.objects.entry(id).in_vram().map_or(alone, |wished| staying.vram < wished)
    }

    /// Starts the copies that an object lacks.
    fn repair_one(&mut self, now: Now, id: EntryId) -> Result<(), NoCopy> {
        let Some(entry) = self.objects.get(id) else { return Ok(()) };
        if entry.stage != Stage::Ready || entry.hidden {
            return Ok(());
        }
        let copies = entry.copies();
        if entry.on_disk() > 0 {
            self.offload_ended(id);
        }
        if copies <= 1 {
            return Ok(());
        }
        for stripe in 0..self.objects.entry(id).stripes() as u8 {
            let mut staying = self.staying(id, stripe);
            // Nodes that have nothing but VRAM count only for those that may go there.
            let vram = staying.vram > 0 || self.lacks_vram(id, &staying);
            let host = self.segments.open_on(Medium::Dram).nodes;
            let nodes = if vram { self.segments.memory_nodes } else { host };
            for _ in staying.nodes..copies.min(nodes as usize) {
                match self.repair_stripe(now, id, stripe, &mut staying) {
                    Ok(()) => {}
                    Err(NoCopy::Later) => return Err(NoCopy::Later),
                    Err(NoCopy::NoRoom) => self.look_again_for_missing_copies(now),
                    Err(NoCopy::Impossible) => break,
                }
            }
        }
        Ok(())
    }

    /// Starts one more copy of a stripe. What is on disks only stays there: it is not repaired into memory.
    fn repair_stripe(
        &mut self,
        now: Now,
        id: EntryId,
        stripe: u8,
        staying: &mut Staying,
    ) -> Result<(), NoCopy> {
        let spare = Purpose { spare_room: true, ..Purpose::default() };
        if staying.vram == 0 && !staying.dram {
            return self.copy_start(now, id, stripe, Purpose { way: Way::Down, ..spare });
        }
        if self.lacks_vram(id, staying) {
            match self.copy_start(now, id, stripe, Purpose { vram: true, ..spare }) {
                Ok(()) => {
                    staying.vram += 1;
                    return Ok(());
                }
                Err(NoCopy::NoRoom) => {}
                begun => return begun,
            }
        }
        self.copy_start(now, id, stripe, spare)
    }
}
