//! The master behind a socket, and the master in the same process: the same calls, once as tasks that
//! wait for news, once as threads that do. Every call is made for one tenant: over a socket for the one
//! of the caller's credential, in the same process for the one of the [`Scope`].

use crate::audit;
use crate::service::Master;
use crate::writers::writer;
use mooncrate_core::catalog::{InUse, Writer};
use mooncrate_core::copy::DrainStat;
use mooncrate_core::error::{CopyError, GetError, MountError, PutError, RemoveError};
use mooncrate_core::ids::GroupId;
use mooncrate_core::plan::{Located, Looked, PutConfig, ReadMark, WritePlan};
use mooncrate_core::time::{Deadline, Now};
use mooncrate_core::{LeaderEpoch, ObjectId, TenantId};
use mooncrate_lock::interrupt;
use mooncrate_wire::api::{self, Batch};
use mooncrate_wire::clock::boottime;
use mooncrate_wire::message::{
    Announce, ClusterStat, Command, CopyKey, Drain, DrainWish, DropCopy, Evict, Heartbeat, List,
    Listing, Look, MarksHeard, Mount, Mounted, NodeEntry, OrderBatch, Orders, Pattern, Pulse,
    PutEnd, PutEndItem, PutItem, PutReplan, PutRevokeItem, PutStart, Remove, RemoveMatching,
    Removed, SetQuota, Unmount,
};
use mooncrate_wire::task;
use mooncrate_wire::{
    Answer, CallError, Caller, Handler, Kind, MasterApi, Peer, Refusal, RefusalCode, Reply,
    Request, Role,
};
use std::sync::Arc;
use std::time::Duration;

/// How long the answer to a drain waits for the next heartbeat of its node; a silent one is not waited
/// for.
const HEARD_TIME: Duration = Duration::from_secs(1);

/// A master as the server of control links calls it.
#[derive(Debug)]
pub struct MasterHandler(pub Arc<Master>);

impl Handler for MasterHandler {
    fn epoch(&self) -> LeaderEpoch {
        self.0.leader_epoch()
    }

    fn handle(&self, request: Request<'_>, caller: Caller<'_>) -> Answer {
        audit::admin(caller.peer, &request);
        let kind = request.kind();
        let answer = match request {
            Request::PutStart(put) => self.scope(caller).start_put(&put, caller.deadline),
            Request::PutEnd(put) => self.scope(caller).end_put(&put, caller.deadline),
            Request::Remove(remove) => self.scope(caller).start_remove(&remove, caller.deadline),
            Request::RemoveMatching(ask) => {
                self.scope(caller).start_remove_matching(&ask, caller.deadline)
            }
            Request::List(ask) => self.scope(caller).start_list(&ask, caller.deadline),
            Request::Copy(ask) => self.scope(caller).start_copy(&ask, caller.deadline),
            Request::Orders(orders) => poll(&self.0, &orders),
            Request::Drain(ask) if ask.wish != DrainWish::Look => {
                drain(&self.0, &ask, caller.deadline)
            }
            Request::Announce(told) => self.0.take_in(told),
            // What is kept on a disk or in etcd is waited for elsewhere: this thread answers others.
            Request::Mount(mount) if self.0.keeps() => {
                blocking(self.scope(caller), Request::Mount(mount), caller.deadline)
            }
            Request::Unmount(unmount) if self.0.keeps() => {
                blocking(self.scope(caller), Request::Unmount(unmount), caller.deadline)
            }
            Request::SetQuota(ask) if self.0.keeps() => {
                blocking(self.scope(caller), Request::SetQuota(ask), caller.deadline)
            }
            other => Answer::Now(api::answer(&self.scope(caller), other, caller.deadline)),
        };
        match answer {
            Answer::Now(reply) => {
                self.0.requests.note(kind, caller.arrived);
                Answer::Now(reply)
            }
            Answer::Later(waiting) => {
                let timed = Timed { master: Arc::clone(&self.0), kind, arrived: caller.arrived };
                Answer::Later(Box::pin(async move {
                    let _timed = timed;
                    waiting.await
                }))
            }
        }
    }
}

