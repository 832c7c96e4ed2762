//! A node and its threads: one for heartbeats, one for orders, one that frees. They share no lock
//! with data work, so a busy node stays alive (G13).

use crate::config::NodeConfig;
use crate::copy::Copier;
use crate::disk::{Disk, Io, OpenDisks, Tier};
use crate::guard::Guard;
use crate::memory::OpenMemory;
use crate::metrics::Tally;
use crate::orders::Unheard;
use crate::registration::{Serve, Standing};
use crate::vram::Lent;
use mooncrate_core::error::MountError;
use mooncrate_core::time::Deadline;
use mooncrate_core::{Incarnation, NodeId, Now, SegmentId};
use mooncrate_lock::{Condvar, Mutex};
use mooncrate_mem::clock::boottime;
use mooncrate_mem::memory::{Bytes, TooMuchMemory};
use mooncrate_mem::{Life, SegmentError};
use mooncrate_rt as rt;
use mooncrate_transfer::{
    DataServer, DataServerConfig, DataTally, Engine, EngineConfig, Nodes, Segments, Stager, Staging,
};
use mooncrate_wire::address::Bound;
use mooncrate_wire::message::{NodeInfo, Unmount};
use mooncrate_wire::{Address, CallError, HangUp, MasterApi, Role};
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long requests may go on when the node stops.
const STOP_GRACE: Duration = Duration::from_secs(3);
/// How long threads may take to end when the node stops; then they are left alone.
const JOIN_TIME: Duration = Duration::from_secs(5);
/// Between two looks at them.
const JOIN_LOOK: Duration = Duration::from_millis(1);
/// How long the farewell to the master may take.
const UNMOUNT_TIME: Duration = Duration::from_secs(1);

