//! The owner's side of a segment: who lives in which slot, and every step of those lives.
//!
//! ```text
//! begin ─► WriteGuard ─ publish ─► Ready ◄─ pin ─ PinGuard
//!              │ drop                │ execute: Evict, Retire, Abort
//!              ▼                     ▼
//!           Dead g+1 ◄──────── tick: last pin left, free_after over
//! ```
//!
//! What must stay true:
//!
//! * A range is handed out again only after the one step that bumped its generation (R1).
//! * A slot whose writer may still store stays Failed: only the end of its [`WriteGuard`] fences it.
//! * The header is the truth: everything a master needs is in the table, plus the label here.
//! * Steps of one slot are serialised by that slot's lock, except pins, which touch the word alone.
//!   Locks are taken in the order slot, then front, queue, news or held, then the bell's, and held for a few loads.
//!
//! Deliberately absent: clocks (`now` is an argument), sockets, threads, and what a label means.

mod announce;
mod bad;
mod error;
mod far;
mod kept;
mod lives;
mod orders;
mod pin;
mod place;
mod touch;
mod write;

#[cfg(test)]
mod tests;

pub use error::{PublishError, SegmentError, WriteError};
pub use kept::Adopt;
pub use pin::PinGuard;
pub use touch::TouchError;
pub use write::{BeginWrite, LabelHash, Unpublished, WriteGuard};

use crate::atomic::{AtomicU64, Ordering};
use crate::bell::Bell;
use crate::far::Far;
use crate::memory::Claim;
use crate::read::{self, OneSided};
use crate::region::{Backing, Pages, Region};
use crate::table::{Identity, Table};
use crate::word::{AtomicWord, before_first_byte};
use lives::Lives;
use mooncrate_core::canary::{self, Canary};
use mooncrate_core::limits::EXTENT_ALIGN;
use mooncrate_core::plan::Notice;
use mooncrate_core::state::Event;
use mooncrate_core::word::{Word, WordError};
use mooncrate_core::{
    Extent, Generation, Incarnation, LeaderEpoch, Locator, Now, ReplicaState, Seal, SegmentId, Slot,
};
use mooncrate_lock::Mutex;
use orders::Queue;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

/// What a segment is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentSpec {
    /// Which segment.
    pub segment: SegmentId,
    /// Which mount of it.
    pub incarnation: Incarnation,
    /// Bytes of payload; a multiple of 64.
    pub bytes: u64,
    /// Headers in its table.
    pub slots: u32,
    /// In memfds, so that processes of this machine can map it.
    pub shared: bool,
    /// From the operator's pool of huge pages, if it has enough.
    pub huge: bool,
}

impl SegmentSpec {
    fn check(&self) -> io::Result<()> {
        if self.slots > 0 && self.bytes > 0 && self.bytes.is_multiple_of(EXTENT_ALIGN) {
            return Ok(());
        }
        let Self { bytes, slots, .. } = self;
        let text = format!("a segment of {bytes} bytes and {slots} slots makes no sense");
        Err(io::Error::new(io::ErrorKind::InvalidInput, text))
    }

    /// What stands in the preamble.
    pub fn identity(&self) -> Identity {
        Identity {
            segment: self.segment,
            incarnation: self.incarnation,
            bytes: self.bytes,
            slots: self.slots,
        }
    }
}

/// What a segment holds, by its own counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentStats {
    /// Slots being written.
    pub writing: u64,
    /// Slots that can be read.
    pub ready: u64,
    /// Slots that wait for their last reader or for a lease.
    pub retiring: u64,
    /// Slots in quarantine.
    pub failed: u64,
    /// One more than the highest slot ever used.
    pub high_water: u32,
    /// Notices that `tick` has not handed out yet.
    pub news: u64,
    /// Values whose bytes were found not to be those that were sealed, since the segment was made.
    pub bad: u64,
}

/// A run of bytes that this process offers, with its header table.
#[derive(Debug)]
pub struct Segment {
    spec: SegmentSpec,
    table: Table,
    payload: Payload,
    /// What headers cannot hold: labels, tokens, waiting times. One lock per slot.
    lives: Lives,
    front: Mutex<Front>,
    /// Slots by state; steps keep it, `stats` reads it.
    counts: [AtomicU64; ReplicaState::ALL.len()],
    /// Retiring slots, by when to look at them again.
    queue: Mutex<Queue>,
    /// Lives that ended without an order, until `tick` tells.
    news: Mutex<Vec<Notice>>,
    /// What readers doubted, by slot: the life and the seal that it has, until `tick` tells.
    held: Mutex<BTreeMap<Slot, (Generation, Option<Seal>)>>,
    /// Rung when `tick` has something to do sooner than it knew; `None`: whoever ticks looks by itself.
    bell: OnceLock<Arc<Bell>>,
    /// Values that were found bad; `stats` reads it.
    bad: AtomicU64,
    /// Whether a range is zeroed between two lives.
    wipes: bool,
}

