//! The running sequences of a cache, by their ids.
//!
//! ```text
//! id ─► one of 16 maps, a lock each ─► Live ─► the lock of one sequence ─► its block table
//!       held for a lookup or a change           held for a whole call, also while the arena copies or zeroes
//! ```
//!
//! What must stay true: nobody waits for the lock of a sequence while holding the lock of a map, because a call
//! may hold its sequence while a GPU works. The reverse order is allowed. So a call that waits for the arena
//! keeps only calls for the same sequence waiting. Those have to: they would change, copy or read a table that
//! is about to change.

use crate::cache::{Cache, Shared};
use crate::error::CacheError;
use crate::sequence::Sequence;
use mooncrate_lock::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Parts of the table of sequences; each has a lock.
const SHARDS: usize = 16;

type Shard = HashMap<Box<str>, Arc<Live>>;

/// All running sequences of a cache.
#[derive(Debug)]
pub(crate) struct Sequences {
    shards: [Mutex<Shard>; SHARDS],
    hasher: RandomState,
}

/// A sequence in the cache. Its blocks go back when the last one who uses it is done.
#[derive(Debug)]
pub(crate) struct Live {
    /// Weak: the cache holds its sequences, and a cycle would keep both, and the arena, for ever. Whoever
    /// uses the blocks of a sequence beyond a call holds the cache, too.
    cache: Weak<Shared>,
    /// A number that no other one has or had. While it is the same, the block table only grows.
    pub(crate) number: u64,
    held: Mutex<Held>,
}

#[derive(Debug)]
struct Held {
    /// `None` once it is dropped.
    sequence: Option<Sequence>,
    /// Another `Live` has taken its place under its id: who waited for this one has to look again. This one keeps
    /// its blocks for views and suspensions.
    replaced: bool,
}

impl Held {
    const fn sequence(&mut self) -> &mut Sequence {
        self.sequence.as_mut().expect("a live sequence has blocks")
    }
}

impl Live {
    fn new(cache: &Arc<Shared>, sequence: Sequence) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let held = Held { sequence: Some(sequence), replaced: false };
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { cache: Arc::downgrade(cache), number, held: Mutex::new(held) }
    }

    /// What `work` says of the sequence, unless a call holds it now.
    pub(crate) fn try_with<T>(&self, work: impl FnOnce(&Sequence) -> T) -> Option<T> {
        self.held.try_lock().as_ref().and_then(|held| held.sequence.as_ref()).map(work)
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        // Without a cache there is no pool to give the blocks back to.
        if let (Some(sequence), Some(cache)) =
            (self.held.get_mut().sequence.take(), self.cache.upgrade())
        {
            sequence.free(&cache.pool);
        }
    }
}

impl Sequences {
    pub(crate) fn new() -> Self {
        let shards = std::array::from_fn(|_| Mutex::new(HashMap::new()));
        Self { shards, hasher: RandomState::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    pub(crate) fn contains(&self, id: &str) -> bool {
        self.shard(id).contains_key(id)
    }

    fn find(&self, id: &str) -> Result<Arc<Live>, CacheError> {
        let found = self.shard(id).get(id).cloned();
        found.ok_or_else(|| unknown(id))
    }

    /// Takes a sequence out; whoever works on it keeps it until then.
    pub(crate) fn remove(&self, id: &str) -> Result<Arc<Live>, CacheError> {
        let gone = self.shard(id).remove(id);
        gone.ok_or_else(|| unknown(id))
    }

    /// Puts one sequence in the place of another, unless that one is gone.
    fn exchange(&self, id: &str, old: &Arc<Live>, new: Arc<Live>) -> Result<(), CacheError> {
        let mut shard = self.shard(id);
        let place = shard.get_mut(id).filter(|now| Arc::ptr_eq(now, old));
        // The caller has a reference to the old one: nothing is freed under this lock.
        *place.ok_or_else(|| unknown(id))? = new;
        Ok(())
    }

    /// All of them at this moment, by id.
    pub(crate) fn all(&self) -> Vec<(Box<str>, Arc<Live>)> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            all.extend(shard.iter().map(|(id, live)| (id.clone(), Arc::clone(live))));
        }
        all.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        all
    }

    fn shard(&self, id: &str) -> MutexGuard<'_, Shard> {
        self.shards[(self.hasher.hash_one(id) % SHARDS as u64) as usize].lock()
    }
}

impl Cache {
    /// Puts a sequence into the table, or gives its blocks back.
    pub(crate) fn admit(&self, id: &str, sequence: Sequence) -> Result<(), CacheError> {
        let mut live = Live::new(&self.shared, sequence);
        if let Entry::Vacant(place) = self.shared.sequences.shard(id).entry(id.into()) {
            place.insert(Arc::new(live));
            return Ok(());
        }
        if let Some(sequence) = live.held.get_mut().sequence.take() {
            sequence.undo(&self.shared.pool);
        }
        Err(CacheError::Duplicate { id: id.to_owned() })
    }

    /// Does something with a sequence, alone.
    pub(crate) fn with<T>(
        &self,
        id: &str,
        work: impl FnOnce(&mut Sequence) -> T,
    ) -> Result<T, CacheError> {
        self.with_live(id, |_, sequence| work(sequence))
    }

    /// The same for callers that keep the blocks of the sequence beyond the call.
    pub(crate) fn with_live<T>(
        &self,
        id: &str,
        work: impl FnOnce(&Arc<Live>, &mut Sequence) -> T,
    ) -> Result<T, CacheError> {
        self.with_held(id, |live, held| work(live, held.sequence()))
    }

    fn with_held<T>(
        &self,
        id: &str,
        work: impl FnOnce(&Arc<Live>, &mut Held) -> T,
    ) -> Result<T, CacheError> {
        loop {
            let live = self.shared.sequences.find(id)?;
            let mut held = live.held.lock();
            if !held.replaced {
                return Ok(work(&live, &mut held));
            }
        }
    }

    /// Puts the sequence that `work` makes of a sequence, if it makes one, in its place. Views and suspensions of
    /// the old one keep its blocks.
    pub(crate) fn replace<T>(
        &self,
        id: &str,
        work: impl FnOnce(&Sequence) -> Result<(Option<Sequence>, T), CacheError>,
    ) -> Result<T, CacheError> {
        self.with_held(id, |live, held| {
            let (made, result) = work(held.sequence())?;
            let Some(made) = made else { return Ok(result) };
            let made = Arc::new(Live::new(&self.shared, made));
            // An error drops `made`, and that frees its blocks: the sequence was freed meanwhile.
            self.shared.sequences.exchange(id, live, made)?;
            held.replaced = true;
            Ok(result)
        })?
    }

    /// Frees the sequence if it is still this one and `same` says so of it.
    pub(crate) fn remove_same(
        &self,
        id: &str,
        live: &Arc<Live>,
        same: impl FnOnce(&Sequence) -> bool,
    ) -> Result<(), CacheError> {
        let mut held = live.held.lock();
        let mut shard = self.shared.sequences.shard(id);
        let here = shard.get(id).is_some_and(|now| Arc::ptr_eq(now, live));
        if !here || !same(held.sequence()) {
            return Err(CacheError::Changed { id: id.to_owned() });
        }
        // The caller's reference stays: nothing is freed under these locks.
        shard.remove(id);
        Ok(())
    }
}

fn unknown(id: &str) -> CacheError {
    CacheError::Unknown { id: id.to_owned() }
}
