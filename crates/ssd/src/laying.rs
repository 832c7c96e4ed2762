//! Laying records out for one write: heads and small values are copied side by side into memory of ours,
//! large values are written from where they lie.
//!
//! What must stay true: a write starts and ends at multiples of [`ALIGN`], and so does each of its pieces. A
//! block that holds a durable record is never written again.

use crate::record::{self, Shape, Site};
use crate::room::Room;
use crate::{ALIGN, KeepError, NewRecord};
use std::io;
use std::ops::Range;

/// A record whose bytes are those that were sealed.
#[derive(Debug)]
pub(crate) struct Sealed<'a> {
    pub(crate) record: NewRecord<'a>,
    /// Of its slices.
    pub(crate) sums: Vec<u64>,
    /// Which one of the call it is.
    pub(crate) number: usize,
}

impl<'a> Sealed<'a> {
    /// Compares the bytes with the seal.
    pub(crate) fn check(record: &NewRecord<'a>, number: usize) -> Result<Self, KeepError> {
        if !Shape::new(record.label.len(), record.value.len() as u64).is_valid() {
            let what = "a label or a value is longer than any may be";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what).into());
        }
        let sums = record::checked_sums(record.value, record.seal).ok_or(KeepError::Corrupt)?;
        Ok(Self { record: *record, sums, number })
    }

    /// Compares all of them; those that fail have their result.
    pub(crate) fn check_all(
        records: &[NewRecord<'a>],
        results: &mut [Result<(), KeepError>],
    ) -> Vec<Self> {
        let mut good = Vec::with_capacity(records.len());
        for (number, record) in records.iter().enumerate() {
            match Self::check(record, number) {
                Ok(sealed) => good.push(sealed),
                Err(error) => results[number] = Err(error),
            }
        }
        good
    }

    pub(crate) fn shape(&self) -> Shape {
        Shape::new(self.record.label.len(), self.record.value.len() as u64)
    }
}

/// Where a record of this shape starts and ends, if the one before it ended at `end`.
pub(crate) const fn next(end: u64, shape: Shape) -> (u64, u64) {
    let start = if shape.is_small() { end } else { end.next_multiple_of(ALIGN as u64) };
    (start, start + shape.bytes())
}

/// The end of a write whose last record ends at `end`.
pub(crate) const fn rounded(end: u64) -> u64 {
    end.next_multiple_of(ALIGN as u64)
}

/// Records side by side, ready to be written.
#[derive(Debug)]
pub(crate) struct Laid<'a> {
    room: Room,
    parts: Vec<Part<'a>>,
    /// Where each record starts.
    pub(crate) offsets: Vec<u64>,
    /// The heads, one behind the other.
    pub(crate) heads: Vec<u8>,
    /// Where the write ends.
    pub(crate) end: u64,
}

#[derive(Debug)]
enum Part<'a> {
    Ours(Range<usize>),
    Lent(&'a [u8]),
}

/// Lays records out from the site's offset on, which is a multiple of [`ALIGN`].
pub(crate) fn lay<'a>(records: &[Sealed<'a>], site: Site) -> Laid<'a> {
    let mut laid = Laid {
        room: Room::new(copied(records)),
        parts: Vec::new(),
        offsets: Vec::with_capacity(records.len()),
        heads: Vec::new(),
        end: site.offset,
    };
    // Where the part that is being filled starts in the room.
    let mut open = 0;
    for sealed in records {
        let shape = sealed.shape();
        let (offset, end) = next(laid.end, shape);
        if !shape.is_small() {
            laid.room.pad();
        }
        let head = laid.heads.len();
        record::encode(&mut laid.heads, Site { offset, ..site }, &sealed.record, &sealed.sums);
        laid.room.push(&laid.heads[head..]);
        let value = sealed.record.value;
        if shape.is_small() {
            laid.room.push(value);
            let filled = laid.room.len().next_multiple_of(8) - laid.room.len();
            laid.room.push(&[0; 8][..filled]);
        } else {
            laid.room.pad();
            let (whole, tail) = value.split_at(value.len() - value.len() % ALIGN);
            laid.parts.push(Part::Ours(open..laid.room.len()));
            laid.parts.push(Part::Lent(whole));
            open = laid.room.len();
            laid.room.push(tail);
            laid.room.pad();
        }
        laid.offsets.push(offset);
        laid.end = end;
    }
    laid.room.pad();
    laid.end = rounded(laid.end);
    laid.parts.push(Part::Ours(open..laid.room.len()));
    laid
}

/// Bytes that are copied, at most.
fn copied(records: &[Sealed<'_>]) -> usize {
    let bytes = records.iter().map(|sealed| {
        let shape = sealed.shape();
        if shape.is_small() { shape.bytes() as usize } else { shape.value_at() + 2 * ALIGN }
    });
    bytes.sum::<usize>() + ALIGN
}

impl Laid<'_> {
    /// The pieces, in order.
    pub(crate) fn pieces(&self) -> Vec<&[u8]> {
        let parts = self.parts.iter().map(|part| match part {
            Part::Ours(range) => &self.room[range.clone()],
            Part::Lent(bytes) => *bytes,
        });
        parts.filter(|piece| !piece.is_empty()).collect()
    }
}

/// The same error for somebody else.
pub(crate) fn again(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RecordId;
    use crate::record::{Head, Kind};
    use mooncrate_core::{LeaderEpoch, ObjectId};
    use mooncrate_mem::sums::seal_of;

    #[test]
    fn records_lie_where_their_heads_say_and_pieces_are_blocks() {
        let sizes = [0, 1, 4096, 40_000, 7, 32_767, 32_768, (1 << 20) + 1, 5, 100_000];
        let values: Vec<Vec<u8>> = sizes.iter().map(|&len| vec![len as u8; len]).collect();
        let sealed: Vec<Sealed<'_>> = (values.iter().enumerate())
            .map(|(number, value)| {
                let object = ObjectId { epoch: LeaderEpoch(1), sequence: number as u64 };
                let id = RecordId { object, stripe: 0 };
                let record = NewRecord { id, label: b"a label", seal: seal_of(value), value };
                Sealed::check(&record, number).unwrap()
            })
            .collect();
        let site = Site { kind: Kind::Bucket, token: 1, serial: 2, offset: 8192 };
        let laid = lay(&sealed, site);
        let pieces = laid.pieces();
        assert!(pieces.iter().all(|piece| piece.len() % ALIGN == 0), "whole blocks");
        let bytes = pieces.concat();
        assert_eq!(bytes.len() as u64, laid.end - site.offset);
        for (sealed, &offset) in sealed.iter().zip(&laid.offsets) {
            let at = (offset - site.offset) as usize;
            let head = Head::decode(&bytes[at..], Site { offset, ..site }).expect("a head");
            assert_eq!(head.id, sealed.record.id);
            let from = at + head.shape().value_at();
            assert_eq!(&bytes[from..from + head.len as usize], sealed.record.value);
        }
        let wrong = NewRecord { seal: seal_of(b"other"), ..sealed[2].record };
        assert!(matches!(Sealed::check(&wrong, 0), Err(KeepError::Corrupt)));
    }
}
