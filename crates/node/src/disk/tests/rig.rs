//! One disk without its node: a real backend over a disk in memory, behind a gate that tests reach into.

use super::super::keep::{Going, Source};
use super::super::open::{Parts, adopt, kept_segment};
use super::super::{Disk, End, SsdConfig, record_of};
use crate::metrics::Tally;
use mooncrate_core::copy::{CopyDone, CopyOrder};
use mooncrate_core::plan::{Action, Evidence, Medium, Notice, Order};
use mooncrate_core::seal::extent_bytes;
use mooncrate_core::{
    Extent, Generation, Incarnation, Label, LeaderEpoch, Locator, Name, NodeId, Now, ObjectId,
    PutToken, SegmentId, Slot, TenantId,
};
use mooncrate_lock::Mutex;
use mooncrate_mem::clock::boottime;
use mooncrate_mem::sums::seal_of;
use mooncrate_mem::{BeginWrite, LabelHash, Segment};
use mooncrate_ssd::disk::sim::{Rates, SimDisk};
use mooncrate_ssd::{
    Backend, Config, KeepError, Kind, Load, NewRecord, RecordId, Recovery, Room, Ticket, Usage,
};
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub(super) const EPOCH: LeaderEpoch = LeaderEpoch(3);
const LIMIT: u64 = 64 << 20;
pub(super) const LEN: u64 = 5000;
const TOKEN: PutToken = PutToken(9);

type Hook = Box<dyn FnOnce() + Send>;

/// A backend that does as it is told, but for what a test says.
#[derive(Default)]
pub(super) struct Gate {
    /// Run by the next removals, before they remove.
    pub(super) before_remove: Mutex<VecDeque<Hook>>,
    /// How many of the next removals fail, having done nothing.
    pub(super) removals_fail: Mutex<u32>,
    /// How many of the next groups are written and fail all the same.
    pub(super) keeps_fail: Mutex<u32>,
    /// Reads hang while this is so.
    pub(super) hangs: AtomicBool,
    /// How many of the next evictions fail in their second step, having deleted nothing.
    pub(super) deletions_fail: Mutex<u32>,
}

#[derive(Debug)]
struct Gated {
    inner: Arc<dyn Backend>,
    gate: Arc<Gate>,
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Gate")
    }
}

/// Whether one of the next calls was to fail, and this is it.
fn strikes(left: &Mutex<u32>) -> bool {
    let mut left = left.lock();
    let strikes = *left > 0;
    *left -= u32::from(strikes);
    strikes
}

fn failed() -> io::Error {
    io::Error::from_raw_os_error(rustix::io::Errno::IO.raw_os_error())
}

