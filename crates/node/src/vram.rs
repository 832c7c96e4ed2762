//! Memory of GPUs that this node lends, one segment each: headers in host memory, payload in VRAM.
//!
//! ```text
//!   clients ══ data server ══► rooms: pinned host memory ══ copies of the GPU ══► VRAM
//!   GPU processes of this host ═════════ lent by descriptor ═════════════════════► VRAM
//! ```
//!
//! What must stay true: rooms are as many as were made at the start; a GPU that fails once is given up, with
//! what it holds: its segment is unmounted, and everything else goes on. A GPU that hangs holds the threads
//! that copy from and to it and the one that ticks it, and no others.

mod gpu;

use crate::config::NodeConfig;
use crate::duty::{Node, NodeError};
use mooncrate_core::plan::Medium;
use mooncrate_core::tally::{Count, Spread};
use mooncrate_core::{Extent, Incarnation, Now, SegmentId};
use mooncrate_lock::{Condvar, Mutex};
use mooncrate_mem::clock::boottime;
use mooncrate_mem::{Far, FarShare, Room, Segment, SegmentSpec};
use std::fmt::Debug;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub(crate) use gpu::OfSystem;

/// How long somebody waits for a room.
const ROOM_WAIT: Duration = Duration::from_millis(100);
/// When a master that has not heard of a lost GPU is told again.
const TELL_AGAIN: Duration = Duration::from_secs(1);
/// How long it is waited for those who still read or write the memory of a mount that is over, before other
/// memory is taken for the next one; between two looks; and after there was none.
const LET_GO_TIME: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(50);
const TRY_AGAIN: Duration = Duration::from_secs(5);

/// A GPU, and how much of its memory is lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VramConfig {
    /// Its number among those that the process sees.
    pub device: u32,
    /// Bytes of the segment, rounded down to a multiple of 4096.
    pub bytes: u64,
}

/// Where a node gets memory of GPUs. A seam: as shipped from those that its process sees.
pub trait Gpus: Send + Sync + Debug {
    /// Takes memory of a GPU and makes rooms beside it; otherwise why there is none, and what helps.
    fn open(&self, wish: &VramConfig) -> Result<OpenVram, String>;
}

/// Memory of a GPU that nobody uses yet.
#[derive(Debug)]
pub struct OpenVram {
    /// The memory.
    pub memory: Arc<dyn VramMemory>,
    /// The rooms that copy from it and to it.
    pub rooms: Vec<Box<dyn Room>>,
}

/// Memory of a GPU, beside what is copied through its rooms.
pub trait VramMemory: Send + Sync + Debug {
    /// Fills a range with zeros, and waits for that.
    fn zero(&self, extent: Extent) -> io::Result<()>;

    /// The same for all of it, what was rounded up included.
    fn zero_all(&self) -> io::Result<()>;

    /// What another process with this GPU needs to map it; `None`: it cannot be shared.
    fn share(&self) -> io::Result<Option<FarShare>>;
}

/// What was copied.
#[derive(Debug, Default)]
pub(crate) struct VramTally {
    /// Copies from host memory to the GPU.
    pub(crate) stores: Spread,
    pub(crate) stored_bytes: Count,
    /// Copies from the GPU to host memory.
    pub(crate) loads: Spread,
    pub(crate) loaded_bytes: Count,
    /// Times that all rooms were in use for too long.
    pub(crate) no_room: Count,
    /// Times that the memory was lent to a GPU process.
    pub(crate) lent: Count,
}

/// Memory of one GPU.
#[derive(Debug)]
pub(crate) struct Vram {
    rooms: Mutex<Vec<Box<dyn Room>>>,
    back: Condvar,
    memory: Arc<dyn VramMemory>,
    device: u32,
    /// A copy failed: nothing here can be trusted to move again.
    failed: AtomicBool,
    pub(crate) tally: VramTally,
}

impl Vram {
    /// Takes the memory, and makes the rooms.
    fn open(gpus: &dyn Gpus, wish: &VramConfig) -> Result<Arc<Self>, String> {
        let OpenVram { memory, rooms } = gpus.open(wish)?;
        // Whoever maps it shall find nothing of who had the memory before.
        memory.zero_all().map_err(|error| error.to_string())?;
        Ok(Arc::new(Self {
            rooms: Mutex::new(rooms),
            back: Condvar::new(),
            memory,
            device: wish.device,
            failed: AtomicBool::new(false),
            tally: VramTally::default(),
        }))
    }

    /// Whether a copy has failed.
    pub(crate) fn has_failed(&self) -> bool {
        // Relaxed: a flag on its own.
        self.failed.load(Ordering::Relaxed)
    }

    /// Rooms that nobody uses now.
    pub(crate) fn free_rooms(&self) -> usize {
        self.rooms.lock().len()
    }

    /// Notes what a copy came to.
    fn note(&self, doing: &'static str, done: io::Result<()>) -> io::Result<()> {
        done.inspect_err(|error| {
            if !self.failed.swap(true, Ordering::Relaxed) {
                let device = self.device;
                tracing::error!(%error, device, doing, "the GPU failed; its segment is given up");
            }
        })
    }
}

