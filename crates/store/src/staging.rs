//! Pinned rooms: where the bytes of a value stay between a GPU and their owner.
//!
//! ```text
//!   device memory ──copy engine──► [ room ] ──one memcpy that sums──► memory of the owner, or a socket
//! ```
//!
//! A room is page-locked host memory with a stream of its own. Locking is slow, so rooms are made when they
//! are needed first and kept. What must stay true: all rooms of a GPU together never exceed a bound, and a
//! room whose copies may still be under way is lent to nobody.

use crate::device_error::DeviceError;
use mooncrate_core::time::Deadline;
use mooncrate_gpu::{Event, Gpu, GpuError, Span, Stream, Transit};
use mooncrate_lock::{Condvar, Mutex, interrupt};
use mooncrate_wire::clock::boottime;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// The smallest room: what a copy needs to run at the speed of the link, or nearly.
const ROOM_BYTES_MIN: usize = 1 << 20;
/// How often a copy is looked for without a pause: most take some microseconds.
const LOOKS: u32 = 64;
const PAUSE_MIN: Duration = Duration::from_micros(20);
const PAUSE_MAX: Duration = Duration::from_millis(1);

/// How much page-locked memory a store may take for each GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagingConfig {
    /// Bytes of the largest room. Longer values travel in pieces.
    pub room_bytes_max: usize,
    /// Bytes of all rooms of a GPU.
    pub total_bytes_max: usize,
}

impl Default for StagingConfig {
    fn default() -> Self {
        Self { room_bytes_max: 256 << 20, total_bytes_max: 512 << 20 }
    }
}

/// The rooms of a store, by GPU.
#[derive(Debug, Default)]
pub(crate) struct Staging {
    config: StagingConfig,
    gpus: Mutex<BTreeMap<u32, Arc<Rooms>>>,
}

impl Staging {
    pub(crate) fn new(config: StagingConfig) -> Self {
        Self { config, gpus: Mutex::default() }
    }

    pub(crate) fn room_bytes_max(&self) -> usize {
        self.config.room_bytes_max
    }

    /// The rooms of a GPU.
    pub(crate) fn of(&self, gpu: &Gpu) -> Arc<Rooms> {
        let made = || {
            let (config, gpu) = (self.config, gpu.clone());
            Arc::new(Rooms { config, gpu, kept: Mutex::default(), freed: Condvar::default() })
        };
        Arc::clone(self.gpus.lock().entry(gpu.ordinal()).or_insert_with(made))
    }
}

/// The rooms of one GPU.
#[derive(Debug)]
pub(crate) struct Rooms {
    config: StagingConfig,
    gpu: Gpu,
    kept: Mutex<Kept>,
    freed: Condvar,
}

#[derive(Debug, Default)]
struct Kept {
    /// Rooms that nobody uses.
    idle: Vec<Transit>,
    /// Rooms whose copies go on after their user has left.
    flying: Vec<Transit>,
    /// Bytes of all rooms, lent ones too.
    bytes: usize,
}

/// What to do about a room that is wanted.
enum Turn {
    Take(Transit),
    /// So many bytes were booked for a new one.
    Make(usize),
    /// Rooms that are in the way; look again without them.
    Drop(Vec<Transit>),
    Wait,
}

impl Kept {
    /// Rooms whose copies have ended are idle again; those that met an error are given up.
    fn land(&mut self) -> Vec<Transit> {
        let mut broken = Vec::new();
        for mut room in std::mem::take(&mut self.flying) {
            match room.poll() {
                Ok(true) => self.idle.push(room),
                Ok(false) => self.flying.push(room),
                Err(_) => {
                    self.bytes -= room.len();
                    broken.push(room);
                }
            }
        }
        broken
    }

    fn turn(&mut self, bytes: usize, config: StagingConfig) -> Turn {
        let broken = self.land();
        if !broken.is_empty() {
            return Turn::Drop(broken);
        }
        let fits = |room: &Transit| (room.len() >= bytes).then(|| room.len());
        let best = self.idle.iter().enumerate().filter_map(|(at, room)| Some((fits(room)?, at)));
        if let Some((_, at)) = best.min() {
            return Turn::Take(self.idle.swap_remove(at));
        }
        let size = bytes.next_power_of_two().clamp(ROOM_BYTES_MIN, config.room_bytes_max);
        let size = size.max(bytes);
        if self.bytes + size <= config.total_bytes_max {
            self.bytes += size;
            return Turn::Make(size);
        }
        // All idle rooms are too small: a larger one takes the place of some.
        let idle: usize = self.idle.iter().map(Transit::len).sum();
        if self.bytes - idle + size > config.total_bytes_max {
            return Turn::Wait;
        }
        let mut dropped = Vec::new();
        while self.bytes + size > config.total_bytes_max {
            let room = self.idle.pop().expect("the idle rooms together were enough");
            self.bytes -= room.len();
            dropped.push(room);
        }
        Turn::Drop(dropped)
    }
}

