//! The engine picks a path per segment, once: same process, same host, or the network.

use crate::Transport;
use crate::device::DeviceDoor;
use crate::error::TransferError;
use crate::lanes::Lanes;
use crate::local::Local;
use crate::segments::Segments;
use crate::shared::{MappedMemory, Shared};
use crate::stream::Stream;
use mooncrate_core::plan::{Locator, Medium};
use mooncrate_core::time::{Deadline, Now};
use mooncrate_core::{HostId, Incarnation, NodeId, SegmentId};
use mooncrate_lock::RwLock;
use mooncrate_mem::clock::boottime;
use mooncrate_wire::{Address, CallError, DataError, PoolConfig, Role};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Between two looks for memory of dead owners.
const LET_GO_PAUSE: Duration = Duration::from_secs(1);

/// How a segment is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Path {
    /// In this process.
    Local,
    /// In another process of this host, through its memory.
    Shared,
    /// Over a socket.
    Stream,
}

impl Path {
    /// Whether a read of this replica over this path waits for its owner: not where its bytes are in memory
    /// of this process, or in memory that is mapped.
    pub fn waits(self, locator: &Locator) -> bool {
        match self {
            Self::Local => false,
            Self::Shared => locator.segment.medium() == Medium::Ssd,
            Self::Stream => true,
        }
    }
}

/// Where the owner of a segment is.
#[derive(Clone, Debug)]
pub struct Route {
    /// Which node.
    pub node: NodeId,
    /// Its machine.
    pub host: HostId,
    /// Its data socket.
    pub tcp: Option<Address>,
    /// Its Unix socket, of use on the same machine only.
    pub unix: Option<Address>,
}

/// Who knows where segments are.
pub trait Directory: Send + Sync + std::fmt::Debug {
    /// Where this mount of a segment is; `None`: nobody serves it.
    fn route(
        &self,
        segment: SegmentId,
        incarnation: Incarnation,
        deadline: Deadline,
    ) -> Result<Option<Route>, CallError>;

    /// The same for somebody who can do without: as far as it is known, or was not asked for lately.
    fn route_hint(
        &self,
        segment: SegmentId,
        incarnation: Incarnation,
        deadline: Deadline,
    ) -> Option<Route> {
        self.route(segment, incarnation, deadline).ok().flatten()
    }
}

/// What the engine may do.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The machine this process runs on.
    pub host: HostId,
    /// Whether the memory of processes on the same host may be mapped.
    pub shared_memory: bool,
    /// Whether segments of this process are read directly.
    pub local: bool,
    /// Values up to this size go to a process on the same host through its socket: one round trip
    /// beats two and a copy.
    pub inline_bytes_max: u64,
    /// As what it reaches others.
    pub role: Role,
    /// Links.
    pub links: PoolConfig,
    /// Over how many of them a large value travels.
    pub lanes: Lanes,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            host: HostId(0),
            shared_memory: true,
            local: true,
            inline_bytes_max: 32 << 10,
            role: Role::Client,
            links: PoolConfig::default(),
            lanes: Lanes::default(),
        }
    }
}

type Known = BTreeMap<SegmentId, (Incarnation, Arc<dyn Transport>)>;

/// Finds the transport of a locator.
#[derive(Debug)]
pub struct Engine {
    config: EngineConfig,
    local: Arc<Local>,
    segments: Arc<Segments>,
    directory: Arc<dyn Directory>,
    /// One transport per address.
    streams: RwLock<BTreeMap<Address, Arc<Stream>>>,
    shared: RwLock<BTreeMap<Address, Arc<Shared>>>,
    /// The choice per segment; a new mount is chosen anew.
    known: RwLock<Known>,
    /// When to look for memory of dead owners again, in nanoseconds.
    let_go_at: AtomicU64,
}

impl Engine {
    /// An engine over the segments of this process and a directory of all others.
    pub fn new(
        config: EngineConfig,
        segments: Arc<Segments>,
        directory: Arc<dyn Directory>,
    ) -> Self {
        Self {
            local: Arc::new(Local::new(Arc::clone(&segments))),
            config,
            segments,
            directory,
            streams: RwLock::default(),
            shared: RwLock::default(),
            known: RwLock::default(),
            let_go_at: AtomicU64::new(0),
        }
    }

    /// The machine this process runs on.
    pub fn host(&self) -> HostId {
        self.config.host
    }

