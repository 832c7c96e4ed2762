//! Values on disks: staged by their owner, read by every path as if they lay in memory. The disk is a
//! map of bytes here; what real ones do is tested where they are.

use crate::rig::{HANG_UP, MOUNT, Rig, Value, soon};
use crate::suite::expect;
use mooncrate_core::limits::SLICE_BYTES;
use mooncrate_core::plan::{Locator, Medium};
use mooncrate_core::seal::extent_bytes;
use mooncrate_core::time::{Deadline, Now};
use mooncrate_core::{Extent, Generation, NodeId, ObjectId, SegmentId, Slot};
use mooncrate_mem::clock::boottime;
use mooncrate_mem::sums::seal_of;
use mooncrate_mem::{Segment, SegmentSpec, SliceSums};
use mooncrate_transfer::{Engine, EngineConfig, Path, Read, Stager, Staging, TransferError};
use mooncrate_wire::DataError;
use mooncrate_wire::message::{StageItem, Staged};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

const MIB: u64 = SLICE_BYTES;
const STAGING_BYTES: u64 = 24 * MIB;
pub(crate) const LABEL: &[u8] = b"\0\0\0\0\0on a disk";

fn node() -> NodeId {
    NodeId::named("rig")
}

/// A disk in memory.
#[derive(Debug)]
pub(crate) struct Disk {
    id: SegmentId,
    values: Mutex<BTreeMap<Slot, Vec<u8>>>,
    staging: Staging,
    batches: AtomicUsize,
    offset: AtomicU64,
}

impl Disk {
    fn bytes(&self, locator: &Locator) -> Result<Vec<u8>, DataError> {
        if locator.segment != self.id || locator.incarnation != MOUNT {
            return Err(DataError::Stale);
        }
        self.values.lock().unwrap().get(&locator.slot).cloned().ok_or(DataError::Stale)
    }

    fn stage_one(&self, item: &StageItem) -> Result<Staged, DataError> {
        let value = self.bytes(&item.locator)?;
        let part = value.get(item.start as usize..(item.start + item.len) as usize);
        let mut staged = part.ok_or(DataError::OutOfBounds)?.to_vec();
        if staged.len() < value.len() {
            let mut sums = SliceSums::new();
            sums.update(&value);
            staged.extend(sums.sums().flat_map(u64::to_le_bytes));
        }
        let now = boottime();
        let len = staged.len() as u64;
        let mut guard = self.staging.room(now, len, LABEL, ObjectId::default())?;
        guard.room().unwrap()[..staged.len()].copy_from_slice(&staged);
        self.staging.publish(now, guard, seal_of(&staged))
    }
}

impl Stager for Disk {
    fn load(&self, reads: &mut [&mut Read<'_>], _: Deadline) {
        for read in reads {
            read.result = match self.bytes(&read.locator) {
                Ok(value) => {
                    let start = read.start.unwrap_or(0) as usize;
                    read.into.copy_from_slice(&value[start..][..read.into.len()]);
                    let good = seal_of(&value) == read.seal;
                    if good { Ok(()) } else { Err(DataError::Corrupt.into()) }
                }
                Err(error) => Err(error.into()),
            };
        }
    }

    fn stage(&self, items: &[StageItem], _: Deadline) -> Vec<Result<Staged, DataError>> {
        self.batches.fetch_add(1, Ordering::Relaxed);
        items.iter().map(|item| self.stage_one(item)).collect()
    }

    fn release(&self, locators: &[Locator]) {
        self.staging.release(boottime(), locators);
    }
}

/// Gives the rig's owner a disk.
pub(crate) fn with_disk(rig: &Rig) -> Arc<Disk> {
    let spec = SegmentSpec {
        segment: SegmentId::staging(node()),
        incarnation: MOUNT,
        bytes: STAGING_BYTES,
        slots: 256,
        shared: true,
        huge: false,
    };
    let memory = Segment::create(spec).unwrap();
    memory.set_serve_until(Now(u64::MAX));
    rig.segments.insert_private(Arc::clone(&memory));
    let id = SegmentId::on(Medium::Ssd, node(), 0);
    let kept = SegmentSpec { segment: id, bytes: 1 << 40, ..spec };
    let kept = Segment::create_kept(kept).unwrap();
    kept.set_serve_until(Now(u64::MAX));
    rig.segments.insert(kept);
    let disk = Arc::new(Disk {
        id,
        values: Mutex::default(),
        staging: Staging::new(memory, Duration::from_secs(10)),
        batches: AtomicUsize::new(0),
        offset: AtomicU64::new(0),
    });
    rig.segments.set_stager(Some(Arc::clone(&disk) as Arc<dyn Stager>));
    disk
}

impl Disk {
    fn place(&self, slot: u32, len: u64) -> Locator {
        let bytes = extent_bytes(len);
        let offset = self.offset.fetch_add(bytes, Ordering::Relaxed);
        Locator {
            segment: self.id,
            incarnation: MOUNT,
            slot: Slot(slot),
            generation: Generation(0),
            extent: Extent::new(offset, bytes).unwrap(),
            stripe: 0,
            grant: None,
        }
    }

