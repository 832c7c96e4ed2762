//! The record as it lies on a disk: head, then value. Drawn in `docs/formats/ssd.md`.
//!
//! ```text
//!   small (< 32 KiB)  [ 80 bytes | label | pad to 8 | value | pad to 8 ]                 packed, 8 by 8
//!   large             [ 80 bytes | label | pad to 8 | table | pad to 4 KiB | value | pad to 4 KiB ]
//! ```
//!
//! A head says where it lies: token of the directory, serial of the file (or of the write), offset. So a
//! write that landed elsewhere, a block of an earlier life and bytes that a tenant made up are no records. The
//! table holds the checksums of the slices of a value of more than one (`core::seal`): a part is verified
//! without the rest, and the seal checks the table.
//!
//! What must stay true: a decoder takes any bytes, looks at lengths before it uses them, and never panics.

use crate::{ALIGN, NewRecord, Record, RecordId};
use mooncrate_core::limits::{LABEL_BYTES_MAX, VALUE_BYTES_MAX};
use mooncrate_core::{LeaderEpoch, ObjectId, Seal, seal};
use mooncrate_mem::crc::Crc;
use std::mem::offset_of;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The version that is written, and the only one that is read.
pub const VERSION: u16 = 1;
/// Values of fewer bytes share blocks with their heads and with each other.
pub const SMALL_BYTES: u64 = 32 << 10;
/// Bytes of the fixed part of a head.
pub const FIXED_BYTES: usize = size_of::<Fixed>();
/// Bytes of the longest head.
pub const HEAD_BYTES_MAX: usize =
    FIXED_BYTES + LABEL_BYTES_MAX.next_multiple_of(8) + seal::table(VALUE_BYTES_MAX).1 as usize;

const MAGIC: [u8; 8] = *b"mooncrec";

/// Which backend wrote it: a directory belongs to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Kind {
    /// Files of many records.
    #[default]
    Bucket = 1,
    /// A file for each record.
    PerKey = 2,
    /// One file for all.
    Offset = 3,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Bucket, Self::PerKey, Self::Offset];

    /// In words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bucket => "bucket",
            Self::PerKey => "per_key",
            Self::Offset => "offset",
        }
    }

    /// Which way of laying a directory out it has; counts from 1.
    pub(crate) const fn layout(self) -> u64 {
        match self {
            Self::Bucket | Self::Offset => 1,
            // Its directories followed the key at first, not the serial.
            Self::PerKey => 2,
        }
    }
}

/// Where a head must lie to be one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Site {
    pub(crate) kind: Kind,
    /// Of the directory; nobody who puts values knows it.
    pub(crate) token: u64,
    /// Of the file; of the record itself in the one file of the offset backend.
    pub(crate) serial: u64,
    /// In the file.
    pub(crate) offset: u64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Fixed {
    magic: [u8; 8],
    version: U16,
    kind: u8,
    stripe: u8,
    label_bytes: U32,
    token: U64,
    serial: U64,
    offset: U64,
    epoch: U64,
    object: U64,
    value_bytes: U64,
    seal: U64,
    /// Of all above, then label, padding and table.
    crc: U64,
}

const _: () = assert!(size_of::<Fixed>() == 80 && align_of::<Fixed>() == 1);
const _: () = assert!(offset_of!(Fixed, token) == 16 && offset_of!(Fixed, crc) == 72);
const _: () = assert!(HEAD_BYTES_MAX < 64 << 10);

/// How a record is laid out: everything follows from the lengths of its label and its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) label: usize,
    pub(crate) value: u64,
}

impl Shape {
    pub(crate) const fn new(label: usize, value: u64) -> Self {
        Self { label, value }
    }

    /// Whether the limits of the house hold; all else here counts on it.
    pub(crate) const fn is_valid(self) -> bool {
        self.label <= LABEL_BYTES_MAX && self.value <= VALUE_BYTES_MAX
    }

    pub(crate) const fn is_small(self) -> bool {
        self.value < SMALL_BYTES
    }

    const fn table_at(self) -> usize {
        FIXED_BYTES + self.label.next_multiple_of(8)
    }

    /// Bytes of the head: fixed part, label, table.
    pub(crate) const fn head(self) -> usize {
        self.table_at() + seal::table(self.value).1 as usize
    }

    /// Where the value starts, from the start of the record.
    pub(crate) const fn value_at(self) -> usize {
        if self.is_small() { self.head() } else { self.head().next_multiple_of(ALIGN) }
    }

