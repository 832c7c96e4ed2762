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
use mooncrate_core::time::Now;
use mooncrate_core::{Incarnation, SegmentId};
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
        let (first, way) = self.near(key, len_max, now, true, &mut None)?;
        let mut value = make(first.len as usize);
        self.read_near(&first, &*way, value.as_mut(), now).then_some(value)
    }

    /// Copies the value into the front of `target`; its length.
    pub fn get_into_near(&self, key: &[u8], len_max: usize, target: &mut [u8]) -> Option<usize> {
        let now = boottime();
        let (first, way) = self.near(key, len_max.min(target.len()), now, true, &mut None)?;
        let len = first.len as usize;
        self.read_near(&first, &*way, &mut target[..len], now).then_some(len)
    }

    /// Whether each key has a finished object, where that can be seen: its life goes on in memory that is mapped.
    /// It is no read: who asks often makes nothing hot, and keeps nothing, unless this client holds what it finds.
    pub fn exists_near(&self, keys: &[&[u8]]) -> Vec<bool> {
        let now = boottime();
        let mut way = None;
        let there = |key: &&[u8]| {
            let reads = self.config.holds;
            let Some((first, way)) = self.near(key, usize::MAX, now, reads, &mut way) else {
                return false;
            };
            // An empty read looks at the life of the value, and at the leave to serve it.
            let mut reads = [Read::part(first.locator, first.len, first.seal, 0, &mut [])];
            way.read(&mut reads, now.deadline_in(self.config.call_time));
            reads[0].result.is_ok()
        };
        keys.iter().map(there).collect()
    }

    /// A value that can be read without waiting, and the way to it. `reads`: the master is to hear of it. `known`:
    /// the way of the key before.
    fn near(
        &self,
        key: &[u8],
        len_max: usize,
        now: Now,
        reads: bool,
        known: &mut Option<Way>,
    ) -> Option<(First, Arc<dyn Transport>)> {
        key::check(key).ok()?;
        if self.owes_report(now) {
            return None;
        }
        let hash = key::hash(key);
        let first = if reads {
            let mut noted = Remembered::default();
            let first = self.remembered_first(hash, key, now, &mut noted)?;
            self.note_reads(noted);
            first
        } else {
            self.cache.peek_first(hash, key)?
        };
        if first.len > len_max as u64 {
            return None;
        }
        let mount = (first.locator.segment, first.locator.incarnation);
        let way = match known {
            Some(way) if way.mount == mount => Arc::clone(&way.transport),
            _ => {
                let transport = self.engine.near(&first.locator)?;
                *known = Some(Way { mount, transport: Arc::clone(&transport) });
                transport
            }
        };
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

/// The way to a mount.
struct Way {
    mount: (SegmentId, Incarnation),
    transport: Arc<dyn Transport>,
}