    pub(crate) fn keep(&self, slot: u32, len: u64) -> Value {
        let value = Value::new(self.place(slot, len), len);
        self.values.lock().unwrap().insert(Slot(slot), value.bytes.clone());
        value
    }

    fn flip(&self, slot: u32, at: usize) {
        self.values.lock().unwrap().get_mut(&Slot(slot)).unwrap()[at] ^= 4;
    }

    fn is_empty(&self) {
        let end = boottime().deadline_in(HANG_UP);
        while self.staging.used() > 0 {
            self.staging.sweep(boottime());
            assert!(!end.passed(boottime()), "{} bytes are still staged", self.staging.used());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn read_all(rig: &Rig, values: &[Value], deadline: Deadline) -> Vec<Result<(), TransferError>> {
    let mut buffers: Vec<Vec<u8>> = values.iter().map(|v| vec![0xee; v.bytes.len()]).collect();
    let mut reads: Vec<Read<'_>> = values
        .iter()
        .zip(&mut buffers)
        .map(|(v, into)| Read::new(v.locator, v.bytes.len() as u64, v.seal, into))
        .collect();
    rig.transport.read(&mut reads, deadline);
    let judge = |(read, value): (Read<'_>, &Value)| {
        read.result.map(|()| value.judge(read.into).expect("a read that says Ok is the value"))
    };
    reads.into_iter().zip(values).map(judge).collect()
}

/// Whole values of every size, those included that are larger than the staging memory, in one batch with
/// one in memory; nothing stays staged.
pub(crate) fn values_on_disks_are_read_as_others(rig: &mut Rig) {
    let disk = with_disk(rig);
    let lens = [0, 1, 4096, 70_000, MIB, MIB + 1, 3 * MIB + 9, 17 * MIB + 5, 40 * MIB + 1];
    let mut values: Vec<Value> = (0..).zip(lens).map(|(slot, len)| disk.keep(slot, len)).collect();
    values.push(rig.stored(5000));
    for result in read_all(rig, &values, soon()) {
        result.unwrap();
    }
    disk.is_empty();
    let shown = rig.transport.view(&values[2].locator, 4096, values[2].seal, soon()).unwrap();
    assert!(shown.is_none(), "nothing lies in place");
    rig.no_pins();
}

/// Only the slices of a part are staged, and it is verified by the seal of the whole value.
pub(crate) fn parts_of_values_on_disks(rig: &mut Rig) {
    let disk = with_disk(rig);
    for (slot, len) in (0..).zip([0, 100, MIB, MIB + 1, 5 * MIB + 4321, 30 * MIB]) {
        let value = disk.keep(slot, len);
        let cuts: Vec<(u64, u64)> = [0, 1, len / 2, MIB - 1, MIB, 3 * MIB + 7, len]
            .iter()
            .flat_map(|from| [0, 1, 5000, 2 * MIB, len].map(|bytes| (*from, bytes)))
            .filter(|(from, bytes)| from + bytes <= len)
            .collect();
        let mut buffers: Vec<Vec<u8>> =
            cuts.iter().map(|(_, bytes)| vec![0xee; *bytes as usize]).collect();
        let mut reads: Vec<Read<'_>> = cuts
            .iter()
            .zip(&mut buffers)
            .map(|((from, _), into)| Read::part(value.locator, len, value.seal, *from, into))
            .collect();
        rig.transport.read(&mut reads, soon());
        for (read, (from, bytes)) in reads.iter().zip(&cuts) {
            assert!(read.result.is_ok(), "{from}+{bytes} of {len}: {:?}", read.result);
            let want = &value.bytes[*from as usize..][..*bytes as usize];
            assert!(read.into == want, "{from}+{bytes} of {len}");
        }
    }
    disk.is_empty();
}

/// What the disk gives must be what was sealed: the reader itself sums it.
pub(crate) fn flips_on_disks_are_found(rig: &mut Rig) {
    let disk = with_disk(rig);
    let len = 3 * MIB + 5;
    let value = disk.keep(1, len);
    disk.flip(1, 10);
    let whole = read_all(rig, std::slice::from_ref(&value), soon()).pop().unwrap();
    expect(whole, DataError::Corrupt);
    let mut into = [0; 100];
    let mut reads = [Read::part(value.locator, len, value.seal, 5, &mut into)];
    rig.transport.read(&mut reads, soon());
    assert!(matches!(reads[0].result, Err(TransferError::Data(DataError::Corrupt))));
    disk.is_empty();
}

/// One that is not there spoils no other, and neither does one that is asked for wrongly.
pub(crate) fn a_missing_value_on_a_disk_spoils_no_other(rig: &mut Rig) {
    let disk = with_disk(rig);
    let values = [disk.keep(0, 5000), Value::new(disk.place(1, 300), 300), disk.keep(2, 70_000)];
    let mut results = read_all(rig, &values, soon());
    results.pop().unwrap().unwrap();
    expect(results.pop().unwrap(), DataError::Stale);
    results.pop().unwrap().unwrap();
    // Nobody but the owner writes there.
    let refused = rig.put(&Value::new(disk.place(9, 10), 10));
    expect(refused, DataError::Unsupported);
    disk.is_empty();
}

/// No room is a wait, and room that comes back ends it; none until the deadline is `Busy`.
pub(crate) fn a_full_staging_memory_is_busy_for_a_while(rig: &mut Rig) {
    if rig.transport.path() == Path::Local {
        return;
    }
    let disk = with_disk(rig);
    let value = disk.keep(0, 5 * MIB);
    let now = boottime();
    let held: Vec<_> = (0..)
        .map_while(|_| disk.staging.room(now, 4 * MIB, LABEL, ObjectId::default()).ok())
        .collect();
    assert!(held.len() > 3, "most of it is taken");
    let soon_over = boottime().deadline_in(Duration::from_millis(200));
    let busy = read_all(rig, std::slice::from_ref(&value), soon_over).pop().unwrap();
    let busy = busy.unwrap_err();
    assert!(
        matches!(busy, TransferError::Data(DataError::Busy { .. }) | TransferError::Call(_)),
        "{busy}"
    );
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(100));
            drop(held);
        });
        read_all(rig, std::slice::from_ref(&value), soon()).pop().unwrap().unwrap();
    });
    disk.is_empty();
}

