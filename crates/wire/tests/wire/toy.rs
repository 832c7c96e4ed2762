//! A toy master behind a real server on a thread of its own: enough behaviour to see what arrives.

use mooncrate_core::catalog::{Counters, InUse};
use mooncrate_core::copy::DrainStat;
use mooncrate_core::error::{CopyError, GetError, MountError, PutError, RemoveError};
use mooncrate_core::ids::*;
use mooncrate_core::key::{self, Key};
use mooncrate_core::plan::*;
use mooncrate_core::seal::Seal;
use mooncrate_core::time::{Deadline, Now};
use mooncrate_wire::address::Bound;
use mooncrate_wire::api::{Batch, answer};
use mooncrate_wire::clock::boottime;
use mooncrate_wire::message::*;
use mooncrate_wire::server::Peer;
use mooncrate_wire::{
    Address, Answer, CallError, Caller, Handler, Link, LinkConfig, LinkKind, LinkPool, MasterApi,
    MasterLink, PoolConfig, ServerConfig, serve_control,
};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::watch;

pub(crate) const EPOCH: LeaderEpoch = LeaderEpoch(7);
/// A node id that makes `orders` wait for ever.
pub(crate) const SILENT: NodeId = NodeId(0xdead);
/// A node id that makes the handler of `orders` panic while it waits.
pub(crate) const CURSED: NodeId = NodeId(0x666);
/// A segment whose announcement is refused.
pub(crate) const UNWANTED: SegmentId = SegmentId(0xbad);
/// A prefix that makes `list` block its whole worker thread for a second.
pub(crate) const STALL: &[u8] = b"stall";
/// A prefix that makes `list` panic.
pub(crate) const DOOM: &[u8] = b"doom";
/// A prefix that makes `list` answer more than a frame can hold.
pub(crate) const HUGE: &[u8] = b"huge";

#[derive(Debug, Default)]
pub(crate) struct Toy {
    /// Sizes of the batches that arrived.
    pub(crate) batches: Mutex<Vec<usize>>,
    pub(crate) announced: Mutex<Vec<(usize, bool)>>,
    pub(crate) waiting: Arc<AtomicUsize>,
    pub(crate) waiting_most: Arc<AtomicUsize>,
    pub(crate) gone: AtomicUsize,
}

impl Toy {
    fn saw(&self, count: usize) {
        self.batches.lock().unwrap().push(count);
    }
}

/// The deadline `ms` from now.
pub(crate) fn within(ms: u64) -> Deadline {
    boottime().deadline_in(Duration::from_millis(ms))
}

pub(crate) fn since(start: Now) -> Duration {
    boottime().since(start)
}

pub(crate) fn offer() -> SegmentOffer {
    SegmentOffer {
        segment: SegmentId(1),
        incarnation: Incarnation(1),
        node: NodeId(1),
        medium: Medium::Dram,
        bytes: 1 << 20,
        slots: 100,
        host: HostId(1),
        zone: ZoneId(1),
        tenant: None,
        evidence: Evidence::default(),
    }
}

pub(crate) fn info() -> NodeInfo {
    NodeInfo {
        node: NodeId(1),
        name: "node-1".to_owned(),
        tcp: "127.0.0.1:1".to_owned(),
        unix: String::new(),
        host: HostId(1),
        zone: ZoneId(1),
    }
}

pub(crate) fn locator() -> Locator {
    Locator {
        segment: SegmentId(1),
        incarnation: Incarnation(1),
        slot: Slot(3),
        generation: Generation(4),
        extent: mooncrate_core::extent::Extent::new(64, 128).unwrap(),
        stripe: 0,
        grant: None,
    }
}

impl MasterApi for Toy {
    fn ping(&self, _: Deadline) -> Result<LeaderEpoch, CallError> {
        Ok(EPOCH)
    }

