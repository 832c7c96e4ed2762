//! offload: copies on disks, so that memory can be given up without losing what it holds.
//!
//! A disk is a segment, and an offload a copy into it. When copies are made, the policy says; whatever it
//! says, a victim that has no other copy is moved rather than dropped, while a disk takes it (what VRAM lets
//! go of moves to memory of a host instead: `demote.rs`). A disk does
//! not take more than its budget at a time; whoever needs the room waits for it, which is back-pressure. One
//! that refuses, or moves nothing for [`PATIENCE`], is left alone for a while, and victims are dropped
//! meanwhile: a cache that stands still is worse than one that forgets.
//!
//! What must stay true: an object that was to be offloaded ends up stored, or stays where it was, and is a
//! candidate as before (S8).

use super::Catalog;
use super::copy::{NoCopy, Purpose, Way};
use super::objects::{Entry, EntryId, PartState, SegmentIndex, Stage};
use super::segments::NOBODY;
use crate::ids::{NodeId, ObjectId, TenantId};
use crate::plan::Medium;
use crate::rng::Rng;
use crate::time::Now;
use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Objects that wait for their copy on a disk; more are left to the watermark and to evictions.
const WANTED_MAX: usize = 1 << 16;
/// Those that one call looks at.
const WANTED_LOOKS_MAX: usize = 256;
/// Steps of the walks ahead of evictions in one call, over all segments.
const AHEAD_MAX: usize = 1024;
/// Values of one chain that a walk looks at before it goes on to the next one.
const CLIMB_MAX: u32 = 64;
/// A walk that found nothing to do rests for this long.
const REST: Duration = Duration::from_secs(1);
/// Disks of other nodes, or segments of their memory, that are looked at for one copy.
const DRAWS: usize = 8;
/// A disk that has its budget and moves nothing for this long does not take anything any more.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// For how long a disk that refuses is left alone at first, and at most.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// The smallest thing that a disk can take.
const CRUMB: u64 = 64;

/// When copies on disks are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offload {
    /// Never: what is evicted is gone, from VRAM too.
    Off,
    /// When a victim is chosen.
    Evict,
    /// Ahead of evictions, in segments that are fuller than [`super::Config::offload_permille`].
    Watermark,
    /// When a put has ended.
    Eager,
}

impl Offload {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Off, Self::Evict, Self::Watermark, Self::Eager];

    /// Its name in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Evict => "evict",
            Self::Watermark => "watermark",
            Self::Eager => "eager",
        }
    }
}

impl fmt::Display for Offload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// No policy has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no offload policy {0:?}; choose eager, watermark, evict or off")]
pub struct UnknownOffload(pub String);

impl FromStr for Offload {
    type Err = UnknownOffload;

    fn from_str(name: &str) -> Result<Self, UnknownOffload> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| UnknownOffload(name.to_owned()))
    }
}

/// What is on its way to disks, beside the copies.
#[derive(Debug)]
pub(super) struct Offloads {
    /// Objects that shall have a copy on a disk, oldest first.
    wanted: VecDeque<(EntryId, ObjectId)>,
    /// Where the next slice of the walks begins.
    next: usize,
    rng: Rng,
}

impl Offloads {
    pub(super) fn new(seed: u64) -> Self {
        Self { wanted: VecDeque::new(), next: 0, rng: Rng::stream(seed, "offload") }
    }
}

impl Catalog {
    /// A put has ended: its object wants to be on a disk, by its own wish or by the policy.
    pub(super) fn offload_ended(&mut self, id: EntryId) {
        let entry = self.objects.entry(id);
        let wished = entry.on_disk() > 0 || self.config.offload == Offload::Eager;
        let disks = !self.segments.disks().is_empty();
        if wished && disks && self.offloads.wanted.len() < WANTED_MAX {
            self.offloads.wanted.push_back((id, entry.object));
        }
    }

    /// A slice of the copies that shall be on disks.
    pub(super) fn offload(&mut self, now: Now) {
        if self.segments.disks().is_empty() {
            return;
        }
        self.offload_wanted(now);
        if let Offload::Watermark | Offload::Eager = self.config.offload {
            let indexes = self.segments.indexes();
            let start = self.offloads.next % indexes.len().max(1);
            let mut steps = AHEAD_MAX;
            for at in 0..indexes.len() {
                self.offloads.next = start + at;
                if steps == 0 {
                    return;
                }
                let index = indexes[(start + at) % indexes.len()];
                steps = self.offload_ahead(now, index, steps);
            }
        }
    }

