//! promote: what is on disks only and is read again comes back into memory.
//!
//! One read of a cold value is no reason to move it: it is remembered in a small table, and the
//! [`super::Config::promote_reads`]th read admits it, if each came within [`WINDOW`] of the one before. A copy goes to the memory of the node whose disk has the value, or to
//! any other, where it takes no room that puts would miss. Where memory is full, the coldest objects make
//! room, but only those that are not lost by it: a promotion never drops anything.
//!
//! What was read last comes first. And a crowd of which each was read once must not turn all memory over:
//! when a part of it, [`TURNED_PERMILLE`], has been displaced since an object was admitted, what was read
//! meanwhile is worth more, and the object waits for its next read.

use super::Catalog;
use super::copy::{NoCopy, Purpose, Way};
use super::evict::Cause;
use super::objects::{Entry, EntryId, Part, SegmentIndex, Stage};
use crate::ids::{NodeId, ObjectId, SegmentId};
use crate::plan::Medium;
use crate::time::Now;
use std::collections::VecDeque;
use std::time::Duration;

/// Reads from disks that are remembered.
const SEEN: usize = 1 << 13;
/// For how long.
const WINDOW: Duration = Duration::from_mins(1);
/// Objects that wait for their copy in memory.
const WANTED_MAX: usize = 1024;
/// Those that one call looks at.
const LOOKS_MAX: usize = 64;
/// For how long one object waits for room, and the pause between two attempts: the owner of a busy machine
/// takes its time.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);
/// How much of a node's memory promotions displace before those that were admitted earlier are given up.
const TURNED_PERMILLE: u64 = 500;
/// Victims looked at to make room for one object.
const VICTIMS_MAX: usize = 16;

/// What was read from disks of late.
#[derive(Debug, Default)]
pub(super) struct Promotions {
    /// By the hash of the key; made at the first use.
    seen: Vec<Seen>,
    /// Read last at the end.
    wanted: VecDeque<Wanted>,
}

/// Reads of one object.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    object: ObjectId,
    /// How many there were, not yet enough.
    reads: u32,
    last: Now,
}

/// An object that shall come into memory.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    id: EntryId,
    object: ObjectId,
    /// Whose disk has it, and what promotions had displaced there when it was admitted.
    node: NodeId,
    displaced: u64,
    /// Whether room was made for it.
    again: bool,
    at: Now,
    until: Now,
}

impl Catalog {
    /// An object was read so often, of which some part is on disks only.
    pub(super) fn read_from_disk(&mut self, now: Now, id: EntryId, reads: u32) {
        if !self.config.promote {
            return;
        }
        let entry = self.objects.entry(id);
        let object = entry.object;
        let mut parts = entry.parts.as_slice().iter();
        let Some(part) = parts.find(|part| self.segments.is_disk(part.segment)) else { return };
        let node = self.segments.book(part.segment).offer.node;
        let displaced = self.nodes.get(&node).map_or(0, |member| member.displaced);
        let Promotions { seen, wanted } = &mut self.promotions;
        if seen.is_empty() {
            *seen = vec![Seen::default(); SEEN];
        }
        let place = &mut seen[entry.hash as usize % SEEN];
        let known = place.object == object && now.since(place.last) <= WINDOW;
        let reads = reads.saturating_add(if known { place.reads } else { 0 });
        if reads < self.config.promote_reads {
            *place = Seen { object, reads, last: now };
            return;
        }
        *place = Seen::default();
        if wanted.len() >= WANTED_MAX {
            wanted.pop_front();
        }
        let until = now.plus(PATIENCE);
        wanted.push_back(Wanted { id, object, node, displaced, again: false, at: now, until });
    }

    /// Whether some part of an object is on disks only, as far as it can be read.
    pub(super) fn only_on_disk(&self, entry: &Entry) -> bool {
        let memory = |part: &Part| !self.segments.is_disk(part.segment) && self.part_readable(part);
        !self.segments.disks().is_empty() && !entry.complete(memory)
    }

