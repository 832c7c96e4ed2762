//! Reading from disks: for readers in this process, and into staging memory for all others. Slots are pinned
//! meanwhile, and what a disk gives is verified by the backend (S11). Nobody waits beyond his deadline: reads
//! are made by threads of the disk, into memory that is not the caller's.

use super::{Disk, End, record_of};
use mooncrate_core::Seal;
use mooncrate_core::limits::SLICE_BYTES;
use mooncrate_core::plan::Locator;
use mooncrate_core::seal::slices;
use mooncrate_core::time::{Deadline, Now};
use mooncrate_mem::clock::boottime;
use mooncrate_mem::sums::seal_of;
use mooncrate_mem::{PinGuard, WriteGuard};
use mooncrate_ssd::{Lent, Load, LoadError, RecordId, Room, Rooms};
use mooncrate_transfer::{Read, Segments, Stager, Staging, TransferError};
use mooncrate_wire::DataError;
use mooncrate_wire::message::{StageItem, Staged};
use rustix::io::Errno;
use std::io;
use std::sync::{Arc, Weak};

/// Hint when a disk failed for a reason that may pass.
const FAILED_MS: u32 = 100;
/// Hint when a disk hangs.
const LATE_MS: u32 = 500;
/// Memory that is kept for readers in this process: so many rooms of so many bytes. Larger values have their
/// own, for as long as they are loaded.
const ROOM_BYTES: usize = 4 << 20;
const ROOMS: usize = 8;

/// The disks of a node and its staging memory.
#[derive(Debug)]
pub(crate) struct Tier {
    pub(crate) disks: Vec<Arc<Disk>>,
    pub(crate) staging: Staging,
    /// Memory that is loaded into for readers in this process.
    rooms: Rooms,
    /// They hold us.
    segments: Weak<Segments>,
}

/// A record that is about to be loaded.
struct Found {
    pin: PinGuard,
    id: RecordId,
    label: Box<[u8]>,
}

impl Tier {
    pub(crate) fn new(disks: Vec<Arc<Disk>>, staging: Staging, segments: Weak<Segments>) -> Self {
        Self { disks, staging, rooms: Rooms::new(ROOM_BYTES, ROOMS), segments }
    }

    /// The disk behind a segment.
    pub(crate) fn disk(&self, id: mooncrate_core::SegmentId) -> Option<&Arc<Disk>> {
        self.disks.iter().find(|disk| disk.id == id)
    }

    fn find(&self, now: Now, locator: &Locator) -> Result<Found, TransferError> {
        let segments = self.segments.upgrade().ok_or(DataError::UnknownSegment)?;
        let segment = segments.find(locator)?;
        let pin = segment.pin(now, locator)?;
        let label = pin.label();
        let id = record_of(pin.object(), &label);
        Ok(Found { pin, id, label })
    }

    /// Runs loads, each on its disk; one batch per disk. What is not there in time is `None`, and ends alone.
    fn run<T: Target>(
        &self,
        targets: Vec<(usize, T)>,
        deadline: Deadline,
    ) -> Vec<Option<(T, Result<(), DataError>)>> {
        let mut by_disk: Vec<(Vec<usize>, Vec<T>)> =
            self.disks.iter().map(|_| Default::default()).collect();
        let mut results: Vec<_> = targets.iter().map(|_| None).collect();
        for (at, (disk, target)) in targets.into_iter().enumerate() {
            by_disk[disk].0.push(at);
            by_disk[disk].1.push(target);
        }
        let mut under_way = Vec::with_capacity(self.disks.len());
        for (disk, (order, batch)) in self.disks.iter().zip(by_disk) {
            let reader = Arc::clone(disk);
            if !batch.is_empty()
                && let Ok(under) = disk.loaders.begin(move || reader.load(batch))
            {
                under_way.push((order, under));
            }
        }
        for (order, under) in under_way {
            for (at, one) in order.into_iter().zip(under.wait(deadline).into_iter().flatten()) {
                results[at] = Some(one);
            }
        }
        results
    }

    fn index(&self, locator: &Locator) -> Result<usize, DataError> {
        let found = self.disks.iter().position(|disk| disk.id == locator.segment);
        found.ok_or(DataError::UnknownSegment)
    }
}

impl Disk {
    /// Loads a batch.
    fn load<T: Target>(&self, mut batch: Vec<T>) -> Vec<(T, Result<(), DataError>)> {
        let mut loads: Vec<Load<'_>> = batch.iter_mut().map(Target::load).collect();
        let began = boottime();
        self.backend.load(&mut loads);
        self.tally.loads.note(boottime().since(began));
        let results: Vec<_> = loads.into_iter().map(|load| self.judge(load)).collect();
        batch.into_iter().zip(results).collect()
    }

