//! Backends: batches of records that are kept, and loaded again, with all that is verified on the way.

use super::fio::Way;
use super::watch::Watch;
use anyhow::{Context, Result, ensure};
use mooncrate_core::seal::extent_bytes;
use mooncrate_core::{LeaderEpoch, ObjectId, Seal};
use mooncrate_mem::sums::seal_of;
use mooncrate_ssd::disk::Disk;
use mooncrate_ssd::{Backend, Config, KeepError, Kind, Load, NewRecord, RecordId, Room};
use std::sync::Arc;
use std::time::Duration;

/// As long as a key in use is.
const LABEL: &[u8] =
    b"\0\0\0\0\0a label with a tenant and a key of about eighty bytes, like those of an engine";
/// Beside the bytes of values; a bucket goes as a whole.
const SLACK: u64 = 768 << 20;
/// Loads under way are none of ours: nothing is waited for.
const WAIT: Duration = Duration::from_secs(10);

/// A backend, values in memory that lie as in a segment, and memory to load into.
pub(crate) struct Kept {
    backend: Arc<dyn Backend>,
    size: usize,
    values: Room,
    seals: Vec<Seal>,
    into: Vec<Room>,
    /// Records so far: each batch has new names.
    records: u64,
    /// Bytes that a lap keeps.
    lap_bytes: u64,
    way: Way,
}

impl Kept {
    /// Values of `size` in batches of `batch`, `bytes` in a lap. Loads find as much to load.
    pub(crate) fn new(
        disk: &Arc<dyn Disk>,
        kind: Kind,
        way: Way,
        (size, batch, bytes): (u64, usize, u64),
    ) -> Result<Self> {
        // Room for a lap, for the one that goes, and for what is rounded up.
        let config = Config::new(kind, 2 * bytes + bytes / 2 + SLACK);
        let (backend, _) = mooncrate_ssd::open(Arc::clone(disk), &config, &mut drop, &mut drop)?;
        let stride = extent_bytes(size) as usize;
        let size = size as usize;
        let mut values = Room::new(stride * batch);
        values.set_len(stride * batch);
        for (i, line) in values.chunks_mut(64).enumerate() {
            line.fill(i as u8 | 1);
            line[..8].copy_from_slice(&(i as u64).to_le_bytes());
        }
        let seals = (0..batch).map(|i| seal_of(&values[i * stride..][..size])).collect();
        let mut kept = Self {
            backend,
            size,
            values,
            seals,
            into: Vec::new(),
            records: 0,
            lap_bytes: bytes,
            way,
        };
        if way == Way::Read {
            kept.into = (0..batch).map(|_| Room::new(size)).collect();
            for room in &mut kept.into {
                room.set_len(size);
                // Nobody else uses the disk, and it goes together with this memory.
                disk.register(Arc::new(()), room.as_ptr().addr(), room.len());
            }
            for _ in 0..bytes / (size * batch) as u64 {
                kept.keep()?;
            }
        }
        Ok(kept)
    }

    fn id(sequence: u64) -> RecordId {
        RecordId { object: ObjectId { epoch: LeaderEpoch(1), sequence }, stripe: 0 }
    }

    fn keep(&mut self) -> Result<()> {
        let stride = extent_bytes(self.size as u64) as usize;
        let records: Vec<_> = (self.seals.iter().enumerate())
            .map(|(i, &seal)| NewRecord {
                id: Self::id(self.records + i as u64),
                label: LABEL,
                seal,
                value: &self.values[i * stride..][..self.size],
            })
            .collect();
        let kept: Result<Vec<()>, KeepError> = self.backend.keep(&records).into_iter().collect();
        self.records += records.len() as u64;
        kept.context("a record was not kept").map(drop)
    }

    fn load(&mut self, at: u64) -> Result<()> {
        let first = at * self.into.len() as u64;
        let len = self.size as u64;
        let mut loads: Vec<_> = (self.into.iter_mut().zip(&self.seals).enumerate())
            .map(|(i, (into, &seal))| Load {
                id: Self::id(first + i as u64),
                label: LABEL,
                len,
                seal,
                start: 0,
                want: len,
                into,
                sums: None,
                result: Ok(()),
            })
            .collect();
        self.backend.load(&mut loads);
        loads.into_iter().try_for_each(|load| load.result).context("a record was not loaded")
    }

    /// Makes room for a lap, which does not count.
    fn evict(&self) -> Result<()> {
        loop {
            let usage = self.backend.usage();
            let need = self.lap_bytes + self.lap_bytes / 4 + SLACK / 2;
            if usage.limit - usage.used >= need {
                return Ok(());
            }
            let ticket = self.backend.unlink(need).context("nothing can be evicted")?;
            ticket.finish(WAIT)?;
        }
    }

    /// One lap of so many batches.
    pub(crate) fn lap(&mut self, batches: u64, watch: &mut Watch) -> Result<()> {
        if self.way == Way::Read {
            return (0..batches).try_for_each(|at| watch.time(|| self.load(at)));
        }
        self.evict()?;
        (0..batches).try_for_each(|_| watch.time(|| self.keep()))
    }

    /// That what was loaded last is what was kept.
    pub(crate) fn check(&self) -> Result<()> {
        let stride = extent_bytes(self.size as u64) as usize;
        for (i, into) in self.into.iter().enumerate() {
            ensure!(into[..] == self.values[i * stride..][..self.size], "WRONG BYTES in value {i}");
        }
        Ok(())
    }
}
