//! Blocks of a paged KV cache in a store: spilled, shared between engines, and brought back.
//!
//! ```
//! use mooncrate::paged::{Ended, Spill, SpillConfig};
//! use mooncrate::{EmbeddedOptions, Store};
//! use mooncrate_paged::{
//!     Admission, ArenaShape, AttentionSpec, Cache, CacheConfig, DType, Geometry, HostArena, Layout,
//!     Pages, Prompt,
//! };
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! let spec =
//!     AttentionSpec { layers: 2, kv_heads: 2, head_dim: 8, block_tokens: 16, dtype: DType::F32 };
//! let shape = ArenaShape::new(Geometry::attention(spec)?, Layout::Nhd, 64)?;
//! let arena = HostArena::anonymous(shape, 64, Pages::Small)?;
//! let cache = Cache::new(CacheConfig::new("tiny"), Arc::new(arena))?;
//! let store = Store::embedded(EmbeddedOptions::default())?;
//! let spill = Spill::new(&store, &cache, &SpillConfig::default())?;
//!
//! let prompt: Vec<u32> = (0..100).collect();
//! cache.allocate_for("a", Prompt::Tokens(&prompt))?;
//! cache.publish("a", 100)?; // … once the engine has computed it
//! let saved = spill.save("a")?.wait(Duration::from_secs(60)).expect("six small blocks");
//! assert_eq!(saved.stored, 6);
//!
//! // Here, in another process or on another machine:
//! let loaded = spill.load(&prompt, &Admission::default());
//! assert_eq!(loaded.tokens(), 96);
//! assert!(matches!(loaded.ended, Ended::Whole));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Keys and payloads are those of [`mooncrate_paged::SpillKey`]: engines that agree in model, shard, geometry, adapter,
//! salt and tenant find each other's blocks, whatever their layouts. Where more than one cache of a model may use the
//! store, each says its shard ([`mooncrate_paged::CacheConfig::shard`]). The store verifies checksums; here lengths are
//! compared, and the identity is part of the key. A block that is missing, cannot be read or has another length
//! ends the prefix: what came before it is used.
//!
//! With [`SpillConfig::free_blocks_low`] cold blocks are saved before they are evicted, by a thread of its own.
//! Where the memory of the cache is a GPU's, an embedded store is the tier of host memory behind it, and with a disk
//! the one behind that.
//!
//! [`Spill::save`] returns at once, and a thread copies and stores. [`Spill::load`], [`Spill::suspend`] and
//! [`Spill::resume`] work in the caller's thread. All of them together hold at most
//! [`SpillConfig::bytes_in_flight_max`] bytes outside of cache and store.

mod attach;
mod buffers;
mod cold;
mod error;
mod load;
mod metrics;
mod save;

pub(crate) use attach::Attachments;
pub use cold::ColdCounts;
pub use error::SpillError;
pub use load::{Ended, Loaded, Resumed};
pub use metrics::{CacheMetrics, metrics_text};
pub use save::{Saved, Saving};

use crate::Store;
use attach::Attached;
use buffers::Buffers;
use cold::ColdTally;
use mooncrate_core::limits::{BATCH_ITEMS_MAX, VALUE_BYTES_MAX};
use mooncrate_paged::{BlockHash, Cache, Ticket};
use save::{Queue, save_all};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// A batch takes at most this part of the bytes in flight, so that saves and loads go on side by side.
const BATCHES_IN_FLIGHT: u64 = 4;

/// Bounds of a [`Spill`].
#[derive(Clone, Debug)]
pub struct SpillConfig {
    /// Most bytes of blocks on their way between cache and store. One block may always travel.
    pub bytes_in_flight_max: u64,
    /// Most bytes of blocks that wait to be saved; they cannot be evicted meanwhile. One save is always taken.
    pub queue_bytes_max: u64,
    /// How long a call waits for others that have all bytes in flight, or that are storing the same block.
    pub wait_max: Duration,
    /// While fewer blocks of the cache are free, cached blocks are saved in the order in which they would be
    /// evicted. 0: never.
    pub free_blocks_low: u32,
}

impl Default for SpillConfig {
    fn default() -> Self {
        Self {
            bytes_in_flight_max: 64 << 20,
            queue_bytes_max: 1 << 30,
            wait_max: Duration::from_secs(5),
            free_blocks_low: 0,
        }
    }
}

/// Moves blocks between one cache and one store. Dropping it ends saves that are not done, and waits for the
/// batch that is on its way.
#[derive(Debug)]
pub struct Spill {
    link: Link,
    queue: Arc<Queue>,
    cold: Arc<ColdTally>,
    /// The one that saves, and the one that looks for cold blocks; joined when this is dropped.
    workers: Vec<JoinHandle<()>>,
    /// Its place among the caches of the store.
    _attached: Attached,
}

