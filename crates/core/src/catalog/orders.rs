//! Orders to owners and what became of them. A range returns to its allocator here and nowhere
//! else: when the owner says `Freed` (R1).

use super::Catalog;
use super::objects::{Entry, EntryId, Part, PartState, SegmentIndex, Stage};
use super::segments::{Ending, NOBODY, Payer};
use crate::alloc::Allocation;
use crate::canary::{self, Canary};
use crate::extent::Extent;
use crate::ids::{Generation, Slot, TenantId};
use crate::lease;
use crate::plan::{Action, Notice, Order, OrderResult};
use crate::seal::Seal;
use crate::time::Now;

impl Catalog {
    /// Takes in what an owner did, or what happened to one of its slots. Late, repeated and unknown
    /// notices change nothing (G10).
    pub fn notice(&mut self, now: Now, notice: &Notice) {
        let Some(segment) = self.segments.find(notice.segment) else { return };
        let book = self.segments.book_mut(segment);
        // Before the last page the allocator does not know the ranges yet; the order will be repeated. A
        // disk has no ranges, and its owner may evict at any time.
        let disk = book.is_disk();
        let listens = book.takes_orders();
        if book.offer.incarnation != notice.incarnation || !listens {
            return;
        }
        let over = matches!(notice.result, OrderResult::Freed { .. } | OrderResult::Waiting);
        if disk && over && book.is_announcing() && notice.slot.0 >= book.slots.len() {
            // Not told yet: the page that tells of it may be on its way already.
            if notice.slot.0 < book.offer.slots {
                let life = (notice.slot, notice.generation);
                self.segments.book_mut(segment).early.insert(life);
            }
            return;
        }
        let ending = book.ending.get(&notice.slot).copied();
        match (notice.result, ending.filter(|e| e.generation == notice.generation)) {
            (OrderResult::Freed { next }, Some(ending)) => {
                self.freed(now, segment, notice.slot, next, ending);
            }
            (OrderResult::Freed { next }, None) => {
                self.freed_unasked(now, segment, notice.slot, notice.generation, next);
            }
            (OrderResult::Pinned, Some(e)) if e.action == Action::Evict && !e.repeated => {
                self.spared(now, segment, notice.slot, e);
            }
            // Of a disk only the end settles: until the record is gone, a crash could bring it back (G6).
            (OrderResult::Waiting, Some(ending))
                if ending.action != Action::Evict
                    && (!disk || canary::on(Canary::HiddenCountsAsGone)) =>
            {
                self.settled(segment, notice.slot, ending);
            }
            (OrderResult::Waiting, None) if disk => {
                self.hidden_by_owner(now, segment, notice.slot, notice.generation);
            }
            (OrderResult::Bad, None) if !disk => {
                self.found_bad(now, segment, notice.slot, notice.generation);
            }
            (OrderResult::Holds { seal }, None) if !disk => {
                self.found_other(now, segment, notice.slot, notice.generation, seal);
            }
            _ => {}
        }
    }

    /// Takes one replica off its entry, which waits for the owner's word, and orders its end. Its tenant
    /// pays for it until it is free. A segment that is leaving takes no orders; its ranges go with it.
    pub(super) fn end_life(
        &mut self,
        now: Now,
        part: &Part,
        extent: Extent,
        action: Action,
        id: EntryId,
    ) {
        self.end_copy(now, part.segment, part.slot);
        self.vacate(part);
        if self.segments.book(part.segment).takes_orders() {
            let tenant = self.objects.entry(id).tenant;
            self.order(now, part, extent, action, (Some(id), Some(tenant)));
        }
    }

    /// The slot of a replica that was taken off its entry is nobody's.
    fn vacate(&mut self, part: &Part) {
        let book = self.segments.book_mut(part.segment);
        book.spare(part.slot);
        book.slots[part.slot.0].entry = NOBODY;
        book.live -= 1;
    }

    /// Books an order as out and puts it into the outbox. `whose`: the entry that waits for the owner's
    /// word, and the tenant that pays for the bytes.
    pub(super) fn order(
        &mut self,
        now: Now,
        part: &Part,
        extent: Extent,
        action: Action,
        whose: (Option<EntryId>, Option<TenantId>),
    ) {
        // Who reads a disk reads through its owner, and nobody new does from now on: no lease needs time.
        let action = match action {
            Action::Retire { .. } if self.segments.is_disk(part.segment) => {
                Action::Retire { free_after_ms: 0 }
            }
            action => action,
        };
        self.book_ending(now, part, extent, action, whose);
        self.send(part.segment, part.slot, part.generation, action);
    }

