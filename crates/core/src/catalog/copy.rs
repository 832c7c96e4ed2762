//! copy: a replica more, fetched by its new owner from an old one.
//!
//! A copy is a part of its entry from the start, so that whatever ends the object ends the copy too:
//! a remove waits for its owner's word as for any other, and no copy outlives its object. Until the
//! owner says that it is published, it can be neither read nor evicted. A copy that fails, or takes
//! too long, is given up like a copy of a put that is planned anew: the key is not free before its
//! owner has answered for it (G6).
//!
//! A copy to a disk has a budget of its own, so that a slow disk holds up nothing but itself: `offload.rs`. So
//! has what VRAM lets go of: `demote.rs`.

use super::Catalog;
use super::objects::{Entry, EntryId, Part, PartState, SegmentIndex, Stage};
use crate::copy::{CopyDone, CopyOrder};
use crate::ids::{Generation, NodeId, ObjectId, PutToken, SegmentId, Slot};
use crate::key::Key;
use crate::label::{Label, StripeOf};
use crate::lease;
use crate::limits::REPLICAS_MAX;
use crate::plan::{Action, Keep, Locator, Medium};
use crate::time::Now;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Copies given up in one tick because their time is over.
const EXPIRED_MAX: usize = 256;

/// Copies that are under way.
#[derive(Debug, Default)]
pub(super) struct Copies {
    running: BTreeMap<(SegmentIndex, Slot), Running>,
    /// When each is given up, in the order of their starts.
    ends: VecDeque<(Now, SegmentIndex, Slot, Generation)>,
    /// When each is ordered again, in the order of the last time.
    repeats: VecDeque<(Now, SegmentIndex, Slot, Generation)>,
    /// How many of them have no budget of their own.
    to_memory: usize,
    /// Number and bytes of those by the node that fetches.
    pub(super) by_node: BTreeMap<NodeId, (u32, u64)>,
    outbox: Vec<(NodeId, CopyOrder)>,
}

/// One copy that is under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Running {
    entry: EntryId,
    generation: Generation,
    node: NodeId,
    bytes: u64,
    /// When it is given up.
    until: Now,
    /// The replica that goes when the copy is there.
    leaving: Option<Part>,
    /// That one was chosen to be evicted, and waits for this.
    victim: bool,
    /// What it goes to.
    to: Medium,
    /// The segment that takes it counts it: it goes to a disk, or down from VRAM.
    booked: bool,
    /// It brings into memory what was on disks only.
    promotes: bool,
}

/// What a copy is for: where it may go, and what may make room for it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Purpose {
    /// This segment and no other.
    pub to: Option<SegmentId>,
    /// The replica that the copy takes the place of.
    pub leaving: Option<Part>,
    /// Only where it takes no room that puts would miss.
    pub spare_room: bool,
    /// Others may be evicted for it.
    pub make_room: bool,
    /// If it goes to memory, to VRAM: only what takes the place of a replica there may.
    pub vram: bool,
    /// Which way it goes.
    pub way: Way,
}

/// Which way a copy goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Way {
    /// To memory.
    #[default]
    Memory,
    /// To memory, from disks that alone had it.
    Up,
    /// To a disk; near the replica that leaves, or the first that there is.
    Down,
    /// The same, and the replica that leaves was chosen to be evicted, and is no candidate meanwhile.
    Out,
    /// To memory of a host, from VRAM, where the replica that leaves was chosen to be evicted.
    Demote,
}

impl Way {
    const fn is_victim(self) -> bool {
        matches!(self, Self::Out | Self::Demote)
    }
}

impl Purpose {
    /// What the copy goes to.
    fn medium(&self) -> Medium {
        match (self.to, self.way) {
            (Some(to), _) => to.medium(),
            (None, Way::Down | Way::Out) => Medium::Ssd,
            (None, Way::Memory) if self.vram => Medium::Vram,
            (None, Way::Memory | Way::Up | Way::Demote) => Medium::Dram,
        }
    }
}