/// Answers in a thread that may block.
fn blocking(scope: Scope, request: Request<'static>, deadline: Deadline) -> Answer {
    Answer::Later(Box::pin(async move {
        let asked = task::blocking(move || api::answer(&scope, request, deadline));
        asked.await.unwrap_or_else(failed)
    }))
}

/// What a caller hears when the thread that worked for it has failed.
fn failed(error: task::Panicked) -> Reply {
    tracing::error!(%error, "a request in a thread of its own failed");
    Reply::Refuse(Refusal::new(RefusalCode::Internal, "the master failed to answer"))
}

/// What a step of a remove by pattern has done, or why it was refused.
type Matched = Result<Result<Removed, RemoveError>, CallError>;

/// Notes a request that waited when it ends, whether by its reply or because its caller gave up.
struct Timed {
    master: Arc<Master>,
    kind: Kind,
    arrived: Now,
}

impl Drop for Timed {
    fn drop(&mut self) {
        self.master.requests.note(self.kind, self.arrived);
    }
}

impl MasterHandler {
    fn scope(&self, caller: Caller<'_>) -> Scope {
        let Peer { role, tenant, ref name, .. } = *caller.peer;
        let (all, writer) = (role == Role::Admin, writer(name));
        Scope { master: Arc::clone(&self.0), tenant, writer, all }
    }
}

/// A master as one tenant sees it.
#[derive(Clone, Debug)]
pub struct Scope {
    master: Arc<Master>,
    tenant: TenantId,
    /// Who puts, where its end is seen.
    writer: Writer,
    /// Whether the accounts of all tenants are shown.
    all: bool,
}

impl Master {
    /// This master as one tenant sees it.
    pub fn scope(self: &Arc<Self>, tenant: TenantId) -> Arc<Scope> {
        Arc::new(Scope { master: Arc::clone(self), tenant, writer: Writer::UNSEEN, all: true })
    }
}

impl Scope {
    /// The master, whoever asks.
    pub fn master(&self) -> &Arc<Master> {
        &self.master
    }

    /// For whom puts are begun.
    fn puts_for(&self) -> (TenantId, Writer) {
        (self.tenant, self.writer)
    }

    /// Most puts find room at once; the others wait for owners, in a task of their own.
    fn start_put(self, put: &PutStart<'_>, deadline: Deadline) -> Answer {
        let mut results = vec![None; put.items.len()];
        if self.master.try_put_start(self.puts_for(), &put.config, &put.items, &mut results) {
            return Answer::Now(Reply::PutStart(self.master.planned(self.tenant, results)));
        }
        let config = put.config.clone().into_owned();
        let items: Vec<(Box<[u8]>, u64, GroupId)> =
            put.items.iter().map(|item| (item.key.into(), item.len, item.group)).collect();
        Answer::Later(Box::pin(async move {
            let whose = self.puts_for();
            let Self { master, tenant, .. } = self;
            let deadline = master.put_deadline(boottime(), deadline);
            let items: Vec<PutItem<'_>> = items
                .iter()
                .map(|(key, len, group)| PutItem { key, len: *len, group: *group })
                .collect();
            loop {
                let seen = master.news.version();
                let now = boottime();
                let decided = master.try_put_start(whose, &config, &items, &mut results);
                if decided || deadline.passed(now) {
                    return Reply::PutStart(master.planned(tenant, results));
                }
                master.news.wait_async(seen, now, deadline).await;
            }
        }))
    }

    /// Nearly every put ends at once; an upsert waits for the owners of what it replaced.
    fn end_put(self, put: &PutEnd<'_>, deadline: Deadline) -> Answer {
        let mut waiting = Vec::new();
        let mut results = self.master.put_end_items(self.tenant, &put.items, &mut waiting);
        if waiting.is_empty() || self.master.check_removed(&mut waiting, &mut results) {
            return Answer::Now(Reply::PutEnd(results));
        }
        Answer::Later(Box::pin(async move {
            self.wait_removed(&mut waiting, &mut results, deadline).await;
            Reply::PutEnd(results)
        }))
    }

    fn start_remove(self, remove: &Remove<'_>, deadline: Deadline) -> Answer {
        let mut waiting = Vec::new();
        let Self { master, tenant, .. } = &self;
        let mut results = master.start_remove(*tenant, remove.force, &remove.keys, &mut waiting);
        if master.check_removed(&mut waiting, &mut results) {
            return Answer::Now(Reply::Remove(results));
        }
        Answer::Later(Box::pin(async move {
            self.wait_removed(&mut waiting, &mut results, deadline).await;
            Reply::Remove(results)
        }))
    }

