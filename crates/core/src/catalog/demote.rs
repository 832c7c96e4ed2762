//! demote: what VRAM lets go of moves into memory of a host, and from there to a disk as everything else.
//!
//! VRAM is small and full by design, so its victims are often worth more than what is oldest in memory of
//! hosts: room is made for them there, by ordinary evictions that spare soft pins. A segment takes no more of
//! them at a time than a disk takes of offloads, and is left alone for a while when it refuses one. Where no
//! memory takes a victim, a disk may. Whoever needs the room waits meanwhile, but not for long: after
//! [`PATIENCE`] without a single one begun, victims are dropped. Memory that is full and in use must not stop
//! puts into VRAM.
//!
//! What must stay true: nothing moves up into VRAM. A replica is there because its put, or somebody by name,
//! asked for it, or because it took the place of one that was.

use super::Catalog;
use super::copy::{NoCopy, Purpose, Way};
use super::evict::{Cause, Reclaim};
use super::objects::{EntryId, Part, SegmentIndex};
use super::offload::Offload;
use super::segments::NOBODY;
use crate::ids::{NodeId, TenantId};
use crate::plan::Medium;
use crate::time::Now;
use std::time::Duration;

/// For how long victims of one segment wait before they are dropped. Shorter than for disks: a put into VRAM
/// is part of a step of inference.
pub(super) const PATIENCE: Duration = Duration::from_millis(500);
/// After so long without an attempt, waiting begins anew.
const LULL: Duration = Duration::from_secs(1);
/// Segments of memory that are asked to make room for one victim.
const TARGETS_MAX: usize = 2;
/// Candidates looked at in each of them.
const LOOKS_MAX: usize = 16;

/// Since when victims of a segment wait, and when one was last tried.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Waits {
    since: Now,
    tried: Now,
}

impl Waits {
    /// A victim was tried: whether it may wait. `true` at the first one, until all have waited too long.
    fn may_wait(&mut self, now: Now) -> bool {
        if now.since(self.tried) > LULL {
            self.since = now;
        }
        self.tried = now;
        now.since(self.since) < PATIENCE
    }

    /// One was taken.
    fn taken(&mut self, now: Now) {
        *self = Self { since: now, tried: now };
    }
}

impl Catalog {
    /// Whether victims of a segment are moved rather than dropped, where something takes them.
    pub(super) fn saves(&self, segment: SegmentIndex) -> bool {
        let below = |medium| !self.segments.open_on(medium).segments.is_empty();
        let vram = self.segments.medium(segment) == Medium::Vram;
        self.config.offload != Offload::Off && (below(Medium::Ssd) || vram && below(Medium::Dram))
    }

    /// Begins to copy a victim that has no other copy to what lies below it.
    pub(super) fn save(&mut self, now: Now, id: EntryId, part: Part) -> Result<(), NoCopy> {
        if !self.saves(part.segment) {
            return Err(NoCopy::Impossible);
        }
        let out = Purpose { way: Way::Out, leaving: Some(part), ..Purpose::default() };
        if self.segments.medium(part.segment) != Medium::Vram {
            return self.copy_start(now, id, part.stripe, out);
        }
        let down = Purpose { way: Way::Demote, ..out };
        let begun = match self.copy_start(now, id, part.stripe, down) {
            Err(NoCopy::NoRoom) if !self.segments.disks().is_empty() => {
                self.copy_start(now, id, part.stripe, out)
            }
            begun => begun,
        };
        let waits = &mut self.segments.book_mut(part.segment).waits;
        match begun {
            Ok(()) => waits.taken(now),
            Err(NoCopy::Later) if !waits.may_wait(now) => return Err(NoCopy::NoRoom),
            Err(_) => {}
        }
        begun
    }

    /// A place on a disk, or in memory of a host for what VRAM lets go of; near the replica `near` if
    /// something there takes it.
    pub(super) fn reserve_below(
        &mut self,
        now: Now,
        id: EntryId,
        stripe: u8,
        rivals: &[Part],
        (medium, near): (Medium, Option<Part>),
    ) -> Result<Part, NoCopy> {
        let entry = self.objects.entry(id);
        let (tenant, bytes) = (entry.tenant, entry.extent_bytes(stripe));
        let node = |part: &Part| self.segments.book(part.segment).offer.node;
        let avoid: Vec<NodeId> = rivals.iter().map(node).collect();
        let near = near.as_ref().map(node);
        // Memory that puts would not miss first, wherever it is: there nobody is evicted for it.
        let what = (Some(tenant), bytes);
        let spare = medium == Medium::Dram;
        let found = match self.taker(now, (medium, spare), what, near, &avoid) {
            Err(NoCopy::NoRoom) if spare => self.taker(now, (medium, false), what, near, &avoid),
            found => found,
        };
        let reserved =
            found.map(|segment| (segment, self.segments.book_mut(segment).reserve(bytes, NOBODY)));
        match reserved {
            Ok((segment, Some((slot, generation, allocation)))) => {
                self.segments.refresh(segment);
                Ok(Part::copying(segment, slot, generation, allocation, stripe))
            }
            Err(NoCopy::Later) => Err(NoCopy::Later),
            _ if medium == Medium::Dram => {
                Err(self.make_room_below(now, (tenant, bytes), near, &avoid))
            }
            _ => Err(NoCopy::NoRoom),
        }
    }

    /// No memory of a host has room for a victim of VRAM: orders evictions there. What the victim does
    /// meanwhile.
    fn make_room_below(
        &mut self,
        now: Now,
        (tenant, bytes): (TenantId, u64),
        near: Option<NodeId>,
        avoid: &[NodeId],
    ) -> NoCopy {
        let mut targets = near.map_or(Vec::new(), |node| self.of_node_on(node, Medium::Dram));
        targets.extend(self.drawn(Medium::Dram));
        targets.retain(|index| {
            let load = &self.segments.loads[usize::from(*index)];
            let ours = load.tenant.is_none_or(|only| only == tenant);
            let taken = avoid.contains(&load.node);
            // One that refuses copies gets none when it has room, either.
            let closed = self.segments.book(*index).intake.closed_until > now;
            load.open && ours && !taken && !closed && load.capacity >= bytes
        });
        for index in targets.into_iter().take(TARGETS_MAX) {
            if self.reclaim(now, index, bytes, (LOOKS_MAX, Cause::Watermark)) == Reclaim::Ordered {
                return NoCopy::Later;
            }
        }
        NoCopy::NoRoom
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Now {
        Now(n * 1_000_000)
    }

    #[test]
    fn victims_wait_for_a_while_and_no_longer() {
        let mut waits = Waits::default();
        assert!(waits.may_wait(ms(5000)));
        assert!(waits.may_wait(ms(5400)));
        assert!(!waits.may_wait(ms(5500)));
        // Nor do the next ones, until one is taken.
        assert!(!waits.may_wait(ms(6400)));
        waits.taken(ms(6410));
        assert!(waits.may_wait(ms(6500)));
        assert!(!waits.may_wait(ms(6950)));
        // A wait of long ago says nothing.
        assert!(waits.may_wait(ms(9000)));
    }
}
