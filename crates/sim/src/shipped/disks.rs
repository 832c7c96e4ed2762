//! The disks of a run: simulated ones, which the nodes use as they ship. A disk outlives the process that uses it.
//!
//! ```text
//!   drive ── SimDisk ──► Timed (operations take time) ──► SsdConfig ──► Node
//!     │        killed: what was written stays; power lost: any part of what was not synced is gone
//!     └── at a start of its node: in use, left out, moved to another node, or replaced by an older copy
//! ```
//!
//! What must stay true: one process at a time uses a disk. A copy of blocks is put back only if no stamp of it is on
//! the master's list: as long as one is, nothing tells the two apart (decision 0028).

use super::Plan;
use crate::fibers;
use crate::swarm::{between, pick};
use crate::{MS, Nanos};
use mooncrate_core::catalog::Offload;
use mooncrate_core::rng::Rng;
use mooncrate_lock::Mutex;
use mooncrate_node::{BackendKind, Evict, Given, Io, SsdConfig, TierConfig};
use mooncrate_rt as rt;
use mooncrate_ssd::disk::sim::{Rates, SimDisk};
use mooncrate_ssd::disk::{Entry, File};
use mooncrate_ssd::{Disk, Open, ReadAt, WriteAt};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The least that all backends can work with.
const SMALL_BYTES: u64 = 256 << 10;

/// What a seed draws about disks and the master's state; chances in parts per thousand.
#[derive(Clone, Debug)]
pub struct Load {
    seed: u64,
    /// Disks of each node.
    per_node: usize,
    /// Bytes that a node may use of each, and those that there are.
    bytes: u64,
    capacity: u64,
    bucket_bytes: u64,
    backend: BackendKind,
    evict: Evict,
    verify_values: bool,
    /// How long an operation takes, on average.
    nanos: Nanos,
    /// How long it takes to delete a file, on average, beside that.
    delete_nanos: Nanos,
    rates: Rates,
    scrub_bytes_per_second: u64,
    staging_lease: Duration,
    /// Starts without a disk of the node.
    left_out: u32,
    /// Starts with a disk of another node.
    moved: u32,
    /// Starts with an older copy of a disk.
    restored: u32,
    /// Whether masters keep a state; in a file of `--state-file`, or in the usual place.
    pub(super) keeps_state: bool,
    pub(super) names_state: bool,
    /// Starts of a master that find no state, and that find an older one.
    pub(super) forgets: u32,
    pub(super) older_state: u32,
    /// Quarters of a serving lease in which the state cannot be written.
    pub(super) unwritable: u32,
}

impl Load {
    /// From a stream of its own: the other choices of a seed stay the same. `None`: this seed has no disks.
    pub(super) fn draw(seed: u64, calm: bool) -> Option<Self> {
        let rng = &mut Rng::stream(seed, "disks");
        let this = rng.chance(600).then(|| Self::any(seed, rng))?;
        Some(if calm { this.calm() } else { this })
    }

    fn any(seed: u64, rng: &mut Rng) -> Self {
        let bytes = *pick(rng, &[SMALL_BYTES, 1 << 20, 4 << 20]);
        let errors = *pick(rng, &[0, 0, 0, 2_000]);
        Self {
            seed,
            per_node: between(rng, 1, 2) as usize,
            bytes,
            capacity: 2 * bytes + *pick(rng, &[0, 8 << 20]),
            bucket_bytes: *pick(rng, &[16 << 10, 64 << 10, 256 << 10]),
            backend: *pick(rng, &BackendKind::ALL),
            evict: *pick(rng, &[Evict::Fifo, Evict::Lru]),
            verify_values: rng.chance(500),
            nanos: *pick(rng, &[0, 50_000, 2 * MS, 20 * MS, 100 * MS]),
            delete_nanos: 0,
            rates: Rates {
                read_error: errors,
                write_error: errors,
                sync_error: errors,
                short: *pick(rng, &[0, 100_000]),
                ..Rates::default()
            },
            scrub_bytes_per_second: *pick(rng, &[0, 64 << 10]),
            staging_lease: Duration::from_millis(*pick(rng, &[5, 200, 5_000])),
            left_out: *pick(rng, &[0, 200, 500]),
            moved: *pick(rng, &[0, 0, 200]),
            restored: *pick(rng, &[0, 100, 400]),
            keeps_state: rng.chance(800),
            names_state: rng.chance(500),
            forgets: *pick(rng, &[0, 0, 100]),
            older_state: 0,
            unwritable: *pick(rng, &[0, 0, 500, 950]),
        }
    }

