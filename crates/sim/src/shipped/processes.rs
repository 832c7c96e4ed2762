//! What the processes of a run do: each is started as its command would start it.

use super::disks::Mounted;
use super::etcd::Reached;
use super::load::Lane;
use super::{Plan, judge, met, state, tenants, vram};
use crate::fibers;
use crate::swarm::pick;
use mooncrate_client::{Client, ClientConfig};
use mooncrate_core::door::Limits;
use mooncrate_core::ids::name_hash;
use mooncrate_core::plan::Medium;
use mooncrate_core::rng::Rng;
use mooncrate_core::{HostId, Incarnation, NodeId, Slot, TenantId};
use mooncrate_lock::Mutex;
use mooncrate_master::election::calls::Members;
use mooncrate_master::{Election, ElectionConfig, Master, MasterConfig, Seat, serve_seat};
use mooncrate_mem::clock::boottime;
use mooncrate_node::{GuardStart, Node, NodeConfig};
use mooncrate_rt as rt;
use mooncrate_transfer::{EngineConfig, Segments};
use mooncrate_wire::address::Bound;
use mooncrate_wire::door::Keeper;
use mooncrate_wire::message::SegmentRow;
use mooncrate_wire::{
    Address, Hello, LinkKind, MasterApi, MasterLink, MasterPools, Masters, Role, ServerConfig,
};
use std::sync::Arc;
use std::time::Duration;

/// Connections that the master takes at once.
const PLACES: usize = 1_000;
/// Between two attempts of a process at what it cannot begin without.
pub(super) const AGAIN: Duration = Duration::from_millis(50);

/// Makes a lane of the client of a process.
pub(super) type MakeLane = Box<dyn Fn(Arc<Client>) -> Lane + Send>;

/// The id of a node.
pub(super) fn node_id(at: usize) -> NodeId {
    NodeId::named(&format!("node-{at}"))
}

fn address_of_master(at: usize) -> Address {
    format!("10.0.0.{at}:7070").parse().expect("it is one")
}

/// A master process. Alone, a later start knows nothing of an earlier one but that it was there.
pub(super) fn lead(plan: &Plan, at: usize, start: u64, etcd: Reached, lanes: Vec<MakeLane>) {
    let address = address_of_master(at);
    let listens = Bound::listen(&address).expect("a world listens anywhere");
    let alone = plan.masters == 1;
    let config = MasterConfig {
        catalog: plan.catalog.clone(),
        had_leader: alone && start > 1,
        grants: plan.gate().grants().cloned(),
        ..MasterConfig::default()
    };
    let config = if alone { state::kept(config, start) } else { config };
    let tick = config.tick;
    let seat = if alone {
        Seat::always(Master::new(config, state::epoch(start)).expect("its folder takes a file"))
    } else {
        let election = stand(plan, at, &address, etcd, &config);
        let seat = Arc::clone(election.seat());
        // It stands until the process ends.
        std::mem::forget(election);
        seat
    };
    let limits = Limits::proving(PLACES);
    let keeper = Keeper::new("the control port", limits, |_| ());
    let (name, gate) = ("master".to_owned(), plan.gate().at_door(PLACES));
    let server = ServerConfig { name, keeper, gate, ..ServerConfig::default() };
    let serving = serve_seat(&seat, tick, &[listens], &server, plan.workers);
    std::mem::forget(serving.expect("a world starts threads"));
    if let Some(master) = seat.master().filter(|_| alone && !lanes.is_empty()) {
        let scope = master.scope(TenantId::DEFAULT);
        let client = client_over(plan, ("master-0", 0), false, scope, Arc::default());
        let _ = rt::spawn("begin", move || set_to_work(&Arc::new(client), lanes));
    }
    let mut above = tenants::Above::new();
    loop {
        state::trouble(start);
        rt::sleep(plan.tenants.look(plan.catalog.serve_lease / 4));
        let Some(master) = seat.master() else { continue };
        // The leader's index adds up.
        if let Err(error) = master.audit() {
            judge::fail("G8", error.to_string());
        }
        vram::judge(plan, &master);
        if let Some(text) = tenants::judge(plan, &master, &mut above) {
            judge::fail("G16", text);
        }
        let deadline = boottime().deadline_in(plan.call_time);
        if let Ok(stat) = master.scope(TenantId::DEFAULT).stat(deadline) {
            met::leader(at, start, stat.epoch.0, &stat.counters);
        }
    }
}

/// Stands for election, as soon as the name of an earlier start is free.
fn stand(
    plan: &Plan,
    at: usize,
    address: &Address,
    etcd: Reached,
    master: &MasterConfig,
) -> Election {
    let config = ElectionConfig {
        endpoints: ["http://etcd-0", "http://etcd-1"].map(String::from).into(),
        prefix: "mooncrate".to_owned(),
        name: format!("master-{at}"),
        advertise: address.to_string(),
        ttl: plan.term,
    };
    let members: Arc<dyn Members> = Arc::new(etcd);
    loop {
        match Election::start_among(Arc::clone(&members), config.clone(), master.clone()) {
            Ok(election) => return election,
            Err(error) => fibers::note(12, at as u64, || format!("master {at}: {error}")),
        }
        rt::sleep(AGAIN);
    }
}