    /// Books the end of a life, which its owner will confirm.
    fn book_ending(
        &mut self,
        now: Now,
        part: &Part,
        extent: Extent,
        action: Action,
        (removing, tenant): (Option<EntryId>, Option<TenantId>),
    ) {
        let payer = match tenant {
            _ if action == Action::Evict => Payer::Entry,
            _ if self.segments.is_disk(part.segment) => Payer::Nobody,
            Some(tenant) => Payer::Tenant(tenant),
            None => Payer::Unnamed,
        };
        self.charge_ending(payer, action, extent.len());
        let book = self.segments.book_mut(part.segment);
        let retry_at = now.plus(self.config.order_retry);
        let ending = Ending {
            generation: part.generation,
            action,
            allocation: Allocation { extent, handle: part.handle },
            settled: false,
            repeated: false,
            retry_at,
            removing,
            payer,
            unwanted: false,
            struck: false,
        };
        let old = book.add_ending(part.slot, ending);
        match &old {
            // A remove overtakes an eviction: the bytes are counted already.
            Some(old) if old.action == Action::Evict => book.evicting -= 1,
            Some(_) => {}
            None => book.ending_bytes += extent.len(),
        }
        if action == Action::Evict {
            book.evicting += 1;
        }
        book.retry.push_back((retry_at, part.slot, part.generation));
        if let Some(old) = old {
            self.discharge_ending(&old);
        }
    }

    fn send(&mut self, segment: SegmentIndex, slot: Slot, generation: Generation, action: Action) {
        let offer = &self.segments.book(segment).offer;
        let order = Order {
            segment: offer.segment,
            incarnation: offer.incarnation,
            slot,
            generation,
            action,
        };
        self.outbox.push((offer.node, order));
    }

    /// Sends orders again that are not settled after a while; owners treat them alike.
    pub(super) fn retry_orders(&mut self, now: Now, segment: SegmentIndex, most: usize) {
        for _ in 0..most {
            let book = self.segments.book_mut(segment);
            let Some(&(at, slot, generation)) = book.retry.front() else { return };
            if at > now {
                return;
            }
            book.retry.pop_front();
            let ending = book.ending.get_mut(&slot);
            // An earlier order for this life may have left its place in the queue behind.
            let current = |e: &&mut Ending| e.generation == generation && e.retry_at == at;
            let Some(ending) = ending.filter(current) else { continue };
            ending.repeated = true;
            ending.retry_at = now.plus(self.config.order_retry);
            let retry_at = ending.retry_at;
            // The owner of a settled slot counts already: a second wait would start its time anew, for
            // ever if it is longer than the pause between two orders.
            let action = match ending.action {
                Action::Retire { .. } if ending.settled => Action::Retire { free_after_ms: 0 },
                // Two copies of an eviction may be on their way now: one could meet a pin, and the
                // other the object after it was spared and leased again. So it is carried through.
                Action::Evict => Action::Retire { free_after_ms: 0 },
                action => action,
            };
            book.retry.push_back((retry_at, slot, generation));
            self.send(segment, slot, generation, action);
        }
    }

    fn freed(
        &mut self,
        now: Now,
        segment: SegmentIndex,
        slot: Slot,
        next: Generation,
        ending: Ending,
    ) {
        let book = self.segments.book_mut(segment);
        book.take_ending(slot);
        book.ending_bytes -= ending.allocation.extent.len();
        self.discharge_ending(&ending);
        let book = self.segments.book_mut(segment);
        if ending.action == Action::Evict {
            book.evicting -= 1;
            book.pinned_streak = 0;
            book.live -= 1;
            let id = book.slots[slot.0].entry;
            self.counters.evicted += 1;
            self.counters.evicted_bytes += ending.allocation.extent.len();
            let entry = self.objects.entry(id);
            let (tenant, group) = (entry.tenant, entry.group());
            self.drop_part(now, id, segment, slot);
            let whole = |entry: &Entry| entry.complete(|part| part.state != PartState::Copying);
            if !self.objects.get(id).is_some_and(whole) {
                self.dissolve_group(tenant, group);
            }
        } else if !ending.settled {
            self.acknowledge(ending.removing);
        }
        if ending.unwanted || ending.struck {
            self.let_go(segment, &ending);
        }
        self.segments.book_mut(segment).release(slot, next, ending.allocation);
        self.segments.refresh(segment);
    }

