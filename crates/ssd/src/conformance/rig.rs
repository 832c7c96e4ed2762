//! A backend on a disk that can be closed, crashed and opened again, and records that say whose they are.

use crate::disk::Posix;
use crate::disk::sim::{Rates, SimDisk};
use crate::record::Kind;
use crate::{
    Backend, Config, Disk, KeepError, Load, LoadError, NewRecord, OpenError, Record, RecordId,
    Recovery, Usage,
};
use mooncrate_check::payload::{self, PutId};
use mooncrate_core::label::Label;
use mooncrate_core::{LeaderEpoch, Name, ObjectId, Seal, TenantId};
use mooncrate_mem::sums::seal_of;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Bytes that the disks have room for.
const CAPACITY: u64 = 256 << 20;

/// Where a backend lives between two starts.
pub(super) trait Home {
    fn name(&self) -> &'static str;
    fn disk(&mut self) -> Arc<dyn Disk>;
    /// The power fails; only simulated ones can.
    fn crash(&mut self) {}
    fn sim(&self) -> Option<&SimDisk> {
        None
    }
}

pub(super) struct SimHome(Arc<SimDisk>);

impl SimHome {
    pub(super) fn new(seed: u64) -> Self {
        Self::with_capacity(seed, CAPACITY)
    }

    pub(super) fn with_capacity(seed: u64, capacity: u64) -> Self {
        Self(Arc::new(SimDisk::new(seed, capacity, Rates::default())))
    }
}

impl Home for SimHome {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn disk(&mut self) -> Arc<dyn Disk> {
        Arc::clone(&self.0) as Arc<dyn Disk>
    }

    fn crash(&mut self) {
        self.0 = Arc::new(self.0.crash());
    }

    fn sim(&self) -> Option<&SimDisk> {
        Some(&self.0)
    }
}

pub(super) struct PosixHome(tempfile::TempDir);

impl PosixHome {
    pub(super) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }
}

impl Home for PosixHome {
    fn name(&self) -> &'static str {
        "posix"
    }

    fn disk(&mut self) -> Arc<dyn Disk> {
        Arc::new(Posix::open(&self.0.path().join("disk")).unwrap())
    }
}

/// A record to be, whose bytes follow from its name.
#[derive(Clone, Debug)]
pub(super) struct Thing {
    pub(super) id: RecordId,
    pub(super) label: Vec<u8>,
    pub(super) value: Vec<u8>,
    pub(super) seal: Seal,
}

impl Thing {
    pub(super) fn new(number: u32, len: usize) -> Self {
        Self::named(number, 0, format!("key {number}").as_bytes(), len)
    }

    pub(super) fn named(number: u32, stripe: u8, key: &[u8], len: usize) -> Self {
        let name = Name::new(TenantId::DEFAULT, key);
        let mut value = vec![0; len];
        payload::fill(&mut value, PutId::new(1, stripe.into(), number), name.hash());
        let object = ObjectId { epoch: LeaderEpoch(3), sequence: number.into() };
        let label = Label::plain(name).unwrap().encode();
        Self { id: RecordId { object, stripe }, label, seal: seal_of(&value), value }
    }

    pub(super) fn record(&self) -> NewRecord<'_> {
        let Self { id, label, value, seal } = self;
        NewRecord { id: *id, label, seal: *seal, value }
    }

    pub(super) fn load<'a>(&'a self, start: u64, into: &'a mut [u8], want: u64) -> Load<'a> {
        let (id, label, seal) = (self.id, &self.label[..], self.seal);
        let len = self.value.len() as u64;
        Load { id, label, len, seal, start, want, into, sums: None, result: Ok(()) }
    }

    pub(super) fn is(&self, record: &Record) -> bool {
        record.id == self.id
            && *record.label == *self.label
            && record.len == self.value.len() as u64
            && record.seal == self.seal
    }
}

pub(super) struct Rig {
    pub(super) config: Config,
    pub(super) home: Box<dyn Home>,
    pub(super) backend: Option<Arc<dyn Backend>>,
    /// What the last start found.
    pub(super) found: BTreeMap<RecordId, Record>,
    pub(super) recovery: Recovery,
}

impl Rig {
    /// Small buckets, so that a few records fill several.
    pub(super) fn new(kind: Kind, home: Box<dyn Home>) -> Self {
        let mut config = Config::new(kind, 64 << 20);
        config.bucket_bytes_max = 1 << 20;
        config.bucket_records_max = 8;
        config.token = Some(0x7e57);
        Self::with(config, home)
    }

    pub(super) fn with(config: Config, home: Box<dyn Home>) -> Self {
        let (found, recovery) = (BTreeMap::new(), Recovery::default());
        let mut this = Self { config, home, backend: None, found, recovery };
        this.open().unwrap();
        this
    }

    /// The same with other settings.
    pub(super) fn set(&mut self, change: impl FnOnce(&mut Config)) {
        change(&mut self.config);
        self.reopen();
    }