    /// Disks that are away, put back late or replaced by older copies, and masters that write down what they know of them.
    pub(super) fn of_absences(seed: u64, rng: &mut Rng) -> Self {
        let any = Self::any(seed, rng);
        // Eight records fill the smallest, which only takes files for them; it deletes slowly.
        let small = rng.chance(300);
        let backend = if small { BackendKind::PerKey } else { any.backend };
        Self {
            backend,
            bytes: if small { 64 << 10 } else { SMALL_BYTES },
            capacity: 512 << 10,
            nanos: *pick(rng, &[0, 50_000, 2 * MS]),
            delete_nanos: if small { 100 * MS } else { 0 },
            left_out: *pick(rng, &[0, 0, 300]),
            moved: *pick(rng, &[0, 0, 200]),
            restored: *pick(rng, &[0, 700]),
            keeps_state: true,
            forgets: *pick(rng, &[0, 0, 100]),
            unwritable: *pick(rng, &[0, 900]),
            ..any
        }
    }

    /// Nothing that takes a value away.
    fn calm(self) -> Self {
        let rates = Rates::default();
        Self { rates, unwritable: 0, bytes: 4 << 20, capacity: 16 << 20, ..self }
    }

    /// Whether it holds less than memory.
    pub(super) fn is_small(&self) -> bool {
        self.bytes < SMALL_BYTES
    }

    /// Lets values go to disks and come back: little memory, and a master that fills disks.
    pub(super) fn fit(&self, plan: &mut Plan) {
        let rng = &mut Rng::stream(self.seed, "offloads");
        let policies = [Offload::Evict, Offload::Watermark, Offload::Eager, Offload::Eager];
        let catalog = &mut plan.catalog;
        catalog.offload = *pick(rng, &policies);
        catalog.offload_permille = between(rng, 0, 900) as u32;
        catalog.offloads_per_disk_max = *pick(rng, &[1, 4, 64]);
        catalog.offload_bytes_per_disk_max = *pick(rng, &[64 << 10, 1 << 20]);
        catalog.promote = rng.chance(700);
        catalog.promote_reads = *pick(rng, &[1, 2]);
        plan.segment_bytes = *pick(rng, &[64 << 10, 64 << 10, 256 << 10]);
        plan.slots = *pick(rng, &[8, 16, 64]);
        plan.value_bytes_max = *pick(rng, &[600, 3_000, 20_000]);
        if self.nanos > 5 * MS {
            // A shorter call ends before such a disk has read anything.
            plan.call_time = plan.call_time.max(Duration::from_secs(1));
        }
    }

    fn config(&self, number: usize, disk: Arc<dyn Disk>) -> SsdConfig {
        SsdConfig {
            backend: self.backend,
            io: Io::Given(Given(disk)),
            evict: self.evict,
            bucket_bytes: Some(self.bucket_bytes),
            verify_values: self.verify_values,
            ..SsdConfig::new(format!("disk-{number}"), self.bytes)
        }
    }
}

/// A disk, and its node.
struct Drive {
    disk: Slot,
    /// The node that it belongs to, and whether a process of it has it now.
    node: usize,
    in_use: bool,
    /// What it was before some earlier start.
    older: Option<Arc<SimDisk>>,
}

/// The disk as the process that has it now sees it. Another process, or another node in it, gets it anew.
type Slot = Arc<Mutex<Arc<SimDisk>>>;

/// The disks of all nodes.
pub(super) struct Disks {
    load: Option<Load>,
    rng: Rng,
    drives: Vec<Drive>,
}

/// Disks that a process of a node has.
#[derive(Clone)]
pub(super) struct Mounted {
    load: Option<Load>,
    slots: Vec<(usize, Slot)>,
}

impl Disks {
    pub(super) fn new(seed: u64, load: Option<Load>, nodes: usize) -> Self {
        let rng = Rng::stream(seed, "drives");
        let mut this = Self { load, rng, drives: Vec::new() };
        let Some(load) = &this.load else { return this };
        for number in 0..nodes * load.per_node {
            let disk = SimDisk::new(this.rng.next(), load.capacity, load.rates);
            let disk = Arc::new(Mutex::new(Arc::new(disk)));
            let node = number % nodes;
            this.drives.push(Drive { disk, node, in_use: false, older: None });
        }
        this
    }

    /// The process of a node has ended: `power`: because its machine lost its power.
    pub(super) fn ended(&mut self, node: usize, power: bool) {
        for drive in self.drives.iter_mut().filter(|drive| drive.node == node && drive.in_use) {
            drive.in_use = false;
            let mut disk = drive.disk.lock();
            *disk = Arc::new(if power { disk.crash() } else { disk.kill() });
        }
    }

