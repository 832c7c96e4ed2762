//! The metadata of a closed bucket: the heads of all its records in one file, so that a start reads them
//! without touching the data. Drawn in `docs/formats/ssd.md`.
//!
//! What must stay true: a file of which anything is bad, or missing, counts as none. One that is good is
//! authoritative: what stands in the data and not in here was not kept.

use super::state::Slot;
use crate::record::{self, Head, Kind, Site, VERSION};
use crate::room::Room;
use crate::{ALIGN, Record};
use mooncrate_core::Seal;
use mooncrate_mem::crc::crc;
use std::mem::offset_of;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const MAGIC: [u8; 8] = *b"mooncmet";

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Opening {
    magic: [u8; 8],
    version: U16,
    reserved: U16,
    count: U32,
    token: U64,
    serial: U64,
    data_bytes: U64,
    head_bytes: U64,
    /// Of all above.
    crc: U64,
}

const OPENING_BYTES: usize = size_of::<Opening>();
const _: () = assert!(OPENING_BYTES == 56 && offset_of!(Opening, crc) == 48);

/// Bytes of the file for so many bytes of heads.
pub(super) const fn file_bytes(heads: usize) -> u64 {
    (OPENING_BYTES + heads).next_multiple_of(ALIGN) as u64
}

/// The file of a bucket with these heads.
pub(crate) fn encode(token: u64, serial: u64, data_bytes: u64, count: u32, heads: &[u8]) -> Room {
    let mut opening = Opening {
        magic: MAGIC,
        version: VERSION.into(),
        reserved: 0.into(),
        count: count.into(),
        token: token.into(),
        serial: serial.into(),
        data_bytes: data_bytes.into(),
        head_bytes: (heads.len() as u64).into(),
        crc: 0.into(),
    };
    opening.crc = crc(&opening.as_bytes()[..offset_of!(Opening, crc)]).into();
    let mut room = Room::new(file_bytes(heads.len()) as usize);
    room.push(opening.as_bytes());
    room.push(heads);
    room.pad();
    room
}

/// What a file says about its bucket.
#[derive(Debug)]
pub(crate) struct Meta {
    /// Where the last record ends.
    pub(super) data_bytes: u64,
    /// All records, in order.
    pub(super) seen: Seen,
}

/// Records of a bucket, and where their heads were read. Without their labels: those stay in the bytes, so
/// that nothing is allocated for a record that nobody is told.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(super) slots: Vec<Slot>,
    /// As many.
    pub(super) notes: Vec<Note>,
}

/// What a start knows of a record beside its slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Note {
    pub(super) seal: Seal,
    /// Where its head stands in the bytes that it was read from.
    pub(super) at: usize,
    /// Its value is what the seal says, or was not looked at.
    pub(super) good: bool,
    /// It is the copy that is served.
    pub(super) served: bool,
}

impl Seen {
    pub(super) fn push(&mut self, offset: u64, head: &Head<'_>, at: usize, good: bool) {
        self.slots.push(Slot { id: head.id, offset, shape: head.shape() });
        self.notes.push(Note { seal: head.seal, at, good, served: false });
    }

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = (&Slot, &Note)> {
        self.slots.iter().zip(&self.notes)
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }
}

/// The record of a slot, with its label from the bytes that its head was read from.
pub(super) fn record(slot: &Slot, note: &Note, bytes: &[u8]) -> Record {
    let label = &bytes[note.at + record::FIXED_BYTES..][..slot.shape.label];
    Record { id: slot.id, label: label.into(), len: slot.shape.value, seal: note.seal }
}

impl Meta {
    /// Reads a file; `None` unless all of it is good.
    pub(crate) fn decode(bytes: &[u8], token: u64, serial: u64) -> Option<Self> {
        let (opening, rest) = Opening::ref_from_prefix(bytes).ok()?;
        let sum = crc(&bytes[..offset_of!(Opening, crc)]);
        let good = opening.magic == MAGIC
            && opening.version.get() == VERSION
            && opening.token.get() == token
            && opening.serial.get() == serial
            && opening.crc.get() == sum;
        if !good {
            return None;
        }
        let rest = rest.get(..usize::try_from(opening.head_bytes.get()).ok()?)?;
        let data_bytes = opening.data_bytes.get();
        // Each head takes at least its fixed part, which bounds the count before memory is taken.
        let count = opening.count.get() as usize;
        if count > rest.len() / record::FIXED_BYTES {
            return None;
        }
        let mut seen = Seen::default();
        seen.slots.reserve_exact(count);
        seen.notes.reserve_exact(count);
        let (mut at, mut end) = (0, 0);
        for _ in 0..count {
            let bytes = &rest[at..];
            let offset = record::offset_in(bytes)?;
            let head = Head::decode(bytes, Site { kind: Kind::Bucket, token, serial, offset })?;
            if offset < end {
                return None;
            }
            let shape = head.shape();
            end = offset.checked_add(shape.bytes())?;
            seen.push(offset, &head, OPENING_BYTES + at, true);
            at += shape.head();
        }
        (at == rest.len() && end <= data_bytes).then_some(Self { data_bytes, seen })
    }

    /// Records of the bucket.
    pub(crate) fn len(&self) -> usize {
        self.seen.len()
    }
}
