//! A client's view of a segment that a node of the same machine owns: two memfds, both mapped
//! read-only. A process that stores values itself is handed the payload for stores, and maps all of it once more, so
//! that only the thread that stores can store ([`Guarded`]). Where that is refused (no keys, no address space, a
//! sandbox), each put maps the pages of its own extent ([`Window`]).
//!
//! What must stay true: a mapping never pins and never changes a header, so a client that dies
//! leaves nothing behind (R3, R4); it never forms a slice of bytes that nobody pinned; a store of a
//! client that lost its way hits no page but, without keys, those of a put that is under way.

use crate::guarded::Guarded;
use crate::life::Life;
use crate::pkey::Key;
use crate::read::{OneSided, ReadError, check_extent};
use crate::region::{Access, Region, file_page_bytes};
use crate::sums::copy_value;
use crate::table::{Identity, Table};
use crate::window::Window;
use crate::word::before_first_byte;
use mooncrate_core::{Locator, Now, ReplicaState, Seal};
use rustix::fs::OFlags;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

/// A mapped segment of another process.
#[derive(Debug)]
pub struct Mapping {
    identity: Identity,
    table: Table,
    payload: Region,
    /// Bytes of its pages.
    page: u64,
    /// `None`: there are none.
    key: Option<&'static Key>,
    /// The payload, as it was handed over for stores.
    writable: OnceLock<OwnedFd>,
    /// All of it once more, from the first direct put on; `None`: it cannot be mapped so.
    guarded: OnceLock<Option<Guarded>>,
    /// Says whether the owner is known to be dead; `None`: it has nobody who would know.
    life: Option<Life>,
}

/// Why a value was not stored directly.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The slot is not being written in this life: never begun, or aborted.
    #[error("the slot is not open for writing in this life; start the put again")]
    Stale,
    /// The locator reaches outside of the segment, or does not fit the value.
    #[error("the locator reaches outside of the segment or does not fit the value")]
    OutOfBounds,
    /// The pages of the extent could not be mapped for writing.
    #[error("the owner's memory cannot be mapped for writing: {0}")]
    Map(io::Error),
}

impl Mapping {
    /// Maps the two files of a segment, and checks that they are what the owner said. With `life`, reads
    /// end when the owner is known to be dead.
    pub fn new(
        headers: BorrowedFd<'_>,
        payload: BorrowedFd<'_>,
        life: Option<BorrowedFd<'_>>,
        identity: Identity,
    ) -> io::Result<Self> {
        let bytes = usize::try_from(identity.bytes).map_err(io::Error::other)?;
        let headers = Region::map(headers, identity.table_bytes(), Access::ReadOnly)?;
        let table = Table::open(headers, &identity)?;
        let page = file_page_bytes(payload)?;
        let payload = Region::map(payload, bytes, Access::ReadOnly)?;
        let life = life.map(Life::watch).transpose()?;
        let (key, writable, guarded) = (Key::of_process(), OnceLock::new(), OnceLock::new());
        Ok(Self { identity, table, payload, page, key, writable, guarded, life })
    }

    /// What is mapped.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Until when the owner may serve.
    pub fn serve_until(&self) -> Now {
        self.one_sided().serve_until()
    }

    /// The steps of an unpinned read.
    pub fn one_sided(&self) -> OneSided<'_> {
        OneSided::new(&self.table, Some(&self.payload)).watching(self.life.as_ref())
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

    /// Whether the owner has handed the payload over for stores.
    pub fn takes_stores(&self) -> bool {
        self.writable.get().is_some()
    }

    /// Takes the payload as the owner hands it over for stores. Those to another file would go astray.
    pub fn allow_stores(&self, writable: OwnedFd) -> io::Result<()> {
        let ours = self.payload.fd().ok_or(io::ErrorKind::NotFound)?;
        let (ours, theirs) = (rustix::fs::fstat(ours)?, rustix::fs::fstat(&writable)?);
        if (ours.st_dev, ours.st_ino) != (theirs.st_dev, theirs.st_ino) {
            let text = "it is the memory of another segment";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        if !rustix::fs::fcntl_getfl(&writable)?.contains(OFlags::RDWR) {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is for readers"));
        }
        // Another thread may have been first, with the same file.
        let _ = self.writable.set(writable);
        Ok(())
    }

    /// Stores a value straight into its extent, after the owner accepted the put; the owner publishes it
    /// afterwards under the seal returned here.
    pub fn write_value(&self, locator: &Locator, value: &[u8]) -> Result<Seal, StoreError> {
        self.check_mount(locator).map_err(|_| StoreError::Stale)?;
        check_extent(&self.payload, locator.extent, value.len() as u64)
            .map_err(|_| StoreError::OutOfBounds)?;
        // No proof, since the put may be aborted right after; it keeps honest mistakes out. What
        // protects the range is the owner's quarantine (R7).
        let word = self.table.word(locator.slot).ok_or(StoreError::OutOfBounds)?.load();
        if word.generation() != locator.generation || word.state() != ReplicaState::Writing {
            return Err(StoreError::Stale);
        }
        let copy = |first: *mut u8| {
            before_first_byte();
            // SAFETY: the extent lies inside of the payload, was made for a value of this length, and is
            // mapped as a whole. The owner keeps it for this put until we hang up, so nobody else stores here.
            unsafe { copy_value(first, value) }
        };
        let not_handed_over = || StoreError::Map(io::ErrorKind::PermissionDenied.into());
        let writable = self.writable.get().ok_or_else(not_handed_over)?.as_fd();
        if let Some(guarded) = self.guarded(writable)
            && let Ok(seal) = guarded.store(locator.extent, copy)
        {
            return Ok(seal);
        }
        let window = Window::map(writable, locator.extent, self.page).map_err(StoreError::Map)?;
        Ok(copy(window.first_byte()))
    }

    /// All of the payload for stores. It is tried once: address space or a sandbox that has no room for it now will
    /// have none for the next put.
    fn guarded(&self, writable: BorrowedFd<'_>) -> Option<&Guarded> {
        let map = || {
            let len = self.payload.len() as usize;
            Guarded::map(writable, len, self.page, self.key?).ok()
        };
        self.guarded.get_or_init(map).as_ref()
    }

    /// As it is where there are no keys.
    #[cfg(test)]
    pub(crate) fn without_key(self) -> Self {
        Self { key: None, ..self }
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