/// Why a node could not start.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// Memory, sockets or threads.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// Segments that are larger than the memory there is.
    #[error(
        "{0}; lend less, raise the limit, or say that it is meant: --memory-overcommit, or memory_overcommit = true \
         (a segment that was unmounted counts until its last reader is done: that passes by itself)"
    )]
    Memory(#[from] TooMuchMemory),
    /// The system did not give all pages of the segment at the start.
    #[error("{touched} of the {bytes} of memory could be touched, then: {source}; {help}")]
    Prefault {
        /// What is there.
        touched: Bytes,
        /// What was asked for.
        bytes: Bytes,
        /// What the system said.
        source: io::Error,
        /// What to do about it.
        help: &'static str,
    },
    /// A disk could not be opened.
    #[error("the disk at {path}: {source}")]
    Disk {
        /// Where.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// Memory of a GPU could not be had.
    #[error("the memory of GPU {device} cannot be lent: {text}")]
    Vram {
        /// Which one.
        device: u32,
        /// Why, and what helps.
        text: String,
    },
    /// The master was not reached.
    #[error("the master did not answer: {0}")]
    Call(#[from] CallError),
    /// The master refused.
    #[error("the master refused this node: {0}")]
    Mount(#[from] MountError),
    /// A segment refused the master's epoch.
    #[error("{0}")]
    Segment(SegmentError),
}

/// A node at work.
pub struct Node {
    config: NodeConfig,
    info: NodeInfo,
    segments: Arc<Segments>,
    master: Arc<dyn MasterApi>,
    standing: Mutex<Standing>,
    copier: Copier,
    unheard: Mutex<Unheard>,
    /// Mounts that are over and that the master has not heard of.
    gone: Mutex<Vec<(SegmentId, Incarnation)>>,
    tier: Option<Arc<Tier>>,
    lent: Lent,
    /// Says farewell for a process that cannot; `None`: nobody does.
    guard: Option<Guard>,
    tally: Tally,
    /// Held while a mount is on its way.
    mounting: Mutex<()>,
    stopping: AtomicBool,
    /// Set when the heart should beat at once: the master was lost, or does not know us.
    alarm: Mutex<bool>,
    alarmed: Condvar,
    /// Threads that wait for a moment, and for the end of the node.
    naps: Mutex<()>,
    napping: Condvar,
    running: Mutex<Running>,
}

/// What has to be ended when the node stops.
#[derive(Default)]
struct Running {
    threads: Vec<rt::Thread<()>>,
    server: Option<DataServer>,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Node {
    /// Makes the segment and the data server, and opens the disks; [`Node::register`] makes it known. The
    /// addresses in `config` are replaced by those the sockets really have.
    pub fn new(
        config: NodeConfig,
        master: Arc<dyn MasterApi>,
        sockets: Vec<Bound>,
    ) -> Result<Arc<Self>, NodeError> {
        Self::among(config, Arc::default(), master, sockets)
    }

    /// The same with its segments in a place, empty so far, where a client of this process finds them without a
    /// socket.
    pub fn among(
        config: NodeConfig,
        segments: Arc<Segments>,
        master: Arc<dyn MasterApi>,
        sockets: Vec<Bound>,
    ) -> Result<Arc<Self>, NodeError> {
        let opened = (OpenDisks::open(&config)?, OpenMemory::open(&config)?);
        Self::make(config, opened, segments, master, sockets)
    }

    /// The same over disks and memory that are open already: those that `config` names.
    pub fn over(
        config: NodeConfig,
        opened: (OpenDisks, OpenMemory),
        master: Arc<dyn MasterApi>,
        sockets: Vec<Bound>,
    ) -> Result<Arc<Self>, NodeError> {
        Self::make(config, opened, Arc::default(), master, sockets)
    }

    fn make(
        mut config: NodeConfig,
        (disks, OpenMemory(segment)): (OpenDisks, OpenMemory),
        segments: Arc<Segments>,
        master: Arc<dyn MasterApi>,
        sockets: Vec<Bound>,
    ) -> Result<Arc<Self>, NodeError> {
        let io = |doing| move |source| NodeError::Io { doing, source };
        for socket in &sockets {
            match socket.address().map_err(io("reading the address of a socket"))? {
                tcp @ Address::Tcp(_) => config.tcp = Some(tcp),
                unix @ Address::Unix(_) => config.unix = Some(unix),
            }
        }
        // Before anybody can map anything.
        let guard = guard_of(&config, &segments);
        segments.insert(segment);
        let lent = Lent::default();
        lent.open(&config)?.into_iter().for_each(|segment| segments.insert(segment));
        let tier = tier_of(&config, &segments, disks)?;
        let server_config = DataServerConfig {
            name: config.name.clone(),
            host: config.host_id(),
            gate: config.gate.clone(),
            dedicated: config.tenant,
            share_users: config.share_users.clone(),
            ..DataServerConfig::default()
        };
        let data = Arc::<DataTally>::default();
        let tally = Arc::clone(&data);
        let server = DataServer::start(Arc::clone(&segments), server_config, tally, sockets)
            .map_err(io("starting the data server"))?;
        // Of its own: what the copies wait for ends with the node, and nothing else does.
        let hang_up = HangUp::default();
        let mut links = config.links.clone();
        links.link.hang_up = hang_up.clone();
        let engine = EngineConfig {
            host: config.host_id(),
            role: Role::Node,
            links,
            ..EngineConfig::default()
        };
        let directory = Arc::new(Nodes::new(Arc::clone(&master)));
        let copier = Copier::new(Engine::new(engine, Arc::clone(&segments), directory), hang_up);
        // Memory that was never shared is readable in no mapping of an earlier start.
        let fence = (!config.shared).then(boottime);
        Ok(Arc::new(Self {
            info: info_of(&config),
            standing: Mutex::new(Standing {
                acknowledged: boottime(),
                leave: Now(0),
                lease: Duration::ZERO,
                registration: Duration::from_secs(20),
                incarnation: config.incarnation,
                fence,
                draining: Vec::new(),
                mounted: None,
                began: boottime(),
                told: BTreeMap::new(),
                current: BTreeMap::new(),
            }),
            tally: Tally::new(data),
            config,
            segments,
            master,
            copier,
            unheard: Mutex::default(),
            gone: Mutex::default(),
            tier,
            lent,
            guard,
            mounting: Mutex::new(()),
            stopping: AtomicBool::new(false),
            alarm: Mutex::new(false),
            alarmed: Condvar::new(),
            naps: Mutex::new(()),
            napping: Condvar::new(),
            running: Mutex::new(Running { threads: Vec::new(), server: Some(server) }),
        }))
    }

    /// Mounts, starts the threads, and tells what its disks hold; its memory is used meanwhile. `local`: the master is
    /// in this process and gives its orders by a call, so nobody has to wait for them.
    pub fn register(self: &Arc<Self>, local: bool) -> Result<(), NodeError> {
        self.mount_first()?;
        let tick = self.config.tick;
        self.start("node-tick", Self::tend)?;
        for (id, _) in self.lent.all() {
            let work = move |node: &Self| node.tick_vram(id);
            self.start("node-vram", move |node| node.every(tick, work))?;
        }
        if !local {
            self.start("node-orders", Self::follow_orders)?;
        }
        for _ in 0..self.config.copy_threads {
            self.start("node-copy", Self::fetch_copies)?;
        }
        for disk in self.disks() {
            self.start_disk(disk)?;
        }
        if !self.disks().is_empty()
            && let Err(error) = self.mount(Serve::Each)
        {
            // The heart mounts again, and tells the rest.
            tracing::warn!(%error, "not all of the disks is told yet");
        }
        // Last: it would mount beside this thread.
        self.start("node-heart", Self::stay_known)
    }

    fn start_disk(self: &Arc<Self>, disk: &Arc<Disk>) -> Result<(), NodeError> {
        let of = || Arc::clone(disk);
        for _ in 0..mooncrate_ssd::KEEPERS {
            let disk = of();
            self.start("disk-keep", move |node| node.keep_values(&disk))?;
        }
        let (ends, evicts, scrubs) = (of(), of(), of());
        self.start("disk-ends", move |node| node.end_lives(&ends))?;
        self.start("disk-evict", move |node| node.evict_records(&evicts))?;
        let rate = self.config.tier.scrub_bytes_per_second;
        if rate > 0 {
            self.start("disk-scrub", move |node| node.scrub_records(&scrubs, rate))?;
        }
        Ok(())
    }

    fn start(
        self: &Arc<Self>,
        name: &str,
        work: impl FnOnce(&Self) + Send + 'static,
    ) -> Result<(), NodeError> {
        let node = Arc::clone(self);
        let thread = rt::spawn(name, move || work(&node))
            .map_err(|source| NodeError::Io { doing: "starting a thread", source })?;
        self.running.lock().threads.push(thread);
        Ok(())
    }

    /// Waits for the next beat of the heart, or for a reason to beat at once.
    pub(crate) fn rest(&self, pause: Duration) {
        let mut alarm = self.alarm.lock();
        if !*alarm {
            self.alarmed.wait_for(&mut alarm, pause);
        }
        *alarm = false;
    }

    /// Lets the heart beat at once. A master that was restarted knows its nodes again when they mount:
    /// the rest of a pause would be time without them.
    pub(crate) fn alarm(&self) {
        *self.alarm.lock() = true;
        self.alarmed.notify_one();
    }

    fn every(&self, pause: Duration, work: impl Fn(&Self)) {
        while !self.stopping() {
            work(self);
            rt::sleep(pause);
        }
    }

    /// Says farewell to the master, lets transfers end for a moment, and ends all threads. A master that stops with its
    /// node stops first: it writes down that the node has left, and still believes its disks.
    pub fn stop(&self) {
        // Release: pairs with the Acquire in `stopping`.
        if self.stopping.swap(true, Ordering::AcqRel) {
            return;
        }
        self.alarm();
        self.segments.bell().ring();
        self.copier.stop();
        {
            // Under the lock: whoever has just looked whether the node stops naps by now, and is woken.
            let _naps = self.naps.lock();
            self.napping.notify_all();
        }
        for disk in self.disks() {
            disk.wake();
        }
        let Running { threads, server } = std::mem::take(&mut *self.running.lock());
        if let Some(server) = server {
            server.stop(STOP_GRACE);
        }
        // A mount on its way is heard before the farewell, and none is sent after it.
        drop(self.mounting.lock());
        let segments = self.segments.all();
        {
            // Under the lock, so that no heartbeat on its way gives leave to serve again.
            let _standing = self.standing.lock();
            for segment in segments.iter().chain(&self.segments.private()) {
                segment.set_serve_until(Now(0));
            }
        }
        let unmount = Unmount {
            node: self.id(),
            segments: segments.iter().map(|s| (s.spec().segment, s.spec().incarnation)).collect(),
        };
        let deadline = boottime().deadline_in(UNMOUNT_TIME);
        match (self.master.unmount(&unmount, deadline), &self.guard) {
            // A guard that is not dismissed unmounts the node again when this process has ended.
            (Ok(_), Some(guard)) => guard.dismiss(),
            (Ok(_), None) => {}
            (Err(error), _) => tracing::debug!(%error, "the master did not hear the farewell"),
        }
        // Whoever still looks for segments must hold neither the directories nor the memory.
        self.segments.set_stager(None);
        self.segments.clear();
        let limit = boottime().deadline_in(JOIN_TIME);
        let mut ended = join_all(threads, limit);
        for disk in self.disks() {
            ended &= disk.stop_loading(limit);
        }
        if !self.disks().is_empty() && ended {
            ended = self.settle_disks();
        }
        if !ended {
            tracing::error!(
                "a thread did not end in {JOIN_TIME:?} and is left alone: does a disk hang?"
            );
        }
    }

    /// Leaves the disks so that the next start is fast; whether that ended in time.
    fn settle_disks(&self) -> bool {
        let disks = self.disks().to_vec();
        let settle = move || {
            for disk in &disks {
                if let Err(error) = disk.backend.settle() {
                    let path = disk.config.path.display();
                    tracing::warn!(%error, %path, "the next start is slower");
                }
            }
        };
        match rt::spawn("disk-settle", settle) {
            Ok(thread) => join_all(vec![thread], boottime().deadline_in(JOIN_TIME)),
            Err(error) => {
                tracing::warn!(%error, "the next start is slower");
                true
            }
        }
    }

    /// Waits for a moment, or until the node stops.
    pub(crate) fn nap(&self, time: Duration) {
        let mut naps = self.naps.lock();
        if !self.stopping() {
            self.napping.wait_for(&mut naps, time);
        }
    }

    /// Its id.
    pub fn id(&self) -> NodeId {
        self.info.node
    }

    /// Where it is reached.
    pub fn info(&self) -> &NodeInfo {
        &self.info
    }

    /// Its segments.
    pub fn segments(&self) -> &Arc<Segments> {
        &self.segments
    }

    /// The id of its segment.
    pub fn segment(&self) -> SegmentId {
        SegmentId::of(self.id(), 0)
    }

    pub(crate) fn config(&self) -> &NodeConfig {
        &self.config
    }

    pub(crate) fn copier(&self) -> &Copier {
        &self.copier
    }

    /// Words for the master that it has not heard.
    pub(crate) fn unheard(&self) -> &Mutex<Unheard> {
        &self.unheard
    }

    pub(crate) fn mounting(&self) -> &Mutex<()> {
        &self.mounting
    }

    /// Mounts that are over and that the master has not heard of.
    pub(crate) fn gone(&self) -> &Mutex<Vec<(SegmentId, Incarnation)>> {
        &self.gone
    }

    /// Its disks and their staging memory, if it has some.
    pub(crate) fn tier(&self) -> Option<&Arc<Tier>> {
        self.tier.as_ref()
    }

    /// The GPUs whose memory it lends.
    pub(crate) fn lent(&self) -> &Lent {
        &self.lent
    }

    /// Its disks.
    pub(crate) fn disks(&self) -> &[Arc<Disk>] {
        self.tier.as_ref().map_or(&[], |tier| &tier.disks)
    }

    pub(crate) fn master(&self) -> &dyn MasterApi {
        &*self.master
    }

    pub(crate) fn tally(&self) -> &Tally {
        &self.tally
    }

    pub(crate) fn standing(&self) -> &Mutex<Standing> {
        &self.standing
    }

    /// Acquire: pairs with the Release in `stop`.
    pub(crate) fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
}

/// Starts the guard of this process, if it shall have one. Without it the node works as well; its death
/// is noticed later.
fn guard_of(config: &NodeConfig, segments: &Segments) -> Option<Guard> {
    let how = config.guard.as_ref()?;
    let started = Life::create().and_then(|life| Ok((Guard::start(how, &life)?, life)));
    match started {
        Ok((guard, life)) => {
            segments.set_life(Arc::new(life));
            Some(guard)
        }
        Err(error) => {
            tracing::warn!(
                %error,
                "no guard: if this process is killed, its keys wait until its serving lease ends"
            );
            None
        }
    }
}

/// Waits for threads; whether all have ended in time. A disk that hangs holds its threads as long as it likes.
fn join_all(threads: Vec<rt::Thread<()>>, limit: Deadline) -> bool {
    for thread in threads {
        while !thread.is_finished() {
            if limit.passed(boottime()) {
                return false;
            }
            rt::sleep(JOIN_LOOK);
        }
        let _ended = thread.join();
    }
    true
}

/// Who the node is and where it is reached.
fn info_of(config: &NodeConfig) -> NodeInfo {
    let text = |address: &Option<Address>| match address {
        Some(Address::Tcp(name)) => name.clone(),
        Some(Address::Unix(path)) => path.display().to_string(),
        None => String::new(),
    };
    NodeInfo {
        node: config.node(),
        name: config.name.clone(),
        tcp: text(&config.tcp),
        unix: text(&config.unix),
        host: config.host_id(),
        zone: config.zone_id(),
    }
}

/// The tier over disks that are open: adds their segments and the memory that they load into.
fn tier_of(
    config: &NodeConfig,
    segments: &Arc<Segments>,
    OpenDisks(opened): OpenDisks,
) -> Result<Option<Arc<Tier>>, NodeError> {
    if opened.is_empty() {
        return Ok(None);
    }
    let memory = config.create(config.staging_spec(config.incarnation))?;
    segments.insert_private(Arc::clone(&memory));
    let staging = Staging::new(memory, config.tier.staging_lease);
    let (disks, kept): (Vec<_>, Vec<_>) = opened.into_iter().unzip();
    for disk in disks.iter().filter(|disk| disk.config.io == Io::Uring) {
        if let Some((start, len)) = staging.segment().payload_at() {
            disk.device.register(Arc::clone(staging.segment()) as _, start, len);
        }
    }
    for segment in kept {
        segments.insert(segment);
    }
    let tier = Arc::new(Tier::new(disks, staging, Arc::downgrade(segments)));
    segments.set_stager(Some(Arc::clone(&tier) as Arc<dyn Stager>));
    Ok(Some(tier))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    /// A thread that does not end is left alone; the others are waited for.
    #[test]
    fn threads_are_waited_for_within_a_limit() {
        let (go, wait) = channel::<()>();
        let stuck = rt::spawn("stuck", move || assert!(wait.recv().is_err())).unwrap();
        let quick = rt::spawn("quick", || ()).unwrap();
        let soon = || boottime().deadline_in(Duration::from_millis(50));
        assert!(!join_all(vec![stuck], soon()));
        assert!(join_all(vec![quick], boottime().deadline_in(Duration::from_mins(1))));
        drop(go);
    }
}