    /// Begins the copies of what was admitted.
    pub(super) fn promote(&mut self, now: Now) {
        let mut waiting = Vec::new();
        for _ in 0..self.promotions.wanted.len().min(LOOKS_MAX) {
            let Some(one) = self.promotions.wanted.pop_back() else { break };
            let same = |entry: &Entry| entry.object == one.object && entry.stage == Stage::Ready;
            if !self.objects.get(one.id).is_some_and(same) {
                continue;
            }
            if one.at > now {
                waiting.push(one);
            } else if one.until <= now || self.turned_over(&one) {
                // Given up; the next read admits it again.
                let place = self.objects.entry(one.id).hash as usize % SEEN;
                let reads = self.config.promote_reads.saturating_sub(1);
                self.promotions.seen[place] = Seen { object: one.object, reads, last: now };
            } else if self.promote_object(now, one.id, one.again).is_err() {
                waiting.push(Wanted { again: true, at: now.plus(PAUSE), ..one });
            }
        }
        self.promotions.wanted.extend(waiting.into_iter().rev());
    }

    /// Whether so much was displaced since an object was admitted that it comes too late.
    fn turned_over(&self, one: &Wanted) -> bool {
        let Some(member) = self.nodes.get(&one.node) else { return true };
        let memory = member.segments.iter().filter(|id| id.medium() == Medium::Dram);
        let books = memory.filter_map(|id| Some(self.segments.book(self.segments.find(*id)?)));
        let bytes: u64 = books.map(|book| book.offer.bytes).sum();
        let displaced = member.displaced.saturating_sub(one.displaced);
        displaced > bytes / 1000 * TURNED_PERMILLE
    }

    /// Begins the copies into memory that an object lacks. `again`: room was made for it.
    fn promote_object(&mut self, now: Now, id: EntryId, again: bool) -> Result<(), NoCopy> {
        for stripe in 0..self.objects.entry(id).stripes() as u8 {
            let parts = self.objects.entry(id).parts.as_slice().iter();
            let mut parts = parts.filter(|part| part.stripe == stripe);
            let disk = parts.clone().find(|part| self.segments.is_disk(part.segment)).copied();
            let here = parts.any(|part| !self.segments.is_disk(part.segment));
            if let (Some(disk), false) = (disk, here) {
                self.promote_stripe(now, id, &disk, again)?;
            }
        }
        Ok(())
    }

    fn promote_stripe(
        &mut self,
        now: Now,
        id: EntryId,
        disk: &Part,
        again: bool,
    ) -> Result<(), NoCopy> {
        let bytes = self.objects.entry(id).extent_bytes(disk.stripe);
        let node = self.segments.book(disk.segment).offer.node;
        let full = if again { self.config.high_permille } else { self.config.low_permille };
        let near = self.memory_of(node, id);
        let purpose = Purpose { way: Way::Up, ..Purpose::default() };
        for (segment, index) in &near {
            let book = self.segments.book(*index);
            if book.used_bytes().saturating_add(bytes) <= book.share(full) {
                let purpose = Purpose { to: Some(*segment), ..purpose };
                match self.copy_start(now, id, disk.stripe, purpose) {
                    Err(NoCopy::NoRoom) => {}
                    begun => {
                        if let (Ok(()), true, Some(member)) =
                            (&begun, again, self.nodes.get_mut(&node))
                        {
                            member.displaced += bytes;
                        }
                        return begun;
                    }
                }
            }
        }
        let far = Purpose { spare_room: true, ..purpose };
        match self.copy_start(now, id, disk.stripe, far) {
            Err(NoCopy::NoRoom) => {}
            begun => return begun,
        }
        // Victims that are on their way out may be enough: an attempt that meets them orders no more.
        if let Some((_, index)) = near.first() {
            self.reclaim(now, *index, bytes, (VICTIMS_MAX, Cause::Promotion));
        }
        Err(NoCopy::NoRoom)
    }

    /// Segments of memory of a node that may take an object, the emptiest first.
    fn memory_of(&self, node: NodeId, id: EntryId) -> Vec<(SegmentId, SegmentIndex)> {
        let tenant = self.objects.entry(id).tenant;
        let Some(member) = self.nodes.get(&node) else { return Vec::new() };
        let found = member.segments.iter().filter_map(|id| Some((*id, self.segments.find(*id)?)));
        let mut found: Vec<(SegmentId, SegmentIndex)> = found
            .filter(|(_, index)| {
                let load = &self.segments.loads[usize::from(*index)];
                let ours = load.tenant.is_none_or(|only| only == tenant);
                load.open && ours && load.medium == Medium::Dram
            })
            .collect();
        found.sort_by_key(|(_, index)| self.segments.book(*index).used_bytes());
        found
    }
}
