//! The store as a program sees it.

use crate::direct::Direct;
use crate::error::Error;
use crate::host::{this_host, this_start};
use crate::paged::Attachments;
use crate::server::{NodeOptions, Running, join, master_beside, run_node_among};
use crate::staging::{Staging, StagingConfig};
use mooncrate_client::{Client, ClientConfig, Counts, Stored, View, Wishes};
use mooncrate_core::catalog;
use mooncrate_core::copy::{DrainMode, DrainStat};
use mooncrate_core::ids::{HostId, name_hash};
use mooncrate_core::plan::{Looked, PutConfig};
use mooncrate_core::time::Deadline;
use mooncrate_core::{NodeId, SegmentId, TenantId, ZoneId};
use mooncrate_lock::Mutex;
use mooncrate_master::{Master, MasterConfig, Serving, serve};
use mooncrate_node::{Node, NodeConfig, OpenDisks, OpenMemory, SsdConfig, TierConfig, VramConfig};
use mooncrate_transfer::{EngineConfig, Lanes, MappedMemory, Path, Segments};
use mooncrate_wire::clock::boottime;
use mooncrate_wire::message::{
    ClusterStat, DrainWish, Listing, NodeCommand, NodeEntry, Pattern, Removed,
};
use mooncrate_wire::{
    Address, Hello, LinkKind, MasterLink, MasterPools, Masters, PoolConfig, Role, ServerConfig,
};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// How a store inside this process is made.
#[derive(Clone, Debug)]
pub struct EmbeddedOptions {
    /// Bytes it may hold.
    pub segment_bytes: u64,
    /// Objects it may hold; `None`: one per 2 KiB.
    pub slots: Option<u32>,
    /// Whether they may be more than the memory of the machine, or than a cgroup allows.
    pub memory_overcommit: bool,
    /// Directories on disks that hold what memory cannot, and what outlives the process.
    pub ssd: Vec<SsdConfig>,
    /// GPUs whose memory holds what is put there.
    pub vram: Vec<VramConfig>,
    /// How it places and evicts.
    pub catalog: catalog::Config,
    /// How calls behave.
    pub client: ClientConfig,
    /// How much page-locked memory values of GPUs travel through.
    pub staging: StagingConfig,
}

impl Default for EmbeddedOptions {
    fn default() -> Self {
        Self {
            segment_bytes: 256 << 20,
            slots: None,
            memory_overcommit: false,
            ssd: Vec::new(),
            vram: Vec::new(),
            catalog: catalog::Config::default(),
            client: ClientConfig::default(),
            staging: StagingConfig::default(),
        }
    }
}

/// How a cluster is reached.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// Its master, or all of them: the one that leads is found among them.
    pub master: Masters,
    /// This machine's label; nodes with the same one are read through their memory.
    pub host: String,
    /// Whether to do that.
    pub shared_memory: bool,
    /// This machine's zone.
    pub zone: String,
    /// How calls behave.
    pub client: ClientConfig,
    /// Whether it comes as an administrator, where the cluster asks who somebody is.
    pub admin: bool,
    /// Connections to each peer.
    pub links: PoolConfig,
    /// Over how many of them a large value travels.
    pub lanes: Lanes,
    /// How much page-locked memory values of GPUs travel through.
    pub staging: StagingConfig,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            master: Address::Tcp("127.0.0.1:7411".into()).into(),
            host: this_host(),
            shared_memory: true,
            zone: String::new(),
            client: ClientConfig::default(),
            admin: false,
            links: PoolConfig::default(),
            lanes: Lanes::default(),
            staging: StagingConfig::default(),
        }
    }
}

/// A store: in this process, or in a cluster. Clones share it.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

struct Inner {
    /// Rooms for values of GPUs. Empty, and nothing of a driver is loaded, until one is used.
    staging: Staging,
    direct: Direct,
    client: Client,
    /// Where the client finds segments of this process. Taken by the first node that is lent.
    segments: Mutex<Option<Arc<Segments>>>,
    /// Only of an embedded store. Dropped with the last clone.
    own: Option<Own>,
    /// Paged caches that spill into it.
    attached: Attachments,
}

/// The servers of an embedded store.
struct Own {
    node: Arc<Node>,
    master: Arc<Master>,
    /// Taken when it is dropped.
    serving: Option<Serving>,
}

impl Drop for Own {
    fn drop(&mut self) {
        drop(self.serving.take());
        self.node.stop();
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.inner.own.is_some() { "embedded" } else { "connected" };
        f.debug_tuple("Store").field(&kind).finish()
    }
}

