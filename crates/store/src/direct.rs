//! The direct way: a value in VRAM of this host moves from GPU memory to GPU memory, and its checksum is made
//! on the GPU.
//!
//! ```text
//!   get   find ─► pin ─► sums of the source, copy to the target ─► compare the seal ─► unpin
//!   put   plan ─► begin ─► copy to the extent, sums, slice table ─► signal ─► end
//! ```
//!
//! What must stay true: a pin or a put is given back when no work of the GPU uses its range any more. A seal is
//! compared before a get counts. Whatever does not go this way goes through pinned rooms ([`crate::device`]),
//! which decides, so an error here is only a reason to go there; it is counted.

use crate::device::DeviceMemory;
use crate::staging::{Room, passed};
use crate::{PutConfig, Store, Stored};
use mooncrate_core::limits::{SLICE_BYTES, VALUE_BYTES_MAX};
use mooncrate_core::plan::{Located, Locator, Medium};
use mooncrate_core::seal::{slices, table};
use mooncrate_core::tally::Count;
use mooncrate_core::time::Deadline;
use mooncrate_core::{Incarnation, Seal, SegmentId};
use mooncrate_gpu::{AddressRange, DeviceBuffer, Gpu, SharedMemory, Span};
use mooncrate_lock::Mutex;
use mooncrate_nano::HeapLayout;
use mooncrate_nano::kernels::{KernelError, Kernels};
use mooncrate_transfer::{DeviceDoor, Engine, TransferError};
use mooncrate_wire::DataError;
use mooncrate_wire::message::BeginWrite;
use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::Arc;

/// Room for the sums of the longest value.
const SCRATCH_BYTES: u64 = 8 * VALUE_BYTES_MAX.div_ceil(SLICE_BYTES);
/// The page of the kernel that sums is a slice of the store.
const SLICE: u32 = SLICE_BYTES as u32;

/// What became of a get on the direct way.
pub(crate) enum Straight {
    /// So many bytes are in place, verified.
    Got(u64),
    /// There is no value.
    Missing,
    /// It has to go through a room.
    NotThisWay,
}

/// How values of GPUs travelled, as a snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounts {
    /// Puts from GPU memory straight to VRAM of this host.
    pub direct_puts: u64,
    /// Gets straight from VRAM of this host.
    pub direct_gets: u64,
    /// Values in VRAM, or on their way there, that went through pinned rooms all the same.
    pub fallbacks: u64,
}

/// What the direct way needs, by GPU. Empty until it is used.
#[derive(Debug, Default)]
pub(crate) struct Direct {
    gpus: Mutex<BTreeMap<u32, Option<Arc<OneGpu>>>>,
    puts: Count,
    gets: Count,
    fallbacks: Count,
}

#[derive(Debug)]
struct OneGpu {
    gpu: Gpu,
    uuid: [u8; 16],
    /// One launch at a time.
    kernels: Mutex<Kernels>,
    segments: Mutex<BTreeMap<SegmentId, Mapped>>,
    /// Room for sums, that nobody uses.
    scratch: Mutex<Vec<DeviceBuffer>>,
}

/// Lent memory of a segment.
#[derive(Clone, Debug)]
struct Mapped {
    incarnation: Incarnation,
    /// `None`: it cannot be mapped here.
    range: Option<Arc<AddressRange>>,
}

impl Direct {
    /// The GPU's part; `None`: its kernels cannot be loaded.
    fn of(&self, gpu: &Gpu) -> Option<Arc<OneGpu>> {
        if let Some(known) = self.gpus.lock().get(&gpu.ordinal()) {
            return known.clone();
        }
        // Out of the lock: compiling takes a while.
        let made = OneGpu::load(gpu).ok().map(Arc::new);
        self.gpus.lock().entry(gpu.ordinal()).or_insert(made).clone()
    }

    /// Whether a value in VRAM was met before.
    pub(crate) fn is_used(&self) -> bool {
        self.puts.value() + self.gets.value() > 0
    }

    pub(crate) fn counts(&self) -> DeviceCounts {
        let (puts, gets, fallbacks) = (&self.puts, &self.gets, &self.fallbacks);
        DeviceCounts {
            direct_puts: puts.value(),
            direct_gets: gets.value(),
            fallbacks: fallbacks.value(),
        }
    }
}

