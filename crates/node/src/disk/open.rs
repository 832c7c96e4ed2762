//! Opening a disk: lock, recover, and a segment whose Ready slots are the records that verified (S3). The
//! same after the node was given up by its master: the records are still there, the mount is a new one.

use super::budget::Budget;
use super::carried::{Carried, stand_in};
use super::keep::Queue;
use super::places::{Place, Places};
use super::stamp::{Stamped, stamp_anew};
use super::{Disk, Held, Io, SsdConfig, Tally, TierConfig, full, record_of};
use crate::config::NodeConfig;
use crate::duty::NodeError;
use mooncrate_core::limits::EXTENT_ALIGN;
use mooncrate_core::plan::{Announced, AnnouncedLife, Evidence};
use mooncrate_core::seal::extent_bytes;
use mooncrate_core::{Extent, Generation, Incarnation, LeaderEpoch, SegmentId, Slot};
use mooncrate_lock::{Condvar, Mutex};
use mooncrate_mem::clock::boottime;
use mooncrate_mem::{Adopt, Segment, SegmentSpec};
use mooncrate_rt as rt;
use mooncrate_ssd::disk::{Posix, Uring};
use mooncrate_ssd::{Backend, Config, OpenError, Progress, Record, RecordId, Recovery};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::Builder;
use std::time::Duration;

/// Bytes per slot. Records take whole blocks of 4 KiB, their heads included.
const BYTES_PER_SLOT: u64 = 8192;
/// Slots of one disk at most: its headers are 8 GiB then, if all are used.
const SLOTS_MAX: u64 = 1 << 26;
/// How often the log tells how far recovery is.
const LOG_STEP: Duration = Duration::from_secs(1);

/// Who wants to know how far recovery is.
pub type OnProgress = dyn Fn(&SsdConfig, Progress) + Send + Sync;

/// Disks of a node that has no master yet: open, locked, and recovered. Whoever keeps something beside
/// them, as a master in the same process does its state, opens them first: then nobody else is there.
#[derive(Debug, Default)]
pub struct OpenDisks(pub(crate) Vec<(Arc<Disk>, Arc<Segment>)>);

impl OpenDisks {
    /// Opens the disks of a node, all at a time.
    pub fn open(config: &NodeConfig) -> Result<Self, NodeError> {
        let open = |ssd| open(config.incarnation, ssd, &config.tier);
        let disks = config.tier.disks.iter();
        let opened: Vec<_> = if disks.len().min(rt::helpers()) <= 1 {
            disks.map(open).collect::<Result<_, NodeError>>()?
        } else {
            std::thread::scope(|scope| {
                let start = |ssd| {
                    let thread = Builder::new().name("disk-open".into());
                    thread.spawn_scoped(scope, move || open(ssd))
                };
                let opening: Vec<_> = disks.map(start).collect();
                let done = opening.into_iter().map(|opening| {
                    let thread = opening
                        .map_err(|source| NodeError::Io { doing: "starting a thread", source })?;
                    thread.join().unwrap_or_else(|_| {
                        let source = io::Error::other("the thread that opened it died");
                        Err(NodeError::Io { doing: "opening a disk", source })
                    })
                });
                done.collect::<Result<_, NodeError>>()
            })?
        };
        if let Some((copy, original)) = twins(&opened) {
            let text = format!(
                "it is a copy of {}; empty one of the two, or leave it out",
                original.config.path.display()
            );
            let path = copy.config.path.display().to_string();
            return Err(NodeError::Disk { path, source: io::Error::other(text) });
        }
        Ok(Self(opened))
    }

    /// Which disks there are, and what they show a master.
    pub fn offers(&self) -> Vec<(SegmentId, Evidence)> {
        self.0.iter().map(|(disk, _)| (disk.id, disk.evidence())).collect()
    }

    /// What these disks hold is believed by nobody: from now on no list that names an earlier stamp of theirs is
    /// right. To be called before the master beside them answers anything.
    pub fn confirm(
        &self,
        epoch: LeaderEpoch,
        doubted: impl Fn(SegmentId) -> bool,
    ) -> Result<(), NodeError> {
        for (disk, _) in self.0.iter().filter(|(disk, _)| doubted(disk.id)) {
            disk.confirm(epoch).map_err(|source| NodeError::Disk {
                path: disk.config.path.display().to_string(),
                source,
            })?;
        }
        Ok(())
    }
}

/// Two directories of one identity: one is a copy of the other.
fn twins(opened: &[(Arc<Disk>, Arc<Segment>)]) -> Option<(&Disk, &Disk)> {
    opened.iter().enumerate().find_map(|(at, (disk, _))| {
        let before = opened[..at].iter().find(|(other, _)| other.id == disk.id);
        before.map(|(other, _)| (disk.as_ref(), other.as_ref()))
    })
}

