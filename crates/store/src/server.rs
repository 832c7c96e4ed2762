//! Servers: a master, a node, or both in one process.

use crate::error::Error;
use crate::host::{this_host, this_start};
use mooncrate_core::catalog;
use mooncrate_core::ids::{HostId, name_hash};
use mooncrate_core::{LeaderEpoch, TenantId};
use mooncrate_grpc::{GrpcConfig, GrpcServing, Mounted, Parts, serve_grpc};
use mooncrate_master::{Master, MasterConfig, Serving, serve};
use mooncrate_node::{Node, NodeConfig};
use mooncrate_wire::address::Bound;
use mooncrate_wire::{
    Address, Hello, LinkKind, LinkPool, MasterApi, MasterLink, NodeApi, PoolConfig, Role,
    ServerConfig,
};
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How a master is run.
#[derive(Clone, Debug)]
pub struct MasterOptions {
    /// Where it listens.
    pub listen: Address,
    /// Where it keeps its epoch and the nodes it knows; `None`: a restart forgets them.
    pub state_file: Option<PathBuf>,
    /// How its mind works.
    pub catalog: catalog::Config,
    /// Threads that answer.
    pub workers: usize,
    /// Where it answers gRPC; `None`: nowhere.
    pub grpc: Option<Address>,
}

impl Default for MasterOptions {
    fn default() -> Self {
        Self {
            listen: Address::Tcp("127.0.0.1:7411".into()),
            state_file: None,
            catalog: catalog::Config::default(),
            workers: 2,
            grpc: None,
        }
    }
}

/// How a node is run.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// Its name: the same across restarts, unlike that of any other node.
    pub name: String,
    /// Its master.
    pub master: Address,
    /// Where it serves data over the network.
    pub listen: Option<Address>,
    /// Where it serves data, and its memory, on the same machine.
    pub unix: Option<PathBuf>,
    /// Bytes of its segment.
    pub segment_bytes: u64,
    /// Headers; `None`: one per 4 KiB.
    pub slots: Option<u32>,
    /// Its machine; equal labels share memory.
    pub host: String,
    /// Its failure zone.
    pub zone: String,
    /// Whether to take huge pages.
    pub huge_pages: bool,
}

impl Default for NodeOptions {
    fn default() -> Self {
        Self {
            name: "node".into(),
            master: MasterOptions::default().listen,
            listen: Some(Address::Tcp("127.0.0.1:7413".into())),
            unix: None,
            segment_bytes: 256 << 20,
            slots: None,
            host: this_host(),
            zone: String::new(),
            huge_pages: false,
        }
    }
}

/// Servers at work. Dropping it stops them.
#[derive(Debug)]
pub struct Running {
    master: Option<(Arc<Master>, Address)>,
    serving: Option<Serving>,
    grpc: Option<GrpcServing>,
    node: Option<Arc<Node>>,
}

impl Running {
    /// Where the master listens really.
    pub fn master_address(&self) -> Option<Address> {
        self.master.as_ref().map(|(_, address)| address.clone())
    }

    /// Where the master answers gRPC really.
    pub fn grpc_address(&self) -> Option<Address> {
        self.grpc.as_ref().map(|grpc| grpc.address().into())
    }

    /// Where the node serves data really.
    pub fn data_address(&self) -> Option<Address> {
        let tcp = &self.node.as_ref()?.info().tcp;
        (!tcp.is_empty()).then(|| Address::Tcp(tcp.clone()))
    }

    /// The Unix socket of the node.
    pub fn unix_path(&self) -> Option<PathBuf> {
        let unix = &self.node.as_ref()?.info().unix;
        (!unix.is_empty()).then(|| unix.into())
    }

    /// The master in this process.
    pub fn master(&self) -> Option<Arc<Master>> {
        self.master.as_ref().map(|(master, _)| Arc::clone(master))
    }

    /// The node in this process.
    pub fn node(&self) -> Option<&Arc<Node>> {
        self.node.as_ref()
    }

