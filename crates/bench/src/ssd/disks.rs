//! Disks by themselves: batches of whole, aligned blocks, as the backends give them.

use super::fio::Way;
use super::watch::Watch;
use anyhow::Result;
use mooncrate_ssd::disk::{Disk, File, Open, ReadAt, WriteAt};
use mooncrate_ssd::{ALIGN, Room};
use std::path::Path;
use std::sync::Arc;

/// A disk, and memory for one batch.
pub(crate) struct Bare {
    disk: Arc<dyn Disk>,
    size: usize,
    memory: Vec<Room>,
    /// What is read, or written over.
    file: Arc<dyn File>,
    way: Way,
}

const FILE: &str = "bare";

impl Bare {
    /// Values of `size` in batches of `batch`, in a file of `bytes`.
    pub(crate) fn new(
        disk: Arc<dyn Disk>,
        registered: bool,
        way: Way,
        (size, batch, bytes): (u64, usize, u64),
    ) -> Result<Self> {
        let size = size as usize;
        let memory: Vec<Room> = (0..batch)
            .map(|i| {
                let mut room = Room::new(size);
                room.set_len(size);
                // Each block differs, and none is all zeros: a disk may be clever about those.
                for (k, block) in room.chunks_mut(ALIGN).enumerate() {
                    block.fill((i * 31 + k * 7) as u8 | 1);
                }
                room
            })
            .collect();
        if registered {
            // Nobody else uses the disk, and it goes together with this memory.
            for room in &memory {
                disk.register(Arc::new(()), room.as_ptr().addr(), room.len());
            }
        }
        let file = disk.open(Path::new(FILE), Open::Create)?;
        let bare = Self { disk, size, memory, file, way };
        (0..bytes / (size * batch) as u64).try_for_each(|at| bare.write(at))?;
        bare.file.sync_data()?;
        Ok(bare)
    }

    fn write(&self, at: u64) -> Result<()> {
        let file = &self.file;
        let pieces: Vec<[&[u8]; 1]> = self.memory.iter().map(|room| [&room[..]]).collect();
        let base = at * (self.size * self.memory.len()) as u64;
        let mut writes: Vec<_> = pieces
            .iter()
            .enumerate()
            .map(|(i, pieces)| {
                let offset = base + (i * self.size) as u64;
                WriteAt { file, offset, pieces, result: Ok(()) }
            })
            .collect();
        self.disk.write(&mut writes);
        Ok(writes.into_iter().try_for_each(|write| write.result)?)
    }

    fn read(&mut self, at: u64) -> Result<()> {
        let base = at * (self.size * self.memory.len()) as u64;
        let (size, file) = (self.size, &self.file);
        let mut reads: Vec<_> = self
            .memory
            .iter_mut()
            .enumerate()
            .map(|(i, into)| {
                let offset = base + (i * size) as u64;
                ReadAt { file, offset, into, result: Ok(()) }
            })
            .collect();
        self.disk.read(&mut reads);
        Ok(reads.into_iter().try_for_each(|read| read.result)?)
    }

    /// One lap of so many batches. Writes count until they are synced.
    pub(crate) fn lap(&mut self, batches: u64, watch: &mut Watch) -> Result<()> {
        (0..batches).try_for_each(|at| {
            watch.time(|| match self.way {
                Way::Read => self.read(at),
                Way::Write => {
                    self.write(at)?;
                    Ok(self.file.sync_data()?)
                }
            })
        })
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        self.disk.remove(Path::new(FILE)).ok();
    }
}
