//! drain: a segment gets nothing new and what it holds goes elsewhere, while it serves.
//!
//! A cursor walks its slots, a slice per tick, round after round until nothing is left. A replica is
//! let go only when its stripe has enough copies on segments that stay, or its mode says that it may
//! be lost; hard pins never are. Readers of a replica that went ask the master again.
//!
//! Memory moves to memory, and to disks where memory has no room. VRAM moves to other VRAM where
//! nobody misses the room, else like memory. A disk moves to disks, and to memory only where nobody misses the room.

use super::Catalog;
use super::copy::{NoCopy, Purpose, Way};
use super::objects::{EntryId, Part, PartState, SegmentIndex, Stage};
use super::segments::{Book, NOBODY};
use crate::canary::{self, Canary};
use crate::copy::{DrainMode, DrainStat};
use crate::ids::{NodeId, SegmentId, Slot};
use crate::plan::{Action, Medium};
use crate::time::Now;

/// Slots looked at in one tick.
const SLOTS_MAX: u32 = 4096;
/// Replicas moved, dropped or found stuck in one tick.
const WORK_MAX: u32 = 256;

/// How far a segment is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Drain {
    mode: DrainMode,
    /// The slot to look at next.
    next: u32,
    start_bytes: u64,
    start_replicas: u64,
    pub moved: u64,
    dropped: u64,
    /// Replicas of this round and of the last one that could not go.
    stuck: u64,
    stuck_before: u64,
}

/// What became of one slot.
enum Step {
    /// Nothing to do.
    Past,
    /// Something was begun.
    Done,
    /// It cannot go now.
    Stuck,
    /// Enough is under way: go on from here later.
    Wait,
}

impl Drain {
    /// A drain that begins.
    pub(super) fn new(book: &Book, mode: DrainMode) -> Self {
        Self {
            mode,
            next: 0,
            start_bytes: book.used_bytes() + book.ending_bytes,
            start_replicas: book.live,
            moved: 0,
            dropped: 0,
            stuck: 0,
            stuck_before: 0,
        }
    }
}

impl Catalog {
    /// Begins to empty the segments of a node, or one of them; how far that is. One whose owner is
    /// still announcing begins when all is told. Asking again changes the mode only. `None`: there is no such node or segment.
    pub fn drain(
        &mut self,
        node: NodeId,
        segment: Option<SegmentId>,
        mode: DrainMode,
    ) -> Option<DrainStat> {
        for index in self.of_node(node, segment)? {
            let book = self.segments.book_mut(index);
            if book.is_announcing() {
                book.wish = Some(mode);
                continue;
            }
            if let Some(drain) = &mut book.drain {
                drain.mode = mode;
                continue;
            }
            book.drain = Some(Drain::new(book, mode));
            self.segments.set_open(index, false);
        }
        self.drain_stat(node, segment)
    }

    /// Ends a drain: the segments get objects again. What went stays where it is.
    pub fn undrain(&mut self, node: NodeId, segment: Option<SegmentId>) -> Option<DrainStat> {
        for index in self.of_node(node, segment)? {
            let book = self.segments.book_mut(index);
            book.wish = None;
            let was = book.drain.take();
            let silent = self.nodes.get(&node).is_none_or(|member| member.silent);
            if was.is_some() && !silent && self.segments.book(index).is_open() {
                self.segments.set_open(index, true);
            }
        }
        self.drain_stat(node, segment)
    }

    /// How far the drain of a node, or of one of its segments, is.
    pub fn drain_stat(&self, node: NodeId, segment: Option<SegmentId>) -> Option<DrainStat> {
        let mut stat = DrainStat::default();
        for index in self.of_node(node, segment)? {
            let book = self.segments.book(index);
            if book.wish.is_some() {
                // Not begun, so not over, however little was told so far.
                stat.draining += 1;
                stat.left_replicas += book.live.max(1);
            }
            let Some(drain) = &book.drain else { continue };
            stat.draining += 1;
            stat.start_bytes += drain.start_bytes;
            stat.start_replicas += drain.start_replicas;
            stat.left_bytes += book.used_bytes() + book.ending_bytes;
            stat.left_replicas += book.live;
            stat.moved += drain.moved;
            stat.dropped += drain.dropped;
            stat.stuck += drain.stuck_before.max(drain.stuck);
        }
        Some(stat)
    }

    /// Segments of a node that empty themselves, or will. The node keeps this and says it when it mounts
    /// at the next master.
    pub fn drains(&self, node: NodeId) -> Vec<(SegmentId, DrainMode)> {
        let indexes = self.of_node(node, None).unwrap_or_default();
        let books = indexes.into_iter().map(|index| self.segments.book(index));
        let modes = books.filter_map(|book| {
            let mode = book.drain.as_ref().map(|drain| drain.mode).or(book.wish)?;
            Some((book.offer.segment, mode))
        });
        modes.collect()
    }

    /// A node that has just mounted says what the last master drained. What this master has heard all
    /// of is drained, or not, by its own word.
    pub fn resume_drains(&mut self, node: NodeId, drains: &[(SegmentId, DrainMode)]) {
        for (segment, mode) in drains {
            let Some(index) = self.segments.find(*segment) else { continue };
            let book = self.segments.book_mut(index);
            if book.is_announcing() && book.offer.node == node {
                book.wish = Some(*mode);
            }
        }
    }