    /// What became of a load, as it is told. What cannot be read is not served again: its life is over, and
    /// who asks the master once more finds another replica, or a miss.
    fn judge(&self, load: Load<'_>) -> Result<(), DataError> {
        match load.result {
            Ok(()) => {
                self.tally.loaded.one();
                self.tally.loaded_bytes.add(load.want);
                Ok(())
            }
            // Evicted a moment ago, perhaps before its slot was even Ready: then nobody has retired it.
            Err(LoadError::Missing) => {
                self.push_end(End::Bad(load.id));
                Err(DataError::Stale)
            }
            Err(LoadError::OutOfBounds) => Err(DataError::OutOfBounds),
            Err(LoadError::Disk(error)) => {
                self.tally.errors.one();
                let path = self.config.path.display();
                tracing::error!(%error, %path, "a record was not read");
                if passes(&error) {
                    return Err(DataError::Busy { after_ms: FAILED_MS });
                }
                self.went_bad(load.id);
                Err(DataError::Stale)
            }
            Err(_) => {
                let path = self.config.path.display();
                tracing::error!(object = %load.id.object, %path, "a record is not what was kept");
                self.went_bad(load.id);
                Err(DataError::Stale)
            }
        }
    }
}

/// Whether a read failed for a reason that may pass: want of something of this process or this machine. All
/// else is the disk's word that it does not give the record back; devices have many ways to say so. Errors
/// that do not come from the system tell nothing about the disk.
fn passes(error: &io::Error) -> bool {
    const PASSING: [Errno; 5] =
        [Errno::AGAIN, Errno::INTR, Errno::NOMEM, Errno::MFILE, Errno::NFILE];
    let Some(number) = error.raw_os_error() else { return true };
    PASSING.iter().any(|errno| errno.raw_os_error() == number)
}

/// Something that is loaded, with the memory that it goes to: who wants it may be gone before it is there.
trait Target: Send + 'static {
    fn load(&mut self) -> Load<'_>;
}

/// A value, or a part of one, for a reader in this process.
struct Piece {
    found: Found,
    len: u64,
    seal: Seal,
    start: u64,
    want: u64,
    into: Memory,
}

/// Memory of our own: rooms are lent up to a size, and made above it.
enum Memory {
    Lent(Lent),
    Made(Room),
}

impl Memory {
    fn new(rooms: &Rooms, bytes: usize) -> Self {
        if bytes <= rooms.room_bytes() {
            Self::Lent(rooms.take())
        } else {
            Self::Made(Room::new(bytes))
        }
    }

    /// All of it: a disk fills whole blocks.
    fn bytes(&mut self) -> &mut [u8] {
        let room: &mut Room = match self {
            Self::Lent(room) => room,
            Self::Made(room) => room,
        };
        room.set_len(room.capacity());
        room
    }
}

impl Target for Piece {
    fn load(&mut self) -> Load<'_> {
        Load {
            id: self.found.id,
            label: &self.found.label,
            len: self.len,
            seal: self.seal,
            start: self.start,
            want: self.want,
            into: self.into.bytes(),
            sums: None,
            result: Err(LoadError::Missing),
        }
    }
}

impl Target for OnTheWay {
    fn load(&mut self) -> Load<'_> {
        let Self { found, guard, item, sums, .. } = self;
        Load {
            id: found.id,
            label: &found.label,
            len: found.pin.value_len(),
            seal: found.pin.seal(),
            start: item.start,
            want: item.len,
            // Memory always has room; nothing fits into none.
            into: guard.room().unwrap_or_default(),
            sums: sums.as_mut(),
            result: Err(LoadError::Missing),
        }
    }
}

/// A value, or slices of one, on the way into staging memory.
struct OnTheWay {
    /// Which item.
    at: usize,
    disk: usize,
    found: Found,
    guard: WriteGuard,
    item: StageItem,
    sums: Option<Vec<u64>>,
}

impl Tier {
    fn piece(&self, now: Now, read: &Read<'_>) -> Result<(usize, Piece), TransferError> {
        let disk = self.index(&read.locator)?;
        let found = self.find(now, &read.locator)?;
        // Another value than the reader means.
        if found.pin.value_len() != read.len || found.pin.seal() != read.seal {
            return Err(DataError::Corrupt.into());
        }
        let (len, seal, start) = (read.len, read.seal, read.start.unwrap_or(0));
        let into = Memory::new(&self.rooms, read.into.len());
        Ok((disk, Piece { found, len, seal, start, want: read.into.len() as u64, into }))
    }