/// Batches are loaded as batches; what a client holds when it dies is taken back.
#[test]
fn a_batch_is_one_batch_of_the_disk_and_ends_with_its_link() {
    use mooncrate_wire::message::{DataReply, DataRequest, Stage};
    use mooncrate_wire::{Hello, Link, LinkConfig, LinkKind, Role};
    let rig = crate::rig::stream();
    let disk = with_disk(&rig);
    let values: Vec<Value> = (0..40).map(|slot| disk.keep(slot, 5000)).collect();
    for result in read_all(&rig, &values, soon()) {
        result.unwrap();
    }
    assert_eq!(disk.batches.load(Ordering::Relaxed), 1);
    assert_eq!(rig.tally.staged.value(), 40);

    let hello = Hello::new(Role::Client, LinkKind::Data, "test");
    let mut link = Link::connect(&rig.tcp, &hello, &LinkConfig::default(), soon()).unwrap();
    let items: Vec<StageItem> = values[..3]
        .iter()
        .map(|value| StageItem { locator: value.locator, start: 0, len: 5000 })
        .collect();
    let stage = DataRequest::Stage(Stage { items: items.into() });
    let DataReply::Stage(staged) = link.call_data(&stage, &[], soon()).unwrap() else {
        panic!("another answer");
    };
    assert!(staged.iter().all(Result::is_ok) && disk.staging.used() > 0);
    // Another connection cannot give back what is not its own.
    let mut other = Link::connect(&rig.tcp, &hello, &LinkConfig::default(), soon()).unwrap();
    let locators: Vec<Locator> = staged.iter().flatten().map(|one| one.locator).collect();
    let release = mooncrate_wire::message::Release { locators: locators.into() };
    other.call_data(&DataRequest::Release(release), &[], soon()).unwrap();
    assert!(disk.staging.used() > 0);
    drop(link);
    disk.is_empty();
}