    /// The owner of a disk evicts: nobody new can read the replica. Its key is not free before the record
    /// is gone, because until then a crash could bring it back (G6).
    pub(super) fn hidden_by_owner(
        &mut self,
        now: Now,
        segment: SegmentIndex,
        slot: Slot,
        generation: Generation,
    ) {
        let book = self.segments.book(segment);
        let Some(&known) = book.slots.get(slot.0) else { return };
        if known.generation != generation || known.entry == NOBODY {
            return;
        }
        let id = known.entry;
        if self.end_copy(now, segment, slot).is_some() {
            // It was kept and evicted before its owner could say so.
            self.copy_failed(now);
        }
        let entry = self.objects.entry_mut(id);
        let part = entry.part(segment, slot);
        let extent = entry.extent(&part);
        entry.extra_mut().orphans += 1;
        let any = entry.parts.drop_part(segment, slot);
        let whole = entry.complete(|part| part.state != PartState::Copying);
        let (tenant, group) = (entry.tenant, entry.group());
        self.vacate(&part);
        let action = Action::Retire { free_after_ms: 0 };
        self.book_ending(now, &part, extent, action, (Some(id), None));
        self.part_ended(now, id, any, whole);
        self.counters.disk_evicted += 1;
        if !whole {
            self.dissolve_group(tenant, group);
        }
    }

    /// The owner freed a slot that nobody ordered to end: the writer of an open put hung up, a copy
    /// could not be fetched, or a record on a disk has gone bad.
    pub(super) fn freed_unasked(
        &mut self,
        now: Now,
        segment: SegmentIndex,
        slot: Slot,
        generation: Generation,
        next: Generation,
    ) {
        let book = self.segments.book_mut(segment);
        let Some(&known) = book.slots.get(slot.0) else { return };
        if known.generation != generation || known.entry == NOBODY {
            return;
        }
        let id = known.entry;
        let entry = self.objects.entry(id);
        let part = entry.part(segment, slot);
        let allocation = Allocation { extent: entry.extent(&part), handle: part.handle };
        let (object, writing) = (entry.object, entry.stage == Stage::Writing);
        if let Some(copy) = self.end_copy(now, segment, slot) {
            self.copy_refused(now, segment, &copy, part.stripe);
            self.copy_unsaved(&copy);
            self.copy_failed(now);
        } else if self.segments.is_disk(segment) {
            self.counters.disk_lost += 1;
        }
        let book = self.segments.book_mut(segment);
        book.spare(slot);
        book.live -= 1;
        book.release(slot, next, allocation);
        self.segments.refresh(segment);
        if !self.drop_part(now, id, segment, slot) && writing {
            self.close_put(object);
        } else if writing {
            // One replica of the put is lost, so the put is: its plan cannot be kept.
            self.abort_put(now, id);
        }
    }

    /// The owner of a replica in memory found that its bytes are not those that were sealed (G15). Nobody
    /// new can read it, so the key does not wait for its end: without another replica it is free at once,
    /// with one it is made whole again. The range waits for leases, as ever.
    pub(super) fn found_bad(
        &mut self,
        now: Now,
        segment: SegmentIndex,
        slot: Slot,
        generation: Generation,
    ) {
        let Some(&known) = self.segments.book(segment).slots.get(slot.0) else { return };
        if known.generation != generation || known.entry == NOBODY {
            return;
        }
        let id = known.entry;
        if let Some(copy) = self.end_copy(now, segment, slot) {
            self.copy_unsaved(&copy);
            self.copy_failed(now);
        }
        let entry = self.objects.entry(id);
        let (object, writing) = (entry.object, entry.stage == Stage::Writing);
        let stays = self.end_bad(now, id, segment, slot, None);
        if writing {
            // One replica of the put is lost, so the put is: its plan cannot be kept.
            if stays {
                self.abort_put(now, id);
            } else {
                self.close_put(object);
            }
        }
    }

    /// What an owner holds of a life that a reader did not find as the index says. A put ends at its writer's word;
    /// if its owner's differs, the writer lied, and nobody can ever read the replica under the seal of the index
    /// (G15). Its key waits for the owner's word, because the owner would still give it out under another seal (C2).
    fn found_other(
        &mut self,
        now: Now,
        segment: SegmentIndex,
        slot: Slot,
        generation: Generation,
        held: Option<Seal>,
    ) {
        let Some(&known) = self.segments.book(segment).slots.get(slot.0) else { return };
        if known.generation != generation || known.entry == NOBODY {
            return;
        }
        let id = known.entry;
        let entry = self.objects.entry(id);
        let part = entry.part(segment, slot);
        let readable = entry.stage == Stage::Ready && part.state == PartState::Here;
        if !readable || held == Some(entry.seal_of(part.stripe)) {
            return;
        }
        self.objects.entry_mut(id).extra_mut().orphans += 1;
        self.end_bad(now, id, segment, slot, Some(id));
    }