impl Store {
    /// A store in this process: no server, no socket, gone when the last clone is dropped, but for what is
    /// on its disks: a later store over the same directories finds it again.
    pub fn embedded(options: EmbeddedOptions) -> Result<Self, Error> {
        let tier = TierConfig { disks: options.ssd, ..TierConfig::default() };
        let config = MasterConfig { catalog: options.catalog, ..MasterConfig::default() };
        let host = this_host();
        let node = NodeConfig {
            name: "embedded".into(),
            host: host.clone(),
            segment_bytes: options.segment_bytes,
            slots: options.slots,
            memory_overcommit: options.memory_overcommit,
            shared: false,
            incarnation: this_start(),
            tier,
            vram: options.vram,
            ..NodeConfig::default()
        };
        // Before the master, whose state is beside them: a disk that somebody else has is left as it is.
        let (disks, memory) = (OpenDisks::open(&node)?, OpenMemory::open(&node)?);
        let master = master_beside(config, &disks, &node.tier)?;
        let scope = master.scope(options.client.tenant);
        let node = Node::over(node, (disks, memory), Arc::clone(&scope) as _, Vec::new())?;
        let serving = serve(&master, &[], &ServerConfig::default(), 0)
            .map_err(Error::io("starting the master's ticker"))?;
        join(&master, &node)?;
        let engine = EngineConfig { host: HostId(name_hash(&host)), ..EngineConfig::default() };
        let segments = Arc::clone(node.segments());
        let client = Client::new(options.client, engine, scope, segments);
        let own = Some(Own { node, master, serving: Some(serving) });
        let staging = Staging::new(options.staging);
        Ok(Self::over(client, None, own, staging))
    }

    /// A client of a cluster. Fails if its master does not answer.
    pub fn connect(mut options: ConnectOptions) -> Result<Self, Error> {
        options.links.link.access.tenant = options.client.tenant;
        let role = if options.admin { Role::Admin } else { Role::Client };
        let hello = Hello::new(role, LinkKind::Control, &client_name());
        let pools = MasterPools::new(&options.master, &hello, &options.links);
        let master = Arc::new(MasterLink::guarded(pools));
        let engine = EngineConfig {
            host: HostId(name_hash(&options.host)),
            shared_memory: options.shared_memory,
            role,
            links: options.links,
            lanes: options.lanes,
            ..EngineConfig::default()
        };
        let client = ClientConfig { zone: ZoneId(name_hash(&options.zone)), ..options.client };
        let segments = Arc::new(Segments::default());
        let client = Client::new(client, engine, master, Arc::clone(&segments));
        client.ping()?;
        let staging = Staging::new(options.staging);
        Ok(Self::over(client, Some(segments), None, staging))
    }

    fn over(
        client: Client,
        segments: Option<Arc<Segments>>,
        own: Option<Own>,
        staging: Staging,
    ) -> Self {
        let segments = Mutex::new(segments);
        let attached = Attachments::default();
        let inner = Inner { staging, direct: Direct::default(), client, segments, own, attached };
        Self { inner: Arc::new(inner) }
    }

    /// Runs a node in this process, as [`run_node`](crate::run_node) does. This store and its clones reach the memory
    /// of the first one that is lent so without a socket; that of others as that of any node of this machine.
    pub fn lend(&self, options: NodeOptions) -> Result<Running, Error> {
        let segments = self.inner.segments.lock().take();
        let Some(segments) = segments else { return run_node_among(options, Arc::default()) };
        let running = run_node_among(options, Arc::clone(&segments));
        if running.is_err() {
            if segments.all().is_empty() {
                // It came to nothing: the next one may have the place.
                *self.inner.segments.lock() = Some(segments);
            } else {
                segments.clear();
            }
        }
        running
    }

    /// Whether other processes can reach it.
    pub(crate) fn is_shared(&self) -> bool {
        self.inner.own.is_none()
    }

    pub(crate) fn attached(&self) -> &Attachments {
        &self.inner.attached
    }

    pub(crate) fn staging(&self) -> &Staging {
        &self.inner.staging
    }

    pub(crate) fn direct(&self) -> &Direct {
        &self.inner.direct
    }

    /// When a call that starts now must have ended.
    pub(crate) fn deadline(&self) -> Deadline {
        boottime().deadline_in(self.inner.client.call_time())
    }

    pub(crate) fn client(&self) -> &Client {
        &self.inner.client
    }

