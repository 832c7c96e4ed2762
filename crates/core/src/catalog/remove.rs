//! remove: hide in the index, let every owner retire its copy, then say so (M5).

use super::Catalog;
use super::objects::{EntryId, Part, PartState, Parts, Stage};
use crate::canary::{self, Canary};
use crate::error::{CopyError, RemoveError};
use crate::ids::{ObjectId, SegmentId, TenantId};
use crate::key::{self, Key, Name};
use crate::lease;
use crate::plan::Action;
use crate::time::Now;

/// Hint while an owner has not answered.
pub(super) const DEFERRED_MS: u32 = 5;
/// Objects that one call of `remove_matching` takes, about.
const MATCHES_MAX: usize = 1024;
/// Slices that it walks.
const SLICES_MAX: usize = 16;

/// How far a remove is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// Nobody can read the value any more.
    Done,
    /// Hidden; orders are out. Ask [`Catalog::removed`] after their notices came in.
    Waiting(ObjectId),
}

/// What one step of a remove by pattern did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemovedPage {
    /// Hidden now, by this or by another remove; see [`Catalog::removed`] for each.
    pub waiting: Vec<ObjectId>,
    /// Matched, but leased: they stay.
    pub leased: u64,
    /// Where to go on; `None` at the end.
    pub next: Option<u64>,
}

