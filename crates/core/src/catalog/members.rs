//! Members: nodes mount segments, announce what they hold, send heartbeats and leave.

use super::Catalog;
use super::drain::Drain;
use super::objects::{Entry, EntryId, Part, PartState, Parts, SegmentIndex, Stage};
use super::room::{Room, Told};
use super::segments::{Book, NOBODY, Phase, SlotBook};
use super::trust::Trust;
use crate::canary::{self, Canary};
use crate::error::MountError;
use crate::extent::Extent;
use crate::ids::{GroupId, Incarnation, LeaderEpoch, NodeId, SegmentId};
use crate::label::StripeOf;
use crate::lease;
use crate::limits::{EXTENT_ALIGN, SEGMENTS_PER_NODE_MAX};
use crate::plan::{Action, Announced, AnnouncedObject, Keep, SegmentOffer, Striping};
use crate::seal::{self, Seal};
use crate::time::Now;
use std::time::Duration;

/// A node that has mounted segments.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub last_heard: Now,
    pub segments: Vec<SegmentId>,
    /// Not heard for a while: gets no new objects.
    pub silent: bool,
    /// Not heard since its serving lease has surely ended.
    pub lapsed: bool,
    /// Bytes that were promoted into its memory and took the place of others.
    pub displaced: u64,
}

/// What a mounted segment must do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mounted {
    /// The master holds its book already.
    Known,
    /// The master wants to hear what it holds, from slot 0 on.
    Announce,
}

/// Everything that a segment announced, not yet in order.
#[derive(Debug)]
pub struct AllTold {
    segment: SegmentId,
    round: u64,
    told: Told,
}

impl AllTold {
    /// Puts it in order; the long part of an announcement, and no part of the catalog.
    pub fn build(self) -> Result<Opening, MountError> {
        let Self { segment, round, told } = self;
        let allocator = match told {
            Told::Ranges(runs) => {
                let ranges = runs.build();
                let ranges = ranges.map_err(|slot| MountError::BadAnnouncement { slot })?;
                Some(Room::Ranges(Box::new(ranges)))
            }
            Told::Bytes => None,
        };
        Ok(Opening { segment, round, allocator })
    }
}

/// A segment that can be opened.
#[derive(Debug)]
pub struct Opening {
    segment: SegmentId,
    round: u64,
    /// `None`: the book has counted all along.
    allocator: Option<Room>,
}

impl Catalog {
    /// A node offers segments. Idempotent by (segment, incarnation); a later incarnation replaces
    /// an earlier one (M8). The answers stand in the order of the offers.
    pub fn mount(
        &mut self,
        now: Now,
        node: NodeId,
        offers: &[SegmentOffer],
    ) -> Result<Vec<Mounted>, MountError> {
        for offer in offers {
            self.check_offer(node, offer)?;
        }
        let member = self.nodes.entry(node).or_insert_with(|| Member {
            last_heard: now,
            segments: Vec::new(),
            silent: false,
            lapsed: false,
            displaced: 0,
        });
        for offer in offers {
            if !member.segments.contains(&offer.segment) {
                if member.segments.len() >= SEGMENTS_PER_NODE_MAX {
                    let count = member.segments.len() as u32;
                    return Err(MountError::TooManySegments { count });
                }
                member.segments.push(offer.segment);
            }
        }
        let last_heard = std::mem::replace(&mut member.last_heard, now);
        self.leave_behind(node, last_heard, offers);
        Ok(offers.iter().map(|offer| self.mount_one(last_heard, offer)).collect())
    }

    /// A process that mounts the first segment of its node anew offers all that it has: what an earlier one
    /// had beside it is gone with that one. (Segments that are added to a running node come alone.)
    fn leave_behind(&mut self, node: NodeId, last_heard: Now, offers: &[SegmentOffer]) {
        let mounted = |catalog: &Self, id| {
            catalog.segments.find(id).map(|index| catalog.segments.book(index).offer.incarnation)
        };
        let first = offers.iter().find(|offer| offer.segment == SegmentId::of(node, 0));
        // The first segment of the earlier process may be gone already: its guard has reported its death.
        let anew = |offer: &&SegmentOffer| {
            mounted(self, offer.segment).is_none_or(|before| before < offer.incarnation)
        };
        let Some(now_at) = first.filter(anew).map(|offer| offer.incarnation) else { return };
        let offered = |id: &SegmentId| offers.iter().any(|offer| offer.segment == *id);
        let Some(member) = self.nodes.get(&node) else { return };
        let mut gone: Vec<SegmentId> =
            member.segments.iter().copied().filter(|id| !offered(id)).collect();
        gone.retain(|id| mounted(self, *id).is_none_or(|before| before < now_at));
        let fenced_at = last_heard.plus(lease::guarded(self.config.serve_lease));
        for index in gone.iter().filter_map(|id| self.segments.find(*id)).collect::<Vec<_>>() {
            self.leave(index, fenced_at);
        }
        self.forget_segments(node, &gone);
    }