/// What a segment sees of it.
#[derive(Debug)]
struct Lender(Arc<Vram>);

impl Far for Lender {
    fn room(&self) -> Option<Box<dyn Room>> {
        let end = boottime().deadline_in(ROOM_WAIT);
        let mut rooms = self.0.rooms.lock();
        // Whoever is woken may find that somebody else was faster: he waits on.
        while rooms.is_empty() && !end.passed(boottime()) {
            self.0.back.wait_for(&mut rooms, end.left(boottime()));
        }
        let room = rooms.pop();
        drop(rooms);
        if room.is_none() {
            self.0.tally.no_room.one();
        }
        room.map(|room| {
            Box::new(VramRoom { vram: Arc::clone(&self.0), room: Some(room) }) as Box<dyn Room>
        })
    }

    fn zero(&self, extent: Extent) -> io::Result<()> {
        self.0.note("zero a range", self.0.memory.zero(extent))
    }

    fn share(&self) -> io::Result<Option<FarShare>> {
        let share = self.0.memory.share().inspect_err(|error| {
            tracing::warn!(%error, device = self.0.device, "the memory of the GPU cannot be lent");
        })?;
        if share.is_some() {
            self.0.tally.lent.one();
        }
        Ok(share)
    }
}

/// A room in use.
#[derive(Debug)]
struct VramRoom {
    vram: Arc<Vram>,
    /// `None` only while it is dropped.
    room: Option<Box<dyn Room>>,
}

impl VramRoom {
    fn room(&mut self) -> &mut dyn Room {
        &mut **self.room.as_mut().expect("only the drop takes it")
    }
}

impl Room for VramRoom {
    fn bytes(&mut self) -> &mut [u8] {
        self.room().bytes()
    }

    fn store(&mut self, offset: u64, len: usize) -> io::Result<()> {
        let began = boottime();
        let stored = self.room().store(offset, len);
        self.vram.tally.stores.note(boottime().since(began));
        self.vram.tally.stored_bytes.add(len as u64);
        self.vram.note("copy to the GPU", stored)
    }

    fn load(&mut self, offset: u64, len: usize) -> io::Result<()> {
        let began = boottime();
        let loaded = self.room().load(offset, len);
        self.vram.tally.loads.note(boottime().since(began));
        self.vram.tally.loaded_bytes.add(len as u64);
        self.vram.note("copy from the GPU", loaded)
    }
}

impl Drop for VramRoom {
    fn drop(&mut self) {
        self.vram.rooms.lock().extend(self.room.take());
        self.vram.back.notify_one();
    }
}

/// The GPUs whose memory a node lends, by segment.
#[derive(Debug, Default)]
pub(crate) struct Lent {
    by_segment: Mutex<Vec<(SegmentId, Arc<Vram>)>>,
    /// Mounts that ended with their GPU, until the master has heard of it, and when it is told again.
    lost: Mutex<Vec<(SegmentId, Incarnation, Now)>>,
    /// Mounts that are over while their GPU works.
    again: Mutex<Vec<Again>>,
}

/// A mount that is over, and shall be followed by another one.
#[derive(Debug)]
struct Again {
    old: Arc<Segment>,
    /// Since when its memory is waited for.
    since: Now,
    /// When it is tried next.
    next: Now,
}

impl Lent {
    /// All that are lent now.
    pub(crate) fn all(&self) -> Vec<(SegmentId, Arc<Vram>)> {
        self.by_segment.lock().clone()
    }

    fn insert(&self, id: SegmentId, vram: &Arc<Vram>) {
        let mut all = self.by_segment.lock();
        all.retain(|(other, _)| *other != id);
        all.push((id, Arc::clone(vram)));
    }

    fn remove(&self, id: SegmentId) {
        self.by_segment.lock().retain(|(other, _)| *other != id);
    }

    /// Takes the memory that a configuration names: the segments, in the order of their GPUs there.
    pub(crate) fn open(&self, config: &NodeConfig) -> Result<Vec<Arc<Segment>>, NodeError> {
        let mut segments = Vec::new();
        for (index, wish) in (0..).zip(&config.vram) {
            let device = wish.device;
            let refuse = |text| NodeError::Vram { device, text };
            if config.vram[..usize::from(index)].iter().any(|other| other.device == device) {
                return Err(refuse(
                    "it is named twice; name it once, with all that it lends".into(),
                ));
            }
            let vram = Vram::open(&*config.gpus, wish).map_err(refuse)?;
            let spec = config.vram_spec(index, wish.bytes, config.incarnation);
            let segment = create(config, spec, &vram)
                .map_err(|source| NodeError::Io { doing: "reserving headers", source })?;
            self.insert(spec.segment, &vram);
            segments.push(segment);
        }
        Ok(segments)
    }
}

fn create(config: &NodeConfig, spec: SegmentSpec, vram: &Arc<Vram>) -> io::Result<Arc<Segment>> {
    Segment::create_far(spec, Arc::new(Lender(Arc::clone(vram))), config.wipes())
}

