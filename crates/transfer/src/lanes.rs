//! One large value over several links at once. One connection is bound to one core at each end, and
//! often to a part of the network's rate; a value of many MiB can use more of both.
//!
//! ```text
//!   value    [ slice 0 | slice 1 | slice 2 | slice 3 | slice 4 ]     slices of 1 MiB
//!   lane 0     ─────────────────►                                    this thread
//!   lane 1                         ──────────────────────────►       a thread for this read only
//! ```
//!
//! What must stay true: each lane carries whole slices and sums them as they arrive; the value is good
//! only if the sums of all slices together have its seal. So parts of two lives can never pass as one
//! value (G17), whoever brought them.

use crate::Read;
use crate::error::TransferError;
use crate::stream::{Stream, receive_sums};
use mooncrate_core::Seal;
use mooncrate_core::limits::SLICE_BYTES;
use mooncrate_core::plan::Locator;
use mooncrate_core::seal::slices;
use mooncrate_core::time::Deadline;
use mooncrate_lock::interrupt::Team;
use mooncrate_rt as rt;
use mooncrate_wire::message::{self, DataRequest};
use mooncrate_wire::{CallError, DataError};
use std::thread::{Builder, scope};

/// How large values travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lanes {
    /// Links that one value is read over at most; 1: all values over one.
    pub count: usize,
    /// Larger values use several.
    pub bytes_min: u64,
}

impl Default for Lanes {
    /// A quarter of the cores, and four at most: on a small machine the cores are better used by
    /// several callers than by several lanes of one.
    fn default() -> Self {
        Self { count: (rt::cores() / 4).clamp(1, 4), bytes_min: 4 << 20 }
    }
}

impl Lanes {
    /// How many links a value of `len` bytes is read over.
    fn of(self, len: u64) -> usize {
        let most = self.count.min(rt::helpers().saturating_add(1));
        if len <= self.bytes_min { 1 } else { most.min(slices(len) as usize).max(1) }
    }

    /// Reads a value over several links. `None`: it is too small for that, or some link or thread was
    /// not to be had; then one link must do.
    pub(crate) fn read(
        self,
        stream: &Stream,
        read: &mut Read<'_>,
        deadline: Deadline,
    ) -> Option<Result<(), TransferError>> {
        let lanes = self.of(read.len);
        if lanes <= 1 {
            return None;
        }
        let lane_bytes = (slices(read.len) * SLICE_BYTES).div_ceil(lanes as u64);
        let lane_bytes = lane_bytes.next_multiple_of(SLICE_BYTES) as usize;
        let (locator, len, seal) = (read.locator, read.len, read.seal);
        let starts = (0..).step_by(lane_bytes);
        let mut parts = starts.zip(read.into.chunks_mut(lane_bytes));
        let (first, into) = parts.next()?;
        let team = Team::new();
        let told = scope(|scope| {
            let others: Vec<_> = parts
                .map(|(start, into)| {
                    let helper = team.helper();
                    let lane =
                        move || helper.work(|| read_part(stream, locator, start, into, deadline));
                    Builder::new().name("lane".into()).spawn_scoped(scope, lane)
                })
                .collect();
            let mut told = vec![read_part(stream, locator, first, into, deadline).ok()];
            team.wait();
            for lane in others {
                told.push(lane.ok().and_then(|lane| lane.join().ok()?.ok()));
            }
            told
        });
        let mut sums = Vec::with_capacity(slices(len) as usize);
        for part in told {
            match part? {
                Ok(part) => sums.extend(part),
                Err(error) => return Some(Err(error)),
            }
        }
        let good = Seal::over(len, sums) == seal;
        Some(if good { Ok(()) } else { Err(DataError::Corrupt.into()) })
    }
}

/// One lane: the sums of its slices. The outer error is of the link, the inner one of the read.
fn read_part(
    stream: &Stream,
    locator: Locator,
    start: u64,
    into: &mut [u8],
    deadline: Deadline,
) -> Result<Result<Vec<u64>, TransferError>, CallError> {
    let mut link = stream.link(deadline)?;
    let len = into.len() as u64;
    link.send_data(&DataRequest::Read(message::Read { locator, start, len }), &[], deadline)?;
    let sums = receive_sums(&mut link, into, deadline)?;
    Ok(sums.map(|sums| sums.sums().collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_large_values_take_several_lanes() {
        let lanes = Lanes { count: 4, bytes_min: 4 << 20 };
        assert_eq!(lanes.of(0), 1);
        assert_eq!(lanes.of(4 << 20), 1);
        assert_eq!(lanes.of((4 << 20) + 1), 4);
        assert_eq!(lanes.of(1 << 30), 4);
        assert_eq!(Lanes { count: 8, ..lanes }.of(5 << 20), 5, "a lane has a slice at least");
        assert_eq!(Lanes { count: 0, ..lanes }.of(1 << 30), 1);
    }
}
