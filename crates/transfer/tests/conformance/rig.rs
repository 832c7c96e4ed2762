//! An owner with one segment behind all its doors, one transport to it, and a planner that stands
//! in for the master: it hands out slots and ranges, and gives the owner its orders.

use crate::double::{Device, Memory};
use mooncrate_check::payload;
use mooncrate_check::{BadLine, PutId};
use mooncrate_core::plan::{Action, Locator, Order, OrderResult};
use mooncrate_core::seal::extent_bytes;
use mooncrate_core::time::{Deadline, Now};
use mooncrate_core::{
    Extent, Generation, Incarnation, KeyHash, LeaderEpoch, ObjectId, PutToken, Seal, SegmentId,
    Slot, key,
};
use mooncrate_mem::clock::boottime;
use mooncrate_mem::sums::seal_of;
use mooncrate_mem::{Segment, SegmentSpec};
use mooncrate_transfer::{
    DataServer, DataServerConfig, DataTally, EngineConfig, Lanes, Local, Path, Read, Segments,
    Shared, Stream, TransferError, Transport, Write,
};
use mooncrate_wire::address::Bound;
use mooncrate_wire::{Address, Gate, Hello, Link, LinkConfig, LinkKind, PoolConfig, Role};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

pub(crate) const SEGMENT: SegmentId = SegmentId(0x5e6);
/// The same on a GPU, as its id says.
pub(crate) const VRAM: SegmentId = SegmentId(0x5e6 | 2 << 62);
/// Rooms of the device, and their bytes: no multiple of a slice.
const ROOMS: usize = 4;
const ROOM_BYTES: usize = (1 << 20) + 4321;
pub(crate) const MOUNT: Incarnation = Incarnation(7);
pub(crate) const EPOCH: LeaderEpoch = LeaderEpoch(3);
pub(crate) const SEGMENT_BYTES: u64 = 64 << 20;
pub(crate) const SLOTS: u32 = 4096;
/// What the fault matrix allows for taking back what a dead client held.
pub(crate) const HANG_UP: Duration = Duration::from_secs(1);

/// How long the range of a GPU process that hung up is kept.
pub(crate) const DEVICE_GRACE: Duration = Duration::from_millis(1500);

/// An owner and a way to it.
pub(crate) struct Rig {
    pub(crate) segment: Arc<Segment>,
    pub(crate) segments: Arc<Segments>,
    pub(crate) transport: Arc<dyn Transport>,
    /// What the server counts, across its restarts.
    pub(crate) tally: Arc<DataTally>,
    pub(crate) tcp: Address,
    pub(crate) unix: Address,
    /// Where the bytes lie, if not in host memory.
    pub(crate) device: Option<Arc<Device>>,
    server: Option<DataServer>,
    slots: AtomicU32,
    offset: AtomicU64,
    folder: tempfile::TempDir,
}

/// A rig of each kind, named as the tests are.
pub(crate) fn local() -> Rig {
    Rig::new(Path::Local)
}

pub(crate) fn shared() -> Rig {
    Rig::new(Path::Shared)
}

pub(crate) fn stream() -> Rig {
    Rig::new(Path::Stream)
}

/// In memory of a device, in the owner's process.
pub(crate) fn far_local() -> Rig {
    Rig::far(Path::Local)
}

/// The same from elsewhere.
pub(crate) fn far_stream() -> Rig {
    Rig::far(Path::Stream)
}

/// The same with large values on several links, each of which loads its own part.
pub(crate) fn far_lanes() -> Rig {
    let mut rig = far_stream();
    rig.transport = laned(&rig.tcp);
    rig
}

/// Over the network, with every value of more than one slice on several links.
pub(crate) fn lanes() -> Rig {
    let mut rig = stream();
    rig.transport = laned(&rig.tcp);
    rig
}

