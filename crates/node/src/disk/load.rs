//! Reading from disks: straight into place for readers in this process, into staging memory for all
//! others. Slots are pinned meanwhile, and what a disk gives is verified by the backend (S11).

use super::{Disk, End, record_of};
use mooncrate_core::limits::SLICE_BYTES;
use mooncrate_core::plan::Locator;
use mooncrate_core::seal::slices;
use mooncrate_core::time::{Deadline, Now};
use mooncrate_mem::clock::boottime;
use mooncrate_mem::sums::seal_of;
use mooncrate_mem::{PinGuard, WriteGuard};
use mooncrate_ssd::{Load, LoadError, RecordId};
use mooncrate_transfer::{Read, Segments, Stager, Staging, TransferError};
use mooncrate_wire::DataError;
use mooncrate_wire::message::{StageItem, Staged};
use rustix::io::Errno;
use std::io;
use std::sync::{Arc, Weak};

/// Hint when a disk failed for a reason that may pass.
const FAILED_MS: u32 = 100;

/// The disks of a node and its staging memory.
#[derive(Debug)]
pub(crate) struct Tier {
    pub(crate) disks: Vec<Arc<Disk>>,
    pub(crate) staging: Staging,
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
        Self { disks, staging, segments }
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

    /// Runs loads, each on its disk; one batch per disk.
    fn run(&self, loads: Vec<(usize, Load<'_>)>) -> Vec<Result<(), DataError>> {
        let mut by_disk: Vec<Vec<(usize, Load<'_>)>> =
            self.disks.iter().map(|_| Vec::new()).collect();
        let mut results: Vec<Result<(), DataError>> =
            loads.iter().map(|_| Err(DataError::Stale)).collect();
        for (at, (disk, load)) in loads.into_iter().enumerate() {
            by_disk[disk].push((at, load));
        }
        for (disk, batch) in self.disks.iter().zip(by_disk) {
            if batch.is_empty() {
                continue;
            }
            let (order, mut batch): (Vec<usize>, Vec<Load<'_>>) = batch.into_iter().unzip();
            let began = boottime();
            disk.backend.load(&mut batch);
            disk.tally.loads.note(boottime().since(began));
            for (at, load) in order.into_iter().zip(batch) {
                results[at] = disk.judge(load);
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

impl Stager for Tier {
    fn load(&self, reads: &mut [&mut Read<'_>], _deadline: Deadline) {
        let now = boottime();
        let mut found = Vec::with_capacity(reads.len());
        for read in reads.iter_mut() {
            let one = self.index(&read.locator).map_err(TransferError::from);
            let one = one.and_then(|disk| Ok((disk, self.find(now, &read.locator)?)));
            let one = one.and_then(|(disk, one)| {
                // Another value than the reader means.
                if one.pin.value_len() != read.len || one.pin.seal() != read.seal {
                    return Err(DataError::Corrupt.into());
                }
                Ok((disk, one))
            });
            found.push(one.map_err(|error| read.result = Err(error)).ok());
        }
        let mut order = Vec::with_capacity(reads.len());
        let mut loads = Vec::with_capacity(reads.len());
        for (at, (read, one)) in reads.iter_mut().zip(&found).enumerate() {
            let Some((disk, one)) = one else { continue };
            order.push(at);
            let want = read.into.len() as u64;
            let load = Load {
                id: one.id,
                label: &one.label,
                len: read.len,
                seal: read.seal,
                start: read.start.unwrap_or(0),
                want,
                into: &mut *read.into,
                sums: None,
                result: Err(LoadError::Missing),
            };
            loads.push((*disk, load));
        }
        let results = self.run(loads);
        for (at, result) in order.into_iter().zip(results) {
            reads[at].result = result.map_err(TransferError::from);
        }
    }

    fn stage(&self, items: &[StageItem], _deadline: Deadline) -> Vec<Result<Staged, DataError>> {
        let now = boottime();
        let mut answers: Vec<Result<Staged, DataError>> = Vec::with_capacity(items.len());
        let mut going = Vec::with_capacity(items.len());
        for (at, item) in items.iter().enumerate() {
            answers.push(Err(DataError::Stale));
            match self.prepare(now, at, item) {
                Ok(one) => going.push(one),
                Err(error) => answers[at] = Err(error),
            }
        }
        let mut loads = Vec::with_capacity(going.len());
        for one in &mut going {
            let OnTheWay { disk, found, guard, item, sums, .. } = one;
            let Ok(into) = guard.room() else { continue };
            let load = Load {
                id: found.id,
                label: &found.label,
                len: found.pin.value_len(),
                seal: found.pin.seal(),
                start: item.start,
                want: item.len,
                into,
                sums: sums.as_mut(),
                result: Err(LoadError::Missing),
            };
            loads.push((*disk, load));
        }
        let results = self.run(loads);
        for (one, result) in going.into_iter().zip(results) {
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
