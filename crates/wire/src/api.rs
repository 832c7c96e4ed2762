//! The two seams: what a master does for others, and what a node does for its master. Over a link
//! or in the same process, a caller sees no difference but the price.
//!
//! Synchronous and blocking, because the client library is. Every call has a deadline and one
//! result per item. Key bytes are checked by the master; a bad key is an error of its item (G11).

use crate::clock::boottime;
use crate::error::{CallError, Refusal};
use crate::message::{
    Announce, ClusterStat, Command, CopyKey, Drain, DropCopy, Evict, Heartbeat, List, Listing,
    Look, MarksHeard, Mount, Mounted, NodeCommand, NodeEntry, OrderBatch, Orders, Pong, Pulse,
    PutEndItem, PutItem, PutReplan, PutRevokeItem, RemoveMatching, Removed, Reply, Request,
    SetQuota, Unmount,
};
use mooncrate_core::catalog::InUse;
use mooncrate_core::copy::{CopyOrder, DrainStat};
use mooncrate_core::error::{CopyError, GetError, MountError, PutError, RemoveError};
use mooncrate_core::ids::LeaderEpoch;
use mooncrate_core::plan::{Located, Looked, Notice, Order, PutConfig, ReadMark, WritePlan};
use mooncrate_core::time::Deadline;
use std::time::Duration;

/// One result per item, or no answer at all.
pub type Batch<T, E> = Result<Vec<Result<T, E>>, CallError>;

/// What a master does for clients and nodes.
pub trait MasterApi: Send + Sync {
    /// Is it there, and who leads?
    fn ping(&self, deadline: Deadline) -> Result<LeaderEpoch, CallError>;