    /// Takes a replica that nobody can use off its entry, and orders its end. With another replica of it the
    /// value is made whole again. `waits`: the entry that waits for the owner's word. Whether the entry is
    /// still there.
    fn end_bad(
        &mut self,
        now: Now,
        id: EntryId,
        segment: SegmentIndex,
        slot: Slot,
        waits: Option<EntryId>,
    ) -> bool {
        self.counters.bad_replicas += 1;
        let entry = self.objects.entry(id);
        let part = entry.part(segment, slot);
        let extent = entry.extent(&part);
        let writing = entry.stage == Stage::Writing;
        let (tenant, group) = (entry.tenant, entry.group());
        let free_after_ms = lease::left_ms(now, entry.lease_end);
        self.vacate(&part);
        self.order(now, &part, extent, Action::Retire { free_after_ms }, (waits, Some(tenant)));
        let stays = self.drop_part(now, id, segment, slot);
        let whole = |entry: &Entry| {
            entry.stage == Stage::Ready && entry.complete(|part| part.state != PartState::Copying)
        };
        if self.objects.get(id).is_some_and(whole) {
            self.repair_entry(now, id);
        } else if !writing {
            self.dissolve_group(tenant, group);
        }
        stays
    }

    /// An eviction met readers: the replica stays.
    fn spared(&mut self, now: Now, segment: SegmentIndex, slot: Slot, ending: Ending) {
        let book = self.segments.book_mut(segment);
        book.take_ending(slot);
        book.ending_bytes -= ending.allocation.extent.len();
        book.evicting -= 1;
        book.pinned_streak = book.pinned_streak.saturating_add(1);
        book.pinned_at = now;
        let id = book.slots[slot.0].entry;
        self.offer_victim(now, id, segment, slot);
        self.chain_spared(now, id);
        self.objects.entry_mut(id).set_part(segment, slot, PartState::Here);
        self.counters.evict_skipped += 1;
    }

    /// Nobody new can enter; the range follows when the last one has left.
    fn settled(&mut self, segment: SegmentIndex, slot: Slot, ending: Ending) {
        if ending.settled {
            return;
        }
        let book = self.segments.book_mut(segment);
        let known = book.ending.get_mut(&slot).expect("found above");
        known.settled = true;
        book.awaited.remove(&slot);
        // Nobody can begin to read it from now on.
        if ending.unwanted || ending.struck {
            (known.unwanted, known.struck) = (false, false);
            self.let_go(segment, &ending);
        }
        self.acknowledge(ending.removing);
    }

    /// One owner less stands between a remove and its answer, or the copy of an object that a replan
    /// gave up is gone for good.
    pub(super) fn acknowledge(&mut self, waiting: Option<EntryId>) {
        let mut waiting = waiting;
        while let Some(id) = waiting.take() {
            let entry = self.objects.entry_mut(id);
            let Stage::Removing(left) = &mut entry.stage else {
                entry.extra_mut().orphans -= 1;
                entry.trim_extra();
                return;
            };
            *left -= 1;
            if *left == 0 {
                waiting = self.forget_one(id);
            }
        }
    }

    /// Takes one replica out of an entry. An object goes with its last replica, and with the last one
    /// of any stripe. Whether the entry is still there.
    pub(super) fn drop_part(
        &mut self,
        now: Now,
        id: EntryId,
        segment: SegmentIndex,
        slot: Slot,
    ) -> bool {
        let part = self.objects.entry(id).part(segment, slot);
        self.discharge_part(id, &part);
        let entry = self.objects.entry_mut(id);
        let any = entry.parts.drop_part(segment, slot);
        self.chain_shrunk(id);
        let entry = self.objects.entry(id);
        let (ready, orphans) = (entry.stage == Stage::Ready, entry.orphans());
        if any {
            if ready && !entry.complete(|part| part.state != PartState::Copying) {
                self.lacks_stripes(id, now);
            }
        } else if orphans == 0 {
            self.forget(id);
            return false;
        } else if ready {
            // A copy may come back with the node that failed its writer: the key waits for its word.
            self.keep_key(id);
        }
        true
    }
}