    /// Stores a value. A key that has one keeps it.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<Stored, Error> {
        Ok(self.inner.client.put(key, value)?)
    }

    /// Stores a value that lies in pieces, with wishes of its own.
    pub fn put_parts(
        &self,
        key: &[u8],
        value: &[&[u8]],
        config: &PutConfig,
    ) -> Result<Stored, Error> {
        Ok(self.inner.client.put_parts(key, value, config)?)
    }

    /// The wishes of a plain put, to start from.
    pub fn put_config(&self) -> PutConfig {
        self.inner.client.put_config().clone()
    }

    /// Stores values in one go; one result each.
    pub fn put_batch(&self, items: &[(&[u8], &[u8])]) -> Vec<Result<Stored, Error>> {
        let stored = self.inner.client.put_batch(items);
        stored.into_iter().map(|one| one.map_err(Error::from)).collect()
    }

    /// Stores values that lie in pieces in one go, all with the same wishes, but for a group of each where
    /// [`Wishes::grouped`] says so; one result each.
    pub fn put_parts_batch<'w>(
        &self,
        items: &[(&[u8], &[&[u8]])],
        wishes: impl Into<Wishes<'w>>,
    ) -> Vec<Result<Stored, Error>> {
        let stored = self.inner.client.put_parts_batch(items, wishes);
        stored.into_iter().map(|one| one.map_err(Error::from)).collect()
    }

    /// The value of a key, verified; `None` if there is none.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        Ok(self.inner.client.get(key)?)
    }

    /// The same in memory that `make` gives once the length is known: as long as it is asked to be, or
    /// the read fails. It may be asked again, where a value has moved meanwhile.
    pub fn get_with<B: AsMut<[u8]>>(
        &self,
        key: &[u8],
        make: impl FnMut(usize) -> B,
    ) -> Result<Option<B>, Error> {
        Ok(self.inner.client.get_with(key, make)?)
    }

    /// Copies a value into the front of `target`; its length, or `None` if there is none.
    pub fn get_into(&self, key: &[u8], target: &mut [u8]) -> Result<Option<usize>, Error> {
        Ok(self.inner.client.get_into(key, target)?)
    }

    /// The same where it waits for nobody: the place of the value is remembered and its memory mapped here, and
    /// it has `len_max` bytes at most. `None`: ask by [`Store::get_into`]. For callers to whom waiting costs more
    /// than the copy, as with a lock of an interpreter in their hands.
    pub fn get_into_near(&self, key: &[u8], len_max: usize, target: &mut [u8]) -> Option<usize> {
        self.inner.client.get_into_near(key, len_max, target)
    }

    /// The same in memory that `make` gives, as for [`Store::get_with`].
    pub fn get_near<B: AsMut<[u8]>>(
        &self,
        key: &[u8],
        len_max: usize,
        make: impl FnOnce(usize) -> B,
    ) -> Option<B> {
        self.inner.client.get_near(key, len_max, make)
    }

    /// Whether keys have values, where that can be seen without waiting; false: ask by [`Store::exists`].
    pub fn exists_near(&self, keys: &[&[u8]]) -> Vec<bool> {
        self.inner.client.exists_near(keys)
    }

    /// The lengths of values, where they can be seen without waiting; `None`: ask by [`Store::size`].
    pub fn lengths_near(&self, keys: &[&[u8]]) -> Vec<Option<u64>> {
        self.inner.client.lengths_near(keys)
    }

    /// The values of many keys; one result each.
    pub fn get_batch(&self, keys: &[&[u8]]) -> Vec<Result<Option<Vec<u8>>, Error>> {
        let found = self.inner.client.get_batch(keys);
        found.into_iter().map(|one| one.map_err(Error::from)).collect()
    }

    /// The same in memory that `make` gives, as for [`Store::get_with`].
    pub fn get_batch_with<B: AsMut<[u8]>>(
        &self,
        keys: &[&[u8]],
        make: impl FnMut(usize) -> B,
    ) -> Vec<Result<Option<B>, Error>> {
        let found = self.inner.client.get_batch_with(keys, make);
        found.into_iter().map(|one| one.map_err(Error::from)).collect()
    }

    /// Copies many values into the fronts of their targets; their lengths, one result each.
    pub fn get_into_batch(
        &self,
        items: &mut [(&[u8], &mut [u8])],
    ) -> Vec<Result<Option<usize>, Error>> {
        let found = self.inner.client.get_into_batch(items);
        found.into_iter().map(|one| one.map_err(Error::from)).collect()
    }

    /// A value in place, pinned while the view lives; a copy where its owner is on another machine.
    pub fn view(&self, key: &[u8]) -> Result<Option<View>, Error> {
        Ok(self.inner.client.view(key)?)
    }

    /// Bytes of a value, or `None` if there is none.
    pub fn size(&self, key: &[u8]) -> Result<Option<u64>, Error> {
        Ok(self.inner.client.size(key)?)
    }

    /// Asks that a value be neither evicted nor removed for `time`, 10 s at most; the rest of the promise
    /// when the call returns, or `None` if there is no value. Ask again to go on.
    pub fn lease(&self, key: &[u8], time: Duration) -> Result<Option<Duration>, Error> {
        let end = self.inner.client.lease(key, time)?;
        Ok(end.map(|end| end.since(boottime())))
    }

    /// Whether a key has a value. Asking protects nothing from eviction.
    pub fn exists(&self, key: &[u8]) -> Result<bool, Error> {
        Ok(self.inner.client.exists(key)?)
    }

    /// The same for many keys; one result each.
    pub fn exists_batch(&self, keys: &[&[u8]]) -> Result<Vec<Result<bool, Error>>, Error> {
        let found = self.inner.client.exists_batch(keys)?;
        Ok(found.into_iter().map(|one| one.map_err(Error::from)).collect())
    }

    /// What is known of each key: nothing, that its value is being written, or how long it is; with
    /// `places` also where it is, which counts as a read. With `hold`, removes without force are refused
    /// for the master's `lease_ttl`; eviction does not wait for that.
    pub fn look(
        &self,
        keys: &[&[u8]],
        hold: bool,
        places: bool,
    ) -> Result<Vec<Result<Looked, Error>>, Error> {
        let looked = self.inner.client.look(keys, hold, places)?;
        Ok(looked.into_iter().map(|one| one.map_err(Error::from)).collect())
    }

    /// Removes a value; whether there was one. When it returns, nobody can begin to read it; views
    /// that exist keep their bytes. `force` also ends what is leased, once the leases are over.
    pub fn remove(&self, key: &[u8], force: bool) -> Result<bool, Error> {
        Ok(self.inner.client.remove(key, force)?)
    }

    /// The same for many keys; one result each.
    pub fn remove_batch(
        &self,
        keys: &[&[u8]],
        force: bool,
    ) -> Result<Vec<Result<bool, Error>>, Error> {
        let removed = self.inner.client.remove_batch(keys, force)?;
        Ok(removed.into_iter().map(|one| one.map_err(Error::from)).collect())
    }

    /// A page of keys that start with `prefix`, in no particular order: begin with cursor 0, go on
    /// with the page's `next` until it is `None`.
    pub fn list(&self, prefix: &[u8], cursor: u64, limit: u32) -> Result<Listing, Error> {
        Ok(self.inner.client.list(Pattern::Prefix(prefix), cursor, limit)?)
    }

    /// The same for keys in which a regular expression finds a match.
    pub fn list_regex(&self, regex: &str, cursor: u64, limit: u32) -> Result<Listing, Error> {
        Ok(self.inner.client.list(Pattern::Regex(regex), cursor, limit)?)
    }

    /// Removes all values whose keys start with `prefix`; what became of them. Leased ones stay, unless
    /// `force`.
    pub fn remove_prefix(&self, prefix: &[u8], force: bool) -> Result<Removed, Error> {
        Ok(self.inner.client.remove_matching(Pattern::Prefix(prefix), force)?)
    }

    /// The same for keys in which a regular expression finds a match, in the syntax of the `regex`
    /// crate: its time is in proportion to the key, whatever the expression.
    pub fn remove_regex(&self, regex: &str, force: bool) -> Result<Removed, Error> {
        Ok(self.inner.client.remove_matching(Pattern::Regex(regex), force)?)
    }

    /// Sets what a tenant may use, in bytes of all its replicas; `None`: no limit.
    pub fn set_quota(&self, tenant: TenantId, quota: Option<u64>) -> Result<(), Error> {
        Ok(self.inner.client.set_quota(tenant, quota)?)
    }

    /// Begins to empty a node, or one of its segments, while it serves: it gets nothing new, and what
    /// it holds goes elsewhere. `None`: no such node is mounted. Look how far it is with
    /// [`Store::drain_stat`], or wait for it by going through [`Store::drain_progress`].
    pub fn drain(
        &self,
        node: NodeId,
        segment: Option<SegmentId>,
        mode: DrainMode,
    ) -> Result<Option<DrainStat>, Error> {
        let wish = match mode {
            DrainMode::Move => DrainWish::Move,
            DrainMode::Drop => DrainWish::Drop,
        };
        Ok(self.inner.client.drain(node, segment, wish)?)
    }

    /// Ends a drain: the node gets objects again.
    pub fn undrain(
        &self,
        node: NodeId,
        segment: Option<SegmentId>,
    ) -> Result<Option<DrainStat>, Error> {
        Ok(self.inner.client.drain(node, segment, DrainWish::Undo)?)
    }

    /// How far a drain is; `None`: no such node is mounted.
    pub fn drain_stat(
        &self,
        node: NodeId,
        segment: Option<SegmentId>,
    ) -> Result<Option<DrainStat>, Error> {
        Ok(self.inner.client.drain(node, segment, DrainWish::Look)?)
    }

    /// How far a drain is, every `pause`, until nothing is left, it was ended, or its node is gone.
    pub fn drain_progress(
        &self,
        node: NodeId,
        segment: Option<SegmentId>,
        pause: Duration,
    ) -> impl Iterator<Item = Result<DrainStat, Error>> + '_ {
        let mut over = false;
        let mut first = true;
        std::iter::from_fn(move || {
            if over {
                return None;
            }
            if !std::mem::take(&mut first) {
                std::thread::sleep(pause);
            }
            let stat = self.drain_stat(node, segment).transpose()?;
            over = stat.as_ref().map_or(true, |stat| stat.drained() || stat.draining == 0);
            Some(stat)
        })
    }

    /// Gives a value one copy more, in the segment `to`; returns when it is there.
    pub fn copy(&self, key: &[u8], to: SegmentId) -> Result<(), Error> {
        Ok(self.inner.client.copy(key, None, to)?)
    }

    /// Moves the copy of a value in the segment `from` to the segment `to`; returns when it is there.
    pub fn move_replica(&self, key: &[u8], from: SegmentId, to: SegmentId) -> Result<(), Error> {
        Ok(self.inner.client.copy(key, Some(from), to)?)
    }

    /// Ends the copy of a value in one segment; the value goes with its last copy.
    pub fn drop_copy(&self, key: &[u8], segment: SegmentId) -> Result<(), Error> {
        Ok(self.inner.client.drop_copy(key, segment)?)
    }

    /// Orders a node to mount a segment of `bytes` as its `index`-th, or to give that one up with what
    /// it holds (`None`; drain it first). False: no such node is mounted. [`Store::stat`] shows when
    /// it is done.
    pub fn resize(&self, node: NodeId, index: u16, bytes: Option<u64>) -> Result<bool, Error> {
        let command = match bytes {
            Some(bytes) => NodeCommand::Mount { index, bytes },
            None => NodeCommand::Unmount { index },
        };
        Ok(self.inner.client.command(node, command)?)
    }

    /// The cluster in numbers.
    pub fn stat(&self) -> Result<ClusterStat, Error> {
        Ok(self.inner.client.stat()?)
    }

    /// The nodes of the cluster and where they are reached.
    pub fn nodes(&self) -> Result<Vec<NodeEntry>, Error> {
        Ok(self.inner.client.nodes()?)
    }

    /// How the owner of a key is reached, or `None` if the key has no value.
    pub fn path(&self, key: &[u8]) -> Result<Option<Path>, Error> {
        Ok(self.inner.client.path(key)?)
    }

    /// What this client counted.
    pub fn counts(&self) -> Counts {
        self.inner.client.counts()
    }

    /// What this client has mapped of nodes of this machine.
    pub fn mapped(&self) -> MappedMemory {
        self.inner.client.mapped()
    }

    /// Places of values that this client remembers, and the bytes that they take.
    pub fn remembered_places(&self) -> (usize, usize) {
        self.inner.client.remembered_places()
    }

    /// The master of an embedded store, for tests that audit it.
    pub fn master(&self) -> Option<Arc<Master>> {
        self.inner.own.as_ref().map(|own| Arc::clone(&own.master))
    }

    /// The node of an embedded store, for tests that audit it.
    pub fn node(&self) -> Option<Arc<Node>> {
        self.inner.own.as_ref().map(|own| Arc::clone(&own.node))
    }
}

/// A name that no other client says, so that the master knows when the last link of this one is gone and gives
/// its puts back. Without numbers of the kernel it is one of many, and its puts wait for the watchdog.
fn client_name() -> String {
    let mut bytes = [0; 8];
    match mooncrate_wire::auth::random(&mut bytes) {
        Ok(()) => format!("client-{:016x}", u64::from_le_bytes(bytes)),
        Err(_) => "client".to_owned(),
    }
}
