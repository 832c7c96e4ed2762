//! move: bytes between a caller and the owner of an extent, by the best path there is.
//!
//! ```text
//!   caller ── Engine ──┬── Local    same process: pin, copy, unpin
//!                      ├── Shared   same host: map the owner's memory once, copy without asking
//!                      └── Stream   anywhere: frames over TCP, values straight into place;
//!                                   large ones over several links at once ([`Lanes`])
//! ```
//!
//! What lies on a disk is read in two steps: its owner loads it into memory ([`Stager`]), then it is read
//! by the same paths. In the owner's process it is loaded straight into place.
//!
//! Three operations: **read** an extent, **write** one, and **signal** that it is complete. A write
//! hands back a [`Written`]; only its `signal` makes the bytes visible, and dropping it gives the
//! range up. Every path verifies: the reader compares what it copied with the seal it was given, the
//! owner compares what arrived with the seal the writer signals. A [`Transport`] sees extents, lives
//! and labels; an RDMA fabric or device memory is one more implementation behind it.
//!
//! Deliberately absent: keys, objects, replicas, retries; of the master, all but its list of nodes. A
//! label is opaque here.

mod device;
mod direct;
mod engine;
mod error;
mod lanes;
mod local;
mod nodes;
mod part;
mod segments;
mod server;
mod shared;
mod staged;
mod stager;
mod staging;
mod stream;

pub use device::{DeviceDoor, DevicePin, DevicePut, LentMemory};
pub use engine::{Directory, Engine, EngineConfig, Path, Route};
pub use error::TransferError;
pub use lanes::Lanes;
pub use local::Local;
pub use nodes::Nodes;
pub use segments::Segments;
pub use server::{DataServer, DataServerConfig, DataTally, Refusals};
pub use shared::{MappedMemory, Shared};
pub use stager::Stager;
pub use staging::Staging;
pub use stream::Stream;

use mooncrate_core::plan::Locator;
use mooncrate_core::time::Deadline;
use mooncrate_core::{LeaderEpoch, ObjectId, PutToken, Seal};
use mooncrate_lock::interrupt;
use mooncrate_mem::clock::boottime;
use mooncrate_wire::DataError;
use mooncrate_wire::message::BeginWrite;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

/// One extent to read: a whole value, or a part of it.
#[derive(Debug)]
pub struct Read<'a> {
    /// Where it is.
    pub locator: Locator,
    /// Bytes of the value.
    pub len: u64,
    /// What they must add up to, all of them.
    pub seal: Seal,
    /// `None`: the whole value, and `into` has its length. Otherwise the part that starts here and is as
    /// long as `into`.
    pub start: Option<u64>,
    /// Where they go. What it holds after an error is nobody's value.
    pub into: &'a mut [u8],
    /// What became of it.
    pub result: Result<(), TransferError>,
}

impl<'a> Read<'a> {
    /// A read of a whole value, which has not been tried.
    pub fn new(locator: Locator, len: u64, seal: Seal, into: &'a mut [u8]) -> Self {
        Self { locator, len, seal, start: None, into, result: Err(TransferError::NotTried) }
    }

    /// The same for the part of a value that starts at `start` and is as long as `into`. It is verified
    /// as a part of the sealed value (R11): every slice it touches is summed in full.
    pub fn part(locator: Locator, len: u64, seal: Seal, start: u64, into: &'a mut [u8]) -> Self {
        Self { start: Some(start), ..Self::new(locator, len, seal, into) }
    }

    /// Whether it can be asked for; one that cannot spoils no other (G11).
    fn check(&self) -> Result<(), TransferError> {
        let have = self.into.len() as u64;
        match self.start {
            None if have == self.len => Ok(()),
            None => Err(TransferError::Length { need: self.len, have }),
            Some(start) => match start.checked_add(have) {
                Some(end) if end <= self.len => Ok(()),
                _ => Err(DataError::OutOfBounds.into()),
            },
        }
    }
}

/// One extent to write: what the owner needs to know of it.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    /// Where it goes.
    pub locator: Locator,
    /// The right to write there.
    pub token: PutToken,
    /// Which put it is.
    pub object: ObjectId,
    /// The leader that planned it.
    pub epoch: LeaderEpoch,
    /// Kept by the owner beside the header.
    pub label: &'a [u8],
    /// The value, in pieces.
    pub value: &'a [&'a [u8]],
}

impl Write<'_> {
    /// Bytes of the value.
    pub fn len(&self) -> u64 {
        self.value.iter().map(|piece| piece.len() as u64).sum()
    }

    /// Whether the value is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A way to one owner.
pub trait Transport: Send + Sync + std::fmt::Debug {
    /// Which path this is.
    fn path(&self) -> Path;