/// Opens a disk and makes its segment.
fn open(
    mount: Incarnation,
    config: &SsdConfig,
    tier: &TierConfig,
) -> Result<(Arc<Disk>, Arc<Segment>), NodeError> {
    let began = boottime();
    let mut records = Vec::new();
    let mut told = began;
    let mut progress = |so_far: Progress| {
        if let Some(listener) = &tier.on_progress {
            (listener.0)(config, so_far);
        }
        if boottime().since(told) >= LOG_STEP {
            told = boottime();
            tell_progress(config, so_far, boottime().since(began));
        }
    };
    let opened = device_of(config).and_then(|device| {
        let mut settings = Config::new(config.backend, config.bytes);
        settings.evict = config.evict;
        // Enough for a start, or one would drop records and gain nothing.
        settings.spare_room = settings.spare_room.max(2 * full::START_BYTES);
        settings.verify_values = config.verify_values;
        if let Some(bytes) = config.bucket_bytes {
            settings.bucket_bytes_max = bytes;
        }
        if let Some(records) = config.bucket_records {
            settings.bucket_records_max = records;
        }
        let found = &mut |record: Record| records.push(record);
        let opened = mooncrate_ssd::open(Arc::clone(&device), &settings, found, &mut progress);
        let (backend, recovery) = opened.map_err(|error| match error {
            OpenError::Disk(error) => error,
            error => io::Error::other(error),
        })?;
        Ok((device, backend, recovery))
    });
    let (device, backend, recovery) = opened.map_err(|source| NodeError::Disk {
        path: config.path.display().to_string(),
        source: full::explain(source),
    })?;
    let undeleted =
        full::make_room_to_start(config, device.as_ref(), backend.as_ref(), &mut records);
    let id = SegmentId::disk(backend.token());
    let Stamped { evidence, epoch } = stamp_anew(device.as_ref()).unwrap_or_else(|error| {
        let path = config.path.display();
        tracing::warn!(%error, %path, "no new stamp could be written: what the disk holds is not believed");
        Stamped::default()
    });
    let took = boottime().since(began);
    tracing::info!(
        path = %config.path.display(),
        records = recovery.records,
        dropped = recovery.dropped,
        orphans = recovery.orphans,
        seconds = took.as_secs_f64(),
        records_per_second = rate(recovery.records, took),
        "disk opened"
    );
    let segment = kept_segment(config, id, mount, records.len() as u64)?;
    let Adopted { places, mut unplaced, next } = adopt(&segment, records.iter().map(Told::from));
    drop(records);
    unplaced.extend(undeleted);
    // A master whose state is older than the leader that confirmed the disk must hear of that leader.
    let _first = segment.witness(epoch);
    let parts = Parts { backend, device, recovery, took, evidence };
    let disk = Disk::new(id, config, parts, places, tier.write_bytes_per_day);
    disk.drop_unplaced(&unplaced, &segment, Slot(next));
    Ok((Arc::new(disk), segment))
}

/// What opening gives.
pub(super) struct Parts {
    pub(super) backend: Arc<dyn Backend>,
    pub(super) device: Arc<dyn mooncrate_ssd::Disk>,
    pub(super) recovery: Recovery,
    pub(super) took: Duration,
    pub(super) evidence: Evidence,
}

impl Disk {
    pub(super) fn new(
        id: SegmentId,
        config: &SsdConfig,
        parts: Parts,
        places: Places,
        write_bytes_per_day: Option<u64>,
    ) -> Self {
        Self {
            id,
            config: config.clone(),
            backend: parts.backend,
            device: parts.device,
            recovery: parts.recovery,
            recovery_seconds: parts.took.as_secs_f64(),
            tally: Tally::default(),
            evidence: Mutex::new(parts.evidence),
            confirmed_by: Mutex::default(),
            places: Mutex::new(places),
            queue: Mutex::new(Queue::default()),
            queued: Condvar::new(),
            ends: Mutex::new(VecDeque::new()),
            ended: Condvar::new(),
            undurable: Mutex::default(),
            carried: Mutex::default(),
            loaders: Arc::default(),
            crowded: Mutex::new(false),
            crowd: Condvar::new(),
            said_full: Mutex::default(),
            refusing: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            budget: Mutex::new(Budget::new(write_bytes_per_day, boottime())),
        }
    }
}

fn tell_progress(config: &SsdConfig, so_far: Progress, took: Duration) {
    tracing::info!(
        path = %config.path.display(),
        records = so_far.records,
        percent = so_far.done * 100 / so_far.total.max(1),
        records_per_second = rate(so_far.records, took),
        "recovering"
    );
}

/// A rate for people.
fn rate(records: u64, took: Duration) -> u128 {
    u128::from(records) * 1000 / took.as_millis().max(1)
}

fn device_of(config: &SsdConfig) -> io::Result<Arc<dyn mooncrate_ssd::Disk>> {
    Ok(match &config.io {
        Io::Given(given) => Arc::clone(&given.0),
        Io::Posix => Arc::new(Posix::open(&config.path)?),
        // Rings that the kernel refuses are replaced by plain calls, one by one.
        Io::Auto | Io::Uring => Arc::new(Uring::open(&config.path)?),
    })
}

