//! Client to node, on data links: values, descriptors, pins. Requests name a life of a slot, never
//! an address; the owner checks both epochs, the token and the bounds.

use super::message;
use crate::codec::{Field, Reader, fields};
use crate::error::{DataError, DecodeError};
use mooncrate_core::ids::{Incarnation, LeaderEpoch, ObjectId, PutToken, SegmentId};
use mooncrate_core::plan::Locator;
use mooncrate_core::seal::Seal;
use std::borrow::Cow;

message! {
    /// Share a segment's memory. On a Unix socket the reply brings descriptors: of the header table and of the
    /// payload, which can only be mapped read-only; or, for stores, of the payload alone.
    pub struct Attach {
        /// Which segment.
        pub segment: SegmentId,
        /// For a process that stores values there itself. It asks once per mount.
        pub stores: bool,
    }
}

message! {
    /// What was shared.
    pub struct Attached {
        /// Which mount.
        pub incarnation: Incarnation,
        /// Headers in the table.
        pub slots: u32,
        /// Bytes of payload.
        pub bytes: u64,
    }
}

message! {
    /// Share the memory of a GPU that a segment lies in. On a Unix socket the reply brings one descriptor,
    /// which the driver of a GPU imports; no processor can map it.
    pub struct Lend {
        /// Which segment.
        pub segment: SegmentId,
    }
}

message! {
    /// What was shared.
    pub struct Lent {
        /// Which mount.
        pub incarnation: Incarnation,
        /// Bytes of payload: extents lie in these.
        pub bytes: u64,
        /// Bytes of the allocation behind the descriptor, as the driver wants to hear them.
        pub memory_bytes: u64,
        /// The UUID of the GPU.
        pub device: [u8; 16],
    }
}

/// What an owner must know to take a value in: the plan's part for this replica, and the label that
/// it keeps beside the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BeginWrite<'a> {
    /// Where to.
    pub locator: Locator,
    /// The right to write.
    pub token: PutToken,
    /// The put.
    pub object: ObjectId,
    /// The leader that planned it.
    pub epoch: LeaderEpoch,
    /// Bytes of the value.
    pub len: u64,
    /// Whose value it is, under which key, with which wishes: see `core::label`.
    pub label: &'a [u8],
}
fields!(BeginWrite<'a> {
    locator: Locator,
    token: PutToken,
    object: ObjectId,
    epoch: LeaderEpoch,
    len: u64,
    label: &'a [u8],
});

message! {
    /// A put through shared memory begins: the client stores the bytes itself, then signals.
    pub struct Begin<'a> {
        /// The put.
        pub put: BeginWrite<'a>,
    }
}

/// A put whose value is attached: `put.len` bytes follow the body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write<'a> {
    /// The put.
    pub put: BeginWrite<'a>,
}

/// The length of the attachment leads the body, as in every frame that may have one.
impl<'a> Field<'a> for Write<'a> {
    const BYTES_MIN: usize = 8 + BeginWrite::BYTES_MIN;
    fn put(&self, out: &mut Vec<u8>) {
        self.put.len.put(out);
        self.put.put(out);
    }
    fn take(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let attached = u64::take(from)?;
        let put = BeginWrite::take(from)?;
        if put.len != attached {
            return Err(DecodeError::BadValue { what: "the length of a value", value: put.len });
        }
        Ok(Self { put })
    }
}

impl<'a> Write<'a> {
    /// Appends the body.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.put(out);
    }

    /// Reads a whole body.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        crate::codec::decode(body)
    }
}

message! {
    /// The last byte is in place: publish (G2).
    pub struct Signal {
        /// Where.
        pub locator: Locator,
        /// The right to publish.
        pub token: PutToken,
        /// What the bytes must add up to.
        pub seal: Seal,
    }
}

message! {
    /// Bytes of a replica: value and slice table are one range.
    pub struct Read {
        /// Which.
        pub locator: Locator,
        /// First byte, relative to the extent.
        pub start: u64,
        /// How many.
        pub len: u64,
    }
}