    pub(super) fn open(&mut self) -> Result<(), OpenError> {
        self.backend = None;
        let mut found = BTreeMap::new();
        let (mut seen, mut last) = (0, None);
        let disk = self.home.disk();
        let (backend, recovery) = crate::open(
            disk,
            &self.config,
            &mut |record| {
                seen += 1;
                found.insert(record.id, record);
            },
            &mut |progress| last = Some(progress),
        )?;
        assert_eq!(seen, found.len(), "each record is told once");
        assert_eq!(recovery.records, seen as u64);
        let last = last.expect("progress is told at least once");
        assert!(last.done == last.total && last.records == recovery.records, "{last:?}");
        assert_eq!(backend.usage().records, seen as u64);
        (self.backend, self.found, self.recovery) = (Some(backend), found, recovery);
        Ok(())
    }

    /// Closes without a word, as a killed process does, and opens again.
    pub(super) fn reopen(&mut self) {
        self.open().unwrap();
    }

    /// The power fails.
    pub(super) fn crash(&mut self) {
        self.home.crash();
        self.backend = None;
        self.open().unwrap();
    }

    pub(super) fn backend(&self) -> &dyn Backend {
        self.backend.as_deref().expect("open")
    }

    pub(super) fn keep(&self, things: &[Thing]) -> Vec<Result<(), KeepError>> {
        let records: Vec<NewRecord<'_>> = things.iter().map(Thing::record).collect();
        self.backend().keep(&records)
    }

    pub(super) fn keep_all(&self, things: &[Thing]) {
        for (thing, result) in things.iter().zip(self.keep(things)) {
            result.unwrap_or_else(|error| panic!("{:?}: {error}", thing.id));
        }
    }

    /// Loads a whole value; the bytes are checked if there are some.
    pub(super) fn load(&self, thing: &Thing) -> Result<(), LoadError> {
        self.part(thing, 0, thing.value.len() as u64)
    }

    pub(super) fn part(&self, thing: &Thing, start: u64, want: u64) -> Result<(), LoadError> {
        load_part(self.backend(), thing, start, want)
    }

    pub(super) fn has_all(&self, things: &[Thing]) {
        for thing in things {
            self.load(thing).unwrap_or_else(|error| panic!("{:?}: {error}", thing.id));
        }
    }

    pub(super) fn has_none(&self, things: &[Thing]) {
        for thing in things {
            let result = self.load(thing);
            assert!(matches!(result, Err(LoadError::Missing)), "{:?}: {result:?}", thing.id);
        }
    }

    /// Whether the last start found exactly these.
    pub(super) fn found_exactly(&self, things: &[Thing]) {
        assert_eq!(self.found.len(), things.len(), "{:?}", self.recovery);
        for thing in things {
            let record = self.found.get(&thing.id).unwrap_or_else(|| panic!("{:?}", thing.id));
            assert!(thing.is(record), "{record:?}");
        }
    }

    /// Bytes of all files, by looking (S7).
    pub(super) fn bytes_on_disk(&mut self) -> u64 {
        let disk = match self.home.sim() {
            Some(sim) => return sim.file_bytes(),
            // The lock is ours, so the disk is the backend's; look at the directory by itself.
            None => self.home.name(),
        };
        assert_eq!(disk, "posix");
        self.posix_bytes()
    }

    fn posix_bytes(&mut self) -> u64 {
        self.backend = None;
        let disk = self.home.disk();
        let bytes = tree_bytes(disk.as_ref(), Path::new(""));
        drop(disk);
        self.open().unwrap();
        bytes
    }

    /// The books are right, and below the limit.
    pub(super) fn balanced(&mut self) -> Usage {
        let usage = self.backend().usage();
        let bytes = self.bytes_on_disk();
        assert_eq!(usage.on_disk, bytes, "{usage:?}");
        assert!(bytes <= usage.limit, "{usage:?}");
        usage
    }
}

pub(super) fn load_part(
    backend: &dyn Backend,
    thing: &Thing,
    start: u64,
    want: u64,
) -> Result<(), LoadError> {
    let mut into = vec![0xee; want as usize + 3];
    let mut sums = vec![7];
    let mut loads = [Load { sums: Some(&mut sums), ..thing.load(start, &mut into, want) }];
    backend.load(&mut loads);
    let [Load { result, .. }] = loads;
    result?;
    assert_eq!(Seal::over(thing.value.len() as u64, sums), thing.seal, "the sums of all slices");
    let whole = &thing.value[start as usize..(start + want) as usize];
    assert!(into[..want as usize] == *whole, "wrong bytes of {:?} {start}+{want}", thing.id);
    Ok(())
}

fn tree_bytes(disk: &dyn Disk, dir: &Path) -> u64 {
    let entries = disk.list(dir).unwrap().into_iter();
    entries
        .map(|entry| if entry.is_dir { tree_bytes(disk, &dir.join(entry.name)) } else { entry.len })
        .sum()
}

/// All files of a disk, with their lengths.
pub(super) fn files(disk: &dyn Disk, dir: &Path) -> Vec<(std::path::PathBuf, u64)> {
    let mut files = Vec::new();
    for entry in disk.list(dir).unwrap() {
        let path = dir.join(entry.name);
        if entry.is_dir {
            files.extend(self::files(disk, &path));
        } else {
            files.push((path, entry.len));
        }
    }
    files.sort();
    files
}
