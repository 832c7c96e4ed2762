//! Reading values that their owner keeps on a disk: the owner loads them into memory that can be read as
//! any other, they are read and verified there, and given back.
//!
//! ```text
//!   stage(values) ─► owner: one batch of the disk, into its staging memory
//!   read each as usual: mapped memory, or over this very link
//!   release(values)
//! ```
//!
//! A part of a large value, or a value that is too large to be staged at once, comes as runs of whole
//! slices, each with the sums of all slices behind it: the seal vouches for the sums, they vouch for the
//! slices (R11, G17).
//!
//! What must stay true: nothing is believed that the reader has not summed itself under the seal of the
//! object. What is staged is booked to one link, which stays open until it was read.

use crate::Read;
use crate::error::TransferError;
use crate::part::Cover;
use crate::stream::Stream;
use mooncrate_core::Seal;
use mooncrate_core::limits::SLICE_BYTES;
use mooncrate_core::plan::{Locator, Medium};
use mooncrate_core::seal::slices;
use mooncrate_core::time::Deadline;
use mooncrate_lock::interrupt;
use mooncrate_mem::SliceSums;
use mooncrate_mem::clock::boottime;
use mooncrate_wire::message::{DataReply, DataRequest, Release, Stage, StageItem, Staged};
use mooncrate_wire::pool::PooledLink;
use mooncrate_wire::{CallError, DataError, DecodeError};
use std::borrow::Cow;
use std::collections::VecDeque;
use std::time::Duration;

/// Bytes that are staged as one; larger values come in runs of slices.
const UNIT_BYTES_MAX: u64 = 16 << 20;
/// What one call stages at most: the owner loads it with one batch.
const CALL_ITEMS_MAX: usize = 64;
const CALL_BYTES_MAX: u64 = 32 << 20;
/// Longest pause when the owner has no room.
const PAUSE_MAX: Duration = Duration::from_millis(20);

/// Whether a read is of a value on a disk.
pub(crate) fn on_disk(read: &Read<'_>) -> bool {
    read.locator.segment.medium() == Medium::Ssd
}

/// Something to stage for a read: `first..last` of its value.
#[derive(Clone, Copy, Debug)]
struct Unit {
    read: usize,
    first: u64,
    last: u64,
    /// All of the value.
    whole: bool,
}

/// How staged values are read, over the link that they are booked to or without it.
pub(crate) type Reader<'f> =
    dyn FnMut(&mut PooledLink<'_>, &mut [Read<'_>], Deadline) -> Result<(), CallError> + 'f;

/// Does those of the reads that are of values on disks; the others are left as they are.
pub(crate) fn read(
    stream: &Stream,
    reads: &mut [Read<'_>],
    deadline: Deadline,
    reader: &mut Reader<'_>,
) {
    let mut waiting = VecDeque::new();
    for (index, read) in reads.iter_mut().enumerate().filter(|(_, read)| on_disk(read)) {
        read.result = read.check();
        if read.result.is_ok() {
            units(index, read, &mut waiting);
        }
    }
    let mut rounds = Rounds { stream, reads, deadline, reader, waiting };
    if let Err(error) = rounds.run() {
        let Rounds { reads, mut waiting, .. } = rounds;
        let mut error = Some(TransferError::from(error));
        while let Some(unit) = waiting.pop_front() {
            if reads[unit.read].result.is_ok() {
                reads[unit.read].result = Err(error.take().unwrap_or(TransferError::NotTried));
            }
        }
    }
}

fn units(index: usize, read: &Read<'_>, waiting: &mut VecDeque<Unit>) {
    let cover = Cover::of(read).unwrap_or(Cover::whole(read.len));
    let (first, last) = cover.range();
    if cover.is_whole() && last <= UNIT_BYTES_MAX {
        waiting.push_back(Unit { read: index, first, last, whole: true });
        return;
    }
    let mut at = first;
    loop {
        let end = (at + UNIT_BYTES_MAX).min(last);
        waiting.push_back(Unit { read: index, first: at, last: end, whole: false });
        at = end;
        if at >= last {
            return;
        }
    }
}

struct Rounds<'r, 'b, 'f> {
    stream: &'r Stream,
    reads: &'r mut [Read<'b>],
    deadline: Deadline,
    reader: &'r mut Reader<'f>,
    /// What is not staged yet, or was not read when an error ended it all.
    waiting: VecDeque<Unit>,
}