    fn put_start(
        &self,
        config: &PutConfig,
        items: &[PutItem<'_>],
        _: Deadline,
    ) -> Batch<WritePlan, PutError> {
        self.saw(items.len());
        let plan = |item: &PutItem<'_>| {
            key::check(item.key)?;
            Ok(WritePlan {
                object: ObjectId { epoch: EPOCH, sequence: item.len },
                token: PutToken(item.len + 1),
                epoch: EPOCH,
                striping: Striping::whole(item.len),
                replicas: vec![locator(); config.replicas.into()],
            })
        };
        Ok(items.iter().map(plan).collect())
    }

    fn put_end(&self, items: &[PutEndItem<'_>], _: Deadline) -> Batch<(), PutError> {
        let end = |item: &PutEndItem<'_>| {
            if item.token == PutToken(0) { Err(PutError::NoSuchPut) } else { Ok(()) }
        };
        Ok(items.iter().map(end).collect())
    }

    fn put_replan(
        &self,
        ask: &PutReplan<'_>,
        _: Deadline,
    ) -> Result<Result<WritePlan, PutError>, CallError> {
        Ok(Ok(WritePlan {
            object: ObjectId { epoch: EPOCH, sequence: 1 },
            token: ask.token,
            epoch: EPOCH,
            striping: Striping::whole(1),
            replicas: vec![locator(); ask.failed.len()],
        }))
    }

    fn remove_matching(
        &self,
        ask: &RemoveMatching<'_>,
        _: Deadline,
    ) -> Result<Result<Removed, RemoveError>, CallError> {
        let next = (ask.cursor == 0).then_some(7);
        Ok(Ok(Removed { removed: 3, deferred: 0, leased: u64::from(ask.force), next }))
    }

    fn set_quota(&self, ask: &SetQuota, _: Deadline) -> Result<(), CallError> {
        assert_eq!(ask.tenant, TenantId(9));
        Ok(())
    }

    fn drain(&self, ask: &Drain, _: Deadline) -> Result<Option<DrainStat>, CallError> {
        let left_bytes = ask.node.0;
        Ok((ask.wish == DrainWish::Look)
            .then_some(DrainStat { left_bytes, ..DrainStat::default() }))
    }

    fn evict(&self, ask: &Evict, _: Deadline) -> Result<Option<InUse>, CallError> {
        let used_bytes = ask.used_max.min(7);
        Ok((ask.segment == SegmentId(2)).then_some(InUse { used_bytes, ending_bytes: 1 }))
    }

    fn copy(&self, ask: &CopyKey<'_>, _: Deadline) -> Result<Result<(), CopyError>, CallError> {
        Ok(if ask.from.is_some() { Err(CopyError::NoSource) } else { Ok(()) })
    }

    fn tell_reads(&self, marks: &[ReadMark], _: Deadline) -> Result<MarksHeard, CallError> {
        self.saw(marks.len());
        let outdated = marks.iter().filter(|mark| mark.copies > 1).copied().collect();
        Ok(MarksHeard { pause_ms: 10, outdated })
    }

    fn command(&self, ask: &Command, _: Deadline) -> Result<bool, CallError> {
        Ok(ask.node == NodeId(1))
    }