fn laned(tcp: &Address) -> Arc<dyn Transport> {
    let lanes = Lanes { count: 3, bytes_min: 0 };
    Arc::new(Stream::new(tcp.clone(), &PoolConfig::default()).with_lanes(lanes))
}

impl Rig {
    pub(crate) fn new(path: Path) -> Self {
        Self::over(path, Segment::create(spec(SEGMENT)).unwrap(), None)
    }

    pub(crate) fn far(path: Path) -> Self {
        let device = Device::new(SEGMENT_BYTES as usize, ROOMS, ROOM_BYTES);
        let memory = Arc::new(Memory(Arc::clone(&device)));
        let segment = Segment::create_far(spec(VRAM), memory, false).unwrap();
        Self::over(path, segment, Some(device))
    }

    fn over(path: Path, segment: Arc<Segment>, device: Option<Arc<Device>>) -> Self {
        segment.witness(EPOCH).unwrap();
        segment.set_serve_until(Now(u64::MAX));
        let segments = Arc::new(Segments::default());
        segments.insert(Arc::clone(&segment));
        let folder = tempfile::tempdir().unwrap();
        let unix = Address::Unix(folder.path().join("data"));
        let sockets = vec![
            Bound::listen(&"127.0.0.1:0".parse().unwrap()).unwrap(),
            Bound::listen(&unix).unwrap(),
        ];
        let tcp = sockets[0].address().unwrap();
        let tally = Arc::<DataTally>::default();
        let server = serve(&segments, &tally, sockets);
        let transport = match path {
            Path::Local => Arc::new(Local::new(Arc::clone(&segments))) as Arc<dyn Transport>,
            Path::Shared => attached(&unix),
            Path::Stream => Arc::new(Stream::new(tcp.clone(), &PoolConfig::default())),
        };
        assert_eq!(transport.path(), path);
        let (slots, offset) = (AtomicU32::new(0), AtomicU64::new(0));
        let server = Some(server);
        Self {
            segment,
            segments,
            transport,
            tally,
            tcp,
            unix,
            device,
            server,
            slots,
            offset,
            folder,
        }
    }

    /// A link of its own to the owner's Unix socket.
    pub(crate) fn unix_link(&self) -> Link {
        Self::link(&self.unix, &LinkConfig::default())
    }

    /// The same to another one.
    pub(crate) fn link(address: &Address, config: &LinkConfig) -> Link {
        let hello = Hello::new(Role::Client, LinkKind::Data, "a test");
        Link::connect(address, &hello, config, soon()).unwrap()
    }

    /// A second server over the same segments, which asks callers for proofs.
    pub(crate) fn serve_guarded(&self, gate: Gate) -> (DataServer, Address) {
        self.serve_with(DataServerConfig { gate, ..DataServerConfig::default() })
    }

    /// A second server over the same segments, with settings of its own.
    pub(crate) fn serve_with(&self, config: DataServerConfig) -> (DataServer, Address) {
        let unix = Address::Unix(self.folder.path().join("guarded"));
        let (segments, tally) = (Arc::clone(&self.segments), Arc::clone(&self.tally));
        let sockets = vec![Bound::listen(&unix).unwrap()];
        (DataServer::start(segments, config, tally, sockets).unwrap(), unix)
    }

    /// Another one over the same segments, with these settings, on TCP and on a Unix socket.
    pub(crate) fn serve_as(&self, config: DataServerConfig) -> (DataServer, [Address; 2]) {
        let unix = Address::Unix(self.folder.path().join("more"));
        let tcp = Bound::listen(&"127.0.0.1:0".parse().unwrap()).unwrap();
        let addresses = [tcp.address().unwrap(), unix.clone()];
        let (segments, tally) = (Arc::clone(&self.segments), Arc::clone(&self.tally));
        let sockets = vec![tcp, Bound::listen(&unix).unwrap()];
        (DataServer::start(segments, config, tally, sockets).unwrap(), addresses)
    }

