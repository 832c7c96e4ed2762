//! Calls that wait for nobody: the place of the key is remembered, and its memory is mapped here.
//!
//! They are for callers who pay for the right to wait, as Python does: to give its lock up and to fight for it
//! again takes longer than such a call. What must stay true: no socket is touched and no owner asked, so a call
//! takes as long as its copy. Whatever is in the way (no place, a place that is stale, a report that is due) is
//! no answer, and the caller makes the ordinary call.

use crate::client::Client;
use crate::get::Source;
use crate::reads::Remembered;
use mooncrate_core::key;
use mooncrate_core::plan::{Located, Locator};
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
        let near = self.near(key, len_max)?;
        let mut value = make(near.located.len() as usize);
        self.read_near(&near, value.as_mut()).then_some(value)
    }

    /// Copies the value into the front of `target`; its length.
    pub fn get_into_near(&self, key: &[u8], len_max: usize, target: &mut [u8]) -> Option<usize> {
        let near = self.near(key, len_max.min(target.len()))?;
        let len = near.located.len() as usize;
        self.read_near(&near, &mut target[..len]).then_some(len)
    }

    /// Whether the key has a finished object, if that can be seen: its life goes on in memory that is mapped.
    pub fn exists_near(&self, key: &[u8]) -> bool {
        let Some(near) = self.near(key, usize::MAX) else { return false };
        let Located { striping, seal, .. } = near.located;
        // An empty read looks at the life of the value, and at the leave to serve it.
        let mut reads = [Read::part(near.locator, striping.len, seal, 0, &mut [])];
        near.transport.read(&mut reads, boottime().deadline_in(self.config.call_time));
        reads[0].result.is_ok()
    }

    fn near(&self, key: &[u8], len_max: usize) -> Option<Near> {
        key::check(key).ok()?;
        let now = boottime();
        if self.owes_report(now) {
            return None;
        }
        let mut reads = Remembered::default();
        let located = self.remembered(key::hash(key), key, &mut reads)?;
        self.note_reads(reads);
        if located.striping.stripes() != 1 || located.len() > len_max as u64 {
            return None;
        }
        let locator = *located.replicas.first()?;
        let transport = self.engine.near(&locator)?;
        Some(Near { located, locator, transport })
    }

    fn read_near(&self, near: &Near, into: &mut [u8]) -> bool {
        let Near { located, locator, transport } = near;
        let mut reads = [Read::new(*locator, located.len(), located.seal, into)];
        transport.read(&mut reads, boottime().deadline_in(self.config.call_time));
        let read = reads[0].result.is_ok();
        if read {
            self.count(located, Source { path: transport.path(), copy: 0, disk: false });
        }
        read
    }
}

/// A value that can be read without waiting.
struct Near {
    located: Located,
    locator: Locator,
    transport: Arc<dyn Transport>,
}
