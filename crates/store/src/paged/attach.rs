//! Which caches spill into a store, so that two parts of one model never do under one name (B7).
//!
//! A cache that says nothing of its shard takes its KV for all of the model's. That is right for an engine that is not
//! split, which needs no setting. Where a second cache of the model may use the store, nobody can tell whether the
//! silent one is whole or a rank that was forgotten, and a rank would load the heads of another. So the shard must be
//! said there:
//!
//! ```text
//!                        one cache of a model       a second one beside it
//! embedded store         may be silent              refused, unless both say their shard
//! store of a cluster     refused if it is silent    refused if it is silent
//! ```
//!
//! Other processes are not counted: a record of them in the store could be evicted, and could not tell a second rank
//! from the same engine after a restart.

use super::SpillError;
use crate::Store;
use mooncrate_lock::Mutex;
use mooncrate_paged::Cache;

/// The caches of one store.
#[derive(Debug, Default)]
pub(crate) struct Attachments(Mutex<Vec<Cache>>);

/// One cache of one store, until this is dropped.
#[derive(Debug)]
pub(super) struct Attached {
    store: Store,
    cache: Cache,
}

impl Attached {
    pub(super) fn new(store: &Store, cache: &Cache) -> Result<Self, SpillError> {
        let silent = |cache: &Cache| cache.config().shard.is_none();
        if silent(cache) && store.is_shared() {
            return Err(SpillError::ShardUnknown { model: cache.config().model.clone() });
        }
        let mut all = store.attached().0.lock();
        let beside = |other: &&Cache| {
            !other.is_same(cache)
                && other.config().model == cache.config().model
                && other.geometry() == cache.geometry()
        };
        if all.iter().filter(beside).any(|other| silent(other) || silent(cache)) {
            return Err(SpillError::ShardUnknown { model: cache.config().model.clone() });
        }
        all.push(cache.clone());
        Ok(Self { store: store.clone(), cache: cache.clone() })
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let mut all = self.store.attached().0.lock();
        let at = all.iter().position(|other| other.is_same(&self.cache));
        let cache = at.map(|at| all.swap_remove(at));
        drop(all);
        // Not under the lock: it may be the last one, which unmaps its arena.
        drop(cache);
    }
}
