//! Servers: a master, a node, or both in one process.

use crate::error::Error;
use crate::host::{this_host, this_start};
use crate::security::Security;
use mooncrate_core::catalog;
use mooncrate_core::door::Limits;
use mooncrate_core::ids::{HostId, name_hash};
use mooncrate_core::{LeaderEpoch, Stamp, TenantId};
use mooncrate_grpc::{GrpcConfig, GrpcServing, Parts, Status, View, serve_grpc};
use mooncrate_master::{
    Election, ElectionConfig, Master, MasterConfig, Seat, Serving, StateDisk, serve, serve_seat,
    trace,
};
use mooncrate_node::{
    GuardCommand, GuardStart, Node, NodeConfig, OpenDisks, OpenMemory, TierConfig, VramConfig,
    keep_watch,
};
use mooncrate_transfer::Segments;
use mooncrate_wire::address::Bound;
use mooncrate_wire::door::{Keeper, Turned, descriptor_share, raise_descriptors};
use mooncrate_wire::{
    Address, Hello, LinkConfig, LinkKind, MasterApi, MasterLink, MasterPools, Masters, NodeApi,
    PoolConfig, Role, ServerConfig,
};
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How a master is run.
#[derive(Clone, Debug)]
pub struct MasterOptions {
    /// Where it listens.
    pub listen: Address,
    /// Where it keeps its epoch, the nodes it knows and the quotas; `None`: on the disks beside it, or in a usual
    /// place.
    pub state_file: Option<PathBuf>,
    /// Files to try in turn where nobody named one. If none can be written, a restart forgets what was kept.
    pub usual_state: Vec<PathBuf>,
    /// How it stands for election among several masters; `None`: it is the only one. What the state
    /// file would keep is in etcd then. An empty address to advertise: the one where it listens.
    pub election: Option<ElectionConfig>,
    /// How its mind works.
    pub catalog: catalog::Config,
    /// Threads that answer.
    pub workers: usize,
    /// What its callers must show.
    pub security: Security,
    /// Where it answers gRPC; `None`: nowhere.
    pub grpc: Option<Address>,
    /// The directory in which stores of the drop-in keep their disks, unless they name one; empty: none.
    pub disk_root: String,
}

/// Threads that answer for a master, unless somebody says how many: half of the cores, because those who call are on
/// some machine, too, and not more than the catalog's lock can feed.
pub fn workers_by_cores() -> usize {
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    (cores / 2).clamp(2, 8)
}

impl Default for MasterOptions {
    fn default() -> Self {
        Self {
            listen: Address::Tcp("127.0.0.1:7411".into()),
            state_file: None,
            usual_state: Vec::new(),
            election: None,
            catalog: catalog::Config::default(),
            workers: workers_by_cores(),
            security: Security::default(),
            grpc: None,
            disk_root: String::new(),
        }
    }
}

/// How a node is run.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// Its name: the same across restarts, unlike that of any other node.
    pub name: String,
    /// Its master, or all of them.
    pub master: Masters,
    /// Where it serves data over the network.
    pub listen: Option<Address>,
    /// Where it serves data, and its memory, on the same machine.
    pub unix: Option<PathBuf>,
    /// Bytes of its segment.
    pub segment_bytes: u64,
    /// Headers; `None`: one per 2 KiB.
    pub slots: Option<u32>,
    /// Its machine; equal labels share memory.
    pub host: String,
    /// Its failure zone.
    pub zone: String,
    /// Whether to take huge pages.
    pub huge_pages: bool,
    /// Whether its memory may be larger than that of the machine, or than a cgroup allows.
    pub memory_overcommit: bool,
    /// Whether all pages of its memory are taken from the system before it joins.
    pub prefault: bool,
    /// When it stops, it hands everything over to other nodes first, for at most this long.
    pub drain_on_stop: Option<Duration>,
    /// What its callers must show, and what it shows its master.
    pub security: Security,
    /// The one tenant it is dedicated to; `None`: it holds values of all.
    pub tenant: Option<TenantId>,
    /// Users, besides our own and root, whose processes may map its memory.
    pub share_users: Vec<u32>,
    /// Its disks.
    pub tier: TierConfig,
    /// GPUs whose memory it lends.
    pub vram: Vec<VramConfig>,
    /// How a guard is started that tells the master at once when this process was killed; `None`: the
    /// master finds out when the registration has lapsed.
    pub guard: Option<GuardCommand>,
}

