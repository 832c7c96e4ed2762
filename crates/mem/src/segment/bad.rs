//! Values whose bytes are not those that were sealed: a flipped bit, or a store through a mapping by
//! somebody who had no business there.
//!
//! ```text
//! a reader doubts ─► verify: pin, sum ─┬─ as sealed: nothing changes
//!                                      └─ not: Ready ─► Retiring, `Bad` told until an order comes
//! ```
//!
//! What must stay true: only the owner's own sum ends a life here, never a reader's word (G16); a bad
//! value is never Ready again; its range is freed by the master's order alone, which knows the leases.

use super::{Segment, SegmentError};
use crate::atomic::Ordering;
use crate::read::ReadError;
use mooncrate_core::canary::{self, Canary};
use mooncrate_core::plan::{Notice, OrderResult};
use mooncrate_core::{Generation, Locator, Now, Slot};
use std::sync::Arc;
use std::time::Duration;

/// How long a master may take to order the end of a bad value before it is told again.
const TELL_AGAIN: Duration = Duration::from_millis(500);

impl Segment {
    /// Sums what a locator names, because a reader found it wrong: whether the bytes are those that were
    /// sealed. If not, nobody can read the value from here on, and [`Segment::tick`] tells so.
    pub fn verify(self: &Arc<Self>, now: Now, locator: &Locator) -> Result<bool, SegmentError> {
        let pin = self.pin(now, locator)?;
        match pin.verify() {
            // Nobody has seen the bytes: that says nothing about them.
            Err(ReadError::Busy) => return Err(SegmentError::NoRoom),
            Err(ReadError::Device) => return Err(SegmentError::Device),
            verified if verified.is_ok() || canary::on(Canary::BadCopyKept) => return Ok(true),
            _ => {}
        }
        drop(pin);
        let (slot, generation) = (locator.slot, locator.generation);
        self.unlink(now, slot, generation, |life| (life.bad, life.queued) = (true, true))?;
        self.bad.fetch_add(1, Ordering::Relaxed);
        self.look_at(now, slot, generation);
        Ok(false)
    }

    /// Says that a value is bad, and when to say it again.
    pub(super) fn tell_bad(&self, now: Now, slot: Slot, generation: Generation) -> Notice {
        self.look_at(now.plus(TELL_AGAIN), slot, generation);
        self.notice(slot, generation, OrderResult::Bad)
    }
}