pub(super) fn kept_segment(
    config: &SsdConfig,
    id: SegmentId,
    mount: Incarnation,
    records: u64,
) -> Result<Arc<Segment>, NodeError> {
    let slots = (config.bytes / BYTES_PER_SLOT).max(records + records / 4).clamp(1024, SLOTS_MAX);
    let spec = SegmentSpec {
        segment: id,
        incarnation: mount,
        bytes: config.bytes / EXTENT_ALIGN * EXTENT_ALIGN,
        slots: u32::try_from(slots).unwrap_or(u32::MAX),
        shared: false,
        huge: false,
    };
    let made = Segment::create_kept(spec);
    made.map_err(|source| NodeError::Io { doing: "making the headers of a disk", source })
}

/// What a slot says of a record.
pub(super) struct Told<'a> {
    label: std::borrow::Cow<'a, [u8]>,
    object: mooncrate_core::ObjectId,
    len: u64,
    seal: mooncrate_core::Seal,
}

impl<'a> From<&'a Record> for Told<'a> {
    fn from(record: &'a Record) -> Self {
        let Record { id, label, len, seal } = record;
        Self { label: (&**label).into(), object: id.object, len: *len, seal: *seal }
    }
}

/// What a new segment has.
pub(super) struct Adopted {
    pub(super) places: Places,
    /// Records that found no slot: nobody could read them.
    unplaced: Vec<RecordId>,
    /// The first slot that is not used.
    next: u32,
}

/// Gives records slots, one after the other.
pub(super) fn adopt<'a>(
    segment: &Arc<Segment>,
    records: impl Iterator<Item = Told<'a>>,
) -> Adopted {
    let spec = *segment.spec();
    let now = boottime();
    let mut places = Places::new(Arc::clone(segment));
    places.reserve(records.size_hint().0);
    let mut unplaced = Vec::new();
    let (mut slot, mut offset, mut epoch) = (0, 0, LeaderEpoch(0));
    for told in records {
        let id = record_of(told.object, &told.label);
        let bytes = extent_bytes(told.len);
        let extent = Extent::new(offset, bytes).filter(|extent| extent.fits(spec.bytes));
        let place = Place { slot: Slot(slot), generation: Generation(0) };
        let adopted = extent.is_some_and(|extent| {
            let record = Adopt {
                slot: place.slot,
                extent,
                len: told.len,
                label: &told.label,
                object: told.object,
                seal: told.seal,
            };
            slot < spec.slots && !places.holds(&id) && segment.adopt(now, &record).is_ok()
        });
        if adopted {
            places.insert(spec.incarnation, id, place);
            epoch = epoch.max(told.object.epoch);
            (slot, offset) = (slot + 1, offset + bytes);
        } else {
            unplaced.push(id);
        }
    }
    // A leader below those that stored this could give their names to other values.
    let _first = segment.witness(epoch);
    Adopted { places, unplaced, next: slot }
}

impl Disk {
    /// The segment of a new mount, with what the old one could serve. Under one lock from the first look to
    /// the last: what is kept meanwhile finds the old mount over, and leaves nothing.
    pub(crate) fn remount(&self, mount: Incarnation) -> Result<Arc<Segment>, NodeError> {
        let mut places = self.places.lock();
        let old = Arc::clone(places.segment());
        let (mut told, mut unfinished) = (Vec::new(), Vec::new());
        let mut from = Some(Slot(0));
        while let Some(page) = from {
            let (slots, next) = old.announce(page, 4096);
            for Announced { slot, generation, life } in slots {
                match life {
                    Some(AnnouncedLife { object: Some(object), .. }) => told.push(object),
                    Some(_) => unfinished.push((slot, generation)),
                    None => {}
                }
            }
            from = next;
        }
        let slots = (told.len() + unfinished.len()) as u64;
        let segment = kept_segment(&self.config, self.id, mount, slots)?;
        let records = told.iter().map(|object| Told {
            label: object.label.encode().into(),
            object: object.object,
            len: object.len,
            seal: object.seal,
        });
        let adopted = adopt(&segment, records);
        *places = adopted.places;
        // Before the mount is told: the master must hear of them.
        let after = adopted.next + unfinished.len() as u32;
        let carried = (adopted.next..)
            .zip(unfinished)
            .map(|(slot, life)| Carried::new(&old, life, stand_in(&segment, Slot(slot))));
        self.carried.lock().extend(carried);
        drop(places);
        self.drop_unplaced(&adopted.unplaced, &segment, Slot(after));
        Ok(segment)
    }

    /// Removes records that nobody could read. While they are there, a slot stands for them: a disk that holds
    /// more than it told must not be believed (0022).
    fn drop_unplaced(&self, ids: &[RecordId], segment: &Arc<Segment>, slot: Slot) {
        if ids.is_empty() {
            return;
        }
        tracing::warn!(records = ids.len(), path = %self.config.path.display(), "records without a slot are removed");
        let Err(error) = self.backend.remove(ids) else { return };
        self.tally.errors.one();
        tracing::error!(%error, "records without a slot were not removed; tried again later");
        // They go together, so one slot is enough.
        let mut stands = stand_in(segment, slot).map(Held::Life);
        let held = ids.iter().map(|id| (*id, stands.take().unwrap_or(Held::Nothing)));
        self.undurable.lock().extend(held);
    }
}
