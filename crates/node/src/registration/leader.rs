//! A leader for tests: the real catalog behind [`MasterApi`], which notes what it hears and when. Links break and
//! other leaders come where a test says.

use mooncrate_core::catalog::{Catalog, Config, InUse, Start};
use mooncrate_core::copy::DrainStat;
use mooncrate_core::error::{CopyError, GetError, MountError, PutError, RemoveError};
use mooncrate_core::plan::{Located, Looked, PutConfig, ReadMark, SegmentOffer, WritePlan};
use mooncrate_core::time::Deadline;
use mooncrate_core::{Incarnation, LeaderEpoch, NodeId, SegmentId};
use mooncrate_lock::Mutex;
use mooncrate_mem::clock::boottime;
use mooncrate_transfer::Segments;
use mooncrate_wire::api::Batch;
use mooncrate_wire::message::{
    Announce, ClusterStat, Command, CopyKey, Drain, DropCopy, Evict, Heartbeat, List, Listing,
    Look, MarksHeard, Mount, Mounted, NodeEntry, OrderBatch, Orders, Pulse, PutEndItem, PutItem,
    PutReplan, PutRevokeItem, RemoveMatching, Removed, SetQuota, Unmount,
};
use mooncrate_wire::{CallError, MasterApi};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// What a leader heard since it took office.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Beat,
    Page {
        segment: SegmentId,
        /// Slots with something in them.
        records: u32,
        /// What the node served at that time.
        served: Vec<SegmentId>,
    },
}

/// What happens in place of a page.
enum Fault {
    Break,
    Succeed(LeaderEpoch, NodeId),
}

/// What a test does in the middle of an exchange.
type Meanwhile = Box<dyn FnOnce() + Send>;

pub(super) struct Leader {
    catalog: Mutex<Catalog>,
    events: Mutex<Vec<Event>>,
    offers: Mutex<Vec<SegmentOffer>>,
    /// At which page.
    fault: Mutex<Option<(usize, Fault)>>,
    watched: OnceLock<Arc<Segments>>,
    /// Whether heartbeats are heard and give no leave to serve, as while something is to be dropped.
    withholds: AtomicBool,
    /// What heartbeats are answered with instead.
    refuses: Mutex<Option<MountError>>,
    /// Unmounts that were heard; `None`: none is.
    unmounts: Mutex<Option<Vec<(SegmentId, Incarnation)>>>,
    /// Done when the next heartbeat or mount is on its way.
    on_the_way: Mutex<Option<Meanwhile>>,
}

impl Leader {
    pub(super) fn new(epoch: LeaderEpoch, start: Start) -> Self {
        Self {
            catalog: Mutex::new(Catalog::new(Config::default(), epoch, start, boottime())),
            events: Mutex::default(),
            offers: Mutex::default(),
            fault: Mutex::default(),
            watched: OnceLock::new(),
            withholds: AtomicBool::new(false),
            refuses: Mutex::default(),
            unmounts: Mutex::default(),
            on_the_way: Mutex::default(),
        }
    }

    /// Gives a node up, as after a long silence.
    pub(super) fn forget(&self, node: NodeId) {
        let mut now = boottime();
        let end = now.plus(Config::default().registration * 2);
        // In small steps: a leader that stood still itself gives no node up.
        while now < end {
            now = now.plus(Duration::from_millis(100));
            self.catalog.lock().tick(now);
        }
        assert!(!self.catalog.lock().knows(node));
    }

    /// Looks at what is served whenever a page comes.
    pub(super) fn watch(&self, segments: &Arc<Segments>) {
        let _first = self.watched.set(Arc::clone(segments));
    }

    /// Another leader takes over, with the list of the last one.
    pub(super) fn succeed(&self, epoch: LeaderEpoch, node: NodeId) {
        let mut catalog = self.catalog.lock();
        let start = Start::Takeover { expected: vec![node], trusted: catalog.trusted() };
        *catalog = Catalog::new(Config::default(), epoch, start, boottime());
        self.events.lock().clear();
    }

    /// The link breaks with this page, counted from 0 and from the takeover on.
    pub(super) fn break_at_page(&self, page: usize) {
        *self.fault.lock() = Some((page, Fault::Break));
    }

