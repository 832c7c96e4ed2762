//! The cache as one rank sees it: put, get and remove values in heaps of all ranks.
//!
//! ```text
//! open_for_write   master: room in the owner's heap   ─► header Writing, by this rank
//! push, publish    bytes, then READY, by this rank        (or by a kernel of the caller)
//! commit           master: the key has a value
//! put              all of it: header, bytes and READY are queued together on the caller's stream
//! get              master: where ─► pin ─► copy ─► unpin, queued together; the owner sleeps
//! ```
//!
//! The header is the truth: a value that is not published cannot be pinned yet ([`NanoError::NotReady`]), and one
//! that was evicted meanwhile cannot be pinned any more.
//!
//! A call waits for the stream that its caller names, and for nothing else on the GPU. What has not ended in time is
//! kept until it has ([`crate::late`]): its lane, its memory, and the plan that nobody else may have meanwhile.

use crate::duty::Duty;
use crate::error::NanoError;
use crate::late::{Hold, Late, outlast};
use crate::layout::{HeapLayout, Pages};
use crate::marks::Marks;
use crate::open::Open;
use crate::owner::{Offered, Owner};
use crate::plan::{Place, WritePlan};
use crate::reach::{Flight, Reach, Source, Step, Stepped, Target, Touch, When};
use crate::tally::{Stats, Tally, Timings};
use mooncrate_core::error::{PutError, RemoveError};
use mooncrate_core::header::{HEADER_VERSION, Header};
use mooncrate_core::key;
use mooncrate_core::limits::DEVICE_GRACE;
use mooncrate_core::plan::{Located, Looked, PutConfig, WritePlan as Planned};
use mooncrate_core::state::Event;
use mooncrate_core::{
    Deadline, Generation, Incarnation, Medium, NodeId, PutToken, Seal, SegmentId,
};
use mooncrate_heap::{Rank, Ranks, World};
use mooncrate_lock::{Mutex, interrupt};
use mooncrate_mem::clock::boottime;
use mooncrate_wire::MasterApi;
use mooncrate_wire::message::{Look, PutEndItem, PutItem, PutRevokeItem, SealList};
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

/// How a cache behaves. The same on all ranks.
#[derive(Clone, Copy, Debug)]
pub struct NanoConfig {
    /// Bytes of a page.
    pub page_bytes: u32,
    /// Headers of each heap: the most objects that it holds.
    pub slots: u32,
    /// Whether values carry a checksum, which every get compares.
    pub checksums: bool,
    /// How long a call may take.
    pub timeout: Duration,
    /// Time between two heartbeats.
    pub heartbeat: Duration,
    /// Time between two looks at what waits to be freed.
    pub tick: Duration,
}

impl Default for NanoConfig {
    fn default() -> Self {
        Self {
            page_bytes: crate::layout::PAGE_BYTES,
            slots: 16 << 10,
            checksums: false,
            timeout: Duration::from_secs(5),
            heartbeat: Duration::from_millis(500),
            tick: Duration::from_millis(2),
        }
    }
}

/// Who has ended, as far as this process knows.
pub type Gone = Arc<dyn Fn() -> Ranks + Send + Sync>;

/// What all parts of a rank share.
pub(crate) struct Shared {
    pub(crate) config: NanoConfig,
    pub(crate) layout: HeapLayout,
    pub(crate) reach: Arc<dyn Reach>,
    pub(crate) master: Arc<dyn MasterApi>,
    pub(crate) owner: Owner,
    pub(crate) gone: Gone,
    pub(crate) tally: Tally,
    open: Mutex<Open>,
    pub(crate) late: Mutex<Vec<Late>>,
}

/// A rank of the cache.
pub struct Nano {
    shared: Arc<Shared>,
    duty: Duty,
}

impl std::fmt::Debug for Nano {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nano").field("reach", &self.shared.reach).finish_non_exhaustive()
    }
}

/// How long an owner may take to say that a put was given up, before the key counts as taken.
const GIVEN_UP: Duration = Duration::from_millis(200);

/// The only mount of a rank: a group has one life.
pub(crate) const MOUNT: Incarnation = Incarnation(1);

/// The name under which the master knows a rank.
pub(crate) fn node_name(rank: Rank) -> String {
    format!("rank-{}", rank.number())
}