    /// Connections that the owner has.
    pub(crate) fn connections(&self) -> usize {
        self.server.as_ref().unwrap().connections()
    }

    /// Ends the data server, with all its connections, and starts it again at the same address.
    pub(crate) fn restart_server(&mut self) {
        self.server.take().unwrap().stop(Duration::ZERO);
        let sockets = vec![Bound::listen(&self.tcp).unwrap(), Bound::listen(&self.unix).unwrap()];
        self.server = Some(serve(&self.segments, &self.tally, sockets));
    }

    /// A slot that was never used and a range that nobody has.
    pub(crate) fn place(&self, len: u64) -> Locator {
        let bytes = extent_bytes(len);
        let offset = self.offset.fetch_add(bytes, Ordering::Relaxed);
        let slot = Slot(self.slots.fetch_add(1, Ordering::Relaxed));
        let extent = Extent::new(offset, bytes).unwrap();
        assert!(extent.fits(SEGMENT_BYTES) && slot.0 < SLOTS, "the test wants too much");
        let generation = Generation(0);
        let (incarnation, stripe, grant) = (MOUNT, 0, None);
        let segment = self.segment.spec().segment;
        Locator { segment, incarnation, slot, generation, extent, stripe, grant }
    }

    /// Whether nothing can be shown in place.
    pub(crate) fn copies(&self) -> bool {
        self.transport.path() == Path::Stream || self.device.is_some()
    }

    /// A stamped value of this length with a place of its own.
    pub(crate) fn value(&self, len: u64) -> Value {
        Value::new(self.place(len), len)
    }

    /// The same, stored.
    pub(crate) fn stored(&self, len: u64) -> Value {
        let value = self.value(len);
        self.put(&value).unwrap();
        value
    }

    /// Writes and signals; the first error of the two.
    pub(crate) fn put(&self, value: &Value) -> Result<(), TransferError> {
        let pieces = [&value.bytes[..]];
        let written = self.transport.write(&value.write(&pieces), soon())?;
        assert_eq!(written.seal(), value.seal);
        written.signal(soon())
    }

    /// Reads what a locator names into a buffer of `len` bytes.
    pub(crate) fn read(
        &self,
        locator: Locator,
        len: u64,
        seal: Seal,
    ) -> Result<Vec<u8>, TransferError> {
        let mut into = vec![0xee; len as usize];
        let mut reads = [Read::new(locator, len, seal, &mut into)];
        self.transport.read(&mut reads, soon());
        let [read] = reads;
        read.result.map(|()| into)
    }

    /// Reads a value and compares every line of it.
    pub(crate) fn read_value(&self, value: &Value) -> Result<(), TransferError> {
        let bytes = self.read(value.locator, value.bytes.len() as u64, value.seal)?;
        value.judge(&bytes).expect("a read that says Ok is the value");
        Ok(())
    }

    pub(crate) fn order(&self, locator: &Locator, action: Action) -> OrderResult {
        let Locator { segment, incarnation, slot, generation, .. } = *locator;
        let order = Order { segment, incarnation, slot, generation, action };
        self.segment.execute(boottime(), EPOCH, &order).unwrap().result
    }

