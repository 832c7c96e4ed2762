//! `PagedCache`: the KV blocks of running sequences, in memory of this process or of a GPU.
//!
//! ```text
//!   engine ── allocate, append, publish, free ──► PagedCache ──► tables, filled in place   (what kernels read)
//!     └────── K and V, through views or pages ──► arena ◄─────── PagedView ──► numpy, torch (no copy)
//! ```
//!
//! What must stay true: every call leaves the GIL alone while it waits or copies; nothing below knows
//! Python, so nobody who holds a lock there wants the GIL. Memory that Python can reach stays mapped, and
//! the blocks of a view stay with their sequence, until the last array that shows them is gone. Who writes
//! through an array promises what users of `HostArena::base` promise: nobody else touches these tokens
//! meanwhile. A cache belongs to the process that made it.

use crate::error::invalid;
use crate::fork::{Own, drop_detached};
use crate::paged_error::{exception, forked};
use crate::paged_geometry::{Geometry, layout};
use crate::paged_memory::Memory;
use mooncrate_paged::{Arena, ArenaShape, Cache, CacheConfig, CacheError, Layout, Policy, Shard};
use pyo3::prelude::*;

/// The KV cache of running sequences, in blocks.
#[pyclass(module = "mooncrate.paged", frozen, subclass, weakref)]
pub(crate) struct PagedCache {
    held: Own<Cache>,
    pub(crate) geometry: Geometry,
    pub(crate) layout: Layout,
    pub(crate) policy: Policy,
    pub(crate) model: String,
    pub(crate) shard: Option<Shard>,
    pub(crate) memory: Memory,
    /// The number of the GPU; of no meaning for memory of the host.
    pub(crate) device: u32,
}

/// The arguments of `PagedCache(...)`.
pub(crate) struct Making<'a> {
    pub(crate) geometry: Geometry,
    pub(crate) blocks: u32,
    pub(crate) layout: Option<&'a str>,
    pub(crate) model: String,
    pub(crate) shard: Option<Shard>,
    pub(crate) policy: &'a str,
    pub(crate) blocks_max: Option<u32>,
    pub(crate) prefix_caching: bool,
    pub(crate) memory: &'a str,
    pub(crate) device: u32,
}

impl PagedCache {
    pub(crate) fn make(py: Python<'_>, making: Making<'_>) -> PyResult<Self> {
        let Making { geometry, blocks, model, shard, blocks_max, prefix_caching, device, .. } =
            making;
        let wrong = |error: &dyn std::error::Error| invalid(py, &error.to_string());
        let layout = layout(py, making.layout, geometry.geometry())?;
        let policy: Policy = making.policy.parse().map_err(|error| wrong(&error))?;
        let memory = Memory::of_name(py, making.memory)?;
        let most = blocks_max.unwrap_or(blocks);
        if most < blocks {
            let words =
                format!("blocks_max is {most}, below blocks, {blocks}; raise it or leave it out");
            return Err(invalid(py, &words));
        }
        let shape = ArenaShape::new(*geometry.geometry(), layout, most);
        let shape = shape.map_err(|error| wrong(&error))?;
        let config = CacheConfig { model: model.clone(), shard, policy, prefix_caching };
        let made = py.detach(|| Cache::new(config, memory.arena(device, shape, blocks)?));
        let held = Own::new(made.map_err(|error| exception(py, error))?);
        Ok(Self { held, geometry, layout, policy, model, shard, memory, device })
    }

    /// The cache, unless this process is a child of the one that made it.
    pub(crate) fn cache(&self, py: Python<'_>) -> PyResult<&Cache> {
        self.held.get().ok_or_else(|| forked(py))
    }

    /// Does something with the cache, without the GIL.
    pub(crate) fn call<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&Cache) -> Result<T, CacheError> + Send,
    ) -> PyResult<T> {
        let cache = self.cache(py)?;
        py.detach(|| work(cache)).map_err(|error| exception(py, error))
    }
}

impl Drop for PagedCache {
    fn drop(&mut self) {
        if let Some(cache) = self.held.take() {
            drop_detached(cache);
        }
    }
}

/// One letter for each block: what it is used for.
pub(crate) fn block_map(cache: &Cache) -> String {
    let pool = cache.pool();
    let letter = |block| match pool.references(block) {
        0 if pool.hash(block).is_some() => 'c',
        0 => '.',
        1 if pool.is_private(block) => '#',
        users @ 1..=9 => char::from_digit(users, 10).unwrap_or('+'),
        _ => '+',
    };
    (0..pool.total_blocks()).map(|block| letter(mooncrate_paged::BlockId(block))).collect()
}

/// Whether these bytes are memory of the cache, as those of an array made of a view are. Copies to and from
/// a cache must not overlap them, so they go through memory of ours.
pub(crate) fn is_inside(cache: &Cache, bytes: &[u8]) -> bool {
    let Some(host) = cache.arena().host() else { return false };
    let first = host.base().as_ptr() as usize;
    let end = first + host.shape().bytes() as usize;
    let start = bytes.as_ptr() as usize;
    start < end && start + bytes.len() > first
}