    /// Bytes of the record, padding included.
    pub(crate) const fn bytes(self) -> u64 {
        let bytes = self.value_at() as u64 + self.value;
        bytes.next_multiple_of(if self.is_small() { 8 } else { ALIGN as u64 })
    }
}

/// A head, taken apart.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Head<'a> {
    pub(crate) id: RecordId,
    pub(crate) label: &'a [u8],
    pub(crate) len: u64,
    pub(crate) seal: Seal,
    pub(crate) serial: u64,
    table: &'a [U64],
}

impl<'a> Head<'a> {
    pub(crate) fn shape(&self) -> Shape {
        Shape::new(self.label.len(), self.len)
    }

    /// The checksums of the slices; empty for a value of one slice, whose seal says enough.
    pub(crate) fn table(&self) -> impl ExactSizeIterator<Item = u64> + '_ {
        self.table.iter().map(|sum| sum.get())
    }

    pub(crate) fn record(&self) -> Record {
        Record { id: self.id, label: self.label.into(), len: self.len, seal: self.seal }
    }

    /// The value of a small record, if the bytes that begin with its head hold all of it.
    pub(crate) fn value_in<'b>(&self, bytes: &'b [u8]) -> Option<&'b [u8]> {
        let shape = self.shape();
        if !shape.is_small() {
            return None;
        }
        bytes.get(shape.value_at()..)?.get(..usize::try_from(self.len).ok()?)
    }

    /// The head at the start of some bytes, if it lies where it should. More bytes may follow.
    pub(crate) fn decode(bytes: &'a [u8], site: Site) -> Option<Self> {
        let head = Self::decode_any_serial(bytes, site)?;
        (head.serial == site.serial).then_some(head)
    }

    /// The same, of whatever serial: for a scan that learns it.
    pub(crate) fn decode_any_serial(bytes: &'a [u8], site: Site) -> Option<Self> {
        let shape = Self::peek(bytes, site)?;
        let (fixed, _) = Fixed::ref_from_prefix(bytes).ok()?;
        let rest = bytes.get(FIXED_BYTES..shape.head())?;
        let sum = Crc::new().update(&bytes[..offset_of!(Fixed, crc)]).update(rest).value();
        if sum != fixed.crc.get() {
            return None;
        }
        let (label, _) = rest.split_at(shape.label);
        let table = <[U64]>::ref_from_bytes(&rest[shape.table_at() - FIXED_BYTES..]).ok()?;
        let seal = Seal(fixed.seal.get());
        let sums = || table.iter().map(|sum| sum.get());
        if !table.is_empty() && Seal::over(shape.value, sums()) != seal {
            return None;
        }
        let epoch = LeaderEpoch(fixed.epoch.get());
        let object = ObjectId { epoch, sequence: fixed.object.get() };
        let id = RecordId { object, stripe: fixed.stripe };
        Some(Self { id, label, len: shape.value, seal, serial: fixed.serial.get(), table })
    }

    /// How long the head says to be, so that the rest of it can be read. Not verified yet.
    pub(crate) fn peek(bytes: &[u8], site: Site) -> Option<Shape> {
        let (fixed, _) = Fixed::ref_from_prefix(bytes).ok()?;
        let here = fixed.magic == MAGIC
            && fixed.version.get() == VERSION
            && fixed.kind == site.kind as u8
            && fixed.token.get() == site.token
            && fixed.offset.get() == site.offset;
        let shape = Shape::new(fixed.label_bytes.get() as usize, fixed.value_bytes.get());
        (here && shape.is_valid()).then_some(shape)
    }
}

/// Whether some bytes begin with the head of a record that was written here, good or not.
pub(crate) fn claims(bytes: &[u8], site: Site) -> bool {
    Fixed::ref_from_prefix(bytes).is_ok_and(|(fixed, _)| {
        fixed.token.get() == site.token
            && fixed.serial.get() == site.serial
            && fixed.offset.get() == site.offset
    })
}

/// Where the head at the start of some bytes says to lie. Not verified.
pub(crate) fn offset_in(bytes: &[u8]) -> Option<u64> {
    let (fixed, _) = Fixed::ref_from_prefix(bytes).ok()?;
    Some(fixed.offset.get())
}

