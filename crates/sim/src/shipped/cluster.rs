//! The processes of a run, the faults that befall them, and the finale.

use super::load::Lane;
use super::{FAULTS, Plan, control, judge};
use crate::clock::Clock;
use crate::fibers::{self, HostIx, ProcessId};
use crate::judge::Failure;
use crate::{MS, Nanos};
use mooncrate_client::{Client, ClientConfig};
use mooncrate_core::ids::name_hash;
use mooncrate_core::rng::Rng;
use mooncrate_core::{HostId, Incarnation, LeaderEpoch};
use mooncrate_lock::Mutex;
use mooncrate_master::{Master, MasterConfig};
use mooncrate_node::{Node, NodeConfig};
use mooncrate_rt as rt;
use mooncrate_transfer::{EngineConfig, Segments};
use mooncrate_wire::address::Bound;
use mooncrate_wire::{Address, Hello, LinkKind, LinkPool, MasterLink, PoolConfig, Role};
use std::sync::Arc;
use std::time::Duration;

/// Where the master listens.
const MASTER: &str = "10.0.0.1:7070";
/// Between two attempts of a node to register.
const AGAIN: Duration = Duration::from_millis(50);
/// The longest that a process stays stopped, cut off or dead, as a multiple of the serving lease.
const FAULT_LEASES_MAX: u64 = 6;

/// What a process of a name is, from its first start on.
struct Place {
    kind: Kind,
    host: HostIx,
    process: ProcessId,
    /// Which start this is.
    start: u64,
    /// When a fault of it ends, and which.
    mends: Option<(Nanos, Fault)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Master,
    Node(usize),
    Client(usize),
}

/// What can befall a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Kill,
    Stop,
    /// Cut off from the process at this place.
    Cut(usize),
}

pub(super) struct Cluster {
    plan: Arc<Plan>,
    rng: Rng,
    places: Vec<Place>,
    /// The master that leads, for audits.
    master: Arc<Mutex<Option<Arc<Master>>>>,
    next_fault: Nanos,
    counts: [u64; FAULTS.len()],
    lanes_made: u64,
}

impl Cluster {
    pub(super) fn new(plan: Plan) -> Self {
        let rng = Rng::stream(plan.seed, "faults");
        let mut this = Self {
            plan: Arc::new(plan),
            rng,
            places: Vec::new(),
            master: Arc::default(),
            next_fault: 0,
            counts: [0; FAULTS.len()],
            lanes_made: 0,
        };
        let nodes = (0..this.plan.nodes).map(Kind::Node);
        let clients = (0..this.plan.clients.len()).map(Kind::Client);
        let kinds: Vec<Kind> = std::iter::once(Kind::Master).chain(nodes).chain(clients).collect();
        for kind in kinds {
            let host = match kind {
                // Places of nodes follow that of the master.
                Kind::Client(at) if let Some(node) = this.plan.clients[at] => {
                    this.places[1 + node].host
                }
                _ => fibers::host(Clock::draw(&mut this.rng)),
            };
            let process = this.make(kind, host, 1);
            this.places.push(Place { kind, host, process, start: 1, mends: None });
        }
        this.next_fault = this.fault_pause();
        this
    }

    /// How many of each kind there were.
    pub(super) fn faults(&self) -> [u64; FAULTS.len()] {
        self.counts
    }

    fn fault_pause(&mut self) -> Nanos {
        match self.plan.fault_every {
            0 => Nanos::MAX,
            every => fibers::true_time() + 1 + self.rng.below(2 * every),
        }
    }

    /// Lets clients work and faults happen until the operations are done.
    pub(super) fn run(&mut self) -> Result<(), Failure> {
        loop {
            let now = fibers::true_time();
            let mends = self.places.iter().filter_map(|place| place.mends.map(|(at, _)| at)).min();
            let until = mends.unwrap_or(Nanos::MAX).min(self.next_fault).min(now + 1_000 * MS);
            let enough = || judge::has_failed() || judge::ops() >= self.plan.ops;
            fibers::run(until, enough).map_err(|text| failed("panic", text))?;
            self.audit()?;
            if judge::has_failed() || judge::ops() >= self.plan.ops {
                return Ok(());
            }
            self.mend(fibers::true_time());
            if fibers::true_time() >= self.next_fault {
                self.hurt();
                self.next_fault = self.fault_pause();
            }
        }
    }