/// Why no copy was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoCopy {
    /// Enough copies are under way, or room is being made: later.
    Later,
    /// Nobody has room for it.
    NoRoom,
    /// It cannot be read anywhere, or has as many copies as are possible.
    Impossible,
}

impl Copies {
    pub(super) fn has_orders(&self) -> bool {
        !self.outbox.is_empty()
    }

    pub(super) fn take_orders(&mut self) -> Vec<(NodeId, CopyOrder)> {
        std::mem::take(&mut self.outbox)
    }

    /// A copy is over, well or not; what it was.
    fn end(&mut self, segment: SegmentIndex, slot: Slot) -> Option<Running> {
        let ended = self.running.remove(&(segment, slot))?;
        if ended.booked {
            return Some(ended);
        }
        self.to_memory -= 1;
        let (count, bytes) = self.by_node.get_mut(&ended.node).expect("counted when it began");
        *count -= 1;
        *bytes -= ended.bytes;
        if *count == 0 {
            self.by_node.remove(&ended.node);
        }
        Some(ended)
    }

    /// A segment was swept out, and its index goes to the next that is mounted: nothing here may mean the
    /// old one any more.
    pub(super) fn forget(&mut self, gone: SegmentIndex) {
        self.ends.retain(|(_, segment, ..)| *segment != gone);
        self.repeats.retain(|(_, segment, ..)| *segment != gone);
        for copy in self.running.values_mut() {
            copy.leaving = copy.leaving.filter(|part| part.segment != gone);
        }
    }

    fn begin(&mut self, at: &Part, repeat_at: Now, copy: Running) {
        if !copy.booked {
            self.to_memory += 1;
            let (count, bytes) = self.by_node.entry(copy.node).or_default();
            *count += 1;
            *bytes += copy.bytes;
        }
        self.running.insert((at.segment, at.slot), copy);
        self.ends.push_back((copy.until, at.segment, at.slot, at.generation));
        self.repeats.push_back((repeat_at, at.segment, at.slot, at.generation));
    }
}

impl Catalog {
    /// Copies that are under way.
    pub fn copies_under_way(&self) -> usize {
        self.copies.running.len()
    }

    /// Starts to copy one stripe of a finished object.
    pub(super) fn copy_start(
        &mut self,
        now: Now,
        id: EntryId,
        stripe: u8,
        purpose: Purpose,
    ) -> Result<(), NoCopy> {
        let to = purpose.medium();
        let disk = to == Medium::Ssd;
        let booked = disk || purpose.way == Way::Demote;
        if !booked && self.copies.to_memory >= self.config.copies_max {
            return Err(NoCopy::Later);
        }
        let entry = self.objects.entry(id);
        let sources = self.sources(entry, stripe);
        let is_leaving = |part: &Part| {
            let leaving = purpose.leaving.as_ref();
            leaving.is_some_and(|l| l.segment == part.segment && l.slot == part.slot)
        };
        let parts = entry.parts.as_slice().iter();
        let others: Vec<Part> =
            parts.filter(|part| part.stripe == stripe && !is_leaving(part)).copied().collect();
        let full = others.len() >= REPLICAS_MAX;
        if sources.is_empty() || full || entry.stage != Stage::Ready || self.is_announcing(id) {
            return Err(NoCopy::Impossible);
        }
        let charged = purpose.leaving.is_some_and(|part| !self.segments.is_disk(part.segment));
        if !disk && !charged && self.over_quota(id, stripe) {
            return Err(NoCopy::NoRoom);
        }
        // A disk and the memory of one node may each have a copy.
        let rivals = others.iter().filter(|part| self.segments.is_disk(part.segment) == disk);
        let rivals: Vec<Part> = rivals.copied().collect();
        let part = match purpose.to {
            Some(to) => self.reserve_at(now, id, stripe, &rivals, (to, purpose.make_room))?,
            None if booked => {
                let near = purpose.leaving.or(others.first().copied());
                self.reserve_below(now, id, stripe, &rivals, (to, near))?
            }
            None => self.reserve_copy(now, id, stripe, &rivals, purpose)?,
        };
        let book = self.segments.book_mut(part.segment);
        book.slots[part.slot.0].entry = id;
        let node = book.offer.node;
        let bytes = self.objects.entry(id).extent_bytes(stripe);
        self.objects.entry_mut(id).parts.add(part);
        self.charge_part(id, &part);
        let copy = Running {
            entry: id,
            generation: part.generation,
            node,
            bytes,
            until: now.plus(self.config.put_timeout),
            leaving: purpose.leaving,
            victim: purpose.way.is_victim(),
            to,
            booked,
            promotes: purpose.way == Way::Up,
        };
        self.copies.begin(&part, now.plus(self.config.order_retry), copy);
        self.book_copy(now, &part, &copy);
        let order = self.copy_order(id, &part, sources, self.config.put_timeout);
        self.copies.outbox.push((node, order));
        if !disk {
            self.evict_above_high(now, part.segment);
        }
        Ok(())
    }

