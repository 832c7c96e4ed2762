//! Ending lives: the master's orders, and the clockwork that frees what had to wait.
//!
//! An order names one life; whatever state it is in, the order ends it, and a repeated order finds
//! it over (G10). What is said to be `Freed` is freed: the bump came first (R1).

use super::lives::Life;
use super::{Segment, SegmentError};
use crate::bell::Bell;
use mooncrate_core::canary::{self, Canary};
use mooncrate_core::plan::{Action, Notice, Order, OrderResult};
use mooncrate_core::state::Event;
use mooncrate_core::word::WordError;
use mooncrate_core::{Generation, LeaderEpoch, Now, ReplicaState, Slot};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

/// Slots that one tick looks at, so that a tick stays short.
const TICK_SLOTS_MAX: usize = 1024;
/// Bytes after which a tick that zeroes them ends.
const TICK_WIPE_BYTES: u64 = 64 << 20;
/// How soon a slot that was due but pinned is looked at again.
const PINNED_POLL: Duration = Duration::from_millis(1);

/// How soon a range that could not be zeroed is tried again.
const WIPE_AGAIN: Duration = Duration::from_secs(1);

/// Retiring slots by the time to look at them, soonest first.
pub(super) type Queue = BinaryHeap<Reverse<(Now, Slot, Generation)>>;

const RECLAIM: Event = Event::Reclaim { pins: 0 };

impl Segment {
    /// Ends a life, as the leader of `epoch` orders. `Waiting` is followed by an unasked `Freed`.
    pub fn execute(
        &self,
        now: Now,
        epoch: LeaderEpoch,
        order: &Order,
    ) -> Result<Notice, SegmentError> {
        let Order { segment, incarnation, slot, generation, action } = *order;
        self.check_mount(segment, incarnation, slot)?;
        let mut life = self.lives.lock(slot);
        {
            let mut front = self.front.lock();
            front.witness(epoch)?;
            // A slot that was bumped must be announced as such.
            front.high_water = front.high_water.max(slot.0 + 1);
        }
        let result = self.end_life(now, slot, generation, action, &mut life)?;
        Ok(self.notice(slot, generation, result))
    }

    /// Hands out the news of lives that ended without an order, and frees retiring slots whose time
    /// is over and whose readers have left. A bounded amount of work: call it again soon.
    pub fn tick(&self, now: Now, news: &mut Vec<Notice>) {
        news.append(&mut self.news.lock());
        self.tell_held(TICK_SLOTS_MAX, news);
        let mut wiped = 0;
        for _ in 0..TICK_SLOTS_MAX {
            let Some((slot, generation)) = self.next_due(now) else { return };
            let mut life = self.lives.lock(slot);
            // A life that is over needs nothing more; its slot may already have the next one.
            if self.load(slot).generation() != generation {
                continue;
            }
            if life.as_ref().is_some_and(|life| life.bad) {
                news.push(self.tell_bad(now, slot, generation));
                continue;
            }
            if let Some(life) = life.as_mut() {
                life.queued = false;
            }
            if self.wipes {
                wiped += self.extent(slot).len();
            }
            let told = life.as_ref().is_some_and(|life| life.told_freed);
            let result = if self.wipes_far().is_some() {
                drop(life);
                self.wipe_and_free(now, slot, generation)
            } else {
                self.free_or_wait(now, slot, generation, &mut life)
            };
            if !told && let OrderResult::Freed { .. } = result {
                news.push(self.notice(slot, generation, result));
            }
            if wiped > TICK_WIPE_BYTES {
                return;
            }
        }
    }

    /// Has `bell` rung whenever [`Segment::tick`] has something to do sooner than [`Segment::next_look`]
    /// said. The first one stays.
    pub fn set_bell(&self, bell: &Arc<Bell>) {
        self.bell.get_or_init(|| Arc::clone(bell));
    }

    /// When there will be something for [`Segment::tick`] to do, if nothing happens before; `None`: never.
    pub fn next_look(&self) -> Option<Now> {
        if !self.news.lock().is_empty() || !self.held.lock().is_empty() {
            return Some(Now(0));
        }
        self.queue.lock().peek().map(|Reverse((due, ..))| *due)
    }