    /// Takes no new work, finishes or refuses what is there, and ends; a few seconds at most.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        if let Some(grpc) = self.grpc.take() {
            grpc.stop();
        }
        // The node first: it says farewell to the master.
        if let Some(node) = self.node.take() {
            node.stop();
            if let Some(path) = (!node.info().unix.is_empty()).then(|| &node.info().unix) {
                let _ = std::fs::remove_file(path);
            }
        }
        if let Some(serving) = self.serving.take() {
            serving.stop();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

/// Runs a master.
pub fn run_master(options: MasterOptions) -> Result<Running, Error> {
    let grpc = GrpcOptions::of(&options);
    let (master, serving, address) = start_master(options)?;
    let grpc = grpc.open(&master)?;
    Ok(Running { master: Some((master, address)), serving: Some(serving), grpc, node: None })
}

/// Runs a node, and waits until its master knows it.
pub fn run_node(options: NodeOptions) -> Result<Running, Error> {
    let hello = Hello::new(Role::Node, LinkKind::Control, &options.name);
    let pool = LinkPool::new(options.master.clone(), hello, PoolConfig::default());
    let master: Arc<dyn MasterApi> = Arc::new(MasterLink::new(pool));
    let node = start_node(options, master)?;
    node.register(false)?;
    Ok(Running { master: None, serving: None, grpc: None, node: Some(node) })
}

/// Runs a master and a node in one process: the small cluster that most people start with.
pub fn run_both(master: MasterOptions, node: NodeOptions) -> Result<Running, Error> {
    let grpc = GrpcOptions::of(&master);
    let (master, serving, address) = start_master(master)?;
    let mut running = Running {
        master: Some((Arc::clone(&master), address)),
        serving: Some(serving),
        grpc: None,
        node: None,
    };
    let node = start_node(node, master.scope(TenantId::DEFAULT))?;
    running.node = Some(Arc::clone(&node));
    join(&master, &node)?;
    // Last: whoever is let in finds a node.
    running.grpc = grpc.open(&master)?;
    Ok(running)
}

/// Makes a node known to a master in the same process.
pub(crate) fn join(master: &Arc<Master>, node: &Arc<Node>) -> Result<(), Error> {
    let api: Weak<dyn NodeApi> = Arc::downgrade(&(Arc::clone(node) as Arc<dyn NodeApi>));
    master.set_local_node(node.id(), api);
    Ok(node.register(true)?)
}

fn start_master(options: MasterOptions) -> Result<(Arc<Master>, Serving, Address), Error> {
    let bound = listen(&options.listen)?;
    let address = bound.address().map_err(Error::io("reading the master's address"))?;
    let config = MasterConfig {
        catalog: options.catalog,
        state_file: options.state_file,
        ..MasterConfig::default()
    };
    // Without a state file the time of the start orders leaders; nodes correct it if need be.
    let epoch = LeaderEpoch(this_start().0);
    let master = Master::new(config, epoch).map_err(Error::io("reading the master's state"))?;
    let server = ServerConfig { host: HostId(name_hash(&this_host())), ..ServerConfig::default() };
    let serving = serve(&master, &[bound], &server, options.workers)
        .map_err(Error::io("starting the master's threads"))?;
    Ok((master, serving, address))
}

/// The gRPC door of a master.
struct GrpcOptions {
    listen: Option<Address>,
    put_timeout: Duration,
}

impl GrpcOptions {
    fn of(options: &MasterOptions) -> Self {
        Self { listen: options.grpc.clone(), put_timeout: options.catalog.put_timeout }
    }

    /// Opens it where it is wanted, for everybody who can connect, as the default tenant.
    fn open(self, master: &Arc<Master>) -> Result<Option<GrpcServing>, Error> {
        let Some(address) = self.listen else { return Ok(None) };
        let config = GrpcConfig { put_timeout: self.put_timeout, ..GrpcConfig::default() };
        let parts = Parts::open(master.scope(TenantId::DEFAULT), Arc::new(Mounted));
        let serving = serve_grpc(listen(&address)?, parts, config);
        Ok(Some(serving.map_err(Error::io("starting the gRPC door"))?))
    }
}

fn start_node(options: NodeOptions, master: Arc<dyn MasterApi>) -> Result<Arc<Node>, Error> {
    let mut sockets = Vec::new();
    if let Some(address) = &options.listen {
        sockets.push(listen(address)?);
    }
    if let Some(path) = &options.unix {
        sockets.push(listen(&Address::Unix(path.clone()))?);
    }
    let config = NodeConfig {
        name: options.name,
        host: options.host,
        zone: options.zone,
        segment_bytes: options.segment_bytes,
        slots: options.slots,
        huge_pages: options.huge_pages,
        incarnation: this_start(),
        ..NodeConfig::default()
    };
    Ok(Node::new(config, master, sockets)?)
}

fn listen(address: &Address) -> Result<Bound, Error> {
    Bound::listen(address).map_err(Error::io(format!("listening at {address}")))
}
