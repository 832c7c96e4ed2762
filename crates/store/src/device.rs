//! Values of GPUs: put from device memory, got into device memory, through pinned rooms.
//!
//! ```text
//!   caller's stream   ─ kernels ─┬ mark                              ┌ waits for the copy ─ kernels ─
//!   our stream                   └► copy to a room        copy from a room
//!   this thread                        waits ─► put        get, verified ─►
//! ```
//!
//! What must stay true: a put takes the bytes that the caller's stream has written by then, and has them when
//! it returns. A get hands out nothing that was not verified: through a room, bytes go to the GPU after their
//! checksum was compared on the host; the direct way (`direct.rs`) sums what arrived on the GPU. Work that the caller queues after a get sees its bytes, because its stream waits for
//! the copy; work that was queued before is over when the first byte is written.
//!
//! The marks are made by whoever calls ([`ForeignStream::mark`]), in the caller's thread, because a stream may
//! mean another one elsewhere.

use crate::device_error::DeviceError;
use crate::device_get::Landed;
use crate::staging::{Room, Rooms, passed};
use crate::{Error, PutConfig, Store, Stored, Wishes};
use mooncrate_client::Error as ClientError;
use mooncrate_core::error::PutError;
use mooncrate_core::limits::BATCH_ITEMS_MAX;
use mooncrate_gpu::{Event, ForeignStream, Gpu, GpuError, Span};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of small values that share a room.
const GROUP_BYTES: usize = 32 << 20;
/// Bytes of a piece of a value that has no room as a whole.
pub(crate) const PIECE_BYTES: usize = 32 << 20;
/// Values in a room begin at multiples of this.
const ALIGN: usize = 256;

/// Device memory of a caller, to be used after a mark in the caller's stream.
#[derive(Clone, Copy, Debug)]
pub struct DeviceMemory<'a> {
    /// Where it is.
    pub span: Span<'a>,
    /// What has to be over before.
    pub after: &'a Event,
}

/// A part of a value that is put.
#[derive(Clone, Copy, Debug)]
pub enum Part<'a> {
    /// Memory of the host.
    Host(&'a [u8]),
    /// Memory of a GPU.
    Device(DeviceMemory<'a>),
}

impl Part<'_> {
    fn len(&self) -> u64 {
        match self {
            Self::Host(bytes) => bytes.len() as u64,
            Self::Device(memory) => memory.span.len(),
        }
    }

    fn gpu(&self) -> Option<&Gpu> {
        match self {
            Self::Host(_) => None,
            Self::Device(memory) => Some(memory.span.gpu()),
        }
    }
}

/// A value to put: its key, and its parts one after the other.
pub type PartsItem<'a> = (&'a [u8], &'a [Part<'a>]);

/// Copies of a get that may still be under way. Dropping it waits for them.
#[derive(Debug, Default)]
#[must_use = "the caller's stream has to wait for the copies: `join` it"]
pub struct Arriving {
    pub(crate) rooms: Vec<Room>,
}

impl Arriving {
    /// What is queued on this stream from now on sees the bytes. Nobody waits here.
    pub fn join(self, stream: &ForeignStream) -> Result<(), Error> {
        self.join_all(std::slice::from_ref(stream))
    }

    /// The same for the streams of several targets.
    pub fn join_all(mut self, streams: &[ForeignStream]) -> Result<(), Error> {
        for room in &mut self.rooms {
            for stream in distinct(streams) {
                stream.wait(room.mark()?)?;
            }
        }
        // The rooms go back by themselves when their copies have ended.
        self.rooms.clear();
        Ok(())
    }

    /// Waits here until the bytes have arrived.
    pub fn wait(mut self) -> Result<(), Error> {
        Ok(self.rooms.iter_mut().try_for_each(Room::synchronize)?)
    }
}

impl Drop for Arriving {
    fn drop(&mut self) {
        // Nobody's stream waits for them, and whoever has the memory believes that nothing goes on.
        for room in &mut self.rooms {
            let _ = room.synchronize();
        }
    }
}

impl Store {
    /// Stores a value that lies in the memory of a GPU, as its stream will have left it. When this returns,
    /// the bytes were taken.
    pub fn put_device(
        &self,
        key: &[u8],
        value: Span<'_>,
        stream: &ForeignStream,
        config: &PutConfig,
    ) -> Result<Stored, Error> {
        let after = stream.mark()?;
        let part = Part::Device(DeviceMemory { span: value, after: &after });
        let mut stored = self.put_mixed(&[(key, &[part])], config);
        stored.pop().expect("one result per item")
    }