    /// The transport to the owner of `locator`.
    pub fn transport(
        &self,
        locator: &Locator,
        deadline: Deadline,
    ) -> Result<Arc<dyn Transport>, TransferError> {
        let (segment, incarnation) = (locator.segment, locator.incarnation);
        if let Some((known, transport)) = self.known.read().get(&segment)
            && *known == incarnation
        {
            return Ok(Arc::clone(transport));
        }
        let transport: Arc<dyn Transport> = if self.config.local
            && self.segments.holds(segment, incarnation)
        {
            Arc::clone(&self.local) as _
        } else {
            let route = self.directory.route(segment, incarnation, deadline);
            let route = route.map_err(TransferError::Unrouted)?.ok_or(TransferError::NoRoute)?;
            match self.peer(&route, locator, deadline) {
                // It has no leave to serve, before its first heartbeat or after an outage of its master. It
                // refuses reads, and takes puts. Not kept: its memory is mapped when it serves.
                Err(TransferError::Fenced) if let Some(unix) = &route.unix => {
                    return Ok(self.stream(unix));
                }
                found => found?,
            }
        };
        self.known.write().insert(segment, (incarnation, Arc::clone(&transport)));
        Ok(transport)
    }

    /// The same for a caller with somewhere else to go, who gives up when nothing moves for `silence_max`.
    pub fn hasty(
        &self,
        locator: &Locator,
        silence_max: Duration,
        deadline: Deadline,
    ) -> Result<Arc<dyn Transport>, TransferError> {
        let soon = deadline.min(boottime().deadline_in(silence_max));
        Ok(self.transport(locator, soon)?.hasty(silence_max))
    }

    /// The way by which a GPU of this process reaches a replica in VRAM; `None`: its owner is not on this
    /// host, or the replica is not in VRAM. Whether the owner lends its memory, [`DeviceDoor::lend`] tells.
    pub fn device_door(
        &self,
        locator: &Locator,
        deadline: Deadline,
    ) -> Result<Option<DeviceDoor>, TransferError> {
        let (segment, incarnation) = (locator.segment, locator.incarnation);
        if segment.medium() != Medium::Vram {
            return Ok(None);
        }
        if self.config.local && self.segments.holds(segment, incarnation) {
            return Ok(Some(DeviceDoor::here(&self.segments)));
        }
        let route = self.directory.route(segment, incarnation, deadline);
        let route = route.map_err(TransferError::Unrouted)?.ok_or(TransferError::NoRoute)?;
        let near = self.config.shared_memory && route.host == self.config.host;
        let unix = route.unix.filter(|_| near);
        Ok(unix.map(|unix| DeviceDoor::near(self.shared_peer(&unix))))
    }

    /// Whether a read of `locator` waits for its owner, as far as its way is known.
    pub fn waits(&self, locator: &Locator) -> bool {
        let (segment, incarnation) = (locator.segment, locator.incarnation);
        let known = self.known.read();
        match known.get(&segment).filter(|(known, _)| *known == incarnation) {
            Some((_, transport)) => transport.path().waits(locator),
            None => !(self.config.local && self.segments.holds(segment, incarnation)),
        }
    }

    /// Whether a way to the owner of `locator` is known, of whichever kind.
    pub fn knows(&self, locator: &Locator) -> bool {
        let known = self.known.read();
        known.get(&locator.segment).is_some_and(|(mount, _)| *mount == locator.incarnation)
    }

    /// The way to memory that is mapped here, or of this process: a read over it waits for nobody. `None`: there
    /// is none, or none is known yet.
    pub fn near(&self, locator: &Locator) -> Option<Arc<dyn Transport>> {
        let known = self.known.read();
        let (mount, transport) = known.get(&locator.segment)?;
        let near = *mount == locator.incarnation && !transport.path().waits(locator);
        // What a process has on disks of its own is loaded.
        let near = near && locator.segment.medium() == Medium::Dram;
        near.then(|| Arc::clone(transport))
    }