/// Where the bytes lie.
#[derive(Debug)]
enum Payload {
    /// In memory of this process.
    Host {
        region: Region,
        /// The same for those who only read it; `None`: not shared.
        readers: Option<OwnedFd>,
        /// Counts these bytes for as long as the segment lives.
        _claim: Claim,
    },
    /// On a disk.
    Kept,
    /// In memory of a device.
    Far(Arc<dyn Far>),
}

impl Payload {
    fn region(&self) -> Option<&Region> {
        match self {
            Self::Host { region, .. } => Some(region),
            Self::Kept | Self::Far(_) => None,
        }
    }
}

/// What a new leader learns and what an old one may no longer change. One lock, so that a plan of an
/// old leader either shows in the announcement to the new one, or is refused.
#[derive(Debug, Default)]
struct Front {
    epoch: LeaderEpoch,
    /// One more than the highest slot ever used.
    high_water: u32,
}

impl Segment {
    /// Makes the two regions. Until [`Segment::set_serve_until`] is called nobody can read.
    pub fn create(spec: SegmentSpec) -> io::Result<Arc<Self>> {
        Self::create_claimed(spec, false, Claim::new(spec.bytes))
    }

    /// As [`Segment::create`]; every range is zeroed when its life is over, before anybody is told
    /// that it is free. For segments that hold values of several tenants.
    pub fn create_wiping(spec: SegmentSpec) -> io::Result<Arc<Self>> {
        Self::create_claimed(spec, true, Claim::new(spec.bytes))
    }

    /// Either of the two, for bytes that were claimed before: who makes a segment for a user looks first whether
    /// there is that much memory ([`Claim::checked`]).
    pub fn create_claimed(spec: SegmentSpec, wipes: bool, claim: Claim) -> io::Result<Arc<Self>> {
        spec.check()?;
        let identity = spec.identity();
        let bytes = usize::try_from(spec.bytes).map_err(io::Error::other)?;
        let pages = if spec.huge { Pages::Huge } else { Pages::Transparent };
        // The table keeps small pages: slots that nobody uses shall cost nothing.
        let (headers, region) = if spec.shared {
            let headers = Region::memfd("mooncrate-headers", identity.table_bytes(), Pages::Small)?;
            let region = Region::memfd("mooncrate-payload", bytes, pages)?;
            headers.seal_writes()?;
            region.seal_seals()?;
            (headers, region)
        } else {
            let headers = Region::anonymous(identity.table_bytes(), Pages::Small)?;
            (headers, Region::anonymous(bytes, pages)?)
        };
        let table = Table::create(headers, &identity);
        let readers = region.read_only_fd()?;
        Ok(Arc::new(Self::with(
            spec,
            table,
            Payload::Host { region, readers, _claim: claim },
            wipes,
        )))
    }

    fn with(spec: SegmentSpec, table: Table, payload: Payload, wipes: bool) -> Self {
        Self {
            spec,
            table,
            payload,
            lives: Lives::new(spec.slots),
            front: Mutex::default(),
            counts: Default::default(),
            queue: Mutex::default(),
            news: Mutex::default(),
            held: Mutex::default(),
            bell: OnceLock::new(),
            bad: AtomicU64::default(),
            wipes,
        }
    }

    /// What it was made as.
    pub fn spec(&self) -> &SegmentSpec {
        &self.spec
    }

    /// Which pages the payload got.
    pub fn backing(&self) -> Backing {
        self.payload.region().map_or(Backing::Small, Region::backing)
    }

    /// Header table and payload, to be passed to processes of this machine that read; `None` if not
    /// shared. Neither can be mapped for writing.
    pub fn fds(&self) -> Option<(BorrowedFd<'_>, BorrowedFd<'_>)> {
        let Payload::Host { readers, .. } = &self.payload else { return None };
        Some((self.table.region().fd()?, readers.as_ref()?.as_fd()))
    }