    /// The disks of a node that starts now; its `start`, and the list that the next leader would read.
    pub(super) fn mount(&mut self, node: usize, start: u64, list: &str) -> Mounted {
        self.ended(node, false);
        let Some(load) = self.load.clone() else {
            return Mounted { load: None, slots: Vec::new() };
        };
        let mut slots = Vec::new();
        for number in 0..self.drives.len() {
            let drive = &mut self.drives[number];
            let (own, left_out, moved) = (
                drive.node == node,
                start > 1 && self.rng.chance(load.left_out),
                start > 1 && self.rng.chance(load.moved),
            );
            if drive.in_use || (own && left_out) || (!own && !moved) {
                continue;
            }
            drive.in_use = true;
            drive.node = node;
            drive.choose(&load, &mut self.rng, list);
            fibers::note(11, number as u64, || format!("disk {number} is in node {node}"));
            slots.push((number, Arc::clone(&drive.disk)));
        }
        Mounted { load: Some(load), slots }
    }
}

impl Drive {
    /// Puts an older copy in place of the disk, or keeps one for later.
    fn choose(&mut self, load: &Load, rng: &mut Rng, list: &str) {
        let mut disk = self.disk.lock();
        let draw = rng.chance(load.restored);
        if let Some(older) = self.older.take_if(|_| draw) {
            if stamps(&older).iter().any(|stamp| list.contains(stamp)) {
                self.older = Some(older);
            } else {
                fibers::note(12, 0, || "an older copy is put in its place".to_owned());
                let _off = disk.kill();
                *disk = older;
            }
        }
        if self.older.is_none() && rng.chance(load.restored) {
            let copy = if rng.chance(500) { disk.copy_of_files() } else { disk.copy_of_blocks() };
            self.older = Some(Arc::new(copy));
        }
    }
}

/// The stamps that a list may name a disk by, as the list writes them.
fn stamps(disk: &SimDisk) -> Vec<String> {
    let Ok(file) = disk.open(Path::new("stamp"), Open::Read) else { return Vec::new() };
    let mut bytes = vec![0; file.len().unwrap_or(0) as usize];
    let mut reads = [ReadAt { file: &file, offset: 0, into: &mut bytes, result: Ok(()) }];
    disk.read(&mut reads);
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let words = text.split_whitespace().filter(|word| word.len() == 16);
    let numbers = words.filter_map(|word| u64::from_str_radix(word, 16).ok());
    numbers.filter(|stamp| *stamp != 0).map(|stamp| format!(" {stamp:x}\n")).collect()
}

impl Mounted {
    /// The disks for a node that is made now, in this process.
    pub(super) fn tier(&self) -> TierConfig {
        let Some(load) = &self.load else { return TierConfig::default() };
        let disks = self.slots.iter().map(|(number, slot)| {
            let disk = anew(slot);
            let rng = Rng::stream(load.seed ^ disk.operations(), "timed");
            let (nanos, delete_nanos) = (load.nanos, load.delete_nanos);
            let timed = Timed { disk, nanos, delete_nanos, rng: Mutex::new(rng) };
            load.config(*number, Arc::new(timed))
        });
        TierConfig {
            disks: disks.collect(),
            staging_lease: load.staging_lease,
            scrub_bytes_per_second: load.scrub_bytes_per_second,
            ..TierConfig::default()
        }
    }
}

/// Takes a disk from an earlier node of this process, which may still have it. Nothing else runs meanwhile: the process
/// may not be killed while it holds the lock.
fn anew(slot: &Slot) -> Arc<SimDisk> {
    let world = rt::world();
    rt::enter(None);
    let mut disk = slot.lock();
    *disk = Arc::new(disk.kill());
    let anew = Arc::clone(&disk);
    drop(disk);
    rt::enter(world);
    anew
}

/// A disk whose operations take time.
#[derive(Debug)]
struct Timed {
    disk: Arc<SimDisk>,
    nanos: Nanos,
    delete_nanos: Nanos,
    rng: Mutex<Rng>,
}

impl Timed {
    fn work(&self) -> &SimDisk {
        self.rest(self.nanos);
        &self.disk
    }

    fn rest(&self, nanos: Nanos) {
        if nanos > 0 {
            let nanos = self.rng.lock().below(2 * nanos);
            rt::sleep(Duration::from_nanos(nanos));
        }
    }
}

impl Disk for Timed {
    fn name(&self) -> &'static str {
        self.disk.name()
    }

    fn open(&self, path: &Path, how: Open) -> io::Result<Arc<dyn File>> {
        self.disk.open(path, how)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.rest(self.delete_nanos);
        self.work().remove(path)
    }

    fn make_dir(&self, path: &Path) -> io::Result<()> {
        self.disk.make_dir(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        self.disk.list(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.work().sync_dir(dir)
    }

    fn sync_files(&self, files: &[&Arc<dyn File>]) -> Vec<io::Result<()>> {
        self.work().sync_files(files)
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.disk.free_bytes()
    }

    fn read(&self, reads: &mut [ReadAt<'_>]) {
        self.work().read(reads);
    }

    fn write(&self, writes: &mut [WriteAt<'_>]) {
        self.work().write(writes);
    }
}