    /// Queues a slot. Whoever ticks is told, unless it will look before that anyway.
    pub(super) fn look_at(&self, due: Now, slot: Slot, generation: Generation) {
        let sooner = {
            let mut queue = self.queue.lock();
            let sooner = queue.peek().is_none_or(|Reverse((first, ..))| due < *first);
            queue.push(Reverse((due, slot, generation)));
            sooner
        };
        if sooner {
            self.ring();
        }
    }

    /// Tells whoever ticks to look now.
    pub fn ring(&self) {
        if let Some(bell) = self.bell.get() {
            bell.ring();
        }
    }

    fn next_due(&self, now: Now) -> Option<(Slot, Generation)> {
        let mut queue = self.queue.lock();
        let Reverse((due, slot, generation)) = *queue.peek()?;
        if due > now {
            return None;
        }
        queue.pop();
        Some((slot, generation))
    }

    fn end_life(
        &self,
        now: Now,
        slot: Slot,
        generation: Generation,
        action: Action,
        life: &mut Option<Life>,
    ) -> Result<OrderResult, SegmentError> {
        let word = self.load(slot);
        if word.generation() > generation {
            // Over, unless its writer may still store: then the slot waits one generation on.
            let quarantined = word.state() == ReplicaState::Failed
                && Some(word.generation()) == generation.next();
            let over = OrderResult::Freed { next: word.generation() };
            return Ok(if quarantined { OrderResult::Waiting } else { over });
        }
        if word.generation() < generation {
            return Err(SegmentError::Stale { wanted: generation, found: word });
        }
        match word.state() {
            ReplicaState::Dead => self.skip_life(now, slot, generation),
            ReplicaState::Reserved | ReplicaState::Writing => {
                self.step(Some(now), slot, generation, Event::Abort)?;
                // The guard's end fences it and tells.
                Ok(OrderResult::Waiting)
            }
            ReplicaState::Ready if action == Action::Evict => {
                self.evict(now, slot, generation, life)
            }
            ReplicaState::Ready => {
                self.step(Some(now), slot, generation, Event::Unlink)?;
                Ok(self.retire(now, slot, generation, action, life))
            }
            ReplicaState::Retiring => Ok(self.retire(now, slot, generation, action, life)),
            // Quarantine of the life before; the one that was asked about has not begun.
            ReplicaState::Failed => Err(SegmentError::Stale { wanted: generation, found: word }),
        }
    }

    /// A life that was planned and never begun: bumps past it, so that a late writer is refused.
    fn skip_life(
        &self,
        now: Now,
        slot: Slot,
        generation: Generation,
    ) -> Result<OrderResult, SegmentError> {
        self.step(Some(now), slot, generation, Event::Reserve)?;
        let next = self.step(Some(now), slot, generation, Event::Abort)?.generation();
        self.step(Some(now), slot, next, Event::Fence)?;
        Ok(OrderResult::Freed { next })
    }

    /// Frees a Ready slot, or leaves it as it is.
    fn evict(
        &self,
        now: Now,
        slot: Slot,
        generation: Generation,
        life: &mut Option<Life>,
    ) -> Result<OrderResult, SegmentError> {
        if canary::on(Canary::FreeBeforeBump) {
            return Ok(self.evict_without_bump(now, slot, generation, life));
        }
        if self.wipes_far().is_some() {
            if self.load(slot).pins() > 0 {
                return Ok(OrderResult::Pinned);
            }
            self.step(Some(now), slot, generation, Event::Unlink)?;
            return Ok(self.free_or_wait(now, slot, generation, life));
        }
        match self.step(Some(now), slot, generation, RECLAIM) {
            Ok(word) => {
                self.wipe(self.extent(slot));
                *life = None;
                Ok(OrderResult::Freed { next: word.generation() })
            }
            Err(WordError::Pinned { .. }) => Ok(OrderResult::Pinned),
            Err(stale) => Err(stale.into()),
        }
    }

