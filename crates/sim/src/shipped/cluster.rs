//! The processes of a run, the faults that befall them, and the finale.

use super::bare::{Bare, Memory};
use super::disks::Disks;
use super::etcd::{Etcd, Reached};
use super::guards::Guards;
use super::hurts::{Hurt, Whom};
use super::load::Lane;
use super::operator::{Leaving, Operator};
use super::processes::{
    AGAIN, MakeLane, client, client_over, flip, lead, master_link, node_id, own, set_to_work,
};
use super::{FAULTS, Plan, judge, last, state, tenants};
use crate::clock::Clock;
use crate::fibers::{self, HostIx, ProcessId};
use crate::judge::Failure;
use crate::swarm::pick;
use crate::{MS, Nanos};
use mooncrate_client::Client;
use mooncrate_core::SegmentId;
use mooncrate_core::rng::Rng;
use mooncrate_lock::Mutex;
use mooncrate_node::Node;
use mooncrate_rt as rt;
use mooncrate_wire::Role;
use std::cell::Cell;
use std::sync::Arc;

/// Virtual time after which no fault begins: the run of a client that is dead most of the time would not end.
const FAULTS_UNTIL: Nanos = 600_000 * MS;
/// What a killed process had open stays open in the worker: a run kills so many at most.
const KILLS_MAX: u64 = 400;

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
    Master(usize),
    Node(usize),
    Client(usize),
}

/// What lasts until it is mended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The process is dead.
    Dead,
    Stopped,
    /// Cut off from the process at this place.
    Cut(usize),
    /// A master that is cut off from etcd.
    CutFromEtcd(usize),
    /// A node that has been told to end.
    Leaving,
}

pub(super) type Registered = Arc<Mutex<Option<Arc<Node>>>>;
/// The client of a process, once it has begun.
type Begun = Arc<Mutex<Option<Arc<Client>>>>;

pub(super) struct Cluster {
    plan: Arc<Plan>,
    rng: Rng,
    places: Vec<Place>,
    etcd: Arc<Etcd>,
    /// The nodes, as they were registered last.
    nodes: Vec<Registered>,
    memories: Vec<Memory>,
    clients: Vec<Begun>,
    disks: Disks,
    guards: Vec<Guards>,
    leaving: Arc<Mutex<Leaving>>,
    next_fault: Nanos,
    outage: Nanos,
    counts: [u64; FAULTS.len()],
    lanes_made: u64,
}

impl Cluster {
    pub(super) fn new(plan: Plan) -> Self {
        let rng = Rng::stream(plan.seed, "faults");
        let plan = Arc::new(plan);
        let mut this = Self {
            rng,
            places: Vec::new(),
            etcd: Etcd::new(plan.seed, !plan.calm),
            nodes: (0..plan.nodes).map(|_| Arc::default()).collect(),
            memories: (0..plan.nodes).map(|_| Arc::default()).collect(),
            clients: plan.clients.iter().map(|_| Arc::default()).collect(),
            disks: Disks::new(plan.seed, plan.disks.clone(), plan.nodes),
            guards: (0..plan.nodes).map(|node| Guards::new(&plan, node)).collect(),
            leaving: Arc::default(),
            plan,
            next_fault: 0,
            outage: Nanos::MAX,
            counts: [0; FAULTS.len()],
            lanes_made: 0,
        };
        if this.plan.masters > 1 {
            let process = fibers::process("etcd", fibers::host(Clock::draw(&mut this.rng)));
            let etcd = Arc::clone(&this.etcd);
            fibers::start(process, "main", move || etcd.serve());
        }
        let masters = (0..this.plan.masters).map(Kind::Master);
        let nodes = (0..this.plan.nodes).map(Kind::Node);
        let clients = (0..this.plan.clients.len()).map(Kind::Client);
        let kinds: Vec<Kind> = masters.chain(nodes).chain(clients).collect();
        for kind in kinds {
            let host = match kind {
                Kind::Client(at) if let Some(node) = this.plan.clients[at] => {
                    this.places[this.plan.masters + node].host
                }
                _ => fibers::host(Clock::draw(&mut this.rng)),
            };
            let process = this.make(kind, host, 1);
            this.places.push(Place { kind, host, process, start: 1, mends: None });
        }
        if this.plan.operator {
            this.hire_operator();
        }
        if this.plan.tenants.quota.is_some() {
            let process = fibers::process("limits", fibers::host(Clock::draw(&mut this.rng)));
            let plan = Arc::clone(&this.plan);
            fibers::start(process, "main", move || tenants::limit(&plan));
        }
        for node in 0..this.plan.nodes {
            this.read_bare(node);
        }
        this.next_fault = this.fault_pause();
        this
    }

