//! The master behind a socket, and the master in the same process: the same calls, once as tasks that
//! wait for news, once as threads that do.

use crate::service::Master;
use mooncrate_core::LeaderEpoch;
use mooncrate_core::error::{GetError, MountError, PutError, RemoveError};
use mooncrate_core::plan::{Located, PutConfig, WritePlan};
use mooncrate_core::time::Deadline;
use mooncrate_wire::api::{self, Batch};
use mooncrate_wire::clock::boottime;
use mooncrate_wire::message::{
    Announce, ClusterStat, Heartbeat, List, Listing, Mount, Mounted, NodeEntry, OrderBatch, Orders,
    Pulse, PutEndItem, PutItem, PutRevokeItem, PutStart, Remove, Unmount,
};
use mooncrate_wire::{Answer, CallError, Caller, Handler, MasterApi, Reply, Request};
use std::sync::Arc;
use std::time::Duration;

/// A master as the server of control links calls it.
#[derive(Debug)]
pub struct MasterHandler(pub Arc<Master>);

impl Handler for MasterHandler {
    fn epoch(&self) -> LeaderEpoch {
        self.0.leader_epoch()
    }

    fn handle(&self, request: Request<'_>, caller: Caller<'_>) -> Answer {
        match request {
            Request::PutStart(put) => put_start(&self.0, &put, caller.deadline),
            Request::Remove(remove) => start_remove(&self.0, &remove, caller.deadline),
            Request::Orders(orders) => poll(&self.0, &orders),
            Request::Announce(told) if told.last => last_page(&self.0, &told),
            other => Answer::Now(api::answer(&*self.0, other, caller.deadline)),
        }
    }
}

/// Most puts find room at once; the others wait for owners, in a task of their own.
fn put_start(master: &Arc<Master>, put: &PutStart<'_>, deadline: Deadline) -> Answer {
    let mut results = vec![None; put.items.len()];
    if master.try_put_start(&put.config, &put.items, &mut results) {
        return Answer::Now(Reply::PutStart(Master::out_of_time(results)));
    }
    let master = Arc::clone(master);
    let config = put.config.clone().into_owned();
    let items: Vec<(Box<[u8]>, u64)> =
        put.items.iter().map(|item| (item.key.into(), item.len)).collect();
    Answer::Later(Box::pin(async move {
        let deadline = master.put_deadline(boottime(), deadline);
        let items: Vec<PutItem<'_>> =
            items.iter().map(|(key, len)| PutItem { key, len: *len }).collect();
        loop {
            let seen = master.news.version();
            let now = boottime();
            if master.try_put_start(&config, &items, &mut results) || deadline.passed(now) {
                return Reply::PutStart(Master::out_of_time(results));
            }
            master.news.wait_async(seen, now, deadline).await;
        }
    }))
}

fn start_remove(master: &Arc<Master>, remove: &Remove<'_>, deadline: Deadline) -> Answer {
    let mut waiting = Vec::new();
    let mut results = master.start_remove(remove.force, &remove.keys, &mut waiting);
    if master.check_removed(&remove.keys, &mut waiting, &mut results) {
        return Answer::Now(Reply::Remove(results));
    }
    let master = Arc::clone(master);
    let keys: Vec<Box<[u8]>> = remove.keys.iter().map(|key| (*key).into()).collect();
    Answer::Later(Box::pin(async move {
        // Answered a little before the caller gives up: it shall hear `Deferred`, not nothing.
        let deadline = before(deadline);
        let keys: Vec<&[u8]> = keys.iter().map(|key| &**key).collect();
        loop {
            let seen = master.news.version();
            let now = boottime();
            if master.check_removed(&keys, &mut waiting, &mut results) || deadline.passed(now) {
                return Reply::Remove(results);
            }
            master.news.wait_async(seen, now, deadline).await;
        }
    }))
}

/// Opening a segment takes long if it holds much: a thread of its own does it, and the worker goes on.
fn last_page(master: &Arc<Master>, told: &Announce) -> Answer {
    if let Err(error) = master.announce_page(told) {
        return Answer::Now(Reply::Announce(Err(error)));
    }
    let (master, segment, incarnation) = (Arc::clone(master), told.segment, told.incarnation);
    Answer::Later(Box::pin(async move {
        let opening =
            tokio::task::spawn_blocking(move || master.open_segment(segment, incarnation));
        // Told again, it will be tried again.
        Reply::Announce(opening.await.unwrap_or(Err(MountError::UnknownNode)))
    }))
}

