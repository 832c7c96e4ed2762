//! A rank of the GPU-resident cache, composed: its group, its heap, and the master on rank 0.
//!
//! ```no_run
//! use mooncrate::nano::{NanoBackend, NanoOptions, NanoRank};
//! use mooncrate_nano::{Source, Target};
//!
//! // In each of two processes, with its own number:
//! let rank = NanoRank::join(&NanoOptions::new("/run/user/1000/nano", 0, 2, NanoBackend::Host))?;
//! rank.nano().put(b"prompt", Source::Host(b"its KV cache"), Some(1), None)?;
//!
//! let mut copy = [0; 12];
//! assert!(rank.nano().get_into(b"prompt", Target::Host(&mut copy), None)?);
//! rank.leave()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The master of a group is a master like any other: `mooncrate top --master unix:PATH.master` watches it.

mod metrics;

pub use metrics::metrics_text;

use mooncrate_core::catalog::{Config, Offload};
use mooncrate_core::evict::PolicyKind;
use mooncrate_core::{LeaderEpoch, TenantId};
use mooncrate_gpu::Gpu;
use mooncrate_heap::{Group, GroupError, GroupSpec, Heap, HeapError, Layout, Part};
use mooncrate_lock::Mutex;
use mooncrate_master::{Master, MasterConfig, Serving, serve};
use mooncrate_nano::{CudaReach, HeapLayout, HostReach, Nano, NanoConfig, NanoError, Reach};
use mooncrate_wire::address::Bound;
use mooncrate_wire::{
    Address, Hello, LinkKind, MasterApi, MasterLink, MasterPools, Masters, PoolConfig, Role,
    ServerConfig,
};
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// What the heaps of the ranks are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NanoBackend {
    /// Host memory: everything but the GPU.
    Host,
    /// The memory of a GPU. Several ranks may use the same one; under MPS their kernels run side by side, and
    /// without it they take turns of milliseconds.
    Cuda {
        /// Its number among the GPUs that this process may see.
        ordinal: u32,
    },
}

/// How a rank joins. All but the rank is the same everywhere.
#[derive(Clone, Debug)]
pub struct NanoOptions {
    /// Where the ranks meet: a Unix socket that rank 0 makes.
    pub path: PathBuf,
    /// Who this process is.
    pub rank: usize,
    /// How many there are.
    pub world: usize,
    /// What heaps are made of.
    pub backend: NanoBackend,
    /// Bytes of each heap.
    pub heap_bytes: u64,
    /// How the cache behaves.
    pub config: NanoConfig,
    /// A put that takes longer is given up by the master.
    pub put_timeout: Duration,
    /// How long to wait for the other ranks.
    pub within: Duration,
}

impl NanoOptions {
    /// The usual: heaps of 64 MiB.
    pub fn new(path: impl Into<PathBuf>, rank: usize, world: usize, backend: NanoBackend) -> Self {
        Self {
            path: path.into(),
            rank,
            world,
            backend,
            heap_bytes: 64 << 20,
            config: NanoConfig::default(),
            put_timeout: Duration::from_secs(30),
            within: Duration::from_mins(1),
        }
    }

    fn layout(&self) -> Result<HeapLayout, NanoError> {
        let (slots, bytes) = (self.config.slots, self.heap_bytes);
        HeapLayout::new(slots, bytes).ok_or(NanoError::BadHeap { bytes, slots })
    }

    /// Waits for the other ranks.
    fn meet(&self) -> Result<Group, JoinError> {
        self.layout()?;
        let (path, layout) = (self.path.clone(), self.agreement());
        let Self { rank, world, within, .. } = *self;
        Ok(Group::join(&GroupSpec { path, rank, world, layout, within })?)
    }

    /// What all ranks must agree on.
    fn agreement(&self) -> u64 {
        let part = |name, bytes| Part { name, bytes: u64::max(bytes, 1), align: 1 };
        let NanoConfig { page_bytes, slots, checksums, .. } = self.config;
        let parts = [
            part("heap", self.heap_bytes),
            part("page", page_bytes.into()),
            part("slots", slots.into()),
            part("checksums", u64::from(checksums) + 1),
            part("backend", 1 + u64::from(matches!(self.backend, NanoBackend::Cuda { .. }))),
        ];
        Layout::new(parts).map_or(0, |layout| layout.hash())
    }
}