impl Rounds<'_, '_, '_> {
    fn run(&mut self) -> Result<(), CallError> {
        let mut pause = Duration::from_millis(1);
        let mut link = self.stream.link(self.deadline)?;
        while let Some(call) = self.next_call() {
            let mut answer = stage(&mut link, self.reads, &call, self.deadline);
            if answer.is_err() && link.is_reused() {
                // The link had rested and its peer was gone. What it may have staged went with it.
                drop(link);
                self.stream.forget_idle();
                link = self.stream.link(self.deadline).inspect_err(|_| self.put_back(&call))?;
                answer = stage(&mut link, self.reads, &call, self.deadline);
            }
            let answer = answer.inspect_err(|_| self.put_back(&call))?;
            let staged: Vec<Locator> = answer.iter().flatten().map(|one| one.locator).collect();
            let busy = self.take(&mut link, &call, answer)?;
            if !staged.is_empty() {
                let release = Release { locators: Cow::Borrowed(&staged) };
                // Hanging up would release them as well.
                let _ = link.call_data(&DataRequest::Release(release), &[], self.deadline);
                pause = Duration::from_millis(1);
            } else if let Some(error) = busy {
                // Others hold the room: their leases end, if they do not.
                if self.deadline.left(boottime()) <= pause || interrupt::sleep(pause) {
                    self.fail_waiting(error);
                    return Ok(());
                }
                pause = (pause * 2).min(PAUSE_MAX);
            }
            if !link.is_open() && !self.waiting.is_empty() {
                // Its place first: who waits for one holds none.
                drop(link);
                link = self.stream.link(self.deadline)?;
            }
        }
        Ok(())
    }

    /// What is staged next, together.
    fn next_call(&mut self) -> Option<Vec<Unit>> {
        let (mut call, mut bytes) = (Vec::new(), 0);
        while let Some(unit) = self.waiting.front().copied() {
            let after = bytes + unit.last - unit.first;
            let full = call.len() >= CALL_ITEMS_MAX || after > CALL_BYTES_MAX;
            if full && !call.is_empty() {
                break;
            }
            self.waiting.pop_front();
            // One run of a value that failed spoils the others.
            if self.reads[unit.read].result.is_ok() {
                bytes = after;
                call.push(unit);
            }
        }
        (!call.is_empty()).then_some(call)
    }

    fn put_back(&mut self, call: &[Unit]) {
        for unit in call.iter().rev() {
            self.waiting.push_front(*unit);
        }
    }

    fn fail_waiting(&mut self, error: DataError) {
        while let Some(unit) = self.waiting.pop_front() {
            self.reads[unit.read].result = Err(error.into());
        }
    }

    /// Reads what was staged. What found no room waits again; why.
    fn take(
        &mut self,
        link: &mut PooledLink<'_>,
        call: &[Unit],
        answer: Vec<Result<Staged, DataError>>,
    ) -> Result<Option<DataError>, CallError> {
        let mut busy = None;
        let mut staged: Vec<Option<Staged>> = vec![None; call.len()];
        for (at, answer) in answer.into_iter().enumerate() {
            match answer {
                Ok(one) => staged[at] = Some(one),
                Err(error @ DataError::Busy { .. }) => busy = Some(error),
                Err(error) => self.reads[call[at].read].result = Err(error.into()),
            }
        }
        let mut runs = runs(self.reads, call, &staged);
        let done = {
            let mut jobs = jobs(self.reads, call, &staged, &mut runs);
            let read = (self.reader)(link, &mut jobs, self.deadline);
            read.map(|()| jobs.into_iter().map(|job| job.result).collect::<Vec<_>>())
        };
        let done = done.inspect_err(|_| self.put_back(call))?;
        // Jobs stand in the order of the units they are for; see `jobs`.
        let order = job_order(call, &staged);
        for (at, mut result) in order.into_iter().zip(done) {
            let unit = call[at];
            let read = &mut self.reads[unit.read];
            if result.is_ok()
                && let Some(run) = &runs[at]
                && !take_run(read, &unit, run)
            {
                result = Err(DataError::Corrupt.into());
            }
            if read.result.is_ok() {
                read.result = result;
            }
        }
        // Behind everything: those that were refused for other reasons are skipped there.
        for (at, unit) in call.iter().enumerate() {
            if staged[at].is_none() && self.reads[unit.read].result.is_ok() {
                self.waiting.push_back(*unit);
            }
        }
        Ok(busy)
    }
}