    fn check_offer(&self, node: NodeId, offer: &SegmentOffer) -> Result<(), MountError> {
        let aligned = offer.bytes.is_multiple_of(EXTENT_ALIGN);
        // The medium stands in the id, where whoever holds a locator looks for it.
        let other_medium = offer.medium != offer.segment.medium();
        let odd = !aligned || other_medium || offer.node != node;
        if offer.bytes == 0 || offer.slots == 0 || odd {
            return Err(MountError::BadOffer { bytes: offer.bytes, slots: offer.slots });
        }
        if let Some(index) = self.segments.find(offer.segment) {
            let known = &self.segments.book(index).offer;
            if known.node != node {
                return Err(MountError::ForeignSegment);
            }
        }
        let last = self.segments.last_incarnation(offer.segment);
        if let Some((last, left)) = last
            && (offer.incarnation < last || left && offer.incarnation == last)
        {
            // The next start must be later than all that the node has mounted, also what is not offered.
            let member = self.nodes.get(&node);
            let mounts = member.iter().flat_map(|member| &member.segments);
            let mounts = mounts.filter_map(|id| self.segments.last_incarnation(*id));
            let last = mounts.fold(last, |last, (mount, _)| last.max(mount));
            let over = self.check_current(node, offer.incarnation).is_ok();
            return Err(MountError::StaleIncarnation { last, over });
        }
        Ok(())
    }

    fn mount_one(&mut self, last_heard: Now, offer: &SegmentOffer) -> Mounted {
        if let Some(index) = self.segments.find(offer.segment) {
            let book = self.segments.book_mut(index);
            if book.offer.incarnation == offer.incarnation {
                // The serving lease may have ended since the first offer of this mount.
                book.offer.evidence.lapsed |= offer.evidence.lapsed;
                if !book.is_announcing() {
                    return Mounted::Known;
                }
                // What it has told stays known and readable. It tells all of it again, and each slot is
                // compared when its page comes, so this call costs nothing per slot (G13).
                self.announcements += 1;
                let round = self.announcements;
                self.segments.book_mut(index).tell_again(round);
                return Mounted::Announce;
            }
            // Readers of shared memory may hold the old mapping until its owner's serving lease ends, which
            // was granted when it was last heard at the latest (R10).
            let fenced_at = last_heard.plus(lease::guarded(self.config.serve_lease));
            self.leave(index, fenced_at);
        }
        self.announcements += 1;
        let trust = self.trust_of(offer);
        let book = Book::new(offer.clone(), self.config.policy, self.announcements, trust);
        self.segments.add(book);
        Mounted::Announce
    }

    /// Refuses a process that has mounted `incarnation` at the latest if another one has taken the segments of
    /// `node` over since: it may not serve them.
    pub fn check_current(&self, node: NodeId, incarnation: Incarnation) -> Result<(), MountError> {
        let Some(member) = self.nodes.get(&node) else { return Ok(()) };
        let mounts = member.segments.iter().filter_map(|id| self.segments.find(*id));
        let last = mounts.map(|index| self.segments.book(index).offer.incarnation).max();
        match last.filter(|last| *last > incarnation) {
            Some(last) => Err(MountError::StaleIncarnation { last, over: false }),
            None => Ok(()),
        }
    }

    /// Whether pages that were meant for the leader of `epoch` are for this one. A mount may arrive here
    /// late, when its node has followed another leader since: what that one ordered behind the pages would
    /// be in nobody's books.
    pub fn is_told(&self, epoch: LeaderEpoch) -> Result<(), MountError> {
        if epoch == self.epoch { Ok(()) } else { Err(MountError::UnknownNode) }
    }

