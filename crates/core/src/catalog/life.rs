//! The life of an object beyond put and remove: whose bytes it is charged to, soft pins that end,
//! groups that go together, expiry after the first get, striped objects that lost a stripe.
//! Everything that time brings about works in bounded slices, from `tick` (G13).

use super::Catalog;
use super::objects::{Entry, EntryId, Part, PartState, SegmentIndex, Stage};
use super::segments::{Ending, NOBODY, Payer};
use crate::error::PutError;
use crate::ids::{GroupId, TenantId};
use crate::limits::GROUP_MEMBERS_MAX;
use crate::plan::{Action, Keep, Medium};
use crate::time::Now;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// Objects that one tick expires, or takes apart.
const SLICE_MAX: usize = 256;

/// What the catalog knows of a tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tenant {
    /// Bytes of its replicas and open puts, and of those that have ended until they are free: a reader or
    /// a writer may keep them.
    pub used: u64,
    /// The part of them that has ended and is not free yet.
    pub ending: u64,
    /// The part of that which was being written, and may still be.
    pub aborted: u64,
    /// Its slots.
    pub aborted_slots: u64,
    /// The part of them that is pinned hard.
    pub hard: u64,
    /// What it may use; `None`: everything.
    pub quota: Option<u64>,
}

/// Replicas in memory, in the order of [`Medium::ALL`]: their bytes and how many they are, because each takes a
/// slot. What lies on disks is not charged: it went there by the master's choice, and a tenant that had filled
/// its quota with it could put no more.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Charge([(u64, u64); 2]);

impl Charge {
    /// Books the bytes of a replica on a medium.
    pub(super) fn add(&mut self, medium: Medium, bytes: u64) {
        if let Some((sum, slots)) = self.0.get_mut(medium as usize) {
            *sum += bytes;
            *slots += 1;
        }
    }

    /// All bytes.
    pub(super) fn total(&self) -> u64 {
        self.0.iter().map(|(bytes, _)| bytes).sum()
    }
}

/// Charges by tenant, and the sum of all hard pins on each medium: where VRAM is large, pins must not take
/// all of the memory of hosts.
#[derive(Debug, Default)]
pub(super) struct Tenants {
    all: BTreeMap<TenantId, Tenant>,
    hard: Charge,
}

/// Objects that are evicted together, as lists through their entries.
#[derive(Debug, Default)]
pub(super) struct Groups {
    heads: BTreeMap<(TenantId, GroupId), (EntryId, u32)>,
    /// A member is gone for want of room: the others follow.
    dissolving: VecDeque<(TenantId, GroupId)>,
}

/// Objects that end at a time.
#[derive(Debug, Default)]
pub(super) struct Ends {
    /// Removed then, because they were read once. What goes earlier goes from here, too.
    expiring: BTreeSet<(Now, EntryId)>,
    /// Striped objects without all their stripes: taken apart then, unless the rest has come.
    incomplete: BTreeMap<EntryId, Now>,
}

impl Catalog {
    /// Sets what a tenant may use; `None`: everything. What it has stays.
    pub fn set_quota(&mut self, tenant: TenantId, quota: Option<u64>) {
        self.tenants.all.entry(tenant).or_default().quota = quota;
    }

