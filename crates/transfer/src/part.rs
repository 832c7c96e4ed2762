//! A part of a value over a socket. The reader verifies it alone (R11): it asks for all slices that
//! the part touches and for the table of all sums, keeps the part and only sums the rest.
//!
//! ```text
//!   extent    [ slice 0 | slice 1 | slice 2 | slice 3 ][ sums 0 1 2 3 ]
//!   part                     ├──────────┤
//!   asked               ├───────────────────┤           ├───────────┤     two requests, one round trip
//!                       summed, kept, summed             must have the seal
//! ```
//!
//! What must stay true: the seal vouches for the table, the table for each slice. So bytes of two
//! lives can never pass as one part (G17), though they come in two answers.

use crate::Read;
use crate::error::TransferError;
use crate::stream::receive_len;
use mooncrate_core::Seal;
use mooncrate_core::limits::SLICE_BYTES;
use mooncrate_core::plan::Locator;
use mooncrate_core::seal::{slices, table};
use mooncrate_core::time::Deadline;
use mooncrate_mem::SliceSums;
use mooncrate_wire::message::{self, DataRequest};
use mooncrate_wire::pool::PooledLink;
use mooncrate_wire::{CallError, DataError};

/// Bytes that are only summed are received in pieces of this size.
const SCRATCH_BYTES: u64 = 16 << 10;

/// What must travel so that a part can be verified.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cover {
    /// Bytes of the value.
    len: u64,
    /// First byte of the first slice, and the end of the last one.
    first: u64,
    last: u64,
}

impl Cover {
    /// The cover of a read, if it is one of a part; it was checked to lie inside of the value.
    pub(crate) fn of(read: &Read<'_>) -> Option<Self> {
        let (start, len) = (read.start?, read.len);
        let end = start + read.into.len() as u64;
        let covered = if slices(len) <= 1 {
            // The only slice has no table: it is summed for every part, even an empty one.
            (0, len)
        } else if start == end {
            (0, 0)
        } else {
            (start / SLICE_BYTES * SLICE_BYTES, end.next_multiple_of(SLICE_BYTES).min(len))
        };
        Some(Self { len, first: covered.0, last: covered.1 })
    }

    /// The cover of a whole value.
    pub(crate) fn whole(len: u64) -> Self {
        Self { len, first: 0, last: len }
    }

    /// First byte of the first slice, and the end of the last one.
    pub(crate) fn range(&self) -> (u64, u64) {
        (self.first, self.last)
    }

    /// Whether the sums of the slices that travel are all there are.
    pub(crate) fn is_whole(&self) -> bool {
        self.first == 0 && self.last == self.len
    }

    /// Sends the requests.
    pub(crate) fn ask(
        &self,
        link: &mut PooledLink<'_>,
        locator: &Locator,
        deadline: Deadline,
    ) -> Result<(), CallError> {
        let mut send = |start, len| {
            let read = message::Read { locator: *locator, start, len };
            link.queue_data(&DataRequest::Read(read), &[], deadline)
        };
        send(self.first, self.last - self.first)?;
        if !self.is_whole() {
            let (start, bytes) = table(self.len);
            send(start, bytes)?;
        }
        Ok(())
    }

    /// Takes the answers. The outer error ends the link, the inner one only this read.
    pub(crate) fn receive(
        &self,
        link: &mut PooledLink<'_>,
        read: &mut Read<'_>,
        deadline: Deadline,
    ) -> Result<Result<(), TransferError>, CallError> {
        let sums = self.receive_slices(link, read, deadline)?;
        let all = if self.is_whole() {
            sums.as_ref().map(|sums| sums.sums().collect()).map_err(|error| *error)
        } else {
            // Taken even if the slices were refused: it is on its way.
            self.receive_table(link, deadline)?
        };
        Ok(match (sums, all) {
            (Ok(sums), Ok(all)) if self.adds_up(&sums, &all, read.seal) => Ok(()),
            (Ok(_), Ok(_)) => Err(DataError::Corrupt.into()),
            (Err(error), _) | (_, Err(error)) => Err(error.into()),
        })
    }

    fn receive_slices(
        &self,
        link: &mut PooledLink<'_>,
        read: &mut Read<'_>,
        deadline: Deadline,
    ) -> Result<Result<SliceSums, DataError>, CallError> {
        if let Err(error) = receive_len(link, self.last - self.first, deadline)? {
            return Ok(Err(error));
        }
        let start = read.start.unwrap_or_default().clamp(self.first, self.last);
        let end = start + read.into.len() as u64;
        let mut sums = SliceSums::new();
        sum_only(link, start - self.first, &mut sums, deadline)?;
        link.recv_attachment(read.into, |chunk| sums.update(chunk), deadline)?;
        sum_only(link, self.last - end, &mut sums, deadline)?;
        Ok(Ok(sums))
    }

    fn receive_table(
        &self,
        link: &mut PooledLink<'_>,
        deadline: Deadline,
    ) -> Result<Result<Vec<u64>, DataError>, CallError> {
        let bytes = table(self.len).1;
        if let Err(error) = receive_len(link, bytes, deadline)? {
            return Ok(Err(error));
        }
        // Bounded by the largest value: 8 KiB.
        let mut table = vec![0; bytes as usize];
        link.recv_attachment(&mut table, |_| (), deadline)?;
        let (sums, _) = table.as_chunks::<8>();
        Ok(Ok(sums.iter().map(|sum| u64::from_le_bytes(*sum)).collect()))
    }

    /// Whether the table has the seal, and the slices have the sums that the table says.
    fn adds_up(&self, sums: &SliceSums, all: &[u64], seal: Seal) -> bool {
        let first = (self.first / SLICE_BYTES) as usize;
        Seal::over(self.len, all.iter().copied()) == seal
            && sums.sums().eq(all.iter().copied().skip(first).take(sums.sums().count()))
    }
}

/// Receives bytes that nobody wants, for their sum.
fn sum_only(
    link: &mut PooledLink<'_>,
    mut left: u64,
    sums: &mut SliceSums,
    deadline: Deadline,
) -> Result<(), CallError> {
    let mut scratch = [0; SCRATCH_BYTES as usize];
    while left > 0 {
        let piece = &mut scratch[..left.min(SCRATCH_BYTES) as usize];
        link.recv_attachment(piece, |chunk| sums.update(chunk), deadline)?;
        left -= piece.len() as u64;
    }
    Ok(())
}