    /// Waits for the unasked `Freed` of this life; where its slot stands then.
    pub(crate) fn freed_within(&self, locator: &Locator, most: Duration) -> Generation {
        let end = boottime().deadline_in(most);
        loop {
            let mut news = Vec::new();
            self.segment.tick(boottime(), &mut news);
            for notice in news {
                assert_eq!((notice.slot, notice.generation), (locator.slot, locator.generation));
                if let OrderResult::Freed { next } = notice.result {
                    return next;
                }
            }
            assert!(!end.passed(boottime()), "{locator:?} was not freed within {most:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until `done`, or fails.
    pub(crate) fn until(&self, what: &str, most: Duration, done: impl Fn(&Segment) -> bool) {
        let end = boottime().deadline_in(most);
        while !done(&self.segment) {
            assert!(!end.passed(boottime()), "{what}: not within {most:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Nobody reads any more. The owner lets go a moment after the last byte has left (R5).
    pub(crate) fn no_pins(&self) {
        self.until("the last reader has left", HANG_UP, |segment| segment.pins() == 0);
    }

    /// Changes a byte in the owner's memory, as a broken DIMM or a wild pointer would.
    pub(crate) fn flip(&self, offset: u64) {
        if let Some(device) = &self.device {
            let byte = device.peek(offset as usize, 1)[0];
            return device.poke(offset as usize, &[byte ^ 0x10]);
        }
        let payload = self.segment.writable_fd().unwrap();
        let mut byte = [0];
        assert_eq!(rustix::io::pread(payload, &mut byte, offset).unwrap(), 1);
        byte[0] ^= 0x10;
        assert_eq!(rustix::io::pwrite(payload, &byte, offset).unwrap(), 1);
    }
}

fn spec(segment: SegmentId) -> SegmentSpec {
    let (incarnation, bytes, slots) = (MOUNT, SEGMENT_BYTES, SLOTS);
    SegmentSpec { segment, incarnation, bytes, slots, shared: true, huge: false }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop(Duration::ZERO);
        }
    }
}

fn serve(segments: &Arc<Segments>, tally: &Arc<DataTally>, sockets: Vec<Bound>) -> DataServer {
    let (name, device_grace) = ("rig".into(), DEVICE_GRACE);
    let config = DataServerConfig { name, device_grace, ..DataServerConfig::default() };
    DataServer::start(Arc::clone(segments), config, Arc::clone(tally), sockets).unwrap()
}

/// A shared-memory transport that has mapped the segment.
pub(crate) fn attached(unix: &Address) -> Arc<Shared> {
    let shared = Shared::new(unix.clone(), &EngineConfig::default());
    shared.attach(SEGMENT, soon()).unwrap();
    Arc::new(shared)
}

pub(crate) fn soon() -> Deadline {
    boottime().deadline_in(Duration::from_secs(20))
}

/// A stamped value and the place it is for.
#[derive(Clone, Debug)]
pub(crate) struct Value {
    pub(crate) locator: Locator,
    pub(crate) bytes: Vec<u8>,
    pub(crate) seal: Seal,
    pub(crate) token: PutToken,
    label: String,
    put: PutId,
    key: KeyHash,
}

impl Value {
    /// Slot and generation name the put: whoever knows them can make the same value.
    pub(crate) fn new(locator: Locator, len: u64) -> Self {
        let label = format!("\0\0\0\0\0key-{}", locator.slot);
        let key = key::hash(label.as_bytes());
        let put = PutId::new(1, locator.slot.0 as u16, locator.generation.0 + 1);
        let mut bytes = vec![0; len as usize];
        payload::fill(&mut bytes, put, key);
        let seal = seal_of(&bytes);
        Self { locator, bytes, seal, token: PutToken(put.bits() ^ 0xabc), label, put, key }
    }

    /// The next life of the same slot and range.
    pub(crate) fn next(&self, generation: Generation) -> Self {
        Self::new(Locator { generation, ..self.locator }, self.bytes.len() as u64)
    }

    /// The same bytes, for a place that is not theirs.
    pub(crate) fn elsewhere(&self, locator: Locator) -> Self {
        Self { locator, ..self.clone() }
    }

    pub(crate) fn write<'a>(&'a self, value: &'a [&'a [u8]]) -> Write<'a> {
        Write {
            locator: self.locator,
            token: self.token,
            object: ObjectId { epoch: EPOCH, sequence: self.put.bits() },
            epoch: EPOCH,
            label: self.label.as_bytes(),
            value,
        }
    }

    pub(crate) fn judge(&self, found: &[u8]) -> Result<(), BadLine> {
        assert_eq!(found.len(), self.bytes.len());
        payload::examine_as(found, self.put, self.key)
    }
}