/// The segment that a rank offers.
pub(crate) fn segment_of(medium: Medium, rank: Rank) -> SegmentId {
    SegmentId::on(medium, NodeId::named(&node_name(rank)), 0)
}

/// Which rank a key goes to when the caller does not say: rendezvous hashing, so that few keys move when
/// the world changes.
pub fn route(key: &[u8], world: World) -> Rank {
    let weight = |rank: Rank| {
        let salted = [key, &[rank.number()]].concat();
        (key::hash(&salted).0, rank)
    };
    world.ranks().max_by_key(|rank| weight(*rank)).expect("a world has a rank")
}

impl Nano {
    /// Offers this rank's heap to the master and begins to carry out its orders.
    pub fn start(
        reach: Arc<dyn Reach>,
        layout: HeapLayout,
        master: Arc<dyn MasterApi>,
        gone: Gone,
        config: NanoConfig,
    ) -> Result<Self, NanoError> {
        Pages::new(0, config.page_bytes)
            .ok_or(NanoError::BadPage { page_bytes: config.page_bytes })?;
        let segment = segment_of(reach.medium(), reach.heap().rank());
        // A processor that died has stored its last byte; a GPU may not have.
        let grace = if reach.medium() == Medium::Vram { DEVICE_GRACE } else { Duration::ZERO };
        let offered = Offered { segment, incarnation: MOUNT, slots: layout.slots(), grace };
        let owner = Owner::new(Arc::clone(&reach), offered);
        let (tally, open, late) = (Tally::default(), Mutex::default(), Mutex::default());
        let shared = Shared { config, layout, reach, master, owner, gone, tally, open, late };
        let shared = Arc::new(shared);
        let duty = Duty::start(&shared)?;
        Ok(Self { shared, duty })
    }

    /// Who this is.
    pub fn rank(&self) -> Rank {
        self.shared.reach.heap().rank()
    }

    /// How many ranks there are.
    pub fn world(&self) -> World {
        self.shared.reach.heap().world()
    }