    /// Another leader takes over instead of this page.
    pub(super) fn succeed_at_page(&self, page: usize, epoch: LeaderEpoch, node: NodeId) {
        *self.fault.lock() = Some((page, Fault::Succeed(epoch, node)));
    }

    /// Gives no leave to serve from now on, or does so again.
    pub(super) fn withhold_leave(&self, withholds: bool) {
        // Relaxed: the test has one thread.
        self.withholds.store(withholds, Ordering::Relaxed);
    }

    /// Refuses heartbeats from now on, or hears them again.
    pub(super) fn refuse_beats(&self, refuses: Option<MountError>) {
        *self.refuses.lock() = refuses;
    }

    /// Hears unmounts from now on.
    pub(super) fn hear_unmounts(&self) {
        *self.unmounts.lock() = Some(Vec::new());
    }

    pub(super) fn unmounts(&self) -> Vec<(SegmentId, Incarnation)> {
        self.unmounts.lock().clone().unwrap_or_default()
    }

    /// Does something while the next heartbeat or mount is on its way.
    pub(super) fn meanwhile(&self, what: impl FnOnce() + Send + 'static) {
        *self.on_the_way.lock() = Some(Box::new(what));
    }

    fn on_the_way(&self) {
        let what = self.on_the_way.lock().take();
        if let Some(what) = what {
            what();
        }
    }

    /// Whether the node is one of its nodes.
    pub(super) fn knows(&self, node: NodeId) -> bool {
        self.catalog.lock().knows(node)
    }

    pub(super) fn events(&self) -> Vec<Event> {
        self.events.lock().clone()
    }

    /// What the last mount offered.
    pub(super) fn offers(&self) -> Vec<SegmentOffer> {
        self.offers.lock().clone()
    }

    /// Objects that it knows.
    pub(super) fn objects(&self) -> usize {
        self.catalog.lock().len()
    }

    /// Whether a fault is due.
    fn fault(&self) -> Option<Fault> {
        let pages =
            self.events.lock().iter().filter(|one| matches!(one, Event::Page { .. })).count();
        let mut fault = self.fault.lock();
        fault.take_if(|(page, _)| *page <= pages).map(|(_, fault)| fault)
    }
}

fn broken<T>() -> Result<T, CallError> {
    Err(CallError::Deadline { awaited: "a link that broke", silent: Duration::ZERO })
}

impl MasterApi for Leader {
    fn mount(&self, mount: &Mount, _: Deadline) -> Result<Result<Mounted, MountError>, CallError> {
        self.on_the_way();
        let (now, node) = (boottime(), mount.info.node);
        let mut catalog = self.catalog.lock();
        catalog.meet(now, node, mount.seen);
        self.offers.lock().clone_from(&mount.offers);
        let mounted = catalog.mount(now, node, &mount.offers);
        let fence = catalog.fence(now, node, None);
        Ok(mounted.map(|_| Mounted {
            epoch: catalog.epoch(),
            registration_ms: 20_000,
            fence_ms: u32::try_from(fence.as_millis()).unwrap(),
        }))
    }

    fn announce(&self, told: Announce, _: Deadline) -> Result<Result<(), MountError>, CallError> {
        match self.fault() {
            Some(Fault::Break) => return broken(),
            Some(Fault::Succeed(epoch, node)) => self.succeed(epoch, node),
            None => {}
        }
        let Announce { epoch, segment, incarnation, page, last } = told;
        let watched = self.watched.get().map(|segments| segments.all()).unwrap_or_default();
        let served = watched.iter().filter(|segment| segment.serving(boottime()).is_ok());
        self.events.lock().push(Event::Page {
            segment,
            records: page.iter().filter(|slot| slot.life.is_some()).count() as u32,
            served: served.map(|segment| segment.spec().segment).collect(),
        });
        let mut catalog = self.catalog.lock();
        let taken = catalog.is_told(epoch);
        Ok(taken.and_then(|()| catalog.announce(boottime(), segment, incarnation, &page, last)))
    }

