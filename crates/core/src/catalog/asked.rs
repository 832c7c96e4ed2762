//! Copies and moves that somebody asks for by name.

use super::Catalog;
use super::copy::{NoCopy, Purpose};
use super::objects::{EntryId, PartState, SegmentIndex, Stage};
use crate::error::CopyError;
use crate::ids::{SegmentId, TenantId};
use crate::key::{self, Name};
use crate::limits::REPLICAS_MAX;
use crate::plan::Medium;
use crate::time::Now;

/// Hint for a caller while copies are under way, or room is made.
const BUSY_MS: u32 = 20;

impl Catalog {
    /// Sees to it that a finished object has a copy in the segment `to`, instead of the one in `from`
    /// if that is given; whether it is so by now. Call again until it is: a copy that fails is begun
    /// anew by that.
    pub fn copy<'a>(
        &mut self,
        now: Now,
        name: impl Into<Name<'a>>,
        from: Option<SegmentId>,
        to: SegmentId,
    ) -> Result<bool, CopyError> {
        let name = name.into();
        key::check(name.key)?;
        let id = self.objects.find(name).ok_or(CopyError::NotFound)?;
        let entry = self.objects.entry(id);
        if entry.stage != Stage::Ready || !self.readable(entry) {
            return Err(CopyError::NotFound);
        }
        let open = |index: &SegmentIndex| self.segments.loads[usize::from(*index)].open;
        let to_index = self.segments.find(to).filter(open).ok_or(CopyError::NoTarget)?;
        let from_index = from.map(|from| self.segments.find(from).ok_or(CopyError::NoSource));
        let from_index = from_index.transpose()?;
        let mut done = true;
        for stripe in 0..entry.stripes() as u8 {
            done &= self.copy_stripe(now, id, stripe, from_index, (to, to_index))?;
        }
        if done && from.is_none() {
            self.wish_for_all(id);
        }
        Ok(done)
    }

    /// A copy that somebody asked for is one that the object should have.
    fn wish_for_all(&mut self, id: EntryId) {
        let entry = self.objects.entry_mut(id);
        let segments = &self.segments;
        let first = entry.parts.as_slice().iter().filter(|part| part.stripe == 0);
        let memory = first.filter(|part| !segments.is_disk(part.segment));
        let here = memory.filter(|part| part.state == PartState::Here);
        let have = here.clone().count();
        let vram = here.filter(|part| segments.medium(part.segment) == Medium::Vram).count();
        if have > entry.copies() {
            let extra = entry.extra_mut();
            extra.copies = have.min(REPLICAS_MAX) as u8;
            // In VRAM as many as there are, because a copy there was asked for by name.
            extra.in_vram = Some(extra.in_vram.unwrap_or(0).max(vram as u8));
        }
    }

    fn holds_too_much(&self, tenant: TenantId) -> bool {
        let tenant = self.tenant(tenant);
        tenant.quota.is_some_and(|quota| tenant.used > quota)
    }

    fn copy_stripe(
        &mut self,
        now: Now,
        id: EntryId,
        stripe: u8,
        from: Option<SegmentIndex>,
        to: (SegmentId, SegmentIndex),
    ) -> Result<bool, CopyError> {
        let Some(entry) = self.objects.get(id) else { return Err(CopyError::NotFound) };
        let parts = entry.parts.as_slice();
        let at = |segment| {
            parts.iter().find(|part| part.segment == segment && part.stripe == stripe).copied()
        };
        let leaving = from.filter(|from| *from != to.1).and_then(at);
        match at(to.1).map(|part| part.state) {
            Some(PartState::Here) => {
                if let Some(leaving) = leaving.filter(|part| part.state == PartState::Here) {
                    self.retire_part(now, id, &leaving);
                }
                return Ok(true);
            }
            Some(_) => return Ok(false),
            None if from.is_some() && leaving.is_none() => return Err(CopyError::NoSource),
            // What is not there yet, or may go, or moves elsewhere already, cannot be moved: it, or its first
            // copy, would stay beside the other, and the tenant could have more than its quota.
            None if leaving.is_some_and(|part| {
                part.state != PartState::Here || self.moves_already(entry, &part)
            }) =>
            {
                return Err(CopyError::Busy { after_ms: BUSY_MS });
            }
            // What has moved is paid for in its old place until nobody views it there. Drains and demotions go on:
            // the master begins those.
            None if leaving.is_some() && self.holds_too_much(entry.tenant) => {
                return Err(CopyError::NoRoom { after_ms: BUSY_MS });
            }
            None => {}
        }
        let purpose = Purpose { to: Some(to.0), leaving, make_room: true, ..Purpose::default() };
        match self.copy_start(now, id, stripe, purpose) {
            Ok(()) | Err(NoCopy::Later) => Ok(false),
            Err(NoCopy::NoRoom) => Err(CopyError::NoRoom { after_ms: BUSY_MS }),
            Err(NoCopy::Impossible) => Err(CopyError::Busy { after_ms: BUSY_MS }),
        }
    }
}