    /// Reserves room for values. When the answer is lost, what was reserved comes back after the
    /// put timeout; until then a repeated call finds its own puts in progress.
    fn put_start(
        &self,
        config: &PutConfig,
        items: &[PutItem<'_>],
        deadline: Deadline,
    ) -> Batch<WritePlan, PutError>;

    /// Makes written values visible.
    fn put_end(&self, items: &[PutEndItem<'_>], deadline: Deadline) -> Batch<(), PutError>;

    /// Gives reserved room back.
    fn put_revoke(&self, items: &[PutRevokeItem<'_>], deadline: Deadline) -> Batch<(), PutError>;

    /// Gives up copies that failed their writer and plans others.
    fn put_replan(
        &self,
        ask: &PutReplan<'_>,
        deadline: Deadline,
    ) -> Result<Result<WritePlan, PutError>, CallError>;

    /// Finds objects, and leases them if `lease_ms` is not 0.
    fn locate(&self, lease_ms: u32, keys: &[&[u8]], deadline: Deadline)
    -> Batch<Located, GetError>;

    /// Tells which keys have a finished object; leases nothing (M12).
    fn exist(&self, keys: &[&[u8]], deadline: Deadline) -> Batch<bool, GetError>;

    /// Tells what is known of keys, and holds what is found if that is asked for.
    fn look(&self, ask: &Look<'_>, deadline: Deadline) -> Batch<Looked, GetError>;

    /// Removes objects. `force` retires leased ones too; their bytes still wait for the leases.
    fn remove(&self, force: bool, keys: &[&[u8]], deadline: Deadline) -> Batch<(), RemoveError>;

    /// Removes what matches: one bounded step.
    fn remove_matching(
        &self,
        ask: &RemoveMatching<'_>,
        deadline: Deadline,
    ) -> Result<Result<Removed, RemoveError>, CallError>;

    /// Sets what a tenant may use.
    fn set_quota(&self, ask: &SetQuota, deadline: Deadline) -> Result<(), CallError>;

    /// Empties the segments of a node, or tells how far that is; `None`: there are none.
    fn drain(&self, ask: &Drain, deadline: Deadline) -> Result<Option<DrainStat>, CallError>;

    /// Evicts from a segment, a bounded step; how it stands then. `None`: it is not there, or on a disk.
    fn evict(&self, ask: &Evict, deadline: Deadline) -> Result<Option<InUse>, CallError>;

    /// Copies or moves an object; answers when that is done, or the deadline is near.
    fn copy(
        &self,
        ask: &CopyKey<'_>,
        deadline: Deadline,
    ) -> Result<Result<(), CopyError>, CallError>;

    /// Ends one copy of an object.
    fn drop_copy(
        &self,
        ask: &DropCopy<'_>,
        deadline: Deadline,
    ) -> Result<Result<(), CopyError>, CallError>;

    /// Tells of reads that asked nobody, at most a batch of marks. It does not wait for the answer where
    /// that would take time: what is returned may answer earlier reports, and a pause of 0 means that
    /// nothing was heard.
    fn tell_reads(&self, marks: &[ReadMark], deadline: Deadline) -> Result<MarksHeard, CallError>;

    /// Sends a command to a node; false: there is no such node.
    fn command(&self, ask: &Command, deadline: Deadline) -> Result<bool, CallError>;

    /// A page of keys.
    fn list(&self, ask: &List<'_>, deadline: Deadline) -> Result<Listing, CallError>;

    /// The cluster in numbers.
    fn stat(&self, deadline: Deadline) -> Result<ClusterStat, CallError>;

    /// Where nodes can be reached.
    fn nodes(&self, deadline: Deadline) -> Result<Vec<NodeEntry>, CallError>;

    /// A node offers segments.
    fn mount(
        &self,
        mount: &Mount,
        deadline: Deadline,
    ) -> Result<Result<Mounted, MountError>, CallError>;

    /// A node tells what is in a segment.
    fn announce(
        &self,
        announce: Announce,
        deadline: Deadline,
    ) -> Result<Result<(), MountError>, CallError>;

    /// A node tells what is in a segment, page after page, each within `time`. Ends with the first
    /// page that is refused.
    fn announce_all(
        &self,
        pages: &mut dyn Iterator<Item = Announce>,
        time: Duration,
    ) -> Result<Result<(), MountError>, CallError> {
        for page in pages {
            let taken = self.announce(page, boottime().deadline_in(time))?;
            if taken.is_err() {
                return Ok(taken);
            }
        }
        Ok(Ok(()))
    }

    /// A node takes segments back.
    fn unmount(
        &self,
        unmount: &Unmount,
        deadline: Deadline,
    ) -> Result<Result<(), MountError>, CallError>;

    /// A node is alive.
    fn heartbeat(
        &self,
        heartbeat: &Heartbeat,
        deadline: Deadline,
    ) -> Result<Result<Pulse, MountError>, CallError>;

    /// A node delivers notices and waits for orders, at most `wait_ms`.
    fn orders(
        &self,
        orders: &Orders,
        deadline: Deadline,
    ) -> Result<Result<OrderBatch, MountError>, CallError>;

    /// Whether it is proved that no process listens at the address of the only master, so that none leads. A
    /// master that leads later has begun later.
    fn nobody_listens(&self) -> bool {
        false
    }
}

/// What a node does for a master in the same process.
pub trait NodeApi: Send + Sync {
    /// Carries out orders of the leader of this epoch; one notice per order that was obeyed. Orders
    /// of an older leader than the node knows give none (G7).
    fn execute(&self, epoch: LeaderEpoch, orders: &[Order]) -> Vec<Notice>;

    /// Takes copies to fetch and commands to carry out, and returns at once: what becomes of them is
    /// told by [`MasterApi::orders`], as always.
    fn take(&self, copies: Vec<CopyOrder>, commands: Vec<NodeCommand>);
}

/// Carries a request into a master: the called side of every method above, in one place. A handler
/// takes what must not block out before it comes here.
pub fn answer(master: &(impl MasterApi + ?Sized), request: Request<'_>, until: Deadline) -> Reply {
    let answered = match request {
        Request::Ping(_) => master.ping(until).map(|epoch| Reply::Ping(Pong { epoch })),
        Request::PutStart(put) => {
            master.put_start(&put.config, &put.items, until).map(Reply::PutStart)
        }
        Request::PutEnd(put) => master.put_end(&put.items, until).map(Reply::PutEnd),
        Request::PutRevoke(put) => master.put_revoke(&put.items, until).map(Reply::PutRevoke),
        Request::Locate(ask) => master.locate(ask.lease_ms, &ask.keys, until).map(Reply::Locate),
        Request::Exist(ask) => master.exist(&ask.keys, until).map(Reply::Exist),
        Request::Look(ask) => master.look(&ask, until).map(Reply::Look),
        Request::Remove(ask) => master.remove(ask.force, &ask.keys, until).map(Reply::Remove),
        Request::List(ask) => master.list(&ask, until).map(Reply::List),
        Request::Stat(_) => master.stat(until).map(Reply::Stat),
        Request::PutReplan(put) => master.put_replan(&put, until).map(Reply::PutReplan),
        Request::RemoveMatching(ask) => {
            master.remove_matching(&ask, until).map(Reply::RemoveMatching)
        }
        Request::SetQuota(ask) => master.set_quota(&ask, until).map(Reply::SetQuota),
        Request::Drain(ask) => master.drain(&ask, until).map(Reply::Drain),
        Request::Evict(ask) => master.evict(&ask, until).map(Reply::Evict),
        Request::Copy(ask) => master.copy(&ask, until).map(Reply::Copy),
        Request::DropCopy(ask) => master.drop_copy(&ask, until).map(Reply::DropCopy),
        Request::Command(ask) => master.command(&ask, until).map(Reply::Command),
        Request::Nodes(_) => master.nodes(until).map(Reply::Nodes),
        Request::Mount(mount) => master.mount(&mount, until).map(Reply::Mount),
        Request::Announce(page) => master.announce(page, until).map(Reply::Announce),
        Request::Unmount(unmount) => master.unmount(&unmount, until).map(Reply::Unmount),
        Request::Heartbeat(beat) => master.heartbeat(&beat, until).map(Reply::Heartbeat),
        Request::Orders(orders) => master.orders(&orders, until).map(Reply::Orders),
        Request::ReadMarks(read) => master.tell_reads(&read.marks, until).map(Reply::ReadMarks),
    };
    answered.unwrap_or_else(|error: CallError| Reply::Refuse(Refusal::from(&error)))
}

impl From<&CallError> for Refusal {
    fn from(error: &CallError) -> Self {
        error.refusal()
    }
}
