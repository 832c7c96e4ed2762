//! remove: hide in the index, let every owner retire its copy, then say so (M5).

use super::Catalog;
use super::objects::{Part, Parts, Stage};
use crate::canary::{self, Canary};
use crate::error::RemoveError;
use crate::ids::ObjectId;
use crate::key;
use crate::lease;
use crate::plan::Action;
use crate::time::Now;

/// Hint while an owner has not answered.
const DEFERRED_MS: u32 = 5;

/// How far a remove is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// Nobody can read the value any more.
    Done,
    /// Hidden; orders are out. Ask [`Catalog::removed`] after their notices came in.
    Waiting(ObjectId),
}

impl Catalog {
    /// Starts to remove a key. A lease that was asked for refuses it, unless `force`: then the
    /// holder keeps its bytes until the lease ends, and nobody new can read them. No flag frees
    /// bytes under a reader.
    pub fn remove(&mut self, now: Now, key: &[u8], force: bool) -> Result<Removal, RemoveError> {
        key::check(key)?;
        // A copy that is not announced yet would bring the value back after it was removed (G6).
        if let Some(rebuild) = &self.rebuild {
            return Err(RemoveError::Rebuilding { after_ms: rebuild.hint_ms(now) });
        }
        let Some(id) = self.objects.find(key::hash(key), key) else {
            return Err(RemoveError::NotFound);
        };
        let entry = self.objects.entry(id);
        match entry.stage {
            Stage::Writing => return Err(RemoveError::InProgress),
            Stage::Removing(_) => return Err(RemoveError::Deferred { after_ms: DEFERRED_MS }),
            Stage::Ready => {}
        }
        // Leases of earlier leaders are unknown, not asked for: they delay the range, not the call.
        let known_lease = entry.lease_end > now && entry.lease_end != self.grace_until;
        if known_lease && !force {
            return Err(RemoveError::Leased { left_ms: lease::left_ms(now, entry.lease_end) });
        }

        let parts: Vec<Part> = entry.parts.as_slice().to_vec();
        if parts.iter().any(|part| self.segments.book(part.segment).is_announcing()) {
            return Err(RemoveError::Rebuilding { after_ms: DEFERRED_MS });
        }
        let action = Action::Retire { free_after_ms: lease::left_ms(now, entry.lease_end) };
        let object = entry.object;
        self.objects.entry_mut(id).stage = Stage::Removing(parts.len() as u8);
        self.counters.removed += 1;
        for part in &parts {
            let extent = self.objects.entry(id).extent(part);
            // A segment that is leaving answers for its copy when it is fenced: `sweep`.
            if self.segments.book(part.segment).is_open() {
                self.end_life(now, part, extent, action, Some(id));
            }
        }
        self.objects.entry_mut(id).parts = Parts::new(Vec::new());
        if canary::on(Canary::EarlyRemoveReply) {
            return Ok(Removal::Done);
        }
        Ok(Removal::Waiting(object))
    }

    /// Whether the remove of this object is done.
    pub fn removed(&self, key: &[u8], object: ObjectId) -> bool {
        let found = self.objects.find(key::hash(key), key);
        found.is_none_or(|id| self.objects.entry(id).object != object)
    }
}