/// Asks the owner to load what the units name.
fn stage(
    link: &mut PooledLink<'_>,
    reads: &[Read<'_>],
    call: &[Unit],
    deadline: Deadline,
) -> Result<Vec<Result<Staged, DataError>>, CallError> {
    let items: Vec<StageItem> = call
        .iter()
        .map(|unit| StageItem {
            locator: reads[unit.read].locator,
            start: unit.first,
            len: unit.last - unit.first,
        })
        .collect();
    let request = DataRequest::Stage(Stage { items: Cow::Owned(items) });
    match link.call_data(&request, &[], deadline)? {
        DataReply::Stage(answer) if answer.len() == call.len() => Ok(answer),
        other => Err(DecodeError::Unexpected { kind: other.kind() }.into()),
    }
}

/// Memory for the runs of slices; `None` for a unit that is a whole value, or was not staged.
fn runs(reads: &[Read<'_>], call: &[Unit], staged: &[Option<Staged>]) -> Vec<Option<Vec<u8>>> {
    let room = |(unit, staged): (&Unit, &Option<Staged>)| {
        let staged = staged.as_ref().filter(|_| !unit.whole)?;
        let expected = unit.last - unit.first + 8 * slices(reads[unit.read].len);
        // A length that we did not ask for is never allocated; the run is refused as corrupt.
        Some(if staged.len == expected { vec![0; expected as usize] } else { Vec::new() })
    };
    call.iter().zip(staged).map(room).collect()
}

/// Whole values first, in the order of their reads, then runs, in the order of their units.
fn job_order(call: &[Unit], staged: &[Option<Staged>]) -> Vec<usize> {
    let mut whole: Vec<usize> =
        (0..call.len()).filter(|at| staged[*at].is_some() && call[*at].whole).collect();
    whole.sort_by_key(|at| call[*at].read);
    let runs = (0..call.len()).filter(|at| staged[*at].is_some() && !call[*at].whole);
    whole.into_iter().chain(runs).collect()
}

fn jobs<'j>(
    reads: &'j mut [Read<'_>],
    call: &[Unit],
    staged: &[Option<Staged>],
    runs: &'j mut [Option<Vec<u8>>],
) -> Vec<Read<'j>> {
    let order = job_order(call, staged);
    let mut jobs = Vec::with_capacity(order.len());
    let mut left = order.iter().copied().filter(|at| call[*at].whole).peekable();
    for (index, read) in reads.iter_mut().enumerate() {
        let Some(at) = left.next_if(|at| call[*at].read == index) else { continue };
        let Some(staged) = staged[at] else { continue };
        jobs.push(Read {
            locator: staged.locator,
            len: read.len,
            seal: read.seal,
            start: read.start,
            into: &mut *read.into,
            result: Err(TransferError::NotTried),
        });
    }
    for ((run, staged), unit) in runs.iter_mut().zip(staged).zip(call) {
        if let (Some(run), Some(staged), false) = (run, staged, unit.whole) {
            jobs.push(Read::new(staged.locator, staged.len, staged.seal, run));
        }
    }
    jobs
}

/// Takes what is wanted out of a run of slices, if it is one of the sealed value.
fn take_run(read: &mut Read<'_>, unit: &Unit, run: &[u8]) -> bool {
    let Some((slices, table)) = run.split_at_checked((unit.last - unit.first) as usize) else {
        return false;
    };
    let (table, _) = table.as_chunks::<8>();
    let all: Vec<u64> = table.iter().map(|sum| u64::from_le_bytes(*sum)).collect();
    if Seal::over(read.len, all.iter().copied()) != read.seal {
        return false;
    }
    let first = (unit.first / SLICE_BYTES) as usize;
    if !slices.is_empty() {
        let mut sums = SliceSums::new();
        sums.update(slices);
        let expected = all.iter().copied().skip(first).take(sums.sums().count());
        if !sums.sums().eq(expected) {
            return false;
        }
    }
    let start = read.start.unwrap_or(0);
    let end = start + read.into.len() as u64;
    let (from, to) = (start.max(unit.first), end.min(unit.last));
    if from < to {
        let source = &slices[(from - unit.first) as usize..(to - unit.first) as usize];
        read.into[(from - start) as usize..][..source.len()].copy_from_slice(source);
    }
    true
}