    /// Copies a value into the front of device memory; its length, or `None` if there is none. What is
    /// queued on the stream after this call sees it; this thread does not wait for the copy.
    pub fn get_into_device(
        &self,
        key: &[u8],
        target: Span<'_>,
        stream: &ForeignStream,
    ) -> Result<Option<u64>, Error> {
        let after = stream.mark()?;
        let target = DeviceMemory { span: target, after: &after };
        let (mut got, arriving) =
            self.get_into_mixed(&mut [(key, vec![Landed::Device(target)])], false);
        arriving.join(stream)?;
        got.pop().expect("one result per item")
    }

    /// Waits until a stream has passed a mark, for as long as a call may take.
    pub fn pass(&self, mark: &Event) -> Result<(), Error> {
        Ok(passed(mark, self.deadline())?)
    }

    /// Stores values whose parts lie on the host or on GPUs, all with the same wishes but for their groups; one
    /// result each.
    pub fn put_mixed<'w>(
        &self,
        items: &[PartsItem<'_>],
        wishes: impl Into<Wishes<'w>>,
    ) -> Vec<Result<Stored, Error>> {
        let wishes: Wishes<'w> = wishes.into();
        let mut results: Vec<Option<Result<Stored, Error>>> = items.iter().map(|_| None).collect();
        for (at, ((key, parts), result)) in items.iter().zip(&mut results).enumerate() {
            if let [Part::Device(value)] = parts {
                *result = self.put_directly(key, value, &wishes.of(at));
            }
        }
        let (host, mut groups) = self.sorted(items, &mut results);
        for some in host.chunks(BATCH_ITEMS_MAX) {
            self.put_from_host(items, some, wishes, &mut results);
        }
        // While one group goes to its owners, the next one comes from the GPU.
        let mut ahead: Option<Staged> = None;
        while let Some(group) = groups.pop_front() {
            if group.long {
                let at = group.items[0].0;
                results[at] = Some(self.put_long(&group, items[at], &wishes.of(at)));
                continue;
            }
            let staged = match ahead.take() {
                Some(staged) => Ok(staged),
                None => self.stage(items, &group, true).map(|staged| staged.expect("it waits")),
            };
            if let Some(next) = groups.front().filter(|next| !next.long) {
                // Where no room is free now, it comes after this one.
                ahead = self.stage(items, next, false).ok().flatten();
            }
            let settled = staged.and_then(|mut staged| {
                staged.room.settle(self.deadline())?;
                Ok(staged)
            });
            match settled {
                Ok(staged) => self.put_staged(items, &staged, wishes, &mut results),
                Err(error) => {
                    for (at, _) in group.items {
                        results[at] = Some(Err(error.clone().into()));
                    }
                }
            }
        }
        results.into_iter().map(|result| result.expect("every item was decided")).collect()
    }