    /// The hands of this rank, for those who launch kernels of their own.
    pub fn reach(&self) -> &Arc<dyn Reach> {
        &self.shared.reach
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Reserves room for a value in the heap of `preferred`, or of the rank that the key goes to.
    pub fn open_for_write(
        &self,
        key: &[u8],
        bytes_total: u64,
        preferred: Option<usize>,
    ) -> Result<WritePlan, NanoError> {
        self.shared.open.lock().claim(key)?;
        let planned = self.shared.open_for_write(key, bytes_total, preferred);
        let mut open = self.shared.open.lock();
        match &planned {
            Ok(plan) => open.put_back(key, *plan, Arc::default()),
            Err(_) => open.release(key),
        }
        planned
    }

    /// Writes a part of the value, from `start` on: bytes of device memory after what is queued on `stream`, a handle of
    /// the caller. The whole value is there before [`Nano::commit`].
    pub fn push(
        &self,
        plan: &WritePlan,
        start: u64,
        source: Source<'_>,
        stream: Option<u64>,
    ) -> Result<(), NanoError> {
        let marks = self.shared.open.lock().marks(plan).ok_or(NanoError::NoPlan)?;
        let len = source.len();
        let Place { pages, payload_offset, owner, .. } = plan.place;
        if start.checked_add(len).is_none_or(|end| end > pages.bytes_total) {
            return Err(NanoError::WrongLength {
                value: pages.bytes_total,
                given: start.saturating_add(len),
            });
        }
        let began = boottime();
        let when = self.shared.when(stream);
        self.shared.reach.write(owner, payload_offset + start, source, when, &marks)?;
        self.shared.tally.push.note(boottime().since(began));
        self.shared.tally.bytes_tx.add(len);
        Ok(())
    }

    /// Makes the value readable by those who know where it is, after what is queued on `stream` and all pushes; without
    /// one it waits for all work of this process on its GPU. Again, it does nothing.
    pub fn publish(&self, plan: &WritePlan, stream: Option<u64>) -> Result<(), NanoError> {
        let marks = self.shared.open.lock().marks(plan).ok_or(NanoError::NoPlan)?;
        let (flight, when) = self.shared.publish(plan, &marks, stream)?;
        self.shared.published(plan, flight, when)
    }

    /// Publishes the value of an open plan, after what is queued on `stream` and all pushes, and gives it to the key.
    /// Without a stream it waits for all work of this process on its GPU. A kernel may have published the value
    /// already. Again, it does nothing.
    pub fn commit(&self, key: &[u8], stream: Option<u64>) -> Result<(), NanoError> {
        let shared = &self.shared;
        let (plan, marks) = {
            let mut open = shared.open.lock();
            match open.take(key) {
                Some(taken) => taken,
                None if open.was_committed(key) => return Ok(()),
                None => return Err(NanoError::NoPlan),
            }
        };
        let began = boottime();
        let (flight, when) = match shared.publish(&plan, &marks, stream) {
            Ok(queued) => queued,
            Err(error) => {
                // It says nothing about the plan.
                shared.open.lock().put_back(key, plan, marks);
                return Err(error);
            }
        };
        let ended = shared.published(&plan, flight, when).and_then(|()| shared.end(key, &plan));
        match ended {
            Ok(()) => {
                let mut open = shared.open.lock();
                open.release(key);
                open.note_committed(key);
                shared.tally.commit.note(boottime().since(began));
            }
            // Nothing is lost: what was queued publishes the value, and the next commit finds it.
            Err(NanoError::Late) => shared.open.lock().put_back(key, plan, marks),
            Err(_) => {
                shared.abandon(key, &plan);
                shared.open.lock().release(key);
            }
        }
        ended
    }

    /// Gives up an open plan, after all work of this process on its GPU. No thread of the caller pushes it.
    pub fn abandon(&self, key: &[u8]) -> Result<(), NanoError> {
        let (plan, _) = self.shared.open.lock().take(key).ok_or(NanoError::NoPlan)?;
        self.shared.abandon(key, &plan);
        self.shared.open.lock().release(key);
        Ok(())
    }

    /// Stores a value: bytes of device memory after what is queued on `stream`, a handle of the caller. When it returns,
    /// the value is there. If it is late, the source stays as it is until the stream has come so far.
    pub fn put(
        &self,
        key: &[u8],
        source: Source<'_>,
        preferred: Option<usize>,
        stream: Option<u64>,
    ) -> Result<(), NanoError> {
        self.put_held(key, source, preferred, stream, &mut || Box::new(()))
    }

    /// The same for memory that goes with what `hold` gives: if the put is late, that is kept for as long.
    pub fn put_held(
        &self,
        key: &[u8],
        source: Source<'_>,
        preferred: Option<usize>,
        stream: Option<u64>,
        hold: Hold<'_>,
    ) -> Result<(), NanoError> {
        // Before room is asked for, which may be that of other values.
        self.shared.reach.check(stream)?;
        self.shared.open.lock().claim(key)?;
        let done = self.shared.put(key, source, preferred, stream, hold);
        self.shared.open.lock().release(key);
        done
    }

    /// Where a value is, without holding it; `None`: the key has none.
    pub fn get_location(&self, key: &[u8]) -> Result<Option<Place>, NanoError> {
        Ok(self.shared.locate(key)?.map(|(place, _)| place))
    }

    /// Copies a value of exactly the target's length; `false`: the key has none. Device memory is written after what is
    /// queued on `stream`, a handle of the caller; when it returns, the value is there. If it is late, the target is
    /// written when the stream comes so far; without a stream it is not late.
    pub fn get_into(
        &self,
        key: &[u8],
        target: Target<'_>,
        stream: Option<u64>,
    ) -> Result<bool, NanoError> {
        self.get_into_held(key, target, stream, &mut || Box::new(()))
    }

    /// The same for memory that goes with what `hold` gives: if the get is late, that is kept until it has ended.
    pub fn get_into_held(
        &self,
        key: &[u8],
        mut target: Target<'_>,
        stream: Option<u64>,
        hold: Hold<'_>,
    ) -> Result<bool, NanoError> {
        // Once more where what was found is gone: it was evicted after it was looked up, and the key may
        // have another value, or none.
        let began = boottime();
        for _ in 0..2 {
            let Some((place, seal)) = self.shared.locate(key)? else { return Ok(false) };
            match self.shared.copy_out(&place, seal, &mut target, stream, hold) {
                Err(NanoError::Gone) => continue,
                Ok(()) => self.shared.tally.get.note(boottime().since(began)),
                Err(error) => return Err(error),
            }
            return Ok(true);
        }
        Ok(false)
    }

    /// Removes a value; `false`: the key has none. When it returns, no get finds the value.
    pub fn remove(&self, key: &[u8]) -> Result<bool, NanoError> {
        let until = self.shared.deadline();
        loop {
            let answer = self.shared.master.remove(false, &[key], until)?;
            match answer.into_iter().next() {
                Some(Ok(())) => return Ok(true),
                Some(Err(RemoveError::NotFound)) | None => return Ok(false),
                // Hidden already; its owner has not said yet that nobody can pin it any more.
                Some(Err(RemoveError::Deferred { .. }))
                    if !until.passed(boottime()) && !interrupt::sleep(self.shared.config.tick) => {}
                Some(Err(error)) => return Err(error.into()),
            }
        }
    }

    /// Counts as a read of the value, for eviction; whether the key has one.
    pub fn touch(&self, key: &[u8]) -> Result<bool, NanoError> {
        Ok(self.get_location(key)?.is_some())
    }

    /// What this rank has done and holds.
    pub fn stats(&self) -> Stats {
        self.shared.tally.read(&self.shared.owner)
    }

    /// How long its calls took.
    pub fn timings(&self) -> Timings {
        self.shared.tally.timings()
    }

    /// Gives up what was not committed, takes this rank's heap back and ends its threads. Dropping it does the same.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Nano {
    fn drop(&mut self) {
        let open = std::mem::take(&mut *self.shared.open.lock());
        for (key, plan) in open.into_plans() {
            self.shared.abandon(&key, &plan);
        }
        self.shared.end_late();
        self.duty.end();
    }
}

impl Shared {
    pub(crate) fn deadline(&self) -> Deadline {
        boottime().deadline_in(self.config.timeout)
    }