/// The bytes are attached, or there is a reason why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadReply {
    /// Bytes that follow the body.
    pub result: Result<u64, DataError>,
}

/// u64 bytes attached (0 with an error), then the result.
impl<'a> Field<'a> for ReadReply {
    const BYTES_MIN: usize = 9;
    fn put(&self, out: &mut Vec<u8>) {
        self.result.unwrap_or(0).put(out);
        self.result.map(|_| ()).put(out);
    }
    fn take(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let attached = u64::take(from)?;
        let result = Result::<(), DataError>::take(from)?;
        if result.is_err() && attached > 0 {
            let what = "the attachment of an error";
            return Err(DecodeError::BadValue { what, value: attached });
        }
        Ok(Self { result: result.map(|()| attached) })
    }
}

/// A pin that the owner keeps for one connection; it goes when the connection goes (R4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PinId(pub u64);

impl<'a> Field<'a> for PinId {
    const BYTES_MIN: usize = 8;
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }
    fn take(from: &mut Reader<'a>) -> Result<Self, DecodeError> {
        Ok(Self(u64::take(from)?))
    }
}

message! {
    /// Keep these replicas in place for views without a copy.
    pub struct Pin<'a> {
        /// Which.
        pub locators: Cow<'a, [Locator]>,
    }
}

message! {
    /// Let them go.
    pub struct Unpin<'a> {
        /// Which.
        pub ids: Cow<'a, [PinId]>,
    }
}

/// A value on a disk, or some whole slices of it, that shall be loaded into the owner's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageItem {
    /// Which.
    pub locator: Locator,
    /// First byte of the value that is wanted: the start of a slice.
    pub start: u64,
    /// How many: up to the end of a slice, or of the value.
    pub len: u64,
}
fields!(StageItem { locator: Locator, start: u64, len: u64 });

/// What was loaded, as a value of its own in the owner's memory: read like any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Staged {
    /// Where it is.
    pub locator: Locator,
    /// Its bytes. Where not the whole value was asked for, the sums of all its slices follow the slices.
    pub len: u64,
    /// What they add up to.
    pub seal: Seal,
    /// How long it stays, if it is not released before.
    pub lease_ms: u32,
}
fields!(Staged { locator: Locator, len: u64, seal: Seal, lease_ms: u32 });

message! {
    /// Load values from a disk, all at once. They are booked to the connection.
    pub struct Stage<'a> {
        /// Which.
        pub items: Cow<'a, [StageItem]>,
    }
}

message! {
    /// They were read: the owner may take their memory back.
    pub struct Release<'a> {
        /// Where they were staged.
        pub locators: Cow<'a, [Locator]>,
    }
}

message! {
    /// The writer gave up and stores no more into the range: the owner may free it (R7).
    pub struct Abandon {
        /// Where.
        pub locator: Locator,
        /// The right to write.
        pub token: PutToken,
    }
}

message! {
    /// A put in parts begins: the value comes by [`WritePart`], in any order, then a [`Signal`]. It is
    /// booked to the connection, and ends with it (R7).
    pub struct Open<'a> {
        /// The put.
        pub put: BeginWrite<'a>,
    }
}

message! {
    /// A part of an open put; `len` bytes follow the body. What the owner checks at the signal is the
    /// whole value.
    pub struct WritePart {
        /// Bytes attached: it leads the body, as in every frame that may have an attachment.
        pub len: u64,
        /// Which put.
        pub locator: Locator,
        /// The right to write.
        pub token: PutToken,
        /// Where in the value they belong.
        pub offset: u64,
    }
}

message! {
    /// A reader copied this replica and its bytes were not those that were sealed, or it did not find the
    /// replica where the master says it is. The owner looks itself: a reader's word alone ends nothing.
    pub struct Verify {
        /// Which.
        pub locator: Locator,
        /// What the master says that they add up to.
        pub seal: Seal,
    }
}
