//! The seam to disks: what an owner does for readers of values that are not in memory. A node implements
//! it; this crate knows no files.

use crate::Read;
use mooncrate_core::plan::Locator;
use mooncrate_core::time::Deadline;
use mooncrate_wire::DataError;
use mooncrate_wire::message::{StageItem, Staged};

/// Loads values of this process's disks. Everything that it hands out was verified.
pub trait Stager: Send + Sync + std::fmt::Debug {
    /// Reads values, or parts of them, of segments on disks, straight into place. One result each.
    fn load(&self, reads: &mut [&mut Read<'_>], deadline: Deadline);

    /// Loads values, or whole slices of them, into memory that other processes can read, all with one
    /// batch of the disk. Each stays until it is released or its lease is over. No room is `Busy`.
    fn stage(&self, items: &[StageItem], deadline: Deadline) -> Vec<Result<Staged, DataError>>;

    /// Takes staged values back; what is unknown is gone already.
    fn release(&self, locators: &[Locator]);
}