    fn me(&self) -> Rank {
        self.reach.heap().rank()
    }

    fn one(&self, owner: Rank, step: Step) -> Result<Stepped, NanoError> {
        Ok(self.reach.step(owner, &[step])?.remove(0))
    }

    fn touch(&self, place: &Place, touch: Touch) -> Result<Stepped, NanoError> {
        let (slot, generation) = (place.slot, Generation(place.epoch));
        self.one(place.owner, Step { slot, generation, touch })
    }

    fn when(&self, stream: Option<u64>) -> When {
        When { stream, until: self.deadline() }
    }

    fn put(
        &self,
        key: &[u8],
        source: Source<'_>,
        preferred: Option<usize>,
        stream: Option<u64>,
        hold: Hold<'_>,
    ) -> Result<(), NanoError> {
        let len = source.len();
        let (plan, header) = self.plan(key, len, preferred)?;
        let (when, began) = (self.when(stream), boottime());
        let flight = match self.reach.put(&plan.place, &header, source, when) {
            Ok(flight) => flight,
            Err(error) => {
                match error {
                    NanoError::Late => self.give_up(key, &plan), // nothing was stored
                    _ => self.abandon(key, &plan),
                }
                return Err(error);
            }
        };
        match self.land(flight, when, Some((key, &plan)), Some(hold)) {
            Ok(Ok(_)) => {}
            // The plan goes when the work has ended.
            Err(NanoError::Late) => return Err(NanoError::Late),
            Ok(Err(_)) => {
                self.give_up(key, &plan);
                return Err(NanoError::Gone);
            }
            Err(error) => {
                self.abandon(key, &plan);
                return Err(error);
            }
        }
        self.tally.push.note(boottime().since(began));
        self.tally.bytes_tx.add(len);
        let ending = boottime();
        self.end(key, &plan).inspect_err(|_| self.give_up(key, &plan))?;
        self.tally.commit.note(boottime().since(ending));
        Ok(())
    }

    fn open_for_write(
        &self,
        key: &[u8],
        bytes_total: u64,
        preferred: Option<usize>,
    ) -> Result<WritePlan, NanoError> {
        let (plan, header) = self.plan(key, bytes_total, preferred)?;
        match self.touch(&plan.place, Touch::Begin(Box::new(header))) {
            Ok(Ok(_)) => Ok(plan),
            begun => {
                self.abandon(key, &plan);
                Err(begun.err().unwrap_or(NanoError::Gone))
            }
        }
    }