    /// One page of what a segment holds, and after the `last` the segment is open: the three steps
    /// below in one, for callers that hold nobody up.
    pub fn announce(
        &mut self,
        now: Now,
        segment: SegmentId,
        incarnation: Incarnation,
        page: &[Announced],
        last: bool,
    ) -> Result<(), MountError> {
        self.announce_page(now, segment, incarnation, page)?;
        if last && let Some(told) = self.all_told(segment, incarnation)? {
            self.open_segment(told.build()?)?;
        }
        Ok(())
    }

    /// One page of what a segment holds, in slot order without gaps. Whoever tells is heard, so a long
    /// announcement does not lose its node; but only [`Catalog::open_segment`] makes it alive.
    pub fn announce_page(
        &mut self,
        now: Now,
        segment: SegmentId,
        incarnation: Incarnation,
        page: &[Announced],
    ) -> Result<(), MountError> {
        let index = self.announcing(segment, incarnation)?;
        let book = self.segments.book(index);
        if book.is_open() {
            return Ok(());
        }
        let node = book.offer.node;
        let holds = |slot: &Announced| slot.life.as_ref().is_some_and(|l| l.object.is_some());
        if !book.is_disk() {
            // Looked at for each page: the wait may end meanwhile, and keys are struck from then on.
            let trust =
                if self.awaited(&book.offer) { Trust::All } else { self.trust_of(&book.offer) };
            self.segments.book_mut(index).trust = trust;
        }
        let refused = self.segments.book(index).refuses();
        if refused && page.iter().any(holds) {
            let fenced_at = now.plus(lease::guarded(self.config.serve_lease));
            self.leave(index, fenced_at);
            self.forget_segments(node, &[segment]);
            return Err(MountError::StaleIncarnation { last: incarnation, over: true });
        }
        if let Some(member) = self.nodes.get_mut(&node) {
            member.last_heard = now;
        }
        for announced in page {
            self.announced(now, index, announced)?;
        }
        Ok(())
    }

    /// The last page was taken: hands out what was told, to be put in order without the catalog.
    /// `None` if the segment is open already.
    pub fn all_told(
        &mut self,
        segment: SegmentId,
        incarnation: Incarnation,
    ) -> Result<Option<AllTold>, MountError> {
        let index = self.announcing(segment, incarnation)?;
        let book = self.segments.book_mut(index);
        if book.is_open() {
            return Ok(None);
        }
        if !book.is_disk() && book.told_slots < book.slots.len() {
            // It told of more before: a slot that was used once is told for ever.
            return Err(MountError::BadAnnouncement { slot: book.told_slots });
        }
        // Taken before, by a page that came twice: its owner mounts again and tells all anew.
        let told = book.told.take().ok_or(MountError::UnknownNode)?;
        Ok(Some(AllTold { segment, round: book.round, told }))
    }

    fn announcing(
        &self,
        segment: SegmentId,
        incarnation: Incarnation,
    ) -> Result<SegmentIndex, MountError> {
        let index = self.segments.find(segment).ok_or(MountError::UnknownNode)?;
        let last = self.segments.book(index).offer.incarnation;
        if last != incarnation {
            return Err(MountError::StaleIncarnation { last, over: false });
        }
        Ok(index)
    }