    /// Everything is whole again: what is put is found, removals empty the cluster, and nothing is left of them.
    pub(super) fn finale(&mut self, time: Nanos) -> Result<(), Failure> {
        if judge::has_failed() {
            return Ok(());
        }
        self.mend(Nanos::MAX);
        self.next_fault = Nanos::MAX;
        let end = fibers::true_time() + time;
        let host = fibers::host(Clock::draw(&mut self.rng));
        let process = fibers::process("operator", host);
        let lane = self.lane(process);
        let done = Arc::new(Mutex::new(false));
        let (plan, told) = (Arc::clone(&self.plan), Arc::clone(&done));
        fibers::start(process, "operator", move || {
            let client = Arc::new(client(&plan, "operator", None));
            loop {
                let lane = lane(Arc::clone(&client));
                lane.remove_all();
                let empty =
                    client.stat().is_ok_and(|stat| stat.objects == 0 && stat.open_puts == 0);
                if empty {
                    break;
                }
                rt::sleep(plan.catalog.serve_lease / 2);
            }
            *told.lock() = true;
        });
        let over = || judge::has_failed() || *done.lock();
        fibers::run(end, over).map_err(|text| failed("panic", text))?;
        self.audit()?;
        if !judge::has_failed() && !*done.lock() {
            let text = format!("after {} s without faults", time / 1000 / MS);
            let threads = fibers::threads().join("\n  ");
            return Err(failed(
                "liveness",
                format!("{text} the cluster is not empty\n  {threads}"),
            ));
        }
        Ok(())
    }

    /// The leader's index adds up (G8).
    fn audit(&self) -> Result<(), Failure> {
        let master = self.master.lock().clone();
        let audited = master.map_or(Ok(()), |master| master.audit());
        audited.map_err(|error| failed("G8", error.to_string()))
    }

    fn make(&mut self, kind: Kind, host: HostIx, start: u64) -> ProcessId {
        let plan = Arc::clone(&self.plan);
        match kind {
            Kind::Master => {
                let process = fibers::process("master", host);
                let place = Arc::clone(&self.master);
                fibers::start(process, "main", move || lead(&plan, start, &place));
                process
            }
            Kind::Node(at) => {
                let process = fibers::process(&format!("node-{at}"), host);
                fibers::start(process, "main", move || own(&plan, at));
                process
            }
            Kind::Client(at) => {
                let process = fibers::process(&format!("client-{at}"), host);
                let lanes: Vec<_> = (0..plan.lanes).map(|_| self.lane(process)).collect();
                fibers::start(process, "main", move || {
                    let name = format!("client-{at}");
                    let client = Arc::new(client(&plan, &name, plan.clients[at]));
                    for lane in lanes {
                        let lane = lane(Arc::clone(&client));
                        let _ = rt::spawn("lane", move || lane.work());
                    }
                });
                process
            }
        }
    }

    fn lane(&mut self, process: ProcessId) -> impl Fn(Arc<Client>) -> Lane + Send + use<> {
        self.lanes_made += 1;
        let (plan, number) = (Arc::clone(&self.plan), self.lanes_made);
        move |client| {
            let rng = Rng::stream(plan.seed ^ number.rotate_right(16), "lane");
            Lane { client, process, rng, plan: Arc::clone(&plan) }
        }
    }