    /// Asks for room, and writes the header that its life begins with.
    fn plan(
        &self,
        key: &[u8],
        bytes_total: u64,
        preferred: Option<usize>,
    ) -> Result<(WritePlan, Header), NanoError> {
        let began = boottime();
        let world = self.reach.heap().world();
        let owner = match preferred {
            None => route(key, world),
            Some(wanted) => {
                world.rank(wanted).ok_or(NanoError::BadRank { wanted, world: world.len() })?
            }
        };
        let page_bytes = self.config.page_bytes;
        let pages = Pages::new(bytes_total, page_bytes).ok_or(NanoError::BadPage { page_bytes })?;
        let plan = self.start(key, bytes_total, owner).inspect_err(|_| self.tally.refused.one())?;
        let (key_hash, token) = (key::hash(key), plan.token);
        let found = plan
            .replicas
            .first()
            .and_then(|locator| Some((locator, Place::of(locator, owner, &self.layout, pages)?)));
        let Some((locator, place)) = found else {
            // Room that is no use here goes back at once, and so does the key.
            self.revoke(key, token);
            return Err(NanoError::Gone);
        };
        let plan = WritePlan { key_hash, place, token };
        let header = self.header(key, &plan, locator.extent.len());
        self.tally.plan.note(boottime().since(began));
        Ok((plan, header))
    }

    /// Asks the master for room. A put that was just given up is in progress until its owner has said so.
    fn start(&self, key: &[u8], len: u64, owner: Rank) -> Result<Planned, NanoError> {
        let (config, patience) = (self.wish(owner), boottime().deadline_in(GIVEN_UP));
        loop {
            let items = [PutItem::new(key, len)];
            let planned = self.master.put_start(&config, &items, self.deadline())?;
            match planned.into_iter().next().ok_or(NanoError::Gone)? {
                Err(PutError::InProgress { .. })
                    if !patience.passed(boottime()) && !interrupt::sleep(self.config.tick) => {}
                planned => return Ok(planned?),
            }
        }
    }

    /// A copy in the heap of that rank and nowhere else.
    fn wish(&self, owner: Rank) -> PutConfig {
        let medium = self.reach.medium();
        let others = self.reach.heap().world().ranks().filter(|rank| *rank != owner);
        let mut config = PutConfig {
            preferred: vec![segment_of(medium, owner)],
            avoid: others.map(|rank| segment_of(medium, rank)).collect(),
            ..PutConfig::default()
        };
        config.media[medium as usize] = 1;
        config
    }

    fn header(&self, key: &[u8], plan: &WritePlan, extent_bytes: u64) -> Header {
        let (pages, fingerprint) = (plan.place.pages, key::fingerprint(key).0);
        Header {
            key_hash: plan.key_hash.0,
            key_fp_hi: (fingerprint >> 64) as u64,
            key_fp_lo: fingerprint as u64,
            key_len: u32::try_from(key.len()).unwrap_or(u32::MAX),
            header_version: HEADER_VERSION,
            payload_base: plan.place.payload_offset,
            bytes_total: pages.bytes_total,
            page_size: pages.page_bytes,
            n_pages: pages.count(),
            last_page_bytes: pages.last_bytes(),
            producer_rank: self.me().number().into(),
            epoch: plan.place.epoch,
            state_ts: boottime().0,
            extent_bytes,
            ..Header::default()
        }
    }

    /// Queues what makes the value ready. An error says that this was not queued, and nothing about the plan.
    fn publish(
        &self,
        plan: &WritePlan,
        marks: &Marks,
        stream: Option<u64>,
    ) -> Result<(Box<dyn Flight>, When), NanoError> {
        if stream.is_none() {
            // Kernels of this process that push the value, and may publish it, have ended.
            self.reach.settle()?;
        }
        let when = self.when(stream);
        Ok((self.reach.publish(&plan.place, when, marks)?, when))
    }

    /// Waits until the value is ready.
    fn published(
        &self,
        plan: &WritePlan,
        flight: Box<dyn Flight>,
        when: When,
    ) -> Result<(), NanoError> {
        let place = &plan.place;
        if self.land(flight, when, None, None)?.is_ok() {
            return Ok(());
        }
        // Published already, by a kernel or an earlier call; or given up by the watchdog.
        let words = self.reach.words(place.owner, &[place.slot])?;
        let ready = words.iter().all(|word| word.readable(Generation(place.epoch)));
        if ready { Ok(()) } else { Err(NanoError::Gone) }
    }