impl Default for NodeOptions {
    fn default() -> Self {
        Self {
            name: "node".into(),
            master: MasterOptions::default().listen.into(),
            listen: Some(Address::Tcp("127.0.0.1:7413".into())),
            unix: None,
            segment_bytes: 256 << 20,
            slots: None,
            host: this_host(),
            zone: String::new(),
            huge_pages: false,
            memory_overcommit: false,
            prefault: false,
            drain_on_stop: None,
            security: Security::default(),
            tenant: None,
            share_users: Vec::new(),
            tier: TierConfig::default(),
            vram: Vec::new(),
            guard: None,
        }
    }
}

/// Servers at work. Dropping it stops them.
#[derive(Debug)]
pub struct Running {
    master: Option<(Arc<Seat>, Address)>,
    election: Option<Election>,
    serving: Option<Serving>,
    grpc: Option<GrpcServing>,
    node: Option<Arc<Node>>,
    drain_on_stop: Option<Duration>,
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

    /// The master in this process, while it leads.
    pub fn master(&self) -> Option<Arc<Master>> {
        self.seat().and_then(|seat| seat.master())
    }

    /// The seat of the master in this process, taken or not.
    pub fn seat(&self) -> Option<Arc<Seat>> {
        self.master.as_ref().map(|(seat, _)| Arc::clone(seat))
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
        if let Some(node) = self.node.take() {
            if let Some(limit) = self.drain_on_stop {
                node.hand_over(limit);
            }
            // A master in this process stops first: it writes the list of nodes once more when the node unmounts.
            if let Some(serving) = self.serving.take() {
                serving.stop();
            }
            node.stop();
            if let Some(path) = (!node.info().unix.is_empty()).then(|| &node.info().unix) {
                let _ = std::fs::remove_file(path);
            }
        }
        // Then the seat, so that others can take it while the last answers go out.
        if let Some(election) = self.election.take() {
            election.stop();
        }
        if let Some(serving) = self.serving.take() {
            serving.stop();
        }
        if let Some(master) = self.master() {
            master.retired();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

/// Raises the limit of open files of this process, whose program may be another one's (Python): the doors
/// reckon with what the system allows, and below the usual 1,024 a flood would use up the files of all of it.
fn allow_connections() {
    if let Err(error) = raise_descriptors() {
        tracing::warn!(%error, "cannot raise the limit of open files: a crowd may use them up");
    }
}

/// Runs a master.
pub fn run_master(options: MasterOptions) -> Result<Running, Error> {
    allow_connections();
    if let Some(election) = options.election.clone() {
        return stand_for_election(options, election);
    }
    let grpc = GrpcOptions::of(&options);
    let bound = listen(&options.listen, &options.security)?;
    let none = (OpenDisks::default(), TierConfig::default());
    let (master, serving, address) = start_master(options, bound, &none.0, &none.1)?;
    let seat = Seat::always(master);
    // Before the door opens: if that fails, the master retires with this.
    let mut running = Running {
        master: Some((Arc::clone(&seat), address)),
        election: None,
        serving: Some(serving),
        grpc: None,
        node: None,
        drain_on_stop: None,
    };
    running.grpc = grpc.open(&seat)?;
    Ok(running)
}

/// Runs a node, and waits until its master knows it.
pub fn run_node(options: NodeOptions) -> Result<Running, Error> {
    run_node_among(options, Arc::default())
}

/// The same with its segments in a place where a client of this process finds them.
pub(crate) fn run_node_among(
    options: NodeOptions,
    segments: Arc<Segments>,
) -> Result<Running, Error> {
    allow_connections();
    let master: Arc<dyn MasterApi> = Arc::new(master_of(&options));
    let drain_on_stop = options.drain_on_stop;
    let sockets = listen_for_data(&options)?;
    let node = Node::among(node_config(options), segments, master, sockets)?;
    // Before it is known: if that fails, its sockets and threads end with this.
    let mut running = Running {
        master: None,
        election: None,
        serving: None,
        grpc: None,
        node: Some(Arc::clone(&node)),
        drain_on_stop: None,
    };
    node.register(false)?;
    running.drain_on_stop = drain_on_stop;
    Ok(running)
}

/// The work of the guard that a node with these options starts: waits until process `owner`, its parent,
/// is dead, and tells the master. Returns when that is done, or was not needed.
pub fn guard_node(options: &NodeOptions, owner: u32) -> Result<(), Error> {
    let master = master_of(options);
    keep_watch(owner, &master).map_err(Error::io("guarding a node"))
}

/// The master of a node, in another process.
fn master_of(options: &NodeOptions) -> MasterLink {
    let hello = Hello::new(Role::Node, LinkKind::Control, &options.name);
    let link = LinkConfig { access: options.security.access.clone(), ..LinkConfig::default() };
    let config = PoolConfig { link, ..PoolConfig::default() };
    MasterLink::new(MasterPools::new(&options.master, &hello, &config))
}

/// Runs a master and a node in one process: the small cluster that most people start with.
pub fn run_both(master: MasterOptions, node: NodeOptions) -> Result<Running, Error> {
    allow_connections();
    let grpc = GrpcOptions::of(&master);
    // First what fails at once, if it does; then disks and memory, which take a while. The master comes last: its
    // state is on the first of them, and whoever was refused the disk must not have changed it.
    let (bound, sockets) = (listen(&master.listen, &master.security)?, listen_for_data(&node)?);
    let config = node_config(node);
    let (disks, memory) = (OpenDisks::open(&config)?, OpenMemory::open(&config)?);
    let (master, serving, address) = start_master(master, bound, &disks, &config.tier)?;
    let mut running = Running {
        master: Some((Seat::always(Arc::clone(&master)), address)),
        election: None,
        serving: Some(serving),
        grpc: None,
        node: None,
        // Its master stops with it: nobody could tell where things went.
        drain_on_stop: None,
    };
    let node = Node::over(config, (disks, memory), master.scope(TenantId::DEFAULT), sockets)?;
    running.node = Some(Arc::clone(&node));
    join(&master, &node)?;
    // Last: whoever is let in finds a node.
    let seat = running.seat().expect("it was made with one");
    running.grpc = grpc.open(&seat)?;
    Ok(running)
}

/// Where the master beside a node with disks keeps its state, if nobody says where: only a master that
/// knows its disks again believes what they hold.
fn state_disks(disks: &OpenDisks, tier: &TierConfig) -> Vec<StateDisk> {
    let paths = tier.disks.iter().map(|disk| disk.path.join("master.state"));
    let offers = disks.offers().into_iter().zip(paths);
    offers.map(|((segment, evidence), file)| StateDisk { file, segment, evidence }).collect()
}

/// A master beside disks that are open. Where no file is named, its state is on them.
pub(crate) fn master_beside(
    mut config: MasterConfig,
    disks: &OpenDisks,
    tier: &TierConfig,
) -> Result<Arc<Master>, Error> {
    config.disks = state_disks(disks, tier);
    // Records without the state of their master: others may have been away meanwhile.
    config.had_leader |= config.disks.iter().any(|disk| disk.evidence.before.0 != Stamp(0));
    // Without state the time of the start orders leaders; nodes correct it if need be.
    let epoch = LeaderEpoch(this_start().0);
    let master = Master::new(config, epoch).map_err(Error::io("the master's state"))?;
    disks
        .confirm(master.leader_epoch(), |disk| !master.awaits(disk))
        .inspect_err(|_| master.retired())?;
    Ok(master)
}

/// Makes a node known to a master in the same process.
pub(crate) fn join(master: &Arc<Master>, node: &Arc<Node>) -> Result<(), Error> {
    let api: Weak<dyn NodeApi> = Arc::downgrade(&(Arc::clone(node) as Arc<dyn NodeApi>));
    master.set_local_node(node.id(), api);
    Ok(node.register(true)?)
}

/// Runs a master that leads when it is elected. It listens at once and says who leads.
fn stand_for_election(
    options: MasterOptions,
    mut election: ElectionConfig,
) -> Result<Running, Error> {
    let grpc = GrpcOptions::of(&options);
    let bound = listen(&options.listen, &options.security)?;
    let address = bound.address().map_err(Error::io("reading the master's address"))?;
    if election.advertise.is_empty() {
        election.advertise = address.to_string();
    }
    let grants = options.security.gate.grants().cloned();
    let config = MasterConfig {
        catalog: options.catalog,
        grants,
        disk_root: options.disk_root,
        ..MasterConfig::default()
    };
    let tick = config.tick;
    let election = Election::start(election, config)?;
    let seat = Arc::clone(election.seat());
    let serving =
        serve_seat(&seat, tick, &[bound], &server_config(&options.security), options.workers)
            .map_err(Error::io("starting the master's threads"))?;
    let grpc = grpc.open(&seat)?;
    Ok(Running {
        master: Some((seat, address)),
        election: Some(election),
        serving: Some(serving),
        grpc,
        node: None,
        drain_on_stop: None,
    })
}

fn server_config(security: &Security) -> ServerConfig {
    // At an open gate, too: a hello counts as the proof.
    let places = descriptor_share(4, 10_000);
    let limits = Limits::proving(places);
    let crowded = |turned: &Turned| tracing::warn!("{turned}");
    ServerConfig {
        keeper: Keeper::new("the control port", limits, crowded),
        host: HostId(name_hash(&this_host())),
        gate: security.gate.at_door(places),
        ..ServerConfig::default()
    }
}

fn start_master(
    options: MasterOptions,
    bound: Bound,
    disks: &OpenDisks,
    tier: &TierConfig,
) -> Result<(Arc<Master>, Serving, Address), Error> {
    let address = bound.address().map_err(Error::io("reading the master's address"))?;
    let config = MasterConfig {
        catalog: options.catalog,
        state_file: options.state_file,
        usual_state: options.usual_state,
        // No later master is told to listen at a port that the system chose.
        trace: (!options.listen.is_any_port()).then(|| trace::path(&address)),
        grants: options.security.gate.grants().cloned(),
        disk_root: options.disk_root,
        ..MasterConfig::default()
    };
    let master = master_beside(config, disks, tier)?;
    let server = server_config(&options.security);
    let serving = serve(&master, &[bound], &server, options.workers)
        .inspect_err(|_| master.retired())
        .map_err(Error::io("starting the master's threads"))?;
    Ok((master, serving, address))
}

/// The gRPC door of a master.
struct GrpcOptions {
    listen: Option<Address>,
    put_timeout: Duration,
    security: Security,
}

impl GrpcOptions {
    fn of(options: &MasterOptions) -> Self {
        Self {
            listen: options.grpc.clone(),
            put_timeout: options.catalog.put_timeout,
            security: options.security.clone(),
        }
    }

    /// Opens it where it is wanted, for whoever the cluster lets in.
    fn open(self, seat: &Arc<Seat>) -> Result<Option<GrpcServing>, Error> {
        let Some(address) = self.listen else { return Ok(None) };
        self.security.check_grpc(&address)?;
        let config = GrpcConfig { put_timeout: self.put_timeout, ..GrpcConfig::default() };
        let (asked, leader) = (Arc::clone(seat), Arc::clone(seat));
        let view = move |tenant| {
            let scope = asked.scope(tenant).map_err(|no| Status::unavailable(no.message))?;
            let master = Arc::clone(scope.master());
            Ok(View { api: scope, leads: Arc::new(move || master.leads()) })
        };
        let parts = Parts {
            gate: self.security.gate,
            view: Arc::new(view),
            leads: Arc::new(move || leader.master().is_some()),
            audit: mooncrate_master::audit::line,
        };
        let bound =
            Bound::listen(&address).map_err(Error::io(format!("listening at {address}")))?;
        let serving = serve_grpc(bound, parts, config);
        Ok(Some(serving.map_err(Error::io("starting the gRPC door"))?))
    }
}

fn listen_for_data(options: &NodeOptions) -> Result<Vec<Bound>, Error> {
    let mut sockets = Vec::new();
    if let Some(address) = &options.listen {
        sockets.push(listen(address, &options.security)?);
    }
    if let Some(path) = &options.unix {
        sockets.push(listen(&Address::Unix(path.clone()), &options.security)?);
    }
    Ok(sockets)
}

fn node_config(options: NodeOptions) -> NodeConfig {
    let link = LinkConfig { access: options.security.access, ..LinkConfig::default() };
    NodeConfig {
        name: options.name,
        host: options.host,
        zone: options.zone,
        segment_bytes: options.segment_bytes,
        slots: options.slots,
        huge_pages: options.huge_pages,
        memory_overcommit: options.memory_overcommit,
        prefault: options.prefault,
        incarnation: this_start(),
        gate: options.security.gate,
        tenant: options.tenant,
        share_users: options.share_users,
        tier: options.tier,
        vram: options.vram,
        guard: options.guard.map(GuardStart::Command),
        links: PoolConfig { link, ..PoolConfig::default() },
        ..NodeConfig::default()
    }
}

fn listen(address: &Address, security: &Security) -> Result<Bound, Error> {
    security.check_listen(address)?;
    Bound::listen(address).map_err(Error::io(format!("listening at {address}")))
}