    fn put_revoke(&self, items: &[PutRevokeItem<'_>], _: Deadline) -> Batch<(), PutError> {
        Ok(items.iter().map(|_| Ok(())).collect())
    }

    fn locate(&self, lease_ms: u32, keys: &[&[u8]], _: Deadline) -> Batch<Located, GetError> {
        self.saw(keys.len());
        let find = |key: &&[u8]| {
            if key.starts_with(b"no") {
                return Err(GetError::NotFound);
            }
            let object = ObjectId { epoch: EPOCH, sequence: 1 };
            let len = key.len() as u64;
            Ok(Located {
                object,
                striping: Striping::whole(len),
                seal: Seal(5),
                more_seals: Vec::new(),
                lease_ms,
                replicas: vec![locator()],
            })
        };
        Ok(keys.iter().map(find).collect())
    }

    fn exist(&self, keys: &[&[u8]], _: Deadline) -> Batch<bool, GetError> {
        self.saw(keys.len());
        Ok(keys.iter().map(|key| Ok(key.starts_with(b"yes"))).collect())
    }

    fn look(&self, ask: &Look<'_>, _: Deadline) -> Batch<Looked, GetError> {
        self.saw(ask.keys.len());
        let look = |key: &&[u8]| {
            Ok(match (ask.hold, ask.places) {
                (false, false) => Looked::Missing,
                (false, true) => Looked::Writing,
                _ => Looked::Here { len: key.len() as u64, group: GroupId(3) },
            })
        };
        Ok(ask.keys.iter().map(look).collect())
    }

    fn drop_copy(
        &self,
        ask: &DropCopy<'_>,
        _: Deadline,
    ) -> Result<Result<(), CopyError>, CallError> {
        Ok(if ask.segment == SegmentId(1) { Ok(()) } else { Err(CopyError::NoSource) })
    }

    fn remove(&self, force: bool, keys: &[&[u8]], _: Deadline) -> Batch<(), RemoveError> {
        let remove = |_: &&[u8]| {
            if force { Ok(()) } else { Err(RemoveError::Leased { left_ms: 9 }) }
        };
        Ok(keys.iter().map(remove).collect())
    }

    fn list(&self, ask: &List<'_>, _: Deadline) -> Result<Listing, CallError> {
        if ask.pattern == Pattern::Prefix(STALL) {
            std::thread::sleep(Duration::from_secs(1));
        }
        assert!(ask.pattern != Pattern::Prefix(DOOM), "doomed, as the test wants it");
        let key = Key::new([9; 8192]).unwrap();
        let entry = Listed { key, len: 1, object: ObjectId::default(), replicas: 1 };
        let count = if ask.pattern == Pattern::Prefix(HUGE) { 2000 } else { ask.limit as usize };
        Ok(Listing { entries: vec![entry; count], next: Some(ask.cursor + 1) })
    }

    fn stat(&self, _: Deadline) -> Result<ClusterStat, CallError> {
        let row = SegmentRow {
            offer: offer(),
            open: true,
            used_bytes: 1,
            quarantined_bytes: 2,
            largest_free_run: 3,
            objects: 4,
        };
        Ok(ClusterStat {
            epoch: EPOCH,
            leader: String::new(),
            rebuilding: false,
            nodes: 1,
            objects: 4,
            open_puts: 0,
            capacity_bytes: 1 << 20,
            used_bytes: 1,
            quarantined_bytes: 2,
            largest_free_run: 3,
            counters: Counters::default(),
            index_bytes: 100,
            // More than a batch: rows have a limit of their own.
            segments: vec![row; 5000],
            tenants: Vec::new(),
            disk_root: String::new(),
        })
    }

    fn nodes(&self, _: Deadline) -> Result<Vec<NodeEntry>, CallError> {
        Ok(vec![NodeEntry { info: info(), segments: vec![(SegmentId(1), Incarnation(1))] }])
    }

    fn mount(&self, mount: &Mount, _: Deadline) -> Result<Result<Mounted, MountError>, CallError> {
        if mount.offers.is_empty() {
            return Ok(Err(MountError::BadOffer { bytes: 0, slots: 0 }));
        }
        Ok(Ok(Mounted { epoch: EPOCH, registration_ms: 20_000, fence_ms: 0 }))
    }

    fn announce(
        &self,
        announce: Announce,
        _: Deadline,
    ) -> Result<Result<(), MountError>, CallError> {
        if announce.segment == UNWANTED {
            return Ok(Err(MountError::StaleIncarnation { last: Incarnation(7), over: true }));
        }
        self.announced.lock().unwrap().push((announce.page.len(), announce.last));
        Ok(Ok(()))
    }

    fn unmount(&self, _: &Unmount, _: Deadline) -> Result<Result<(), MountError>, CallError> {
        Ok(Err(MountError::UnknownNode))
    }

    fn heartbeat(
        &self,
        heartbeat: &Heartbeat,
        _: Deadline,
    ) -> Result<Result<Pulse, MountError>, CallError> {
        Ok(match heartbeat.node {
            NodeId(1) => Ok(Pulse {
                epoch: EPOCH,
                registration_ms: 20_000,
                draining: Vec::new(),
                serve_ms: 2_500,
            }),
            _ => Err(MountError::UnknownNode),
        })
    }

    fn orders(&self, _: &Orders, _: Deadline) -> Result<Result<OrderBatch, MountError>, CallError> {
        unreachable!("the handler answers orders later")
    }
}

impl Handler for Toy {
    fn epoch(&self) -> LeaderEpoch {
        EPOCH
    }

