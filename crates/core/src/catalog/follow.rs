//! follow: how chains grow and end with the objects in them ([`Chains`]). All of this does nothing where the policy
//! is another one than `density`.

use super::Catalog;
use super::chains::{Batch, Chains};
use super::objects::{Entry, EntryId, Part, PartState, SegmentIndex, Stage};
use crate::ids::Slot;
use crate::key::Name;
use crate::plan::Medium;
use crate::time::Now;

/// Where a key stands in a batch of puts. Batches of keys in the order of a prompt tell which value is of no use
/// without which other one.
#[derive(Clone, Copy, Debug)]
pub struct InBatch<'a> {
    /// The key before this one.
    pub after: Option<&'a [u8]>,
    /// Its place, counted from 0.
    pub at: usize,
    /// Keys of the batch.
    pub len: usize,
}

impl InBatch<'_> {
    /// A batch of one key.
    pub const ALONE: Self = Self { after: None, at: 0, len: 1 };
}

impl<'a> InBatch<'a> {
    /// The place of the key at `at` in a batch of keys.
    pub fn of<K: AsRef<[u8]>>(keys: &'a [K], at: usize) -> Self {
        let after = at.checked_sub(1).map(|before| keys[before].as_ref());
        Self { after, at, len: keys.len() }
    }
}

impl Catalog {
    /// A request begins: a call with all its keys.
    pub(super) fn count_request(&mut self) {
        let entries = self.objects.len() as u64;
        if let Some(chains) = &mut self.chains {
            chains.request(entries);
        }
    }

    /// An entry is new; its number may be that of an earlier one.
    pub(super) fn chain_new(&mut self, id: EntryId) {
        if let Some(chains) = &mut self.chains {
            let entry = self.objects.entry(id);
            // A value that is cut has stripes of about the same size.
            chains.insert(id, entry.extent_bytes(0));
            if entry.lease_end > Now(0) {
                chains.lease(id);
            }
        }
    }

    /// An entry has a lease.
    pub(super) fn chain_leased(&mut self, id: EntryId) {
        if let Some(chains) = &mut self.chains {
            chains.lease(id);
        }
    }

    /// The lease of an entry has ended.
    pub(super) fn chain_lease_ended(&mut self, id: EntryId) {
        if let Some(chains) = &mut self.chains {
            chains.end_lease(id);
        }
    }

    /// A put begins: the entry of the key before its own, the last one that is evicted to make room for it.
    pub(super) fn chain_start(&mut self, name: Name<'_>, batch: InBatch<'_>) -> Option<EntryId> {
        self.chains.as_ref()?;
        let after = match batch.after {
            Some(key) => self.objects.find(Name::new(name.tenant, key)),
            None if batch.at == 0 => self.expected(name),
            None => None,
        };
        if let Some(chains) = &mut self.chains {
            chains.keep(after);
        }
        after
    }

    /// It is over, well or not.
    pub(super) fn chain_started(&mut self) {
        if let Some(chains) = &mut self.chains {
            chains.keep(None);
        }
    }

    /// A put has made an entry: it follows the one before it.
    pub(super) fn chain_put(&mut self, id: EntryId, after: Option<EntryId>, batch: InBatch<'_>) {
        self.chain_existing(id, after, batch);
        let hash = self.objects.entry(id).hash;
        if let Some(chains) = &mut self.chains {
            chains.put(id, hash, (batch.at, batch.len));
        }
    }

    /// A put has found that its key has a value: that is no use of it, but it follows the one before it.
    pub(super) fn chain_existing(
        &mut self,
        id: EntryId,
        after: Option<EntryId>,
        batch: InBatch<'_>,
    ) {
        if batch.at == 0 {
            self.count_request();
        }
        if let Some(after) = after {
            self.chain(id, after, None);
        }
    }

    /// The entry behind which a lookup has missed this key.
    fn expected(&self, name: Name<'_>) -> Option<EntryId> {
        let (after, object) = self.chains.as_ref()?.expected(name.hash().0)?;
        let same = |entry: &Entry| entry.object == object && entry.tenant == name.tenant;
        self.objects.get(after).is_some_and(same).then_some(after)
    }

    /// An entry follows another one, if it follows none yet and that makes no circle.
    fn chain(&mut self, id: EntryId, after: EntryId, known: Option<&[Option<EntryId>]>) {
        let Some(chains) = &self.chains else { return };
        let lives = |id: EntryId| {
            let entry = self.objects.get(id);
            entry.is_some_and(|entry| !matches!(entry.stage, Stage::Removing(_)))
        };
        if !chains.may_follow(id, after, known) || !lives(after) || !self.in_memory(id) {
            return;
        }
        self.unchain(id);
        let chains = self.chains.as_mut().expect("looked up above");
        if chains.attach(id, after) {
            self.cover(after, true);
        }
    }

