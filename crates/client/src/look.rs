//! Lookups that tell more than "there" or "not there", and that hold what they find.

use crate::client::Client;
use crate::error::Error;
use crate::frames::by_frame;
use crate::get::share;
use mooncrate_core::SegmentId;
use mooncrate_core::error::GetError;
use mooncrate_core::key::{self, KeyHash};
use mooncrate_core::plan::{Located, Looked, Medium};
use mooncrate_core::time::{Deadline, Now};
use mooncrate_mem::clock::boottime;
use mooncrate_wire::CallError;
use mooncrate_wire::api::Batch;
use mooncrate_wire::message::{DropCopy, Look};
use std::borrow::Cow;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long a question about existence waits for an owner to share its memory.
const MAP_TIME: Duration = Duration::from_millis(20);

/// After an owner did not share its memory within [`MAP_TIME`], questions about existence ask no owner for so long.
const MAP_PAUSE: Duration = Duration::from_secs(1);

impl Client {
    /// What is known of each key: nothing, that it is being written, its length, and with `places` where
    /// it is, which is remembered. With `hold` removes without force are refused for the master's `lease_ttl`.
    pub fn look(
        &self,
        keys: &[&[u8]],
        hold: bool,
        places: bool,
    ) -> Result<Vec<Result<Looked, Error>>, Error> {
        let deadline = self.deadline();
        let asked = boottime();
        let looked = by_frame(keys, |part| {
            self.master
                .look(&Look { hold, places, reads: false, keys: Cow::Borrowed(part) }, deadline)
        })?;
        for (looked, key) in looked.iter().zip(keys) {
            if let Ok(Looked::At(located)) = looked {
                self.remember(key::hash(key), key, located.clone(), asked, deadline);
            }
        }
        Ok(looked)
    }

    /// Ends the copy of an object in one segment; the object goes with its last copy.
    pub fn drop_copy(&self, key: &[u8], segment: SegmentId) -> Result<(), Error> {
        Ok(self.master.drop_copy(&DropCopy { key, segment }, self.deadline())??)
    }

    /// Places of keys by the word of the master; held, where this client holds what it reads.
    pub(crate) fn ask_places(
        &self,
        keys: &[&[u8]],
        deadline: Deadline,
    ) -> Batch<Located, GetError> {
        if !self.config.holds {
            return self.master.locate(0, keys, deadline);
        }
        let ask = Look { hold: true, places: true, reads: true, keys: Cow::Borrowed(keys) };
        let looked = self.master.look(&ask, deadline)?;
        Ok(looked.into_iter().map(|one| one.and_then(located)).collect())
    }

    /// Asks the master whether keys exist. The answer names the place of each value, which is remembered: the
    /// next question about the key, and its first read, need no call where the owner's memory can be mapped.
    pub(crate) fn ask_existence(
        &self,
        keys: &[&[u8]],
        deadline: Deadline,
    ) -> Result<Vec<Result<bool, GetError>>, CallError> {
        let hold = self.config.holds;
        let ask = Look { hold, places: true, reads: false, keys: Cow::Borrowed(keys) };
        let asked = boottime();
        let looked = self.master.look(&ask, deadline)?;
        let each = looked.into_iter().zip(keys).map(|(looked, key)| match looked? {
            Looked::At(located) => {
                let located = self.remember(key::hash(key), key, located, asked, deadline);
                self.map_near(&located, deadline);
                Ok(true)
            }
            Looked::Here { .. } => Ok(true),
            Looked::Missing | Looked::Writing => Ok(false),
        });
        Ok(each.collect())
    }

    /// Maps the owner's memory after a question about a value: the next question about any value there is answered from
    /// that memory. The caller has its answer already, so an owner that is slow delays it by [`MAP_TIME`] at most.
    pub(crate) fn map_near(&self, located: &Located, deadline: Deadline) {
        let Some(at) = located.replicas.first() else { return };
        if at.segment.medium() != Medium::Dram || self.engine.knows(at) {
            return;
        }
        let now = boottime();
        // Relaxed: a hint; that two threads try at once does no harm.
        if now.0 < self.map_after.load(Ordering::Relaxed) {
            return;
        }
        if self.engine.transport(at, deadline.min(now.deadline_in(MAP_TIME))).is_err() {
            self.map_after.store(boottime().plus(MAP_PAUSE).0, Ordering::Relaxed);
        }
    }

    /// Until when a place may be used without asking that was asked for at `asked` and is held for so long. Only
    /// half of that: whoever reads then may count on the other half, also if the master hears of it late.
    pub(crate) fn hold_end(asked: Now, held_ms: u32) -> Now {
        asked.plus(Duration::from_millis(held_ms.into()) / 2)
    }

    /// Until when the master is asked for the place of a key: one that does not answer must leave time for
    /// what is known without it.
    pub(crate) fn ask_until(&self, hash: KeyHash, key: &[u8], deadline: Deadline) -> Deadline {
        let known = self.config.holds && self.cache.peek(hash, key).is_some();
        if known { share(deadline, 2) } else { deadline }
    }

    /// The remembered place of a key whose master did not answer. A client that holds what it reads asks
    /// each time, but a place that its owner still serves is as good: nobody can have removed or replaced
    /// the value without that owner.
    pub(crate) fn known_anyway(
        &self,
        hash: KeyHash,
        key: &[u8],
        error: &CallError,
    ) -> Option<Located> {
        if self.config.holds && error.is_outage() { self.cache.peek(hash, key) } else { None }
    }
}

fn located(looked: Looked) -> Result<Located, GetError> {
    match looked {
        Looked::At(located) => Ok(located),
        Looked::Missing | Looked::Writing | Looked::Here { .. } => Err(GetError::NotFound),
    }
}