impl OneGpu {
    fn load(gpu: &Gpu) -> Result<Self, KernelError> {
        let layout = HeapLayout::new(1, 1 << 20).expect("a header and payload fit into a MiB");
        Ok(Self {
            uuid: gpu.uuid(),
            kernels: Mutex::new(Kernels::load(gpu, layout)?),
            segments: Mutex::default(),
            scratch: Mutex::default(),
            gpu: gpu.clone(),
        })
    }

    /// The memory of the segment of a locator, mapped once for each mount.
    fn memory(
        &self,
        door: &DeviceDoor,
        locator: &Locator,
        deadline: Deadline,
    ) -> Result<Option<Arc<AddressRange>>, TransferError> {
        let known = self.segments.lock().get(&locator.segment).cloned();
        if let Some(known) = known.filter(|known| known.incarnation == locator.incarnation) {
            return Ok(known.range);
        }
        let lent = match door.lend(locator.segment, deadline) {
            Ok(lent) => Some(lent),
            Err(TransferError::Data(DataError::Unsupported)) => None,
            Err(error) => return Err(error),
        };
        if lent.as_ref().is_some_and(|lent| lent.incarnation != locator.incarnation) {
            return Err(DataError::Stale.into());
        }
        let near = lent.filter(|lent| lent.device == self.uuid);
        let range = near.and_then(|lent| {
            let memory =
                SharedMemory::import(&self.gpu, lent.memory.as_fd(), lent.memory_bytes).ok()?;
            AddressRange::of(&memory).ok().map(Arc::new)
        });
        let mapped = Mapped { incarnation: locator.incarnation, range: range.clone() };
        // The memory of an earlier mount ends out of the lock: unmapping waits for the GPU.
        let before = self.segments.lock().insert(locator.segment, mapped);
        drop(before);
        Ok(range)
    }

    fn scratch(&self) -> Result<DeviceBuffer, mooncrate_gpu::GpuError> {
        let idle = self.scratch.lock().pop();
        idle.map_or_else(|| DeviceBuffer::new(&self.gpu, SCRATCH_BYTES), Ok)
    }

    /// Queues the sums of a value into `scratch`, and a copy of them to the front of the room.
    fn sum(
        &self,
        room: &mut Room,
        value: Span<'_>,
        scratch: &DeviceBuffer,
    ) -> Result<(), KernelError> {
        self.kernels.lock().sums(room.stream(), value, SLICE, scratch.span())?;
        let bytes = 8 * slices(value.len());
        room.fetch(scratch.span().part(0..bytes)?)?;
        Ok(())
    }
}

/// The seal of a value whose sums are at the front of a room.
fn seal_in(room: &Room, len: u64) -> Seal {
    let bytes = &room.bytes()[..8 * slices(len) as usize];
    let sums = bytes.chunks_exact(8).map(|sum| u64::from_le_bytes(sum.try_into().expect("8")));
    Seal::over(len, sums)
}

impl Store {
    /// How values of GPUs travelled.
    pub fn device_counts(&self) -> DeviceCounts {
        self.direct().counts()
    }

    /// Copies a value from VRAM of this host, if it is there.
    pub(crate) fn get_directly(
        &self,
        key: &[u8],
        target: &DeviceMemory<'_>,
        exact: bool,
    ) -> Straight {
        let have = target.span.len();
        let found = self.client().reach(key, |located, engine, deadline| {
            let vram = located.replicas.iter().find(|at| at.segment.medium() == Medium::Vram);
            let fits = located.len() <= have && (!exact || located.len() == have);
            let fits = fits && located.striping.stripes() == 1 && !located.is_empty();
            let Some(locator) = vram.filter(|_| fits) else { return Ok(None) };
            let got = self.copy_from_vram(located, locator, engine, target, deadline);
            if got.is_none() {
                self.direct().fallbacks.one();
            }
            Ok(got)
        });
        // What else went wrong is said by the way through a room, which has all the retries.
        match found {
            Ok(None) => Straight::Missing,
            Ok(Some(Some(len))) => {
                self.direct().gets.one();
                Straight::Got(len)
            }
            Ok(Some(None)) | Err(_) => Straight::NotThisWay,
        }
    }

