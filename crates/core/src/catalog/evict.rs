//! evict: choose victims by bytes, order their eviction, and know when everything is in use.
//!
//! A victim that has another copy goes at once. One that has none is copied to the medium below first, from
//! VRAM to memory of a host and from there to a disk, if something takes it, and goes when it is there:
//! whoever needs the room waits meanwhile.

use super::Catalog;
use super::copy::NoCopy;
use super::objects::{EntryId, Part, PartState, SegmentIndex};
use super::segments::{Book, SlotBook};
use crate::chunked::Chunked;
use crate::evict::EvictPolicy;
use crate::ids::{SegmentId, Slot};
use crate::plan::Action;
use crate::time::Now;
use std::cell::RefCell;
use std::time::Duration;

/// Hint for a caller when everything is in use.
pub(super) const BUSY_HINT_MS: u32 = 10;
/// Victims looked at in one call.
const LOOKS_MAX: usize = 64;
/// After this many victims in a row that could not go, the segment counts as in use …
const STREAK_MAX: u32 = 256;
/// … for this long; then it is tried again.
const STREAK_PAUSE: Duration = Duration::from_millis(10);
/// Victims ordered beside one put while a segment is above its high watermark.
const BESIDE_PUT_MAX: usize = 8;

/// How a put makes room: candidates looked at, and what may go.
pub(super) const FOR_PUT: (usize, Cause) = (LOOKS_MAX, Cause::Put);

/// What room is made for, and so what may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// A put: everything that is not in use, soft pins last.
    Put,
    /// A segment above its high watermark, or a victim of VRAM: everything but soft pins.
    Watermark,
    /// A copy that is only welcome: nothing that would be lost by it.
    Promotion,
}

/// What becomes of a victim.
enum Fate {
    /// It can go at once.
    Goes,
    /// It goes when its copy below is there.
    Moves,
    /// What lies below is busy: it stays where it is in the order.
    Waits,
    /// It would be lost, and must not be.
    Stays,
}

/// What a segment holds, as an eviction leaves it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InUse {
    /// Bytes of values and open puts.
    pub used_bytes: u64,
    /// Bytes that were ordered to go, and wait for their owner, readers or leases.
    pub ending_bytes: u64,
}

/// What became of an attempt to make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reclaim {
    /// Orders are out, now or from before: room is coming.
    Ordered,
    /// Everything there is pinned, leased or being written.
    InUse,
}

impl Catalog {
    /// Orders evictions in one segment for somebody who needs `bytes`.
    pub(super) fn reclaim(
        &mut self,
        now: Now,
        segment: SegmentIndex,
        bytes: u64,
        (looks, cause): (usize, Cause),
    ) -> Reclaim {
        let book = self.segments.book_mut(segment);
        if book.all_in_use() {
            if now.since(book.pinned_at) < STREAK_PAUSE {
                return Reclaim::InUse;
            }
            book.pinned_streak = 0;
        }
        // Evictions on their way out may be enough; if they were not, the caller comes again. What a
        // remove left to its last readers may take long, so it does not count alone (M13).
        let moving = book.moving_out(now);
        let none = book.evicting == 0 && moving == 0;
        let mut waits = false;
        if none || book.ending_bytes + moving < bytes {
            waits = self.evict_bytes(now, segment, bytes, looks, cause);
        }
        let book = self.segments.book(segment);
        let coming = book.evicting > 0 || book.moving_out(now) > 0 || waits;
        if coming { Reclaim::Ordered } else { Reclaim::InUse }
    }

    /// Keeps a segment between its watermarks: a few victims beside each put, the rest by `tick`.
    pub(super) fn evict_above_high(&mut self, now: Now, segment: SegmentIndex) {
        self.evict_to_low(now, segment, BESIDE_PUT_MAX);
    }

    /// Orders evictions until the segment is at its low watermark, if it is above the high one.
    pub(super) fn evict_to_low(&mut self, now: Now, segment: SegmentIndex, looks: usize) {
        let book = self.segments.book(segment);
        // Bytes that are on their way out are neither used nor free: they count as gone.
        let used = book.used_bytes().saturating_sub(book.moving_out(now));
        if used > book.share(self.config.high_permille) && !book.is_disk() {
            let bytes = used - book.share(self.config.low_permille);
            self.evict_bytes(now, segment, bytes, looks, Cause::Watermark);
        }
    }

    /// Orders evictions until at most `used_max` bytes of a segment are in use, or a bounded step of them;
    /// how it stands then. `None`: there is no such segment, or its owner alone evicts from it.
    pub fn evict_below(&mut self, now: Now, segment: SegmentId, used_max: u64) -> Option<InUse> {
        let index = self.segments.find(segment)?;
        let book = self.segments.book(index);
        if book.is_disk() || !book.is_open() {
            return None;
        }
        let used = book.used_bytes().saturating_sub(book.moving_out(now));
        if used > used_max {
            self.evict_bytes(now, index, used - used_max, LOOKS_MAX, Cause::Watermark);
        }
        let book = self.segments.book(index);
        Some(InUse { used_bytes: book.used_bytes(), ending_bytes: book.ending_bytes })
    }