    /// Books a copy that begins on the segment that takes it, if it is moved down, and on the one that it
    /// makes room in.
    fn book_copy(&mut self, now: Now, part: &Part, copy: &Running) {
        if copy.booked {
            let intake = &mut self.segments.book_mut(part.segment).intake;
            if intake.coming == 0 {
                intake.moved_at = now;
            }
            intake.coming += 1;
            intake.coming_bytes += copy.bytes;
        }
        if let (Some(leaving), true) = (copy.leaving, copy.victim) {
            self.book_victim(now, leaving.segment, copy.bytes);
        }
    }

    fn book_victim(&mut self, now: Now, segment: SegmentIndex, bytes: u64) {
        let book = self.segments.book_mut(segment);
        if book.moving == 0 {
            book.moving_at = now;
        }
        book.moving += 1;
        book.moving_bytes += bytes;
    }

    /// A victim whose copy is on its way down already: it goes when that is there. Whether there is such a
    /// copy.
    pub(super) fn leave_for_running(&mut self, now: Now, id: EntryId, victim: Part) -> bool {
        let from = self.segments.medium(victim.segment);
        let parts = self.objects.entry(id).parts.as_slice().iter();
        let mut coming = parts.filter(|part| {
            part.stripe == victim.stripe
                && part.state == PartState::Copying
                && self.segments.medium(part.segment) > from
        });
        let Some(at) = coming.next().map(Part::slot_of) else { return false };
        let Some(copy) = self.copies.running.get_mut(&at) else { return false };
        // A drain may move it already; another replica that leaves for this copy is another victim.
        let waits = copy.leaving.is_none_or(|leaving| leaving.slot_of() == victim.slot_of());
        if waits && !copy.victim {
            (copy.leaving, copy.victim) = (Some(victim), true);
            let bytes = copy.bytes;
            self.book_victim(now, victim.segment, bytes);
        }
        waits
    }

    /// Whether a copy is on its way that takes the place of this replica.
    pub(super) fn moves_already(&self, entry: &Entry, part: &Part) -> bool {
        let mut running =
            entry.parts.as_slice().iter().filter_map(|p| self.copies.running.get(&p.slot_of()));
        running.any(|copy| copy.leaving.is_some_and(|leaving| leaving.slot_of() == part.slot_of()))
    }

    /// Whether a replica was chosen to be evicted, and waits for its copy below.
    pub(super) fn is_moving_out(&self, entry: &Entry, part: &Part) -> bool {
        let coming = entry.parts.as_slice().iter().filter(|p| p.state == PartState::Copying);
        let mut running = coming.filter_map(|p| self.copies.running.get(&p.slot_of()));
        let is_part = |leaving: Part| leaving.slot_of() == part.slot_of();
        running.any(|copy| copy.victim && copy.leaving.is_some_and(is_part))
    }