impl Catalog {
    /// Starts to remove a key. A lease or a hold that was asked for refuses it, unless `force`: then the
    /// holder of a lease keeps its bytes until the lease ends, and nobody new can read them. No flag frees
    /// bytes under a reader.
    pub fn remove<'a>(
        &mut self,
        now: Now,
        name: impl Into<Name<'a>>,
        force: bool,
    ) -> Result<Removal, RemoveError> {
        let name = name.into();
        key::check(name.key)?;
        // A copy that is not announced yet would bring the value back after it was removed (G6).
        if let Some(rebuild) = &self.rebuild {
            return Err(RemoveError::Rebuilding { after_ms: rebuild.left_ms(now) });
        }
        let Some(id) = self.objects.find(name) else {
            // A disk that is away may have it.
            self.strike(name.hash().0);
            return Err(RemoveError::NotFound);
        };
        self.remove_entry(now, id, force)
    }

    /// Starts to remove the objects of a tenant whose keys match, as far as a bounded walk from
    /// `cursor` meets them.
    pub fn remove_matching(
        &mut self,
        now: Now,
        tenant: TenantId,
        matches: impl Fn(&[u8]) -> bool,
        cursor: u64,
        force: bool,
    ) -> Result<RemovedPage, RemoveError> {
        let mut page = RemovedPage::default();
        let mut cursor = cursor;
        for _ in 0..SLICES_MAX {
            let slice = self.list_slice(tenant, b"", cursor, true);
            let found = slice.entries.into_iter().map(|(_, listed)| (listed.key, listed.object));
            let found: Vec<_> = found.filter(|(key, _)| matches(key.as_bytes())).collect();
            self.remove_found(now, tenant, &found, force, &mut page)?;
            page.next = slice.next;
            match slice.next {
                Some(next) if page.waiting.len() < MATCHES_MAX => cursor = next,
                _ => break,
            }
        }
        Ok(page)
    }

    /// Starts to remove objects that were listed, as far as they are still what their keys have. Without any
    /// it says that a remove by pattern is under way, which what disks hold that are away must hear.
    pub fn remove_found(
        &mut self,
        now: Now,
        tenant: TenantId,
        found: &[(Key, ObjectId)],
        force: bool,
        page: &mut RemovedPage,
    ) -> Result<(), RemoveError> {
        if let Some(rebuild) = &self.rebuild {
            return Err(RemoveError::Rebuilding { after_ms: rebuild.left_ms(now) });
        }
        // What disks that are away hold is known by hashes only.
        self.strike_whole(tenant);
        for (key, object) in found {
            let id = self.objects.find(Name::new(tenant, key.as_bytes()));
            let same = |id: &EntryId| self.objects.entry(*id).object == *object;
            let Some(id) = id.filter(same) else { continue };
            match self.objects.entry(id).stage {
                // It may have been removed and put again since it was listed.
                Stage::Writing => {}
                // Somebody else removes it: until its owners have confirmed that it can be read.
                Stage::Removing(_) if canary::on(Canary::PatternWaitsForNobody) => {}
                Stage::Removing(_) => page.waiting.push(*object),
                Stage::Ready => match self.remove_entry(now, id, force) {
                    Ok(Removal::Waiting(object)) => page.waiting.push(object),
                    Ok(Removal::Done) => {}
                    Err(_) => page.leased += 1,
                },
            }
        }
        Ok(())
    }

    fn remove_entry(&mut self, now: Now, id: EntryId, force: bool) -> Result<Removal, RemoveError> {
        let entry = self.objects.entry(id);
        match entry.stage {
            Stage::Writing => return Err(RemoveError::InProgress),
            Stage::Removing(_) => return Err(RemoveError::Deferred { after_ms: DEFERRED_MS }),
            Stage::Ready => {}
        }
        if let Some(left_ms) = self.kept_ms(now, id)
            && !force
        {
            return Err(RemoveError::Leased { left_ms });
        }
        if self.is_announcing(id) {
            return Err(RemoveError::Rebuilding { after_ms: DEFERRED_MS });
        }
        let object = entry.object;
        self.counters.removed += 1;
        self.chain_removed(id);
        // If the list must be written first, the next look at lapsed segments answers for their owners.
        if !self.is_cut_off(id) || !self.give_up(now, id) {
            self.retire(now, id);
        }
        if self.removed(object) || canary::on(Canary::EarlyRemoveReply) {
            return Ok(Removal::Done);
        }
        Ok(Removal::Waiting(object))
    }

    /// Ends the copy of a finished object in one segment; the object goes with its last copy. A lease or
    /// a hold refuses it, as it refuses a remove.
    pub fn drop_copy<'a>(
        &mut self,
        now: Now,
        name: impl Into<Name<'a>>,
        segment: SegmentId,
    ) -> Result<(), CopyError> {
        let name = name.into();
        key::check(name.key)?;
        let id = self.objects.find(name).ok_or(CopyError::NotFound)?;
        if self.objects.entry(id).stage != Stage::Ready {
            return Err(CopyError::NotFound);
        }
        if let Some(after_ms) = self.kept_ms(now, id) {
            return Err(CopyError::Busy { after_ms });
        }
        if self.rebuild.is_some() || self.is_announcing(id) {
            return Err(CopyError::Busy { after_ms: DEFERRED_MS });
        }
        let index = self.segments.find(segment).ok_or(CopyError::NoSource)?;
        let parts = self.objects.entry(id).parts.as_slice().iter();
        let there: Vec<Part> = parts.filter(|part| part.segment == index).copied().collect();
        if there.is_empty() {
            return Err(CopyError::NoSource);
        }
        if there.iter().any(|part| part.state != PartState::Here) {
            return Err(CopyError::Busy { after_ms: DEFERRED_MS });
        }
        self.strike(name.hash().0);
        // It is not missing from now on: nobody shall repair it.
        let disk = self.segments.is_disk(index);
        let entry = self.objects.entry_mut(id);
        let (copies, on_disk) = (entry.copies(), entry.on_disk());
        if disk {
            entry.saved = true;
            if on_disk > 0 {
                entry.extra_mut().on_disk = (on_disk - 1) as u8;
            }
        } else if copies > 1 {
            entry.extra_mut().copies = (copies - 1) as u8;
        }
        for part in &there {
            self.retire_part(now, id, part);
        }
        Ok(())
    }

    /// Whether a segment with a part of it is still telling what it holds: it takes no orders yet.
    pub(super) fn is_announcing(&self, id: EntryId) -> bool {
        let mut parts = self.objects.entry(id).parts.as_slice().iter();
        parts.any(|part| {
            let book = self.segments.book(part.segment);
            book.is_announcing() && !book.takes_orders()
        })
    }

    /// Hides a finished object and orders the end of all its copies. It is gone when every owner has
    /// said that nobody can begin to read its copy. No segment of it may be announcing.
    pub(super) fn retire(&mut self, now: Now, id: EntryId) {
        let charge = self.charge_of(self.objects.entry(id));
        let entry = self.objects.entry_mut(id);
        let action = Action::Retire { free_after_ms: lease::left_ms(now, entry.lease_end) };
        let parts: Vec<Part> = entry.parts.as_slice().to_vec();
        let left = parts.len() as u16 + entry.orphans();
        entry.stage = Stage::Removing(left);
        let (object, hash) = (entry.object, entry.hash);
        self.discharge(id, charge);
        self.removing.insert(object);
        self.strike(hash);
        for part in &parts {
            let extent = self.objects.entry(id).extent(part);
            // A segment that is leaving answers for its copy when it is fenced: `sweep`.
            if self.segments.book(part.segment).takes_orders() {
                self.end_life(now, part, extent, action, id);
            }
        }
        self.objects.entry_mut(id).parts = Parts::new(Vec::new());
        self.chain_shrunk(id);
        if left == 0 {
            self.forget(id);
        }
    }

    /// Whether the removal of this object is done.
    pub fn removed(&self, object: ObjectId) -> bool {
        !self.removing.contains(&object)
    }
}
