//! get into device memory: verified in a room, then copied to the GPU ([`crate::device`]).

use crate::device::{Arriving, DeviceMemory, PIECE_BYTES, cut, of_one_gpu};
use crate::device_error::DeviceError;
use crate::direct::Straight;
use crate::staging::{Room, Rooms};
use crate::{Error, Store};
use mooncrate_client::Error as ClientError;
use mooncrate_core::limits::{BATCH_ITEMS_MAX, LEASE_MS_MAX};
use mooncrate_gpu::{Gpu, GpuError};
use mooncrate_lock::interrupt;
use mooncrate_transfer::TransferError;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// A piece of the memory that a value goes to.
#[derive(Debug)]
pub enum Landed<'a> {
    /// Memory of the host.
    Host(&'a mut [u8]),
    /// Memory of a GPU.
    Device(DeviceMemory<'a>),
}

impl Landed<'_> {
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

/// A key, and the pieces of memory that its value goes to, one after the other.
pub type LandedItem<'a> = (&'a [u8], Vec<Landed<'a>>);

/// What became of each key: bytes, no value, or why not.
pub type Lengths = Vec<Result<Option<u64>, Error>>;

/// Why a value was not read into a room.
enum Trouble {
    Small {
        need: u64,
        have: u64,
    },
    /// It has no room as a whole.
    Long,
    Device(DeviceError),
}

/// A room for a value of this length; none where it has no bytes, or where there is trouble.
struct Landing {
    room: Option<Room>,
    len: usize,
}

impl AsMut<[u8]> for Landing {
    fn as_mut(&mut self) -> &mut [u8] {
        match &mut self.room {
            Some(room) => &mut room.bytes_mut()[..self.len],
            None => &mut [],
        }
    }
}

impl Store {
    /// Copies values into memory of the host or of GPUs; their lengths, one result each. With `exact` a value
    /// must have the length of its memory. The stream of every caller has to wait for what is returned.
    pub fn get_into_mixed(&self, items: &mut [LandedItem<'_>], exact: bool) -> (Lengths, Arriving) {
        let (mut results, mut arriving) = (Vec::with_capacity(items.len()), Arriving::default());
        let mut rest = items;
        while !rest.is_empty() {
            if let Some(found) = self.straight(rest, exact) {
                results.push(Ok(found));
                rest = &mut rest[1..];
                continue;
            }
            let (some, after) = rest.split_at_mut(together(rest, self.group_max()));
            rest = after;
            match some {
                [(key, pieces)] => {
                    results.push(self.get_one(key, pieces, exact, &mut arriving.rooms));
                }
                some => results.extend(self.get_some(some, exact, &mut arriving.rooms)),
            }
        }
        if interrupt::ended() {
            // The caller uses its memory for something else as soon as it hears of the interrupt.
            for room in &mut arriving.rooms {
                let _ = room.synchronize();
            }
        }
        (results, arriving)
    }

    /// The first of these values by the direct way: its length, or that there is none. A batch looks for values in
    /// VRAM where some were met before, because each is looked for by itself.
    #[expect(
        clippy::option_option,
        reason = "no answer, or one that may be that there is no value"
    )]
    fn straight(&self, items: &[LandedItem<'_>], exact: bool) -> Option<Option<u64>> {
        let [(key, pieces), rest @ ..] = items else { return None };
        let [Landed::Device(target)] = &pieces[..] else { return None };
        if !rest.is_empty() && !self.direct().is_used() {
            return None;
        }
        match self.get_directly(key, target, exact) {
            Straight::Got(len) => Some(Some(len)),
            Straight::Missing => Some(None),
            Straight::NotThisWay => None,
        }
    }

    /// Values that share a room, in one call.
    fn get_some(
        &self,
        items: &mut [LandedItem<'_>],
        exact: bool,
        flying: &mut Vec<Room>,
    ) -> Lengths {
        let gpu = items[0].1.iter().find_map(Landed::gpu).cloned();
        let gpu = gpu.expect("only values of one GPU go together");
        let bytes: usize = items.iter().map(|(_, pieces)| total(pieces) as usize).sum();
        let mut room = match self.room_beside(&self.rooms(&gpu), bytes, flying) {
            Ok(room) => room,
            Err(error) => return items.iter().map(|_| Err(error.clone().into())).collect(),
        };
        let mut targets = Vec::with_capacity(items.len());
        let (mut left, mut starts) = (&mut room.bytes_mut()[..bytes], Vec::new());
        let mut start = 0;
        for (key, pieces) in &*items {
            let (now, later) = left.split_at_mut(total(pieces) as usize);
            starts.push(start);
            start += now.len();
            left = later;
            targets.push((*key, now));
        }
        let mut found = self.get_into_batch(&mut targets);
        drop(targets);
        for ((found, (_, pieces)), start) in found.iter_mut().zip(&mut *items).zip(&starts) {
            let Ok(Some(len)) = found else { continue };
            if exact && *len as u64 != total(pieces) {
                *found = Err(misfit(*len as u64, total(pieces)));
            } else {
                spill(&room.bytes()[*start..*start + *len], pieces, 0..*len as u64);
            }
        }
        let results = found.into_iter().zip(&*items).zip(starts).map(|((found, item), start)| {
            let Some(len) = found? else { return Ok(None) };
            send(&mut room, start, &item.1, 0..len as u64)?;
            Ok(Some(len as u64))
        });
        let results = results.collect();
        flying.push(room);
        results
    }

    fn get_one(
        &self,
        key: &[u8],
        pieces: &mut [Landed<'_>],
        exact: bool,
        flying: &mut Vec<Room>,
    ) -> Result<Option<u64>, Error> {
        let Some(gpu) = pieces.iter().find_map(Landed::gpu).cloned() else {
            return self.get_to_host(key, pieces, exact);
        };
        of_one_gpu(&gpu, pieces.iter().filter_map(Landed::gpu))?;
        let (rooms, have) = (self.rooms(&gpu), total(pieces));
        let mut trouble = None;
        let found = self.get_with(key, |len| {
            let need = len as u64;
            trouble = None;
            let mut none = |why| {
                trouble = Some(why);
                Landing { room: None, len: 0 }
            };
            if need > have || (exact && need != have) {
                return none(Trouble::Small { need, have });
            }
            if len > self.room_max() {
                return none(Trouble::Long);
            }
            if len == 0 {
                return Landing { room: None, len };
            }
            match self.room_beside(&rooms, len, flying) {
                Ok(room) => Landing { room: Some(room), len },
                Err(error) => none(Trouble::Device(error)),
            }
        });
        match (found, trouble) {
            (Ok(None), _) => Ok(None),
            (Ok(Some(Landing { room, len })), _) => {
                if let Some(mut room) = room {
                    spill(&room.bytes()[..len], pieces, 0..len as u64);
                    send(&mut room, 0, pieces, 0..len as u64)?;
                    flying.push(room);
                }
                Ok(Some(len as u64))
            }
            (Err(error), Some(trouble)) if is_length(&error) => match trouble {
                Trouble::Small { need, have } => Err(misfit(need, have)),
                Trouble::Device(error) => Err(error.into()),
                Trouble::Long => self.get_long(key, pieces, exact, &rooms, flying),
            },
            (Err(error), _) => Err(error),
        }
    }

    /// A value that has no room as a whole: read piece by piece under a lease, each verified as a part of the
    /// same object.
    fn get_long(
        &self,
        key: &[u8],
        pieces: &mut [Landed<'_>],
        exact: bool,
        rooms: &Arc<Rooms>,
        flying: &mut Vec<Room>,
    ) -> Result<Option<u64>, Error> {
        let lease = Duration::from_millis(LEASE_MS_MAX.into());
        let Some(session) = self.get_session(key, lease)? else { return Ok(None) };
        let (len, have) = (session.value_len(), total(pieces));
        if len > have || (exact && len != have) {
            return Err(misfit(len, have));
        }
        let piece = PIECE_BYTES.min(self.room_max()) as u64;
        let mut start = 0;
        while start < len {
            let range = start..(start + piece).min(len);
            let bytes = (range.end - range.start) as usize;
            let mut room = self.room_beside(rooms, bytes, flying)?;
            session.read(start, &mut room.bytes_mut()[..bytes])?;
            spill(&room.bytes()[..bytes], pieces, range.clone());
            send(&mut room, 0, pieces, range)?;
            flying.push(room);
            start += piece;
        }
        Ok(Some(len))
    }

    /// A value whose memory is the host's alone.
    fn get_to_host(
        &self,
        key: &[u8],
        pieces: &mut [Landed<'_>],
        exact: bool,
    ) -> Result<Option<u64>, Error> {
        let Some(value) = self.get(key)? else { return Ok(None) };
        let (need, have) = (value.len() as u64, total(pieces));
        if need > have || (exact && need != have) {
            return Err(misfit(need, have));
        }
        spill(&value, pieces, 0..need);
        Ok(Some(need))
    }

    /// A room beside those whose copies are under way for the same caller; where there is none, the oldest
    /// of those is waited for.
    fn room_beside(
        &self,
        rooms: &Arc<Rooms>,
        bytes: usize,
        flying: &mut Vec<Room>,
    ) -> Result<Room, DeviceError> {
        let deadline = self.deadline();
        while !flying.is_empty() {
            if let Some(room) = rooms.try_lease(bytes)? {
                return Ok(room);
            }
            flying[0].settle(deadline)?;
            flying.remove(0);
        }
        rooms.lease(bytes, deadline)
    }
}

/// How many items, from the first on, share a room; at least one.
fn together(items: &[LandedItem<'_>], bytes_max: usize) -> usize {
    let gpu_of = |item: &LandedItem<'_>| -> Option<Gpu> {
        let gpu = item.1.iter().find_map(Landed::gpu)?;
        let alone = item.1.iter().filter_map(Landed::gpu).all(|other| gpu.is(other));
        alone.then(|| gpu.clone())
    };
    let Some(gpu) = gpu_of(&items[0]) else { return 1 };
    let mut bytes = 0_u64;
    let fits = items.iter().take(BATCH_ITEMS_MAX).take_while(|item| {
        bytes = bytes.saturating_add(total(&item.1));
        bytes <= bytes_max as u64 && gpu_of(item).is_some_and(|other| other.is(&gpu))
    });
    fits.count().max(1)
}

fn total(pieces: &[Landed<'_>]) -> u64 {
    pieces.iter().map(Landed::len).sum()
}

fn misfit(need: u64, have: u64) -> Error {
    ClientError::BufferTooSmall { need, have }.into()
}

/// Whether a read failed because its memory had another length than the value.
fn is_length(error: &Error) -> bool {
    let Error::Client(error) = error else { return false };
    matches!(
        error,
        ClientError::Transfer(TransferError::Length { .. })
            | ClientError::Restless { last: TransferError::Length { .. }, .. }
    )
}

/// Copies a range of a value, whose bytes these are, to the host's pieces of its memory.
fn spill(bytes: &[u8], pieces: &mut [Landed<'_>], range: Range<u64>) {
    let mut first = 0;
    for piece in pieces {
        let len = piece.len();
        let (from, to) = cut(first, len, &range);
        if let Landed::Host(into) = piece
            && from < to
        {
            let source = &bytes[(from - range.start) as usize..(to - range.start) as usize];
            into[(from - first) as usize..(to - first) as usize].copy_from_slice(source);
        }
        first += len;
    }
}

/// Queues copies of a range of a value, which is at `start` of the room, to the device's pieces.
fn send(
    room: &mut Room,
    start: usize,
    pieces: &[Landed<'_>],
    range: Range<u64>,
) -> Result<(), GpuError> {
    let mut first = 0;
    for piece in pieces {
        let (from, to) = cut(first, piece.len(), &range);
        if let Landed::Device(memory) = piece
            && from < to
        {
            let at = start + (from - range.start) as usize;
            let target = memory.span.part(from - first..to - first)?;
            room.upload(at..at + (to - from) as usize, target, memory.after)?;
        }
        first += piece.len();
    }
    Ok(())
}