/// One connection cannot take all of the staging memory.
#[test]
fn a_connection_has_a_share_of_the_staging_memory() {
    use mooncrate_wire::message::{DataReply, DataRequest, Stage};
    use mooncrate_wire::{Hello, Link, LinkConfig, LinkKind, Role};
    let rig = crate::rig::stream();
    let disk = with_disk(&rig);
    let value = disk.keep(0, 2 * MIB);
    let hello = Hello::new(Role::Client, LinkKind::Data, "test");
    let mut link = Link::connect(&rig.tcp, &hello, &LinkConfig::default(), soon()).unwrap();
    let item = StageItem { locator: value.locator, start: 0, len: 2 * MIB };
    let stage = DataRequest::Stage(Stage { items: vec![item; 64].into() });
    let DataReply::Stage(staged) = link.call_data(&stage, &[], soon()).unwrap() else {
        panic!("another answer");
    };
    let busy = staged.iter().filter(|one| matches!(one, Err(DataError::Busy { .. }))).count();
    assert!(busy > 0 && busy < 64, "{busy} of 64 had to wait");
    drop(link);
    disk.is_empty();
}

/// The engine reads a disk of a process on this host through its staging memory.
#[test]
fn the_engine_maps_the_staging_memory() {
    use mooncrate_core::{HostId, Incarnation};
    use mooncrate_transfer::{Directory, Route, Segments};
    use mooncrate_wire::{Address, CallError};
    #[derive(Debug)]
    struct Here(Address, Address);
    impl Directory for Here {
        fn route(
            &self,
            _: SegmentId,
            _: Incarnation,
            _: Deadline,
        ) -> Result<Option<Route>, CallError> {
            let (tcp, unix) = (Some(self.0.clone()), Some(self.1.clone()));
            Ok(Some(Route { node: node(), host: HostId(0), tcp, unix }))
        }
    }
    let rig = crate::rig::shared();
    let disk = with_disk(&rig);
    let value = disk.keep(0, 3 * MIB);
    for (shared_memory, path) in [(true, Path::Shared), (false, Path::Stream)] {
        let config = EngineConfig { shared_memory, local: false, ..EngineConfig::default() };
        let directory = Arc::new(Here(rig.tcp.clone(), rig.unix.clone()));
        let engine = Engine::new(config, Arc::<Segments>::default(), directory);
        let transport = engine.transport(&value.locator, soon()).unwrap();
        assert_eq!(transport.path(), path);
        let mut into = vec![0; 3 << 20];
        let mut reads = [Read::new(value.locator, 3 * MIB, value.seal, &mut into)];
        transport.read(&mut reads, soon());
        assert!(reads[0].result.is_ok(), "{:?}", reads[0].result);
        value.judge(&into).unwrap();
    }
}
