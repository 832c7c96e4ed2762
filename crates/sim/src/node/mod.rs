//! A node: real segments, heartbeats, and the life of a process that may be cut off, paused, killed
//! and started again.
//!
//! What must stay true, for a real one as well:
//!
//! * `serve_until` is the sending time of the last heartbeat whose answer granted a serving lease, plus that lease.
//! * While it is proved that no process leads, the node extends leases that have not ended: a leader that comes
//!   waits for a whole one.
//! * A segment whose lease has ended serves nobody and keeps what it holds; the next mount says so. A leader that refuses the mount makes the node drop everything and come back as a new, empty
//!   incarnation.
//! * A leader's epoch is witnessed before the first page is announced to it.
//! * Leave to serve covers a segment only if its last page was acknowledged before the heartbeat was sent:
//!   what the leader has not heard of it may give to others. Memory is told first, and waits for no disk.
//! * A mount says how long an earlier start of the node may be readable, by the word of the last leader.

mod copy;
mod data;
mod disk;
mod member;

pub use copy::CopyJob;
pub use data::{PinSession, ReadSession, WriteSession};
pub use disk::Disk;

use crate::ctx::{Ctx, Election};
use crate::marks::Mark;
use crate::message::{Actor, Event, ToMaster, ToNode};
use crate::swarm::{REGISTRATION, between};
use crate::{MS, Nanos};
use member::Standing;
use mooncrate_core::canary::{self, Canary};
use mooncrate_core::copy::CopyDone;
use mooncrate_core::plan::Notice;
use mooncrate_core::rng::Rng;
use mooncrate_core::{Incarnation, LeaderEpoch, Medium, NodeId, Now, SegmentId};
use mooncrate_mem::{Segment, SegmentSpec};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a dead process left behind is forgotten after this time.
const FORGET: Nanos = 20 * REGISTRATION.as_nanos() as Nanos;
/// Time between two heartbeats.
const BEAT: Nanos = 40 * MS;
/// How often a guard says that its node is dead: words are lost, and leaders change.
const GUARD_SAYS: u8 = 6;

/// A segment as its owner and the clients of its host hold it.
#[derive(Debug)]
pub struct Store {
    /// The owner's side; clients use its one-sided steps only.
    pub segment: Arc<Segment>,
    /// Its owner is gone, or has dropped it.
    dead: AtomicBool,
}

impl Store {
    fn new(segment: SegmentId, incarnation: Incarnation, bytes: u64, slots: u32) -> Arc<Self> {
        let spec = SegmentSpec { segment, incarnation, bytes, slots, shared: true, huge: false };
        let segment = Segment::create(spec).expect("small segments fit into memory");
        Arc::new(Self { segment, dead: AtomicBool::new(false) })
    }

    /// Which segment and which mount.
    pub fn is(&self, segment: SegmentId, incarnation: Incarnation) -> bool {
        let spec = self.segment.spec();
        spec.segment == segment && spec.incarnation == incarnation
    }

    /// Whether nobody owns it any more.
    pub fn dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }

    /// The payload, as a client that mapped it for writing reaches it.
    fn payload(&self) -> BorrowedFd<'_> {
        self.segment.writable_fd().expect("the segment is shared")
    }

    /// Stores bytes as a client does that mapped the segment: nobody looks, nobody can stop it.
    pub fn poke(&self, offset: u64, bytes: &[u8]) {
        let written = rustix::io::pwrite(self.payload(), bytes, offset);
        assert_eq!(written, Ok(bytes.len()), "the range lies inside of the segment");
    }

    /// Flips one bit.
    pub fn flip(&self, offset: u64, bit: u8) {
        let mut byte = [0];
        let read = rustix::io::pread(self.payload(), &mut byte, offset);
        assert_eq!(read, Ok(1), "the byte lies in the segment");
        self.poke(offset, &[byte[0] ^ 1 << bit]);
    }
}

