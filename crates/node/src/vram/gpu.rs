//! Memory of a GPU of this machine.
//!
//! A room has a stream of its own, so copies of different rooms run side by side and wait for nobody else.

use super::{Gpus, OpenVram, VramConfig, VramMemory};
use mooncrate_core::Extent;
use mooncrate_gpu::{AddressRange, Gpu, GpuError, PinnedBuffer, SharedMemory, Span, Stream};
use mooncrate_lock::Mutex;
use mooncrate_mem::{FarShare, Room};
use std::io;
use std::sync::Arc;

/// Rooms of one GPU, and the bytes of each. So much host memory is pinned, and so many values are copied at
/// a time; a larger value goes through one room piece by piece.
const ROOMS: usize = 16;
const ROOM_BYTES: usize = 4 << 20;
/// Less is not worth a segment: one page of a GPU.
const BYTES_MIN: u64 = 2 << 20;

const _: () = assert!(ROOM_BYTES as u64 >= mooncrate_core::limits::SLICE_BYTES);

/// The GPUs that this process sees.
#[derive(Debug)]
pub(crate) struct OfSystem;

impl Gpus for OfSystem {
    fn open(&self, wish: &VramConfig) -> Result<OpenVram, String> {
        let VramConfig { device, bytes } = *wish;
        if bytes < BYTES_MIN {
            return Err(format!("{bytes} bytes are too few; lend at least 2MiB"));
        }
        let said = |error: GpuError| error.to_string();
        let gpu = Gpu::open(device).map_err(said)?;
        let free = gpu.free_bytes().map_err(said)?;
        let short = |free: u64| {
            format!(
                "{bytes} bytes are asked for and {free} of {} are free; lend less of GPU {device}, or end \
                 what uses its memory",
                gpu.memory_bytes()
            )
        };
        if bytes > free {
            return Err(short(free));
        }
        let memory = SharedMemory::create(&gpu, bytes)
            .map_err(|error| format!("{error} ({})", short(free)))?;
        let range = AddressRange::of(&memory).map_err(said)?;
        let zeroing = Mutex::new(Stream::new(&gpu).map_err(said)?);
        let memory = Arc::new(GpuMemory { zeroing, range, memory, gpu, bytes });
        let rooms: Result<Vec<_>, GpuError> = (0..ROOMS).map(|_| memory.room()).collect();
        let rooms = rooms.map_err(|error| {
            format!(
                "{error}: {ROOMS} rooms of {ROOM_BYTES} bytes of host memory are pinned for copies; give \
                 this process more memory, or a higher limit of locked memory"
            )
        })?;
        Ok(OpenVram { memory, rooms })
    }
}

#[derive(Debug)]
struct GpuMemory {
    // Dropped in this order: what is copied to comes after the stream.
    zeroing: Mutex<Stream>,
    range: AddressRange,
    memory: Arc<SharedMemory>,
    gpu: Gpu,
    bytes: u64,
}

impl GpuMemory {
    fn room(self: &Arc<Self>) -> Result<Box<dyn Room>, GpuError> {
        let buffer = PinnedBuffer::new(&self.gpu, ROOM_BYTES)?;
        let stream = Mutex::new(Stream::new(&self.gpu)?);
        Ok(Box::new(Beside { buffer, stream, memory: Arc::clone(self) }))
    }

    fn part(&self, offset: u64, len: usize) -> Result<Span<'_>, GpuError> {
        // Beyond the segment lie only bytes that the driver rounded up to.
        self.range.span(offset..offset.saturating_add(len as u64).min(self.bytes))
    }

    fn fill(&self, offset: u64, len: u64) -> Result<(), GpuError> {
        let stream = self.zeroing.lock();
        self.range.span(offset..offset + len)?.fill(0, &stream)?;
        stream.synchronize()
    }
}

impl VramMemory for GpuMemory {
    fn zero(&self, extent: Extent) -> io::Result<()> {
        self.fill(extent.offset(), extent.len()).map_err(io::Error::other)
    }

    fn zero_all(&self) -> io::Result<()> {
        self.fill(0, self.range.bytes()).map_err(io::Error::other)
    }

    fn share(&self) -> io::Result<Option<FarShare>> {
        let memory = self.memory.export().map_err(io::Error::other)?;
        Ok(Some(FarShare { memory, memory_bytes: self.memory.bytes(), device: self.gpu.uuid() }))
    }
}

/// A room.
#[derive(Debug)]
struct Beside {
    buffer: PinnedBuffer,
    /// Never locked: a room has one owner. It only tells the compiler so.
    stream: Mutex<Stream>,
    memory: Arc<GpuMemory>,
}

impl Room for Beside {
    fn bytes(&mut self) -> &mut [u8] {
        &mut self.buffer
    }

    fn store(&mut self, offset: u64, len: usize) -> io::Result<()> {
        let Self { buffer, stream, memory } = self;
        let place = memory.part(offset, len);
        let stored = place.and_then(|place| place.write(&buffer[..len], stream.get_mut()));
        stored.map_err(io::Error::other)
    }

    fn load(&mut self, offset: u64, len: usize) -> io::Result<()> {
        let Self { buffer, stream, memory } = self;
        let place = memory.part(offset, len);
        let loaded = place.and_then(|place| place.read(&mut buffer[..len], stream.get_mut()));
        loaded.map_err(io::Error::other)
    }
}
