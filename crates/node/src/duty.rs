//! A node and its threads: one for heartbeats, one for orders, one that frees. They share no lock
//! with data work, so a busy node stays alive (G13).

use crate::config::NodeConfig;
use crate::copy::Copier;
use crate::metrics::Tally;
use crate::registration::Standing;
use mooncrate_core::error::MountError;
use mooncrate_core::{NodeId, Now, SegmentId};
use mooncrate_lock::{Condvar, Mutex};
use mooncrate_mem::SegmentError;
use mooncrate_mem::clock::boottime;
use mooncrate_transfer::{
    DataServer, DataServerConfig, DataTally, Engine, EngineConfig, Nodes, Segments,
};
use mooncrate_wire::address::Bound;
use mooncrate_wire::message::{NodeInfo, Unmount};
use mooncrate_wire::{Address, CallError, HangUp, MasterApi, Role};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// How long requests may go on when the node stops.
const STOP_GRACE: Duration = Duration::from_secs(3);
/// How long the farewell to the master may take.
const UNMOUNT_TIME: Duration = Duration::from_secs(1);

/// Why a node could not start.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// Memory, sockets or threads.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The master was not reached.
    #[error("the master did not answer: {0}")]
    Call(#[from] CallError),
    /// The master refused.
    #[error("the master refused this node: {0}")]
    Mount(#[from] MountError),
    /// A segment refused the master's epoch.
    #[error("{0}")]
    Segment(SegmentError),
}

/// A node at work.
pub struct Node {
    config: NodeConfig,
    info: NodeInfo,
    segments: Arc<Segments>,
    master: Arc<dyn MasterApi>,
    standing: Mutex<Standing>,
    copier: Copier,
    tally: Tally,
    stopping: AtomicBool,
    /// Set when the heart should beat at once: the master was lost, or does not know us.
    alarm: Mutex<bool>,
    alarmed: Condvar,
    running: Mutex<Running>,
}

/// What has to be ended when the node stops.
#[derive(Default)]
struct Running {
    threads: Vec<JoinHandle<()>>,
    server: Option<DataServer>,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Node {
    /// Makes the segment and the data server; [`Node::register`] makes it known. The addresses in
    /// `config` are replaced by those the sockets really have.
    pub fn new(
        mut config: NodeConfig,
        master: Arc<dyn MasterApi>,
        sockets: Vec<Bound>,
    ) -> Result<Arc<Self>, NodeError> {
        let io = |doing| move |source| NodeError::Io { doing, source };
        for socket in &sockets {
            match socket.address().map_err(io("reading the address of a socket"))? {
                tcp @ Address::Tcp(_) => config.tcp = Some(tcp),
                unix @ Address::Unix(_) => config.unix = Some(unix),
            }
        }
        let segment = config
            .create(config.spec(config.incarnation))
            .map_err(io("reserving memory for the segment"))?;
        let segments = Arc::new(Segments::default());
        segments.insert(segment);
        let server_config = DataServerConfig {
            name: config.name.clone(),
            host: config.host_id(),
            gate: config.gate.clone(),
            dedicated: config.tenant,
            share_users: config.share_users.clone(),
            ..DataServerConfig::default()
        };
        let data = Arc::<DataTally>::default();
        let tally = Arc::clone(&data);
        let server = DataServer::start(Arc::clone(&segments), server_config, tally, sockets)
            .map_err(io("starting the data server"))?;
        let text = |address: &Option<Address>| {
            address.as_ref().map(|address| match address {
                Address::Tcp(name) => name.clone(),
                Address::Unix(path) => path.display().to_string(),
            })
        };
        // Of its own: what the copies wait for ends with the node, and nothing else does.
        let hang_up = HangUp::default();
        let mut links = config.links.clone();
        links.link.hang_up = hang_up.clone();
        let engine = EngineConfig {
            host: config.host_id(),
            role: Role::Node,
            links,
            ..EngineConfig::default()
        };
        let directory = Arc::new(Nodes::new(Arc::clone(&master)));
        let copier = Copier::new(Engine::new(engine, Arc::clone(&segments), directory), hang_up);
        Ok(Arc::new(Self {
            info: NodeInfo {
                node: config.node(),
                name: config.name.clone(),
                tcp: text(&config.tcp).unwrap_or_default(),
                unix: text(&config.unix).unwrap_or_default(),
                host: config.host_id(),
                zone: config.zone_id(),
            },
            standing: Mutex::new(Standing {
                acknowledged: boottime(),
                registration: Duration::from_secs(20),
                incarnation: config.incarnation,
                fence: None,
                draining: Vec::new(),
                mounted: None,
            }),
            tally: Tally::new(data),
            config,
            segments,
            master,
            copier,
            stopping: AtomicBool::new(false),
            alarm: Mutex::new(false),
            alarmed: Condvar::new(),
            running: Mutex::new(Running { threads: Vec::new(), server: Some(server) }),
        }))
    }

    /// Mounts, announces, and starts the threads. `local`: the master is in this process and gives
    /// its orders by a call, so nobody has to wait for them.
    pub fn register(self: &Arc<Self>, local: bool) -> Result<(), NodeError> {
        self.mount_first()?;
        let tick = self.config.tick;
        self.start("node-heart", Self::stay_known)?;
        self.start("node-tick", move |node| node.every(tick, Self::tick))?;
        if !local {
            self.start("node-orders", Self::follow_orders)?;
        }
        for _ in 0..self.config.copy_threads {
            self.start("node-copy", Self::fetch_copies)?;
        }
        Ok(())
    }

    fn start(
        self: &Arc<Self>,
        name: &str,
        work: impl FnOnce(&Self) + Send + 'static,
    ) -> Result<(), NodeError> {
        let node = Arc::clone(self);
        let thread = Builder::new()
            .name(name.into())
            .spawn(move || work(&node))
            .map_err(|source| NodeError::Io { doing: "starting a thread", source })?;
        self.running.lock().threads.push(thread);
        Ok(())
    }

    /// Waits for the next beat of the heart, or for a reason to beat at once.
    pub(crate) fn rest(&self, pause: Duration) {
        let mut alarm = self.alarm.lock();
        if !*alarm {
            self.alarmed.wait_for(&mut alarm, pause);
        }
        *alarm = false;
    }

    /// Lets the heart beat at once. A master that was restarted knows its nodes again when they mount:
    /// the rest of a pause would be time without them.
    pub(crate) fn alarm(&self) {
        *self.alarm.lock() = true;
        self.alarmed.notify_one();
    }

    fn every(&self, pause: Duration, work: impl Fn(&Self)) {
        while !self.stopping() {
            work(self);
            std::thread::sleep(pause);
        }
    }

    /// Says farewell to the master, lets transfers end for a moment, and ends all threads.
    pub fn stop(&self) {
        // Release: pairs with the Acquire in `stopping`.
        if self.stopping.swap(true, Ordering::AcqRel) {
            return;
        }
        self.alarm();
        self.copier.stop();
        let Running { threads, server } = std::mem::take(&mut *self.running.lock());
        if let Some(server) = server {
            server.stop(STOP_GRACE);
        }
        let segments = self.segments.all();
        {
            // Under the lock, so that no heartbeat on its way gives leave to serve again.
            let _standing = self.standing.lock();
            for segment in &segments {
                segment.set_serve_until(Now(0));
            }
        }
        let unmount = Unmount {
            node: self.id(),
            segments: segments.iter().map(|s| (s.spec().segment, s.spec().incarnation)).collect(),
        };
        let deadline = boottime().deadline_in(UNMOUNT_TIME);
        if let Err(error) = self.master.unmount(&unmount, deadline) {
            tracing::debug!(%error, "the master did not hear the farewell");
        }
        for thread in threads {
            let _ended = thread.join();
        }
    }

    /// Its id.
    pub fn id(&self) -> NodeId {
        self.info.node
    }

    /// Where it is reached.
    pub fn info(&self) -> &NodeInfo {
        &self.info
    }

    /// Its segments.
    pub fn segments(&self) -> &Arc<Segments> {
        &self.segments
    }

    /// The id of its segment.
    pub fn segment(&self) -> SegmentId {
        SegmentId::of(self.id(), 0)
    }

    pub(crate) fn config(&self) -> &NodeConfig {
        &self.config
    }

    pub(crate) fn copier(&self) -> &Copier {
        &self.copier
    }

    pub(crate) fn master(&self) -> &dyn MasterApi {
        &*self.master
    }

    pub(crate) fn tally(&self) -> &Tally {
        &self.tally
    }

    pub(crate) fn standing(&self) -> &Mutex<Standing> {
        &self.standing
    }

    /// Acquire: pairs with the Release in `stop`.
    pub(crate) fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
}
