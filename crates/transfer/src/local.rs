//! In the same process: pin, copy, unpin (R2). The floor is one memcpy.

use crate::error::TransferError;
use crate::segments::Segments;
use crate::staged::on_disk;
use crate::{
    Decided, OpenPut, Path, Read, Sent, Transport, View, ViewBytes, Write, Written, go_on,
    one_by_one,
};
use mooncrate_core::plan::{Locator, Medium};
use mooncrate_core::time::Deadline;
use mooncrate_core::{Generation, PutToken, Seal, Slot};
use mooncrate_mem::clock::boottime;
use mooncrate_mem::sums::seal_of;
use mooncrate_mem::{BeginWrite, LabelHash, PinGuard, Segment, WriteGuard};
use mooncrate_wire::{DataError, message};
use std::sync::Arc;
use std::time::Duration;

/// The segments of this process.
#[derive(Debug)]
pub struct Local {
    segments: Arc<Segments>,
}

impl Local {
    /// Over the segments of this process.
    pub fn new(segments: Arc<Segments>) -> Self {
        Self { segments }
    }

    fn pin(&self, locator: &Locator) -> Result<PinGuard, TransferError> {
        let segment = self.segments.find(locator)?;
        Ok(segment.pin(boottime(), locator)?)
    }

    fn read_one(&self, read: &mut Read<'_>) -> Result<(), TransferError> {
        read.check()?;
        go_on(read.len)?;
        let pin = self.pin(&read.locator)?;
        match read.start {
            None => pin.read_into(read.seal, read.into)?,
            Some(start) => pin.read_part_into(read.seal, start, read.into)?,
        }
        Ok(())
    }
}

impl Transport for Local {
    fn path(&self) -> Path {
        Path::Local
    }

    fn read(&self, reads: &mut [Read<'_>], deadline: Deadline) {
        let mut from_disk = Vec::new();
        for read in reads {
            if on_disk(read) {
                read.result = read.check();
                if read.result.is_ok() {
                    read.result = Err(DataError::UnknownSegment.into());
                    from_disk.push(read);
                }
            } else {
                read.result = self.read_one(read);
            }
        }
        if let (false, Some(stager)) = (from_disk.is_empty(), self.segments.stager()) {
            stager.load(&mut from_disk, deadline);
        }
    }

    fn living(&self, lives: &[Locator]) -> Vec<bool> {
        let segment = lives.first().map(|first| self.segments.find(first).and_then(in_memory));
        match segment {
            Some(Ok(segment)) => segment.one_sided().living(each(lives), boottime),
            _ => vec![false; lives.len()],
        }
    }

    fn write<'a>(
        &'a self,
        write: &Write<'a>,
        _deadline: Deadline,
    ) -> Result<Box<dyn Written + 'a>, TransferError> {
        let segment = in_memory(self.segments.find(&write.locator)?)?;
        let mut guard = segment.begin(boottime(), &begin(write))?;
        for piece in write.value {
            guard.write(guard.seen(), piece)?;
        }
        Ok(Box::new(LocalWritten { seal: guard.seal(), token: write.token, guard }))
    }

    fn send<'a>(&'a self, writes: &'a [Write<'a>], deadline: Deadline) -> Box<dyn Sent + 'a> {
        Box::new(Decided(one_by_one(self, writes.iter(), deadline)))
    }

    fn open(
        &self,
        put: &message::BeginWrite<'_>,
        _deadline: Deadline,
    ) -> Result<Box<dyn OpenPut>, TransferError> {
        let segment = in_memory(self.segments.find(&put.locator)?)?;
        let begin = BeginWrite {
            locator: put.locator,
            token: put.token,
            object: put.object,
            epoch: put.epoch,
            len: put.len,
            label: put.label,
            hash: LabelHash::of(put.label),
        };
        Ok(Box::new(LocalOpen { guard: segment.begin(boottime(), &begin)? }))
    }

    fn view(
        &self,
        locator: &Locator,
        len: u64,
        seal: Seal,
        _deadline: Deadline,
    ) -> Result<Option<View>, TransferError> {
        if locator.segment.medium() != Medium::Dram {
            return Ok(None);
        }
        let pin = self.pin(locator)?;
        if pin.value_len() != len || seal_of(pin.bytes()) != seal {
            return Err(DataError::Corrupt.into());
        }
        Ok(Some(View { bytes: ViewBytes::Local(pin) }))
    }

    fn verify(
        &self,
        locator: &Locator,
        seal: Seal,
        _deadline: Deadline,
    ) -> Result<bool, TransferError> {
        Ok(in_memory(self.segments.find(locator)?)?.verify(boottime(), locator, seal)?)
    }

    fn hasty(&self, _silence_max: Duration) -> Arc<dyn Transport> {
        // Nobody else is asked.
        Arc::new(Self::new(Arc::clone(&self.segments)))
    }
}

/// Which lives locators name.
pub(crate) fn each(lives: &[Locator]) -> impl Iterator<Item = (Slot, Generation)> {
    lives.iter().map(|at| (at.slot, at.generation))
}

/// A segment that writers may store into: what is on a disk comes there by its owner alone.
pub(crate) fn in_memory(segment: Arc<Segment>) -> Result<Arc<Segment>, DataError> {
    if segment.is_kept() { Err(DataError::Unsupported) } else { Ok(segment) }
}

/// What the owner's memory needs to know of a write.
pub(crate) fn begin<'a>(write: &Write<'a>) -> BeginWrite<'a> {
    BeginWrite {
        locator: write.locator,
        token: write.token,
        object: write.object,
        epoch: write.epoch,
        len: write.len(),
        label: write.label,
        hash: LabelHash::of(write.label),
    }
}

struct LocalWritten {
    guard: WriteGuard,
    token: PutToken,
    seal: Seal,
}

impl Written for LocalWritten {
    fn seal(&self) -> Seal {
        self.seal
    }

    fn signal(self: Box<Self>, _deadline: Deadline) -> Result<(), TransferError> {
        Ok(self
            .guard
            .publish(boottime(), self.token, self.seal)
            .map_err(|refused| refused.error)?)
    }
}

/// A put in parts: the guard is the right to go on.
#[derive(Debug)]
struct LocalOpen {
    guard: WriteGuard,
}

impl OpenPut for LocalOpen {
    fn write(&mut self, offset: u64, part: &[u8], _: Deadline) -> Result<(), TransferError> {
        Ok(self.guard.write_part(offset, part)?)
    }

    fn signal(self: Box<Self>, seal: Seal, _: Deadline) -> Result<(), TransferError> {
        let token = self.guard.token();
        Ok(self.guard.publish_placed(boottime(), token, seal).map_err(|refused| refused.error)?)
    }
}