    fn copy_from_vram(
        &self,
        located: &Located,
        locator: &Locator,
        engine: &Engine,
        target: &DeviceMemory<'_>,
        deadline: Deadline,
    ) -> Option<u64> {
        let (len, gpu) = (located.len(), target.span.gpu());
        let one = self.direct().of(gpu)?;
        let door = engine.device_door(locator, deadline).ok().flatten()?;
        let range = one.memory(&door, locator, deadline).ok().flatten()?;
        // Before the pin: work of the caller may take long, and a pin holds up eviction.
        passed(target.after, deadline).ok()?;
        let mut room = self.rooms(gpu).lease(SCRATCH_BYTES as usize, deadline).ok()?;
        let pin = door.pin(locator, deadline).ok()?;
        // After the pin, which may be refused: to free scratch memory would wait for the whole GPU.
        let scratch = one.scratch().ok()?;
        let first = pin.extent().offset();
        let mut queued = || -> Result<(), KernelError> {
            let source = range.span(first..first + len)?;
            let target = target.span.part(0..len)?;
            target.copy_from(source, room.stream())?;
            // What arrived, where the kernel can read it; else what it came from, which the pin keeps as it is.
            let arrived = if target.address().is_multiple_of(16) { target } else { source };
            one.sum(&mut room, arrived, &scratch)
        };
        let done = queued().is_ok() && room.settle(deadline).is_ok();
        if !done && room.synchronize().is_err() {
            // The GPU is lost with its memory; nobody reads there any more.
            return None;
        }
        drop(pin);
        one.scratch.lock().push(scratch);
        (done && seal_in(&room, len) == located.seal).then_some(len)
    }

    /// Puts a value straight into VRAM of this host, if that is what its wishes ask for. `None`: not this way.
    pub(crate) fn put_directly(
        &self,
        key: &[u8],
        value: &DeviceMemory<'_>,
        config: &PutConfig,
    ) -> Option<Result<Stored, crate::Error>> {
        let len = value.span.len();
        if config.vram_copies() == 0 || len == 0 {
            return None;
        }
        let stored = self.client().put_directly(key, len, config, |engine, put, deadline| {
            self.copy_to_vram(value, engine, put, deadline)
        });
        match stored {
            Ok(Some(stored)) => {
                if stored == Stored::New {
                    self.direct().puts.one();
                }
                Some(Ok(stored))
            }
            Ok(None) => {
                self.direct().fallbacks.one();
                None
            }
            Err(error) => Some(Err(error.into())),
        }
    }

    fn copy_to_vram(
        &self,
        value: &DeviceMemory<'_>,
        engine: &Engine,
        put: &BeginWrite<'_>,
        deadline: Deadline,
    ) -> Option<Seal> {
        let (len, gpu, locator) = (value.span.len(), value.span.gpu(), &put.locator);
        let one = self.direct().of(gpu)?;
        let door = engine.device_door(locator, deadline).ok().flatten()?;
        let range = one.memory(&door, locator, deadline).ok().flatten()?;
        passed(value.after, deadline).ok()?;
        let mut room = self.rooms(gpu).lease(SCRATCH_BYTES as usize, deadline).ok()?;
        let open = door.begin(put, deadline).ok()?;
        let scratch = one.scratch().ok()?;
        let extent = open.extent();
        let mut queued = || -> Result<(), KernelError> {
            let place = range.span(extent.offset()..extent.end())?;
            let (start, bytes) = table(len);
            place.part(0..len)?.copy_from(value.span, room.stream())?;
            one.sum(&mut room, place.part(0..len)?, &scratch)?;
            if bytes > 0 {
                if start > len {
                    place.part(len..start)?.fill(0, room.stream())?;
                }
                let sums = scratch.span().part(0..bytes)?;
                place.part(start..start + bytes)?.copy_from(sums, room.stream())?;
                // Once more, so that the wait is for the table, too.
                room.fetch(sums)?;
            }
            Ok(())
        };
        let done = queued().is_ok() && room.settle(deadline).is_ok();
        if !done && room.synchronize().is_err() {
            // Work may still store there: the owner keeps the range until this process is gone.
            std::mem::forget(open);
            return None;
        }
        let seal = done.then(|| seal_in(&room, len));
        one.scratch.lock().push(scratch);
        let seal = seal?;
        open.signal(seal, deadline).ok().map(|()| seal)
    }
}