    /// How far the owner of `locator` is: 0 in this process, 1 on this host, 2 elsewhere, 3 unknown.
    pub fn distance(&self, locator: &Locator, deadline: Deadline) -> u8 {
        let (segment, incarnation) = (locator.segment, locator.incarnation);
        if let Some((known, transport)) = self.known.read().get(&segment)
            && *known == incarnation
        {
            match transport.path() {
                Path::Local => return 0,
                Path::Shared => return 1,
                // Memory of a GPU is read over a socket, also where its owner is near.
                Path::Stream if segment.medium() == Medium::Vram => {}
                Path::Stream => return 2,
            }
        }
        if self.config.local && self.segments.holds(segment, incarnation) {
            return 0;
        }
        match self.directory.route_hint(segment, incarnation, deadline) {
            Some(route) if route.host == self.config.host => 1,
            Some(_) => 2,
            None => 3,
        }
    }

    /// Lets go of the memory of owners that do not serve it any more; looks once a second at most. An engine
    /// has no thread of its own: whoever uses it calls this now and then. It waits for nobody, and memory is
    /// unmapped elsewhere.
    pub fn let_go(&self, now: Now) {
        // Relaxed: a hint; that two look at once does no harm.
        if now.0 < self.let_go_at.load(Ordering::Relaxed) {
            return;
        }
        self.let_go_at.store(now.plus(LET_GO_PAUSE).0, Ordering::Relaxed);
        let owners: Vec<Arc<Shared>> = self.shared.read().values().map(Arc::clone).collect();
        for owner in owners {
            let gone = owner.let_go(now);
            if gone.is_empty() {
                continue;
            }
            let mut known = self.known.write();
            for (segment, incarnation) in gone {
                if known.get(&segment).is_some_and(|(known, _)| *known == incarnation) {
                    known.remove(&segment);
                }
            }
        }
    }

    /// What is mapped of other processes.
    pub fn mapped(&self) -> MappedMemory {
        let all = self.shared.read();
        all.values().map(|owner| owner.mapped()).fold(MappedMemory::default(), |sum, one| {
            MappedMemory {
                maps: sum.maps + one.maps,
                mounts: sum.mounts + one.mounts,
                bytes: sum.bytes + one.bytes,
            }
        })
    }

    /// Forgets how a segment is reached: its owner did not answer. What is mapped stays mapped.
    pub fn forget(&self, segment: SegmentId) {
        self.known.write().remove(&segment);
    }

    fn peer(
        &self,
        route: &Route,
        locator: &Locator,
        deadline: Deadline,
    ) -> Result<Arc<dyn Transport>, TransferError> {
        let same_host = self.config.shared_memory && route.host == self.config.host;
        if same_host && let Some(unix) = &route.unix {
            let shared = self.shared_peer(unix);
            // What is on its disks is read in its staging memory, of whichever mount: a read attaches anew.
            let (memory, mount) = match locator.segment.medium() {
                Medium::Ssd => (SegmentId::staging(route.node), None),
                _ => (locator.segment, Some(locator.incarnation)),
            };
            if shared.serves(memory, mount) {
                return Ok(shared);
            }
            match shared.attach(memory, deadline) {
                Ok(()) => return Ok(shared),
                // Whoever is silent here is silent there, and would be waited for twice. That all links are in
                // use says nothing of this way.
                Err(
                    error @ TransferError::Call(
                        CallError::Deadline { .. }
                        | CallError::Busy { .. }
                        | CallError::Interrupted { .. },
                    ),
                ) => return Err(error),
                // A container may see the socket's host but not its file: use the network.
                Err(TransferError::Call(_)) if route.tcp.is_some() => {}
                // It does not share its memory with us, or we cannot map it; but its socket is near.
                Err(TransferError::Data(DataError::Unsupported) | TransferError::Map(_)) => {
                    return Ok(self.stream(unix));
                }
                Err(error) => return Err(error),
            }
        }
        let Some(tcp) = route.tcp.as_ref().or(route.unix.as_ref()) else {
            return Err(TransferError::NoRoute);
        };
        Ok(self.stream(tcp))
    }

    fn stream(&self, address: &Address) -> Arc<dyn Transport> {
        let new = || {
            let stream = Stream::as_role(address.clone(), self.config.role, &self.config.links);
            Arc::new(stream.with_lanes(self.config.lanes))
        };
        Arc::clone(self.streams.write().entry(address.clone()).or_insert_with(new)) as _
    }

    fn shared_peer(&self, unix: &Address) -> Arc<Shared> {
        let new = || Arc::new(Shared::new(unix.clone(), &self.config));
        Arc::clone(self.shared.write().entry(unix.clone()).or_insert_with(new))
    }
}