/// A process that owns segments.
#[derive(Debug)]
pub struct Node {
    /// Which one.
    pub ix: u8,
    /// Where it runs.
    pub host: u8,
    /// Which life of the process.
    pub boot: u32,
    /// Whether the process runs.
    pub up: bool,
    /// It handles nothing until then.
    pub paused_until: Nanos,
    /// Its segments.
    pub stores: Vec<Arc<Store>>,
    /// Its disk, if this run has disks.
    pub disk: Option<Disk>,
    /// Its disk, while it is left out.
    drawer: Option<Disk>,
    /// A copy of its disk.
    backup: Option<Disk>,
    /// What dead processes left behind: clients may still hold it. Guards go with it, because a
    /// process that is killed drops nothing.
    graveyard: Vec<Remains>,
    standing: Standing,
    incarnations: u64,
    writes: Vec<WriteSession>,
    reads: Vec<ReadSession>,
    pins: Vec<PinSession>,
    copies: Vec<CopyJob>,
    /// Copies that are over and were not told yet.
    untold: Vec<CopyDone>,
    /// Counts the copies.
    jobs: u32,
    /// Lives of clients that are known to be over.
    gone: Vec<u32>,
    rng: Rng,
    /// Whether its processes have guards, and how fast those are.
    guards: Rng,
    /// Draws what hands do to its disk.
    hands: Rng,
}

/// What a killed process leaves behind.
#[derive(Debug)]
struct Remains {
    at: Nanos,
    /// Which life of the process.
    boot: u32,
    /// What it had mounted.
    mounts: Vec<(SegmentId, Incarnation)>,
    stores: Vec<Arc<Store>>,
    _writes: Vec<WriteSession>,
    _reads: Vec<ReadSession>,
    _pins: Vec<PinSession>,
    _copies: Vec<CopyJob>,
}

/// The id of the node with this number.
pub fn id(ix: u8) -> NodeId {
    NodeId(u64::from(ix) + 1)
}

/// The number of the node with this id.
pub fn index(id: NodeId) -> u8 {
    (id.0 - 1) as u8
}

impl Node {
    /// A process that has mounted nothing yet.
    pub fn new(ctx: &mut Ctx, ix: u8) -> Self {
        let mut node = Self {
            ix,
            host: ix % ctx.swarm.hosts,
            boot: 0,
            up: true,
            paused_until: 0,
            stores: Vec::new(),
            disk: None,
            drawer: None,
            backup: None,
            graveyard: Vec::new(),
            standing: Standing::new(Now(0)),
            incarnations: 0,
            writes: Vec::new(),
            reads: Vec::new(),
            pins: Vec::new(),
            copies: Vec::new(),
            untold: Vec::new(),
            jobs: 0,
            gone: vec![0; ctx.swarm.clients.into()],
            rng: Rng::stream(ctx.swarm.seed, &format!("node-{ix}")),
            guards: Rng::stream(ctx.swarm.seed, &format!("guard-{ix}")),
            hands: Rng::stream(ctx.swarm.seed, &format!("hands-{ix}")),
        };
        for segment in 0..ctx.swarm.segments {
            ctx.owners.push((SegmentId::of(id(ix), segment.into()), ix));
        }
        if ctx.swarm.vram.is_some_and(|vram| vram.on(ix)) {
            ctx.owners.push((SegmentId::on(Medium::Vram, id(ix), 0), ix));
        }
        if let Some(load) = ctx.swarm.disks {
            let segment = SegmentId::on(Medium::Ssd, id(ix), 0);
            ctx.owners.push((segment, ix));
            let rng = Rng::stream(ctx.swarm.seed, &format!("disk-{ix}"));
            node.disk = Some(Disk::new(segment, &load, rng));
        }
        node.start(ctx);
        node
    }

    /// Starts empty, as a new incarnation.
    fn start(&mut self, ctx: &mut Ctx) {
        self.incarnations += 1;
        let incarnation = Incarnation(self.incarnations);
        let (bytes, slots) = (ctx.swarm.segment_bytes, ctx.swarm.slots);
        self.stores = (0..ctx.swarm.segments)
            .map(|n| Store::new(SegmentId::of(id(self.ix), n.into()), incarnation, bytes, slots))
            .collect();
        if let Some(vram) = ctx.swarm.vram.filter(|vram| vram.on(self.ix)) {
            let segment = SegmentId::on(Medium::Vram, id(self.ix), 0);
            self.stores.push(Store::new(segment, incarnation, vram.bytes, vram.slots));
        }
        if let Some(disk) = &mut self.disk {
            disk.recover(incarnation);
        }
        self.standing = Standing::new(ctx.mono(self.host));
        ctx.say(|| format!("n{} starts as incarnation {incarnation}", self.ix));
    }

    /// Sets the timers of a process that runs.
    pub fn wind_up(&mut self, ctx: &mut Ctx) {
        let (tick, beat) = (self.rng.below(5 * MS), self.rng.below(BEAT));
        ctx.after(tick, Event::NodeTick(self.ix, self.boot));
        ctx.after(beat, Event::NodeBeat(self.ix, self.boot));
    }