impl NodeConfig {
    /// What a segment in VRAM is to be.
    fn vram_spec(&self, index: u16, bytes: u64, incarnation: Incarnation) -> SegmentSpec {
        let segment = SegmentId::on(Medium::Vram, self.node(), index);
        SegmentSpec { segment, ..self.spec_of(index, bytes, incarnation) }
    }
}

impl Node {
    /// The mount of a GPU's memory is over: [`Node::tick_vram`] mounts it again, empty.
    pub(crate) fn lend_later(&self, old: Arc<Segment>) {
        // Out of sight first: from here on nobody can begin to use the old one.
        self.segments().remove(old.spec().segment);
        self.lent().again.lock().push(Again { old, since: boottime(), next: Now(0) });
    }

    /// Mounts the memory of a segment again whose mount is over.
    fn lend_again(&self, id: SegmentId) {
        let now = boottime();
        let due = |again: &mut Again| again.old.spec().segment == id && again.next <= now;
        let due: Vec<_> = self.lent().again.lock().extract_if(.., due).collect();
        for Again { old, since, .. } in due {
            let Some((_, vram)) = self.lent().all().into_iter().find(|(lent, _)| *lent == id)
            else {
                // Given up meanwhile, and said so.
                continue;
            };
            let later = |old, pause| Again { old, since, next: boottime().plus(pause) };
            // Whoever pins or writes holds the segment as well. Most of them are gone in a moment.
            let free = Arc::strong_count(&old) == 1;
            if !free && now.since(since) < LET_GO_TIME {
                self.lent().again.lock().push(later(old, LOOK_AGAIN));
                continue;
            }
            let fresh = match self.lend_anew(&old, &vram, free) {
                Ok(fresh) => fresh,
                Err(error) => {
                    // The rest of the node goes on without it.
                    tracing::warn!(%error, "the memory of a GPU is not offered for now");
                    self.lent().again.lock().push(later(old, TRY_AGAIN));
                    continue;
                }
            };
            drop(old);
            match self.mount_one(&fresh) {
                Ok(()) => tracing::info!(segment = %id, "the memory of a GPU is offered again"),
                // Known to the node: the next heartbeat mounts it with the others.
                Err(_) if self.segments().get(id).is_some() => {}
                Err(error) => {
                    tracing::warn!(%error, segment = %id, "the memory of a GPU could not be mounted");
                    self.lent().again.lock().push(later(fresh, TELL_AGAIN));
                }
            }
        }
    }

    /// The segment of a GPU in a new mount, which begins empty: in the same memory if nobody is left who
    /// reads or writes it for the old one, otherwise in other memory.
    fn lend_anew(
        &self,
        old: &Arc<Segment>,
        vram: &Arc<Vram>,
        free: bool,
    ) -> Result<Arc<Segment>, NodeError> {
        let device = vram.device;
        let refuse = |text| NodeError::Vram { device, text };
        let spec = SegmentSpec { incarnation: self.next_mount(), ..*old.spec() };
        let io = |source| NodeError::Io { doing: "reserving headers", source };
        if free {
            vram.memory.zero_all().map_err(|error| refuse(error.to_string()))?;
            return create(self.config(), spec, vram).map_err(io);
        }
        let wish = VramConfig { device, bytes: spec.bytes };
        let fresh = Vram::open(&*self.config().gpus, &wish).map_err(refuse)?;
        self.lent().insert(spec.segment, &fresh);
        create(self.config(), spec, &fresh).map_err(io)
    }

    /// Frees what may be freed in the VRAM of a segment by now, gives its GPU up if that failed, and mounts
    /// it again if that is due. A thread for each: zeroing waits for the GPU.
    pub(crate) fn tick_vram(&self, id: SegmentId) {
        let mut notices = Vec::new();
        if let Some((_, vram)) = self.lent().all().into_iter().find(|(lent, _)| *lent == id) {
            if vram.has_failed() {
                self.lent().remove(id);
                let lost = self.take_out(id).map(|mount| (id, mount, Now(0)));
                self.lent().lost.lock().extend(lost);
            } else if let Some(segment) = self.segments().get(id) {
                segment.tick(boottime(), &mut notices);
            }
        }
        if !notices.is_empty() {
            self.deliver(notices);
        }
        self.tell_lost(id);
        self.lend_again(id);
    }

    /// Tells the master of mounts that ended with their GPU, until it has heard.
    fn tell_lost(&self, id: SegmentId) {
        let now = boottime();
        let due = |(lost, _, next): &mut (SegmentId, Incarnation, Now)| *lost == id && *next <= now;
        let due: Vec<_> = self.lent().lost.lock().extract_if(.., due).collect();
        for (id, mount, _) in due {
            if let Err(error) = self.say_unmounted(id, mount) {
                tracing::debug!(%error, segment = %id, "the master has not heard of the lost GPU");
                self.lent().lost.lock().push((id, mount, boottime().plus(TELL_AGAIN)));
            }
        }
    }
}