    /// Notes how long a Retiring slot must wait, and frees it if that is over already.
    fn retire(
        &self,
        now: Now,
        slot: Slot,
        generation: Generation,
        action: Action,
        life: &mut Option<Life>,
    ) -> OrderResult {
        let wait = match action {
            Action::Retire { free_after_ms } => Duration::from_millis(u64::from(free_after_ms)),
            // An aborted or evicted slot has no reader who was promised time.
            Action::Abort | Action::Evict => Duration::ZERO,
        };
        if let Some(life) = life {
            // A second order never shortens what the first one promised.
            life.free_after = life.free_after.max(now.plus(wait));
            if std::mem::take(&mut life.bad) {
                // Its place in the queue was for telling.
                life.queued = false;
            }
        }
        self.free_or_wait(now, slot, generation, life)
    }

    fn free_or_wait(
        &self,
        now: Now,
        slot: Slot,
        generation: Generation,
        life: &mut Option<Life>,
    ) -> OrderResult {
        let Some(known) = life else {
            unreachable!("slot {slot} is retiring without a life");
        };
        let mut look_at = known.free_after;
        // A range of far memory is zeroed by a tick, which holds no lock meanwhile.
        if look_at <= now && self.wipes_far().is_none() {
            match self.step(Some(now), slot, generation, RECLAIM) {
                Ok(word) => {
                    self.wipe(self.extent(slot));
                    *life = None;
                    return OrderResult::Freed { next: word.generation() };
                }
                Err(_) => look_at = now.plus(PINNED_POLL),
            }
        }
        if !known.queued {
            known.queued = true;
            self.look_at(look_at, slot, generation);
        }
        OrderResult::Waiting
    }

    /// Zeroes the far range of a Retiring slot whose time is over and whose readers have left, and frees
    /// it. Nobody can pin it any more, so nobody needs the lock to keep away from the range; until it is
    /// clean the slot stays Retiring, so nobody is told that it is free.
    fn wipe_and_free(&self, now: Now, slot: Slot, generation: Generation) -> OrderResult {
        let due = {
            let mut life = self.lives.lock(slot);
            let Some(known) = life.as_mut().filter(|_| self.load(slot).generation() == generation)
            else {
                return OrderResult::Waiting;
            };
            // Its place in the queue is ours until the range is clean.
            known.queued = true;
            known.free_after <= now && self.load(slot).pins() == 0
        };
        let clean = due && self.wipe_far(self.extent(slot));
        let mut life = self.lives.lock(slot);
        if self.load(slot).generation() != generation {
            return OrderResult::Waiting;
        }
        let Some(known) = life.as_mut() else { return OrderResult::Waiting };
        if clean
            && known.free_after <= now
            && let Ok(word) = self.step(Some(now), slot, generation, RECLAIM)
        {
            *life = None;
            return OrderResult::Freed { next: word.generation() };
        }
        let pause = if due { WIPE_AGAIN } else { PINNED_POLL };
        let look_at = known.free_after.max(now.plus(pause));
        self.look_at(look_at, slot, generation);
        OrderResult::Waiting
    }

    /// Canary 2: says "freed" and bumps later.
    fn evict_without_bump(
        &self,
        now: Now,
        slot: Slot,
        generation: Generation,
        life: &mut Option<Life>,
    ) -> OrderResult {
        if self.load(slot).pins() > 0 {
            return OrderResult::Pinned;
        }
        if let Some(life) = life {
            life.told_freed = true;
            life.free_after = now.plus(Duration::from_millis(5));
            life.queued = true;
            self.look_at(life.free_after, slot, generation);
        }
        OrderResult::Freed { next: generation.next().unwrap_or(Generation::MAX) }
    }

    /// Canary 2: the bump that was left out, just before the slot is used again.
    pub(super) fn bump_late(&self, now: Now, slot: Slot, life: &mut Option<Life>) {
        if life.as_ref().is_some_and(|life| life.told_freed)
            && self.step(Some(now), slot, self.load(slot).generation(), RECLAIM).is_ok()
        {
            *life = None;
        }
    }
}
