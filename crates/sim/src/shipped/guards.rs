//! Guards of nodes: each is a process on the machine of its node, which learns of its death late and then does what
//! ships.
//!
//! A guard may die with its node, or be held up before it does anything. Its machine takes it along when it vanishes.

use super::Plan;
use super::hurts::{Hurt, Whom};
use super::processes::master_link;
use crate::fibers::{self, HostIx, ProcessId};
use crate::swarm::pick;
use crate::{MS, Nanos};
use mooncrate_core::rng::Rng;
use mooncrate_lock::Mutex;
use mooncrate_mem::Life;
use mooncrate_node::{GuardStart, Watcher, report_death};
use mooncrate_rt as rt;
use mooncrate_wire::Role;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Between two looks at a node, at most.
const LOOK: Nanos = 60 * MS;

/// What a seed draws about guards; chances in parts per thousand.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Starts of a node without one.
    none: u32,
    /// Deaths that a guard shares.
    shared: u32,
    /// Deaths after which a guard stands still for up to two serving leases.
    late: u32,
    /// Whether most faults are deaths of nodes whose memory is mapped.
    deaths: bool,
}

impl Load {
    /// From a stream of its own: the other choices of a seed stay the same. `None`: this seed has no guards.
    pub(super) fn draw(seed: u64) -> Option<Self> {
        let rng = &mut Rng::stream(seed, "guards");
        rng.chance(500).then(|| Self {
            none: *pick(rng, &[0, 0, 300]),
            shared: *pick(rng, &[0, 200]),
            late: *pick(rng, &[0, 200]),
            deaths: rng.chance(500),
        })
    }

    /// Lets nodes die whose memory clients map, while others take what is put.
    pub(super) fn fit(&self, plan: &mut Plan) {
        if self.deaths {
            plan.nodes = plan.nodes.max(2);
            for (client, near) in plan.clients.iter_mut().enumerate() {
                near.get_or_insert(client % plan.nodes);
            }
            let hurts = &mut plan.hurts;
            hurts.kinds.truncate(1);
            hurts.kinds.extend([Hurt::Kill; 3]);
            (hurts.every, hurts.whom) = (hurts.every.clamp(100 * MS, 500 * MS), Whom::Nodes);
        }
    }
}

/// The guards of one node's starts.
#[derive(Clone)]
pub(super) struct Guards {
    plan: Arc<Plan>,
    node: usize,
    rng: Arc<Mutex<Rng>>,
    processes: Arc<Mutex<Vec<ProcessId>>>,
}

impl Guards {
    pub(super) fn new(plan: &Arc<Plan>, node: usize) -> Self {
        let rng = Rng::stream(plan.seed, &format!("guards-{node}"));
        let rng = Arc::new(Mutex::new(rng));
        Self { plan: Arc::clone(plan), node, rng, processes: Arc::default() }
    }

    /// What a start of the node has as its guard.
    pub(super) fn start(&self, host: HostIx, owner: ProcessId) -> Option<GuardStart> {
        let load = self.plan.guards?;
        let mut rng = self.rng.lock();
        let rng = (!rng.chance(load.none)).then(|| Rng::new(rng.next()))?;
        let guards = self.clone();
        let of = Of { guards, host, owner, rng: Mutex::new(rng), process: Mutex::default() };
        Some(GuardStart::Given(Arc::new(of)))
    }

    /// Their machine is without power.
    pub(super) fn vanish(&self) {
        self.processes.lock().drain(..).for_each(fibers::vanish);
    }
}

/// The guard of one start.
struct Of {
    guards: Guards,
    host: HostIx,
    owner: ProcessId,
    rng: Mutex<Rng>,
    process: Mutex<Option<ProcessId>>,
}

impl fmt::Debug for Of {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Of").field("owner", &self.owner).finish_non_exhaustive()
    }
}

impl Watcher for Of {
    fn watch(&self, life: Life) -> io::Result<()> {
        let name = format!("guard-{}", self.guards.node);
        let process = fibers::process(&name, self.host);
        *self.process.lock() = Some(process);
        self.guards.processes.lock().push(process);
        let rng = Rng::new(self.rng.lock().next());
        let (plan, node, owner) = (Arc::clone(&self.guards.plan), self.guards.node, self.owner);
        fibers::start(process, "watch", move || guard(&plan, node, owner, &life, rng));
        Ok(())
    }

    fn dismiss(&self) {
        if let Some(process) = self.process.lock().take() {
            fibers::kill(process);
        }
    }
}

/// A guard's process.
fn guard(plan: &Plan, node: usize, owner: ProcessId, life: &Life, mut rng: Rng) {
    let load = plan.guards.expect("only then there are guards");
    while !fibers::is_dead(owner) {
        rt::sleep(Duration::from_nanos(rng.below(LOOK)));
    }
    if rng.chance(load.shared) {
        return;
    }
    if rng.chance(load.late) {
        rt::sleep(2 * plan.catalog.serve_lease * rng.below(1_000) as u32 / 1_000);
    }
    let name = format!("guard-{node}");
    let told = report_death(life, &master_link(plan, Role::Node, 0, &name));
    let mounts = life.mounts().len();
    fibers::note(14, node as u64, || {
        format!("{name}: its node is dead, with {mounts} mounts: {told:?}")
    });
}