/// Why a rank did not join, or did not leave in order.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The ranks did not get together.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// There is no heap.
    #[error(transparent)]
    Heap(#[from] HeapError),
    /// The cache refused.
    #[error(transparent)]
    Nano(#[from] NanoError),
    /// The master of rank 0 could not be started.
    #[error("the master of rank 0 at {path}: {error}")]
    Master {
        /// Where it would be reached.
        path: String,
        /// What the system said.
        error: io::Error,
    },
}

/// What ranks that share a GPU are told.
pub const WITHOUT_MPS: &str = "several ranks share this GPU without MPS, so their kernels take turns of milliseconds; start \
     nvidia-cuda-mps-control -d before the ranks";

/// A rank at work.
#[derive(Debug)]
pub struct NanoRank {
    nano: Nano,
    group: Mutex<Group>,
    within: Duration,
    /// On rank 0. Stopped last: the others still take leave of it.
    master: Option<Serving>,
}

impl NanoRank {
    /// Waits for the other ranks, and returns when all of them can be used.
    pub fn join(options: &NanoOptions) -> Result<Self, JoinError> {
        let NanoOptions { within, heap_bytes, .. } = *options;
        let mut group = options.meet()?;
        let heap = match options.backend {
            NanoBackend::Host => Heap::host(&mut group, heap_bytes, within)?,
            NanoBackend::Cuda { ordinal } => {
                let gpu = Gpu::open(ordinal).map_err(NanoError::from)?;
                Heap::cuda(&mut group, &gpu, heap_bytes, within)?
            }
        };
        Self::begin(options, group, heap)
    }

    /// The same for a rank that shares its process with the others, as [`Heap::cuda_ranks`] and
    /// [`Heap::host_ranks`] make their heaps: each in a thread of its own.
    pub fn join_in_process(options: &NanoOptions, heap: Heap) -> Result<Self, JoinError> {
        Self::begin(options, options.meet()?, heap)
    }

    fn begin(options: &NanoOptions, mut group: Group, heap: Heap) -> Result<Self, JoinError> {
        let NanoOptions { rank, within, config, heap_bytes, .. } = *options;
        let layout = options.layout()?;
        if heap.bytes() < heap_bytes {
            return Err(NanoError::BadHeap { bytes: heap.bytes(), slots: config.slots }.into());
        }
        let reach: Arc<dyn Reach> = match options.backend {
            NanoBackend::Host => Arc::new(HostReach::new(heap, layout)),
            NanoBackend::Cuda { ordinal } => {
                let gpu = Gpu::open(ordinal).map_err(NanoError::from)?;
                Arc::new(CudaReach::new(&gpu, heap, layout)?)
            }
        };
        let socket = {
            let mut name = OsString::from(&options.path);
            name.push(".master");
            PathBuf::from(name)
        };
        let master = if rank == 0 { Some(start_master(options, &socket)?) } else { None };
        group.barrier("start the master", within)?;
        // The process of the master asks it without a socket.
        let master_api: Arc<dyn MasterApi> = if let Some((master, _)) = &master {
            master.scope(TenantId::DEFAULT)
        } else {
            let hello = Hello::new(Role::Node, LinkKind::Control, &format!("rank-{rank}"));
            let masters = Masters::from(Address::Unix(socket));
            let pools = MasterPools::new(&masters, &hello, &PoolConfig::default());
            Arc::new(MasterLink::new(pools))
        };
        let (watch, group) = (group.watch(), Mutex::new(group));
        let gone = Arc::new(move || watch.gone());
        let nano = Nano::start(reach, layout, master_api, gone, config)?;
        let this = Self { nano, group, within, master: master.map(|(_, serving)| serving) };
        if this.lacks_mps() {
            tracing::warn!("{WITHOUT_MPS}");
        }
        this.barrier("start")?;
        Ok(this)
    }

    /// The cache.
    pub fn nano(&self) -> &Nano {
        &self.nano
    }

    /// Whether this rank shares its GPU with others and nothing lets their kernels run side by side.
    pub fn lacks_mps(&self) -> bool {
        let heap = self.nano.reach().heap();
        let gpu = heap.span(heap.rank()).map(|span| span.gpu().clone());
        heap.beside() > 0 && gpu.is_some_and(|gpu| matches!(gpu.has_mps(), Ok(false)))
    }

    /// Waits for all ranks.
    pub fn barrier(&self, doing: &'static str) -> Result<(), GroupError> {
        self.group.lock().barrier(doing, self.within)
    }

    /// Takes this rank's heap out of the cache, waits until all have done so, and gives everything back.
    pub fn leave(self) -> Result<(), GroupError> {
        let Self { nano, group, within, master } = self;
        // The heap stays until nobody uses it any more.
        let reach = Arc::clone(nano.reach());
        nano.stop();
        let left = group.lock().barrier("leave", within);
        drop((reach, master));
        left
    }
}

/// The master of a group: it lives and dies with rank 0, so it keeps nothing.
fn start_master(
    options: &NanoOptions,
    socket: &std::path::Path,
) -> Result<(Arc<Master>, Serving), JoinError> {
    let failed = |error| JoinError::Master { path: socket.display().to_string(), error };
    let catalog = catalog(options.put_timeout);
    let config = MasterConfig { catalog, ..MasterConfig::default() };
    let master = Master::new(config, LeaderEpoch(1)).map_err(failed)?;
    let bound = Bound::listen(&Address::Unix(socket.to_owned())).map_err(failed)?;
    let serving = serve(&master, &[bound], &ServerConfig::default(), 1).map_err(failed)?;
    Ok((master, serving))
}

/// How the index of a group behaves.
fn catalog(put_timeout: Duration) -> Config {
    Config {
        high_permille: 950,
        low_permille: 850,
        put_timeout,
        // A rank that is stopped keeps its heap, which the others have mapped and read without it. Of one that is dead
        // rank 0 knows by its process.
        registration: STOPPED_MAX,
        policy: PolicyKind::Lru,
        copies_max: 0,
        hot_replicas_max: 0,
        offload: Offload::Off,
        promote: false,
        // A value lies in one heap, in one piece: kernels address it by a base and an offset.
        stripe_bytes: u64::MAX,
        ..Config::default()
    }
}

/// A rank may be stopped for so long and return with all that its heap holds.
const STOPPED_MAX: Duration = Duration::from_hours(24 * 30);

#[cfg(test)]
mod tests {
    use super::*;
    use mooncrate_core::catalog::{Catalog, Start};
    use mooncrate_core::plan::{Evidence, SegmentOffer};
    use mooncrate_core::{HostId, Incarnation, Medium, NodeId, Now, SegmentId, ZoneId};

    /// A debugger, a slow disk under a checkpoint, SIGSTOP: the heap is mapped by all, and nothing of it was lost.
    #[test]
    fn a_rank_that_was_stopped_returns_with_what_it_held() {
        let (node, mut now) = (NodeId::named("rank-1"), Now(1_000_000_000));
        let epoch = LeaderEpoch(1);
        let mut catalog = Catalog::new(catalog(Duration::from_secs(30)), epoch, Start::New, now);
        let segment = SegmentId::on(Medium::Vram, node, 0);
        let (host, zone) = (HostId(0), ZoneId(0));
        let offer = SegmentOffer {
            segment,
            incarnation: Incarnation(1),
            node,
            medium: Medium::Vram,
            bytes: 1 << 20,
            slots: 16,
            host,
            zone,
            tenant: None,
            evidence: Evidence::default(),
        };
        catalog.mount(now, node, &[offer]).unwrap();
        catalog.announce(now, segment, Incarnation(1), &[], true).unwrap();
        for _ in 0..600 {
            now = now.plus(Duration::from_millis(100));
            catalog.tick(now);
        }
        assert!(catalog.takes_part(segment, Incarnation(1)), "its heap was given away");
        catalog.heartbeat(now, node).unwrap();
    }
}