    fn announced(
        &mut self,
        now: Now,
        index: SegmentIndex,
        announced: &Announced,
    ) -> Result<(), MountError> {
        let bad = MountError::BadAnnouncement { slot: announced.slot.0 };
        let book = self.segments.book(index);
        if book.is_disk() && announced.slot.0 < book.slots.len() {
            self.disk_told_again(now, index, announced);
            return Ok(());
        }
        // A page that came twice.
        if announced.slot.0 < book.told_slots {
            return Ok(());
        }
        if announced.slot.0 != book.told_slots || announced.slot.0 >= book.offer.slots {
            return Err(bad);
        }
        if announced.slot.0 < book.slots.len() && self.memory_told_again(now, index, announced)? {
            return Ok(());
        }
        let book = self.segments.book_mut(index);
        let Some(told) = &mut book.told else { return Err(bad) };
        let fresh = SlotBook { generation: announced.generation, entry: NOBODY };
        match book.slots.get_mut(announced.slot.0) {
            Some(slot) => *slot = fresh,
            None => {
                book.slots.push(fresh);
            }
        }
        book.told_slots += 1;
        let Some(life) = &announced.life else {
            if announced.generation < crate::ids::Generation::MAX {
                book.free_slots.push(announced.slot);
            }
            return Ok(());
        };
        let Some(handle) = told.add(life.extent) else { return Err(bad) };
        book.allocator.count(life.extent);
        let part = Part {
            offset: life.extent.offset(),
            slot: announced.slot,
            generation: announced.generation,
            handle,
            segment: index,
            stripe: life.object.as_ref().map_or(0, AnnouncedObject::stripe),
            state: PartState::Here,
        };
        let early = book.early.remove(&(announced.slot, announced.generation));
        match &life.object {
            Some(object) if seal::extent_bytes(object.len) != life.extent.len() => Err(bad),
            Some(object) if !early => {
                self.announced_object(now, part, life.extent, object);
                Ok(())
            }
            // Being written, retiring or in quarantine: the owner frees the range. Readers with leases of an
            // earlier leader may still read a bad value in memory.
            _ => {
                let free_after_ms = lease::left_ms(now, self.granted_before());
                let on_disk = self.segments.is_disk(index);
                let action = if on_disk { Action::Abort } else { Action::Retire { free_after_ms } };
                self.order(now, &part, life.extent, action, (None, None));
                if on_disk {
                    self.unwanted(&part);
                }
                Ok(())
            }
        }
    }

    fn announced_object(&mut self, now: Now, part: Part, extent: Extent, told: &AnnouncedObject) {
        let lease_end = self.granted_before();
        let mut known = self.objects.find(told.label.name());
        let mut replaced = None;
        let doubted = !self.believes(part.segment, told);
        if doubted && known.is_none() {
            self.turn_away(now, &part, extent, told);
            return;
        }
        let kept = known.filter(|id| !doubted && self.is_placeholder(*id));
        if let Some(id) = kept {
            // The key waits for the end of another record, and has a value meanwhile.
            self.objects.hide(id);
            known = None;
        }
        if let Some(id) = known
            && !doubted
            && self.is_older(id, told)
            && !self.is_announcing(id)
        {
            // An upsert was cut short: the newer value stays, whoever told of the older one first.
            self.counters.announced_dropped += 1;
            self.objects.hide(id);
            replaced = known.take();
        }
        let id = match known {
            None => {
                let new = self.insert_announced(now, told, lease_end);
                if self.segments.is_disk(part.segment) {
                    self.remembered(told.label.name().hash().0);
                }
                if let Some(old) = replaced {
                    self.hold_key(old, new);
                    self.retire(now, old);
                }
                if let Some(kept) = kept {
                    self.hold_key(kept, new);
                }
                new
            }
            Some(id) if self.same_object(id, told) => {
                let entry = self.objects.entry_mut(id);
                entry.lease_end = entry.lease_end.max(lease_end);
                self.chain_leased(id);
                id
            }
            Some(id) => return self.other_value(now, id, &part, extent),
        };
        let entry = self.objects.entry_mut(id);
        if entry.parts.as_slice().is_empty() {
            entry.parts = Parts::One(part);
        } else {
            entry.parts.add(part);
        }
        if part.stripe > 0 {
            let seals = &mut entry.extra_mut().more_seals;
            seals[usize::from(part.stripe) - 1] = told.seal;
        } else {
            entry.seal = told.seal;
        }
        self.charge_part(id, &part);
        let entry = self.objects.entry(id);
        let (keep, covered) = (entry.keep(now), self.is_covered(part.segment, id));
        let book = self.segments.book_mut(part.segment);
        book.slots[part.slot.0].entry = id;
        book.live += 1;
        book.offer_victim(part.slot, covered, keep);
        if let (Keep::Soft { .. }, Some(extra)) = (keep, &entry.extra) {
            book.soft_ends.push_back((extra.soft_until, part.slot, part.generation));
        }
    }

    /// When the leases of earlier leaders have ended.
    pub(super) fn granted_before(&self) -> Now {
        if canary::on(Canary::NoTakeoverGrace) { Now(0) } else { self.grace_until }
    }

    /// M9: one value per key; what is known stays, and its key waits for the end of the other.
    fn other_value(&mut self, now: Now, id: EntryId, part: &Part, extent: Extent) {
        self.count_dropped(part);
        let free_after_ms = lease::left_ms(now, self.granted_before());
        let entry = self.objects.entry_mut(id);
        match &mut entry.stage {
            Stage::Removing(left) => *left += 1,
            _ => entry.extra_mut().orphans += 1,
        }
        let whose = (Some(id), Some(self.objects.entry(id).tenant));
        self.order(now, part, extent, Action::Retire { free_after_ms }, whose);
        self.unwanted(part);
    }