impl Rooms {
    /// A room of at least so many bytes, at most those of the largest; waits for one until the deadline.
    pub(crate) fn lease(
        self: &Arc<Self>,
        bytes: usize,
        deadline: Deadline,
    ) -> Result<Room, DeviceError> {
        loop {
            if let Some(room) = self.try_lease(bytes)? {
                return Ok(room);
            }
            let left = deadline.left(boottime());
            if left.is_zero() || interrupt::ask_at(boottime().0) {
                let most = self.config.total_bytes_max;
                return Err(DeviceError::NoRoom { bytes, most });
            }
            let mut kept = self.kept.lock();
            // Copies end without a word, so whoever waits looks again soon.
            self.freed.wait_for(&mut kept, left.min(PAUSE_MAX));
        }
    }

    /// The same at once, or not at all.
    pub(crate) fn try_lease(self: &Arc<Self>, bytes: usize) -> Result<Option<Room>, DeviceError> {
        loop {
            let turn = self.kept.lock().turn(bytes, self.config);
            let transit = match turn {
                Turn::Take(transit) => transit,
                Turn::Make(size) => self.make(size)?,
                // Out of the lock: giving pinned memory back waits for the GPU.
                Turn::Drop(rooms) => {
                    drop(rooms);
                    continue;
                }
                Turn::Wait => return Ok(None),
            };
            return Ok(Some(Room { rooms: Arc::clone(self), transit: Some(transit) }));
        }
    }

    fn make(&self, size: usize) -> Result<Transit, GpuError> {
        Transit::new(&self.gpu, size).inspect_err(|_| {
            self.kept.lock().bytes -= size;
            self.freed.notify_all();
        })
    }
}

/// A room that is lent. Dropping it gives it back, when its copies have ended.
#[derive(Debug)]
pub(crate) struct Room {
    rooms: Arc<Rooms>,
    /// `None` only while it is dropped.
    transit: Option<Transit>,
}

impl Room {
    fn transit(&self) -> &Transit {
        self.transit.as_ref().expect("a room has its memory until it is dropped")
    }

    fn transit_mut(&mut self) -> &mut Transit {
        self.transit.as_mut().expect("a room has its memory until it is dropped")
    }

    /// Queues a copy of device memory into the room, after what `mark` marks.
    pub(crate) fn download(
        &mut self,
        source: Span<'_>,
        at: usize,
        mark: &Event,
    ) -> Result<(), GpuError> {
        let transit = self.transit_mut();
        transit.wait_for(mark)?;
        transit.download(source, at)
    }

    /// Queues a copy of bytes of the room to device memory, after what `mark` marks.
    pub(crate) fn upload(
        &mut self,
        from: Range<usize>,
        target: Span<'_>,
        mark: &Event,
    ) -> Result<(), GpuError> {
        let transit = self.transit_mut();
        transit.wait_for(mark)?;
        transit.upload(from, target)
    }

    /// Its stream, for work that waits for the room are for, too.
    pub(crate) fn stream(&mut self) -> &Stream {
        self.transit_mut().stream()
    }

    /// Queues a copy of device memory to the front of the room, after what its stream has to do.
    pub(crate) fn fetch(&mut self, source: Span<'_>) -> Result<(), GpuError> {
        self.transit_mut().download(source, 0)
    }

    /// The end of its copies.
    pub(crate) fn mark(&mut self) -> Result<&Event, GpuError> {
        self.transit_mut().mark()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.transit().bytes()
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.transit_mut().bytes_mut()
    }

    /// Waits until its copies have ended, or the deadline has passed: what was queued before them on the
    /// caller's stream may take any time.
    pub(crate) fn settle(&mut self, deadline: Deadline) -> Result<(), DeviceError> {
        let transit = self.transit_mut();
        until(|| transit.poll(), deadline)
    }

    /// Waits for its copies, however long that is.
    pub(crate) fn synchronize(&mut self) -> Result<(), GpuError> {
        self.transit_mut().synchronize()
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let Some(mut transit) = self.transit.take() else { return };
        let landed = transit.poll();
        let mut kept = self.rooms.kept.lock();
        match landed {
            Ok(true) => kept.idle.push(transit),
            Ok(false) => kept.flying.push(transit),
            Err(_) => {
                kept.bytes -= transit.len();
                drop(kept);
                // The context is broken, or its work failed: nothing of it is used again.
                drop(transit);
            }
        }
        self.rooms.freed.notify_all();
    }
}

/// Waits until a stream has passed a mark, or the deadline has.
pub(crate) fn passed(mark: &Event, deadline: Deadline) -> Result<(), DeviceError> {
    until(|| mark.is_passed(), deadline)
}

fn until(
    mut look: impl FnMut() -> Result<bool, GpuError>,
    deadline: Deadline,
) -> Result<(), DeviceError> {
    let began = boottime();
    for _ in 0..LOOKS {
        if look()? {
            return Ok(());
        }
        std::thread::yield_now();
    }
    let mut pause = PAUSE_MIN;
    while !look()? {
        let now = boottime();
        if deadline.passed(now) || interrupt::sleep(pause.min(deadline.left(now))) {
            return Err(DeviceError::Late { waited: now.since(began) });
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
    Ok(())
}
