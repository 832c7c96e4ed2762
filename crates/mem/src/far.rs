//! Memory that no processor can address: that of a GPU. Bytes come and go through **rooms**, pieces of host
//! memory that the device copies from and to.
//!
//! ```text
//!   WriteGuard ── room ── store ──► far memory ── load ── room ── PinGuard
//!                      (waits)                  (waits)
//! ```
//!
//! What must stay true: a copy has ended when its call returns, well or not; a room has a copy under way
//! for nobody but who holds it; rooms are few, so whoever finds none is told to come again. Why a copy
//! failed is for the device's owner to log: here it only counts that it did.

use mooncrate_core::Extent;
use std::fmt::Debug;
use std::io;
use std::os::fd::OwnedFd;

/// Memory of a device, as much as its segment has payload. A seam: the owner of a GPU implements it.
pub trait Far: Send + Sync + Debug {
    /// A room, if one is free or becomes free within a moment. It comes back when it is dropped.
    fn room(&self) -> Option<Box<dyn Room>>;

    /// Fills a range with zeros, and waits for that.
    fn zero(&self, extent: Extent) -> io::Result<()>;

    /// What a process with the same device needs to map the memory; `None`: it cannot be shared.
    fn share(&self) -> io::Result<Option<FarShare>>;
}

/// A piece of host memory beside a device. It belongs to one value at a time.
pub trait Room: Send + Sync + Debug {
    /// Its bytes: at least one slice of a value.
    fn bytes(&mut self) -> &mut [u8];

    /// Copies the first `len` bytes to `offset` of the far memory, and waits until they are there.
    fn store(&mut self, offset: u64, len: usize) -> io::Result<()>;

    /// Fills the first `len` bytes from `offset` of the far memory, and waits for them.
    fn load(&mut self, offset: u64, len: usize) -> io::Result<()>;
}

/// Memory of a device for another process of this machine.
#[derive(Debug)]
pub struct FarShare {
    /// What the driver of the device imports.
    pub memory: OwnedFd,
    /// Bytes of the allocation behind it: the payload, rounded up to whole pages of the device.
    pub memory_bytes: u64,
    /// The UUID of the device.
    pub device: [u8; 16],
}