    /// A copy is over, well or not; what it was. A victim that waited for it is a candidate again, until
    /// somebody ends it.
    pub(super) fn end_copy(
        &mut self,
        now: Now,
        segment: SegmentIndex,
        slot: Slot,
    ) -> Option<Running> {
        let copy = self.copies.end(segment, slot)?;
        if copy.booked {
            let intake = &mut self.segments.book_mut(segment).intake;
            intake.coming -= 1;
            intake.coming_bytes -= copy.bytes;
        }
        if let (Some(leaving), true) = (copy.leaving, copy.victim) {
            let book = self.segments.book_mut(leaving.segment);
            book.moving -= 1;
            book.moving_at = now;
            book.moving_bytes -= copy.bytes;
            let entry = self.objects.entry(copy.entry);
            let mut parts = entry.parts.as_slice().iter();
            let here = parts.any(|part| {
                part.slot_of() == leaving.slot_of()
                    && part.generation == leaving.generation
                    && part.state == PartState::Here
            });
            if here && entry.stage == Stage::Ready && book.is_open() {
                book.spare(leaving.slot);
                self.offer_victim(now, copy.entry, leaving.segment, leaving.slot);
            }
        }
        Some(copy)
    }

    /// Whether one more copy of a stripe is more than the tenant may have. A replica that moves counts
    /// twice only until it has moved.
    fn over_quota(&self, id: EntryId, stripe: u8) -> bool {
        let entry = self.objects.entry(id);
        let tenant = self.tenant(entry.tenant);
        let total = tenant.used.saturating_add(entry.extent_bytes(stripe));
        tenant.quota.is_some_and(|quota| total > quota)
    }

    /// Readable copies of a stripe: memory of hosts first, then VRAM, which its owner must load from, then
    /// disks; those on silent nodes last.
    fn sources(&self, entry: &Entry, stripe: u8) -> Vec<Locator> {
        let parts = entry.parts.as_slice().iter();
        let mut readable: Vec<&Part> =
            parts.filter(|part| part.stripe == stripe && self.part_readable(part)).collect();
        readable.sort_by_key(|part| {
            let rank = match self.segments.medium(part.segment) {
                Medium::Dram => 0,
                Medium::Vram => 1,
                Medium::Ssd => 2,
            };
            (self.is_silent(part.segment), rank)
        });
        readable
            .into_iter()
            .map(|part| entry.locator(part, self.segments.book(part.segment)))
            .collect()
    }

    fn is_silent(&self, segment: SegmentIndex) -> bool {
        let node = self.segments.book(segment).offer.node;
        self.nodes.get(&node).is_none_or(|member| member.silent)
    }

    fn copy_order(
        &self,
        id: EntryId,
        part: &Part,
        sources: Vec<Locator>,
        time: Duration,
    ) -> CopyOrder {
        let entry = self.objects.entry(id);
        let target = entry.locator(part, self.segments.book(part.segment));
        let striping = entry.striping();
        let extra = entry.extra.as_ref();
        let seal = entry.seal_of(part.stripe);
        let label = Label {
            tenant: entry.tenant,
            key: Key::new(&entry.key).expect("indexed keys are valid"),
            keep: extra.map_or(Keep::Normal, |extra| extra.keep),
            group: entry.group(),
            expire_ms: extra.map_or(0, |extra| extra.expire_ms),
            stripe: (entry.stripes() > 1).then_some(StripeOf { stripe: part.stripe, striping }),
            copies: entry.copies() as u8,
        };
        CopyOrder {
            token: self.copy_token(entry.object, &target),
            target,
            sources,
            object: entry.object,
            epoch: self.epoch,
            len: striping.stripe_len(part.stripe),
            seal,
            label,
            time_ms: u32::try_from(time.as_millis()).unwrap_or(u32::MAX),
        }
    }

    /// A copy has a token of its own: the writer of the put has no right to its slot.
    fn copy_token(&self, object: ObjectId, target: &Locator) -> PutToken {
        let words = [
            self.token(object).0,
            target.segment.0,
            target.incarnation.0,
            u64::from(target.slot.0) << 32 | u64::from(target.generation.0),
        ];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        PutToken(xxhash_rust::xxh3::xxh3_64(&bytes))
    }