    /// Reads values or parts of them, and verifies them. One result each; a failed one shifts nothing.
    fn read(&self, reads: &mut [Read<'_>], deadline: Deadline);

    /// Of each life of one mount whether it goes on, as far as that is seen in memory: nobody is asked, and no
    /// byte is read.
    fn living(&self, lives: &[Locator]) -> Vec<bool> {
        vec![false; lives.len()]
    }

    /// Moves a value into place. It is not visible yet.
    fn write<'a>(
        &'a self,
        write: &Write<'a>,
        deadline: Deadline,
    ) -> Result<Box<dyn Written + 'a>, TransferError>;

    /// Begins to move values into place and to publish each after its last byte; [`Sent::finish`] waits for
    /// the owner's word. So a caller sends to several owners before it waits for one of them.
    fn send<'a>(&'a self, writes: &'a [Write<'a>], deadline: Deadline) -> Box<dyn Sent + 'a>;

    /// Opens a put whose value comes in parts, in any order.
    fn open(
        &self,
        put: &BeginWrite<'_>,
        deadline: Deadline,
    ) -> Result<Box<dyn OpenPut>, TransferError>;

    /// The bytes in place, pinned and verified, where this path can show them without a copy.
    fn view(
        &self,
        locator: &Locator,
        len: u64,
        seal: Seal,
        deadline: Deadline,
    ) -> Result<Option<View>, TransferError>;

    /// Asks the owner to look at a value in its memory that was read here and did not add up, or was not there:
    /// whether it holds the value under that seal. If not, the owner has retired the replica, or told the
    /// master what it holds instead (G15).
    fn verify(
        &self,
        locator: &Locator,
        seal: Seal,
        deadline: Deadline,
    ) -> Result<bool, TransferError>;

    /// The same way for a caller with somewhere else to go: it gives up when nothing moves for `silence_max`,
    /// however much of its deadline is left.
    fn hasty(&self, silence_max: Duration) -> Arc<dyn Transport>;
}

/// Values on their way to one owner, in one exchange. Dropping it gives up what is not published.
pub trait Sent {
    /// Whether it holds what it needs. Otherwise [`Sent::finish`] waits for a link that others use, and who
    /// holds others finishes those first: callers that hold links must not wait for each other.
    fn has_begun(&self) -> bool {
        true
    }

    /// Waits for the owner: the seal of each value that it published. When the exchange ends early, the
    /// value that it ended with has the error, and those behind it were not tried.
    fn finish(self: Box<Self>, deadline: Deadline) -> Vec<Result<Seal, TransferError>>;
}

/// Values that were decided when they were sent.
pub(crate) struct Decided(pub(crate) Vec<Result<Seal, TransferError>>);

impl Sent for Decided {
    fn finish(self: Box<Self>, _deadline: Deadline) -> Vec<Result<Seal, TransferError>> {
        self.0
    }
}

/// Writes and publishes values one after the other. An owner that does not answer is not asked again.
fn one_by_one<'a>(
    transport: &'a dyn Transport,
    writes: impl Iterator<Item = &'a Write<'a>>,
    deadline: Deadline,
) -> Vec<Result<Seal, TransferError>> {
    let mut over = false;
    let one = |write: &'a Write<'a>| {
        if over {
            return Err(TransferError::NotTried);
        }
        go_on(write.len())?;
        let published = transport.write(write, deadline).and_then(|written| {
            let seal = written.seal();
            written.signal(deadline).map(|()| seal)
        });
        over = matches!(published, Err(TransferError::Call(_)));
        published
    };
    writes.map(one).collect()
}

/// Copies of fewer bytes do not look at the clock.
const LONG_COPY_BYTES: u64 = 1 << 20;

/// An error if the caller does not want the rest any more; before a copy of so many bytes that waits for nobody.
/// One copy is never cut: a gigabyte takes less time than a person needs to look up.
fn go_on(bytes: u64) -> Result<(), TransferError> {
    let long = bytes >= LONG_COPY_BYTES && interrupt::is_on();
    let over = if long { interrupt::ask_at(boottime().0) } else { interrupt::ended() };
    if over { Err(TransferError::interrupted()) } else { Ok(()) }
}

/// A value that is in place and not yet visible. Dropping it gives the range up.
pub trait Written {
    /// What the bytes add up to.
    fn seal(&self) -> Seal;

    /// Publishes: from now on the owner serves the bytes. After the last byte, never before.
    fn signal(self: Box<Self>, deadline: Deadline) -> Result<(), TransferError>;
}

/// A value that is put in parts. Dropping it gives the range up; a writer that dies does the same.
pub trait OpenPut: Send + std::fmt::Debug {
    /// Moves a part into place. Each byte of the value goes once; the order does not matter.
    fn write(&mut self, offset: u64, part: &[u8], deadline: Deadline) -> Result<(), TransferError>;

    /// Publishes, after the last part: the owner compares what lies there with the seal.
    fn signal(self: Box<Self>, seal: Seal, deadline: Deadline) -> Result<(), TransferError>;
}

/// The bytes of a value, in place and pinned where the path allows it: the owner cannot free them
/// while this lives. Otherwise a copy of our own.
#[derive(Debug)]
pub struct View {
    bytes: ViewBytes,
}

#[derive(Debug)]
enum ViewBytes {
    Local(mooncrate_mem::PinGuard),
    Shared(shared::SharedPin),
    Owned(Vec<u8>),
}

impl View {
    /// A view of bytes that were copied and verified.
    pub fn owned(bytes: Vec<u8>) -> Self {
        Self { bytes: ViewBytes::Owned(bytes) }
    }

    /// Whether the bytes are where their owner keeps them.
    pub fn is_in_place(&self) -> bool {
        !matches!(self.bytes, ViewBytes::Owned(_))
    }
}

impl Deref for View {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.bytes {
            ViewBytes::Local(pin) => pin.bytes(),
            ViewBytes::Shared(pin) => pin.bytes(),
            ViewBytes::Owned(bytes) => bytes,
        }
    }
}