    fn start_remove_matching(self, ask: &RemoveMatching<'_>, deadline: Deadline) -> Answer {
        let start = move |scope: &Self, ask: &RemoveMatching<'_>| {
            let mut waiting = Vec::new();
            let (tenant, until) = (scope.tenant, before(deadline));
            let started = scope.master.start_remove_matching(tenant, ask, &mut waiting, until);
            (started, waiting)
        };
        let Pattern::Regex(regex) = ask.pattern else {
            let started = start(&self, ask);
            return Answer::Later(Box::pin(self.finish_remove_matching(started, deadline)));
        };
        let (regex, force, cursor) = (regex.to_owned(), ask.force, ask.cursor);
        Answer::Later(Box::pin(async move {
            let started = self.in_turn(deadline, move |scope| {
                start(scope, &RemoveMatching { pattern: Pattern::Regex(&regex), force, cursor })
            });
            match started.await {
                Ok(started) => self.finish_remove_matching(started, deadline).await,
                Err(refused) => refused,
            }
        }))
    }

    /// Waits for the owners of what a step of a remove has hidden.
    async fn finish_remove_matching(
        self,
        (started, mut waiting): (Matched, Vec<(usize, ObjectId)>),
        deadline: Deadline,
    ) -> Reply {
        let mut done = match started {
            Ok(Ok(done)) => done,
            Ok(Err(error)) => return Reply::RemoveMatching(Err(error)),
            Err(error) => return Reply::Refuse(error.refusal()),
        };
        let mut results: [Result<(), RemoveError>; 1] = [Ok(())];
        self.wait_removed(&mut waiting, &mut results, deadline).await;
        done.deferred = waiting.len() as u64;
        done.removed -= done.deferred;
        Reply::RemoveMatching(Ok(done))
    }

    /// A regular expression may take long for one key, and the thread of a link answers others.
    fn start_list(self, ask: &List<'_>, deadline: Deadline) -> Answer {
        let Pattern::Regex(regex) = ask.pattern else {
            return Answer::Now(api::answer(&self, Request::List(ask.clone()), deadline));
        };
        let (regex, cursor, limit) = (regex.to_owned(), ask.cursor, ask.limit);
        Answer::Later(Box::pin(async move {
            let listed = self.in_turn(deadline, move |scope| {
                let ask = List { pattern: Pattern::Regex(&regex), cursor, limit };
                api::answer(scope, Request::List(ask), deadline)
            });
            listed.await.unwrap_or_else(|refused| refused)
        }))
    }

    /// Works in a thread that may take its time, when it is this caller's turn. One whose turn does not come
    /// in time hears so.
    async fn in_turn<T: Send + 'static>(
        &self,
        deadline: Deadline,
        work: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> Result<T, Reply> {
        let left = before(deadline).left(boottime());
        let turn = self.master.expressions.take(self.tenant);
        let Some(turn) = task::timeout(left, turn).await else {
            let words = "other patterns were at work until the deadline";
            return Err(Reply::Refuse(Refusal::new(RefusalCode::Deadline, words)));
        };
        let scope = self.clone();
        let worked = task::blocking(move || {
            // Given back when the work is done, whether or not somebody still waits for it.
            let _turn = turn;
            work(&scope)
        });
        worked.await.map_err(failed)
    }

    /// A copy is answered when it is there.
    fn start_copy(self, ask: &CopyKey<'_>, deadline: Deadline) -> Answer {
        if let Some(done) = self.master.try_copy(self.tenant, ask) {
            return Answer::Now(Reply::Copy(done));
        }
        let (key, from, to): (Box<[u8]>, _, _) = (ask.key.into(), ask.from, ask.to);
        Answer::Later(Box::pin(async move {
            let ask = CopyKey { key: &key, from, to };
            let deadline = before(deadline);
            loop {
                let seen = self.master.news.version();
                let now = boottime();
                if let Some(done) = self.master.try_copy(self.tenant, &ask) {
                    return Reply::Copy(done);
                }
                if deadline.passed(now) {
                    return Reply::Copy(Err(Master::copy_not_yet()));
                }
                self.master.news.wait_async(seen, now, deadline).await;
            }
        }))
    }

    /// Waits until the owners of hidden objects have answered, or the caller is about to give up: it
    /// shall hear `Deferred`, not nothing.
    async fn wait_removed<E>(
        &self,
        waiting: &mut Vec<(usize, ObjectId)>,
        results: &mut [Result<(), E>],
        deadline: Deadline,
    ) {
        let deadline = before(deadline);
        loop {
            let seen = self.master.news.version();
            let now = boottime();
            if self.master.check_removed(waiting, results) || deadline.passed(now) {
                return;
            }
            self.master.news.wait_async(seen, now, deadline).await;
        }
    }

    /// The same on a thread that may block.
    fn block_removed<E>(
        &self,
        waiting: &mut Vec<(usize, ObjectId)>,
        results: &mut [Result<(), E>],
        deadline: Deadline,
    ) {
        loop {
            let seen = self.master.news.version();
            let now = boottime();
            if self.master.check_removed(waiting, results) || over(deadline, now) {
                return;
            }
            self.master.news.wait(seen, now, deadline);
        }
    }
}