    /// How many of each kind there were.
    pub(super) fn faults(&self) -> [u64; FAULTS.len()] {
        self.counts
    }

    fn fault_pause(&mut self) -> Nanos {
        match self.plan.hurts.every {
            0 => Nanos::MAX,
            _ if fibers::true_time() > FAULTS_UNTIL => Nanos::MAX,
            every => {
                let lease = self.plan.catalog.serve_lease.as_nanos() as Nanos;
                let rest = if self.plan.hurts.one_by_one { lease } else { 0 };
                fibers::true_time() + rest + 1 + self.rng.below(2 * every)
            }
        }
    }

    /// Lets clients work and faults happen until the operations are done.
    pub(super) fn run(&mut self) -> Result<(), Failure> {
        loop {
            let now = fibers::true_time();
            let mends = self.places.iter().filter_map(|place| place.mends.map(|(at, _)| at));
            let next = mends.chain([self.next_fault, self.outage, now + 1_000 * MS]).min();
            let until = next.unwrap_or(now);
            let enough = || judge::has_failed() || judge::ops() >= self.plan.ops;
            let leaving = Arc::clone(&self.leaving);
            let moves = || {
                let leaving = leaving.lock();
                leaving.asked.is_some() || leaving.stopped.is_some()
            };
            fibers::run(until, || enough() || moves()).map_err(|text| failed("panic", text))?;
            self.follow_leaving();
            if judge::has_failed() || judge::ops() >= self.plan.ops {
                return Ok(());
            }
            self.mend(fibers::true_time());
            self.end_masters(fibers::true_time());
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
        state::heal();
        fibers::right_walls();
        fibers::be_in_time();
        self.etcd.heal();
        (self.next_fault, self.outage) = (Nanos::MAX, Nanos::MAX);
        let end = fibers::true_time() + time;
        let host = fibers::host(Clock::draw(&mut self.rng));
        let process = fibers::process("operator", host);
        let reads = self.read_last();
        let tenants = 0..self.plan.tenants.count;
        let lanes: Vec<_> = tenants.map(|tenant| (tenant, self.lane(process, tenant))).collect();
        let done = Arc::new(Mutex::new(false));
        let nodes = self.nodes.clone();
        let (plan, told) = (Arc::clone(&self.plan), Arc::clone(&done));
        fibers::start(process, "operator", move || {
            let clients = lanes
                .iter()
                .map(|(tenant, _)| Arc::new(client(&plan, *tenant, "operator", None, false)));
            let clients: Vec<_> = clients.collect();
            while *reads.lock() > 0 {
                rt::sleep(AGAIN);
            }
            while !last::agree(&clients[0], &nodes) {
                rt::sleep(AGAIN);
            }
            while !last::is_quiet(&clients[0]) {}
            loop {
                for ((_, lane), client) in lanes.iter().zip(&clients) {
                    lane(Arc::clone(client)).remove_all();
                }
                if last::is_empty(&clients[0], &nodes) {
                    break;
                }
                rt::sleep(plan.catalog.serve_lease / 2);
            }
            *told.lock() = true;
        });
        let over = || judge::has_failed() || *done.lock();
        fibers::run(end, over).map_err(|text| failed("panic", text))?;
        if !judge::has_failed() && !*done.lock() {
            let (time, threads) = (time / 1000 / MS, fibers::threads().join("\n  "));
            let wrong = last::wrong();
            let text = format!("after {time} s without faults {wrong}\n  {threads}");
            return Err(failed("liveness", text));
        }
        Ok(())
    }

    fn make(&mut self, kind: Kind, host: HostIx, start: u64) -> ProcessId {
        let plan = Arc::clone(&self.plan);
        match kind {
            Kind::Master(at) => {
                let process = fibers::process(&format!("master-{at}"), host);
                let etcd = Reached { etcd: Arc::clone(&self.etcd), master: at };
                let lanes = self.lanes(plan.lanes_of_master, process, 0);
                fibers::start(process, "main", move || lead(&plan, at, start, etcd, lanes));
                process
            }
            Kind::Node(at) => {
                let process = fibers::process(&format!("node-{at}"), host);
                let place = Arc::clone(&self.nodes[at]);
                *place.lock() = None;
                let memory = Arc::clone(&self.memories[at]);
                let disks = self.disks.mount(at, start, &self.list());
                let guards = self.guards[at].clone();
                let lanes = self.lanes(plan.lanes_of_nodes, process, 0);
                fibers::start(process, "main", move || {
                    let node = own(&plan, at, &disks, || guards.start(host, process));
                    *memory.lock() = node.segments().get(SegmentId::of(node_id(at), 0));
                    let segments = Arc::clone(node.segments());
                    *place.lock() = Some(node);
                    let name = format!("node-{at}");
                    let master = Arc::new(master_link(&plan, Role::Client, 0, &name));
                    let client = Arc::new(client_over(&plan, (&name, 0), false, master, segments));
                    set_to_work(&client, lanes);
                });
                process
            }
            Kind::Client(at) => {
                let process = fibers::process(&format!("client-{at}"), host);
                let begun = Arc::clone(&self.clients[at]);
                *begun.lock() = None;
                let tenant = plan.tenants.of_client(at);
                let lanes = self.lanes(plan.lanes, process, tenant);
                fibers::start(process, "main", move || {
                    let name = format!("client-{at}");
                    let holds = at < plan.holders;
                    let client = Arc::new(client(&plan, tenant, &name, plan.clients[at], holds));
                    // Before there is memory to put to: at the end it may all be drained.
                    *begun.lock() = Some(Arc::clone(&client));
                    set_to_work(&client, lanes);
                });
                process
            }
        }
    }

    /// What the next leader would read.
    fn list(&self) -> String {
        if self.plan.masters == 1 {
            return state::text(self.places[0].start);
        }
        self.etcd.value("mooncrate/state")
    }

    fn lane(
        &mut self,
        process: ProcessId,
        tenant: u64,
    ) -> impl Fn(Arc<Client>) -> Lane + Send + use<> {
        self.lanes_made += 1;
        let (plan, number) = (Arc::clone(&self.plan), self.lanes_made);
        move |client| {
            let rng = Rng::stream(plan.seed ^ number.rotate_right(16), "lane");
            let plan = Arc::clone(&plan);
            Lane { client, process, tenant, rng, plan, in_vain: Cell::new(false) }
        }
    }

    fn lanes(&mut self, count: usize, process: ProcessId, tenant: u64) -> Vec<MakeLane> {
        (0..count).map(|_| Box::new(self.lane(process, tenant)) as MakeLane).collect()
    }

    fn hire_operator(&mut self) {
        let host = fibers::host(Clock::draw(&mut self.rng));
        let process = fibers::process("hired", host);
        let rng = Rng::stream(self.plan.seed, "operator");
        let (plan, leaving) = (Arc::clone(&self.plan), Arc::clone(&self.leaving));
        fibers::start(process, "hired", move || {
            let master = Arc::new(master_link(&plan, Role::Admin, 0, "hired"));
            let client = client_over(&plan, ("hired", 0), false, master, Arc::default());
            Operator { client, rng, plan, leaving }.work();
        });
    }

    /// Readers on the machine of a node that count on leases alone.
    fn read_bare(&mut self, node: usize) {
        let name = format!("bare-{node}");
        let process = fibers::process(&name, self.places[self.plan.masters + node].host);
        for number in 0..self.plan.bare {
            let (plan, memory) = (Arc::clone(&self.plan), Arc::clone(&self.memories[node]));
            let (rng, name) = (Rng::new(self.rng.next()), format!("{name}-{number}"));
            fibers::start(process, "bare", move || {
                let master = master_link(&plan, Role::Client, 0, &name);
                Bare { master, memory, rng, plan }.work();
            });
        }
    }

    /// Lets every client read every key; how many of them still do.
    fn read_last(&mut self) -> Arc<Mutex<usize>> {
        let left = Arc::new(Mutex::new(self.clients.len()));
        for at in 0..self.clients.len() {
            let process = self.places[self.plan.masters + self.plan.nodes + at].process;
            let tenant = self.plan.tenants.of_client(at);
            let (lane, begun) = (self.lane(process, tenant), Arc::clone(&self.clients[at]));
            let left = Arc::clone(&left);
            fibers::start(process, "last reads", move || {
                let client = loop {
                    let client = begun.lock().clone();
                    if let Some(client) = client {
                        break client;
                    }
                    rt::sleep(AGAIN);
                };
                lane(client).read_all();
                *left.lock() -= 1;
            });
        }
        left
    }

    /// A node shall end in order, or has.
    fn follow_leaving(&mut self) {
        let (asked, stopped) = {
            let mut leaving = self.leaving.lock();
            (leaving.asked.take(), leaving.stopped.take())
        };
        if let Some(node) = asked {
            self.leave(self.plan.masters + node);
        }
        let Some(node) = stopped else { return };
        let at = self.plan.masters + node;
        if self.places[at].mends.is_some_and(|(_, fault)| fault == Fault::Leaving) {
            fibers::kill(self.places[at].process);
            judge::killed(self.places[at].process);
            // Not back before the operator has looked.
            let lease = self.plan.catalog.serve_lease.as_nanos() as u64;
            self.places[at].mends = Some((self.mends_at(Kind::Node(node)) + lease, Fault::Dead));
            self.leaving.lock().left = Some(node);
        }
    }

    /// The node at a place ends in order.
    fn leave(&mut self, at: usize) {
        let Place { kind: Kind::Node(number), process, mends: None, .. } = self.places[at] else {
            return;
        };
        let Some(node) = self.nodes[number].lock().take() else { return };
        let leaving = Arc::clone(&self.leaving);
        fibers::start(process, "leave", move || {
            node.stop();
            leaving.lock().stopped = Some(number);
        });
        self.places[at].mends = Some((Nanos::MAX, Fault::Leaving));
    }

    /// When a fault that begins now is mended. One of a master that others may replace outlasts its term at times.
    fn mends_at(&mut self, kind: Kind) -> Nanos {
        let mut unit = self.plan.catalog.serve_lease;
        if matches!(kind, Kind::Master(_)) && self.plan.masters > 1 {
            unit = unit.max(self.plan.term);
        }
        let unit = unit.as_nanos() as u64;
        let short = self.rng.chance(500) || self.plan.hurts.leases_max == 0;
        let long = if short { unit / 4 } else { self.plan.hurts.leases_max * unit };
        fibers::true_time() + 1 + self.rng.below(long)
    }

    /// The process that a fault befalls.
    fn victim(&mut self) -> usize {
        let (masters, nodes) = (self.plan.masters, self.plan.nodes);
        let among = match self.plan.hurts.whom {
            Whom::All => 0..self.places.len(),
            Whom::Masters => 0..masters,
            Whom::Nodes => masters..masters + nodes,
            Whom::Clients => masters + nodes..self.places.len(),
        };
        among.start + self.rng.below(among.len() as u64) as usize
    }

    const fn kills(&self) -> u64 {
        self.counts[Hurt::Kill as usize] + self.counts[Hurt::Vanish as usize]
    }

    fn hurt(&mut self) {
        let at = self.victim();
        // Half of the cuts are from a master.
        let others = if self.rng.chance(500) { self.plan.masters } else { self.places.len() };
        let other = self.rng.below(others as u64) as usize;
        let Place { kind, process, host, mends, .. } = self.places[at];
        let until = self.mends_at(kind);
        let hurt = *pick(&mut self.rng, &self.plan.hurts.kinds);
        let others_mend = || self.places.iter().any(|place| place.mends.is_some());
        if mends.is_some() || self.plan.hurts.one_by_one && others_mend() {
            return;
        }
        let is_node = matches!(kind, Kind::Node(_));
        let alone = self.places.iter().filter(|place| place.host == host).count() == 1;
        let possible = match hurt {
            Hurt::Cut => at != other,
            Hurt::Leave | Hurt::Flip => is_node,
            Hurt::Kill => self.kills() < KILLS_MAX,
            Hurt::Vanish => alone && self.kills() < KILLS_MAX,
            _ => true,
        };
        if !possible {
            return;
        }
        self.counts[hurt as usize] += 1;
        fibers::note(6, at as u64, || format!("{kind:?}: {hurt:?} until {} ms", until / MS));
        let lasts = match hurt {
            Hurt::Kill | Hurt::Vanish => {
                self.end(at, hurt == Hurt::Vanish);
                Fault::Dead
            }
            Hurt::Stop => {
                fibers::stop(process);
                Fault::Stopped
            }
            Hurt::Cut
                if let Kind::Master(master) = kind
                    && self.rng.chance(500) =>
            {
                self.etcd.cut_off(master, true);
                Fault::CutFromEtcd(master)
            }
            Hurt::Cut => {
                fibers::cut(process, self.places[other].process, true);
                Fault::Cut(other)
            }
            Hurt::WallClock => {
                let forward = self.rng.chance(500);
                return fibers::step_wall(host, forward);
            }
            Hurt::Leave => return self.leave(at),
            Hurt::Reset => return fibers::reset(process),
            Hurt::Garble => return fibers::garble(process),
            Hurt::Flip => {
                let Kind::Node(number) = kind else { return };
                let (registered, rng) =
                    (Arc::clone(&self.nodes[number]), Rng::new(self.rng.next()));
                return fibers::start(process, "flip", move || flip(&registered, rng));
            }
        };
        self.places[at].mends = Some((until, lasts));
        if is_node && self.plan.hurts.outages > 0 && self.rng.chance(self.plan.hurts.outages) {
            let now = fibers::true_time();
            self.outage = now + self.rng.below(until - now);
        }
    }

    /// A process is dead, perhaps because its machine has no power.
    fn end(&mut self, at: usize, powerless: bool) {
        let Place { kind, process, .. } = self.places[at];
        if powerless {
            fibers::vanish(process);
        } else {
            fibers::kill(process);
        }
        judge::killed(process);
        if let Kind::Node(number) = kind {
            self.disks.ended(number, powerless);
            if powerless {
                self.guards[number].vanish();
            }
        }
    }

    /// In an outage all masters die that have no other fault.
    fn end_masters(&mut self, now: Nanos) {
        if now < self.outage {
            return;
        }
        self.outage = Nanos::MAX;
        let span = self.plan.catalog.serve_lease.as_nanos() as u64 / 4;
        for at in 0..self.plan.masters {
            if self.places[at].mends.is_some() {
                continue;
            }
            self.end(at, false);
            self.places[at].mends = Some((now + 1 + self.rng.below(span), Fault::Dead));
        }
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
                Fault::Stopped => fibers::go_on(process),
                Fault::Cut(other) => fibers::cut(process, self.places[other].process, false),
                Fault::CutFromEtcd(master) => self.etcd.cut_off(master, false),
                Fault::Dead | Fault::Leaving => {
                    if fault == Fault::Leaving {
                        fibers::kill(process);
                        judge::killed(process);
                    }
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