    fn heartbeat(
        &self,
        beat: &Heartbeat,
        _: Deadline,
    ) -> Result<Result<Pulse, MountError>, CallError> {
        self.on_the_way();
        self.events.lock().push(Event::Beat);
        if let Some(error) = *self.refuses.lock() {
            return Ok(Err(error));
        }
        let mut catalog = self.catalog.lock();
        let heard = catalog.heartbeat(boottime(), beat.node);
        Ok(heard.map(|()| Pulse {
            epoch: catalog.epoch(),
            registration_ms: 20_000,
            draining: catalog.drains(beat.node),
            serve_ms: if catalog.may_serve(beat.node) && !self.withholds.load(Ordering::Relaxed) {
                2_500
            } else {
                0
            },
        }))
    }

    fn unmount(&self, gone: &Unmount, _: Deadline) -> Result<Result<(), MountError>, CallError> {
        match &mut *self.unmounts.lock() {
            Some(heard) => heard.extend(&gone.segments),
            None => return broken(),
        }
        let segments: Vec<SegmentId> = gone.segments.iter().map(|(id, _)| *id).collect();
        self.catalog.lock().unmount(gone.node, &segments);
        Ok(Ok(()))
    }

    fn orders(&self, _: &Orders, _: Deadline) -> Result<Result<OrderBatch, MountError>, CallError> {
        broken()
    }

    // What clients ask: nobody does here.

    fn ping(&self, _: Deadline) -> Result<LeaderEpoch, CallError> {
        broken()
    }

    fn locate(&self, _: u32, _: &[&[u8]], _: Deadline) -> Batch<Located, GetError> {
        broken()
    }

    fn nodes(&self, _: Deadline) -> Result<Vec<NodeEntry>, CallError> {
        broken()
    }

    fn put_start(
        &self,
        _: &PutConfig,
        _: &[PutItem<'_>],
        _: Deadline,
    ) -> Batch<WritePlan, PutError> {
        broken()
    }

    fn put_end(&self, _: &[PutEndItem<'_>], _: Deadline) -> Batch<(), PutError> {
        broken()
    }

    fn put_revoke(&self, _: &[PutRevokeItem<'_>], _: Deadline) -> Batch<(), PutError> {
        broken()
    }

    fn put_replan(
        &self,
        _: &PutReplan<'_>,
        _: Deadline,
    ) -> Result<Result<WritePlan, PutError>, CallError> {
        broken()
    }

    fn exist(&self, _: &[&[u8]], _: Deadline) -> Batch<bool, GetError> {
        broken()
    }

    fn look(&self, _: &Look<'_>, _: Deadline) -> Batch<Looked, GetError> {
        broken()
    }

    fn remove(&self, _: bool, _: &[&[u8]], _: Deadline) -> Batch<(), RemoveError> {
        broken()
    }

    fn remove_matching(
        &self,
        _: &RemoveMatching<'_>,
        _: Deadline,
    ) -> Result<Result<Removed, RemoveError>, CallError> {
        broken()
    }

    fn set_quota(&self, _: &SetQuota, _: Deadline) -> Result<(), CallError> {
        broken()
    }

    fn drain(&self, _: &Drain, _: Deadline) -> Result<Option<DrainStat>, CallError> {
        broken()
    }

    fn evict(&self, _: &Evict, _: Deadline) -> Result<Option<InUse>, CallError> {
        broken()
    }

    fn copy(&self, _: &CopyKey<'_>, _: Deadline) -> Result<Result<(), CopyError>, CallError> {
        broken()
    }

    fn drop_copy(&self, _: &DropCopy<'_>, _: Deadline) -> Result<Result<(), CopyError>, CallError> {
        broken()
    }

    fn tell_reads(&self, _: &[ReadMark], _: Deadline) -> Result<MarksHeard, CallError> {
        broken()
    }

    fn command(&self, _: &Command, _: Deadline) -> Result<bool, CallError> {
        broken()
    }

    fn list(&self, _: &List<'_>, _: Deadline) -> Result<Listing, CallError> {
        broken()
    }

    fn stat(&self, _: Deadline) -> Result<ClusterStat, CallError> {
        broken()
    }
}
