//! The client: a master to ask, an engine to move bytes, a cache of locators.

use crate::cache::Cache;
use crate::config::ClientConfig;
use crate::counts::{Counters, Counts};
use crate::error::Error;
use crate::frames::by_frame;
use crate::owners::Owners;
use crate::reads::Reports;
use mooncrate_core::copy::DrainStat;
use mooncrate_core::error::RemoveError;
use mooncrate_core::plan::PutConfig;
use mooncrate_core::time::Deadline;
use mooncrate_core::{NodeId, SegmentId, TenantId};
use mooncrate_mem::clock::boottime;
use mooncrate_transfer::{Engine, EngineConfig, MappedMemory, Nodes, Segments};
use mooncrate_wire::MasterApi;
use mooncrate_wire::message::{
    ClusterStat, Command, CopyKey, Drain, DrainWish, List, Listing, NodeCommand, NodeEntry,
    Pattern, RemoveMatching, Removed, SetQuota,
};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// A call that moves so many bytes has more time than others: so many times that of a call.
const LARGE_BYTES: u64 = 256 << 20;
const LARGE_TIMES: u32 = 8;

/// A program's door to the store. Cheap to share: all methods take `&self`.
pub struct Client {
    pub(crate) master: Arc<dyn MasterApi>,
    pub(crate) engine: Engine,
    pub(crate) cache: Cache,
    pub(crate) config: ClientConfig,
    pub(crate) put_config: PutConfig,
    pub(crate) counters: Counters,
    pub(crate) reports: Reports,
    pub(crate) owners: Owners,
    /// Until when questions about existence ask no owner to share its memory.
    pub(crate) map_after: AtomicU64,
    /// Orders copies that are equally near, differently in every client.
    pub(crate) turn: u64,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Client {
    /// A client of `master`. `segments` are those of this process; empty if it owns none.
    pub fn new(
        config: ClientConfig,
        engine: EngineConfig,
        master: Arc<dyn MasterApi>,
        segments: Arc<Segments>,
    ) -> Self {
        let put_config = PutConfig {
            replicas: config.replicas,
            best_effort: config.best_effort,
            host: engine.host,
            zone: config.zone,
            ..PutConfig::default()
        };
        let directory = Arc::new(Nodes::new(Arc::clone(&master)));
        Self {
            engine: Engine::new(engine, segments, directory),
            cache: Cache::new(config.locator_bytes_max),
            master,
            put_config,
            config,
            counters: Counters::default(),
            reports: Reports::default(),
            owners: Owners::default(),
            map_after: AtomicU64::new(0),
            turn: boottime().0,
        }
    }

    /// How long a call may take.
    pub fn call_time(&self) -> Duration {
        self.config.call_time
    }

    /// When a call that starts now must have ended. Reads of earlier calls are told, and memory of dead nodes
    /// is let go of, if it is time: a client has no thread that would do so between calls.
    pub(crate) fn deadline(&self) -> Deadline {
        let now = boottime();
        self.report_if_due(now, false);
        self.engine.let_go(now);
        now.deadline_in(self.config.call_time)
    }

    /// The same for a call that moves so many bytes in parts: over a slow network they take their time. An owner that
    /// stands still is not waited for any longer.
    pub(crate) fn deadline_for(&self, bytes: u64) -> Deadline {
        let soon = self.deadline();
        if bytes < LARGE_BYTES {
            return soon;
        }
        boottime().deadline_in(self.config.call_time.saturating_mul(LARGE_TIMES))
    }

    /// Whether each key has a finished object. Protects nothing from eviction, unless this client holds what it
    /// finds.
    pub fn exists_batch(&self, keys: &[&[u8]]) -> Result<Vec<Result<bool, Error>>, Error> {
        let deadline = self.deadline();
        let there = self.exists_near(keys);
        let unknown = keys.iter().zip(&there).filter_map(|(key, there)| (!there).then_some(*key));
        let unknown: Vec<&[u8]> = unknown.collect();
        let mut asked = by_frame(&unknown, |part| self.ask_existence(part, deadline))?.into_iter();
        let each = there.into_iter().map(|there| {
            if there {
                Ok(true)
            } else {
                asked.next().expect("one answer per key that was asked for")
            }
        });
        Ok(each.collect())
    }

    /// Whether the key has a finished object.
    pub fn exists(&self, key: &[u8]) -> Result<bool, Error> {
        self.exists_batch(&[key])?.pop().expect("one result per item")
    }

    /// Removes objects; `Ok(false)`: there was none. When it returns nobody can read the old value.
    pub fn remove_batch(
        &self,
        keys: &[&[u8]],
        force: bool,
    ) -> Result<Vec<Result<bool, Error>>, Error> {
        let deadline = self.deadline();
        let removed = by_frame(keys, |part| self.master.remove(force, part, deadline))?;
        let each = removed.into_iter().map(|one| match one {
            Ok(()) => Ok(true),
            Err(Error::Remove(RemoveError::NotFound)) => Ok(false),
            Err(error) => Err(error),
        });
        Ok(each.collect())
    }

    /// Removes an object; `Ok(false)`: there was none.
    pub fn remove(&self, key: &[u8], force: bool) -> Result<bool, Error> {
        self.remove_batch(&[key], force)?.pop().expect("one result per item")
    }

    /// Removes all objects whose keys match, step by step; what became of them. A key that is put
    /// meanwhile may stay. Each step has the time of one call.
    pub fn remove_matching(&self, pattern: Pattern<'_>, force: bool) -> Result<Removed, Error> {
        let mut all = Removed { removed: 0, deferred: 0, leased: 0, next: Some(0) };
        while let Some(cursor) = all.next {
            let ask = RemoveMatching { pattern, force, cursor };
            let step = self.master.remove_matching(&ask, self.deadline())??;
            all.removed += step.removed;
            all.deferred += step.deferred;
            all.leased += step.leased;
            all.next = step.next;
        }
        Ok(all)
    }

    /// A page of keys that match; start with cursor 0, go on with `next`.
    pub fn list(&self, pattern: Pattern<'_>, cursor: u64, limit: u32) -> Result<Listing, Error> {
        Ok(self.master.list(&List { pattern, cursor, limit }, self.deadline())?)
    }

    /// Sets what a tenant may use; `None`: no limit. For administrators.
    pub fn set_quota(&self, tenant: TenantId, quota: Option<u64>) -> Result<(), Error> {
        Ok(self.master.set_quota(&SetQuota { tenant, quota }, self.deadline())?)
    }

    /// Empties the segments of a node, or tells how far that is; `None`: there is no such node. For
    /// administrators.
    pub fn drain(
        &self,
        node: NodeId,
        segment: Option<SegmentId>,
        wish: DrainWish,
    ) -> Result<Option<DrainStat>, Error> {
        Ok(self.master.drain(&Drain { node, segment, wish }, self.deadline())?)
    }

    /// Gives an object a copy in the segment `to`; with `from`, instead of the one there. Returns when
    /// it is so.
    pub fn copy(&self, key: &[u8], from: Option<SegmentId>, to: SegmentId) -> Result<(), Error> {
        Ok(self.master.copy(&CopyKey { key, from, to }, self.deadline())??)
    }

    /// Sends a command to a node; false: there is no such node. For administrators.
    pub fn command(&self, node: NodeId, command: NodeCommand) -> Result<bool, Error> {
        Ok(self.master.command(&Command { node, command }, self.deadline())?)
    }

    /// The cluster in numbers.
    pub fn stat(&self) -> Result<ClusterStat, Error> {
        Ok(self.master.stat(self.deadline())?)
    }

    /// The nodes of the cluster and where they are reached.
    pub fn nodes(&self) -> Result<Vec<NodeEntry>, Error> {
        Ok(self.master.nodes(self.deadline())?)
    }

    /// Whether the master answers.
    pub fn ping(&self) -> Result<(), Error> {
        self.master.ping(self.deadline())?;
        Ok(())
    }

    /// What was counted.
    pub fn counts(&self) -> Counts {
        self.counters.now()
    }

    /// What is mapped of nodes of this host.
    pub fn mapped(&self) -> MappedMemory {
        self.engine.mapped()
    }

    /// Places of values that are remembered, and the bytes that they take.
    pub fn remembered_places(&self) -> (usize, usize) {
        self.cache.size()
    }
}