    /// All tenants that have something, or a quota.
    pub fn tenants(&self) -> impl Iterator<Item = (TenantId, Tenant)> + '_ {
        self.tenants.all.iter().map(|(id, tenant)| (*id, *tenant))
    }

    /// What a tenant has.
    pub fn tenant(&self, tenant: TenantId) -> Tenant {
        self.tenants.all.get(&tenant).copied().unwrap_or_default()
    }

    /// Whether so many bytes and slots more may be pinned hard on a medium. A slot counts as the bytes that
    /// stand behind each: pins of empty values must not take them all.
    pub(super) fn check_hard(
        &self,
        medium: Medium,
        bytes: u64,
        slots: u64,
    ) -> Result<(), PutError> {
        let open = self.segments.open_on(medium);
        let (pinned, slots_pinned) = self.tenants.hard.0[medium as usize];
        let of_slots = u128::from(slots_pinned + slots) * u128::from(open.bytes)
            / u128::from(open.slots.max(1));
        let total = pinned.saturating_add(bytes).max(of_slots as u64);
        let limit = (u128::from(open.bytes) * u128::from(self.config.hard_permille) / 1000) as u64;
        if total > limit { Err(PutError::HardFull { limit, total }) } else { Ok(()) }
    }

    /// What all replicas of an entry are charged.
    pub(super) fn charge_of(&self, entry: &Entry) -> Charge {
        let mut charge = Charge::default();
        for part in entry.parts.as_slice() {
            charge.add(self.segments.medium(part.segment), entry.extent_bytes(part.stripe));
        }
        charge
    }

    fn charge_of_part(&self, id: EntryId, part: &Part) -> Charge {
        let mut charge = Charge::default();
        let bytes = self.objects.entry(id).extent_bytes(part.stripe);
        charge.add(self.segments.medium(part.segment), bytes);
        charge
    }

    /// Books one more replica on its tenant.
    pub(super) fn charge_part(&mut self, id: EntryId, part: &Part) {
        self.charge(id, self.charge_of_part(id, part));
    }

    /// Takes one off again.
    pub(super) fn discharge_part(&mut self, id: EntryId, part: &Part) {
        self.discharge(id, self.charge_of_part(id, part));
    }

    /// Books bytes of an entry's parts on its tenant.
    pub(super) fn charge(&mut self, id: EntryId, charge: Charge) {
        if charge.total() == 0 {
            return;
        }
        let entry = self.objects.entry(id);
        let hard = if entry.is_hard() { charge } else { Charge::default() };
        let tenant = self.tenants.all.entry(entry.tenant).or_default();
        tenant.used += charge.total();
        tenant.hard += hard.total();
        for (sum, more) in self.tenants.hard.0.iter_mut().zip(hard.0) {
            *sum = (sum.0 + more.0, sum.1 + more.1);
        }
    }

    /// Takes bytes off again.
    pub(super) fn discharge(&mut self, id: EntryId, charge: Charge) {
        // An entry that has lost its last part owes nothing, and its tenant may be forgotten already.
        if charge.total() == 0 {
            return;
        }
        let entry = self.objects.entry(id);
        let hard = if entry.is_hard() { charge } else { Charge::default() };
        let id = entry.tenant;
        let tenant = self.tenants.all.get_mut(&id).expect("it was charged");
        tenant.used -= charge.total();
        tenant.hard -= hard.total();
        for (sum, less) in self.tenants.hard.0.iter_mut().zip(hard.0) {
            *sum = (sum.0 - less.0, sum.1 - less.1);
        }
        if tenant.used == 0 && tenant.quota.is_none() {
            self.tenants.all.remove(&id);
        }
    }

    /// Bytes that were taken off an entry stay on an account until they are free.
    pub(super) fn charge_ending(&mut self, payer: Payer, action: Action, bytes: u64) {
        if let (Payer::Tenant(id), true) = (payer, bytes > 0) {
            let tenant = self.tenants.all.entry(id).or_default();
            tenant.used += bytes;
            tenant.ending += bytes;
            if action == Action::Abort {
                tenant.aborted += bytes;
                tenant.aborted_slots += 1;
            }
        }
    }

    /// They are free.
    pub(super) fn discharge_ending(&mut self, ending: &Ending) {
        let (payer, bytes) = (ending.payer, ending.allocation.extent.len());
        if let (Payer::Tenant(id), true) = (payer, bytes > 0) {
            let tenant = self.tenants.all.get_mut(&id).expect("it was charged");
            tenant.used -= bytes;
            tenant.ending -= bytes;
            if ending.action == Action::Abort {
                tenant.aborted -= bytes;
                tenant.aborted_slots -= 1;
            }
            if tenant.used == 0 && tenant.quota.is_none() {
                self.tenants.all.remove(&id);
            }
        }
    }

    /// Forgets an entry that has no part and that nobody waits for; who took its key over has waited.
    pub(super) fn forget(&mut self, id: EntryId) {
        let next = self.forget_one(id);
        self.acknowledge(next);
    }

    /// The same, without a word to the entry that took its key over, which is returned.
    pub(super) fn forget_one(&mut self, id: EntryId) -> Option<EntryId> {
        self.leave_group(id);
        let reuse = self.chain_forgotten(id);
        let entry = self.objects.remove(id, reuse);
        self.removing.remove(&entry.object);
        self.ends.incomplete.remove(&id);
        if let Some(at) = entry.extra.as_ref().and_then(|extra| extra.expire_at) {
            self.ends.expiring.remove(&(at, id));
        }
        if self.upserts.get(&entry.hash) == Some(&id) {
            self.upserts.remove(&entry.hash);
        }
        entry.replaced_by()
    }

    /// `new` takes the key over from `old`: the key is not free, and nothing is confirmed that says so,
    /// before the owners of `old` have answered; however many values were replaced one after the other.
    pub(super) fn hold_key(&mut self, old: EntryId, new: EntryId) {
        self.objects.entry_mut(old).extra_mut().replaced_by = new;
        self.objects.entry_mut(new).extra_mut().orphans += 1;
    }

    /// A finished object can be evicted from now on, alone or with its group.
    pub(super) fn settle(&mut self, now: Now, id: EntryId) {
        let entry = self.objects.entry_mut(id);
        let mut keep = Keep::Normal;
        let mut soft_until = now;
        if let Some(extra) = &mut entry.extra {
            keep = extra.keep;
            if let Keep::Soft { ttl_ms } = keep {
                extra.soft_until = now.plus(Duration::from_millis(ttl_ms.into()));
                soft_until = extra.soft_until;
            }
        }
        let entry = self.objects.entry(id);
        for part in entry.parts.as_slice() {
            let covered = self.is_covered(part.segment, id);
            let book = self.segments.book_mut(part.segment);
            book.offer_victim(part.slot, covered, keep);
            if let Keep::Soft { .. } = keep {
                book.soft_ends.push_back((soft_until, part.slot, part.generation));
            }
        }
        self.join_group(id);
    }

    /// A lookup found an object with wishes of its own.
    pub(super) fn was_read(&mut self, now: Now, id: EntryId) {
        let entry = self.objects.entry_mut(id);
        let Some(extra) = &mut entry.extra else { return };
        if let Keep::Soft { ttl_ms } = extra.keep
            && extra.soft_until > now
        {
            extra.soft_until = now.plus(Duration::from_millis(ttl_ms.into()));
        }
        if extra.expire_ms > 0 && extra.expire_at.is_none() {
            let at = now.plus(Duration::from_millis(extra.expire_ms.into()));
            extra.expire_at = Some(at);
            self.ends.expiring.insert((at, id));
        }
    }

    /// Soft pins whose time is over become ordinary objects.
    pub(super) fn end_soft_pins(&mut self, now: Now, segment: SegmentIndex, most: usize) {
        for _ in 0..most {
            let book = self.segments.book_mut(segment);
            let Some(&(at, slot, generation)) = book.soft_ends.front() else { return };
            if at > now {
                return;
            }
            book.soft_ends.pop_front();
            let known = book.slots[slot.0];
            let Some(entry) = self.objects.get(known.entry) else { continue };
            if known.generation != generation {
                continue;
            }
            let until = entry.extra.as_ref().map_or(Now(0), |extra| extra.soft_until);
            if until > now {
                book.soft_ends.push_back((until, slot, generation));
            } else if book.soft.remove(slot) {
                let covered = self.is_covered(segment, known.entry);
                self.segments.book_mut(segment).offer_victim(slot, covered, Keep::Normal);
            }
        }
    }

    /// Removes what was read long enough ago. A lease is not cut short (M6); pins are the owners'.
    pub(super) fn expire(&mut self, now: Now) {
        for _ in 0..SLICE_MAX {
            let Some(&(at, id)) = self.ends.expiring.first() else { return };
            if at > now {
                return;
            }
            self.ends.expiring.remove(&(at, id));
            let waits = self.is_announcing(id) || self.rebuild.is_some();
            let entry = self.objects.entry_mut(id);
            let extra = entry.extra.get_or_insert_default();
            extra.expire_at = None;
            if entry.stage != Stage::Ready {
                continue;
            }
            if entry.lease_end > now || waits {
                let again = entry.lease_end.max(now.plus(Duration::from_millis(10)));
                extra.expire_at = Some(again);
                self.ends.expiring.insert((again, id));
                continue;
            }
            self.counters.expired += 1;
            self.chain_removed(id);
            self.retire(now, id);
        }
    }

    /// A striped object lacks a stripe: it is taken apart at `at`, unless the rest has come by then.
    pub(super) fn lacks_stripes(&mut self, id: EntryId, at: Now) {
        self.ends.incomplete.insert(id, at);
    }

    /// Takes striped objects apart that nobody can ever read.
    pub(super) fn drop_incomplete(&mut self, now: Now) {
        if self.rebuild.is_some() || self.ends.incomplete.is_empty() {
            return;
        }
        let due = self.ends.incomplete.iter().filter(|(_, at)| **at <= now);
        let due: Vec<EntryId> = due.take(SLICE_MAX).map(|(id, _)| *id).collect();
        for id in due {
            let entry = self.objects.entry(id);
            let ends = entry.stage != Stage::Ready;
            if ends || entry.complete(|part| part.state != PartState::Copying) {
                self.ends.incomplete.remove(&id);
            } else if !self.is_announcing(id) {
                self.ends.incomplete.remove(&id);
                self.retire(now, id);
            }
        }
    }

    pub(super) fn join_group(&mut self, id: EntryId) {
        let entry = self.objects.entry(id);
        let (tenant, group) = (entry.tenant, entry.group());
        if group == GroupId(0) {
            return;
        }
        let (head, count) = self.groups.heads.entry((tenant, group)).or_insert((NOBODY, 0));
        if *count >= GROUP_MEMBERS_MAX {
            self.objects.entry_mut(id).extra_mut().group = GroupId(0);
            return;
        }
        let next = std::mem::replace(head, id);
        *count += 1;
        let extra = self.objects.entry_mut(id).extra_mut();
        (extra.next, extra.previous) = (next, NOBODY);
        if next != NOBODY {
            self.objects.entry_mut(next).extra_mut().previous = id;
        }
    }

    /// Takes an entry out of its group, if it is in one.
    fn leave_group(&mut self, id: EntryId) {
        let entry = self.objects.entry_mut(id);
        let (tenant, group) = (entry.tenant, entry.group());
        let Some((head, count)) = self.groups.heads.get_mut(&(tenant, group)) else { return };
        let extra = self.objects.entry_mut(id).extra_mut();
        let (next, previous) = (extra.next, extra.previous);
        if previous == NOBODY && *head != id {
            // It never joined: its put was not ended.
            return;
        }
        extra.group = GroupId(0);
        (extra.next, extra.previous) = (NOBODY, NOBODY);
        *count -= 1;
        if *head == id {
            *head = next;
        }
        if *count == 0 {
            self.groups.heads.remove(&(tenant, group));
        }
        if next != NOBODY {
            self.objects.entry_mut(next).extra_mut().previous = previous;
        }
        if previous != NOBODY {
            self.objects.entry_mut(previous).extra_mut().next = next;
        }
    }

    /// The last copy of a member was evicted: the others are of no use without it.
    pub(super) fn dissolve_group(&mut self, tenant: TenantId, group: GroupId) {
        if group != GroupId(0) && self.groups.heads.contains_key(&(tenant, group)) {
            self.groups.dissolving.push_back((tenant, group));
        }
    }

    /// Orders the eviction of the members of dissolving groups. One that is leased or pinned stays,
    /// as an object without a group; so does one that is pinned hard.
    pub(super) fn evict_groups(&mut self, now: Now) {
        for _ in 0..SLICE_MAX {
            let Some(&name) = self.groups.dissolving.front() else { return };
            let Some(&(id, _)) = self.groups.heads.get(&name) else {
                self.groups.dissolving.pop_front();
                continue;
            };
            self.leave_group(id);
            let entry = self.objects.entry(id);
            if entry.stage != Stage::Ready || entry.is_hard() || entry.lease_end > now {
                continue;
            }
            for part in entry.parts.as_slice().to_vec() {
                let book = self.segments.book_mut(part.segment);
                // What is on a disk takes no memory, and its owner evicts there.
                if book.is_open() && part.state == PartState::Here && !book.is_disk() {
                    book.spare(part.slot);
                    self.order_eviction(now, id, part);
                }
            }
        }
    }

    /// Objects whose expiry is running, for tests.
    pub fn expiring(&self) -> usize {
        self.ends.expiring.len()
    }

    /// Members of a group, for tests.
    pub fn group_len(&self, tenant: TenantId, group: GroupId) -> u32 {
        self.groups.heads.get(&(tenant, group)).map_or(0, |(_, count)| *count)
    }
}
