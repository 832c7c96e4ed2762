//! A client's view of a segment that a node of the same machine owns: two memfds, the header table
//! read-only for ever, the payload read-only or, for direct puts, writable.
//!
//! What must stay true: a mapping never pins and never changes a header, so a client that dies
//! leaves nothing behind (R3, R4); it never forms a slice of bytes that nobody pinned.

use crate::read::{OneSided, ReadError, check_extent};
use crate::region::{Access, Region};
use crate::sums::copy_value;
use crate::table::{Identity, Table};
use crate::word::before_first_byte;
use mooncrate_core::{Locator, Now, ReplicaState, Seal};
use std::io;
use std::os::fd::BorrowedFd;

/// A mapped segment of another process.
#[derive(Debug)]
pub struct Mapping {
    identity: Identity,
    table: Table,
    payload: Region,
}

/// Why a value was not stored directly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The slot is not being written in this life: never begun, or aborted.
    #[error("the slot is not open for writing in this life; start the put again")]
    Stale,
    /// The locator reaches outside of the segment, or does not fit the value.
    #[error("the locator reaches outside of the segment or does not fit the value")]
    OutOfBounds,
    /// The payload was mapped for reading.
    #[error("the segment was mapped for reading only")]
    ReadOnly,
}

impl Mapping {
    /// Maps the two files of a segment, and checks that they are what the owner said.
    pub fn new(
        headers: BorrowedFd<'_>,
        payload: BorrowedFd<'_>,
        identity: Identity,
        access: Access,
    ) -> io::Result<Self> {
        let bytes = usize::try_from(identity.bytes).map_err(io::Error::other)?;
        let headers = Region::map(headers, identity.table_bytes(), Access::ReadOnly)?;
        let table = Table::open(headers, &identity)?;
        let payload = Region::map(payload, bytes, access)?;
        Ok(Self { identity, table, payload })
    }

    /// What is mapped.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Until when the owner may serve.
    pub fn serve_until(&self) -> Now {
        self.table.serve_until()
    }

    /// The steps of an unpinned read.
    pub fn one_sided(&self) -> OneSided<'_> {
        OneSided::new(&self.table, Some(&self.payload))
    }

    /// Reads a whole value of `target.len()` bytes (R3). After an error the target holds rubbish.
    pub fn read_into(
        &self,
        locator: &Locator,
        seal: Seal,
        target: &mut [u8],
        clock: impl FnOnce() -> Now,
    ) -> Result<(), ReadError> {
        self.check_mount(locator)?;
        self.one_sided().read_into(locator, seal, target, clock)
    }

    /// Reads the part of a value that starts at `start`; `sealed` is the length and the seal of the
    /// whole one (R3, R11). After an error the target holds rubbish.
    pub fn read_part_into(
        &self,
        locator: &Locator,
        sealed: (u64, Seal),
        start: u64,
        target: &mut [u8],
        clock: impl FnOnce() -> Now,
    ) -> Result<(), ReadError> {
        self.check_mount(locator)?;
        self.one_sided().read_part_into(locator, sealed, start, target, clock)
    }

    /// Stores a value straight into its extent, after the owner accepted the put; the owner publishes
    /// it afterwards under the seal returned here.
    pub fn write_value(&self, locator: &Locator, value: &[u8]) -> Result<Seal, StoreError> {
        if self.payload.access() == Access::ReadOnly {
            return Err(StoreError::ReadOnly);
        }
        self.check_mount(locator).map_err(|_| StoreError::Stale)?;
        let target = check_extent(&self.payload, locator.extent, value.len() as u64)
            .map_err(|_| StoreError::OutOfBounds)?;
        // No proof, since the put may be aborted right after; it keeps honest mistakes out. What
        // protects the range is the owner's quarantine (R7).
        let word = self.table.word(locator.slot).ok_or(StoreError::OutOfBounds)?.load();
        if word.generation() != locator.generation || word.state() != ReplicaState::Writing {
            return Err(StoreError::Stale);
        }
        before_first_byte();
        // SAFETY: the extent lies inside of the payload and was made for a value of this length. The
        // owner keeps it for this put until we hang up, so nobody else stores here.
        Ok(unsafe { copy_value(target, value) })
    }

    /// The bytes of a value that the owner pinned for us (R4).
    ///
    /// # Safety
    /// The owner holds a pin on this locator's life, taken at our request, for as long as the slice
    /// is used.
    pub unsafe fn pinned_bytes(&self, locator: &Locator, len: u64) -> Result<&[u8], ReadError> {
        self.check_mount(locator)?;
        let start = check_extent(&self.payload, locator.extent, len)?;
        // SAFETY: inside of the mapping, which lives as long as `self`; published bytes are never
        // written again, and the pin keeps the owner from reusing them.
        Ok(unsafe { std::slice::from_raw_parts(start, len as usize) })
    }

    fn check_mount(&self, locator: &Locator) -> Result<(), ReadError> {
        let same = locator.segment == self.identity.segment
            && locator.incarnation == self.identity.incarnation;
        if same { Ok(()) } else { Err(ReadError::Stale) }
    }
}