/// A node that asks for orders gets them at once, or as soon as there are some.
fn poll(master: &Arc<Master>, orders: &Orders) -> Answer {
    let first = master.poll_orders(orders.node, &orders.notices);
    let full = |batch: &Result<OrderBatch, MountError>| {
        batch.as_ref().map_or(true, |batch| !batch.orders.is_empty())
    };
    if full(&first) || orders.wait_ms == 0 {
        return Answer::Now(Reply::Orders(first));
    }
    let (master, node, wait_ms) = (Arc::clone(master), orders.node, orders.wait_ms);
    Answer::Later(Box::pin(async move {
        let wait = Duration::from_millis(u64::from(wait_ms));
        let deadline = boottime().deadline_in(wait);
        loop {
            let seen = master.news.version();
            let now = boottime();
            let batch = master.poll_orders(node, &[]);
            if full(&batch) || deadline.passed(now) {
                return Reply::Orders(batch);
            }
            master.news.wait_async(seen, now, deadline).await;
        }
    }))
}

/// A little before `deadline`, so that an answer still arrives in time.
fn before(deadline: Deadline) -> Deadline {
    let left = deadline.left(boottime());
    Deadline(deadline.0.saturating_sub(mooncrate_core::time::nanos(left / 8)))
}

impl MasterApi for Master {
    fn ping(&self, _deadline: Deadline) -> Result<LeaderEpoch, CallError> {
        Ok(self.leader_epoch())
    }

    fn put_start(
        &self,
        config: &PutConfig,
        items: &[PutItem<'_>],
        deadline: Deadline,
    ) -> Batch<WritePlan, PutError> {
        let mut results = vec![None; items.len()];
        let deadline = self.put_deadline(boottime(), deadline);
        loop {
            let seen = self.news.version();
            let now = boottime();
            if self.try_put_start(config, items, &mut results) || deadline.passed(now) {
                return Ok(Self::out_of_time(results));
            }
            self.news.wait(seen, now, deadline);
        }
    }

    fn put_end(&self, items: &[PutEndItem<'_>], _deadline: Deadline) -> Batch<(), PutError> {
        Ok(self.put_end_items(items))
    }

    fn put_revoke(&self, items: &[PutRevokeItem<'_>], _deadline: Deadline) -> Batch<(), PutError> {
        Ok(self.put_revoke_items(items))
    }

    fn locate(
        &self,
        lease_ms: u32,
        keys: &[&[u8]],
        _deadline: Deadline,
    ) -> Batch<Located, GetError> {
        Ok(self.locate_keys(lease_ms, keys))
    }

    fn exist(&self, keys: &[&[u8]], _deadline: Deadline) -> Batch<bool, GetError> {
        Ok(self.exist_keys(keys))
    }

    fn remove(&self, force: bool, keys: &[&[u8]], deadline: Deadline) -> Batch<(), RemoveError> {
        let mut waiting = Vec::new();
        let mut results = self.start_remove(force, keys, &mut waiting);
        loop {
            let seen = self.news.version();
            let now = boottime();
            if self.check_removed(keys, &mut waiting, &mut results) || deadline.passed(now) {
                return Ok(results);
            }
            self.news.wait(seen, now, deadline);
        }
    }

    fn list(&self, ask: &List<'_>, _deadline: Deadline) -> Result<Listing, CallError> {
        Ok(self.list_page(ask.prefix, ask.cursor, ask.limit))
    }

    fn stat(&self, _deadline: Deadline) -> Result<ClusterStat, CallError> {
        Ok(self.cluster_stat())
    }

    fn nodes(&self, _deadline: Deadline) -> Result<Vec<NodeEntry>, CallError> {
        Ok(self.node_entries())
    }

    fn mount(
        &self,
        mount: &Mount,
        _deadline: Deadline,
    ) -> Result<Result<Mounted, MountError>, CallError> {
        Ok(self.mount_node(mount))
    }

    fn announce(
        &self,
        announce: Announce,
        _deadline: Deadline,
    ) -> Result<Result<(), MountError>, CallError> {
        let taken = self.announce_page(&announce);
        if taken.is_err() || !announce.last {
            return Ok(taken);
        }
        Ok(self.open_segment(announce.segment, announce.incarnation))
    }

    fn unmount(
        &self,
        unmount: &Unmount,
        _deadline: Deadline,
    ) -> Result<Result<(), MountError>, CallError> {
        self.unmount_segments(unmount.node, &unmount.segments);
        Ok(Ok(()))
    }

    fn heartbeat(
        &self,
        heartbeat: &Heartbeat,
        _deadline: Deadline,
    ) -> Result<Result<Pulse, MountError>, CallError> {
        Ok(self.hear(heartbeat.node))
    }

    fn orders(
        &self,
        orders: &Orders,
        deadline: Deadline,
    ) -> Result<Result<OrderBatch, MountError>, CallError> {
        let wait = Duration::from_millis(u64::from(orders.wait_ms));
        let deadline = deadline.min(boottime().deadline_in(wait));
        let mut notices = &orders.notices[..];
        loop {
            let seen = self.news.version();
            let now = boottime();
            let batch = self.poll_orders(orders.node, notices);
            notices = &[];
            match &batch {
                Ok(found) if found.orders.is_empty() && !deadline.passed(now) => {
                    self.news.wait(seen, now, deadline);
                }
                _ => return Ok(batch),
            }
        }
    }
}