    /// An owner tells what became of a copy.
    pub fn copied(&mut self, now: Now, done: &CopyDone) {
        let Some(segment) = self.segments.find(done.segment) else { return };
        let book = self.segments.book(segment);
        if book.offer.incarnation != done.incarnation || !book.is_open() {
            return;
        }
        let running = self.copies.running.get(&(segment, done.slot));
        if running.is_none_or(|copy| copy.generation != done.generation) {
            return;
        }
        let copy = self.end_copy(now, segment, done.slot).expect("looked up above");
        let part = self.objects.entry(copy.entry).part(segment, done.slot);
        if !done.ok {
            self.copy_refused(now, segment, &copy, part.stripe);
            self.copy_unsaved(&copy);
            self.end_part(now, copy.entry, &part, Action::Abort);
            self.copy_failed(now);
            return;
        }
        self.count_copy(now, segment, &copy);
        self.settle_part(now, copy.entry, &part);
        if let Some(leaving) = copy.leaving {
            self.leave_for_copy(now, copy.entry, &leaving);
        }
    }

    /// A copy came to nothing. If there is something to copy, and it should move down, the segment below did
    /// not take it.
    pub(super) fn copy_refused(
        &mut self,
        now: Now,
        segment: SegmentIndex,
        copy: &Running,
        stripe: u8,
    ) {
        let there = !self.sources(self.objects.entry(copy.entry), stripe).is_empty();
        if there && copy.booked {
            self.refused(now, segment);
        }
    }

    /// A copy to a disk came to nothing: the next walk may begin it again.
    pub(super) fn copy_unsaved(&mut self, copy: &Running) {
        if copy.to == Medium::Ssd {
            self.objects.entry_mut(copy.entry).saved = false;
        }
    }

    fn count_copy(&mut self, now: Now, segment: SegmentIndex, copy: &Running) {
        self.counters.copied += 1;
        self.counters.copied_bytes += copy.bytes;
        if copy.booked {
            self.taken(now, segment);
        }
        if copy.to == Medium::Ssd {
            self.counters.offloaded += 1;
            self.counters.offloaded_bytes += copy.bytes;
        } else if copy.booked {
            self.counters.demoted += 1;
            self.counters.demoted_bytes += copy.bytes;
        } else if copy.promotes {
            self.counters.promoted += 1;
            self.counters.promoted_bytes += copy.bytes;
        }
    }

    /// A fetched replica is an ordinary one from now on.
    fn settle_part(&mut self, now: Now, id: EntryId, part: &Part) {
        let entry = self.objects.entry_mut(id);
        entry.set_part(part.segment, part.slot, PartState::Here);
        let keep = entry.keep(now);
        let soft_until = entry.extra.as_ref().map_or(now, |extra| extra.soft_until);
        self.offer_victim(now, id, part.segment, part.slot);
        let book = self.segments.book_mut(part.segment);
        if let Keep::Soft { .. } = keep {
            book.soft_ends.push_back((soft_until, part.slot, part.generation));
        }
    }

    /// The copy is there: what it takes the place of may go, if it is still what it was.
    fn leave_for_copy(&mut self, now: Now, id: EntryId, leaving: &Part) {
        let mut parts = self.objects.entry(id).parts.as_slice().iter();
        let same = parts.any(|part| {
            part.segment == leaving.segment
                && part.slot == leaving.slot
                && part.generation == leaving.generation
                // One that is being evicted goes as well: readers could spare it, and both would stay.
                && part.state != PartState::Copying
        });
        if !same || !self.segments.book(leaving.segment).is_open() {
            return;
        }
        if let Some(drain) = &mut self.segments.book_mut(leaving.segment).drain {
            drain.moved += 1;
        }
        self.retire_part(now, id, leaving);
    }