    /// Which items lie on the host, and which share a room. An item that makes no sense is decided.
    fn sorted(
        &self,
        items: &[PartsItem<'_>],
        results: &mut [Option<Result<Stored, Error>>],
    ) -> (Vec<usize>, VecDeque<Group>) {
        let (mut host, mut groups) = (Vec::new(), VecDeque::<Group>::new());
        for (at, (_, parts)) in items.iter().enumerate() {
            if results[at].is_some() {
                continue;
            }
            let Some(gpu) = parts.iter().find_map(Part::gpu) else {
                host.push(at);
                continue;
            };
            if let Err(error) = of_one_gpu(gpu, parts.iter().filter_map(Part::gpu)) {
                results[at] = Some(Err(error.into()));
                continue;
            }
            let len: u64 = parts.iter().map(Part::len).sum();
            let Some(bytes) = usize::try_from(len).ok().filter(|len| *len <= self.room_max())
            else {
                let items = vec![(at, 0..0)];
                groups.push_back(Group { gpu: gpu.clone(), items, bytes: 0, long: true });
                continue;
            };
            match groups.back_mut() {
                Some(group) if group.takes(gpu, bytes, self.group_max()) => group.push(at, bytes),
                _ => {
                    let mut group =
                        Group { gpu: gpu.clone(), items: Vec::new(), bytes: 0, long: false };
                    group.push(at, bytes);
                    groups.push_back(group);
                }
            }
        }
        (host, groups)
    }

    fn put_from_host(
        &self,
        items: &[PartsItem<'_>],
        places: &[usize],
        wishes: Wishes<'_>,
        results: &mut [Option<Result<Stored, Error>>],
    ) {
        let values: Vec<Vec<&[u8]>> = places
            .iter()
            .map(|at| {
                let parts = items[*at].1.iter();
                parts
                    .map(|part| match part {
                        Part::Host(bytes) => *bytes,
                        Part::Device(_) => unreachable!("sorted by `sorted`"),
                    })
                    .collect()
            })
            .collect();
        let asks: Vec<(&[u8], &[&[u8]])> =
            places.iter().zip(&values).map(|(at, value)| (items[*at].0, &value[..])).collect();
        let groups = wishes.pick(places.iter().copied());
        let wishes = Wishes::grouped(wishes.config(), &groups);
        for (at, stored) in places.iter().zip(self.put_parts_batch(&asks, wishes)) {
            results[*at] = Some(stored);
        }
    }

    /// Queues the copies of a group into a room; `None`: no room is free, and nobody shall wait for one.
    fn stage(
        &self,
        items: &[PartsItem<'_>],
        group: &Group,
        wait: bool,
    ) -> Result<Option<Staged>, DeviceError> {
        let rooms = self.rooms(&group.gpu);
        let room = if wait {
            Some(rooms.lease(group.bytes, self.deadline())?)
        } else {
            rooms.try_lease(group.bytes)?
        };
        let Some(mut room) = room else { return Ok(None) };
        for (at, range) in &group.items {
            fill(&mut room, items[*at].1, range.start);
        }
        for (at, range) in &group.items {
            fetch(&mut room, items[*at].1, range.start, 0..range.len() as u64)?;
        }
        room.mark()?;
        Ok(Some(Staged { room, items: group.items.clone() }))
    }

    fn put_staged(
        &self,
        items: &[PartsItem<'_>],
        staged: &Staged,
        wishes: Wishes<'_>,
        results: &mut [Option<Result<Stored, Error>>],
    ) {
        let bytes = staged.room.bytes();
        let values: Vec<[&[u8]; 1]> =
            staged.items.iter().map(|(_, range)| [&bytes[range.clone()]]).collect();
        let asks: Vec<(&[u8], &[&[u8]])> = staged
            .items
            .iter()
            .zip(&values)
            .map(|((at, _), value)| (items[*at].0, &value[..]))
            .collect();
        let groups = wishes.pick(staged.items.iter().map(|(at, _)| *at));
        let stored = self.put_parts_batch(&asks, Wishes::grouped(wishes.config(), &groups));
        for ((at, _), stored) in staged.items.iter().zip(stored) {
            results[*at] = Some(stored);
        }
    }

    /// Puts a value that has no room as a whole, piece by piece: one comes from the GPU while the one before
    /// goes to its owner.
    fn put_long(
        &self,
        group: &Group,
        (key, parts): PartsItem<'_>,
        config: &PutConfig,
    ) -> Result<Stored, Error> {
        let rooms = self.rooms(&group.gpu);
        let len: u64 = parts.iter().map(Part::len).sum();
        let session = match self.put_session(key, len, config) {
            Err(Error::Client(ClientError::Put(PutError::Exists))) => {
                return Ok(Stored::AlreadyThere);
            }
            opened => opened?,
        };
        let piece = PIECE_BYTES.min(self.room_max()) as u64;
        let stage = |start: u64, mut room: Room| -> Result<Room, DeviceError> {
            let range = start..(start + piece).min(len);
            fill_range(&mut room, parts, range.clone());
            fetch(&mut room, parts, 0, range)?;
            room.mark()?;
            Ok(room)
        };
        let mut ahead: Option<Room> = None;
        let mut start = 0;
        while start < len {
            let mut room = match ahead.take() {
                Some(room) => room,
                None => stage(start, rooms.lease(piece as usize, self.deadline())?)?,
            };
            if start + piece < len
                && let Some(free) = rooms.try_lease(piece as usize)?
            {
                ahead = Some(stage(start + piece, free)?);
            }
            room.settle(self.deadline())?;
            let bytes = piece.min(len - start) as usize;
            session.write(start, &room.bytes()[..bytes])?;
            start += piece;
        }
        session.end()?;
        Ok(Stored::New)
    }

    pub(crate) fn rooms(&self, gpu: &Gpu) -> Arc<Rooms> {
        self.staging().of(gpu)
    }

    /// Bytes of values that share a room.
    pub(crate) fn group_max(&self) -> usize {
        GROUP_BYTES.min(self.room_max())
    }

    /// Bytes of the largest room.
    pub(crate) fn room_max(&self) -> usize {
        self.staging().room_bytes_max()
    }
}

/// Each stream once: the targets of a batch mostly share one.
fn distinct(streams: &[ForeignStream]) -> impl Iterator<Item = &ForeignStream> {
    let seen = |at: usize| streams[..at].iter().rev().take(1).any(|other| streams[at].is(other));
    streams.iter().enumerate().filter(move |(at, _)| !seen(*at)).map(|(_, stream)| stream)
}

/// Values that share a room.
struct Group {
    gpu: Gpu,
    /// Which items, and where in the room.
    items: Vec<(usize, Range<usize>)>,
    bytes: usize,
    /// One item that has no room as a whole.
    long: bool,
}

impl Group {
    fn takes(&self, gpu: &Gpu, bytes: usize, bytes_max: usize) -> bool {
        let end = self.bytes.next_multiple_of(ALIGN).saturating_add(bytes);
        !self.long && self.gpu.is(gpu) && end <= bytes_max && self.items.len() < BATCH_ITEMS_MAX
    }

    fn push(&mut self, at: usize, bytes: usize) {
        let start = self.bytes.next_multiple_of(ALIGN);
        self.items.push((at, start..start + bytes));
        self.bytes = start + bytes;
    }
}

/// A group whose copies are on their way.
struct Staged {
    room: Room,
    items: Vec<(usize, Range<usize>)>,
}

/// An error, unless all parts lie on this GPU.
pub(crate) fn of_one_gpu<'a>(
    gpu: &Gpu,
    others: impl Iterator<Item = &'a Gpu>,
) -> Result<(), DeviceError> {
    for other in others {
        if !gpu.is(other) {
            let (here, there) = (gpu.ordinal(), other.ordinal());
            let text = format!(
                "the parts of one value lie on GPU {here} and on GPU {there}; copy them to one first"
            );
            return Err(GpuError::Invalid(text).into());
        }
    }
    Ok(())
}

/// Copies the host's parts of a value into a room, where the value begins at `start`.
fn fill(room: &mut Room, parts: &[Part<'_>], start: usize) {
    let len: u64 = parts.iter().map(Part::len).sum();
    let into = &mut room.bytes_mut()[start..start + len as usize];
    fill_slice(into, parts, 0..len);
}

/// The same for a range of a value, at the front of a room.
fn fill_range(room: &mut Room, parts: &[Part<'_>], range: Range<u64>) {
    let len = (range.end - range.start) as usize;
    fill_slice(&mut room.bytes_mut()[..len], parts, range);
}

fn fill_slice(into: &mut [u8], parts: &[Part<'_>], range: Range<u64>) {
    let mut first = 0;
    for part in parts {
        let (from, to) = cut(first, part.len(), &range);
        if let Part::Host(bytes) = part
            && from < to
        {
            let source = &bytes[(from - first) as usize..(to - first) as usize];
            let at = (from - range.start) as usize;
            into[at..at + source.len()].copy_from_slice(source);
        }
        first += part.len();
    }
}

/// Queues copies of the device's parts of a range of a value, which is at `start` of the room.
fn fetch(
    room: &mut Room,
    parts: &[Part<'_>],
    start: usize,
    range: Range<u64>,
) -> Result<(), GpuError> {
    let mut first = 0;
    for part in parts {
        let (from, to) = cut(first, part.len(), &range);
        if let Part::Device(memory) = part
            && from < to
        {
            let source = memory.span.part(from - first..to - first)?;
            room.download(source, start + (from - range.start) as usize, memory.after)?;
        }
        first += part.len();
    }
    Ok(())
}

/// The bytes that a part of `len` from `first` on has in a range; none where the second is not larger.
pub(crate) fn cut(first: u64, len: u64, range: &Range<u64>) -> (u64, u64) {
    (first.max(range.start), (first + len).min(range.end))
}
