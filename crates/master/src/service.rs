//! The master's calls. Every call is a few short steps under the lock; between the steps owners
//! work, and the call waits for their notices until its deadline.

use crate::config::MasterConfig;
use crate::election::EtcdKeeper;
use crate::intake::Intake;
use crate::keeper::Keeper;
use crate::keeping::cannot_keep;
use crate::kept::Kept;
use crate::mail::Mail;
use crate::members::Directory;
use crate::metrics::Requests;
use crate::mooncake::jobs::Jobs;
use crate::news::News;
use crate::term::Term;
use crate::trace::Trace;
use crate::turns::Turns;
use mooncrate_core::catalog::{
    self, AuditError, Catalog, Ended, InBatch, LookFor, Removal, Start, Writer, replacing,
};
use mooncrate_core::error::{GetError, PutError, RemoveError};
use mooncrate_core::ids::GroupId;
use mooncrate_core::plan::{Located, Looked, Order, PutConfig, ReadMark, WritePlan};
use mooncrate_core::time::Deadline;
use mooncrate_core::token::TokenKey;
use mooncrate_core::{LeaderEpoch, Name, NodeId, Now, ObjectId, SegmentId, TenantId};
use mooncrate_lock::{Mutex, MutexGuard};
use mooncrate_wire::auth::GrantKey;
use mooncrate_wire::clock::boottime;
use mooncrate_wire::message::{
    ClusterStat, Look, MarksHeard, PutEndItem, PutItem, PutReplan, PutRevokeItem, SegmentRow,
    TenantRow,
};
use mooncrate_wire::{CallError, NodeApi};
use std::io;
use std::sync::{Arc, OnceLock, Weak};

/// Rounds of local evictions for one put before it yields: each frees something or learns that it
/// cannot.
const LOCAL_ROUNDS_MAX: usize = 64;
/// Hint when the deadline of a put came before room did.
const OUT_OF_TIME_MS: u32 = 10;
/// Marks of reads that are taken in under one hold of the lock: some 10 µs.
const MARKS_PER_SLICE: usize = 128;
/// Puts of a writer that is gone that are given back under one hold of the lock.
const ORPHANS_PER_SLICE: usize = 128;
/// Hint when the deadline of a remove came before the owner's word did.
const DEFERRED_MS: u32 = 50;

/// The index of a cluster.
#[derive(Debug)]
pub struct Master {
    pub(crate) config: MasterConfig,
    mind: Mutex<Mind>,
    /// A lock of its own, taken before the mind's: no call waits while the disk works.
    keeper: Mutex<Keeper>,
    /// Nodes that are surely on the list that the next leader reads.
    pub(crate) listed: Mutex<Vec<NodeId>>,
    /// Why what the next leader must know could not be written the last time.
    pub(crate) unkept: Mutex<Option<String>>,
    /// For the next master at this address.
    trace: Mutex<Option<Trace>>,
    /// Until when it leads; `None`: for ever.
    term: Option<Arc<Term>>,
    /// Who it is among several masters, for people.
    title: String,
    /// What calls of clients wait for: notices, copies, segments that open. Nodes wait at bells of their own.
    pub(crate) news: News,
    /// Announcements on their way in.
    pub(crate) intake: Intake,
    /// How long requests took; handlers add to it.
    pub(crate) requests: Requests,
    /// Drains that somebody follows by an id.
    pub(crate) jobs: Jobs,
    /// Turns of regular expressions from peers: they take processors, and must not take all of them.
    pub(crate) expressions: Turns,
    /// A node in this process takes its orders by a call.
    local: OnceLock<(NodeId, LocalNode)>,
}

/// Weak, because the node holds its master.
struct LocalNode(Weak<dyn NodeApi>);

impl std::fmt::Debug for LocalNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LocalNode")
    }
}

/// What the lock guards.
#[derive(Debug)]
pub(crate) struct Mind {
    pub(crate) catalog: Catalog,
    pub(crate) directory: Directory,
    /// What waits for nodes to ask, bounded by what the catalog has out.
    pub(crate) mail: Mail,
}

