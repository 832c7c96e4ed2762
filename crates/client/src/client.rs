//! The client: a master to ask, an engine to move bytes, a cache of locators.

use crate::cache::Cache;
use crate::config::ClientConfig;
use crate::counts::{Counters, Counts};
use crate::directory::Nodes;
use crate::error::Error;
use mooncrate_core::error::RemoveError;
use mooncrate_core::plan::PutConfig;
use mooncrate_core::time::Deadline;
use mooncrate_mem::clock::boottime;
use mooncrate_transfer::{Engine, EngineConfig, Segments};
use mooncrate_wire::MasterApi;
use mooncrate_wire::message::{ClusterStat, List, Listing, NodeEntry};
use std::fmt;
use std::sync::Arc;

/// A program's door to the store. Cheap to share: all methods take `&self`.
pub struct Client {
    pub(crate) master: Arc<dyn MasterApi>,
    pub(crate) engine: Engine,
    pub(crate) cache: Cache,
    pub(crate) config: ClientConfig,
    pub(crate) put_config: PutConfig,
    pub(crate) counters: Counters,
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
            host: engine.host,
            zone: config.zone,
            preferred: Vec::new(),
        };
        let directory = Arc::new(Nodes::new(Arc::clone(&master)));
        Self {
            engine: Engine::new(engine, segments, directory),
            cache: Cache::new(config.locators_max),
            master,
            put_config,
            config,
            counters: Counters::default(),
        }
    }

    /// When a call that starts now must have ended.
    pub(crate) fn deadline(&self) -> Deadline {
        boottime().deadline_in(self.config.call_time)
    }

    /// Whether each key has a finished object. Protects nothing from eviction.
    pub fn exists_batch(&self, keys: &[&[u8]]) -> Result<Vec<Result<bool, Error>>, Error> {
        let found = self.master.exist(keys, self.deadline())?;
        Ok(found.into_iter().map(|one| one.map_err(Error::from)).collect())
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
        let removed = self.master.remove(force, keys, self.deadline())?;
        Ok(removed
            .into_iter()
            .map(|one| match one {
                Ok(()) => Ok(true),
                Err(RemoveError::NotFound) => Ok(false),
                Err(error) => Err(error.into()),
            })
            .collect())
    }

    /// Removes an object; `Ok(false)`: there was none.
    pub fn remove(&self, key: &[u8], force: bool) -> Result<bool, Error> {
        self.remove_batch(&[key], force)?.pop().expect("one result per item")
    }

    /// A page of keys that start with `prefix`; start with cursor 0, go on with `next`.
    pub fn list(&self, prefix: &[u8], cursor: u64, limit: u32) -> Result<Listing, Error> {
        Ok(self.master.list(&List { prefix, cursor, limit }, self.deadline())?)
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
}