    /// The payload, to be passed to a process that stores values into it directly.
    pub fn writable_fd(&self) -> Option<BorrowedFd<'_>> {
        self.payload.region()?.fd()
    }

    /// Where the payload lies in this process, and its bytes; for devices that prepare for memory.
    pub fn payload_at(&self) -> Option<(usize, usize)> {
        let payload = self.payload.region()?;
        let all = Extent::new(0, self.spec.bytes)?;
        Some((payload.check(all).ok()?.as_ptr().addr(), self.spec.bytes as usize))
    }

    /// Notes that a leader of this epoch exists; a lower one than known is refused (G7).
    pub fn witness(&self, epoch: LeaderEpoch) -> Result<(), SegmentError> {
        self.front.lock().witness(epoch)
    }

    /// The highest epoch seen; a master without election starts above it (R9).
    pub fn epoch(&self) -> LeaderEpoch {
        self.front.lock().epoch
    }

    /// Until when this owner may serve (R10).
    pub fn serve_until(&self) -> Now {
        self.table.serve_until()
    }

    /// Renews the leave to serve, after a heartbeat was acknowledged; `Now(0)` ends it at once.
    pub fn set_serve_until(&self, until: Now) {
        self.table.set_serve_until(until);
    }

    /// Whether this owner may serve now.
    pub fn serving(&self, now: Now) -> Result<(), SegmentError> {
        read::serving(self.serve_until(), now).map_err(|_| SegmentError::Fenced)
    }

    /// The steps of an unpinned read, as a client that mapped the segment would do them.
    pub fn one_sided(&self) -> OneSided<'_> {
        OneSided::new(&self.table, self.payload.region())
    }

    /// What it holds.
    pub fn stats(&self) -> SegmentStats {
        // Relaxed: each number is right for itself, together they are a snapshot of nothing.
        let count = |state: ReplicaState| self.counts[state as usize].load(Ordering::Relaxed);
        SegmentStats {
            writing: count(ReplicaState::Reserved) + count(ReplicaState::Writing),
            ready: count(ReplicaState::Ready),
            retiring: count(ReplicaState::Retiring),
            failed: count(ReplicaState::Failed),
            high_water: self.front.lock().high_water,
            news: (self.news.lock().len() + self.held.lock().len()) as u64,
            bad: self.bad.load(Ordering::Relaxed),
        }
    }

    /// All pins, by a walk over the table: for audits (G8), not for every day.
    pub fn pins(&self) -> u64 {
        let high_water = self.front.lock().high_water;
        (0..high_water).map(|slot| u64::from(self.load(Slot(slot)).pins())).sum()
    }

    /// The word of a slot that is known to exist.
    fn load(&self, slot: Slot) -> Word {
        self.atomic(slot).load()
    }

    fn atomic(&self, slot: Slot) -> &AtomicWord {
        self.table.word(slot).expect("the slot was checked where it came in")
    }

    /// One step of a slot's life, at a time that is noted where it is known. The caller holds the
    /// slot's lock.
    fn step(
        &self,
        now: Option<Now>,
        slot: Slot,
        generation: Generation,
        event: Event,
    ) -> Result<Word, WordError> {
        let word = self.atomic(slot);
        // Stable under the slot's lock: pins change the pins only.
        let before = word.load().state();
        let after = word.apply(generation, event)?;
        // Dead slots are not counted: most were never used.
        if before != ReplicaState::Dead {
            self.counts[before as usize].fetch_sub(1, Ordering::Relaxed);
        }
        if after.state() != ReplicaState::Dead {
            self.counts[after.state() as usize].fetch_add(1, Ordering::Relaxed);
        }
        if let Some(now) = now {
            self.table.set_state_ts(slot, now);
        }
        Ok(after)
    }

    fn check_mount(
        &self,
        segment: SegmentId,
        incarnation: Incarnation,
        slot: Slot,
    ) -> Result<(), SegmentError> {
        if segment != self.spec.segment {
            Err(SegmentError::OtherSegment { here: self.spec.segment, asked: segment })
        } else if incarnation != self.spec.incarnation {
            Err(SegmentError::OtherMount { here: self.spec.incarnation, asked: incarnation })
        } else if slot.0 >= self.spec.slots {
            Err(SegmentError::NoSuchSlot { slot, slots: self.spec.slots })
        } else {
            Ok(())
        }
    }

    fn check_locator(&self, locator: &Locator) -> Result<*mut u8, SegmentError> {
        self.check_mount(locator.segment, locator.incarnation, locator.slot)?;
        self.first_byte(locator.extent)
    }

    fn notice(
        &self,
        slot: Slot,
        generation: Generation,
        result: mooncrate_core::plan::OrderResult,
    ) -> Notice {
        let SegmentSpec { segment, incarnation, .. } = self.spec;
        Notice { segment, incarnation, slot, generation, result }
    }

    /// Zeroes the range of a life that is over, if that is wanted. After the bump, so no reader takes
    /// the zeros for a value (R1), and under the slot's lock, so neither a notice nor an announcement
    /// can say that the range is free before it is clean.
    fn wipe(&self, extent: Extent) {
        let Some(payload) = self.payload.region().filter(|_| self.wipes) else { return };
        let start = payload.check(extent).expect("`begin` checked the extent of this life");
        before_first_byte();
        // SAFETY: `check` proved that the extent lies in the payload, which lives as long as `self`.
        // Its life is over and its next one not planned yet, so no guard writes here; unpinned readers
        // of the old life copy opaquely and discard what they got.
        unsafe { start.write_bytes(0, extent.len() as usize) };
    }

    /// The extent in a slot's header. The caller holds the slot's lock or a pin.
    fn extent(&self, slot: Slot) -> Extent {
        let (base, len) = self.table.value(slot).expect("the slot was checked where it came in");
        Extent::new(base, mooncrate_core::seal::extent_bytes(len))
            .expect("`begin` wrote an extent that it had checked")
    }
}

impl Front {
    fn witness(&mut self, epoch: LeaderEpoch) -> Result<(), SegmentError> {
        if epoch < self.epoch && !canary::on(Canary::OldEpochAccepted) {
            return Err(SegmentError::OldEpoch { known: self.epoch, asked: epoch });
        }
        self.epoch = self.epoch.max(epoch);
        Ok(())
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // Mappings of other processes outlive us; nobody will free under them, but nobody will
        // retire what a master removes either. So they must stop reading (M8, R10).
        self.table.set_serve_until(Now(0));
    }
}