    /// Ends one replica of an object that has others. Readers that kept its locator find it over
    /// and ask again.
    pub(super) fn retire_part(&mut self, now: Now, id: EntryId, part: &Part) {
        let free_after_ms = lease::left_ms(now, self.objects.entry(id).lease_end);
        self.end_part(now, id, part, Action::Retire { free_after_ms });
    }

    /// Takes one replica off its entry and orders its end. The key is not free before its owner has
    /// answered: somebody may still read it, or publish it.
    pub(super) fn end_part(&mut self, now: Now, id: EntryId, part: &Part, action: Action) {
        if !self.segments.book(part.segment).takes_orders() {
            // It goes with its segment, which takes no orders: `sweep`.
            return;
        }
        let extent = self.objects.entry(id).extent(part);
        self.discharge_part(id, part);
        let entry = self.objects.entry_mut(id);
        entry.extra_mut().orphans += 1;
        let any = entry.parts.drop_part(part.segment, part.slot);
        let whole = entry.complete(|part| part.state != PartState::Copying);
        self.end_life(now, part, extent, action, id);
        self.chain_shrunk(id);
        self.part_ended(now, id, any, whole);
    }

    /// A replica was taken off its entry, whose owner has not answered yet.
    pub(super) fn part_ended(&mut self, now: Now, id: EntryId, any: bool, whole: bool) {
        if !any {
            self.keep_key(id);
        } else if !whole {
            self.lacks_stripes(id, now);
        }
    }

    /// Gives copies up whose time is over, and orders again what may have been lost on its way: an owner
    /// that is at it knows, and without this a lost word would cost the whole time of a copy.
    pub(super) fn watch_copies(&mut self, now: Now) {
        self.give_copies_up(now);
        for _ in 0..EXPIRED_MAX {
            let Some(&(at, segment, slot, generation)) = self.copies.repeats.front() else {
                return;
            };
            if at > now {
                return;
            }
            self.copies.repeats.pop_front();
            let running = self.copies.running.get(&(segment, slot)).copied();
            let current = running.filter(|copy| copy.generation == generation);
            let Some(copy) = current.filter(|_| self.segments.book(segment).is_open()) else {
                continue;
            };
            let again = now.plus(self.config.order_retry);
            self.copies.repeats.push_back((again, segment, slot, generation));
            let entry = self.objects.entry(copy.entry);
            let part = entry.part(segment, slot);
            let sources = self.sources(entry, part.stripe);
            let order = self.copy_order(copy.entry, &part, sources, copy.until.since(now));
            self.copies.outbox.push((copy.node, order));
        }
    }

    fn give_copies_up(&mut self, now: Now) {
        for _ in 0..EXPIRED_MAX {
            let Some(&(at, segment, slot, generation)) = self.copies.ends.front() else { return };
            let running = self.copies.running.get(&(segment, slot));
            let current = running.is_some_and(|copy| copy.generation == generation);
            if current && at > now {
                return;
            }
            self.copies.ends.pop_front();
            if current && self.segments.book(segment).is_open() {
                let copy = self.end_copy(now, segment, slot).expect("looked up above");
                if copy.booked {
                    self.refused(now, segment);
                }
                self.copy_unsaved(&copy);
                let part = self.objects.entry(copy.entry).part(segment, slot);
                self.end_part(now, copy.entry, &part, Action::Abort);
                self.copy_failed(now);
            }
        }
    }

    /// Copies have ended: begins the next ones of drains, repairs and offloads, as far as that is
    /// possible.
    pub fn go_on(&mut self, now: Now) {
        let draining =
            self.segments.iter().filter(|(_, book)| book.is_open() && book.drain.is_some());
        let draining: Vec<SegmentIndex> = draining.map(|(index, _)| index).collect();
        for index in draining {
            self.drain_step(now, index);
        }
        self.repair(now);
        self.offload(now);
        self.promote(now);
    }

    /// A copy came to nothing; whoever wanted it looks again.
    pub(super) fn copy_failed(&mut self, now: Now) {
        self.counters.copies_failed += 1;
        self.look_again_for_missing_copies(now);
    }
}