    /// An entry without parts yet, made of what an owner keeps beside a header.
    pub(super) fn insert_announced(
        &mut self,
        now: Now,
        told: &AnnouncedObject,
        lease_end: Now,
    ) -> EntryId {
        let label = &told.label;
        let mut entry = Entry {
            key: label.key.as_bytes().into(),
            hash: label.name().hash().0,
            object: told.object,
            len: told.len,
            seal: told.seal,
            lease_end,
            held_until: Now(0),
            parts: Parts::new(Vec::new()),
            tenant: label.tenant,
            stage: Stage::Ready,
            hidden: false,
            saved: false,
            extra: None,
        };
        let plain = label.keep == Keep::Normal
            && label.group == GroupId(0)
            && label.expire_ms == 0
            && label.copies == 1;
        if !plain || label.stripe.is_some() {
            let extra = entry.extra_mut();
            extra.copies = label.copies;
            extra.keep = label.keep;
            extra.group = label.group;
            extra.expire_ms = label.expire_ms;
            if let Keep::Soft { ttl_ms } = label.keep {
                extra.soft_until = now.plus(Duration::from_millis(ttl_ms.into()));
            }
        }
        if let Some(StripeOf { striping, .. }) = label.stripe {
            let extra = entry.extra_mut();
            extra.stripe_bytes = striping.stripe_bytes;
            extra.more_seals = vec![Seal::default(); striping.stripes() - 1].into();
            entry.len = striping.len;
        }
        let id = self.objects.insert(entry);
        self.chain_new(id);
        self.join_group(id);
        if label.stripe.is_some() {
            // The other stripes may be on nodes that have not told yet.
            let patience = lease::guarded(self.config.registration);
            self.lacks_stripes(id, now.plus(patience));
        }
        id
    }

    /// Whether a finished entry was stored before what is told now.
    fn is_older(&self, id: EntryId, told: &AnnouncedObject) -> bool {
        let entry = self.objects.entry(id);
        entry.stage == Stage::Ready && entry.object < told.object
    }

    fn same_object(&self, id: EntryId, told: &AnnouncedObject) -> bool {
        let entry = self.objects.entry(id);
        let striping = told.label.stripe.map_or(Striping::whole(told.len), |of| of.striping);
        let same = entry.object == told.object
            && entry.striping() == striping
            && entry.stage == Stage::Ready;
        let stripe = told.stripe();
        let mut parts = entry.parts.as_slice().iter();
        let told_before = parts.any(|part| part.stripe == stripe);
        let seal = match stripe {
            0 => entry.seal,
            stripe => entry.extra.as_ref().map_or(told.seal, |extra| {
                extra.more_seals.get(usize::from(stripe) - 1).copied().unwrap_or_default()
            }),
        };
        same && (!told_before || seal == told.seal)
    }

    /// All is told and in order: the segment takes part from here on.
    pub fn open_segment(&mut self, opening: Opening) -> Result<(), MountError> {
        let Opening { segment, round, allocator } = opening;
        let index = self.segments.find(segment).ok_or(MountError::UnknownNode)?;
        let book = self.segments.book_mut(index);
        // Its owner started over meanwhile.
        if book.round != round || !book.is_announcing() {
            return Err(MountError::UnknownNode);
        }
        if let Some(allocator) = allocator {
            book.allocator = allocator;
        }
        book.phase = Phase::Open;
        book.early.clear();
        let (node, wish) = (book.offer.node, book.wish.take());
        match wish {
            Some(mode) => book.drain = Some(Drain::new(book, mode)),
            None => self.segments.set_open(index, true),
        }
        self.returned(index);
        self.node_announced(node);
        self.look_for_missing_copies();
        Ok(())
    }

    fn node_announced(&mut self, node: NodeId) {
        let Some(rebuild) = &mut self.rebuild else { return };
        let member = &self.nodes[&node];
        let all_open = member.segments.iter().all(|segment| {
            self.segments.find(*segment).is_some_and(|i| self.segments.book(i).is_open())
        });
        if all_open && rebuild.announced(node) {
            self.end_rebuild();
        }
    }

