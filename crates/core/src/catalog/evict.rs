//! evict: choose victims by bytes, order their eviction, and know when everything is in use.

use super::Catalog;
use super::objects::{EntryId, Part, PartState, SegmentIndex};
use super::segments::Book;
use crate::plan::Action;
use crate::time::Now;
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

/// What became of an attempt to make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reclaim {
    /// Orders are out, now or from before: room is coming.
    Ordered,
    /// Everything there is pinned, leased or being written.
    InUse,
}

impl Catalog {
    /// Orders evictions in one segment for a put that needs `bytes`.
    pub(super) fn reclaim(&mut self, now: Now, segment: SegmentIndex, bytes: u64) -> Reclaim {
        let book = self.segments.book_mut(segment);
        if book.all_in_use() {
            if now.since(book.pinned_at) < STREAK_PAUSE {
                return Reclaim::InUse;
            }
            book.pinned_streak = 0;
        }
        // Evictions on their way out may be enough; if they were not, the caller comes again. What a
        // remove left to its last readers may take long, so it does not count alone (M13).
        if book.evicting == 0 || book.ending_bytes < bytes {
            self.evict_bytes(now, segment, bytes, LOOKS_MAX, true);
        }
        if self.segments.book(segment).evicting > 0 { Reclaim::Ordered } else { Reclaim::InUse }
    }

    /// Keeps a segment between its watermarks: a few victims beside each put, the rest by `tick`.
    pub(super) fn evict_above_high(&mut self, now: Now, segment: SegmentIndex) {
        self.evict_to_low(now, segment, BESIDE_PUT_MAX);
    }

    /// Orders evictions until the segment is at its low watermark, if it is above the high one.
    pub(super) fn evict_to_low(&mut self, now: Now, segment: SegmentIndex, looks: usize) {
        let book = self.segments.book(segment);
        let capacity = u128::from(book.offer.bytes);
        let share = |permille: u32| (capacity * u128::from(permille) / 1000) as u64;
        // Bytes that are on their way out are neither used nor free: they count as gone.
        let used = book.used_bytes();
        if used > share(self.config.high_permille) {
            let bytes = used - share(self.config.low_permille);
            self.evict_bytes(now, segment, bytes, looks, false);
        }
    }

    /// Orders evictions for at least `bytes`, looking at no more than `looks` candidates. Soft pins
    /// go only for a put, and only when nothing else can.
    fn evict_bytes(
        &mut self,
        now: Now,
        segment: SegmentIndex,
        bytes: u64,
        looks: usize,
        for_put: bool,
    ) {
        let mut ordered = self.evict_extras(now, segment, bytes);
        for _ in 0..looks {
            if ordered >= bytes {
                return;
            }
            let book = self.segments.book_mut(segment);
            let ordinary =
                if for_put && book.ordinary_in_use() { None } else { book.policy.victim() };
            let Some(slot) = ordinary.or_else(|| book.soft.victim().filter(|_| for_put)) else {
                return;
            };
            let id = book.slots[slot.0].entry;
            let entry = self.objects.entry(id);
            if entry.lease_end > now {
                book.offer_victim(slot, entry.keep(now));
                book.pinned_streak = book.pinned_streak.saturating_add(1);
                book.pinned_at = now;
                self.counters.evict_skipped += 1;
                continue;
            }
            let part = entry.part(segment, slot);
            ordered += entry.extent_bytes(part.stripe);
            self.order_eviction(now, id, part);
        }
    }

    pub(super) fn order_eviction(&mut self, now: Now, id: EntryId, part: Part) {
        let entry = self.objects.entry_mut(id);
        entry.set_part(part.segment, part.slot, PartState::Evicting);
        let entry = self.objects.entry(id);
        let extent = entry.extent(&part);
        self.order(now, &part, extent, Action::Evict, None);
    }
}

impl Book {
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
