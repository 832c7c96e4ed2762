//! Values whose bytes are not those that were sealed: a flipped bit, or a store through a mapping by
//! somebody who had no business there; and values that a writer told the master of under another seal.
//!
//! ```text
//! a reader doubts ─► verify: pin, sum ─┬─ as sealed, and as the reader was told: nothing changes
//!                                      ├─ as sealed, told otherwise: `Holds`, the master compares
//!                                      ├─ nothing was published, nor when `tick` tells: `Holds`, the master compares
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
use mooncrate_core::{Generation, Locator, Now, ReplicaState, Seal, Slot};
use std::sync::Arc;
use std::time::Duration;

/// How long a master may take to order the end of a bad value before it is told again.
const TELL_AGAIN: Duration = Duration::from_millis(500);

impl Segment {
    /// Sums what a locator names, because a reader found it wrong: whether the bytes are those that were
    /// sealed, and the seal is the one that the reader was `told`. If the bytes are bad, nobody can read the
    /// value from here on; if the reader was told something else, the master hears what is held here.
    /// [`Segment::tick`] tells either.
    pub fn verify(
        self: &Arc<Self>,
        now: Now,
        locator: &Locator,
        told: Seal,
    ) -> Result<bool, SegmentError> {
        let (slot, generation) = (locator.slot, locator.generation);
        let pin = match self.pin(now, locator) {
            Err(_) if self.is_unpublished(locator) => {
                self.hold_news(slot, generation, None);
                return Ok(false);
            }
            pin => pin?,
        };
        match pin.verify() {
            // Nobody has seen the bytes: that says nothing about them.
            Err(ReadError::Busy) => return Err(SegmentError::NoRoom),
            Err(ReadError::Device) => return Err(SegmentError::Device),
            verified if verified.is_ok() || canary::on(Canary::BadCopyKept) => {
                let seal = pin.seal();
                if seal != told {
                    self.hold_news(slot, generation, Some(seal));
                }
                return Ok(seal == told);
            }
            _ => {}
        }
        drop(pin);
        self.unlink(now, slot, generation, |life| (life.bad, life.queued) = (true, true))?;
        self.bad.fetch_add(1, Ordering::Relaxed);
        self.look_at(now, slot, generation);
        Ok(false)
    }

    /// Whether a life has not come to its value: a writer may still be at it, or nobody ever was.
    fn is_unpublished(&self, locator: &Locator) -> bool {
        let known = self.check_locator(locator);
        known.is_ok() && self.is_open(locator.slot, locator.generation)
    }

    fn is_open(&self, slot: Slot, generation: Generation) -> bool {
        let word = self.load(slot);
        let open = [ReplicaState::Dead, ReplicaState::Reserved, ReplicaState::Writing];
        word.generation() == generation && open.contains(&word.state())
    }

    /// What is held under a life is told once; whoever misses it asks again. Peers ask at their own rate, so a slot has
    /// one such notice at a time.
    fn hold_news(&self, slot: Slot, generation: Generation, seal: Option<Seal>) {
        if self.held.lock().insert(slot, (generation, seal)).is_none() {
            self.ring();
        }
    }

    /// Tells what is held, some at a time. A life that was published since, or is over, is not told as one that was
    /// not: its put may have ended, and the master would give a good value up.
    pub(super) fn tell_held(&self, most: usize, news: &mut Vec<Notice>) {
        for _ in 0..most {
            let Some((slot, (generation, seal))) = self.held.lock().pop_first() else { return };
            if seal.is_some() || self.is_open(slot, generation) {
                news.push(self.notice(slot, generation, OrderResult::Holds { seal }));
            }
        }
    }

    /// Says that a value is bad, and when to say it again.
    pub(super) fn tell_bad(&self, now: Now, slot: Slot, generation: Generation) -> Notice {
        self.look_at(now.plus(TELL_AGAIN), slot, generation);
        self.notice(slot, generation, OrderResult::Bad)
    }
}