/// A drain is begun or ended at once. The answer comes when its node has heard of it, which then says
/// so to the next master: a drain that was answered for is not forgotten.
fn drain(master: &Arc<Master>, ask: &Drain, deadline: Deadline) -> Answer {
    let began = boottime();
    let Some(stat) = master.drain_node(ask) else { return Answer::Now(Reply::Drain(None)) };
    let (master, node) = (Arc::clone(master), ask.node);
    Answer::Later(Box::pin(async move {
        let deadline = before(deadline).min(began.deadline_in(HEARD_TIME));
        loop {
            let (seen, now) = (master.news.version(), boottime());
            if master.has_heard(node, began) || deadline.passed(now) {
                return Reply::Drain(Some(stat));
            }
            master.news.wait_async(seen, now, deadline).await;
        }
    }))
}

/// A node that asks for orders gets them at once, or as soon as there are some.
fn poll(master: &Arc<Master>, orders: &Orders) -> Answer {
    let first = master.poll_orders(orders.node, &orders.notices, &orders.copied);
    let mut bell = match first {
        Ok((batch, bell)) if is_empty(&batch) && orders.wait_ms > 0 => bell,
        first => return Answer::Now(Reply::Orders(first.map(|(batch, _)| batch))),
    };
    let (master, node, wait_ms) = (Arc::clone(master), orders.node, orders.wait_ms);
    Answer::Later(Box::pin(async move {
        let wait = Duration::from_millis(u64::from(wait_ms));
        let deadline = boottime().deadline_in(wait);
        loop {
            bell.wait_async(deadline.left(boottime())).await;
            match master.poll_orders(node, &[], &[]) {
                Ok((batch, next)) if is_empty(&batch) && !deadline.passed(boottime()) => {
                    bell = next;
                }
                polled => return Reply::Orders(polled.map(|(batch, _)| batch)),
            }
        }
    }))
}

/// Whether a node has nothing to do.
fn is_empty(batch: &OrderBatch) -> bool {
    batch.orders.is_empty() && batch.copies.is_empty() && batch.commands.is_empty()
}

/// A little before `deadline`, so that an answer still arrives in time.
fn before(deadline: Deadline) -> Deadline {
    let left = deadline.left(boottime());
    Deadline(deadline.0.saturating_sub(mooncrate_core::time::nanos(left / 8)))
}

impl MasterApi for Scope {
    fn ping(&self, _deadline: Deadline) -> Result<LeaderEpoch, CallError> {
        Ok(self.master.leader_epoch())
    }

