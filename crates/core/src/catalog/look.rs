//! look: what is known of keys, for callers who want to tell "not there" from "not yet there", and who
//! want their lookups to count.
//!
//! A *hold* is what such a lookup leaves behind: for [`super::Config::lease_ttl`] a remove without
//! force is refused. It is less than a lease: it delays no eviction and no free, so a caller that asks
//! for everything again and again cannot make the pool unevictable; what it asked for only moves back
//! in the eviction order. A new leader knows no holds.

use super::Catalog;
use super::chains::Batch;
use super::objects::{EntryId, Stage};
use crate::error::GetError;
use crate::ids::TenantId;
use crate::key::{self, Name};
use crate::lease;
use crate::plan::{Located, Looked};
use crate::time::{Now, nanos};
use std::time::Duration;

/// What a look asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LookFor {
    /// Hold what is found.
    pub hold: bool,
    /// Return where it is.
    pub places: bool,
    /// The caller is about to read what is found: count it as a read, as `locate` does.
    pub reads: bool,
}

impl Catalog {
    /// What is known of each key.
    pub fn look(
        &mut self,
        now: Now,
        tenant: TenantId,
        keys: &[&[u8]],
        ask: LookFor,
    ) -> Vec<Result<Looked, GetError>> {
        let found = self.objects.find_many(tenant, keys);
        if ask.hold || ask.reads {
            self.count_request();
        }
        let (mut batch, keys) = (Batch::new(&found), keys.iter().enumerate());
        keys.map(|(at, key)| {
            key::check(key)?;
            batch.at = at;
            let looked = self.look_at(now, found[at], ask, &mut batch);
            if let Ok(Looked::Missing) = looked {
                self.chain_missed(Name::new(tenant, key), &mut batch);
            }
            looked
        })
        .collect()
    }

    fn look_at(
        &mut self,
        now: Now,
        found: Option<EntryId>,
        ask: LookFor,
        batch: &mut Batch<'_>,
    ) -> Result<Looked, GetError> {
        if let Some(id) = found
            && self.objects.entry(id).stage == Stage::Writing
        {
            return Ok(Looked::Writing);
        }
        let looked = if ask.places {
            let located = if ask.reads {
                self.locate_found(now, found, 0, batch)
            } else {
                self.peek_found(now, found, ask.hold, batch)
            };
            match located {
                Ok(mut located) => {
                    if ask.hold {
                        located.lease_ms = millis(self.config.lease_ttl);
                    }
                    Looked::At(located)
                }
                Err(GetError::NotFound) => Looked::Missing,
                Err(error) => return Err(error),
            }
        } else {
            match found {
                Some(id) if self.exist_found(now, found)? => {
                    if ask.hold {
                        self.touch_parts(id);
                        self.chain_read(id, batch);
                    }
                    let entry = self.objects.entry(id);
                    Looked::Here { len: entry.len, group: entry.group() }
                }
                Some(_) => Looked::Missing,
                None => {
                    // Says so if it may still be announced.
                    self.exist_found(now, None)?;
                    Looked::Missing
                }
            }
        };
        if let (Some(id), true, Looked::At(_) | Looked::Here { .. }) = (found, ask.hold, &looked) {
            let until = now.plus(self.config.lease_ttl);
            let entry = self.objects.entry_mut(id);
            entry.held_until = entry.held_until.max(until);
        }
        Ok(looked)
    }

    /// Where a value is, for a caller that only asks whether it exists: no read is counted, and the value moves
    /// back in the eviction order only where it is held.
    fn peek_found(
        &mut self,
        now: Now,
        found: Option<EntryId>,
        hold: bool,
        batch: &mut Batch<'_>,
    ) -> Result<Located, GetError> {
        let Some((id, located)) = found.and_then(|id| Some((id, self.located(id)?))) else {
            self.exist_found(now, None)?;
            return Err(GetError::NotFound);
        };
        if hold {
            self.touch_parts(id);
            self.chain_read(id, batch);
        }
        Ok(located)
    }

    /// How long a remove without force has to wait, if it has to: for a lease that was asked for, or a
    /// hold. Leases of earlier leaders are unknown, not asked for: they delay the range, not the call.
    pub(super) fn kept_ms(&self, now: Now, id: EntryId) -> Option<u32> {
        let entry = self.objects.entry(id);
        let leased = if entry.lease_end == self.grace_until { Now(0) } else { entry.lease_end };
        let end = leased.max(entry.held_until);
        (end > now).then(|| lease::left_ms(now, end))
    }
}

/// A span in whole milliseconds.
fn millis(span: Duration) -> u32 {
    u32::try_from(nanos(span) / 1_000_000).unwrap_or(u32::MAX)
}