impl Master {
    /// A master that leads from now on. `epoch` is used when no state file says more.
    pub fn new(config: MasterConfig, epoch: LeaderEpoch) -> io::Result<Arc<Self>> {
        let (keeper, kept, damaged) = Keeper::open(&config)?;
        let epoch = kept.as_ref().map_or(epoch, |kept| LeaderEpoch(kept.epoch.0 + 1));
        // Before any node gets a lease.
        let (trace, followed) = config.trace.as_deref().map_or((None, false), Trace::leave);
        let config =
            MasterConfig { had_leader: config.had_leader || followed || damaged, ..config };
        let master = Self::made(config, epoch, kept, keeper);
        let master = Arc::new(Self { trace: Mutex::new(trace), ..master });
        if !master.keeps() {
            // A list that it may have begun with is deleted.
            master.mind().catalog.trust_written(&[]);
        }
        let kept = master.keep();
        if master.keeper().is_usual() || kept.is_ok() {
            master.say_kept(&kept);
            return Ok(master);
        }
        // It has led nobody.
        master.trace.lock().take().into_iter().for_each(Trace::remove);
        Err(kept.expect_err("it failed"))
    }

    /// A master that was elected, with an index of its own. `kept`: what the last leader wrote down;
    /// `None`: etcd says that nobody ever led, so the cluster is new.
    pub(crate) fn elected(
        config: MasterConfig,
        epoch: LeaderEpoch,
        kept: Option<Kept>,
        term: Arc<Term>,
        keeper: EtcdKeeper,
        title: String,
    ) -> Arc<Self> {
        // Reads bridge an election, which takes longer than the lease of a master alone.
        let serve_lease = config.catalog.registration / 2;
        let catalog = catalog::Config { serve_lease, ..config.catalog };
        let config = MasterConfig { catalog, had_leader: false, ..config };
        let master = Self::made(config, epoch, kept, Keeper::Etcd(keeper));
        Arc::new(Self { term: Some(term), title, ..master })
    }

    fn made(config: MasterConfig, epoch: LeaderEpoch, kept: Option<Kept>, keeper: Keeper) -> Self {
        let listed = kept.as_ref().map_or_else(Vec::new, |kept| kept.nodes.clone());
        let (start, quotas) = match kept {
            Some(kept) => {
                let Kept { nodes: expected, trusted, quotas, .. } = kept;
                (Start::Takeover { expected, trusted }, quotas)
            }
            None if config.had_leader => {
                let wait = config.catalog.serve_lease;
                tracing::warn!(
                    "a master led here and its state is gone: calls for unknown keys wait {wait:?}, as long as \
                     its nodes may serve"
                );
                (Start::Unknown, Vec::new())
            }
            None => (Start::New, Vec::new()),
        };
        let token_key = token_key(config.grants.as_ref());
        let catalog = catalog::Config { token_key, ..config.catalog.clone() };
        let mut catalog = Catalog::new(catalog, epoch, start, boottime());
        for (tenant, bytes) in quotas {
            catalog.set_quota(tenant, Some(bytes));
        }
        let mind = Mind { catalog, directory: Directory::default(), mail: Mail::default() };
        Self {
            config,
            mind: Mutex::new(mind),
            keeper: Mutex::new(keeper),
            listed: Mutex::new(listed),
            unkept: Mutex::new(None),
            trace: Mutex::new(None),
            term: None,
            title: String::new(),
            news: News::default(),
            intake: Intake::default(),
            requests: Requests::default(),
            jobs: Jobs::default(),
            expressions: Turns::default(),
            local: OnceLock::new(),
        }
    }

    /// Whether an earlier master believed this segment, and it has not come yet.
    pub fn awaits(&self, segment: SegmentId) -> bool {
        self.mind().catalog.awaits(segment)
    }

    /// Whether it leads now, by its own reckoning.
    pub fn leads(&self) -> bool {
        self.term.as_ref().is_none_or(|term| term.lasts())
    }