/// Appends the head of a record to `out`. `sums` are those of its slices, as [`checked_sums`] gave them.
pub(crate) fn encode(out: &mut Vec<u8>, site: Site, record: &NewRecord<'_>, sums: &[u64]) {
    let shape = Shape::new(record.label.len(), record.value.len() as u64);
    assert!(shape.is_valid(), "lengths are checked before a record is laid out");
    let start = out.len();
    let fixed = Fixed {
        magic: MAGIC,
        version: VERSION.into(),
        kind: site.kind as u8,
        stripe: record.id.stripe,
        label_bytes: (shape.label as u32).into(),
        token: site.token.into(),
        serial: site.serial.into(),
        offset: site.offset.into(),
        epoch: record.id.object.epoch.0.into(),
        object: record.id.object.sequence.into(),
        value_bytes: shape.value.into(),
        seal: record.seal.0.into(),
        crc: 0.into(),
    };
    out.extend_from_slice(fixed.as_bytes());
    out.extend_from_slice(record.label);
    out.resize(start + shape.table_at(), 0);
    if shape.head() > shape.table_at() {
        out.extend(sums.iter().flat_map(|sum| sum.to_le_bytes()));
    }
    assert_eq!(out.len() - start, shape.head(), "a sum for each slice");
    let at = offset_of!(Fixed, crc);
    let head = &mut out[start..];
    let sum = Crc::new().update(&head[..at]).update(&head[FIXED_BYTES..]).value();
    head[at..FIXED_BYTES].copy_from_slice(&sum.to_le_bytes());
}

/// The sums of a value's slices, if they add up to its seal.
pub(crate) fn checked_sums(value: &[u8], seal: Seal) -> Option<Vec<u64>> {
    let mut sums = mooncrate_mem::sums::SliceSums::new();
    sums.update(value);
    let (found, sums) = sums.finish();
    (found == seal).then_some(sums)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use mooncrate_mem::sums::seal_of;
    use proptest::prelude::*;

    const SITE: Site = Site { kind: Kind::Bucket, token: 7, serial: 3, offset: 8192 };

    fn encoded(label: &[u8], value: &[u8]) -> Vec<u8> {
        let object = ObjectId { epoch: LeaderEpoch(5), sequence: 9 };
        let id = RecordId { object, stripe: 2 };
        let record = NewRecord { id, label, seal: seal_of(value), value };
        let sums = checked_sums(value, record.seal).unwrap();
        let mut out = Vec::new();
        encode(&mut out, SITE, &record, &sums);
        out
    }

    #[test]
    fn heads_come_back_for_values_of_none_one_and_more_slices() {
        for len in [0, 1, 4096, (SMALL_BYTES - 1) as usize, 1 << 20, (1 << 20) + 1, 3 << 20] {
            let value = vec![0x5a; len];
            let bytes = encoded(b"label", &value);
            let head = Head::decode(&bytes, SITE).unwrap();
            assert_eq!((head.label, head.len, head.id.stripe), (&b"label"[..], len as u64, 2));
            assert_eq!(head.seal, seal_of(&value));
            let slices = seal::slices(len as u64);
            assert_eq!(head.table().len() as u64, if slices > 1 { slices } else { 0 });
            let shape = head.shape();
            assert_eq!(shape.head(), bytes.len());
            assert!(shape.is_small() || shape.value_at().is_multiple_of(ALIGN));
        }
    }

    #[test]
    fn a_head_is_none_elsewhere() {
        let bytes = encoded(b"label", b"value");
        for site in [
            Site { offset: 0, ..SITE },
            Site { serial: 4, ..SITE },
            Site { token: 8, ..SITE },
            Site { kind: Kind::Offset, ..SITE },
        ] {
            assert_eq!(Head::decode(&bytes, site), None, "{site:?}");
        }
        assert!(Head::decode_any_serial(&bytes, Site { serial: 4, ..SITE }).is_some());
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        let bytes = encoded(b"label", &vec![1; (2 << 20) + 5]);
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Head::decode(&bad, SITE), None, "bit {bit}");
        }
        for cut in 0..bytes.len() {
            assert_eq!(Head::decode(&bytes[..cut], SITE), None, "cut at {cut}");
        }
    }

    #[test]
    fn small_values_waste_little() {
        let shape = Shape::new(40, 4096);
        assert_eq!(shape.bytes(), 4096 + 80 + 40);
        let large = Shape::new(40, SMALL_BYTES);
        assert_eq!(large.bytes(), SMALL_BYTES + 4096);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_head_or_none(mut bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            prop_assert_eq!(Head::decode(&bytes, SITE), None);
            // A good start, so that lengths are believed until the checksum.
            let good = encoded(b"l", b"v");
            let keep = bytes.len().min(24);
            bytes[..keep].copy_from_slice(&good[..keep]);
            prop_assert_eq!(Head::decode(&bytes, SITE), None);
        }
    }
}