    /// Tells the master that the key has its value.
    fn end(&self, key: &[u8], plan: &WritePlan) -> Result<(), NanoError> {
        let Place { owner, payload_offset, pages, .. } = plan.place;
        let seal = if self.config.checksums {
            let sums = self.reach.sums(owner, payload_offset, pages.bytes_total)?;
            Seal::over(pages.bytes_total, sums)
        } else {
            Seal::default()
        };
        let seals = SealList::encode(&[seal]);
        let item = PutEndItem { key, token: plan.token, seals: SealList::of(&seals) };
        let ended = self.master.put_end(&[item], self.deadline())?;
        Ok(ended.into_iter().next().ok_or(NanoError::Gone)??)
    }

    /// Gives a plan up, once all kernels of this process have ended.
    fn abandon(&self, key: &[u8], plan: &WritePlan) {
        if self.reach.settle().is_err() {
            // It is not known that nobody stores any more: the slot stays in quarantine.
            return;
        }
        self.give_up(key, plan);
    }

    /// Gives up a plan by which this rank stores no more, so it fences itself: the slot is free as soon as the owner
    /// looks. Whatever fails here, the master's watchdog and the owner make good.
    pub(crate) fn give_up(&self, key: &[u8], plan: &WritePlan) {
        let place = &plan.place;
        let _ = self.touch(place, Touch::Apply(Event::Abort));
        let slot = place.slot;
        let fence = Step {
            slot,
            generation: Generation(place.epoch.wrapping_add(1)),
            touch: Touch::Apply(Event::Fence),
        };
        let _ = self.one(place.owner, fence);
        self.revoke(key, plan.token);
    }

    /// Tells the master that a put is given up.
    fn revoke(&self, key: &[u8], token: PutToken) {
        let _ = self.master.put_revoke(&[PutRevokeItem { key, token }], self.deadline());
    }

    fn locate(&self, key: &[u8]) -> Result<Option<(Place, Seal)>, NanoError> {
        let ask = Look { hold: false, places: true, reads: true, keys: Cow::Owned(vec![key]) };
        let looked = self.master.look(&ask, self.deadline())?;
        match looked.into_iter().next() {
            Some(Ok(Looked::At(located))) => Ok(self.place_of(&located)),
            Some(Ok(Looked::Writing)) => Err(NanoError::NotReady),
            Some(Ok(Looked::Missing | Looked::Here { .. })) | None => Ok(None),
            Some(Err(error)) => Err(error.into()),
        }
    }

    /// The copy in a heap of this cache; `None`: there is none, so for this cache the key has no value.
    fn place_of(&self, located: &Located) -> Option<(Place, Seal)> {
        let medium = self.reach.medium();
        let pages = Pages::new(located.len(), self.config.page_bytes)?;
        located.replicas.iter().find_map(|locator| {
            let world = self.reach.heap().world();
            let owner = world.ranks().find(|rank| segment_of(medium, *rank) == locator.segment)?;
            Some((Place::of(locator, owner, &self.layout, pages)?, located.seal))
        })
    }

    /// Pin, copy, unpin; then the checksum, over the copy.
    fn copy_out(
        &self,
        place: &Place,
        seal: Seal,
        target: &mut Target<'_>,
        stream: Option<u64>,
        hold: Hold<'_>,
    ) -> Result<(), NanoError> {
        let (value, given) = (place.pages.bytes_total, target.len());
        if value != given {
            return Err(NanoError::WrongLength { value, given });
        }
        let (me, when) = (self.me(), self.when(stream));
        let flight = self.reach.get(place, target, when)?;
        let landed = match stream {
            None => outlast(flight, when)?,
            Some(_) => self.land(flight, when, None, Some(hold))?,
        };
        landed.map_err(|refused| NanoError::of_pin(refused, me))?;
        self.tally.bytes_rx.add(value);
        if seal != Seal::default() && Seal::over(value, self.reach.sums_of(target)?) != seal {
            return Err(NanoError::Damaged);
        }
        Ok(())
    }
}