    /// Whether this very mount of a segment is known. A farewell of an earlier one is out of date.
    pub fn mounts(&self, segment: SegmentId, incarnation: Incarnation) -> bool {
        let found = self.segments.find(segment);
        found.is_some_and(|index| self.segments.book(index).offer.incarnation == incarnation)
    }

    /// Whether this very mount takes part: everything that it holds was told.
    pub fn takes_part(&self, segment: SegmentId, incarnation: Incarnation) -> bool {
        let found = self.segments.find(segment).map(|index| self.segments.book(index));
        found.is_some_and(|book| book.offer.incarnation == incarnation && book.is_open())
    }

    /// Whether what this very mount holds can be read: it takes part, and its serving lease has not surely ended.
    pub fn serves(&self, segment: SegmentId, incarnation: Incarnation) -> bool {
        let found = self.segments.find(segment).map(|index| self.segments.book(index));
        self.takes_part(segment, incarnation) && found.is_some_and(|book| !book.lapsed)
    }

    /// A node gives its segments up. It has stopped serving them before it asks.
    pub fn unmount(&mut self, node: NodeId, segments: &[SegmentId]) {
        for segment in segments {
            let Some(index) = self.segments.find(*segment) else { continue };
            if self.segments.book(index).offer.node == node {
                self.leave(index, self.last_tick);
            }
        }
        self.forget_segments(node, segments);
    }

    /// Nobody can read what an earlier mount left behind: its process is dead, and so is every mapping
    /// of it. Keys that wait for its fence are free.
    pub fn unreadable(&mut self, segment: SegmentId, incarnation: Incarnation) {
        let over = self.last_tick;
        for index in self.segments.indexes() {
            let book = self.segments.book_mut(index);
            let same = (book.offer.segment, book.offer.incarnation) == (segment, incarnation);
            if let (true, Phase::Leaving { fenced_at, .. }) = (same, &mut book.phase) {
                *fenced_at = over.min(*fenced_at);
            }
        }
    }

    /// These segments belong to no member any more; a member without segments is none.
    fn forget_segments(&mut self, node: NodeId, segments: &[SegmentId]) {
        if let Some(member) = self.nodes.get_mut(&node) {
            member.segments.retain(|segment| !segments.contains(segment));
            if member.segments.is_empty() {
                self.nodes.remove(&node);
            }
        }
    }

    /// A node is alive.
    pub fn heartbeat(&mut self, now: Now, node: NodeId) -> Result<(), MountError> {
        let member = self.nodes.get_mut(&node).ok_or(MountError::UnknownNode)?;
        member.last_heard = now;
        let (silent, lapsed) = (std::mem::take(&mut member.silent), member.lapsed);
        if lapsed {
            self.set_lapsed(node, false);
        }
        if silent {
            self.set_node_open(node, true);
        }
        Ok(())
    }

    pub(super) fn set_node_open(&mut self, node: NodeId, open: bool) {
        let member = self.nodes[&node].clone();
        for segment in &member.segments {
            if let Some(index) = self.segments.find(*segment)
                && self.segments.book(index).is_open()
            {
                let open = open && self.segments.book(index).drain.is_none();
                self.segments.set_open(index, open);
            }
        }
    }

    /// Closes a segment for good; from `fenced_at` on nobody can read it, and it is swept out.
    pub(super) fn leave(&mut self, index: SegmentIndex, fenced_at: Now) {
        self.segments.set_open(index, false);
        let book = self.segments.book_mut(index);
        if let Phase::Leaving { .. } = book.phase {
            return;
        }
        self.remember(index, fenced_at);
        let book = self.segments.book_mut(index);
        book.phase = Phase::Leaving { fenced_at, next: 0 };
        self.segments.retire_id(index);
        self.look_for_missing_copies();
    }

    /// Whether a node is mounted.
    pub fn knows(&self, node: NodeId) -> bool {
        self.nodes.contains_key(&node)
    }

    /// When a node was heard for the last time.
    pub fn last_heard(&self, node: NodeId) -> Option<Now> {
        self.nodes.get(&node).map(|member| member.last_heard)
    }

    /// Nodes that are mounted.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.nodes.keys().copied()
    }

    /// All segments as an operator sees them.
    pub fn segments(&self) -> Vec<super::SegmentStat> {
        self.segments.stats()
    }
}