impl Backend for Gated {
    fn keep(&self, records: &[NewRecord<'_>]) -> Vec<Result<(), KeepError>> {
        if strikes(&self.gate.keeps_fail) {
            // All of it is on the disk, and the disk says that it is not.
            assert!(self.inner.keep(records).iter().all(Result::is_ok));
            return records.iter().map(|_| Err(KeepError::Disk(failed()))).collect();
        }
        self.inner.keep(records)
    }

    fn load(&self, loads: &mut [Load<'_>]) {
        let end = boottime().deadline_in(Duration::from_mins(1));
        while self.gate.hangs.load(Ordering::Acquire) && !end.passed(boottime()) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.inner.load(loads);
    }

    fn remove(&self, ids: &[RecordId]) -> io::Result<()> {
        let hook = self.gate.before_remove.lock().pop_front();
        if let Some(hook) = hook {
            hook();
        }
        if strikes(&self.gate.removals_fail) {
            return Err(failed());
        }
        self.inner.remove(ids)
    }

    fn unlink(&self, bytes: u64) -> Option<Box<dyn Ticket>> {
        let (ticket, gate) = (self.inner.unlink(bytes)?, Arc::clone(&self.gate));
        Some(Box::new(GatedTicket { ticket, gate }))
    }

    fn scrub(&self, cursor: u64, bytes: u64) -> (Vec<RecordId>, u64) {
        self.inner.scrub(cursor, bytes)
    }

    fn token(&self) -> u64 {
        self.inner.token()
    }

    fn usage(&self) -> Usage {
        self.inner.usage()
    }

    fn promised(&self) -> u64 {
        self.inner.promised()
    }
}

#[derive(Debug)]
struct GatedTicket {
    ticket: Box<dyn Ticket>,
    gate: Arc<Gate>,
}

impl Ticket for GatedTicket {
    fn records(&self) -> &[RecordId] {
        self.ticket.records()
    }

    fn bytes(&self) -> u64 {
        self.ticket.bytes()
    }

    fn finish(self: Box<Self>, wait: Duration) -> io::Result<()> {
        if strikes(&self.gate.deletions_fail) {
            // Hidden for good, and on the disk: as a backend whose directory could not be synced.
            std::mem::forget(self.ticket);
            return Err(failed());
        }
        self.ticket.finish(wait)
    }
}

/// See the file's head.
pub(super) struct Rig {
    pub(super) disk: Arc<Disk>,
    pub(super) gate: Arc<Gate>,
    pub(super) tally: Tally,
    sim: Arc<SimDisk>,
}

pub(super) fn label(n: u64) -> Label {
    Label::plain(Name::new(TenantId::DEFAULT, format!("key/{n}").as_bytes())).unwrap()
}

pub(super) fn object(n: u64) -> ObjectId {
    ObjectId { epoch: EPOCH, sequence: n }
}

pub(super) fn id(n: u64) -> RecordId {
    record_of(object(n), &label(n).encode())
}

pub(super) fn value(n: u64) -> Vec<u8> {
    (0..LEN).map(|at| (at * 31 + n * 7) as u8).collect()
}

impl Rig {
    pub(super) fn new(kind: Kind) -> Self {
        let sim = Arc::new(SimDisk::new(1, 2 * LIMIT, Rates::default()));
        let device = Arc::clone(&sim) as Arc<dyn mooncrate_ssd::Disk>;
        let (inner, _) =
            mooncrate_ssd::open(device, &Config::new(kind, LIMIT), &mut drop, &mut drop).unwrap();
        let gate = Arc::<Gate>::default();
        let backend = Arc::new(Gated { inner, gate: Arc::clone(&gate) });
        let config = SsdConfig { backend: kind, ..SsdConfig::new("in memory", LIMIT) };
        let at = SegmentId::on(Medium::Ssd, NodeId(7), 0);
        let segment = kept_segment(&config, at, Incarnation(1), 0).unwrap();
        segment.witness(EPOCH).unwrap();
        segment.set_serve_until(Now(u64::MAX));
        let places = adopt(&segment, std::iter::empty()).places;
        let parts = Parts {
            backend,
            device: Arc::clone(&sim) as _,
            recovery: Recovery::default(),
            took: Duration::ZERO,
            evidence: Evidence::default(),
        };
        let disk = Arc::new(Disk::new(at, &config, parts, places, None));
        Self { disk, gate, tally: Tally::new(Arc::default()), sim }
    }

    pub(super) fn segment(&self) -> Arc<Segment> {
        Arc::clone(self.disk.places.lock().segment())
    }

    /// Where the first value of a slot is.
    pub(super) fn locator(&self, slot: u32) -> Locator {
        Locator {
            segment: self.disk.id,
            incarnation: self.segment().spec().incarnation,
            slot: Slot(slot),
            generation: Generation(0),
            extent: Extent::new(0, extent_bytes(LEN)).unwrap(),
            stripe: 0,
            grant: None,
        }
    }

    /// A value on its way to a slot of the segment.
    pub(super) fn going(&self, n: u64, slot: u32) -> Option<Going> {
        let target = self.locator(slot);
        let encoded = label(n).encode();
        let begin = BeginWrite {
            locator: target,
            token: TOKEN,
            object: object(n),
            epoch: EPOCH,
            len: LEN,
            label: &encoded,
            hash: LabelHash::of(&encoded),
        };
        // Refused by a mount that is over.
        let guard = self.disk.begin(&begin).ok()?;
        let mut room = Room::new(LEN as usize);
        room.push(&value(n));
        let order = CopyOrder {
            target,
            sources: Vec::new(),
            token: TOKEN,
            object: object(n),
            epoch: EPOCH,
            len: LEN,
            seal: seal_of(&room),
            label: label(n),
            time_ms: 1000,
        };
        let source = Source::Fetched(room);
        Some(Going { order: Box::new(order), guard, label: encoded, id: id(n), source })
    }

    /// Keeps a value in a slot; whether it is readable then.
    pub(super) fn keep(&self, n: u64, slot: u32) -> bool {
        let Some(going) = self.going(n, slot) else { return false };
        let mut done: Vec<CopyDone> = Vec::new();
        self.disk.keep_group(vec![going], &mut done);
        done[0].ok
    }

    /// The master's order to end a life.
    pub(super) fn order(&self, slot: u32, action: Action) -> End {
        let incarnation = self.segment().spec().incarnation;
        let (slot, generation) = (Slot(slot), Generation(0));
        End::Order(EPOCH, Order { segment: self.disk.id, incarnation, slot, generation, action })
    }

    /// Ends lives, as the thread does.
    pub(super) fn end(&self, ends: &[End]) -> Vec<Notice> {
        let (notices, removed) = self.disk.end_together(ends, &self.tally);
        removed.unwrap();
        notices
    }

    /// A new mount, as the node makes it when its master has given it up.
    pub(super) fn remount(&self) {
        let mount = Incarnation(self.segment().spec().incarnation.0 + 1);
        let segment = self.disk.remount(mount).unwrap();
        segment.witness(EPOCH).unwrap();
        segment.set_serve_until(Now(u64::MAX));
    }

    /// What the master would be told now: records that can be read, and slots with something else.
    pub(super) fn announced(&self) -> (BTreeSet<RecordId>, usize) {
        let (page, _) = self.segment().announce(Slot(0), usize::MAX);
        let lives: Vec<_> = page.into_iter().filter_map(|slot| slot.life).collect();
        let told = lives.iter().filter_map(|life| life.object.as_ref());
        let told: BTreeSet<RecordId> =
            told.map(|told| record_of(told.object, &told.label.encode())).collect();
        let others = lives.len() - told.len();
        (told, others)
    }

    /// The records that a start would find now.
    pub(super) fn on_disk(self) -> BTreeSet<RecordId> {
        let mut found = BTreeSet::new();
        let disk = Arc::new(self.sim.kill());
        let config = Config::new(self.disk.config.backend, LIMIT);
        let mut tell = |record: mooncrate_ssd::Record| {
            found.insert(record.id);
        };
        mooncrate_ssd::open(disk, &config, &mut tell, &mut drop).unwrap();
        found
    }
}