/// Flips a bit of some value in the memory of a node, in a thread of the node.
pub(super) fn flip(registered: &Mutex<Option<Arc<Node>>>, mut rng: Rng) {
    let node = registered.lock().clone();
    let Some(segment) = node.and_then(|node| node.segments().all().into_iter().next()) else {
        return;
    };
    let (slots, _) = segment.announce(Slot(0), usize::MAX);
    let values: Vec<_> = slots.iter().filter_map(|told| told.life.as_ref()).collect();
    let Some(memory) = segment.writable_fd().filter(|_| !values.is_empty()) else { return };
    let extent = pick(&mut rng, &values).extent;
    let (at, bit) = (extent.offset() + rng.below(extent.len()), rng.below(8));
    let mut byte = [0];
    let read = rustix::io::pread(memory, &mut byte, at);
    let written = rustix::io::pwrite(memory, &[byte[0] ^ 1 << bit], at);
    assert_eq!((read, written), (Ok(1), Ok(1)), "the byte lies in the segment");
}

pub(super) fn master_link(plan: &Plan, role: Role, tenant: u64, name: &str) -> MasterLink {
    let addresses = (0..plan.masters).map(|at| address_of_master(at).to_string());
    let masters: Masters = addresses.collect::<Vec<_>>().join(",").parse().expect("a list");
    let hello = Hello::new(role, LinkKind::Control, name);
    let pools = MasterPools::new(&masters, &hello, &plan.links(tenant));
    if role == Role::Node { MasterLink::new(pools) } else { MasterLink::guarded(pools) }
}

/// A node process.
pub(super) fn own(
    plan: &Plan,
    at: usize,
    disks: &Mounted,
    guard: impl Fn() -> Option<GuardStart>,
) -> Arc<Node> {
    let name = format!("node-{at}");
    let tcp: Address = format!("10.0.1.{at}:9090").parse().expect("it is one");
    let unix = Address::Unix(format!("/run/{name}").into());
    let listen = || [&tcp, &unix].map(|at| Bound::listen(at).expect("a world listens anywhere"));
    let config = NodeConfig {
        host: name.clone(),
        name: name.clone(),
        segment_bytes: plan.segment_bytes,
        slots: Some(plan.slots),
        memory_overcommit: true,
        heartbeat: plan.catalog.serve_lease / 10,
        links: plan.links(0),
        gate: plan.gate(),
        ..NodeConfig::default()
    };
    let config = vram::lend(plan, at, config);
    loop {
        let master = Arc::new(master_link(plan, Role::Node, 0, &name));
        // As shipped: wall time numbers the starts, and a node that is not registered ends.
        let incarnation = Incarnation(rt::wall_time() / 1_000);
        let (tier, guard) = (disks.tier(), guard());
        let config = NodeConfig { incarnation, tier, guard, ..config.clone() };
        let registered = Node::new(config, master, listen().into()).and_then(|node| {
            node.register(false).inspect_err(|error| {
                fibers::note(8, at as u64, || format!("node {at} is not registered: {error}"));
                // The mount may have reached the master: values lie there, and more may come until it has stopped.
                judge::node_ended();
                node.stop();
                judge::node_ended();
            })?;
            Ok(node)
        });
        match registered {
            Ok(node) => return node,
            Err(error) => fibers::note(8, at as u64, || format!("node {at} ends: {error}")),
        }
        rt::sleep(AGAIN);
    }
}

/// A client of a tenant.
pub(super) fn client(
    plan: &Plan,
    tenant: u64,
    name: &str,
    near: Option<usize>,
    holds: bool,
) -> Client {
    let host = near.map_or_else(|| name.to_owned(), |node| format!("node-{node}"));
    let master = Arc::new(master_link(plan, Role::Client, tenant, name));
    client_over(plan, (&host, tenant), holds, master, Arc::default())
}

/// A client on a host, of a tenant. `segments`: those of a node in the same process.
pub(super) fn client_over(
    plan: &Plan,
    (host, tenant): (&str, u64),
    holds: bool,
    master: Arc<dyn MasterApi>,
    segments: Arc<Segments>,
) -> Client {
    let config = ClientConfig {
        call_time: plan.call_time,
        replicas: plan.replicas,
        best_effort: true,
        holds,
        ..ClientConfig::default()
    };
    let (host, links) = (HostId(name_hash(host)), plan.links(tenant));
    let engine = EngineConfig { host, links, ..EngineConfig::default() };
    Client::new(config, engine, master, segments)
}

/// Lets lanes begin, once there is memory: calls that find none prove little.
pub(super) fn set_to_work(client: &Arc<Client>, lanes: Vec<MakeLane>) {
    met::client(client);
    let takes = |row: &SegmentRow| row.open && row.offer.segment.medium() == Medium::Dram;
    while !client.stat().is_ok_and(|stat| stat.segments.iter().any(takes)) {
        rt::sleep(AGAIN);
    }
    for lane in lanes {
        let lane = lane(Arc::clone(client));
        let _ = rt::spawn("lane", move || lane.work());
    }
}