    fn offload_wanted(&mut self, now: Now) {
        for _ in 0..WANTED_LOOKS_MAX {
            let Some(&(id, object)) = self.offloads.wanted.front() else { return };
            let same = |entry: &Entry| entry.object == object && entry.stage == Stage::Ready;
            if self.objects.get(id).is_some_and(same)
                && self.offload_object(now, id) == Err(NoCopy::Later)
            {
                return;
            }
            self.offloads.wanted.pop_front();
        }
    }

    /// Starts the copies on disks that an object lacks.
    fn offload_object(&mut self, now: Now, id: EntryId) -> Result<(), NoCopy> {
        let entry = self.objects.entry(id);
        let wished = entry.on_disk().max(1);
        for stripe in 0..entry.stripes() as u8 {
            for _ in self.on_disks(self.objects.entry(id), stripe)..wished {
                let purpose = Purpose { way: Way::Down, ..Purpose::default() };
                self.copy_start(now, id, stripe, purpose)?;
            }
        }
        self.objects.entry_mut(id).saved = true;
        Ok(())
    }

    /// Copies of a stripe that are on disks, or on their way.
    pub(super) fn on_disks(&self, entry: &Entry, stripe: u8) -> usize {
        let parts = entry.parts.as_slice().iter().filter(|part| part.stripe == stripe);
        parts.filter(|part| self.segments.is_disk(part.segment)).count()
    }

    /// A slice of the walk ahead of evictions, in a segment that is fuller than it should be; the steps
    /// that are left.
    fn offload_ahead(&mut self, now: Now, index: SegmentIndex, steps: usize) -> usize {
        let book = self.segments.book(index);
        // What VRAM holds goes to memory of a host when it goes, and is met again there.
        if book.offer.medium != Medium::Dram || !book.is_open() || book.ahead.rests_until > now {
            return steps;
        }
        if book.used_bytes() <= book.share(self.config.offload_permille) {
            return steps;
        }
        let node = book.offer.node;
        let mut look = true;
        // What goes after the end of a chain: that before it, which it alone holds.
        let (mut held, mut climbed) = (None, 0);
        for left in (0..steps).rev() {
            // Looked at first, because the walk does not come back to one that it has passed.
            let taken = |catalog: &mut Self| {
                catalog.taker(now, (Medium::Ssd, false), (None, CRUMB), Some(node), &[])
            };
            if look && taken(self).is_err() {
                return left;
            }
            look = false;
            let (id, part) = if let Some(id) = held.take() {
                (id, self.objects.entry(id).parts.as_slice().first().copied())
            } else {
                climbed = 0;
                let book = self.segments.book_mut(index);
                let Some(slot) = book.policy.ahead() else {
                    if std::mem::take(&mut book.ahead.begun) == 0 {
                        book.ahead.rests_until = now.plus(REST);
                    }
                    return left;
                };
                let id = book.slots[slot.0].entry;
                if id == NOBODY {
                    continue;
                }
                (id, Some(self.objects.entry(id).part(index, slot)))
            };
            climbed += 1;
            held = self.held_by(id).filter(|_| climbed < CLIMB_MAX);
            let (entry, Some(part)) = (self.objects.entry(id), part) else { continue };
            let lacks = !entry.saved && self.on_disks(entry, part.stripe) == 0;
            // What cannot go now is met again, at the latest when it is evicted.
            if part.state == PartState::Here && lacks && self.offload_object(now, id).is_ok() {
                self.segments.book_mut(index).ahead.begun += 1;
                look = true;
            }
        }
        0
    }

    /// The segment of a medium that takes so many bytes of a tenant, or of anybody: of this node, or else
    /// any; the least busy one. `spare`: only where it takes no room that puts would miss.
    pub(super) fn taker(
        &mut self,
        now: Now,
        (medium, spare): (Medium, bool),
        what: (Option<TenantId>, u64),
        near: Option<NodeId>,
        avoid: &[NodeId],
    ) -> Result<SegmentIndex, NoCopy> {
        let room = |catalog: &Self, index: &SegmentIndex| {
            let book = catalog.segments.book(*index);
            let used = book.used_bytes().saturating_add(what.1);
            !spare || used <= book.share(catalog.config.low_permille)
        };
        let mut own = near.map_or(Vec::new(), |node| self.of_node_on(node, medium));
        own.retain(|index| room(self, index));
        let near = self.least_busy(now, what, &own, avoid);
        if near.is_ok() {
            return near;
        }
        let mut drawn = self.drawn(medium);
        drawn.retain(|index| room(self, index));
        let far = self.least_busy(now, what, &drawn, avoid);
        match (near, far) {
            (_, Ok(index)) => Ok(index),
            (Err(NoCopy::Later), _) | (_, Err(NoCopy::Later)) => Err(NoCopy::Later),
            (_, refused) => refused,
        }
    }