/// What a save or a load works with.
#[derive(Clone, Debug)]
struct Link {
    store: Store,
    cache: Cache,
    buffers: Arc<Buffers>,
    batch_blocks: usize,
}

impl Link {
    fn block_bytes(&self) -> usize {
        self.cache.geometry().block_bytes() as usize
    }
}

impl Spill {
    /// Between this store and this cache. Refused for a cache that does not say which shard it holds, if other caches
    /// of its model may use the store: one that is not split says [`mooncrate_paged::Shard::WHOLE`].
    pub fn new(store: &Store, cache: &Cache, config: &SpillConfig) -> Result<Self, SpillError> {
        let block_bytes = cache.geometry().block_bytes();
        if block_bytes > VALUE_BYTES_MAX {
            return Err(SpillError::BlockTooLarge { block_bytes });
        }
        let attached = Attached::new(store, cache)?;
        let batch_bytes = config.bytes_in_flight_max / BATCHES_IN_FLIGHT;
        let link = Link {
            store: store.clone(),
            cache: cache.clone(),
            batch_blocks: ((batch_bytes / block_bytes) as usize).clamp(1, BATCH_ITEMS_MAX),
            buffers: Arc::new(Buffers::new(config.bytes_in_flight_max, config.wait_max)),
        };
        let queue = Arc::new(Queue::new(config.queue_bytes_max));
        let (work, jobs) = (link.clone(), Arc::clone(&queue));
        let starting = crate::Error::io("starting the thread that spills");
        let worker = Builder::new().name("paged-spill".into()).spawn(move || jobs.work(&work));
        // Made before the second thread is started: an error drops it, and that ends the first.
        let workers = vec![worker.map_err(starting)?];
        let mut spill = Self { link, queue, cold: Arc::default(), workers, _attached: attached };
        if config.free_blocks_low > 0 {
            let Self { link, queue, cold, .. } = &spill;
            let started = cold::start(link, queue, cold, config.free_blocks_low);
            let starting = crate::Error::io("starting the thread that spills cold blocks");
            spill.workers.push(started.map_err(starting)?);
        }
        Ok(spill)
    }

    /// What became of cold blocks so far; nothing without [`SpillConfig::free_blocks_low`].
    pub fn cold(&self) -> ColdCounts {
        self.cold.now()
    }

    /// Begins to store the published blocks of a sequence. They are pinned until that is done, whatever becomes
    /// of the sequence.
    pub fn save(&self, id: &str) -> Result<Saving, SpillError> {
        self.queue.push(self.link.cache.pin_sequence(id)?, self.link.block_bytes())
    }

    /// The same for the longest run of these names, from the first on, that is in the cache.
    pub fn save_prefix(&self, names: &[BlockHash]) -> Result<Saving, SpillError> {
        self.queue.push(self.link.cache.pin_names(names), self.link.block_bytes())
    }

    /// Stores a sequence of whose tokens the first `written` have their KV in place, with its last block, and
    /// frees it. On an error the sequence goes on as it was.
    ///
    /// What is stored may be evicted there, as everything in a store: see [`Resumed`].
    pub fn suspend(&self, id: &str, written: u64) -> Result<Ticket, SpillError> {
        let mut suspension = self.link.cache.suspend(id, written)?;
        let saved = save_all(&self.link, suspension.named(), || true);
        if let Some(error) = saved.failed {
            return Err(error);
        }
        let mut buffer = self.link.buffers.take(self.link.block_bytes())?;
        for _ in 0..suspension.own_blocks() {
            let own = suspension.read_own(&mut buffer)?;
            self.link.store.put(own.key.as_bytes(), &buffer[..own.bytes as usize])?;
        }
        // Last: a ticket that is found names blocks that were stored.
        let (ticket, key, manifest) = suspension.manifest();
        self.link.store.put(key.as_bytes(), &manifest)?;
        suspension.finish()?;
        Ok(ticket)
    }

    /// Gives a suspended sequence up; whether there was one. Its blocks stay in the store until their room is
    /// needed: other sequences may share them.
    pub fn forget(&self, ticket: &Ticket) -> Result<bool, SpillError> {
        let key = self.link.cache.ticket_key(ticket);
        Ok(self.link.store.remove(key.as_bytes(), false)?)
    }
}

impl Drop for Spill {
    fn drop(&mut self) {
        self.queue.stop();
        for worker in self.workers.drain(..) {
            // A panic of the worker was printed where it happened; the jobs it left were ended by their drops.
            let _ = worker.join();
        }
    }
}