    fn handle(&self, request: Request<'_>, caller: Caller<'_>) -> Answer {
        let Request::Orders(orders) = request else {
            return Answer::Now(answer(self, request, caller.deadline));
        };
        let (waiting, most) = (self.waiting.clone(), self.waiting_most.clone());
        Answer::Later(Box::pin(async move {
            let now = waiting.fetch_add(1, Ordering::SeqCst) + 1;
            most.fetch_max(now, Ordering::SeqCst);
            match orders.node {
                SILENT => std::future::pending().await,
                CURSED => panic!("cursed, as the test wants it"),
                _ => tokio::time::sleep(Duration::from_millis(orders.wait_ms.into())).await,
            }
            waiting.fetch_sub(1, Ordering::SeqCst);
            let order = Order {
                segment: SegmentId(1),
                incarnation: Incarnation(1),
                slot: Slot(1),
                generation: Generation(1),
                action: Action::Retire { free_after_ms: orders.wait_ms },
            };
            Reply::Orders(Ok(OrderBatch {
                epoch: EPOCH,
                orders: vec![order],
                copies: Vec::new(),
                commands: Vec::new(),
            }))
        }))
    }

    fn gone(&self, _: &Peer) {
        self.gone.fetch_add(1, Ordering::SeqCst);
    }
}

/// A server on a thread; it ends when it is dropped.
pub(crate) struct Server {
    pub(crate) address: Address,
    pub(crate) toy: Arc<Toy>,
    pub(crate) stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::start_with("127.0.0.1:0", ServerConfig::default())
    }

    pub(crate) fn start_with(address: &str, config: ServerConfig) -> Self {
        let bound = Bound::listen(&address.parse().unwrap()).unwrap();
        let address = bound.address().unwrap();
        let toy = Arc::new(Toy::default());
        let (stop, stopped) = watch::channel(false);
        let handler = toy.clone();
        let work = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let serve = serve_control(bound, handler, Arc::new(config), stopped);
            runtime.unwrap().block_on(async { serve.await.unwrap() });
        };
        let thread = std::thread::Builder::new().name("toy".to_owned()).spawn(work).unwrap();
        Self { address, toy, stop, thread: Some(thread) }
    }

    pub(crate) fn link(&self) -> Link {
        Link::connect(&self.address, &hello(), &LinkConfig::default(), within(2000)).unwrap()
    }

    pub(crate) fn pool(&self, config: PoolConfig) -> LinkPool {
        LinkPool::new(self.address.clone(), hello(), config)
    }

    pub(crate) fn master(&self) -> MasterLink {
        MasterLink::new(self.pool(PoolConfig::default()))
    }

    /// Stops and waits until the last connection has left.
    pub(crate) fn end(&mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

pub(crate) fn hello() -> Hello {
    Hello::new(Role::Client, LinkKind::Control, "test")
}

pub(crate) fn orders(node: NodeId, wait_ms: u32) -> Request<'static> {
    Request::Orders(Orders { node, notices: Vec::new(), copied: Vec::new(), wait_ms })
}