    fn prepare(&self, now: Now, at: usize, item: &StageItem) -> Result<OnTheWay, DataError> {
        let refused = |error: TransferError| match error {
            TransferError::Data(error) => error,
            _ => DataError::Stale,
        };
        let disk = self.index(&item.locator)?;
        let found = self.find(now, &item.locator).map_err(refused)?;
        let len = found.pin.value_len();
        let end = item.start.checked_add(item.len).filter(|end| *end <= len);
        let end = end.ok_or(DataError::OutOfBounds)?;
        let cut = |at: u64| at.is_multiple_of(SLICE_BYTES) || at == len;
        if !cut(item.start) || !cut(end) {
            return Err(DataError::OutOfBounds);
        }
        let whole = item.len == len;
        let table = if whole { 0 } else { 8 * slices(len) };
        let object = found.pin.object();
        let guard = self.staging.room(now, item.len + table, &found.label, object)?;
        let sums = (!whole).then(Vec::new);
        Ok(OnTheWay { at, disk, found, guard, item: *item, sums })
    }

    fn publish(&self, mut one: OnTheWay) -> Result<Staged, DataError> {
        let mut seal = one.found.pin.seal();
        if let Some(sums) = &one.sums {
            let staged = one.guard.value_len() as usize;
            let room = one.guard.room().map_err(|_| DataError::Unsupported)?;
            let table = &mut room[one.item.len as usize..staged];
            if table.len() != 8 * sums.len() {
                return Err(DataError::Corrupt);
            }
            for (place, sum) in table.chunks_exact_mut(8).zip(sums) {
                place.copy_from_slice(&sum.to_le_bytes());
            }
            seal = seal_of(&room[..staged]);
        }
        self.staging.publish(boottime(), one.guard, seal)
    }
}

/// What is told of a load that was not there in time, or that a disk that hangs did not take.
const LATE: DataError = DataError::Busy { after_ms: LATE_MS };

impl Stager for Tier {
    fn load(&self, reads: &mut [&mut Read<'_>], deadline: Deadline) {
        let now = boottime();
        let (mut order, mut pieces) = (Vec::new(), Vec::new());
        for (at, read) in reads.iter_mut().enumerate() {
            match self.piece(now, read) {
                Ok(one) => {
                    order.push(at);
                    pieces.push(one);
                }
                Err(error) => read.result = Err(error),
            }
        }
        for (at, loaded) in order.into_iter().zip(self.run(pieces, deadline)) {
            let read = &mut *reads[at];
            let Some((mut piece, result)) = loaded else {
                read.result = Err(LATE.into());
                continue;
            };
            if result.is_ok() {
                read.into.copy_from_slice(&piece.into.bytes()[..read.into.len()]);
            }
            read.result = result.map_err(TransferError::from);
        }
    }

    fn stage(&self, items: &[StageItem], deadline: Deadline) -> Vec<Result<Staged, DataError>> {
        let now = boottime();
        let mut answers: Vec<Result<Staged, DataError>> = Vec::with_capacity(items.len());
        let mut going = Vec::with_capacity(items.len());
        for (at, item) in items.iter().enumerate() {
            answers.push(Err(LATE));
            match self.prepare(now, at, item) {
                Ok(one) => going.push((one.disk, one)),
                Err(error) => answers[at] = Err(error),
            }
        }
        for (one, result) in self.run(going, deadline).into_iter().flatten() {
            let at = one.at;
            answers[at] = result.and_then(|()| self.publish(one));
        }
        answers
    }

    fn release(&self, locators: &[Locator]) {
        self.staging.release(boottime(), locators);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A medium that is bad says so in many ways; want of memory or descriptors is not one of them.
    #[test]
    fn only_want_passes() {
        let failed = |errno: Errno| io::Error::from_raw_os_error(errno.raw_os_error());
        for bad in
            [Errno::IO, Errno::NODATA, Errno::REMOTEIO, Errno::NODEV, Errno::NXIO, Errno::BADMSG]
        {
            assert!(!passes(&failed(bad)), "{bad}");
        }
        for want in [Errno::AGAIN, Errno::INTR, Errno::NOMEM, Errno::MFILE, Errno::NFILE] {
            assert!(passes(&failed(want)), "{want}");
        }
        assert!(passes(&io::Error::other("not of the system")));
    }
}