    fn hurt(&mut self) {
        let at = self.rng.below(self.places.len() as u64) as usize;
        let other = self.rng.below(self.places.len() as u64) as usize;
        if self.places[at].mends.is_some() {
            return;
        }
        let lease = self.plan.catalog.serve_lease.as_nanos() as u64;
        let long = if self.rng.chance(500) { lease / 4 } else { FAULT_LEASES_MAX * lease };
        let until = fibers::true_time() + 1 + self.rng.below(long);
        let process = self.places[at].process;
        let fault = match self.rng.below(4) {
            3 => {
                let forward = self.rng.chance(500);
                fibers::note(6, at as u64, || format!("the wall clock of {at} steps"));
                fibers::step_wall(self.places[at].host, forward);
                self.counts[3] += 1;
                return;
            }
            0 => {
                fibers::kill(process);
                judge::killed(process);
                if self.places[at].kind == Kind::Master {
                    *self.master.lock() = None;
                }
                Fault::Kill
            }
            1 => {
                fibers::stop(process);
                Fault::Stop
            }
            _ if other == at => return,
            _ => {
                fibers::cut(process, self.places[other].process, true);
                Fault::Cut(other)
            }
        };
        let kind = self.places[at].kind;
        self.counts[match fault {
            Fault::Kill => 0,
            Fault::Stop => 1,
            Fault::Cut(_) => 2,
        }] += 1;
        fibers::note(6, at as u64, || format!("{kind:?}: {fault:?} until {} ms", until / MS));
        self.places[at].mends = Some((until, fault));
    }

    /// Ends the faults whose time is over by `now`.
    fn mend(&mut self, now: Nanos) {
        for at in 0..self.places.len() {
            let Some((_, fault)) = self.places[at].mends.filter(|(until, _)| *until <= now) else {
                continue;
            };
            let Place { kind, process, start, .. } = self.places[at];
            fibers::note(7, at as u64, || format!("{kind:?}: {fault:?} is over"));
            self.places[at].mends = None;
            match fault {
                Fault::Stop => fibers::go_on(process),
                Fault::Cut(other) => fibers::cut(process, self.places[other].process, false),
                Fault::Kill => {
                    let process = self.make(kind, self.places[at].host, start + 1);
                    self.places[at].process = process;
                    self.places[at].start = start + 1;
                }
            }
        }
    }
}

fn failed(rule: &str, text: String) -> Failure {
    Failure { rule: rule.to_owned(), text, key: None, op: judge::ops() }
}

/// A master process. A later start knows nothing of an earlier one but that it was there.
fn lead(plan: &Plan, start: u64, place: &Mutex<Option<Arc<Master>>>) {
    let config = MasterConfig {
        catalog: plan.catalog.clone(),
        had_leader: start > 1,
        ..MasterConfig::default()
    };
    let tick = config.tick;
    let master = Master::new(config, LeaderEpoch(start)).expect("it keeps nothing");
    *place.lock() = Some(Arc::clone(&master));
    let leader = Arc::clone(&master);
    let ticker = rt::spawn("tick", move || {
        loop {
            leader.tick();
            rt::sleep(tick);
        }
    });
    ticker.expect("a world starts threads");
    control::serve(&master, MASTER);
}

fn master_link(role: Role, name: &str) -> MasterLink {
    let address: Address = MASTER.parse().expect("it is one");
    let hello = Hello::new(role, LinkKind::Control, name);
    let pool = LinkPool::new(address, hello, PoolConfig::default());
    if role == Role::Node { MasterLink::new(pool) } else { MasterLink::guarded(pool) }
}

/// A node process.
fn own(plan: &Plan, at: usize) {
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
        // As shipped: wall time numbers the starts.
        incarnation: Incarnation(rt::wall_time() / 1_000),
        heartbeat: plan.heartbeat,
        ..NodeConfig::default()
    };
    loop {
        let master = Arc::new(master_link(Role::Node, &name));
        let node = Node::new(config.clone(), master, listen().into()).expect("memory is there");
        match node.register(false) {
            // Its threads keep it.
            Ok(()) => return,
            Err(error) => {
                fibers::note(8, at as u64, || format!("node {at} is not registered: {error}"));
                node.stop();
            }
        }
        rt::sleep(AGAIN);
    }
}

fn client(plan: &Plan, name: &str, near: Option<usize>) -> Client {
    let config = ClientConfig {
        call_time: plan.call_time,
        replicas: plan.replicas,
        best_effort: true,
        ..ClientConfig::default()
    };
    let host = near.map_or_else(|| name.to_owned(), |node| format!("node-{node}"));
    let host = HostId(name_hash(&host));
    let engine = EngineConfig { host, ..EngineConfig::default() };
    let master = Arc::new(master_link(Role::Client, name));
    Client::new(config, engine, master, Arc::new(Segments::default()))
}
