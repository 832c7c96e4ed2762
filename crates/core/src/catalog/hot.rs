//! hot: objects that many read get more copies for a while, and lose them when they cool down.
//!
//! Readers that remember a locator ask nobody and tell their reads later (`reads.rs`). A sample of those
//! counts in a small table that forgets half of everything each second. Extra copies take only room that
//! nobody misses, are bounded in number, and are the first to go when room is short.

use super::Catalog;
use super::copy::{NoCopy, Purpose};
use super::objects::{Entry, EntryId, Part, PartState, SegmentIndex, Stage};
use crate::ids::ObjectId;
use crate::plan::Medium;
use crate::rng::Rng;
use crate::time::Now;
use std::collections::BTreeMap;
use std::time::Duration;

/// One read in so many is counted.
const SAMPLE: u32 = 64;
/// Objects whose reads are counted.
const COUNTED_MAX: usize = 4096;
/// Counts are halved this often.
const HALF_LIFE: Duration = Duration::from_secs(1);
/// An object has cooled down when it is this much below what made it hot.
const COOL: u32 = 4;
/// Objects with extra copies looked at when one segment needs room.
const EXTRAS_LOOK_MAX: usize = 64;

/// What is read often.
#[derive(Debug)]
pub(super) struct Hot {
    counts: BTreeMap<EntryId, (ObjectId, u32)>,
    /// Objects that were given extra copies.
    extras: BTreeMap<EntryId, ObjectId>,
    halved_at: Now,
    /// Draws the sample.
    rng: Rng,
}

impl Hot {
    pub(super) fn new(seed: u64) -> Self {
        let rng = Rng::stream(seed, "hot");
        Self { counts: BTreeMap::new(), extras: BTreeMap::new(), halved_at: Now(0), rng }
    }
}

impl Catalog {
    /// An object in memory was read so often by somebody who did not ask. Of all reads one in [`SAMPLE`] is
    /// counted: the table stays small, and only what is read often stands there.
    pub(super) fn heat_counts(&mut self, id: EntryId, reads: u32) {
        let drawn = self.hot.rng.below(u64::from(SAMPLE)) as u32;
        let samples = reads / SAMPLE + u32::from(drawn < reads % SAMPLE);
        if samples == 0 {
            return;
        }
        let object = self.objects.entry(id).object;
        let counts = &mut self.hot.counts;
        if counts.len() < COUNTED_MAX || counts.contains_key(&id) {
            let (counted, count) = counts.entry(id).or_insert((object, 0));
            if *counted != object {
                (*counted, *count) = (object, 0);
            }
            *count = count.saturating_add(samples);
        }
    }

    /// Objects that have extra copies.
    pub fn hot_objects(&self) -> usize {
        self.hot.extras.len()
    }

    /// Once per half life: gives copies to what is hot, takes them from what has cooled down.
    pub(super) fn watch_heat(&mut self, now: Now) {
        if now.since(self.hot.halved_at) < HALF_LIFE {
            return;
        }
        self.hot.halved_at = now;
        let counts = std::mem::take(&mut self.hot.counts);
        for (&id, &(object, count)) in &counts {
            if count >= self.config.hot_samples && self.lives(id, object) {
                self.heat(now, id, object);
            }
        }
        let extras: Vec<(EntryId, ObjectId)> =
            self.hot.extras.iter().map(|(id, object)| (*id, *object)).collect();
        for (id, object) in extras {
            let count = counts.get(&id).filter(|(o, _)| *o == object).map_or(0, |(_, c)| *c);
            if !self.lives(id, object) {
                self.hot.extras.remove(&id);
            } else if count < self.config.hot_samples / COOL {
                self.cool(now, id);
            }
        }
        let halved = counts.into_iter().map(|(id, (object, count))| (id, (object, count / 2)));
        self.hot.counts = halved.filter(|(_, (_, count))| *count > 0).collect();
    }

    fn lives(&self, id: EntryId, object: ObjectId) -> bool {
        let same = |entry: &Entry| entry.object == object && entry.stage == Stage::Ready;
        self.objects.get(id).is_some_and(same)
    }

    /// Gives one more copy of each stripe to an object, if it may have one.
    fn heat(&mut self, now: Now, id: EntryId, object: ObjectId) {
        let known = self.hot.extras.contains_key(&id);
        if !known && self.hot.extras.len() >= self.config.hot_objects_max {
            return;
        }
        let entry = self.objects.entry(id);
        let stripes = entry.stripes() as u8;
        let most = entry.copies() + usize::from(self.config.hot_replicas_max);
        for stripe in 0..stripes {
            let entry = self.objects.entry(id);
            let parts = entry.parts.as_slice().iter().filter(|part| part.stripe == stripe);
            let memory = parts.filter(|part| !self.segments.is_disk(part.segment)).count();
            // What is on disks only is promoted, not heated.
            if memory >= most || memory == 0 {
                continue;
            }
            let purpose = Purpose { spare_room: true, ..Purpose::default() };
            match self.copy_start(now, id, stripe, purpose) {
                Ok(()) => {
                    self.hot.extras.insert(id, object);
                }
                Err(NoCopy::Later) => return,
                Err(NoCopy::NoRoom | NoCopy::Impossible) => {}
            }
        }
    }

    /// Takes one extra copy of each stripe away; the object is an ordinary one when none is left.
    fn cool(&mut self, now: Now, id: EntryId) {
        let mut left = false;
        for stripe in 0..self.objects.entry(id).stripes() as u8 {
            let surplus = self.surplus(id, stripe);
            left |= surplus.len() > 1;
            if let Some(part) = surplus.last() {
                self.retire_part(now, id, part);
            }
        }
        if !left {
            self.hot.extras.remove(&id);
        }
    }

    /// Readable copies of a stripe in memory beyond those that its put asked for, newest last.
    fn surplus(&self, id: EntryId, stripe: u8) -> Vec<Part> {
        let entry = self.objects.entry(id);
        let here = entry.parts.as_slice().iter().filter(|part| {
            let load = &self.segments.loads[usize::from(part.segment)];
            let memory = load.open && load.medium != Medium::Ssd;
            part.stripe == stripe && part.state == PartState::Here && memory
        });
        here.skip(entry.copies()).copied().collect()
    }

    /// Orders the eviction of extra copies in a segment that needs room; their bytes.
    pub(super) fn evict_extras(&mut self, now: Now, segment: SegmentIndex, bytes: u64) -> u64 {
        let mut ordered = 0;
        let extras: Vec<EntryId> = self.hot.extras.keys().take(EXTRAS_LOOK_MAX).copied().collect();
        for id in extras {
            if ordered >= bytes {
                break;
            }
            let leased = |entry: &Entry| entry.lease_end > now || entry.is_hard();
            if self.objects.get(id).is_none_or(leased) {
                continue;
            }
            for stripe in 0..self.objects.entry(id).stripes() as u8 {
                let surplus = self.surplus(id, stripe).len();
                let entry = self.objects.entry(id);
                let here = entry.parts.as_slice().iter().find(|part| {
                    part.segment == segment
                        && part.stripe == stripe
                        && part.state == PartState::Here
                });
                if let (Some(&part), true) = (here, surplus > 0) {
                    ordered += entry.extent_bytes(stripe);
                    self.segments.book_mut(segment).spare(part.slot);
                    self.order_eviction(now, id, part);
                }
            }
        }
        ordered
    }
}