    /// The process is killed. Its memory lives on in the mappings of clients.
    pub fn crash(&mut self, ctx: &mut Ctx) {
        ctx.say(|| format!("n{} is killed", self.ix));
        self.up = false;
        self.bury(ctx);
        // Some guards die with their node.
        if self.guards.chance(600) {
            let notices = between(&mut self.guards, 0, 60) * MS;
            ctx.after(notices, Event::Guard(self.ix, self.boot, 0));
        }
        self.boot += 1;
    }

    /// The guard of a process that was killed: first nobody can read what it left behind, then its leader
    /// hears of it.
    pub fn guard(&mut self, ctx: &mut Ctx, boot: u32, attempt: u8) {
        let Some(remains) = self.graveyard.iter().rfind(|remains| remains.boot == boot) else {
            return;
        };
        if !canary::on(Canary::DeadButReadable) {
            for store in &remains.stores {
                store.segment.set_serve_until(Now(0));
            }
        }
        let dead = ToMaster::Unmount { node: self.ix, segments: remains.mounts.clone() };
        let leader = ctx.election.leader.unwrap_or(0);
        ctx.say(|| format!("the guard of n{} says that it is dead", self.ix));
        ctx.to_master(Actor::Node(self.ix), leader, dead);
        if attempt < GUARD_SAYS {
            let pause = between(&mut self.guards, 5, 60) * MS;
            ctx.after(pause, Event::Guard(self.ix, boot, attempt + 1));
        }
    }

    /// The process ends in order: it serves nobody any more, then it says so.
    pub fn leave(&mut self, ctx: &mut Ctx) {
        ctx.say(|| format!("n{} leaves", self.ix));
        self.up = false;
        self.writes.clear();
        self.reads.clear();
        self.pins.clear();
        self.copies.clear();
        for store in &self.stores {
            store.segment.set_serve_until(Now(0));
        }
        let farewell = ToMaster::Unmount { node: self.ix, segments: self.mounts() };
        ctx.to_master(Actor::Node(self.ix), self.standing.leader, farewell);
        self.bury(ctx);
        self.boot += 1;
    }

    /// What it has mounted.
    fn mounts(&self) -> Vec<(SegmentId, Incarnation)> {
        let of = |store: &Arc<Store>| {
            let spec = store.segment.spec();
            (spec.segment, spec.incarnation)
        };
        let disk = self.disk.iter().map(|disk| (disk.segment, disk.incarnation));
        self.stores.iter().map(of).chain(disk).collect()
    }

    fn bury(&mut self, ctx: &Ctx) {
        for store in &self.stores {
            store.dead.store(true, Ordering::Relaxed);
        }
        // Long after the last lease nobody reads there; descriptors are few.
        self.graveyard.retain(|remains| ctx.now < remains.at + FORGET);
        self.graveyard.push(Remains {
            at: ctx.now,
            boot: self.boot,
            mounts: self.mounts(),
            stores: std::mem::take(&mut self.stores),
            _writes: std::mem::take(&mut self.writes),
            _reads: std::mem::take(&mut self.reads),
            _pins: std::mem::take(&mut self.pins),
            _copies: std::mem::take(&mut self.copies),
        });
        self.untold.clear();
    }

    /// The process starts again.
    pub fn restart(&mut self, ctx: &mut Ctx) {
        self.up = true;
        self.change_disks(ctx);
        self.start(ctx);
        self.wind_up(ctx);
    }

    /// A segment of this node in this mount.
    fn store(&self, segment: SegmentId, incarnation: Incarnation) -> Option<&Arc<Store>> {
        self.stores.iter().find(|store| store.is(segment, incarnation))
    }

    /// The disk of this node, in this mount.
    fn disk_at(&mut self, segment: SegmentId, incarnation: Incarnation) -> Option<&mut Disk> {
        let same = |disk: &&mut Disk| disk.segment == segment && disk.incarnation == incarnation;
        self.disk.as_mut().filter(same)
    }

    /// Somebody had the machine open: the disk is left out, put back, or an older copy of it is there.
    fn change_disks(&mut self, ctx: &mut Ctx) {
        let (Some(load), rng) = (ctx.swarm.disks, &mut self.hands) else { return };
        let Some(disk) = &mut self.disk else {
            if rng.chance(500) {
                self.disk = self.drawer.take();
                ctx.mark(Mark::DiskPutBack);
            }
            return;
        };
        if rng.chance(load.restored)
            && let Some(older) = &self.backup
        {
            ctx.mark(Mark::DiskRestored);
            ctx.say(|| format!("an older copy of the disk of n{} takes its place", self.ix));
            let Election { trusted, believed, .. } = &ctx.election;
            disk.restore(older.clone(), &[&trusted[..], believed].concat());
        } else if rng.chance(load.restored) {
            self.backup = Some(disk.clone());
        }
        if rng.chance(load.pulled) {
            self.drawer = self.disk.take();
        }
    }