    /// An entry follows nobody any more.
    fn unchain(&mut self, id: EntryId) {
        let Some(chains) = &mut self.chains else { return };
        let Some(before) = chains.detach(id) else { return };
        if self.objects.get(before).is_some() {
            self.cover(before, false);
        } else {
            self.objects.reuse(before);
        }
    }

    /// The first entry follows another one now, or none does any more.
    fn cover(&mut self, id: EntryId, covered: bool) {
        for part in self.objects.entry(id).parts.as_slice() {
            // What VRAM lets go of is not lost: it lies in memory of a host, and is read from there.
            if self.segments.medium(part.segment) == Medium::Dram {
                self.segments.book_mut(part.segment).cover(part.slot, covered);
            }
        }
    }

    /// Whether something in memory follows an entry, as far as the policy of a segment wants to know that.
    pub(super) fn is_covered(&self, segment: SegmentIndex, id: EntryId) -> bool {
        let behind = self.chains.as_ref().map_or(0, |chains| chains.behind(id));
        behind > 0 && self.segments.medium(segment) == Medium::Dram
    }

    /// A slot of an entry may be evicted from now on.
    pub(super) fn offer_victim(
        &mut self,
        now: Now,
        id: EntryId,
        segment: SegmentIndex,
        slot: Slot,
    ) {
        let (covered, keep) = (self.is_covered(segment, id), self.objects.entry(id).keep(now));
        self.segments.book_mut(segment).offer_victim(slot, covered, keep);
    }

    /// An entry was read, by one key of a batch.
    pub(super) fn chain_read(&mut self, id: EntryId, batch: &mut Batch<'_>) {
        if self.chains.is_none() {
            return;
        }
        if let Some((last, known)) = Chains::behind_last(batch) {
            self.chain(id, last, known);
        }
        let hash = self.objects.entry(id).hash;
        if let Some(chains) = &mut self.chains {
            chains.read(id, hash, batch);
        }
    }

    /// A key of a batch was not found.
    pub(super) fn chain_missed(&mut self, name: Name<'_>, batch: &mut Batch<'_>) {
        let Some(chains) = &mut self.chains else { return };
        if let Some(after) = batch.missed() {
            chains.expect(name.hash().0, after, self.objects.entry(after).object);
        }
    }

    /// An entry was read, and nobody knows with which others.
    pub(super) fn chain_read_again(&mut self, id: EntryId) {
        if let Some(chains) = &mut self.chains {
            chains.read_again(id, self.objects.entry(id).hash);
        }
    }

    /// An eviction met readers: for a moment others are chosen.
    pub(super) fn chain_spared(&mut self, now: Now, id: EntryId) {
        if let Some(chains) = &mut self.chains {
            chains.rest(now, id);
        }
    }

    /// Somebody removes an object, or gives it up before it has a value: what follows it is not lost by that.
    pub(super) fn chain_removed(&mut self, id: EntryId) {
        if let Some(chains) = &mut self.chains {
            chains.removed(id);
        }
    }

    /// Replicas of an entry went, or are on their way out. One that is in memory no more is in no chain.
    pub(super) fn chain_shrunk(&mut self, id: EntryId) {
        let Some(chains) = &self.chains else { return };
        if chains.before(id).is_some() && !self.in_memory(id) {
            self.unchain(id);
        }
    }

    /// An entry is about to be forgotten; whether its number may be used again at once.
    pub(super) fn chain_forgotten(&mut self, id: EntryId) -> bool {
        self.unchain(id);
        self.chains.as_mut().is_none_or(|chains| !chains.forget(id))
    }

    /// Whether an entry has a replica in memory that stays, or is on its way there.
    pub(super) fn in_memory(&self, id: EntryId) -> bool {
        let entry = self.objects.entry(id);
        let stays = |part: &Part| {
            part.state != PartState::Evicting
                && !self.segments.is_disk(part.segment)
                && !self.is_moving_out(entry, part)
        };
        entry.parts.as_slice().iter().any(stays)
    }

    /// The entry before this one, if only this one follows it.
    pub(super) fn held_by(&self, id: EntryId) -> Option<EntryId> {
        let chains = self.chains.as_ref()?;
        let before = chains.before(id).filter(|before| chains.behind(*before) == 1)?;
        self.objects.get(before).is_some_and(|entry| entry.stage == Stage::Ready).then_some(before)
    }
}
