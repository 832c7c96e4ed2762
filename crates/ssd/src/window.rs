//! A part of a file in memory that moves along with a scan: one read for many small records.
//!
//! What must stay true: a block that cannot be read costs what lies in it, not what lies beside it. So a
//! read that fails is tried again for the bytes that are needed alone.

use crate::ALIGN;
use crate::disk::{Disk, File};
use crate::reading::read_one;
use crate::room::Room;
use std::io;
use std::sync::Arc;

/// Bytes that are read at a time where many are needed; more than any head and small value together.
pub(crate) const WINDOW_BYTES: u64 = 1 << 20;

const BLOCK: u64 = ALIGN as u64;

/// See the file's head.
#[derive(Debug)]
pub(crate) struct Window<'a> {
    pub(crate) disk: &'a dyn Disk,
    pub(crate) file: &'a Arc<dyn File>,
    /// Bytes of the file.
    pub(crate) len: u64,
    room: Room,
    from: u64,
}

impl<'a> Window<'a> {
    /// Holds nothing yet, and `most` bytes at most.
    pub(crate) fn new(disk: &'a dyn Disk, file: &'a Arc<dyn File>, len: u64, most: u64) -> Self {
        Self { disk, file, len, room: Room::new(most as usize), from: 0 }
    }

    /// What is held from `offset` on.
    pub(crate) fn near(&self, offset: u64) -> &[u8] {
        let skip = offset.checked_sub(self.from).and_then(|skip| usize::try_from(skip).ok());
        skip.and_then(|skip| self.room.get(skip..)).unwrap_or_default()
    }

    /// At least `need` bytes from `offset` on, or all that the file has; about `ahead` are read if some are.
    pub(crate) fn reach(&mut self, offset: u64, need: usize, ahead: u64) -> io::Result<&[u8]> {
        let need = (need as u64).min(self.len.saturating_sub(offset));
        if (self.near(offset).len() as u64) < need
            && (ahead <= need || self.fill(offset, ahead).is_err())
        {
            self.fill(offset, need)?;
        }
        Ok(self.near(offset))
    }

    /// Holds so many bytes from the block of `offset` on, or all that the file has.
    pub(crate) fn fill(&mut self, offset: u64, bytes: u64) -> io::Result<()> {
        self.lie_over(offset, bytes);
        let read = read_one(self.disk, self.file, self.from, &mut self.room);
        if read.is_err() {
            self.room.clear();
        }
        read
    }

    /// The same block by block. Those that cannot be read are told, and zeros in here.
    pub(crate) fn fill_block_by_block(
        &mut self,
        offset: u64,
        bytes: u64,
        mut unreadable: impl FnMut(u64),
    ) {
        self.lie_over(offset, bytes);
        for (offset, block) in (self.from..).step_by(ALIGN).zip(self.room.chunks_mut(ALIGN)) {
            if read_one(self.disk, self.file, offset, block).is_err() {
                unreadable(offset);
                block.fill(0);
            }
        }
    }

    fn lie_over(&mut self, offset: u64, bytes: u64) {
        self.from = offset - offset % BLOCK;
        let most = (self.room.capacity() as u64).min(self.len.saturating_sub(self.from));
        let len = (offset + bytes).next_multiple_of(BLOCK) - self.from;
        self.room.set_len(len.min(most) as usize);
    }
}