    /// Whether its time is limited.
    pub(crate) fn is_elected(&self) -> bool {
        self.term.is_some()
    }

    pub(crate) fn keeper(&self) -> MutexGuard<'_, Keeper> {
        self.keeper.lock()
    }

    /// Gives orders of `node` straight to it. Once per master.
    pub fn set_local_node(&self, node: NodeId, api: Weak<dyn NodeApi>) {
        assert!(self.local.set((node, LocalNode(api))).is_ok(), "one node lives beside a master");
    }

    /// What time alone brings about; called every [`MasterConfig::tick`].
    pub fn tick(&self) {
        self.tick_at(boottime());
    }

    pub(crate) fn tick_at(&self, now: Now) {
        if !self.leads() {
            return;
        }
        let orders = {
            let mut mind = self.mind();
            let lost = mind.catalog.counters().nodes_lost;
            mind.catalog.tick(now);
            // Looked for only then: a walk through all nodes with each tick would hold the lock for nothing.
            if mind.catalog.counters().nodes_lost > lost {
                Self::forget_lost(&mut mind);
            }
            self.sort_orders(&mut mind)
        };
        self.carry_out(&orders);
        self.jobs.watch(self);
        if let Some(trace) = &mut *self.trace.lock() {
            trace.renew(now);
        }
    }

    /// It serves nobody any more. If no node can have a lease, the next master need not know that it was here.
    pub fn retired(&self) {
        let trace = self.trace.lock().take();
        if let Some(trace) = trace.filter(|_| self.mind().catalog.holders().is_empty()) {
            trace.remove();
        }
        if !self.is_elected() {
            // The next master may have the file.
            *self.keeper() = Keeper::Nowhere;
        }
    }

    /// Gives back the puts of a writer that is gone, until it is here again: what it begins then is not meant.
    pub(crate) fn writer_gone(&self, writer: Writer, is_here: impl Fn() -> bool) {
        loop {
            let (done, orders) = {
                let mut mind = self.mind();
                // Asked under the lock: a link is known before the first put that comes over it.
                if is_here() {
                    return;
                }
                let done = mind.catalog.writer_gone(boottime(), writer, ORPHANS_PER_SLICE);
                (done, self.sort_orders(&mut mind))
            };
            self.carry_out(&orders);
            if done {
                return;
            }
        }
    }

    /// Walks the whole index and says what does not add up (G8). Linear, and under the lock: for
    /// tests and for operators in doubt.
    pub fn audit(&self) -> Result<(), AuditError> {
        self.mind().catalog.audit()
    }

    /// Shows the index, under its lock: for tests.
    pub fn inspect<T>(&self, look: impl FnOnce(&Catalog) -> T) -> T {
        look(&self.mind().catalog)
    }

    pub(crate) fn mind(&self) -> MutexGuard<'_, Mind> {
        self.mind.lock()
    }

    /// Whether nobody has the lock.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.mind.try_lock().is_some()
    }

    /// One attempt at the open items of a put: fills in what is decided. Whether all are.
    pub(crate) fn try_put_start(
        &self,
        (tenant, writer): (TenantId, Writer),
        config: &PutConfig,
        items: &[PutItem<'_>],
        results: &mut [Option<Result<WritePlan, PutError>>],
    ) -> bool {
        // For items with groups of their own; made once, if there are some.
        let mut own: Option<PutConfig> = None;
        for _ in 0..LOCAL_ROUNDS_MAX {
            let mut open = false;
            let orders = {
                let now = boottime();
                let mut mind = self.mind();
                for (at, (item, result)) in items.iter().zip(results.iter_mut()).enumerate() {
                    if result.is_some() {
                        continue;
                    }
                    let name = Name::new(tenant, item.key);
                    let wishes = match item.group {
                        GroupId(0) => config,
                        group => {
                            let own = own.get_or_insert_with(|| config.clone());
                            own.group = group;
                            &*own
                        }
                    };
                    let after = at.checked_sub(1).map(|before| items[before].key);
                    let batch = InBatch { after, at, len: items.len() };
                    let (catalog, len) = (&mut mind.catalog, item.len);
                    match catalog.put_start_in(now, writer, batch, name, len, wishes) {
                        Err(PutError::Reclaiming { .. }) => {
                            open = true;
                            break;
                        }
                        decided => *result = Some(decided),
                    }
                }
                self.sort_orders(&mut mind)
            };
            let local = !orders.is_empty();
            self.carry_out(&orders);
            if !open {
                return true;
            }
            if !local {
                return false;
            }
        }
        false
    }

    /// Ends puts; upserts that wait for the owners of what they replaced are left open in `waiting`.
    pub(crate) fn put_end_items(
        &self,
        tenant: TenantId,
        items: &[PutEndItem<'_>],
        waiting: &mut Vec<(usize, ObjectId)>,
    ) -> Vec<Result<(), PutError>> {
        let now = boottime();
        let (results, orders) = {
            let mut mind = self.mind();
            let ended = items.iter().enumerate().map(|(index, item)| {
                let name = Name::new(tenant, item.key);
                let ended = mind.catalog.put_end(now, name, item.token, &item.seals.seals())?;
                if let Ended::Replacing(old) = ended {
                    waiting.push((index, old));
                    return Err(replacing());
                }
                Ok(())
            });
            (ended.collect(), self.sort_orders(&mut mind))
        };
        self.carry_out(&orders);
        results
    }

    /// Plans copies anew that failed their writer.
    pub(crate) fn replan(
        &self,
        tenant: TenantId,
        ask: &PutReplan<'_>,
    ) -> Result<WritePlan, PutError> {
        let now = boottime();
        let name = Name::new(tenant, ask.key);
        let (planned, orders) = {
            let mut mind = self.mind();
            let catalog = &mut mind.catalog;
            let planned = catalog.put_replan(now, name, ask.token, &ask.failed, &ask.config);
            (planned, self.sort_orders(&mut mind))
        };
        self.carry_out(&orders);
        planned.map(|plan| self.grant_plan(tenant, plan))
    }

    pub(crate) fn put_revoke_items(
        &self,
        tenant: TenantId,
        items: &[PutRevokeItem<'_>],
    ) -> Vec<Result<(), PutError>> {
        let now = boottime();
        let (results, orders) = {
            let mut mind = self.mind();
            let results = items
                .iter()
                .map(|item| {
                    let name = Name::new(tenant, item.key);
                    mind.catalog.put_revoke(now, name, item.token)
                })
                .collect();
            (results, self.sort_orders(&mut mind))
        };
        self.carry_out(&orders);
        results
    }

    pub(crate) fn locate_keys(
        &self,
        tenant: TenantId,
        lease_ms: u32,
        keys: &[&[u8]],
    ) -> Vec<Result<Located, GetError>> {
        let now = boottime();
        let mut mind = self.mind();
        let found = match keys {
            [key] => vec![mind.catalog.locate(now, Name::new(tenant, key), lease_ms)],
            keys => mind.catalog.locate_many(now, tenant, keys, lease_ms),
        };
        drop(mind);
        if self.config.grants.is_none() {
            return found;
        }
        let granted = |one: Result<Located, GetError>| Ok(self.grant_located(tenant, one?));
        found.into_iter().map(granted).collect()
    }

    pub(crate) fn exist_keys(
        &self,
        tenant: TenantId,
        keys: &[&[u8]],
    ) -> Vec<Result<bool, GetError>> {
        let now = boottime();
        let mind = self.mind();
        match keys {
            [key] => vec![mind.catalog.exist(now, Name::new(tenant, key))],
            keys => mind.catalog.exist_many(now, tenant, keys),
        }
    }

    pub(crate) fn look_keys(
        &self,
        tenant: TenantId,
        ask: &Look<'_>,
    ) -> Vec<Result<Looked, GetError>> {
        let wish = LookFor { hold: ask.hold, places: ask.places, reads: ask.reads };
        let looked = self.mind().catalog.look(boottime(), tenant, &ask.keys, wish);
        let granted = |one| match one {
            Looked::At(located) => Looked::At(self.grant_located(tenant, located)),
            other => other,
        };
        looked.into_iter().map(|one| one.map(granted)).collect()
    }

    /// Starts removes; what waits for owners is left open in `waiting`.
    pub(crate) fn start_remove(
        &self,
        tenant: TenantId,
        force: bool,
        keys: &[&[u8]],
        waiting: &mut Vec<(usize, ObjectId)>,
    ) -> Vec<Result<(), RemoveError>> {
        let now = boottime();
        let (results, orders) = {
            let mut mind = self.mind();
            let mut results = Vec::with_capacity(keys.len());
            for (index, key) in keys.iter().enumerate() {
                results.push(match mind.catalog.remove(now, Name::new(tenant, key), force) {
                    Ok(Removal::Done) => Ok(()),
                    Ok(Removal::Waiting(object)) => {
                        waiting.push((index, object));
                        Err(RemoveError::Deferred { after_ms: DEFERRED_MS })
                    }
                    Err(error) => Err(error),
                });
            }
            (results, self.sort_orders(&mut mind))
        };
        self.carry_out(&orders);
        results
    }

    /// Looks again at objects that wait for their owners; whether none is left.
    pub(crate) fn check_removed<E>(
        &self,
        waiting: &mut Vec<(usize, ObjectId)>,
        results: &mut [Result<(), E>],
    ) -> bool {
        let mind = self.mind();
        waiting.retain(|&(index, object)| {
            let done = mind.catalog.removed(object);
            if done {
                results[index] = Ok(());
            }
            !done
        });
        waiting.is_empty()
    }

    /// What a client has read without asking. The lock is given back between slices, because a report may
    /// name thousands of objects.
    pub(crate) fn note_reads(&self, tenant: TenantId, marks: &[ReadMark]) -> MarksHeard {
        let now = boottime();
        let pause = self.mind().catalog.report_heard(now);
        let mut outdated = Vec::new();
        for slice in marks.chunks(MARKS_PER_SLICE) {
            self.mind().catalog.note_reads(now, tenant, slice, &mut outdated);
        }
        MarksHeard { pause_ms: pause.as_millis() as u32, outdated }
    }

    /// Sets a quota, and keeps it where the next leader finds it. It holds here at once; whoever set
    /// it hears if it could not be kept.
    pub(crate) fn set_tenant_quota(
        &self,
        tenant: TenantId,
        quota: Option<u64>,
    ) -> Result<(), CallError> {
        self.mind().catalog.set_quota(tenant, quota);
        self.keep().map_err(|error| cannot_keep("the quota", &error))
    }

    /// The cluster in numbers. Tenants show up with their accounts; a caller hears of its own only, unless it
    /// is an admin: see [`crate::handler::Scope`].
    pub(crate) fn cluster_stat(&self) -> ClusterStat {
        let mind = self.mind();
        let counters = mind.catalog.counters();
        // Those that have left are swept later, and are nobody's room until then.
        let segments: Vec<SegmentRow> = mind
            .catalog
            .segments()
            .into_iter()
            .filter(|stat| mind.catalog.mounts(stat.offer.segment, stat.offer.incarnation))
            .map(|stat| SegmentRow {
                offer: stat.offer,
                open: stat.open,
                used_bytes: stat.used,
                quarantined_bytes: stat.ending,
                largest_free_run: stat.largest_run,
                objects: stat.replicas,
            })
            .collect();
        let tenants = mind.catalog.tenants().map(|(id, tenant)| TenantRow {
            tenant: id,
            used_bytes: tenant.used,
            hard_bytes: tenant.hard,
            quota: tenant.quota,
        });
        let tenants = tenants.collect();
        let sum = |field: fn(&SegmentRow) -> u64| segments.iter().map(field).sum();
        ClusterStat {
            epoch: mind.catalog.epoch(),
            leader: self.title.clone(),
            rebuilding: mind.catalog.rebuilding(),
            nodes: mind.catalog.nodes().count() as u32,
            objects: mind.catalog.len() as u64,
            open_puts: mind.catalog.open_puts() as u64,
            capacity_bytes: sum(|row| row.offer.bytes),
            used_bytes: sum(|row| row.used_bytes),
            quarantined_bytes: sum(|row| row.quarantined_bytes),
            largest_free_run: segments.iter().map(|row| row.largest_free_run).max().unwrap_or(0),
            counters,
            index_bytes: mind.catalog.heap_bytes() as u64,
            segments,
            tenants,
            disk_root: self.config.disk_root.clone(),
        }
    }

    /// What a put answers. Items that are not decided had no room before time was over.
    pub(crate) fn planned(
        &self,
        tenant: TenantId,
        results: Vec<Option<Result<WritePlan, PutError>>>,
    ) -> Vec<Result<WritePlan, PutError>> {
        let busy = PutError::Busy { after_ms: OUT_OF_TIME_MS };
        let planned = |result: Option<Result<WritePlan, PutError>>| {
            Ok(self.grant_plan(tenant, result.unwrap_or(Err(busy))?))
        };
        results.into_iter().map(planned).collect()
    }

    /// How long a put may wait for room.
    pub(crate) fn put_deadline(&self, now: Now, deadline: Deadline) -> Deadline {
        deadline.min(now.deadline_in(self.config.put_wait_max))
    }

    /// Takes the catalog's orders: those of other processes into their mail, those of the node in
    /// this process back to the caller, who carries them out when the lock is free.
    pub(crate) fn sort_orders(&self, mind: &mut Mind) -> Vec<Order> {
        if !mind.catalog.has_orders() {
            return Vec::new();
        }
        let local_node = self.local.get().map(|(node, _)| *node);
        let mut local = Vec::new();
        self.sort_copies(mind);
        for (node, order) in mind.catalog.take_orders() {
            if Some(node) == local_node {
                local.push(order);
            } else {
                mind.mail.add_order(node, order);
            }
        }
        local
    }

    /// The node in this process, if it is the one.
    pub(crate) fn local_node(&self, node: NodeId) -> Option<Arc<dyn NodeApi>> {
        let (local, api) = self.local.get()?;
        if *local == node { api.0.upgrade() } else { None }
    }

    /// Lets the node in this process carry out its orders, and the ones that follow from them.
    pub(crate) fn carry_out(&self, orders: &[Order]) {
        if orders.is_empty() {
            return;
        }
        let (_, node) = self.local.get().expect("orders are local only beside a local node");
        let Some(node) = node.0.upgrade() else { return };
        let epoch = self.mind().catalog.epoch();
        let notices = node.execute(epoch, orders);
        self.take_notices(&notices);
    }

    /// Notices of an owner.
    pub(crate) fn take_notices(&self, notices: &[mooncrate_core::plan::Notice]) {
        if notices.is_empty() {
            return;
        }
        let now = boottime();
        let mut mind = self.mind();
        for notice in notices {
            mind.catalog.notice(now, notice);
        }
        drop(mind);
        self.news.publish();
    }
}

/// A key for the tokens of puts that nobody can guess. A cluster with a secret has one for all its leaders;
/// without one it is drawn, and the next leader knows no token of this one.
fn token_key(grants: Option<&GrantKey>) -> TokenKey {
    let draw = || {
        let mut bytes = [0; 8];
        // The kernel has numbers for everybody, once it is up; a master without them would hand out rights
        // that others can guess.
        mooncrate_wire::auth::random(&mut bytes).expect("the kernel gives random numbers");
        u64::from_le_bytes(bytes)
    };
    TokenKey(grants.map_or_else(|| [draw(), draw()], GrantKey::for_put_tokens))
}

#[cfg(test)]
#[path = "service_tests.rs"]
mod tests;