    /// Segments of a node on a medium.
    pub(super) fn of_node_on(&self, node: NodeId, medium: Medium) -> Vec<SegmentIndex> {
        let segments = self.nodes.get(&node).into_iter().flat_map(|member| &member.segments);
        let found = segments.filter(|id| id.medium() == medium);
        found.filter_map(|id| self.segments.find(*id)).collect()
    }

    /// All open segments of a medium, or some of them where there are many.
    pub(super) fn drawn(&mut self, medium: Medium) -> Vec<SegmentIndex> {
        let open = &self.segments.open_on(medium).segments;
        if open.len() <= DRAWS {
            return open.clone();
        }
        let rng = &mut self.offloads.rng;
        (0..DRAWS).map(|_| open[rng.below(open.len() as u64) as usize]).collect()
    }

    fn least_busy(
        &self,
        now: Now,
        (tenant, bytes): (Option<TenantId>, u64),
        segments: &[SegmentIndex],
        avoid: &[NodeId],
    ) -> Result<SegmentIndex, NoCopy> {
        let mut found = Err(NoCopy::NoRoom);
        let mut least = (u64::MAX, u64::MAX);
        for &index in segments {
            let book = self.segments.book(index);
            if avoid.contains(&book.offer.node) {
                continue;
            }
            match self.takes(now, index, tenant, bytes) {
                Ok(()) => {
                    let load = (book.intake.coming_bytes, book.used_bytes());
                    if load < least || found.is_err() {
                        (least, found) = (load, Ok(index));
                    }
                }
                Err(NoCopy::Later) if found.is_err() => found = Err(NoCopy::Later),
                Err(_) => {}
            }
        }
        found
    }

    /// Whether a segment takes so many bytes from above now. `Later`: it is at work with as much as it may
    /// have.
    pub(super) fn takes(
        &self,
        now: Now,
        index: SegmentIndex,
        tenant: Option<TenantId>,
        bytes: u64,
    ) -> Result<(), NoCopy> {
        let (load, book) = (self.segments.loads[usize::from(index)], self.segments.book(index));
        let foreign = load.tenant.zip(tenant).is_some_and(|(only, asks)| only != asks);
        let slots = !book.free_slots.is_empty() || book.slots.len() < book.offer.slots;
        let intake = &book.intake;
        if !load.open || foreign || load.free < bytes || !slots || intake.closed_until > now {
            return Err(NoCopy::NoRoom);
        }
        let most = self.config.offload_bytes_per_disk_max;
        let full = intake.coming >= self.config.offloads_per_disk_max
            || intake.coming > 0 && intake.coming_bytes.saturating_add(bytes) > most;
        if !full {
            return Ok(());
        }
        let hangs = now.since(intake.moved_at) > PATIENCE;
        Err(if hangs { NoCopy::NoRoom } else { NoCopy::Later })
    }

    /// A copy that was moved down was taken.
    pub(super) fn taken(&mut self, now: Now, index: SegmentIndex) {
        let intake = &mut self.segments.book_mut(index).intake;
        intake.moved_at = now;
        intake.pause = Duration::ZERO;
    }

    /// A copy that was moved down was refused, or its time let pass: the segment is left alone for a while,
    /// and longer each time. Those that were under way when it refused the first one count as one refusal.
    pub(super) fn refused(&mut self, now: Now, index: SegmentIndex) {
        self.counters.offloads_refused += 1;
        let intake = &mut self.segments.book_mut(index).intake;
        if intake.closed_until <= now {
            intake.pause = (intake.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
            intake.closed_until = now.plus(intake.pause);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_have_names() {
        for policy in Offload::ALL {
            assert_eq!(policy.name().parse(), Ok(policy));
        }
        let refused = "never".parse::<Offload>().unwrap_err();
        assert!(refused.to_string().contains("eager, watermark, evict or off"));
    }
}
