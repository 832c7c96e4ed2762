//! Calls that wait for nobody: the place of the key is remembered, and its memory is mapped here.
//!
//! They are for callers who pay for the right to wait, as Python does: to give its lock up and to fight for it
//! again takes longer than such a call. What must stay true: no socket is touched and no owner asked, so a call
//! takes as long as its copy. Whatever is in the way (no place, a place that is stale, a report that is due) is
//! no answer, and the caller makes the ordinary call.

use crate::client::Client;
use crate::get::Source;
use crate::packed::First;
use crate::reads::Remembered;
use mooncrate_core::key;
use mooncrate_core::plan::Locator;
use mooncrate_core::time::Now;
use mooncrate_mem::clock::boottime;
use mooncrate_transfer::{Read, Transport};
use std::sync::Arc;

impl Client {
    /// The value of a key of `len_max` bytes at most, in memory that `make` gives.
    pub fn get_near<B: AsMut<[u8]>>(
        &self,
        key: &[u8],
        len_max: usize,
        make: impl FnOnce(usize) -> B,
    ) -> Option<B> {
        let now = boottime();
        let (first, way) = self.near(key, len_max, now)?;
        let mut value = make(first.len as usize);
        self.read_near(&first, &*way, value.as_mut(), now).then_some(value)
    }

    /// Copies the value into the front of `target`; its length.
    pub fn get_into_near(&self, key: &[u8], len_max: usize, target: &mut [u8]) -> Option<usize> {
        let now = boottime();
        let (first, way) = self.near(key, len_max.min(target.len()), now)?;
        let len = first.len as usize;
        self.read_near(&first, &*way, &mut target[..len], now).then_some(len)
    }

    /// Whether each key has a finished object, where that can be seen: its life goes on in memory that is mapped.
    /// It is no read: who asks often makes nothing hot, and keeps nothing, unless this client holds what it finds.
    pub fn exists_near(&self, keys: &[&[u8]]) -> Vec<bool> {
        let mut there = vec![false; keys.len()];
        self.see_near(keys, |at, _| there[at] = true);
        there
    }

    /// The same with the length of each value.
    pub fn lengths_near(&self, keys: &[&[u8]]) -> Vec<Option<u64>> {
        let mut lengths = vec![None; keys.len()];
        self.see_near(keys, |at, len| lengths[at] = Some(len));
        lengths
    }

    /// Calls `seen` with the index and the length of each key that is seen to have a value.
    fn see_near(&self, keys: &[&[u8]], mut seen: impl FnMut(usize, u64)) {
        let now = boottime();
        if self.owes_report(now) {
            return;
        }
        let mut mounts: Vec<Mount> = Vec::new();
        for (place, key) in keys.iter().enumerate() {
            let Some((at, len)) = self.place_near(key, now) else { continue };
            // The last one first: keys of a batch are often neighbours.
            let known = mounts.iter().rposition(|mount| mount.is_of(&at));
            let which = if let Some(which) = known {
                which
            } else {
                let Some(way) = self.engine.near(&at) else { continue };
                mounts.push(Mount { way, places: Vec::new(), lives: Vec::new() });
                mounts.len() - 1
            };
            let mount = &mut mounts[which];
            mount.places.push((place, len));
            mount.lives.push(at);
        }
        for mount in mounts {
            for ((place, len), lives) in
                mount.places.into_iter().zip(mount.way.living(&mount.lives))
            {
                if lives {
                    seen(place, len);
                }
            }
        }
    }

    /// Where the first copy of a value is, and its length, if that is remembered and may be used.
    fn place_near(&self, key: &[u8], now: Now) -> Option<(Locator, u64)> {
        key::check(key).ok()?;
        let hash = key::hash(key);
        if !self.config.holds {
            return self.cache.peek_first(hash, key).map(|first| (first.locator, first.len));
        }
        let mut reads = Remembered::default();
        let first = self.remembered_first(hash, key, now, &mut reads)?;
        self.note_reads(reads);
        Some((first.locator, first.len))
    }

    /// A value that can be read without waiting, and the way to it.
    fn near(&self, key: &[u8], len_max: usize, now: Now) -> Option<(First, Arc<dyn Transport>)> {
        key::check(key).ok()?;
        if self.owes_report(now) {
            return None;
        }
        let mut reads = Remembered::default();
        let first = self.remembered_first(key::hash(key), key, now, &mut reads)?;
        self.note_reads(reads);
        if first.len > len_max as u64 {
            return None;
        }
        let way = self.engine.near(&first.locator)?;
        Some((first, way))
    }

    fn read_near(&self, first: &First, way: &dyn Transport, into: &mut [u8], now: Now) -> bool {
        let mut reads = [Read::new(first.locator, first.len, first.seal, into)];
        way.read(&mut reads, now.deadline_in(self.config.call_time));
        let read = reads[0].result.is_ok();
        if read {
            let from = Source { path: way.path(), copy: 0, disk: false };
            self.counters.at(first.object.sequence).hit(from, first.len);
        }
        read
    }
}

/// Keys whose values are in one mount: their indexes in the batch with the lengths of their values, and their
/// locators. Never empty.
struct Mount {
    way: Arc<dyn Transport>,
    places: Vec<(usize, u64)>,
    lives: Vec<Locator>,
}

impl Mount {
    fn is_of(&self, at: &Locator) -> bool {
        let of = |one: &Locator| (one.segment, one.incarnation);
        self.lives.first().is_some_and(|first| of(first) == of(at))
    }
}