    /// Looks after its segments.
    pub fn tick(&mut self, ctx: &mut Ctx) {
        let gap = between(&mut self.rng, 2, 10) * MS;
        ctx.after(gap, Event::NodeTick(self.ix, self.boot));
        let now = ctx.lease_clock(self.host);
        let mut news = Vec::new();
        for store in &self.stores {
            store.segment.tick(now, &mut news);
        }
        if let (Some(disk), Some(load)) = (&mut self.disk, ctx.swarm.disks) {
            let (evicts, loses) = if ctx.calm { (0, 0) } else { (load.evicts, load.loses) };
            let (freed, evicted, lost) = disk.tick(ctx.now, evicts, loses);
            news.extend(freed);
            ctx.marks.hit_times(Mark::DiskEvicted, u64::from(evicted));
            ctx.marks.hit_times(Mark::DiskLost, u64::from(lost));
            // A copy that is made while it is in use.
            if load.restored > 0 && self.hands.chance(2) {
                self.backup = Some(disk.clone());
            }
        }
        self.send_notices(ctx, news);
        self.tell_copies(ctx);
    }

    /// Takes in a message.
    pub fn handle(&mut self, ctx: &mut Ctx, message: ToNode) {
        match message {
            ToNode::Mounted { round, epoch, fence, result } => {
                self.mounted(ctx, round, epoch, fence, result);
            }
            ToNode::Announced { round, page, epoch, result } => {
                self.announced(ctx, round, page, epoch, result);
            }
            ToNode::BeatAck { sent, epoch, result, serve } => {
                self.beat_ack(ctx, sent, epoch, result, serve);
            }
            ToNode::Orders { epoch, list } => self.orders(ctx, epoch, &list),
            ToNode::Copies { list } => self.take_copies(ctx, list),
            ToNode::Fetch { job, locator, len, mapped } => {
                self.serve_copy(ctx, job, &locator, len, mapped);
            }
            ToNode::Fetched { job, offset, bytes, last } => {
                self.fetched(ctx, job, offset, &bytes, last);
            }
            ToNode::Lent { job, store } => self.lent(ctx, job, store),
            data => self.handle_data(ctx, data),
        }
    }

    fn orders(&mut self, ctx: &mut Ctx, epoch: LeaderEpoch, list: &[mooncrate_core::plan::Order]) {
        use mooncrate_core::plan::{Action, OrderResult};
        use mooncrate_mem::SegmentError;
        let now = ctx.lease_clock(self.host);
        let mut notices = Vec::with_capacity(list.len());
        for order in list {
            if let Some(disk) = self.disk_at(order.segment, order.incarnation) {
                let notice = disk.execute(ctx.now, epoch, order);
                ctx.say(|| format!("disk of n{} obeys {epoch} {order:?}: {notice:?}", self.ix));
                notices.extend(notice);
                continue;
            }
            let Some(store) = self.store(order.segment, order.incarnation) else {
                ctx.mark(Mark::OldMountOrdered);
                continue;
            };
            let result = store.segment.execute(now, epoch, order);
            ctx.say(|| format!("n{} obeys {epoch} {order:?}: {result:?}", self.ix));
            match result {
                Ok(notice) => {
                    match (notice.result, order.action) {
                        (OrderResult::Pinned, _) => ctx.mark(Mark::EvictSkippedPinned),
                        (OrderResult::Waiting, Action::Retire { .. }) => {
                            ctx.mark(Mark::GraceHeldFree);
                        }
                        _ => {}
                    }
                    notices.push(notice);
                }
                Err(SegmentError::OldEpoch { .. }) => ctx.mark(Mark::OldEpochRefused),
                Err(_) => {}
            }
        }
        self.send_notices(ctx, notices);
    }

    /// Tells the leader, once. What is lost is told again when the leader repeats its order.
    fn send_notices(&self, ctx: &mut Ctx, list: Vec<Notice>) {
        if list.is_empty() {
            return;
        }
        let message = ToMaster::Notices { list };
        ctx.to_master_once(Actor::Node(self.ix), self.standing.leader, message);
    }
}