    /// Orders evictions for at least `bytes`, looking at no more than `looks` candidates; whether it
    /// ended because what lies below is busy. Soft pins go only for a put, and only when nothing else can.
    pub(super) fn evict_bytes(
        &mut self,
        now: Now,
        segment: SegmentIndex,
        bytes: u64,
        looks: usize,
        cause: Cause,
    ) -> bool {
        if let Some(chains) = &mut self.chains {
            chains.wake(now);
        }
        let mut ordered = self.evict_extras(now, segment, bytes);
        for _ in 0..looks {
            if ordered >= bytes {
                return false;
            }
            let Some(slot) = self.candidate(now, segment, cause) else { return false };
            let book = self.segments.book_mut(segment);
            let id = book.slots[slot.0].entry;
            let entry = self.objects.entry(id);
            if entry.lease_end > now {
                book.spare(slot);
                self.offer_victim(now, id, segment, slot);
                self.chain_leased(id);
                let book = self.segments.book_mut(segment);
                book.pinned_streak = book.pinned_streak.saturating_add(1);
                book.pinned_at = now;
                self.counters.evict_skipped += 1;
                continue;
            }
            let part = entry.part(segment, slot);
            let extent_bytes = entry.extent_bytes(part.stripe);
            match self.fate(now, id, part, cause) {
                Fate::Goes => {
                    self.segments.book_mut(segment).spare(slot);
                    self.order_eviction(now, id, part);
                }
                Fate::Moves => {
                    self.segments.book_mut(segment).spare(slot);
                    self.chain_shrunk(id);
                }
                Fate::Waits => return true,
                Fate::Stays => return false,
            }
            ordered += extent_bytes;
        }
        false
    }

    /// Who goes next in a segment.
    fn candidate(&mut self, now: Now, segment: SegmentIndex, cause: Cause) -> Option<Slot> {
        let kept = self.kept_in(segment);
        let (objects, chains) = (&self.objects, &self.chains);
        let ended = RefCell::new(Vec::new());
        let found = self.segments.book_mut(segment).candidate(cause, &kept, |slots, slot| {
            let (id, Some(chains)) = (slots[slot.0].entry, chains) else { return Some(0) };
            if chains.was_leased(id) {
                if objects.entry(id).lease_end > now {
                    return None;
                }
                ended.borrow_mut().push(id);
            }
            chains.worth(id)
        });
        // The next eviction need not load these entries.
        for id in ended.into_inner() {
            self.chain_lease_ended(id);
        }
        found
    }

    /// Slots in a segment of the value that a put follows.
    fn kept_in(&self, segment: SegmentIndex) -> Vec<Slot> {
        let kept = self.chains.as_ref().and_then(|chains| chains.kept());
        let Some(entry) = kept.and_then(|id| self.objects.get(id)) else { return Vec::new() };
        let parts = entry.parts.as_slice().iter();
        parts.filter(|part| part.segment == segment).map(|part| part.slot).collect()
    }

    /// What becomes of a victim. A copy of it to the medium below is begun, where it needs one.
    fn fate(&mut self, now: Now, id: EntryId, part: Part, cause: Cause) -> Fate {
        if self.has_other(id, &part) {
            return Fate::Goes;
        }
        if self.leave_for_running(now, id, part) {
            return Fate::Moves;
        }
        match self.save(now, id, part) {
            Ok(()) => Fate::Moves,
            Err(NoCopy::Later) => Fate::Waits,
            Err(_) if cause == Cause::Promotion => Fate::Stays,
            Err(_) => {
                self.counters.evicted_unsaved += u64::from(self.saves(part.segment));
                Fate::Goes
            }
        }
    }

    /// Whether another copy of the same bytes can be read.
    fn has_other(&self, id: EntryId, part: &Part) -> bool {
        let mut parts = self.objects.entry(id).parts.as_slice().iter();
        parts.any(|other| {
            let same = other.stripe == part.stripe && other.slot_of() != part.slot_of();
            same && self.part_readable(other)
        })
    }

    pub(super) fn order_eviction(&mut self, now: Now, id: EntryId, part: Part) {
        let entry = self.objects.entry_mut(id);
        entry.set_part(part.segment, part.slot, PartState::Evicting);
        self.chain_shrunk(id);
        let entry = self.objects.entry(id);
        let extent = entry.extent(&part);
        self.order(now, &part, extent, Action::Evict, (None, None));
    }
}

impl Book {
    /// The next victim. It stays in its list. A slot in `kept` is evicted only for a put, and after all others of its
    /// list: a soft pin stays while an ordinary value in `kept` can be evicted.
    fn candidate(
        &mut self,
        cause: Cause,
        kept: &[Slot],
        worth: impl Fn(&Chunked<SlotBook>, Slot) -> Option<u64>,
    ) -> Option<Slot> {
        let for_put = cause == Cause::Put;
        let passed = for_put && self.ordinary_in_use();
        let worth = |slot: Slot| worth(&self.slots, slot);
        let next = |list: &mut dyn EvictPolicy| {
            let others = |slot: Slot| if kept.contains(&slot) { None } else { worth(slot) };
            let found = list.next_by(&others);
            let mut kept = kept.iter().copied().filter(|_| for_put);
            found.or_else(|| {
                kept.find(|slot| list.covers(*slot).is_some() && worth(*slot).is_some())
            })
        };
        let ordinary = if passed { None } else { next(&mut *self.policy) };
        ordinary.or_else(|| if for_put { next(&mut *self.soft) } else { None })
    }

    /// Whether all ordinary candidates were met in use, one after the other.
    fn ordinary_in_use(&self) -> bool {
        self.pinned_streak > 0 && self.pinned_streak >= STREAK_MAX.min(self.policy.len() as u32)
    }

    /// Whether everything was met in use, soft pins too.
    fn all_in_use(&self) -> bool {
        let soft = STREAK_MAX.min(self.soft.len() as u32);
        let ordinary = STREAK_MAX.min(self.policy.len() as u32);
        self.pinned_streak > 0 && self.pinned_streak >= ordinary + soft
    }
}