    fn put_start(
        &self,
        config: &PutConfig,
        items: &[PutItem<'_>],
        deadline: Deadline,
    ) -> Batch<WritePlan, PutError> {
        let mut results = vec![None; items.len()];
        let master = &self.master;
        let deadline = master.put_deadline(boottime(), deadline);
        loop {
            let seen = master.news.version();
            let now = boottime();
            let decided = master.try_put_start(self.puts_for(), config, items, &mut results);
            if decided || over(deadline, now) {
                return Ok(master.planned(self.tenant, results));
            }
            master.news.wait(seen, now, deadline);
        }
    }

    fn put_end(&self, items: &[PutEndItem<'_>], deadline: Deadline) -> Batch<(), PutError> {
        let mut waiting = Vec::new();
        let mut results = self.master.put_end_items(self.tenant, items, &mut waiting);
        if !waiting.is_empty() {
            self.block_removed(&mut waiting, &mut results, deadline);
        }
        Ok(results)
    }

    fn put_replan(
        &self,
        ask: &PutReplan<'_>,
        _deadline: Deadline,
    ) -> Result<Result<WritePlan, PutError>, CallError> {
        Ok(self.master.replan(self.tenant, ask))
    }

    fn put_revoke(&self, items: &[PutRevokeItem<'_>], _deadline: Deadline) -> Batch<(), PutError> {
        Ok(self.master.put_revoke_items(self.tenant, items))
    }

    fn locate(
        &self,
        lease_ms: u32,
        keys: &[&[u8]],
        _deadline: Deadline,
    ) -> Batch<Located, GetError> {
        Ok(self.master.locate_keys(self.tenant, lease_ms, keys))
    }

    fn exist(&self, keys: &[&[u8]], _deadline: Deadline) -> Batch<bool, GetError> {
        Ok(self.master.exist_keys(self.tenant, keys))
    }

    fn look(&self, ask: &Look<'_>, _deadline: Deadline) -> Batch<Looked, GetError> {
        Ok(self.master.look_keys(self.tenant, ask))
    }

    fn remove(&self, force: bool, keys: &[&[u8]], deadline: Deadline) -> Batch<(), RemoveError> {
        let mut waiting = Vec::new();
        let mut results = self.master.start_remove(self.tenant, force, keys, &mut waiting);
        self.block_removed(&mut waiting, &mut results, deadline);
        Ok(results)
    }

    fn remove_matching(
        &self,
        ask: &RemoveMatching<'_>,
        deadline: Deadline,
    ) -> Result<Result<Removed, RemoveError>, CallError> {
        let mut waiting = Vec::new();
        let started =
            self.master.start_remove_matching(self.tenant, ask, &mut waiting, deadline)?;
        let Ok(mut done) = started else { return Ok(started) };
        let mut results: [Result<(), RemoveError>; 1] = [Ok(())];
        self.block_removed(&mut waiting, &mut results, deadline);
        done.deferred = waiting.len() as u64;
        done.removed -= done.deferred;
        Ok(Ok(done))
    }

    fn set_quota(&self, ask: &SetQuota, _deadline: Deadline) -> Result<(), CallError> {
        self.master.set_tenant_quota(ask.tenant, ask.quota)
    }

    fn drain(&self, ask: &Drain, _deadline: Deadline) -> Result<Option<DrainStat>, CallError> {
        Ok(self.master.drain_node(ask))
    }

    fn evict(&self, ask: &Evict, _deadline: Deadline) -> Result<Option<InUse>, CallError> {
        Ok(self.master.evict_below(ask))
    }

    fn copy(
        &self,
        ask: &CopyKey<'_>,
        deadline: Deadline,
    ) -> Result<Result<(), CopyError>, CallError> {
        loop {
            let seen = self.master.news.version();
            let now = boottime();
            if let Some(done) = self.master.try_copy(self.tenant, ask) {
                return Ok(done);
            }
            if over(deadline, now) {
                return Ok(Err(Master::copy_not_yet()));
            }
            self.master.news.wait(seen, now, deadline);
        }
    }

    fn drop_copy(
        &self,
        ask: &DropCopy<'_>,
        _deadline: Deadline,
    ) -> Result<Result<(), CopyError>, CallError> {
        Ok(self.master.drop_copy(self.tenant, ask))
    }

    fn tell_reads(&self, marks: &[ReadMark], _deadline: Deadline) -> Result<MarksHeard, CallError> {
        Ok(self.master.note_reads(self.tenant, marks))
    }

    fn command(&self, ask: &Command, _deadline: Deadline) -> Result<bool, CallError> {
        Ok(self.master.command_node(ask))
    }

    fn list(&self, ask: &List<'_>, deadline: Deadline) -> Result<Listing, CallError> {
        self.master.list_page(self.tenant, ask, before(deadline))
    }

    fn stat(&self, _deadline: Deadline) -> Result<ClusterStat, CallError> {
        let mut stat = self.master.cluster_stat();
        if !self.all {
            stat.tenants.retain(|row| row.tenant == self.tenant);
        }
        Ok(stat)
    }

    fn nodes(&self, _deadline: Deadline) -> Result<Vec<NodeEntry>, CallError> {
        Ok(self.master.node_entries())
    }

    fn mount(
        &self,
        mount: &Mount,
        _deadline: Deadline,
    ) -> Result<Result<Mounted, MountError>, CallError> {
        self.master.rise_above(mount.info.node, mount.seen)?;
        let mounted = self.master.mount_node(mount);
        self.master.keep_mount(mount.info.node)?;
        Ok(mounted)
    }

    fn announce(
        &self,
        announce: Announce,
        _deadline: Deadline,
    ) -> Result<Result<(), MountError>, CallError> {
        let taken = self.master.announce_page(&announce);
        if taken.is_err() || !announce.last {
            return Ok(taken);
        }
        Ok(self.master.open_segment(announce.segment, announce.incarnation))
    }

    fn unmount(
        &self,
        unmount: &Unmount,
        _deadline: Deadline,
    ) -> Result<Result<(), MountError>, CallError> {
        self.master.unmount_segments(unmount.node, &unmount.segments);
        Ok(Ok(()))
    }

    fn heartbeat(
        &self,
        heartbeat: &Heartbeat,
        _deadline: Deadline,
    ) -> Result<Result<Pulse, MountError>, CallError> {
        Ok(self.master.hear(heartbeat))
    }

    fn orders(
        &self,
        orders: &Orders,
        deadline: Deadline,
    ) -> Result<Result<OrderBatch, MountError>, CallError> {
        let wait = Duration::from_millis(u64::from(orders.wait_ms));
        let deadline = deadline.min(boottime().deadline_in(wait));
        let (mut notices, mut copied) = (&orders.notices[..], &orders.copied[..]);
        loop {
            let polled = self.master.poll_orders(orders.node, notices, copied);
            (notices, copied) = (&[], &[]);
            let now = boottime();
            match polled {
                Ok((batch, bell)) if is_empty(&batch) && !deadline.passed(now) => {
                    bell.wait(deadline.left(now));
                }
                polled => return Ok(polled.map(|(batch, _)| batch)),
            }
        }
    }
}

/// Whether a caller in this process waits no longer: its time is over, or it was interrupted.
fn over(deadline: Deadline, now: Now) -> bool {
    deadline.passed(now) || interrupt::ask_at(now.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::tests::master;

    /// The owner of the value never says that it is gone: the caller would wait for an hour.
    #[test]
    fn a_caller_in_this_process_that_is_interrupted_waits_no_longer() {
        let scope = master(&[b"a"]).scope(TenantId::DEFAULT);
        let deadline = boottime().deadline_in(Duration::from_hours(1));
        let (removed, over) =
            interrupt::under(|_| true, || scope.remove(false, &[b"a"], deadline).unwrap());
        assert!(over);
        assert!(matches!(removed[..], [Err(RemoveError::Deferred { .. })]), "{removed:?}");
    }

    /// The story: a caller whose turn did not come waited for ever, whatever its deadline was.
    #[test]
    fn security_who_gets_no_turn_hears_so_by_its_deadline() {
        let master = master(&[b"a"]);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let ask = List { pattern: Pattern::Regex("a"), cursor: 0, limit: 10 };
        let list = |time| {
            let deadline = boottime().deadline_in(time);
            let scope = Scope::clone(&master.scope(TenantId::DEFAULT));
            let Answer::Later(reply) = scope.start_list(&ask, deadline) else { panic!() };
            let minute = Duration::from_mins(1);
            runtime.block_on(async { tokio::time::timeout(minute, reply).await.unwrap() })
        };
        let turn = runtime.block_on(master.expressions.take(TenantId::DEFAULT));
        let refused = list(Duration::from_millis(1));
        assert!(matches!(&refused, Reply::Refuse(why) if why.code == RefusalCode::Deadline));
        drop(turn);
        let listed = list(Duration::from_mins(10));
        assert!(matches!(listed, Reply::List(page) if page.entries.len() == 1));
    }
}