    fn of_node(&self, node: NodeId, only: Option<SegmentId>) -> Option<Vec<SegmentIndex>> {
        let member = self.nodes.get(&node)?;
        let wanted = member.segments.iter().filter(|id| only.is_none_or(|only| only == **id));
        let found: Vec<SegmentIndex> = wanted.filter_map(|id| self.segments.find(*id)).collect();
        (!found.is_empty()).then_some(found)
    }

    /// One slice of the walk over a segment that empties itself.
    pub(super) fn drain_step(&mut self, now: Now, index: SegmentIndex) {
        let book = self.segments.book(index);
        let Some(drain) = book.drain else { return };
        if book.live == 0 {
            return;
        }
        let slots = book.slots.len();
        let (mut slot, mut work) = (drain.next, 0);
        let last = slot.saturating_add(SLOTS_MAX).min(slots);
        while slot < last && work < WORK_MAX {
            match self.drain_slot(now, index, Slot(slot), drain.mode) {
                Step::Past => {}
                Step::Done => work += 1,
                Step::Stuck => {
                    work += 1;
                    self.draining(index, |drain| drain.stuck += 1);
                }
                Step::Wait => break,
            }
            slot += 1;
        }
        self.draining(index, |drain| {
            drain.next = slot;
            if slot == slots {
                drain.next = 0;
                drain.stuck_before = std::mem::take(&mut drain.stuck);
            }
        });
    }

    fn draining(&mut self, index: SegmentIndex, change: impl FnOnce(&mut Drain)) {
        if let Some(drain) = &mut self.segments.book_mut(index).drain {
            change(drain);
        }
    }

    fn drain_slot(&mut self, now: Now, index: SegmentIndex, slot: Slot, mode: DrainMode) -> Step {
        let id = self.segments.book(index).slots[slot.0].entry;
        if id == NOBODY {
            return Step::Past;
        }
        let entry = self.objects.entry(id);
        // A put that is open will end, and an eviction be answered: a later round finds them.
        if entry.stage != Stage::Ready {
            return Step::Past;
        }
        let part = entry.part(index, slot);
        match part.state {
            PartState::Evicting => return Step::Past,
            PartState::Copying => {
                self.end_part(now, id, &part, Action::Abort);
                return Step::Done;
            }
            PartState::Here => {}
        }
        let same = |other: &&Part| other.stripe == part.stripe && other.slot_of() != part.slot_of();
        let others: Vec<Part> = entry.parts.as_slice().iter().filter(same).copied().collect();
        if others.iter().any(|other| other.state == PartState::Copying) {
            return Step::Past;
        }
        let stays = |other: &&Part| {
            other.state == PartState::Here && self.segments.loads[usize::from(other.segment)].open
        };
        let mut nodes: Vec<NodeId> = Vec::new();
        for other in others.iter().filter(stays) {
            // A node counts once: its memory and its disk go together.
            let node = self.segments.book(other.segment).offer.node;
            if !nodes.contains(&node) {
                nodes.push(node);
            }
        }
        let staying = nodes.len();
        let may_go = mode == DrainMode::Drop && !entry.is_hard();
        if staying >= entry.copies() || may_go && staying > 0 {
            self.retire_part(now, id, &part);
            return Step::Done;
        }
        if may_go {
            return self.drop_object(now, index, id);
        }
        self.move_part(now, id, part, staying)
    }

    /// Drops an object that has no copy on a segment that stays.
    fn drop_object(&mut self, now: Now, index: SegmentIndex, id: EntryId) -> Step {
        let leased = self.objects.entry(id).lease_end > now;
        if leased || self.is_announcing(id) || self.rebuild.is_some() {
            return Step::Stuck;
        }
        self.draining(index, |drain| drain.dropped += 1);
        self.retire(now, id);
        Step::Done
    }

    fn move_part(&mut self, now: Now, id: EntryId, part: Part, staying: usize) -> Step {
        let medium = self.segments.medium(part.segment);
        let disk = medium == Medium::Ssd;
        let like = Purpose { leaving: Some(part), ..Purpose::default() };
        let to_vram = Purpose { vram: true, spare_room: true, ..like };
        let to_memory = Purpose { make_room: !disk, spare_room: disk, ..like };
        let to_disk = Purpose { way: Way::Down, ..like };
        let ways: &[Purpose] = match medium {
            Medium::Vram => &[to_vram, to_memory, to_disk],
            Medium::Dram => &[to_memory, to_disk],
            Medium::Ssd => &[to_disk, to_memory],
        };
        let mut begun = Err(NoCopy::NoRoom);
        for way in ways {
            begun = self.copy_start(now, id, part.stripe, *way);
            if begun != Err(NoCopy::NoRoom) {
                break;
            }
        }
        match begun {
            Ok(()) if canary::on(Canary::DrainFreesEarly) => {
                self.retire_part(now, id, &part);
                Step::Done
            }
            Ok(()) => Step::Done,
            Err(NoCopy::Later) => Step::Wait,
            // Fewer copies are better than a drain that never ends; one there must be.
            Err(_) if staying > 0 => {
                self.retire_part(now, id, &part);
                Step::Done
            }
            Err(_) => Step::Stuck,
        }
    }
}
